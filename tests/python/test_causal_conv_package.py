"""What the tests of the package causal-conv1d ask of it, with their shapes, views and tolerances: they run as they stand against weft.causal_conv1d.
On a GPU at their sizes, here at smaller ones."""
from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F

from weft.causal_conv1d import (causal_conv1d_fn, causal_conv1d_ref, causal_conv1d_update, causal_conv1d_update_ref, causal_conv1d_varlen_states,
                                causal_conv1d_varlen_states_ref)

TYPES = [torch.float32, torch.float16, torch.bfloat16]
NEAR = {torch.float32: (3e-4, 1e-3), torch.float16: (3e-3, 5e-3), torch.bfloat16: (1e-2, 5e-2)}
ALL = list(itertools.product((2, 3, 4), (False, True), (None, "silu")))   # width, bias, activation
named = {"ids": lambda t: str(t)[6:]}


def near(mine, theirs, dtype=None):
    """dtype: that of the data; None for gradients of weights."""
    rtol, atol = NEAR[dtype] if dtype else (1e-3, 1e-3)
    assert mine.shape == theirs.shape
    torch.testing.assert_close(mine, theirs.to(mine.dtype), rtol=rtol, atol=atol)


def options(device):
    """Each makes a GPU compile kernels: some of every kind."""
    return [*ALL[::3], ALL[-1]] if device.type == "cuda" else ALL


def lengths(device, least=1):
    return [n for n in ((1, 129, 1134, 4096) if device.type == "cuda" else (1, 2, 8, 129, 151)) if n >= least]


def dims(device, length=129, update=False):
    if device.type != "cuda":
        return (48,)
    return (2048 + 16,) if update else (64, 4096 + 32) if length == 129 else (64,)


def slice_of(batch, dim, length, device, dtype, last):
    """Channels of a wider tensor, as a projection leaves them; a leaf."""
    skip = 4096 if device.type == "cuda" else 64
    if last:
        return torch.randn(batch, length, skip + dim + 64, device=device, dtype=dtype)[:, :, skip:skip + dim].transpose(1, 2).requires_grad_()
    return torch.randn(batch, skip + dim + 64, length, device=device, dtype=dtype)[:, skip:skip + dim].requires_grad_()


def parameters(dim, width, has_bias, device):
    weight = torch.randn(dim, width, device=device, requires_grad=True)
    return weight, torch.randn(dim, device=device, requires_grad=True) if has_bias else None


def again(*tensors):
    return [None if t is None else t.detach().clone().requires_grad_() for t in tensors]


@pytest.mark.parametrize("dtype", TYPES, **named)
@pytest.mark.parametrize("last, has_first, has_final", [(False, False, False), *itertools.product((True,), (False, True), (False, True))])
def test_sequences(last, has_first, has_final, dtype, device):
    for length, (width, has_bias, activation) in itertools.product(lengths(device), options(device)):
        for dim in dims(device, length):
            x, (weight, bias) = slice_of(2, dim, length, device, dtype, last), parameters(dim, width, has_bias, device)
            first = torch.randn(2, width - 1, dim, device=device, dtype=dtype).transpose(1, 2).requires_grad_() if has_first else None
            others = again(x, weight, bias, first)
            y = causal_conv1d_fn(x, weight, bias, initial_states=first, return_final_states=has_final, activation=activation)
            truth = causal_conv1d_ref(others[0], others[1], others[2], initial_states=others[3], return_final_states=has_final, activation=activation)
            if has_final:
                (y, final), (truth, final_truth) = y, truth
                near(final, final_truth, dtype)
            near(y, truth, dtype)
            if has_final:
                y += F.sigmoid(final).sum(dim=-1, keepdim=True)   # in place
                truth += F.sigmoid(final_truth).sum(dim=-1, keepdim=True)
            g = torch.randn_like(y)
            y.backward(g)
            truth.backward(g)
            for t, other, kind in zip((x, weight, bias, first), others, (dtype, None, None, dtype)):
                if t is not None:
                    near(t.grad, other.grad, kind)


def pieces(length, splits):
    """Lengths, 1 or more each, of what a random cut leaves."""
    ends = torch.randperm(length - 1)[:splits].sort().values
    return torch.diff(torch.cat([torch.tensor([-1]), ends, torch.tensor([length - 1])])).tolist()


@pytest.mark.parametrize("dtype", TYPES, **named)
def test_several_sequences_in_a_row(dtype, device):
    for length, (width, has_bias, activation) in itertools.product(lengths(device, 8), options(device)):
        for dim in dims(device, length):
            x, (weight, bias) = slice_of(3, dim, length, device, dtype, True), parameters(dim, width, has_bias, device)
            cuts = [pieces(length, int(torch.randint(1, 5, (1,)))) for _ in range(3)]
            seq_idx = torch.stack([torch.repeat_interleave(torch.arange(len(cut)), torch.tensor(cut)) for cut in cuts]).to(torch.int32).to(device)
            others = again(x, weight, bias)
            y = causal_conv1d_fn(x, weight, bias, seq_idx=seq_idx, activation=activation)
            truth = torch.cat([torch.cat([causal_conv1d_ref(part, others[1], others[2], activation=activation) for part in row.split(cut, 2)], 2)
                               for row, cut in zip(others[0].split(1), cuts)])
            near(y, truth, dtype)
            g = torch.randn_like(y)
            truth.backward(g)
            y.backward(g)
            for t, other, kind in zip((x, weight, bias), others, (dtype, None, None)):
                if t is not None:
                    near(t.grad, other.grad, kind)


