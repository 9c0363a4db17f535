"""softmax and log_softmax beside their twins: every dimension, rank, type, layout and option; derivatives, traces, modules, wrong input."""
from __future__ import annotations

import copy
import pickle
import re
import warnings

import pytest
import torch
import torch.nn.functional as F

import weft
import weft.functional as W
from cases import DTYPES, channels_last, close, scattered, shifted

NAMES = ["softmax", "log_softmax"]
SHAPES = [(7,), (3, 5), (2, 5, 3), (2, 3, 4, 5), (2, 3, 2, 4, 3), (2, 1, 3, 2, 1, 4, 2)]
GRADIENT = {"softmax": torch._softmax_backward_data, "log_softmax": torch._log_softmax_backward_data}
func = torch.func


def pair(name):
    return getattr(W, name), getattr(F, name)


def check(name, x, dim, dtype=None):
    """Result, strides and gradient. Of 16 bits the result is too coarse for the exact gradient: there the twin's, from the same result."""
    ours, twin = pair(name)
    x = x.detach().requires_grad_()
    exact = x.detach().cpu().double().requires_grad_()
    y, want = ours(x, dim, dtype=dtype), twin(exact, dim)
    dy = torch.randn(want.shape).to(y.dtype)
    dx, = torch.autograd.grad(y, x, dy.to(x.device))
    close(y.detach().cpu(), want.detach())
    like = twin(x.detach(), dim, dtype=dtype)
    assert y.stride() == like.stride() and y.dtype == like.dtype and dx.dtype == x.dtype
    if torch.finfo(x.dtype).bits > 16:
        close(dx.cpu(), torch.autograd.grad(want, exact, dy.double())[0])
    elif y.dtype == x.dtype:
        close(dx.cpu(), GRADIENT[name](dy.double(), y.detach().cpu().double(), dim, torch.float64))


# ---------------------------------------------------------------------------------------------- results

@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d)[6:])
def test_every_dimension(name, shape, dtype, device):
    for dim in range(-len(shape), len(shape)):
        check(name, (3 * torch.randn(shape)).to(device, dtype), dim)


VIEWS = {
    "channels-last": channels_last,
    "scattered": scattered,
    "shifted": shifted,
    "transposed": lambda t: t.transpose(1, -1),
    "reversed": lambda t: t.permute(*reversed(range(t.dim()))),
    "sliced": lambda t: t[:, 1:, ::2],
    "expanded": lambda t: t[:, :1].expand(t.shape),
    "expanded-batch": lambda t: t[:1].expand(t.shape),
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("view", VIEWS)
def test_views(name, view, device):
    for shape in ((2, 3, 4), (2, 3, 4, 6), (2, 3, 2, 4, 3)):
        for dim in range(len(shape)):
            for dtype in (torch.float32, torch.bfloat16):
                check(name, VIEWS[view](torch.randn(shape).to(device, dtype)), dim)


@pytest.mark.parametrize("name", NAMES)
def test_more_axes_than_a_problem_has(name, device):
    """Seven axes of which no two can be folded, in the input, in the gradient and in out."""
    ours, twin = pair(name)
    x = torch.randn(2, 3, 2, 3, 2, 3, 2, device=device).permute(6, 2, 4, 0, 5, 1, 3)
    for dim in range(7):
        check(name, x, dim)
        out = torch.full((2, 3, 2, 3, 2, 3, 2), float("nan"), device=device).permute(6, 2, 4, 0, 5, 1, 3)
        assert ours(x, dim, out=out) is out
        torch.testing.assert_close(out, twin(x, dim))
    y = x.detach().requires_grad_()
    grad = torch.randn_like(x).permute(6, 2, 4, 0, 5, 1, 3)
    torch.testing.assert_close(*(torch.autograd.grad(f(y, 3).permute(6, 2, 4, 0, 5, 1, 3), y, grad)[0] for f in (ours, twin)))


@pytest.mark.parametrize("name", NAMES)
def test_without_dimensions_or_elements(name, device):
    ours, twin = pair(name)
    for shape in ((), (0,), (0, 3), (3, 0), (2, 0, 3), (0, 2, 3, 4)):
        for dim in range(-max(len(shape), 1), max(len(shape), 1)):
            x = torch.randn(shape, device=device, requires_grad=True)
            y, want = ours(x, dim), twin(x, dim)
            assert y.shape == want.shape and y.stride() == want.stride() and torch.equal(y, want)
            assert torch.equal(*(torch.autograd.grad(t.sum(), x)[0] for t in (y, want)))
    with pytest.warns(UserWarning, match="Implicit dimension choice"):
        assert torch.equal(ours(torch.tensor(2.0, device=device)), torch.tensor(float(name == "softmax"), device=device))


@pytest.mark.parametrize("name", NAMES)
def test_the_last_rank_and_beyond(name, device):
    ours, twin = pair(name)
    for rank in (64, 65):
        x = torch.randn([1] * (rank - 1) + [2], device=device)
        assert ours(x, -1).shape == x.shape
        torch.testing.assert_close(ours(x, -1).flatten(), twin(x.flatten(), 0))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("given", [*DTYPES, torch.int64, torch.uint8, torch.bool], ids=lambda d: str(d)[6:])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d)[6:])
