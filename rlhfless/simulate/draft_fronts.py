"""Time-cost fronts of policies with and without drafts on one step of a log, and the lower bounds of both.

Every policy plans and runs the step at several time weights, on simulated engines. Two bounds belong to the step: that of any
policy that decodes one token per pass, and that of any policy with these drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from rlhfless.errors import InputError
from rlhfless.scheduling import SchedulingPolicy, as_policy
from rlhfless.scheduling.speculative import Speculative
from rlhfless.simulate.drafted_steps import bound_with_drafts
from rlhfless.simulate.steps import LoggedStep, SimulationConfig
from rlhfless.simulate.weighted_results import at_time_weights, check_time_weights, on_front
from solver.bounds.clairvoyant import clairvoyant_bound

POLICIES = ("random", "spec-fixed-2", "spec-fixed-4", "spec-fixed-8", "spec", "spec+fold", "spec+critical")
TIME_WEIGHTS = (0.0, 0.25, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
CURVE_POINTS = 60


@dataclass(frozen=True, eq=False)
class DraftFronts:
    """Results of policies on one step at several time weights, and two lower bounds.

    Attributes:
        results: one row per policy and time weight: ``policy, time_weight, actors, time_s, gpu_seconds, on_front``. A result is
            on its policy's front if none of the policy's is as fast and cheaper, or as cheap and faster.
        bounds: ``time_s, one_token, with_drafts``: the least GPU-seconds at a time; infinite where no policy is that fast.
        step: of the log. profile: of its GPUs.
    """

    results: pd.DataFrame
    bounds: pd.DataFrame
    step: int
    profile: str

    def to_frame(self) -> pd.DataFrame:
        """Return ``results``."""
        return self.results


def draft_fronts(
    logged: LoggedStep,
    setting: SimulationConfig,
    policies: Sequence[str | SchedulingPolicy] = POLICIES,
    time_weights: Sequence[float] = TIME_WEIGHTS,
) -> DraftFronts:
    """Plan and run a step under every policy at every time weight, and bound it with and without drafts.

    Args:
        logged: the step, as of ``run.plan().logged``. setting: its ``drafts`` say what is accepted.
        policies: names or objects; ``random`` decodes without drafts under the plan that ``spec`` drafts with.

    Raises:
        InputError: the setting says nothing of drafts, or there is no time weight.
        PolicyError: a policy is unknown, or there is none.
        PlanningError: the step cannot be planned, or a time weight is none.

    Example:
        >>> import dataclasses, rlhfless as rl
        >>> from rlhfless.simulate import STRONG, DrawnDrafts, draft_fronts
        >>> planned = rl.load(rl.example(), verbose=False).plan()
        >>> setting = dataclasses.replace(planned.setting, drafts=DrawnDrafts(STRONG))
        >>> fronts = draft_fronts(planned.logged, setting, ["random", "spec"], [0.5])
        >>> fronts.results["policy"].tolist()
        ['random', 'spec']
    """
    if setting.drafts is None:
        raise InputError("the setting says nothing of drafts; drafts is needed, such as DrawnDrafts(STRONG)")
    check_time_weights(time_weights)
    results = pd.concat(at_time_weights(logged, setting, policies, time_weights), ignore_index=True)
    order = [as_policy(policy).name for policy in policies]
    results = results.sort_values(
        ["policy", "time_s", "gpu_seconds"], key=lambda c: c.map(order.index) if c.name == "policy" else c
    )
    results = results.assign(on_front=on_front(results, "policy")).reset_index(drop=True)
    columns = ["policy", "time_weight", "actors", "time_s", "gpu_seconds", "on_front"]
    return DraftFronts(results[columns], _bounds(logged, setting, results["time_s"]), logged.step, setting.latency.name)


def _bounds(logged: LoggedStep, setting: SimulationConfig, time_s: pd.Series) -> pd.DataFrame:
    """Return both bounds at times around those of the results; phases beside generation are in both axes."""
    problem, phases = setting.problem(logged.truth), setting.phases
    speculative = Speculative()
    plan = speculative.plan(*logged.inputs(setting))
    curves = clairvoyant_bound(problem, work=setting.bound_work), bound_with_drafts(setting, logged, plan)
    times = np.geomspace(max(0.5 * (time_s.min() - phases.seconds), 1e-9), 1.1 * (time_s.max() - phases.seconds), CURVE_POINTS)
    one, drafted = ([c.gpu_seconds(float(t)) + phases.step_gpu_s(float(t), 0.0) for t in times] for c in curves)
    return pd.DataFrame({"time_s": times + phases.seconds, "one_token": one, "with_drafts": drafted})
