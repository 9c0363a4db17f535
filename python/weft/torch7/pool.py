"""Pooling: the stride is that of the kernel where none is given, and sizes are rounded down unless ceil() was called."""
from __future__ import annotations

from typing import Any, Optional

from .. import nn
from ._base import Torch7, read_window, window_text

__all__ = ["SpatialAveragePooling", "SpatialMaxPooling", "VolumetricAveragePooling", "VolumetricMaxPooling"]


class _Pooling(Torch7):
    """floor, ceil and printing."""

    ceil_mode: bool

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


class SpatialMaxPooling(_Pooling, nn.MaxPool2d):
    """The largest of each window of (N, C, H, W) or (C, H, W).

        >>> weft.torch7.SpatialMaxPooling(3, 3, 2, 2, 1, 1)(torch.randn(2, 8, 32, 32)).shape
        torch.Size([2, 8, 16, 16])
    """

    def __init__(self, kW: int, kH: int, dW: Optional[int] = None, dH: Optional[int] = None, padW: int = 0, padH: int = 0) -> None:
        super().__init__(*read_window(kW=kW, kH=kH, dW=dW, dH=dH, padW=padW, padH=padH))


class SpatialAveragePooling(_Averaging, nn.AvgPool2d):
    """The mean of each window of (N, C, H, W) or (C, H, W).

        >>> weft.torch7.SpatialAveragePooling(3, 3, 2, 2, 1, 1)(torch.randn(2, 8, 32, 32)).shape
        torch.Size([2, 8, 16, 16])
    """

    def __init__(self, kW: int, kH: int, dW: Optional[int] = None, dH: Optional[int] = None, padW: int = 0, padH: int = 0) -> None:
        super().__init__(*read_window(kW=kW, kH=kH, dW=dW, dH=dH, padW=padW, padH=padH))


class VolumetricMaxPooling(_Pooling, nn.MaxPool3d):
    """The largest of each window of (N, C, T, H, W) or (C, T, H, W).

        >>> weft.torch7.VolumetricMaxPooling(1, 2, 2)(torch.randn(2, 8, 4, 8, 8)).shape
        torch.Size([2, 8, 4, 4, 4])
    """

    def __init__(self, kT: int, kW: int, kH: int, dT: Optional[int] = None, dW: Optional[int] = None, dH: Optional[int] = None,
                 padT: int = 0, padW: int = 0, padH: int = 0) -> None:
        super().__init__(*read_window(kT=kT, kW=kW, kH=kH, dT=dT, dW=dW, dH=dH, padT=padT, padW=padW, padH=padH))


class VolumetricAveragePooling(_Averaging, nn.AvgPool3d):
    """The mean of each window of (N, C, T, H, W) or (C, T, H, W).

        >>> weft.torch7.VolumetricAveragePooling(1, 2, 2)(torch.randn(2, 8, 4, 8, 8)).shape
        torch.Size([2, 8, 4, 4, 4])
    """

    def __init__(self, kT: int, kW: int, kH: int, dT: Optional[int] = None, dW: Optional[int] = None, dH: Optional[int] = None,
                 padT: int = 0, padW: int = 0, padH: int = 0) -> None:
        super().__init__(*read_window(kT=kT, kW=kW, kH=kH, dT=dT, dW=dW, dH=dH, padT=padT, padW=padW, padH=padH))
