"""What a compiled graph holds of weft's operators: PyTorch's own where the planner leaves the call to PyTorch, else weft's below autograd."""
from __future__ import annotations

import re

import pytest
import torch

import weft
import weft.functional as W
from cases import SMALL, channels_last
from weft._core import traced


@pytest.fixture(autouse=True)
def _fresh():
    torch.compiler.reset()


def _compiled(f):
    """The function, and the operators of the graphs below autograd that are made of it."""
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd
    seen = []

    def note(graph, inputs):
        seen.extend(str(n.target) for n in graph.graph.nodes if n.op == "call_function" and isinstance(n.target, torch._ops.OpOverload))
        return make_boxed_func(graph.forward)
    return torch.compile(f, fullgraph=True, backend=aot_autograd(fw_compiler=note, bw_compiler=note)), seen


def _of_weft(seen):
    return [name for name in seen if name.startswith("weft")]


def _both(f, tensors):
    """Results and gradients of the compiled function and of the function, and the operators seen."""
    compiled, seen = _compiled(f)
    results = []
    for run in (compiled, f):
        leaves = [None if t is None else t.detach().clone(memory_format=torch.preserve_format).requires_grad_(t.is_floating_point()) for t in tensors]
        y = run(*leaves)
        y.float().square().sum().backward()
        results.append([y.detach(), *(t.grad for t in leaves if t is not None and t.requires_grad)])
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-4)
    assert results[0][0].stride() == results[1][0].stride()
    return seen


def _force(monkeypatch, winner):
    """The planner's answer, where the operator says that PyTorch may compute it at all."""
    ask = traced._answer
    monkeypatch.setattr(traced, "_answer", lambda name, args: winner if ask(name, args) else 0)


@pytest.mark.parametrize("format", [lambda t: t, channels_last], ids=["first", "last"])
@pytest.mark.parametrize("c", SMALL, ids=str)
def test_convolutions_of_either_side(c, format, device, monkeypatch):
    tensors = [t if t is None or t.dim() != c.rank + 2 or c.rank == 1 else format(t) for t in c.tensors(device)]
    for winner, wanted in ((2, False), (0, True)):
        torch.compiler.reset()
        with monkeypatch.context() as patch:
            _force(patch, winner)
            seen = _both(lambda x, w, b: c.weft(x, w, b, **c.options, act="relu"), tensors)
        assert bool(_of_weft(seen)) == wanted and all(name.startswith("weft_compiled.") for name in _of_weft(seen)), seen


OTHERS = {"avg": lambda x: W.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
          "adaptive": lambda x: W.adaptive_avg_pool2d(x, 1),
          "unfold": lambda x: W.unfold(x, 3, padding=1), "fold": lambda x: W.fold(x.flatten(2)[:, :4, :36], 7, 2)}


@pytest.mark.parametrize("format", [lambda t: t, channels_last], ids=["first", "last"])
@pytest.mark.parametrize("name", OTHERS)
def test_others_of_either_side(name, format, device, monkeypatch):
    x = format(torch.randn(2, 5, 6, 7, device=device))
    wrong = device.type == "cuda" and format is channels_last and name in ("avg", "adaptive")   # PyTorch's gradients there: weft's whoever wins
    for winner in (2, 0):
        torch.compiler.reset()
        with monkeypatch.context() as patch:
            _force(patch, winner)
            assert bool(_of_weft(_both(OTHERS[name], [x]))) == (winner == 0 or wrong)


GENERATED = {"relu": W.relu, "clip": lambda x: W.hardtanh(x, -0.5, 0.5), "tanh": W.tanh, "sigmoid": W.sigmoid,
             "softmax": lambda x: W.softmax(x, 1), "log_softmax": lambda x: W.log_softmax(x, 1)}


@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "dynamic"])
@pytest.mark.parametrize("format", [lambda t: t, channels_last], ids=["first", "last"])
@pytest.mark.parametrize("name", GENERATED)
def test_what_inductor_writes_itself(name, format, dynamic, device):
    x = format(torch.randn(2, 64, 28, 28, device=device))
    if dynamic:
        torch._dynamo.mark_dynamic(x, 0)
    assert not _of_weft(_both(GENERATED[name], [x]))


