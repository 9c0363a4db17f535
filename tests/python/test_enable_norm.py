"""weft.enable() under PyTorch's own softmax, log-softmax and batch norm: their numbers, strides, statistics and errors, with weft on, off, and switched between."""
from __future__ import annotations

import itertools
import os

import pytest
import torch
import torch.nn.functional as F

import weft
from cases import DTYPES, tolerance
from samples import draw
from weft import _enable

SLOW = os.environ.get("WEFT_SLOW", "0") not in ("", "0")
aten = torch.ops.aten
SOFTMAX = {"softmax": (aten._softmax, aten._softmax_backward_data), "log_softmax": (aten._log_softmax, aten._log_softmax_backward_data)}
HOW = {"free": {}, "fast": {"delegate": False}}


@pytest.fixture
def on(device):
    """weft's fast kernels wherever there are any."""
    with weft.backends.flags(delegate=False), weft.enabled(device=device):
        _enable.seen(forget=True)
        yield


def taken() -> int:
    return sum(s.calls for s in _enable.seen() if s.kernel != "torch")


def assert_same(off, on, terms=64, narrow=None):
    """narrow: the type of the data beside which PyTorch sums the gradients of float32 parameters."""
    for a, b in zip(off, on, strict=True):
        assert (a is None) is (b is None)
        if a is not None:
            assert a.shape == b.shape and a.dtype == b.dtype and a.stride() == b.stride()
            scale = max(a.double().nan_to_num(0, 0, 0).abs().max().item() if a.numel() else 0, 1.0)
            torch.testing.assert_close(b, a, rtol=0, atol=2 * tolerance(narrow or a.dtype, terms) * scale, equal_nan=True)


def formats(t):
    """Contiguous, channels-last, axes turned, every second element of the last axis, one row for all."""
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(t.dim(), torch.contiguous_format)
    return [t.contiguous(), t.contiguous(memory_format=last), t.transpose(0, -1).contiguous().transpose(0, -1), t.repeat_interleave(2, -1)[..., ::2],
            t.narrow(-1, 0, 1).expand_as(t)]


# ------------------------------------------------------------------------------------------------------------------------ softmax

@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d)[6:])
@pytest.mark.parametrize("name", SOFTMAX)
def test_softmax(device, name, dtype, how):
    forward, backward = SOFTMAX[name]
    ran, every = 0, itertools.product([(5,), (3, 40), (2, 7, 33), (2, 21, 9, 10), (2, 3, 4, 5, 6), (1, 300, 2)], range(-2, 5), range(5), (0, 2, 4))
    for shape, dim, layout, of_gradient in draw([e for e in every if -len(e[0]) <= e[1] < len(e[0])], 300 if SLOW else 50):
        x, dy = (formats(torch.randn(shape).to(device, dtype) * 3)[f] for f in (layout, of_gradient))

        def run():
            y = forward(x, dim, False)   # noqa: B023
            return y, backward(dy, y, dim, dtype)   # noqa: B023
        off = run()
        with weft.backends.flags(**HOW[how]), weft.enabled(device=device):
            _enable.seen(forget=True)
            assert_same(off, run())
            ran += taken()
    assert ran > 20 or dtype is torch.float64 or how == "free"


