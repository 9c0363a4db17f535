"""Convolutions."""
from __future__ import annotations

from typing import Any, Optional

from torch import Tensor
from torch.fx import Proxy

from .. import nn
from .._ops import conv as _ops
from ._base import check_ints, leaf, read_window, window_text
from ._modes import Moded

__all__ = ["SpatialConvolution", "SpatialDilatedConvolution", "SpatialFullConvolution", "TemporalConvolution", "VolumetricConvolution",
           "VolumetricDilatedConvolution", "VolumetricFullConvolution"]


def _read(nInputPlane: int, nOutputPlane: int, groups: int, **values: int) -> list[Any]:
    """What modules of weft.nn take ahead of groups; the last is the dilation, or what is added to a transposed result."""
    check_ints(1, nInputPlane=nInputPlane, nOutputPlane=nOutputPlane, groups=groups)
    if nInputPlane % groups or nOutputPlane % groups:
        raise ValueError(f"groups: is {groups}, allowed: a divisor of nInputPlane, {nInputPlane}, and of nOutputPlane, {nOutputPlane}")
    check_ints(1, **{name: value for name, value in values.items() if name[0] in "kd"})
    window = read_window(**values)
    return [nInputPlane, nOutputPlane, *window, *([1] if len(window) == 3 else [])]


class _Printed(Moded):
    """Prints as Torch7 did."""

    def extra_repr(self: Any) -> str:
        last = (self.output_padding, 0) if self.transposed else (self.dilation, 1)
        text = f"{self.in_channels} -> {self.out_channels}, {window_text(self.kernel_size, (self.stride, 1), (self.padding, 0), last)}"
        return text + (f", groups={self.groups}" if self.groups != 1 else "")

    def __repr__(self: Any) -> str:
        return super().__repr__() + ("" if self.bias is not None else " without bias")


class _Convolution(_Printed):
    def _conv_forward(self: Any, input: Tensor, weight: Tensor, bias: Optional[Tensor]) -> Tensor:
        y = self._under_mode(f"conv{len(self.stride)}d", _ops.conv, input, ())
        return super()._conv_forward(input, weight, bias) if y is None else y


class _FullConvolution(_Printed):
    def forward(self: Any, input: Tensor, output_size: Optional[list[int]] = None) -> Tensor:
        extra = self._output_padding(input, output_size, self.stride, self.padding, self.kernel_size, len(self.kernel_size), self.dilation)
        y = self._under_mode(f"conv_transpose{len(self.kernel_size)}d", _ops.conv_transpose, input, (tuple(extra),))
        return super().forward(input, output_size) if y is None else y


class SpatialConvolution(_Convolution, nn.Conv2d):
    """2D convolution of (N, C, H, W) or (C, H, W).

        >>> weft.torch7.SpatialConvolution(3, 96, 11, 11, 3, 3)(torch.randn(2, 3, 32, 32)).shape
        torch.Size([2, 96, 8, 8])
    """

    def __init__(self, nInputPlane: int, nOutputPlane: int, kW: int, kH: int, dW: int = 1, dH: int = 1, padW: int = 0, padH: int = 0,
                 groups: int = 1, *, device: Any = None, dtype: Any = None) -> None:
        super().__init__(*_read(nInputPlane, nOutputPlane, groups, kW=kW, kH=kH, dW=dW, dH=dH, padW=padW, padH=padH), groups,
                         device=device, dtype=dtype)


class SpatialDilatedConvolution(_Convolution, nn.Conv2d):
    """2D convolution with gaps between the taps.

        >>> weft.torch7.SpatialDilatedConvolution(3, 8, 3, 3, 1, 1, 2, 2, 2, 2)(torch.randn(2, 3, 32, 32)).shape
        torch.Size([2, 8, 32, 32])
    """

    def __init__(self, nInputPlane: int, nOutputPlane: int, kW: int, kH: int, dW: int = 1, dH: int = 1, padW: int = 0, padH: int = 0,
                 dilationW: int = 1, dilationH: int = 1, groups: int = 1, *, device: Any = None, dtype: Any = None) -> None:
        super().__init__(*_read(nInputPlane, nOutputPlane, groups, kW=kW, kH=kH, dW=dW, dH=dH, dilationW=dilationW, dilationH=dilationH, padW=padW,
                                padH=padH), groups, device=device, dtype=dtype)


