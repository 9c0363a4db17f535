"""softmax and log_softmax against torch: every dimension, data type and layout, special values, gradients from the output."""
import math

import pytest
import torch
import torch.nn.functional as F

import capi

SHAPES = [(2, 5, 7), (3, 1, 2), (2, 19, 4, 3), (1, 4, 2, 3, 5), (0, 3, 4, 4), (2, 0, 3)]
OPS = {"softmax": F.softmax, "log_softmax": F.log_softmax}
GRADIENT = {"softmax": torch._softmax_backward_data, "log_softmax": torch._log_softmax_backward_data}


def text(op, pass_, form, extra="", **tensors):
    x = next(iter(tensors.values()))
    return f"{op}{x.dim() - 2}d:{pass_}:{capi.DTYPES[x.dtype]}:{capi.layouts(form, **tensors)}:{capi.sizes(x.shape)}{extra}"


def forward(op, x, form="first"):
    args = {"src": capi.arrange(x, form), "dst": capi.arrange(torch.full_like(x, 7), form)}
    return capi.run(text(op, "fwd", form, **args), **args)["dst"]


def backward(op, y, dy, form="first", old=None, extra=""):
    args = {"dst": y, "diff_dst": dy, "diff_src": torch.full_like(y, 7) if old is None else old}
    args = {role: capi.arrange(x, form) for role, x in args.items()}
    return capi.run(text(op, "bwd", form, extra, **args), **args)["diff_src"]


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", capi.FLOATS, ids=str)
@pytest.mark.parametrize("form", capi.FORMS)
def test_forward_and_gradient(op, shape, dtype, form):
    x = (3 * torch.randn(shape, dtype=torch.float64)).to(dtype)
    exact = x.double().requires_grad_()
    want = OPS[op](exact, 1)
    y = forward(op, x, form)
    capi.close(y, want.detach(), dtype)
    dy = torch.randn_like(want).to(dtype)
    dx = backward(op, y, dy, form)
    capi.close(dx, GRADIENT[op](dy.double(), y.double(), 1, torch.float64), dtype)
    if dtype in (torch.float32, torch.float64):      # 16-bit outputs are too coarse for the exact gradient
        capi.close(dx, torch.autograd.grad(want, exact, dy.double())[0], dtype)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dim", range(4))
def test_any_dimension_is_the_channels_of_another_view(op, dim):
    x = torch.randn(2, 3, 4, 5)
    view = x.reshape(math.prod(x.shape[:dim]), x.shape[dim], -1)
    capi.close(forward(op, view).view(x.shape), OPS[op](x, dim), torch.float32)


@pytest.mark.parametrize("op", OPS)
def test_a_whole_instance(op):
    x = torch.randn(3, 4, 5, 6)
    capi.close(forward(op, x.view(3, -1, 1)).view(x.shape), OPS[op](x.flatten(1), 1).view(x.shape), torch.float32)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", capi.FLOATS, ids=str)
def test_special_values_go_where_torch_sends_them(op, dtype):
    nan, inf = float("nan"), float("inf")
    rows = [[nan, 1, 2], [1, nan, 2], [inf, 1, 2], [1, 2, inf], [inf, inf, -inf], [-inf, 1, 2], [1, -inf, -inf], [-inf, -inf, -inf],
            [-inf, nan, -inf], [60000, -60000, 59000], [-60000, -60000, -60000], [0, -0.0, 0]]
    x = torch.tensor(rows, dtype=dtype).unsqueeze(2)
    y = forward(op, x)
    capi.close(y, OPS[op](x.double(), 1).to(dtype), dtype)   # f16 may overflow
    dy = torch.randn_like(x)
    capi.close(backward(op, y, dy), GRADIENT[op](dy.double(), y.double(), 1, torch.float64), dtype)


@pytest.mark.parametrize("op", OPS)
def test_in_place_is_the_same(op):
    x, dy = torch.randn(2, 3, 5, 4), torch.randn(2, 3, 5, 4)
    y = x.clone()
    capi.run(text(op, "fwd", "first", src=y, dst=y), src=y, dst=y)
    assert torch.equal(y, forward(op, x))
    want = backward(op, y, dy)
    capi.run(text(op, "bwd", "first", dst=y, diff_dst=dy, diff_src=dy), dst=y, diff_dst=dy, diff_src=dy)
    assert torch.equal(dy, want)


@pytest.mark.parametrize("op", OPS)
def test_gradient_accumulates(op):
    y, dy, old = forward(op, torch.randn(2, 3, 4)), torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    capi.close(backward(op, y, dy, old=old.clone(), extra=":acc0.5_-2"), 0.5 * backward(op, y, dy) - 2 * old, torch.float32)


@pytest.mark.parametrize("op", OPS)
def test_gradient_is_the_slope_of_the_forward_pass(op):
    x, v, dy = (torch.randn(2, 5, 3, dtype=torch.float64) for _ in range(3))
    slope = (capi.slope(lambda z: forward(op, z), x, v) * dy).sum()
    assert abs(slope - (backward(op, forward(op, x), dy) * v).sum()) < 1e-8


@pytest.mark.parametrize("op", OPS)
def test_beyond_two_to_the_31(op):
    x, y = capi.far((2, 3, 5), torch.bfloat16), capi.far((2, 3, 5), torch.bfloat16)
    x.copy_(torch.randn(x.shape))
    capi.run(text(op, "fwd", "strided", src=x, dst=y), src=x, dst=y)
    capi.close(y, OPS[op](x.double(), 1), torch.bfloat16)


def test_mixed_data_types():
    x = torch.randn(2, 5, 3).half()
    y = capi.run("softmax1d:fwd:f16,dst=f32:ncw:n2c5w3", src=x, dst=torch.empty(2, 5, 3))["dst"]
    capi.close(y, F.softmax(x.float(), 1), torch.float32)


def test_refusals():
    with pytest.raises(capi.WeftError, match="softmax: channels c is -1, allowed: 0..2\\^40"):
        capi.parse("softmax1d:fwd:f32:ncw:n1c-1w1")
    with pytest.raises(capi.WeftError, match="log_softmax: input size along w is -2"):
        capi.parse("log_softmax1d:fwd:f32:ncw:n1c1w-2")
    with pytest.raises(capi.WeftError, match="data type is u8"):
        capi.parse("softmax1d:fwd:f32,src=u8:ncw:n1c1w1")
    with pytest.raises(capi.WeftError, match="acc, which pass fwd of softmax does not take"):
        capi.parse("softmax1d:fwd:f32:ncw:n1c1w1:acc1_1")
    with pytest.raises(capi.WeftError, match="src takes no part in pass bwd of log_softmax"):
        capi.parse("log_softmax1d:bwd:f32,src=f32:ncw:n1c1w1")
