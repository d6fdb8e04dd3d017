"""Makes the parts of a trainer that depend on several of its options: cluster, pool, task, evaluator, and what it records."""

from __future__ import annotations

import json
import platform
import secrets
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import pandas as pd

from rlhfless.training import missing_torch

try:
    import torch
except ImportError as error:
    raise missing_torch(error) from None

from rlhfless.engine.common.sampling import Sampling
from rlhfless.engine.torch.kernel_bits import kernel_bits
from rlhfless.executor import ProcessPool, RayPool
from rlhfless.executor.distributed.ray.placement import FewerGpus
from rlhfless.latency import PriceError, usd_per_gpu_hour
from rlhfless.scheduling import SchedulingPolicy
from rlhfless.trace import TraceWriter
from rlhfless.training.algorithms.lora import check_lora
from rlhfless.training.config import ClusterConfig, ReproducibilityWarning, TrainConfig, TrainError
from rlhfless.training.config.reward_names import need_answers
from rlhfless.training.engines import check_engine, make_pool, options_for, same_bits
from rlhfless.training.evaluation import Evaluator
from rlhfless.training.given_parts import Given
from rlhfless.training.rewards import Rewards
from rlhfless.training.rewards.registry import compare_with_answers
from rlhfless.training.run_start import RunStart
from rlhfless.training.tasks import DatasetTask, Task, digest, make_task
from rlhfless.training.tasks.dataset import TooFewRows
from rlhfless.training.tasks.given_rows import GivenRows, sized
from rlhfless.training.tasks.prompt_limit import PromptLimit
from solver.lengths.forecast import LengthForecast
from solver.model.cluster import Cluster
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


