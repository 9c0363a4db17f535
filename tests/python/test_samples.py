"""The samples of op_db on every function that has a twin in torch.nn.functional: values, gradients, formats, errors, in every data type."""
from __future__ import annotations

import random
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

import weft.functional as W
from cases import DTYPES
from samples import (FEW, MOST, Sample, arguments_of, asks_inplace, compare, copied, draw, infos, internals, of_function, report, run, same_error, wanted)

# Each function, and where op_db has it under another name than nn.functional.*, that name. fold, which op_db has not, is given
# the columns that the samples of unfold make.
TWINS = {**{f"{kind}{rank}d": None for kind in ("conv", "conv_transpose", "max_pool", "avg_pool", "adaptive_avg_pool") for rank in (1, 2, 3)},
         "relu": None, "hardtanh": None, "tanh": "tanh", "sigmoid": "sigmoid", "softmax": "softmax", "log_softmax": "log_softmax",
         "cross_entropy": None, "batch_norm": None, "local_response_norm": None, "unfold": None, "fold": None}
OTHERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool, torch.complex64, torch.complex128]


def _turned(sample):
    """A sample of fold from one of unfold: the columns, back to the image."""
    x, *rest = sample.args
    columns = F.unfold(x.detach(), *rest, **sample.kwargs).requires_grad_(x.requires_grad)
    return Sample((columns, tuple(x.shape[-2:]), *rest), sample.kwargs)


def samples(name, device, dtype, most=FEW, wide=False):
    if name == "fold":
        return [_turned(s) for s in samples("unfold", device, dtype, most, wide) if run(F.unfold, s).error is None]
    return of_function(TWINS[name] or f"nn.functional.{name}", name, device, dtype, most, wide)


def refused_on_cpu(twin, sample):
    return run(twin, sample.map(lambda t: t.detach().cpu() if isinstance(t, torch.Tensor) else t)).error is not None


def check(name, made, forgiven=None):
    """forgiven: a text of weft's errors that the twin need not have; nor those where only its kernels for CUDA do not look."""
    ours, twin = wanted(W, name), getattr(F, name)
    names, failures = arguments_of(ours), []
    for sample in made:
        why = compare(ours, twin, sample, names, asks_inplace(ours, sample), name == "cross_entropy")
        if why and not (forgiven and (forgiven in why or why.startswith("weft refuses in forward") and refused_on_cpu(twin, sample))):
            failures.append(f"  {name}({sample}): {why}")
    report(failures, len(made))


def test_every_twin_is_listed():
    assert [n for n in W.__all__ if hasattr(F, n) and n not in TWINS] == []


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d)[6:])
@pytest.mark.parametrize("name", TWINS)
def test_float(name, dtype, device):
    wanted(W, name)
    made = samples(name, device, dtype, MOST, wide=True)
    assert made
    check(name, made)


@pytest.mark.parametrize("dtype", OTHERS, ids=lambda d: str(d)[6:])
@pytest.mark.parametrize("name", TWINS)
def test_types_without_kernels(name, dtype, device):
    """weft hands them to PyTorch, and refuses what PyTorch refuses."""
    wanted(W, name)
    made = samples(name, device, dtype, wide=True)
    if not made:   # the twin has none for this type: it refuses the floating-point ones, turned into it
        turn = lambda t: t.detach().to(dtype) if isinstance(t, torch.Tensor) and t.is_floating_point() else t
        made = [s.map(turn) for s in samples(name, device, torch.float32)[:5]]
    check(name, made)


FLAVOURS = {
    "channels_last": lambda t: _formatted(t),
    "transposed": lambda t: t.detach().transpose(-1, -2).contiguous().transpose(-1, -2).requires_grad_(t.requires_grad) if t.dim() > 1 else t,
    "expanded": lambda t: t.detach()[:1].expand_as(t).requires_grad_(t.requires_grad) if t.dim() > 2 and t.shape[0] else t,
    "noncontiguous": lambda t: internals("common_utils").noncontiguous_like(t),
    "no_grad": lambda t: t.detach(),
}


def _formatted(t):
    if t.dim() not in (4, 5):
        return t
    return t.detach().clone(memory_format=torch.channels_last if t.dim() == 4 else torch.channels_last_3d).requires_grad_(t.requires_grad)


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("name", TWINS)
def test_layouts(name, flavour, device):
    wanted(W, name)
    change = FLAVOURS[flavour]
    made = [s.map(lambda t: change(t) if isinstance(t, torch.Tensor) else t) for s in samples(name, device, torch.float32)]
    check(name, made)


@pytest.mark.parametrize("name", ["relu", "hardtanh"])
def test_inplace(name, device):
    wanted(W, name)
    check(name, [Sample(s.args, {**s.kwargs, "inplace": True}) for d in DTYPES for s in samples(name, device, d) if not asks_inplace(W.__dict__[name], s)])


def _steps(t):
    """The strides that say something."""
    return [step for step, n in zip(t.stride(), t.shape) if n > 1] if t.numel() else []


