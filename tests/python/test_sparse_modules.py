"""Sparse convolution modules beside torch.nn with the zeros written out; what they remember of their weights; masks; compilers and transforms."""
from __future__ import annotations

import copy
import io
import math
import pickle

import pytest
import torch
from torch import nn
from torch.nn.utils import prune as torch_prune

import weft
from cases import CASES, DTYPES, case, close, truth_of
from weft.sparse import Sparse_modes

PLAIN = [c for c in CASES if not c.transposed]


def thinned(w, share=0.6):
    return torch.where(torch.rand(w.shape) < share, torch.zeros(w.shape), torch.randn(w.shape)).to(w)


def module_of(c, device, dtype=torch.float32, **more):
    """The module of a case with thinned weights."""
    groups = c.options.get("groups", 1)
    made = getattr(weft.nn, f"SparseConv{c.rank}d")(c.weight[1] * groups, c.weight[0], c.weight[2:], bias=c.bias, **c.options, **more).to(device, dtype)
    made.weight.data = thinned(made.weight)
    made.refresh()
    return made


def small(device="cpu", sparsity=0.6, **options):
    made = weft.nn.SparseConv2d(4, 6, 3, padding=1, **options).to(device)
    weft.prune.random(made, sparsity)
    return made, torch.randn(2, 4, 7, 6, device=device)


def dense_of(module, x):
    return module.to_dense()(x)


def ran(module, x):
    """The kernels of a call without gradients."""
    with torch.no_grad():
        module(x)
    return weft.backends.kernels()


# ---------------------------------------------------------------- beside torch.nn
@pytest.mark.parametrize("mode", [Sparse_modes.Training, Sparse_modes.Inference_Vanilla], ids=lambda m: m.name)
@pytest.mark.parametrize("c", PLAIN, ids=str)
def test_twin(c, mode, device):
    """Both ways of computing, every type: results, and gradients of the input, the bias and the weights that are not 0."""
    for dtype in DTYPES:
        module = module_of(c, device, dtype)
        module.set_mode(mode)
        x = c.tensors(device, dtype)[0].requires_grad_()
        y = module(x)
        assert not y.numel() or ("sparse" in weft.backends.kernels()) == (mode is Sparse_modes.Training)
        grad = torch.randn_like(y)
        leaves = [x, *module.parameters()]
        truth = truth_of(c, [x, module.weight, module.bias], grad)
        truth[2] = torch.where(module.weight.detach().cpu() != 0, truth[2], 0.0)
        for ours, theirs in zip([y, *torch.autograd.grad(y, leaves, grad)], truth, strict=True):
            close(ours.cpu(), theirs, 4 * math.prod(c.weight[1:]))


@pytest.mark.parametrize("name", ["1d-stride-dilation", "2d-grouped", "2d-unbatched", "3d-grouped"])
def test_state_dict_both_ways(name, device):
    c = case(name)
    ours = module_of(c, device)
    theirs = ours.to_dense()
    assert type(theirs) is getattr(nn, f"Conv{c.rank}d") and isinstance(ours, type(theirs)) and list(ours.state_dict()) == list(theirs.state_dict())
    fresh = type(ours)(ours.in_channels, ours.out_channels, ours.kernel_size, bias=c.bias, **c.options, device=device)
    x = c.tensors(device)[0]
    fresh(x)                                          # has looked at other weights
    assert fresh.load_state_dict(theirs.state_dict()).missing_keys == [] and fresh.nnz == ours.nnz == int(ours.weight.count_nonzero())
    assert torch.equal(fresh(x), ours(x)) and "sparse" in ran(fresh, x)
    theirs.load_state_dict(fresh.state_dict())


