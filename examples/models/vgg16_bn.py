"""VGG-16, configuration D (Simonyan and Zisserman 2014, arXiv:1409.1556), with batch norm behind every convolution."""
from __future__ import annotations

from torch import nn

from .layers import round_width

STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))   # width, convolutions; a 2x2 max pooling ends each


def vgg16_bn(num_classes: int = 1000, width: float = 1.0, dropout: float = 0.5, pool: int = 7) -> nn.Sequential:
    """VGG16-BN, 138.37 M parameters. `pool` is the side of the map the linear layers read: 7 at 224x224.

    Weights start by Glorot's rule, which the paper names as good enough without pre-training.

    >>> import torch
    >>> vgg16_bn(10, width=0.125, pool=1)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """
    layers: list[nn.Module] = []
    c = 3
    for channels, convolutions in STAGES:
        o = round_width(channels, width)
        for _ in range(convolutions):
            layers += [nn.Conv2d(c, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU(inplace=True)]
            c = o
        layers.append(nn.MaxPool2d(2))
    layers += [nn.AdaptiveAvgPool2d(pool), nn.Flatten()]
    c, hidden = c * pool * pool, round_width(4096, width)
    for _ in range(2):
        layers += [nn.Linear(c, hidden), nn.ReLU(inplace=True), nn.Dropout(dropout)]
        c = hidden
    layers.append(nn.Linear(c, num_classes))
    for layer in layers:
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)
