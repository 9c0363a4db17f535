"""The one list of cases, and what every test does with a case: make its tensors, call weft and its twin, compare."""
from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field
from typing import Any, Callable, Optional

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

import weft.functional as W


@dataclass(frozen=True)
class Case:
    """A convolution as torch.nn.functional is called. input: without the batch for an unbatched case."""

    name: str
    input: tuple[int, ...]
    weight: tuple[int, ...]
    bias: bool = True
    transposed: bool = False
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def rank(self) -> int:
        return len(self.weight) - 2

    @property
    def function(self) -> str:
        return f"conv{'_transpose' if self.transposed else ''}{self.rank}d"

    @property
    def weft(self) -> Callable[..., Tensor]:
        return getattr(W, self.function)

    @property
    def twin(self) -> Callable[..., Tensor]:
        return getattr(F, self.function)

    def tensors(self, device: torch.device, dtype: torch.dtype = torch.float32, grad: bool = False) -> list[Optional[Tensor]]:
        groups = self.options.get("groups", 1)
        channels = self.weight[1] * groups if self.transposed else self.weight[0]
        scale = 1 / math.sqrt(max(1, math.prod(self.weight[1:])))
        x, w, b = torch.randn(self.input), torch.randn(self.weight) * scale, torch.randn(channels)
        made = [t.to(device, dtype).requires_grad_(grad) for t in (x, w, b)]
        return made if self.bias else [made[0], made[1], None]

    def __str__(self) -> str:
        return self.name


def _conv(name: str, input: tuple, weight: tuple, bias: bool = True, **options: Any) -> Case:
    return Case(name, input, weight, bias, False, options)


def _transposed(name: str, input: tuple, weight: tuple, bias: bool = True, **options: Any) -> Case:
    return Case(name, input, weight, bias, True, options)


CASES = [
    _conv("1d", (2, 4, 11), (6, 4, 3)),
    _conv("1d-same-even", (2, 4, 11), (4, 1, 4), groups=4, padding="same"),
    _conv("1d-stride-dilation", (2, 4, 19), (4, 2, 3), groups=2, stride=2, dilation=3, padding=2),
    _conv("1d-unbatched", (4, 11), (6, 4, 3), padding=1),
    _conv("2d-depthwise", (2, 5, 9, 13), (5, 1, 3, 3), groups=5, padding=1),
    _conv("2d-depthwise-wide", (2, 33, 7, 37), (33, 1, 3, 3), groups=33, padding=1),
    _conv("2d-depthwise-no-bias", (2, 8, 6, 6), (8, 1, 3, 3), False, groups=8, padding=1),
    _conv("2d-depthwise-valid", (1, 3, 8, 9), (3, 1, 3, 3), groups=3, padding="valid"),
    _conv("2d-depthwise-stride", (2, 6, 9, 10), (6, 1, 3, 3), groups=6, padding=1, stride=2),
    _conv("2d-depthwise-k5", (1, 4, 9, 8), (4, 1, 5, 5), groups=4, padding=2),
    _conv("2d-depthwise-k3x7", (1, 4, 9, 12), (4, 1, 3, 7), groups=4, padding=(1, 3)),
    _conv("2d-multiplier", (2, 4, 7, 8), (12, 1, 3, 3), groups=4, padding=1),
    _conv("2d-grouped", (2, 6, 7, 8), (9, 2, 3, 2), groups=3, stride=(2, 1), padding=(1, 0), dilation=(1, 2)),
    _conv("2d-dense", (2, 3, 7, 8), (4, 3, 3, 3), padding=1),
    _conv("2d-pointwise", (2, 5, 4, 4), (7, 5, 1, 1)),
    _conv("2d-same-dilated", (1, 4, 8, 9), (4, 1, 2, 3), groups=4, padding="same", dilation=(3, 2)),
    _conv("2d-unbatched", (5, 9, 8), (5, 1, 3, 3), groups=5, padding=1),
    _conv("2d-empty-batch", (0, 5, 9, 8), (5, 1, 3, 3), groups=5, padding=1),
    _conv("2d-one-pixel", (2, 4, 1, 1), (4, 1, 3, 3), groups=4, padding=1),
    _conv("3d-depthwise", (1, 4, 5, 6, 7), (4, 1, 3, 3, 3), groups=4, padding=1),
    _conv("3d-grouped", (2, 4, 5, 4, 6), (6, 2, 2, 3, 3), groups=2, stride=(1, 2, 1), padding=(0, 1, 2)),
    _conv("3d-same", (1, 2, 4, 5, 6), (2, 1, 2, 3, 4), groups=2, padding="same"),
    _conv("3d-unbatched", (3, 4, 5, 6), (3, 1, 3, 3, 3), groups=3, padding=1),
    _transposed("t1d", (2, 4, 7), (4, 3, 4), stride=2, padding=1),
    _transposed("t2d-depthwise", (2, 5, 6, 9), (5, 1, 3, 3), groups=5, padding=1),
    _transposed("t2d-output-padding", (2, 4, 5, 6), (4, 3, 3, 3), stride=(2, 3), padding=1, output_padding=(1, 2), groups=2),
    _transposed("t2d-dilated", (1, 4, 5, 6), (4, 2, 3, 2), dilation=(2, 1), stride=(1, 2), padding=(2, 0)),
    _transposed("t2d-unbatched", (4, 5, 6), (4, 2, 3, 3), stride=2, output_padding=1, groups=2),
    _transposed("t2d-empty-batch", (0, 4, 5, 6), (4, 2, 3, 3), groups=2),
    _transposed("t2d-output-padding-over-stride", (1, 2, 5, 6), (2, 3, 3, 3), dilation=3, padding=2, output_padding=2),
    _transposed("t3d", (1, 4, 3, 4, 3), (4, 2, 2, 3, 2), stride=2, padding=(0, 1, 0), output_padding=(1, 0, 1), groups=2),
]
SMALL = [c for c in CASES if c.name in ("1d-same-even", "2d-depthwise-no-bias", "2d-grouped", "2d-unbatched", "3d-same", "t1d",
                                        "t2d-output-padding", "t3d")]
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


