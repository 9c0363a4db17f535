"""weft.causal_conv1d: sequences and states, memory formats, bits; derivatives, traces, transforms."""
from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import func
from torch.library import opcheck

import weft
from cases import close, scattered, shifted
from causal import compare, data, exact, parameters
from weft.causal_conv1d import causal_conv1d_fn, causal_conv1d_update

ops = torch.ops.weft


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
    for untouched in (torch.full((2, 5, 4), 7.0, device=device), torch.full((2, 5, 3), 7.0, device=device, dtype=torch.bfloat16),
                      torch.full((2, 5, 3), 7.0, device=device, dtype=torch.float64)):
        with pytest.raises(RuntimeError, match=r"final_states_out: is .*, allowed: \[2, 5, 3\] of float32"):
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
                    (lambda *a: causal_conv1d_fn(*a, seq_idx, activation="silu"), (x, w, b)), (lambda *a: causal_conv1d_fn(*a), (x, w)),
                    (lambda *a: causal_conv1d_fn(a[0], w.detach(), None, None, a[1], activation="silu"), (x, s))):
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
    with pytest.raises(RuntimeError, match="weft::causal_conv1d: is mapped over a dimension of 0 by torch.vmap, allowed: 1 or more"):
        func.vmap(packed)(x[:0], w[:0], seq_idx[:0])
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