@pytest.mark.parametrize("training", [False, True], ids=["eval", "training"])
@pytest.mark.parametrize("format", [lambda t: t, channels_last], ids=["first", "last"])
def test_batch_norm_is_fused_and_keeps_its_statistics(format, training, device):
    torch.manual_seed(0)
    norm = weft.nn.BatchNorm2d(8, device=device).train(training)
    with torch.no_grad():
        norm.running_mean.uniform_()
        norm.running_var.uniform_(0.5, 2)
    x, state = format(torch.randn(4, 8, 6, 6, device=device)), {k: v.clone() for k, v in norm.state_dict().items()}
    compiled, seen = _compiled(norm)
    made = []
    for run in (compiled, norm):
        norm.load_state_dict(state)
        norm.zero_grad()
        leaf = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
        y = run(leaf)
        y.square().sum().backward()
        made.append([y.detach(), leaf.grad, norm.weight.grad.clone(), norm.bias.grad.clone(), norm.running_mean.clone(), norm.running_var.clone()])
    torch.testing.assert_close(*made, rtol=1e-4, atol=1e-4)
    assert made[0][0].stride() == made[1][0].stride() and not _of_weft(seen)
    assert training == (not torch.equal(made[0][4], state["running_mean"]))


def test_the_planner_is_asked(device, monkeypatch):
    """Each pass of a convolution, and its gradients one by one: what weft wins stays weft's."""
    asked, ask = [], traced._answer

    def note(name, args):
        asked.append((name, args[8] if name == "conv_backward" else None))
        return ask(name, args)
    monkeypatch.setattr(traced, "_answer", note)
    w = torch.randn(8, 1, 3, 3, device=device)
    _both(lambda x, w: W.conv2d(x, w, padding=1, groups=8), [torch.randn(2, 8, 9, 9, device=device), w])
    assert asked == [("conv", None), ("conv_backward", 3), ("conv_backward", 1), ("conv_backward", 2)]


def test_a_part_that_weft_wins_keeps_the_gradients(monkeypatch):
    monkeypatch.setattr(traced, "_answer", lambda name, args: 0 if name == "conv_backward" and args[8] == 2 else 2)
    seen = _both(lambda x, w: W.conv2d(x, w, padding=1, groups=8), [torch.randn(2, 8, 9, 9), torch.randn(8, 1, 3, 3)])
    assert _of_weft(seen) == ["weft_compiled.conv_backward.default"]


# ---------------------------------------------------------------------------------------------- what Inductor does around an operator

def _two(x, w):
    return torch.sin(W.conv2d(torch.sin(W.conv2d(x, w, padding=1, groups=8)), w, groups=8))


def _formats_run(capfd, f, x, w):
    """Of the images of each convolution and pooling that weft runs, in both passes."""
    torch.autograd.grad(f(x, w).square().sum(), (x, w))
    capfd.readouterr()
    with weft.backends.flags(verbose="exec"):
        torch.autograd.grad(f(x, w).square().sum(), (x, w))
    return re.findall(r"weft: exec: (?:conv|\w+_pool)2d:\w+:f32\S*?:(n\w+):n", capfd.readouterr().err)


@pytest.fixture
def _kept(monkeypatch):
    """weft's operators are in every graph, and nothing of it is cached."""
    monkeypatch.setattr(traced, "_answer", lambda name, args: 0)
    with torch._inductor.config.patch(force_disable_caches=True):
        yield


@pytest.mark.parametrize("laid_out", [True, False], ids=["channels-last", "as-written"])
def test_images_lie_as_those_of_pytorchs_own_convolutions(laid_out, capfd, _kept):
    """Else each loop between two operators would write both orders. Results have the program's."""
    x, w = torch.randn(2, 8, 9, 10, requires_grad=True), torch.randn(8, 1, 3, 3, requires_grad=True)
    last = laid_out and torch.backends.mkldnn.is_available()
    with torch._inductor.config.patch(layout_optimization=laid_out):
        compiled = torch.compile(_two, fullgraph=True)
        formats = _formats_run(capfd, compiled, x, w)
    assert formats == ["nhwc" if last else "nchw"] * len(formats) and len(formats) >= 4
    made = [(y, *torch.autograd.grad(y.square().sum(), (x, w))) for y in (compiled(x, w), _two(x, w))]
    torch.testing.assert_close(*made, rtol=1e-4, atol=1e-4)
    assert made[0][0].stride() == made[1][0].stride()


