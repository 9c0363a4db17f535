"""What convert() does: choose, measure, swap and fuse, all of it or nothing."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Optional

import torch
from torch import nn

from . import chains as _chains, compare as _compare, expected as _expected, fusion as _fusion
from .compare import Unit
from .pairs import TABLES, reason_to_stay, set_class
from .shadow import shadow
from ..convert import Report, Row

FASTER = 1.05   # medians of a quiet machine repeat within a few percent: what gains less may gain nothing


@dataclass
class _Plan:
    """What is known of the modules, and what is to happen to them."""

    names: dict[nn.Module, str]
    reasons: dict[nn.Module, str]       # modules that keep their class, and why
    units: list[Unit]                   # chains first: what is fused is not swapped

    def row(self, unit: Unit, decision: str) -> Row:
        times = (unit.ms["torch"], unit.ms["weft"]) if unit.calls else (None, None)
        kinds = (_fusion.torch_class(m).__name__ for m in unit.members)
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
    chains = [Unit(chain.members(), chain) for chain in _chains.find(net, stays)] if fuse else []
    chained = {module for chain in chains for module in chain.members}
    for unit in [u for u in single if expected and u.members[0] not in chained]:
        reason = _expected.why_not(unit.members[0], net)
        if reason:
            reasons[unit.members[0]] = reason
            single.remove(unit)
    return _Plan(names, reasons, chains + single)


def _gains(unit: Unit, to: str) -> bool:
    return unit.calls > 0 and (unit.ratio if to == "weft" else 1 / unit.ratio) > FASTER


def _apply(plan: _Plan, to: str, measured: bool) -> Report:
    """Swaps and fuses what is to be; the rows are in the order of the net."""
    rows: dict[nn.Module, list[Row]] = {module: [] for module in plan.names}
    fused: set[nn.Module] = set()
    chosen = [unit for unit in plan.units if not measured or _gains(unit, to)]
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
            set_class(module, TABLES[to][type(module)])
    for unit in chosen:
        if unit.chain is not None:
            _fusion.fuse(unit.chain)
    for module, reason in plan.reasons.items():
        rows[module].append(plan.row(Unit([module]), f"stays: {reason}"))
    return Report([row for of_module in rows.values() for row in of_module])


def _time(net: nn.Module, plan: _Plan, example: Any) -> None:
    copy = shadow(net)
    try:
        _compare.measure(net, copy, plan.units, example, plan.names)
    except Exception as error:
        raise RuntimeError(f"example: the net does not run with it, {type(error).__name__}: {error}") from error


@contextmanager
def _all_or_nothing(net: nn.Module) -> Iterator[None]:
    """An error leaves every module with the class and the attributes it had."""
    before = [(module, type(module), dict(module.__dict__)) for module in net.modules()]
    try:
        yield
    except BaseException:
        for module, cls, attributes in before:
            set_class(module, cls)
            module.__dict__.clear()
            module.__dict__.update(attributes)
        raise


def carry_out(net: nn.Module, to: str, exclude: Optional[Callable[[nn.Module], bool]], example: Any, fuse: bool, everything: bool) -> Report:
    """convert(), with arguments that were checked."""
    with _all_or_nothing(net):
        _fusion.take_apart(net)
        with torch.random.fork_rng(_compare.devices(net, example)):   # tracing and measuring run the net's code
            plan = _plan(net, to, exclude, fuse, to == "weft" and example is None and not everything)
            if example is not None:
                _time(net, plan, example)
        return _apply(plan, to, example is not None)
