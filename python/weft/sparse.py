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

import importlib
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Optional, Union, overload

import torch
from torch import Tensor
from torch.overrides import has_torch_function_variadic

from ._core.shapes import fake_of

if TYPE_CHECKING:
    from .nn.sparse_conv import Sparse_modes, SparseConv1d, SparseConv2d, SparseConv2D, SparseConv3d
    from .nn.sparse_model import SparseModel, refresh, set_mode, table, to_dense

__all__ = ["SparseConv1d", "SparseConv2D", "SparseConv2d", "SparseConv3d", "SparseModel", "SparseWeight", "Sparse_modes", "from_csr", "from_dense",
           "refresh", "set_mode", "table", "to_dense"]

_build, _find = torch.ops.weft.sparse_build.default, torch.ops.weft.sparse_positions.default
_fake_build = fake_of("sparse_build")
torch.library.register_fake("weft::sparse_positions", fake_of("sparse_positions"))


@torch.library.register_fake("weft::sparse_build")
def _fake(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """How many are not 0 is not known."""
    values, rows, cols = _fake_build(weight)
    nnz = torch.library.get_ctx().new_dynamic_size()
    return values.new_empty([nnz]), rows, cols.new_empty([nnz])


class SparseWeight:
    """The weights of a convolution as CSR: a matrix with a row for each output channel and a column for each element of its window.

    values: the kept elements, the only part with a gradient. rows: where each row of them begins, and the end. cols: the column of each,
    that is ((i*kd + r)*kh + s)*kw + t for channel i of the group and tap (r, s, t). Both int32 or int64, on the device of the values.
    shape: that of the dense weights, (output channels, input channels of a group, kernel). check=False leaves out the look at what is in
    rows and cols, which waits for a GPU.

        >>> weft.SparseWeight(torch.ones(2), torch.tensor([0, 1, 2]), torch.tensor([4, 0]), (2, 1, 3, 3)).to_dense()[0, 0, 1, 1]
        tensor(1.)
    """

    values: Tensor
    rows: Tensor
    cols: Tensor
    shape: tuple[int, ...]

    def __init__(self, values: Tensor, rows: Tensor, cols: Tensor, shape: Sequence[int], *, check: bool = True) -> None:
        for name, t in (("values", values), ("rows", rows), ("cols", cols)):
            if not isinstance(t, Tensor) and not has_torch_function_variadic(t):   # what stands for a tensor in a trace of torch.fx
                raise TypeError(f"SparseWeight: {name} is {type(t).__name__}, allowed: Tensor")
        self.values, self.rows, self.cols, self.shape = values, rows, cols, tuple(shape)
        self._positions: Optional[Tensor] = None
        if check:
            self._check()

    def _check(self) -> None:
        if self.values.shape != self.cols.shape:
            raise RuntimeError(f"SparseWeight: values has the shape {list(self.values.shape)}, allowed: that of cols, {list(self.cols.shape)}")
        if not self.values.is_floating_point():
            raise RuntimeError(f"SparseWeight: values is {str(self.values.dtype)[6:]}, allowed: float32, float64, float16 or bfloat16")
        if not self.values.device == self.rows.device == self.cols.device:
            raise RuntimeError(f"SparseWeight: values is on {self.values.device}, rows on {self.rows.device}, cols on {self.cols.device}, allowed: one device")
        self._find_positions()

    def _find_positions(self) -> Tensor:
        """Where in the dense weights each value lies."""
        if self._positions is None:
            self._positions = _find(self.rows.cpu(), self.cols.cpu(), self.shape).to(self.cols.device)
        return self._positions

    @property
    def nnz(self) -> int:
        """How many values are kept.

            >>> weft.sparse.from_dense(torch.eye(3).view(3, 3, 1)).nnz
            3
        """
        return self.values.shape[0]

    @property
    def sparsity(self) -> float:
        """The share of the elements that are left out.

            >>> weft.sparse.from_dense(torch.eye(4).view(4, 4, 1)).sparsity
            0.75
        """
        return 1 - self.nnz / math.prod(self.shape)

    def gather(self, dense: Tensor) -> Tensor:
        """The values that dense weights have where this pattern keeps one, with a gradient.

            >>> weft.sparse.from_dense(torch.eye(2).view(2, 2, 1)).gather(torch.tensor([[[5.0], [6.0]], [[7.0], [8.0]]]))
            tensor([5., 8.])
        """
        if tuple(dense.shape) != self.shape:
            raise RuntimeError(f"dense: has the shape {list(dense.shape)}, allowed: {list(self.shape)}")
        return dense.reshape(-1).index_select(0, self._find_positions())

    def with_values(self, values: Tensor) -> SparseWeight:
        """The same pattern with other values.

            >>> weight = weft.sparse.from_dense(torch.eye(2).view(2, 2, 1))
            >>> weight.with_values(2 * weight.values).to_dense().flatten()
            tensor([2., 0., 0., 2.])
        """
        if not isinstance(values, Tensor):
            raise TypeError(f"values: is {type(values).__name__}, allowed: Tensor")
        if values.shape != self.values.shape:
            raise RuntimeError(f"values: has the shape {list(values.shape)}, allowed: {list(self.values.shape)}")
        return self._with(values)

    def _with(self, values: Tensor) -> SparseWeight:
        other = SparseWeight(values, self.rows, self.cols, self.shape, check=False)
        other._positions = self._positions
        return other

    def to_dense(self) -> Tensor:
        """The dense weights, with a gradient for the values; of equal columns the values add up.

            >>> weft.sparse.from_dense(torch.eye(2).view(2, 2, 1)).to_dense().shape
            torch.Size([2, 2, 1])
        """
        return self.values.new_zeros(math.prod(self.shape)).index_add(0, self._find_positions(), self.values).view(self.shape)

    def to(self, *args: Any, **kwargs: Any) -> SparseWeight:
        """As Tensor.to; a type is that of the values.

            >>> weft.sparse.from_dense(torch.eye(2).view(2, 2, 1)).to(torch.float16).values.dtype
            torch.float16
        """
        values = self.values.to(*args, **kwargs)
        other = SparseWeight(values, self.rows.to(values.device), self.cols.to(values.device), self.shape, check=False)
        other._positions = None if self._positions is None else self._positions.to(values.device)
        return other

    def __fx_create_arg__(self, tracer: Any) -> Any:
        """As an argument in a trace of torch.fx, which knows tensors only."""
        parts = tuple(tracer.create_arg(t) for t in (self.values, self.rows, self.cols))
        return tracer.create_node("call_function", _put_together, (*parts, self.shape), {})

    def __repr__(self) -> str:
        return (f"weft.SparseWeight(shape={self.shape}, nnz={self.nnz}, sparsity={self.sparsity:.3f}, dtype={self.values.dtype}, "
                f"device='{self.values.device}')")


def _put_together(values: Tensor, rows: Tensor, cols: Tensor, shape: tuple[int, ...]) -> SparseWeight:
    return SparseWeight(values, rows, cols, shape, check=False)


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
        return importlib.import_module(".nn.sparse_model", __package__).net_from_dense(weight, exclude, all)
    if not isinstance(weight, Tensor):
        raise TypeError(f"weight: is {type(weight).__name__}, allowed: Tensor or Module")
    if exclude is not None:
        raise TypeError("exclude: given with a tensor, allowed: with a net")
    if weight.layout != torch.strided:
        raise TypeError(f"weight: has the layout {weight.layout}, allowed: a dense tensor; weft.sparse.from_csr takes a sparse one")
    values, rows, cols = (t.to(weight.device) for t in _build(weight.detach().cpu()))
    made = SparseWeight(values, rows, cols, weight.shape, check=False)
    if weight.requires_grad and torch.is_grad_enabled():
        made.values = made.gather(weight)
    return made


def from_csr(matrix: Tensor, kernel_size: Union[int, Sequence[int]]) -> SparseWeight:
    """The weights in a sparse CSR tensor of (output channels, input channels of a group * elements of the kernel). An int for the kernel
    size means a 1D kernel.

        >>> weft.sparse.from_csr(torch.eye(4, 18).to_sparse_csr(), (3, 3)).shape
        (4, 2, 3, 3)
    """
    if not isinstance(matrix, Tensor) or matrix.layout != torch.sparse_csr:
        got = f"a tensor of layout {matrix.layout}" if isinstance(matrix, Tensor) else type(matrix).__name__
        raise TypeError(f"matrix: is {got}, allowed: a tensor of layout torch.sparse_csr")
    kernel = (kernel_size,) if isinstance(kernel_size, int) else tuple(kernel_size)
    window = math.prod(kernel)
    if matrix.dim() != 2 or any(k < 1 for k in kernel) or matrix.shape[1] % window:
        raise RuntimeError(f"matrix: has the shape {list(matrix.shape)} with kernel_size {kernel}, allowed: two dimensions, the second a multiple of the "
                           "kernel's elements")
    return SparseWeight(matrix.values(), matrix.crow_indices(), matrix.col_indices(), (matrix.shape[0], matrix.shape[1] // window, *kernel))


_MODULES = {**dict.fromkeys(("SparseConv1d", "SparseConv2d", "SparseConv2D", "SparseConv3d", "Sparse_modes"), ".nn.sparse_conv"),
            **dict.fromkeys(("SparseModel", "refresh", "set_mode", "table", "to_dense"), ".nn.sparse_model")}


def __getattr__(name: str) -> Any:
    """What is built of functions, which are built of this file."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name], __package__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
