"""weft.functional.sparse_conv* and weft.SparseWeight: against torch.nn.functional.conv* with the zeros written out, forward and gradients."""
from __future__ import annotations

import copy
import io
import math
import re

import pytest
import torch
import torch.nn.functional as F

import weft
import weft.functional as W
from cases import CASES, DTYPES, SMALL, case, channels_last, close, opcheck_convolution, scattered, shifted, truth_of
from weft.sparse import SparseWeight, from_csr, from_dense

ids = lambda v: str(v).replace("torch.", "")
PLAIN = [c for c in CASES if not c.transposed]
SMALL = [c for c in SMALL if not c.transposed]


def weft_of(c):
    return getattr(W, "sparse_" + c.function)


def pruned(w):
    """Two thirds are 0, also the whole first row."""
    w = torch.where(torch.rand(w.shape, device=w.device) < 0.33, w, torch.zeros_like(w))
    w[0] = 0
    return w


def tensors_of(c, device, dtype=torch.float32):
    x, w, b = c.tensors(device, dtype)
    return x, pruned(w), b


@pytest.mark.parametrize("c", PLAIN, ids=str)
def test_twin(c, device):
    """A dense weight and its SparseWeight give the same; the gradient of a weight that is 0 is 0."""
    for dtype in DTYPES:
        x, w, b = (None if t is None else t.requires_grad_() for t in tensors_of(c, device, dtype))
        y = weft_of(c)(x, w, b, **c.options)
        grad = torch.randn_like(y)
        truth = truth_of(c, [x, w, b], grad)
        truth[2] = torch.where(w.detach().cpu() != 0, truth[2], 0.0)
        leaves = [t for t in (x, w, b) if t is not None]
        for ours, theirs in zip([y, *torch.autograd.grad(y, leaves, grad)], truth, strict=True):
            close(ours.cpu(), theirs, 4 * math.prod(c.weight[1:]))
        held = from_dense(w.detach())
        held.values.requires_grad_()
        again = weft_of(c)(x, held, b, **c.options)
        assert torch.equal(again, y) and held.nnz == w.count_nonzero()
        close(torch.autograd.grad(again, held.values, grad)[0], held.gather(truth[2].to(device)), 4 * math.prod(c.weight[1:]))


@pytest.mark.parametrize("act", ["relu", "clip"])
def test_activation(act, device):
    c = case("2d-grouped")
    x, w, b = tensors_of(c, device, torch.float64)
    held = from_dense(w)
    leaves = x.requires_grad_(), held.values.clone().requires_grad_(), b.requires_grad_()
    run = lambda x, v, b: W.sparse_conv2d(x, held.with_values(v), b, **c.options, act=act, clip=(-0.5, 0.5))
    y = F.conv2d(x, w, b, **c.options)
    torch.testing.assert_close(run(*leaves), y.relu() if act == "relu" else y.clamp(-0.5, 0.5))
    assert torch.autograd.gradcheck(run, leaves, fast_mode=True) and torch.autograd.gradgradcheck(run, leaves, fast_mode=True)


def test_nan_goes_only_where_a_kept_weight_reads_it(device):
    x, w = torch.randn(1, 2, 5, 5, device=device), torch.zeros(2, 2, 3, 3, device=device)
    w[0, 1] = 1
    x[0, 0, 2, 2] = float("nan")
    assert W.sparse_conv2d(x, w).isfinite().all() and F.conv2d(x, w).isnan().any()


def test_no_weights_at_all(device):
    x, b = torch.randn(2, 4, 6, 6, device=device, requires_grad=True), torch.randn(8, device=device)
    held = from_dense(torch.zeros(8, 4, 3, 3, device=device))
    y = W.sparse_conv2d(x, held, b)
    assert held.nnz == 0 and held.sparsity == 1 and torch.equal(y, b.view(-1, 1, 1).expand(2, 8, 4, 4))
    y.sum().backward()
    assert x.grad.eq(0).all() and held.to_dense().eq(0).all()


