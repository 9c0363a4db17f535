"""`python -m weft demo`: a short look at what weft does on this machine's CPU, beside PyTorch."""
from __future__ import annotations

import sys
from typing import TextIO

import torch

from . import _library, bench

CASES = (
    ("3x3, 8x128x56x56", "n8c128h56w56:o128k3p1g128"),
    ("3x3 stride 2, 8x64x112x112", "n8c64h112w112:o64k3s2p1g64"),
    ("3x3, 8x512x14x14", "n8c512h14w14:o512k3p1g512"),
    ("3x3, 8x1024x7x7", "n8c1024h7w7:o1024k3p1g1024"),
)
FORMATS = (("channels-first", "nchw"), ("channels-last", "nhwc"))
PASSES = (("forward", "fwd"), ("forward+backward", "train"))


def run(rounds: int = bench.MIN_ROUNDS, out: TextIO = sys.stdout) -> int:
    """Print the table; 1 if a result is wrong."""
    kept = bench.keep_pages()
    torch.manual_seed(0)
    print(f"Depthwise convolution, float32, {torch.get_num_threads()} threads: torch {torch.__version__} beside weft {_library.version()}.", file=out)
    print(f"Milliseconds, medians of {rounds} interleaved rounds, caches emptied{', pages kept on both sides' if kept else ''}.", file=out)
    print("Error: the largest difference over the largest value. Share: the time a plain kernel takes to move the same bytes, over weft's.\n", file=out)
    if bench.busy():
        print(f"Warning: {bench.busy()}.\n", file=out)
    print(f"{'case':28}{'memory':16}{'pass':18}{'torch':>9}{'weft':>9}{'ratio':>8}{'share':>7}{'error':>10}", file=out, flush=True)
    code = 0
    for title, sizes in CASES:
        for format_title, layout in FORMATS:
            for pass_title, passes in PASSES:
                left = f"{title:28}{format_title:16}{pass_title:18}"
                try:
                    row = bench.measure(f"conv2d:fwd:f32:{layout}:{sizes}", passes, rounds)
                except RuntimeError as problem:
                    code = 1
                    print(f"{left}failed: {problem}", file=out, flush=True)
                    continue
                print(f"{left}{row['peer_ms']:9.2f}{row['weft_ms']:9.2f}{row['ratio']:7.2f}x{row['share']:7.2f}{row['error']:10.1e}", file=out, flush=True)
    return code
