"""What torch.compile makes of PyTorch's own code for the memory-bound cases: milliseconds of a pass beside eager PyTorch and weft, in turn.

    python bench/compiled.py [--json FILE] PROBLEM...

Needs Triton on a GPU and a C++ compiler on the CPU, where what is compiled is kept between runs. The causal convolution is written as shifted products, which fuse; PyTorch's conv1d does not.
"""
from __future__ import annotations

import argparse
import json
import statistics
import sys

import torch

from weft._bench import clock as _clock, twin as _twin
from weft._enable import as_torch, bypassed


def shifted(x, weight, bias=None, initial_states=None, return_final_states=False, activation=None):
    """The causal convolution as a sum of shifted products, in float32."""
    width, length = weight.shape[1], x.shape[2]
    tokens = torch.nn.functional.pad(x, (width - 1, 0)).float()
    y = sum(tokens[:, :, k:k + length] * weight[:, k, None] for k in range(width))
    y = y if bias is None else y + bias[:, None]
    return (torch.nn.functional.silu(y) if activation else y).to(x.dtype)


def measure(text: str, rounds: int = 7) -> dict[str, float]:
    """Milliseconds of each side."""
    told, wanted = _twin._told(text, None)
    device = torch.device(told["device"], told["ordinal"] if told["device"] == "cuda" else None)
    _twin.causal_conv1d_ref = shifted
    problem = _twin.Problem(_twin._library.problem(told["text"], "fwd"), device)
    case = _twin.TABLE[told["op"]](problem)
    torch._dynamo.reset()
    sides = dict(zip(("weft", "eager"), _twin._calls(case, told, wanted, device)))
    case.weft = torch.compile(case.peer, dynamic=False)
    case.inputs = case.peer_inputs or case.inputs
    with bypassed():
        sides["compiled"] = as_torch(_twin._calls(case, told, wanted, device)[0])
    clock = _clock.of(device)
    samples: dict[str, list[float]] = {name: [] for name in sides}
    for i in range(-1, rounds):   # the first round compiles
        for name, run in sides.items():
            ms = clock.sample(run)
            if i >= 0:
                samples[name].append(ms)
    return {name: round(statistics.median(s), 4) for name, s in samples.items()}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("problems", nargs="+")
    given = parser.parse_args()
    torch.manual_seed(0)
    rows = {"torch": torch.__version__, "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu", "ms": {}}
    _clock.keep_pages()
    for text in given.problems:
        try:
            ms = measure(text, given.rounds)
            rows["ms"][text] = ms["compiled"]
            print(text, *(f"{name} {value:.3f}" for name, value in ms.items()), flush=True)
        except Exception as problem:   # one that does not compile must not cost the others
            print(f"{text}: {type(problem).__name__}: {str(problem)[:200]}", file=sys.stderr, flush=True)
        if given.json:
            with open(given.json, "w", encoding="utf-8") as file:
                file.write(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
