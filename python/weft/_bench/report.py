"""What is drawn: the chart of ratios, PyTorch's time over weft's on a logarithmic axis around 1x, as a drawing in a page or as a file of its own; and the page
of the demo, one file with its style and drawings inside, nothing from outside, in the colours of the reader's system."""
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
        said = _times(row["ratio"]) + ("?" if row.get("busy") else "" if row["ratio"] >= 1 / LEVEL else " slower")
        times = f"{number(row['peer_ms'])} → {number(row['weft_ms'])} ms"
        parts += [f'<line class="{"one" if t == 1 else "rule"}" x1="{x(t):.1f}" x2="{x(t):.1f}" y1="{y + 15}" y2="{y + 32}"/>' for t in ticks]
        parts.append(f'<text x="{_LEFT}" y="{y + 12}">{escape(row["title"])}</text><text class="s" x="{_WIDTH - 4}" y="{y + 12}" text-anchor="end">{times}</text>'
                     f'<rect class="{shown}" x="{min(one, end):.1f}" y="{y + 18}" width="{max(abs(end - one), 1.5):.1f}" height="11" rx="2"/>'
                     f'<text class="v" x="{at:.1f}" y="{y + 28}">{said}</text>')
        y += _STEP
    scale = "".join(f'<text class="s" x="{x(t):.1f}" y="14" text-anchor="middle">{"1x: torch" if t == 1 else f"{t:g}x" if t > 1 else f"1/{1 / t:.2g}x"}</text>' for t in ticks)
    return (f'<svg class="chart" role="img" aria-label="{escape(name)}" viewBox="0 0 {_WIDTH} {y + 6}">{scale}{"".join(parts)}</svg>')


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


_STYLE = """
:root { color-scheme: light dark; --paper: #fbfaf8; --card: #ffffff; --ink: #1d2127; --soft: #626a75; --line: #e3e0da; --weft: #0f7b6c; --torch: #b9b4ab;
        --gain: #0f7b6c; --loss: #b4442f; --warn: #fdf1dc; --warn-ink: #6b4a0f; --grid: #ece9e3; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #14171b; --card: #1b1f25; --ink: #e7e9ec; --soft: #98a1ad; --line: #2c323a; --weft: #37c2ad; --torch: #6d7580;
          --gain: #4fd1bd; --loss: #f08a74; --warn: #33290f; --warn-ink: #f1d9a0; --grid: #272c33; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 40px 24px 64px; }
h1 { font-size: 24px; line-height: 1.3; letter-spacing: -0.01em; margin: 0 0 8px; } h2 { font-size: 17px; margin: 0 0 4px; }
p { margin: 0 0 12px; } .soft { color: var(--soft); } .small { font-size: 13px; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 12px; padding: 20px 24px; margin-top: 20px; }
.warn { background: var(--warn); color: var(--warn-ink); border-radius: 8px; padding: 10px 14px; margin-top: 16px; }
.key { display: inline-flex; gap: 18px; }
.key span::before { content: ""; display: inline-block; width: 11px; height: 11px; border-radius: 3px; margin-right: 6px; }
.key .t::before { background: var(--torch); } .key .w::before { background: var(--weft); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th { text-align: right; font-weight: 500; color: var(--soft); font-size: 13px; padding: 4px 10px; border-bottom: 1px solid var(--line); white-space: nowrap; }
td { text-align: right; padding: 7px 10px; border-bottom: 1px solid var(--line); white-space: nowrap; } tr:last-child td { border-bottom: 0; }
th:first-child, td:first-child { text-align: left; padding-left: 0; white-space: normal; min-width: 230px; } td small { display: block; color: var(--soft); overflow-wrap: anywhere; }
.gain { color: var(--gain); font-weight: 600; } .loss { color: var(--loss); font-weight: 600; }
@media (max-width: 600px) { main { padding: 24px 12px 40px; } h1 { font-size: 19px; } section { padding: 14px; } th, td { padding-left: 6px; padding-right: 6px; }
  th:first-child, td:first-child { min-width: 120px; } }
svg { display: block; width: 100%; height: auto; } .wide { min-width: 720px; }
svg text { fill: var(--ink); font: 12px system-ui, sans-serif; } svg .s { fill: var(--soft); font-size: 11px; }
.bw { fill: var(--weft); }
.rule { stroke: var(--grid); stroke-width: 1; } .roof { stroke: var(--ink); stroke-width: 2; fill: none; }
.link { stroke: var(--soft); stroke-width: 1; stroke-dasharray: 2 3; } .ring { fill: var(--card); stroke: var(--torch); stroke-width: 2.5; }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(240px, 1fr)); gap: 10px 24px; margin: 8px 0 0; } dt { color: var(--soft); font-size: 13px; }
dd { margin: 0; overflow-wrap: anywhere; } code { font: 12px ui-monospace, Menlo, Consolas, monospace; overflow-wrap: anywhere; }
"""
_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def _engineering(value: float, unit: str) -> str:
    scale, prefix = next(((s, p) for s, p in _PREFIXES if value >= s), (1.0, ""))
    return f"{number(value / scale)} {prefix}{unit}"


