"""Clocks for the benchmarks: samples that start with empty caches, what the machine can do at most, and the most memory that a call holds."""
from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from .._core import library as _library

SAMPLE, REPEATS = 1e-3, 50           # seconds that one of medians() lasts at least, and how often it is repeated at most
pages = "default"                    # or "kept", after keep_pages(); part of every row


def keep_pages() -> bool:
    """weft.backends.keep_pages for a benchmark: else page faults on fresh results cost more than the operator. It holds for both sides."""
    global pages
    kept = bool(_library.lib.weft_torch_keep_pages(True))
    pages = "kept" if kept else "default"
    return kept


def _last_level_cache() -> int:
    sizes = [32 << 20]
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        sizes.append(int(text.rstrip("KMG")) << {"K": 10, "M": 20, "G": 30}.get(text[-1:], 0))
    return max(sizes)


def _used(cores: set[int]) -> float:
    """Seconds that these cores have worked since the machine started, less this process's own."""
    ticks = 0
    for line in Path("/proc/stat").read_text(encoding="ascii").splitlines():
        name, *counts = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in cores:
            user, nice, system, _, _, irq, softirq, steal = map(int, counts[:8])
            ticks += user + nice + system + irq + softirq + steal
    return ticks / os.sysconf("SC_CLK_TCK") - time.process_time()


def watch(least: float = 0.25) -> Callable[[], str]:
    """Looks from now on; what it returns says, when called, what made the timings since then worthless, or "". With other work on the cores
    each parallel region waits a time slice for its slowest thread: the figures then count regions, not work. The load average would not do:
    it remembers the build of a minute ago. least: seconds to look at, as the kernel counts in hundredths."""
    try:
        cores = os.sched_getaffinity(0)
        before, start = _used(cores), time.monotonic()
    except (AttributeError, OSError, ValueError):
        return lambda: ""

    def verdict() -> str:
        time.sleep(max(0.0, start + least - time.monotonic()))
        others = (_used(cores) - before) / (time.monotonic() - start)
        spare = len(cores) - torch.get_num_threads()
        return f"other work takes {others:.1f} of {len(cores)} cores: do not trust these times" if others > max(0, spare) + 0.25 else ""
    return verdict


def busy(seconds: float = 0.25) -> str:
    """What makes timings here worthless at the moment, or ""."""
    return watch(seconds)()


def disturbed(rows: Sequence[dict]) -> str:
    """How many of the rows were measured beside other work, for the lines below a table; "" for none.

        >>> disturbed([{"busy": ""}, {"busy": "other work takes 1.0 of 2 cores"}])
        'other work was on the cores during 1 of 2 rows, marked ?: do not trust their times'
    """
    count = sum(bool(row.get("busy")) for row in rows)
    return f"other work was on the cores during {count} of {len(rows)} rows, marked ?: do not trust their times" if count else ""


