"""Sparse convolutions in their modes, nets of them, wrong input, documents and the benchmark script."""
from __future__ import annotations

import copy
import doctest
import math
import pickle
import re
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.utils import prune as torch_prune

import weft
import weft.nn.sparse_conv
import weft.nn.sparse_model
from cases import DTYPES, close
from fake_clock import FakeTime
from test_sparse_modules import dense_of, ran, small, thinned
from weft._bench import clock as _clock
from weft.sparse import Sparse_modes

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples"))
import sparse_benchmark  # noqa: E402
from models import MODELS  # noqa: E402

SUCCESS = "SUCCESS => Same Outputs"


@pytest.fixture(autouse=True)
def _quick():
    with weft.backends.flags(measure_seconds=1e-3):
        yield


def faked(monkeypatch, dense_ms, sparse_ms):
    """Measurements come out so, and are counted."""
    seen = []

    def measure(runs, device):
        seen.append([run() for run in runs.values()])
        return weft.nn.sparse_conv.Timing(dense_ms, sparse_ms)
    monkeypatch.setattr(weft.nn.sparse_conv, "measure", measure)
    return seen


# ---------------------------------------------------------------- modes
def test_modes_have_the_old_numbers():
    names = ("Training", "Inference_Vanilla", "Inference_Sparse", "Test", "Benchmark", "Calibration")
    assert {m.name: m.value for m in Sparse_modes} == {name: i for i, name in enumerate(names, 1)}
    module, _ = small()
    module.set_mode(4)
    assert module._mode is Sparse_modes.Test
    module.set_mode()
    assert module._mode is Sparse_modes.Training


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d)[6:])
@pytest.mark.parametrize("sparsity", [0.0, 0.6, 1.0])
def test_test_mode(dtype, sparsity, device, capsys):
    module, x = small(device, sparsity, act="relu")
    module.to(dtype).set_mode(Sparse_modes.Test)
    y = module(x.to(dtype))
    assert capsys.readouterr().out == SUCCESS + "\n"
    close(y, nn.functional.conv2d(x.double(), module.weight.double(), module.bias.double(), padding=1).relu(), 4 * 36)
    y.sum().backward()
    module._kept.gathered = lambda w: weft.sparse.from_dense(w.detach() + 0.1)   # a sparse side that is wrong
    with pytest.raises(RuntimeError, match=r"SparseConv2d: dense and sparse outputs are .* apart, allowed for \w+: .*; after weights were written to, refresh"):
        module(x.to(dtype))


def test_test_mode_finds_a_pattern_that_is_out_of_date(capsys):
    module, x = small()
    module.set_mode(Sparse_modes.Test)
    at = (module.weight == 0).nonzero()[0].tolist()
    module.weight.data[tuple(at)] = 0.1
    with pytest.raises(RuntimeError, match="outputs are .* apart"):
        module(x)
    module.refresh()
    module(x)
    assert capsys.readouterr().out == SUCCESS + "\n"


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_test_mode_with_special_values(value, capsys):
    """0 times NaN or infinity is NaN in the dense sum only; a NaN that only the sparse side has is an error."""
    module, x = small()
    module.set_mode(Sparse_modes.Test)
    x[0, 0, 3, 3] = value
    assert not module(x).isfinite().all() and SUCCESS in capsys.readouterr().out
    for other in (torch.full_like(x, value), x[:0]):   # nothing to compare
        module(other)
        assert SUCCESS in capsys.readouterr().out
    module._kept.gathered = lambda w: weft.sparse.from_dense(torch.full_like(w, float("nan")))
    with pytest.raises(RuntimeError, match="are nan apart"):
        module(x)


def test_what_test_mode_allows_is_of_one_sum():
    """Filters side by side have no more rounding than one: each result is a sum of one filter's terms."""
    x, one = torch.randn(1, 4, 6, 6), torch.randn(1, 4, 3, 3)
    y = nn.functional.conv2d(x, one)
    allowed = [weft.nn.sparse_conv.apart(y.expand(-1, n, -1, -1), y.expand(-1, n, -1, -1), x, one.expand(n, -1, -1, -1), None, terms=36 * n) for n in (1, 2, 64)]
    assert allowed[0] == allowed[1] == allowed[2] and allowed[0][0] == 0
    size = x.abs().max().item() * one.abs().sum().item()
    eps = torch.finfo(torch.float32).eps
    assert allowed[0][1] == pytest.approx(4 * eps * (y.abs().max().item() + math.sqrt(36) * size), rel=1e-5)


