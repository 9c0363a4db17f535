"""Partial convolution against its definition in float64 torch, with autograd for the gradients, and against NVIDIA's and torch_pconv's formulas."""
import math

import pytest
import torch
import torch.nn.functional as F

import capi

CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
CONV_TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


class Geometry:
    def __init__(self, n, c, size, o, k, s=1, lo=0, hi=None, d=1, g=1, transposed=False, outpad=0):
        self.rank = len(size)
        spread = lambda v: tuple(v) if isinstance(v, (tuple, list)) else (v,) * self.rank
        self.n, self.c, self.o, self.g, self.size, self.transposed = n, c, o, g, tuple(size), transposed
        self.k, self.s, self.d, self.lo, self.outpad = map(spread, (k, s, d, lo, outpad))
        self.hi = self.lo if hi is None else spread(hi)
        self.weights = (c, o // g, *self.k) if transposed else (o, c // g, *self.k)
        self.window = c // g * math.prod(self.k)

    def text(self, pass_, dtypes, layouts, extra=""):
        axes = lambda v: "x".join(map(str, v))
        pads = "x".join(f"{a}+{b}" for a, b in zip(self.lo, self.hi))
        more = f"transposed1outpad{axes(self.outpad)}" if self.transposed else ""
        return (f"partial_conv{self.rank}d:{pass_}:{dtypes}:{layouts}:{capi.sizes((self.n, self.c, *self.size))}:"
                f"o{self.o}k{axes(self.k)}s{axes(self.s)}p{pads}d{axes(self.d)}g{self.g}{more}{extra}")

    def conv(self, x, w, groups=None):
        """Plain convolution of that geometry; pads are explicit zeros, or cut off the transposed result."""
        groups = self.g if groups is None else groups
        if self.transposed:
            y = CONV_TRANSPOSED[self.rank](x, w, stride=self.s, dilation=self.d, output_padding=self.outpad, groups=groups)
            return y[(..., *(slice(a, y.shape[2 + i] - b) for i, (a, b) in enumerate(zip(self.lo, self.hi))))]
        pads = [v for a, b in zip(reversed(self.lo), reversed(self.hi)) for v in (a, b)]
        return CONV[self.rank](F.pad(x, pads), w, stride=self.s, dilation=self.d, groups=groups)

    def __str__(self):
        return self.text("", "", "")


GEOMETRIES = [
    Geometry(2, 3, (7,), 4, 3, lo=1),
    Geometry(2, 4, (9,), 6, 2, s=2, lo=(2,), hi=(1,), d=2, g=2),
    Geometry(2, 3, (5, 6), 4, 3, lo=1),
    Geometry(1, 4, (6, 5), 4, (3, 2), s=(2, 1), lo=(0, 2), hi=(1, 0), g=4),
    Geometry(2, 4, (7, 7), 6, 3, s=2, lo=2, d=2, g=2),
    Geometry(2, 2, (3, 4, 5), 4, (2, 3, 1), lo=(1, 1, 0), g=2),
    Geometry(2, 3, (4,), 2, 3, s=2, lo=1, transposed=True, outpad=1),
    Geometry(2, 4, (3, 4), 6, (3, 2), s=(2, 1), lo=(1, 0), hi=(0, 1), d=(1, 2), g=2, transposed=True, outpad=(1, 0)),
    Geometry(1, 2, (2, 3, 2), 4, 2, s=2, g=2, transposed=True),
]
# mask attribute, shared by the batch, kind of values
MASKS = [(0, 0, None), (1, 0, "u8"), (1, 0, "float"), (1, 0, "fraction"), (1, 0, "negative"), (1, 1, "u8"), (2, 0, "u8"), (2, 0, "fraction"), (2, 1, "float")]


def make_mask(geo, mask, dtype):
    kind, shared, values = mask
    if kind == 0:
        return None
    shape = (1 if shared else geo.n, geo.c if kind == 2 else 1, *geo.size)
    m = (torch.rand(shape) < 0.5).double()
    m[..., :3] = 0                                    # some windows have only holes
    if values == "fraction":
        m = m * torch.randint(1, 5, shape) / 4 * (0.125 if kind == 1 else 1)   # small enough for sums below 1
    if values == "negative":
        m[..., -2:] *= -1                             # some sums are below 0
    return m.to(torch.uint8) if values == "u8" else m.to(dtype)


def definition(geo, x, w, b, mask, kind):
    """y, u, S in double, from S = conv(mask, ones)."""
    if mask is not None and mask.dtype == torch.uint8:
        m = (mask != 0).double()
        xm = torch.where(mask != 0, x, torch.zeros((), dtype=x.dtype))
    else:
        m = torch.ones(1, 1, *geo.size, dtype=torch.float64) if mask is None else mask.double()
        xm = x * m
    if kind == 2:
        sums = geo.conv(m.expand(m.shape[0], geo.c, *geo.size), torch.ones(geo.weights, dtype=torch.float64))
    else:
        sums = geo.conv(m, torch.ones(1, 1, *geo.k, dtype=torch.float64), groups=1) * (geo.c // geo.g)
    u = sums.clamp(0, 1)
    r = geo.window / (sums + 1e-8) * u
    y = geo.conv(xm, w) * r
    if b is not None:
        y = (y + b.view(1, -1, *[1] * geo.rank)) * u
    return y, u, sums


class Case:
    """The tensors of one problem: inputs of the data type, the definition's outputs and gradients in double."""

    def __init__(self, geo, mask, dtype, last, bias, seed=1):
        torch.manual_seed(seed)
        self.geo, self.dtype, self.bias, self.mask_kind, self.last = geo, dtype, bias, mask, last
        draw = lambda *shape: torch.randn(shape, dtype=torch.float64).to(dtype)
        self.x, self.w = capi.layout(draw(geo.n, geo.c, *geo.size), last), draw(*geo.weights)
        self.b = draw(geo.o) if bias else None
        self.mask = make_mask(geo, mask, dtype)
        if self.mask is not None:
            self.mask = capi.layout(self.mask, last)
        leaves = [t.double().requires_grad_() for t in (self.x, self.w, self.b) if t is not None]
        y, u, s = definition(geo, *leaves[:2], leaves[2] if bias else None, self.mask, mask[0])
        self.dy = capi.layout(torch.randn_like(y).to(dtype), last)
        self.grads = torch.autograd.grad(y, leaves, self.dy.double()) if y.numel() else [torch.zeros_like(v) for v in leaves]
        self.y, self.u = y.detach(), u
        self.s = s if mask[0] != 2 else s[:, ::geo.o // geo.g]            # saved once a group

    def text(self, pass_, extra="", steps=""):
        select = self.mask is not None and self.mask.dtype == torch.uint8
        dtypes = capi.DTYPES[self.dtype]
        if select and pass_ != "bwd_bias":
            dtypes += ",mask=u8" + (",new_mask=u8" if pass_ == "fwd" else "")
        kind, shared, _ = self.mask_kind
        return self.geo.text(pass_, dtypes, capi.tag(self.geo.rank, self.last), f"mask{kind}shared{shared}{extra}") + steps

    def inputs(self, *roles):
        all_ = {"src": self.x, "weights": self.w, "bias": self.b, "mask": self.mask, "diff_dst": self.dy, "sums": getattr(self, "saved", None)}
        return {role: all_[role] for role in roles if all_[role] is not None}

    def empty(self, like, dtype=None):
        last = self.last and like.shape != self.w.shape       # weights are channels-first whatever the data is
        full = torch.full(like.shape, 7, dtype=dtype or self.dtype)
        return capi.layout(full, last) if like.dim() > 2 else full

    def forward(self, steps=None):
        select = self.mask is not None and self.mask.dtype == torch.uint8
        wide = torch.float64 if self.dtype == torch.float64 else torch.float32
        self.saved = self.empty(self.s, wide)
        return capi.run(self.text("fwd", steps=steps if steps is not None else ":bias" if self.bias else ""), **self.inputs("src", "weights", "bias", "mask"),
                        dst=self.empty(self.y), new_mask=self.empty(self.u, torch.uint8 if select else None), sums=self.saved)


@pytest.mark.parametrize("geo", GEOMETRIES, ids=str)
@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_every_pass_against_the_definition(geo, mask):
    turn = GEOMETRIES.index(geo) + MASKS.index(mask)
    for i, dtype in enumerate(capi.FLOATS):           # bias and layout take turns, so that each pair of options meets
        bias = bool((turn + i) % 2)
        case = Case(geo, mask, dtype, last=(turn // 2 + i // 2) % 2, bias=bias)
        out = case.forward()
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        capi.close(out["dst"], case.y, dtype)
        capi.close(out["new_mask"], case.u, dtype)
        capi.close(out["sums"], case.s, wide)
        if mask[2] != "fraction":
            assert set(out["new_mask"].unique().tolist()) <= {0.0, 1.0}
        dx, dw, db = case.grads if bias else (*case.grads, None)
        both = {"diff_src": case.empty(dx), "diff_weights": case.empty(dw)} | ({"diff_bias": case.empty(db)} if bias else {})
        capi.run(case.text("bwd", steps=":bias" if bias else ""), **case.inputs("src", "weights", "mask", "diff_dst", "sums"), **both)
        capi.close(both["diff_src"], dx, dtype)
        capi.close(both["diff_weights"], dw, dtype)
        said = "biased1" if bias else ""
        alone = capi.run(case.text("bwd_data", said), **case.inputs("weights", "mask", "diff_dst", "sums"), diff_src=case.empty(dx))
        assert torch.equal(alone["diff_src"], both["diff_src"])
        alone = capi.run(case.text("bwd_weights", said), **case.inputs("src", "mask", "diff_dst", "sums"), diff_weights=case.empty(dw))
        assert torch.equal(alone["diff_weights"], both["diff_weights"])
        if bias:
            capi.close(both["diff_bias"], db, dtype)
            alone = capi.run(case.text("bwd_bias"), **case.inputs("diff_dst", "sums"), diff_bias=case.empty(db))
            assert torch.equal(alone["diff_bias"], both["diff_bias"])


def nvidia(x, w, b, mask, multi, **conv):
    """PartialConv2d.forward as published: the bias inside the convolution, taken off before the ratio. One group."""
    ones = torch.ones_like(w) if multi else torch.ones(1, 1, *w.shape[2:])
    winsize = ones.shape[1] * ones.shape[2] * ones.shape[3]
    update = F.conv2d(mask, ones, **conv)
    ratio = winsize / (update + 1e-8)
    update = update.clamp(0, 1)
    ratio = ratio * update
    raw = F.conv2d(x * mask, w, b, **conv)
    if b is None:
        return raw * ratio, update
    view = b.view(1, -1, 1, 1)
    return ((raw - view) * ratio + view) * update, update


@pytest.mark.parametrize("multi", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_agrees_with_nvidia(multi, bias):
    case = Case(Geometry(2, 3, (9, 8), 5, 3, s=2, lo=1), (2 if multi else 1, 0, "float"), torch.float32, False, bias)
    out = case.forward()
    y, mask = nvidia(case.x, case.w, case.b, case.mask, multi, stride=2, padding=1)
    capi.close(out["dst"], y, torch.float32)
    assert torch.equal(out["new_mask"], mask.expand_as(out["new_mask"]))


def test_agrees_with_torch_pconv():
    """Its mask is (N, H, W), repeated over the channels for the sums; the window is that of the repeated mask."""
    case = Case(Geometry(2, 4, (7, 9), 3, (3, 5), lo=(1, 2)), (1, 0, "float"), torch.float32, False, True)
    out = case.forward()
    sums = F.conv2d(case.mask.expand(2, 4, 7, 9), torch.ones(1, 4, 3, 5), padding=(1, 2))
    clamped = sums.clamp(0, 1)
    y = F.conv2d(case.x * case.mask, case.w, padding=(1, 2)) * (4 * 3 * 5 / (sums + 1e-8) * clamped)
    capi.close(out["dst"], (y + case.b.view(1, -1, 1, 1)) * clamped, torch.float32)
    assert torch.equal(out["sums"], sums) and torch.equal(out["new_mask"], clamped)


def test_no_mask_is_a_mask_of_ones():
    geo = Geometry(2, 4, (6, 7), 6, 3, lo=1, g=2)
    case, ones = (Case(geo, mask, torch.float32, False, True) for mask in [(0, 0, None), (1, 0, "float")])
    ones.x, ones.w, ones.b, ones.mask = case.x, case.w, case.b, torch.ones_like(ones.mask)
    a, b = case.forward(), ones.forward()
    assert torch.equal(a["dst"], b["dst"]) and torch.equal(a["sums"].expand_as(b["sums"]), b["sums"])


@pytest.mark.parametrize("g", [1, 2, 4])
def test_a_full_window_has_ratio_one_under_groups(g):
    """Without holes or padding partial convolution is convolution, whatever the groups and the kind of mask."""
    geo = Geometry(2, 4, (6, 5), 8, 3, g=g)
    for kind in (0, 1, 2):
        case = Case(geo, (kind, 0, "float"), torch.float64, False, True)
        if kind:
            case.mask = torch.ones_like(case.mask)
        capi.close(case.forward()["dst"], F.conv2d(case.x, case.w, case.b, groups=g), torch.float64, factor=1e3)   # the epsilon: 1e-8 / S


def test_epsilon_is_safe_in_half():
    """1e-8 is 0 in f16: a window of holes must give 0, not NaN."""
    for dtype in (torch.float16, torch.bfloat16):
        case = Case(Geometry(1, 2, (4, 4), 2, 3, lo=1), (1, 0, "float"), dtype, False, False)
        case.mask = torch.zeros_like(case.mask)
        out = case.forward()
        assert out["dst"].eq(0).all() and out["new_mask"].eq(0).all() and out["sums"].eq(0).all()


@pytest.mark.parametrize("transposed", [False, True])
def test_u8_selects_and_float_multiplies(transposed):
    geo = Geometry(1, 3, (6, 6), 4, 3, lo=1, transposed=transposed)
    for values in ("u8", "float"):
        case = Case(geo, (1, 0, values), torch.float32, False, True)
        case.mask *= 200 if values == "u8" else 1      # any value but 0 selects
        case.x[:, 0][case.mask[:, 0] == 0] = float("nan")
        case.x[0, 1, 0, 0] = float("inf")              # in a hole as well: columns 0..2 are
        case.y, case.u, case.s = definition(geo, case.x.double(), case.w.double(), case.b.double(), case.mask, 1)
        out = case.forward()
        assert torch.isnan(case.y).any() == (values == "float")
        capi.close(out["dst"], case.y, torch.float32)
        case.dy[0, 0, 0, 0] = float("nan")
        got = capi.run(case.text("bwd_data"), **case.inputs("weights", "mask", "diff_dst", "sums"), diff_src=case.empty(case.x))["diff_src"]
        holes = (case.mask == 0).expand_as(got)
        assert values == "float" or got[holes].eq(0).all()
        assert torch.isnan(got).any() == (values == "float" or not holes[0, 0, :2, :2].all())


def test_nan_in_a_float_mask_spreads_as_in_torch():
    case = Case(Geometry(1, 2, (5, 5), 2, 3, lo=1), (1, 0, "float"), torch.float32, False, True)
    case.mask[0, 0, 1, 1], case.mask[0, 0, 4, 4] = float("nan"), -2
    case.y, case.u, case.s = definition(case.geo, case.x.double(), case.w.double(), case.b.double(), case.mask, 1)
    out = case.forward()
    capi.close(out["dst"], case.y, torch.float32)
    capi.close(out["new_mask"], case.u, torch.float32)


def test_epilogue_follows_the_bias():
    case = Case(Geometry(2, 3, (5, 6), 4, 3, lo=1), (1, 0, "fraction"), torch.float32, True, True)
    capi.close(case.forward(":bias+relu")["dst"], case.y.relu(), torch.float32)
    capi.close(case.forward(":bias+clip-0.5_0.75")["dst"], case.y.clamp(-0.5, 0.75), torch.float32)
    u, b = case.u, case.b.view(1, -1, 1, 1).double()
    plain = definition(case.geo, case.x.double(), case.w.double(), None, case.mask, 1)[0]
    capi.close(case.forward(":relu+bias")["dst"], (plain.relu() + b) * u, torch.float32)


def strided(t, gap):
    """The same values in memory with gaps, axes in another order, and the text of its strides."""
    order = [*range(1, t.dim()), 0]
    room = torch.full([t.shape[a] + gap for a in order], float("nan") if t.is_floating_point() else 1, dtype=t.dtype)
    view = room[tuple(slice(t.shape[a]) for a in order)].permute([order.index(a) for a in range(t.dim())])
    view.copy_(t)
    return view, "[" + ".".join(map(str, view.stride())) + "]"


@pytest.mark.parametrize("mask", [(1, 0, "u8"), (2, 0, "fraction")], ids=str)
def test_strided(mask):
    case = Case(Geometry(2, 4, (5, 6), 6, 3, lo=1, g=2), mask, torch.float32, False, True)
    tensors = case.inputs("src", "weights", "mask") | {"dst": case.y.float(), "new_mask": case.u.float(), "sums": case.s.float()}
    views = {role: strided(t, 1 + i) for i, (role, t) in enumerate(tensors.items())}
    layouts = "nchw" + "".join(f",{role}={text}/4" if role != "mask" else f",mask={text}/{views['mask'][0].element_size()}" for role, (_, text) in views.items())
    dtypes = "f32,mask=u8" if mask[2] == "u8" else "f32"
    out = capi.run(case.geo.text("fwd", dtypes, layouts, f"mask{mask[0]}") + ":bias", bias=case.b, **{role: v.fill_(9) if role in ("dst", "new_mask", "sums") else v for role, (v, _) in views.items()})
    capi.close(out["dst"], case.y, torch.float32)
    capi.close(out["new_mask"], case.u, torch.float32)
    capi.close(out["sums"], case.s, torch.float32)


def test_gradients_accumulate():
    case = Case(Geometry(2, 4, (5, 6), 6, 3, lo=1, g=2), (1, 0, "fraction"), torch.float32, False, True)
    case.forward()
    old = [torch.randn(g.shape) for g in case.grads]
    got = dict(zip(("diff_src", "diff_weights", "diff_bias"), (t.clone() for t in old)))
    capi.run(case.text("bwd", steps=":bias+acc0.5_-2"), **case.inputs("src", "weights", "mask", "diff_dst", "sums"), **got)
    for new, was, grad in zip(got.values(), old, case.grads):
        capi.close(new, 0.5 * grad - 2 * was, torch.float32)


def test_zero_batch():
    for mask in [(0, 0, None), (1, 0, "u8"), (2, 1, "float")]:
        case = Case(Geometry(0, 4, (5, 6), 6, 3, lo=1), mask, torch.float32, False, True)
        out = case.forward()
        assert out["dst"].shape == (0, 6, 5, 6)
        capi.close(out["sums"], case.s, torch.float32)
        got = capi.run(case.text("bwd", steps=":bias"), **case.inputs("src", "weights", "mask", "diff_dst", "sums"),
                       diff_src=case.empty(case.x), diff_weights=case.empty(case.w), diff_bias=case.empty(case.b))
        assert got["diff_weights"].eq(0).all() and got["diff_bias"].eq(0).all()


@pytest.mark.parametrize("geo", GEOMETRIES, ids=str)
def test_gradients_are_finite_differences_of_the_forward_pass(geo):
    """Within weft alone, in f64, along one random direction a tensor. dst is linear in each, so a long step errs by rounding only."""
    case = Case(geo, (1, 0, "fraction"), torch.float64, False, True)
    case.forward()
    got = {"diff_src": case.empty(case.x), "diff_weights": case.empty(case.w), "diff_bias": case.empty(case.b)}
    capi.run(case.text("bwd", steps=":bias"), **case.inputs("src", "weights", "mask", "diff_dst", "sums"), **got)
    for name, grad in zip(("x", "w", "b"), got.values()):
        start, direction = getattr(case, name), torch.randn_like(grad)
        ends = []
        for step in (0.5, -0.5):
            setattr(case, name, start + step * direction)
            ends.append(case.forward()["dst"])
        setattr(case, name, start)
        want, found = ((ends[0] - ends[1]) * case.dy).sum(), (grad * direction).sum()
        assert abs(want - found) <= 1e-11 * max(ends[0].abs().sum() * case.dy.abs().max(), 1)


def test_more_than_2_to_the_31_positions():
    """src and mask repeat one element; the windows stand 2^30 apart."""
    w = 2**31 + 3
    x, mask = torch.tensor([2.0]), torch.tensor([1], dtype=torch.uint8)
    out = capi.run(f"partial_conv1d:fwd:f32,mask=u8:ncw,src=[0.0.0],mask=[0.0.0]:n1c1w{w}:o1k3s{2**30}p1", src=x, mask=mask,
                   weights=torch.tensor([1.0, 10.0, 100.0]), dst=torch.empty(3), new_mask=torch.empty(3), sums=torch.empty(3))
    capi.close(out["dst"], torch.tensor([220 * 1.5, 222, 222]), torch.float32)
    assert out["sums"].tolist() == [2, 3, 3] and out["new_mask"].tolist() == [1, 1, 1]


@pytest.mark.parametrize("text, message", [
    ("n1c4h5w5:o4k3mask3", r"partial_conv: mask is 3, allowed: 0 \(none\), 1 \(one channel\) or 2 \(every channel\)"),
    ("n1c4h5w5:o4k3shared2", "partial_conv: shared is 2, allowed: 0 or 1"),
    ("n1c4h5w5:o4k3biased-1", "partial_conv: biased is -1, allowed: 0 or 1"),
    ("n1c4h5w5:o4k3transposed5", "partial_conv: transposed is 5, allowed: 0 or 1"),
    ("n1c4h5w5:o4k3outpad1", "partial_conv: outpad along h is 1, allowed: 0 unless transposed is 1"),
    ("n1c4h5w5:o4k3s2transposed1outpad2", "partial_conv: outpad along h is 2, allowed: 0 or more, below the stride or the dilation"),
    ("n1c4h1w5:o4k3p2transposed1", "partial_conv: transposed output size along h is -1, allowed: 1..2\\^40"),
    ("n1c4h5w1099511627776:o4k1s1x1099511627776transposed1", "partial_conv: transposed output size along w is 9223372036854775807, allowed"),
    ("n1c4h5w8388608:o4k1s1x1099511627775transposed1", "partial_conv: transposed output size along w is 9223372036854775807, allowed"),
    ("n1c4h5w3:o4k1s1x1099511627776transposed1", "partial_conv: transposed output size along w is 2199023255553, allowed"),
    ("n1c4h5w5:o6k3g4", r"partial_conv: groups is 4, allowed: a divisor of both channels \(c 4, o 6\)"),
    ("n1c4h5w5:o4k7", "partial_conv: the window along h is 7 .*, allowed: at most the padded input, 5"),
])
def test_refusals_of_geometry(text, message):
    with pytest.raises(capi.WeftError, match=message):
        capi.parse(f"partial_conv2d:fwd:f32:nchw:{text}")


@pytest.mark.parametrize("text, message", [
    ("fwd:f32,mask=i32:nchw:n1c4h5w5:o4k3", r"mask: data type is i32 .*, which partial_conv does not take there"),
    ("fwd:f32,new_mask=u8:nchw:n1c4h5w5:o4k3", "new_mask: data type is u8 .*, which partial_conv does not take there"),
    ("fwd:f16,sums=f16:nchw:n1c4h5w5:o4k3", "sums: data type is f16 .*, which partial_conv does not take there"),
    ("fwd:f32,mask=u8:nchw:n1c4h5w5:o4k3mask0", "mask takes no part in pass fwd of partial_conv"),
    ("fwd:f32:nchw:n1c4h5w5:o4k3:acc1_1", "acc, which pass fwd of partial_conv does not take"),
    ("bwd:f32:nchw:n1c4h5w5:o4k3:relu", "relu, which pass bwd of partial_conv does not take"),
    ("bwd_data:f32:nchw:n1c4h5w5:o4k3:bias", "bias, allowed: once, in a pass that takes a bias"),
])
def test_refusals_of_tensors(text, message):
    with pytest.raises(capi.WeftError, match=message):
        capi.parse(f"partial_conv2d:{text}")


def test_nothing_is_written_without_a_mask_pointer():
    x, y = torch.ones(1, 1, 4), torch.full((1, 1, 2), 5.0)
    with pytest.raises(capi.WeftError, match="mask: the pointer is NULL, allowed: 4 elements of u8"):
        capi.run("partial_conv1d:fwd:f32,mask=u8:ncw:n1c1w4:o1k3", src=x, weights=torch.ones(3), dst=y, new_mask=y.clone(), sums=y.clone())
    assert y.eq(5).all()
