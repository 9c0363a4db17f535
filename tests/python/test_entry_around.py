"""What is around a call of the C entries: every surrounding in which they must step aside, threads, a fork, and the memory that calls leave behind."""
from __future__ import annotations

import gc
import os
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import fresh
import weft.functional as W
from entry_calls import C, depthwise, needs_entries
from test_memory import heap
from weft._core import entry as _entry

SLOW = os.environ.get("WEFT_SLOW", "0") not in ("", "0")

FUNCTIONS = {"conv": lambda x, w: W.conv2d(x, w, None, 1, 1, 1, C), "relu": lambda x, w: W.relu(x), "softmax": lambda x, w: W.softmax(x, 1),
             "pool": lambda x, w: W.avg_pool2d(x, 2), "norm": lambda x, w: W.batch_norm(x, torch.zeros(C), torch.ones(C))}
some = pytest.mark.parametrize("name", FUNCTIONS)


def warm(name, grad=False):
    """A call that the entry knows."""
    x, w = depthwise(grad)
    for _ in range(3):
        y = FUNCTIONS[name](x, w)
    return FUNCTIONS[name], x, w, y.detach()


@some
def test_subclass(name):
    class Marked(torch.Tensor):
        pass
    call, x, w, want = warm(name)
    y = call(x.as_subclass(Marked), w)
    assert type(y) is Marked and torch.equal(y.as_subclass(torch.Tensor), want)


class CountsFunctions(TorchFunctionMode):
    seen = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.seen += 1
        return function(*args, **(kwargs or {}))


class CountsOperators(TorchDispatchMode):
    seen = 0
    __torch_dispatch__ = CountsFunctions.__torch_function__


@some
@pytest.mark.parametrize("mode", [CountsFunctions, CountsOperators])
def test_modes(name, mode):
    call, x, w, want = warm(name)
    with mode() as counts:
        torch.testing.assert_close(call(x, w), want)
    assert counts.seen


@some
def test_transforms(name):
    call, x, w, want = warm(name)
    torch.testing.assert_close(torch.vmap(lambda t: call(t.unsqueeze(0), w).squeeze(0))(x), want, rtol=1e-4, atol=1e-5)
    x, w = x.double(), w.double()
    if name == "norm":
        return   # its statistics are float32
    value, moved = torch.func.jvp(lambda t: call(t, w), (x,), (torch.ones_like(x),))
    torch.testing.assert_close(value, call(x, w))
    near = (call(x + 1e-6, w) - call(x - 1e-6, w)) / 2e-6
    assert (moved - near).abs().median() < 1e-6
    gradient = torch.func.grad(lambda t: call(t, w).sum())(x)
    leaf = x.clone().requires_grad_()
    torch.testing.assert_close(gradient, torch.autograd.grad(call(leaf, w).sum(), leaf)[0])


@some
def test_forward_mode_under_no_grad(name):
    call, x, w, _ = warm(name)
    with torch.no_grad(), torch.autograd.forward_ad.dual_level():
        y = call(torch.autograd.forward_ad.make_dual(x, torch.ones_like(x)), w)
        assert torch.autograd.forward_ad.unpack_dual(y).tangent is not None


@some
def test_autocast_and_inference_mode(name):
    call, x, w, want = warm(name)
    with torch.inference_mode():
        for _ in range(2):
            y = call(x, w)
            assert y.is_inference()
            torch.testing.assert_close(y, want)
            assert call(x.clone(), w).is_inference()
    with torch.autocast("cpu", torch.bfloat16):
        assert call(x, w).dtype == (torch.bfloat16 if name == "conv" else torch.float32)
    assert not call(x, w).is_inference()


@some
def test_tensors_that_are_not_plain(name):
    call, x, w, want = warm(name)
    negative = torch._neg_view(-x)
    assert negative.is_neg()
    torch.testing.assert_close(call(negative, w), want)
    with FakeTensorMode() as mode:
        y = call(mode.from_tensor(x), mode.from_tensor(w)) if name != "norm" else None
        assert name == "norm" or type(y).__name__ == "FakeTensor"
    assert call(x.to("meta"), w.to("meta")).is_meta if name != "norm" else True
    torch.testing.assert_close(call(x, w), want)


