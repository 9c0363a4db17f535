"""What a module with sparse weights remembers of them: which are not 0, and their values in eval mode."""
from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor

from .sparse import SparseWeight
from .sparse import from_dense as _from_dense


def as_traced() -> bool:
    """Someone records or transforms what is done with tensors: their elements cannot be looked at, and nothing is to be remembered."""
    return torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()


def wants_gradient(*tensors: Optional[Tensor]) -> bool:
    """What stands for a tensor in a trace of torch.fx may want one."""
    return torch.is_grad_enabled() and any(t is not None and (not isinstance(t, Tensor) or t.requires_grad) for t in tensors)


class Kept:
    """Which weights are not 0, and their values as last gathered."""

    def __init__(self, dense: Tensor, mask: Optional[Tensor]) -> None:
        self.mask = mask                              # of torch.nn.utils.prune, if the pattern is that of one
        self.nnz = int(torch.count_nonzero(dense))
        self.full = self.nnz == dense.numel()         # no pattern is made before somebody asks for it
        self.sparsity = 1 - self.nnz / max(dense.numel(), 1)
        self.pattern: Optional[SparseWeight] = None if self.full else self._look(dense)
        self.source: Optional[Tensor] = None          # the parameter that the pattern's values are of; None: nobody knows
        self.trained = False                          # gradients were asked for in eval mode: values may change at any time

    @staticmethod
    def _look(dense: Tensor) -> SparseWeight:
        pattern = _from_dense(dense if dense.is_floating_point() else dense.float())
        pattern._find_positions()
        return pattern

    def csr(self, weight: Tensor) -> SparseWeight:
        """The pattern, also where it is that of all elements."""
        if self.pattern is None:
            with torch.inference_mode(False), torch.no_grad():
                self.pattern = self._look(torch.ones_like(weight, device="cpu")).to(weight.device)
        return self.pattern

    def same(self, other: Kept) -> bool:
        """Whether the patterns are equal."""
        if self.pattern is None or other.pattern is None:
            return self.full and other.full
        a, b = self.pattern, other.pattern
        return a.shape == b.shape and a.nnz == b.nnz and all(torch.equal(x.cpu(), y.cpu()) for x, y in ((a.rows, b.rows), (a.cols, b.cols)))

    def gathered(self, weight: Tensor) -> SparseWeight:
        """The pattern with the values that weights have now, with a gradient."""
        pattern = self.csr(weight)
        positions = pattern._find_positions()
        now = SparseWeight(weight.reshape(-1).index_select(0, positions), pattern.rows, pattern.cols, pattern.shape, check=False)
        now._positions = positions
        return now

    def remembered(self, weight: Tensor, source: Tensor) -> SparseWeight:
        """The pattern with the values that the parameter `source` had when they were last gathered."""
        if self.source is not source or self.pattern is None or self.pattern.values.dtype != weight.dtype:
            with torch.inference_mode(False), torch.no_grad():   # else a tensor of inference mode would stay here, no good for gradients
                self.pattern, self.source = self.gathered(weight.detach()), source
        return self.pattern

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "source": None}
