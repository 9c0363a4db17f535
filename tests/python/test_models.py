"""The networks of examples/models: sizes as published, forward and backward, copies, layouts; and that the parity check of training.py can tell."""
from __future__ import annotations

import copy
import doctest
import importlib
import io
import math
import pkgutil
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
import models  # noqa: E402
from models import MODELS  # noqa: E402
from models.partial_unet import PartialConv2d  # noqa: E402
from training import Batch, assert_parity, made_up, train  # noqa: E402

every_model = pytest.mark.parametrize("name", MODELS)

# Trainable parameters: of the papers' or their authors' releases; those of MobileNet (without norm), the U-Net and LeNet follow from the layer tables.
PARAMETERS = {
    "mobilenet_v1": 4_210_088, "convnext_t": 28_589_128, "efficientnet_b0": 5_288_548, "x3d_s": 3_794_322, "partial_unet": 32_859_796,
    "lenet5": 61_706, "alexnet": 61_100_840, "vgg16_bn": 138_365_992, "resnet34": 21_797_672,
}
# Output of the layer before the head's pooling for the benchmark's image, batch 1: strides and padding as published.
LAST_MAP = {
    "mobilenet_v1": (1024, 7, 7), "convnext_t": (768, 7, 7), "efficientnet_b0": (1280, 7, 7), "x3d_s": (432, 13, 5, 5),
    "alexnet": (256, 6, 6), "vgg16_bn": (512, 7, 7), "resnet34": (512, 7, 7),
}


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def small(name: str, device: torch.device, dtype: torch.dtype = torch.float32, seed: int = 0) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    torch.manual_seed(seed)
    example = MODELS[name]
    model, inputs = example.build(**example.small), example.inputs(example.small_shape)
    return model.to(device, dtype), tuple(x.to(device, dtype) for x in inputs)


def batches_of(name: str) -> list[Batch]:
    return made_up(MODELS[name].small_shape, MODELS[name].small.get("num_classes"), 0)


def channels_last(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous(memory_format=torch.channels_last if x.dim() == 4 else torch.channels_last_3d)


def channels_last_model(model: nn.Module) -> nn.Module:
    """Convolution weights of a copy in channels-last; `Module.to` takes one format for all, a 3D network has 5D weights."""
    model = copy.deepcopy(model)
    for p in model.parameters():
        if p.dim() >= 4:
            p.data = channels_last(p.data)
    return model


@every_model
def test_published_size(name):
    with torch.device("meta"):
        assert count(MODELS[name].build()) == PARAMETERS[name]


def test_size_of_the_two_column_alexnet():
    with torch.device("meta"):
        model = models.alexnet(year=2012)
        assert count(model) == 60_965_224
        assert model(torch.empty(1, 3, 227, 227)).shape == (1, 1000)
        assert sum(isinstance(m, nn.LocalResponseNorm) for m in model) == 2
    with pytest.raises(ValueError, match="year: got 2013, allowed are 2012, 2014"):
        models.alexnet(year=2013)


@pytest.mark.parametrize("name", LAST_MAP)
def test_strides(name):
    seen = {}
    with torch.device("meta"):
        model = MODELS[name].build()
        heads = [m for m in model if isinstance(m, (nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d))]
        heads[-1].register_forward_pre_hook(lambda module, args: seen.update(shape=args[0].shape))
        assert model(torch.empty(1, *MODELS[name].shape[1:])).shape == (1, 400 if name == "x3d_s" else 1000)
    assert seen["shape"] == (1, *LAST_MAP[name])


@every_model
@pytest.mark.parametrize("training", [True, False])
def test_forward_and_backward(name, training, device):
    model, inputs = small(name, device)
    model.train(training)
    y = model(*inputs)
    assert y.shape == (MODELS[name].small_shape if MODELS[name].masked else (4, 10)) and y.isfinite().all()
    y.square().mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@every_model
def test_every_parameter_gets_a_gradient(name, device):
    model, _ = small(name, device)
    train(model, 3, 0, batches_of(name))   # a norm that starts at 0 shuts its branch for a step
    assert [key for key, p in model.named_parameters() if not p.grad.any()] == []


@every_model
def test_seed_decides(name, device):
    (one, x), (two, _), (three, _) = (small(name, device, seed=seed) for seed in (1, 1, 2))
    outputs = []
    for model in (one, two, three):
        torch.manual_seed(5)
        outputs.append(model(*x))   # in training: dropout follows the seed too
    assert torch.equal(outputs[0], outputs[1]) and not torch.equal(outputs[0], outputs[2])


@every_model
def test_state_round_trip(name, device):
    model, inputs = small(name, device)
    model(*inputs)   # moves the running statistics
    stream = io.BytesIO()
    torch.save(model.state_dict(), stream)
    stream.seek(0)
    fresh, _ = small(name, device, seed=3)
    assert fresh.load_state_dict(torch.load(stream, map_location=device)).missing_keys == []
    assert torch.equal(fresh.eval()(*inputs), model.eval()(*inputs))


@every_model
def test_channels_last(name, device):
    model, inputs = small(name, device, torch.float64)
    model.eval()
    expected = model(*inputs)
    expected.square().mean().backward()
    other = channels_last_model(model)
    y = other(*(channels_last(x) for x in inputs))
    y.square().mean().backward()
    torch.testing.assert_close(y, expected, rtol=1e-9, atol=1e-11)
    for (key, p), q in zip(other.named_parameters(), model.parameters()):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-9, atol=1e-11, msg=lambda text, key=key: f"{key}: {text}")


