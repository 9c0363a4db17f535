"""weft.enable(): PyTorch's own convolutions with weft's kernels under them give PyTorch's numbers, strides and errors.

`every` makes the seat take each problem there is, by the reference kernel, so that all of its ways are walked; `fast` lets weft's fast kernels
run wherever they apply; `free` is what a user gets.
"""
from __future__ import annotations

import io
import itertools
import os
from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F

import weft
import weft.bench
from cases import DTYPES, channels_last, tolerance
from samples import compare, draw, of_function, report
from weft import _enable

NAMES = [f"{kind}{rank}d" for kind in ("conv", "conv_transpose") for rank in (1, 2, 3)]
SLOW = os.environ.get("WEFT_SLOW", "0") not in ("", "0")


@contextmanager
def enabled(how):
    settings = {"free": {}, "fast": {"delegate": False}, "every": {"pin": "conv_ref"}}[how]
    with weft.backends.flags(**settings), weft.enabled():
        yield


def taken() -> int:
    return sum(s.calls for s in _enable.seen() if s.kernel != "torch")


def both(function, *leaves, how="every"):
    """Results and gradients without and with weft; whether weft ran."""
    sides = []
    for on in (False, True):
        own = [t.detach().clone(memory_format=torch.preserve_format).requires_grad_(t.requires_grad) for t in leaves]
        with enabled(how) if on else torch.enable_grad():
            _enable.seen(forget=True)
            y = function(*own)
            asked = [t for t in own if t.requires_grad]
            torch.manual_seed(3)
            sides.append([y, *torch.autograd.grad(y, asked, torch.randn_like(y))] if asked else [y])
            ran = taken()
    return *sides, ran


def steps(t):
    """Its strides, where there is more than one step."""
    return [s for n, s in zip(t.shape, t.stride()) if n > 1]


def assert_same(off, on, terms=512, exactly=2):
    """exactly: so many first ones in strides too, axes of one element included. Those of a weight gradient depend there on PyTorch's threads."""
    for i, (a, b) in enumerate(zip(off, on, strict=True)):
        assert a.shape == b.shape and a.dtype == b.dtype
        assert (a.stride() == b.stride()) if i < exactly else steps(a) == steps(b)
        size = max(a.detach().abs().max().item(), 1e-6)
        assert (a.double() - b.double()).abs().max().item() <= 2 * tolerance(a.dtype, terms) * size


# ------------------------------------------------------------------------------------------------------------------------ values

@pytest.mark.parametrize("how", ["free", "fast", "every"])
@pytest.mark.parametrize("dtype", [*DTYPES, torch.int64, torch.bool], ids=lambda d: str(d)[6:])
@pytest.mark.parametrize("name", NAMES)
def test_samples_of_pytorch(name, dtype, how):
    """On and off differ by rounding alone; what is refused is refused in the same words."""
    twin = getattr(F, name)

    def ours(*args, **kwargs):
        return twin(*args, **kwargs)

    made = of_function(f"nn.functional.{name}", name, torch.device("cpu"), dtype, 64 if SLOW else 5, wide=SLOW)
    failures = []
    for sample in made:
        with enabled(how):
            why = compare(ours, _outside(twin), sample, ("input", "weight"))
        if why:
            failures.append(f"  {name}({sample}): {why}")
    report(failures, len(made))


def _outside(function):
    """The function and its gradient with weft off."""
    class Off(torch.autograd.Function):
        @staticmethod
        def forward(ctx, call, *tensors):
            with torch.enable_grad(), _enable.bypassed():
                ctx.leaves = [t.detach().requires_grad_(t.requires_grad) for t in tensors]
                ctx.result = call(*ctx.leaves)
            return ctx.result.detach()

        @staticmethod
        def backward(ctx, grad):
            leaves = [t for t in ctx.leaves if t.requires_grad]
            with _enable.bypassed():
                grads = iter(torch.autograd.grad(ctx.result, leaves, grad))
            return None, *(next(grads) if t.requires_grad else None for t in ctx.leaves)

    def call(*args, **kwargs):
        at = [i for i, a in enumerate(args) if isinstance(a, torch.Tensor)]
        named = [k for k, a in kwargs.items() if isinstance(a, torch.Tensor)]

        def inner(*tensors):
            full, words = list(args), dict(kwargs)
            for place, t in zip([*at, *named], tensors):
                (words if isinstance(place, str) else full)[place] = t
            return function(*full, **words)
        tensors = [args[i] for i in at] + [kwargs[k] for k in named]
        if not any(t.requires_grad for t in tensors):
            with _enable.bypassed():
                return inner(*tensors)
        return Off.apply(inner, *tensors)
    return call


