"""The C library by ctypes: run a problem text on torch tensors. PyTorch is then the independent witness of the reference.

    out = run("relu2d:fwd:f32:nchw:n1c2h3w4", src=x, dst=torch.empty_like(x))["dst"]
"""
import ctypes
import os
import pathlib
import re

import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
DTYPES = {torch.float32: "f32", torch.float64: "f64", torch.float16: "f16", torch.bfloat16: "bf16",
          torch.uint8: "u8", torch.bool: "u8", torch.int32: "i32", torch.int64: "i64"}
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
# Error of one rounding to the type, relative to the largest value compared; f32 and f64 sums are longer in torch than in the reference.
TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-11, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def _roles():
    header = (ROOT / "include" / "weft.h").read_text()
    block = header[header.index("#define WEFT_ROLE_LIST"):header.index("typedef enum weft_role")]
    return re.findall(r"X\(\w+, (\w+)\)", block)


ROLES = _roles()


class Args(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("packed", ctypes.c_void_p), ("ptr", ctypes.c_void_p * 64)]


class Tensor(ctypes.Structure):
    _fields_ = [("role", ctypes.c_int16), ("dtype", ctypes.c_int16), ("layout", ctypes.c_int16), ("rank", ctypes.c_int16), ("align", ctypes.c_int32),
                ("derived", ctypes.c_int32), ("dims", ctypes.c_int64 * 8), ("strides", ctypes.c_int64 * 8)]


class Step(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("reserved", ctypes.c_int32), ("lo", ctypes.c_double), ("hi", ctypes.c_double)]


class Problem(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("words", ctypes.c_int32 * 6), ("sizes", ctypes.c_int64 * 22), ("attr", ctypes.c_int64 * 12),
                ("real", ctypes.c_double * 12), ("out", ctypes.c_int64 * 3), ("nsteps", ctypes.c_int32), ("ntensors", ctypes.c_int32),
                ("step", Step * 4), ("tensor", Tensor * 16)]


class PlanOpts(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("mode", ctypes.c_int32), ("reserved", ctypes.c_int32),
                ("workspace_limit", ctypes.c_size_t), ("kernel", ctypes.c_char_p)]


