"""cross_entropy beside its twin: targets, class weights, ignored labels, smoothing, reductions, ranks, types and layouts; derivatives of
every order, traces, modules. test_torch_cross_entropy_wrong.py has the wrong input."""
from __future__ import annotations

import copy
import itertools
import pickle
import re

import pytest
import torch
import torch.nn.functional as F

import weft
import weft.functional as W
from cases import DTYPES, channels_last, close, scattered, shifted

SHAPES = [(5,), (6, 5), (3, 4, 7), (2, 19, 4, 3), (2, 3, 2, 3, 4), (2, 3, 2, 1, 2, 3, 2)]
REDUCTIONS = ["none", "mean", "sum"]
KINDS = ["labels", "ignored", "probs"]
func = torch.func


def rows(shape):
    return shape[:1] + shape[2:] if len(shape) > 1 else ()


def target_of(kind, shape, dtype=torch.float32, ignored=-100):
    """Classes, of which some are ignored, or probabilities."""
    classes = shape[1] if len(shape) > 1 else shape[0]
    if kind == "probs":
        return torch.rand(shape, dtype=torch.float64).to(dtype)
    t = torch.randint(classes, rows(shape))
    if kind == "ignored" and t.numel() > 1:
        t.view(-1)[1::3] = ignored
    return t


def check(x, target, weight=None, **options):
    """Loss, its strides and the gradient of the logits against the twin in float64 on the CPU."""
    x = x.detach().requires_grad_()
    exact, t = x.detach().cpu().double().requires_grad_(), target.cpu()
    want = F.cross_entropy(exact, t.double() if t.is_floating_point() else t, None if weight is None else weight.cpu().double(), **options)
    y = W.cross_entropy(x, target, weight, **options)
    like = F.cross_entropy(x.detach(), target, weight, **options)
    assert y.dtype == like.dtype and y.stride() == like.stride()
    close(y.detach().cpu(), want.detach())
    dy = torch.randn(want.shape).to(y.dtype)
    close(torch.autograd.grad(y, x, dy.to(x.device))[0].cpu(), torch.autograd.grad(want, exact, dy.double())[0])


# ---------------------------------------------------------------------------------------------- results

@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d)[6:])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_every_combination(kind, shape, dtype, device):
    classes = shape[1] if len(shape) > 1 else shape[0]
    for reduction, weighted, smoothing in itertools.product(REDUCTIONS, (False, True), (0.0, 0.1, 1.0)):
        ignored = classes - 1 if weighted and kind == "ignored" else -100
        weight = (0.1 + torch.rand(classes)).to(device, dtype) if weighted else None
        target = target_of(kind, shape, dtype, ignored)
        if target.numel() == 1:
            target = target.clamp(max=classes - 2)   # one that counts
        check(2 * torch.randn(shape).to(device, dtype), target.to(device), weight, reduction=reduction, label_smoothing=smoothing, ignore_index=ignored)


