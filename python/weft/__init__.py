"""weft: the convolution-family operators that frameworks neglect, on the CPU and on NVIDIA GPUs.

    >>> import torch, weft
    >>> x = torch.randn(8, 128, 56, 56).to(memory_format=torch.channels_last)
    >>> weft.Conv2dDepthwise(128, 3, padding=1)(x).shape
    torch.Size([8, 128, 56, 56])

weft.functional has the functions, weft.nn the modules, weft.backends what runs underneath. `python -m weft --help` lists the commands.
"""
from importlib import import_module as _import_module
from typing import Any as _Any

from . import _enable, backends, causal_conv1d, functional, nn, prune, sparse
from ._core import library as _library
from ._enable import disable, enable, enabled
from .convert import convert
from .functional import cdgmm, col2im, conv2d_depthwise, dgmm, im2col, ncrelu
from .nn import Conv2dDepthwise, Conv3DTC, Grouped3D, TunerConfig
from .nn.conv import pack
from .report import report
from .sparse import SparseWeight

__version__ = _library.version()
__all__ = ["Conv2dDepthwise", "Conv3DTC", "Grouped3D", "SparseWeight", "TunerConfig", "backends", "causal_conv1d", "cdgmm", "col2im", "conv2d_depthwise",
           "convert", "dgmm", "disable", "enable", "enabled", "functional", "im2col", "ncrelu", "nn", "pack", "prune", "report", "sparse", "torch7", "__version__"]


def __getattr__(name: str) -> _Any:
    """weft.torch7 is imported when it is first asked for."""
    if name == "torch7":
        return _import_module(".torch7", __name__)
    raise AttributeError(f"module 'weft' has no attribute {name!r}")


_enable.from_environment()
