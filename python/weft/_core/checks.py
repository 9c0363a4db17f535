"""Checks of arguments that every part uses, and their words."""
from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor


def need_tensors(words: str, given: Mapping[str, Any], optional: Mapping[str, Any] = {}) -> None:
    """words: the beginning of the error's text, {} for the argument's name. optional: may be None."""
    for name, value in (*given.items(), *optional.items()):
        if not isinstance(value, Tensor) and not (value is None and name in optional):
            raise TypeError(f"{words.format(name)} {type(value).__name__}, allowed: Tensor{' or None' if name in optional else ''}")


def check_ints(least: int, **values: Any) -> None:
    """Each is an int, and `least` or more."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name}: is {value!r}, allowed: an int")
        if value < least:
            raise ValueError(f"{name}: is {value}, allowed: {least} or more")


def check_flags(**values: Any) -> None:
    """Each is True or False."""
    for name, value in values.items():
        if not isinstance(value, bool):
            raise TypeError(f"{name}: is {value!r}, allowed: True or False")


def check_reals(**values: Any) -> None:
    """Each is a finite number."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"{name}: is {value!r}, allowed: a number")
        if not math.isfinite(value):
            raise ValueError(f"{name}: is {value}, allowed: a finite number")
