"""weft.causal_conv1d against the plain formula in float64: values, gradients, states, sequences, updates; what a wrong call says."""
from __future__ import annotations

import copy
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import func
from torch.library import opcheck

import weft
from cases import DTYPES, close, scattered, shifted
from weft.causal_conv1d import (causal_conv1d_fn, causal_conv1d_ref, causal_conv1d_update, causal_conv1d_update_ref, causal_conv1d_varlen_states,
                                causal_conv1d_varlen_states_ref)

LOW = [torch.float16, torch.bfloat16]
ops = torch.ops.weft


def data(batch, dim, length, device="cpu", dtype=torch.float32, last=False):
    """(batch, dim, length), time-major if `last`."""
    x = torch.randn(batch, length, dim, device=device).to(dtype)
    return x.transpose(1, 2) if last else x.transpose(1, 2).contiguous()


def parameters(dim, width, device="cpu", dtype=torch.float32):
    return (torch.randn(dim, width, device=device) / width**0.5).to(dtype), torch.randn(dim, device=device).to(dtype)


def exact(x, weight, bias=None, seq_idx=None, initial=None, silu=False):
    """The formula as it stands, a tap at a time, in float64 on the CPU."""
    x, weight, bias, initial = (None if t is None else t.double().cpu() for t in (x, weight, bias, initial))
    length, before = x.shape[2], weight.shape[1] - 1
    tokens = F.pad(x, (before, 0)) if initial is None else torch.cat([initial, x], 2)
    z = torch.zeros_like(x) + (0 if bias is None else bias[:, None])
    for k in range(before + 1):
        token = tokens[:, :, k:k + length]
        if seq_idx is not None:
            token = torch.where((F.pad(seq_idx, (before, 0), value=-2)[:, k:k + length] == seq_idx)[:, None], token, 0)
        z = z + weight[:, k, None] * token
    y = F.silu(z) if silu else z
    return y if seq_idx is None else torch.where((seq_idx >= 0)[:, None], y, 0)


def compare(x, weight, bias=None, seq_idx=None, initial=None, silu=False, final=False):
    """Values and every gradient beside the formula's."""
    given = [x, weight, bias, initial]
    ours = [None if t is None else t.detach().requires_grad_() for t in given]
    true = [None if t is None else t.detach().double().cpu().requires_grad_() for t in given]
    y = causal_conv1d_fn(ours[0], ours[1], ours[2], seq_idx, ours[3], final, activation="silu" if silu else None)
    truth = exact(*true[:3], None if seq_idx is None else seq_idx.cpu(), true[3], silu)
    y, state = y if final else (y, None)
    assert y.dtype == x.dtype and y.shape == x.shape
    width, terms = weight.shape[1], x.shape[0] * x.shape[2] + weight.shape[1]**3
    close(y.cpu(), truth, width * 4)
    outputs, grads = [y], [torch.randn(x.shape, device=x.device).to(x.dtype)]
    truths = [truth]
    if final:
        before = torch.zeros(*x.shape[:2], width - 1, dtype=torch.float64) if initial is None else true[3]
        kept = torch.cat([before, true[0]], 2)[:, :, x.shape[2]:]
        assert torch.equal(state.double().cpu(), kept) and state.dtype == x.dtype
        outputs, truths, grads = [y, state], [truth, kept], [*grads, torch.randn(state.shape, device=x.device).to(x.dtype)]
    leaves = [t for t in ours if t is not None]
    found = torch.autograd.grad(outputs, leaves, grads)
    wanted = torch.autograd.grad(truths, [t for t in true if t is not None], [g.double().cpu() for g in grads], allow_unused=True)
    for leaf, mine, theirs in zip(leaves, found, wanted):
        assert mine.dtype == leaf.dtype
        close(mine.cpu(), torch.zeros_like(mine.cpu(), dtype=torch.float64) if theirs is None else theirs, terms)


# ---------------------------------------------------------------------------------------------- whole sequences

@pytest.mark.parametrize("last", [False, True], ids=["channel-major", "time-major"])
@pytest.mark.parametrize("width", [1, 2, 3, 4, 5, 6, 7, 8, 31, 64])
def test_widths(width, last, device):
    for length in (1, 3, 17, 70):
        for silu, biased in ((True, True), (False, False)):
            weight, bias = parameters(5, width, device)
            compare(data(2, 5, length, device, last=last), weight, bias if biased else None, silu=silu)


