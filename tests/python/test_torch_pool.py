"""Pooling functions and modules beside their twins of torch.nn: values, indices, gradients, formats, tracing, errors."""
from __future__ import annotations

import copy
import inspect
import pickle

import pytest
import torch
import torch.nn.functional as F

import weft
import weft.functional as W
from cases import DTYPES, channels_last, close, scattered, shifted

# name, shape, arguments, keywords
MAX = [
    ("max_pool1d", (2, 3, 11), (3,), {}),
    ("max_pool1d", (3, 17), (4, 3, 2), {"dilation": 2, "ceil_mode": True}),
    ("max_pool1d", (2, 2, 300), ([280], 3), {}),
    ("max_pool2d", (2, 3, 7, 9), (3, 2, 1), {}),
    ("max_pool2d", (2, 5, 8, 10), ((2, 3), None, (1, 0)), {"ceil_mode": True}),
    ("max_pool2d", (1, 4, 9, 12), ((3, 2), (2, 3), (1, 0), (2, 3)), {}),
    ("max_pool2d", (3, 9, 8), (2, 1), {}),
    ("max_pool2d", (0, 3, 8, 8), (2,), {}),
    ("max_pool2d", (1, 2, 20, 21), (17, 1, 8), {}),
    ("max_pool3d", (2, 3, 5, 6, 7), (2,), {}),
    ("max_pool3d", (1, 2, 6, 5, 7), ((2, 3, 2), (1, 2, 2), 1, (2, 1, 1)), {"ceil_mode": True}),
    ("max_pool3d", (3, 4, 5, 6), ((1, 2, 2), ()), {}),
]
AVG = [
    ("avg_pool1d", (2, 3, 11), (3,), {}),
    ("avg_pool1d", (3, 10), (4, 3, 2, True, False), {}),
    ("avg_pool2d", (2, 3, 7, 9), (3, 2, 1), {}),
    ("avg_pool2d", (2, 5, 8, 10), ((2, 3), None, (1, 0)), {"ceil_mode": True, "count_include_pad": False}),
    ("avg_pool2d", (3, 9, 8), (3, (2, 1), 1), {"divisor_override": -2, "ceil_mode": True}),
    ("avg_pool2d", (0, 3, 8, 8), (2,), {}),
    ("avg_pool3d", (2, 3, 5, 6, 7), (2,), {}),
    ("avg_pool3d", (1, 2, 6, 5, 7), ((2, 3, 2), (1, 2, 2), 1), {"ceil_mode": True, "count_include_pad": False}),
    ("avg_pool3d", (3, 4, 5, 6), ((1, 2, 2), []), {"divisor_override": 3}),
    ("adaptive_avg_pool1d", (2, 3, 11), (4,), {}),
    ("adaptive_avg_pool1d", (3, 5), ((7,),), {}),
    ("adaptive_avg_pool2d", (2, 3, 7, 9), ((3, None),), {}),
    ("adaptive_avg_pool2d", (3, 8, 8), (1,), {}),
    ("adaptive_avg_pool2d", (0, 3, 8, 8), (3,), {}),
    ("adaptive_avg_pool3d", (2, 3, 5, 6, 7), (1,), {}),
    ("adaptive_avg_pool3d", (1, 2, 6, 5, 7), ([4, None, 3],), {}),
    ("adaptive_avg_pool3d", (3, 4, 5, 6), ((2, 2, 9),), {}),
]
CASES = MAX + AVG
SMALL = [MAX[1], MAX[4], MAX[10], AVG[1], AVG[3], AVG[4], AVG[7], AVG[10], AVG[11], AVG[15]]
FUNCTIONS = sorted({c[0] for c in CASES})


def label(c):
    return f"{c[0]}-{'x'.join(map(str, c[1]))}"


def data(shape, device, dtype=torch.float32):
    """Values that every type holds exactly, so that all have the same maxima."""
    n = torch.Size(shape).numel()
    return ((torch.randperm(n) % 199 - 99.0) / 64).view(shape).to(device, dtype)