def test_benchmark_mode_prints_a_row(device, capsys):
    module, x = small(device)
    module.set_mode(Sparse_modes.Benchmark)
    with torch.no_grad():
        torch.testing.assert_close(module(x), dense_of(module, x), rtol=1e-4, atol=1e-5)
    head, row = capsys.readouterr().out.splitlines()
    assert head.split() == ["layer", "input", "sparsity", "measured", "dense", "ms", "sparse", "ms", "ratio", "keeps"]
    name, shape, share, what, dense, sparse, ratio, keeps = row.split()
    assert (name, shape, share, what, keeps) == ("SparseConv2d", "2x4x7x6", "0.602", "fwd", "-") and module.decision is None
    timing = module._row.timing
    assert timing.dense_ms > 0 and timing.sparse_ms > 0 and timing.ratio == pytest.approx(timing.dense_ms / timing.sparse_ms)
    assert [dense, sparse, ratio] == [f"{timing.dense_ms:.3f}", f"{timing.sparse_ms:.3f}", f"{timing.ratio:.2f}"]
    module(x)
    assert "fwd + bwd" in capsys.readouterr().out


@pytest.mark.parametrize("times, side", [((1.0, 2.0), "dense"), ((2.0, 1.0), "sparse")])
def test_calibration_keeps_what_was_faster(times, side, device, monkeypatch):
    module, x = small(device)
    seen = faked(monkeypatch, *times)
    module.set_mode(Sparse_modes.Calibration)
    with torch.no_grad():
        module(x)
    assert len(seen) == 1 and module.decision == side and module._row.kept == side
    for mode in (Sparse_modes.Training, Sparse_modes.Inference_Sparse):
        module.set_mode(mode)
        for other in (x, x[:1], x[..., :5]):          # other shapes keep to it
            assert ("sparse" in ran(module, other)) == (side == "sparse")
    y = module(x)
    y.sum().backward()
    assert len(seen) == 1 and torch.equal(module.weight.grad != 0, module.weight != 0)
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert other.decision == side and ("sparse" in ran(other, x)) == (side == "sparse")
    module.refresh()
    assert module.decision == side                    # the same weights are 0
    weft.prune.magnitude(module, 0.9)
    assert module.decision is None and "sparse" in ran(module, x)


def test_gradients_are_calibrated_apart(monkeypatch):
    module, x = small()
    module.set_mode(Sparse_modes.Calibration)
    faked(monkeypatch, 1.0, 2.0)
    module(x)
    assert module._row.what == "fwd + bwd"
    faked(monkeypatch, 2.0, 1.0)
    ran(module, x)
    module.set_mode()
    assert "sparse" in ran(module, x) and module.decision == "sparse"
    for other in (x, x[:1]):
        module(other)
        assert "sparse" not in weft.backends.kernels() and "sparse" in ran(module, other)


def test_backends_benchmark_measures_once_for_each_problem(monkeypatch):
    module, x = small()
    seen = faked(monkeypatch, 1.0, 2.0)
    assert "sparse" in ran(module, x) and not seen
    with weft.backends.flags(benchmark=True):
        for _ in range(2):
            assert "sparse" not in ran(module, x)
        assert len(seen) == 1
        ran(module, x[:1])
        ran(module, x.to(memory_format=torch.channels_last))
        assert len(seen) == 3
        ran(module.to(torch.bfloat16), x.bfloat16())
        ran(module.to(torch.float32), x)
        assert len(seen) == 4
        module(x)
        assert len(seen) == 5, "with a gradient it is another problem"
    assert "sparse" not in ran(module, x)


