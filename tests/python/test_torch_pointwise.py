"""weft.functional.relu, hardtanh, clipped_relu, tanh, sigmoid, ncrelu and their modules: against their twins in float64, with every derivative."""
from __future__ import annotations

import copy
import io
import pickle
import re
from functools import partial

import pytest
import torch
import torch.nn.functional as F

import weft
import weft.functional as W
from cases import DTYPES, channels_last, close, scattered, shifted

ids = lambda v: str(v).replace("torch.", "")
inf, nan = float("inf"), float("nan")


def halves(x):
    return torch.cat((x.clamp(min=0), x.clamp(max=0)), 1)


# name: weft's function, its twin, the form in place, the operator and its settings
CASES = {
    "relu": (W.relu, F.relu, partial(W.relu, inplace=True), "relu", ()),
    "hardtanh": (W.hardtanh, F.hardtanh, partial(W.hardtanh, inplace=True), "clip", (-1.0, 1.0)),
    "hardtanh-bounds": (partial(W.hardtanh, min_val=-0.5, max_val=inf), partial(F.hardtanh, min_val=-0.5, max_val=inf),
                        partial(W.hardtanh, min_val=-0.5, max_val=inf, inplace=True), "clip", (-0.5, inf)),
    "clipped_relu": (partial(W.clipped_relu, ceiling=0.75), partial(F.hardtanh, min_val=0, max_val=0.75), partial(W.clipped_relu, ceiling=0.75, inplace=True),
                     "clip", (0.0, 0.75)),
    "tanh": (W.tanh, F.tanh, partial(W.tanh, inplace=True), "tanh", ()),
    "sigmoid": (W.sigmoid, F.sigmoid, partial(W.sigmoid, inplace=True), "sigmoid", ()),
    "ncrelu": (W.ncrelu, halves, None, "ncrelu", ()),
}
SLOPES = {"tanh": lambda y: 1 - y * y, "sigmoid": lambda y: y * (1 - y)}
PLAIN = [name for name in CASES if name != "ncrelu"]
VIEWS = {
    "scalar": lambda: torch.randn(()), "1d": lambda: torch.randn(7), "2d": lambda: torch.randn(3, 5), "4d": lambda: torch.randn(2, 3, 4, 5),
    "empty": lambda: torch.randn(0, 3, 4), "no-channels": lambda: torch.randn(2, 0, 4), "empty-transposed": lambda: torch.randn(0, 4).t(),
    "3d-last": lambda: channels_last(torch.randn(2, 3, 8)), "4d-last": lambda: channels_last(torch.randn(2, 3, 4, 5)),
    "5d-last": lambda: channels_last(torch.randn(2, 3, 2, 4, 5)), "one-channel-last": lambda: torch.randn(2, 1, 4, 5).to(memory_format=torch.channels_last),
    "one-pixel-last": lambda: torch.randn(1, 3, 1, 1).to(memory_format=torch.channels_last), "permuted": lambda: torch.randn(2, 3, 4, 5).permute(3, 1, 0, 2),
    "scattered": lambda: scattered(torch.randn(2, 3, 4, 5)), "shifted": lambda: shifted(torch.randn(2, 3, 4, 5)),
    "expanded": lambda: torch.randn(2, 1, 4, 1).expand(2, 3, 4, 5), "expanded-transposed": lambda: torch.randn(1, 3).t().expand(3, 4),
    "overlapping": lambda: torch.randn(6).as_strided((3, 2), (1, 1)), "7d": lambda: torch.randn(2, 2, 2, 2, 2, 2, 4).permute(6, 3, 1, 5, 0, 2, 4),
    "8d-unfoldable": lambda: torch.randn(3, 2, 3, 2, 3, 2, 3, 4)[1:, :, 1:, :, 1:, :, 1:, ::2].permute(1, 0, 3, 2, 7, 4, 6, 5),
    "8d-gaps": lambda: torch.randn(4, 4, 4, 4, 4, 4, 4)[::2, ::2, ::2, ::2, ::2, ::2, ::2],
    "large": lambda: torch.randn(3, 40, 50),   # where PyTorch's own code is the better one
}


