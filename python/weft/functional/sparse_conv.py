"""Convolution with sparse weights: only the weights that are not 0 are multiplied, and only they have gradients. The result is linear in input and in
the values of the weights. The functions, and the rules of weft::sparse_conv and sparse_conv_backward."""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Optional, Union

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_variadic

from .._core.arguments import Padding, Size, lowered, ranked
from .._core.rules import Rule, adjoint, call, call_into, derived, leaf, mapped, wide
from .._core.shapes import fake_of
from .conv import check_activation, check_tensors, convolved, formula as conv_formula, read_settings, wanted

__all__ = ["sparse_conv1d", "sparse_conv2d", "sparse_conv3d"]


# ---------------------------------------------------------------------------------------------- weights

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
    def ndim(self) -> int:
        """That of the dense weights.

            >>> weft.sparse.from_dense(torch.eye(3).view(3, 3, 1)).ndim
            3
        """
        return len(self.shape)

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


def looked(weight: Tensor) -> SparseWeight:
    """The elements of dense weights that are not 0."""
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


Weight = Union[SparseWeight, Tensor]


# ---------------------------------------------------------------------------------------------- the rules

def _formula(input, values, bias, rows, cols, shape, *geometry):
    """By dense weights; of values that are not stored there is no gradient."""
    counts = rows[1:].long() - rows[:-1].long()
    at = torch.repeat_interleave(torch.arange(shape[0], device=rows.device), counts, output_size=values.shape[0]) * math.prod(shape[1:]) + cols.long()
    dense = wide(values).new_zeros(math.prod(shape)).index_put((at,), wide(values)).view(*shape)
    return conv_formula(wide(input), dense, bias, *geometry).to(input.dtype)


def _backward(grad, input, values, rows, cols, shape, *settings):
    *geometry, want, bias_dtype = settings
    return wanted(adjoint(_formula, 3)(grad, input, values, leaf(input.new_zeros(shape[0], dtype=bias_dtype)), rows, cols, shape, *geometry), want)


_SHARED = dict.fromkeys((3, 4), "rows and cols cannot be mapped over a dimension by torch.vmap; all values share one pattern")
SPARSE_CONV = Rule("sparse_conv", 5, *convolved(_formula, "sparse_conv_backward", 5, lambda *inputs: (inputs[5:-3], inputs[-3:])),
                   mapped("sparse_conv", 5, 1, lambda shape, *_: len(shape) - 1, _SHARED))
Rule("sparse_conv_backward", 5, *derived(_backward, 5), mapped("sparse_conv_backward", 5, 0, shared=_SHARED))


# ---------------------------------------------------------------------------------------------- the functions

def _sparse_conv(function: Callable, rank: int, input: Tensor, weight: Weight, bias: Optional[Tensor], stride: Size, padding: Padding, dilation: Size,
                 groups: int, act: Optional[str], clip: tuple[float, float], out: Optional[Tensor]) -> Tensor:
    held = weight.values if isinstance(weight, SparseWeight) else weight
    if has_torch_function_variadic(input, held, bias):
        return handle_torch_function(function, (input, held, bias), input, weight, bias, stride, padding, dilation, groups, act=act, clip=clip, out=out)
    check_tensors(function.__name__, rank, input, weight, bias, kinds=(SparseWeight, Tensor))
    settings, _ = read_settings(rank, stride, padding, dilation, groups, None, weight)
    kind = check_activation(act, clip)
    if isinstance(weight, Tensor):
        weight = looked(weight)
    input, values, bias = lowered(input, weight.values, bias)
    args = (input, values, bias, weight.rows, weight.cols, weight.shape, *settings, *kind)
    return call(SPARSE_CONV, *args) if out is None else call_into(SPARSE_CONV, out, *args)


def _sparse_conv_of(rank: int) -> Callable:
    def sparse_conv(input: Tensor, weight: Weight, bias: Optional[Tensor] = None, stride: Size = 1, padding: Padding = 0, dilation: Size = 1,
                    groups: int = 1, *, act: Optional[str] = None, clip: tuple[float, float] = (0.0, 6.0), out: Optional[Tensor] = None) -> Tensor:
        """{rank}D convolution with sparse weights, with an optional fused activation ('relu', or 'clip' to the bounds of `clip`).

        weight: a weft.SparseWeight, or dense weights, whose zeros are then looked for at each call and left out. Gradients reach the input, the
        bias and the weights that are not 0. A NaN of the input goes only where a kept weight reads it. Under torch.compile prefer a SparseWeight:
        how many weights a dense tensor keeps is not known before it is looked at.

            >>> dense = torch.randn(8, 4, {x3})
            >>> weight = weft.sparse.from_dense(torch.where(dense.abs() > 1.5, dense, 0.0))
            >>> weft.functional.sparse_conv{rank}d(torch.randn(2, 4, {x9}), weight, torch.zeros(8), padding=1, act="relu").shape
            torch.Size([2, 8, {x9}])
        """
        return _sparse_conv(sparse_conv, rank, input, weight, bias, stride, padding, dilation, groups, act, clip, out)
    return sparse_conv


sparse_conv1d, sparse_conv2d, sparse_conv3d = ranked(_sparse_conv_of)
