"""The samples of module_db on every module that has a twin in torch.nn, and the older ones of common_nn with weft's functions under the twins' names."""
from __future__ import annotations

import contextlib
import copy
import pickle
from unittest import mock

import pytest
import torch
import torch.nn.functional as F

import weft.functional
import weft.nn
from cases import DTYPES
from samples import Sample, arguments_of, compare, copied, draw, internals, report, run, same_error, wanted
from test_samples import TWINS

MODULES = [*(f"{kind}{rank}d" for kind in ("Conv", "ConvTranspose", "MaxPool", "AvgPool", "AdaptiveAvgPool", "BatchNorm") for rank in (1, 2, 3)),
           "ReLU", "Hardtanh", "Tanh", "Sigmoid", "Softmax", "LogSoftmax", "CrossEntropyLoss", "LocalResponseNorm", "RNN", "LSTM", "GRU"]


def info(name):
    return next(m for m in internals("common_modules").module_db if m.name == f"nn.{name}")


def written(name, device, dtype, training, wrong=False):
    source = info(name)
    make = source.module_error_inputs_func if wrong else source.module_inputs_func
    return list(make(source, device=str(device), dtype=dtype, requires_grad=not wrong, training=training)) if make else []


def built(kind, made, device, dtype):
    """A module of that class as the sample asks for it."""
    arguments = Sample(made.args, made.kwargs).map(copied)
    return kind(*arguments.args, **arguments.kwargs).to(device, dtype)


def names(kind):
    return tuple({*arguments_of(kind.__init__), *arguments_of(kind.forward)} - {"self"})


def pair(name, made, device, dtype, training):
    """weft's module and its twin with the same parameters."""
    ours, twin = (built(kind, made, device, dtype) for kind in (getattr(weft.nn, name), getattr(torch.nn, name)))
    assert isinstance(ours, type(twin)) and ours.extra_repr() == twin.extra_repr(), f"{ours}, the twin is {twin}"
    assert list(ours.state_dict()) == list(twin.state_dict()) and ours.training == twin.training
    ours.load_state_dict(copy.deepcopy(twin.state_dict()))
    return ours.train(training), twin.train(training)


def test_every_module_is_listed():
    """Unfold and Fold, which module_db has not, are among the older samples."""
    assert [n for n in weft.nn.__all__ if hasattr(torch.nn, n) and n not in (*MODULES, "Unfold", "Fold")] == []


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d)[6:])
@pytest.mark.parametrize("name", MODULES)
def test_module(name, dtype, training, device):
    kind = wanted(weft.nn, name)
    failures, made = [], draw(written(name, device, dtype, training))
    assert made
    for m in made:
        ours, twin = pair(name, m.constructor_input, device, dtype, training)
        sample = Sample(m.forward_input.args, m.forward_input.kwargs)
        why = compare(ours, twin, sample, names(kind), loss=name == "CrossEntropyLoss")
        if why:
            failures.append(f"  {twin} of ({sample}): {why}")
    report(failures, len(made))


@pytest.mark.parametrize("name", MODULES)
def test_copies(name, device):
    """A deep copy, an unpickled one and one filled from the twin's state_dict compute the same bits; the twin takes ours in turn."""
    wanted(weft.nn, name)
    for m in written(name, device, torch.float32, False)[:3]:
        ours, twin = pair(name, m.constructor_input, device, torch.float32, False)
        twin.load_state_dict(ours.state_dict())
        sample = Sample(m.forward_input.args, m.forward_input.kwargs)
        expected, again = run(ours, sample), run(ours, sample)
        steady = all(torch.equal(a, b) for a, b in zip(again.outputs + again.grads, expected.outputs + expected.grads, strict=True))
        assert steady or device.type == "cuda"   # PyTorch's gradient of adaptive pooling adds in any order there
        for other in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
            got = run(other, sample)
            assert type(other) is type(ours) and got.error is None and expected.error is None
            for a, b in zip(got.outputs + got.grads, expected.outputs + expected.grads, strict=True):
                assert torch.equal(a, b) if steady else torch.allclose(a, b)


@pytest.mark.parametrize("name", MODULES)
def test_refusals(name, device):
    """What PyTorch's authors know the twin to refuse is refused, when it is made or when it is called."""
    kind, twin = wanted(weft.nn, name), getattr(torch.nn, name)
    found = written(name, device, torch.float32, True, wrong=True)
    failures = []
    for wrong in found:
        made = wrong.module_error_input

        def use(which):
            module = which(*made.constructor_input.args, **made.constructor_input.kwargs)
            return module(*made.forward_input.args, **made.forward_input.kwargs) if made.forward_input else module

        mine, other = run(use, Sample((kind,))), run(use, Sample((twin,)))
        why = same_error(mine, other, names(kind))
        if not why and not isinstance(mine.error, wrong.error_type):
            why = f"{type(mine.error).__name__}, module_db expects {wrong.error_type}"
        if why:
            failures.append(f"  {name}({Sample(made.constructor_input.args, made.constructor_input.kwargs)}): {why}")
    report(failures, len(found))


