"""convert(example=...): what is measured on what, what is swapped by it, the table and the bar, and that measuring leaves no trace."""
from __future__ import annotations

import copy
import io
import sys

import pytest
import torch
from torch import nn

import weft
from fake_clock import FakeTime
from test_convert import picture
from test_models import small
from weft._bench import clock as _clock
from weft._convert import conversion as _conversion
from weft._convert.fusion import is_fused


_IS_FASTER = _conversion._is_faster


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(_conversion, "ROUNDS", 3)
    monkeypatch.setattr(_clock, "SAMPLE", 1e-4)


@pytest.fixture
def timed(monkeypatch):
    """What would be measured, with times that depend on the kind of the first module: of torch, of weft."""
    seen = []
    kinds = {nn.Conv2d: (3.0, 1.0), nn.BatchNorm2d: (1.0, 2.0), nn.ReLU: (1.04, 1.0), nn.MaxPool2d: (1.06, 1.0), nn.LSTM: (2.0, 1.0)}

    def measure(members, chain, args):
        seen.append((members, chain, args))
        return dict(zip(("torch", "weft"), (0.5, 1.0) if chain is not None and members[0].groups > 1 else kinds[_conversion.torch_class(type(members[0]))]))
    monkeypatch.setattr(_conversion, "_measure", measure)
    monkeypatch.setattr(_conversion, "_is_faster", lambda net, example: True)
    return seen


def net_of(device):
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Dropout(0.5),
                         nn.Conv2d(8, 8, 3, groups=8), nn.ReLU()).to(device)


def test_what_gets_faster_is_swapped(timed, device, capsys):
    net, x = net_of(device), torch.randn(2, 3, 8, 8, device=device)
    assert weft.convert(net, example=x) is net
    assert [type(m).__module__[:4] for m in net] == ["weft", "torc", "torc", "weft", "torc", "weft", "torc"]
    rows = weft.convert.last_report.rows
    assert [(r.module, r.kind, r.shape, r.torch_ms, r.weft_ms, r.decision) for r in rows] == [
        ("0", "Conv2d", (2, 3, 8, 8), 3.0, 1.0, "weft"), ("1", "BatchNorm2d", (2, 8, 8, 8), 1.0, 2.0, "stays: not faster"),
        ("2", "ReLU", (2, 8, 8, 8), 1.04, 1.0, "stays: not faster"), ("3", "MaxPool2d", (2, 8, 8, 8), 1.06, 1.0, "weft"),
        ("5", "Conv2d", (2, 8, 4, 4), 3.0, 1.0, "weft"), ("6", "ReLU", (2, 8, 2, 2), 1.04, 1.0, "stays: not faster")]
    assert capsys.readouterr().out == f"{weft.convert.last_report}\n" and capsys.readouterr().err == ""
    assert str(weft.convert.last_report).split("\n")[:2] == ["module  kind         shape    torch ms  weft ms  ratio  decision",
                                                             "0       Conv2d       2x3x8x8     3.000    1.000   3.00  weft"]
    weft.convert(net, "torch", example=x, verbose=False)   # the other way: what is faster there
    assert [row.decision for row in weft.convert.last_report.rows] == ["stays: not faster"] * 3 and capsys.readouterr().out == ""
    assert type(net[0]) is weft.nn.Conv2d


def test_chains_are_measured_as_one(timed, device):
    net, x = net_of(device).eval(), torch.randn(2, 3, 8, 8, device=device)
    weft.convert(net, example=x, fuse=True, verbose=False)
    assert [is_fused(m) for m in net] == [True, True, True, False, False, False, False]
    assert type(net[5]) is weft.nn.Conv2d and type(net[6]) is nn.ReLU and net[5].act is None
    assert [(r.module, r.decision) for r in weft.convert.last_report.rows] == [
        ("0 + 1 + 2", "fused"), ("3", "weft"), ("5 + 6", "stays: not faster"), ("5", "weft"), ("6", "stays: not faster")]


def test_calls_add_up_and_kinds_are_measured_once(timed):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.never = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 3)

        def forward(self, x, *, again):
            return self.a(again), self.a(x), self.b(x)
    net = Twice().eval()
    weft.convert(net, example={"x": torch.ones(1, 4, 5, 5), "again": torch.ones(1, 4, 6, 6)}, verbose=False)
    assert [(r.module, r.shape, r.torch_ms, r.decision) for r in weft.convert.last_report.rows] == [
        ("a", (1, 4, 6, 6), 6.0, "weft"), ("b", (1, 4, 5, 5), 3.0, "weft"), ("never", (), None, "stays: not called")]
    assert len(timed) == 2 and type(net.never) is nn.Conv2d
    norms = nn.Sequential(nn.BatchNorm2d(4), nn.BatchNorm2d(4).eval(), nn.BatchNorm2d(4, eps=1e-3))   # one runs on its statistics, one has other settings
    for parameter in norms.parameters():
        parameter.requires_grad_(False)
    weft.convert(norms, example=torch.ones(2, 4, 5, 5), verbose=False)
    assert len(timed) == 2 + 3


