"""im2col and col2im against torch: F.unfold and F.fold in 2D, strided windows of a padded tensor in every rank, and each as the
gradient of the other."""
import pytest
import torch
import torch.nn.functional as F

import capi

# shape, kernel, stride, padding, dilation
WINDOWS = [
    ((2, 3, 11), (3,), (2,), (1,), (1,)),
    ((1, 2, 9), (4,), (1,), (5,), (2,)),
    ((2, 3, 7, 9), (3, 3), (2, 2), (1, 1), (1, 1)),
    ((2, 5, 8, 8), (1, 1), (1, 1), (0, 0), (1, 1)),
    ((1, 2, 6, 10), (2, 5), (1, 4), (3, 2), (1, 1)),
    ((1, 4, 9, 12), (3, 2), (4, 3), (1, 0), (2, 3)),
    ((1, 2, 5, 6, 7), (3, 2, 3), (2, 2, 1), (1, 0, 1), (1, 1, 1)),
    ((2, 1, 7, 4, 6), (2, 2, 3), (3, 1, 2), (1, 1, 1), (3, 1, 2)),
    ((0, 3, 6, 6), (3, 3), (2, 2), (1, 1), (1, 1)),
]


def columns_of(x, k, s, p, d):
    """n c k... o...: each axis of the padded tensor cut into windows."""
    rank = len(k)
    x = F.pad(x, [v for pad in reversed(p) for v in (pad, pad)])
    for a in range(rank):
        x = x.unfold(2 + a, d[a] * (k[a] - 1) + 1, s[a])[..., :: d[a]]
    return x.permute(0, 1, *range(2 + rank, 2 + 2 * rank), *range(2, 2 + rank))


def text(op, pass_, x, last, window, layouts="", extra=""):
    rank = x.dim() - 2
    attributes = "".join(key + "x".join(map(str, values)) for key, values in zip("kspd", window))
    return f"{op}{rank}d:{pass_}:{capi.DTYPES[x.dtype]}:{capi.tag(rank, last)}{layouts}:{capi.sizes(x.shape)}:{attributes}{extra}"


def full(shape, dtype, last):
    return capi.layout(torch.full(shape, 7.0, dtype=dtype), last)


@pytest.mark.parametrize("shape, k, s, p, d", WINDOWS, ids=str)
@pytest.mark.parametrize("dtype", capi.FLOATS, ids=str)
@pytest.mark.parametrize("last", [False, True])
def test_columns_and_image(shape, k, s, p, d, dtype, last):
    window = (k, s, p, d)
    x = capi.layout(torch.randn(shape, dtype=torch.float64).to(dtype), last)
    wide = x.double().requires_grad_()
    want = columns_of(wide, *window)
    columns = capi.layout(torch.randn(want.shape, dtype=torch.float64).to(dtype), last)
    (image,) = torch.autograd.grad(want, wide, columns.double())
    for op, pass_, source, result in [("im2col", "fwd", "src", "dst"), ("col2im", "bwd", "diff_dst", "diff_src")]:
        got = capi.run(text(op, pass_, x, last, window), **{source: x, result: full(want.shape, dtype, last)})[result]
        assert torch.equal(got.double(), want.detach())
    for op, pass_, source, result in [("col2im", "fwd", "src", "dst"), ("im2col", "bwd", "diff_dst", "diff_src")]:
        got = capi.run(text(op, pass_, x, last, window), **{source: columns, result: full(shape, dtype, last)})[result]
        capi.close(got, image, dtype)


@pytest.mark.parametrize("shape, k, s, p, d", [w for w in WINDOWS if len(w[1]) == 2], ids=str)
def test_unfold_and_fold_are_the_same_memory(shape, k, s, p, d):
    x = torch.randn(shape)
    want = F.unfold(x, k, d, p, s)
    columns = capi.run(text("im2col", "fwd", x, False, (k, s, p, d)), src=x, dst=torch.empty_like(want))["dst"]
    assert torch.equal(columns, want)
    image = capi.run(text("col2im", "fwd", x, False, (k, s, p, d)), src=want, dst=torch.empty_like(x))["dst"]
    capi.close(image, F.fold(want, shape[2:], k, d, p, s), torch.float32)