def _load():
    path = os.environ.get("WEFT_C_LIBRARY") or str(pathlib.Path(os.environ.get("WEFT_BUILD", ROOT / "build")) / "libweft.so")
    lib = ctypes.CDLL(path)
    lib.weft_last_error.restype = ctypes.c_char_p
    lib.weft_plan_workspace_bytes.restype = ctypes.c_size_t
    lib.weft_plan_kernel_name.restype = ctypes.c_char_p
    for name in ("weft_plan_workspace_bytes", "weft_plan_kernel_name", "weft_plan_release"):
        getattr(lib, name).argtypes = [ctypes.c_void_p]
    lib.weft_execute.argtypes = [ctypes.c_void_p, ctypes.POINTER(Args), ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    return lib


LIB = _load()
_ctx = ctypes.c_void_p()


class WeftError(RuntimeError):
    pass


def check(status):
    if status:
        raise WeftError(LIB.weft_last_error().decode())


def context():
    if not _ctx:
        check(LIB.weft_ctx_create(ctypes.byref(_ctx), None))
    return _ctx


def parse(text):
    """The completed problem as an opaque buffer; raises WeftError with the library's text."""
    problem = ctypes.create_string_buffer(ctypes.sizeof(Problem))
    Problem.from_buffer(problem).size = ctypes.sizeof(Problem)
    check(LIB.weft_problem_parse(problem, text.encode()))
    return problem


def roles(text):
    """What the problem takes and gives: role to (dtype, dims, strides), dims of data in full: n c d h w."""
    problem, types = Problem.from_buffer(parse(text)), [None, *dict.fromkeys(dtype for dtype in DTYPES if dtype != torch.bool)]
    assert problem.size == ctypes.sizeof(Problem)
    return {ROLES[t.role]: (types[t.dtype], tuple(t.dims[:t.rank]), tuple(t.strides[:t.rank])) for t in problem.tensor[:problem.ntensors]}


def operators():
    """The names of WEFT_OP_LIST."""
    header = (ROOT / "include" / "weft.h").read_text()
    return re.findall(r"X\(\w+, (\w+)\)", header[header.index("#define WEFT_OP_LIST"):header.index("typedef enum weft_op ")])


def run(text, kernel=None, **tensors):
    """Execute the problem on tensors given by role, of the CPU or, for an "@cuda" text, of a GPU (on its default stream: synchronize);
    their memory must be what the text says. Returns the tensors."""
    problem = parse(text)
    plan = ctypes.c_void_p()
    opts = PlanOpts(ctypes.sizeof(PlanOpts), 0, 0, 2**64 - 1, kernel.encode() if kernel else None)
    check(LIB.weft_plan_create(ctypes.byref(plan), context(), problem, ctypes.byref(opts)))
    try:
        args = Args(ctypes.sizeof(Args))
        for role, tensor in tensors.items():
            args.ptr[ROLES.index(role)] = tensor.data_ptr()
        need = LIB.weft_plan_workspace_bytes(plan)
        room = torch.empty(need + 64, dtype=torch.uint8, device=next(iter(tensors.values())).device)
        at = (room.data_ptr() + 63) // 64 * 64
        check(LIB.weft_execute(plan, ctypes.byref(args), at, need, None))
    finally:
        LIB.weft_plan_release(plan)
    return tensors


def layout(x, last):
    """x in that memory format, dense."""
    formats = {3: torch.contiguous_format, 4: torch.channels_last, 5: torch.channels_last_3d}
    if not last:
        return x.contiguous()
    if x.dim() not in (4, 5):
        return x.movedim(1, -1).contiguous().movedim(-1, 1)
    return x.contiguous(memory_format=formats[x.dim()])


FORMS = ["first", "last", "strided"]


def arrange(x, form):
    """x in one of FORMS; strided: the axes the other way round in memory and a gap behind every element."""
    if form != "strided":
        return layout(x, form == "last")
    room = torch.full((*reversed(x.shape), 2), 7, dtype=x.dtype)
    return room[..., 0].permute(*reversed(range(x.dim()))).copy_(x)


def layouts(form, **tensors):
    """The layout part of a text for tensors given by role, as arrange left them; vectors are not named."""
    names = [f",{role}=[{'.'.join(map(str, x.stride()))}]" for role, x in tensors.items() if x.dim() > 2]
    rank = max(x.dim() for x in tensors.values()) - 2
    return tag(rank, form == "last") + ("".join(names) if form == "strided" else "")


def far(shape, dtype):
    """Zeros whose second image lies 2^31 elements behind the first; only the pages in use take memory."""
    inner = torch.empty(shape[1:]).stride()
    return torch.empty(2**31 + shape[0] * inner[0] * shape[1], dtype=dtype).as_strided(shape, (2**31, *inner)).zero_()


def slope(f, x, v, h=1e-5):
    """The derivative of f at x along v by differences: the error is of order h^2."""
    return (f(x + h * v) - f(x - h * v)) / (2 * h)


def gaps(x):
    """x in memory with the first two axes swapped and a gap behind every element."""
    room = torch.full((x.shape[1], x.shape[0], *x.shape[2:], 2), 9, dtype=x.dtype)
    view = room.transpose(0, 1)[..., 0]
    return view.copy_(x)


def strided(**tensors):
    """The part of the layouts that gives the strides of these roles: ,src=[64.16.4.1]"""
    return "".join(f",{role}=[{'.'.join(map(str, x.stride()))}]" for role, x in tensors.items())


def tag(rank, last):
    return {1: ("ncw", "nwc"), 2: ("nchw", "nhwc"), 3: ("ncdhw", "ndhwc")}[rank][bool(last)]


def sizes(shape):
    """n c [d] [h] w as text."""
    letters = {3: "ncw", 4: "nchw", 5: "ncdhw"}[len(shape)]
    return "".join(f"{letter}{size}" for letter, size in zip(letters, shape))


def close(got, want, dtype, factor=1.0):
    """Compared in double, relative to the largest finite value wanted; NaN and infinity at the same places."""
    got, want = got.double(), want.double()
    assert got.shape == want.shape, (got.shape, want.shape)
    torch.testing.assert_close(torch.isnan(got), torch.isnan(want))
    assert torch.equal(torch.isinf(got), torch.isinf(want))
    finite = torch.isfinite(want)
    scale = want[finite].abs().max().item() if finite.any() else 0.0
    error = (got - want)[finite].abs().max().item() if finite.any() else 0.0
    bound = factor * TOLERANCE[dtype] * max(scale, 1e-30)
    assert error <= bound, f"error {error:.3g}, bound {bound:.3g}"
