"""weft.enable() under PyTorch's own 2D pooling: its numbers, indices, strides and errors, with weft on, off, and switched between."""
from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import fresh
import weft
from cases import DTYPES, tolerance
from samples import draw
from weft import _enable

ROOT = Path(__file__).resolve().parents[2]
SLOW = os.environ.get("WEFT_SLOW", "0") not in ("", "0")
REFERENCE = {"max": "max_pool_ref", "avg": "avg_pool_ref", "adaptive": "adaptive_avg_pool_ref"}
HOW = ["free", "fast", "every"]   # as in test_enable.py
aten = torch.ops.aten


def settings(how, kind, device="cpu"):
    return {"free": {}, "fast": {"delegate": False}, "every": {"pin": REFERENCE[kind] + ("__cuda" if device == "cuda" else "")}}[how]


def taken() -> int:
    return sum(s.calls for s in _enable.seen() if s.kernel != "torch")


def values(shape, dtype):
    """Many equal ones, some infinite, some no numbers."""
    t = torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(len(shape) + sum(shape))).to(dtype)
    t.view(-1)[::37] = float("nan")
    t.view(-1)[5::53] = -float("inf")
    return t


def formats(t):
    """Contiguous, channels-last, rows side by side with others, every second channel, one plane for all."""
    last = t.contiguous(memory_format=torch.channels_last) if t.dim() == 4 else t.contiguous()
    axis = t.dim() - 3
    return [t.contiguous(), last, t.transpose(-1, -2).contiguous().transpose(-1, -2), t.repeat_interleave(2, axis).narrow(axis, 0, t.shape[axis]),
            t.narrow(axis, 0, 1).expand_as(t)]


