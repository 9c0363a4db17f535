"""The states of sequences that lie one behind the other."""
from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["causal_conv1d_varlen_states", "causal_conv1d_varlen_states_ref"]


def _check(x: Tensor, cu_seqlens: Tensor, state_len: int) -> None:
    for name, t, rank in (("x", x, 2), ("cu_seqlens", cu_seqlens, 1)):
        if not isinstance(t, Tensor):
            raise TypeError(f"causal_conv1d_varlen_states: {name} is {type(t).__name__}, allowed: Tensor")
        if t.dim() != rank:
            raise RuntimeError(f"{name}: has the shape {list(t.shape)}, allowed: {rank} dimension{'s' if rank > 1 else ''}")
    if cu_seqlens.dtype not in (torch.int32, torch.int64):
        raise RuntimeError(f"cu_seqlens: is {str(cu_seqlens.dtype)[6:]}, allowed: int32 or int64")
    if cu_seqlens.shape[0] < 1:
        raise RuntimeError("cu_seqlens: has 0 elements, allowed: one for each sequence and one more")
    if isinstance(state_len, bool) or not isinstance(state_len, (int, torch.SymInt)):
        raise TypeError(f"state_len: is {state_len!r}, allowed: an int")
    if state_len < 0:
        raise RuntimeError(f"state_len: is {state_len}, allowed: 0 or more")
    if cu_seqlens.device.type == "cpu" and not torch.compiler.is_compiling() and not torch._C._are_functorch_transforms_active():
        if cu_seqlens[0] < 0 or cu_seqlens[-1] > x.shape[0] or (cu_seqlens.diff() < 0).any():
            raise RuntimeError(f"cu_seqlens: is {cu_seqlens}, allowed: numbers that do not fall, from 0 to the {x.shape[0]} tokens of x")


def causal_conv1d_varlen_states(x: Tensor, cu_seqlens: Tensor, state_len: int) -> Tensor:
    """The last state_len tokens of each sequence, 0 before its start: (batch, dim, state_len), tokens nearest in memory along dim.

    x: (tokens, dim), all sequences one behind the other; cu_seqlens: (batch + 1,), where each begins and ends.

        >>> x = torch.arange(10.).view(5, 2)
        >>> weft.causal_conv1d.causal_conv1d_varlen_states(x, torch.tensor([0, 1, 5]), 3)[:, 0]
        tensor([[0., 0., 0.],
                [4., 6., 8.]])
    """
    _check(x, cu_seqlens, state_len)
    starts, ends = cu_seqlens[:-1, None].long(), cu_seqlens[1:, None].long()
    at = ends + torch.arange(-state_len, 0, device=x.device)
    inside = (at >= starts) & (at >= 0) & (at < x.shape[0])
    if x.shape[0] == 0:
        return x.new_zeros(at.shape[0], state_len, x.shape[1]).transpose(1, 2)
    tokens = x[torch.where(inside, at, 0)]
    return torch.where(inside[..., None], tokens, 0).transpose(1, 2)


def causal_conv1d_varlen_states_ref(x: Tensor, cu_seqlens: Tensor, state_len: int) -> Tensor:
    """The same, a sequence at a time."""
    _check(x, cu_seqlens, state_len)
    states = x.new_zeros(cu_seqlens.shape[0] - 1, state_len, x.shape[1]).transpose(1, 2)
    for state, start, end in zip(states, map(int, cu_seqlens), map(int, cu_seqlens[1:])):
        kept = min(state_len, end - start)
        state[:, state_len - kept:] = x[end - kept:end].T
    return states
