"""Recurrent layers: whole stacks of them, over whole or packed sequences."""
from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, Optional, overload

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from .._core import library as _library, settings as _settings
from .._core.arguments import any_autocast, autocast_dtype, foreign, in_transform, is_compiling, lowered, named, raised, whole
from .._core.rules import Rule, call, gradients, tangents
from .._core.shapes import fake_of

__all__ = ["gru", "lstm", "rnn_relu", "rnn_tanh"]

KINDS = ("rnn_relu", "rnn_tanh", "lstm", "gru")   # in the order of python/csrc/rnn.c
TWINS = {kind: getattr(torch._VF, kind) for kind in KINDS}
_GATES = {"lstm": 4, "gru": 3}
_is_tracing = torch._C._is_tracing
_WHOLE = ("input", "hx", "params", "has_biases", "num_layers", "dropout", "train", "bidirectional", "batch_first")
_PACKED = ("data", "batch_sizes", "hx", "params", "has_biases", "num_layers", "dropout", "train", "bidirectional")

_note = _library.lib.weft_torch_rnn_delegated
_note.restype, _note.argtypes = None, [ctypes.c_int]


# ---------------------------------------------------------------------------------------------- parameters

def shapes(kind: str, inputs: Any, hidden: Any, out: Any, num_layers: int, bidirectional: bool, has_biases: bool) -> list[tuple]:
    """Of the parameters, in PyTorch's order. inputs, hidden, out: the widths of the input, of the cells, and of their results."""
    gates, dirs = _GATES.get(kind, 1) * hidden, 2 if bidirectional else 1
    made: list[tuple] = []
    for layer in range(num_layers):
        for _ in range(dirs):
            made += [(gates, dirs * out if layer else inputs), (gates, out), *([(gates,)] * 2 if has_biases else ()), *([(out, hidden)] if out != hidden else ())]
    return made


def gathered(params: Sequence[Tensor]) -> tuple[Tensor, Optional[Tensor]]:
    """The vectors of weights and biases that the operators take."""
    weights: list[Tensor] = []
    biases: list[Tensor] = []
    for p in params:
        (weights if p.dim() == 2 else biases).append(p.reshape(-1))
    return torch.cat(weights), torch.cat(biases) if biases else None


def _apart(weights: Tensor, biases: Optional[Tensor], settings: Sequence[Any], x: Tensor, h: Tensor, c: Optional[Tensor]) -> list[Tensor]:
    """The two vectors as parameters."""
    kind, num_layers, _, bidirectional = settings[:4]
    made = shapes(kind, x.shape[-1], (h if c is None else c).shape[-1], h.shape[-1], num_layers, bidirectional, biases is not None)
    vectors = {rank: iter(() if v is None else v.split([math.prod(s) for s in made if len(s) == rank])) for rank, v in ((2, weights), (1, biases))}
    return [next(vectors[len(s)]).view(s) for s in made]


# ---------------------------------------------------------------------------------------------- gradients

def _save_forward(ctx, inputs, output):
    *given, batch_sizes, ctx.settings = *inputs[:6], inputs[6:-1]
    ctx.keep = inputs[-1]
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(*(output[3:] if given[2] is not None else output[2:]))
    return *given[:3], output[3], *given[3:], batch_sizes


def _gradient_of_forward(ctx, grad_output, grad_hn, grad_cn, _):
    input, h0, c0, reserve, weights, biases, batch_sizes = ctx.saved_tensors
    if not ctx.keep:
        raise RuntimeError("weft::rnn_forward: keep is False, allowed: True where a gradient is wanted")
    grads = call(RNN_BACKWARD, input, h0, c0, reserve, grad_output, grad_hn, grad_cn, weights, biases, batch_sizes, *ctx.settings)
    return tuple(g if needed else None for g, needed in zip(grads, ctx.needs_input_grad))


def _save_backward(ctx, inputs, output):
    ctx.settings = inputs[10:]
    ctx.set_materialize_grads(False)
    if inputs[2] is None:
        ctx.mark_non_differentiable(output[2])
    return inputs[:10]


