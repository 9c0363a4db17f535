"""Wrong input, argument by argument: the twin's kind of error, which names the argument and what it got; nothing is written."""
from __future__ import annotations

import re

import pytest
import torch

import weft
import weft.functional as W
from weft._core import library as _library


def x(*shape, **kw):
    return torch.randn(shape or (2, 4, 6, 6), **kw)


w4 = (4, 1, 3, 3)
# what is wrong: a call and the text of its error
WRONG = {
    "input-rank": (lambda: W.conv2d(x(6, 6), x(*w4)), RuntimeError, "input has 2 dimensions [6, 6], allowed: 3 (unbatched) or 4 (batched)"),
    "input-rank-1d": (lambda: W.conv1d(x(), x(4, 4, 3)), RuntimeError, "input has 4 dimensions"),
    "weight-rank": (lambda: W.conv2d(x(), x(4, 1, 3)), RuntimeError, "weight has 3 dimensions [4, 1, 3], allowed: 4"),
    "input-kind": (lambda: W.conv2d([1.0], x(*w4)), TypeError, "input is list, allowed: Tensor"),
    "bias-kind": (lambda: W.conv2d(x(), x(*w4), 3.0, groups=4), TypeError, "bias is float, allowed: Tensor or None"),
    "input-int": (lambda: torch.ops.weft.conv(x().long(), x(*w4).long(), None, [1, 1], [1] * 4, [1, 1], 4, "", 0.0, 0.0), RuntimeError,
                  "input: is int64, allowed: float32"),
    "padding-high": (lambda: torch.ops.weft.conv(x(), x(*w4), None, [1, 1], [0, -1, 0, 0], [1, 1], 4, "", 0.0, 0.0), RuntimeError,
                     "padding: is -1 along spatial axis 0, allowed: 0 to 2^20"),
    "out-kind": (lambda: W.conv2d(x(), x(*w4), groups=4, out=3), TypeError, "out: is int, allowed: Tensor or None"),
    "out-shape": (lambda: W.conv2d(x(), x(*w4), groups=4, padding=1, out=x(1, 4, 5, 5)), RuntimeError, "out: has the shape [1, 4, 5, 5], allowed: the shape of the result"),
    "out-type": (lambda: W.conv2d(x(), x(*w4), groups=4, padding=1, out=x().double()), RuntimeError, "out: is float64, allowed: the type of the result, float32"),
    "out-expanded": (lambda: W.conv2d(x(), x(*w4), groups=4, padding=1, out=x()[:, :1].expand(x().shape)), RuntimeError, "out: is expanded along dimension 1"),
    "out-grad": (lambda: W.conv2d(x(), x(*w4).requires_grad_(), groups=4, out=x()), RuntimeError, "out: given with a tensor that requires grad"),
    "input-complex": (lambda: W.conv2d(x().to(torch.complex64), x(*w4), groups=4), RuntimeError, "input: is complex64"),
    "weight-type": (lambda: W.conv2d(x(), x(*w4).double(), groups=4), RuntimeError, "weight: is float64, allowed: the type of input, float32"),
    "bias-type": (lambda: W.conv2d(x(), x(*w4), x(4).double(), groups=4), RuntimeError, "bias: is float64, allowed: the type of input, float32"),
    "channels": (lambda: W.conv2d(x(), x(*w4)), RuntimeError, "input: has 4 channels, allowed with groups=1 and a weight of (4, 1, ...): 1"),
    "groups-divide": (lambda: W.conv2d(x(), x(6, 1, 3, 3), groups=4), RuntimeError, "groups: is 4, allowed: a divisor of the first dimension of weight, 6"),
    "groups-zero": (lambda: W.conv2d(x(), x(*w4), groups=0), RuntimeError, "groups: is 0"),
    "groups-negative": (lambda: W.conv2d(x(), x(*w4), groups=-4), RuntimeError, "groups: is -4"),
    "groups-huge": (lambda: W.conv2d(x(), x(*w4), groups=2**62), RuntimeError, "groups: is 4611686018427387904"),
    "bias-length": (lambda: W.conv2d(x(), x(*w4), x(5), groups=4), RuntimeError, "bias: has 5 elements"),
    "bias-rank": (lambda: W.conv2d(x(), x(*w4), x(4, 1), groups=4), RuntimeError, "bias: has 2 dimensions"),
    "stride-zero": (lambda: W.conv2d(x(), x(*w4), groups=4, stride=0), RuntimeError, "stride: is 0 along spatial axis 0"),
    "stride-negative": (lambda: W.conv2d(x(), x(*w4), groups=4, stride=(1, -1)), RuntimeError, "stride: is -1 along spatial axis 1"),
    "stride-count": (lambda: W.conv2d(x(), x(*w4), groups=4, stride=(1, 1, 1)), RuntimeError, "stride: has 3 values (1, 1, 1), allowed: an int, or 2"),
    "stride-kind": (lambda: W.conv2d(x(), x(*w4), groups=4, stride=1.5), TypeError, "stride: is 1.5, allowed: an int"),
    "stride-bool": (lambda: W.conv2d(x(), x(*w4), groups=4, stride=True), TypeError, "stride: is True, allowed: an int"),
    "groups-kind": (lambda: W.conv2d(x(), x(*w4), groups=4.0), TypeError, "groups: is 4.0, allowed: an int"),
    "groups-none": (lambda: W.conv_transpose2d(x(), x(*w4), groups=None), TypeError, "groups: is None, allowed: an int"),
    "dilation-zero": (lambda: W.conv2d(x(), x(*w4), groups=4, dilation=0), RuntimeError, "dilation: is 0"),
    "padding-negative": (lambda: W.conv2d(x(), x(*w4), groups=4, padding=-1), RuntimeError, "padding: is -1 along spatial axis 0"),
    "padding-huge": (lambda: W.conv2d(x(), x(*w4), groups=4, padding=2**62), RuntimeError, "padding: is 4611686018427387904"),
    "padding-word": (lambda: W.conv2d(x(), x(*w4), groups=4, padding="full"), RuntimeError, "padding: is 'full', allowed: ints, 'valid' or 'same'"),
    "padding-same-stride": (lambda: W.conv2d(x(), x(*w4), groups=4, padding="same", stride=2), RuntimeError, "'same' with stride (2, 2)"),
    "window": (lambda: W.conv2d(x(2, 4, 2, 6), x(*w4), groups=4), RuntimeError, "input: spatial axis 0 has 2 elements, too few for kernel 3"),
    "empty-kernel": (lambda: W.conv2d(x(), x(4, 1, 0, 3), groups=4), RuntimeError, "kernel 0"),
    "no-rows": (lambda: W.conv2d(x(2, 4, 6, 0), x(*w4), groups=4, padding=2), RuntimeError, "input: spatial axis 1 has 0 elements, allowed: 1 or more"),
    "no-room": (lambda: W.ncrelu(x(1, 1).expand(2**30, 2**14)), RuntimeError, "PyTorch could not allocate 35184372088832 elements of float32 on cpu: "),
    "states-huge": (lambda: weft.nn.LSTM(1, 64)(x(1, 1, 1).expand(2**24, 2**30, 1), (x(1, 1, 64).expand(1, 2**30, 64),) * 2), RuntimeError,
                    "input: its states or weights have more than 2^58 elements"),
    "act": (lambda: W.conv2d(x(), x(*w4), groups=4, act="gelu"), ValueError, "act: is 'gelu', allowed: None, 'relu' or 'clip'"),
    "clip": (lambda: W.conv2d(x(), x(*w4), groups=4, act="clip", clip=(2, 1)), ValueError, "clip: is (2, 1)"),
    "device": (lambda: W.conv2d(x(), x(*w4, device="meta"), groups=4), RuntimeError, "weight: is on meta, allowed: the device of input, cpu"),
    "depthwise-weight": (lambda: weft.conv2d_depthwise(x(), x(6, 1, 3, 3)), RuntimeError, "weight is [6, 1, 3, 3], allowed with 4 input channels"),
    "depthwise-nothing": (lambda: weft.conv2d_depthwise(x(2, 0, 5, 5), x(0, 1, 3, 3)), RuntimeError, "input has 0 channels"),
    "transposed-channels": (lambda: W.conv_transpose2d(x(), x(3, 2, 3, 3)), RuntimeError, "input: has 4 channels"),
    "transposed-padding": (lambda: W.conv_transpose2d(x(), x(4, 2, 3, 3), padding="same"), TypeError, "padding: is 'same'"),
    "output-padding": (lambda: W.conv_transpose2d(x(), x(4, 2, 3, 3), output_padding=1), RuntimeError, "output_padding: is 1 along spatial axis 0"),
    "output-padding-negative": (lambda: W.conv_transpose2d(x(), x(4, 2, 3, 3), output_padding=-1), RuntimeError, "output_padding: is -1"),
    "transposed-size": (lambda: W.conv_transpose2d(x(1, 4, 1, 1), x(4, 2, 1, 1), padding=1), RuntimeError, "input: spatial axis 0 has 1 elements"),
    "result-overflow": (lambda: W.conv_transpose3d(x(1, 1, 1, 1, 1).expand(1, 1, 2**20, 2**20, 2**20), x(1, 1, 1, 1, 1), stride=2**20),
                        RuntimeError, "allowed: fewer than 2^63"),
    "no-outputs": (lambda: W.conv2d(x(), x(0, 4, 3, 3)), RuntimeError, "weight: has 0 output channels, allowed: 1 or more"),
    "input-huge": (lambda: W.conv_transpose1d(x(1, 1, 1).expand(1, 1, 2**44 + 1), x(1, 1, 1), stride=2**20), RuntimeError,
                   "input: has 17592186044417 elements along dimension 2, allowed: at most 2^40"),
    "kernel-huge": (lambda: W.conv2d(x(1, 1, 5, 5), x(1, 1, 1, 1).expand(1, 1, 2**44 + 1, 1), dilation=(2**20, 1)), RuntimeError,
                    "weight: has 17592186044417 elements along dimension 2, allowed: at most 2^40"),
    "channels-huge": (lambda: W.conv2d(x(1, 0, 5, 5), x(1, 1, 1, 1).expand(1, 2**34, 1, 1), groups=2**30), RuntimeError,
                      "groups: is 1073741824 with 17179869184 channels each, allowed: fewer than 2^63 in all"),
    "output-padding-huge": (lambda: W.conv_transpose1d(x(1, 1, 3), x(1, 1, 1), output_padding=2**62), RuntimeError,
                            "output_padding: is 4611686018427387904"),
    "module-act": (lambda: weft.nn.Conv2d(4, 4, 3, act="tanh"), ValueError, "act: is 'tanh'"),
    "module-padding": (lambda: weft.nn.Conv2d(4, 4, 3, padding="full"), ValueError, "full"),
}
OPERATOR = {
    "pads-count": (lambda: torch.ops.weft.conv(x(), x(*w4), None, [1, 1], [1, 1], [1, 1], 4, "", 0.0, 0.0), "padding: has 2 values, allowed: 4"),
    "list-long": (lambda: torch.ops.weft.conv(x(), x(*w4), None, [1] * 9, [1] * 4, [1, 1], 4, "", 0.0, 0.0), "stride: has 9 values, allowed: at most 8"),
    "act": (lambda: torch.ops.weft.conv(x(), x(*w4), None, [1, 1], [1] * 4, [1, 1], 4, "tanh", 0.0, 0.0), "act: is 'tanh'"),
    "act-long": (lambda: torch.ops.weft.conv(x(), x(*w4), None, [1, 1], [1] * 4, [1, 1], 4, "a" * 40, 0.0, 0.0), "is too long"),
    "clip": (lambda: torch.ops.weft.conv(x(), x(*w4), None, [1, 1], [1] * 4, [1, 1], 4, "clip", 2.0, 1.0), "lo: is 2 with hi 1, allowed: a low bound not above the high one"),
    "input-rank": (lambda: torch.ops.weft.conv(x(2, 4), x(*w4), None, [1, 1], [1] * 4, [1, 1], 4, "", 0.0, 0.0),
                   "input: has 2 dimensions, allowed with a weight of 4: 4 (batched) or 3 (unbatched)"),
    "input-rank-sparse": (lambda: torch.ops.weft.sparse_conv(x(4, 6), x(2), None, torch.zeros(5, dtype=torch.int32), torch.zeros(2, dtype=torch.int32), list(w4),
                                                             [1, 1], [1] * 4, [1, 1], 4, "", 0.0, 0.0),
                          "input: has 2 dimensions, allowed with a weight of 4: 4 (batched) or 3 (unbatched)"),
    "device": (lambda: torch.ops.weft_shapes.conv(x(device="meta"), x(*w4), None, [1, 1], [1] * 4, [1, 1], 4, "", 0.0, 0.0), "weight: is on cpu (index -1), allowed: the device of input"),
    "final-states": (lambda: torch.ops.weft.causal_conv1d(x(2, 4, 6), x(4, 3), None, torch.zeros(2, 6, dtype=torch.int32), None, True, False),
                     "return_final_states: is True beside seq_idx, allowed: False"),
    "weight-rank": (lambda: torch.ops.weft.conv(x(), x(4, 4), None, [1], [1, 1], [1], 1, "", 0.0, 0.0), "weight: has 2 dimensions"),
    "grad-shape": (lambda: torch.ops.weft.conv_backward(x(2, 4, 5, 6), x(), x(*w4), [1, 1], [1] * 4, [1, 1], 4, False, 7, torch.float32), "grad_output: its shape"),
    "bias-dtype": (lambda: torch.ops.weft.conv_backward(x(), x(), x(*w4), [1, 1], [1] * 4, [1, 1], 4, False, 4, torch.uint8),
                   "bias_dtype: is uint8, allowed: the type of input, float32, or float32"),
    "bias-dtype-wide": (lambda: torch.ops.weft.conv_backward(x(), x(), x(*w4), [1, 1], [1] * 4, [1, 1], 4, False, 4, torch.float64),
                        "bias_dtype: is float64"),
    "grad-huge": (lambda: torch.ops.weft.conv_backward(x(1, 1, 1).expand(1, 1, 2**62), x(1, 1, 1), x(1, 1, 1), [1], [0, 0], [1], 1, True, 7, torch.float32),
                  "grad_output: has 4611686018427387904 elements along dimension 2"),
    "grad-rank": (lambda: torch.ops.weft.conv_backward(x(4, 6, 6), x(), x(*w4), [1, 1], [1] * 4, [1, 1], 4, False, 7, torch.float32), "grad_output: has 3 dimensions"),
    "grad-type": (lambda: torch.ops.weft.conv_backward(x().double(), x(), x(*w4), [1, 1], [1] * 4, [1, 1], 4, False, 7, torch.float32), "grad_output: is float64"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong(name):
    run, kind, text = WRONG[name]
    with pytest.raises(kind, match=re.escape(text)):
        run()


@pytest.mark.parametrize("name", [n for n in WRONG if "huge" not in n and n not in ("result-overflow", "device", "no-room")])
def test_wrong_in_a_trace(name):
    """A fake tensor is refused where a real one is, so that a compiled function fails when it is compiled."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    run, kind, text = WRONG[name]
    with FakeTensorMode(), pytest.raises(kind, match=re.escape(text.split(", too few")[0])):
        run()


def test_what_stands_for_an_int():
    """Its value counts at each call, not at the first."""
    class Index:
        def __index__(self):
            return 2
    a, w, two = x(), x(*w4), torch.tensor(2)
    expected = torch.nn.functional.conv2d(a, w, stride=2, groups=4)
    for stride in (two, Index(), (Index(), 2), [2, two]):
        torch.testing.assert_close(W.conv2d(a, w, stride=stride, groups=4), expected, rtol=1e-4, atol=1e-4)
    two.fill_(1)
    assert W.conv2d(a, w, stride=two, groups=4).shape == (2, 4, 4, 4)
    assert W.conv2d(x(2, 2, 6, 6), x(2, 1, 3, 3), groups=Index()).shape == (2, 2, 4, 4)


def test_bias_on_another_device():
    for run in (lambda: W.conv2d(x(), x(*w4), x(4, device="meta"), groups=4), lambda: W.conv_transpose2d(x(), x(*w4), x(1, device="meta"))):
        with pytest.raises(RuntimeError, match="bias: is on meta, allowed: the device of input, cpu"):
            run()
    with pytest.raises(RuntimeError, match="grad_output: is on meta"):
        torch.ops.weft.conv_backward(x(device="meta"), x(), x(*w4), [1, 1], [1] * 4, [1, 1], 4, False, 7, torch.float32)


@pytest.mark.parametrize("name", OPERATOR)
def test_wrong_operator(name):
    run, text = OPERATOR[name]
    with pytest.raises(RuntimeError, match=re.escape(text)):
        run()


def test_errors_leave_inputs_alone_and_leak_nothing():
    a, w, b = x(), x(*w4), x(5)
    kept = [t.clone() for t in (a, w, b)]
    for _ in range(2000):
        with pytest.raises(RuntimeError):
            W.conv2d(a, w, b, groups=4)
    assert all(torch.equal(t, k) for t, k in zip((a, w, b), kept))
    import sys
    assert sys.getrefcount(a) == 2 and a._use_count() == 1


FAR, DENSE = {"device": "meta"}, (8, 4, 3, 3)
ELSEWHERE = {
    "conv_transpose2d": (lambda: W.conv_transpose2d(x(), x(4, 2, 3, 3, **FAR)), "weight"),
    "partial_conv2d-weight": (lambda: W.partial_conv2d(x(), x(*DENSE, **FAR)), "weight"),
    "partial_conv2d-mask": (lambda: W.partial_conv2d(x(), x(*DENSE), None, x(2, 1, 6, 6, **FAR)), "mask"),
    "partial_conv2d-bias": (lambda: W.partial_conv2d(x(), x(*DENSE), x(8, **FAR)), "bias"),
    "sparse_conv2d": (lambda: W.sparse_conv2d(x(), weft.sparse.from_dense(x(*DENSE)), x(8, **FAR)), "bias"),
    "batch_norm": (lambda: W.batch_norm(x(), x(4, **FAR), x(4)), "running_mean"),
    "cross_entropy": (lambda: W.cross_entropy(x(), torch.zeros(2, 6, 6, dtype=torch.long, **FAR)), "target"),
    "cdgmm": (lambda: W.cdgmm(x(3, 2, 2), x(2, 2, **FAR)), "x"),
    "lstm": (lambda: weft.nn.LSTM(6, 5, **FAR)(x(3, 4, 6)), "params[0]"),
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_tensors_on_another_device(name):
    run, argument = ELSEWHERE[name]
    with pytest.raises(RuntimeError, match=re.escape(f"{argument}: is on meta, allowed: the device of input, cpu")):
        run()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_two_devices():
    with pytest.raises(RuntimeError, match="weight: is on cpu"):
        W.conv2d(x().cuda(), x(*w4), groups=4)


@pytest.mark.parametrize("text, column", [("conv2d:fwd:f32:nchw:n1c8h5w5:o8k3q1", "column"), ("conv9d", "column"), ("", "column")])
def test_problem_texts(text, column):
    with pytest.raises(ValueError, match=column):
        _library.problem(text)
