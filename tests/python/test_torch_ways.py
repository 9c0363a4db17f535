"""The ways of PyTorch's convolution on the CPU, and what the estimates say of each, beside what was measured."""
from __future__ import annotations

import math

import pytest
import torch

from weft._core import library as _library

lib = _library.lib
PEAK = 235.4   # flops a ns of the two cores that the times below are of
CALL = 55.0    # us of a call, about
TIMES = {      # of PyTorch 2.13 on two cores with AVX-512 and BF16, us, by the way that it took by ONEDNN_VERBOSE
    # points
    "conv1d:bwd_data:bf16:ncw:n1c128w2048:o16k1d2": 166, "conv2d:bwd_data:bf16:nchw:n2c24h56w56:o48k1s2d2": 138,
    "conv2d:bwd_data:bf16:nchw:n1c96h32w32:o64k1": 129, "conv2d:bwd_data:bf16:nchw:n1c12h112w112:o12k1d2": 156,
    "conv3d:bwd_data:bf16:ndhwc:n1c96d24h24w24:o16k1d2": 206, "conv2d:bwd_data:bf16:nhwc:n2c48h64w64:o48k1": 147,
    "conv3d:bwd_data:bf16:ndhwc:n8c48d12h12w12:o48k1": 213, "conv2d:bwd_data:f32:nchw:n1c48h56w56:o48k1": 178,
    "conv1d:bwd_data:f32:ncw:n2c160w2048:o320k1": 2673, "conv1d:bwd_data:f32:ncw:n4c256w2048:o256k1d2": 6864,
    "conv3d:bwd_data:f32:ncdhw:n4c64d6h6w6:o128k1": 147, "conv3d:bwd_data:f32:ndhwc:n1c48d32h32w32:o48k1d2": 788,
    "conv2d:bwd_data:f32:nhwc:n1c320h112w112:o640k1s2d2": 6777, "conv3d:bwd_data:f32:ndhwc:n4c320d8h8w8:o64k1": 467,
    "conv2d:bwd_data:f32:nhwc:n8c512h16w16:o512k1d2": 5902, "conv2d:fwd:bf16:nchw:n4c128h64w64:o64k1": 1636, "conv1d:fwd:bf16:ncw:n4c512w32:o512k1s2": 182,
    "conv2d:fwd:bf16:nchw:n1c128h56w56:o16k1s2": 162, "conv2d:fwd:bf16:nchw:n1c512h56w56:o16k1d2": 673, "conv3d:fwd:bf16:ndhwc:n1c96d24h24w24:o16k1d2": 173,
    "conv3d:fwd:bf16:ndhwc:n4c512d8h8w8:o16k1": 138, "conv2d:fwd:bf16:nhwc:n1c256h64w64:o256k1s2": 356, "conv2d:fwd:bf16:nhwc:n2c48h64w64:o48k1": 136,
    "conv1d:fwd:f32:ncw:n4c256w2048:o256k1d2": 6780, "conv3d:fwd:f32:ncdhw:n2c48d16h16w16:o48k1": 324, "conv1d:fwd:f32:ncw:n1c96w2048:o96k1s2": 198,
    "conv2d:fwd:f32:nchw:n4c512h16w16:o512k1s2": 846, "conv2d:fwd:f32:nhwc:n1c512h32w32:o16k1d2": 127, "conv2d:fwd:f32:nhwc:n2c32h64w64:o64k1": 210,
    "conv2d:fwd:f32:nhwc:n1c320h112w112:o640k1s2d2": 6600, "conv2d:fwd:f32:nhwc:n2c128h112w112:o128k1s2": 1202,
    "conv3d:bwd_weights:bf16:ncdhw:n1c512d12h12w12:o16k1s2": 301, "conv3d:bwd_weights:bf16:ncdhw:n1c160d24h24w24:o160k1": 2805,
    "conv2d:bwd_weights:bf16:nchw:n1c48h56w56:o24k1": 160, "conv2d:bwd_weights:bf16:nchw:n1c160h56w56:o16k1s2": 217,
    "conv3d:bwd_weights:bf16:ndhwc:n4c512d8h8w8:o16k1": 228, "conv2d:bwd_weights:bf16:nhwc:n1c256h64w64:o256k1s2": 433,
    "conv3d:bwd_weights:bf16:ndhwc:n1c96d24h24w24:o16k1d2": 281, "conv2d:bwd_weights:bf16:nhwc:n2c48h64w64:o48k1": 182,
    "conv2d:bwd_weights:f32:nchw:n1c256h28w28:o256k1s2d2": 252, "conv2d:bwd_weights:f32:nchw:n8c160h16w16:o16k1": 151,
    "conv2d:bwd_weights:f32:nchw:n1c96h112w112:o8k1d2": 388, "conv3d:bwd_weights:f32:ncdhw:n2c48d16h16w16:o48k1": 320,
    "conv2d:bwd_weights:f32:nhwc:n1c160h56w56:o160k1": 794, "conv3d:bwd_weights:f32:ndhwc:n1c48d32h32w32:o48k1d2": 747,
    "conv2d:bwd_weights:f32:nhwc:n2c128h112w112:o128k1s2": 1223, "conv3d:bwd_weights:f32:ndhwc:n4c96d8h8w8:o192k1": 417,
    # columns
    "conv3d:bwd_data:f32:ncdhw:n1c32d24h24w24:o32k3s2p1": 2025, "conv3d:bwd_data:f32:ncdhw:n1c256d8h8w8:o256k3p1": 12605,
    "conv3d:bwd_data:f32:ncdhw:n1c3d32h32w32:o16k1": 188, "conv2d:bwd_data:f32:nchw:n1c256h7w7:o512k1d2": 131, "conv2d:fwd:f32:nchw:n1c96h14w14:o16k3p1": 159,
    "conv3d:fwd:f32:ncdhw:n1c24d24h24w24:o16k1d2": 273, "conv3d:fwd:f32:ncdhw:n1c32d24h24w24:o32k3s2p1": 1594, "conv1d:fwd:f32:ncw:n1c256w32:o64k7p6d2": 121,
    "conv3d:bwd_weights:f32:ncdhw:n1c24d24h24w24:o16k1d2": 284, "conv2d:bwd_weights:f32:nchw:n1c96h14w14:o16k3p1": 161,
    "conv3d:bwd_weights:f32:ncdhw:n1c32d24h24w24:o32k3s2p1": 1610, "conv3d:bwd_weights:f32:ncdhw:n1c3d16h16w16:o3k3p2d2": 276,
    "conv2d:bwd_weights:f32:nhwc:n1c1024h4w4:o512k3p1": 1237,
    "conv2d:bwd_weights:f32:nhwc:n1c4h56w56:o64k1": 144,
    # depthwise
    "conv2d:bwd_data:bf16:nchw:n1c96h32w32:o96k5p2g96": 144, "conv1d:bwd_data:bf16:ncw:n1c256w512:o256k5p2g256": 122,
    "conv2d:bwd_data:bf16:nhwc:n4c128h56w56:o128k5p2g128": 700, "conv2d:bwd_data:f32:nchw:n4c32h64w64:o32k3p1g32": 267,
    "conv1d:bwd_data:f32:ncw:n2c48w2048:o48k5p2g48": 132, "conv2d:bwd_data:f32:nchw:n4c32h112w112:o32k3s2p1g32": 395,
    "conv1d:bwd_data:f32:ncw:n2c96w2048:o96k7s2p3g96": 166, "conv2d:bwd_data:f32:nhwc:n1c128h64w64:o128k7s2p3g128": 164,
    "conv2d:bwd_data:f32:nhwc:n1c512h64w64:o512k5p2g512": 1078, "conv2d:fwd:bf16:nchw:n8c32h56w56:o32k5s2p2g32": 298,
    "conv2d:fwd:bf16:nchw:n1c512h56w56:o512k7p3g512": 1913, "conv2d:fwd:bf16:nchw:n1c96h112w112:o96k3p2d2g96": 642,
    "conv2d:fwd:bf16:nchw:n8c512h32w32:o512k3s2p2d2g512": 1402, "conv2d:fwd:bf16:nhwc:n1c256h56w56:o256k3p1g256": 138,
    "conv3d:fwd:bf16:ndhwc:n1c24d32h32w32:o24k5p2g24": 1214, "conv2d:fwd:bf16:nhwc:n8c320h28w28:o320k3p2d2g320": 294,
    "conv2d:fwd:f32:nchw:n8c512h16w16:o512k5p4d2g512": 534, "conv1d:fwd:f32:ncw:n1c128w2048:o128k3p2d2g128": 138,
    "conv1d:fwd:f32:ncw:n2c48w2048:o48k5p2g48": 123, "conv2d:fwd:f32:nchw:n8c320h14w14:o320k3s2p1g320": 140,
    "conv2d:fwd:f32:nhwc:n8c128h32w32:o128k3p2d2g128": 232, "conv3d:fwd:f32:ndhwc:n4c160d8h8w8:o160k3p1g160": 154,
    "conv2d:fwd:f32:nhwc:n8c12h112w112:o12k5s2p4d2g12": 177, "conv2d:fwd:f32:nhwc:n2c160h64w64:o160k7p3g160": 906,
    "conv2d:bwd_weights:bf16:nchw:n4c160h56w56:o160k3p1g160": 981, "conv2d:bwd_weights:bf16:nchw:n8c24h112w112:o24k1s2g24": 732,
    "conv2d:bwd_weights:bf16:nhwc:n4c32h112w112:o32k1g32": 163, "conv2d:bwd_weights:f32:nchw:n4c32h112w112:o32k3s2p1g32": 294,
    "conv2d:bwd_weights:f32:nchw:n1c160h64w64:o160k3p1g160": 261, "conv1d:bwd_weights:f32:ncw:n1c512w2048:o512k1g512": 364,
    "conv2d:bwd_weights:f32:nhwc:n1c128h112w112:o128k3p1g128": 391, "conv2d:bwd_weights:f32:nhwc:n1c96h112w112:o96k3s2p1g96": 163,
    # products
    "conv2d:bwd_data:bf16:nchw:n8c12h16w16:o12k3p2d2g2": 173, "conv2d:bwd_data:bf16:nchw:n2c16h56w56:o32k3p2d2g16": 526,
    "conv2d:bwd_data:bf16:nchw:n8c256h16w16:o256k3s2p2d2g256": 1141, "conv2d:bwd_data:bf16:nchw:n2c48h16w16:o96k7s2p6d2g12": 186,
    "conv2d:bwd_data:f32:nchw:n4c64h32w32:o8k3s2p2d2": 397, "conv1d:bwd_data:f32:ncw:n8c48w128:o96k3s2p2d2g2": 143,
    "conv2d:bwd_data:f32:nchw:n4c128h56w56:o256k1g128": 968, "conv3d:bwd_data:f32:ncdhw:n8c8d16h16w16:o4k3s2p2d2g2": 520,
    "conv3d:fwd:bf16:ncdhw:n1c64d24h24w24:o32k3p2d2g32": 8148, "conv2d:fwd:bf16:nchw:n8c8h112w112:o16k1d2g4": 554,
    "conv2d:fwd:bf16:nchw:n8c48h32w32:o24k1g12": 277, "conv2d:fwd:bf16:nchw:n8c12h32w32:o16k3s2p2d2g2": 146,
    "conv3d:fwd:f32:ncdhw:n8c8d12h12w12:o8k3p1g4": 1133, "conv1d:fwd:f32:ncw:n8c32w2048:o8k7s2p3g4": 730, "conv1d:fwd:f32:ncw:n1c64w2048:o8k3p2d2g4": 182,
    "conv2d:fwd:f32:nchw:n8c24h64w64:o24k3s2p2d2g4": 795, "conv1d:bwd_weights:bf16:ncw:n1c512w512:o8k1s2g2": 124,
    "conv3d:bwd_weights:bf16:ncdhw:n2c64d24h24w24:o64k3s2p1g64": 2926, "conv2d:bwd_weights:bf16:nchw:n8c128h14w14:o128k7s2p6d2": 2741,
    "conv3d:bwd_weights:bf16:ncdhw:n1c96d12h12w12:o16k3p2d2": 2167, "conv3d:bwd_weights:bf16:ndhwc:n1c8d32h32w32:o16k7s2p6d2g2": 6280,
    "conv3d:bwd_weights:bf16:ndhwc:n1c64d16h16w16:o128k3p2d2g64": 4408, "conv2d:bwd_weights:bf16:nhwc:n1c32h64w64:o32k5s2p4d2": 603,
    "conv2d:bwd_weights:bf16:nhwc:n2c96h63w63:o48k5s2p4d2g48": 2854, "conv3d:bwd_weights:f32:ncdhw:n8c12d32h32w32:o16k3s2p2d2": 6236,
    "conv2d:bwd_weights:f32:nchw:n4c320h14w14:o640k3p2d2g320": 1146, "conv2d:bwd_weights:f32:nchw:n4c80h55w55:o160k3s2p2d2g2": 4059,
    "conv2d:bwd_weights:f32:nchw:n1c16h64w64:o32k5p2g16": 791, "conv2d:bwd_weights:f32:nhwc:n8c12h112w112:o12k5s2p4d2g12": 3696,
    "conv3d:bwd_weights:f32:ndhwc:n8c3d12h12w12:o3k7p6d2": 5013, "conv3d:bwd_weights:f32:ndhwc:n1c8d16h16w16:o16k3p2d2g2": 457,
    "conv2d:bwd_weights:f32:nhwc:n1c24h112w112:o16k3s2p2d2": 489,
    # blocks
    "conv1d:bwd_data:bf16:ncw:n8c128w512:o8k3p1g2": 208, "conv3d:bwd_data:bf16:ncdhw:n2c320d8h8w8:o320k3p1g20": 811,
    "conv1d:bwd_data:bf16:ncw:n2c320w512:o320k7p6d2": 3675, "conv2d:bwd_data:bf16:nchw:n4c24h112w112:o48k1g2": 792,
    "conv3d:bwd_data:bf16:ndhwc:n2c16d32h32w32:o16k3p1g16": 6456, "conv2d:bwd_data:bf16:nhwc:n1c160h56w56:o160k3p2d2g160": 1095,
    "conv2d:bwd_data:bf16:nhwc:n8c160h32w32:o160k1g10": 296, "conv3d:bwd_data:bf16:ndhwc:n8c24d16h16w16:o24k1g4": 151,
    "conv2d:bwd_data:f32:nchw:n1c8h112w112:o64k5p2": 3163, "conv2d:bwd_data:f32:nchw:n2c48h63w63:o96k3s2p1g6": 313,
    "conv2d:bwd_data:f32:nchw:n1c24h112w112:o48k1g6": 303, "conv3d:bwd_data:f32:ncdhw:n1c256d16h16w16:o8k3p2d2": 3605,
    "conv3d:bwd_data:f32:ndhwc:n1c512d8h8w8:o256k1d2g4": 269, "conv2d:bwd_data:f32:nhwc:n2c64h112w112:o64k1s2g4": 282,
    "conv2d:bwd_data:f32:nhwc:n8c96h7w7:o192k3p1g96": 209, "conv3d:bwd_data:f32:ndhwc:n1c160d16h16w16:o320k5p4d2g160": 19953,
    "conv1d:fwd:bf16:ncw:n2c64w255:o320k3s2p1g2": 120, "conv3d:fwd:bf16:ncdhw:n4c160d4h4w4:o8k4p4d2": 217, "conv2d:fwd:bf16:nchw:n1c4h112w112:o8k7p6d2": 292,
    "conv1d:fwd:bf16:ncw:n8c256w512:o256k3p1": 4421, "conv3d:fwd:bf16:ndhwc:n1c256d12h12w12:o256k3s2p2d2g256": 561,
    "conv2d:fwd:bf16:nhwc:n8c128h32w32:o256k3p2d2g128": 3188, "conv3d:fwd:bf16:ndhwc:n1c160d16h16w16:o80k1g2": 216,
    "conv3d:fwd:bf16:ndhwc:n8c3d24h24w24:o6k3p1g3": 2294, "conv2d:fwd:f32:nchw:n2c16h56w56:o16k3p1": 258, "conv2d:fwd:f32:nchw:n1c16h112w112:o8k7s2p6d2": 430,
    "conv1d:fwd:f32:ncw:n1c320w2048:o320k3p1g20": 592, "conv2d:fwd:f32:nchw:n1c48h112w112:o96k7p6d2g3": 9320,
    "conv3d:fwd:f32:ndhwc:n4c4d32h32w32:o4k3p2d2g4": 2886, "conv2d:fwd:f32:nhwc:n4c320h32w32:o640k3s2p2d2g320": 1086,
    "conv2d:fwd:f32:nhwc:n4c256h16w16:o256k1d2g4": 208, "conv2d:fwd:f32:nhwc:n8c16h64w64:o32k3s2p1g16": 340,
    "conv1d:bwd_weights:bf16:ncw:n8c128w2048:o128k3p1g2": 3913, "conv1d:bwd_weights:bf16:ncw:n1c320w512:o160k3p2d2g10": 226,
    "conv2d:bwd_weights:bf16:nchw:n1c128h56w56:o128k5p2g2": 3571, "conv3d:bwd_weights:bf16:ncdhw:n1c64d12h12w12:o64k7p3g4": 2581,
    "conv3d:bwd_weights:bf16:ndhwc:n4c48d16h16w16:o48k5p2g12": 10188, "conv3d:bwd_weights:bf16:ndhwc:n4c16d8h8w8:o16k3p1": 153,
    "conv2d:bwd_weights:bf16:nhwc:n8c16h28w28:o8k3p2d2": 127, "conv2d:bwd_weights:bf16:nhwc:n8c32h56w56:o16k3s2p1g4": 347,
    "conv3d:bwd_weights:f32:ncdhw:n2c48d8h8w8:o48k3s2p1": 177, "conv3d:bwd_weights:f32:ncdhw:n8c64d4h4w4:o128k3p1g2": 546,
    "conv1d:bwd_weights:f32:ncw:n1c128w2048:o64k3p1g4": 247, "conv3d:bwd_weights:f32:ncdhw:n2c32d24h24w24:o32k7s2p3g2": 6033,
    "conv3d:bwd_weights:f32:ndhwc:n1c32d8h8w8:o32k3p1g2": 151, "conv2d:bwd_weights:f32:nhwc:n1c8h112w112:o16k3p1g8": 226,
    "conv2d:bwd_weights:f32:nhwc:n4c256h14w14:o16k7p6d2g2": 1183, "conv3d:bwd_weights:f32:ndhwc:n2c4d24h24w24:o4k3p1g4": 568,
    # strided
    "conv3d:bwd_data:bf16:ncdhw:n1c96d24h24w24:o16k5s2p2": 3028, "conv2d:bwd_data:bf16:nchw:n4c128h16w16:o64k1s2": 161,
    "conv1d:bwd_data:bf16:ncw:n1c64w512:o128k3s2p1g2": 126, "conv3d:bwd_data:bf16:ncdhw:n2c24d32h32w32:o12k1s2": 1021,
    "conv2d:bwd_data:bf16:nhwc:n1c256h64w64:o256k1s2": 455, "conv3d:bwd_data:bf16:ndhwc:n4c96d16h16w16:o96k1s2": 376,
    "conv3d:bwd_data:f32:ncdhw:n2c320d11h11w11:o320k3s2p1": 12608, "conv3d:bwd_data:f32:ncdhw:n1c96d4h4w4:o96k3s2p1g2": 144,
    "conv1d:bwd_data:f32:ncw:n4c512w32:o64k5s2p2": 306, "conv2d:bwd_data:f32:nchw:n4c32h28w28:o32k1s2": 167,
    # turned
    "conv3d:fwd:bf16:ncdhw:n8c64d12h12w12:o64k1g64": 565, "conv3d:fwd:f32:ncdhw:n2c96d6h6w6:o96k5s2p2g96": 123,
    "conv3d:fwd:f32:ncdhw:n1c160d12h12w12:o160k3p1g160": 345,
    # padding beyond oneDNN's tile, blocks that are not full, groups of any width
    "conv2d:fwd:f32:nchw:n1c64h40w40:o64k3p7d7g64": 314, "conv2d:fwd:f32:nchw:n1c64h40w40:o64k15p6g64": 302,
    "conv2d:fwd:f32:nchw:n2c100h40w40:o100k3p1g100": 323, "conv2d:bwd_data:f32:nchw:n2c237h40w40:o237k4p1g237": 654,
    "conv2d:fwd:f32:nchw:n1c96h56w56:o96k3p1g8": 759, "conv2d:bwd_data:f32:nchw:n1c80h56w56:o80k3p1g4": 1025,
    "conv2d:fwd:f32:nhwc:n2c40h72w72:o40k2g8": 374, "conv2d:fwd:f32:nhwc:n1c352h30w30:o352k4d2g16": 1100,
    "conv2d:fwd:bf16:nhwc:n2c288h85w85:o288k2g16": 2700,
}


