"""Pooling called wrongly: refused as the twin refuses it, by a text that names the argument, its value and what is allowed."""
from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F

import weft.functional as W


def x2(*shape):
    return torch.randn(shape or (2, 3, 8, 9))


def places(*shape):
    return torch.zeros(shape or (2, 3, 4, 4), dtype=torch.int64)


def overlapping():
    memory = torch.zeros(600)
    W.max_pool2d(memory[:432].view(2, 3, 8, 9), 2, out=memory[400:496].view(2, 3, 4, 4))


OUT = {
    "kind": (lambda: W.max_pool2d(x2(), 2, out=3), TypeError, "out: is int, allowed: Tensor or None"),
    "pair-kind": (lambda: W.max_pool2d(x2(), 2, return_indices=True, out=x2()), TypeError, "out: is Tensor, allowed: 2 tensors or None"),
    "pair-count": (lambda: W.max_pool2d(x2(), 2, return_indices=True, out=(x2(),)), TypeError, "out: is 1 of ['Tensor'], allowed: 2 tensors"),
    "pair-for-one": (lambda: W.max_pool2d(x2(), 2, out=(x2(), places())), TypeError, "out: is tuple, allowed: Tensor or None"),
    "shape": (lambda: W.avg_pool2d(x2(), 2, out=x2()), RuntimeError, "out: has the shape [2, 3, 8, 9], allowed: the shape of the result, [2, 3, 4, 4]"),
    "index-shape": (lambda: W.max_pool2d(x2(), 2, return_indices=True, out=(x2(2, 3, 4, 4), places(3, 4, 4))), RuntimeError,
                    "out1: has the shape [3, 4, 4], allowed: the shape of the result"),
    "type": (lambda: W.adaptive_avg_pool2d(x2(), 4, out=x2(2, 3, 4, 4).double()), RuntimeError, "out: is float64, allowed: the type of the result, float32"),
    "index-type": (lambda: W.max_pool2d(x2(), 2, return_indices=True, out=(x2(2, 3, 4, 4), places().int())), RuntimeError,
                   "out1: is int32, allowed: the type of the result, int64"),
    "expanded": (lambda: W.avg_pool2d(x2(), 2, out=x2(1, 3, 4, 4).expand(2, 3, 4, 4)), RuntimeError, "out: is expanded along dimension 0"),
    "grad": (lambda: W.avg_pool2d(x2().requires_grad_(), 2, out=x2(2, 3, 4, 4)), RuntimeError, "out: given with a tensor that requires grad"),
    "overlap": (overlapping, RuntimeError, "out: shares memory with input, allowed: memory of its own"),
    "device": (lambda: W.avg_pool2d(x2(), 2, out=torch.empty(2, 3, 4, 4, device="meta")), RuntimeError, "out: is on meta"),
}


@pytest.mark.parametrize("name", OUT)
def test_wrong_out(name):
    run, kind, text = OUT[name]
    with pytest.raises(kind, match=re.escape(text)):
        run()


# ---------------------------------------------------------------------------------------------- wrong inputs: refused, as the twin refuses them

def every(kinds, rank, x, text, kind, *args, **options):
    return [(f"{k}{rank}d", x, args, options, kind, text) for k in kinds]


