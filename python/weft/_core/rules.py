"""The operators of libweft_torch.so made to differentiate, trace and batch.

A rule gathers what one operator needs: the operator itself, and functions written once (what to save, its gradient, its tangent, its
batch). PyTorch gets them as kernels of the operator, which serve torch.compile, torch.func and whoever calls torch.ops.weft; eager code
that only wants a gradient takes a shorter way to the same functions. `call` picks the way. Nothing here touches the elements of a tensor.
weft.functional has the rules, in one file for each family of operators with its functions.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import repeat
from typing import Any

import torch
import torch.autograd.forward_ad as _forward_ad
from torch import Tensor
from torch._functorch.eager_transforms import enable_inplace_requires_grad
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch._functorch.utils import enable_single_level_autograd_function

from . import entry as _entry, traced as _traced
from .shapes import SIZES, fake_of
from .arguments import BelowAutograd, grad_enabled, in_transform, is_compiling

_C = torch._C
_kernels = torch.library.Library("weft", "IMPL")   # registrations live as long as these
_by_torchs = torch.library.Library("weft_torch", "DEF")
_ops = torch.ops.weft
_run = _entry.run
_leaves = _entry.leaves
_is_wrapped = _C._functorch.is_functorch_wrapped_tensor

RULES: dict[str, Rule] = {}   # by the operator's name


class Rule:
    """One operator and its gradient. tensors: how many leading arguments are tensors; only they have gradients.
    What its results are like is asked of the operator: weft._core.shapes; sizes(*args) gives their sizes where those are symbols and not the first tensor's.

    save(ctx, inputs, output) notes what the others need and returns the tensors to keep; gradient(ctx, *grads) returns one gradient for
    each of those tensors; tangent(ctx, *kept, *tangents) is its forward-mode counterpart, given one tangent for each; batch(info, in_dims,
    *args) is its form under vmap. Without a tangent or a batch, forward mode or vmap is refused with the operator's name. A result that has
    no gradient is told so by save, with ctx.mark_non_differentiable. Both Functions are applied without the preparations for torch.func,
    which cost 2.5 us of 14: the short one is not used there, and the kernel is called by torch.func, once for each of its levels.
    by_torch(*args) computes the operator's results by PyTorch's own operators, where it has them: the operator calls it where the planner has chosen
    PyTorch, and says itself for which arguments (python/csrc, torch_takes); None stands for a result that is not wanted. native(*args) is PyTorch's own
    function of the same arguments; NotImplemented: not for these. It is called in place of the operator where the planner leaves all of a call to
    PyTorch: its gradient is C++, and a Function around it would only cost time. plain(*args): the same where no gradient is wanted.
    """

    __slots__ = ("op", "number", "out", "outs", "tensors", "apply", "native", "plain", "in_graph")

    def __init__(self, name: str, tensors: int, save: Callable, gradient: Callable, tangent: Callable | None = None,
                 batch: Callable | None = None, by_torch: Callable | None = None, native: Callable | None = None,
                 plain: Callable | None = None, sizes: Callable | None = None) -> None:
        op = getattr(_ops, name).default
        RULES[name] = self
        if sizes is not None:
            SIZES[name] = sizes
        self.native, self.plain = native, plain
        self.op, self.number, self.tensors = op, _entry.number(name), tensors
        self.out, self.outs = _register_out(name)
        torch.library.register_fake(f"weft::{name}", fake_of(name))
        if by_torch is not None:
            _register_torch(op, name, by_torch)
        self.in_graph = in_graph = _traced.graph_form(name, by_torch)

        def forward(ctx: Any, *packed: Any) -> Any:
            """Settings come as one argument: each argument of a Function costs time, also on the way back."""
            args = (*packed[:-1], *packed[-1])
            with BelowAutograd():
                output = op(*args)
            ctx.save_for_backward(*save(ctx, args, output))
            return output

        def forward_in_kernel(ctx: Any, *packed: Any) -> Any:
            """A Function turns gradients off, but the outer levels of torch.func run inside of it: to them the caller's mode holds, and
            their own for tangents, which are off while this level computes one."""
            *inputs, (keys, grad_mode, settings) = packed
            args = (*inputs, *settings)
            with BelowAutograd(), torch.set_grad_enabled(grad_mode), _forward_ad._set_fwd_grad_enabled(True):
                output = in_graph(*args) if _traced.is_wanted() else op.redispatch(keys & _C._after_autograd_keyset, *args)
            kept = save(ctx, args, output)
            ctx.save_for_backward(*kept)
            ctx.save_for_forward(*kept)
            return output

        def backward(ctx: Any, *grads: Any) -> Any:
            return gradient(ctx, *grads) + (None,)

        def jvp(ctx: Any, *tangents: Any) -> Any:
            """PyTorch turns tangents off here, which would also drop those of the outer levels; without their own, what was kept can do with them on."""
            if tangent is None:
                raise RuntimeError(f"weft::{name}: has no forward-mode derivative; use reverse mode")
            kept = [None if t is None else _forward_ad.unpack_dual(t, level=0).primal for t in ctx.saved_tensors]
            with _forward_ad._set_fwd_grad_enabled(True):
                return tangent(ctx, *kept, *tangents[:-1])

        def applied(suffix: str, **methods: Callable) -> Callable:
            function = type(f"weft_{name}{suffix}", (torch.autograd.Function,), {k: staticmethod(f) for k, f in methods.items()})
            return super(torch.autograd.Function, function).apply

        self.apply = applied("", forward=forward, backward=backward)
        in_kernel = applied("_kernel", forward=forward_in_kernel, backward=backward, jvp=jvp)

        def kernel(keys: Any, *args: Any) -> Any:
            with enable_single_level_autograd_function():
                return in_kernel(*args[:tensors], (keys, grad_enabled(), args[tensors:]))
        _kernels.impl(name, kernel, "Autograd", with_keyset=True)
        torch.library.register_vmap(op, batch or _refuse_batch(name))


def linear(name: str, adjoint: str, settings: Callable[..., tuple], batch: Callable, **options: Any) -> Rule:
    """The rule of an operator of one tensor that it is linear in: nothing is kept. settings(*args): what its adjoint, another rule, takes besides a
    tensor."""
    def save(ctx: Any, inputs: tuple, output: Any) -> tuple:
        ctx.own, ctx.other = inputs[1:], settings(*inputs)
        return ()

    def gradient(ctx: Any, grad: Any) -> tuple:
        return call(RULES[adjoint], grad, *ctx.other),

    def tangent(ctx: Any, step: Any) -> Any:
        return call(RULES[name], step, *ctx.own)
    return Rule(name, 1, save, gradient, tangent, batch, **options)


def in_front(t: Tensor, dim: int | None, size: int) -> Tensor:
    """With the dimension of vmap as the first, made where there is none."""
    return t.unsqueeze(0).expand(size, *t.shape) if dim is None else t.movedim(dim, 0)


def _joined(made: Any, join: Callable) -> Any:
    """Results and the dimension of vmap in each, as PyTorch takes them."""
    return (tuple(map(join, made)), (0,) * len(made)) if isinstance(made, tuple) else (join(made), 0)


def _is_at_rest(tensors: Sequence[Any]) -> bool:
    """Nobody differentiates or transforms what is done with these: their operators may run as outside of torch.func, in a tenth of the time."""
    if is_compiling() or _forward_ad._current_level >= 0:
        return False
    return not any(t is not None and (_is_wrapped(t) or (t.requires_grad and grad_enabled())) for t in tensors)


def mapped(name: str, tensors: int = 1, data: int | None = None, unbatched: Callable[..., int] | None = None, shared: dict[int, str] = {}) -> Callable:
    """The form under vmap of an operator. If none but the first `data` tensors are mapped (None: any), a batch of batches is a larger one; else there is
    a call for each. unbatched(*settings): how many dimensions the first tensor has without a batch, for operators that take such; vmap's is then the
    batch. shared: by their places, tensors that may not be mapped, and the words of the error."""
    data = tensors if data is None else data

    def batch(info: Any, in_dims: Any, *args: Any) -> Any:
        rule, size, settings = RULES[name], info.batch_size, args[tensors:]
        for place, why in shared.items():
            if in_dims[place] is not None:
                raise RuntimeError(f"weft::{name}: {why}")
        if data and all(d is None for d in in_dims[data:tensors]):
            given = [in_front(t, d, size) for t, d in zip(args[:data], in_dims)]
            folded = unbatched is None or given[0].dim() > unbatched(*settings) + 1
            made = call(rule, *[t.flatten(0, 1) for t in given] if folded else given, *args[data:])
            return _joined(made, lambda t: t.unflatten(0, given[0].shape[:2]) if folded else t)
        if size == 0:
            raise RuntimeError(f"weft::{name}: is mapped over a dimension of 0 by torch.vmap, allowed: 1 or more")
        with temporarily_clear_interpreter_stack() if _is_at_rest(args[:tensors]) else nullcontext():
            slices = zip(*[repeat(t) if d is None else t.unbind(d) for t, d in zip(args[:tensors], in_dims)])
            each = [call(rule, *some, *settings) for some in slices]
        return _joined(tuple(zip(*each)) if isinstance(each[0], tuple) else each, torch.stack)
    return batch


def _refuse_batch(name: str) -> Callable:
    def batch(info: Any, in_dims: Any, *args: Any) -> Any:
        raise RuntimeError(f"weft::{name}: cannot be mapped over a dimension by torch.vmap; call it on the whole batch")
    return batch


def _register_out(name: str) -> tuple[Any, int]:
    """The operator's form with given results, where it has one, and how many are given."""
    out = getattr(_ops, name + "_out", None)
    if out is None:
        return None, 0
    torch.library.register_fake(f"weft::{name}_out", fake_of(f"{name}_out"))
    return out.default, sum(a.alias_info is not None and a.name.startswith("out") for a in out.default._schema.arguments)


