"""weft.pack(): convolutions that keep their weights in the order a kernel reads them."""
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .._core.entry import front


class Packs:
    """Packed weights of one module, by the plan that reads them. A copy of the module packs its own."""

    def __init__(self) -> None:
        self.kept: dict[int, Tensor] = {}
        self.of: Any = None   # pointer and version of the weight that was packed

    def drop(self) -> None:
        self.kept, self.of = {}, None

    def run(self, name: str, input: Tensor, weight: Tensor, *args: Any) -> Any:
        """NotImplemented: without packed weights, please."""
        if torch.compiler.is_dynamo_compiling() or type(weight) is not nn.Parameter:
            return NotImplemented
        now = weight.data_ptr(), weight._version
        if now != self.of:
            self.kept, self.of = {}, now
        return front(name)(input, weight, *args, self.kept)

    def __deepcopy__(self, memo: dict) -> Packs:
        return Packs()

    def __reduce__(self) -> tuple:
        return Packs, ()


def pack(net: nn.Module, keep: bool = True) -> nn.Module:
    """Let the convolutions of `net` that are weft's keep their weights packed, as kernels on the CPU read them, for calls without a gradient. It takes
    memory, up to the size of the weights and more, and pays where weights are large beside the images. Returns the net.

    What was packed is dropped by train(), load_state_dict(), a change of device or type, and every change that PyTorch counts. Writes to weight.data
    are not counted: call pack() again, or refresh() of the module. keep=False: no longer.

        >>> net = weft.pack(weft.nn.Conv2d(64, 64, 1).eval())
        >>> with torch.no_grad():
        ...     net(torch.randn(1, 64, 8, 8)).shape
        torch.Size([1, 64, 8, 8])
    """
    from ..nn.conv import _Packed
    if not isinstance(net, nn.Module):
        raise TypeError(f"net: is {type(net).__name__}, allowed: torch.nn.Module")
    for module in net.modules():
        if isinstance(module, _Packed):
            module.__dict__.pop("_packs", None)
            if keep:
                module.__dict__["_packs"] = Packs()
    return net
