"""Batch normalisation modules."""
from __future__ import annotations

import torch
from torch import Tensor
from torch.fx import Proxy

from .. import functional as F
from ._named import Named, kept_whole, own_parameters

__all__ = ["BatchNorm1d", "BatchNorm2d", "BatchNorm3d"]


class _BatchNorm(Named):
    """What the modules add to their twins. The steps are those of torch.nn: the count of batches, the momentum that follows from it where
    none is given, the statistics of the batch where there are no running ones, and running ones only where they are used or tracked."""

    def forward(self, input: Tensor) -> Tensor:
        if isinstance(input, Proxy):   # torch.fx keeps the twins whole, as it must: each run counts a batch
            return kept_whole(self, input)
        self._check_input_dim(input)
        momentum = 0.0 if self.momentum is None else self.momentum
        tracked = self.training and self.track_running_stats
        if tracked and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:
                momentum = 1.0 / float(self.num_batches_tracked)
        buffers = self._buffers
        running = (buffers["running_mean"], buffers["running_var"]) if "running_mean" in buffers else (self.running_mean, self.running_var)
        mean, var = running if tracked or not self.training else (None, None)
        of_batch = self.training or (running[0] is None and running[1] is None)
        return F.batch_norm(input, mean, var, *own_parameters(self), of_batch, momentum, self.eps)


class BatchNorm1d(_BatchNorm, torch.nn.BatchNorm1d):
    """torch.nn.BatchNorm1d computed by weft.

        >>> weft.nn.BatchNorm1d(4)(torch.randn(8, 4, 100)).shape
        torch.Size([8, 4, 100])
    """


class BatchNorm2d(_BatchNorm, torch.nn.BatchNorm2d):
    """torch.nn.BatchNorm2d computed by weft.

        >>> weft.nn.BatchNorm2d(4, momentum=None)(torch.randn(8, 4, 16, 16)).shape
        torch.Size([8, 4, 16, 16])
    """


class BatchNorm3d(_BatchNorm, torch.nn.BatchNorm3d):
    """torch.nn.BatchNorm3d computed by weft.

        >>> weft.nn.BatchNorm3d(4, affine=False).eval()(torch.randn(2, 4, 5, 6, 7)).shape
        torch.Size([2, 4, 5, 6, 7])
    """
