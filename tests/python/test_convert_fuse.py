"""convert(fuse=True): what is fused and what is not, results and gradients in both modes, weights that change, the way back."""
from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import weft
from test_convert import picture
from test_models import batches_of, every_model, small
from training import assert_parity
from weft._convert import conversion as _conversion, fusion as _fusion
from weft._convert.fusion import is_fused

CLOSE = {"rtol": 1e-10, "atol": 1e-11}   # float64

CONVS = {
    "Conv1d": (lambda: nn.Conv1d(4, 6, 3, padding="same", bias=False), nn.BatchNorm1d, (3, 4, 9)),
    "Conv2d": (lambda: nn.Conv2d(4, 6, 3, groups=2, padding=1), nn.BatchNorm2d, (3, 4, 6, 6)),
    "Conv2d-reflect": (lambda: nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect", bias=False), nn.BatchNorm2d, (3, 4, 6, 6)),
    "Conv3d": (lambda: nn.Conv3d(6, 6, 3, groups=6), nn.BatchNorm3d, (2, 6, 4, 4, 4)),
    "ConvTranspose1d": (lambda: nn.ConvTranspose1d(4, 6, 3, 2, bias=False), nn.BatchNorm1d, (3, 4, 9)),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(4, 6, 3, 2, groups=2), nn.BatchNorm2d, (3, 4, 5, 5)),
    "ConvTranspose3d": (lambda: nn.ConvTranspose3d(6, 6, 2, 2, groups=3), nn.BatchNorm3d, (2, 6, 3, 3, 3)),
}
TAILS = {
    "relu": lambda norm: [nn.ReLU()], "relu6": lambda norm: [nn.ReLU6()],
    "norm": lambda norm: [norm(6)], "norm-relu": lambda norm: [norm(6), nn.ReLU(inplace=True)],
    "norm-hardtanh": lambda norm: [norm(6, affine=False, eps=0.1), nn.Hardtanh(-0.5, 0.7)],
    "norm-clipped": lambda norm: [norm(6), weft.nn.ClippedReLU(0.6)],
}


def lived(net):
    """The net with statistics and affine parameters that are not those of the first day."""
    generator = torch.Generator().manual_seed(2)
    for m in net.modules():
        if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.running_mean is not None:
            m.running_mean.copy_(torch.randn(m.num_features, generator=generator))
            m.running_var.copy_(torch.rand(m.num_features, generator=generator) + 0.5)
            if m.affine:
                for p in (m.weight, m.bias):
                    p.data.copy_(torch.randn(m.num_features, generator=generator))
    return net


def build(conv, tail, device, dtype=torch.float64):
    make, norm, shape = CONVS[conv]
    torch.manual_seed(1)
    net = lived(nn.Sequential(make(), *TAILS[tail](norm))).to(device, dtype).eval()
    return net, torch.randn(shape, device=device, dtype=dtype)


def trio(device, dtype=torch.float64):
    return build("Conv2d", "norm-relu", device, dtype)


def gradients(net, x):
    """Output, gradients of the input and of every parameter, and the buffers afterwards."""
    net, x = copy.deepcopy(net), x.clone().requires_grad_()
    y = net(x)
    (y * torch.linspace(-1, 1, y.numel(), device=y.device, dtype=y.dtype).view_as(y)).sum().backward()
    return [y, x.grad, *(p.grad for p in net.parameters()), *net.buffers()]