def case(name: str) -> Case:
    return next(c for c in CASES if c.name == name)


def channels_last(t: Tensor) -> Tensor:
    """Any rank from 3 on: channels nearest in memory."""
    return t.movedim(1, -1).contiguous().movedim(-1, 1)


def scattered(t: Tensor) -> Tensor:
    """The same values with a gap after every element of the last axis."""
    wide = t.new_full((*t.shape[:-1], 2 * t.shape[-1]), float("nan"))
    wide[..., ::2] = t
    return wide[..., ::2]


def shifted(t: Tensor) -> Tensor:
    """The same values at an address that is aligned to the element only."""
    memory = t.new_full((t.numel() + 1,), float("nan"))
    view = memory[1:].view(t.shape)
    view.copy_(t)
    return view


def tolerance(dtype: torch.dtype, terms: int) -> float:
    """Of the largest value. Sums are kept in float32 or wider: each side is off by eps32 * sqrt(terms) and a rounding to the dtype."""
    work = torch.float64 if dtype == torch.float64 else torch.float32
    return 2 * torch.finfo(dtype).eps + 4 * torch.finfo(work).eps * math.sqrt(terms)


def close(ours: Tensor, truth: Tensor, terms: int = 64) -> None:
    """ours, in its dtype, beside truth in float64."""
    assert ours.shape == truth.shape, f"shape {tuple(ours.shape)}, expected {tuple(truth.shape)}"
    if not ours.numel():
        return
    error = (ours.double() - truth.double()).abs().max().item() / max(truth.double().abs().max().item(), 1e-30)
    assert error <= tolerance(ours.dtype, terms), f"error {error:.2e} of the largest value, allowed {tolerance(ours.dtype, terms):.2e}"


def truth_of(c: Case, tensors: list[Optional[Tensor]], grad: Optional[Tensor] = None) -> list[Tensor]:
    """The twin in float64 on the CPU: its result and, if grad is given, the gradients."""
    exact = [None if t is None else t.detach().double().cpu().requires_grad_() for t in tensors]
    y = c.twin(exact[0], exact[1], exact[2], **c.options)
    if grad is None:
        return [y.detach()]
    return [y.detach(), *torch.autograd.grad(y, [t for t in exact if t is not None], grad.detach().double().cpu())]


@functools.cache
def _twice_with_symbols() -> bool:
    """Whether this PyTorch traces the second derivative of its own convolution with symbolic sizes: before 2.13 it raises."""
    def second(x, w):
        first, = torch.autograd.grad(torch.nn.functional.conv1d(x, w).sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), w)
    try:
        make_fx(second, tracing_mode="symbolic")(torch.randn(2, 2, 5, requires_grad=True), torch.randn(2, 2, 3, requires_grad=True))
    except RuntimeError as problem:
        assert "symbolic sizes" in str(problem)
        return False
    return True


def opcheck_convolution(op, args) -> None:
    """torch.library.opcheck of an operator whose second derivative is PyTorch's convolution's."""
    checks = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(op, args, test_utils=checks if _twice_with_symbols() else checks[:3])
