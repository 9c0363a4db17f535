"""Every gradient of every operator against the forward pass of the library itself, in double: the slope along random directions, and
for what is linear the adjoint identity. No twin takes part, so nothing here can share a mistake with one."""
import math
import re

import pytest
import torch

import capi

INPUTS = {"src", "weights", "bias", "mask", "target", "mean", "var", "rows", "cols", "h0", "c0", "lengths", "seq_idx"}   # of forward passes
CONSTANT = {"mask", "target", "mean", "var"}          # inputs that have no gradient
KINKED = {"relu", "clip", "ncrelu", "max_pool"}
BACKWARD = ["bwd_data", "bwd_weights", "bwd_bias", "bwd"]


def whole(*values):
    return torch.tensor(values)


CSR = {"rows": whole(0, 2, 3, 3, 6), "cols": whole(0, 5, 3, 2, 2, 4)}         # an empty row, a column twice
STRETCHED = {"rows": whole(0, 2, 3, 3, 6), "cols": whole(0, 9, 8, 2, 2, 7)}   # the same entries in rows of 7: c 2, k 3, in 5, p 1
WINDOW = "n2c4h5w4:o6k3x2s2x1p1+0x2d1x2g2"
DEEP = "n1c2d3h4w2:o2k2x3x1s1x2x1p1g2"
RECURRENT = ["{}:{}:f64:dense:t3n2c3o4:l2both1train1state1", "{}:{}:f64:dense:t3n3c2o3:train1state1rows6", "{}:{}:f64:dense:t4n2c3o3:l2b0train1seed3drop0.4"]
PACKED = {"lengths": whole(0, 3, 5, 6)}