def test_each_kind_of_input_is_measured_by_itself(timed):
    """What a module takes depends on the type, the shape and the format of what it sees, and of its own weights, and on whether it asks for a gradient."""
    class Beside(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3)

        def forward(self, x, y):
            return self.a(x), self.b(y)

    def count(*inputs, last=False):
        net, before = Beside().eval(), len(timed)
        if last:
            net.b.to(memory_format=torch.channels_last)
        weft.convert(net, example=inputs, verbose=False)
        return len(timed) - before
    x = torch.ones(2, 4, 5, 5)
    assert count(x, x) == 1 and count(x, x.clone()) == 1
    assert [count(x, other) for other in (x[:1], x.contiguous(memory_format=torch.channels_last))] == [2, 2]
    assert count(x, x, last=True) == 2


def test_arguments_are_what_the_module_sees(timed):
    """Gradients are asked for as in the net: none of the first input, and none at all in eval mode."""
    net, x = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1)), torch.randn(2, 3, 4, 4)
    weft.convert(net, example=(x,), verbose=False)
    assert [args[0][0].requires_grad for _, _, args in timed] == [False, True] and torch.equal(timed[0][2][0][0], x)
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1)).eval()
    weft.convert(net, example=[x], verbose=False)
    assert [args[0][0].requires_grad for _, _, args in timed[2:]] == [False, False]


def test_the_side_of_torch_is_pytorch_alone(monkeypatch):
    """Its gradient, too, after weft's module of the same sizes had weft's: PyTorch's graph does not say whose it is."""
    names = []

    def medians(sides, *_):
        for side in ("weft", "torch"):
            weft.functional.local_response_norm(torch.ones(1, 4, 3, 3), 3)
            before = weft.backends.kernels()
            sides[side](1)
            names.append(weft.backends.kernels() != before)
        return {"torch": 2.0, "weft": 1.0}
    monkeypatch.setattr(_clock, "medians", medians)
    weft.convert(nn.Sequential(nn.Conv2d(16, 16, 3, groups=16)), example=torch.randn(4, 16, 24, 24, requires_grad=True), verbose=False)
    assert names == [True, False] * 2   # the module, and the whole net


@pytest.mark.parametrize("fuse", [False, True])
def test_a_net_that_loses_as_a_whole_stays(fuse, timed, device, monkeypatch):
    """Exactly as it was, though its parts won; what is timed is the net as it would become, beside one of torch.nn alone."""
    asked = []

    def medians(sides, rounds, seconds, least):
        for side, run in sides.items():
            asked.append([type(m).__module__ for m in run.__self__.modules[0].children()])
            assert run(1) > 0
        return {"torch": 1.0, "weft": 1.001}
    monkeypatch.setattr(_clock, "medians", medians)
    monkeypatch.setattr(_conversion, "_is_faster", _IS_FASTER)
    net = net_of(device).eval()
    before, state = [(type(m), dict(m.__dict__)) for m in net.modules()], {k: v.clone() for k, v in net.state_dict().items()}
    weft.convert(net, example=torch.randn(2, 3, 9, 9, device=device), fuse=fuse, verbose=False)
    assert all(name.startswith("torch.nn") for name in asked[0]) and any(name.startswith("weft") for name in asked[1])
    assert [(type(m), m.__dict__) for m in net.modules()] == before and all(torch.equal(v, state[k]) for k, v in net.state_dict().items())
    report = weft.convert.last_report
    assert report.summary().startswith("0 swapped, ") and "faster alone, but the whole net is not" in report.summary()
    assert any(row.ratio and row.ratio > 1.05 for row in report.rows)


def test_a_net_that_writes_to_its_input_leaves_the_example(timed, device, monkeypatch):
    monkeypatch.setattr(_conversion, "_is_faster", _IS_FASTER)
    net, x = nn.Sequential(nn.ReLU(inplace=True), nn.Conv2d(8, 8, 3, groups=8)).to(device).eval(), torch.randn(1, 8, 5, 5, device=device)
    before = x.clone()
    weft.convert(net, example=(x,), verbose=False)
    assert torch.equal(x, before)


@pytest.fixture
def clock(monkeypatch):
    """What the measurements read in place of the machine's clock: a look takes a microsecond, computing nothing."""
    made = FakeTime()
    for module in (_conversion, _clock):
        monkeypatch.setattr(module, "time", made)
    return made


def test_the_clock_decides(clock, monkeypatch):
    """4 ms in one side's forward are 4 ms of that side."""
    monkeypatch.setattr(nn.Tanh, "forward", clock.work(0.004, nn.Tanh.forward))
    monkeypatch.setattr(weft.nn.Sigmoid, "forward", clock.work(0.004, weft.nn.Sigmoid.forward))
    for training in (True, False):
        net = nn.Sequential(nn.Tanh(), nn.Sigmoid()).train(training)
        weft.convert(net, example=torch.randn(4, 4, requires_grad=True), verbose=False)
        tanh, sigmoid = weft.convert.last_report.rows
        assert [type(m) for m in net] == [weft.nn.Tanh, nn.Sigmoid]
        assert (tanh.torch_ms, tanh.weft_ms) == pytest.approx((4.001, 0.001)) and tanh.ratio == pytest.approx(4001)
        assert (sigmoid.torch_ms, sigmoid.weft_ms) == pytest.approx((0.001, 4.001)) and sigmoid.ratio == pytest.approx(1 / 4001)