POOLS, ALL = ("max_pool", "avg_pool"), ("max_pool", "avg_pool", "adaptive_avg_pool")
WRONG = [
    *(w for r, s in ((1, (2, 3, 8)), (2, (2, 3, 8, 9)), (3, (2, 3, 6, 7, 8))) for x in [torch.ones(s)] for w in [
        *every(POOLS, r, x, "kernel_size: is 0 along spatial axis 0, allowed: 1 to 2^20", RuntimeError, 0),
        *every(POOLS, r, x, "kernel_size: is -1 along spatial axis 0", RuntimeError, -1),
        *every(POOLS, r, x, "stride: is 0 along spatial axis 0, allowed: 1 to 2^40", RuntimeError, 3, 0),
        *every(POOLS, r, x, "padding: is 2 along spatial axis 0, allowed: 0 to half of kernel_size, 1", RuntimeError, 3, 1, 2),
        *every(POOLS, r, x, "padding: is -1 along spatial axis 0", RuntimeError, 3, 1, -1),
        *every(POOLS, r, x, "input: spatial axis 0 has", RuntimeError, 30),
        *every(POOLS, r, x, f"kernel_size: has 4 values (1, 1, 1, 1), allowed: an int, or {r} of them", RuntimeError, (1, 1, 1, 1)),
        *every(POOLS, r, x, "kernel_size: has 0 values", RuntimeError, ()),
        *every(POOLS, r, x, "kernel_size: is 2.0, allowed: an int", TypeError, 2.0),
        *every(POOLS, r, x, "kernel_size: is True, allowed: an int", TypeError, True),
        *every(POOLS, r, x, "kernel_size: is None", TypeError, None),
        *every(POOLS, r, x, "stride: is 'a'", TypeError, 2, "a"),
        *every(POOLS, r, x, "padding: is 'same'", TypeError, 3, 1, "same"),
        *every(POOLS, r, x, "ceil_mode: is 1, allowed: True or False", TypeError, 2, ceil_mode=1),
        *every(("max_pool",), r, x, "dilation: is 0 along spatial axis 0, allowed: 1 to 2^20", RuntimeError, 3, dilation=0),
        *every(("max_pool",), r, x, "dilation: is 1.5", TypeError, 3, dilation=1.5),
        *every(("avg_pool",), r, x, "count_include_pad: is 0, allowed: True or False", TypeError, 2, count_include_pad=0),
        *every(("adaptive_avg_pool",), r, x, "output_size: is -1 along spatial axis 0, allowed: 0 to 2^40", RuntimeError, -1),
        *every(("adaptive_avg_pool",), r, x, "output_size: is 2.0, allowed: an int", TypeError, 2.0),
        *every(("adaptive_avg_pool",), r, x, "output_size: is None", TypeError, None),
        *every(("adaptive_avg_pool",), r, x, "output_size: is True", TypeError, True),
        *every(("adaptive_avg_pool",), r, x, "output_size: has 0 values ()", RuntimeError, ()),
        *every(("max_pool", "adaptive_avg_pool"), r, x[0, ..., 0], f"allowed: {r + 1} (unbatched) or {r + 2} (batched)", RuntimeError, 2),
        *every(("avg_pool",), r, x[0, ..., 0], f"input has {r} dimensions", IndexError if r == 2 else RuntimeError, 2),
        *every(ALL, r, x[None], f"input has {r + 3} dimensions", RuntimeError, 2),
        *every(ALL, r, x[..., :0], f"input: has 0 elements along dimension {r + 1}, allowed: 1 or more", RuntimeError, 2),
        *every(POOLS, r, x[:, :0], "input: has 0 elements along dimension 1", RuntimeError, 1),
        *every(ALL, r, "x", "input is str, allowed: Tensor", TypeError, 2)]),
    ("adaptive_avg_pool3d", torch.ones(2, 0, 3, 3, 3), (2,), {}, RuntimeError, "input: has 0 elements along dimension 1"),
    ("adaptive_avg_pool1d", torch.ones(2, 3, 8), ((None,),), {}, TypeError, "output_size: is (None,), allowed: an int, or a sequence of 1 ints"),
    ("adaptive_avg_pool2d", x2(8, 8), ((2, 2),), {}, ValueError, "input has 2 dimensions [8, 8], allowed with 2 values of output_size: 3 or more"),
    ("adaptive_avg_pool2d", x2(), ((3,),), {}, RuntimeError, "output_size: has 1 values (3,), allowed: an int, or 2 of them"),
    ("adaptive_avg_pool2d", x2(), (("x", 2),), {}, TypeError, "output_size: is ('x', 2)"),
    ("adaptive_avg_pool2d", x2(), (torch.tensor(2),), {}, TypeError, "output_size: is tensor(2)"),
    ("avg_pool2d", x2(), (2,), {"divisor_override": 0}, RuntimeError, "divisor_override: is 0, allowed: any other int, or None"),
    ("avg_pool2d", x2(), (2,), {"divisor_override": 2.0}, TypeError, "divisor_override: is 2.0, allowed: an int or None"),
    ("avg_pool1d", x2(2, 3, 8), (2,), {"divisor_override": 1}, TypeError, "divisor_override"),
    ("avg_pool3d", torch.ones(1, 1, 2, 4, 4), (3, 1, 1), {}, RuntimeError, "input: spatial axis 0 has 2 elements, too few for kernel_size 3"),
    ("max_pool2d", x2(1, 1, 1, 1).expand(1, 1, 2**41, 1), (1,), {}, RuntimeError, "input: has 2199023255552 elements along dimension 2, allowed: at most 2^40"),
    ("max_pool2d", x2(), (2, 2**62), {}, RuntimeError, "stride: is 4611686018427387904"),
]


