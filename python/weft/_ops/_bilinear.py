"""Derivatives of the gradients of an operator that is linear in input, in weight and in bias: they are the operator and its gradients again.

With y the result, dy its gradient and ddx, ddw, ddb the gradients of dx, dw, db:
grad of dy = y(ddx, weight) + y(input, ddw) + y(ddb);  grad of input = dx(dy, ddw);  grad of weight = dw(dy, ddx).
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

WANT_INPUT, WANT_WEIGHT, WANT_BIAS = 1, 2, 4
_BITS = WANT_INPUT, WANT_WEIGHT, WANT_BIAS
Tensors = Sequence[Any]   # each may be None


def gradient_of_backward(needs: Sequence[bool], want: int, tensors: Tensors, doubles: Tensors, steps: Callable, backward: Callable) -> tuple[Any, Any, Any]:
    """tensors: dy, input, weight. steps(dx, dw, db): what small steps of input, weight and bias do to the result; backward(dy, input, weight,
    want): dx, dw and db."""
    grad, input, weight = tensors
    ddx, ddw, ddb = (t if want & bit else None for t, bit in zip(doubles, _BITS))
    return (steps(ddx, ddw, ddb) if needs[0] else None,
            backward(grad, input, ddw, WANT_INPUT)[0] if needs[1] and ddw is not None else None,
            backward(grad, ddx, weight, WANT_WEIGHT)[1] if needs[2] and ddx is not None else None)


def tangent_of_backward(want: int, tensors: Tensors, moves: Tensors, channels: Any, bias_dtype: torch.dtype, backward: Callable) -> tuple[Tensor, ...]:
    """Each result is bilinear: dx in (dy, weight), dw in (dy, input); db is linear in dy."""
    (grad, input, weight), (ddy, dx, dw) = tensors, moves
    moved: list[Any] = [None, None, None]
    for args, some in (((ddy, input, weight), want), ((grad, input, dw), want & WANT_INPUT), ((grad, dx, weight), want & WANT_WEIGHT)):
        if not some or any(t is None for t in args):
            continue
        for i, more in enumerate(backward(*args, some)):
            if some & _BITS[i]:
                moved[i] = more if moved[i] is None else moved[i] + more
    still = ((input, input.shape), (weight, weight.shape), (grad, (channels,)))   # torch.func wants a tangent of every result
    return tuple(m if m is not None else t.new_zeros(shape if want & bit else (0,), dtype=bias_dtype if bit == WANT_BIAS else None)
                 for m, (t, shape), bit in zip(moved, still, _BITS))
