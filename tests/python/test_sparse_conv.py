"""Convolution with sparse weights against F.conv with the same weights dense: every pass, both forms of columns, and the CSR that is built."""
import ctypes
import math

import pytest
import torch
import torch.nn.functional as F

import capi
from capi import Tensor

CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
LAYOUTS = {"first": 1, "last": 2, "strided": 3}
ENUM = {torch.float32: 1, torch.float64: 2, torch.float16: 3, torch.bfloat16: 4}


def described(w, layout):
    """A dense weight tensor as weft_tensor: five axes, absent ones of size 1; strides only where they are looked at."""
    t = Tensor(dtype=ENUM[w.dtype], layout=LAYOUTS[layout], rank=5, align=w.element_size())
    fill = (1,) * (5 - w.dim())
    t.dims[:5] = (*w.shape[:2], *fill, *w.shape[2:])
    if layout == "strided":
        t.strides[:5] = (*w.stride()[:2], *(0 for _ in fill), *w.stride()[2:])
    return t


def pointer(t):
    return None if t is None else ctypes.c_void_p(t.data_ptr())


def count(text, w, dense=None):
    nnz = ctypes.c_int64(-1)
    capi.check(capi.LIB.weft_sparse_count(capi.parse(text), ctypes.byref(dense) if dense else None, pointer(w), ctypes.byref(nnz)))
    return nnz.value


def build(text, w, values, rows, cols, dense=None):
    capi.check(capi.LIB.weft_sparse_build(capi.parse(text), ctypes.byref(dense) if dense else None, pointer(w), pointer(values), pointer(rows), pointer(cols)))


def stretch(text, cols, to):
    capi.check(capi.LIB.weft_sparse_stretch(capi.parse(text), pointer(cols), pointer(to)))


def check(text, rows, cols):
    capi.check(capi.LIB.weft_sparse_check(capi.parse(text), pointer(rows), pointer(cols)))


