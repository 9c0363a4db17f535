"""What calls leave behind: nothing. Of each function by itself the C heap, which holds the tensors too, to a few bytes a call: where calls succeed,
where they fail, in every format of inputs and gradients, with PyTorch's kernels and without. Of all of them the size of the process.

    WEFT_CALLS=1000000 pytest tests/python/test_memory.py        so many calls in the test of the process; 20000 unless told
"""
from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import weft
from cases import channels_last, scattered, shifted
from everything import FUNCTIONS, Example, results

CALLS = int(os.environ.get("WEFT_CALLS", 20000))
SLACK = 1 << 20       # bytes of the process: at 10^6 calls, 1 a call
TIMES = 100           # calls of one function of the least size
PER_CALL, NOISE = 8, 512   # bytes: the least that malloc hands out is 24, a tensor takes hundreds; what Python itself moves about
FRAMES, C_CALLS = 45, 60   # of one call, in Python: what it costs beside computing, counted. bench/overheads.py has the times

plain = lambda t: t   # noqa: E731
FORMATS = {"contiguous": plain, "channels_last": lambda t: channels_last(t) if t.dim() > 2 else t, "scattered": lambda t: scattered(t) if t.dim() else t,
           "shifted": shifted}


@pytest.fixture(autouse=True, scope="module")
def _quick_collection():
    """What is there already is not looked at in each of many collections."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


class _Heap(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")]


def heap() -> int:
    """Bytes of malloc in use, small and mapped."""
    info = ctypes.CDLL(None).mallinfo2
    info.restype = _Heap
    found = info()
    return found.uordblks + found.hblkhd


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def grown(run: Callable[[], None], times: int) -> int:
    """Bytes that many calls leave on the heap, tensors included. What PyTorch and Python keep for themselves now and then is not there twice."""
    for _ in range(3):
        run()
    least = sys.maxsize
    for _ in range(6):
        gc.collect()
        before = heap()
        for _ in range(times):
            run()
        gc.collect()
        least = min(least, heap() - before)
        if least <= NOISE + PER_CALL * times:
            break
    return least


def check(run: Callable[[], None], times: int, what: str = "") -> None:
    left = grown(run, times)
    assert left <= NOISE + PER_CALL * times, f"{what}: {times} calls left {left} bytes"


# ---------------------------------------------------------------------------------------------- calls

def forward(example: Example, layout: Callable, **size: int) -> Callable[[], None]:
    tensors = [layout(t) if t.is_floating_point() else t for t in example.make("cpu", **size)]

    def run() -> None:
        with torch.no_grad():
            example.weft(*tensors)
    return run


def gradients(example: Example, layout: Callable, **size: int) -> Callable[[], None]:
    """The gradient comes in the same format as the inputs."""
    tensors = [layout(t.detach()).requires_grad_() if t.requires_grad else t for t in example.make("cpu", grad=True, **size)]
    leaves = [t for t in tensors if t.requires_grad]

    def run() -> None:
        y = results(example.weft(*tensors))[0]
        torch.autograd.grad(y, leaves, layout(torch.ones_like(y)))
    return run


def failing(run: Callable[[], None]) -> Callable[[], None]:
    def attempt() -> None:
        try:
            run()
        except (RuntimeError, ValueError, TypeError) as error:
            error.__traceback__ = None
    return attempt


@pytest.mark.parametrize("delegate", [True, False], ids=["torch", "own"])
@pytest.mark.parametrize("make", [forward, gradients])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_nothing_is_left(name, make, delegate):
    """Of sizes that need scratch memory, in every format; then many calls of the least size."""
    example = FUNCTIONS[name]
    with weft.backends.flags(delegate=delegate):
        for label, layout in FORMATS.items():
            check(make(example, layout, batch=2, size=9), 10, label)
        check(make(example, plain, batch=1, size=example.tiny), TIMES, "tiny")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_failing_calls_leave_nothing(name):
    """Planning fails where a measurement is asked for that nobody made, forward or at the gradient; and the arguments are wrong."""
    example = FUNCTIONS[name]

    def backward_fails() -> None:
        y = results(example.weft(*tensors))[0]
        with weft.backends.flags(wisdom_only=True):
            torch.autograd.grad(y, leaves, torch.ones_like(y))
    with weft.backends.flags(wisdom_only=True):
        check(failing(forward(example, plain, batch=2, size=11)), 20, "forward")
        check(failing(gradients(example, plain, batch=2, size=11)), 20, "with a gradient")
    tensors = example.make("cpu", grad=True, batch=2, size=12)
    leaves = [t for t in tensors if t.requires_grad]
    check(failing(backward_fails), 20, "the gradient")
    good = example.make("cpu", batch=2, size=11)
    for i in range(len(good)):
        wrong = [t.to(torch.complex64) if i == k else t for k, t in enumerate(good)]
        check(failing(lambda wrong=wrong: example.weft(*wrong)), 20, f"a wrong argument {i}")


@pytest.mark.parametrize("call", [lambda x: weft.functional.avg_pool2d(x, 2), lambda x: weft.functional.softmax(x, 1)], ids=["pool", "softmax"])
def test_a_hook_that_raises_leaves_nothing(call):
    """PyTorch's own function, called from C, has made its result by then."""
    x = torch.randn(2, 8, 12, 12, requires_grad=True)

    def refuse(t: torch.Tensor) -> None:
        raise ValueError("no room")

    def run() -> None:
        with torch.autograd.graph.saved_tensors_hooks(refuse, lambda t: t):
            call(x)
    for _ in range(3):
        call(x)
    check(failing(run), TIMES)


