"""The default choice on random problems: how often, and by how much, it loses to the better of weft's own kernel and PyTorch.

    python bench/random_regret.py --count 600                        # every operator, f32 and bf16, every pass and layout
    python bench/random_regret.py --only conv --count 600            # one operator; partial names serve
    python bench/random_regret.py --count 600 --json rows.json       # with what each side took and was expected to take
    python bench/random_regret.py --again rows.json                  # the same times, judged by this build's estimates
    python bench/random_regret.py --device cuda --seconds 300        # on a GPU, larger problems, L2 emptied

Half of the problems are convolutions: three in ten of them depthwise, three in ten with groups. Both sides are timed in turn with warm caches, the least
of some runs each; run it on a quiet machine. --again shows what a change of an estimate does without timing anything.
"""
from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional

import torch

from weft import backends
from weft._bench import clock as _clock, twin as _twin
from weft._core import calibrate as _calibrate, library as _library

LIMIT, LARGE = 1.15, 1.5             # of the regret
MOST_FLOPS, MOST_ELEMENTS, ROUNDS = {"cpu": 2e9, "cuda": 4e10}, {"cpu": 8 << 20, "cuda": 64 << 20}, 4
BATCHES = {"cpu": (1, 1, 2, 4, 8), "cuda": (1, 2, 8, 32, 64)}
LAYOUTS = {1: ("ncw", "nwc"), 2: ("nchw", "nhwc"), 3: ("ncdhw", "ndhwc")}
EDGES = {1: (16, 20000), 2: (4, 112), 3: (4, 32)}


# ---------------------------------------------------------------------------------------------- the problems

def between(rng: random.Random, low: float, high: float) -> int:
    """As many of 10 to 20 as of 100 to 200."""
    return round(math.exp(rng.uniform(math.log(low), math.log(high))))


device = "cpu"   # of the problems


def image(rng: random.Random, rank: int, c: int, edge: Optional[int] = None) -> tuple[str, int, int]:
    """The field of the sizes, the batch, the edge."""
    n, edge = rng.choice(BATCHES[device]), edge or between(rng, *EDGES[rank])
    return f"n{n}c{c}" + "".join(f"{axis}{edge}" for axis in "dhw"[3 - rank:]), n, edge


def conv(rng: random.Random, name: str = "conv") -> Optional[str]:
    rank, kind = rng.choice((1, 2, 2, 2, 3)) if name == "conv" else 2, rng.random() if name == "conv" else 1
    groups = between(rng, 4, 512) if kind < 0.3 else rng.choice((2, 3, 4, 8, 16, 32)) if kind < 0.6 else 1
    width = 1 if kind < 0.3 else between(rng, 1, 64) if kind < 0.6 else between(rng, 1, 512)
    out = width if rng.random() < 0.6 else 1 if kind < 0.3 else between(rng, 1, 4 * width)
    window, stride, dilation = rng.choice((1, 2, 3, 3, 3, 4, 5, 7, 9)), rng.choice((1, 1, 1, 2, 3)), rng.choice((1, 1, 1, 1, 2))
    sizes, n, edge = image(rng, rank, groups * width)
    pad = dilation * (window - 1) // 2 if rng.random() < 0.8 else 0
    left = (edge + 2 * pad - dilation * (window - 1) - 1) // stride + 1
    if left < 1 or 2 * n * left ** rank * groups * out * width * window ** rank > MOST_FLOPS[device]:
        return None
    if n * groups * max(width * edge ** rank, out * left ** rank) > MOST_ELEMENTS[device]:
        return None
    geometry = f"o{groups * out}k{window}s{stride}p{pad}d{dilation}g{groups}"
    if name == "partial_conv":
        return f"partial_conv2d:PASS:DTYPE,mask=u8,new_mask=u8:LAYOUT:{sizes}:{geometry}mask1"
    if name == "sparse_conv":
        weights = out * width * groups * window ** rank
        return f"sparse_conv2d:PASS:DTYPE:LAYOUT:{sizes}:{geometry}nnz{max(1, int(weights * rng.choice((0.02, 0.1, 0.2))))}"
    return f"conv{rank}d:PASS:DTYPE:LAYOUT:{sizes}:{geometry}"


def rows_of(name: str, *options: str) -> Callable[[random.Random], Optional[str]]:
    """Operators of a whole image; one of the options."""
    def made(rng: random.Random) -> Optional[str]:
        rank, c = rng.choice((1, 2, 2, 2, 3)), between(rng, 1, 1024)
        sizes, n, edge = image(rng, rank, c)
        option = rng.choice(options) if options else ""
        return f"{name}{rank}d:PASS:DTYPE:LAYOUT:{sizes}{':' * bool(option)}{option}" if n * c * edge ** rank <= MOST_ELEMENTS[device] else None
    return made


