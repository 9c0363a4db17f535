"""weft.prune: how many weights go, which ones, masks of torch.nn.utils.prune, wrong input."""
from __future__ import annotations

import copy
import re

import pytest
import torch
from torch import nn
from torch.nn.utils import prune as torch_prune

import weft
from cases import DTYPES
from weft.prune import magnitude, random, sparsity

HOW = {"magnitude": magnitude, "random": random}
every = pytest.mark.parametrize("prune", HOW.values(), ids=HOW)


def net(device="cpu", dtype=torch.float32):
    made = nn.Sequential(weft.nn.SparseConv1d(3, 5, 3), nn.Sequential(nn.Conv2d(4, 6, (3, 1), groups=2), nn.Linear(7, 9)), weft.nn.SparseConv3d(2, 3, 2))
    return made.to(device, dtype)


def convolutions(module):
    return [m for m in module.modules() if isinstance(m, weft.prune.CONVOLUTIONS)]


def zeros(modules):
    return [int((m.weight == 0).sum()) for m in modules]


@every
@pytest.mark.parametrize("share", [0, 0.1, 0.5, 0.61, 0.9, 1])
def test_global_share(prune, share, device):
    """Exactly that many weights of all layers together; those of a Linear stay."""
    made = net(device)
    before = copy.deepcopy(made)
    prune(made, share)
    total = sum(m.weight.numel() for m in convolutions(made))
    assert sum(zeros(convolutions(made))) == round(share * total) and sparsity(made) == pytest.approx(round(share * total) / total)
    for new, old in zip(made.parameters(), before.parameters()):
        assert torch.equal(new, torch.where(new == 0, 0.0, old)) and (new.dim() > 2 or torch.equal(new, old))
    for m in convolutions(made):
        assert not hasattr(m, "nnz") or m.nnz == m.weight.numel() - zeros([m])[0]


@every
def test_share_of_each_layer(prune, device):
    made = net(device)
    prune(made, 0.6, per_layer=True, types=(nn.Conv2d, nn.Conv3d, nn.Linear))
    assert zeros([made[0], made[1][0], made[2]]) == [0, round(0.6 * 36), round(0.6 * 48)] and zeros([made[1][1]]) == [round(0.6 * 63)]
    assert sparsity(made, types=(nn.Linear,)) == pytest.approx(round(0.6 * 63) / 63)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d)[6:])
def test_the_smallest_go(dtype, device):
    made = net(device, dtype)
    flat = torch.cat([m.weight.detach().flatten() for m in convolutions(made)]).abs()
    magnitude(made, 0.7)
    pruned = torch.cat([m.weight.detach().flatten() for m in convolutions(made)]) == 0
    assert flat[pruned].max() <= flat[~pruned].min()


def test_nan_and_equal_weights():
    made = weft.nn.SparseConv1d(1, 10, 1)
    nn.init.ones_(made.weight)
    made.weight.data[0] = float("nan")
    magnitude(made, 0.5)
    assert zeros([made]) == [5] and made.weight[0].isnan().all() and made.nnz == 5


def test_random_is_the_generators(device):
    first, again, other, on_device = (net() for _ in range(4))
    for made, seed in ((first, 1), (again, 1), (other, 2), (on_device.to(device), 1)):
        random(made, 0.5, generator=torch.Generator().manual_seed(seed))
    where = [[(m.weight == 0).cpu() for m in convolutions(made)] for made in (first, again, other, on_device)]
    same = [all(map(torch.equal, where[0], w)) for w in where[1:]]
    assert same == [True, False, True]


@every
def test_zeros_that_are_there_count(prune, device):
    """A second call goes on from the first; a smaller share changes nothing."""
    made = net(device)
    prune(made, 0.5)
    masks = [m.weight == 0 for m in convolutions(made)]
    prune(made, 0.8)
    total = sum(m.weight.numel() for m in convolutions(made))
    assert sum(zeros(convolutions(made))) == round(0.8 * total) and all((m.weight[z] == 0).all() for m, z in zip(convolutions(made), masks))
    now = [m.weight.clone() for m in convolutions(made)]
    prune(made, 0.3)
    assert all(map(torch.equal, now, [m.weight for m in convolutions(made)]))


