"""Convolution, transposed convolution and their gradients: shapes, derivatives and batching of weft::conv, conv_transpose, conv_backward."""
from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from .._rules import TYPES, Rule, call, check, check_length, dense, is_last, known
from ._bilinear import WANT_BIAS, WANT_INPUT, WANT_WEIGHT, gradient_of_backward, tangent_of_backward


# ---------------------------------------------------------------------------------------------- shapes

def check_shapes(name: str, input: Tensor, weight: Tensor, geometry: tuple, others: Sequence[tuple[str, Tensor | None]]) -> int:
    """What the kernel checks of every call, in its words. others: further tensors, by name."""
    stride, padding, dilation, groups = geometry
    rank = weight.dim() - 2
    check(1 <= rank <= 3, lambda: f"weight: has {weight.dim()} dimensions, allowed: 3 (1D), 4 (2D) or 5 (3D)")
    check(input.dim() in (rank + 1, rank + 2),
           lambda: f"{name}: has {input.dim()} dimensions, allowed: {rank + 2} (batched) or {rank + 1} (unbatched)")
    check(input.dtype in TYPES, lambda: f"{name}: is {str(input.dtype)[6:]}, allowed: float32, float64, float16 or bfloat16")
    check(weight.dtype == input.dtype, lambda: f"weight: is {str(weight.dtype)[6:]}, allowed: the type of {name}, {str(input.dtype)[6:]}")
    for other, t in (("weight", weight), *others):
        check(t is None or t.device == input.device, lambda: f"{other}: is on {t.device}, allowed: the device of {name}, {input.device}")
    for setting, values, count, least in (("stride", stride, rank, 1), ("padding", padding, 2 * rank, 0), ("dilation", dilation, rank, 1)):
        check(len(values) == count, lambda: f"{setting}: has {len(values)} values, allowed: {count}")
        for a, v in enumerate(values):
            check(v >= least, lambda: f"{setting}: is {v} along spatial axis {a * rank // count}, allowed: {least} to 2^20")
    check(groups >= 1, lambda: f"groups: is {groups}, allowed: 1 to 2^30")
    check(weight.shape[0] % groups == 0, lambda: f"groups: is {groups}, allowed: a divisor of the first dimension of weight, {weight.shape[0]}")
    return rank


def check_results(bias: Tensor | None, input: Tensor, weight: Tensor, channels: Any, spatial: Sequence[Any], least: int) -> None:
    check(channels >= 1, lambda: f"weight: has {channels} output channels, allowed: 1 or more")
    some = known(input.shape[-len(spatial) - 1] > 0) and (input.dim() == len(spatial) + 1 or known(input.shape[0] > 0))
    for a, n in enumerate(spatial):
        check(not some or known(input.shape[a - len(spatial)] > 0),
              lambda: f"input: spatial axis {a} has 0 elements, allowed: 1 or more, but for an empty batch or no channels")
        check(known(n >= least) and known(weight.shape[2 + a] >= 1),
               lambda: f"input: spatial axis {a} has {input.shape[a - len(spatial)]} elements, too few for kernel "
                       f"{weight.shape[2 + a]} with this stride, dilation and padding")
    if bias is not None:
        check_length("bias", bias, channels, "the output channels")
        check(bias.dtype in (input.dtype, torch.float32),
               lambda: f"bias: is {str(bias.dtype)[6:]}, allowed: the type of input, {str(input.dtype)[6:]}, or float32")


def _fake_conv(input, weight, bias, stride, padding, dilation, groups, act, lo, hi):
    rank = check_shapes("input", input, weight, (stride, padding, dilation, groups), [("bias", bias)])
    check(input.shape[-rank - 1] == weight.shape[1] * groups,
           lambda: f"input: has {input.shape[-rank - 1]} channels, allowed with groups={groups} and a weight of ({weight.shape[0]}, {weight.shape[1]}, ...): "
                   f"{weight.shape[1] * groups}")
    spatial = [(input.shape[-rank + a] + padding[2 * a] + padding[2 * a + 1] - dilation[a] * (weight.shape[2 + a] - 1) - 1) // stride[a] + 1
               for a in range(rank)]
    check_results(bias, input, weight, weight.shape[0], spatial, 1)
    channels = weight.shape[0] if known(input.shape[-rank - 1] > 0) else 0
    return dense(input, [*input.shape[:-rank - 1], channels, *spatial], is_last(input, rank), rank)


