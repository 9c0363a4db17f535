"""Values: forward and gradients of every case beside torch.nn.functional in float64, in every dtype, format and kind of view."""
from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import weft
import weft.functional as W
from cases import CASES, DTYPES, SMALL, Case, case, channels_last, close, scattered, shifted, truth_of


def check(c: Case, tensors, change=lambda t: t):
    """Forward and backward of weft on changed views of the tensors against the truth on the tensors."""
    views = [None if t is None else change(t).detach().requires_grad_() for t in tensors]
    y = c.weft(*views, **c.options)
    grad = torch.randn_like(y)
    truth = truth_of(c, tensors, grad)
    got = [y, *torch.autograd.grad(y, [v for v in views if v is not None], grad)]
    for ours, exact in zip(got, truth, strict=True):
        close(ours.detach().cpu(), exact, terms=max(64, grad.numel()))
    return y, got


@pytest.mark.parametrize("c", CASES, ids=str)
def test_float32(c, device):
    y, got = check(c, c.tensors(device))
    assert y.is_contiguous() and y.device.type == device.type and got[1].is_contiguous()


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=lambda d: str(d)[6:])
@pytest.mark.parametrize("c", CASES, ids=str)
def test_other_types(c, dtype, device):
    y, got = check(c, c.tensors(device, dtype))
    assert all(t.dtype == dtype for t in got)


@pytest.mark.parametrize("c", [c for c in CASES if len(c.input) == c.rank + 2], ids=str)
def test_channels_last(c, device):
    x, w, b = c.tensors(device)
    y, got = check(c, [x, w, b], lambda t: channels_last(t) if t is not None and t.dim() > 2 else t)
    first = device.type == "cuda" and str(c) == "t2d-output-padding-over-stride"   # PyTorch's result there is channels-first
    if c.input[0] and c.rank == 2 and y.shape[2] * y.shape[3] > 1:
        assert first or y.is_contiguous(memory_format=torch.channels_last)
        assert first or got[1].is_contiguous(memory_format=torch.channels_last) or x.shape[2] * x.shape[3] == 1


@pytest.mark.parametrize("change", [scattered, shifted], ids=lambda f: f.__name__)
@pytest.mark.parametrize("c", [c for c in CASES if c.input[0]], ids=str)
def test_views(c, change, device):
    check(c, c.tensors(device), change)


def test_transposed_and_expanded_views(device):
    c = case("2d-depthwise")
    x, w, b = c.tensors(device)
    check(c, [x, w, b], lambda t: t.transpose(-1, -2).contiguous().transpose(-1, -2) if t.dim() > 2 else t)
    wide = x[:1].expand(4, -1, -1, -1)
    close(W.conv2d(wide, w, b, **c.options).cpu(), truth_of(c, [wide, w, b])[0])


def test_gradient_of_a_sum(device):
    """Its gradient is one number with all strides 0."""
    for change in (lambda t: t, channels_last):
        c = case("2d-depthwise")
        x, w, b = (t.requires_grad_() for t in c.tensors(device))
        W.conv2d(change(x), w, b, **c.options).sum().backward()
        ours = [t.grad.clone() for t in (x, w, b)]
        for ours_, exact in zip(ours, truth_of(c, [x, w, b], torch.ones(2, 5, 9, 13))[1:]):
            close(ours_.cpu(), exact, terms=2 * 9 * 13)


@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2)], ids=str)
@pytest.mark.parametrize("name", ["2d-depthwise", "2d-grouped", "t2d-output-padding"])
def test_some_gradients(name, wanted, device):
    c = case(name)
    tensors = c.tensors(device)
    for i in wanted:
        tensors[i].requires_grad_()
    y = c.weft(*tensors, **c.options)
    grad = torch.randn_like(y)
    y.backward(grad)
    truth = truth_of(c, tensors, grad)[1:]
    for i, t in enumerate(tensors):
        if i in wanted:
            close(t.grad.cpu(), truth[i], terms=grad.numel())
        else:
            assert t.grad is None


