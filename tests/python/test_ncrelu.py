"""NCReLU against torch: forward, gradient (at 0 the positive half), NaN in both halves, accumulation."""
import pytest
import torch

import capi


def twin(x):
    return torch.cat((x.clamp(min=0), x.clamp(max=0)), 1)


def text(pass_, x, last, extra=""):
    return f"ncrelu{x.dim() - 2}d:{pass_}:{capi.DTYPES[x.dtype]}:{capi.tag(x.dim() - 2, last)}:{capi.sizes(x.shape)}{extra}"


@pytest.mark.parametrize("shape", [(2, 3, 7), (2, 5, 4, 6), (1, 2, 3, 4, 5), (0, 3, 4, 4)], ids=str)
@pytest.mark.parametrize("dtype", capi.FLOATS, ids=str)
@pytest.mark.parametrize("last", [False, True])
def test_forward_and_gradient(shape, dtype, last):
    x = capi.layout(torch.randn(shape, dtype=torch.float64).to(dtype), last)
    want = capi.layout(twin(x), last)
    y = capi.run(text("fwd", x, last), src=x, dst=torch.full_like(want, 7))["dst"]
    assert torch.equal(y, want)
    dy = torch.randn_like(want)
    got = capi.run(text("bwd", x, last), src=x, diff_dst=dy, diff_src=torch.full_like(x, 7))["diff_src"]
    halves = dy.split(x.shape[1], 1)
    assert torch.equal(got, torch.where(x >= 0, halves[0], halves[1]))


def test_zero_and_nan():
    x = torch.tensor([0.0, -0.0, float("nan"), 2.0, -3.0]).view(1, 1, 5)
    y = capi.run(text("fwd", x, False), src=x, dst=torch.empty(1, 2, 5))["dst"]
    capi.close(y, twin(x), torch.float32)
    dy = torch.arange(1.0, 11.0).view(1, 2, 5)
    got = capi.run(text("bwd", x, False), src=x, diff_dst=dy, diff_src=torch.empty_like(x))["diff_src"]
    assert got.flatten()[:2].tolist() == [1.0, 2.0]
    assert got.flatten()[3:].tolist() == [4.0, 10.0]


def test_gradient_accumulates():
    x, dy, old = torch.randn(2, 3, 4), torch.randn(2, 6, 4), torch.randn(2, 3, 4)
    plain = capi.run(text("bwd", x, False), src=x, diff_dst=dy, diff_src=torch.empty_like(x))["diff_src"]
    got = capi.run(text("bwd", x, False, ":acc2_0.25"), src=x, diff_dst=dy, diff_src=old.clone())["diff_src"]
    capi.close(got, 2 * plain + 0.25 * old, torch.float32)


def test_strided():
    x = torch.randn(2, 3, 4, 5)
    dy = torch.randn(2, 6, 4, 5)
    src, dst, grad, back = (capi.arrange(t, "strided") for t in (x, torch.zeros(2, 6, 4, 5), dy, torch.zeros_like(x)))
    at = lambda pass_, **t: text(pass_, x, False).replace("nchw", capi.layouts("strided", **t))
    capi.run(at("fwd", src=src, dst=dst), src=src, dst=dst)
    assert torch.equal(dst, twin(x))
    capi.run(at("bwd", src=src, diff_dst=grad, diff_src=back), src=src, diff_dst=grad, diff_src=back)
    assert torch.equal(back, torch.where(x >= 0, dy[:, :3], dy[:, 3:]))
    for t in (dst, back):
        assert (t.as_strided(t.shape, t.stride(), 1) == 7).all()   # the gaps


def test_beyond_two_to_the_31():
    x, y = capi.far((2, 3, 5), torch.bfloat16), capi.far((2, 6, 5), torch.bfloat16)
    x.copy_(torch.randn(x.shape))
    capi.run(text("fwd", x, False).replace("ncw", capi.layouts("strided", src=x, dst=y)), src=x, dst=y)
    assert torch.equal(y, twin(x))


def test_refusals():
    with pytest.raises(capi.WeftError, match="ncrelu: channels c is -1"):
        capi.parse("ncrelu1d:fwd:f32:ncw:n1c-1w1")
    with pytest.raises(capi.WeftError, match="dst takes no part in pass bwd of ncrelu"):
        capi.parse("ncrelu1d:bwd:f32,dst=f32:ncw:n1c1w1")
    with pytest.raises(capi.WeftError, match=r"dst: its strides make elements overlap"):
        capi.parse("ncrelu1d:fwd:f32:ncw,dst=[4.0.1]:n1c2w4")
