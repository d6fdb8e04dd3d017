"""Decides the learner's GPUs for one step: as the options say, or as the solver plans by the step's forecast.

``choose_learner`` decides all of it (``auto``), ``latest_start`` when given GPUs are needed. On the wall clock the learner is
one server, the trainer's own. On the virtual clock it may be several, also on GPUs that actors have released.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rlhfless.executor import Gpus
from rlhfless.training.algorithms.token_counts import BACKWARD
from rlhfless.training.config import TrainConfig
from rlhfless.training.step_learning import LearningParts
from solver.model.objective import Objective
from solver.model.problem import PlanningProblem
from solver.step.charges import Charges, slowdown
from solver.step.choose_learner import LateStart, LearnerPlan, choose_learner, latest_start
from solver.step.work import BESIDE_DECODING, Learner, TokenWork


@dataclass(frozen=True)
class StepLearner:
    """The learner's GPUs in one step.

    Attributes:
        gpus: ``servers`` that run a group each. speed: of each server, relative to the GPUs of one actor alone.
        streams: groups are learned from when they are complete; else when all are.
        plan: what chose it, with the step that it expects; None: the options did.
        late: when the learner was planned to start, and what that saves; None: it was not asked for.
    """

    gpus: Gpus
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
    plan = choose_learner(parts.plan, _problem(parts), _work(parts), released=options.engine != "vllm")
    return replace(_servers(parts, plan.chosen.learner, held_all_step=True), streams=plan.chosen.learner.streams, plan=plan)


def _given(parts: LearningParts, own: int) -> StepLearner:
    """Return a learner with so many GPUs: a server for the GPUs of each actor if it grows, else one server."""
    options, size = parts.config.cluster, _size(parts)
    grows, held_all_step = options.learner_grows, options.learner_start == "step"
    learner = replace(BESIDE_DECODING, own=own // size if grows else 1, grows=grows)

    def made(learner: Learner) -> StepLearner:
        if grows:
            return _servers(parts, learner, held_all_step)
        speed = own / size / slowdown(own / size, options.learner_loss_per_doubling)
        return StepLearner(_alone(parts, own, learner.from_s, held_all_step), speed)

    found = made(learner)
    if options.learner_start != "needed":
        return found
    work = _beside_actors(parts, 1.0 if parts.on_pool else found.speed, learner.servers(len(parts.plan.actors)))
    gpus = size if grows else own
    late = latest_start(parts.plan, _problem(parts), work, learner, gpus_per_server=gpus, whole_groups=True)
    return replace(made(replace(learner, from_s=late.from_s)), late=late)


def _servers(parts: LearningParts, learner: Learner, held_all_step: bool) -> StepLearner:
    """Return a learner with a server for the GPUs of each actor."""
    options = parts.config.cluster
    startup_s, servers = options.learner_load_s, learner.servers(len(parts.plan.actors))
    gpus = Gpus("learner", released=True, startup_s=startup_s)
    if learner.own:
        gpus = Gpus.beside(
            parts.cluster, "learner", _size(parts), servers=learner.own, released=learner.grows, from_s=learner.from_s,
            startup_s=startup_s, held_all_step=held_all_step,
        )  # fmt: skip
    return StepLearner(gpus, 1 / slowdown(servers, options.learner_loss_per_doubling), servers)


def _alone(parts: LearningParts, own: int, from_s: float, held_all_step: bool) -> Gpus:
    """Return one server; the trainer's learner is there when the step begins, on the virtual clock a late one loads first."""
    if parts.on_pool:
        return replace(parts.wall_gpus(beside_actors=True), from_s=from_s, held_all_step=held_all_step)
    startup_s = parts.config.cluster.learner_load_s
    return Gpus.beside(parts.cluster, "learner", own, from_s=from_s, startup_s=startup_s, held_all_step=held_all_step)


def _size(parts: LearningParts) -> int:
    return parts.latency.gpus_per_actor


def _problem(parts: LearningParts) -> PlanningProblem:
    return PlanningProblem(parts.workload, parts.cluster, parts.latency, Objective(parts.config.planner.time_weight))


def _work(parts: LearningParts) -> TokenWork:
    """Return the seconds per token by the profile, with what learners pay that have up to all servers of the cluster beside
    the actors'.
    """
    options, (prepare, learn) = parts.config.cluster, passes_of(parts.config)
    per_token_s = parts.latency.prefill_per_token_s
    most = len(parts.plan.actors) + parts.cluster.max_actors
    charges = Charges.by_formula(most, loss_per_doubling=options.learner_loss_per_doubling, load_s=options.learner_load_s)
    return TokenWork(prepare * per_token_s + _judging_s(parts), learn * per_token_s, charges=charges)


def _beside_actors(parts: LearningParts, speed: float, servers: int) -> TokenWork:
    """Return the seconds per token on so many servers of this speed, which prepare the groups that they learn from."""
    each_s = _judging_s(parts) + sum(passes_of(parts.config)) * parts.latency.prefill_per_token_s / speed
    load_s = 0.0 if parts.on_pool else parts.config.cluster.learner_load_s
    return TokenWork(0.0, each_s, charges=Charges.by_formula(servers, loss_per_doubling=0.0, load_s=load_s))


def _judging_s(parts: LearningParts) -> float:
    """Return the seconds per token of judging the responses of the step."""
    workload = parts.workload
    tokens = workload.prompt_tokens[workload.prompt_of] + workload.response_tokens
    return parts.config.cluster.reward_s_per_response / float(tokens.mean())


def passes_of(config: TrainConfig) -> tuple[int, int]:
    """Return the forward passes over a token that preparation and learning take in a step of one update.

    A backward pass counts as ``BACKWARD`` forward ones, as in ``token_counts.pass_tokens``.
    """
    return config.algorithm.prepared_models, (1 + BACKWARD) * config.algorithm.trained_models
