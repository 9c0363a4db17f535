"""Convolution with sparse weights and its gradients: derivatives and batching of weft::sparse_conv, sparse_conv_backward, and the
shapes of weft::sparse_build and sparse_positions. The result is linear in input and in the values of the weights."""
from __future__ import annotations

import math
import torch

from .._core.rules import Rule, call, mapped
from .._core.shapes import fake_of
from ._derived import adjoint, derived, leaf, tangents, wide
from .conv import no_bias, save_epilogue, through_act, want_of, wanted
from .conv import formula as conv_formula


@torch.library.register_fake("weft::sparse_build")
def _fake_sparse_build(weight):
    values, rows, cols = _build(weight)
    nnz = torch.library.get_ctx().new_dynamic_size()
    return values.new_empty([nnz]), rows, cols.new_empty([nnz])


_build = fake_of("sparse_build")
torch.library.register_fake("weft::sparse_positions", fake_of("sparse_positions"))


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
    grads = call(sparse_conv_backward, through_act(grad, output, *ctx.act), input, values, rows, cols, *ctx.settings, want, ctx.bias_dtype)
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


sparse_conv = Rule("sparse_conv", 5, _save_forward, _gradient_of_forward, _tangent_of_forward, _batch("sparse_conv"))
sparse_conv_backward = Rule("sparse_conv_backward", 5, *derived(_backward, 5), _batch("sparse_conv_backward"))
