"""Convolution in every pass, and adaptive and average pooling, on tensors that reach past element 2^31; NaN and infinity through the means."""
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import capi


def far_copy(x):
    return capi.far(tuple(x.shape), x.dtype).copy_(x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_convolution_beyond_two_to_the_31(dtype):
    x, w, dy = torch.randn(2, 4, 6, 7), torch.randn(4, 1, 3, 3), torch.randn(2, 4, 6, 7)
    x, w, dy = (t.to(dtype) for t in (x, w, dy))
    xd, wd = x.double().requires_grad_(), w.double().requires_grad_()
    want = F.conv2d(xd, wd, padding=1, groups=4)
    dx, dw = torch.autograd.grad(want, (xd, wd), dy.double())
    fx, fy, fdy, fdx = far_copy(x), far_copy(torch.zeros_like(x)), far_copy(dy), far_copy(torch.zeros_like(x))

    def text(pass_, **tensors):
        return f"conv2d:{pass_}:{capi.DTYPES[dtype]}:nchw{capi.strided(**tensors)}:n2c4h6w7:o4k3p1g4"

    capi.run(text("fwd", src=fx, dst=fy), src=fx, weights=w, dst=fy)
    capi.close(fy, want.detach(), dtype)
    got = torch.empty_like(w)
    capi.run(text("bwd", src=fx, diff_dst=fdy, diff_src=fdx), src=fx, weights=w, diff_dst=fdy, diff_src=fdx, diff_weights=got)
    capi.close(fdx, dx, dtype)
    capi.close(got, dw, dtype)


@pytest.mark.parametrize("op,attrs,twin", [("adaptive_avg_pool", "to3x2", lambda t: F.adaptive_avg_pool2d(t, (3, 2))),
                                           ("avg_pool", "k2s2", lambda t: F.avg_pool2d(t, 2, 2))])
def test_means_beyond_two_to_the_31(op, attrs, twin):
    x = torch.randn(2, 3, 6, 4).bfloat16()
    xd = x.double().requires_grad_()
    want = twin(xd)
    dy = torch.randn(want.shape).bfloat16()
    (dx,) = torch.autograd.grad(want, xd, dy.double())
    fx, fy, fdy, fdx = far_copy(x), far_copy(torch.zeros_like(dy)), far_copy(dy), far_copy(torch.zeros_like(x))

    def text(pass_, **tensors):
        return f"{op}2d:{pass_}:bf16:nchw{capi.strided(**tensors)}:n2c3h6w4:{attrs}"

    capi.run(text("fwd", src=fx, dst=fy), src=fx, dst=fy)
    capi.close(fy, want.detach(), torch.bfloat16)
    capi.run(text("bwd", diff_dst=fdy, diff_src=fdx), diff_dst=fdy, diff_src=fdx)
    capi.close(fdx, dx, torch.bfloat16)


@pytest.mark.parametrize("op,attrs,twin", [("adaptive_avg_pool", "to3x2", lambda t: F.adaptive_avg_pool2d(t, (3, 2))),
                                           ("avg_pool", "k3s2p1", lambda t: F.avg_pool2d(t, 3, 2, 1))])
def test_nan_and_infinity_go_where_torch_sends_them(op, attrs, twin):
    x = torch.randn(1, 2, 6, 4)
    x[0, 0, 1, 1], x[0, 1, 0, 0], x[0, 1, 5, 3], x[0, 1, 5, 2] = float("nan"), float("inf"), float("inf"), -float("inf")
    want = twin(x)
    got = capi.run(f"{op}2d:fwd:f32:nchw:n1c2h6w4:{attrs}", src=x, dst=torch.empty_like(want))["dst"]
    capi.close(got, want, torch.float32)


def test_causal_kernels_of_the_emulated_gpu_beyond_two_to_the_31():
    build, here = Path(os.environ.get("WEFT_LIBRARY", "")).parent, Path(__file__).parent
    if not (build / "emulator").is_dir():
        pytest.skip("no emulated GPU beside the library")
    done = subprocess.run([here.parent / "emulator" / "run", sys.executable, here / "far_causal.py"], env={**os.environ, "BUILD": str(build)}, capture_output=True,
                          text=True)
    assert done.returncode == 0 and "far and right" in done.stdout, done.stderr
