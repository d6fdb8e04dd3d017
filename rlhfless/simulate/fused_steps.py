"""Preparation and learning inside simulated steps: the work items of a step by what overlaps with decoding, and its bound."""

from __future__ import annotations

from dataclasses import replace

from rlhfless.executor import WorkItem, phase_work_items
from rlhfless.scheduling import SchedulingPolicy
from rlhfless.simulate.steps import LoggedStep, SimulationConfig
from solver.model.plan import Plan
from solver.step.bound import WholeStepBound, whole_step_bound
from solver.step.choose_learner import latest_start
from solver.step.work import Learner


def fused_items(setting: SimulationConfig, logged: LoggedStep, policy: SchedulingPolicy, plan: Plan) -> list[WorkItem]:
    """Return the work items of a step under a policy; none where the setting has no work.

    A policy that says itself what it fuses (``fuse``) is executed so, another one as the setting's learner says.
    """
    if setting.work is None:
        return []
    learner = _learner(setting.learner, policy)
    if setting.learner_start == "needed":
        learner = replace(learner, from_s=_start_s(setting, logged, learner, plan))
    work = setting.work.of(logged.truth, setting.cluster.gpus_per_actor)
    return phase_work_items(work, learner, setting.cluster, len(plan.actors))


def _learner(learner: Learner, policy: SchedulingPolicy) -> Learner:
    """Return the learner with what overlaps under a policy; what does not is prepared where it is learned from."""
    fuse = getattr(policy, "fuse", None)
    if fuse is not None:
        learner = replace(learner, overlaps=True, streams=fuse == "learn")
    return learner if learner.overlaps or not learner.own else replace(learner, place="learner")


def _start_s(setting: SimulationConfig, logged: LoggedStep, learner: Learner, plan: Plan) -> float:
    """Return when the learner is needed, by the predicted lengths and by the plan as if its rule never acted."""
    work = setting.work
    assert work is not None
    if not learner.overlaps:  # all work comes after generation
        work = replace(work, prepare_per_token_s=0.0, learn_per_token_s=work.prepare_per_token_s + work.learn_per_token_s)
    return latest_start(plan, logged.inputs(setting)[0], work, learner).from_s


def fused_bound(setting: SimulationConfig, logged: LoggedStep) -> WholeStepBound | None:
    """Return the bound on the whole step with its true lengths, whatever overlaps; None where the setting has no work.

    Preparation may run on actors' or learner's GPUs here, so both are one pool.
    """
    if setting.work is None:
        return None
    work = setting.work.of(logged.truth, setting.cluster.gpus_per_actor)
    learner = replace(setting.learner, grows=True, overlaps=True, streams=True)
    return whole_step_bound(logged.bound(setting), work, learner, any_start=setting.learner_start == "needed")