def assert_same(off, on, terms):
    for a, b in zip(off, on, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype and a.stride() == b.stride()
        if a.dtype == torch.int64:
            assert torch.equal(a, b)
        else:
            scale = max(a.nan_to_num(0, 0, 0).abs().max().item() if a.numel() else 0, 1e-6)
            torch.testing.assert_close(b, a, rtol=0, atol=2 * tolerance(a.dtype, terms) * scale, equal_nan=True)


def run(kind, x, dy_format, args, dtype=None):
    """Results of the operator and of its gradient, for a gradient that is a number of `dtype`."""
    def gradient(y):
        return formats(torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(dtype or y.dtype).to(y))[dy_format]
    if kind == "max":
        y, index = aten.max_pool2d_with_indices(x, *args)
        dy = formats(torch.ones_like(y) * 2)[dy_format]
        return [y, index, aten.max_pool2d_with_indices_backward(dy, x, *args, index)]
    if kind == "avg":
        y = aten.avg_pool2d(x, *args)
        return [y, aten.avg_pool2d_backward(gradient(y), x, *args)]
    y = aten._adaptive_avg_pool2d(x, *args)
    return [y, aten._adaptive_avg_pool2d_backward(gradient(y), x)]


def truth(results, device, again):
    """What `results` should be: on CUDA PyTorch's mean over windows of channels-last data is wrong, and `again` says it of the CPU."""
    if device.type == "cpu":
        return results
    return [torch.empty_like(r).copy_(t) for r, t in zip(results, again(), strict=True)]


def choices(kind):
    """Arguments of the operator."""
    if kind == "max":
        made = itertools.product(([2, 2], [3, 2], [3, 3], [1, 5]), ([], [1, 1], [2, 3]), ([0, 0], [1, 0]), ([1, 1], [2, 1]), (False, True))
        return [m for m in made if all(p <= k // 2 for p, k in zip(m[2], m[0]))]
    if kind == "avg":
        made = itertools.product(([2, 2], [3, 2], [3, 3], [1, 5]), ([], [1, 1], [2, 3]), ([0, 0], [1, 0]), (False, True), (False, True), (None, 1, 7))
        return [m for m in made if all(p <= k // 2 for p, k in zip(m[2], m[0]))]
    return [(s,) for s in ([1, 1], [3, 2], [7, 7], [10, 13], [1, 5])]


# ------------------------------------------------------------------------------------------------------------------------ values

@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d)[6:])
@pytest.mark.parametrize("kind", REFERENCE)
def test_numbers_indices_and_strides(device, kind, dtype, how):
    """Over windows, layouts of data and gradient, with and without a batch: indices bit for bit, the rest by rounding alone."""
    ran = total = 0
    every = itertools.product(choices(kind), ((2, 5, 10, 13), (1, 1, 9, 12), (3, 9, 11)), range(5), (0, 1, 4))
    for args, shape, layout, dy_format in draw(list(every), 300 if SLOW else 40):
        x = formats((values(shape, dtype) if kind == "max" else torch.randn(shape).to(dtype)).to(device))[layout]
        off = run(kind, x, dy_format, args)
        right = truth(off, device, lambda: run(kind, x.cpu().double(), dy_format, args, dtype)) if kind == "avg" else off   # noqa: B023
        with weft.backends.flags(**settings(how, kind, device.type)), weft.enabled(device=device):
            _enable.seen(forget=True)
            on = run(kind, x, dy_format, args)
            ran, total = ran + taken(), total + 2
        for o, r, given in zip(off, right, on, strict=True):   # what weft leaves to PyTorch is as wrong as PyTorch's
            assert_same([o if torch.equal(o, given) else r], [given], 512)
    assert how == "free" or dtype is torch.float64 and how == "fast" or ran > total / 4   # of float64 there are no fast kernels


def test_a_window_without_a_tap_is_left_to_pytorch(on):
    """Its index is of PyTorch's making."""
    x = torch.randn(1, 2, 3, 3)
    with _enable.bypassed():
        want = F.max_pool2d(x, 2, 1, 1, 4, return_indices=True)
    _enable.seen(forget=True)
    for y, expected in zip(F.max_pool2d(x, 2, 1, 1, 4, return_indices=True), want):
        torch.testing.assert_close(y, expected)
    assert taken() == 0


@pytest.mark.parametrize("kind", REFERENCE)
@pytest.mark.parametrize("shape", [(0, 3, 8, 8), (2, 3, 0, 8), (2, 0, 8, 8)], ids=str)
def test_empty(kind, shape):
    """What PyTorch makes of nothing, or its error."""
    args = {"max": ([2, 2],), "avg": ([2, 2],), "adaptive": ([3, 3],)}[kind]
    call = {"max": aten.max_pool2d_with_indices, "avg": aten.avg_pool2d, "adaptive": aten._adaptive_avg_pool2d}[kind]

    def outcome():
        try:
            made = call(torch.zeros(shape), *args)
            return [(t.shape, t.dtype) for t in (made if isinstance(made, tuple) else (made,))]
        except Exception as error:
            return type(error), str(error)
    off = outcome()
    with weft.backends.flags(delegate=False), weft.enabled():
        assert outcome() == off


MODULES = {"max": torch.nn.MaxPool2d(3, 2, 1), "indices": torch.nn.MaxPool2d(2, return_indices=True), "avg": torch.nn.AvgPool2d(3, 2, 1),
           "adaptive": torch.nn.AdaptiveAvgPool2d(5), "global": torch.nn.AdaptiveAvgPool2d(1)}


def step(module, x):
    x = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    y = module(x)
    y = y[0] if isinstance(y, tuple) else y
    return [y.detach(), *torch.autograd.grad(y.square().sum(), x)]


@pytest.fixture
def on():
    """weft's fast kernels wherever there are any."""
    _enable.seen(forget=True)
    with weft.backends.flags(delegate=False), weft.enabled():
        yield


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["first", "last"])
def test_modules(device, name, layout):
    x = torch.randn(2, 8, 20, 24, device=device).contiguous(memory_format=layout)
    off = truth(step(MODULES[name], x), device, lambda: step(MODULES[name], x.cpu().double()))
    with weft.backends.flags(delegate=False), weft.enabled(device=device):
        _enable.seen(forget=True)
        assert_same(off, step(MODULES[name], x), 512)
        assert name == "global" or taken() == 2


@pytest.mark.parametrize("forward", [False, True])
@pytest.mark.parametrize("name", ["max", "avg", "adaptive"])
def test_switched_between_forward_and_backward(name, forward):
    """Indices of one side serve the other."""
    x = torch.randn(2, 8, 20, 24, requires_grad=True)
    expected, = torch.autograd.grad(MODULES[name](x).square().sum(), x)
    with weft.backends.flags(delegate=False):
        with weft.enabled() if forward else torch.enable_grad():
            loss = MODULES[name](x).square().sum()
        with weft.enabled() if not forward else torch.enable_grad():
            _enable.seen(forget=True)
            got, = torch.autograd.grad(loss, x)
            assert bool(taken()) is not forward
    assert_same([expected], [got], 512)


def test_unpooling_takes_the_indices(on):
    x = torch.randn(2, 4, 8, 8)
    y, index = F.max_pool2d(x, 2, return_indices=True)
    with _enable.bypassed():
        assert torch.equal(F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2), F.max_unpool2d(y, index, 2))


# ------------------------------------------------------------------------------------------------------------------------ errors

X, I = torch.zeros(1, 2, 6, 6), torch.zeros(1, 2, 3, 3, dtype=torch.int64)
WRONG = {
    "kernel": lambda: F.max_pool2d(X, 0), "padding": lambda: F.max_pool2d(X, 2, padding=2), "small": lambda: F.max_pool2d(X, 9),
    "dilation": lambda: F.max_pool2d(X, 2, dilation=0), "stride": lambda: aten.max_pool2d_with_indices(X, [2, 2], [0, 1]),
    "type": lambda: aten.max_pool2d_with_indices(X.to(torch.complex64), [2, 2]), "rank": lambda: aten.max_pool2d_with_indices(X[0, 0], [2, 2]),
    "long list": lambda: aten.max_pool2d_with_indices(X, [2, 2, 2, 2]), "avg type": lambda: aten.avg_pool2d(X.bool(), [2, 2]),
    "divisor": lambda: aten.avg_pool2d(X, [2, 2], [], [0, 0], False, True, 0), "avg padding": lambda: F.avg_pool2d(X, 2, padding=3),
    "avg small": lambda: F.avg_pool2d(X, 7), "gradient": lambda: aten.max_pool2d_with_indices_backward(X, X, [2, 2], [2, 2], [0, 0], [1, 1], False, I),
    "index type": lambda: aten.max_pool2d_with_indices_backward(X[..., :3, :3], X, [2, 2], [2, 2], [0, 0], [1, 1], False, I.int()),
    "index sizes": lambda: aten.max_pool2d_with_indices_backward(X[..., :3, :3], X, [2, 2], [2, 2], [0, 0], [1, 1], False, I[..., :2]),
    "avg gradient": lambda: aten.avg_pool2d_backward(X, X, [2, 2], [2, 2], [0, 0], False, True, None), "target": lambda: aten._adaptive_avg_pool2d(X, [-1, 2]),
    "target list": lambda: aten._adaptive_avg_pool2d(X, [1, 2, 3]), "target rank": lambda: aten._adaptive_avg_pool2d(X[0, 0], [1, 2]),
    "adaptive gradient": lambda: aten._adaptive_avg_pool2d_backward(X[0], X),
}


@pytest.mark.parametrize("name", WRONG)
def test_errors_are_those_of_pytorch(name):
    with pytest.raises(Exception) as off:
        WRONG[name]()
    for _ in range(2):
        with weft.backends.flags(delegate=False), weft.enabled(), pytest.raises(Exception) as on:
            WRONG[name]()
        assert type(on.value) is type(off.value)
        if torch.__version__ >= "2.13":
            assert str(on.value) == str(off.value)


def test_types_that_are_left_to_pytorch(on):
    assert torch.equal(aten.max_pool2d_with_indices(torch.arange(16).view(1, 1, 4, 4), [2, 2])[0].flatten(), torch.tensor([5, 7, 13, 15]))
    assert taken() == 0


# ------------------------------------------------------------------------------------------------------------------------ the switch

def test_each_operator_has_its_switch():
    x = torch.randn(1, 4, 16, 16)
    calls = {"max_pool2d": lambda: F.max_pool2d(x, 2), "avg_pool2d": lambda: F.avg_pool2d(x, 2), "adaptive_avg_pool2d": lambda: F.adaptive_avg_pool2d(x, 3)}
    for name in calls:
        with weft.backends.flags(delegate=False), weft.enabled(name):
            _enable.seen(forget=True)
            for call in calls.values():
                call()
            F.conv2d(x, torch.randn(4, 1, 3, 3), groups=4)
            assert taken() == 1
            assert [s.problem.split(":")[0] for s in _enable.seen() if s.calls] == [name]
        for call in calls.values():
            call()
        assert taken() == 1


def test_an_image_without_a_batch_is_taken():
    x = torch.randn(4, 16, 16)
    with weft.backends.flags(delegate=False), weft.enabled():
        _enable.seen(forget=True)
        F.max_pool2d(x, 2), F.avg_pool2d(x, 2), F.adaptive_avg_pool2d(x, 3)
    assert taken() == 3


def test_bypass_and_pin():
    x = torch.randn(1, 4, 16, 16)
    with weft.backends.flags(delegate=False), weft.enabled():
        _enable.seen(forget=True)
        with _enable.bypassed():
            F.max_pool2d(x, 2)
        assert not _enable.seen()
    with weft.backends.pin("torch"), weft.enabled():
        F.max_pool2d(x, 2)
        assert [s.kernel for s in _enable.seen()] == ["torch"]


def test_deterministic_algorithms(on):
    torch.use_deterministic_algorithms(True)
    try:
        first, second = (step(MODULES["max"], torch.ones(2, 4, 12, 12)) for _ in range(2))
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(a, b) for a, b in zip(first, second)) and taken() == 4