def test_a_calibration_is_of_the_places_of_the_zeros(monkeypatch):
    """As many in each row, at other places: another problem. The same places with other values: the same one."""
    module, x = weft.nn.SparseConv2d(4, 6, 3, padding=1), torch.randn(2, 4, 7, 6)
    module.weight.data[:, :2] = 0
    faked(monkeypatch, 1.0, 2.0)
    module.set_mode(Sparse_modes.Calibration)
    ran(module, x)
    module.set_mode()
    module.weight.data *= 2
    module.refresh()
    assert module.decision == "dense"
    module.weight.data = module.weight.data.flip(1)
    module.refresh()
    ran(module, x)
    assert module.decision is None and module.nnz == 6 * 2 * 9


def test_no_zeros_is_dense_without_measuring(monkeypatch):
    module, x = weft.nn.SparseConv2d(4, 6, 3), torch.randn(1, 4, 5, 5)
    seen = faked(monkeypatch, 2.0, 1.0)
    with weft.backends.flags(benchmark=True):
        assert "sparse" not in ran(module, x) and not seen and module.nnz == module.weight.numel()


@pytest.mark.parametrize("dense, sparse, side", [(0.006, 0.002, "sparse"), (0.002, 0.006, "dense")])
def test_the_clock_finds_the_faster_side(dense, sparse, side, monkeypatch):
    clock = FakeTime(0)
    monkeypatch.setattr(_clock, "time", clock)
    timing = weft.nn.sparse_conv.measure({"dense": clock.work(dense), "sparse": clock.work(sparse)}, torch.device("cpu"))
    assert timing.side == side and timing.ratio == pytest.approx(dense / sparse)
    assert (timing.dense_ms, timing.sparse_ms) == pytest.approx((1e3 * dense, 1e3 * sparse))


def test_the_clock_takes_the_median_and_ends_in_time(monkeypatch):
    """The first run of a side warms up and does not count; a limit that is over ends the rounds."""
    clock = FakeTime(0)
    monkeypatch.setattr(_clock, "time", clock)
    later = iter([9.0, *[0.004] * 1000])
    slow_first = lambda: clock.sleep(next(later))   # noqa: E731
    with weft.backends.flags(measure_seconds=100.0):
        timing = weft.nn.sparse_conv.measure({"dense": clock.work(0.001), "sparse": slow_first}, torch.device("cpu"))
    assert timing.sparse_ms == pytest.approx(4.0) and timing.side == "dense"
    runs = []
    with weft.backends.flags(measure_seconds=0.5):
        weft.nn.sparse_conv.measure({"dense": clock.work(1.0, lambda: runs.append(1)), "sparse": clock.work(1.0)}, torch.device("cpu"))
    assert len(runs) == 1


# ---------------------------------------------------------------- nets
class Net(weft.nn.SparseModel):
    """LeNet-5 made of self.conv."""

    def __init__(self, flag=True):
        super().__init__(flag)
        plain = MODELS["lenet5"].build()
        for i, m in enumerate(plain):
            if isinstance(m, nn.Conv2d):
                made = self.conv(m.in_channels, m.out_channels, m.kernel_size, bias=True)
                made.load_state_dict(m.state_dict())
                plain[i] = made
        self.layers = plain

    def forward(self, x):
        return self.layers(x)


def test_convolutions_are_sparse_unless_the_flag_is_off():
    for made, conv in ((weft.nn.SparseModel(), weft.nn.SparseConv2D), (weft.nn.SparseModel(True), weft.nn.SparseConv2D), (weft.nn.SparseModel(False), nn.Conv2d)):
        assert made.conv is conv and made.sparse_conv_flag is (conv is weft.nn.SparseConv2D)


def test_lenet_layer(device, capsys):
    """The old system's first test: 60% of the weights at random, 1x1x32x32 -> 1x6x28x28, dense beside sparse."""
    conv, x = weft.nn.SparseConv2D(1, 6, 5).to(device), torch.randn(1, 1, 32, 32, device=device)
    torch_prune.random_unstructured(conv, "weight", 0.6)
    outputs = {}
    for mode in (Sparse_modes.Inference_Vanilla, Sparse_modes.Inference_Sparse, Sparse_modes.Test):
        conv.set_mode(mode)
        outputs[mode] = conv.eval()(x)
    assert outputs[Sparse_modes.Inference_Sparse].shape == (1, 6, 28, 28) and conv.nnz == 60
    close(outputs[Sparse_modes.Inference_Sparse], outputs[Sparse_modes.Inference_Vanilla], 25)
    assert capsys.readouterr().out == SUCCESS + "\n"


