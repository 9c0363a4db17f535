"""dgmm and cdgmm beside plain products: both sides, every type, views, derivatives of every order, tracing, errors."""
from __future__ import annotations

import inspect
import re
import sys

import pytest
import torch

import weft
import weft.functional as W
from weft._core import entry as _entry
from cases import DTYPES, close, scattered, shifted

COMPLEX = [torch.complex64, torch.complex128]
# matrices, and the side
SIZES = [((5, 7), "right"), ((5, 7), "left"), ((4, 4), None), ((4, 4), "left"), ((3, 2, 5, 6), None), ((2, 3, 2, 4, 3), "left"), ((2, 9, 1), None),
         ((1, 3, 8), "right"), ((0, 3, 2), None), ((2, 0, 3), "right"), ((2, 0, 3), "left"), ((2, 3, 0), "left")]
VIEWS = {"scattered": scattered, "shifted": shifted, "transposed": lambda t: t.transpose(-1, -2).contiguous().transpose(-1, -2) if t.dim() > 1 else t,
         "batch-turned": lambda t: t.transpose(0, 1).contiguous().transpose(0, 1) if t.dim() > 1 else t,
         "expanded": lambda t: t[:1].expand_as(t) if t.shape[0] else t}
kind = pytest.mark.parametrize("dtype", [*DTYPES, *COMPLEX], ids=lambda d: str(d)[6:])


def product(a, x, side):
    """side as a word."""
    return a * (x if side == "right" else x.unsqueeze(-1))


def resolved(shape, side):
    return side or "right"


def pairs(t):
    return torch.view_as_real(t.resolve_conj())


def data(shape, side, dtype, device="cpu"):
    """Matrices and a diagonal; of 16-bit types, values that they hold."""
    length = shape[-1] if resolved(shape, side) == "right" else shape[-2]
    wide = torch.complex128 if dtype.is_complex else torch.float64
    return [torch.randn(n, dtype=wide).to(device, dtype) for n in (shape, (length,))]


def wide(t):
    return t.detach().to("cpu", torch.complex128 if t.is_complex() else torch.float64)


def near(ours, truth, terms=64):
    real = [pairs(t) if t.is_complex() else t for t in (ours.detach().cpu(), truth.detach())]
    close(*real, terms=terms)


def compare(f, tensors, side, view=lambda t: t):
    """Result and both gradients, ours beside the plain product in double; nothing that was given is changed."""
    leaves, exact = [view(t).detach().requires_grad_() for t in tensors], [wide(view(t)).requires_grad_() for t in tensors]
    before = [t.detach().clone() for t in leaves]
    y, truth = f(*leaves), product(*exact, side)
    grad = torch.randn(truth.shape, dtype=truth.dtype).to(y.dtype)
    near(y, truth)
    assert y.dtype == leaves[0].dtype and y.is_contiguous()
    for mine, theirs, leaf in zip(torch.autograd.grad(y, leaves, grad.to(y.device)), torch.autograd.grad(truth, exact, grad.to(truth.dtype)), leaves):
        near(mine, theirs, truth.numel())
        assert mine.dtype == leaf.dtype
    assert all(torch.equal(a, b) for a, b in zip(leaves, before))


# ---------------------------------------------------------------------------------------------- values

