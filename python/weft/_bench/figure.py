"""The chart of ratios: PyTorch's time over weft's on a logarithmic axis around 1x, as a drawing in a page or as a file of its own."""
from __future__ import annotations

import json
import math
from collections.abc import Sequence
from html import escape
from pathlib import Path

LEVEL = 1.05                         # within a twentieth both are as fast: that is what a quiet machine repeats
_WIDTH, _STEP, _TOP, _LEFT, _RIGHT = 520, 38, 22, 8, 64
_COLOURS = """
:root { color-scheme: light dark; --ink: #1d2127; --soft: #626a75; --grid: #d9d6d0; --gain: #0f7b6c; --loss: #b4442f; --torch: #8a857c; --card: #ffffff; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e7e9ec; --soft: #98a1ad; --grid: #353c45; --gain: #37c2ad; --loss: #f08a74; --torch: #8b939e; --card: #14171b; } }
"""
STYLE = """
.chart { max-width: 760px; } .chart text { fill: var(--ink); font: 12.5px system-ui, sans-serif; } .chart .s { fill: var(--soft); font-size: 11px; }
.chart .h { font-weight: 600; } .chart .rule { stroke: var(--grid); stroke-width: 1; } .chart .one { stroke: var(--torch); stroke-width: 1.5; }
.chart .gain, .chart .level { fill: var(--gain); } .chart .loss { fill: var(--loss); } .chart .disturbed { fill: var(--torch); }
.chart .v { font-weight: 600; }
"""


def number(value: float) -> str:
    """Three digits that count.

        >>> number(0.01234), number(3.14159), number(56.78), number(1234.5)
        ('0.0123', '3.14', '56.8', '1,234')
    """
    if value == 0 or not math.isfinite(value):
        return str(value)
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{digits}f}"


def kind(row: dict) -> str:
    return "disturbed" if row.get("busy") else "gain" if row["ratio"] > LEVEL else "loss" if row["ratio"] < 1 / LEVEL else "level"


def in_words(ratio: float) -> str:
    """A ratio as a person says it.

        >>> in_words(3.2), in_words(0.0442), in_words(1.01)
        ('3.2x faster', '23x slower', 'level')
    """
    return "level" if max(ratio, 1 / ratio) <= LEVEL else f"{_times(ratio)} {'faster' if ratio > 1 else 'slower'}"


def _times(ratio: float) -> str:
    most = max(ratio, 1 / ratio)
    return f"{most:.2g}x" if most < 100 else f"{most:,.0f}x"


def chart(rows: Sequence[dict], name: str) -> str:
    """A bar for each row from 1x to its ratio, gains to the right. A row that has `group` begins a part of the chart under that heading when it changes."""
    low = min([0.5, *(r["ratio"] / 1.5 for r in rows)])
    high = max([4.0, *(r["ratio"] * 1.1 for r in rows)])
    span = math.log(high / low)

    def x(ratio: float) -> float:
        return _LEFT + math.log(ratio / low) / span * (_WIDTH - _LEFT - _RIGHT)
    ticks = [t for t in (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000) if low <= t <= high]
    parts, y, group = [], _TOP, ""
    for row in rows:
        if row.get("group", "") != group:
            group = row["group"]
            parts.append(f'<text class="h" x="{_LEFT}" y="{y + 18}">{escape(group)}</text>')
            y += 30
        one, end, shown = x(1), x(row["ratio"]), kind(row)
        # the figure stands behind the end of a gain and before 1x of a loss, whose bar comes from the left
        at = end + 6 if row["ratio"] > 1 else one + 6
        times = f"{number(row['peer_ms'])} → {number(row['weft_ms'])} ms"
        parts += [f'<line class="{"one" if t == 1 else "rule"}" x1="{x(t):.1f}" x2="{x(t):.1f}" y1="{y + 15}" y2="{y + 32}"/>' for t in ticks]
        parts.append(f'<text x="{_LEFT}" y="{y + 12}">{escape(row["title"])}</text><text class="s" x="{_WIDTH - 4}" y="{y + 12}" text-anchor="end">{times}</text>'
                     f'<rect class="{shown}" x="{min(one, end):.1f}" y="{y + 18}" width="{max(abs(end - one), 1.5):.1f}" height="11" rx="2"/>'
                     f'<text class="v" x="{at:.1f}" y="{y + 28}">{escape(_short(row))}</text>')
        y += _STEP
    scale = "".join(f'<text class="s" x="{x(t):.1f}" y="14" text-anchor="middle">{_tick(t)}</text>' for t in ticks)
    return (f'<svg class="chart" role="img" aria-label="{escape(name)}" viewBox="0 0 {_WIDTH} {y + 6}">{scale}{"".join(parts)}</svg>')


def _short(row: dict) -> str:
    return _times(row["ratio"]) + ("?" if row.get("busy") else "" if row["ratio"] >= 1 / LEVEL else " slower")


def _tick(ratio: float) -> str:
    return "1x: torch" if ratio == 1 else f"{ratio:g}x" if ratio > 1 else f"1/{1 / ratio:.2g}x"


# ---------------------------------------------------------------------------------------------- a file of its own

def titles(text: str) -> dict[str, str]:
    """What the lines of a set of problems say behind their `#`.

        >>> titles("relu2d:fwd:f32:nchw:n1c2h3w4 # ReLU\\n")
        {'relu2d:fwd:f32:nchw:n1c2h3w4': 'ReLU'}
    """
    lines = (line.partition("#") for line in text.splitlines())
    return {problem.strip().partition("@")[0]: said.strip() for problem, _, said in lines if problem.strip() and said.strip()}


def read(file: str, named: dict[str, str]) -> list[dict]:
    """The rows that --json wrote; ValueError where the file holds none. The machine is their heading."""
    try:
        rows = json.loads(Path(file).read_text(encoding="utf-8"))
        return [{**row, "title": named.get(row["problem"].partition("@")[0], row["problem"]), "group": row.get("machine", row["problem"].rpartition("@")[2]),
                 "ratio": float(row["ratio"]), "peer_ms": float(row["peer_ms"]), "weft_ms": float(row["weft_ms"])} for row in rows]
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise ValueError(f"{file}: is no file of rows that `python -m weft bench --json FILE` wrote: {problem}") from None


def svg(rows: Sequence[dict]) -> str:
    """The chart as a file, in the colours of the reader's system."""
    drawn = chart(rows, "weft beside PyTorch: how many times faster")
    return drawn.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1).replace(">", f"><style>{_COLOURS}{STYLE}</style>", 1) + "\n"
