"""The causal convolution as its formula says it, for the tests beside it."""
from __future__ import annotations

import torch
import torch.nn.functional as F

from cases import close
from weft.causal_conv1d import causal_conv1d_fn


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
