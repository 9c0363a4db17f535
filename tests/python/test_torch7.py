"""weft.torch7: every name beside its twin in torch.nn, its arguments and defaults, modes, states and printing."""
from __future__ import annotations

import copy
import doctest
import importlib
import inspect
import io
import pickle
import pkgutil
import warnings

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import weft
from weft import torch7 as t7
from weft.functional.conv import CONV_BACKWARD
from weft.torch7 import conv as _conv7

TYPES = [torch.float32, torch.float64]

# name, arguments in Torch7's order, the twin, the shape of its input, how it prints
WINDOWS = [
    ("SpatialConvolution", (3, 6, 5, 3), ("Conv2d", (3, 6, (3, 5))), (2, 3, 8, 9), "3 -> 6, 5x3"),
    ("SpatialConvolution", (4, 6, 3, 2, 2, 1, 1, 0, 2), ("Conv2d", (4, 6, (2, 3), (1, 2), (0, 1), 1, 2)), (4, 7, 8), "4 -> 6, 3x2, 2,1, 1,0, groups=2"),
    ("SpatialConvolution", (3, 96, 11, 11, 3, 3), ("Conv2d", (3, 96, 11, 3)), (1, 3, 15, 17), "3 -> 96, 11x11, 3,3"),
    ("SpatialDilatedConvolution", (3, 4, 3, 2), ("Conv2d", (3, 4, (2, 3))), (2, 3, 6, 6), "3 -> 4, 3x2"),
    ("SpatialDilatedConvolution", (4, 4, 3, 2, 1, 2, 2, 1, 2, 3, 4), ("Conv2d", (4, 4, (2, 3), (2, 1), (1, 2), (3, 2), 4)), (2, 4, 8, 9),
     "4 -> 4, 3x2, 1,2, 2,1, 2,3, groups=4"),
    ("SpatialFullConvolution", (4, 3, 5, 3), ("ConvTranspose2d", (4, 3, (3, 5))), (2, 4, 5, 6), "4 -> 3, 5x3"),
    ("SpatialFullConvolution", (4, 6, 3, 2, 2, 3, 1, 0, 1, 2, 2), ("ConvTranspose2d", (4, 6, (2, 3), (3, 2), (0, 1), (2, 1), 2)), (2, 4, 5, 6),
     "4 -> 6, 3x2, 2,3, 1,0, 1,2, groups=2"),
    ("VolumetricConvolution", (2, 4, 3, 2, 1), ("Conv3d", (2, 4, (3, 1, 2))), (2, 2, 4, 5, 6), "2 -> 4, 3x2x1"),
    ("VolumetricConvolution", (2, 4, 3, 2, 1, 1, 2, 3, 1, 1, 0, 2), ("Conv3d", (2, 4, (3, 1, 2), (1, 3, 2), (1, 0, 1), 1, 2)), (2, 4, 5, 6),
     "2 -> 4, 3x2x1, 1,2,3, 1,1,0, groups=2"),
    ("VolumetricDilatedConvolution", (2, 4, 3, 2, 1), ("Conv3d", (2, 4, (3, 1, 2))), (1, 2, 4, 5, 6), "2 -> 4, 3x2x1"),
    ("VolumetricDilatedConvolution", (2, 4, 3, 2, 2, 1, 2, 1, 1, 1, 0, 1, 2, 3, 2),
     ("Conv3d", (2, 4, (3, 2, 2), (1, 1, 2), (1, 0, 1), (1, 3, 2), 2)), (1, 2, 4, 5, 6), "2 -> 4, 3x2x2, 1,2,1, 1,1,0, 1,2,3, groups=2"),
    ("VolumetricFullConvolution", (4, 2, 3, 2, 1), ("ConvTranspose3d", (4, 2, (3, 1, 2))), (1, 4, 2, 3, 4), "4 -> 2, 3x2x1"),
    ("VolumetricFullConvolution", (4, 2, 3, 2, 1, 2, 3, 4, 1, 0, 0, 1, 2, 3, 2),
     ("ConvTranspose3d", (4, 2, (3, 1, 2), (2, 4, 3), (1, 0, 0), (1, 3, 2), 2)), (1, 4, 2, 3, 3), "4 -> 2, 3x2x1, 2,3,4, 1,0,0, 1,2,3, groups=2"),
    ("SpatialMaxPooling", (3, 2), ("MaxPool2d", ((2, 3),)), (2, 4, 7, 8), "3x2, 3,2"),
    ("SpatialMaxPooling", (3, 2, 2, 1, 1, 0), ("MaxPool2d", ((2, 3), (1, 2), (0, 1))), (4, 7, 8), "3x2, 2,1, 1,0"),
    ("SpatialAveragePooling", (3, 2), ("AvgPool2d", ((2, 3),)), (2, 4, 7, 8), "3x2, 3,2"),
    ("SpatialAveragePooling", (3, 2, 2, 1, 1, 1), ("AvgPool2d", ((2, 3), (1, 2), 1)), (2, 4, 7, 8), "3x2, 2,1, 1,1"),
    ("VolumetricMaxPooling", (1, 3, 2), ("MaxPool3d", ((1, 2, 3),)), (2, 3, 4, 5, 6), "1x3x2, 1,3,2"),
    ("VolumetricMaxPooling", (2, 3, 2, 1, 2, 1, 1, 1, 0), ("MaxPool3d", ((2, 2, 3), (1, 1, 2), (1, 0, 1))), (3, 4, 5, 6), "2x3x2, 1,2,1, 1,1,0"),
    ("VolumetricAveragePooling", (1, 3, 2), ("AvgPool3d", ((1, 2, 3),)), (2, 3, 4, 5, 6), "1x3x2, 1,3,2"),
    ("VolumetricAveragePooling", (2, 3, 2, 1, 2, 1, 1, 1, 0), ("AvgPool3d", ((2, 2, 3), (1, 1, 2), (1, 0, 1))), (2, 3, 4, 5, 6), "2x3x2, 1,2,1, 1,1,0"),
]
OTHERS = [
    ("ReLU", (), ("ReLU", ()), (2, 3, 4), ""),
    ("ReLU", (True,), ("ReLU", ()), (5,), "inplace=True"),
    ("ClippedReLU", (0.5,), ("Hardtanh", (0.0, 0.5)), (2, 3, 4, 5, 6), "ceiling=0.5"),
    ("ClippedReLU", (0.5, True), ("Hardtanh", (0.0, 0.5)), (2, 3), "ceiling=0.5, inplace=True"),
    ("Tanh", (), ("Tanh", ()), (2, 3), ""),
    ("Tanh", (True,), ("Tanh", ()), (2, 3), "inplace=True"),
    ("Sigmoid", (), ("Sigmoid", ()), (2, 3), ""),
    ("Sigmoid", (True,), ("Sigmoid", ()), (2, 3), "inplace=True"),
    ("SoftMax", (), ("Softmax", (1,)), (3, 7), ""),
    ("SoftMax", (True,), ("Softmax", (0,)), (7,), "fastMode=True"),
    ("LogSoftMax", (), ("LogSoftmax", (1,)), (3, 7), ""),
    ("LogSoftMax", (), ("LogSoftmax", (0,)), (7,), ""),
    *((f"{place}{name}", (), (twin, (axis,)), shape, "") for name, twin in (("SoftMax", "Softmax"), ("LogSoftMax", "LogSoftmax"))
      for place, shape, axis in (("Spatial", (2, 5, 3, 4), 1), ("Spatial", (5, 3, 4), 0), ("Spatial", (2, 5), 1), ("Spatial", (5,), 0),
                                 ("Volumetric", (2, 5, 2, 3, 4), 1), ("Volumetric", (5, 2, 3, 4), 0), ("Volumetric", (2, 5), 1), ("Volumetric", (5,), 0))),
    ("SpatialSoftMax", (True,), ("Softmax", (1,)), (2, 5, 3, 4), "fastMode=True"),
    ("BatchNormalization", (5,), ("BatchNorm1d", (5,)), (6, 5), "5"),
    ("BatchNormalization", (5, 1e-3, 0.3, False), ("BatchNorm1d", (5, 1e-3, 0.3, False)), (6, 5), "5, eps=0.001, momentum=0.3, affine=False"),
    ("SpatialBatchNormalization", (5,), ("BatchNorm2d", (5,)), (2, 5, 3, 4), "5"),
    ("VolumetricBatchNormalization", (5, 1e-3), ("BatchNorm3d", (5, 1e-3)), (2, 5, 2, 3, 4), "5, eps=0.001"),
    ("SpatialCrossMapLRN", (), ("LocalResponseNorm", (5,)), (2, 7, 3, 4), "5, alpha=0.0001, beta=0.75, k=1"),
    ("SpatialCrossMapLRN", (4, 2.0, 0.5, 3), ("LocalResponseNorm", (4, 2.0, 0.5, 3)), (2, 7, 3, 4), "4, alpha=2.0, beta=0.5, k=3"),
]
RECURRENT = {"RNNReLU": ("RNN", {"nonlinearity": "relu"}), "RNNTanh": ("RNN", {}), "LSTM": ("LSTM", {}), "GRU": ("GRU", {}),
             "BLSTM": ("LSTM", {"bidirectional": True}), "BGRU": ("GRU", {"bidirectional": True})}
