"""Short causal convolution as a module, for whole sequences and token by token."""
from __future__ import annotations

import math
from typing import Any, Optional

import torch
from torch import Tensor

from ..causal_conv1d import causal_conv1d_fn, causal_conv1d_update
from ._named import Named

__all__ = ["CausalConv1d"]


class CausalConv1d(Named, torch.nn.Module):
    """Depthwise convolution that looks only back, weight (dim, width): causal_conv1d_fn on whole sequences, causal_conv1d_update on the next tokens.

        >>> conv = weft.nn.CausalConv1d(8, 4, activation="silu")
        >>> x, state = torch.randn(2, 8, 10), conv.state(2)
        >>> steps = torch.stack([conv.step(x[:, :, t], state) for t in range(10)], 2)
        >>> torch.allclose(steps, conv(x), atol=1e-6)
        True
    """

    def __init__(self, dim: int, width: int, bias: bool = True, activation: Optional[str] = None, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        for name, value in (("dim", dim), ("width", width)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"CausalConv1d: {name} is {value!r}, allowed: an int of 1 or more")
        if activation not in (None, "silu", "swish"):
            raise NotImplementedError(f"activation: is {activation!r}, allowed: None, 'silu' or 'swish'")
        self.dim, self.width, self.activation = dim, width, activation
        self.weight = torch.nn.Parameter(torch.empty(dim, width, device=device, dtype=dtype))
        self.bias = torch.nn.Parameter(torch.empty(dim, device=device, dtype=dtype)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As torch.nn.Conv1d of as many groups as channels."""
        for p in (self.weight, self.bias):
            if p is not None:
                torch.nn.init.uniform_(p, -1 / math.sqrt(self.width), 1 / math.sqrt(self.width))

    def forward(self, x: Tensor, seq_idx: Optional[Tensor] = None, initial_states: Optional[Tensor] = None, return_final_states: bool = False) -> Any:
        return causal_conv1d_fn(x, self.weight, self.bias, seq_idx, initial_states, return_final_states, None, self.activation)

    def state(self, batch: int, dtype: Optional[torch.dtype] = None) -> Tensor:
        """An empty state for step: what stands before the first token."""
        return self.weight.new_zeros(batch, self.dim, self.width - 1, dtype=dtype)

    def step(self, x: Tensor, state: Tensor) -> Tensor:
        """The results of the next tokens, x (batch, dim) or (batch, dim, tokens); the state moves on in place. No gradient."""
        return causal_conv1d_update(x, state, self.weight, self.bias, self.activation)

    def extra_repr(self) -> str:
        return f"{self.dim}, width={self.width}, bias={self.bias is not None}, activation={self.activation!r}"
