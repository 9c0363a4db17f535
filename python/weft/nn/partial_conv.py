"""Partial convolution modules, under the names of the two systems that people know.

PConv1d/2d/3d are torch_pconv's: a mask without channels, (result, new mask) returned, the state_dict of torch_pconv.
PartialConv1d/2d/3d and PartialConvTranspose1d/2d/3d are NVIDIA's: convolutions of torch.nn that also take a mask.
weft.functional.partial_conv2d has the formula; neither keeps a masked copy of its input or a mask of an earlier call.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any, Optional, Union

import torch
from torch import Tensor
from torch.fx import Proxy

from .. import functional as F
from .._core.arguments import TYPES, Padding, Size, at_rank, autocast_dtype
from .._core.rules import call
from ..functional.conv import geometry
from ..functional.partial_conv import MASKS, PARTIAL_CONV
from . import conv as _conv
from ._named import Named, made

__all__ = ["PConv1d", "PConv2d", "PConv3d", "PartialConv1d", "PartialConv2d", "PartialConv3d", "PartialConvTranspose1d", "PartialConvTranspose2d",
           "PartialConvTranspose3d"]

Pair = tuple[Tensor, Tensor]


def _names(types: tuple[torch.dtype, ...]) -> str:
    words = [str(t)[6:] for t in types]
    return f"{', '.join(words[:-1])} or {words[-1]}"


# ---------------------------------------------------------------------------------------------- torch_pconv

class _PConv(Named, torch.nn.Module):
    """What PConv1d, PConv2d and PConv3d are. Parameters have the names, the shapes and the order that torch_pconv gives them: bias
    (1, out_channels, 1, ...), regular_conv.weight, and mask_conv.weight, which is ones, has no gradient and is never read."""

    _rank: int
    _function: Callable[..., Pair]
    _conv: type

    def __init__(self, in_channels: int, out_channels: int, kernel_size: Size = 1, stride: Size = 1, padding: Padding = 0, dilation: Size = 1,
                 bias: bool = False, legacy_behaviour: bool = False, *, groups: int = 1, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        made = {"stride": stride, "padding": padding, "dilation": dilation, "bias": False, "device": device, "dtype": dtype}
        self.regular_conv = self._conv(in_channels, out_channels, kernel_size, groups=groups, **made)
        self.mask_conv = self._conv(1, 1, kernel_size, **made).requires_grad_(False)
        self.bias = torch.nn.Parameter(torch.empty(1, out_channels, *[1] * self._rank, device=device, dtype=dtype)) if bias else None
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.kernel_size, self.stride = self.regular_conv.kernel_size, self.regular_conv.stride
        self.padding, self.dilation = self.regular_conv.padding, self.regular_conv.dilation
        self.use_bias, self.legacy_behaviour = bool(bias), bool(legacy_behaviour)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weight and the bias as torch.nn.Conv2d does.

            >>> weft.nn.PConv2d(3, 8, 3).reset_parameters()
        """
        self.regular_conv.reset_parameters()
        torch.nn.init.ones_(self.mask_conv.weight)
        if self.bias is not None:
            bound = self.regular_conv.weight[0].numel() ** -0.5
            torch.nn.init.uniform_(self.bias, -bound, bound)

    # ------------------------------------------------------------------ what it computes

    def _check(self, x: Tensor, mask: Tensor) -> None:
        name, full = type(self).__name__, self._rank + 2
        for argument, value, types, rank in (("x", x, TYPES, full), ("mask", mask, MASKS, full - 1)):
            if not isinstance(value, Tensor):
                raise TypeError(f"{name}: {argument} is {type(value).__name__}, allowed: Tensor")
            if value.dtype not in types:
                raise TypeError(f"{name}: {argument} is {str(value.dtype)[6:]}, allowed: {_names(types)}")
            if value.dim() != rank:
                raise TypeError(f"{name}: {argument} has {value.dim()} dimensions {list(value.shape)}, allowed: {rank}")
        if x.dtype != self.regular_conv.weight.dtype and autocast_dtype(x.device) is None:
            raise TypeError(f"{name}: x is {str(x.dtype)[6:]}, allowed: the type of the weight, {str(self.regular_conv.weight.dtype)[6:]}")
        if mask.shape[0] != x.shape[0] or mask.shape[-self._rank:] != x.shape[2:]:
            raise TypeError(f"{name}: mask is {list(mask.shape)}, allowed with x of {list(x.shape)}: {[x.shape[0], *x.shape[2:]]}")

    def forward(self, x: Tensor, mask: Tensor) -> Pair:
        """x: (N, C, ...); mask: (N, ...), of the type of x, another floating-point type, bool or uint8. Returns (result, new mask (N, ...)).

            >>> y, mask = weft.nn.PConv2d(3, 8, 3, padding=1)(torch.randn(2, 3, 9, 9), torch.rand(2, 9, 9) > 0.5)
            >>> y.shape, mask.shape, mask.dtype
            (torch.Size([2, 8, 9, 9]), torch.Size([2, 9, 9]), torch.bool)
        """
        if not isinstance(x, Proxy):   # torch.fx traces the function, which checks too
            self._check(x, mask)
        weight, bias = self.regular_conv.weight, None if self.bias is None else self.bias.flatten()
        return type(self)._function(x, weight, bias, mask, self.stride, self.padding, self.dilation, self.groups, legacy=self.legacy_behaviour)

    def compute_masks(self, mask: Tensor) -> Pair:
        """The factor of each window and the new mask, both (N, 1, ...), for a mask (N, 1, ...): W / (S + 1e-8) * u and u = clamp(S, 0, 1), S
        the sum of the mask over the window in all channels and W the size of the window in all channels.

            >>> ratio, mask = weft.nn.PConv2d(3, 8, 2).compute_masks(torch.tensor([[[[1., 0.], [0., 0.]]]]))
            >>> ratio.item(), mask.item()
            (4.0, 1.0)
        """
        name, full = type(self).__name__, self._rank + 2
        if not isinstance(mask, Tensor):
            raise TypeError(f"{name}.compute_masks: mask is {type(mask).__name__}, allowed: Tensor")
        if mask.dim() != full or mask.shape[1] != 1:
            raise TypeError(f"{name}.compute_masks: mask is {list(mask.shape)}, allowed: {full} dimensions, the second of one channel")
        if mask.dtype not in MASKS:
            raise TypeError(f"{name}.compute_masks: mask is {str(mask.dtype)[6:]}, allowed: {_names(MASKS)}")
        channels, weight = self.in_channels // self.groups, self.mask_conv.weight
        wide = torch.float64 if torch.float64 in (mask.dtype, weight.dtype) else torch.float32
        data, ones = mask.new_zeros((), dtype=wide).expand(mask.shape), weight.to(mask.device, wide)
        with torch.no_grad():
            _, _, sums = call(PARTIAL_CONV, data, ones, None, mask, *geometry(self._rank, self.stride, self.padding, self.dilation, weight), 1, "",
                                     0.0, 0.0, False, (0,) * self._rank, False)
            sums = sums * channels
            u = sums.clamp(0, 1)
            ratio = channels * weight.numel() / (sums + 1e-8) * u
            kind = mask.dtype if mask.is_floating_point() else weight.dtype
            return ratio.to(kind), u.to(mask.dtype)

    # ------------------------------------------------------------------ weight and bias

    def get_weight(self) -> Tensor:
        """The weight, a parameter.

            >>> weft.nn.PConv2d(3, 8, 5).get_weight().shape
            torch.Size([8, 3, 5, 5])
        """
        return self.regular_conv.weight

    def get_bias(self) -> Optional[Tensor]:
        """The bias, a parameter of the shape (1, out_channels, 1, ...), or None.

            >>> weft.nn.PConv2d(3, 8, 5, bias=True).get_bias().shape
            torch.Size([1, 8, 1, 1])
        """
        return self.bias

    def _fill(self, method: str, into: Tensor, value: Tensor, fits: bool) -> _PConv:
        if not fits:
            raise RuntimeError(f"{type(self).__name__}.{method}: got {list(value.shape)}, allowed: {list(into.shape)}")
        with torch.no_grad():
            into.copy_(value.view(into.shape))
        return self

    def set_weight(self, w: Tensor) -> _PConv:
        """Copy w into the weight; returns the module.

            >>> weft.nn.PConv2d(3, 8, 1).set_weight(torch.ones(8, 3, 1, 1)).get_weight().sum().item()
            24.0
        """
        if not isinstance(w, Tensor):
            raise TypeError(f"{type(self).__name__}.set_weight: w is {type(w).__name__}, allowed: Tensor")
        return self._fill("set_weight", self.regular_conv.weight, w, w.shape == self.regular_conv.weight.shape)

    def set_bias(self, b: Tensor) -> _PConv:
        """Copy b, of out_channels elements in any shape, into the bias; returns the module.

            >>> weft.nn.PConv2d(3, 8, 1, bias=True).set_bias(torch.ones(8)).get_bias().sum().item()
            8.0
        """
        if not isinstance(b, Tensor):
            raise TypeError(f"{type(self).__name__}.set_bias: b is {type(b).__name__}, allowed: Tensor")
        if self.bias is None:
            raise RuntimeError(f"{type(self).__name__}.set_bias: the module has no bias, allowed: one made with bias=True")
        return self._fill("set_bias", self.bias, b, b.numel() == self.out_channels)

    # ------------------------------------------------------------------ state and printing

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Takes the state of a plain convolution, or of NVIDIA's, too: weight and bias (out_channels)."""
        errors = args[-1]
        plain, ones, bias = prefix + "weight", prefix + "mask_conv.weight", state_dict.get(prefix + "bias")
        if plain in state_dict and prefix + "regular_conv.weight" not in state_dict:
            state_dict[prefix + "regular_conv.weight"] = state_dict.pop(plain)
            state_dict.setdefault(ones, torch.ones_like(self.mask_conv.weight))
        state_dict.pop(prefix + "weight_maskUpdater", None)
        if isinstance(bias, Tensor) and self.bias is not None and bias.shape == (self.out_channels,):
            state_dict[prefix + "bias"] = bias.view(self.bias.shape)
        given = state_dict.get(ones)
        if isinstance(given, Tensor) and not given.is_meta and not bool((given == 1).all()):
            errors.append(f"{ones}: has values other than 1, allowed: ones, with which every pixel of a mask counts alike")
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        return f"bias={self.use_bias}, legacy_behaviour={self.legacy_behaviour}"


