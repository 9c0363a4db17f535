"""Grouped 3D convolution, tuned for the shapes it meets and the machine it runs on, with what was found kept in a file."""
from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Optional, Union

import torch
from torch import Tensor

from .. import backends
from .._core.arguments import Padding, Size, autocast_dtype, check_flags, check_ints, check_seconds, foreign, in_transform, lowered
from .._core.rules import call
from .._core.text import Bar, sizes
from ..functional.conv import CONV, CONV_BACKWARD, WANT_BIAS, WANT_INPUT, WANT_WEIGHT, check_activation, check_tensors, geometry
from .conv import Conv3d

__all__ = ["Conv3DTC", "Grouped3D", "TunerConfig"]

Path = Union[str, "os.PathLike[str]"]

_GRADIENTS = (("gradient of the input", WANT_INPUT), ("gradient of the weights", WANT_WEIGHT), ("both gradients", WANT_INPUT | WANT_WEIGHT))
_PROBLEMS = 1 + len(_GRADIENTS)          # that one shape poses
_ready: set[tuple] = set()               # calls that were tuned, or found in their file; wisdom is the process's, and so is this
_loaded: dict[str, tuple[int, int]] = {}   # files read, with their time and size


# ---------------------------------------------------------------------------------------------- how to tune

@dataclass(frozen=True)
class TunerConfig:
    """How Grouped3D tunes. seconds: the time to spend on one shape, its forward and backward problems together; each candidate runs once
    whatever the limit. progress: a bar on stderr; None shows it where stderr is a terminal.

        >>> weft.Grouped3D(8, 8, 3, groups=8, tuner_config=weft.TunerConfig(seconds=0.5, progress=False)).tuner_config.seconds
        0.5
    """

    seconds: float = 8.0
    progress: Optional[bool] = None

    def __post_init__(self) -> None:
        check_seconds("seconds", self.seconds)
        if self.progress is not None and not isinstance(self.progress, bool):
            raise TypeError(f"progress: is {self.progress!r}, allowed: True, False or None")


def _read_config(config: Any) -> TunerConfig:
    if config is None:
        return TunerConfig()
    if isinstance(config, TunerConfig):
        return config
    if not isinstance(config, Mapping):
        raise TypeError(f"tuner_config: is {config!r}, allowed: a TunerConfig, a dict with some of its fields, or None")
    names = [f.name for f in fields(TunerConfig)]
    for name in config:
        if name not in names:
            raise ValueError(f"tuner_config: has {name!r}, allowed: {', '.join(names)}")
    return TunerConfig(**config)


# ---------------------------------------------------------------------------------------------- the file

def _check_file(cache_file: Any, must_exist: bool) -> str:
    try:
        name = os.fspath(cache_file)
    except TypeError:
        name = None
    if not isinstance(name, str) or not name:
        raise TypeError(f"cache_file: is {cache_file!r}, allowed: the path of a file")
    if must_exist and not os.path.isfile(name):
        raise FileNotFoundError(f"cache_file: {name!r} is missing, allowed with from_cache=True: a file that from_cache=False has stored")
    folder = os.path.dirname(os.path.abspath(name))
    if not os.path.isdir(folder):
        raise FileNotFoundError(f"cache_file: is {name!r}, allowed: a file in a folder that exists")
    return name


def _load(name: str) -> None:
    """Read the file, unless it was read before and did not change since."""
    _check_file(name, True)
    state = os.stat(name)
    now = (state.st_mtime_ns, state.st_size)
    if _loaded.get(os.path.abspath(name)) == now:
        return
    report = backends.wisdom.load(name)
    if report["bad_lines"] and not report["entries"] + report["other_machines"]:
        raise RuntimeError(f"cache_file: none of the {report['bad_lines']} lines of {name!r} can be read, allowed: a file that from_cache=False has stored")
    _loaded[os.path.abspath(name)] = now


# ---------------------------------------------------------------------------------------------- the module

def _check_kernel(K: Any) -> None:
    some = K if isinstance(K, (tuple, list)) else [K] * 3
    whole = all(isinstance(k, int) and not isinstance(k, bool) for k in some)
    if not whole or len(some) != 3 or min(some) < 1:
        raise (ValueError if whole else TypeError)(f"K: is {K!r}, allowed: an int, or 3 of them, of 1 or more")


