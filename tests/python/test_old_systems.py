"""Every case of the old systems' own tests and every example of their READMEs has a twin: the table says where. Those that no other file has
are below, rewritten, at the sources' sizes where that is quick and at smaller ones where it is not.
"""
from __future__ import annotations

import io
import re
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import weft
import weft.functional as W
from cases import tolerance
from conftest import ROOT
from weft import torch7 as t7
from weft._bench.clock import peak

# the old case -> its twins, as file::test
TWINS = {
    # PyINN, test/test.py, test/benchmark.py and README
    "pyinn testNCReLU": "test_old_systems::test_pyinn_ncrelu",
    "pyinn testDGMM": "test_torch_dgmm::test_old_tests",
    "pyinn testCDGMM": "test_old_systems::test_pyinn_cdgmm",
    "pyinn testCDGMMscat": "test_torch_dgmm::test_old_tests",
    "pyinn test_im2col": "test_old_systems::test_pyinn_columns",
    "pyinn test_im2col_batch": "test_old_systems::test_pyinn_columns",
    "pyinn test_conv2d_depthwise": "test_old_systems::test_pyinn_depthwise",
    "pyinn test_conv2d_depthwise_multigpu": "test_old_systems::test_pyinn_two_gpus",
    "pyinn test_modules": "test_old_systems::test_pyinn_module",
    "pyinn benchmark.py, MobileNet by functions": "test_old_systems::test_pyinn_mobilenet, test_bench::test_mobilenet_benchmark_is_the_sources",
    "pyinn README, function and module": "test_documents::test_snippets",
    "pyinn README, im2col for a matrix product": "test_torch_im2col::test_old_definition",
    # torch_pconv, tests/test_pconv.py and README
    "torch_pconv test_output_shapes": "test_pconv_modules::test_output_shapes_and_types",
    "torch_pconv test_output_dtype": "test_pconv_modules::test_output_shapes_and_types",
    "torch_pconv test_input_shape": "test_old_systems::test_pconv_input",
    "torch_pconv test_input_dtype": "test_old_systems::test_pconv_input",
    "torch_pconv test_mask_values_binary": "test_pconv_modules::test_iterated",
    "torch_pconv test_dilation": "test_pconv_modules::test_iterated",
    "torch_pconv test_bias": "test_pconv_modules::test_iterated, test_pconv_modules::test_legacy_rounds_as_nvidia_does",
    "torch_pconv test_backpropagation": "test_pconv_modules::test_backpropagation",
    "torch_pconv test_memory_complexity": "test_old_systems::test_pconv_memory, test_pconv_memory::test_results_and_workspace",
    "torch_pconv README, memory table": "test_pconv_memory::test_the_published_case, test_pconv_memory::test_the_table",
    "torch_pconv test_iterated_equality": "test_pconv_modules::test_iterated",
    "torch_pconv test_equality": "test_old_systems::test_pconv_equality",
    "torch_pconv README usage": "test_documents::test_snippets",
    # NVIDIA, README
    "partialconv README, padding": "test_pconv_modules::test_padding_without_a_mask, test_documents::test_snippets",
    "partialconv README, inpainting": "test_pconv_modules::test_partial, test_documents::test_snippets",
    "partialconv README, mixed precision": "test_old_systems::test_partial_mixed_precision, test_partial_conv::test_epsilon_is_safe_in_half",
    "partialconv README, networks with partial padding": "test_old_systems::test_partial_padding_in_a_network",
    "partialconv README, checkpoints": "test_pconv_modules::test_nvidia_state_dict",
    # the grouped 3D module, README
    "grouped3d README, usage": "test_documents::test_snippets, test_grouped3d::test_twin",
    "grouped3d README, from_cache": "test_grouped3d::test_from_cache, test_grouped3d::test_a_missing_entry",
    "grouped3d README, tuner_config": "test_grouped3d::test_the_time_is_limited",
    "grouped3d tc_timings.py": "test_grouped3d::test_the_case_of_the_source",
    "grouped3d README, groups 1 and 64 in 2D and 3D": "test_old_systems::test_groups_of_the_table",
    # cudnn.torch, test/test.lua
    **{f"cudnn.torch {name}": "test_torch7::test_twin, test_old_systems::test_layer, test_convert::test_a_module_as_root" for name in (
        "SpatialConvolution", "SpatialFullConvolution", "VolumetricConvolution", "VolumetricFullConvolution", "VolumetricMaxPooling", "SpatialMaxPooling",
        "SpatialAveragePooling", "ReLU", "Tanh", "Sigmoid", "SpatialCrossMapLRN_batch", "SoftMax_single", "LogSoftMax")},
    "cudnn.torch TemporalConvolution": "test_torch7::test_temporal",
    "cudnn.torch TemporalConvolution_padding_batch": "test_old_systems::test_temporal_padding",
    "cudnn.torch TemporalConvolution_reduceBatchSize": "test_old_systems::test_temporal_smaller_batch",
    "cudnn.torch ClippedReLU_single": "test_old_systems::test_clipped",
    "cudnn.torch SpatialLogSoftMax": "test_torch7::test_twin",
    "cudnn.torch VolumetricLogSoftMax": "test_torch7::test_twin",
    **{f"cudnn.torch {name}": "test_old_systems::test_batch_normalisation, test_torch7::test_twin, test_convert::test_a_module_as_root" for name in (
        "BatchNormalization", "SpatialBatchNormalization", "VolumetricBatchNormalization", "bntest.lua")},
    "cudnn.torch SpatialCrossEntropyCriterion": "test_torch7::test_criteria_count_from_one",
    "cudnn.torch VolumetricCrossEntropyCriterion": "test_torch7::test_criteria_count_from_one",
    **{f"cudnn.torch functional_{name}": "test_old_systems::test_functional" for name in (
        "convolution2d", "bias2D", "maxpooling2d", "relu", "tanh", "sigmoid", "logsoftmax", "softmax")},
    "cudnn.torch test_1x1conv.lua": "test_old_systems::test_windows_of_one",
    "cudnn.torch test_groups.lua": "test_old_systems::test_two_groups",
    "cudnn.torch test_spatialFullConv.lua": "test_old_systems::test_full_convolution",
    **{f"cudnn.torch test_rnn.lua {name}": "test_old_systems::test_checksums" for name in (
        "testRNNRELU", "testRNNBatchFirst", "testRNNTANH", "testRNNLSTM", "testRNNGRU", "testBiDirectionalRELURNN", "testBiDirectionalTANHRNN",
        "testBiDirectionalLSTMRNN", "testBiDirectionalGRURNN")},
    "cudnn.torch test_rnn.lua testPackPadSequences": "test_old_systems::test_packing",
    "cudnn.torch test_rnn.lua testVariableLengthSequences": "test_old_systems::test_sequences_of_many_lengths",
    "cudnn.torch benchmark.lua": "test_torch7::test_modes_of_every_convolution, test_bench::test_row_of_any_operator",
    "cudnn.torch bench_groups.lua": "test_bench::test_row_of_any_operator",
    "cudnn.torch README, modules": "test_torch7::test_every_name_and_default",
    "cudnn.torch README, modes": "test_backends::test_attributes_and_flags",
    "cudnn.torch README, convert": "test_old_systems::test_convert_as_printed",
    # the Escoin port, scripts and README
    "escoin test_behaviour.py": "test_sparse_modes::test_lenet_layer",
    "escoin test_behaviour_full_net.py": "test_sparse_modes::test_lenet",
    "escoin vgg16_benchmark.py, resnet_benchmark.py, alexnet_benchmark.py": "test_sparse_modes::test_benchmark_script",
    "escoin README, SparseConv2D": "test_sparse_modules::test_twin",
    "escoin README, SparseModel and modes": "test_sparse_modes::test_modes_have_the_old_numbers, test_documents::test_snippets",
}


