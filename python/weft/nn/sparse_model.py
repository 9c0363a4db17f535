"""Nets with sparse convolutions: their modes, their tables, to and from dense."""
from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Optional

import torch
from torch import nn

from .._core.arguments import whole
from . import conv as _conv
from .sparse_conv import Sparse_modes, SparseConv1d, SparseConv2d, SparseConv2D, SparseConv3d, _SparseConv, read_mode, table as _table

__all__ = ["SparseModel"]

_SPARSE = {home: made for rank, made in ((1, SparseConv1d), (2, SparseConv2d), (3, SparseConv3d))
           for home in (getattr(torch.nn, f"Conv{rank}d"), getattr(_conv, f"Conv{rank}d"))}


def _check_net(net: Any) -> None:
    if not isinstance(net, nn.Module):
        raise TypeError(f"net: is {type(net).__name__}, allowed: Module")


def layers(net: nn.Module) -> Iterator[tuple[str, _SparseConv]]:
    """The sparse convolutions of a net and their names."""
    _check_net(net)
    for name, module in net.named_modules():
        if isinstance(module, _SparseConv):
            yield name, module


def table(net: nn.Module) -> str:
    """What the Benchmark or Calibration mode has last measured, a line for each layer: milliseconds densely and sparsely, how many times
    faster the sparse way is, and which one a calibration keeps to. '' before anything was measured.

        >>> weft.sparse.table(torch.nn.Sequential(weft.nn.SparseConv2d(1, 6, 5)))
        ''
    """
    rows = [module._row._replace(name=name or module._row.name) for name, module in layers(net) if module._row is not None]
    return _table(rows) if rows else ""


def _print_table(net: nn.Module, args: Any, output: Any) -> None:
    if any(module._mode == Sparse_modes.Benchmark for _, module in layers(net)):
        print(table(net))


def set_mode(net: nn.Module, mode: Sparse_modes = Sparse_modes.Training) -> None:
    """Set the mode of every sparse convolution of a net. In Benchmark mode each call of the net prints the table of all of them at its end.

        >>> net = torch.nn.Sequential(weft.nn.SparseConv2d(1, 6, 5), torch.nn.ReLU())
        >>> weft.sparse.set_mode(net, weft.sparse.Sparse_modes.Test)
        >>> net(torch.randn(1, 1, 32, 32)).shape
        SUCCESS => Same Outputs
        torch.Size([1, 6, 28, 28])
    """
    mode, found = read_mode(mode), list(layers(net))
    for _, module in found:
        module.set_mode(mode)
        module._prints = module is net
    hooks = net._forward_hooks
    for key in [key for key, hook in hooks.items() if hook is _print_table]:
        del hooks[key]
    if mode == Sparse_modes.Benchmark and found and not isinstance(net, _SparseConv):
        net.register_forward_hook(_print_table)


def refresh(net: nn.Module) -> None:
    """Every sparse convolution of a net looks again which of its weights are 0.

        >>> net = torch.nn.Sequential(weft.nn.SparseConv2d(1, 6, 5))
        >>> net[0].weight.data[:3] = 0
        >>> weft.sparse.refresh(net); net[0].sparsity
        0.5
    """
    for _, module in layers(net):
        module.refresh()


def _swap(net: nn.Module, change: Callable[[nn.Module], Optional[nn.Module]]) -> nn.Module:
    """The net with modules replaced in place, each once however often it stands in the net; the root by its replacement."""
    made: dict[nn.Module, nn.Module] = {}
    for module in list(net.modules()):
        other = change(module)
        if other is not None:
            made[module] = other
    for parent in list(net.modules()):
        for name, child in parent._modules.items():
            if child in made:
                parent._modules[name] = made[child]
    return made.get(net, net)


_LEAST = 0.7   # of the weights are 0: from there on every row of docs/benchmarks, windows larger than one, is faster sparsely


def _why_dense(module: nn.Module) -> str:
    """Why a pruned layer is not expected to be faster sparsely; "" where it is, or where nothing was pruned yet."""
    weight = module.weight.detach()
    zeros = int((weight == 0).sum()) / max(weight.numel(), 1)   # in float32 a share of exactly 70% would be less
    if zeros == 0:
        return ""
    if weight.device.type != "cpu":
        return f"on {weight.device.type} it is not expected to be faster in training"
    if weight[0, 0].numel() == 1:
        return "a window of one is as fast densely"
    return "" if zeros >= _LEAST else f"fewer than {_LEAST:.0%} of its weights are 0"


