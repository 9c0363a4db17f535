"""What a decision depends on: calls that differ in one thing alone are decided apart, by the seat under PyTorch's operators and by the entries."""
from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F

import weft
import weft.functional as W
from cases import channels_last, shifted
from entry_calls import needs_entries
from weft import _enable

X, WEIGHT = (2, 8, 12, 12), (8, 1, 3, 3)


@contextmanager
def threads(n):
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _free():
    """Calls of weft's functions before this one are in the same tables."""
    with weft.backends.flags(delegate=False):
        yield


def call(x=None, w=None, b=None, stride=1, padding=1, dilation=1, groups=8, want=(False, False, False), dtype=torch.float32, transposed=False):
    """One convolution of PyTorch's, and its gradients where some are wanted."""
    made = [torch.randn(X) if x is None else x, torch.randn(WEIGHT) if w is None else w, torch.randn(8) if b is None else b or None]
    made = [t if t is None else t.detach().to(dtype).requires_grad_(asked) for t, asked in zip(made, want)]
    y = (F.conv_transpose2d(*made, stride, padding, 0, groups, dilation) if transposed else F.conv2d(*made, stride, padding, dilation, groups))
    if any(want):
        torch.autograd.grad(y, [t for t, asked in zip(made, want) if asked], torch.ones_like(y))


def within(context, **changed):
    def run(**always):
        with context():
            call(**always, **changed)
    return run


CHANGES = {
    "threads": within(lambda: threads(2)), "batch": lambda **a: call(x=torch.randn(3, 8, 12, 12), **a), "size": lambda **a: call(x=torch.randn(2, 8, 12, 13), **a),
    "window": lambda **a: call(w=torch.randn(8, 1, 3, 5), **a), "data type": lambda **a: call(dtype=torch.bfloat16, **a),
    "format of the data": lambda **a: call(x=channels_last(torch.randn(X)), **a), "format of the weights": lambda **a: call(w=torch.randn(8, 1, 3, 3).transpose(2, 3), **a),
    "alignment of the data": lambda **a: call(x=shifted(torch.randn(X)), **a), "alignment of the weights": lambda **a: call(w=shifted(torch.randn(WEIGHT)), **a),
    "no bias": lambda **a: call(b=False, **a), "stride": lambda **a: call(stride=2, **a), "padding": lambda **a: call(padding=2, **a),
    "dilation": lambda **a: call(dilation=2, **a), "groups": lambda **a: call(w=torch.randn(8, 2, 3, 3), groups=4, **a), "transposed": lambda **a: call(transposed=True, **a),
    "math of weft.enable": within(lambda: weft.enabled(math="fast")), "math of the backends": within(lambda: weft.backends.flags(math="tf32")),
    "workspace limit": within(lambda: weft.backends.flags(workspace_limit=1)), "no workspace limit": within(lambda: weft.backends.flags(fastest=True)),
    "delegate": within(lambda: weft.backends.flags(delegate=True)), "pin": within(lambda: weft.backends.pin("conv_ref")),
}


def rows() -> list[int]:
    """How often each kind of call came by since the last look."""
    made = [s.calls for s in _enable.seen() if s.calls]
    _enable.seen(forget=True)
    return made


@pytest.mark.parametrize("what", CHANGES)
def test_the_seat_decides_each_kind_by_itself(what):
    with weft.enabled():
        rows()
        call()
        call()
        assert rows() == [2], "the same kind of call is decided once"
        call()
        CHANGES[what]()
        assert rows() in ([1, 1], [1]), "where settings change, what was decided before them is gone"


@pytest.mark.parametrize("want", [(True, False, False), (False, True, False), (True, True, True), (True, False, True)], ids=str)
def test_the_seat_decides_each_set_of_gradients_by_itself(want):
    """The base wants two of them; a forward pass is the same for all."""
    with weft.enabled():
        rows()
        call(want=(True, True, False))
        call(want=want)
        assert sorted(rows()) == [1, 1, 2]