class Cpu:
    """Samples in milliseconds of wall time."""

    def __init__(self) -> None:
        self.filler = torch.ones(2 * _last_level_cache() // 4)

    def sample(self, run: Callable[[], Any]) -> float:
        self.filler.sum()            # reads twice the last-level cache: nothing of the run is left in it
        start = time.perf_counter()
        run()
        return (time.perf_counter() - start) * 1e3

    def movers(self, read: int, write: int) -> list[Callable[[], Any]]:
        src, dst = (torch.zeros(max(n, 1) + 64, dtype=torch.uint8) for n in (read, write))
        at = [t.data_ptr() + -t.data_ptr() % 64 for t in (src, dst)]
        return [lambda s=s, keep=(src, dst): _library.lib.weft_torch_move(at[0], read, at[1], write, s) for s in (0, 1)]

    def flops_per_ms(self, dtype: torch.dtype) -> float:
        rounds, isa = 200_000, os.environ.get("WEFT_ISA", "").encode() or None
        best = 0.0
        for _ in range(3):
            start = time.perf_counter()
            flops = _library.lib.weft_torch_burn(rounds, isa)
            best = max(best, flops / (time.perf_counter() - start) / 1e3)
        return best / 2 if dtype == torch.float64 else best   # 16-bit data is computed in float32


class Cuda:
    """Samples in milliseconds between events, the work queued behind a spin so that gaps between launches do not count."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        l2 = torch.cuda.get_device_properties(device).L2_cache_size
        self.filler = torch.ones(2 * l2 // 4, device=device)
        self.peak: dict[torch.dtype, float] = {}
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False   # weft rounds no products of float32 either

    def sample(self, run: Callable[[], Any]) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.device(self.device):
            self.filler.sum()
            torch.cuda._sleep(2_000_000)
            start.record()
            run()
            end.record()
            end.synchronize()
        return start.elapsed_time(end)

    def wall(self, run: Callable[[], Any]) -> float:
        """Milliseconds a call with the launches counted, calls back to back."""
        torch.cuda.synchronize(self.device)
        start = time.perf_counter()
        run()
        torch.cuda.synchronize(self.device)
        calls = max(3, min(50, int(0.25 / (time.perf_counter() - start + 1e-9))))
        start = time.perf_counter()
        for _ in range(calls):
            run()
        torch.cuda.synchronize(self.device)
        return (time.perf_counter() - start) * 1e3 / calls

    def movers(self, read: int, write: int) -> list[Callable[[], Any]]:
        half = max((read + write) // 8, 1)
        src, dst = (torch.zeros(half, device=self.device) for _ in range(2))
        return [lambda: torch.neg(src, out=dst)]

    def flops_per_ms(self, dtype: torch.dtype) -> float:
        if dtype not in self.peak:
            n = 4096
            a = torch.randn(n, n, device=self.device, dtype=dtype)
            a @ a
            self.peak[dtype] = 2.0 * n**3 / min(self.sample(lambda: a @ a) for _ in range(3))
        return self.peak[dtype]


_clocks: dict[str, Any] = {}


def of(device: torch.device) -> Any:
    if str(device) not in _clocks:
        _clocks[str(device)] = Cuda(device) if device.type == "cuda" else Cpu()
    return _clocks[str(device)]


def roof(device: torch.device) -> tuple[float, float]:
    """What this machine does at most, measured: bytes and float32 flops of a millisecond."""
    clock, half = of(device), 64 << 20
    movers = clock.movers(half, half)
    for run in movers:
        run()
    return 2 * half / min(clock.sample(run) for run in movers * 5), clock.flops_per_ms(torch.float32)


def interleaved(runs: Sequence[Callable[[], Any]], device: torch.device, rounds: int, seconds: float = math.inf) -> list[list[float]]:
    """Milliseconds of each, in turns; fewer rounds, though at least 3, where they take long."""
    clock, samples, end = of(device), [[] for _ in runs], time.monotonic() + seconds
    for run in runs:
        run()
    for i in range(rounds):
        for k in range(len(runs)):
            at = (k + i) % len(runs)
            samples[at].append(clock.sample(runs[at]))
        if i >= 2 and time.monotonic() > end:
            break
    return samples


def wall(run: Callable[[], Any], device: torch.device, within: Callable[[], Any] = nullcontext) -> Callable[[int], float]:
    """A side of medians(): seconds a run by the clock on the wall, in a context."""
    wait = (lambda: torch.cuda.synchronize(device)) if device.type == "cuda" else (lambda: None)

    def sample(times: int) -> float:
        with within():
            wait()
            start = time.perf_counter()
            for _ in range(times):
                run()
            wait()
            return (time.perf_counter() - start) / times
    return sample


def medians(sides: Mapping[str, Callable[[int], float]], rounds: int, seconds: float = math.inf, least: int = 0) -> dict[str, float]:
    """Milliseconds a run of each side, which gives the seconds a run of so many: medians of samples taken in turn, with warm caches, each repeated until it
    is far above the resolution of the clocks. The first run of each warms up; it counts only where that took all the time there was. least: rounds that
    are taken whatever the time."""
    end = time.perf_counter() + seconds
    samples = {side: [run(1)] for side, run in sides.items()}
    times = {side: min(REPEATS, max(1, round(SAMPLE / max(first, 1e-9)))) for side, (first,) in samples.items()}
    for i in range(rounds):
        if i >= least and time.perf_counter() >= end:
            break
        for side, run in sides.items():
            samples[side].append(run(times[side]))
    return {side: 1e3 * statistics.median(values[1:] or values) for side, values in samples.items()}


def peak(run: Callable[[], Any], device: torch.device) -> int:
    """The most memory that a call holds at once, as PyTorch's allocators see it: results, what is kept for gradients, workspace; in bytes beyond what was
    held before. On the CPU from the profiler's record of every allocation; oneDNN's scratch memory is in it, and weft's is added."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        run()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")   # else the profiler tells stderr when it starts and stops
    _library.lib.weft_torch_scratch(True)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as record:
        kept = run()   # results count until the record ends
    del kept
    events = [e for e in record.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most + _library.lib.weft_torch_scratch(False)