@pytest.mark.parametrize("act", ["relu", "clip"])
@pytest.mark.parametrize("c", SMALL, ids=str)
def test_activation(c, act, device):
    x, w, b = c.tensors(device, grad=True)
    y = c.weft(x, w, b, **c.options, act=act, clip=(-0.25, 0.5))
    plain = c.twin(x, w, b, **c.options)
    expected = F.relu(plain) if act == "relu" else F.hardtanh(plain, -0.25, 0.5)
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)
    grad = torch.randn_like(y)
    leaves = [t for t in (x, w, b) if t is not None]
    for ours, theirs in zip(torch.autograd.grad(y, leaves, grad), torch.autograd.grad(expected, leaves, grad)):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=lambda d: str(d)[6:])
def test_float32_bias_beside_16_bits(dtype, device):
    c = case("2d-depthwise")
    x, w, b = c.tensors(device, dtype, grad=True)
    b = b.detach().float().requires_grad_()
    y = c.weft(x, w, b, **c.options)
    grad = torch.randn_like(y)
    y.backward(grad)
    exact = truth_of(c, [x, w, b], grad)
    close(y.detach().cpu(), exact[0])
    assert b.grad.dtype == torch.float32
    close(b.grad.cpu(), exact[3], terms=grad.numel())


@pytest.mark.parametrize("name", ["2d-depthwise", "2d-grouped", "t2d-output-padding"])
def test_nan_and_infinity_go_where_torch_sends_them(name, device):
    c = case(name)
    for value in (float("nan"), float("inf")):
        x, w, b = c.tensors(device)
        x[..., 2, 3] = value
        ours, theirs = (f(x, w, b, **c.options) for f in (c.weft, c.twin))
        assert torch.equal(ours.isnan(), theirs.isnan()) and torch.equal(ours.isinf(), theirs.isinf())
        for act in ("relu", "clip"):
            assert torch.equal(c.weft(x, w, b, **c.options, act=act).isnan(), theirs.isnan())


@pytest.mark.parametrize("multiplier", [1, 3])
def test_depthwise(multiplier, device):
    x, w, b = torch.randn(2, 6, 9, 9, device=device), torch.randn(6 * multiplier, 1, 3, 3, device=device), torch.randn(6 * multiplier, device=device)
    for options in ({}, {"padding": 1}, {"stride": 2, "padding": (1, 0)}, {"dilation": 2}, {"padding": "same"}):
        ours = weft.conv2d_depthwise(x, w, b, **options)
        torch.testing.assert_close(ours, F.conv2d(x, w, b, groups=6, **options), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(weft.conv2d_depthwise(x[0], w, b), F.conv2d(x[0], w, b, groups=6), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_one_plane_for_every_channel(rank, device):
    """Expanded channels have stride 0; the result is channels-first, as PyTorch's."""
    x, w = torch.randn(2, 1, *[8] * rank, device=device).expand(-1, 4, *[-1] * rank), torch.randn(4, 1, *[3] * rank, device=device)
    for name in ("conv", "conv_transpose"):
        ours, theirs = (getattr(m, f"{name}{rank}d")(x, w, groups=4) for m in (W, F))
        assert ours.stride() == theirs.stride() and ours.view(2, -1).shape == theirs.view(2, -1).shape
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("transposed, input, weight, options", [
    (False, (0, 0, 5, 5), (4, 0, 3, 3), {}), (False, (2, 0, 5, 5), (4, 0, 3, 3), {}), (False, (0, 4, 0, 5), (4, 1, 3, 3), {"padding": 2, "groups": 4}),
    (True, (0, 4, 0, 5), (4, 2, 1, 3), {}), (True, (0, 4, 0, 5), (4, 2, 3, 3), {}), (True, (0, 4, 0, 5), (4, 2, 3, 3), {"padding": 1, "stride": 1})])
def test_no_elements(transposed, input, weight, options, device):
    results = []
    for m in (W, F):
        x, w = (torch.ones(s, device=device, requires_grad=True) for s in (input, weight))
        b = torch.ones(weight[1] if transposed else weight[0], device=device, requires_grad=True)
        y = (m.conv_transpose2d if transposed else m.conv2d)(x, w, b, **options)
        results.append([y, *torch.autograd.grad(y.sum(), (x, w, b), allow_unused=True)])
    for ours, theirs in zip(*results, strict=True):
        assert torch.equal(ours, torch.zeros_like(ours))
        assert theirs is None or torch.equal(ours, theirs)


@pytest.mark.parametrize("form", ["dense", "channels_last", "scattered", "slice"])
@pytest.mark.parametrize("name", ["2d-depthwise", "2d-grouped", "t2d-output-padding", "3d-same", "1d-unbatched", "2d-empty-batch"])
def test_out(device, name, form):
    """A given result in any strides gets the values, and its neighbours in memory stay."""
    c = case(name)
    x, w, b = c.tensors(device)
    expected = c.weft(x, w, b, **c.options)
    memory = torch.full((*expected.shape[:-1], expected.shape[-1] + 3), 7.0, device=device)
    out = {"dense": lambda: torch.empty_like(expected), "channels_last": lambda: channels_last(expected).clone() if expected.dim() > c.rank + 1 else expected.clone(),
           "scattered": lambda: scattered(expected), "slice": lambda: memory[..., 2:-1]}[form]()
    out.fill_(float("nan"))
    version = out._version
    assert c.weft(x, w, b, **c.options, out=out) is out
    assert out._version > version
    torch.testing.assert_close(out, expected, rtol=1e-6, atol=1e-6)
    assert (memory[..., :2] == 7).all() and (memory[..., -1:] == 7).all()


def test_out_compiled(device):
    x, w, b = case("2d-depthwise").tensors(device)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def f(x, w, b, out):
        W.conv2d(x, w, b, padding=1, groups=5, out=out)
        return out + 1
    out = torch.empty_like(x)
    torch.testing.assert_close(f(x, w, b, out), W.conv2d(x, w, b, padding=1, groups=5) + 1)
    torch.testing.assert_close(out, W.conv2d(x, w, b, padding=1, groups=5))


def test_out_apart_from_the_input(device):
    memory = torch.randn(2 * 4 * 36, device=device)
    x, w = memory[:144].view(1, 4, 6, 6), torch.randn(4, 1, 3, 3, device=device)
    with pytest.raises(RuntimeError, match="out: shares memory with input"):
        W.conv2d(x, w, groups=4, padding=1, out=memory[5:149].view(1, 4, 6, 6))
    W.conv2d(x, w, groups=4, padding=1, out=memory[144:].view(1, 4, 6, 6))
    gaps = memory.view(1, 4, 6, 12)[..., ::2]
    with pytest.raises(RuntimeError, match="out: shares memory with input"):
        W.conv2d(gaps, w, groups=4, padding=1, out=gaps)


def test_one_channel_of_one_column_is_channels_first(device):
    """Its strides are those of either format."""
    x, w = torch.randn(6, device=device).as_strided((2, 1, 3, 1), (3, 1, 1, 1)), torch.randn(4, 1, 1, 1, device=device)
    with weft.backends.flags(delegate=False):
        assert W.conv2d(x, w).stride() == (12, 3, 1, 1)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.int64])