@kind
@pytest.mark.parametrize("shape, side", SIZES, ids=str)
def test_values(shape, side, dtype, device):
    f = weft.cdgmm if dtype.is_complex else weft.dgmm
    compare(lambda a, x: f(a, x, side), data(shape, side, dtype, device), resolved(shape, side))


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d)[6:])
@pytest.mark.parametrize("shape, side", SIZES, ids=str)
def test_pairs(shape, side, dtype, device):
    """Complex numbers as pairs of any real type: the same as complex tensors."""
    a, x = (pairs(t).to(dtype) for t in data(shape, side, torch.complex128))
    exact = [torch.view_as_complex(t.double()).requires_grad_() for t in (a, x)]
    truth = product(*exact, resolved(shape, side))
    grad = torch.randn(a.shape).to(dtype)
    wanted = torch.autograd.grad(truth, exact, torch.view_as_complex(grad.double()))
    leaves = [t.to(device).requires_grad_() for t in (a, x)]
    y = weft.cdgmm(*leaves, side)
    assert y.dtype == dtype
    near(y, pairs(truth.detach()))
    for mine, theirs in zip(torch.autograd.grad(y, leaves, grad.to(device)), wanted):
        near(mine, pairs(theirs), truth.numel())


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("shape, side", SIZES[:8], ids=str)
def test_views(shape, side, view, device):
    for dtype, f in ((torch.float32, weft.dgmm), (torch.complex64, weft.cdgmm)):
        compare(lambda a, x: f(a, x, side), data(shape, side, dtype, device), resolved(shape, side), VIEWS[view])
    a, x = (VIEWS[view](pairs(t)) for t in data(shape, side, torch.complex64, device))
    near(weft.cdgmm(a, x, side), wide(weft.cdgmm(a.contiguous(), x.contiguous(), side)))


def test_which_side(device):
    """By the length of x, the columns where both fit; a word says it else."""
    a, rows, columns = torch.randn(16, 8, device=device), torch.randn(16, device=device), torch.randn(8, device=device)
    for got, want in ((weft.dgmm(a, columns), a.mm(torch.diag(columns))), (weft.dgmm(a, rows), torch.diag(rows).mm(a)),
                      (weft.dgmm(a[:8], columns), a[:8].mm(torch.diag(columns))), (weft.dgmm(a[:8], columns, "left"), torch.diag(columns).mm(a[:8])),
                      (weft.dgmm(a[:8], columns, side="right"), a[:8].mm(torch.diag(columns)))):
        torch.testing.assert_close(got, want)
    z, v = torch.randn(3, 2, 2, device=device), torch.randn(2, 2, device=device)   # two complex columns, not pairs taken for columns
    torch.testing.assert_close(weft.cdgmm(z, v), pairs(torch.view_as_complex(z) * torch.view_as_complex(v)))


def test_old_tests(device):
    """The source's cases: a product on each side, gradients of a sum, and images of a scattering transform as long rows."""
    a, x = torch.randn(16, 8, device=device, requires_grad=True), torch.randn(8, device=device, requires_grad=True)
    for f, g in ((lambda: weft.dgmm(a, x), lambda: a.mm(torch.diag(x))), (lambda: weft.dgmm(a.t().contiguous(), x), lambda: torch.diag(x).mm(a.t()))):
        assert torch.equal(f(), g())
        torch.testing.assert_close(torch.autograd.grad(f().sum(), (a, x)), torch.autograd.grad(g().sum(), (a, x)))
    for n in (40, 20):
        images, filter = torch.randn(1, 3, n, n, 2, device=device), torch.randn(n, n, 2, device=device, requires_grad=True)
        images.requires_grad_()
        ours = weft.cdgmm(images.view(-1, n * n, 2), filter.view(-1, 2)).view_as(images)
        truth = pairs(torch.view_as_complex(images) * torch.view_as_complex(filter))
        torch.testing.assert_close(ours, truth)
        torch.testing.assert_close(*(torch.autograd.grad(y.sum(), (images, filter)) for y in (ours, truth)))


def test_lazy_conjugates(device):
    """A conjugate that PyTorch has only marked, and a negative."""
    a, x = data((3, 4, 5), None, torch.complex64, device)
    torch.testing.assert_close(weft.cdgmm(a.conj(), x.conj()), a.conj() * x.conj())
    torch.testing.assert_close(weft.dgmm(a.conj().imag, x.real), a.conj().imag * x.real)
    leaf = x.clone().requires_grad_()
    torch.testing.assert_close(torch.autograd.grad(weft.cdgmm(a, leaf.conj()).abs().sum(), leaf), torch.autograd.grad((a * leaf.conj()).abs().sum(), leaf))