def both(c, device, dtype=torch.float32, change=lambda t: t):
    """Result and gradient of weft on a changed view, and of the twin in float64 on the CPU."""
    name, shape, args, options = c
    x = data(shape, device, dtype)
    view = change(x).detach().requires_grad_()
    exact = x.cpu().double().requires_grad_()
    y, truth = getattr(W, name)(view, *args, **options), getattr(F, name)(exact, *args, **options)
    grad = torch.randn(truth.shape).to(dtype)
    dx, = torch.autograd.grad(y, view, grad.to(device))
    dtruth, = torch.autograd.grad(truth, exact, grad.double())
    close(y.detach().cpu(), truth.detach(), terms=400)
    close(dx.cpu(), dtruth, terms=400)
    assert y.dtype == dx.dtype == dtype and y.device.type == device.type
    return x, y, dx


# ---------------------------------------------------------------------------------------------- values

@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d)[6:])
@pytest.mark.parametrize("c", CASES, ids=label)
def test_values(c, dtype, device):
    _, y, dx = both(c, device, dtype)
    assert y.is_contiguous() and dx.is_contiguous()


@pytest.mark.parametrize("change", [scattered, shifted, lambda t: t.transpose(-1, -2).contiguous().transpose(-1, -2)],
                         ids=["scattered", "shifted", "transposed"])
@pytest.mark.parametrize("c", [c for c in CASES if 0 not in c[1]], ids=label)
def test_views(c, change, device):
    both(c, device, change=change)


@pytest.mark.parametrize("c", [c for c in CASES if len(c[1]) == int(c[0][-2]) + 2 and 0 not in c[1]], ids=label)
def test_channels_last(c, device):
    """The format stays; where the twin keeps it (not for every function in 3D), the strides are the twin's."""
    name, shape, args, options = c
    x, y, dx = both(c, device, change=channels_last)
    assert y.movedim(1, -1).is_contiguous() and dx.movedim(1, -1).is_contiguous()
    twin = channels_last(x).requires_grad_()
    theirs = getattr(F, name)(twin, *args, **options)
    if theirs.numel() and not theirs.is_contiguous():
        assert y.stride() == theirs.stride()


@pytest.mark.parametrize("c", [c for c in CASES if 0 not in c[1]], ids=label)
def test_strides_of_the_twin(c, device):
    name, shape, args, options = c
    x = data(shape, device)
    ours, theirs = (getattr(m, name)(x, *args, **options) for m in (W, F))
    assert ours.shape == theirs.shape and (not ours.numel() or ours.stride() == theirs.stride())
    wide = x[:1].expand_as(x)
    close(getattr(W, name)(wide, *args, **options).cpu(), getattr(F, name)(wide.cpu().double(), *args, **options), terms=400)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d)[6:])
@pytest.mark.parametrize("c", MAX, ids=label)
def test_indices(c, dtype, device):
    """Exactly the twin's, of equal values and of NaN too, in either format; gradients flow through the pair."""
    name, shape, args, options = c
    for x in (data(shape, device, dtype), data(shape, device, dtype).round(), torch.where(data(shape, device) > 1, float("nan"), 1).to(dtype)):
        for change in (lambda t: t, channels_last):
            view = change(x).detach().requires_grad_() if len(shape) == int(name[-2]) + 2 else x.clone().requires_grad_()
            exact = x.cpu().double().requires_grad_()
            y, where = getattr(W, name)(view, *args, **options, return_indices=True)
            truth, place = getattr(F, name)(exact, *args, **options, return_indices=True)
            assert where.dtype == torch.int64 and not where.requires_grad and torch.equal(where.cpu(), place) and where.stride() == y.stride()
            torch.testing.assert_close(y.detach().cpu().double(), truth.detach(), rtol=0, atol=0, equal_nan=True)
            dx, = torch.autograd.grad(y, view, torch.ones_like(y))
            close(dx.cpu(), torch.autograd.grad(truth, exact, torch.ones_like(truth))[0])


