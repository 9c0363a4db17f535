"""lrn against torch.nn.functional.local_response_norm: window sizes even and odd, wider than the channels, types, layouts, gradients."""
import pytest
import torch
import torch.nn.functional as F

import capi

SHAPES = [(2, 5, 7), (3, 1, 2), (2, 9, 4, 3), (1, 4, 2, 3, 5), (0, 3, 4, 4)]
NAN, INF = float("nan"), float("inf")


def text(pass_, options, form, extra="", **tensors):
    x = tensors["src"]
    size, alpha, beta, k = options
    return (f"lrn{x.dim() - 2}d:{pass_}:{capi.DTYPES[x.dtype]}:{capi.layouts(form, **tensors)}:{capi.sizes(x.shape)}:"
            f"size{size}alpha{alpha!r}beta{beta!r}k{k!r}{extra}")


def forward(x, options, form="first"):
    args = {"src": capi.arrange(x, form), "dst": capi.arrange(torch.full_like(x, 7), form)}
    return capi.run(text("fwd", options, form, **args), **args)["dst"]


def backward(x, dy, options, form="first", old=None, extra=""):
    args = {"src": x, "diff_dst": dy, "diff_src": torch.full_like(x, 7) if old is None else old}
    args = {role: capi.arrange(t, form) for role, t in args.items()}
    return capi.run(text("bwd", options, form, extra, **args), **args)["diff_src"]


def check(x, options, form):
    exact = x.double().requires_grad_()
    want = F.local_response_norm(exact, *options)
    capi.close(forward(x, options, form), want.detach(), x.dtype)
    dy = torch.randn_like(want).to(x.dtype)
    capi.close(backward(x, dy, options, form), torch.autograd.grad(want, exact, dy.double())[0], x.dtype)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 12])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", capi.FLOATS, ids=str)
def test_forward_and_gradient(size, shape, dtype):
    x = (2 * torch.randn(shape, dtype=torch.float64)).to(dtype)
    check(x, (size, 0.5, 0.75, 1.0), capi.FORMS[size % 3])         # each form sees an even and an odd size


@pytest.mark.parametrize("dtype", capi.FLOATS, ids=str)
@pytest.mark.parametrize("form", capi.FORMS)
def test_layouts(dtype, form):
    for shape in SHAPES:
        check(torch.randn(shape, dtype=torch.float64).to(dtype), (3, 0.5, 0.75, 1.0), form)


@pytest.mark.parametrize("options", [(5, 1e-4, 0.75, 1.0), (5, 2.0, 0.5, 2.0), (4, 1.0, 1.0, 0.25), (3, 0.0, 0.75, 1.0), (3, 1.0, 0.0, 1.0),
                                     (3, 0.1, 3.0, 1.5), (3, 1.0, -0.5, 1.0), (2, -0.01, 0.75, 2.0)], ids=str)
def test_alpha_beta_and_k(options):
    for dtype in capi.FLOATS:
        check(torch.randn(2, 7, 3, 4, dtype=torch.float64).to(dtype), options, "first")


def test_defaults_are_torch_s():
    x = torch.randn(2, 7, 3)
    got = capi.run("lrn1d:fwd:f32:ncw:n2c7w3:size5", src=x, dst=torch.empty_like(x))["dst"]
    capi.close(got, F.local_response_norm(x, 5), torch.float32)


def test_no_channels():
    x = torch.randn(2, 0, 3)
    assert forward(x, (5, 1e-4, 0.75, 1.0)).shape == x.shape


def test_special_values_go_where_torch_sends_them():
    x = torch.randn(5, 8, 1)
    x[0, 3], x[1, 0], x[2, 7], x[3, 2:4, 0], x[4] = NAN, INF, -INF, torch.tensor([INF, NAN]), 0
    for k in (1.0, 0.0):
        exact = x.clone().requires_grad_()
        want = F.local_response_norm(exact, 3, 0.5, 0.75, k)
        capi.close(forward(x, (3, 0.5, 0.75, k)), want.detach(), torch.float32)
    dy = torch.randn_like(x)
    want = F.local_response_norm(exact, 3, 0.5, 0.75, 1.0)
    capi.close(backward(x, dy, (3, 0.5, 0.75, 1.0)), torch.autograd.grad(want, exact, dy)[0], torch.float32)


def test_gradient_accumulates():
    x, dy, old = torch.randn(2, 6, 4), torch.randn(2, 6, 4), torch.randn(2, 6, 4)
    options = (5, 0.5, 0.75, 1.0)
    capi.close(backward(x, dy, options, old=old.clone(), extra=":acc0.5_-2"), 0.5 * backward(x, dy, options) - 2 * old, torch.float32)


@pytest.mark.parametrize("size", [4, 5])
def test_gradient_is_the_slope_of_the_forward_pass(size):
    options = (size, 0.7, 0.75, 1.0)
    x, v, dy = (torch.randn(2, 7, 3, dtype=torch.float64) for _ in range(3))
    slope = (capi.slope(lambda z: forward(z, options), x, v) * dy).sum()
    assert abs(slope - (backward(x, dy, options) * v).sum()) < 1e-8


def test_beyond_two_to_the_31():
    x, y = capi.far((2, 3, 5), torch.bfloat16), capi.far((2, 3, 5), torch.bfloat16)
    x.copy_(torch.randn(x.shape))
    capi.run(text("fwd", (3, 0.5, 0.75, 1.0), "strided", src=x, dst=y), src=x, dst=y)
    capi.close(y, F.local_response_norm(x.double(), 3, 0.5), torch.bfloat16)


def test_refusals():
    for options, message in [("size0", "size is 0, allowed: 1..2"), ("size3alpha1e999", "alpha is inf, allowed: a finite number"),
                             ("size3k-1e999", "k is -inf, allowed: a finite number"), ("alpha1", "expected 'size' and a number")]:
        with pytest.raises(capi.WeftError, match=message):
            capi.parse("lrn1d:fwd:f32:ncw:n2c3w4:" + options)
    with pytest.raises(capi.WeftError, match="dst takes no part in pass bwd of lrn"):
        capi.parse("lrn1d:bwd:f32,dst=f32:ncw:n2c3w4:size3")