class PConv2d(_PConv):
    """torch_pconv's PConv2d: its arguments, methods and parameter names; groups besides. A wrong type or shape of x or mask is a TypeError.

    legacy_behaviour: with a bias, add it ahead of the factor and take it off again, to round as NVIDIA's module does.
    A state_dict of torch_pconv loads, and that of a torch.nn.Conv2d or of NVIDIA's PartialConv2d.

        >>> images, masks = torch.rand(4, 3, 64, 64), (torch.rand(4, 64, 64) > 0.5).float()
        >>> pconv = weft.nn.PConv2d(in_channels=3, out_channels=8, kernel_size=7, stride=1, padding=2, dilation=2, bias=True)
        >>> output, shrunk_masks = pconv(images, masks)
        >>> output.shape, shrunk_masks.shape
        (torch.Size([4, 8, 56, 56]), torch.Size([4, 56, 56]))
    """

    _rank, _function, _conv = 2, staticmethod(F.partial_conv2d), _conv.Conv2d


PConv1d, PConv3d = (made(f"PConv{rank}d", (_PConv,), f"PConv2d on (N, C, {axes}) with a mask (N, {axes}).",
                         at_rank("weft.nn.PConv{rank}d(4, 8, 3, padding=1, bias=True)(torch.randn(2, 4, {x9}), torch.rand(2, {x9}) > 0.5)[0].shape", rank),
                         (2, 8, *[9] * rank), _rank=rank, _function=staticmethod(function), _conv=conv)
                    for rank, axes, function, conv in ((1, "L", F.partial_conv1d, _conv.Conv1d), (3, "D, H, W", F.partial_conv3d, _conv.Conv3d)))


