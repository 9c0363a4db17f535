"""Batch normalisation through PyTorch against torch.nn.functional.batch_norm and torch.nn: values, gradients, statistics, types, layouts."""
from __future__ import annotations

import copy
import itertools
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import func
from torch.library import opcheck

import weft
import weft.functional as W
from cases import DTYPES, channels_last, close, scattered, shifted

SHAPES = [(6, 5), (3, 4, 7), (2, 17, 4, 3), (2, 3, 2, 3, 4), (3, 1, 6), (2, 3, 2, 2, 3, 2)]
VIEWS = {"dense": lambda t: t, "last": lambda t: channels_last(t) if t.dim() > 2 else t, "gaps": scattered, "unaligned": shifted,
         "batch-inside": lambda t: t.movedim(0, -1).contiguous().movedim(-1, 0), "expanded": lambda t: t[:1].expand_as(t)}
MODULES = {"1d": (weft.nn.BatchNorm1d, torch.nn.BatchNorm1d, (5, 4, 6)), "2d": (weft.nn.BatchNorm2d, torch.nn.BatchNorm2d, (3, 4, 5, 6)),
           "3d": (weft.nn.BatchNorm3d, torch.nn.BatchNorm3d, (2, 4, 3, 2, 5))}
modules = pytest.mark.parametrize("ours,twin,shape", MODULES.values(), ids=MODULES)
modes = pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])


def tensors(shape, dtype=torch.float32, device="cpu", params=None, affine=True):
    """Data, running mean and variance, weight and bias."""
    c, params = shape[1], params or dtype
    made = [2 * torch.randn(shape) + 1, torch.randn(c), 0.5 + torch.rand(c), torch.randn(c), torch.randn(c)]
    made = [made[0].to(device, dtype), *(t.to(device, params) for t in made[1:])]
    return made if affine else [*made[:3], None, None]


def results(function, x, mean, var, weight, bias, train, dy, **options):
    """The result, the running statistics after it, and the gradients of those of input, weight and bias that there are."""
    leaves = [None if t is None else t.detach().requires_grad_() for t in (x, weight, bias)]
    mean, var = (None if t is None else t.clone() for t in (mean, var))
    y = function(leaves[0], mean, var, leaves[1], leaves[2], train, **options)
    grads = torch.autograd.grad(y, [t for t in leaves if t is not None], dy.to(y))
    return [y.detach(), *(t for t in (mean, var) if t is not None), *grads]


def compare(x, mean, var, weight, bias, train, **options):
    """weft beside the twin in float64 on the CPU, all results; returns weft's."""
    dy = torch.randn(x.shape).to(x)
    exact = [None if t is None else t.detach().double().cpu() for t in (x, mean, var, weight, bias, dy)]
    ours = results(W.batch_norm, x, mean, var, weight, bias, train, dy, **options)
    truth = results(F.batch_norm, *exact[:5], train, exact[5], **options)
    assert len(ours) == len(truth)
    for mine, theirs in zip(ours, truth):
        close(mine.cpu(), theirs, terms=x.numel() // max(x.shape[1], 1))
    return ours


# ---------------------------------------------------------------------------------------------- values

@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda t: str(t)[6:])
@modes
def test_values_and_gradients(train, dtype, shape, device):
    for affine, track in itertools.product([True, False], [True, False] if train else [True]):
        x, mean, var, weight, bias = tensors(shape, dtype, device, affine=affine)
        ours = compare(x, *((mean, var) if track else (None, None)), weight, bias, train, momentum=0.3, eps=1e-3)
        assert ours[0].dtype == dtype and ours[-1].dtype == dtype


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=lambda t: str(t)[6:])
@modes
def test_16_bit_data_with_float32_parameters(train, dtype, device):
    ours = compare(*tensors((3, 4, 5, 6), dtype, device, params=torch.float32), train)
    assert [t.dtype for t in ours] == [dtype, *[torch.float32] * 2, dtype, *[torch.float32] * 2]


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
@modes
def test_views(train, view, device):
    for shape in SHAPES[:4]:
        x, *vectors = tensors(shape, device=device)
        compare(view(x), *(scattered(t) for t in vectors), train)


