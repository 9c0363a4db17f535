"""PyINN's benchmark: MobileNet v1 without batch norm, forward and backward of the sum, torch.nn's modules beside weft's.

    PYTHONPATH=python python examples/mobilenet_benchmark.py --device cuda
    PYTHONPATH=python python examples/mobilenet_benchmark.py --batch 8 --memory-format channels_last

The source's case is 256x3x224x224 in float32, which is the default on a GPU; on the CPU the default batch is 8. Both nets have the same
weights and see the same images; iterations alternate, and the median counts.
"""
from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
import warnings
from collections.abc import Callable

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
    import torch
import weft
from models import MODELS
from torch import nn

DTYPES = {"float32": torch.float32, "float64": torch.float64, "float16": torch.float16, "bfloat16": torch.bfloat16}
FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
BATCH = {"cuda": 256, "cpu": 8}


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"is {text}, allowed: 1 or more")
    return int(text)


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="MobileNet v1, forward and backward: torch beside weft.")
    parser.add_argument("--batch", type=positive, metavar="N", help="images (default: 256 on CUDA, 8 on the CPU)")
    parser.add_argument("--size", type=positive, default=224, metavar="N", help="height and width of an image (default 224)")
    parser.add_argument("--width", type=float, default=1.0, metavar="X", help="of the net; 1 is the paper's (default 1)")
    parser.add_argument("--device", choices=BATCH, default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--memory-format", choices=FORMATS, default="contiguous")
    parser.add_argument("--tf32", action="store_true", help="let products of float32 on a GPU run in TF32, on both sides")
    parser.add_argument("--autocast", choices=("float16", "bfloat16"), help="run under torch.autocast")
    parser.add_argument("--fuse", action="store_true", help="let weft's convolutions apply the ReLU behind them")
    parser.add_argument("--compiled", action="store_true", help="torch.compile of torch's net as a third")
    parser.add_argument("--iterations", type=positive, default=10, metavar="N", help="of each net, after one that does not count (default 10)")
    args = parser.parse_args(argv)
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device: is cuda, but this PyTorch has no CUDA device")
    if not 0 < args.width <= 4:
        parser.error(f"--width: is {args.width}, allowed: more than 0, at most 4")
    args.batch = args.batch or BATCH[args.device]
    return args


def build(args: argparse.Namespace) -> tuple[dict[str, nn.Module], torch.Tensor]:
    """Both nets, with the same weights, and the images."""
    torch.manual_seed(0)
    to = {"device": args.device, "dtype": DTYPES[args.dtype], "memory_format": FORMATS[args.memory_format]}
    net = MODELS["mobilenet_v1"].build(width=args.width).to(**to)
    nets = {"torch": net, "weft": weft.convert(copy.deepcopy(net), fuse=args.fuse)}
    if args.compiled:
        nets["compiled"] = torch.compile(copy.deepcopy(net), dynamic=False)
    return nets, torch.randn(args.batch, 3, args.size, args.size).to(**to)


def step(net: nn.Module, x: torch.Tensor, autocast: str | None = None) -> Callable[[], torch.Tensor]:
    """Forward and backward of the sum; the result and every gradient are left in the net."""
    def run() -> torch.Tensor:
        net.zero_grad(set_to_none=True)
        with torch.autocast(x.device.type, DTYPES.get(autocast or ""), enabled=autocast is not None):
            y = net(x)
        y.sum().backward()
        return y
    return run


def seconds(run: Callable[[], object], device: str) -> float:
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    wait()
    start = time.perf_counter()
    run()
    wait()
    return time.perf_counter() - start


def largest_difference(one: nn.Module, other: nn.Module) -> float:
    """Of the gradients that the last step left, over the largest value of each."""
    pairs = ((p.grad.double(), q.grad.double()) for p, q in zip(one.parameters(), other.parameters()))
    return max(((a - b).abs().max() / a.abs().max().clamp_min(1e-30)).item() for a, b in pairs)


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = args.tf32
    nets, x = build(args)
    print(f"MobileNet v1, {args.batch}x3x{args.size}x{args.size}, {args.autocast or args.dtype}{', TF32' if args.tf32 else ''}, {args.memory_format}, {args.device}: torch {torch.__version__}, "
          f"weft {weft.__version__}, {torch.get_num_threads()} threads, medians of {args.iterations} iterations")
    runs = {name: step(net, x, args.autocast) for name, net in nets.items()}
    for run in runs.values():
        run()
    samples: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(args.iterations):
        for name, run in runs.items():
            samples[name].append(seconds(run, args.device))
    for name, times in samples.items():
        middle = statistics.median(times)
        print(f"{name:6}{1e3 * middle:10.2f} ms{args.batch / middle:12.1f} images/s")
    for name in samples.keys() - {"weft"}:
        ratio = statistics.median(t / w for t, w in zip(samples[name], samples["weft"]))
        print(f"ratio {ratio:10.2f}   of {name}; largest difference of a gradient: {largest_difference(nets[name], nets['weft']):.1e}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
