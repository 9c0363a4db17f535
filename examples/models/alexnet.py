"""AlexNet in two forms: the two columns of 2012 (Krizhevsky et al., NIPS) and the single one of 2014 (Krizhevsky, arXiv:1404.5997), widths as in common use.

The columns are grouped convolutions. The paper of 2012 normalises by (k + alpha * sum)^beta with alpha = 1e-4; torch divides alpha by the window of 5,
so it is 5e-4 here.
"""
from __future__ import annotations

from typing import NamedTuple

from torch import nn

from .layers import round_width


class _Form(NamedTuple):
    widths: tuple[int, ...]
    groups: tuple[int, ...]
    stem_padding: int
    normalise: bool


FORMS = {
    2012: _Form((96, 256, 384, 384, 256), (1, 2, 1, 2, 2), 0, True),
    2014: _Form((64, 192, 384, 256, 256), (1, 1, 1, 1, 1), 2, False),
}
KERNELS = (11, 5, 3, 3, 3)
POOLED = (0, 1, 4)      # convolutions with max pooling behind them; the first two of these are normalised in 2012
BIAS_ONE = (1, 3, 4)    # the paper starts these biases, and those of the hidden linear layers, at 1: their ReLUs begin in the positive half


def alexnet(num_classes: int = 1000, width: float = 1.0, dropout: float = 0.5, year: int = 2014) -> nn.Sequential:
    """AlexNet, 61.10 M parameters (60.97 M for year=2012), for images from 63x63 (67x67); 227x227 gives the published 6x6 map.

    >>> import torch
    >>> alexnet(10, width=0.125)(torch.zeros(1, 3, 63, 63)).shape
    torch.Size([1, 10])
    """
    if year not in FORMS:
        raise ValueError(f"year: got {year}, allowed are {', '.join(map(str, FORMS))}")
    layers: list[nn.Module] = []
    form, c = FORMS[year], 3
    for i, (channels, groups, kernel) in enumerate(zip(form.widths, form.groups, KERNELS)):
        o = round_width(channels, width)
        padding = form.stem_padding if i == 0 else kernel // 2
        conv = nn.Conv2d(c, o, kernel, 4 if i == 0 else 1, padding, groups=groups)
        layers += [conv, nn.ReLU(inplace=True)]
        nn.init.constant_(conv.bias, float(i in BIAS_ONE))
        if form.normalise and i in POOLED[:2]:
            layers.append(nn.LocalResponseNorm(5, alpha=5e-4, beta=0.75, k=2.0))
        if i in POOLED:
            layers.append(nn.MaxPool2d(3, 2))
        c = o
    layers += [nn.AdaptiveAvgPool2d(6), nn.Flatten()]
    c, hidden = c * 36, round_width(4096, width)
    for _ in range(2):
        linear = nn.Linear(c, hidden)
        nn.init.ones_(linear.bias)
        layers += [linear, nn.ReLU(inplace=True), nn.Dropout(dropout)]
        c = hidden
    layers.append(nn.Linear(c, num_classes))
    nn.init.zeros_(layers[-1].bias)
    for layer in layers:
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            nn.init.normal_(layer.weight, std=0.01)
    return nn.Sequential(*layers)
