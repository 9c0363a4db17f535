"""Wrong calls of recurrent functions, modules and operators: refused as the twin refuses them, with the argument, its value and what is allowed."""
from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

import weft
import weft.functional as W
from test_torch_rnn import HIDDEN, INPUTS, MANY, STEPS, Case, data, forward, operator_call, side  # noqa: F401  side: a fixture


def _wrong() -> dict[str, tuple[str, Any, type, str]]:
    torch.manual_seed(5)
    made = {kind: [p.detach() for p in getattr(torch.nn, kind.upper())(INPUTS, HIDDEN).parameters()] for kind in ("gru", "lstm")}
    g, s = made["gru"], made["lstm"]
    two = [p.detach() for p in torch.nn.GRU(INPUTS, HIDDEN, 2).parameters()]
    x, h, d, b = torch.randn(STEPS, MANY, INPUTS), torch.randn(1, MANY, HIDDEN), torch.randn(6, INPUTS), torch.tensor([3, 2, 1])
    rest = (True, 1, 0.0, False, False, False)
    pack = rest[:-1]
    R, T = RuntimeError, TypeError
    return {
        "batch of hx": ("gru", (x, h[:, :1], g, *rest), R, r"h0: has the shape \[1, 1, 6\], allowed: \[1, 3, 6\]"),
        "width of hx": ("gru", (x, torch.randn(1, MANY, 7), g, *rest), R, r"params\[0\]: has the shape \[18, 4\], allowed: \[21, 4\]"),
        "rank of hx": ("gru", (x, h[0], g, *rest), R, "h0: has"),
        "one state": ("lstm", (x, (h,), s, *rest), R, "hx has 1 tensors, allowed: two, h0 and c0"),
        "three states": ("lstm", (x, (h, h, h), s, *rest), R, "hx has 3 tensors, allowed: two, h0 and c0"),
        "rank of a state": ("lstm", (x, (h[0], h[0]), s, *rest), IndexError, r"h0 has 2 dimensions \[3, 6\], allowed: 3"),
        "states as a tensor": ("lstm", (x, h, s, *rest), T, "hx is Tensor, allowed: a tuple of two Tensors"),
        "state as a tuple": ("gru", (x, (h,), g, *rest), T, "hx is tuple, allowed: Tensor"),
        "wider h0 than c0": ("lstm", (x, (torch.randn(1, MANY, 7), h), s, *rest), R, "h0: has 7 units beside a hidden size of 6, allowed: 1 to"),
        "few parameters": ("lstm", (x, (h, h), s[:3], *rest), R, "params: has 3 tensors, allowed with num_layers=1, bidirectional=False, has_biases=True: 4"),
        "no parameters": ("gru", (x, h, [], *rest), R, "params: has 0 tensors, allowed with .*: 4"),
        "many parameters": ("gru", (x, h, g + g, *rest), R, "params: has 8 tensors, allowed with .*: 4"),
        "None as a parameter": ("gru", (x, h, [g[0], g[1], None, None], *rest), T, r"params\[2\] is NoneType, allowed: Tensor"),
        "parameters as a tensor": ("gru", (x, h, g[0], *rest), T, "params is Tensor, allowed: a sequence of Tensors"),
        "shape of a weight": ("gru", (x, h, [g[0], g[1][:, :5], *g[2:]], *rest), R, r"params\[1\]: has the shape \[18, 5\], allowed: \[18, 6\]"),
        "shape of a bias": ("lstm", (x, (h, h), [*s[:2], s[2][:5], s[3]], *rest), R, r"params\[2\]: has the shape \[5\], allowed: \[24\]"),
        "width of input": ("gru", (torch.randn(STEPS, MANY, 7), h, g, *rest), R, r"params\[0\]: has the shape \[18, 4\], allowed: \[18, 7\]"),
        "rank 2": ("gru", (x[0], h, g, *rest), IndexError, r"input has 2 dimensions \[3, 4\], allowed: 3"),
        "rank 1": ("gru", (x[0, 0], h, g, *rest), R, "input: has 1 dimensions, allowed: 3"),
        "rank 4": ("gru", (x[None], h, g, *rest), R, "input: has 4 dimensions, allowed: 3"),
        "no steps": ("lstm", (x[:0], (h, h), s, *rest), R, r"input: has 0 steps, allowed: 1 to 2\^24"),
        "type of input": ("lstm", (x.double(), (h, h), s, *rest), R, "is float32, allowed: the type of input, float64"),
        "type of hx": ("gru", (x, h.double(), g, *rest), R, "h0: is float64, allowed: the type of input, float32"),
        "type of c0": ("lstm", (x, (h, h.double()), s, *rest), R, "c0: is float64, allowed: the type of input, float32"),
        "type of a parameter": ("gru", (x, h, [g[0].double(), *g[1:]], *rest), R, r"params\[0\]: is float64, allowed: the type of input, float32"),
        "no tensor": ("gru", ("x", h, g, *rest), T, "input is str, allowed: Tensor"),
        "whole numbers": ("gru", (x.long(), h.long(), [p.long() for p in g], *rest), R, "."),
        "too few layers": ("gru", (x, h, g, True, 0, 0.0, False, False, False), R, "num_layers: is 0, allowed: 1 to 1024"),
        "too many layers": ("gru", (x, h, g, True, 2, 0.0, False, False, False), R, r"h0: has the shape \[1, 3, 6\], allowed: \[2, 3, 6\]"),
        "layers as a bool": ("gru", (x, h, g, True, True, 0.0, False, False, False), T, "num_layers is bool, allowed: int"),
        "layers as a float": ("gru", (x, h, g, True, 1.0, 0.0, False, False, False), T, "num_layers is float, allowed: int"),
        "directions": ("gru", (x, h, g, True, 1, 0.0, False, True, False), R, r"h0: has the shape \[1, 3, 6\], allowed: \[2, 3, 6\]"),
        "no biases": ("gru", (x, h, g, False, 1, 0.0, False, False, False), R, "params: has 4 tensors, allowed with .*has_biases=False: 2"),
        "flag as an int": ("gru", (x, h, g, 1, 1, 0.0, False, False, False), T, "has_biases is int, allowed: bool"),
        "flag as None": ("gru", (x, h, g, True, 1, 0.0, None, False, False), T, "train is NoneType, allowed: bool"),
        "dropout": ("gru", (x, torch.randn(2, MANY, HIDDEN), two, True, 2, 2.0, True, False, False), R, "dropout.* 2"),
        "dropout as text": ("gru", (x, h, g, True, 1, "0", False, False, False), T, "dropout is str, allowed: float"),
        "missing": ("gru", (x, h, g), T, "has_biases is missing, allowed: input, hx, params"),
        "ten arguments": ("gru", (x, h, g, *rest, 1), T, "10 arguments are given, allowed: input, hx, params"),
        "sum of batch_sizes": ("gru", (d, torch.tensor([3, 2, 2]), h, g, *pack), R, "."),
        "rising batch_sizes": ("gru", (d, torch.tensor([2, 3, 1]), h, g, *pack), R, "."),
        "negative batch_sizes": ("gru", (d, torch.tensor([3, -1, 4]), h, g, *pack), R, "."),
        "type of batch_sizes": ("gru", (d, b.int(), h, g, *pack), R, "."),
        "packed batch of hx": ("lstm", (d, b, (torch.randn(1, 4, HIDDEN),) * 2, s, *pack), R, "."),
        "packed rank": ("gru", (x, b, h, g, *pack), R, "input: has 3 dimensions, allowed: 2"),
    }