def close(got, want, **tolerance):
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, **(tolerance or CLOSE))


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("conv", CONVS)
def test_chain(conv, tail, device):
    net, x = build(conv, tail, device)
    before, text, expected = picture(net), repr(net), gradients(net, x)
    trained = gradients(copy.deepcopy(net).train(), x)
    state = copy.deepcopy(net.state_dict())
    assert weft.convert(net, fuse=True, all=True) is net and all(is_fused(m) for m in net)
    assert list(net.state_dict()) == list(state) and all(torch.equal(v, state[k]) for k, v in net.state_dict().items())
    with torch.no_grad():
        close([net(x), net(x)], [expected[0]] * 2)   # the second finds the weights
    for other in (net, copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        close(gradients(other, x), expected)
        assert repr(other) == repr(net) and all(is_fused(m) for m in other)
        close(gradients(copy.deepcopy(other).train(), x), trained)
        with torch.no_grad():
            close([copy.deepcopy(other).train().eval()(x)], [expected[0]])
        assert repr(weft.convert(copy.deepcopy(other), "torch")) == text.replace("weft.ClippedReLU(ceiling=0.6)", "Hardtanh(min_val=0.0, max_val=0.6)")
    weft.convert(net, "torch", exclude=lambda m: type(m) is weft.nn.ClippedReLU)
    assert picture(net) == before and repr(net) == text
    after = gradients(net, x)
    close(after[:1], expected[:1], rtol=0, atol=0)
    close(after, expected)   # gradients of PyTorch on GPUs may differ in the last bits from run to run


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.bfloat16, 3e-2), (torch.float16, 4e-3)], ids=["f32", "bf16", "f16"])
def test_types(dtype, tolerance, device):
    net, x = trio(device)
    expected = net(x)
    y = weft.convert(net, fuse=True, all=True).to(dtype)(x.to(dtype))
    assert y.dtype == dtype
    torch.testing.assert_close(y.double(), expected, rtol=tolerance, atol=4 * tolerance)


@pytest.mark.parametrize("conv, norm, shape", [(nn.Conv2d, nn.BatchNorm1d, (2, 4, 6, 6)), (nn.Conv2d, nn.BatchNorm3d, (2, 4, 6, 6)), (nn.Conv1d, nn.BatchNorm2d, (2, 4, 6)),
                                               (nn.Conv3d, nn.BatchNorm2d, (2, 4, 5, 5, 5)), (nn.ConvTranspose2d, nn.BatchNorm1d, (2, 4, 6, 6))])
def test_a_normalisation_of_another_rank_is_not_folded(conv, norm, shape):
    """The net raises PyTorch's error after convert() as before."""
    net, errors = nn.Sequential(conv(4, 6, 3), norm(6), nn.ReLU()).eval(), []
    for fused in (False, True):
        weft.convert(net, fuse=fused, all=fused, verbose=False)
        with pytest.raises(ValueError) as caught:
            net(torch.randn(shape))
        errors.append(str(caught.value))
        assert not any(is_fused(m) for m in net)
    assert errors[0] == errors[1]


def test_print():
    net, _ = trio("cpu")
    lines = repr(weft.convert(net, fuse=True, all=True)).split("\n")
    assert lines[1].endswith("padding=(1, 1), groups=2, folds BatchNorm2d, act='relu')") and lines[1].startswith("  (0): weft.Conv2d(4, 6,")
    assert lines[2].startswith("  (1): weft.Identity(BatchNorm2d(6, eps=1e-05,") and lines[3] == "  (2): weft.Identity(ReLU(inplace=True))"
    assert [(row.module, row.decision) for row in weft.convert.last_report.rows] == [("0 + 1 + 2", "fused")]
    net, _ = build("Conv1d", "relu6", "cpu")
    assert "padding=same, bias=False, act='clip', clip=(0.0, 6.0))" in repr(weft.convert(net, fuse=True, all=True))


def test_again_and_without(device):
    net, x = trio(device)
    expected = net(x)
    shown = repr(weft.convert(net, fuse=True, all=True))
    assert repr(weft.convert(net, fuse=True, all=True)) == shown
    weft.convert(net, all=True)
    assert [type(m) for m in net] == [weft.nn.Conv2d, weft.nn.BatchNorm2d, weft.nn.ReLU]
    torch.testing.assert_close(net(x), expected, **CLOSE)


def test_modules_of_weft_are_fused_and_back(device):
    """They have attributes of their own in the places of the fused ones."""
    net = nn.Sequential(weft.nn.Conv2d(4, 6, 3), weft.nn.BatchNorm2d(6), weft.nn.ReLU(), weft.nn.Conv2d(6, 4, 1, clip=(-1.0, 1.0)), weft.nn.ReLU())
    net = net.double().to(device).eval()
    before, x = picture(net), torch.randn(1, 4, 7, 7, device=device, dtype=torch.float64)
    expected = net(x)
    weft.convert(net, fuse=True)
    assert [is_fused(m) for m in net] == [True] * 5
    torch.testing.assert_close(net(x), expected, **CLOSE)
    weft.convert(net, exclude=lambda module: True)
    assert picture(net) == before