def test_backward_is_measured_in_training(clock, monkeypatch):
    class Slow(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            clock.sleep(0.004)
            return grad
    forward = nn.Tanh.forward
    monkeypatch.setattr(nn.Tanh, "forward", lambda self, x: Slow.apply(forward(self, x)))
    for training in (True, False):
        weft.convert(nn.Sequential(nn.Tanh()).train(training), example=torch.randn(4, 4, requires_grad=True), verbose=False)
        assert weft.convert.last_report.rows[0].torch_ms == pytest.approx(4.001 if training else 0.001)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("fuse", [False, True], ids=["swap", "fuse"])
def test_no_trace_is_left(training, fuse, device):
    """Statistics, random numbers, gradients, hooks and the example are as they were, whatever was measured."""
    net, x = net_of(device).train(training), torch.randn(2, 3, 8, 8, device=device)
    net[0].weight.grad = torch.ones_like(net[0].weight)
    calls = []
    net[3].register_forward_hook(lambda *args: calls.append(1))
    net[4].register_forward_pre_hook(lambda *args: calls.append(1))
    net[5].register_full_backward_hook(lambda *args: calls.append(1))
    state, versions, example = copy.deepcopy(net.state_dict()), [t._version for t in (*net.parameters(), *net.buffers())], x.clone()
    before, text, rng = picture(net), repr(net), torch.get_rng_state()
    gpu = torch.cuda.get_rng_state(device) if device.type == "cuda" else rng
    weft.convert(net, example=x, fuse=fuse, verbose=False)
    assert torch.equal(torch.get_rng_state(), rng) and (device.type != "cuda" or torch.equal(torch.cuda.get_rng_state(device), gpu))
    assert calls == [] and torch.equal(x, example) and net.training == training
    assert all(torch.equal(v, state[k]) for k, v in net.state_dict().items()) and [t._version for t in (*net.parameters(), *net.buffers())] == versions
    assert net[0].weight.grad.eq(1).all() and all(p.grad is None for key, p in net.named_parameters() if key != "0.weight")
    assert all(r.torch_ms > 0 and r.weft_ms > 0 and r.ratio > 0 for r in weft.convert.last_report.rows)
    weft.convert(net, "torch")
    assert picture(net) == before and repr(net) == text


def test_recurrent_losses_and_packed(device):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.loss = nn.LSTM(4, 6, 2, dropout=0.5), nn.CrossEntropyLoss(ignore_index=-1)

        def forward(self, x, target):
            y, _ = self.rnn(x)
            return self.loss(y.data, target)
    net = Net().to(device)
    packed = nn.utils.rnn.pack_sequence([torch.randn(3, 4, device=device), torch.randn(2, 4, device=device)])
    weft.convert(net, example=(packed, torch.tensor([0, 1, 2, 3, -1], device=device)), verbose=False)
    assert [(r.module, r.shape) for r in weft.convert.last_report.rows] == [("rnn", (5, 4)), ("loss", (5, 6))]
    assert all(r.ratio > 0 for r in weft.convert.last_report.rows)
    assert net(packed, torch.tensor([0, 1, 2, 3, -1], device=device)).isfinite()


def test_in_place_modules(device):
    """They are timed on copies: a net with nothing but them, and one that needs its input afterwards."""
    x = torch.randn(3, 4, device=device)
    for inplace in (nn.ReLU(inplace=True), nn.Hardtanh(inplace=True)):
        net = nn.Sequential(nn.Linear(4, 4), inplace).to(device)
        weft.convert(net, example=x, verbose=False)
        assert weft.convert.last_report.rows[0].ratio > 0


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_bar(timed, monkeypatch):
    net, x = net_of("cpu"), torch.randn(2, 3, 8, 8)
    for stream, shown in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr(sys, "stderr", stream)
        weft.convert(copy.deepcopy(net), example=x, verbose=False)
        text = stream.getvalue()
        assert ("1/6 0" in text and f"[{'#' * 30}] 6/6 6" in text and text.endswith("\r\x1b[K")) if shown else text == ""


@pytest.mark.parametrize("name", ["mobilenet_v1", "partial_unet", "resnet34"])
def test_model(name, device):
    model, inputs = small(name, device)
    model.eval()
    expected = model(*inputs)
    weft.convert(model, example=inputs, fuse=True, verbose=False)
    torch.testing.assert_close(model(*inputs), expected, rtol=1e-3, atol=1e-4)
    assert all(r.decision == "stays: not called" or r.ratio > 0 for r in weft.convert.last_report.rows)
    weft.convert(model, "torch")
    assert torch.equal(model(*inputs), expected)
