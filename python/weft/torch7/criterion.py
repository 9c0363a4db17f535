"""Criteria: log-softmax and negative log-likelihood in one pass, with labels that count from 1."""
from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor
from torch.fx import Proxy

from .. import nn
from ..nn._named import made
from ._base import Torch7, leaf

__all__ = ["SpatialCrossEntropyCriterion", "VolumetricCrossEntropyCriterion"]


class _CrossEntropyCriterion(Torch7):
    """Labels from 1: the place of a class among the channels, counted as Lua does. They may be of any real type, as Torch7's were."""

    _rank: int

    def __init__(self, weights: Optional[Tensor] = None) -> None:
        if weights is not None and not isinstance(weights, Tensor):
            raise TypeError(f"weights: is {type(weights).__name__}, allowed: Tensor or None")
        if weights is not None and weights.dim() != 1:
            raise ValueError(f"weights: has the shape {list(weights.shape)}, allowed: one dimension, a weight a class")
        super().__init__(weight=weights)   # type: ignore[call-arg]

    def _from_zero(self, input: Any, target: Any) -> Tensor:
        name, dims = type(self).__name__, self._rank + 2
        for argument, value in (("input", input), ("target", target)):
            if not isinstance(value, Tensor):
                raise TypeError(f"{name}: {argument} is {type(value).__name__}, allowed: Tensor")
        if input.dim() not in (dims - 1, dims):
            raise RuntimeError(f"{name}: input has {input.dim()} dimensions {list(input.shape)}, allowed: {dims - 1} (unbatched) or {dims} (batched)")
        channels = input.dim() - self._rank - 1
        places = [*input.shape[:channels], *input.shape[channels + 1:]]
        if list(target.shape) != places:
            raise RuntimeError(f"{name}: target has the shape {list(target.shape)}, allowed with an input of {list(input.shape)}: {places}")
        if target.dtype == torch.bool or target.is_complex():
            raise RuntimeError(f"{name}: target is {str(target.dtype)[6:]}, allowed: whole numbers from 1, of a real type")
        return target.to(torch.int64) - 1

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        if isinstance(input, Proxy):
            return leaf(self, input, target)
        labels = self._from_zero(input, target)
        try:
            return super().forward(input, labels)   # type: ignore[misc]
        except IndexError:
            pass   # it speaks of labels from 0
        raise IndexError(f"{type(self).__name__}: target has a label that is no class, allowed: 1 to {input.shape[-self._rank - 1]}")


SpatialCrossEntropyCriterion = made("SpatialCrossEntropyCriterion", (_CrossEntropyCriterion, nn.SpatialCrossEntropyLoss),
                                    "The mean cross entropy of the pixels of (N, C, H, W) with labels of (N, H, W), from 1 to C; weights, "
                                    "one a class, weigh the mean.",
                                    "weft.torch7.SpatialCrossEntropyCriterion()(torch.zeros(2, 4, 8, 8), torch.ones(2, 8, 8))",
                                    "tensor(1.3863)", _rank=2)
VolumetricCrossEntropyCriterion = made("VolumetricCrossEntropyCriterion", (_CrossEntropyCriterion, nn.VolumetricCrossEntropyLoss),
                                       "The mean cross entropy of the voxels of (N, C, T, H, W) with labels of (N, T, H, W), from 1 to C; "
                                       "weights, one a class, weigh the mean.",
                                       "weft.torch7.VolumetricCrossEntropyCriterion()(torch.zeros(1, 4, 2, 2, 2), torch.ones(1, 2, 2, 2))",
                                       "tensor(1.3863)", _rank=3)