CRITERIA = {"SpatialCrossEntropyCriterion": (2, 5, 3, 4), "VolumetricCrossEntropyCriterion": (2, 5, 2, 3, 4)}

CONVOLUTION = "kW, kH, dW=1, dH=1, padW=0, padH=0"
VOLUME = "kT, kW, kH, dT=1, dW=1, dH=1, padT=0, padW=0, padH=0"
POOLING, VOLUME_POOLING = "kW, kH, dW=None, dH=None, padW=0, padH=0", "kT, kW, kH, dT=None, dW=None, dH=None, padT=0, padW=0, padH=0"
NORMALIZATION = "nFeature, eps=1e-05, momentum=0.1, affine=True"
LAYERS = "inputDim, outputDim, numberOfLayers, batchFirst=False, dropout=0"
SIGNATURES = {
    "SpatialConvolution": f"nInputPlane, nOutputPlane, {CONVOLUTION}, groups=1",
    "SpatialDilatedConvolution": f"nInputPlane, nOutputPlane, {CONVOLUTION}, dilationW=1, dilationH=1, groups=1",
    "SpatialFullConvolution": f"nInputPlane, nOutputPlane, {CONVOLUTION}, adjW=0, adjH=0, groups=1",
    "VolumetricConvolution": f"nInputPlane, nOutputPlane, {VOLUME}, groups=1",
    "VolumetricDilatedConvolution": f"nInputPlane, nOutputPlane, {VOLUME}, dilationT=1, dilationW=1, dilationH=1, groups=1",
    "VolumetricFullConvolution": f"nInputPlane, nOutputPlane, {VOLUME}, adjT=0, adjW=0, adjH=0, groups=1",
    "TemporalConvolution": "inputFrameSize, outputFrameSize, kH, dH=1, padH=0",
    "SpatialMaxPooling": POOLING, "SpatialAveragePooling": POOLING, "VolumetricMaxPooling": VOLUME_POOLING, "VolumetricAveragePooling": VOLUME_POOLING,
    "ReLU": "inplace=False", "Tanh": "inplace=False", "Sigmoid": "inplace=False", "ClippedReLU": "ceiling, inplace=False",
    "SoftMax": "fastMode=False", "SpatialSoftMax": "fastMode=False", "VolumetricSoftMax": "fastMode=False",
    "LogSoftMax": "", "SpatialLogSoftMax": "", "VolumetricLogSoftMax": "",
    "SpatialCrossEntropyCriterion": "weights=None", "VolumetricCrossEntropyCriterion": "weights=None",
    "BatchNormalization": NORMALIZATION, "SpatialBatchNormalization": NORMALIZATION, "VolumetricBatchNormalization": NORMALIZATION,
    "SpatialCrossMapLRN": "size=5, alpha=0.0001, beta=0.75, k=1",
    **dict.fromkeys(("RNNReLU", "RNNTanh", "LSTM", "GRU"), f"{LAYERS}, rememberStates=False"), "BLSTM": LAYERS, "BGRU": LAYERS,
}


