"""Local response normalisation: derivatives and batching of weft::lrn and lrn_backward."""
from __future__ import annotations

import torch

from .._rules import Rule, call
from ._derived import adjoint, derived, wide


# ---------------------------------------------------------------------------------------------- derivatives

def _formula(input, size, alpha, beta, k):
    """What a window reaches beyond the channels counts for nothing."""
    few = min(size, 2 * input.shape[1] + 1) if isinstance(input.shape[1], int) else size
    return torch.nn.functional.local_response_norm(wide(input), few, alpha * few / size, beta, k).to(input.dtype)


def _gradient(ctx, grad):
    return (call(lrn_backward, grad, *ctx.saved_tensors, *ctx.settings),) if grad is not None else (None,)


_save, _, _tangent = derived(_formula, 1)


# ---------------------------------------------------------------------------------------------- batching

def _batches(rule: str, tensors: int):
    """A batch of batches is a larger batch."""
    def batch(info, in_dims, *args):
        data = [t.unsqueeze(0).expand(info.batch_size, *t.shape) if d is None else t.movedim(d, 0) for t, d in zip(args[:tensors], in_dims)]
        shape = data[0].shape[:2]
        return call(globals()[rule], *(t.flatten(0, 1) for t in data), *args[tensors:]).unflatten(0, shape), 0
    return batch


lrn = Rule("lrn", 1, _save, _gradient, _tangent, _batches("lrn", 1))
lrn_backward = Rule("lrn_backward", 2, *derived(adjoint(_formula, 1), 2), _batches("lrn_backward", 2))
