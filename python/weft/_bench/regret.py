"""The regret of the default choice: its time over that of the better of weft's own kernel and PyTorch's implementation.

A choice with a regret of more than LIMIT is a defect of the planner: `python -m weft bench --set regret` lists them.
"""
from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any, Optional

import torch

from . import clock as _clock, twin as _twin
from .. import backends
from .._core.text import number

LIMIT = 1.15


def _own(text: str) -> Optional[_twin.Twin]:
    """The same problem on weft's kernels alone; None where that is the reference, which is never the default."""
    with backends.flags(delegate=False):
        twin = _twin.build(text)
    return None if "_ref" in twin.kernel else twin


def measure(text: str, rounds: int = 7) -> dict[str, Any]:
    """One row: the default call, PyTorch's and weft's own, timed in turn.

        >>> from weft._bench import regret as _regret
        >>> _regret.measure("relu2d:fwd:f32:nchw:n1c8h56w56")["regret"] > 0
        True
    """
    busy, twin, own = _clock.watch(), _twin.build(text), _own(text)
    clock = _clock.of(twin.device)
    sides: dict[str, Any] = {"default": (twin.weft, True), "torch": (twin.peer, True)}
    if own is not None:
        sides["weft"] = (own.weft, False)
    samples: dict[str, list[float]] = {name: [] for name in sides}
    for i in range(-1, rounds):      # the first round warms up
        for name, (run, delegate) in sides.items():
            with backends.flags(delegate=delegate):
                clock.sample(run)   # the first call after a change of the settings decides anew
                ms = clock.sample(run)
            if i >= 0:
                samples[name].append(ms)
    ms = {name: statistics.median(s) for name, s in samples.items()}
    best = min((name for name in ms if name != "default"), key=ms.__getitem__)
    return {"problem": twin.text, "kernel": twin.kernel, "own": own.kernel if own else "", "default_ms": ms["default"], "torch_ms": ms["torch"],
            "weft_ms": ms.get("weft"), "best": best, "regret": ms["default"] / ms[best], "busy": busy(), "threads": torch.get_num_threads()}


COLUMNS = (("kernel chosen", 44), ("regret", 7), ("default ms", 10), ("torch ms", 9), ("weft ms", 9), ("weft's own", 44))


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """A row of the table."""
    mark = "!" if row["regret"] > LIMIT else "?" if row["busy"] else ""
    return (row["problem"], row["kernel"], f"{row['regret']:.2f}{mark}", f"{row['default_ms']:.3f}", f"{row['torch_ms']:.3f}", number(row["weft_ms"], 3),
            row["own"])


def summary(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The line below the table: the worst row, and how many are over LIMIT."""
    worst, over = max((r["regret"] for r in rows), default=0), sum(r["regret"] > LIMIT for r in rows)
    return [f"worst {worst:.2f}; {over} of {len(rows)} choices over {LIMIT} of the better of weft and PyTorch"]