def close(ours, theirs):
    assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
    tolerance = dict(rtol=1e-9, atol=1e-9) if ours.dtype == torch.float64 else dict(rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ours, theirs, **tolerance)


def pair(name, args, twin, device, dtype, **settings):
    """weft's module and the twin, with the same parameters."""
    theirs = getattr(torch.nn, twin[0])(*twin[1], **settings).to(device, dtype)
    ours = getattr(t7, name)(*args).to(device, dtype)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def compare(ours, theirs, x, result=lambda y: y):
    """Values, and gradients of the input and of the parameters."""
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    y, expected = ours(a * 1), result(theirs(b * 1))     # * 1: modules may write to what is not a leaf
    close(y, expected)
    g = torch.randn_like(expected)
    for got, want in zip(torch.autograd.grad(y, (a, *ours.parameters()), g), torch.autograd.grad(expected, (b, *theirs.parameters()), g)):
        close(got, want)


# ---------------------------------------------------------------------------------------------- names and defaults

def test_every_name_and_default():
    assert sorted(t7.__all__) == sorted(SIGNATURES)
    for name, expected in SIGNATURES.items():
        parameters = [p for p in inspect.signature(getattr(t7, name)).parameters.values() if p.kind is not p.KEYWORD_ONLY]
        assert ", ".join(p.name if p.default is p.empty else f"{p.name}={p.default}" for p in parameters) == expected, name


def test_every_name_is_tested():
    assert {*SIGNATURES} == {*(row[0] for row in WINDOWS + OTHERS), *RECURRENT, *CRITERIA, "TemporalConvolution"}


def test_every_module_is_one_of_weft_nn():
    for name in t7.__all__:
        kind = getattr(t7, name)
        assert any(base.__module__.startswith("weft.nn.") and base.__name__ in weft.nn.__all__ for base in kind.__mro__[1:]), name
        assert kind.__doc__ and ">>>" in kind.__doc__, name