def _tick(value: float) -> str:
    """A power of ten.

        >>> _tick(1e8), _tick(1e12), _tick(10)
        ('100 M', '1 T', '10')
    """
    scale, prefix = next(((s, f" {p}") for s, p in _PREFIXES if value >= s), (1.0, ""))
    return f"{value / scale:g}{prefix}"


# ---------------------------------------------------------------------------------------------- the table

def _verdict(rows: Sequence[dict]) -> str:
    """The first line: what a reader wants to know.

        >>> _verdict([{"title": "A", "ratio": 3.0}, {"title": "B", "ratio": 0.25}, {"title": "C", "ratio": 1.0}])
        'weft is faster in 1 of 3 measurements, up to 3x faster (A), level in 1 and slower in 1, up to 4x slower (B).'
    """
    kinds = [kind(r) for r in rows]
    if rows and kinds.count("disturbed") == len(rows):
        return f"Other work disturbed all of {len(rows)} measurements: no verdict."
    sure = [r for r in rows if kind(r) != "disturbed"]
    best, worst = (pick(sure, key=lambda r: r["ratio"], default=None) for pick in (max, min))
    up = f", up to {in_words(best['ratio'])} ({best['title']})" if best and kind(best) == "gain" else ""
    down = f", up to {in_words(worst['ratio'])} ({worst['title']})" if worst and kind(worst) == "loss" else ""
    other = f"; other work disturbed {kinds.count('disturbed')}" if "disturbed" in kinds else ""
    return (f"weft is faster in {kinds.count('gain')} of {len(rows)} measurements{up}, level in {kinds.count('level')} and slower in "
            f"{kinds.count('loss')}{down}{other}.")


def _ratio(row: dict) -> str:
    said = f"{number(row['ratio'])}?" if row.get("busy") else in_words(row["ratio"])
    spread = f" <small>±{100 * row['spread']:.0f}%</small>" if "spread" in row else ""
    return f'<span class="{kind(row)}">{said}</span>{spread}'


def _table(rows: Sequence[dict]) -> str:
    head = ("case", "weft is", "torch ms", "weft ms", "torch MB", "weft MB", "error")
    lines = ["<tr>" + "".join(f'<th scope="col">{h}</th>' for h in head) + "</tr>"]
    for row in rows:
        what = f"{escape(row['title'])}<small>{escape(row['source'])}; {escape(row['size'])}</small>"
        cells = (what, _ratio(row), number(row["peer_ms"]), number(row["weft_ms"]), number(row["peer_bytes"] / 1e6), number(row["weft_bytes"] / 1e6),
                 f"{row['error']:.1e}")
        lines.append("<tr>" + "".join(f"<td>{c}</td>" for c in cells) + "</tr>")
    return f'<div class="scroll"><table>{"".join(lines)}</table></div>'


# ---------------------------------------------------------------------------------------------- the roofline

class _Log:
    """Values on a logarithmic axis, to pixels."""

    def __init__(self, values: Sequence[float], low: float, high: float) -> None:
        self.first, self.last = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
        if self.first == self.last:
            self.last += 1
        self.low, self.high = low, high

    def __call__(self, value: float) -> float:
        return self.low + (math.log10(value) - self.first) / (self.last - self.first) * (self.high - self.low)

    def ticks(self) -> list[float]:
        return [10.0 ** e for e in range(self.first, self.last + 1)]