@pytest.mark.parametrize("last", [False, True], ids=["channel-major", "time-major"])
@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 18, 19, 31, 33, 63, 64, 65, 127, 129, 255, 257, 511, 513, 515, 1023, 1024, 1025, 1027, 2047, 2049, 4097])
def test_lengths_around_tiles(length, last, device):
    """Beside PyTorch's convolution in float64: the formula token by token is slow here."""
    weight, bias = parameters(3, 4, device)
    x = data(1, 3, length, device, last=last).requires_grad_()
    y = causal_conv1d_fn(x, weight.requires_grad_(), bias.requires_grad_(), activation="silu")
    true = [t.detach().double().cpu().requires_grad_() for t in (x, weight, bias)]
    truth = F.silu(F.conv1d(F.pad(true[0], (3, 0)), true[1][:, None], true[2], groups=3))
    close(y.cpu(), truth, 16)
    dy = torch.randn(y.shape, device=device)
    for mine, theirs in zip(torch.autograd.grad(y, (x, weight, bias), dy), torch.autograd.grad(truth, true, dy.double().cpu())):
        close(mine.cpu(), theirs, length + 64)


@pytest.mark.parametrize("dim", [1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 63, 65, 130])
def test_channels_around_tiles(dim, device):
    for last in (False, True):
        for dtype in (torch.float32, torch.bfloat16):
            weight, bias = parameters(dim, 4, device)
            compare(data(2, dim, 11, device, dtype, last), weight, bias, silu=True)


@pytest.mark.parametrize("last", [False, True], ids=["channel-major", "time-major"])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda t: str(t)[6:])
def test_types_and_states(dtype, last, device):
    for width, length in ((4, 1), (4, 2), (4, 3), (4, 20), (8, 3), (2, 40), (1, 5)):
        for low in (False, True):   # parameters in x's type, or float32
            weight, bias = parameters(6, width, device, dtype if low or dtype == torch.float64 else torch.float32)
            x, initial = data(2, 6, length, device, dtype, last), data(2, 6, width - 1, device, dtype, last != low)
            compare(x, weight, bias, silu=True)
            compare(x, weight, bias, initial=initial, silu=True)
            compare(x, weight, None, initial=initial, final=True)
            compare(x, weight, bias, final=True, silu=True)


@pytest.mark.parametrize("last", [False, True], ids=["channel-major", "time-major"])
@pytest.mark.parametrize("width", [1, 2, 3, 4, 9])
def test_sequences_do_not_mix(width, last, device):
    seq_idx = torch.tensor([[0] * 9 + [1] * 2 + [2] * 20 + [-1] * 3 + [0] * 7, [-1] * 5 + [4] * 1 + [5] * 1 + [6] * 30 + [-7] * 4], dtype=torch.int32, device=device)
    for dtype in (torch.float32, torch.bfloat16):
        weight, bias = parameters(20, width, device)
        x = data(2, 20, 41, device, dtype, last)
        compare(x, weight, bias, seq_idx, silu=True)
        compare(x, weight, None, seq_idx)
        poisoned = torch.where((seq_idx < 0)[:, None], float("nan"), x)   # padding reaches nothing
        assert torch.equal(causal_conv1d_fn(poisoned, weight, bias, seq_idx), causal_conv1d_fn(x, weight, bias, seq_idx))


def test_sequences_as_they_are_alone(device):
    weight, bias = parameters(6, 4, device)
    x = data(1, 6, 30, device, last=True)
    seq_idx = torch.repeat_interleave(torch.arange(4, dtype=torch.int32), torch.tensor([1, 2, 17, 10]))[None].to(device)
    alone = [causal_conv1d_fn(part, weight, bias, activation="silu") for part in x.split([1, 2, 17, 10], 2)]
    torch.testing.assert_close(causal_conv1d_fn(x, weight, bias, seq_idx, activation="silu"), torch.cat(alone, 2), rtol=1e-5, atol=1e-6)


def test_states_join_pieces(device):
    weight, bias = parameters(5, 4, device)
    for last in (False, True):
        x = data(2, 5, 23, device, last=last)
        whole = causal_conv1d_fn(x, weight, bias, activation="swish")
        state, parts = None, []
        for piece in x.split([1, 1, 6, 2, 13], 2):
            y, state = causal_conv1d_fn(piece, weight, bias, initial_states=state, return_final_states=True, activation="silu")
            parts.append(y)
        torch.testing.assert_close(torch.cat(parts, 2), whole, rtol=1e-5, atol=1e-6)