def test_examples():
    for info in pkgutil.iter_modules(t7.__path__, "weft.torch7."):
        done = doctest.testmod(importlib.import_module(info.name), extraglobs={"torch": torch, "weft": weft})
        assert done.failed == 0 and done.attempted > 0, info.name
    assert doctest.testmod(t7, extraglobs={"weft": weft}).failed == 0


# ---------------------------------------------------------------------------------------------- values and gradients

@pytest.mark.parametrize("dtype", TYPES, ids=lambda d: str(d)[6:])
@pytest.mark.parametrize("name, args, twin, shape, text", WINDOWS + OTHERS, ids=lambda v: v if isinstance(v, str) else None)
def test_twin(name, args, twin, shape, text, dtype, device):
    ours, theirs = pair(name, args, twin, device, dtype)
    assert repr(ours) == f"weft.{name}({text})"
    compare(ours, theirs, torch.randn(shape, device=device, dtype=dtype))
    for a, b in zip(ours.buffers(), theirs.buffers()):
        close(a, b)                     # running statistics
    x = torch.randn(shape, device=device, dtype=dtype)
    compare(ours.eval(), theirs.eval(), x)
    close(ours.updateOutput(x.clone()), theirs(x))
    theirs.load_state_dict(ours.state_dict())


@pytest.mark.parametrize("name, args, twin, shape", [row[:4] for row in WINDOWS if "Pool" in row[0]])
def test_pooling_rounds(name, args, twin, shape, device):
    x = torch.randn(shape, device=device)
    ours, theirs = pair(name, args, twin, device, torch.float32, ceil_mode=True)
    assert ours.ceil() is ours and repr(ours).endswith(", ceil)")
    compare(ours, theirs, x)
    theirs.ceil_mode = False
    assert ours.floor() is ours and not ours.ceil_mode
    compare(ours, theirs, x)


def test_pooling_without_padding(device):
    for name, twin, shape in (("SpatialAveragePooling", "AvgPool2d", (2, 3, 5, 6)), ("VolumetricAveragePooling", "AvgPool3d", (2, 3, 4, 5, 6))):
        rank, x = len(shape) - 2, torch.randn(shape, device=device)
        ours = getattr(t7, name)(*[3] * rank, *[2] * rank, *[1] * rank)
        assert ours.setCountExcludePad() is ours and "without padding" in repr(ours)
        compare(ours, getattr(torch.nn, twin)(3, 2, 1, count_include_pad=False), x)
        assert ours.setCountIncludePad() is ours
        compare(ours, getattr(torch.nn, twin)(3, 2, 1), x)


@pytest.mark.parametrize("name, function", [("SoftMax", torch.softmax), ("LogSoftMax", torch.log_softmax)])
@pytest.mark.parametrize("shape, first, last", [((3, 4, 5), 0, False), ((2, 3, 4, 5), 1, False), ((2, 3, 4, 5), 1, True), ((2, 3, 2, 4, 5), 1, True),
                                                ((2, 3, 2, 4, 5), 1, False)])
def test_softmax_of_a_whole_instance(name, function, shape, first, last, device):
    x = torch.randn(shape, device=device, dtype=torch.float64)
    if last:
        x = x.to(memory_format=torch.channels_last if x.dim() == 4 else torch.channels_last_3d)
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    y, expected = getattr(t7, name)()(a), function(b.flatten(first), first).view(shape)
    close(y, expected)
    assert y.stride() == x.stride()
    g = torch.randn(shape, device=device, dtype=torch.float64)
    close(torch.autograd.grad(y, a, g)[0], torch.autograd.grad(expected, b, g)[0])


def test_lrn_of_one_image(device):
    """Of three dimensions the first are the channels, where torch.nn takes the second."""
    x = torch.randn(7, 3, 4, device=device)
    compare(t7.SpatialCrossMapLRN(3, 0.5), torch.nn.Sequential(torch.nn.Unflatten(0, (1, 7)), torch.nn.LocalResponseNorm(3, 0.5), torch.nn.Flatten(0, 1)), x)


@pytest.mark.parametrize("shape", [(2, 9, 4), (9, 4)])
@pytest.mark.parametrize("args, text", [((4, 6, 3), "4 -> 6, 3"), ((4, 6, 3, 2, 1), "4 -> 6, 3, 2, 1")])
def test_temporal(args, text, shape, device):
    ours, theirs = pair("TemporalConvolution", args, ("Conv1d", args), device, torch.float64)
    assert repr(ours) == f"weft.TemporalConvolution({text})"
    x = torch.randn(shape, device=device, dtype=torch.float64)
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    y, expected = ours(a), theirs(b.transpose(-1, -2)).transpose(-1, -2)
    close(y, expected)
    assert y.is_contiguous()
    g = torch.randn_like(y)
    for got, want in zip(torch.autograd.grad(y, (a, *ours.parameters()), g), torch.autograd.grad(expected, (b, *theirs.parameters()), g)):
        close(got, want)
    close(ours.setMode("torch", "torch", "torch")(x), expected.detach())


