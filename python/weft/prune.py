"""Weights set to 0 until a given share of them is: the smallest ones, or random ones; over a whole net, or in each layer.

    >>> import torch, weft
    >>> net = torch.nn.Sequential(weft.nn.SparseConv2d(3, 8, 3), torch.nn.ReLU(), weft.nn.SparseConv2d(8, 8, 3))
    >>> weft.prune.magnitude(net, 0.9)
    >>> round(weft.prune.sparsity(net), 2)
    0.9

Sparse modules see it at once. An optimiser that keeps a momentum of before goes on moving weights that were pruned: make it anew, or prune
with mask=True, which puts a mask of torch.nn.utils.prune before the weights. A mask that a layer has already is narrowed.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Optional

import torch
from torch import Tensor, nn
from torch.nn.utils import prune as _torch_prune

__all__ = ["magnitude", "random", "sparsity"]

Types = Sequence[type]
CONVOLUTIONS: tuple[type, ...] = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def _layers(net: Any, types: Types) -> list[Any]:
    """The modules of these types, each weight once."""
    if not isinstance(net, nn.Module):
        raise TypeError(f"net: is {type(net).__name__}, allowed: Module")
    if not isinstance(types, (tuple, list)) or not all(isinstance(t, type) and issubclass(t, nn.Module) for t in types):
        raise TypeError(f"types: is {types!r}, allowed: a sequence of classes of modules")
    found = {id(_parameter(m)): m for m in net.modules() if isinstance(m, tuple(types)) and isinstance(_parameter(m), Tensor)}
    if not found:
        raise ValueError(f"net: has no {' or '.join(t.__name__ for t in types)} with a weight, allowed: one or more")
    return list(found.values())


def _parameter(module: Any) -> Optional[Tensor]:
    """What holds the weights: under a mask, the parameter behind it."""
    original = module._parameters.get("weight_orig")
    return module._parameters.get("weight") if original is None else original


def _weights(module: Any) -> Tensor:
    """The weights as they count now."""
    weight, mask = _parameter(module).detach(), module._buffers.get("weight_mask")   # type: ignore[union-attr]
    return weight if mask is None else torch.where(mask != 0, weight, torch.zeros((), dtype=weight.dtype, device=weight.device))


def _drop(module: Any, at: Tensor, mask: bool) -> None:
    """Set the weights at these places, counted along the flat weight, to 0."""
    weight, held = _parameter(module), module._buffers.get("weight_mask")
    keep = torch.ones(weight.numel(), dtype=torch.bool, device=weight.device)   # type: ignore[union-attr]
    keep = keep.index_fill_(0, at.to(weight.device), False).view(weight.shape)   # type: ignore[union-attr]
    if mask or held is not None:
        _torch_prune.custom_from_mask(module, "weight", keep.to(weight.dtype))   # type: ignore[union-attr]
    else:
        weight.masked_fill_(~keep, 0)   # type: ignore[union-attr]
    if hasattr(module, "refresh"):
        module.refresh()


def _prune(net: nn.Module, share: float, per_layer: bool, types: Types, mask: bool, score: Callable[[Tensor], Tensor]) -> None:
    """Drop the weights of the least scores. Those that are 0 are of the least."""
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share <= 1:
        raise ValueError(f"sparsity: is {share!r}, allowed: 0 to 1")
    modules = _layers(net, types)
    with torch.no_grad():
        for some in [[m] for m in modules] if per_layer else [modules]:
            scores = [score(_weights(m)).reshape(-1) for m in some]
            ends = [0]
            for s in scores:
                ends.append(ends[-1] + s.numel())
            home = scores[0].device
            least = torch.cat([s.to(home) for s in scores]).topk(round(share * ends[-1]), largest=False, sorted=False).indices.sort().values
            for module, lo, hi in zip(some, ends, ends[1:]):
                first, last = torch.searchsorted(least, torch.tensor([lo, hi], device=home)).tolist()
                if last > first:
                    _drop(module, least[first:last] - lo, mask)


def magnitude(net: nn.Module, sparsity: float, *, per_layer: bool = False, types: Types = CONVOLUTIONS, mask: bool = False) -> None:
    """Set the smallest weights of a module, or of a net with all that is in it, to 0, so that the share `sparsity` of them is 0: of all layers
    of these types together, or per_layer of each.

        >>> conv = weft.nn.SparseConv2d(4, 8, 3)
        >>> weft.prune.magnitude(conv, 0.75)
        >>> conv.nnz
        72
    """
    wide = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
    _prune(net, sparsity, per_layer, types, mask, lambda w: w.abs().to(wide.get(w.dtype, w.dtype)))


def random(net: nn.Module, sparsity: float, *, per_layer: bool = False, types: Types = CONVOLUTIONS, mask: bool = False,
           generator: Optional[torch.Generator] = None) -> None:
    """Set random weights to 0, so that the share `sparsity` of them is 0; those that are 0 already count. The rest as in magnitude. The same
    generator (of the CPU) drops the same weights on every device.

        >>> conv = weft.nn.SparseConv2d(4, 8, 3)
        >>> weft.prune.random(conv, 0.6, generator=torch.Generator().manual_seed(0))
        >>> conv.nnz
        115
    """
    if generator is not None and (not isinstance(generator, torch.Generator) or generator.device.type != "cpu"):
        got = f"on {generator.device}" if isinstance(generator, torch.Generator) else type(generator).__name__
        raise TypeError(f"generator: is {got}, allowed: a torch.Generator on the CPU, or None")

    def score(weight: Tensor) -> Tensor:
        drawn = torch.rand(weight.shape, generator=generator).to(weight.device)
        return torch.where(weight == 0, -1.0, drawn)
    _prune(net, sparsity, per_layer, types, mask, score)


def sparsity(net: nn.Module, *, types: Types = CONVOLUTIONS) -> float:
    """The share of the weights of a module or net that are 0 (or under a mask), in layers of these types.

        >>> weft.prune.sparsity(torch.nn.Conv2d(3, 8, 3))
        0.0
    """
    modules = _layers(net, types)
    kept = sum(int(torch.count_nonzero(_weights(m))) for m in modules)
    return 1 - kept / max(sum(_parameter(m).numel() for m in modules), 1)   # type: ignore[union-attr]
