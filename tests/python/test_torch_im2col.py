"""unfold, fold, im2col, col2im, Unfold and Fold: beside their twins, and beside windows cut from a padded tensor; formats, derivatives,
tracing, errors."""
from __future__ import annotations

import copy
import inspect
import pickle
import re

import pytest
import torch
import torch.nn.functional as F

import weft
import weft.functional as W
from cases import DTYPES, channels_last, close, scattered, shifted

# shape of the image, kernel, stride, padding, dilation
WINDOWS = [
    ((2, 3, 11), (3,), (2,), (1,), (1,)),
    ((2, 9), (4,), (1,), (5,), (2,)),
    ((2, 3, 7, 9), (3, 3), (2, 2), (1, 1), (1, 1)),
    ((3, 6, 10), (2, 5), (1, 4), (3, 2), (1, 1)),
    ((1, 4, 9, 12), (3, 2), (4, 3), (1, 0), (2, 3)),
    ((2, 5, 4, 4), (1, 1), (1, 1), (0, 0), (1, 1)),
    ((0, 3, 6, 6), (3, 3), (2, 2), (1, 1), (1, 1)),
    ((1, 2, 5, 6, 7), (3, 2, 3), (2, 2, 1), (1, 0, 1), (1, 1, 1)),
    ((2, 7, 4, 6), (2, 2, 3), (3, 1, 2), (1, 1, 1), (3, 1, 2)),
]
PLANES = [w for w in WINDOWS if len(w[1]) == 2]
SMALL = [((2, 2, 7), (3,), (2,), (1,), (1,)), ((2, 2, 4, 5), (2, 3), (1, 2), (1, 0), (1, 2)), ((2, 5, 4), (2, 2), (2, 1), (0, 1), (1, 1)),
         ((2, 3, 4, 3), (2, 2, 1), (1, 2, 1), (1, 0, 0), (2, 1, 1))]
VIEWS = {"scattered": scattered, "shifted": shifted, "transposed": lambda t: t.transpose(-1, -2).contiguous().transpose(-1, -2),
         "last": lambda t: channels_last(t) if t.dim() > 2 else t, "expanded": lambda t: t[:1].expand_as(t) if t.shape[0] else t}


def label(w):
    return "x".join(map(str, w[0])) + "-k" + "x".join(map(str, w[1]))


def cut(x, k, s, p, d):
    """(n) c k... o...: each axis of the padded image cut into windows."""
    rank, lead = len(k), x.dim() - len(k)
    x = F.pad(x, [v for pad in reversed(p) for v in (pad, pad)])
    for a in range(rank):
        x = x.unfold(lead + a, d[a] * (k[a] - 1) + 1, s[a])[..., ::d[a]]
    return x.permute(*range(lead), *range(lead + rank, lead + 2 * rank), *range(lead, lead + rank))


def flat_args(w):
    """As unfold takes them."""
    return w[1], w[4], w[3], w[2]


def columns_of(w, dtype=torch.float32):
    return torch.randn(cut(torch.zeros(w[0]), *w[1:]).shape).to(dtype)


# ---------------------------------------------------------------------------------------------- values

@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d)[6:])
@pytest.mark.parametrize("w", WINDOWS, ids=label)
def test_every_rank(w, dtype, device):
    """Columns are copies: exact. The image is the adjoint, which autograd computes for the truth."""
    shape, k, s, p, d = w
    x, columns = torch.randn(shape).to(dtype), columns_of(w, dtype)
    exact = x.double().requires_grad_()
    want = cut(exact, k, s, p, d)
    image, = torch.autograd.grad(want, exact, columns.double())
    leaf, other = x.to(device).requires_grad_(), columns.to(device).requires_grad_()
    y = weft.im2col(leaf, k, s, p, dilation=d)
    back = weft.col2im(other, k, s, p, shape[-len(k):], dilation=d)
    assert y.dtype == back.dtype == dtype and y.is_contiguous() and back.is_contiguous()
    assert torch.equal(y.detach().cpu().double(), want.detach())
    close(back.detach().cpu(), image)
    dx, = torch.autograd.grad(y, leaf, columns.to(device))
    dc, = torch.autograd.grad(back, other, x.to(device))
    assert torch.equal(dx, back.detach()) and torch.equal(dc, y.detach())


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d)[6:])
@pytest.mark.parametrize("w", PLANES, ids=label)
def test_twins(w, dtype, device):
    x = torch.randn(w[0]).to(dtype)
    exact = x.double().requires_grad_()
    truth = F.unfold(exact, *flat_args(w))
    columns = torch.randn(truth.shape).to(dtype)
    image, = torch.autograd.grad(truth, exact, columns.double())
    leaf, other = x.to(device).requires_grad_(), columns.to(device).requires_grad_()
    y, back = W.unfold(leaf, *flat_args(w)), W.fold(other, w[0][-2:], *flat_args(w))
    assert torch.equal(y.detach().cpu().double(), truth.detach())
    close(back.detach().cpu(), image)
    close(torch.autograd.grad(y, leaf, columns.to(device))[0].cpu(), image)
    assert torch.equal(torch.autograd.grad(back, other, x.to(device))[0].cpu().double(), truth.detach())


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("w", PLANES, ids=label)
def test_views_and_strides_of_the_twin(w, view, device):
    """Values are exact, strides the twin's, also those of gradients, from inputs that lie in memory in many ways."""
    x = VIEWS[view](torch.randn(w[0], device=device))
    columns = VIEWS[view](F.unfold(x, *flat_args(w)))
    for ours, twin, t, args in ((W.unfold, F.unfold, x, flat_args(w)), (W.fold, F.fold, columns, (w[0][-2:], *flat_args(w)))):
        results = []
        for f in (ours, twin):
            leaf = t.detach().requires_grad_()
            y = f(leaf, *args)
            results.append((y.detach(), torch.autograd.grad(y.sum(), leaf)[0]))   # the gradient of a sum has strides of 0
        torch.testing.assert_close(*results)
        for mine, theirs in zip(*results):
            assert mine.stride() == theirs.stride() or not mine.numel()


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("w", WINDOWS, ids=label)
def test_views_of_every_rank(w, view, device):
    shape, k, s, p, d = w
    x, columns = (VIEWS[view](t.to(device)) for t in (torch.randn(shape), columns_of(w)))
    assert torch.equal(weft.im2col(x, k, s, p, dilation=d), weft.im2col(x.contiguous(), k, s, p, dilation=d))
    size = shape[-len(k):]
    # sums, whose last bits are the kernel's: one takes what is dense, another any strides
    close(weft.col2im(columns, k, s, p, size, dilation=d).cpu(), weft.col2im(columns.contiguous().double(), k, s, p, size, dilation=d).cpu())


