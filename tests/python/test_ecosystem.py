"""Every function of weft.functional in PyTorch's surroundings: compilers, transforms, autocast, checkpoints, profiles."""
from __future__ import annotations

import re
from contextlib import nullcontext

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

import weft
from everything import FUNCTIONS, OTHER_BATCH, OTHER_SIZE, gradients, results

every = pytest.mark.parametrize("example", FUNCTIONS.values(), ids=str)
NEAR = {torch.float32: 1e-4, torch.float64: 1e-9, torch.bfloat16: 4e-2, torch.float16: 1e-2}
NAMED = r"(weft|aten)::\w+"          # an error that says which operator it is about


@pytest.fixture(autouse=True)
def _as_before():
    yield
    torch.use_deterministic_algorithms(False)


def near(ours, expected, dtype=torch.float32):
    torch.testing.assert_close(ours, expected, rtol=NEAR[dtype], atol=NEAR[dtype])


def wefts_own(example):
    """Recurrent layers by weft's operator, which elsewhere may be PyTorch's."""
    return weft.backends.flags(delegate=False) if example.family == "rnn" else nullcontext()


# ---------------------------------------------------------------------------------------------- compilers

@every
def test_compile(example, device):
    """What is compiled, with its gradient, for one batch and size of image serves others. What is not mapped stands for parameters of a module,
    whose sizes are known. Of recurrent layers PyTorch's own would be unrolled, step by step."""
    torch.compiler.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(lambda *t: example.weft(*t), backend=counter, fullgraph=True, dynamic=True)
    graphs = []
    for sizes in ({}, {"batch": OTHER_BATCH, "size": OTHER_SIZE}):
        tensors = example.make(device, grad=True, **sizes)
        for i, t in enumerate(tensors):
            if i not in example.mapped:
                torch._dynamo.mark_static(t)
        with wefts_own(example):
            ours, eager = gradients(compiled, tensors), gradients(example.weft, tensors)
        near(ours, eager)
        assert [t.stride() for t in ours] == [t.stride() for t in eager]
        graphs.append(counter.frame_count)
    assert graphs[0] >= 1 and graphs[1] == graphs[0]


@pytest.mark.parametrize("name", ["conv2d", "batch_norm", "softmax"])
def test_inductor(name, device):
    """The default backend."""
    torch.compiler.reset()
    example = FUNCTIONS[name]
    tensors = example.make(device, grad=True)
    near(gradients(torch.compile(example.weft, fullgraph=True), tensors), gradients(example.weft, tensors))


class Wrapped(torch.nn.Module):
    def __init__(self, example):
        super().__init__()
        self.example = example

    def forward(self, *tensors):
        return self.example.weft(*tensors)


@every
def test_export(example, device):
    tensors = tuple(example.make(device))
    program = torch.export.export(Wrapped(example), tensors)
    near(results(program.module()(*tensors)), results(example.weft(*tensors)))
    assert "weft." in str(program.graph) or example.family == "rnn"


@every
@pytest.mark.filterwarnings("ignore")   # torch.jit.trace is deprecated, and sizes become constants
def test_jit_trace(example, device):
    tensors = example.make(device)
    with torch.no_grad():
        traced = torch.jit.trace(lambda *t: example.weft(*t), tensors, check_trace=False)
        other = example.make(device)
        near(results(traced(*other)), results(example.weft(*other)))
    assert "weft::" in str(traced.graph) or example.family == "rnn"


# ---------------------------------------------------------------------------------------------- shapes alone

@every
@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
def test_fake_and_meta_tensors(example, last, device):
    """Shape, type and strides as in a real run."""
    def laid_out(t):
        return t.to(memory_format=torch.channels_last if t.dim() == 4 else torch.channels_last_3d) if last and t.dim() in (4, 5) else t
    real = [laid_out(t) for t in example.make(device)]
    facts = lambda value: [(t.shape, t.dtype, t.stride()) for t in results(value)]
    expected = facts(example.weft(*real))
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(t) for t in real]
        made = example.weft(*fakes)
        assert facts(made) == expected and all(t.device.type == device.type for t in results(made))
    assert facts(example.weft(*[t.to("meta") for t in real])) == expected


# ---------------------------------------------------------------------------------------------- precision

@every
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=lambda d: str(d)[6:])
def test_autocast(example, dtype, device):
    """The twin's types, forward and backward, and values near the exact ones."""
    tensors = example.make(device, grad=True)
    exact = gradients(example.weft, [t.detach().double().requires_grad_() if t.is_floating_point() and t.requires_grad
                                     else t.double() if t.is_floating_point() else t for t in tensors])
    with torch.autocast(device.type, dtype=dtype):
        ours = gradients(example.weft, tensors)
        leaves = sum(t.requires_grad for t in tensors)
        try:
            expected = [t.dtype for t in gradients(example.peer, tensors)]
        except RuntimeError as error:   # oneDNN has no LSTM in float16 on most machines
            assert "primitive descriptor for the LSTM" in str(error)
            expected = [dtype] * (len(ours) - leaves) + [torch.float32] * leaves
        if device.type == "cuda":   # cuDNN's layers run in float16 whatever was asked for
            with torch.no_grad():
                forward = [t.dtype for t in results(example.call(example.twin, *tensors))]
            expected[:len(forward)] = forward
    assert [t.dtype for t in ours] == expected
    for a, b in zip(ours, exact):
        a, b = a.double(), b.double()
        assert (a - b).abs().max() <= NEAR[dtype] * b.abs().max().clamp(min=1)


