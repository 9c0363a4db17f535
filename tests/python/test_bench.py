"""`python -m weft bench`: each operator's problem beside its PyTorch twin, sets of problems, networks beside their converted selves."""
from __future__ import annotations

import doctest
import importlib.util
import io
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import weft
from fake_clock import FakeClock, FakeTime
from torch import nn
from weft._bench import clock as _clock, models as _models, twin as _twin
from weft._core import library as _library
from weft import bench
from weft.__main__ import main

ROOT = Path(__file__).resolve().parents[2]
SMALL = [
    "conv2d:fwd:bf16,bias=f32:nchw,src=nchw/4:n1c4h8w8:o4k3p1+2x0g2:bias", "conv2d:fwd:f32:nhwc:n2c8h9w8:o4k3x5s2p1x2d1x2:bias+clip-0.5_0.5",
    "partial_conv1d:fwd:f32:ncw:n2c4w30:o6k3s2p1g2mask2:bias+relu", "partial_conv3d:fwd:f64:ncdhw:n1c2d4h5w6:o4k3p1mask0",
    "partial_conv2d:fwd:f32:nhwc:n2c4h9w8:o6k3s2p1outpad1transposed1mask2g2:bias",
    "partial_conv2d:fwd:f16,mask=u8:nchw:n2c4h9w8:o6k3x1p1x0mask1shared1:clip-0.1_0.5",
    "partial_conv2d:fwd:f32,mask=u8,new_mask=u8:nchw:n1c4h9w9:o4k5p2:bias", "sparse_conv2d:fwd:f32,rows=i64,cols=i64:nchw:n2c8h7w6:o8k3p1nnz60:bias+relu",
    "sparse_conv3d:fwd:f32:ncdhw:n1c4d5h5w5:o4k3p1g2nnz40", "sparse_conv1d:fwd:bf16:nwc:n2c4w20:o8k3s2p1nnz30:bias",
    "max_pool2d:fwd:f32,index=i64:nchw:n2c6h13w13:k3s2p1index1", "max_pool3d:fwd:bf16:ndhwc:n1c4d6h6w6:k2s2ceil1", "max_pool1d:fwd:f64:ncw:n2c3w20:k3s2p1d2",
    "avg_pool2d:fwd:f32:nchw:n2c6h13w13:k3s2p1ceil1", "avg_pool3d:fwd:f32:ncdhw:n1c4d6h6w6:k3s2p1include_pad0divisor5", "avg_pool1d:fwd:f16:ncw:n2c3w20:k3s2p1",
    "adaptive_avg_pool2d:fwd:f32:nchw:n2c6h7w7:to1", "adaptive_avg_pool3d:fwd:f32:ncdhw:n1c4d6h7w8:to3x2x5",
    "relu2d:fwd:f32:nchw:n2c3h7w7", "clip1d:fwd:f16:ncw:n2c3w20:lo-1hi0.5", "tanh2d:bwd:f32:nchw:n2c6h7w7", "sigmoid2d:bwd:f32:nhwc:n2c6h7w7",
    "ncrelu1d:fwd:f32:nwc:n2c3w20", "softmax3d:fwd:bf16:ndhwc:n2c5d3h3w3", "log_softmax2d:fwd:f32:nchw:n2c19h6w6",
    "cross_entropy2d:fwd:f32:nchw:n2c19h8w8:ignore255smooth0.1", "cross_entropy1d:fwd:f32:ncw:n2c5w20:probs1weighted1reduction2",
    "cross_entropy3d:fwd:bf16:ncdhw:n2c5d3h3w3:weighted1reduction0", "batch_norm2d:fwd:bf16,weights=f32,bias=f32:nhwc:n2c8h14w14:train1",
    "batch_norm1d:fwd:f32:ncw:n4c5w20:train0", "batch_norm3d:fwd:f64:ndhwc:n2c5d3h3w3:train1affine0track0", "lrn2d:fwd:f32:nchw:n2c16h9w9:size5",
    "lrn1d:fwd:f16:ncw:n4c9w20:size5alpha0.1beta0.5k2", "dgmm:fwd:f32:dense:n1h64w32:side1", "dgmm:fwd:f64:dense:n3h6w7:side0",
    "cdgmm:fwd:f64:dense:n3h6w7:side0", "cdgmm:fwd:bf16:dense:n3h6w7:side1", "im2col2d:fwd:f32:nchw:n2c4h9w8:k3p1", "im2col1d:fwd:f32:ncw:n2c3w20:k3s2p1d2",
    "im2col3d:fwd:f32:ncdhw:n2c3d5h6w7:k3x2x1s2p1x0x0", "col2im2d:fwd:f32:nchw:n2c4h9w8:k3p1", "col2im1d:fwd:f32:ncw:n2c3w20:k3s2p1d2",
    "col2im3d:fwd:f32:ncdhw:n2c3d5h6w7:k3x2x1s2p1x0x0", "rnn_relu:fwd:f32:dense:t5n3c4o6:l2both1", "rnn_tanh:fwd:f32:dense:t5n3c4o6:state1",
    "causal_conv1d:fwd:f32:ncw:n2c5w33:k4:bias+silu", "causal_conv1d:fwd:bf16,weights=f32,bias=f32:nwc:n2c5w33:k3first1last1:bias",
    "causal_update1d:fwd:f32:ncw:n2c5w1:k4len3:bias+silu", "lstm:fwd:f32:dense:t5n3c4o6:l2both1proj3state1b0", "gru:fwd:f64:dense:t5n3c4o6:rows11state1",
]
NO_SUCH_PASS = ("which", "a transposed convolution")   # not every operator has every pass; uneven padding has no transposed form in PyTorch


