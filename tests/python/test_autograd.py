"""Derivatives beyond the first, torch.func, autocast, and the contract that PyTorch checks of a custom operator."""
from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import weft.functional as W
from cases import SMALL, case, opcheck_convolution


def _call(c, **more):
    def run(*tensors):
        x, w, b = tensors if len(tensors) == 3 else (*tensors, None)
        return c.weft(x, w, b, **c.options, **more)
    return run


def _leaves(c, device):
    return [t for t in c.tensors(device, torch.float64, grad=True) if t is not None]


@pytest.mark.parametrize("c", SMALL, ids=str)
def test_gradcheck(c, device):
    assert torch.autograd.gradcheck(_call(c), _leaves(c, device), fast_mode=c.rank == 3)


@pytest.mark.parametrize("c", SMALL, ids=str)
def test_gradgradcheck(c, device):
    assert torch.autograd.gradgradcheck(_call(c), _leaves(c, device), fast_mode=True)


@pytest.mark.parametrize("act", ["relu", "clip"])
@pytest.mark.parametrize("name", ["2d-grouped", "t1d"])
def test_gradcheck_with_activation(name, act, device):
    c = case(name)
    run, leaves = _call(c, act=act, clip=(-0.5, 0.5)), _leaves(c, device)
    assert torch.autograd.gradcheck(run, leaves) and torch.autograd.gradgradcheck(run, leaves, fast_mode=True)


@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (1, 2)], ids=str)
def test_gradgradcheck_of_some(wanted, device):
    c = case("2d-grouped")
    leaves = [t.detach().requires_grad_(i in wanted) for i, t in enumerate(_leaves(c, device))]
    y = _call(c)(*leaves)
    if y.requires_grad:
        assert torch.autograd.gradgradcheck(_call(c), leaves, fast_mode=True)


def test_third_derivative(device):
    c = case("1d-same-even")
    x, w, b = c.tensors(device, torch.float64, grad=True)
    results = []
    for f in (c.weft, c.twin):
        g, = torch.autograd.grad(f(x, w, b, **c.options).pow(4).sum(), x, create_graph=True)
        h, = torch.autograd.grad(g.pow(2).sum(), w, create_graph=True)
        results.append(torch.autograd.grad(h.pow(2).sum(), x)[0])
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["2d-grouped", "2d-unbatched", "t2d-output-padding"])
def test_torch_func(name, device):
    c = case(name)
    x, w, b = c.tensors(device, torch.float64)

    def loss(f):
        return lambda x, w, b: f(x, w, b, **c.options).square().sum()

    for argnums in (0, (0, 1, 2)):
        ours, theirs = (torch.func.grad(loss(f), argnums)(x, w, b) for f in (c.weft, c.twin))
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
    xs, ws = torch.stack([x, 2 * x, x.neg()], 1), torch.stack([w, 3 * w, w.neg()])
    for in_dims, args in (((1, None, None), (xs, w, b)), ((None, 0, None), (x, ws, b)), ((1, 0, None), (xs, ws, b))):
        for transform in (lambda f: f, lambda f: torch.func.grad(lambda *a: f(*a).square().sum(), (0, 1, 2))):
            ours, theirs = (torch.func.vmap(transform(lambda x, w, b: f(x, w, b, **c.options)), in_dims)(*args) for f in (c.weft, c.twin))
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("act", [None, "relu"])
@pytest.mark.parametrize("name", ["1d-same-even", "2d-unbatched", "t2d-output-padding"])
def test_forward_mode(name, act, device):
    c = case(name)
    tensors = [t for t in c.tensors(device, torch.float64) if t is not None]
    steps = [torch.randn_like(t) for t in tensors]

    def twin(x, w, b):
        y = c.twin(x, w, b, **c.options)
        return y if act is None else F.relu(y)
    ours = _call(c, act=act)
    for pick in ((0,), (1,), (2,), (0, 1, 2)):
        some = [s if i in pick else torch.zeros_like(s) for i, s in enumerate(steps)]
        torch.testing.assert_close(torch.func.jvp(ours, tuple(tensors), tuple(some)), torch.func.jvp(twin, tuple(tensors), tuple(some)),
                                   rtol=1e-9, atol=1e-9)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(tensors[0], steps[0])
        got = torch.autograd.forward_ad.unpack_dual(ours(dual, *tensors[1:])).tangent
        expected = torch.autograd.forward_ad.unpack_dual(twin(dual, *tensors[1:])).tangent
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)


