"""How images lie around weft's convolutions and pooling in the code that Inductor writes. PyTorch's own convolutions in 2D are channels-last there, whatever the
program says, on the CPU always and on CUDA in graphs where Inductor expects it to pay; the loops between them follow. An operator that insisted on the
program's order would have each loop beside it write both; so weft's are channels-last, too, and the planner is asked with such data. Other operators, and
other backends, have what the program says.
"""
from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from .shapes import _hint

_CONVOLUTIONS = {"conv": (0,), "conv_transpose": (0,), "conv_backward": (0, 1)}   # the places of the images among their arguments
# gradients of pooling have the program's order, which is an argument of theirs
_IMAGES = {**_CONVOLUTIONS, "max_pool": (0,), "max_pool_index": (0,), "avg_pool": (0,), "adaptive_avg_pool": (0,)}


def _is_inductors() -> bool:
    """It is Inductor that a graph is made for."""
    virtualized = sys.modules.get("torch._inductor.virtualized")
    return virtualized is not None and isinstance(virtualized.V.fake_mode, FakeTensorMode)


def _may_be_last(image: Tensor) -> bool:
    """By the rules of PyTorch's GraphLowering.decide_layout_opt and of what Inductor makes of aten.convolution."""
    if image.dim() != 4 or not torch._inductor.config.layout_optimization:
        return False
    onednn = torch.backends.mkldnn
    return image.device.type == "cuda" or (image.device.type == "cpu" and onednn.enabled and onednn.is_available())


def _constraint(places: Sequence[int]) -> Callable[..., Any]:
    """What Inductor does with the arguments of an operator before it calls it: images channels-last where its own are, all others as the program has them."""
    from torch._inductor import ir, lowering
    from torch._inductor.virtualized import V

    ours = {getattr(torch.ops.weft_compiled, name).default for name in _CONVOLUTIONS}

    def is_last(like: Any) -> bool:
        """Where PyTorch's own convolutions would be; on the CPU beside weft's, too."""
        return _may_be_last(like) and (V.graph.layout_opt or (like.device.type == "cpu" and any(n.target in ours for n in V.graph.module.graph.nodes)))

    def constrain(node: Any, *args: Any, **named: Any) -> tuple[Any, Any]:
        program = node.meta["eager_input_vals"][0]
        return [ir.ExternKernel.require_channels_last(a) if i in places and is_last(like) else lowering.constrain_to_fake_tensor(a, like)
                for i, (a, like) in enumerate(zip(args, program))], named
    return constrain


@lru_cache(maxsize=None)
def _is_told(name: str) -> bool:
    """Inductor knows how the operator wants its arguments. False: this release of PyTorch has no such way."""
    try:
        from torch._inductor import lowering
        lowering.make_fallback(getattr(torch.ops.weft_compiled, name).default, layout_constraint=_constraint(_IMAGES[name]), warn=False)
    except (ImportError, AttributeError, TypeError):
        return False
    return True


def orders(name: str, args: Sequence[Any]) -> list[Sequence[Any]]:
    """The arguments of an operator of a graph that is being made, with images without memory in each order of axes that they may have; Inductor is told.
    But for convolutions on the CPU it decides when it knows the whole graph."""
    places = _IMAGES.get(name, ())
    if not places or not _is_inductors() or not all(_may_be_last(args[i]) for i in places) or not _is_told(name):
        return [args]
    with torch._C._DisableTorchDispatch():
        last = [torch.empty([_hint(n) for n in a.shape], dtype=a.dtype, device="meta", memory_format=torch.channels_last) if i in places else a
                for i, a in enumerate(args)]
    return [last] if name in _CONVOLUTIONS and args[0].device.type == "cpu" else [args, last]