def passes_of(text: str) -> list[str]:
    """Those that the operator has."""
    found = []
    for passes in _twin.PASSES:
        try:
            _library.problem(text, "bwd" if passes == "train" else passes)
            found.append(passes)
        except ValueError as problem:
            assert "which" in str(problem), problem
    return found


# ---------------------------------------------------------------------------------------------- twins

@pytest.mark.parametrize("text", SMALL)
def test_every_pass_agrees(text, device):
    checked = 0
    for passes in passes_of(text):
        try:
            twin = _twin.build(f"{text}@{device}", passes)
        except ValueError as problem:
            assert NO_SUCH_PASS[1] in str(problem) and passes == "bwd_data", problem
            continue
        error, allowed = _twin.error(twin)
        assert error <= allowed, f"{twin.text}: {error:.2e}, allowed {allowed:.2e}"
        assert twin.kernel and f":{passes}:" in twin.text and twin.read > 0 and twin.write > 0 and twin.flops > 0
        checked += 1
    assert checked >= min(2, len(passes_of(text)))


def essence(text: str) -> tuple:
    """What a problem asks for. Pointwise operators and softmax fold their sizes; a recurrent layer has states; a new mask has the type that PyTorch's users get."""
    name, passes, types, _, sizes, *rest = text.partition("@")[0].replace("state1", "").split(":")
    folded = re.match("relu|clip|softmax|log_softmax|cross_entropy", name)
    return name.rstrip("123d") if folded else name, passes, types.partition(",")[0], None if folded else sizes, [part for part in rest if part]


@pytest.mark.parametrize("text", [t for t in SMALL if ":fwd:" in t and "index1" not in t])   # no index is made where nobody goes back
def test_what_runs_is_the_problem_itself(text, capfd):
    """Not another one, whose results agree as well."""
    with weft.backends.flags(delegate=False, verbose="exec"):
        twin = _twin.build(f"{text}@cpu")
        capfd.readouterr()
        twin.weft()
    ran = [line.split()[2] for line in capfd.readouterr().err.splitlines() if line.startswith("weft: exec: ")]
    assert [essence(r) for r in ran] == [essence(twin.text)], ran


def test_every_operator_is_tried():
    tried, files = {_library.problem(t)["op"] for t in SMALL}, {_library.problem(t)["op"] for t in bench.problems_of("operators")}
    assert tried == files == set(_twin.TABLE)


@pytest.mark.parametrize("text, other", [
    ("max_pool2d:fwd:f32:nchw:n1c2h8w8:k3s2ceil1", "ceil"), ("avg_pool2d:fwd:f32:nchw:n1c2h8w8:k3s2p1include_pad0", "include_pad"),
    ("clip2d:fwd:f32:nchw:n1c2h8w8:lo-1hi0.25", "hi"), ("cross_entropy2d:fwd:f32:nchw:n1c5h8w8:smooth0.3", "smooth"),
    ("batch_norm2d:fwd:f32:nchw:n1c2h8w8:train1eps0.3", "eps"), ("lrn2d:fwd:f32:nchw:n1c8h8w8:size5alpha0.5beta0.2", "beta"),
    ("dgmm:fwd:f32:dense:n1h6w6:side1", "side")])
def test_attributes_reach_both_sides(text, other, monkeypatch):
    """An attribute that one side loses is noticed: PyTorch's side is built with another value."""
    whole = _twin.build(text)
    assert _twin.error(whole)[0] <= _twin.error(whole)[1]
    make = _twin.Problem.__init__

    def spoiled(self, told, device):
        make(self, told, device)
        setattr(self, other, 1 - getattr(self, other))
    torch.manual_seed(3)
    right = _twin.build(text)
    torch.manual_seed(3)
    monkeypatch.setattr(_twin.Problem, "__init__", spoiled)
    right.peer = _twin.build(text).peer
    error, allowed = _twin.error(right)
    assert error > allowed


