"""relu, clip, tanh, sigmoid against torch: forward, gradient from the output, in place, NaN, accumulation."""
import pytest
import torch
import torch.nn.functional as F

import capi

SHAPES = [(2, 3, 7), (2, 5, 4, 6), (1, 2, 3, 4, 5), (0, 3, 4, 4)]
OPS = {
    "relu": ("", F.relu),
    "clip": (":lo-0.5hi1.25", lambda x: F.hardtanh(x, -0.5, 1.25)),
    "tanh": ("", torch.tanh),
    "sigmoid": ("", torch.sigmoid),
}


def text(op, pass_, x, last, extra=""):
    return f"{op}{x.dim() - 2}d:{pass_}:{capi.DTYPES[x.dtype]}:{capi.tag(x.dim() - 2, last)}:{capi.sizes(x.shape)}{OPS[op][0]}{extra}"


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", capi.FLOATS, ids=str)
@pytest.mark.parametrize("last", [False, True])
def test_forward_and_gradient(op, shape, dtype, last):
    x = capi.layout(torch.randn(shape, dtype=torch.float64).to(dtype), last).requires_grad_()
    want = OPS[op][1](x)
    dy = torch.randn_like(want)
    (dx,) = torch.autograd.grad(want, x, dy)
    y = capi.run(text(op, "fwd", x, last), src=x.detach(), dst=torch.full_like(x.detach(), 7))["dst"]
    capi.close(y, want.detach(), dtype)
    got = capi.run(text(op, "bwd", x, last), dst=want.detach(), diff_dst=dy, diff_src=torch.full_like(dy, 7))["diff_src"]
    capi.close(got, dx, dtype)


@pytest.mark.parametrize("op", OPS)
def test_in_place_is_the_same(op):
    x = torch.randn(2, 3, 5, 4)
    want = OPS[op][1](x)
    y = x.clone()
    capi.run(text(op, "fwd", x, False), src=y, dst=y)
    capi.close(y, want, torch.float32)
    dy = torch.randn_like(x)
    apart = capi.run(text(op, "bwd", x, False), dst=y, diff_dst=dy, diff_src=torch.empty_like(dy))["diff_src"]
    capi.run(text(op, "bwd", x, False), dst=y, diff_dst=dy, diff_src=dy)
    assert torch.equal(apart, dy)


@pytest.mark.parametrize("op", OPS)
def test_nan_and_infinity_go_where_torch_sends_them(op):
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1.0]).view(1, 1, 6)
    y = capi.run(text(op, "fwd", x, False), src=x, dst=torch.empty_like(x))["dst"]
    capi.close(y, OPS[op][1](x), torch.float32)


@pytest.mark.parametrize("op", OPS)
def test_gradient_accumulates(op):
    y, dy, old = torch.rand(2, 3, 4), torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    plain = capi.run(text(op, "bwd", y, False), dst=y, diff_dst=dy, diff_src=torch.empty_like(dy))["diff_src"]
    got = capi.run(text(op, "bwd", y, False, ":acc0.5_-2"), dst=y, diff_dst=dy, diff_src=old.clone())["diff_src"]
    capi.close(got, 0.5 * plain - 2 * old, torch.float32)


@pytest.mark.parametrize("op", OPS)
def test_strided(op):
    x = torch.randn(2, 3, 4, 5)
    y, dy = OPS[op][1](x), torch.randn(2, 3, 4, 5)
    src, dst, out, grad, back = (capi.arrange(t, "strided") for t in (x, torch.zeros_like(x), y, dy, torch.zeros_like(x)))
    at = lambda pass_, **t: text(op, pass_, x, False).replace("nchw", capi.layouts("strided", **t))
    capi.run(at("fwd", src=src, dst=dst), src=src, dst=dst)
    capi.close(dst, y, torch.float32)
    capi.run(at("bwd", dst=out, diff_dst=grad, diff_src=back), dst=out, diff_dst=grad, diff_src=back)
    capi.close(back, capi.run(text(op, "bwd", x, False), dst=y, diff_dst=dy, diff_src=torch.zeros_like(x))["diff_src"], torch.float32)
    for t in (dst, back):
        assert (t.as_strided(t.shape, t.stride(), 1) == 7).all()   # the gaps


@pytest.mark.parametrize("op", OPS)
def test_beyond_two_to_the_31(op):
    x, y = capi.far((2, 3, 5), torch.bfloat16), capi.far((2, 3, 5), torch.bfloat16)
    x.copy_(torch.randn(x.shape))
    capi.run(text(op, "fwd", x, False).replace("ncw", capi.layouts("strided", src=x, dst=y)), src=x, dst=y)
    capi.close(y, OPS[op][1](x.double()), torch.bfloat16)


def test_refusals():
    with pytest.raises(capi.WeftError, match="clip: bounds are 2..1, allowed: lo not above hi"):
        capi.parse("clip1d:fwd:f32:ncw:n1c1w1:lo2hi1")
    with pytest.raises(capi.WeftError, match="relu: batch n is -1"):
        capi.parse("relu1d:fwd:f32:ncw:n-1c1w1")
    with pytest.raises(capi.WeftError, match="acc, which pass fwd of relu does not take"):
        capi.parse("relu1d:fwd:f32:ncw:n1c1w1:acc1_1")
