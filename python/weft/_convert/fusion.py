"""Fused modules: a convolution that does the work of the normalisation and the activation behind it, and what stands in their places.

With running statistics m, v and the affine g, h of a batch normalisation, per output channel
    norm(conv(x; W, b)) = conv(x; s W, s (b - m) + h),   s = g / sqrt(v + eps),
so the pair is one convolution as long as the normalisation is in eval mode. Parameters and buffers stay where they are: the state_dict, an optimiser
and load_state_dict see what they always saw, and s W lives beside. In training mode the three modules compute as if they had never met.
"""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor, nn
from torch.fx import Proxy

from .pairs import TO_TORCH, TO_WEFT, set_class
from ..nn._named import kept_whole

_CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_NORMS = {nn.BatchNorm1d: 1, nn.BatchNorm2d: 2, nn.BatchNorm3d: 3}   # and the rank of the convolution before them


class Chain(NamedTuple):
    """Modules that follow each other: a convolution, a normalisation in eval mode or None, an activation or None."""

    conv: nn.Module
    norm: Optional[nn.Module]
    act: Optional[nn.Module]

    def members(self) -> list[nn.Module]:
        return [m for m in self if m is not None]


@dataclass
class _Fusion:
    """What a fused convolution does besides, and how to take it apart. Not a module: what it refers to has its place in the net already."""

    norm: Optional[nn.Module]
    act: Optional[str]
    clip: tuple[float, float]
    was: type                                            # the classes before
    norm_was: Optional[type]
    own: dict[str, Any]                                  # attributes of the instance that gave way to the fused ones
    live: bool = False                                   # gradients were asked for: weights may change unseen until train() or eval() is called
    kept: Optional[tuple[Any, Tensor, Tensor]] = field(default=None, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "kept": None}


# ---------------------------------------------------------------------------------------------- the folded weights

def _folded(conv: nn.Module, norm: nn.Module, weight: Tensor, bias: Optional[Tensor]) -> tuple[Tensor, Tensor]:
    """s W and s (b - m) + h, computed in float32 at least and rounded once."""
    wide = torch.promote_types(torch.promote_types(weight.dtype, norm.running_var.dtype), torch.float32)
    scale = torch.rsqrt(norm.running_var.to(wide) + norm.eps)
    if norm.weight is not None:
        scale = scale * norm.weight.to(wide)
    shift = -norm.running_mean.to(wide) if bias is None else bias.to(wide) - norm.running_mean.to(wide)
    shift = shift * scale if norm.bias is None else torch.addcmul(norm.bias.to(wide), shift, scale)
    if not conv.transposed:
        scaled = weight.to(wide) * scale.view(-1, *[1] * (weight.dim() - 1))
    else:   # (C, O / groups, window): the channels of one group are rows that follow each other
        groups, taps = conv.groups, [1] * (weight.dim() - 2)
        split = weight.to(wide).reshape(groups, -1, *weight.shape[1:])
        scaled = (split * scale.view(groups, 1, -1, *taps)).reshape(weight.shape)
    return scaled.to(weight.dtype), shift.to(weight.dtype)


def _identity_of(tensors: tuple[Optional[Tensor], ...]) -> Any:
    """Which tensors, where, and how often they were written to; None where that can not be known (inference tensors, vmap)."""
    try:
        return torch.is_inference_mode_enabled(), [None if t is None else (id(t), t.data_ptr(), t._version) for t in tensors]
    except RuntimeError:
        return None


class _Folded:
    """A convolution of weft.nn with a normalisation folded in."""

    _fusion: _Fusion

    # What the parent reads: the activation comes after the normalisation, so it is the convolution's only where that is folded.
    act = property(lambda self: None if self._fusion.norm.training else self._fusion.act)
    clip = property(lambda self: self._fusion.clip)

    def _weights(self: Any, weight: Tensor, bias: Optional[Tensor]) -> tuple[Tensor, Tensor]:
        fusion = self._fusion
        norm = fusion.norm
        if torch.compiler.is_compiling():
            return _folded(self, norm, weight, bias)
        tensors = (weight, bias, norm.weight, norm.bias, norm.running_mean, norm.running_var)
        if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
            fusion.live, fusion.kept = True, None
        identity = None if fusion.live else _identity_of(tensors)
        if identity is None:
            return _folded(self, norm, weight, bias)
        if fusion.kept is None or fusion.kept[0] != identity:
            fusion.kept = (identity, *_folded(self, norm, weight, bias))
        return fusion.kept[1:]

    def _conv_forward(self: Any, input: Tensor, weight: Tensor, bias: Optional[Tensor], *more: Any) -> Tensor:
        if not self._fusion.norm.training:
            weight, bias = self._weights(weight, bias)
        return super()._conv_forward(input, weight, bias, *more)

    def forward(self: Any, input: Tensor, *more: Any) -> Tensor:
        if isinstance(input, Proxy):   # torch.fx keeps it whole: the weights are not constants
            return kept_whole(self, input, *more)
        return super().forward(input, *more)

    def train(self: Any, mode: bool = True) -> Any:
        self._fusion.live, self._fusion.kept = False, None
        return super().train(mode)

    def _apply(self: Any, *args: Any, **options: Any) -> Any:
        self._fusion.kept = None
        return super()._apply(*args, **options)

    def _get_name(self) -> str:
        return f"weft.{type(self).__name__.removeprefix('Folded')}"

    def extra_repr(self: Any) -> str:
        fusion = self._fusion
        act = {None: "", "relu": ", act='relu'", "clip": f", act='clip', clip={fusion.clip}"}[fusion.act]
        return TO_TORCH[type(self).__mro__[2]].extra_repr(self) + f", folds {fusion.norm_was.__name__}" + act


