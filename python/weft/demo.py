"""`python -m weft demo`: five cases and two networks on this machine's CPU, PyTorch beside weft, in the terminal and as a page.

One case of each system that weft follows, in the size its users have; losses are shown like gains.
"""
from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Optional, TextIO

import torch

from ._bench import clock as _clock, models as _models, report as _report, twin as _twin
from . import _enable, bench
from ._core import library as _library, text as _text

ROUNDS = bench.MIN_ROUNDS
SECONDS = 4.0                        # of samples for one row of a network


class Case(NamedTuple):
    """A headline: whose it was, what it is, and the problem's text.

        >>> CASES[0].source
        'PyINN'
    """

    source: str
    title: str
    text: str


class Network(NamedTuple):
    """A network of examples/models: its name, the batch and the shape of a sample.

        >>> NETWORKS[0].name
        'mobilenet_v1'
    """

    title: str
    name: str
    batch: int
    shape: tuple[int, ...]


CASES = (
    Case("PyINN", "Depthwise 3x3, training step", "conv2d:train:f32:nchw:n8c128h56w56:o128k3p1g128"),
    Case("Partial convolution", "Partial 9x9, training step", "partial_conv2d:train:f32,mask=u8,new_mask=u8:nchw:n1c64h128w128:o128k9p3mask1:bias"),
    Case("Grouped 3D", "3D 3x3x3, 64 groups, training step", "conv3d:train:f32:ncdhw:n1c64d50h50w50:o64k3p1g64"),
    Case("cudnn.torch", "Cross-map normalisation, training step", "lrn2d:train:f32:nchw:n8c256h56w56:size5"),
    Case("Escoin", "3x3, 90% zeros, inference", "sparse_conv2d:fwd:f32,rows=i64,cols=i64:nchw:n1c256h56w56:o256k3p1nnz58982:bias+relu"),
)
NETWORKS = (Network("MobileNet v1", "mobilenet_v1", 8, (3, 224, 224)), Network("X3D-S", "x3d_s", 1, (3, 13, 160, 160)))
_PASSES = {"forward": "inference", "train": "training step"}
_COLUMNS = (("case", 40), ("torch ms", 8), ("weft ms", 8), ("ratio", 6), ("torch MB", 8), ("weft MB", 8), ("error", 7))
_WIDTHS = [width for _, width in _COLUMNS]


def _case_rows(case: Case) -> Iterator[dict]:
    row = bench.measure(case.text, None, ROUNDS)
    data = _library.problem(_twin._with_pass(case.text, "fwd"))["tensors"]["src"]["dims"]
    yield {**row, "title": case.title, "source": case.source, "size": _text.sizes(data), "command": f"python -m weft bench {case.text}"}


def _network_rows(net: Network) -> Iterator[dict]:
    for row in _models.measure(net.name, net.batch, "cpu", ROUNDS, SECONDS, net.shape):
        if why := _models.complaint(row):
            raise RuntimeError(why)
        size = _text.sizes(row["shape"])
        yield {**row, "title": f"{net.title}, {_PASSES[row['pass']]}", "source": "weft.convert", "problem": f"{net.name}, {size}",
               "kernel": "weft.convert", "size": size, "command": f"python -m weft demo --only '{net.title}'"}


def _jobs(only: Optional[str]) -> list[tuple[str, Callable[[], Iterator[dict]]]]:
    jobs = [(c.title, lambda c=c: _case_rows(c)) for c in CASES] + [(n.title, lambda n=n: _network_rows(n)) for n in NETWORKS]
    words = [w.strip().lower() for w in (only or "").split(",") if w.strip()]
    chosen = [job for job in jobs if not words or any(w in job[0].lower() for w in words)]
    if not chosen:
        raise ValueError(f"--only: {only!r} fits no case, allowed: words of {'; '.join(title for title, _ in jobs)}")
    return chosen


def _machine() -> dict[str, str]:
    """What the page and the first lines say about where the figures come from."""
    told = dict(line.split(": ", 1) for line in _library.describe().splitlines() if ": " in line)
    return {"Processor": bench.processor(), "Instructions": told.get("isa", ""), "Caches": told.get("cache", ""), "Threads": str(torch.get_num_threads()),
            "System": f"{platform.system()} {platform.release()}", "torch": torch.__version__, "weft": _library.version(),
            "Python": platform.python_version(), "Commit": _commit(), "Date": time.strftime("%Y-%m-%d %H:%M %Z")}


