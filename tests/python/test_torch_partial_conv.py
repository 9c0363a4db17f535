"""weft.functional.partial_conv*: against the definition in float64 made of PyTorch's convolutions, with its gradients."""
from __future__ import annotations

import math
import re

import pytest
import torch
import torch.nn.functional as F

import weft.functional as W
from cases import CASES, DTYPES, SMALL, case, channels_last, close, opcheck_convolution, scattered, shifted

ids = lambda v: str(v).replace("torch.", "")
# How a mask is given: its axes before the spatial ones (n and c: those of input), and its values. None: no mask.
MASKS = {"none": None, "plane-bool": ("n", "bool"), "plane-shared": ("1", "float"), "one-bool": ("n1", "bool"), "one-fraction": ("n1", "fraction"),
         "one-shared-u8": ("11", "u8"), "every-u8": ("nc", "u8"), "every-fraction": ("nc", "fraction"), "every-shared": ("1c", "float")}


def weft_of(c):
    return getattr(W, "partial_" + c.function)


def make_mask(c, kind, device, dtype):
    """Holes everywhere on the first pixels, so that some windows see nothing; fractions small enough for sums below 1."""
    if MASKS[kind] is None:
        return None
    axes, values = MASKS[kind]
    batched = len(c.input) == c.rank + 2
    sizes = {"n": c.input[0], "1": 1, "c": c.input[-c.rank - 1]}
    shape = [sizes[a] for i, a in enumerate(axes) if batched or i > 0] + list(c.input[-c.rank:])
    m = (torch.rand(shape) < 0.6).double()
    m[..., :min(3, c.input[-1] - 1)] = 0
    if values == "fraction":
        m = m * torch.randint(1, 5, shape) / (64 if axes == "n1" else 8)
    return m.to(device, {"bool": torch.bool, "u8": torch.uint8}.get(values, dtype))


def definition(c, x, w, b, mask):
    """(y, new mask) in float64: S, the sum of the mask over each window, is a convolution of the mask with ones."""
    rank = c.rank
    if mask is None:
        m = x.new_ones(*([1] * (x.dim() - rank)), *x.shape[-rank:])
    else:
        m = (mask != 0 if not mask.is_floating_point() else mask).to(x.device, torch.float64)
        m = m.unsqueeze(-rank - 1) if m.dim() < x.dim() else m
    one = m.shape[-rank - 1] == 1
    xm = torch.where(m != 0, x, 0.0) if mask is not None and not mask.is_floating_point() else x * m
    s = c.twin(m.expand(*m.shape[:-rank - 1], x.shape[-rank - 1], *x.shape[-rank:]), torch.ones_like(w), None, **c.options)
    window = math.prod(w.shape[2:]) * (x.shape[-rank - 1] // c.options.get("groups", 1))
    u = s.clamp(0, 1)
    y = c.twin(xm, w, None, **c.options) * (window / (s + 1e-8) * u)
    y = y if b is None else (y + b.view(-1, *[1] * rank)) * u
    new = u.narrow(-rank - 1, 0, 1) if one else u
    return y, new.squeeze(-rank - 1) if mask is not None and mask.dim() < x.dim() else new


def exact(tensors):
    return [None if t is None else t.detach().double().cpu().requires_grad_() for t in tensors]


def truth_of(c, tensors, mask, grad):
    leaves = exact(tensors)
    y, new = definition(c, *leaves, mask)
    return [y.detach(), new.detach(), *torch.autograd.grad(y, [t for t in leaves if t is not None], grad.detach().double().cpu())]


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("c", CASES, ids=str)
def test_definition(c, kind, device):
    for dtype in DTYPES:
        tensors, mask = c.tensors(device, dtype, grad=True), make_mask(c, kind, device, dtype)
        y, new = weft_of(c)(*tensors, mask, **c.options)
        grad = torch.randn_like(y)
        got = [y, new, *torch.autograd.grad(y, [t for t in tensors if t is not None], grad)]
        assert new.dtype == (dtype if mask is None else mask.dtype) and not new.requires_grad
        for ours, truth in zip(got, truth_of(c, tensors, mask, grad), strict=True):
            close((ours if ours.is_floating_point() else ours.double()).cpu(), truth, 4 * math.prod(c.weight[1:]))


def test_whole_windows_are_convolution(device):
    """Nothing missing: the ratio is 1 under any groups; with padding, only the border differs."""
    c = case("2d-grouped")
    x, w, b = c.tensors(device, torch.float64)
    y, mask = W.partial_conv2d(x, w, b, groups=3, stride=(2, 1))
    torch.testing.assert_close(y, F.conv2d(x, w, b, groups=3, stride=(2, 1)), rtol=1e-7, atol=1e-7)   # the epsilon of the ratio: 1e-8 / S
    assert mask.shape == (1, 1, *y.shape[2:]) and mask.eq(1).all()
    padded, _ = W.partial_conv2d(x, w, b, groups=3, padding=1)
    plain = F.conv2d(x, w, b, groups=3, padding=1)
    torch.testing.assert_close(padded[..., 1:-1, 1:-1], plain[..., 1:-1, 1:-1], rtol=1e-7, atol=1e-7)
    assert not torch.isclose(padded, plain)[..., 0, :].any()


def test_selecting_keeps_nan_out_and_multiplying_does_not(device):
    x, w = torch.randn(1, 3, 6, 6, device=device), torch.randn(4, 3, 3, 3, device=device)
    holes = torch.rand(1, 1, 6, 6, device=device) > 0.5
    x[:, :1][~holes] = float("nan")
    for mask in (holes, holes.to(torch.uint8) * 200):
        leaf = x.clone().requires_grad_()
        y, new = W.partial_conv2d(leaf, w, None, mask, padding=1)
        y.sum().backward()
        assert y.isfinite().all() and leaf.grad[(~holes).expand_as(x)].eq(0).all() and set(new.to(torch.uint8).unique().tolist()) <= {0, 1}
    assert W.partial_conv2d(x, w, None, holes.float(), padding=1)[0].isnan().any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=ids)