def test_final_states_out(device):
    weight, bias = parameters(5, 4, device)
    x = data(2, 5, 9, device).requires_grad_()
    for out in (torch.empty(2, 5, 3, device=device), torch.empty(2, 3, 5, device=device).transpose(1, 2), torch.empty(2, 5, 6, device=device)[:, :, ::2]):
        y, state = causal_conv1d_fn(x, weight, bias, return_final_states=True, final_states_out=out)
        assert state is out and torch.equal(out, x[:, :, 6:])
        dx, = torch.autograd.grad((state * 2).sum(), x)
        assert torch.equal(dx, F.pad(torch.full((2, 5, 3), 2.0, device=device), (6, 0)))
    untouched = torch.full((2, 5, 4), 7.0, device=device)
    with pytest.raises(RuntimeError, match="final_states_out: is"):
        causal_conv1d_fn(x, weight, bias, return_final_states=True, final_states_out=untouched)
    assert (untouched == 7).all()
    assert isinstance(causal_conv1d_fn(x, weight, bias, final_states_out=untouched), torch.Tensor) and (untouched == 7).all()


def test_order_in_memory_is_that_of_x(device):
    weight, _ = parameters(6, 4, device)
    first, last = data(2, 6, 10, device), data(2, 6, 10, device, last=True)
    wide = torch.randn(2, 20, 10, device=device)
    for x, strides in ((first, (60, 10, 1)), (last, (60, 1, 6)), (wide[:, 3:9], (60, 10, 1)), (data(2, 20, 10, device, last=True)[:, 3:9], (60, 1, 6)),
                       (torch.randn(2, 6, 30, device=device)[:, :, 5:15], (60, 10, 1))):
        y = causal_conv1d_fn(x, weight)
        assert y.stride() == strides
        close(y.cpu(), exact(x, weight))
        leaf = x.detach().requires_grad_()
        assert torch.autograd.grad(causal_conv1d_fn(leaf, weight).sum(), leaf)[0].stride() == strides


@pytest.mark.parametrize("view", [scattered, shifted, lambda t: t.movedim(0, -1).contiguous().movedim(-1, 0), lambda t: t[:, :1].expand_as(t),
                                  lambda t: t[:, :, :1].expand_as(t), lambda t: t.flip(2)], ids=["gaps", "unaligned", "batch-inside", "one-channel", "one-token", "flipped"])
def test_any_strides(view, device):
    for last in (False, True):
        for dtype in (torch.float32, torch.bfloat16):
            weight, bias = parameters(6, 4, device)
            compare(view(data(3, 6, 20, device, dtype, last)), view(weight[None])[0] if view in (scattered, shifted) else weight, bias, silu=True)


@pytest.mark.parametrize("shape", [(0, 4, 5), (2, 4, 0), (0, 4, 0)], ids=str)
def test_nothing(shape, device):
    x, (weight, bias) = torch.randn(shape, device=device).requires_grad_(), parameters(4, 3, device)
    weight.requires_grad_()
    initial = torch.randn(shape[0], 4, 2, device=device)
    y, state = causal_conv1d_fn(x, weight, bias, initial_states=initial, return_final_states=True, activation="silu")
    assert y.shape == shape and torch.equal(state, torch.cat([initial, x], 2)[:, :, shape[2]:])
    dx, dw = torch.autograd.grad(y.sum(), (x, weight))
    assert dx.shape == shape and torch.equal(dw, torch.zeros_like(weight))


def test_a_result_may_be_changed_in_place(device):
    weight, bias = parameters(4, 4, device)
    x = data(2, 4, 9, device).requires_grad_()
    y = causal_conv1d_fn(x, weight, bias, activation="silu")
    before, = torch.autograd.grad(y.sum(), x, retain_graph=True)
    y += 1
    y *= 2
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], 2 * before)


def test_gradients_that_nobody_wants(device):
    weight, bias = parameters(4, 4, device)
    x, initial = data(2, 4, 9, device), data(2, 4, 3, device)
    every = [t.requires_grad_() for t in (x, weight, bias, initial)]
    full = torch.autograd.grad(causal_conv1d_fn(x, weight, bias, initial_states=initial, activation="silu").square().sum(), every)
    for i in range(4):
        some = [t.detach().requires_grad_(k == i) for k, t in enumerate(every)]
        y = causal_conv1d_fn(some[0], some[1], some[2], initial_states=some[3], activation="silu")
        torch.testing.assert_close(torch.autograd.grad(y.square().sum(), some[i])[0], full[i], rtol=1e-5, atol=1e-6)


