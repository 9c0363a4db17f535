"""`python -m weft demo`: its table, its page, and the page in a real browser where there is one."""
from __future__ import annotations

import doctest
import io
import json
import os
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from weft import bench, demo
from weft._core import library as _library
from weft._bench import models as _models, report as _report, twin as _twin
from weft.__main__ import main

ROOT = Path(__file__).resolve().parents[2]
MACHINE = {"Processor": "A <fast> & wide one", "Threads": "2", "torch": "2.13.0", "weft": "0.1.0", "Date": "2026-01-02 03:04 UTC"}
BANDWIDTH, FLOPS = 5e7, 2e8          # of a millisecond: 50 GB/s, 200 Gflop/s


def made_up(title: str, peer_ms: float, weft_ms: float, **more) -> dict:
    return {"title": title, "source": "Somewhere", "problem": "relu2d:fwd:f32:nchw:n1c2h3w4@cpu", "kernel": "relu_ref", "peer_ms": peer_ms, "weft_ms": weft_ms,
            "ratio": peer_ms / weft_ms, "peer_bytes": 4e6, "weft_bytes": 1e6, "error": 3.2e-7, "rounds": 7, "spread": 0.034,
            "size": "1x2x3x4", "command": f"python -m weft bench {title}", **more}


ROWS = [made_up("A gain, training step", 30.0, 10.0, flops=2e8, bytes=4e7), made_up("A loss, training step", 0.5, 250.0, flops=5e9, bytes=1e6),
        made_up("Level", 7.0, 7.05, flops=1e6, bytes=2e6), made_up("A network, inference", 1234.5, 1234.4)]


def page(rows=ROWS, failed=(), warning="") -> str:
    return _report.page(rows, failed, MACHINE, warning, BANDWIDTH, FLOPS)