@pytest.mark.parametrize("labels", [torch.int64, torch.float32, torch.uint8])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", CRITERIA)
def test_criteria_count_from_one(name, weighted, labels, device):
    shape = CRITERIA[name]
    x, target = torch.randn(shape, device=device, dtype=torch.float64), torch.randint(5, (shape[0], *shape[2:]), device=device)
    weights = torch.rand(5, device=device, dtype=torch.float64) if weighted else None
    ours, theirs = getattr(t7, name)(weights), torch.nn.CrossEntropyLoss(weights)
    assert repr(ours) == f"weft.{name}()" and list(ours.state_dict()) == list(theirs.state_dict())
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    loss, expected = ours(a, (target + 1).to(labels)), theirs(b, target)
    close(loss, expected)
    close(torch.autograd.grad(loss, a)[0], torch.autograd.grad(expected, b)[0])
    close(ours.updateOutput(x[0], (target[0] + 1).to(labels)), theirs(x[:1], target[:1]))


# ---------------------------------------------------------------------------------------------- modes

MODED = [row for row in WINDOWS if "Conv" in row[0]][1::2]


@pytest.fixture
def seen(monkeypatch):
    """What ran, and under which settings: (operator, gradients wanted, pin, fastest)."""
    calls = []

    def spy(rule, *args):
        wanted = args[8] if rule is CONV_BACKWARD else None
        calls.append((str(rule.op).split(".")[1], wanted, weft._core.settings.now().pin, weft.backends.fastest))
        return real(rule, *args)
    real = _conv7.call
    monkeypatch.setattr(_conv7, "call", spy)
    return calls


def run(net, x):
    x = x.clone().requires_grad_()
    y = net(x)
    return [y, *torch.autograd.grad(y, (x, *net.parameters()), torch.ones_like(y))]


@pytest.mark.parametrize("name, args, twin, shape", [row[:4] for row in MODED])
def test_modes_of_every_convolution(name, args, twin, shape, device, seen):
    net, x = getattr(t7, name)(*args).to(device), torch.randn(shape, device=device)
    expected, before = run(net, x), weft._core.settings.now()
    assert seen == []     # without a mode the road is the usual one
    forward = "conv_transpose" if "Full" in name else "conv"
    assert net.setMode("torch", "conv_ref", "torch") is net
    for got, want in zip(run(net, x), expected):
        close(got, want)
    assert seen == [(forward, None, "torch", False), ("conv_backward", 1, "conv_ref", False), ("conv_backward", 6, "torch", False)]
    seen.clear()
    assert net.fastest() is net and net.resetMode() is net   # which takes the kernels back, not the limit
    for got, want in zip(run(net, x), expected):
        close(got, want)
    assert seen == [(forward, None, None, True), ("conv_backward", 7, None, True)]
    seen.clear()
    net.fastest(False)
    run(net, x)
    assert seen == [] and weft._core.settings.now() == before


def test_the_kernels_named_run():
    """With one gradient wanted at a time: kernels() tells of the last operator."""
    net, x = t7.SpatialConvolution(4, 4, 3, 3, 1, 1, 1, 1, 4), torch.randn(2, 4, 9, 9)

    def kernels(of_input):
        net.requires_grad_(not of_input)
        y = net(x.clone().requires_grad_(of_input))
        forward = weft.backends.kernels()
        y.sum().backward()
        return forward, weft.backends.kernels()
    usual = [kernels(True), kernels(False)]
    assert "conv_ref" not in {name for names in usual for name in names}    # the reference is never the best estimate
    net.setMode("conv_ref", "torch", "conv_ref")
    assert [kernels(True), kernels(False)] == [("conv_ref", "torch"), ("conv_ref", "conv_ref")]
    net.setMode(fmode="torch")                          # the others stay
    assert [kernels(True), kernels(False)] == [("torch", "torch"), ("torch", "conv_ref")]
    net.setMode("conv_ref", "conv_ref", "conv_ref").resetMode()
    assert [kernels(True), kernels(False)] == usual