# The operator, the text with places for pass and layout, and the inputs that must not be random.
CASES = [
    ("conv", "conv1d:{}:f64:{}:n2c3w7:o4k3s2p1:bias", {}),
    ("conv", "conv2d:{}:f64:{}:" + WINDOW + ":bias", {}),
    ("conv", "conv3d:{}:f64:{}:" + DEEP + ":bias", {}),
    ("conv", "conv2d:{}:f64:{}:n2c5h6w7:o5k3p1g5:bias", {}),
    ("conv", "conv2d:{}:f64:{}:n1c2h7w9:o2k51x31p25x15g2:bias", {}),
    ("partial_conv", "partial_conv2d:{}:f64,mask=u8:{}:" + WINDOW + "biased1:bias", {}),
    ("partial_conv", "partial_conv2d:{}:f64:{}:" + WINDOW + "mask2biased1:bias", {}),
    ("partial_conv", "partial_conv1d:{}:f64:{}:n2c3w7:o2k3p1mask0", {}),
    ("partial_conv", "partial_conv3d:{}:f64,mask=u8:{}:" + DEEP + "shared1", {}),
    ("partial_conv", "partial_conv2d:{}:f64:{}:n2c4h3w4:o6k3x2s2x1p1g2transposed1outpad1x0biased1:bias", {}),
    ("sparse_conv", "sparse_conv1d:{}:f64,rows=i64,cols=i64:{}:n2c2w5:o4k3p1nnz6:bias", CSR),
    ("sparse_conv", "sparse_conv1d:{}:f64,rows=i64,cols=i64:{}:n2c2w5:o4k3p1nnz6stretched1:bias", STRETCHED),
    ("sparse_conv", "sparse_conv2d:{}:f64,rows=i64,cols=i64:{}:n2c4h4w5:o4k1x3s2p1d1x2g2nnz6", CSR),
    ("max_pool", "max_pool2d:{}:f64:{}:n2c3h5w6:k3s2p1index1", {}),
    ("max_pool", "max_pool1d:{}:f64,index=i64:{}:n2c3w9:k2s3d3ceil1index1", {}),
    ("avg_pool", "avg_pool2d:{}:f64:{}:n2c3h5w6:k3x2s2p1ceil1include_pad0", {}),
    ("avg_pool", "avg_pool3d:{}:f64:{}:n1c2d4h5w3:k2p1divisor3", {}),
    ("adaptive_avg_pool", "adaptive_avg_pool2d:{}:f64:{}:n2c3h5w6:to3x4", {}),
    ("adaptive_avg_pool", "adaptive_avg_pool1d:{}:f64:{}:n2c3w5:to8", {}),
    ("relu", "relu2d:{}:f64:{}:n2c3h4w3", {}),
    ("clip", "clip3d:{}:f64:{}:n2c3d2h2w3:lo-0.5hi1.25", {}),
    ("tanh", "tanh1d:{}:f64:{}:n2c3w5", {}),
    ("sigmoid", "sigmoid2d:{}:f64:{}:n2c3h4w3", {}),
    ("ncrelu", "ncrelu2d:{}:f64:{}:n2c3h4w3", {}),
    ("softmax", "softmax2d:{}:f64:{}:n2c5h3w2", {}),
    ("log_softmax", "log_softmax2d:{}:f64:{}:n2c5h3w2", {}),
    ("cross_entropy", "cross_entropy2d:{}:f64:{}:n2c4h3w2:ignore1smooth0.1weighted1", {}),
    ("cross_entropy", "cross_entropy1d:{}:f64:{}:n2c4w3:reduction0", {}),
    ("cross_entropy", "cross_entropy1d:{}:f64:{}:n2c4w3:probs1weighted1reduction2smooth0.2", {}),
    ("batch_norm", "batch_norm2d:{}:f64:{}:n3c4h3w2:train1", {}),
    ("batch_norm", "batch_norm1d:{}:f64:{}:n3c4w3:train0", {}),
    ("batch_norm", "batch_norm1d:{}:f64:{}:n3c4w3:train1affine0track0", {}),
    ("lrn", "lrn2d:{}:f64:{}:n2c7h3w2:size5alpha0.7", {}),
    ("lrn", "lrn1d:{}:f64:{}:n2c5w3:size4alpha0.7beta1.5k2", {}),
    ("dgmm", "dgmm:{}:f64:dense:n2h3w4:side1", {}),
    ("dgmm", "dgmm:{}:f64:dense:n2h3w4:side0", {}),
    ("cdgmm", "cdgmm:{}:f64:dense:n2h3w4:side1", {}),
    ("cdgmm", "cdgmm:{}:f64:dense:n2h3w4:side0", {}),
    ("im2col", "im2col2d:{}:f64:{}:n2c3h5w4:k3x2s2x1p1d1x2", {}),
    ("col2im", "col2im2d:{}:f64:{}:n2c3h5w4:k3x2s2x1p1d1x2", {}),
    ("causal_conv", "causal_conv1d:{}:f64:{}:n2c3w7:k4:bias+silu", {}),
    ("causal_conv", "causal_conv1d:{}:f64:{}:n2c3w7:k4first1last1:bias+silu", {}),
    ("causal_conv", "causal_conv1d:{}:f64:{}:n2c3w2:k6first1last1:bias", {}),
    ("causal_conv", "causal_conv1d:{}:f64:{}:n2c3w7:k3seqs1:silu", {"seq_idx": torch.tensor([0, 0, 1, 1, 1, -1, -1, -2, 3, 3, 3, 4, 5, 5]).view(2, 1, 1, 1, 7).int()}),
    *[(op, text.format(op, "{}"), PACKED if "rows" in text else {}) for op in ("rnn_relu", "rnn_tanh", "lstm", "gru") for text in RECURRENT],
    ("lstm", "lstm:{}:f64:dense:t3n2c3o4:both1proj2train1state1", {}),
]
LINEAR = {"conv": ["src", "weights"], "partial_conv": ["src", "weights"], "sparse_conv": ["src", "weights"], "avg_pool": ["src"],
          "adaptive_avg_pool": ["src"], "dgmm": ["src", "weights"], "cdgmm": ["src", "weights"], "im2col": ["src"], "col2im": ["src"]}


def laid_out(cases):
    """Each in channels-first and channels-last, where it has channels."""
    tags = lambda text: [capi.tag(int(text[text.index("d:") - 1]), last) for last in (False, True)] if ":dense:" not in text else [None]
    return [pytest.param(op, text.replace("{}:f64", "PASS:f64", 1).replace(":{}:", f":{tag}:"), fixed, id=f"{text.format('bwd', tag)}")
            for op, text, fixed in cases for tag in tags(text)]


def text_of(text, pass_):
    """The text of that pass. bwd_data and bwd_bias take no bias step: the one has no use for it, the other is nothing else; nor does
    bwd_bias take masks and CSR."""
    if pass_ == "bwd_bias":
        text = re.sub(":f64,[^:]*", ":f64", text)
    return re.sub(":bias$", "" if pass_ in ("bwd_data", "bwd_bias") else ":bias", text.replace("PASS", pass_))


def passes(op, text):
    """The gradient passes that the operator has; bwd_bias only of what has a bias."""
    found = []
    for pass_ in BACKWARD if text.endswith(":bias") else [pass_ for pass_ in BACKWARD if pass_ != "bwd_bias"]:
        try:
            capi.parse(text_of(text, pass_))
            found.append(pass_)
        except capi.WeftError as error:
            assert f"which {op} does not have" in str(error)
    return found


def empty(spec):
    dtype, dims, strides = spec
    return torch.empty_strided(dims, strides, dtype=dtype).fill_(math.nan if dtype.is_floating_point else 99)


