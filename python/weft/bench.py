"""The benchmark: weft beside PyTorch on problems given by their text, and beside the floor of the machine.

Both sides and the floor are timed in turn within one process; every sample starts with empty caches; figures are medians over the rounds.
The floor is the larger of two times measured in the same run: an elementwise kernel that moves the same bytes (the faster of regular and
streaming stores), and the flops of the direct sum at the measured rate of multiply-adds.
"""
from __future__ import annotations

import ctypes
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Optional, TextIO

import torch

from . import _library, _twin

MIN_ROUNDS = 7
_pages = "default"                   # or "kept", after keep_pages(); part of every row
_COLUMNS = (("problem", 0), ("kernel", 0), ("peer ms", 9), ("weft ms", 9), ("ratio", 6), ("floor ms", 9), ("share", 6))


def keep_pages() -> bool:
    """Tell the C allocator to keep memory instead of giving it back: else page faults on fresh results cost more than the operator.
    It holds for both sides."""
    global _pages
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    m_trim_threshold, m_top_pad, m_mmap_max = -1, -2, -4
    kept = bool(mallopt(m_mmap_max, 0)) and bool(mallopt(m_trim_threshold, -1)) and bool(mallopt(m_top_pad, 64 << 20))
    _pages = "kept" if kept else "default"
    return kept


def _last_level_cache() -> int:
    sizes = [32 << 20]
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        sizes.append(int(text.rstrip("KMG")) << {"K": 10, "M": 20, "G": 30}.get(text[-1:], 0))
    return max(sizes)


def busy() -> str:
    """What makes timings here worthless, or "". With other work on the cores each parallel region waits a time slice for its slowest
    thread: the figures then count regions, not work."""
    try:
        load = os.getloadavg()[0]
    except OSError:
        return ""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    spare = cores - torch.get_num_threads()
    return f"the load is {load:.1f} on {cores} cores: do not trust these times" if load > max(0.5, spare + 0.5) else ""


class _Cpu:
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


class _Cuda:
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
        calls = 50
        torch.cuda.synchronize(self.device)
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


def _clock(device: torch.device) -> Any:
    if str(device) not in _clocks:
        _clocks[str(device)] = _Cuda(device) if device.type == "cuda" else _Cpu()
    return _clocks[str(device)]


def measure(text: str, passes: Optional[str] = None, rounds: int = 11) -> dict:
    """One row: both sides agree, or RuntimeError says by how much they do not.

        >>> from weft import bench
        >>> bench.measure("conv2d:fwd:f32:nchw:n8c128h56w56:o128k3p1g128")["ratio"]
    """
    twin = _twin.build(text, passes)
    error, allowed = _twin.error(twin)
    if not error <= allowed:
        raise RuntimeError(f"{twin.text}: weft ({twin.kernel}) and PyTorch differ by {error:.2e} of the largest value, allowed: {allowed:.2e}")
    clock = _clock(twin.device)
    movers = clock.movers(twin.read, twin.write)
    runs = [twin.weft, twin.peer, *movers]
    for run in runs:
        run()
    samples: list[list[float]] = [[] for _ in runs]
    for i in range(max(rounds, MIN_ROUNDS)):
        for k in range(len(runs)):
            at = (k + i) % len(runs)
            samples[at].append(clock.sample(runs[at]))
    weft_ms, peer_ms = (statistics.median(s) for s in samples[:2])
    move_ms = min(statistics.median(s) for s in samples[2:])
    compute_ms = twin.flops / clock.flops_per_ms(twin.dtype)
    floor_ms = max(move_ms, compute_ms)
    row = {
        "problem": twin.text, "kernel": twin.kernel, "peer": f"torch {torch.__version__}", "peer_ms": peer_ms, "weft_ms": weft_ms,
        "ratio": statistics.median(p / w for w, p in zip(*samples[:2])), "floor_ms": floor_ms, "share": floor_ms / weft_ms,
        "floor_is": "bytes" if move_ms >= compute_ms else "flops", "move_ms": move_ms, "compute_ms": compute_ms, "error": error,
        "rounds": len(samples[0]), "threads": torch.get_num_threads(), "pages": _pages, "busy": busy(),
    }
    if twin.device.type == "cuda":
        row["weft_wall_ms"], row["peer_wall_ms"] = clock.wall(twin.weft), clock.wall(twin.peer)
    return row


def _line(values: Iterable[str], widths: list[int]) -> str:
    return "  ".join(v.ljust(w) if i < 2 else v.rjust(w) for i, (v, w) in enumerate(zip(values, widths))).rstrip()


def _cells(row: dict) -> tuple[str, ...]:
    wall = (f"wall {row['peer_wall_ms']:.3f} / {row['weft_wall_ms']:.3f}",) if "weft_wall_ms" in row else ()
    return (row["problem"], row["kernel"], f"{row['peer_ms']:.3f}", f"{row['weft_ms']:.3f}", f"{row['ratio']:.2f}", f"{row['floor_ms']:.3f}",
            f"{row['share']:.2f}", *wall)


def run(problems: list[str], passes: Optional[str] = None, rounds: int = 11, threads: Optional[int] = None, file: Optional[str] = None,
        out: TextIO = sys.stdout) -> int:
    """The command: a table on `out`, the same rows as JSON in `file`. Returns the exit code."""
    if threads:
        torch.set_num_threads(threads)
    kept = keep_pages()
    torch.manual_seed(0)
    widths = [max(len(p) + 6 for p in problems), 44] + [w for _, w in _COLUMNS[2:]] + [20]   # the last: wall time, CUDA only
    rows, code = [], 0
    print(f"torch {torch.__version__} beside weft {_library.version()}, {torch.get_num_threads()} threads, medians of {max(rounds, MIN_ROUNDS)} "
          f"interleaved rounds, caches emptied, pages {'kept on both sides' if kept else 'as the allocator has them'}", file=out)
    if busy():
        print(f"warning: {busy()}", file=out)
    print(_line([name for name, _ in _COLUMNS], widths), file=out, flush=True)
    for text in problems:
        try:
            row = measure(text, passes, rounds)
        except ValueError as problem:
            print(f"python -m weft bench: {problem}", file=sys.stderr)
            code = 2
            continue
        except RuntimeError as problem:
            print(f"python -m weft bench: {problem}", file=sys.stderr)
            code = max(code, 1)
            continue
        rows.append(row)
        print(_line(_cells(row), widths), file=out, flush=True)
    if file:
        try:
            Path(file).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
        except OSError as problem:
            print(f"python -m weft bench: {file} cannot be written: {problem}", file=sys.stderr)
            code = max(code, 1)
    return code