def test_dtype(name, given, dtype, device):
    ours, twin = pair(name)
    x = (2 * torch.randn(2, 5, 3, device=device)).to(given)
    y, want = ours(x, 1, dtype=dtype), twin(x.to(dtype).double(), 1)
    assert y.dtype == dtype
    close(y, want)
    if given.is_floating_point:
        check(name, x, 1, dtype if torch.finfo(dtype).bits >= torch.finfo(given).bits else None)


@pytest.mark.parametrize("name", NAMES)
def test_a_narrower_type_is_taken_first(name, device):
    """What overflows on the way gives what PyTorch gives."""
    ours, twin = pair(name)
    x = torch.tensor([1e6, 2.0], device=device)
    assert ours(x, 0, dtype=torch.float16).isnan().all() and twin(x, 0, dtype=torch.float16).isnan().all()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("rank", range(6))
def test_implicit_dim(name, rank, device):
    x = torch.randn([2] * rank, device=device)
    found = []
    for f in (*pair(name), *(getattr(m, {"softmax": "Softmax", "log_softmax": "LogSoftmax"}[name])() for m in (weft.nn, torch.nn))):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found.append((f(x), str(caught[0].message), caught[0].filename))
    for ours, twin in (found[:2], found[2:]):
        torch.testing.assert_close(ours[0], twin[0])
        assert ours[1:] == twin[1:]


@pytest.mark.parametrize("name", NAMES)
def test_special_values(name, device):
    ours, twin = pair(name)
    nan, inf = float("nan"), float("inf")
    x = torch.tensor([[nan, 1, 2], [inf, 1, 2], [inf, inf, 0], [-inf, 1, 2], [-inf, -inf, -inf], [6e4, -6e4, 0], [0, -0.0, 0]], device=device)
    for dtype in DTYPES:
        torch.testing.assert_close(ours(x.to(dtype), 1), twin(x.to(dtype), 1), equal_nan=True)


# ---------------------------------------------------------------------------------------------- derivatives

