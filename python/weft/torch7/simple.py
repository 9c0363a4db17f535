"""Modules without a window of weights: pooling, pointwise functions, normalisation, softmax, criteria, and recurrent layers, whose forward returns the output
sequence alone and whose states are attributes."""
from __future__ import annotations

import warnings
from typing import Any, Optional, Union

import torch
from torch import Tensor
from torch.fx import Proxy
from torch.nn.utils.rnn import PackedSequence

from .. import functional as F, nn
from .._core.arguments import check_flags, check_ints, check_reals
from ..nn._named import check_dims, kept_whole, made
from ._base import Torch7, read_window, taking, window_text

__all__ = ["SpatialAveragePooling", "SpatialMaxPooling", "VolumetricAveragePooling", "VolumetricMaxPooling", "ClippedReLU", "ReLU", "Sigmoid", "Tanh",
           "BatchNormalization", "SpatialBatchNormalization", "SpatialCrossMapLRN", "VolumetricBatchNormalization", "LogSoftMax", "SoftMax",
           "SpatialLogSoftMax", "SpatialSoftMax", "VolumetricLogSoftMax", "VolumetricSoftMax", "SpatialCrossEntropyCriterion",
           "VolumetricCrossEntropyCriterion", "BGRU", "BLSTM", "GRU", "LSTM", "RNNReLU", "RNNTanh"]


# ---------------------------------------------------------------------------------------------- pooling

class _Pooling(Torch7):
    """The stride is that of the kernel where none is given, and sizes are rounded down unless ceil() was called."""

    ceil_mode: bool

    def _build(self, **values: Optional[int]) -> None:
        super().__init__(*read_window(**values))   # type: ignore[call-arg]

    def floor(self) -> Any:
        """Round the size of the result down: the default. Returns the module.

            >>> weft.torch7.SpatialMaxPooling(2, 2).floor()(torch.randn(1, 1, 5, 5)).shape
            torch.Size([1, 1, 2, 2])
        """
        self.ceil_mode = False
        return self

    def ceil(self) -> Any:
        """Round the size of the result up. Returns the module.

            >>> weft.torch7.SpatialMaxPooling(2, 2).ceil()(torch.randn(1, 1, 5, 5)).shape
            torch.Size([1, 1, 3, 3])
        """
        self.ceil_mode = True
        return self

    def extra_repr(self: Any) -> str:
        text = window_text(self.kernel_size, (self.stride, None), (self.padding, 0))   # the stride is always shown
        return text + (", ceil" if self.ceil_mode else "")


class _Averaging(_Pooling):
    """Whether padding counts."""

    count_include_pad: bool

    def setCountIncludePad(self) -> Any:
        """Divide by the whole window, also where it lies in the padding: the default. Returns the module.

            >>> weft.torch7.SpatialAveragePooling(2, 2, 2, 2, 1, 1).setCountIncludePad()(torch.ones(1, 1, 2, 2))[0, 0, 0, 0]
            tensor(0.2500)
        """
        self.count_include_pad = True
        return self

    def setCountExcludePad(self) -> Any:
        """Divide by the part of the window that lies in the input. Returns the module.

            >>> weft.torch7.SpatialAveragePooling(2, 2, 2, 2, 1, 1).setCountExcludePad()(torch.ones(1, 1, 2, 2))[0, 0, 0, 0]
            tensor(1.)
        """
        self.count_include_pad = False
        return self

    def extra_repr(self) -> str:
        return super().extra_repr() + ("" if self.count_include_pad else ", without padding")


_PLANE = "kW kH dW=None dH=None padW=0 padH=0"
_VOLUME = "kT kW kH dT=None dW=None dH=None padT=0 padW=0 padH=0"
SpatialMaxPooling = taking(_PLANE, "SpatialMaxPooling", (_Pooling, nn.MaxPool2d), "The largest of each window of (N, C, H, W) or (C, H, W).",
                           "weft.torch7.SpatialMaxPooling(3, 3, 2, 2, 1, 1)(torch.randn(2, 8, 32, 32)).shape", (2, 8, 16, 16))