def test_second_call_by_the_entry():
    """Without a gradient the C entry answers from the second call on: the same bits, for each side, and for other values in the same tensors."""
    entry, a, x = sys.modules["weft.functional.dgmm"]._dgmm, torch.randn(6, 6), torch.randn(6)
    for side in (None, "left", "right"):
        for t in (a, scattered(a)):
            first = W.dgmm(t, x, side)
            assert not _entry.available or torch.equal(entry(t, x, side), first)
            assert torch.equal(W.dgmm(t.mul_(2), x, side), first * 2)
    assert entry(a, x.clone().requires_grad_(), None) is NotImplemented
    assert entry(a, x[:5], None) is NotImplemented and entry(a, x, "top") is NotImplemented


def test_second_call_of_pairs_that_torch_does_not_take():
    """The answer for pairs at an even place is not kept for those at an odd one."""
    memory = torch.randn(64)
    even, odd = memory[2:26].view(3, 4, 2), memory[3:27].view(3, 4, 2)
    x = torch.randn(4, 2)
    for t in (even, odd, even, odd):
        near(weft.cdgmm(t, x), torch.view_as_real(torch.view_as_complex(t.clone()) * torch.view_as_complex(x)).double())


def test_special_values(device):
    nan, inf = float("nan"), float("inf")
    a, x = torch.tensor([[1.0, nan, inf], [0.0, -inf, 2.0]], device=device), torch.tensor([0.0, 2.0, -1.0], device=device)
    torch.testing.assert_close(weft.dgmm(a, x), a * x, equal_nan=True)


@pytest.mark.delegates
@pytest.mark.parametrize("view", ["plain", *VIEWS])
@pytest.mark.parametrize("shape, side", SIZES[:8], ids=str)
def test_by_torch(shape, side, view, device):
    """PyTorch's kernels through weft's operators: the same numbers and strides; sums of 16 bits stay weft's, and pairs that are torn apart."""
    change = VIEWS.get(view, lambda t: t)
    native = data(shape, side, torch.complex64, device)
    for f, tensors in ((weft.dgmm, data(shape, side, torch.float32, device)), (weft.dgmm, data(shape, side, torch.float16, device)), (weft.cdgmm, native),
                       (weft.cdgmm, [pairs(t) for t in native])):
        with weft.backends.pin("torch"):
            leaves = [change(t).detach().requires_grad_() for t in tensors]
            y = f(*leaves, side)
            whole = y.is_complex() or f is weft.dgmm or all(t.stride(-1) == 1 and t.storage_offset() % 2 == 0 for t in leaves)
            assert ("torch" in weft.backends.kernels()) == whole
            grad = torch.randn_like(y)
            grads = torch.autograd.grad(y, leaves, grad)
            out = scattered(torch.zeros_like(y))
            near(f(*(t.detach() for t in leaves), side, out=out), wide(y))
            assert y.is_contiguous()
        with weft.backends.flags(delegate=False):
            own = f(*leaves, side)
            assert "torch" not in weft.backends.kernels()
            of_own = torch.autograd.grad(own, leaves, grad)
        for a, b in zip((y, *grads), (own, *of_own)):
            assert a.stride() == b.stride()
            near(a, wide(b), y.numel())


def test_gradients_by_torch(device):
    """Which kernel a gradient takes is asked where it runs: of float32 PyTorch's if it is pinned, of 16 bits that of x is weft's."""
    for dtype, names in ((torch.float32, ["torch"] * 3), (torch.bfloat16, ["torch", "dgmm_", "dgmm_"])):
        a, x = data((2, 3, 4), None, dtype, device)
        for want, name in zip((1, 2, 3), names):
            with weft.backends.pin("torch"):
                torch.ops.weft.dgmm_backward(a, a, x, "", want)
                assert name in weft.backends.kernels()


def test_equal_problems_that_torch_takes_and_does_not():
    """Memory that begins at an odd place: the same problem, but no complex numbers to PyTorch."""
    memory = bytearray(256)
    first = -torch.frombuffer(memory, dtype=torch.uint8).data_ptr() % 16
    odd = torch.frombuffer(memory, dtype=torch.float32, offset=first + 4, count=25)[1:].view(3, 4, 2)
    even = torch.empty(64)[2:26].view(3, 4, 2)
    x = torch.randn(4, 2)
    odd.copy_(even.normal_())
    assert odd.storage_offset() == 1 and odd.data_ptr() % 16 == even.data_ptr() % 16 == 8
    with weft.backends.pin("torch"):
        y = weft.cdgmm(even, x)
        assert weft.backends.kernels() == "torch"
        torch.testing.assert_close(weft.cdgmm(odd, x), y)
        assert "torch" not in weft.backends.kernels()


