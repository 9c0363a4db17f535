"""Data for calls of the C entries."""
from __future__ import annotations

import pytest
import torch

from weft._core import entry as _entry

N, C = 4, 16
needs_entries = pytest.mark.skipif(not _entry.available, reason="this PyTorch has no entries")


def data(device, *shape, dtype=torch.float64):
    """In float64, for which weft has the reference alone: PyTorch computes it."""
    return torch.randn(*(shape or (N, C, 24, 24)), device=device, dtype=dtype, requires_grad=True)


def depthwise(grad=True, device="cpu"):
    return data(device, dtype=torch.float32).detach().requires_grad_(grad), data(device, C, 1, 3, 3, dtype=torch.float32).detach().requires_grad_(grad)