def test_asking_about_a_problem_changes_no_plan():
    """What runs is what runs without a benchmark: here PyTorch's convolution, which takes part only in an operator's own call."""
    def kernel(size: int) -> str:
        weft.functional.conv3d(torch.randn(1, 8, size, size, size), torch.randn(8, 1, 3, 3, 3), groups=8)
        return _library.kernels()
    unasked = kernel(11)
    _library.problem("conv3d:fwd:f32:ncdhw:n1c8d12h12w12:o8k3g8")
    assert kernel(12) == unasked == _twin.build("conv3d:fwd:f32:ncdhw:n1c8d13h13w13:o8k3g8").kernel


def test_another_pass_of_a_problem():
    """It keeps the math; what adds to a gradient goes where the pass has none."""
    sizes = "f32:nchw:n1c8h8w8:o8k3p1g8"
    assert _library.problem(f"conv2d:fwd:{sizes}:strict@cpu", "bwd_data")["text"] == f"conv2d:bwd_data:{sizes}:strict@cpu"
    assert _library.problem(f"conv2d:bwd_weights:{sizes}:acc1_1:strict@cpu", "fwd")["text"] == f"conv2d:fwd:{sizes}:strict@cpu"


def test_sparse_twin_is_dense():
    twin = _twin.build("sparse_conv2d:train:f32:nchw:n1c4h6w6:o4k3p1nnz20")
    assert twin.weft()[2].shape == (20,) and twin.peer()[2].shape == (4, 4, 3, 3) and "dense" in twin.note
    assert 0 < twin.flops <= 3 * 2 * 20 * 36   # of the kept weights alone: dense ones would take 144 in place of 20


@pytest.mark.parametrize("text, passes, why", [
    ("max_pool2d:fwd:f32:nchw:n1c2h8w8:k3p1+0", None, "uneven padding has no PyTorch call"),
    ("max_pool2d:fwd:f32:nchw:n1c2h8w8:k3index1", None, "an index that is not i64 has no PyTorch call"),
    ("partial_conv2d:fwd:f32:nchw:n2c4h9w8:o6k3p1+0mask1", None, "uneven padding has no PyTorch call"),
    ("avg_pool1d:fwd:f32:ncw:n1c2w8:k3divisor2", None, "a divisor in 1D has no PyTorch call"),
    ("sparse_conv2d:fwd:f32:nchw:n1c4h6w6:o4k3p1nnz20stretched1", None, "a matrix with stretched columns has no PyTorch call"),
    ("lstm:fwd:f32:dense:t5n3c4o6:l2train1drop0.5", None, "dropout: each side drops other elements"),
    ("cross_entropy2d:fwd:bf16,weights=f32:nchw:n1c4h6w6:weighted1", None, "a class weight of another type"),
    ("relu2d:fwd:f32:nchw:n1c2h8w8", "bwd_data", "which relu does not have"),
    ("relu2d:fwd:f32:nchw:n1c2h8w8", "sideways", "pass"),
    ("relu2d:fwd:f32:nchw:n1c2h8w8:strict", None, "math is 'strict', allowed through PyTorch: fast"),
    ("relu2d:bwd:f32:nchw:n1c2h8w8:acc1_1", None, "the epilogue acc has no PyTorch call"),
    ("relu2d:fwd:f32:nchw:n1c2h8", None, "column")])
def test_problems_without_a_twin(text, passes, why):
    with pytest.raises(ValueError, match=why):
        _twin.build(text, passes)


def test_row_of_any_operator(capsys, tmp_path):
    file = tmp_path / "rows.json"
    texts = ["lrn2d:train:f32:nchw:n1c8h6w6:size5", "gru:bwd:f32:dense:t3n2c4o4:train1"]
    assert main(["bench", *texts, "--json", str(file), "--threads", "1"]) == 0
    rows, shown = json.loads(file.read_text()), capsys.readouterr().out
    for row, text in zip(rows, texts, strict=True):
        assert row["problem"] == text + "@cpu" and row["kernel"] in shown
        assert {"peer", "peer_ms", "weft_ms", "ratio", "floor_ms", "share", "weft_bytes", "peer_bytes"} <= row.keys()
        assert row["floor_ms"] > 0 and row["share"] == row["floor_ms"] / row["weft_ms"] and row["weft_bytes"] > 0