# ---------------------------------------------------------------------------------------------- derivatives

def forms(shape, side, device):
    """The function and double leaves of each form: real, complex, pairs."""
    real, native = (data(shape, side, d, device) for d in (torch.float64, torch.complex128))
    for f, tensors in ((weft.dgmm, real), (weft.cdgmm, native), (weft.cdgmm, [pairs(t) for t in native])):
        yield (lambda a, x, f=f: f(a, x, side)), [t.detach().clone().requires_grad_() for t in tensors]


@pytest.mark.parametrize("shape, side", [((3, 4), None), ((2, 2, 3), "left"), ((2, 1, 3, 2), "right")], ids=str)
def test_gradcheck(shape, side, device):
    for f, leaves in forms(shape, side, device):
        assert torch.autograd.gradcheck(f, leaves, check_forward_ad=True, fast_mode=True)
        assert torch.autograd.gradgradcheck(f, leaves, check_fwd_over_rev=True, fast_mode=True)
        assert torch.autograd.gradcheck(f, leaves)
        for one in (0, 1):           # of one of the two alone
            some = [t if i == one else t.detach() for i, t in enumerate(leaves)]
            assert torch.autograd.gradcheck(f, some) and torch.autograd.gradgradcheck(f, some, fast_mode=True)


def test_third_derivative(device):
    for side in ("left", "right"):
        for f, (a, x) in forms((2, 3, 3), side, device):
            results = []
            turn = torch.view_as_complex if f(a, x).dim() > 3 else lambda t: t
            for g in (f, lambda a, x: product(turn(a), turn(x), side)):   # noqa: B023
                y = g(a, x).abs().pow(2).sum() if g is not f else turn(f(a, x)).abs().pow(2).sum()
                d, = torch.autograd.grad(y, x, create_graph=True)
                e, = torch.autograd.grad(d.abs().pow(2).sum(), a, create_graph=True)
                results.append(torch.autograd.grad(e.abs().pow(2).sum(), (a, x)))
            torch.testing.assert_close(*results, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("side", ["left", "right", None])
def test_vmap(side, device):
    """Of matrices, of diagonals and of both, also of their gradients: one call each."""
    a, x = torch.randn(3, 2, 4, 4, device=device), torch.randn(4, 3, device=device)
    truth = lambda a, x: product(a, x, side or "right")   # noqa: E731
    for f, g, t, v in ((weft.dgmm, truth, a, x), (weft.cdgmm, truth, torch.complex(a, a.flip(0)), torch.complex(x, x.flip(1)))):
        def ours(t, v):
            return f(t, v, side)   # noqa: B023

        def loss(h):
            return lambda t, v: h(t, v).abs().pow(2).sum()
        for dims, args in (((0, None), (t, v[:, 0])), ((None, 1), (t[0], v)), ((0, 1), (t, v)), ((1, 1), (t.movedim(0, 1), v))):
            torch.testing.assert_close(torch.vmap(ours, dims)(*args), torch.vmap(g, dims)(*args))
            torch.testing.assert_close(*(torch.vmap(torch.func.grad(loss(h), (0, 1)), dims)(*args) for h in (ours, g)))
    pair = lambda t: torch.view_as_real(t)   # noqa: E731
    z, w = torch.complex(a, a.flip(0)), torch.complex(x, x.flip(1))
    torch.testing.assert_close(torch.vmap(lambda a, x: weft.cdgmm(a, x, side), (0, 1))(pair(z), pair(w)), pair(torch.vmap(truth, (0, 1))(z, w)))


def test_torch_func(device):
    a, x = torch.randn(2, 3, 4, device=device, dtype=torch.float64), torch.randn(4, device=device, dtype=torch.float64)
    results = []
    for f in (weft.dgmm, torch.mul):
        loss = lambda a, x: f(a, x).pow(3).sum()   # noqa: B023, E731
        results.append([torch.func.jvp(f, (a, x), (a.cos(), x.sin())), torch.func.jacrev(f, 1)(a, x), torch.func.jacfwd(f, 1)(a, x),
                        torch.func.hessian(loss, 1)(a, x), torch.func.jvp(torch.func.grad(loss, (0, 1)), (a, x), (a.cos(), x.sin())),
                        torch.func.jvp(torch.func.grad(loss, 0), (a, x), (torch.zeros_like(a), x.sin()))])
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-9)