def test_only_holes_give_zero_in_half(dtype, device):
    """1e-8 is 0 in float16: the ratio must not become 0 / 0."""
    x, w, b = (torch.randn(s, device=device, dtype=dtype) for s in ((1, 2, 4, 4), (3, 2, 3, 3), (3,)))
    y, mask = W.partial_conv2d(x, w, b, torch.zeros(1, 4, 4, device=device, dtype=dtype))
    assert y.eq(0).all() and mask.eq(0).all()


# ---------------------------------------------------------------- memory
VIEWS = {"first": lambda t: t, "last": channels_last, "scattered": scattered, "shifted": shifted}


def dense_strides(t, last):
    return torch.empty(*t.shape[:1], *t.shape[2:], t.shape[1]).movedim(-1, 1).stride() if last else torch.empty(t.shape).stride()


def viewed(mask, view):
    return mask if mask.dtype in (torch.bool, torch.uint8) and view in ("scattered", "shifted") else VIEWS[view](mask)


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("name", ["1d-stride-dilation", "2d-grouped", "3d-grouped", "t2d-output-padding", "t3d"])
def test_views(name, view, device):
    c = case(name)
    for kind in ("one-fraction", "every-u8"):
        x, w, b = c.tensors(device)
        mask = make_mask(c, kind, device, torch.float32)
        plain = [t.clone().requires_grad_() for t in (x, w, b)]
        views = [VIEWS[view](x).requires_grad_(), VIEWS[view](w).requires_grad_(), shifted(b).requires_grad_()]
        expected, mask_expected = weft_of(c)(*plain, mask, **c.options)
        y, new = weft_of(c)(*views, viewed(mask, view), **c.options)
        torch.testing.assert_close((y, new), (expected, mask_expected), rtol=1e-5, atol=1e-5)
        grad = torch.randn_like(y)
        torch.testing.assert_close(torch.autograd.grad(y, views, grad), torch.autograd.grad(expected, plain, grad), rtol=1e-4, atol=1e-4)
        assert y.stride() == dense_strides(y, view == "last") and new.stride() == dense_strides(new, view == "last")


def test_expanded_tensors(device):
    x, w = torch.randn(1, 1, 6, 6, device=device).expand(3, 4, 6, 6), torch.randn(8, 1, 1, 1, device=device).expand(8, 4, 3, 3)
    mask = torch.tensor([True], device=device).expand(3, 1, 6, 6)
    y, new = W.partial_conv2d(x, w, None, mask)
    torch.testing.assert_close(y, F.conv2d(x, w), rtol=1e-4, atol=1e-4)
    assert new.all() and new.shape == (3, 1, 4, 4)
    leaf = torch.randn(3, 4, 6, 6, device=device, requires_grad=True)
    W.partial_conv2d(leaf, w, None, mask)[0].sum().backward()   # a gradient whose strides are all 0
    torch.testing.assert_close(leaf.grad, torch.autograd.grad(F.conv2d(leaf, w).sum(), leaf)[0], rtol=1e-4, atol=1e-4)


