"""What the functions and modules share: reading and checking arguments, autocast, types that weft leaves to PyTorch, and what PyTorch does on this thread."""
from __future__ import annotations

import inspect
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Optional, Union

import torch
from torch import Tensor

# what PyTorch does on this thread, by names that are quick to look up: every call asks some of these
is_compiling = torch.compiler.is_compiling
in_dynamo = torch.compiler.is_dynamo_compiling   # which stops at builtins
in_transform = torch._C._are_functorch_transforms_active
grad_enabled = torch.is_grad_enabled
any_autocast = torch._C._is_any_autocast_enabled
BelowAutograd = torch._C._AutoDispatchBelowAutograd

TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)   # what weft computes with
Size = Union[int, Sequence[int]]
Padding = Union[int, Sequence[int], str]

_strided = torch.strided


class NoTensor(TypeError, AttributeError):
    """The wrong kind of an argument; some of the twins, or of their modules, only notice that it has no method of a tensor."""


def whole(value: Any) -> Any:
    """An int, or what can stand for one; None for all else, also True and False."""
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, torch.SymInt)):
        return value
    try:
        return operator.index(value)
    except TypeError:
        return None


def spread(name: str, value: Size, rank: int) -> tuple[int, ...]:
    """One value an axis, from an int or a sequence of 1 or `rank` ints."""
    some = tuple(map(whole, value if isinstance(value, (tuple, list)) else (value,)))
    if None in some:
        raise TypeError(f"{name}: is {value!r}, allowed: an int, or a sequence of {rank} ints")
    for v in some:
        if type(v) is int and not -2**63 <= v < 2**63:
            raise ValueError(f"{name}: has {v}, allowed: -2^63 to 2^63 - 1")
    if len(some) not in (1, rank):
        raise RuntimeError(f"{name}: has {len(some)} values {some}, allowed: an int, or {rank} of them")
    return some if len(some) == rank else some * rank


def _is_plain(value: Any) -> bool:
    return value is None or type(value) in (int, str) or (type(value) is tuple and all(type(v) is int for v in value))


def remembered(read: Callable) -> Callable:
    """A function of settings that keeps its results, of those that compare by their value: lists cannot be looked up, other things not be kept, and
    what is wrong is said again."""
    @lru_cache(maxsize=4096, typed=True)
    def kept(*settings: Any, **named: Any) -> Any:
        if not all(map(_is_plain, settings)) or not all(map(_is_plain, named.values())):
            raise TypeError
        return read(*settings, **named)

    def remember(*settings: Any, **named: Any) -> Any:
        if is_compiling():
            return read(*settings, **named)
        try:
            return kept(*settings, **named)
        except TypeError:
            return read(*settings, **named)
    return remember


def real(start: str, value: Any) -> float:
    """A float, or what can stand for one without the loss of a gradient. start: of the text of an error, "argument: is"."""
    if isinstance(value, (str, bytes)) or not hasattr(value, "__float__") or (isinstance(value, Tensor) and (value.numel() != 1 or value.requires_grad)):
        raise TypeError(f"{start} {value!r}, allowed: a float")
    return float(value)


def foreign(input: Tensor, weight: Optional[Tensor] = None) -> bool:
    """A type or a layout that weft has no kernels for (whole and complex numbers, 8 bits; sparse, oneDNN's): PyTorch takes it, or refuses it in its
    own words."""
    return (input.dtype not in TYPES and (weight is None or weight.dtype == input.dtype)) or input.layout is not _strided


def left_to_torch(name: str, out: Any, input: Tensor, *args: Any, also: str = "") -> Any:
    """PyTorch's own function, for types and settings that weft leaves to it. also: what weft wants of them besides the type."""
    if out is not None:
        settings = tuple(a for a in args if not isinstance(a, Tensor))
        raise RuntimeError(f"{name}: out is given with input of {input.dtype} and the settings {settings}, allowed: float32, float64, float16 or bfloat16{also}")
    return getattr(torch.nn.functional, name)(input, *args)