# ---------------------------------------------------------------------------------------------- the operators as PyTorch sees them

def operators(device, grad):
    for dtype in (torch.float32, torch.complex64):
        name = "cdgmm" if dtype.is_complex else "dgmm"
        for shape, side in (((2, 3, 5, 4), ""), ((3, 5), "left"), ((0, 3, 4), "right")):
            a, x = data(shape, side, dtype, device)
            forms = [(a, x)] if name == "dgmm" else [(a, x), (pairs(a).clone(), pairs(x).clone())]
            for t in forms:
                t = [u.requires_grad_(grad) for u in t]
                yield name, (*t, side)
                for want in (1, 2, 3):
                    yield f"{name}_backward", (t[0].detach().clone().requires_grad_(grad), *t, side, want)


@pytest.mark.parametrize("grad", [False, True])
def test_opcheck(grad, device):
    for i, (name, args) in enumerate(operators(device, grad)):
        if grad and i % 3:           # the checks with gradients are slow: every third, which are all kinds in turn
            continue
        torch.library.opcheck(getattr(torch.ops.weft, name).default, args)


def test_opcheck_out(device):
    for name, args in operators(device, False):
        if "backward" not in name:
            torch.library.opcheck(getattr(torch.ops.weft, name + "_out").default, (*args, torch.empty_like(args[0])))


def test_compile(device):
    """One graph for all sizes, with both gradients. Without a side the kernel looks at the sizes of the day: no guard, no second graph."""
    for f, dtype in ((weft.dgmm, torch.float32), (weft.cdgmm, torch.complex64)):
        for side in (None, "left"):
            torch.compiler.reset()
            graphs = []

            def backend(graph, inputs):
                from torch._dynamo.backends.debugging import aot_eager
                graphs.append(graph)   # noqa: B023
                return aot_eager(graph, inputs)

            def run(a, x):
                return f(a, x, side) * 2   # noqa: B023
            compiled = torch.compile(run, fullgraph=True, backend=backend, dynamic=True)
            for shape in ((2, 6, 5), (3, 7, 4)):
                results, tensors = [], data(shape, side, dtype, device)
                for g in (compiled, run):
                    leaves = [t.clone().requires_grad_() for t in tensors]
                    y = g(*leaves)
                    y.abs().square().sum().backward()
                    results.append([y.detach(), *(t.grad for t in leaves)])
                torch.testing.assert_close(*results, rtol=1e-5, atol=1e-5)
                assert results[0][0].stride() == results[1][0].stride()
            assert len(graphs) == 1


@pytest.mark.parametrize("kernel", ["torch", "ref"])
def test_compile_lazy_conjugates(kernel, device):
    torch.compiler.reset()
    a, x = data((3, 5, 4), None, torch.complex64, device)

    def f(a, x):
        return weft.cdgmm(a.conj(), x.conj())
    with weft.backends.pin("torch") if kernel == "torch" else weft.backends.flags(delegate=False):
        results = []
        for g in (torch.compile(f, fullgraph=True, backend="aot_eager"), f, lambda a, x: a.conj() * x.conj()):
            leaves = [t.clone().requires_grad_() for t in (a, x)]
            y = g(*leaves)
            results.append([y.detach().resolve_conj(), *torch.autograd.grad(y.real.square().sum() + y.imag.sum(), leaves)])
    torch.testing.assert_close(results[0], results[2])
    torch.testing.assert_close(results[1], results[2])