def _layers(x, h, c, weights, biases, batch_sizes, settings):
    """The layers by PyTorch's operators, of the kind that can be differentiated twice: cuDNN's and oneDNN's cannot. The flags are of the
    process, as PyTorch's are; another thread that reads them meanwhile computes the same without these libraries."""
    kind, num_layers, _, bidirectional, batch_first = settings[:5]
    while batch_sizes is not None and torch._C._functorch.is_functorch_wrapped_tensor(batch_sizes):   # PyTorch reads their memory
        batch_sizes = torch._C._functorch.get_unwrapped(batch_sizes)
    hx, rest = (h, c) if kind == "lstm" else h, (_apart(weights, biases, settings, x, h, c), biases is not None, num_layers, 0.0, True, bidirectional)
    onednn = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        with torch.backends.cudnn.flags(enabled=False):
            return TWINS[kind](x, hx, *rest, batch_first) if batch_sizes is None else TWINS[kind](x, batch_sizes, hx, *rest)
    finally:
        torch._C._set_mkldnn_enabled(onednn)


def _refuse_dropout(name, what, dropout):
    if dropout > 0:
        raise RuntimeError(f"weft::{name}: has no {what} with dropout {dropout:g}, allowed: 0, or PyTorch's kernels (weft.backends, delegate)")


def _backward(x, h, c, grad_output, grad_hn, grad_cn, weights, biases, *rest):
    """The gradients of x, h, c and the parameters."""
    pairs = [(y, g) for y, g in zip(_layers(x, h, c, weights, biases, *rest), (grad_output, grad_hn, grad_cn)) if g is not None]
    by = (x, h, c, weights, biases)
    found = iter(torch.autograd.grad([y for y, _ in pairs], [t for t in by if t is not None], [g for _, g in pairs], create_graph=True, allow_unused=True))
    return tuple(None if t is None else next(found) for t in by)


def _gradient_of_backward(ctx, ddx, ddh, ddc, ddw, ddb):
    _refuse_dropout("rnn_backward", "second derivative", ctx.settings[2])
    x, h, c, _, *tensors, batch_sizes = ctx.saved_tensors
    second, needs = (ddx, ddh, None if c is None else ddc, ddw, None if tensors[-1] is None else ddb), ctx.needs_input_grad[:9]
    found = gradients(_backward, (x, h, c, *tensors), (batch_sizes, ctx.settings), second, (*needs[:3], *needs[4:]))
    return (*found[:3], None, *found[3:])


def _tangent_of_forward(ctx, x, h, c, _, weights, biases, batch_sizes, *steps):
    """PyTorch has no forward mode here: its cells on CUDA are fused, with a gradient only."""
    _refuse_dropout("rnn_forward", "forward-mode derivative", ctx.settings[2])
    moved = tangents(_layers, (x, h, c, weights, biases), (batch_sizes, ctx.settings), steps)
    return (*moved, *[None] * (4 - len(moved)))


RNN_FORWARD = Rule("rnn_forward", 5, _save_forward, _gradient_of_forward, _tangent_of_forward)
RNN_BACKWARD = Rule("rnn_backward", 9, _save_backward, _gradient_of_backward)


# ---------------------------------------------------------------------------------------------- arguments

def _is_packed(args: tuple, named: dict) -> bool:
    """Both forms have nine arguments. The second is batch_sizes if it is a tensor and hx is the third, parameters the fourth."""
    if "data" in named or "batch_sizes" in named:
        return True
    if len(args) < 2 or not isinstance(args[1], Tensor):
        return False
    return isinstance(args[3], (tuple, list)) if len(args) > 3 else "params" in named if len(args) == 3 else "hx" in named