@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape, dim", [((), 0), ((4,), 0), ((2, 3), 1), ((2, 3, 2), 1), ((3, 2, 2), 0)], ids=str)
def test_gradcheck(name, shape, dim, device):
    x = torch.randn(shape, dtype=torch.float64, device=device, requires_grad=True)

    def f(x):
        return pair(name)[0](x, dim)
    assert torch.autograd.gradcheck(f, x, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(f, x, check_fwd_over_rev=True)


@pytest.mark.parametrize("name", NAMES)
def test_third_derivative(name, device):
    x = torch.randn(2, 3, 2, dtype=torch.float64, device=device, requires_grad=True)
    results = []
    for f in pair(name):
        g, = torch.autograd.grad(f(x, 1).pow(3).sum(), x, create_graph=True)
        h, = torch.autograd.grad(g.pow(2).sum(), x, create_graph=True)
        results.append(torch.autograd.grad(h.pow(2).sum(), x)[0])
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_of_a_wider_result(name, device):
    """A second derivative where types differ on both sides of the operator."""
    x = torch.randn(2, 5, device=device).half().requires_grad_()
    results = []
    for f in pair(name):
        g, = torch.autograd.grad(f(x, 1, dtype=torch.float64).pow(2).sum(), x, create_graph=True)
        results.append((g, torch.autograd.grad(g.pow(2).sum(), x)[0]))
    torch.testing.assert_close(*results, rtol=4e-3, atol=4e-3)
    assert results[0][1].dtype == torch.float16


TRANSFORMS = {
    "grad": lambda f, x: func.grad(lambda x: f(x).pow(2).sum())(x),
    "hessian": lambda f, x: func.hessian(lambda x: f(x).pow(3).sum())(x),
    "jacfwd": lambda f, x: func.jacfwd(f)(x),
    "jacrev": lambda f, x: func.jacrev(f)(x),
    "jvp-grad": lambda f, x: func.jvp(func.grad(lambda x: f(x).pow(3).sum()), (x,), (x,))[1],
    "grad-jvp": lambda f, x: func.grad(lambda x: func.jvp(f, (x,), (x,))[1].pow(2).sum())(x),
    "vmap": lambda f, x: func.vmap(f, 1)(x),
    "vmap-grad": lambda f, x: func.vmap(func.grad(lambda x: f(x).pow(2).sum()), 2, 1)(x),
    "vmap-vmap": lambda f, x: func.vmap(func.vmap(f), 1)(torch.stack([x, 2 * x])),
    "functionalize": lambda f, x: func.functionalize(func.grad(lambda x: f(x).pow(2).sum()))(x),
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_torch_func(name, transform, device):
    x = torch.randn(2, 3, 2, dtype=torch.float64, device=device)
    for dim in (-1, 0, 1):
        ours, want = (TRANSFORMS[transform](lambda x: f(x, dim), x) for f in pair(name))   # noqa: B023
        torch.testing.assert_close(ours, want, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_vmap_of_numbers(name, device):
    x = torch.randn(3, device=device)
    assert torch.equal(*(func.vmap(lambda x: f(x, 0))(x) for f in pair(name)))   # noqa: B023
    assert torch.equal(*(func.vmap(func.grad(lambda x: f(x, -1)))(x) for f in pair(name)))   # noqa: B023


@pytest.mark.parametrize("name", NAMES)
def test_only_the_result_is_kept(name, device):
    kept = []
    x = torch.randn(2, 3, 4, device=device).mul(1).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        y = pair(name)[0](x, 1)
    assert [t.data_ptr() for t in kept] == [y.data_ptr()]


# ---------------------------------------------------------------------------------------------- traces

def _samples(device, grad):
    x = torch.randn(2, 3, 4, 5, device=device)
    for i, t in enumerate((x, channels_last(x), x[:, :, ::2], torch.randn((), device=device))):
        name, dim, dtype = NAMES[i % 2], 1 if t.dim() else 0, (torch.float32, torch.float64)[i // 2]
        t = t.detach().requires_grad_(grad)
        yield name, (t, dim, dtype)
        yield "softmax_backward", (torch.randn_like(t).requires_grad_(grad), t, dim, name == "log_softmax", torch.float16)
        if not grad:
            yield name + "_out", (t, dim, dtype, torch.empty_like(t, dtype=dtype))


@pytest.mark.parametrize("grad", [False, True])
def test_opcheck(grad, device):
    for name, args in _samples(device, grad):
        torch.library.opcheck(getattr(torch.ops.weft, name).default, args)


@pytest.mark.parametrize("name", NAMES)
def test_compile(name, device):
    torch.compiler.reset()
    from torch._dynamo.testing import CompileCounterWithBackend
    ours = pair(name)[0]
    counter = CompileCounterWithBackend("aot_eager")

    def f(x):
        return ours(x, 1, dtype=torch.float64) * ours(x, -1)
    compiled = torch.compile(f, fullgraph=True, backend=counter, dynamic=True)
    for shape in ((2, 3, 4), (5, 6, 7), (3, 8, 9)):
        x = torch.randn(shape, device=device, requires_grad=True)
        results = [(y.detach(), y.stride(), torch.autograd.grad(y.square().sum(), x)[0]) for y in (compiled(x), f(x))]
        torch.testing.assert_close(*results)
    assert counter.frame_count == 1
    still = torch.compile(lambda x: ours(x, 0), fullgraph=True, backend="aot_eager")
    x = channels_last(torch.randn(2, 3, 4, 5, device=device)).requires_grad_()
    torch.testing.assert_close(*(torch.autograd.grad(g(x).square().sum(), x)[0] for g in (still, lambda x: ours(x, 0))))


def test_sizes_that_nobody_knows(device):
    x = torch.randn(2, 3, 6, device=device)
    for axis in (0, 1, 2):
        torch._dynamo.decorators.mark_unbacked(x, axis)
    compiled = torch.compile(lambda x: W.softmax(x, 1) + W.log_softmax(x, -1), fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x), F.softmax(x, 1) + F.log_softmax(x, -1))


@pytest.mark.parametrize("name", ["Softmax", "LogSoftmax"])
def test_export(name, device):
    module, x = getattr(weft.nn, name)(1), torch.randn(2, 3, 4, device=device)
    program = torch.export.export(module, (x,), dynamic_shapes=({0: torch.export.Dim("n", min=2), 2: torch.export.Dim("w", min=2)},))
    x = torch.randn(5, 3, 7, device=device)
    torch.testing.assert_close(program.module()(x), module(x))


def test_fake_and_meta_tensors():
    from torch._subclasses.fake_tensor import FakeTensorMode
    for f in (W.softmax, W.log_softmax):
        with FakeTensorMode():
            x = torch.empty(2, 3, 4, 5).to(memory_format=torch.channels_last)
            assert f(x, 1).stride() == (60, 20, 5, 1) and f(x, 1, dtype=torch.float64).dtype == torch.float64
        assert f(torch.empty(2, 3, device="meta"), 1).shape == (2, 3)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=lambda d: str(d)[6:])
def test_autocast(name, dtype, device):
    ours, twin = pair(name)
    with torch.autocast(device.type, dtype=dtype):
        for given in DTYPES:
            x = torch.randn(2, 3, device=device).to(given)
            assert ours(x, 1).dtype == twin(x, 1).dtype and ours(x, 1, dtype=dtype).dtype == twin(x, 1, dtype=dtype).dtype
    assert W.softmax(torch.randn(2, device="meta"), 0).device.type == "meta"


# ---------------------------------------------------------------------------------------------- modules

@pytest.mark.parametrize("name", ["Softmax", "LogSoftmax"])
def test_modules(name, device):
    ours, twin = getattr(weft.nn, name)(dim=1), getattr(torch.nn, name)(dim=1)
    x = torch.randn(2, 3, 4, 5, device=device)
    for t in (x, channels_last(x), x.double()):
        torch.testing.assert_close(ours(t), twin(t))
        assert ours(t).stride() == twin(t).stride()
    assert isinstance(ours, type(twin)) and repr(ours) == f"weft.{twin!r}" and ours.to(device).state_dict() == twin.state_dict()
    for other in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert torch.equal(other(x), ours(x)) and repr(other) == repr(ours)
    twin.__class__ = type(ours)
    assert torch.equal(twin(x), ours(x))
    traced = torch.fx.symbolic_trace(torch.nn.Sequential(ours))
    assert torch.equal(traced(x), ours(x)) and [n.op for n in traced.graph.nodes] == ["placeholder", "call_module", "output"]


def test_subclasses_and_modes():
    class Marked(torch.Tensor):
        pass
    x = torch.randn(2, 3)
    for f in (W.softmax, W.log_softmax):
        y = f(x.as_subclass(Marked), 1, dtype=torch.float64)
        assert type(y) is Marked and y.dtype == torch.float64


# ---------------------------------------------------------------------------------------------- out

@pytest.mark.parametrize("name", NAMES)
def test_out(name, device):
    ours, twin = pair(name)
    x = torch.randn(2, 3, 4, 5, device=device)
    want = twin(x, 1)
    other = torch.empty(2, 4, 3, 5, device=device).transpose(1, 2)
    for out in (torch.empty_like(x), channels_last(torch.empty_like(x)), scattered(torch.empty_like(x)), other):
        version = out._version
        assert ours(x, 1, out=out) is out and out._version > version
        torch.testing.assert_close(out, want)
    wide = torch.empty(2, 3, 4, 5, dtype=torch.float64, device=device)
    torch.testing.assert_close(ours(x, 1, dtype=torch.float64, out=wide), twin(x.double(), 1))
    ours(x, 1, out=x)
    torch.testing.assert_close(x, want)


# ---------------------------------------------------------------------------------------------- wrong input

def x(*shape, **kw):
    return torch.randn(shape or (2, 3, 4), **kw)


ALLOWED = "allowed: float32, float64, float16 or bfloat16"
# what is wrong: a call with the namespace of the function, the class and text of weft's error
WRONG = {
    "dim-high": (lambda f: f(x(), 3), IndexError, "dim: is 3, allowed: -3 to 2"),
    "dim-low": (lambda f: f(x(), -4), IndexError, "dim: is -4, allowed: -3 to 2"),
    "dim-of-a-number": (lambda f: f(x(1)[0], 1), IndexError, "dim: is 1, allowed: -1 to 0"),
    "dim-float": (lambda f: f(x(), 1.0), TypeError, "dim: is 1.0, allowed: an int, or None"),
    "dim-bool": (lambda f: f(x(), True), TypeError, "dim: is True, allowed: an int, or None"),
    "dim-word": (lambda f: f(x(), "a"), TypeError, "dim: is 'a'"),
    "dim-tuple": (lambda f: f(x(), (1,)), TypeError, "dim: is (1,)"),
    "input-kind": (lambda f: f([1.0], 0), AttributeError, "input: is list, allowed: Tensor"),
    "input-none": (lambda f: f(None, 0), AttributeError, "input: is NoneType, allowed: Tensor"),
    "input-int": (lambda f: f(x().long(), 1), NotImplementedError, f"input: is int64, {ALLOWED}"),
    "input-bool": (lambda f: f(x() > 0, 1), NotImplementedError, f"input: is bool, {ALLOWED}"),
    "input-complex": (lambda f: f(x().to(torch.complex64), 1), NotImplementedError, f"input: is complex64, {ALLOWED}"),
    "input-8-bits": (lambda f: f(x().to(torch.float8_e5m2), 1), NotImplementedError, f"input: is float8_e5m2, {ALLOWED}"),
    "dtype-int": (lambda f: f(x(), 1, dtype=torch.int64), NotImplementedError, f"dtype: is int64, {ALLOWED}"),
    "dtype-complex": (lambda f: f(x(), 1, dtype=torch.complex64), NotImplementedError, f"dtype: is complex64, {ALLOWED}"),
    "dtype-kind": (lambda f: f(x(), 1, dtype="f4"), TypeError, "dtype: is 'f4', allowed: a torch.dtype, or None"),
}
WRONG_OUT = {
    "kind": (lambda f: f(x(), 1, out=3), TypeError, "out: is int, allowed: Tensor or None"),
    "shape": (lambda f: f(x(), 1, out=x(2, 3, 5)), RuntimeError, "out: has the shape [2, 3, 5], allowed: the shape of the result, [2, 3, 4]"),
    "type": (lambda f: f(x(), 1, out=x().double()), RuntimeError, "out: is float64, allowed: the type of the result, float32"),
    "expanded": (lambda f: f(x(), 1, out=x(2, 1, 4).expand(2, 3, 4)), RuntimeError, "out: is expanded along dimension 1"),
    "grad": (lambda f: f(x(requires_grad=True), 1, out=x()), RuntimeError, "out: given with a tensor that requires grad"),
    "device": (lambda f: f(x(), 1, out=x(device="meta")), RuntimeError, "out: is on meta, allowed: the device of the result, cpu"),
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("wrong", [*WRONG, *WRONG_OUT])
def test_wrong(name, wrong):
    ours, twin = pair(name)
    run, kind, text = (WRONG | WRONG_OUT)[wrong]
    with pytest.raises(kind, match=re.escape(text)) as raised:
        run(ours)
    if wrong in WRONG:
        with pytest.raises((kind, RuntimeError) if wrong == "dim-word" else kind) as expected:   # a name of a dimension, to older PyTorch
            run(twin)
        assert raised.type is expected.type or wrong == "dim-word"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_in_a_trace(name, wrong):
    from torch._subclasses.fake_tensor import FakeTensorMode
    run, kind, text = WRONG[wrong]
    with FakeTensorMode(), pytest.raises(kind, match=re.escape(text)):
        run(pair(name)[0])


def test_out_over_the_input():
    memory = torch.randn(30)
    for f in (W.softmax, W.log_softmax):
        with pytest.raises(RuntimeError, match="out: shares memory with input, allowed: memory of its own"):
            f(memory[:24].view(2, 12), 1, out=memory[3:27].view(2, 12))


ops = torch.ops.weft
OPERATOR = {
    "dim": (lambda: ops.softmax(x(), 3, torch.float32), "dim: is 3, allowed: -3 to 2"),
    "dim-huge": (lambda: ops.log_softmax(x(), 2**62, torch.float32), "dim: is 4611686018427387904, allowed: -3 to 2"),
    "dtype": (lambda: ops.softmax(x(), 0, torch.int32), f"dtype: is int32, {ALLOWED}"),
    "input": (lambda: ops.softmax(x().long(), 0, torch.float32), f"input: is int64, {ALLOWED}"),
    "rank": (lambda: ops.softmax(x(*[1] * 65), 0, torch.float32), "input: has 65 dimensions, allowed: at most 64"),
    "size": (lambda: ops.softmax(x(1).expand(2**41), 0, torch.float32), "input: has 2199023255552 elements along dimension 0, allowed: at most 2^40"),
    "grad-shape": (lambda: ops.softmax_backward(x(2, 3), x(), 1, False, torch.float32), "grad_output: has the shape [2, 3], allowed: [2, 3, 4]"),
    "grad-number": (lambda: ops.softmax_backward(x(1)[0], x(5), 0, False, torch.float32), "grad_output: has the shape [], allowed: [5]"),
    "grad-row": (lambda: ops.softmax_backward(x(5), x(1)[0], 0, False, torch.float32), "grad_output: has the shape [5], allowed: []"),
    "grad-type": (lambda: ops.softmax_backward(x().double(), x(), 1, True, torch.float32), "grad_output: is float64, allowed: the type of output, float32"),
}


@pytest.mark.parametrize("wrong", OPERATOR)
def test_wrong_operator(wrong):
    run, text = OPERATOR[wrong]
    with pytest.raises(RuntimeError, match=re.escape(text)):
        run()
