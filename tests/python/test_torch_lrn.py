"""Local response normalisation through PyTorch against torch.nn.functional.local_response_norm and torch.nn: values, gradients, types, layouts."""
from __future__ import annotations

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import func
from torch.library import opcheck

import weft
import weft.functional as W
from cases import DTYPES, channels_last, close, scattered, shifted

SHAPES = [(2, 5, 4), (2, 7, 3, 5), (1, 3, 2, 3, 4), (3, 1, 6), (2, 3, 2, 2, 3, 2)]
VIEWS = {"dense": lambda t: t, "last": channels_last, "gaps": scattered, "unaligned": shifted,
         "batch-inside": lambda t: t.movedim(0, -1).contiguous().movedim(-1, 0), "expanded": lambda t: t[:, :1].expand_as(t)}
SETTINGS = {"default": {}, "strong": {"alpha": 0.5, "beta": 0.9, "k": 1.5}, "root": {"alpha": 2, "beta": 0.5, "k": 0.1}, "negative": {"beta": -1.0, "k": True}}


def results(function, x, dy, *args, **options):
    leaf = x.detach().requires_grad_()
    y = function(leaf, *args, **options)
    return y.detach(), torch.autograd.grad(y, leaf, dy)[0]


def compare(x, size, **options):
    """weft beside the twin in float64 on the CPU."""
    dy = torch.randn(x.shape).to(x)
    ours = results(W.local_response_norm, x, dy, size, **options)
    for mine, theirs in zip(ours, results(F.local_response_norm, x.double().cpu().contiguous(), dy.double().cpu(), size, **options)):
        assert mine.dtype == x.dtype
        close(mine.cpu(), theirs)


# ---------------------------------------------------------------------------------------------- values

@pytest.mark.parametrize("size", [1, 2, 3, 4, 11])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda t: str(t)[6:])
def test_values_and_gradients(dtype, size, device):
    for shape in SHAPES:
        for options in SETTINGS.values():
            compare(torch.randn(shape).to(device, dtype), size, **options)


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_views(view, device):
    for shape in SHAPES:
        compare(view(torch.randn(shape, device=device)), 3, alpha=0.5)


def test_strides_are_those_of_the_twin(device):
    for x in (torch.randn(3, 4, 5, 6), torch.randn(3, 4, 5, 6).to(memory_format=torch.channels_last), torch.randn(2, 4, 3, 2, 5),
              torch.randn(2, 4, 3, 2, 5).to(memory_format=torch.channels_last_3d), torch.randn(2, 4, 3), channels_last(torch.randn(2, 4, 3))):
        x = x.to(device)
        for a, b in zip(*(results(f, x, x, 3) for f in (W.local_response_norm, F.local_response_norm))):
            assert a.stride() == b.stride()


@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 3), (2, 3, 0, 4), (2, 3, 0, 2, 2, 2)], ids=str)
def test_no_elements(shape, device):
    x = torch.randn(shape, device=device)
    for t in results(W.local_response_norm, x, x, 3):
        assert t.shape == shape


def test_a_window_far_wider_than_the_channels(device):
    x = torch.randn(2, 3, 4, dtype=torch.float64, device=device).requires_grad_()
    y = W.local_response_norm(x, 2**40, alpha=2.0**40)
    torch.testing.assert_close(y, x / (1 + x.square().sum(1, True)).pow(0.75))
    dx, = torch.autograd.grad(y.sum(), x, create_graph=True)
    assert torch.isfinite(torch.autograd.grad(dx.sum(), x)[0]).all()


@pytest.mark.parametrize("shape", [(2, 3, 4), (2, 3, 4, 5), (2, 3, 2, 2, 2)], ids=str)
@pytest.mark.parametrize("low", [torch.float16, torch.bfloat16], ids=lambda t: str(t)[6:])
def test_autocast_as_the_twin(low, shape, device):
    with torch.autocast(device.type, dtype=low):
        for dtype in (torch.float32, torch.float64, low):
            x = torch.randn(shape, device=device).to(dtype)
            ours, theirs = W.local_response_norm(x, 3), F.local_response_norm(x, 3)
            assert ours.dtype == theirs.dtype
            torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=2e-2)   # the twin rounds its sums to the lower type