VIEWS = {
    "channels-last": channels_last,
    "scattered": scattered,
    "shifted": shifted,
    "transposed": lambda t: t.transpose(0, -1).contiguous().transpose(0, -1),
    "reversed": lambda t: t.permute(*reversed(range(t.dim()))).contiguous().permute(*reversed(range(t.dim()))),
    "expanded": lambda t: t[:1].expand(t.shape),
    "expanded-classes": lambda t: t[:, :1].expand(t.shape),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("kind", KINDS)
def test_views(kind, view, device):
    """Of logits, of probabilities and of labels."""
    for shape, reduction in itertools.product(((2, 3, 4), (2, 3, 4, 6), (2, 3, 2, 4, 3)), REDUCTIONS):
        for dtype in (torch.float32, torch.bfloat16):
            target = target_of(kind, shape, dtype).to(device)
            check(VIEWS[view](torch.randn(shape).to(device, dtype)), target, reduction=reduction)
            if kind == "probs":
                check(torch.randn(shape).to(device, dtype), VIEWS[view](target), reduction=reduction)
    labels = torch.randint(3, (4, 2, 5), device=device).permute(1, 0, 2)
    check(torch.randn(2, 3, 4, 5, device=device), labels, torch.rand(6, device=device)[::2])


def test_more_axes_than_a_problem_has(device):
    """Seven axes that cannot be folded, in logits, target, out and gradient."""
    order = (6, 1, 2, 4, 0, 5, 3)
    x = torch.randn(2, 3, 2, 3, 2, 3, 2, device=device).permute(order)
    for kind, reduction in itertools.product(KINDS, REDUCTIONS):
        target = target_of(kind, tuple(x.shape)).to(device)
        check(x, target, reduction=reduction)
        check(x.contiguous(), target.permute(*reversed(range(target.dim()))).contiguous().permute(*reversed(range(target.dim()))), reduction=reduction)
    x = torch.randn(2, 3, 2, 3, 2, 2, 3, device=device)
    labels = torch.randint(3, (2, 2, 3, 2, 2, 3), device=device)
    out = torch.empty(3, 2, 2, 3, 2, 2, device=device).permute(5, 1, 3, 2, 4, 0)
    assert out.shape == labels.shape and W.cross_entropy(x, labels, reduction="none", out=out) is out
    torch.testing.assert_close(out, F.cross_entropy(x, labels, reduction="none"))


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("kind", ["labels", "probs"])
@pytest.mark.parametrize("shape", [(0, 3), (0, 3, 4), (2, 3, 0), (2, 3, 0, 4), (2, 0), (0,), (0, 0)], ids=str)
def test_no_elements(shape, kind, reduction, device):
    x = torch.randn(shape, device=device, requires_grad=True)
    target = torch.rand(shape, device=device) if kind == "probs" else torch.full(rows(shape), -100, device=device)
    for weight in (None, torch.rand(shape[1:2] or shape, device=device)):
        y = W.cross_entropy(x, target, weight, reduction=reduction)
        want = F.cross_entropy(x.cpu(), target.cpu(), None if weight is None else weight.cpu(), reduction=reduction)   # on CUDA the twin differs for no classes
        torch.testing.assert_close(y.cpu(), want, equal_nan=True)
        assert torch.autograd.grad(y.sum(), x)[0].shape == x.shape
        if kind == "probs":
            leaf = target.clone().requires_grad_()
            assert torch.autograd.grad(W.cross_entropy(x, leaf, weight, reduction=reduction).sum(), leaf)[0].shape == x.shape


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_nothing_but_ignored_labels(smoothing, reduction, device):
    x, target = torch.randn(2, 3, 4, device=device, requires_grad=True), torch.full((2, 4), -100, device=device)
    for weight in (None, torch.rand(3, device=device)):
        y, want = (f(x, target, weight, reduction=reduction, label_smoothing=smoothing) for f in (W.cross_entropy, F.cross_entropy))
        torch.testing.assert_close(y, want, equal_nan=True)
        assert torch.equal(*(torch.autograd.grad(t.sum(), x)[0] for t in (y, want)))


@pytest.mark.parametrize("kind", ["labels", "probs"])
def test_special_values(kind, device):
    nan, inf = float("nan"), float("inf")
    x = torch.tensor([[nan, 1, 2], [inf, 1, 2], [1, inf, 2], [-inf, 1, 2], [1, -inf, 2], [-inf, -inf, -inf], [1e4, -1e4, 9e3]], device=device)
    x.requires_grad_()
    target = torch.zeros(7, dtype=torch.int64, device=device) if kind == "labels" else F.one_hot(torch.zeros(7, dtype=torch.int64, device=device), 3).float()
    for smoothing in (0.0, 0.1):
        y, want = (f(x, target, reduction="none", label_smoothing=smoothing) for f in (W.cross_entropy, F.cross_entropy))
        torch.testing.assert_close(y, want, equal_nan=True)
        torch.testing.assert_close(*(torch.autograd.grad(t.sum(), x)[0] for t in (y, want)), equal_nan=True)


@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
def test_infinite_weights_and_probabilities(last, device):
    """A share that is infinite times the least loss is infinite; that of full smoothing, 0 times infinity, is NaN."""
    inf, x = float("inf"), torch.randn(2, 5, 3, 7, device=device)
    x[0, 2] += 9   # the greatest logit, whose difference to the greatest is 0
    x = channels_last(x) if last else x
    weight = torch.ones(5, device=device).index_fill(0, torch.tensor(2, device=device), inf)
    probs, labels = torch.rand(2, 5, 3, 7, device=device), torch.randint(5, (2, 3, 7), device=device)
    probs[0, 2, 1] = inf
    with weft.backends.flags(delegate=False):
        for target, smoothing in itertools.product((probs, labels), (0.0, 0.75, 1.0)):
            for weights in (None, weight):
                ours = W.cross_entropy(x, target, weights, reduction="none", label_smoothing=smoothing)
                exact = [t.cpu().double() if t is not None and t.is_floating_point() else t for t in (x, target, weights)]
                twin = F.cross_entropy(*(t if t is None else t.cpu() for t in exact), reduction="none", label_smoothing=smoothing)
                torch.testing.assert_close(ours.cpu().double(), twin, equal_nan=True, rtol=1e-5, atol=1e-5)


def test_types_of_probabilities(device):
    """The loss has the widest of the types, whole-number weights count as numbers."""
    x = torch.randn(4, 3)
    probs = torch.rand(4, 3)
    for a, b, c in itertools.product(DTYPES, DTYPES, [None, *DTYPES, torch.int64]):
        weight = None if c is None else (2 * torch.rand(3) + 1).to(device, c)
        args = x.to(device, a).requires_grad_(), probs.to(device, b).requires_grad_(), weight
        y, want = W.cross_entropy(*args), F.cross_entropy(*args)
        assert y.dtype == want.dtype
        torch.testing.assert_close(y, want, rtol=1e-2, atol=1e-2)
        for ours, twin in zip(*(torch.autograd.grad(t, args[:2]) for t in (y, want))):
            torch.testing.assert_close(ours, twin, rtol=2e-2, atol=1e-2)


def test_labels_of_bytes(device):
    for shape in ((3,), (6, 3)):
        x, target = torch.randn(shape, device=device), torch.randint(3, rows(shape), device=device)
        for smoothing in (0.0, 0.1):
            assert torch.equal(W.cross_entropy(x, target.byte(), label_smoothing=smoothing), W.cross_entropy(x, target, label_smoothing=smoothing))
    x = torch.randn(3, device=device)
    for reduction in REDUCTIONS:   # one label for logits without a batch
        ours, twin = (f(x, torch.tensor([2], device=device), reduction=reduction) for f in (W.cross_entropy, F.cross_entropy))
        torch.testing.assert_close(ours, twin)


def test_settings_that_stand_for_others(device):
    x, target = torch.randn(6, 3, device=device), torch.randint(3, (6,), device=device)
    for options in ({"label_smoothing": 1}, {"label_smoothing": True}, {"label_smoothing": -0.5}, {"label_smoothing": float("nan")},
                    {"label_smoothing": torch.tensor(0.25)}, {"ignore_index": torch.tensor(1)}, {"ignore_index": -2**63}, {"ignore_index": 2**63 - 1}):
        torch.testing.assert_close(W.cross_entropy(x, target, **options), F.cross_entropy(x, target, **options))
    for options in ({"size_average": False}, {"reduce": False}, {"size_average": True, "reduce": True}, {"reduction": "elementwise_mean"}):
        with pytest.warns(UserWarning, match="deprecated|renamed"):
            ours = W.cross_entropy(x, target, **options)
        with pytest.warns(UserWarning):
            torch.testing.assert_close(ours, F.cross_entropy(x, target, **options))


# ---------------------------------------------------------------------------------------------- labels that are no class

@pytest.mark.parametrize("wrong", [3, -1, 255, 2**40, -2**63])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d)[6:])
def test_a_label_that_is_no_class(wrong, dtype):
    x = torch.randn(2, 3, 4, 5).to(dtype)
    for reduction, smoothing in itertools.product(REDUCTIONS, (0.0, 0.1, 1.0)):
        target = torch.randint(3, (2, 4, 5))
        target[1, 2, 3] = wrong
        text = re.escape(f"target: is {wrong}, allowed: a class, 0 or more and below 3, or ignore_index, -100")
        for y in (x, channels_last(x)):
            with pytest.raises(IndexError, match=text):
                W.cross_entropy(y, target, reduction=reduction, label_smoothing=smoothing)
            with pytest.raises(IndexError):
                F.cross_entropy(y, target, reduction=reduction, label_smoothing=smoothing)
        assert torch.isfinite(W.cross_entropy(x, target, ignore_index=wrong, reduction=reduction, label_smoothing=smoothing)).all()


