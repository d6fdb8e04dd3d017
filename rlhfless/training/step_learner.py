"""Decides the learner's GPUs for one step: as the options say, or as ``solver.choose_learner`` plans by the step's forecast."""

from __future__ import annotations

from dataclasses import dataclass

from rlhfless.executor import WorkGpus, WorkServer
from rlhfless.training.algorithms.token_counts import BACKWARD
from rlhfless.training.config import PpoConfig, TrainConfig
from rlhfless.training.step_learning import LearningParts
from solver.model.objective import Objective
from solver.model.problem import PlanningProblem
from solver.stage_fusion.learner import LearnerPlan, choose_learner, speed_up
from solver.stage_fusion.token_work import TokenWork


@dataclass(frozen=True)
class StepLearner:
    """The learner's GPUs in one step.

    Attributes:
        gpus: ``servers`` that run a group each. speed: of each server, relative to the GPUs of one actor alone.
        streams: groups are learned from when they are complete; else when all are.
        plan: what chose it, with the step that it expects; None: the options did.
        optimizer: on the wall clock with several servers, where the optimizer steps: on the GPUs of the first one. None: one
            server does everything.
    """

    gpus: WorkGpus
    speed: float
    servers: int = 1
    streams: bool = True
    plan: LearnerPlan | None = None
    optimizer: WorkGpus | None = None


def step_learner(parts: LearningParts) -> StepLearner:
    """Return the learner of a step.

    Raises:
        PlanningError: ``auto``, but the plan's actors hold their GPUs after they are done.
    """
    options, size = parts.config.cluster, parts.latency.gpus_per_actor
    loss, load_s = options.learner_loss_per_doubling, options.learner_load_s
    if options.learner_gpus == "auto":
        prepare, learn = passes_of(parts.config)
        per_token_s, workload = parts.latency.prefill_per_token_s, parts.workload
        tokens = workload.prompt_tokens[workload.prompt_of] + workload.response_tokens
        judging_s = options.reward_s_per_response / float(tokens.mean())  # per token
        work = TokenWork(prepare * per_token_s + judging_s, learn * per_token_s, unlock="group", load_s=load_s)
        problem = PlanningProblem(workload, parts.cluster, parts.latency, Objective(parts.config.planner.time_weight))
        freed = options.engine != "vllm"
        plan = choose_learner(parts.plan, problem, work, gpus=_own_gpus(parts), freed=freed, loss_per_doubling=loss)
        own, from_s, grows, streams = plan.chosen.gpus, plan.chosen.from_s, plan.chosen.grows, plan.chosen.learning == "stream"
    else:
        own, from_s, grows, streams, plan = options.learner_gpus or size, 0.0, options.learner_grows, True, None
        if not grows:
            return StepLearner(_alone(parts, own), speed_up(own / size, loss))
    if parts.on_pool:
        return _on_pool(parts, own, from_s, grows, streams, plan)
    servers = own // size + (len(parts.plan.actors) if grows else 0)
    if own:
        gpus = WorkGpus.beside(
            parts.cluster, "learner", size, servers=own // size, takes_freed=grows, hold="step", from_s=from_s, load_s=load_s
        )
    else:
        gpus = WorkGpus("learner", load_s=load_s)
    return StepLearner(gpus, speed_up(servers, loss) / servers, servers, streams, plan)


def _alone(parts: LearningParts, own: int, from_s: float = 0.0) -> WorkGpus:
    return WorkGpus.beside(parts.cluster, "learner", own, keeps_state=True, in_this_process=1, from_s=from_s)


def _on_pool(
    parts: LearningParts, own: int, from_s: float, grows: bool, streams: bool, plan: LearnerPlan | None
) -> StepLearner:
    """Return the trainer's learner with what joins it on the wall clock: a server for the GPUs of each actor."""
    size = parts.latency.gpus_per_actor
    if own == size and not grows:
        return StepLearner(_alone(parts, own, from_s), 1.0, 1, streams, plan)
    gpus = WorkGpus.beside(
        parts.cluster, "learner", size, servers=own // size, takes_freed=grows, from_s=from_s, in_this_process=1
    )
    assert gpus.servers is not None
    optimizer = WorkGpus("learner", (WorkServer("learner", gpus.servers[0].gpu_ids),), in_this_process=1)
    servers = own // size + (len(parts.plan.actors) if grows else 0)
    return StepLearner(gpus, 1.0, servers, streams, plan, optimizer)


def _own_gpus(parts: LearningParts) -> tuple[int, ...]:
    """Return the candidates for the learner's GPUs beside the actors; none: those of the solver.

    On the wall clock the trainer has GPUs of its own, and others have to be there.
    """
    if parts.pool is None:
        return ()
    size, cluster = parts.latency.gpus_per_actor, parts.cluster
    numbers = [size << k for k in range((cluster.gpus // size).bit_length())]
    others = {number: WorkGpus.beside(cluster, "learner", size, servers=number // size).servers or () for number in numbers}
    return tuple(number for number in numbers if number == size or parts.pool.has_room(others[number][1:], cluster))


def passes_of(config: TrainConfig) -> tuple[int, int]:
    """Return the forward passes over a token that preparation and learning take in a step of one update.

    A backward pass counts as ``BACKWARD`` forward ones, as in ``token_counts.pass_tokens``.
    """
    algorithm, reference = config.algorithm, int(config.algorithm.kl_coef > 0)
    if isinstance(algorithm, PpoConfig):
        models = 1 + (algorithm.critic != "head")
        return models + reference, (1 + BACKWARD) * models
    return reference, 1 + BACKWARD
