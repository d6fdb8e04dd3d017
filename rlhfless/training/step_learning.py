"""Judges the responses of one step and learns from them: from the whole batch after generation, or as ``streaming.py`` does.

Inputs are the step's record and what a trainer has: rewards, learner, tokenizer. Output: responses, scores, the algorithm's
numbers, and preparation and learning as work items.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from rlhfless.executor import Gpus, ProcessPool, RayPool, StepRecord, WorkItem
from rlhfless.system.cpu_threads import computing_with
from rlhfless.training.config import TrainConfig
from rlhfless.training.engines import Engines
from rlhfless.training.learner_device import wall_gpus
from rlhfless.training.learner_threads import learner_threads
from rlhfless.training.planned_calls import planned_items
from rlhfless.training.preparation import batch_items
from rlhfless.training.random_state import streams_of
from rlhfless.training.responses import make_batch, read_responses
from rlhfless.training.rewards import Response, Rewards
from rlhfless.training.rewards.called_with import TrainerState
from rlhfless.training.rewards.response import Scores
from rlhfless.training.run_state import RunState
from rlhfless.training.tasks import Problem
from solver.layouts.plan import StepPlan
from solver.model.cluster import Cluster
from solver.model.latency import LatencyModel
from solver.model.plan import Plan
from solver.model.workload import Workload


@dataclass(frozen=True, eq=False)
class LearningParts:
    """What one step is learned from with.

    Attributes:
        state: of the run, with model, tokenizer and learner. problems: of the step, whose number is ``step``.
        config: of the run. latency: of an actor. plan, workload: of the step, as predicted.
        pool: in which generation runs, on the wall clock; None: it is on the virtual clock.
        step_plan: that charges the step; None: the options do.
        engines: that generated, whose memory is free for learning; None: they are not the run's.
        enter: reports the phase that the step enters, see ``Trainer.on_phase``.
    """

    state: RunState
    rewards: Rewards
    problems: Sequence[Problem]
    step: int
    config: TrainConfig
    cluster: Cluster
    latency: LatencyModel
    plan: Plan
    workload: Workload
    pool: ProcessPool | RayPool | None = None
    step_plan: StepPlan | None = None
    engines: Engines | None = None
    enter: Callable[[str], None] = lambda phase: None

    @property
    def on_pool(self) -> bool:
        """Return whether generation runs on the wall clock."""
        return self.pool is not None

    def release_engines(self) -> None:
        """Give the memory of the engines' weights back, once generation is over."""
        if self.engines is not None:
            self.engines.release()

    def learner_threads(self, *, beside_actors: bool = False) -> AbstractContextManager[None]:
        """Return the context in which the learner computes with its threads on the CPU.

        Args:
            beside_actors: the actors of the plan decode meanwhile, on cores of this machine.
        """
        actors = len(self.plan.actors) if beside_actors and self.on_pool else 0
        return computing_with(learner_threads(self.config, beside_actors=actors), self.state.device)

    def wall_gpus(self, *, beside_actors: bool = False) -> Gpus:
        """Return the GPUs that the trace bills for the learner on the wall clock; see ``learner_device.wall_gpus``."""
        device, hardware = self.state.device, self.config.cluster
        return wall_gpus(device, self.cluster, hardware, self.pool, beside_actors=beside_actors)

    @property
    def trainer_state(self) -> TrainerState:
        """Return what reward functions get of the run's state."""
        return TrainerState(self.step, self.config.steps, self.step / self.config.steps_per_epoch)

    @property
    def samples(self) -> int:
        """Return the number of responses to each problem."""
        return self.config.rollout.samples_per_prompt

    @property
    def profile(self) -> LatencyModel | None:
        """Return the profile that seconds are charged by; None charges measured ones."""
        return None if self.on_pool or self.config.cluster.charging != "profile" else self.latency