def test_nothing(device):
    """No channels, or no output: the shape of the twin, and a gradient of 0, where the twin refuses its own."""
    for name, shape, size in (("adaptive_avg_pool2d", (2, 0, 7, 9), 2), ("adaptive_avg_pool2d", (2, 3, 7, 9), (0, 3)), ("adaptive_avg_pool1d", (2, 3, 7), 0),
                              ("adaptive_avg_pool3d", (0, 4, 4, 4), 2), ("adaptive_avg_pool3d", (2, 3, 4, 4, 4), (2, 0, 2))):
        x = torch.randn(shape, device=device, requires_grad=True)
        y, twin = getattr(W, name)(x, size), getattr(F, name)(x, size)
        assert y.shape == twin.shape and not torch.autograd.grad(y.sum(), x)[0].any()
    assert W.adaptive_avg_pool2d(torch.randn(2, 3, 0, 4, device=device), 1).isnan().all()   # the mean of nothing, as the twin has it


def test_max_unpool(device):
    x = data((2, 3, 8, 8), device)
    y, where = W.max_pool2d(x, 2, return_indices=True)
    assert torch.equal(W.max_pool2d(F.max_unpool2d(y, where, 2), 2).relu(), y.relu())


def test_windows_without_a_tap(device):
    """Taps -1 and 4 of four elements: there is no maximum, and no gradient of any order."""
    x = torch.ones(1, 1, 4, device=device, requires_grad=True)
    for options in ({}, {"return_indices": True}):
        y = W.max_pool1d(x, 2, 1, 1, 5, **options)
        y = y if isinstance(y, torch.Tensor) else y[0]
        assert y.item() == float("-inf")
        dy = torch.ones_like(y, requires_grad=True)
        dx, = torch.autograd.grad(y, x, dy, create_graph=True)
        assert not dx.any() and not torch.autograd.grad(dx.sum(), dy)[0].any()


# ---------------------------------------------------------------------------------------------- derivatives

def leaf(c, device):
    """No two values are equal: a maximum has a derivative."""
    return (torch.randperm(torch.Size(c[1]).numel()) / 16).view(c[1]).to(device, torch.float64).requires_grad_()


@pytest.mark.parametrize("c", SMALL, ids=label)
def test_gradcheck(c, device):
    name, _, args, options = c
    x = leaf(c, device)

    def f(x):
        return getattr(W, name)(x, *args, **options)
    assert torch.autograd.gradcheck(f, x, fast_mode=True, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(f, x, fast_mode=True, check_fwd_over_rev=True)


@pytest.mark.parametrize("c", SMALL, ids=label)
def test_third_derivative(c, device):
    name, _, args, options = c
    x, results = leaf(c, device), []
    for m in (W, F):
        g, = torch.autograd.grad(getattr(m, name)(x, *args, **options).pow(3).sum(), x, create_graph=True)
        h, = torch.autograd.grad(g.pow(2).sum(), x, create_graph=True)
        results.append(torch.autograd.grad(h.sum(), x)[0])
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("c", SMALL, ids=label)
def test_torch_func(c, device):
    name, _, args, options = c
    x, results = leaf(c, device).detach(), []
    xs = torch.stack([x, 2 * x, x.flip(-1)], 1)
    for m in (W, F):
        def f(x):
            return getattr(m, name)(x, *args, **options)   # noqa: B023

        def loss(x):
            return f(x).square().sum()   # noqa: B023
        results.append([torch.vmap(f, 1)(xs), torch.vmap(torch.func.grad(loss), 1)(xs), torch.func.grad(lambda x: torch.func.grad(loss)(x).sum())(x),
                        torch.func.jvp(f, (x,), (x.cos(),)), torch.func.jvp(torch.func.grad(loss), (x,), (x.cos(),))])
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-9)


def test_vmap_of_indices(device):
    x = data((3, 2, 4, 6, 6), device)
    ours, theirs = (torch.vmap(lambda t: m.max_pool2d(t, 3, 1, 1, return_indices=True))(x) for m in (W, F))   # noqa: B023
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs))


def saved_bytes(f):
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.nbytes) or t, lambda t: t):
        f()
    return sum(kept)