@pytest.mark.parametrize("padding_mode", ["reflect", "replicate", "circular"])
def test_padding_modes_and_activation(padding_mode, device):
    module = weft.nn.SparseConv2d(4, 6, (3, 2), padding=(1, 2), padding_mode=padding_mode, act="clip", clip=(-0.1, 0.3), device=device)
    weft.prune.magnitude(module, 0.7)
    twin = nn.Conv2d(4, 6, (3, 2), padding=(1, 2), padding_mode=padding_mode, device=device)
    twin.load_state_dict(module.state_dict())
    x = torch.randn(3, 4, 7, 5, device=device)
    torch.testing.assert_close(module(x), twin(x).clamp(-0.1, 0.3), rtol=1e-5, atol=1e-5)
    assert "sparse" in ran(module, x) and type(module.to_dense()) is weft.nn.Conv2d
    assert torch.equal(module.to_dense()(x), weft.nn.SparseConv2d.from_dense(module.to_dense()).to_dense()(x))


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_gradcheck(rank):
    module = getattr(weft.nn, f"SparseConv{rank}d")(2, 4, 2, groups=2, padding=1, dtype=torch.float64)
    weft.prune.random(module, 0.5)
    x = torch.randn(2, 2, *[3] * rank, dtype=torch.float64, requires_grad=True)
    keep = module.weight.detach() != 0

    def run(x, w, b):
        return torch.func.functional_call(module, {"weight": torch.where(keep, w, 0.0), "bias": b}, (x,))
    leaves = x, module.weight.detach().clone().requires_grad_(), module.bias.detach().clone().requires_grad_()
    assert torch.autograd.gradcheck(run, leaves, fast_mode=True) and torch.autograd.gradgradcheck(run, leaves, fast_mode=True)


def test_copies_move_and_print(device):
    module, x = small(device, act="relu")
    module.set_mode(Sparse_modes.Inference_Sparse)
    expected = module(x)
    stream = io.BytesIO()
    torch.save(module.eval(), stream)
    stream.seek(0)
    with torch.no_grad():
        module(x)                                     # values are remembered now, and must not travel
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module)), torch.load(stream, weights_only=False, map_location=device)):
        assert other._kept.source is None and torch.equal(other(x), expected) and repr(other) == repr(module)
        other.weight.data.mul_(2)
        other.refresh()
        assert not torch.equal(other(x), expected) and torch.equal(module(x), expected)
    assert repr(module) == ("weft.SparseConv2d(4, 6, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1), act='relu', sparsity=0.602, mode=Inference_Sparse)")
    assert repr(weft.nn.SparseConv2D(1, 6, 5)) == "weft.SparseConv2D(1, 6, kernel_size=(5, 5), stride=(1, 1), bias=False)"
    half = copy.deepcopy(module).to(torch.bfloat16)
    with torch.no_grad():
        close(half(x.bfloat16()), expected.detach(), 10_000)
        module.to(torch.float64)
        torch.testing.assert_close(module(x.double()), expected.double(), rtol=1e-5, atol=1e-5)
    assert module.nnz == int(module.weight.count_nonzero())
    module.to("meta")
    assert module(x.double().to("meta")).shape == expected.shape and module.sparsity == 0


def test_a_class_of_weft_for_a_module_of_torch():
    module, x = nn.Conv2d(4, 4, 3, groups=4), torch.randn(2, 4, 6, 6)
    module.weight.data = thinned(module.weight)
    expected = module(x)
    module.__class__ = weft.nn.SparseConv2d
    torch.testing.assert_close(module(x), expected, rtol=1e-5, atol=1e-5)
    assert "sparse" in weft.backends.kernels()


# ---------------------------------------------------------------- what is remembered of the weights
def test_training_reads_the_weights_at_each_call(device):
    """Writes that no version counter sees: fused optimisers and .data."""
    module, x = small(device)
    kept = module.weight.detach() != 0
    optimiser = torch.optim.SGD(module.parameters(), 0.1, momentum=0.9, weight_decay=0.1, fused=True)
    for _ in range(3):
        optimiser.zero_grad()
        module(x).square().sum().backward()
        assert torch.equal(module.weight.grad != 0, kept)
        optimiser.step()
        torch.testing.assert_close(module(x), dense_of(module, x), rtol=1e-4, atol=1e-4)
        module.weight.data.mul_(1.5)
        torch.testing.assert_close(module(x), dense_of(module, x), rtol=1e-4, atol=1e-4)
    assert torch.equal(module.weight.detach() != 0, kept)


def test_a_weight_that_passes_0_stays_in_training():
    module, x = small()
    at = module.weight.detach().nonzero()[0].tolist()
    module.weight.data[tuple(at)] = 0
    module(x).sum().backward()
    assert module.weight.grad[tuple(at)] != 0 and module.nnz == int(module.weight.count_nonzero()) + 1
    module.refresh()
    assert module.nnz == int(module.weight.count_nonzero())


