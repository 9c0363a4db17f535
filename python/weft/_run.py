"""python -m weft run: any program with weft.enable() on, and a report of what it did."""
from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path
from typing import Optional

from . import _enable

_SITE = str(Path(__file__).resolve().parent / "_site")
_EXTRA_US = {False: 0.4, True: 1.0}   # what a call costs more that is not taken, forward and backward: docs/enable.md


def _for_children() -> None:
    """Processes that the program starts enable weft as well."""
    os.environ["WEFT_ENABLE"] = "1"
    path = os.environ.get("PYTHONPATH", "")
    if _SITE not in path.split(os.pathsep):
        os.environ["PYTHONPATH"] = os.pathsep.join([_SITE, path] if path else [_SITE])


def _time(ns: float) -> str:
    return f"{ns / 1e9:.2f} s" if ns >= 1e9 else f"{ns / 1e6:.1f} ms" if ns >= 1e6 else f"{ns / 1e3:.1f} us"


def report() -> str:
    """A table of the calls that came by in this process: problem, calls, kernel or why not, time saved by estimate."""
    rows = sorted(_enable.seen(), key=lambda s: (s.kernel == "torch", -(s.torch_ns - s.ns) * s.calls, s.problem))
    if not rows:
        return "weft: no convolution or pooling of PyTorch came by in this process"
    saved = sum((s.torch_ns - s.ns) * s.calls for s in rows if s.kernel != "torch")
    spent = sum(_EXTRA_US[s.backward] * 1e3 * s.calls for s in rows if s.kernel == "torch")
    lines = ["calls    saved      kernel, or why not; problem"]
    for s in rows:
        left = s.kernel == "torch"
        lines.append(f"{s.calls:<8} {'-' if left else _time((s.torch_ns - s.ns) * s.calls):<10} {'torch: ' + s.reason if left else s.kernel}; {s.problem}")
    taken, total = sum(s.calls for s in rows if s.kernel != "torch"), sum(s.calls for s in rows)
    lines.append(f"weft took {taken} of {total} calls and saved {_time(saved)} by estimate; the others cost {_time(spent)} more")
    if spent > saved:
        lines.append("weft.enable() does not pay for this program on this machine")
    return "\n".join(lines)


def run(target: str, args: list[str], module: bool, with_report: bool) -> int:
    """The program as `python target args` or `python -m target args` would run it; its exit status is this one's."""
    if not module and not Path(target).exists():
        print(f"python -m weft run: {target} is not there, allowed: the path of a script, or -m MODULE", file=sys.stderr)
        return 2
    _for_children()
    _enable.enable()
    sys.argv = [target, *args]
    code: Optional[object] = 0
    try:
        if module:
            sys.path[0] = os.getcwd()
            runpy.run_module(target, run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = str(Path(target).resolve().parent) if not Path(target).is_dir() else sys.path[0]
            runpy.run_path(target, run_name="__main__")
    except SystemExit as stop:
        code = stop.code
    finally:
        if with_report:
            sys.stdout.flush()
            print(report(), file=sys.stderr)
    if code is None or isinstance(code, int):
        return code or 0
    print(code, file=sys.stderr)
    return 1
