"""Wrong input of cross_entropy, argument by argument: the twin's class of error, and a text that names the argument and what is allowed."""
from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F

import weft.functional as W


def x(*shape):
    return torch.randn(shape or (6, 3))


def t(*shape):
    return torch.randint(3, shape or (6,))


FLOATS = "allowed: float32, float64, float16 or bfloat16"
# what is wrong: a call with the function, the class and text of weft's error
WRONG = {
    "input-kind": (lambda f: f([1.0], t()), TypeError, "input: is list, allowed: Tensor"),
    "target-kind": (lambda f: f(x(), [1]), TypeError, "target: is list, allowed: Tensor"),
    "target-none": (lambda f: f(x(), None), TypeError, "target: is NoneType, allowed: Tensor"),
    "weight-kind": (lambda f: f(x(), t(), [1.0] * 3), TypeError, "weight: is list, allowed: Tensor or None"),
    "input-int": (lambda f: f(x().long(), t()), NotImplementedError, f"input: is int64, {FLOATS}"),
    "input-complex": (lambda f: f(x().to(torch.complex64), x()), NotImplementedError, f"input: is complex64, {FLOATS}"),
    "input-number": (lambda f: f(x(1)[0], x(1)[0]), IndexError, "input: has 0 dimensions, allowed: 1 (classes), 2 (batch, classes) or more"),
    "input-number-labels": (lambda f: f(x(1)[0], t()), IndexError, "input: has 0 dimensions"),
    "target-int32": (lambda f: f(x(), t().int()), RuntimeError, "target: is int32, allowed: int64 or uint8 for classes"),
    "target-bool": (lambda f: f(x(), t() > 0), RuntimeError, "target: is bool, allowed: int64 or uint8 for classes"),
    "target-bytes": (lambda f: f(x(2, 3, 4, 5), t(2, 4, 5).byte()), RuntimeError, "target: is uint8, allowed: int64 for classes"),
    "target-float": (lambda f: f(x(2, 3, 4), torch.rand(2, 4)), RuntimeError, "target: is float32, allowed: int64 for classes"),
    "probs-int": (lambda f: f(x(), t(6, 3)), RuntimeError, "target: is int64 and has the shape of input, [6, 3], allowed: a floating-point type"),
    "probs-complex": (lambda f: f(x(), x().to(torch.complex64)), RuntimeError, "target: is complex64 and has the shape of input"),
    "probs-ignored": (lambda f: f(x(), x(), ignore_index=1), RuntimeError, "ignore_index: is 1 and target has probabilities, allowed: a negative number"),
    "batch": (lambda f: f(x(), t(5)), ValueError, "target: has the shape [5], allowed with an input of [6, 3]: [6] for classes, [6, 3] for probabilities"),
    "batch-images": (lambda f: f(x(2, 3, 4, 5), t(1, 4, 5)), ValueError, "target: has the shape [1, 4, 5], allowed with an input of [2, 3, 4, 5]: [2, 4, 5]"),
    "batch-missing": (lambda f: f(x(), t(1)[0]), ValueError, "target: has the shape [], allowed with an input of [6, 3]: [6]"),
    "unbatched-images": (lambda f: f(x(3, 4, 5), t(4, 5)), ValueError, "target: has the shape [4, 5], allowed with an input of [3, 4, 5]: [3, 5]"),
    "pixels": (lambda f: f(x(2, 3, 4, 5), t(2, 4, 4)), RuntimeError, "target: has the shape [2, 4, 4], allowed with an input of [2, 3, 4, 5]"),
    "pixels-1d": (lambda f: f(x(2, 3, 4), t(2, 5)), RuntimeError, "target: has the shape [2, 5], allowed with an input of [2, 3, 4]"),
    "pixels-3d": (lambda f: f(x(2, 3, 4, 5, 6), t(2, 4, 5, 5)), RuntimeError, "target: has the shape [2, 4, 5, 5]"),
    "pixels-missing": (lambda f: f(x(2, 3, 4), t(2)), RuntimeError, "target: has the shape [2], allowed with an input of [2, 3, 4]"),
    "target-rank": (lambda f: f(x(), torch.rand(6, 2)), RuntimeError, "target: has the shape [6, 2]"),
    "unbatched": (lambda f: f(x(3), t(2)), ValueError, "target: has the shape [2], allowed with an input of [3]: [] for classes, [3] for probabilities"),
    "unbatched-probs": (lambda f: f(x(3), torch.rand(2)), RuntimeError, "target: has the shape [2], allowed with an input of [3]"),
    "unbatched-rank": (lambda f: f(x(3), t(2, 2)), RuntimeError, "target: has the shape [2, 2]"),
    "weight-length": (lambda f: f(x(), t(), x(4)), RuntimeError, "weight: has 4 elements, allowed: 3, the classes"),
    "weight-rank": (lambda f: f(x(), t(), x(3, 1)), RuntimeError, "weight: has 2 dimensions, allowed: one of 3 elements"),
    "weight-length-probs": (lambda f: f(x(), x(), x(1)), RuntimeError, "weight: has 1 elements, allowed: 3"),
    "weight-type": (lambda f: f(x(), t(), x(3).double()), RuntimeError, "weight: is float64, allowed: the type of input, float32"),
    "weight-int": (lambda f: f(x(), t(), t(3)), RuntimeError, "weight: is int64, allowed: the type of input, float32"),
    "weight-grad": (lambda f: f(x(), t(), x(3).requires_grad_()), RuntimeError, "weight: requires grad and target has classes"),
    "reduction": (lambda f: f(x(), t(), reduction="avg"), ValueError, "reduction: is 'avg', allowed: 'none', 'mean' or 'sum'"),
    "reduction-none": (lambda f: f(x(), t(), reduction=None), ValueError, "reduction: is None, allowed: 'none', 'mean' or 'sum'"),
    "reduction-list": (lambda f: f(x(), t(), reduction=["sum"]), ValueError, "reduction: is ['sum'], allowed: 'none', 'mean' or 'sum'"),
    "smoothing": (lambda f: f(x(), t(), label_smoothing=1.5), RuntimeError, "label_smoothing: is 1.5, allowed: 0 to 1"),
    "smoothing-probs": (lambda f: f(x(), x(), label_smoothing=2.0), RuntimeError, "label_smoothing: is 2, allowed: 0 to 1"),
    "smoothing-kind": (lambda f: f(x(), t(), label_smoothing="a"), TypeError, "label_smoothing: is 'a', allowed: a float"),
    "smoothing-none": (lambda f: f(x(), t(), label_smoothing=None), TypeError, "label_smoothing: is None, allowed: a float"),
    "ignore-float": (lambda f: f(x(), t(), ignore_index=1.0), TypeError, "ignore_index: is 1.0, allowed: an int"),
    "ignore-bool": (lambda f: f(x(), t(), ignore_index=True), TypeError, "ignore_index: is True, allowed: an int"),
    "ignore-none": (lambda f: f(x(), t(), ignore_index=None), TypeError, "ignore_index: is None, allowed: an int"),
    "ignore-huge": (lambda f: f(x(), t(), ignore_index=2**63), ValueError, "ignore_index: is 9223372036854775808, allowed: -2^63 to 2^63 - 1"),
    "target-device": (lambda f: f(x(), t().to("meta")), RuntimeError, "target: is on meta, allowed: the device of input, cpu"),
    "weight-device": (lambda f: f(x(), t(), x(3).to("meta")), RuntimeError, "weight: is on meta, allowed: the device of input, cpu"),
}
WRONG_OUT = {
    "out-kind": (lambda f: f(x(), t(), out=3), TypeError, "out: is int, allowed: Tensor or None"),
    "out-shape": (lambda f: f(x(), t(), out=x(1)), RuntimeError, "out: has the shape [1], allowed: the shape of the result, []"),
    "out-shape-rows": (lambda f: f(x(), t(), reduction="none", out=x(5)), RuntimeError, "out: has the shape [5], allowed: the shape of the result, [6]"),
    "out-type": (lambda f: f(x(), t(), out=x(1)[0].double()), RuntimeError, "out: is float64, allowed: the type of the result, float32"),
    "out-expanded": (lambda f: f(x(), t(), reduction="none", out=x(1).expand(6)), RuntimeError, "out: is expanded along dimension 0"),
    "out-grad": (lambda f: f(x().requires_grad_(), t(), out=x(1)[0]), RuntimeError, "out: given with a tensor that requires grad"),
}