def test_shapes_of_new_masks(device):
    x, w = torch.randn(2, 4, 6, 6, device=device), torch.randn(8, 2, 3, 3, device=device)
    full = torch.ones(2, 4, 6, 6, device=device, dtype=torch.bool)
    for mask, shape in ((None, (1, 1, 4, 4)), (full, (2, 8, 4, 4)), (full[:1], (1, 8, 4, 4)), (full[:, :1], (2, 1, 4, 4)), (full[:1, :1], (1, 1, 4, 4)),
                        (full[:, 0], (2, 4, 4)), (full[:1, 0], (1, 4, 4))):
        assert W.partial_conv2d(x, w, None, mask, groups=2)[1].shape == shape
    for mask, shape in ((None, (1, 4, 4)), (full[0], (8, 4, 4)), (full[0, :1], (1, 4, 4)), (full[0, 0], (4, 4))):
        y, new = W.partial_conv2d(x[0], w, None, mask, groups=2)
        assert y.shape == (8, 4, 4) and new.shape == shape
    for mask, shape in ((None, (1, 1, 4, 4)), (full[:0], (0, 8, 4, 4)), (full[:1, 0], (1, 4, 4))):   # an empty batch
        y, new = W.partial_conv2d(x[:0], w, None, mask, groups=2)
        assert y.shape == (0, 8, 4, 4) and new.shape == shape and new.all()


def test_what_is_kept_for_backward(device):
    """input, weight, the mask and one plane of sums: no masked copy, nothing of the size of input besides."""
    x, w = torch.randn(2, 8, 16, 16, device=device, requires_grad=True), torch.randn(8, 8, 3, 3, device=device, requires_grad=True)
    mask, kept = torch.rand(2, 16, 16, device=device) > 0.5, []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        W.partial_conv2d(x, w, torch.zeros(8, device=device), mask, padding=1)
    assert [t.data_ptr() for t in kept[:3]] == [t.data_ptr() for t in (x, w, mask)]
    assert [tuple(t.shape) for t in kept[3:]] == [(2, 1, 16, 16)] and kept[3].dtype == torch.float32


def test_out(device):
    c = case("2d-grouped")
    x, w, b = c.tensors(device)
    mask = make_mask(c, "one-bool", device, None)
    y, new = W.partial_conv2d(x, w, b, mask, **c.options)
    for given in ((torch.empty_like(y), torch.empty_like(new)), (scattered(torch.empty_like(y)), channels_last(torch.empty_like(new)))):
        got = W.partial_conv2d(x, w, b, mask, **c.options, out=given)
        assert got is given and torch.equal(got[1], new)
        torch.testing.assert_close(got[0], y)   # scattered memory is another kernel's, with sums in another order
    x0 = torch.randn(2, 4, 6, 6, device=device)
    for given, kind, text in (((y,), TypeError, "out: is 1 of ['Tensor'], allowed: 2 tensors or None"), (y, TypeError, "out: is Tensor"),
                              ((y[:1], new), RuntimeError, "out: has the shape"),
                              ((y, new.float()), RuntimeError, "out1: is float32, allowed: the type of the result, bool"),
                              ((y, new[:1]), RuntimeError, "out1: has the shape")):
        with pytest.raises(kind, match=re.escape(text)):
            W.partial_conv2d(x, w, b, mask, **c.options, out=given)
    every = torch.ones(2, 4, 6, 6, device=device)
    with pytest.raises(RuntimeError, match="out1: shares memory with mask"):
        W.partial_conv2d(x0, torch.randn(4, 4, 1, 1, device=device), None, every, out=(torch.empty_like(x0), every))
    with pytest.raises(RuntimeError, match="requires grad"):
        W.partial_conv2d(x, w.clone().requires_grad_(), b, mask, **c.options, out=(y, new))


# ---------------------------------------------------------------- derivatives
def of_leaves(c, mask, biased, **more):
    return lambda *t: weft_of(c)(t[0], t[1], t[2] if biased else None, mask, **c.options, **more)[0]


@pytest.mark.parametrize("c", SMALL, ids=str)
def test_gradcheck(c, device):
    for i, kind in enumerate(("none", "one-fraction", "every-u8")):
        mask, biased = make_mask(c, kind, device, torch.float64), c.bias and i != SMALL.index(c) % 3
        leaves = [t for t in c.tensors(device, torch.float64, grad=True)[:3 if biased else 2]]
        run = of_leaves(c, mask, biased)
        assert torch.autograd.gradcheck(run, leaves, fast_mode=True, check_forward_ad=True)
        assert torch.autograd.gradgradcheck(run, leaves, fast_mode=True)