def net_from_dense(net: nn.Module, exclude: Optional[Callable[[nn.Module], bool]] = None, everything: bool = False) -> nn.Module:
    """The net with Conv1d, Conv2d and Conv3d replaced; subclasses of them that others wrote stay."""
    if exclude is not None and not callable(exclude):
        raise TypeError(f"exclude: is {type(exclude).__name__}, allowed: a function of a module, or None")
    dense: Counter[str] = Counter()

    def change(module: nn.Module) -> Optional[nn.Module]:
        if type(module) not in _SPARSE or "forward" in module.__dict__ or (exclude is not None and exclude(module)):
            return None
        why = "" if everything or module is net else _why_dense(module)
        dense.update([why] if why else [])
        return None if why else _SPARSE[type(module)].from_dense(module)
    made = _swap(net, change)
    if dense:
        print(f"weft.sparse.from_dense: {sum(dense.values())} layers stay dense ({'; '.join(f'{n}: {why}' for why, n in dense.items())})", file=sys.stderr)
    return made


def to_dense(net: nn.Module) -> nn.Module:
    """The net with every sparse convolution replaced by the torch.nn module of the same parameters: in place, but for a net that is one.

        >>> net = weft.sparse.from_dense(torch.nn.Sequential(torch.nn.Conv2d(1, 6, 5)))
        >>> weft.sparse.to_dense(net)[0]
        Conv2d(1, 6, kernel_size=(5, 5), stride=(1, 1))
    """
    _check_net(net)
    return _swap(net, lambda module: module.to_dense() if isinstance(module, _SparseConv) else None)


class SparseModel(nn.Module):
    """A net that makes its convolutions by `self.conv`: SparseConv2D, or torch.nn.Conv2d where the flag is off. SparseConv2D has no bias
    unless asked for: say bias=... where the two are compared.

        >>> class Net(weft.nn.SparseModel):
        ...     def __init__(self, flag=True):
        ...         super().__init__(flag)
        ...         self.features = self.conv(1, 6, 5, bias=True)
        ...     def forward(self, x):
        ...         return self.features(x).relu()
        >>> net = Net()
        >>> weft.prune.random(net, 0.6)
        >>> net._set_sparse_layers_mode(weft.nn.Sparse_modes.Test)
        >>> net(torch.randn(1, 1, 32, 32)).shape
        SUCCESS => Same Outputs
        torch.Size([1, 6, 28, 28])
    """

    def __init__(self, sparse_conv_flag: bool = True) -> None:
        super().__init__()
        self.sparse_conv_flag = bool(sparse_conv_flag)
        self.conv: Any = SparseConv2D if sparse_conv_flag else nn.Conv2d

    def _initialize_sparse_layers(self, input_shape: Sequence[int]) -> None:
        """Look at the weights of every layer, and run the net once on zeros of that shape, as in eval mode: from then on everything that is
        made at the first call is there. Modes stay as they are; nothing is tested, or measured but for weft.backends.benchmark.

            >>> weft.nn.SparseModel()._initialize_sparse_layers((1, 1, 32, 32))
        """
        sizes = tuple(map(whole, input_shape)) if isinstance(input_shape, (tuple, list)) else (None,)
        if not sizes or None in sizes or min(sizes) < 0:   # type: ignore[type-var]
            raise TypeError(f"input_shape: is {input_shape!r}, allowed: a sequence of sizes, as 1, 3, 227, 227")
        found = [module for _, module in layers(self)]
        if not found:
            return
        modes = [(module, module._mode) for module in found]
        training = [module for module in self.modules() if module.training]
        like = found[0]._source()
        for module in found:
            module.refresh()
            module._mode = Sparse_modes.Inference_Sparse
        try:
            for module in self.modules():
                module.training = False
            with torch.no_grad():
                self(torch.zeros(sizes, dtype=like.dtype, device=like.device))   # type: ignore[arg-type]
        finally:
            for module in training:
                module.training = True
            for module, mode in modes:
                module._mode = mode

    def _set_sparse_layers_mode(self, mode: Sparse_modes = Sparse_modes.Training) -> None:
        """Set the mode of every sparse layer; Benchmark prints the table of all of them after each call.

            >>> weft.nn.SparseModel()._set_sparse_layers_mode(weft.nn.Sparse_modes.Inference_Sparse)
        """
        set_mode(self, mode)