def test_compile_out_and_transforms(device):
    torch.compiler.reset()
    a, x = data((3, 5, 4), None, torch.float32, device)
    out = torch.empty_like(a)
    torch.compile(lambda a, x, out: weft.dgmm(a, x, out=out), fullgraph=True, backend="aot_eager")(a, x, out)
    assert torch.equal(out, weft.dgmm(a, x))
    for transform in (lambda f: torch.func.grad(lambda a, x: f(a, x).square().sum(), (0, 1)), lambda f: lambda a, x: torch.func.jvp(f, (a, x), (a, x))[1],
                      lambda f: torch.vmap(f, (0, None))):
        torch.testing.assert_close(torch.compile(transform(weft.dgmm), fullgraph=True, backend="aot_eager")(a, x), transform(weft.dgmm)(a, x))


def test_export(device):
    class Net(torch.nn.Module):
        def forward(self, a, x, z, v):
            return weft.dgmm(a, x), weft.cdgmm(z, v, "left")
    args = (*data((3, 5, 4), None, torch.float32, device), *data((6, 3), "left", torch.complex64, device))
    program = torch.export.export(Net(), args, dynamic_shapes=({0: torch.export.Dim("n", min=1, max=64)}, None, None, None))
    assert {n.target for n in program.graph.nodes} >= {torch.ops.weft.dgmm.default, torch.ops.weft.cdgmm.default}
    longer = (torch.randn(7, 5, 4, device=device), *args[1:])
    for given in (args, longer):
        torch.testing.assert_close(program.module()(*given), Net()(*given))


@pytest.mark.parametrize("autocast", [torch.bfloat16, torch.float16], ids=lambda d: str(d)[6:])
def test_autocast(autocast, device):
    """A product of two types is of the wider one, as PyTorch's; else the type stays."""
    a, x = data((3, 5, 4), None, torch.float32, device)
    with torch.autocast(device.type, dtype=autocast):
        for left in (torch.float32, torch.float64, autocast):
            for right in (torch.float32, torch.float64, autocast):
                t, v = a.to(left).requires_grad_(), x.to(right).requires_grad_()
                y, twin = weft.dgmm(t, v), t * v
                assert y.dtype == twin.dtype
                torch.testing.assert_close(y, twin, rtol=2e-2, atol=2e-2)
                assert [g.dtype for g in torch.autograd.grad(y.sum(), (t, v))] == [left, right]


def test_subclasses_and_modes():
    class Marked(torch.Tensor):
        pass

    class Counts(torch.overrides.TorchFunctionMode):
        seen: list = []

        def __torch_function__(self, function, types, args=(), kwargs=None):
            self.seen.append(function)
            return function(*args, **(kwargs or {}))
    a, x = data((3, 5, 4), None, torch.complex64)
    for f, t, v in ((weft.dgmm, a.real, x.real), (weft.cdgmm, a, x)):
        assert type(f(t, v.as_subclass(Marked))) is Marked
        with Counts() as mode:
            f(t, v)
        assert f in mode.seen


def test_signatures():
    for f in (weft.dgmm, weft.cdgmm):
        parameters = inspect.signature(f).parameters
        assert list(parameters) == ["input", "x", "side", "out"] and parameters["side"].default is None
    assert weft.dgmm is W.dgmm and weft.cdgmm is W.cdgmm


# ---------------------------------------------------------------------------------------------- out

def test_out(device):
    """Dense, with gaps, or with a batch that is not one axis by strides; the same tensor comes back and its version grows."""
    for dtype, f in ((torch.float32, weft.dgmm), (torch.complex64, weft.cdgmm)):
        a, x = data((2, 3, 5, 4), None, dtype, device)
        want = f(a, x)
        for out in (torch.empty_like(a), scattered(torch.zeros_like(a)), VIEWS["batch-turned"](torch.zeros_like(a)), VIEWS["transposed"](torch.zeros_like(a))):
            version = out._version
            assert f(a, x, out=out) is out and out._version > version
            near(out, wide(want))


# ---------------------------------------------------------------------------------------------- wrong inputs