@pytest.mark.parametrize("act", ["relu", "clip"])
def test_activation(act, device):
    c = case("2d-grouped")
    mask, (x, w, b) = make_mask(c, "one-fraction", device, torch.float64), c.tensors(device, torch.float64, grad=True)
    run = of_leaves(c, mask, True, act=act, clip=(-0.5, 0.5))
    y = of_leaves(c, mask, True)(x, w, b)
    torch.testing.assert_close(run(x, w, b), y.relu() if act == "relu" else y.clamp(-0.5, 0.5))
    assert torch.autograd.gradcheck(run, (x, w, b), fast_mode=True) and torch.autograd.gradgradcheck(run, (x, w, b), fast_mode=True)


@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 2), (1, 2)], ids=str)
def test_gradients_of_some(wanted, device):
    c = case("2d-grouped")
    leaves, mask = c.tensors(device, torch.float64), make_mask(c, "every-fraction", device, torch.float64)
    some = [t.requires_grad_(i in wanted) for i, t in enumerate(leaves)]
    y, _ = weft_of(c)(*some, mask, **c.options)
    truth, _ = definition(c, *some, mask)
    grad = torch.randn_like(y)
    for ours, theirs in zip(*(torch.autograd.grad(of, [some[i] for i in wanted], grad) for of in (y, truth))):
        close(ours, theirs)
    if wanted != (2,):
        assert torch.autograd.gradgradcheck(of_leaves(c, mask, True), some, fast_mode=True)


def test_a_mask_has_no_gradient(device):
    x, w = torch.randn(1, 2, 5, 5, device=device, requires_grad=True), torch.randn(3, 2, 3, 3, device=device)
    mask = torch.rand(1, 1, 5, 5, device=device, requires_grad=True)
    y, new = W.partial_conv2d(x, w, None, mask)
    y.sum().backward()
    assert mask.grad is None and not new.requires_grad and x.grad is not None
    assert not W.partial_conv2d(x.detach(), w, None, mask.detach())[0].requires_grad