def test_left_to_the_twin(device):
    """Whole numbers, tensors as settings, settings that are not finite."""
    x = torch.randn(2, 3, 4, 5, device=device)
    alpha = torch.tensor(0.5, device=device, requires_grad=True)
    for call in (lambda f: f(x, 3, alpha), lambda f: torch.autograd.grad(f(x, 3, alpha).sum(), alpha)[0], lambda f: f(x, 3, 1e-4, 0.75, float("nan")),
                 lambda f: f(x, 3, 1j)):
        torch.testing.assert_close(call(W.local_response_norm), call(F.local_response_norm), equal_nan=True)
    if device.type == "cpu":
        whole = torch.arange(24).view(2, 3, 4)
        torch.testing.assert_close(W.local_response_norm(whole, 3), F.local_response_norm(whole, 3))


# ---------------------------------------------------------------------------------------------- derivatives

@pytest.mark.parametrize("size", [1, 2, 3, 9])
@pytest.mark.parametrize("shape", [(2, 4, 2), (1, 3, 2, 2)], ids=str)
def test_gradcheck(shape, size, device):
    x = torch.randn(shape, dtype=torch.float64, device=device).requires_grad_()

    def f(x):
        return W.local_response_norm(x, size, 0.7, 0.8, 1.3)
    assert torch.autograd.gradcheck(f, x, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(f, x, check_batched_grad=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=lambda t: str(t)[6:])
def test_second_gradients_of_16_bit_data(dtype, device):
    args = [torch.randn(2, 5, 6).to(device, dtype) for _ in range(3)]

    def second(function, x, dy, ddx):
        x = x.detach().requires_grad_()
        first, = torch.autograd.grad(function(x, 3, 0.5), x, dy, create_graph=True)
        return torch.autograd.grad(first, x, ddx)[0]
    mine = second(W.local_response_norm, *args)
    assert mine.dtype == dtype
    close(mine.cpu(), second(F.local_response_norm, *(t.double().cpu() for t in args)))


TRANSFORMS = {
    "grad": lambda f, x: func.grad(f)(x),
    "jvp": lambda f, x: func.jvp(f, (x,), (x + 1,)),
    "hessian": lambda f, x: func.hessian(f)(x),
    "reverse-reverse": lambda f, x: func.jacrev(func.jacrev(f))(x),
    "forward-forward": lambda f, x: func.jacfwd(func.jacfwd(f))(x),
    "third": lambda f, x: func.grad(lambda a: func.grad(lambda b: func.grad(f)(b).pow(3).sum())(a).pow(3).sum())(x),
    "vmap": lambda f, x: func.vmap(func.grad(f), 1)(torch.stack([x, x * x], 1)),
}


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
def test_transforms(transform, device):
    x, probe = (torch.randn(2, 4, 3, dtype=torch.float64, device=device) for _ in range(2))
    ours, theirs = (transform(lambda x: (f(x, 3, 0.5).pow(3) * probe).sum(), x) for f in (W.local_response_norm, F.local_response_norm))
    torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-8)


# ---------------------------------------------------------------------------------------------- the ecosystem

def operator_samples(device):
    x = torch.randn(2, 4, 3, 5, device=device)
    last, settings = channels_last(x), (3, 1e-4, 0.75, 1.0)
    leaf = lambda t: t.clone().requires_grad_()   # noqa: E731
    return {
        "first": (torch.ops.weft.lrn, (leaf(x), *settings)),
        "last": (torch.ops.weft.lrn, (leaf(last.bfloat16()), *settings)),
        "out": (torch.ops.weft.lrn_out, (x, *settings, torch.empty_like(last))),
        "backward": (torch.ops.weft.lrn_backward, (leaf(x), leaf(last), *settings)),
    }


@pytest.mark.parametrize("name", operator_samples("cpu"))
def test_opcheck(name, device):
    operator, args = operator_samples(device)[name]
    opcheck(operator.default, args)