def value(op, role, spec, classes):
    dtype, dims, _ = spec
    if role == "target" and not dtype.is_floating_point:
        return torch.randint(classes, dims)
    if role == "mask":
        return torch.randint(2, dims) if dtype == torch.uint8 else torch.randint(5, dims) / 4
    if role == "var" or role == "target":
        return 0.5 + torch.rand(dims, dtype=dtype)
    if role == "src" and op in KINKED:                # distinct by 1/8, and 1/16 off the bounds
        return (torch.randperm(math.prod(dims)).view(dims) - math.prod(dims) // 2) / 8 + 1 / 16
    return torch.randn(dims, dtype=dtype)


def inputs(op, text, fixed):
    specs = capi.roles(text_of(text, "fwd"))
    classes = specs["src"][1][1]
    return {role: empty(spec).copy_(fixed[role] if role in fixed else value(op, role, spec, classes)) for role, spec in specs.items() if role in INPUTS}


def forward(text, given):
    """The outputs; batch_norm's running statistics are written too, so inputs are copied."""
    text = text_of(text, "fwd")
    tensors = {role: given[role].clone() if role in given else empty(spec) for role, spec in capi.roles(text).items()}
    return {role: t for role, t in capi.run(text, **tensors).items() if role not in given}


def gradients(text, pass_, known):
    """The outputs of a gradient pass, by the input they belong to."""
    text = text_of(text, pass_)
    specs = capi.roles(text)
    wanted = {role for role in specs if role.startswith("diff_") and role[5:] in INPUTS}
    got = capi.run(text, **{role: empty(spec) if role in wanted else known[role] for role, spec in specs.items()})
    return {role[5:]: got[role] for role in wanted}


def cotangents(op, text, out):
    needed = {role for pass_ in passes(op, text) for role in capi.roles(text_of(text, pass_))}
    return {f"diff_{role}": empty(capi.roles(text_of(text, "bwd"))[f"diff_{role}"]).copy_(torch.randn_like(t))
            for role, t in out.items() if f"diff_{role}" in needed}


def test_every_operator_is_in_the_table():
    assert {op for op, _, _ in CASES} == set(capi.operators()) - {"causal_update"}   # which has no gradient


@pytest.mark.parametrize("op, text, fixed", laid_out(CASES))
def test_gradients_are_slopes_of_the_forward_pass(op, text, fixed):
    given = inputs(op, text, fixed)
    out = forward(text, given)
    seeds = cotangents(op, text, out)
    results = {pass_: gradients(text, pass_, given | out | seeds) for pass_ in passes(op, text)}
    loss = lambda role, x: sum((forward(text, given | {role: x})[seed[5:]] * dy).sum() for seed, dy in seeds.items())
    constant = CONSTANT | ({"weights"} if op == "cross_entropy" else set())
    wanted = {role for role, t in given.items() if t.dtype == torch.float64 and role not in constant}
    assert set().union(*results.values()) == wanted and seeds
    for role in wanted:
        v = empty(capi.roles(text_of(text, "fwd"))[role]).copy_(torch.randn_like(given[role]))
        slope = capi.slope(lambda x: loss(role, x), given[role], v)
        for pass_, got in results.items():
            if role in got:
                assert (got[role] * v).sum().item() == pytest.approx(slope.item(), rel=1e-7, abs=1e-7), (pass_, role)


def test_every_linear_operator_is_in_the_table_of_adjoints():
    linear = {"conv", "partial_conv", "sparse_conv", "avg_pool", "adaptive_avg_pool", "dgmm", "cdgmm", "im2col", "col2im"}
    assert LINEAR.keys() == linear and linear <= {op for op, _, _ in CASES}


@pytest.mark.parametrize("op, text, fixed", laid_out([case for case in CASES if case[0] in LINEAR]))
def test_gradients_are_adjoint(op, text, fixed):
    """<A x, y> = <x, A' y> for A the operator as a function of one input, without a bias. Of convolution, bwd_data is the transposed."""
    text = text.replace(":bias", "").replace("biased1", "")
    given = inputs(op, text, fixed)
    out = forward(text, given)
    y = cotangents(op, text, out)["diff_dst"]
    for pass_ in passes(op, text):
        back = gradients(text, pass_, given | out | {"diff_dst": y})
        for role in LINEAR[op]:
            if role in back:
                bound = 1e-14 * (out["dst"].norm() * y.norm() + given[role].norm() * back[role].norm())
                assert abs((out["dst"] * y).sum() - (given[role] * back[role]).sum()) <= bound, (pass_, role)
        assert back.keys() & set(LINEAR[op])
