"""In training, calls whose every pass PyTorch computes go straight to its functions from the second one on: with the same results, gradients
and formats, and only while nothing else was asked for."""
from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import weft
import weft.functional as W
from cases import channels_last

N, C = 4, 16


def data(device, *shape, dtype=torch.float64):
    """In float64, for which weft has the reference alone: PyTorch computes it."""
    return torch.randn(*(shape or (N, C, 24, 24)), device=device, dtype=dtype, requires_grad=True)


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
        assert y.stride() == want.stride() or form == "last"
        torch.testing.assert_close(y.double().cpu(), want, rtol=1e-4, atol=1e-4)
        for a, b in zip(ours, grads):
            assert (a is None) == (b is None)
            if a is not None:
                torch.testing.assert_close(a.double().cpu(), b, rtol=1e-3, atol=1e-3)
    assert kinds[0].startswith("weft_")
    if device.type == "cpu" and not name.endswith("in-place"):
        assert not kinds[1].startswith("weft_") and kinds[1] == kinds[2] and weft.backends.kernels() == "torch", kinds


def test_kernels_of_weft_keep_their_way(device):
    x, w = data(device, dtype=torch.float32), data(device, C, 1, 3, 3, dtype=torch.float32)
    for _ in range(3):
        y = W.conv2d(x, w, padding=1, groups=C)
        assert type(y.grad_fn).__name__ == "weft_convBackward"
        torch.autograd.grad(y, (x, w), torch.ones_like(y))


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
    assert run() == "weft_convBackward"   # seen anew


def test_other_kinds_of_calls_are_seen_by_themselves():
    x, w = data("cpu"), data("cpu", C, C, 3, 3)
    for _ in range(2):
        y = W.conv2d(x, w)
        torch.autograd.grad(y, (x, w), torch.ones_like(y))
    assert type(W.conv2d(x, w).grad_fn).__name__ == "ConvolutionBackward0"
    for other in (W.conv2d(x.detach(), w), W.conv2d(x, w, padding=1), W.conv2d(x, w, act="relu"), W.conv2d(x[:2], w), W.conv2d(x.float(), w.float())):
        assert type(other.grad_fn).__name__ == "weft_convBackward"


def test_second_derivatives_later_on():
    x, w = torch.randn(1, 4, 6, 6, dtype=torch.float64, requires_grad=True), torch.randn(4, 4, 3, 3, dtype=torch.float64, requires_grad=True)
    for _ in range(3):
        assert torch.autograd.gradgradcheck(lambda x, w: W.tanh(W.conv2d(x, w)), (x, w))


def test_the_profiler_shows_the_name():
    x, w = data("cpu"), data("cpu", C, C, 3, 3)
    for _ in range(2):
        y = W.conv2d(x, w)
        torch.autograd.grad(y, (x, w), torch.ones_like(y))
    with torch.profiler.profile() as profile:
        assert type(W.conv2d(x, w).grad_fn).__name__ == "ConvolutionBackward0"
    assert "weft::conv" in {event.key for event in profile.key_averages()}


def test_another_format_is_copied_and_nothing_runs_twice():
    """PyTorch's 1D batch norm of channels-last data is channels-first; weft's is not, and the statistics move once."""
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
    """By PyTorch where it wins without an index; by weft, with a byte index, where it does not or was not asked."""
    x = torch.randn((4, 16, 24, 24) if rank == 2 else (2, 8, 12, 12, 12), device=device)
    x = (channels_last(x) if form == "last" else x).requires_grad_()
    function, twin = getattr(W, f"max_pool{rank}d"), getattr(F, f"max_pool{rank}d")
    exact = x.detach().cpu().double().contiguous().requires_grad_()
    want = twin(exact, 3, 2, 1)
    grads = torch.autograd.grad(want, exact, torch.linspace(-1, 1, want.numel(), dtype=torch.float64).view(want.shape))[0]
    for settings in ({}, {}, {"delegate": False}):
        with weft.backends.flags(**settings):
            y = function(x, 3, 2, 1)
            own = device.type == "cuda"   # weft wins there, and PyTorch's sums may change from run to run
            assert type(y.grad_fn).__name__.startswith("weft_") == bool(settings or own)
            assert weft.backends.kernels() == "torch" or settings or own
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