@pytest.mark.parametrize("name", SOFTMAX)
def test_softmax_of_what_is_not_finite(device, on, name):
    x = torch.tensor([[1.0, float("inf"), 2, 3], [1, float("nan"), 2, 3], [-float("inf")] * 4, [-float("inf"), 0, 1, 2]], device=device)
    with _enable.bypassed():
        want = SOFTMAX[name][0](x, 1, False)
    torch.testing.assert_close(SOFTMAX[name][0](x, 1, False), want, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_softmax_of_another_type(device, on, dtype):
    x = torch.randn(2, 3, 4, device=device, requires_grad=True)
    y = F.softmax(x, 1, dtype=dtype)
    y.square().sum().backward()
    assert y.dtype == dtype and x.grad.dtype == torch.float32
    half = F.softmax(x.detach().half(), 1, dtype=torch.float32)   # on CUDA one pass from 16 bits to 32
    torch.testing.assert_close(half, x.detach().half().float().softmax(1))


# ------------------------------------------------------------------------------------------------------------------------ batch norm

def norm(shape, dtype, device, affine, track):
    """Parameters and statistics of a module."""
    narrow = dtype in (torch.float16, torch.bfloat16)
    kind = torch.float32 if narrow else dtype
    weight, bias, mean, var = (torch.rand(shape[1], device=device, dtype=kind) + 0.5 for _ in range(4))
    return (weight, bias) if affine else (None, None), (mean, var) if track else (None, None)


def results(x, dy, parameters, statistics, training):
    """The result, gradients, and the statistics after it."""
    statistics = [None if s is None else s.clone() for s in statistics]
    leaves = [t if t is None else t.detach().clone(memory_format=torch.preserve_format).requires_grad_() for t in (x, *parameters)]
    y = F.batch_norm(leaves[0], *statistics, *leaves[1:], training, 0.3, 1e-3)
    wanted = [t for t in leaves if t is not None]
    return [y.detach(), *torch.autograd.grad(y, wanted, dy), *statistics]


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d)[6:])
def test_batch_norm(device, dtype, training, how):
    ran, narrow = 0, dtype in (torch.float16, torch.bfloat16)
    every = itertools.product([(6, 5), (4, 3, 17), (2, 9, 7, 8), (3, 16, 12, 12), (2, 3, 4, 5, 6)], (True, False), (True, False), range(4), (0, 1, 4))
    for shape, affine, track, layout, of_gradient in draw(list(every), 300 if SLOW else 50):
        if not (track or training) or (narrow and not affine):
            continue
        x, dy = (formats(torch.randn(shape).to(device, dtype))[f] for f in (layout, of_gradient))
        args = (x, dy, *norm(shape, dtype, device, affine, track), training)
        off = results(*args)
        with weft.backends.flags(**HOW[how]), weft.enabled(device=device):
            _enable.seen(forget=True)
            assert_same(off, results(*args), 512, dtype if narrow else None)
            ran += taken()
    assert ran > 10 or dtype is torch.float64 or how == "free"


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_turned_data_on_the_cpu_is_copied(training):
    """(batch, time, channels) seen as (batch, channels, time): PyTorch goes through it one value after the other. What is expanded stays PyTorch's."""
    x, dy = torch.randn(4, 50, 24).transpose(1, 2), torch.randn(4, 50, 24).transpose(1, 2)
    args = norm(x.shape, x.dtype, "cpu", True, True)
    off = results(x, dy, *args, training)
    with weft.enabled():
        _enable.seen(forget=True)
        assert_same(off, results(x, dy, *args, training), 512)
        assert taken() == 2 and all(":ncw:" in s.problem for s in _enable.seen()), _enable.seen()
        _enable.seen(forget=True)
        F.batch_norm(x[:, :, :1].expand_as(x), *args[1], *args[0], training)
        assert taken() == 0


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("forward", [False, True])
def test_switched_between_forward_and_backward(device, forward, training):
    """What one side saves serves the other, also cuDNN's gradient, which asks for memory of its own."""
    x = torch.randn(4, 8, 20, 24, device=device, requires_grad=True)
    module = torch.nn.BatchNorm2d(8).to(device).train(training)
    calls = [lambda: module(x), lambda: F.log_softmax(x, 1), lambda: F.softmax(x, 1)]
    for call in calls:
        expected, = torch.autograd.grad(call().square().sum(), x)
        with weft.backends.flags(delegate=False):
            with weft.enabled(device=device) if forward else torch.enable_grad():
                loss = call().square().sum()
            with weft.enabled(device=device) if not forward else torch.enable_grad():
                _enable.seen(forget=True)
                got, = torch.autograd.grad(loss, x)
                assert bool(taken()) is not forward
        assert_same([expected], [got], 512)


