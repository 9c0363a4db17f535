"""weft.enable() beside everything in PyTorch that looks at, changes or repeats a convolution, and in processes and threads."""
from __future__ import annotations

import gc
import os
import platform
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import fresh
import weft
import weft.functional as W
from test_enable import SLOW, assert_same, enabled, taken
from weft import _enable
from weft._core import entry as _entry

ROOT = Path(__file__).resolve().parents[2]


def net() -> torch.nn.Module:
    """weft's fast kernels take the second layer, PyTorch keeps the others."""
    torch.manual_seed(5)
    return torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(8, 8, 3, padding=1, groups=8),
                               torch.nn.Conv2d(8, 4, 1), torch.nn.Flatten(1))


def image(n: int = 2) -> torch.Tensor:
    return torch.randn(n, 3, 12, 12, generator=torch.Generator().manual_seed(2))


def step(module, x) -> list[torch.Tensor]:
    """Result and gradients of one step."""
    module.zero_grad()
    y = module(x)
    y.square().sum().backward()
    return [y.detach(), *(p.grad for p in module.parameters())]


@pytest.fixture(params=["fast", "every"])
def on(request):
    _enable.seen(forget=True)
    with enabled(request.param):
        yield
        assert taken(), "weft took no part"


@pytest.fixture
def expected():
    with _enable.bypassed():
        return step(net(), image())


def same(got, expected):
    assert_same(expected, got, 4096, exactly=1)


# ------------------------------------------------------------------------------------------------------------ transforms and modes

def test_eager(expected, on):
    same(step(net(), image()), expected)


def test_channels_last(on):
    module = net().to(memory_format=torch.channels_last)
    x = image().contiguous(memory_format=torch.channels_last)
    with _enable.bypassed():
        off = step(module, x)
        off = [off[0], *(g.clone() for g in off[1:])]
    same(step(module, x), off)


def test_double_backward(on):
    w = torch.randn(4, 1, 3, 3, dtype=torch.float64, requires_grad=True)
    x = torch.randn(1, 4, 5, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x, w: F.conv2d(x, w, padding=1, groups=4), (x, w))
    F.conv2d(torch.randn(1, 8, 8, 8), torch.randn(8, 1, 3, 3), groups=8)   # of a type with fast kernels


def test_vmap_and_per_sample_gradients(on):
    module = net()
    parameters = dict(module.named_parameters())

    def loss(p, x):
        return torch.func.functional_call(module, p, (x[None],)).square().sum()
    by_one = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, image())
    module.zero_grad()
    module(image()).square().sum().backward()
    for name, p in module.named_parameters():
        torch.testing.assert_close(by_one[name].sum(0), p.grad, rtol=1e-4, atol=1e-4)


def test_forward_mode(on):
    w = torch.randn(8, 1, 3, 3)
    x, dx = torch.randn(1, 8, 6, 6), torch.randn(1, 8, 6, 6)
    y, dy = torch.func.jvp(lambda x: F.conv2d(x, w, padding=1, groups=8), (x,), (dx,))
    with _enable.bypassed():
        torch.testing.assert_close(dy, F.conv2d(dx, w, padding=1, groups=8))


def test_jacobian(on):
    w = torch.randn(2, 1, 3, 3)
    x = torch.randn(1, 2, 4, 4)
    F.conv2d(torch.randn(1, 8, 8, 8), torch.randn(8, 1, 3, 3), groups=8)
    j = torch.func.jacrev(lambda x: F.conv2d(x, w, groups=2))(x)
    torch.testing.assert_close(j, torch.func.jacfwd(lambda x: F.conv2d(x, w, groups=2))(x))


def test_autocast(on):
    module, x = net(), image()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = module(x)
        with _enable.bypassed():
            off = module(x)
    assert y.dtype == off.dtype == torch.bfloat16
    torch.testing.assert_close(y, off, rtol=0.03, atol=0.03)
    F.conv2d(torch.randn(1, 8, 8, 8), torch.randn(8, 1, 3, 3), groups=8)


def test_inference_mode(on):
    with torch.inference_mode():
        y = net()(image())
    assert y.is_inference()


