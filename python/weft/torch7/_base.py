"""What every module of weft.torch7 has, and how arguments are read and printed."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

from .._core.arguments import check_ints
from ..nn._named import made


class Torch7:
    """forward by its old name."""

    def updateOutput(self, *inputs: Any) -> Any:
        """The result of forward, with its hooks.

            >>> weft.torch7.ReLU().updateOutput(torch.tensor([-1.0, 2.0]))
            tensor([0., 2.])
        """
        return self(*inputs)   # type: ignore[operator]


def taking(arguments: str, name: str, *rest: Any, **attributes: Any) -> Any:
    """A class as `made` makes it, whose constructor has these arguments and hands them by name to _build of its first base."""
    given = [a.partition("=")[::2] for a in arguments.split() if a != "*"]
    init = eval(f"lambda self, {', '.join(arguments.split())}: self._build({', '.join(f'{n}={n}' for n, _ in given)})")
    init.__name__, init.__qualname__ = "__init__", f"{name}.__init__"
    kinds = {n: Any if n in ("device", "dtype") else Optional[int] if default == "None" else int for n, default in given}
    init.__annotations__ = {**kinds, "return": None}
    return made(name, *rest, __init__=init, **attributes)


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
