"""Convolutions, and the modes of one module: kernels by name for its three passes, and workspace without a limit.

Settings of weft.backends hold for the process. A module with a mode sets them around its own operators and puts the old ones back: around
the forward operator, and in the backward function of an autograd node of its own around each gradient, whichever thread runs it and
whatever other modules do in between. Without a mode nothing of this runs. Derivatives of the gradients keep the planner's choice. In
torch.compile a module with a mode is a break of the graph, and torch.fx keeps it whole; torch.export refuses it: reset the mode first.
"""
from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Optional

import torch
from torch import Tensor
from torch.fx import Proxy
from torch.overrides import has_torch_function_variadic

from .. import backends, nn
from .._core import library as _library
from .._core.arguments import check_flags, check_ints, foreign, lowered
from .._core.rules import Rule, call
from ..functional.conv import (CONV, CONV_BACKWARD, CONV_TRANSPOSE, WANT_BIAS, WANT_INPUT, WANT_WEIGHT, check_activation, check_tensors,
                               geometry, rounded, through_act)
from ..nn._named import kept_whole
from ._base import Torch7, read_window, taking, window_text

__all__ = ["SpatialConvolution", "SpatialDilatedConvolution", "SpatialFullConvolution", "TemporalConvolution", "VolumetricConvolution",
           "VolumetricDilatedConvolution", "VolumetricFullConvolution"]

_BITS = (WANT_INPUT, WANT_WEIGHT, WANT_BIAS)


@dataclass(frozen=True)
class Mode:
    """fastest: no workspace limit. The others: the kernel of a pass, or None for the planner's choice."""

    fastest: bool = False
    fmode: Optional[str] = None
    bdmode: Optional[str] = None
    bwmode: Optional[str] = None

    def around(self, kernel: Optional[str]) -> AbstractContextManager[None]:
        """The settings for one pass; what the mode does not say stays as the process has it."""
        settings: dict[str, Any] = {"fastest": True} if self.fastest else {}
        return backends.flags(**settings, pin=kernel) if kernel else backends.flags(**settings)


_NONE = Mode()


class _Under(torch.autograd.Function):
    """A convolution, or a transposed one, under a mode. The two large gradients are computed apart where one of them has a kernel named."""

    generate_vmap_rule = True

    @staticmethod
    def forward(mode: Mode, rule: Rule, settings: tuple, input: Tensor, weight: Tensor, bias: Optional[Tensor]) -> Tensor:
        with mode.around(mode.fmode):
            return call(rule, input, weight, bias, *settings)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        ctx.mode, rule, settings, input, weight, bias = inputs
        ctx.geometry, (ctx.act, lo, hi) = settings[:4], settings[4:7]
        ctx.lo, ctx.hi = (rounded(v, output.dtype) for v in (lo, hi)) if ctx.act == "clip" else (lo, hi)
        ctx.transposed = rule is CONV_TRANSPOSE
        ctx.bias_dtype = input.dtype if bias is None else bias.dtype
        ctx.save_for_backward(input, weight, output if ctx.act else None)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        input, weight, output = ctx.saved_tensors
        if ctx.act:
            grad = through_act(grad, output, ctx.act, ctx.lo, ctx.hi)
        mode, wanted = ctx.mode, sum(bit for bit, needed in zip(_BITS, ctx.needs_input_grad[3:]) if needed)
        named = mode.bdmode or mode.bwmode
        grads: list[Optional[Tensor]] = [None, None, None]
        for kernel, part in ((mode.bdmode, WANT_INPUT), (mode.bwmode, WANT_WEIGHT | WANT_BIAS)) if named else ((None, wanted),):
            want = part & wanted
            if want:
                with mode.around(kernel):
                    got = call(CONV_BACKWARD, grad, input, weight, *ctx.geometry, ctx.transposed, want, ctx.bias_dtype)
                grads = [g if want & bit else before for g, bit, before in zip(got, _BITS, grads)]
        return None, None, None, *grads