# ---------------------------------------------------------------- memory
VIEWS = {"first": lambda t: t, "last": channels_last, "scattered": scattered, "shifted": shifted}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("name", ["1d-stride-dilation", "2d-grouped", "3d-grouped"])
def test_views(name, view, device):
    c = case(name)
    x, w, b = tensors_of(c, device)
    held = from_dense(VIEWS[view](w))
    assert torch.equal(held.values, w[w != 0]) and torch.equal(held.to_dense(), w)
    far = lambda t: torch.stack([t, t + 1], 1)[:, 0]   # a gap after every element
    other = SparseWeight(far(held.values), far(held.rows), far(held.cols), held.shape)
    for kind in (torch.int32, torch.int64):
        assert torch.equal(SparseWeight(far(held.values), far(held.rows.to(kind)), far(held.cols.to(kind)), held.shape).to_dense(), w)
    expected, y = weft_of(c)(x, held, b, **c.options), weft_of(c)(VIEWS[view](x), other, shifted(b), **c.options)
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)
    assert y.stride() == (channels_last(expected) if view == "last" else expected).stride()
    leaves = [(d.clone().requires_grad_(), v.clone().requires_grad_()) for d, v in ((x, held.values), (VIEWS[view](x), held.values))]
    grads = [torch.autograd.grad(weft_of(c)(d, held.with_values(v), None, **c.options).sum(), (d, v)) for d, v in leaves]   # strides of 0
    torch.testing.assert_close(grads[0], grads[1], rtol=1e-4, atol=1e-4)


def test_out(device):
    c = case("2d-grouped")
    x, w, b = tensors_of(c, device)
    held = from_dense(w)
    y = W.sparse_conv2d(x, held, b, **c.options)
    for given in (torch.empty_like(y), scattered(torch.empty_like(y)), channels_last(torch.empty_like(y))):
        assert W.sparse_conv2d(x, held, b, **c.options, out=given) is given      # other strides may be another kernel, which sums in another order
        torch.testing.assert_close(given, y, rtol=1e-5, atol=1e-6)
    square = torch.randn(2, 4, 6, 6, device=device)
    eye = from_dense(torch.eye(4, device=device).view(4, 4, 1, 1))
    for given, kind, text in ((3, TypeError, "out: is int, allowed: Tensor or None"), (square[:1], RuntimeError, "out: has the shape"),
                              (square.double(), RuntimeError, "out: is float64, allowed: the type of the result, float32"),
                              (square, RuntimeError, "out: shares memory with input"),
                              (square[:, :1].expand_as(square), RuntimeError, "out: is expanded along dimension 1")):
        with pytest.raises(kind, match=re.escape(text)):
            W.sparse_conv2d(square, eye, out=given)


# ---------------------------------------------------------------- the weights
@pytest.mark.parametrize("dtype", DTYPES, ids=ids)
@pytest.mark.parametrize("shape", [(4, 3, 5), (4, 2, 3, 3), (3, 2, 2, 3, 1)], ids=str)
def test_from_dense_and_back(shape, dtype, device):
    dense = pruned(torch.randn(shape).to(device, dtype))
    held = from_dense(dense)
    csr = dense.cpu().reshape(shape[0], -1).to_sparse_csr()
    assert held.rows.dtype == held.cols.dtype == torch.int32 and held.values.dtype == dtype and held.values.device.type == device.type
    assert torch.equal(held.rows.cpu().long(), csr.crow_indices()) and torch.equal(held.cols.cpu().long(), csr.col_indices())
    assert torch.equal(held.values.cpu(), csr.values()) and torch.equal(held.to_dense(), dense)
    assert held.nnz == dense.count_nonzero() and held.sparsity == pytest.approx(1 - held.nnz / dense.numel())
    again = from_csr(csr, shape[2:]).to(device)
    assert again.shape == shape and torch.equal(again.to_dense(), dense)


def test_gradients_of_gather_and_to_dense(device):
    dense = pruned(torch.randn(3, 2, 3, device=device, dtype=torch.float64)).requires_grad_()
    held = from_dense(dense.detach())
    assert torch.autograd.gradcheck(held.gather, dense) and torch.autograd.gradgradcheck(held.gather, dense)
    values = held.values.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda v: held.with_values(v).to_dense(), values)
    assert from_dense(dense).values.requires_grad and not held.values.requires_grad
    with torch.no_grad():
        assert not from_dense(dense).values.requires_grad