@pytest.mark.parametrize("case", TWINS)
def test_every_case_has_a_twin(case):
    for twin in TWINS[case].split(", "):
        file, _, name = twin.partition("::")
        path = ROOT / "tests" / "python" / f"{file}.py"
        assert path.exists() and re.search(rf"^def {name}\(", path.read_text(), re.M), f"{case}: {twin} is not there"


def gradients(y, inputs, g=None):
    return torch.autograd.grad(y, inputs, torch.ones_like(y) if g is None else g)


def same(ours, theirs, tolerance=1e-6):
    """Results and gradients, each to so much of its largest value."""
    for a, b in zip(ours, theirs, strict=True):
        assert a.shape == b.shape and (a - b).abs().max() <= tolerance * max(1.0, b.abs().max().item())


def reloaded(module):
    """Through a file, as the source's tests send every layer."""
    stream = io.BytesIO()
    torch.save(module, stream)
    stream.seek(0)
    return torch.load(stream, weights_only=False)


# ---------------------------------------------------------------- PyINN

@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_pyinn_ncrelu(dtype, device):
    x, g = torch.randn(2, 5, 3, 1, dtype=dtype, device=device, requires_grad=True), torch.randn(2, 10, 3, 1, dtype=dtype, device=device)
    y, expected = weft.ncrelu(x), torch.cat([F.relu(x), -F.relu(-x)], 1)
    assert torch.equal(y, expected) and torch.equal(*(gradients(t, x, g)[0] for t in (y, expected)))