def test_old_definition(device):
    """(C,H,W) -> (C,kh,kw,Ho,Wo), and back to (Ho-1)*s - 2p + k where no size is given; a batch is one call."""
    x, k, s, p = torch.randn(3, 8, 10, device=device), (3, 4), 2, 1
    columns, padded = weft.im2col(x, k, s, p), F.pad(x, (p,) * 4)
    assert columns.shape == (3, 3, 4, 4, 5)
    for y in range(4):
        for z in range(5):
            assert torch.equal(columns[:, :, :, y, z], padded[:, y * s:y * s + k[0], z * s:z * s + k[1]])
    image = weft.col2im(columns, k, s, p)
    assert image.shape == (3, 3 * s - 2 * p + 3, 4 * s - 2 * p + 4)
    close(image.cpu(), F.fold(columns.view(1, 36, 20).double().cpu(), image.shape[1:], k, 1, p, s)[0])
    batch = torch.stack([x, 2 * x])
    assert torch.equal(weft.im2col(batch, k, s, p), torch.stack([columns, 2 * columns]))
    assert torch.equal(weft.col2im(torch.stack([columns, 2 * columns]), k, s, p), torch.stack([image, 2 * image]))
    weight = torch.randn(5, 3, *k, device=device)   # what columns are for: a convolution is a matrix product
    close((weight.view(5, -1) @ columns.view(36, -1)).view(5, 4, 5).cpu(), F.conv2d(x.double().cpu(), weight.double().cpu(), None, s, p))


RANKS = [((2, 9), 3, 1), ((2, 3, 9), (3,), 1), ((2, 9, 9), 3, 2), ((2, 3, 9, 9), 3, 2), ((2, 9, 9), (3, 3), 2), ((2, 5, 5, 5), (3, 3, 3), 3), ((2, 3, 5, 5, 5), 3, 3)]


@pytest.mark.parametrize("shape, k, rank", RANKS, ids=str)
def test_which_rank(shape, k, rank, device):
    x = torch.randn(shape, device=device)
    y = weft.im2col(x, k, 1, 0)
    assert torch.equal(y, cut(x, (3,) * rank, (1,) * rank, (0,) * rank, (1,) * rank))
    assert weft.col2im(y, 3, 1, 0).shape == shape
    assert torch.equal(weft.im2col(x, 3, (1,) * rank, 0), y) and torch.equal(weft.im2col(x, 3, 1, [0] * rank), y)


def test_a_size_that_leaves_a_rest(device):
    """Several sizes give as many windows: input_size says which."""
    columns = torch.randn(2, 3, 3, 3, 3, device=device)
    assert weft.col2im(columns, 3, 2, 0).shape == (2, 7, 7)
    image = weft.col2im(columns, 3, 2, 0, (8, 7))
    assert image.shape == (2, 8, 7) and not image[:, 7].any() and torch.equal(image[:, :7], weft.col2im(columns, 3, 2, 0))
    assert weft.col2im(columns, 3, 2, 0, 8).shape == (2, 8, 8)
    assert weft.col2im(columns, 3, 2, 0, dilation=2).shape == (2, 9, 9)


def test_special_values(device):
    x = torch.zeros(1, 1, 6, 1, device=device)
    x[0, 0, 1], x[0, 0, 4] = float("nan"), float("inf")
    y = W.unfold(x, (3, 1), padding=(1, 0))
    torch.testing.assert_close(y, F.unfold(x, (3, 1), padding=(1, 0)), equal_nan=True)
    torch.testing.assert_close(W.fold(y, (6, 1), (3, 1), 1, (1, 0)), F.fold(y, (6, 1), (3, 1), 1, (1, 0)), equal_nan=True)


