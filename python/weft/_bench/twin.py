"""From a problem text to two calls that compute the same: weft's and PyTorch's own.

A gradient pass is timed alone: the forward pass runs once, when the twin is built, and each call goes back through the graph it left,
on the caller's thread. Both sides pay for the walk through the graph, some 10 us.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Optional

import torch
from torch import Tensor

from .._core import library as _library
from .._enable import as_torch, bypassed
from .twin_table import DTYPES, TABLE, Case, Problem, random_tensor, transposed_conv

PASSES = ("fwd", "bwd_data", "bwd_weights", "bwd", "train")
_WANTED = {"bwd_data": ("src",), "bwd_weights": ("weights", "bias")}   # other passes: every gradient
_GRADS = ("diff_dst", "diff_hn", "diff_cn")                            # of the results, in their order
_WRITES = {"fwd": ("dst", "new_mask", "sums", "index", "lse", "save_mean", "save_invstd", "hn", "cn"),
           "bwd": ("diff_src", "diff_weights", "diff_bias", "diff_h0", "diff_c0")}
_UNCOUNTED = ("reserve",)            # what a recurrent layer keeps for its gradient is its own affair
Results = tuple[Tensor, ...]


@dataclass
class Twin:
    """Two calls without arguments that return the same tensors, and what they must at least move and compute."""

    text: str                       # the problem in normal form; its pass may be "train"
    device: torch.device
    dtype: torch.dtype
    weft: Callable[[], Results]
    peer: Callable[[], Results]
    read: int                       # bytes, each tensor once a pass
    write: int
    flops: float                    # of the direct sum
    length: int                     # terms of the longest sum
    kernel: str
    note: str = ""                  # what PyTorch's side is, where it is no function of the same name
    alike: Optional[Callable[[Tensor], Tensor]] = None   # a result of the peer's in the form of weft's


def _with_pass(text: str, new: str) -> str:
    head, _, rest = text.partition(":")
    return ":".join((head, new, rest.partition(":")[2]))


def _bytes(problem: dict) -> tuple[int, int]:
    """Read, written."""
    writes = _WRITES["fwd" if problem["pass"] == "fwd" else "bwd"]
    moved = [0, 0]
    for role, spec in problem["tensors"].items():
        if role not in _UNCOUNTED:
            moved[role in writes] += math.prod(spec["dims"]) * DTYPES[spec["dtype"]].itemsize
    return moved[0], moved[1]


# ---------------------------------------------------------------------------------------------- the calls

def _tuple(results: Any) -> Results:
    return results if isinstance(results, tuple) else (results,)


def _leaves(inputs: Sequence[tuple[str, Tensor]], roles: Optional[Sequence[str]]) -> list[Tensor]:
    return [t.detach().requires_grad_(roles is None or role in roles) for role, t in inputs]


def _forward(function: Callable[..., Any], inputs: Sequence[tuple[str, Tensor]]) -> Callable[[], Results]:
    args = [t for _, t in inputs]

    def run() -> Results:
        with torch.no_grad():
            return _tuple(function(*args))
    return run


def _train(function: Callable[..., Any], inputs: Sequence[tuple[str, Tensor]], grads: Sequence[Tensor]) -> Callable[[], Results]:
    leaves = _leaves(inputs, None)

    def run() -> Results:
        results = _tuple(function(*leaves))
        with torch.autograd.set_multithreading_enabled(False):
            return (*results, *torch.autograd.grad(_with_grad(results), leaves, grads))
    return run


def _backward(function: Callable[..., Any], inputs: Sequence[tuple[str, Tensor]], grads: Sequence[Tensor],
              roles: Optional[Sequence[str]]) -> Callable[[], Results]:
    leaves = _leaves(inputs, roles)
    results, wanted = _with_grad(_tuple(function(*leaves))), [t for t in leaves if t.requires_grad]

    def run() -> Results:
        with torch.autograd.set_multithreading_enabled(False):
            return torch.autograd.grad(results, wanted, grads, retain_graph=True)
    return run


def _with_grad(results: Results) -> Results:
    return tuple(t for t in results if t.requires_grad)


def _grads(case: Case, problem: dict, device: torch.device) -> list[Tensor]:
    """A gradient for each result that has one: in the strides that the problem states, where it is of a gradient pass."""
    results = _with_grad(_tuple(case.weft(*_leaves(case.inputs, None))))
    specs = [problem["tensors"].get(role) for role in _GRADS]
    return [torch.randn_like(y) if spec is None else random_tensor(spec, device).reshape(y.shape) for y, spec in zip(results, specs)]


def _calls(case: Case, problem: dict, passes: str, device: torch.device) -> tuple[Callable[[], Results], Callable[[], Results]]:
    """weft's, PyTorch's."""
    sides = ((case.weft, case.inputs), (case.peer, case.peer_inputs or case.inputs))
    grads = None if passes == "fwd" else _grads(case, problem, device)

    def made(side: tuple) -> Callable[[], Results]:
        if grads is None:
            return _forward(*side)
        return _train(*side, grads) if passes == "train" else _backward(*side, grads, _WANTED.get(passes))
    ours = made(sides[0])
    with bypassed():
        theirs = made(sides[1])
    return ours, as_torch(theirs)


def _kernels(runs: Sequence[Callable[[], Results]]) -> str:
    names = []
    for run in runs:
        run()
        names.append(_library.kernels())
    return " + ".join(names)


def _told(text: str, passes: Optional[str]) -> tuple[dict, str]:
    """The problem and its pass, which may be "train"; the problem is then that of the forward pass."""
    written = (text.split(":") + ["", ""])[1]
    wanted = passes or written
    text = _with_pass(text, "fwd") if written == "train" else text
    told = _library.problem(text, "fwd" if wanted == "train" else wanted)
    if wanted not in PASSES:
        raise ValueError(f"pass: is {wanted!r}, allowed: {', '.join(PASSES)}")
    if told["math"] != "fast":
        raise ValueError(f"{told['text']}: math is {told['math']!r}, allowed through PyTorch: fast")
    if told["device"] == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"{told['text']}: this PyTorch has no CUDA device")
    return told, wanted


def build(text: str, passes: Optional[str] = None) -> Twin:
    """Both calls for a problem text. passes: overrules the pass in the text; "train" is forward and all gradients by autograd."""
    told, wanted = _told(text, passes)
    device = torch.device(told["device"], told["ordinal"] if told["device"] == "cuda" else None)
    if wanted == "bwd_data" and told["op"] == "conv" and told["steps"]:
        problem, calls = Problem(told, device), "fwd"
        case = transposed_conv(problem)
    else:
        Problem(told, device)        # an epilogue that PyTorch has no call for is refused in the text's own pass
        problem, calls = Problem(_library.problem(told["text"], "fwd"), device), wanted
        case = TABLE[told["op"]](problem)
    weft, peer = _calls(case, told, calls, device)
    problems, asked = [told], [weft]
    if wanted == "train":
        problems.append(_library.problem(told["text"], "bwd"))
        asked = [_calls(case, p, p["pass"], device)[0] for p in problems]
    moved = [_bytes(p) for p in problems]
    return Twin(text=_with_pass(told["text"], wanted), device=device, dtype=problem.dtype, weft=weft, peer=peer, read=sum(r for r, _ in moved),
                write=sum(w for _, w in moved), flops=sum(p["flops"] for p in problems), length=case.lengths.get(wanted, max(case.lengths.values())),
                kernel=_kernels(asked), note=case.note, alike=case.alike)


# ---------------------------------------------------------------------------------------------- the comparison

def _allowed(twin: Twin) -> float:
    """What rounding allows: each side is within eps * sqrt(terms) of the truth for random data, with room for the shape of the sum; the
    result is rounded once more."""
    work = torch.float64 if twin.dtype == torch.float64 else torch.float32
    return 4 * torch.finfo(twin.dtype).eps + 4 * torch.finfo(work).eps * math.sqrt(twin.length)


def distance(ours: Tensor, theirs: Tensor) -> float:
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
    if twin.alike is not None:
        theirs = [twin.alike(t) for t in theirs]
    return max(map(distance, ours, theirs)), _allowed(twin)
