"""Networks as they are beside weft.enable(), convert() and convert(fuse=True): PyTorch's time over the other's, forward and training.

    python bench/networks.py [--device cuda] [--batch 1,8] [--ways enable,convert,fuse] [--only TEXT,TEXT] [--compile] [--limit S] [NETWORK ...]

NETWORK is one of examples/models (without any: all nine), timm/NAME or torchvision/NAME, where these packages are installed. Both sides are timed in
turn, in one process; each figure is the median of the ratios of neighbouring runs, one for each repeat. A row is marked where two of three repeats or
more are below 0.97. Peak memory is that of one step beyond what was there. On CUDA PyTorch's time per call that the seat sees is shown too: where it is
small, the way through the seat counts, and rows below 100 us a call are marked ~ instead.
"""
from __future__ import annotations

import argparse
import contextlib
import copy
import importlib
import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

import weft
from weft import _enable
from weft._bench import clock as _clock, models as _models

LEAST = 0.97
SHORT = 100.0                        # microseconds of PyTorch per seated call on CUDA, below which the way counts
WAYS = ("enable", "convert", "fuse")


def built(name: str, batch: int) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    package, _, model = name.rpartition("/")
    if not package:
        example = _models.load()[model]
        return example.build(), example.inputs((batch, *example.shape[1:]))
    if package == "timm":
        return importlib.import_module("timm").create_model(model), (torch.randn(batch, 3, 224, 224),)
    return importlib.import_module("torchvision.models").get_model(model), (torch.randn(batch, 3, 224, 224),)


def ratio(runs: list[Callable[[], Any]], on: Callable[[], Any], wait: Callable[[], Any], seconds: float) -> tuple[float, float]:
    """The median over pairs of runs, each side first in every second pair; and PyTorch's milliseconds. PyTorch's side is PyTorch's alone: weft would
    take gradients of convolutions that its own modules, run in the same process, have shown it."""
    samples: list[list[float]] = [[], []]
    end = time.monotonic() + seconds
    while time.monotonic() < end or len(samples[1]) < 3:
        first = len(samples[1]) % 2
        for side in (first, 1 - first):
            with on() if side else _enable.bypassed():
                start = time.perf_counter()
                runs[side]()
                wait()
                samples[side].append(time.perf_counter() - start)
    return statistics.median(off / with_it for off, with_it in zip(*samples)), 1e3 * statistics.median(samples[0])


def other(way: str, net: torch.nn.Module, inputs: tuple[torch.Tensor, ...], which: str) -> torch.nn.Module:
    net = copy.deepcopy(net).train(which == "train")
    return net if way == "enable" else weft.convert(net, example=inputs, fuse=way == "fuse", verbose=False)


def made_ready(net: torch.nn.Module, inputs: tuple[torch.Tensor, ...], which: str, compiled: bool) -> Callable[[], Any]:
    return _models.PASSES[which](torch.compile(net) if compiled else net, inputs)


def row(name: str, batch: int, which: str, way: str, options: argparse.Namespace) -> bool:
    device = options.device
    torch.compiler.reset()           # else the frames of earlier networks count towards the limit of recompilations
    net, inputs = built(name, batch)
    net, inputs = net.to(device), tuple(x.to(device) for x in inputs)
    head = f"{name:24s} {batch:3d} {which:8s} {way:8s}"
    on = (lambda: weft.enabled(device=device)) if way == "enable" else contextlib.nullcontext
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    try:
        as_it_is = made_ready(net, inputs, which, options.compile)
        as_it_is()
    except ValueError as refusal:    # batch norm in training needs more than one value
        print(f"{head} PyTorch refuses it: {refusal}", flush=True)
        return False
    runs = [as_it_is, made_ready(other(way, net, inputs, which), inputs, which, options.compile)]
    _enable.seen(forget=True)
    with on():
        runs[1]()
    calls, taken = (sum(s.calls for s in _enable.seen() if keep(s)) for keep in (lambda s: True, lambda s: s.kernel != "torch"))
    made = [ratio(runs, on, wait, options.seconds) for _ in range(options.repeats)]
    low = sum(r < LEAST for r, _ in made) >= min(2, options.repeats)
    ms = statistics.median(ms for _, ms in made)
    peaks = [_clock.peak(runs[0], torch.device(device)) / 2**20]
    with on():
        peaks.append(_clock.peak(runs[1], torch.device(device)) / 2**20)
    us = 1e3 * ms / max(calls, 1)
    short = device == "cuda" and way == "enable" and us < SHORT
    how = f"{taken} of {calls} calls taken, {us:.0f} us a call" if way == "enable" else weft.convert.last_report.summary().partition(" (")[0]
    print(f"{head} {' '.join(f'{r:5.2f}' for r, _ in made)} {' ' if not low else '~' if short else '!'}  torch {ms:9.3f} ms, "
          f"peak {peaks[0]:.0f} and {peaks[1]:.0f} MiB, {how}", flush=True)
    return low and not short


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("network", nargs="*", metavar="NETWORK", help="of examples/models, timm/NAME or torchvision/NAME")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--batch", default="1,8", metavar="N,N")
    parser.add_argument("--only", default="", metavar="TEXT", help="of the nine those whose name has one of these texts, split by commas")
    parser.add_argument("--passes", default="forward,train", metavar="PASS,PASS")
    parser.add_argument("--ways", default=WAYS[0], metavar="WAY,WAY", help=f"of {', '.join(WAYS)}")
    parser.add_argument("--compile", action="store_true", help="both sides under torch.compile")
    parser.add_argument("--seconds", type=float, default=2.0, help="of a repeat")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--limit", type=float, default=float("inf"), metavar="S", help="seconds in all, after which no further row begins")
    options = parser.parse_args()
    for way in options.ways.split(","):
        if way not in WAYS:
            parser.error(f"--ways: is {way!r}, allowed: {', '.join(WAYS)}")
    end, low = time.monotonic() + options.limit, 0
    names = options.network or [n for n in _models.load() if any(text in n for text in options.only.split(","))]
    for name, batch, which, way in itertools.product(names, map(int, options.batch.split(",")), options.passes.split(","), options.ways.split(",")):
        if time.monotonic() > end:
            print(f"{name:24s} {batch:3d} {which:8s} {way:8s} left out")
        else:
            low += row(name, batch, which, way, options)
    print(f"{low} rows below {LEAST} in most repeats")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