def test_types_left_to_torch(dtype):
    x, w = torch.arange(50).view(1, 2, 5, 5).to(dtype), torch.arange(18).view(1, 2, 3, 3).to(dtype)
    torch.testing.assert_close(W.conv2d(x, w, padding=1), F.conv2d(x, w, padding=1))


@pytest.mark.parametrize("pin", [None, "torch"])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("groups", [1, 8])
def test_the_gradient_of_a_wider_bias(groups, transposed, pin, device):
    """A bias in float32 beside data of 16 bits: its gradient is a sum in float32, not one that was rounded to 16 bits, as PyTorch would."""
    x, w = torch.randn(2, 8, 21, 23, device=device).bfloat16(), torch.randn(8, 8 // groups, 3, 3, device=device).bfloat16()
    b = torch.randn(8, device=device, requires_grad=True)
    for grad in (False, True):
        x.requires_grad_(grad)
        y = (W.conv_transpose2d if transposed else W.conv2d)(x, w.requires_grad_(grad), b, groups=groups)
        g = torch.randn_like(y)
        with weft.backends.pin(pin):
            db = torch.autograd.grad(y, (b, x, w) if grad else (b,), g)[0]
        assert db.dtype == torch.float32
        torch.testing.assert_close(db.double(), g.double().sum((0, 2, 3)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_no_output_padding_is_not_a_convolution(rank):
    x, w = torch.randn(1, 4, *[9] * rank), torch.randn(4, 4, *[3] * rank)
    with pytest.raises(TypeError, match="output_padding: is None, allowed: an int, or a sequence of"):
        getattr(weft.functional, f"conv_transpose{rank}d")(x, w, output_padding=None)
