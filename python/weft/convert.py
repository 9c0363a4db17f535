"""Nets of torch.nn made nets of weft.nn, and back, in place."""
from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Optional, TypeVar

from torch import Tensor, nn

from ._core import text as _text
from ._core.arguments import check_flags

__all__ = ["Report", "Row", "convert"]

Net = TypeVar("Net", bound=nn.Module)
Example = Any   # a tensor, a tuple or list of arguments, a dict of keyword arguments


class Row(NamedTuple):
    """A module, or modules that were to be fused: the times of both sides where they were measured, and what became of it.

        >>> net = weft.convert(torch.nn.Sequential(torch.nn.Conv2d(8, 8, 3, groups=8)))
        >>> weft.convert.last_report.rows[0]
        Row(module='0', kind='Conv2d', shape=(), torch_ms=None, weft_ms=None, decision='weft')
    """

    module: str
    kind: str
    shape: tuple[int, ...]
    torch_ms: Optional[float]
    weft_ms: Optional[float]
    decision: str

    @property
    def ratio(self) -> Optional[float]:
        """Time of torch.nn over time of weft; None where nothing was measured."""
        return self.torch_ms / self.weft_ms if self.torch_ms is not None and self.weft_ms else None


class Report:
    """What convert() did, one row for each module it knows; str() is the table.

        >>> net = weft.convert(torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.MaxPool2d(2)))
        >>> print(weft.convert.last_report)
        module  kind       shape  torch ms  weft ms  ratio  decision
        0       Conv2d     -             -        -      -  stays: PyTorch's dense convolution is as fast
        1       MaxPool2d  -             -        -      -  weft
        >>> print(weft.convert.last_report.summary())
        1 swapped (1 MaxPool2d), 1 left (1 Conv2d: PyTorch's dense convolution is as fast)
    """

    def __init__(self, rows: Sequence[Row] = ()) -> None:
        self.rows = list(rows)

    def __str__(self) -> str:
        table = [("module", "kind", "shape", "torch ms", "weft ms", "ratio", "decision")]
        table += [(r.module, r.kind, _text.sizes(r.shape) or "-", *map(_text.number, (r.torch_ms, r.weft_ms, r.ratio), (3, 3, 2)), r.decision) for r in self.rows]
        return "\n".join(_text.table(table, (0, 1, 2, 6)))

    def summary(self) -> str:
        """One line: how many were swapped, how many left, and why."""
        swapped = Counter(r.kind for r in self.rows if not r.decision.startswith("stays"))
        left = Counter((r.decision.removeprefix("stays: "), r.kind) for r in self.rows if r.decision.startswith("stays"))
        reasons = {why: ", ".join(f"{n} {kind}" for (w, kind), n in left.items() if w == why) for why, _ in left}
        done = f" ({', '.join(f'{n} {kind}' for kind, n in swapped.items())})" if swapped else ""
        kept = f" ({'; '.join(f'{kinds}: {why}' for why, kinds in reasons.items())})" if left else ""
        return f"{sum(swapped.values())} swapped{done}, {sum(left.values())} left{kept}"


def _check(net: Any, to: Any, exclude: Any, example: Any, flags: dict[str, Any]) -> None:
    if not isinstance(net, nn.Module):
        raise TypeError(f"net: is {type(net).__name__}, allowed: a torch.nn.Module")
    if to not in ("weft", "torch"):
        raise ValueError(f"to: is {to!r}, allowed: 'weft' or 'torch'")
    if exclude is not None and not callable(exclude):
        raise TypeError(f"exclude: is {exclude!r}, allowed: a function of a module, or None")
    if example is not None and not isinstance(example, (Tensor, tuple, list, dict)):
        raise TypeError(f"example: is {type(example).__name__}, allowed: a tensor, a tuple of arguments, or a dict of keyword arguments")
    check_flags(**flags)
    if flags["all"] and (example is not None or to == "torch"):
        raise ValueError("all: is True with an example or with to='torch', allowed: alone; an example says what gets faster, and torch.nn has no choice")
    if flags["fuse"] and to == "torch":
        raise ValueError("fuse: is True with to='torch', allowed: with to='weft'; what was fused is taken apart in any case")