def _bind(kind: str, args: tuple, named: dict) -> tuple[Any, ...]:
    """The nine arguments in the order of the form that was called, batch_sizes (or None) second and batch_first last."""
    names = _PACKED if _is_packed(args, named) else _WHOLE
    if named or len(args) != 9:
        given = dict(zip(names, args))
        for name in named:
            if name not in names or name in given:
                raise TypeError(f"{kind}: {name} is {'given twice' if name in given else 'no argument'}, allowed: {', '.join(names)}")
        given.update(named)
        missing = [name for name in names if name not in given]
        if missing or len(args) > 9:
            raise TypeError(f"{kind}: " + (f"{missing[0]} is missing" if missing else f"{len(args)} arguments are given") + f", allowed: {', '.join(names)}")
        args = tuple(given[name] for name in names)
    return (*args, False) if names is _PACKED else (args[0], None, *args[1:])


def _complain(kind: str, x: Any, batch_sizes: Any, hx: Any, params: Any, flags: dict[str, Any], num_layers: Any, dropout: Any) -> None:
    """Say which argument is of the wrong type."""
    states = "a tuple of two Tensors" if kind == "lstm" else "Tensor"
    several = isinstance(hx, (tuple, list)) and all(isinstance(t, Tensor) for t in hx)
    for name, value, right, allowed in (
            ("input", x, isinstance(x, Tensor), "Tensor"),
            ("batch_sizes", batch_sizes, batch_sizes is None or isinstance(batch_sizes, Tensor), "Tensor"),
            ("hx", hx, several if kind == "lstm" else isinstance(hx, Tensor), states),
            ("params", params, isinstance(params, (tuple, list)), "a sequence of Tensors"),
            *((name, value, isinstance(value, bool), "bool") for name, value in flags.items()),
            ("num_layers", num_layers, whole(num_layers) is not None, "int"),
            ("dropout", dropout, isinstance(dropout, (int, float)), "float")):
        if not right:
            raise TypeError(f"{kind}: {name} is {type(value).__name__}, allowed: {allowed}")
    for i, p in enumerate(params):
        if not isinstance(p, Tensor):
            raise TypeError(f"{kind}: params[{i}] is {type(p).__name__}, allowed: Tensor")


_ask = fake_of("rnn_forward")


@lru_cache(maxsize=1024)
def _check_shapes(kind: str, steps: Any, x: Any, h: Any, c: Any, params: tuple, has_biases: bool, num_layers: int, bidirectional: bool,
                  batch_first: bool) -> None:
    """By weft's operator, on tensors without memory, but for the parameters. What is wrong is said again: an exception is not kept."""
    hidden, out = (shape[-1] if shape else 0 for shape in (h if c is None else c, h))
    allowed = shapes(kind, x[-1] if x else 0, hidden, out, min(num_layers, 1024), bidirectional, has_biases)
    weights, biases = (torch.empty(sum(math.prod(s) for s in allowed if len(s) == rank), device="meta") for rank in (2, 1))
    given = [None if shape is None else torch.empty(shape, device="meta") for shape in (x, h, c)]
    sizes = None if steps is None else torch.empty(steps, device="meta", dtype=torch.int64)
    _ask(*given, weights, biases if has_biases else None, sizes, kind, num_layers, 0.0, bidirectional, batch_first, 0, False)
    if len(params) != len(allowed):
        raise RuntimeError(f"params: has {len(params)} tensors, allowed with num_layers={num_layers}, bidirectional={bidirectional}, has_biases={has_biases}"
                           f"{' and a projection' if out != hidden else ''}: {len(allowed)}")
    for i, (shape, right) in enumerate(zip(params, allowed)):
        if tuple(shape) != right:
            raise RuntimeError(f"params[{i}]: has the shape {list(shape)}, allowed: {list(right)}")