def _register_torch(op: Any, name: str, function: Callable) -> None:
    """weft_torch::name, which the operator calls where PyTorch has won (python/csrc/torch.c)."""
    words = [i for i, a in enumerate(op._schema.arguments) if str(a.type) == "str"]

    def run(*args: Any) -> Any:
        if words:
            given = list(args)
            for i in words:   # the letters of a word come as a number
                given[i] = given[i].to_bytes(8, "little").rstrip(b"\0").decode()
            args = tuple(given)
        with _C.DisableTorchFunction(), BelowAutograd():
            made = function(*args)
        if type(made) is tuple:
            for t in made:
                if t is None:
                    return tuple([args[0].new_empty(0) if t is None else t for t in made])
        return made
    _by_torchs.define(str(op._schema).removeprefix("weft::").replace("str ", "int "))
    for key in ("CPU", "CUDA"):
        _by_torchs.impl(name, run, key)


def _out_of_memory(error: RuntimeError) -> bool:
    """An operator can only raise RuntimeError; code that halves its batch when a GPU is full waits for another kind."""
    text = str(error)
    return "could not allocate" in text and " on cuda" in text


def _by_torch(rule: Rule, function: Callable | None, gradient: bool, args: tuple) -> Any:
    """By PyTorch's own function, if the planner leaves forward and gradient to it; else NotImplemented. Past the seat of weft.enable(), which would
    only ask again."""
    if function is None or not _leaves(rule.number, gradient, *args):
        return NotImplemented
    _entry.bypass(True)
    try:
        result = function(*args)
    finally:
        _entry.bypass(False)
    if result is not NotImplemented:
        _entry.torchs()
    return result