@pytest.mark.delegates
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d)[6:])
@pytest.mark.parametrize("w", WINDOWS[:6], ids=label)
def test_by_torch(w, dtype, device):
    """PyTorch's kernels through weft's operators: the same numbers and strides, into a given result too; 16-bit sums stay weft's."""
    shape, k, s, p, d = w
    x, columns = (scattered(t.to(device, dtype)) for t in (torch.randn(shape), columns_of(w)))
    calls = [(weft.im2col, x, (k, s, p), {"dilation": d}, True), (weft.col2im, columns, (k, s, p, shape[-len(k):]), {"dilation": d}, False)]
    if len(k) == 2:
        calls += [(W.unfold, x, flat_args(w), {}, True), (W.fold, W.unfold(x, *flat_args(w)), (shape[-2:], *flat_args(w)), {}, False)]
    for f, t, args, options, copies in calls:
        results = []
        for pinned in ("torch", "ref"):
            with weft.backends.pin(pinned) if pinned == "torch" else weft.backends.flags(delegate=False):
                y = f(t, *args, **options)
                assert ("torch" in weft.backends.kernels()) == (pinned == "torch" and (copies or dtype in DTYPES[:2]))
                out = scattered(torch.zeros_like(y))
                assert torch.equal(f(t, *args, **options, out=out), y)
            results.append(y)
        assert results[0].stride() == results[1].stride() and results[0].is_contiguous()
        close(results[0].cpu(), results[1].cpu().double())


# ---------------------------------------------------------------------------------------------- derivatives

@pytest.mark.parametrize("w", SMALL, ids=label)
def test_gradcheck(w, device):
    shape, k, s, p, d = w
    x, columns = (t.to(device, torch.float64).requires_grad_() for t in (torch.randn(shape), columns_of(w)))
    for f, t in ((lambda x: weft.im2col(x, k, s, p, dilation=d), x), (lambda c: weft.col2im(c, k, s, p, shape[-len(k):], dilation=d), columns)):
        assert torch.autograd.gradcheck(f, t, fast_mode=True, check_forward_ad=True)
        assert torch.autograd.gradgradcheck(f, t, fast_mode=True, check_fwd_over_rev=True)


def sides(w, m):
    """unfold and fold of that window, as functions of one tensor."""
    return lambda x: m.unfold(x, *flat_args(w)), lambda c: m.fold(c, w[0][-2:], *flat_args(w))