def test_nan_and_infinity_are_kept_and_minus_zero_is_not(device):
    held = from_dense(torch.tensor([float("nan"), -0.0, float("inf"), 0.0], device=device).view(1, 1, 4))
    assert held.cols.tolist() == [0, 2] and held.values.isnan().tolist() == [True, False]


def test_order_is_free_and_equal_columns_add_up(device):
    held = SparseWeight(*(torch.tensor(v, device=device) for v in ([1.0, 2.0, 0.5, 3.0], [0, 3, 4], [4, 0, 4, 1])), (2, 2, 3))
    x = torch.randn(1, 2, 6, device=device)
    assert held.to_dense().flatten().tolist() == [2, 0, 0, 0, 1.5, 0, 0, 3, 0, 0, 0, 0]
    torch.testing.assert_close(W.sparse_conv1d(x, held), F.conv1d(x, held.to_dense()), rtol=1e-5, atol=1e-5)


def test_copies_types_and_files(device):
    held = from_dense(pruned(torch.randn(4, 2, 3, 3, device=device)))
    file = io.BytesIO()
    torch.save(held, file)
    file.seek(0)
    x = torch.randn(1, 2, 5, 5, device=device)
    for other in (copy.deepcopy(held), torch.load(file, weights_only=False), held.to(device), held.to(torch.float64).to(torch.float32)):
        assert torch.equal(W.sparse_conv2d(x, other), W.sparse_conv2d(x, held)) and repr(other) == repr(held)
    assert repr(held.to("cpu")).startswith(f"weft.SparseWeight(shape=(4, 2, 3, 3), nnz={held.nnz}, sparsity=")
    half = held.to(torch.float16)
    assert W.sparse_conv2d(x.half(), half).dtype == torch.float16 and weft.SparseWeight is SparseWeight


# ---------------------------------------------------------------- derivatives
@pytest.mark.parametrize("c", SMALL, ids=str)
def test_gradcheck(c, device):
    x, w, b = tensors_of(c, device, torch.float64)
    held = from_dense(w)
    leaves = [t.requires_grad_() for t in (x, held.values.clone(), b) if t is not None]
    run = lambda x, v, b=None: weft_of(c)(x, held.with_values(v), b, **c.options)
    assert torch.autograd.gradcheck(run, leaves, fast_mode=True, check_forward_ad=True) and torch.autograd.gradgradcheck(run, leaves, fast_mode=True)


@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 2), (1, 2)], ids=str)
def test_gradients_of_some(wanted, device):
    c = case("2d-grouped")
    x, w, b = tensors_of(c, device, torch.float64)
    leaves = [t.requires_grad_(i in wanted) for i, t in enumerate((x, w, b))]
    y = W.sparse_conv2d(*leaves, **c.options)
    grad = torch.randn_like(y)
    truth = torch.autograd.grad(F.conv2d(*leaves, **c.options), [leaves[i] for i in wanted], grad)
    for i, ours, theirs in zip(wanted, torch.autograd.grad(y, [leaves[i] for i in wanted], grad), truth):
        torch.testing.assert_close(ours, torch.where(w != 0, theirs, 0.0) if i == 1 else theirs)


func = torch.func
TRANSFORMS = {
    "grad-grad": lambda f, x, v: func.grad(lambda v: func.grad(lambda x: f(x, v).pow(3).sum())(x).sum())(v),
    "jvp": lambda f, x, v: func.jvp(f, (x, v), (v.sum() * x, v))[1],
    "jvp-grad": lambda f, x, v: func.jvp(lambda v: func.grad(lambda x: f(x, v).pow(3).sum())(x), (v,), (v,))[1],
    "jacfwd": lambda f, x, v: func.jacfwd(lambda v: f(x[:1], v))(v),
    "third": lambda f, x, v: func.grad(lambda x: func.grad(lambda v: func.grad(lambda x: f(x, v).pow(4).sum())(x).pow(2).sum())(v).pow(2).sum())(x),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms(name, device):
    c = case("1d-stride-dilation")
    x, w, b = tensors_of(c, device, torch.float64)
    held = from_dense(w)
    ours = TRANSFORMS[name](lambda x, v: weft_of(c)(x, held.with_values(v), b, **c.options), x, held.values)
    theirs = TRANSFORMS[name](lambda x, v: c.twin(x, held.with_values(v).to_dense(), b, **c.options), x, held.values)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["1d-stride-dilation", "2d-unbatched", "3d-grouped"])
