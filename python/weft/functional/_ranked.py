"""Functions that differ in the number of spatial axes alone, written once."""
from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def ranked(make: Callable[[int], Callable], *examples: str) -> tuple[Any, ...]:
    """What `make` gives for 1D, 2D and 3D: conv1d, conv2d and conv3d from a function `conv`. Its help has {rank} for the number, and ends with the
    example of each, without its indentation."""
    functions = []
    for rank, example in enumerate(examples, 1):
        function = make(rank)
        function.__name__ = function.__qualname__ = f"{function.__name__}{rank}d"
        shown = "".join(f"    {line}\n" for line in inspect.cleandoc(example).splitlines())
        function.__doc__ = f"{inspect.cleandoc(function.__doc__ or '').replace('{rank}', str(rank))}\n\n{shown}"
        functions.append(function)
    return tuple(functions)
