"""Recurrent functions and modules beside torch.nn's, by PyTorch's kernels (the default) and by weft's."""
from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence

import weft
import weft.functional as W
from cases import DTYPES, close, scattered, shifted
from weft.functional import rnn
from weft.functional.rnn import KINDS

INPUTS, HIDDEN, STEPS, MANY = 4, 6, 5, 3


@dataclass(frozen=True)
class Case:
    """A module's class and arguments."""

    module: str
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def lstm(self) -> bool:
        return self.module == "LSTM"

    @property
    def function(self) -> str:
        return self.module.lower() if self.module != "RNN" else "rnn_" + self.options.get("nonlinearity", "tanh")

    def pair(self, device: Any, dtype: torch.dtype = torch.float64) -> tuple[Any, Any]:
        """weft's module, and the twin with the same values in float64 on the CPU."""
        ours = getattr(weft.nn, self.module)(INPUTS, HIDDEN, **self.options).to(device, dtype)
        twin = getattr(torch.nn, self.module)(INPUTS, HIDDEN, **self.options).double()
        twin.load_state_dict({k: v.double().cpu() for k, v in ours.state_dict().items()})
        return ours, twin

    def states(self, device: Any, dtype: torch.dtype, many: int = MANY) -> tuple[torch.Tensor, ...]:
        stack = self.options.get("num_layers", 1) * (2 if self.options.get("bidirectional") else 1)
        sizes = [self.options.get("proj_size") or HIDDEN] + [HIDDEN] * self.lstm
        return tuple(torch.randn(stack, many, n).to(device, dtype) for n in sizes)

    def __str__(self) -> str:
        return "-".join([self.module, *(k if v is True else f"{k}={v}" for k, v in self.options.items())])


CASES = [
    Case("RNN"), Case("RNN", {"nonlinearity": "relu", "num_layers": 2, "bidirectional": True}), Case("RNN", {"bias": False}),
    Case("LSTM"), Case("LSTM", {"num_layers": 2, "bidirectional": True, "batch_first": True}), Case("LSTM", {"bias": False}),
    Case("LSTM", {"proj_size": 2}), Case("LSTM", {"num_layers": 2, "bidirectional": True, "proj_size": 3, "bias": False}),
    Case("GRU"), Case("GRU", {"num_layers": 3, "batch_first": True}), Case("GRU", {"bidirectional": True, "bias": False}),
]
PLAIN = [Case("RNN"), Case("RNN", {"nonlinearity": "relu"}), Case("LSTM"), Case("GRU")]
DEEP = [Case(m, {"num_layers": 2, "bidirectional": True}) for m in ("RNN", "LSTM", "GRU")]


@pytest.fixture
def wefts():
    """weft's kernels only."""
    with weft.backends.flags(delegate=False):
        yield


@pytest.fixture(params=["torch", "weft"])
def side(request):
    """PyTorch's kernels, then weft's."""
    with weft.backends.pin("torch") if request.param == "torch" else weft.backends.flags(delegate=False):
        yield request.param


def flat(result: Any) -> list[torch.Tensor]:
    """The tensors of (output, hidden), packed or not."""
    y, hidden = result
    return [y.data if isinstance(y, PackedSequence) else y, *(hidden if isinstance(hidden, tuple) else (hidden,))]


def exact(value: Any) -> Any:
    """A leaf in float64 on the CPU; also of packed data and of pairs."""
    if isinstance(value, PackedSequence):
        return PackedSequence(exact(value.data), value.batch_sizes, *(None if i is None else i.cpu() for i in value[2:]))
    if isinstance(value, tuple):
        return tuple(exact(t) for t in value)
    return None if value is None else value.detach().double().cpu().requires_grad_()


def leaves_of(*values: Any) -> list[torch.Tensor]:
    found = []
    for v in values:
        found += leaves_of(*v) if isinstance(v, tuple) and not isinstance(v, PackedSequence) else [v.data if isinstance(v, PackedSequence) else v]
    return [t for t in found if t is not None]