def test_vmap(name, device):
    c = case(name)
    x, w, b = tensors_of(c, device, torch.float64)
    held = from_dense(w)
    xs, vs, bs = torch.stack([x, 2 * x, x.neg()], 1), torch.stack([held.values, 3 * held.values, held.values.neg()]), torch.stack([b, b, -b])
    f = lambda x, v, b: weft_of(c)(x, held.with_values(v), b, **c.options)
    for g in (f, func.grad(lambda *a: f(*a).square().sum(), (0, 1, 2))):
        for dims, args in (((1, None, None), (xs, held.values, b)), ((None, 0, None), (x, vs, b)), ((1, 0, 0), (xs, vs, bs))):
            each = [g(*(a if d is None else a.select(d, i) for d, a in zip(dims, args))) for i in range(3)]
            expected = torch.stack(each) if g is f else tuple(torch.stack(t) for t in zip(*each))
            torch.testing.assert_close(func.vmap(g, dims)(*args), expected, rtol=1e-9, atol=1e-9)
    with pytest.raises(RuntimeError, match="rows and cols cannot be mapped"):
        func.vmap(lambda r: weft_of(c)(x, SparseWeight(held.values, r, held.cols, held.shape, check=False), b, **c.options))(torch.stack([held.rows] * 2))


# ---------------------------------------------------------------- tracing
def samples(device, grad):
    x, b = (torch.randn(s, device=device, requires_grad=grad) for s in ((2, 4, 6, 5), (8,)))
    last, held = channels_last(x.detach()).requires_grad_(grad), from_dense(pruned(torch.randn(8, 2, 3, 2, device=device)))
    v, csr = held.values.requires_grad_(grad), (held.rows, held.cols, [8, 2, 3, 2], [2, 1], [1, 1, 0, 2], [1, 2], 2)
    yield "sparse_conv", (x, v, b, *csr, "", 0.0, 0.0)
    yield "sparse_conv", (last, v, None, *csr, "relu", 0.0, 0.0)
    yield "sparse_conv", (last, v, b, *csr, "clip", -0.5, 0.5)
    dy = torch.randn(2, 8, 3, 5, device=device, requires_grad=grad)
    yield "sparse_conv_backward", (dy, last, v, *csr, 7, torch.float32)
    yield "sparse_conv_backward", (dy, x, v, *csr, 2, torch.float32)
    if not grad:
        yield "sparse_conv_out", (last, v, None, *csr, "", 0.0, 0.0, torch.empty_like(dy))
        yield "sparse_positions", (held.rows.cpu(), held.cols.cpu(), [8, 2, 3, 2])


@pytest.mark.parametrize("grad", [False, True])
def test_opcheck(grad, device):
    for name, args in samples(device, grad):
        opcheck_convolution(getattr(torch.ops.weft, name).default, args)


def test_opcheck_of_building():
    torch.library.opcheck(torch.ops.weft.sparse_build.default, (pruned(torch.randn(4, 2, 3)),))


def compare(compiled, f, tensors):
    results = []
    for g in (compiled, f):
        leaves = [t.detach().clone().requires_grad_() for t in tensors]
        y = g(*leaves)
        y.square().sum().backward()
        results.append([y.detach(), *(t.grad for t in leaves)])
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)
    assert results[0][0].stride() == results[1][0].stride()