class Grouped3D(Conv3d):
    """3D convolution of I into C channels with kernel K, for which the fastest kernels of weft are searched.

    from_cache=False: the first forward of each shape measures the kernels of its forward and backward problems, within the seconds of
    tuner_config (a TunerConfig, or a dict of its fields), and stores the times in cache_file. The file is wisdom as weft.backends.wisdom
    writes it: entries are added to what it holds, those of other machines stay, and many processes may share it.
    from_cache=True: the file is read, nothing is measured, and a shape that it has no entry for is an error.

    Everything else is Conv3d: any groups, kernel, stride, padding and dilation, and a bias if asked for. A state_dict with W, of
    (groups, C/groups, I/groups, kT, kH, kW), is loaded too. Within torch.compile, torch.func and CUDA graphs nothing is measured: run a
    forward of the shape before.

        >>> net = weft.Grouped3D(8, 8, 3, groups=8, cache_file="/tmp/weft-example.wisdom", tuner_config={"seconds": 0.1})
        >>> net(torch.randn(1, 8, 9, 9, 9)).shape
        torch.Size([1, 8, 7, 7, 7])
        >>> weft.Grouped3D(8, 8, 3, groups=8, from_cache=True, cache_file="/tmp/weft-example.wisdom")(torch.randn(1, 8, 9, 9, 9)).shape
        torch.Size([1, 8, 7, 7, 7])
    """

    def __init__(self, I: int, C: int, K: Size, groups: int = 1, padding: Padding = 0, bias: bool = False, from_cache: bool = False,   # noqa: E741
                 cache_file: Path = "tc_group3d.pt", tuner_config: Union[TunerConfig, Mapping[str, Any], None] = None, *, stride: Size = 1,
                 dilation: Size = 1, device: Any = None, dtype: Any = None) -> None:
        check_ints(1, I=I, C=C, groups=groups)
        if I % groups or C % groups:
            raise ValueError(f"groups: is {groups}, allowed: a divisor of I, {I}, and of C, {C}")
        _check_kernel(K)
        check_flags(bias=bias, from_cache=from_cache)
        config, file = _read_config(tuner_config), _check_file(cache_file, from_cache)
        if from_cache:
            _load(file)
        super().__init__(I, C, K, stride, padding, dilation, groups, bias, device=device, dtype=dtype)
        self.from_cache, self.cache_file, self.tuner_config = from_cache, file, config

    @property
    def W(self) -> Tensor:
        """The weights as (groups, C/groups, I/groups, kT, kH, kW): the same memory.

            >>> weft.Grouped3D(8, 16, 3, groups=4).W.shape
            torch.Size([4, 4, 2, 3, 3, 3])
        """
        return self.weight.view(self.groups, -1, *self.weight.shape[1:])

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}{', from_cache=True' if self.from_cache else ''}, cache_file={self.cache_file!r}"

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, local_metadata: Any, strict: bool, missing_keys: list[str],
                              unexpected_keys: list[str], error_msgs: list[str]) -> None:
        if prefix + "W" in state_dict and prefix + "weight" not in state_dict:
            given = state_dict.pop(prefix + "W")
            state_dict[prefix + "weight"] = given.reshape(self.weight.shape) if given.shape == self.W.shape else self.weight.detach()
            if given.shape != self.W.shape:
                error_msgs.append(f"{prefix}W: has the shape {list(given.shape)}, allowed: {list(self.W.shape)}")
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Optional[Tensor]) -> Tensor:
        if not torch.compiler.is_compiling() and _can_run(input):
            key = self._key(input, weight, bias)
            if key not in _ready:
                check_tensors("conv3d", 3, input, weight, bias)
                self._search(input, weight, bias)
                _ready.add(key)
        return super()._conv_forward(input, weight, bias)

    def _key(self, *tensors: Optional[Tensor]) -> tuple:
        """What a problem depends on, and the file."""
        seen = [None if t is None else (t.dtype, t.shape, t.stride(), t.data_ptr() % 16) for t in tensors]
        return (os.path.abspath(self.cache_file), self.from_cache, self.stride, self.padding, self.dilation, self.groups, tensors[0].device,
                autocast_dtype(tensors[0].device), torch.get_num_threads(), *seen)

    def _runs(self, input: Tensor, weight: Tensor, bias: Optional[Tensor]) -> Iterator[tuple[str, Callable[[], Any]]]:
        """The problems of one shape, each as a name and a call that runs it. The result stands for its own gradient."""
        x, w, b = (None if t is None else t.detach() for t in lowered(input, weight, bias))
        where = (*geometry(3, self.stride, self.padding, self.dilation, w), self.groups)
        y = []
        yield "forward", lambda: y.append(call(CONV, x, w, b, *where, *check_activation(self.act, self.clip)))
        for name, want in _GRADIENTS:
            bits = want | (WANT_BIAS if b is not None and want & WANT_WEIGHT else 0)
            yield name, lambda: call(CONV_BACKWARD, y[0], x, w, *where, False, bits, x.dtype if b is None else b.dtype)   # noqa: B023

    def _search(self, *tensors: Optional[Tensor]) -> None:
        """Measure and store, or look for what is stored."""
        with torch.no_grad():
            if self.from_cache:
                _load(self.cache_file)
                self._find(*tensors)
                return
            bar = Bar(f"{type(self).__name__} {sizes(tensors[0].shape)}", _PROBLEMS, self.tuner_config.progress)
            try:
                with backends.flags(benchmark=True, wisdom_only=False, measure_seconds=self.tuner_config.seconds / _PROBLEMS):
                    for done, (name, run) in enumerate(self._runs(*tensors)):
                        bar.step(done, name)
                        run()
                backends.wisdom.save(self.cache_file)
                bar.step(_PROBLEMS, f"stored in {self.cache_file}")
            finally:
                bar.close("\n")

    def _find(self, *tensors: Optional[Tensor]) -> None:
        try:
            with backends.flags(wisdom_only=True):
                for _, run in self._runs(*tensors):
                    run()
        except RuntimeError as error:
            _, found, problem = str(error).partition("no wisdom for ")
            if not found:
                raise
            why = f"cache_file: {self.cache_file!r} has no entry for {problem}; from_cache=False tunes it and stores it there"
        else:
            return
        raise RuntimeError(why)


def _can_run(input: Tensor) -> bool:
    """Real data of a type that weft has kernels for, outside of transforms and of CUDA graphs."""
    return (type(input) in (Tensor, torch.nn.Parameter) and input.device.type in ("cpu", "cuda") and input.numel() > 0 and not foreign(input)
            and not in_transform() and not (input.is_cuda and torch.cuda.is_current_stream_capturing()))


Conv3DTC = Grouped3D