class Tags(HTMLParser):
    """What a page is made of; fails where tags do not nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open, self.found = [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def all(self, tag: str, kind: str | None = None) -> list[dict]:
        return [a for t, a in self.found if t == tag and kind in (None, a.get("class"))]


# ---------------------------------------------------------------------------------------------- the page

def test_page_is_whole_and_alone():
    text = page()
    tags = Tags(text)
    assert text.startswith("<!doctype html>") and len(tags.all("svg")) == 2 and len(tags.all("tr")) == 1 + len(ROWS)
    assert not re.search(r"https?:|//[a-z]|@import|url\(|\bon[a-z]+=", text)
    assert not {"script", "link", "img", "iframe", "object", "base"} & {tag for tag, _ in tags.found}
    assert all(not {"src", "href", "xlink:href"} & attrs.keys() for _, attrs in tags.found)
    assert not re.search(r"\b(nan|inf|None)\b", text.partition("</style>")[2])


def test_page_says_what_was_measured():
    text = page(warning="the load is high", failed=["Sixth case: differs"])
    for said in ("A gain, training step", "30.0", "10.0", "3x faster", "±3%", "1x2x3x4", "python -m weft bench Level", "250", "1,234", "3.2e-07", "4.00", "1.00", "2026-01-02 03:04 UTC", "The load is high.",
                 "Failed: Sixth case: differs.", "50.0 GB/s and 200 Gflop/s", "relu_ref"):
        assert said in text, said
    verdict = "weft is faster in 1 of 4 measurements, up to 3x faster (A gain, training step), level in 2 and slower in 1, up to 500x slower (A loss, training step)."
    assert f"<h1>{verdict}</h1>" in text
    assert text.count('<span class="gain"') == 1 and '<span class="loss">500x slower</span>' in text
    assert "warn\">" not in page()


def test_each_figure_stands_in_its_column():
    """On the page and on the terminal: times in ms, memory in MB, PyTorch's before weft's."""
    want = {"torch ms": 30.0, "weft ms": 10.0, "torch MB": 4.0, "weft MB": 1.0, "error": 3.2e-7}
    head, first = (re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", line) for line in re.findall("<tr>(.*?)</tr>", page())[:2])
    row = dict(zip(head, first, strict=True))
    assert {name: float(row[name]) for name in want} == want and "3x faster" in row["weft is"]
    shown = dict(zip((name for name, _ in demo._COLUMNS), demo._cells({**ROWS[0], "busy": ""}), strict=True))
    assert {name: float(shown[name]) for name in want} == want and (shown["case"], shown["ratio"]) == (ROWS[0]["title"], "3.00x")


def test_page_takes_no_disturbed_row_for_a_gain():
    text = page([{**row, "busy": "other work takes 1.0 of 2 cores" if row is ROWS[0] else ""} for row in ROWS])
    assert "weft is faster in 0 of 4 measurements, level in 2 and slower in 1, up to 500x slower (A loss, training step); other work disturbed 1." in text
    assert '<span class="disturbed">3.00?</span>' in text and 'class="gain"' not in text


def test_page_escapes():
    text = page([made_up("<script>alert(1)</script>", 1, 2, source="a & b", problem="<i>", kernel="\"><b>", flops=1e6, bytes=1e6)], ["<u>"], "<s>")
    assert not {"script", "i", "b", "u", "s"} & {tag for tag, _ in Tags(text).found} and "A &lt;fast&gt; &amp; wide one" in text


def test_bars_are_in_proportion():
    """Each factor is a step of the same length, from 1x to the right for gains and to the left for losses."""
    rows = [made_up(str(r), float(r), 1.0) for r in (2, 4, 8, 1, 0.5, 0.25)]
    tags = Tags(_report.chart(rows, "chart"))
    one, = {float(a["x1"]) for a in tags.all("line", "one")}
    bars = [(float(a["x"]), float(a["width"]), a["class"]) for a in tags.all("rect")]
    step = bars[0][1]
    assert [w for _, w, _ in bars] == pytest.approx([step, 2 * step, 3 * step, 1.5, step, 2 * step], abs=0.11)
    assert [x for x, _, _ in bars] == pytest.approx([one] * 4 + [one - step, one - 2 * step], abs=0.11)
    assert [c for _, _, c in bars] == ["gain"] * 3 + ["level"] + ["loss"] * 2


def test_figure_of_recorded_rows(tmp_path, capsys):
    """The command draws what --json wrote: a heading for each machine, titles from the set of headlines, one file that fetches nothing."""
    known = next(iter(_report.titles((ROOT / "bench" / "headline.txt").read_text())))
    rows = [{"problem": f"{known}@cpu", "ratio": 2.0, "peer_ms": 4.0, "weft_ms": 2.0, "machine": "CPU: <one>"},
            {"problem": "relu2d:fwd:f32:nchw:n1c2h3w4@cuda", "ratio": 0.1, "peer_ms": 1.0, "weft_ms": 10.0, "machine": "GPU: two"}]
    file, out = tmp_path / "rows.json", tmp_path / "figure.svg"
    file.write_text(json.dumps(rows))
    assert main(["bench", "--figure", str(out), str(file)]) == 0
    text = out.read_text()
    Tags(text)
    for said in (_report.titles((ROOT / "bench" / "headline.txt").read_text())[known], "CPU: &lt;one&gt;", "GPU: two", "relu2d:fwd", "10x slower", "prefers-color-scheme"):
        assert said in text, said
    assert not re.search(r"href|url\(|@import|<script", text)
    assert main(["bench", "--figure", str(tmp_path), str(file)]) == 1 and f"{tmp_path} cannot be written: it is a directory" in capsys.readouterr().err
    file.write_text("[1]")
    assert main(["bench", "--figure", str(out), str(file)]) == 2 and "is no file of rows" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["bench", "--figure", str(out), "--set", "cpu"])


def test_dots_lie_where_they_should():
    """A case at the measured bandwidth, one at the measured rate: both on the roof. Half as fast: the same step below it anywhere."""
    low, high = dict(flops=1e7, bytes=1e7), dict(flops=1e9, bytes=1e7)
    rows = [made_up("bound by memory", 1e7 / BANDWIDTH, 2 * 1e7 / BANDWIDTH, **low), made_up("bound by flops", 1e9 / FLOPS, 2 * 1e9 / FLOPS, **high)]
    tags = Tags(page(rows))
    corners = [tuple(map(float, p.split(","))) for p in tags.all("polyline", "roof")[0]["points"].split()]
    (x0, y0), (x1, y1), (x2, y2) = corners
    assert x0 < x1 < x2 and y0 > y1 == y2
    rings = sorted((float(a["cx"]), float(a["cy"])) for a in tags.all("circle", "ring"))
    dots = sorted((float(a["cx"]), float(a["cy"])) for a in tags.all("circle", "bw"))
    for (x, y), (dx, dy) in zip(rings, dots):
        roof = y0 + (x - x0) / (x1 - x0) * (y1 - y0) if x < x1 else y1
        assert y == pytest.approx(roof, abs=0.3) and dx == x and dy > y
    assert dots[0][1] - rings[0][1] == pytest.approx(dots[1][1] - rings[1][1], abs=0.2)


def test_a_network_has_no_dot():
    assert len(Tags(page()).all("circle", "bw")) == sum("flops" in r for r in ROWS)
    assert Tags(page([r for r in ROWS if "flops" not in r])).all("circle") == []


def test_page_without_rows():
    assert "weft is faster in 0 of 0 measurements" in page([], ["everything"])


def test_figures_and_axes_of_one_value():
    assert [_report.number(v) for v in (0.0, float("inf"), 0.5)] == ["0.0", "inf", "0.500"]
    axis = _report._Log([10.0], 50.0, 90.0)
    assert axis.ticks() == [10.0, 100.0] and [axis(v) for v in (10.0, 100.0)] == [50.0, 90.0]


def test_labels_do_not_meet():
    assert _report._spread([10, 11, 12, 300], 18, 0, 320) == [10, 28, 46, 300]
    assert _report._spread([310, 311, 312], 18, 0, 320) == [284, 302, 320]


@pytest.mark.parametrize("module", [_report, demo])
def test_docstring_examples(module):
    result = doctest.testmod(module)
    assert result.attempted > 0 and result.failed == 0


# ---------------------------------------------------------------------------------------------- the command

def test_the_five_systems_and_two_networks():
    assert [c.source for c in demo.CASES] == ["PyINN", "Partial convolution", "Grouped 3D", "cudnn.torch", "Escoin"]
    assert [_library.problem(_twin._with_pass(c.text, "fwd"))["op"] for c in demo.CASES] == ["conv", "partial_conv", "conv", "lrn", "sparse_conv"]
    assert [n.name for n in demo.NETWORKS] == ["mobilenet_v1", "x3d_s"] and {n.name for n in demo.NETWORKS} <= _models.load().keys()


@pytest.fixture
def quick(monkeypatch):
    """The same demo on small problems."""
    small = ("conv2d:train:f32:nchw:n1c8h8w8:o8k3p1g8", "partial_conv2d:train:f32,mask=u8,new_mask=u8:nchw:n1c4h9w9:o4k9p3:bias",
             "conv3d:train:f32:ncdhw:n1c8d5h5w5:o8k3g8", "lrn2d:train:f32:nchw:n1c8h6w6:size5",
             "sparse_conv2d:fwd:f32,rows=i64,cols=i64:nchw:n1c8h8w8:o8k3p1nnz60:bias+relu")
    monkeypatch.setattr(demo, "CASES", tuple(c._replace(text=text) for c, text in zip(demo.CASES, small, strict=True)))
    monkeypatch.setattr(demo, "NETWORKS", tuple(n._replace(batch=1, shape=(3, 32, 32) if len(n.shape) == 3 else (3, 2, 32, 32)) for n in demo.NETWORKS))
    monkeypatch.setattr(demo, "ROUNDS", 1)


def test_demo(quick, tmp_path):
    out, file = io.StringIO(), tmp_path / "report.html"
    assert demo.run(str(file), None, out) == 0, out.getvalue()
    shown, text = out.getvalue(), file.read_text()
    Tags(text)
    titles = [c.title for c in demo.CASES] + [f"{n.title}, {p}" for n in demo.NETWORKS for p in ("inference", "training step")]
    for title in titles:
        line = next(line for line in shown.splitlines() if line.startswith(title))
        assert re.fullmatch(r"( +[\d.]+){2} +[\d.]+[x?]( +[\d.]+){2} +[\d.]+e[-+]\d+", line[len(title):]), line
        assert title in text
    assert "[7/7]" not in shown and "\x1b" not in shown and str(file) in shown and torch.__version__ in text and len(Tags(text).all("circle", "bw")) == 5


@pytest.mark.parametrize("args, code, err", [
    (["--only", "nothing"], 2, "--only: 'nothing' fits no case, allowed: words of Depthwise 3x3, training step; Partial 9x9"),
    (["--only", "depthwise", "--html", "/nowhere/report.html"], 1, "/nowhere/report.html cannot be written: there is no directory /nowhere"),
    (["--rounds", "3"], 2, "unrecognized arguments: --rounds 3")])
def test_wrong_commands(args, code, err, quick, capsys):
    try:
        returned = main(["demo", *args])
    except SystemExit as exit:
        returned = exit.code
    assert returned == code and err in capsys.readouterr().err


def test_a_wrong_case_is_told(quick, tmp_path, monkeypatch, capsys):
    def wrong(text, *rest):
        if text.startswith("lrn"):
            raise RuntimeError("weft and PyTorch differ by 1e-2")
        return measure(text, *rest)
    measure, file = bench.measure, tmp_path / "report.html"
    monkeypatch.setattr(bench, "measure", wrong)
    assert main(["demo", "--only", "cross,zeros", "--html", str(file)]) == 1
    assert "Cross-map normalisation, training step: failed: weft and PyTorch differ by 1e-2" in capsys.readouterr().out
    assert "Failed: Cross-map normalisation, training step: weft and PyTorch differ by 1e-2." in file.read_text()


def test_a_page_that_cannot_be_written_after_all(quick, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(bench, "refusal", lambda file: "")
    monkeypatch.setattr(demo, "_measure_all", lambda jobs, out: ([], []))
    assert main(["demo", "--html", str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"python -m weft demo: {tmp_path} cannot be written: Is a directory\n"


def test_a_terminal_sees_progress_in_place(quick, tmp_path, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    out = Terminal()
    assert demo.run(str(tmp_path / "report.html"), "zeros", out) == 0
    assert "[1/1] 3x3, 90% zeros, inference ...\r\x1b[K3x3, 90% zeros" in out.getvalue()
    monkeypatch.setenv("COLUMNS", "20")
    out = Terminal()
    assert demo.run(str(tmp_path / "report.html"), "zeros", out) == 0
    assert "\n  [1/1] 3x3, 90% ze\r\x1b[K3x3, 90% zeros" in out.getvalue()
    monkeypatch.setenv("TERM", "dumb")
    out = Terminal()
    assert demo.run(str(tmp_path / "report.html"), "zeros", out) == 0
    assert "\r" not in out.getvalue() and "\x1b" not in out.getvalue()


# ---------------------------------------------------------------------------------------------- a browser

def browser() -> str | None:
    """Chromium or a relative of it: named by WEFT_BROWSER, on the path, or fetched by playwright."""
    named = os.environ.get("WEFT_BROWSER")
    found = named or next((p for n in ("chromium", "chromium-browser", "google-chrome", "chrome", "microsoft-edge") if (p := shutil.which(n))), None)
    caches = sorted(Path.home().glob(".cache/ms-playwright/chromium*/chrome-linux*/*chrom*"))
    return found or next((str(p) for p in caches if os.access(p, os.X_OK) and p.is_file()), None)


needs_browser = pytest.mark.skipif(browser() is None, reason="no browser: apt-get install chromium, or pip install playwright && playwright install chromium, "
                                                             "or set WEFT_BROWSER")
PROBE = """<script>
const out = {width: document.documentElement.scrollWidth, window: innerWidth, fetched: performance.getEntriesByType('resource').map(e => e.name),
             paper: getComputedStyle(document.body).backgroundColor, ink: getComputedStyle(document.body).color, outside: [], meeting: [],
             bar: getComputedStyle(document.querySelector('.bw')).fill, rows: document.querySelectorAll('table tr').length};