def test_what_is_saved(device):
    """A byte a window, 8 where they are counted wider; averages keep nothing. Without a gradient no index is made at all. PyTorch's own
    code, where it runs, keeps what it keeps."""
    x = torch.randn(2, 3, 8, 8, device=device, requires_grad=True)
    wide = torch.randn(1, 1, 17, 17, device=device, requires_grad=True)
    with weft.backends.flags(delegate=False):
        assert saved_bytes(lambda: W.max_pool2d(x, 2)) == 2 * 3 * 16
        assert saved_bytes(lambda: W.max_pool2d(x, 2, return_indices=True)) == 8 * 2 * 3 * 16
        assert saved_bytes(lambda: W.avg_pool2d(x, 2)) == saved_bytes(lambda: W.adaptive_avg_pool2d(x, 2)) == 0
        assert saved_bytes(lambda: W.max_pool2d(wide, 16)) == 1 and saved_bytes(lambda: W.max_pool2d(wide, 17)) == 8
    from torch.utils._python_dispatch import TorchDispatchMode

    class Seen(TorchDispatchMode):
        names: list = []

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.names.append(func.__name__)
            return func(*args, **(kwargs or {}))
    with Seen() as seen, torch.no_grad():
        W.max_pool2d(x, 2)
    assert seen.names == ["max_pool.default"]


def test_the_operator_without_an_index_differentiates(device):
    x = leaf(MAX[3], device)
    assert torch.autograd.gradcheck(lambda x: torch.ops.weft.max_pool(x, [3, 3], [2, 2], [1, 1], [1, 1], False), x, fast_mode=True, check_forward_ad=True)


# ---------------------------------------------------------------------------------------------- the operators as PyTorch sees them

def operators(device, grad):
    x = data((2, 3, 8, 9), device)
    last, k, s, p, d = x.to(memory_format=torch.channels_last), [3, 2], [2, 1], [1, 1], [1, 2]
    x, last = x.requires_grad_(grad), last.requires_grad_(grad)
    y, byte = torch.ops.weft.max_pool_index(last.detach(), k, s, p, d, True, False)
    mean = torch.ops.weft.avg_pool(x.detach(), k, s, p, True, False, 0)
    yield "max_pool", (last, k, s, p, d, True)
    yield "max_pool_index", (x, k, s, p, d, True, False)
    yield "max_pool_index", (last, k, s, p, d, True, True)
    yield "max_pool_backward", (y.clone().requires_grad_(grad), byte, [8, 9], k, s, p, d, True, True)
    yield "avg_pool", (x, k, s, p, True, False, 0)
    yield "avg_pool", (last, k, s, p, False, True, 5)
    yield "avg_pool_backward", (mean.clone().requires_grad_(grad), [8, 9], k, s, p, True, False, 0, False)
    yield "adaptive_avg_pool", (last, [3, 4])
    yield "adaptive_avg_pool_backward", (x, [5, 11], True)


@pytest.mark.parametrize("grad", [False, True])
def test_opcheck(grad, device):
    for name, args in operators(device, grad):
        torch.library.opcheck(getattr(torch.ops.weft, name).default, args)


def test_opcheck_out(device):
    for name, args in operators(device, False):
        out = getattr(torch.ops.weft, name + "_out", None)
        assert (out is None) == name.endswith("_backward")
        if out is not None:
            made = getattr(torch.ops.weft, name)(*args)
            torch.library.opcheck(out.default, (*args, *map(torch.empty_like, made if isinstance(made, tuple) else (made,))))


@pytest.mark.parametrize("c", SMALL, ids=label)
def test_compile(c, device):
    """One graph for all sizes, with its gradient, in the strides of eager code."""
    torch.compiler.reset()
    name, shape, args, options = c
    count = 0

    def backend(graph, inputs):
        from torch._dynamo.backends.debugging import aot_eager
        nonlocal count
        count += 1
        return aot_eager(graph, inputs)

    def f(x):
        return getattr(W, name)(x, *args, **options) * 2
    compiled = torch.compile(f, fullgraph=True, backend=backend, dynamic=True)
    for more in (0, 3):
        x = data((*shape[:-1], shape[-1] + more), device)
        for change in (lambda t: t,) if len(shape) == int(name[-2]) + 1 else (lambda t: t, channels_last):
            results = []
            for g in (compiled, f):
                t = change(x).detach().requires_grad_()
                y = g(t)
                y.square().sum().backward()
                results.append((y.detach(), t.grad))
            torch.testing.assert_close(*results, rtol=1e-5, atol=1e-5)
            assert results[0][0].stride() == results[1][0].stride()
    assert count == (1 if len(shape) == int(name[-2]) + 1 else 2)   # a graph for each format