class Moded(Torch7):
    """fastest, setMode, resetMode and noBias for a module of weft.nn's convolutions."""

    _mode: Mode = _NONE

    def fastest(self, mode: bool = True) -> Any:
        """No limit on the workspace of this module's kernels, forward and backward; False: the limit of weft.backends. Returns the module.

            >>> weft.torch7.SpatialConvolution(3, 8, 3, 3).fastest()
            weft.SpatialConvolution(3 -> 8, 3x3)
        """
        check_flags(mode=mode)
        self._mode = replace(self._mode, fastest=mode)
        return self

    def setMode(self, fmode: Optional[str] = None, bdmode: Optional[str] = None, bwmode: Optional[str] = None) -> Any:
        """Name the kernels of this module: forward, gradient of the input, gradient of the weights. None leaves what was set before. As
        with weft.backends.pin, a kernel runs where it applies. weft.backends.kernel_names() has the names; "torch" is PyTorch's own code.
        Returns the module.

            >>> net = weft.torch7.SpatialConvolution(3, 8, 3, 3).setMode("conv_ref", "torch", "torch")
            >>> net(torch.randn(1, 3, 8, 8)).shape, weft.backends.kernels()
            (torch.Size([1, 8, 6, 6]), 'conv_ref')
        """
        given = {name: value for name, value in (("fmode", fmode), ("bdmode", bdmode), ("bwmode", bwmode)) if value is not None}
        for name, value in given.items():
            if not isinstance(value, str):
                raise TypeError(f"{name}: is {value!r}, allowed: the name of a kernel, or None")
            if value != "torch" and value not in _library.kernel_names():
                raise ValueError(f"{name}: is {value!r}, allowed: 'torch', or a kernel of weft (weft.backends.kernel_names() lists them)")
        self._mode = replace(self._mode, **given)
        return self

    def resetMode(self) -> Any:
        """No kernels by name: the planner's choice for every pass. Returns the module.

            >>> weft.torch7.SpatialConvolution(3, 8, 3, 3).setMode("conv_ref").resetMode()
            weft.SpatialConvolution(3 -> 8, 3x3)
        """
        self._mode = Mode(self._mode.fastest)
        return self

    def noBias(self) -> Any:
        """Take the bias away. Returns the module.

            >>> weft.torch7.SpatialConvolution(3, 8, 3, 3).noBias()
            weft.SpatialConvolution(3 -> 8, 3x3) without bias
        """
        self.bias = None
        return self

    def _under_mode(self: Any, name: str, rule: Rule, input: Tensor, extra: tuple) -> Optional[Tensor]:
        """The result, or None where the usual road is to be taken: without a mode, and for what weft leaves to others."""
        weight, bias = self.weight, self.bias
        if self._mode == _NONE:
            return None
        if isinstance(input, Proxy):
            return kept_whole(self, input)
        if has_torch_function_variadic(input, weight, bias):
            return None
        rank = weight.dim() - 2
        check_tensors(name, rank, input, weight, bias)
        if foreign(input, weight):
            return None
        settings = (*geometry(rank, self.stride, self.padding, self.dilation, weight), self.groups, *check_activation(self.act, self.clip), *extra)
        return _Under.apply(self._mode, rule, settings, *lowered(input, weight, bias))


class _Printed(Moded):
    """Reads its arguments and prints as Torch7 did."""

    def _build(self, nInputPlane: int, nOutputPlane: int, groups: int, device: Any, dtype: Any, **values: int) -> None:
        """The last of the window is the dilation, or what is added to a transposed result."""
        check_ints(1, nInputPlane=nInputPlane, nOutputPlane=nOutputPlane, groups=groups)
        if nInputPlane % groups or nOutputPlane % groups:
            raise ValueError(f"groups: is {groups}, allowed: a divisor of nInputPlane, {nInputPlane}, and of nOutputPlane, {nOutputPlane}")
        check_ints(1, **{name: value for name, value in values.items() if name[0] in "kd"})
        window = read_window(**values)
        super().__init__(nInputPlane, nOutputPlane, *window, *([1] if len(window) == 3 else []), groups, device=device, dtype=dtype)   # type: ignore[call-arg]

    def extra_repr(self: Any) -> str:
        last = (self.output_padding, 0) if self.transposed else (self.dilation, 1)
        text = f"{self.in_channels} -> {self.out_channels}, {window_text(self.kernel_size, (self.stride, 1), (self.padding, 0), last)}"
        return text + (f", groups={self.groups}" if self.groups != 1 else "")

    def __repr__(self: Any) -> str:
        return super().__repr__() + ("" if self.bias is not None else " without bias")


class _Convolution(_Printed):
    def _conv_forward(self: Any, input: Tensor, weight: Tensor, bias: Optional[Tensor]) -> Tensor:
        y = self._under_mode(f"conv{len(self.stride)}d", CONV, input, ())
        return super()._conv_forward(input, weight, bias) if y is None else y


class _FullConvolution(_Printed):
    def forward(self: Any, input: Tensor, output_size: Optional[list[int]] = None) -> Tensor:
        extra = self._output_padding(input, output_size, self.stride, self.padding, self.kernel_size, len(self.kernel_size), self.dilation)
        y = self._under_mode(f"conv_transpose{len(self.kernel_size)}d", CONV_TRANSPOSE, input, (tuple(extra),))
        return super().forward(input, output_size) if y is None else y