SpatialAveragePooling = taking(_PLANE, "SpatialAveragePooling", (_Averaging, nn.AvgPool2d), "The mean of each window of (N, C, H, W) or (C, H, W).",
                               "weft.torch7.SpatialAveragePooling(3, 3, 2, 2, 1, 1)(torch.randn(2, 8, 32, 32)).shape", (2, 8, 16, 16))
VolumetricMaxPooling = taking(_VOLUME, "VolumetricMaxPooling", (_Pooling, nn.MaxPool3d), "The largest of each window of (N, C, T, H, W) or (C, T, H, W).",
                              "weft.torch7.VolumetricMaxPooling(1, 2, 2)(torch.randn(2, 8, 4, 8, 8)).shape", (2, 8, 4, 4, 4))
VolumetricAveragePooling = taking(_VOLUME, "VolumetricAveragePooling", (_Averaging, nn.AvgPool3d),
                                  "The mean of each window of (N, C, T, H, W) or (C, T, H, W).",
                                  "weft.torch7.VolumetricAveragePooling(1, 2, 2)(torch.randn(2, 8, 4, 8, 8)).shape", (2, 8, 4, 4, 4))


# ---------------------------------------------------------------------------------------------- pointwise

class _Pointwise(Torch7):
    def __init__(self, inplace: bool = False) -> None:
        check_flags(inplace=inplace)
        super().__init__(inplace)   # type: ignore[call-arg]


ReLU = made("ReLU", (_Pointwise, nn.ReLU), "max(x, 0).", "weft.torch7.ReLU(True)(torch.tensor([-1.0, 2.0]))", "tensor([0., 2.])")
Tanh = made("Tanh", (_Pointwise, nn.Tanh), "The hyperbolic tangent.", "weft.torch7.Tanh()(torch.tensor([0.0, 100.0]))", "tensor([0., 1.])")
Sigmoid = made("Sigmoid", (_Pointwise, nn.Sigmoid), "1 / (1 + exp(-x)).", "weft.torch7.Sigmoid()(torch.tensor([0.0, 100.0]))", "tensor([0.5000, 1.0000])")


class ClippedReLU(Torch7, nn.ClippedReLU):
    """min(max(x, 0), ceiling).

        >>> weft.torch7.ClippedReLU(20)(torch.tensor([-1.0, 2.0, 30.0]))
        tensor([ 0.,  2., 20.])
    """

    def __init__(self, ceiling: float, inplace: bool = False) -> None:
        check_reals(ceiling=ceiling)
        check_flags(inplace=inplace)
        super().__init__(ceiling, inplace)


# ---------------------------------------------------------------------------------------------- normalisation

class _BatchNormalization(Torch7):
    """Constructor and printing."""

    def __init__(self, nFeature: int, eps: float = 1e-5, momentum: float = 0.1, affine: bool = True, *, device: Any = None, dtype: Any = None) -> None:
        check_ints(1, nFeature=nFeature)
        check_reals(eps=eps, momentum=momentum)
        check_flags(affine=affine)
        super().__init__(nFeature, eps, momentum, affine, device=device, dtype=dtype)   # type: ignore[call-arg]

    def extra_repr(self: Any) -> str:
        settings = (("eps", 1e-5), ("momentum", 0.1), ("affine", True))
        return ", ".join([str(self.num_features), *(f"{name}={getattr(self, name)}" for name, default in settings if getattr(self, name) != default)])


BatchNormalization = made("BatchNormalization", (_BatchNormalization, nn.BatchNorm1d), "Batch normalisation of (N, C).",
                          "weft.torch7.BatchNormalization(4)(torch.randn(8, 4)).shape", (8, 4))