# ---------------------------------------------------------------------------------------------- torch.func

@every
def test_vmap(example, device):
    """A batch of batches equals the loop; recurrent layers, which PyTorch has no rule for either, are refused by name."""
    sets = [example.make(device) for _ in range(3)]
    shared = sets[0]
    in_dims = tuple(0 if i in example.mapped else None for i in range(len(shared)))
    stacked = [torch.stack([s[i] for s in sets]) if d == 0 else shared[i] for i, d in enumerate(in_dims)]
    try:
        ours = results(torch.vmap(example.weft, in_dims)(*stacked))
    except RuntimeError as error:
        assert example.family == "rnn" and re.search(NAMED, str(error)), error
        return
    loop = [results(example.weft(*[s[i] if d == 0 else shared[i] for i, d in enumerate(in_dims)])) for s in sets]
    near(ours, [torch.stack(some) for some in zip(*loop)])


def _floats(example, device):
    """A function of the differentiable tensors alone, and those."""
    tensors = example.make(device, torch.float64, grad=True)
    places = [i for i, t in enumerate(tensors) if t.requires_grad]

    def run(*leaves):
        given = dict(zip(places, leaves))
        made = results(example.weft(*[given.get(i, t.detach()) for i, t in enumerate(tensors)]))
        return made[0]
    return run, tuple(tensors[i].detach() for i in places)


@every
def test_vjp_and_grad(example, device):
    run, leaves = _floats(example, device)
    y, pull = torch.func.vjp(run, *leaves)
    cotangent = torch.randn_like(y)
    graph = [t.clone().requires_grad_() for t in leaves]
    near(pull(cotangent), torch.autograd.grad(run(*graph), graph, cotangent), torch.float64)
    near(torch.func.grad(lambda *t: run(*t).square().sum())(*leaves), torch.autograd.grad(run(*graph).square().sum(), graph[0])[0], torch.float64)


@every
def test_forward_mode(example, device):
    """<J v, u> = <v, J' u>."""
    run, leaves = _floats(example, device)
    steps = tuple(torch.randn_like(t) for t in leaves)
    y, moved = torch.func.jvp(run, leaves, steps)
    cotangent = torch.randn_like(y)
    back = torch.func.vjp(run, *leaves)[1](cotangent)
    near((moved * cotangent).sum(), sum((b * s).sum() for b, s in zip(back, steps)), torch.float64)


# ---------------------------------------------------------------------------------------------- training

@every
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(example, reentrant, device):
    tensors = example.make(device, grad=True)
    again = gradients_by_backward(lambda *t: checkpoint(example.weft, *t, use_reentrant=reentrant), tensors)
    for a, b in zip(again, gradients_by_backward(example.weft, tensors)):   # a later call may reach PyTorch's code by a shorter way
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def gradients_by_backward(run, tensors):
    """By .backward(), which checkpoints of the old kind insist on."""
    leaves = [t.detach().requires_grad_(t.requires_grad) for t in tensors]
    results(run(*leaves))[0].square().sum().backward()
    return [t.grad for t in leaves if t.requires_grad]


@every
def test_deterministic_algorithms(example, device):
    """On a GPU PyTorch refuses its recurrent layers here unless an environment variable tells cuBLAS so."""
    torch.use_deterministic_algorithms(True)
    tensors = example.make(device, grad=True)
    with wefts_own(example) if device.type == "cuda" else nullcontext():
        first, second = gradients(example.weft, tensors), gradients(example.weft, tensors)
    assert all(torch.equal(a, b) for a, b in zip(first, second))


@every
def test_profiler(example, device):
    tensors = example.make(device, grad=True)
    with wefts_own(example):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            gradients(example.weft, tensors)
    names = {event.name for event in profile.events()}
    assert f"weft::{example.operator}" in names, sorted(n for n in names if "weft" in n)


# ---------------------------------------------------------------------------------------------- subclasses

class Marked(torch.Tensor):
    pass


class Seen(torch.overrides.TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.functions = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.functions.append(function)
        return function(*args, **(kwargs or {}))


@every
@pytest.mark.parametrize("grad", [False, True])
def test_torch_function(example, grad, device):
    tensors = example.make(device, grad=grad)
    plain = results(example.weft(*tensors))
    marked = results(example.weft(tensors[0].as_subclass(Marked), *tensors[1:]))
    assert all(type(t) is Marked for t in marked) and [t.requires_grad for t in marked] == [t.requires_grad for t in plain]
    near(tuple(t.as_subclass(torch.Tensor) for t in marked), tuple(plain))   # a plain call may be PyTorch's where this one is not
    with Seen() as mode:
        example.weft(*tensors)
    assert example.function in mode.functions