@every_model
def test_modules_are_found_once(name):
    """A converter swaps modules in place: each stands in one place, and what computes is torch.nn's or one of the few defined beside the models."""
    model, _ = small(name, torch.device("cpu"))
    assert len(list(model.named_modules(remove_duplicate=False))) == len(list(model.modules()))
    own = {type(m).__name__ for m in model.modules() if not next(m.children(), None) and not type(m).__module__.startswith("torch.nn.")}
    assert own <= {"ChannelNorm", "StochasticDepth", "PartialConv2d"}


def test_initialisation():
    """What the papers say, on layers wide enough for the estimate: the standard deviation of n normal draws is within 5 / sqrt(2n) of the true one."""
    torch.manual_seed(0)
    net = {name: MODELS[name].build(**(MODELS[name].small | {"width": 0.5} if name != "lenet5" else {})) for name in MODELS if not MODELS[name].masked}
    expected = [
        (net["mobilenet_v1"][0], (2 / 27) ** 0.5), (net["mobilenet_v1"][4], (2 / 16) ** 0.5), (net["resnet34"][0], (2 / (49 * 32)) ** 0.5),
        (net["x3d_s"][1], (2 / 5) ** 0.5), (net["efficientnet_b0"][3].branch[0], (2 / 9) ** 0.5), (net["alexnet"][3], 0.01), (net["alexnet"][15], 0.01),
        (net["vgg16_bn"][3], (2 / (9 * 64)) ** 0.5), (net["lenet5"][3], 2.4 / 150 / 3 ** 0.5), (net["x3d_s"][-1], 0.01),
    ]
    for layer, std in expected:
        n = layer.weight.numel()
        assert abs(layer.weight.std().item() / std - 1) < 5 / (2 * n) ** 0.5, f"{layer}: std {layer.weight.std():.4g}, expected {std:.4g}"
    assert net["alexnet"][3].bias.eq(1).all() and net["alexnet"][0].bias.eq(0).all()
    block = net["convnext_t"][2]
    assert block.scale.eq(1e-6).all() and abs(block.expand.weight.std().item() - 0.02) < 1e-3
    assert net["x3d_s"][4].branch[-1].weight.eq(0).all()


