"""What the figures of the bench stand for, on clocks and in tables that a test fills: which side is which, what a sample begins with, what is named."""
from __future__ import annotations

import io
import json
import re
from types import SimpleNamespace

import pytest
import torch

from fake_clock import FakeClock, FakeTime
from weft import bench
from weft._bench import clock as _clock, twin as _twin
from weft.__main__ import main

TEXT = "tanh2d:fwd:f32:nchw:n2c4h8w8"


@pytest.fixture
def rows(monkeypatch):
    """Rows on a faked clock: weft takes 2 ms in each round, PyTorch 2, 4, ... 14."""
    clock, build = FakeClock({}, 1.5), _twin.build

    def known(*args):
        twin = build(*args)
        clock.ms.update({twin.weft: [2.0], twin.peer: [2.0 * i for i in range(1, 8)]})
        return twin
    monkeypatch.setattr(_twin, "build", known)
    monkeypatch.setattr(_clock, "of", lambda device: clock)
    monkeypatch.setattr(_clock, "peak", lambda run, device: 0)
    monkeypatch.setattr(_clock, "watch", lambda *_: lambda: "")


def test_the_spread_is_half_of_what_the_middle_rounds_cover(rows):
    """Said as +-: of ratios from 1 to 7 the middle ones are 2 to 6, half of which is half of the median."""
    row = bench.measure(TEXT, rounds=7)
    assert (row["ratio"], row["spread"]) == (4.0, 0.5)


@pytest.mark.parametrize("recorded, said", [(4.0, 0), (4.4, 0), (4.5, 1)])
def test_against_names_what_fell(rows, recorded, said, tmp_path, capsys):
    """By more than a tenth."""
    file = tmp_path / "rows.json"
    file.write_text(json.dumps([{"problem": f"{TEXT}@cpu", "ratio": recorded}]))
    assert main(["bench", TEXT, "--rounds", "7", "--against", str(file)]) == 0
    assert capsys.readouterr().out.count(f"fell: {TEXT}@cpu was {recorded:.2f}, is 4.00") == said


@pytest.mark.parametrize("before, asked", [(1, 2), (2, 1)])
def test_threads_are_as_many_as_asked_for(rows, before, asked, tmp_path, capsys):
    file = tmp_path / "rows.json"
    torch.set_num_threads(before)
    try:
        assert main(["bench", TEXT, "--rounds", "7", "--threads", str(asked), "--json", str(file)]) == 0
        assert torch.get_num_threads() == asked
    finally:
        torch.set_num_threads(1)
    [row] = json.loads(file.read_text())
    assert row["threads"] == asked and f", {asked} threads, " in capsys.readouterr().out and row["machine"].endswith(f", {asked} thread{'s' * (asked > 1)}")


def test_the_columns_of_a_regret(monkeypatch):
    row = {"problem": TEXT, "kernel": "chosen", "own": "weft's", "default_ms": 6.0, "torch_ms": 5.0, "weft_ms": 2.0, "best": "weft", "regret": 3.0, "busy": "", "threads": 1}
    monkeypatch.setattr(bench, "measure_regret", lambda text, rounds: row)
    out = io.StringIO()
    assert bench.run_regret([TEXT], out=out) == 0
    head, line = (re.split("  +", next(x for x in out.getvalue().splitlines() if x.startswith(word))) for word in ("problem", TEXT))
    assert dict(zip(head, line, strict=True)) == {"problem": TEXT, "kernel chosen": "chosen", "regret": "3.00!", "default ms": "6.000", "torch ms": "5.000",
                                                  "weft ms": "2.000", "weft's own": "weft's"}


def test_a_sample_begins_with_empty_caches(monkeypatch):
    """More than the last-level cache holds is read before the clock starts."""
    cpu, order = _clock.Cpu(), []
    assert cpu.filler.numel() * cpu.filler.element_size() >= 2 * _clock._last_level_cache()
    cpu.filler = SimpleNamespace(sum=lambda: order.append("read"))
    monkeypatch.setattr(_clock, "time", SimpleNamespace(perf_counter=lambda: order.append("look") or 0.0))
    cpu.sample(lambda: order.append("run"))
    assert order == ["read", "look", "run", "look"]


def test_the_rate_of_float64_is_half(monkeypatch):
    """What was measured is of float32; 16 bits are computed in it."""
    clock = FakeTime(1e-3)
    monkeypatch.setattr(_clock, "time", clock)
    monkeypatch.setattr(_clock, "_library", SimpleNamespace(lib=SimpleNamespace(weft_torch_burn=lambda rounds, isa: 8e6)))
    cpu = _clock.Cpu()
    rates = [cpu.flops_per_ms(dtype) for dtype in (torch.float32, torch.bfloat16, torch.float64)]
    assert rates == pytest.approx([8e6, 8e6, 4e6])


def test_multiply_adds_of_all_threads_count():
    """So the rate is that of the machine."""
    burn, flops = _clock._library.lib.weft_torch_burn, []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            flops.append(burn(1000, None))
    finally:
        torch.set_num_threads(1)
    assert flops[1] == 2 * flops[0] > 0


def test_a_side_is_timed_by_the_run(monkeypatch):
    """So that sides of other counts compare; a context is entered once for all of them, before the clock starts."""
    clock, entered = FakeTime(0), []

    class Within:
        def __enter__(self):
            entered.append(clock.now)
            clock.sleep(0.5)

        def __exit__(self, *_):
            clock.sleep(0.5)
    monkeypatch.setattr(_clock, "time", clock)
    for times in (1, 5):
        assert _clock.wall(clock.work(0.003), torch.device("cpu"), Within)(times) == pytest.approx(0.003)
    assert len(entered) == 2


def test_what_a_recurrent_layer_keeps_is_not_in_the_floor():
    """The bytes are those of its tensors, whatever a gradient needs besides."""
    t, n, c, o = 5, 3, 4, 6
    twin = _twin.build(f"gru:fwd:f32:dense:t{t}n{n}c{c}o{o}:train1")
    assert (twin.read, twin.write) == (4 * (t * n * c + 3 * o * (c + o) + 6 * o), 4 * (t * n * o + n * o)), (twin.read, twin.write)


def test_attributes_are_whole():
    """A real number of a problem is the one that was said, to the last bit."""
    for value in (1.2345678901234567, 1e-7 / 3, -2 / 3):
        told = _clock._library.problem(f"clip2d:fwd:f32:nchw:n1c1h2w2:lo-2hi{value!r}")
        assert value in map(float, told["real"]), told