def test_same_bits(device):
    weight, bias = parameters(40, 4, device)
    x = data(3, 40, 700, device, torch.bfloat16, True)
    seen = None
    for threads in (1, 2, 3, 8):
        torch.set_num_threads(threads)
        leaves = [t.detach().requires_grad_() for t in (x, weight, bias)]
        y = causal_conv1d_fn(*leaves, activation="silu")
        now = [y, *torch.autograd.grad(y.square().sum(), leaves)]
        assert seen is None or all(torch.equal(a, b) for a, b in zip(now, seen))
        seen = now


def test_nan_and_infinity_stay_with_their_tokens(device):
    weight = torch.ones(3, 4, device=device)
    for last in (False, True):
        x = data(1, 3, 40, device, last=last)
        x[0, 1, 20] = float("nan")
        y = causal_conv1d_fn(x, weight, activation="silu")
        assert y.isnan().nonzero().tolist() == [[0, 1, t] for t in range(20, 24)]
        x[0, 1, 20] = float("inf")
        assert causal_conv1d_fn(x, weight).isinf().nonzero().tolist() == [[0, 1, t] for t in range(20, 24)]


# ---------------------------------------------------------------------------------------------- derivatives, traces, transforms

def test_gradcheck(device):
    x, w, b, s = (torch.randn(shape, dtype=torch.float64, device=device, requires_grad=True) for shape in ((2, 3, 5), (3, 3), (3,), (2, 3, 2)))
    seq_idx = torch.tensor([[0, 0, 1, 1, -1], [2, 2, 2, -1, 3]], dtype=torch.int32, device=device)
    for f, args in ((lambda *a: causal_conv1d_fn(a[0], a[1], a[2], None, a[3], True, None, "silu"), (x, w, b, s)),
                    (lambda *a: causal_conv1d_fn(*a, seq_idx, activation="silu"), (x, w, b)), (lambda *a: causal_conv1d_fn(*a), (x, w))):
        assert torch.autograd.gradcheck(f, args, check_forward_ad=True, check_batched_grad=True)
        assert torch.autograd.gradgradcheck(f, args, check_batched_grad=True)


def test_opcheck(device):
    x, w, b, s = (torch.randn(shape, device=device, requires_grad=True) for shape in ((2, 3, 5), (3, 4), (3,), (2, 3, 3)))
    seq_idx, rows = torch.zeros(2, 5, dtype=torch.int32, device=device), torch.tensor([-1, 3], dtype=torch.int32, device=device)
    opcheck(ops.causal_conv1d.default, (x, w, b, None, s, True, True))
    opcheck(ops.causal_conv1d.default, (x.transpose(1, 2).contiguous().transpose(1, 2), w, None, seq_idx, None, False, False))
    with torch.no_grad():
        opcheck(ops.causal_conv1d_backward.default, (x.detach(), x, w, b, None, s, s.detach(), True, 3))
    opcheck(ops.causal_conv1d_update.default, (x.detach(), torch.randn(4, 3, 4, device=device), w, b, rows.abs(), rows, True))


def test_compile_and_export(device):
    weight, bias = parameters(4, 4, device)
    module = weft.nn.CausalConv1d(4, 4, activation="silu").to(device)
    x = data(2, 4, 9, device).requires_grad_()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(torch.autograd.grad(compiled(x).sum(), x)[0], torch.autograd.grad(module(x).sum(), x)[0])
    exported = torch.export.export(module, (x.detach(),), dynamic_shapes=({0: torch.export.Dim("n", min=2), 2: torch.export.Dim("t", min=2)},))
    other = data(3, 4, 17, device)
    assert torch.equal(exported.module()(other), module(other))
    step = torch.compile(lambda t, s: causal_conv1d_update(t, s, weight, bias, "silu"), fullgraph=True, backend="aot_eager")
    mine, theirs = torch.randn(2, 4, 3, device=device), None
    theirs = mine.clone()
    token = torch.randn(2, 4, device=device)
    assert torch.equal(step(token, mine), causal_conv1d_update(token, theirs, weight, bias, "silu")) and torch.equal(mine, theirs)