@pytest.mark.parametrize("batch", [1, 3])
def test_lenet(batch, device, capsys):
    """The whole net: in every mode the same output as with torch.nn's convolutions."""
    net, twin = Net().to(device), Net(False).to(device)
    assert net.conv is weft.nn.SparseConv2D and twin.conv is nn.Conv2d
    weft.prune.random(net, 0.6, per_layer=True)
    twin.load_state_dict(net.state_dict())
    net._initialize_sparse_layers((batch, 1, 32, 32))
    twin._initialize_sparse_layers((batch, 1, 32, 32))
    assert net.training and all(m.training for m in net.modules()) and capsys.readouterr().out == ""
    x = torch.randn(batch, 1, 32, 32, device=device)
    expected = twin.eval()(x)
    net.eval()
    for mode in Sparse_modes:
        net._set_sparse_layers_mode(mode)
        twin._set_sparse_layers_mode(mode)
        torch.testing.assert_close(net(x), expected, rtol=1e-4, atol=1e-5)
        out = capsys.readouterr().out
        if mode is Sparse_modes.Test:
            assert out == 3 * (SUCCESS + "\n")
        elif mode is Sparse_modes.Benchmark:
            assert [line.split()[0] for line in out.splitlines()] == ["layer", "layers.0", "layers.3", "layers.6"]
        else:
            assert out == ""
    assert all(m.decision in ("dense", "sparse") for m in net.modules() if isinstance(m, weft.nn.SparseConv2d))
    rows = weft.sparse.table(net).splitlines()[1:]
    assert [r.split()[-1] for r in rows] == [net.layers[i].decision for i in (0, 3, 6)]


def test_benchmark_hook_goes_away(capsys):
    net, x = Net(), torch.randn(1, 1, 32, 32)
    net._set_sparse_layers_mode(Sparse_modes.Benchmark)
    net._set_sparse_layers_mode(Sparse_modes.Benchmark)
    pickle.loads(pickle.dumps(net))(x)
    assert capsys.readouterr().out.count("layer ") == 1
    net._initialize_sparse_layers((1, 1, 32, 32))
    net._set_sparse_layers_mode()
    net(x)
    assert capsys.readouterr().out == "" and not net._forward_hooks


def test_initialize_gathers_and_changes_nothing(device):
    net = Net().to(device)
    weft.prune.random(net, 0.6)
    net.layers[1].eval()
    net._set_sparse_layers_mode(Sparse_modes.Test)
    before = {k: v.clone() for k, v in net.state_dict().items()}
    net._initialize_sparse_layers([2, 1, 32, 32])
    assert not net.layers[1].training and net.training and net.layers[0]._mode is Sparse_modes.Test
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items()) and net.layers[0]._kept.source is net.layers[0].weight
    with pytest.raises(RuntimeError):
        net._initialize_sparse_layers((1, 2, 32, 32))
    assert net.training and net.layers[0]._mode is Sparse_modes.Test


@pytest.mark.parametrize("name", ["lenet5", "alexnet", "vgg16_bn", "resnet34"])
def test_models_to_sparse_and_back(name, device):
    """Dense and sparse agree in eval mode; the way back gives the same classes, parameters, hooks and printing."""
    example = MODELS[name]
    net, x = example.build(**example.small).to(device).eval(), example.inputs(example.small_shape)[0].to(device)
    text, parameters, types = repr(net), list(map(id, net.parameters())), [type(m) for m in net.modules()]
    weft.prune.random(net, 0.9 if name != "resnet34" else 0.7)
    expected, calls = net(x), []
    first = next(m for m in net.modules() if isinstance(m, nn.Conv2d))
    first.register_forward_hook(lambda *args: calls.append(1))
    assert weft.sparse.from_dense(net, all=True) is net and list(map(id, net.parameters())) == parameters
    made = [m for m in net.modules() if isinstance(m, nn.Conv2d)]
    assert made and all(type(m) is weft.nn.SparseConv2d and not m.training for m in made)
    with torch.no_grad():
        torch.testing.assert_close(net(x), expected, rtol=1e-3, atol=1e-4 * expected.abs().max().item())
    assert calls == [1] and weft.sparse.to_dense(net) is net
    assert repr(net) == text and list(map(id, net.parameters())) == parameters and [type(m) for m in net.modules()] == types
    assert torch.equal(net(x), expected) and calls == [1, 1]


