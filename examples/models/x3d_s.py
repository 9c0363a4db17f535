"""X3D-S (Feichtenhofer 2020, arXiv:2004.04730): clips of 13 frames of 160x160.

Widths are 12, 24, 48, 96 times 2; blocks are 1, 2, 5, 3 times 2.2; the inner width is 2.25 times the outer. Every other block squeezes and excites.
"""
from __future__ import annotations

import torch
from torch import nn

from .layers import he_normal_, round_depth, round_width

STAGES = ((12, 1), (24, 2), (48, 5), (96, 3))   # width, blocks before the factors below; each stage halves the image
WIDTH, DEPTH, INNER, SQUEEZE, HEAD = 2.0, 2.2, 2.25, 1 / 16, 2048


def _conv_bn(c: int, o: int, kernel: tuple[int, int, int] | int = 1, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    window = (kernel,) * 3 if isinstance(kernel, int) else kernel
    padding = tuple(k // 2 for k in window)
    return [nn.Conv3d(c, o, window, (1, stride, stride), padding, groups=groups, bias=False), nn.BatchNorm3d(o)]


class SqueezeExcite(nn.Module):
    """Scales each channel by a sigmoid of all channels' means.

    >>> SqueezeExcite(8)(torch.ones(1, 8, 2, 4, 4)).shape
    torch.Size([1, 8, 2, 4, 4])
    """

    def __init__(self, c: int) -> None:
        super().__init__()
        squeezed = round_width(c, SQUEEZE)
        self.gate = nn.Sequential(nn.AdaptiveAvgPool3d(1), nn.Conv3d(c, squeezed, 1), nn.ReLU(inplace=True), nn.Conv3d(squeezed, c, 1), nn.Sigmoid())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.gate(x)


class Bottleneck(nn.Module):
    """relu(shortcut(x) + (widen, depthwise 3x3x3, narrow)). The last norm starts at 0: the block starts as its shortcut.

    >>> Bottleneck(8, 16, 2, True)(torch.zeros(1, 8, 2, 4, 4)).shape
    torch.Size([1, 16, 2, 2, 2])
    """

    def __init__(self, c: int, o: int, stride: int, squeeze: bool) -> None:
        super().__init__()
        inner = int(INNER * o)
        layers = [*_conv_bn(c, inner), nn.ReLU(inplace=True), *_conv_bn(inner, inner, 3, stride, groups=inner)]
        layers += [SqueezeExcite(inner)] if squeeze else []
        self.branch = nn.Sequential(*layers, nn.SiLU(), *_conv_bn(inner, o))
        self.shortcut = nn.Sequential(*_conv_bn(c, o, 1, stride)) if stride != 1 or c != o else nn.Identity()
        self.act = nn.ReLU(inplace=True)
        nn.init.zeros_(self.branch[-1].weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.branch(x) + self.shortcut(x))


def x3d_s(num_classes: int = 400, width: float = 1.0, depth: float = 1.0, dropout: float = 0.5) -> nn.Sequential:
    """X3D-S, 3.79 M parameters; the classes are Kinetics-400's.

    >>> x3d_s(10, width=0.25, depth=0.25)(torch.zeros(2, 3, 4, 32, 32)).shape
    torch.Size([2, 10])
    """
    c = round_width(STAGES[0][0], WIDTH * width)
    layers: list[nn.Module] = [nn.Conv3d(3, c, (1, 3, 3), (1, 2, 2), (0, 1, 1), bias=False), *_conv_bn(c, c, (5, 1, 1), groups=c), nn.ReLU(inplace=True)]
    for channels, blocks in STAGES:
        o = round_width(channels, WIDTH * width)
        for i in range(round_depth(blocks, DEPTH * depth)):
            layers.append(Bottleneck(c, o, 2 if i == 0 else 1, squeeze=i % 2 == 0))
            c = o
    inner, head = int(INNER * c), round_width(HEAD, width)
    layers += [*_conv_bn(c, inner), nn.ReLU(inplace=True), nn.AdaptiveAvgPool3d(1), nn.Conv3d(inner, head, 1, bias=False), nn.ReLU(inplace=True)]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Dropout(dropout), nn.Linear(head, num_classes))
    he_normal_(model)
    nn.init.normal_(model[-1].weight, std=0.01)
    nn.init.zeros_(model[-1].bias)
    return model
