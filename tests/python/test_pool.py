"""max_pool, avg_pool, adaptive_avg_pool against torch: every option, data type and layout, indices of each type, gradients."""
import itertools
import math

import pytest
import torch
import torch.nn.functional as F

import capi

NAN, INF = float("nan"), float("inf")
MAX = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
AVG = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}
ADAPTIVE = {1: F.adaptive_avg_pool1d, 2: F.adaptive_avg_pool2d, 3: F.adaptive_avg_pool3d}
# shape, kernel, stride, padding, dilation
WINDOWS = [
    ((2, 3, 11), (3,), (2,), (1,), (1,)),
    ((1, 2, 17), (4,), (3,), (2,), (3,)),
    ((2, 3, 7, 9), (3, 3), (2, 2), (1, 1), (1, 1)),
    ((2, 5, 8, 8), (2, 2), (2, 2), (0, 0), (1, 1)),
    ((1, 2, 6, 10), (2, 5), (1, 4), (1, 2), (1, 1)),
    ((1, 4, 9, 12), (3, 2), (2, 3), (1, 0), (2, 3)),
    ((3, 1, 5, 5), (5, 5), (7, 7), (2, 2), (1, 1)),
    ((1, 2, 5, 6, 7), (3, 2, 3), (2, 2, 1), (1, 0, 1), (1, 1, 1)),
    ((2, 1, 7, 4, 6), (2, 2, 3), (3, 1, 2), (1, 1, 1), (3, 1, 2)),
    ((0, 3, 6, 6), (3, 3), (2, 2), (1, 1), (1, 1)),
]
TO = [((2, 3, 11), (4,)), ((2, 3, 5), (9,)), ((1, 4, 7, 10), (3, 6)), ((2, 2, 5, 5), (1, 1)), ((1, 3, 6, 4), (6, 4)),
      ((1, 2, 3, 8), (7, 3)), ((1, 2, 5, 6, 7), (2, 4, 7)), ((2, 1, 3, 3, 3), (1, 1, 1)), ((0, 2, 4, 4), (2, 2))]


def axes(values):
    return "x".join(map(str, values))


def text(op, pass_, x, last, attributes, types="", layouts="", extra=""):
    rank = x.dim() - 2
    return (f"{op}{rank}d:{pass_}:{capi.DTYPES[x.dtype]}{types}:{capi.tag(rank, last)}{layouts}:"
            f"{capi.sizes(x.shape)}:{attributes}{extra}")


def window_text(k, s, p, d=None):
    return f"k{axes(k)}s{axes(s)}p{axes(p)}" + (f"d{axes(d)}" if d else "")


def empty(shape, dtype, last, value=7):
    return capi.layout(torch.full(shape, value, dtype=dtype), last)


def flat_of(tap, shape, k, s, p, d):
    """The flat index that a tap number of each window stands for."""
    place, out = torch.zeros_like(tap), tap.shape[2:]
    for a in range(len(k)):
        below = math.prod(k[a + 1:])
        position = torch.arange(out[a]).view([-1] + [1] * (len(k) - 1 - a))
        place = place * shape[2 + a] + position * s[a] - p[a] + tap // below % k[a] * d[a]
    return place


def max_data(shape, dtype, kind):
    """Small integers, so that windows have ties; some of them NaN or infinite."""
    x = torch.randint(-3, 4, shape).double()
    if kind == "special":
        x[torch.rand(shape) < 0.15] = NAN
        x[torch.rand(shape) < 0.15] = INF
        x[torch.rand(shape) < 0.3] = -INF
    return x.to(dtype)


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("ceil", [0, 1])
@pytest.mark.parametrize("dtype", capi.FLOATS, ids=str)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("kind", ["plain", "special"])
def test_max_pool(window, ceil, dtype, last, kind):
    shape, k, s, p, d = window
    x = capi.layout(max_data(shape, dtype, kind), last)
    wide = x.double().requires_grad_()
    want, index = MAX[len(k)](wide, k, s, p, d, bool(ceil), True)
    dy = capi.layout(torch.randn(want.shape, dtype=torch.float64).to(dtype), last)
    (dx,) = torch.autograd.grad(want, wide, dy.double())
    attributes = window_text(k, s, p, d) + f"ceil{ceil}"
    y = capi.run(text("max_pool", "fwd", x, last, attributes), src=x, dst=empty(want.shape, dtype, last))["dst"]
    torch.testing.assert_close(y.double(), want.detach(), rtol=0, atol=0, equal_nan=True)
    for itype in [torch.uint8, torch.int32, torch.int64]:
        types = f",index={capi.DTYPES[itype]}"
        out = capi.run(text("max_pool", "fwd", x, last, attributes + "index1", types), src=x, dst=empty(want.shape, dtype, last),
                       index=empty(want.shape, itype, last))
        torch.testing.assert_close(out["dst"], y, rtol=0, atol=0, equal_nan=True)
        place = out["index"].long()
        assert torch.equal(flat_of(place, shape, k, s, p, d) if itype == torch.uint8 else place, index)
        got = capi.run(text("max_pool", "bwd", x, last, attributes, types), index=out["index"], diff_dst=dy,
                       diff_src=empty(shape, dtype, last))["diff_src"]
        capi.close(got, dx, dtype)


