"""Every module of weft.nn as a module: state, copies, printing, types and formats, torch.fx; and a net of them in a CUDA graph."""
from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch

import weft
from everything import LAYERS, results

every = pytest.mark.parametrize("layer", LAYERS.values(), ids=str)
with_twin = pytest.mark.parametrize("layer", [e for e in LAYERS.values() if not e.alone], ids=str)


def net(m, device, norm=True):
    """A small classifier of modules of m."""
    return torch.nn.Sequential(m.Conv2d(3, 8, 3, padding=1), *([m.BatchNorm2d(8)] if norm else []), m.ReLU(), m.MaxPool2d(2),
                               m.Conv2d(8, 8, 3, padding=1, groups=8), m.ReLU(inplace=True), m.AdaptiveAvgPool2d(2), torch.nn.Flatten(),
                               torch.nn.Linear(32, 4)).to(device)


# ---------------------------------------------------------------------------------------------- twins

@with_twin
def test_state_dict_both_ways(layer, device):
    ours, twin = layer.ours().to(device), layer.theirs().to(device)
    inputs = layer.inputs(device)
    assert list(ours.state_dict()) == list(twin.state_dict())
    assert {k: (v.shape, v.dtype) for k, v in ours.state_dict().items()} == {k: (v.shape, v.dtype) for k, v in twin.state_dict().items()}
    for source, other in ((twin, ours), (ours, layer.theirs().to(device))):
        with torch.no_grad():
            for p in source.parameters():
                p.normal_()
        assert not any(other.load_state_dict(source.state_dict()))   # neither missing keys nor unexpected ones
        torch.testing.assert_close(results(ours(*inputs))[0], results((other if source is ours else source)(*inputs))[0], rtol=1e-4, atol=1e-4)


@with_twin
def test_is_its_twin(layer):
    ours, twin = layer.ours(), layer.theirs()
    assert isinstance(ours, type(twin))
    if layer.twin is None:
        assert repr(ours) == f"weft.{twin!r}" and ours.extra_repr() == twin.extra_repr()
    assert repr(ours).startswith(f"weft.{layer.name}(")


# ---------------------------------------------------------------------------------------------- copies

def _saved(module):
    stream = io.BytesIO()
    torch.save(module, stream)
    stream.seek(0)
    return torch.load(stream, weights_only=False)


@every
def test_copies(layer, device):
    module, inputs = layer.ours().to(device).eval(), layer.inputs(device)
    expected = results(module(*inputs))
    for copied in (copy.deepcopy, copy.copy, lambda m: pickle.loads(pickle.dumps(m)), _saved):
        other = copied(module)
        assert type(other) is type(module) and repr(other) == repr(module) and list(other.state_dict()) == list(module.state_dict())
        assert all(torch.equal(a, b) for a, b in zip(results(other(*inputs))[:1], expected[:1]))


@every
def test_deepcopy_has_memory_of_its_own(layer):
    module = layer.ours()
    other = copy.deepcopy(module)
    assert all(p is not q and p.data_ptr() != q.data_ptr() for p, q in zip(other.parameters(), module.parameters()))


# ---------------------------------------------------------------------------------------------- types, devices, formats

@every
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=lambda d: str(d)[6:])
def test_to_a_type(layer, dtype, device):
    module = layer.ours().to(device)
    assert module.to(dtype) is module
    result = results(module(*layer.inputs(device, dtype)))[0]
    assert result.dtype == dtype and result.isfinite().all()
    assert all(p.dtype == dtype for p in module.parameters())


@every
def test_on_the_meta_device(layer):
    module = layer.ours().to("meta")
    real = results(layer.ours()(*layer.inputs("cpu")))[0]
    made = results(module(*layer.inputs("meta")))[0]
    assert made.device.type == "meta" and (made.shape, made.dtype) == (real.shape, real.dtype)