def test_a_loss_of_nan_is_no_wrong_label():
    x = torch.full((2, 3), float("nan"))
    assert all(W.cross_entropy(x, torch.tensor([1, 2]), reduction=r).isnan().all() for r in REDUCTIONS)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_label_that_is_no_class_on_a_gpu():
    x, target = torch.randn(4, 3, device="cuda", requires_grad=True), torch.tensor([0, 7, 2, 1], device="cuda")
    assert W.cross_entropy(x, target, reduction="none").isnan().tolist() == [False, True, False, False] and W.cross_entropy(x, target).isnan()


# ---------------------------------------------------------------------------------------------- derivatives

OPTIONS = [("labels", False, 0.0, "mean"), ("ignored", True, 0.2, "mean"), ("ignored", True, 0.0, "none"), ("labels", False, 0.2, "sum"),
           ("probs", True, 0.2, "mean"), ("probs", False, 0.0, "none"), ("probs", True, 0.0, "sum")]


def _case(kind, weighted, smoothing, reduction, shape, device):
    """The tensors that have gradients, and both functions of them."""
    x = torch.randn(shape, dtype=torch.float64, device=device, requires_grad=True)
    target = target_of(kind, shape, torch.float64).to(device)
    weight = 0.1 + torch.rand(3, dtype=torch.float64, device=device) if weighted else None
    leaves = [x, *(t.requires_grad_() for t in (target, weight) if kind == "probs" and t is not None)]

    def bind(f):
        def run(x, *others):
            t, w = (*others, weight)[:2] if kind == "probs" else (target, weight)
            return f(x, t, w, reduction=reduction, label_smoothing=smoothing)
        return run
    return leaves, bind(W.cross_entropy), bind(F.cross_entropy)


