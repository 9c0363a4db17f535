"""Recurrent layers: derivatives of weft::rnn_forward and rnn_backward.

The second derivative and the tangent are PyTorch's: the layers are computed once more by its operators, which can be differentiated to any
order. With dropout there are none, because that computation would drop other elements.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

import torch
from torch import Tensor

from .._core.rules import Rule, call
from ._derived import gradients, tangents

KINDS = ("rnn_relu", "rnn_tanh", "lstm", "gru")   # in the order of python/csrc/rnn.c
TWINS = {kind: getattr(torch._VF, kind) for kind in KINDS}
_LEAD = 7   # tensors of rnn_backward before its parameters


# ---------------------------------------------------------------------------------------------- gradients

def _apart(weights: Optional[Tensor], biases: Optional[Tensor], params: Sequence[Tensor]) -> list[Optional[Tensor]]:
    """The two vectors as views in the shapes of the parameters."""
    pieces = {rank: None if vector is None else iter(vector.split([p.numel() for p in params if p.dim() == rank] or [0]))
              for rank, vector in ((2, weights), (1, biases))}
    return [None if pieces[p.dim()] is None else next(pieces[p.dim()]).view(p.shape) for p in params]   # type: ignore[arg-type]


def _save_forward(ctx, inputs, output):
    input, h0, c0, params, batch_sizes, *ctx.settings, ctx.keep = inputs
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(*(output[3:] if c0 is not None else output[2:]))
    return (input, h0, c0, output[3], batch_sizes, *params)


def _gradient_of_forward(ctx, grad_output, grad_hn, grad_cn, _):
    input, h0, c0, reserve, batch_sizes, *params = ctx.saved_tensors
    if not ctx.keep:
        raise RuntimeError("weft::rnn_forward: keep is False, allowed: True where a gradient is wanted")
    dx, dh, dc, weights, biases = call(rnn_backward, input, h0, c0, reserve, grad_output, grad_hn, grad_cn, params, batch_sizes, *ctx.settings)
    grads = (dx, dh, None if c0 is None else dc, *_apart(weights, biases, params))
    return tuple(g if needed else None for g, needed in zip(grads, ctx.needs_input_grad))


def _save_backward(ctx, inputs, output):
    *lead, params, batch_sizes, ctx.settings = *inputs[:_LEAD + 2], inputs[_LEAD + 2:]
    ctx.set_materialize_grads(False)
    if ctx.settings[0] != "lstm":
        ctx.mark_non_differentiable(output[2])
    return (*lead, batch_sizes, *params)


def _recompute(settings, x, h, c, batch_sizes, params):
    """The layers by PyTorch's operators, of the kind that can be differentiated twice: cuDNN's and oneDNN's cannot. The flags are of the
    process, as PyTorch's are; another thread that reads them meanwhile computes the same without these libraries."""
    kind, has_biases, num_layers, _, bidirectional, batch_first = settings[:6]
    while batch_sizes is not None and torch._C._functorch.is_functorch_wrapped_tensor(batch_sizes):   # PyTorch reads their memory
        batch_sizes = torch._C._functorch.get_unwrapped(batch_sizes)
    hx, rest = (h, c) if kind == "lstm" else h, (params, has_biases, num_layers, 0.0, True, bidirectional)
    onednn = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        with torch.backends.cudnn.flags(enabled=False):
            return TWINS[kind](x, hx, *rest, batch_first) if batch_sizes is None else TWINS[kind](x, batch_sizes, hx, *rest)
    finally:
        torch._C._set_mkldnn_enabled(onednn)


def _refuse_dropout(name, what, dropout):
    if dropout > 0:
        raise RuntimeError(f"weft::{name}: has no {what} with dropout {dropout:g}, allowed: 0, or PyTorch's kernels (weft.backends, delegate)")


def _layers(x, h, c, *rest):
    *params, batch_sizes, settings = rest
    return _recompute(settings, x, h, c, batch_sizes, params)


def _backward(x, h, c, grad_output, grad_hn, grad_cn, *rest):
    """The gradients of x, h, c and the parameters."""
    pairs = [(y, g) for y, g in zip(_layers(x, h, c, *rest), (grad_output, grad_hn, grad_cn)) if g is not None]
    by = (x, h, c, *rest[:-2])
    found = iter(torch.autograd.grad([y for y, _ in pairs], [t for t in by if t is not None], [g for _, g in pairs], create_graph=True, allow_unused=True))
    return tuple(None if t is None else next(found) for t in by)


def _gradient_of_backward(ctx, ddx, ddh, ddc, weights, biases):
    _refuse_dropout("rnn_backward", "second derivative", ctx.settings[3])
    x, h, c, _, *grads, batch_sizes = ctx.saved_tensors[:_LEAD + 1]
    params, needs = ctx.saved_tensors[_LEAD + 1:], ctx.needs_input_grad[:-1]
    second = [ddx, ddh, ddc if c is not None else None, *_apart(weights, biases, params)]
    found = gradients(_backward, (x, h, c, *grads, *params), (batch_sizes, ctx.settings), second, (*needs[:3], *needs[4:]))
    return (*found[:3], None, *found[3:])


def _tangent_of_forward(ctx, x, h, c, _, batch_sizes, *rest):
    """PyTorch has no forward mode here: its cells on CUDA are fused, with a gradient only."""
    _refuse_dropout("rnn_forward", "forward-mode derivative", ctx.settings[3])
    many = (len(rest) - 3) // 2
    moved = tangents(_layers, (x, h, c, *rest[:many]), (batch_sizes, ctx.settings), rest[many:])
    return (*moved, *[None] * (4 - len(moved)))


rnn_forward = Rule("rnn_forward", 3, _save_forward, _gradient_of_forward, _tangent_of_forward, listed=True)
rnn_backward = Rule("rnn_backward", _LEAD, _save_backward, _gradient_of_backward, listed=True)