def test_vmap(device):
    x, w, b, s = (torch.randn(shape, device=device) for shape in ((5, 2, 3, 9), (5, 3, 4), (5, 3), (5, 2, 3, 3)))
    seq_idx = torch.randint(-1, 2, (5, 2, 9), dtype=torch.int32, device=device)

    def run(x, w, b, s):
        return causal_conv1d_fn(x, w, b, None, s, True, None, "silu")

    def packed(x, w, q):
        return causal_conv1d_fn(x, w, None, q, activation="silu")
    for dims in ((0, None, None, 0), (0, 0, 0, 0), (None, 0, None, None), (0, None, 0, None)):
        args = [t if d == 0 else t[0] for t, d in zip((x, w, b, s), dims)]
        wanted = [run(*(t if d is None else t[i] for t, d in zip(args, dims))) for i in range(5)]
        for mine, theirs in zip(func.vmap(run, dims)(*args), zip(*wanted)):
            torch.testing.assert_close(mine, torch.stack(theirs), rtol=1e-5, atol=1e-6)
    for dims in ((0, None, 0), (0, 0, 0), (0, 0, None)):
        args = [t if d == 0 else t[0] for t, d in zip((x, w, seq_idx), dims)]
        wanted = [packed(*(t if d is None else t[i] for t, d in zip(args, dims))) for i in range(5)]
        torch.testing.assert_close(func.vmap(packed, dims)(*args), torch.stack(wanted), rtol=1e-5, atol=1e-6)
    per_sample = func.vmap(func.grad(lambda w, x: causal_conv1d_fn(x, w, activation="silu").square().sum()), (None, 0))(w[0], x)
    leaf = w[0].clone().requires_grad_()
    for i in range(5):
        torch.testing.assert_close(per_sample[i], torch.autograd.grad(causal_conv1d_fn(x[i], leaf, activation="silu").square().sum(), leaf)[0], rtol=1e-4, atol=1e-5)


def test_autocast_keeps_the_type_of_x(device):
    weight, bias = parameters(4, 4, device)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        for dtype in (torch.float32, torch.bfloat16):
            x = data(2, 4, 9, device, dtype)
            y = causal_conv1d_fn(x, weight, bias, activation="silu")
            assert y.dtype == dtype
            close(y.cpu(), exact(x, weight, bias, silu=True))


# ---------------------------------------------------------------------------------------------- the next tokens

@pytest.mark.parametrize("ring", [False, True], ids=["shift", "ring"])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda t: str(t)[6:])
def test_update(dtype, ring, device):
    for width, extra in ((1, 1), (2, 0), (3, 2), (4, 0), (4, 9), (6, 1), (31, 0)):
        for length in (None, 1, 4, 5):
            for last in (False, True):
                for gathers in (False, True):
                    weight, bias = parameters(7, width, device, torch.float64 if dtype == torch.float64 else torch.float32)
                    x = data(3, 7, length or 1, device, dtype, last)
                    state = data(9 if gathers else 3, 7, width - 1 + extra, device, dtype, last)
                    index = torch.tensor([8, 0, 4], dtype=torch.int32, device=device) if gathers else None
                    lengths = torch.tensor([0, 3, 1022], dtype=torch.int32, device=device) if ring else None
                    theirs, untouched = (state[index.long()] if gathers else state).clone().double().cpu(), state.clone()
                    args = (x if length else x[..., 0], state, weight, bias if extra else None, "silu" if last else None, lengths, index)
                    y = causal_conv1d_update(*args)
                    truth = causal_conv1d_update_ref(args[0].double().cpu(), theirs, weight.double().cpu(), bias.double().cpu() if extra else None, args[4],
                                                     None if lengths is None else lengths.cpu())
                    assert y.dtype == dtype and not y.requires_grad
                    close(y.cpu(), truth, width * 4)
                    moved = state[index.long()] if gathers else state
                    assert torch.equal(moved.double().cpu(), theirs)
                    if gathers:
                        rest = [i for i in range(9) if i not in (8, 0, 4)]
                        assert torch.equal(state[rest], untouched[rest])


def test_update_of_padding(device):
    weight, bias = parameters(7, 4, device)
    for length in (1, 4):
        x, state = data(4, 7, length, device), data(6, 7, 5, device)
        before, index = state.clone(), torch.tensor([-1, 2, -1, 5], dtype=torch.int32, device=device)
        y = causal_conv1d_update(x, state, weight, bias, "silu", conv_state_indices=index)
        assert (y[[0, 2]] == 0).all()
        alone = before[[2, 5]]
        torch.testing.assert_close(y[[1, 3]], causal_conv1d_update(x[[1, 3]], alone, weight, bias, "silu"))
        before[[2, 5]] = alone
        assert torch.equal(state, before)