def test_a_gradient_that_is_copied_leaves_nothing():
    """One that comes in strides which the kernel does not read, where weft takes the gradient under PyTorch's graph."""
    x, w = torch.randn(2, 16, 24, 24, requires_grad=True), torch.randn(16, 1, 3, 3, requires_grad=True)
    scales = scattered(torch.ones(2, 16, 24, 24))

    def run() -> None:
        torch.autograd.grad(weft.functional.conv2d(x, w, padding=1, groups=16), (x, w), scales)
    run()
    assert "bwd" in weft.backends.kernels()
    check(run, TIMES)


def test_what_is_made_besides_out_is_given_back():
    """The sums of the rows, which only a gradient needs."""
    x, target, out = torch.randn(512, 10), torch.zeros(512, dtype=torch.int64), torch.empty(())
    check(lambda: weft.functional.cross_entropy(x, target, out=out), TIMES)


@pytest.mark.parametrize("make, share", [(forward, 0.8), (gradients, 0.2)])
def test_the_process_stays(make, share):
    """Over every function in turn, in many rounds, so that what one of them leaves behind adds up."""
    runs = [make(e, plain, batch=1, size=e.tiny) for e in FUNCTIONS.values()]
    rounds = 10
    times = max(1, int(CALLS * share) // (rounds * len(runs)))
    marks = []
    for _ in range(rounds + 3):
        for run in runs:
            for _ in range(times):
                run()
        gc.collect()
        marks.append(resident())
    grown = marks[-1] - marks[2]   # the first rounds fill caches
    assert grown < SLACK, f"{rounds * times * len(runs)} calls left {grown >> 10} KiB: {[(m - marks[0]) >> 10 for m in marks]}"


# ---------------------------------------------------------------------------------------------- work beside computing

@pytest.mark.parametrize("grad", [False, True], ids=["plain", "grad"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_calls_within_a_call(name, grad):
    """What Python does for one call, counted: the time it takes is for bench/overheads.py to show."""
    example = FUNCTIONS[name]
    tensors = example.make("cpu", grad=grad, batch=1, size=example.tiny)
    counts = {"call": 0, "c_call": 0}

    def count(frame, event, arg) -> None:
        if event in counts:
            counts[event] += 1
    for _ in range(3):
        example.weft(*tensors)
    sys.setprofile(count)
    try:
        example.weft(*tensors)
    finally:
        sys.setprofile(None)
    assert counts["call"] <= FRAMES and counts["c_call"] <= C_CALLS, counts
