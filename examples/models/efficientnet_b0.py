"""EfficientNet-B0 (Tan and Le 2019, arXiv:1905.11946). Strided convolutions pad k // 2 on both sides."""
from __future__ import annotations

import torch
from torch import nn

from .layers import StochasticDepth, he_normal_, round_depth, round_width

STAGES = ((1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3), (6, 112, 3, 1, 5), (6, 192, 4, 2, 5), (6, 320, 1, 1, 3))
# expansion, width, blocks, stride of the first, kernel


def _conv_bn(c: int, o: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    return [nn.Conv2d(c, o, kernel, stride, kernel // 2, groups=groups, bias=False), nn.BatchNorm2d(o, eps=1e-3, momentum=0.01)]


class SqueezeExcite(nn.Module):
    """Scales each channel by a sigmoid of all channels' means.

    >>> SqueezeExcite(8, 2)(torch.ones(1, 8, 4, 4)).shape
    torch.Size([1, 8, 4, 4])
    """

    def __init__(self, c: int, squeezed: int) -> None:
        super().__init__()
        self.gate = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(c, squeezed, 1), nn.SiLU(), nn.Conv2d(squeezed, c, 1), nn.Sigmoid())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.gate(x)


class MBConv(nn.Module):
    """Inverted bottleneck: widen, depthwise, squeeze-and-excite, narrow; plus x where the shape stays.

    >>> MBConv(8, 16, 6, 5, 2, 0.0)(torch.zeros(2, 8, 6, 6)).shape
    torch.Size([2, 16, 3, 3])
    """

    def __init__(self, c: int, o: int, expansion: int, kernel: int, stride: int, drop: float) -> None:
        super().__init__()
        inner = c * expansion
        layers = [*_conv_bn(c, inner, 1), nn.SiLU()] if expansion != 1 else []
        layers += [*_conv_bn(inner, inner, kernel, stride, groups=inner), nn.SiLU(), SqueezeExcite(inner, max(1, c // 4)), *_conv_bn(inner, o, 1)]
        self.residual = stride == 1 and c == o
        self.branch = nn.Sequential(*layers, *([StochasticDepth(drop)] if self.residual else []))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.branch(x)
        return x + y if self.residual else y


def efficientnet_b0(num_classes: int = 1000, width: float = 1.0, depth: float = 1.0, dropout: float = 0.2, stochastic_depth: float = 0.2) -> nn.Sequential:
    """EfficientNet-B0, 5.29 M parameters. `width` and `depth` are the paper's multipliers.

    >>> efficientnet_b0(10, width=0.25, depth=0.25)(torch.zeros(2, 3, 64, 64)).shape
    torch.Size([2, 10])
    """
    c = round_width(32, width)
    layers: list[nn.Module] = [*_conv_bn(3, c, 3, 2), nn.SiLU()]
    total, index = sum(round_depth(stage[2], depth) for stage in STAGES), 0
    for expansion, channels, blocks, stride, kernel in STAGES:
        o = round_width(channels, width)
        for i in range(round_depth(blocks, depth)):
            layers.append(MBConv(c, o, expansion, kernel, stride if i == 0 else 1, stochastic_depth * index / total))
            c, index = o, index + 1
    head = round_width(1280, width)
    layers += [*_conv_bn(c, head, 1), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(dropout), nn.Linear(head, num_classes)]
    model = nn.Sequential(*layers)
    he_normal_(model)
    nn.init.uniform_(model[-1].weight, -num_classes ** -0.5, num_classes ** -0.5)
    nn.init.zeros_(model[-1].bias)
    return model
