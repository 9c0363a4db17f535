"""weft.backends.calibrate(): PyTorch's speed on this machine, measured once, kept in a file, used by every estimate."""
from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import weft
from weft._core import calibrate as _calibrate, library as _library
from weft import _enable

lib = _library.lib
TINY, LARGE = "conv2d:fwd:f32:nchw:n1c8h8w8:o8k3p1g8@cpu", "conv2d:fwd:f32:nchw:n1c64h28w28:o64k3p1g64@cpu"


@pytest.fixture
def alone(tmp_path, monkeypatch):
    """A cache directory of its own, nothing loaded, and PyTorch's operators cost what the test says. Afterwards the constants count. The rates of the
    machine stay nominal: they are the C library's, which reads WEFT_RATES itself, and measured ones would be the clock's."""
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(_calibrate, "_nominal", lambda: False)
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


@pytest.mark.parametrize("took, runs", [((9e5, 7e5, 8e5), 3), ((5e6, 4e6), 2), ((3e7,), 1), ((1e3,) * 30, 30)], ids=["2 ms", "twice", "long", "30 times"])
def test_the_fastest_of_some_runs(took, runs, monkeypatch):
    """Twice at least, until 2 ms are spent, 30 times at most; what takes 20 ms once. A first run is not timed."""
    times, count = iter([t for i, ns in enumerate(took) for t in (100 * i, 100 * i + ns)]), []
    monkeypatch.setattr(_calibrate, "time", SimpleNamespace(perf_counter_ns=lambda: next(times)))
    assert _calibrate._least(lambda: count.append(0)) == min(took) and len(count) == 1 + runs


def test_the_way_in_is_taken_off_gradients(alone, monkeypatch):
    monkeypatch.setattr(_calibrate, "_way_in", lambda: 25e3)
    monkeypatch.setattr(_calibrate, "_TYPES", {"f32": torch.float32})
    monkeypatch.setattr(_calibrate, "_SIZES", {2: _calibrate._SIZES[2]})
    lines = dict(_calibrate._measure())
    assert len(lines) > 10
    for i, (text, ns) in enumerate(lines.items()):
        assert ns == (1e4 * (i + 1) if ":fwd:" in text else max(1e4 * (i + 1) - 25e3, 1.0)), text


def test_the_way_in_is_what_torch_ops_takes_more(monkeypatch):
    for times, more in (((700.0, 500.0), 200.0), ((500.0, 700.0), 0.0)):
        left = iter(times)
        monkeypatch.setattr(_calibrate, "_least", lambda run: run() is not None and next(left))
        assert _calibrate._way_in() == more


def test_what_info_says(alone):
    assert _calibrate.describe() == "calibration: none, estimates of PyTorch are constants; weft.backends.calibrate() measures them"
    path = _calibrate._file()
    path.write_text(f"{_calibrate._HEADER}\n{TINY} 5000\n{LARGE} 90000\n")
    assert _calibrate.describe().splitlines() == [f"calibration: 2 measurements of PyTorch's convolutions in {path}", f"  {TINY} 5000 ns", f"  {LARGE} 90000 ns"]


def test_each_number_of_threads_has_its_file(alone):
    before, files = torch.get_num_threads(), set()
    try:
        for threads in (1, 2, 1):
            torch.set_num_threads(threads)
            files.add(_calibrate._file())
    finally:
        torch.set_num_threads(before)
    assert len(files) == 2


def test_each_pytorch_has_its_file(alone, monkeypatch):
    """And each processor, and each version of weft: what was measured is of all three."""
    files = {_calibrate._file()}
    for change in ((torch, "__version__", "1.0"), (_library, "version", lambda: "0"), (_library, "describe", lambda: "cpu: another")):
        with monkeypatch.context() as changed:
            changed.setattr(*change)
            files.add(_calibrate._file())
    assert len(files) == 4


