"""MobileNet v1 (Howard et al. 2017, arXiv:1704.04861) as PyINN benchmarks it: without batch norm and without biases.

Each block is a depthwise 3x3 and a pointwise 1x1, a ReLU behind both. Nothing normalises, so He's initialisation keeps the scale of the activations.
"""
from __future__ import annotations

from torch import nn

from .layers import he_normal_, round_width

BLOCKS = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1), (512, 1), (512, 1), (512, 1), (512, 1), (1024, 2), (1024, 1))  # width, stride


def _conv(c: int, o: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    return [nn.Conv2d(c, o, kernel, stride, kernel // 2, groups=groups, bias=False), nn.ReLU(inplace=True)]


def mobilenet_v1(num_classes: int = 1000, width: float = 1.0) -> nn.Sequential:
    """MobileNet v1, 4.21 M parameters. The mean over the last map is the paper's 7x7 pooling at 224x224.

    >>> import torch
    >>> mobilenet_v1(10, width=0.25)(torch.zeros(1, 3, 32, 32)).shape
    torch.Size([1, 10])
    """
    c = round_width(32, width)
    layers = _conv(3, c, 3, 2)
    for channels, stride in BLOCKS:
        o = round_width(channels, width)
        layers += _conv(c, c, 3, stride, groups=c) + _conv(c, o, 1)
        c = o
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(c, num_classes))
    he_normal_(model, "fan_in")
    return model
