"""What shows in a process: memory, threads, forks, loading, the command."""
from __future__ import annotations

import ctypes
import gc
import json
import multiprocessing
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

import fresh
import weft
import weft.functional as W
from cases import case, channels_last
from weft._bench import twin as _twin
from weft.__main__ import main

ROOT = Path(__file__).resolve().parents[2]


def _command(*args: str, **env: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python"), "WEFT_LIBRARY": weft.backends.library(), **env}
    return subprocess.run([sys.executable, *args], capture_output=True, text=True, env=environment, timeout=900)


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("grad", [False, True])
def test_memory_does_not_grow(grad):
    x, w, b = torch.randn(1, 4, 8, 8), torch.randn(4, 1, 3, 3), torch.randn(4)
    leaves = [t.requires_grad_(grad) for t in (x, w, b)]

    def run(times):
        for _ in range(times):
            y = W.conv2d(*leaves, padding=1, groups=4)
            if grad:
                torch.autograd.grad(y, leaves, torch.ones_like(y))
    run(1000)
    gc.collect()
    before = _resident()
    run(10000 if grad else 20000)
    gc.collect()
    assert _resident() - before < 1 << 20, "grew by more than a megabyte: 50 bytes a call"


@pytest.mark.parametrize("delegate", [True, False], ids=["torch", "own"])
def test_plan_cache_is_bounded(delegate):
    w = torch.randn(1, 1, 1)
    with weft.backends.flags(delegate=delegate):
        for n in range(1, 1200):
            W.conv1d(torch.zeros(1, 1, n), w)
        gc.collect()
        before = _resident()
        for n in range(1200, 3200):
            W.conv1d(torch.zeros(1, 1, n), w)
        gc.collect()
        assert _resident() - before < 4 << 20


@pytest.mark.parametrize("name", ["2d-depthwise", "2d-depthwise-wide", "2d-grouped", "3d-depthwise", "t2d-output-padding"])
@pytest.mark.parametrize("format", [lambda t: t, channels_last], ids=["first", "last"])
def test_same_bits_for_every_number_of_threads(name, format):
    """Of weft's own kernels: PyTorch's sums follow the threads."""
    c = case(name)
    x, w, b = (t.requires_grad_() for t in c.tensors(torch.device("cpu")))
    results = []
    for threads in (1, 2, 7, 2):
        torch.set_num_threads(threads)
        with weft.backends.flags(delegate=False):
            y = c.weft(format(x), w, b, **c.options)
            results.append([y, *torch.autograd.grad(y, (x, w, b), y.detach())])
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other))


def test_many_threads_at_once():
    c = case("2d-depthwise")
    x, w, b = (t.requires_grad_() for t in c.tensors(torch.device("cpu")))
    expected = c.weft(x, w, b, **c.options)
    wrong = []

    def work():
        for _ in range(50):
            y = c.weft(x, w, b, **c.options)
            torch.autograd.grad(y.sum(), (x, w, b))
            if not torch.equal(y, expected):
                wrong.append(1)
    workers = [threading.Thread(target=work) for _ in range(4)]
    for t in workers:
        t.start()
    for t in workers:
        t.join()
    assert not wrong


_FORK = """
import multiprocessing
import torch
import weft.functional as W

def run():
    return W.conv2d(torch.ones(1, 2, 5, 5), torch.ones(2, 1, 3, 3), groups=2).sum().item()

def child(queue):
    torch.set_num_threads(1)
    queue.put(run())

run()
context = multiprocessing.get_context("fork")
queue = context.Queue()
process = context.Process(target=child, args=(queue,))
process.start()
print(queue.get(timeout=900))
process.join(900)
"""


def test_after_fork():
    """In a process of its own: a heap as large as that of a whole run of tests may not be copied on a small machine."""
    done = fresh.run(_FORK)
    assert done.stdout.split() == [str(2.0 * 9 * 9)], done.stderr


def test_library_missing():
    done = _command("-c", "import weft", WEFT_LIBRARY="/nowhere/libweft_torch.so")
    assert done.returncode != 0 and "libweft_torch.so is not built; run make" in done.stderr and "/nowhere" in done.stderr


def test_a_failed_start_stays_failed(tmp_path):
    """A second copy of the library cannot register the operators again, however often it is asked."""
    copy = tmp_path / "libweft_torch.so"
    copy.write_bytes(Path(weft.backends.library()).read_bytes())
    second = ctypes.CDLL(str(copy))
    second.weft_torch_init.restype = ctypes.c_char_p
    for _ in range(2):
        assert b"registered already" in (second.weft_torch_init(None) or b"it worked")


def test_import_touches_no_cuda():
    done = _command("-c", "import weft, torch; weft.conv2d_depthwise(torch.ones(1,1,3,3), torch.ones(1,1,3,3)); "
                    "assert not torch.cuda.is_initialized(); print(open('/proc/self/maps').read().count('libcuda.so'))")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "0" or torch.version.cuda


