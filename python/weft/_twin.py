"""From a problem text to two calls that compute the same: weft's and PyTorch's own."""
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Optional

import torch
from torch import Tensor

from . import _library
from ._ops import conv as _conv
from ._ops.conv import WANT_BIAS, WANT_INPUT, WANT_WEIGHT
from ._rules import call

PASSES = ("fwd", "bwd_data", "bwd_weights", "bwd", "train")
_DTYPES = {"f32": torch.float32, "f64": torch.float64, "f16": torch.float16, "bf16": torch.bfloat16}
_WANT = {"bwd_data": WANT_INPUT, "bwd_weights": WANT_WEIGHT, "bwd": WANT_INPUT | WANT_WEIGHT}
_READS = {"fwd": ("src", "weights", "bias"), "bwd_data": ("diff_dst", "weights", "bias"), "bwd_weights": ("src", "diff_dst"),
          "bwd": ("src", "weights", "diff_dst")}


@dataclass
class Twin:
    """Two calls without arguments that return the same tensors, and what they must at least move and compute."""

    text: str                       # the problem in normal form; its pass may be "train"
    device: torch.device
    dtype: torch.dtype
    weft: Callable[[], tuple[Tensor, ...]]
    peer: Callable[[], tuple[Tensor, ...]]
    read: int                       # bytes, each tensor once a pass
    write: int
    flops: float                    # of the direct sum
    length: int                     # terms of the longest sum
    kernel: str


def _with_pass(text: str, new: str) -> str:
    head, _, rest = text.partition(":")
    return ":".join((head, new, rest.partition(":")[2]))


def _pass_in(text: str) -> str:
    return (text.split(":") + ["", ""])[1]


def _tensor(spec: dict, device: torch.device, scale: float) -> Tensor:
    """Random data in the strides and at the alignment that the problem states."""
    dtype = _DTYPES[spec["dtype"]]
    size = torch.empty(0, dtype=dtype).element_size()
    extent = 1 + sum((n - 1) * s for n, s in zip(spec["dims"], spec["strides"]) if n)
    offset = 0 if spec["align"] >= 16 else spec["align"] // size
    memory = torch.empty(extent + offset, dtype=dtype, device=device)
    memory.normal_().mul_(scale)
    return memory.as_strided(spec["dims"], spec["strides"], offset)


def _bytes(problem: dict, read: bool) -> int:
    total = 0
    for role, spec in problem["tensors"].items():
        if (role in _READS[problem["pass"]]) == read:
            total += math.prod(spec["dims"]) * torch.empty(0, dtype=_DTYPES[spec["dtype"]]).element_size()
    return total


def _flops(problem: dict) -> float:
    once = 2.0 * problem["n"] * problem["o"] * math.prod(problem["out"]) * problem["c"] // problem["groups"] * math.prod(problem["kernel"])
    return 2 * once if problem["pass"] == "bwd" else once