class LearnedStep(NamedTuple):
    """Responses of a step with their scores, the algorithm's numbers, and what came after generation as work items.

    ``planned``: the learner that was planned, with what was expected of it; None: it was not planned.
    """

    responses: Sequence[Response]
    scores: Scores
    numbers: Mapping[str, float]
    work: Sequence[WorkItem]
    planned: Mapping[str, Any] | None = None


class _RunningLearner(NamedTuple):
    """A learner at work: (R,) tokens of each response, seconds of judging them, when generation ended, its GPUs on the wall
    clock, when it began.
    """

    tokens: np.ndarray
    judging_s: float
    generated_s: float
    gpus: Gpus | None
    began: float


class StepLearning(Protocol):
    """Interface of learning from one step.

    Attributes:
        work: items that run beside generation in a pool. failure: what ended one of them; None: nothing did.
    """

    work: Sequence[WorkItem]
    failure: BaseException | None

    def begin(self, in_doubt: contextlib.ExitStack) -> None:
        """Begin before generation; ``in_doubt`` gets ``RunState.learning`` as soon as the learner's state may change."""

    def learn(self, record: StepRecord, in_doubt: contextlib.ExitStack) -> LearnedStep:
        """Judge and learn after generation, as far as it is not done."""

    def so_far(self) -> Sequence[WorkItem] | None:
        """Return the work items as if ``learn``, which runs in another thread, ended now. None before it begins, after it has
        ended, and where its seconds are known only then.
        """


class BatchLearning:
    """Learns from all responses of a step when generation is over; see ``StepLearning``."""

    work: Sequence[WorkItem] = ()
    failure: BaseException | None = None

    def __init__(self, parts: LearningParts) -> None:
        self.parts = parts
        self._running: _RunningLearner | None = None

    def begin(self, in_doubt: contextlib.ExitStack) -> None:
        """See ``StepLearning``."""

    def learn(self, record: StepRecord, in_doubt: contextlib.ExitStack) -> LearnedStep:
        """See ``StepLearning``."""
        p, tokenizer = self.parts, self.parts.state.tokenizer
        p.enter("rewards")
        p.release_engines()
        with streams_of(p.config.seed, p.step):
            began = time.perf_counter()
            responses = read_responses(p.problems, record.completions, tokenizer, p.samples)
            scores = p.rewards.judge(responses, p.trainer_state)
            scores.check(p.step)
            judging_s = time.perf_counter() - began
            batch = make_batch(responses, scores.values, record.completions, tokenizer, p.samples)
            in_doubt.enter_context(p.state.learning())
            p.enter("learning")
            generated_s = record.end_s - record.start_s
            gpus = p.wall_gpus() if p.on_pool else None
            running = _RunningLearner(np.array(batch.tokens), judging_s, generated_s, gpus, time.perf_counter())
            with p.learner_threads():
                self._running = running
                numbers: dict[str, Any] = p.state.learner.learn(batch)
            self._running = None
        if p.step_plan is None:
            return LearnedStep(responses, scores, numbers, self._items(running, numbers))
        learned = {"learning": numbers, "judging_s": judging_s}
        return LearnedStep(responses, scores, numbers, planned_items(p.step_plan, generated_s, learned))

    def so_far(self) -> Sequence[WorkItem] | None:
        """See ``StepLearning``: by the profile from the passes that have ended, else from the seconds that have passed."""
        p, running = self.parts, self._running
        if running is None or p.step_plan is not None:
            return None
        if p.profile is None:
            return self._items(running, {"seconds": time.perf_counter() - running.began})
        numbers = p.state.learner.so_far()
        return self._items(running, numbers) if numbers else None

    def _items(self, running: _RunningLearner, numbers: Mapping[str, float]) -> list[WorkItem]:
        """Return preparation and learning with these numbers of the algorithm."""
        p = self.parts
        return batch_items(
            p.cluster, p.profile, running.tokens, numbers, running.judging_s, p.config.cluster,
            generated_s=running.generated_s, learner=running.gpus,
        )  # fmt: skip
