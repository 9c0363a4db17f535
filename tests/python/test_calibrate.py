"""weft.backends.calibrate(): PyTorch's speed on this machine, measured once, kept in a file, used by every estimate."""
from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

import weft
from weft._core import calibrate as _calibrate, library as _library
from weft import _enable

lib = _library.lib
TINY, LARGE = "conv2d:fwd:f32:nchw:n1c8h8w8:o8k3p1g8@cpu", "conv2d:fwd:f32:nchw:n1c64h28w28:o64k3p1g64@cpu"


@pytest.fixture
def alone(tmp_path, monkeypatch):
    """A cache directory of its own, nothing loaded, and PyTorch's operators cost what the test says. Afterwards the constants count."""
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("WEFT_RATES", raising=False)
    monkeypatch.setattr(_calibrate, "loaded", False)
    monkeypatch.setattr(_calibrate, "SECONDS", float("inf"))
    runs = []

    def cost(run):
        runs.append(run())
        return 1e4 * len(runs)
    monkeypatch.setattr(_calibrate, "_least", cost)
    monkeypatch.setattr(_calibrate, "_way_in", lambda: 0.0)
    lib.weft_torch_unlearn()
    yield runs
    lib.weft_torch_unlearn()


def test_every_kind_is_measured_once(alone, tmp_path):
    count = weft.backends.calibrate()
    assert count == len(alone) > 100 and count % 2 == 0
    files = list(tmp_path.glob("torch-*.txt"))
    assert len(files) == 1 and not list(tmp_path.glob("tmp*")), "the file that it was written to first is gone"
    assert files[0].read_text().splitlines()[0] == _calibrate._HEADER
    assert weft.backends.calibrate() == count == len(alone), "a second call reads the file"
    text = files[0].read_text()
    assert weft.backends.calibrate(again=True) == count and len(alone) == 2 * count and files[0].read_text() != text


def test_every_problem_of_the_file_is_one(alone):
    weft.backends.calibrate()
    seen = set()
    for text, _ in _calibrate._read(_calibrate._file()):
        assert lib.weft_torch_bare_ns(text.encode()) > 0, text
        seen.add(text)
    assert len(seen) == len(alone)


def test_estimates_follow(alone):
    """A kind whose call costs a and whose work costs b times the least is estimated so, less the tie of 10% that PyTorch is given."""
    bare = {t: lib.weft_torch_bare_ns(t.encode()) for t in (TINY, LARGE)}
    assert 0 < bare[TINY] < bare[LARGE]
    assert lib.weft_torch_learn(TINY.encode(), 5e4 + 3 * bare[TINY], LARGE.encode(), 5e4 + 3 * bare[LARGE])
    middle = "conv2d:fwd:f32:nchw:n2c32h20w20:o32k3p1g32@cpu"
    expected = 0.9 * (5e4 + 3 * lib.weft_torch_bare_ns(middle.encode()))
    assert lib.weft_torch_estimate_ns(middle.encode()) == pytest.approx(expected, rel=1e-3)
    for other in (middle.replace(":fwd:", ":bwd_data:"), middle.replace("nchw", "nhwc"), middle.replace("f32", "bf16")):
        assert lib.weft_torch_estimate_ns(other.encode()) != pytest.approx(0.9 * (5e4 + 3 * lib.weft_torch_bare_ns(other.encode())), rel=1e-3)


def test_dense_convolution_is_not_taken_for_slow(alone):
    """A small one runs far from the peak, a large one near it: of a measurement the cost of a call counts, and a share that is above the constant."""
    tiny, large = (t.replace("g8", "g1").replace("g64", "g1") for t in (TINY, LARGE))
    many = large.replace("n1", "n32")
    before, bare = lib.weft_torch_estimate_ns(many.encode()), [lib.weft_torch_bare_ns(t.encode()) for t in (tiny, large)]
    assert lib.weft_torch_learn(tiny.encode(), 4e3 + 9 * bare[0], large.encode(), 4e3 + 9 * bare[1])
    assert lib.weft_torch_estimate_ns(many.encode()) <= 1.05 * before


def test_measurements_that_say_nothing_are_left_out(alone):
    before = lib.weft_torch_estimate_ns(LARGE.encode())
    for tiny, large in ((1e5, 1e5), (1e5, 5e4), (0, 1e5), (float("nan"), 1e5)):
        assert not lib.weft_torch_learn(TINY.encode(), tiny, LARGE.encode(), large)
    assert not lib.weft_torch_learn(b"nonsense", 1e4, LARGE.encode(), 1e5) and lib.weft_torch_bare_ns(b"nonsense") < 0
    assert lib.weft_torch_estimate_ns(LARGE.encode()) == before