def view(name, device, dtype=torch.float32):
    """As the view is on the CPU in float32: to() would make it dense."""
    made = VIEWS[name]()
    moved = torch.empty(made.untyped_storage().nbytes() // 4, dtype=dtype, device=device)
    moved.copy_(torch.empty(0).set_(made.untyped_storage()))
    return moved.as_strided(made.shape, made.stride(), made.storage_offset())


def truth_of(twin, x, grad=None):
    exact = x.detach().double().cpu().requires_grad_()
    y = twin(exact)
    return y.detach() if grad is None else (y.detach(), torch.autograd.grad(y, exact, grad.double().cpu())[0])


def takes(name, x):
    return name != "ncrelu" or x.dim() >= 2


# ---------------------------------------------------------------- results, gradients, strides
@pytest.mark.parametrize("where", VIEWS)
@pytest.mark.parametrize("name", CASES)
def test_twin(name, where, device):
    ours, twin = CASES[name][:2]
    for dtype in DTYPES:
        x = view(where, device, dtype)
        if not takes(name, x):
            continue
        leaf = x.detach().requires_grad_()
        y = ours(leaf)
        assert y.dtype == dtype and y.requires_grad
        grad = torch.randn_like(y)
        dx, = torch.autograd.grad(y, leaf, grad)
        truth, slope = truth_of(twin, x, grad)
        close(y.cpu(), truth)
        if name in SLOPES and dtype.itemsize == 2:   # from the rounded result, as PyTorch's: near 1 it has lost most of 1 - y
            slope = grad.double().cpu() * SLOPES[name](y.detach().double().cpu())
        close(dx.cpu(), slope)
        close(ours(x).cpu(), truth)   # of a small tensor the one with a gradient is PyTorch's
        assert name in SLOPES or torch.equal(ours(x), y.detach())
        theirs = twin(x)
        if name != "ncrelu":
            assert y.stride() == theirs.stride(), f"{y.stride()}, PyTorch's {theirs.stride()} of {x.stride()}"
        elif x.numel():
            last = torch.empty([*theirs.movedim(1, -1).shape]).movedim(-1, 1)
            assert y.stride() == (last if where.endswith("-last") else torch.empty(theirs.shape)).stride()


@pytest.mark.parametrize("name", CASES)
def test_nan_infinity_and_the_edges(name, device):
    """Also where the formula has a corner: the gradient there is the twin's, of ncrelu that of the first half."""
    ours, twin = CASES[name][:2]
    x = torch.tensor([[nan, inf, -inf, 0.0, -0.0, 1.0, -1.0, 0.75, -0.5, 1e30, -1e30]], device=device)
    x = torch.cat([x] * 40)   # large enough for either code, small by itself
    for some in (x[:1], x):
        leaf, other = some.clone().requires_grad_(), some.clone().requires_grad_()
        y, z = ours(leaf), twin(other)
        torch.testing.assert_close(y, z, equal_nan=True)
        y.sum().backward()
        if name == "ncrelu":
            assert leaf.grad[0].tolist() == [2.0, *[1.0] * 10]
        else:
            z.sum().backward()
            torch.testing.assert_close(leaf.grad, other.grad, equal_nan=True)


def test_ncrelu_gradient_goes_to_its_half(device):
    x = torch.tensor([[0.0, -0.0, 2.0, -3.0]], device=device, requires_grad=True)
    W.ncrelu(x).backward(torch.arange(1.0, 9.0, device=device).view(1, 8))
    assert x.grad.tolist() == [[1.0, 2.0, 3.0, 8.0]]
    halves = [[1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0]]   # of 0 it is the first, in every derivative
    _, moved = torch.func.jvp(W.ncrelu, (x.detach(),), (torch.ones_like(x),))
    grad = torch.ones(1, 8, device=device, requires_grad=True)
    dx, = torch.autograd.grad(W.ncrelu(x), x, grad, create_graph=True)
    assert moved.tolist() == torch.autograd.grad(dx.sum(), grad)[0].tolist() == halves


def test_either_code_gives_the_same(device):
    """weft's kernel and PyTorch's, where both can run."""
    for name in PLAIN:
        x = torch.randn(3, 40, 50, device=device)
        with weft.backends.flags(delegate=False):
            own = CASES[name][0](x)
            assert "torch" not in weft.backends.kernels()
        for got in (CASES[name][0](x), CASES[name][0](x, out=torch.empty_like(x)), CASES[name][2](x.clone())):
            torch.testing.assert_close(got, own, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=ids)
def test_bounds_that_the_type_rounds(dtype, device):
    x = torch.linspace(-1, 1, 64, device=device).to(dtype).requires_grad_()
    y = W.hardtanh(x, -0.3, 0.3)
    y.sum().backward()
    assert torch.equal(y, F.hardtanh(x.detach(), -0.3, 0.3)) and x.grad.eq(x.detach().abs() < 0.3).all()


# ---------------------------------------------------------------- in place, out
@pytest.mark.parametrize("where", [v for v in VIEWS if v not in ("expanded", "expanded-transposed", "overlapping")])
@pytest.mark.parametrize("name", PLAIN)
def test_in_place(name, where, device):
    ours, twin, within = CASES[name][:3]
    x = view(where, device)
    want, version = ours(x), x._version
    assert within(x) is x and torch.equal(x, want) and x._version > version
    leaf = view(where, device, torch.float64).requires_grad_()
    y = leaf * 1.5
    got = within(y)
    assert got is y and (got.grad_fn is not None)
    grad = torch.randn_like(got)
    dx, = torch.autograd.grad(got, leaf, grad)
    close(dx.cpu(), truth_of(lambda t: twin(t * 1.5), leaf, grad)[1])


@pytest.mark.parametrize("name", PLAIN)
def test_in_place_and_the_graph(name, device):
    ours, twin, within = CASES[name][:3]
    x = torch.randn(6, device=device, dtype=torch.float64, requires_grad=True)
    base = x * 1
    within(base.view(2, 3)[0])   # a view: its base has the gradient too
    other = x * 1
    other = torch.cat((twin(other[:3]), other[3:]))
    torch.testing.assert_close(base, other)
    torch.testing.assert_close(torch.autograd.grad(base.pow(2).sum(), x), torch.autograd.grad(other.pow(2).sum(), x))
    assert torch.autograd.gradgradcheck(lambda t: within(t * 1.0), torch.randn(5, dtype=torch.float64, device=device, requires_grad=True))
    saved = x * 1
    squared = saved * saved
    within(saved)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        squared.sum().backward()
    kept = x.detach().clone()
    for wrong in (x, x.view(2, 3)):
        with pytest.raises(RuntimeError, match="leaf"):
            within(wrong)
    with pytest.raises(RuntimeError, match="multiple views"):
        within((x * 1).chunk(2)[0])
    with pytest.raises(RuntimeError, match="input: is expanded along dimension 0, allowed in place: memory for every element"):
        within(torch.ones(1, device=device).expand(3))
    assert torch.equal(x.detach(), kept)
    negative = torch._neg_view(torch.randn(6, device=device))   # memory holds -x, as that of x.conj().imag
    want = ours(negative.clone())
    assert torch.equal(ours(negative), want) and torch.equal(within(negative), want)
    with torch.no_grad():
        assert within(x) is x
    with torch.inference_mode():
        t = torch.randn(4, device=device)
        assert torch.equal(within(t.clone()), ours(t))


@pytest.mark.parametrize("name", PLAIN)
def test_in_place_allocates_nothing(name, device):
    """But the bounds as scalars, where PyTorch's code runs: the profiler sees every byte of its allocators."""
    def allocated(call, x):
        with torch.profiler.profile(profile_memory=True) as seen:
            kept = call(x)   # noqa: F841
        return sum(e.nbytes() for e in seen.profiler.kineto_results.events() if e.name() == "[memory]" and e.nbytes() > 0)
    for shape in ((2, 3), (64, 1024)):
        x = torch.randn(shape, device=device, requires_grad=True) * 1
        with torch.no_grad():
            assert allocated(CASES[name][0], x) >= x.nbytes
        assert allocated(CASES[name][2], x) <= 32 and x.grad_fn.name().startswith("weft_")


@pytest.mark.parametrize("name", CASES)
def test_out(name, device):
    ours = CASES[name][0]
    x = torch.randn(2, 3, 4, 5, device=device)
    want = ours(x)
    for out in (torch.full_like(want, nan), scattered(torch.zeros_like(want)), channels_last(torch.zeros_like(want))):
        assert ours(x, out=out) is out      # other strides may be another kernel, whose last bit may differ
        torch.testing.assert_close(out, want, rtol=2.4e-7, atol=0)
    gaps = scattered(torch.zeros_like(want))
    ours(x, out=gaps)
    assert gaps.as_strided((gaps.numel(),), (2,), 1)[:-1].isnan().all()
    if name != "ncrelu":
        y = x.clone()
        assert ours(y, out=y) is y and torch.equal(y, want)
    flat = torch.zeros(2 * want.numel(), device=device)
    flat[:x.numel()] = x.flatten()
    for out, text in ((torch.empty(3, device=device), r"out: has the shape \[3\], allowed: the shape of the result, \[2, [36], 4, 5\]"),
                      (torch.empty_like(want, dtype=torch.float64), "out: is float64, allowed: the type of the result, float32"),
                      (torch.empty(1, device=device).expand(want.shape), "out: is expanded along dimension 0, allowed: memory for every element"),
                      (flat[1:1 + want.numel()].view(want.shape), "out: shares memory with input, allowed: memory of its own")):
        with pytest.raises(RuntimeError, match=text):
            ours(flat[:x.numel()].view(x.shape), out=out)
    with pytest.raises(TypeError, match="out: is int, allowed: Tensor or None"):
        ours(x, out=1)
    with pytest.raises(RuntimeError, match="out: given with a tensor that requires grad"):
        ours(x.clone().requires_grad_(), out=torch.empty_like(want))
    if name != "ncrelu":
        with pytest.raises(ValueError, match="out: is given with inplace=True, allowed: one of them"):
            CASES[name][2](x, out=torch.empty_like(x))


# ---------------------------------------------------------------- derivatives
@pytest.mark.parametrize("name", CASES)
def test_gradcheck(name, device):
    ours = CASES[name][0]
    x = torch.tensor([[-2.0, -0.7, -0.2], [0.3, 0.6, 2.0]], dtype=torch.float64, device=device, requires_grad=True)
    for t in (x, channels_last(x.detach().view(1, 3, 2)).requires_grad_()):
        assert torch.autograd.gradcheck(ours, t, check_forward_ad=True, check_batched_grad=True)
        assert torch.autograd.gradgradcheck(ours, t, check_fwd_over_rev=True)


@pytest.mark.parametrize("name", CASES)
def test_third_derivative_and_torch_func(name, device):
    ours, twin = CASES[name][:2]
    x = torch.tensor([[-2.0, -0.7, 0.3, 0.6]], dtype=torch.float64, device=device)

    def thrice(f):
        slope = lambda g: torch.func.grad(lambda t: g(t).pow(3).sum())
        return slope(slope(slope(f)))(x)
    torch.testing.assert_close(thrice(ours), thrice(twin))
    t = torch.ones_like(x)
    torch.testing.assert_close(torch.func.jvp(ours, (x,), (t,)), torch.func.jvp(twin, (x,), (t,)))
    torch.testing.assert_close(torch.func.jacrev(ours)(x), torch.func.jacfwd(twin)(x))


@pytest.mark.parametrize("name", CASES)
def test_vmap(name, device):
    ours, twin, within = CASES[name][:3]
    x = torch.randn(3, 2, 4, 5, device=device)
    for dim in (0, 2, -1):
        torch.testing.assert_close(torch.vmap(ours, dim, dim)(x), torch.vmap(twin, dim, dim)(x))
    per_sample = torch.vmap(torch.func.grad(lambda t: ours(t).pow(2).sum()))(x)
    torch.testing.assert_close(per_sample, torch.vmap(torch.func.grad(lambda t: twin(t).pow(2).sum()))(x))
    if within:
        torch.testing.assert_close(torch.vmap(lambda t: within(t * 1.0))(x), twin(x))


# ---------------------------------------------------------------- tracing
def tensors_for(op, device, dtype=torch.float32, grad=False):
    for where in ("4d", "4d-last", "scattered", "permuted"):
        yield view(where, device, dtype).requires_grad_(grad)


@pytest.mark.parametrize("name", ["relu", "hardtanh", "tanh", "sigmoid", "ncrelu"])
def test_opcheck(name, device):
    op, settings = getattr(torch.ops.weft, CASES[name][3]).default, CASES[name][4]
    out = getattr(torch.ops.weft, CASES[name][3] + "_out").default
    for x in tensors_for(op, device, grad=True):
        torch.library.opcheck(op, (x, *settings))
        torch.library.opcheck(out, (x.detach(), *settings, torch.empty_like(CASES[name][0](x.detach()))))


def test_opcheck_ncrelu_backward(device):
    for x in tensors_for(None, device, grad=True):
        grad = torch.randn_like(W.ncrelu(x.detach())).requires_grad_()
        torch.library.opcheck(torch.ops.weft.ncrelu_backward.default, (grad, x))


@pytest.mark.parametrize("name", CASES)
def test_compile(name, device):
    ours, twin, within = CASES[name][:3]

    def both(x):
        y = ours(x * 2)
        return y if within is None else y + within(y * 0.5)
    compiled = torch.compile(both, fullgraph=True, backend="aot_eager", dynamic=True)
    for shape in ((2, 3, 4, 5), (3, 5, 6, 2)):
        for arrange in (torch.Tensor.contiguous, channels_last):
            x, z = (arrange(t).requires_grad_() for t in [torch.randn(shape, device=device)] * 2)
            y, plain = compiled(x), both(z)
            torch.testing.assert_close(y, plain)
            assert y.stride() == plain.stride()
            y.pow(2).sum().backward(), plain.pow(2).sum().backward()
            torch.testing.assert_close(x.grad, z.grad)
    torch._dynamo.reset()


def test_compiled_in_place_and_out_change_the_argument(device):
    @partial(torch.compile, fullgraph=True, backend="aot_eager")
    def f(x, out):
        W.tanh(x, out=out)
        return W.relu(x, inplace=True)
    x, out = torch.randn(3, 4, device=device), torch.empty(3, 4, device=device)
    kept = x.clone()
    f(x, out)
    assert torch.equal(x, W.relu(kept)) and torch.equal(out, W.tanh(kept))
    torch._dynamo.reset()


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.all = torch.nn.Sequential(weft.nn.ReLU(), weft.nn.NCReLU(), weft.nn.Hardtanh(-2, 2), weft.nn.Tanh(), weft.nn.Sigmoid(), weft.nn.ClippedReLU(0.6))

    def forward(self, x):
        return self.all(x)


def test_export(device):
    x = torch.randn(2, 3, 4, device=device)
    net = Net()
    program = torch.export.export(net, (x,), dynamic_shapes={"x": {0: torch.export.Dim("n", min=2, max=64)}})
    y = torch.randn(5, 3, 4, device=device)
    torch.testing.assert_close(program.module()(y), net(y))
    assert {"weft.relu.default", "weft.ncrelu.default", "weft.clip.default", "weft.tanh.default", "weft.sigmoid.default"} <= {
        str(n.target) for n in program.graph.nodes}


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("low", [torch.bfloat16, torch.float16], ids=ids)
def test_autocast(name, low, device):
    ours, twin = CASES[name][:2]
    for dtype in DTYPES:
        x = torch.randn(4, 5, device=device, dtype=dtype)
        with torch.autocast(device.type, low):
            assert ours(x).dtype == twin(x).dtype


def test_torch_function(device):
    class Tagged(torch.Tensor):
        pass
    x = torch.randn(2, 3, device=device).as_subclass(Tagged)
    for name, (ours, *_) in CASES.items():
        assert type(ours(x)) is Tagged
    seen = []

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))
    with Mode():
        W.relu(x), W.hardtanh(x), W.tanh(x), W.sigmoid(x), W.ncrelu(x), W.clipped_relu(x, 2)
    assert {W.relu, W.hardtanh, W.tanh, W.sigmoid, W.ncrelu, W.clipped_relu} <= set(seen)


