"""Recurrent functions and modules under torch.compile, export, autocast, tracing and checkpoints, by PyTorch's kernels and by weft's."""
from __future__ import annotations

import copy
import os
import pickle

import pytest
import torch

import weft
import weft.functional as W
from test_torch_rnn import CASES, HIDDEN, INPUTS, MANY, PLAIN, Case, data, flat, operator_call, parameters, side  # noqa: F401  side: a fixture


@pytest.mark.parametrize("case,dtype", [(Case("RNN"), torch.float64), (Case("LSTM"), torch.float32), (Case("LSTM"), torch.float64),
                                        (Case("GRU", {"batch_first": True}), torch.float32)], ids=str)
def test_compiled_function(case, dtype, device, side):
    """One graph, with gradients, for two sizes. Of PyTorch's layers it has every step: two will do."""
    if side == "torch" and os.environ.get("WEFT_SLOW", "0") in ("", "0"):
        pytest.skip("make slow: compiles PyTorch's own steps")
    torch.compiler.reset()
    _, (_, kind, *_, first) = operator_call(case, device)
    params, graphs = [p.to(dtype).requires_grad_() for p in parameters(case, device)], []

    def backend(graph, inputs):
        from torch._dynamo.backends.debugging import aot_eager
        graphs.append(graph)
        return aot_eager(graph, inputs)

    def f(x, h, c, *params):
        return getattr(W, kind)(x, h if c is None else (h, c), list(params), True, 1, 0.0, True, False, first)[0].sin()
    compiled = torch.compile(f, fullgraph=True, backend=backend, dynamic=True)
    for many in (MANY, 5):
        x = data(device, dtype, first, many).narrow(1 if first else 0, 0, 2).requires_grad_()
        h, c = [*(t.requires_grad_() for t in case.states(device, dtype, many)), None][:2]
        given = [t for t in (x, h, c, *params) if t is not None]
        found = [torch.autograd.grad(g(x, h, c, *params).sum(), given) for g in (compiled, f)]
        torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)
    assert len(graphs) == 1


@pytest.mark.parametrize("case", PLAIN, ids=str)
def test_compiled_module_runs(case, device, side):
    """torch.compile leaves recurrent modules out of its graphs; what surrounds them is compiled."""
    torch.compiler.reset()

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers, self.head = getattr(weft.nn, case.module)(INPUTS, HIDDEN, **case.options), torch.nn.Linear(HIDDEN, 2)

        def forward(self, x):
            return self.head(self.layers(x * 2)[0]).relu()
    model, x = Model().to(device), data(device, torch.float32)
    compiled = torch.compile(model, backend="aot_eager")
    found = [torch.autograd.grad(f(x).sum(), list(model.parameters())) for f in (compiled, model)]
    torch.testing.assert_close(found[0], found[1])


def test_export(device, side):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.GRU(INPUTS, HIDDEN)

        def forward(self, x, h):
            return W.gru(x, h, list(self.layers.parameters()), True, 1, 0.0, False, False, False)[0]
    model, x = Model().to(device), data(device, torch.float32)
    h = torch.zeros(1, MANY, HIDDEN, device=device)
    program = torch.export.export(model, (x, h))
    torch.testing.assert_close(program.module()(x, h), model(x, h))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("case", [Case("RNN"), Case("LSTM"), Case("GRU")], ids=str)
def test_autocast(case, dtype, device, side):
    """Results have the twin's type. Where PyTorch's libraries have none of that type, or take float16 for it, weft's is what was asked for."""
    ours, _ = case.pair(device, torch.float32)
    twin = getattr(torch.nn, case.module)(INPUTS, HIDDEN).to(device)
    x = data(device, torch.float32)
    apart = device.type == "cuda" or (case.lstm and dtype == torch.float16)
    with torch.autocast(device.type, dtype=dtype):
        if side == "weft":
            assert {t.dtype for t in flat(ours(x))} == ({dtype} if apart else {t.dtype for t in flat(twin(x))})
            assert ours.double()(x.double())[0].dtype == torch.float64
        elif device.type == "cuda" or not apart:
            assert [t.dtype for t in flat(ours(x))] == [t.dtype for t in flat(twin(x))]
            assert ours.double()(x.double())[0].dtype == twin.double()(x.double())[0].dtype


