"""Convolutions."""
from __future__ import annotations

from typing import Any, Optional

from torch import Tensor
from torch.fx import Proxy

from .. import nn
from ..functional.conv import CONV, CONV_TRANSPOSE
from ..nn._named import kept_whole
from .._core.checks import check_ints
from ._base import read_window, taking, window_text
from ._modes import Moded

__all__ = ["SpatialConvolution", "SpatialDilatedConvolution", "SpatialFullConvolution", "TemporalConvolution", "VolumetricConvolution",
           "VolumetricDilatedConvolution", "VolumetricFullConvolution"]


class _Printed(Moded):
    """Reads its arguments and prints as Torch7 did."""

    def _build(self, nInputPlane: int, nOutputPlane: int, groups: int, device: Any, dtype: Any, **values: int) -> None:
        """The last of the window is the dilation, or what is added to a transposed result."""
        check_ints(1, nInputPlane=nInputPlane, nOutputPlane=nOutputPlane, groups=groups)
        if nInputPlane % groups or nOutputPlane % groups:
            raise ValueError(f"groups: is {groups}, allowed: a divisor of nInputPlane, {nInputPlane}, and of nOutputPlane, {nOutputPlane}")
        check_ints(1, **{name: value for name, value in values.items() if name[0] in "kd"})
        window = read_window(**values)
        super().__init__(nInputPlane, nOutputPlane, *window, *([1] if len(window) == 3 else []), groups, device=device, dtype=dtype)   # type: ignore[call-arg]

    def extra_repr(self: Any) -> str:
        last = (self.output_padding, 0) if self.transposed else (self.dilation, 1)
        text = f"{self.in_channels} -> {self.out_channels}, {window_text(self.kernel_size, (self.stride, 1), (self.padding, 0), last)}"
        return text + (f", groups={self.groups}" if self.groups != 1 else "")

    def __repr__(self: Any) -> str:
        return super().__repr__() + ("" if self.bias is not None else " without bias")


class _Convolution(_Printed):
    def _conv_forward(self: Any, input: Tensor, weight: Tensor, bias: Optional[Tensor]) -> Tensor:
        y = self._under_mode(f"conv{len(self.stride)}d", CONV, input, ())
        return super()._conv_forward(input, weight, bias) if y is None else y


class _FullConvolution(_Printed):
    def forward(self: Any, input: Tensor, output_size: Optional[list[int]] = None) -> Tensor:
        extra = self._output_padding(input, output_size, self.stride, self.padding, self.kernel_size, len(self.kernel_size), self.dilation)
        y = self._under_mode(f"conv_transpose{len(self.kernel_size)}d", CONV_TRANSPOSE, input, (tuple(extra),))
        return super().forward(input, output_size) if y is None else y


_PLANES, _LAST = "nInputPlane nOutputPlane ", " groups=1 * device=None dtype=None"
_PLANE = _PLANES + "kW kH dW=1 dH=1 padW=0 padH=0"
_VOLUME = _PLANES + "kT kW kH dT=1 dW=1 dH=1 padT=0 padW=0 padH=0"
SpatialConvolution = taking(_PLANE + _LAST, "SpatialConvolution", (_Convolution, nn.Conv2d), "2D convolution of (N, C, H, W) or (C, H, W).",
                            "weft.torch7.SpatialConvolution(3, 96, 11, 11, 3, 3)(torch.randn(2, 3, 32, 32)).shape", (2, 96, 8, 8))
SpatialDilatedConvolution = taking(_PLANE + " dilationW=1 dilationH=1" + _LAST, "SpatialDilatedConvolution", (_Convolution, nn.Conv2d),
                                   "2D convolution with gaps between the taps.",
                                   "weft.torch7.SpatialDilatedConvolution(3, 8, 3, 3, 1, 1, 2, 2, 2, 2)(torch.randn(2, 3, 32, 32)).shape",
                                   (2, 8, 32, 32))
SpatialFullConvolution = taking(_PLANE + " adjW=0 adjH=0" + _LAST, "SpatialFullConvolution", (_FullConvolution, nn.ConvTranspose2d),
                                "2D transposed convolution; adjW and adjH add to the size of the result.",
                                "weft.torch7.SpatialFullConvolution(4, 8, 3, 3, 2, 2, 1, 1, 1, 1)(torch.randn(2, 4, 8, 8)).shape", (2, 8, 16, 16))
VolumetricConvolution = taking(_VOLUME + _LAST, "VolumetricConvolution", (_Convolution, nn.Conv3d), "3D convolution of (N, C, T, H, W) or (C, T, H, W).",
                               "weft.torch7.VolumetricConvolution(3, 8, 1, 5, 3)(torch.randn(2, 3, 4, 8, 8)).shape", (2, 8, 4, 6, 4))
VolumetricDilatedConvolution = taking(_VOLUME + " dilationT=1 dilationW=1 dilationH=1" + _LAST, "VolumetricDilatedConvolution", (_Convolution, nn.Conv3d),
                                      "3D convolution with gaps between the taps.",
                                      "weft.torch7.VolumetricDilatedConvolution(3, 8, 3, 3, 3, 1, 1, 1, 0, 2, 2, 1, 2, 2)(torch.randn(2, 3, 4, 8, 8)).shape",
                                      (2, 8, 2, 8, 8))
VolumetricFullConvolution = taking(_VOLUME + " adjT=0 adjW=0 adjH=0" + _LAST, "VolumetricFullConvolution", (_FullConvolution, nn.ConvTranspose3d),
                                   "3D transposed convolution; adjT, adjW and adjH add to the size of the result.",
                                   "weft.torch7.VolumetricFullConvolution(4, 2, 2, 2, 2, 2, 2, 2)(torch.randn(1, 4, 5, 5, 5)).shape", (1, 2, 10, 10, 10))


class TemporalConvolution(_Convolution, nn.Conv1d):
    """1D convolution of frames: (B, T, F) or (T, F), taken as they lie. The weight is (outputFrameSize, inputFrameSize, kH).

        >>> weft.torch7.TemporalConvolution(16, 32, 3, 1, 1)(torch.randn(2, 50, 16)).shape
        torch.Size([2, 50, 32])
    """

    def __init__(self, inputFrameSize: int, outputFrameSize: int, kH: int, dH: int = 1, padH: int = 0, *, device: Any = None,
                 dtype: Any = None) -> None:
        check_ints(1, inputFrameSize=inputFrameSize, outputFrameSize=outputFrameSize, kH=kH, dH=dH)
        check_ints(0, padH=padH)
        super().__init__(inputFrameSize, outputFrameSize, kH, dH, padH, device=device, dtype=dtype)

    def forward(self, input: Tensor) -> Tensor:
        if isinstance(input, Proxy):
            return kept_whole(self, input)
        if not isinstance(input, Tensor):
            raise TypeError(f"TemporalConvolution: input is {type(input).__name__}, allowed: Tensor")
        if input.dim() not in (2, 3) or input.shape[-1] != self.in_channels:
            raise RuntimeError(f"TemporalConvolution: input is {list(input.shape)}, allowed: (T, {self.in_channels}) or (B, T, {self.in_channels})")
        return super().forward(input.transpose(-1, -2)).transpose(-1, -2).contiguous()
