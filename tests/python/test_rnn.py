"""Recurrent layers against torch.nn: layers, directions, projection, states, biases, batch-first strides, packed sequences, dropout."""
import itertools

import pytest
import torch

import capi
import weft.nn

torch.set_num_threads(1)   # the twins are tiny: more threads would only wait for each other

MAKE = {
    "rnn_relu": lambda *a, **k: torch.nn.RNN(*a, nonlinearity="relu", **k),
    "rnn_tanh": lambda *a, **k: torch.nn.RNN(*a, nonlinearity="tanh", **k),
    "lstm": torch.nn.LSTM,
    "gru": torch.nn.GRU,
}
STATES = {"lstm": 5, "gru": 4}


class Case:
    """One layer stack, its torch twin, and the flat tensors weft takes."""

    def __init__(self, op, dtype=torch.float32, t=5, n=3, c=4, o=6, layers=1, both=False, proj=0, bias=True, state=True):
        torch.manual_seed(7)
        self.op, self.dtype, self.t, self.n, self.c, self.o = op, dtype, t, n, c, o
        self.layers, self.dirs, self.out, self.state, self.bias = layers, 1 + both, proj or o, state, bias
        extra = {"proj_size": proj} if proj else {}
        self.net = MAKE[op](c, o, layers, bias=bias, bidirectional=both, **extra).double()
        with torch.no_grad():
            for p in self.net.parameters():
                p.copy_(p.to(dtype))
        self.attrs = f"l{layers}both{int(both)}proj{proj}b{int(bias)}state{int(state)}"
        shapes = [(layers * self.dirs, n, self.out)] + ([(layers * self.dirs, n, o)] if op == "lstm" else [])
        self.first = [torch.randn(s, dtype=torch.float64).to(dtype) for s in shapes]

    def names(self, kind):
        for layer, suffix in itertools.product(range(self.layers), ["", "_reverse"][:self.dirs]):
            for name in {"w": ("weight_ih", "weight_hh", "weight_hr"), "b": ("bias_ih", "bias_hh")}[kind]:
                if hasattr(self.net, f"{name}_l{layer}{suffix}"):
                    yield f"{name}_l{layer}{suffix}"

    def flat(self, kind, grad=False):
        parts = [getattr(self.net, name) for name in self.names(kind)]
        parts = [(p.grad if grad else p).detach().flatten() for p in parts]
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)

    def reserve(self, rows):
        kind = torch.float64 if self.dtype == torch.float64 else torch.float32
        return torch.zeros(self.layers * self.dirs * rows * (STATES.get(self.op, 0) * self.o + self.out), dtype=kind)

    def text(self, pass_, layout="dense", extra=""):
        sizes = f"t{self.t}n{self.n}c{self.c}o{self.o}"
        return f"{self.op}:{pass_}:{capi.DTYPES[self.dtype]}:{layout}:{sizes}:{self.attrs}{extra}"

    def twin(self, x):
        """torch's outputs and every gradient, in double."""
        first = [s.double().requires_grad_() for s in self.first]
        hidden = (tuple(first) if self.op == "lstm" else first[0]) if self.state else None
        y, last = self.net(x, hidden)
        last = list(last) if self.op == "lstm" else [last]
        return y, last, first

    def run(self, x, y, rows, layouts=("dense", "dense"), extra="", **more):
        """fwd then bwd through weft; x, y: memory for src and dst as the layouts say."""
        d = self.dtype
        given = dict(zip(("h0", "c0"), self.first)) if self.state else {}
        last = dict(zip(("hn", "cn"), [torch.full_like(s, 9) for s in self.first]))
        biases = {"bias": self.flat("b").to(d)} if self.bias else {}
        weights, reserve = self.flat("w").to(d), self.reserve(rows)
        capi.run(self.text("fwd", layouts[0], "train1" + extra), src=x, weights=weights, dst=y, reserve=reserve, **biases, **given, **last, **more)
        return weights, reserve, given, last

    def back(self, x, dy, dlast, weights, reserve, given, layouts=("dense", "dense"), extra="", **more):
        d = self.dtype
        out = {"diff_src": torch.full_like(x, 9), "diff_weights": torch.full_like(weights, 9)}
        if self.bias:
            out["diff_bias"] = torch.full((self.flat("b").numel(),), 9, dtype=d)
        out |= {f"diff_{k}": torch.full_like(v, 9) for k, v in given.items()}
        capi.run(self.text("bwd", layouts[1], "train1" + extra), src=x, weights=weights, reserve=reserve, diff_dst=dy,
                 **{f"diff_{k}": v for k, v in dlast.items()}, **given, **out, **more)
        return out