@pytest.mark.parametrize("name", NAMES)
def test_complex(name):
    """PyTorch makes them of real convolutions, which weft may take; their differences cancel, so the largest value is the scale."""
    made = of_function(f"nn.functional.{name}", name, torch.device("cpu"), torch.complex64, 12)
    for sample in made:
        off = getattr(F, name)(*sample.args, **sample.kwargs)
        with enabled("every"):
            on = getattr(F, name)(*sample.args, **sample.kwargs)
        assert off.stride() == on.stride() and (on - off).abs().max() <= 2e-6 * off.abs().max()


def formats(t):
    made = [t.contiguous()]
    if t.dim() > 3:
        made.append(channels_last(t.contiguous()))
    made += [t.transpose(-1, -2).contiguous().transpose(-1, -2), t.repeat(1, 2, *[1] * (t.dim() - 2))[:, ::2], t[:1, :1].expand_as(t)]
    return made


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d)[6:])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_strides_are_those_of_pytorch(rank, dtype):
    """Of results and gradients, exactly, whatever the strides of input, weight and gradient; in many of these cases weft runs."""
    ran = total = 0
    choices = itertools.product((1, 6), (1, 3), (1, 2), (1, 3), (False, True), (1, 5), range(5), range(5), range(3))
    for groups, k, s, n, transposed, size, fx, fw, fy in draw(list(choices), 400 if SLOW else 60):
        shape = (6, 6 // groups, *[k] * rank)
        x, w = torch.randn(n, 6, *[size + 2] * rank).to(dtype), torch.randn(shape).to(dtype)
        x, w = formats(x)[fx % len(formats(x))], formats(w)[fw % len(formats(w))]
        args = ([s] * rank, [0] * rank, [1] * rank, transposed, [0] * rank, groups)
        if k == 1 and s == 2:
            continue   # test_neither_goes_where_pytorch_crashes
        y = torch.ops.aten.convolution(x, w, None, *args)
        dy = formats(torch.randn(y.shape).to(dtype))[(0, 1, 4)[fy] % len(formats(y))]
        off = [y, *torch.ops.aten.convolution_backward(dy, x, w, [6], *args, [True, True, True])]
        with enabled("every"):
            _enable.seen(forget=True)
            on = [torch.ops.aten.convolution(x, w, None, *args), *torch.ops.aten.convolution_backward(dy, x, w, [6], *args, [True, True, True])]
            ran += taken()
            total += 2
        assert_same(off, on, 2048)
    assert ran > total / 12


@pytest.mark.parametrize("mask", list(itertools.product([True, False], repeat=3))[:-1], ids=lambda m: "".join("01"[b] for b in m))
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("how", ["every", "fast"])
def test_each_set_of_gradients(mask, transposed, how):
    """PyTorch may give more than was asked for; weft gives None there."""
    x, w, dy = torch.randn(2, 4, 9, 9), torch.randn(4, 1, 3, 3), torch.randn(2, 4, 9, 9)
    args = ([1, 1], [1, 1], [1, 1], transposed, [0, 0], 4, list(mask))
    off = torch.ops.aten.convolution_backward(dy, x, w, [4], *args)
    with enabled(how):
        on = torch.ops.aten.convolution_backward(dy, x, w, [4], *args)
    assert all(t is not None for t, asked in zip(on, mask) if asked)
    assert_same([t for t, asked in zip(off, mask) if asked], [t for t, asked in zip(on, mask) if asked])


@pytest.mark.parametrize("mask", [(True, False, False), (False, True, False), (True, True, True)], ids=lambda m: "".join("01"[b] for b in m))
def test_gradients_of_a_volume_are_taken(mask):
    """PyTorch's results, those that it was asked for, show whether it keeps to channels-last."""
    x, w, dy = (channels_last(torch.randn(s)) for s in ((2, 4, 5, 6, 7), (4, 1, 3, 3, 3), (2, 4, 5, 6, 7)))
    args = ([1] * 3, [1] * 3, [1] * 3, False, [0] * 3, 4, list(mask))
    off = torch.ops.aten.convolution_backward(dy, x, w, [4], *args)
    with enabled("every"):
        _enable.seen(forget=True)
        on = torch.ops.aten.convolution_backward(dy, x, w, [4], *args)
        assert taken() == 1, _enable.seen()
    assert_same([t for t, asked in zip(off, mask) if asked], [t for t, asked in zip(on, mask) if asked])


@pytest.mark.parametrize("mask", [(True, False, False), (False, True, False), (False, True, True), (True, True, True)], ids=lambda m: "".join("01"[b] for b in m))
def test_each_gradient_in_the_format_that_pytorch_gives_it(device, mask):
    """Of one volume that lies channels-last PyTorch's gradient of the data is channels-first on the CPU, where that of the weights is read from the data as
    it lies."""
    sizes = ((1, 4, 5, 6, 7), (4, 1, 3, 3, 3), (1, 4, 5, 6, 7)) if device.type == "cpu" else ((2, 8, 6, 7), (8, 2, 3, 3), (2, 8, 6, 7))
    x, w, dy = (torch.randn(s, device=device) for s in sizes)
    x, dy, rank = channels_last(x), channels_last(dy), len(sizes[0]) - 2
    args = ([1] * rank, [1] * rank, [1] * rank, False, [0] * rank, 4, list(mask))
    off = torch.ops.aten.convolution_backward(dy, x, w, [sizes[1][0]], *args)
    with enabled("every" if device.type == "cpu" else "fast"):
        _enable.seen(forget=True)
        on = torch.ops.aten.convolution_backward(dy, x, w, [sizes[1][0]], *args)
        assert taken() == 1 or (device.type == "cpu" and mask[0]), _enable.seen()
    assert_same([t for t, asked in zip(off, mask) if asked], [t for t, asked in zip(on, mask) if asked])


@pytest.mark.parametrize("offset", [1, 2, 3])
def test_views_off_their_alignment(offset):
    x = torch.randn(2 * 8 * 100 + offset)[offset:].view(2, 8, 10, 10).requires_grad_()
    w = torch.randn(8 * 9 + offset)[offset:].view(8, 1, 3, 3).requires_grad_()
    for how in ("every", "fast"):
        with enabled(how):
            _enable.seen(forget=True)
            F.conv2d(x.detach().clone(), w.detach().clone(), padding=1, groups=8)   # what is decided for aligned data is not for these
            y = F.conv2d(x, w, padding=1, groups=8)
            assert taken() == 2, _enable.seen()
            on = [y, *torch.autograd.grad(y.square().sum(), (x, w))]
        y = F.conv2d(x, w, padding=1, groups=8)
        assert_same([y, *torch.autograd.grad(y.square().sum(), (x, w))], on)


@pytest.mark.parametrize("how", ["every", "fast"])
@pytest.mark.parametrize("name", NAMES)
def test_a_bias_with_gaps(name, how):
    """Every second of its values, beside data and weights that lie as they should."""
    rank = int(name[-2])
    x, w, b = (torch.randn(s, requires_grad=True) for s in ((2, 6, *[9] * rank), (6, 1, *[3] * rank), (12,)))
    off, on, ran = both(lambda x, w, b: getattr(F, name)(x, w, b[::2], 1, 1, groups=6), x, w, b, how=how)
    assert_same(off, on)
    assert ran


SPARE = [   # stride, padding, output_padding, dilation: of one axis and of several
    (1, 2, 2, 3), (2, 3, 2, 3), (2, 1, 1, 1), (1, 3, 1, 2), ((1, 2), (3, 4), (2, 3), (3, 4)), ((2, 1), (1, 2), (1, 1), (1, 2)), ((1, 2), (0, 3), (0, 2), (1, 3)),
]


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_output_padding_of_a_stride_and_more(rank, grad):
    """It is taken off the padding where there is as much: the result has PyTorch's size and values, and so have the gradients."""
    ran = 0
    for settings in SPARE:
        settings = [s if isinstance(s, int) else (*s, s[0])[:rank] for s in settings]
        stride, padding, extra, dilation = settings
        x, w = (torch.randn(s, requires_grad=grad) for s in ((2, 4, *range(6, 6 + rank)), (4, 2, *[3] * rank)))
        for how in ("every", "fast"):
            off, on, taken_ = both(lambda x, w: getattr(F, f"conv_transpose{rank}d")(x, w, None, stride, padding, extra, 2, dilation), x, w, how=how)
            assert_same(off, on)
            ran += taken_ if how == "every" else 0
    assert ran == len(SPARE) * (2 if grad else 1)


@pytest.mark.parametrize("size", [(3, 1, 1, 1), (1, 1, 1, 1), (3, 4, 1, 1), (1, 4, 1, 1), (3, 1, 5, 1), (3, 1, 1, 5), (1, 1, 5, 5)], ids=str)
def test_formats_that_sizes_of_one_leave_open(size):
    """Whether a tensor of one channel or of one pixel counts as channels-last is PyTorch's rule, which its results show."""
    channels = size[1]
    for last in (False, True):
        x = torch.randn(size)
        x = x.to(memory_format=torch.channels_last) if last else x
        off, on, ran = both(lambda x, w: F.conv2d(x, w, padding=1, groups=channels), x, torch.randn(4 * channels, 1, 3, 3))
        assert_same(off, on)
        assert ran


def test_conjugate_and_negative_views():
    z = torch.randn(1, 4, 6, 6, dtype=torch.complex64)
    w = torch.randn(4, 1, 3, 3)
    for x in (z.conj().imag, torch._neg_view(torch.randn(1, 4, 6, 6)), z.real):
        off, on, _ = both(lambda x, w: F.conv2d(x, w, groups=4), x, w)
        assert_same(off, on)
    off, on, _ = both(lambda x, w: F.conv2d(x, w, groups=4), z.conj(), w.to(torch.complex64))
    torch.testing.assert_close(on, off)


def test_empty_and_unbatched():
    for shape in ((0, 4, 6, 6), (4, 6, 6)):
        off, on, _ = both(lambda x, w, b: F.conv2d(x, w, b, groups=4), torch.randn(shape, requires_grad=True),
                          torch.randn(4, 1, 3, 3, requires_grad=True), torch.randn(4, requires_grad=True))
        assert [t.shape for t in off] == [t.shape for t in on]


def test_numbers_are_weft_own_from_the_first_call_on():
    x, w = torch.randn(2, 8, 20, 20), torch.randn(8, 1, 3, 3)
    with enabled("fast"):
        results = [F.conv2d(x, w, padding=1, groups=8) for _ in range(3)]
    assert taken() and all(torch.equal(results[0], r) for r in results)
    with weft.backends.flags(delegate=False, math="strict"):
        assert torch.equal(results[0], weft.functional.conv2d(x, w, padding=1, groups=8))


# ------------------------------------------------------------------------------------------------------------------------ errors

WRONG = {
    "type": lambda x, w: F.conv2d(x, w.double()), "bool": lambda x, w: F.conv2d(x.bool(), w.bool()), "groups": lambda x, w: F.conv2d(x, w, groups=3),
    "padding": lambda x, w: F.conv2d(x, w, padding=-1), "stride": lambda x, w: F.conv2d(x, w, stride=0), "channels": lambda x, w: F.conv2d(x, w[:, :3]),
    "window": lambda x, w: F.conv2d(x, torch.randn(4, 4, 30, 3)), "bias": lambda x, w: F.conv2d(x, w, torch.randn(5)),
    "dilation": lambda x, w: F.conv2d(x, w, dilation=0), "list": lambda x, w: torch.conv2d(x, w, stride=(1, 2, 3)),
    "long list": lambda x, w: torch.conv2d(x, w, stride=(1,) * 7), "rank": lambda x, w: torch.ops.aten.convolution(x, w[0], None, [1], [0], [1], False, [0], 1),
    "gradient": lambda x, w: torch.ops.aten.convolution_backward(torch.randn(1, 4, 5, 5), x, w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True] * 3),
    "output padding": lambda x, w: F.conv_transpose2d(x, w, output_padding=5),
    "output padding inside": lambda x, w: F.conv_transpose2d(x, w, padding=2, output_padding=1), "device": lambda x, w: torch.ops.aten.convolution_backward(
        torch.randn(1, 4, 6, 6), x, w.double(), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, True, False]),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("how", ["free", "every"])
