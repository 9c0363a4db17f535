"""What calls cost beside computing: memory that stays, and time on tiny inputs beside PyTorch's cheapest operator of the kind.

    WEFT_CALLS=1000000 pytest tests/python/test_cost.py        so many calls in the tests of memory; 100000 unless told
    python tests/python/test_cost.py                           the table of overheads
"""
from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from everything import FUNCTIONS, Example, results

CALLS = int(os.environ.get("WEFT_CALLS", 100000))
SLACK = 1 << 20       # bytes: at 10^6 calls, 1 a call
MOST = 15.0           # us that a call may take beyond PyTorch's
_dense = FUNCTIONS["conv2d"]
OVERHEADS = FUNCTIONS | {"conv2d by PyTorch": replace(     # of this size PyTorch's own kernel is the faster one, and is called
    _dense, tensors=lambda n, s: ((1, 4, 8, 8), (4, 4, 3, 3), (4,)), call=lambda f, *t: f(*t, padding=1), cheapest=lambda *t: torch.conv2d(*t, 1, 1))}


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# ---------------------------------------------------------------------------------------------- memory

def _without_grad(example: Example) -> Callable[[int], None]:
    tensors, run = example.make("cpu", batch=1, size=example.tiny), example.weft

    def calls(times: int) -> None:
        with torch.no_grad():
            for _ in range(times):
                run(*tensors)
    return calls


def _with_grad(example: Example) -> Callable[[int], None]:
    tensors, run = example.make("cpu", grad=True, batch=1, size=example.tiny), example.weft
    leaves = [t for t in tensors if t.requires_grad]

    def calls(times: int) -> None:
        for _ in range(times):
            y = results(run(*tensors))[0]
            torch.autograd.grad(y, leaves, torch.ones_like(y))
    return calls


@pytest.mark.parametrize("make, share", [(_without_grad, 0.8), (_with_grad, 0.2)], ids=["forward", "gradients"])
def test_memory_stays(make, share):
    """Over every function in turn, in many rounds, so that what one of them leaves behind adds up."""
    runs = [make(e) for e in FUNCTIONS.values()]
    rounds = 10
    times = max(1, int(CALLS * share) // (rounds * len(runs)))
    marks = []
    for _ in range(rounds + 3):
        for run in runs:
            run(times)
        gc.collect()
        marks.append(resident())
    grown = marks[-1] - marks[2]   # the first rounds fill caches
    assert grown < SLACK, f"{rounds * times * len(runs)} calls left {grown >> 10} KiB: {[(m - marks[0]) >> 10 for m in marks]}"


# ---------------------------------------------------------------------------------------------- time

def _least(run: Callable[[], object], times: int) -> float:
    start = time.perf_counter_ns()
    for _ in range(times):
        run()
    return (time.perf_counter_ns() - start) / times / 1e3


def overhead(example: Example, rounds: int = 40, times: int = 25) -> tuple[float, float]:
    """us of a call of weft and of the cheapest operator, the least of many interleaved rounds."""
    tensors = example.make("cpu", batch=1, size=example.tiny)
    ours, theirs = lambda: example.weft(*tensors), lambda: example.cheapest(*tensors)
    least = [float("inf"), float("inf")]
    with torch.no_grad():
        for _ in range(rounds):
            least = [min(best, _least(run, times)) for best, run in zip(least, (ours, theirs))]
    return least[0], least[1]


@pytest.mark.parametrize("name", OVERHEADS)
def test_overhead(name):
    """Other work on the machine only adds: the least of a few attempts, over a few seconds, counts."""
    for _ in range(12):
        ours, theirs = overhead(OVERHEADS[name])
        if ours - theirs <= MOST:
            return
        time.sleep(0.2)
    pytest.fail(f"{name}: {ours:.1f} us, PyTorch's cheapest operator of the kind {theirs:.1f}: {ours - theirs:.1f} over, allowed {MOST:.0f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name, e in OVERHEADS.items():
        ours, theirs = overhead(e)
        print(f"{name:26s} {ours:7.1f} us   cheapest {theirs:7.1f} us   over {ours - theirs:6.1f}{'   <---' if ours - theirs > MOST else ''}", flush=True)