def agree(ours: Any, twin: Any, input: Any, hx: Any = None) -> None:
    """Results and every gradient of a module beside those of its twin in float64."""
    true = [exact(input), exact(hx)]
    got, want = flat(ours(input, hx)), flat(twin(*true))
    seeds = [torch.randn_like(t) for t in got]
    grads = torch.autograd.grad(got, [*leaves_of(input, hx), *ours.parameters()], seeds)
    truth = torch.autograd.grad(want, [*leaves_of(*true), *twin.parameters()], [s.double().cpu() for s in seeds])
    terms = STEPS * MANY * (INPUTS + HIDDEN) * ours.num_layers * (2 if ours.bidirectional else 1)
    for a, b in zip([*got, *grads], [*want, *truth], strict=True):
        close(a.detach().cpu(), b.detach(), terms)


def data(device: Any, dtype: torch.dtype, batch_first: bool = False, many: int = MANY) -> torch.Tensor:
    return torch.randn(*((many, STEPS) if batch_first else (STEPS, many)), INPUTS).to(device, dtype)


# ---------------------------------------------------------------------------------------------- weft's kernels beside the truth

@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_module(case, dtype, device, wefts):
    ours, twin = case.pair(device, dtype)
    first = case.options.get("batch_first", False)
    h = tuple(t.requires_grad_() for t in case.states(device, dtype))
    agree(ours, twin, data(device, dtype, first).requires_grad_(), h if case.lstm else h[0])
    fast = device.type == "cpu" and dtype != torch.float64 and "proj_size" not in case.options
    reference = f"{case.function}_ref" + ("__cuda" if device.type == "cuda" else "")
    assert weft.backends.kernels().rpartition("__")[0] == f"{case.function}_bwd_team" if fast else weft.backends.kernels() == reference
    agree(ours, twin, data(device, dtype, first).requires_grad_())


@pytest.mark.parametrize("case", PLAIN, ids=str)
@pytest.mark.parametrize("view", [scattered, shifted, lambda t: t.transpose(0, 1).contiguous().transpose(0, 1), lambda t: t[:1].expand(STEPS, -1, -1)],
                         ids=["scattered", "shifted", "transposed", "expanded"])
def test_views(case, view, device, wefts):
    ours, twin = case.pair(device, torch.float32)
    h = tuple(view(t).requires_grad_() if view is scattered else t for t in case.states(device, torch.float32))
    if view is not scattered:
        h = tuple(t[:, :1].expand(-1, MANY, -1).requires_grad_() for t in h)
    agree(ours, twin, view(data(device, torch.float32)).detach().requires_grad_(), h if case.lstm else h[0])


@pytest.mark.parametrize("case", DEEP, ids=str)
@pytest.mark.parametrize("sort", [True, False])
def test_packed(case, sort, device, wefts):
    ours, twin = case.pair(device, torch.float32)
    lengths = [5, 3, 2] if sort else [2, 5, 3]
    packed = pack_padded_sequence(data(device, torch.float32), torch.tensor(lengths), enforce_sorted=sort)
    packed = PackedSequence(packed.data.detach().requires_grad_(), *packed[1:])
    h = tuple(t.requires_grad_() for t in case.states(device, torch.float32))
    agree(ours, twin, packed, h if case.lstm else h[0])
    agree(ours, twin, packed)
    y, _ = ours(packed)
    assert torch.equal(y.batch_sizes, packed.batch_sizes) and y.sorted_indices is packed.sorted_indices


@pytest.mark.parametrize("case", [*PLAIN, Case("LSTM", {"batch_first": True, "bidirectional": True})], ids=str)
def test_unbatched(case, device, wefts):
    ours, twin = case.pair(device, torch.float32)
    h = tuple(t[:, 0].detach().requires_grad_() for t in case.states(device, torch.float32))
    agree(ours, twin, data(device, torch.float32)[:, 0].detach().requires_grad_(), h if case.lstm else h[0])


