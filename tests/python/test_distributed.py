"""DistributedDataParallel, FullyShardedDataParallel and fully_shard over nets of weft: two processes on one machine, each with half of the batch,
end with the gradients of one process with the whole."""
from __future__ import annotations

import os
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as multiprocessing

import weft

RANKS, BATCH = 2, 4
distributed = torch.distributed
pytestmark = pytest.mark.skipif(not distributed.is_available() or not distributed.is_gloo_available(), reason="this PyTorch has no gloo")


def net() -> torch.nn.Module:
    """Batch norm runs with its given statistics: those of half a batch are not those of the whole, with PyTorch's modules as with weft's."""
    torch.manual_seed(3)
    n = weft.nn
    made = torch.nn.Sequential(n.Conv2d(3, 8, 3, padding=1), n.BatchNorm2d(8), n.ReLU(), n.MaxPool2d(2), n.Conv2dDepthwise(8, 3, padding=1, act="relu"),
                               n.BatchNorm2d(8), n.Tanh(), n.AdaptiveAvgPool2d(2), torch.nn.Flatten(), torch.nn.Linear(32, 5))
    for module in made:
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.uniform_(module.running_mean)
            torch.nn.init.uniform_(module.running_var, 0.5, 1.5)
    return made.eval()


def data() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(11)
    return torch.randn(BATCH, 3, 8, 8), torch.arange(BATCH) % 5


def step(module: torch.nn.Module, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    loss = weft.nn.CrossEntropyLoss()(module(x), target)
    loss.backward()
    return loss.detach()


def _plain(module):
    return torch.nn.parallel.DistributedDataParallel(module), lambda wrapped: {n: p.grad for n, p in wrapped.module.named_parameters()}


def _flat(module):
    from torch.distributed.fsdp import FullyShardedDataParallel

    def collect(wrapped):
        with FullyShardedDataParallel.summon_full_params(wrapped, with_grads=True):
            return {n: p.grad.clone() for n, p in wrapped.named_parameters()}
    return FullyShardedDataParallel(module, device_id=torch.device("cpu"), use_orig_params=True), collect


def _each(module):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    mesh = init_device_mesh("cpu", (RANKS,))
    for child in module:
        if any(True for _ in child.parameters()):
            fully_shard(child, mesh=mesh)
    return fully_shard(module, mesh=mesh), lambda wrapped: {n: p.grad.full_tensor() for n, p in wrapped.named_parameters()}


WAYS = {"ddp": _plain, "fsdp": _flat, "fully_shard": _each}


def _work(rank: int, folder: str) -> None:
    """All ways in one pair of processes: starting them costs more than the work."""
    torch.set_num_threads(1)
    store = distributed.FileStore(f"{folder}/store", RANKS)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=RANKS, timeout=timedelta(seconds=900))
    x, target = data()
    mine = slice(rank * BATCH // RANKS, (rank + 1) * BATCH // RANKS)
    for way, wrap in WAYS.items():
        wrapped, collect = wrap(net())
        loss = step(wrapped, x[mine], target[mine])
        distributed.all_reduce(loss)
        torch.save({"loss": loss / RANKS, "gradients": collect(wrapped)}, f"{folder}/{way}{rank}.pt")
        distributed.barrier()
    distributed.destroy_process_group()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where both processes left what they found."""
    made = tmp_path_factory.mktemp("ranks")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).resolve().parent), *sys.path]))
        patch.setenv("WEFT_LIBRARY", weft.backends.library())
        patch.setenv("GLOO_SOCKET_IFNAME", "lo")
        patch.setenv("CUDA_VISIBLE_DEVICES", "")      # two processes need no two GPUs
        multiprocessing.spawn(_work, (str(made),), nprocs=RANKS)
    return made


@pytest.mark.parametrize("way", WAYS)
def test_gradients_of_two_processes(way, folder):
    module = net()
    loss = step(module, *data())
    expected = {n: p.grad for n, p in module.named_parameters()}
    for rank in range(RANKS):
        found = torch.load(folder / f"{way}{rank}.pt")
        torch.testing.assert_close(found["loss"], loss)
        assert found["gradients"].keys() == expected.keys()
        for name, gradient in expected.items():
            torch.testing.assert_close(found["gradients"][name], gradient, rtol=1e-5, atol=1e-6, msg=lambda text: f"{way}, {name}: {text}")
