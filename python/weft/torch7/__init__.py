"""Torch7's names: the modules of cudnn.torch with its argument orders and defaults, computed by weft.

    >>> import torch, weft.torch7 as cudnn
    >>> net = torch.nn.Sequential(cudnn.SpatialConvolution(3, 96, 11, 11, 3, 3), cudnn.ReLU(True), cudnn.SpatialMaxPooling(2, 2).ceil())
    >>> net[0]
    weft.SpatialConvolution(3 -> 96, 11x11, 3,3)
    >>> net(torch.randn(2, 3, 64, 64)).shape
    torch.Size([2, 96, 9, 9])

Each is a module of weft.nn, so of torch.nn: parameters, state_dict, hooks, autograd and .to() are PyTorch's. Width comes before height
in the arguments, and time before both; tensors are (N, C, H, W) and (N, C, T, H, W). Labels of the criteria count from 1. updateOutput
is forward by its old name; gradients come from autograd, so that there is no updateGradInput. Criteria return a tensor.
"""
from . import conv, simple
from .conv import *  # noqa: F403
from .simple import *  # noqa: F403

__all__ = [*conv.__all__, *simple.__all__]