def test_compile_of_pairs_and_out(device):
    torch.compiler.reset()
    x = data((2, 3, 8, 8), device)
    y, where = torch.compile(lambda x: W.max_pool2d(x, 2, return_indices=True), fullgraph=True, backend="aot_eager")(x)
    assert torch.equal(y, F.max_pool2d(x, 2)) and torch.equal(where, F.max_pool2d(x, 2, return_indices=True)[1])
    out = torch.empty_like(y), torch.empty_like(where)
    torch.compile(lambda x, a, b: W.max_pool2d(x, 2, return_indices=True, out=(a, b)), fullgraph=True, backend="aot_eager")(x, *out)
    assert torch.equal(out[0], y) and torch.equal(out[1], where)


def test_compile_of_sizes_that_nobody_knows(device):
    for f in (lambda x: W.max_pool2d(x, 3, 2, 1, ceil_mode=True), lambda x: W.avg_pool2d(x, 2), lambda x: W.adaptive_avg_pool2d(x, (3, None))):
        torch.compiler.reset()
        x = data((2, 4, 6, 7), device)
        for axis in (0, 2, 3):
            torch._dynamo.decorators.mark_unbacked(x, axis)
        assert torch.equal(torch.compile(f, fullgraph=True, backend="aot_eager")(x), f(x))


def test_compile_of_a_window_from_a_size(device):
    torch.compiler.reset()
    x = data((2, 4, 6, 9), device)
    compiled = torch.compile(lambda x: W.avg_pool2d(x, (x.shape[-2], x.shape[-1])), fullgraph=True, backend="aot_eager", dynamic=True)
    torch.testing.assert_close(compiled(x), x.mean((-2, -1), keepdim=True))


def test_compile_of_transforms(device):
    torch.compiler.reset()
    x = data((2, 3, 8, 8), device)
    for transform in (lambda f: torch.func.grad(lambda x: f(x).square().sum()), lambda f: lambda x: torch.func.jvp(f, (x,), (x,))[1], torch.vmap):
        for f in (lambda x: W.max_pool2d(x, 2), lambda x: W.avg_pool2d(x, 2), lambda x: W.adaptive_avg_pool2d(x, 3)):
            torch.testing.assert_close(torch.compile(transform(f), fullgraph=True, backend="aot_eager")(x), transform(f)(x))


@pytest.mark.parametrize("c", SMALL, ids=label)
def test_export(c, device):
    name, shape, args, options = c

    class Net(torch.nn.Module):
        def forward(self, x):
            return getattr(W, name)(x, *args, **options)
    x = data(shape, device)
    program = torch.export.export(Net(), (x,), dynamic_shapes=({len(shape) - 1: torch.export.Dim("n", min=4, max=64)},))
    assert any(n.target is getattr(torch.ops.weft, name[:-2]).default for n in program.graph.nodes)
    for t in (x, data((*shape[:-1], shape[-1] + 2), device)):
        assert torch.equal(program.module()(t), Net()(t))


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("autocast", [torch.bfloat16, torch.float16], ids=lambda d: str(d)[6:])
def test_autocast(name, autocast, device):
    shape, args = next((c[1], c[2]) for c in CASES if c[0] == name)
    for dtype in DTYPES:
        x = data(shape, device, dtype).requires_grad_()
        with torch.autocast(device.type, dtype=autocast):
            y, twin = (getattr(m, name)(x, *args) for m in (W, F))
        assert y.dtype == twin.dtype
        torch.testing.assert_close(y, twin, rtol=2e-2, atol=2e-2)
        assert torch.autograd.grad(y.sum(), x)[0].dtype == dtype


