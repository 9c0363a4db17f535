"""dgmm and cdgmm against torch: both sides, both gradients; complex numbers as pairs and as complex tensors."""
import pytest
import torch

import capi

SIZES = [(1, 1, 1), (1, 4, 4), (3, 5, 7), (2, 9, 1), (0, 3, 2), (2, 0, 3)]
COMPLEX = {torch.float32: torch.complex64, torch.float64: torch.complex128}


def text(op, pass_, dtype, sizes, side, layouts="", extra=""):
    n, h, w = sizes
    return f"{op}:{pass_}:{capi.DTYPES[dtype]}:dense{layouts}:n{n}h{h}w{w}:side{side}{extra}"


def scaled(a, v, side):
    return a * v if side else a * v.unsqueeze(-1)


def data(op, dtype, sizes, side):
    """Matrices, vector and gradient as the library sees them; halves of complex numbers along a last axis."""
    pair = (2,) if op == "cdgmm" else ()
    length = sizes[2] if side else sizes[1]
    return [torch.randn(shape, dtype=torch.float64).to(dtype) for shape in (sizes + pair, (length,) + pair, sizes + pair)]


def witness(op, tensors, side):
    """dst, diff_src, diff_weights by autograd in double."""
    wide = [t.double() for t in tensors]
    if op == "cdgmm":
        wide = [torch.view_as_complex(t) for t in wide]
    a, v, dy = wide
    a.requires_grad_()
    v.requires_grad_()
    y = scaled(a, v, side)
    results = [y.detach(), *torch.autograd.grad(y, [a, v], dy)]
    return [torch.view_as_real(r.resolve_conj()) if op == "cdgmm" else r for r in results]


@pytest.mark.parametrize("op", ["dgmm", "cdgmm"])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("dtype", capi.FLOATS, ids=str)
def test_forward_and_gradients(op, sizes, side, dtype):
    a, v, dy = data(op, dtype, sizes, side)
    kept = a.clone(), v.clone()
    y, da, dv = witness(op, (a, v, dy), side)
    capi.close(capi.run(text(op, "fwd", dtype, sizes, side), src=a, weights=v, dst=torch.full_like(a, 7))["dst"], y, dtype)
    both = capi.run(text(op, "bwd", dtype, sizes, side), src=a, weights=v, diff_dst=dy, diff_src=torch.full_like(a, 7),
                    diff_weights=torch.full_like(v, 7))
    capi.close(both["diff_src"], da, dtype)
    capi.close(both["diff_weights"], dv, dtype)
    one = capi.run(text(op, "bwd_data", dtype, sizes, side), weights=v, diff_dst=dy, diff_src=torch.full_like(a, 7))["diff_src"]
    other = capi.run(text(op, "bwd_weights", dtype, sizes, side), src=a, diff_dst=dy, diff_weights=torch.full_like(v, 7))["diff_weights"]
    capi.close(one, da, dtype)   # other kernels than that of both, perhaps: not its bits
    capi.close(other, dv, dtype)
    assert torch.equal(a, kept[0]) and torch.equal(v, kept[1])


@pytest.mark.parametrize("dtype", COMPLEX, ids=str)
@pytest.mark.parametrize("side", [0, 1])
def test_complex_tensors_with_any_leading_dimensions(dtype, side):
    a = torch.randn(2, 3, 2, 4, 5, dtype=COMPLEX[dtype], requires_grad=True)
    v = torch.randn(5 if side else 4, dtype=COMPLEX[dtype], requires_grad=True)
    y = scaled(a, v, side)
    dy = torch.randn_like(y)
    da, dv = torch.autograd.grad(y, [a, v], dy)
    sizes, a, v = (12, 4, 5), a.detach(), v.detach()
    got = capi.run(text("cdgmm", "fwd", dtype, sizes, side), src=a, weights=v, dst=torch.zeros_like(a))["dst"]
    capi.close(torch.view_as_real(got), torch.view_as_real(y.detach()), dtype)
    got = capi.run(text("cdgmm", "bwd", dtype, sizes, side), src=a, weights=v, diff_dst=dy,
                   diff_src=torch.zeros_like(a), diff_weights=torch.zeros_like(v))
    capi.close(torch.view_as_real(got["diff_src"]), torch.view_as_real(da), dtype)
    capi.close(torch.view_as_real(got["diff_weights"]), torch.view_as_real(dv), dtype)


def test_matrix_products_with_a_diagonal():
    a, right, left = torch.randn(6, 6), torch.randn(6), torch.randn(6)
    got = capi.run("dgmm:fwd:f32:dense:n1h6w6:side1", src=a, weights=right, dst=torch.zeros(6, 6))["dst"]
    capi.close(got, a @ torch.diag(right), torch.float32)
    got = capi.run("dgmm:fwd:f32:dense:n1h6w6:side0", src=a, weights=left, dst=torch.zeros(6, 6))["dst"]
    capi.close(got, torch.diag(left) @ a, torch.float32)


@pytest.mark.parametrize("op", ["dgmm", "cdgmm"])
@pytest.mark.parametrize("side", [0, 1])
def test_strided(op, side):
    """Transposed matrices, gaps between elements, a vector of every third number."""
    sizes, dtype = (2, 4, 3), torch.float32
    a, v, dy = data(op, dtype, sizes, side)
    y, da, dv = witness(op, (a, v, dy), side)
    turned = a.transpose(1, 2).contiguous().transpose(1, 2)
    every = torch.full((v.shape[0] * 3, *v.shape[1:]), 9.0)[::3].copy_(v)
    dst = capi.gaps(torch.zeros_like(a))
    capi.run(text(op, "fwd", dtype, sizes, side, capi.strided(src=turned, weights=every, dst=dst)), src=turned, weights=every, dst=dst)
    capi.close(dst, y, dtype)
    assert (dst.as_strided(dst.shape, dst.stride(), 1) == 9).all()
    grads = {"diff_dst": capi.gaps(dy), "diff_src": torch.zeros_like(a).transpose(1, 2).contiguous().transpose(1, 2),
             "diff_weights": torch.zeros(v.shape[0] * 3, *v.shape[1:])[::3]}
    layouts = capi.strided(src=turned, weights=every, **grads)
    capi.run(text(op, "bwd", dtype, sizes, side, layouts), src=turned, weights=every, **grads)
    capi.close(grads["diff_src"], da, dtype)
    capi.close(grads["diff_weights"], dv, dtype)


