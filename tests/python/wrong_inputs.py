"""The one table of wrong inputs: for every public function, calls that are refused, the class of the error and its text.

Each family keeps its part beside its own tests, which also compare the class with the twin's and look at traces; here they are joined, and
what no family has is added.
"""
from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

import test_backends
import test_convert
import test_errors
import test_pconv_modules
import test_prune
import test_sparse_modes
import test_torch_batch_norm as batch_norm
import test_torch_cross_entropy_wrong as cross_entropy
import test_torch_dgmm as dgmm
import test_torch_im2col as im2col
import test_torch_lrn as lrn
import test_torch_partial_conv as partial_conv
import test_torch_pointwise as pointwise
import test_torch_pool_wrong as pool
import test_torch_rnn_wrong as rnn
import test_torch_softmax as softmax
import test_torch_sparse_conv as sparse_conv
import weft
import weft.functional as W

PUBLIC = {*W.__all__, *weft.nn.__all__, *weft.sparse.__all__, *weft.backends.__all__, *weft.prune.__all__, "convert"}


@dataclass(frozen=True)
class Wrong:
    """name: what is called. text: a part of the error's text, as a regular expression."""

    name: str
    call: Callable[[], Any]
    kind: type[Exception]
    text: str


def called(run: Callable[[], Any]) -> str:
    """The public name that a lambda of a table calls; nothing for one that calls an operator itself."""
    names = run.__code__.co_names + tuple(c.cell_contents for c in run.__closure__ or () if isinstance(c.cell_contents, str))
    return next((n for n in names if n in PUBLIC), "") if "ops" not in names else ""


def _of_calls(table: dict[str, tuple]) -> Iterator[Wrong]:
    for run, kind, text in table.values():
        yield Wrong(called(run), run, kind, re.escape(text))


def _of_function(names: tuple[str, ...], *tables: dict[str, tuple]) -> Iterator[Wrong]:
    """Rows whose calls take the function."""
    for name in names:
        for table in tables:
            for run, kind, text in table.values():
                yield Wrong(name, lambda run=run, name=name: run(getattr(W, name)), kind, re.escape(text))


def _of_arguments(rows: list[tuple]) -> Iterator[Wrong]:
    for name, args, options, kind, text in rows:
        yield Wrong(name, lambda name=name, args=args, options=options: getattr(W, name)(*args, **options), kind, re.escape(text))


def _families() -> Iterator[Wrong]:
    for table in (test_errors.WRONG, test_backends.WRONG, partial_conv.WRONG, sparse_conv.WRONG, sparse_conv.MADE, pool.OUT, test_pconv_modules.WRONG,
                  test_sparse_modes.WRONG):
        yield from _of_calls(table)
    for run, kind, text in test_convert.WRONG.values():
        yield Wrong("convert", lambda run=run: run(test_convert.tree("cpu").eval()), kind, re.escape(text))
    yield Wrong("report", lambda: weft.report([], torch.zeros(1)), TypeError, "net: is list, allowed: a torch.nn.Module")
    yield Wrong("report", lambda: weft.report(torch.nn.ReLU(), 3), TypeError, "example: is int, allowed: a tensor")
    for name in ("magnitude", "random"):
        for run, kind, text in test_prune.WRONG.values():
            yield Wrong(name, lambda run=run, name=name: run(getattr(weft.prune, name)), kind, re.escape(text))
    yield from _of_function(("softmax", "log_softmax"), softmax.WRONG, softmax.WRONG_OUT)
    yield from _of_function(("cross_entropy",), cross_entropy.WRONG, cross_entropy.WRONG_OUT)
    yield from _of_arguments(dgmm.WRONG + im2col.TWINS_REFUSE + im2col.REFUSED)
    yield from _of_arguments([(name, (x, *args), options, kind, text) for name, x, args, options, kind, text in pool.WRONG])
    yield from _of_arguments([("local_response_norm", (x,), {"size": 3, **options}, kind, text) for x, options, kind, text in
                              [*lrn.WRONG.values(), *lrn.OURS.values()]])
    for arguments, kind, text in [*batch_norm.WRONG.values(), *batch_norm.OURS.values()]:
        yield Wrong("batch_norm", lambda arguments=arguments: batch_norm.call(W.batch_norm, **arguments), kind, re.escape(text))
    for run, _, kind, text in pointwise.WRONG:
        yield Wrong(called(run), run, kind, re.escape(text))
    for name, args, kind, text in rnn.WRONG.values():
        yield Wrong(name, lambda name=name, args=args: getattr(W, name)(*args), kind, text)