def test_pairs_under_autocast(device):
    for name in ("max_pool1d", "max_pool2d", "max_pool3d"):
        x = data((2, 3, *[6] * int(name[-2])), device, torch.bfloat16)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            ours, twin = (getattr(m, name)(x, 2, return_indices=True) for m in (W, F))
        assert ours[0].dtype == twin[0].dtype and torch.equal(ours[1], twin[1])


# ---------------------------------------------------------------------------------------------- what the functions share with their twins

DEFAULTS = {"max_pool": {"stride": None, "padding": 0, "dilation": 1, "ceil_mode": False, "return_indices": False},
            "avg_pool": {"stride": None, "padding": 0, "ceil_mode": False, "count_include_pad": True}, "adaptive_avg_pool": {}}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_signature(name):
    """The twins hide theirs behind *args: this is what their manual says, then out by keyword only."""
    more = {"divisor_override": None} if name in ("avg_pool2d", "avg_pool3d") else {}
    first = ["input", "output_size" if name.startswith("adaptive") else "kernel_size"]
    parameters = inspect.signature(getattr(W, name)).parameters
    assert list(parameters) == [*first, *DEFAULTS[name[:-2]], *more, "out"]
    assert {k: p.default for k, p in parameters.items() if k not in (*first, "out")} == {**DEFAULTS[name[:-2]], **more}
    assert parameters["out"].kind is inspect.Parameter.KEYWORD_ONLY and parameters["out"].default is None


def test_types_without_kernels():
    """Whole numbers are the twin's."""
    x = torch.arange(2 * 3 * 8 * 8).view(2, 3, 8, 8)
    for ours, theirs in zip(W.max_pool2d(x.int(), 2, return_indices=True), F.max_pool2d(x.int(), 2, return_indices=True)):
        assert ours.dtype == theirs.dtype and torch.equal(ours, theirs)
    assert torch.equal(W.avg_pool2d(x, 2), F.avg_pool2d(x, 2))
    for f in (W.max_pool2d, W.avg_pool2d, W.adaptive_avg_pool2d):
        with pytest.raises(NotImplementedError, match="Bool"):
            f(x.bool(), 2)
        with pytest.raises(RuntimeError, match="out is given with input of torch.int64"):
            f(x, 2, out=x)


def test_windows_that_weft_leaves_to_the_twin():
    """Of more than 2^20 elements along an axis."""
    x, k = torch.randn(1, 1, 2**20 + 8, requires_grad=True), 2**20 + 1
    for f in ("max_pool1d", "avg_pool1d"):
        y, twin = (getattr(m, f)(x, k, 1) for m in (W, F))
        assert torch.equal(y, twin) and y.shape == (1, 1, 8)
        with pytest.raises(RuntimeError, match="out is given .* allowed: .* at most 2\\^20"):
            getattr(W, f)(x.detach(), k, out=y.detach())
    assert torch.equal(W.max_pool1d(x, 2, 1, 0, k), F.max_pool1d(x, 2, 1, 0, k))


def test_what_stands_for_an_int(device):
    class Two:
        def __index__(self):
            return 2
    x = data((2, 3, 8, 8), device)
    for two in (torch.tensor(2), Two(), (Two(), 2), [2, torch.tensor(2)], torch.Size([2, 2]), [2]):
        assert torch.equal(W.max_pool2d(x, two), F.max_pool2d(x, 2)) and torch.equal(W.avg_pool2d(x, 4, two), W.avg_pool2d(x, 4, 2))
    assert W.adaptive_avg_pool2d(x, torch.tensor([2, 3])).shape == F.adaptive_avg_pool2d(x, torch.tensor([2, 3])).shape
    assert W.adaptive_avg_pool3d(torch.ones(1, 1, 1, 2, 2, 2, 2, device=device), 1).shape == (1, 1, 1, 2, 1, 1, 1)


