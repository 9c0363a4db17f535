"""The causal convolution of whole sequences and of the next tokens; and both by PyTorch's operators, to compare with."""
from __future__ import annotations

from typing import Any, Optional, Union

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from weft._core import entry as _entry
from weft._core.arguments import BelowAutograd, in_transform, is_compiling, need_tensors
from weft.causal_conv1d import _rules as _ops   # by its full name: a program may know this package by another one
from weft._core.rules import call, check_writable

__all__ = ["causal_conv1d_fn", "causal_conv1d_ref", "causal_conv1d_update", "causal_conv1d_update_ref"]

_moved_on = torch._C._increment_version if hasattr(torch._C, "_increment_version") else torch.autograd.graph.increment_version
_SILU = {None: False, "silu": True, "swish": True}
_update, _quick, _is_grad_enabled = _ops.update, _entry.update, torch.is_grad_enabled


def _silu(activation: Optional[str]) -> bool:
    try:
        return _SILU[activation]
    except (KeyError, TypeError):
        raise NotImplementedError(f"activation: is {activation!r}, allowed: None, 'silu' or 'swish'") from None


def causal_conv1d_fn(x: Tensor, weight: Tensor, bias: Optional[Tensor] = None, seq_idx: Optional[Tensor] = None,
                     initial_states: Optional[Tensor] = None, return_final_states: bool = False, final_states_out: Optional[Tensor] = None,
                     activation: Optional[str] = None) -> Union[Tensor, tuple[Tensor, Tensor]]:
    """y[b,d,t] = act(bias[d] + sum over k of weight[d,k] * x[b,d,t-(width-1)+k]), in the type of x and in its order in memory.

    x: (batch, dim, seqlen), dense, or with stride 1 along dim, or a slice of a larger tensor. weight: (dim, width), bias: (dim,), in the type of x
    or float32. seq_idx: (batch, seqlen) int32, tokens of different index do not mix, and those of a negative one are padding: result 0, no gradient.
    initial_states: (batch, dim, width - 1), what stands before t = 0. return_final_states: also the last width - 1 tokens, written into
    final_states_out where that is given. activation: None, "silu" or "swish", which are the same.

        >>> x = torch.randn(2, 8, 10)
        >>> y, state = weft.causal_conv1d.causal_conv1d_fn(x, torch.randn(8, 4), return_final_states=True)
        >>> y.shape, state.shape
        (torch.Size([2, 8, 10]), torch.Size([2, 8, 3]))
    """
    tensors = (x, weight, bias, seq_idx, initial_states, final_states_out)
    if has_torch_function(tensors):
        return handle_torch_function(causal_conv1d_fn, tensors, x, weight, bias, seq_idx, initial_states, return_final_states, final_states_out, activation)
    silu = _silu(activation)
    need_tensors("causal_conv1d_fn: {} is", {"x": x, "weight": weight},
                  {"bias": bias, "seq_idx": seq_idx, "initial_states": initial_states, "final_states_out": final_states_out})
    if seq_idx is not None and (initial_states is not None or return_final_states):
        raise AssertionError(f"seq_idx: is given with {'initial_states' if initial_states is not None else 'return_final_states'}, allowed: without states")
    out, final = call(_ops.causal_conv1d, x, weight, bias, seq_idx, initial_states, bool(return_final_states), silu)
    if not return_final_states:
        return out
    if final_states_out is None:
        return out, final
    if final_states_out.shape != final.shape or final_states_out.dtype != final.dtype:
        raise RuntimeError(f"final_states_out: is {list(final_states_out.shape)} of {str(final_states_out.dtype)[6:]}, allowed: {list(final.shape)} "
                           f"of {str(final.dtype)[6:]}")
    return out, final_states_out.copy_(final)


