"""Short causal convolution with the functions of the package causal-conv1d: the same names, arguments and defaults, any width, CPU and CUDA.

    >>> from weft.causal_conv1d import causal_conv1d_fn, causal_conv1d_update
    >>> x, weight, bias = torch.randn(2, 64, 100), torch.randn(64, 4), torch.randn(64)
    >>> causal_conv1d_fn(x, weight, bias, activation="silu").shape
    torch.Size([2, 64, 100])

Programs that import the package itself need no changed line if they start with `sys.modules["causal_conv1d"] = weft.causal_conv1d`.
"""
from .causal_conv1d_interface import causal_conv1d_fn, causal_conv1d_ref, causal_conv1d_update, causal_conv1d_update_ref
from .causal_conv1d_varlen import causal_conv1d_varlen_states, causal_conv1d_varlen_states_ref

__all__ = ["causal_conv1d_fn", "causal_conv1d_ref", "causal_conv1d_update", "causal_conv1d_update_ref", "causal_conv1d_varlen_states",
           "causal_conv1d_varlen_states_ref"]
