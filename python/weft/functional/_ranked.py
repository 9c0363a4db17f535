"""Functions that differ in little, as the number of spatial axes, written once."""
from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def named(function: Callable, name: str, help: str) -> Any:
    """The function with this name and help."""
    function.__name__ = function.__qualname__ = name
    function.__doc__ = help
    return function


def ranked(make: Callable[[int], Callable], *examples: str) -> tuple[Any, ...]:
    """What `make` gives for 1D, 2D and 3D: conv1d, conv2d and conv3d from a function `conv`. Its help has {rank} for the number, and ends with the
    example of each, without its indentation."""
    functions = []
    for rank, example in enumerate(examples, 1):
        function = make(rank)
        shown = "".join(f"    {line}\n" for line in inspect.cleandoc(example).splitlines())
        help = inspect.cleandoc(function.__doc__ or "").replace("{rank}", str(rank))
        functions.append(named(function, f"{function.__name__}{rank}d", f"{help}\n\n{shown}"))
    return tuple(functions)