@pytest.mark.parametrize("window", [w for w in WINDOWS if set(w[4]) == {1}], ids=str)
@pytest.mark.parametrize("ceil", [0, 1])
@pytest.mark.parametrize("count", [(0, 0), (1, 0), (0, 5), (1, -3)], ids=str)
@pytest.mark.parametrize("dtype", capi.FLOATS, ids=str)
@pytest.mark.parametrize("last", [False, True])
def test_avg_pool(window, ceil, count, dtype, last):
    shape, k, s, p, _ = window
    include, divisor = count
    x = capi.layout(torch.randn(shape, dtype=torch.float64).to(dtype), last)
    wide = x.double().requires_grad_()
    if len(k) == 1:
        want = F.avg_pool2d(wide.unsqueeze(2), (1, *k), (1, *s), (0, *p), bool(ceil), bool(include), divisor or None).squeeze(2)
    else:
        want = AVG[len(k)](wide, k, s, p, bool(ceil), bool(include), divisor or None)
    dy = capi.layout(torch.randn(want.shape, dtype=torch.float64).to(dtype), last)
    (dx,) = torch.autograd.grad(want, wide, dy.double())
    attributes = window_text(k, s, p) + f"ceil{ceil}include_pad{include}divisor{divisor}"
    y = capi.run(text("avg_pool", "fwd", x, last, attributes), src=x, dst=empty(want.shape, dtype, last))["dst"]
    capi.close(y, want.detach(), dtype)
    got = capi.run(text("avg_pool", "bwd", x, last, attributes), diff_dst=dy, diff_src=empty(shape, dtype, last))["diff_src"]
    capi.close(got, dx, dtype)


@pytest.mark.parametrize("shape, to", TO, ids=str)
@pytest.mark.parametrize("dtype", capi.FLOATS, ids=str)
@pytest.mark.parametrize("last", [False, True])
def test_adaptive_avg_pool(shape, to, dtype, last):
    x = capi.layout(torch.randn(shape, dtype=torch.float64).to(dtype), last)
    wide = x.double().requires_grad_()
    want = ADAPTIVE[len(to)](wide, to)
    dy = capi.layout(torch.randn(want.shape, dtype=torch.float64).to(dtype), last)
    (dx,) = torch.autograd.grad(want, wide, dy.double())
    attributes = f"to{axes(to)}"
    y = capi.run(text("adaptive_avg_pool", "fwd", x, last, attributes), src=x, dst=empty(want.shape, dtype, last))["dst"]
    capi.close(y, want.detach(), dtype)
    got = capi.run(text("adaptive_avg_pool", "bwd", x, last, attributes), diff_dst=dy, diff_src=empty(shape, dtype, last))["diff_src"]
    capi.close(got, dx, dtype)


def test_every_size_of_a_small_axis():
    """Output sizes, ceil mode and counts for all small windows of one axis, as torch has them; what torch refuses is refused."""
    tried = refused = 0
    for n, k, s, p, d, ceil in itertools.product(range(1, 8), range(1, 5), range(1, 5), range(3), range(1, 4), range(2)):
        x = torch.arange(1.0, n + 1).view(1, 1, n)
        problem = f"n1c1w{n}:k{k}s{s}p{p}"
        tried += 1
        try:
            want, index = F.max_pool2d(x.unsqueeze(2), (1, k), (1, s), (0, p), (1, d), bool(ceil), True)
        except RuntimeError:
            refused += 1
            with pytest.raises(capi.WeftError, match="max_pool: (padding|the window)"):
                capi.parse(f"max_pool1d:fwd:f32:ncw:{problem}d{d}ceil{ceil}")
            continue
        out = capi.run(f"max_pool1d:fwd:f32,index=i64:ncw:{problem}d{d}ceil{ceil}index1", src=x, dst=torch.full_like(want, 99).squeeze(2),
                       index=torch.full_like(index, 99).squeeze(2))
        assert torch.equal(out["dst"], want.squeeze(2)), problem
        there = torch.isfinite(want.squeeze(2))   # torch points past the input where a window has no tap
        assert torch.equal(out["index"][there], index.squeeze(2)[there]) and (out["index"][~there] == -1).all(), problem
        for include in range(2) if d == 1 else ():
            want = F.avg_pool1d(x, k, s, p, bool(ceil), bool(include))
            y = capi.run(f"avg_pool1d:fwd:f32:ncw:{problem}ceil{ceil}include_pad{include}", src=x, dst=torch.full_like(want, 99))["dst"]
            capi.close(y, want, torch.float32)
    assert tried == 2016 and 0 < refused < tried


