"""Pooling modules."""
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import Proxy

from .. import functional as F
from ._named import Named, kept_whole

__all__ = ["MaxPool1d", "MaxPool2d", "MaxPool3d", "AvgPool1d", "AvgPool2d", "AvgPool3d", "AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AdaptiveAvgPool3d"]


class _MaxPool(Named):
    """What MaxPool1d, MaxPool2d and MaxPool3d add to their twins."""

    _function: Any

    def forward(self, input: Tensor) -> Any:
        if isinstance(input, Proxy) and input.tracer.root is not self:
            return kept_whole(self, input)
        return self._function(input, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode, self.return_indices)


class MaxPool1d(_MaxPool, torch.nn.MaxPool1d):
    """torch.nn.MaxPool1d computed by weft.

        >>> weft.nn.MaxPool1d(3, stride=2, padding=1)(torch.randn(2, 4, 100)).shape
        torch.Size([2, 4, 50])
    """

    _function = staticmethod(F.max_pool1d)


class MaxPool2d(_MaxPool, torch.nn.MaxPool2d):
    """torch.nn.MaxPool2d computed by weft.

        >>> weft.nn.MaxPool2d(2)(torch.randn(2, 8, 32, 32)).shape
        torch.Size([2, 8, 16, 16])
    """

    _function = staticmethod(F.max_pool2d)


class MaxPool3d(_MaxPool, torch.nn.MaxPool3d):
    """torch.nn.MaxPool3d computed by weft.

        >>> weft.nn.MaxPool3d((1, 3, 3), ceil_mode=True)(torch.randn(1, 8, 9, 9, 9)).shape
        torch.Size([1, 8, 9, 3, 3])
    """

    _function = staticmethod(F.max_pool3d)


class AvgPool1d(Named, torch.nn.AvgPool1d):
    """torch.nn.AvgPool1d computed by weft.

        >>> weft.nn.AvgPool1d(4)(torch.randn(2, 4, 100)).shape
        torch.Size([2, 4, 25])
    """

    _function = staticmethod(F.avg_pool1d)

    def forward(self, input: Tensor) -> Tensor:
        if isinstance(input, Proxy) and input.tracer.root is not self:
            return kept_whole(self, input)
        return F.avg_pool1d(input, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad)


class _AvgPool(Named):
    """What AvgPool2d and AvgPool3d add to their twins."""

    _function: Any

    def forward(self, input: Tensor) -> Tensor:
        if isinstance(input, Proxy) and input.tracer.root is not self:
            return kept_whole(self, input)
        return self._function(input, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad, self.divisor_override)


class AvgPool2d(_AvgPool, torch.nn.AvgPool2d):
    """torch.nn.AvgPool2d computed by weft.

        >>> weft.nn.AvgPool2d(3, stride=2, padding=1)(torch.randn(2, 8, 32, 32)).shape
        torch.Size([2, 8, 16, 16])
    """

    _function = staticmethod(F.avg_pool2d)


class AvgPool3d(_AvgPool, torch.nn.AvgPool3d):
    """torch.nn.AvgPool3d computed by weft.

        >>> weft.nn.AvgPool3d(3, divisor_override=1)(torch.randn(1, 8, 9, 9, 9)).shape
        torch.Size([1, 8, 3, 3, 3])
    """

    _function = staticmethod(F.avg_pool3d)


class _AdaptiveAvgPool(Named):
    """What the adaptive averages add to their twins."""

    _function: Any

    def forward(self, input: Tensor) -> Tensor:
        if isinstance(input, Proxy) and input.tracer.root is not self:
            return kept_whole(self, input)
        return self._function(input, self.output_size)


class AdaptiveAvgPool1d(_AdaptiveAvgPool, torch.nn.AdaptiveAvgPool1d):
    """torch.nn.AdaptiveAvgPool1d computed by weft.

        >>> weft.nn.AdaptiveAvgPool1d(7)(torch.randn(2, 4, 100)).shape
        torch.Size([2, 4, 7])
    """

    _function = staticmethod(F.adaptive_avg_pool1d)


class AdaptiveAvgPool2d(_AdaptiveAvgPool, torch.nn.AdaptiveAvgPool2d):
    """torch.nn.AdaptiveAvgPool2d computed by weft.

        >>> weft.nn.AdaptiveAvgPool2d((None, 1))(torch.randn(2, 8, 32, 32)).shape
        torch.Size([2, 8, 32, 1])
    """

    _function = staticmethod(F.adaptive_avg_pool2d)


class AdaptiveAvgPool3d(_AdaptiveAvgPool, torch.nn.AdaptiveAvgPool3d):
    """torch.nn.AdaptiveAvgPool3d computed by weft.

        >>> weft.nn.AdaptiveAvgPool3d(1)(torch.randn(1, 8, 9, 9, 9)).shape
        torch.Size([1, 8, 1, 1, 1])
    """

    _function = staticmethod(F.adaptive_avg_pool3d)
