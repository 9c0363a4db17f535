"""Modules whose forward is one function of the input and of what the constructor was given: pooling, pointwise, normalisation, folding, softmax, losses."""
from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.fx import Proxy

from .. import functional as F
from ._named import Named, check_dims, kept_whole, made, mirror, mirrors, own_parameters

__all__ = ["MaxPool1d", "MaxPool2d", "MaxPool3d", "AvgPool1d", "AvgPool2d", "AvgPool3d", "AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AdaptiveAvgPool3d",
           "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "LocalResponseNorm", "ReLU", "ClippedReLU", "Hardtanh", "Tanh", "Sigmoid", "NCReLU", "Softmax",
           "LogSoftmax", "Unfold", "Fold", "CrossEntropyLoss", "SpatialCrossEntropyLoss", "VolumetricCrossEntropyLoss"]


class _Simple(Named):
    """A module of this file."""


_FORWARD = "lambda function: lambda self, input: kept_whole(self, input) if isinstance(input, Proxy) and input.tracer.root is not self else function({})"


def _simple(settings: str, twin: type, function: Any, example: str, shown: Any, **attributes: Any) -> Any:
    """A module whose forward is the function of the input and of these attributes, in the order of its arguments. It is written out: to read them by
    their names takes a tenth of a small call."""
    forward = eval(_FORWARD.format(", ".join(["input", *(f"self.{name}" for name in settings.split())])))(function)
    forward.__name__, forward.__qualname__ = "forward", f"{twin.__name__}.forward"
    forward.__annotations__ = {"input": Tensor, "return": Any}
    return mirror(_Simple, twin, function, example, shown, forward=forward, **attributes)


# ---------------------------------------------------------------------------------------------- pooling

_MAX, _MEAN = "kernel_size stride padding dilation ceil_mode return_indices", "kernel_size stride padding ceil_mode count_include_pad"
_AVERAGED = "weft.nn.AvgPool{rank}d(3, stride=2, padding=1)(torch.randn(2, 8, {x9})).shape"
MaxPool1d, MaxPool2d, MaxPool3d = mirrors(partial(_simple, _MAX), "MaxPool", "max_pool", "weft.nn.MaxPool{rank}d(2, ceil_mode=True)(torch.randn(2, 8, {x9})).shape",
                                          "2, 8, {x5}")
AvgPool1d, = mirrors(partial(_simple, _MEAN), "AvgPool", "avg_pool", _AVERAGED, "2, 8, {x5}", ranks=(1,))
AvgPool2d, AvgPool3d = mirrors(partial(_simple, _MEAN + " divisor_override"), "AvgPool", "avg_pool", _AVERAGED, "2, 8, {x5}", ranks=(2, 3))
AdaptiveAvgPool1d, AdaptiveAvgPool2d, AdaptiveAvgPool3d = mirrors(
    partial(_simple, "output_size"), "AdaptiveAvgPool", "adaptive_avg_pool", "weft.nn.AdaptiveAvgPool{rank}d(7)(torch.randn(2, 4, {x9})).shape", "2, 4, {x7}")


# ---------------------------------------------------------------------------------------------- normalisation

class _BatchNorm(Named):
    """The steps are those of torch.nn: the count of batches, the momentum that follows from it where none is given, the statistics of the batch
    where there are no running ones, and running ones only where they are used or tracked."""

    def forward(self, input: Tensor) -> Tensor:
        if isinstance(input, Proxy):   # torch.fx keeps the twins whole, as it must: each run counts a batch
            return kept_whole(self, input)
        self._check_input_dim(input)
        momentum = 0.0 if self.momentum is None else self.momentum
        tracked = self.training and self.track_running_stats
        if tracked and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:
                momentum = 1.0 / float(self.num_batches_tracked)
        buffers = self._buffers
        running = (buffers["running_mean"], buffers["running_var"]) if "running_mean" in buffers else (self.running_mean, self.running_var)
        mean, var = running if tracked or not self.training else (None, None)
        of_batch = self.training or (running[0] is None and running[1] is None)
        return F.batch_norm(input, mean, var, *own_parameters(self), of_batch, momentum, self.eps)


BatchNorm1d = mirror(_BatchNorm, torch.nn.BatchNorm1d, F.batch_norm, "weft.nn.BatchNorm1d(4)(torch.randn(8, 4, 100)).shape", (8, 4, 100))
BatchNorm2d = mirror(_BatchNorm, torch.nn.BatchNorm2d, F.batch_norm,
                     "weft.nn.BatchNorm2d(4, momentum=None)(torch.randn(8, 4, 16, 16)).shape", (8, 4, 16, 16))
BatchNorm3d = mirror(_BatchNorm, torch.nn.BatchNorm3d, F.batch_norm, "weft.nn.BatchNorm3d(4, affine=False).eval()(torch.randn(2, 4, 5, 6, 7)).shape",
                     (2, 4, 5, 6, 7))
LocalResponseNorm = _simple("size alpha beta k", torch.nn.LocalResponseNorm, F.local_response_norm,
                            "weft.nn.LocalResponseNorm(5)(torch.randn(2, 8, 16, 16)).shape", (2, 8, 16, 16))


# ---------------------------------------------------------------------------------------------- pointwise

class _Smooth(Named):
    """What Tanh and Sigmoid add to their twins: inplace."""

    _function: Any
    inplace: bool = False   # here for modules of torch.nn that are given a class of weft

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def extra_repr(self) -> str:
        return "inplace=True" if self.inplace else ""

    def forward(self, input: Tensor) -> Tensor:
        if isinstance(input, Proxy) and input.tracer.root is not self:
            return kept_whole(self, input)
        return self._function(input, inplace=self.inplace)


