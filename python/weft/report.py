"""weft.report(): what runs in a network, layer by layer, and what each way of using weft makes of it."""
from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple, Optional, Union

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from . import _enable, backends
from ._bench import clock as _clock
from ._core import text as _text
from .convert import convert

__all__ = ["Layer", "NetReport", "Way", "report"]

SECONDS = 2.0   # for each way of running the whole net, at least 3 runs


class Layer(NamedTuple):
    """A module that weft knows, on what it sees in the net: milliseconds of all its calls, with backward where the net is in training mode.

        >>> weft.report(torch.nn.Sequential(torch.nn.MaxPool2d(2)).eval(), torch.randn(1, 4, 8, 8)).layers[0].kind
        'MaxPool2d'
    """

    module: str
    kind: str
    shape: tuple[int, ...]
    kernel: str                  # of weft's forward pass; "torch": the planner leaves it to PyTorch
    torch_ms: Optional[float]    # None: it was not called
    weft_ms: Optional[float]
    floor_ms: float              # forward: its tensors moved once, its products at the peak

    @property
    def share(self) -> Optional[float]:
        """Of the floor, by the faster side; of a forward pass only."""
        return self.floor_ms / min(self.torch_ms, self.weft_ms) if self.torch_ms and self.weft_ms and self.floor_ms else None


class Way(NamedTuple):
    """The whole net run in one way: plain, enable(), convert(example), convert(example, fuse).

        >>> [way.name for way in weft.report(torch.nn.Sequential(torch.nn.MaxPool2d(2)).eval(), torch.randn(1, 4, 8, 8)).ways]
        ['plain', 'enable()', 'convert(example=x)', 'convert(example=x, fuse=True)']
    """

    name: str
    ms: float
    bytes: int   # the most held at once


class NetReport:
    """What weft.report() returns: str() is the table, html() the page.

        >>> print(weft.report(torch.nn.Sequential(torch.nn.MaxPool2d(2)).eval(), torch.randn(1, 4, 8, 8)))   # doctest: +ELLIPSIS
        module  kind       shape    torch ms  weft ms  ratio  of floor  kernel, or why not
        ...
    """

    def __init__(self, layers: list[Layer], ways: list[Way], training: bool, device: str) -> None:
        self.layers, self.ways, self.training, self.device = layers, ways, training, device

    def _table(self) -> list[tuple[str, ...]]:
        table = [("module", "kind", "shape", "torch ms", "weft ms", "ratio", "of floor", "kernel, or why not")]
        for r in self.layers:
            ratio = r.torch_ms / r.weft_ms if r.torch_ms is not None and r.weft_ms else None
            why = "not called" if r.torch_ms is None else f"{r.kernel}; PyTorch is as fast" if ratio is not None and ratio < 1.05 and r.kernel != "torch" else r.kernel
            table.append((r.module, r.kind, _text.sizes(r.shape) or "-", _text.number(r.torch_ms, 3), _text.number(r.weft_ms, 3), _text.number(ratio, 2),
                          "-" if self.training else _text.number(r.share, 2), why))
        called = [r for r in self.layers if r.torch_ms is not None]
        table.append(("these layers", "", "", _text.number(sum(r.torch_ms or 0 for r in called), 3), _text.number(sum(r.weft_ms or 0 for r in called), 3), "", "", ""))
        return table

    def _totals(self) -> list[tuple[str, ...]]:
        plain = self.ways[0].ms
        return [("the whole net", "ms", "ratio", "peak MB")] + [(w.name, f"{w.ms:.3f}", f"{plain / w.ms:.2f}", f"{w.bytes / 1e6:.1f}") for w in self.ways]

    def __str__(self) -> str:
        what = f"{'forward and backward' if self.training else 'forward'}, {self.device}, torch {torch.__version__}, {torch.get_num_threads()} threads"
        return "\n".join([*_text.table(self._table(), (0, 1, 2, 7)), "", *_text.table(self._totals(), (0,)), what])

    def html(self) -> str:
        """The same as a page of its own, in the style of the demo's."""
        from html import escape
        from ._bench import report as _page

        def body(table: list[tuple[str, ...]]) -> str:
            head, *rows = table
            cells = ["<tr>" + "".join(f'<th scope="col">{escape(h)}</th>' for h in head) + "</tr>"]
            cells += ["<tr>" + "".join(f"<td>{escape(c)}</td>" for c in row) + "</tr>" for row in rows]
            return f'<section><div class="scroll"><table>{"".join(cells)}</table></div></section>'
        best = max(self.ways, key=lambda w: self.ways[0].ms / w.ms)
        verdict = (f"{best.name} runs this network in {best.ms:.3f} ms instead of {self.ways[0].ms:.3f}, {self.ways[0].ms / best.ms:.2f} times as fast."
                   if best is not self.ways[0] else "As it is, this network is as fast as with weft.")
        head = f'<header><h1>What runs in this network</h1><p class="soft">{escape(verdict)} {escape(str(self).rsplit(chr(10), 1)[1])}.</p></header>'
        return _page.document("weft.report", _page._STYLE, f"{head}{body(self._totals())}{body(self._table())}")