@pytest.mark.parametrize("name", ["1d-unbatched", "2d-grouped", "3d-same"])
def test_compile(name, device):
    """A SparseWeight from outside, and one that is put together inside."""
    torch.compiler.reset()
    c = case(name)
    x, w, b = tensors_of(c, device)
    held = from_dense(w)
    f = lambda x, v, b: weft_of(c)(x, SparseWeight(v, held.rows, held.cols, held.shape, check=False), b, **c.options, act="relu")
    compare(torch.compile(f, fullgraph=True, backend="aot_eager"), f, (x, held.values, b))
    g = lambda x, held: weft_of(c)(x, held, None, **c.options)
    torch.testing.assert_close(torch.compile(g, fullgraph=True, backend="aot_eager")(x, held), g(x, held))


def test_compile_with_dense_weights(device):
    """How many are kept is not known when it is compiled."""
    torch.compiler.reset()
    f = lambda x, w: W.sparse_conv2d(x, w, padding=1, groups=2)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
        for _ in range(2):
            compare(compiled, f, (torch.randn(2, 4, 6, 7, device=device), pruned(torch.randn(6, 2, 3, 3, device=device))))


def test_dynamic_shapes(device):
    torch.compiler.reset()
    from torch._dynamo.testing import CompileCounterWithBackend
    counter = CompileCounterWithBackend("aot_eager")
    held = from_dense(pruned(torch.randn(6, 4, 3, 3, device=device)))
    f = lambda x, v: W.sparse_conv2d(x, held.with_values(v), padding=1)
    compiled = torch.compile(f, fullgraph=True, backend=counter, dynamic=True)
    for n, h, width in ((2, 9, 8), (3, 10, 11), (5, 6, 13)):   # 7, the length of rows, would be taken for the same size
        compare(compiled, f, (torch.randn(n, 4, h, width, device=device), held.values))
    assert counter.frame_count == 1


class Net(torch.nn.Module):
    """One weight as a parameter and buffers, one as it is."""

    def __init__(self, device):
        super().__init__()
        held, self.second = (from_dense(pruned(torch.randn(n, 4, 3, 3, device=device))) for n in (4, 8))
        self.values, self.shape = torch.nn.Parameter(held.values), held.shape
        self.register_buffer("rows", held.rows)
        self.register_buffer("cols", held.cols)

    def forward(self, x):
        x = W.sparse_conv2d(x, SparseWeight(self.values, self.rows, self.cols, self.shape, check=False), padding="same")
        return W.sparse_conv2d(x, self.second)


def test_export_and_symbolic_trace(device):
    net, x = Net(device), torch.randn(2, 4, 6, 7, device=device)
    torch.testing.assert_close(torch.export.export(net, (x,)).module()(x), net(x))
    traced = torch.fx.symbolic_trace(net)
    assert torch.equal(traced(x), net(x)) and dict(traced.named_parameters()).keys() == {"values"}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=ids)
def test_autocast(dtype, device):
    c = case("2d-grouped")
    x, w, b = (t.requires_grad_() for t in tensors_of(c, device))
    with torch.autocast(device.type, dtype=dtype):
        y, twin = W.sparse_conv2d(x, w, b, **c.options), F.conv2d(x, w, b, **c.options)
        assert W.sparse_conv2d(x.double(), w.double(), b.double(), **c.options).dtype == torch.float64
    assert y.dtype == twin.dtype == dtype
    torch.testing.assert_close(y, twin, rtol=2e-2, atol=2e-2)
    y.sum().backward()
    assert all(t.grad.dtype == torch.float32 for t in (x, w, b))


def test_subclasses(device):
    class Tagged(torch.Tensor):
        pass
    x, w = torch.randn(1, 2, 5, 5, device=device), pruned(torch.randn(2, 2, 3, 3, device=device))
    for weight in (w, from_dense(w)):
        got = W.sparse_conv2d(x.as_subclass(Tagged), weight, None, 2, 1, act="relu")
        assert type(got) is Tagged and torch.equal(got.as_subclass(torch.Tensor), W.sparse_conv2d(x, weight, None, 2, 1, act="relu"))


# ---------------------------------------------------------------- wrong input
def x(*shape, **kw):
    return torch.randn(shape or (2, 4, 6, 6), **kw)


def run(*args, **kw):
    return lambda: W.sparse_conv2d(*args, **kw)