def windows_of(name: str, *options: str) -> Callable[[random.Random], Optional[str]]:
    """Operators with windows on an image."""
    def made(rng: random.Random) -> Optional[str]:
        rank, c = rng.choice((1, 2, 2, 2, 3)) if "pool" in name else 2, between(rng, 1, 512)
        window, stride = rng.choice((2, 2, 3, 3, 3, 5)), rng.choice((1, 2, 2, 3))
        sizes, n, edge = image(rng, rank, c)
        size = n * c * edge ** rank * (window / stride) ** (rank if "col" in name else 0)
        pad = window // 2 if rng.random() < 0.6 else 0
        if edge + 2 * pad < window or size > MOST_ELEMENTS[device]:
            return None
        return f"{name}{rank}d:PASS:DTYPE:LAYOUT:{sizes}:k{window}s{stride}p{pad}{rng.choice(options or ('',))}"
    return made


def diagonal(rng: random.Random) -> str:
    n, h, w = rng.choice((1, 1, 4)), between(rng, 4, 1500), between(rng, 4, 1500)
    return f"{rng.choice(('dgmm', 'cdgmm'))}:PASS:f32:dense:n{n}h{h}w{w}:side{rng.choice((0, 1))}"


def recurrent(rng: random.Random) -> str:
    t, n, c, o = between(rng, 2, 60), between(rng, 1, 32), between(rng, 8, 256), between(rng, 8, 256)
    return f"{rng.choice(('lstm', 'gru', 'rnn_tanh'))}:PASS:f32:dense:t{t}n{n}c{c}o{o}:l{rng.choice((1, 2))}"


def causal(rng: random.Random) -> Optional[str]:
    n, c, w, k = rng.choice((1, 2, 4)), between(rng, 8, 2048), between(rng, 8, 4096), rng.choice((2, 3, 4))
    return f"causal_conv1d:PASS:DTYPE:LAYOUT:n{n}c{c}w{w}:k{k}p{k - 1}+0{rng.choice(('', ':bias+silu'))}" if n * c * w <= MOST_ELEMENTS[device] else None


BOTH = ("fwd", "train")
TABLE: dict[str, tuple[Callable[[random.Random], Optional[str]], tuple[str, ...]]] = {   # a problem without pass, type and layout; its passes
    "conv": (conv, ("fwd", "bwd_data", "bwd_weights")),
    "partial_conv": (lambda rng: conv(rng, "partial_conv"), BOTH), "sparse_conv": (lambda rng: conv(rng, "sparse_conv"), ("fwd",)),
    "causal_conv": (causal, BOTH),
    "max_pool": (windows_of("max_pool", "index1"), BOTH), "avg_pool": (windows_of("avg_pool"), BOTH),
    "adaptive_avg_pool": (rows_of("adaptive_avg_pool", "to1", "to1", "to4", "to7"), BOTH),
    "im2col": (windows_of("im2col"), BOTH), "col2im": (windows_of("col2im"), BOTH),
    "batch_norm": (rows_of("batch_norm", "train1", "train0"), BOTH), "lrn": (rows_of("lrn", "size5"), BOTH),
    "softmax": (rows_of("softmax"), BOTH), "log_softmax": (rows_of("log_softmax"), BOTH), "cross_entropy": (rows_of("cross_entropy"), BOTH),
    "relu": (rows_of("relu"), BOTH), "sigmoid": (rows_of("sigmoid"), BOTH), "tanh": (rows_of("tanh"), BOTH), "clip": (rows_of("clip", "hi6"), BOTH),
    "ncrelu": (rows_of("ncrelu"), BOTH), "dgmm": (diagonal, BOTH), "rnn": (recurrent, BOTH),
}


def problem(rng: random.Random, operator: str, dtype: str) -> str:
    """One text; what is too large or has no result is drawn again."""
    made, passes = TABLE[operator]
    while (text := made(rng)) is None:
        pass
    rank = next((int(d[0]) for d in (text.split(":")[0][-2:],) if d[0].isdigit()), 0)
    text = text.replace("PASS", rng.choice(passes)).replace("DTYPE", dtype)
    return (text.replace("LAYOUT", rng.choice(LAYOUTS[rank])) if rank else text) + "@" + device


# ---------------------------------------------------------------------------------------------- the rows

def least(run: Callable[[], object]) -> float:
    """us of the fastest of several runs, for 4 ms or twice: other work only adds."""
    run()
    if device == "cuda":
        clock = _clock.of(torch.device(device))
        return 1e3 * min(clock.sample(run) for _ in range(2))
    best, end, times = math.inf, time.perf_counter() + 4e-3, 0
    while times < 2 or (time.perf_counter() < end and times < 30):
        start = time.perf_counter_ns()
        run()
        best, times = min(best, (time.perf_counter_ns() - start) / 1e3), times + 1
    return best


def choice(text: str) -> dict[str, Any]:
    """What runs by default, and for single passes what either side is expected to take, in us."""
    told, row = text.encode(), {"chosen": _twin.build(text).kernel}
    if ":train:" not in text:
        row["weft_expected"], row["torch_expected"] = _library.lib.weft_torch_own_ns(told) / 1e3, _library.lib.weft_torch_estimate_ns(told) / 1e3
    return row