for (const svg of document.querySelectorAll('svg')) {
  const all = [...svg.querySelectorAll('text, rect, circle')].map(e => [e, e.getBoundingClientRect()]), frame = svg.getBoundingClientRect();
  for (const [e, b] of all)
    if (b.left < frame.left - 1 || b.right > frame.right + 1 || b.top < frame.top - 1 || b.bottom > frame.bottom + 1)
      out.outside.push(e.textContent || e.tagName);
  const texts = all.filter(([e]) => e.tagName == 'text');
  for (let i = 0; i < texts.length; i++)
    for (let j = i + 1; j < texts.length; j++) {
      const [a, b] = [texts[i][1], texts[j][1]];
      if (a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 3 && b.top < a.bottom - 3)
        out.meeting.push([texts[i][0].textContent, texts[j][0].textContent]);
    }
}
document.title = JSON.stringify(out);
</script>"""


def look(text: str, where: Path, width: int, dark: bool) -> tuple[dict, bytes]:
    """What the page measures in the browser, and a picture of it."""
    (where / "page.html").write_text(text)
    (where / "probe.html").write_text(text.replace("</body>", PROBE + "</body>"))
    common = [browser(), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={where / 'profile'}",
              f"--window-size={width},2000", f"--blink-settings=preferredColorScheme={0 if dark else 1}"]
    done = subprocess.run([*common, "--dump-dom", (where / "probe.html").as_uri()], capture_output=True, text=True, timeout=900)
    title = re.search("<title>(.*?)</title>", done.stdout, re.S)
    assert title, done.stderr
    subprocess.run([*common, f"--screenshot={where / 'page.png'}", (where / "page.html").as_uri()], capture_output=True, timeout=900)
    return json.loads(title[1].replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">")), (where / "page.png").read_bytes()


@needs_browser
@pytest.mark.parametrize("width", [1280, 500])   # headless Chromium has no narrower window
def test_page_in_a_browser(width, tmp_path):
    crowd = [made_up(f"Case {i} with a title of usual length", 10.0, 10.0 + i / 10, flops=1e8, bytes=1e7) for i in range(5)]
    seen, picture = look(page([*ROWS, *crowd], warning="the load is high"), tmp_path, width, False)
    assert seen["outside"] == [] and seen["meeting"] == [] and seen["fetched"] == []
    assert seen["width"] <= seen["window"] == width and seen["rows"] == 10
    assert picture[:8] == b"\x89PNG\r\n\x1a\n" and int.from_bytes(picture[16:20], "big") == width and len(picture) > 20_000


@needs_browser
def test_dark_and_light(tmp_path):
    def brightness(colour: str) -> float:
        return sum(map(int, re.findall(r"\d+", colour)[:3])) / 765
    (light, _), (dark, _) = (look(page(), tmp_path, 1280, d) for d in (False, True))
    assert brightness(light["paper"]) > 0.9 and brightness(light["ink"]) < 0.2
    assert brightness(dark["paper"]) < 0.15 and brightness(dark["ink"]) > 0.8 and dark["bar"] != light["bar"]


def test_make_demo_runs_this():
    text = (ROOT / "Makefile").read_text()
    assert re.search(r"^demo: ready .*\n\t@\$\(WEFT_PY\) demo$", text, re.M) and "/report.html" in (ROOT / ".gitignore").read_text()
