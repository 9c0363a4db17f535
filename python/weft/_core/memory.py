"""The most memory that a call holds at once, as PyTorch's allocators see it: results, what is kept for gradients, workspace."""
from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

os.environ.setdefault("KINETO_LOG_LEVEL", "99")   # else the profiler tells stderr when it starts and stops


def peak(run: Callable[[], Any], device: torch.device) -> int:
    """Bytes beyond what was held before. On the CPU from the profiler's record of every allocation; oneDNN's scratch memory is in it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        run()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as record:
        kept = run()   # results count until the record ends
    del kept
    events = [e for e in record.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most