ReLU = _simple("inplace", torch.nn.ReLU, F.relu, "weft.nn.ReLU(inplace=True)(torch.tensor([-1.0, 2.0]))", "tensor([0., 2.])")
Hardtanh = _simple("min_val max_val inplace", torch.nn.Hardtanh, F.hardtanh,
                   "weft.nn.Hardtanh(-1, 2)(torch.tensor([-3.0, 0.5, 3.0]))", "tensor([-1.0000,  0.5000,  2.0000])")
Tanh = mirror(_Smooth, torch.nn.Tanh, F.tanh, "weft.nn.Tanh()(torch.tensor([0.0, 100.0]))", "tensor([0., 1.])", "; `inplace` writes to the input")
Sigmoid = mirror(_Smooth, torch.nn.Sigmoid, F.sigmoid, "weft.nn.Sigmoid()(torch.tensor([0.0, 100.0]))", "tensor([0.5000, 1.0000])",
                 "; `inplace` writes to the input")


class ClippedReLU(Hardtanh):
    """min(max(x, 0), ceiling): a Hardtanh from 0 to `ceiling`.

        >>> weft.nn.ClippedReLU(20)(torch.tensor([-1.0, 2.0, 30.0]))
        tensor([ 0.,  2., 20.])
    """

    def __init__(self, ceiling: float, inplace: bool = False) -> None:
        if not ceiling > 0:
            raise ValueError(f"ceiling: is {ceiling}, allowed: a number above 0")
        super().__init__(0.0, ceiling, inplace)

    def extra_repr(self) -> str:
        return f"ceiling={self.max_val}" + (", inplace=True" if self.inplace else "")


class NCReLU(Named, torch.nn.Module):
    """max(x, 0) and min(x, 0), one after the other along dimension 1: twice the channels, and no stored mask beyond the input itself.

        >>> weft.nn.NCReLU()(torch.randn(2, 8, 32, 32)).shape
        torch.Size([2, 16, 32, 32])
    """

    def forward(self, input: Tensor) -> Tensor:
        return kept_whole(self, input) if isinstance(input, Proxy) and input.tracer.root is not self else F.ncrelu(input)


# ---------------------------------------------------------------------------------------------- softmax, folding

Softmax = _simple("dim _stacklevel", torch.nn.Softmax, F.softmax,
                  "weft.nn.Softmax(dim=1)(torch.zeros(1, 4))", "tensor([[0.2500, 0.2500, 0.2500, 0.2500]])", _stacklevel=5)
LogSoftmax = _simple("dim _stacklevel", torch.nn.LogSoftmax, F.log_softmax,
                     "weft.nn.LogSoftmax(dim=1)(torch.tensor([[1000.0, 0.0]]))", "tensor([[    0., -1000.]])", _stacklevel=5)
Unfold = _simple("kernel_size dilation padding stride", torch.nn.Unfold, F.unfold,
                 "weft.nn.Unfold(3, padding=1)(torch.randn(2, 3, 8, 8)).shape", (2, 27, 64))
Fold = _simple("output_size kernel_size dilation padding stride", torch.nn.Fold, F.fold,
               "weft.nn.Fold((8, 8), 3, padding=1)(torch.randn(2, 27, 64)).shape", (2, 3, 8, 8))


# ---------------------------------------------------------------------------------------------- cross entropy

class CrossEntropyLoss(Named, torch.nn.CrossEntropyLoss):
    """torch.nn.CrossEntropyLoss computed by weft.

        >>> weft.nn.CrossEntropyLoss(label_smoothing=0.1)(torch.zeros(2, 4), torch.tensor([1, 3]))
        tensor(1.3863)
    """

    _function = staticmethod(F.cross_entropy)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(input, target, weight=self.weight, ignore_index=self.ignore_index, reduction=self.reduction,
                               label_smoothing=self.label_smoothing)


class _OfPixels(CrossEntropyLoss):
    """A loss that insists on images of one rank, with or without a batch."""

    _rank: int

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        if isinstance(input, Proxy):
            return kept_whole(self, input, target)
        check_dims(self, input, self._rank)
        if input.dim() == self._rank + 2:
            return super().forward(input, target)
        loss = super().forward(input.unsqueeze(0), target.unsqueeze(0))
        return loss.squeeze(0) if self.reduction == "none" else loss


SpatialCrossEntropyLoss = made("SpatialCrossEntropyLoss", (_OfPixels,),
                               "CrossEntropyLoss of images: input (N, C, H, W) or (C, H, W), a class or probabilities a pixel.",
                               "weft.nn.SpatialCrossEntropyLoss()(torch.zeros(2, 4, 8, 8), torch.zeros(2, 8, 8, dtype=torch.int64))",
                               "tensor(1.3863)", _rank=2)
VolumetricCrossEntropyLoss = made("VolumetricCrossEntropyLoss", (_OfPixels,),
                                  "CrossEntropyLoss of volumes: input (N, C, D, H, W) or (C, D, H, W), a class or probabilities a voxel.",
                                  'weft.nn.VolumetricCrossEntropyLoss(reduction="sum")(torch.zeros(1, 4, 2, 2, 2), torch.zeros(1, 2, 2, 2).long())',
                                  "tensor(11.0904)", _rank=3)
