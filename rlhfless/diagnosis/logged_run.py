"""What a log holds of one run, as the arithmetic of a diagnosis needs it, and what a user states beside it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from rlhfless.errors import InputError


def _is_number(value: Any) -> bool:
    """Whether it is a finite number of 0 or more."""
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value) and float(value) >= 0


@dataclass(frozen=True)
class Stated:
    """Facts about the run that the user knows and the log may lack; None means not stated.

    Attributes:
        gpus: number of GPUs of the whole run;
        gpus_generate, gpus_train: GPUs of generation and of training, if they are separate.
        gpu: kind of GPU, such as ``h100``.
        gpu_memory_gib: memory of one GPU.
        tensor_parallel: GPUs per replica.
        memory_share: share of a GPU's memory that the engine may use (vLLM's gpu_memory_utilization).
        usd_per_gpu_hour: price of a GPU for an hour.
        model: folder or ``config.json`` of the model, or the name of a profile's model.
        max_response_tokens: limit on response length.
        responses_per_step, samples_per_prompt: numbers of responses, if not logged.
        prepare_s, learn_s: seconds per step of preparation and learning, if learning follows generation.

    Raises:
        InputError: a value is of another type or out of its range, or generation and training have more GPUs than the run.
    """

    gpus: int | None = None
    gpus_generate: int | None = None
    gpus_train: int | None = None
    gpu: str | None = None
    gpu_memory_gib: float | None = None
    tensor_parallel: int | None = None
    memory_share: float | None = None
    usd_per_gpu_hour: float | None = None
    model: str | None = None
    max_response_tokens: int | None = None
    responses_per_step: int | None = None
    samples_per_prompt: int | None = None
    prepare_s: float | None = None
    learn_s: float | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is None:
                continue
            if name in ("gpu", "model"):
                wrong, needed = not isinstance(value, str | Path), "a text"
            elif name == "memory_share":
                wrong, needed = not _is_number(value) or not 0 < value <= 1, "a number above 0 and at most 1"
            elif name in ("gpu_memory_gib", "usd_per_gpu_hour", "prepare_s", "learn_s"):
                wrong, needed = not _is_number(value), "a number of 0 or more"
            else:
                wrong, needed = not _is_number(value) or value != int(value), "a whole number of 0 or more"
            if wrong:
                raise InputError(f"{name} is {value!r:.60}; {needed} is needed")
        sides = {name: count for name in ("gpus_generate", "gpus_train") if (count := getattr(self, name)) is not None}
        if self.gpus is not None and sum(sides.values()) > self.gpus:
            given = " and ".join(f"{name} {count}" for name, count in sides.items())
            raise InputError(f"{given} is more than the run's gpus {self.gpus}; give those of both sides together as gpus")


@dataclass(frozen=True, eq=False)
class LoggedRun:
    """One run of a log.

    Attributes:
        source: the log's name, for messages. framework: that wrote it; empty where it is unknown.
        steps: one row per step that generated: ``step``, standard columns (``trace.importers.scalars``), the framework's own.
        responses: rollouts; None where the log has none. engine: the engine's own lines (``trace.importers.engine_lines``).
        facts: numbers of the whole run, such as ``planned_steps`` (``trace.importers.run_facts``).
        stated: what the user states. allocations: of an executed run, as of ``trace.allocation_metrics``; else empty.
        notes: of the import, sentences. run: name of the run, where the log has several.
        config: path of the model's configuration, where that is the log.
        price: of an executed run, the price that a user states and what the trace recorded, in words; else empty.
        clock: of an executed run's times, in words; else empty.
    """

    source: str
    framework: str
    steps: pd.DataFrame
    responses: pd.DataFrame | None = None
    engine: pd.DataFrame = field(default_factory=pd.DataFrame)
    facts: Mapping[str, float] = field(default_factory=dict)
    stated: Stated = field(default_factory=Stated)
    allocations: pd.DataFrame = field(default_factory=pd.DataFrame)
    notes: tuple[str, ...] = ()
    run: str = ""
    config: str | None = None
    price: str = ""
    clock: str = ""

    def column(self, name: str) -> np.ndarray:
        """Return (s,) a column of the steps, NaN where it is unknown or not finite."""
        if name not in self.steps.columns:
            return np.full(len(self.steps), np.nan)
        values = pd.to_numeric(self.steps[name], errors="coerce").to_numpy(dtype=float)
        return np.where(np.isfinite(values), values, np.nan)

    def mean(self, name: str) -> float | None:
        """Return the mean of a column over the steps that have it; None where none has."""
        values = self.column(name)
        known = values[~np.isnan(values)]
        return float(known.mean()) if len(known) else None
