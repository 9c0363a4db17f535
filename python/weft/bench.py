"""The benchmark: weft beside PyTorch on problems given by their text, and beside the floor of the machine.

Both sides and the floor are timed in turn within one process; every sample starts with empty caches; figures are medians over the rounds.
The floor is the larger of two times measured in the same run: an elementwise kernel that moves the same bytes (the faster of regular and
streaming stores), and the flops of the direct sum at the measured rate of multiply-adds.

The regret of the default choice is its time over that of the better of weft's own kernel and PyTorch's implementation. A choice with a regret of more than
LIMIT is a defect of the planner: `python -m weft bench --set regret` lists them.
"""
from __future__ import annotations

import json
import os
import platform
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional, TextIO

import torch

from . import _enable, backends
from ._bench import clock as _clock, models as _models, report as _report, twin as _twin
from ._core import library as _library, text as _text

MIN_ROUNDS = 7
MODELS = "models"                    # the set that is no file
REGRET = "regret"                    # the set that is timed in another way
HEADLINES = "headline"               # the set of the README's figure, whose lines have titles
_SETS = Path(__file__).resolve().parents[2] / "bench"
LIMIT = 1.15                         # of the regret
DROP = 0.9                           # a ratio that fell below this part of the recorded one is marked
_COLUMNS = (("kernel", 44), ("peer ms", 9), ("weft ms", 9), ("ratio", 6), ("floor ms", 9), ("share", 6))
_REGRET_COLUMNS = (("kernel chosen", 44), ("regret", 7), ("default ms", 10), ("torch ms", 9), ("weft ms", 9), ("weft's own", 44))
_MODEL_COLUMNS = (("model", 16), ("pass", 8), ("batch", 5), ("peer ms", 10), ("weft ms", 10), ("ratio", 6), ("peer MB", 9), ("weft MB", 9), ("error", 8),
                  ("rounding", 8))


def measure(text: str, passes: Optional[str] = None, rounds: int = 11) -> dict:
    """One row: both sides agree, or RuntimeError says by how much they do not.

        >>> from weft import bench
        >>> bench.measure("conv2d:fwd:f32:nchw:n1c8h56w56:o8k3p1g8")["ratio"] > 0
        True
    """
    busy, twin = _clock.watch(), _twin.build(text, passes)
    clock = _clock.of(twin.device)   # first: on CUDA it keeps PyTorch from TF32
    error, allowed = _twin.error(twin)
    if not error <= allowed:
        raise RuntimeError(f"{twin.text}: weft ({twin.kernel}) and PyTorch differ by {error:.2e} of the largest value, allowed: {allowed:.2e}")
    runs = [twin.weft, twin.peer, *clock.movers(twin.read, twin.write)]
    samples = _clock.interleaved(runs, twin.device, max(rounds, MIN_ROUNDS))
    weft_ms, peer_ms = (statistics.median(s) for s in samples[:2])
    move_ms = min(statistics.median(s) for s in samples[2:])
    ratios = sorted(p / w for w, p in zip(*samples[:2]))
    ratio, low, high = statistics.median(ratios), ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
    compute_ms = twin.flops / clock.flops_per_ms(twin.dtype)
    floor_ms = max(move_ms, compute_ms)
    row = {
        "problem": twin.text, "kernel": twin.kernel, "peer": f"torch {torch.__version__}" + (f", {twin.note}" if twin.note else ""), "peer_ms": peer_ms,
        "weft_ms": weft_ms, "ratio": ratio, "spread": (high - low) / 2 / ratio, "floor_ms": floor_ms, "share": floor_ms / weft_ms,
        "floor_is": "bytes" if move_ms >= compute_ms else "flops", "move_ms": move_ms, "compute_ms": compute_ms, "error": error,
        "bytes": twin.read + twin.write, "flops": twin.flops, "weft_bytes": _clock.peak(twin.weft, twin.device),
        "peer_bytes": _clock.peak(twin.peer, twin.device), "machine": machine(twin.device), "rounds": len(samples[0]), "threads": torch.get_num_threads(), "pages": _clock.pages,
        "busy": busy(),
    }
    if twin.device.type == "cuda":
        row["weft_wall_ms"], row["peer_wall_ms"] = clock.wall(twin.weft), clock.wall(twin.peer)
    return row


