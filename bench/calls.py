"""What weft.enable() adds to a call of PyTorch's convolution: microseconds for tiny tensors, the least of many rounds.

    python bench/calls.py [--rounds N]

stock: before the seat is registered; not taken: a call that is left to PyTorch; taken: one that weft computes. The same function each time,
so the difference is the way into C. Run it on an idle machine.
"""
from __future__ import annotations

import argparse
import time

import torch
import torch.nn.functional as F

import weft


def least(run, rounds: int, calls: int = 200) -> float:
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(calls):
            run()
        best = min(best, (time.perf_counter() - start) / calls)
    return best * 1e6


def cases(requires_grad: bool):
    """Depthwise, which weft takes, and pointwise, which it leaves."""
    for name, x, w, options in (("1x1", torch.randn(1, 1, 2, 2), torch.randn(1, 1, 1, 1), {}),
                                ("depthwise 3x3", torch.randn(1, 8, 4, 4), torch.randn(8, 1, 3, 3), {"padding": 1, "groups": 8})):
        yield name, x.requires_grad_(requires_grad), w.requires_grad_(requires_grad), options


def measure(rounds: int) -> dict[tuple[str, str], float]:
    made = {}
    for name, x, w, options in cases(False):
        with torch.no_grad():
            made[name, "no_grad"] = least(lambda: F.conv2d(x, w, **options), rounds)
    for name, x, w, options in cases(True):
        made[name, "recording"] = least(lambda: F.conv2d(x, w, **options), rounds)
        g = torch.ones_like(F.conv2d(x, w, **options))
        made[name, "forward+backward"] = least(lambda: torch.autograd.grad(F.conv2d(x, w, **options), (x, w), g), rounds)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60, metavar="N")
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    sides = {"stock": measure(rounds)}
    with weft.backends.pin("torch"), weft.enabled():
        sides["not taken"] = measure(rounds)
    with weft.backends.flags(delegate=False), weft.enabled():
        sides["taken"] = measure(rounds)
    with weft.backends.flags(delegate=False):
        sides["disabled"] = measure(rounds)
    print(f"| call | {' | '.join(sides)} | not taken adds |\n|---|{'---|' * (len(sides) + 1)}")
    for key in sides["stock"]:
        row = [side[key] for side in sides.values()]
        shown = [f"{v:.2f}" if not (side == "taken" and key[0] == "1x1") else "-" for side, v in zip(sides, row)]
        print(f"| {key[0]}, {key[1]} | {' | '.join(shown)} | {row[1] - row[0]:+.2f} |")


if __name__ == "__main__":
    main()