def test_threads_give_the_same_bits(on):
    x, before = torch.randn(3, 7, 33, 31), torch.get_num_threads()
    made = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            made.append([t for name in ("max", "avg", "adaptive") for t in step(MODULES[name], x)])
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(*made))


# ------------------------------------------------------------------------------------------------------------------------ around it

def test_vmap(on):
    x = torch.randn(3, 2, 4, 12, 12)
    for name in ("max", "avg", "adaptive"):
        got = torch.vmap(MODULES[name])(x)
        with _enable.bypassed():
            torch.testing.assert_close(got, torch.stack([MODULES[name](t) for t in x]))
    assert taken() >= 3


def test_double_backward(on):
    x = torch.randn(1, 2, 6, 6, dtype=torch.float64, requires_grad=True)
    for name in ("max", "avg", "adaptive"):
        assert torch.autograd.gradgradcheck(MODULES[name], (x,))


def test_compile(on):
    net = torch.nn.Sequential(MODULES["max"], MODULES["avg"], MODULES["adaptive"])
    x = torch.randn(2, 4, 32, 32, requires_grad=True)
    compiled = torch.compile(net, backend="aot_eager")
    got = torch.autograd.grad(compiled(x).square().sum(), x)
    assert taken()
    with _enable.bypassed():
        expected = torch.autograd.grad(net(x).square().sum(), x)
    torch.testing.assert_close(got, expected)