def test_layers_that_stay_dense(device, capsys):
    """What was pruned and is not expected to be faster sparsely; what was not pruned yet is sparse."""
    net = nn.Sequential(nn.Conv2d(4, 8, 3), nn.Conv2d(8, 8, 3), nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 3)).to(device)
    for module, share in zip(net, (0.9, 0.5, 0.9)):
        weft.prune.random(module, share)
    weft.sparse.from_dense(net)
    cpu = device.type == "cpu"
    assert [type(m) is weft.nn.SparseConv2d for m in net] == [cpu, False, False, True]
    line = capsys.readouterr().err
    assert line.startswith(f"weft.sparse.from_dense: {2 if cpu else 3} layers stay dense (") and line.count("\n") == 1
    assert not cpu or ("1: fewer than 70% of its weights are 0" in line and "1: a window of one is as fast densely" in line)
    weft.sparse.from_dense(net, all=True)
    assert all(type(m) is weft.nn.SparseConv2d for m in net) and not capsys.readouterr().err


@pytest.mark.parametrize("zeros, sparse", [(0, True), (503, False), (504, True), (720, True)])
def test_exactly_as_many_zeros_as_are_asked_for(zeros, sparse):
    """70% of 720 are 504; a layer that was not pruned yet is sparse, too."""
    net = nn.Sequential(nn.Conv2d(10, 8, 3))
    net[0].weight.data.view(-1)[:zeros] = 0
    weft.sparse.from_dense(net)
    assert (type(net[0]) is weft.nn.SparseConv2d) == sparse


def test_from_dense_of_nets(device):
    class Own(nn.Conv2d):
        pass
    shared = nn.Conv1d(2, 2, 1)
    net = nn.ModuleDict({"a": shared, "b": shared, "own": Own(1, 1, 1), "c3": weft.nn.Conv3d(1, 1, 2, act="relu"), "stays": nn.Conv2d(1, 1, 1),
                         "turned": nn.ConvTranspose2d(1, 1, 1)})
    weft.sparse.from_dense(net, exclude=lambda m: m is net["stays"])
    assert {k: type(m).__name__ for k, m in net.items()} == {"a": "SparseConv1d", "b": "SparseConv1d", "own": "Own", "c3": "SparseConv3d", "stays": "Conv2d",
                                                             "turned": "ConvTranspose2d"}
    assert net["a"] is net["b"] and net["c3"].act == "relu"
    weft.sparse.to_dense(net)
    assert type(net["c3"]) is weft.nn.Conv3d and type(net["a"]) is nn.Conv1d and net["a"] is net["b"] and "_kept" not in net["a"].__dict__
    root = weft.sparse.from_dense(shared)
    assert type(root) is weft.nn.SparseConv1d and root.weight is shared.weight and type(weft.sparse.to_dense(root)) is nn.Conv1d
    root.register_buffer("more", torch.zeros(1))
    assert not hasattr(shared, "more")
    with torch.no_grad():
        root.weight.data = thinned(root.weight)
    weft.sparse.refresh(root)
    assert root.nnz == int(root.weight.count_nonzero())


