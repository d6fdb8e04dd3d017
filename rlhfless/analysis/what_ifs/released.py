"""Schedules that use as many actors as pay off and release their GPUs early: fewer dollars, not always less time."""

from __future__ import annotations

from dataclasses import replace

from rlhfless.analysis.what_ifs.changed_generation import whole_steps
from rlhfless.analysis.what_ifs.outcome import RunToChange, WayOutcome
from rlhfless.analysis.what_ifs.whole_steps import checked, gpus_of, learner_gpus_of
from rlhfless.errors import InputError
from rlhfless.simulate import execute_steps, policy_metrics
from solver.model.errors import as_given

CHANGES = {
    "random": "As many actors as pay off; each releases its GPUs when its responses are complete.",
    "fold": "As many actors as pay off; nearly empty actors hand their responses over and release their GPUs early.",
}
NAMES = {"random": "right-sized, released", "fold": "consolidated, released"}


def way(run: RunToChange, policy: str = "fold") -> WayOutcome:
    """Return the run under a schedule that releases GPUs; another job uses them, or they are not paid for.

    Args:
        policy: one of ``NAMES``.

    Raises:
        InputError: the policy is none of them, or the run cannot be changed.
    """
    if policy not in NAMES:
        raise InputError(f"policy {as_given(policy)} is unknown; choose one of {', '.join(NAMES)}")
    executed = execute_steps(checked(run).logged, run.setting, [policy])
    steps_s = [record.end_s - record.start_s for record, _ in executed[policy]]
    held = whole_steps(run, (NAMES[policy], CHANGES[policy]), steps_s)
    cluster = run.setting.cluster
    generation_gpu_s = float(policy_metrics(executed)["gpu_seconds"].sum())
    after_gpu_s = learner_gpus_of(run) * (held.time_s - sum(steps_s)) if run.setup.colocated else 0.0
    own_gpu_s = (gpus_of(run) - cluster.gpus) * held.time_s
    return replace(held, gpu_s=generation_gpu_s + after_gpu_s + own_gpu_s)