@pytest.mark.parametrize("name", TWINS)
def test_fake_tensors(name, device):
    """What torch.compile is told about a result is what the result is: its shape, type and strides."""
    ours, twin = wanted(W, name), getattr(F, name)
    bare = [s.map(lambda t: t.detach() if isinstance(t, torch.Tensor) else t) for s in samples(name, device, torch.float32)[:40]]
    bare += [s.map(lambda t: FLAVOURS["channels_last"](t) if isinstance(t, torch.Tensor) else t) for s in bare]
    failures, made = [], [s for s in bare if run(twin, s).error is None]
    for sample in made:
        with FakeTensorMode() as mode:
            fake = run(ours, sample.map(lambda t: mode.from_tensor(t) if isinstance(t, torch.Tensor) else t), copy=lambda t: t)
        real = run(ours, sample)
        told, true = ([(tuple(t.shape), _steps(t), t.dtype, t.device) for t in o.outputs] for o in (fake, real))
        if told != true or fake.error or real.error:
            failures.append(f"  {name}({sample}): told {fake.error or told}, is {real.error or true}")
    report(failures, len(made))


@pytest.mark.parametrize("name", TWINS)
def test_refusals(name, device):
    """What PyTorch's authors know the twin to refuse is refused, with that kind of error."""
    ours, twin = wanted(W, name), getattr(F, name)
    found = [e for op in infos(TWINS[name] or f"nn.functional.{name}") if op.error_inputs_func for e in op.error_inputs(str(device))]
    if not found:
        pytest.skip("op_db has no wrong inputs of it")
    failures = []
    for wrong in found:
        s = wrong.sample_input
        sample = Sample((s.input, *s.args), s.kwargs)
        mine, other = run(ours, sample), run(twin, sample)
        why = same_error(mine, other, arguments_of(ours))
        if not why and other.error is not None and not isinstance(mine.error, wrong.error_type):
            why = f"{type(mine.error).__name__}, op_db expects {wrong.error_type}"
        if why:
            failures.append(f"  {name}({sample}): {why}")
    report(failures, len(found))


def spoilt(value):
    """Values near this one, many of them wrong: what is done with each is the twin's to say."""
    if isinstance(value, torch.Tensor):
        t = value.detach()
        shapes = [t[None], t[None, None, None], *([t[0], t[:0], t[:, :1], t.flatten(), t.sum()] if t.dim() > 1 and t.numel() else [])]
        return [*shapes, t.double(), t.long(), t.to(torch.complex64), None, 1.0, t.tolist()]
    if isinstance(value, (bool, type(None), torch.dtype)):
        return ["x"]
    if isinstance(value, int):
        return [-1, 0, value + 1, 9, 1.5, "x", None, (value, value, value, value, value), ()]
    if isinstance(value, (tuple, list)):
        return [value[:-1], (*value, 1), tuple(-1 for _ in value), tuple(0 for _ in value), tuple(1.5 for _ in value), tuple("x" for _ in value), ()]
    return [None, "x", -1.0, 0.0]


@pytest.mark.parametrize("name", TWINS)
def test_spoilt_samples(name, device):
    """One argument changed: whatever the twin refuses is refused, with its kind of error, and what it takes is taken."""
    wanted(W, name)
    if name == "cross_entropy" and device.type == "cuda":
        pytest.skip("a class out of range stops CUDA for the whole process")
    made = {}
    for sample in samples(name, device, torch.float32)[:12]:
        bare = sample.map(lambda t: t.detach() if isinstance(t, torch.Tensor) else t)
        for place, value in [*enumerate(bare.args), *bare.kwargs.items()]:
            for other in spoilt(value):
                args = tuple(other if i == place else a for i, a in enumerate(bare.args))
                changed = Sample(args, {k: other if k == place else v for k, v in bare.kwargs.items()})
                made[str(changed)] = changed
    check(name, draw(list(made.values())), "allowed: the type of input")   # of mixed types the twin takes some, which depends on its kernel


@pytest.mark.parametrize("name", TWINS)
def test_gradcheck(name, device):
    """Of the function itself and of its gradient, in float64, on a few small samples."""
    ours = wanted(W, name)
    made = [s for s in samples(name, device, torch.float64) if not asks_inplace(ours, s) and any(t.requires_grad for t in s.tensors)]
    made = [s for s in made if 0 < sum(t.numel() for t in s.tensors) <= 2000 and run(getattr(F, name), s).error is None]
    twice = all(op.supports_gradgrad for op in infos(TWINS[name] or f"nn.functional.{name}"))
    failures, made = [], random.Random(3).sample(made, min(4, len(made)))
    for sample in made:
        own = sample.map(copied)
        leaves = [t for t in own.tensors if t.requires_grad]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                function = _of_leaves(ours, own)
                torch.autograd.gradcheck(function, leaves, fast_mode=True, nondet_tol=1e-10)
                if twice:
                    torch.autograd.gradgradcheck(function, leaves, fast_mode=True, gen_non_contig_grad_outputs=True, nondet_tol=1e-10)
        except Exception as error:   # noqa: BLE001
            failures.append(f"  {name}({sample}): {type(error).__name__}: {' '.join(str(error).split())[:300]}")
    report(failures, len(made))


def _of_leaves(function, sample):
    """The call as a function of the tensors that have a gradient. Written arguments (running statistics) start afresh at each call."""
    def call(*leaves):
        given = iter(leaves)
        own = sample.map(lambda t: next(given) if isinstance(t, torch.Tensor) and t.requires_grad else copied(t))
        result = function(*own.args, **own.kwargs)
        return tuple(r for r in result if r.is_floating_point()) if isinstance(result, tuple) else result
    return call
