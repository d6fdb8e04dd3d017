"""Decides the learner's GPUs for one step: as the options say, or as the solver plans by the step's forecast.

``choose_learner`` decides all of it (``auto``), ``latest_start`` when given GPUs are needed. On the wall clock the learner is
one server, the trainer's own. On the virtual clock it may be several, also on GPUs that actors have given back.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rlhfless.executor import WorkGpus
from rlhfless.training.algorithms.token_counts import BACKWARD
from rlhfless.training.config import PpoConfig, TrainConfig
from rlhfless.training.step_learning import LearningParts
from solver.model.objective import Objective
from solver.model.problem import PlanningProblem
from solver.step.late_start import LateStart, latest_start
from solver.step.learner import LearnerPlan, choose_learner, speed_up
from solver.step.token_work import TokenWork


@dataclass(frozen=True)
class StepLearner:
    """The learner's GPUs in one step.

    Attributes:
        gpus: ``servers`` that run a group each. speed: of each server, relative to the GPUs of one actor alone.
        streams: groups are learned from when they are complete; else when all are.
        plan: what chose it, with the step that it expects; None: the options did.
        late: when the learner was planned to start, and what that saves; None: it was not asked for.
    """

    gpus: WorkGpus
    speed: float
    servers: int = 1
    streams: bool = True
    plan: LearnerPlan | None = None
    late: LateStart | None = None


def step_learner(parts: LearningParts) -> StepLearner:
    """Return the learner of a step.

    Raises:
        PlanningError: ``auto``, but the plan's actors hold their GPUs after they are done.
    """
    options = parts.config.cluster
    return _planned(parts) if options.learner_gpus == "auto" else _given(parts, options.learner_gpus or _size(parts))


def _planned(parts: LearningParts) -> StepLearner:
    """Return the learner that the solver chooses."""
    options = parts.config.cluster
    freed, loss = options.engine != "vllm", options.learner_loss_per_doubling
    plan = choose_learner(parts.plan, _problem(parts), _work(parts), freed=freed, loss_per_doubling=loss)
    chosen = plan.chosen
    found = _servers(parts, chosen.gpus, chosen.from_s, chosen.grows, hold="step")
    return replace(found, streams=chosen.learning == "stream", plan=plan)


def _given(parts: LearningParts, own: int) -> StepLearner:
    """Return a learner with the GPUs of the options."""
    options, size = parts.config.cluster, _size(parts)
    grows, hold = options.learner_grows, "step" if options.learner_start == "step" else "work"

    def made(from_s: float) -> StepLearner:
        if grows:
            return _servers(parts, own, from_s, grows, hold)
        return StepLearner(_alone(parts, own, from_s, hold), speed_up(own / size, options.learner_loss_per_doubling))

    found = made(0.0)
    if options.learner_start != "needed":
        return found
    work = _work(parts, 1.0 if parts.on_pool else found.speed, own, grows)
    late = latest_start(parts.plan, _problem(parts), work, gpus_per_server=size if grows else own, whole_groups=True)
    return replace(made(late.from_s), late=late)


def _servers(parts: LearningParts, own: int, from_s: float, grows: bool, hold: str) -> StepLearner:
    """Return a learner with a server for the GPUs of each actor."""
    options, size = parts.config.cluster, _size(parts)
    load_s, servers = options.learner_load_s, own // size + (len(parts.plan.actors) if grows else 0)
    gpus = WorkGpus("learner", load_s=load_s)
    if own:
        gpus = WorkGpus.beside(
            parts.cluster, "learner", size, servers=own // size, uses_released=grows, hold=hold, from_s=from_s, load_s=load_s
        )
    return StepLearner(gpus, speed_up(servers, options.learner_loss_per_doubling) / servers, servers)


def _alone(parts: LearningParts, own: int, from_s: float, hold: str) -> WorkGpus:
    """Return one server; the trainer's learner is there when the step begins, on the virtual clock a late one loads first."""
    if parts.on_pool:
        server = parts.wall_server(beside_actors=True)
        return WorkGpus("learner", (server,), in_this_process=True, from_s=from_s, hold=hold)
    load_s = parts.config.cluster.learner_load_s
    return WorkGpus.beside(parts.cluster, "learner", own, from_s=from_s, hold=hold, load_s=load_s)


def _size(parts: LearningParts) -> int:
    return parts.latency.gpus_per_actor


def _problem(parts: LearningParts) -> PlanningProblem:
    return PlanningProblem(parts.workload, parts.cluster, parts.latency, Objective(parts.config.planner.time_weight))


def _work(parts: LearningParts, speed: float = 1.0, own: int = 0, grows: bool = False) -> TokenWork:
    """Return the seconds per token of a group, by the profile, on servers of this speed.

    Args:
        own: GPUs of the learner beside the actors. Its groups are prepared where they are learned from.
    """
    options, (prepare, learn) = parts.config.cluster, passes_of(parts.config)
    per_token_s, workload = parts.latency.prefill_per_token_s, parts.workload
    tokens = workload.prompt_tokens[workload.prompt_of] + workload.response_tokens
    judging_s = options.reward_s_per_response / float(tokens.mean())  # per token
    if not own:
        learn_s = learn * per_token_s
        return TokenWork(prepare * per_token_s + judging_s, learn_s, "group", load_s=options.learner_load_s)
    each_s = judging_s + (prepare + learn) * per_token_s / speed
    load_s = 0.0 if parts.on_pool else options.learner_load_s
    return TokenWork(0.0, each_s, "group", own, learner_grows=grows, place="learner", load_s=load_s)


def passes_of(config: TrainConfig) -> tuple[int, int]:
    """Return the forward passes over a token that preparation and learning take in a step of one update.

    A backward pass counts as ``BACKWARD`` forward ones, as in ``token_counts.pass_tokens``.
    """
    algorithm, reference = config.algorithm, int(config.algorithm.kl_coef > 0)
    if isinstance(algorithm, PpoConfig):
        models = 1 + (algorithm.critic != "head")
        return models + reference, (1 + BACKWARD) * models
    return reference, 1 + BACKWARD
