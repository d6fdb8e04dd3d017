"""Makes every component of a trainer (model, planner, predictor, pool, rewards, ...) from a ``TrainConfig``.

Objects that the caller passes replace the configured ones. This is the only place where a configuration's names become
objects.
"""

from __future__ import annotations

import json
import platform
import secrets
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Protocol

import pandas as pd

from rlhfless.training import missing_torch

try:
    import torch
except ImportError as error:
    raise missing_torch(error) from None

from rlhfless.engine.torch.kernel_bits import kernel_bits
from rlhfless.engine.torch.pretrained import stop_ids_of
from rlhfless.engine.torch.sampling import Sampling
from rlhfless.executor import ProcessPool, RayPool
from rlhfless.executor.distributed.ray.placement import FewerGpus
from rlhfless.latency import PriceError, load_profile, usd_per_gpu_hour
from rlhfless.predict import EwmaPredictor
from rlhfless.scheduling import SchedulingPolicy, as_policy, make_policy
from rlhfless.system.cleanup import clean_up
from rlhfless.system.notices import notice
from rlhfless.trace import TraceWriter
from rlhfless.training.algorithms.base import Algorithm
from rlhfless.training.algorithms.lora import check_lora
from rlhfless.training.chosen import choose
from rlhfless.training.config import ReproducibilityWarning, TrainConfig, TrainError
from rlhfless.training.draft_history import check_drafting
from rlhfless.training.engines import (
    Engines,
    TorchEngines,
    check_engine,
    check_parts_of_actors,
    make_engines,
    make_pool,
    model_context,
    options_for,
    precision_of,
    same_bits,
)
from rlhfless.training.evaluation import Evaluator
from rlhfless.training.first_line import first_line
from rlhfless.training.learner.process_group import check_learner
from rlhfless.training.planned_calls import check_step_plan
from rlhfless.training.rewards import Rewards
from rlhfless.training.rewards.registry import compare_with_answers, make_rewards, need_answers
from rlhfless.training.run_start import RunStart, check_first_model, stored_config, what_resumes
from rlhfless.training.run_state import RunState
from rlhfless.training.tasks import DatasetTask, Task, digest, make_task
from rlhfless.training.tasks.dataset import TooFewRows
from rlhfless.training.tasks.given_rows import GivenRows, sized
from rlhfless.training.tasks.prompt_limit import PromptLimit, longest_prompt, warn_of_left_out
from rlhfless.training.weight_bytes import generated_weight_bytes
from solver.layouts.plan import StepPlan
from solver.lengths.forecast import LengthForecast
from solver.model.cluster import Cluster
from solver.model.drafting import Drafting
from solver.model.errors import PlanningError
from solver.model.latency import LatencyModel
from solver.model.plurals import counted

PROMPTS_NAMED = "prompts_named"
"""Key of ``meta.json`` that runs have whose prompts are named by rows alone; earlier ones keep the names that they have."""

EVALUATED_ON = "evaluated_on"
"""Key of ``meta.json``: digest of the held-out prompts that the run evaluates on, where it has any."""


class LengthPredictor(Protocol):
    """Interface of predictors that a trainer accepts: predict response lengths from the rollouts of earlier steps.

    ``EwmaPredictor`` documents the arguments.
    """

    def fit(self, history: pd.DataFrame) -> LengthPredictor:
        """Learn from the rollouts of all earlier steps, replacing what was learned before. Returns the predictor."""
        ...

    def forecast(
        self,
        prompt_ids: Sequence[str],
        samples_per_prompt: int,
        reference_answer_tokens: Mapping[str, int] | None,
        *,
        max_response_tokens: int,
        prompt_tokens: Sequence[int],
        scenarios: int,
        seed: int,
    ) -> LengthForecast:
        """Return the forecast of the step's responses, those of a prompt next to each other; determined by ``seed``."""
        ...


