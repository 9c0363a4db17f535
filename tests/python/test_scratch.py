"""Scratch of plans on the CPU: a block that stays with its thread, within bounds, and goes back."""
from __future__ import annotations

import threading

import torch

import fresh
import weft
import weft.functional as W
from weft._core import library as _library

kept = _library.lib.weft_torch_scratch
MB = 1 << 20


def conv(size, c=32):
    """By a kernel that takes scratch: more for larger images."""
    x, w = torch.randn(1, c, size, size), torch.randn(c, c, 3, 3)
    with weft.backends.flags(delegate=False, math="strict"):
        return W.conv2d(x, w, padding=1)


def test_a_block_is_kept_grows_and_goes_back():
    assert kept(True) == 0
    conv(12)
    small = kept(False)
    conv(48)
    large = kept(False)
    conv(12)
    assert 0 < small < large == kept(False) <= 64 * MB
    assert kept(True) == 0 == kept(False)
    conv(12)
    assert kept(False) == small
    weft.backends.keep_pages(False)
    assert kept(False) == 0


def test_each_thread_has_its_own():
    seen = []

    def run():
        first = kept(False)
        conv(24)
        seen.append((first, kept(False)))
    kept(True)
    for _ in range(2):
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    assert seen[0] == seen[1] and seen[0][0] == 0 < seen[0][1] and kept(False) == 0


def test_results_do_not_depend_on_what_is_left_in_it():
    want = [conv(n).shape for n in (40, 12)]
    torch.manual_seed(1)
    first = conv(12)
    conv(40)
    torch.manual_seed(1)
    assert torch.equal(conv(12), first) and want[1] == first.shape


def test_many_threads_keep_no_more_than_256_mb():
    made = fresh.run("""
import threading, torch, weft
import weft.functional as W
from weft._core import library
x, w = torch.randn(1, 512, 4, 4), torch.randn(512, 512, 3, 3)
sizes, wait = [], threading.Barrier(24)
weft.backends.set_flags(delegate=False)
def run():
    W.conv2d(x, w, padding=1)
    sizes.append(library.lib.weft_torch_scratch(False))
    wait.wait()
threads = [threading.Thread(target=run) for _ in range(24)]
[t.start() for t in threads], [t.join() for t in threads]
print(sum(sizes) <= 256 << 20, max(sizes) > 0, library.lib.weft_torch_scratch(False))
""")
    assert made.stdout.split() == ["True", "True", "0"], made.stderr