def test_checkpoint(expected, on):
    from torch.utils.checkpoint import checkpoint
    module = net()
    y = checkpoint(module, image().requires_grad_(), use_reentrant=False)
    y.square().sum().backward()
    same([y.detach(), *(p.grad for p in module.parameters())], expected)


def test_compile(expected, on):
    module = net()
    fast = torch.compile(module, backend="aot_eager", fullgraph=True)
    y = fast(image())
    y.square().sum().backward()
    same([y.detach(), *(p.grad for p in module.parameters())], expected)


@pytest.mark.skipif(not SLOW, reason="Inductor compiles for a minute: WEFT_SLOW=1")
def test_inductor(expected, on):
    module = net()
    y = torch.compile(module, fullgraph=True)(image())
    y.square().sum().backward()
    same([y.detach(), *(p.grad for p in module.parameters())], expected)


def test_export_and_fx(expected, on):
    program = torch.export.export(net(), (image(),))
    assert [n.target for n in program.graph.nodes].count(torch.ops.aten.conv2d.default) == 3
    assert_same(expected[:1], [program.module()(image()).detach()], 4096)
    traced = torch.fx.symbolic_trace(net())
    assert_same(expected[:1], [traced(image()).detach()], 4096)


def test_script_and_trace(expected, on):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for made in (torch.jit.script(net()), torch.jit.trace(net(), image())):
            same(step(made, image()), expected)


def test_flops_are_counted(on):
    from torch.utils.flop_counter import FlopCounterMode
    counts = []
    for bypass in (True, False):
        with FlopCounterMode(display=False) as counter:
            if bypass:
                with _enable.bypassed():
                    step(net(), image())
            else:
                step(net(), image())
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0


def test_profiler(expected, on):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as record:
        same(step(net(), image()), expected)
    names = {e.key: e.count for e in record.key_averages()}
    assert names["aten::convolution"] == 3 and names["aten::convolution_backward"] == 3


def test_autograd_hooks(on):
    """A hook that runs convolutions of its own in the middle of backward, with weft switched off and on."""
    x, w = torch.randn(1, 8, 8, 8, requires_grad=True), torch.randn(8, 1, 3, 3, requires_grad=True)
    seen = []

    def hook(grad):
        with _enable.bypassed():
            seen.append(F.conv2d(grad, w.detach(), groups=8, padding=1))
        seen.append(F.conv2d(grad, w.detach(), groups=8, padding=1))
        return 2 * grad
    y = F.conv2d(x, w, groups=8, padding=1)
    y.register_hook(hook)
    got = torch.autograd.grad(y.sum(), (x, w))
    with _enable.bypassed():
        off = torch.autograd.grad(2 * F.conv2d(x, w, groups=8, padding=1).sum(), (x, w))
    torch.testing.assert_close(got, off)
    torch.testing.assert_close(seen[0], seen[1])


class Logged(torch.Tensor):
    """A subclass that sees every operator."""

    seen: list[str] = []

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, strides=inner.stride(), dtype=inner.dtype, requires_grad=inner.requires_grad)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        cls.seen.append(str(function))
        open = lambda t: t.inner if isinstance(t, Logged) else t
        result = function(*map(open, args), **(kwargs or {}))
        return Logged(result) if isinstance(result, torch.Tensor) else result


def test_tensor_subclass(on):
    x, w = torch.randn(1, 8, 8, 8), torch.randn(8, 1, 3, 3)
    Logged.seen.clear()
    y = F.conv2d(Logged(x), w, groups=8)
    assert isinstance(y, Logged) and "aten.convolution.default" in Logged.seen
    with _enable.bypassed():
        torch.testing.assert_close(y.inner, F.conv2d(x, w, groups=8))


def test_dispatch_mode(expected, on):
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(TorchDispatchMode):
        seen: list[str] = []

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            self.seen.append(str(function))
            return function(*args, **(kwargs or {}))
    with Mode() as mode:
        same(step(net(), image()), expected)
    assert mode.seen.count("aten.convolution.default") == 3 and mode.seen.count("aten.convolution_backward.default") == 3