class Case:
    """Dense weights pruned to a density, their CSR, and the dense convolution's outputs and gradients in double."""

    def __init__(self, n, c, size, o, k, s=1, lo=0, hi=None, d=1, g=1, density=0.3):
        self.rank = len(size)
        spread = lambda v: tuple(v) if isinstance(v, (tuple, list)) else (v,) * self.rank
        self.n, self.c, self.o, self.g, self.size, self.density = n, c, o, g, tuple(size), density
        self.k, self.s, self.d, self.lo = map(spread, (k, s, d, lo))
        self.hi = self.lo if hi is None else spread(hi)

    def text(self, pass_, dtypes="f32", last=False, stretched=0, steps="", layouts=None, nnz=None):
        axes = lambda v: "x".join(map(str, v))
        pads = "x".join(f"{a}+{b}" for a, b in zip(self.lo, self.hi))
        return (f"sparse_conv{self.rank}d:{pass_}:{dtypes}:{layouts or capi.tag(self.rank, last)}:{capi.sizes((self.n, self.c, *self.size))}:o{self.o}k{axes(self.k)}"
                f"s{axes(self.s)}p{pads}d{axes(self.d)}g{self.g}nnz{self.nnz if nnz is None else nnz}stretched{stretched}{steps}")

    def make(self, dtype, last, index=torch.int32, stretched=0):
        torch.manual_seed(3)
        draw = lambda *shape: torch.randn(shape, dtype=torch.float64).to(dtype)
        self.x, self.w, self.b = capi.layout(draw(self.n, self.c, *self.size), last), draw(self.o, self.c // self.g, *self.k), draw(self.o)
        self.w[torch.rand(self.w.shape) >= self.density] = 0
        if self.o > 1:
            self.w[self.o // 2] = 0                    # an empty row
        plain = self.text("fwd", capi.DTYPES[dtype], nnz=0)
        self.nnz = count(plain, self.w)
        self.names = f"{capi.DTYPES[dtype]},rows={capi.DTYPES[index]},cols={capi.DTYPES[index]}"
        self.values, self.cols = torch.full((self.nnz,), 7, dtype=dtype), torch.full((self.nnz,), 7, dtype=index)
        self.rows = torch.full((self.o + 1,), 7, dtype=index)
        build(self.text("fwd", self.names, stretched=stretched), self.w, self.values, self.rows, self.cols)
        leaves = [t.double().requires_grad_() for t in (self.x, self.w, self.b)]
        self.y = self.dense(*leaves)
        self.dy = capi.layout(torch.randn_like(self.y).to(dtype), last)
        self.dx, dw, self.db = torch.autograd.grad(self.y, leaves, self.dy.double())
        self.dv = dw[self.w != 0]
        self.y = self.y.detach()
        return self

    def dense(self, x, w, b):
        pads = [v for a, b_ in zip(reversed(self.lo), reversed(self.hi)) for v in (a, b_)]
        return CONV[self.rank](F.pad(x, pads), w, b, stride=self.s, dilation=self.d, groups=self.g)

    def csr(self):
        return {"rows": self.rows, "cols": self.cols}


CASES = [
    Case(2, 3, (9,), 4, 3, lo=1),
    Case(1, 4, (10,), 6, 3, s=2, lo=(2,), hi=(0,), d=2, g=2),
    Case(2, 3, (6, 7), 5, 3, lo=1),
    Case(3, 4, (5, 8), 6, (3, 2), s=(2, 1), lo=(0, 2), hi=(1, 1), d=(1, 3), g=2),
    Case(1, 4, (4, 3), 4, 3, lo=3, g=4, density=0.6),                    # windows wholly in the padding
    Case(2, 2, (3, 4, 5), 4, (2, 3, 2), s=(1, 2, 1), lo=(1, 1, 0), g=2),
    Case(2, 3, (5, 5), 4, 1, density=1.0),
    Case(2, 3, (5, 5), 4, 3, lo=1, density=0.0),
]


def like(t, dtype, last):
    full = torch.full(t.shape, 7, dtype=dtype)
    return capi.layout(full, last) if t.dim() > 2 else full


@pytest.mark.parametrize("stretched", [0, 1])
@pytest.mark.parametrize("dtype", capi.FLOATS, ids=str)
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.text("", nnz=0))
def test_every_pass_against_dense(case, dtype, stretched):
    turn = CASES.index(case) + capi.FLOATS.index(dtype) + stretched
    last, index = bool(turn % 2), (torch.int32, torch.int64)[turn // 2 % 2]
    case.make(dtype, last, index, stretched)
    text = lambda pass_, steps="", names=case.names: case.text(pass_, names, last, stretched, steps)
    check(text("fwd"), case.rows, case.cols)
    for steps, after in ((":bias", lambda y: y), (":bias+relu", torch.relu), (":bias+clip-0.5_0.75", lambda y: y.clamp(-0.5, 0.75))):
        y = capi.run(text("fwd", steps), src=case.x, weights=case.values, bias=case.b, **case.csr(), dst=like(case.y, dtype, last))["dst"]
        capi.close(y, after(case.y), dtype)
    plain = capi.run(text("fwd"), src=case.x, weights=case.values, **case.csr(), dst=like(case.y, dtype, last))["dst"]
    capi.close(plain, case.dense(case.x.double(), case.w.double(), None), dtype)
    got = {"diff_src": like(case.dx, dtype, last), "diff_weights": like(case.dv, dtype, last), "diff_bias": like(case.db, dtype, last)}
    capi.run(text("bwd", ":bias"), src=case.x, weights=case.values, **case.csr(), diff_dst=case.dy, **got)
    want = {"diff_src": case.dx, "diff_weights": case.dv, "diff_bias": case.db}
    for name, t in got.items():
        capi.close(t, want[name], dtype)
    alone = {"diff_src": like(case.dx, dtype, last)}
    capi.run(text("bwd_data"), weights=case.values, **case.csr(), diff_dst=case.dy, **alone)
    both = {"diff_weights": like(case.dv, dtype, last), "diff_bias": like(case.db, dtype, last)}
    capi.run(text("bwd_weights", ":bias"), src=case.x, **case.csr(), diff_dst=case.dy, **both)
    bias = {"diff_bias": like(case.db, dtype, last)}
    capi.run(text("bwd_bias", names=capi.DTYPES[dtype]), diff_dst=case.dy, **bias)
    for some in (alone, both, bias):                                     # other kernels, other orders of sums
        for name, t in some.items():
            capi.close(t, want[name], dtype)


# ---------------------------------------------------------------- the CSR itself
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.text("", nnz=0))
def test_build_agrees_with_torch_sparse(case):
    case.make(torch.float32, False, torch.int64)
    want = case.w.reshape(case.o, -1).to_sparse_csr()
    assert torch.equal(case.rows, want.crow_indices()) and torch.equal(case.cols, want.col_indices()) and torch.equal(case.values, want.values())


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.text("", nnz=0))
def test_stretched_columns_are_offsets_in_the_padded_input(case):
    """Each one, read in the padded image from a window's first tap on, is the element that the tap multiplies."""
    case.make(torch.float32, False)
    to = torch.empty_like(case.cols)
    stretch(case.text("fwd"), case.cols, to)
    padded = [a + b + c for a, b, c in zip(case.size, case.lo, case.hi)]
    image = torch.arange(case.c // case.g * math.prod(padded)).view(case.c // case.g, *padded)
    taps = image[(slice(None), *(slice(0, (k - 1) * d + 1, d) for k, d in zip(case.k, case.d)))].reshape(-1)
    assert torch.equal(to.long(), taps[case.cols.long()])
    again = case.cols.clone()
    stretch(case.text("fwd"), again, again)             # in place
    built = torch.empty_like(case.cols)
    build(case.text("fwd", stretched=1), case.w, case.values, case.rows, built)
    assert torch.equal(again, to) and torch.equal(built, to)
    check(case.text("fwd", stretched=1), case.rows, to)


@pytest.mark.parametrize("dtype", capi.FLOATS, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", [CASES[1], CASES[3], CASES[5]], ids=lambda c: c.text("", nnz=0))
def test_build_from_any_type_and_layout(case, dtype, layout):
    """Values are rounded to the problem's type."""
    case.make(torch.float32, False)
    w = case.w.to(dtype)
    values, rows, cols = torch.empty(case.nnz), torch.empty_like(case.rows), torch.empty_like(case.cols)
    memory = capi.layout(w, layout == "last")
    if layout == "strided":
        memory = torch.full((*w.shape[:-1], 2 * w.shape[-1] + 1), 9, dtype=dtype)[..., ::2][..., :w.shape[-1]]
        memory.copy_(w)
    dense = described(memory, layout)
    assert count(case.text("fwd", nnz=0), memory, dense) == case.nnz
    build(case.text("fwd"), memory, values, rows, cols, dense)
    assert torch.equal(values, w[w != 0].float()) and torch.equal(rows, case.rows) and torch.equal(cols, case.cols)


def test_nan_is_kept_and_minus_zero_is_not():
    w = torch.tensor([float("nan"), -0.0, float("inf"), 0.0]).view(1, 1, 4)
    text = "sparse_conv1d:fwd:f32:ncw:n1c1w5:o1k4nnz{}"
    assert count(text.format(0), w) == 2
    values, rows, cols = torch.empty(2), torch.empty(2, dtype=torch.int32), torch.empty(2, dtype=torch.int32)
    build(text.format(2), w, values, rows, cols)
    assert cols.tolist() == [0, 2] and rows.tolist() == [0, 2] and values[0].isnan() and values[1].isinf()


def test_order_is_free_and_equal_columns_add_up():
    x = torch.randn(1, 2, 6)
    rows, cols, values = torch.tensor([0, 3, 4], dtype=torch.int32), torch.tensor([4, 0, 4, 1], dtype=torch.int32), torch.tensor([1.0, 2.0, 0.5, 3.0])
    text = "sparse_conv1d:{}:f32:ncw:n1c2w6:o2k3nnz4"
    check(text.format("fwd"), rows, cols)
    y = capi.run(text.format("fwd"), src=x, weights=values, rows=rows, cols=cols, dst=torch.empty(1, 2, 4))["dst"]
    w = torch.zeros(2, 6)
    w[0, 4], w[0, 0], w[1, 1] = 1.5, 2.0, 3.0
    capi.close(y, F.conv1d(x, w.view(2, 2, 3)), torch.float32)
    got = capi.run(text.format("bwd_weights"), src=x, rows=rows, cols=cols, diff_dst=y, diff_weights=torch.empty(4))["diff_weights"]
    assert got[0] == got[2] != 0


# ---------------------------------------------------------------- properties
def test_nan_only_where_an_entry_reads_it():
    case = CASES[2].make(torch.float32, False)
    case.x[0, 1, 2, 3], case.x[1, 0, 0, 0] = float("nan"), float("inf")
    y = capi.run(case.text("fwd") + ":bias", src=case.x, weights=case.values, bias=case.b, **case.csr(), dst=like(case.y, torch.float32, False))["dst"]
    want = torch.zeros_like(case.y)                     # F.conv multiplies by the zeros too: 0 * NaN
    for n, o in [(n, o) for n in range(case.n) for o in range(case.o)]:
        want[n, o] += case.b[o]
        for i, r, s in (case.w[o] != 0).nonzero().tolist():
            want[n, o] += F.pad(case.x[n, i], (1, 1, 1, 1))[r:r + 6, s:s + 7] * case.w[o, i, r, s]
    capi.close(y, want, torch.float32)
    assert torch.isnan(want).any() and not torch.isnan(want).all()


def test_strided():
    case = CASES[3].make(torch.float32, False)
    wide = lambda t: torch.full((*t.shape, 3), float("nan") if t.is_floating_point() else -9, dtype=t.dtype)[..., 1].copy_(t)
    tensors = {"src": wide(case.x), "weights": wide(case.values), "rows": wide(case.rows), "cols": wide(case.cols), "dst": wide(case.y.float()).fill_(9)}
    layouts = "nchw" + "".join(f",{role}=[{'.'.join(map(str, t.stride()))}]/4" for role, t in tensors.items())
    y = capi.run(case.text("fwd", layouts=layouts, steps=":bias"), bias=case.b, **tensors)["dst"]
    capi.close(y, case.y, torch.float32)


def test_gradients_accumulate():
    case = CASES[3].make(torch.float32, False)
    wants = {"diff_src": case.dx, "diff_weights": case.dv, "diff_bias": case.db}
    old = {name: torch.randn(t.shape) for name, t in wants.items()}
    got = {name: t.clone() for name, t in old.items()}
    capi.run(case.text("bwd", steps=":bias+acc0.5_-2"), src=case.x, weights=case.values, **case.csr(), diff_dst=case.dy, **got)
    for name, want in wants.items():
        capi.close(got[name], 0.5 * want - 2 * old[name], torch.float32)


@pytest.mark.parametrize("stretched", [0, 1])
def test_gradients_are_finite_differences_of_the_forward_pass(stretched):
    """Within weft alone, in f64. dst is linear in each input, so a long step errs by rounding only."""
    case = CASES[3].make(torch.float64, False, stretched=stretched)
    forward = lambda x, v, b: capi.run(case.text("fwd", "f64", stretched=stretched, steps=":bias"), src=x, weights=v, bias=b, **case.csr(), dst=torch.empty_like(case.y))["dst"]
    start = [case.x, case.values, case.b]
    got = [torch.empty_like(t) for t in start]
    capi.run(case.text("bwd", "f64", stretched=stretched, steps=":bias"), src=case.x, weights=case.values, **case.csr(), diff_dst=case.dy, diff_src=got[0], diff_weights=got[1], diff_bias=got[2])
    for i, grad in enumerate(got):
        step = torch.randn_like(grad)
        up, down = (forward(*(t + f * step if j == i else t for j, t in enumerate(start))) for f in (0.5, -0.5))
        want, found = ((up - down) * case.dy).sum(), (grad * step).sum()
        assert abs(want - found) <= 1e-11 * max(up.abs().sum() * case.dy.abs().max(), 1)


def test_zero_batch():
    case = Case(0, 3, (6, 7), 5, 3, lo=1).make(torch.float32, False)
    y = capi.run(case.text("fwd"), src=case.x, weights=case.values, **case.csr(), dst=torch.empty_like(case.y, dtype=torch.float32))["dst"]
    assert y.shape == (0, 5, 6, 7)
    got = capi.run(case.text("bwd", steps=":bias"), src=case.x, weights=case.values, **case.csr(), diff_dst=case.dy, diff_src=case.x.clone(),
                   diff_weights=torch.full((case.nnz,), 7.0), diff_bias=torch.full((5,), 7.0))
    assert got["diff_weights"].eq(0).all() and got["diff_bias"].eq(0).all()


@pytest.mark.parametrize("stretched", [0, 1])
def test_more_than_2_to_the_31_positions(stretched):
    """src repeats one element; the windows stand 2^30 apart; the second channel begins beyond 2^31."""
    w = 2**31 + 3
    cols = torch.tensor([0, w + 2 + 2 if stretched else 5])
    y = capi.run(f"sparse_conv1d:fwd:f32,rows=i32,cols=i64:ncw,src=[0.0.0]:n1c2w{w}:o1k3s{2**30}p1nnz2stretched{stretched}", src=torch.tensor([2.0]),
                 weights=torch.tensor([1.0, 100.0]), rows=torch.tensor([0, 2], dtype=torch.int32), cols=cols, dst=torch.empty(3))["dst"]
    assert y.tolist() == [200, 202, 202]


# ---------------------------------------------------------------- wrong input
GOOD = "sparse_conv1d:fwd:f32:ncw:n1c4w9:o2k3d2p1g2nnz3"


def ints(*values):
    return torch.tensor(values, dtype=torch.int32)


@pytest.mark.parametrize("stretched, rows, cols, message", [
    (0, (1, 2, 3), (0, 1, 2), r"rows\[0\] is 1, allowed: 0..0 \(0 first, nnz last, never falling\)"),
    (0, (0, 4, 3), (0, 1, 2), r"rows\[1\] is 4, allowed: 0..3"),
    (0, (0, -1, 3), (0, 1, 2), r"rows\[1\] is -1, allowed: 0..3"),
    (1, (0, 2, 2), (0, 2, 4), r"rows\[2\] is 2, allowed: 3..3"),
    (0, (0, 2, 3), (0, 6, 2), r"cols\[1\] is 6, allowed: 0 or more, below c/groups \* kernel"),
    (0, (0, 2, 3), (0, 1, -1), r"cols\[2\] is -1, allowed: 0 or more"),
    (1, (0, 2, 3), (0, 2, -1), r"cols\[2\] is -1, allowed: the offset of a tap in the padded input"),
    (1, (0, 2, 3), (0, 1, 2), r"cols\[1\] is 1, allowed: the offset of a tap"),                # between two dilated taps
    (1, (0, 2, 3), (6, 2, 4), r"cols\[0\] is 6, allowed: the offset of a tap"),                # behind the last tap
    (1, (0, 2, 3), (15, 2, 22), r"cols\[2\] is 22, allowed: the offset of a tap"),             # behind the last channel
])
def test_bad_csr_is_named_and_stays_in_bounds(stretched, rows, cols, message):
    """The check says what is wrong; running it anyway writes every output and nothing else."""
    rows, cols, extra = ints(*rows), ints(*cols), f"stretched{stretched}"
    with pytest.raises(capi.WeftError, match=message):
        check(GOOD + extra, rows, cols)
    x, dy = torch.randn(1, 4, 9), torch.randn(1, 2, 7)
    y = capi.run(GOOD + extra, src=x, weights=torch.ones(3), rows=rows, cols=cols, dst=torch.full((1, 2, 7), float("nan")))["dst"]
    got = capi.run((GOOD + extra).replace("fwd", "bwd"), src=x, weights=torch.ones(3), rows=rows, cols=cols, diff_dst=dy,
                   diff_src=torch.full_like(x, float("nan")), diff_weights=torch.full((3,), float("nan")))
    assert all(torch.isfinite(t).all() for t in (y, got["diff_src"], got["diff_weights"]))


def test_an_entry_of_no_row_has_no_gradient():
    for rows, inside in (((0, 1, 2), [True, True, False]), ((1, 2, 3), [False, True, True])):
        got = capi.run(GOOD.replace("fwd", "bwd_weights"), src=torch.ones(1, 4, 9), rows=ints(*rows), cols=ints(0, 1, 2), diff_dst=torch.ones(1, 2, 7),
                       diff_weights=torch.full((3,), float("nan")))["diff_weights"]
        assert got.ne(0).tolist() == inside and torch.isfinite(got).all()


def test_wild_csr_stays_in_bounds():
    extreme = [2**63 - 1, -2**63, 2**31, -1, 0, 3, 7]
    generator = torch.Generator().manual_seed(1)
    for stretched in (0, 1):
        for _ in range(50):
            pick = lambda n: torch.tensor([extreme[i] for i in torch.randint(7, (n,), generator=generator).tolist()])
            text = f"sparse_conv1d:bwd:f32,rows=i64,cols=i64:ncw:n1c4w9:o2k3d2p1g2nnz3stretched{stretched}"
            got = capi.run(text, src=torch.ones(1, 4, 9), weights=torch.ones(3), rows=pick(3), cols=pick(3), diff_dst=torch.ones(1, 2, 7),
                           diff_src=torch.full((1, 4, 9), float("nan")), diff_weights=torch.full((3,), float("nan")))
            assert torch.isfinite(got["diff_src"]).all() and torch.isfinite(got["diff_weights"]).all()


def test_refusals_of_building():
    w, values, rows, cols = torch.zeros(2, 2, 3), torch.full((3,), 7.0), ints(7, 7, 7), ints(7, 7, 7)
    w[0, 1, 2] = w[1, 0, 0] = 1
    with pytest.raises(capi.WeftError, match="weights: 2 elements are not 0, allowed: nnz of the problem, 3"):
        build(GOOD, w, values, rows, cols)
    w[1, 1, 1] = 1
    with pytest.raises(capi.WeftError, match="rows is NULL"):
        build(GOOD, w, values, None, cols)
    with pytest.raises(capi.WeftError, match="cols is NULL"):
        build(GOOD, w, values, rows, None)
    with pytest.raises(capi.WeftError, match="values is NULL"):
        build(GOOD, w, None, rows, cols)
    with pytest.raises(capi.WeftError, match="weights is NULL"):
        build(GOOD, None, values, rows, cols)
    with pytest.raises(capi.WeftError, match=r"weights: shape is \(2, 4, 1, 1, 3\), allowed: \(2, 2, 1, 1, 3\)"):
        build(GOOD, w, values, rows, cols, described(torch.zeros(2, 4, 3), "first"))
    with pytest.raises(capi.WeftError, match="weights: data type is i32"):
        build(GOOD, w, values, rows, cols, Tensor(dtype=6))
    with pytest.raises(capi.WeftError, match="problem is bwd_weights of sparse_conv, allowed: fwd, bwd_data or bwd of sparse_conv"):
        build(GOOD.replace("fwd", "bwd_weights"), w, values, rows, cols)
    with pytest.raises(capi.WeftError, match="problem is fwd of conv, allowed"):
        build("conv1d:fwd:f32:ncw:n1c4w9:o2k3d2p1g2", w, values, rows, cols)
    with pytest.raises(capi.WeftError, match=r"cols\[1\] is 6, allowed: 0 or more, below c/groups \* kernel"):
        stretch(GOOD, ints(0, 6, 1), cols)
    with pytest.raises(capi.WeftError, match="cols is NULL"):
        stretch(GOOD, None, cols)
    with pytest.raises(capi.WeftError, match="cols: data type is i32, but columns go up to 4294967302, allowed here: i64"):
        stretch("sparse_conv1d:fwd:f32:ncw:n1c2w4294967298:o1k3p1nnz1", ints(0), ints(0))
    assert values.eq(7).all() and rows.eq(7).all() and cols.eq(7).all()
    build(GOOD, w, values, rows, cols)
    assert rows.tolist() == [0, 1, 3] and cols.tolist() == [5, 0, 4] and values.eq(1).all()


@pytest.mark.parametrize("text, message", [
    ("fwd:f32:ncw:n1c4w9:o2k3", "expected 'nnz' and a number"),
    ("fwd:f32:ncw:n1c4w9:o2k3nnz-1", "sparse_conv: nnz is -1, allowed: 0..2\\^40"),
    ("fwd:f32:ncw:n1c4w9:o2k3nnz1stretched2", "sparse_conv: stretched is 2, allowed: 0 or 1"),
    ("fwd:f32:ncw:n1c4w9:o2k3g3nnz1", "sparse_conv: groups is 3, allowed: a divisor of both channels"),
    ("fwd:f32:ncw:n1c4w2:o2k3nnz1", "sparse_conv: the window along w is 3 .*, allowed: at most the padded input, 2"),
    ("fwd:f32,rows=f32:ncw:n1c4w9:o2k3nnz1", "rows: data type is f32 .*, which sparse_conv does not take there"),
    ("fwd:f32,cols=u8:ncw:n1c4w9:o2k3nnz1", "cols: data type is u8 .*, which sparse_conv does not take there"),
    ("fwd:f32,weights=i32:ncw:n1c4w9:o2k3nnz1", "weights: data type is i32 .*, which sparse_conv does not take there"),
    ("bwd_data:f32:ncw:n1c4w9:o2k3nnz1:bias", "bias, allowed: once, in a pass that takes a bias"),
])
def test_refusals_of_problems(text, message):
    with pytest.raises(capi.WeftError, match=message):
        capi.parse(f"sparse_conv1d:{text}")


def test_more_columns_than_63_bits_count():
    with pytest.raises(capi.WeftError, match="sparse_conv: the padded input has more than 2\\^63 elements"):
        capi.parse(f"sparse_conv2d:fwd:f32:nchw,src=[0.0.0.0]:n1c1h{2**40}w{2**40}:o1k1s{2**40}nnz0")
