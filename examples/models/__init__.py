"""Networks in plain torch.nn for benchmarks and tests; `MODELS` names them all.

With examples/ on the path:

>>> from models import MODELS
>>> example = MODELS["resnet34"]
>>> example.build(**example.small)(*example.inputs(example.small_shape)).shape
torch.Size([4, 10])
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

from .alexnet import alexnet
from .convnext_t import convnext_t
from .efficientnet_b0 import efficientnet_b0
from .lenet5 import lenet5
from .mobilenet_v1 import mobilenet_v1
from .partial_unet import partial_unet
from .resnet34 import resnet34
from .vgg16_bn import vgg16_bn
from .x3d_s import x3d_s

__all__ = ["MODELS", "Example"]


class Example(NamedTuple):
    """One model: its constructor, the shape of its input in benchmarks and in tests, and the arguments that make it small for the latter.

    >>> MODELS["lenet5"].inputs((1, 1, 32, 32))[0].shape
    torch.Size([1, 1, 32, 32])
    """

    build: Callable[..., nn.Module]
    shape: tuple[int, ...]
    small_shape: tuple[int, ...]
    small: dict[str, Any]
    masked: bool = False

    def inputs(self, shape: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
        """Random arguments of forward: x and, for a masked model, a mask (N, 1, H, W) with about 30% of holes.

        >>> [tuple(t.shape) for t in MODELS["partial_unet"].inputs((2, 3, 16, 16))]
        [(2, 3, 16, 16), (2, 1, 16, 16)]
        """
        x = torch.randn(shape)
        if not self.masked:
            return (x,)
        coarse = torch.rand(shape[0], 1, 8, 8).gt(0.3).float()
        return x, nn.functional.interpolate(coarse, size=shape[2:])


MODELS = {
    "mobilenet_v1": Example(mobilenet_v1, (256, 3, 224, 224), (4, 3, 32, 32), {"num_classes": 10, "width": 0.25}),
    "convnext_t": Example(convnext_t, (32, 3, 224, 224), (4, 3, 32, 32), {"num_classes": 10, "width": 1 / 6, "depth": 1 / 3}),
    "efficientnet_b0": Example(efficientnet_b0, (32, 3, 224, 224), (4, 3, 64, 64), {"num_classes": 10, "width": 0.25, "depth": 0.25}),
    "x3d_s": Example(x3d_s, (8, 3, 13, 160, 160), (4, 3, 4, 32, 32), {"num_classes": 10, "width": 0.25, "depth": 0.25}),
    "partial_unet": Example(partial_unet, (8, 3, 256, 256), (4, 3, 32, 32), {"widths": (8, 16, 16)}, masked=True),
    "lenet5": Example(lenet5, (1, 1, 32, 32), (4, 1, 32, 32), {"num_classes": 10}),
    "alexnet": Example(alexnet, (1, 3, 227, 227), (4, 3, 63, 63), {"num_classes": 10, "width": 0.125}),
    "vgg16_bn": Example(vgg16_bn, (32, 3, 227, 227), (4, 3, 64, 64), {"num_classes": 10, "width": 0.125, "pool": 2}),
    "resnet34": Example(resnet34, (32, 3, 224, 224), (4, 3, 64, 64), {"num_classes": 10, "width": 0.125, "depth": 1 / 3}),
}