@pytest.fixture
def timed(monkeypatch):
    """Rows on a faked clock: weft takes 2 ms, PyTorch 6, moving the bytes 1.5; weft holds 100 MB at most, PyTorch 300. Returns the clock."""
    clock, build, kept = FakeClock({}, 1.5), _twin.build, {}

    def known(*args):
        twin = build(*args)
        clock.ms.update({twin.weft: [9.0, 2.0], twin.peer: [6.0]})     # the first sample of weft's is an accident: medians do not see it
        kept.update({twin.weft: 100_000_000, twin.peer: 300_000_000})
        return twin
    monkeypatch.setattr(_twin, "build", known)
    monkeypatch.setattr(_clock, "of", lambda device: clock)
    monkeypatch.setattr(_clock, "peak", lambda run, device: kept[run])
    monkeypatch.setattr(_clock, "watch", lambda *_: lambda: "")
    return clock


def test_a_row_on_a_faked_clock(timed, tmp_path, capsys):
    """Which side is which, the direction of the ratio, and the order of the cells."""
    text, file = "tanh2d:fwd:f32:nchw:n2c4h8w8", tmp_path / "rows.json"
    assert main(["bench", text, "--json", str(file), "--threads", "1", "--rounds", "7"]) == 0
    [row], shown = json.loads(file.read_text()), capsys.readouterr().out
    assert (row["weft_ms"], row["peer_ms"], row["ratio"], row["rounds"]) == (2.0, 6.0, 3.0, 7)
    assert (row["weft_bytes"], row["peer_bytes"]) == (100_000_000, 300_000_000)
    assert (row["floor_ms"], row["share"], row["floor_is"], row["move_ms"]) == (1.5, 0.75, "bytes", 1.5)
    assert timed.moved == (512 * 4, 512 * 4) and row["bytes"] == 2 * 512 * 4 and timed.taken == 7 * 4
    head, line = (next(x for x in shown.splitlines() if x.startswith(word)) for word in ("problem", "tanh2d"))
    assert re.split(r"  +", head) == ["problem", "kernel", "peer ms", "weft ms", "ratio", "floor ms", "share"]
    assert line.split() == [f"{text}@cpu", row["kernel"], "6.000", "2.000", "3.00", "1.500", "0.75"]


def test_flops_can_be_the_floor(timed):
    timed.rate = 1.0
    row = bench.measure("relu1d:fwd:f32:ncw:n1c2w3", rounds=7)
    assert row["floor_is"] == "flops" and row["floor_ms"] == row["compute_ms"] == row["flops"] and row["share"] == row["flops"] / 2.0


def test_a_model_on_a_faked_clock(tiny, monkeypatch, tmp_path, capsys):
    """PyTorch takes 8 ms and 50 MB, weft 2 ms and 20 MB."""
    made, runs = _models.PASSES["forward"], []

    def forward(net, inputs):
        runs.append(made(net, inputs))
        return runs[-1]
    clock = FakeClock({}, 0.0)
    monkeypatch.setattr(clock, "sample", lambda run: 2.0 if run is runs[1] else 8.0)
    monkeypatch.setattr(_models, "PASSES", {"forward": forward})
    monkeypatch.setattr(_clock, "of", lambda device: clock)
    monkeypatch.setattr(_clock, "watch", lambda *_: lambda: "")
    monkeypatch.setattr(_clock, "peak", lambda run, device: 20_000_000 if run is runs[1] else 50_000_000)
    measure = _models.measure
    monkeypatch.setattr(_models, "measure", lambda *args: measure(*args, passes=["forward"]))
    file = tmp_path / "models.json"
    assert main(["bench", "--set", "models", "--models", "lenet5", "--rounds", "3", "--batch", "2", "--json", str(file)]) == 0
    [row], shown = json.loads(file.read_text()), capsys.readouterr().out
    assert (row["peer_ms"], row["weft_ms"], row["ratio"]) == (8.0, 2.0, 4.0) and (row["peer_bytes"], row["weft_bytes"]) == (50_000_000, 20_000_000)
    head, line = (next(x for x in shown.splitlines() if x.startswith(word)) for word in ("model", "lenet5"))
    assert re.split(r"  +", head) == ["model", "pass", "batch", "peer ms", "weft ms", "ratio", "peer MB", "weft MB", "error", "rounding"]
    assert line.split()[:8] == ["lenet5", "forward", "2", "8.00", "2.00", "4.00", "50.0", "20.0"]


