"""Wisdom: what benchmark mode measured, kept in a text file that many machines and processes may share.

    >>> with weft.backends.flags(benchmark=True):
    ...     y = weft.functional.conv2d(torch.ones(1, 8, 9, 9), torch.ones(8, 1, 3, 3), groups=8)
    >>> known = weft.backends.wisdom.save("weft.wisdom")        # merges with what the file holds
    >>> known = weft.backends.wisdom.load("weft.wisdom")        # in another process, before the first call

or, for both, weft.backends.wisdom.autosave("weft.wisdom").
"""
from __future__ import annotations

import atexit
import os
from typing import Optional, Union

from . import library as _library, settings as _settings

__all__ = ["autosave", "count", "forget", "load", "save"]

Path = Union[str, "os.PathLike[str]"]
_autosaved: Optional[str] = None


def _file(action: str, path: Path) -> dict[str, int]:
    entries, bad, others = _library.wisdom(action, os.fspath(path))
    return {"entries": entries, "other_machines": others, "bad_lines": bad}


def load(path: Path) -> dict[str, int]:
    """Read a wisdom file. Returns how many entries are for this machine, how many for others, and how many lines were skipped as unreadable.

        >>> known = weft.backends.wisdom.save("weft.wisdom")
        >>> weft.backends.wisdom.load("weft.wisdom")["bad_lines"]
        0
    """
    report = _file("load", path)
    _settings.change()   # what was chosen without it is open again
    return report


def save(path: Path) -> dict[str, int]:
    """Write what is known to a file, merged with what it holds: other processes may save to it at the same time. Returns as load() does.

        >>> sorted(weft.backends.wisdom.save("weft.wisdom"))
        ['bad_lines', 'entries', 'other_machines']
    """
    return _file("save", path)


def forget() -> None:
    """Forget everything measured or loaded so far. Files stay as they are until the next save(), which takes out of the file what was forgotten.

        >>> weft.backends.wisdom.forget(); weft.backends.wisdom.count()
        0
    """
    _library.wisdom("forget")
    _settings.change()


def count() -> int:
    """How many entries are known.

        >>> weft.backends.wisdom.count() >= 0
        True
    """
    return _library.wisdom("count")[0]


def _save_at_exit() -> None:
    if _autosaved is not None and count():
        save(_autosaved)


def autosave(path: Optional[Path]) -> None:
    """Load the file now, if there is one, and save to it when the process ends. None: no more.

        >>> weft.backends.wisdom.autosave("weft.wisdom")
    """
    global _autosaved
    if path is None:
        _autosaved = None
        return
    name = os.path.abspath(os.fspath(path))
    if not os.path.isdir(os.path.dirname(name)):
        raise FileNotFoundError(f"path: is {name!r}, allowed: a file in a folder that exists")
    if os.path.exists(name):
        load(name)
    if _autosaved is None:
        atexit.unregister(_save_at_exit)
        atexit.register(_save_at_exit)
    _autosaved = name