def estimate(problem):
    return lib.weft_torch_estimate_ns(f"{problem}@cpu".encode()) / 0.9   # PyTorch is given a tenth


@pytest.fixture(autouse=True)
def constants():
    """Nothing measured here counts, and two threads are asked for."""
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    lib.weft_torch_unlearn()
    yield
    torch.set_num_threads(threads)


def speeds():
    """Flops and bytes a ns of this machine, as the estimates have them."""
    dense, plain = "conv2d:fwd:f32:nchw:n32c256h56w56:o256k3p1@cpu", "relu2d:fwd:f32:nchw:n32c256h56w56@cpu"
    return _library.problem(dense)["flops"] / lib.weft_torch_bare_ns(dense.encode()), moved(plain) / lib.weft_torch_bare_ns(plain.encode())


def moved(problem):
    """Bytes, each tensor once."""
    size = {"f32": 4, "bf16": 2}
    return sum(math.prod(t["dims"]) * size[t["dtype"]] for t in _library.problem(problem)["tensors"].values())


def test_what_pytorch_takes():
    """Within a third, of problems of every way, pass, type and layout; but for a call, time goes with the machine's peak, and is no less than it takes to
    move the tensors, twice where they are put in another order."""
    (peak, band), dots, wrong = speeds(), "avx512bf16" in _library.describe(), []
    for problem, us in TIMES.items():
        if ":bf16:" in problem and not dots:
            continue
        share = 0.9 if any(f":{layout}:" in problem for layout in ("nwc", "nhwc", "ndhwc")) else 0.45
        expected = CALL + max((us - CALL) * PEAK / peak, moved(f"{problem}@cpu") / band / share / 1e3)
        if abs(math.log2(estimate(problem) / 1e3 / expected)) > 0.45:
            wrong.append((problem, round(estimate(problem) / 1e3), round(expected)))
    assert not wrong, wrong