def test_fake_tensors(on):
    from torch._subclasses.fake_tensor import FakeTensorMode
    F.conv2d(torch.randn(1, 8, 8, 8), torch.randn(8, 1, 3, 3), groups=8)
    with FakeTensorMode():
        assert F.conv2d(torch.empty(1, 8, 8, 8), torch.empty(8, 1, 3, 3), groups=8).shape == (1, 8, 6, 6)
    assert net().to("meta")(image().to("meta")).shape == (2, 4 * 144)


def test_optimizers_agree_over_steps(on):
    losses = []
    for bypass in (True, False):
        module = net()
        optimizer = torch.optim.SGD(module.parameters(), 1e-3)
        made = []
        for i in range(10):
            if bypass:
                with _enable.bypassed():
                    loss = _train(module, optimizer)
            else:
                loss = _train(module, optimizer)
            made.append(loss)
        losses.append(torch.tensor(made))
    torch.testing.assert_close(*losses, rtol=1e-4, atol=1e-4)


def _train(module, optimizer):
    optimizer.zero_grad()
    loss = module(image()).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


# ------------------------------------------------------------------------------------------------------------ threads and processes

def test_threads(expected, on):
    """Many at once, while another one switches weft off and on."""
    results, done = [], threading.Event()
    modules = [net() for _ in range(4)]

    def work(module):
        for _ in range(10):
            results.append([t.clone() for t in step(module, image())])

    def flip():
        while not done.is_set():
            with weft.enabled():
                pass
    threads = [threading.Thread(target=work, args=(module,)) for module in modules]
    other = threading.Thread(target=flip)
    other.start()
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    done.set()
    other.join()
    assert len(results) == 40
    for got in results:
        same(got, expected)


def in_a_thread():
    thread = threading.Thread(target=lambda: F.conv2d(torch.randn(1, 8, 8, 8), torch.randn(8, 1, 3, 3), groups=8))
    thread.start()
    thread.join()


def test_a_bypass_is_of_one_thread(on):
    _entry.bypass(True)
    before = taken()
    in_a_thread()
    _entry.bypass(False)
    assert taken() == before + 1


def test_what_is_measured_as_pytorch_is_so_on_every_thread(on):
    """On CUDA its backward runs on threads of its own."""
    before = taken()
    with _enable.bypassed():
        in_a_thread()
    assert taken() == before
    in_a_thread()
    assert taken() == before + 1


def test_a_marked_gradient_is_pytorchs_where_it_is_measured():
    """weft's own function has shown the problem to the seat, which then takes the gradient of PyTorch's, too."""
    x, w = torch.randn(2, 8, 16, 16, requires_grad=True), torch.randn(8, 1, 3, 3)
    W.conv2d(x, w, groups=8).sum().backward()
    taken_before = sum(s.calls for s in _enable.seen() if s.backward)
    with _enable.bypassed():
        F.conv2d(x, w, groups=8).sum().backward()
    assert sum(s.calls for s in _enable.seen() if s.backward) == taken_before


def test_a_mark_is_of_one_problem():
    """weft's own function shows its problem to the seat: gradients of the same problem are weft's then, and of no other."""
    x, w = torch.randn(2, 7, 19, 23, requires_grad=True), torch.randn(7, 1, 3, 3)
    image = torch.randn(4, 64, 56, 58, requires_grad=True)
    W.conv2d(x, w, padding=1, groups=7).sum().backward()
    W.avg_pool2d(image, 2).sum().backward()

    def came(y):
        before = sum(s.calls for s in _enable.seen() if s.backward)
        y.sum().backward()
        return sum(s.calls for s in _enable.seen() if s.backward) - before
    assert came(F.conv2d(x, w, padding=1, groups=7)) == came(F.avg_pool2d(image, 2)) == 1
    others = [F.conv2d(x, torch.randn(7, 1, 5, 5), padding=1, groups=7), F.conv2d(x, w, stride=2, padding=1, groups=7), F.conv2d(x, w, padding=2, groups=7),
              F.conv2d(x, w, padding=1, dilation=2, groups=7), F.conv_transpose2d(x, w, padding=1, groups=7),
              F.conv2d(x[:, :, 1:], w, padding=1, groups=7), F.conv2d(x.double(), w.double(), padding=1, groups=7), F.avg_pool2d(image, 2, ceil_mode=True),
              F.avg_pool2d(image, 2, divisor_override=3), F.avg_pool2d(image, 2, count_include_pad=False), F.avg_pool2d(image, (2, 1)), F.max_pool2d(image, 2)]
    assert [came(y) for y in others] == [0] * len(others)