def test_both_sides_take_turns(monkeypatch):
    """Interleaved, each round beginning with another side, so that what drifts touches both."""
    order, clock = [], FakeClock({}, 1.0)
    monkeypatch.setattr(clock, "sample", lambda run: order.append(run()) or 1.0)
    monkeypatch.setattr(_clock, "of", lambda device: clock)
    samples = _clock.interleaved([lambda: "a", lambda: "b"], torch.device("cpu"), 4, 1e9)
    assert order == ["a", "b", "b", "a", "a", "b", "b", "a"] and [len(s) for s in samples] == [4, 4]


def test_a_wrong_result_is_no_row(monkeypatch, capsys, tmp_path):
    build = _twin.build

    def wrong(*args):
        twin = build(*args)
        good = twin.weft
        twin.weft = lambda: tuple(1.01 * t for t in good())
        return twin
    monkeypatch.setattr(_twin, "build", wrong)
    file = tmp_path / "rows.json"
    assert main(["bench", "tanh1d:fwd:f32:ncw:n1c4w8", "--json", str(file)]) == 1
    assert "differ by" in capsys.readouterr().err and json.loads(file.read_text()) == []
    monkeypatch.setattr(_twin, "build", build)
    monkeypatch.setattr(_twin, "error", lambda twin: (1.1e-6, 1e-6))
    with pytest.raises(RuntimeError, match="differ by 1.10e-06 of the largest value, allowed: 1.00e-06"):
        bench.measure("tanh1d:fwd:f32:ncw:n1c4w8")


# ---------------------------------------------------------------------------------------------- the command

def test_wrong_usage_shows_the_usage_of_bench(capsys):
    with pytest.raises(SystemExit):
        main(["bench"])
    assert capsys.readouterr().err.startswith("usage: python -m weft bench ")


def test_disturbed_rows_are_marked(monkeypatch, capsys):
    monkeypatch.setattr(_clock, "watch", lambda *_: lambda: "other work takes 2.0 of 2 cores")
    assert bench.run(["relu1d:fwd:f32:ncw:n1c2w3"], rounds=1) == 0
    shown = capsys.readouterr().out
    assert re.search(r"^relu1d.* [\d.]+\? ", shown, re.M) and "warning: other work was on the cores during 1 of 1 rows, marked ?" in shown


@pytest.mark.parametrize("how", ["interrupt", "reader gone"])
def test_ends_without_a_traceback(how):
    """Ctrl-C, and `| head`."""
    rounds = "1001" if how == "interrupt" else "1"   # still timing its first row; or at the next row soon, where it meets the closed pipe
    command = subprocess.Popen([sys.executable, "-u", "-m", "weft", "bench", "--rounds", rounds, *["relu2d:fwd:f32:nchw:n8c64h112w112"] * 50],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
                               preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))   # a shell's background job ignores it
    assert command.stdout.readline().startswith("torch ")
    if how == "interrupt":
        command.send_signal(signal.SIGINT)
        code, said = 130, "\npython -m weft: stopped\n"
    else:
        command.stdout.close()
        command.stdout = None
        code, said = 141, ""
    err = command.communicate(timeout=900)[1]
    assert command.returncode == code and "Traceback" not in err and err.endswith(said), err


def test_set_runs_its_file(monkeypatch):
    seen = []
    monkeypatch.setattr(bench, "run", lambda problems, *rest, **more: seen.append(problems) or 0)
    assert main(["bench", "--set", "cpu"]) == 0
    lines = [line for line in (ROOT / "bench" / "cpu.txt").read_text().splitlines() if line and not line.startswith("#")]
    assert seen == [lines]
    monkeypatch.setattr(bench, "run_regret", lambda problems, *rest: seen.append((problems, rest)) or 0)
    assert main(["bench", "--set", "regret", "--rounds", "3", "--threads", "2", "--json", "rows.json"]) == main(["bench", "--set", "regret", "--device", "cpu"]) == 0
    regret = bench.problems_of("regret")
    assert seen[1] == (regret, (3, 2, "rows.json")) and seen[2][0] == [f"{p}@cpu" for p in regret]