@pytest.mark.parametrize("name", PLAIN)
def test_what_is_left_to_pytorch(name, device):
    """Whole numbers, sparse and nested tensors, NaN for a bound."""
    ours, twin = CASES[name][:2]
    whole = torch.tensor([-3, 0, 4], device=device)
    for x in (whole, whole.int()):
        if name in ("hardtanh-bounds", "clipped_relu"):
            continue
        assert torch.equal(ours(x), twin(x)) and ours(x).dtype == twin(x).dtype
    if name in ("relu", "tanh"):
        sparse = torch.randn(3, 3, device=device).relu().to_sparse()
        torch.testing.assert_close(ours(sparse).to_dense(), twin(sparse).to_dense())
    assert W.hardtanh(torch.ones(2, device=device), nan, 1).isnan().all()
    assert W.hardtanh(torch.ones(2, device=device), torch.tensor(-1.0), torch.tensor(0.5)).eq(0.5).all()


# ---------------------------------------------------------------- modules
MODULES = {
    "ReLU": (weft.nn.ReLU(), torch.nn.ReLU(), "weft.ReLU()"),
    "ReLU-inplace": (weft.nn.ReLU(inplace=True), torch.nn.ReLU(True), "weft.ReLU(inplace=True)"),
    "Hardtanh": (weft.nn.Hardtanh(-2, 3, True), torch.nn.Hardtanh(-2, 3, True), "weft.Hardtanh(min_val=-2, max_val=3, inplace=True)"),
    "ClippedReLU": (weft.nn.ClippedReLU(6), torch.nn.Hardtanh(0, 6), "weft.ClippedReLU(ceiling=6)"),
    "ClippedReLU-inplace": (weft.nn.ClippedReLU(0.5, inplace=True), torch.nn.Hardtanh(0, 0.5, True), "weft.ClippedReLU(ceiling=0.5, inplace=True)"),
    "Tanh": (weft.nn.Tanh(), torch.nn.Tanh(), "weft.Tanh()"),
    "Tanh-inplace": (weft.nn.Tanh(inplace=True), torch.nn.Tanh(), "weft.Tanh(inplace=True)"),
    "Sigmoid": (weft.nn.Sigmoid(), torch.nn.Sigmoid(), "weft.Sigmoid()"),
    "NCReLU": (weft.nn.NCReLU(), None, "weft.NCReLU()"),
}