@every
def test_to_channels_last(layer, device):
    """Modules for images keep the format of the image; all give the values that they give for the plain one."""
    if len(layer.shape) != 4:
        pytest.skip("takes no images of 4 dimensions")
    module, (x, *rest) = layer.ours().to(device).eval(), layer.inputs(device)
    expected = results(module(x, *rest))[0]
    module = module.to(memory_format=torch.channels_last)
    got = results(module(x.to(memory_format=torch.channels_last), *rest))[0]
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    keeps = layer.name not in ("Softmax", "LogSoftmax", "Unfold") and expected.dim() == 4     # softmax gives what its twin gives
    assert not keeps or got.is_contiguous(memory_format=torch.channels_last)


# ---------------------------------------------------------------------------------------------- torch.fx

class Inner(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


class Inner2(Inner):
    def forward(self, x, other):
        return self.inner(x, other)


@every
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_symbolic_trace(layer, training, device):
    module, inputs = (Inner if len(layer.inputs("cpu")) == 1 else Inner2)(layer.ours()).to(device).train(training), layer.inputs(device)
    traced = torch.fx.symbolic_trace(module)
    state = copy.deepcopy(module.state_dict())
    expected = results(module(*inputs))[0]
    module.load_state_dict(state)
    assert torch.equal(results(traced(*inputs))[0], expected)


def test_trace_of_a_net(device):
    module, x = net(weft.nn, device), torch.randn(2, 3, 8, 8, device=device)
    module.eval()
    traced = torch.fx.symbolic_trace(module)
    assert torch.equal(traced(x), module(x))
    twin = torch.fx.symbolic_trace(net(torch.nn, device).eval())
    assert [(n.op, n.name, str(n.target)) for n in traced.graph.nodes] == [(n.op, n.name, str(n.target)) for n in twin.graph.nodes]


# ---------------------------------------------------------------------------------------------- compiled nets, CUDA graphs

@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_compiled_net(training, device):
    torch.compiler.reset()
    module = net(weft.nn, device).train(training)
    twin = net(torch.nn, device).train(training)
    twin.load_state_dict(module.state_dict())
    x = torch.randn(4, 3, 8, 8, device=device)
    found = []
    for run, of in ((torch.compile(module, fullgraph=True, backend="aot_eager"), module), (twin, twin)):
        y = run(x)
        y.square().sum().backward()
        found.append([y.detach(), *(p.grad for p in of.parameters()), *of.buffers()])
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-4)


def test_exported_net(device):
    module, x = net(weft.nn, device).eval(), torch.randn(2, 3, 8, 8, device=device)
    program = torch.export.export(module, (x,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    for batch in (2, 5):
        x = torch.randn(batch, 3, 8, 8, device=device)
        torch.testing.assert_close(program.module()(x), module(x))


def _warm(run):
    """Plans, and whatever a first call allocates, on a side stream as a capture wants it."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)


def test_cuda_graph_of_every_function(device):
    if device.type != "cuda":
        pytest.skip("CUDA graphs need a CUDA device")
    from everything import FUNCTIONS
    for example in FUNCTIONS.values():
        tensors = example.make(device)
        with torch.no_grad():
            _warm(lambda: example.weft(*tensors))
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                made = results(example.weft(*tensors))
            other = example.make(device)
            for t, o in zip(tensors, other):
                t.copy_(o)
            graph.replay()
            torch.cuda.synchronize()
            expected = results(example.weft(*tensors))
        for got, want in zip(made, expected):
            torch.testing.assert_close(got, want, msg=lambda text: f"{example}: {text}")


def test_cuda_graph_of_training(device):
    if device.type != "cuda":
        pytest.skip("CUDA graphs need a CUDA device")
    module = net(weft.nn, device).eval()   # running statistics stay as they are, so that a replay and a plain run start alike
    x = torch.randn(4, 3, 8, 8, device=device)

    def step():
        module.zero_grad(set_to_none=False)
        module(x).square().sum().backward()
    _warm(step)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    x.copy_(torch.randn_like(x))
    graph.replay()
    torch.cuda.synchronize()
    replayed = [p.grad.clone() for p in module.parameters()]
    step()
    torch.testing.assert_close(replayed, [p.grad for p in module.parameters()], rtol=1e-4, atol=1e-5)