@every
def test_masks(prune, device):
    """mask=True makes masks of torch.nn.utils.prune, and masks that are there are narrowed: weights come back when they are gone."""
    made, x = weft.nn.SparseConv2d(4, 6, 3).to(device), torch.randn(2, 4, 7, 6, device=device)
    original = made.weight.detach().clone()
    prune(made, 0.5, mask=True)
    assert torch_prune.is_pruned(made) and torch.equal(made.weight_orig, original) and made.nnz == 108
    first = made.weight_mask.clone()
    prune(made, 0.75)
    assert made.nnz == 54 and int(made.weight_mask.sum()) == 54 and (made.weight_mask <= first).all() and torch.equal(made.weight_orig, original)
    torch.testing.assert_close(made(x), nn.functional.conv2d(x, original * made.weight_mask, made.bias), rtol=1e-4, atol=1e-5)
    assert "sparse" in weft.backends.kernels() and sparsity(made) == 0.75
    made(x).sum().backward()
    assert torch.equal(made.weight_orig.grad != 0, made.weight_mask != 0)


def test_masks_keep_pruned_weights_out_of_a_momentum():
    made, x = weft.nn.SparseConv2d(2, 3, 3), torch.randn(2, 2, 6, 6)
    optimiser = torch.optim.SGD(made.parameters(), 0.1, momentum=0.9)

    def step():
        optimiser.zero_grad()
        made(x).square().sum().backward()
        optimiser.step()
    step()
    magnitude(made, 0.5, mask=True)
    optimiser = torch.optim.SGD(made.parameters(), 0.1, momentum=0.9)
    step()
    step()
    made(x)
    assert torch.equal(made.weight == 0, made.weight_mask == 0)


def test_shared_weights_are_counted_once():
    one = nn.Conv2d(2, 4, 3)
    two = nn.Conv2d(2, 4, 3)
    two.weight = one.weight
    both = nn.ModuleList([one, two, one])
    magnitude(both, 0.5)
    assert zeros([one, two]) == [36, 36] and sparsity(both) == 0.5


WRONG = {
    "net": (lambda p: p(3, 0.5), TypeError, "net: is int, allowed: Module"),
    "nothing": (lambda p: p(nn.ReLU(), 0.5), ValueError, "net: has no Conv1d or Conv2d or Conv3d with a weight, allowed: one or more"),
    "share-high": (lambda p: p(net(), 1.5), ValueError, "sparsity: is 1.5, allowed: 0 to 1"),
    "share-low": (lambda p: p(net(), -0.1), ValueError, "sparsity: is -0.1, allowed: 0 to 1"),
    "share-nan": (lambda p: p(net(), float("nan")), ValueError, "sparsity: is nan, allowed: 0 to 1"),
    "share-flag": (lambda p: p(net(), True), ValueError, "sparsity: is True, allowed: 0 to 1"),
    "share-kind": (lambda p: p(net(), "all"), ValueError, "sparsity: is 'all', allowed: 0 to 1"),
    "types": (lambda p: p(net(), 0.5, types=nn.Conv2d), TypeError, "types: is <class 'torch.nn.modules.conv.Conv2d'>, allowed: a sequence of classes"),
    "types-values": (lambda p: p(net(), 0.5, types=(3,)), TypeError, "types: is (3,), allowed: a sequence of classes of modules"),
}


@every
@pytest.mark.parametrize("name", WRONG)
def test_wrong_input(name, prune):
    call, kind, text = WRONG[name]
    with pytest.raises(kind, match=re.escape(text)):
        call(prune)


def test_wrong_input_of_the_others():
    with pytest.raises(TypeError, match="generator: is int, allowed: a torch.Generator on the CPU, or None"):
        random(net(), 0.5, generator=3)
    with pytest.raises(TypeError, match="net: is NoneType, allowed: Module"):
        sparsity(None)
