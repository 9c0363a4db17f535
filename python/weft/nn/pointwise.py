"""Pointwise modules."""
from __future__ import annotations

import torch
from torch import Tensor
from torch.fx import Proxy

from .. import functional as F
from ._named import Named, kept_whole

__all__ = ["ReLU", "ClippedReLU", "Hardtanh", "Tanh", "Sigmoid", "NCReLU"]


class ReLU(Named, torch.nn.ReLU):
    """torch.nn.ReLU computed by weft.

        >>> weft.nn.ReLU(inplace=True)(torch.tensor([-1.0, 2.0]))
        tensor([0., 2.])
    """

    _function = staticmethod(F.relu)

    def forward(self, input: Tensor) -> Tensor:
        if isinstance(input, Proxy) and input.tracer.root is not self:
            return kept_whole(self, input)
        return F.relu(input, self.inplace)


class Hardtanh(Named, torch.nn.Hardtanh):
    """torch.nn.Hardtanh computed by weft.

        >>> weft.nn.Hardtanh(-1, 2)(torch.tensor([-3.0, 0.5, 3.0]))
        tensor([-1.0000,  0.5000,  2.0000])
    """

    _function = staticmethod(F.hardtanh)

    def forward(self, input: Tensor) -> Tensor:
        if isinstance(input, Proxy) and input.tracer.root is not self:
            return kept_whole(self, input)
        return F.hardtanh(input, self.min_val, self.max_val, self.inplace)


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


class _Smooth(Named):
    """What Tanh and Sigmoid add to their twins: inplace."""

    inplace: bool = False   # here for modules of torch.nn that are given a class of weft

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def extra_repr(self) -> str:
        return "inplace=True" if self.inplace else ""

    def forward(self, input: Tensor) -> Tensor:
        if isinstance(input, Proxy) and input.tracer.root is not self:
            return kept_whole(self, input)
        return self._function(input, inplace=self.inplace)   # type: ignore[attr-defined]


class Tanh(_Smooth, torch.nn.Tanh):
    """torch.nn.Tanh computed by weft; `inplace` writes to the input.

        >>> weft.nn.Tanh()(torch.tensor([0.0, 100.0]))
        tensor([0., 1.])
    """

    _function = staticmethod(F.tanh)


class Sigmoid(_Smooth, torch.nn.Sigmoid):
    """torch.nn.Sigmoid computed by weft; `inplace` writes to the input.

        >>> weft.nn.Sigmoid()(torch.tensor([0.0, 100.0]))
        tensor([0.5000, 1.0000])
    """

    _function = staticmethod(F.sigmoid)


class NCReLU(Named, torch.nn.Module):
    """max(x, 0) and min(x, 0), one after the other along dimension 1: twice the channels, and no stored mask beyond the input itself.

        >>> weft.nn.NCReLU()(torch.randn(2, 8, 32, 32)).shape
        torch.Size([2, 16, 32, 32])
    """

    def forward(self, input: Tensor) -> Tensor:
        if isinstance(input, Proxy) and input.tracer.root is not self:
            return kept_whole(self, input)
        return F.ncrelu(input)