@dataclass(frozen=True)
class TrainerOverrides:
    """Objects that replace what the configuration names; None keeps the configured component. ``Trainer`` documents them."""

    task: Task | None = None
    model: str | Path | tuple[Any, Any] | None = None
    algorithm: Algorithm | None = None
    planner: SchedulingPolicy | None = None
    executor: ProcessPool | RayPool | None = None
    predictor: LengthPredictor | None = None
    rewards: Rewards | None = None
    dataset: GivenRows | None = None
    drafting: Drafting | None = None
    step_plan: StepPlan | None = None
    eval_dataset: GivenRows | None = None

    def __post_init__(self) -> None:
        """Make an object of a policy's name or function."""
        if self.planner is not None:
            object.__setattr__(self, "planner", as_policy(self.planner))

    def given_in_python(self) -> dict[str, Any]:
        """Return what a run stores of the objects it was started with: see ``names``, rewards with their weights, and rows.

        A resumed run must be given the same rewards. Two functions of one name are distinguished by nobody.
        """
        stored: dict[str, Any] = {"given": self.names()}
        if self.rewards is not None:
            stored["rewards"] = {reward.name: float(weight) for reward, weight in self.rewards.parts}
        if self.dataset is not None:
            stored["dataset"] = self.dataset.name
        return stored

    def names(self) -> dict[str, str]:
        """Return the class name of every passed object except the model; a resumed run must be given the same classes.

        The model is left out because a run keeps its own weights, and the data set because its problems are compared. Settings
        of drafts and the step plan are left out because they change no response.
        """
        left_out = ("model", "dataset", "drafting", "step_plan", "eval_dataset")
        components = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in left_out}
        return {name: f"{type(x).__module__}.{type(x).__qualname__}" for name, x in components.items() if x is not None}


@dataclass(frozen=True)
class TrainerComponents:
    """All components of a trainer.

    Attributes:
        config: options of the run; with fewer prompts than were asked for if too many of a data set's are too long.
        actor_pool: where actors run on the wall clock; None emulates them on the virtual clock.
        state: state of the run: model, tokenizer, algorithm and progress. meta: what ``meta.json`` records of the run.
    """

    config: TrainConfig
    latency: LatencyModel
    cluster: Cluster
    planner: SchedulingPolicy
    predictor: LengthPredictor
    actor_pool: ProcessPool | RayPool | None
    state: RunState
    task: Task
    rewards: Rewards
    engines: Engines
    evaluator: Evaluator
    drafting: Drafting | None
    meta: Mapping[str, Any]