def _fake_conv_transpose(input, weight, bias, stride, padding, dilation, groups, act, lo, hi, output_padding):
    rank = check_shapes("input", input, weight, (stride, padding, dilation, groups), [("bias", bias)])
    check(input.shape[-rank - 1] == weight.shape[0],
           lambda: f"input: has {input.shape[-rank - 1]} channels, allowed with groups={groups} and a weight of ({weight.shape[0]}, {weight.shape[1]}, ...): "
                   f"{weight.shape[0]}")
    for a in range(rank):
        extra = output_padding[a]
        check(known(extra >= 0) and (known(extra < stride[a]) or known(extra < dilation[a])),
              lambda: f"output_padding: is {extra} along spatial axis {a}, allowed: 0 or more, and less than the stride, {stride[a]}, or than the dilation, "
                      f"{dilation[a]}")
    spatial = [(input.shape[-rank + a] - 1) * stride[a] - padding[2 * a] - padding[2 * a + 1] + dilation[a] * (weight.shape[2 + a] - 1)
               + output_padding[a] + 1 for a in range(rank)]
    empty = input.dim() == rank + 2 and not known(input.shape[0] > 0)
    check_results(bias, input, weight, weight.shape[1] * groups, spatial, 0 if empty else 1)
    # on CUDA PyTorch's result in these cases is channels-first whatever the input is
    first = input.device.type != "cpu" and (rank == 1 or any(known(e >= s) for e, s in zip(output_padding, stride)))
    return dense(input, [*input.shape[:-rank - 1], weight.shape[1] * groups, *spatial], not first and is_last(input, rank), rank)


def _fake_conv_backward(grad_output, input, weight, stride, padding, dilation, groups, transposed, want, bias_dtype):
    rank = check_shapes("input", input, weight, (stride, padding, dilation, groups), [("grad_output", grad_output)])
    check(grad_output.dtype == input.dtype, lambda: f"grad_output: is {str(grad_output.dtype)[6:]}, allowed: the type of input, {str(input.dtype)[6:]}")
    check(grad_output.dim() == input.dim(), lambda: f"grad_output: has {grad_output.dim()} dimensions, allowed: as many as input, {input.dim()}")
    check(bias_dtype in (input.dtype, torch.float32),
           lambda: f"bias_dtype: is {str(bias_dtype)[6:]}, allowed: the type of input, {str(input.dtype)[6:]}, or float32")
    none = [0]
    return (dense(input, input.shape, is_last(input, rank), rank) if want & WANT_INPUT else input.new_empty(none),
            dense(weight, weight.shape, is_last(weight, rank), rank) if want & WANT_WEIGHT else input.new_empty(none),
            input.new_empty([grad_output.shape[-rank - 1] if transposed else weight.shape[0]] if want & WANT_BIAS else none, dtype=bias_dtype))


# ---------------------------------------------------------------------------------------------- gradients

_FORMATS = {torch.float16: "e", torch.float32: "f", torch.float64: "d"}