@pytest.mark.parametrize("name", MODULES)
def test_module(name, device):
    ours, twin, text = MODULES[name]
    assert repr(ours) == text
    file = io.BytesIO()
    torch.save(ours, file)
    file.seek(0)
    same = [ours, copy.deepcopy(ours), pickle.loads(pickle.dumps(ours)), torch.load(file, weights_only=False)]
    if twin is not None:
        assert isinstance(ours, type(twin)) and ours.state_dict() == twin.state_dict() == {}
        ours.load_state_dict(twin.state_dict()), twin.load_state_dict(ours.state_dict())
        swapped = copy.deepcopy(twin)   # as convert does
        swapped.__class__ = type(ours)
        same.append(swapped)
    for module in same:
        for arrange in (torch.Tensor.contiguous, channels_last):
            x = arrange(torch.randn(2, 3, 4, 5, device=device))
            want = (twin or halves)(x.clone(memory_format=torch.preserve_format))
            y = module.to(device)(x)
            torch.testing.assert_close(y, want)
            assert (y is x) == getattr(module, "inplace", False)
            if twin is not None:
                assert y.stride() == want.stride()
    assert weft.ncrelu is W.ncrelu


def test_modules_train(device):
    """In place after a layer, as networks have it."""
    ours = torch.nn.Sequential(torch.nn.Linear(4, 8), weft.nn.ReLU(True), torch.nn.Linear(8, 8), weft.nn.ClippedReLU(0.5, True), torch.nn.Linear(8, 3),
                               weft.nn.Sigmoid(True)).to(device)
    theirs = torch.nn.Sequential(ours[0], torch.nn.ReLU(True), ours[2], torch.nn.Hardtanh(0, 0.5, True), ours[4], torch.nn.Sigmoid())
    x = torch.randn(5, 4, device=device)
    grads = [torch.autograd.grad(net(x).pow(2).sum(), list(net.parameters())) for net in (ours, theirs)]
    for a, b in zip(*grads):
        torch.testing.assert_close(a, b)
    y = torch.utils.checkpoint.checkpoint(ours, x, use_reentrant=False)
    for a, b in zip(torch.autograd.grad(y.pow(2).sum(), list(ours.parameters())), grads[1]):
        torch.testing.assert_close(a, b)