@pytest.mark.parametrize("format", [lambda t: t, channels_last], ids=["first", "last"])
@pytest.mark.parametrize("dynamic", [None, True])
def test_compile(dynamic, format, device):
    torch.compiler.reset()
    compiled = torch.compile(lambda x: W.local_response_norm(x, 3, 0.5) * 2, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for n in (3, 5) if dynamic else (3,):
        x = format(torch.randn(n, 4, 5, n + 1, device=device))
        ours, theirs = (results(f, x, x) for f in (compiled, lambda x: F.local_response_norm(x, 3, 0.5) * 2))
        torch.testing.assert_close(ours, theirs)
        assert ours[0].stride() == theirs[0].stride()


def test_sizes_that_nobody_knows(device):
    torch.compiler.reset()
    x = torch.randn(2, 4, 6, 6, device=device)
    want = F.local_response_norm(x, 3)
    for axis in (0, 2, 3):
        torch._dynamo.decorators.mark_unbacked(x, axis)
    torch.testing.assert_close(torch.compile(lambda x: W.local_response_norm(x, 3), fullgraph=True, backend="aot_eager")(x), want)


def test_export(device):
    module = weft.nn.LocalResponseNorm(3, alpha=0.5)
    program = torch.export.export(module, (torch.randn(2, 4, 3, 3, device=device),), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    x = torch.randn(5, 4, 3, 3, device=device)
    torch.testing.assert_close(program.module()(x), module(x))


def test_fx_and_subclasses():
    class Marked(torch.Tensor):
        pass
    x = torch.randn(2, 5, 4)
    traced = torch.fx.symbolic_trace(torch.nn.Sequential(weft.nn.LocalResponseNorm(3)))
    torch.testing.assert_close(traced(x), F.local_response_norm(x, 3))
    assert type(W.local_response_norm(x.as_subclass(Marked), 3)) is Marked


def test_out(device):
    x = torch.randn(3, 4, 5, 6, device=device)
    want = F.local_response_norm(x, 3, 0.5)
    for out in (torch.empty_like(x), channels_last(torch.empty_like(x)), scattered(torch.empty_like(x))):
        assert W.local_response_norm(x, 3, 0.5, out=out) is out
        torch.testing.assert_close(out, want)
    wide = x.view(3, 4, 5, 1, 3, 2)
    out = torch.empty_like(wide)
    torch.testing.assert_close(W.local_response_norm(wide, 3, 0.5, out=out), want.view(wide.shape))
    for out, kind, text in ((3, TypeError, "out: is int, allowed: Tensor or None"), (x, RuntimeError, "out: has the shape"),
                            (torch.empty(3, 4, 5, 1, 2, 3, device=device).transpose(4, 5), RuntimeError, "out: has the strides")):
        with pytest.raises(kind, match=text):
            W.local_response_norm(wide, 3, 0.5, out=out)


# ---------------------------------------------------------------------------------------------- the module

def test_module(device):
    ours, twin = (kind(3, alpha=0.5, beta=0.6, k=2) for kind in (weft.nn.LocalResponseNorm, torch.nn.LocalResponseNorm))
    assert repr(ours) == "weft." + repr(twin) and dict(ours.state_dict()) == dict(twin.state_dict()) == {}
    x = channels_last(torch.randn(2, 5, 4, 3, device=device))
    want = twin(x)
    twin.__class__ = weft.nn.LocalResponseNorm
    for module in (ours.to(device), copy.deepcopy(ours), pickle.loads(pickle.dumps(ours)), twin):
        assert type(module) is weft.nn.LocalResponseNorm
        torch.testing.assert_close(module(x), want)


# ---------------------------------------------------------------------------------------------- wrong input

X = torch.ones(2, 4, 3, 3)
# what is wrong: input, options, the kind of error and its text
WRONG = {
    "rank": (X[0, 0], {}, ValueError, "input has 2 dimensions [3, 3], allowed: 3 or more"),
    "scalar": (X[0, 0, 0, 0], {}, ValueError, "input has 0 dimensions [], allowed: 3 or more"),
    "size-zero": (X, {"size": 0}, RuntimeError, "size: is 0, allowed: 1 to 2^40"),
    "size-negative": (X[0], {"size": -3}, RuntimeError, "size: is -3, allowed: 1 to 2^40"),
    "size-float": (X, {"size": 3.0}, TypeError, "size is 3.0, allowed: an int"),
    "size-bool": (X, {"size": True}, TypeError, "size is True, allowed: an int"),
    "size-none": (X, {"size": None}, TypeError, "size is None, allowed: an int"),
    "size-list": (X, {"size": [3]}, TypeError, "size is [3], allowed: an int"),
    "size-tensor": (X, {"size": torch.tensor(3.0)}, TypeError, "size is tensor(3.), allowed: an int"),
    "alpha-none": (X, {"alpha": None}, TypeError, "alpha is None, allowed: a float"),
    "alpha-word": (X, {"alpha": "1"}, TypeError, "alpha is '1', allowed: a float"),
    "beta-list": (X, {"beta": [1.0]}, TypeError, "beta is [1.0], allowed: a float"),
    "k-word": (X, {"k": "a"}, TypeError, "k is 'a', allowed: a float"),
    "bool": (X.bool(), {}, NotImplementedError, "not implemented for 'Bool'"),
    "complex": (X.to(torch.complex64), {}, NotImplementedError, "not implemented for 'ComplexFloat'"),
}


@pytest.mark.parametrize("input,options,kind,text", WRONG.values(), ids=WRONG)
def test_wrong_input(input, options, kind, text):
    options = {"size": 3, **options}
    with pytest.raises(kind) as raised:
        W.local_response_norm(input, **options)
    assert text in str(raised.value) and type(raised.value) is kind
    with pytest.raises(kind):
        F.local_response_norm(input, **options)


OURS = {
    "input-kind": ([1.0], {}, TypeError, "input is list, allowed: Tensor"),     # an AttributeError of the twin
    "input-none": (None, {}, TypeError, "input is NoneType, allowed: Tensor"),
    "out-kind": (X, {"out": 3}, TypeError, "out: is int, allowed: Tensor or None"),
    "out-shape": (X, {"out": X[0]}, RuntimeError, "out: has the shape [4, 3, 3], allowed: the shape of the result, [2, 4, 3, 3]"),
    "out-type": (X, {"out": X.half()}, RuntimeError, "out: is float16, allowed: the type of the result, float32"),
    "out-expanded": (X, {"out": X[:1].expand(2, 4, 3, 3)}, RuntimeError, "out: is expanded along dimension 0"),
    "out-itself": (X, {"out": X}, RuntimeError, "out: shares memory with input, allowed: memory of its own"),
    "out-grad": (X.clone().requires_grad_(), {"out": X.clone()}, RuntimeError, "out: given with a tensor that requires grad"),
    "out-foreign": (X, {"out": X.clone(), "k": float("inf")}, RuntimeError, "out is given with input of torch.float32"),
    "huge": (X[..., :1, :1].expand(2, 4, 2**41, 1), {}, RuntimeError, "input: has 2199023255552 elements along dimension 2, allowed: at most 2^40"),
    "size-huge": (X, {"size": 2**41}, RuntimeError, "size: is 2199023255552, allowed: 1 to 2^40"),
}


@pytest.mark.parametrize("input,options,kind,text", OURS.values(), ids=OURS)
def test_wrong_input_of_our_own(input, options, kind, text):
    with pytest.raises(kind) as raised:
        W.local_response_norm(input, **{"size": 3, **options})
    assert text in str(raised.value)


def test_wrong_calls_of_the_operators():
    for run, text in [(lambda: torch.ops.weft.lrn(X[0, 0], 3, 1.0, 1.0, 1.0), "input: has 2 dimensions, allowed: 3 to 5"),
                      (lambda: torch.ops.weft.lrn(X.long(), 3, 1.0, 1.0, 1.0), "input: is int64, allowed: float32"),
                      (lambda: torch.ops.weft.lrn(X, 3, float("nan"), 1.0, 1.0), "alpha is .*nan, allowed: a finite number"),
                      (lambda: torch.ops.weft.lrn_backward(X[:1], X, 3, 1.0, 1.0, 1.0), r"grad_output: has the shape \[1, 4, 3, 3\]"),
                      (lambda: torch.ops.weft.lrn_backward(X.double(), X, 3, 1.0, 1.0, 1.0), "grad_output: is float64, allowed: the type of input")]:
        with pytest.raises(RuntimeError, match=text):
            run()
