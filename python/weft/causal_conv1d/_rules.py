"""Short causal convolution: derivatives and batching of weft::causal_conv1d, causal_conv1d_backward and causal_conv1d_update.

The second derivative is PyTorch's: the layer is computed once more by its operators, which can be differentiated to any order.
"""
from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor

from weft._core.rules import Rule, _kernels, call, derived, mapped
from weft._core.shapes import fake_of
from weft._core.arguments import BelowAutograd

WANT_X, WANT_PARAMETERS = 1, 2


# ---------------------------------------------------------------------------------------------- the formula by PyTorch's operators

def _wide(t: Optional[Tensor]) -> Optional[Tensor]:
    return t.float() if t is not None and t.dtype in (torch.float16, torch.bfloat16) else t


def _before(x: Tensor, states: Optional[Tensor], width: int) -> Tensor:
    """The tokens with those before them."""
    return torch.cat([x.new_zeros(*x.shape[:2], width - 1) if states is None else states.to(x.dtype), x], 2)


def _linear(x: Tensor, weight: Tensor, bias: Optional[Tensor], seq_idx: Optional[Tensor], states: Optional[Tensor]) -> Tensor:
    """What the activation is applied to, in float32 or wider; 0 for padding."""
    width, length = weight.shape[1], x.shape[2]
    v, w = _wide(_before(x, states, width)), _wide(weight)
    z = v.new_zeros(x.shape) if bias is None else _wide(bias)[:, None].to(v.dtype).expand(x.shape)
    if seq_idx is None:
        for j in range(width):
            z = z + w[:, j, None] * v[:, :, j:j + length]
        return z
    seen = torch.nn.functional.pad(seq_idx, (width - 1, 0), value=-1)
    for j in range(width):
        z = z + torch.where((seen[:, j:j + length] == seq_idx)[:, None], w[:, j, None] * v[:, :, j:j + length], 0)
    return torch.where((seq_idx >= 0)[:, None], z, 0)


def formula(x, weight, bias, seq_idx, states, silu) -> Tensor:
    z = _linear(x, weight, bias, seq_idx, states)
    return (torch.nn.functional.silu(z) if silu else z).to(x.dtype)


def final_states(x: Tensor, states: Optional[Tensor], width: int) -> Tensor:
    return _before(x, states, width)[:, :, x.shape[2]:]


# ---------------------------------------------------------------------------------------------- gradients

def _save_forward(ctx, inputs, output):
    ctx.final, ctx.silu = inputs[5:]
    ctx.set_materialize_grads(False)
    if not ctx.final:
        ctx.mark_non_differentiable(output[1])
    return inputs[:5]


def _gradient_of_forward(ctx, grad, grad_final):
    x, weight, bias, seq_idx, states = ctx.saved_tensors
    if grad is None and grad_final is None:
        return None, None, None, None, None
    of_x, of_weight, of_bias, _, of_states = ctx.needs_input_grad[:5]
    want = WANT_X * (of_x or of_states) + WANT_PARAMETERS * (of_weight or of_bias)
    grad = torch.zeros_like(x) if grad is None else grad
    dx, dw, db, ds = call(causal_conv1d_backward, grad, x, weight, bias, seq_idx, states, grad_final if ctx.final else None, ctx.silu, want)
    return dx if of_x else None, dw if of_weight else None, db if of_bias else None, None, ds if of_states else None


def _slope(z: Tensor) -> Tensor:
    s = torch.sigmoid(z)
    return s * (1 + z * (1 - s))


def _tangent_of_forward(ctx, x, weight, bias, seq_idx, states, dx, dw, db, _, ds):
    moved = []
    if dx is not None or ds is not None:
        moved.append(_linear(torch.zeros_like(x) if dx is None else dx, weight, None, seq_idx, ds))
    if dw is not None or db is not None:
        moved.append(_linear(x, torch.zeros_like(weight) if dw is None else dw, db, seq_idx, states))
    dz = sum(moved[1:], moved[0])
    dy = dz * _slope(_linear(x, weight, bias, seq_idx, states)) if ctx.silu else dz
    of_final = None
    if ctx.final:
        of_final = final_states(torch.zeros_like(x) if dx is None else dx, ds, weight.shape[1])
    return dy.to(x.dtype), of_final


def _backward(grad, x, weight, bias, seq_idx, states, grad_final, silu, want):
    outputs, of = [formula(x, weight, bias, seq_idx, states, silu)], [grad]
    if grad_final is not None:
        outputs, of = [*outputs, final_states(x, states, weight.shape[1])], [grad, grad_final]
    by = [t if want & bit else None for t, bit in ((x, WANT_X), (weight, WANT_PARAMETERS), (bias, WANT_PARAMETERS), (states, WANT_X))]
    found = iter(torch.autograd.grad(outputs, [t for t in by if t is not None], of, create_graph=True, allow_unused=True))
    return tuple(None if t is None else next(found) for t in by)


causal_conv1d = Rule("causal_conv1d", 5, _save_forward, _gradient_of_forward, _tangent_of_forward, mapped("causal_conv1d", 5, 0))
causal_conv1d_backward = Rule("causal_conv1d_backward", 7, *derived(_backward, 7), mapped("causal_conv1d_backward", 7, 0))

# The update has no gradient: it records nothing, whatever its arguments require.
update = torch.ops.weft.causal_conv1d_update.default
torch.library.register_fake("weft::causal_conv1d_update", fake_of("causal_conv1d_update"))


def _update_below(keys: Any, *args: Any) -> Tensor:
    with BelowAutograd():
        return update.redispatch(keys & torch._C._after_autograd_keyset, *args)


_kernels.impl("causal_conv1d_update", _update_below, "Autograd", with_keyset=True)