WRONG = _wrong()


def test_names_of_arguments():
    _, args, _, _ = WRONG["ten arguments"]
    for name, why in (("input", "given twice"), ("inputs", "no argument")):
        with pytest.raises(TypeError, match=f"gru: {name} is {why}, allowed: input, hx, params, has_biases"):
            W.gru(*args[:8], **{name: args[0]})


@pytest.mark.parametrize("name", WRONG)
def test_wrong_calls(name, device, side):
    function, args, kind, text = WRONG[name]

    def move(v):
        if isinstance(v, torch.Tensor):
            return v if not v.is_floating_point() and v.dim() == 1 else v.to(device)
        return type(v)(map(move, v)) if isinstance(v, (tuple, list)) else v
    args = tuple(map(move, args))
    with pytest.raises(kind, match=text):
        getattr(W, function)(*args)
    if device.type == "cpu":   # the twin, where it does not crash
        with pytest.raises(kind):
            getattr(torch._VF, function)(*args)


def test_two_devices(side):
    function, (x, h, params, *rest), _, _ = WRONG["batch of hx"]
    h = torch.randn(1, MANY, HIDDEN)
    with pytest.raises(RuntimeError, match="h0: is on meta, allowed: the device of input, cpu"):
        W.gru(x, h.to("meta"), params, *rest)
    with pytest.raises(RuntimeError, match=r"params\[2\]: is on meta, allowed: the device of input, cpu"):
        W.gru(x, h, [*params[:2], params[2].to("meta"), params[3]], *rest)
    if torch.cuda.is_available():
        with pytest.raises(RuntimeError, match=r"params.*: is on cpu.*, allowed: the device of input, cuda"):
            W.gru(x.cuda(), h.cuda(), params, *rest)