def test_installed_without_the_tree(tmp_path):
    """The package alone, as a wheel leaves it: sets and models say where they are, problems run."""
    shutil.copytree(ROOT / "python" / "weft", tmp_path / "a" / "b" / "weft", ignore=shutil.ignore_patterns("__pycache__"))

    program = """if True:
        from weft.__main__ import main
        def code(*args):
            try: return main(args)
            except SystemExit as end: return end.code
        print([code("bench", "--set", "models"), code("bench", "--set", "cpu"), code("bench", "dgmm:fwd:f32:dense:n1h2w2:side1", "--rounds", "1")])"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=900, cwd=tmp_path,
                          env={**os.environ, "PYTHONPATH": str(tmp_path / "a" / "b"), "WEFT_LIBRARY": str(_library.path)})
    assert done.stdout.endswith("[2, 2, 0]\n"), done.stderr
    assert "the models are not here" in done.stderr and "--set: is 'cpu', allowed: models; other sets are files of weft's source tree" in done.stderr


# ---------------------------------------------------------------------------------------------- networks

@pytest.fixture
def tiny(monkeypatch):
    """The networks as small as in the tests of examples/models."""
    table = _models.load()
    monkeypatch.setattr(sys.modules["weft_example_models"], "MODELS", {
        name: e._replace(shape=e.small_shape, build=lambda e=e, **more: e.build(**{**e.small, **more})) for name, e in table.items()})


def test_every_model_has_rows(tiny, tmp_path, capsys):
    file = tmp_path / "models.json"
    assert main(["bench", "--set", "models", "--rounds", "1", "--batch", "2", "--threads", "1", "--json", str(file)]) == 0
    rows, shown = json.loads(file.read_text()), capsys.readouterr().out
    assert [(r["model"], r["pass"]) for r in rows] == [(name, p) for name in _models.load() for p in ("forward", "train")]
    for row in rows:
        assert row["batch"] == 2 and row["rounds"] >= 1 and row["peer_ms"] > 0 and row["weft_ms"] > 0 and row["weft_bytes"] > 0 and row["peer_bytes"] > 0
        assert 0 <= row["error"] <= 8 * max(row["rounding"], torch.finfo(torch.float32).eps) and row["model"] in shown
    assert any(r["error"] > 0 for r in rows), "nothing of weft ran"


def test_models_are_converted(tiny):
    net = _models.load()["mobilenet_v1"].build()
    other = _models.converted(net)
    assert any(type(m).__module__.startswith("weft.") for m in other.modules()) and not any(type(m).__module__.startswith("weft.") for m in net.modules())
    assert other[0].weight is not net[0].weight and torch.equal(other[0].weight, net[0].weight)


def test_a_wrong_model_fails(tiny, monkeypatch, capsys):
    def off(net):
        other = convert(net)
        with torch.no_grad():
            next(other.parameters()).mul_(1.01)
        return other
    convert = _models.converted
    monkeypatch.setattr(_models, "converted", off)
    assert main(["bench", "--set", "models", "--models", "lenet5", "--rounds", "1"]) == 1
    assert "the results differ by" in capsys.readouterr().err


def test_models_on_the_device(tiny, device):
    out = io.StringIO()
    assert bench.run_models("x3d_s", 2, device.type, 1, None, None, out) == 0
    assert "x3d_s" in out.getvalue()


def test_training_step_trains():
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Dropout(0.5))
    before = net[0].weight.detach().clone()
    _models.train(net, (torch.ones(1, 1, 5, 5),))()
    assert net.training and not torch.equal(before, net[0].weight)
    assert not _models.forward(net, (torch.ones(1, 1, 5, 5),))().requires_grad and not net.training


# ---------------------------------------------------------------------------------------------- clocks and memory

def test_peak_memory(device):
    """Sizes are multiples of what allocators round to."""
    x = torch.ones(1 << 18, device=device)
    mega = x.numel() * 4
    weights = torch.zeros(1, device=device)
    for run, most in ((lambda: x + 1, mega), (lambda: (x + 1) * 2, 2 * mega), (lambda: [x + 1, x + 2, x + 3], 3 * mega),
                      (lambda: ((x + 1).sum(), (x + 1).sum()), mega), (lambda: weights, 0)):
        assert most <= _clock.peak(run, device) <= most + (64 << 10)


def test_peak_memory_sees_weft(device):
    from weft import functional as W
    x, w = torch.ones(1, 8, 64, 64, device=device), torch.ones(8, 1, 3, 3, device=device)
    out = 8 * 64 * 64 * 4
    assert out <= _clock.peak(lambda: W.conv2d(x, w, padding=1, groups=8), device) < 2 * out


@pytest.mark.parametrize("others, threads, noticed", [(0.0, 2, False), (0.2, 2, False), (0.5, 2, True), (1.2, 1, False), (1.5, 1, True)])
def test_other_work_is_noticed(others, threads, noticed, monkeypatch):
    """Of two cores: what other programs used while a second went by, beyond the cores that are free anyway and a quarter."""
    clock = FakeTime(0)
    monkeypatch.setattr(_clock, "time", clock)
    monkeypatch.setattr(_clock.os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setattr(_clock, "_used", lambda cores: clock.now * others)
    torch.set_num_threads(threads)
    assert bool(_clock.busy(1.0)) == noticed
    look = _clock.watch(1.0)
    clock.sleep(3.0)
    said = look()
    assert said == (f"other work takes {others:.1f} of 2 cores: do not trust these times" if noticed else "")


def test_time_used_by_others_is_read(monkeypatch, tmp_path):
    """/proc/stat in hundredths: user, nice, system, idle, iowait, irq, softirq, steal. This process's own time is taken off."""
    stat = tmp_path / "stat"
    stat.write_text("cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 100 10 20 7000 60 1 2 3 0 0\ncpu1 200 0 0 0 0 0 0 0 0 0\ncpu2 9999 0 0 0 0 0 0 0 0 0\nintr 1\n")
    monkeypatch.setattr(_clock, "Path", lambda name: stat)
    monkeypatch.setattr(_clock.os, "sysconf", lambda name: 100)
    clock = FakeTime()
    clock.process_time = lambda: 1.0
    monkeypatch.setattr(_clock, "time", clock)
    assert _clock._used({0, 1}) == pytest.approx((136 + 200) / 100 - 1.0)