def test_pyinn_cdgmm(device):
    """Pairs of floats as complex numbers; the gradient of x, which the source lacked, too."""
    a, x = torch.randn(16, 8, 2, device=device, requires_grad=True), torch.randn(8, 2, device=device, requires_grad=True)
    real, imaginary = a[..., 0] * x[:, 0] - a[..., 1] * x[:, 1], a[..., 0] * x[:, 1] + a[..., 1] * x[:, 0]
    y, expected = weft.cdgmm(a, x), torch.stack([real, imaginary], -1)
    same((y, *gradients(y, (a, x))), (expected, *gradients(expected, (a, x))))


@pytest.mark.parametrize("shape", [(8, 7, 7), (4, 8, 7, 7)])
def test_pyinn_columns(shape, device):
    x = torch.randn(shape, device=device)
    columns = weft.im2col(x, 1, (1, 1), 0)
    assert columns.shape == (*shape[:-2], 1, 1, 7, 7) and torch.equal(weft.col2im(columns, 1, (1, 1), 0), x)


def test_pyinn_depthwise(device):
    x, w = (torch.randn(s, dtype=torch.float64, device=device, requires_grad=True) for s in ((1, 6, 5, 5), (6, 1, 3, 3)))
    y, expected = weft.conv2d_depthwise(x, w, padding=1), F.conv2d(x, w, padding=1, groups=6)
    same((y, *gradients(y, (x, w))), (expected, *gradients(expected, (x, w))), 1e-12)
    assert torch.autograd.gradcheck(partial(weft.conv2d_depthwise, padding=1), (x, w))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two GPUs")
def test_pyinn_two_gpus():
    for place in ("cuda:0", "cuda:1", "cuda:0"):
        x, w = (torch.randn(s, device=place, requires_grad=True) for s in ((1, 6, 5, 5), (6, 1, 3, 3)))
        y, expected = weft.conv2d_depthwise(x, w, padding=1), F.conv2d(x, w, padding=1, groups=6)
        same((y, *gradients(y, (x, w))), (expected, *gradients(expected, (x, w))), 1e-5)


def test_pyinn_module(device):
    module, x = weft.Conv2dDepthwise(channels=8, kernel_size=3), torch.randn(1, 8, 5, 5)
    y = module(x)
    same((module.to(device)(x.to(device)).cpu(),), (y,))


