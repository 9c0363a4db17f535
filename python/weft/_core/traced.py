"""What a graph of torch.compile holds of an operator: PyTorch's own, where the planner would leave the call to PyTorch, so that Inductor generates code for
it and fuses it with its neighbours; else weft's, below autograd, which costs a third of the call from Python.

The planner is asked with the sizes that are known or likely, and no guard is made. Where PyTorch's operator would make one, or cannot do without a size that
nobody knows, the operator stays weft's; so it does where weft.backends says anything of kernels, and where time is to be measured: then it decides when it
runs. Exported programs keep weft's operators as they are.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.compiler.config as _config
from torch import Tensor
from torch._guards import TracingContext

from . import library as _library, settings as _settings
from .arguments import in_transform
from .layouts import orders
from .shapes import _hint, asked, fake_of

_C = torch._C
_compiled = torch.ops.weft_compiled
_WON, _MAY = 2, 1          # PyTorch's, by the planner; and by what the operator says of its arguments
_TAG = " weft.backends"    # in the key of cached graphs, which are another's under other settings

# Inductor writes these itself, in one loop with what stands beside them: no kernel of their own is faster.
GENERATED = frozenset(("relu", "clip", "tanh", "sigmoid", "softmax", "log_softmax", "softmax_backward", "batch_norm", "batch_norm_train", "batch_norm_backward", "dgmm",
                       "dgmm_backward"))
_POOLS = frozenset(("max_pool", "max_pool_index", "max_pool_backward", "avg_pool", "avg_pool_backward", "adaptive_avg_pool", "adaptive_avg_pool_backward"))
_free = True


def _follow(free: bool) -> None:
    """The settings have changed."""
    global _free
    _free = bool(free) and not _settings.now().benchmark
    _config.cache_key_tag = _config.cache_key_tag.replace(_TAG, "") + ("" if _free else _TAG)


_settings.listeners.append(_follow)


def is_wanted() -> bool:
    """A graph is being made that will be compiled, and this is the last time that the operator is seen."""
    return (_C._get_dispatch_mode(_C._TorchDispatchModeKey.PROXY) is not None and TracingContext.try_get() is not None and not torch.compiler.is_exporting()
            and not in_transform())


def _answer(name: str, args: Sequence[Any]) -> int:
    _library.lib.weft_torch_asks(True)
    try:
        asked(name, args)
    except RuntimeError:   # it stops at its plan
        pass
    finally:
        answer = _library.lib.weft_torch_asks(False)
    return answer


def _is_generated(name: str, image: Tensor) -> bool:
    """Windows of images it writes, too; its loops for the CPU lose to weft's kernels."""
    return name in GENERATED or (name in _POOLS and image.dim() == 4 and image.device.type == "cuda")


def _is_torchs(name: str, args: Sequence[Any], want: int) -> bool:
    """want: the place of the argument that says which gradients; -1: there is none. Each part must be PyTorch's."""
    parts = [args]
    if want >= 0:
        parts += [(*args[:want], args[want] & bits, *args[want + 1:]) for bits in (1, 6) if args[want] & bits]
    answers = [_answer(name, part) for part in parts]
    return min(answers) >= (_MAY if _is_generated(name, args[0]) else _WON)


def _laid(y: Tensor, made: Tensor) -> Tensor:
    """In the type and the order of axes that weft's operator gives."""
    if y.dtype != made.dtype:
        y = y.to(made.dtype)
    if any(_hint(step) != as_made for n, step, as_made in zip(made.shape, y.stride(), made.stride()) if n != 1):
        order = sorted(range(y.dim()), key=lambda a: (-made.stride(a), -made.shape[a]))
        y = y.permute(order).contiguous().permute([order.index(a) for a in range(y.dim())])
    return y


def graph_form(name: str, by_torch: Callable | None) -> Callable[..., Any]:
    """The operator weft::name as a graph has it."""
    op = getattr(_compiled, name).default
    torch.library.register_fake(f"weft_compiled::{name}", fake_of(name))
    places = {a.name: i for i, a in enumerate(op._schema.arguments)}
    want, up = places.get("want", -1), places.get("ceil_mode", -1)

    def in_graph(*args: Any) -> Any:
        may_lie = orders(name, args)
        if by_torch is None or not _free:
            return op(*args)
        made, bare = asked(name, args)
        decided = all if args[0].device.type == "cpu" else any   # in each order or in one: Inductor's loops for the CPU are slow
        guarded = bare.unknown or (bare.symbolic and up >= 0 and args[up])   # whether the last window starts inside is compared
        if guarded or not decided(_is_torchs(name, laid, want) for laid in may_lie):
            return op(*args)
        with _C.DisableTorchFunction():
            got = by_torch(*args)
        if not isinstance(got, tuple):
            return _laid(got, made)
        return tuple(args[0].new_empty(0, dtype=like.dtype) if y is None else _laid(y, like) for y, like in zip(got, made))
    return in_graph