@pytest.mark.parametrize("kind, weighted, smoothing, reduction", OPTIONS)
def test_gradcheck(kind, weighted, smoothing, reduction, device):
    for shape in ((3,), (4, 3), (2, 3, 2)):
        leaves, ours, _ = _case(kind, weighted, smoothing, reduction, shape, device)
        assert torch.autograd.gradcheck(ours, leaves, check_forward_ad=True)
        assert torch.autograd.gradgradcheck(ours, leaves, check_fwd_over_rev=True)


@pytest.mark.parametrize("kind, weighted, smoothing, reduction", OPTIONS)
def test_third_derivative(kind, weighted, smoothing, reduction, device):
    leaves, *functions = _case(kind, weighted, smoothing, reduction, (2, 3, 2), device)
    results = []
    for f in functions:
        g = torch.autograd.grad(f(*leaves).pow(2).sum(), leaves, create_graph=True)
        h = torch.autograd.grad(sum(t.pow(2).sum() for t in g), leaves, create_graph=True)
        results.append((g, h, torch.autograd.grad(sum(t.pow(2).sum() for t in h), leaves)))
    torch.testing.assert_close(*results, rtol=1e-8, atol=1e-10)


def test_gradients_of_some(device):
    """Only of probabilities, only of weights, and the format of the gradient: that of the logits."""
    x, t, w = (torch.randn(2, 3, 4, 5, device=device), torch.rand(2, 3, 4, 5, device=device), torch.rand(3, device=device))
    for i, leaf in enumerate((x, t, w)):
        args = [v.detach().requires_grad_(i == j) for j, v in enumerate((x, t, w))]
        torch.testing.assert_close(*(torch.autograd.grad(f(*args), args[i])[0] for f in (W.cross_entropy, F.cross_entropy)))
    last = channels_last(x).requires_grad_()
    got, = torch.autograd.grad(W.cross_entropy(last, torch.randint(3, (2, 4, 5), device=device)), last)
    assert got.is_contiguous(memory_format=torch.channels_last)


def looped(f, dim=0):
    """vmap as a loop, for a twin that has no vmap of its own with labels and smoothing."""
    return lambda *args: torch.stack([f(*(a.select(dim, i) for a in args)) for i in range(args[0].shape[dim])])


