"""What code written for torch.nn does to results, tensors, modules and processes, without a thought of weft."""
from __future__ import annotations

import pytest
import torch

import weft
import weft.functional as W


# ---------------------------------------------------------------------------------------------- results

def _images(device, rank):
    return torch.randn(2, 4, *(5, 6, 7)[:rank], device=device, requires_grad=True)


CHANGED = {
    "conv1d": lambda d: W.conv1d(_images(d, 1), torch.randn(4, 4, 3, device=d)),
    "conv2d-unbatched": lambda d: W.conv2d(_images(d, 2)[0], torch.randn(4, 4, 3, 3, device=d)),
    "conv3d-unbatched": lambda d: W.conv3d(_images(d, 3)[0], torch.randn(4, 4, 1, 3, 3, device=d)),
    "conv_transpose1d": lambda d: W.conv_transpose1d(_images(d, 1), torch.randn(4, 4, 3, device=d)),
    "conv_transpose2d-unbatched": lambda d: W.conv_transpose2d(_images(d, 2)[0], torch.randn(4, 4, 3, 3, device=d)),
    "unfold": lambda d: W.unfold(_images(d, 2), 3),
    "im2col": lambda d: W.im2col(_images(d, 2), 3, 1, 0),
    "fold": lambda d: W.fold(torch.randn(2, 36, 12, device=d, requires_grad=True), (5, 6), 3),
    "max_pool1d": lambda d: W.max_pool1d(_images(d, 1), 2),
    "avg_pool2d-unbatched": lambda d: W.avg_pool2d(_images(d, 2)[0], 2),
    "batch_norm": lambda d: W.batch_norm(_images(d, 1), None, None, training=True),
}


@pytest.mark.parametrize("name", CHANGED)
@pytest.mark.parametrize("pin", [None, "torch"])
def test_results_may_be_changed_in_place(name, pin, device):
    """Also where PyTorch's code made them as views: a ReLU in place after a convolution of sequences."""
    with weft.backends.pin(pin):
        y = CHANGED[name](device)
    assert not y._is_view()
    y.add_(1).sum().backward()