SpatialBatchNormalization = made("SpatialBatchNormalization", (_BatchNormalization, nn.BatchNorm2d), "Batch normalisation of (N, C, H, W).",
                                 "weft.torch7.SpatialBatchNormalization(4, 1e-3, 0.01)",
                                 "weft.SpatialBatchNormalization(4, eps=0.001, momentum=0.01)")
VolumetricBatchNormalization = made("VolumetricBatchNormalization", (_BatchNormalization, nn.BatchNorm3d), "Batch normalisation of (N, C, T, H, W).",
                                    "weft.torch7.VolumetricBatchNormalization(4, affine=False)(torch.randn(2, 4, 3, 5, 5)).shape", (2, 4, 3, 5, 5))


class SpatialCrossMapLRN(Torch7, nn.LocalResponseNorm):
    """x / (k + alpha / size * s)^beta, with s the sum of squares of `size` channels around each, of (N, C, H, W) or (C, H, W).

        >>> weft.torch7.SpatialCrossMapLRN()
        weft.SpatialCrossMapLRN(5, alpha=0.0001, beta=0.75, k=1)
    """

    def __init__(self, size: int = 5, alpha: float = 1e-4, beta: float = 0.75, k: float = 1) -> None:
        check_ints(1, size=size)
        check_reals(alpha=alpha, beta=beta, k=k)
        super().__init__(size, alpha, beta, k)

    def forward(self, input: Tensor) -> Tensor:
        if isinstance(input, Proxy):
            return kept_whole(self, input)
        check_dims(self, input, 2)
        return super().forward(input) if input.dim() == 4 else super().forward(input.unsqueeze(0)).squeeze(0)


# ---------------------------------------------------------------------------------------------- softmax

_PLACES = {1: 0, 2: 1, 3: 0, 4: 1, 5: 1}      # dimensions of the input: where the channels are
_VOLUMES = {1: 0, 2: 1, 4: 0, 5: 1}


class _Normalised(Torch7):
    """Over all of an instance, or over the channels at each place of an image or a volume."""

    _function: Any
    _channels: dict[int, int] = _PLACES
    _whole = False

    def _axis(self, input: Any) -> int:
        if not isinstance(input, Tensor):
            raise TypeError(f"{type(self).__name__}: input is {type(input).__name__}, allowed: Tensor")
        if input.dim() not in self._channels:
            allowed = ", ".join(map(str, self._channels))
            raise RuntimeError(f"{type(self).__name__}: input has {input.dim()} dimensions {list(input.shape)}, allowed: one of {allowed}")
        return self._channels[input.dim()]

    def forward(self, input: Tensor) -> Tensor:
        if isinstance(input, Proxy):
            return kept_whole(self, input)
        first, function = self._axis(input), type(self)._function
        if not self._whole or input.dim() <= 2:
            return function(input, first)
        order = [*range(first), *sorted(range(first, input.dim()), key=input.stride, reverse=True)]   # as it lies: nothing is copied
        ordered = input.permute(order)
        return function(ordered.flatten(first), first).view(ordered.shape).permute([order.index(a) for a in range(input.dim())])

    def extra_repr(self) -> str:
        return "fastMode=True" if getattr(self, "fastMode", False) else ""


class _SoftMax(_Normalised, nn.Softmax):
    _function = staticmethod(F.softmax)

    def __init__(self, fastMode: bool = False) -> None:
        check_flags(fastMode=fastMode)
        super().__init__(dim=1)
        self.fastMode = fastMode


class _LogSoftMax(_Normalised, nn.LogSoftmax):
    _function = staticmethod(F.log_softmax)

    def __init__(self) -> None:
        super().__init__(dim=1)


SoftMax = made("SoftMax", (_SoftMax,),
               "exp(x) over its sum, over all of an instance: (C), (C, H, W), or a batch of (N, C), (N, C, H, W), (N, C, T, H, W). fastMode "
               "changes nothing: the accurate form, which is the default, is as fast.",
               "weft.torch7.SoftMax()(torch.zeros(1, 4))", "tensor([[0.2500, 0.2500, 0.2500, 0.2500]])", _whole=True)