def test_token_by_token_is_the_whole(device):
    for dtype in (torch.float32, torch.bfloat16):
        conv = weft.nn.CausalConv1d(12, 4, activation="silu").to(device)
        x, state = data(3, 12, 25, device, dtype), conv.state(3, dtype)
        steps = [conv.step(x[:, :, t], state) for t in range(20)] + [conv.step(x[:, :, 20:], state)]
        torch.testing.assert_close(torch.cat([s[..., None] for s in steps[:20]] + steps[20:], 2), conv(x), rtol=1e-2 if dtype in LOW else 1e-5, atol=1e-2 if dtype in LOW else 1e-6)
        assert torch.equal(state, x[:, :, 22:])


def test_update_records_nothing(device):
    weight, bias = (t.requires_grad_() for t in parameters(4, 4, device))
    state = torch.randn(2, 4, 3, device=device)
    x = torch.randn(2, 4, device=device, requires_grad=True)
    version = state._version
    for y in (causal_conv1d_update(x, state, weight, bias, "silu"), ops.causal_conv1d_update(x, state, weight, bias, None, None, True)):
        assert not y.requires_grad and y.grad_fn is None and not state.requires_grad
        y += 1
    assert state._version > version


# ---------------------------------------------------------------------------------------------- states of sequences side by side

def test_varlen_states(device):
    for dtype in DTYPES:
        for lengths in ([5], [1, 1, 7, 40, 3], [0, 4, 0], list(range(1, 33))):
            cu = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], device=device)
            x = torch.randn(sum(lengths), 6, device=device).to(dtype)
            for length in (0, 1, 3, 20):
                for kind in (torch.int32, torch.int64):
                    mine = causal_conv1d_varlen_states(x, cu.to(kind), length)
                    assert torch.equal(mine, causal_conv1d_varlen_states_ref(x, cu, length)) and mine.dtype == dtype
                    for i, (a, b) in enumerate(zip(cu.tolist(), cu.tolist()[1:])):
                        alone = F.pad(x[a:b].T, (max(0, length - (b - a)), 0))
                        assert torch.equal(mine[i], alone[:, alone.shape[1] - length:])


# ---------------------------------------------------------------------------------------------- names and errors

def test_names_of_the_package():
    """A program that imports the package and its modules by their own names."""
    import importlib
    kept = {name: sys.modules.get(name) for name in ("causal_conv1d", "causal_conv1d.causal_conv1d_interface", "causal_conv1d.causal_conv1d_varlen")}
    try:
        sys.modules["causal_conv1d"] = weft.causal_conv1d
        for name, functions in (("", ("causal_conv1d_fn", "causal_conv1d_update")), (".causal_conv1d_interface", ("causal_conv1d_ref", "causal_conv1d_update_ref")),
                                (".causal_conv1d_varlen", ("causal_conv1d_varlen_states", "causal_conv1d_varlen_states_ref"))):
            module = importlib.import_module("causal_conv1d" + name)
            assert all(callable(getattr(module, f)) for f in functions)
    finally:
        for name, module in kept.items():
            sys.modules.pop(name, None)
            if module is not None:
                sys.modules[name] = module


def test_reference_functions(device):
    weight, bias = parameters(5, 4, device)
    x, initial, out = data(2, 5, 2, device), data(2, 5, 3, device), torch.empty(2, 5, 3, device=device)
    y, state = causal_conv1d_ref(x, weight, bias, initial, True, out, "swish")
    close(y.cpu(), exact(x, weight, bias, initial=initial, silu=True))
    assert state is out and torch.equal(state, torch.cat([initial, x], 2)[:, :, -3:])