@pytest.mark.parametrize("wrong", [*WRONG, *WRONG_OUT])
def test_wrong(wrong):
    run, kind, text = (WRONG | WRONG_OUT)[wrong]
    with pytest.raises(kind, match=re.escape(text)) as raised:
        run(W.cross_entropy)
    if wrong in WRONG:
        older = wrong == "unbatched-probs"   # PyTorch before 2.13 says ValueError
        with pytest.raises((kind, ValueError) if older else kind) as expected:
            run(F.cross_entropy)
        assert raised.type is expected.type or older


@pytest.mark.parametrize("wrong", [w for w in WRONG if "device" not in w])
def test_wrong_in_a_trace(wrong):
    from torch._subclasses.fake_tensor import FakeTensorMode
    run, kind, text = WRONG[wrong]
    with FakeTensorMode(), pytest.raises(kind, match=re.escape(text)):
        run(W.cross_entropy)


def test_out_over_the_input():
    memory = torch.randn(18)
    with pytest.raises(RuntimeError, match="out: shares memory with input, allowed: memory of its own"):
        W.cross_entropy(memory.view(6, 3), t(), reduction="none", out=memory[:6])


def _op(input=None, target=None, weight=None, ignore=-100, reduction=1, smoothing=0.0):
    return torch.ops.weft.cross_entropy(x() if input is None else input, t() if target is None else target, weight, ignore, reduction, smoothing)