def test_a_mode_keeps_the_pins_of_others(seen):
    """Where a module names no kernel, the pin of the process holds; and only its own calls see its own."""
    first, second = t7.SpatialConvolution(3, 4, 3, 3).setMode("torch"), t7.SpatialConvolution(4, 3, 3, 3).setMode(bwmode="conv_ref")
    with weft.backends.pin("conv_ref"):
        first(torch.randn(1, 3, 6, 6))
        assert weft._core.settings.now().pin == "conv_ref"
    seen.clear()
    run(torch.nn.Sequential(first, second), torch.randn(1, 3, 6, 6))
    assert seen == [("conv", None, "torch", False), ("conv", None, None, False), ("conv_backward", 1, None, False), ("conv_backward", 6, "conv_ref", False),
                    ("conv_backward", 7, None, False)]


def test_a_mode_ends_with_an_error(monkeypatch):
    def fail(*args):
        raise RuntimeError("enough")
    net, x = t7.SpatialConvolution(3, 4, 3, 3).setMode("torch", "torch", "torch").fastest(), torch.randn(1, 3, 6, 6, requires_grad=True)
    y, before = net(x), weft._core.settings.now()
    monkeypatch.setattr(_conv7, "call", fail)
    for call in (lambda: net(x), lambda: y.sum().backward()):
        with pytest.raises(RuntimeError, match="enough"):
            call()
        assert weft._core.settings.now() == before


def test_modes_differentiate_twice(device):
    x = torch.randn(1, 2, 4, 4, device=device, dtype=torch.float64, requires_grad=True)
    for net in (t7.SpatialConvolution(2, 2, 3, 2), t7.SpatialFullConvolution(2, 2, 2, 2, 2, 2, 0, 0, 1, 1)):
        net = net.to(device, torch.float64).setMode("torch", "conv_ref", "torch")
        inputs = (x, *net.parameters())

        def function(x, w, b):
            return torch.func.functional_call(net, {"weight": w, "bias": b}, (x,))   # noqa: B023
        assert torch.autograd.gradcheck(function, inputs) and torch.autograd.gradgradcheck(function, inputs)


def test_modes_with_frozen_parts(seen, device):
    net = t7.SpatialConvolution(3, 4, 3, 3).to(device).setMode(bdmode="torch")
    net.weight.requires_grad_(False)
    y = net(torch.randn(1, 3, 6, 6, device=device))
    y.sum().backward()
    assert net.bias.grad is not None and net.weight.grad is None and [c[:2] for c in seen] == [("conv", None), ("conv_backward", 4)]
    with torch.no_grad():
        assert not net(torch.randn(1, 3, 6, 6, device=device)).requires_grad


def test_modes_under_autocast_and_compile(device):
    net, x = t7.SpatialConvolution(3, 4, 3, 3).to(device), torch.randn(1, 3, 6, 6, device=device)
    expected = net(x)
    net.setMode("torch", "torch", "torch").fastest()
    with torch.autocast(device.type, dtype=torch.bfloat16):
        y = net(x)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), expected, rtol=5e-2, atol=5e-2)
    y.float().sum().backward()
    assert net.weight.grad.dtype == torch.float32
    close(torch.compile(net, backend="eager")(x), expected)
    complex_net = t7.SpatialConvolution(3, 4, 3, 3, dtype=torch.complex64, device=device).setMode("torch")    # left to PyTorch
    assert complex_net(x.to(torch.complex64)).dtype == torch.complex64


def test_modes_in_transforms(device):
    net, x = t7.SpatialConvolution(3, 4, 3, 3).to(device), torch.randn(2, 1, 3, 6, 6, device=device)

    def loss(w, x):
        return torch.func.functional_call(net, {"weight": w}, (x,)).square().sum()
    w = net.weight.detach()
    expected = torch.vmap(net)(x), torch.func.grad(loss)(w, x[0]), torch.vmap(torch.func.grad(loss), (None, 0))(w, x)
    net.setMode("torch", "torch", "torch")
    for got, want in zip((torch.vmap(net)(x), torch.func.grad(loss)(w, x[0]), torch.vmap(torch.func.grad(loss), (None, 0))(w, x)), expected):
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3)


def test_no_bias(device):
    net = t7.SpatialConvolution(3, 96, 11, 11, 3, 3, device=device)
    twin = torch.nn.Conv2d(3, 96, 11, 3, bias=False, device=device)
    assert net.noBias() is net and repr(net) == "weft.SpatialConvolution(3 -> 96, 11x11, 3,3) without bias"
    twin.load_state_dict(net.state_dict())
    x = torch.randn(1, 3, 20, 20, device=device)
    compare(net, twin, x)
    compare(net.setMode("torch", "torch", "torch"), twin, x)


def test_full_convolution_to_a_size(device):
    ours, theirs = pair("SpatialFullConvolution", (4, 4, 3, 3, 2, 2), ("ConvTranspose2d", (4, 4, 3, 2)), device, torch.float64)
    x = torch.randn(2, 4, 5, 5, device=device, dtype=torch.float64)
    for net in (ours, ours.setMode("torch")):
        close(net(x, output_size=(12, 11)), theirs(x, output_size=(12, 11)))