@modes
def test_part_of_the_parameters(train, device):
    x, mean, var, weight, bias = tensors((3, 4, 5), torch.float64, device)
    compare(x, mean, var, weight, None, train)
    compare(x, mean, var, None, bias, train)
    y, want = (f(x, mean, var, w, b, train, 0.0) for f, w, b in ((W.batch_norm, weight.view(2, 2), bias.view(4, 1)), (F.batch_norm, weight, bias)))
    torch.testing.assert_close(y, want)   # the twin takes these shapes too, on the CPU and without gradients


@modes
def test_strides_are_those_of_the_twin(train, device):
    for format, shape in ((torch.contiguous_format, (3, 4, 5, 6)), (torch.channels_last, (3, 4, 5, 6)), (torch.channels_last_3d, (2, 4, 3, 2, 5)),
                          (torch.contiguous_format, (5, 4)), (torch.contiguous_format, (2, 4, 3))):
        x, *vectors = tensors(shape, device=device)
        x = x.contiguous(memory_format=format)
        for i, (a, b) in enumerate(zip(*(results(f, x, *vectors, train, x) for f in (W.batch_norm, F.batch_norm)))):
            assert a.shape == b.shape and a.dtype == b.dtype
            if device.type == "cpu" or i != 3:   # on CUDA the twin's gradient of the data is not always in the format of the data
                assert a.stride() == b.stride()


@modes
@pytest.mark.parametrize("shape", [(0, 4), (0, 4, 5), (3, 4, 0, 2), (3, 0, 5)], ids=str)
def test_no_elements(shape, train, device):
    x, mean, var, weight, bias = tensors(shape, device=device)
    y, moved_mean, moved_var, dx, dw, db = results(W.batch_norm, x, mean, var, weight, bias, train, x)
    assert y.shape == dx.shape == shape and not dw.any() and not db.any()
    assert torch.equal(moved_mean, mean) and torch.equal(moved_var, var)


def test_only_wanted_gradients(device):
    x, mean, var, weight, bias = tensors((3, 4, 5), device=device)
    W.batch_norm(x, mean, var, weight.requires_grad_(), bias, True).sum().backward()
    assert weight.grad is not None and x.grad is None and bias.grad is None


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda t: str(t)[6:])
def test_autocast_as_the_twin(dtype, device):
    low = [torch.bfloat16, torch.float16][dtype == torch.float16]
    params = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    for train in (True, False):
        with torch.autocast(device.type, dtype=low):
            args = tensors((3, 4, 5, 6), dtype, device, params=params)
            assert W.batch_norm(*args, train).dtype == F.batch_norm(*args, train).dtype


def test_left_to_the_twin(device):
    """Settings that are not finite."""
    x, mean, var, *_ = tensors((3, 4, 5), device=device)
    for options in ({"eps": float("inf")}, {"momentum": float("nan"), "training": True}):
        ours, theirs = ((f(x, m, v, **options), m, v) for f in (W.batch_norm, F.batch_norm) for m, v in [(mean.clone(), var.clone())])
        torch.testing.assert_close(ours, theirs, equal_nan=True)


def test_memory_that_is_shared_until_it_is_written(device):
    x, mean, var, *_ = tensors((3, 4, 5), device=device)
    lazy, kept = torch._lazy_clone(mean), mean.clone()
    W.batch_norm(x, lazy, var, training=True)
    assert torch.equal(mean, kept) and not torch.equal(lazy, kept)


# ---------------------------------------------------------------------------------------------- derivatives

def formula(x, mean, var, weight, bias, train):
    """The definition in aten operators, the truth of mixed and of higher derivatives: torch.func takes the deviation for a constant in some."""
    shape, axes = (1, -1, *[1] * (x.dim() - 2)), (0, *range(2, x.dim()))
    if train:
        mean, var = x.mean(axes), x.var(axes, unbiased=False)
    xh = (x - mean.view(shape)) * (var.view(shape) + 1e-5).rsqrt()
    return xh if weight is None else xh * weight.view(shape) + bias.view(shape)