# ---------------------------------------------------------------------------------------------- NVIDIA

class _Partial:
    """What the modules of NVIDIA's kind add to convolutions: a mask, given and returned."""

    _rank: int
    multi_channel: bool
    return_mask: bool

    def _set_mask(self, multi_channel: bool, return_mask: bool) -> None:
        for name, value in (("multi_channel", multi_channel), ("return_mask", return_mask)):
            if not isinstance(value, bool):
                raise TypeError(f"{type(self).__name__}: {name} is {value!r}, allowed: True or False")
        self.multi_channel, self.return_mask = multi_channel, return_mask

    def _check_mask(self: Any, input: Tensor, mask: Optional[Tensor]) -> None:
        """What the function cannot know: how many channels this module's masks have."""
        if mask is None or isinstance(mask, Proxy) or isinstance(input, Proxy):
            return
        name, channels = type(self).__name__, self.in_channels if self.multi_channel else 1
        if not isinstance(mask, Tensor):
            raise TypeError(f"{name}: mask_in is {type(mask).__name__}, allowed: Tensor or None")
        if mask.dim() != input.dim() or mask.shape[-self._rank - 1] != channels:
            raise RuntimeError(f"{name}: mask_in is {list(mask.shape)}, allowed with input of {list(input.shape)} and multi_channel={self.multi_channel}: "
                               f"{input.dim()} dimensions and {channels} channel{'s' if channels > 1 else ''}")

    def _results(self: Any, input: Tensor, mask: Optional[Tensor], pair: Pair) -> Union[Tensor, Pair]:
        """Without a mask all channels have one new mask: a view of as many as a mask would have given."""
        y, new_mask = pair
        if not self.return_mask:
            return y
        return y, new_mask.expand(y.shape) if self.multi_channel and mask is None else new_mask

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Some versions of NVIDIA's module keep the ones that count a mask."""
        state_dict.pop(prefix + "weight_maskUpdater", None)
        super()._load_from_state_dict(state_dict, prefix, *args)   # type: ignore[misc]

    def extra_repr(self) -> str:
        text = super().extra_repr()   # type: ignore[misc]
        return text + "".join(f", {name}=True" for name in ("multi_channel", "return_mask") if getattr(self, name))