def _own(text: str) -> Optional[_twin.Twin]:
    """The same problem on weft's kernels alone; None where that is the reference, which is never the default."""
    with backends.flags(delegate=False):
        twin = _twin.build(text)
    return None if "_ref" in twin.kernel else twin


def measure_regret(text: str, rounds: int = 7) -> dict[str, Any]:
    """One row: the default call, PyTorch's and weft's own, timed in turn.

        >>> from weft import bench
        >>> bench.measure_regret("relu2d:fwd:f32:nchw:n1c8h56w56")["regret"] > 0
        True
    """
    busy, twin, own = _clock.watch(), _twin.build(text), _own(text)
    clock = _clock.of(twin.device)
    sides: dict[str, Any] = {"default": (twin.weft, True), "torch": (twin.peer, True)}
    if own is not None:
        sides["weft"] = (own.weft, False)
    samples: dict[str, list[float]] = {name: [] for name in sides}
    for i in range(-1, rounds):      # the first round warms up
        for name, (run, delegate) in sides.items():
            with backends.flags(delegate=delegate):
                clock.sample(run)   # the first call after a change of the settings decides anew
                ms = clock.sample(run)
            if i >= 0:
                samples[name].append(ms)
    ms = {name: statistics.median(s) for name, s in samples.items()}
    best = min((name for name in ms if name != "default"), key=ms.__getitem__)
    return {"problem": twin.text, "kernel": twin.kernel, "own": own.kernel if own else "", "default_ms": ms["default"], "torch_ms": ms["torch"],
            "weft_ms": ms.get("weft"), "best": best, "regret": ms["default"] / ms[best], "busy": busy(), "threads": torch.get_num_threads()}


def machine(device: torch.device) -> str:
    """What a heading over rows of this device says.

        >>> import torch
        >>> from weft import bench
        >>> bench.machine(torch.device("cpu")).startswith("CPU: ")
        True
    """
    if device.type == "cuda":
        return f"GPU: {torch.cuda.get_device_name(device)}"
    threads = torch.get_num_threads()
    return f"CPU: {processor()}, {threads} thread{'s' if threads > 1 else ''}"


def processor() -> str:
    """Its name as the system has it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _ratio(row: dict) -> str:
    return f"{row['ratio']:.2f}" + ("?" if row["busy"] else "")


def _cells(row: dict) -> tuple[str, ...]:
    wall = (f"wall {row['peer_wall_ms']:.3f} / {row['weft_wall_ms']:.3f}",) if "weft_wall_ms" in row else ()
    return (row["problem"], row["kernel"], f"{row['peer_ms']:.3f}", f"{row['weft_ms']:.3f}", _ratio(row), f"{row['floor_ms']:.3f}", f"{row['share']:.2f}", *wall)


def _model_cells(row: dict) -> tuple[str, ...]:
    return (row["model"], row["pass"], str(row["batch"]), f"{row['peer_ms']:.2f}", f"{row['weft_ms']:.2f}", _ratio(row), f"{row['peer_bytes'] / 1e6:.1f}",
            f"{row['weft_bytes'] / 1e6:.1f}", f"{row['error']:.1e}", f"{row['rounding']:.1e}")


def _regret_cells(row: dict[str, Any]) -> tuple[str, ...]:
    """A row of the table."""
    mark = "!" if row["regret"] > LIMIT else "?" if row["busy"] else ""
    return (row["problem"], row["kernel"], f"{row['regret']:.2f}{mark}", f"{row['default_ms']:.3f}", f"{row['torch_ms']:.3f}", _text.number(row["weft_ms"], 3),
            row["own"])


def _regret_below(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The line below the table: the worst row, and how many are over LIMIT."""
    worst, over = max((r["regret"] for r in rows), default=0), sum(r["regret"] > LIMIT for r in rows)
    return [f"worst {worst:.2f}; {over} of {len(rows)} choices over {LIMIT} of the better of weft and PyTorch"]


