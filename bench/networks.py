"""The nine example networks as they are, without and with weft.enable(): PyTorch's time over the other, forward and training.

    python bench/networks.py [--device cuda] [--batch 1,8] [--only TEXT] [--seconds S] [--repeats N]

Both sides are timed in turn, in one process; each figure is the ratio of the two medians, one for each repeat. A row is marked where two of three
repeats or more are below 0.97. On CUDA PyTorch's time per call that the seat sees is shown too: where it is small, the way through the seat counts.
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


def ratio(run, wait, device: str, seconds: float) -> tuple[float, float]:
    """Of the medians; and PyTorch's milliseconds."""
    samples: list[list[float]] = [[], []]
    end = time.monotonic() + seconds
    while time.monotonic() < end or len(samples[1]) < 3:
        for on in (False, True):
            if on:
                weft.enable(device=device)
            start = time.perf_counter()
            run()
            wait()
            samples[on].append(time.perf_counter() - start)
            weft.disable()
    off, with_it = map(statistics.median, samples)
    return off / with_it, 1e3 * off


def row(name: str, batch: int, which: str, options: argparse.Namespace) -> bool:
    example, device = _models.load()[name], options.device
    torch.manual_seed(0)
    net = example.build().to(device)
    inputs = tuple(x.to(device) for x in example.inputs((batch, *example.shape[1:])))
    run, wait = _models.PASSES[which](net, inputs), torch.cuda.synchronize if device == "cuda" else lambda: None
    run()
    _enable.seen(forget=True)
    with weft.enabled(device=device):
        run()
    calls = sum(s.calls for s in _enable.seen())
    taken = sum(s.calls for s in _enable.seen() if s.kernel != "torch")
    made = [ratio(run, wait, device, options.seconds) for _ in range(options.repeats)]
    low = sum(r < LEAST for r, _ in made) >= min(2, options.repeats)
    ms = statistics.median(ms for _, ms in made)
    print(f"{name:16s} {batch:3d} {which:8s} {' '.join(f'{r:5.2f}' for r, _ in made)}{' !' if low else '  '}  torch {ms:9.3f} ms, {taken} of {calls} calls taken, "
          f"{1e3 * ms / max(calls, 1):.0f} us a call", flush=True)
    return low


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--batch", default="1,8", metavar="N,N")
    parser.add_argument("--only", default="", metavar="TEXT", help="networks whose name has this text")
    parser.add_argument("--passes", default="forward,train", metavar="PASS,PASS")
    parser.add_argument("--seconds", type=float, default=2.0, help="of a repeat")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    low = 0
    for name in (n for n in _models.load() if options.only in n):
        for batch in map(int, options.batch.split(",")):
            for which in options.passes.split(","):
                low += row(name, batch, which, options)
    print(f"{low} rows below {LEAST} in most repeats")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