TRANSFORMS = {
    "grad": lambda f, x, t, vmap: func.grad(lambda x: f(x, t).sum())(x),
    "hessian": lambda f, x, t, vmap: func.hessian(lambda x: f(x, t).sum())(x),
    "jvp": lambda f, x, t, vmap: func.jvp(lambda x: f(x, t), (x,), (x.sin(),)),
    "jvp-grad": lambda f, x, t, vmap: func.jvp(func.grad(lambda x: f(x, t).sum()), (x,), (x.sin(),))[1],
    "grad-jvp": lambda f, x, t, vmap: func.grad(lambda x: func.jvp(lambda x: f(x, t), (x,), (x.sin(),))[1].sum())(x),
    "vmap": lambda f, x, t, vmap: vmap(f)(torch.stack([x, 2 * x, -x]), torch.stack([t, t.flip(0), t])),
    "vmap-input": lambda f, x, t, vmap: vmap(lambda x: f(x, t), 1)(torch.stack([x, 2 * x, -x], 1)),
    "vmap-target": lambda f, x, t, vmap: vmap(lambda t: f(x, t))(torch.stack([t, t.flip(0)])),
    "vmap-grad": lambda f, x, t, vmap: vmap(func.grad(lambda x, t: f(x, t).sum()))(torch.stack([x, 2 * x, -x]), torch.stack([t, t.flip(0), t])),
    "vmap-vmap": lambda f, x, t, vmap: vmap(vmap(f))(torch.stack([x, -x]).unsqueeze(1), torch.stack([t, t.flip(0)]).unsqueeze(1)),
    "per-sample": lambda f, x, t, vmap: vmap(func.grad(lambda x, t: f(x, t).sum()))(x, t),
    "functionalize": lambda f, x, t, vmap: func.functionalize(func.grad(lambda x: f(x, t).sum()))(x),
}


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("kind, weighted, smoothing, reduction", OPTIONS)
def test_torch_func(name, kind, weighted, smoothing, reduction, device):
    shape = (4, 3) if name == "per-sample" else (2, 3, 2)
    x = torch.randn(shape, dtype=torch.float64, device=device)
    target = target_of("labels" if name == "per-sample" and kind == "ignored" else kind, shape, torch.float64).to(device)
    weight = 0.1 + torch.rand(3, dtype=torch.float64, device=device) if weighted else None
    results = [TRANSFORMS[name](lambda x, t: f(x, t, weight, reduction=reduction, label_smoothing=smoothing), x, target, vmap)   # noqa: B023
               for f, vmap in ((W.cross_entropy, func.vmap), (F.cross_entropy, looped))]
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-12)


def test_vmap_over_weights():
    x, target = torch.randn(4, 3), torch.randint(3, (4,))
    with pytest.raises(RuntimeError, match="weight: cannot be mapped over a dimension by torch.vmap"):
        func.vmap(lambda w: W.cross_entropy(x, target, w))(torch.rand(2, 3))


def test_labels_need_no_formula(device, monkeypatch):
    """The gradient of the logits is the operator's: the formula is for what has no operator."""
    x, target = torch.randn(2, 5, 4, 3, device=device, requires_grad=True), torch.randint(5, (2, 4, 3), device=device)
    with weft.backends.flags(delegate=False):
        loss = W.cross_entropy(x, target)

        def refuse(*_, **__):
            raise AssertionError("PyTorch's cross entropy was called")
        monkeypatch.setattr(F, "cross_entropy", refuse)
        loss.backward()
    assert x.grad is not None


def test_what_is_kept(device):
    """Logits, target and one number a row, where there is enough to compute that it is not PyTorch's."""
    kept = []
    x, target = torch.randn(2, 30, 4000, device=device).requires_grad_(), torch.randint(30, (2, 4000), device=device)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        W.cross_entropy(x, target)
    assert [t.numel() for t in kept] == [240000, 8000, 8000] and kept[0].data_ptr() == x.data_ptr()


# ---------------------------------------------------------------------------------------------- traces

def _samples(device, grad):
    x, probs = torch.randn(2, 3, 4, 5, device=device), torch.rand(2, 3, 4, 5, device=device)
    labels, weight = torch.randint(3, (2, 4, 5), device=device), torch.rand(3, device=device)
    for logits, target, w, reduction in ((x, labels, weight, 1), (channels_last(x), labels, None, 0), (channels_last(x), probs, weight, 2),
                                         (x[0, :, 0, 0], labels[0, 0, 0], None, 1)):
        logits = logits.detach().requires_grad_(grad)
        target, w = (t if t is None or not target.is_floating_point() else t.detach().requires_grad_(grad) for t in (target, w))
        args, settings = (logits, target, w), (-100, reduction, 0.1)
        loss, lse = torch.ops.weft.cross_entropy(*(t if t is None else t.detach() for t in args), *settings)
        yield "cross_entropy", (*args, *settings)
        yield "cross_entropy_backward", (torch.ones_like(loss).requires_grad_(grad), *args, lse, *settings)
        if not grad:
            yield "cross_entropy_out", (*args, *settings, torch.empty_like(loss))