def _commit() -> str:
    """Of the tree that this runs from; an installed package has its version alone."""
    try:
        asked = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=Path(__file__).parent, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return asked.stdout.strip() if asked.returncode == 0 else "unknown"


def _cells(row: dict) -> tuple[str, ...]:
    ratio = f"{row['ratio']:.2f}{'?' if row['busy'] else 'x'}"
    return (row["title"], f"{row['peer_ms']:.2f}", f"{row['weft_ms']:.2f}", ratio, f"{row['peer_bytes'] / 1e6:.1f}",
            f"{row['weft_bytes'] / 1e6:.1f}", f"{row['error']:.1e}")


def _measure_all(jobs: list[tuple[str, Callable[[], Iterator[dict]]]], out: TextIO) -> tuple[list[dict], list[str]]:
    """Rows, and what failed. On a terminal a line says what is under way until the result overwrites it; it is cut to the terminal's width,
    as a wrapped line could not be overwritten. In a file there are results only."""
    rows: list[dict] = []
    failed: list[str] = []
    live = out.isatty() and os.environ.get("TERM") != "dumb"
    clear = "\x1b[K" if live else ""
    for i, (title, measure) in enumerate(jobs):
        if live:
            print(f"  [{i + 1}/{len(jobs)}] {title} ..."[:shutil.get_terminal_size().columns - 1], end="\r", file=out, flush=True)
        try:
            for row in measure():
                rows.append(row)
                print(clear + _text.line(_cells(row), _WIDTHS, (0,)), file=out, flush=True)
        except (RuntimeError, FileNotFoundError) as problem:
            failed.append(f"{title}: {problem}")
            print(f"{clear}{title}: failed: {problem}", file=out, flush=True)
    return rows, failed


@_enable.suspended()
def run(html: str = "report.html", only: Optional[str] = None, out: Optional[TextIO] = None) -> int:
    """Measure, print the table, write the page. 1 if a result is wrong or the page cannot be written, 2 if `only` fits nothing.

        >>> import io, os
        >>> from weft import demo
        >>> demo.run(os.devnull, only="depthwise", out=io.StringIO())
        0
    """
    try:
        jobs = _jobs(only)
    except ValueError as problem:
        print(f"python -m weft demo: {problem}", file=sys.stderr)
        return 2
    if why := bench.refusal(html):
        print(f"python -m weft demo: {why}", file=sys.stderr)
        return 1
    out = out or sys.stdout
    start, kept = time.monotonic(), _clock.keep_pages()
    torch.manual_seed(0)
    machine, warning = _machine(), _clock.busy()
    print(f"torch {machine['torch']} beside weft {machine['weft']} on {machine['Processor']}, {machine['Threads']} threads, float32.", file=out)
    print(f"Times: medians of interleaved rounds, caches emptied{', pages kept on both sides' if kept else ''}.\n"
          "Ratio: the median over the rounds of torch over weft, more than 1 is a gain.\n"
          "Memory: the most a call holds at once. Error: the largest difference over the largest value.\n", file=out)
    if warning:
        print(f"Warning: {warning}.\n", file=out)
    print(_text.line((name for name, _ in _COLUMNS), _WIDTHS, (0,)), file=out, flush=True)
    rows, failed = _measure_all(jobs, out)
    if disturbed := _clock.disturbed(rows):
        print(f"\nWarning: {disturbed}.", file=out)
        warning = disturbed
    bandwidth, flops = _clock.roof(torch.device("cpu"))
    page: dict[str, Any] = {"rows": rows, "failed": failed, "machine": machine, "warning": warning, "bytes_per_ms": bandwidth, "flops_per_ms": flops}
    try:
        Path(html).write_text(_report.page(**page), encoding="utf-8")
    except OSError as problem:
        print(f"python -m weft demo: {html} cannot be written: {problem.strerror}", file=sys.stderr)
        return 1
    print(f"\nThe same as a page, with a roofline: {html} ({time.monotonic() - start:.0f} s)", file=out)
    return 1 if failed else 0