def test_both_gradients_take_the_time_of_each(alone, monkeypatch):
    """Tiny ones of the tiny, large ones of the large."""
    told = []
    monkeypatch.setattr(_calibrate, "_lib", SimpleNamespace(weft_torch_learn=lambda *args: told.append(args)))
    lines = [(t.replace(":fwd:", f":{which}:"), ns) for which, times in (("bwd_data", (1.0, 20.0)), ("bwd_weights", (300.0, 4000.0)))
             for t, ns in zip((TINY, LARGE), times)]
    assert _calibrate._learn(lines) == 4 and len(told) == 3
    assert told[-1] == (TINY.replace(":fwd:", ":bwd:").encode(), 301.0, LARGE.replace(":fwd:", ":bwd:").encode(), 4020.0)


def test_measuring_again_forgets_what_was_measured_before(alone, monkeypatch):
    """Also of kinds that there was no time for."""
    before = lib.weft_torch_estimate_ns(TINY.encode())
    assert lib.weft_torch_learn(TINY.encode(), 5e6, LARGE.encode(), 9e6) and lib.weft_torch_estimate_ns(TINY.encode()) != before
    monkeypatch.setattr(_calibrate, "SECONDS", -1.0)
    assert weft.backends.calibrate(again=True) == 0 and lib.weft_torch_estimate_ns(TINY.encode()) == before


@pytest.mark.parametrize("text", ["", "another program", "{header}\nconv2d", "{header}\nconv2d:fwd:f32:nchw:n1c8h8w8:o8k3p1g8@cpu x"])
def test_a_bad_file_is_measured_over(alone, text):
    path = _calibrate._file()
    path.write_text(text.format(header=_calibrate._HEADER))
    assert weft.backends.calibrate() > 100


def test_half_of_a_pair_is_not_read(alone):
    """A small measurement says nothing without the larger one of its kind."""
    path = _calibrate._file()
    path.write_text(f"{_calibrate._HEADER}\n{TINY} 5000\n{LARGE} 90000\n")
    assert _calibrate._read(path) == [(TINY, 5000.0), (LARGE, 90000.0)]
    path.write_text(f"{_calibrate._HEADER}\n{TINY} 5000\n{LARGE} 90000\n{TINY} 5000\n")
    assert _calibrate._read(path) == []


def test_each_number_of_threads_has_its_file(alone):
    before, files = torch.get_num_threads(), set()
    try:
        for threads in (1, 2, 1):
            torch.set_num_threads(threads)
            files.add(_calibrate._file())
    finally:
        torch.set_num_threads(before)
    assert len(files) == 2


def test_nowhere_to_keep_it(alone, tmp_path, monkeypatch):
    for name in ("", str(tmp_path / "file" / "below")):
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("WEFT_CACHE_DIR", name)
        monkeypatch.setattr(_calibrate, "loaded", False)
        assert weft.backends.calibrate() > 100
    assert not list(tmp_path.rglob("torch-*.txt"))


def test_when_enable_measures(alone, monkeypatch):
    monkeypatch.setattr(_calibrate._clock, "busy", lambda seconds: "other work")
    _calibrate.ensure()
    assert not alone, "beside other work"
    monkeypatch.setattr(_calibrate._clock, "busy", lambda seconds: "")
    torch.use_deterministic_algorithms(True)
    try:
        _calibrate.ensure()
    finally:
        torch.use_deterministic_algorithms(False)
    monkeypatch.setenv("WEFT_RATES", "nominal")
    _calibrate.ensure()
    assert not alone
    monkeypatch.delenv("WEFT_RATES")
    with weft.enabled():
        assert alone
        count = len(alone)
    with weft.enabled():
        assert len(alone) == count


def test_pytorch_itself_is_measured(alone):
    """Not what weft.enable() has put under it."""
    with weft.backends.flags(delegate=False), weft.enabled():
        _enable.seen(forget=True)
        weft.backends.calibrate(again=True)
        assert not _enable.seen()


def test_wrong():
    with pytest.raises(TypeError, match="again: is 1, allowed: True or False"):
        weft.backends.calibrate(1)