def test_eval_gathers_once(device, monkeypatch):
    module, x = small(device)
    module.eval()
    gathered, count = weft.nn.sparse_conv.Kept.gathered, []
    monkeypatch.setattr(weft.nn.sparse_conv.Kept, "gathered", lambda self, w: count.append(1) or gathered(self, w))
    with torch.no_grad():
        for _ in range(3):
            expected = module(x)
        assert len(count) == 1
        module.weight.data.mul_(2)
        assert torch.equal(module(x), expected)       # not seen: eval mode
        module.refresh()
        torch.testing.assert_close(module(x), dense_of(module, x), rtol=1e-4, atol=1e-5)
        for change in (lambda: module.train().eval(), lambda: module.load_state_dict(copy.deepcopy(module.state_dict())), lambda: module.to(torch.float32)):
            module(x)
            module.weight.data.mul_(0.5)
            change()
            torch.testing.assert_close(module(x), dense_of(module, x), rtol=1e-4, atol=1e-5)
        module.weight = nn.Parameter(module.weight * 3)
        torch.testing.assert_close(module(x), dense_of(module, x), rtol=1e-4, atol=1e-5)


def test_fine_tuning_in_eval_mode(device):
    """Gradients asked for in eval mode: values may change between any two calls, also those without gradients."""
    module, x = small(device)
    module.eval()
    for _ in range(2):
        module(x).square().sum().backward()
        for factor in (2.0, 0.5):
            with torch.no_grad():
                module(x)
                module.weight.data.mul_(factor)
                torch.testing.assert_close(module(x), dense_of(module, x), rtol=1e-4, atol=1e-4)


def test_other_parameters_for_one_call(device):
    module, x = small(device)
    module.eval()
    with torch.no_grad():
        expected = module(x)
        other = torch.func.functional_call(module, {"weight": 2 * module.weight, "bias": 2 * module.bias}, (x,))
        torch.testing.assert_close(other, 2 * expected, rtol=1e-5, atol=1e-5)
        assert torch.equal(module(x), expected)


def test_inference_mode_leaves_nothing_that_gradients_refuse(device):
    module, x = small(device)
    module._kept = None
    module.eval().requires_grad_(False)
    with torch.inference_mode():
        module(x)
    x.requires_grad_()
    module(x).sum().backward()
    assert x.grad.shape == x.shape


def test_meta_then_real(device):
    with torch.device("meta"):
        module = weft.nn.SparseConv2d(4, 6, 3, padding=1)
    source, x = small(device)
    module.to_empty(device=device).load_state_dict(source.state_dict())
    assert torch.equal(module(x), source(x)) and module.sparsity == source.sparsity
    with torch.device("meta"):
        module = weft.nn.SparseConv2d(4, 6, 3, padding=1)
    module.load_state_dict(source.state_dict(), assign=True)
    assert torch.equal(module(x), source(x)) and module.sparsity == source.sparsity


# ---------------------------------------------------------------- masks of torch.nn.utils.prune
def test_masks_of_torch_decide(device):
    module = weft.nn.SparseConv2d(4, 6, 3, padding=1).to(device)
    x = torch.randn(2, 4, 7, 6, device=device)
    module(x)
    for share, layers in ((0.5, "random_unstructured"), (0.5, "l1_unstructured")):
        getattr(torch_prune, layers)(module, "weight", share)
        y = module(x)
        mask = module.weight_mask != 0
        assert module.nnz == int(mask.count_nonzero()) and "sparse" in weft.backends.kernels()
        torch.testing.assert_close(y, nn.functional.conv2d(x, module.weight, module.bias, padding=1), rtol=1e-4, atol=1e-5)
        module.zero_grad()
        y.square().sum().backward()
        assert torch.equal(module.weight_orig.grad != 0, mask)
    assert module.nnz == 54
    torch.optim.SGD(module.parameters(), 0.1, fused=True).step()
    torch.testing.assert_close(module(x), nn.functional.conv2d(x, module.weight, module.bias, padding=1), rtol=1e-4, atol=1e-5)
    module.eval()
    with torch.no_grad():
        assert torch.equal(module(x), module(x)) and module._kept.source is module.weight_orig
        kept = module._kept
        module.to(torch.float64)(x.double())          # what is known moves along
        assert module._kept is kept and kept.mask is module.weight_mask
        module.to(torch.float32)
    torch_prune.remove(module, "weight")
    torch.testing.assert_close(module(x), dense_of(module, x), rtol=1e-4, atol=1e-5)
    assert module.nnz == 54 and module._kept.mask is None


