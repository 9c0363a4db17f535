"""Cliffs: the planner's choice timed while batch and width move by one around each problem, as time per element.

    python bench/cliffs.py build/weft conv2d:fwd:f32:nchw:n8c128h56w56:o128k3p1g128 ...      # default: the convolutions of bench/cpu.txt

A step is what the larger of two neighbours takes more per element, or what the smaller one takes more in all: that a call's fixed cost
spreads over more elements is no cliff. More than 1.3x is timed again, both sides, and the least of the times counts: other work on the
machine only adds to them.
A step that stays is a cliff: it is marked, and the exit code is 1.
"""
from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

STEP, REACH, ROUNDS, AGAIN = 1.3, 3, 7, 3


def moved(problem: str, letter: str, by: int) -> str:
    """The problem with that size of its input changed; sizes stand in the fifth field."""
    fields = problem.split(":")
    fields[4] = re.sub(rf"{letter}(\d+)", lambda m: f"{letter}{int(m[1]) + by}", fields[4], count=1)
    return ":".join(fields)


def size_of(problem: str, letter: str) -> int:
    found = re.search(rf"{letter}(\d+)", problem.split(":")[4])
    return int(found[1]) if found else 0


def time_of(weft: str, problem: str) -> tuple[float, str]:
    """Milliseconds of the planner's choice, and its name."""
    plan = subprocess.run([weft, "plan", problem], capture_output=True, text=True, check=True).stdout
    kernel = re.search(r"^\s*kernel:?\s+(\S+)", plan, re.MULTILINE)
    assert kernel, plan
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [weft, "bench", "--rounds", str(ROUNDS), "--kernel", kernel[1], "--json", file.name, problem]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return json.loads(Path(file.name).read_text(encoding="utf-8"))[0]["ms"], kernel[1]


def sweep(weft: str, problem: str, letter: str) -> int:
    """Time per element, against that of the neighbour below; how many steps are cliffs."""
    cases = [moved(problem, letter, by) for by in range(-REACH, REACH + 1)]
    cases = [case for case in cases if size_of(case, letter) >= 1]
    found = [time_of(weft, case) for case in cases]
    ms, kernels = [f[0] for f in found], [f[1] for f in found]

    def step(i: int) -> float:
        growth = size_of(cases[i], letter) / size_of(cases[i - 1], letter)
        return max(ms[i] / ms[i - 1] / growth, ms[i - 1] / ms[i])

    for _ in range(AGAIN):
        for i in {k for i in range(1, len(cases)) if step(i) > STEP for k in (i - 1, i)}:
            ms[i] = min(ms[i], time_of(weft, cases[i])[0])
    steps = [1.0] + [step(i) for i in range(1, len(cases))]
    for case, t, by, kernel in zip(cases, ms, steps, kernels):
        print(f"{case:58} {t:9.3f} ms  {by:5.2f}x {'CLIFF' if by > STEP else '     '} {kernel}", flush=True)
    return sum(by > STEP for by in steps)


def rows() -> list[str]:
    lines = (Path(__file__).parent / "cpu.txt").read_text(encoding="utf-8").splitlines()
    rows = [line.replace(":train:", ":bwd:") for line in lines if re.match(r"(sparse_|partial_)?conv\dd:", line)]
    return [row.replace(",new_mask=u8", "") if ":bwd:" in row else row for row in rows]


def main() -> int:
    weft, *problems = sys.argv[1:] or ["build/weft"]
    cliffs = sum(sweep(weft, problem, letter) for problem in problems or rows() for letter in "nw")
    print(f"{cliffs} steps over {STEP}x")
    return 1 if cliffs else 0


if __name__ == "__main__":
    sys.exit(main())
