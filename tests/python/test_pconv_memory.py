"""What partial convolution allocates and keeps: results, new mask and at most the limit of workspace; the published case on a GPU, smaller ones on the CPU."""
from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import weft
import weft.nn as M

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
import pconv_memory as P  # noqa: E402

CASE = P.Case(batch=4, channels=16, filters=32, kernel=5, padding=2, size=48)
LIMIT = 1 << 20   # holds an image of CASE (16 + 32 channels of 9 kB) twice, and its weights
CPU = torch.device("cpu")   # a GPU's convolution takes memory of its own besides, too much for so small a limit


def of_weft(case, device, limit, road="torch"):
    module, x, mask = case.make(device)
    with weft.backends.flags(workspace_limit=limit, pin=road):
        return P.measure(module, [module.get_weight(), module.get_bias()], x, mask)


@pytest.mark.parametrize("road", ["torch", "partial_conv_ref"])
def test_results_and_workspace(road):
    """Both roads, with a limit below the masked copy and the convolution of the batch, which is what they do without."""
    found = of_weft(CASE, CPU, LIMIT, road)
    copy, y = CASE.batch * CASE.channels * CASE.size ** 2 * 4, CASE.batch * CASE.filters * CASE.size ** 2 * 4
    assert copy + y > 1.5 * LIMIT
    assert found["results"] == y + CASE.batch * CASE.size ** 2 * 4 and found["results"] <= found["forward"] <= found["results"] + LIMIT
    assert found["gradients"] == copy + 4 * (CASE.filters * CASE.channels * CASE.kernel ** 2 + CASE.filters)
    assert found["gradients"] <= found["backward"] <= found["gradients"] + LIMIT
    assert found["kept"] == CASE.batch * CASE.size ** 2 * 4   # window sums


def test_workspace_does_not_grow_with_the_batch():
    """But for the window sums, a plane of float32 for each image, which backward needs."""
    sums = CASE.size ** 2 * 4
    few, many = (of_weft(replace(CASE, batch=n), CPU, LIMIT) for n in (4, 12))
    assert many["forward"] - many["results"] <= few["forward"] - few["results"] + 8 * sums
    assert many["backward"] - many["gradients"] <= few["backward"] - few["gradients"]


def test_the_limit_is_what_bounds_it():
    """Without one the whole batch goes at once, and the measurement sees it."""
    free, bound = (of_weft(CASE, CPU, limit) for limit in (1 << 40, LIMIT))
    assert free["forward"] - free["results"] > LIMIT and free["backward"] - free["gradients"] > LIMIT
    assert bound["forward"] < free["forward"] and bound["backward"] < free["backward"]


def test_a_gradient_of_zero_strides_is_not_copied():
    """That of a sum: one element for all, as in the old system's own test."""
    module, x, mask = CASE.make(CPU)
    x.requires_grad_()
    with weft.backends.flags(workspace_limit=LIMIT, pin="torch"):
        y, _ = module(x, mask)
        peak, _, _ = P.peak_of(lambda: y.sum().backward(), CPU)
    gradients = x.grad.nbytes + module.get_weight().grad.nbytes + module.get_bias().grad.nbytes
    assert peak <= gradients + LIMIT < gradients + y.nbytes


@pytest.mark.parametrize("multi", [False, True])
def test_nvidias_module(multi):
    module = M.PartialConv2d(16, 32, 5, padding=2, multi_channel=multi, return_mask=True)
    x = torch.randn(4, 16, 48, 48)
    mask = torch.rand(4, 16 if multi else 1, 48, 48) > 0.5
    with weft.backends.flags(workspace_limit=LIMIT, pin="torch"):
        found = P.measure(module, [module.weight, module.bias], x, mask)
    assert found["results"] == 4 * 48 * 48 * (32 * 4 + (32 if multi else 1))
    assert found["forward"] <= found["results"] + LIMIT and found["backward"] <= found["gradients"] + LIMIT


def test_an_image_of_more_than_the_default_limit():
    """Where the caller has set none it is computed all the same, one at a time."""
    x, w, mask = torch.ones(2, 256, 128, 270), torch.ones(256, 1, 1, 3), torch.ones(2, 1, 128, 270, dtype=torch.uint8)
    with weft.backends.pin("torch"), torch.no_grad():
        y, new = weft.functional.partial_conv2d(x, w, None, mask, groups=256)
    assert x[0].nbytes + y[0].nbytes > 64 << 20 and weft.backends.kernels().startswith("torch")
    assert y.shape == (2, 256, 128, 268) and (y.amin(), y.amax()) == (3, 3) and bool(new.bool().all())


def test_what_is_kept(device):
    """x, the weight and the mask themselves, and the window sums."""
    module, x, mask = CASE.make(device)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        module(x.requires_grad_(), mask)
    known = {t.data_ptr() for t in (x, mask, module.get_weight())}
    assert sum(t.nbytes for t in kept if t.data_ptr() not in known) == mask.nbytes and len(kept) == 4


def test_the_published_case(device):
    """On a GPU as published; on the CPU a smaller one, which examples/pconv_memory.py --full completes: 60 MB forward, 63 MB backward."""
    case = P.FULL if device.type == "cuda" else P.SMALL
    if device.type == "cuda":
        torch._C._set_cudnn_deterministic(False)   # as users have it: its deterministic algorithms take more workspace
    found = of_weft(case, device, None)
    assert found["forward"] <= found["results"] + P.LIMIT and found["backward"] <= found["gradients"] + P.LIMIT
    if device.type == "cuda":
        assert found["forward"] < P.PUBLISHED["torch_pconv"][0] and found["backward"] < P.PUBLISHED["torch_pconv"][1]


def test_the_table(capsys):
    with weft.backends.flags(workspace_limit=1 << 18):   # scratch for speed, up to 64 MB by default, would hide what is compared on so small a case
        P.show(replace(P.SMALL, batch=1, size=40), CPU)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["peak", "bytes", "forward", "kept", "between", "backward"]
    numbers = {line.split()[0]: [int(n.replace(",", "")) for n in line.split()[-3:]] for line in lines[2:5]}
    assert numbers["weft"][0] < numbers["plain"][0] and numbers["weft"][2] < numbers["plain"][2]
    assert all(ours >= least for ours, least in zip(numbers["weft"], numbers["needed"]))
