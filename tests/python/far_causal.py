"""The CUDA kernels of the causal convolution on the emulated GPU, with steps of one axis that reach past element 2^31 in memory that is only reserved.
Run by test_far.py: tests/emulator/run python tests/python/far_causal.py"""
import sys
from pathlib import Path

import torch
import torch.nn.functional as F

sys.path[:0] = [str(Path(__file__).parents[2] / "python"), str(Path(__file__).parent)]
import capi  # noqa: E402

N, C, W = 2, 5, 9
FAR = {"n": 2**31 + 16, "c": 2**29 + 16, "t": 2**28 + 16}   # of the last item of the axis the first element is past 2^31


def far(x, tag, axis):
    """x with that axis stretched; the others lie close, in the order of the tag."""
    step, near = dict.fromkeys("nct", 0), 1
    for name in ("t", "c", "n") if tag == "ncw" else ("c", "t", "n"):
        step[name] = FAR[axis] if name == axis else near
        near *= 1 if name == axis else 16
    strides = tuple(step[name] for name in "nct")
    return torch.empty(sum(d * s for d, s in zip(x.shape, strides)) + 16, dtype=x.dtype).as_strided(x.shape, strides).copy_(x)


def check(tag, axis, width, kernel):
    x, dy, weight, bias = torch.randn(N, C, W), torch.randn(N, C, W), torch.randn(C, 1, width) / width**0.5, torch.randn(C)
    true = [t.double().requires_grad_() for t in (x, weight, bias)]
    y = F.silu(F.conv1d(F.pad(true[0], (width - 1, 0)), true[1], true[2], groups=C))
    dx, dw, db = torch.autograd.grad(y, true, dy.double())
    src, diff_dst, dst, diff_src = (far(t, tag, axis) for t in (x, dy, torch.zeros_like(x), torch.zeros_like(x)))
    sizes = f"n{N}c{C}w{W}:k{width}:bias+silu@cuda"
    capi.run(f"causal_conv1d:fwd:f32:{tag}{capi.strided(src=src, dst=dst)}:{sizes}", f"causal_conv_fwd_{kernel}__cuda", src=src, weights=weight, bias=bias,
             dst=dst)
    capi.close(dst, y.detach(), torch.float32)
    got, got_bias = torch.zeros_like(weight), torch.zeros_like(bias)
    capi.run(f"causal_conv1d:bwd:f32:{tag}{capi.strided(src=src, diff_dst=diff_dst, diff_src=diff_src)}:{sizes}", f"causal_conv_bwd_{kernel}__cuda",
             src=src, weights=weight, bias=bias, diff_dst=diff_dst, diff_src=diff_src, diff_weights=got, diff_bias=got_bias)
    for mine, theirs in ((diff_src, dx), (got, dw), (got_bias, db)):
        capi.close(mine, theirs, torch.float32)


if __name__ == "__main__":
    torch.manual_seed(1)
    for case in (("ncw", "n", 4, "ncw_16b"), ("ncw", "c", 4, "ncw_16b"), ("ncw", "c", 9, "ncw_16b"), ("nwc", "n", 4, "nwc"), ("nwc", "t", 4, "nwc"),
                 ("nwc", "n", 9, "nwc_wide"), ("nwc", "t", 9, "nwc_wide")):
        check(*case)
    print("far and right")