@pytest.mark.parametrize("itype", [torch.uint8, torch.int32, torch.int64], ids=str)
def test_a_window_without_a_tap_has_no_gradient(itype):
    problem, types = "n1c1w4:k2p1d5", f",index={capi.DTYPES[itype]}"   # taps -1 and 4
    out = capi.run(f"max_pool1d:fwd:f32{types}:ncw:{problem}index1", src=torch.ones(1, 1, 4), dst=torch.zeros(1, 1, 1),
                   index=torch.full((1, 1, 1), 9, dtype=itype))
    assert out["dst"].item() == -INF and out["index"].item() == (0 if itype == torch.uint8 else -1)
    dx = capi.run(f"max_pool1d:bwd:f32{types}:ncw:{problem}", index=out["index"], diff_dst=torch.ones(1, 1, 1),
                  diff_src=torch.full((1, 1, 4), 9.0))
    assert not dx["diff_src"].any()


def test_strided():
    x, k = torch.randn(2, 3, 7, 8), "k3s2p1ceil1"
    want, index = F.max_pool2d(x, 3, 2, 1, 1, True, True)
    src, dst, places = capi.gaps(x), capi.gaps(torch.zeros_like(want)), capi.gaps(torch.zeros_like(index))
    layouts = capi.strided(src=src, dst=dst, index=places)
    capi.run(text("max_pool", "fwd", x, True, k + "index1", ",index=i64", layouts), src=src, dst=dst, index=places)
    assert torch.equal(dst, want) and torch.equal(places, index)
    assert (dst.as_strided(want.shape, dst.stride(), 1) == 9).all() and (places.as_strided(want.shape, places.stride(), 1) == 9).all()
    for op, attributes, forward in [("avg_pool", k, lambda v: F.avg_pool2d(v, 3, 2, 1, True)),
                                    ("adaptive_avg_pool", "to4x3", lambda v: F.adaptive_avg_pool2d(v, (4, 3)))]:
        wide = x.clone().requires_grad_()
        want = forward(wide)
        dy, dx = capi.gaps(torch.randn(want.shape)), capi.gaps(torch.zeros_like(x))
        y = capi.gaps(torch.zeros(want.shape))
        capi.run(text(op, "fwd", x, False, attributes, "", capi.strided(src=src, dst=y)), src=src, dst=y)
        capi.close(y, want.detach(), torch.float32)
        capi.run(text(op, "bwd", x, False, attributes, "", capi.strided(diff_dst=dy, diff_src=dx)), diff_dst=dy, diff_src=dx)
        capi.close(dx, torch.autograd.grad(want, wide, dy)[0], torch.float32)


def test_layouts_mix():
    x = torch.randn(2, 3, 6, 7)
    want, index = F.max_pool2d(x, 2, return_indices=True)
    out = capi.run("max_pool2d:fwd:f32,dst=f64,index=i32:nchw,dst=nhwc,index=nhwc:n2c3h6w7:k2s2index1", src=x,
                   dst=empty(want.shape, torch.float64, True), index=empty(want.shape, torch.int32, True))
    assert torch.equal(out["dst"].float(), want) and torch.equal(out["index"].long(), index)


def test_low_and_high_padding_may_differ():
    x = torch.randn(1, 2, 6, 7, dtype=torch.float64)
    y = torch.empty(1, 2, 3, 4, dtype=torch.float64)
    capi.run("max_pool2d:fwd:f64:nchw:n1c2h6w7:k3s2p0+1x1", src=x, dst=y)
    assert torch.equal(y, F.max_pool2d(F.pad(x, (1, 1, 0, 1), value=-INF), 3, 2))
    capi.run("avg_pool2d:fwd:f64:nchw:n1c2h6w7:k3s2p0+1x1", src=x, dst=y)
    capi.close(y, F.avg_pool2d(F.pad(x, (1, 1, 0, 1)), 3, 2), torch.float64)