def measure(text: str) -> dict[str, Any]:
    """One row; without weft_us where weft has the reference alone."""
    row = {"problem": text, **choice(text)}
    row["timed"] = row["chosen"]
    with backends.flags(delegate=False):
        own = _twin.build(text)
    default = _twin.build(text)
    sides = {"torch_us": (own.peer, True), "default_us": (default.weft, True)}
    if "_ref" not in own.kernel:
        sides["weft_us"] = (own.weft, False)
    row.update({"kernel": own.kernel, **dict.fromkeys(sides, math.inf)})
    for _ in range(ROUNDS):
        for name, (run, delegate) in sides.items():
            with backends.flags(delegate=delegate):
                row[name] = min(row[name], least(run))
    return row


def regret(row: dict[str, Any]) -> float:
    """Of what was measured; where another choice would be made now, of that side, unless it is a mixture."""
    if "weft_us" not in row:
        return 1.0
    other = {"torch": "torch_us", row["kernel"]: "weft_us"}.get(row["chosen"], "default_us")
    return row["default_us" if row["chosen"] == row["timed"] else other] / min(row["weft_us"], row["torch_us"])


def show(rows: list[dict[str, Any]], listed: int) -> None:
    """Shares of losses over both limits, the losses by operator, kernel and choice, and the worst ones."""
    kinds: dict[str, list[float]] = {}
    for row in rows:
        row["regret"] = regret(row)
        operator = row["problem"].split(":")[0]
        kinds.setdefault(operator, []).append(row["regret"])
        kinds.setdefault(f"{operator} {row['chosen']}, beside {row['kernel']}", []).append(row["regret"])
    every = [row["regret"] for row in rows]

    def over(limit: float) -> str:
        return f"{100 * sum(r > limit for r in every) / len(every):.1f}% over {limit}"
    print(f"{len(rows)} problems, {torch.get_num_threads()} threads: {over(LIMIT)}, {over(LARGE)}, mean loss {100 * (statistics.mean(every) - 1):.1f}%")
    print(f"\n{'problems':>8} {'over ' + str(LIMIT):>9} {'loss':>6}  taken")
    for kind, losses in sorted(kinds.items(), key=lambda k: len(k[1]) - sum(k[1]))[:listed]:
        print(f"{len(losses):>8} {sum(r > LIMIT for r in losses):>9} {sum(losses) - len(losses):>6.1f}  {kind}")
    print(f"\n{'regret':>6} {'torch us':>10} {'expected':>9} {'weft us':>10} {'expected':>9}  problem, and what was chosen, beside weft's own")
    for row in sorted(rows, key=lambda r: -r["regret"])[:listed]:
        times = " ".join(f"{row.get(name, math.nan):>{width}.1f}" for name, width in
                         (("torch_us", 10), ("torch_expected", 9), ("weft_us", 10), ("weft_expected", 9)))
        print(f"{row['regret']:>6.2f} {times}  {row['problem']} {row['chosen']}, {row['kernel']}")


def drawn(args: argparse.Namespace) -> list[dict[str, Any]]:
    rng, rows = random.Random(args.seed), []
    names, end = [name for name in TABLE if args.only in name] if args.only else list(TABLE), time.monotonic() + args.seconds
    for i in range(args.count):
        if time.monotonic() > end:
            break
        operator = "conv" if not args.only and i % 2 else rng.choice(names)
        text = problem(rng, operator, rng.choice(args.dtypes.split(",")))
        try:
            rows.append(measure(text))
        except (RuntimeError, TypeError, ValueError) as error:
            print(f"\n{text}: {error}", file=sys.stderr)
        print(f"\r{i + 1} of {args.count}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=300, help="how many problems (300)")
    parser.add_argument("--seconds", type=float, default=math.inf, help="after which no further one begins")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", help=f"part of an operator's name: {', '.join(TABLE)}")
    parser.add_argument("--dtypes", default="f32,f32,bf16", help="one of them each time (f32,f32,bf16)")
    parser.add_argument("--threads", type=int, help="PyTorch's and weft's; all cores by default")
    parser.add_argument("--listed", type=int, default=25, help="lines of each table (25)")
    parser.add_argument("--json", type=Path, help="where the rows go")
    parser.add_argument("--again", type=Path, help="rows of an earlier run, judged again instead of timed")
    args = parser.parse_args()
    if args.only and not any(args.only in name for name in TABLE):
        parser.error(f"--only: is {args.only!r}, allowed: a part of {', '.join(TABLE)}")
    if args.threads:
        torch.set_num_threads(args.threads)
    global device
    device = args.device
    _calibrate.ensure()
    busy = _clock.watch()
    rows = [{**row, **choice(row["problem"])} for row in json.loads(args.again.read_text(encoding="utf-8"))] if args.again else drawn(args)
    if not rows:
        return 1
    if args.json:
        args.json.write_text(json.dumps(rows), encoding="utf-8")
    show(rows, args.listed)
    if not args.again and busy():
        print(f"\n{busy()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