def test_pyinn_definition():
    """(C,H,W) -> (C,kh,kw,Ho,Wo), and back to (Ho-1)*s - 2p + k when no size is given."""
    x, k, s, p = torch.randn(3, 8, 10), (3, 4), 2, 1
    columns = torch.empty(3, 3, 4, 4, 5)
    capi.run("im2col2d:fwd:f32:nchw:n1c3h8w10:k3x4s2p1", src=x, dst=columns)
    padded = F.pad(x, (p,) * 4)
    for y in range(4):
        for z in range(5):
            assert torch.equal(columns[:, :, :, y, z], padded[:, y * s:y * s + k[0], z * s:z * s + k[1]])
    h, w = (4 - 1) * s - 2 * p + k[0], (5 - 1) * s - 2 * p + k[1]
    image = capi.run(f"col2im2d:fwd:f32:nchw:n1c3h{h}w{w}:k3x4s2p1", src=columns, dst=torch.empty(3, h, w))["dst"]
    capi.close(image, F.fold(columns.view(1, 36, 20), (h, w), k, 1, p, s)[0], torch.float32)


def test_adjoint_and_finite_difference():
    """<im2col(x), y> = <x, col2im(y)>, and both are linear: differences are exact but for rounding."""
    window = ((3, 2), (2, 1), (1, 2), (1, 2))
    x, v = torch.randn(2, 3, 6, 5, dtype=torch.float64), torch.randn(2, 3, 6, 5, dtype=torch.float64)
    y = torch.randn(columns_of(x, *window).shape, dtype=torch.float64)

    def columns(image):
        return capi.run(text("im2col", "fwd", x, False, window), src=image, dst=torch.empty_like(y))["dst"]

    def image(pass_, op, source, result):
        return capi.run(text(op, pass_, x, False, window), **{source: y, result: torch.empty_like(x)})[result]

    back = image("fwd", "col2im", "src", "dst")
    assert torch.equal(back, image("bwd", "im2col", "diff_dst", "diff_src"))
    assert (columns(x) * y).sum().item() == pytest.approx((x * back).sum().item(), rel=1e-12)
    slope = ((columns(x + 0.5 * v) - columns(x - 0.5 * v)) * y).sum()
    assert slope.item() == pytest.approx((v * back).sum().item(), rel=1e-12)


def test_strided_and_mixed_layouts():
    x, window = torch.randn(2, 3, 5, 6), ((2, 3), (1, 2), (1, 0), (1, 1))
    want = columns_of(x, *window)
    src, dst = capi.gaps(x), capi.gaps(torch.zeros(want.shape))
    capi.run(text("im2col", "fwd", x, True, window, capi.strided(src=src, dst=dst)), src=src, dst=dst)
    assert torch.equal(dst, want) and (dst.as_strided(want.shape, dst.stride(), 1) == 9).all()
    back = capi.gaps(torch.zeros_like(x))
    capi.run(text("im2col", "bwd", x, False, window, capi.strided(diff_dst=dst, diff_src=back)), diff_dst=dst, diff_src=back)
    capi.close(back, F.fold(want.reshape(2, 18, -1), (5, 6), *[window[i] for i in (0, 3, 2, 1)]), torch.float32)
    mixed = capi.run(text("im2col", "fwd", x, True, window, ",dst=nchw"), src=capi.layout(x, True), dst=torch.zeros(want.shape))["dst"]
    assert torch.equal(mixed, want)
    rows = torch.zeros(2, 6, 2, 2, 3, 3)   # n ho wo kh kw c, as a matrix product on channels-last data wants it
    view = rows.permute(0, 5, 3, 4, 1, 2)
    capi.run(text("im2col", "fwd", x, True, window, capi.strided(dst=view)), src=capi.layout(x, True), dst=view)
    assert torch.equal(view, want)