def x(*shape: int) -> torch.Tensor:
    return torch.ones(shape or (2, 4, 6, 6))


def _layers(name: str, *args: Any, **options: Any) -> Callable[[], Any]:
    return lambda: getattr(W, name)(*args, **options)


# what no family has: the other ranks, and layers whose code is that of their neighbours
_hidden, _params = x(1, 3, 6), [x(6, 4), x(6, 6), x(6), x(6)]
_rest = (True, 1, 0.0, False, False, False)
HERE = [
    Wrong("calibrate", lambda: weft.backends.calibrate(1), TypeError, "again: is 1, allowed: True or False"),
    Wrong("keep_pages", lambda: weft.backends.keep_pages(1), TypeError, "keep: is 1, allowed: True or False"),
    Wrong("pack", lambda: weft.pack(torch.zeros(1)), TypeError, "net: is Tensor, allowed: torch.nn.Module"),
    Wrong("enable", lambda: weft.enable("gelu"), ValueError, "operators: has 'gelu', allowed: 'convolution'"),
    Wrong("enable", lambda: weft.enable(math="tf32"), ValueError, "math: is 'tf32', allowed: None, 'strict' or 'fast'"),
    Wrong("enable", lambda: weft.enable(device="meta"), ValueError, "device: is 'meta', allowed: 'cpu', 'cuda'"),
    Wrong("enabled", lambda: weft.enabled(math=1).__enter__(), ValueError, "math: is 1, allowed"),
    Wrong("flags", lambda: weft.backends.flags(fast=True).__enter__(), TypeError, "fast: is no setting, allowed: benchmark"),
    Wrong("sparsity", lambda: weft.prune.sparsity(None), TypeError, "net: is NoneType, allowed: Module"),
    Wrong("conv3d", lambda: W.conv3d(x(), x(4, 4, 3, 3)), RuntimeError, r"conv3d: weight has 4 dimensions \[4, 4, 3, 3\], allowed: 5"),
    Wrong("conv3d", lambda: W.conv3d(x(2, 4, 5, 5, 5), x(4, 4, 3, 3, 3), stride=0), RuntimeError, "stride: is 0 along spatial axis 0"),
    *(Wrong(name, _layers(name, x(5, 3, 4), _hidden[:, :1], _params, *_rest), RuntimeError, r"h0: has the shape \[1, 1, 6\], allowed: \[1, 3, 6\]")
      for name in ("rnn_relu", "rnn_tanh")),
    *(Wrong(name, _layers(name, x(5, 3, 4), (_hidden,), _params, *_rest), TypeError, f"{name}: hx is tuple, allowed: Tensor")
      for name in ("rnn_relu", "rnn_tanh")),
    *(Wrong(name, _layers(name, x(5, 3, 4), _hidden, _params[:3], *_rest), RuntimeError, "params: has 3 tensors, allowed with num_layers=1, .*: 4")
      for name in ("rnn_relu", "rnn_tanh")),
    *(Wrong(name, _layers(name, x(5, 3, 4), _hidden, _params, True, 1, "0", False, False, False), TypeError, f"{name}: dropout is str, allowed: float")
      for name in ("rnn_relu", "rnn_tanh")),
]
WRONG = [row for row in (*_families(), *HERE) if row.name]