@pytest.mark.parametrize("grad", [False, True])
def test_opcheck(grad, device):
    for name, args in _samples(device, grad):
        torch.library.opcheck(getattr(torch.ops.weft, name).default, args)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("format", [lambda t: t, channels_last], ids=["first", "last"])
def test_compile(kind, format, device):
    torch.compiler.reset()
    from torch._dynamo.testing import CompileCounterWithBackend
    counter = CompileCounterWithBackend("aot_eager")
    weight = torch.rand(3, device=device)

    def f(x, t):
        return W.cross_entropy(x, t, weight, label_smoothing=0.1) + W.cross_entropy(x, t, reduction="none").square().mean()
    compiled = torch.compile(f, fullgraph=True, backend=counter, dynamic=True)
    frames = []   # PyTorch starts the first one again when it finds that label_smoothing is a constant
    for shape in ((2, 3, 4, 5), (5, 3, 6, 7), (4, 3, 8, 9)):
        x = format(torch.randn(shape, device=device)).requires_grad_()
        target = target_of(kind, shape).to(device).requires_grad_(kind == "probs")
        leaves = [x, target] if kind == "probs" else [x]
        torch.testing.assert_close(*((y.detach(), torch.autograd.grad(y, leaves)) for y in (compiled(x, target), f(x, target))))
        frames.append(counter.frame_count)
    assert frames[0] == frames[-1]
    still = torch.compile(f, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(*(torch.autograd.grad(g(x, target), x)[0] for g in (still, f)))


@pytest.mark.parametrize("kind", ["labels", "probs"])
def test_sizes_that_nobody_knows(kind, device):
    x, target = torch.randn(2, 3, 6, device=device), target_of(kind, (2, 3, 6)).to(device)
    for value, axes in ((x, (0, 2)), (target, (0, 1) if kind == "labels" else (0, 2))):
        for axis in axes:
            torch._dynamo.decorators.mark_unbacked(value, axis)
    compiled = torch.compile(lambda x, t: W.cross_entropy(x, t, reduction="none"), fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x, target), F.cross_entropy(x, target, reduction="none"))


def test_a_wrong_label_in_a_compiled_function():
    compiled = torch.compile(lambda x, t: W.cross_entropy(x, t), fullgraph=True, backend="aot_eager")
    with pytest.raises((IndexError, RuntimeError), match="target: is 3, allowed: a class"):
        compiled(torch.randn(2, 3), torch.tensor([1, 3]))


def test_export(device):
    module, x, target = weft.nn.CrossEntropyLoss(), torch.randn(2, 3, 4, device=device), torch.randint(3, (2, 4), device=device)
    n, w = torch.export.Dim("n", min=2), torch.export.Dim("w", min=2)
    program = torch.export.export(module, (x, target), dynamic_shapes=({0: n, 2: w}, {0: n, 1: w}))
    x, target = torch.randn(5, 3, 7, device=device), torch.randint(3, (5, 7), device=device)
    torch.testing.assert_close(program.module()(x, target), module(x, target))


def test_meta_tensors():
    x = torch.empty(2, 3, 4, device="meta")
    assert W.cross_entropy(x, torch.empty(2, 4, dtype=torch.int64, device="meta")).shape == ()
    assert W.cross_entropy(x, x, reduction="none").shape == (2, 4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=lambda d: str(d)[6:])