A, V = torch.ones(2, 3, 4), torch.ones(4)
Z, P = torch.ones(3, 4, dtype=torch.complex64), torch.ones(3, 4, 2)
WRONG = [
    ("dgmm", (A, torch.ones(5)), {}, RuntimeError, "x: has 5 elements, allowed: 4, one for each column, or 3, one for each row"),
    ("dgmm", (A, V, "left"), {}, RuntimeError, "x: has 4 elements, allowed with side 'left': 3, one for each row"),
    ("dgmm", (A, torch.ones(3), "right"), {}, RuntimeError, "x: has 3 elements, allowed with side 'right': 4, one for each column"),
    ("dgmm", (A, V, "top"), {}, ValueError, "dgmm: side is 'top', allowed: None, 'left' or 'right'"),
    ("dgmm", (A, V, 1), {}, ValueError, "dgmm: side is 1, allowed: None, 'left' or 'right'"),
    ("dgmm", (A, V, []), {}, ValueError, "dgmm: side is [], allowed: None, 'left' or 'right'"),
    ("dgmm", (A, V, True), {}, ValueError, "dgmm: side is True, allowed: None, 'left' or 'right'"),
    ("dgmm", (A, V, ""), {}, ValueError, "dgmm: side is '', allowed: None, 'left' or 'right'"),
    ("dgmm", (V, V), {}, RuntimeError, "input: has 1 dimensions, allowed: 2 or more"),
    ("dgmm", (A, A), {}, RuntimeError, "x: has 3 dimensions, allowed: 1"),
    ("dgmm", (A, torch.tensor(1.0)), {}, RuntimeError, "x: has 0 dimensions, allowed: 1"),
    ("dgmm", (A, V.double()), {}, RuntimeError, "x: is float64, allowed: the type of input, float32"),
    ("dgmm", (A.int(), V.int()), {}, RuntimeError, "input: is int32, allowed: float32, float64, float16 or bfloat16; cdgmm takes complex numbers"),
    ("dgmm", (Z, Z[0]), {}, RuntimeError, "input: is complex64, allowed: float32, float64, float16 or bfloat16; cdgmm takes complex numbers"),
    ("dgmm", ([1.0], V), {}, TypeError, "dgmm: input is list, allowed: Tensor"),
    ("dgmm", (A, 2.0), {}, TypeError, "dgmm: x is float, allowed: Tensor"),
    ("dgmm", (A, None), {}, TypeError, "dgmm: x is NoneType, allowed: Tensor"),
    ("dgmm", (V[:1].expand(2**21, 2**21, 2, 4), V), {}, RuntimeError, "input: has more than 2^40 matrices or 2^63 elements, allowed: fewer"),
    ("dgmm", (torch.empty(0, 1, 1).expand(0, 2**40, 2**30), V[:1].expand(2**30)), {}, RuntimeError, "input: has more than 2^40 matrices or 2^63 elements, allowed: fewer"),
    ("dgmm", (V[:1].expand(2**41, 4), V), {}, RuntimeError, "input: has 2199023255552 elements along dimension 0, allowed: at most 2^40"),
    ("cdgmm", (Z, torch.ones(5, dtype=torch.complex64)), {}, RuntimeError, "x: has 5 elements, allowed: 4, one for each column, or 3, one for each row"),
    ("cdgmm", (Z, Z[0], "left"), {}, RuntimeError, "x: has 4 elements, allowed with side 'left': 3, one for each row"),
    ("cdgmm", (P, P[0], "left"), {}, RuntimeError, "x: has 4 elements, allowed with side 'left': 3, one for each row"),
    ("cdgmm", (Z, V), {}, RuntimeError, "x: is float32, allowed: the type of input, complex64"),
    ("cdgmm", (Z, P[0]), {}, RuntimeError, "x: is float32, allowed: the type of input, complex64"),
    ("cdgmm", (Z, Z), {}, RuntimeError, "x: has 2 dimensions, allowed: 1"),
    ("cdgmm", (P, V), {}, RuntimeError, "x: has 1 dimensions, allowed: 2, the last for the two halves of a number"),
    ("cdgmm", (P[0], P[0]), {}, RuntimeError, "input: has 2 dimensions, allowed: 3 or more, the last for the two halves of a number"),
    ("cdgmm", (A, torch.ones(3, 4)), {}, RuntimeError, "input: has 4 elements along its last dimension, allowed: 2, the halves of a complex number"),
    ("cdgmm", (P, torch.ones(4, 3)), {}, RuntimeError, "x: has 3 elements along its last dimension, allowed: 2, the halves of a complex number"),
    ("cdgmm", (P.long(), P[0].long()), {}, RuntimeError, "input: is int64, allowed: float32, float64, float16 or bfloat16 in pairs, complex64 or complex128"),
    ("cdgmm", (P, P[0], "up"), {}, ValueError, "cdgmm: side is 'up', allowed: None, 'left' or 'right'"),
    ("cdgmm", (3, V), {}, TypeError, "cdgmm: input is int, allowed: Tensor"),
    ("dgmm", (A, V), {"out": 3}, TypeError, "out: is int, allowed: Tensor or None"),
    ("dgmm", (A, V), {"out": A[0]}, RuntimeError, "out: has the shape [3, 4], allowed: the shape of the result, [2, 3, 4]"),
    ("dgmm", (A, V), {"out": A.half()}, RuntimeError, "out: is float16, allowed: the type of the result, float32"),
    ("dgmm", (A, V), {"out": V.expand(2, 3, 4)}, RuntimeError, "out: is expanded along dimension 0, allowed: memory for every element"),
    ("dgmm", (A, V), {"out": A}, RuntimeError, "out: shares memory with input, allowed: memory of its own"),
    ("dgmm", (A, V.clone().requires_grad_()), {"out": A.clone()}, RuntimeError, "out: given with a tensor that requires grad"),
    ("dgmm", (A, V.to("meta")), {}, RuntimeError, "x: is on meta, allowed: the device of input, cpu"),
    ("cdgmm", (Z, Z[0].clone()), {"out": Z.to(torch.complex128)}, RuntimeError, "out: is complex128, allowed: the type of the result, complex64"),
]