def test_convert_leaves_sparse_modules_alone():
    net = nn.Sequential(weft.nn.SparseConv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval()
    weft.prune.random(net, 0.5)
    x = torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        expected = net(x)
        for to in ("weft", "torch"):
            weft.convert(net, to, fuse=to == "weft")
            assert type(net[0]) is weft.nn.SparseConv2d and "sparse" in ran(net[0], x)
            torch.testing.assert_close(net(x), expected, rtol=1e-5, atol=1e-5)


def test_training_parity(device):
    """Steps of SGD with momentum beside a dense net whose gradients are masked."""
    ours = weft.sparse.from_dense(MODELS["lenet5"].build()).to(device, torch.float64)
    weft.prune.magnitude(ours, 0.6)
    theirs = weft.sparse.to_dense(copy.deepcopy(ours))
    masks = {p: p.detach() != 0 for p in theirs.parameters() if p.dim() == 4}
    for p, m in masks.items():
        p.register_hook(lambda g, m=m: g * m)
    x, target = torch.randn(4, 1, 32, 32, dtype=torch.float64, device=device), torch.arange(4, device=device)
    for net in (ours, theirs):
        optimiser = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
        for _ in range(5):
            optimiser.zero_grad()
            nn.functional.cross_entropy(net(x), target).backward()
            optimiser.step()
    for p, q in zip(ours.parameters(), theirs.parameters()):
        torch.testing.assert_close(p, q, rtol=1e-9, atol=1e-12)


# ---------------------------------------------------------------- wrong input
conv2 = weft.nn.SparseConv2d(4, 6, 3)
WRONG = {
    "mode": (lambda: conv2.set_mode(7), ValueError, "mode: is 7, allowed: Sparse_modes.Training (1), Sparse_modes.Inference_Vanilla (2)"),
    "mode-kind": (lambda: conv2.set_mode("Test"), ValueError, "mode: is 'Test', allowed: Sparse_modes.Training (1)"),
    "mode-bool": (lambda: conv2.set_mode(True), ValueError, "mode: is True, allowed:"),
    "net-mode": (lambda: weft.sparse.set_mode(conv2, 0), ValueError, "mode: is 0, allowed:"),
    "net-kind": (lambda: weft.sparse.set_mode(3), TypeError, "net: is int, allowed: Module"),
    "refresh-kind": (lambda: weft.sparse.refresh(None), TypeError, "net: is NoneType, allowed: Module"),
    "table-kind": (lambda: weft.sparse.table("x"), TypeError, "net: is str, allowed: Module"),
    "to-dense-kind": (lambda: weft.sparse.to_dense(torch.ones(1)), TypeError, "net: is Tensor, allowed: Module"),
    "from-dense-kind": (lambda: weft.sparse.from_dense([1.0]), TypeError, "weight: is list, allowed: Tensor or Module"),
    "from-dense-exclude": (lambda: weft.sparse.from_dense(nn.Conv2d(1, 1, 1), exclude=3), TypeError, "exclude: is int, allowed: a function of a module"),
    "from-dense-tensor-exclude": (lambda: weft.sparse.from_dense(torch.ones(1, 1, 1), exclude=print), TypeError, "exclude: given with a tensor"),
    "from-dense-rank": (lambda: weft.nn.SparseConv2d.from_dense(nn.Conv1d(1, 1, 1)), TypeError, "module: is Conv1d, allowed: torch.nn.Conv2d"),
    "from-dense-linear": (lambda: weft.nn.SparseConv3d.from_dense(nn.Linear(1, 1)), TypeError, "module: is Linear, allowed: torch.nn.Conv3d"),
    "from-dense-parametrized": (lambda: weft.nn.SparseConv2d.from_dense(nn.utils.parametrizations.weight_norm(nn.Conv2d(1, 1, 1))), TypeError,
                                "with parametrizations, allowed: torch.nn.Conv2d"),
    "act": (lambda: weft.nn.SparseConv1d(1, 1, 1, act="tanh"), ValueError, "act: is 'tanh', allowed: None, 'relu' or 'clip'"),
    "clip": (lambda: weft.nn.SparseConv2D(1, 1, 1, act="clip", clip=(1, 0)), ValueError, "clip: is (1, 0), allowed: a low bound not above the high one"),
    "groups": (lambda: weft.nn.SparseConv2D(3, 4, 1, groups=2), ValueError, "in_channels must be divisible by groups"),
    "padding-mode": (lambda: weft.nn.SparseConv2D(3, 4, 1, padding_mode="none"), ValueError, "padding_mode"),
    "input-kind": (lambda: pruned()(None), TypeError, "sparse_conv2d: input is NoneType, allowed: Tensor"),
    "input-rank": (lambda: pruned()(torch.ones(4, 4)), RuntimeError, "sparse_conv2d: input has 2 dimensions [4, 4], allowed: 3 (unbatched) or 4 (batched)"),
    "input-channels": (lambda: pruned()(torch.ones(1, 3, 4, 4)), RuntimeError, "input: "),
    "input-type": (lambda: pruned()(torch.ones(1, 4, 4, 4, dtype=torch.float64)), RuntimeError, "float64"),
    "shape-kind": (lambda: Net()._initialize_sparse_layers(32), TypeError, "input_shape: is 32, allowed: a sequence of sizes"),
    "shape-values": (lambda: Net()._initialize_sparse_layers((1, 1.5)), TypeError, "input_shape: is (1, 1.5), allowed: a sequence of sizes"),
    "model-mode": (lambda: Net()._set_sparse_layers_mode(9), ValueError, "mode: is 9, allowed:"),
    "attribute": (lambda: weft.sparse.nothing, AttributeError, "module 'weft.sparse' has no attribute 'nothing'"),
}


def pruned():
    module = weft.nn.SparseConv2d(4, 6, 3)
    weft.prune.random(module, 0.5)
    return module


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input(name):
    call, kind, text = WRONG[name]
    with pytest.raises(kind, match=re.escape(text)):
        call()


# ---------------------------------------------------------------- documents
@pytest.mark.parametrize("module", [weft.sparse, weft.nn.sparse_conv, weft.nn.sparse_model, weft.prune], ids=lambda m: m.__name__)
def test_docstring_examples(module):
    finder, runner = doctest.DocTestFinder(), doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for test in finder.find(module, globs={"torch": torch, "weft": weft}):
        runner.run(test)
    assert runner.tries > 5 and runner.failures == 0


def test_public_names():
    for name in weft.sparse.__all__:
        made = getattr(weft.sparse, name)
        assert made.__doc__ and ">>>" in made.__doc__ and name in dir(weft.sparse), name
        assert name not in weft.nn.__all__ or getattr(weft.nn, name) is made
    assert set(weft.nn.sparse_conv.__all__ + weft.nn.sparse_model.__all__) <= set(weft.nn.__all__)


def test_benchmark_script(capsys):
    """A small run of each net: every layer and the whole net, with what the calibration keeps."""
    sparse_benchmark.main(["--quick"])
    out = capsys.readouterr().out
    parts = [part for part in out.split("\n\n") if not part.startswith("note: ")]
    assert len(parts) == 3, out
    for part, (name, count) in zip(parts, (("vgg16_bn", 13), ("resnet34", 16), ("alexnet", 5))):
        lines = part.strip().splitlines()
        rows = [line.split() for line in lines if line.endswith((" dense", " sparse"))]
        assert lines[0].startswith(name) and len(rows) == count and lines[-1].startswith("whole net: torch.nn "), part
        assert all(float(r[-4]) > 0 and float(r[-3]) > 0 and float(r[-3 if r[-1] == "sparse" else -4]) <= min(float(r[-4]), float(r[-3])) for r in rows), part
        assert f"of {count} layers keep to sparse" in lines[-1] and float(re.search(r"difference (\S+) of", lines[-1]).group(1)) < 1e-4


def test_the_cases_of_the_benchmark_are_the_old_ones():
    assert sparse_benchmark.CASES == {"vgg16_bn": (0.9, (32, 3, 227, 227)), "resnet34": (0.7, (32, 3, 224, 224)), "alexnet": (0.9, (1, 3, 227, 227))}


@pytest.mark.parametrize("args, text", [(["--models", "lenet"], "invalid choice: 'lenet'"), (["--batch", "0"], "--batch: is 0, allowed: 1 or more"),
                                        (["--device", "tpu"], "invalid choice: 'tpu'")])
def test_benchmark_script_refuses(args, text, capsys):
    with pytest.raises(SystemExit):
        sparse_benchmark.main(args)
    assert text in capsys.readouterr().err
