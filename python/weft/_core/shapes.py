"""What the results of an operator are like, without computing them: for torch.compile, fake tensors and the device "meta".

The operator itself is asked, in C, with tensors that have no memory (torch.ops.weft_shapes): it checks its arguments and makes its results as in a
call, so that neither is written again here. Where sizes are symbols it is asked with their hints, and the sizes of the results are those of the table
below, the only arithmetic of output sizes in Python; at the hints they must be the operator's. No guard is made: the kernel checks the sizes of the day.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from . import library as _library

_asked = torch.ops.weft_shapes
_SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)
_HOST = ("batch_sizes",)   # tensors that lie on the CPU whatever the device
_UNKNOWN = 1024            # stands for a size that has no hint


# ---------------------------------------------------------------------------------------------- asking

def _hint(value: Any) -> Any:
    """A size that is likely, or the value itself where it is no symbol."""
    if not isinstance(value, _SYMBOLS):
        return value
    node = value.node
    if node.hint is not None:
        return node.hint
    env = node.shape_env
    seen = env.backed_var_to_val if hasattr(env, "backed_var_to_val") else env.var_to_val
    return int(node.expr.subs({symbol: seen.get(symbol, _UNKNOWN) for symbol in node.expr.free_symbols}))


class Bare:
    """Arguments without memory and without symbols. symbolic: there were some; unknown: one without a hint."""

    def __init__(self) -> None:
        self.symbolic = self.unknown = False

    def size(self, value: Any) -> Any:
        if isinstance(value, _SYMBOLS):
            self.symbolic, self.unknown = True, self.unknown or value.node.hint is None
        return _hint(value)

    def of(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            sizes, strides = [self.size(n) for n in value.shape], [self.size(n) for n in value.stride()]
            with torch._C._DisableTorchDispatch():
                return torch.empty_strided(sizes, strides, dtype=value.dtype, device="meta")
        return [self.of(v) for v in value] if isinstance(value, (list, tuple)) else self.size(value)


def _check_devices(names: Sequence[str], args: Sequence[Any]) -> None:
    home = names.index("input") if "input" in names else 0
    device = args[home].device
    for name, value in zip(names, args):
        several = isinstance(value, (list, tuple))
        for i, t in enumerate(value if several else (value,)):
            if isinstance(t, Tensor) and t.device != device and name not in _HOST:
                whose = "the result" if name.startswith("out") else names[home]
                raise RuntimeError(f"{name}{f'[{i}]' if several else ''}: is on {t.device}, allowed: the device of {whose}, {device}")


def _strides(sizes: Sequence[Any], made: Tensor) -> list[Any]:
    """Of a dense tensor whose axes lie in the order of the one that was made: of equal strides the inner one has the size 1."""
    strides, step = [0] * len(sizes), 1
    for a in sorted(range(len(sizes)), key=lambda a: (made.stride(a), made.shape[a])):
        strides[a] = step
        step = step * (1 if type(sizes[a]) is int and sizes[a] == 0 else sizes[a])
    return strides


def _like(name: str, first: Tensor, made: Tensor, sizes: Sequence[Any] | None) -> Tensor:
    """An empty tensor on the device of the first argument. Results that are not wanted have no elements, whatever the table says."""
    if sizes is None or list(made.shape) == [0]:
        return first.new_empty_strided(made.shape, made.stride(), dtype=made.dtype)
    if [_hint(n) for n in sizes] != list(made.shape):
        raise RuntimeError(f"weft::{name}: the table of weft._core.shapes gives a result of {list(sizes)}, the operator one of {list(made.shape)}")
    return first.new_empty_strided(sizes, _strides(sizes, made), dtype=made.dtype)


def asked(name: str, args: Sequence[Any]) -> tuple[Any, Bare]:
    """What the operator makes of such arguments, without memory; and what was said of them."""
    bare = Bare()
    given = [bare.of(value) for value in args]
    _library.lib.weft_torch_shapes_on_cuda(any(isinstance(value, Tensor) and value.device.type == "cuda" for value in args))
    with torch._C._DisableTorchDispatch():
        return getattr(_asked, name).default(*given), bare


def fake_of(name: str) -> Callable[..., Any]:
    """The function that torch.library.register_fake takes for the operator weft::name."""
    names = [a.name for a in getattr(_asked, name).default._schema.arguments]

    def fake(*args: Any, **named: Any) -> Any:
        args = (*args, *(named[n] for n in names[len(args):]))
        _check_devices(names, args)
        made, bare = asked(name, args)
        if made is None:   # it writes to what it was given
            return None
        several = isinstance(made, (tuple, list))
        results = made if several else (made,)
        sizes = SIZES.get(name, _shape_of(0))(*args) if bare.symbolic else [None] * len(results)
        fakes = tuple(_like(name, args[0], *pair) for pair in zip(results, sizes))
        return fakes if several else fakes[0]
    return fake


# ---------------------------------------------------------------------------------------------- sizes
# For each operator a function of its arguments that returns the sizes of each result; for one that is not in the table, the first argument's. A rule
# may bring its own (weft._core.rules.Rule, sizes).

def _is(size: Any, value: int) -> bool:
    """Sizes of 0 and 1 are never symbols."""
    return type(size) is int and size == value


def _windows(size: Sequence[Any], kernel: Sequence[Any], stride: Sequence[Any], pads: Sequence[Any], dilation: Sequence[Any]) -> list[Any]:
    """pads: low and high of each axis in turn."""
    return [(n + lo + hi - d * (k - 1) - 1) // s + 1 for n, k, s, lo, hi, d in zip(size, kernel, stride, pads[::2], pads[1::2], dilation)]


def least_source(size: Sequence[Any], kernel: Sequence[Any], stride: Sequence[Any], pads: Sequence[Any], dilation: Sequence[Any]) -> list[Any]:
    """The least size that has so many windows: that of a transposed convolution without output_padding."""
    return [(n - 1) * s - lo - hi + d * (k - 1) + 1 for n, k, s, lo, hi, d in zip(size, kernel, stride, pads[::2], pads[1::2], dilation)]


def even(padding: Sequence[Any]) -> list[Any]:
    """Low and high padding from one value an axis."""
    return [p for axis in padding for p in (axis, axis)]


def _conv(input, weight, bias, stride, padding, dilation, *_):
    rank = len(stride)
    channels = 0 if _is(input.shape[-rank - 1], 0) else weight.shape[0]
    return [[*input.shape[:-rank - 1], channels, *_windows(input.shape[-rank:], weight.shape[2:], stride, padding, dilation)]]


def _conv_transpose(input, weight, bias, stride, padding, dilation, groups, act, lo, hi, output_padding):
    rank = len(stride)
    least = least_source(input.shape[-rank:], weight.shape[2:], stride, padding, dilation)
    return [[*input.shape[:-rank - 1], weight.shape[1] * groups, *(n + extra for n, extra in zip(least, output_padding))]]


def _conv_backward(grad_output, input, weight, stride, *_):
    return [input.shape, weight.shape, [weight.shape[0] if _is(grad_output.shape[-len(stride) - 1], 0) else grad_output.shape[-len(stride) - 1]]]


def _partial_conv(input, weight, bias, mask, stride, padding, dilation, groups, act, lo, hi, transposed, output_padding, legacy):
    rank = len(stride)
    y, = _conv_transpose(input, weight, bias, stride, padding, dilation, groups, act, lo, hi, output_padding) if transposed else \
        _conv(input, weight, bias, stride, padding, dilation)
    batch = [] if input.dim() == rank + 1 else [1 if mask is None else mask.shape[0]]
    plane = mask is not None and mask.dim() < input.dim()
    one = mask is None or plane or _is(mask.shape[-rank - 1], 1)
    spatial, channels = y[-rank:], [1 if one else y[-rank - 1]]
    return [y, [*batch, *([] if plane else channels), *spatial], [*batch, 1 if one else groups, *spatial]]


def _sparse_conv(input, values, bias, rows, cols, shape, stride, padding, dilation, *_):
    rank = len(stride)
    return [[*input.shape[:-rank - 1], shape[0], *_windows(input.shape[-rank:], shape[2:], stride, padding, dilation)]]


def _pooled(input, kernel_size, stride, padding, dilation, ceil_mode):
    """In ceil mode the last window must start before the padding at the end."""
    rank = len(kernel_size)
    size = input.shape[-rank:]
    if not ceil_mode:
        return [*input.shape[:-rank], *_windows(size, kernel_size, stride, even(padding), dilation)]
    longer = _windows([n + s - 1 for n, s in zip(size, stride)], kernel_size, stride, even(padding), dilation)
    return [*input.shape[:-rank], *(torch.sym_min(n, (i + p + s - 1) // s) for n, i, p, s in zip(longer, size, padding, stride))]


def _of_source(grad_output, input_size, *_):
    return [[*grad_output.shape[:-len(input_size)], *input_size]]


def _im2col(input, kernel_size, stride, padding, dilation, flat):
    rank = len(kernel_size)
    windows = _windows(input.shape[-rank:], kernel_size, stride, even(padding), dilation)
    *batch, channels = input.shape[:-rank]
    return [[*batch, channels * math.prod(kernel_size), math.prod(windows)] if flat else [*batch, channels, *kernel_size, *windows]]


def _col2im(input, size, kernel_size, stride, padding, dilation, flat):
    *batch, channels = input.shape[:-1 if flat else -2 * len(size)]
    return [[*batch, channels // math.prod(kernel_size) if flat else channels, *size]]


def _rows(input: Tensor) -> list[Any]:
    return [*input.shape[:1], *input.shape[2:]] if input.dim() > 1 else []


def _cross_entropy(input, target, weight, ignore_index, reduction, label_smoothing):
    return [[] if reduction else _rows(input), _rows(input)]


def _rnn_forward(input, h0, c0, weights, biases, batch_sizes, kind, num_layers, dropout, bidirectional, *_):
    out, hidden, dirs = h0.shape[2], (h0 if c0 is None else c0).shape[2], 2 if bidirectional else 1
    kept = {"lstm": 5, "gru": 4}.get(kind, 0) * hidden + out   # of a step and a unit
    return [[*input.shape[:-1], out * dirs], h0.shape, [0] if c0 is None else c0.shape, [num_layers * dirs * math.prod(input.shape[:-1]) * kept]]


def _shape_of(*which: int) -> Callable[..., list[Any]]:
    """Results as these arguments."""
    return lambda *args: [args[i].shape for i in which]


def _channels_of(which: int) -> Callable[..., list[Any]]:
    """One as that argument, and two with a value for each of its channels."""
    return lambda *args: [args[which].shape, args[which].shape[1:2], args[which].shape[1:2]]


SIZES: dict[str, Callable[..., list[Any]]] = {
    **dict.fromkeys(("softmax_backward", "lrn_backward", "ncrelu_backward", "cross_entropy_backward", "sparse_positions"), _shape_of(1)),
    **dict.fromkeys(("dgmm_backward", "cdgmm_backward"), _shape_of(1, 2)),
    "ncrelu": lambda x: [[x.shape[0], 2 * x.shape[1], *x.shape[2:]]],
    "batch_norm_train": _channels_of(0), "batch_norm_backward": _channels_of(1),
    "conv": _conv, "conv_transpose": _conv_transpose, "conv_backward": _conv_backward,
    "partial_conv": _partial_conv, "partial_conv_backward": lambda grad_output, input, weight, mask, sums, *rest: _conv_backward(grad_output, input, weight, *rest),
    "sparse_conv": _sparse_conv, "sparse_conv_backward": lambda grad, x, values, rows, cols, shape, *rest: [x.shape, values.shape, [shape[0]]],
    "sparse_build": lambda weight: [[0], [weight.shape[0] + 1], [0]],   # as many as are not 0
    "max_pool": lambda *args: [_pooled(*args)], "max_pool_index": lambda *args: [_pooled(*args[:-1])] * 2,
    "max_pool_backward": lambda grad_output, index, *rest: _of_source(grad_output, *rest),
    "avg_pool": lambda x, kernel, stride, pads, ceil, *_: [_pooled(x, kernel, stride, pads, [1] * len(kernel), ceil)], "avg_pool_backward": _of_source,
    "adaptive_avg_pool": _of_source, "adaptive_avg_pool_backward": _of_source,
    "causal_conv1d": lambda x, weight, *rest: [x.shape, [*x.shape[:2], weight.shape[1] - 1]],
    "causal_conv1d_backward": lambda grad, x, weight, *rest: [x.shape, weight.shape, weight.shape[:1], [*x.shape[:2], weight.shape[1] - 1]],
    "im2col": _im2col, "col2im": _col2im, "cross_entropy": _cross_entropy, "rnn_forward": _rnn_forward,
    "rnn_backward": lambda x, h0, c0, reserve, dy, dh, dc, weights, biases, *_: [x.shape, h0.shape, [0] if c0 is None else c0.shape, weights.shape,
                                                                                  [0] if biases is None else biases.shape],
}
