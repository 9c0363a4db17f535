"""From a problem text to two calls that compute the same: weft's and PyTorch's own.

A gradient pass is timed alone: the forward pass runs once, when the twin is built, and each call goes back through the graph it left,
on the caller's thread. Both sides pay for the walk through the graph, some 10 us.

What each operator is in weft and in PyTorch stands in TABLE, an entry an operator. It makes a Case from the problem of the forward pass: the tensors that
have gradients, each with its role, and two functions of them. Where weft.functional has the twin of a function of PyTorch, both are one line.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Optional

import torch
from torch import Tensor

from .. import functional as W
from .._core import library as _library
from .._core.rules import call
from .._core.shapes import least_source
from .._enable import as_torch, bypassed
from ..causal_conv1d import causal_conv1d_fn, causal_conv1d_ref, causal_conv1d_update, causal_conv1d_update_ref
from ..functional.conv import CONV, CONV_TRANSPOSE, around, plainly
from ..functional.rnn import KINDS
from ..functional.sparse_conv import SparseWeight

F = torch.nn.functional
DTYPES = {"f32": torch.float32, "f64": torch.float64, "f16": torch.float16, "bf16": torch.bfloat16, "u8": torch.uint8, "i32": torch.int32,
          "i64": torch.int64, "c64": torch.complex64, "c128": torch.complex128}
_RNN = ("t", "layers", "both", "proj", "biases", "state", "rows", "train", "seed")
_ATTRS = {"max_pool": ("ceil", "index"), "avg_pool": ("ceil", "include_pad", "divisor"), "dgmm": ("rows", "cols", "side"), "cdgmm": ("rows", "cols", "side"),
          "cross_entropy": ("probs", "weighted", "ignore", "reduction"), "batch_norm": ("train", "affine", "track"), "lrn": ("channels",),
          "partial_conv": ("mask", "shared", "biased", "transposed"), "sparse_conv": ("nnz", "stretched"),
          "causal_conv": ("first", "last", "seqs"), "causal_update": ("rows", "len", "ring", "index"), **dict.fromkeys(KINDS, _RNN)}
_REALS = {"clip": ("lo", "hi"), "cross_entropy": ("smooth",), "batch_norm": ("eps", "momentum"), "lrn": ("alpha", "beta", "k"),
          **dict.fromkeys(KINDS, ("drop",))}   # the names of attr[] and real[], in the order of weft.h


@dataclass
class Case:
    """Two functions of the same tensors. peer_inputs: in place of inputs, where PyTorch's function takes others; alike: what such a gradient
    is beside weft's. lengths: terms of the longest sum of a pass; of a pass that is not in it, the most of them."""

    inputs: list[tuple[str, Tensor]]
    weft: Callable[..., Any]
    peer: Callable[..., Any]
    lengths: dict[str, int]
    peer_inputs: Optional[list[tuple[str, Tensor]]] = None
    alike: Optional[Callable[[Tensor], Tensor]] = None
    note: str = ""                  # what PyTorch's side is, where that is no function of the same name