def test_roof(monkeypatch):
    """Twice 64 MB in the better of two ways to move them, and the rate of multiply-adds."""
    clock, half = FakeClock({}, 2.0, 5e8), 64 << 20
    monkeypatch.setattr(_clock, "of", lambda device: clock)
    assert _clock.roof(torch.device("cpu")) == (half, 5e8) and clock.moved == (half, half)


def test_the_first_run_of_a_side_warms_up():
    taken = {"a": iter([90.0, 1.0, 3.0]), "b": iter([5.0, 2.0, 2.0])}
    sides = {name: (lambda times, values=values: next(values)) for name, values in taken.items()}
    assert _clock.medians(sides, 2) == {"a": 2000.0, "b": 2000.0}
    assert _clock.medians({"a": lambda times: 7.0}, 2, seconds=0) == {"a": 7000.0}   # all the time there was


def test_rounds_that_are_taken_whatever_the_time():
    for least in (0, 2):
        taken = []
        _clock.medians({"a": lambda times, taken=taken: taken.append(times) or 1.0}, 5, seconds=0, least=least)
        assert len(taken) == 1 + least


def test_a_sample_is_what_the_run_took(monkeypatch):
    clock, cpu = FakeTime(0), _clock.Cpu()
    monkeypatch.setattr(_clock, "time", clock)
    assert cpu.sample(clock.work(0.003)) == pytest.approx(3.0)


def test_the_real_clock_runs(device):
    bandwidth, flops = _clock.roof(device)
    assert math.isfinite(bandwidth) and bandwidth > 0 and math.isfinite(flops) and flops > 0


def test_docstring_examples():
    assert all(">>>" in function.__doc__ for function in (bench.measure, bench.problems_of, bench.refusal, bench.run, bench.run_models))
    for module in (bench, _clock):
        result = doctest.testmod(module)
        assert result.attempted > 0 and result.failed == 0


def test_an_index_is_compared():
    twin = _twin.build("max_pool2d:fwd:f32,index=i64:nchw:n2c3h9w9:k3s2index1")
    for results in (twin.weft(), twin.peer()):
        assert [t.dtype for t in results] == [torch.float32, torch.int64]


# ---------------------------------------------------------------------------------------------- examples/mobilenet_benchmark.py

SCRIPT = str(ROOT / "examples" / "mobilenet_benchmark.py")


