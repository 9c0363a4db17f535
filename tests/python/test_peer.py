"""PyTorch's own convolution as a candidate: chosen where it is better, forced and forbidden by name, and the same results either way."""
from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import weft
import weft.functional as W
from cases import CASES, DTYPES, SMALL, Case, case, channels_last, close, truth_of
from weft import _enable
from weft._core import library as _library


def both_ways(c: Case, tensors, pinned: str):
    """Forward and gradients with a kernel pinned; the names of what ran."""
    views = [None if t is None else t.detach().requires_grad_() for t in tensors]
    with weft.backends.pin(pinned):
        y = c.weft(*views, **c.options)
        ran = [weft.backends.kernels()]   # on CUDA gradients run on a thread of their own, whose kernels this does not show
        grad = torch.randn_like(y)
        grads = torch.autograd.grad(y, [v for v in views if v is not None], grad)
        ran.append(weft.backends.kernels())
    return y.detach(), grad, grads, ran


@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("c", CASES, ids=str)
def test_torch_computes_every_case(device, c, last):
    tensors = c.tensors(device)
    if last and len(c.input) == len(c.weight):
        tensors[0] = channels_last(tensors[0])
    y, grad, grads, ran = both_ways(c, tensors, "torch")
    truth = truth_of(c, tensors, grad)
    for ours, exact in zip([y, *grads], truth, strict=True):
        close(ours.cpu(), exact, terms=max(64, grad.numel()))
    with torch.no_grad():
        assert c.weft(*tensors, **c.options).stride() == c.twin(*tensors, **c.options).stride()
    if y.numel():
        assert ran == ["torch", ran[1]] and set(ran[1].split(" + ")) == {"torch"}, ran


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("c", SMALL, ids=str)
def test_types(device, c, dtype):
    tensors = c.tensors(device, dtype)
    y, grad, grads, _ = both_ways(c, tensors, "torch")
    with weft.backends.flags(delegate=False):
        views = [None if t is None else t.detach().requires_grad_() for t in tensors]
        own = c.weft(*views, **c.options)
        assert "torch" not in weft.backends.kernels()
        of_own = torch.autograd.grad(own, [v for v in views if v is not None], grad)
        assert "torch" not in weft.backends.kernels()
    for a, b in zip([y, *grads], [own, *of_own], strict=True):
        assert a.stride() == b.stride() and a.dtype == b.dtype
        close(a.cpu(), b.detach().cpu().double(), terms=max(64, grad.numel()))


@pytest.mark.parametrize("act, clip", [("relu", (0, 6)), ("clip", (0, 6)), ("clip", (-0.25, 0.5))])
@pytest.mark.parametrize("name", ["2d-dense", "2d-same-dilated", "2d-unbatched", "t2d-output-padding"])
def test_activation_and_out(device, name, act, clip):
    c = case(name)
    x, w, b = c.tensors(device)
    expected = c.twin(x, w, b, **c.options)
    expected = expected.relu() if act == "relu" else expected.clamp(*clip)
    out = torch.full_like(expected, float("nan"))
    with weft.backends.pin("torch"):
        torch.testing.assert_close(c.weft(x, w, b, **c.options, act=act, clip=clip), expected, rtol=1e-5, atol=1e-5)
        assert weft.backends.kernels().startswith("torch")
        assert c.weft(x, w, b, **c.options, act=act, clip=clip, out=out) is out
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


def test_dense_convolution_is_left_to_torch(device):
    """The planner's own choice, where weft has only the reference."""
    x, w = (torch.randn(*shape, device=device, dtype=torch.float64) for shape in ((2, 32, 40, 40), (32, 32, 3, 3)))
    y = W.conv2d(x, w, padding=1)
    assert weft.backends.kernels() == "torch"
    torch.testing.assert_close(y, F.conv2d(x, w, padding=1))
    with weft.backends.flags(delegate=False):
        W.conv2d(x[:1, :, :8, :8], w, padding=1)
        assert "ref" in weft.backends.kernels()


def test_a_fast_kernel_is_kept(device):
    x, w = torch.randn(4, 32, 56, 56, device=device), torch.randn(32, 1, 3, 3, device=device)
    W.conv2d(x, w, padding=1, groups=32)
    assert "dwconv" in weft.backends.kernels()


