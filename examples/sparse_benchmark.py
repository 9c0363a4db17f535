"""Networks with pruned convolutions, computed densely and with sparse weights: every layer, and the whole network.

    python examples/sparse_benchmark.py [--models vgg16_bn resnet34 alexnet] [--batch N] [--device cuda] [--quick]

The cases are those of the Escoin paper's port: global random pruning of the convolutions, VGG16-BN with a batch of 32 images at 90%,
ResNet-34 with 32 at 70%, AlexNet with 1 at 90%. Each layer is timed both ways on what it sees in a forward pass, and keeps to the faster
way; then the whole network is timed densely (PyTorch's modules), with all layers sparse, and as the layers decided. Nothing but this is
claimed: where the sparse kernel of this machine is slower, the table says so and the network runs densely.
"""
from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Optional

import torch

import weft
from models import MODELS
from weft._bench.clock import busy
from weft.sparse import Sparse_modes


class Case(NamedTuple):
    sparsity: float
    shape: tuple[int, ...]


CASES = {"vgg16_bn": Case(0.9, (32, 3, 227, 227)), "resnet34": Case(0.7, (32, 3, 224, 224)), "alexnet": Case(0.9, (1, 3, 227, 227))}


def milliseconds(runs: dict[str, Callable[[], Any]], seconds: float, device: torch.device) -> dict[str, float]:
    """Medians of samples taken in turn, for about so long. The first of each warms up, and counts only where it took all the time."""
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    samples: dict[str, list[float]] = {way: [] for way in runs}
    deadline = time.perf_counter() + seconds * len(runs)
    while not samples["torch.nn"] or (len(samples["torch.nn"]) < 20 and time.perf_counter() < deadline):
        for way, run in runs.items():
            wait()
            start = time.perf_counter()
            run()
            wait()
            samples[way].append(1e3 * (time.perf_counter() - start))
    return {way: statistics.median(taken[1:] or taken) for way, taken in samples.items()}


def bench(name: str, case: Case, options: argparse.Namespace) -> str:
    """The text on one network."""
    example, device = MODELS[name], torch.device(options.device)
    torch.manual_seed(0)
    net = example.build(**(example.small if options.quick else {})).eval().to(device)
    batch, *rest = example.small_shape if options.quick else case.shape
    x = torch.randn(options.batch or batch, *rest, device=device)
    weft.prune.random(net, case.sparsity)
    dense, net = copy.deepcopy(net), weft.sparse.from_dense(net, all=True)
    sparse = copy.deepcopy(net)                       # without a calibration all layers with zeros are sparse
    with torch.no_grad():
        weft.sparse.set_mode(net, Sparse_modes.Calibration)
        net(x)
        weft.sparse.set_mode(net, Sparse_modes.Inference_Sparse)
        times = milliseconds({"torch.nn": lambda: dense(x), "as calibrated": lambda: net(x), "all sparse": lambda: sparse(x)}, options.seconds, device)
        error = ((net(x) - dense(x)).abs().max() / dense(x).abs().max()).item()
    layers = [m for m in net.modules() if isinstance(m, weft.nn.SparseConv2d)]
    kept, text = sum(m.decision == "sparse" for m in layers), weft.sparse.table(net)
    size = "x".join(map(str, x.shape))
    whole = ", ".join(f"{key} {ms:.1f} ms ({times['torch.nn'] / ms:.2f}x)" for key, ms in times.items())
    return (f"{name}{' (small)' if options.quick else ''} {size} on {device}, {torch.get_num_threads()} threads, {case.sparsity:.0%} of the weights of "
            f"convolutions are 0\n{text}\nwhole net: {whole}; {kept} of {len(layers)} layers keep to sparse; largest difference {error:.1e} of the "
            "largest output")


def main(arguments: Optional[Sequence[str]] = None) -> None:
    parser = argparse.ArgumentParser(description="Pruned networks, dense beside sparse, per layer and whole.")
    parser.add_argument("--models", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--batch", type=int, help="images; the cases' own if not given")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--seconds", type=float, help="for each layer, and for each way of the whole net; 2 if not given")
    parser.add_argument("--quick", action="store_true", help="narrow networks and small images: a look at the table, not a benchmark")
    options = parser.parse_args(arguments)
    if options.batch is not None and options.batch < 1:
        parser.error(f"--batch: is {options.batch}, allowed: 1 or more")
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device: is cuda, but this PyTorch has no CUDA device")
    options.seconds = options.seconds or (0.02 if options.quick else 2.0)
    if options.device == "cpu" and (note := busy()):
        print(f"note: {note}\n")
    with weft.backends.flags(measure_seconds=options.seconds):
        for i, name in enumerate(options.models):
            print(("\n" if i else "") + bench(name, CASES[name], options), flush=True)


if __name__ == "__main__":
    main()
