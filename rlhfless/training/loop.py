"""The RLHF training loop: predict lengths, plan, generate, compute rewards, learn, write the trace; resumable after each step.

Generation runs on emulated actors, in processes, or on a Ray cluster.
"""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd

from rlhfless.training import missing_torch

try:
    import torch
    from tqdm.auto import tqdm
except ImportError as error:
    raise missing_torch(error) from None

import rlhfless
from rlhfless.engine.common.sampling import Sampling
from rlhfless.engine.protocol import Request
from rlhfless.engine.torch.pretrained import stop_ids_of
from rlhfless.executor import ProcessPool, RayPool, StepFailed, StepRecord, WorkItem, run_step
from rlhfless.executor.distributed.ray.placement import FewerGpus
from rlhfless.executor.step.progress import BETWEEN_STEPS, OnPhase, OnProgress, OnStepEnd, StepProgress
from rlhfless.executor.step.work_rows import add_work
from rlhfless.gone_options import in_sections
from rlhfless.latency import load_profile
from rlhfless.predict import EwmaPredictor
from rlhfless.scheduling import PlanningOptions, PolicyFunction, SchedulingPolicy, make_policy
from rlhfless.system.cleanup import clean_up
from rlhfless.system.notices import notice
from rlhfless.trace import Trace, step_table
from rlhfless.training.algorithms.base import Algorithm
from rlhfless.training.algorithms.lora import save_adapter
from rlhfless.training.callbacks import Callback
from rlhfless.training.chosen import choose
from rlhfless.training.config import TrainConfig, TrainError
from rlhfless.training.config.scheduling import check_loads_weights
from rlhfless.training.config.their_names import OF_TRAINER
from rlhfless.training.draft_history import earlier_responses
from rlhfless.training.engines import (
    TorchEngines,
    make_engines,
    model_context,
    options_after_loss,
    options_for,
    precision_of,
)
from rlhfless.training.evaluation import held_out_problems
from rlhfless.training.factory import (
    EVALUATED_ON,
    LengthPredictor,
    check_installed,
    make_cluster,
    make_evaluator,
    make_problems,
    meta_of,
    pool_of_run,
    warn_of_other_cluster,
    warn_of_other_evaluation,
)
from rlhfless.training.first_line import first_line
from rlhfless.training.given_parts import Given, parts_of
from rlhfless.training.loggers import as_callbacks
from rlhfless.training.models.tiny_model import save_model
from rlhfless.training.planned_calls import check_step_plan, generation_problem, on_mesh
from rlhfless.training.responses import completed_rows, make_requests, rollout_rows
from rlhfless.training.rewards import RewardFunction, Rewards, RewardWarning
from rlhfless.training.rewards.registry import make_rewards
from rlhfless.training.run_start import RunStart, check_first_model, stored_config, what_resumes
from rlhfless.training.run_state import RunState
from rlhfless.training.step_learning import LearningParts, StepLearning
from rlhfless.training.step_result import TrainedStep
from rlhfless.training.streaming import learning_of
from rlhfless.training.tasks import DatasetTask, Problem, Task, digest
from rlhfless.training.tasks.prompt_limit import PromptLimit, longest_prompt, warn_of_left_out
from rlhfless.training.weight_bytes import generated_weight_bytes
from solver.layouts.plan import StepPlan
from solver.lengths.forecast import LengthForecast, check_forecast
from solver.lengths.remaining import RemainingLengths
from solver.lengths.survival import from_scenarios
from solver.model.drafting import Drafting
from solver.model.errors import PlanningError, as_given
from solver.model.objective import Objective
from solver.model.plan import Plan
from solver.model.plurals import counted
from solver.model.problem import PlanningProblem
from solver.model.workload import Workload


