"""Preparation and learning inside simulated steps: the work items of a step by what overlaps with decoding, and its bound."""

from __future__ import annotations

from dataclasses import replace

from rlhfless.executor import WorkItem, phase_work_items
from rlhfless.scheduling import SchedulingPolicy
from rlhfless.simulate.steps import LoggedStep, SimulationConfig
from solver.model.plan import Plan
from solver.step.bound import StepBound, step_bound
from solver.step.late_start import latest_start
from solver.step.token_work import TokenWork
from solver.step.work import PhaseWork


def fused_items(setting: SimulationConfig, logged: LoggedStep, policy: SchedulingPolicy, plan: Plan) -> list[WorkItem]:
    """Return the work items of a step under a policy; none where the setting has no work.

    A policy that says itself what it fuses (``fuse``) is executed so, another one as the setting says: preparation and learning
    after generation (``none``), preparation on released GPUs while others decode (``prepare``), or learning, too (``learn``).
    Without overlap, preparation runs on the learner's GPUs if there are any.
    """
    if setting.work is None:
        return []
    fuse = getattr(policy, "fuse", setting.fuse)
    work = _fused(setting.work, fuse)
    of_step = work.of(logged.truth, setting.cluster.gpus_per_actor)
    if setting.learner_start == "needed":
        of_step = replace(of_step, learner_from_s=_start_s(setting, logged, work, plan, after=fuse == "none"))
    return phase_work_items(of_step, setting.cluster, len(plan.actors), overlaps=fuse != "none")


def _fused(work: TokenWork, fuse: str) -> TokenWork:
    """Return what of the work overlaps with decoding."""
    if fuse != "learn":
        work = replace(work, unlock="batch")
    return replace(work, place="learner") if fuse == "none" and work.learner_gpus else work


def _start_s(setting: SimulationConfig, logged: LoggedStep, work: TokenWork, plan: Plan, *, after: bool) -> float:
    """Return when the learner is needed, by the predicted lengths and by the plan as if its rule never acted.

    Args:
        after: all work comes after generation.
    """
    if after:
        work = replace(work, prepare_per_token_s=0.0, learn_per_token_s=work.prepare_per_token_s + work.learn_per_token_s)
    return latest_start(plan, logged.inputs(setting)[0], work).from_s


def fused_bound(setting: SimulationConfig, logged: LoggedStep) -> StepBound | None:
    """Return the bound on the whole step with its true lengths, whatever overlaps; None where the setting has no work.

    Preparation may run on actors' or learner's GPUs here, so both are one pool.
    """
    if setting.work is None:
        return None
    work = _work(setting, logged)
    return step_bound(
        setting.problem(logged.truth), replace(work, learner_grows=bool(work.learner_gpus)), bound_work=setting.bound_work
    )


def _work(setting: SimulationConfig, logged: LoggedStep) -> PhaseWork:
    assert setting.work is not None
    return setting.work.of(logged.truth, setting.cluster.gpus_per_actor)
