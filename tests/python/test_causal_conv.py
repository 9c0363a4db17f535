"""weft.causal_conv1d against the plain formula in float64: widths, lengths, channels, types."""
from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from cases import DTYPES, close
from causal import compare, data, parameters
from weft.causal_conv1d import causal_conv1d_fn


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
