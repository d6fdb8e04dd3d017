"""Seconds of training steps by phase, for the comparisons with TRL."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Stopwatch:
    """Seconds of a step by phase; what no phase covers is its rest."""

    def __init__(self) -> None:
        self.steps: list[dict[str, float]] = []
        self.of_step: dict[str, float] = {}
        self.began = self._cpu = 0.0

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """What runs within it belongs to a phase."""
        began = time.perf_counter()
        yield
        self.of_step[phase] = self.of_step.get(phase, 0.0) + time.perf_counter() - began

    def begin(self) -> None:
        """A step begins."""
        self.of_step, self.began, self._cpu = {}, time.perf_counter(), time.process_time()

    def end(self, **numbers: float) -> None:
        """It ends; ``numbers`` are kept beside its seconds."""
        total = time.perf_counter() - self.began
        rest = total - sum(self.of_step.values())
        cpu = {"cpu_s": time.process_time() - self._cpu}
        self.steps.append({"step_s": total, **self.of_step, "rest": rest, **cpu, **numbers})
