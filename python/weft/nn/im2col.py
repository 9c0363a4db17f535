"""Unfold and Fold."""
from __future__ import annotations

import torch
from torch import Tensor
from torch.fx import Proxy

from .. import functional as F
from ._named import Named, kept_whole

__all__ = ["Unfold", "Fold"]


class Unfold(Named, torch.nn.Unfold):
    """torch.nn.Unfold computed by weft.

        >>> weft.nn.Unfold(3, padding=1)(torch.randn(2, 3, 8, 8)).shape
        torch.Size([2, 27, 64])
    """

    def forward(self, input: Tensor) -> Tensor:
        if isinstance(input, Proxy) and input.tracer.root is not self:
            return kept_whole(self, input)
        return F.unfold(input, self.kernel_size, self.dilation, self.padding, self.stride)


class Fold(Named, torch.nn.Fold):
    """torch.nn.Fold computed by weft.

        >>> weft.nn.Fold((8, 8), 3, padding=1)(torch.randn(2, 27, 64)).shape
        torch.Size([2, 3, 8, 8])
    """

    def forward(self, input: Tensor) -> Tensor:
        if isinstance(input, Proxy) and input.tracer.root is not self:
            return kept_whole(self, input)
        return F.fold(input, self.output_size, self.kernel_size, self.dilation, self.padding, self.stride)