@pytest.mark.parametrize("problem, shape, out", [
    ("avg_pool2d:{}:f64:nchw:n2c3h5w6:k3x2s2p1ceil1include_pad0", (2, 3, 5, 6), (2, 3, 3, 4)),
    ("avg_pool3d:{}:f64:ncdhw:n1c2d4h5w3:k2p1divisor3", (1, 2, 4, 5, 3), (1, 2, 5, 6, 4)),
    ("adaptive_avg_pool2d:{}:f64:nhwc:n2c3h5w6:to3x4", (2, 3, 5, 6), (2, 3, 3, 4)),
    ("max_pool2d:{}:f64:nchw:n2c3h5w6:k3p1", (2, 3, 5, 6), (2, 3, 5, 6)),
])
def test_gradient_is_the_derivative(problem, shape, out):
    """<dy, f(x + h v) - f(x - h v)> / 2h = <bwd(dy), v>; exact but for rounding, as each is linear near x (values of x are 1 apart)."""
    last, h = "nhwc" in problem, 0.25
    x, v = torch.randperm(math.prod(shape)).double().view(shape), torch.rand(shape, dtype=torch.float64)
    tensors = {"diff_dst": capi.layout(torch.randn(out, dtype=torch.float64), last)}

    def fwd(src, extra="", **index):
        return capi.run(problem.format("fwd") + extra, src=capi.layout(src, last), dst=empty(out, torch.float64, last), **index)["dst"]

    if problem.startswith("max"):
        tensors["index"] = torch.empty(out, dtype=torch.uint8)
        fwd(x, "index1", index=tensors["index"])
    dx = capi.run(problem.format("bwd"), diff_src=empty(shape, torch.float64, last), **tensors)["diff_src"]
    slope = (tensors["diff_dst"] * (fwd(x + h * v) - fwd(x - h * v))).sum() / (2 * h)
    assert slope.item() == pytest.approx((dx * v).sum().item(), rel=1e-10)


@pytest.mark.parametrize("op, attributes", [("max_pool", "k3s2p1"), ("avg_pool", "k3s2p1"), ("adaptive_avg_pool", "to3x3")])
def test_gradient_accumulates(op, attributes):
    x, old = torch.randn(2, 3, 5, 6), torch.randn(2, 3, 5, 6)
    tensors = {"diff_dst": torch.randn(2, 3, 3, 3)}
    if op == "max_pool":
        tensors["index"] = F.max_pool2d(x, 3, 2, 1, return_indices=True)[1]
    types = ",index=i64" if op == "max_pool" else ""
    plain = capi.run(text(op, "bwd", x, False, attributes, types), diff_src=torch.full_like(x, NAN), **tensors)["diff_src"]
    got = capi.run(text(op, "bwd", x, False, attributes, types, "", ":acc0.5_-2"), diff_src=old.clone(), **tensors)["diff_src"]
    capi.close(got, 0.5 * plain - 2 * old, torch.float32)


def test_indices_beyond_31_bits():
    """A window far into an axis of 2^31 + 3 elements: the memory is reserved, only a few pages of it are touched."""
    n = 2**31 + 3
    x = torch.empty(n, dtype=torch.bfloat16).view(1, 1, n)
    for first in (0, 2**30, 2**31):
        x[0, 0, first:first + 3] = torch.tensor([1.0, 3.0, 2.0])
    y, index = torch.zeros(1, 1, 3, dtype=torch.bfloat16), torch.zeros(1, 1, 3, dtype=torch.int64)
    problem = f"n1c1w{n}:k3s{2**30}"
    capi.run(f"max_pool1d:fwd:bf16,index=i64:ncw:{problem}index1", src=x, dst=y, index=index)
    assert (y == 3).all() and index.flatten().tolist() == [1, 2**30 + 1, 2**31 + 1]
    capi.run(f"avg_pool1d:fwd:bf16:ncw:{problem}", src=x, dst=y)
    assert (y == 2).all()
    refusal = r"index is i32 and a channel has 2147483651 places, allowed: at most 2\^31 - 1, or an index of i64"
    with pytest.raises(capi.WeftError, match=refusal):
        capi.parse(f"max_pool1d:fwd:bf16,index=i32:ncw:{problem}index1")