@some
def test_hooks(name):
    call, x, w, _ = warm(name, grad=True)
    plain = torch.autograd.grad(call(x, w).sum(), x)[0]
    seen = []
    y = call(x, w)
    y.register_hook(lambda g: g * 2)
    y.grad_fn.register_hook(lambda *a: seen.append(1))
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], 2 * plain)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: seen.append(2) or t, lambda t: t):
        torch.testing.assert_close(torch.autograd.grad(call(x, w).sum(), x)[0], plain)
    assert 1 in seen and 2 in seen


@pytest.mark.skipif(not _entry.available, reason="there are no entries")
def test_a_call_from_a_backward_is_plain():
    """On CUDA, PyTorch's backward runs the function of a checkpoint with keys excluded that no plain tensor has: the call must record the same graph
    as before, so the entry answers it."""
    x, = depthwise(True)[:1]
    arguments = x, 2, (), 0, False, True, None
    graphs = [type(_entry.front("avg_pool2d")(*arguments).grad_fn)]
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.Conjugate)):
        graphs.append(type(_entry.front("avg_pool2d")(*arguments).grad_fn))
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutogradCPU)):
        assert _entry.front("avg_pool2d")(*arguments) is NotImplemented
    assert graphs[0] is graphs[1]


@needs_entries
@pytest.mark.parametrize("call", [lambda x, w: W.conv2d(x, w, groups=16), lambda x, w: W.softmax(x, 1), lambda x, w: W.tanh(x)],
                         ids=["conv", "softmax", "tanh"])
@pytest.mark.parametrize("grad", [False, True], ids=["no_grad", "grad"])
def test_others_run_while_much_is_computed(call, grad):
    """The other thread has the GIL only where it is released: Python itself takes it from nobody meanwhile."""
    x, w, turns, ends = torch.randn(4, 16, 128, 128, requires_grad=grad), torch.ones(16, 1, 3, 3), [0], threading.Event()
    results = []   # PyTorch may release it where one is freed

    def count():
        while not ends.is_set():
            turns[0] += 1
            time.sleep(0)
    for _ in range(3):
        call(x, w)
    other, before = threading.Thread(target=count), sys.getswitchinterval()
    sys.setswitchinterval(1000)
    other.start()
    try:
        seen = turns[0]
        while turns[0] == seen:   # it has begun
            time.sleep(0.001)
        for _ in range(2000):
            results.clear()
            seen = turns[0]
            results.append(call(x, w))
            if turns[0] > seen:
                break
        assert turns[0] > seen
    finally:
        sys.setswitchinterval(before)
        ends.set()
        other.join()


@some
def test_threads(name):
    call, x, w, want = warm(name)
    wrong = []

    def work():
        for i in range(200):
            if not torch.equal(call(x, w), want):
                wrong.append(i)
            call(x[:, :, :9 + i % 7], w)   # other kinds of calls meanwhile
    workers = [threading.Thread(target=work) for _ in range(4)]
    for t in workers:
        t.start()
    for t in workers:
        t.join()
    assert not wrong


def run_python(code: str, **env: str) -> str:
    done = fresh.run(code, env=fresh.environment(**env))
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


FORK = """
import os
os.environ["CUDA_VISIBLE_DEVICES"] = ""   # with a GPU, PyTorch refuses gradients in a child of a process that computed some
import torch, weft.functional as W
torch.set_num_threads(1)
x, w = torch.ones(1, 2, 5, 5, requires_grad=True), torch.ones(2, 1, 3, 3)
def run():
    y = W.conv2d(x, w, groups=2)
    return (torch.autograd.grad(y.sum(), x)[0].sum() + y.sum() + W.relu(x).sum()).item()
first = run()
child = os.fork()
if not child:
    os._exit(0 if run() == first else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), run() == first)
"""


def test_fork():
    assert run_python(FORK) == "0 True"


@needs_entries
def test_without_entries():
    code = ("import torch, weft, weft.functional as W\nfrom weft._core import entry as _entry\ntorch.manual_seed(0)\nx, w = torch.randn(2, 4, 9, 9), torch.randn(4, 1, 3, 3)\n"
            "print(_entry.available, W.relu(W.conv2d(x, w, groups=4)).double().sum().item())")
    with_them, without = run_python(code).split(), run_python(code, WEFT_ENTRY="0").split()
    assert with_them[0] == "True" and without[0] == "False" and with_them[1] == without[1]


