"""Modules of a net timed on what they see in a forward pass of it: as torch.nn has them and as weft does."""
from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Optional

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map

from .. import _enable
from .._bench import clock as _clock
from .._core.text import Bar
from .fusion import Chain, fuse, torch_class
from .pairs import TO_WEFT, set_class
from .shadow import shadow

SIDES = ("torch", "weft")
ROUNDS = 7               # samples of each side; the median of fewer is moved by one interruption


@dataclass(eq=False)
class Unit:
    """One module, or a chain that would be fused, and what it took over all its calls."""

    members: list[nn.Module]
    chain: Optional[Chain] = None
    shape: tuple[int, ...] = ()                                  # of the first input seen
    calls: int = 0
    ms: dict[str, float] = field(default_factory=lambda: dict.fromkeys(SIDES, 0.0))

    @property
    def ratio(self) -> float:
        return self.ms["torch"] / self.ms["weft"]


# ---------------------------------------------------------------------------------------------- one unit on one input

def _side(members: Sequence[nn.Module], side: str, chain: Optional[Chain]) -> list[nn.Module]:
    """Copies of the modules as one side has them."""
    copies = shadow(list(members))
    for module in copies:
        kind = torch_class(module)
        set_class(module, TO_WEFT.get(kind, kind) if side == "weft" else kind)
    if side == "weft" and chain is not None:
        rest = iter(copies)
        fuse(Chain(*(None if m is None else next(rest) for m in chain)))   # type: ignore[arg-type]
    return copies


def _timer(device: torch.device) -> tuple[Callable[[], Any], Callable[[Any, Any], float]]:
    """How to take the time on a device, and the seconds between two such times."""
    if device.type != "cuda":
        return time.perf_counter, lambda start, end: end - start

    def mark() -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(device))
        return event

    def between(start: torch.cuda.Event, end: torch.cuda.Event) -> float:
        end.synchronize()
        return start.elapsed_time(end) / 1e3
    return mark, between


class _Runner:
    """One side on one input: fresh arguments outside the clock, forward and, where something asks for gradients, backward inside."""

    def __init__(self, modules: list[nn.Module], args: Any, alone: Callable[[], Any] = nullcontext) -> None:
        """alone: the context that it runs in."""
        self.modules, self.args, self.alone = modules, args, alone
        self.parameters = [p for m in modules for p in m.parameters() if p.requires_grad]
        tensors = [t for t in tree_flatten(args)[0] if isinstance(t, Tensor)]
        self.mark, self.between = _timer(next((t.device for t in tensors), torch.device("cpu")))
        self.ones: dict[Any, Tensor] = {}

    def _ready(self) -> tuple[Any, list[Tensor]]:
        """The arguments as leaves; a module that writes to its input gets a copy, as a leaf it could not write to."""
        leaves: list[Tensor] = []
        inplace = getattr(self.modules[0], "inplace", False)

        def leaf(t: Any) -> Any:
            if not isinstance(t, Tensor):
                return t
            fresh = t.detach().requires_grad_(t.requires_grad and torch.is_grad_enabled())
            if fresh.requires_grad:
                leaves.append(fresh)
            return fresh.clone() if inplace else fresh
        return tree_map(leaf, self.args), leaves

    def _gradient(self, y: Tensor) -> Tensor:
        key = (y.shape, y.stride(), y.dtype)
        if key not in self.ones:
            self.ones[key] = torch.ones_like(y)
        return self.ones[key]

    def _run(self, args: Any, kwargs: Any, wrt: list[Tensor]) -> None:
        y = self.modules[0](*args, **kwargs)
        for module in self.modules[1:]:
            y = module(y)
        ends = [t for t in tree_flatten(y)[0] if isinstance(t, Tensor) and t.requires_grad]
        if ends and wrt:
            torch.autograd.grad(ends, wrt, [self._gradient(t) for t in ends], allow_unused=True)

    def sample(self, times: int) -> float:
        """Seconds a run."""
        total = 0.0
        marks = []
        with self.alone():
            for _ in range(times):
                (args, kwargs), leaves = self._ready()
                start = self.mark()
                self._run(args, kwargs, leaves + self.parameters)
                marks.append((start, self.mark()))
        for start, end in marks:
            total += self.between(start, end)
        return total / times


def _measure(members: Sequence[nn.Module], chain: Optional[Chain], args: Any) -> dict[str, float]:
    """Milliseconds of both sides. Their first runs decide what is run."""
    runners = {side: _Runner(_side(members, side, chain), args, _enable.bypassed if side == "torch" else nullcontext) for side in SIDES}
    for runner in runners.values():
        runner.sample(1)
    return _clock.medians({side: runner.sample for side, runner in runners.items()}, ROUNDS)


# ---------------------------------------------------------------------------------------------- the whole net

def _kind(unit: Unit, args: Any) -> tuple[Any, ...]:
    """Equal for units that must take the same time: a net has many alike."""
    tensors = [t for t in tree_flatten(args)[0] if isinstance(t, Tensor)] + [p for m in unit.members for p in m.parameters()]
    modules = tuple((type(m), m.training, m.extra_repr()) for m in unit.members)
    return (unit.chain is None, modules, torch.is_grad_enabled(), tuple((t.dtype, t.shape, t.stride(), t.device, t.requires_grad) for t in tensors))


def call(net: nn.Module, example: Any) -> Any:
    """The net on an example: a tensor, a sequence of arguments, or a dict of keyword arguments."""
    if isinstance(example, dict):
        return net(**example)
    return net(*example) if isinstance(example, (tuple, list)) else net(example)


def devices(net: nn.Module, example: Any) -> list[torch.device]:
    """The GPUs whose random numbers the net may draw."""
    tensors = [*net.parameters(), *net.buffers(), *(t for t in tree_flatten(example)[0] if isinstance(t, Tensor))]
    return list({t.device for t in tensors if t.device.type == "cuda"})


@_enable.suspended()
def measure(net: nn.Module, copy: nn.Module, units: Sequence[Unit], example: Any, names: dict[nn.Module, str]) -> None:
    """Fills in the times of the units, from a forward pass of the net's copy in its mode, with gradients where it is training.

    Each call is timed where it happens, so what a module sees is what it would see, and nothing but the net's own activations is kept."""
    twins = dict(zip(net.modules(), copy.modules()))
    known: dict[Any, dict[str, float]] = {}
    bar, seen = Bar("measuring", len(units), length=30), set[int]()

    def watch(i: int, unit: Unit) -> Callable[..., None]:
        members = [twins[m] for m in unit.members]

        def before(module: nn.Module, args: Any, kwargs: Any) -> None:
            seen.add(i)
            bar.step(len(seen), names[unit.members[0]][:60])
            key = _kind(unit, (args, kwargs))
            if key not in known:
                known[key] = _measure(members, unit.chain, (args, kwargs))
            unit.calls += 1
            unit.shape = unit.shape or next((tuple(t.shape) for t in tree_flatten((args, kwargs))[0] if isinstance(t, Tensor)), ())
            for side in SIDES:
                unit.ms[side] += known[key][side]
        return before
    with torch.set_grad_enabled(net.training):
        copied = tree_map(lambda t: t.detach().clone().requires_grad_(t.requires_grad) if isinstance(t, Tensor) else t, example)
        for i, unit in enumerate(units):
            twins[unit.members[0]].register_forward_pre_hook(watch(i, unit), with_kwargs=True)
        try:
            call(copy, copied)
        finally:
            bar.close("\r\x1b[K")