class Problem:
    """A problem of the forward pass: its sizes, its attributes by name, its tensors with random data."""

    def __init__(self, told: dict, device: torch.device) -> None:
        self.told, self.device, self.text, self.rank = told, device, told["text"], told["rank"]
        self.n, self.c, self.o, self.groups = (told[k] for k in ("n", "c", "o", "groups"))
        self.size, self.out = told["in"], told["out"]
        self.kernel, self.stride, self.dilation, self.padding = (told[k] for k in ("kernel", "stride", "dilation", "pad_lo"))
        self.pads = [p for pair in zip(told["pad_lo"], told["pad_hi"]) for p in pair]
        self.is_even = told["pad_lo"] == told["pad_hi"]
        self.window = math.prod(self.kernel)
        self.has_bias, self.act, self.lo, self.hi = self._epilogue()   # before the attributes: clip has bounds of its own
        for name, value in zip(_ATTRS.get(told["op"], ()), told["attr"]):
            setattr(self, name, value)
        for name, value in zip(_REALS.get(told["op"], ()), told["real"]):
            setattr(self, name, float(value))
        self.dtype = DTYPES[next(iter(told["tensors"].values()))["dtype"]]

    def _epilogue(self) -> tuple[bool, str, float, float]:
        """(bias, activation, lo, hi): what PyTorch's call can carry."""
        steps = self.told["steps"]
        kinds = [s["kind"] for s in steps]
        rest = [s for s in steps if s["kind"] != "bias"]
        if len(rest) > 1 or any(s["kind"] not in ("relu", "clip", "silu") for s in rest) or "bias" in kinds[1:]:
            raise ValueError(f"{self.text}: the epilogue {'+'.join(kinds)} has no PyTorch call, allowed: bias, then relu, clip or silu")
        bias = "bias" in kinds
        return (bias, rest[0]["kind"], float(rest[0]["lo"]), float(rest[0]["hi"])) if rest else (bias, "", 0.0, 0.0)

    def has(self, role: str) -> bool:
        return role in self.told["tensors"]

    def tensor(self, role: str, scale: float = 1.0) -> Tensor:
        return random_tensor(self.told["tensors"][role], self.device, scale)

    def inputs(self, *roles: str, scale: float = 1.0) -> list[tuple[str, Tensor]]:
        """The tensors of these roles that the problem has; scale: of the weights."""
        return [(role, self.tensor(role, scale if role == "weights" else 1.0)) for role in roles if self.has(role)]

    def refuse(self, holds: bool, what: str) -> None:
        if holds:
            raise ValueError(f"{self.text}: {what} has no PyTorch call")

    def activate(self, y: Tensor) -> Tensor:
        return torch.relu(y) if self.act == "relu" else torch.clamp(y, self.lo, self.hi) if self.act == "clip" else y

    def activation(self) -> dict[str, Any]:
        """The same as keywords of weft.functional."""
        return {"act": self.act or None, **({"clip": (self.lo, self.hi)} if self.act == "clip" else {})}


def random_tensor(spec: dict, device: torch.device, scale: float = 1.0) -> Tensor:
    """Random data in the strides and at the alignment that the problem states."""
    dtype = DTYPES[spec["dtype"]]
    extent = 1 + sum((n - 1) * s for n, s in zip(spec["dims"], spec["strides"]) if n)
    offset = 0 if spec["align"] >= 16 else spec["align"] // dtype.itemsize
    memory = torch.empty(extent + offset, dtype=dtype, device=device)
    if dtype.is_floating_point:
        memory.normal_().mul_(scale)
    else:
        memory.copy_(torch.rand(memory.shape, device=device) > 0.3)
    return memory.as_strided(spec["dims"], spec["strides"], offset)


def _same(p: Problem, name: str, *args: Any, length: int = 1, **options: Any) -> Case:
    """weft.functional.name and torch.nn.functional.name of the data."""
    ours, theirs = getattr(W, name), getattr(F, name)
    return Case(p.inputs("src"), lambda x: ours(x, *args, **options), lambda x: theirs(x, *args, **options), {"fwd": length})


def _even(p: Problem) -> Sequence[int]:
    p.refuse(not p.is_even, "uneven padding")
    return p.padding


# ---------------------------------------------------------------------------------------------- convolutions

def _dense_conv(p: Problem, x: Tensor, w: Tensor, b: Optional[Tensor] = None, *extra: Sequence[int]) -> Tensor:
    """extra: what is added to the size of a transposed one. PyTorch takes no float32 bias beside 16-bit data."""
    return plainly(x, w, None if b is None else b.to(x.dtype), p.stride, p.pads, p.dilation, p.groups, *extra)


