"""Finding and loading libweft_torch.so, the C binding that registers weft's operators with PyTorch."""
from __future__ import annotations

import ctypes
import json
import os
import sys
import warnings
from functools import lru_cache
from pathlib import Path

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", message="Failed to initialize NumPy")   # weft does not need it
    import torch

_NAME = "libweft_torch.so"


def _candidates() -> list[Path]:
    """Where the library may lie, best first: named by WEFT_LIBRARY, installed beside this file, built in the tree."""
    named = os.environ.get("WEFT_LIBRARY")
    if named:
        return [Path(named)]
    here = Path(__file__).resolve().parents[1]
    return [here / _NAME, here.parents[1] / "build" / _NAME]


def _find_nvrtc() -> str | None:
    """The compiler library that this PyTorch brings for CUDA; None where it brings none or the user chose one."""
    if torch.version.cuda is None or os.environ.get("WEFT_NVRTC"):
        return None
    major = torch.version.cuda.split(".")[0]
    roots = [Path(torch.__file__).parent / "lib"]
    for site in dict.fromkeys([str(Path(torch.__file__).parents[1]), *sys.path]):
        roots += [Path(site) / "nvidia" / f"cu{major}" / "lib", Path(site) / "nvidia" / "cuda_nvrtc" / "lib"]
    for root in roots:
        for path in sorted(root.glob("libnvrtc*.so*")):
            if "builtins" not in path.name and ".alt." not in path.name:
                return str(path)
    return None


def _declare(lib: ctypes.CDLL) -> None:
    text, size, count = ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int64
    signatures = {
        "weft_torch_init": (text, [text]),
        "weft_torch_version": (text, []),
        "weft_torch_shapes_on_cuda": (None, [ctypes.c_bool]),
        "weft_torch_asks": (ctypes.c_int32, [ctypes.c_bool]),
        "weft_torch_error": (text, []),
        "weft_torch_kernels": (text, []),
        "weft_torch_keep_pages": (ctypes.c_bool, [ctypes.c_bool]), "weft_torch_scratch": (ctypes.c_int64, [ctypes.c_bool]),
        "weft_torch_problem": (count, [text, text, text, size]),
        "weft_torch_describe": (count, [text, size]),
        "weft_torch_set": (text, [ctypes.c_int32, ctypes.c_int32, ctypes.c_int32, ctypes.c_uint32, size, text, ctypes.c_double]),
        "weft_torch_kernel_name": (text, [size]),
        "weft_torch_wisdom": (text, [text, text, ctypes.POINTER(count)]),
        "weft_torch_move": (ctypes.c_uint64, [ctypes.c_void_p, count, ctypes.c_void_p, count, ctypes.c_int]),
        "weft_torch_seat_register": (text, [text, ctypes.c_int32, ctypes.c_bool]),
        "weft_torch_seat_unboxed": (ctypes.c_int32, []),
        "weft_torch_entry_open": (None, [ctypes.c_int32]),
        "weft_torch_entry_op": (ctypes.c_int32, [text]),
        "weft_torch_seat_switch": (ctypes.c_int32, [ctypes.c_int32, ctypes.c_int32]),
        "weft_torch_seat_state": (ctypes.c_int32, []),
        "weft_torch_seat_math": (ctypes.c_int32, []),
        "weft_torch_seat_bypass": (None, [ctypes.c_int32] * 2),
        "weft_torch_seat_report": (count, [text, size, ctypes.c_int]),
        "weft_torch_bare_ns": (ctypes.c_double, [text]),
        "weft_torch_estimate_ns": (ctypes.c_double, [text]),
        "weft_torch_own_ns": (ctypes.c_double, [text]),
        "weft_torch_unlearn": (None, []),
        "weft_torch_learn": (ctypes.c_bool, [text, ctypes.c_double, text, ctypes.c_double]),
        "weft_torch_images": (count, []),
        "weft_torch_burn": (ctypes.c_double, [count, text]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments


def _load() -> tuple[ctypes.CDLL, Path]:
    tried = _candidates()
    path = next((p for p in tried if p.is_file()), None)
    if path is None:
        where = ", ".join(str(p) for p in tried)
        raise ImportError(f"weft: {_NAME} is not built; run make, or set WEFT_LIBRARY to its path (looked at: {where})")
    try:
        lib = ctypes.CDLL(str(path))
        _declare(lib)
    except (OSError, AttributeError) as error:
        raise ImportError(f"weft: {path} cannot be loaded: {error}") from error
    nvrtc = _find_nvrtc()
    why = lib.weft_torch_init(nvrtc.encode() if nvrtc else None)
    if why is not None:
        raise ImportError(f"weft: {path} cannot be used with PyTorch {torch.__version__}: {why.decode()}")
    return lib, path


lib, path = _load()


def buffer(size: int) -> ctypes.Array:
    """Room for a text of the C library."""
    return ctypes.create_string_buffer(size)


def version() -> str:
    """The version of the C library."""
    return lib.weft_torch_version().decode()


def last_error() -> str:
    """The text of this thread's last error in the C library."""
    return lib.weft_torch_error().decode()


def kernels() -> str:
    """The kernels that this thread's last operator ran, joined by ' + '."""
    return lib.weft_torch_kernels().decode()


def problem(text: str, passes: str | None = None) -> dict:
    """A problem text, parsed and completed by the C library, in its own or another pass; ValueError with the column if it is wrong."""
    buffer = ctypes.create_string_buffer(1 << 14)
    if lib.weft_torch_problem(text.encode(), passes.encode() if passes else None, buffer, len(buffer)) < 0:
        raise ValueError(last_error())
    return json.loads(buffer.value)


def describe() -> str:
    """The machine and the engines as the C library sees them."""
    buffer = ctypes.create_string_buffer(1 << 14)
    if lib.weft_torch_describe(buffer, len(buffer)) < 0:
        raise RuntimeError(last_error())
    return buffer.value.decode()


def set_config(mode: int, delegate: bool, math: int, verbose: int, workspace_limit: int, pin: str | None, measure_seconds: float) -> None:
    """Tell the C library the settings of weft.backends."""
    why = lib.weft_torch_set(mode, delegate, math, verbose, workspace_limit, pin.encode() if pin else None, measure_seconds)
    if why is not None:
        raise RuntimeError(why.decode())


@lru_cache(maxsize=1)
def kernel_names() -> frozenset[str]:
    """The names of every kernel of weft."""
    names, i = set(), 0
    while (name := lib.weft_torch_kernel_name(i)) is not None:
        names.add(name.decode())
        i += 1
    return frozenset(names)


def wisdom(action: str, path: str | None = None) -> tuple[int, int, int]:
    """load, save, forget or count: how many entries are known, how many lines cannot be read, how many entries are of other machines."""
    report = (ctypes.c_int64 * 3)()
    why = lib.weft_torch_wisdom(action.encode(), path.encode() if path is not None else None, report)
    if why is not None:
        raise (FileNotFoundError if action == "load" and not os.path.exists(path or "") else RuntimeError)(why.decode())
    return tuple(report)   # type: ignore[return-value]