@pytest.mark.parametrize("w", SMALL[1:3], ids=label)
def test_derivatives_of_the_twins(w, device):
    x = torch.randn(w[0], dtype=torch.float64, device=device)
    for which, t in enumerate((x, F.unfold(x, *flat_args(w)))):
        f, twin = (sides(w, m)[which] for m in (W, F))
        leaf = t.clone().requires_grad_()
        assert torch.autograd.gradcheck(f, leaf, fast_mode=True) and torch.autograd.gradgradcheck(f, leaf, fast_mode=True)
        results, batch = [], torch.stack([t, 2 * t, t.flip(-1)], 1)
        for g in (f, twin):
            def loss(t):
                return g(t).pow(3).sum()   # noqa: B023
            third, = torch.autograd.grad(torch.func.grad(lambda t: torch.func.grad(loss)(t).pow(2).sum())(leaf).sum(), leaf)   # noqa: B023
            results.append([third, torch.vmap(g, 1)(batch), torch.vmap(torch.func.grad(loss), 1)(batch), torch.func.jvp(g, (t,), (t.cos(),)),
                            torch.func.jvp(torch.func.grad(loss), (t,), (t.cos(),)), torch.vmap(torch.vmap(g))(batch.unsqueeze(0).transpose(1, 2))])
        torch.testing.assert_close(*results, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("w", SMALL, ids=label)
def test_vmap(w, device):
    shape, k, s, p, d = w
    xs, cs = (torch.stack([t, 2 * t, -t], 1).to(device) for t in (torch.randn(shape), columns_of(w)))
    for f, ts in ((lambda x: weft.im2col(x, k, s, p, dilation=d), xs), (lambda c: weft.col2im(c, k, s, p, shape[-len(k):], dilation=d), cs)):
        assert torch.equal(torch.vmap(f, 1, 1)(ts), torch.stack([f(t) for t in ts.unbind(1)], 1))


def test_nothing_is_saved(device):
    kept = []
    x = torch.randn(2, 3, 8, 8, device=device, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        W.fold(W.unfold(x, 3), 8, 3).sum()
        weft.col2im(weft.im2col(x, 3, 1, 0), 3, 1, 0).sum()
    assert not kept


# ---------------------------------------------------------------------------------------------- the operators as PyTorch sees them

def operators(device, grad):
    x = torch.randn(2, 3, 5, 6, device=device)
    settings = ([2, 3], [1, 2], [1, 0], [2, 1])
    for flat in (False, True):
        columns = torch.ops.weft.im2col(x, *settings, flat)
        yield "im2col", (x.clone().requires_grad_(grad), *settings, flat)
        yield "im2col", (channels_last(x)[0].requires_grad_(grad), *settings, flat)
        yield "col2im", (columns.requires_grad_(grad), [5, 6], *settings, flat)
        yield "col2im", (columns.detach()[:0].requires_grad_(grad), [5, 6], *settings, flat)
    yield "im2col", (torch.randn(3, 9, device=device).requires_grad_(grad), [3], [2], [1], [1], False)
    yield "col2im", (torch.randn(1, 2, 2, 1, 2, 3, 3, 3, device=device).requires_grad_(grad), [4, 3, 4], [2, 1, 2], [1] * 3, [0] * 3, [1] * 3, False)


@pytest.mark.parametrize("grad", [False, True])
def test_opcheck(grad, device):
    for name, args in operators(device, grad):
        torch.library.opcheck(getattr(torch.ops.weft, name).default, args)


def test_opcheck_out(device):
    for name, args in operators(device, False):
        made = getattr(torch.ops.weft, name)(*args)
        torch.library.opcheck(getattr(torch.ops.weft, name + "_out").default, (*args, torch.empty_like(made)))


def compiled_in_one(f, inputs):
    """One graph for all sizes, with its gradient, in the strides of eager code."""
    torch.compiler.reset()
    count = 0

    def backend(graph, inputs):
        from torch._dynamo.backends.debugging import aot_eager
        nonlocal count
        count += 1
        return aot_eager(graph, inputs)
    compiled = torch.compile(f, fullgraph=True, backend=backend, dynamic=True)
    for x in inputs:
        results = []
        for g in (compiled, f):
            t = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
            y = g(t)
            y.square().sum().backward()
            results.append((y.detach(), t.grad))
        torch.testing.assert_close(*results, rtol=1e-5, atol=1e-5)
        assert results[0][0].stride() == results[1][0].stride()
    assert count == 1


# The last size is like no other: PyTorch takes equal sizes for one.
TRACED = [((2, 4, 9), (3,), (2,), (1,), (1,)), ((2, 4, 5, 13), (2, 3), (1, 2), (1, 0), (1, 2)), ((4, 5, 7), (2, 2), (2, 1), (0, 1), (1, 1)),
          ((4, 3, 5, 7), (2, 2, 1), (1, 2, 1), (1, 0, 0), (2, 1, 1))]


@pytest.mark.parametrize("w", TRACED, ids=label)
def test_compile(w, device):
    shape, k, s, p, d = w
    sizes = [shape, (*shape[:-1], shape[-1] + 4)]
    compiled_in_one(lambda x: weft.im2col(x, k, s, p, dilation=d) * 2, [torch.randn(n, device=device) for n in sizes])
    columns = [columns_of((n, *w[1:])).to(device) for n in sizes]
    compiled_in_one(lambda c: weft.col2im(c, k, s, p, dilation=d) * 2, columns)
    if len(k) == 2:
        compiled_in_one(lambda x: W.unfold(x, *flat_args(w)) * 2, [torch.randn(n, device=device) for n in sizes])


def test_compile_fold(device):
    """Here and there: sizes of the image, plain windows, given results, transforms within."""
    torch.compiler.reset()
    compiled_in_one(lambda x: W.fold(W.unfold(x, 3, padding=1), x.shape[-2:], 3, padding=1), [torch.randn(2, 3, n, n + 1, device=device) for n in (5, 8)])
    c = torch.randn(2, 12, 30, device=device)
    f = lambda c: W.fold(c, (6, 7), 2)   # noqa: E731
    assert torch.equal(torch.compile(f, fullgraph=True, backend="aot_eager")(c), f(c))
    out = torch.empty(2, 3, 6, 7, device=device)
    torch.compile(lambda c, out: W.fold(c, (6, 7), 2, out=out), fullgraph=True, backend="aot_eager")(c, out)
    assert torch.equal(out, f(c))
    for transform in (lambda f: torch.func.grad(lambda c: f(c).square().sum()), lambda f: lambda c: torch.func.jvp(f, (c,), (c,))[1], torch.vmap):
        torch.testing.assert_close(torch.compile(transform(f), fullgraph=True, backend="aot_eager")(c), transform(f)(c))


def test_export(device):
    x = torch.randn(2, 3, 6, 7, device=device)
    net = torch.nn.Sequential(weft.nn.Unfold(2, padding=1), weft.nn.Fold((6, 7), 2, padding=1))
    program = torch.export.export(net, (x,), dynamic_shapes=({0: torch.export.Dim("n", min=1, max=64)},))
    assert {n.target for n in program.graph.nodes} >= {torch.ops.weft.im2col.default, torch.ops.weft.col2im.default}
    for t in (x, torch.randn(5, 3, 6, 7, device=device)):
        assert torch.equal(program.module()(t), net(t))


@pytest.mark.parametrize("autocast", [torch.bfloat16, torch.float16], ids=lambda d: str(d)[6:])
def test_autocast(autocast, device):
    for dtype in DTYPES:
        x = torch.randn(2, 3, 6, 7, device=device).to(dtype)
        with torch.autocast(device.type, dtype=autocast):
            for a, b in ((W.unfold(x, 2), F.unfold(x, 2)), (W.fold(F.unfold(x, 2), (6, 7), 2), F.fold(F.unfold(x, 2), (6, 7), 2))):
                assert a.dtype == b.dtype
                close(a.cpu(), b.cpu().double())
            assert weft.col2im(weft.im2col(x, 2, 1, 0), 2, 1, 0).dtype == dtype


# ---------------------------------------------------------------------------------------------- what the functions share with their twins

def test_signatures():
    for name in ("unfold", "fold"):
        ours, twin = (inspect.signature(getattr(m, name)).parameters for m in (W, F))
        assert list(ours) == [*twin, "out"] and all(ours[k].default == p.default for k, p in twin.items())
    assert list(inspect.signature(weft.im2col).parameters) == ["input", "kernel_size", "stride", "padding", "dilation", "out"]
    assert list(inspect.signature(weft.col2im).parameters) == ["input", "kernel_size", "stride", "padding", "input_size", "dilation", "out"]
    assert weft.im2col is W.im2col and weft.col2im is W.col2im


@pytest.mark.parametrize("dtype", [torch.bool, torch.complex64, torch.complex128], ids=lambda d: str(d)[6:])
def test_types_without_kernels(dtype, device):
    x = torch.randn(2, 3, 6, 7, device=device).to(dtype)
    c = F.unfold(x, 2)
    assert torch.equal(W.unfold(x, 2), c) and torch.equal(W.fold(c, (6, 7), 2), F.fold(c, (6, 7), 2))
    for call in (lambda: W.unfold(x, 2, out=c), lambda: W.fold(c, (6, 7), 2, out=x)):
        with pytest.raises(RuntimeError, match=f"out is given with input of {dtype}"):
            call()


def test_what_stands_for_an_int(device):
    class Two:
        def __index__(self):
            return 2
    x = torch.randn(2, 3, 6, 7, device=device)
    for two in (Two(), (Two(), 2), [2, torch.tensor(2)], torch.Size([2, 2]), torch.tensor([2, 2]), iter((2, 2))):
        assert torch.equal(W.unfold(x, two), F.unfold(x, 2))
    assert torch.equal(W.unfold(x, range(2, 4)), F.unfold(x, (2, 3))) and torch.equal(W.unfold(x, (2, True)), F.unfold(x, (2, True)))
    assert torch.equal(W.fold(F.unfold(x, 2), (torch.tensor(6), 7), 2), F.fold(F.unfold(x, 2), (6, 7), 2))
    assert torch.equal(W.unfold(x, 2, stride=2**36), F.unfold(x, 2, stride=2**36))
    assert torch.equal(weft.im2col(x, Two(), 1, 0), weft.im2col(x, 2, 1, 0))


def test_subclasses_and_modes():
    class Marked(torch.Tensor):
        pass

    class Counts(torch.overrides.TorchFunctionMode):
        seen: list = []

        def __torch_function__(self, function, types, args=(), kwargs=None):
            self.seen.append(function)
            return function(*args, **(kwargs or {}))
    x = torch.randn(2, 3, 6, 7)
    calls = {W.unfold: (x, 2), W.fold: (F.unfold(x, 2), (6, 7), 2), W.im2col: (x, 2, 1, 0), W.col2im: (weft.im2col(x, 2, 1, 0), 2, 1, 0)}
    for f, (t, *args) in calls.items():
        y = f(t.as_subclass(Marked), *args)
        assert type(y) is Marked and torch.equal(y.as_subclass(torch.Tensor), f(t, *args))
        with Counts() as mode:
            f(t, *args)
        assert f in mode.seen


# ---------------------------------------------------------------------------------------------- out

def test_out(device):
    """Dense or with gaps; the same tensor comes back, its version grows, and nothing between its elements is written."""
    x = torch.randn(2, 3, 6, 7, device=device)
    columns = weft.im2col(x, 2, 1, 0)
    for f, args in ((W.unfold, (x, 2)), (W.fold, (F.unfold(x, 2), (6, 7), 2)), (weft.im2col, (x, 2, 1, 0)), (weft.col2im, (columns, 2, 1, 0))):
        want = f(*args)
        for out in (torch.empty_like(want), scattered(torch.zeros_like(want)), channels_last(torch.zeros_like(want)), shifted(torch.zeros_like(want))):
            version = out._version
            assert f(*args, out=out) is out and torch.equal(out, want) and out._version > version
        gaps = scattered(torch.zeros_like(want))
        f(*args, out=gaps)
        assert gaps.as_strided(gaps.shape, gaps.stride(), 1).isnan().all()


# ---------------------------------------------------------------------------------------------- modules

MODULES = [("Unfold", (3,), {"padding": 1}, (2, 3, 6, 7)), ("Unfold", ((2, 3), (1, 2), (1, 0), (2, 1)), {}, (3, 6, 7)),
           ("Fold", ((6, 7), 2), {}, (2, 12, 30)), ("Fold", (8, (2, 3)), {"stride": 2, "padding": (0, 1)}, (12, 16))]


@pytest.mark.parametrize("name, args, options, shape", MODULES, ids=str)
def test_modules(name, args, options, shape, device):
    ours, twin = (getattr(m, name)(*args, **options) for m in (weft.nn, torch.nn))
    x = torch.randn(shape, device=device)
    torch.testing.assert_close(ours(x), twin(x))
    assert repr(ours) == "weft." + repr(twin) and inspect.signature(type(ours)) == inspect.signature(type(twin))
    ours.load_state_dict(twin.state_dict())
    twin.load_state_dict(ours.state_dict())
    for other in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours)), ours.to(torch.float64)):
        assert type(other) is type(ours) and repr(other) == repr(ours)
        torch.testing.assert_close(other(x), twin(x))
    twin.__class__ = type(ours)
    assert torch.equal(twin(x), ours(x)) and repr(twin) == repr(ours)