POOLS = pytest.mark.parametrize("name", ["max", "avg", "adaptive"])


@POOLS
def test_transforms_of_functorch(on, name):
    """Forward mode, and gradients for each sample."""
    x, module = torch.randn(2, 4, 12, 12), MODULES[name]
    made = [torch.func.jvp(module, (x,), (torch.ones_like(x),)), torch.vmap(torch.func.grad(lambda t: module(t).square().sum()))(x)]
    assert taken()
    with _enable.bypassed():
        expected = [torch.func.jvp(module, (x,), (torch.ones_like(x),)), torch.vmap(torch.func.grad(lambda t: module(t).square().sum()))(x)]
    torch.testing.assert_close(made, expected)


@POOLS
def test_profiler_and_hooks(on, name):
    x, seen = torch.randn(2, 4, 12, 12, requires_grad=True), []
    with torch.profiler.profile() as profile:
        y = MODULES[name](x)
        y.grad_fn.register_hook(lambda *a: seen.append(1))
        y.register_hook(lambda g: 2 * g)
        got, = torch.autograd.grad(y.sum(), x)
    assert {"max": "aten::max_pool2d_with_indices", "avg": "aten::avg_pool2d", "adaptive": "aten::_adaptive_avg_pool2d"}[name] in {
        event.key for event in profile.key_averages()}
    assert seen and taken() == 2
    with _enable.bypassed():
        torch.testing.assert_close(got, 2 * torch.autograd.grad(MODULES[name](x).sum(), x)[0])