@pytest.mark.parametrize("sizes", ["conv2d:{}:f32:nchw:n4c64h28w28:o64k3p1", "conv2d:{}:f32:nchw:n4c64h28w28:o64k9p4g64", "conv2d:{}:bf16:nhwc:n4c64h28w28:o32k1",
                                   "conv3d:{}:f32:ncdhw:n2c16d12h12w12:o16k3s2p1"])
def test_both_gradients_take_the_time_of_each(sizes):
    assert estimate(sizes.format("bwd")) == pytest.approx(estimate(sizes.format("bwd_data")) + estimate(sizes.format("bwd_weights")), rel=1e-6)


def work(problem):
    """Without the cost of a call: what one more image takes."""
    one, two = (estimate(problem.format(n)) for n in (8, 16))
    return (two - one) / 8


@pytest.mark.parametrize("dtype, slower", [("f16", 20), ("bf16", 5)])
def test_16_bits_without_dot_products(dtype, slower):
    if dtype == "bf16" and "avx512bf16" in _library.describe():
        pytest.skip("this CPU has dot products of bf16")
    halves, floats = (work(f"conv3d:fwd:{t}:ncdhw:n{{}}c16d16h16w16:o256k3p1") for t in (dtype, "f32"))
    assert 0.5 * slower * floats < halves <= slower * floats, "its bytes are half as many"


