"""More than 2^31 elements for real, on a GPU: the last item, and each that lies across element 2^31 of a tensor, are what the operator
gives for that item alone. The small variant runs everywhere and proves the test itself; tests of single operators cover the CPU with
strides and axes that reach beyond 2^31 in memory that is only reserved."""
import math
import os
import pathlib

import pytest
import torch

import capi

BYTES = 60 * 10**9
for nvrtc in pathlib.Path(torch.__file__).parents[1].glob("nvidia/*/lib/libnvrtc.so.*"):
    os.environ.setdefault("WEFT_NVRTC", str(nvrtc))

DATA = "n{N}c3w35"                                    # 105 elements an item, so that 2^31 lies inside of one
LINES = "n1c{N}w67:o{N}k2g{N}"                        # an item is a channel: sums over an item are short
OPTIONS = {"clip": ":lo-0.5hi1.25", "max_pool": ":k2p1index1", "avg_pool": ":k2p1", "adaptive_avg_pool": ":to36", "lrn": ":size3",
           "cross_entropy": ":reduction0smooth0.1", "im2col": ":k2", "col2im": ":k2"}
BY_ITEM = ["relu", "clip", "tanh", "sigmoid", "ncrelu", "softmax", "log_softmax", "cross_entropy", "lrn", "max_pool", "avg_pool",
           "adaptive_avg_pool", "im2col", "col2im"]
# Operator; text with places for the pass and the number of items N; passes, each on what the ones before left. An axis of N items is cut.
CASES = [
    ("conv", "conv1d:{}:bf16:ncw:" + DATA + ":o3k2p1", ["fwd", "bwd_data"]),
    ("conv", "conv1d:{}:bf16:nwc:" + DATA + ":o3k2p1", ["fwd", "bwd_data"]),
    ("conv", "conv1d:{}:bf16:ncw:" + LINES + "p1:bias", ["fwd", "bwd"]),
    ("conv", "conv2d:{}:f32:nchw:n{N}c8h57w57:o8k3p1g8:bias", ["fwd"]),
    ("conv", "conv2d:{}:f32:nhwc:n{N}c8h57w57:o8k3p1g8:bias", ["fwd"]),
    ("conv", "conv2d:{}:f32:nchw:n{N}c8h57w57:o8k3p1g8", ["bwd_data"]),
    ("partial_conv", "partial_conv1d:{}:bf16,mask=u8:ncw:" + DATA + ":o3k2p1", ["fwd", "bwd_data"]),
    ("partial_conv", "partial_conv1d:{}:bf16,mask=u8:ncw:" + LINES + "p1mask2:bias", ["fwd", "bwd"]),
    ("sparse_conv", "sparse_conv1d:{}:bf16,rows=i64,cols=i64:nwc:" + DATA + ":o3k2p1nnz3", ["fwd", "bwd_data"]),
    ("sparse_conv", "sparse_conv1d:{}:bf16,rows=i64,cols=i64:ncw:" + LINES + "p1nnz{N}:bias", ["fwd", "bwd"]),
    *[(op, f"{op}1d:{{}}:bf16:{tag}:{DATA}{OPTIONS.get(op, '')}", ["fwd", "bwd"])
      for op, tag in zip(BY_ITEM, ["ncw", "nwc"] * len(BY_ITEM))],
    ("batch_norm", "batch_norm1d:{}:bf16,weights=f32,bias=f32:nwc:" + DATA + ":train0", ["fwd"]),
    ("batch_norm", "batch_norm1d:{}:bf16,weights=f32:ncw:n2c{N}w33:train1", ["fwd", "bwd"]),
    ("batch_norm", "batch_norm1d:{}:bf16,weights=f32:ncw:n2c{N}w33:train0", ["fwd", "bwd"]),
    ("dgmm", "dgmm:{}:bf16:dense:n1h{N}w67:side0", ["fwd", "bwd"]),
    ("dgmm", "dgmm:{}:bf16:dense:n{N}h5w21:side1", ["fwd", "bwd_data"]),
    ("cdgmm", "cdgmm:{}:bf16:dense:n1h{N}w33:side0", ["fwd", "bwd"]),
    ("cdgmm", "cdgmm:{}:bf16:dense:n{N}h3w11:side1", ["fwd", "bwd_data"]),
    ("causal_conv", "causal_conv1d:{}:bf16:ncw:" + DATA + ":k4first1last1:bias+silu", ["fwd", "bwd_data"]),
    ("causal_conv", "causal_conv1d:{}:bf16:ncw:n1c{N}w67:k4:bias+silu", ["fwd", "bwd"]),
    ("causal_conv", "causal_conv1d:{}:f32:ncw:n{N}c3w35:k4first1last1:bias+silu", ["fwd", "bwd_data"]),
    ("causal_conv", "causal_conv1d:{}:f32:nwc:n{N}c4w70:k4first1last1:bias+silu", ["fwd", "bwd_data"]),
    *[("causal_conv", f"causal_conv1d:{{}}:f32:{tag}:n1c{{N}}w68:k{k}:bias+silu", ["fwd", "bwd"]) for tag in ("ncw", "nwc") for k in (4, 9)],
    ("causal_update", "causal_update1d:{}:bf16:ncw:" + DATA + ":k4len3:bias+silu", ["fwd"]),
    *[(op, f"{op}:{{}}:bf16:dense:t1n{{N}}c32771o1:train1state1", ["fwd", "bwd"]) for op in ("rnn_relu", "rnn_tanh", "lstm", "gru")],
]


