"""weft.pack(): the same results from weights that were packed once, and no stale ones."""
from __future__ import annotations

import copy
import pickle
import sys
import threading

import pytest
import torch

import weft
from weft._core import entry as _entry

pytestmark = pytest.mark.skipif(not _entry.available, reason="this PyTorch has no entries")
X = (2, 64, 9, 9)


def made(kind=weft.nn.Conv2d, *args, **options):
    torch.manual_seed(0)
    return weft.pack(kind(64, 96, *(args or (1,)), **options).eval())


def packed(net):
    return net.__dict__["_packs"].kept


def run(net, x):
    with torch.no_grad():
        return net(x)


def check(net, x):
    """The result is that of the same weights unpacked."""
    other = weft.pack(copy.deepcopy(net), keep=False)
    assert "_packs" not in other.__dict__
    torch.testing.assert_close(run(net, x), run(other, x), rtol=0, atol=0)


def images(dtype=torch.float32):
    return torch.randn(X, dtype=dtype).contiguous(memory_format=torch.channels_last)


@pytest.fixture
def net():
    """One that is weft's by estimate, and whose kernels read packed weights."""
    torch.manual_seed(0)
    net = weft.pack(weft.nn.Conv2d(64, 64, 3, padding=1, groups=64).eval())
    for _ in range(2):
        run(net, images())
    assert packed(net), weft.backends.kernels()
    return net


@pytest.mark.parametrize("shape", [X, (1, 64, 30, 31)])
@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("window", [1, 3])
def test_same_bits(window, last, shape):
    net, x = made(weft.nn.Conv2d, window, padding=window // 2), torch.randn(shape)
    x = x.contiguous(memory_format=torch.channels_last) if last else x
    for _ in range(3):
        check(net, x)
    check(net, x[:1, :, 1:])


@pytest.mark.parametrize("kind, args, shape", [(weft.nn.Conv1d, (3,), (2, 64, 20)), (weft.nn.Conv3d, (1,), (1, 64, 4, 5, 6)),
                                               (weft.nn.ConvTranspose2d, (2, 2), X)])
def test_other_modules(kind, args, shape):
    net, x = made(kind, *args), torch.randn(shape)
    for _ in range(2):
        check(net, x)


def test_weights_are_packed_once(net):
    before = dict(packed(net))
    for _ in range(3):
        run(net, images())
    assert all(packed(net)[k] is v for k, v in before.items())


def test_each_plan_has_its_own():
    """Sizes and formats that run by other kernels, which read weights in other orders, one after the other on one module."""
    for kind, options in ((weft.nn.Conv2d, {}), (weft.nn.Conv2d, {"groups": 64})):
        torch.manual_seed(0)
        net = weft.pack(kind(64, 64, 3, padding=1, **options).eval())
        kinds = [(n, size, form) for n, size in ((1, 3), (1, 7), (2, 14), (1, 40)) for form in (torch.contiguous_format, torch.channels_last)]
        for n, size, form in (*kinds, *kinds[::-1]):
            check(net, torch.randn(n, 64, size, size).contiguous(memory_format=form))
        assert len(packed(net)) >= (1 if options else 2)


def test_calls_leave_nothing(net):
    """No reference to the packed weights, no object of Python."""
    x, kept = images(), next(iter(packed(net).values()))
    run(net, x)
    references, blocks = sys.getrefcount(kept), sys.getallocatedblocks()
    for _ in range(200):
        run(net, x)
    assert sys.getrefcount(kept) == references and sys.getallocatedblocks() < blocks + 100


@pytest.mark.parametrize("change", [
    lambda net: net.load_state_dict({k: v * 2 for k, v in net.state_dict().items()}),
    lambda net: net.weight.detach().mul_(2),
    lambda net: net.to(torch.float64),
    lambda net: setattr(net, "weight", torch.nn.Parameter(net.weight * 2)),
    lambda net: (net.weight.data.mul_(2), net.refresh()),
    lambda net: (net.weight.data.mul_(2), weft.pack(net)),
    lambda net: (net.train(), net.weight.data.mul_(2), net.eval()),
], ids=["load_state_dict", "in place", "_apply", "another parameter", "refresh", "pack again", "train"])
def test_what_changes_is_packed_again(net, change):
    change(net)
    x = images(net.weight.dtype)
    check(net, x)
    check(net, x)


def test_training_goes_on(net):
    x = images().requires_grad_()
    net.train()
    net(x).sum().backward()
    assert net.weight.grad is not None and not packed(net)
    torch.optim.SGD(net.parameters(), 0.1).step()
    net.eval()
    check(net, x.detach())


def test_copies_pack_their_own(net):
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert packed(other) == {}
        check(other, images())
        assert not any(a is b for a in packed(net).values() for b in packed(other).values())
    assert list(net.state_dict()) == ["weight", "bias"]


def test_threads(net):
    x = images()
    want, wrong = run(net, x), []

    def work():
        for i in range(100):
            if not torch.equal(run(net, x), want):
                wrong.append(i)
            if i % 10 == 0:
                net.refresh()
    workers = [threading.Thread(target=work) for _ in range(4)]
    for t in workers:
        t.start()
    for t in workers:
        t.join()
    assert not wrong


def test_a_parametrized_weight_is_not_packed():
    net = made()
    torch.nn.utils.parametrizations.weight_norm(net)
    check(net, torch.randn(X))


def test_wrong_argument():
    with pytest.raises(TypeError, match="net: is int, allowed: torch.nn.Module"):
        weft.pack(3)