def convert(net: Net, to: str = "weft", exclude: Optional[Callable[[nn.Module], bool]] = None, *, example: Example = None, fuse: bool = False,
            all: bool = False, verbose: bool = True) -> Net:
    """Gives modules of the net the class that weft has for them where that is expected to be faster, and returns the net; to='torch' goes back. It
    happens in place and copies no memory: modules, parameters, buffers, hooks, modes and names stay the same objects, so optimisers go on.

        >>> net = torch.nn.Sequential(torch.nn.Conv2d(8, 8, 3, groups=8, bias=False), torch.nn.BatchNorm2d(8), torch.nn.ReLU6())
        >>> weft.convert(net)
        Sequential(
          (0): weft.Conv2d(8, 8, kernel_size=(3, 3), stride=(1, 1), groups=8, bias=False)
          (1): BatchNorm2d(8, ...)
          (2): ReLU6()
        )
        >>> weft.convert(net.eval(), fuse=True)
        Sequential(
          (0): weft.Conv2d(8, 8, kernel_size=(3, 3), stride=(1, 1), groups=8, bias=False, folds BatchNorm2d, act='clip', clip=(0.0, 6.0))
          (1): weft.Identity(BatchNorm2d(8, ...))
          (2): weft.Identity(ReLU6())
        )
        >>> weft.convert(net, to="torch")[1]
        BatchNorm2d(8, ...)

    Without an example, kinds of modules are swapped of which every row of docs/benchmarks is as fast as PyTorch or faster; everything else stays as it is
    and costs nothing. all=True swaps every module that weft knows. One line on stderr (not with verbose=False) says how many were swapped, how many
    left, and why.

    exclude(module) is asked of every module; where it is true the module, though not what is inside it, keeps its class. A subclass of torch.nn's
    modules that others wrote stays what it is, with weft's class below it, if it computes what its parent does (torchvision's Conv3DSimple). Those with a
    forward of their own are left alone; so is, on the way to torch, what torch.nn has no module for (act='relu').

    example, a tensor, a tuple of arguments or a dict of keyword arguments, is run through a copy of the net without its hooks. Each module is timed on
    what it sees there, as torch.nn has it and as weft does, with backward where the net is in training mode; only what gets faster is swapped, and
    nothing where the whole net does not get faster by it. The net, its statistics and the state of random numbers stay as they are. The table is printed (not with verbose=False) and kept as
    weft.convert.last_report, which after any call says what was swapped and what was not, and why.

    fuse lets a convolution do the work of a batch normalisation in eval mode and of a ReLU, ReLU6 or Hardtanh right behind it. Pairs are found where
    torch.fx can trace the net, or parts of it, and nobody else reads what goes between them. Nothing is fused with modules that have hooks, nor with
    functions (F.relu). The state_dict stays as it was. In training mode a folded normalisation normalises, as before, until eval() is called; after
    writing to `.data` of a weight call eval(), too, as nothing else tells. Calling convert again takes apart what was fused, exactly, before it starts.
    Do so before the net goes to torch.nn.DataParallel or SyncBatchNorm.convert_sync_batchnorm, which take modules apart.

    Convert a net before torch.compile; or call torch.compiler.reset() after, as some releases of PyTorch go on with what they compiled.

    An error leaves the net as it was.
    """
    _check(net, to, exclude, example, {"fuse": fuse, "verbose": verbose, "all": all})
    from ._convert.conversion import carry_out   # here, as most programs that import weft convert nothing
    convert.last_report = report = carry_out(net, to, exclude, example, fuse, all)   # type: ignore[attr-defined]
    if example is not None and verbose:
        print(report)
    if to == "weft" and verbose:
        print(f"weft.convert: {report.summary()}", file=sys.stderr)
    return net


convert.last_report = Report()   # type: ignore[attr-defined]