@pytest.mark.parametrize("affine", [True, False], ids=["affine", "plain"])
@pytest.mark.parametrize("shape", [(4, 2), (2, 2, 3), (2, 2, 2, 1)], ids=str)
@modes
def test_gradcheck(train, shape, affine, device):
    x, mean, var, weight, bias = tensors(shape, torch.float64, device, affine=affine)
    leaves = [t.requires_grad_() for t in (x, weight, bias) if t is not None]

    def f(x, *rest):
        return W.batch_norm(x, *((None, None) if train else (mean, var)), *rest, training=train)
    assert torch.autograd.gradcheck(f, leaves, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(f, leaves, check_batched_grad=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=lambda t: str(t)[6:])
@modes
def test_second_gradients_of_16_bit_data(train, dtype, device):
    """The formulas run in float32 and round once."""
    x, mean, var, weight, bias = tensors((3, 4, 5), dtype, device, params=torch.float32)

    def second(function, *args):
        leaves = [t.detach().requires_grad_() for t in (args[0], *args[3:5])]
        y = function(leaves[0], args[1].clone(), args[2].clone(), leaves[1], leaves[2], train)
        first = torch.autograd.grad(y, leaves[:2], args[5], create_graph=True)
        return torch.autograd.grad(first, leaves[:2], args[6:])
    args = (x, mean, var, weight, bias, torch.randn_like(x), torch.randn_like(x), torch.randn_like(weight))
    for mine, theirs, like in zip(second(W.batch_norm, *args), second(formula, *(t.double().cpu() for t in args)), (x, weight)):
        assert mine.dtype == like.dtype
        close(mine.cpu(), theirs)


TRANSFORMS = {
    "grad": lambda f, *a: func.grad(f, (0, 1, 2))(*a),
    "jvp": lambda f, *a: func.jvp(f, a, tuple(t + 1 for t in a)),
    "reverse-reverse": lambda f, *a: func.jacrev(func.jacrev(f, (0, 1, 2)), (0, 1, 2))(*a),
    "forward-reverse": lambda f, *a: func.jacfwd(func.jacrev(f, (0, 1, 2)), (0, 1, 2))(*a),
    "reverse-forward": lambda f, *a: func.jacrev(func.jacfwd(f, (0, 1, 2)), (0, 1, 2))(*a),
    "third": lambda f, *a: func.grad(lambda *b: func.grad(lambda *c: func.grad(f)(*c).pow(3).sum())(*b).pow(3).sum(), (0, 1))(*a),
    "vmap": lambda f, x, *a: func.vmap(func.grad(f, (0, 1)), (0, None, None))(torch.stack([x, x * x]), *a),
    "vmap-all": lambda f, *a: func.vmap(func.grad(f, (0, 1, 2)), (1, 1, 0))(*(torch.stack([t, t + t * t], d) for t, d in zip(a, (1, 1, 0)))),
}


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
@modes
def test_transforms(train, transform, device):
    x, mean, var, weight, bias = tensors((2, 3, 3), torch.float64, device)
    probe = torch.randn_like(x)

    def of(function):
        return lambda x, weight, bias: (function(x, *((None, None) if train else (mean, var)), weight, bias, train).pow(3) * probe).sum()
    torch.testing.assert_close(transform(of(W.batch_norm), x, weight, bias), transform(of(formula), x, weight, bias), rtol=1e-8, atol=1e-8)


def test_vmap_with_statistics(device):
    x, mean, var = torch.randn(3, 2, 4, 5, device=device), torch.zeros(3, 4, device=device), torch.ones(3, 4, device=device)
    each = [(y, m, v) for m, v in [(mean.clone(), var.clone())] for y in [func.vmap(lambda x, m, v: W.batch_norm(x, m, v, training=True))(x, m, v)]][0]
    y, m, v = torch.empty_like(x), mean.clone(), var.clone()
    for i in range(3):
        y[i] = F.batch_norm(x[i], m[i], v[i], training=True)
    torch.testing.assert_close(each, (y, m, v))
    with pytest.raises(RuntimeError, match="running_mean is the same for every batch that torch.vmap maps over"):
        func.vmap(lambda x: W.batch_norm(x, mean[0], var[0], training=True))(x)


def test_evaluation_then_training_before_backward(device):
    """As in the twin, moving the statistics does not disturb a gradient that waits for them with an error."""
    x, mean, var, weight, bias = tensors((3, 4, 5), device=device)
    found = []
    for function in (W.batch_norm, F.batch_norm):
        leaf, m, v = x.detach().clone().requires_grad_(), mean.clone(), var.clone()
        y = function(leaf, m, v, weight, bias)
        function(leaf, m, v, training=True)
        assert not torch.equal(m, mean) and not torch.equal(v, var)
        y.sum().backward()
        found.append(leaf.grad)
    torch.testing.assert_close(*found)


# ---------------------------------------------------------------------------------------------- the ecosystem

def operator_samples(device):
    ops = torch.ops.weft
    x, mean, var, weight, bias = tensors((3, 4, 5, 2), device=device)
    leaf = lambda t: t.clone().requires_grad_()   # noqa: E731
    last = channels_last(x)
    return {
        "eval": (ops.batch_norm, (leaf(x), leaf(weight), leaf(bias), mean, var, 1e-5)),
        "eval-plain": (ops.batch_norm, (leaf(last), None, None, mean, var, 1e-5)),
        "eval-out": (ops.batch_norm_out, (x, weight, bias, mean, var, 1e-5, torch.empty_like(x))),
        "train": (ops.batch_norm_train, (leaf(x), leaf(weight), leaf(bias), mean.clone(), var.clone(), 1e-5, 0.1)),
        "train-half": (ops.batch_norm_train, (leaf(last.bfloat16()), None, None, mean.bfloat16(), var.bfloat16(), 1e-5, 0.1)),
        "train-alone": (ops.batch_norm_train, (leaf(last), leaf(weight), leaf(bias), None, None, 1e-5, 0.1)),
        "train-out": (ops.batch_norm_train_out, (x, None, None, mean.clone(), var.clone(), 1e-5, 0.1, torch.empty_like(last))),
        "backward": (ops.batch_norm_backward, (leaf(x), leaf(last), leaf(weight), mean, var, True, 1e-5)),
        "backward-plain": (ops.batch_norm_backward, (leaf(x[:, :, 0]), leaf(x[:, :, 1]), None, mean, var, False, 1e-5)),
    }


@pytest.mark.parametrize("name", operator_samples("cpu"))
def test_opcheck(name, device):
    operator, args = operator_samples(device)[name]
    opcheck(operator.default, args)


@pytest.mark.parametrize("options", [{}, {"affine": False}, {"track_running_stats": False}], ids=str)
@pytest.mark.parametrize("dynamic", [None, True])
@modes
def test_compile(train, dynamic, options, device):
    torch.compiler.reset()
    ours, twin = (kind(4, **options).to(device).train(train) for kind in (weft.nn.BatchNorm2d, torch.nn.BatchNorm2d))
    compiled = torch.compile(lambda x: ours(x) * 2, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for n in (3, 5) if dynamic else (3,):
        x = channels_last(torch.randn(n, 4, 5, n + 1, device=device))
        got, want = [], []
        for f, module, kept in ((compiled, ours, got), (lambda x: twin(x) * 2, twin, want)):
            leaf = x.detach().requires_grad_()
            y = f(leaf)
            module.zero_grad()
            y.pow(3).sum().backward()
            kept += [y.detach(), leaf.grad, *(p.grad for p in module.parameters()), *module.buffers()]
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
        assert got[0].stride() == want[0].stride()


@modes
def test_sizes_that_nobody_knows(train, device):
    torch.compiler.reset()
    x, *vectors = tensors((2, 4, 6, 6), device=device)
    want = F.batch_norm(x, *(t.clone() for t in vectors), train)
    for axis in (0, 2, 3):
        torch._dynamo.decorators.mark_unbacked(x, axis)
    torch.testing.assert_close(torch.compile(lambda x: W.batch_norm(x, *vectors, train), fullgraph=True, backend="aot_eager")(x), want)


def test_inductor(device):
    torch.compiler.reset()
    ours, twin = weft.nn.BatchNorm2d(4).to(device), torch.nn.BatchNorm2d(4).to(device)
    x = torch.randn(3, 4, 5, 6, device=device)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(W.batch_norm, fullgraph=True)(x, ours.running_mean, ours.running_var, training=True),
                                   F.batch_norm(x, twin.running_mean, twin.running_var, training=True))
    torch.testing.assert_close(ours.running_var, twin.running_var)


@modes
def test_export(train, device):
    module = weft.nn.BatchNorm2d(4).to(device).train(train)
    twin = copy.deepcopy(module)
    program = torch.export.export(module, (torch.randn(2, 4, 3, 3, device=device),), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    run, x = program.module(), torch.randn(5, 4, 3, 3, device=device)
    torch.testing.assert_close(run(x), twin(x))
    torch.testing.assert_close(run.running_mean, twin.running_mean)


@modes
def test_out(train, device):
    x, mean, var, weight, bias = tensors((3, 4, 5, 6), device=device)
    want = F.batch_norm(x, mean.clone(), var.clone(), weight, bias, train)
    for out in (torch.empty_like(x), channels_last(torch.empty_like(x)), scattered(torch.empty_like(x))):
        m, v = mean.clone(), var.clone()
        assert W.batch_norm(x, m, v, weight, bias, train, out=out) is out
        torch.testing.assert_close(out, want)
        assert torch.equal(m, mean) is not train
    wide = x.view(3, 4, 5, 1, 3, 2)
    out = torch.empty_like(wide)
    torch.testing.assert_close(W.batch_norm(wide, mean, var, weight, bias, out=out), F.batch_norm(x, mean, var, weight, bias).view(wide.shape))
    for out, kind, text in ((3, TypeError, "out: is int, allowed: Tensor or None"), (x, RuntimeError, "out: has the shape"),
                            (torch.empty(3, 4, 5, 1, 2, 3, device=device).transpose(4, 5), RuntimeError, "out: has the strides")):
        with pytest.raises(kind, match=text):
            W.batch_norm(wide, mean, var, weight, bias, out=out)


@modes
def test_fx_keeps_the_module_whole(train, device):
    net = torch.nn.Sequential(weft.nn.BatchNorm2d(4), torch.nn.ReLU()).to(device).train(train)
    traced, twin = torch.fx.symbolic_trace(copy.deepcopy(net)), net
    for _ in range(2):
        x = torch.randn(3, 4, 5, 6, device=device)
        torch.testing.assert_close(traced(x), twin(x))
    torch.testing.assert_close(dict(traced.state_dict()), dict(twin.state_dict()))
    traced = torch.fx.symbolic_trace(lambda x, mean, var: W.batch_norm(x, mean, var))
    torch.testing.assert_close(traced(x, x[0, :, 0, 0], x[1, :, 0, 0].abs()), F.batch_norm(x, x[0, :, 0, 0], x[1, :, 0, 0].abs()))


def test_subclasses():
    class Marked(torch.Tensor):
        pass
    x = torch.randn(3, 4, 5)
    for args in ((x.as_subclass(Marked), torch.zeros(4), torch.ones(4)), (x, torch.zeros(4), torch.ones(4).as_subclass(Marked))):
        y = W.batch_norm(*args)
        assert type(y) is Marked
        torch.testing.assert_close(y.as_subclass(torch.Tensor), F.batch_norm(x, torch.zeros(4), torch.ones(4)))


def test_checkpoint(device):
    """What runs twice moves the statistics twice, as in the twin."""
    from torch.utils.checkpoint import checkpoint
    ours, twin, x = weft.nn.BatchNorm2d(4).to(device), torch.nn.BatchNorm2d(4).to(device), torch.randn(3, 4, 5, 6, device=device)
    grads = []
    for module in (ours, twin):
        leaf = x.clone().requires_grad_()
        checkpoint(module, leaf, use_reentrant=False).pow(3).sum().backward()
        grads.append(leaf.grad)
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(dict(ours.state_dict()), dict(twin.state_dict()))


def test_fake_tensors():
    from torch._subclasses.fake_tensor import FakeTensorMode
    with FakeTensorMode():
        x, *vectors = tensors((2, 4, 3, 3), torch.bfloat16)
        assert W.batch_norm(x, *vectors, training=True).shape == x.shape
        with pytest.raises(RuntimeError, match="1 value per channel .*, allowed in training: more than 1"):
            torch.ops.weft.batch_norm_train(x[:1, :, :1, :1], None, None, None, None, 1e-5, 0.1)
    x, *vectors = tensors((2, 4, 3), device="meta")
    assert W.batch_norm(x, *vectors).shape == x.shape


# ---------------------------------------------------------------------------------------------- modules

@modules
@pytest.mark.parametrize("options", [{}, {"affine": False}, {"track_running_stats": False}, {"momentum": None}, {"eps": 1e-2, "momentum": 0.5},
                                     {"bias": False}], ids=str)
def test_module(ours, twin, shape, options, device):
    if "bias" in options and "bias" not in twin.__init__.__code__.co_varnames:
        options = {}
    a, b = ours(4, **options).to(device), twin(4, **options).to(device)
    for t in (a, b):
        for p in t.parameters():
            torch.nn.init.constant_(p, 0.7)
    for train in (True, True, False):
        x = torch.randn(shape, device=device)
        torch.testing.assert_close(a.train(train)(x), b.train(train)(x))
        torch.testing.assert_close(dict(a.state_dict()), dict(b.state_dict()))
    assert repr(a) == "weft." + repr(b)


@modules
def test_module_is_its_twin(ours, twin, shape, device):
    a, b = ours(4).to(device), twin(4).to(device)
    x = channels_last(torch.randn(shape, device=device))
    b(x), a(x)
    a.load_state_dict(b.state_dict())
    b.load_state_dict(a.state_dict())
    b.__class__ = ours
    for copied in (copy.deepcopy(a), pickle.loads(pickle.dumps(a)), b):
        assert type(copied) is ours
        torch.testing.assert_close(copied.eval()(x), a.eval()(x))
    low = a.to(torch.bfloat16).train()
    y = low(x.bfloat16())
    assert y.dtype == low.running_mean.dtype == torch.bfloat16 and low.num_batches_tracked.dtype == torch.int64


# ---------------------------------------------------------------------------------------------- wrong input

def call(function, *, input=(3, 4, 5), mean=4, var=4, weight=None, bias=None, **options):
    make = lambda t: torch.ones(t) if isinstance(t, (int, tuple)) and not isinstance(t, bool) else t   # noqa: E731
    return function(make(input), make(mean), make(var), make(weight), make(bias), **options)


# what is wrong: the arguments, the kind of error and its text; the twin's kind where it is another
WRONG = {
    "input-kind": ({"input": [1.0]}, TypeError, "input is list, allowed: Tensor"),
    "input-none": ({"input": None}, TypeError, "input is NoneType, allowed: Tensor"),
    "mean-kind": ({"mean": [1.0]}, TypeError, "running_mean is list, allowed: Tensor or None"),
    "var-kind": ({"var": 1.0}, TypeError, "running_var is float, allowed: Tensor or None"),
    "weight-kind": ({"weight": 1.0}, TypeError, "weight is float, allowed: Tensor or None"),
    "bias-kind": ({"bias": "b"}, TypeError, "bias is str, allowed: Tensor or None"),
    "training-kind": ({"training": 1}, TypeError, "training is 1, allowed: True or False"),
    "training-none": ({"training": None}, TypeError, "training is None"),
    "eps-kind": ({"eps": None}, TypeError, "eps is None, allowed: a float"),
    "eps-word": ({"eps": "1"}, TypeError, "eps is '1', allowed: a float"),
    "eps-complex": ({"eps": 1j}, TypeError, "eps is 1j, allowed: a float"),
    "momentum-kind": ({"momentum": None}, TypeError, "momentum is None, allowed: a float"),
    "momentum-word": ({"momentum": "a", "training": True}, TypeError, "momentum is 'a'"),
    "eps-negative": ({"eps": -1.0}, ValueError, "eps is -1.0, allowed: 0 or more"),
    "eps-zero": ({"eps": 0, "training": True}, ValueError, "eps is 0.0, allowed in training: more than 0"),
    "rank": ({"input": (4,)}, RuntimeError, "input has 1 dimensions [4], allowed: 2 or more"),
    "one-value": ({"input": (1, 4), "training": True}, ValueError, "input has the shape [1, 4], allowed in training: more than 1 value per channel"),
    "one-pixel": ({"input": (1, 4, 1, 1), "training": True}, ValueError, "more than 1 value per channel"),
    "no-statistics": ({"mean": None, "var": None}, RuntimeError, "running_mean is None, allowed in evaluation: Tensor"),
    "no-var": ({"var": None}, RuntimeError, "running_var is None, allowed in evaluation: Tensor"),
    "mean-length": ({"mean": 5}, RuntimeError, "running_mean: has 5 elements, allowed: 4, the channels of input"),
    "var-length": ({"var": 3, "training": True}, RuntimeError, "running_var: has 3 elements"),
    "mean-rank": ({"mean": (2, 2)}, RuntimeError, "running_mean: has 2 dimensions"),
    "weight-length": ({"weight": 5, "bias": 4}, RuntimeError, "weight: has 5 elements"),
    "bias-length": ({"weight": 4, "bias": 3}, RuntimeError, "bias: has 3 elements"),
    "weight-type": ({"weight": torch.ones(4).double(), "bias": torch.ones(4).double()}, RuntimeError,
                    "weight: is float64, allowed: the type of input, float32"),
    "bias-type": ({"weight": 4, "bias": torch.ones(4).half()}, RuntimeError, "bias: is float16, allowed: the type of input, float32"),
    "mean-type": ({"mean": torch.ones(4).half()}, RuntimeError, "running_mean: is float16"),
    "mixed-types": ({"input": torch.ones(3, 4, 5).half(), "weight": torch.ones(4).half(), "bias": torch.ones(4).half()}, RuntimeError,
                    "running_mean: is float32, allowed: the type of weight, float16"),
    "whole-numbers": ({"input": torch.ones(3, 4, 5, dtype=torch.int64)}, NotImplementedError, "not implemented for 'Long'"),
    "complex": ({"input": torch.ones(3, 4, 5, dtype=torch.complex64)}, NotImplementedError, "not implemented for"),
    "device": ({"weight": torch.ones(4, device="meta"), "bias": 4}, RuntimeError, "weight: is on meta, allowed: the device of input, cpu"),
    "statistics-grad": ({"mean": torch.ones(4, requires_grad=True)}, RuntimeError, "running_mean requires grad, allowed: statistics without a gradient"),
}


@pytest.mark.parametrize("arguments,kind,text", WRONG.values(), ids=WRONG)
def test_wrong_input(arguments, kind, text):
    with pytest.raises(kind) as raised:
        call(W.batch_norm, **arguments)
    assert text in str(raised.value) and type(raised.value) is kind
    with pytest.raises(kind):
        call(F.batch_norm, **arguments)


OURS = {
    # PyTorch refuses it too, but not in every version
    "half-statistics": ({"mean": None, "training": True}, ValueError, "running_mean is None with the other given, allowed: both or none"),
    "out-kind": ({"out": 3}, TypeError, "out: is int, allowed: Tensor or None"),
    "out-shape": ({"out": torch.ones(3, 4)}, RuntimeError, "out: has the shape [3, 4], allowed: the shape of the result, [3, 4, 5]"),
    "out-type": ({"out": torch.ones(3, 4, 5).half()}, RuntimeError, "out: is float16, allowed: the type of the result, float32"),
    "out-expanded": ({"out": torch.ones(1, 4, 5).expand(3, 4, 5), "training": True}, RuntimeError, "out: is expanded along dimension 0"),
    "out-grad": ({"out": torch.ones(3, 4, 5), "weight": torch.ones(4, requires_grad=True), "bias": 4}, RuntimeError,
                 "out: given with a tensor that requires grad"),
    "out-foreign": ({"out": torch.ones(3, 4, 5), "eps": float("inf")}, RuntimeError, "out is given with input of torch.float32"),
    "huge": ({"input": torch.ones(1, 4, 1).expand(1, 4, 2**41)}, RuntimeError, "input: has 2199023255552 elements along dimension 2, allowed: at most 2^40"),
    "expanded": ({"mean": torch.ones(1).expand(4), "training": True}, RuntimeError, "running_mean: is expanded, allowed in training: memory for every channel"),
}


@pytest.mark.parametrize("arguments,kind,text", OURS.values(), ids=OURS)
def test_wrong_input_of_our_own(arguments, kind, text):
    with pytest.raises(kind) as raised:
        call(W.batch_norm, **arguments)
    assert text in str(raised.value)


def test_out_shares_memory():
    x = torch.randn(3, 4, 5)
    with pytest.raises(RuntimeError, match="out: shares memory with input, allowed: memory of its own"):
        W.batch_norm(x, torch.zeros(4), torch.ones(4), out=x)


def test_wrong_calls_of_the_operators():
    x, mean, var, weight, bias = tensors((3, 4, 5))
    ops = torch.ops.weft
    for run, text in [(lambda: ops.batch_norm(x[0, 0], None, None, mean, var, 1e-5), "input: has 1 dimensions, allowed: 2 to 5"),
                      (lambda: ops.batch_norm(x, weight, None, mean, var, 1e-5), "bias: is None with weight given, allowed: both or none"),
                      (lambda: ops.batch_norm_train(x, None, None, mean, None, 1e-5, 0.1), "running_var: is None with running_mean given"),
                      (lambda: ops.batch_norm(x, None, None, mean, var, -1.0), "eps is -1, allowed: 0 or more, finite"),
                      (lambda: ops.batch_norm_train(x[:1, :, :1], None, None, None, None, 1e-5, 0.1), "there is 1 value per channel"),
                      (lambda: ops.batch_norm_backward(x[:2], x, weight, mean, var, True, 1e-5),
                       r"grad_output: has the shape \[2, 4, 5\], allowed: the shape of input, \[3, 4, 5\]"),
                      (lambda: ops.batch_norm_backward(x.double(), x, weight, mean, var, True, 1e-5),
                       "grad_output: is float64, allowed: the type of input, float32")]:
        for mode in (torch.no_grad(), torch.enable_grad()):
            with mode, pytest.raises(RuntimeError, match=text):
                run()


@modules
def test_wrong_rank_of_a_module(ours, twin, shape):
    for module in (ours(4), twin(4)):
        with pytest.raises(ValueError, match="expected .*D input"):
            module(torch.randn(4))


@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("shape", [(4, 8, 16, 16), (300, 33), (2, 3, 100, 100)], ids=str)
def test_a_mean_that_f32_rounds(shape, last):
    """Values a few steps of f32 apart: what is subtracted is the mean itself, not the f32 next to it."""
    x = torch.randn(shape) * 0.01 + 1000
    x = x.contiguous(memory_format=torch.channels_last) if last and len(shape) == 4 else x
    with weft.backends.flags(delegate=False):
        y = weft.functional.batch_norm(x, None, None, training=True)
    torch.testing.assert_close(y.double(), torch.nn.functional.batch_norm(x.double(), None, None, training=True), rtol=1e-5, atol=1e-5)