# ---------------------------------------------------------------------------------------------- recurrent

def layers(name, device, args=(4, 5, 2), **settings):
    """weft's module and its twin."""
    twin, more = RECURRENT[name]
    ours = getattr(t7, name)(*args, **settings).to(device, torch.float64)
    theirs = getattr(torch.nn, twin)(*args[:3], batch_first=settings.get("batchFirst", False), **more).to(device, torch.float64)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def first(states):
    return states[0] if isinstance(states, tuple) else states


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent(name, batch_first, device):
    ours, theirs = layers(name, device, batchFirst=batch_first)
    compare(ours, theirs, torch.randn(3, 6, 4, device=device, dtype=torch.float64), lambda result: result[0])
    compare(ours, theirs, torch.randn(6, 4, device=device, dtype=torch.float64), lambda result: result[0])
    x = torch.randn(3, 6, 4, device=device, dtype=torch.float64)
    y, last = theirs(x)
    assert torch.equal(ours.updateOutput(x), ours(x)) and not ours.hiddenOutput.requires_grad
    close(ours.hiddenOutput, first(last).detach())
    assert (ours.cellOutput is None) == ("LSTM" not in name)
    if ours.cellOutput is not None:
        close(ours.cellOutput, last[1].detach())
    close(ours(x), y)                                   # nothing is remembered unless asked for
    assert repr(ours) == f"weft.{name}(4 -> 5, 2 layers{', batchFirst' if batch_first else ''})"


@pytest.mark.parametrize("name", ["RNNReLU", "RNNTanh", "LSTM", "GRU"])
def test_states_are_remembered(name, device):
    ours, theirs = layers(name, device, args=(4, 5, 1, False, 0, True))
    a, b = torch.randn(2, 6, 3, 4, device=device, dtype=torch.float64)
    y, last = theirs(a)
    close(ours(a), y)
    close(ours(b), theirs(b, last)[0])
    assert ours.resetStates() is ours and ours.hiddenOutput is None and ours.cellOutput is None
    close(ours(b), theirs(b)[0])
    close(ours(a[:, :2]), theirs(a[:, :2])[0])          # another number of sequences starts anew
    close(ours(a[:, 0]), theirs(a[:, 0])[0])            # so does one without a batch
    last = theirs(a[:, 0])[1]
    close(ours(b[:, 0]), theirs(b[:, 0], last)[0])
    ours.resetStates()
    net = copy.deepcopy(ours)
    net(a)
    assert ours.hiddenOutput is None and "rememberStates" in repr(net) and list(net.state_dict()) == list(theirs.state_dict())
    wide = net.float()
    assert wide(a.float()).dtype == torch.float32 and wide.hiddenOutput.dtype == torch.float32


@pytest.mark.parametrize("name", ["LSTM", "GRU", "BLSTM"])
def test_states_are_given(name, device):
    ours, theirs = layers(name, device)
    x, stack = torch.randn(6, 3, 4, device=device, dtype=torch.float64), 4 if name[0] == "B" else 2
    h, c = torch.randn(2, stack, 3, 5, device=device, dtype=torch.float64).unbind()
    h.requires_grad_()
    ours.hiddenInput = h
    y, expected = ours(x), theirs(x, (h, torch.zeros_like(c)) if "LSTM" in name else h)[0]
    close(y, expected)
    close(*(torch.autograd.grad(t.sum(), h)[0] for t in (y, expected)))
    if "LSTM" in name:
        ours.cellInput = c
        close(ours(x), theirs(x, (h, c))[0])
        ours.hiddenInput = None
        close(ours(x), theirs(x, (torch.zeros_like(h), c))[0])
    close(ours.resetStates()(x), theirs(x)[0])


def test_packed_sequences(device):
    ours, theirs = layers("LSTM", device, args=(4, 5, 1, False, 0, True))
    x = torch.randn(6, 3, 4, device=device, dtype=torch.float64)
    packed = pack_padded_sequence(x, torch.tensor([2, 6, 4]), enforce_sorted=False)
    result, last = theirs(packed)
    close(pad_packed_sequence(ours(packed))[0], pad_packed_sequence(result)[0])
    close(ours.hiddenOutput, last[0].detach())
    close(pad_packed_sequence(ours(packed))[0], pad_packed_sequence(theirs(packed, last)[0])[0])


