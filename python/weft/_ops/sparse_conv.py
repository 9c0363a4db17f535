"""Convolution with sparse weights and its gradients: shapes, derivatives and batching of weft::sparse_conv, sparse_conv_backward, and the
shapes of weft::sparse_build and sparse_positions. The result is linear in input and in the values of the weights."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .._rules import TYPES, Rule, call, check, check_length, dense, is_last
from ._bilinear import WANT_BIAS, WANT_INPUT, WANT_WEIGHT, gradient_of_backward, tangent_of_backward
from .conv import batched, into_channels, logical, out_of_channels, rounded, through_act

_INDEX = (torch.int32, torch.int64)


# ---------------------------------------------------------------------------------------------- shapes

def _check_csr(rows: Tensor, cols: Tensor, outputs: Any, nnz: Any) -> None:
    for name, t, length, why in (("rows", rows, outputs + 1, "one more than the output channels"), ("cols", cols, nnz, "as many as values")):
        check(t.dtype in _INDEX, lambda: f"{name}: is {str(t.dtype)[6:]}, allowed: int32 or int64")
        check_length(name, t, length, why)


def _check_shape(shape: Sequence[Any]) -> int:
    check(3 <= len(shape) <= 5, lambda: f"shape: has {len(shape)} values, allowed: 3 to 5 (output channels, input channels of a group, kernel)")
    for i, size in enumerate(shape):
        check(size >= 1, lambda: f"shape: value {i} is {size}, allowed: 1 to 2^40")
    return len(shape) - 2


def _check(input: Tensor, values: Tensor, rows: Tensor, cols: Tensor, shape: Sequence[Any], geometry: tuple,
           others: Sequence[tuple[str, Tensor | None]]) -> list[Any]:
    """What the kernel checks, in its words; the spatial size of the result."""
    stride, padding, dilation, groups = geometry
    rank = _check_shape(shape)
    check(input.dim() in (rank + 1, rank + 2),
          lambda: f"input: has {input.dim()} dimensions, allowed with a weight of {rank + 2}: {rank + 2} (batched) or {rank + 1} (unbatched)")
    check(input.dtype in TYPES, lambda: f"input: is {str(input.dtype)[6:]}, allowed: float32, float64, float16 or bfloat16")
    check(values.dtype == input.dtype, lambda: f"values: is {str(values.dtype)[6:]}, allowed: the type of input, {str(input.dtype)[6:]}")
    for name, t in (("values", values), ("rows", rows), ("cols", cols), *others):
        check(t is None or t.device == input.device, lambda: f"{name}: is on {t.device}, allowed: the device of input, {input.device}")
    for setting, given, count, least in (("stride", stride, rank, 1), ("padding", padding, 2 * rank, 0), ("dilation", dilation, rank, 1)):
        check(len(given) == count, lambda: f"{setting}: has {len(given)} values, allowed: {count}")
        for a, v in enumerate(given):
            check(v >= least, lambda: f"{setting}: is {v} along spatial axis {a * rank // count}, allowed: {least} to 2^20")
    check(groups >= 1, lambda: f"groups: is {groups}, allowed: 1 to 2^30")
    check(values.dim() == 1, lambda: f"values: has {values.dim()} dimensions, allowed: 1")
    _check_csr(rows, cols, shape[0], values.shape[0])
    check(input.shape[-rank - 1] == shape[1] * groups,
          lambda: f"input: has {input.shape[-rank - 1]} channels, allowed with groups={groups} and a weight of ({shape[0]}, {shape[1]}, ...): "
                  f"{shape[1] * groups}")
    check(shape[0] % groups == 0, lambda: f"groups: is {groups}, allowed: a divisor of the first dimension of weight, {shape[0]}")
    spatial = [(input.shape[-rank + a] + padding[2 * a] + padding[2 * a + 1] - dilation[a] * (shape[2 + a] - 1) - 1) // stride[a] + 1 for a in range(rank)]
    for a, n in enumerate(spatial):
        check(n >= 1, lambda: f"input: spatial axis {a} has {input.shape[a - rank]} elements, too few for kernel {shape[2 + a]} with this stride, dilation "
                              "and padding")
    return spatial


def _fake_sparse_conv(input, values, bias, rows, cols, shape, stride, padding, dilation, groups, act, lo, hi):
    spatial = _check(input, values, rows, cols, shape, (stride, padding, dilation, groups), [("bias", bias)])
    if bias is not None:
        check_length("bias", bias, shape[0], "the output channels")
        check(bias.dtype in (input.dtype, torch.float32),
              lambda: f"bias: is {str(bias.dtype)[6:]}, allowed: the type of input, {str(input.dtype)[6:]}, or float32")
    rank = len(stride)
    return dense(input, [*input.shape[:-rank - 1], shape[0], *spatial], is_last(input, rank), rank)


def _fake_sparse_conv_backward(grad_output, input, values, rows, cols, shape, stride, padding, dilation, groups, want, bias_dtype):
    spatial = _check(input, values, rows, cols, shape, (stride, padding, dilation, groups), [("grad_output", grad_output)])
    rank = len(stride)
    check(grad_output.dim() == input.dim(), lambda: f"grad_output: has {grad_output.dim()} dimensions, allowed: as many as input, {input.dim()}")
    check(grad_output.dtype == input.dtype, lambda: f"grad_output: is {str(grad_output.dtype)[6:]}, allowed: the type of input, {str(input.dtype)[6:]}")
    for axis, got, allowed in zip("nc"[rank + 2 - input.dim():] + "dhw"[3 - rank:], grad_output.shape, [*input.shape[:-rank - 1], shape[0], *spatial]):
        check(got == allowed, lambda: f"grad_output: has {got} elements along axis {axis}, allowed: {allowed}, as the forward operator gives")
    check(bias_dtype in (input.dtype, torch.float32),
          lambda: f"bias_dtype: is {str(bias_dtype)[6:]}, allowed: the type of input, {str(input.dtype)[6:]}, or float32")
    none = [0]
    return (dense(input, input.shape, is_last(input, rank), rank) if want & WANT_INPUT else input.new_empty(none),
            values.new_empty(values.shape if want & WANT_WEIGHT else none), input.new_empty([shape[0]] if want & WANT_BIAS else none, dtype=bias_dtype))


@torch.library.register_fake("weft::sparse_build")
def _fake_sparse_build(weight):
    check(3 <= weight.dim() <= 5, lambda: f"weight: has {weight.dim()} dimensions, allowed: 3 (1D), 4 (2D) or 5 (3D)")
    check(weight.dtype in TYPES, lambda: f"weight: is {str(weight.dtype)[6:]}, allowed: float32, float64, float16 or bfloat16")
    nnz = torch.library.get_ctx().new_dynamic_size()
    index = torch.int32 if weight.numel() < 2**31 else torch.int64
    return weight.new_empty([nnz]), weight.new_empty([weight.shape[0] + 1], dtype=index), weight.new_empty([nnz], dtype=index)


@torch.library.register_fake("weft::sparse_positions")
def _fake_sparse_positions(rows, cols, shape):
    _check_shape(shape)
    _check_csr(rows, cols, shape[0], cols.shape[0] if cols.dim() == 1 else 0)
    return cols.new_empty(cols.shape, dtype=torch.int64)


# ---------------------------------------------------------------------------------------------- gradients

def _save_forward(ctx, inputs, output):
    input, values, bias, rows, cols, shape, stride, padding, dilation, groups, act, lo, hi = inputs
    ctx.settings = (shape, stride, padding, dilation, groups)
    ctx.act, ctx.lo, ctx.hi = act, lo, hi
    if act == "clip":
        ctx.lo, ctx.hi = rounded(lo, output.dtype), rounded(hi, output.dtype)
    ctx.bias_dtype, ctx.shape = input.dtype if bias is None else bias.dtype, output.shape
    return input, values, rows, cols, output if act else None


def _gradient_of_forward(ctx, grad):
    """Of values that are not stored there is none."""
    input, values, rows, cols, output = ctx.saved_tensors
    if ctx.act:
        grad = through_act(grad, output, ctx.act, ctx.lo, ctx.hi)
    x, v, b = ctx.needs_input_grad[:3]
    want = x * WANT_INPUT + v * WANT_WEIGHT + b * WANT_BIAS
    dx, dv, db = call(sparse_conv_backward, grad, input, values, rows, cols, *ctx.settings, want, ctx.bias_dtype)
    return dx if x else None, dv if v else None, db if b else None, None, None


def _steps(settings, shape, input, values, rows, cols):
    """The function that says what small steps of input, values and bias (each may be None) do to the result."""
    def steps(dx, dv, db):
        moved = None
        for x, v, moves in ((dx, values, dx), (input, dv, dv)):
            if moves is None:
                continue
            more = call(sparse_conv, x, v, db, rows, cols, *settings, "", 0.0, 0.0)
            moved, db = more if moved is None else moved + more, None
        if db is not None:
            moved = db.to(input.dtype).view(-1, *[1] * len(settings[1])).expand(shape)
        return moved
    return steps


def _tangent_of_forward(ctx, input, values, rows, cols, output, dx, dv, db, *no_tangents):
    moved = _steps(ctx.settings, ctx.shape, input, values, rows, cols)(dx, dv, db)
    return through_act(moved, output, ctx.act, ctx.lo, ctx.hi) if ctx.act else moved


def _save_backward(ctx, inputs, output):
    *settings, ctx.want, ctx.bias_dtype = inputs[5:]
    ctx.settings = settings
    ctx.set_materialize_grads(False)
    return inputs[:5]


def _backward(ctx, rows, cols):
    return lambda grad, input, values, want: call(sparse_conv_backward, grad, input, values, rows, cols, *ctx.settings, want, ctx.bias_dtype)


def _gradient_of_backward(ctx, *doubles):
    grad, input, values, rows, cols = ctx.saved_tensors
    steps = _steps(ctx.settings, grad.shape, input, values, rows, cols)
    return (*gradient_of_backward(ctx.needs_input_grad, ctx.want, (grad, input, values), doubles, steps, _backward(ctx, rows, cols)), None, None)


def _tangent_of_backward(ctx, grad, input, values, rows, cols, *moves):
    return tangent_of_backward(ctx.want, (grad, input, values), moves[:3], ctx.settings[0][0], ctx.bias_dtype, _backward(ctx, rows, cols))


# ---------------------------------------------------------------------------------------------- batching

def _repeated(in_dims: Any, rows: Tensor, cols: Tensor, nnz: Any, size: int) -> tuple[Tensor, Tensor]:
    """The pattern for `size` times the groups: columns count within a group."""
    if in_dims[0] is not None or in_dims[1] is not None:
        raise RuntimeError("weft::sparse_conv: rows and cols cannot be mapped over a dimension by torch.vmap; all values share one pattern")
    begins = rows[:-1].long() + nnz * torch.arange(size, device=rows.device).unsqueeze(1)
    return torch.cat([begins.flatten(), rows.new_full((1,), nnz * size, dtype=torch.int64)]), cols.repeat(size)


def _batch_forward(info, in_dims, input, values, bias, rows, cols, shape, stride, padding, dilation, groups, *rest):
    """A batch of inputs under one weight is a larger batch; one with its own values is more groups."""
    size, full = info.batch_size, len(shape)
    unbatched = logical(input, in_dims[0]) < full
    x = batched(input, in_dims[0], size, full)
    if not any(d is not None for d in in_dims[1:5]):
        y = call(sparse_conv, x.flatten(0, 1), values, bias, rows, cols, shape, stride, padding, dilation, groups, *rest).unflatten(0, (size, x.shape[1]))
        return (y.squeeze(1) if unbatched else y), 0
    v = batched(values, in_dims[1], size, 1)
    b = None if bias is None else batched(bias, in_dims[2], size, 1).flatten()
    rows, cols = _repeated(in_dims[3:5], rows, cols, v.shape[1], size)
    y = call(sparse_conv, into_channels(x), v.flatten(), b, rows, cols, [shape[0] * size, *shape[1:]], stride, padding, dilation, groups * size, *rest)
    return out_of_channels(y, size, unbatched), 0


def _batch_backward(info, in_dims, grad, input, values, rows, cols, shape, stride, padding, dilation, groups, want, bias_dtype):
    size, full = info.batch_size, len(shape)
    unbatched = logical(input, in_dims[1]) < full
    dy, x = (into_channels(batched(t, d, size, full)) for t, d in ((grad, in_dims[0]), (input, in_dims[1])))
    v = batched(values, in_dims[2], size, 1)
    rows, cols = _repeated(in_dims[3:5], rows, cols, v.shape[1], size)
    dx, dv, db = call(sparse_conv_backward, dy, x, v.flatten(), rows, cols, [shape[0] * size, *shape[1:]], stride, padding, dilation, groups * size,
                      want, bias_dtype)
    dx = out_of_channels(dx, size, unbatched) if want & WANT_INPUT else dx
    dv, db = dv.view(v.shape) if want & WANT_WEIGHT else dv, db.view(size, shape[0]) if want & WANT_BIAS else db
    return (dx, dv, db), tuple(0 if want & bit else None for bit in (WANT_INPUT, WANT_WEIGHT, WANT_BIAS))


sparse_conv = Rule("sparse_conv", 5, _fake_sparse_conv, _save_forward, _gradient_of_forward, _tangent_of_forward, _batch_forward)
sparse_conv_backward = Rule("sparse_conv_backward", 5, _fake_sparse_conv_backward, _save_backward, _gradient_of_backward, _tangent_of_backward,
                            _batch_backward)