def test_f64_goes_by_columns():
    """oneDNN has none of it."""
    wide, floats = (estimate(f"conv2d:fwd:{t}:nchw:n8c64h56w56:o64k3p1") for t in ("f64", "f32"))
    assert wide > 3 * floats


@pytest.mark.parametrize("small, large", [
    ("conv2d:fwd:f32:nchw:n1c16h35w36:o16k3p1", "conv2d:fwd:f32:nchw:n1c16h36w36:o16k3p1"),
    ("conv3d:fwd:f32:ncdhw:n1c8d53h48w4:o8k3p1", "conv3d:fwd:f32:ncdhw:n1c8d54h48w4:o8k3p1"),
    ("conv2d:fwd:f32:nchw:n1c16h8w8:o16k3p1", "conv2d:fwd:f32:nchw:n2c16h8w8:o16k3p1"),
    ("conv2d:fwd:f32:nchw:n1c16h8w8:o16k3p1", "conv2d:fwd:f32:nchw:n1c16h8w8:o16k3p1g2"),
    ("conv2d:fwd:f32:nchw:n1c16h8w8:o16k3p1", "conv2d:fwd:f32:nchw:n1c16h8w8:o16k4p1"),
    ("conv2d:fwd:f32:nchw:n1c16h8w8:o16k3p1", "conv2d:fwd:bf16:nchw:n1c16h8w8:o16k3p1")])