@pytest.mark.parametrize("name, args, options, error, text", WRONG, ids=lambda v: v if isinstance(v, str) else "")
def test_wrong(name, args, options, error, text):
    kept = [t.clone() for t in args if isinstance(t, torch.Tensor) and t.numel() < 99]
    with pytest.raises(error, match=re.escape(text)):
        getattr(W, name)(*args, **options)
    given = [t for t in args if isinstance(t, torch.Tensor) and t.numel() < 99]
    assert all(t.device.type == "meta" or torch.equal(t, k) for t, k in zip(given, kept))


OPERATOR = [
    (lambda o: o.dgmm(A, V, "up"), "side: is 'up', allowed: 'left', 'right' or '' for either"),
    (lambda o: o.dgmm(A, torch.ones(5), ""), "x: has 5 elements, allowed: 4, one for each column, or 3, one for each row"),
    (lambda o: o.dgmm_backward(A[0], A, V, "", 3), "grad_output: has the shape [3, 4], allowed: that of input, [2, 3, 4]"),
    (lambda o: o.dgmm_backward(A.double(), A, V, "", 3), "grad_output: is float64, allowed: the type of input, float32"),
    (lambda o: o.dgmm_backward(A, A, V, "", 4), "want: is 4, allowed: 0 to 3"),
    (lambda o: o.cdgmm_backward(P, A, V, "", 3), "input: has 4 elements along its last dimension, allowed: 2"),
]


@pytest.mark.parametrize("run, text", OPERATOR, ids=[t[:24] for _, t in OPERATOR])
def test_wrong_operators(run, text):
    """In the words of the kernel, and of what stands for it while tracing."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    for mode in (torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True)):
        with mode, pytest.raises(RuntimeError, match=re.escape(text)):
            run(torch.ops.weft)


def test_nothing_is_asked(device):
    """want 0: two results without elements."""
    a, x = data((3, 4), None, torch.float32, device)
    assert [tuple(t.shape) for t in torch.ops.weft.dgmm_backward(a, a, x, "", 0)] == [(0,), (0,)]