@pytest.mark.parametrize("frozen", ["weight", "bias", "both", "data"])
def test_gradients_that_are_not_wanted(device, on, frozen):
    x, module = torch.randn(4, 8, 20, 24, device=device), torch.nn.BatchNorm2d(8).to(device)
    for name in {"both": ("weight", "bias"), "data": ()}.get(frozen, (frozen,)):
        getattr(module, name).requires_grad_(False)
    x.requires_grad_(frozen != "data")
    wanted = [t for t in (x, *module.parameters()) if t.requires_grad]
    got = torch.autograd.grad(module(x).square().sum(), wanted)
    with _enable.bypassed():
        assert_same(torch.autograd.grad(module(x).square().sum(), wanted), got, 1 << 16)


def test_the_mean_over_all_batches(device, on):
    """momentum=None: another one at each step."""
    ours, theirs = (torch.nn.BatchNorm2d(4, momentum=None).to(device) for _ in range(2))
    for _ in range(5):
        x = torch.randn(3, 4, 9, 9, device=device)
        y = ours(x)
        with _enable.bypassed():
            assert_same([theirs(x)], [y], 512)
    assert_same([theirs.running_mean, theirs.running_var], [ours.running_mean, ours.running_var], 512)


def test_statistics_that_share_memory_until_they_are_written(device, on):
    mean, var = torch.zeros(8, device=device), torch.ones(8, device=device)
    shared = torch._lazy_clone(mean)
    F.batch_norm(torch.randn(4, 8, 20, 24, device=device) + 5, mean, var, training=True)
    assert taken() == 1 and shared.abs().max() == 0 and mean.abs().min() > 0.1


# ------------------------------------------------------------------------------------------------------------------------ what stands above

CALLS = {"softmax": lambda x: F.softmax(x, 1), "log_softmax": lambda x: F.log_softmax(x, 1),
         "train": lambda x: F.batch_norm(x, None, None, training=True),
         "eval": lambda x: F.batch_norm(x, x.new_full((x.shape[1],), 0.3), x.new_full((x.shape[1],), 2.0))}


@pytest.mark.parametrize("name", CALLS)
def test_second_derivatives(device, on, name):
    x = torch.randn(3, 4, 5, 6, device=device, requires_grad=True)

    def second():
        first, = torch.autograd.grad(CALLS[name](x).pow(3).sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), x)
    got = second()
    with _enable.bypassed():
        assert_same(second(), got, 4096)
    assert torch.autograd.gradgradcheck(CALLS[name], x.detach()[:2, :3, :2, :2].double().requires_grad_())


@pytest.mark.parametrize("name", CALLS)
def test_transforms(device, on, name):
    x = torch.randn(3, 4, 5, 6, device=device)
    calls = [lambda: torch.func.jvp(CALLS[name], (x,), (x + 1,))[1], lambda: torch.func.grad(lambda t: CALLS[name](t).square().sum())(x),
             lambda: torch.func.vmap(CALLS[name])(x.unsqueeze(1)), lambda: torch.compile(CALLS[name], backend="eager")(x),
             lambda: torch.jit.trace(CALLS[name], x)(x)]
    for call in calls:
        got = call()
        with _enable.bypassed():
            assert_same([call()], [got], 4096)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(device, on, dtype):
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.LogSoftmax(1)).to(device)
    x = torch.randn(2, 3, 12, 12, device=device)

    def step():
        with torch.autocast(device.type, dtype):
            y = net(x)
        return [y.detach(), *(g.float() for g in torch.autograd.grad(y.sum(1).square().mean() + y[:, 0].mean(), list(net.parameters())))]
    got = step()
    with _enable.bypassed():
        want = step()
    for a, b in zip(want, got, strict=True):
        scale = max(t.abs().max().item() for t in want[1:]) if b.dtype == torch.float32 else b.abs().max().item()   # sums that cancel out
        torch.testing.assert_close(b, a, rtol=0, atol=0.03 * scale)