def held(shape=(8, 2, 3, 3)):
    return SparseWeight(torch.ones(3), torch.tensor([0, *[1] * (shape[0] - 1), 3]), torch.tensor([0, 4, 8]), shape)


def weight(**kw):
    """SparseWeight with one part spoilt."""
    parts = {"values": torch.ones(3), "rows": torch.tensor([0, 1, 3]), "cols": torch.tensor([0, 4, 5]), "shape": (2, 2, 3)}
    return lambda: SparseWeight(**(parts | kw))


w4, h = (8, 2, 3, 3), held()
WRONG = {
    "input-kind": (run(None, h), TypeError, "sparse_conv2d: input is NoneType, allowed: Tensor"),
    "input-rank": (run(x(6, 6), h), RuntimeError, "sparse_conv2d: input has 2 dimensions [6, 6], allowed: 3 (unbatched) or 4 (batched)"),
    "weight-kind": (run(x(), [1.0]), TypeError, "sparse_conv2d: weight is list, allowed: SparseWeight or Tensor"),
    "weight-rank": (run(x(), x(4, 4, 3)), RuntimeError, "sparse_conv2d: weight has 3 dimensions [4, 4, 3], allowed: 4"),
    "weight-rank-1d": (lambda: W.sparse_conv1d(x(2, 4, 6), h), RuntimeError, "sparse_conv1d: weight has 4 dimensions [8, 2, 3, 3], allowed: 3"),
    "weight-rank-3d": (lambda: W.sparse_conv3d(x(), h), RuntimeError, "sparse_conv3d: weight has 4 dimensions"),
    "weight-layout": (lambda: W.sparse_conv2d(x(), torch.eye(4).to_sparse_csr(), groups=2), RuntimeError, "sparse_conv2d: weight has 2 dimensions"),
    "bias-kind": (run(x(), h, 1.0, groups=2), TypeError, "sparse_conv2d: bias is float, allowed: Tensor or None"),
    "input-type": (run(x().long(), h, groups=2), RuntimeError, "input: is int64, allowed: float32, float64, float16 or bfloat16"),
    "values-type": (run(x().double(), h, groups=2), RuntimeError, "values: is float32, allowed: the type of input, float64"),
    "bias-length": (run(x(), h, x(4), groups=2), RuntimeError, "bias: has 4 elements, allowed: 8"),
    "bias-rank": (run(x(), h, x(8, 1), groups=2), RuntimeError, "bias: has 2 dimensions"),
    "bias-type": (run(x(), h, x(8).double(), groups=2), RuntimeError, "bias: is float64, allowed: the type of input, float32, or float32"),
    "channels": (run(x(), h), RuntimeError, "input: has 4 channels, allowed with groups=1 and a weight of (8, 2, ...): 2"),
    "groups": (run(x(2, 6, 6, 6), h, groups=3), RuntimeError, "groups: is 3, allowed: a divisor of the first dimension of weight, 8"),
    "groups-zero": (run(x(), h, groups=0), RuntimeError, "groups: is 0"),
    "groups-kind": (run(x(), h, groups=2.0), TypeError, "groups: is 2.0, allowed: an int"),
    "stride": (run(x(), h, groups=2, stride=0), RuntimeError, "stride: is 0 along spatial axis 0, allowed: 1 to 2^20"),
    "stride-kind": (run(x(), h, groups=2, stride=True), TypeError, "stride: is True, allowed: an int"),
    "stride-count": (run(x(), h, groups=2, stride=(1, 1, 1)), RuntimeError, "stride: has 3 values (1, 1, 1), allowed: an int, or 2"),
    "padding": (run(x(), h, groups=2, padding=-1), RuntimeError, "padding: is -1 along spatial axis 0"),
    "padding-word": (run(x(), h, groups=2, padding="full"), RuntimeError, "padding: is 'full', allowed: ints, 'valid' or 'same'"),
    "dilation": (run(x(), h, groups=2, dilation=0), RuntimeError, "dilation: is 0"),
    "window": (run(x(2, 4, 2, 6), h, groups=2), RuntimeError, "input: spatial axis 0 has 2 elements, too few for kernel 3"),
    "input-huge": (lambda: W.sparse_conv1d(x(1, 1, 1).expand(1, 1, 2**41), held((2, 1, 9))), RuntimeError,
                   "input: has 2199023255552 elements along dimension 2, allowed: at most 2^40"),
    "padding-huge": (run(x(), h, groups=2, padding=2**62), RuntimeError, "padding: is 4611686018427387904"),
    "act": (run(x(), h, groups=2, act="gelu"), ValueError, "act: is 'gelu', allowed: None, 'relu' or 'clip'"),
    "clip": (run(x(), h, groups=2, act="clip", clip=(2, 1)), ValueError, "clip: is (2, 1)"),
}
MADE = {
    "values-kind": (weight(values=[1.0]), TypeError, "SparseWeight: values is list, allowed: Tensor"),
    "rows-kind": (weight(rows=None), TypeError, "SparseWeight: rows is NoneType, allowed: Tensor"),
    "values-length": (weight(values=torch.ones(2)), RuntimeError, "values has the shape [2], allowed: that of cols, [3]"),
    "values-type": (weight(values=torch.ones(3).long()), RuntimeError, "values is int64, allowed: float32"),
    "rows-type": (weight(rows=torch.ones(3)), RuntimeError, "rows: is float32, allowed: int32 or int64"),
    "cols-type": (weight(cols=torch.ones(3)), RuntimeError, "cols: is float32, allowed: int32 or int64"),
    "rows-length": (weight(rows=torch.tensor([0, 3])), RuntimeError,
                    "rows: has 2 elements, allowed: 3, one more than the output channels"),
    "cols-rank": (weight(values=torch.ones(1, 3), cols=torch.ones(1, 3).int()), RuntimeError, "cols: has 2 dimensions"),
    "rows-fall": (weight(rows=torch.tensor([0, 4, 3])), RuntimeError, "rows[1] is 4, allowed: 0..3 (0 first, nnz last, never falling)"),
    "cols-range": (weight(cols=torch.tensor([0, 6, 5])), RuntimeError, "cols[1] is 6, allowed: 0 or more, below c/groups * kernel"),
    "cols-negative": (weight(cols=torch.tensor([0, 1, -1])), RuntimeError, "cols[2] is -1"),
    "shape-rank": (weight(shape=(2, 6)), RuntimeError, "shape: has 2 values, allowed: 3 to 5 (output channels, input channels of a group, kernel)"),
    "shape-zero": (weight(shape=(2, 0, 3)), RuntimeError, "shape: value 1 is 0, allowed: 1 to 2^40"),
    "shape-huge": (weight(shape=(2, 2**40, 2**40)), RuntimeError, "shape: has 2^63 elements or more, allowed: fewer"),
    "device": (weight(rows=torch.tensor([0, 1, 3], device="meta")), RuntimeError, "values is on cpu, rows on meta, cols on cpu, allowed: one device"),
    "gather": (lambda: weight()().gather(torch.ones(2, 2, 4)), RuntimeError, "dense: has the shape [2, 2, 4], allowed: [2, 2, 3]"),
    "with-values": (lambda: weight()().with_values(torch.ones(4)), RuntimeError, "values: has the shape [4], allowed: [3]"),
    "with-values-kind": (lambda: weight()().with_values(None), TypeError, "values: is NoneType, allowed: Tensor"),
    "dense-kind": (lambda: from_dense([1.0]), TypeError, "weight: is list, allowed: Tensor"),
    "dense-rank": (lambda: from_dense(torch.ones(2, 2)), RuntimeError, "weight: has 2 dimensions, allowed: 3 (1D), 4 (2D) or 5 (3D)"),
    "dense-type": (lambda: from_dense(torch.ones(2, 2, 3).long()), RuntimeError, "weight: is int64, allowed: float32, float64, float16 or bfloat16"),
    "dense-empty": (lambda: from_dense(torch.ones(2, 0, 3)), RuntimeError, "weight: has no elements, allowed: 1 or more along each dimension"),
    "dense-layout": (lambda: from_dense(torch.eye(3).to_sparse_csr()), TypeError, "weight: has the layout torch.sparse_csr, allowed: a dense tensor"),
    "csr-kind": (lambda: from_csr(torch.eye(3), 3), TypeError, "matrix: is a tensor of layout torch.strided, allowed: a tensor of layout torch.sparse_csr"),
    "csr-shape": (lambda: from_csr(torch.eye(4).to_sparse_csr(), (3, 1)), RuntimeError,
                  "matrix: has the shape [4, 4] with kernel_size (3, 1), allowed: two dimensions"),
}


