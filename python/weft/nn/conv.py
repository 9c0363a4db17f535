"""Convolution modules, and weft.pack(): modules that keep their weights in the order a kernel reads them."""
from __future__ import annotations

from functools import partial
from typing import Any, Optional

import torch
from torch import Tensor, nn
from torch.fx import Proxy

from .._core.arguments import Padding, Size
from .._core.entry import front
from ._named import Activated, kept_whole, mirror, mirrors, own_parameters

__all__ = ["Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d", "Conv2dDepthwise"]


class _Packed(Activated):
    """What weft.pack() adds: weights in the order that a kernel reads them, made at the first call of a kind and dropped where they may have changed."""

    _function: Any

    def refresh(self) -> None:
        """Drop packed weights: after a write to weight.data, which nothing else shows."""
        self._drop_packs()

    def _drop_packs(self) -> None:   # not refresh(), which a class of modules may have in another meaning
        packs = self.__dict__.get("_packs")
        if packs is not None:
            packs.drop()

    def train(self, mode: bool = True) -> Any:
        self._drop_packs()
        return super().train(mode)   # type: ignore[misc]

    def _apply(self, *args: Any, **options: Any) -> Any:
        self._drop_packs()
        return super()._apply(*args, **options)   # type: ignore[misc]

    def _run(self, *args: Any) -> Tensor:
        """The function, by packed weights where there are some."""
        packs = self.__dict__.get("_packs")
        if packs is not None:
            y = packs.run(self._function.__name__, *args)
            if y is not NotImplemented:
                return y
        return self._function(*args)


class _Conv(_Packed):
    """What Conv1d, Conv2d and Conv3d add to their twins."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: Size, stride: Size = 1, padding: Padding = 0, dilation: Size = 1,
                 groups: int = 1, bias: bool = True, padding_mode: str = "zeros", device: Any = None, dtype: Any = None, *,
                 act: Optional[str] = None, clip: tuple[float, float] = (0.0, 6.0)) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode, device, dtype)
        self._set_act(act, clip)

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Optional[Tensor]) -> Tensor:
        padding = self.padding
        if self.padding_mode != "zeros":
            input = torch.nn.functional.pad(input, self._reversed_padding_repeated_twice, mode=self.padding_mode)
            padding = 0
        if self.act is None:
            return self._run(input, weight, bias, self.stride, padding, self.dilation, self.groups)
        return self._function(input, weight, bias, self.stride, padding, self.dilation, self.groups, act=self.act, clip=self.clip)

    def forward(self, input: Tensor) -> Tensor:
        if isinstance(input, Proxy) and input.tracer.root is not self:
            return kept_whole(self, input)
        return self._conv_forward(input, *own_parameters(self))


_ACT = "; `act` fuses an activation"
Conv1d, Conv2d, Conv3d = mirrors(partial(mirror, _Conv), "Conv", "conv",
                                 'weft.nn.Conv{rank}d(8, 8, 3, padding="same", groups=8, act="clip", clip=(0, 6))(torch.randn(2, 8, {x9})).shape', "2, 8, {x9}", _ACT)


class Conv2dDepthwise(Conv2d):
    """Depthwise convolution: each channel with a filter of its own. `padding`, `stride`, ... as in Conv2d.

        >>> weft.Conv2dDepthwise(8, 3, padding=1)(torch.randn(2, 8, 32, 32)).shape
        torch.Size([2, 8, 32, 32])
    """

    def __init__(self, channels: int, kernel_size: Size, stride: Size = 1, padding: Padding = 0, dilation: Size = 1, bias: bool = True,
                 device: Any = None, dtype: Any = None, *, act: Optional[str] = None, clip: tuple[float, float] = (0.0, 6.0)) -> None:
        super().__init__(channels, channels, kernel_size, stride, padding, dilation, channels, bias, device=device, dtype=dtype, act=act, clip=clip)


class _ConvTranspose(_Packed):
    """What the transposed convolutions add to their twins."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: Size, stride: Size = 1, padding: Size = 0, output_padding: Size = 0,
                 groups: int = 1, bias: bool = True, dilation: Size = 1, padding_mode: str = "zeros", device: Any = None, dtype: Any = None, *,
                 act: Optional[str] = None, clip: tuple[float, float] = (0.0, 6.0)) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, output_padding, groups, bias, dilation, padding_mode, device, dtype)
        self._set_act(act, clip)

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Optional[Tensor], output_size: Optional[list[int]] = None) -> Tensor:
        extra = self._output_padding(input, output_size, self.stride, self.padding, self.kernel_size, len(self.kernel_size), self.dilation)
        if self.act is None:
            return self._run(input, weight, bias, self.stride, self.padding, extra, self.groups, self.dilation)
        return self._function(input, weight, bias, self.stride, self.padding, extra, self.groups, self.dilation, act=self.act, clip=self.clip)

    def forward(self, input: Tensor, output_size: Optional[list[int]] = None) -> Tensor:
        if isinstance(input, Proxy) and input.tracer.root is not self:
            return kept_whole(self, input, *(() if output_size is None else (output_size,)))
        return self._conv_forward(input, *own_parameters(self), output_size)


ConvTranspose1d, ConvTranspose2d, ConvTranspose3d = mirrors(
    partial(mirror, _ConvTranspose), "ConvTranspose", "conv_transpose",
    "weft.nn.ConvTranspose{rank}d(4, 4, 3, stride=2, groups=4)(torch.randn(2, 4, {x8}), output_size=({x18},)).shape", "2, 4, {x18}", _ACT)


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
    if not isinstance(net, nn.Module):
        raise TypeError(f"net: is {type(net).__name__}, allowed: torch.nn.Module")
    for module in net.modules():
        if isinstance(module, _Packed):
            module.__dict__.pop("_packs", None)
            if keep:
                module.__dict__["_packs"] = Packs()
    return net