LogSoftMax = made("LogSoftMax", (_LogSoftMax,), "The logarithm of SoftMax.",
                  "weft.torch7.LogSoftMax()(torch.tensor([[1000.0, 0.0]]))", "tensor([[    0., -1000.]])", _whole=True)
SpatialSoftMax = made("SpatialSoftMax", (_SoftMax,), "SoftMax over the channels at each pixel of (N, C, H, W) or (C, H, W); of (N, C) and (C) too.",
                      "weft.torch7.SpatialSoftMax()(torch.zeros(1, 4, 1, 1)).flatten()", "tensor([0.2500, 0.2500, 0.2500, 0.2500])")
SpatialLogSoftMax = made("SpatialLogSoftMax", (_LogSoftMax,), "The logarithm of SpatialSoftMax.",
                         "weft.torch7.SpatialLogSoftMax()(torch.tensor([[[[1000.0]], [[0.0]]]])).flatten()", "tensor([    0., -1000.])")
VolumetricSoftMax = made("VolumetricSoftMax", (_SoftMax,),
                         "SoftMax over the channels at each voxel of (N, C, T, H, W) or (C, T, H, W); of (N, C) and (C) too.",
                         "weft.torch7.VolumetricSoftMax()(torch.zeros(1, 4, 1, 1, 1)).flatten()",
                         "tensor([0.2500, 0.2500, 0.2500, 0.2500])", _channels=_VOLUMES)
VolumetricLogSoftMax = made("VolumetricLogSoftMax", (_LogSoftMax,), "The logarithm of VolumetricSoftMax.",
                            "weft.torch7.VolumetricLogSoftMax()(torch.zeros(1, 2, 1, 1, 1)).flatten()",
                            "tensor([-0.6931, -0.6931])", _channels=_VOLUMES)


# ---------------------------------------------------------------------------------------------- criteria: log-softmax and likelihood in one pass

class _CrossEntropyCriterion(Torch7):
    """Labels from 1: the place of a class among the channels, counted as Lua does. They may be of any real type, as Torch7's were."""

    _rank: int

    def __init__(self, weights: Optional[Tensor] = None) -> None:
        if weights is not None and not isinstance(weights, Tensor):
            raise TypeError(f"weights: is {type(weights).__name__}, allowed: Tensor or None")
        if weights is not None and weights.dim() != 1:
            raise ValueError(f"weights: has the shape {list(weights.shape)}, allowed: one dimension, a weight a class")
        super().__init__(weight=weights)   # type: ignore[call-arg]

    def _from_zero(self, input: Any, target: Any) -> Tensor:
        name = type(self).__name__
        if isinstance(input, Tensor) and not isinstance(target, Tensor):
            raise TypeError(f"{name}: target is {type(target).__name__}, allowed: Tensor")
        check_dims(self, input, self._rank)
        channels = input.dim() - self._rank - 1
        places = [*input.shape[:channels], *input.shape[channels + 1:]]
        if list(target.shape) != places:
            raise RuntimeError(f"{name}: target has the shape {list(target.shape)}, allowed with an input of {list(input.shape)}: {places}")
        if target.dtype == torch.bool or target.is_complex():
            raise RuntimeError(f"{name}: target is {str(target.dtype)[6:]}, allowed: whole numbers from 1, of a real type")
        return target.to(torch.int64) - 1

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        if isinstance(input, Proxy):
            return kept_whole(self, input, target)
        labels = self._from_zero(input, target)
        try:
            return super().forward(input, labels)   # type: ignore[misc]
        except IndexError:
            pass   # it speaks of labels from 0
        raise IndexError(f"{type(self).__name__}: target has a label that is no class, allowed: 1 to {input.shape[-self._rank - 1]}")


