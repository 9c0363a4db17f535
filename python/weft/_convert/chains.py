"""Which modules of a net follow each other and nobody else: read off the graphs that torch.fx makes of the net, or of the parts it can trace."""
from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Optional

from torch import fx, nn

from .fusion import Chain, activation, is_conv, is_norm
from .shadow import has_hooks, shadow


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


def find(net: nn.Module, stays: set[nn.Module]) -> list[Chain]:
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