def flattened(input: Tensor, out: Optional[Tensor]) -> tuple[Tensor, Optional[Tensor]]:
    """Data of more dimensions than operators take, the fifth and later ones as one; and out alike, whose memory must allow it."""
    flat = input.flatten(4)
    if out is None:
        return flat, None
    if not isinstance(out, Tensor):
        raise TypeError(f"out: is {type(out).__name__}, allowed: Tensor or None")
    if out.shape != input.shape:
        raise RuntimeError(f"out: has the shape {list(out.shape)}, allowed: the shape of the result, {list(input.shape)}")
    try:
        return flat, out.view(flat.shape)
    except RuntimeError:
        raise RuntimeError(f"out: has the strides {list(out.stride())}, allowed: strides by which the fifth and later dimensions are one") from None


def autocast_dtype(device: torch.device) -> Optional[torch.dtype]:
    """The lower precision that autocast asks for on this device; None where it is off."""
    if not any_autocast() or device.type == "meta" or not torch.is_autocast_enabled(device.type):   # autocast knows no meta device,
        return None                                                                                  # and torch.compile no way to ask
    return torch.get_autocast_dtype(device.type)


def lowered(*tensors: Optional[Tensor]) -> tuple[Any, ...]:
    """Under autocast, what PyTorch runs in the lower precision (convolution) runs in it here; float64 is left alone."""
    if not any_autocast():
        return tensors
    dtype = autocast_dtype(tensors[0].device)   # type: ignore[union-attr]
    if dtype is None:
        return tensors
    return tuple(t if t is None or t.dtype == torch.float64 or not t.is_floating_point() else t.to(dtype) for t in tensors)


def raised(*tensors: Optional[Tensor]) -> tuple[Any, ...]:
    """Under autocast, what PyTorch runs in float32 (softmax, losses) runs in it here."""
    if not any_autocast() or autocast_dtype(tensors[0].device) is None:   # type: ignore[union-attr]
        return tensors
    return tuple(t.float() if t is not None and t.dtype in (torch.float16, torch.bfloat16) else t for t in tensors)


def need_tensors(words: str, given: Mapping[str, Any], optional: Mapping[str, Any] = {}) -> None:
    """words: the beginning of the error's text, {} for the argument's name. optional: may be None."""
    for name, value in (*given.items(), *optional.items()):
        if not isinstance(value, Tensor) and not (value is None and name in optional):
            raise TypeError(f"{words.format(name)} {type(value).__name__}, allowed: Tensor{' or None' if name in optional else ''}")


def check_ints(least: int, **values: Any) -> None:
    """Each is an int, and `least` or more."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name}: is {value!r}, allowed: an int")
        if value < least:
            raise ValueError(f"{name}: is {value}, allowed: {least} or more")


def check_flags(**values: Any) -> None:
    """Each is True or False."""
    for name, value in values.items():
        if not isinstance(value, bool):
            raise TypeError(f"{name}: is {value!r}, allowed: True or False")


def check_seconds(name: str, value: Any, also: str = "") -> None:
    """A time that can be waited for. also: what else is allowed."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name}: is {value!r}, allowed: a number of seconds{also}")
    if not 0 < value < float("inf"):
        raise ValueError(f"{name}: is {value}, allowed: more than 0, and finite{also}")


def check_reals(**values: Any) -> None:
    """Each is a finite number."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"{name}: is {value!r}, allowed: a number")
        if not math.isfinite(value):
            raise ValueError(f"{name}: is {value}, allowed: a finite number")


def named(function: Callable, name: str, help: str) -> Any:
    """The function with this name and help."""
    function.__name__ = function.__qualname__ = name
    function.__doc__ = help
    return function


def at_rank(text: str, rank: int) -> str:
    """A text with the number of axes for {rank}, and a size of each of them for {x9}: 9, 9 in 2D."""
    return re.sub(r"\{x(\d+)\}", lambda size: ", ".join([size[1]] * rank), text.replace("{rank}", str(rank)))


def ranked(make: Callable[[int], Callable], ranks: Sequence[int] = (1, 2, 3)) -> tuple[Any, ...]:
    """What `make` gives for 1D, 2D and 3D: conv1d, conv2d and conv3d from a function `conv`, whose help is written as at_rank takes it."""
    return tuple(named(function := make(rank), f"{function.__name__}{rank}d", at_rank(inspect.cleandoc(function.__doc__ or ""), rank)) for rank in ranks)