# ---------------------------------------------------------------------------------------------- measuring

def _kernels(net: nn.Module, example: Any, names: dict[nn.Module, str]) -> dict[str, tuple[str, int, int]]:
    """By module: the kernel of its last forward pass by weft; bytes and flops of all of them."""
    from ._convert import conversion as _conversion
    copy = convert(_conversion.shadow(net), all=True, verbose=False)
    seen: dict[str, tuple[str, int, int]] = {}

    def note(name: str) -> Callable[..., None]:
        def after(module: nn.Module, args: Any, result: Any) -> None:
            weight = getattr(module, "weight", None)
            first = next((t for t in tree_flatten(result)[0] if isinstance(t, Tensor)), None)
            products = 0 if not isinstance(module, nn.modules.conv._ConvNd) or first is None else (
                2 * weight.numel() * math.prod((args[0] if module.transposed else first).shape[2 - weight.dim():]) * (first.shape[0] if first.dim() == weight.dim() else 1))
            touched = tree_flatten((args, result, list(module.parameters())))[0]
            _, moved, flops = seen.get(name, ("", 0, 0))
            seen[name] = backends.kernels(), moved + sum(t.numel() * t.element_size() for t in touched if isinstance(t, Tensor)), flops + products
        return after
    for module, twin in zip(net.modules(), copy.modules()):
        if type(twin).__module__.startswith("weft."):
            twin.register_forward_hook(note(names[module]))
    with torch.no_grad():
        _conversion.call(copy, example)
    return seen


def _ways(net: nn.Module, example: Any, device: torch.device) -> list[Way]:
    from ._convert import conversion as _conversion

    def runner(copy: nn.Module) -> Callable[[], Any]:
        def run() -> Any:
            with torch.set_grad_enabled(net.training):
                y = _conversion.call(copy, example)
                if net.training:
                    sum(t.float().square().mean() for t in tree_flatten(y)[0] if isinstance(t, Tensor) and t.requires_grad).backward()
                    copy.zero_grad(set_to_none=True)
            return y
        return run
    plain = runner(_conversion.shadow(net))
    sides: dict[str, Callable[[], Any]] = {"plain": plain, "enable()": plain}
    for name, fuse in (("convert(example=x)", False), ("convert(example=x, fuse=True)", True)):
        if not (fuse and net.training):
            sides[name] = runner(convert(_conversion.shadow(net), example=example, fuse=fuse, verbose=False))
    peaks, contexts = {}, {"enable()": lambda: _enable.enabled(device=device)}
    with _enable.suspended():
        for name, run in sides.items():   # the first runs decide what is run
            with contexts.get(name, nullcontext)():
                run()
                peaks[name] = _clock.peak(run, device)
        ms = _clock.medians({name: _clock.wall(run, device, contexts.get(name, nullcontext)) for name, run in sides.items()}, 31, SECONDS * len(sides), 3)
    return [Way(name, ms[name], peaks[name]) for name in sides]


def report(net: nn.Module, example: Any, *, html: Optional[Union[str, Path]] = None) -> NetReport:
    """What runs in a network: for each module that weft knows its shape, weft's kernel or "torch", the times of both sides and the share of the machine's
    floor; then the whole net plain, with weft.enable(), converted, and converted with fusing (in eval mode): time and peak memory. In training mode times
    are of forward and backward. The net stays as it is. example: as of weft.convert. html: a file for the same as a page.

        >>> print(weft.report(torch.nn.Sequential(torch.nn.Conv2d(8, 8, 3, groups=8)).eval(), torch.randn(1, 8, 16, 16)))   # doctest: +ELLIPSIS
        module ...
    """
    if not isinstance(net, nn.Module):
        raise TypeError(f"net: is {type(net).__name__}, allowed: a torch.nn.Module")
    if not isinstance(example, (Tensor, tuple, list, dict)):
        raise TypeError(f"example: is {type(example).__name__}, allowed: a tensor, a tuple of arguments, or a dict of keyword arguments")
    from ._convert import conversion as _conversion
    given = next((t for t in tree_flatten(example)[0] if isinstance(t, Tensor)), None)
    device = torch.device("cpu") if given is None else given.device
    with torch.random.fork_rng(_conversion.devices(net, example)):
        plan = _conversion._plan(net, "weft", None, False, False)
        _conversion._time(net, plan, example)
        kernels = _kernels(net, example, plan.names)
        ways = _ways(net, example, device)
    bytes_per_ms, flops_per_ms = _clock.roof(device)
    layers = []
    for unit in plan.units:
        name = plan.names[unit.members[0]]
        kernel, moved, flops = kernels.get(name, ("", 0, 0))
        times = (unit.ms["torch"], unit.ms["weft"]) if unit.calls else (None, None)
        layers.append(Layer(name, type(unit.members[0]).__name__, unit.shape, kernel, *times, max(moved / bytes_per_ms, flops / flops_per_ms)))
    made = NetReport(layers, ways, net.training, str(device))
    if html is not None:
        Path(html).write_text(made.html(), encoding="utf-8")
    return made
