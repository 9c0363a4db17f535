"""weft's own code where a default call would be PyTorch's, or where only large or strided data shows it: every function beside its twin, transposed
convolutions, results written into their own input, statistics under benchmark mode, and the same bits for every number of threads."""
from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F

import weft
import weft.functional as W
from cases import CASES, Case, channels_last, close, scattered, shifted, truth_of
from everything import FUNCTIONS, gradients, results


@pytest.fixture
def own():
    with weft.backends.flags(delegate=False):
        yield


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=lambda d: str(d)[6:])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_beside_its_twin(name, dtype, own, device):
    """Results and gradients; the twin is PyTorch's, or a formula in its operators."""
    example = FUNCTIONS[name]
    ours, theirs = (example.make(device, dtype, grad=True) for _ in range(2))
    for a, b in zip(ours, theirs):
        b.data.copy_(a.detach())
    got, want = gradients(example.weft, ours), gradients(example.peer, theirs)
    assert "torch" not in weft.backends.kernels().split(", ")
    fine = dtype == torch.float64 and not name.startswith("partial_")   # whose formula has its mask in float32
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9 if fine else 2e-4, atol=1e-9 if fine else 2e-5)


# ---------------------------------------------------------------------------------------------- transposed convolution

def _transposed(stride, dilation, output_padding, rank=2) -> Case:
    size, weight = (5, 6, 4)[:rank], (3, 2, 2)[:rank]
    options = dict(stride=stride, dilation=dilation, output_padding=output_padding, padding=1, groups=2)
    return Case(f"s{stride}d{dilation}op{output_padding}-{rank}d", (2, 4, *size), (4, 3, *weight), True, True, options)


GEOMETRIES = [_transposed(s, d, op, rank) for s, d, rank in itertools.product((1, 2, 3), (1, 2, 3), (1, 2, 3)) for op in range(max(s, d))]


@pytest.mark.parametrize("c", [*GEOMETRIES, *(c for c in CASES if c.transposed)], ids=str)
def test_transposed(c, own, device):
    """Every output padding that is allowed: below the stride or below the dilation, equal to the stride among them."""
    tensors = c.tensors(device)
    views = [None if t is None else t.detach().requires_grad_() for t in tensors]
    y = c.weft(*views, **c.options)
    grad = torch.randn_like(y)
    for ours, exact in zip([y, *torch.autograd.grad(y, [v for v in views if v is not None], grad)], truth_of(c, tensors, grad), strict=True):
        close(ours.detach().cpu(), exact, terms=max(64, grad.numel()))


# ---------------------------------------------------------------------------------------------- gradients in other formats

