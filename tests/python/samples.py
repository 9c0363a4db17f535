"""Samples that PyTorch's authors wrote for the twins: where they come from, how a function and its twin are run on one, and what must agree.

They lie in torch.testing._internal, which is no public interface and imports numpy. numpy is found beside the interpreter (tests/venv.sh puts
it into a directory of its own, so that the other tests prove that weft does without); if it is missing the tests are skipped, and say so.
"""
from __future__ import annotations

import functools
import importlib.util
import inspect
import os
import random
import re
import sys
import types
import unittest
import warnings
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Optional

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_flatten, tree_map

from cases import DTYPES, tolerance

SLOW = os.environ.get("WEFT_SLOW", "0") not in ("", "0")   # make slow: many more of them
MOST = 64 if SLOW else 12    # samples of one test; where there are more, a draw that is the same each time
FEW = 32 if SLOW else 8      # of one that goes through each in many ways
KINDS = (RuntimeError, ValueError, TypeError)
LARGEST = 50000  # elements of a sample; a few go to a million, which shows no more
SHOWN = 5        # failing samples that a test prints


# ------------------------------------------------------------------------------------------------------- where samples come from

@functools.lru_cache(maxsize=None)
def internals(name: str) -> Any:
    """A module of torch.testing._internal. What its import changes for the whole process is changed back."""
    if "numpy" not in sys.modules and importlib.util.find_spec("numpy") is None:
        beside = Path(sys.prefix) / "samples"
        if not (beside / "numpy").is_dir():
            pytest.skip(f"torch.testing._internal needs numpy, which is neither installed nor in {beside}: tests/venv.sh puts it there")
        sys.path.append(str(beside))
        try:
            importlib.import_module("numpy")
        finally:
            sys.path.remove(str(beside))
    if "expecttest" not in sys.modules and importlib.util.find_spec("expecttest") is None:
        stand_in = types.ModuleType("expecttest")    # common_utils derives a class from expecttest.TestCase, which nothing here uses
        stand_in.TestCase = unittest.TestCase        # type: ignore[attr-defined]
        sys.modules["expecttest"] = stand_in
    calls = {kind: kind.__call__ for kind in (torch._C.ScriptFunction, torch._C.ScriptMethod)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = importlib.import_module(f"torch.testing._internal.{name}")
    for kind, call in calls.items():
        kind.__call__ = call                         # type: ignore[method-assign]
    setattr(torch.backends, "__allow_nonbracketed_mutation_flag", True)
    return module


def wanted(module: Any, name: str) -> Any:
    """What weft has under the name of a twin; a name that is missing is a failure."""
    found = getattr(module, name, None)
    if found is None:
        pytest.fail(f"{module.__name__}.{name} is missing")
    return found


@dataclass
class Sample:
    """The arguments of one call."""

    args: tuple
    kwargs: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return ", ".join([*map(_show, self.args), *(f"{k}={_show(v)}" for k, v in self.kwargs.items())])

    def map(self, change: Callable[[Any], Any]) -> Sample:
        leaf = lambda v: PackedSequence(*map(change, v)) if isinstance(v, PackedSequence) else change(v)
        return Sample(*tree_map(leaf, (self.args, self.kwargs)))

    @property
    def tensors(self) -> list[Tensor]:
        return _tensors(flat((self.args, self.kwargs)))


def flat(value: Any) -> list[Any]:
    """What a nest of tuples, lists, dicts and packed sequences holds."""
    return [v for leaf in tree_flatten(value)[0] for v in (leaf if isinstance(leaf, PackedSequence) else (leaf,))]


def _tensors(values: list[Any]) -> list[Tensor]:
    return [v for v in values if isinstance(v, Tensor)]


def _show(value: Any) -> str:
    if isinstance(value, (tuple, list)) and any(isinstance(v, Tensor) for v in value):
        return f"({', '.join(map(_show, value))})"
    if not isinstance(value, Tensor):
        return text if len(text := repr(value)) < 80 else f"{text[:80]}..."
    strides = "" if value.is_contiguous() else f" strides {list(value.stride())}"
    return f"{str(value.dtype)[6:]}{list(value.shape)}{strides}"


def draw(samples: list, most: int = MOST) -> list:
    """All of them, or that many."""
    return samples if len(samples) <= most else [samples[i] for i in sorted(random.Random(7).sample(range(len(samples)), most))]


def infos(opinfo: str) -> list[Any]:
    """The entries of op_db under a name."""
    return [op for op in internals("common_methods_invocations").op_db if op.name == opinfo]


@functools.lru_cache(maxsize=None)
def _of_op_db(opinfo: str, device: str, dtype: torch.dtype, wide: bool) -> list[Sample]:
    torch.manual_seed(7)
    made = []
    for op in infos(opinfo):
        if dtype in op.supported_dtypes(torch.device(device).type) or dtype in DTYPES and not op.variant_test_name:
            written = op.reference_inputs if wide and op.reference_inputs_func is not None else op.sample_inputs
            found = written(device, dtype, requires_grad=dtype.is_floating_point or dtype.is_complex)
            made += draw([Sample((s.input, *s.args), s.kwargs) for s in found])
    return [s for s in made if all(t.numel() <= LARGEST for t in s.tensors)]


def of_function(opinfo: str, name: str, device: torch.device, dtype: torch.dtype, most: int = MOST, wide: bool = False) -> list[Sample]:
    """Those of op_db, wide: with its reference inputs, and in float32 and float64 those of TorchScript's tests of torch.nn.functional."""
    scripted = list(_scripted(name, device, dtype)) if dtype in DTYPES[:2] else []
    return draw(_of_op_db(opinfo, str(device), dtype, wide), most) + scripted


def _scripted(name: str, device: torch.device, dtype: torch.dtype) -> Iterator[Sample]:
    source = internals("jit_metaprogramming_utils")
    for entry in source.get_nn_functional_tests():
        if entry[0] == name:
            kwargs = entry[7] if len(entry) > 7 else None
            args, kwargs = source.create_input((entry[1], *entry[2]), call_kwargs=kwargs, dtype=dtype, device=device)
            to_dtype = lambda t: t.detach().to(dtype).requires_grad_(t.requires_grad) if isinstance(t, Tensor) and t.is_floating_point() else t
            yield Sample(args, kwargs).map(to_dtype)


# ------------------------------------------------------------------------------------------------------------- running a function

def copied(t: Any) -> Any:
    """A tensor of its own memory with the values, strides and offset of t."""
    if not isinstance(t, Tensor):
        return t
    if t.is_conj() or t.is_neg() or t.layout != torch.strided:
        return t.detach().clone().requires_grad_(t.requires_grad)
    fresh = torch.empty(0, dtype=t.dtype, device=t.device).set_(t.untyped_storage().clone(), t.storage_offset(), t.size(), t.stride())
    return fresh.requires_grad_(t.requires_grad)


def exactly(t: Any) -> Any:
    """What the truth is computed on: the same values in double precision on the CPU."""
    if isinstance(t, torch.dtype):
        return torch.float64 if t.is_floating_point else t
    if not isinstance(t, Tensor):
        return t
    wide = t.detach().cpu().to(torch.float64 if t.is_floating_point() else t.dtype)
    return wide.clone(memory_format=torch.contiguous_format).requires_grad_(t.requires_grad)


@dataclass
class Outcome:
    """Of one call: what it returned, the gradients and what its arguments became; or the error, and in which half it was raised."""

    outputs: list[Any] = field(default_factory=list)
    grads: list[Optional[Tensor]] = field(default_factory=list)
    arguments: list[Tensor] = field(default_factory=list)
    aliases: list[Optional[int]] = field(default_factory=list)   # of each output, the argument whose memory it is
    error: Optional[Exception] = None
    where: str = ""
    sizes: list[float] = field(default_factory=list)             # of gradients that are differences: the size of their terms

    @property
    def unsupported(self) -> bool:
        """PyTorch has no kernel for this data type, layout or mode on this device."""
        lacking = ("not implemented for", "Unsupported memory format", "backward can only be called in training mode")
        return isinstance(self.error, NotImplementedError) or any(text in str(self.error) for text in lacking)


def _noise(t: Tensor) -> Tensor:
    """The same random cotangent for every side."""
    return torch.randn(t.shape, generator=torch.Generator().manual_seed(11)).to(t.device, t.dtype)


def run(function: Callable, sample: Sample, inplace: bool = False, like: Optional[list[torch.dtype]] = None,
        copy: Callable[[Any], Any] = copied) -> Outcome:
    """Forward and backward on a copy of the sample. like: round the cotangents to these types first. A module's parameters have gradients
    too, and its buffers count as results."""
    module = function if isinstance(function, torch.nn.Module) else None
    if isinstance(module, torch.nn.RNNBase) and not type(module).__module__.startswith("weft") and any(p.is_cuda for p in module.parameters()):
        module.dropout = module.dropout if module.training else 0.0   # cuDNN has gradients in training mode only; without dropout it is the same
        module.train()
    own = sample.map(copy)
    leaves = [t for t in own.tensors if t.requires_grad]
    passed = own.map(lambda t: t.clone() if isinstance(t, Tensor) and t.requires_grad else t) if inplace else own
    done = Outcome(where="forward")
    try:
        result = function(*passed.args, **passed.kwargs)
        done.outputs = flat(result)
        done.arguments = [t.detach() for t in passed.tensors]
        places = [t.untyped_storage()._cdata for t in passed.tensors]
        done.aliases = [places.index(p) if (p := o.untyped_storage()._cdata) in places and o.numel() else None for o in _tensors(done.outputs)]
        if module is not None:
            done.outputs += [b.detach().clone() for b in module.buffers()]
            leaves += [p for p in module.parameters() if p.requires_grad]
        done.where = "backward"
        roots = [o for o in _tensors(done.outputs) if o.requires_grad]
        cotangents = [_noise(o) if like is None else _noise(o).to(d).to(o.dtype) for o, d in zip(roots, like or [o.dtype for o in roots])]
        if roots and leaves:
            done.grads = list(torch.autograd.grad(roots, leaves, cotangents, allow_unused=True))
    except Exception as error:   # noqa: BLE001: which kind it is, is what is compared
        done.error = error
    return done


# ---------------------------------------------------------------------------------------------------------------- what must agree

def same_error(ours: Outcome, twin: Outcome, names: tuple[str, ...]) -> str:
    """Empty, or what is wrong with our error beside the twin's."""
    if ours.error is None:
        return f"the twin refuses in {twin.where} ({type(twin.error).__name__}: {_line(twin.error)}), weft returns"
    if twin.error is None:
        return f"weft refuses in {ours.where} ({type(ours.error).__name__}: {_line(ours.error)}), the twin returns"
    unnamed = re.match(r"Name '.*' not found in Tensor\[", str(twin.error))   # where PyTorch has names of dimensions a text may be one; weft has none
    kinds = KINDS if unnamed or not isinstance(twin.error, KINDS) else ()      # an AttributeError or IndexError in the middle of the twin is no kind to keep
    if not (isinstance(ours.error, (type(twin.error), *kinds)) or isinstance(twin.error, type(ours.error))):
        return f"weft raises {type(ours.error).__name__} ({_line(ours.error)}), the twin {type(twin.error).__name__} ({_line(twin.error)})"
    if str(ours.error) != str(twin.error) and not re.search(rf"\b({'|'.join(map(re.escape, names))})\b", str(ours.error)):
        return f"no argument is named in {type(ours.error).__name__}: {_line(ours.error)}"
    return ""


def _line(error: Optional[Exception]) -> str:
    return str(error).splitlines()[0][:160] if str(error) else ""


def _channels_last(t: Tensor, axis: int) -> bool:
    """As weft.functional says it: the channels are nearer in memory than the last axis."""
    return t.dim() > axis + 1 and 0 < t.stride(axis) < t.stride(-1)


def same_format(ours: Tensor, twin: Tensor, source: Optional[Tensor]) -> str:
    """Where the twin's result is contiguous or channels-last, ours is too; or ours is dense and channels-last as the input is: weft keeps
    that for every rank, and without a batch (axis 0)."""
    formats = {"contiguous": torch.contiguous_format}
    if ours.dim() in (4, 5):
        formats["channels-last"] = torch.channels_last if ours.dim() == 4 else torch.channels_last_3d
    theirs = {word: f for word, f in formats.items() if twin.is_contiguous(memory_format=f)}
    if not theirs or any(ours.is_contiguous(memory_format=f) for f in theirs.values()):
        return ""
    for axis in (0, 1):
        if source is not None and source.dim() == ours.dim() and _channels_last(source, axis) and ours.movedim(axis, -1).is_contiguous():
            return ""
    return f"strides {ours.stride()} of {tuple(ours.shape)}, the twin's are {' and '.join(theirs)}: {twin.stride()}"


def same_values(ours: Tensor, twin: Optional[Tensor], truth: Optional[Tensor], terms: int, size: float = 0.0) -> str:
    """Off the truth by no more than rounding explains, or by no more than twice what the twin is off (sums that cancel). size: of the terms."""
    ours, twin = ours.detach().cpu(), None if twin is None else twin.detach().cpu()
    if truth is None or not truth.is_floating_point() or ours.dtype not in DTYPES:
        try:
            torch.testing.assert_close(ours, twin, equal_nan=True)
            return ""
        except AssertionError as error:
            return " ".join(str(error).split())[:200]
    if ours.shape != truth.shape:
        return f"shape {tuple(ours.shape)}, expected {tuple(truth.shape)}"
    exact, rounded, mine = truth.detach(), truth.detach().to(ours.dtype).double(), ours.double()
    odd = ~rounded.isfinite() | ~mine.isfinite()
    agree = (mine == rounded) | (mine.isnan() & rounded.isnan())
    if twin is not None:
        agree |= (mine == twin.double()) | (mine.isnan() & twin.double().isnan())
    if not agree[odd].all():
        return f"{int((~agree & odd).sum())} of {ours.numel()} elements: NaN or infinite on one side only"
    if odd.all():
        return ""
    scale = max(exact[~odd].abs().max().item(), size, 1e-30)
    off = (mine - exact)[~odd].abs().max().item() / scale
    allowed = tolerance(ours.dtype, terms)
    if off > allowed and twin is not None:
        allowed = max(allowed, 2 * (twin.double() - exact)[~odd].abs().nan_to_num(0, 0, 0).max().item() / scale)
    return "" if off <= allowed else f"off by {off:.2e} of the largest value, allowed {allowed:.2e}"


def disagreement(ours: Outcome, twin: Outcome, truth: Outcome, sample: Sample, names: tuple[str, ...]) -> str:
    """The first thing in which two outcomes differ, or nothing. A kernel that PyTorch lacks for a data type of weft is judged by the truth."""
    if twin.error is not None and twin.unsupported and truth.error is None and all(t.dtype in DTYPES for t in sample.tensors if t.is_floating_point()):
        if ours.error is not None:
            return same_error(ours, Outcome(), names)
        twin = Outcome([None if isinstance(o, Tensor) and o.is_floating_point() else o for o in truth.outputs], [None] * len(truth.grads))
    elif ours.error is not None or twin.error is not None:
        return same_error(ours, twin, names)
    if len(ours.outputs) != len(twin.outputs):
        return f"{len(ours.outputs)} results, the twin has {len(twin.outputs)}"
    terms = max([64, *(t.numel() for t in (*sample.tensors, *_tensors(ours.outputs)))])
    exact = truth.outputs if truth.error is None else [None] * len(ours.outputs)
    for i, (mine, other, right) in enumerate(zip(ours.outputs, twin.outputs, exact)):
        why = _same_result(mine, other, right, sample, terms)
        if why:
            return f"result {i}: {why}"
    if twin.arguments and ours.aliases != twin.aliases:
        return f"results share memory with arguments {ours.aliases}, the twin's with {twin.aliases}"
    exact = truth.grads if truth.error is None else [None] * len(ours.grads)
    named = (("gradient", ours.grads, twin.grads, exact, truth.sizes), ("argument after the call", ours.arguments, twin.arguments, truth.arguments, []))
    return next((f"{what} {i}: {why}" for what, *sides in named for i, why in enumerate(_differences(*sides, terms)) if why), "")


def _same_result(mine: Any, other: Any, right: Any, sample: Sample, terms: int) -> str:
    if not isinstance(mine, Tensor):
        return "" if mine == other else f"{mine!r}, the twin has {other!r}"
    if isinstance(other, Tensor):
        for what in ("shape", "dtype", "device", "requires_grad"):
            if getattr(mine, what) != getattr(other, what):
                return f"{what} {getattr(mine, what)}, the twin's is {getattr(other, what)}"
        why = same_format(mine, other, sample.tensors[0] if sample.tensors else None)
        if why:
            return why
    return same_values(mine, other, right, terms)


def _differences(ours: list, twin: list, truth: list, sizes: list[float], terms: int) -> Iterator[str]:
    if len(twin) != len(ours) and twin:
        yield f"{len(ours)} of them, the twin has {len(twin)}"
        return
    padded = [*truth, *[None] * (len(ours) - len(truth))]
    for mine, other, right, size in zip(ours, twin or [None] * len(ours), padded, [*sizes, *[0.0] * len(ours)]):
        if mine is None or other is None and right is None:
            yield "" if mine is None and other is None else "None on one side only"
        elif other is not None and (mine.dtype != other.dtype or mine.shape != other.shape):
            yield f"{_show(mine)}, the twin's is {_show(other)}"
        else:
            yield same_values(mine, other, right, terms, size)


def _narrow(t: Any) -> Any:
    if isinstance(t, torch.dtype):
        return torch.float32 if t == torch.float64 else t
    return t.detach().float().requires_grad_(t.requires_grad) if isinstance(t, Tensor) and t.dtype == torch.float64 else t


def _scaled_down(narrow: Outcome, twin: Outcome, truth: Outcome) -> Outcome:
    """The twin's outcome in float64, which is the truth, moved by what float32 is off, times the ratio of their precisions: how far rounding
    may carry a sum that cancels."""
    ratio = torch.finfo(torch.float64).eps / torch.finfo(torch.float32).eps

    def moved(given: list, exact: list, rough: list) -> list:
        return [g if not isinstance(g, Tensor) or g.dtype != torch.float64 or r is None else
                torch.empty_like(g).copy_(e + (r.detach().cpu().double() - e) * ratio).requires_grad_(g.requires_grad)
                for g, e, r in zip(given, [None if e is None else e.detach() for e in exact], rough)]
    return replace(twin, outputs=moved(twin.outputs, truth.outputs, narrow.outputs), grads=moved(twin.grads, truth.grads, narrow.grads),
                   arguments=moved(twin.arguments, truth.arguments, narrow.arguments))


def _terms(loss: Callable, sample: Sample, like: list[torch.dtype]) -> list[float]:
    """A loss of softmax p has the gradient s (p - t). Where p is near t that cancels, and is off by the rounding of s p and s t, not by its own. Their
    size is at most twice that of the gradient at equal logits, where of at least two classes each has p = 1/2 or less; with one class p - t is 0."""
    x = sample.args[0]
    even = run(loss, Sample((torch.zeros_like(x).requires_grad_(x.requires_grad), *sample.args[1:]), sample.kwargs), like=like)
    return [2 * even.grads[0].abs().max().item()] if even.grads and even.grads[0] is not None and even.grads[0].numel() else []


def compare(ours: Callable, twin: Callable, sample: Sample, names: tuple[str, ...], inplace: bool = False, loss: bool = False) -> str:
    """Both functions on copies of the sample; the truth is the twin in double precision on the CPU. loss: of softmax."""
    at = lambda cast: cast(deepcopy(twin).cpu()) if isinstance(twin, torch.nn.Module) else twin
    wide, narrow = at(torch.nn.Module.double), at(torch.nn.Module.float)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        left, right = run(ours, sample, inplace), run(twin, sample, inplace)
        if left.error is not None and right.error is not None:
            return same_error(left, right, names)
        like = [o.dtype for o in _tensors(left.outputs) if o.requires_grad]
        truth = run(wide, sample.map(exactly), inplace, like)
        truth.sizes = _terms(wide, sample.map(exactly), like) if loss and truth.grads else []
        why = disagreement(left, right, truth, sample, names)
        if not why or any(o.error is not None for o in (left, right, truth)) or torch.float64 not in {t.dtype for t in sample.tensors}:
            return why
        rough = run(narrow, sample.map(exactly).map(_narrow), inplace)
        return disagreement(left, _scaled_down(rough, right, truth), truth, sample, names) if rough.error is None else why


def report(failures: list[str], total: int) -> None:
    """Fail with the first few."""
    if failures:
        pytest.fail(f"{len(failures)} of {total} samples:\n" + "\n".join(failures[:SHOWN]), pytrace=False)


def arguments_of(function: Callable) -> tuple[str, ...]:
    return tuple(inspect.signature(function).parameters)


def asks_inplace(function: Callable, sample: Sample) -> bool:
    """Whether the sample writes over its input."""
    try:
        return bool(inspect.signature(function).bind(*sample.args, **sample.kwargs).arguments.get("inplace", False))
    except TypeError:
        return False


__all__ = ["Outcome", "Sample", "arguments_of", "asks_inplace", "compare", "copied", "disagreement", "draw", "exactly", "flat", "infos", "internals",
           "of_function", "report", "run", "same_error", "wanted"]