SpatialCrossEntropyCriterion = made("SpatialCrossEntropyCriterion", (_CrossEntropyCriterion, nn.SpatialCrossEntropyLoss),
                                    "The mean cross entropy of the pixels of (N, C, H, W) with labels of (N, H, W), from 1 to C; weights, "
                                    "one a class, weigh the mean.",
                                    "weft.torch7.SpatialCrossEntropyCriterion()(torch.zeros(2, 4, 8, 8), torch.ones(2, 8, 8))",
                                    "tensor(1.3863)", _rank=2)
VolumetricCrossEntropyCriterion = made("VolumetricCrossEntropyCriterion", (_CrossEntropyCriterion, nn.VolumetricCrossEntropyLoss),
                                       "The mean cross entropy of the voxels of (N, C, T, H, W) with labels of (N, T, H, W), from 1 to C; "
                                       "weights, one a class, weigh the mean.",
                                       "weft.torch7.VolumetricCrossEntropyCriterion()(torch.zeros(1, 4, 2, 2, 2), torch.ones(1, 2, 2, 2))",
                                       "tensor(1.3863)", _rank=3)


# ---------------------------------------------------------------------------------------------- recurrent layers

class _Recurrent(Torch7):
    """hiddenInput and cellInput: initial states, None for zeros. hiddenOutput and cellOutput: the final states of the last forward, without
    their history. With rememberStates these are where the next forward starts, if it has the same number of sequences."""

    hiddenInput: Optional[Tensor] = None
    cellInput: Optional[Tensor] = None
    hiddenOutput: Optional[Tensor] = None
    cellOutput: Optional[Tensor] = None
    rememberStates = False
    persistent = False

    def _build(self, inputDim: int, outputDim: int, numberOfLayers: int, batchFirst: bool, dropout: float, device: Any, dtype: Any, **settings: Any) -> None:
        check_ints(1, inputDim=inputDim, outputDim=outputDim, numberOfLayers=numberOfLayers)
        check_flags(batchFirst=batchFirst)
        check_reals(dropout=dropout)
        if not 0 <= dropout <= 1:
            raise ValueError(f"dropout: is {dropout}, allowed: 0 to 1")
        super().__init__(inputDim, outputDim, numberOfLayers, batch_first=batchFirst, dropout=dropout, device=device, dtype=dtype, **settings)   # type: ignore[call-arg]

    def setPersist(self, mode: bool = True) -> Any:
        """Ask for kernels that keep the weights on the chip. There is none yet: the first True of a module warns, and the standard kernel
        runs. Returns the module.

            >>> weft.torch7.GRU(4, 6, 1).setPersist(False)(torch.randn(5, 3, 4)).shape
            torch.Size([5, 3, 6])
        """
        check_flags(mode=mode)
        if mode and "persistent" not in vars(self):
            warnings.warn(f"{type(self).__name__}: there is no persistent kernel for it, the standard one runs", UserWarning, stacklevel=2)
        if mode or self.persistent:
            self.persistent = mode
        return self

    def resetStates(self) -> Any:
        """Forget the states, given and remembered: the next forward starts from zeros. Returns the module.

            >>> weft.torch7.LSTM(4, 6, 1, rememberStates=True).resetStates().hiddenOutput is None
            True
        """
        self.hiddenInput = self.cellInput = self.hiddenOutput = self.cellOutput = None
        return self

    def _start(self: Any, input: Any) -> Any:
        """The initial states as forward takes them; None for zeros."""
        packed, lstm = isinstance(input, PackedSequence), self.mode == "LSTM"
        hidden, cell = self.hiddenInput, self.cellInput
        if self.rememberStates and self.hiddenOutput is not None:
            data = input.data if packed else input
            many = (int(input.batch_sizes[0]),) if packed else () if data.dim() == 2 else (data.shape[0 if self.batch_first else 1],)
            fits = self.hiddenOutput.shape[1:-1] == many
            hidden, cell = (None if t is None or not fits else t.to(data) for t in (self.hiddenOutput, self.cellOutput))
        if not lstm or (hidden is None and cell is None):
            return hidden
        return tuple(other.new_zeros(other.shape) if t is None else t for t, other in ((hidden, cell), (cell, hidden)))

    def forward(self: Any, input: Union[Tensor, PackedSequence]) -> Union[Tensor, PackedSequence]:
        if isinstance(input, Proxy):
            return kept_whole(self, input)
        if not isinstance(input, (Tensor, PackedSequence)):
            raise TypeError(f"{type(self).__name__}: input is {type(input).__name__}, allowed: Tensor or PackedSequence")
        y, last = super().forward(input, self._start(input))
        hidden, cell = last if self.mode == "LSTM" else (last, None)
        self.hiddenOutput, self.cellOutput = hidden.detach(), None if cell is None else cell.detach()
        return y

    def extra_repr(self: Any) -> str:
        text = f"{self.input_size} -> {self.hidden_size}, {self.num_layers} layer{'s' if self.num_layers > 1 else ''}"
        text += ", batchFirst" if self.batch_first else ""
        text += f", dropout={self.dropout}" if self.dropout else ""
        return text + (", rememberStates" if self.rememberStates else "")