def test_module(device):
    module = weft.nn.CausalConv1d(6, 4, activation="silu").to(device)
    assert str(module) == "weft.CausalConv1d(6, width=4, bias=True, activation='silu')"
    assert {k: v.shape for k, v in module.state_dict().items()} == {"weight": (6, 4), "bias": (6,)}
    assert list(weft.nn.CausalConv1d(6, 2, bias=False).state_dict()) == ["weight"]
    again = weft.nn.CausalConv1d(6, 4, activation="silu").to(device)
    again.load_state_dict(copy.deepcopy(module).state_dict())
    x = data(2, 6, 9, device)
    assert torch.equal(again(x), module(x))
    y, state = module(x, initial_states=module.state(2), return_final_states=True)
    assert torch.equal(y, module(x)) and torch.equal(state, x[:, :, 6:])
    for wrong in ((0, 4), (4, 0), (4.0, 4), (4, True)):
        with pytest.raises(ValueError, match="allowed: an int of 1 or more"):
            weft.nn.CausalConv1d(*wrong)
    with pytest.raises(NotImplementedError):
        weft.nn.CausalConv1d(4, 4, activation="relu")


X, W, B, S = torch.zeros(2, 4, 9), torch.zeros(4, 3), torch.zeros(4), torch.zeros(2, 4, 2)
I32 = torch.int32
WRONG = {
    "activation": (lambda: causal_conv1d_fn(X, W, activation="relu"), NotImplementedError, "activation: is 'relu', allowed: None, 'silu' or 'swish'"),
    "activation-kind": (lambda: causal_conv1d_fn(X, W, activation=[1]), NotImplementedError, "activation"),
    "x-kind": (lambda: causal_conv1d_fn(None, W), TypeError, "x is NoneType, allowed: Tensor"),
    "x-rank": (lambda: causal_conv1d_fn(X[0], W), RuntimeError, "x: has"),
    "x-type": (lambda: causal_conv1d_fn(X.long(), W), RuntimeError, "x: is int64"),
    "no-channels": (lambda: causal_conv1d_fn(X[:, :0], W[:0]), RuntimeError, "x: has 0 channels"),
    "weight-rank": (lambda: causal_conv1d_fn(X, W[:, None]), RuntimeError, r"weight: has the shape \[4, 1, 3\]"),
    "weight-dim": (lambda: causal_conv1d_fn(X, W[:3]), RuntimeError, r"weight: has the shape \[3, 3\]"),
    "weight-width": (lambda: causal_conv1d_fn(X, W[:, :0]), RuntimeError, "weight: has the width 0"),
    "weight-type": (lambda: causal_conv1d_fn(X, W.double()), RuntimeError, "weight: is float64, allowed: float32"),
    "bias-shape": (lambda: causal_conv1d_fn(X, W, B[:3]), RuntimeError, "bias: has the shape"),
    "bias-type": (lambda: causal_conv1d_fn(X.half(), W, B.bfloat16()), RuntimeError, "bias: is bfloat16, allowed: float32 or the type of x, float16"),
    "bias-kind": (lambda: causal_conv1d_fn(X, W, 3), TypeError, "bias is int, allowed: Tensor or None"),
    "seq-shape": (lambda: causal_conv1d_fn(X, W, B, torch.zeros(2, 8, dtype=I32)), RuntimeError, "seq_idx: has the shape"),
    "seq-type": (lambda: causal_conv1d_fn(X, W, B, torch.zeros(2, 9)), RuntimeError, "seq_idx: is float32, allowed: int32"),
    "seq-and-states": (lambda: causal_conv1d_fn(X, W, B, torch.zeros(2, 9, dtype=I32), S), AssertionError, "seq_idx: is given with initial_states"),
    "seq-and-final": (lambda: causal_conv1d_fn(X, W, B, torch.zeros(2, 9, dtype=I32), return_final_states=True), AssertionError, "seq_idx: is given with return_final_states"),
    "states-shape": (lambda: causal_conv1d_fn(X, W, B, initial_states=X), RuntimeError, r"initial_states: has the shape \[2, 4, 9\], allowed: \[2, 4, 2\]"),
    "states-type": (lambda: causal_conv1d_fn(X, W, B, initial_states=S.half()), RuntimeError, "initial_states: is float16"),
    "device": (lambda: causal_conv1d_fn(X, W.to("meta")), RuntimeError, "weight: is on meta, allowed: the device of x, cpu"),
    "update-x-rank": (lambda: causal_conv1d_update(X[0, 0], S, W), RuntimeError, "x: has the shape"),
    "update-x-kind": (lambda: causal_conv1d_update(None, S, W), TypeError, "x is NoneType"),
    "update-state-kind": (lambda: causal_conv1d_update(X, None, W), TypeError, "conv_state is NoneType"),
    "update-activation": (lambda: causal_conv1d_update(X, S, W, activation="gelu"), NotImplementedError, "activation"),
    "update-state-grad": (lambda: causal_conv1d_update(X, S.clone().requires_grad_(), W), RuntimeError, "conv_state: requires a gradient"),
    "update-device": (lambda: causal_conv1d_update(X, S.to("meta"), W), RuntimeError, "conv_state: is on meta, allowed: the device of x, cpu"),
    "varlen-rank": (lambda: causal_conv1d_varlen_states(X, torch.tensor([0, 1]), 2), RuntimeError, "x: has the shape"),
    "varlen-negative": (lambda: causal_conv1d_varlen_states(W, torch.tensor([0, 1]), -2), RuntimeError, "state_len: is -2, allowed: 0 or more"),
    "varlen-falls": (lambda: causal_conv1d_varlen_states(W, torch.tensor([0, 3, 2]), 2), RuntimeError, "cu_seqlens: is"),
    "varlen-beyond": (lambda: causal_conv1d_varlen_states(W, torch.tensor([0, 5]), 2), RuntimeError, "cu_seqlens: is"),
    "varlen-none": (lambda: causal_conv1d_varlen_states(W, torch.tensor([], dtype=I32), 2), RuntimeError, "cu_seqlens: has 0 elements"),
    "varlen-type": (lambda: causal_conv1d_varlen_states(W, torch.tensor([0.0, 1.0]), 2), RuntimeError, "cu_seqlens: is float32"),
    "varlen-length-kind": (lambda: causal_conv1d_varlen_states(W, torch.tensor([0, 1]), 2.5), TypeError, "state_len: is 2.5"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong(name):
    call, kind, text = WRONG[name]
    with pytest.raises(kind, match=text):
        call()


STATES = {   # what is wrong beside a good state, which must stay as it is
    "state-len": (dict(conv_state=torch.zeros(2, 4, 1)), "conv_state: holds 1 tokens, allowed with a width of 3: 2 or more"),
    "state-dim": (dict(conv_state=torch.zeros(2, 3, 2)), "conv_state: has the shape"),
    "state-batch": (dict(conv_state=torch.zeros(3, 4, 2)), "conv_state: has the shape"),
    "state-rank": (dict(conv_state=torch.zeros(2, 4)), "conv_state: has the shape"),
    "state-type": (dict(conv_state=torch.zeros(2, 4, 2).half()), "conv_state: is float16"),
    "state-expanded": (dict(conv_state=torch.zeros(2, 4, 1).expand(2, 4, 2)), "overlap"),
    "x-is-state": (dict(x=None), "overlap"),
    "weight": (dict(weight=torch.zeros(5, 3)), "weight: has the shape"),
    "bias": (dict(bias=torch.zeros(5)), "bias: has the shape"),
    "lengths-shape": (dict(cache_seqlens=torch.zeros(3, dtype=I32)), "cache_seqlens: has the shape"),
    "lengths-type": (dict(cache_seqlens=torch.zeros(2, dtype=torch.int64)), "cache_seqlens: is int64, allowed: int32"),
    "lengths-negative": (dict(cache_seqlens=torch.tensor([0, -1], dtype=I32)), "cache_seqlens: has -1 at 1"),
    "index-shape": (dict(conv_state_indices=torch.zeros(2, 1, dtype=I32)), "conv_state_indices: has the shape"),
    "index-type": (dict(conv_state_indices=torch.zeros(2)), "conv_state_indices: is float32, allowed: int32"),
    "index-beyond": (dict(conv_state_indices=torch.tensor([0, 2], dtype=I32)), "conv_state_indices: has 2 at 1, allowed: -1 to 1"),
    "index-below": (dict(conv_state_indices=torch.tensor([-2, 0], dtype=I32)), "conv_state_indices: has -2 at 0, allowed: -1 to 1"),
}


@pytest.mark.parametrize("name", STATES)
def test_wrong_update_changes_nothing(name):
    wrong, text = STATES[name]
    state = torch.full((2, 4, 2), 7.0)
    args = {"x": torch.ones(2, 4), "conv_state": state, "weight": torch.ones(4, 3), "bias": torch.ones(4), **wrong}
    if args["x"] is None:
        args["x"] = args["conv_state"][:, :, 0]
    before = args["conv_state"].clone()
    with pytest.raises(RuntimeError, match=text):
        causal_conv1d_update(**args)
    assert torch.equal(args["conv_state"], before)