def test_autocast(dtype, device):
    labels = torch.randint(3, (4,), device=device)
    with torch.autocast(device.type, dtype=dtype):
        for given in DTYPES:
            x, probs = torch.randn(4, 3, device=device).to(given).requires_grad_(), torch.rand(4, 3, device=device).to(given)
            weighed = [(x, labels, torch.ones(3, device=device))] if given in (torch.float16, torch.bfloat16) else []   # types agree after the cast
            for args in ((x, labels), (x, probs), (x, probs, torch.rand(3, device=device).to(given)), *weighed):
                ours, twin = (f(*args) for f in (W.cross_entropy, F.cross_entropy))
                assert ours.dtype == twin.dtype
                wide = [t.float() if t.is_floating_point() and t.dtype != torch.float64 else t for t in args]
                with torch.autocast(device.type, enabled=False):   # on CUDA the twin rounds to 16 bits on its way
                    truth = F.cross_entropy(*wide)
                torch.testing.assert_close(ours, truth.to(ours.dtype))
            assert torch.autograd.grad(W.cross_entropy(x, labels), x)[0].dtype == given


# ---------------------------------------------------------------------------------------------- modules

def test_module(device):
    x, target = torch.randn(2, 3, 4, 5, device=device), torch.randint(3, (2, 4, 5), device=device)
    for options in ({}, {"weight": torch.rand(3)}, {"ignore_index": 1, "reduction": "sum"}, {"label_smoothing": 0.2, "reduction": "none"}):
        ours, twin = (m.CrossEntropyLoss(**options).to(device) for m in (weft.nn, torch.nn))
        for t in (x, channels_last(x)):
            torch.testing.assert_close(ours(t, target), twin(t, target))
        assert isinstance(ours, type(twin)) and repr(ours) == f"weft.{twin!r}" and list(ours.state_dict()) == list(twin.state_dict())
        ours.load_state_dict(twin.state_dict())
        twin.load_state_dict(ours.state_dict())
        for other in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
            assert torch.equal(other(x, target), ours(x, target)) and repr(other) == repr(ours)
        assert ours.double()(x.double(), target).dtype == torch.float64
        twin.double().__class__ = weft.nn.CrossEntropyLoss
        assert torch.equal(twin(x.double(), target), ours(x.double(), target))


@pytest.mark.parametrize("name, shape", [("SpatialCrossEntropyLoss", (2, 3, 4, 5)), ("VolumetricCrossEntropyLoss", (2, 3, 2, 4, 5))])
@pytest.mark.parametrize("kind", KINDS)
def test_losses_of_pixels(name, shape, kind, device):
    for reduction in REDUCTIONS:
        module = getattr(weft.nn, name)(weight=torch.rand(3), reduction=reduction).to(device)
        twin = torch.nn.CrossEntropyLoss(weight=module.weight, reduction=reduction)
        x, target = torch.randn(shape, device=device), target_of(kind, shape).to(device)
        torch.testing.assert_close(module(x, target), twin(x, target))
        alone = twin(x[:1], target[:1])
        torch.testing.assert_close(module(x[0], target[0]), alone[0] if reduction == "none" else alone)
        assert repr(module) == f"weft.{name}()" and isinstance(module, weft.nn.CrossEntropyLoss)
        for wrong in (x[0, 0], x.unsqueeze(0)):
            with pytest.raises(RuntimeError, match=re.escape(f"{name}: input has {wrong.dim()} dimensions {list(wrong.shape)}, allowed: {len(shape) - 1} "
                                                             f"(unbatched) or {len(shape)} (batched)")):
                module(wrong, target)


def test_subclasses_modes_and_fx():
    class Marked(torch.Tensor):
        pass
    x, target = torch.randn(4, 3), torch.randint(3, (4,))
    assert type(W.cross_entropy(x.as_subclass(Marked), target, reduction="none")) is Marked
    traced = torch.fx.symbolic_trace(weft.nn.CrossEntropyLoss())
    assert torch.equal(traced(x, target), W.cross_entropy(x, target)) and any(n.target is W.cross_entropy for n in traced.graph.nodes)


# ---------------------------------------------------------------------------------------------- out

def test_out(device):
    x, target = torch.randn(2, 3, 4, 5, device=device), torch.randint(3, (2, 4, 5), device=device)
    want = F.cross_entropy(x, target, reduction="none")
    for out in (torch.empty(2, 4, 5, device=device), torch.empty(2, 5, 4, device=device).transpose(1, 2), scattered(torch.empty(2, 4, 5, device=device))):
        version = out._version
        assert W.cross_entropy(x, target, reduction="none", out=out) is out and out._version > version
        torch.testing.assert_close(out, want)
    out = torch.empty((), device=device)
    assert W.cross_entropy(x, target, out=out) is out
    torch.testing.assert_close(out, want.mean())
