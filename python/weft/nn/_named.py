"""What the modules add to their twins besides computing: the way they print, and how torch.fx takes them."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Optional

import torch
from torch.fx import Proxy

from .. import functional as F
from .._core.arguments import at_rank
from ..functional.conv import check_activation


class Named:
    """Prints as weft.Name(...)."""

    def _get_name(self) -> str:
        return f"weft.{type(self).__name__}"


def kept_whole(module: Any, input: Proxy, *more: Any) -> Proxy:
    """A call of the module itself, as torch.fx records one of torch.nn: what it does depends on what a symbolic trace does not know."""
    return input.tracer.create_proxy("call_module", input.tracer.path_of_module(module), (input, *more), {})


def check_dims(module: Any, input: Any, rank: int) -> None:
    """Images of this rank, with or without a batch."""
    if not isinstance(input, torch.Tensor):
        raise TypeError(f"{type(module).__name__}: input is {type(input).__name__}, allowed: Tensor")
    if input.dim() not in (rank + 1, rank + 2):
        raise RuntimeError(f"{type(module).__name__}: input has {input.dim()} dimensions {list(input.shape)}, allowed: {rank + 1} (unbatched) or "
                           f"{rank + 2} (batched)")


def made(name: str, bases: tuple[type, ...], help: str, example: str, shown: Any, **attributes: Any) -> Any:
    """A class whose help ends with an example and what that shows: a text, or the sizes of a result."""
    text = "\n".join(f"    >>> {line}" for line in example.splitlines())
    doc = f"{help}\n\n{text}\n    {shown if isinstance(shown, str) else torch.Size(shown)}\n"
    return type(name, bases, {"__doc__": doc, "__module__": bases[0].__module__, **attributes})


def mirror(base: type, twin: type, function: Callable, example: str, shown: Any, more: str = "", **attributes: Any) -> Any:
    """The class of torch.nn with the forward of `base`, which may call self._function."""
    help = f"torch.nn.{twin.__name__} computed by weft{more}."
    return made(twin.__name__, (base, twin), help, example, shown, _function=staticmethod(function), **attributes)


def mirrors(make: Callable, twins: str, functions: str, example: str, shown: str, *rest: Any, ranks: Sequence[int] = (1, 2, 3)) -> tuple[Any, ...]:
    """What `make` gives for the classes of torch.nn and the functions of these names in each rank; the example and its result are as at_rank takes them."""
    return tuple(make(getattr(torch.nn, f"{twins}{rank}d"), getattr(F, f"{functions}{rank}d"), at_rank(example, rank), f"torch.Size([{at_rank(shown, rank)}])", *rest)
                 for rank in ranks)


def own_parameters(module: Any) -> tuple[Any, Any]:
    """weight and bias, from where they lie: to ask the module costs half a microsecond each. A parametrized one is asked."""
    own = module._parameters
    try:
        return own["weight"], own["bias"]
    except KeyError:
        return module.weight, module.bias


class Activated(Named):
    """Prints also its activation."""

    act: Optional[str] = None        # here for modules of torch.nn that are given a class of weft
    clip: tuple[float, float] = (0.0, 6.0)

    def _set_act(self, act: Optional[str], clip: tuple[float, float]) -> None:
        check_activation(act, clip)   # reports what is wrong with them
        self.act, self.clip = act, tuple(clip)

    def extra_repr(self) -> str:
        text = super().extra_repr()   # type: ignore[misc]
        if self.act == "clip":
            return f"{text}, act='clip', clip={self.clip}"
        return text if self.act is None else f"{text}, act={self.act!r}"
