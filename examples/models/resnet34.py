"""ResNet-34 (He et al. 2015, arXiv:1512.03385) with projection where the shape changes (option B)."""
from __future__ import annotations

import torch
from torch import nn

from .layers import he_normal_, round_depth, round_width

STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))   # width, blocks, stride of the first


def _conv_bn(c: int, o: int, kernel: int, stride: int = 1) -> list[nn.Module]:
    return [nn.Conv2d(c, o, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(o)]


class BasicBlock(nn.Module):
    """relu(shortcut(x) + two 3x3 convolutions).

    >>> BasicBlock(8, 16, 2)(torch.zeros(2, 8, 6, 6)).shape
    torch.Size([2, 16, 3, 3])
    """

    def __init__(self, c: int, o: int, stride: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(*_conv_bn(c, o, 3, stride), nn.ReLU(inplace=True), *_conv_bn(o, o, 3))
        self.shortcut = nn.Sequential(*_conv_bn(c, o, 1, stride)) if stride != 1 or c != o else nn.Identity()
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.branch(x) + self.shortcut(x))


def resnet34(num_classes: int = 1000, width: float = 1.0, depth: float = 1.0) -> nn.Sequential:
    """ResNet-34, 21.80 M parameters.

    >>> resnet34(10, width=0.125, depth=0.25)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """
    c = round_width(64, width)
    layers: list[nn.Module] = [*_conv_bn(3, c, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    for channels, blocks, stride in STAGES:
        o = round_width(channels, width)
        for i in range(round_depth(blocks, depth)):
            layers.append(BasicBlock(c, o, stride if i == 0 else 1))
            c = o
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(c, num_classes))
    he_normal_(model)
    return model