class _OneWay(_Recurrent):
    """Constructor of the layers that run forward."""

    _settings: dict[str, Any] = {}

    def __init__(self, inputDim: int, outputDim: int, numberOfLayers: int, batchFirst: bool = False, dropout: float = 0,
                 rememberStates: bool = False, *, device: Any = None, dtype: Any = None) -> None:
        check_flags(rememberStates=rememberStates)
        self._build(inputDim, outputDim, numberOfLayers, batchFirst, dropout, device, dtype, **self._settings)
        self.rememberStates = rememberStates


class _BothWays(_Recurrent):
    """Constructor of the layers that run forward and backward."""

    def __init__(self, inputDim: int, outputDim: int, numberOfLayers: int, batchFirst: bool = False, dropout: float = 0, *,
                 device: Any = None, dtype: Any = None) -> None:
        self._build(inputDim, outputDim, numberOfLayers, batchFirst, dropout, device, dtype, bidirectional=True)


RNNReLU = made("RNNReLU", (_OneWay, nn.RNN), "h = max(W x + b + U h' + c, 0), over (T, B, inputDim), or (B, T, inputDim) with batchFirst.",
               "weft.torch7.RNNReLU(4, 6, 2)(torch.randn(5, 3, 4)).shape", (5, 3, 6), _settings={"nonlinearity": "relu"})
RNNTanh = made("RNNTanh", (_OneWay, nn.RNN), "h = tanh(W x + b + U h' + c), over (T, B, inputDim), or (B, T, inputDim) with batchFirst.",
               "weft.torch7.RNNTanh(4, 6, 2, True)(torch.randn(3, 5, 4)).shape", (3, 5, 6), _settings={"nonlinearity": "tanh"})


class LSTM(_OneWay, nn.LSTM):
    """Long short-term memory.

        >>> net = weft.torch7.LSTM(4, 6, 2, rememberStates=True)
        >>> net(torch.randn(5, 3, 4)).shape, net.cellOutput.shape
        (torch.Size([5, 3, 6]), torch.Size([2, 3, 6]))
    """


GRU = made("GRU", (_OneWay, nn.GRU), "Gated recurrent units.",
           "weft.torch7.GRU(4, 6, 1, dropout=0)", "weft.GRU(4 -> 6, 1 layer)")
BLSTM = made("BLSTM", (_BothWays, nn.LSTM), "LSTM in both directions: twice outputDim features.",
             "weft.torch7.BLSTM(4, 6, 1)(torch.randn(5, 3, 4)).shape", (5, 3, 12))
BGRU = made("BGRU", (_BothWays, nn.GRU), "GRU in both directions: twice outputDim features.",
            "weft.torch7.BGRU(4, 6, 1)(torch.randn(5, 3, 4)).shape", (5, 3, 12))