POOLS = {"max": lambda x: W.max_pool2d(x, 3, 2, 1), "avg": lambda x: W.avg_pool2d(x, 2), "adaptive": lambda x: W.adaptive_avg_pool2d(x, 3)}


@pytest.mark.parametrize("pool, beside", [("max", True), ("avg", True), ("adaptive", True), ("max", False)])
def test_pooling_lies_as_the_convolutions_of_its_graph(pool, beside, capfd, _kept):
    """Alone it has the program's order, and so have its gradients."""
    x, w = torch.randn(2, 8, 12, 10, requires_grad=True), torch.randn(8, 1, 3, 3, requires_grad=True)

    def net(x, w):
        return POOLS[pool](torch.relu(W.conv2d(x, w, padding=1, groups=8)) if beside else x * w.sum()).exp()
    compiled = torch.compile(net, fullgraph=True)
    formats = _formats_run(capfd, compiled, x, w)
    last = beside and torch.backends.mkldnn.is_available()
    assert formats[:2] == ["nhwc" if last else "nchw"] * 2 and len(formats) == (4 if beside else 2)
    made = [(y, *torch.autograd.grad(y.square().sum(), (x, w))) for y in (compiled(x, w), net(x, w))]
    torch.testing.assert_close(*made, rtol=1e-4, atol=1e-4)
    assert made[0][0].stride() == made[1][0].stride()


def test_images_of_any_number_lie_so(_kept):
    from torch._dynamo.testing import CompileCounterWithBackend
    counter, w = CompileCounterWithBackend("inductor"), torch.randn(8, 1, 3, 3)
    compiled = torch.compile(_two, fullgraph=True, backend=counter, dynamic=True)
    for n, h in ((2, 9), (5, 12)):
        x = torch.randn(n, 8, h, 10)
        torch.testing.assert_close(compiled(x, w), _two(x, w), rtol=1e-4, atol=1e-4)
    assert counter.frame_count == 1


@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
def test_the_planner_is_asked_with_images_as_they_will_lie(backend, monkeypatch):
    asked = []
    monkeypatch.setattr(traced, "_answer", lambda name, args: asked.append(args[0].stride()) or 0)
    x, w = torch.randn(2, 8, 9, 10), torch.randn(8, 1, 3, 3)
    with torch._inductor.config.patch(force_disable_caches=True):
        torch.compile(lambda x, w: W.conv2d(x, w, groups=8), fullgraph=True, backend=backend)(x, w)
    last = backend == "inductor" and torch.backends.mkldnn.is_available()
    assert asked == [(720, 1, 80, 8) if last else (720, 90, 10, 1)]


# ---------------------------------------------------------------------------------------------- settings, export

@pytest.mark.parametrize("setting", [{"math": "strict"}, {"delegate": False}, {"pin": "torch"}, {"benchmark": True}], ids=str)
def test_settings_keep_the_operators(setting):
    """What weft.backends says of kernels holds when the graph runs, and cached graphs of other settings are not taken."""
    before = torch.compiler.config.cache_key_tag
    x, w = torch.randn(2, 8, 9, 9), torch.randn(8, 8, 3, 3)
    with weft.backends.flags(**setting):
        assert torch.compiler.config.cache_key_tag != before
        compiled, seen = _compiled(lambda x, w: W.relu(W.conv2d(x, w)))
        torch.testing.assert_close(compiled(x, w), torch.conv2d(x, w).relu(), rtol=1e-4, atol=1e-4)
    assert torch.compiler.config.cache_key_tag == before
    assert _of_weft(seen) == ["weft_compiled.conv.default", "weft_compiled.relu.default"]


def test_an_exported_program_keeps_the_operators():
    program = torch.export.export(torch.nn.Sequential(weft.nn.Conv2d(4, 4, 3, groups=4), weft.nn.ReLU()), (torch.randn(2, 4, 6, 7),))
    assert [str(n.target) for n in program.graph.nodes if n.op == "call_function"] == ["weft.conv.default", "weft.relu.default"]


def test_flops_of_a_compiled_graph():
    from torch.utils.flop_counter import FlopCounterMode
    x, w = torch.randn(2, 4, 6, 6), torch.randn(4, 1, 3, 3)
    with FlopCounterMode(display=False) as counter:
        torch.ops.weft_compiled.conv(x, w, None, [1, 1], [0] * 4, [1, 1], 4, "", 0.0, 0.0)
    assert counter.get_total_flops() == 2 * 2 * 16 * 36