def test_errors_are_those_of_pytorch(name, how):
    x, w = torch.randn(1, 4, 8, 8), torch.randn(4, 4, 3, 3)
    with pytest.raises(Exception) as off:
        WRONG[name](x, w)
    for _ in range(2):
        with enabled(how), pytest.raises(Exception) as on:
            WRONG[name](x, w)
        assert type(on.value) is type(off.value)
        if hasattr(torch, "_C") and torch.__version__ >= "2.13":
            assert str(on.value) == str(off.value)


def test_wrong_arguments_of_enable():
    with pytest.raises(ValueError, match="operators: has 'gelu', allowed: 'convolution'"):
        weft.enable("gelu")
    with pytest.raises(ValueError, match="math: is 'tf32', allowed"):
        weft.enable(math="tf32")
    with pytest.raises(ValueError, match="device: is 'meta', allowed"):
        weft.enable(device="meta")
    with pytest.raises((RuntimeError, AssertionError)):
        weft.enable(device="nowhere")
    if not torch.cuda.is_available():
        with pytest.raises(RuntimeError, match=r"device: is 'cuda', allowed here: 'cpu' \(PyTorch sees no GPU\)"):
            weft.enable(device="cuda")
    assert not _enable.is_enabled()


# ------------------------------------------------------------------------------------------------------------------------ the switch

