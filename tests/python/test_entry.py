"""The C entries: calls with plain tensors that run what was decided for their kind, weft's plan or PyTorch's function, with the same results, gradients
and formats as the long way."""
from __future__ import annotations

import platform
import sys

import pytest
import torch
import torch.nn.functional as F

import weft
import weft.functional as W
from cases import channels_last
from entry_calls import C, N, data, depthwise, needs_entries
from weft import _enable
from weft._core import entry as _entry

KNOWN = platform.machine() == "x86_64" and sys.platform == "linux" and torch.__version__.startswith("2.13.")   # the PyTorch that weft is tested with


@pytest.mark.skipif(not KNOWN, reason="another PyTorch may have none")
def test_entries_are_in_use():
    """The test that the entries put PyTorch to passes: all that follows would be true of the long way, too."""
    assert _entry.available


CALLS = {
    "conv": lambda m, x, p: m.conv2d(x, p["w"], p["b"], padding=1),
    "conv-stride": lambda m, x, p: m.conv2d(x, p["w"], None, stride=2, dilation=2),
    "conv-groups": lambda m, x, p: m.conv2d(x, p["g"], p["b"], groups=2),
    "conv-transpose": lambda m, x, p: m.conv_transpose2d(x, p["w"], None, stride=2, output_padding=1),
    "batch-norm": lambda m, x, p: m.batch_norm(x, p["mean"].clone(), p["var"].clone(), p["b"], p["c"], True),
    "batch-norm-eval": lambda m, x, p: m.batch_norm(x, p["mean"], p["var"], p["b"], p["c"], False),
    "avg-pool": lambda m, x, p: m.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    "adaptive": lambda m, x, p: m.adaptive_avg_pool2d(x, (5, 3)),
    "relu": lambda m, x, p: m.relu(x),
    "hardtanh": lambda m, x, p: m.hardtanh(x, -0.5, 0.75),
    "tanh": lambda m, x, p: m.tanh(x),
    "sigmoid": lambda m, x, p: m.sigmoid(x),
    "relu-in-place": lambda m, x, p: m.relu(x * 1.0, inplace=True),
    "hardtanh-in-place": lambda m, x, p: m.hardtanh(x * 1.0, -0.5, 0.75, inplace=True),
    "softmax": lambda m, x, p: m.softmax(x, 1),
    "log-softmax": lambda m, x, p: m.log_softmax(x, -1),
    "max-pool": lambda m, x, p: m.max_pool2d(x, 3, 2, 1),
    "unfold": lambda m, x, p: m.unfold(x, 3, padding=1, stride=2),
}