def test_small_single_images_stay_with_pytorch(small, large):
    """Their call costs a tenth of oneDNN's. Four of a volume's sizes are counted."""
    call = estimate("conv2d:fwd:f32:nchw:n1c1h1w1:o1k1")
    assert call < 1e4
    if ":bf16:" in large and "avx512bf16" not in _library.describe():
        assert estimate(large) > 3e4
    else:
        assert estimate(large) - estimate(small) > 2e4 or estimate(large) < estimate(small), "not the same way"


def test_a_single_thread_keeps_plain_1x1():
    problem = "conv2d:fwd:f32:nchw:n8c64h4w4:o64k1"
    others = [problem.replace("k1", "k1s2"), problem.replace("k1", "k1d2"), problem.replace("n8", "n16"), problem.replace("f32", "f16")]
    assert estimate(problem) > 5e4
    torch.set_num_threads(1)
    assert estimate(problem) < 5e4 and all(estimate(other) > 5e4 for other in others)


def test_taps_outside_of_the_image_are_not_counted():
    """A window of 7 on a plane of 4 lies on it by half: (4 + 4 + 4 + 4) of 28 taps a side."""
    inside, hanging = (estimate(f"conv2d:fwd:f32:nchw:n64c256h{size}w{size}:o256k7p{pad}") for size, pad in ((10, 0), (4, 3)))
    assert hanging < 0.5 * inside