def test_where_the_files_are(tmp_path, monkeypatch):
    """Where the C library keeps its own: named, in the user's cache, or nowhere."""
    for named, cache, where in ((str(tmp_path), "/cache", tmp_path), (None, "/cache", Path("/cache/weft")), (None, "", tmp_path / ".cache" / "weft"), ("", "/cache", None)):
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("XDG_CACHE_HOME", cache)
        monkeypatch.delenv("WEFT_CACHE_DIR", raising=False)
        if named is not None:
            monkeypatch.setenv("WEFT_CACHE_DIR", named)
        assert _calibrate._directory() == where and (_calibrate._file() is None) == (where is None)


def test_the_first_process_to_measure_decides(alone, monkeypatch):
    """What another has written meanwhile stays, and is used here too."""
    measure, path = _calibrate._measure, _calibrate._file()
    theirs = f"{_calibrate._HEADER}\n{TINY} 5000\n{LARGE} 90000\n"

    def late():
        lines = measure()
        path.write_text(theirs)
        return lines
    monkeypatch.setattr(_calibrate, "_measure", late)
    assert weft.backends.calibrate() == 2 and path.read_text() == theirs and list(path.parent.iterdir()) == [path]


class Masks(TorchDispatchMode):
    """Which gradients PyTorch is asked for."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is torch.ops.aten.convolution_backward.default:
            self.seen.append(args[-1])
        return function(*args, **(kwargs or {}))


def test_each_gradient_is_measured_alone():
    """A line that says bwd_data is of the gradient of the data and of no other."""
    for passes, mask in (("bwd_data", [True, False, False]), ("bwd_weights", [False, True, False])):
        text, run = _calibrate._call(2, passes, "f32", False, (3, 1), (8, 8))
        with Masks() as masks:
            run()
        assert masks.seen == [mask] and text == TINY.replace(":fwd:", f":{passes}:")


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
    monkeypatch.setattr(_calibrate, "_nominal", lambda: True)
    _calibrate.ensure()
    assert not alone
    monkeypatch.setattr(_calibrate, "_nominal", lambda: False)
    with weft.enabled():
        assert alone
        count = len(alone)
    with weft.enabled():
        assert len(alone) == count


def test_nominal_rates_are_asked_for_by_name(monkeypatch):
    for value in (None, "", "measured", "nominal"):
        monkeypatch.delenv("WEFT_RATES", raising=False)
        if value is not None:
            monkeypatch.setenv("WEFT_RATES", value)
        assert _calibrate._nominal() == (value == "nominal")


def test_pytorch_itself_is_measured(alone):
    """Not what weft.enable() has put under it."""
    with weft.backends.flags(delegate=False), weft.enabled():
        _enable.seen(forget=True)
        weft.backends.calibrate(again=True)
        assert not _enable.seen()


def test_wrong():
    with pytest.raises(TypeError, match="again: is 1, allowed: True or False"):
        weft.backends.calibrate(1)


def speeds():
    """Flops and bytes a ns of this machine, as the estimates have them."""
    dense, plain = "conv2d:fwd:f32:nchw:n32c256h56w56:o256k3p1@cpu", "relu2d:fwd:f32:nchw:n32c256h56w56@cpu"
    return _library.problem(dense)["flops"] / lib.weft_torch_bare_ns(dense.encode()), moved(plain) / lib.weft_torch_bare_ns(plain.encode())


def moved(problem):
    """Bytes, each tensor once."""
    size = {"f32": 4, "f64": 8, "f16": 2, "bf16": 2, "u8": 1, "i64": 8}
    return sum(math.prod(t["dims"]) * size[t["dtype"]] for t in _library.problem(problem)["tensors"].values())


def test_packed_sequences_of_lstm_are_a_loop():
    """oneDNN has the whole layer, of whole sequences alone: packed ones take as many calls as there are steps, as those of gru do in any form."""
    def ns(kind, rows):
        return lib.weft_torch_estimate_ns(f"{kind}:fwd:f32:dense:t1000n1c4o4:state1rows{rows}@cpu".encode())
    assert ns("lstm", 1000) > 5 * ns("lstm", 0) and ns("gru", 1000) == pytest.approx(ns("gru", 0), rel=0.01)


REACHED = {   # of PyTorch: what a call costs in ns, and the shares that it reaches of the peak and of the bandwidth; test_torch_ways.py has convolution
    # elements
    "relu2d:fwd:f32:nchw:n8c64h56w56": (2e3, 1, 1.1), "sigmoid2d:fwd:f32:nchw:n8c64h56w56": (2e3, 1, 0.6), "clip2d:fwd:f32:nchw:n1c64h56w56:lo-1hi2": (2e3, 1, 1.1),
    "tanh2d:fwd:f32:nchw:n8c64h56w56": (2e3, 0.0025, 1), "relu2d:fwd:bf16:nchw:n8c64h56w56": (2e3, 1, 1.1), "relu2d:bwd:f32:nchw:n8c64h56w56": (2e3, 1, 1.1),
    "ncrelu2d:fwd:f32:nchw:n8c64h56w56": (20e3, 1, 0.35), "ncrelu2d:bwd:f32:nchw:n8c64h56w56": (20e3, 1, 0.15),
    # columns
    "im2col2d:fwd:f32:nchw:n8c64h56w56:k3p1": (10e3, 0.0045, 1), "col2im2d:fwd:f32:nchw:n8c64h56w56:k3p1": (10e3, 0.0025, 1),
    # rows and statistics
    "batch_norm2d:fwd:f32:nchw:n8c64h56w56:train1": (3e3, 0.0225, 1), "batch_norm2d:bwd:f32:nchw:n8c64h56w56:train1": (3e3, 1, 0.6),
    "batch_norm2d:fwd:f32:nhwc:n8c64h56w56:train1": (3e3, 0.095, 0.72), "batch_norm2d:bwd:f32:nhwc:n8c64h56w56:train1": (3e3, 0.075, 0.75),
    "batch_norm2d:fwd:f32:nchw:n8c64h56w56:train0": (3e3, 1, 1.2), "batch_norm2d:bwd:f32:nchw:n16c64h56w56:train0": (3e3, 1, 0.315),
    "batch_norm2d:bwd:f32:nhwc:n8c64h56w56:train0": (3e3, 0.108, 0.8), "batch_norm2d:fwd:bf16:nchw:n8c64h56w56:train1": (5e3, 0.3, 0.4),
    "softmax2d:fwd:f32:nchw:n8c64h56w56": (3e3, 0.0194, 0.4), "log_softmax2d:fwd:f32:nhwc:n8c64h56w56": (3e3, 0.3, 0.09),
    "softmax2d:bwd:f32:nchw:n8c64h56w56": (3e3, 0.1, 0.6), "log_softmax1d:bwd:f32:ncw:n64c100w1": (3e3, 0.08, 1), "lrn2d:fwd:f32:nchw:n8c64h56w56:size5": (10e3, 0.016, 0.1), "lrn2d:bwd:f32:nchw:n8c64h56w56:size5": (10e3, 0.05, 0.1),
    "cross_entropy2d:fwd:f32:nchw:n8c64h56w56": (50e3, 0.3, 0.07), "cross_entropy2d:fwd:f32:nhwc:n8c64h56w56": (50e3, 0.3, 0.03),
    # products with a diagonal
    "dgmm:fwd:f32:dense:n8h500w500:side1": (10e3, 1, 1), "dgmm:fwd:f32:dense:n32h500w500:side1": (-10e3, 1, 0.7), "dgmm:bwd_weights:f32:dense:n8h500w500:side1": (10e3, 1, 0.5),
    "dgmm:bwd_data:f32:dense:n32h500w500:side0": (-10e3, 1, 0.7), "cdgmm:fwd:f32:dense:n8h500w500:side1": (10e3, 1, 0.5), "cdgmm:bwd_weights:f32:dense:n32h500w500:side1": (-10e3, 1, 0.3),
    # recurrent layers of 64 units, 16 sequences, 10 steps: a call, its weights, and each step
    "lstm:fwd:f32:dense:t10n16c64o64": (90e3 - 4 * 4 * 64 * 128 / 12 + 10 * 2e3, 0.85, 1),
    "lstm:bwd:f32:dense:t10n16c64o64:train1": (240e3 - 4 * 4 * 64 * 128 / 12 + 10 * 5e3, 0.85, 1),
    "lstm:fwd:f32:dense:t10n2c64o64": (90e3 - 4 * 4 * 64 * 128 / 12 + 10 * 2e3, 0.68, 1),
    "gru:fwd:f32:dense:t10n16c64o64": (-60e3 - 4 * 3 * 64 * 128 / 12 + 10 * (30e3 + 2 * 3 * 64 * 16 + 4 * 3 * 64 * 64 / 80), 0.85, 1),
    "rnn_tanh:bwd:f32:dense:t10n16c64o64:train1": (-60e3 - 4 * 64 * 128 / 12 + 10 * (40e3 + 4 * 64 * 16 + 4 * 64 * 64 * (1 / 80 + 6 / 25)), 0.85, 1),
}


IMAGES, PIXELS = 8, 8 * 56 * 56
POOLED = {   # of PyTorch's pooling of 64 channels: what a call costs beside one of weft, and what one thread takes where the peak is 118 GFLOP/s, in ns
    "max_pool2d:fwd:f32:nchw:k3s2p1": (-5.5e3, IMAGES * 64 * (28 * 28 * (5.5 + 9 * 0.77) + 56 * 56 * 0.02)),
    "max_pool2d:fwd:bf16:nchw:k3s2p1": (-5.5e3, IMAGES * 64 * (28 * 28 * (6.5 + 9 * 0.85) + 56 * 56 * 0.02)),
    "max_pool2d:bwd:f32:nchw:k3s2p1index1": (-16e3, IMAGES * 64 * (28 * 28 * 0.7 + 56 * 56 * 0.08)),
    "avg_pool2d:fwd:f32:nchw:k3s2p1": (-5.5e3, IMAGES * 64 * (28 * 28 * (5.3 + 9 * 0.35) + 56 * 56 * 0.06)),
    "avg_pool2d:bwd:f32:nchw:k3s2p1": (-16e3, IMAGES * 64 * (28 * 28 * (6 + 9 * 0.28) + 56 * 56 * 0.12)),
    "max_pool2d:fwd:f32:nhwc:k5s1p2": (-5.5e3, PIXELS * (64 * 0.34 + 7 + 25 * (0.15 + 4 * 1.6))),
    "max_pool2d:bwd:f32:nhwc:k5s1p2index1": (-16e3, PIXELS * 64 * (0.8 + 0.08)),
    "avg_pool2d:fwd:bf16:nhwc:k9s1p4": (-5.5e3, PIXELS * (64 * 0.28 + 6 + 81 * (1.5 + 2 * 0.9))),
    "avg_pool2d:bwd:f32:nhwc:k5s1p2": (-16e3, PIXELS * (64 * 0.08 + 8 + 25 * (0.3 + 4 * 1.45))),
    "adaptive_avg_pool2d:fwd:f32:nchw:to50": (-5.5e3, IMAGES * 64 * (50 * 50 * 7.4 + 56 * 56 * 0.6)),
    "adaptive_avg_pool2d:fwd:f32:nchw:to1": (-2e3, IMAGES * 64 * (2.5 + 56 * 56 * 0.046)),
    "adaptive_avg_pool2d:bwd:f32:nhwc:to1": (-3e3, IMAGES * 64 * (2 + 56 * 56 * 0.46)),
}


def test_what_pooling_takes():
    """The same of windows, whose constants are times."""
    peak, band = speeds()
    for text, (call, work) in POOLED.items():
        operator, which, dtype, layout, window = text.split(":")
        problem = f"{operator}:{which}:{dtype}:{layout}:n8c64h56w56:{window}@cpu"
        expected = call + max(work * 118 / min(peak, 150), moved(problem) / band)
        assert lib.weft_torch_estimate_ns(problem.encode()) / 0.9 == pytest.approx(expected, rel=2e-3), text


def test_partial_convolution_is_a_convolution_and_more():
    """By the way that it takes, in f32 also for 16 bits, but never beyond three tenths of the peak."""
    def ns(text):
        return lib.weft_torch_estimate_ns(f"{text}@cpu".encode()) / 0.9
    masks = ",mask=u8,new_mask=u8"
    for shape in ("n8c64h56w56:o64k3p1", "n1c512h8w8:o512k3s2p1", "n8c276h6w6:o276k9s3p4"):
        dense = ns(f"conv2d:fwd:f32:nchw:{shape}")
        whole = ns(f"partial_conv2d:fwd:f32{masks}:nchw:{shape}mask1")
        half = ns(f"partial_conv2d:fwd:bf16{masks}:nchw:{shape}mask1")
        assert whole > dense + 50e3 and dense < half <= whole   # 16 bits have fewer bytes
    slow = "n8c276h6w6:o276k9s3p4"
    assert ns(f"partial_conv2d:bwd:f32,mask=u8:nhwc:{slow}mask1") > 3 * ns(f"partial_conv2d:fwd:f32{masks}:nhwc:{slow}mask1") / 2


def test_groups_of_four_tell_nothing_of_others_where_they_are_fast():
    tiny, large, other = (f"conv2d:fwd:f32:nhwc:{t}@cpu".encode() for t in ("n1c8h8w8:o8k3p1g2", "n1c64h28w28:o64k3p1g16", "n2c36h57w57:o36k3p1g2"))
    lib.weft_torch_unlearn()
    try:
        before = [lib.weft_torch_estimate_ns(t) for t in (tiny, large, other)]
        assert lib.weft_torch_learn(tiny, before[0] / 3, large, before[1] / 3) and lib.weft_torch_estimate_ns(other) == pytest.approx(before[2], rel=0.01)
        assert lib.weft_torch_learn(tiny, before[0], large, before[1] * 3) and lib.weft_torch_estimate_ns(other) > 2 * before[2]
    finally:
        lib.weft_torch_unlearn()


def test_what_onednn_has_no_fast_code_for():
    """Depthwise with more padding than its tile has pixels, groups that fill no half of a block; and in 1D channels-last data is copied."""
    def ns(text):
        return lib.weft_torch_estimate_ns(f"{text}@cpu".encode())
    lib.weft_torch_unlearn()
    image = "n2c64h40w40:o64k3"
    for layout in ("nchw", "nhwc"):
        assert ns(f"conv2d:fwd:f32:{layout}:{image}p7d7g64") > 2 * ns(f"conv2d:fwd:f32:{layout}:{image}p6d6g64")
    assert ns("conv2d:fwd:f32:nchw:n2c64h40w40:o64k15p6g64") < ns("conv2d:fwd:f32:nchw:n2c64h40w40:o64k15p7g64") / 5
    narrow, half, whole = (ns(f"conv2d:fwd:f32:nchw:n4c{8 * c}h56w56:o{8 * c}k3p1g8") for c in (12, 8, 16))
    assert half < narrow / 2 and narrow > 0.85 * whole
    turned, first = (ns(f"conv1d:fwd:f32:{layout}:n4c64w1600:o64k3p1g64") for layout in ("nwc", "ncw"))
    assert turned > first + 2 * 0.5 * 0.9 * 4 * 64 * 1600 - 1


def test_batch_norm_of_channels_that_fill_no_vectors():
    """PyTorch takes the rest of each pixel through memory, channels-last; rows of 1D it turns first."""
    def ns(text):
        return lib.weft_torch_estimate_ns(f"{text}@cpu".encode()) / 0.9
    full, rest = (ns(f"batch_norm2d:fwd:f32:nhwc:n4c{c}h56w56:train1") for c in (16, 17))
    assert rest - full == pytest.approx(25 * 2.4 * 4 * 56 * 56, rel=0.1)
    assert ns("batch_norm1d:fwd:f32:nwc:n4c64w512:train0") > 3 * ns("batch_norm1d:fwd:f32:ncw:n4c64w512:train0")


def test_what_pytorch_reaches():
    """Constants that were measured; weft must be faster than nine tenths of them. Nothing is computed."""
    lib.weft_torch_unlearn()
    peak, band = speeds()
    wrong = []
    for text, (call, of_peak, of_band) in REACHED.items():
        problem = f"{text}@cpu"
        expected = call + max(_library.problem(problem)["flops"] / peak / of_peak, moved(problem) / band / of_band)
        found = lib.weft_torch_estimate_ns(problem.encode()) / 0.9
        if found != pytest.approx(expected, rel=2e-3):
            wrong.append((text, found, expected))
    assert not wrong, wrong