@pytest.mark.parametrize("dtype", TYPES, **named)
def test_padding_behind_sequences(dtype, device):
    for dim, length, (width, has_bias, activation) in itertools.product(dims(device), (128, 1024) if device.type == "cuda" else (128,), options(device)):
        x, (weight, bias) = slice_of(3, dim, length, device, dtype, True).detach(), parameters(dim, width, has_bias, device)
        used = [int(torch.randint(length // 2, length, (1,))) for _ in range(3)]
        cuts, seq_idx, count = [pieces(n, int(torch.randint(1, 4, (1,)))) for n in used], torch.full((3, length), -1, dtype=torch.int32), 0
        truth = torch.zeros_like(x)
        for b, (cut, n) in enumerate(zip(cuts, used)):
            seq_idx[b, :n] = torch.repeat_interleave(torch.arange(count, count + len(cut)), torch.tensor(cut))
            count += len(cut)
            truth[b, :, :n] = torch.cat([causal_conv1d_ref(part, weight, bias, activation=activation) for part in x[[b], :, :n].split(cut, 2)], 2)[0].detach()
        near(causal_conv1d_fn(x, weight, bias, seq_idx=seq_idx.to(device), activation=activation), truth, dtype)


@pytest.mark.parametrize("rows", ["own", "gathered", "padded"])
@pytest.mark.parametrize("dtype", TYPES, **named)
def test_next_tokens(dtype, rows, device):
    batch = 64 if device.type == "cuda" else 6
    for dim, length, ring, (width, has_bias, activation) in itertools.product(dims(device, update=True), (1, 4, 5), (False, True), options(device)):
        if rows == "padded" and ring:
            continue
        weight, bias = parameters(dim, width, has_bias, device)
        x = torch.randn(batch, length, dim, device=device, dtype=dtype).transpose(-1, -2)
        held = int(torch.randint(width - 1, width + 10, (1,)))
        state = torch.randn(batch if rows == "own" else 10 * batch, held, dim, device=device, dtype=dtype).transpose(-1, -2)
        index = None if rows == "own" else torch.randperm(10 * batch)[:batch].to(torch.int32).to(device)
        if rows == "padded":
            index[torch.randperm(batch, device=device)[:batch // 2]] = -1
        real = torch.arange(batch, device=device) if index is None else (index != -1).nonzero()[:, 0]
        at = real if index is None else index[real].long()
        expected, theirs = state.clone(), state[at].clone()
        lens = torch.randint(0, 1024, (batch,), dtype=torch.int32, device=device) if ring else None
        y = causal_conv1d_update(x, state, weight, bias, activation=activation, cache_seqlens=lens, conv_state_indices=index)
        truth = causal_conv1d_update_ref(x[real], theirs, weight, bias, activation=activation, cache_seqlens=lens)
        expected[at] = theirs
        assert torch.equal(state, expected)
        near(y[real], truth.detach(), dtype)
        left = torch.ones(batch, dtype=torch.bool, device=device)
        left[real] = False
        assert (y[left] == 0).all() and not y.requires_grad


@pytest.mark.parametrize("dtype", TYPES, **named)
def test_states_of_a_hundred_sequences(dtype, device):
    for dim in dims(device, update=True):
        many = torch.randint(1, 32, (100,), device=device)
        x, ends = torch.randn(int(many.sum()), dim, device=device, dtype=dtype), F.pad(many.cumsum(0), (1, 0))
        assert torch.equal(causal_conv1d_varlen_states(x, ends, 20), causal_conv1d_varlen_states_ref(x, ends, 20))


def gradients(x, weight, bias, g):
    y = causal_conv1d_fn(x, weight, bias, activation="silu")
    return [y.detach(), *torch.autograd.grad(y, (x, weight, bias), g)]


@pytest.mark.parametrize("last", [False, True], ids=["channel-major", "time-major"])
def test_the_same_every_time(last, device):
    """Theirs repeats ten thousand times and lets the gradients of weights differ."""
    large = device.type == "cuda"
    dim, length, times = (4096 + 32, 2048, 200) if large else (80, 300, 20)
    x, (weight, bias) = slice_of(2, dim, length, device, torch.bfloat16, last), parameters(dim, 4, True, device)
    g = torch.randn_like(x)
    one = gradients(x, weight, bias, g)
    for _ in range(times):
        assert all(map(torch.equal, gradients(x, weight, bias, g), one))


@pytest.mark.parametrize("last", [False, True], ids=["channel-major", "time-major"])
def test_deterministic_algorithms(last, device):
    """Asked for or not, and with memory that PyTorch fills with NaN: the same bits."""
    x, (weight, bias) = slice_of(4, dims(device)[0], 200, device, torch.bfloat16, last), parameters(dims(device)[0], 4, True, device)
    g, before = torch.randn_like(x), torch.are_deterministic_algorithms_enabled()
    one = gradients(x, weight, bias, g)
    try:
        torch.use_deterministic_algorithms(True)
        assert all(map(torch.equal, gradients(x, weight, bias, g), one))
    finally:
        torch.use_deterministic_algorithms(before)