class Variant:
    """Where it runs, and the element that is far away: on the CPU the middle of the sixth item."""

    def __init__(self, size):
        self.device = "cuda" if size == "large" else "cpu"

    def limit(self, elements):
        return 2**31 if self.device == "cuda" else 5 * elements + elements // 2

    def room(self):
        if self.device == "cuda":
            torch.cuda.empty_cache()
            free = torch.cuda.mem_get_info()[0]
            if free < BYTES:
                pytest.skip(f"the GPU has {free / 1e9:.0f} GB free, needed: {BYTES / 1e9:.0f}")

    def roles(self, text, pass_, n):
        return capi.roles(self.text(text, pass_, n))

    def text(self, text, pass_, n):
        return text.replace("{}", pass_).replace("{N}", str(n)) + f"@{self.device}"

    def empty(self, spec):
        dtype, dims, strides = spec
        return torch.empty_strided(dims, strides, dtype=dtype, device=self.device).fill_(math.nan if dtype.is_floating_point else 99)

    def run(self, op, text, pass_, n, have, fast):
        """One pass; have: tensors by role, to which the outputs come. fast: on the kernel that the planner takes."""
        specs = self.roles(text, pass_, n)
        for role, spec in specs.items():
            if role not in have:
                have[role] = self.empty(spec)
        kernel = None if fast else f"{op}_ref" + ("__cuda" if self.device == "cuda" else "")
        capi.run(self.text(text, pass_, n), kernel=kernel, **{role: have[role] for role in specs})
        if self.device == "cuda":
            torch.cuda.synchronize()


INPUTS = {"src", "weights", "bias", "mask", "target", "mean", "var", "rows", "cols", "h0", "c0", "diff_dst", "diff_hn", "diff_cn", "state"}


def fill(role, tensor):
    if role == "rows":                                # every row has one entry
        return torch.arange(tensor.numel(), out=tensor)
    if role in ("cols", "target", "mask"):
        return tensor.random_(0, 2)
    if role == "var":
        return tensor.uniform_(0.5, 1.5)
    return tensor.normal_(0, 0.01 if role == "weights" else 1)


def axis_of(spec, single):
    """The axis of the items, or None: the one that is 1 for a single item."""
    axes = [k for k, (dim, one) in enumerate(zip(spec[1], single[1])) if dim != one and one == 1]
    return axes[0] if axes else None


def items_of(specs, axes, n, limit):
    """The first, the last, and those that hold element `limit` of a tensor."""
    far = [limit // strides[axes[role]] % n for role, (_, dims, strides) in specs.items() if axes[role] is not None and math.prod(dims) > limit]
    return {0, n - 1, *far}


def cut(spec, role, tensor, axis, item):
    """The item of a tensor, in memory of its own; of one that has no such axis all of it."""
    alone = torch.empty_strided(*spec[1:], dtype=spec[0], device=tensor.device)
    return fill(role, alone) if role == "rows" else alone.copy_(tensor if axis is None else tensor.narrow(axis, item, 1))


def test_every_operator_is_in_the_table():
    assert {op for op, _, _ in CASES} == set(capi.operators())


def test_there_is_a_gpu_for_the_large_variant():
    if not torch.cuda.is_available():
        pytest.skip("more than 2^31 elements for real: needs a GPU with 60 GB free")
    Variant("large").room()


@pytest.mark.parametrize("size", ["small"] + ["large"] * torch.cuda.is_available())
@pytest.mark.parametrize("op, text, passes", CASES, ids=[f"{text.format(passes[-1], N='N')}" for _, text, passes in CASES])
def test_items_beyond_two_to_the_31(op, text, passes, size):
    variant = Variant(size)
    variant.room()
    elements = math.prod(variant.roles(text, passes[0], 1)["src" if passes[0] == "fwd" else "diff_src"][1])
    limit = variant.limit(elements)
    n = limit // elements + 3
    whole, single = ({role: spec for pass_ in passes for role, spec in variant.roles(text, pass_, k).items()} for k in (n, 1))
    axes = {role: axis_of(spec, single[role]) for role, spec in whole.items()}
    items = items_of(whole, axes, n, limit)
    assert len(items) > 2
    have = {role: fill(role, variant.empty(spec)) for role, spec in whole.items() if role in INPUTS}
    alone = {i: {role: cut(single[role], role, tensor, axes[role], i) for role, tensor in have.items()} for i in items}
    exact = ":f32:" not in text                       # the reference in both: the same bits
    for pass_ in passes:
        variant.run(op, text, pass_, n, have, fast=not exact)
        for parts in alone.values():
            variant.run(op, text, pass_, 1, parts, fast=False)
    compared = [role for role in have if role not in INPUTS - {"mean", "var"} and axes[role] is not None]
    assert any(have[role].numel() > limit for role in compared)
    for role in compared:
        for i, parts in alone.items():
            got = have[role].narrow(axes[role], i, 1)
            assert torch.equal(got, parts[role]) if exact else capi.close(got, parts[role], got.dtype) is None, (role, i)
        if have[role].is_floating_point():
            assert not have[role].isnan().any(), f"{role}: not written everywhere"
