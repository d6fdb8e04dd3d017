"""What a training run keeps from step to step: weights, optimizer, lengths so far, clock, trace and checkpoints.

Knows folders, checkpoints and traces; nothing of how a step is planned, generated or learned from. A step counts when the
trace's ``meta.json`` names it; its checkpoint is written before.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from rlhfless.training import missing_torch

try:
    import torch
except ImportError as error:
    raise missing_torch(error) from None

from rlhfless.engine.torch_forward import one_thread
from rlhfless.executor import StepRecord
from rlhfless.trace import Trace, TraceWriter
from rlhfless.training.algorithm import Algorithm
from rlhfless.training.algorithms import make_algorithm
from rlhfless.training.arithmetic import ArithmeticTask
from rlhfless.training.checkpoint import keep_only, load_checkpoint, save_checkpoint
from rlhfless.training.config import TrainConfig, TrainError
from rlhfless.training.model import load_model, save_model, tiny_qwen2
from rlhfless.training.tokenizer import CharTokenizer
from rlhfless.training.warmup import warm_up
from solver.cluster import Cluster


def make_model(seed: int, progress: bool = True) -> tuple[Any, CharTokenizer]:
    """The tiny model, warmed up from scratch on worked solutions (about a minute).

    One thread: the model is too small for a second one to help, and threads that wait for each other on a busy machine cost
    more than they bring. It also makes the weights a function of the seed alone.
    """
    tokenizer, task = CharTokenizer(), ArithmeticTask(seed)
    model = tiny_qwen2(tokenizer, seed)
    with one_thread(model.device):
        warm_up(model, tokenizer, task.worked_solutions(seed), seed=seed, progress=progress)
    return model, tokenizer


@dataclass
class Run:
    """A training run as it stands after its last completed step.

    Attributes:
        folder: where trace and checkpoints go, with their writer; None keeps nothing.
        history: rollouts of all steps so far; clock_s: when the last of them ended.
    """

    model: Any
    tokenizer: Any
    algorithm: Algorithm
    folder: Path | None = None
    writer: TraceWriter | None = None
    history: pd.DataFrame = field(default_factory=pd.DataFrame)
    clock_s: float = 0.0
    next_step: int = 0

    @classmethod
    def open(
        cls,
        config: TrainConfig,
        cluster: Cluster,
        folder: Path | None,
        model: str | Path | None,
        resume: bool,
        progress: bool,
        executed: Mapping[str, str],
    ) -> Run:
        """Start a run with a loaded or a new model, or resume the one in ``folder`` after its last completed step.

        Args:
            executed: what ``meta.json`` says of where steps are executed, if not on the virtual clock.

        Raises:
            TrainError: the folder holds a run already, or nothing to resume, or one with other options.
        """
        if not resume:
            if folder is not None and (folder / "meta.json").exists():
                raise TrainError(f"{folder}: holds a trace already; name another folder, or resume it")
            if model is None and config.task != "arithmetic":
                raise TrainError(f"task {config.task!r} needs a model that knows its words; give one (--model FOLDER)")
            weights, tokenizer = make_model(config.seed, progress) if model is None else load_model(model)
            run = cls(weights, tokenizer, _algorithm(weights, config), folder)
            if folder is not None:
                run.writer = TraceWriter(folder, meta_of(config, cluster) | dict(executed))
                save_model(weights, tokenizer, folder / "warm")
                save_checkpoint(run._checkpoints, 0, run.algorithm.trained, run.algorithm.optimizer)
            return run
        if folder is None:
            raise TrainError("nothing to resume: no folder was given")
        writer = TraceWriter.resume(folder)
        config.check_resume(writer.meta.get("config", {}))
        weights, tokenizer = load_model(folder / "warm")
        run = cls(weights, tokenizer, _algorithm(weights, config), folder, writer, next_step=writer.next_step)
        load_checkpoint(run._checkpoints, run.next_step, run.algorithm.trained, run.algorithm.optimizer)
        if run.next_step:
            run.history, run.clock_s = writer.trace.rollouts, writer.end_s
        return run

    def go_on_after(self, trace: Trace) -> None:
        """Take over lengths, clock and step number of a trace, which stays as it is."""
        self.history = trace.rollouts
        self.next_step = trace.steps[-1] + 1
        self.clock_s = float(trace.allocations["end_s"].max())

    def commit(self, rollouts: pd.DataFrame, record: StepRecord) -> None:
        """The next step is complete. Checkpoint first, trace second: the trace's meta.json decides which steps count."""
        self.next_step += 1
        self.clock_s = record.end_s
        if self.writer is not None:
            save_checkpoint(self._checkpoints, self.next_step, self.algorithm.trained, self.algorithm.optimizer)
            self.writer.append_step(rollouts, record.allocations, record.spans, record.events, record.plan.to_dict())
            keep_only(self._checkpoints, self.next_step)
        self.history = pd.concat([self.history, rollouts], ignore_index=True)

    @property
    def trace(self) -> Trace | None:
        """The trace so far, if one is kept."""
        return None if self.writer is None else self.writer.trace

    @property
    def _checkpoints(self) -> Path:
        assert self.folder is not None
        return self.folder / "checkpoints"


def _algorithm(model: Any, config: TrainConfig) -> Algorithm:
    """Made from the weights that training began with, before a checkpoint is loaded: they are the reference."""
    return make_algorithm(config.algorithm, model, **config.algorithm_options())


def meta_of(config: TrainConfig, cluster: Cluster) -> dict[str, Any]:
    """What ``meta.json`` says of a run."""
    return {
        "seeds": {"run": config.seed},
        "cluster": vars(cluster),
        "profile": config.profile,
        "policy": config.policy,
        "clock": "virtual",
        "charging": config.charging,
        "engine": config.engine,
        "device": f"{platform.machine()} CPU, torch {torch.__version__}",
        "config": config.to_dict(),
    }