func = torch.func
TRANSFORMS = {
    "grad-grad": lambda f, x, w: func.grad(lambda w: func.grad(lambda x: f(x, w).pow(3).sum())(x).sum())(w),
    "jvp": lambda f, x, w: func.jvp(f, (x, w), (w.sum() * x, w))[1],
    "jvp-grad": lambda f, x, w: func.jvp(lambda w: func.grad(lambda x: f(x, w).pow(3).sum())(x), (w,), (w,))[1],
    "jacfwd": lambda f, x, w: func.jacfwd(lambda w: f(x[:1], w))(w),
    "third": lambda f, x, w: func.grad(lambda x: func.grad(lambda w: func.grad(lambda x: f(x, w).pow(4).sum())(x).pow(2).sum())(w).pow(2).sum())(x),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms(name, device):
    c = case("1d-stride-dilation")
    x, w, b = c.tensors(device, torch.float64)
    for kind in ("none", "plane-shared", "every-shared"):
        mask = make_mask(c, kind, device, torch.float64)
        ours = TRANSFORMS[name](lambda x, w: weft_of(c)(x, w, b, mask, **c.options)[0], x, w)
        theirs = TRANSFORMS[name](lambda x, w: definition(c, x, w, b, mask)[0], x, w)
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("name", ["1d-stride-dilation", "2d-unbatched", "t2d-output-padding"])
def test_vmap(name, kind, device):
    """Over inputs, over masks, over weights; of the function and of its gradients."""
    c = case(name)
    x, w, b = c.tensors(device, torch.float64)
    mask = make_mask(c, kind, device, torch.float64)
    xs, ws = torch.stack([x, 2 * x, x.neg()], 1), torch.stack([w, 3 * w, w.neg()])
    masks = None if mask is None else torch.stack([make_mask(c, kind, device, torch.float64) for _ in range(3)], -1)
    some = [((1, None, None), (xs, w, mask)), ((None, 0, None), (x, ws, mask)), ((1, 0, None), (xs, ws, mask))]
    if mask is not None:
        some += [((None, None, -1), (x, w, masks)), ((1, 0, -1), (xs, ws, masks))]
    f = lambda x, w, m: weft_of(c)(x, w, b, m, **c.options)
    for g in (f, lambda x, w, m: func.grad(lambda x, w, b: weft_of(c)(x, w, b, m, **c.options)[0].square().sum(), (0, 1, 2))(x, w, b)):
        for dims, args in some:
            ours = func.vmap(g, dims)(*args)
            each = [g(*(a if d is None else a.select(d, i) for d, a in zip(dims, args))) for i in range(3)]
            torch.testing.assert_close(ours, tuple(torch.stack(t) for t in zip(*each)), rtol=1e-9, atol=1e-9)


# ---------------------------------------------------------------- tracing
def samples(device, grad):
    x, w, b, wt = (torch.randn(s, device=device, requires_grad=grad) for s in ((2, 4, 6, 5), (8, 2, 3, 2), (8,), (4, 3, 3, 2)))
    last = channels_last(x.detach()).requires_grad_(grad)
    mask, every = torch.rand(2, 6, 5, device=device) > 0.5, torch.rand(1, 4, 6, 5, device=device)
    tail = [2, 1], [1, 1, 0, 2], [1, 2], 2, "", 0.0, 0.0, False, [0, 0], False
    yield "partial_conv", (x, w, b, mask, *tail)
    yield "partial_conv", (last, w, None, every, *tail[:4], "relu", *tail[5:])
    yield "partial_conv", (x, w, b, None, *tail)
    yield "partial_conv", (x, w, b, mask, *tail[:-1], True)
    yield "partial_conv", (last, wt, None, every, [2, 1], [1, 1, 0, 0], [1, 1], 2, "clip", -0.5, 0.5, True, [1, 0], False)
    y, new, sums = torch.ops.weft.partial_conv(last.detach(), w.detach(), None, every, *tail)
    dy = torch.randn_like(y).requires_grad_(grad)
    yield "partial_conv_backward", (dy, last, w, every, sums, *tail[:4], False, [0, 0], True, 7, torch.float32)
    yield "partial_conv_backward", (dy, last, w, every, sums, *tail[:4], False, [0, 0], False, 1, torch.float32)
    if not grad:
        yield "partial_conv_out", (last, w, None, every, *tail, torch.empty_like(y), torch.empty_like(new))


@pytest.mark.parametrize("grad", [False, True])
def test_opcheck(grad, device):
    for name, args in samples(device, grad):
        opcheck_convolution(getattr(torch.ops.weft, name).default, args)


@pytest.mark.parametrize("name", ["1d-unbatched", "2d-grouped", "3d-same", "t2d-output-padding"])
def test_compile(name, device):
    torch.compiler.reset()
    c = case(name)
    f = lambda x, w, b, m: weft_of(c)(x, w, b, m, **c.options, act="relu")
    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    for kind in ("none", "one-bool", "every-shared"):
        tensors, mask = c.tensors(device), make_mask(c, kind, device, torch.float32)
        results = []
        for g in (compiled, f):
            leaves = [t.detach().clone().requires_grad_() for t in tensors]
            y, new = g(*leaves, mask)
            y.square().sum().backward()
            results.append([y.detach(), new, *(t.grad for t in leaves)])
        torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)
        assert results[0][0].stride() == results[1][0].stride()


def test_dynamic_shapes(device):
    torch.compiler.reset()
    from torch._dynamo.testing import CompileCounterWithBackend
    counter = CompileCounterWithBackend("aot_eager")
    f = lambda x, w, m: W.partial_conv2d(x, w, None, m, padding=1)
    compiled = torch.compile(f, fullgraph=True, backend=counter, dynamic=True)
    w = torch.randn(6, 4, 3, 3, device=device, requires_grad=True)
    for n, h, width in ((2, 7, 8), (3, 9, 11), (5, 6, 13)):
        x, mask = torch.randn(n, 4, h, width, device=device), torch.rand(n, h, width, device=device) > 0.5
        y, new = compiled(x, w, mask)
        torch.testing.assert_close((y, new), f(x, w, mask))
        torch.testing.assert_close(torch.autograd.grad(y.sum(), w), torch.autograd.grad(f(x, w, mask)[0].sum(), w), rtol=1e-4, atol=1e-4)
    assert counter.frame_count == 1