def behaviour(run: Callable[[], torch.Tensor]) -> tuple:
    """What can be seen of a call: who computed it, and what came of it."""
    torch.manual_seed(1)
    y = run()
    return weft.backends.kernels(), type(y.grad_fn).__name__, y.dtype, y.shape, y.stride(), y.requires_grad, y.double().sum().item()


def conv(x=None, w=None, dtype=torch.float32, grad=(False, False), **settings):
    x, w = torch.randn(2, 16, 18, 18) if x is None else x, torch.randn(16, 1, 3, 3) if w is None else w
    x, w = x.detach().to(dtype).requires_grad_(grad[0]), w.detach().to(dtype).requires_grad_(grad[1])
    return W.conv2d(x, w, **{"padding": 1, "groups": 16, **settings})


def under(context, run=conv, **settings):
    def inside():
        with context():
            return run(**settings)
    return inside


def pointwise(name, *settings, size=(2, 3, 4, 5), dtype=torch.float32, **more):
    def run():
        return getattr(W, name)(torch.linspace(-2, 2, torch.Size(size).numel(), dtype=dtype).view(size), *settings, **more)
    return run


KINDS = {
    "convolution": {
        "plain": conv, "data type": lambda: conv(dtype=torch.float64), "16 bits": lambda: conv(dtype=torch.bfloat16), "gradient of the data": lambda: conv(grad=(True, False)),
        "gradient of the weights": lambda: conv(grad=(False, True)), "both": lambda: conv(grad=(True, True)), "no_grad": under(torch.no_grad, grad=(True, True)),
        "format": lambda: conv(channels_last(torch.randn(2, 16, 18, 18))), "alignment": lambda: conv(shifted(torch.randn(2, 16, 18, 18))),
        "threads": under(lambda: threads(2)), "stride": lambda: conv(stride=2), "padding": lambda: conv(padding=2), "padding by name": lambda: conv(padding="same"),
        "no padding": lambda: conv(padding="valid"), "dilation": lambda: conv(dilation=2), "groups": lambda: conv(w=torch.ones(16, 2, 3, 3), groups=8),
        "list": lambda: conv(padding=(1, 2)), "deterministic": under(lambda: deterministic())},
    "hardtanh": {f"{lo}, {hi}": pointwise("hardtanh", lo, hi) for lo, hi in ((-0.5, 0.5), (-0.25, 0.25), (-0.25, 0.75), (-1.0, 1.0), (-1, 1), (-1.5, 1.5), (0.0, 0.5))},
    "softmax": {"1": pointwise("softmax", 1), "2": pointwise("softmax", 2), "-1": pointwise("softmax", -1), "float64": pointwise("softmax", 1, dtype=torch.float64),
                "to float64": lambda: W.softmax(torch.linspace(-2, 2, 120).view(2, 3, 4, 5), 1, dtype=torch.float64)},
    "avg_pool2d": {"2": pointwise("avg_pool2d", 2, size=(2, 3, 9, 8)), "padded": pointwise("avg_pool2d", 2, 2, 1, size=(2, 3, 9, 8)),
                   "ceil": pointwise("avg_pool2d", 2, 2, 1, True, size=(2, 3, 9, 8)), "without pad": pointwise("avg_pool2d", 2, 2, 1, False, False, size=(2, 3, 9, 8)),
                   "divisor": pointwise("avg_pool2d", 2, 2, 1, False, True, 3, size=(2, 3, 9, 8)), "stride": pointwise("avg_pool2d", 2, 1, size=(2, 3, 9, 8))},
}


@contextmanager
def deterministic():
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@needs_entries
@pytest.mark.parametrize("name", KINDS)
def test_the_entries_decide_each_kind_by_itself(name):
    """One after the other, each is what it is where nothing was known before."""
    alone = {}
    with weft.backends.flags(delegate=True):
        for kind, run in KINDS[name].items():
            weft.backends.set_flags(delegate=True)   # starts anew
            alone[kind] = [behaviour(run) for _ in range(3)][2]
        for kinds in (list(KINDS[name]), list(KINDS[name])[::-1]):
            weft.backends.set_flags(delegate=True)
            for times in range(3):
                for kind in kinds:
                    seen = behaviour(KINDS[name][kind])
                    assert seen == alone[kind] or times < 2, kind