@pytest.fixture(scope="module")
def script():
    """The program as a module: it is run as a script from examples/, where it finds the models."""
    sys.path.insert(0, str(ROOT / "examples"))
    spec = importlib.util.spec_from_file_location("mobilenet_benchmark", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("options", [[], ["--memory-format", "channels_last"], ["--dtype", "bfloat16"], ["--dtype", "float64"]], ids=" ".join)
def test_mobilenet_benchmark(options, device, script, capsys):
    small = ["--batch", "2", "--size", "32", "--width", "0.25", "--iterations", "2", "--device", device.type]
    assert script.main([*small, *options]) == 0
    shown = capsys.readouterr().out
    assert "2x3x32x32" in shown and shown.count("images/s") == 2 and "\ntorch " in shown and "\nweft " in shown
    error = float(re.search(r"gradient: (\S+)", shown)[1])
    assert error < (1e-12 if "float64" in options else 0.2 if "bfloat16" in options else 1e-3)   # 28 layers of rounding, and ReLUs that flip


def test_mobilenet_benchmark_is_the_sources(script):
    args = script.parse(["--device", "cpu"])
    assert (script.BATCH["cuda"], args.size, args.width, args.dtype, args.memory_format) == (256, 224, 1.0, "float32", "contiguous")
    nets, x = script.build(script.parse(["--device", "cpu", "--batch", "1", "--size", "32"]))
    kinds = [[type(m).__name__ for m in net.modules()] for net in nets.values()]
    assert "BatchNorm2d" not in kinds[0] and kinds[0].count("Conv2d") == 27 and kinds[0].count("ReLU") == 27
    weights = [[p for p in net.parameters() if p.dim() == 4] for net in nets.values()]
    assert [w.shape[0] for w in weights[0][2::2]] == [64, 128, 128, 256, 256, 512, 512, 512, 512, 512, 512, 1024, 1024] and tuple(x.shape) == (1, 3, 32, 32)
    assert all(torch.equal(a, b) and a is not b for a, b in zip(*weights))
    assert any(type(m).__module__.startswith("weft") for m in nets["weft"].modules()) and not any(
        type(m).__module__.startswith("weft") for m in nets["torch"].modules())


@pytest.mark.parametrize("args, text", [
    (["--batch", "0"], "is 0, allowed: 1 or more"), (["--size", "x"], "--size: is x, allowed: 1 or more"),
    (["--width", "0"], "--width: is 0.0, allowed: more than 0, at most 4"),
    (["--dtype", "int8"], "invalid choice: 'int8'"), (["--memory-format", "nhwc"], "invalid choice: 'nhwc'"),
    pytest.param(["--device", "cuda"], "--device: is cuda, but this PyTorch has no CUDA device",
                 marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device"))])
def test_mobilenet_benchmark_refuses(args, text, script, capsys):
    with pytest.raises(SystemExit) as end:
        script.main(args)
    assert end.value.code == 2 and text in capsys.readouterr().err


def test_mobilenet_benchmark_as_a_script():
    done = subprocess.run([sys.executable, SCRIPT, "--batch", "1", "--size", "32", "--width", "0.25", "--iterations", "1", "--device", "cpu"],
                          capture_output=True, text=True, timeout=900,
                          env={**os.environ, "PYTHONPATH": str(ROOT / "python"), "WEFT_LIBRARY": str(_library.path)})
    assert done.returncode == 0 and "images/s" in done.stdout, done.stderr


# ---------------------------------------------------------------------------------------------- regret and records

class _Told:
    """A clock that says what it is told, by the call that it is asked to time."""

    def __init__(self, ms):
        self.ms, self.delegated = ms, {}

    def sample(self, run):
        self.delegated.setdefault(run, set()).add(weft.backends.delegate)
        return self.ms[run]


def test_regret_is_the_default_over_the_better_side(monkeypatch):
    default, torch_side, own_side = object(), object(), object()
    twin = _twin.Twin("p", torch.device("cpu"), torch.float32, default, torch_side, 1, 1, 1.0, 1, "torch")
    own = _twin.Twin("p", torch.device("cpu"), torch.float32, own_side, torch_side, 1, 1, 1.0, 1, "some_kernel")
    clock = _Told({default: 6.0, torch_side: 5.0, own_side: 2.0})
    monkeypatch.setattr(_clock, "of", lambda device: clock)
    monkeypatch.setattr(_twin, "build", lambda text: own if not weft.backends.delegate else twin)
    row = bench.measure_regret("p")
    assert (row["regret"], row["best"], row["default_ms"], row["torch_ms"], row["weft_ms"]) == (3.0, "weft", 6.0, 5.0, 2.0)
    assert clock.delegated == {default: {True}, torch_side: {True}, own_side: {False}}   # PyTorch is switched off for weft's own side alone
    out = io.StringIO()
    monkeypatch.setattr(_clock, "keep_pages", lambda: True)
    assert bench.run_regret(["p"], out=out) == 0
    assert " 3.00!" in out.getvalue() and "1 of 1 choices over" in out.getvalue()
    own.kernel = "conv_ref"          # the reference is never the default: it does not count as a side
    row = bench.measure_regret("p")
    assert (row["regret"], row["best"], row["weft_ms"]) == (1.2, "torch", None)


def test_what_fell_is_named():
    record = [{"problem": "a", "ratio": 2.0}, {"problem": "b", "ratio": 2.0}, {"problem": "gone", "ratio": 9.0}]
    rows = [{"problem": "a", "ratio": 1.79}, {"problem": "b", "ratio": 1.81}, {"problem": "new", "ratio": 0.1}]
    assert bench.fallen(rows, record) == ["fell: a was 2.00, is 1.79"]


def test_every_problem_of_the_sets_is_valid():
    for name in ("cpu", "regret", "operators"):
        for text in bench.problems_of(name):
            assert _library.problem(text.replace(":train:", ":fwd:"))["op"], text
