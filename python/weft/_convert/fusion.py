"""Fused modules: a convolution that does the work of the normalisation and the activation behind it, and what stands in their places.

With running statistics m, v and the affine g, h of a batch normalisation, per output channel
    norm(conv(x; W, b)) = conv(x; s W, s (b - m) + h),   s = g / sqrt(v + eps),
so the pair is one convolution as long as the normalisation is in eval mode. Parameters and buffers stay where they are: the state_dict, an optimiser
and load_state_dict see what they always saw, and s W lives beside. In training mode the three modules compute as if they had never met.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor, fx, nn
from torch.fx import Proxy

from ..nn._named import kept_whole
from .pairs import TO_WEFT, has_hooks, joined, kind_of, set_class, shadow, torch_class

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
        return kind_of(torch_class(fusion.was)).extra_repr(self) + f", folds {fusion.norm_was.__name__}" + act


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

def _kind(module: nn.Module) -> type:
    """The class of torch.nn that computes what the module does."""
    return kind_of(torch_class(type(module)))


def is_conv(module: nn.Module) -> bool:
    return _kind(module) in _CONVS and getattr(module, "act", None) is None and module.weight.is_floating_point()


def is_norm(module: nn.Module, conv: nn.Module) -> bool:
    """Whether the convolution can take in this normalisation: it runs on its statistics, and is for this rank and number of channels."""
    return (_kind(module) in _NORMS and not module.training and module.running_mean is not None and module.running_var is not None
            and module.num_features == conv.out_channels and _NORMS[_kind(module)] == len(conv.kernel_size))


def activation(module: nn.Module) -> Optional[tuple[str, tuple[float, float]]]:
    """act and clip of a convolution that does the module's work; None where there are none."""
    kind = _kind(module)
    if kind is nn.ReLU:
        return "relu", (0.0, 6.0)
    return ("clip", (float(module.min_val), float(module.max_val))) if kind in (nn.Hardtanh, nn.ReLU6) else None


# ---------------------------------------------------------------------------------------------- together and apart

def fuse(chain: Chain) -> None:
    """Makes the convolution do the work of the chain, and the others placeholders."""
    conv, norm, act = chain
    what, clip = (None, (0.0, 6.0)) if act is None else activation(act)   # type: ignore[misc]
    fusion = _Fusion(norm, what, clip, type(conv), None if norm is None else type(norm), {k: conv.__dict__[k] for k in ("act", "clip") if k in conv.__dict__})
    set_class(conv, joined((TO_WEFT if norm is None else _FOLDED)[_kind(conv)], torch_class(type(conv))))
    for name in fusion.own:
        del conv.__dict__[name]
    if norm is None:
        conv.act, conv.clip = what, clip   # in training, too
    conv._fusion = fusion
    for module, before in ((norm, None), (act, () if norm is None else (norm,))):
        if module is not None:
            module._was, module._norm = type(module), before
            set_class(module, joined(_PLACEHOLDERS[_kind(module)], torch_class(type(module))))


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


# ---------------------------------------------------------------------------------------------- which modules follow each other
# and nobody else: read off the graphs that torch.fx makes of the net, or of the parts it can trace.

class _Tracer(fx.Tracer):
    """Keeps whole what has no children, what PyTorch keeps whole, and what is sealed."""

    def __init__(self, sealed: set[nn.Module]) -> None:
        super().__init__()
        self.sealed = sealed

    def is_leaf_module(self, module: nn.Module, name: str) -> bool:
        return module in self.sealed or not any(True for _ in module.children()) or super().is_leaf_module(module, name)


def _trace(module: nn.Module, sealed: set[nn.Module]) -> Optional[fx.Graph]:
    """The graph of a module, or None: code that looks at values can fail in any way under tracing."""
    try:
        return _Tracer(sealed - {module}).trace(module)
    except Exception:   # noqa: BLE001
        return None


class _Graphs:
    """The largest parts of a net that can be traced, in one mode. Parts that can not, and those whose output a hook sees, are seen from outside as one."""

    def __init__(self, net: nn.Module, hooked: set[nn.Module]) -> None:
        self.graphs: dict[nn.Module, fx.Graph] = {}
        self.sealed = set(hooked)
        leaf = _Tracer(set())
        for module in reversed(list(net.modules())):   # those inside before those around them
            if not leaf.is_leaf_module(module, ""):
                graph = _trace(module, self.sealed)
                if graph is None:
                    self.sealed.add(module)
                else:
                    self.graphs[module] = graph

    def parts(self, module: nn.Module) -> Iterator[tuple[nn.Module, fx.Graph]]:
        if module not in self.graphs:
            for child in module.children():
                yield from self.parts(child)
            return
        yield module, self.graphs[module]
        for node in self.graphs[module].nodes:
            if node.op == "call_module" and module.get_submodule(node.target) in self.sealed:
                yield from self.parts(module.get_submodule(node.target))


def _links(net: nn.Module, hooked: set[nn.Module]) -> tuple[dict[nn.Module, nn.Module], Counter]:
    """For each module the only one that reads its output, and how often each module is called."""
    following: dict[nn.Module, nn.Module] = {}
    calls: Counter = Counter()
    for top, graph in _Graphs(net, hooked).parts(net):
        for node in graph.nodes:
            if node.op != "call_module":
                continue
            module = top.get_submodule(node.target)
            calls[module] += 1
            users = list(node.users)
            if len(users) == 1 and users[0].op == "call_module" and users[0].args == (node,) and not users[0].kwargs:
                following[module] = top.get_submodule(users[0].target)
    return following, calls


def _in_both_modes(net: nn.Module) -> dict[nn.Module, nn.Module]:
    """The links that hold in training and in eval mode, between modules that are called once."""
    copy = shadow(net)
    modules, copies = list(net.modules()), list(copy.modules())
    hooked = {twin for module, twin in zip(modules, copies) if has_hooks(module)}
    places = Counter(id(m) for _, m in net.named_modules(remove_duplicate=False))
    once = {twin for module, twin in zip(modules, copies) if places[id(module)] == 1}
    kept: Optional[set[tuple[nn.Module, nn.Module]]] = None
    for mode in (True, False):
        for twin in copies:
            twin.training = mode
        following, calls = _links(copy, hooked)
        links = {(a, b) for a, b in following.items() if calls[a] == calls[b] == 1 and {a, b} <= once - hooked}
        kept = links if kept is None else kept & links
    original = dict(zip(copies, modules))
    return {original[a]: original[b] for a, b in kept or ()}


def find_chains(net: nn.Module, stays: set[nn.Module]) -> list[Chain]:
    """Convolutions with a normalisation, an activation or both right behind them, in the order of the net; modules in `stays` are in none."""
    after = {a: b for a, b in _in_both_modes(net).items() if not {a, b} & stays}
    chains = []
    for conv in net.modules():
        if conv in after and is_conv(conv):
            norm = after[conv] if is_norm(after[conv], conv) else None
            last = after.get(norm) if norm is not None else after[conv]
            act = last if last is not None and activation(last) is not None else None
            if norm is not None or act is not None:
                chains.append(Chain(conv, norm, act))
    return chains