@pytest.mark.skipif(torch.cuda.is_available(), reason="where there is a GPU, PyTorch refuses gradients in a child of a process that computed some")
def test_fork(expected, on):
    reader, writer = os.pipe()
    F.conv2d(torch.randn(1, 8, 8, 8), torch.randn(8, 1, 3, 3), groups=8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        child = os.fork()
    if child == 0:
        try:
            same(step(net(), image()), expected)
            weft.disable()
            same(step(net(), image()), expected)
            os.write(writer, b"done")
        finally:
            os._exit(0)
    os.close(writer)
    assert os.read(reader, 4) == b"done"
    os.waitpid(child, 0)
    os.close(reader)


def environment(**env: str) -> dict[str, str]:
    made = fresh.environment()
    return {**{k: v for k, v in made.items() if not k.startswith("WEFT_") or k == "WEFT_LIBRARY"}, **env}


def python(*args: str, **env: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-W", "ignore", *args], capture_output=True, text=True, env=environment(**env), timeout=900)


def program(code: str, *args: str, warn: str = "ignore", **env: str) -> subprocess.CompletedProcess:
    return fresh.run(code, *args, warn=warn, env=environment(**env))


STATE = "import torch, weft; print(weft._enable.is_enabled())"


def test_environment():
    assert program(STATE, WEFT_ENABLE="1").stdout == "True\n"
    assert program(STATE, WEFT_ENABLE="0").stdout == program(STATE).stdout == "False\n"
    wrong = program(STATE, warn="default", WEFT_ENABLE="yes")
    assert wrong.stdout == "False\n" and "WEFT_ENABLE is 'yes', allowed: 1 or 0" in wrong.stderr


def test_import_alone_registers_nothing():
    made = program("import torch, weft; print(torch._C._dispatch_has_kernel_for_dispatch_key('aten::convolution', 'CPU'))")
    assert made.stdout == "False\n"


def test_somebody_else_holds_the_key():
    made = program("""
import torch, weft
library = torch.library.Library("aten", "IMPL")
library.impl("convolution", lambda *args: torch.zeros(7), "CPU")
weft.enable("convolution")
print(weft._enable.is_enabled(), torch.nn.functional.conv1d(torch.ones(1, 1, 3), torch.ones(1, 1, 3)).shape)""", warn="default")
    assert made.stdout == "False torch.Size([7])\n" and "another library has put its own aten::convolution at CPU" in made.stderr


BOXED = """
import sys, torch, weft, torch.nn.functional as F
torch.manual_seed(0)
torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
x, w, b = (torch.randn(*shape, device=sys.argv[1]).requires_grad_() for shape in ((2, 8, 12, 12), (8, 1, 3, 3), (8,)))
def run():
    made = []
    for bias in (None, b):
        for y in (F.conv2d(x, w, bias, 2, 1, 1, 8), F.conv_transpose2d(x, w, bias, 2, 1, 1, 8), F.conv2d(x.double(), w.double(), groups=8),
                  F.max_pool2d(x, 3, 2, 1), F.avg_pool2d(x, (3, 2), 2, 1, True, False, 5), F.adaptive_avg_pool2d(x, (5, 3))):
            made += [y, *torch.autograd.grad(y.square().sum(), (x, w, b), allow_unused=True)]
    made += torch.autograd.grad(F.conv2d(x[:0], w, b, groups=8).sum(), (w, b))   # sums of nothing
    try:
        F.conv2d(x, w)
    except RuntimeError as error:
        made.append(str(error))
    return made
off = run()
with weft.backends.flags(delegate=False), weft.enabled():
    on, again = run(), run()
def same(s, t):
    if isinstance(s, str) and sys.argv[1] == "cuda":   # before 2.12 PyTorch does not hand its own words over
        return s == t or "PyTorch's own error shows after weft.disable()" in t
    return s == t if not isinstance(s, torch.Tensor) else torch.allclose(s, t, 1e-4, 1e-4) and s.stride() == t.stride()
def equal(s, t):
    return s is None or isinstance(s, str) or torch.equal(s, t)
different = [i for i, (s, t) in enumerate(zip(off, on)) if not same(s, t)]
assert not different, different
unstable = [i for i, (s, t) in enumerate(zip(on, again)) if not (equal if sys.argv[1] == "cpu" else same)(s, t)]   # PyTorch's own on CUDA are
assert not unstable, unstable
print(weft._core.library.lib.weft_torch_seat_unboxed(), sum(s.calls for s in weft._enable.seen() if s.kernel != "torch"))
library = torch.library.Library("aten", "IMPL")
library.impl("convolution", lambda *args: None, "XPU")   # PyTorch makes its table anew
with weft.enabled():
    assert all(map(same, off, run()))
"""


def test_boxed_and_unboxed_calls_are_the_same(device):
    """By PyTorch's public interface alone, and past it where its table is as expected."""
    unboxed, boxed = program(BOXED, str(device)), program(BOXED, str(device), WEFT_UNBOXED="0")
    assert unboxed.returncode == boxed.returncode == 0, unboxed.stderr + boxed.stderr
    assert boxed.stdout.split()[0] == "0" and boxed.stdout.split()[1] == unboxed.stdout.split()[1] != "0"
    known = platform.machine() == "x86_64" and sys.platform == "linux" and torch.__version__.startswith("2.13.")   # the PyTorch that weft is tested with
    assert unboxed.stdout.split()[0] == "14" or not known   # convolution, three kinds of pooling, two of softmax, batch norm, and their gradients


PROGRAM = """
import sys, subprocess, torch
print(sys.argv[1:], __name__, torch.nn.functional.conv2d(torch.ones(1, 8, 8, 8), torch.ones(8, 1, 3, 3), groups=8)[0, 0, 0, 0].item())
print(subprocess.run([sys.executable, "-W", "ignore", "-c", "import torch, sys; print('weft' in sys.modules and sys.modules['weft']._enable.is_enabled())"],
                     capture_output=True, text=True).stdout.strip())
print(subprocess.run([sys.executable, "-c", "import sys; print('torch' in sys.modules, sys.of_the_site)"], capture_output=True, text=True).stdout.strip())
sys.exit(int(sys.argv[2]))
"""


def test_run(tmp_path):
    """A script and a module as Python itself would run them, their children too, and what a sitecustomize does in these; the report names what ran."""
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.of_the_site = 'there'")
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    for target in ([str(script)], ["-m", "program"]):
        made = python("-m", "weft", "run", "--report", *target, "--report", "3", PYTHONPATH=f"{ROOT / 'python'}{os.pathsep}{tmp_path}")
        assert made.returncode == 3, made.stderr
        assert made.stdout == "['--report', '3'] __main__ 9.0\nTrue\nFalse there\n"
        assert "conv2d:fwd:f32:nchw:n1c8h8w8:o8k3g8:strict@cpu" in made.stderr and "1 calls and saved" in made.stderr


def test_report_of_a_run(monkeypatch):
    """What saved most first, then what was left to PyTorch; the sums, and whether it paid."""
    def seen(problem, kernel, calls, ns, torch_ns, backward=False):
        return _enable.Seen(problem, backward, calls, kernel, "PyTorch is faster" if kernel == "torch" else "", ns, torch_ns)
    rows = [seen("a", "torch", 10, 9e3, 5e3), seen("b", "small", 2, 1e6, 2e6), seen("c", "large", 3, 1e6, 2e9), seen("d", "torch", 20, 9e3, 5e3, True)]
    monkeypatch.setattr(_enable, "seen", lambda: rows)
    assert _enable.report().splitlines()[1:] == [
        "3        6.00 s     large; c",
        "2        2.0 ms     small; b",
        "10       -          torch: PyTorch is faster; a",
        "20       -          torch: PyTorch is faster; d",
        "weft took 5 of 35 calls and saved 6.00 s by estimate; the others cost 24.0 us more"]
    rows[1:3] = [seen("b", "small", 1, 9e3, 10e3)]
    assert _enable.report().splitlines()[-2:] == ["weft took 1 of 31 calls and saved 1.0 us by estimate; the others cost 24.0 us more",
                                               "weft.enable() does not pay for this program on this machine"]


def test_run_refuses(tmp_path):
    made = python("-m", "weft", "run", str(tmp_path / "missing.py"))
    assert made.returncode == 2 and "missing.py is not there, allowed: the path of a script, or -m MODULE" in made.stderr
    made = python("-m", "weft", "run")
    assert made.returncode == 2 and made.stderr.endswith("required: SCRIPT | MODULE\n") and "[ARGUMENT ...]" in made.stderr
    script = tmp_path / "raises.py"
    script.write_text("raise KeyError('here')")
    made = python("-m", "weft", "run", "--report", str(script))
    leaves = tmp_path / "leaves.py"
    leaves.write_text("import sys, beside; sys.exit(beside.said)")
    (tmp_path / "beside.py").write_text("said = 'not today'")
    left = python("-m", "weft", "run", str(leaves))
    assert left.returncode == 1 and left.stderr.endswith("not today\n")
    assert made.returncode == 1 and "KeyError: 'here'" in made.stderr and "of PyTorch came by in this process" in made.stderr


@pytest.mark.parametrize("wrapped, channels", [(False, 3), (True, 3), (False, 15)])
def test_neither_goes_where_pytorch_crashes(wrapped, channels):
    """PyTorch 2.13 corrupts the heap in this training step, alone."""
    made = program(f"""
import torch, weft
torch.set_num_threads(1)
torch.manual_seed(0)
conv = (weft.nn if {wrapped} else torch.nn).Conv2d({channels}, 48, 1, stride=2).to(memory_format=torch.channels_last)
x = torch.randn(2, {channels}, 96, 96)
plain = torch.nn.Linear({channels}, 48)
plain.weight.data, plain.bias.data = conv.weight.data.view(48, {channels}).clone(), conv.bias.data.clone()
plain(x[:, :, ::2, ::2].movedim(1, -1)).square().sum().backward()
expected = plain.weight.grad.view(48, {channels}, 1, 1)
if not {wrapped}:
    weft.enable()
for i in range(10):
    conv.zero_grad()
    y = conv(x.contiguous(memory_format=torch.channels_last if i else torch.contiguous_format).requires_grad_())
    y.square().sum().backward()
    assert conv.weight.grad.stride() == conv.weight.stride() and (not i or y.is_contiguous(memory_format=torch.channels_last))
    torch.testing.assert_close(conv.weight.grad, expected, rtol=1e-4, atol=1e-2)
print("done")""")
    assert made.returncode == 0 and made.stdout == "done\n", made.stderr[-500:]


# ------------------------------------------------------------------------------------------------------------ memory

def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("taken_", [False, True])
def test_calls_do_not_grow(taken_):
    """10^5 calls (20,000 that PyTorch runs), 10^6 with WEFT_SLOW: forward, and a tenth of it backward; refused ones as well."""
    x, w, b = torch.randn(1, 2, 4, 4), torch.randn(2, 1, 3, 3), torch.randn(2)
    leaves = [t.clone().requires_grad_() for t in (x, w, b)]

    def run(times):
        for i in range(times):
            F.conv2d(x, w, b, padding=1, groups=2)
            if i % 10 == 0:
                torch.autograd.grad(F.conv2d(*leaves, padding=1, groups=2).sum(), leaves)
        for _ in range(20):
            with pytest.raises(RuntimeError):
                F.conv2d(x, w, b[:1], groups=2)
    with enabled("fast") if taken_ else weft.enabled():
        if not taken_:
            weft.backends.set_flags(pin="torch")
        try:
            run(3000)
            gc.collect()
            before = resident()
            run(1000000 if SLOW else 100000 if taken_ else 20000)
            gc.collect()
            assert resident() - before < 1 << 20
        finally:
            weft.backends.set_flags(pin=None)