def _spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Heights for labels, as near to the wanted ones as a gap between them allows; the wanted ones must rise."""
    at: list[float] = []
    for y in wanted:
        at.append(max(y, at[-1] + gap if at else low))
    for i in reversed(range(len(at))):
        at[i] = min(at[i], at[i + 1] - gap if i + 1 < len(at) else high)
    return at


def _roofline(rows: Sequence[dict], bytes_per_ms: float, flops_per_ms: float) -> str:
    """Flops of a second over flops of a byte. The roof: what memory allows, then what the units allow."""
    width, height, left, right, top, bottom = 1040, 450, 56, 262, 24, 44
    points = [(r["title"], r["flops"] / r["bytes"], 1e3 * r["flops"] / r["peer_ms"], 1e3 * r["flops"] / r["weft_ms"]) for r in rows if r.get("flops")]
    roof, memory = flops_per_ms * 1e3, bytes_per_ms * 1e3
    knee = roof / memory
    x = _Log([knee / 4, knee * 10, *(p[1] for p in points)], left, width - right)
    y = _Log([roof, memory * 10.0 ** x.first, *(v for p in points for v in p[2:])], height - bottom, top)
    parts = [f'<line class="rule" x1="{x(t):.1f}" x2="{x(t):.1f}" y1="{top}" y2="{height - bottom}"/>'
             f'<text class="s" x="{x(t):.1f}" y="{height - bottom + 17}" text-anchor="middle">{t:g}</text>' for t in x.ticks()]
    parts += [f'<line class="rule" x1="{left}" x2="{width - right}" y1="{y(t):.1f}" y2="{y(t):.1f}"/>'
              f'<text class="s" x="{left - 8}" y="{y(t) + 4:.1f}" text-anchor="end">{_tick(t)}</text>' for t in y.ticks()]
    parts.append(f'<text class="s" x="{left - 8}" y="12" text-anchor="end">flop/s</text>')
    start = 10.0 ** x.first
    parts.append(f'<polyline class="roof" points="{x(start):.1f},{y(memory * start):.1f} {x(knee):.1f},{y(roof):.1f} {x(10.0 ** x.last):.1f},{y(roof):.1f}"/>')
    parts.append(f'<text class="s" x="{x(10.0 ** x.last) - 4:.1f}" y="{y(roof) - 7:.1f}" text-anchor="end">{_engineering(roof, "flop/s")}</text>')
    parts.append(f'<text class="s" x="{(left + width - right) / 2}" y="{height - 8}" text-anchor="middle">flops of a byte, each tensor moved once</text>')
    points.sort(key=lambda p: y(p[3]))
    for (title, intensity, theirs, ours), at in zip(points, _spread([y(p[3]) for p in points], 18, top + 8, height - bottom)):
        px, label = x(intensity), width - right + 18
        parts.append(f'<line class="link" x1="{px:.1f}" x2="{px:.1f}" y1="{y(theirs):.1f}" y2="{y(ours):.1f}"/>'
                     f'<line class="link" x1="{px + 7:.1f}" x2="{label - 6}" y1="{y(ours):.1f}" y2="{at:.1f}"/>'
                     f'<circle class="ring" cx="{px:.1f}" cy="{y(theirs):.1f}" r="5"/><circle class="bw" cx="{px:.1f}" cy="{y(ours):.1f}" r="6">'
                     f'<title>{escape(title)}: weft {_engineering(ours, "flop/s")}, torch {_engineering(theirs, "flop/s")}</title></circle>'
                     f'<text x="{label}" y="{at + 4:.1f}">{escape(title)}</text>')
    return f'<div class="scroll"><svg class="wide" role="img" aria-label="Roofline" viewBox="0 0 {width} {height}">{"".join(parts)}</svg></div>'


# ---------------------------------------------------------------------------------------------- the page

_KEY = '<p class="key small soft"><span class="t">torch</span><span class="w">weft</span></p>'


def _section(title: str, text: str, body: str) -> str:
    return f'<section><h2>{escape(title)}</h2><p class="soft small">{escape(text)}</p>{body}</section>'


def page(rows: Sequence[dict], failed: Sequence[str], machine: dict[str, str], warning: str, bytes_per_ms: float, flops_per_ms: float) -> str:
    """The whole file. rows: those of bench.measure and _models.measure with a title, a source, a size and a command."""
    notes = "".join(f'<p class="warn">{escape(text[0].upper() + text[1:])}.</p>' for text in ([warning] if warning else []) + [f"failed: {f}" for f in failed])
    facts = "".join(f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in machine.items())
    problems = "".join(f"<p class='small'>{escape(r['title'])}: {r['rounds']} rounds<br><code>{escape(r['command'])}</code><br>"
                       f"<span class='soft'>ran <code>{escape(r['kernel'])}</code></span></p>" for r in rows)
    roof = f"{_engineering(bytes_per_ms * 1e3, 'B/s')} and {_engineering(flops_per_ms * 1e3, 'flop/s')}"
    body = [
        f"<header><h1>{escape(_verdict(rows))}</h1>",
        f"<p class=\"soft\">torch beside weft, float32, {escape(machine['Threads'])} threads of {escape(machine['Processor'])}.</p>{notes}</header>",
        _section("How many times faster", "PyTorch's time over weft's, each step of the axis a factor; bars to the left are losses.",
                 chart(rows, "How many times faster")),
        _section("Figures", "Medians of interleaved rounds, caches emptied before each; ± is half the range of the middle half of the ratios. Memory: the "
                 "most a call holds at once. Error: the largest difference between the two over the largest value.", _table(rows)),
        _section("Roofline", f"Measured here: {roof}. A dot is a case, flops of a second over flops of a byte; the line is what the machine allows.",
                 _KEY + _roofline(rows, bytes_per_ms, flops_per_ms)),
        _section("Machine", "Where these figures come from.", f"<dl>{facts}</dl>"),
        _section("Cases", "The commands that repeat them, and the kernels that ran; torch is PyTorch's own code, which weft calls where it is expected to be "
                 "faster.", problems),
    ]
    return document("weft beside PyTorch", _STYLE + STYLE, "".join(body))


def document(title: str, style: str, body: str) -> str:
    """A page that needs no other file."""
    return ('<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{title}</title><style>{style}</style></head><body><main>{body}</main></body></html>\n")
