"""Local response normalisation: derivatives and batching of weft::lrn and lrn_backward."""
from __future__ import annotations

import torch

from .._rules import Rule, call, larger_batch
from ._derived import adjoint, derived, wide


def _formula(input, size, alpha, beta, k):
    """What a window reaches beyond the channels counts for nothing."""
    few = min(size, 2 * input.shape[1] + 1) if isinstance(input.shape[1], int) else size
    return torch.nn.functional.local_response_norm(wide(input), few, alpha * few / size, beta, k).to(input.dtype)


def _gradient(ctx, grad):
    return (call(lrn_backward, grad, *ctx.saved_tensors, *ctx.settings),) if grad is not None else (None,)


_save, _, _tangent = derived(_formula, 1)


lrn = Rule("lrn", 1, _save, _gradient, _tangent, larger_batch("lrn"))
lrn_backward = Rule("lrn_backward", 2, *derived(adjoint(_formula, 1), 2), larger_batch("lrn_backward", 2))