def test_kernels_and_description():
    W.conv2d(torch.ones(1, 2, 5, 5), torch.ones(2, 1, 3, 3), groups=2)
    assert weft.backends.kernels()
    assert "isa:" in weft.backends.describe()
    assert weft.__version__ == weft._core.library.version()


PROBLEMS = [("conv2d:fwd:f32:nchw:n1c4h8w8:o4k3p1g4:bias+relu", "fwd"), ("conv2d:bwd_data:f32:nhwc:n1c4h8w8:o4k3p1g4", "bwd_data"),
            ("conv2d:bwd_weights:f32:nchw:n1c4h8w8:o4k3p1g4:bias", "bwd_weights"), ("conv1d:train:f64:ncw:n1c4w8:o4k3p1:bias+clip-0.5_0.5", "train"),
            ("conv2d:bwd_data:f32:nchw:n1c4h8w8:o4k3s2p1g2:bias+relu", "bwd_data"), ("conv3d:bwd:f32:ncdhw:n1c2d4h4w4:o2k3p1g2", "bwd"),
            ("conv2d:fwd:f32:nchw:n1c4h8w8:o4k3p1g4:clip-inf_0.5", "fwd"),
            ("conv2d:fwd:bf16,bias=f32:nchw,src=nchw/4:n1c4h8w8:o4k3p1+2x0g2:bias", "fwd")]


@pytest.mark.parametrize("text, passes", PROBLEMS)
def test_twins_agree(text, passes):
    twin = _twin.build(text)
    error, allowed = _twin.error(twin)
    assert error <= allowed and f":{passes}:" in twin.text and twin.kernel
    assert twin.read > 0 and twin.write > 0 and twin.flops > 0


@pytest.mark.parametrize("spoil", [lambda r: [torch.full_like(t, float("nan")) for t in r], lambda r: r[:1], lambda r: [t[..., :1] for t in r],
                                   lambda r: [t.masked_fill(t == t.max(), float("inf")) for t in r]], ids=["nan", "missing", "shape", "infinite"])
def test_twins_notice(spoil):
    twin = _twin.build("conv2d:train:f32:nchw:n1c4h8w8:o4k3p1g4")
    good, peer = twin.weft, twin.peer
    twin.weft = lambda: tuple(spoil(good()))
    assert _twin.error(twin)[0] == float("inf")
    twin.weft, twin.peer = good, lambda: tuple(spoil(peer()))
    assert _twin.error(twin)[0] == float("inf")


@pytest.mark.parametrize("text, why", [("conv2d:fwd:f32:nchw:n1c4h8w8:o4k3:relu+bias", "epilogue"),
                                       ("conv2d:fwd:f32:nchw:n1c4h8w8:o4k3:strict", "math")])
def test_problems_without_a_twin(text, why):
    with pytest.raises(ValueError, match=why):
        _twin.build(text)


def test_bytes_of_training():
    """Forward moves x and y, backward x, dy and dx: five tensors, and the small ones."""
    plane = 8 * 16 * 16 * 4
    twin = _twin.build("conv2d:fwd:f32:nchw:n1c8h16w16:o8k3p1g8", "train")
    small = 8 * 9 * 4
    assert twin.read + twin.write == 5 * plane + 3 * small


def test_bench_command(tmp_path):
    file = tmp_path / "rows.json"
    done = _command("-m", "weft", "bench", PROBLEMS[0][0], PROBLEMS[3][0], "--json", str(file), "--rounds", "7", "--threads", "1")
    assert done.returncode == 0, done.stderr
    rows = json.loads(file.read_text())
    assert len(rows) == 2
    for row in rows:
        assert {"problem", "kernel", "peer", "peer_ms", "weft_ms", "ratio", "floor_ms", "share"} <= row.keys()
        assert row["rounds"] >= 7 and row["weft_ms"] > 0 and row["kernel"] in done.stdout and row["pages"] == "kept"
    assert "pages kept" in done.stdout


@pytest.mark.parametrize("args, code, text", [
    (("bench", "conv2d:fwd:f32:nchw:n1c8h5w5:o8k3q1"), 2, "column"), (("bench",), 2, "PROBLEM"), (("frob",), 2, "invalid choice"), ((), 2, "usage"),
    (("--help",), 0, "bench"), (("bench", "--help"), 0, "--json"), (("info",), 0, "isa:"), (("bench", "x", "--rounds", "0"), 2, "a whole number from 1")])
def test_command(args, code, text, capsys):
    try:
        returned = main(list(args))
    except SystemExit as exit:
        returned = exit.code
    shown = capsys.readouterr()
    assert returned == code and text in shown.out + shown.err


def test_flags(capsys):
    assert main(["--cflags", "--libs"]) == 0
    shown = capsys.readouterr().out
    assert "-I" in shown and "-lweft" in shown