def depthwise():
    return F.conv2d(torch.randn(1, 8, 16, 16), torch.randn(8, 1, 3, 3), padding=1, groups=8)


def test_switch():
    with weft.backends.flags(delegate=False):
        _enable.seen(forget=True)
        depthwise()
        assert taken() == 0
        weft.enable()
        try:
            depthwise()
            assert taken() == 1
            with weft.enabled("convolution", device="cpu", math="fast"):
                depthwise()
                assert any(":strict" not in s.problem for s in _enable.seen() if s.calls)
            assert _enable.is_enabled() and taken() == 2
            with _enable.bypassed():
                depthwise()
            assert taken() == 2
            weft.disable()
            depthwise()
            assert taken() == 2 and not _enable.is_enabled()
        finally:
            weft.disable()
        with pytest.raises(KeyError), weft.enabled():
            raise KeyError
        assert not _enable.is_enabled()


@pytest.mark.parametrize("settings, enabled_, said", [(None, None, ":strict"), (None, "fast", ""), ("fast", None, ""), ("tf32", None, ":tf32"), ("strict", "fast", ":strict"),
                                                      ("fast", "strict", "")])
def test_math_of_the_backends_counts_first(settings, enabled_, said):
    with weft.backends.flags(delegate=False, math=settings), weft.enabled(math=enabled_):
        _enable.seen(forget=True)
        depthwise()
        [problem] = [s.problem for s in _enable.seen() if s.calls]
    assert problem == f"conv2d:fwd:f32:nchw:n1c8h16w16:o8k3p1g8{said}@cpu"


