"""Time that a test moves: it stands in for the module `time` where a benchmark reads it, so that no test depends on the machine's speed."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any


class FakeTime:
    """A clock that moves by `tick` seconds at each look and by what sleep and `work` add."""

    def __init__(self, tick: float = 1e-6) -> None:
        self.now, self.tick = 1000.0, tick

    def perf_counter(self) -> float:
        self.now += self.tick
        return self.now

    monotonic = perf_counter

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def work(self, seconds: float, run: Callable[..., Any] = lambda *_: None) -> Callable[..., Any]:
        """run, as if it took that long."""
        def slow(*args: Any, **kwargs: Any) -> Any:
            self.now += seconds
            return run(*args, **kwargs)
        return slow


class FakeClock:
    """A clock of weft.bench: samples are what the test says of the runs, by identity, then anything else's."""

    def __init__(self, ms: dict[Callable[[], Any], list[float]], other: float, flops_per_ms: float = 1e9) -> None:
        self.ms, self.other, self.rate, self.taken = ms, other, flops_per_ms, 0

    def sample(self, run: Callable[[], Any]) -> float:
        self.taken += 1
        times = self.ms.get(run)
        return self.other if times is None else times.pop(0) if len(times) > 1 else times[0]

    def movers(self, read: int, write: int) -> list[Callable[[], Any]]:
        self.moved = (read, write)
        return [lambda: None, lambda: None]

    def flops_per_ms(self, dtype: Any) -> float:
        return self.rate