# ---------------------------------------------------------------------------------------------- what stands behind it

class _Placeholder:
    """The identity in the place of a module whose work is done by the convolution before it; the module itself where that one does not do it."""

    _was: type
    _norm: Optional[tuple[nn.Module, ...]]   # of an activation: the normalisation before it, or (); in a tuple, as it is no child. None: it is one itself

    def forward(self: Any, input: Tensor) -> Tensor:
        return super().forward(input) if any(norm.training for norm in self._norm or ()) or (self._norm is None and self.training) else input

    def _get_name(self) -> str:
        return "weft.Identity"

    def extra_repr(self: Any) -> str:
        return f"{self._was.__name__}({self._was.extra_repr(self)})"


def _classes() -> tuple[dict[type, type], dict[type, type]]:
    """A folded class for each convolution, a placeholder for each module that may follow. They are in this module by name, for pickle."""
    folded, placeholders = {}, {}
    for twin in _CONVS:
        base = TO_WEFT[twin]
        folded[twin] = type(f"Folded{base.__name__}", (_Folded, base), {"__module__": __name__})
    for twin in (nn.ReLU, nn.ReLU6, nn.Hardtanh, *_NORMS):
        placeholders[twin] = type(f"Idle{twin.__name__}", (_Placeholder, TO_WEFT.get(twin, twin)), {"__module__": __name__})
    for cls in (*folded.values(), *placeholders.values()):
        globals()[cls.__name__] = cls
    return folded, placeholders


_FOLDED, _PLACEHOLDERS = _classes()


# ---------------------------------------------------------------------------------------------- what may be fused

def torch_class(module: nn.Module) -> type:
    """The class of torch.nn that the module has or stands for."""
    return TO_TORCH.get(type(module), type(module))


def is_conv(module: nn.Module) -> bool:
    return torch_class(module) in _CONVS and getattr(module, "act", None) is None and module.weight.is_floating_point()


def is_norm(module: nn.Module, conv: nn.Module) -> bool:
    """Whether the convolution can take in this normalisation: it runs on its statistics, and is for this rank and number of channels."""
    return (torch_class(module) in _NORMS and not module.training and module.running_mean is not None and module.running_var is not None
            and module.num_features == conv.out_channels and _NORMS[torch_class(module)] == len(conv.kernel_size))


def activation(module: nn.Module) -> Optional[tuple[str, tuple[float, float]]]:
    """act and clip of a convolution that does the module's work; None where there are none."""
    kind = torch_class(module)
    if kind is nn.ReLU:
        return "relu", (0.0, 6.0)
    return ("clip", (float(module.min_val), float(module.max_val))) if kind in (nn.Hardtanh, nn.ReLU6) else None


# ---------------------------------------------------------------------------------------------- together and apart

def fuse(chain: Chain) -> None:
    """Makes the convolution do the work of the chain, and the others placeholders."""
    conv, norm, act = chain
    what, clip = (None, (0.0, 6.0)) if act is None else activation(act)   # type: ignore[misc]
    fusion = _Fusion(norm, what, clip, type(conv), None if norm is None else type(norm), {k: conv.__dict__[k] for k in ("act", "clip") if k in conv.__dict__})
    kind = torch_class(conv)
    set_class(conv, TO_WEFT[kind] if norm is None else _FOLDED[kind])
    for name in fusion.own:
        del conv.__dict__[name]
    if norm is None:
        conv.act, conv.clip = what, clip   # in training, too
    conv._fusion = fusion
    for module, before in ((norm, None), (act, () if norm is None else (norm,))):
        if module is not None:
            module._was, module._norm = type(module), before
            set_class(module, _PLACEHOLDERS[torch_class(module)])


def take_apart(net: nn.Module) -> None:
    """Gives every fused module of the net its class and attributes back."""
    for module in list(net.modules()):
        fusion = module.__dict__.get("_fusion")
        if isinstance(fusion, _Fusion):
            for name in ("_fusion", "act", "clip"):
                module.__dict__.pop(name, None)
            module.__dict__.update(fusion.own)
            set_class(module, fusion.was)
        elif isinstance(module, _Placeholder):
            was = module._was
            del module._was, module._norm
            set_class(module, was)


def is_fused(module: nn.Module) -> bool:
    """Whether fuse() changed it."""
    return isinstance(module, _Placeholder) or isinstance(module.__dict__.get("_fusion"), _Fusion)
