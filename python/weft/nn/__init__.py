"""Modules: those of torch.nn computed by weft. Same arguments, same state_dict; convolutions take `act` for a fused activation.

    >>> import torch, weft
    >>> net = torch.nn.Sequential(weft.nn.Conv2dDepthwise(8, 3, padding=1), torch.nn.Conv2d(8, 16, 1))
    >>> net(torch.randn(2, 8, 32, 32)).shape
    torch.Size([2, 16, 32, 32])
"""
from . import causal_conv, conv, grouped3d, partial_conv, rnn, simple, sparse_conv, sparse_model
from .causal_conv import *  # noqa: F403
from .conv import *  # noqa: F403
from .grouped3d import *  # noqa: F403
from .partial_conv import *  # noqa: F403
from .rnn import *  # noqa: F403
from .simple import *  # noqa: F403
from .sparse_conv import *  # noqa: F403
from .sparse_model import *  # noqa: F403

__all__ = [*causal_conv.__all__, *conv.__all__, *grouped3d.__all__, *partial_conv.__all__, *rnn.__all__, *simple.__all__,
           *sparse_conv.__all__, *sparse_model.__all__]