# ---------------------------------------------------------------------------------------------- wrong inputs

X, C = torch.ones(2, 3, 6, 7), torch.ones(2, 12, 30)
COLUMNS = torch.ones(2, 3, 2, 2, 5, 6)
# the function, its arguments, the class and the text of the error
TWINS_REFUSE = [
    ("unfold", (X, 0), {}, RuntimeError, "kernel_size: is 0 along spatial axis 0, allowed: 1 to 2^20"),
    ("unfold", (X, (2, -1)), {}, RuntimeError, "kernel_size: is -1 along spatial axis 1, allowed: 1 to 2^20"),
    ("unfold", (X, (2,)), {}, RuntimeError, "kernel_size: has 1 values (2,), allowed: an int, or 2 of them"),
    ("unfold", (X, (2, 2, 2)), {}, RuntimeError, "kernel_size: has 3 values (2, 2, 2), allowed: an int, or 2 of them"),
    ("unfold", (X, ()), {}, RuntimeError, "kernel_size: has 0 values (), allowed: an int, or 2 of them"),
    ("unfold", (X, 2.0), {}, TypeError, "kernel_size: is 2.0, allowed: an int, or a sequence of 2 ints"),
    ("unfold", (X, [2, 2.0]), {}, TypeError, "kernel_size: is [2, 2.0], allowed: an int, or a sequence of 2 ints"),
    ("unfold", (X, True), {}, TypeError, "kernel_size: is True, allowed: an int, or a sequence of 2 ints"),
    ("unfold", (X, (True, 2)), {}, TypeError, "kernel_size: is (True, 2), allowed: an int, or a sequence of 2 ints"),
    ("unfold", (X, None), {}, TypeError, "kernel_size: is None, allowed: an int, or a sequence of 2 ints"),
    ("unfold", (X, "22"), {}, TypeError, "kernel_size: is '22', allowed: an int, or a sequence of 2 ints"),
    ("unfold", (X, torch.tensor(2)), {}, TypeError, "kernel_size: is tensor(2), allowed: an int, or a sequence of 2 ints"),
    ("unfold", (X, 2), {"stride": 0}, RuntimeError, "stride: is 0 along spatial axis 0, allowed: 1 to 2^40"),
    ("unfold", (X, 2), {"stride": (1,)}, RuntimeError, "stride: has 1 values (1,), allowed: an int, or 2 of them"),
    ("unfold", (X, 2), {"stride": "x"}, TypeError, "stride: is 'x', allowed: an int, or a sequence of 2 ints"),
    ("unfold", (X, 2), {"padding": -1}, RuntimeError, "padding: is -1 along spatial axis 0, allowed: 0 to 2^40"),
    ("unfold", (X, 2), {"padding": None}, TypeError, "padding: is None, allowed: an int, or a sequence of 2 ints"),
    ("unfold", (X, 2), {"dilation": 0}, RuntimeError, "dilation: is 0 along spatial axis 0, allowed: 1 to 2^20"),
    ("unfold", (X, 2), {"dilation": 1.5}, TypeError, "dilation: is 1.5, allowed: an int, or a sequence of 2 ints"),
    ("unfold", (X, (2, 9)), {}, RuntimeError, "input: spatial axis 1 has 7 elements, too few for kernel_size 9, padding 0, dilation 1"),
    ("unfold", (X[0, 0], 2), {}, IndexError, "unfold: input has 2 dimensions [6, 7], allowed: 3 (unbatched) or 4 (batched)"),
    ("unfold", (X[None], 2), {}, RuntimeError, "unfold: input has 5 dimensions [1, 2, 3, 6, 7], allowed: 3 (unbatched) or 4 (batched)"),
    ("unfold", (X[:, :0], 2), {}, RuntimeError, "input: has 0 elements along dimension 1, allowed: 1 or more; only the batch may be empty"),
    ("unfold", (X[:, :, :0], 2), {"padding": 2}, RuntimeError, "input: has 0 elements along dimension 2, allowed: 1 or more"),
    ("unfold", ([1.0], 2), {}, TypeError, "unfold: input is list, allowed: Tensor"),
    ("unfold", (None, 2), {}, TypeError, "unfold: input is NoneType, allowed: Tensor"),
    ("fold", (C, (6, 7), 0), {}, RuntimeError, "kernel_size: is 0 along spatial axis 0, allowed: 1 to 2^20"),
    ("fold", (C, (6, 7), (2,)), {}, RuntimeError, "kernel_size: has 1 values (2,), allowed: an int, or 2 of them"),
    ("fold", (C, (6, 7), None), {}, TypeError, "kernel_size: is None, allowed: an int, or a sequence of 2 ints"),
    ("fold", (C, (6, 7), (5, 1)), {}, RuntimeError, "input: has 12 elements along dimension 1, allowed: a multiple of the elements of a window, 5"),
    ("fold", (C, 6, 2), {}, RuntimeError, "input: has 30 elements along dimension 2, allowed with this output_size, kernel_size, stride, padding and dilation: 25"),
    ("fold", (C, (6,), 2), {}, RuntimeError, "output_size: has 1 values (6,), allowed: an int, or 2 of them"),
    ("fold", (C, (6, 7, 1), 2), {}, RuntimeError, "output_size: has 3 values (6, 7, 1), allowed: an int, or 2 of them"),
    ("fold", (C, (0, 7), 2), {}, RuntimeError, "output_size: is 0 along spatial axis 0, allowed: 1 to 2^40"),
    ("fold", (C, (-6, 7), 2), {}, RuntimeError, "output_size: is -6 along spatial axis 0, allowed: 1 to 2^40"),
    ("fold", (C, (1, 7), 2), {}, RuntimeError, "output_size: spatial axis 0 has 1 elements, too few for kernel_size 2, padding 0, dilation 1"),
    ("fold", (C, None, 2), {}, TypeError, "output_size: is None, allowed: an int, or a sequence of 2 ints"),
    ("fold", (C, 6.0, 2), {}, TypeError, "output_size: is 6.0, allowed: an int, or a sequence of 2 ints"),
    ("fold", (C, (6, 7), 2), {"stride": 0}, RuntimeError, "stride: is 0 along spatial axis 0, allowed: 1 to 2^40"),
    ("fold", (C, (6, 7), 2), {"padding": -1}, RuntimeError, "padding: is -1 along spatial axis 0, allowed: 0 to 2^40"),
    ("fold", (C, (6, 7), 2), {"dilation": 0}, RuntimeError, "dilation: is 0 along spatial axis 0, allowed: 1 to 2^20"),
    ("fold", (C[0, 0], (6, 7), 2), {}, RuntimeError, "fold: input has 1 dimensions [30], allowed: 2 (unbatched) or 3 (batched)"),
    ("fold", (C[None], (6, 7), 2), {}, RuntimeError, "fold: input has 4 dimensions [1, 2, 12, 30], allowed: 2 (unbatched) or 3 (batched)"),
    ("fold", (C[:, :, :0], (6, 7), 2), {}, RuntimeError, "input: has 0 elements along dimension 2, allowed: 1 or more; only the batch may be empty"),
    ("fold", (3.0, (6, 7), 2), {}, TypeError, "fold: input is float, allowed: Tensor"),
]
REFUSED = [
    ("im2col", (X, 0, 1, 0), {}, RuntimeError, "kernel_size: is 0 along spatial axis 0, allowed: 1 to 2^20"),
    ("im2col", (X, 2**21, 1, 2**22), {}, RuntimeError, "kernel_size: is 2097152 along spatial axis 0, allowed: 1 to 2^20"),
    ("im2col", (X, 2, 0, 0), {}, RuntimeError, "stride: is 0 along spatial axis 0, allowed: 1 to 2^40"),
    ("im2col", (X, 2, 1, -1), {}, RuntimeError, "padding: is -1 along spatial axis 0, allowed: 0 to 2^40"),
    ("im2col", (X, 2, 1, 2**41), {}, RuntimeError, "padding: is 2199023255552 along spatial axis 0, allowed: 0 to 2^40"),
    ("im2col", (X, 2, 1, 0), {"dilation": 0}, RuntimeError, "dilation: is 0 along spatial axis 0, allowed: 1 to 2^20"),
    ("im2col", (X, 2, 1, 2**40), {}, RuntimeError, "the result has 2^63 elements or more, allowed: fewer"),
    ("im2col", (X, (2,), 1, 0), {}, RuntimeError, "input: has 4 dimensions, allowed: 3 (batched) or 2 (unbatched)"),
    ("im2col", (X[0, 0, 0], 2, 1, 0), {}, RuntimeError, "input: has 1 dimensions, allowed: 4 (batched) or 3 (unbatched)"),
    ("im2col", (X, (2, 2, 2, 2), 1, 0), {}, RuntimeError, "kernel_size: has 4 values, allowed: 1 (1D), 2 (2D) or 3 (3D)"),
    ("im2col", (X, (2, 2), (1, 1, 1), 0), {}, RuntimeError, "stride: has 3 values (1, 1, 1), allowed: an int, or 2 of them"),
    ("im2col", (X, 2.0, 1, 0), {}, TypeError, "kernel_size: is 2.0, allowed: an int, or a sequence of 2 ints"),
    ("im2col", (X, 2, 1, "same"), {}, TypeError, "padding: is 'same', allowed: an int, or a sequence of 2 ints"),
    ("im2col", (X, 9, 1, 0), {}, RuntimeError, "input: spatial axis 0 has 6 elements, too few for kernel_size 9, padding 0, dilation 1"),
    ("im2col", (X.int(), 2, 1, 0), {}, RuntimeError, "input: is int32, allowed: float32, float64, float16 or bfloat16"),
    ("im2col", ("x", 2, 1, 0), {}, TypeError, "im2col: input is str, allowed: Tensor"),
    ("im2col", (X[:1, :1, :1, :1].expand(1, 1, 2**41, 1), 1, 1, 0), {}, RuntimeError, "input: has 2199023255552 elements along dimension 2, allowed: at most 2^40"),
    ("col2im", (X, 2, 1, 0), {}, RuntimeError, "input: has 6 elements along dimension 2, allowed with this input_size"),
    ("col2im", (X[0, 0], 2, 1, 0), {}, RuntimeError, "col2im: input has 2 dimensions [6, 7], allowed: 3 or 4 (1D), 5 or 6 (2D), 7 or 8 (3D)"),
    ("col2im", (COLUMNS, 3, 1, 0), {}, RuntimeError, "input: has 2 elements along dimension 2, allowed with this input_size, kernel_size, stride, padding and dilation: 3"),
    ("col2im", (COLUMNS, 2, 1, 0, (7, 7)), {}, RuntimeError, "input: has 5 elements along dimension 4, allowed with this input_size, kernel_size, stride, padding and dilation: 6"),
    ("col2im", (COLUMNS, 2, 1, 0, (0, 7)), {}, RuntimeError, "input_size: is 0 along spatial axis 0, allowed: 1 to 2^40"),
    ("col2im", (COLUMNS, 2, 1, 5), {}, RuntimeError, "input_size: is -4 along spatial axis 0, allowed: 1 to 2^40"),
    ("col2im", (COLUMNS, 2, 1, 0, (6, 7, 1)), {}, RuntimeError, "input_size: has 3 values (6, 7, 1), allowed: an int, or 2 of them"),
    ("col2im", (COLUMNS, 2, 1, 0, "x"), {}, TypeError, "input_size: is 'x', allowed: an int, or a sequence of 2 ints"),
    ("col2im", (COLUMNS[:, :0], 2, 1, 0), {}, RuntimeError, "input: has 0 elements along dimension 1, allowed: 1 or more; only the batch may be empty"),
    ("col2im", (COLUMNS.bool(), 2, 1, 0), {}, RuntimeError, "input: is bool, allowed: float32, float64, float16 or bfloat16"),
    ("col2im", (None, 2, 1, 0), {}, TypeError, "col2im: input is NoneType, allowed: Tensor"),
    ("unfold", (X, 2), {"out": 3}, TypeError, "out: is int, allowed: Tensor or None"),
    ("unfold", (X, 2), {"out": C[0]}, RuntimeError, "out: has the shape [12, 30], allowed: the shape of the result, [2, 12, 30]"),
    ("unfold", (X, 2), {"out": C.double()}, RuntimeError, "out: is float64, allowed: the type of the result, float32"),
    ("unfold", (X, 2), {"out": C[:1].expand(2, 12, 30)}, RuntimeError, "out: is expanded along dimension 0, allowed: memory for every element"),
    ("unfold", (X, 1), {"out": X.view(2, 3, 42)}, RuntimeError, "out: shares memory with input, allowed: memory of its own"),
    ("fold", (C.clone().requires_grad_(), (6, 7), 2), {"out": X}, RuntimeError, "out: given with a tensor that requires grad"),
    ("col2im", (COLUMNS, 2, 1, 0), {"out": X[0]}, RuntimeError, "out: has the shape [3, 6, 7], allowed: the shape of the result, [2, 3, 6, 7]"),
    ("im2col", (X, 2, 1, 0), {"out": COLUMNS.half()}, RuntimeError, "out: is float16, allowed: the type of the result, float32"),
]