def _verify(kind: str, x: Tensor, batch_sizes: Optional[Tensor], h: Tensor, c: Optional[Tensor], params: Sequence[Tensor], has_biases: bool,
            num_layers: int, bidirectional: bool, batch_first: bool) -> None:
    """Before the parameters are gathered, or PyTorch's kernels run, some of which do not check their arguments and write where they should not."""
    _check_shapes(kind, None if batch_sizes is None else batch_sizes.shape, x.shape, h.shape, None if c is None else c.shape,
                  tuple([p.shape for p in params]), has_biases, num_layers, bidirectional, batch_first)
    if any_autocast():
        return
    dtype, device, near = x.dtype, x.device, x.is_cpu   # a device costs more to read
    for i, t in enumerate((h, *params) if c is None else (h, c, *params), 0 if c is None else -1):
        if t.dtype is not dtype or not (near and t.is_cpu or t.device == device):
            name = f"params[{i - 1}]" if i > 0 else "h0" if t is h else "c0"
            got, allowed = (f"is {str(t.dtype)[6:]}", f"the type of input, {str(dtype)[6:]}") if t.dtype is not dtype else \
                (f"is on {t.device}", f"the device of input, {device}")
            raise RuntimeError(f"{name}: {got}, allowed: {allowed}")


# ---------------------------------------------------------------------------------------------- the two roads

def _cast(kind: str, x: Tensor, h: Tensor, c: Optional[Tensor], params: Sequence[Tensor]) -> tuple[Any, ...]:
    """As PyTorch's layers do under autocast: in the lower precision, but for gru on the CPU."""
    if autocast_dtype(x.device) is None:
        return x, h, c, params
    x, h, c, *params = (raised if kind == "gru" and x.device.type == "cpu" else lowered)(x, h, c, *params)
    return x, h, c, params


def _wants_grad(x: Tensor, h: Tensor, c: Optional[Tensor], params: Sequence[Tensor]) -> bool:
    return torch.is_grad_enabled() and (x.requires_grad or h.requires_grad or (c is not None and c.requires_grad) or any(p.requires_grad for p in params))


def _wefts(kind: str, x: Tensor, batch_sizes: Optional[Tensor], h: Tensor, c: Optional[Tensor], params: Sequence[Tensor], has_biases: bool,
           num_layers: int, dropout: float, bidirectional: bool, batch_first: bool) -> Any:
    """weft's operator. What drops is decided by a number that PyTorch's generator of the CPU draws, so torch.manual_seed repeats it."""
    if any_autocast():
        x, h, c, params = _cast(kind, x, h, c, params)
    keep = _wants_grad(x, h, c, params) or torch.is_grad_enabled() and in_transform()
    seed = int(torch.randint(1 << 62, ()).item()) if dropout > 0 else 0
    y, hn, cn, _ = call(RNN_FORWARD, x, h, c, *gathered(params), batch_sizes, kind, num_layers, dropout, bidirectional, batch_first, seed, keep)
    return (y, hn, cn) if kind == "lstm" else (y, hn)


@lru_cache(maxsize=1024)
def _wins(kind: str, time: int, many: int, inputs: int, hidden: int, layers: int, both: bool, biases: bool, rows: int, gradient: bool) -> bool:
    """Is weft expected to be faster than PyTorch, both passes together where a gradient is wanted?"""
    sizes = f"f32:dense:t{time}n{many}c{inputs}o{hidden}:l{layers}both{int(both)}b{int(biases)}state1rows{rows}train{int(gradient)}@cpu"
    texts = [f"{kind}:{step}:{sizes}".encode() for step in (("fwd", "bwd") if gradient else ("fwd",))]
    return sum(map(_library.lib.weft_torch_own_ns, texts)) < sum(map(_library.lib.weft_torch_estimate_ns, texts))


_settings.listeners.append(lambda allowed: _wins.cache_clear())


def _chosen(kind: str, x: Tensor, batch_sizes: Optional[Tensor], h: Tensor, c: Optional[Tensor], params: Sequence[Tensor], has_biases: bool,
            num_layers: int, dropout: float, bidirectional: bool, batch_first: bool) -> bool:
    """weft's kernels of the CPU are in float32, without a projection. Where something is dropped, in a trace and in a transform PyTorch's run."""
    if not x.is_cpu or x.dtype != torch.float32 or dropout > 0 or is_compiling() or _is_tracing() or any_autocast() or in_transform():
        return False
    rank = 3 if batch_sizes is None else 2
    if x.dim() != rank or h.dim() != 3 or (c is not None and h.shape[2] != c.shape[2]):
        return False   # what is wrong is said where it is used
    if batch_sizes is None:
        time, many, rows = x.shape[1 if batch_first else 0], x.shape[0 if batch_first else 1], 0
    else:
        time, many, rows = batch_sizes.shape[0] if batch_sizes.dim() else 0, h.shape[1], x.shape[0]
    return time > 0 and many > 0 and _wins(kind, time, many, x.shape[-1], h.shape[2], num_layers, bidirectional, has_biases, rows,
                                           _wants_grad(x, h, c, params))