@pytest.mark.parametrize("case", DEEP, ids=str)
def test_some_inputs_without_gradient(case, device, wefts):
    ours, twin = case.pair(device, torch.float64)
    x = data(device, torch.float64)
    for p in ours.parameters():
        p.requires_grad_(False)
    ours.bias_hh_l1.requires_grad_()
    last = flat(ours(x))[1]
    last.sum().backward()
    flat(twin(x.cpu()))[1].sum().backward()
    close(ours.bias_hh_l1.grad.cpu(), twin.bias_hh_l1.grad)
    assert ours.weight_ih_l0.grad is None


def test_parameters_in_order_are_not_copied(device, wefts):
    """One vector with the parameters where weft wants them, and the same ones apart."""
    case = Case("GRU", {"num_layers": 2, "bias": False})
    ours, twin = case.pair(device, torch.float32)
    memory = torch.cat([p.detach().flatten() for p in ours.parameters()])
    for p, piece in zip(ours.parameters(), memory.split([p.numel() for p in ours.parameters()])):
        p.data = piece.view(p.shape)
    agree(ours, twin, data(device, torch.float32).requires_grad_())
    ours.weight_hh_l1.data = ours.weight_hh_l1.data.t().contiguous().t()
    agree(ours, twin, data(device, torch.float32).requires_grad_())


# ---------------------------------------------------------------------------------------------- both roads beside the twin

@pytest.mark.parametrize("case", CASES, ids=str)
def test_strides_of_the_twin(case, device, side):
    ours, _ = case.pair(device, torch.float32)
    twin = getattr(torch.nn, case.module)(INPUTS, HIDDEN, **case.options).to(device)
    first = case.options.get("batch_first", False)
    for many in (MANY, 1, 0):
        x, found = data(device, torch.float32, first, many).requires_grad_(), []
        for net in (ours, twin):
            made = flat(net(x))
            gradient = torch.autograd.grad(made, x, [torch.ones_like(t) for t in made]) if many and device.type == "cpu" else ()
            found.append([(t.shape, t.stride()) for t in (*made, *gradient)])
        assert found[0] == found[1]


@pytest.mark.delegates
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_pinned_torch_is_the_twin(case, dtype, device):
    """PyTorch's kernels give PyTorch's results: with gradients, whole, unbatched and packed."""
    ours = getattr(weft.nn, case.module)(INPUTS, HIDDEN, **case.options).to(device, dtype)
    twin = getattr(torch.nn, case.module)(INPUTS, HIDDEN, **case.options).to(device, dtype)
    twin.load_state_dict(ours.state_dict())
    x = data(device, dtype, case.options.get("batch_first", False))
    packed = pack_sequence([torch.randn(n, INPUTS).to(device, dtype) for n in (2, 5, 4)], enforce_sorted=False)
    for input in (x, x[0], packed):
        results = []
        for net in (ours, twin):
            with weft.backends.pin("torch"):
                got = flat(net(input))
            results.append([*got, *torch.autograd.grad(got, list(net.parameters()), [torch.ones_like(t) for t in got])])
        assert weft.backends.kernels() == f"torch_{case.function}"
        for a, b in zip(*results, strict=True):
            if device.type == "cpu":
                assert torch.equal(a, b)
            else:   # cuDNN's gradients are sums in any order
                close(a.detach(), b.detach(), STEPS * MANY)


@pytest.mark.parametrize("case", PLAIN, ids=str)
def test_functions_take_both_forms_by_position_and_by_name(case, device, side):
    _, twin = case.pair("cpu")
    params, (h, *c) = [p.detach().to(device) for p in twin.parameters()], case.states(device, torch.float64)
    hx, function = (h, *c) if c else h, getattr(W, case.function)
    x, sizes = data(device, torch.float64), torch.tensor([3, 2, 1])
    for form in ((("input", x), ("hx", hx)), (("data", x.flatten(0, 1)[:6]), ("batch_sizes", sizes), ("hx", hx))):
        rest = dict(params=params, has_biases=True, num_layers=1, dropout=0.0, train=False, bidirectional=False)
        if len(form) == 2:
            rest["batch_first"] = False
        args = [v for _, v in form]
        for got in (function(*args, *rest.values()), function(**dict(form), **rest), function(*args, **rest), function(args[0], **dict(form[1:]), **rest)):
            want = getattr(torch._VF, case.function)(*[t.cpu() if isinstance(t, torch.Tensor) else tuple(s.cpu() for s in t) for t in args],
                                                     [p.cpu() for p in params], *list(rest.values())[1:])
            torch.testing.assert_close([t.cpu() for t in got], list(want))