@pytest.mark.parametrize("name, args, options, kind, text", TWINS_REFUSE + REFUSED, ids=lambda v: v if isinstance(v, str) else "")
def test_wrong(name, args, options, kind, text):
    with pytest.raises(kind, match=re.escape(text)):
        getattr(W, name)(*args, **options)


@pytest.mark.parametrize("name, args, options, kind, text", TWINS_REFUSE, ids=lambda v: v if isinstance(v, str) else "")
def test_the_twin_refuses_it_too(name, args, options, kind, text):
    with pytest.raises(kind):
        getattr(F, name)(*args, **options)


OPERATOR = [
    (lambda o: o.im2col(X, [], [], [], [], False), "kernel_size: has 0 values, allowed: 1 (1D), 2 (2D) or 3 (3D)"),
    (lambda o: o.im2col(X, [2, 2], [1], [0, 0], [1, 1], False), "stride: has 1 values, allowed: 2"),
    (lambda o: o.col2im(C, [6], [2, 2], [1, 1], [0, 0], [1, 1], True), "size: has 1 values, allowed: 2"),
    (lambda o: o.col2im(C, [6, 7], [2, 2], [1, 1], [0, 0], [1, 1], False), "input: has 3 dimensions, allowed: 6 (batched) or 5 (unbatched)"),
]


@pytest.mark.parametrize("run, text", OPERATOR, ids=[t[:20] for _, t in OPERATOR])
def test_wrong_operators(run, text):
    """In the words of the kernel, and of what stands for it while tracing."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    for mode in (torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True)):
        with mode, pytest.raises(RuntimeError, match=re.escape(text)):
            run(torch.ops.weft)
