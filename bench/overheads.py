"""What a call costs beside computing: time on tiny inputs beside PyTorch's cheapest operator of the kind, and the time of `import weft`.

    make && WEFT_LIBRARY=build/libweft_torch.so PYTHONPATH=python .venv/bin/python bench/overheads.py [NAME...]

The bars are 15 us beyond PyTorch's operator and 60 ms after `import torch`. The least of many interleaved rounds counts: other work only adds.
"""
from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "tests" / "python")]

import torch  # noqa: E402

from everything import FUNCTIONS, Example  # noqa: E402

MOST = 15.0           # us that a call may take beyond PyTorch's
IMPORT = 60.0         # ms
OVERHEADS = FUNCTIONS | {"conv2d by PyTorch": replace(     # of this size PyTorch's own kernel is the faster one, and is called
    FUNCTIONS["conv2d"], tensors=lambda n, s: ((1, 4, 8, 8), (4, 4, 3, 3), (4,)), call=lambda f, *t: f(*t, padding=1),
    cheapest=lambda *t: torch.conv2d(*t, 1, 1))}


def _mean(run: Callable[[], object], times: int) -> float:
    start = time.perf_counter_ns()
    for _ in range(times):
        run()
    return (time.perf_counter_ns() - start) / times / 1e3


def overhead(example: Example, rounds: int = 40, times: int = 25) -> tuple[float, float]:
    """us of a call of weft and of the cheapest operator."""
    tensors = example.make("cpu", batch=1, size=example.tiny)
    ours, theirs = lambda: example.weft(*tensors), lambda: example.cheapest(*tensors)
    least = [float("inf"), float("inf")]
    with torch.no_grad():
        for _ in range(rounds):
            least = [min(best, _mean(run, times)) for best, run in zip(least, (ours, theirs))]
    return least[0], least[1]


def importing() -> float:
    """ms of `import weft` after `import torch`, the least of three."""
    clock = "import time, torch; t = time.perf_counter(); import weft; print(time.perf_counter() - t)"
    runs = [subprocess.run([sys.executable, "-W", "ignore", "-c", clock], capture_output=True, text=True, check=True, env=os.environ) for _ in range(3)]
    return 1e3 * min(float(r.stdout) for r in runs)


def main(names: list[str]) -> None:
    torch.set_num_threads(1)
    for name in names or OVERHEADS:
        ours, theirs = overhead(OVERHEADS[name])
        print(f"{name:26s} {ours:7.1f} us   cheapest {theirs:7.1f} us   over {ours - theirs:6.1f}{'   <---' if ours - theirs > MOST else ''}", flush=True)
    if not names:
        ms = importing()
        print(f"{'import weft':26s} {ms:7.1f} ms{'   <---' if ms > IMPORT else ''}")


if __name__ == "__main__":
    main(sys.argv[1:])
