"""Shared by all PyTorch tests: the package is found in the tree, every test runs on the CPU and, where there is one, on a GPU."""
from __future__ import annotations

import os
import re
import sys
import warnings
import zlib
from contextlib import nullcontext
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(Path(__file__).resolve().parent)]
os.environ.setdefault("WEFT_RATES", "nominal")  # choices in tests do not depend on the clock
if "WEFT_LIBRARY" not in os.environ and "BUILD" in os.environ:
    os.environ["WEFT_LIBRARY"] = str((ROOT / os.environ["BUILD"] / "libweft_torch.so").resolve())

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
    import torch
import weft  # noqa: E402,F401

_no_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=_no_cuda)])
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


@pytest.fixture(autouse=True)
def _steady() -> None:
    torch.manual_seed(7)
    torch.set_num_threads(1)   # cases are tiny and other tests run beside; test_process.py compares numbers of threads
    if torch.cuda.is_available():
        torch._C._set_cudnn_allow_tf32(False)   # not by the flags: PyTorch's own samples freeze them
        torch._C._set_cublas_allow_tf32(False)
        torch._C._set_cudnn_deterministic(True)   # PyTorch's own kernels, where they run, shall give the same bits twice


# ---------------------------------------------------------------- a second time without PyTorch's kernels
# By default weft hands to PyTorch what PyTorch computes faster, and such a test compares PyTorch with itself. So every test of values runs again with
# that switched off: a fixed quarter of them, all with WEFT_SLOW=1 (make slow). A test about what is handed on is marked `delegates` and runs once, and so
# does one that has a fixture `side`, which runs it on either side.
# Those where convolutions come by run once more under weft.enable(): a tenth of them, or all.
_VALUES = re.compile(r"test_(torch_\w+|conv|gradients|autograd|layers|samples|module_samples)$")
_SLOW = os.environ.get("WEFT_SLOW", "0") not in ("", "0")
SHARE = {"any": 1, "own": 1 if _SLOW else 4, "enabled": 1 if _SLOW else 10}
# The long ones: a fixed part of them, 1 in so many.
THINNED = [(re.compile(r"test_\w*(compile|opcheck|dynamic|inductor|aot)\w*\["), 3),
           (re.compile(r"test_(types_without_kernels|traces|parity_between_layouts)\["), 4),
           (re.compile(r"test_(a_bad_file_is_measured_over|math_reaches_the_problem|parity_finds_a_flaw|model_trains_alike|gradcheck\w*|export|"
                       r"float|module|nothing_is_left)\["), 3),
           (re.compile(r"test_(layouts|same_bits_for_every_number_of_threads|forward_and_gradient|memory_does_not_grow|"
                       r"samples_of_pytorch|benchmark_mode_changes_no_value|definition|failing_calls_leave_nothing)\["), 2)]
_CONVOLUTIONS = re.compile(r"test_(conv|gradients|autograd|layers|samples|module_samples)$")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "delegates: about what weft hands to PyTorch")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    once = metafunc.definition.get_closest_marker("delegates") or "side" in metafunc.fixturenames
    if _VALUES.match(metafunc.module.__name__) and not once:
        metafunc.parametrize("_kernels", list(SHARE) if _CONVOLUTIONS.match(metafunc.module.__name__) else ["any", "own"], indirect=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of a test with parameters its share, by a fixed hash of their names, and never none of it."""
    kind = lambda item: getattr(item, "callspec", None) and item.callspec.params.get("_kernels") or "any"   # noqa: E731
    thinned = lambda item: 1 if _SLOW else next((share for names, share in THINNED if names.search(item.name)), 1)   # noqa: E731
    place = lambda item: zlib.crc32(item.nodeid.encode())   # noqa: E731
    test = lambda item: (item.nodeid.partition("[")[0], "cuda" in item.nodeid)   # noqa: E731
    only = os.environ.get("WEFT_TEST_DEVICE", "")   # make gpu-test: what CI has no device for
    items[:] = [i for i in items if only in i.nodeid]
    taken = {i for i in items if place(i) % (SHARE[kind(i)] * thinned(i)) == 0}
    have = {test(i) for i in taken}
    first = {test(i): i for i in sorted(items, key=lambda i: (kind(i) == "any", place(i)))}   # of each test the last in this order
    taken.update(i for of, i in first.items() if of not in have)
    items[:] = [i for i in items if i in taken]


@pytest.fixture(autouse=True)            # so that pytest does not drop it from tests with parameters of their own
def _kernels(request: pytest.FixtureRequest):   # type: ignore[no-untyped-def]
    kind = getattr(request, "param", "any")
    if kind == "any":
        yield
        return
    with weft.backends.flags(delegate=kind != "own"), weft.enabled() if kind == "enabled" else nullcontext():
        yield


def pytest_terminal_summary(terminalreporter, exitstatus, config) -> None:   # type: ignore[no-untyped-def]
    skipped = len(terminalreporter.stats.get("skipped", []))
    if skipped:
        terminalreporter.write_line(f"SKIPPED {skipped} tests: " + ", ".join(sorted({r.longrepr[2] for r in terminalreporter.stats["skipped"]})))