@pytest.mark.parametrize("delegate", [True, False], ids=["torch", "own"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_in_other_formats(name, delegate, device):
    """The gradient that comes in need not lie as the result does."""
    example = FUNCTIONS[name]
    tensors = example.make(device, grad=True)
    leaves = [t for t in tensors if t.requires_grad]
    with weft.backends.flags(delegate=delegate):
        y = results(example.weft(*tensors))[0]
        dy = torch.randn_like(y, memory_format=torch.contiguous_format)
        want = torch.autograd.grad(y, leaves, dy, retain_graph=True)
        for layout in (scattered, shifted, lambda t: channels_last(t) if t.dim() > 2 else t, lambda t: t.flip(-1).contiguous().flip(-1)):
            torch.full((4 * dy.numel() + 64,), float("nan"), device=device)   # fresh memory holds no zeros
            got = torch.autograd.grad(y, leaves, layout(dy) if dy.dim() else dy.clone(), retain_graph=True)
            for a, b in zip(got, want, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


# ---------------------------------------------------------------------------------------------- results into their own input

VIEWS = {"contiguous": lambda t: t.clone(), "channels_last": channels_last, "scattered": scattered, "shifted": shifted,
         "transposed": lambda t: t.transpose(2, 3).contiguous().transpose(2, 3), "part": lambda t: torch.cat((t, t), 2)[:, :, :t.shape[2]]}
INPLACE = {"relu": (W.relu, F.relu), "tanh": (W.tanh, torch.tanh), "sigmoid": (W.sigmoid, torch.sigmoid),
           "hardtanh": (lambda x, **o: W.hardtanh(x, -0.3, 0.4, **o), lambda x: F.hardtanh(x, -0.3, 0.4)),
           "clipped_relu": (lambda x, **o: W.clipped_relu(x, 0.4, **o), lambda x: x.clamp(0, 0.4)),
           "softmax": (lambda x, **o: W.softmax(x, 1, **o), lambda x: F.softmax(x, 1)),
           "log_softmax": (lambda x, **o: W.log_softmax(x, 1, **o), lambda x: F.log_softmax(x, 1))}


@pytest.mark.parametrize("delegate", [True, False], ids=["torch", "own"])
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("name", INPLACE)
def test_out_is_the_input(name, view, delegate, device):
    ours, twin = INPLACE[name]
    x = torch.randn(3, 5, 6, 7, device=device)
    y = VIEWS[view](x)
    around = None if view != "part" else y._base if y._base is not None else y
    with weft.backends.flags(delegate=delegate):
        assert ours(y, out=y) is y
    torch.testing.assert_close(y, twin(x))
    if around is not None and around is not y:
        assert torch.equal(around[:, :, 6:], x), "memory beside the view was written"


def test_out_beside_the_input(device):
    """Memory that ends where the other begins, or lies between its elements, is the caller's to give; the same in another order is not."""
    line = torch.randn(64, device=device)
    for x, out in ((line[:8], line[8:16]), (line[8:16], line[:8]), (line[:16:2], line[1:17:2]), (line[8:10], line[0:32:16])):
        want = F.relu(x.clone())
        W.relu(x, out=out)
        assert torch.equal(out, want)
    square = torch.randn(5, 5, device=device)
    with pytest.raises(RuntimeError, match="out: shares memory with input"):
        W.relu(square, out=square.t())


def test_every_kernel_is_named(device):
    """The gradients of a transposed convolution: input, weight and bias, each by its own."""
    x, w, dy = (torch.randn(s, device=device) for s in ((2, 4, 6, 6), (4, 3, 3, 3), (2, 3, 8, 8)))
    with weft.backends.flags(delegate=False):
        torch.ops.weft.conv_backward(dy, x, w, [1, 1], [0] * 4, [1, 1], 1, True, 7, torch.float32)
    assert len(weft.backends.kernels().split(" + ")) == 3


# ---------------------------------------------------------------------------------------------- statistics

def test_a_measurement_moves_no_statistics(device):
    """The operator itself, with PyTorch's, which writes to its own arguments, among the candidates."""
    x = channels_last(torch.randn(3, 6, 5, 5, device=device) + 2)
    stats = [[torch.zeros(6, device=device), torch.ones(6, device=device)] for _ in range(2)]
    with weft.backends.flags(benchmark=True, measure_seconds=0.005):
        torch.ops.weft.batch_norm_train(x, None, None, *stats[0], 1e-5, 0.3)
    F.batch_norm(x, *stats[1], training=True, momentum=0.3)
    torch.testing.assert_close(stats[0], stats[1])
    weft.backends.wisdom.forget()


@pytest.mark.parametrize("delegate", [True, False], ids=["torch", "own"])
@pytest.mark.parametrize("momentum", [0.1, 0.6, None])
def test_benchmark_mode_moves_statistics_once(delegate, momentum, device):
    """A measurement runs each kernel several times, on data of its own."""
    for size in (5, 9):
        nets = [kind(6, momentum=momentum).to(device) for kind in (weft.nn.BatchNorm2d, torch.nn.BatchNorm2d)]
        x = torch.randn(3, 6, size, size + len(str(momentum)) + delegate, device=device) + 2
        with weft.backends.flags(benchmark=True, measure_seconds=0.01, delegate=delegate):
            for _ in range(2):
                y, want = (net(x) for net in nets)
                torch.testing.assert_close(y, want, rtol=1e-4, atol=1e-4)
        for a, b in zip(nets[0].buffers(), nets[1].buffers(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    weft.backends.wisdom.forget()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_benchmark_mode_changes_no_value(name, device):
    """What a measurement does to its buffers is not seen: arguments are as before, results as without it."""
    example = FUNCTIONS[name]
    tensors = example.make(device, grad=True, batch=2, size=7)
    kept = [t.detach().clone() for t in tensors]
    want = gradients(example.peer, [t.detach().clone().requires_grad_(t.requires_grad) for t in tensors])
    with weft.backends.flags(benchmark=True, measure_seconds=0.005):
        got = gradients(example.weft, tensors)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-4, atol=2e-5)
    if name != "batch_norm":   # moves its statistics, once: above
        assert all(torch.equal(t.detach(), k) for t, k in zip(tensors, kept))
    weft.backends.wisdom.forget()


# ---------------------------------------------------------------------------------------------- threads

@pytest.mark.parametrize("layout", [lambda t: t, lambda t: channels_last(t) if t.dim() > 2 else t], ids=["first", "last"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_same_bits_for_every_number_of_threads(name, layout, own):
    """Results and gradients of sizes that are cut into many slots."""
    example = FUNCTIONS[name]
    tensors = [layout(t.detach()).requires_grad_(t.requires_grad) if t.is_floating_point() else t for t in
               example.make("cpu", grad=True, batch=6, size=14 if name.endswith("3d") else 30)]
    found = []
    for threads in (1, 2, 7):
        torch.set_num_threads(threads)
        found.append(gradients(example.weft, tensors))
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))
