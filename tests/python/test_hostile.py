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
    "conv2d-unbatched-double": lambda d: W.conv2d(_images(d, 2)[0].double(), torch.randn(4, 4, 3, 3, device=d).double()),
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


# ---------------------------------------------------------------------------------------------- tensors of other kinds

def test_layouts_that_weft_leaves_to_pytorch():
    """oneDNN's tensors, as torch.utils.mkldnn makes them: modules without weights stay weft's there."""
    from torch.utils.mkldnn import to_mkldnn
    net = torch.nn.Sequential(weft.nn.Conv2d(3, 8, 3), weft.nn.BatchNorm2d(8), weft.nn.ReLU(), weft.nn.MaxPool2d(2), weft.nn.AvgPool2d(2)).eval()
    x = torch.randn(2, 3, 18, 18)
    expected = net(x)
    w, mean, var = torch.randn(4, 3, 3, 3), torch.zeros(3), torch.ones(3)
    torch.testing.assert_close(to_mkldnn(net)(x.to_mkldnn()).to_dense(), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(W.conv2d(x.to_mkldnn(), w, act="relu").to_dense(), W.conv2d(x, w, act="relu"), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(W.batch_norm(x.to_mkldnn(), mean, var, mean, var).to_dense(), W.batch_norm(x, mean, var, mean, var), rtol=1e-4, atol=1e-4)


# ---------------------------------------------------------------------------------------------- arguments

def _given(**wrong):
    """A call of batch_norm or cross_entropy with one setting."""
    x, labels = torch.randn(3, 4), torch.tensor([0, 1, 2])
    return W.cross_entropy(x, labels, **wrong) if "label_smoothing" in wrong else W.batch_norm(x, torch.zeros(4), torch.ones(4), training=True, **wrong)


@pytest.mark.parametrize("name", ["label_smoothing", "momentum", "eps"])
@pytest.mark.parametrize("value", [torch.tensor(0.5, requires_grad=True), torch.tensor([0.5, 0.5])], ids=["grad", "two"])
def test_a_setting_has_no_gradient(name, value):
    with pytest.raises(TypeError, match=f"{name}:? is tensor.*, allowed: a float"):
        _given(**{name: value})


@pytest.mark.parametrize("run, name", [
    (lambda n: W.conv2d(torch.ones(1, 1, 5, 5), torch.ones(1, 1, 3, 3), stride=n), "stride"),
    (lambda n: W.conv_transpose1d(torch.ones(1, 1, 5), torch.ones(1, 1, 3), output_padding=(n,)), "output_padding"),
    (lambda n: W.max_pool2d(torch.ones(1, 1, 5, 5), 2, padding=(0, n)), "padding"),
    (lambda n: W.unfold(torch.ones(1, 1, 5, 5), n), "kernel_size")])
@pytest.mark.parametrize("n", [2**63, -2**70])
def test_numbers_beyond_64_bits(run, name, n):
    with pytest.raises(ValueError, match=f"{name}: has {n}, allowed: "):
        run(n)


@pytest.mark.parametrize("module", [weft.nn.Tanh(), weft.nn.Sigmoid(), weft.nn.MaxPool2d(2), weft.nn.LocalResponseNorm(2), weft.nn.SpatialCrossEntropyLoss()],
                         ids=lambda m: type(m).__name__)
def test_what_is_no_tensor(module):
    """TypeError, as of the modules of torch.nn that call an operator; where the twin calls a method of the input, AttributeError too."""
    with pytest.raises(TypeError, match="input is NoneType, allowed: Tensor"):
        module(*[None] * (2 if "Loss" in type(module).__name__ else 1))


# ---------------------------------------------------------------------------------------------- memory that is not to be written

def test_inference_tensors_are_written_in_inference_mode_only(device):
    with torch.inference_mode():
        kept, x = torch.full((3,), -1.0, device=device), torch.ones(3, device=device)
        W.relu(x, out=W.relu(kept.clone(), inplace=True))
    for run in (lambda: W.relu(kept, inplace=True), lambda: W.relu(x, out=kept)):
        with pytest.raises(RuntimeError, match="(input|out): was made in inference mode, allowed outside of it: a tensor that was not"):
            run()
    assert torch.equal(kept, torch.full_like(kept, -1))


def test_out_of_negatives(device):
    memory = torch.full((3,), 5.0, device=device)
    with pytest.raises(RuntimeError, match="out: is a view whose elements are the negatives of its memory"):
        W.relu(torch.ones(3, device=device), out=torch._neg_view(memory))
    assert torch.equal(memory, torch.full_like(memory, 5))
