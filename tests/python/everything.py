"""Every public function of weft.functional, called once in a small way, and every module of weft.nn: the one table that the tests of the
ecosystem, of memory and of cost go through. A name without an entry fails test_public.py."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Optional

import torch
import torch.nn.functional as F
from torch import Tensor

import weft
import weft.functional as W

BATCH, SIZE = 5, 6          # differ from each other and from every other size, so that a dynamic trace can tell them apart
OTHER_BATCH, OTHER_SIZE = 3, 9
CHANNELS = 4
aten = torch._C._nn         # the operators under torch.nn.functional that have no name in torch

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Data:
    """A tensor without a gradient, and how it is filled."""

    shape: Shape
    fill: Callable[[Shape, torch.dtype], Tensor]


@dataclass(frozen=True)
class Example:
    """A call. tensors(batch, size) gives the shape of each differentiable tensor, and Data for others; call(function, *tensors) calls weft's
    function, or a twin with the same arguments. cheapest(*tensors) is PyTorch's cheapest operator of the kind. mapped: the tensors that
    have a batch, by place."""

    name: str
    tensors: Callable[[int, int], tuple]
    call: Callable[..., Any]
    twin: Callable[..., Any]
    cheapest: Callable[..., Any]
    mapped: tuple[int, ...] = (0,)
    operator: str = ""               # of weft, as a profile of training shows it
    family: str = ""
    tiny: int = 1                    # a size at which computing costs next to nothing

    @property
    def function(self) -> Callable[..., Any]:
        return getattr(W, self.name)

    def make(self, device: Any, dtype: torch.dtype = torch.float32, grad: bool = False, batch: int = BATCH, size: int = SIZE) -> list[Tensor]:
        """The tensors of a call; the same ones after the same seed."""
        made = []
        for spec in self.tensors(batch, size):
            if isinstance(spec, Data):
                made.append(spec.fill(spec.shape, dtype).to(device))
            else:
                made.append((torch.randn(spec, dtype=torch.float64) / 2).to(device, dtype).requires_grad_(grad))
        return made

    def weft(self, *tensors: Tensor) -> Any:
        return self.call(self.function, *tensors)

    def peer(self, *tensors: Tensor) -> Any:
        if not self.name.startswith(("rnn_", "gru", "lstm")):
            return self.call(self.twin, *tensors)
        with torch.backends.cudnn.flags(enabled=False):   # cuDNN refuses gradients of recurrent layers in eval mode
            return self.call(self.twin, *tensors)

    def __str__(self) -> str:
        return self.name


def results(value: Any) -> list[Tensor]:
    """The tensors that a call returned."""
    return list(value) if isinstance(value, (tuple, list)) else [value]


def gradients(run: Callable[..., Any], tensors: list[Tensor]) -> list[Tensor]:
    """The results of a call, then the gradients of a weighted sum of those that have one."""
    outputs = results(run(*tensors))
    roots = [o for o in outputs if o.requires_grad]
    leaves = [t for t in tensors if t.requires_grad]
    weights = [torch.linspace(0.5, 1.5, max(o.numel(), 1), dtype=torch.float64)[:o.numel()].view(o.shape).to(o.device, o.dtype) for o in roots]
    return [o.detach() for o in outputs] + list(torch.autograd.grad(roots, leaves, weights))


# ---------------------------------------------------------------------------------------------- data

def space(rank: int, size: int) -> Shape:
    """Axes that differ, but for a single pixel."""
    return tuple(size + a if size > 1 else 1 for a in range(rank))


def image(rank: int, batch: int, size: int, channels: int = CHANNELS) -> Shape:
    return (batch, channels, *space(rank, size))


def labels(shape: Shape, dtype: torch.dtype) -> Tensor:
    return torch.arange(torch.Size(shape).numel()).view(shape) % CHANNELS


def holes(shape: Shape, dtype: torch.dtype) -> Tensor:
    return torch.arange(torch.Size(shape).numel()).view(shape) % 5 > 0


def zeros(shape: Shape, dtype: torch.dtype) -> Tensor:
    return torch.zeros(shape, dtype=dtype)


def ones(shape: Shape, dtype: torch.dtype) -> Tensor:
    return torch.ones(shape, dtype=dtype)


# ---------------------------------------------------------------------------------------------- what has no twin: written with PyTorch's operators

def ncrelu(x: Tensor) -> Tensor:
    return torch.cat((x.clamp(min=0), x.clamp(max=0)), 1)


def cdgmm(a: Tensor, x: Tensor) -> Tensor:
    re, im = a.unbind(-1)
    xr, xi = x.unbind(-1)
    return torch.stack((re * xr - im * xi, re * xi + im * xr), -1)


def im2col(x: Tensor, kernel: int, stride: int, padding: int) -> Tensor:
    out = [(n + 2 * padding - kernel) // stride + 1 for n in x.shape[2:]]
    return F.unfold(x, kernel, 1, padding, stride).view(*x.shape[:2], kernel, kernel, *out)


def col2im(columns: Tensor, kernel: int, stride: int, padding: int) -> Tensor:
    n, c, _, _, *out = columns.shape
    return F.fold(columns.flatten(1, 3).flatten(2), [(o - 1) * stride - 2 * padding + kernel for o in out], kernel, 1, padding, stride)


def partial(convolve: Callable[..., Tensor], axis: int) -> Callable[..., Any]:
    """r = W / S u, u = clamp(S, 0, 1) with S the mask's sum over a window of W elements; y = (conv(x m) r + b) u. axis: of the inputs in weight."""
    def run(x: Tensor, weight: Tensor, bias: Tensor, mask: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
        window = weight[0, 0].numel() * weight.shape[axis]
        with torch.no_grad():
            all_of_it = torch.ones_like(weight.sum(1 - axis, keepdim=True))
            total = convolve(mask.to(x.dtype).expand(-1, x.shape[1], *mask.shape[2:]), all_of_it, **options).float().round()
            kept = total.clamp(0, 1)
            ratio = window / total.clamp(min=1) * kept
        y = convolve(x * mask, weight, **options)
        return (y * ratio.to(y.dtype) + bias.to(y.dtype).view(-1, *[1] * (x.dim() - 2))) * kept.to(y.dtype), kept.to(mask.dtype)
    return run


KEPT = torch.arange(0, CHANNELS * 9, 2)      # which of the elements of the dense weights (4, 1, 9 taps) a sparse weight has


def sparse_weight(values: Tensor, rows: Tensor, cols: Tensor, rank: int) -> weft.SparseWeight:
    return weft.SparseWeight(values, rows, cols, (CHANNELS, 1, *(1,) * (rank - 1), 9), check=False)


def sparse(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The dense convolution with the same weights."""
    def run(x: Tensor, weight: Any, bias: Tensor, **options: Any) -> Tensor:
        dense = weight.values.new_zeros(CHANNELS * 9).index_add(0, KEPT.to(x.device), weight.values)
        return function(x, dense.view(weight.shape), bias, **options)
    return run


# ---------------------------------------------------------------------------------------------- the functions

def _convolutions(rank: int) -> list[Example]:
    """Dense, transposed, partial and sparse, which take nearly the same arguments."""
    kernel, ends = (3,) * rank, {"padding": 1}
    dense, turned = f"conv{rank}d", f"conv_transpose{rank}d"
    torchs, turneds = getattr(torch, dense), getattr(torch, turned)
    tensors = lambda n, s: (image(rank, n, s), (CHANNELS, 2, *kernel), (CHANNELS,))
    whole = lambda n, s: (image(rank, n, s), (CHANNELS, CHANNELS, *kernel), (CHANNELS,), Data(image(rank, n, s, 1), holes))
    kept = lambda n, s: (image(rank, n, s), (len(KEPT),), (CHANNELS,), Data((CHANNELS + 1,), lambda *_: torch.searchsorted(KEPT, torch.arange(5) * 9)),
                         Data((len(KEPT),), lambda *_: KEPT % 9))
    grouped = lambda f, *t: f(*t, **ends, groups=2)
    masked = lambda f, x, w, b, m: f(x, w, b, mask=m, **ends)
    of_rows = lambda f, x, v, b, rows, cols: f(x, sparse_weight(v, rows, cols, rank), b, groups=CHANNELS, padding=(*(0,) * (rank - 1), 4))
    full = torch.zeros(CHANNELS, CHANNELS, *kernel)       # PyTorch's convolution is cheapest without groups
    return [
        Example(dense, tensors, grouped, getattr(F, dense), lambda x, w, b: torchs(x, full, b, 1, 1), operator="conv", family="conv"),
        Example(turned, tensors, grouped, getattr(F, turned), lambda x, w, b: turneds(x, full, b, 1, 1), operator="conv_transpose", family="conv"),
        Example(f"partial_conv{rank}d", whole, masked, partial(getattr(F, dense), 1), lambda x, w, b, m: torchs(x, w, b, 1, 1), (0, 3),
                "partial_conv", "partial_conv"),
        Example(f"partial_conv_transpose{rank}d", whole, masked, partial(getattr(F, turned), 0), lambda x, w, b, m: turneds(x, w, b, 1, 1), (0, 3),
                "partial_conv", "partial_conv"),
        Example(f"sparse_conv{rank}d", kept, of_rows, sparse(getattr(F, dense)),
                lambda x, v, b, r, c: torchs(x, full, b, 1, 1), operator="sparse_conv", family="sparse_conv"),
    ]


def _pools(rank: int) -> list[Example]:
    tensors = lambda n, s: (image(rank, n, s),)
    names = [f"{kind}_pool{rank}d" for kind in ("max", "avg", "adaptive_avg")]
    most = getattr(torch, names[0])
    average = torch.avg_pool1d if rank == 1 else getattr(aten, names[1])
    adaptive = torch.adaptive_avg_pool1d if rank == 1 else getattr(aten, names[2])
    return [Example(names[0], tensors, lambda f, x: f(x, 3, 2, 1), getattr(F, names[0]), lambda x: most(x, 3, 2, 1), operator="max_pool_index",
                    family="pool", tiny=3),
            Example(names[1], tensors, lambda f, x: f(x, 3, 2, 1), getattr(F, names[1]), lambda x: average(x, 3, 2, 1), operator="avg_pool",
                    family="pool", tiny=3),
            Example(names[2], tensors, lambda f, x: f(x, 3), getattr(F, names[2]), lambda x: adaptive(x, (3,) * rank), operator="adaptive_avg_pool",
                    family="pool")]


def _recurrent(name: str, gates: int) -> Example:
    """Sequences of `size` steps. Of the operators, those of PyTorch run where delegation is allowed."""
    hidden, inputs, states = 8, CHANNELS, 2 if name == "lstm" else 1
    tensors = lambda n, s: (((s, n, inputs),) + ((1, n, hidden),) * states
                            + ((gates * hidden, inputs), (gates * hidden, hidden), (gates * hidden,), (gates * hidden,)))
    call = lambda f, x, *t: f(x, t[:2] if states == 2 else t[0], list(t[states:]), True, 1, 0.0, False, False, False)
    twin = getattr(torch, name)
    return Example(name, tensors, call, twin, lambda *t: call(twin, *t), tuple(range(1 + states)), "rnn_forward", "rnn")


def _one(name: str, call: Callable[..., Any], twin: Callable[..., Any], cheapest: Callable[..., Any], operator: str, family: str = "pointwise") -> Example:
    return Example(name, lambda n, s: (image(2, n, s),), call, twin, cheapest, operator=operator, family=family)


_FULL = torch.zeros(CHANNELS, CHANNELS, 3, 3)
_plain = lambda f, *t: f(*t)
_columns = lambda n, s: ((n, CHANNELS * 9, SIZE * (s + 1)),)
FUNCTIONS = {e.name: e for e in [
    *(e for rank in (1, 2, 3) for e in _convolutions(rank)),
    Example("conv2d_depthwise", lambda n, s: (image(2, n, s), (CHANNELS, 1, 3, 3), (CHANNELS,)), lambda f, *t: f(*t, padding=1),
            lambda x, w, b, **options: F.conv2d(x, w, b, groups=x.shape[1], **options), lambda x, w, b: torch.conv2d(x, _FULL, b, 1, 1),
            operator="conv", family="conv"),
    *(e for rank in (1, 2, 3) for e in _pools(rank)),
    _one("relu", _plain, F.relu, torch.relu, "relu"),
    _one("clipped_relu", lambda f, x: f(x, 0.5), lambda x, top: F.hardtanh(x, 0.0, top), lambda x: aten.hardtanh(x, 0.0, 0.5), "clip"),
    _one("hardtanh", _plain, F.hardtanh, aten.hardtanh, "clip"),
    _one("tanh", _plain, torch.tanh, torch.tanh, "tanh"),
    _one("sigmoid", _plain, torch.sigmoid, torch.sigmoid, "sigmoid"),
    _one("ncrelu", _plain, ncrelu, torch.relu, "ncrelu"),
    _one("softmax", lambda f, x: f(x, dim=-1), F.softmax, lambda x: torch.softmax(x, -1), "softmax", "softmax"),
    _one("log_softmax", lambda f, x: f(x, dim=1), F.log_softmax, lambda x: torch.log_softmax(x, 1), "log_softmax", "softmax"),
    Example("cross_entropy", lambda n, s: (image(2, n, s), Data((n, *space(2, s)), labels)), _plain, F.cross_entropy, aten.cross_entropy_loss, (0, 1),
            "cross_entropy", "cross_entropy"),
    Example("batch_norm", lambda n, s: (image(2, n, s), Data((CHANNELS,), zeros), Data((CHANNELS,), ones), (CHANNELS,), (CHANNELS,)), _plain, F.batch_norm,
            lambda x, mean, var, w, b: torch.batch_norm(x, w, b, mean, var, False, 0.1, 1e-5, True), operator="batch_norm", family="batch_norm"),
    _one("local_response_norm", lambda f, x: f(x, 3, 0.1), F.local_response_norm, lambda x: torch.layer_norm(x, x.shape[-1:]), "lrn", "lrn"),
    _one("unfold", lambda f, x: f(x, 3, padding=1), F.unfold, lambda x: aten.im2col(x, (3, 3), (1, 1), (1, 1), (1, 1)), "im2col", "im2col"),
    _one("im2col", lambda f, x: f(x, 3, 1, 1), im2col, lambda x: aten.im2col(x, (3, 3), (1, 1), (1, 1), (1, 1)), "im2col", "im2col"),
    Example("fold", _columns, lambda f, c: f(c, fold_size(c), 3, padding=1), F.fold,
            lambda c: aten.col2im(c, fold_size(c), (3, 3), (1, 1), (1, 1), (1, 1)), operator="col2im", family="im2col"),
    Example("col2im", lambda n, s: ((n, CHANNELS, 3, 3, *space(2, s)),), lambda f, c: f(c, 3, 1, 1), col2im,
            lambda c: aten.col2im(c.view(c.shape[0], CHANNELS * 9, -1), c.shape[-2:], (3, 3), (1, 1), (1, 1), (1, 1)), operator="col2im", family="im2col"),
    Example("dgmm", lambda n, s: ((n, s, 8), (8,)), _plain, torch.mul, torch.mul, operator="dgmm", family="dgmm"),
    Example("cdgmm", lambda n, s: ((n, s, 8, 2), (8, 2)), _plain, cdgmm, torch.mul, operator="cdgmm", family="dgmm"),
    _recurrent("gru", 3), _recurrent("lstm", 4), _recurrent("rnn_relu", 1), _recurrent("rnn_tanh", 1),
]}


def fold_size(columns: Tensor) -> Shape:
    """The image that the columns of an example are of: so high in each."""
    return SIZE, columns.shape[-1] // SIZE


# ---------------------------------------------------------------------------------------------- the modules

@dataclass(frozen=True)
class Layer:
    """A module: its arguments, the shape of its input, and the twin, if that has another name or other arguments."""

    name: str
    args: tuple = ()
    options: dict[str, Any] = field(default_factory=dict)
    shape: Shape = (2, 4, 6, 7)
    target: Optional[Shape] = None
    twin: Optional[Callable[[], torch.nn.Module]] = None
    mask: Optional[Shape] = None

    def ours(self, **more: Any) -> torch.nn.Module:
        return getattr(weft.nn, self.name)(*self.args, **self.options, **more)

    @property
    def alone(self) -> bool:
        """Nothing in torch.nn is like it."""
        return self.name == "NCReLU" or self.name.startswith("PConv")

    def theirs(self) -> torch.nn.Module:
        return self.twin() if self.twin else getattr(torch.nn, self.name)(*self.args, **self.options)

    def inputs(self, device: Any, dtype: torch.dtype = torch.float32) -> list[Tensor]:
        made = [torch.randn(self.shape).to(device, dtype)]
        made += [] if self.target is None else [labels(self.target, dtype).to(device)]
        return made + ([] if self.mask is None else [holes(self.mask, dtype).to(device)])

    def __str__(self) -> str:
        return self.name


def _of_ranks(name: str, *args: Any, **options: Any) -> list[Layer]:
    return [Layer(f"{name}{rank}d", args, options, (2, CHANNELS, *space(rank, SIZE))) for rank in (1, 2, 3)]


def _like(name: str, twin: str, *args: Any, **options: Any) -> list[Layer]:
    """Those that compute what a twin of another name does."""
    return [Layer(f"{name}{rank}d", args, options, (2, CHANNELS, *space(rank, SIZE)),
                  twin=lambda rank=rank: getattr(torch.nn, f"{twin}{rank}d")(*args, **options)) for rank in (1, 2, 3)]


# not here: what is no module, or makes a file; the tests that they have
ELSEWHERE = {"CausalConv1d": "test_causal_update.py", "Conv3DTC": "test_grouped3d.py", "Grouped3D": "test_grouped3d.py", "TunerConfig": "test_grouped3d.py",
             "SparseModel": "test_sparse_modules.py", "Sparse_modes": "test_sparse_modules.py"}
LAYERS = {e.name: e for e in [
    *_of_ranks("Conv", 4, 8, 3, stride=2, padding=1, groups=2),
    *_of_ranks("ConvTranspose", 4, 6, 3, stride=2, padding=1, output_padding=1, groups=2),
    Layer("Conv2dDepthwise", (4, 3), {"padding": 1}, twin=lambda: torch.nn.Conv2d(4, 4, 3, padding=1, groups=4)),
    *_like("PartialConv", "Conv", 4, 8, 3, groups=2),                           # without a mask and padding, plain convolutions
    *_like("PartialConvTranspose", "ConvTranspose", 4, 6, 1, groups=2),
    *_like("SparseConv", "Conv", 4, 8, 3, padding=1, groups=2), Layer("SparseConv2D", (4, 8, 3), {"bias": True}, twin=lambda: torch.nn.Conv2d(4, 8, 3)),
    *(Layer(f"PConv{rank}d", (4, 8, 3), {"padding": 1, "bias": True}, image(rank, 2, SIZE), mask=(2, *space(rank, SIZE))) for rank in (1, 2, 3)),
    *_of_ranks("BatchNorm", 4), *_of_ranks("MaxPool", 3, 2, 1), *_of_ranks("AvgPool", 3, 2, 1), *_of_ranks("AdaptiveAvgPool", 3),
    Layer("ReLU"), Layer("Hardtanh", (-0.5, 0.5)), Layer("ClippedReLU", (0.5,), twin=lambda: torch.nn.Hardtanh(0.0, 0.5)), Layer("Tanh"), Layer("Sigmoid"),
    Layer("NCReLU"), Layer("Softmax", (1,)), Layer("LogSoftmax", (1,)), Layer("LocalResponseNorm", (3, 0.1)),
    Layer("Unfold", (3,), {"padding": 1}), Layer("Fold", ((6, 7), 3), {"padding": 1}, (2, 36, 42)),
    Layer("CrossEntropyLoss", (), {"label_smoothing": 0.1}, (5, 4), (5,)),
    Layer("SpatialCrossEntropyLoss", shape=(2, 4, 6, 7), target=(2, 6, 7), twin=torch.nn.CrossEntropyLoss),
    Layer("VolumetricCrossEntropyLoss", shape=(2, 4, 3, 6, 7), target=(2, 3, 6, 7), twin=torch.nn.CrossEntropyLoss),
    *(Layer(name, (4, 8), {"num_layers": 2, "bidirectional": True, "batch_first": True}, (2, 6, 4)) for name in ("GRU", "LSTM", "RNN")),
]}