def problems_of(name: str) -> list[str]:
    """The problems of bench/NAME.txt in the source tree, and of NAME_cuda.txt where there is a GPU; ValueError where there is no such file.

        >>> from weft import bench
        >>> bench.problems_of("cpu")[0]
        'conv2d:fwd:f32:nchw:n8c128h56w56:o128k3p1g128'
    """
    directory = _SETS
    known = sorted(p.stem for p in directory.glob("*.txt"))
    if name not in known:
        allowed = ", ".join([*known, MODELS]) if known else f"{MODELS}; other sets are files of weft's source tree, and there is no {directory}"
        raise ValueError(f"--set: is {name!r}, allowed: {allowed}")
    files = [name] + [f"{name}_cuda"] * (f"{name}_cuda" in known and torch.cuda.is_available())
    lines = (line.partition("#")[0].split() for file in files for line in (directory / f"{file}.txt").read_text(encoding="utf-8").splitlines())
    return [text for line in lines for text in line]


def _complain(why: object) -> None:
    print(f"python -m weft bench: {why}", file=sys.stderr)


def refusal(file: Optional[str]) -> str:
    """Why this file cannot be written, or "": to be asked before minutes of measuring.

        >>> from weft import bench
        >>> bench.refusal("/nowhere/rows.json")
        '/nowhere/rows.json cannot be written: there is no directory /nowhere'
    """
    path = Path(file or os.devnull)
    if path.is_dir():
        why = "it is a directory"
    elif not path.parent.is_dir():
        why = f"there is no directory {path.parent}"
    else:
        why = "" if os.access(path if path.exists() else path.parent, os.W_OK) else "no permission"
    return f"{file} cannot be written: {why}" if why else ""


class _Table(NamedTuple):
    """What differs between the commands: the columns, what a row says in them, the lines below all rows, and what is wrong with a row, or ""."""

    columns: Sequence[tuple[str, int]]
    cells: Callable[[dict], Sequence[str]]
    below: Callable[[list[dict]], list[str]] = lambda rows: []
    wrong: Callable[[dict], str] = lambda row: ""


@_enable.suspended()
def _measure_all(table: _Table, jobs: Sequence[tuple[str, Callable[[], Iterable[dict]]]], rounds: str, threads: Optional[int], file: Optional[str],
                 out: Optional[TextIO]) -> int:
    """The rows of each job, by its name, as lines on `out` and as JSON in `file`. Returns the exit code."""
    if why := refusal(file):
        _complain(why)
        return 1
    out = out or sys.stdout
    if threads:
        torch.set_num_threads(threads)
    kept = _clock.keep_pages()
    torch.manual_seed(0)
    print(f"torch {torch.__version__} beside weft {_library.version()}, {torch.get_num_threads()} threads, medians of {rounds} interleaved rounds, caches "
          f"emptied, pages {'kept on both sides' if kept else 'as the allocator has them'}", file=out)
    if warning := _clock.busy():
        print(f"warning: {warning}", file=out)
    widths, rows, code = [w for _, w in table.columns] + [20], [], 0   # the last: wall time, CUDA only
    print(_text.line([name for name, _ in table.columns], widths, (0, 1)), file=out, flush=True)
    for name, measured in jobs:
        try:
            for row in measured():
                rows.append(row)
                print(_text.line(table.cells(row), widths, (0, 1)), file=out, flush=True)
                if why := table.wrong(row):
                    _complain(why)
                    code = 1
        except ValueError as problem:
            _complain(problem if name in str(problem) else f"{name}: {problem}")
            code = 2
        except RuntimeError as problem:
            _complain(problem)
            code = max(code, 1)
    for line in table.below(rows) + ([f"warning: {warning}"] if (warning := _clock.disturbed(rows)) else []):
        print(line, file=out)
    try:
        if file:
            Path(file).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    except OSError as problem:
        _complain(f"{file} cannot be written: {problem.strerror}")
        return max(code, 1)
    return code


