"""What a call costs: microseconds for tiny tensors, the least of many rounds. Run it on an idle machine.

    python bench/calls.py [--rounds N] [--only TEXT] [--device cuda] [--seat]

The table sets weft's functions and modules beside their twins: without a gradient, recording one, forward and backward. Tensors are so small that
nearly all of it is the way into C. The two sides are two processes, timed in turn on the same two cores, and turn by turn on others: the cores of a
machine that others use differ by half.

--seat: what weft.enable() adds to a call of PyTorch's own convolution. stock: before the seat is registered; not taken: a call that is left to
PyTorch; taken: one that weft computes; disabled: after weft.disable().
"""
from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

import weft

PASSES = ("no_grad", "recording", "forward+backward")
TURNS = 20


def least(run: Callable, rounds: int, calls: int = 20, wait: Callable = lambda: None) -> float:
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(calls):
            run()
        wait()
        best = min(best, (time.perf_counter() - start) / calls)
    return best * 1e6


# ---------------------------------------------------------------------------------------------- functions and modules

def functions(m) -> dict[str, tuple[Callable, tuple]]:
    """m: torch.nn.functional or weft.functional. By name: a function of tensors, and their shapes."""
    return {"conv2d 1x1": (m.conv2d, ((1, 1, 2, 2), (1, 1, 1, 1))),
            "conv2d depthwise": (lambda x, w: m.conv2d(x, w, None, 1, 1, 1, 8), ((1, 8, 4, 4), (8, 1, 3, 3))),
            "conv_transpose2d": (lambda x, w: m.conv_transpose2d(x, w, None, 2), ((1, 4, 3, 3), (4, 4, 2, 2))),
            "max_pool2d": (lambda x: m.max_pool2d(x, 2), ((1, 2, 4, 4),)),
            "avg_pool2d": (lambda x: m.avg_pool2d(x, 2), ((1, 2, 4, 4),)),
            "adaptive_avg_pool2d": (lambda x: m.adaptive_avg_pool2d(x, 1), ((1, 2, 4, 4),)),
            "relu": (m.relu, ((4,),)), "hardtanh": (m.hardtanh, ((4,),)), "tanh": (m.tanh, ((4,),)), "sigmoid": (m.sigmoid, ((4,),)),
            "unfold": (lambda x: m.unfold(x, 2), ((1, 2, 4, 4),)), "fold": (lambda x: m.fold(x, (4, 4), 2), ((1, 8, 9),)),
            "cross_entropy": (lambda x: m.cross_entropy(x, _CLASSES), ((2, 4),)),
            "local_response_norm": (lambda x: m.local_response_norm(x, 3), ((1, 4, 4, 4),)),
            "softmax": (lambda x: m.softmax(x, 1), ((2, 4),)), "log_softmax": (lambda x: m.log_softmax(x, 1), ((2, 4),)),
            "batch_norm": (lambda x, a, b: m.batch_norm(x, _MEAN, _VAR, a, b), ((2, 4, 2, 2), (4,), (4,)))}


_MEAN, _VAR, _CLASSES = torch.zeros(4), torch.ones(4), torch.tensor([1, 3])   # moved to the device by serve


def modules(m) -> dict[str, tuple[Callable, tuple]]:
    """m: torch.nn or weft.nn."""
    return {"Conv2d 1x1": (m.Conv2d(1, 1, 1), ((1, 1, 2, 2),)),
            "Conv2d depthwise": (m.Conv2d(8, 8, 3, padding=1, groups=8), ((1, 8, 4, 4),)),
            "ConvTranspose2d": (m.ConvTranspose2d(4, 4, 2, 2), ((1, 4, 3, 3),)),
            "MaxPool2d": (m.MaxPool2d(2), ((1, 2, 4, 4),)), "AvgPool2d": (m.AvgPool2d(2), ((1, 2, 4, 4),)),
            "Unfold": (m.Unfold(2), ((1, 2, 4, 4),)),
            "AdaptiveAvgPool2d": (m.AdaptiveAvgPool2d(1), ((1, 2, 4, 4),)),
            "ReLU": (m.ReLU(), ((4,),)), "Tanh": (m.Tanh(), ((4,),)), "Softmax": (m.Softmax(1), ((2, 4),)),
            "BatchNorm2d eval": (m.BatchNorm2d(4).eval(), ((2, 4, 2, 2),)), "BatchNorm2d": (m.BatchNorm2d(4), ((2, 4, 2, 2),))}


