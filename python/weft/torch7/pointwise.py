"""Pointwise modules."""
from __future__ import annotations

from .. import nn
from ._base import Torch7, check_flags, check_reals

__all__ = ["ClippedReLU", "ReLU", "Sigmoid", "Tanh"]


class ReLU(Torch7, nn.ReLU):
    """max(x, 0).

        >>> weft.torch7.ReLU(True)(torch.tensor([-1.0, 2.0]))
        tensor([0., 2.])
    """

    def __init__(self, inplace: bool = False) -> None:
        check_flags(inplace=inplace)
        super().__init__(inplace)


class ClippedReLU(Torch7, nn.ClippedReLU):
    """min(max(x, 0), ceiling).

        >>> weft.torch7.ClippedReLU(20)(torch.tensor([-1.0, 2.0, 30.0]))
        tensor([ 0.,  2., 20.])
    """

    def __init__(self, ceiling: float, inplace: bool = False) -> None:
        check_reals(ceiling=ceiling)
        check_flags(inplace=inplace)
        super().__init__(ceiling, inplace)


class Tanh(Torch7, nn.Tanh):
    """The hyperbolic tangent.

        >>> weft.torch7.Tanh()(torch.tensor([0.0, 100.0]))
        tensor([0., 1.])
    """

    def __init__(self, inplace: bool = False) -> None:
        check_flags(inplace=inplace)
        super().__init__(inplace)


class Sigmoid(Torch7, nn.Sigmoid):
    """1 / (1 + exp(-x)).

        >>> weft.torch7.Sigmoid()(torch.tensor([0.0, 100.0]))
        tensor([0.5000, 1.0000])
    """

    def __init__(self, inplace: bool = False) -> None:
        check_flags(inplace=inplace)
        super().__init__(inplace)