@pytest.mark.parametrize("stride, padding, bias, planes", [(1, 1, True, 1), (2, 2, False, 3), (2, 1, True, 3), (1, 0, False, 1)])
def test_partial_convolution_is_its_definition(stride, padding, bias, planes):
    conv = PartialConv2d(3, 4, 3, stride, padding, bias).double()
    x, mask = torch.randn(2, 3, 6, 7, dtype=torch.float64), torch.rand(2, planes, 6, 7).gt(0.6).double()
    mask[:, :, :4, :4] = 0   # some windows are empty
    if bias:
        nn.init.normal_(conv.bias)
    y, new_mask = conv(x, mask)
    assert new_mask.shape == (2, 1, *y.shape[2:]) and set(new_mask.unique().tolist()) == {0.0, 1.0} and not new_mask.requires_grad
    full = mask.expand(2, 3, 6, 7)
    for n, o, i, j in ((n, o, i, j) for n in range(2) for o in range(4) for i in range(y.shape[2]) for j in range(y.shape[3])):
        taps = [(c, a, b, i * stride - padding + a, j * stride - padding + b) for c in range(3) for a in range(3) for b in range(3)]
        known = [t for t in taps if 0 <= t[3] < 6 and 0 <= t[4] < 7 and full[n, t[0], t[3], t[4]] == 1]
        dot = math.fsum(conv.weight[o, c, a, b].item() * x[n, c, h, w].item() for c, a, b, h, w in known)
        want = dot * 27 / len(known) + (conv.bias[o].item() if bias else 0) if known else 0.0
        assert new_mask[n, 0, i, j] == bool(known) and abs(y[n, o, i, j].item() - want) < 1e-6 * (1 + abs(want))   # the definition's 1e-8 is 1e-8 of S = 1


def test_unet_refuses_odd_sizes():
    with pytest.raises(ValueError, match=r"x: got \(1, 3, 12, 16\), allowed are heights and widths that are multiples of 8"):
        models.partial_unet(widths=(8, 8, 8))(torch.ones(1, 3, 12, 16), torch.ones(1, 1, 12, 16))


def test_unet_ignores_what_is_in_the_holes(device):
    model, (x, mask) = small("partial_unet", device)
    torch.testing.assert_close(model.eval()(x + 100 * (1 - mask), mask), model(x, mask), rtol=0, atol=0)


@pytest.mark.parametrize("name, lr", [("convnext_t", 0.003), ("efficientnet_b0", 0.003), ("x3d_s", 0.01), ("partial_unet", 0.03), ("resnet34", 0.01)])
def test_learns(name, lr, device):
    """Loss on the patterns of made_up: the last round of the four batches against the first."""
    model, _ = small(name, device)
    losses = train(model, 32, 0, batches_of(name), lr)
    assert sum(losses[-4:]) < 0.75 * sum(losses[:4])


@every_model
def test_parity_between_layouts(name, device):
    """The same network in channels-last runs other kernels: the curves differ, by rounding."""
    model, _ = small(name, device)
    assert_parity(model, channels_last_model(model), 6, 0, batches_of(name))


@pytest.mark.parametrize("name", ["lenet5", "partial_unet", "resnet34"])
def test_parity_in_double(name, device):
    model, _ = small(name, device, torch.float64)
    assert_parity(model, channels_last_model(model), 10, 0, batches_of(name))


FLAWS = {
    "value": lambda module, args, y: y * 1.0001,
    "gradient": lambda module, args, y: y + 1e-2 * (y - y.detach()),   # the value is y, the gradient 1.01 times
}


@pytest.mark.parametrize("flaw", FLAWS)
@pytest.mark.parametrize("name, dtype", [("lenet5", torch.float64), ("mobilenet_v1", torch.float64), ("resnet34", torch.float64),
                                         ("resnet34", torch.float32), ("efficientnet_b0", torch.float32)])
def test_parity_finds_a_flaw(name, dtype, flaw, device):
    """The second layer off by 1e-4, or its gradient by 1e-2. Six steps in float32 show that only in the models that learn fast."""
    model, _ = small(name, device, dtype)
    other = copy.deepcopy(model)
    other[1].register_forward_hook(FLAWS[flaw])
    with pytest.raises(AssertionError, match=r"step \d+: loss .* apart, allowed is"):
        assert_parity(model, other, 6, 0, batches_of(name))


@pytest.mark.parametrize("module", ["models", *(f"models.{m.name}" for m in pkgutil.iter_modules(models.__path__))])
def test_docstring_examples(module):
    result = doctest.testmod(importlib.import_module(module))
    assert result.attempted > 0 and result.failed == 0
