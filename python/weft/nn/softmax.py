"""softmax and log_softmax as modules."""
from __future__ import annotations

import torch
from torch import Tensor
from torch.fx import Proxy

from .. import functional as F
from ._named import Named, kept_whole

__all__ = ["Softmax", "LogSoftmax"]


class Softmax(Named, torch.nn.Softmax):
    """torch.nn.Softmax computed by weft.

        >>> weft.nn.Softmax(dim=1)(torch.zeros(1, 4))
        tensor([[0.2500, 0.2500, 0.2500, 0.2500]])
    """

    _function = staticmethod(F.softmax)

    def forward(self, input: Tensor) -> Tensor:
        if isinstance(input, Proxy) and input.tracer.root is not self:
            return kept_whole(self, input)
        return F.softmax(input, self.dim, _stacklevel=5)


class LogSoftmax(Named, torch.nn.LogSoftmax):
    """torch.nn.LogSoftmax computed by weft.

        >>> weft.nn.LogSoftmax(dim=1)(torch.tensor([[1000.0, 0.0]]))
        tensor([[    0., -1000.]])
    """

    _function = staticmethod(F.log_softmax)

    def forward(self, input: Tensor) -> Tensor:
        if isinstance(input, Proxy) and input.tracer.root is not self:
            return kept_whole(self, input)
        return F.log_softmax(input, self.dim, _stacklevel=5)