def test_what_the_twin_crashes_on_is_refused(side):
    """oneDNN's LSTM reads states of any size as if they fitted."""
    _, args, _, _ = WRONG["states as a tensor"]
    x, h, params, *rest = args
    for input, hx in ((x, (h[:, :1], h[:, :1])), (x[None], (h, h)), (x, (h, torch.randn(2, MANY, HIDDEN)))):
        with pytest.raises(RuntimeError, match="allowed"):
            W.lstm(input, hx, params, *rest)


@pytest.mark.parametrize("sizes,text", [
    ([3, 2, 2], "batch_sizes: is 2 at step 2, allowed: 0 or more, not rising, of the sum 6, the rows of input"),
    ([2, 3, 1], "batch_sizes: is 3 at step 1, allowed"), ([3, -1, 4], "batch_sizes: is -1 at step 1, allowed"),
    ([3, 2], "batch_sizes: has the sum 5, allowed: the rows of input, 6"), ([[3, 2, 1]], "allowed: int64 of one dimension on the CPU"),
])
def test_batch_sizes_of_the_operator(sizes, text, device):
    tensors, settings = operator_call(Case("GRU"), device, packed=True)
    settings[0] = torch.tensor(sizes)
    with torch.no_grad(), pytest.raises(RuntimeError, match=text):
        forward(tensors, settings)


def test_operator_refuses_what_only_it_can_be_given(device):
    tensors, settings = operator_call(Case("LSTM"), device, grad=False)
    with pytest.raises(RuntimeError, match="kind: is 'nothing', allowed: 'rnn_relu', 'rnn_tanh', 'lstm' or 'gru'"):
        forward(tensors, [None, "nothing", *settings[2:]])
    with pytest.raises(RuntimeError, match="c0: is None with kind 'lstm', allowed: a tensor"):
        forward([*tensors[:2], None, *tensors[3:]], settings)
    y, hn, cn, reserve = forward(tensors, settings)
    back = torch.ops.weft.rnn_backward
    with pytest.raises(RuntimeError, match=r"reserve: has the shape \[7\], allowed: \[540\]"):
        back(*tensors[:3], reserve[:7], y, hn, cn, *tensors[3:], *settings, 0)
    with pytest.raises(RuntimeError, match=r"grad_hn: has the shape \[5, 3, 6\], allowed: \[1, 3, 6\]"):
        back(*tensors[:3], reserve, y, y, cn, *tensors[3:], *settings, 0)
    with pytest.raises(RuntimeError, match="grad_output: is float32, allowed: the type of input, float64"):
        back(*tensors[:3], reserve, y.float(), hn, cn, *tensors[3:], *settings, 0)
    huge = torch.ones(1, 1, 1, device=device, dtype=torch.float64).expand(STEPS, MANY, (1 << 40) + 1)
    with pytest.raises(RuntimeError, match=r"elements along dimension 2, allowed: at most 2\^40"):
        forward([huge, *tensors[1:]], settings)