def test_what_was_refused_teaches_nothing():
    """A call that fails leaves no answer behind for the next one on the same tensor to fill in."""
    x = torch.randn(2, 4)
    for grad in (False, True):
        x.requires_grad_(grad)
        for _ in range(2):
            with pytest.raises(ValueError, match="min_val"):
                W.hardtanh(x, 3.0, 1.0)
            for ceiling in (6, torch.tensor(6.0), 6.0):
                torch.testing.assert_close(W.clipped_relu(x, ceiling), x.clamp(0, 6))
            with pytest.raises(IndexError):
                W.softmax(x, 9)
            for dtype in (torch.float64, torch.float32):
                torch.testing.assert_close(W.softmax(x, 1, dtype=dtype), torch.softmax(x.to(dtype), 1))
            with pytest.raises(RuntimeError):
                W.max_pool2d(x.view(1, 1, 2, 4), (2, 2, 2))
            assert W.max_pool2d(x.view(1, 1, 2, 4), 2, return_indices=True)[1].dtype == torch.int64


# ---------------------------------------------------------------------------------------------- memory

def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("grad", [False, True], ids=["no_grad", "grad"])
@some
def test_memory_does_not_grow(name, grad):
    call, x, w, _ = warm(name, grad)
    calls = (100_000 if grad else 1_000_000) if SLOW else 3000
    x, w = x[:1, :, :4, :4].detach().requires_grad_(grad), w
    wanted = (x, w) if name == "conv" else (x,)

    def run(times):
        for _ in range(times):
            y = call(x, w)
            if grad:
                torch.autograd.grad(y, wanted, torch.ones_like(y))
    run(1000)
    gc.collect()
    before = resident()
    run(calls)
    gc.collect()
    assert resident() - before < 1 << 20


@pytest.mark.parametrize("call", [lambda x: W.conv1d(x, torch.ones(1, 1, 1)), lambda x: W.softmax(x, 2)], ids=["conv", "softmax"])
def test_the_table_is_bounded(call):
    """Records, what they hold, and the plans that they run again: a table starts anew when it has 1024."""
    with torch.no_grad():
        for n in range(1, 5121):
            call(torch.zeros(1, 1, n))
        gc.collect()
        before = heap()
        for n in range(5121, 10241):
            call(torch.zeros(1, 1, n))
        gc.collect()
    assert heap() - before < 512 << 10


UNLEARNT = {   # by size: calls that weft's plan has computed, and of which no plan is kept to be run again
    "a tensor made on the way": lambda n: W.batch_norm(torch.zeros(2, 3, n + 1, dtype=torch.bfloat16), torch.zeros(3), torch.ones(3), torch.ones(3), None),
    "left to torch": lambda n: W.softmax(torch.zeros(1 + n % 16, 1 + n // 16, dtype=torch.float64), 1),
}


@pytest.mark.parametrize("name", UNLEARNT)
def test_plans_of_which_nothing_is_learnt(name):
    """The library keeps 1024 plans, and the entries as many answers before they start anew: of all others nothing is left. A plan has some KB."""
    with torch.no_grad():
        for n in range(2048):
            UNLEARNT[name](n)
        gc.collect()
        before = heap()
        for n in range(2048, 4096):
            UNLEARNT[name](n)
        gc.collect()
    assert heap() - before < 512 << 10


def test_plans_of_calls_with_a_gradient():
    """Two decisions for each kind, forward and backward; a table starts anew when it has 1024."""
    weight = torch.ones(1, 1, 1, requires_grad=True)

    def run(sizes):
        for n in sizes:
            y = W.conv1d(torch.zeros(1, 1, n), weight)
            y.sum().backward()
        gc.collect()
        return heap()
    before = run(range(1, 1537))
    assert run(range(1537, 3073)) - before < 512 << 10


def test_what_was_made_to_decide_is_given_back():
    """A gradient and indices that are as large as the result, for each kind of call."""
    def run(sizes):
        for n in sizes:
            W.max_pool2d(torch.zeros(1, 1, n, 256, requires_grad=True), 2)
        gc.collect()
        return heap()
    before = run(range(64, 128))
    assert run(range(128, 256)) - before < 3 << 20   # of indices alone there are 12 MB