def causal_conv1d_update(x: Tensor, conv_state: Tensor, weight: Tensor, bias: Optional[Tensor] = None, activation: Optional[str] = None,
                         cache_seqlens: Optional[Tensor] = None, conv_state_indices: Optional[Tensor] = None) -> Tensor:
    """The results of new tokens, x (batch, dim) or (batch, dim, seqlen), behind those that conv_state (batch, dim, state_len >= width - 1) holds.

    conv_state is changed in place: shifted, so that its last tokens are the newest; or, with cache_seqlens (batch,) int32, a ring that is written
    from cache_seqlens % state_len on. conv_state_indices (batch,) int32 names for each sequence its row of a larger conv_state; -1 is padding, whose
    result is 0 and which changes no state. Rows must differ. There is no gradient, also where the weight requires one.

        >>> state = torch.zeros(2, 8, 3)
        >>> weft.causal_conv1d.causal_conv1d_update(torch.randn(2, 8), state, torch.randn(8, 4), activation="silu").shape
        torch.Size([2, 8])
    """
    silu = _silu(activation)
    if is_compiling():
        return _update(x, conv_state, weight, bias, cache_seqlens, conv_state_indices, silu)
    out = _quick(x, conv_state, weight, bias, cache_seqlens, conv_state_indices, silu)
    if out is not NotImplemented:
        _moved_on((conv_state,))
        return out
    tensors = (x, conv_state, weight, bias, cache_seqlens, conv_state_indices)
    if has_torch_function(tensors):
        return handle_torch_function(causal_conv1d_update, tensors, x, conv_state, weight, bias, activation, cache_seqlens, conv_state_indices)
    try:
        if conv_state.is_inference():
            check_writable("conv_state", conv_state)
        elif conv_state.requires_grad and _is_grad_enabled():
            raise RuntimeError("conv_state: requires a gradient, allowed: one that does not: it is changed in place")
        if in_transform():
            return _update(*tensors, silu)
        with BelowAutograd():
            out = _update(*tensors, silu)
    except Exception:   # of a wrong kind of argument PyTorch says less
        need_tensors("causal_conv1d_update: {} is", {"x": x, "conv_state": conv_state, "weight": weight},
                      {"bias": bias, "cache_seqlens": cache_seqlens, "conv_state_indices": conv_state_indices})
        raise
    _moved_on((conv_state,))
    return out


# ---------------------------------------------------------------------------------------------- by PyTorch's operators

def causal_conv1d_ref(x: Tensor, weight: Tensor, bias: Optional[Tensor] = None, initial_states: Optional[Tensor] = None,
                      return_final_states: bool = False, final_states_out: Optional[Tensor] = None, activation: Optional[str] = None) -> Any:
    """causal_conv1d_fn by PyTorch's conv1d, computed in the type of the weight."""
    silu, width = _silu(activation), weight.shape[1]
    v = torch.nn.functional.pad(x, (width - 1, 0)) if initial_states is None else torch.cat([initial_states, x], -1)
    z = torch.nn.functional.conv1d(v.to(weight.dtype), weight[:, None], bias, groups=weight.shape[0])
    y = (torch.nn.functional.silu(z) if silu else z).to(x.dtype)
    if not return_final_states:
        return y
    final = v[..., x.shape[-1]:].to(x.dtype)
    return y, final if final_states_out is None else final_states_out.copy_(final)


def causal_conv1d_update_ref(x: Tensor, conv_state: Tensor, weight: Tensor, bias: Optional[Tensor] = None, activation: Optional[str] = None,
                             cache_seqlens: Optional[Tensor] = None) -> Tensor:
    """causal_conv1d_update by PyTorch's operators, one row of the state for each sequence."""
    tokens = x if x.dim() == 3 else x[..., None]
    before, length, many = weight.shape[1] - 1, conv_state.shape[-1], tokens.shape[-1]
    if cache_seqlens is None:
        held = conv_state[..., length - before:]
        moved = torch.cat([conv_state, tokens], -1)[..., many:]
    else:
        start = cache_seqlens.long()[:, None]
        places = (start + torch.arange(-before, 0, device=x.device)) % length
        held = conv_state.gather(2, places[:, None].expand(-1, conv_state.shape[1], -1))
        moved = conv_state.clone()
        for t in range(many):   # in turn: where the ring is shorter than the tokens the last ones stay
            moved.scatter_(2, ((start + t) % length)[:, None].expand(-1, conv_state.shape[1], -1), tokens[..., t:t + 1])
    y = causal_conv1d_ref(tokens, weight, bias, held.clone(), activation=activation)
    conv_state.copy_(moved)
    return y if x.dim() == 3 else y[..., 0]