@pytest.mark.parametrize("case", PLAIN, ids=str)
def test_no_sequences(case, device, side):
    ours, _ = case.pair(device, torch.float32)
    x = torch.empty(STEPS, 0, INPUTS, device=device, requires_grad=True)
    got = flat(ours(x))
    assert [tuple(t.shape) for t in got] == [(STEPS, 0, HIDDEN)] + [(1, 0, HIDDEN)] * (len(got) - 1)
    got[0].sum().backward()
    assert all(p.grad.abs().sum() == 0 for p in ours.parameters()) and x.grad.shape == x.shape


@pytest.mark.delegates
def test_pinned_kernel_wins(device):
    net, x = weft.nn.GRU(INPUTS, HIDDEN).to(device), data(device, torch.float32)
    suffix = "__cuda" if device.type == "cuda" else ""
    with weft.backends.pin("gru_ref" + suffix):
        net(x)
        assert weft.backends.kernels() == "gru_ref" + suffix
    with weft.backends.pin("lstm_ref"):   # for another operator
        net(x)
        assert "gru" in weft.backends.kernels() and "ref" not in weft.backends.kernels()


@pytest.mark.delegates
def test_what_the_choice_is_made_for(monkeypatch):
    """Steps and sequences, in whichever order they come; of packed data the steps, the sequences of the first and the rows."""
    asked = []
    monkeypatch.setattr(rnn, "_wins", lambda kind, *sizes: asked.append(sizes) or False)
    rnn._wins.cache_clear = lambda: None
    x = torch.randn(STEPS, MANY, INPUTS)
    for net, given in ((weft.nn.GRU(INPUTS, HIDDEN, 2), x), (weft.nn.GRU(INPUTS, HIDDEN, 2, batch_first=True), x.transpose(0, 1)),
                       (weft.nn.GRU(INPUTS, HIDDEN, 2), pack_sequence([x[:, 0], x[:2, 1]]))):
        with torch.no_grad():
            net(given)
        net(given)
    sizes = (INPUTS, HIDDEN, 2, False, True)
    assert asked == [(STEPS, MANY, *sizes, 0, False), (STEPS, MANY, *sizes, 0, True)] * 2 + [(STEPS, 2, *sizes, STEPS + 2, False), (STEPS, 2, *sizes, STEPS + 2, True)]


@pytest.mark.delegates
@pytest.mark.parametrize("kind", KINDS)
def test_the_choice_follows_the_settings(kind):
    """Under another limit on workspace it is made anew: what was chosen before may run by the reference there."""
    net = {"rnn_relu": lambda: weft.nn.RNN(16, 16, nonlinearity="relu"), "rnn_tanh": lambda: weft.nn.RNN(16, 16)}.get(kind, lambda: getattr(weft.nn, kind.upper())(16, 16))()
    x, ran = torch.randn(10, 1, 16), []

    def kernels():
        with torch.no_grad():
            net(x)
        return weft.backends.kernels()
    for fresh in (True, False):
        for limit in (None, 1, None):
            with weft.backends.flags(workspace_limit=limit):
                if fresh:
                    rnn._wins.cache_clear()
                ran.append(kernels())
    assert ran[:3] == ran[3:] and not any("_ref" in name for name in ran)


