"""weft.backends: settings as attributes, flags and context managers; pins; wisdom in files."""
from __future__ import annotations

import subprocess
import sys

import pytest
import torch

import fresh
import weft
import weft.functional as W
from weft._core import library as _library

SETTINGS = ("benchmark", "delegate", "deterministic", "fastest", "math", "measure_seconds", "verbose", "wisdom_only", "workspace_limit")


@pytest.fixture(autouse=True)
def _as_before():
    old = {name: getattr(weft.backends, name) for name in SETTINGS}
    yield
    weft.backends.set_flags(**old)
    weft.backends.pin(None)
    weft.backends.wisdom.forget()


def depthwise(size=24):
    return W.conv2d(torch.randn(2, 8, size, size), torch.randn(8, 1, 3, 3), padding=1, groups=8)


def test_defaults():
    assert {name: getattr(weft.backends, name) for name in SETTINGS} == {
        "benchmark": False, "delegate": True, "deterministic": False, "fastest": False, "math": None, "measure_seconds": None, "verbose": False,
        "wisdom_only": False, "workspace_limit": None}


@pytest.mark.parametrize("name, value", [("benchmark", True), ("delegate", False), ("deterministic", True), ("fastest", True), ("math", "strict"),
                                         ("verbose", True), ("verbose", "tune,error"), ("workspace_limit", 1 << 20),
                                         ("wisdom_only", True), ("measure_seconds", 0.5)])
def test_attributes_and_flags(name, value):
    old = getattr(weft.backends, name)
    setattr(weft.backends, name, value)
    assert getattr(weft.backends, name) == value
    assert weft.backends.set_flags(**{name: old}) == {name: value}
    with weft.backends.flags(**{name: value}):
        assert getattr(weft.backends, name) == value
    assert getattr(weft.backends, name) == old
    with pytest.raises(KeyError), weft.backends.flags(**{name: value}):
        raise KeyError
    assert getattr(weft.backends, name) == old