def operator(**kw):
    parts = {"grad": x(2, 8, 4, 4), "input": x(), "values": h.values, "rows": h.rows, "cols": h.cols, "shape": [8, 2, 3, 3], "dtype": torch.float32} | kw
    return lambda: torch.ops.weft.sparse_conv_backward(*list(parts.values())[:6], [1, 1], [0] * 4, [1, 1], 2, 7, parts["dtype"])


OPERATOR = {
    "grad-type": (operator(grad=x(2, 8, 4, 4).double()), RuntimeError, "grad_output: is float64, allowed: the type of input, float32"),
    "grad-rank": (operator(grad=x(8, 4, 4)), RuntimeError, "grad_output: has 3 dimensions, allowed: as many as input, 4"),
    "grad-channels": (operator(grad=x(2, 7, 4, 4)), RuntimeError, "grad_output: has 7 elements along axis c, allowed: 8, as the forward operator gives"),
    "grad-width": (operator(grad=x(2, 8, 4, 5)), RuntimeError, "grad_output: has 5 elements along axis w, allowed: 4"),
    "values-rank": (operator(values=x(3, 1)), RuntimeError, "values: has 2 dimensions, allowed: 1"),
    "cols-length": (operator(cols=torch.tensor([0])), RuntimeError,
                    "cols: has 1 elements, allowed: 3, as many as values"),
    "rows-type": (operator(rows=x(9)), RuntimeError, "rows: is float32, allowed: int32 or int64"),
    "shape": (operator(shape=[8, 2]), RuntimeError, "shape: has 2 values"),
    "bias-dtype": (operator(dtype=torch.float64), RuntimeError, "bias_dtype: is float64"),
}
ALL = {f"{kind}-{name}": v for kind, table in (("call", WRONG), ("made", MADE), ("operator", OPERATOR)) for name, v in table.items()}


