"""The RLHF training loop: predict lengths, plan, generate, compute rewards, learn, write the trace; resumable after each step.

Generation runs on emulated actors (virtual clock), or on actors in separate processes here or on a Ray cluster (wall clock).
``factory.py`` makes the components; they do not know each other.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlhfless.training import missing_torch

try:
    from tqdm.auto import tqdm
except ImportError as error:
    raise missing_torch(error) from None

from rlhfless.engine.protocol import Request
from rlhfless.engine.torch.model import one_thread
from rlhfless.executor import ActorError, ProcessPool, RayPool, StepRecord, run_step
from rlhfless.executor.distributed.ray.placement import FewerGpus
from rlhfless.executor.step.progress import Watch
from rlhfless.scheduling import PlanningInput, SchedulingPolicy
from rlhfless.trace import Trace
from rlhfless.training.algorithms.base import Algorithm
from rlhfless.training.algorithms.batch import Batch
from rlhfless.training.callbacks import Callback
from rlhfless.training.config import TrainConfig, TrainError
from rlhfless.training.engines import options_for
from rlhfless.training.factory import LengthPredictor, TrainerOverrides, resolve
from rlhfless.training.failed_steps import keep_unfinished
from rlhfless.training.loggers import make_loggers
from rlhfless.training.models.tiny_model import save_model
from rlhfless.training.preparation import record_rest
from rlhfless.training.random_state import streams_of
from rlhfless.training.responses import make_batch, make_requests, read_responses, rollout_rows
from rlhfless.training.rewards import Rewards
from rlhfless.training.step_result import TrainedStep
from rlhfless.training.tasks import Problem, Task
from solver.lengths.remaining import RemainingLengths
from solver.lengths.survival import from_scenarios
from solver.model.errors import PlanningError
from solver.model.objective import Objective
from solver.model.plan import Plan
from solver.model.workload import Workload


class Trainer:
    """One training run, step by step: ``for step in trainer: ...``; closed by a ``with`` statement or by ``close``.

    Components that are not passed are made from ``config``. Passed objects stay the caller's: a passed pool is not closed, and
    the same objects must be passed again to resume the run.

    Args:
        config: options of the run.
        folder: where trace and checkpoints go; None keeps no trace (notebooks).
        task: replaces ``config.task``; its first ``config.prompts`` problems are trained on.
        model: a transformers folder, or a model with its tokenizer, which is trained in place; None warms up a new model. A
            resumed run has its own weights: a folder is not read, and a passed model takes over the run's weights.
        algorithm: made for the passed model; replaces ``config.algorithm`` and its options.
        planner: plans steps; replaces ``config.policy``.
        executor: a pool for actors on the wall clock; replaces ``config.executor``.
        predictor: of lengths; replaces the moving average over ``config.window`` epochs. An ``InFlightPredictor`` also updates
            its forecast from tokens and finished siblings while responses are decoded, and rules that re-plan follow it. The
            loop does not record model signals for it.
        rewards: replaces ``config.rewards``.
        callbacks: called in order after every step and at the end.
        resume: continue the run in ``folder``.

    Attributes:
        watch: called with the progress of every generation; None for no callback. Its exceptions end the step as an interrupt
            does.

    Raises:
        TrainError: the options do not fit, or the folder holds nothing to resume, or a run of other options, parts or problems.
        MissingExtra, InputError: the engine is not installed or its version is not supported, or a component does not fit.
    """

    def __init__(
        self,
        config: TrainConfig = TrainConfig(),  # noqa: B008 (frozen)
        folder: str | Path | None = None,
        *,
        task: Task | None = None,
        model: str | Path | tuple[Any, Any] | None = None,
        algorithm: Algorithm | None = None,
        planner: SchedulingPolicy | None = None,
        executor: ProcessPool | RayPool | None = None,
        predictor: LengthPredictor | None = None,
        rewards: Rewards | None = None,
        callbacks: Sequence[Callback] = (),
        resume: bool = False,
        progress: bool = True,
    ) -> None:
        given = TrainerOverrides(task, model, algorithm, planner, executor, predictor, rewards)
        parts = resolve(config, given, None if folder is None else Path(folder), resume=resume, progress=progress)
        self.config, self.progress, self.callbacks = config, progress, list(callbacks)
        self.latency, self.cluster, self.planner, self.predictor = parts.latency, parts.cluster, parts.planner, parts.predictor
        self.kept, self.task, self.rewards, self.engines = parts.kept, parts.task, parts.rewards, parts.engines
        self.pool, self._own_pool, self._meta = parts.pool, executor is None, parts.meta
        self._closed = False
        self.watch: Watch | None = None

    @classmethod
    def continue_from(cls, trace: Trace, model: str | Path, *, progress: bool = True, **changes: Any) -> Trainer:
        """Return a trainer that continues after the last step of a trace, in memory; trace and model folder stay unchanged.

        Args:
            trace: of a run of this loop; its lengths are the history for predictions.
            model: the weights after its last step, a folder written by ``save_model``.
            changes: options that differ from the run's own.

        Raises:
            TrainError: the trace does not record its configuration.
        """
        if "config" not in trace.meta:
            raise TrainError("the trace was not recorded by `rlhfless train`; only such a run can be continued")
        trainer = cls(TrainConfig(**{**trace.meta["config"], **changes}), model=model, progress=progress)
        trainer.kept.go_on_after(trace)
        return trainer

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Call the callbacks' ``on_end``, stop the processes of actors, learner and rewards, and remove the weights stored for
        actors. Idempotent.
        """
        with contextlib.ExitStack() as ends:  # all of them, whatever one raises
            ends.callback(self.engines.close)
            ends.callback(self.rewards.close)
            ends.callback(self.kept.close)
            if self.pool is not None and self._own_pool:
                ends.callback(self.pool.close)
            if not self._closed:
                self._closed = True
                for callback in reversed(self.callbacks):
                    ends.callback(callback.on_end, self)

    @property
    def model(self) -> Any:
        """The model that is trained."""
        return self.kept.model

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer."""
        return self.kept.tokenizer

    @property
    def next_step(self) -> int:
        """The number of the next step."""
        return self.kept.position.next_step

    # --- steps --------------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[TrainedStep]:
        """Yield the remaining steps; each runs when it is requested. A new iteration continues where the last one stopped."""
        while self.next_step < self.config.steps:
            yield self.step()

    def run(self) -> Trace | None:
        """Run all remaining steps with a progress bar; return the trace if one is kept. An interrupt keeps completed steps."""
        with tqdm(total=self.config.steps, initial=self.next_step, desc="train", unit="step", disable=not self.progress) as bar:
            for done in self:
                tokens = done.rollouts["response_tokens"].mean()
                bar.set_postfix(reward=f"{done.mean_reward:.2f}", tokens=f"{tokens:.0f}", actors=len(done.plan.actors))
                bar.update()
        return self.kept.trace

    def step(self) -> TrainedStep:
        """Run one whole step: predict, plan, generate, compute rewards, learn, write the trace.

        An interrupted step is either committed or undone. ``next_step`` says which; weights and trace agree with it.

        Raises:
            ActorError: actors failed and the step could not be finished. Its completed responses are in the error's record and
                in a separate trace (``failed_steps.py``). The next call decodes the whole step again.
            PlanningError: the pool's cluster has become smaller; the message names the options with which the run can continue.
        """
        self.kept.settle()
        step, c = self.next_step, self.config
        problems = self.problems_of(step)
        workload = self.predict(problems)
        remaining = self.remaining(problems, workload)
        plan = self.plan(workload, remaining)
        try:
            record = self.generate(plan, problems, step, from_scenarios(workload) if remaining is None else remaining)
        except ActorError as error:
            self._keep_unfinished(error, problems, workload)
            error.resume_with = self._fewer_gpus()
            raise
        except FewerGpus as error:
            if options := options_for(error):
                told = f"{error}: the {step} completed steps are kept, and --resume {options} continues after them"
                raise PlanningError(told) from error
            raise
        if self.pool is not None and step + 1 >= c.steps:
            self.pool.release()  # nobody waits for a step that nobody plans
        with streams_of(c.seed, step):
            began = time.perf_counter()
            responses = read_responses(problems, record, self.tokenizer, c.samples_per_prompt)
            scores = self.rewards.score(responses)
            judging_s = time.perf_counter() - began
            batch = make_batch(responses, scores.values, record, self.tokenizer, c.samples_per_prompt)
            rollouts = rollout_rows(responses, scores.values, workload, record, step // c.steps_per_epoch, c.samples_per_prompt)
            with self.kept.learning():
                learning = self._learn(batch)
                by_profile = self.pool is None and c.charging == "profile"
                latency = self.latency if by_profile else None
                waiting = self.pool is not None  # its actors may wait on their GPUs meanwhile
                record_rest(record, self.cluster, latency, batch, learning, judging_s, c, beside=waiting)
                if self.pool is not None:
                    self.pool.settle(record)
                self.kept.commit(rollouts, record)
        done = TrainedStep(step, plan, record, rollouts, learning, scores.metrics(), self._meta)
        for callback in self.callbacks:
            callback.on_step(self, done)
        return done

    # --- parts of a step ----------------------------------------------------------------------------------------------

    def problems_of(self, step: int) -> list[Problem]:
        """Return the prompts of a step: every epoch shuffles all problems again and deals them out in steps."""
        epoch, part = divmod(step, self.config.steps_per_epoch)
        order = np.random.default_rng([self.config.seed, epoch]).permutation(self.config.prompts)
        size = self.config.prompts_per_step
        return [self.task.problems[i] for i in order[part * size : (part + 1) * size]]

    def predict(self, problems: Sequence[Problem]) -> Workload:
        """Return the workload of a step with predicted lengths and scenarios around them.

        Predictions come from earlier epochs, in the first epoch from the reference answers.
        """
        c, per_prompt = self.config, self.config.samples_per_prompt
        names, answers = [p.prompt_id for p in problems], {p.prompt_id: p.reference_answer_tokens for p in problems}
        predictor, limit = self.predictor.fit(self.kept.position.history), c.max_response_tokens
        predicted = predictor.predict(names, per_prompt, answers, max_response_tokens=limit)
        seed = c.seed + self.next_step
        scenarios = predictor.sample(names, per_prompt, answers, max_response_tokens=limit, scenarios=c.scenarios, seed=seed)
        prompt_tokens = [len(self.tokenizer.encode(p.prompt)) for p in problems]
        owner = np.repeat(np.arange(len(problems)), per_prompt)
        return Workload(prompt_tokens, owner, predicted, max_response_tokens=limit, scenarios=scenarios)

    def remaining(self, problems: Sequence[Problem], workload: Workload) -> RemainingLengths | None:
        """Return the predictor's in-flight forecast for the step whose ``workload`` was predicted
        (``LengthPredictor.in_flight``).

        None if the predictor has no such forecast; re-planning then uses the workload's scenarios.
        """
        return self.predictor.in_flight([p.prompt_id for p in problems], workload)

    def plan(self, workload: Workload, remaining: RemainingLengths | None = None) -> Plan:
        """Return the planner's plan for a workload. It optimises generation only: preparation and learning add the same to
        every plan, because they come afterwards or have their own GPUs.

        Args:
            remaining: forecast for rules that re-plan while the step runs; None takes the workload's scenarios.
        """
        c = self.config
        objective, seed = Objective(c.time_weight), c.seed + self.next_step
        given = PlanningInput(
            workload, self.cluster, self.latency, objective, time_limit_s=c.time_limit_s, seed=seed, remaining=remaining
        )  # fmt: skip
        return self.planner.plan(given)

    def requests(self, problems: Sequence[Problem], step: int) -> list[Request]:
        """One request per response; its random stream depends on (seed, step, prompt, sample) only."""
        c = self.config
        return make_requests(problems, self.tokenizer, c.samples_per_prompt, c.max_response_tokens, c.seed, step)

    def generate(
        self, plan: Plan, problems: Sequence[Problem], step: int, forecast: RemainingLengths | None = None
    ) -> StepRecord:
        """Run the plan on real engines with the current weights.

        Args:
            forecast: of remaining lengths, to re-plan if an actor is lost; None learns them from the step itself.

        Raises:
            ActorError: actors died or failed and the step could not be finished; a resumed run repeats this step.
        """
        engines = self.engines.of_step(self.model, step)
        requests, name = self.requests(problems, step), self._meta["run"]
        given: dict[str, Any] = {"run": name, "step": step, "start_s": self.kept.position.clock_s}
        if self.pool is None:
            return run_step(
                plan, requests, engines, self.latency, self.cluster, charging=self.config.charging, watch=self.watch, **given
            )  # fmt: skip
        return self.pool.run_step(
            plan, requests, engines, self.latency, self.cluster, forecast=forecast, watch=self.watch, **given
        )  # fmt: skip

    def _keep_unfinished(self, error: ActorError, problems: Sequence[Problem], workload: Workload) -> None:
        """Write the completed responses of an unfinished step next to the trace, if a trace is kept and there are any."""
        c, record, writer = self.config, error.record, self.kept.writer
        if writer is None or record is None or not record.completions:
            return
        self.kept.check_folder()
        which = sorted(record.completions)
        responses = read_responses(problems, record, self.tokenizer, c.samples_per_prompt, which)
        unjudged, epoch = np.full(len(which), np.nan), record.step // c.steps_per_epoch
        rows = rollout_rows(responses, unjudged, workload, record, epoch, c.samples_per_prompt, which)
        error.kept_in = keep_unfinished(writer.folder, writer.meta, rows, record, str(error))

    def _fewer_gpus(self) -> str:
        """Options to continue on a pool's cluster that has become smaller; empty if it has not, or cannot be asked."""
        try:
            if isinstance(self.pool, RayPool):
                self.pool.check(self.cluster)
        except FewerGpus as error:
            return options_for(error)
        except Exception:  # Ray itself may be gone
            return ""
        return ""

    def _learn(self, batch: Batch) -> dict[str, float]:
        """Run the algorithm on the step's responses and return its numbers."""
        with one_thread(self.model.device):
            return self.kept.learner.learn(batch)


def train(
    config: TrainConfig,
    folder: str | Path,
    *,
    resume: bool = False,
    model: str | Path | None = None,
    loggers: Sequence[str] = (),
) -> Trace:
    """Run (or resume) a training run; ``folder`` keeps its trace, its last checkpoints, and the final weights in ``model/``.

    Args:
        loggers: names of further metric logs, see ``make_loggers``.
    """
    with Trainer(config, folder, resume=resume, model=model, callbacks=make_loggers(loggers, folder)) as trainer:
        trace = trainer.run()
        trainer.kept.check_folder()
    assert trace is not None
    save_model(trainer.model, trainer.tokenizer, Path(folder) / "model")
    return trace