SLOWER = 3
TINY, LARGE, OTHER = ("conv2d:fwd:f32:{}:n1c%dh%dw%d:o%dk13p6g%d" % v for v in ((8, 24, 24, 8, 8), (64, 28, 28, 64, 64), (32, 64, 64, 32, 32)))


def learn(tiny, tiny_ns, large, large_ns):
    return lib.weft_torch_learn(f"{tiny}@cpu".encode(), tiny_ns, f"{large}@cpu".encode(), large_ns)


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_what_was_measured_counts(layout):
    """A way that is three times slower than by its constants, and the call of the tiny one."""
    tiny, large, other = (p.format(layout) for p in (TINY, LARGE, OTHER))
    before = [estimate(p) for p in (tiny, large, other)]
    unlike = [other.replace("fwd", "bwd_data"), other.replace(":nchw:" if layout == "nchw" else ":nhwc:", ":nhwc:" if layout == "nchw" else ":nchw:"),
              other.replace("k13p6", "k3p1"), other.replace("g32", "")]
    left = [estimate(p) for p in unlike]
    assert learn(tiny, 2e5, large, 2e5 + SLOWER * (before[1] - before[0]))
    after = [estimate(p) for p in (tiny, large, other)]
    assert after[0] == pytest.approx(2e5, rel=1e-6)
    assert after[1] - after[0] == pytest.approx(SLOWER * (before[1] - before[0]), rel=1e-6)
    assert after[2] - after[0] == pytest.approx(SLOWER * (before[2] - before[0]), rel=1e-6)
    assert [estimate(p) for p in unlike] == left


