"""Derivatives by PyTorch, from a formula of its operators: of second order, and tangents. weft computes what training needs, an operator and its
gradient; what is differentiated further is computed once more by the formula, in float32 or wider, and to any order."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._functorch.eager_transforms import enable_inplace_requires_grad


def wide(t: Any) -> Any:
    return t.float() if t is not None and t.dtype in (torch.float16, torch.bfloat16) else t


def leaf(t: Any) -> Any:
    """The tensor as one that derivatives are taken by, also within torch.func."""
    if t is None or not (t.is_floating_point() or t.is_complex()):
        return t
    with enable_inplace_requires_grad(True):
        return t.view_as(t).requires_grad_()


def _results(made: Any) -> Sequence[Any]:
    return made if isinstance(made, tuple) else (made,)


def gradients(formula: Callable[..., Any], tensors: Sequence[Any], settings: Sequence[Any], grads: Sequence[Any], needs: Sequence[bool]) -> tuple:
    """Those of the tensors that are needed, from the gradients of the formula's results. None stands for a tensor, a result or a gradient that is not
    there."""
    if not any(needs):
        return (None,) * len(needs)
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        leaves = [leaf(t) for t in tensors]
        pairs = [(y, g) for y, g in zip(_results(formula(*leaves, *settings)), grads) if y is not None and g is not None]
        wanted = [t for t, needed in zip(leaves, needs) if needed]
        found = iter(torch.autograd.grad([y for y, _ in pairs], wanted, [g for _, g in pairs], create_graph=again, allow_unused=True)
                     if pairs and wanted else [None] * len(wanted))
    return tuple(next(found) if needed else None for needed in needs)


def tangents(formula: Callable[..., Any], tensors: Sequence[Any], settings: Sequence[Any], steps: Sequence[Any]) -> tuple:
    """What small steps of the tensors do to the results. J s is the derivative of s J' v by v, at any v: the formula needs no forward mode."""
    with torch.enable_grad():
        leaves = [leaf(t) for t in tensors]
        results = _results(formula(*leaves, *settings))
        made = [y for y in results if y is not None]
        at = [leaf(torch.zeros_like(y)) for y in made]
        moving = [(t, s) for t, s in zip(leaves, steps) if s is not None]
        first = torch.autograd.grad(made, [t for t, _ in moving], at, create_graph=True, allow_unused=True)
        pairs = [(f, s) for f, (_, s) in zip(first, moving) if f is not None]
        moved = iter(torch.autograd.grad([f for f, _ in pairs], at, [s for _, s in pairs], create_graph=True, allow_unused=True, materialize_grads=True)
                     if pairs else [torch.zeros_like(y) for y in made])
    return tuple(tensors[0].new_zeros(0) if y is None else next(moved) for y in results)   # torch.func wants a tangent of every result


def derived(formula: Callable[..., Any], tensors: int) -> tuple[Callable, Callable, Callable]:
    """save, gradient and tangent of an operator, as weft._core.rules.Rule takes them. formula: a function of the operator's arguments, the first so many
    of them tensors, that gives its results; None for one without elements."""
    def save(ctx: Any, inputs: tuple, output: Any) -> tuple:
        ctx.settings = inputs[tensors:]
        ctx.set_materialize_grads(False)
        return inputs[:tensors]

    def gradient(ctx: Any, *grads: Any) -> tuple:
        return gradients(formula, ctx.saved_tensors, ctx.settings, grads, ctx.needs_input_grad[:tensors])

    def tangent(ctx: Any, *given: Any) -> Any:
        moved = tangents(formula, given[:tensors], ctx.settings, given[tensors:])
        return moved if len(moved) > 1 else moved[0]
    return save, gradient, tangent


def adjoint(formula: Callable[..., Tensor], tensors: int) -> Callable[..., tuple]:
    """The formula of a gradient operator, a function of a gradient and of the formula's arguments, which gives the gradients of the first so many."""
    def backward(grad: Tensor, *args: Any) -> tuple:
        by = [t for t in args[:tensors] if t is not None]
        found = iter(torch.autograd.grad(formula(*args), by, grad, create_graph=True))
        return tuple(None if t is None else next(found) for t in args[:tensors])
    return backward