WRONG = {
    "benchmark": (lambda: setattr(weft.backends, "benchmark", 1), TypeError, "benchmark: is 1, allowed: True or False"),
    "flags-name": (lambda: weft.backends.set_flags(fast=True), TypeError, "fast: is no setting, allowed: benchmark"),
    "flags-second": (lambda: weft.backends.set_flags(benchmark=True, math="quick"), ValueError, "math: is 'quick', allowed: None, 'fast', 'strict' or 'tf32'"),
    "verbose": (lambda: setattr(weft.backends, "verbose", "loud"), ValueError, "verbose: has 'loud', allowed: True, False, or some of dispatch"),
    "wisdom-only": (lambda: setattr(weft.backends, "wisdom_only", 1), TypeError, "wisdom_only: is 1, allowed: True or False"),
    "seconds-kind": (lambda: setattr(weft.backends, "measure_seconds", "2"), TypeError, "measure_seconds: is '2', allowed: a number of seconds"),
    "seconds-range": (lambda: setattr(weft.backends, "measure_seconds", 0), ValueError, "measure_seconds: is 0, allowed: more than 0"),
    "limit-kind": (lambda: setattr(weft.backends, "workspace_limit", 1.5), TypeError, "workspace_limit: is 1.5, allowed: a number of bytes"),
    "limit-none": (lambda: setattr(weft.backends, "workspace_limit", 0), ValueError, "workspace_limit: is 0, allowed: 1 or more"),
    "limit-range": (lambda: setattr(weft.backends, "workspace_limit", -1), ValueError, "workspace_limit: is -1, allowed: 1 or more"),
    "pin-kind": (lambda: weft.backends.pin(3), TypeError, "pin: is 3, allowed: the name of a kernel"),
    "pin-name": (lambda: weft.backends.pin("conv_magic"), ValueError, "pin: is 'conv_magic', allowed: 'torch', or a kernel of weft"),
    "load-missing": (lambda: weft.backends.wisdom.load("/nowhere/weft.wisdom"), FileNotFoundError, "/nowhere/weft.wisdom"),
    "autosave-folder": (lambda: weft.backends.wisdom.autosave("/nowhere/weft.wisdom"), FileNotFoundError, "path: is '/nowhere/weft.wisdom', allowed: a file in a folder"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong(name):
    call, error, text = WRONG[name]
    with pytest.raises(error) as caught:
        call()
    assert text in str(caught.value)
    test_defaults()


def test_pin_holds_where_it_applies():
    with weft.backends.pin("conv_ref"):
        depthwise()
        assert weft.backends.kernels() == "conv_ref"
        with weft.backends.pin("torch"):
            depthwise()
            assert weft.backends.kernels() == "torch"
        depthwise()
        assert weft.backends.kernels() == "conv_ref"
    depthwise()
    assert "dwconv" in weft.backends.kernels()
    with weft.backends.pin("relu_ref"):   # of another operator
        depthwise()
        assert "dwconv" in weft.backends.kernels()


def test_benchmark_measures_and_remembers(tmp_path):
    assert weft.backends.wisdom.count() == 0
    with weft.backends.flags(benchmark=True):
        depthwise(20)
        ran = weft.backends.kernels()
    known = weft.backends.wisdom.count()
    assert known >= 1
    file = tmp_path / "wisdom"
    assert weft.backends.wisdom.save(file)["entries"] == known
    assert ran in file.read_text()
    weft.backends.wisdom.forget()
    assert weft.backends.wisdom.count() == 0
    assert weft.backends.wisdom.load(file) == {"entries": known, "other_machines": 0, "bad_lines": 0}
    assert weft.backends.wisdom.count() == known


def test_what_is_measured_is_of_the_threads(tmp_path):
    """Of PyTorch's, as many as there are at the time."""
    file = tmp_path / "wisdom"
    try:
        with weft.backends.flags(benchmark=True, measure_seconds=1e-3):
            for size, threads in ((25, 1), (29, 2), (30, 1)):
                torch.set_num_threads(threads)
                depthwise(size)
        weft.backends.wisdom.save(file)
        found = {line.split()[3].split(":")[4]: line.split()[2] for line in file.read_text().splitlines() if not line.startswith("#")}
        assert found == {"n2c8h25w25": "t1", "n2c8h29w29": "t2", "n2c8h30w30": "t1"}
    finally:
        torch.set_num_threads(1)


def test_what_writes_into_its_argument_is_not_measured():
    """It would be written more than once, and what is made up in its place may name no row."""
    x, state, weight = torch.randn(4, 1000), torch.zeros(2, 4, 3), torch.ones(4, 4)
    with weft.backends.flags(benchmark=True, measure_seconds=1e-3):
        for _ in range(2):
            want, y = x.relu(), x.clone()
            W.relu(y, out=y)
            assert torch.equal(y, want)
            W.hardtanh(y, -0.5, 0.5, out=y)
            W.softmax(y, 1, out=y)
            weft.causal_conv1d.causal_conv1d_update(torch.ones(2, 4), state, weight)
            weft.causal_conv1d.causal_conv1d_update(torch.ones(2, 4), state, weight, conv_state_indices=torch.tensor([1, 0], dtype=torch.int32))
        assert weft.backends.wisdom.count() == 0
        W.relu(x)
        assert weft.backends.wisdom.count() == 1


@pytest.mark.parametrize("name", ["softmax", "avg_pool2d", "max_pool2d"])
def test_wisdom_decides_tiny_calls(name, tmp_path):
    """Where a call takes longer than its computing weft's plan is expected to win; what was measured counts more."""
    x, file = torch.randn(1, 2, 4, 5), tmp_path / "wisdom"

    def ran():
        for _ in range(3):
            getattr(W, name)(x, 1 if name == "softmax" else 2)
        return weft.backends.kernels()
    with weft.backends.flags(benchmark=True, measure_seconds=1e-3):
        ran()
        weft.backends.wisdom.save(file)
        lines = [line.split() for line in file.read_text().splitlines() if not line.startswith("#")]
        file.write_text("\n".join(" ".join([*line[:4], "torch", "v1", "1", "0"]) for line in lines) + "\n")
        weft.backends.wisdom.forget()
        known = weft.backends.wisdom.load(file)["entries"]
        assert ran() == "torch" and weft.backends.wisdom.count() == known == 1


@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("channels, of_group, window", [(64, 1, 3), (64, 1, 5), (8, 1, 5), (32, 32, 3), (32, 4, 3), (32, 32, 1)])
def test_both_gradients_come_by_the_shorter_way(channels, of_group, window, last):
    """By estimate: one kernel for both, or one for each where these together take less time."""
    x, w = torch.randn(2, channels, 28, 28), torch.randn(channels, of_group, window, window, requires_grad=True)
    x = x.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format).requires_grad_()
    sizes = f"f32:{'nhwc' if last else 'nchw'}:n2c{channels}h28w28:o{channels}k{window}p{window // 2}g{channels // of_group}"
    with weft.backends.flags(delegate=False):
        y = W.conv2d(x, w, None, 1, window // 2, 1, channels // of_group)
        torch.autograd.grad(y, (x, w), torch.ones_like(y))
    both, data, weights = (_library.lib.weft_torch_own_ns(f"conv2d:{p}:{sizes}@cpu".encode()) for p in ("bwd", "bwd_data", "bwd_weights"))
    assert min(both, data, weights) > 0 and both > 20e3
    if abs(data + weights - both) > 0.1 * both:   # the estimate of a call knows the alignment of its tensors
        assert (" + " in weft.backends.kernels()) == (data + weights < both)


def test_wisdom_decides(tmp_path):
    """A file that says PyTorch is faster is believed; bad lines are counted."""
    with weft.backends.flags(benchmark=True):
        depthwise(28)
    file = tmp_path / "wisdom"
    weft.backends.wisdom.save(file)
    line = next(line for line in file.read_text().splitlines() if weft.backends.kernels() in line)
    start = line.split(weft.backends.kernels())[0]
    file.write_text(f"{start}torch v1 1 0\n" + "nonsense\n")
    weft.backends.wisdom.forget()
    assert weft.backends.wisdom.load(file)["bad_lines"] == 1
    depthwise(28)
    assert weft.backends.kernels() == "torch"
    with weft.backends.flags(delegate=False):
        depthwise(28)
        assert weft.backends.kernels() != "torch"


def test_wisdom_decides_what_was_decided_before(tmp_path):
    """Loading it opens what was chosen without it again, and forgetting it what was chosen with it."""
    x, w = torch.randn(2, 8, 26, 26), torch.randn(8, 1, 3, 3)

    def run():
        weft.functional.conv2d(x, w, padding=1, groups=8)
    with weft.backends.flags(benchmark=True):
        run()
    file, kernel = tmp_path / "wisdom", weft.backends.kernels()
    weft.backends.wisdom.save(file)
    start = next(line for line in file.read_text().splitlines() if kernel in line).split(kernel)[0]
    file.write_text(f"{start}torch v1 1 0\n")
    weft.backends.wisdom.forget()
    names = []
    for change in (lambda: None, lambda: weft.backends.wisdom.load(file), weft.backends.wisdom.forget):
        change()
        for _ in range(2):
            run()
        names.append(weft.backends.kernels() == "torch")
    assert names == [False, True, False]


def test_wisdom_only():
    with weft.backends.flags(wisdom_only=True), pytest.raises(RuntimeError, match="no wisdom for conv2d:fwd:f32:nchw:n2c8h22w22"):
        depthwise(22)
    with weft.backends.flags(benchmark=True, measure_seconds=0.05):
        depthwise(22)
    with weft.backends.flags(wisdom_only=True):
        depthwise(22)
    known = weft.backends.wisdom.count()
    with weft.backends.flags(wisdom_only=True, benchmark=True), pytest.raises(RuntimeError, match="no wisdom for conv2d:fwd:f32:nchw:n2c8h23w23"):
        depthwise(23)   # it is for those who want nothing measured, whatever else is set
    assert weft.backends.wisdom.count() == known


def test_the_time_of_a_measurement_is_limited(capfd):
    """Without any time the first candidate alone is measured, and with enough of it more."""
    lines = []
    for seconds in (1e-9, 1e6):
        weft.backends.wisdom.forget()
        with weft.backends.flags(benchmark=True, measure_seconds=seconds, verbose="tune"):
            depthwise(27)
        lines.append(capfd.readouterr().err.count("weft: tune: "))
    assert lines[0] == 1 < lines[1]


def test_benchmark_of_gradients():
    x, w = torch.randn(2, 8, 18, 18, requires_grad=True), torch.randn(8, 1, 3, 3, requires_grad=True)
    y = W.conv2d(x, w, padding=1, groups=8)
    expected = torch.autograd.grad(y, (x, w), torch.ones_like(y))
    with weft.backends.flags(benchmark=True):
        y = W.conv2d(x, w, padding=1, groups=8)
        torch.testing.assert_close(torch.autograd.grad(y, (x, w), torch.ones_like(y)), expected, rtol=1e-5, atol=1e-4)


def test_workspace_limit_and_fastest():
    """A kernel that needs more than the limit is not taken; the gradients are the same, by whichever kernels."""
    x, w = torch.randn(1, 64, 64, 64, requires_grad=True), torch.randn(64, 1, 3, 3, requires_grad=True)
    found, ran = [], []
    for settings in (dict(workspace_limit=1), dict(fastest=True), dict()):
        with weft.backends.flags(**settings, delegate=False):
            y = W.conv2d(x, w, padding=1, groups=64)
            forward = weft.backends.kernels()
            found.append((y, *torch.autograd.grad(y, (x, w), torch.ones_like(y))))
            ran.append((forward, weft.backends.kernels()))
    assert ran[0][1] != ran[2][1], f"the gradient wants no workspace, or the limit does nothing: {ran}"
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-4, atol=1e-4)


def child(code: str, *args: str) -> subprocess.CompletedProcess:
    done = fresh.run(code, *args)
    assert done.returncode == 0, done.stderr
    return done


CHILD = """
import sys, torch, weft
import weft.functional as W
weft.backends.wisdom.autosave(sys.argv[1])
if len(sys.argv) > 2:
    weft.backends.wisdom.autosave(None)
print(weft.backends.wisdom.count())
weft.backends.benchmark = True
W.conv2d(torch.randn(1, 4, 16, 16), torch.randn(4, 1, 3, 3), padding=1, groups=4)
"""


def test_autosave(tmp_path):
    counts = []
    for _ in range(2):
        counts.append(int(child(CHILD, str(tmp_path / "wisdom")).stdout))
    assert counts[0] == 0 and counts[1] >= 1
    assert int(child(CHILD, str(tmp_path / "other"), "no more").stdout) == 0 and not (tmp_path / "other").exists()


@pytest.mark.parametrize("math", ["strict", "tf32", None])
def test_math_reaches_the_problem(math):
    code = (f"import torch, weft, weft.functional as W; weft.backends.verbose, weft.backends.math = 'exec', {math!r}\n"
            "W.conv2d(torch.randn(2, 8, 32, 32), torch.randn(8, 1, 3, 3), groups=8)")
    line = next(line for line in child(code).stderr.splitlines() if "exec: conv2d:fwd:f32:nchw:n2c8h32w32:o8k3g8" in line)
    assert (f":{math}@cpu " if math else "o8k3g8@cpu ") in line


def test_verbose_speaks_of_weft_and_torch():
    code = ("import torch, weft, weft.functional as W; weft.backends.verbose = True\n"
            "with weft.backends.pin('torch'): W.conv2d(torch.randn(2, 32, 32, 32), torch.randn(32, 32, 3, 3))\n"
            "W.conv2d(torch.randn(2, 8, 32, 32), torch.randn(8, 1, 3, 3), groups=8)")
    done = child(code)
    assert "-> torch (pinned" in done.stderr and " torch OK " in done.stderr
    assert "dwconv" in done.stderr and "exec: conv2d:fwd:f32:nchw:n2c8h32w32" in done.stderr


_PAGES = """
import resource
import torch
import weft

BYTES = 48 << 20

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()

def left_behind():
    before = resident()
    x = torch.ones(BYTES // 4)
    del x
    return resident() - before

assert left_behind() < BYTES // 4
assert weft.backends.keep_pages(True)
before = resident()
for _ in range(60):
    left_behind()
kept = resident() - before
assert kept > BYTES // 2           # it stays with the process
assert kept < 30 * BYTES           # and serves the next tensors: an aligned block does not fit where one of its size was, only where two were
assert weft.backends.keep_pages(False)
assert resident() - before < BYTES // 4
"""


@pytest.mark.skipif(not sys.platform.startswith("linux") or not weft.backends.keep_pages(False), reason="the C allocator has no such switch")
def test_pages_are_kept_and_given_back():
    child(_PAGES)


def test_keep_pages_wants_a_truth_value():
    with pytest.raises(TypeError, match="keep: is 1, allowed: True or False"):
        weft.backends.keep_pages(1)


def test_settings_that_are_none():
    """A name that is misspelt, or that of a function, changes nothing and says so."""
    for name, value in (("benchmrk", True), ("pin", "torch"), ("kernels", "conv_ref")):
        with pytest.raises(AttributeError, match=f"{name}: is no setting of weft.backends, allowed: benchmark, "):
            setattr(weft.backends, name, value)
    assert callable(weft.backends.pin) and not hasattr(weft.backends, "benchmrk")