def test_hessian(device):
    c = case("2d-unbatched")
    x, w, b = (t[:1] if i else t[:, :4, :3][:1] for i, t in enumerate(c.tensors(device, torch.float64)))
    hessians = [torch.func.hessian(lambda w: f(x, w, b, padding=1).pow(3).sum())(w) for f in (W.conv2d, F.conv2d)]
    torch.testing.assert_close(*hessians, rtol=1e-9, atol=1e-9)


def _samples(device, grad):
    pads = [1, 1, 0, 2]
    x, w, b, wt, dy = (torch.randn(s, device=device) for s in ((2, 4, 6, 5), (8, 2, 3, 2), (8,), (4, 3, 3, 2), (2, 8, 3, 5)))
    last = x.to(memory_format=torch.channels_last)
    x, w, b, wt, dy, last = (t.requires_grad_(grad) for t in (x, w, b, wt, dy, last))
    yield "conv", (x, w, b, [2, 1], pads, [1, 2], 2, "", 0.0, 0.0)
    yield "conv", (last, w, None, [1, 1], pads, [1, 1], 2, "relu", 0.0, 0.0)
    yield "conv_transpose", (last, wt, None, [2, 1], [1, 1, 0, 0], [1, 1], 2, "clip", -0.5, 0.5, [1, 0])
    yield "conv_backward", (dy, last, w, [2, 1], pads, [1, 2], 2, False, 7, torch.float32)
    yield "conv_backward", (dy, x, w, [2, 1], pads, [1, 2], 2, False, 2, torch.float32)


@pytest.mark.parametrize("grad", [False, True])
def test_opcheck(grad, device):
    for name, args in _samples(device, grad):
        opcheck_convolution(getattr(torch.ops.weft, name).default, args)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=lambda d: str(d)[6:])
def test_autocast(dtype, device):
    c = case("2d-depthwise")
    x, w, b = c.tensors(device, grad=True)
    with torch.autocast(device.type, dtype=dtype):
        y = c.weft(x, w, b, **c.options)
        twin = c.twin(x, w, b, **c.options)
        exact = c.weft(x.double(), w.double(), b.double(), **c.options)
    assert y.dtype == twin.dtype == dtype and exact.dtype == torch.float64
    torch.testing.assert_close(y, twin, rtol=2e-2, atol=2e-2)
    y.sum().backward()
    assert all(t.grad.dtype == torch.float32 for t in (x, w, b))


def test_inference_mode_and_no_grad(device):
    c = case("2d-depthwise")
    x, w, b = c.tensors(device, grad=True)
    with torch.no_grad():
        plain = c.weft(x, w, b, **c.options)
    with torch.inference_mode():
        inference = c.weft(x, w, b, **c.options)
    assert not plain.requires_grad and inference.is_inference() and torch.equal(plain, inference)


def test_checkpoint(device):
    from torch.utils.checkpoint import checkpoint
    x, w = torch.randn(1, 3, 5, 5, device=device, requires_grad=True), torch.randn(3, 1, 3, 3, device=device, requires_grad=True)
    checkpoint(lambda x, w: W.conv2d(x, w, groups=3).relu(), x, w, use_reentrant=False).sum().backward()
    expected = torch.autograd.grad(F.conv2d(x, w, groups=3).relu().sum(), (x, w))
    torch.testing.assert_close((x.grad, w.grad), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64], ids=lambda d: str(d)[6:])
def test_clip_to_bounds_that_the_type_cannot_hold(dtype, device):
    """The gradient of what is clipped is 0, though the result is the rounded bound."""
    x, one = torch.tensor([[[-5.0, 0.0, 5.0]]], dtype=dtype, device=device, requires_grad=True), torch.ones(1, 1, 1, dtype=dtype, device=device)
    for bound in (0.1, 0.3, 0.7, 1.001, 4.9999, 1e39):
        ours, = torch.autograd.grad(W.conv1d(x, one, act="clip", clip=(-bound, bound)).sum(), x)
        assert ours.flatten().tolist() == [float(bound > 5), 1.0, float(bound > 5)]


def _direct(x, w):
    return torch.ops.weft.conv(x, w, None, [1, 1], [0] * 4, [1, 1], 4, "", 0.0, 0.0)