def call(rule: Rule, *args: Any) -> Any:
    """Run the rule's operator in the way that the caller's context needs."""
    if is_compiling():
        return rule.op(*args)
    try:
        if in_transform() or _forward_ad._current_level >= 0:
            return rule.op(*args)
        if grad_enabled():
            inputs = args[:rule.tensors]
            for t in inputs:
                if t is not None and t.requires_grad:
                    result = _by_torch(rule, rule.native, True, args)
                    return rule.apply(*inputs, args[rule.tensors:]) if result is NotImplemented else result
        result = _by_torch(rule, rule.plain, False, args)
        if result is NotImplemented:
            result = _run(rule.number, *args)
        if result is NotImplemented:
            with BelowAutograd():   # PyTorch 2.11 does not say that it is compiling while it traces the gradients of a graph
                return rule.in_graph(*args) if _traced.is_wanted() else rule.op(*args)
        return result
    except RuntimeError as error:
        if not _out_of_memory(error):
            raise
        raise torch.OutOfMemoryError(str(error)) from None


def check_writable(name: str, t: Tensor) -> None:
    """What PyTorch's own operators refuse to write to."""
    if t.is_inference() and not torch.is_inference_mode_enabled():
        raise RuntimeError(f"{name}: was made in inference mode, allowed outside of it: a tensor that was not, as its clone()")