def make_cluster(hardware: ClusterConfig, latency: LatencyModel) -> Cluster:
    """Return the GPUs of a run, in actors of the profile's size, with their price.

    Raises:
        TrainError: the options do not fit the number of GPUs that the profile's actors have.
        PriceError: the price of its kind of GPU is unknown; the message names the option.
    """
    parts, gpus = hardware.tensor_parallel, latency.gpus_per_actor
    if parts not in (None, gpus):
        raise TrainError(
            f"cluster.tensor_parallel is {parts}, but actors of profile {latency.name!r} have {counted(gpus, 'GPU')}; give "
            f"a profile of {counted(parts, 'GPU')} per actor, or leave tensor_parallel out"
        )
    if hardware.learner_grows and (hardware.learner_gpus or 0) % gpus:
        raise TrainError(
            f"cluster.learner_gpus is {hardware.learner_gpus}, but a learner that grows needs a multiple of the "
            f"{counted(gpus, 'GPU')} of an actor"
        )
    try:
        price = usd_per_gpu_hour(latency.kind) if hardware.usd_per_gpu_hour is None else hardware.usd_per_gpu_hour
    except PriceError as error:
        raise PriceError(f"{error}; or give cluster.usd_per_gpu_hour") from None
    per_node = hardware.gpus_of_node
    cluster = Cluster(hardware.gpu_count // per_node, per_node, gpus, latency.kind, price)
    actors = cluster.nodes * cluster.actors_per_node
    if hardware.preparation == "after" and hardware.preparation_actors > actors:
        raise TrainError(
            f"cluster.preparation_actors is {hardware.preparation_actors}, but the cluster's GPUs are enough for {actors}; "
            "give at most as many, or cluster.preparation 'overlap', which has its own GPUs"
        )
    return cluster


def check_installed(config: TrainConfig) -> None:
    """Check that what the options need can be used in this installation.

    Raises:
        MissingExtra, InputError: vLLM or peft is not installed, or vLLM's version is not supported.
    """
    check_engine(config.cluster.engine)
    if config.optimizer.lora_rank is not None:
        check_lora()


def pool_of_run(config: TrainConfig, cluster: Cluster, weight_bytes: int, *, resumes: bool) -> ProcessPool | RayPool | None:
    """Return the pool that the options name; see ``make_pool``.

    Raises:
        PlanningError: the GPUs of a resumed run have become fewer; the message names the options with which it continues.
    """
    try:
        return make_pool(config.cluster, cluster, config.planner.time_weight, weight_bytes)
    except FewerGpus as error:
        if resumes and (options := options_for(error)):
            raise PlanningError(
                f"{error}: completed steps are kept, and --resume last {options} continues after them"
            ) from error
        raise


def make_problems(
    config: TrainConfig, given: Given, origin: RunStart, limit: PromptLimit | None
) -> tuple[Task, TrainConfig, str]:
    """Return the task of a run, its options with the number of prompts that it trains on, and the digest of those.

    Args:
        limit: on the tokens of a prompt; longer ones of a data set are left out.

    Raises:
        TrainError: there are too few distinct prompts, or those of a resumed run have changed.
    """
    resumed = origin.writer
    changed = TrainError(
        f"{resumed and resumed.folder}: the prompts or answers of task {origin.meta['run']!r} have changed since the run was "
        "started; resume it with the same data set, or start a new run"
    )
    try:
        task = given.task or _task(config, given, origin, limit)
    except TooFewRows as error:
        raise (error if resumed is None else changed) from None
    config = sized(config, task, _why_left_out(task, limit))
    prompts = config.task.prompts
    assert prompts is not None
    problems = task.problems[:prompts]
    if len({problem.prompt_id for problem in problems}) < prompts:
        if resumed is not None:
            raise changed
        raise TrainError(
            f"task {task.name!r} has {len({p.prompt_id for p in task.problems})} distinct problems, but prompts is "
            f"{prompts}; choose at most as many"
        )
    learned_from = digest(problems)
    if resumed is not None and resumed.meta.get("problems", learned_from) != learned_from:
        raise changed
    return task, config, learned_from


def rows_as_task(
    config: TrainConfig, given: Given, rows: GivenRows, origin: RunStart, limit: PromptLimit | None, prompts: int | None = None
) -> DatasetTask:
    """Return the task of rows that are given, to train on or to evaluate on."""
    held_out = _held_out(config, given) if rows is given.dataset else 0
    return DatasetTask(
        rows.rows, origin.tokenizer, name=rows.name, seed=config.seed, prompts=prompts, held_out=held_out, prompt_limit=limit,
        as_before=_as_before(origin), **_options_of_rows(config, given),
    )  # fmt: skip


def make_evaluator(
    config: TrainConfig,
    given: Given,
    task: Task,
    origin: RunStart,
    limit: PromptLimit | None,
    rewards: Rewards,
    sampling: Sampling,
    precision: str,
    stop_ids: Sequence[int] | int,
) -> Evaluator:
    """Return the evaluator of a run: on the prompts that are given for it, or on some that are not trained on.

    Raises:
        TrainError: there are too few of those.
    """
    compares, own = given.rewards is None and need_answers(config.task.rewards), given.eval_dataset
    how = (rewards, origin.tokenizer, sampling, precision, stop_ids)
    made = Evaluator.of(config, task, *how, device=origin.model.device, compares=compares, given=own is not None)
    return made if own is None else made.on(rows_as_task(config, given, own, origin, limit).problems, task)


def _task(config: TrainConfig, given: Given, origin: RunStart, limit: PromptLimit | None) -> Task:
    """Return the task of the rows that are given, or the one that the configuration names."""
    asked = config.task
    if given.dataset is not None:
        return rows_as_task(config, given, given.dataset, origin, limit, asked.prompts)
    assert asked.name is not None, "a run that starts is complete, and one that is resumed was"
    return make_task(
        asked.name, origin.tokenizer, seed=config.seed, prompts=asked.prompts, held_out=_held_out(config, given),
        prompt_limit=limit, as_before=_as_before(origin), **_options_of_rows(config, given),
    )  # fmt: skip


def _as_before(origin: RunStart) -> bool:
    """Return whether prompts are named as in an earlier version, which began the run; see ``DatasetTask``."""
    return origin.writer is not None and PROMPTS_NAMED not in origin.writer.meta


def _held_out(config: TrainConfig, given: Given) -> int:
    """Return how many rows of the data set are kept back to evaluate on."""
    return config.task.eval_prompts if config.eval_every is not None and given.eval_dataset is None else 0


def _options_of_rows(config: TrainConfig, given: Given) -> dict[str, Any]:
    asked = config.task
    compares = need_answers(asked.rewards) if given.rewards is None else compare_with_answers(given.rewards)
    return {**asked.columns(), "needs_answer": compares or asked.answer_column is not None}


def _why_left_out(task: Task, limit: PromptLimit | None) -> str:
    """Return why prompts of a data set are left out; the empty text where none are."""
    if limit is None or not isinstance(task, DatasetTask) or not task.left_out:
        return ""
    return f"others have more than {counted(limit.tokens, 'token')} ({limit.reason})"


def warn_of_other_cluster(config: TrainConfig, origin: RunStart, device: torch.device, *, custom_pool: bool) -> None:
    """Warn where a resumed run goes on with another number of GPUs, and later responses may differ by it."""
    if (was := origin.earlier_cluster) is None or same_bits(
        config, device.type, origin.checkpoint_dtype, custom_pool=custom_pool
    ):
        return
    assert origin.writer is not None
    warnings.warn(
        f"{origin.writer.folder}: the run was on {_gpus_of(was)} and continues on {_gpus_of(origin.meta['cluster'])}: "
        "completed steps are kept, but later responses are not the same bit for bit",
        ReproducibilityWarning,
        stacklevel=4,
    )


def warn_of_other_evaluation(writer: TraceWriter, evaluated_on: str | None) -> None:
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
            stacklevel=4,
        )
    writer.remember(**{EVALUATED_ON: evaluated_on})


def _gpus_of(cluster: Mapping[str, Any]) -> str:
    nodes, per_node = cluster["nodes"], cluster["gpus_per_node"]
    return f"{nodes * per_node} GPU{'s' * (nodes * per_node > 1)} in {nodes} node{'s' * (nodes > 1)}"


def meta_of(
    config: TrainConfig,
    given: Given,
    cluster: Cluster,
    planner: SchedulingPolicy,
    device: torch.device,
    pool: ProcessPool | RayPool | None,
    chosen: Sequence[str],
) -> dict[str, Any]:
    """Return what ``meta.json`` records of a run before its model is known.

    Args:
        device: of the learner's models. pool: of actors on the wall clock; None: they are emulated.
        chosen: what the run chose, see ``choose``.
    """
    machine = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{platform.machine()} CPU"
    device_name = f"{machine}, torch {torch.__version__}"
    meta = {
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
        **given.stored(),
        **({} if pool is None else pool.meta),
    }
    named = given.task or given.dataset
    meta["run"] = config.task.name if named is None else named.name
    if given.step_plan is not None:
        meta["step_plan"] = json.loads(given.step_plan.to_json())
    run_id = secrets.token_hex(4)  # of a new run; a resumed one has its own
    return {**meta, "choices": list(chosen), PROMPTS_NAMED: "by row", "run_id": run_id}