@pytest.mark.parametrize("w", WRONG, ids=lambda w: f"{w[0]}-{w[5][:40]}")
def test_wrong(w):
    """The twin refuses it with the same class; but for a str, of which some only notice that it has no size(), and what it would try to run."""
    name, x, args, options, kind, text = w
    with pytest.raises(kind, match=re.escape(text)):
        getattr(W, name)(x, *args, **options)
    if "at most 2^40" not in text:
        with pytest.raises((TypeError, AttributeError) if isinstance(x, str) else kind) as raised:
            getattr(F, name)(x, *args, **options)
        assert isinstance(x, str) or raised.type is kind


@pytest.mark.parametrize("w", [w for w in WRONG if isinstance(w[1], torch.Tensor) and w[4] is RuntimeError and w[1].numel() < 2**20],
                         ids=lambda w: f"{w[0]}-{w[5][:40]}")
def test_wrong_in_a_trace(w):
    from torch._subclasses.fake_tensor import FakeTensorMode
    name, x, args, options, kind, text = w
    with FakeTensorMode() as mode, pytest.raises(kind, match=re.escape(text)):
        getattr(W, name)(mode.from_tensor(x), *args, **options)


ops, GRAD = torch.ops.weft, ([2, 2], [2, 2], [0, 0], [1, 1], False, False)
OPERATOR = {
    "rank": (lambda: ops.max_pool(x2(), [], [], [], [], False), "kernel_size: has 0 values, allowed: 1 (1D), 2 (2D) or 3 (3D)"),
    "stride-count": (lambda: ops.max_pool(x2(), [2, 2], [2], [0, 0], [1, 1], False), "stride: has 1 values, allowed: 2"),
    "type": (lambda: ops.max_pool(x2().int(), [2, 2], [2, 2], [0, 0], [1, 1], False), "input: is int32, allowed: float32, float64, float16 or bfloat16"),
    "grad-shape": (lambda: ops.max_pool_backward(x2(2, 3, 4, 5), places(2, 3, 4, 5), [8, 8], *GRAD),
                   "grad_output: its shape does not fit input_size: 5 elements where the geometry gives 4"),
    "index-shape": (lambda: ops.max_pool_backward(x2(2, 3, 4, 4), places(2, 1, 4, 4), [8, 8], *GRAD), "index: its shape does not fit input_size: 1 elements"),
    "index-rank": (lambda: ops.max_pool_backward(x2(2, 3, 4, 4), places(3, 4, 4), [8, 8], *GRAD),
                   "index: has 3 dimensions, allowed: as many as grad_output, 4"),
    "index-type": (lambda: ops.max_pool_backward(x2(2, 3, 4, 4), places().int(), [8, 8], *GRAD), "index: is int32, allowed: int64, or uint8"),
    "index-device": (lambda: ops.max_pool_backward(x2(2, 3, 4, 4), places().to("meta"), [8, 8], *GRAD), "index: is on meta"),
    "size": (lambda: ops.avg_pool_backward(x2(2, 3, 4, 4), [8, 0], [2, 2], [2, 2], [0, 0], False, True, 0, False), "input_size: is 0 along spatial axis 1"),
    "size-rank": (lambda: ops.adaptive_avg_pool_backward(x2(2, 3, 4, 4), [8], False), "grad_output: has 4 dimensions, allowed: 3 (batched) or 2 (unbatched)"),
}


@pytest.mark.parametrize("name", OPERATOR)
def test_wrong_operator(name):
    run, text = OPERATOR[name]
    with pytest.raises(RuntimeError, match=re.escape(text)):
        run()