def call_into(rule: Rule, out: Any, *args: Any) -> Any:
    """Run the rule's operator into a tensor (a pair, where it has two results) that the caller gives, in any strides; there is no gradient
    that way."""
    given = (out,) if rule.outs == 1 else out
    if not isinstance(given, (tuple, list)) or len(given) != rule.outs or not all(isinstance(t, Tensor) for t in given):
        got = f"{len(given)} of {[type(t).__name__ for t in given]}" if rule.outs > 1 and isinstance(given, (tuple, list)) else type(out).__name__
        raise TypeError(f"out: is {got}, allowed: {'Tensor' if rule.outs == 1 else f'{rule.outs} tensors'} or None")
    if grad_enabled() and (any(t.requires_grad for t in given) or any(t is not None and t.requires_grad for t in args[:rule.tensors])):
        raise RuntimeError("out: given with a tensor that requires grad, allowed: results without a gradient; call under torch.no_grad()")
    if is_compiling():
        rule.out(*args, *given)
        return out
    for t in given:
        check_writable("out", t)
        if t.is_neg():
            raise RuntimeError("out: is a view whose elements are the negatives of its memory, allowed: one that holds them as they are")
    with BelowAutograd():
        rule.out(*args, *given)
    torch.autograd.graph.increment_version(given)
    return out


# ---------------------------------------------------------------------------------------------- shapes

def is_last(t: Tensor, rank: int) -> bool:
    """Channels-last memory, by the rule of python/csrc/view.c; channels-first where sizes that nobody knows yet decide."""
    channel, pixel = t.stride(-rank - 1), t.stride(-1)
    if type(channel) is type(pixel) is int:
        return 0 < channel < pixel or (0 < channel == pixel and t.shape[-rank - 1] == 1 and t.shape[-1] > 1)
    from torch.fx.experimental.symbolic_shapes import guard_or_false   # fakes need it, and slow to import
    if not guard_or_false(channel > 0):
        return False
    return guard_or_false(channel < pixel) or (guard_or_false(channel == pixel) and guard_or_false(t.shape[-rank - 1] == 1)
                                               and guard_or_false(t.shape[-1] > 1))


# ---------------------------------------------------------------------------------------------- derivatives by PyTorch
# From a formula of its operators: of second order, and tangents. weft computes what training needs, an operator and its gradient; what is differentiated
# further is computed once more by the formula, in float32 or wider, and to any order.

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


def derived(formula: Callable[..., Any], tensors: int, backward: str = "") -> tuple[Callable, Callable, Callable]:
    """save, gradient and tangent of an operator, as weft._core.rules.Rule takes them. formula: a function of the operator's arguments, the first so many
    of them tensors, that gives its results; None for one without elements. backward: the operator that is the gradient of one tensor;
    "": the formula is differentiated."""
    def save(ctx: Any, inputs: tuple, output: Any) -> tuple:
        ctx.settings = inputs[tensors:]
        ctx.set_materialize_grads(False)
        return inputs[:tensors]

    def gradient(ctx: Any, *grads: Any) -> tuple:
        if backward:
            return None if grads[0] is None else call(RULES[backward], *grads, *ctx.saved_tensors, *ctx.settings),
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