class _PartialConv(_Partial):
    """What PartialConv1d, PartialConv2d and PartialConv3d are."""

    _partial: Callable[..., Pair]

    def __init__(self, in_channels: int, out_channels: int, kernel_size: Size, stride: Size = 1, padding: Padding = 0, dilation: Size = 1,
                 groups: int = 1, bias: bool = True, padding_mode: str = "zeros", device: Any = None, dtype: Any = None, *, multi_channel: bool = False,
                 return_mask: bool = False, act: Optional[str] = None, clip: tuple[float, float] = (0.0, 6.0)) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode, device,   # type: ignore[call-arg]
                         dtype, act=act, clip=clip)
        self._set_mask(multi_channel, return_mask)

    def _padded(self: Any, input: Tensor, mask: Optional[Tensor]) -> tuple[Tensor, Optional[Tensor]]:
        """Other paddings than zeros repeat pixels, holes and all."""
        pads, mode = self._reversed_padding_repeated_twice, self.padding_mode
        if mask is not None:   # reflection knows floating-point types only
            mask = torch.nn.functional.pad(mask if mask.is_floating_point() else (mask != 0).to(input.dtype), pads, mode=mode).to(mask.dtype)
        return torch.nn.functional.pad(input, pads, mode=mode), mask

    def forward(self: Any, input: Tensor, mask_in: Optional[Tensor] = None) -> Union[Tensor, Pair]:
        """The result, with the new mask if return_mask. mask_in: (N or 1, C, ...) if multi_channel, else (N or 1, 1, ...); None: ones.

            >>> y, mask = weft.nn.PartialConv2d(3, 8, 3, padding=1, return_mask=True)(torch.randn(2, 3, 9, 9), torch.rand(2, 1, 9, 9) > 0.5)
            >>> y.shape, mask.shape
            (torch.Size([2, 8, 9, 9]), torch.Size([2, 1, 9, 9]))
        """
        self._check_mask(input, mask_in)
        x, mask, padding = input, mask_in, self.padding
        if self.padding_mode != "zeros":
            (x, mask), padding = self._padded(input, mask_in), 0
        pair = type(self)._partial(x, self.weight, self.bias, mask, self.stride, padding, self.dilation, self.groups, act=self.act, clip=self.clip)
        return self._results(input, mask_in, pair)


class PartialConv2d(_PartialConv, _conv.Conv2d):
    """NVIDIA's PartialConv2d: the arguments and the state_dict of torch.nn.Conv2d, and

    multi_channel: masks have a channel for each of the input; the new one has one for each of the result
    return_mask: forward returns (result, new mask)
    act, clip: a fused activation, as in weft.nn.Conv2d

    Without a mask only the padding is missing: "partial convolution based padding".

        >>> weft.nn.PartialConv2d(3, 16, kernel_size=3, stride=1, padding=1, bias=False)(torch.randn(2, 3, 8, 8)).shape
        torch.Size([2, 16, 8, 8])
        >>> inpaint = weft.nn.PartialConv2d(3, 16, kernel_size=3, stride=1, padding=1, bias=False, multi_channel=True, return_mask=True)
        >>> y, mask = inpaint(torch.randn(2, 3, 8, 8), (torch.rand(2, 3, 8, 8) > 0.5).float())
        >>> mask.shape
        torch.Size([2, 16, 8, 8])
    """

    _rank, _partial = 2, staticmethod(F.partial_conv2d)