@lru_cache(maxsize=1024)
def rounded(value: float, dtype: torch.dtype) -> float:
    """A bound as a result of that type holds it. Clipping and rounding to the nearest commute, so a result that sits on its bound equals this.
    Kernels for 16-bit types clip in float32."""
    if dtype in (torch.float16, torch.bfloat16):
        value = rounded(value, torch.float32)
    if dtype == torch.bfloat16:   # the upper half of a float32, to the nearest even
        bits, = struct.unpack("<I", struct.pack("<f", value))
        bits = bits + 0x7FFF + (bits >> 16 & 1) & 0xFFFF0000
        return struct.unpack("<f", struct.pack("<I", bits))[0]
    try:
        return struct.unpack(_FORMATS[dtype], struct.pack(_FORMATS[dtype], value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)


def _save_forward(ctx, inputs, output):
    """For conv and conv_transpose alike: the geometry, the activation, and its result where there is one."""
    input, weight, bias, stride, padding, dilation, groups, act, lo, hi = inputs[:10]
    ctx.geometry = (stride, padding, dilation, groups)
    ctx.act, ctx.lo, ctx.hi = act, lo, hi
    if act == "clip":
        ctx.lo, ctx.hi = rounded(lo, output.dtype), rounded(hi, output.dtype)
    ctx.bias_dtype = input.dtype if bias is None else bias.dtype
    ctx.shape = output.shape
    ctx.transposed = len(inputs) > 10
    return input, weight, output if act else None


def through_act(grad, output, act, lo, hi):
    """The gradient before the activation, from its result: 0 where the result sits on a bound."""
    if act == "relu":
        return torch.ops.aten.threshold_backward(grad, output, 0)
    return torch.ops.aten.hardtanh_backward(grad, output, lo, hi)


def _gradient_of_forward(ctx, grad):
    input, weight, output = ctx.saved_tensors
    if ctx.act:
        grad = through_act(grad, output, ctx.act, ctx.lo, ctx.hi)
    x, w, b = ctx.needs_input_grad[:3]
    want = x * WANT_INPUT + w * WANT_WEIGHT + b * WANT_BIAS
    dx, dw, db = call(conv_backward, grad, input, weight, *ctx.geometry, ctx.transposed, want, ctx.bias_dtype)
    return dx if x else None, dw if w else None, db if b else None


def _save_backward(ctx, inputs, output):
    ctx.rest = inputs[3:]
    ctx.set_materialize_grads(False)
    return inputs[:3]


def linear(transposed, size, input, weight, bias, stride, padding, dilation, groups):
    """The forward operator without activation. size: the spatial size of its result."""
    args = (input, weight, bias, stride, padding, dilation, groups, "", 0.0, 0.0)
    if not transposed:
        return call(conv, *args)
    rank = len(stride)
    least = [(input.shape[-rank + a] - 1) * stride[a] - padding[2 * a] - padding[2 * a + 1] + dilation[a] * (weight.shape[2 + a] - 1) + 1
             for a in range(rank)]
    return call(conv_transpose, *args, [n - m for n, m in zip(size, least)])


def _of_small_steps(transposed, shape, geometry, input, weight, dx, dw, db):
    """What small steps of input, weight and bias (each may be None) do to the result: the operator is linear in each of them."""
    rank, moved = len(geometry[0]), None
    size = shape[-rank:]
    if dw is not None:
        moved, db = linear(transposed, size, input, dw, db, *geometry), None
    if dx is not None:
        more = linear(transposed, size, dx, weight, db, *geometry)
        moved, db = more if moved is None else moved + more, None
    if db is not None:
        moved = db.to(input.dtype).view(-1, *[1] * rank).expand(shape)
    return moved


def _tangent_of_forward(ctx, input, weight, output, dx, dw, db):
    moved = _of_small_steps(ctx.transposed, ctx.shape, ctx.geometry, input, weight, dx, dw, db)
    return through_act(moved, output, ctx.act, ctx.lo, ctx.hi) if ctx.act else moved


def _backward(ctx):
    *geometry, transposed, _, bias_dtype = ctx.rest
    return lambda grad, input, weight, want: call(conv_backward, grad, input, weight, *geometry, transposed, want, bias_dtype)


def _tangent_of_backward(ctx, grad, input, weight, *moves):
    *geometry, transposed, want, bias_dtype = ctx.rest
    return tangent_of_backward(want, (grad, input, weight), moves, grad.shape[-len(geometry[0]) - 1], bias_dtype, _backward(ctx))


def _gradient_of_backward(ctx, *doubles):
    grad, input, weight = ctx.saved_tensors
    *geometry, transposed, want, bias_dtype = ctx.rest

    def steps(dx, dw, db):
        return _of_small_steps(transposed, grad.shape, geometry, input, weight, dx, dw, db)
    return gradient_of_backward(ctx.needs_input_grad, want, (grad, input, weight), doubles, steps, _backward(ctx))


# ---------------------------------------------------------------------------------------------- batching

def batched(t: Tensor, dim: int | None, size: int, full: int) -> Tensor:
    """t with the batch of vmap in front, and of `full` further dimensions: an unbatched image gets a batch of one."""
    t = t.unsqueeze(0).expand(size, *t.shape) if dim is None else t.movedim(dim, 0)
    return t if t.dim() == full + 1 else t.unsqueeze(1)


def into_channels(t: Tensor) -> Tensor:
    return t.movedim(0, 1).flatten(1, 2)


def out_of_channels(t: Tensor, size: int, unbatched: bool) -> Tensor:
    t = t.unflatten(1, (size, t.shape[1] // size)).movedim(1, 0)
    return t.squeeze(1) if unbatched else t


def logical(t: Tensor, dim: int | None) -> int:
    return t.dim() - (dim is not None)


def _batch_forward(rule_name):
    """A batch of inputs under one weight is a larger batch; one with its own weights is more groups."""
    def batch(info, in_dims, input, weight, bias, stride, padding, dilation, groups, *rest):
        size, full = info.batch_size, logical(weight, in_dims[1])
        rule, unbatched = globals()[rule_name], logical(input, in_dims[0]) < full
        x = batched(input, in_dims[0], size, full)
        if in_dims[1] is None and in_dims[2] is None:
            y = call(rule, x.flatten(0, 1), weight, bias, stride, padding, dilation, groups, *rest).unflatten(0, (size, x.shape[1]))
            return (y.squeeze(1) if unbatched else y), 0
        w = batched(weight, in_dims[1], size, full).flatten(0, 1)
        b = None if bias is None else batched(bias, in_dims[2], size, 1).flatten()
        y = call(rule, into_channels(x), w, b, stride, padding, dilation, groups * size, *rest)
        return out_of_channels(y, size, unbatched), 0
    return batch


def _batch_backward(info, in_dims, grad, input, weight, stride, padding, dilation, groups, transposed, want, bias_dtype):
    size, full = info.batch_size, logical(weight, in_dims[2])
    unbatched = logical(input, in_dims[1]) < full
    dy, x = (into_channels(batched(t, d, size, full)) for t, d in ((grad, in_dims[0]), (input, in_dims[1])))
    w = batched(weight, in_dims[2], size, full).flatten(0, 1)
    dx, dw, db = call(conv_backward, dy, x, w, stride, padding, dilation, groups * size, transposed, want, bias_dtype)
    dx = out_of_channels(dx, size, unbatched) if want & WANT_INPUT else dx
    dw = dw.unflatten(0, (size, -1)) if want & WANT_WEIGHT else dw
    db = db.unflatten(0, (size, -1)) if want & WANT_BIAS else db
    return (dx, dw, db), tuple(0 if want & bit else None for bit in (WANT_INPUT, WANT_WEIGHT, WANT_BIAS))


# ---------------------------------------------------------------------------------------------- PyTorch's own

_CONV = (torch.conv1d, torch.conv2d, torch.conv3d)
_CONV_TRANSPOSE = (torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d)


def _is_plain(input, weight, padding, act):
    """A call that PyTorch's function computes, in the format that the operator is told to have: that of the data, whatever the weights'. In
    channels-last it may write outside of its memory, too: python/csrc/seat_conv.c."""
    return not act and padding[::2] == padding[1::2] and input.is_contiguous() and weight.is_contiguous() and weight.stride(-1) == 1


def _native_conv(input, weight, bias, stride, padding, dilation, groups, act, lo, hi):
    if not _is_plain(input, weight, padding, act):
        return NotImplemented
    return _CONV[len(stride) - 1](input, weight, bias, stride, padding[::2], dilation, groups)


def _native_conv_transpose(input, weight, bias, stride, padding, dilation, groups, act, lo, hi, output_padding):
    if not _is_plain(input, weight, padding, act):
        return NotImplemented
    return _CONV_TRANSPOSE[len(stride) - 1](input, weight, bias, stride, padding[::2], output_padding, groups, dilation)


conv = Rule("conv", 3, _fake_conv, _save_forward, _gradient_of_forward, _tangent_of_forward, _batch_forward("conv"), native=_native_conv,
            plain=True)   # to hand five lists over to PyTorch costs more than to ask first
conv_transpose = Rule("conv_transpose", 3, _fake_conv_transpose, _save_forward, _gradient_of_forward, _tangent_of_forward, _batch_forward("conv_transpose"),
                      native=_native_conv_transpose, plain=True)
conv_backward = Rule("conv_backward", 3, _fake_conv_backward, _save_backward, _gradient_of_backward, _tangent_of_backward, _batch_backward)


# ---------------------------------------------------------------------------------------------- torch.utils.flop_counter

def _flops(input, weight, dst, transposed):
    """Two for each product, as PyTorch counts: every position of the smaller side of the convolution sees every weight once for each image."""
    batch = input[0] if len(input) == len(weight) else 1
    return 2 * batch * math.prod((input if transposed else dst)[2 - len(weight):]) * math.prod(weight)


@register_flop_formula(torch.ops.weft.conv)
def _conv_flops(input, weight, *args, out_shape=None, **kwargs):
    return _flops(input, weight, out_shape, False)


@register_flop_formula(torch.ops.weft.conv_transpose)
def _conv_transpose_flops(input, weight, *args, out_shape=None, **kwargs):
    return _flops(input, weight, out_shape, True)


@register_flop_formula(torch.ops.weft.conv_backward)
def _conv_backward_flops(grad_output, input, weight, stride, padding, dilation, groups, transposed, want, *args, out_shape=None, **kwargs):
    """As much for the gradient of the input and of the weights, where they are wanted."""
    return _flops(input, weight, grad_output, transposed) * ((want & 1) + (want >> 1 & 1))
