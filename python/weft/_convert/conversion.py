"""What convert() does: choose, measure, swap and fuse, all of it or nothing. Modules are timed on what they see in a forward pass of the net, as torch.nn
has them and as weft does."""
from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Optional

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map

from .. import _enable
from .._bench import clock as _clock
from .._core.text import Bar
from ..convert import Report, Row
from .fusion import Chain, find_chains, fuse, take_apart
from .pairs import other_class, reason_to_stay, set_class, shadow, torch_class, why_not

SIDES = ("torch", "weft")
FASTER = 1.05   # medians of a quiet machine repeat within a few percent: what gains less may gain nothing
ROUNDS = 7               # samples of each side; the median of fewer is moved by one interruption
SECONDS = 10.0           # for the net as a whole, after which two samples are enough
TOGETHER = "stays: faster alone, but the whole net is not"


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
        set_class(module, torch_class(type(module)))
        if side == "weft":
            set_class(module, other_class(module, side) or type(module))
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


def _copied(example: Any) -> Any:
    """Nets may write to what they are given."""
    return tree_map(lambda t: t.detach().clone().requires_grad_(t.requires_grad) if isinstance(t, Tensor) else t, example)


def devices(net: nn.Module, example: Any) -> list[torch.device]:
    """The GPUs whose random numbers the net may draw."""
    tensors = [*net.parameters(), *net.buffers(), *(t for t in tree_flatten(example)[0] if isinstance(t, Tensor))]
    return list({t.device for t in tensors if t.device.type == "cuda"})


@_enable.suspended()
def _measure_all(net: nn.Module, copy: nn.Module, units: Sequence[Unit], example: Any, names: dict[nn.Module, str]) -> None:
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
        for i, unit in enumerate(units):
            twins[unit.members[0]].register_forward_pre_hook(watch(i, unit), with_kwargs=True)
        try:
            call(copy, _copied(example))
        finally:
            bar.close("\r\x1b[K")


@_enable.suspended()
def _is_faster(net: nn.Module, example: Any) -> bool:
    """The whole net beside itself as torch.nn has it. What wins alone may lose together: where a GPU waits for the program, its time does not count."""
    was = shadow(net)
    take_apart(was)
    for module in was.modules():
        set_class(module, torch_class(type(module)))
    example = _copied(example)
    given = ((), example) if isinstance(example, dict) else (tuple(example) if isinstance(example, (tuple, list)) else (example,), {})
    with torch.set_grad_enabled(net.training):
        runners = {"torch": _Runner([was], given, _enable.bypassed), "weft": _Runner([shadow(net)], given)}
        ms = _clock.medians({side: runner.sample for side, runner in runners.items()}, ROUNDS, SECONDS, 2)
    return ms["weft"] < ms["torch"]


# ---------------------------------------------------------------------------------------------- the plan

@dataclass
class _Plan:
    """What is known of the modules, and what is to happen to them."""

    names: dict[nn.Module, str]
    reasons: dict[nn.Module, str]       # modules that keep their class, and why
    units: list[Unit]                   # chains first: what is fused is not swapped

    def row(self, unit: Unit, decision: str) -> Row:
        times = (unit.ms["torch"], unit.ms["weft"]) if unit.calls else (None, None)
        kinds = (torch_class(type(m)).__name__ for m in unit.members)
        return Row(" + ".join(self.names[m] for m in unit.members), " + ".join(kinds), unit.shape, *times, decision)


def _plan(net: nn.Module, to: str, exclude: Optional[Callable[[nn.Module], bool]], fuse: bool, expected: bool) -> _Plan:
    """expected: of modules that are not fused, only those that are expected to get faster."""
    names = {module: name or "(root)" for name, module in net.named_modules()}
    reasons, single, stays = {}, [], set()
    for module in names:
        reason = reason_to_stay(module, to)
        if exclude is not None and exclude(module):
            stays.add(module)
            reason = None if reason is None else "excluded"
        if reason or "forward" in module.__dict__:
            stays.add(module)
        if reason:
            reasons[module] = reason
        elif reason is not None:
            single.append(Unit([module]))
    chains = [Unit(chain.members(), chain) for chain in find_chains(net, stays)] if fuse else []
    chained = {module for chain in chains for module in chain.members}
    for unit in [u for u in single if expected and u.members[0] not in chained]:
        reason = why_not(unit.members[0], net)
        if reason:
            reasons[unit.members[0]] = reason
            single.remove(unit)
    return _Plan(names, reasons, chains + single)


def _apply(plan: _Plan, to: str, measured: bool) -> Report:
    """Swaps and fuses what is to be; the rows are in the order of the net."""
    rows: dict[nn.Module, list[Row]] = {module: [] for module in plan.names}
    fused: set[nn.Module] = set()
    chosen = [u for u in plan.units if not measured or (u.calls > 0 and (u.ratio if to == "weft" else 1 / u.ratio) > FASTER)]
    for unit in plan.units:
        stays = "stays: not called" if not unit.calls else "stays: not faster"
        if unit.chain is not None:
            rows[unit.members[0]].append(plan.row(unit, "fused" if unit in chosen else stays))
            fused.update(unit.members if unit in chosen else ())
            continue
        module = unit.members[0]
        if module not in fused:   # those have their row
            rows[module].append(plan.row(unit, to if unit in chosen else stays))
        if unit in chosen:
            set_class(module, other_class(module, to))   # type: ignore[arg-type]
    for unit in chosen:
        if unit.chain is not None:
            fuse(unit.chain)
    for module, reason in plan.reasons.items():
        rows[module].append(plan.row(Unit([module]), f"stays: {reason}"))
    return Report([row for of_module in rows.values() for row in of_module])


def _time(net: nn.Module, plan: _Plan, example: Any) -> None:
    copy = shadow(net)
    try:
        _measure_all(net, copy, plan.units, example, plan.names)
    except Exception as error:
        raise RuntimeError(f"example: the net does not run with it, {type(error).__name__}: {error}") from error


def _restorer(net: nn.Module) -> Callable[[], None]:
    """A function that gives every module the class and the attributes that it has now."""
    before = [(module, type(module), dict(module.__dict__)) for module in net.modules()]

    def restore() -> None:
        for module, cls, attributes in before:
            set_class(module, cls)
            module.__dict__.clear()
            module.__dict__.update(attributes)
    return restore


@contextmanager
def _all_or_nothing(net: nn.Module) -> Iterator[None]:
    restore = _restorer(net)
    try:
        yield
    except BaseException:
        restore()
        raise


def _apply_what_wins(net: nn.Module, plan: _Plan, example: Any) -> Report:
    """All that won alone, or nothing where it loses together."""
    restore = _restorer(net)
    report = _apply(plan, "weft", True)
    if all(row.decision.startswith("stays") for row in report.rows) or _is_faster(net, example):
        return report
    restore()
    return Report([row if row.decision.startswith("stays") else row._replace(decision=TOGETHER) for row in report.rows])


def carry_out(net: nn.Module, to: str, exclude: Optional[Callable[[nn.Module], bool]], example: Any, fuse: bool, everything: bool) -> Report:
    """convert(), with arguments that were checked."""
    with _all_or_nothing(net):
        take_apart(net)
        with torch.random.fork_rng(devices(net, example)):   # tracing and measuring run the net's code
            plan = _plan(net, to, exclude, fuse, to == "weft" and example is None and not everything)
            if example is not None:
                _time(net, plan, example)
                if to == "weft":
                    return _apply_what_wins(net, plan, example)
        return _apply(plan, to, example is not None)