PartialConv1d, PartialConv3d = (made(f"PartialConv{rank}d", (_PartialConv, conv), f"PartialConv2d on (N, C, {axes}).",
                                     at_rank("weft.nn.PartialConv{rank}d(4, 8, 3, padding=1)(torch.randn(1, 4, {x9}), torch.ones(1, 1, {x9})).shape", rank),
                                     (1, 8, *[9] * rank), _rank=rank, _partial=staticmethod(function))
                                for rank, axes, function, conv in ((1, "L", F.partial_conv1d, _conv.Conv1d), (3, "D, H, W", F.partial_conv3d, _conv.Conv3d)))


class _PartialConvTranspose(_Partial):
    """What the transposed forms are."""

    _partial: Callable[..., Pair]

    def __init__(self, in_channels: int, out_channels: int, kernel_size: Size, stride: Size = 1, padding: Size = 0, output_padding: Size = 0,
                 groups: int = 1, bias: bool = True, dilation: Size = 1, padding_mode: str = "zeros", device: Any = None, dtype: Any = None, *,
                 multi_channel: bool = False, return_mask: bool = False, act: Optional[str] = None, clip: tuple[float, float] = (0.0, 6.0)) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, output_padding, groups, bias, dilation,   # type: ignore[call-arg]
                         padding_mode, device, dtype, act=act, clip=clip)
        self._set_mask(multi_channel, return_mask)

    def forward(self: Any, input: Tensor, mask_in: Optional[Tensor] = None, output_size: Optional[list[int]] = None) -> Union[Tensor, Pair]:
        """As PartialConv2d.forward; a window is what meets a pixel of the result. output_size: as in torch.nn.ConvTranspose2d.

            >>> up = weft.nn.PartialConvTranspose2d(4, 2, 3, stride=2, padding=1)
            >>> up(torch.randn(1, 4, 5, 5), torch.rand(1, 1, 5, 5) > 0.5, output_size=[10, 10]).shape
            torch.Size([1, 2, 10, 10])
        """
        self._check_mask(input, mask_in)
        extra = self._output_padding(input, output_size, self.stride, self.padding, self.kernel_size, self._rank, self.dilation)
        pair = type(self)._partial(input, self.weight, self.bias, mask_in, self.stride, self.padding, extra, self.groups, self.dilation, act=self.act,
                                   clip=self.clip)
        return self._results(input, mask_in, pair)


class PartialConvTranspose2d(_PartialConvTranspose, _conv.ConvTranspose2d):
    """Transposed partial convolution: the arguments and the state_dict of torch.nn.ConvTranspose2d, with multi_channel, return_mask, act and
    clip as in PartialConv2d.

        >>> y, mask = weft.nn.PartialConvTranspose2d(4, 2, 2, stride=2, return_mask=True)(torch.randn(1, 4, 5, 5), torch.rand(1, 1, 5, 5) > 0.5)
        >>> y.shape, mask.shape
        (torch.Size([1, 2, 10, 10]), torch.Size([1, 1, 10, 10]))
    """

    _rank, _partial = 2, staticmethod(F.partial_conv_transpose2d)


PartialConvTranspose1d, PartialConvTranspose3d = (
    made(f"PartialConvTranspose{rank}d", (_PartialConvTranspose, conv), f"PartialConvTranspose2d on (N, C, {axes}).",
         at_rank("weft.nn.PartialConvTranspose{rank}d(4, 2, 2, stride=2)(torch.randn(1, 4, {x5})).shape", rank), (1, 2, *[10] * rank),
         _rank=rank, _partial=staticmethod(function))
    for rank, axes, function, conv in ((1, "L", F.partial_conv_transpose1d, _conv.ConvTranspose1d), (3, "D, H, W", F.partial_conv_transpose3d, _conv.ConvTranspose3d)))