def agree(case, out, twin_out, dtype):
    for key, want in twin_out.items():
        capi.close(out[key], want.reshape(out[key].shape), dtype, factor=4)


def whole(case, x):
    """Compare forward and backward on dense (t, n, c) data."""
    xd = x.double().requires_grad_()
    y, last, first = case.twin(xd)
    dy, dlast = torch.randn_like(y).to(case.dtype), [torch.randn_like(s).to(case.dtype) for s in last]
    torch.autograd.backward([y, *last], [dy.double(), *[s.double() for s in dlast]])
    got = torch.full(y.shape, 9, dtype=case.dtype)
    weights, reserve, given, final = case.run(x, got, case.t * case.n)
    capi.close(got, y.detach(), case.dtype, factor=4)
    for have, want in zip(final.values(), last):
        capi.close(have, want.detach(), case.dtype, factor=4)
    out = case.back(x, dy, dict(zip(final, dlast)), weights, reserve, given)
    want = {"diff_src": xd.grad, "diff_weights": case.flat("w", True)}
    if case.bias:
        want["diff_bias"] = case.flat("b", True)
    if case.state:
        want |= dict(zip(("diff_h0", "diff_c0"), [s.grad for s in first]))
    agree(case, out, want, case.dtype)


@pytest.mark.parametrize("op", MAKE)
@pytest.mark.parametrize("layers,both", [(1, False), (1, True), (3, False), (2, True)])
@pytest.mark.parametrize("bias,state", [(True, True), (False, True), (True, False)])
def test_layers_and_directions(op, layers, both, bias, state):
    case = Case(op, layers=layers, both=both, bias=bias, state=state)
    whole(case, torch.randn(case.t, case.n, case.c))


@pytest.mark.parametrize("op", MAKE)
@pytest.mark.parametrize("dtype", capi.FLOATS, ids=str)
def test_dtypes(op, dtype):
    case = Case(op, dtype, layers=2, both=True)
    whole(case, torch.randn(case.t, case.n, case.c, dtype=torch.float64).to(dtype))