def _delegates(kind: str, x: Tensor, rest: Sequence[Tensor]) -> bool:
    """PyTorch's layers may run unless that is forbidden or a kernel of weft is pinned. Nor can torch.compile keep what oneDNN's LSTM saves for
    its gradient. And autocast to float16 comes after PyTorch has chosen oneDNN, which has no such LSTM on most machines. Before cuDNN's layers
    PyTorch asks where the weights lie, which tensors that torch.func differentiates cannot tell."""
    chosen = _settings.now()
    if chosen.pin is not None and kind in chosen.pin:
        return False
    unkept = kind == "lstm" and is_compiling() and x.device.type == "cpu" and x.dtype != torch.float64 and torch.is_grad_enabled()
    uncast = kind == "lstm" and any_autocast() and x.device.type == "cpu" and x.dtype == torch.float32 and autocast_dtype(x.device) == torch.float16
    wrapped = not is_compiling() and in_transform() and x.is_cuda and any(map(torch._C._functorch.is_gradtrackingtensor, (x, *rest)))
    return chosen.delegate and not unkept and not uncast and not wrapped


def prepare(function: Callable, args: tuple, named: dict[str, Any]) -> tuple[Callable, tuple]:
    """Whom to call, and with what: PyTorch's layers or weft's. PyTorch's are best called by a frame that torch.compile leaves alone, as those
    of recurrent modules are: it would unroll every step."""
    kind = function.__name__
    x, batch_sizes, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first = _bind(kind, args, named)
    tensors = (x, *(hx if type(hx) in (tuple, list) else (hx,)), *(params if type(params) in (tuple, list) else (params,)))
    if has_torch_function(tensors):
        return partial(handle_torch_function, **named), (function, tensors, *args)
    if not (isinstance(x, Tensor) and isinstance(hx, (tuple, list) if kind == "lstm" else Tensor) and type(params) in (list, tuple)
            and type(num_layers) is int and type(dropout) in (float, int, bool)
            and has_biases.__class__ is train.__class__ is bidirectional.__class__ is batch_first.__class__ is bool):
        _complain(kind, x, batch_sizes, hx, params, dict(has_biases=has_biases, train=train, bidirectional=bidirectional, batch_first=batch_first),
                  num_layers, dropout)
        num_layers, params, hx = whole(num_layers), list(params), tuple(hx) if kind == "lstm" else hx
    for t in tensors:
        if type(t) is not Tensor and not isinstance(t, Tensor):
            _complain(kind, x, batch_sizes, hx, params, {}, num_layers, dropout)
    if kind == "lstm" and len(hx) != 2:
        raise RuntimeError(f"lstm: hx has {len(hx)} tensors, allowed: two, h0 and c0")
    for state, t in zip(("h0", "c0"), hx if kind == "lstm" else ()):
        if t.dim() < 3:
            raise IndexError(f"lstm: {state} has {t.dim()} dimensions {list(t.shape)}, allowed: 3")
    if x.dim() == 2 and batch_sizes is None:
        raise IndexError(f"{kind}: input has 2 dimensions {list(x.shape)}, allowed: 3; or 2 with batch_sizes")
    if train and num_layers > 1 and not 0 <= dropout <= 1:
        raise RuntimeError(f"{kind}: dropout is {dropout}, allowed: 0 to 1")
    h, c = hx if kind == "lstm" else (hx, None)
    strange = foreign(x)
    given = (kind, x, batch_sizes, h, c, params, has_biases, num_layers, float(dropout) if train and num_layers > 1 else 0.0, bidirectional, batch_first)
    if not strange and not is_compiling() and not _is_tracing():   # in a trace of torch.jit sizes are tensors; a graph has PyTorch's plain steps
        _verify(kind, x, batch_sizes, h, c, params, has_biases, num_layers, bidirectional, batch_first)
    if not strange and (not _delegates(kind, x, (h, *params) if c is None else (h, c, *params)) or (_settings.now().pin != "torch" and _chosen(*given))):
        return _wefts, given
    if not is_compiling():
        if batch_sizes is not None and x.is_cuda and int(batch_sizes.sum()) != x.shape[0]:   # cuDNN reads past the data and says nothing
            raise RuntimeError(f"{kind}: batch_sizes sum to {int(batch_sizes.sum())}, allowed: the rows of data, {x.shape[0]}")
        _note(KINDS.index(kind))
    if x.is_cuda and not train and _wants_grad(x, h, c, params):   # cuDNN keeps what its gradient needs in training only, which drops nothing
        dropout, train = 0.0, True                                # where dropout is 0
    rest = (hx, params, has_biases, num_layers, dropout, train, bidirectional)
    return TWINS[kind], (x, *rest, batch_first) if batch_sizes is None else (x, batch_sizes, *rest)


