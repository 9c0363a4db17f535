"""Claims of the contract that no other test states: large windows against torch, and what a plan asks for in workspace."""
import ctypes

import pytest
import torch
import torch.nn.functional as F

import capi


def workspace(text):
    plan = ctypes.c_void_p()
    capi.check(capi.LIB.weft_plan_create(ctypes.byref(plan), capi.context(), capi.parse(text), None))
    try:
        return capi.LIB.weft_plan_workspace_bytes(plan)
    finally:
        capi.LIB.weft_plan_release(plan)


@pytest.mark.parametrize("kh,kw", [(7, 7), (9, 5), (31, 31), (51, 3)])
@pytest.mark.parametrize("last", [False, True])
def test_large_windows(kh, kw, last):
    x, w = torch.randn(1, 2, 17, 13), torch.randn(2, 1, kh, kw)
    xd, wd = x.double().requires_grad_(), w.double().requires_grad_()
    want = F.conv2d(xd, wd, padding=(kh // 2, kw // 2), groups=2)
    dy = torch.randn(want.shape)
    dx, dw = torch.autograd.grad(want, (xd, wd), dy.double())
    x, dy = capi.layout(x, last), capi.layout(dy, last)
    tail = f"f32:{capi.tag(2, last)}:n1c2h17w13:o2k{kh}x{kw}p{kh // 2}x{kw // 2}g2"
    y = capi.run(f"conv2d:fwd:{tail}", src=x, weights=w, dst=torch.empty_like(dy))["dst"]
    capi.close(y, want.detach(), torch.float32)
    out = capi.run(f"conv2d:bwd:{tail}", src=x, weights=w, diff_dst=dy, diff_src=torch.empty_like(x), diff_weights=torch.empty_like(w))
    capi.close(out["diff_src"], dx, torch.float32)
    capi.close(out["diff_weights"], dw, torch.float32)


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("pass_", ["bwd_weights", "bwd"])
def test_depthwise_weight_gradients_keep_partial_sums_of_the_weights_size(layout, pass_):
    """O(C k k) a slot, at most 128 slots, and rows of outputs on their way: it does not grow with the batch."""
    sizes = [workspace(f"conv2d:{pass_}:f32:{layout}:n{n}c64h56w56:o64k3p1g64") for n in (16, 64)]
    weights = 64 * 9 * 4
    assert sizes[0] == sizes[1]
    assert sizes[0] <= 128 * (4 * weights + 64 * 1024)


def test_partial_convolution_keeps_no_masked_copy():
    """The case of the old system's table: it kept x*m (268 MB) beside the output."""
    case = "n16c64h256w256:o128k9p3:bias"
    for pass_ in ("fwd", "bwd"):
        assert workspace(f"partial_conv2d:{pass_}:f32,mask=u8:nchw:{case}") <= 64 << 20
