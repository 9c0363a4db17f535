"""What the child processes of `python -m weft run` find on PYTHONPATH: one that imports torch imports weft after it, and WEFT_ENABLE=1 enables it.
Processes without torch pay for nothing. The sitecustomize that this one hides, if there is one, runs too."""
import importlib.machinery
import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


class _Then:
    """The loader of torch, and weft behind it."""

    def __init__(self, loader):
        self._loader = loader

    def __getattr__(self, name):
        return getattr(self._loader, name)

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        if importlib.util.find_spec("weft") is None:
            sys.path.append(os.path.dirname(os.path.dirname(_HERE)))
        importlib.import_module("weft")


class _Watch:
    """Waits for the import of torch."""

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Then(spec.loader)
        return spec


def _hidden():
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", [p for p in sys.path if os.path.abspath(p) != _HERE])
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if os.environ.get("WEFT_ENABLE") == "1":
    sys.meta_path.insert(0, _Watch())
_hidden()
