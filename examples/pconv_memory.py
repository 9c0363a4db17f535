"""The memory of partial convolution, beside the table that torch_pconv published.

    python examples/pconv_memory.py              the published case on a GPU, a smaller one on the CPU
    python examples/pconv_memory.py --full       the published case on the CPU: 1.5 GB, a minute on two cores

Peaks are bytes live at the worst moment of a pass, less those live before it: what the pass must fit into the memory that is left. On the
CPU they come from PyTorch's profiler, which sees every block that PyTorch allocates; on a GPU from torch.cuda.max_memory_allocated.
The plain rows write the formula with PyTorch's operators.
"""
from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))

os.environ.setdefault("KINETO_LOG_LEVEL", "99")   # else the profiler tells stderr when it starts and stops

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

import weft  # noqa: E402

LIMIT = 64 << 20   # the default of weft.backends.workspace_limit


@dataclass(frozen=True)
class Case:
    """A square image under PConv2d with a bias, stride 1."""

    batch: int = 16
    channels: int = 64
    filters: int = 128
    kernel: int = 9
    padding: int = 3
    size: int = 256

    def make(self, device: torch.device) -> tuple[torch.nn.Module, Tensor, Tensor]:
        module = weft.nn.PConv2d(self.channels, self.filters, self.kernel, padding=self.padding, bias=True, device=device)
        return module, torch.rand(self.batch, self.channels, self.size, self.size, device=device), (
            torch.rand(self.batch, self.size, self.size, device=device) > 0.5).float()


FULL, SMALL = Case(), Case(batch=8, channels=16, filters=32, size=64)
PUBLISHED = {"torch_pconv": (813_466_624, 1_588_201_480, 2_405_797_640), "NVIDIA": (4_228_120_576, 1_588_201_480, 6_084_757_512)}


def plain(module: torch.nn.Module, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """The formula as one would write it."""
    m, w = mask.unsqueeze(1), module.get_weight()
    s = torch.nn.functional.conv2d(m, torch.ones_like(w[:1, :1]), padding=module.padding) * x.shape[1]
    u = s.clamp(0, 1)
    y = torch.nn.functional.conv2d(x * m, w, padding=module.padding) * (w[0].numel() / (s + 1e-8) * u)
    return (y + module.get_bias()) * u, u.squeeze(1)


# ---------------------------------------------------------------------------------------------- measuring

def peak_of(run: Callable[[], object], device: torch.device) -> tuple[int, int, object]:
    """(bytes at the worst moment of run(), bytes it leaves behind, its result)."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        result = run()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before, torch.cuda.memory_allocated() - before, result
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        result = run()
    live = most = 0
    for event in sorted((e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"), key=lambda e: e.start_ns()):
        live += event.nbytes()
        most = max(most, live)
    return most, live, result


def measure(layer: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], parameters: list[Tensor], x: Tensor, mask: Tensor) -> dict[str, int]:
    """The peak of the forward pass, of the backward pass to every parameter and to x, and what is kept between them besides the results."""
    device, leaf = x.device, x.detach().requires_grad_()
    forward, left, (y, new_mask) = peak_of(lambda: layer(leaf, mask), device)
    results = y.nbytes + new_mask.nbytes
    grad = torch.ones_like(y)
    backward, _, grads = peak_of(lambda: torch.autograd.grad(y, [leaf, *parameters], grad), device)
    gradients = sum(t.nbytes for t in grads)
    return {"forward": forward, "kept": left - results, "backward": backward, "results": results, "gradients": gradients}


def rows(case: Case, device: torch.device) -> dict[str, dict[str, int]]:
    """What weft's module and the plain formula take."""
    module, x, mask = case.make(device)
    parameters = [module.get_weight(), module.get_bias()]
    return {"weft": measure(module, parameters, x, mask), "plain": measure(lambda a, m: plain(module, a, m), parameters, x, mask)}


def show(case: Case, device: torch.device) -> None:
    print(f"{case.batch} x {case.channels} -> {case.filters} channels, kernel {case.kernel}, padding {case.padding}, {case.size} x {case.size}, {device}")
    print(f"{'peak bytes':14}{'forward':>16}{'kept between':>16}{'backward':>16}")
    found = rows(case, device)
    for name, row in found.items():
        print(f"{name:14}{row['forward']:>16,}{row['kept']:>16,}{row['backward']:>16,}")
    row = found["weft"]
    print(f"{'needed at least':14}{row['results']:>15,}{0:>16,}{row['gradients']:>16,}")
    print(f"weft's workspace: {row['forward'] - row['results']:,} forward, {row['backward'] - row['gradients']:,} backward; allowed {LIMIT:,}")
    if case == FULL:
        print(f"\n{'published':14}{'forward':>16}{'backward':>16}{'both':>16}")
        for name, (forward, backward, both) in PUBLISHED.items():
            print(f"{name:14}{forward:>16,}{backward:>16,}{both:>16,}")
        print(f"{'weft':14}{row['forward']:>16,}{row['backward']:>16,}{row['results'] + row['kept'] + row['backward']:>16,}")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--full", action="store_true", help="the published case on the CPU")
    full = options.parse_args().full
    torch.manual_seed(0)
    if torch.cuda.is_available() and not full:
        show(FULL, torch.device("cuda"))
    else:
        show(FULL if full else SMALL, torch.device("cpu"))


if __name__ == "__main__":
    main()