def test_an_error_while_fusing_leaves_the_net_as_it_was(monkeypatch, device):
    """The first chain is fused by then: its modules have other classes and attributes that they had not."""
    net = nn.Sequential(trio(device)[0], nn.Conv2d(6, 6, 1), nn.ReLU()).to(device).eval()
    before, made = picture(net), _fusion.fuse

    def fail(chain):
        made(chain)
        monkeypatch.setattr(_conversion, "fuse", refuse)

    def refuse(chain):
        raise KeyboardInterrupt
    monkeypatch.setattr(_conversion, "fuse", fail)
    with pytest.raises(KeyboardInterrupt):
        weft.convert(net, fuse=True, all=True)
    assert _conversion.fuse is refuse and picture(net) == before


# ---------------------------------------------------------------------------------------------- which modules

class Taps(nn.Module):
    """Two branches from one convolution; a second convolution whose activation nobody else reads."""

    def __init__(self):
        super().__init__()
        self.a, self.act = nn.Conv2d(4, 4, 3, padding=1), nn.ReLU()
        self.b, self.last = nn.Conv2d(4, 4, 1), nn.ReLU()

    def forward(self, x):
        y = self.a(x)
        return self.last(self.b(self.act(y) + y))


class Auxiliary(nn.Module):
    """In training the value between the two has a second reader."""

    def __init__(self):
        super().__init__()
        self.conv, self.act = nn.Conv2d(4, 4, 1), nn.ReLU()

    def forward(self, x):
        y = self.conv(x)
        return (self.act(y), y) if self.training else self.act(y)


class Branching(nn.Module):
    """A condition on values stops torch.fx; the parts inside can be traced."""

    def __init__(self):
        super().__init__()
        self.conv, self.act, self.calls = nn.Conv2d(4, 4, 1), nn.ReLU(), 0
        self.inside = nn.ModuleList([nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU()), Taps()])

    def forward(self, x):
        self.calls += 1
        y = self.act(self.conv(x))
        return self.inside[0](y) if y.sum() > 0 else self.inside[1](y)


