"""What several of the models share: rounding of scaled sizes, stochastic depth, He's initialisation."""
from __future__ import annotations

import math

import torch
from torch import nn


def round_width(channels: float, width: float = 1.0, divisor: int = 8) -> int:
    """`channels * width` as a multiple of `divisor`, never more than 10% below it: the rule of the EfficientNet and X3D papers.

    >>> round_width(32, 0.5), round_width(24, 0.25), round_width(27)
    (16, 8, 32)
    """
    scaled = channels * width
    rounded = max(divisor, int(scaled + divisor / 2) // divisor * divisor)
    return rounded if rounded >= 0.9 * scaled else rounded + divisor


def round_depth(layers: int, depth: float = 1.0) -> int:
    """`layers * depth`, rounded up; a product that is whole but for its last bits stays.

    >>> round_depth(3, 2.2), round_depth(5, 2.2), round_depth(9, 1 / 3)
    (7, 11, 3)
    """
    return math.ceil(layers * depth - 1e-9)


class StochasticDepth(nn.Module):
    """In training, drops each sample's residual branch with probability `p` and scales the others by 1 / (1 - p); the identity in eval.

    >>> StochasticDepth(0.5).eval()(torch.ones(2, 3, 1, 1)).sum()
    tensor(6.)
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f"p: got {p}, allowed is 0 <= p < 1")
        self.p = p

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training or self.p == 0:
            return x
        keep = x.new_empty((x.shape[0],) + (1,) * (x.dim() - 1)).bernoulli_(1 - self.p)
        return x * keep.div_(1 - self.p)

    def extra_repr(self) -> str:
        return f"p={self.p}"


def he_normal_(module: nn.Module, mode: str = "fan_out") -> None:
    """Convolutions of `module`: weights from N(0, 2 / fan), biases 0. A grouped weight (O, C/g, window) has fan_in C/g * window and fan_out O/g * window.

    >>> conv = nn.Conv2d(64, 64, 3, groups=64)
    >>> he_normal_(conv)
    >>> bool(abs(conv.weight.std() - (2 / 9) ** 0.5) < 0.1)
    True
    """
    for conv in module.modules():
        if isinstance(conv, (nn.Conv2d, nn.Conv3d)):
            channels = conv.out_channels if mode == "fan_out" else conv.in_channels
            fan = channels // conv.groups * math.prod(conv.kernel_size)
            nn.init.normal_(conv.weight, std=math.sqrt(2 / fan))
            if conv.bias is not None:
                nn.init.zeros_(conv.bias)
