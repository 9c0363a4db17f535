"""What runs underneath: the library, the machine as it sees it, and the kernels it chose.

    >>> print(weft.backends.describe())
    >>> weft.functional.conv2d(x, w, groups=64); weft.backends.kernels()
"""
from __future__ import annotations

from . import _library

__all__ = ["describe", "kernels", "library"]


def describe() -> str:
    """The machine and the engines, one "key: value" line each; an engine that is absent says why.

        >>> "cpu" in weft.backends.describe()
        True
    """
    return _library.describe()


def kernels() -> str:
    """The names of the kernels that the last operator on this thread ran, joined by " + ".

        >>> weft.functional.conv1d(torch.ones(1, 1, 3), torch.ones(1, 1, 3)); weft.backends.kernels() != ""
        True
    """
    return _library.kernels()


def library() -> str:
    """The path of the C library in use.

        >>> weft.backends.library().endswith("libweft_torch.so")
        True
    """
    return str(_library.path)
