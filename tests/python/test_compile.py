"""torch.compile without graph breaks, with gradients and dynamic shapes; torch.export; CUDA graphs."""
from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import weft
import weft.functional as W
from cases import SMALL, case, channels_last
from test_autograd import TRANSFORMS


def _compare(compiled, eager, tensors):
    results = []
    for f in (compiled, eager):
        leaves = [None if t is None else t.detach().clone(memory_format=torch.preserve_format).requires_grad_() for t in tensors]
        y = f(*leaves)
        y.square().sum().backward()
        results.append([y.detach(), *(t.grad for t in leaves if t is not None)])
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-4)
    assert results[0][0].stride() == results[1][0].stride()


@pytest.fixture(autouse=True)
def _fresh():
    torch.compiler.reset()


@pytest.mark.parametrize("c", SMALL, ids=str)
def test_full_graph(c, device):
    def f(x, w, b):
        return c.weft(x, w, b, **c.options, act="relu") * 2
    _compare(torch.compile(f, fullgraph=True, backend="aot_eager"), f, c.tensors(device))


@pytest.mark.parametrize("format", [lambda t: t, channels_last], ids=["first", "last"])
def test_dynamic_shapes(format, device):
    graphs = []

    def backend(graph, inputs):
        from torch._dynamo.backends.debugging import aot_eager
        graphs.append(graph)
        return aot_eager(graph, inputs)

    def f(x, w):
        return weft.conv2d_depthwise(x, w, padding=1)
    compiled = torch.compile(f, fullgraph=True, backend=backend, dynamic=True)
    for n, h, width in ((2, 7, 8), (3, 9, 11), (5, 6, 13)):
        _compare(compiled, f, [format(torch.randn(n, 4, h, width, device=device)), torch.randn(4, 1, 3, 3, device=device)])
    assert len(graphs) == 1


@pytest.mark.parametrize("name", ["grad", "vmap-grad", "jvp", "jacfwd", "grad-grad"])
def test_transforms_within(name, device):
    """torch.func inside of a compiled function."""
    x, w = torch.randn(2, 4, 5, 5, device=device), torch.randn(4, 1, 3, 3, device=device)

    def f(of):
        return lambda x, w: TRANSFORMS[name](lambda x, w: of(x, w, groups=4), x, w)
    compiled = torch.compile(f(W.conv2d), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, w), f(F.conv2d)(x, w), rtol=1e-4, atol=1e-4)


def _graphs(f, inputs, **options):
    """How often a function is compiled for these inputs."""
    from torch._dynamo.testing import CompileCounter
    counter = CompileCounter()
    compiled = torch.compile(f, backend=counter, fullgraph=True, **options)
    for x in inputs:
        torch.testing.assert_close(compiled(x), f(x), rtol=1e-4, atol=1e-4)
    return counter.frame_count


def test_padding_from_a_size(device):
    w = torch.randn(4, 1, 3, 3, device=device)
    inputs = [torch.randn(2, 4, n, n, device=device) for n in (6, 9, 13, 17, 21)]
    assert _graphs(lambda x: W.conv2d(x, w, groups=4, padding=(x.shape[-1] // 4, 1)), inputs, dynamic=True) == 1


def test_sizes_that_nobody_knows(device):
    x, w = torch.randn(2, 4, 6, 6, device=device), torch.randn(4, 1, 3, 3, device=device)
    for axis in (0, 2, 3):
        torch._dynamo.decorators.mark_unbacked(x, axis)
    assert _graphs(lambda x: W.conv2d(x, w, groups=4, padding=1), [x]) == 1


def test_one_plane_for_every_channel():
    """Expanded channels have stride 0: a trace sees the format that the kernel will give."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    strides = []
    for mode in (torch.no_grad(), FakeTensorMode()):
        with mode:
            x, w = torch.ones(2, 1, 6, 6).expand(-1, 4, -1, -1), torch.ones(4, 1, 3, 3)
            strides.append([f(x, w, groups=4).stride() for f in (W.conv2d, W.conv_transpose2d)])
    assert strides[0] == strides[1]


def test_inductor(device):
    """The default backend."""
    module = torch.nn.Sequential(weft.Conv2dDepthwise(4, 3, padding=1), weft.nn.Conv2d(4, 6, 1)).to(device)
    compiled = torch.compile(module, fullgraph=True)
    for format in (torch.contiguous_format, torch.channels_last):
        x = torch.randn(2, 4, 6, 7, device=device).to(memory_format=format)
        grads = []
        for f in (compiled, module):
            module.zero_grad()
            y = f(x)
            y.backward(torch.ones_like(y))
            grads.append([y.detach(), *(p.grad.clone() for p in module.parameters())])
        torch.testing.assert_close(*grads)


def test_compiled_autocast(device):
    def f(x, w):
        with torch.autocast(device.type, dtype=torch.bfloat16):
            return W.conv2d(x, w, padding=1)
    x, w = torch.randn(1, 2, 5, 5, device=device), torch.randn(2, 2, 3, 3, device=device)
    torch.testing.assert_close(torch.compile(f, fullgraph=True, backend="aot_eager")(x, w), f(x, w))


def test_export(device):
    module = weft.nn.Conv2d(4, 8, 3, padding="same", groups=2, device=device)
    x = torch.randn(2, 4, 6, 7, device=device)
    program = torch.export.export(module, (x,))
    torch.testing.assert_close(program.module()(x), module(x))


def test_fake_and_meta_tensors():
    from torch._subclasses.fake_tensor import FakeTensorMode
    with FakeTensorMode():
        x, w = torch.empty(2, 4, 9, 9), torch.empty(8, 1, 3, 3)
        assert W.conv2d(x, w, groups=4, stride=2).shape == (2, 8, 4, 4)
    assert W.conv2d(torch.empty(2, 4, 9, 9, device="meta"), torch.empty(8, 1, 3, 3, device="meta"), groups=4).shape == (2, 8, 7, 7)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_graph():
    x, w, b = (t.cuda() for t in case("2d-depthwise").tensors(torch.device("cpu")))

    def run():
        return W.conv2d(x, w, b, padding=1, groups=5, act="relu")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = run()
    x.copy_(torch.randn_like(x))
    graph.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(y, F.relu(F.conv2d(x, w, b, padding=1, groups=5)), rtol=1e-5, atol=1e-5)