def run(problems: list[str], passes: Optional[str] = None, rounds: int = 11, threads: Optional[int] = None, file: Optional[str] = None,
        out: Optional[TextIO] = None, record: Optional[str] = None) -> int:
    """The command: a table on `out` (stdout), the same rows as JSON in `file`; what fell against the rows in `record` is named. Returns the exit code.

        >>> import io
        >>> from weft import bench
        >>> bench.run(["relu2d:fwd:f32:nchw:n1c8h56w56"], out=io.StringIO())
        0
    """
    def below(rows: list[dict]) -> list[str]:
        return fallen(rows, json.loads(Path(record).read_text(encoding="utf-8"))) if record else []
    columns = (("problem", max(len(p) + 6 for p in problems)), *_COLUMNS)
    return _measure_all(_Table(columns, _cells, below), [(text, lambda text=text: [measure(text, passes, rounds)]) for text in problems],
                        str(max(rounds, MIN_ROUNDS)), threads, file, out)


def run_regret(problems: list[str], rounds: int = 7, threads: Optional[int] = None, file: Optional[str] = None, out: Optional[TextIO] = None) -> int:
    """The command for the set regret: the default choice beside the better of weft's own kernel and PyTorch. Returns the exit code.

        >>> import io
        >>> from weft import bench
        >>> bench.run_regret(["relu2d:fwd:f32:nchw:n1c8h56w56"], rounds=3, out=io.StringIO())
        0
    """
    columns = (("problem", max(len(p) + 4 for p in problems)), *_REGRET_COLUMNS)
    return _measure_all(_Table(columns, _regret_cells, _regret_below), [(text, lambda text=text: [measure_regret(text, rounds)]) for text in problems],
                        str(rounds), threads, file, out)


def fallen(rows: list[dict], record: list[dict]) -> list[str]:
    """What is slower than recorded: rows whose ratio to PyTorch fell by more than a tenth, as lines for a person.

        >>> from weft import bench
        >>> bench.fallen([{"problem": "p", "ratio": 1.0}], [{"problem": "p", "ratio": 2.0}])
        ['fell: p was 2.00, is 1.00']
    """
    before = {row["problem"]: row["ratio"] for row in record}
    return [f"fell: {row['problem']} was {before[row['problem']]:.2f}, is {row['ratio']:.2f}" for row in rows
            if row["problem"] in before and row["ratio"] < DROP * before[row["problem"]]]


def draw(file: str, recorded: list[str]) -> int:
    """The command for --figure: the rows of files that --json wrote, as one chart. Returns the exit code.

        >>> from weft import bench
        >>> bench.draw("figure.svg", ["missing.json"])
        2
    """
    named = {problem: said for set_ in sorted(_SETS.glob(f"{HEADLINES}*.txt")) for problem, said in _report.titles(set_.read_text(encoding="utf-8")).items()}
    try:
        rows = [row for f in recorded for row in _report.read(f, named)]
    except ValueError as problem:
        _complain(problem)
        return 2
    if why := refusal(file):
        _complain(why)
        return 1
    Path(file).write_text(_report.svg(rows), encoding="utf-8")
    return 0


def run_models(names: Optional[str] = None, batch: Optional[int] = None, device: str = "cpu", rounds: int = 11, threads: Optional[int] = None,
               file: Optional[str] = None, out: Optional[TextIO] = None) -> int:
    """The command for the networks of examples/models: torch.nn's beside converted, inference and a step of training. error: the largest
    difference of the two over the largest value; rounding: that of torch.nn's from itself in float64. Returns the exit code.

        >>> import io
        >>> from weft import bench
        >>> bench.run_models("lenet5", rounds=3, out=io.StringIO())
        0
    """
    try:
        picked = _models.pick(names)
        if device == "cuda" and not torch.cuda.is_available():
            raise ValueError("--device: is 'cuda', but this PyTorch has no CUDA device")
    except (ValueError, FileNotFoundError) as problem:
        _complain(problem)
        return 2
    table = _Table(_MODEL_COLUMNS, _model_cells, wrong=_models.complaint)
    return _measure_all(table, [(name, lambda name=name: _models.measure(name, batch, device, rounds)) for name in picked], f"up to {rounds}", threads, file, out)
