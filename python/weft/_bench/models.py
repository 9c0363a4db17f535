"""The networks of examples/models, torch.nn's and converted, side by side: time, memory, error."""
from __future__ import annotations

import copy
import importlib.util
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Optional

import torch
from torch import Tensor, nn

from . import clock as _clock
from .._enable import as_torch
from .twin import distance

ROUNDS = 11
CPU_BATCH = 2                        # without --batch: the models' own batches are for GPUs
SECONDS = 20.0                       # of samples for one row, at least 3
_FLIPS = 8                           # a ReLU or a maximum that flips moves a result by a jump, on one side and not on the other
Inputs = tuple[Tensor, ...]


def load() -> dict[str, Any]:
    """The table MODELS of examples/models; FileNotFoundError where weft is installed without its source tree."""
    name, where = "weft_example_models", Path(__file__).resolve().parents[3] / "examples" / "models" / "__init__.py"
    if name not in sys.modules:
        if not where.is_file():
            raise FileNotFoundError(f"the models are not here ({where}): they are in examples/models of weft's source tree; run there, with PYTHONPATH=python")
        spec = importlib.util.spec_from_file_location(name, where, submodule_search_locations=[str(where.parent)])
        module: ModuleType = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name].MODELS


def pick(names: Optional[str]) -> list[str]:
    """The models of a list such as "lenet5,resnet34"; None: all."""
    known = list(load())
    picked = known if names is None else [n.strip() for n in names.split(",") if n.strip()]
    for name in picked:
        if name not in known:
            raise ValueError(f"--models: {name!r} is no model, allowed: {', '.join(known)}")
    if not picked:
        raise ValueError(f"--models: names no model, allowed: {', '.join(known)}")
    return picked


def converted(net: nn.Module) -> nn.Module:
    """A copy whose modules are weft's."""
    from .. import convert   # by then weft has it
    return convert(copy.deepcopy(net), verbose=False)


# ---------------------------------------------------------------------------------------------- what is timed

def forward(net: nn.Module, inputs: Inputs) -> Callable[[], Tensor]:
    """Inference."""
    net.eval()

    def run() -> Tensor:
        with torch.no_grad():
            return net(*inputs)
    return run


def train(net: nn.Module, inputs: Inputs) -> Callable[[], Tensor]:
    """A step of training: the mean square of the result, every gradient, SGD."""
    net.train()
    optimiser = torch.optim.SGD(net.parameters(), 1e-4)

    def run() -> Tensor:
        optimiser.zero_grad(set_to_none=True)
        loss = net(*inputs).square().mean()
        loss.backward()
        optimiser.step()
        return loss.detach()
    return run


PASSES: dict[str, Callable[[nn.Module, Inputs], Callable[[], Tensor]]] = {"forward": forward, "train": train}


# ---------------------------------------------------------------------------------------------- errors

def _results(net: nn.Module, inputs: Inputs, training: bool) -> list[Tensor]:
    """The result and, in training, the gradient of each parameter. What drops at random does not: the sides would drop different things."""
    net = copy.deepcopy(net).train(training)
    for module in net.modules():
        if "Drop" in type(module).__name__ or type(module).__name__ == "StochasticDepth":
            module.eval()
    with torch.set_grad_enabled(training):
        y = net(*inputs)
        return [y.detach(), *torch.autograd.grad(y.square().mean(), list(net.parameters()))] if training else [y]


def errors(net: nn.Module, other: nn.Module, inputs: Inputs, training: bool) -> tuple[float, float]:
    """The largest difference between the two over the largest value of the tensor; and net's own from itself in float64, which is what
    rounding does in this network."""
    theirs, ours = (_results(m, inputs, training) for m in (net, other))
    exact = _results(copy.deepcopy(net).double(), tuple(x.double() if x.is_floating_point() else x for x in inputs), training)
    return max(map(distance, ours, theirs)), max(map(distance, theirs, exact))


def complaint(row: dict) -> str:
    """What is wrong with the results of a row, or ""."""
    if row["error"] <= _FLIPS * max(row["rounding"], torch.finfo(torch.float32).eps):
        return ""
    return f"{row['model']}, {row['pass']}: the results differ by {row['error']:.1e} of the largest value, and rounding explains {row['rounding']:.1e}"


# ---------------------------------------------------------------------------------------------- rows

def measure(name: str, batch: Optional[int] = None, device: str = "cpu", rounds: int = ROUNDS, seconds: float = SECONDS, shape: Optional[Sequence[int]] = None,
            passes: Sequence[str] = tuple(PASSES), **arguments: Any) -> Iterator[dict]:
    """A row for each pass. shape: of one sample, in place of the model's own; arguments: of its constructor."""
    example, where = load()[name], torch.device(device)
    batch = batch or (min(CPU_BATCH, example.shape[0]) if where.type == "cpu" else example.shape[0])
    torch.manual_seed(0)
    net = example.build(**arguments).to(where)
    inputs = tuple(x.to(where) for x in example.inputs((batch, *(shape or example.shape[1:]))))
    other = converted(net)
    few = tuple(x[:2] for x in inputs)
    for passed in passes:
        busy = _clock.watch()
        error, rounding = errors(net, other, few, passed == "train")
        nets = [copy.deepcopy(net), copy.deepcopy(other)]
        runs = [PASSES[passed](m, inputs) for m in nets]
        runs[0] = as_torch(runs[0])
        ours, theirs = _clock.interleaved(runs[::-1], where, rounds, seconds)
        for m in nets:
            m.zero_grad(set_to_none=True)   # the peak counts a step's own gradients, not those of the step before
        yield {"model": name, "batch": batch, "shape": list(inputs[0].shape), "pass": passed, "device": device, "peer": f"torch {torch.__version__}",
               "peer_ms": statistics.median(theirs), "weft_ms": statistics.median(ours), "ratio": statistics.median(p / w for w, p in zip(ours, theirs)),
               "weft_bytes": _clock.peak(runs[1], where), "peer_bytes": _clock.peak(runs[0], where), "error": error, "rounding": rounding,
               "rounds": len(ours), "threads": torch.get_num_threads(), "pages": _clock.pages, "busy": busy()}