# ---------------------------------------------------------------- wrong inputs
_x = torch.randn(2, 3)
_half = torch.ones(2, dtype=torch.float16)
# (call of weft, call of the twin or None, exception, text)
WRONG = [
    (lambda: W.relu(None), lambda: F.relu(None), TypeError, "relu: input is NoneType, allowed: Tensor"),
    (lambda: W.relu([1.0]), lambda: F.relu([1.0]), TypeError, "relu: input is list, allowed: Tensor"),
    (lambda: W.relu(1.0, inplace=True), lambda: F.relu(1.0, inplace=True), TypeError, "relu: input is float, allowed: Tensor"),
    (lambda: W.relu(_x > 0), lambda: F.relu(_x > 0), RuntimeError, "Boolean inputs not supported for relu"),
    (lambda: W.relu(_x * 1j), lambda: F.relu(_x * 1j), NotImplementedError, "not supported for complex types"),
    (lambda: W.relu(_x, bogus=1), lambda: F.relu(_x, bogus=1), TypeError, "bogus"),
    (lambda: W.hardtanh(1), lambda: F.hardtanh(1), TypeError, "hardtanh: input is int, allowed: Tensor"),
    (lambda: W.hardtanh(_x, 2, 1), lambda: F.hardtanh(_x, 2, 1), ValueError, "min_val: is 2, allowed: not above max_val, 1"),
    (lambda: W.hardtanh(_x, "a", 1), lambda: F.hardtanh(_x, "a", 1), TypeError, "min_val: is 'a', allowed: a real number"),
    (lambda: W.hardtanh(_x, 0, None), lambda: F.hardtanh(_x, 0, None), TypeError, "max_val: is None, allowed: a real number"),
    (lambda: W.hardtanh(_x, 1j, 2), lambda: F.hardtanh(_x, 1j, 2), TypeError, "min_val: is 1j, allowed: a real number"),
    (lambda: W.hardtanh(_x, _x, 2), lambda: F.hardtanh(_x, _x, 2), RuntimeError, "min_val: is a tensor of 6 elements [2, 3], allowed: a number"),
    (lambda: W.hardtanh(_x, torch.ones(1), 2), lambda: F.hardtanh(_x, torch.ones(1), 2), TypeError, "min_val: is a tensor of 1 dimensions"),
    (lambda: W.hardtanh(_x, -1, 1e300), lambda: F.hardtanh(_x, -1, 1e300), RuntimeError, "hi: is 1e+300, allowed for float32"),
    (lambda: W.hardtanh(_half, -1e6, 1), lambda: F.hardtanh(_half, -1e6, 1), RuntimeError, "lo: is -1e+06, allowed for float16: -65504 to 65504"),
    *((lambda b=b: W.hardtanh(_half, -b, 1), lambda b=b: F.hardtanh(_half, -b, 1), RuntimeError, f"lo: is {-b:g}, allowed for float16: -65504 to 65504")
      for b in (65505.0, 65519.0, 65536.0)),   # next to what there is, which rounding would make of some of them
    (lambda: W.hardtanh(_x > 0), lambda: F.hardtanh(_x > 0), RuntimeError, "Bool inputs not supported for hardtanh"),
    (lambda: W.hardtanh(_half.byte()), lambda: F.hardtanh(_half.byte()), RuntimeError, "unsigned type with negative limits"),
    (lambda: weft.nn.Hardtanh(1, 1), lambda: torch.nn.Hardtanh(1, 1), AssertionError, "max_val (1) must be greater than min_val (1)"),
    (lambda: W.clipped_relu(_x), None, TypeError, "ceiling"),
    (lambda: W.clipped_relu(None, 1), None, TypeError, "clipped_relu: input is NoneType, allowed: Tensor"),
    (lambda: W.clipped_relu(_x, 0), None, ValueError, "ceiling: is 0, allowed: a number above 0"),
    (lambda: W.clipped_relu(_x, nan), None, ValueError, "ceiling: is nan, allowed: a number above 0"),
    (lambda: W.clipped_relu(_x, "6"), None, TypeError, "ceiling: is '6', allowed: a real number"),
    (lambda: weft.nn.ClippedReLU(-1), None, ValueError, "ceiling: is -1, allowed: a number above 0"),
    (lambda: W.tanh(None), lambda: F.tanh(None), AttributeError, "tanh: input is NoneType, allowed: Tensor"),
    (lambda: W.tanh(_x, 1), lambda: F.tanh(_x, 1), TypeError, "positional"),
    (lambda: W.tanh(torch.tensor([1, 2]), inplace=True), lambda: torch.tanh_(torch.tensor([1, 2])), RuntimeError, "can't be cast"),
    (lambda: W.sigmoid(2.0), lambda: F.sigmoid(2.0), AttributeError, "sigmoid: input is float, allowed: Tensor"),
    (lambda: W.ncrelu(None), None, TypeError, "ncrelu: input is NoneType, allowed: Tensor"),
    (lambda: W.ncrelu(torch.ones(3)), None, RuntimeError, "input: has 1 dimensions, allowed: 2 or more"),
    (lambda: W.ncrelu(torch.ones(2, 3).int()), None, RuntimeError, "input: is int32, allowed: float32, float64, float16 or bfloat16"),
    (lambda: W.relu(torch.zeros(1).expand(1 << 41)), None, RuntimeError, "input: has 2199023255552 elements along dimension 0, allowed: at most 2^40"),
    (lambda: torch.ops.weft.clip(_x, 2.0, 1.0), None, RuntimeError, "lo: is 2, allowed: not above hi, 1"),
    (lambda: torch.ops.weft.clip(_x, nan, 1.0), None, RuntimeError, "lo: is nan, allowed"),
    (lambda: torch.ops.weft.tanh(_x.int()), None, RuntimeError, "input: is int32, allowed: float32"),
    (lambda: torch.ops.weft.ncrelu_backward(_x, _x), None, RuntimeError, "grad_output: has the shape [2, 3], allowed: [2, 6]"),
    (lambda: torch.ops.weft.ncrelu_backward(torch.ones(2, 6).double(), _x), None, RuntimeError, "grad_output: is float64, allowed: the type of input, float32"),
]


@pytest.mark.parametrize("call, twin, kind, text", WRONG, ids=[str(i) for i in range(len(WRONG))])
def test_wrong(call, twin, kind, text):
    with pytest.raises(kind, match=re.escape(text)):
        call()
    if twin is not None:
        with pytest.raises(kind):
            twin()


def test_fakes_refuse_what_the_kernels_refuse():
    meta = lambda *shape, dtype=torch.float32: torch.empty(shape, device="meta", dtype=dtype)
    ops = torch.ops.weft
    for call, text in ((lambda: ops.relu(meta(2, dtype=torch.int32)), "input: is int32, allowed: float32"),
                       (lambda: ops.clip(meta(2), 2.0, 1.0), "lo: is 2, allowed: not above hi, 1"),
                       (lambda: ops.clip(meta(2, dtype=torch.float16), 0.0, 1e6), r"hi: is 1e\+06, allowed for float16"),
                       (lambda: ops.ncrelu(meta(2)), "input: has 1 dimensions, allowed: 2 or more"),
                       (lambda: ops.ncrelu_backward(meta(2, 3), meta(2, 3)), r"grad_output: has the shape \[2, 3\], allowed: \[2, 6\]")):
        with pytest.raises(RuntimeError, match=text):
            call()