@pytest.mark.parametrize("name", ALL)
def test_wrong(name):
    call, kind, text = ALL[name]
    with pytest.raises(kind, match=re.escape(text)):
        call()


@pytest.mark.parametrize("name", [f"{kind}-{n}" for kind, table in (("call", WRONG), ("operator", OPERATOR)) for n in table if "huge" not in n])
def test_wrong_in_a_trace(name):
    from torch._subclasses.fake_tensor import FakeTensorMode
    call, kind, text = ALL[name]
    with FakeTensorMode(allow_non_fake_inputs=True), pytest.raises(kind, match=re.escape(text.split(", too few")[0])):
        call()


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_convolution_refuses_the_same(rank):
    data, dense = x(2, 4, *[6] * rank), x(4, 2, *[3] * rank)
    for kw, kind in (({"groups": 0}, RuntimeError), ({"stride": 0}, RuntimeError), ({"padding": -1}, RuntimeError), ({"dilation": 0}, RuntimeError),
                     ({"groups": 2.0}, TypeError), ({"stride": 1.5}, TypeError), ({"padding": "full"}, RuntimeError), ({"groups": 3}, RuntimeError),
                     ({"stride": (1, 1, 1, 1)}, RuntimeError), ({"input": None}, TypeError), ({"bias": 1.0}, TypeError), ({"bias": x(5)}, RuntimeError),
                     ({"weight": dense.double()}, RuntimeError), ({"input": x(4)}, RuntimeError), ({"weight": x(4, 2)}, RuntimeError),
                     ({"weight": None}, TypeError)):
        for f in (getattr(F, f"conv{rank}d"), getattr(W, f"sparse_conv{rank}d")):
            with pytest.raises(kind):
                f(**({"input": data, "weight": dense, "groups": 2} | kw))
