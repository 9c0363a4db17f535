"""Weights of which only the elements that are not 0 are kept, for weft.functional.sparse_conv1d/2d/3d; and nets of sparse convolutions.

    >>> import torch, weft
    >>> dense = torch.randn(8, 4, 3, 3)
    >>> dense[dense.abs() < 1.5] = 0
    >>> weight = weft.sparse.from_dense(dense)
    >>> torch.equal(weight.to_dense(), dense)
    True
    >>> net = weft.sparse.from_dense(torch.nn.Sequential(torch.nn.Conv2d(4, 8, 3), torch.nn.ReLU()))
    >>> weft.prune.magnitude(net, 0.9)
    >>> weft.sparse.set_mode(net, weft.sparse.Sparse_modes.Inference_Sparse)
    >>> net(torch.randn(1, 4, 6, 6)).shape
    torch.Size([1, 8, 4, 4])
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any, Optional, overload

import torch
from torch import Tensor

from .functional.sparse_conv import SparseWeight, from_csr, looked
from .nn.sparse_conv import Sparse_modes, SparseConv1d, SparseConv2d, SparseConv2D, SparseConv3d
from .nn.sparse_model import SparseModel, net_from_dense, refresh, set_mode, table, to_dense

__all__ = ["SparseConv1d", "SparseConv2D", "SparseConv2d", "SparseConv3d", "SparseModel", "SparseWeight", "Sparse_modes", "from_csr", "from_dense",
           "refresh", "set_mode", "table", "to_dense"]


@overload
def from_dense(weight: Tensor) -> SparseWeight: ...
@overload
def from_dense(weight: torch.nn.Module, exclude: Optional[Callable[[torch.nn.Module], bool]] = None, *, all: bool = False) -> torch.nn.Module: ...


def from_dense(weight: Any, exclude: Any = None, *, all: bool = False) -> Any:
    """The elements of dense weights that are not 0. Where the weights require grad, the gradient of the values reaches them. The pattern is
    found on the CPU: of weights on a GPU, once for many calls is better than at each.

    Of a net: the net with its Conv1d, Conv2d and Conv3d replaced, in place, by sparse ones with the same parameters, hooks and mode;
    exclude(module) -> True leaves one. A net that is a convolution itself is returned as a new module. A layer that was pruned and is not expected to be
    faster sparsely (fewer than 7 in 10 of its weights are 0, a window of one, a GPU) stays dense, and a line on stderr says so; not with all=True.

        >>> weft.sparse.from_dense(torch.eye(4).view(4, 4, 1))
        weft.SparseWeight(shape=(4, 4, 1), nnz=4, sparsity=0.750, dtype=torch.float32, device='cpu')
        >>> weft.sparse.from_dense(torch.nn.Conv2d(1, 6, 5))
        weft.SparseConv2d(1, 6, kernel_size=(5, 5), stride=(1, 1))
    """
    if isinstance(weight, torch.nn.Module):
        return net_from_dense(weight, exclude, all)
    if not isinstance(weight, Tensor):
        raise TypeError(f"weight: is {type(weight).__name__}, allowed: Tensor or Module")
    if exclude is not None:
        raise TypeError("exclude: given with a tensor, allowed: with a net")
    return looked(weight)