def test_the_faster_one_is_chosen():
    """By estimate, forward alone and with a gradient, whole and packed. PyTorch's where something is dropped, under autocast and in float64."""
    def chosen(net: Any, x: Any, grad: bool = False) -> str:
        with torch.set_grad_enabled(grad):
            net(x)
        return weft.backends.kernels()
    gru, lstm, x = weft.nn.GRU(64, 64), weft.nn.LSTM(256, 256), torch.randn(6, 2, 64)
    packed = pack_sequence([torch.randn(n, 64) for n in (6, 4)])
    for input, grad in ((x, False), (x, True), (packed, False), (packed, True)):
        assert chosen(gru, input, grad).startswith("gru_fwd")
    assert chosen(lstm, torch.randn(50, 64, 256)) == "torch_lstm"   # near the peak there
    assert chosen(gru.double(), x.double()) == "torch_gru"
    assert chosen(weft.nn.GRU(64, 64, 2, dropout=0.5), x, True) == "torch_gru"
    with torch.autocast("cpu", torch.bfloat16):
        assert chosen(gru.float(), x) == "torch_gru"


@pytest.mark.parametrize("case", [Case("RNN"), Case("LSTM"), Case("GRU")], ids=str)
def test_types_that_weft_leaves_to_torch(case, device, side):
    """Complex numbers."""
    if device.type == "cuda" and case.function != "rnn_tanh":
        pytest.skip("PyTorch has no complex LSTM or GRU on CUDA")
    _, twin = case.pair("cpu")
    params, (h, *c) = [p.detach().to(device, torch.complex128) for p in twin.parameters()], case.states(device, torch.complex128)
    rest = ((h, *c) if c else h, params, True, 1, 0.0, False, False, False)
    x = data(device, torch.complex128)
    torch.testing.assert_close(getattr(W, case.function)(x, *rest), getattr(torch._VF, case.function)(x, *rest))


# ---------------------------------------------------------------------------------------------- derivatives

def parameters(case: Case, device: Any) -> list[torch.Tensor]:
    """Of the twin, in float64."""
    return [p.detach().to(device) for p in case.pair("cpu")[1].parameters()]


def operator_call(case: Case, device: Any, packed: bool = False, grad: bool = True) -> tuple[list[Any], list[Any]]:
    """Tensors of weft::rnn_forward and what follows them."""
    first = case.options.get("batch_first", False)
    h = case.states(device, torch.float64)
    x = data(device, torch.float64, first)
    sizes = torch.tensor([3, 2, 1]) if packed else None
    weights, biases = ([p.flatten() for p in parameters(case, device) if p.dim() == rank] for rank in (2, 1))
    tensors = [x.flatten(0, 1)[:6] if packed else x, h[0], h[1] if case.lstm else None, torch.cat(weights), torch.cat(biases) if biases else None]
    tensors = [None if t is None else t.detach().requires_grad_(grad) for t in tensors]
    return tensors, [sizes, case.function, case.options.get("num_layers", 1), 0.0, case.options.get("bidirectional", False), first and not packed]


SMALL = [Case("RNN", {"bidirectional": True}), Case("LSTM", {"proj_size": 2, "num_layers": 2}), Case("GRU", {"num_layers": 2, "batch_first": True})]


def forward(tensors: list[Any], settings: list[Any], keep: bool = True) -> tuple[torch.Tensor, ...]:
    return torch.ops.weft.rnn_forward(*tensors, *settings, 0, keep)