@pytest.mark.parametrize("op", ["dgmm", "cdgmm"])
@pytest.mark.parametrize("side", [0, 1])
def test_gradients_are_the_derivatives(op, side):
    """Bilinear, so central differences are exact but for rounding: <dy, df> in real numbers, as torch's convention has it."""
    sizes, dtype = (2, 3, 4), torch.float64
    a, v, dy = data(op, dtype, sizes, side)
    da, dv, _ = data(op, dtype, sizes, side)

    def fwd(src, weights):
        return capi.run(text(op, "fwd", dtype, sizes, side), src=src, weights=weights, dst=torch.zeros_like(a))["dst"]

    got = capi.run(text(op, "bwd", dtype, sizes, side), src=a, weights=v, diff_dst=dy,
                   diff_src=torch.zeros_like(a), diff_weights=torch.zeros_like(v))
    slope = (dy * (fwd(a + da, v) - fwd(a - da, v))).sum() / 2 + (dy * (fwd(a, v + dv) - fwd(a, v - dv))).sum() / 2
    want = (got["diff_src"] * da).sum() + (got["diff_weights"] * dv).sum()
    assert slope.item() == pytest.approx(want.item(), rel=1e-11)


def test_nan_and_infinity_go_where_torch_sends_them():
    nan, inf = float("nan"), float("inf")
    a, v = torch.tensor([[1.0, nan, inf], [0.0, -inf, 2.0]]), torch.tensor([0.0, 2.0, -1.0])
    got = capi.run("dgmm:fwd:f32:dense:n1h2w3:side1", src=a, weights=v, dst=torch.zeros(2, 3))["dst"]
    capi.close(got, a * v, torch.float32)
    grad = torch.zeros(3)
    capi.run("dgmm:bwd_weights:f32:dense:n1h2w3:side1", src=a, diff_dst=torch.ones(2, 3), diff_weights=grad)
    capi.close(grad, a.sum(0), torch.float32)


@pytest.mark.parametrize("op", ["dgmm", "cdgmm"])
def test_gradients_accumulate(op):
    sizes, dtype = (2, 3, 4), torch.float32
    a, v, dy = data(op, dtype, sizes, 1)
    plain = capi.run(text(op, "bwd", dtype, sizes, 1), src=a, weights=v, diff_dst=dy,
                     diff_src=torch.zeros_like(a), diff_weights=torch.zeros_like(v))
    old_a, old_v = torch.randn_like(a), torch.randn_like(v)
    got = capi.run(text(op, "bwd", dtype, sizes, 1, "", ":acc0.5_-2"), src=a, weights=v, diff_dst=dy,
                   diff_src=old_a.clone(), diff_weights=old_v.clone())
    capi.close(got["diff_src"], 0.5 * plain["diff_src"] - 2 * old_a, dtype)
    capi.close(got["diff_weights"], 0.5 * plain["diff_weights"] - 2 * old_v, dtype)


def test_rows_beyond_31_bits():
    """Two rows 2^31 + 8 elements apart in reserved memory."""
    far = 2**31 + 8
    a = torch.empty(far + 4, dtype=torch.bfloat16).as_strided((1, 2, 4), (0, far, 1))
    a.copy_(torch.arange(8.0).view(1, 2, 4))
    got = capi.run(f"dgmm:fwd:bf16:dense,src=[0.{far}.1]:n1h2w4:side1", src=a, weights=torch.full((4,), 2.0, dtype=torch.bfloat16),
                   dst=torch.zeros(1, 2, 4, dtype=torch.bfloat16))["dst"]
    assert got.flatten().tolist() == [0, 2, 4, 6, 8, 10, 12, 14]


REFUSALS = {
    "dgmm:fwd:f32:dense:n1h2w3:side2": r"dgmm: side is 2, allowed: 0 \(left, one factor per row\) or 1 \(right, one factor per column\)",
    "dgmm:fwd:f32:dense:n1h-2w3:side1": "dgmm: rows h is -2, allowed: 0..2",
    "cdgmm:fwd:f32:dense:n1h2w-1:side1": "cdgmm: columns w is -1, allowed: 0..2",
    "dgmm:fwd:f32:dense:n-1h2w1:side1": "dgmm: batch n is -1, allowed: 0..2",
    "dgmm:fwd:f32:dense:n1h2w3:": "expected 'side' and a number",
    "dgmm:fwd:f32:nchw:n1h2w3:side1": "expected a layout: dense, got 'nchw'",
    "dgmm:fwd:c64:dense:n1h2w3:side1": "c64",
    "dgmm:fwd:f32:dense:n1h2w3:side1:relu": "relu, which pass fwd of dgmm does not take",
    "dgmm:bwd:f32:dense,diff_src=[0.3.1]:n2h2w3:side1": "diff_src: its strides make elements overlap",
}


@pytest.mark.parametrize("problem", REFUSALS)
def test_refusals(problem):
    with pytest.raises(capi.WeftError, match=REFUSALS[problem]):
        capi.parse(problem)