def test_pyinn_mobilenet(device):
    """The benchmark's network, by functions of a dictionary of weights: both depthwise functions give the same sum and gradients."""
    widths = [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1)]
    count, weights = 4, {"stem": torch.randn(4, 3, 3, 3) * 0.3}
    for i, (width, _) in enumerate(widths):
        weights[f"{i} depthwise"] = torch.randn(count, 1, 3, 3) * (2 / 9) ** 0.5
        weights[f"{i} pointwise"] = torch.randn(width // 8, count, 1, 1) * (2 / count) ** 0.5
        count = width // 8
    weights = {name: w.to(device).requires_grad_() for name, w in weights.items()}

    def run(x, depthwise):
        x = F.relu(F.conv2d(x, weights["stem"], stride=2, padding=1))
        for i, (_, stride) in enumerate(widths):
            x = F.relu(depthwise(x, weights[f"{i} depthwise"], stride=stride, padding=1))
            x = F.relu(F.conv2d(x, weights[f"{i} pointwise"]))
        return x.sum()

    x = torch.randn(2, 3, 64, 64, device=device)
    theirs = run(x, lambda x, w, stride, padding: F.conv2d(x, w, stride=stride, padding=padding, groups=x.size(1)))
    ours = run(x, weft.conv2d_depthwise)
    same((ours, *gradients(ours, list(weights.values()))), (theirs, *gradients(theirs, list(weights.values()))), 1e-4)


# ---------------------------------------------------------------- torch_pconv and NVIDIA

def test_pconv_input(device):
    """Ranks and types: what is taken, and what is a TypeError. A bool mask, an error in the source, is good here."""
    pconv = weft.nn.PConv2d(3, 8, 7, stride=2, padding=3).to(device)
    images, masks = torch.rand(2, 3, 32, 32, device=device), (torch.rand(2, 32, 32, device=device) > 0.5)
    assert torch.equal(pconv(images, masks.float())[0], pconv(images, masks)[0])
    for x, m in ((images[:, 0], masks.float()), (images, masks[:, None].expand(2, 3, 32, 32).float()), ((images * 255).to(torch.uint8), masks.float()),
                 (images, masks.long())):
        with pytest.raises(TypeError, match="PConv2d: (x|mask) (is|has) .*allowed"):
            pconv(x, m)


def test_pconv_equality(device):
    """One layer of the source's size in channels and kernel against both of its witnesses, which are one formula."""
    pconv = weft.nn.PConv2d(3, 64, 5).to(device)
    x, m = torch.rand(2, 3, 32, 32, device=device), (torch.rand(2, 32, 32, device=device) > 0.5).float()
    s = F.conv2d(m[:, None], torch.ones(1, 1, 5, 5, device=device)) * 3
    u = s.clamp(0, 1)
    y, mask = pconv(x, m)
    same((y, mask), (F.conv2d(x * m[:, None], pconv.get_weight()) * (75 / (s + 1e-8) * u), u[:, 0]), 1e-5)


@pytest.mark.parametrize("delegate", [True, False])
def test_pconv_memory(delegate, device):
    """Result, new mask, sums of the mask and a workspace of 1 MB, where a masked copy of the image, which the source made, is 8 MB; and what is
    kept for the gradient beside the arguments is no more than a plane of sums."""
    pconv = weft.nn.PConv2d(8, 2, 3, padding=1, bias=True).to(device)
    x, mask = torch.rand(1, 8, 512, 512, device=device, requires_grad=True), (torch.rand(1, 512, 512, device=device) > 0.5).float()
    with weft.backends.flags(workspace_limit=1 << 20, delegate=delegate and device.type == "cpu"):   # cuDNN's workspace is its own
        kept = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
            y, new = pconv(x, mask)
        given = {t.untyped_storage().data_ptr() for t in (x, mask, pconv.get_weight(), pconv.get_bias())}
        assert sum(t.nbytes for t in kept if t.untyped_storage().data_ptr() not in given) <= new.nbytes
        assert y.nbytes <= peak(lambda: pconv(x, mask)[0], device) <= y.nbytes + 2 * new.nbytes + (1 << 20) + 4096


def test_partial_mixed_precision(device):
    """Half the digits by autocast, without the larger constant that NVIDIA's page asks for; a gradient scaler sees finite gradients."""
    layer = weft.nn.PartialConv2d(3, 16, kernel_size=3, padding=1, bias=False, multi_channel=True, return_mask=True).to(device)
    x, mask = torch.rand(2, 3, 16, 16, device=device), (torch.rand(2, 3, 16, 16, device=device) > 0.9).float()
    expected, wide = layer(x, mask)
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast(device.type, dtype=dtype):
            y, new = layer(x, mask)
        assert y.dtype == dtype and torch.equal(new.float(), wide) and y.isfinite().all()
        same((y.float(),), (expected,), 16 * torch.finfo(dtype).eps)
        grad, = gradients(y, layer.weight, torch.full_like(y, 64.0))
        assert grad.isfinite().all() and grad.abs().sum() > 0


def test_partial_padding_in_a_network(device):
    """Convolutions that pad by partial convolution in the place of ordinary ones, with the weights of an ordinary network: each result is scaled by
    how many of its pixels are in the image, and the network trains."""
    def block(conv):
        return torch.nn.Sequential(conv(3, 8, kernel_size=3, padding=1, bias=False), torch.nn.BatchNorm2d(8), torch.nn.ReLU(),
                                   conv(8, 8, kernel_size=3, stride=2, padding=1, bias=False)).to(device)
    zeros, padded = block(torch.nn.Conv2d), block(weft.nn.PartialConv2d)
    padded.load_state_dict(zeros.state_dict())
    x, ones, window = torch.randn(4, 3, 9, 9, device=device), torch.ones(1, 1, 9, 9, device=device), torch.ones(1, 1, 3, 3, device=device)
    scales = [9 / F.conv2d(ones, window, stride=stride, padding=1) for stride in (1, 2)]
    expected = zeros[3](zeros[1:3](zeros[0](x) * scales[0])) * scales[1]
    same((padded(x),), (expected,), 1e-5)
    target, losses = torch.randn(4, 8, 5, 5, device=device), []
    optimiser = torch.optim.SGD(padded.parameters(), lr=0.1)
    for _ in range(10):
        optimiser.zero_grad()
        loss = F.mse_loss(padded(x), target)
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


# ---------------------------------------------------------------- grouped 3D

@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize("groups", [1, 64])
def test_groups_of_the_table(rank, groups, device):
    """64 channels, kernel 3, forward and backward, with 1 group and with 64; the sizes of the images are smaller than the table's 50."""
    x = torch.randn(1, 64, *[6] * rank, device=device, requires_grad=True)
    conv, twin = (getattr(m, f"Conv{rank}d")(64, 64, 3, groups=groups, bias=False).to(device) for m in (weft.nn, torch.nn))
    twin.load_state_dict(conv.state_dict())
    y, expected = conv(x), twin(x)
    same((y, *gradients(y, (x, conv.weight))), (expected, *gradients(expected, (x, twin.weight))), 1e-4)


# ---------------------------------------------------------------- cudnn.torch: layers

# the old name and arguments, what torch.nn has for it, the shape of a batch; sizes as the source draws them, a width that is not the height
LAYERS = [
    ("SpatialConvolution", (5, 7, 4, 3, 2, 1), torch.nn.Conv2d(5, 7, (3, 4), (1, 2)), (3, 5, 8, 12)),
    ("SpatialFullConvolution", (5, 7, 4, 3, 2, 1), torch.nn.ConvTranspose2d(5, 7, (3, 4), (1, 2)), (3, 5, 6, 8)),
    ("VolumetricConvolution", (3, 4, 5, 3, 4, 2, 1, 3), torch.nn.Conv3d(3, 4, (5, 4, 3), (2, 3, 1)), (2, 3, 9, 10, 7)),
    ("VolumetricFullConvolution", (3, 4, 2, 3, 4, 1, 2, 3), torch.nn.ConvTranspose3d(3, 4, (2, 4, 3), (1, 3, 2)), (2, 3, 3, 4, 5)),
    ("VolumetricMaxPooling", (2, 3, 4, 2, 3, 4), torch.nn.MaxPool3d((2, 4, 3)), (2, 3, 6, 8, 9)),
    ("SpatialMaxPooling", (4, 3, 3, 2, 1, 0), torch.nn.MaxPool2d((3, 4), (2, 3), (0, 1)), (3, 4, 11, 12)),
    ("SpatialAveragePooling", (4, 3, 3, 2, 1, 0), torch.nn.AvgPool2d((3, 4), (2, 3), (0, 1)), (3, 4, 11, 12)),
    *((name, (inplace,), getattr(torch.nn, name)(), (3, 4, 5, 6)) for name in ("ReLU", "Tanh", "Sigmoid") for inplace in (True, False)),
    ("SpatialCrossMapLRN", (5, 0.5, 0.75, 2), torch.nn.LocalResponseNorm(5, 0.5, 0.75, 2), (4, 7, 6, 6)),
    ("SoftMax", (), torch.nn.Softmax(-1), (6, 20)),
    ("LogSoftMax", (), torch.nn.LogSoftmax(-1), (6, 20)),
]


@pytest.mark.parametrize("name, args, twin, shape", LAYERS)
def test_layer(name, args, twin, shape, device):
    """A batch and a single sample, through a file, and torch.nn's own layer converted: results and gradients."""
    twin, layer = twin.to(device), getattr(t7, name)(*args).to(device)
    layer.load_state_dict(twin.state_dict())
    for module in (reloaded(layer), weft.convert(reloaded(twin), all=True)):
        assert type(module).__module__.startswith("weft.")
        for x in (torch.randn(shape, device=device), torch.randn(shape[1:], device=device)):
            if name == "SpatialCrossMapLRN" and x.dim() == 3 and module.__class__.__module__.startswith("weft.nn"):
                continue   # torch.nn's takes batches only
            x.requires_grad_()
            expected = twin(x) if name != "SpatialCrossMapLRN" or x.dim() == 4 else twin(x[None])[0]
            g = torch.randn_like(expected)
            y = module(x * 1)
            same((y, *gradients(y, (x, *module.parameters()), g)), (expected, *gradients(expected, (x, *twin.parameters()), g)), 1e-4)


def test_temporal_padding(device):
    """padH frames of zeros on both sides, against a convolution of an input that has them; through a file."""
    conv = t7.TemporalConvolution(6, 8, 5, 2, 2).to(device)
    x = torch.randn(3, 9, 6, device=device, requires_grad=True)
    expected = F.conv1d(F.pad(x, (0, 0, 2, 2)).transpose(1, 2), conv.weight, conv.bias, 2).transpose(1, 2)
    module = reloaded(conv)
    y = module(x)
    same((y, *gradients(y, (x, *module.parameters()))), (expected, *gradients(expected, (x, *conv.parameters()))), 1e-5)


def test_temporal_smaller_batch(device):
    conv = t7.TemporalConvolution(6, 8, 3, 2).to(device)
    x = torch.randn(128, 9, 6, device=device)
    whole = conv.updateOutput(x)
    assert whole.shape == (128, 4, 8)
    for _ in range(2):
        same((conv.updateOutput(x[:64]),), (whole[:64],), 1e-5)


def test_clipped(device):
    x = torch.randn(1, 32, device=device)
    assert torch.equal(t7.ClippedReLU(0.1)(x), torch.where(x >= 0.1, 0.1, torch.where(x <= 0, 0.0, x)))


@pytest.mark.parametrize("name, twin, shape", [("BatchNormalization", "BatchNorm1d", (12, 40)), ("SpatialBatchNormalization", "BatchNorm2d", (4, 4, 5, 5)),
                                               ("VolumetricBatchNormalization", "BatchNorm3d", (3, 6, 4, 5, 6))])
def test_batch_normalisation(name, twin, shape, device):
    """Training with gradients and running statistics, then evaluation, with gradients, which the source refused; converted both ways."""
    ours, theirs = getattr(t7, name)(shape[1], 1e-3).to(device), getattr(torch.nn, twin)(shape[1], 1e-3).to(device)
    assert ours.running_mean.abs().sum() == 0 and (ours.running_var == 1).all()
    x = torch.randn(shape, device=device, requires_grad=True)
    for training in (True, False):
        y, expected = ours.train(training)(x), theirs.train(training)(x)
        g = torch.randn_like(y)
        same((y, *gradients(y, x, g), *ours.buffers()), (expected, *gradients(expected, x, g), *theirs.buffers()), 1e-5)
    swapped = weft.convert(reloaded(theirs), all=True)
    assert type(swapped) is getattr(weft.nn, twin)
    same((swapped(x),), (theirs(x),), 1e-5)
    back = weft.convert(swapped, to="torch")
    assert type(back) is getattr(torch.nn, twin) and torch.equal(back(x), theirs(x))


FUNCTIONS = {
    "convolution2d": (lambda x, w, b, out=None: W.conv2d(x, w, out=out), lambda x, w, b: F.conv2d(x, w)),
    "bias2D": (lambda x, w, b, out=None: W.conv2d(x, w * 0, b, out=out), lambda x, w, b: F.conv2d(x, w * 0, b)),
    "maxpooling2d": (lambda x, w, b, out=None: W.max_pool2d(x, 2, out=out), lambda x, w, b: F.max_pool2d(x, 2)),
    "relu": (lambda x, w, b, out=None: W.relu(x, out=out), lambda x, w, b: F.relu(x)),
    "tanh": (lambda x, w, b, out=None: W.tanh(x, out=out), lambda x, w, b: torch.tanh(x)),
    "sigmoid": (lambda x, w, b, out=None: W.sigmoid(x, out=out), lambda x, w, b: torch.sigmoid(x)),
    "softmax": (lambda x, w, b, out=None: W.softmax(x, 1, out=out), lambda x, w, b: F.softmax(x, 1)),
    "logsoftmax": (lambda x, w, b, out=None: W.log_softmax(x, 1, out=out), lambda x, w, b: F.log_softmax(x, 1)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functional(name, device):
    """Into a result that is there and holds other numbers; gradients from autograd."""
    ours, theirs = FUNCTIONS[name]
    x, w, b = (torch.randn(s, device=device) for s in ((10, 3, 10, 10), (16, 3, 5, 5), (16,)))
    expected = theirs(x, w, b)
    out = torch.randn_like(expected)
    assert ours(x, w, b, out=out) is out
    same((out,), (expected,), 1e-4)
    inputs = [t.requires_grad_() for t in (x, w, b)]
    y, expected = ours(*inputs), theirs(*inputs)
    used = [t for t, g in zip(inputs, torch.autograd.grad(expected.sum(), inputs, allow_unused=True, retain_graph=True)) if g is not None]
    g = torch.randn_like(expected)
    same(gradients(y, used, g), gradients(expected, used, g), 1e-4)


def check_conv(layer, twin, shape, device):
    layer, twin = layer.to(device), twin.to(device)
    layer.load_state_dict(twin.state_dict())
    x = torch.randn(shape, device=device, requires_grad=True)
    y, expected = layer(x), twin(x)
    g = torch.randn_like(expected)
    same((y, *gradients(y, (x, *layer.parameters()), g)), (expected, *gradients(expected, (x, *twin.parameters()), g)), 1e-4)


@pytest.mark.parametrize("shape", [(5, 7, 11, 13), (7, 11, 13)], ids=["batch", "single"])
def test_windows_of_one(shape, device):
    check_conv(t7.SpatialConvolution(7, 9, 1, 1, 1, 1), torch.nn.Conv2d(7, 9, 1), shape, device)


def test_two_groups(device):
    """96 -> 128 planes in two groups, 7x7 at stride 3; a batch of 2 instead of 32, images of 22 instead of 55."""
    check_conv(t7.SpatialConvolution(96, 128, 7, 7, 3, 3, 0, 0, 2), torch.nn.Conv2d(96, 128, 7, 3, groups=2), (2, 96, 22, 22), device)


@pytest.mark.parametrize("width, height, planes, kernel, stride, pad, adjust", [
    (5, 5, (1, 1), (3, 3), (2, 2), (0, 0), (0, 0)), (5, 5, (1, 1), (3, 3), (2, 2), (1, 1), (0, 0)), (5, 7, (1, 1), (3, 1), (2, 2), (1, 1), (0, 0)),
    (7, 5, (1, 1), (3, 1), (1, 1), (1, 1), (0, 0)), (8, 5, (3, 1), (3, 3), (2, 2), (1, 1), (0, 0)), (5, 5, (1, 3), (3, 3), (2, 2), (1, 1), (0, 0)),
    (5, 5, (5, 3), (3, 3), (2, 2), (1, 1), (1, 1)), (9, 9, (3, 3), (3, 5), (2, 3), (0, 1), (1, 0))])
def test_full_convolution(width, height, planes, kernel, stride, pad, adjust, device):
    """The source's eight settings, each a pair of width and height."""
    twin = torch.nn.ConvTranspose2d(*planes, *(pair[::-1] for pair in (kernel, stride, pad, adjust)))
    check_conv(t7.SpatialFullConvolution(*planes, *kernel, *stride, *pad, *adjust), twin, (1, planes[0], height, width), device)


# ---------------------------------------------------------------- cudnn.torch: recurrent layers

# kind and directions -> sums that cuDNN's own sample prints for 64 sequences of 20 steps, two layers of 512, input, states and incoming gradients 1,
# matrices 1 / (their size), biases 1 (of two directions, everything 1 / (all parameters)): output, last states, gradients of input, states, parameters
CHECKSUMS = {
    ("relu", 1): (1.315793e6, 1.315212e5, 6.676003e1, 6.425067e1, 1.453750e9),
    ("tanh", 1): (6.319591e5, 6.319605e4, 4.501830, 4.489546, 5.012598e7),
    ("LSTM", 1): (5.749536e5, 5.774818e4, 4.365091e5, 3.842206e2, 1.182566e1, 9.323785e3, 4.313461e8),
    ("GRU", 1): (6.358978e5, 6.281680e4, 6.296622, 2.289960e5, 5.397419e7),
    ("relu", 2): (1.388634e1, 1.288997e1, 1.288729e1, 1.279004e1, 7.061081e7),
    ("tanh", 2): (1.388634e1, 1.288997e1, 1.288729e1, 1.279004e1, 7.061081e7),
    ("LSTM", 2): (3.134097e4, 1.922855, 3.845626, 4.794993, 2.468645, 2.870925e4, 1.121568e8),
    ("GRU", 2): (6.555183e4, 5.830924, 4.271801, 6.555744e4, 1.701796e8),
}


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("kind, directions", CHECKSUMS)
def test_checksums(kind, directions, batch_first, device):
    """All sequences are equal and every sum is one over them: one sequence gives a 64th."""
    steps, size, layers, share = 20, 512, 2, 64
    settings = {"nonlinearity": kind} if kind in ("relu", "tanh") else {}
    net = getattr(weft.nn, "RNN" if settings else kind)(size, size, layers, batch_first=batch_first, bidirectional=directions == 2, **settings).to(device)
    total = sum(p.numel() for p in net.parameters())
    with torch.no_grad():
        for p in net.parameters():
            p.fill_(1 / total if directions == 2 else 1 if p.dim() == 1 else 1 / size ** 2)
    x = torch.ones((1, steps, size) if batch_first else (steps, 1, size), device=device, requires_grad=True)
    states = [torch.ones(layers * directions, 1, size, device=device, requires_grad=True) for _ in range(2 if kind == "LSTM" else 1)]
    y, last = net(x, tuple(states) if kind == "LSTM" else states[0])
    results = (y, *(last if kind == "LSTM" else (last,)))
    grads = torch.autograd.grad(results, (x, *states, *net.parameters()), [torch.ones_like(t) for t in results])
    parts = 1 + len(states)
    sums = [share * t.double().sum().item() for t in (*results, *grads[:parts])] + [share * sum(t.double().sum().item() for t in grads[parts:])]
    assert sums == pytest.approx(CHECKSUMS[kind, directions], rel=1e-4)


@pytest.mark.parametrize("batch_first", [False, True])
def test_packing(batch_first):
    """Four steps of five sequences, packed and padded again: PyTorch's functions, which the layers take packed sequences from."""
    lengths, x = [4, 3, 2, 1, 1], torch.zeros(4, 5, 3, dtype=torch.int32)
    rows = [[100 * (n + 1) + 3 * t + i + 1 for i in range(3)] for t in range(4) for n in range(5) if t < lengths[n]]
    for t in range(4):
        for n in range(5):
            if t < lengths[n]:
                x[t, n] = torch.tensor([100 * (n + 1) + 3 * t + i + 1 for i in range(3)])
    x = x.transpose(0, 1) if batch_first else x
    packed = pack_padded_sequence(x, lengths, batch_first)
    assert packed.data.tolist() == rows and packed.batch_sizes.tolist() == [5, 3, 2, 1]
    padded, back = pad_packed_sequence(packed, batch_first)
    assert torch.equal(padded, x) and back.tolist() == lengths


def test_sequences_of_many_lengths(device):
    """Packed together as one by one: results, states and gradients of the input."""
    lengths, lstm = [4, 3, 3, 1], t7.LSTM(4, 10, 1).to(device)
    x = torch.randint(1, 5, (4, 4, 4), device=device).float().requires_grad_()
    packed = lstm(pack_padded_sequence(x, lengths))
    together, _ = pad_packed_sequence(packed)
    hidden, g = lstm.hiddenOutput.clone(), torch.rand_like(together)
    allowed = tolerance(torch.float32, 4 * 4 * (4 + 10))   # steps, gates, and what each adds up
    for n, length in enumerate(lengths):
        alone = lstm(x[:length, n:n + 1])
        same((together[:length, n:n + 1], hidden[:, n:n + 1]), (alone, lstm.hiddenOutput), allowed)
        theirs, = torch.autograd.grad(alone, x, g[:length, n:n + 1])
        ours, = torch.autograd.grad(together, x, torch.where(torch.arange(4, device=device).view(1, 4, 1) == n, g, 0), retain_graph=True)
        same((ours[:length],), (theirs[:length],), allowed)
        assert together[length:, n].abs().sum() == 0


def test_convert_as_printed():
    """The README's two networks: all of it, and all but what the function excludes."""
    def made():
        return torch.nn.Sequential(torch.nn.Conv2d(3, 96, 11, 3), torch.nn.ReLU())
    assert [m._get_name() for m in weft.convert(made(), all=True)] == ["weft.Conv2d", "weft.ReLU"]
    net = weft.convert(made(), exclude=lambda module: "ReLU" in type(module).__name__, all=True)
    assert str(net).splitlines()[1:3] == ["  (0): weft.Conv2d(3, 96, kernel_size=(11, 11), stride=(3, 3))", "  (1): ReLU()"]
    assert str(torch.nn.Sequential(t7.SpatialConvolution(3, 96, 11, 11, 3, 3), t7.ReLU())).splitlines()[1:3] == [
        "  (0): weft.SpatialConvolution(3 -> 96, 11x11, 3,3)", "  (1): weft.ReLU()"]
