"""State of a training run between steps: weights, optimizer, length history, clock, trace and checkpoints.

A step is committed when the trace contains it; its checkpoint is written before. An interrupt restores the last committed
step. A run folder that was removed while the run works is not created again, because a resumed run would lack its first
weights.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from rlhfless.training import missing_torch

try:
    import torch
except ImportError as error:
    raise missing_torch(error) from None

from rlhfless.engine.tokenizers.char_tokenizer import CharTokenizer
from rlhfless.engine.torch.model import one_thread
from rlhfless.engine.torch.pretrained import load_model
from rlhfless.executor import StepRecord
from rlhfless.scheduling.planning_time import PlanningTime
from rlhfless.system.scratch_folders import OwnFolder
from rlhfless.trace import Trace, TraceError, TraceWriter
from rlhfless.training.algorithms.base import Algorithm
from rlhfless.training.checkpoint import keep_latest, load_checkpoint, save_checkpoint
from rlhfless.training.config import ReproducibilityWarning, TrainConfig, TrainError
from rlhfless.training.learner.learner import Learner, LocalLearner
from rlhfless.training.learner.process_group import make_learner
from rlhfless.training.models.tiny_model import save_model, tiny_qwen2
from rlhfless.training.models.warmup import warm_up
from rlhfless.training.tasks.arithmetic import ArithmeticTask

NEEDED = ("meta.json", "warm", "warm/config.json", "checkpoints")  # of a run's folder, to resume it


def make_model(seed: int, progress: bool = True) -> tuple[Any, CharTokenizer]:
    """Return the tiny model after its supervised warm-up on worked solutions (about a minute), and its tokenizer.

    It computes with one thread, because the model is too small for a second one to help. Threads that wait for each other on a
    busy machine cost more than they bring. One thread also makes the weights a function of the seed alone.
    """
    tokenizer, task = CharTokenizer(), ArithmeticTask(seed)
    model = tiny_qwen2(tokenizer, seed)
    with one_thread(model.device):
        warm_up(model, tokenizer, task.worked_solutions(seed), seed=seed, progress=progress)
    return model, tokenizer


@dataclass(frozen=True, eq=False)
class RunStart:
    """Model, tokenizer and metadata of a run that starts, before it writes any file, or of one that is resumed.

    Attributes:
        meta: what ``meta.json`` records of the run, with a unique ``run_id``. writer: of the trace, if the run is resumed.
    """

    model: Any
    tokenizer: Any
    meta: Mapping[str, Any]
    writer: TraceWriter | None = None

    @property
    def earlier_cluster(self) -> Mapping[str, Any] | None:
        """The cluster before the run was resumed, if it had another size; else None."""
        was = None if self.writer is None else self.writer.meta.get("cluster")
        sizes = ("nodes", "gpus_per_node")
        return was if was and any(was.get(size) != self.meta["cluster"][size] for size in sizes) else None

    @classmethod
    def of(
        cls,
        config: TrainConfig,
        folder: Path | None,
        model: str | Path | tuple[Any, Any] | None,
        meta: Mapping[str, Any],
        *,
        device: torch.device | str = "cpu",
        resume: bool = False,
        progress: bool = True,
    ) -> RunStart:
        """Load, take over or make the first model, or load that of the run in ``folder``.

        A run that ended before its trace began, for example during warm-up, is started again instead of resumed.

        Args:
            model: a folder, or a model with its tokenizer; None warms up a new one. A resumed run has its own weights: a passed
                model takes them over.
            device: of the model, unless it is passed with its tokenizer.

        Raises:
            TrainError: the folder holds a run already, or nothing to resume, or one with other options.
        """
        if resume and folder is None:
            raise TrainError("there is nothing to resume without a folder; give the folder of the run")
        if resume and folder is not None and not _never_began(folder):
            return cls._resumed(config, folder, model, meta, device)
        if folder is not None and (folder / "meta.json").exists():
            raise TrainError(f"{folder}: holds a trace already; name another folder, or resume it")
        if isinstance(model, tuple):
            return cls(*model, meta)
        if model is not None:
            return cls(*load_model(model, device), meta)
        if config.task.name != "arithmetic" or "task" in meta["given"]:
            raise TrainError(f"task {meta['run']!r} needs a model whose tokenizer covers its text; give one (--model FOLDER)")
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        warm, tokenizer = make_model(config.seed, progress)
        return cls(warm.to(device), tokenizer, meta)

    @classmethod
    def _resumed(
        cls, config: TrainConfig, folder: Path, model: Any, meta: Mapping[str, Any], device: torch.device | str
    ) -> RunStart:
        writer = TraceWriter.resume(folder)
        config.check_resume(writer.meta.get("config", {}))
        overrides, earlier = meta["given"], writer.meta.get("given") or {}
        for name in sorted({*overrides, *earlier}):
            if overrides.get(name) != earlier.get(name):
                was, now = (names.get(name, "the configuration's own") for names in (earlier, overrides))
                raise TrainError(f"{folder}: the run was started with {was} as {name}, not {now}; resume it with {was}")
        was, now = writer.meta.get("learner_device"), meta["learner_device"]
        if was is not None and was != now:
            warning = f"{folder}: the run was started on {was} and continues on {now}; results agree within rounding"
            warnings.warn(warning, ReproducibilityWarning, stacklevel=2)
        weights, tokenizer = load_model(folder / "warm", device)
        if isinstance(model, tuple):
            model[0].load_state_dict(weights.state_dict())
            weights, tokenizer = model
        run_id = writer.meta.get("run_id", folder.resolve().name)  # those without one were known by their folder's name
        return cls(weights, tokenizer, {**meta, "run_id": run_id}, writer)


@dataclass(frozen=True, eq=False)
class RunProgress:
    """Progress of a run after its last committed step.

    Attributes:
        next_step: number of the next step. clock_s: end of the last step on the virtual clock.
        history: rollouts of all steps so far.
    """

    next_step: int = 0
    clock_s: float = 0.0
    history: pd.DataFrame = field(default_factory=pd.DataFrame)


@dataclass(eq=False)
class RunState:
    """State of a training run after its last committed step.

    Attributes:
        checkpoints: folder of the checkpoints after the last committed steps; keep: how many of them are kept.
        writer: of the trace; None keeps no trace.
        position: progress; replaced as a whole, so that an interrupt never leaves it half updated.
    """

    model: Any
    tokenizer: Any
    learner: Learner
    checkpoints: Path
    keep: int = 1
    writer: TraceWriter | None = None
    position: RunProgress = field(default_factory=RunProgress)
    _in_doubt: bool = False
    _temporary: OwnFolder | None = None  # goes with the run

    @classmethod
    def begin(cls, origin: RunStart, config: TrainConfig, folder: Path | None, algorithm: Algorithm | None) -> RunState:
        """Start a run, or continue it after its last committed step if ``origin`` is a resumed run.

        Without a folder no trace is kept, and checkpoints are in a temporary folder that is removed with the run state.

        Args:
            algorithm: for the model of ``origin``; None makes the one that ``config`` names.
        """
        # made from the weights that training began with, before a checkpoint is loaded: they are the reference
        if algorithm is None:
            options = config.learner_options()
            processes = config.cluster.learner_processes
            learner = make_learner(config.algorithm.name, origin.model, processes=processes, **options)
        else:
            learner = LocalLearner(algorithm)
        temporary = None
        if folder is None:
            temporary = OwnFolder("rlhfless-checkpoints-")
            checkpoints = temporary.path
        else:
            checkpoints = folder / "checkpoints"
        run = cls(
            origin.model, origin.tokenizer, learner, checkpoints, config.save_total_limit, origin.writer, _temporary=temporary
        )
        if run.writer is not None:
            run._go_back()
            if (was := origin.earlier_cluster) is not None:
                run._moved(was, origin.meta)
            return run
        save_checkpoint(run.checkpoints, 0, run.learner)
        if folder is not None:
            save_model(origin.model, origin.tokenizer, folder / "warm")
            run.writer = TraceWriter(folder, origin.meta)  # last: from here on it can be resumed
        return run

    def _moved(self, was: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
        """Record in the trace that the run continues on another cluster, and which steps ran on which."""
        assert self.writer is not None
        earlier = [*(self.writer.meta.get("earlier_clusters") or []), {**was, "before_step": self.position.next_step}]
        self.writer.remember(cluster=meta["cluster"], config=meta["config"], earlier_clusters=earlier)

    def go_on_after(self, trace: Trace) -> None:
        """Continue from a trace: take over its lengths, clock and step number. The trace stays unchanged."""
        position = RunProgress(trace.steps[-1] + 1, float(trace.allocations["end_s"].max()), trace.rollouts)
        save_checkpoint(self.checkpoints, position.next_step, self.learner)
        self.position = position

    @contextlib.contextmanager
    def learning(self) -> Iterator[None]:
        """Context in which weights change and the step is committed; an exception restores the last committed step.

        If a second interrupt stops the restoration, the next step begins with it.
        """
        self.restore_if_in_doubt()
        self._in_doubt = True
        try:
            yield
        except BaseException:
            self._go_back()
            raise
        self._in_doubt = False

    def restore_if_in_doubt(self) -> None:
        """Restore the last committed step if an interrupt left the state after it undefined.

        Raises:
            TrainError: the run's folder is gone.
        """
        self.check_folder()
        if self._in_doubt:
            self._go_back()

    def check_folder(self) -> None:
        """Check that the folder still has all files that a resumed run needs.

        Raises:
            TrainError: a file was removed.
        """
        if self.writer is None:
            return
        folder = self.writer.folder
        if gone := [path for path in (folder, *(folder / name for name in NEEDED)) if not path.exists()]:
            raise TrainError(
                f"{gone[0]}: was removed during the run, so step {self.position.next_step} is not saved; restore it and resume "
                "the run, or start a new run"
            )

    def planning_time(self, planning_s: float, *, overlaps: bool) -> PlanningTime:
        """Return the planning time of the next step.

        Args:
            overlaps: planning runs while the last step prepares and learns, from when its last response is complete. Otherwise
                the next generation waits for all of it.
        """
        now = self.position
        if not overlaps or now.history.empty:
            return PlanningTime(planning_s, planning_s)
        last = now.history["step"] == now.next_step - 1
        return PlanningTime.overlapping(planning_s, now.clock_s - float(now.history.loc[last, "end_s"].max()))

    def commit(self, rollouts: pd.DataFrame, record: StepRecord, planning: PlanningTime) -> None:
        """Commit the next step: first its checkpoint, then its trace, with the planning time in the step's plan.

        The trace decides which steps are committed; without a trace ``position`` does.

        Raises:
            TrainError, TraceError: the run's folder is gone, or cannot be written.
        """
        self.check_folder()
        steps = self.position.next_step + 1
        history = pd.concat([self.position.history, rollouts], ignore_index=True)
        save_checkpoint(self.checkpoints, steps, self.learner)
        if self.writer is not None:
            plan = {**record.plan.to_dict(), **vars(planning)}
            self.writer.append_step(rollouts, record.allocations, record.spans, record.events, plan)
        self.position = RunProgress(steps, record.end_s, history)
        keep_latest(self.checkpoints, steps, self.keep)

    def close(self) -> None:
        """Stop the learner's processes and merge the trace's step folders into its tables. Idempotent.

        A further step would first read the last checkpoint.
        """
        self.learner.close()
        self._in_doubt = True
        if self.writer is not None:
            # on a full disk, say: its steps are read where they are, and a later run tries again
            with contextlib.suppress(TraceError):
                self.writer.close()

    @property
    def trace(self) -> Trace | None:
        """The trace so far, if one is kept."""
        return None if self.writer is None else self.writer.trace

    def _go_back(self) -> None:
        """Read the committed state again: the trace's steps, if one is kept, and the checkpoint after the last of them."""
        self.check_folder()
        if self.writer is not None:
            self.writer = writer = TraceWriter.resume(self.writer.folder)
            history = writer.trace.rollouts if writer.next_step else pd.DataFrame()
            self.position = RunProgress(writer.next_step, writer.end_s, history)
        load_checkpoint(self.checkpoints, self.position.next_step, self.learner)
        self._in_doubt = False


def _never_began(folder: Path) -> bool:
    """Return whether a run in the folder ended before its trace began: only files that are written before the trace exist."""
    before = {"checkpoints", "warm", "warm.tmp", "plans.jsonl"}
    return folder.is_dir() and all(path.name in before or path.name.startswith(".") for path in folder.iterdir())
