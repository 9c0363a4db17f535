"""Convolution with sparse weights: only the weights that are not 0 are multiplied, and only they have gradients. The result is linear in input and in
the values of the weights. The functions, and the rules of weft::sparse_conv and sparse_conv_backward."""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Optional, Union

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_variadic

from .._core.arguments import Padding, Size, lowered
from .._core.derived import adjoint, derived, leaf, tangents, wide
from .._core.rules import Rule, call, call_into, mapped
from ..sparse import SparseWeight, from_dense
from ._ranked import ranked
from .conv import check_activation, check_tensors, formula as conv_formula, no_bias, read_settings, save_epilogue, through_act, want_of, wanted

__all__ = ["sparse_conv1d", "sparse_conv2d", "sparse_conv3d"]

Weight = Union[SparseWeight, Tensor]


# ---------------------------------------------------------------------------------------------- gradients

def _formula(input, values, bias, rows, cols, shape, *geometry):
    """By dense weights; of values that are not stored there is no gradient."""
    counts = rows[1:].long() - rows[:-1].long()
    at = torch.repeat_interleave(torch.arange(shape[0], device=rows.device), counts, output_size=values.shape[0]) * math.prod(shape[1:]) + cols.long()
    dense = wide(values).new_zeros(math.prod(shape)).index_put((at,), wide(values)).view(*shape)
    return conv_formula(wide(input), dense, bias, *geometry).to(input.dtype)


def _backward(grad, input, values, rows, cols, shape, *settings):
    *geometry, want, bias_dtype = settings
    return wanted(adjoint(_formula, 3)(grad, input, values, leaf(input.new_zeros(shape[0], dtype=bias_dtype)), rows, cols, shape, *geometry), want)


def _save_forward(ctx, inputs, output):
    input, values, bias, rows, cols, *geometry, act, lo, hi = inputs
    ctx.settings = geometry
    save_epilogue(ctx, input, bias, act, lo, hi, output.dtype)
    return input, values, rows, cols, output if act else None


def _gradient_of_forward(ctx, grad):
    input, values, rows, cols, output = ctx.saved_tensors
    want = want_of(ctx.needs_input_grad)
    grads = call(SPARSE_CONV_BACKWARD, through_act(grad, output, *ctx.act), input, values, rows, cols, *ctx.settings, want, ctx.bias_dtype)
    return *wanted(grads, want), None, None


def _tangent_of_forward(ctx, input, values, rows, cols, output, dx, dv, db, *no_tangents):
    moved, = tangents(_formula, (input, values, no_bias(db)), (rows, cols, *ctx.settings), (dx, dv, db))
    return through_act(moved, output, *ctx.act)


# ---------------------------------------------------------------------------------------------- batching

def _batch(name):
    """All values share one pattern."""
    plain = mapped(name, 5, 1 if name == "sparse_conv" else 0, lambda shape, *_: len(shape) - 1)

    def batch(info, in_dims, *args):
        if in_dims[3] is not None or in_dims[4] is not None:
            raise RuntimeError(f"weft::{name}: rows and cols cannot be mapped over a dimension by torch.vmap; all values share one pattern")
        return plain(info, in_dims, *args)
    return batch


SPARSE_CONV = Rule("sparse_conv", 5, _save_forward, _gradient_of_forward, _tangent_of_forward, _batch("sparse_conv"))
SPARSE_CONV_BACKWARD = Rule("sparse_conv_backward", 5, *derived(_backward, 5), _batch("sparse_conv_backward"))


def _sparse_conv(function: Callable, rank: int, input: Tensor, weight: Weight, bias: Optional[Tensor], stride: Size, padding: Padding, dilation: Size,
                 groups: int, act: Optional[str], clip: tuple[float, float], out: Optional[Tensor]) -> Tensor:
    held = weight.values if isinstance(weight, SparseWeight) else weight
    if has_torch_function_variadic(input, held, bias):
        return handle_torch_function(function, (input, held, bias), input, weight, bias, stride, padding, dilation, groups, act=act, clip=clip, out=out)
    check_tensors(function.__name__, rank, input, weight, bias, kinds=(SparseWeight, Tensor))
    settings, _ = read_settings(rank, stride, padding, dilation, groups, None, weight)
    kind = check_activation(act, clip)
    if isinstance(weight, Tensor):
        weight = from_dense(weight)
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
        """
        return _sparse_conv(sparse_conv, rank, input, weight, bias, stride, padding, dilation, groups, act, clip, out)
    return sparse_conv


sparse_conv1d, sparse_conv2d, sparse_conv3d = ranked(_sparse_conv_of, """
    >>> weft.functional.sparse_conv1d(torch.randn(2, 4, 100), torch.eye(4).view(4, 4, 1)).shape
    torch.Size([2, 4, 100])
    """, """
    >>> dense = torch.randn(8, 4, 3, 3)
    >>> weight = weft.sparse.from_dense(torch.where(dense.abs() > 1.5, dense, 0.0))
    >>> weft.functional.sparse_conv2d(torch.randn(2, 4, 32, 32), weight, torch.zeros(8), padding=1, act="relu").shape
    torch.Size([2, 8, 32, 32])
    """, """
    >>> weft.functional.sparse_conv3d(torch.randn(1, 8, 9, 9, 9), torch.ones(8, 1, 3, 3, 3), groups=8).shape
    torch.Size([1, 8, 7, 7, 7])
    """)