def test_half_with_float_bias_is_computed_by_weft(device):
    x, w, b = torch.randn(1, 16, 9, 9, device=device).half(), torch.randn(16, 16, 3, 3, device=device).half(), torch.randn(16, device=device)
    with weft.backends.pin("torch"):
        y = W.conv2d(x, w, b)
        assert "torch" not in weft.backends.kernels()
    close(y.cpu(), F.conv2d(x.double().cpu(), w.double().cpu(), b.double().cpu()), terms=144)


def test_math_that_torch_may_not_keep():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    x, w = torch.randn(1, 16, 9, 9, device="cuda"), torch.randn(16, 16, 3, 3, device="cuda")
    with weft.backends.flags(math="strict"), weft.backends.pin("torch"):
        W.conv2d(x, w)
        assert "torch" not in weft.backends.kernels()


def test_an_error_of_torch_is_told(device):
    """A peer that fails raises with PyTorch's words, and the process goes on."""
    x = torch.randn(1, 4, 9, 9, device=device)
    with weft.backends.pin("torch"), pytest.raises(RuntimeError, match="weft::conv"):
        W.conv2d(x, torch.randn(4, 4, 3, 3, device=device), dilation=5)
    assert W.conv2d(x, torch.randn(4, 4, 3, 3, device=device)).shape == (1, 4, 7, 7)


def test_an_error_within_torch_is_told(device, monkeypatch):
    def fail(*args, **options):
        raise RuntimeError("no room today")
    with monkeypatch.context() as patch, weft.backends.pin("torch"), pytest.raises(RuntimeError):
        patch.setattr(torch, "mul", fail)
        W.dgmm(torch.randn(4, 5, device=device), torch.randn(5, device=device))
    with weft.enabled(device=device):   # afterwards PyTorch's operators on this thread are weft's as well
        _enable.seen(forget=True)
        F.conv2d(torch.randn(4, 16, 24, 24, device=device), torch.randn(16, 1, 3, 3, device=device), groups=16)
        assert len(_enable.seen()) == 1


# Whose they are is beyond doubt in docs/benchmarks: the first by a third at least, most of the second as a call of weft costs more.
WEFTS = """max_pool2d:fwd:f32:nchw:n8c64h56w56:k3s2p1 avg_pool2d:bwd:f32:nchw:n8c64h56w56:k3s2p1 batch_norm2d:fwd:f32:nchw:n8c64h56w56:train1
softmax2d:fwd:f32:nchw:n8c64h56w56 softmax2d:fwd:f32:nhwc:n8c64h56w56 softmax2d:bwd:f32:nchw:n8c64h56w56 lstm:fwd:f32:dense:t2n1c8o8
gru:bwd:f32:dense:t50n8c128o128:train1 rnn_tanh:fwd:f32:dense:t50n8c64o64 im2col2d:fwd:f32:nchw:n8c64h56w56:k3p1 lrn2d:fwd:f32:nchw:n8c64h56w56:size5
tanh2d:fwd:f32:nchw:n8c64h56w56 ncrelu2d:fwd:f32:nchw:n8c64h56w56 cross_entropy2d:fwd:f32:nchw:n8c21h56w56:ignore255 dgmm:fwd:f32:dense:n1h64w64:side1
conv2d:fwd:f32:nchw:n8c64h56w56:o64k3p1g64 conv2d:bwd:f32:nchw:n8c64h56w56:o64k3p1g64 conv2d:fwd:f32:nchw:n8c64h56w56:o64k31p15g64 conv2d:fwd:f16:nchw:n8c64h56w56:o64k3p1
conv3d:fwd:f32:ncdhw:n1c32d20h20w20:o32k3p1g32 conv3d:bwd:f32:ncdhw:n1c32d20h20w20:o32k3p1g8
partial_conv2d:fwd:f32,mask=u8,new_mask=u8:nchw:n2c64h56w56:o64k3p1mask1""".split()
TORCHS = """max_pool2d:fwd:f32:nchw:n1c2h4w4:k2s2 avg_pool2d:fwd:f32:nchw:n1c2h4w4:k2s2 batch_norm2d:fwd:f32:nchw:n8c64h56w56:train0
gru:fwd:f32:dense:t1n1c4o4 rnn_tanh:fwd:f32:dense:t1n1c4o4 conv2d:fwd:f64:nchw:n8c64h28w28:o64k3p1
conv2d:fwd:f32:nhwc:n2c128h56w56:o128k31p15g128""".split()


