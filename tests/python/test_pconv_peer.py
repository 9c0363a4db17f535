"""Partial convolution over PyTorch's convolution, some images at a time: the same as weft's own kernels, whatever the limit of workspace."""
from __future__ import annotations

import math

import pytest
import torch

import weft
import weft.functional as W
from cases import CASES, DTYPES, case, close
from test_torch_partial_conv import MASKS, make_mask, truth_of, weft_of

CASES = [c for c in CASES if c.input[0] or len(c.input) == c.rank + 1]


def own(device):
    """The name of weft's kernel there."""
    return "partial_conv_ref" + ("__cuda" if device.type == "cuda" else "")


def run(c, tensors, mask, grad, **more):
    y, new = weft_of(c)(*tensors, mask, **c.options, **more)
    names = weft.backends.kernels()
    return names, [y, new, *torch.autograd.grad(y, [t for t in tensors if t is not None], grad)], weft.backends.kernels()


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("c", CASES, ids=str)
def test_definition(c, kind, device):
    """Every case and every way to give a mask; the other types for one that selects and one that multiplies."""
    for dtype in DTYPES[:3] if kind in ("one-bool", "every-fraction") else DTYPES[:1]:
        tensors, mask = c.tensors(device, dtype, grad=True), make_mask(c, kind, device, dtype)
        grad = torch.randn(weft_of(c)(*tensors, mask, **c.options)[0].shape, dtype=dtype, device=device)
        with weft.backends.flags(pin="torch"):
            forward, got, backward = run(c, tensors, mask, grad)
        assert forward.startswith("torch") and backward.startswith("torch") and got[1].dtype == (dtype if mask is None else mask.dtype)
        for ours, truth in zip(got, truth_of(c, tensors, mask, grad), strict=True):
            close((ours if ours.is_floating_point() else ours.double()).cpu(), truth, 4 * math.prod(c.weight[1:]))


@pytest.mark.parametrize("kind", ["none", "one-bool", "one-shared-u8", "every-u8", "every-fraction"])
def test_few_images_at_a_time(kind, device):
    """Five images at once, by some and by ones: each is computed by itself, so the bits do not depend on how many go at once, but for the sums over images."""
    x, w, b = torch.randn(5, 4, 8, 8, device=device), torch.randn(6, 2, 3, 3, device=device), torch.randn(6, device=device)
    shape = {"n": 5, "c": 4, "1": 1}
    mask = None if MASKS[kind] is None else torch.rand([shape[a] for a in MASKS[kind][0]] + [8, 8], device=device)
    mask = mask if mask is None or MASKS[kind][1] == "fraction" else (mask > 0.5).to({"bool": torch.bool, "u8": torch.uint8}[MASKS[kind][1]])
    results = []
    for limit in (None, 20_000, 10_000):
        leaves = [t.clone().requires_grad_() for t in (x, w, b)]
        with weft.backends.flags(pin="torch", workspace_limit=limit):
            y, new = W.partial_conv2d(*leaves, mask, groups=2, padding=1)
            assert weft.backends.kernels().startswith("torch")
            y.square().sum().backward()
        results.append([y.detach(), new, *(t.grad for t in leaves)])
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], rtol=1e-5, atol=1e-4)
    with weft.backends.flags(pin="torch", workspace_limit=1000):
        W.partial_conv2d(x, w, b, mask, groups=2, padding=1)
        assert weft.backends.kernels() == own(device)   # no image fits


def test_they_go_there_unless_delegation_is_off(device):
    big, small = (torch.randn(1, 32, s, s, device=device, dtype=torch.float64) for s in (48, 3))
    w = torch.randn(32, 32, 3, 3, device=device, dtype=torch.float64)
    W.partial_conv2d(big, w, None, torch.rand(1, 48, 48, device=device) > 0.5, padding=1)
    assert weft.backends.kernels().startswith("torch")
    W.partial_conv2d(small[:, :1], w[:1, :1], None, torch.rand(1, 3, 3, device=device) > 0.5, padding=1)
    assert weft.backends.kernels().startswith("torch")       # the reference is never taken over PyTorch
    with weft.backends.flags(delegate=False):
        W.partial_conv2d(small, w, None, padding=1)
        assert weft.backends.kernels() == own(device)


@pytest.mark.parametrize("act", ["relu", "clip"])
def test_activation_and_out(act, device):
    c = case("2d-grouped")
    x, w, b = c.tensors(device)
    mask = make_mask(c, "one-bool", device, None)
    options = c.options | {"act": act, "clip": (-0.25, 0.5)}
    expected = W.partial_conv2d(x, w, b, mask, **options)
    with weft.backends.flags(pin="torch"):
        torch.testing.assert_close(W.partial_conv2d(x, w, b, mask, **options), expected, rtol=1e-5, atol=1e-6)
        out = torch.empty_like(expected[0]), torch.empty_like(expected[1])
        W.partial_conv2d(x, w, b, mask, **options, out=out)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-6)


def test_measured(device):
    """benchmark runs both roads on the call's own tensors and keeps the winner."""
    c = case("2d-dense")
    x, w, b = c.tensors(device, grad=True)
    mask = make_mask(c, "one-fraction", device, torch.float32)
    expected = torch.autograd.grad(W.partial_conv2d(x, w, b, mask, **c.options)[0].sum(), (x, w, b))
    with weft.backends.flags(benchmark=True, measure_seconds=0.05):
        y, _ = W.partial_conv2d(x, w, b, mask, **c.options)
        torch.testing.assert_close(torch.autograd.grad(y.sum(), (x, w, b)), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["1d-same-even", "2d-grouped", "3d-same", "t2d-output-padding"])
def test_legacy(name, device):
    """The bias ahead of the ratio and off again: PyTorch's road whatever is set, the same within rounding, the same gradients; nothing without a bias."""
    c = case(name)
    for dtype in DTYPES:
        tensors, mask = c.tensors(device, dtype, grad=True), make_mask(c, "one-bool", device, dtype)
        grad = torch.randn(weft_of(c)(*tensors, mask, **c.options)[0].shape, dtype=dtype, device=device)
        names, got, _ = run(c, tensors, mask, grad, legacy=True)
        assert names.startswith("torch")
        for ours, truth in zip(got, truth_of(c, tensors, mask, grad), strict=True):
            close((ours if ours.is_floating_point() else ours.double()).cpu(), truth, 16 * math.prod(c.weight[1:]))
        x, w, _ = tensors
        assert all(map(torch.equal, weft_of(c)(x, w, None, mask, **c.options, legacy=True), weft_of(c)(x, w, None, mask, **c.options)))


def test_legacy_needs_room_for_an_image(device):
    x, w, b = torch.randn(2, 4, 8, 8, device=device), torch.randn(4, 4, 3, 3, device=device), torch.randn(4, device=device)
    with weft.backends.flags(workspace_limit=100), pytest.raises(RuntimeError, match="legacy: is true, allowed: false, for one image needs more than the"):
        W.partial_conv2d(x, w, b, legacy=True)
    assert W.partial_conv2d(x[:0], w, b, legacy=True)[0].shape == (0, 4, 6, 6)