def resolve(
    config: TrainConfig, overrides: TrainerOverrides, folder: Path | None, *, resume: bool | int | str, progress: bool
) -> TrainerComponents:
    """Make the components of a run that is started or resumed.

    Raises:
        TrainError, InputError, MissingExtra, PlanningError: see ``Trainer``.
    """
    resume = what_resumes(resume, folder)
    stored = None if resume is False or folder is None else stored_config(folder)
    if folder is not None and stored is not None:
        check_first_model(folder, overrides.model, stored)
        config = config.resuming(stored)
    check_engine(config.cluster.engine)
    own_algorithm = overrides.algorithm is not None
    on_rows = overrides.task is None and (overrides.dataset is not None or config.task.name != "arithmetic")
    config, device, chosen = choose(
        config, overrides.model, overrides.executor, own_algorithm=own_algorithm,
        own_rule=not on_rows or overrides.rewards is not None, saves=folder is not None,
    )  # fmt: skip
    hardware = config.cluster
    assert hardware.profile is not None
    if overrides.executor is not None:
        hardware.check_wall_clock("a pool as executor")
    if overrides.algorithm is not None and not isinstance(overrides.model, tuple):
        raise TrainError("algorithm needs its model; give model=(model, tokenizer) as well")
    if overrides.algorithm is None:
        check_learner(config.algorithm.name, processes=hardware.learner_processes, **config.learner_options())
    elif hardware.learner_processes > 1:
        raise TrainError(
            f"cluster.learner_processes is {hardware.learner_processes}, but an algorithm object learns in this process; give 1"
        )
    if overrides.algorithm is not None and config.optimizer.num_mini_batches > 1:
        raise TrainError(
            f"optimizer.num_mini_batches is {config.optimizer.num_mini_batches}, but an algorithm object makes its own "
            "updates; give 1"
        )
    if config.optimizer.lora_rank is not None:
        check_lora()
        if overrides.algorithm is not None:
            raise TrainError(
                f"optimizer.lora_rank is {config.optimizer.lora_rank}, but an algorithm object decides what it trains; leave "
                "it out"
            )
    pieces, made = ("begin", "add", "finish"), overrides.algorithm
    if hardware.learning == "stream" and made is not None and not all(hasattr(made, name) for name in pieces):
        raise TrainError(
            f"algorithm {type(made).__name__} lacks some of the methods {', '.join(pieces)}, which learning 'stream' needs; "
            "add them, or choose learning 'batch'"
        )
    if stored is None:
        _check_complete(config, overrides)
    latency = load_profile(hardware.profile)
    check_parts_of_actors(hardware, latency)
    per_node = hardware.gpus_of_node
    try:
        price = usd_per_gpu_hour(latency.kind) if hardware.usd_per_gpu_hour is None else hardware.usd_per_gpu_hour
    except PriceError as error:
        raise PriceError(f"{error}; or give cluster.usd_per_gpu_hour") from None
    cluster = Cluster(hardware.gpu_count // per_node, per_node, latency.gpus_per_actor, latency.kind, price)
    if hardware.learner_grows and (hardware.learner_gpus or 0) % latency.gpus_per_actor:
        raise TrainError(
            f"cluster.learner_gpus is {hardware.learner_gpus}, but a learner that grows needs a multiple of the "
            f"{counted(latency.gpus_per_actor, 'GPU')} of an actor"
        )
    if hardware.preparation == "after" and hardware.preparation_actors > cluster.nodes * cluster.actors_per_node:
        raise TrainError(
            f"cluster.preparation_actors is {hardware.preparation_actors}, but the cluster's GPUs are enough for "
            f"{cluster.nodes * cluster.actors_per_node}; give at most as many, or cluster.preparation 'overlap', which has "
            "its own GPUs"
        )
    planner = overrides.planner or make_policy(config.planner.policy, tau=config.planner.tau)
    if planner.clairvoyant:
        raise TrainError(
            f"planner.policy {planner.name!r} needs the true lengths, which are unknown before generation; choose another"
        )
    drafting = overrides.drafting or hardware.drafting
    check_drafting(drafting, planner)
    predictor = overrides.predictor or EwmaPredictor(config.planner.window)
    try:
        resumed = None if resume is False else folder
        weight_bytes = generated_weight_bytes(overrides.model, resumed, precision_of(config, device.type))
        pool = overrides.executor or make_pool(hardware, cluster, config.planner.time_weight, weight_bytes)
    except FewerGpus as error:
        if resume is not False and (options := options_for(error)):
            raise PlanningError(
                f"{error}: completed steps are kept, and --resume last {options} continues after them"
            ) from error
        raise
    if overrides.step_plan is not None:
        check_step_plan(overrides.step_plan, config, cluster, latency, on_pool=pool is not None)
    meta = meta_of(config, cluster, planner, device) | overrides.given_in_python() | ({} if pool is None else pool.meta)
    given = overrides.task or overrides.dataset
    meta["run"] = config.task.name if given is None else given.name
    if overrides.step_plan is not None:
        meta["step_plan"] = json.loads(overrides.step_plan.to_json())
    meta["choices"] = list(chosen)
    meta[PROMPTS_NAMED] = "by row"
    meta["run_id"] = secrets.token_hex(4)  # of a new run; a resumed one has its own
    line = first_line(config, device, pool, chosen, given=own_algorithm) if progress else None
    try:
        overrides = replace(overrides, drafting=drafting)
        model = _of_the_model(config, overrides, folder, device, latency, meta, resume, line)
    except BaseException as error:
        if pool is not None and overrides.executor is None:
            clean_up(pool.close, after=error)
        raise
    return TrainerComponents(cluster=cluster, planner=planner, predictor=predictor, actor_pool=pool, **model)


def _check_complete(config: TrainConfig, overrides: TrainerOverrides) -> None:
    """Check that a new run states what to train on.

    Raises:
        TrainError: it is not; the message names what is missing, and the demonstration, which needs nothing.
    """
    if overrides.task is None and overrides.dataset is None and config.task.name is None:
        model = "" if overrides.model is not None else "model=FOLDER and "
        what = "no data set" if overrides.model is not None else "neither a model nor a data set"
        raise TrainError(
            f"{what} is given; give {model}dataset=... (on the command line task.name=FILE), or preset='demo', which trains "
            "a tiny model on arithmetic"
        )


def _of_the_model(
    config: TrainConfig,
    overrides: TrainerOverrides,
    folder: Path | None,
    device: torch.device,
    latency: LatencyModel,
    meta: Mapping[str, Any],
    resume: bool | int,
    first: str | None,
) -> dict[str, Any]:
    """Make the components that depend on the model from which training starts.

    Args:
        first: line of the run, printed once all options are checked; None: the run shows no progress.
    """
    hardware, rollout = config.cluster, config.rollout
    origin = RunStart.of(config, folder, overrides.model, meta, device=device, resume=resume)
    exact = same_bits(config, device.type, origin.checkpoint_dtype, custom_pool=overrides.executor is not None)
    if (was := origin.earlier_cluster) and not exact:
        warning = (
            f"{folder}: the run was on {_gpus_of(was)} and continues on {_gpus_of(meta['cluster'])}: completed steps are kept, "
        )
        warnings.warn(warning + "but later responses are not the same bit for bit", ReproducibilityWarning, stacklevel=2)
    tokenizer = origin.tokenizer
    limit = PromptLimit.of(config, model_context(hardware.engine, origin.model))
    as_before = origin.writer is not None and PROMPTS_NAMED not in origin.writer.meta
    changed = TrainError(
        f"{folder}: the prompts or answers of task {meta['run']!r} have changed since the run was started; resume it with the "
        "same data set, or start a new run"
    )
    try:
        task = overrides.task or _task(config, overrides, tokenizer, limit, as_before=as_before)
    except TooFewRows as error:
        raise (error if origin.writer is None else changed) from None
    asked, config = config, sized(config, task, _why_left_out(task, limit))
    given, prompts = config.task, config.task.prompts
    assert prompts is not None
    stored = config if asked.task.prompts is None else asked
    if first is not None and asked.task.prompts is None:
        per_epoch = counted(config.steps_per_epoch, "step")
        first += f"\ntrain: task {task.name}: {counted(prompts, 'prompt')}, epochs of {per_epoch}"
    problems = task.problems[:prompts]
    if len({problem.prompt_id for problem in problems}) < prompts:
        if origin.writer is not None:
            raise changed
        raise TrainError(
            f"task {task.name!r} has {len({p.prompt_id for p in task.problems})} distinct problems, but prompts is "
            f"{prompts}; choose at most as many"
        )
    learned_from = digest(problems)
    if origin.writer is not None and origin.writer.meta.get("problems", learned_from) != learned_from:
        raise changed
    origin = replace(origin, meta={**origin.meta, "problems": learned_from, "config": stored.to_dict()})
    rewards = overrides.rewards or make_rewards(given.rewards, task, device=device, offloads=given.offload_reward_models)
    longest = longest_prompt(problems, tokenizer, limit)
    max_context_tokens = rollout.max_model_len or longest + rollout.max_response_tokens
    sampling = Sampling(rollout.temperature, rollout.top_p, rollout.top_k, rollout.min_p, rollout.repetition_penalty)
    precision, stop_ids = precision_of(config, device.type, origin.checkpoint_dtype), stop_ids_of(origin.model, tokenizer)
    evaluates = overrides.eval_dataset is not None
    compares = overrides.rewards is None and need_answers(given.rewards)
    how = (rewards, tokenizer, sampling, precision, stop_ids)
    evaluator = Evaluator.of(config, task, *how, device=origin.model.device, compares=compares, given=evaluates)
    if overrides.eval_dataset is not None:
        others = _rows_as_task(config, overrides, overrides.eval_dataset, tokenizer, limit, as_before=as_before)
        evaluator = evaluator.on(others.problems, task)
    if evaluator.problems:
        origin = replace(origin, meta={**origin.meta, EVALUATED_ON: digest(evaluator.problems)})
    if isinstance(task, DatasetTask) and task.left_out:
        assert limit is not None
        warn_of_left_out(task.name, task.left_out, limit, prompts)
    engines = make_engines(hardware, origin.model, stop_ids, max_context_tokens, sampling, precision, overrides.drafting)
    if hardware.memory_gib is not None:
        assert isinstance(engines, TorchEngines), "the configuration refuses others"
        latency = engines.within(latency, int(hardware.memory_gib * 2**30))
    if origin.is_cold:  # has no checkpoint that could be refused; the line stands before the bar of the warm-up
        _print(first)
        origin.warm_up(config.seed, progress=first is not None)
    state = RunState.begin(origin, config, folder, overrides.algorithm)  # last: before it nothing is written
    if state.writer is not None:
        _warn_of_other_evaluation(state.writer, origin.meta.get(EVALUATED_ON))
    if not origin.is_cold:
        _print(first)
    parts = {
        "config": config,
        "latency": latency,
        "state": state,
        "task": task,
        "rewards": rewards,
        "engines": engines,
        "meta": origin.meta,
    }
    return {**parts, "drafting": overrides.drafting, "evaluator": evaluator}


def _warn_of_other_evaluation(writer: TraceWriter, evaluated_on: str | None) -> None:
    """Warn where a run goes on with other prompts to evaluate on than it had last, and record those.

    Args:
        evaluated_on: digest of the prompts; None: nothing is evaluated.
    """
    before = writer.meta.get(EVALUATED_ON)
    if evaluated_on in (None, before):
        return
    if before is not None:
        warnings.warn(
            f"{writer.folder}: from step {writer.next_step} on the run is evaluated on other prompts or answers than before, "
            "so its held-out numbers (eval_...) are not comparable with those of earlier steps",
            stacklevel=2,
        )
    writer.remember(**{EVALUATED_ON: evaluated_on})


def _print(first: str | None) -> None:
    if first is not None:
        notice(first)


def _task(
    config: TrainConfig, overrides: TrainerOverrides, tokenizer: Any, limit: PromptLimit | None, *, as_before: bool
) -> Task:
    """Return the task that the configuration names, or that of the rows that are given.

    Args:
        as_before: see ``DatasetTask``.
    """
    given = config.task
    if overrides.dataset is not None:
        rows = overrides.dataset
        return _rows_as_task(config, overrides, rows, tokenizer, limit, given.prompts, as_before=as_before)
    held_out = _held_out(config, overrides)
    options = _options_of_rows(config, overrides)
    assert given.name is not None, "a run that starts is complete, and one that is resumed was"
    return make_task(
        given.name, tokenizer, seed=config.seed, prompts=given.prompts, held_out=held_out, prompt_limit=limit,
        as_before=as_before, **options,
    )  # fmt: skip


def _rows_as_task(
    config: TrainConfig,
    overrides: TrainerOverrides,
    rows: GivenRows,
    tokenizer: Any,
    limit: PromptLimit | None,
    prompts: int | None = None,
    *,
    as_before: bool,
) -> DatasetTask:
    """Return the task of rows that are given, to train on or to evaluate on."""
    held_out = _held_out(config, overrides) if rows is overrides.dataset else 0
    return DatasetTask(
        rows.rows, tokenizer, name=rows.name, seed=config.seed, prompts=prompts, held_out=held_out, prompt_limit=limit,
        as_before=as_before, **_options_of_rows(config, overrides),
    )  # fmt: skip


def _held_out(config: TrainConfig, overrides: TrainerOverrides) -> int:
    """Return how many rows of the data set are kept back to evaluate on."""
    return config.task.eval_prompts if config.eval_every is not None and overrides.eval_dataset is None else 0


def _options_of_rows(config: TrainConfig, overrides: TrainerOverrides) -> dict[str, Any]:
    given = config.task
    rewards = overrides.rewards
    compares = need_answers(given.rewards) if rewards is None else compare_with_answers(rewards)
    return {**given.columns(), "needs_answer": compares or given.answer_column is not None}


def _why_left_out(task: Task, limit: PromptLimit | None) -> str:
    """Return why prompts of a data set are left out; the empty text where none are."""
    if limit is None or not isinstance(task, DatasetTask) or not task.left_out:
        return ""
    return f"others have more than {counted(limit.tokens, 'token')} ({limit.reason})"


def _gpus_of(cluster: Mapping[str, Any]) -> str:
    nodes, per_node = cluster["nodes"], cluster["gpus_per_node"]
    return f"{nodes * per_node} GPU{'s' * (nodes * per_node > 1)} in {nodes} node{'s' * (nodes > 1)}"


def meta_of(config: TrainConfig, cluster: Cluster, planner: SchedulingPolicy, device: torch.device) -> dict[str, Any]:
    """Return what ``meta.json`` records of a run on the virtual clock whose models are on ``device``."""
    machine = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{platform.machine()} CPU"
    device_name = f"{machine}, torch {torch.__version__}"
    return {
        "seeds": {"run": config.seed},
        "cluster": vars(cluster),
        "profile": config.cluster.profile,
        "policy": planner.name,
        "clock": "virtual",
        "charging": config.cluster.charging,
        "engine": config.cluster.engine,
        "device": device_name,
        "learner_device": device_name,
        "kernel_bits": kernel_bits() if device.type == "cpu" else None,
        "config": config.to_dict(),
    }