class Trainer:
    """One training run, step by step: ``for step in trainer: ...``; closed by a ``with`` statement or by ``close``.

    Components that are not passed are made from ``config``. Passed objects stay the caller's: a passed pool is not closed, and
    the same objects must be passed again to resume the run.

    Args:
        config: options of the run; the defaults when None.
        folder: where trace, checkpoints and the final model go; None keeps none of them (notebooks).
        options: further options by their names, such as ``learning_rate=1e-6``, ``samples_per_prompt=8``, ``steps=100`` or
            ``preset="demo"``; they change those of ``config``. ``TrainConfig`` lists them. A name of TRL or verl raises an
            error that names ours.
        task: a task object, which replaces ``config.task`` (its first ``config.task.prompts`` problems are used, by default
            all), or a name as in ``config.task.name``.
        model: a transformers folder, or a model with its tokenizer, which is trained in place; replaces ``config.model``. A
            resumed run has its own weights: the folder is not read and may be left out, another one is refused, and a passed
            model takes over the run's weights.
        algorithm: an algorithm object made for the passed model, which replaces ``config.algorithm``; or the name of one, such
            as ``"grpo"``, or its options, such as ``PpoConfig(lam=0.95)``.
        planner: plans steps: a policy's name, an object, or a function ``(problem, options) -> Plan``; replaces
            ``config.planner.policy``.
        executor: a pool of real actors, which replaces ``config.cluster.executor``, or a name as in that option.
        predictor: predicts response lengths; replaces the moving average over ``config.planner.window`` epochs. An
            ``InFlightPredictor`` also updates its forecast from tokens and finished siblings while responses are decoded, and
            rules that re-plan follow it.
        rewards: a function as in TRL, ``reward(completions, prompts, **columns) -> list[float]``, or of one response,
            ``reward(response) -> float``; several of them; or ``Rewards``. Replaces ``config.task.rewards``. Or names as in
            that option.
        reward_weights: one weight per reward, if there are several.
        dataset: a list of dicts with the key ``prompt``, a ``datasets.Dataset``, a frame, or what ``task.name`` takes: a
            .jsonl, .json, .csv or .parquet file or a name on the hub. Replaces ``config.task``. Without the key ``answer``,
            rewards that need none have to be given. Conversations may be in ``messages`` or ``conversations``.
        eval_dataset: the prompts to evaluate on, in the same forms; by default rows that are not trained on.
        drafting: settings of speculative decoding; replaces ``config.cluster.drafts``.
        step_plan: a plan of whole steps on the run's cluster (``solver.layouts.plan_step``). It sets the GPUs of generation,
            and the virtual clock takes the times of all other calls from it. Weights and responses do not depend on it.
        callbacks: called in order after every step and at the end: ``Callback`` objects, or names of loggers, which write into
            the folder: ``callbacks=["jsonl", "wandb", Mine()]``.
        resume: True continues the run in ``folder`` after its last checkpoint (``--resume last``). ``"auto"`` does so where the
            folder holds a run, and begins one where it holds none (``--resume auto``). A number of steps continues after the
            checkpoint of so many (``--resume 30``); later steps are removed from the trace.
        progress: show progress on standard error. Its first lines name the learner's device and its threads, the GPUs, engine,
            profile and learning rate, and what the run chose (``choices``); bars of warm-up and ``run`` follow.

    Attributes:
        on_progress: called with the progress of every generation; None for no callback. Its exceptions end the step as an
            interrupt does.
        on_phase: called with the number of the step and the phase that it enters, one of
            ``rlhfless.executor.step.progress.PHASES``; None for no callback. A step that learns while it generates is in
            ``generating`` until its last response is complete. While a loop over the trainer has a complete step, the phase is
            ``BETWEEN_STEPS``.
        on_step_end: called with every step that is committed (``TrainedStep``), or with what ended it; None for no callback.
        choices: what the run chose because no option states it, each as a text such as ``save_every 50``; also in the run's
            ``meta.json``. Empty if every option is given. A resumed run keeps those of its start.
        trains: whether ``train`` or a loop over the trainer is running.
        on_train_end: called when ``train`` or a loop has ended, also by an error, an interrupt or ``break``; None for no
            callback.

    Raises:
        TrainError: the options do not fit, or the folder holds nothing to resume, or a run of other options, parts or problems.
        MissingExtra, InputError: the engine is not installed or its version is not supported, or a component does not fit.
    """

    def __init__(
        self,
        config: TrainConfig | None = None,
        folder: str | Path | None = None,
        *,
        task: Task | str | None = None,
        model: str | Path | tuple[Any, Any] | None = None,
        algorithm: Algorithm | str | None = None,
        planner: str | SchedulingPolicy | PolicyFunction | None = None,
        executor: ProcessPool | RayPool | str | None = None,
        predictor: LengthPredictor | None = None,
        rewards: Rewards | RewardFunction | str | Sequence[RewardFunction | str] | None = None,
        reward_weights: Sequence[float] | None = None,
        dataset: Any = None,
        eval_dataset: Any = None,
        drafting: Drafting | None = None,
        step_plan: StepPlan | None = None,
        callbacks: Callback | str | Sequence[Callback | str] = (),
        resume: bool | int | Literal["auto"] = False,
        progress: bool = True,
        **options: Any,
    ) -> None:
        folder = _folder(folder)
        given = Given(
            task, model, algorithm, planner, executor, predictor, rewards, dataset, eval_dataset, drafting, step_plan,
        )  # fmt: skip
        config, given = parts_of(config, given, reward_weights, options)
        self.callbacks, self.progress = as_callbacks(callbacks, folder), progress
        resume = what_resumes(resume, folder)
        stored = None if resume is False or folder is None else stored_config(folder)
        if folder is not None and stored is not None:
            check_first_model(folder, given.model, stored)
            config = config.resuming(stored)
        check_installed(config)
        on_rows = given.task is None and (given.dataset is not None or config.task.name != "arithmetic")
        config, device, chosen = choose(
            config, given.model, given.executor, own_algorithm=given.algorithm is not None,
            own_rule=not on_rows or given.rewards is not None, saves=folder is not None,
        )  # fmt: skip
        given.check(config, new=stored is None)
        hardware = config.cluster
        assert hardware.profile is not None, "it was chosen"
        self.latency = load_profile(hardware.profile)
        self.cluster = make_cluster(hardware, self.latency)
        self.planner: SchedulingPolicy = given.planner or make_policy(config.planner.policy, tau=config.planner.tau)
        self.drafting: Drafting | None = given.drafting or hardware.drafting
        self.predictor: LengthPredictor = given.predictor or EwmaPredictor(config.planner.window)
        weight_bytes = generated_weight_bytes(
            given.model, None if resume is False else folder, precision_of(config, device.type)
        )
        self.actor_pool: ProcessPool | RayPool | None = given.executor or pool_of_run(
            config, self.cluster, weight_bytes, resumes=resume is not False
        )
        self._owns_pool, self.step_plan, self._closed, self._told_flat = given.executor is None, step_plan, False, False
        try:
            self._begin(config, given, folder, device, chosen, resume)
        except BaseException as error:
            if self.actor_pool is not None and self._owns_pool:
                clean_up(self.actor_pool.close, after=error)
            raise
        self.choices: tuple[str, ...] = tuple(self._meta.get("choices", ()))
        self.on_progress: OnProgress | None = None
        self.on_phase: OnPhase | None = None
        self.on_step_end: OnStepEnd | None = None
        self.trains = False
        self.on_train_end: Callable[[], object] | None = None
        self._learning: tuple[StepRecord, StepLearning] | None = None  # of the running step, once it is generated
        self._phase: tuple[int, str] | None = None
        self._rows: list[pd.DataFrame] = []  # of ``table``, one for each step, where no trace is kept

    def _begin(
        self,
        config: TrainConfig,
        given: Given,
        folder: Path | None,
        device: torch.device,
        chosen: tuple[str, ...],
        resume: bool | int,
    ) -> None:
        """Make the parts that depend on the model from which training starts, and start or resume the run.

        Args:
            device: of the learner's models. chosen: what the run chose, see ``choose``.
        """
        if given.step_plan is not None:
            check_step_plan(given.step_plan, config, self.cluster, self.latency, on_pool=self.actor_pool is not None)
        meta = meta_of(config, given, self.cluster, self.planner, device, self.actor_pool, chosen)
        first = first_line(config, device, self.actor_pool, chosen, given=given.algorithm is not None) if self.progress else ""
        origin = RunStart.of(config, folder, given.model, meta, device=device, resume=resume)
        warn_of_other_cluster(config, origin, device, custom_pool=not self._owns_pool)
        limit = PromptLimit.of(config, model_context(config.cluster.engine, origin.model))
        self.task, self.config, learned_from = make_problems(config, given, origin, limit)
        asked, config = config, self.config
        kept = config if asked.task.prompts is None else asked
        origin = replace(origin, meta={**origin.meta, "problems": learned_from, "config": kept.to_dict()})
        if first and asked.task.prompts is None:
            epochs = f"{counted(len(self._trained_on), 'prompt')}, epochs of {counted(config.steps_per_epoch, 'step')}"
            first += f"\ntrain: task {self.task.name}: {epochs}"
        offloads, rollout = config.task.offload_reward_models, config.rollout
        self.rewards: Rewards = given.rewards or make_rewards(config.task.rewards, self.task, device=device, offloads=offloads)
        longest = longest_prompt(self._trained_on, origin.tokenizer, limit)
        sampling = Sampling(rollout.temperature, rollout.top_p, rollout.top_k, rollout.min_p, rollout.repetition_penalty)
        precision = precision_of(config, device.type, origin.checkpoint_dtype)
        stop_ids = stop_ids_of(origin.model, origin.tokenizer)
        how = (self.rewards, sampling, precision, stop_ids)
        self.evaluator = make_evaluator(config, given, self.task, origin, limit, *how)
        if self.evaluator.problems:
            origin = replace(origin, meta={**origin.meta, EVALUATED_ON: digest(self.evaluator.problems)})
        if isinstance(self.task, DatasetTask) and self.task.left_out:
            assert limit is not None
            warn_of_left_out(self.task.name, self.task.left_out, limit, len(self._trained_on))
        context = rollout.max_model_len or longest + rollout.max_response_tokens
        self.engines = make_engines(config.cluster, origin.model, stop_ids, context, sampling, precision, self.drafting)
        if (memory_gib := config.cluster.memory_gib) is not None:
            assert isinstance(self.engines, TorchEngines), "the configuration refuses others"
            self.latency = self.engines.within(self.latency, int(memory_gib * 2**30))
        if first and origin.is_cold:  # has no checkpoint that could be refused; the lines stand before the bar of the warm-up
            notice(first)
        origin.warm_up(config.seed, progress=self.progress)
        self.state = RunState.begin(origin, config, folder, given.algorithm)  # last: before it nothing is written
        if self.state.writer is not None:
            warn_of_other_evaluation(self.state.writer, origin.meta.get(EVALUATED_ON))
        if first and not origin.is_cold:
            notice(first)
        self._meta = origin.meta

    @classmethod
    def continue_from(cls, trace: Trace, model: str | Path, *, progress: bool = True, **changes: Any) -> Trainer:
        """Return a trainer that continues after the last step of a trace, in memory; the trace and the model folder are not
        changed.

        Args:
            trace: trace of an earlier training run; its lengths are the history for predictions.
            model: folder with the weights after its last step, written by ``save_model``; exact in float32.
            changes: keys of the configuration to change, see ``TrainConfig.replace``.

        Raises:
            TrainError: the trace does not record its configuration.
        """
        if "config" not in trace.meta:
            raise TrainError("the trace was not recorded by `rlhfless train`; only such a run can be continued")
        config = TrainConfig.of_stored(in_sections(trace.meta["config"])).replace(**changes)
        trainer = cls(config, model=model, progress=progress)
        trainer.state.go_on_after(trace)
        return trainer

    def __repr__(self) -> str:
        weights = sum(int(weight.numel()) for weight in self.model.parameters())
        name = self._meta.get("base_model") or type(self.model).__name__
        where = "" if self.state.writer is None else f", in {self.state.writer.folder}"
        return (
            f"Trainer({self.config.algorithm.name} of {name}, {weights:,} weights: {self.next_step} of "
            f"{counted(self.config.steps, 'step')} complete{where})"
        )

    if not TYPE_CHECKING:  # which would then know every attribute

        def __getattr__(self, name: str) -> Any:
            """Refuse an attribute of TRL's trainers with what to do in its place, and others as Python does."""
            if name not in OF_TRAINER:
                return object.__getattribute__(self, name)  # raises what was raised, also by a property
            raise AttributeError(f"Trainer has no attribute {name!r}; {OF_TRAINER[name]}", name=name, obj=self)

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        clean_up(self.close, after=error)

    def close(self) -> None:
        """Call the callbacks' ``on_end``, stop the processes of actors, learner and rewards, and remove the weights stored for
        actors. Idempotent.
        """
        ends: list[Callable[[], object]] = []
        if not self._closed:
            self._closed = True
            ends += [partial(callback.on_end, self) for callback in self.callbacks]
        ends.append(self.state.close)  # before the pool leaves Ray, where the learner's processes may be
        if self.actor_pool is not None and self._owns_pool:
            ends.append(self.actor_pool.close)
        clean_up(*ends, self.rewards.close, self.engines.close)

    def save_model(
        self, folder: str | Path | None = None, dtype: Literal["float32", "bfloat16", "float16"] | None = None
    ) -> None:
        """Write the model and its tokenizer into a folder in transformers' format.

        Training resumes from the checkpoints, whose weights are in float32.

        Args:
            folder: None: ``model/`` in the run's folder.
            dtype: number format of the weights; None: that of the model with which the run started.

        Raises:
            TrainError: there is no such format, or no folder, or it could not be written, as on a full disk; earlier content
                is unchanged.
        """
        if folder is None:
            if self.state.writer is None:
                raise TrainError("the run has no folder to write the model into; give save_model(FOLDER)")
            folder = self.state.writer.folder / "model"
        formats = ("float32", "bfloat16", "float16")
        name = self._meta.get("checkpoint_dtype", "float32") if dtype is None else str(dtype).removeprefix("torch.")
        if dtype is not None and name not in formats:
            raise TrainError(f"dtype is {as_given(dtype)}; one of {', '.join(formats)} is needed")
        save_model(self.model, self.tokenizer, folder, name)

    def save_adapter(self, folder: str | Path) -> None:
        """Write the adapters of a run with ``lora_rank`` in PEFT's format.

        ``peft.PeftModel.from_pretrained(base_model, folder)`` reads it. The adapter names the model that the run began with.
        Where that was an object or a new model, it names the folder ``warm`` of the run.

        Raises:
            TrainError: the run trains all weights, or it could not be written.
        """
        adapted = getattr(self.state.learner, "adapted", None)
        if adapted is None:
            raise TrainError("the run trains all weights, so it has no adapter (lora_rank); write the model with save_model")
        warm = None if self.state.writer is None else str((self.state.writer.folder / "warm").resolve())
        save_adapter(adapted, Path(folder), self._meta.get("base_model") or warm)

    def save_final_model(self) -> None:
        """Write the model into ``model/`` of the run's folder, and with ``lora_rank`` the adapter alone into ``adapter/``. The
        last step does so. Without a folder nothing is written: see ``save_model``.

        Raises:
            TrainError: it could not be written, as on a full disk, or files of the run were removed.
        """
        if self.state.writer is None:
            return
        self.state.check_folder()
        folder = self.state.writer.folder
        self.save_model(folder / "model")
        if self.config.optimizer.lora_rank is not None:
            self.save_adapter(folder / "adapter")

    @property
    def model(self) -> Any:
        """The model that is trained."""
        return self.state.model

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer."""
        return self.state.tokenizer

    @property
    def table(self) -> pd.DataFrame:
        """One row per complete step (``rlhfless.trace.step_table``): reward, tokens, actors, GPU-seconds, cost and more. An
        evaluation before the first step has a row of step -1, in which all else is unknown.

        ``rlhfless.plots.plot_curves(trainer)`` draws it. Without a folder it has the steps that this trainer ran.
        """
        if (writer := self.state.writer) is not None:
            return step_table(writer.trace) if writer.steps else pd.DataFrame()
        return pd.concat(self._rows, ignore_index=True) if self._rows else pd.DataFrame()

    @property
    def next_step(self) -> int:
        """The number of the next step."""
        return self.state.position.next_step

    def __iter__(self) -> Iterator[TrainedStep]:
        """Yield the remaining steps; each runs when it is requested. A new iteration continues where the last one stopped."""
        with contextlib.closing(self._remaining()) as steps:
            for done in steps:
                self._enter(done.step, BETWEEN_STEPS)
                yield done

    def _remaining(self) -> Generator[TrainedStep]:
        self.trains = True
        try:
            while self.next_step < self.config.steps:
                yield self.step()
        finally:
            self.trains = False
            if self.on_train_end is not None:
                self.on_train_end()

    def train(self, **theirs: Any) -> Trace | None:
        """Run all remaining steps with a progress bar; return the trace if one is kept. An interrupt keeps completed steps.

        Where the trainer has a folder, its ``model/`` has the final model, see ``save_final_model``, and its tables have all
        steps.

        Args:
            theirs: arguments of TRL's ``train``, which are refused with ours.

        Raises:
            TrainError: an argument is given.
        """
        for name in theirs:
            raise TrainError(
                f"train has no argument {name!r}: a run is resumed where its trainer is made, Trainer(..., resume='auto')"
                if name == "resume_from_checkpoint"
                else f"train has no argument {name!r}; options are given to Trainer"
            )
        if self.next_step >= self.config.steps:
            self.save_final_model()  # of a resumed run, where somebody may have moved it
        bar: dict[str, Any] = {"initial": self.next_step, "desc": "train", "unit": "step", "disable": not self.progress}
        with tqdm(total=self.config.steps, **bar) as steps, contextlib.closing(self._remaining()) as remaining:
            for done in remaining:
                steps.set_postfix(done.in_short)
                steps.update()
        self.state.merge_trace()
        return self.state.trace

    def evaluate(self) -> dict[str, float]:
        """Evaluate the current weights on held-out prompts: ``eval_dataset``, or prompts that are not trained on.

        Returns the numbers of ``Evaluator.numbers``. They are not written to the trace; those of ``eval_every`` are.

        Raises:
            TrainError: there are too few held-out prompts.
        """
        if not self.evaluator.problems:
            prompts = len(self._trained_on)
            held_out = held_out_problems(self.task, prompts, self.config.task.eval_prompts)
            self.evaluator = self.evaluator.on(held_out, self.task)
        return self.evaluator.numbers(self.model, self.next_step)

    def step(self) -> TrainedStep:
        """Run one whole step: predict, plan, generate, compute rewards, learn, write the trace. The last one writes the final
        model, see ``save_final_model``.

        An interrupted step is either committed or undone. ``next_step`` says which; weights and trace agree with it.

        Raises:
            StepFailed: the step could not be generated. Its completed responses are in the error's record and
                in a separate trace (``failed_steps.py``). The next call decodes the whole step again.
            PlanningError: the pool's cluster has become smaller; the message names the options with which the run can continue.
            RewardError: no response has a reward.

        Warns:
            RewardWarning: some responses have no reward; or, once per trainer, nothing was learned from a step.
        """
        self.state.restore_if_in_doubt()
        self._phase = None  # also where the step is repeated
        try:
            with contextlib.ExitStack() as in_doubt:
                done = self._step(self.next_step, in_doubt)
        except BaseException as error:
            if self.on_step_end is not None:
                self.on_step_end(error)
            raise
        finally:
            self._learning = None
        if self.state.writer is None:
            self._rows = [*(row for row in self._rows if row["step"].max() < done.step), step_table(done.trace)]
        if self.on_step_end is not None:
            self.on_step_end(done)
        for callback in self.callbacks:
            callback.on_step(self, done)
        if self.next_step >= self.config.steps:
            self.save_final_model()
        return done

    def _step(self, step: int, in_doubt: contextlib.ExitStack) -> TrainedStep:
        c, samples, epoch = self.config, self.config.rollout.samples_per_prompt, step // self.config.steps_per_epoch
        first = self._evaluated(step, 0) if step == 0 else {}
        self._enter(step, "starting")
        problems, began = self.problems_of(step), time.perf_counter()
        forecast = self.forecast(problems)
        workload = self.workload(problems, forecast)
        plan, remaining = self.plan(workload, forecast), forecast.remaining
        planning = self.state.planning_time(time.perf_counter() - began, overlaps=self.actor_pool is None)
        given = (self.state, self.rewards, problems, step, c, self.cluster, self.latency, plan, workload)
        rest = (self.actor_pool, self.step_plan, self.engines, partial(self._enter, step))
        learning = learning_of(LearningParts(*given, *rest))
        learning.begin(in_doubt)
        try:
            remaining = from_scenarios(workload) if remaining is None else remaining
            record = self.generate(plan, problems, step, remaining, learning.work)
        except StepFailed as error:
            if learning.failure is not None:
                raise learning.failure from None
            whose = (error.record, self.tokenizer, epoch, samples)
            rows = partial(completed_rows, problems, workload, *whose)
            clean_up(partial(self.state.keep_completed, error, rows), after=error)
            error.resume_with = options_after_loss(self.actor_pool, self.cluster)
            raise
        except FewerGpus as error:
            if options := options_for(error):
                message = f"{error}: the {step} completed steps are kept, and --resume last {options} continues after them"
                raise PlanningError(message) from error
            raise
        if self.actor_pool is not None and step + 1 >= c.steps:
            self.actor_pool.release()  # nobody waits for a step that nobody plans
        self._learning = record, learning
        responses, scores, numbers, work, planned = learning.learn(record, in_doubt)
        self._learning = None  # from here on the record itself is written
        if work:
            add_work(record, work, self.cluster)
        if planned is not None:
            record.event(record.start_s, "learner", None, **planned)
        self._warn_if_flat(step, scores.values, numbers)
        evaluation = self._evaluated(step, step + 1)
        self._enter(step, "saving")
        self.evaluator.enter(record, first, 0)
        self.evaluator.enter(record, evaluation, step + 1)
        rollouts = rollout_rows(responses, scores.values, workload, record, epoch, samples, logged=scores.log.columns)
        if self.actor_pool is not None:
            self.actor_pool.finalise_allocations(record)
        self.state.commit(rollouts, record, planning)
        return TrainedStep(step, plan, record, rollouts, planning, numbers, scores.metrics(), evaluation, self._meta, first)

    def _warn_if_flat(self, step: int, rewards: np.ndarray, numbers: Mapping[str, float]) -> None:
        """Warn of the first step whose groups all have equal rewards, where responses to a prompt are compared.

        Args:
            numbers: of the algorithm; only those that compare responses have ``flat_groups``.
        """
        if self._told_flat or numbers.get("flat_groups") != 1.0:
            return
        self._told_flat = True
        known = np.unique(rewards[~np.isnan(rewards)])
        equal = f"all rewards are {known[0]:g}" if len(known) == 1 else "the responses to each prompt have equal rewards"
        parts = ", ".join(repr(reward.name) for reward, _ in self.rewards.parts)
        warnings.warn(
            f"step {step}: {equal}, so nothing was learned from them; look at the columns prompt, response and reward of its "
            f"rollouts, and at whether {parts} can tell such responses apart",
            RewardWarning,
            stacklevel=2,
        )

    def _evaluated(self, step: int, after_steps: int) -> dict[str, float]:
        if self.evaluator.due(after_steps):
            self._enter(step, "evaluating")
        return self.evaluator.of_weights(self.model, after_steps)

    def _enter(self, step: int, phase: str) -> None:
        """Report the phase of a step, unless it is in it already."""
        if self.on_phase is not None and (step, phase) != self._phase:
            self._phase = (step, phase)
            self.on_phase(step, phase)

    @property
    def generated(self) -> StepRecord | None:
        """The record of the running step, from the end of its generation to the end of learning; None at other times."""
        return None if self._learning is None else self._learning[0]

    def learning_so_far(self) -> StepRecord | None:
        """Return a copy of the running step's record as if rewards and learning ended now; thread-safe.

        None if neither is running, or if its seconds are not known before it ends.
        """
        if (running := self._learning) is None:
            return None
        record, learning = running
        if (work := learning.so_far()) is None:
            return None
        copied = record.without_spans()
        add_work(copied, work, self.cluster)
        return copied if self._learning is running else None  # else the copy may hold what was entered meanwhile

    def live(self) -> Any:
        """Return a view for a notebook: timeline, cost and idle share of the steps while they run, with buttons that start and
        pause them; see ``rlhfless.live``.
        """
        return rlhfless.live(self)

    def problems_of(self, step: int) -> list[Problem]:
        """Return the prompts of a step. Every epoch shuffles all problems and splits them into steps.

        Problems that do not fill a whole step are dropped, or form the last step of the epoch (``task.drop_last``).
        """
        epoch, part = divmod(step, self.config.steps_per_epoch)
        order = np.random.default_rng([self.config.seed, epoch]).permutation(len(self._trained_on))
        size = self.config.rollout.prompts_per_step
        return [self._trained_on[i] for i in order[part * size : (part + 1) * size]]

    @property
    def _trained_on(self) -> Sequence[Problem]:
        return self.task.problems[: self.config.task.prompts]

    def forecast(self, problems: Sequence[Problem]) -> LengthForecast:
        """Return the predictor's forecast of a step's responses.

        It comes from earlier visits of the prompt. On its first visit it comes from a reference as long as a good response,
        where the task has one, else from the responses of earlier steps, and in the first step it is half of
        ``rollout.max_response_tokens``.
        """
        c, rollout, names = self.config, self.config.rollout, [p.prompt_id for p in problems]
        references = {p.prompt_id: p.reference_answer_tokens for p in problems if p.reference_answer_tokens}
        forecast = self.predictor.fit(self.state.position.history).forecast(
            names, rollout.samples_per_prompt, references,
            max_response_tokens=rollout.max_response_tokens, prompt_tokens=self._prompt_tokens(problems),
            scenarios=c.planner.scenarios, seed=c.seed + self.next_step,
        )  # fmt: skip
        check_forecast(forecast)
        return forecast

    def workload(self, problems: Sequence[Problem], forecast: LengthForecast) -> Workload:
        """Return the workload of a step: its responses with their forecast lengths and length scenarios."""
        rollout = self.config.rollout
        owner = np.repeat(np.arange(len(problems)), rollout.samples_per_prompt)
        return forecast.workload(self._prompt_tokens(problems), owner, rollout.max_response_tokens)

    def _prompt_tokens(self, problems: Sequence[Problem]) -> list[int]:
        return [len(self.tokenizer.encode(p.prompt)) for p in problems]

    def plan(self, workload: Workload, forecast: LengthForecast | None = None) -> Plan:
        """Return the planner's plan for a workload; a resumed run makes the same plan.

        It optimises generation only: preparation and learning come afterwards or have GPUs of their own, so they add the same
        to every plan.

        Args:
            forecast: its remaining lengths are used by rules that re-plan while the step runs; None: the workload's scenarios
                are used.
        """
        c = self.config
        objective, seed = Objective(c.planner.time_weight), c.seed + self.next_step
        problem = generation_problem(PlanningProblem(workload, self.cluster, self.latency, objective), self.step_plan)
        options = PlanningOptions(seed=seed, forecast=forecast)
        return replace(on_mesh(self.planner.plan(problem, options), self.step_plan), drafting=self.drafting)

    def requests(self, problems: Sequence[Problem], step: int) -> list[Request]:
        """Return one request per response; its random stream depends on (seed, step, prompt, sample) only."""
        rollout, seed, names = self.config.rollout, self.config.seed, [p.prompt_id for p in problems]
        earlier = earlier_responses(self.state.position.history, names, self.tokenizer.encode, self.drafting)
        most = rollout.max_response_tokens
        return make_requests(problems, self.tokenizer, rollout.samples_per_prompt, most, seed, step, earlier)

    def generate(
        self,
        plan: Plan,
        problems: Sequence[Problem],
        step: int,
        remaining: RemainingLengths | None = None,
        work: Sequence[WorkItem] = (),
    ) -> StepRecord:
        """Run the plan on real engines with the current weights.

        Args:
            remaining: forecast of remaining lengths, for re-planning if an actor is lost; None: estimated from the step itself.
            work: work items that run during generation.

        Raises:
            StepFailed: the step could not be finished; a resumed run repeats it.
        """
        self._enter(step, "weight sync")
        engines = self.engines.of_step(self.model, step)
        check_loads_weights(engines.capabilities)
        requests, name = self.requests(problems, step), self._meta["run"]
        start_s, charging, watch = self.state.position.clock_s, self.config.cluster.charging, self._watching(step, work)
        options: dict[str, Any] = {"run": name, "step": step, "start_s": start_s, "on_progress": watch, "work": work}
        if self.actor_pool is None:
            return run_step(plan, requests, engines, self.latency, self.cluster, charging=charging, **options)
        return self.actor_pool.run_step(plan, requests, engines, self.latency, self.cluster, forecast=remaining, **options)

    def _watching(self, step: int, work: Sequence[WorkItem]) -> OnProgress | None:
        """Return the callback for progress of a step: it reports when generation begins, and when only ``work`` is left."""
        if self.on_phase is None:
            return self.on_progress
        after = "learning" if any(item.kind == "learn" for item in work) else "rewards"

        def on_progress(progress: StepProgress) -> None:
            self._enter(step, after if work and progress.completed == progress.of else "generating")
            if self.on_progress is not None:
                self.on_progress(progress)

        return on_progress


def _folder(given: Any) -> Path | None:
    """Return the folder of a run; anything but a path is refused, as is a second argument without a name."""
    if given is not None and not isinstance(given, str | PathLike):
        raise TrainError(
            f"folder is {as_given(given)}; the path of a folder is needed, and other arguments by name: rewards=..."
        )
    return None if given is None else Path(given)


def train(
    config: TrainConfig,
    folder: str | Path,
    *,
    resume: bool | int | Literal["auto"] = False,
    model: str | Path | None = None,
    callbacks: Callback | str | Sequence[Callback | str] = (),
) -> Trace:
    """Run (or resume) a training run; ``folder`` keeps its trace, its last checkpoints, and the final model.

    Args:
        resume, model, callbacks: see ``Trainer``.
    """
    with Trainer(config, folder, resume=resume, model=model, callbacks=callbacks) as trainer:
        trace = trainer.train()
    assert trace is not None
    return trace