@pytest.mark.skipif("avx512" not in _library.describe(), reason="the constants were measured with AVX-512")
@pytest.mark.parametrize("problem", WEFTS + TORCHS)
def test_who_wins_by_estimate(problem):
    own, torchs = (f(f"{problem}@cpu".encode()) for f in (_library.lib.weft_torch_own_ns, _library.lib.weft_torch_estimate_ns))
    assert own < torchs / 1.3 if problem in WEFTS else own > 0.8 * torchs, (own, torchs)


def test_estimates_keep_to_the_limit_of_workspace():
    """What does not fit is no candidate: here the faster kernels transform the weights, and the others pack them."""
    problem = b"conv2d:fwd:f32:nchw:n1c64h56w56:o64k3p1@cpu"
    found = []
    for limit in (None, 1 << 22, 1 << 12):
        with weft.backends.flags(workspace_limit=limit):
            found.append(_library.lib.weft_torch_own_ns(problem))
    assert 0 < found[0] < found[1] < found[2] == float("inf")


POOLS_16 = {"avg": lambda m, x: m.avg_pool2d(x, 9, 1), "adaptive": lambda m, x: m.adaptive_avg_pool2d(x, (7, 9)), "max": lambda m, x: m.max_pool2d(x, 3, 2),
            "avg3d": lambda m, x: m.avg_pool3d(x.unsqueeze(0), (2, 9, 9), 1), "adaptive3d": lambda m, x: m.adaptive_avg_pool3d(x.unsqueeze(0), (2, 9, 9))}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=lambda d: str(d)[6:])
@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("name", POOLS_16)
def test_pooling_of_16_bits_is_never_left_to_pytorch(name, last, dtype):
    """On the CPU it lacks some and sums in 16 bits in others: not even where PyTorch is asked for."""
    x = torch.rand(2, 8, 40, 40) + 1
    x = (channels_last(x) if last else x).to(dtype).requires_grad_()
    exact = x.detach().double().requires_grad_()
    want = POOLS_16[name](F, exact)
    grad = (torch.rand(want.shape) + 1).to(dtype)
    wanted, = torch.autograd.grad(want, exact, grad.double())
    for pin in (None, "torch"):
        with weft.backends.pin(pin):
            y = POOLS_16[name](W, x)
            assert "torch" not in weft.backends.kernels()
            made, = torch.autograd.grad(y, x, grad)
            assert "torch" not in weft.backends.kernels()
        for ours, truth in ((y, want), (made, wanted)):
            torch.testing.assert_close(ours.double(), truth, rtol=torch.finfo(dtype).eps, atol=0)


@pytest.mark.parametrize("kinds", [(torch.float32,) * 2, (torch.float64,) * 2, (torch.bfloat16, torch.float32), (torch.float16, torch.float32)], ids=str)
@pytest.mark.parametrize("affine", [True, False], ids=["affine", "plain"])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("shape, last", [((4, 8, 6, 7), False), ((4, 8, 6, 7), True), ((5, 3), False), ((2, 3, 9), False), ((2, 3, 4, 5, 6), False)], ids=str)
def test_batch_norm(device, shape, last, training, affine, kinds):
    """PyTorch's kernels through weft's operators give what PyTorch gives: results, strides, running statistics, gradients."""
    x = torch.randn(shape, device=device).to(kinds[0])
    x = channels_last(x) if last else x
    parameters = [torch.randn(shape[1], device=device, dtype=kinds[1]) for _ in range(2)] if affine else [None, None]
    results = []
    for f in (F.batch_norm, W.batch_norm):
        leaves = [None if t is None else t.clone().requires_grad_() for t in (x, *parameters)]
        running = [torch.full((shape[1],), v, device=device, dtype=kinds[1]) for v in (0.25, 1.5)]
        with weft.backends.pin("torch"):
            y = f(leaves[0], *running, *leaves[1:], training)
            ran = weft.backends.kernels()
            grads = torch.autograd.grad(y, [t for t in leaves if t is not None], torch.linspace(-1, 1, y.numel(), device=device).view(shape).to(kinds[0]))
        results.append([y, *running, *grads])
    # Without parameters PyTorch's statistics would have 16 bits, weft's have 32; on CUDA 16-bit data are not given to PyTorch at all.
    if kinds[0] != kinds[1] and (not affine or device.type == "cuda"):
        assert "torch" not in ran
        return
    assert ran == "torch"
    for theirs, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)
        assert ours.stride() == theirs.stride() or device.type == "cuda"