@pytest.mark.delegates
@pytest.mark.parametrize("case", CASES, ids=str)
def test_module_is_the_twin_but_for_its_name(case):
    ours, twin = getattr(weft.nn, case.module)(INPUTS, HIDDEN, **case.options), getattr(torch.nn, case.module)(INPUTS, HIDDEN, **case.options)
    assert isinstance(ours, type(twin)) and repr(ours) == "weft." + repr(twin)
    x = data("cpu", torch.float32, case.options.get("batch_first", False))
    with weft.backends.pin("torch"):
        for source, target in ((twin, ours), (ours, twin)):
            target.load_state_dict(source.state_dict(), strict=True)
            assert torch.equal(ours(x)[0], twin(x)[0])
        for copied in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
            assert type(copied) is type(ours) and torch.equal(copied(x)[0], ours(x)[0])
        twin.__class__ = type(ours)   # as weft.convert does it
        assert torch.equal(twin(x)[0], ours(x)[0]) and weft.backends.kernels() == f"torch_{case.function}"
    assert ours.double()(x.double())[0].dtype == torch.float64


def test_changed_weights_are_seen(device, side):
    ours, _ = Case("LSTM").pair(device, torch.float32)
    x = data(device, torch.float32)
    before = ours(x)[0]
    ours.weight_ih_l0 = torch.nn.Parameter(ours.weight_ih_l0.detach() * 2)
    assert not torch.equal(ours(x)[0], before)


def test_subclasses_of_tensor(side):
    seen = []

    class Watched(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            seen.append(function)
            return super().__torch_function__(function, types, args, kwargs or {})
    (x, h, *_), _ = operator_call(Case("GRU"), "cpu", grad=False)
    params = parameters(Case("GRU"), "cpu")
    y = W.gru(x.as_subclass(Watched), h, params, True, 1, 0.0, False, False, False)[0]
    assert W.gru in seen and torch.equal(torch.Tensor(y), W.gru(x, h, params, True, 1, 0.0, False, False, False)[0])


def test_symbolic_trace(side):
    """torch.fx records the function, in both forms."""
    params = list(torch.nn.GRU(INPUTS, HIDDEN).parameters())

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.params = torch.nn.ParameterList(params)

        def forward(self, x, h, sizes=None):
            rest = (list(self.params), True, 1, 0.0, False, False)
            return W.gru(x, sizes, h, *rest)[0] if packed else W.gru(x, h, *rest, False)[0]
    x, h = data("cpu", torch.float32), torch.randn(1, MANY, HIDDEN)
    for packed, args in ((False, (x, h)), (True, (x.flatten(0, 1)[:6], h, torch.tensor([3, 2, 1])))):
        traced = torch.fx.symbolic_trace(Model())
        assert W.gru in [node.target for node in traced.graph.nodes]
        assert torch.equal(traced(*args), Model()(*args))


@pytest.mark.filterwarnings("ignore")   # of tracing: it is out of date, and sizes become constants
def test_traced_and_exported_modules(device, side):
    net, x = weft.nn.GRU(INPUTS, HIDDEN).to(device), data(device, torch.float32)
    with torch.no_grad():
        torch.testing.assert_close(torch.jit.trace(net, x)(x)[0], net(x)[0])
        torch.testing.assert_close(torch.export.export(net, (x,)).module()(x), net(x))


def test_checkpoint(device, side):
    from torch.utils.checkpoint import checkpoint
    ours, _ = Case("LSTM", {"num_layers": 2, "dropout": 0.5}).pair(device, torch.float32)
    x = data(device, torch.float32).requires_grad_()
    found = []
    for f in (ours, lambda x: checkpoint(ours, x, use_reentrant=False)):
        torch.manual_seed(3)
        found.append(torch.autograd.grad(f(x)[0].sum(), [x, *ours.parameters()]))
    torch.testing.assert_close(found[0], found[1])