def test_each_operator_has_its_switch(device):
    x = torch.randn(4, 8, 16, 16, device=device)
    calls = {"softmax": CALLS["softmax"], "log_softmax": CALLS["log_softmax"], "batch_norm": CALLS["train"]}
    for name in calls:
        with weft.backends.flags(delegate=False), weft.enabled(name, device=device):
            _enable.seen(forget=True)
            for call in calls.values():
                call(x)
            assert taken() == 1
            assert [s.problem.split(":")[0].rstrip("123d") for s in _enable.seen() if s.calls] == [name]


def test_a_gradient_of_weft_functions_is_pytorchs_node(device):
    """While weft is not enabled: the call is marked, and another one of the same sizes is not taken forward."""
    x = torch.randn(4, 8, 32, 32, device=device, requires_grad=True)
    for ours, theirs in ((weft.functional.softmax, F.softmax), (weft.functional.log_softmax, F.log_softmax)):
        with weft.backends.flags(delegate=False):
            y = ours(x, 1)
            assert "weft" not in weft.backends.kernels() and "torch" not in weft.backends.kernels()
            got, = torch.autograd.grad(y.square().sum(), x)
        _enable.seen(forget=True)
        with _enable.bypassed():
            assert_same([*torch.autograd.grad(theirs(x, 1).square().sum(), x)], [got], 512)
        theirs(x.detach(), 1)
        assert taken() == 0


# ------------------------------------------------------------------------------------------------------------------------ errors

X, V = torch.zeros(2, 3, 4, 4), torch.ones(3)
WRONG = {
    "dim": lambda: F.softmax(X, 4), "type": lambda: aten._softmax(X.long(), 1, False), "to float": lambda: aten._softmax(X, 1, True),
    "gradient": lambda: aten._softmax_backward_data(X[:1], X, 1, torch.float32), "gradient type": lambda: aten._softmax_backward_data(X.double(), X, 1, torch.float32),
    "log gradient dim": lambda: aten._log_softmax_backward_data(X, X, -5, torch.float32),
    "statistics": lambda: F.batch_norm(X, V[:2], V), "weight": lambda: F.batch_norm(X, V, V, V[:2], V), "rank": lambda: aten.native_batch_norm(V, V, V, V, V, True, 0.1, 1e-5),
    "bias alone": lambda: F.batch_norm(X, V, V, None, V[:2]), "none": lambda: F.batch_norm(X, None, None), "one value": lambda: F.batch_norm(X[:1, :, :1, :1], V, V, training=True),
}


def test_a_loss_of_weft_has_the_same_bits_from_the_first_call_on():
    """Where PyTorch computes all of it, its log-softmax is not the seat's, in the first call or later."""
    x, target = torch.randn(2, 3, 5, 5), torch.randint(0, 3, (2, 5, 5))
    made = []
    with weft.enabled():
        for _ in range(3):
            leaf = x.clone().requires_grad_()
            loss = weft.functional.cross_entropy(leaf, target)
            made.append((loss.detach(), *torch.autograd.grad(loss, leaf)))
    assert all(torch.equal(a, b) for later in made[1:] for a, b in zip(made[0], later))


@pytest.mark.parametrize("name", WRONG)
def test_errors_are_those_of_pytorch(name):
    def outcome():
        try:
            made = WRONG[name]()
        except Exception as error:   # what PyTorch lets pass, passes
            return type(error), str(error)
        return [(t.shape, t.dtype) for t in (made if isinstance(made, tuple) else (made,))]
    off = outcome()
    for _ in range(2):
        with weft.backends.flags(delegate=False), weft.enabled():
            assert outcome() == off


@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4), (2, 3, 0)], ids=str)
def test_empty(shape):
    with weft.backends.flags(delegate=False), weft.enabled():
        assert F.softmax(torch.zeros(shape), 1).shape == F.log_softmax(torch.zeros(shape), -1).shape == shape
        assert F.batch_norm(torch.zeros(shape), torch.zeros(shape[1]), torch.ones(shape[1])).shape == shape