def test_export_and_symbolic_trace(device):
    class Net(torch.nn.Module):
        def forward(self, x, w, mask):
            return W.partial_conv2d(x, w, None, mask, padding="same")
    args = (torch.randn(2, 4, 6, 7, device=device), torch.randn(8, 4, 3, 3, device=device), torch.rand(2, 1, 6, 7, device=device) > 0.5)
    torch.testing.assert_close(torch.export.export(Net(), args).module()(*args), Net()(*args))
    assert all(map(torch.equal, torch.fx.symbolic_trace(Net())(*args), Net()(*args)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=ids)
def test_autocast(dtype, device):
    """As convolution: data and weights in the lower precision; the mask keeps its type."""
    c = case("2d-grouped")
    x, w, b = c.tensors(device, grad=True)
    mask = make_mask(c, "one-fraction", device, torch.float32)
    with torch.autocast(device.type, dtype=dtype):
        y, new = W.partial_conv2d(x, w, b, mask, **c.options)
        assert F.conv2d(x, w, b, **c.options).dtype == dtype and W.partial_conv2d(x.double(), w.double(), b.double(), **c.options)[0].dtype == torch.float64
        assert W.partial_conv2d(x, w, b, **c.options)[1].dtype == dtype
    assert y.dtype == dtype and new.dtype == torch.float32
    torch.testing.assert_close(y.float(), W.partial_conv2d(x, w, b, mask, **c.options)[0], rtol=2e-2, atol=2e-2)
    y.sum().backward()
    assert all(t.grad.dtype == torch.float32 for t in (x, w, b))


def test_subclasses_and_modes(device):
    class Tagged(torch.Tensor):
        pass
    x, w = torch.randn(1, 2, 5, 5, device=device), torch.randn(2, 2, 3, 3, device=device)
    for function in (W.partial_conv2d, W.partial_conv_transpose2d):
        expected = function(x, w, None, None, 2, 1, dilation=1, act="relu")
        got = function(x.as_subclass(Tagged), w, None, None, 2, 1, dilation=1, act="relu")
        assert all(type(t) is Tagged for t in got)
        torch.testing.assert_close(tuple(t.as_subclass(torch.Tensor) for t in got), expected)


# ---------------------------------------------------------------- wrong input
def x(*shape, **kw):
    return torch.randn(shape or (2, 4, 6, 6), **kw)


def run(*args, **kw):
    return lambda: W.partial_conv2d(*args, **kw)


w4, wt = (8, 2, 3, 3), (4, 2, 3, 3)
WRONG = {
    "input-kind": (run(None, x(*w4)), TypeError, "partial_conv2d: input is NoneType, allowed: Tensor"),
    "input-rank": (run(x(6, 6), x(*w4)), RuntimeError, "partial_conv2d: input has 2 dimensions [6, 6], allowed: 3 (unbatched) or 4 (batched)"),
    "input-rank-3d": (lambda: W.partial_conv3d(x(), x(4, 4, 1, 1, 1)[0, 0]), RuntimeError, "weight has 3 dimensions"),
    "weight-rank-1d": (lambda: W.partial_conv1d(x(), x(*w4)), RuntimeError, "partial_conv1d: weight has 4 dimensions"),
    "input-type": (run(x().long(), x(*w4).long(), groups=2), RuntimeError, "input: is int64, allowed: float32, float64, float16 or bfloat16"),
    "weight-type": (run(x(), x(*w4).double(), groups=2), RuntimeError, "weight: is float64, allowed: the type of input, float32"),
    "bias-kind": (run(x(), x(*w4), 1.0, groups=2), TypeError, "bias is float, allowed: Tensor or None"),
    "bias-length": (run(x(), x(*w4), x(4), groups=2), RuntimeError, "bias: has 4 elements, allowed: 8"),
    "bias-type": (run(x(), x(*w4), x(8).double(), groups=2), RuntimeError, "bias: is float64, allowed: the type of input, float32, or float32"),
    "mask-kind": (run(x(), x(*w4), None, [1], groups=2), TypeError, "partial_conv2d: mask is list, allowed: Tensor or None"),
    "mask-type": (run(x(), x(*w4), None, x().long(), groups=2), RuntimeError, "mask: is int64, allowed: bool, uint8, float32, float64, float16 or bfloat16"),
    "mask-complex": (run(x(), x(*w4), None, x().to(torch.complex64), groups=2), RuntimeError, "mask: is complex64"),
    "mask-rank": (run(x(), x(*w4), None, x(6, 6), groups=2), RuntimeError, "mask: has 2 dimensions, allowed with input of 4: 4, or 3 without channels"),
    "mask-rank-unbatched": (run(x(4, 6, 6), x(*w4), None, x(), groups=2), RuntimeError,
                "mask: has 4 dimensions, allowed with input of 3: 3, or 2 without channels"),
    "mask-batch": (run(x(), x(*w4), None, x(3, 1, 6, 6), groups=2), RuntimeError, "mask: has 3 elements along axis n, allowed: 1 or 2, as input has"),
    "mask-plane-batch": (run(x(), x(*w4), None, x(4, 6, 6), groups=2), RuntimeError, "mask: has 4 elements along axis n, allowed: 1 or 2, as input has"),
    "mask-channels": (run(x(), x(*w4), None, x(2, 2, 6, 6), groups=2), RuntimeError, "mask: has 2 elements along axis c, allowed: 1 or 4, as input has"),
    "mask-channels-unbatched": (run(x(4, 6, 6), x(*w4), None, x(3, 6, 6), groups=2), RuntimeError, "mask: has 3 elements along axis c, allowed: 1 or 4"),
    "mask-height": (run(x(), x(*w4), None, x(2, 1, 5, 6), groups=2), RuntimeError, "mask: has 5 elements along axis h, allowed: 6, as input has"),
    "mask-width": (run(x(), x(*w4), None, x(2, 6, 1), groups=2), RuntimeError, "mask: has 1 elements along axis w, allowed: 6, as input has"),
    "channels": (run(x(), x(*w4)), RuntimeError, "input: has 4 channels, allowed with groups=1 and a weight of (8, 2, ...): 2"),
    "groups": (run(x(), x(9, 2, 3, 3), groups=2), RuntimeError, "groups: is 2, allowed: a divisor of the first dimension of weight, 9"),
    "groups-zero": (run(x(), x(*w4), groups=0), RuntimeError, "groups: is 0"),
    "groups-kind": (run(x(), x(*w4), groups=2.0), TypeError, "groups: is 2.0, allowed: an int"),
    "stride": (run(x(), x(*w4), groups=2, stride=0), RuntimeError, "stride: is 0 along spatial axis 0, allowed: 1 to 2^20"),
    "stride-kind": (run(x(), x(*w4), groups=2, stride=1.5), TypeError, "stride: is 1.5, allowed: an int"),
    "stride-count": (run(x(), x(*w4), groups=2, stride=(1, 1, 1)), RuntimeError, "stride: has 3 values (1, 1, 1), allowed: an int, or 2"),
    "padding": (run(x(), x(*w4), groups=2, padding=-1), RuntimeError, "padding: is -1 along spatial axis 0"),
    "padding-word": (run(x(), x(*w4), groups=2, padding="full"), RuntimeError, "padding: is 'full', allowed: ints, 'valid' or 'same'"),
    "padding-same-stride": (run(x(), x(*w4), groups=2, padding="same", stride=2), RuntimeError, "padding: is 'same' with stride (2, 2)"),
    "dilation": (run(x(), x(*w4), groups=2, dilation=0), RuntimeError, "dilation: is 0"),
    "window": (run(x(2, 4, 2, 6), x(*w4), groups=2), RuntimeError, "input: spatial axis 0 has 2 elements, too few for kernel 3"),
    "empty-kernel": (run(x(), x(8, 2, 0, 3), groups=2), RuntimeError, "kernel 0"),
    "no-outputs": (run(x(), x(0, 4, 3, 3)), RuntimeError, "weight: has 0 output channels, allowed: 1 or more"),
    "no-channels": (run(x(2, 0, 6, 6), x(8, 0, 3, 3)), RuntimeError, "input: has 0 channels, allowed: 1 or more"),
    "input-huge": (lambda: W.partial_conv1d(x(1, 1, 1).expand(1, 1, 2**41), x(1, 1, 1)), RuntimeError,
                   "input: has 2199023255552 elements along dimension 2, allowed: at most 2^40"),
    "padding-huge": (run(x(), x(*w4), groups=2, padding=2**62), RuntimeError, "padding: is 4611686018427387904"),
    "act": (run(x(), x(*w4), groups=2, act="gelu"), ValueError, "act: is 'gelu', allowed: None, 'relu' or 'clip'"),
    "clip": (run(x(), x(*w4), groups=2, act="clip", clip=(2, 1)), ValueError, "clip: is (2, 1)"),
    "transposed-channels": (lambda: W.partial_conv_transpose2d(x(), x(3, 2, 3, 3)), RuntimeError, "input: has 4 channels"),
    "transposed-padding": (lambda: W.partial_conv_transpose2d(x(), x(*wt), padding="same"), TypeError, "padding: is 'same', allowed: an int"),
    "transposed-mask": (lambda: W.partial_conv_transpose2d(x(), x(*wt), None, x(2, 8, 6, 6)), RuntimeError,
                "mask: has 8 elements along axis c, allowed: 1 or 4"),
    "transposed-size": (lambda: W.partial_conv_transpose2d(x(1, 4, 1, 1), x(4, 2, 1, 1), padding=1), RuntimeError, "input: spatial axis 0 has 1 elements"),
    "output-padding": (lambda: W.partial_conv_transpose2d(x(), x(*wt), output_padding=1), RuntimeError,
                       "output_padding: is 1 along spatial axis 0, allowed: 0 or more, below the stride or the dilation"),
    "output-padding-negative": (lambda: W.partial_conv_transpose2d(x(), x(*wt), output_padding=-1), RuntimeError, "output_padding: is -1"),
    "output-padding-kind": (lambda: W.partial_conv_transpose1d(x(1, 4, 5), x(4, 2, 3), output_padding="1"), TypeError, "output_padding: is '1'"),
    "output-padding-3d": (lambda: W.partial_conv_transpose3d(x(1, 4, 5, 5, 5), x(4, 2, 3, 3, 3), output_padding=(0, 0)), RuntimeError,
                "output_padding: has 2 values"),
}
sums = torch.ones(1, 1, 4, 4)


def backward(grad=x(2, 8, 4, 4), sums=sums, want=3, dtype=torch.float32, biased=False):
    return lambda: torch.ops.weft.partial_conv_backward(grad, x(), x(*w4), None, sums, [1, 1], [0] * 4, [1, 1], 2, False, [0, 0], biased, want, dtype)


OPERATOR = {
    "grad-type": (backward(x(2, 8, 4, 4).double()), "grad_output: is float64, allowed: the type of input, float32"),
    "grad-rank": (backward(x(8, 4, 4)), "grad_output: has 3 dimensions, allowed: as many as input, 4"),
    "grad-channels": (backward(x(2, 7, 4, 4)), "grad_output: has 7 elements along axis c, allowed: 8, as the forward operator gives"),
    "sums-type": (backward(sums=sums.double()), "sums: is float64, allowed: float32"),
    "sums-batch": (backward(sums=torch.ones(2, 1, 4, 4)), "sums: has 2 elements along axis n, allowed: 1, as the forward operator gives"),
    "sums-width": (backward(sums=torch.ones(1, 1, 4, 5)), "sums: has 5 elements along axis w, allowed: 4"),
    "want": (backward(want=7), "want: is 7 with biased false, allowed: the gradient of a bias only where the forward operator had one"),
    "bias-dtype": (backward(dtype=torch.float64), "bias_dtype: is float64, allowed: the type of input, float32, or float32"),
    "output-padding": (lambda: torch.ops.weft.partial_conv(x(), x(*w4), None, None, [1, 1], [0] * 4, [1, 1], 2, "", 0.0, 0.0, False, [0, 1], False),
                       "output_padding: is 1 along spatial axis 1, allowed: 0 unless the convolution is transposed"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong(name):
    call, kind, text = WRONG[name]
    with pytest.raises(kind, match=re.escape(text)):
        call()


@pytest.mark.parametrize("name", OPERATOR)
def test_wrong_operator(name):
    call, text = OPERATOR[name]
    with pytest.raises(RuntimeError, match=re.escape(text)):
        call()


@pytest.mark.parametrize("name", [n for n in [*WRONG, *OPERATOR] if "huge" not in n])
def test_wrong_in_a_trace(name):
    from torch._subclasses.fake_tensor import FakeTensorMode
    call, text = (WRONG | OPERATOR)[name][0], (WRONG | OPERATOR)[name][-1]
    with FakeTensorMode(allow_non_fake_inputs=True), pytest.raises((RuntimeError, TypeError, ValueError), match=re.escape(text.split(", too few")[0])):
        call()


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("transposed", [False, True])
def test_convolution_refuses_the_same(rank, transposed):
    """Each wrong call without a mask is refused by its twin among the convolutions, with the same kind of error."""
    name = f"conv{'_transpose' if transposed else ''}{rank}d"
    data, weight = x(2, 4, *[6] * rank), x(4, 2, *[3] * rank)
    for kw, kind in (({"groups": 0}, RuntimeError), ({"stride": 0}, RuntimeError), ({"padding": -1}, RuntimeError), ({"dilation": 0}, RuntimeError),
                     ({"groups": 2.0}, TypeError), ({"stride": 1.5}, TypeError), ({"padding": "full"}, TypeError if transposed else RuntimeError),
                     ({"groups": 3}, RuntimeError), ({"stride": (1, 1, 1, 1)}, RuntimeError), ({"input": None}, TypeError), ({"bias": 1.0}, TypeError),
                     ({"bias": x(5)}, RuntimeError), ({"weight": weight.double()}, RuntimeError), ({"input": x(4)}, RuntimeError),
                     ({"weight": x(4, 2)}, RuntimeError)):
        for f in (getattr(F, name), getattr(W, "partial_" + name)):
            with pytest.raises(kind):
                f(**({"input": data, "weight": weight, "groups": 2} | kw))