def _longest_sum(problem: dict) -> int:
    taps = math.prod(problem["kernel"])
    over_pixels = problem["n"] * math.prod(problem["out"])
    inputs, outputs = (problem[k] // problem["groups"] * taps for k in ("c", "o"))
    return {"fwd": inputs, "bwd_data": outputs, "bwd_weights": over_pixels}.get(problem["pass"], max(inputs, outputs, over_pixels))


def _epilogue(problem: dict) -> tuple[bool, str, float, float]:
    """bias or not, then at most one activation: what a PyTorch call can say."""
    kinds = [s["kind"] for s in problem["steps"]]
    bias = bool(kinds) and kinds[0] == "bias"
    rest = problem["steps"][bias:]
    if len(rest) > 1 or any(s["kind"] not in ("relu", "clip") for s in rest):
        raise ValueError(f"{problem['text']}: the epilogue {'+'.join(kinds)} has no PyTorch call, allowed: bias, then relu or clip")
    return (bias, rest[0]["kind"], float(rest[0]["lo"]), float(rest[0]["hi"])) if rest else (bias, "", 0.0, 0.0)


def _activate(y: Tensor, act: str, lo: float, hi: float) -> Tensor:
    return torch.relu(y) if act == "relu" else torch.clamp(y, lo, hi) if act == "clip" else y


class _Sides:
    """The tensors of one problem and the calls on them."""

    def __init__(self, problem: dict, passes: str) -> None:
        self.p, self.passes = problem, passes
        self.device = torch.device(problem["device"], problem["ordinal"] if problem["device"] == "cuda" else None)
        self.has_bias, self.act, self.lo, self.hi = _epilogue(problem)
        self.pads = [p for pair in zip(problem["pad_lo"], problem["pad_hi"]) for p in pair]
        self.even = problem["pad_lo"] == problem["pad_hi"]
        scale = 1 / math.sqrt(problem["c"] // problem["groups"] * math.prod(problem["kernel"]))
        make = {role: _tensor(spec, self.device, scale if role == "weights" else 1.0) for role, spec in problem["tensors"].items()}
        self.t, self.grad = make, None   # grad: of the result of a train run, the same for both sides
        self.geometry = (problem["stride"], self.pads, problem["dilation"], problem["groups"])

    # forward and train
    def weft_forward(self, x: Tensor, w: Tensor, b: Optional[Tensor]) -> Tensor:
        return call(_conv.conv, x, w, b, *self.geometry, self.act, self.lo, self.hi)

    def peer_forward(self, x: Tensor, w: Tensor, b: Optional[Tensor]) -> Tensor:
        p, F = self.p, torch.nn.functional
        padding = p["pad_lo"]
        if not self.even:
            x, padding = F.pad(x, [v for a in reversed(range(p["rank"])) for v in self.pads[2 * a:2 * a + 2]]), 0
        if b is not None:
            b = b.to(x.dtype)        # PyTorch takes no float32 bias beside 16-bit data
        function = (F.conv1d, F.conv2d, F.conv3d)[p["rank"] - 1]
        return _activate(function(x, w, b, p["stride"], padding, p["dilation"], p["groups"]), self.act, self.lo, self.hi)

    def forward(self, side: Callable) -> Callable[[], tuple[Tensor, ...]]:
        args = (self.t["src"], self.t["weights"], self.t.get("bias"))

        def run() -> tuple[Tensor, ...]:
            with torch.no_grad():
                return (side(*args),)
        return run

    def train(self, side: Callable) -> Callable[[], tuple[Tensor, ...]]:
        args = [t.detach().requires_grad_() for t in (self.t["src"], self.t["weights"], self.t.get("bias")) if t is not None]
        bias = args[2] if len(args) > 2 else None
        if self.grad is None:
            self.grad = torch.randn_like(self.forward(self.weft_forward)()[0])
        grad = self.grad

        def run() -> tuple[Tensor, ...]:
            y = side(args[0], args[1], bias)
            return (y, *torch.autograd.grad(y, args, grad))
        return run

    # gradients alone
    def _input(self) -> Tensor:
        """src where the pass reads it; else any tensor of its shape and format, for the signature."""
        return self.t["src"] if "src" in self.t else torch.empty_like(self.t["diff_src"])

    def _weight(self) -> Tensor:
        return self.t["weights"] if "weights" in self.t else torch.empty_like(self.t["diff_weights"])

    def weft_backward(self) -> Callable[[], tuple[Tensor, ...]]:
        want = _WANT[self.passes] | (WANT_BIAS if self.has_bias else 0)
        dtype = self.t["diff_bias"].dtype if self.has_bias else self.t["diff_dst"].dtype
        args = (self.t["diff_dst"], self._input(), self._weight(), *self.geometry, False, want, dtype)

        def run() -> tuple[Tensor, ...]:
            with torch.no_grad():
                return tuple(g for g, bit in zip(call(_conv.conv_backward, *args), (1, 2, 4)) if want & bit)
        return run

    def peer_backward(self) -> Callable[[], tuple[Tensor, ...]]:
        if not self.even:
            raise ValueError(f"{self.p['text']}: uneven padding has no PyTorch twin in pass {self.passes}, allowed: fwd or train")
        p, want = self.p, _WANT[self.passes]
        mask = [bool(want & WANT_INPUT), bool(want & WANT_WEIGHT), self.has_bias]
        args = (self.t["diff_dst"], self._input(), self._weight(), [p["o"]] if self.has_bias else None, p["stride"], p["pad_lo"], p["dilation"],
                False, [0] * p["rank"], p["groups"], mask)

        def run() -> tuple[Tensor, ...]:
            return tuple(g for g, wanted in zip(torch.ops.aten.convolution_backward(*args), mask) if wanted)
        return run

    # transposed convolution: bwd_data with an epilogue
    def transposed(self, weft: bool) -> Callable[[], tuple[Tensor, ...]]:
        p, F = self.p, torch.nn.functional
        if not self.even:
            raise ValueError(f"{p['text']}: uneven padding has no PyTorch twin in a transposed convolution")
        x, w, b = self.t["diff_dst"], self.t["weights"], self.t.get("bias")
        peer_bias = None if b is None else b.to(x.dtype)
        extra = [p["in"][a] - ((p["out"][a] - 1) * p["stride"][a] - 2 * p["pad_lo"][a] + p["dilation"][a] * (p["kernel"][a] - 1) + 1)
                 for a in range(p["rank"])]
        function = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[p["rank"] - 1]

        def run() -> tuple[Tensor, ...]:
            with torch.no_grad():
                if weft:
                    return (call(_conv.conv_transpose, x, w, b, *self.geometry, self.act, self.lo, self.hi, extra),)
                y = function(x, w, peer_bias, p["stride"], p["pad_lo"], extra, p["groups"], p["dilation"])
                return (_activate(y, self.act, self.lo, self.hi),)
        return run


def build(text: str, passes: Optional[str] = None) -> Twin:
    """Both calls for a problem text. passes: overrules the pass in the text; "train" is forward and all gradients by autograd."""
    written = _pass_in(text)
    wanted = passes or written
    train = wanted == "train"
    text = _with_pass(text, "fwd") if written == "train" else text
    if (operator := _library.problem(text)["op"]) != "conv":
        raise ValueError(f"{text}: the operator {operator} has no PyTorch call yet, allowed: conv")
    base = _library.problem(text, "fwd" if train else wanted)
    if wanted not in PASSES:
        raise ValueError(f"pass: is {wanted!r}, allowed: {', '.join(PASSES)}")
    if base["math"] != "fast":
        raise ValueError(f"{base['text']}: math is {base['math']!r}, allowed through PyTorch: fast")
    if base["device"] == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"{base['text']}: this PyTorch has no CUDA device")
    sides, problems = _Sides(base, wanted), [base]
    if wanted in ("fwd", "train"):
        make = sides.train if train else sides.forward
        weft, peer = make(sides.weft_forward), make(sides.peer_forward)
    elif wanted == "bwd_data" and base["steps"]:
        weft, peer = sides.transposed(True), sides.transposed(False)
    else:
        weft, peer = sides.weft_backward(), sides.peer_backward()
    if train:   # which kernels run is asked on this thread: autograd may run a gradient on another
        problems.append(_library.problem(text, "bwd"))
        steps = (sides.forward(sides.weft_forward), _Sides(problems[1], "bwd").weft_backward())
    else:
        steps = (weft,)
    kernels = []
    for step in steps:
        step()
        kernels.append(_library.kernels())
    first = next(iter(base["tensors"].values()))
    return Twin(text=_with_pass(base["text"], wanted), device=sides.device, dtype=_DTYPES[first["dtype"]], weft=weft, peer=peer,
                read=sum(_bytes(p, True) for p in problems), write=sum(_bytes(p, False) for p in problems),
                flops=sum(_flops(p) for p in problems), length=max(_longest_sum(p) for p in problems), kernel=" + ".join(kernels))


def _allowed(twin: Twin) -> float:
    """What rounding allows: each side is within eps * sqrt(terms) of the truth for random data, with room for the shape of the sum; the
    result is rounded once more."""
    work = torch.float64 if twin.dtype == torch.float64 else torch.float32
    return 4 * torch.finfo(twin.dtype).eps + 4 * torch.finfo(work).eps * math.sqrt(twin.length)


def _distance(ours: Tensor, theirs: Tensor) -> float:
    """The largest difference over the largest value; infinite where one side has a NaN or an infinity that the other has not."""
    if ours.shape != theirs.shape:
        return math.inf
    a, b = ours.detach().to(torch.float64), theirs.detach().to(torch.float64)
    same = (a == b) | (a.isnan() & b.isnan())
    if not (a.isfinite() & b.isfinite() | same).all():
        return math.inf
    finite = b.isfinite()
    if not finite.any():
        return 0.0
    return ((a - b)[finite].abs().max() / b[finite].abs().max().clamp_min(1e-30)).item()


def error(twin: Twin) -> tuple[float, float]:
    """The largest difference between the two sides over the largest value, and what rounding allows; infinite where a result is missing."""
    ours, theirs = twin.weft(), twin.peer()
    if len(ours) != len(theirs):
        return math.inf, _allowed(twin)
    return max(map(_distance, ours, theirs)), _allowed(twin)