def test_low_and_high_padding_may_differ():
    x = torch.randn(1, 2, 6, 7)
    want = columns_of(F.pad(x, (3, 0, 0, 1)), (3, 2), (2, 1), (0, 0), (1, 1))
    got = capi.run("im2col2d:fwd:f32:nchw:n1c2h6w7:k3x2s2x1p0+1x3+0", src=x, dst=torch.zeros(want.shape))["dst"]
    assert torch.equal(got, want)


def test_nan_and_infinity_stay_in_their_windows():
    x = torch.zeros(1, 1, 6)
    x[0, 0, 1], x[0, 0, 4] = float("nan"), float("inf")
    got = capi.run("im2col1d:fwd:f32:ncw:n1c1w6:k3p1", src=x, dst=torch.zeros(1, 1, 3, 6))["dst"]
    capi.close(got, columns_of(x, (3,), (1,), (1,), (1,)), torch.float32)
    back = capi.run("col2im1d:fwd:f32:ncw:n1c1w6:k3p1", src=got, dst=torch.zeros(1, 1, 6))["dst"]
    assert torch.isnan(back).flatten().tolist() == [False, True, False, False, False, False] and back[0, 0, 4] == float("inf")


@pytest.mark.parametrize("op", ["im2col", "col2im"])
def test_gradient_accumulates(op):
    x, window = torch.randn(2, 3, 5, 6), ((3, 3), (1, 1), (1, 1), (1, 1))
    columns = torch.randn(2, 3, 3, 3, 5, 6)
    given, old = (columns, x) if op == "im2col" else (x, columns)
    plain = capi.run(text(op, "bwd", x, False, window), diff_dst=given, diff_src=torch.full_like(old, float("nan")))["diff_src"]
    got = capi.run(text(op, "bwd", x, False, window, "", ":acc0.5_-2"), diff_dst=given, diff_src=old.clone())["diff_src"]
    capi.close(got, 0.5 * plain - 2 * old, torch.float32)


def test_an_image_beyond_31_bits():
    n = 2**31 + 3                        # reserved memory, of which a few pages are touched
    x = torch.empty(n, dtype=torch.bfloat16).view(1, 1, n)
    for first in (0, 2**30, 2**31):
        x[0, 0, first:first + 3] = torch.tensor([1.0, 2.0, 3.0])
    got = capi.run(f"im2col1d:fwd:bf16:ncw:n1c1w{n}:k3s{2**30}", src=x, dst=torch.zeros(1, 1, 3, 3, dtype=torch.bfloat16))["dst"]
    assert got.view(3, 3).tolist() == [[1, 1, 1], [2, 2, 2], [3, 3, 3]]


REFUSALS = {
    "im2col2d:fwd:f32:nchw:n1c1h4w4:k5":
        r"im2col: the window along h is 5 \(kernel 5, dilation 1\), allowed: at most the padded input, 4",
    "col2im2d:fwd:f32:nchw:n1c1h4w4:k3d2":
        r"col2im: the window along h is 5 \(kernel 3, dilation 2\), allowed: at most the padded input, 4",
    "im2col2d:fwd:f32:nchw:n1c0h4w4:k2": "im2col: channels c is 0, allowed: 1..2",
    "im2col2d:fwd:f32:nchw:n1c1h4w4:k2p-1": "im2col: low padding along h is -1, allowed: 0..2",
    "im2col2d:fwd:f32:nchw:n1c1h4w4:k2:acc1_1": "acc, which pass fwd of im2col does not take",
    "im2col2d:fwd:f32:nchw:n1c1h4w4:k2g1": "expected an attribute: k s p d, got 'g1'",
    "im2col2d:fwd:f32:nchw,dst=[1.1.1.1]:n1c1h4w4:k2": r"expected 6 strides, got .\[1.1.1.1\]",
    "im2col2d:fwd:f32:nchw,dst=[36.36.18.1.3.1]:n1c1h4w4:k2": "dst: its strides make elements overlap",
    "col2im3d:bwd_data:f32:ncdhw:n1c1d4h4w4:k2": "bwd_data",
}


@pytest.mark.parametrize("problem", REFUSALS)
def test_refusals(problem):
    with pytest.raises(capi.WeftError, match=REFUSALS[problem]):
        capi.parse(problem)