def parameters(device):
    made = {"w": data(device, C, C, 3, 3), "g": data(device, C, C // 2, 3, 3), "b": data(device, C), "c": data(device, C)}
    return {**made, "mean": torch.randn(C, device=device, dtype=torch.float64), "var": torch.rand(C, device=device, dtype=torch.float64) + 0.5}


def results(m, name, x, p):
    y = CALLS[name](m, x, p)
    leaves = [t for t in (x, *p.values()) if t.requires_grad]
    grads = torch.autograd.grad(y, leaves, torch.linspace(-1, 1, y.numel(), dtype=y.dtype, device=y.device).view(y.shape), allow_unused=True)
    return y, grads



@pytest.mark.parametrize("form", ["first", "last"])
@pytest.mark.parametrize("name", CALLS)
def test_every_call_is_the_same(device, name, form):
    weft.backends.set_flags(delegate=True)   # starts anew
    x, p = data(device), parameters(device)
    x = (channels_last(x) if form == "last" else x).detach().requires_grad_()
    exact = {k: v.detach().double().cpu().requires_grad_(v.requires_grad) for k, v in {"x": x, **p}.items()}   # the twin on CUDA has its own faults
    want, grads = results(F, name, exact.pop("x"), exact)
    kinds = []
    for _ in range(3):
        y, ours = results(W, name, x, p)
        kinds.append(type(y.grad_fn).__name__)
        assert y.stride() == want.stride()
        torch.testing.assert_close(y.double().cpu(), want, rtol=1e-4, atol=1e-4)
        for a, b in zip(ours, grads):
            assert (a is None) == (b is None)
            if a is not None:
                torch.testing.assert_close(a.double().cpu(), b, rtol=1e-3, atol=1e-3)
    if device.type == "cpu" and not name.endswith("in-place"):
        assert not kinds[1].startswith("weft_") and kinds[1] == kinds[2] and weft.backends.kernels() == "torch", kinds
    with torch.no_grad():
        for _ in range(3):
            y = CALLS[name](W, x.detach(), p)
            assert y.stride() == want.stride() and not y.requires_grad
            torch.testing.assert_close(y.double().cpu(), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("form", ["first", "last", "part"])
@pytest.mark.parametrize("name", [n for n in CALLS if not n.endswith("in-place")])
def test_plans_that_are_run_again(name, form, dtype):
    """Without a gradient, on the types that weft's kernels are for: the first call is the operator's, later ones run its plan at once."""
    p = {k: v.detach().to(dtype if k not in ("mean", "var") else torch.float32) for k, v in parameters("cpu").items()}
    if name.startswith("batch-norm") and dtype is torch.bfloat16:
        p["b"], p["c"] = p["b"].float(), p["c"].float()
    for size in ((N, C, 24, 24), (1, C, 7, 9)):
        x = data("cpu", *size, dtype=torch.float32).detach().to(dtype)
        x = channels_last(x) if form == "last" else x[:, :, 1:, 1:] if form == "part" else x
        want = CALLS[name](F, x.double(), {k: v.double() for k, v in p.items()})
        for _ in range(4):
            fresh = x.clone(memory_format=torch.preserve_format) if form != "part" else x
            y = CALLS[name](W, fresh, p)
            near = 1e-4 if dtype is torch.float32 else 5e-2
            torch.testing.assert_close(y.double(), want, rtol=near, atol=near * max(1.0, want.abs().max().item()))


@needs_entries
@pytest.mark.parametrize("name", ["softmax", "log_softmax", "max_pool2d", "avg_pool2d", "adaptive_avg_pool2d"])
def test_tiny_calls_are_weft_own_without_a_gradient(name):
    """Where PyTorch's function takes longer than the computing; with a gradient the graph is PyTorch's, and pooling its own as well."""
    x, setting = torch.randn(1, 2, 4, 5), 1 if "softmax" in name else 2
    twin, ours = getattr(F, name), getattr(W, name)
    weft.backends.set_flags(delegate=True)   # starts anew
    for _ in range(2):
        ours(x.double(), setting)   # weft has the reference alone, which was tried
        assert weft.backends.kernels() == "torch"
    for _ in range(3):
        with torch.no_grad():
            y = ours(x, setting)
        torch.testing.assert_close(y, twin(x, setting))
        assert y.stride() == twin(x, setting).stride() and "torch" not in weft.backends.kernels()
    for _ in range(3):
        y = ours(x.clone().requires_grad_(), setting)
        y.sum().backward()
    assert "weft" not in type(y.grad_fn).__name__ and ("softmax" in name or weft.backends.kernels() == "torch")


@pytest.mark.parametrize("name", ["avg_pool2d", "adaptive_avg_pool2d"])
def test_tiny_pooling_of_16_bits_is_weft_own(name):
    """PyTorch sums in 16 bits on the CPU, or has no kernel: below its node the seat takes both passes, however small."""
    x = torch.randn(1, 2, 4, 5, dtype=torch.bfloat16, requires_grad=True)
    for _ in range(3):
        y = getattr(W, name)(x, 2)
        assert "pool_fwd" in weft.backends.kernels()
        torch.autograd.grad(y.sum(), x)
        assert "pool_bwd" in weft.backends.kernels()


def test_lists_of_one_value():
    """For every axis, as in PyTorch."""
    x, w = torch.randn(2, 4, 11, 12), torch.randn(4, 1, 3, 3)
    for grad in (False, True):
        x.requires_grad_(grad)
        for _ in range(3):
            torch.testing.assert_close(W.conv2d(x, w, None, (2,), [1], (1,), 4), F.conv2d(x, w, None, (2,), [1], (1,), 4), rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(W.avg_pool2d(x, (2,), [3]), F.avg_pool2d(x, (2,), [3]))


POOLS = [(2,), (2, 1), (3, 2, 1), (3, 2, 1, True), (3, 2, 1, False, False), (3, 2, 1, False, True)]
ARGUMENTS = {   # from those that are left out to those that are given, defaults among them
    **{f"avg_pool{rank}d": POOLS + ([(3, 2, 1, False, True, None), (3, 2, 1, False, True, 5), (3, 2, 1, False, False, 5)] if rank > 1 else []) for rank in (1, 2, 3)},
    **{f"max_pool{rank}d": [(2,), (2, 1), (3, 2, 1), (2, 2, 0, 2), (3, 2, 1, 1, True)] for rank in (1, 2, 3)},
    **{f"conv{rank}d": [(), (None,), (None, 2), (None, 1, 1), (None, 1, 0, 2), (None, 1, 0, 1, 1), (None, 1, 0, 1, 2)] for rank in (1, 2, 3)},
    **{f"conv_transpose{rank}d": [(), (None, 2), (None, 2, 1), (None, 2, 1, 1), (None, 1, 0, 0, 1), (None, 2, 0, 1, 1, 2)] for rank in (1, 2, 3)},
    "softmax": [(0,), (1,), (-1,)], "hardtanh": [(), (-0.5,), (-0.5, 0.25)],
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["weft", "torch"])
@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_that_are_given_and_left_out(name, dtype):
    """Whoever computes a call that is known, with each of them."""
    rank = int(name[-2]) if name.endswith("d") else 2
    x, weights = torch.randn(2, 4, *range(6, 6 + rank), dtype=dtype), {1: torch.randn(4, 4, *[3] * rank, dtype=dtype), 2: torch.randn(4, 2, *[3] * rank, dtype=dtype)}
    for args in ARGUMENTS[name]:
        given = (x, weights[2 if args[-1:] == (2,) and len(args) == (6 if "transpose" in name else 5) else 1], *args) if name.startswith("conv") else (x, *args)
        want = getattr(F, name)(*given)
        for _ in range(3):
            torch.testing.assert_close(getattr(W, name)(*given), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["weft", "torch"])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_same_padding(rank, dtype):
    """As much as the window, dilated, reaches beyond its middle: along every axis by itself, weft's plans and PyTorch's."""
    for window, dilation in (((3, 5, 3), (2, 1, 3)), ((5, 3, 1), (1, 4, 2)), ((3, 3, 3), (2, 2, 2)), ((2, 3, 4), (2, 3, 2))):
        window, dilation = window[:rank], dilation[:rank]
        x, w = torch.randn(2, 8, *range(17, 17 + rank), dtype=dtype), torch.randn(8, 1, *window, dtype=dtype)
        for grad in (False, True):
            x.requires_grad_(grad)
            want = getattr(F, f"conv{rank}d")(x, w, None, 1, "same", dilation, 8)
            for _ in range(3):
                y = getattr(W, f"conv{rank}d")(x, w, None, 1, "same", dilation, 8)
                assert y.shape == x.shape
                torch.testing.assert_close(y, want, rtol=1e-4, atol=1e-4)


@needs_entries
@pytest.mark.parametrize("name", ["tanh", "sigmoid"])
def test_a_gradient_from_python_where_there_is_much_to_compute(name):
    """relu and hardtanh never earn back what it costs to record one, and the others only here."""
    for count, ours in ((1 << 10, False), (1 << 17, name == "tanh")):   # PyTorch's tanh is computed one value after the other
        x = torch.randn(1, 1, count, requires_grad=True)
        for _ in range(3):
            getattr(W, name)(x)
            assert (weft.backends.kernels() != "torch") == ours, (count, weft.backends.kernels())
    for _ in range(2):
        W.relu(x), W.hardtanh(x, -1.0, 1.0)
        assert weft.backends.kernels() == "torch"
        with pytest.raises(ValueError):
            W.hardtanh(x, 1.0, -1.0)


@needs_entries
def test_a_gradient_of_weft_under_a_graph_of_pytorch():
    x, w = depthwise()
    want = F.conv2d(x, w, padding=1, groups=C)
    for _ in range(3):
        y = W.conv2d(x, w, padding=1, groups=C)
        assert type(y.grad_fn).__name__ == "ConvolutionBackward0" and "dwconv" in weft.backends.kernels()
        grads = torch.autograd.grad(y, (x, w), torch.ones_like(y))
        assert "dwconv" in weft.backends.kernels() and "bwd" in weft.backends.kernels()
        torch.testing.assert_close(y, want, rtol=1e-4, atol=1e-4)
    with weft._enable.bypassed():
        for a, b in zip(grads, torch.autograd.grad(want, (x, w), torch.ones_like(want))):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)


@needs_entries
def test_each_set_of_gradients_is_decided_by_itself():
    """The gradient of these weights is weft's by estimate, that of the input PyTorch's: one call after the other, and each with nothing known."""
    x, w = channels_last(torch.randn(2, 8, 18, 18)), channels_last(torch.randn(16, 8, 3, 3))

    def kernels(*asked):
        for t in (x, w):
            t.requires_grad_(any(t is a for a in asked))
        y = W.conv2d(x, w, padding=1)
        torch.autograd.grad(y, asked, torch.ones_like(y))
        assert not any(":strict" in s.problem for s in _enable.seen())   # as forward
        return weft.backends.kernels()
    _enable.seen(forget=True)
    together, alone = [kernels(x), kernels(w)], []
    for asked in (x, w):
        with weft.backends.flags(workspace_limit=1 << 20):   # what was decided is forgotten
            pass
        alone.append(kernels(asked))
    assert together == alone == ["torch", alone[1]] != ["torch", "torch"]


POOLS = {"max": (lambda m, x: m.max_pool2d(x, 3, 2, 1), "max_pool"), "avg": (lambda m, x: m.avg_pool2d(x, 2), "avg_pool"),
         "avg-divisor": (lambda m, x: m.avg_pool2d(x, (3, 2), 2, 1, True, False, 5), "avg_pool"),
         "adaptive": (lambda m, x: m.adaptive_avg_pool2d(x, (7, 9)), "")}   # whoever's


@needs_entries
@pytest.mark.parametrize("name", POOLS)
def test_a_pooling_of_weft_under_a_graph_of_pytorch(name):
    """Large enough that weft wins at least one of the passes."""
    call, kernel = POOLS[name]
    x = torch.randn(4, 64, 56, 56, requires_grad=True)
    with weft._enable.bypassed():
        want = call(F, x)
        exact, = torch.autograd.grad(want, x, torch.ones_like(want))
    for _ in range(3):
        y = call(W, x)
        names = [weft.backends.kernels()]
        assert not type(y.grad_fn).__name__.startswith("weft_")
        gradient, = torch.autograd.grad(y, x, torch.ones_like(y))
        torch.testing.assert_close(y, want)
        torch.testing.assert_close(gradient, exact)
        names.append(weft.backends.kernels())
        assert any(kernel in n for n in names), names
        assert y.stride() == want.stride() and gradient.stride() == exact.stride()


@needs_entries
@pytest.mark.parametrize("size, decided", [((1, 5), True), ((5, 1), True), ((2, 3), True), ((1, 1), False)], ids=str)
def test_a_mean_is_no_pooling(size, decided):
    """To one pixel PyTorch takes a mean, which has no seat; to one row or column it pools, and the first call is decided there."""
    weft.backends.set_flags(delegate=True)   # starts anew
    x = torch.randn(2, 8, 12, 12, requires_grad=True)
    y = _entry.front("adaptive_avg_pool2d")(x, size)
    assert (y is not NotImplemented) == decided
    if decided:
        torch.testing.assert_close(y, F.adaptive_avg_pool2d(x, size))


@needs_entries
def test_many_windows_have_an_index_of_one_byte():
    """From 2^18 windows on the byte saves more than a gradient recorded from Python costs."""
    for images, own in ((5, False), (6, True)):
        x = torch.randn(images, 64, 56, 56, requires_grad=True)
        for _ in range(2):
            y = W.max_pool2d(x, 3, 2, 1)
            assert (type(y.grad_fn).__name__ == "weft_max_pool_indexBackward") == own
        gradient, = torch.autograd.grad(y, x, torch.ones_like(y))
        with weft._enable.bypassed():
            want = F.max_pool2d(x, 3, 2, 1)
            exact, = torch.autograd.grad(want, x, torch.ones_like(want))
        assert torch.equal(y, want) and torch.equal(gradient, exact)
    for window, own in ((16, True), (17, False)):   # a byte names 256 places
        y = W.max_pool2d(torch.zeros(6, 64, 56, 56, requires_grad=True), window, 1, 8)
        assert (type(y.grad_fn).__name__ == "weft_max_pool_indexBackward") == own, window


@needs_entries
def test_an_error_of_pytorch_comes_through():
    """From the operator as C calls it: its builtin is called again to say what is wrong, in PyTorch's type and words."""
    x = torch.randn(2, 8, 12, 12, requires_grad=True)
    for call in (lambda: W.avg_pool2d(x, 2), lambda: W.softmax(x, 1)):
        for _ in range(3):
            call()

        def refuse(t):
            raise KeyError("no room")
        for _ in range(2):
            with torch.autograd.graph.saved_tensors_hooks(refuse, lambda t: t), pytest.raises(KeyError, match="no room"):
                call()
        assert call().requires_grad
        with weft.enabled():   # PyTorch's operators are weft's again, on this thread
            _enable.seen(forget=True)
            F.conv2d(torch.randn(2, 16, 24, 24), torch.randn(16, 1, 3, 3), groups=16)
            assert [s.kernel == "torch" for s in _enable.seen()] == [False]


@pytest.mark.parametrize("grad", [False, True], ids=["no_grad", "grad"])
@pytest.mark.parametrize("name", ["conv3d", "conv_transpose3d"])
def test_a_volume_keeps_its_format(name, grad):
    """PyTorch's own convolution of such a volume is channels-first; torch.compile is told of the operator's format."""
    x, w = channels_last(torch.randn(2, 4, 5, 5, 5, dtype=torch.float64)).requires_grad_(grad), torch.randn(4, 4, 3, 3, 3, dtype=torch.float64)
    want = getattr(F, name)(x, w)
    assert want.is_contiguous()
    for _ in range(3):
        y = getattr(W, name)(x, w)
        torch.testing.assert_close(y, want)
        assert y.is_contiguous(memory_format=torch.channels_last_3d)


@pytest.mark.parametrize("settings", [dict(delegate=False), dict(math="strict"), dict(verbose="error")])
def test_settings_close_it(device, settings):
    x, w = data(device, 1, C, 8, 8), data(device, C, C, 3, 3)

    def run():
        y = W.conv2d(x, w)
        torch.autograd.grad(y, (x, w), torch.ones_like(y))
        return type(y.grad_fn).__name__
    for _ in range(2):
        run()
    with weft.backends.flags(**settings):
        assert run() == run() == "weft_convBackward"


@needs_entries
def test_what_is_measured_is_decided_pass_by_pass():
    x = torch.randn(1, 2, 6, 6, 6, requires_grad=True)   # PyTorch's both ways by estimate
    names = []
    for benchmark in (False, True):
        with weft.backends.flags(benchmark=benchmark):
            names += [type(W.avg_pool3d(x, 2).grad_fn).__name__ for _ in range(2)]
    assert names == ["AvgPool3DBackward0"] * 2 + ["weft_avg_poolBackward"] * 2


@needs_entries
@pytest.mark.parametrize("call", [W.softmax, W.log_softmax])
def test_a_graph_is_pytorchs_whatever_was_measured(call):
    x = torch.randn(1, 2, 4, 5, requires_grad=True)
    for benchmark in (False, True, False):
        with weft.backends.flags(benchmark=benchmark):
            assert type(call(x, 1).grad_fn).__name__ in ("SoftmaxBackward0", "LogSoftmaxBackward0")


def test_second_derivatives_later_on():
    x, w = torch.randn(1, 4, 6, 6, dtype=torch.float64, requires_grad=True), torch.randn(4, 4, 3, 3, dtype=torch.float64, requires_grad=True)
    for _ in range(3):
        assert torch.autograd.gradgradcheck(lambda x, w: W.tanh(W.conv2d(x, w)), (x, w))


def test_the_profiler_shows_the_name():
    for x, w in (depthwise(False), depthwise(True)):
        for _ in range(2):
            W.conv2d(x, w, groups=C)
        with torch.profiler.profile() as profile:
            W.conv2d(x, w, groups=C)
        assert "weft::conv" in {event.key for event in profile.key_averages()}


@pytest.mark.parametrize("name", ["max-pool", "avg-pool", "adaptive"])
def test_order_is_asked_for_later(device, name):
    """What was decided without deterministic algorithms does not hold with them: PyTorch refuses some of these gradients on CUDA."""
    x, p = data(device), parameters(device)
    first = results(W, name, x.requires_grad_(), p)
    torch.use_deterministic_algorithms(True)
    try:
        second = results(W, name, x, p)
    finally:
        torch.use_deterministic_algorithms(False)
    torch.testing.assert_close(first[1][0], second[1][0])


@needs_entries
def test_what_is_decided_holds_for_one_number_of_threads():
    """With another one it is decided anew, by the long way; what was decided before is still known."""
    x, before = torch.randn(4, 16, 34, 35), torch.get_num_threads()
    long = []
    try:
        for threads in (3, 1, 3):
            torch.set_num_threads(threads)
            for _ in range(2):
                calls = 0

                def count(frame, event, arg):
                    nonlocal calls
                    calls += event == "call"
                sys.setprofile(count)
                W.avg_pool3d(x, 2)
                sys.setprofile(None)
                long.append(calls > 2)
    finally:
        torch.set_num_threads(before)
    assert long == [True, False, True, False, False, False]


@needs_entries
@pytest.mark.parametrize("size, form, own", [(56, "first", True), (32, "first", True), (4, "first", True), (56, "last", False), (32, "last", False)])
def test_batch_norm_in_training(size, form, own):
    """PyTorch takes six times as long for channels-first data, and at nominal rates is the faster one for channels-last data. The graph is its own."""
    x = torch.randn(4, 16, size, size)
    x = (channels_last(x) if form == "last" else x).requires_grad_()
    for _ in range(3):
        y = W.batch_norm(x, torch.zeros(16), torch.ones(16), training=True)
        assert (weft.backends.kernels() != "torch") == own and type(y.grad_fn).__name__ == "NativeBatchNormBackward0"
        torch.autograd.grad(y.sum(), x)
        with torch.no_grad():
            W.batch_norm(x, torch.zeros(16), torch.ones(16), training=True)
        assert (weft.backends.kernels() != "torch") == own


@pytest.mark.parametrize("grad", [False, True], ids=["no_grad", "grad"])
@pytest.mark.parametrize("form", ["first", "last", "part"])
@pytest.mark.parametrize("size", [3, 32])
def test_statistics_move_once(size, form, grad):
    """At each call, whoever computes it."""
    x = torch.randn(4, 16, size + 1, size)
    x = (channels_last(x) if form == "last" else x[:, :, 1:] if form == "part" else x).requires_grad_(grad)
    ours, theirs = ([torch.zeros(16), torch.ones(16)] for _ in range(2))
    for _ in range(4):
        F.batch_norm(x, *theirs, training=True, momentum=0.3)
        W.batch_norm(x, *ours, training=True, momentum=0.3)
        torch.testing.assert_close(ours, theirs)


@needs_entries
@pytest.mark.parametrize("grad", [False, True], ids=["no_grad", "grad"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
@pytest.mark.parametrize("name", [n for n in CALLS if not n.endswith("in-place")])
def test_a_call_that_is_known_ends_in_its_entry(name, dtype, grad):
    """An entry that computes and then refuses would have the long way compute again: there are many calls of Python on that."""
    x, p = data("cpu", dtype=dtype).detach().requires_grad_(grad), {k: v.detach().to(dtype) for k, v in parameters("cpu").items()}
    calls = 0

    def count(frame, event, arg):
        nonlocal calls
        calls += event == "call"
    for _ in range(3):
        y = CALLS[name](W, x, p)
    if type(y.grad_fn).__name__.startswith("weft_"):
        return   # a gradient from Python is the dispatcher's
    sys.setprofile(count)
    try:
        CALLS[name](W, x, p)
    finally:
        sys.setprofile(None)
    assert calls <= 3


@needs_entries
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("grad", [False, True], ids=["no_grad", "grad"])
@pytest.mark.parametrize("size", [(3, 5), (8, 30, 64, 64)], ids=["few", "many"])
def test_losses_have_an_entry(size, grad, reduction):
    """Small ones are PyTorch's with a gradient, large ones weft's; what is wrong with a label is said each time."""
    x, target = torch.randn(size, requires_grad=grad), torch.randint(size[1], (size[0], *size[2:]))
    target.view(-1)[0] = -100
    kinds = []
    for _ in range(3):
        want, got = (m.cross_entropy(x, target, torch.arange(1.0, 1 + size[1]), reduction=reduction, label_smoothing=0.0) for m in (F, W))
        torch.testing.assert_close(got, want)
        if grad:
            torch.testing.assert_close(*(torch.autograd.grad(y.sum(), x)[0] for y in (got, want)))
            kinds.append(type(got.grad_fn).__name__.startswith("weft_"))
    assert kinds == ([len(size) > 2] * 3 if grad else [])
    target.view(-1)[1] = size[1]
    for _ in range(2):
        with pytest.raises(IndexError):
            W.cross_entropy(x, target, torch.arange(1.0, 1 + size[1]), reduction=reduction)
    with pytest.raises(ValueError, match="reduction: is 'average'"):
        W.cross_entropy(x, target, reduction="average")


@needs_entries
def test_the_builtin_of_operators():
    """It returns what it has computed; what an operator writes into is left to the dispatcher, untouched."""
    x, mean, var = torch.randn(4, 8, 6, 6), torch.zeros(8), torch.ones(8)
    y = _entry.run(_entry.number("softmax"), x, 1, torch.float32)
    torch.testing.assert_close(y, torch.softmax(x, 1))
    assert _entry.run(_entry.number("batch_norm_train"), x, None, None, mean, var, 1e-5, 0.1) is NotImplemented
    assert not mean.any() and (var == 1).all()


@needs_entries
def test_a_call_is_computed_once():
    """Convolutions with and without a gradient, by the seat's count; the first call, and later ones."""
    for grad in (False, True):
        x, w = depthwise(grad)
        weft.backends.set_flags(delegate=True)
        _enable.seen(forget=True)
        for n in range(1, 4):
            y = W.conv2d(x, w, padding=1, groups=C)
            if grad:
                y.sum().backward()
            for s in _enable.seen():
                assert s.calls == n, s


def test_another_format_is_copied_and_nothing_runs_twice():
    """PyTorch's 1D batch norm of channels-last data is channels-first; the statistics move once."""
    x = torch.randn(4, 9, 5).transpose(1, 2).requires_grad_()
    results = []
    for f in (F.batch_norm, W.batch_norm):
        mean, var = torch.zeros(5), torch.ones(5)
        for _ in range(4):
            y = f(x, mean, var, training=True)
            y.sum().backward()
        results.append((y.detach(), mean, var))
    for theirs, ours in zip(*results):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("form", ["first", "last"])
@pytest.mark.parametrize("rank", [2, 3])
def test_max_pooling_in_training(device, rank, form):
    """In 2D under PyTorch's graph, by whoever wins; in 3D by PyTorch, graph and all, where it wins, and by weft, with a byte index, where it does not;
    by weft alone where PyTorch was not asked."""
    x = torch.randn((4, 16, 24, 24) if rank == 2 else (2, 8, 12, 12, 12), device=device)
    x = (channels_last(x) if form == "last" else x).requires_grad_()
    function, twin = getattr(W, f"max_pool{rank}d"), getattr(F, f"max_pool{rank}d")
    exact = x.detach().cpu().double().contiguous().requires_grad_()
    want = twin(exact, 3, 2, 1)
    grads = torch.autograd.grad(want, exact, torch.linspace(-1, 1, want.numel(), dtype=torch.float64).view(want.shape))[0]
    for settings in ({}, {}, {"delegate": False}):
        with weft.backends.flags(**settings):
            y = function(x, 3, 2, 1)
            own = type(y.grad_fn).__name__.startswith("weft_")
            if device.type == "cuda":
                assert own or not settings   # PyTorch's graph where weft computes the gradient, else weft's own
            elif settings or rank == 3 or not _entry.available:
                assert own == (weft.backends.kernels() != "torch") and (own or not settings)
            else:
                assert not own
            got = torch.autograd.grad(y, x, torch.linspace(-1, 1, y.numel(), device=device).view(y.shape))[0]
        torch.testing.assert_close(y.double().cpu(), want)
        torch.testing.assert_close(got.double().cpu(), grads, rtol=1e-4, atol=1e-5)
    torch.use_deterministic_algorithms(True)
    try:
        y = function(x, 3, 2, 1)
        torch.autograd.grad(y, x, torch.ones_like(y))
    finally:
        torch.use_deterministic_algorithms(False)


def test_fake_tensors_teach_nothing():
    """What runs on a fake tensor is no kernel: the real one with the same shape keeps weft's."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    weft.backends.set_flags(delegate=True)
    with FakeTensorMode():
        for _ in range(2):
            W.conv2d(torch.empty(2, 8, 20, 20), torch.empty(8, 1, 3, 3), groups=8)
            W.max_pool2d(torch.empty(2, 8, 20, 20, requires_grad=True), 2)
    for _ in range(2):
        W.conv2d(torch.randn(2, 8, 20, 20), torch.randn(8, 1, 3, 3), groups=8)
        assert "dwconv" in weft.backends.kernels()
