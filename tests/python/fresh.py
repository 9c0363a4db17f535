"""Programs in a process of their own, without the two seconds that importing torch takes: each is forked from a process that imported it, and
nothing of weft. What is about the start of Python itself (sitecustomize, -m, the time an import takes) needs a real start.
"""
from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import tempfile
import types
import warnings
from pathlib import Path
from typing import Optional

ROOT = Path(__file__).resolve().parents[2]
_parent: Optional[subprocess.Popen] = None


def environment(**env: str) -> dict[str, str]:
    """That of this process, with weft from this tree and the library that is tested."""
    import weft
    return {**os.environ, "PYTHONPATH": str(ROOT / "python"), "WEFT_LIBRARY": weft.backends.library(), **env}


def run(code: str, *args: str, warn: str = "ignore", cwd: Optional[Path] = None, env: Optional[dict[str, str]] = None) -> subprocess.CompletedProcess:
    """As `python -W WARN -c CODE ARGS...` in that environment; without one, that of environment()."""
    global _parent
    if _parent is None or _parent.poll() is not None:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("WEFT_")}
        _parent = subprocess.Popen([sys.executable, "-W", "ignore", __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=clean)
        atexit.register(_parent.kill)
    with tempfile.TemporaryDirectory() as folder:
        ask = {"code": code, "args": args, "warn": warn, "cwd": str(cwd or os.getcwd()), "env": env or environment(), "folder": folder}
        _parent.stdin.write(json.dumps(ask) + "\n")
        _parent.stdin.flush()
        status = int(_parent.stdout.readline())
        out, err = ((Path(folder) / name).read_text() for name in ("stdout", "stderr"))
        return subprocess.CompletedProcess(code, os.waitstatus_to_exitcode(status), out, err)


def serve() -> str:
    """Fork for each line of stdin and answer with how the child ended. Returns in the children, with what to run."""
    import torch   # noqa: F401
    while line := sys.stdin.readline():
        child = os.fork()
        if child == 0:
            return become(json.loads(line))
        print(os.waitpid(child, 0)[1], flush=True)
    raise SystemExit


def become(ask: dict) -> str:
    for number, name, flags in ((0, os.devnull, os.O_RDONLY), (1, "stdout", os.O_CREAT | os.O_WRONLY), (2, "stderr", os.O_CREAT | os.O_WRONLY)):
        os.dup2(os.open(os.path.join(ask["folder"], name), flags), number)   # joining a folder and /dev/null gives /dev/null
    os.environ.clear()
    os.environ.update(ask["env"])
    os.chdir(ask["cwd"])
    sys.argv = ["-c", *ask["args"]]
    sys.path[:] = ["", *filter(None, ask["env"].get("PYTHONPATH", "").split(os.pathsep)), *sys.path[1:]]
    warnings.resetwarnings()
    warnings.simplefilter(ask["warn"])
    return ask["code"]


if __name__ == "__main__":
    _code = compile(serve(), "<string>", "exec")
    sys.modules["__main__"] = types.ModuleType("__main__")   # as a program finds it
    exec(_code, vars(sys.modules["__main__"]))
