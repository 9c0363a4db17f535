"""Derivatives beyond the first, torch.func, autocast, and the contract that PyTorch checks of a custom operator."""
from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import weft.functional as W
from cases import SMALL, case


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
        torch.library.opcheck(getattr(torch.ops.weft, name).default, args)


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
