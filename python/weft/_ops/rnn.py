"""Recurrent layers: derivatives of weft::rnn_forward and rnn_backward.

The second derivative and the tangent are PyTorch's: the layers are computed once more by its operators, which can be differentiated to any
order. With dropout there are none, because that computation would drop other elements.
"""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Optional

import torch
from torch import Tensor

from .._core.rules import Rule, call
from ._derived import gradients, tangents

KINDS = ("rnn_relu", "rnn_tanh", "lstm", "gru")   # in the order of python/csrc/rnn.c
TWINS = {kind: getattr(torch._VF, kind) for kind in KINDS}
_GATES = {"lstm": 4, "gru": 3}


# ---------------------------------------------------------------------------------------------- parameters

def shapes(kind: str, inputs: Any, hidden: Any, out: Any, num_layers: int, bidirectional: bool, has_biases: bool) -> list[tuple]:
    """Of the parameters, in PyTorch's order. inputs, hidden, out: the widths of the input, of the cells, and of their results."""
    gates, dirs = _GATES.get(kind, 1) * hidden, 2 if bidirectional else 1
    made: list[tuple] = []
    for layer in range(num_layers):
        for _ in range(dirs):
            made += [(gates, dirs * out if layer else inputs), (gates, out), *([(gates,)] * 2 if has_biases else ()), *([(out, hidden)] if out != hidden else ())]
    return made


def gathered(params: Sequence[Tensor]) -> tuple[Tensor, Optional[Tensor]]:
    """The vectors of weights and biases that the operators take."""
    weights: list[Tensor] = []
    biases: list[Tensor] = []
    for p in params:
        (weights if p.dim() == 2 else biases).append(p.reshape(-1))
    return torch.cat(weights), torch.cat(biases) if biases else None


def _apart(weights: Tensor, biases: Optional[Tensor], settings: Sequence[Any], x: Tensor, h: Tensor, c: Optional[Tensor]) -> list[Tensor]:
    """The two vectors as parameters."""
    kind, num_layers, _, bidirectional = settings[:4]
    made = shapes(kind, x.shape[-1], (h if c is None else c).shape[-1], h.shape[-1], num_layers, bidirectional, biases is not None)
    vectors = {rank: iter(() if v is None else v.split([math.prod(s) for s in made if len(s) == rank])) for rank, v in ((2, weights), (1, biases))}
    return [next(vectors[len(s)]).view(s) for s in made]


# ---------------------------------------------------------------------------------------------- gradients

def _save_forward(ctx, inputs, output):
    *given, batch_sizes, ctx.settings = *inputs[:6], inputs[6:-1]
    ctx.keep = inputs[-1]
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(*(output[3:] if given[2] is not None else output[2:]))
    return *given[:3], output[3], *given[3:], batch_sizes


def _gradient_of_forward(ctx, grad_output, grad_hn, grad_cn, _):
    input, h0, c0, reserve, weights, biases, batch_sizes = ctx.saved_tensors
    if not ctx.keep:
        raise RuntimeError("weft::rnn_forward: keep is False, allowed: True where a gradient is wanted")
    grads = call(rnn_backward, input, h0, c0, reserve, grad_output, grad_hn, grad_cn, weights, biases, batch_sizes, *ctx.settings)
    return tuple(g if needed else None for g, needed in zip(grads, ctx.needs_input_grad))


def _save_backward(ctx, inputs, output):
    ctx.settings = inputs[10:]
    ctx.set_materialize_grads(False)
    if inputs[2] is None:
        ctx.mark_non_differentiable(output[2])
    return inputs[:10]


def _layers(x, h, c, weights, biases, batch_sizes, settings):
    """The layers by PyTorch's operators, of the kind that can be differentiated twice: cuDNN's and oneDNN's cannot. The flags are of the
    process, as PyTorch's are; another thread that reads them meanwhile computes the same without these libraries."""
    kind, num_layers, _, bidirectional, batch_first = settings[:5]
    while batch_sizes is not None and torch._C._functorch.is_functorch_wrapped_tensor(batch_sizes):   # PyTorch reads their memory
        batch_sizes = torch._C._functorch.get_unwrapped(batch_sizes)
    hx, rest = (h, c) if kind == "lstm" else h, (_apart(weights, biases, settings, x, h, c), biases is not None, num_layers, 0.0, True, bidirectional)
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


def _backward(x, h, c, grad_output, grad_hn, grad_cn, weights, biases, *rest):
    """The gradients of x, h, c and the parameters."""
    pairs = [(y, g) for y, g in zip(_layers(x, h, c, weights, biases, *rest), (grad_output, grad_hn, grad_cn)) if g is not None]
    by = (x, h, c, weights, biases)
    found = iter(torch.autograd.grad([y for y, _ in pairs], [t for t in by if t is not None], [g for _, g in pairs], create_graph=True, allow_unused=True))
    return tuple(None if t is None else next(found) for t in by)


def _gradient_of_backward(ctx, ddx, ddh, ddc, ddw, ddb):
    _refuse_dropout("rnn_backward", "second derivative", ctx.settings[2])
    x, h, c, _, *tensors, batch_sizes = ctx.saved_tensors
    second, needs = (ddx, ddh, None if c is None else ddc, ddw, None if tensors[-1] is None else ddb), ctx.needs_input_grad[:9]
    found = gradients(_backward, (x, h, c, *tensors), (batch_sizes, ctx.settings), second, (*needs[:3], *needs[4:]))
    return (*found[:3], None, *found[3:])


def _tangent_of_forward(ctx, x, h, c, _, weights, biases, batch_sizes, *steps):
    """PyTorch has no forward mode here: its cells on CUDA are fused, with a gradient only."""
    _refuse_dropout("rnn_forward", "forward-mode derivative", ctx.settings[2])
    moved = tangents(_layers, (x, h, c, weights, biases), (batch_sizes, ctx.settings), steps)
    return (*moved, *[None] * (4 - len(moved)))


rnn_forward = Rule("rnn_forward", 5, _save_forward, _gradient_of_forward, _tangent_of_forward)
rnn_backward = Rule("rnn_backward", 9, _save_backward, _gradient_of_backward)