def test_persistent_warns_once(device):
    for name in RECURRENT:
        ours, theirs = layers(name, device)
        x = torch.randn(6, 3, 4, device=device, dtype=torch.float64)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert ours.setPersist(False) is ours and not ours.persistent
        with pytest.warns(UserWarning, match=f"{name}: there is no persistent kernel for it, the standard one runs") as caught:
            assert ours.setPersist(True) is ours
            close(ours(x), theirs(x)[0])
            ours.setPersist(False).setPersist()(x)
        assert len([w for w in caught if "persistent" in str(w.message)]) == 1 and ours.persistent


def test_dropout():
    net = t7.GRU(4, 5, 2, False, 0.5)
    x = torch.randn(6, 3, 4)
    assert not torch.equal(net(x), net(x)) and torch.equal(net.eval()(x), net(x)) and net.dropout == 0.5 and "dropout=0.5" in repr(net)


# ---------------------------------------------------------------------------------------------- copies

COPIED = [(row[0], row[1], row[3]) for row in WINDOWS + OTHERS] + [("TemporalConvolution", (4, 6, 3), (2, 9, 4))] + [(n, (4, 5, 2), (6, 3, 4)) for n in RECURRENT]


@pytest.mark.parametrize("name, args, shape", COPIED)
def test_copies(name, args, shape, device):
    net, x = getattr(t7, name)(*args).to(device).eval(), torch.randn(shape, device=device)
    if hasattr(net, "setMode"):
        net.setMode("torch").fastest()
    expected, stream = net(x.clone()), io.BytesIO()
    torch.save(net, stream)
    stream.seek(0)
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net)), torch.load(stream, weights_only=False)):
        assert torch.equal(other(x.clone()), expected) and repr(other) == repr(net) and type(other) is type(net)
        assert getattr(other, "_mode", None) == getattr(net, "_mode", None)


@pytest.mark.parametrize("name, args, shape", list({row[0]: row for row in COPIED}.values()))
def test_traces(name, args, shape):
    """torch.fx, and torch.compile in one graph; recurrent layers run between graphs, as their twins do."""
    net, x = getattr(t7, name)(*args).eval(), torch.randn(shape)
    expected = net(x.clone())
    assert torch.equal(torch.fx.symbolic_trace(torch.nn.Sequential(net))(x.clone()), expected)
    torch.compiler.reset()
    compiled = torch.compile(net, backend="eager", fullgraph=name not in RECURRENT)
    torch.testing.assert_close(compiled(x.clone()), expected)
    if hasattr(net, "setMode"):
        net.setMode("torch")
        traced = torch.fx.symbolic_trace(torch.nn.Sequential(net))
        torch.testing.assert_close(traced(x), expected, rtol=1e-4, atol=1e-5)
        assert [n.op for n in traced.graph.nodes if n.op.startswith("call")] == ["call_module"]


def test_criteria_in_traces():
    class Net(torch.nn.Module):
        def __init__(self, criterion):
            super().__init__()
            self.criterion = criterion

        def forward(self, x, target):
            return self.criterion(x, target)
    for name, shape in CRITERIA.items():
        net, x, target = Net(getattr(t7, name)()), torch.randn(shape), torch.ones(shape[0], *shape[2:])
        expected = net(x, target)
        assert torch.equal(torch.fx.symbolic_trace(net)(x, target), expected)
        torch.testing.assert_close(torch.compile(net, backend="aot_eager", fullgraph=True)(x, target), expected)


def test_a_small_network_trains(device):
    """The same steps of an optimiser as its twin."""
    def old():
        return torch.nn.Sequential(t7.SpatialConvolution(1, 6, 5, 5), t7.SpatialBatchNormalization(6), t7.Tanh(True), t7.SpatialMaxPooling(2, 2),
                                   t7.SpatialConvolution(6, 4, 3, 3).noBias(), t7.ReLU(True))

    def new():
        return torch.nn.Sequential(torch.nn.Conv2d(1, 6, 5), torch.nn.BatchNorm2d(6), torch.nn.Tanh(), torch.nn.MaxPool2d(2),
                                   torch.nn.Conv2d(6, 4, 3, bias=False), torch.nn.ReLU())
    nets = [make().to(device, torch.float64) for make in (old, new)]
    nets[0].load_state_dict(nets[1].state_dict())
    x, labels = torch.randn(3, 1, 14, 14, device=device, dtype=torch.float64), torch.randint(4, (3, 3, 3), device=device)
    losses = []
    for net, criterion, target in zip(nets, (t7.SpatialCrossEntropyCriterion(), torch.nn.CrossEntropyLoss()), (labels + 1, labels)):
        optimiser = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
        for _ in range(4):
            optimiser.zero_grad()
            loss = criterion(net(x), target)
            loss.backward()
            optimiser.step()
        losses.append(loss.detach())
    close(*losses)
    for p, q in zip(nets[0].parameters(), nets[1].parameters()):
        close(p.detach(), q.detach())