def _lengths(p: Problem) -> dict[str, int]:
    return {"fwd": p.c // p.groups * p.window, "bwd_data": p.o // p.groups * p.window, "bwd_weights": p.n * math.prod(p.out)}


def _weight_scale(p: Problem) -> float:
    return 1 / math.sqrt(p.c // p.groups * p.window)


def _conv(p: Problem) -> Case:
    inputs, function, act = p.inputs("src", "weights", "bias", scale=_weight_scale(p)), getattr(W, f"conv{p.rank}d"), p.activation()

    def ours(x: Tensor, w: Tensor, b: Optional[Tensor] = None) -> Tensor:
        return function(x, w, b, p.stride, p.padding, p.dilation, p.groups, **act)

    def padded(x: Tensor, w: Tensor, b: Optional[Tensor] = None) -> Tensor:   # unevenly, or with a bias of another type: no function has that
        return call(CONV, x, w, b, p.stride, p.pads, p.dilation, p.groups, p.act, p.lo, p.hi)
    plain = p.is_even and all(t.dtype == p.dtype for _, t in inputs)
    return Case(inputs, ours if plain else padded, lambda x, w, b=None: p.activate(_dense_conv(p, x, w, b)), _lengths(p))


def transposed_conv(p: Problem) -> Case:
    """bwd_data with an epilogue, which is a transposed convolution: p is of that pass."""
    extra = [i - least for i, least in zip(p.size, least_source(p.out, p.kernel, p.stride, p.pads, p.dilation))]
    settings = (p.stride, p.pads, p.dilation, p.groups, p.act, p.lo, p.hi, extra)
    return Case(p.inputs("diff_dst", "weights", "bias", scale=_weight_scale(p)), lambda x, w, b=None: call(CONV_TRANSPOSE, x, w, b, *settings),
                lambda x, w, b=None: p.activate(_dense_conv(p, x, w, b, extra)), _lengths(p))


def _mask_sums(p: Problem, mask: Optional[Tensor], like: Tensor, extra: Sequence[Sequence[int]]) -> Tensor:
    """How much of each window the mask lets through, in all channels of a group; in float32 or wider: 1e-8 is 0 in float16."""
    wide = torch.float64 if like.dtype == torch.float64 else torch.float32
    m = like.new_ones(1, 1, *p.size, dtype=wide) if mask is None else mask.to(wide)
    groups, channels = 1 if m.shape[1] == 1 else p.groups, m.shape[1]
    ones = m.new_ones(*((channels, 1) if extra else (groups, channels // groups)), *p.kernel)
    s = plainly(m, ones, None, p.stride, p.pads, p.dilation, groups, *extra)
    return s * (p.c // p.groups) if channels == 1 else s.repeat_interleave(p.o // p.groups, 1)


def _partial_conv(p: Problem) -> Case:
    padding = _even(p)
    mask = p.tensor("mask") if p.has("mask") else None
    if mask is not None and mask.is_floating_point():
        mask.copy_(mask > -0.5)
    extra = [p.told["attr"][7 - p.rank:7]] if p.transposed else []   # output padding along d h w is attr[4..6]
    ours = getattr(W, f"partial_conv_transpose{p.rank}d" if p.transposed else f"partial_conv{p.rank}d")
    settings = (p.stride, padding, *extra, p.groups, p.dilation) if p.transposed else (p.stride, padding, p.dilation, p.groups)

    def peer(x: Tensor, w: Tensor, b: Optional[Tensor] = None) -> tuple[Tensor, Tensor]:
        seen = x if mask is None else x * mask if mask.is_floating_point() else x.masked_fill(mask == 0, 0)
        y, s = _dense_conv(p, seen, w, None, *extra), _mask_sums(p, mask, x, extra)
        u = s.clamp(0, 1)
        y = y * (p.c // p.groups * p.window / (s + 1e-8) * u)
        y = y if b is None else (y + b.view(-1, *[1] * p.rank)) * u
        return p.activate(y).to(x.dtype), u
    return Case(p.inputs("src", "weights", "bias", scale=_weight_scale(p)), lambda x, w, b=None: ours(x, w, b, mask, *settings, **p.activation()), peer,
                _lengths(p), note="masks, products and ratios by its own operators")


def _sparse_conv(p: Problem) -> Case:
    p.refuse(bool(p.stretched), "a matrix with stretched columns")
    shape = (p.o, p.c // p.groups, *p.kernel)
    inputs = p.inputs("src", "weights", "bias", scale=1 / math.sqrt(max(p.nnz / p.o, 1)))
    x, values, *bias = (t for _, t in inputs)
    at = torch.randperm(math.prod(shape))[:p.nnz].sort().values
    columns = math.prod(shape[1:])
    rows = torch.searchsorted(at, torch.arange(p.o + 1) * columns)
    dense = torch.zeros(math.prod(shape), dtype=values.dtype).index_copy_(0, at, values.cpu()).view(shape).to(p.device)
    rows, cols = (t.to(p.device, DTYPES[p.told["tensors"][role]["dtype"]]) for role, t in (("rows", rows), ("cols", at % columns)))
    at, settings, ours = at.to(p.device), (p.stride, _even(p), p.dilation, p.groups), getattr(W, f"sparse_conv{p.rank}d")
    return Case(inputs, lambda x, w, b=None: ours(x, SparseWeight(w, rows, cols, shape, check=False), b, *settings, **p.activation()),
                lambda x, w, b=None: p.activate(_dense_conv(p, x, w, b)), _lengths(p),
                [("src", x), ("weights", dense), *(("bias", b) for b in bias)], lambda g: g.reshape(-1)[at] if g.shape == shape else g, "dense weights")


# ---------------------------------------------------------------------------------------------- the others

def _max_pool(p: Problem, **options: Any) -> Case:
    return _same(p, f"max_pool{p.rank}d", p.kernel, p.stride, _even(p), p.dilation, bool(p.ceil), length=p.window, **options)


def _max_pool_with_index(p: Problem) -> Case:
    """PyTorch's index is int64; weft's byte is for its own gradient."""
    p.refuse(p.told["tensors"]["index"]["dtype"] != "i64", "an index that is not i64")
    return _max_pool(p, return_indices=True)


def _avg_pool(p: Problem) -> Case:
    p.refuse(p.rank == 1 and p.divisor, "a divisor in 1D")
    divisor = (p.divisor,) if p.divisor else ()
    return _same(p, f"avg_pool{p.rank}d", p.kernel, p.stride, _even(p), bool(p.ceil), bool(p.include_pad), *divisor, length=p.window)


def _ncrelu(p: Problem) -> Case:
    inputs = p.inputs("src")
    for _, x in inputs:
        x.masked_fill_(x == 0, 1)   # at 0 the gradients of two clamps add up; that of ncrelu follows the positive part
    return Case(inputs, W.ncrelu, lambda x: torch.cat((x.clamp(min=0), x.clamp(max=0)), 1), {"fwd": 1}, note="cat of two clamps")


def _cross_entropy(p: Problem) -> Case:
    labels = (p.n, *p.size)
    if p.probs:
        target = torch.rand(p.n, p.c, *p.size).softmax(1).to(p.dtype)
    else:
        target = torch.where(torch.rand(labels) < 0.9, torch.randint(p.c, labels), p.ignore)   # one in ten does not count
    target, weight = target.to(p.device), p.tensor("weights").abs() if p.weighted else None
    p.refuse(weight is not None and weight.dtype != p.dtype, "a class weight of another type than the data")
    options = {"weight": weight, "ignore_index": p.ignore, "reduction": ("none", "mean", "sum")[p.reduction], "label_smoothing": p.smooth}
    flat = math.prod(p.size) == 1 and not p.probs   # on CUDA its likelihood of images counts the rows in their type: to 256 in bfloat16

    def peer(x: Tensor) -> Tensor:
        loss = F.cross_entropy(x.flatten(1), target.flatten(), **options) if flat else F.cross_entropy(x, target, **options)
        return loss.reshape(labels) if flat and loss.dim() else loss
    return Case(p.inputs("src"), lambda x: W.cross_entropy(x, target, **options), peer,
                {"fwd": max(p.c, 1 if p.reduction == 0 else math.prod(labels)), "bwd": p.c})


def _batch_norm(p: Problem) -> Case:
    statistics = (p.tensor("mean"), p.tensor("var").abs() + 0.5) if p.has("mean") else (None, None)

    def side(function: Callable) -> Callable:
        mean, var = (None if t is None else t.clone() for t in statistics)   # in training each side moves its own
        return lambda x, w=None, b=None: function(x, mean, var, w, b, bool(p.train), p.momentum, p.eps)
    return Case(p.inputs("src", "weights", "bias"), side(W.batch_norm), side(F.batch_norm), {"fwd": p.n * math.prod(p.size)})


def _complex(x: Tensor, v: Tensor) -> Tensor:
    """The product of pairs. PyTorch has complex numbers of float32 and float64 only."""
    if x.dtype in (torch.float32, torch.float64):
        return torch.view_as_real(torch.view_as_complex(x) * torch.view_as_complex(v))
    return torch.stack((x[..., 0] * v[..., 0] - x[..., 1] * v[..., 1], x[..., 0] * v[..., 1] + x[..., 1] * v[..., 0]), -1)


def _dgmm(p: Problem) -> Case:
    pairs = p.told["op"] == "cdgmm"
    ours, product, side = W.cdgmm if pairs else W.dgmm, _complex if pairs else torch.mul, "right" if p.side else "left"
    return Case(p.inputs("src", "weights"), lambda x, v: ours(x, v, side), lambda x, v: product(x, v if p.side else v.unsqueeze(-2 if pairs else -1)),
                {"fwd": 2, "bwd_data": 2, "bwd_weights": 2 * p.n * (p.rows if p.side else p.cols)}, note="a product with broadcasting")


def _columns(p: Problem, x: Tensor) -> Tensor:
    """Every window of the image by strides, then copied to its place."""
    x = F.pad(x, around(p.pads))
    strides = x.stride()
    taps, places = [s * d for s, d in zip(strides[2:], p.dilation)], [s * d for s, d in zip(strides[2:], p.stride)]
    return x.as_strided((p.n, p.c, *p.kernel, *p.out), (*strides[:2], *taps, *places), x.storage_offset()).contiguous()


def _im2col(p: Problem) -> Case:
    settings = (tuple(p.kernel), tuple(p.stride), tuple(_even(p)))
    flat = p.rank == 2   # F.unfold is 2D; it leaves the places in one axis
    shape = (p.n, p.c, *p.kernel, *p.out)
    peer = (lambda x: F.unfold(x, p.kernel, p.dilation, p.padding, p.stride).view(shape)) if flat else (lambda x: _columns(p, x))
    return Case(p.inputs("src"), lambda x: W.im2col(x, *settings, dilation=tuple(p.dilation)), peer, {"fwd": p.window},
                note="unfold" if flat else "a strided view, copied")


def _image(p: Problem, columns: Tensor) -> Tensor:
    """Columns added to their places, one tap of the kernel after another."""
    padded = [i + lo + hi for i, lo, hi in zip(p.size, p.told["pad_lo"], p.told["pad_hi"])]
    image = columns.new_zeros(p.n, p.c, *padded)
    for tap in range(p.window):
        at, left = [], tap
        for k in reversed(p.kernel):
            at.insert(0, left % k)
            left //= k
        where = tuple(slice(k * d, k * d + (o - 1) * s + 1, s) for k, d, o, s in zip(at, p.dilation, p.out, p.stride))
        image[(slice(None), slice(None), *where)].add_(columns[(slice(None), slice(None), *at)])
    return image[(slice(None), slice(None), *(slice(lo, lo + i) for lo, i in zip(p.told["pad_lo"], p.size)))]


def _col2im(p: Problem) -> Case:
    settings = (tuple(p.kernel), tuple(p.stride), tuple(_even(p)), tuple(p.size))
    x = p.tensor("src").reshape(p.n, p.c, *p.kernel, *p.out)
    rows = (p.n, p.c * p.window, math.prod(p.out))
    flat = p.rank == 2
    peer = (lambda x: F.fold(x.reshape(rows), p.size, p.kernel, p.dilation, p.padding, p.stride)) if flat else (lambda x: _image(p, x))
    return Case([("src", x)], lambda x: W.col2im(x, *settings, dilation=tuple(p.dilation)), peer, {"fwd": p.window},
                note="fold" if flat else "a sum for each tap")


def _rnn(p: Problem) -> Case:
    kind, dirs, hidden = p.told["op"], 1 + p.both, p.o
    p.refuse(p.drop > 0, "dropout: each side drops other elements, so it")
    out, x = p.proj or hidden, p.tensor("src")
    layers = getattr(torch.nn, kind.partition("_")[0].upper())(p.c, hidden, p.layers, bias=bool(p.biases), bidirectional=bool(p.both), device="meta",
                                                               **({"proj_size": p.proj} if p.proj else {}))
    shapes = [weight.shape for weight in layers.parameters()]
    bound = 1 / math.sqrt(hidden)
    params = [("weights" if len(s) > 1 else "bias", torch.empty(s, dtype=x.dtype, device=p.device).uniform_(-bound, bound)) for s in shapes]
    widths = (out, hidden) if kind == "lstm" else (out,)
    states = [(role, p.tensor(role) if p.state else x.new_zeros(p.layers * dirs, p.n, width)) for role, width in zip(("h0", "c0"), widths)]
    each, more = divmod(p.rows - p.n, max(p.t - 1, 1))   # the sequences that each step of packed data still has: never more than the step before
    packed = (torch.tensor([p.n] + [each + (i < more) for i in range(p.t - 1)]),) if p.rows else ()
    order = () if p.rows else (False,)

    def side(function: Callable) -> Callable:
        def run(x: Tensor, *rest: Tensor) -> Any:
            given, weights = (rest[:len(states)], rest[len(states):]) if p.state else ([t for _, t in states], rest)
            hx = tuple(given) if kind == "lstm" else given[0]
            keeps = torch.is_grad_enabled()   # cuDNN goes back only through what ran in training mode
            return function(x, *packed, hx, list(weights), bool(p.biases), p.layers, 0.0, keeps, bool(p.both), *order)
        return run
    return Case([("src", x), *(states if p.state else ()), *params], side(getattr(W, kind)), side(getattr(torch, kind)),
                {"fwd": p.t * p.layers * max(hidden, p.c), "bwd": p.t * p.layers * max(4 * hidden, p.c, p.n)})


def _causal_conv(p: Problem) -> Case:
    """PyTorch's side is its own convolution of padded tokens, in the type of the weights."""
    p.refuse(bool(p.seqs), "seq_idx")
    x, w, *rest = p.inputs("src", "weights", "bias", "h0", scale=1 / math.sqrt(p.window))
    act, given = p.act or None, [role for role, _ in rest]

    def side(function: Callable) -> Callable:
        def run(x: Tensor, w: Tensor, *rest: Tensor) -> Any:
            more = dict(zip(given, rest))
            return function(x, w, more.get("bias"), initial_states=more.get("h0"), return_final_states=bool(p.last), activation=act)
        return run
    inputs = [x, ("weights", w[1][:, 0]), *rest]
    return Case(inputs, side(causal_conv1d_fn), side(causal_conv1d_ref), {"fwd": p.window, "bwd_data": p.window**2, "bwd_weights": p.n * math.prod(p.size)},
                note="conv1d, silu")


def _causal_update(p: Problem) -> Case:
    """The state holds what the update writes to it: every call finds the same."""
    p.refuse(bool(p.ring or p.index), "a ring or an index")
    (_, x), (_, w), *rest = p.inputs("src", "weights", "bias", scale=1 / math.sqrt(p.window))
    x.copy_(x[..., :1].expand_as(x))
    state = p.tensor("state").copy_(x[..., :1].expand(*x.shape[:2], p.len))
    act, x = p.act or None, x[..., 0] if x.shape[2] == 1 else x

    def side(function: Callable, state: Tensor) -> Callable:
        return lambda x, w, b=None: function(x, state, w, b, act)
    return Case([("src", x), ("weights", w[:, 0]), *rest], side(causal_conv1d_update, state), side(causal_conv1d_update_ref, state.clone()), {"fwd": p.window},
                note="cat, conv1d, silu, copy_")


TABLE: dict[str, Callable[[Problem], Case]] = {
    "causal_conv": _causal_conv, "causal_update": _causal_update, "conv": _conv, "partial_conv": _partial_conv, "sparse_conv": _sparse_conv,
    "max_pool": _max_pool, "avg_pool": _avg_pool,
    "adaptive_avg_pool": lambda p: _same(p, f"adaptive_avg_pool{p.rank}d", p.out, length=math.prod(p.size)),
    "relu": lambda p: _same(p, "relu"), "clip": lambda p: _same(p, "hardtanh", p.lo, p.hi), "tanh": lambda p: _same(p, "tanh"),
    "sigmoid": lambda p: _same(p, "sigmoid"), "ncrelu": _ncrelu,
    "softmax": lambda p: _same(p, "softmax", 1, length=p.c), "log_softmax": lambda p: _same(p, "log_softmax", 1, length=p.c),
    "cross_entropy": _cross_entropy, "batch_norm": _batch_norm,
    "lrn": lambda p: _same(p, "local_response_norm", p.channels, p.alpha, p.beta, p.k, length=p.channels),
    "dgmm": _dgmm, "cdgmm": _dgmm, "im2col": _im2col, "col2im": _col2im, **dict.fromkeys(KINDS, _rnn),
}


# ---------------------------------------------------------------------------------------------- the twin

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
    elif wanted == "fwd" and told["op"] == "max_pool" and "index" in told["tensors"]:
        problem, calls = Problem(told, device), "fwd"
        case = _max_pool_with_index(problem)
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