class Functions(nn.Module):
    """A function after the normalisation: that much is folded."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)

    def forward(self, x):
        return F.relu(self.norm(self.conv(x)))


def hooked():
    net = nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU(), nn.Sequential(nn.Conv2d(4, 4, 1)), nn.ReLU(), nn.Conv2d(4, 4, 1), nn.ReLU())
    net[1].register_forward_hook(lambda module, args, y: None)
    net[2].register_forward_hook(lambda module, args, y: None)   # sees what goes from the second convolution to its activation
    return net


def shared():
    act = nn.ReLU()
    return nn.Sequential(nn.Conv2d(4, 4, 1), act, nn.Conv2d(4, 4, 1), act, nn.Conv2d(4, 4, 1), nn.ReLU())


def twice():
    conv = nn.Conv2d(4, 4, 1)
    return nn.Sequential(conv, nn.ReLU(), conv, nn.ReLU6(), nn.Conv2d(4, 4, 1), nn.ReLU())


FUSED = {
    "taps": (Taps, ["b", "last"]),
    "auxiliary": (Auxiliary, []),
    "branching": (Branching, ["inside.0.0", "inside.0.1", "inside.1.b", "inside.1.last"]),
    "branching-inside": (lambda: nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU(), Branching()),
                         ["0", "1", "2.inside.0.0", "2.inside.0.1", "2.inside.1.b", "2.inside.1.last"]),
    "functions": (Functions, ["conv", "norm"]),
    "hooked": (hooked, ["4", "5"]),
    "shared": (shared, ["4", "5"]),
    "twice": (twice, ["4", "5"]),
    "norm-in-training": (lambda: nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4).train(), nn.ReLU()), []),
    "norm-without-statistics": (lambda: nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4, track_running_stats=False), nn.ReLU()), []),
    "norm-first": (lambda: nn.Sequential(nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1), nn.Sigmoid()), []),
    "act-first": (lambda: nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU(), nn.BatchNorm2d(4)), ["0", "1"]),
    "act-twice": (lambda: nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU(), nn.ReLU6()), ["0", "1"]),
    "has-act": (lambda: nn.Sequential(weft.nn.Conv2d(4, 4, 1, act="clip"), nn.BatchNorm2d(4), nn.ReLU()), []),
    "nested": (lambda: nn.Sequential(nn.Sequential(nn.Conv2d(4, 4, 1)), nn.Sequential(nn.BatchNorm2d(4), nn.ReLU())), ["0.0", "1.0", "1.1"]),
    "patched": (lambda: patched(), []),
}


def patched():
    net = nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU())
    net[1].forward = lambda x: x + 1
    return net


@pytest.mark.parametrize("name", FUSED)
def test_which(name, device):
    make, expected = FUSED[name]
    torch.manual_seed(0)
    net, x = make().double().to(device), torch.randn(2, 4, 5, 5, dtype=torch.float64, device=device)
    if name != "norm-in-training":
        net.eval()
    lived(net)
    modes, counts = [m.training for m in net.modules()], [getattr(m, "calls", 0) for m in net.modules()]
    copies = [copy.deepcopy(net) for _ in range(2)]
    weft.convert(net, fuse=True, all=True)
    assert [key for key, m in net.named_modules() if is_fused(m)] == expected
    assert [m.training for m in net.modules()] == modes and [getattr(m, "calls", 0) for m in net.modules()] == counts
    close([copy.deepcopy(net)(x)], [copies[0](x)])
    want, got = copies[1].train()(x), copy.deepcopy(net).train()(x)
    close(got if isinstance(got, tuple) else [got], want if isinstance(want, tuple) else [want])


def test_a_normalisation_of_other_channels_is_left_alone():
    """One value a channel would fit any number of them: what was wrong stays wrong."""
    net = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(1)).eval()
    weft.convert(net, fuse=True, all=True)
    assert not any(is_fused(m) for m in net.modules())
    with pytest.raises(RuntimeError):
        net(torch.randn(2, 4, 5, 5))


def test_excluded():
    for i, fused in ((0, []), (1, []), (2, [0, 1])):
        net, _ = trio("cpu")
        weft.convert(net, exclude=lambda m: m is net[i], fuse=True, all=True)   # noqa: B023
        assert [k for k, m in enumerate(net) if is_fused(m)] == fused and type(net[i]).__module__.startswith("torch.")


# ---------------------------------------------------------------------------------------------- weights that change

def _loaded(net):
    net.load_state_dict({k: v + 0.25 for k, v in net.state_dict().items()})


def _assigned(net):
    net.load_state_dict({k: v + 0.25 for k, v in net.state_dict().items()}, assign=True)


def _written(net):
    with torch.no_grad():
        net[0].weight.mul_(2)
        net[1].running_var.add_(0.5)


def _data(net):
    net[1].weight.data.mul_(2)
    net.eval()


def _replaced(net):
    net[0].weight = nn.Parameter(net[0].weight.detach() * 3)


def _rounded(net):
    net.bfloat16().double()


def _stepped(net):
    """A fused optimiser writes without counting; the normalisation is frozen, so its gradients come from the folded weights."""
    x = torch.ones(1, 4, 5, 5, dtype=net[0].weight.dtype, device=net[0].weight.device)
    optimiser = torch.optim.SGD(net.parameters(), 0.1, fused=True)
    net(x).square().sum().backward()
    with torch.no_grad():
        net(x)
    optimiser.step()


def _trained(net):
    """Steps of a net in training mode: the statistics move."""
    optimiser = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    net.train()
    for step in range(3):
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(3, 4, 6, 6, dtype=torch.float64, generator=generator).to(net[0].weight.device)
        optimiser.zero_grad()
        net(x).square().sum().backward()
        optimiser.step()
    net.eval()


@pytest.mark.parametrize("change", [_loaded, _assigned, _written, _data, _replaced, _rounded, _stepped, _trained], ids=lambda f: f.__name__[1:])
@torch.no_grad()
def test_weights_that_change(change, device):
    """The folded weights follow, and the net with its own modules agrees."""
    net, x = trio(device)
    other = copy.deepcopy(net)
    before = weft.convert(net, fuse=True, all=True)(x)   # the weights are folded here
    for each in (net, other):
        with torch.enable_grad():
            change(each)
    expected = other(x)
    assert not torch.allclose(before, expected, rtol=1e-9, atol=0)
    torch.testing.assert_close(net(x), expected, **CLOSE)
    weft.convert(net, "torch")
    for p, q in zip(net.state_dict().values(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(p, q, **CLOSE)


@torch.no_grad()
def test_folds_once(device, monkeypatch):
    """Without gradients the weights are folded at the first call only; copies fold for themselves."""
    from weft._convert import fusion as _fusion
    folds, fold = [], _fusion._folded
    monkeypatch.setattr(_fusion, "_folded", lambda *args: folds.append(1) or fold(*args))
    net, x = trio(device)
    weft.convert(net, fuse=True, all=True)
    for expected in (1, 1):
        net(x)
        assert len(folds) == expected
    net.eval()(x)
    assert len(folds) == 2
    assert net[0]._fusion.kept is not None and copy.deepcopy(net)[0]._fusion.kept is None
    assert net.double()[0]._fusion.kept is None   # memory that moved may come back to its old address with other values


def test_inference_mode_and_functional_call(device):
    net, x = trio(device)
    plain = copy.deepcopy(net)
    weft.convert(net, fuse=True, all=True)
    with torch.inference_mode():
        torch.testing.assert_close(net(x), plain(x), **CLOSE)
    with torch.no_grad():
        torch.testing.assert_close(net(x), plain(x), **CLOSE)
    torch.testing.assert_close(net(x), plain(x), **CLOSE)
    net.requires_grad_(False).eval()
    with torch.inference_mode():
        net(x)
    leaves = [x.clone().requires_grad_() for _ in range(2)]
    # weights folded in inference mode are none for backward
    close(*(torch.autograd.grad(each(leaf).square().sum(), leaf) for each, leaf in zip((net, plain), leaves)))
    net.requires_grad_()
    other = {k: v.detach() * 2 for k, v in net.named_parameters()}
    with torch.no_grad():
        torch.testing.assert_close(torch.func.functional_call(net, other, (x,)), torch.func.functional_call(plain, other, (x,)), **CLOSE)
        torch.testing.assert_close(net(x), plain(x), **CLOSE)


def test_compile_export_and_trace():
    torch.compiler.reset()
    net, x = trio("cpu")
    expected = net(x)
    weft.convert(net, fuse=True, all=True)
    torch.testing.assert_close(torch.compile(net, backend="eager", fullgraph=True)(x), expected, **CLOSE)
    torch.testing.assert_close(torch.export.export(net, (x,)).module()(x), expected, **CLOSE)
    traced = torch.fx.symbolic_trace(net)
    assert [n.target for n in traced.graph.nodes if n.op == "call_module"] == ["0"]
    torch.testing.assert_close(traced(x), expected, **CLOSE)


# ---------------------------------------------------------------------------------------------- the models

# Convolutions that take in what follows: all of AlexNet's and VGG's, those of ResNet and X3D before their sums, none of ConvNeXt (LayerNorm, GELU).
@every_model
def test_model_fused_and_back(name, device):
    model, inputs = small(name, device, torch.float64)
    lived(model).eval()
    before, text, expected = picture(model), repr(model), model(*inputs)
    weft.convert(model, fuse=True, all=True)
    follow = [m for m in model.modules() if is_fused(m) and "_fusion" in m.__dict__]
    assert bool(follow) == (name not in ("convnext_t", "partial_unet", "lenet5"))
    torch.testing.assert_close(model(*inputs), expected, rtol=1e-8, atol=1e-9)
    with torch.no_grad():
        torch.testing.assert_close(model(*inputs), expected, rtol=1e-8, atol=1e-9)
    weft.convert(model, "torch")
    assert picture(model) == before and repr(model) == text and torch.equal(model(*inputs), expected)


@pytest.mark.parametrize("name", ["resnet34", "alexnet"])
def test_fused_model_trains_alike(name, device):
    model, _ = small(name, device, torch.float64)
    assert_parity(model, weft.convert(copy.deepcopy(model).eval(), fuse=True, all=True), 4, 0, batches_of(name))
