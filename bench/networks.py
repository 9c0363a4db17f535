"""The nine example networks as they are, without and with weft.enable(): PyTorch's time over the other, forward and training.

    python bench/networks.py [--device cuda] [--batch 1,8] [--only TEXT,TEXT] [--seconds S] [--repeats N] [--limit S]

Both sides are timed in turn, in one process; each figure is the median of the ratios of neighbouring runs, one for each repeat. A row is marked
where two of three repeats or more are below 0.97. On CUDA PyTorch's time per call that the seat sees is shown too: where it is small, the way
through the seat counts, and rows below 100 us a call are marked ~ instead.
"""
from __future__ import annotations

import argparse
import statistics
import time

import torch

import weft
from weft import _enable
from weft._bench import models as _models

LEAST = 0.97
SHORT = 100.0                        # microseconds of PyTorch per seated call on CUDA, below which the way counts


def ratio(run, wait, device: str, seconds: float) -> tuple[float, float]:
    """The median over pairs of runs, each side first in every second pair; and PyTorch's milliseconds."""
    samples: list[list[float]] = [[], []]
    end = time.monotonic() + seconds
    while time.monotonic() < end or len(samples[1]) < 3:
        first = len(samples[1]) % 2 == 1
        for on in (first, not first):
            if on:
                weft.enable(device=device)
            start = time.perf_counter()
            run()
            wait()
            samples[on].append(time.perf_counter() - start)
            weft.disable()
    return statistics.median(off / on for off, on in zip(*samples)), 1e3 * statistics.median(samples[0])


def row(name: str, batch: int, which: str, options: argparse.Namespace) -> bool:
    example, device = _models.load()[name], options.device
    torch.manual_seed(0)
    net = example.build().to(device)
    inputs = tuple(x.to(device) for x in example.inputs((batch, *example.shape[1:])))
    run, wait = _models.PASSES[which](net, inputs), torch.cuda.synchronize if device == "cuda" else lambda: None
    try:
        run()
    except ValueError as refusal:    # batch norm in training needs more than one value
        print(f"{name:16s} {batch:3d} {which:8s} PyTorch refuses it: {refusal}", flush=True)
        return False
    _enable.seen(forget=True)
    with weft.enabled(device=device):
        run()
    calls = sum(s.calls for s in _enable.seen())
    taken = sum(s.calls for s in _enable.seen() if s.kernel != "torch")
    made = [ratio(run, wait, device, options.seconds) for _ in range(options.repeats)]
    low = sum(r < LEAST for r, _ in made) >= min(2, options.repeats)
    ms = statistics.median(ms for _, ms in made)
    us = 1e3 * ms / max(calls, 1)
    short = device == "cuda" and us < SHORT
    print(f"{name:16s} {batch:3d} {which:8s} {' '.join(f'{r:5.2f}' for r, _ in made)} {' ' if not low else '~' if short else '!'}  torch {ms:9.3f} ms, "
          f"{taken} of {calls} calls taken, {us:.0f} us a call", flush=True)
    return low and not short


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--batch", default="1,8", metavar="N,N")
    parser.add_argument("--only", default="", metavar="TEXT", help="networks whose name has one of these texts, split by commas")
    parser.add_argument("--passes", default="forward,train", metavar="PASS,PASS")
    parser.add_argument("--seconds", type=float, default=2.0, help="of a repeat")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--limit", type=float, default=float("inf"), metavar="S", help="seconds in all, after which no further row begins")
    options = parser.parse_args()
    end, low = time.monotonic() + options.limit, 0
    for name in (n for n in _models.load() if any(text in n for text in options.only.split(","))):
        for batch in map(int, options.batch.split(",")):
            for which in options.passes.split(","):
                if time.monotonic() > end:
                    print(f"{name:16s} {batch:3d} {which:8s} left out")
                else:
                    low += row(name, batch, which, options)
    print(f"{low} rows below {LEAST} in most repeats")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
