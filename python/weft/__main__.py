"""The command: python -m weft bench | demo | info | run, and --cflags --libs for programs in C."""
from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from ._core import calibrate as _calibrate, entry as _entry, library as _library
from . import _enable, bench, demo
from ._bench import twin as _twin

_PROBLEM_HELP = """A problem is a text such as conv2d:fwd:f32:nchw:n8c128h56w56:o128k3p1g128 (docs/problem.md has the grammar);
its pass may also be train: forward and every gradient through autograd.
Columns: peer is PyTorch, ratio is peer over weft; floor is the time this machine needs to move the bytes once or to do the flops,
share is floor over weft. A ? marks a row that was measured beside other work.
Exit codes: 0 done, 1 the results differ or FILE cannot be written, 2 misuse."""
_MOST_THREADS = 1024                 # PyTorch falls over where the system cannot start as many as it was asked for


def _flags(cflags: bool, libs: bool) -> int:
    """Compiler and linker flags for the C library that lies with this package."""
    directory, package = _library.path.resolve().parent, Path(__file__).resolve().parent
    include = next((d for d in (package / "include", package.parents[1] / "include", directory.parent / "include") if (d / "weft.h").is_file()), None)
    library = next((d for d in (directory, package / "lib", directory.parent / "lib") if (d / "libweft.so").exists()), None)
    if (cflags and include is None) or (libs and library is None):
        print(f"python -m weft: {'weft.h' if cflags and include is None else 'libweft.so'} was not found beside {_library.path}", file=sys.stderr)
        return 1
    parts = [f"-I{include}"] if cflags else []
    parts += [f"-L{library}", f"-Wl,-rpath,{library}", "-lweft"] if libs else []
    print(" ".join(parts))
    return 0


def _info() -> int:
    print(f"weft {_library.version()}\nlibrary: {_library.path}\ntorch: {torch.__version__} (CUDA {torch.version.cuda or 'absent'})"
          f"\npython: {sys.version.split()[0]}\n{_library.describe().rstrip()}\n{_calibrate.describe()}"
          f"\nentries: {'in use' if _entry.available else 'none, calls take the long way'}")
    return 0


def _count(most: int) -> Callable[[str], int]:
    """Reads a whole number from 1 to `most`."""
    def read(text: str) -> int:
        if not text.isdecimal() or not 1 <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"is {text!r}, allowed: a whole number from 1 to {most}")
        return int(text)
    return read