@POOLS
def test_subclasses_and_dispatch_modes(on, name):
    class Marked(torch.Tensor):
        pass

    class Counts(torch.utils._python_dispatch.TorchDispatchMode):
        seen = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            self.seen += 1
            return function(*args, **(kwargs or {}))
    x = torch.randn(2, 4, 12, 12)
    want = MODULES[name](x)
    y = MODULES[name](x.as_subclass(Marked))
    assert type(y) is Marked and torch.equal(y.as_subclass(torch.Tensor), want)
    with Counts() as mode:
        assert torch.equal(MODULES[name](x), want)
    assert mode.seen and taken() == 3


@POOLS
def test_threads(on, name):
    x = torch.randn(2, 4, 12, 12, requires_grad=True)
    want, wrong = step(MODULES[name], x), []

    def work():
        for _ in range(50):
            if not all(torch.equal(a, b) for a, b in zip(step(MODULES[name], x), want)):
                wrong.append(1)
    workers = [threading.Thread(target=work) for _ in range(4)]
    for t in workers:
        t.start()
    for t in workers:
        t.join()
    assert not wrong and taken() == 402


def test_trace_and_fake_tensors(on):
    x = torch.randn(1, 4, 16, 16)
    traced = torch.jit.trace(MODULES["max"], x)
    assert torch.equal(traced(x), MODULES["max"](x))
    assert MODULES["avg"](torch.empty(1, 4, 16, 16, device="meta")).shape == (1, 4, 8, 8)


def python(*args):
    return subprocess.run([sys.executable, *args], capture_output=True, text=True, cwd=ROOT, timeout=300)


def test_fork(on):
    x = torch.randn(2, 4, 16, 16)
    expected = F.max_pool2d(x, 2)
    child = os.fork()
    if not child:
        os._exit(0 if torch.equal(F.max_pool2d(x, 2), expected) else 1)
    assert os.waitpid(child, 0)[1] == 0


PROGRAM = """
import torch, weft
for m in (torch.nn.MaxPool2d(3, 2, 1), torch.nn.AvgPool2d(2)):
    x = torch.randn(8, 64, 56, 56, requires_grad=True)
    m(x).sum().backward()
"""


def test_report_and_no_warning(tmp_path):
    """PyTorch warns when one of its own operators is replaced: users of weft are not told so."""
    (tmp_path / "program.py").write_text(PROGRAM)
    made = python("-m", "weft", "run", "--report", str(tmp_path / "program.py"))
    assert made.returncode == 0, made.stderr
    assert "max_pool2d:fwd:f32,index=i64" in made.stderr and "max_pool2d:bwd" in made.stderr and "avg_pool2d:fwd" in made.stderr
    assert "weft took" in made.stderr and "verriding" not in made.stderr


def test_somebody_else_holds_the_key():
    made = fresh.run("""
import torch, weft
library = torch.library.Library("aten", "IMPL")
library.impl("avg_pool2d", lambda x, *rest: x.new_zeros(3), "CPU")
weft.enable()
assert torch.nn.functional.avg_pool2d(torch.ones(1, 1, 4, 4), 2).shape == (3,)
print(bin(weft._enable._lib.weft_torch_seat_state()))
""", warn="always")
    assert made.stdout.strip() == "0b1010101000101", made.stderr
    assert "another library has put its own aten::avg_pool2d at CPU" in made.stderr


@pytest.mark.parametrize("size, dilation", [((3, 9), 4), ((9, 3), 4), ((2, 2), 3)])
def test_windows_without_a_tap_in_the_image(size, dilation):
    """A dilation beyond the image's size can make some: their values and indices are PyTorch's own."""
    x = torch.randn(1, 2, *size)
    off = F.max_pool2d(x, 2, 1, 1, dilation, return_indices=True)
    with weft.backends.flags(pin="max_pool_ref"), weft.enabled():
        on = F.max_pool2d(x, 2, 1, 1, dilation, return_indices=True)
    assert torch.equal(on[0], off[0]) and torch.equal(on[1], off[1])
