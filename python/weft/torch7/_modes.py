"""The modes of one convolution module: kernels by name for its three passes, and workspace without a limit.

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

from .._core import library as _library
from .. import backends
from .._core.arguments import foreign, lowered
from .._core.checks import check_flags
from .._core.rules import Rule, call
from ..functional.conv import (CONV_BACKWARD, CONV_TRANSPOSE, WANT_BIAS, WANT_INPUT, WANT_WEIGHT, check_activation, check_tensors, geometry, rounded,
                               through_act)
from ..nn._named import kept_whole
from ._base import Torch7

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