def of_leaves(case: Case, tensors: list[Any], settings: list[Any]) -> Any:
    """The operator as a function of the tensors that are there, with the results that have gradients."""
    def f(*some: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rest = iter(some)
        return forward([None if t is None else next(rest) for t in tensors], settings)[:3 if case.lstm else 2]
    return f


@pytest.mark.parametrize("packed", [False, True], ids=["whole", "packed"])
@pytest.mark.parametrize("case", SMALL, ids=str)
def test_gradcheck(case, packed, device):
    tensors, settings = operator_call(case, device, packed)
    given, f = [t for t in tensors if t is not None], of_leaves(case, tensors, settings)
    assert torch.autograd.gradcheck(f, given, fast_mode=True)
    assert torch.autograd.gradgradcheck(f, given, fast_mode=True)


@pytest.mark.parametrize("case", DEEP, ids=str)
def test_third_order(case, device):
    """Derivatives of derivatives beside those of the twin."""
    net, _ = case.pair(device)
    x = data(device, torch.float64).requires_grad_()
    found = []
    for delegate in (False, True):
        with weft.backends.flags(delegate=delegate), torch.backends.cudnn.flags(enabled=False):
            value = sum(t.sin().sum() for t in flat(net(x)))
            for _ in range(3):
                grads = torch.autograd.grad(value, [x, net.weight_hh_l0, net.bias_ih_l1], create_graph=True)
                value = sum(g.square().sum() for g in grads)
        found.append(grads)
    torch.testing.assert_close(found[0], found[1], rtol=1e-8, atol=1e-8)


def test_other_derivatives_with_dropout_are_refused(device, wefts):
    net, x = weft.nn.GRU(INPUTS, HIDDEN, 2, dropout=0.5).to(device), data(device, torch.float32).requires_grad_()
    grad, = torch.autograd.grad(net(x)[0].sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative with dropout 0.5"):
        grad.sum().backward()
    with pytest.raises(RuntimeError, match="no forward-mode derivative with dropout 0.5"), torch.autograd.forward_ad.dual_level():
        net(torch.autograd.forward_ad.make_dual(x.detach(), x.detach()))


def test_gradient_without_what_it_needs_is_refused(device):
    tensors, settings = operator_call(Case("GRU"), device)
    with pytest.raises(RuntimeError, match="keep is False, allowed: True where a gradient is wanted"):
        forward(tensors, settings, keep=False)[0].sum().backward()


@pytest.mark.parametrize("packed", [False, True], ids=["whole", "packed"])
@pytest.mark.parametrize("case", [*SMALL, Case("RNN", {"bias": False, "nonlinearity": "relu"})], ids=str)
def test_opcheck(case, packed, device):
    tensors, settings = operator_call(case, device, packed)
    args = (*tensors, *settings, 0, True)
    torch.library.opcheck(torch.ops.weft.rnn_forward.default, args)
    y, hn, cn, reserve = (t.detach() for t in torch.ops.weft.rnn_forward(*args))
    grads = (torch.randn_like(y), None, torch.randn_like(cn) if case.lstm else None)
    torch.library.opcheck(torch.ops.weft.rnn_backward.default, (*tensors[:3], reserve, *grads, *tensors[3:], *settings, 0),
                          test_utils=("test_schema", "test_faketensor", "test_autograd_registration"))


def test_torch_func(device, wefts):
    if device.type == "cuda":
        pytest.skip("torch.nn's recurrent modules flatten their parameters on CUDA, which torch.func refuses")
    net, x = weft.nn.LSTM(INPUTS, HIDDEN).to(device), data(device, torch.float32)
    params = {k: v.detach() for k, v in net.named_parameters()}

    def loss(params):
        return torch.func.functional_call(net, params, (x,))[0].square().sum()
    for name, g in torch.func.grad(loss)(params).items():
        want, = torch.autograd.grad(net(x)[0].square().sum(), getattr(net, name))
        torch.testing.assert_close(g, want)


@pytest.mark.parametrize("packed", [False, True], ids=["whole", "packed"])
@pytest.mark.parametrize("case", [*SMALL, Case("RNN", {"nonlinearity": "relu"})], ids=str)
def test_forward_mode(case, packed, device):
    """<J v, u> = <v, J' u> of weft's operator; and the gradient of <J v, u> beside a difference."""
    tensors, settings = operator_call(case, device, packed)
    leaves = tuple(t.detach() for t in tensors if t is not None)
    steps, f = tuple(torch.randn_like(t) for t in leaves), of_leaves(case, tensors, settings)
    results, moved = torch.func.jvp(f, leaves, steps)
    seeds = tuple(torch.randn_like(y) for y in results)
    back = torch.func.vjp(f, *leaves)[1](seeds)
    dot = lambda some, others: sum((a * b).sum() for a, b in zip(some, others, strict=True))
    torch.testing.assert_close(dot(moved, seeds), dot(steps, back))
    along = lambda *some: dot(torch.func.jvp(f, some, steps)[1], seeds)
    ahead, behind = (along(*(t + e * s for t, s in zip(leaves, steps))) for e in (1e-5, -1e-5))
    torch.testing.assert_close(dot(torch.func.grad(along, argnums=tuple(range(len(leaves))))(*leaves), steps), (ahead - behind) / 2e-5, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("case", [*CASES, Case("LSTM", {"num_layers": 2, "dropout": 0.5})], ids=str)
def test_gradients_in_eval_mode(case, device, side):
    """cuDNN refuses them. Nothing is dropped. In float64: in float32 cuDNN's own error is over the bound of a plain sum."""
    ours, twin = case.pair(device, torch.float64)
    agree(ours.eval(), twin.eval(), data(device, torch.float64, case.options.get("batch_first", False)).requires_grad_())


@pytest.mark.delegates
def test_vmap_is_refused(device):
    """By PyTorch's layers and by weft's operator, each in its words."""
    (x, h, *_), _ = operator_call(Case("GRU"), device, grad=False)
    params = parameters(Case("GRU"), device)

    def f(x):
        return W.gru(x, h, params, True, 1, 0.0, False, False, False)[0]
    with pytest.raises(RuntimeError, match="Batching rule not implemented for aten::gru"):
        torch.vmap(f)(torch.stack([x, x]))
    with weft.backends.flags(delegate=False), pytest.raises(RuntimeError, match="rnn_forward: cannot be mapped over a dimension by torch.vmap"):
        torch.vmap(f)(torch.stack([x, x]))


# ---------------------------------------------------------------------------------------------- dropout

def test_dropout_repeats_by_the_seed_and_rests_in_eval(device, side):
    net = weft.nn.GRU(INPUTS, HIDDEN, 2, dropout=0.5).to(device)
    x = data(device, torch.float32)
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        results.append(net(x)[0])
    assert torch.equal(results[0], results[1]) and not torch.equal(results[0], results[2])
    torch.manual_seed(1)
    with torch.no_grad():
        assert torch.equal(net(x)[0], results[0])
    state = torch.random.get_rng_state()
    net.eval()
    assert torch.equal(net(x)[0], net(x)[0]) and torch.equal(state, torch.random.get_rng_state())


@pytest.mark.parametrize("rate", [0.2, 0.7, 1.0])
def test_dropout_rate(rate, device, wefts):
    """The upper layer copies the lower one's outputs, all of them positive: each is 0 or grown to keep the mean."""
    net = weft.nn.RNN(INPUTS, 16, 2, nonlinearity="relu", bias=False, dropout=rate).to(device)
    with torch.no_grad():
        for name, p in net.named_parameters():
            p.copy_(torch.eye(16) if name == "weight_ih_l1" else torch.rand(p.shape) if name == "weight_ih_l0" else torch.zeros(p.shape))
    x = torch.rand(40, 16, INPUTS, device=device) + 0.1
    y, whole = net(x)[0], net.eval()(x)[0]
    ratio, n = (y / whole).detach(), y.numel()
    kept = ratio > 0
    assert whole.min() > 0 and (rate == 1 or torch.allclose(ratio[kept], torch.full_like(ratio[kept], 1 / (1 - rate))))
    assert abs(kept.double().mean().item() - (1 - rate)) <= 5 * math.sqrt(rate * (1 - rate) / n)   # five deviations
    assert rate == 1 or kept.double().mean((0, 1)).std() < 0.1                                      # of every unit alike


# ---------------------------------------------------------------------------------------------- memory

def test_nothing_is_kept_alive(device, wefts):
    """Every tensor of a list is freed, after success and after failure."""
    tensors, settings = operator_call(Case("LSTM"), device)
    refs = [StorageWeakRef(t.untyped_storage()) for t in tensors]
    forward(tensors, settings)[0].sum().backward()
    wrong = [*tensors[:-1], tensors[-1].detach()[:5].clone()]
    with pytest.raises(RuntimeError, match="biases: has 5 elements, allowed: 48"):
        forward(wrong, settings)
    del tensors, wrong
    assert all(ref.expired() for ref in refs)