_PLANES, _LAST = "nInputPlane nOutputPlane ", " groups=1 * device=None dtype=None"
_PLANE = _PLANES + "kW kH dW=1 dH=1 padW=0 padH=0"
_VOLUME = _PLANES + "kT kW kH dT=1 dW=1 dH=1 padT=0 padW=0 padH=0"
SpatialConvolution = taking(_PLANE + _LAST, "SpatialConvolution", (_Convolution, nn.Conv2d), "2D convolution of (N, C, H, W) or (C, H, W).",
                            "weft.torch7.SpatialConvolution(3, 96, 11, 11, 3, 3)(torch.randn(2, 3, 32, 32)).shape", (2, 96, 8, 8))
SpatialDilatedConvolution = taking(_PLANE + " dilationW=1 dilationH=1" + _LAST, "SpatialDilatedConvolution", (_Convolution, nn.Conv2d),
                                   "2D convolution with gaps between the taps.",
                                   "weft.torch7.SpatialDilatedConvolution(3, 8, 3, 3, 1, 1, 2, 2, 2, 2)(torch.randn(2, 3, 32, 32)).shape",
                                   (2, 8, 32, 32))
SpatialFullConvolution = taking(_PLANE + " adjW=0 adjH=0" + _LAST, "SpatialFullConvolution", (_FullConvolution, nn.ConvTranspose2d),
                                "2D transposed convolution; adjW and adjH add to the size of the result.",
                                "weft.torch7.SpatialFullConvolution(4, 8, 3, 3, 2, 2, 1, 1, 1, 1)(torch.randn(2, 4, 8, 8)).shape", (2, 8, 16, 16))
VolumetricConvolution = taking(_VOLUME + _LAST, "VolumetricConvolution", (_Convolution, nn.Conv3d), "3D convolution of (N, C, T, H, W) or (C, T, H, W).",
                               "weft.torch7.VolumetricConvolution(3, 8, 1, 5, 3)(torch.randn(2, 3, 4, 8, 8)).shape", (2, 8, 4, 6, 4))
VolumetricDilatedConvolution = taking(_VOLUME + " dilationT=1 dilationW=1 dilationH=1" + _LAST, "VolumetricDilatedConvolution", (_Convolution, nn.Conv3d),
                                      "3D convolution with gaps between the taps.",
                                      "weft.torch7.VolumetricDilatedConvolution(3, 8, 3, 3, 3, 1, 1, 1, 0, 2, 2, 1, 2, 2)(torch.randn(2, 3, 4, 8, 8)).shape",
                                      (2, 8, 2, 8, 8))
VolumetricFullConvolution = taking(_VOLUME + " adjT=0 adjW=0 adjH=0" + _LAST, "VolumetricFullConvolution", (_FullConvolution, nn.ConvTranspose3d),
                                   "3D transposed convolution; adjT, adjW and adjH add to the size of the result.",
                                   "weft.torch7.VolumetricFullConvolution(4, 2, 2, 2, 2, 2, 2, 2)(torch.randn(1, 4, 5, 5, 5)).shape", (1, 2, 10, 10, 10))


class TemporalConvolution(_Convolution, nn.Conv1d):
    """1D convolution of frames: (B, T, F) or (T, F), taken as they lie. The weight is (outputFrameSize, inputFrameSize, kH).

        >>> weft.torch7.TemporalConvolution(16, 32, 3, 1, 1)(torch.randn(2, 50, 16)).shape
        torch.Size([2, 50, 32])
    """

    def __init__(self, inputFrameSize: int, outputFrameSize: int, kH: int, dH: int = 1, padH: int = 0, *, device: Any = None,
                 dtype: Any = None) -> None:
        check_ints(1, inputFrameSize=inputFrameSize, outputFrameSize=outputFrameSize, kH=kH, dH=dH)
        check_ints(0, padH=padH)
        super().__init__(inputFrameSize, outputFrameSize, kH, dH, padH, device=device, dtype=dtype)

    def forward(self, input: Tensor) -> Tensor:
        if isinstance(input, Proxy):
            return kept_whole(self, input)
        if not isinstance(input, Tensor):
            raise TypeError(f"TemporalConvolution: input is {type(input).__name__}, allowed: Tensor")
        if input.dim() not in (2, 3) or input.shape[-1] != self.in_channels:
            raise RuntimeError(f"TemporalConvolution: input is {list(input.shape)}, allowed: (T, {self.in_channels}) or (B, T, {self.in_channels})")
        return super().forward(input.transpose(-1, -2)).transpose(-1, -2).contiguous()