POOLS = [("max_pool", dict(kernel_size=3, stride=2, padding=1, return_indices=True)), ("max_pool", dict(kernel_size=2, dilation=2, ceil_mode=True)),
         ("avg_pool", dict(kernel_size=3, stride=2, padding=1, ceil_mode=True)), ("avg_pool", dict(kernel_size=2, count_include_pad=False, padding=1)),
         ("avg_pool", dict(kernel_size=3, divisor_override=5)), ("adaptive_avg_pool", dict(output_size=3)), ("adaptive_avg_pool", dict(output_size=1))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("form", ["first", "last", "unbatched"])
@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize("name, options", POOLS, ids=str)
def test_pool(device, name, options, rank, form, dtype):
    """PyTorch's pooling through weft's operators, where it has one for the pass; the same results either way."""
    x = torch.randn((2, 3, 9, 8, 7)[:rank + 2], device=device, dtype=dtype)
    x = x[0] if form == "unbatched" else channels_last(x) if form == "last" else x
    function, twin = (getattr(m, f"{name}{rank}d") for m in (W, F))
    results, ran = [], []
    for f in (twin, function):
        leaf = (x.clone() if f is function else x.cpu().double()).requires_grad_()   # PyTorch's own on CUDA is wrong for some channels-last data
        with weft.backends.pin("torch"):
            with torch.no_grad():
                plain = f(leaf, **options)
                ran.append(weft.backends.kernels())
            y = f(leaf, **options)
            values = y[0] if isinstance(y, tuple) else y
            grads = torch.autograd.grad(values, leaf, torch.linspace(-1, 1, values.numel(), device=leaf.device, dtype=leaf.dtype).view(values.shape))
        results.append([*(plain if isinstance(plain, tuple) else (plain,)), *(y if isinstance(y, tuple) else (y,)), *grads])
    assert ran[1] == "torch"
    for theirs, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours.cpu(), theirs.to(ours.dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax(device, name, dim, dtype):
    x = torch.randn(3, 5, 4, 6, device=device, dtype=dtype)
    for change in (lambda t: t, channels_last, lambda t: t[:, :, ::2]):
        results = []
        for m in (F, W):
            leaf = change(x).detach().clone().requires_grad_()
            with weft.backends.pin("torch"):
                y = getattr(m, name)(leaf, dim)
                ran = weft.backends.kernels()
                grads = torch.autograd.grad(y, leaf, torch.linspace(-1, 1, y.numel(), device=device, dtype=dtype).view(y.shape))
            results.append([y, *grads])
        assert ran == "torch" == weft.backends.kernels()
        for theirs, ours in zip(*results, strict=True):
            torch.testing.assert_close(ours, theirs)
            assert ours.stride() == theirs.stride()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("shape", [(5,), (6, 5), (3, 5, 7), (2, 5, 4, 3), (2, 5, 3, 2, 4)], ids=str)
def test_cross_entropy(device, shape, weighted, reduction, dtype):
    x = torch.randn(shape, device=device, dtype=dtype) * 3
    target = torch.randint(0, 5, shape[:1] + shape[2:] if len(shape) > 1 else (), device=device)
    if target.dim():
        target.view(-1)[1] = -100
    weight = torch.rand(5, device=device, dtype=dtype) if weighted else None
    for change in (lambda t: t, lambda t: channels_last(t) if t.dim() > 2 else t):
        results = []
        for m in (F, W):
            leaf = change(x).detach().clone().requires_grad_()
            with weft.backends.pin("torch"):
                y = m.cross_entropy(leaf, target, weight, reduction=reduction)
                ran = weft.backends.kernels()
                grads = torch.autograd.grad(y, leaf, torch.linspace(1, 2, y.numel(), device=device, dtype=dtype).view(y.shape))
            results.append([y, *grads])
        if device.type == "cpu":
            assert ran == weft.backends.kernels() == "torch"
        else:   # PyTorch is no candidate there
            assert ran.startswith("cross_entropy_") and weft.backends.kernels().startswith("cross_entropy_")
        for theirs, ours in zip(*results, strict=True):
            torch.testing.assert_close(ours, theirs)


def test_cross_entropy_of_a_label_that_is_no_class():
    with weft.backends.pin("torch"), pytest.raises(IndexError, match="target: is 5, allowed: a class, 0 or more and below 5"):
        W.cross_entropy(torch.randn(2, 5), torch.tensor([1, 5]))
