"""State of a training run between steps: weights, optimizer, length history, clock, trace and checkpoints.

A step is committed when the trace contains it; its checkpoint, if it gets one, is written before. An interrupt restores the
last committed step with a checkpoint, and removes later ones from the trace: they are repeated. A run folder that was removed
while the run works is not created again, because a resumed run would lack its first weights.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from rlhfless.errors import reason
from rlhfless.executor import StepFailed, StepRecord
from rlhfless.scheduling.policy import PlanningTime
from rlhfless.system.cleanup import clean_up
from rlhfless.system.scratch_folders import OwnFolder
from rlhfless.trace import Trace, TraceError, TraceWriter
from rlhfless.trace.storage import write_text
from rlhfless.training.algorithms.base import Algorithm
from rlhfless.training.checkpoint import folder_of, keep_latest, load_checkpoint, save_checkpoint, saved_steps
from rlhfless.training.config import LearnerError, TrainConfig, TrainError, UnsavedWarning, to_yaml
from rlhfless.training.failed_steps import keep_unfinished
from rlhfless.training.learner.learner import Learner, LocalLearner
from rlhfless.training.learner.process_group import make_learner
from rlhfless.training.learner_threads import learner_threads
from rlhfless.training.models.tiny_model import save_model
from rlhfless.training.run_start import RunStart

if TYPE_CHECKING:
    import torch

NEEDED = ("meta.json", "warm", "warm/config.json", "checkpoints")  # of a run's folder, to resume it


@dataclass(frozen=True, eq=False)
class RunProgress:
    """Progress of a run after its last committed step.

    Attributes:
        next_step: number of the next step. clock_s: end of the last step on the virtual clock.
        history: rollouts of all steps so far.
        saved: progress at the last checkpoint; None if it is of this step.
    """

    next_step: int = 0
    clock_s: float = 0.0
    history: pd.DataFrame = field(default_factory=pd.DataFrame)
    saved: RunProgress | None = None


@dataclass(eq=False)
class RunState:
    """State of a training run after its last committed step.

    Attributes:
        model: the policy. device: on which it learns; the model itself is on the CPU where other processes learn.
        checkpoints: folder of the checkpoints; keep: how many of them are kept. save_every: steps from one to the next; the
            step with which the run has ``total_steps`` always has one.
        writer: of the trace; None keeps no trace.
        position: progress; replaced as a whole, so that an interrupt never leaves it half updated.
    """

    model: Any
    device: torch.device
    tokenizer: Any
    learner: Learner
    checkpoints: Path
    keep: int = 1
    save_every: int = 1
    total_steps: int = 0
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
        device = origin.model.device
        # made from the weights that training began with, before a checkpoint is loaded: they are the reference
        if algorithm is None:
            options = config.learner_options()
            learner = make_learner(
                config.algorithm.name, origin.model, processes=config.cluster.learner_processes,
                placement=config.cluster.learner_placement, threads=learner_threads(config),
                heartbeat_timeout_s=config.cluster.heartbeat_timeout_s, **options,
            )  # fmt: skip
        else:
            learner = LocalLearner(algorithm)
        temporary = None
        if folder is None:
            temporary = OwnFolder("rlhfless-checkpoints-")
            checkpoints = temporary.path
        else:
            checkpoints = folder / "checkpoints"
        run = cls(
            origin.model, device, origin.tokenizer, learner, checkpoints, config.save_total_limit, config.save_every,
            config.steps, origin.writer, _temporary=temporary,
        )  # fmt: skip
        if run.writer is not None:
            run._go_back()
            write_text(run.writer.folder / "config.yaml", to_yaml(config))
            if (was := origin.earlier_cluster) is not None:
                run._moved(was, origin.meta)
            return run
        save_checkpoint(run.checkpoints, 0, run.learner)
        if folder is not None:
            save_model(origin.model, origin.tokenizer, folder / "warm")
            write_text(folder / "config.yaml", to_yaml(config))
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
        """Context in which weights change and the step is committed; an exception restores the last checkpoint.

        If a second interrupt stops the restoration, the next step begins with it.
        """
        self.restore_if_in_doubt()
        self._in_doubt = True
        try:
            yield
        except BaseException as error:
            clean_up(self._go_back, after=error)
            raise
        self._in_doubt = False

    def restore_if_in_doubt(self) -> None:
        """Restore the last checkpoint if an interrupt left the state after it undefined.

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
        if gone := self._gone():
            raise TrainError(
                f"{gone[0]}: was removed during the run, so step {self.position.next_step} is not saved; restore it and resume "
                "the run, or start a new run"
            )

    def _gone(self) -> list[Path]:
        """Return what is missing in the run's folder of what a resumed run needs."""
        if self.writer is None:
            return []
        folder = self.writer.folder
        return [path for path in (folder, *(folder / name for name in NEEDED)) if not path.exists()]

    def keep_completed(self, error: StepFailed, rows: Callable[[], pd.DataFrame]) -> None:
        """Keep what a step completed before ``error``, which gets the folder, if a trace is kept; see ``keep_unfinished``."""
        if self.writer is not None and error.record.completions:
            self.check_folder()
            error.kept_in = keep_unfinished(self.writer.folder, self.writer.meta, rows(), error.record, str(error))

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
        """Commit the next step: first its checkpoint, if it gets one, then its trace, with the planning time in its plan.

        The trace decides which steps are committed; without a trace ``position`` does.

        Raises:
            TrainError, TraceError: the run's folder is gone, or cannot be written.
        """
        self.check_folder()
        steps = self.position.next_step + 1
        history = pd.concat([self.position.history, rollouts], ignore_index=True)
        saves = steps % self.save_every == 0 or steps == self.total_steps
        if saves:
            save_checkpoint(self.checkpoints, steps, self.learner)
        if self.writer is not None:
            plan = {**record.plan.to_dict(), **vars(planning)}
            self.writer.append_step(rollouts, record.allocations, record.spans, record.events, plan)
        saved = None if saves else self.position.saved or self.position
        self.position = RunProgress(steps, record.end_s, history, saved)
        if saves:
            keep_latest(self.checkpoints, steps, self.keep)

    def close(self) -> None:
        """Write a checkpoint if the last step has none, stop the learner's processes, and merge the trace's step folders into
        its tables. Idempotent.

        A further step would first read the last checkpoint. Where the checkpoint or the tables cannot be written, as on a full
        disk, an ``UnsavedWarning`` says what that means for the run.
        """
        clean_up(self._save_last, self._stop_learner, self.merge_trace)

    def _save_last(self) -> None:
        now, saved = self.position, self.position.saved
        if saved is None or self._in_doubt:
            return
        try:
            save_checkpoint(self.checkpoints, now.next_step, self.learner)
        except (TrainError, LearnerError) as error:
            steps = _steps_between(saved.next_step, now.next_step)
            cause = error.__cause__
            why = cause.strerror or reason(cause) if isinstance(cause, OSError) else reason(error)
            target, last = (folder_of(self.checkpoints, at.next_step) for at in (now, saved))
            warnings.warn(
                f"{target}: could not be written ({why}), so the last checkpoint is {last.name} and "
                f"{steps} will be repeated; make room for it if the disk is full, and resume the run",
                UnsavedWarning,
                stacklevel=2,
            )
            return
        self.position = replace(now, saved=None)
        keep_latest(self.checkpoints, now.next_step, self.keep)

    def _stop_learner(self) -> None:
        self._in_doubt = True
        self.learner.close()

    def merge_trace(self) -> None:
        """Merge the trace's step folders into its tables, if a trace is kept; further steps may be appended afterwards.

        Where they cannot be written, as on a full disk, an ``UnsavedWarning`` says so.
        """
        if self.writer is None or self._gone():
            return
        try:
            self.writer.close()
        except TraceError as error:
            warnings.warn(
                f"{self.writer.folder}: the steps could not be merged into the trace's tables ({reason(error)}); they are "
                "complete and are read from folders of their own, and resuming the run merges them",
                UnsavedWarning,
                stacklevel=2,
            )

    @property
    def trace(self) -> Trace | None:
        """The trace so far, if one is kept."""
        return None if self.writer is None else self.writer.trace

    def _go_back(self) -> None:
        """Read the last checkpoint of a committed step again, and remove the steps after it from the trace, if one is kept."""
        self.check_folder()
        committed = self.position.next_step
        if self.writer is not None:
            self.writer = writer = TraceWriter.resume(self.writer.folder)
            committed = writer.next_step
            steps = max((one for one in saved_steps(self.checkpoints) if one <= writer.next_step), default=writer.next_step)
            if steps < writer.next_step:
                self.writer = writer = TraceWriter.resume(writer.folder, steps)
            history = writer.trace.rollouts if writer.next_step else pd.DataFrame()
            self.position = RunProgress(writer.next_step, writer.end_s, history)
        elif self.position.saved is not None:
            self.position = self.position.saved
        load_checkpoint(self.checkpoints, self.position.next_step, self.learner)
        self._in_doubt = False
        if (kept := self.position.next_step) < committed:
            warnings.warn(
                f"{self.checkpoints}: {_steps_between(kept, committed)} had no checkpoint, so the run continues from "
                f"{folder_of(self.checkpoints, kept).name} and repeats what came after it; a smaller save_every "
                f"({self.save_every} now) repeats less",
                UnsavedWarning,
                stacklevel=2,
            )


def _steps_between(first: int, end: int) -> str:
    """Return the numbers of the steps from ``first`` to before ``end``, for a sentence."""
    return f"step {first}" if end - first == 1 else f"steps {first} to {end - 1}"