class SpatialFullConvolution(_FullConvolution, nn.ConvTranspose2d):
    """2D transposed convolution; adjW and adjH add to the size of the result.

        >>> weft.torch7.SpatialFullConvolution(4, 8, 3, 3, 2, 2, 1, 1, 1, 1)(torch.randn(2, 4, 8, 8)).shape
        torch.Size([2, 8, 16, 16])
    """

    def __init__(self, nInputPlane: int, nOutputPlane: int, kW: int, kH: int, dW: int = 1, dH: int = 1, padW: int = 0, padH: int = 0,
                 adjW: int = 0, adjH: int = 0, groups: int = 1, *, device: Any = None, dtype: Any = None) -> None:
        super().__init__(*_read(nInputPlane, nOutputPlane, groups, kW=kW, kH=kH, dW=dW, dH=dH, padW=padW, padH=padH, adjW=adjW, adjH=adjH), groups,
                         device=device, dtype=dtype)


class VolumetricConvolution(_Convolution, nn.Conv3d):
    """3D convolution of (N, C, T, H, W) or (C, T, H, W).

        >>> weft.torch7.VolumetricConvolution(3, 8, 1, 5, 3)(torch.randn(2, 3, 4, 8, 8)).shape
        torch.Size([2, 8, 4, 6, 4])
    """

    def __init__(self, nInputPlane: int, nOutputPlane: int, kT: int, kW: int, kH: int, dT: int = 1, dW: int = 1, dH: int = 1,
                 padT: int = 0, padW: int = 0, padH: int = 0, groups: int = 1, *, device: Any = None, dtype: Any = None) -> None:
        super().__init__(*_read(nInputPlane, nOutputPlane, groups, kT=kT, kW=kW, kH=kH, dT=dT, dW=dW, dH=dH, padT=padT, padW=padW, padH=padH), groups,
                         device=device, dtype=dtype)


class VolumetricDilatedConvolution(_Convolution, nn.Conv3d):
    """3D convolution with gaps between the taps.

        >>> weft.torch7.VolumetricDilatedConvolution(3, 8, 3, 3, 3, 1, 1, 1, 0, 2, 2, 1, 2, 2)(torch.randn(2, 3, 4, 8, 8)).shape
        torch.Size([2, 8, 2, 8, 8])
    """

    def __init__(self, nInputPlane: int, nOutputPlane: int, kT: int, kW: int, kH: int, dT: int = 1, dW: int = 1, dH: int = 1,
                 padT: int = 0, padW: int = 0, padH: int = 0, dilationT: int = 1, dilationW: int = 1, dilationH: int = 1, groups: int = 1, *,
                 device: Any = None, dtype: Any = None) -> None:
        super().__init__(*_read(nInputPlane, nOutputPlane, groups, kT=kT, kW=kW, kH=kH, dT=dT, dW=dW, dH=dH, dilationT=dilationT,
                                dilationW=dilationW, dilationH=dilationH, padT=padT, padW=padW, padH=padH), groups, device=device, dtype=dtype)


class VolumetricFullConvolution(_FullConvolution, nn.ConvTranspose3d):
    """3D transposed convolution; adjT, adjW and adjH add to the size of the result.

        >>> weft.torch7.VolumetricFullConvolution(4, 2, 2, 2, 2, 2, 2, 2)(torch.randn(1, 4, 5, 5, 5)).shape
        torch.Size([1, 2, 10, 10, 10])
    """

    def __init__(self, nInputPlane: int, nOutputPlane: int, kT: int, kW: int, kH: int, dT: int = 1, dW: int = 1, dH: int = 1,
                 padT: int = 0, padW: int = 0, padH: int = 0, adjT: int = 0, adjW: int = 0, adjH: int = 0, groups: int = 1, *,
                 device: Any = None, dtype: Any = None) -> None:
        super().__init__(*_read(nInputPlane, nOutputPlane, groups, kT=kT, kW=kW, kH=kH, dT=dT, dW=dW, dH=dH, padT=padT, padW=padW, padH=padH,
                                adjT=adjT, adjW=adjW, adjH=adjH), groups, device=device, dtype=dtype)


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
            return leaf(self, input)
        if not isinstance(input, Tensor):
            raise TypeError(f"TemporalConvolution: input is {type(input).__name__}, allowed: Tensor")
        if input.dim() not in (2, 3) or input.shape[-1] != self.in_channels:
            raise RuntimeError(f"TemporalConvolution: input is {list(input.shape)}, allowed: (T, {self.in_channels}) or (B, T, {self.in_channels})")
        return super().forward(input.transpose(-1, -2)).transpose(-1, -2).contiguous()
