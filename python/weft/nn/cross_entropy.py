"""Cross entropy as modules."""
from __future__ import annotations

import torch
from torch import Tensor
from torch.fx import Proxy

from .. import functional as F
from ._named import Named, check_dims, kept_whole, made

__all__ = ["CrossEntropyLoss", "SpatialCrossEntropyLoss", "VolumetricCrossEntropyLoss"]


class CrossEntropyLoss(Named, torch.nn.CrossEntropyLoss):
    """torch.nn.CrossEntropyLoss computed by weft.

        >>> weft.nn.CrossEntropyLoss(label_smoothing=0.1)(torch.zeros(2, 4), torch.tensor([1, 3]))
        tensor(1.3863)
    """

    _function = staticmethod(F.cross_entropy)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(input, target, weight=self.weight, ignore_index=self.ignore_index, reduction=self.reduction,
                               label_smoothing=self.label_smoothing)


class _OfPixels(CrossEntropyLoss):
    """A loss that insists on images of one rank, with or without a batch."""

    _rank: int

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        if isinstance(input, Proxy):
            return kept_whole(self, input, target)
        check_dims(self, input, self._rank)
        if input.dim() == self._rank + 2:
            return super().forward(input, target)
        loss = super().forward(input.unsqueeze(0), target.unsqueeze(0))
        return loss.squeeze(0) if self.reduction == "none" else loss


SpatialCrossEntropyLoss = made("SpatialCrossEntropyLoss", (_OfPixels,),
                               "CrossEntropyLoss of images: input (N, C, H, W) or (C, H, W), a class or probabilities a pixel.",
                               "weft.nn.SpatialCrossEntropyLoss()(torch.zeros(2, 4, 8, 8), torch.zeros(2, 8, 8, dtype=torch.int64))",
                               "tensor(1.3863)", _rank=2)
VolumetricCrossEntropyLoss = made("VolumetricCrossEntropyLoss", (_OfPixels,),
                                  "CrossEntropyLoss of volumes: input (N, C, D, H, W) or (C, D, H, W), a class or probabilities a voxel.",
                                  'weft.nn.VolumetricCrossEntropyLoss(reduction="sum")(torch.zeros(1, 4, 2, 2, 2), torch.zeros(1, 2, 2, 2).long())',
                                  "tensor(11.0904)", _rank=3)
