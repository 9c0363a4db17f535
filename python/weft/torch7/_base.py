"""What every module of weft.torch7 has, and how arguments are read and printed."""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Optional

from torch.fx import Proxy


class Torch7:
    """forward by its old name."""

    def updateOutput(self, *inputs: Any) -> Any:
        """The result of forward, with its hooks.

            >>> weft.torch7.ReLU().updateOutput(torch.tensor([-1.0, 2.0]))
            tensor([0., 2.])
        """
        return self(*inputs)   # type: ignore[operator]


def leaf(module: Any, *inputs: Proxy) -> Proxy:
    """What forward gives to torch.fx where it must look at its input: the module stays whole in the trace."""
    tracer = inputs[0].tracer
    return tracer.create_proxy("call_module", tracer.path_of_module(module), inputs, {})


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


def check_reals(**values: Any) -> None:
    """Each is a finite number."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"{name}: is {value!r}, allowed: a number")
        if not math.isfinite(value):
            raise ValueError(f"{name}: is {value}, allowed: a finite number")


def read_window(**values: Optional[int]) -> list[tuple[int, ...]]:
    """Kernel, stride, padding and, if given, dilation or what is added to the size, named kT, kW, kH, dT, ..., as PyTorch orders them: (T, H, W). A
    stride of None is that of the kernel."""
    axes = [a for a in "THW" if f"k{a}" in values]
    check_ints(1, **{n: v for n, v in values.items() if n[0] == "k" or (n[0] == "d" and v is not None)})
    check_ints(0, **{n: v for n, v in values.items() if n.startswith(("pad", "adj"))})
    kernel = tuple(values[f"k{a}"] for a in axes)
    stride = tuple(k if values[f"d{a}"] is None else values[f"d{a}"] for a, k in zip(axes, kernel))
    last = [tuple(values[f"{word}{a}"] for a in axes) for word in ("dilation", "adj") if f"{word}H" in values]
    return [kernel, stride, tuple(values[f"pad{a}"] for a in axes), *last]   # type: ignore[list-item]


def old_order(sizes: Sequence[int]) -> list[int]:
    """(H, W) as W, H and (T, H, W) as T, W, H: and back."""
    return [*sizes[:-2], *reversed(sizes[-2:])]


def window_text(kernel: Sequence[int], *others: tuple[Sequence[int], Optional[int]]) -> str:
    """A window, then the settings up to the last that differs from its default: 11x11, 3,3, 1,1."""
    shown = max((i + 1 for i, (values, default) in enumerate(others) if any(v != default for v in values)), default=0)
    return ", ".join(["x".join(map(str, old_order(kernel))), *(",".join(map(str, old_order(values))) for values, _ in others[:shown])])
