"""Functions with the signatures of torch.nn.functional, on CPU and CUDA tensors, with every gradient.

    >>> import torch, weft.functional as F
    >>> x, w = torch.randn(8, 64, 56, 56), torch.randn(64, 1, 3, 3)
    >>> F.conv2d(x, w, padding=1, groups=64, act="relu").shape
    torch.Size([8, 64, 56, 56])

Data is taken as it lies in memory: channels-first or channels-last, sliced or transposed. The result is dense and in the format of the
input, also in 1D and without a batch, where PyTorch's is always channels-first; the format of the weight does not count. Channels-last
means that the stride of the channels is positive and less than that of the last axis.

They work under torch.compile, torch.export, torch.func, torch.fx and autocast, and with subclasses and modes of __torch_function__.
Under autocast a float32 weight is cast at each call: PyTorch's cache of casts is its own. torch.jit.trace records the operator where
no gradient is wanted, and refuses the Python that computes one: trace under torch.no_grad, or use torch.export.
"""
from . import conv, normalisation, partial_conv, pointwise, pool, probabilities, rnn, sparse_conv
from .conv import *  # noqa: F403
from .dgmm import *  # noqa: F403
from .dgmm import __all__ as _dgmm   # the function has the module's name
from .im2col import *  # noqa: F403
from .im2col import __all__ as _im2col
from .normalisation import *  # noqa: F403
from .partial_conv import *  # noqa: F403
from .pointwise import *  # noqa: F403
from .pool import *  # noqa: F403
from .probabilities import *  # noqa: F403
from .rnn import *  # noqa: F403
from .sparse_conv import *  # noqa: F403

__all__ = [*conv.__all__, *_dgmm, *_im2col, *normalisation.__all__, *partial_conv.__all__, *pointwise.__all__, *pool.__all__, *probabilities.__all__,
           *rnn.__all__, *sparse_conv.__all__]
