"""The regret of the default choice: its time over that of the better of weft's own kernel and PyTorch's implementation.

A choice with a regret of more than LIMIT is a defect of the planner: `python -m weft bench --set regret` lists them.
"""
from __future__ import annotations

import statistics
import sys
from typing import Any, Optional, TextIO

import torch

from . import clock as _clock, twin as _twin
from .. import _enable, backends

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


@_enable.suspended()
def run(problems: list[str], rounds: int = 7, out: Optional[TextIO] = None) -> tuple[list[dict[str, Any]], int]:
    """Every problem, a line each, and how many are over LIMIT."""
    out = out or sys.stdout
    rows, over = [], 0
    print(f"{'regret':>6}  {'default ms':>10}  {'torch ms':>9}  {'weft ms':>9}  problem, kernel chosen, weft's own", file=out)
    for text in problems:
        row = measure(text, rounds)
        rows.append(row)
        over += row["regret"] > LIMIT
        own = f"{row['weft_ms']:9.3f}" if row["weft_ms"] is not None else f"{'-':>9}"
        mark = "!" if row["regret"] > LIMIT else "?" if row["busy"] else " "
        print(f"{row['regret']:5.2f}{mark}  {row['default_ms']:10.3f}  {row['torch_ms']:9.3f}  {own}  {row['problem']}  {row['kernel']}  {row['own']}",
              file=out, flush=True)
    worst = max((r["regret"] for r in rows), default=0)
    print(f"worst {worst:.2f}; {over} of {len(rows)} choices over {LIMIT} of the better of weft and PyTorch", file=out)
    return rows, over
