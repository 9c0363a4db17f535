"""Local response normalisation module."""
from __future__ import annotations

import torch
from torch import Tensor
from torch.fx import Proxy

from .. import functional as F
from ._named import Named, kept_whole

__all__ = ["LocalResponseNorm"]


class LocalResponseNorm(Named, torch.nn.LocalResponseNorm):
    """torch.nn.LocalResponseNorm computed by weft.

        >>> weft.nn.LocalResponseNorm(5)(torch.randn(2, 8, 16, 16)).shape
        torch.Size([2, 8, 16, 16])
    """

    def forward(self, input: Tensor) -> Tensor:
        if isinstance(input, Proxy) and input.tracer.root is not self:
            return kept_whole(self, input)
        return F.local_response_norm(input, self.size, self.alpha, self.beta, self.k)