def test_a_state_dict_with_a_mask(device):
    first, second = (torch_prune.random_unstructured(weft.nn.SparseConv2d(4, 6, 3).to(device), "weight", 0.7) for _ in range(2))
    x = torch.randn(2, 4, 7, 6, device=device)
    second(x)
    second.load_state_dict(first.state_dict())
    assert torch.equal(second(x), first(x)) and torch.equal(second._kept.pattern.cols, first._kept.pattern.cols)
    plain = torch_prune.random_unstructured(nn.Conv2d(4, 6, 3).to(device), "weight", 0.7)
    made = weft.nn.SparseConv2d.from_dense(plain)
    torch.testing.assert_close(made(x), plain(x), rtol=1e-4, atol=1e-5)
    assert made.weight_orig is plain.weight_orig and "sparse" in ran(made, x)


def test_global_pruning_by_torch():
    net = nn.Sequential(weft.nn.SparseConv2d(3, 8, 3), nn.ReLU(), weft.nn.SparseConv2d(8, 4, 3))
    torch_prune.global_unstructured([(m, "weight") for m in net if hasattr(m, "weight")], torch_prune.RandomUnstructured, amount=0.9)
    x = torch.randn(1, 3, 9, 9)
    y = net(x)
    assert sum(m.nnz for m in net if hasattr(m, "nnz")) == round(0.1 * (216 + 288))
    torch.testing.assert_close(y, weft.sparse.to_dense(net)(x), rtol=1e-4, atol=1e-5)


# ---------------------------------------------------------------- the ecosystem
@pytest.mark.parametrize("fresh", [False, True], ids=["pruned", "fresh"])
def test_compile_export_and_fx(fresh, device):
    module, x = (weft.nn.SparseConv2d(4, 6, 3, padding=1).to(device), torch.randn(2, 4, 7, 6, device=device)) if fresh else small(device)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager", dynamic=True)
    for shape in ((2, 4, 7, 6), (3, 4, 9, 8)):
        x = torch.randn(shape, device=device, requires_grad=True)
        y = compiled(x)
        torch.testing.assert_close(y, dense_of(module, x), rtol=1e-4, atol=1e-5)
        module.zero_grad()
        y.sum().backward()
        assert torch.equal(module.weight.grad != 0, module.weight != 0)
    exported = torch.export.export(module.eval(), (x.detach(),)).module()
    traced = torch.fx.symbolic_trace(nn.Sequential(module))
    for other in (exported, traced):
        torch.testing.assert_close(other(x), dense_of(module, x), rtol=1e-4, atol=1e-5)


def test_functorch(device):
    module, x = small(device)
    parameters = dict(module.named_parameters())
    grads = torch.func.grad(lambda p: torch.func.functional_call(module, p, (x,)).square().sum())(parameters)
    module(x).square().sum().backward()
    torch.testing.assert_close(grads["weight"], module.weight.grad, rtol=1e-4, atol=1e-4)
    stacked = {k: torch.stack([v, 2 * v]) for k, v in parameters.items()}
    both = torch.func.vmap(lambda p: torch.func.functional_call(module, p, (x,)))(stacked)
    torch.testing.assert_close(both[1], 2 * both[0], rtol=1e-4, atol=1e-5)


def test_autocast_and_checkpoint(device):
    module, x = small(device)
    with torch.autocast(device.type, torch.bfloat16):
        y = module(x)
    assert y.dtype == torch.bfloat16
    close(y.detach(), dense_of(module, x).detach(), 100_000)
    again = torch.utils.checkpoint.checkpoint(module, x.requires_grad_(), use_reentrant=False)
    torch.testing.assert_close(again, module(x), rtol=0, atol=0)
    again.sum().backward()