@pytest.mark.parametrize("c", CASES, ids=label)
def test_subclasses_and_modes(c):
    class Marked(torch.Tensor):
        pass

    class Counts(torch.overrides.TorchFunctionMode):
        seen: list = []

        def __torch_function__(self, function, types, args=(), kwargs=None):
            self.seen.append(function)
            return function(*args, **(kwargs or {}))
    name, shape, args, options = c
    f, x = getattr(W, name), data(shape, "cpu")
    y = f(x.as_subclass(Marked), *args, **options)
    assert type(y) is Marked and torch.equal(y.as_subclass(torch.Tensor), f(x, *args, **options))
    with Counts() as mode:
        f(x, *args, **options)
    assert mode.seen[0] is f
    traced = torch.fx.symbolic_trace(lambda x: f(x, *args, **options))
    assert torch.equal(traced(x), f(x, *args, **options))


# ---------------------------------------------------------------------------------------------- out

@pytest.mark.parametrize("c", CASES, ids=label)
def test_out(c, device):
    name, shape, args, options = c
    f, x = getattr(W, name), data(shape, device)
    expected = f(x, *args, **options)
    for out in (torch.empty_like(expected), scattered(torch.zeros_like(expected)), torch.zeros_like(expected).transpose(0, 1).contiguous().transpose(0, 1)):
        version = out._version
        assert f(x, *args, **options, out=out) is out and out._version > version
        torch.testing.assert_close(out, expected, **({"rtol": 0, "atol": 0} if name.startswith("max") else {}))   # strides may choose another kernel
    if name.startswith("max"):
        expected = f(x, *args, **options, return_indices=True)
        out = torch.empty_like(expected[0]), torch.zeros(*expected[1].shape, 2, dtype=torch.int64, device=device)[..., 0]
        got = f(x, *args, **options, return_indices=True, out=out)
        assert got[0] is out[0] and got[1] is out[1] and all(torch.equal(a, b) for a, b in zip(out, expected))


# ---------------------------------------------------------------------------------------------- modules

MODULES = [
    ("MaxPool1d", (3, 2, 1), {}, (2, 3, 11)),
    ("MaxPool2d", ((3, 2), None, 1, 2), {"ceil_mode": True}, (2, 3, 9, 8)),
    ("MaxPool3d", (2,), {}, (2, 3, 4, 5, 6)),
    ("AvgPool1d", (3, 2, 1), {"count_include_pad": False}, (2, 3, 11)),
    ("AvgPool2d", ((3, 2),), {"divisor_override": 5, "ceil_mode": True}, (2, 3, 9, 8)),
    ("AvgPool3d", (2, 1), {"padding": 1}, (2, 3, 4, 5, 6)),
    ("AdaptiveAvgPool1d", (4,), {}, (2, 3, 11)),
    ("AdaptiveAvgPool2d", ((None, 3),), {}, (2, 3, 9, 8)),
    ("AdaptiveAvgPool3d", (1,), {}, (2, 3, 4, 5, 6)),
]


@pytest.mark.parametrize("name, args, options, shape", MODULES)
def test_module(name, args, options, shape, device):
    ours, twin = (getattr(m, name)(*args, **options).to(device) for m in (weft.nn, torch.nn))
    assert isinstance(ours, type(twin)) and repr(ours) == f"weft.{twin!r}" and ours.state_dict() == twin.state_dict() == {}
    assert inspect.signature(type(ours)) == inspect.signature(type(twin)) and ours.__dict__.keys() == twin.__dict__.keys()
    ours.load_state_dict(twin.state_dict())
    turned = copy.deepcopy(twin)
    turned.__class__ = type(ours)
    x = data(shape, device)
    for t in (x, channels_last(x), x[0]):
        for module in (ours, copy.deepcopy(ours), pickle.loads(pickle.dumps(ours)), turned):
            torch.testing.assert_close(module(t), twin(t))
    traced = torch.fx.symbolic_trace(torch.nn.Sequential(ours))
    assert torch.equal(traced(x), ours(x)) and [n.op for n in traced.graph.nodes] == ["placeholder", "call_module", "output"]


def test_module_with_indices(device):
    for rank in (1, 2, 3):
        x = data((2, 3, *[6] * rank), device)
        ours, theirs = (getattr(m, f"MaxPool{rank}d")(2, return_indices=True)(x) for m in (weft.nn, torch.nn))
        assert torch.equal(ours[0], theirs[0]) and torch.equal(ours[1], theirs[1])