@pytest.mark.parametrize("slower, counts", [(1.5, False), (0.7, False), (1.7, True), (0.5, True)])
def test_what_agrees_with_the_constants_changes_nothing(slower, counts):
    """They are of many problems, a measurement is of two."""
    tiny, large, other = (p.format("nchw") for p in (TINY, LARGE, OTHER))
    before = [estimate(p) for p in (tiny, large, other)]
    assert learn(tiny, before[0], large, before[0] + slower * (before[1] - before[0]))
    assert (estimate(other) != pytest.approx(before[2], rel=1e-6)) == counts


def test_what_was_measured_is_of_its_way():
    """Groups of 4 were measured: those of 2 go by products. Of the dense, small single images go by columns."""
    fours = ["conv2d:fwd:f32:nchw:n1c8h8w8:o8k3p1g2", "conv2d:fwd:f32:nchw:n1c64h28w28:o64k3p1g16"]
    dense = [p.replace("g2", "").replace("g16", "").replace("c8h8", "c512h8").replace("o8k", "o8k") for p in fours]
    left = ["conv2d:fwd:f32:nchw:n8c64h28w28:o64k3p1g32", "conv2d:fwd:f32:nchw:n1c16h8w8:o16k3p1"]
    follow = ["conv2d:fwd:f32:nchw:n8c64h28w28:o64k3p1g8", "conv2d:fwd:f32:nchw:n8c64h28w28:o64k3p1"]
    before = [[estimate(p) for p in some] for some in (left, follow)]
    for tiny, large in (fours, dense):
        assert learn(tiny, 1e6, large, 1e6 + SLOWER * (estimate(large) - estimate(tiny)))
    assert [estimate(p) for p in left] == before[0]
    assert all(now > 2 * then for now, then in zip((estimate(p) for p in follow), before[1]))