func = torch.func
TRANSFORMS = {
    "grad": lambda f, x, w: func.grad(lambda w: f(x, w).pow(2).sum())(w),
    "grad-grad": lambda f, x, w: func.grad(lambda w: func.grad(lambda x: f(x, w).pow(3).sum())(x).sum())(w),
    "jvp": lambda f, x, w: func.jvp(lambda x: f(x, w), (x,), (x,))[1],
    "jvp-jvp": lambda f, x, w: func.jvp(lambda x, w: func.jvp(lambda x, w: f(x, w).pow(3), (x, w), (x, w))[1], (x, w), (x, w))[1],
    "jvp-grad": lambda f, x, w: func.jvp(lambda w: func.grad(lambda x: f(x, w).pow(3).sum())(x), (w,), (w,))[1],
    "grad-jvp": lambda f, x, w: func.grad(lambda w: func.jvp(lambda x: f(x, w).pow(3), (x,), (x,))[1].sum())(w),
    "vmap-grad": lambda f, x, w: func.vmap(func.grad(lambda x: f(x, w).pow(2).sum()))(x),
    "jacfwd": lambda f, x, w: func.jacfwd(lambda w: f(x[:1, :, :3, :3], w))(w),
    "functionalize": lambda f, x, w: func.functionalize(lambda x: f(x, w))(x),
    "functionalize-grad": lambda f, x, w: func.functionalize(func.grad(lambda x: f(x, w).pow(2).sum()))(x),
    "no-grad-within": lambda f, x, w: func.grad(lambda x: (f(x, w) * torch.no_grad()(f)(x, w)).sum())(x),
    "grad-outside": lambda f, x, w: torch.autograd.grad(func.grad(lambda x: f(x, w).pow(2).sum())(x).pow(2).sum(), w)[0],
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms(name, device):
    """Of the function and of the operator itself, which must not drop a tangent."""
    x, w = torch.randn(2, 4, 5, 5, device=device, dtype=torch.float64), torch.randn(4, 1, 3, 3, device=device, dtype=torch.float64, requires_grad=True)
    expected = TRANSFORMS[name](lambda x, w: F.conv2d(x, w, groups=4), x, w)
    for f in (lambda x, w: W.conv2d(x, w, groups=4), _direct):
        torch.testing.assert_close(TRANSFORMS[name](f, x, w), expected, rtol=1e-9, atol=1e-9)


def test_tangent_of_the_operator(device):
    x, w = torch.randn(2, 4, 5, 5, device=device), torch.randn(4, 1, 3, 3, device=device)
    with torch.autograd.forward_ad.dual_level(), torch.no_grad():
        y = _direct(torch.autograd.forward_ad.make_dual(x, 2 * x), w)
        torch.testing.assert_close(torch.autograd.forward_ad.unpack_dual(y).tangent, F.conv2d(2 * x, w, groups=4), rtol=1e-4, atol=1e-4)


def test_vmap_of_nothing(device):
    w = torch.randn(4, 1, 3, 3, device=device)
    for shape in ((0, 2, 4, 6, 6), (3, 0, 4, 6, 6)):
        assert func.vmap(lambda x: W.conv2d(x, w, groups=4))(torch.randn(shape, device=device)).shape == (*shape[:2], 4, 4, 4)


def test_gpu_out_of_memory_is_the_error_that_PyTorch_raises():
    """Whatever the operator says it could not get on a GPU; on the CPU PyTorch itself raises RuntimeError."""
    from types import SimpleNamespace
    from weft._core import rules as _rules

    def fails(where):
        def op(*args):
            raise RuntimeError(f"weft::conv: PyTorch could not allocate 8 elements of float32 on {where}: no room")
        return SimpleNamespace(op=op, number=-1, native=None, plain=None, tensors=3)
    with pytest.raises(torch.OutOfMemoryError, match="could not allocate"):
        _rules.call(fails("cuda"), torch.zeros(1), None, None)
    with pytest.raises(RuntimeError, match="could not allocate") as raised:
        _rules.call(fails("cpu"), torch.zeros(1), None, None)
    assert raised.type is RuntimeError


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_gpu_out_of_memory():
    with pytest.raises(torch.OutOfMemoryError):
        W.conv2d(torch.ones(1, 1, 1, 1, device="cuda").expand(1, 1, 2**19, 2**19), torch.ones(1, 1, 1, 1, device="cuda"))