@pytest.mark.parametrize("forward", [False, True])
def test_switched_between_forward_and_backward(forward):
    x, w = torch.randn(2, 8, 16, 16, requires_grad=True), torch.randn(8, 1, 3, 3, requires_grad=True)
    expected = torch.autograd.grad(F.conv2d(x, w, padding=1, groups=8).square().sum(), (x, w))
    with weft.backends.flags(delegate=False):
        with weft.enabled() if forward else torch.enable_grad():
            loss = F.conv2d(x, w, padding=1, groups=8).square().sum()
        with weft.enabled() if not forward else torch.enable_grad():
            _enable.seen(forget=True)
            got = torch.autograd.grad(loss, (x, w))
            assert bool(taken()) is not forward
    assert_same(expected, got)


def test_what_weft_leaves_to_pytorch_stays_there():
    """A plan that says torch does not come back to the seat, and the report says why."""
    with weft.enabled():
        _enable.seen(forget=True)
        with weft.backends.pin("torch"):
            weft.functional.conv2d(torch.randn(1, 8, 16, 16), torch.randn(8, 1, 3, 3), groups=8)
            assert not any(s.calls for s in _enable.seen())
            depthwise()
            assert [s.kernel for s in _enable.seen()] == ["torch"]
        F.conv2d(torch.randn(1, 1, 8, 8).expand(1, 2, 8, 8), torch.randn(2, 2, 3, 3))
        assert any(s.reason == "an expanded input" for s in _enable.seen())


