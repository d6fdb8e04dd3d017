"""Trains several runs in processes of their own, one step of one run at a time, so that all meet the same machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from process_cpu import tree_cpu_s
from turns import take_turns

from rlhfless.training import TrainedStep, Trainer


@dataclass(frozen=True)
class Alternated:
    """What the runs took.

    Attributes:
        rounds: one step of every run each: ``first`` (the run whose step came first), ``load`` (of the machine), and by the
            name of the run ``step_s`` (measured around the step), ``cpu_s`` (user and system time of its processes),
            ``learn_s``, ``generate_s``, ``gpu_s`` (allocated within the step; actors that stay for the next one wait for the
            other runs' turns in between), ``moves``, ``reward``, ``tokens``, ``spans_s`` (seconds by holder and phase), and
            ``evaluation`` where one was due.
        weights: of every run at the end, by the run's and the tensor's name.
    """

    rounds: list[dict[str, Any]]
    weights: dict[str, dict[str, Any]]


def alternate(
    makes: Mapping[str, Callable[[], Trainer]], rounds: int, watch: Callable[[int], object] | None = None
) -> Alternated:
    """Train every run for so many steps, in turn; who begins changes from round to round.

    Args:
        makes: what makes each run's trainer, by its name; a picklable function, called in the run's own process.
        watch: told the number of each finished round.
    """
    found, weights = take_turns({name: partial(_serve, make) for name, make in makes.items()}, rounds, watch)
    return Alternated(found, weights)


def _allocated_s(step: TrainedStep) -> float:
    """Return the GPU-seconds that were allocated between the step's start and its end."""
    rows, record = step.trace.allocations, step.record
    seconds = rows["end_s"].clip(upper=record.end_s) - rows["start_s"].clip(lower=record.start_s)
    return float((seconds.clip(lower=0.0) * rows["gpu_ids"].map(len)).sum())


def _spans_s(step: TrainedStep) -> dict[str, float]:
    """Return the seconds of the step's spans, by kind of holder and phase."""
    rows = step.trace.spans
    seconds = (rows["end_s"] - rows["start_s"]).groupby(
        rows["holder"].str.replace(r"-\d+$", "", regex=True) + " " + rows["phase"]
    )
    return {str(name): float(value) for name, value in seconds.sum().items()}


def _serve(make: Callable[[], Trainer], connection: Connection) -> None:
    """Train in this process: a step for each ``True``; the weights, and the end, for a ``False``."""
    with make() as trainer:
        while connection.recv():
            began, cpu_s = time.perf_counter(), tree_cpu_s()
            step = trainer.step()
            seconds, cpu_s = time.perf_counter() - began, tree_cpu_s() - cpu_s
            numbers = step.metrics
            connection.send(
                {
                    "step_s": seconds, "cpu_s": cpu_s,
                    "learn_s": step.learning["seconds"], "generate_s": step.record.makespan_s,
                    "gpu_s": _allocated_s(step), "moves": numbers["moves"], "reward": numbers["reward_mean"],
                    "tokens": sum(len(one.token_ids) for one in step.record.completions.values()),
                    "spans_s": _spans_s(step), "evaluation": dict(step.evaluation),
                }
            )  # fmt: skip
        connection.send({name: value.numpy() for name, value in trainer.model.state_dict().items()})