# ---------------------------------------------------------------------------------------- torch.nn with the functions of weft

class Swap:
    """While it is on, the functions of torch.nn.functional that weft has are weft's. used: those that were called."""

    def __init__(self):
        self.used, self.inside = set(), False

    def _of(self, name, twin):
        def call(*args, **kwargs):
            if self.inside:          # weft hands a call to PyTorch
                return twin(*args, **kwargs)
            self.used.add(name)
            self.inside = True
            try:
                return getattr(weft.functional, name)(*args, **kwargs)
            finally:
                self.inside = False
        return call

    @contextlib.contextmanager
    def on(self):
        with contextlib.ExitStack() as stack:
            for name in TWINS:
                if hasattr(weft.functional, name):
                    stack.enter_context(mock.patch.object(F, name, self._of(name, getattr(F, name))))
            yield


class Swapped(torch.nn.Module):
    """A module of torch.nn that runs with the functions of weft."""

    def __init__(self, inner, swap):
        super().__init__()
        self.inner, self.swap = inner, swap

    def forward(self, *args):
        with self.swap.on():
            return self.inner(*args)


def older_samples():
    """They hold functions of torch.nn.functional, as it is when they are listed, and random tensors."""
    torch.manual_seed(7)
    source, made = internals("common_nn"), []
    newer = source.get_new_module_tests() if hasattr(source, "get_new_module_tests") else source.new_module_tests
    for entry in (*source.module_tests, *newer):
        entry = dict(entry)
        if "constructor" not in entry:
            entry["constructor"] = getattr(torch.nn, entry.pop("module_name"))
        made.append(source.NewModuleTest(**entry))
    return made


def _cast(test, device, dtype):
    """The arguments of an older sample."""
    given = test._get_input()
    to = lambda t: t.detach().to(device, dtype).requires_grad_() if isinstance(t, torch.Tensor) and t.is_floating_point() else t
    return Sample(given if isinstance(given, tuple) else (given,)).map(to)


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=lambda d: str(d)[6:])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_older_modules(dtype, device):
    """The same samples with the classes of weft.nn under the names of torch.nn."""
    failures, reached = [], set()
    classes = {n: getattr(weft.nn, n) for n in weft.nn.__all__ if hasattr(torch.nn, n)}
    for test in older_samples():
        twin = test.constructor(*test.constructor_args)
        with mock.patch.multiple(torch.nn, **classes):
            ours = getattr(torch.nn, test.constructor.__name__, test.constructor)(*test.constructor_args)
        if type(ours) not in classes.values():
            continue
        reached.add(type(ours).__name__)
        ours.load_state_dict(twin.state_dict())
        sample = _cast(test, device, dtype)
        why = compare(ours.to(device, dtype), twin.to(device, dtype), sample, names(type(ours)))
        if why:
            failures.append(f"  {test.get_name()[5:]} {ours}({sample}): {why}")
    report(failures, len(reached))
    assert reached >= {"Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d", "Fold", "Unfold"}, sorted(reached)


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=lambda d: str(d)[6:])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_modules_of_torch(dtype, device):
    """Modules of torch.nn, written before module_db, compute the same with weft's functions in place of torch.nn.functional's."""
    failures, reached, total, swap = [], set(), 0, Swap()
    plain = older_samples()
    with swap.on():
        swapped = older_samples()
    for test, other in zip(plain, swapped, strict=True):
        swap.used.clear()
        twin, sample = test.constructor(*test.constructor_args), _cast(test, device, dtype)
        with swap.on():
            ours = other.constructor(*test.constructor_args)
        ours.load_state_dict(twin.state_dict())
        ours, twin = (m.to(device, dtype).train(False) for m in (Swapped(ours, swap), twin))
        run(ours, sample)
        if not swap.used:
            continue
        total, reached = total + 1, reached | swap.used
        why = compare(ours, twin, sample, ("input",))
        if why:
            failures.append(f"  {test.get_name()[5:]}({sample}): {why}")
    report(failures, total)
    assert "conv2d" in reached and total > 20, f"{total} samples reach {sorted(reached)}"
