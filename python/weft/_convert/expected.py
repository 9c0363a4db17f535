"""Which modules weft's own kernels are expected to win: kinds of which every row of docs/benchmarks is at least as fast as PyTorch."""
from __future__ import annotations

import torch
from torch import nn

_LEVEL = "weft is not expected to be faster"


def _conv(module: nn.Module, dtype: torch.dtype, device: str) -> str:
    """One filter per channel, and few channels in a group in 3D; the format of the weights is taken for that of the data."""
    rank, inside = module.weight.dim() - 2, module.in_channels // module.groups
    if module.groups > 1 and inside == 1:
        last = not module.weight.is_contiguous()
        if device == "cpu" and ((dtype is torch.bfloat16 and rank < 3) or (last and max(module.kernel_size) > 9)):
            return "PyTorch's depthwise convolution is as fast in this type and format"
        return ""
    if device == "cpu" and rank == 3 and 1 < module.groups and inside < 8 and dtype is torch.float32:
        return ""
    return "PyTorch's dense convolution is as fast" if module.groups == 1 else "PyTorch's grouped convolution is as fast"


def _adaptive(module: nn.Module, dtype: torch.dtype, device: str) -> str:
    sizes = module.output_size if isinstance(module.output_size, (tuple, list)) else (module.output_size,)
    return "to one pixel PyTorch takes a mean, which is as fast" if all(n == 1 for n in sizes) else ""


def _always(module: nn.Module, dtype: torch.dtype, device: str) -> str:
    return ""


def _on_cpu(module: nn.Module, dtype: torch.dtype, device: str) -> str:
    return "" if device == "cpu" else _LEVEL


_KINDS = {nn.Conv1d: _conv, nn.Conv2d: _conv, nn.Conv3d: _conv, nn.MaxPool2d: _always, nn.AvgPool2d: _always, nn.AdaptiveAvgPool2d: _adaptive,
          nn.Softmax: _always, nn.LogSoftmax: _always, nn.CrossEntropyLoss: _always, nn.LocalResponseNorm: _always, nn.Unfold: _always, nn.Fold: _always,
          nn.Tanh: _on_cpu}
_TYPES = (torch.float32, torch.bfloat16, torch.float16)


def why_not(module: nn.Module, net: nn.Module) -> str:
    """"" for a module of torch.nn that weft is expected to make faster; else why not. Where a module has no parameters, those of the net tell its type
    and device.

        >>> from weft._convert import expected as _expected
        >>> conv = torch.nn.Conv2d(8, 8, 3, groups=8)
        >>> _expected.why_not(conv, conv), _expected.why_not(torch.nn.ReLU(), conv)
        ('', 'weft is not expected to be faster')
    """
    if type(module) in (nn.RNN, nn.LSTM, nn.GRU):
        return "a recurrent layer of torch.nn is what quantize_dynamic looks for"
    given = next((t for owner in (module, net) for t in owner.parameters() if t.is_floating_point()), None)
    dtype, device = (torch.get_default_dtype(), "cpu") if given is None else (given.dtype, given.device.type)
    if type(module) not in _KINDS or dtype not in _TYPES or device not in ("cpu", "cuda"):
        return _LEVEL
    return _KINDS[type(module)](module, dtype, device)