@pytest.mark.parametrize("rank", [1, 2])
def test_inputs_that_pytorch_copies(rank):
    """Turned, and parts of others: weft copies them as well."""
    w, turned = torch.randn(8, 1, *[3] * rank, requires_grad=True), torch.randn(2, *[12] * rank, 8).movedim(-1, 1)
    for x in (turned, torch.randn(2, 16, *[12] * rank)[:, ::2], torch.randn(2, 8, *[14] * rank)[..., 2:]):
        x = x.detach().requires_grad_()

        def both():
            y = torch.ops.aten.convolution(x, w, None, [1] * rank, [1] * rank, [1] * rank, False, [0] * rank, 8)   # noqa: B023
            return y, *torch.autograd.grad(y.square().sum(), (x, w))   # noqa: B023
        off = both()
        with enabled("fast"):
            _enable.seen(forget=True)
            assert_same(off, both())
            assert taken() == 2


def test_measurements_of_pytorch_are_of_pytorch():
    """Benchmarks, conversion and regret switch weft off while they run, and on again."""
    with enabled("fast"):
        _enable.seen(forget=True)
        weft.bench.run(["conv2d:fwd:f32:nchw:n1c8h8w8:o8k3p1g8@cpu"], rounds=3, out=io.StringIO())
        weft.convert(torch.nn.Sequential(torch.nn.Conv2d(8, 8, 3, groups=8)).eval(), example=torch.randn(1, 8, 8, 8))
        assert not _enable.seen() and _enable.is_enabled()


def test_a_shortcut_to_pytorch_stays_there():
    x, w = torch.randn(1, 4, 8, 8).double(), torch.randn(6, 4, 3, 3).double()   # a type without fast kernels
    for _ in range(3):
        expected = weft.functional.conv2d(x, w)
    with enabled("every"), weft.backends.flags(pin=None):
        _enable.seen(forget=True)
        for _ in range(3):
            assert torch.equal(weft.functional.conv2d(x, w), expected)
        assert weft.backends.kernels() == "torch" and not _enable.seen()


def test_math():
    with weft.backends.flags(delegate=False):
        for math, word in ((None, ":strict"), ("strict", ":strict"), ("fast", "")):
            with weft.enabled(math=math):
                _enable.seen(forget=True)
                depthwise()
                assert all((":strict" in s.problem) == bool(word) for s in _enable.seen())


def test_table_is_bounded():
    w = torch.randn(2, 1, 3)
    with enabled("every"):
        for n in range(3, 4500):
            F.conv1d(torch.zeros(1, 2, 3), w, stride=n, groups=2)
        assert len(_enable.seen()) <= 4096


def test_what_is_taken_is_faster_by_estimate():
    """Each pass, or the sum of two; the report has both times."""
    x = torch.randn(2, 16, 40, 40, requires_grad=True)
    with enabled("free"):
        _enable.seen(forget=True)
        for last, groups, window in itertools.product((False, True), (1, 2, 16), (1, 3, 5)):
            w = torch.randn(16, 16 // groups, window, window, requires_grad=True)
            for function in (F.conv2d, F.conv_transpose2d):
                y = function(*((channels_last(x), channels_last(w)) if last else (x, w)), padding=window // 2, groups=groups)
                torch.autograd.grad(y, (x, w), torch.ones_like(y))
        seen = _enable.seen()
    ours = [s for s in seen if s.kernel != "torch"]
    assert {s.backward for s in ours} == {False, True} and len(ours) < len(seen)
    assert not [s for s in ours if not 0 < s.ns < s.torch_ns]


def test_what_was_decided_is_given_back():
    """Plans of gradients that PyTorch keeps, two for each, as well."""
    from test_memory import heap
    w = torch.randn(4, 4, 3)

    def run(sizes):
        for n in sizes:
            y = torch.zeros(1, 4, n)
            torch.ops.aten.convolution_backward(y, torch.zeros(1, 4, n + 2), w, None, [1], [0], [1], False, [0], 1, [True, True, False])
        return heap()
    with weft.backends.flags(pin="torch"), enabled("free"):
        before = run(range(1, 2200))   # a table starts again when it has 1024
        assert run(range(1, 2200)) - before < 1 << 20, "of problems that were decided before"


def test_workspace_limit():
    with weft.backends.flags(delegate=False, workspace_limit=1), weft.enabled():
        _enable.seen(forget=True)
        depthwise()
        kinds = _enable.seen()
    assert [k.kernel for k in kinds] and all(k.kernel != "conv_ref" for k in kinds)