def test_the_index_type_follows_the_window():
    x = torch.randn(1, 1, 20, 20)
    want, index = F.max_pool2d(x, 16, return_indices=True)          # 256 places: u8 unless said
    place = torch.zeros(1, 1, 1, 1, dtype=torch.uint8)
    capi.run("max_pool2d:fwd:f32:nchw:n1c1h20w20:k16s16index1", src=x, dst=torch.empty_like(want), index=place)
    assert place.item() // 16 * 20 + place.item() % 16 == index.item()
    want, index = F.max_pool2d(x, 17, return_indices=True)          # 289: i32 unless said
    place = torch.zeros(1, 1, 1, 1, dtype=torch.int32)
    capi.run("max_pool2d:fwd:f32:nchw:n1c1h20w20:k17s17index1", src=x, dst=torch.empty_like(want), index=place)
    assert place.item() == index.item()


REFUSALS = {
    "max_pool2d:fwd:f32:nchw:n1c1h8w8:k3p2": "max_pool: padding along h is 2, allowed: at most half of the kernel size, 1",
    "avg_pool2d:fwd:f32:nchw:n1c1h8w8:k4p0+3": "avg_pool: padding along h is 3, allowed: at most half of the kernel size, 2",
    "max_pool1d:fwd:f32:ncw:n1c1w8:k2d9":
        r"max_pool: the window along w is 10 \(kernel 2, dilation 9\), allowed: at most the padded input, 8$",
    "avg_pool1d:fwd:f32:ncw:n1c1w2:k5s2ceil1":
        r"avg_pool: the window along w is 5 .*, allowed: at most the padded input, 3 \(in ceil mode with stride - 1 more\)",
    "max_pool2d:fwd:f32:nchw:n1c1h8w0:k3p1": "max_pool: input size along w is 0, allowed: 1..2",
    "max_pool2d:fwd:f32:nchw:n-1c1h8w8:k3": "max_pool: batch n is -1, allowed: 0..2",
    "max_pool2d:fwd:f32:nchw:n1c1h8w8:k0": "max_pool: kernel size along h is 0, allowed: 1..2",
    "max_pool2d:fwd:f32:nchw:n1c1h8w8:k3s0": "max_pool: stride along h is 0, allowed: 1..2",
    "max_pool2d:fwd:f32:nchw:n1c1h8w8:k3ceil2": "max_pool: ceil is 2, allowed: 0 or 1",
    "max_pool2d:fwd:f32:nchw:n1c1h8w8:k3index-1": "max_pool: index is -1, allowed: 0 or 1",
    "avg_pool2d:fwd:f32:nchw:n1c1h8w8:k3include_pad3": "avg_pool: include_pad is 3, allowed: 0 or 1",
    "avg_pool2d:fwd:f32:nchw:n1c1h8w8:k3d2": "expected an attribute: k s p ceil include_pad divisor, got 'd2'",
    "max_pool2d:fwd:f32,index=u8:nchw:n1c1h20w20:k17index1":
        "max_pool: index is u8 and a window has 289 places, allowed: at most 256, or an index of i32 or i64",
    "max_pool2d:fwd:f32,index=f32:nchw:n1c1h8w8:k3index1": "index: data type is f32",
    "max_pool2d:fwd:f32,index=u8:nchw:n1c1h8w8:k3": "index takes no part in pass fwd of max_pool",
    "max_pool2d:fwd:i32:nchw:n1c1h8w8:k3": "i32",
    "max_pool2d:fwd:f32:nchw:n1c1h8w8:k3:acc1_1": "acc, which pass fwd of max_pool does not take",
    "max_pool2d:fwd:f32:nchw:n1c1h8w8:k3:relu": "relu, which pass fwd of max_pool does not take",
    "max_pool2d:bwd_data:f32:nchw:n1c1h8w8:k3": "bwd_data",
    "adaptive_avg_pool2d:fwd:f32:nchw:n1c1h8w8:to-1x2": "adaptive_avg_pool: output size along h is -1, allowed: 0..2",
    "adaptive_avg_pool2d:fwd:f32:nchw:n1c1h8w8:": "expected 'to' and a number",
    "adaptive_avg_pool1d:fwd:f32:ncw:n1c1w1099511627776:to1099511627776":
        r"output size along w is 1099511627776, allowed: 0..2\^61 / \(input size \+ 1\)",
}


@pytest.mark.parametrize("problem", REFUSALS)
def test_refusals(problem):
    with pytest.raises(capi.WeftError, match=REFUSALS[problem]):
        capi.parse(problem)


def test_a_missing_pointer_is_named():
    x = torch.randn(1, 1, 4, 4)
    with pytest.raises(capi.WeftError, match="index: the pointer is NULL, allowed: 4 elements of u8"):
        capi.run("max_pool2d:fwd:f32:nchw:n1c1h4w4:k2s2index1", src=x, dst=torch.zeros(1, 1, 2, 2))