# ---------------------------------------------------------------------------------------------- public

def _made(kind: str, help: str) -> Callable:
    """The function of a kind of layers, and its two forms."""
    def whole_form(input: Tensor, hx: Any, params: Sequence[Tensor], has_biases: bool, num_layers: int, dropout: float, train: bool,
                   bidirectional: bool, batch_first: bool) -> tuple[Tensor, ...]: ...

    def packed_form(data: Tensor, batch_sizes: Tensor, hx: Any, params: Sequence[Tensor], has_biases: bool, num_layers: int, dropout: float,
                    train: bool, bidirectional: bool) -> tuple[Tensor, ...]: ...

    def function(*args: Any, **named: Any) -> tuple[Tensor, ...]:
        run, given = prepare(function, args, named)
        return run(*given)
    overload(named(whole_form, kind, help)), overload(named(packed_form, kind, help))
    return named(function, kind, help)


lstm = _made("lstm", """torch.lstm: output, h_n and c_n of stacked LSTM layers, from `input`, or from packed `data` with the number of rows of each step.
hx is (h_0, c_0); params has, of each layer and direction, weight_ih, weight_hh, bias_ih, bias_hh (with biases) and weight_hr (if projected).

    >>> net, x, h = torch.nn.LSTM(4, 6), torch.randn(5, 3, 4), torch.zeros(1, 3, 6)
    >>> weft.functional.lstm(x, (h, h), list(net.parameters()), True, 1, 0.0, False, False, False)[0].shape
    torch.Size([5, 3, 6])
""")
gru = _made("gru", """torch.gru: output and h_n of stacked GRU layers; arguments as of lstm, with hx a tensor.

    >>> net, x, h = torch.nn.GRU(4, 6), torch.randn(5, 3, 4), torch.zeros(1, 3, 6)
    >>> weft.functional.gru(x, h, list(net.parameters()), True, 1, 0.0, False, False, False)[0].shape
    torch.Size([5, 3, 6])
""")
rnn_tanh = _made("rnn_tanh", """torch.rnn_tanh: output and h_n of stacked Elman layers; arguments as of gru.

    >>> net, x, h = torch.nn.RNN(4, 6), torch.randn(5, 3, 4), torch.zeros(1, 3, 6)
    >>> weft.functional.rnn_tanh(x, h, list(net.parameters()), True, 1, 0.0, False, False, False)[0].shape
    torch.Size([5, 3, 6])
""")
rnn_relu = _made("rnn_relu", """torch.rnn_relu: output and h_n of stacked Elman layers; arguments as of gru.

    >>> net, x, h = torch.nn.RNN(4, 6, nonlinearity="relu"), torch.randn(5, 3, 4), torch.zeros(1, 3, 6)
    >>> weft.functional.rnn_relu(x, h, list(net.parameters()), True, 1, 0.0, False, False, False)[0].shape
    torch.Size([5, 3, 6])
""")