def _parsers() -> tuple[argparse.ArgumentParser, argparse.ArgumentParser]:
    """The parser of the whole command, and that of bench, whose usage its errors show."""
    parser = argparse.ArgumentParser(prog="python -m weft", description="weft's operators in PyTorch: measure them, look at what runs.")
    parser.add_argument("--cflags", action="store_true", help="print the compiler flags for a C program that uses weft")
    parser.add_argument("--libs", action="store_true", help="print the linker flags for a C program that uses weft")
    parser.add_argument("--version", action="version", version=f"weft {_library.version()}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    b = commands.add_parser("bench", help="time weft beside PyTorch and the floor", description="Time weft beside PyTorch and the floor.", epilog=_PROBLEM_HELP,
                            formatter_class=argparse.RawDescriptionHelpFormatter)
    b.add_argument("problem", nargs="*", metavar="PROBLEM")
    b.add_argument("--set", dest="named", metavar="NAME", help="the problems of bench/NAME.txt, or models: the networks of examples/models, converted")
    b.add_argument("--models", metavar="A,B", help="of the set models, only these")
    b.add_argument("--batch", type=_count(1 << 20), metavar="N", help="of the set models (default: 2 on the CPU, each model's own on CUDA)")
    b.add_argument("--device", choices=("cpu", "cuda"), help="of the sets models and regret (default cpu); a problem names its own")
    b.add_argument("--against", metavar="FILE", help="rows of an earlier run: name what fell by more than a tenth")
    b.add_argument("--json", metavar="FILE", help="write the rows there as well")
    b.add_argument("--figure", metavar="FILE.svg", help="measure nothing: draw the rows of the files given instead of problems, which --json wrote")
    b.add_argument("--rounds", type=_count(1001), default=11, metavar="N", help=f"samples of each side, at least {bench.MIN_ROUNDS} (default 11)")
    b.add_argument("--threads", type=_count(_MOST_THREADS), metavar="N", help="for both sides (default: PyTorch's)")
    b.add_argument("--pass", dest="passes", choices=_twin.PASSES, help="instead of the pass in the text")
    d = commands.add_parser("demo", help="five cases and two networks on this machine, PyTorch beside weft, and a page about them",
                            description="Measure five cases and two networks on this machine's CPU, PyTorch beside weft, in about a minute: a table, and the "
                                        "same as a page with drawings. Exit codes: 0 done, 1 a result is wrong or FILE cannot be written, 2 misuse.")
    d.add_argument("--html", default="report.html", metavar="FILE", help="where the page goes (default report.html)")
    d.add_argument("--only", metavar="A,B", help="only the cases whose names contain one of these words")
    r = commands.add_parser("run", help="run a program with weft.enable() on", usage="python -m weft run [--report] (SCRIPT | -m MODULE) [ARGUMENT ...]",
                            description="Run a program with weft's kernels under PyTorch's own convolutions and pooling, in it and in the processes that it starts. "
                                        "Its exit status is this one's. docs/enable.md says what weft.enable() does.")
    r.add_argument("--report", action="store_true", help="end with a table on stderr: problem, calls, kernel or why not, time saved by estimate")
    r.add_argument("-m", dest="module", action="store_true", help="run a module instead of a script")
    r.add_argument("program", metavar="SCRIPT | MODULE")
    r.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGUMENT").required = False   # or Python 3.11 misses it where nothing is given
    commands.add_parser("info", help="the library, PyTorch and the machine as weft sees it")
    return parser, b


def _bench(args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    if bool(args.problem) == bool(args.named):
        parser.error("expects PROBLEM... or --set NAME" + (", not both" if args.named else ""))
    if args.figure:
        if args.named:
            parser.error("--figure goes with files of rows that --json wrote, not with --set")
        return bench.draw(args.figure, args.problem)
    if args.named == bench.MODELS:
        if args.passes:
            parser.error("--pass goes with problems; the set models runs inference and training")
        return bench.run_models(args.models, args.batch, args.device or "cpu", args.rounds, args.threads, args.json)
    for option in ("models", "batch", "device"):
        if getattr(args, option) and (option != "device" or args.named != bench.REGRET):
            parser.error(f"--{option} goes with --set models" + (" or regret" if option == "device" else ""))
    try:
        problems = bench.problems_of(args.named) if args.named else args.problem
    except ValueError as problem:
        parser.error(str(problem))
    if args.named == bench.REGRET:
        problems = [f"{p}@{args.device}" for p in problems] if args.device else problems
        return bench.run_regret(problems, args.rounds, args.threads, args.json)
    if args.against and not Path(args.against).is_file():
        parser.error(f"--against: is {args.against!r}, allowed: a file of rows that --json wrote")
    return bench.run(problems, args.passes, args.rounds, args.threads, args.json, record=args.against)


def main(argv: list[str] | None = None) -> int:
    parser, bench_parser = _parsers()
    args = parser.parse_args(argv)
    if args.cflags or args.libs:
        if args.command:
            parser.error(f"--cflags and --libs go without a command, got {args.command!r}")
        return _flags(args.cflags, args.libs)
    if args.command == "bench":
        return _bench(args, bench_parser)
    if args.command == "demo":
        return demo.run(args.html, args.only)
    if args.command == "info":
        return _info()
    if args.command == "run":
        return _enable.run(args.program, args.arguments, args.module, args.report)
    parser.print_help(sys.stderr)
    return 2


def _process() -> int:
    """main() as a process ends: an interrupt and a reader that has gone (`| head`) are no crashes."""
    try:
        code = main()
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        print("\npython -m weft: stopped", file=sys.stderr)
        return 128 + signal.SIGINT
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())   # or Python's last flush would fail again
        return 128 + signal.SIGPIPE


if __name__ == "__main__":
    sys.exit(_process())