@pytest.mark.parametrize("layers,both", [(1, False), (2, True)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_projection(layers, both, dtype):
    case = Case("lstm", dtype, layers=layers, both=both, proj=2)
    whole(case, torch.randn(case.t, case.n, case.c, dtype=dtype))


@pytest.mark.parametrize("op", MAKE)
def test_batch_first_is_strides(op):
    case = Case(op, both=True)
    x = torch.randn(case.n, case.t, case.c)
    y, _, _ = case.twin(x.transpose(0, 1).double())
    width = case.dirs * case.out
    layout = f"dense,src=[{case.c}.{case.t * case.c}.1],dst=[{width}.{case.t * width}.1]"
    got = torch.full((case.n, case.t, width), 9.0)
    case.run(x, got, case.t * case.n, (layout, ""))
    capi.close(got.transpose(0, 1), y.detach(), torch.float32, factor=4)


@pytest.mark.parametrize("op", MAKE)
@pytest.mark.parametrize("both", [False, True])
def test_packed_sequences(op, both):
    case = Case(op, both=both, layers=2)
    lengths = torch.tensor([5, 3, 2])
    x = torch.randn(case.t, case.n, case.c).double()
    packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths)
    data = packed.data.detach().requires_grad_()
    y, last, first = case.twin(torch.nn.utils.rnn.PackedSequence(data, packed.batch_sizes))
    rows = data.shape[0]
    offsets = torch.cat((torch.zeros(1, dtype=torch.int64), packed.batch_sizes.cumsum(0)))
    dy, dlast = torch.randn_like(y.data), [torch.randn_like(s) for s in last]
    torch.autograd.backward([y.data, *last], [dy, *dlast])
    got, src = torch.full(y.data.shape, 9.0), data.detach().float()
    weights, reserve, given, final = case.run(src, got, rows, extra=f"rows{rows}", lengths=offsets)
    capi.close(got, y.data.detach(), torch.float32, factor=4)
    for have, want in zip(final.values(), last):
        capi.close(have, want.detach(), torch.float32, factor=4)
    out = case.back(src, dy.float(), {k: g.float() for k, g in zip(final, dlast)}, weights, reserve, given, extra=f"rows{rows}", lengths=offsets)
    want = {"diff_src": data.grad, "diff_weights": case.flat("w", True), "diff_bias": case.flat("b", True)}
    agree(case, out, want | dict(zip(("diff_h0", "diff_c0"), [s.grad for s in first])), torch.float32)


@pytest.mark.parametrize("op", MAKE)
def test_inference_keeps_nothing_and_gives_the_same(op):
    case = Case(op, layers=2, both=True)
    x = torch.randn(case.t, case.n, case.c)
    kept = torch.empty(case.t, case.n, case.dirs * case.out)
    weights, _, given, last = case.run(x, kept, case.t * case.n)
    plain = torch.empty_like(kept)
    capi.run(case.text("fwd"), src=x, weights=weights, bias=case.flat("b").float(), dst=plain, **given, **last)
    capi.close(plain, kept, torch.float32)


@pytest.mark.parametrize("op", MAKE)
def test_dropout_follows_the_seed(op):
    case = Case(op, torch.float64, t=20, n=8, o=10, layers=2)
    x, shape = torch.randn(case.t, case.n, case.c, dtype=torch.float64), (case.t, case.n, case.out)

    def forward(seed, drop):
        y = torch.empty(shape, dtype=torch.float64)
        return y, *case.run(x, y, case.t * case.n, extra=f"seed{seed}drop{drop}")

    base, weights, reserve, given, last = forward(1, 0.5)
    assert torch.equal(base, forward(1, 0.5)[0])
    assert not torch.equal(base, forward(2, 0.5)[0])
    capi.close(forward(3, 0.0)[0], case.twin(x)[0].detach(), torch.float64)
    # finite differences of sum(y * dy) along one direction of the weights and of the input
    dy = torch.randn(shape, dtype=torch.float64)
    out = case.back(x, dy, {k: torch.zeros_like(v) for k, v in last.items()}, weights, reserve, given, extra="seed1drop0.5")
    step, direction = 1e-6, torch.randn_like(x)

    def loss(shifted):
        y = torch.empty(shape, dtype=torch.float64)
        case.run(shifted, y, case.t * case.n, extra="seed1drop0.5")
        return (y * dy).sum()

    slope = (loss(x + step * direction) - loss(x - step * direction)) / (2 * step)
    assert abs(slope - (out["diff_src"] * direction).sum()) < 1e-6 * max(1, abs(slope))


@pytest.mark.parametrize("op", MAKE)
def test_gradients_accumulate(op):
    case = Case(op, layers=2, both=True)
    x, y = torch.randn(case.t, case.n, case.c), torch.empty(case.t, case.n, case.dirs * case.out)
    weights, reserve, given, last = case.run(x, y, case.t * case.n)
    dy, dlast = torch.randn_like(y), {role: torch.randn_like(t) for role, t in last.items()}
    plain = case.back(x, dy, dlast, weights, reserve, given)
    added = {role: torch.full_like(t, 9) for role, t in plain.items()}
    capi.run(case.text("bwd", extra="train1") + ":acc0.5_-2", src=x, weights=weights, reserve=reserve, diff_dst=dy,
             **{f"diff_{role}": t for role, t in dlast.items()}, **given, **added)
    for role, t in plain.items():
        capi.close(added[role], 0.5 * t - 18, torch.float32)


@pytest.mark.parametrize("op", MAKE)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_nan_and_infinity_go_where_torch_sends_them(op, value):
    case = Case(op)
    x = torch.randn(case.t, case.n, case.c)
    x[2, 1, 0] = value
    got = torch.empty(case.t, case.n, case.out)
    case.run(x, got, case.t * case.n)
    capi.close(got, case.twin(x.double())[0].detach(), torch.float32, factor=4)


@pytest.mark.parametrize("op", MAKE)
def test_beyond_two_to_the_31(op):
    """Steps 2^31 elements apart, in memory of which a few pages are touched."""
    case = Case(op, torch.bfloat16, t=2)
    x, got = capi.far((2, case.n, case.c), torch.bfloat16), torch.empty(2, case.n, case.out, dtype=torch.bfloat16)
    x.copy_(torch.randn(x.shape))
    case.run(x, got, 2 * case.n, ("dense" + capi.strided(src=x), "dense"))
    capi.close(got, case.twin(x.double())[0].detach(), torch.bfloat16)


def test_dropout_rate():
    case = Case("rnn_relu", torch.float64, t=40, n=16, o=16, layers=2, state=False, bias=False)
    with torch.no_grad():   # layer 1 copies: its output is what dropout lets through, halved chance, doubled value
        case.net.weight_ih_l1.copy_(torch.eye(16))
        case.net.weight_hh_l1.zero_()
    y = torch.empty(40, 16, 16, dtype=torch.float64)
    x = torch.rand(40, 16, 4, dtype=torch.float64)
    case.run(x, y, 640, extra="seed5drop0.5")
    below, _ = torch.nn.RNN(4, 16, 1, nonlinearity="relu", bias=False).double()(x)  # shape only
    whole_layer = torch.empty_like(y)
    case.run(x, whole_layer, 640, extra="seed5drop0")
    alive = whole_layer > 0
    assert below.shape == y.shape and alive.sum() > 2000
    ratio = (y[alive] / whole_layer[alive])
    assert set(ratio.round(decimals=9).unique().tolist()) == {0.0, 2.0}
    assert abs(ratio.mean().item() - 1) < 0.1


@pytest.mark.parametrize("text,message", [
    ("lstm:fwd:f32:dense:t0n1c1o1:", "steps t is 0, allowed: 1..2\\^24"),
    ("gru:fwd:f32:dense:t1n1c1o4:proj2", "projection proj is 2, allowed: for lstm only, below o"),
    ("lstm:fwd:f32:dense:t1n1c1o4:proj4", "projection proj is 4, allowed: for lstm only, below o"),
    ("lstm:fwd:f32:dense:t1n1c1o4:l0", "layers l is 0, allowed: 1..1024"),
    ("lstm:fwd:f32:dense:t1n1c1o4:drop2", "drop is 2, allowed: 0..1"),
    ("lstm:fwd:f32:dense:t2n1c1o4:rows3", "packed rows is 3, allowed: at most t\\*n"),
    ("lstm:bwd:f32:dense:t2n1c1o4:", "train is 0, allowed: 1 for bwd"),
    ("lstm:fwd,:f32:dense:t2n1c1o4:", "column 9"),
    ("lstm:fwd:i64:dense:t2n1c1o4:", "data type is i64, which lstm does not take"),
    ("lstm:fwd:f32:nchw:t2n1c1o4:", "expected a layout: dense"),
    ("lstm:fwd:f32:dense:t2n1c1o1099511627776:", "hidden size o is"),
])
def test_refusals(text, message):
    with pytest.raises(capi.WeftError, match=message):
        capi.parse(text)


def test_zero_batch():
    """Nothing is written, and the gradient of the weights is that of no example at all."""
    capi.run("lstm:fwd:f32:dense:t2n0c3o4:train0", src=torch.empty(2, 0, 3), weights=torch.randn(4 * 4 * 7), bias=torch.randn(32),
             dst=torch.empty(2, 0, 4), hn=torch.empty(1, 0, 4), cn=torch.empty(1, 0, 4))
    layer = weft.nn.LSTM(3, 4)
    y, (h, c) = layer(torch.empty(2, 0, 3))
    y.sum().backward()
    assert y.shape == (2, 0, 4) and h.shape == c.shape == (1, 0, 4)
    assert all(p.grad is not None and p.grad.eq(0).all() for p in layer.parameters())
