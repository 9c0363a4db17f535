"""SoftMax and LogSoftMax: over all of an instance, or over the channels at each place of an image or a volume."""
from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.fx import Proxy

from .. import functional as F
from .. import nn
from ..nn._named import made
from ._base import Torch7, check_flags, leaf

__all__ = ["LogSoftMax", "SoftMax", "SpatialLogSoftMax", "SpatialSoftMax", "VolumetricLogSoftMax", "VolumetricSoftMax"]

_PLACES = {1: 0, 2: 1, 3: 0, 4: 1, 5: 1}      # dimensions of the input: where the channels are
_VOLUMES = {1: 0, 2: 1, 4: 0, 5: 1}


class _Normalised(Torch7):
    """forward, over a whole instance or over the channels."""

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
            return leaf(self, input)
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