def runs_of(call: Callable, shapes: tuple, device: str) -> dict[str, Callable]:
    """By pass; whatever the first calls decide is decided."""
    plain = [torch.randn(s, device=device) for s in shapes]
    if isinstance(call, torch.nn.Module):
        call.to(device)
    leaves = [t.clone().requires_grad_() for t in plain]
    wanted = leaves + (list(call.parameters()) if isinstance(call, torch.nn.Module) else [])
    g = torch.ones_like(call(*plain))

    def no_grad() -> None:
        call(*plain)
    runs = dict(zip(PASSES, (no_grad, lambda: call(*leaves), lambda: torch.autograd.grad(call(*leaves), wanted, g))))
    for _ in range(3):
        runs[PASSES[2]]()
        with torch.no_grad():
            no_grad()
    return runs


def stay_on(cores: set[int]) -> None:
    """Every thread of this process: autograd has one for each device."""
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), cores)


def serve(ours: bool, device: str, pipe) -> None:
    """A process for each side: PyTorch's is never touched by weft."""
    global _MEAN, _VAR, _CLASSES
    torch.set_num_threads(1)
    _MEAN, _VAR, _CLASSES = _MEAN.to(device), _VAR.to(device), _CLASSES.to(device)
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    rows = {**functions(weft.functional), **modules(weft.nn)} if ours else {**functions(F), **modules(torch.nn)}
    made: dict[str, dict[str, Callable]] = {}
    while (asked := pipe.recv()) is not None:
        name, which, rounds, cores = asked
        stay_on(cores)
        if name not in made:
            made[name] = runs_of(*rows[name], device)
        with torch.set_grad_enabled(which != "no_grad"):
            pipe.send(least(made[name][which], rounds, wait=wait))


def compare(rounds: int, only: str, device: str) -> None:
    """Both sides in turn, several times: what disturbs one disturbs the other."""
    cores = sorted(os.sched_getaffinity(0))
    pairs = [set(cores[i:i + 2]) for i in range(0, max(1, len(cores) - 1), 2)]
    context, pipes, sides = multiprocessing.get_context("spawn"), [], []
    for ours in (False, True):
        here, there = context.Pipe()
        sides.append(context.Process(target=serve, args=(ours, device, there), daemon=True))
        sides[-1].start()
        pipes.append(here)
    print(f"| call | {' | '.join(f'{p}: twin | weft | ratio' for p in PASSES)} |\n|---|{'---|' * 9}")
    for name in [n for n in {**functions(F), **modules(torch.nn)} if only in n]:
        cells = []
        for which in PASSES:
            best = [float("inf"), float("inf")]
            for i in range(2 * TURNS):
                pipes[i % 2].send((name, which, max(1, rounds // TURNS), pairs[i // 2 % len(pairs)]))
                best[i % 2] = min(best[i % 2], pipes[i % 2].recv())
            cells.append(f"{best[0]:.2f} | {best[1]:.2f} | {best[1] / best[0]:.2f}")
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    for pipe in pipes:
        pipe.send(None)


# ---------------------------------------------------------------------------------------------- weft.enable()

def cases(requires_grad: bool):
    """Depthwise, which weft takes, and pointwise."""
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


def seat(rounds: int) -> None:
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
        print(f"| {key[0]}, {key[1]} | {' | '.join(f'{v:.2f}' for v in row)} | {row[1] - row[0]:+.2f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=300, metavar="N")
    parser.add_argument("--only", default="", metavar="TEXT", help="rows whose name has this text")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--seat", action="store_true", help="what weft.enable() adds instead")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.seat:
        seat(options.rounds)
    else:
        compare(options.rounds, options.only, options.device)


if __name__ == "__main__":
    main()