MODULES = {
    "rank": ("GRU", {}, lambda x, h: (x[None],), ValueError, "input has 4 dimensions .*, allowed: 2 .unbatched. or 3"),
    "type": ("LSTM", {}, lambda x, h: (x.double(),), ValueError, "dtype"),
    "width": ("RNN", {}, lambda x, h: (x[..., :3],), RuntimeError, "input.size.*Expected 4, got 3"),
    "batch of hx": ("GRU", {}, lambda x, h: (x, h[:, :2]), RuntimeError, r"\(1, 3, 6\), got \[1, 2, 6\]"),
    "batch of h0": ("LSTM", {}, lambda x, h: (x, (h[:, :2], h)), RuntimeError, r"hidden\[0\].*\(1, 3, 6\), got \[1, 2, 6\]"),
    "batch of c0": ("LSTM", {}, lambda x, h: (x, (h, h[:, :2])), RuntimeError, r"hidden\[1\].*\(1, 3, 6\), got \[1, 2, 6\]"),
    "rank of hx": ("GRU", {}, lambda x, h: (x, h[0]), RuntimeError, "hx: has 2 dimensions, allowed: 3, as the input is batched"),
    "rank of states": ("LSTM", {}, lambda x, h: (x[0], (h, h)), RuntimeError, "hx: has 3 and 3 dimensions, allowed: 2, as the input is unbatched"),
    "layers of hx": ("RNN", {"num_layers": 2}, lambda x, h: (x, h), RuntimeError, r"\(2, 3, 6\), got \[1, 3, 6\]"),
    "packed hx": ("GRU", {}, lambda x, h: (pack_sequence([x[:, 0], x[:3, 1]]), h), RuntimeError, r"\(1, 2, 6\), got \[1, 3, 6\]"),
    "packed states": ("LSTM", {}, lambda x, h: (pack_sequence([x[:, 0], x[:3, 1]]), (h, h)), RuntimeError, "."),
    "packed type": ("LSTM", {}, lambda x, h: (pack_sequence([x[:, 0].double()]),), RuntimeError, "float32, allowed|is float"),
}


@pytest.mark.parametrize("name", MODULES)
def test_wrong_calls_of_modules(name, side):
    module, options, args, kind, text = MODULES[name]
    x, h = data("cpu", torch.float32), torch.randn(1, MANY, HIDDEN)
    with pytest.raises(kind, match=text):
        getattr(weft.nn, module)(INPUTS, HIDDEN, **options)(*args(x, h))
    with pytest.raises(kind):
        getattr(torch.nn, module)(INPUTS, HIDDEN, **options)(*args(x, h))


@pytest.mark.parametrize("module,args,options,kind", [
    ("RNN", (4, 6), {"nonlinearity": "sigmoid"}, ValueError), ("RNN", (4, 6), {"proj_size": 2}, ValueError), ("GRU", (4, 6), {"proj_size": 2}, ValueError),
    ("LSTM", (4, 6), {"proj_size": 6}, ValueError), ("LSTM", (0, 6), {}, ValueError), ("GRU", (4, -1), {}, ValueError), ("GRU", (4, 6.0), {}, TypeError),
    ("LSTM", (4, 6), {"dropout": 2}, ValueError), ("LSTM", (4, 6), {"bias": 1}, TypeError), ("GRU", (4, 6, 0), {}, ValueError),
])
def test_modules_that_cannot_be_made(module, args, options, kind):
    for where in (weft.nn, torch.nn):
        with pytest.raises(kind):
            getattr(where, module)(*args, **options)