def _back(grad=None, input=None, target=None, lse=None, reduction=1):
    return torch.ops.weft.cross_entropy_backward(x(1)[0] if grad is None else grad, x() if input is None else input, t() if target is None else target, None,
                                                 x(6) if lse is None else lse, -100, reduction, 0.0)


OPERATOR = {
    "reduction": (lambda: _op(reduction=3), "reduction: is 3, allowed: 0 (none), 1 (mean) or 2 (sum)"),
    "smoothing": (lambda: _op(smoothing=float("nan")), "label_smoothing: is nan, allowed: 0 to 1"),
    "target": (lambda: _op(target=t().double()), "target: is float64, allowed: int64 (classes) or the type of input, float32 (probabilities)"),
    "shape": (lambda: _op(target=t(6, 1)), "target: has the shape [6, 1], allowed: [6]"),
    "probs-shape": (lambda: _op(target=x(6)), "target: has the shape [6], allowed: [6, 3]"),
    "input": (lambda: _op(input=t(6, 3)), f"input: is int64, {FLOATS}"),
    "number": (lambda: _op(input=x(1)[0]), "input: has 0 dimensions"),
    "size": (lambda: _op(input=x(1, 3).expand(2**41, 3), target=t(1).expand(2**41)), "input: has 2199023255552 elements along dimension 0"),
    "grad-rank": (lambda: _back(grad=x(1)), "grad_output: has 1 dimensions, allowed: 0"),
    "grad-shape": (lambda: _back(grad=x(5), reduction=0), "grad_output: has the shape [5], allowed: [6]"),
    "grad-type": (lambda: _back(grad=x(1)[0].double()), "grad_output: is float64, allowed: the type of input, float32"),
    "lse-shape": (lambda: _back(lse=x(5)), "lse: has the shape [5], allowed: [6]"),
    "lse-type": (lambda: _back(lse=x(6).half()), "lse: is float16, allowed: float32 or float64"),
}


@pytest.mark.parametrize("wrong", OPERATOR)
def test_wrong_operator(wrong):
    run, text = OPERATOR[wrong]
    with pytest.raises(RuntimeError, match=re.escape(text)):
        run()


def test_no_gradient_of_weights_with_classes():
    loss, _ = _op(weight=torch.rand(3).requires_grad_())
    with pytest.raises(RuntimeError, match="weight: requires grad and target has classes"):
        loss.backward()


def test_inputs_are_left_alone():
    a, b, w = x(), t(), torch.rand(3)
    kept = [v.clone() for v in (a, b, w)]
    a.requires_grad_()
    W.cross_entropy(a, b, w, label_smoothing=0.1).backward()
    assert all(torch.equal(v, k) for v, k in zip((a.detach(), b, w), kept))
