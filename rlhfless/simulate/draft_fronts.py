"""Time-cost fronts of policies with and without drafts on one step of a log, and the lower bounds of both.

Every policy plans and runs the step at several time weights, on simulated engines. Two bounds belong to the step: that of any
policy that decodes one token per pass, and that of any policy with these drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from rlhfless.errors import InputError
from rlhfless.scheduling import SchedulingPolicy, as_policy
from rlhfless.scheduling.speculative import Speculative
from rlhfless.simulate.comparison import Comparison
from rlhfless.simulate.plan_bounds import bound_with_drafts
from rlhfless.simulate.steps import LoggedStep, SimulationConfig
from rlhfless.simulate.variants import at_time_weights, on_fronts, simulate_variants
from solver.bounds.bound import Bound
from solver.bounds.schedules import ScheduleBound

POLICIES = ("random", "spec-fixed-2", "spec-fixed-4", "spec-fixed-8", "spec", "spec+fold", "spec+critical")
TIME_WEIGHTS = (0.0, 0.25, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
CURVE_POINTS = 60


def draft_fronts(
    logged: LoggedStep,
    setting: SimulationConfig,
    policies: Sequence[str | SchedulingPolicy] = POLICIES,
    time_weights: Sequence[float] = TIME_WEIGHTS,
) -> Comparison:
    """Simulate a step under every policy at every time weight, with lower bounds with and without speculative decoding.

    Args:
        logged: the step, such as ``run.plan().logged``.
        setting: its ``drafts`` state which drafted tokens are accepted.
        policies: names or objects; ``random`` is ``spec`` without drafts.

    Returns:
        One variant per policy and time weight. The column ``on_front`` marks rows that no other row of the policy beats in both
        time and cost. The curves ``one_token`` and ``with_drafts`` are lower bounds on the GPU-seconds of any policy that
        decodes one token per pass, and of any policy with these drafts.

    Raises:
        InputError: the setting has no drafts, or there is no time weight.
        PolicyError: a policy is unknown, or there is none.
        PlanningError: the step cannot be planned, or a time weight is none.

    Example:
        >>> import dataclasses, rlhfless as rl
        >>> from rlhfless.simulate import STRONG, DrawnDrafts, draft_fronts
        >>> planned = rl.load(rl.example(), verbose=False).plan()
        >>> setting = dataclasses.replace(planned.setting, drafts=DrawnDrafts(STRONG))
        >>> fronts = draft_fronts(planned.logged, setting, ["random", "spec"], [0.5])
        >>> fronts.table["policy"].tolist()
        ['random', 'spec']
    """
    if setting.drafts is None:
        raise InputError("the setting says nothing of drafts; drafts is needed, such as DrawnDrafts(STRONG)")
    found = simulate_variants([logged], at_time_weights(setting, policies, time_weights))
    order = [as_policy(policy).name for policy in policies]
    table = found.table.sort_values(
        ["policy", "time_s", "gpu_seconds"], key=lambda c: c.map(order.index) if c.name == "policy" else c, ignore_index=True
    )
    table = table.assign(on_front=on_fronts(table, "policy"))
    curves = _curves(logged, setting, table["time_s"])
    return replace(found, table=table, curves=curves, times=f"profile {setting.latency.name}")


def _curves(logged: LoggedStep, setting: SimulationConfig, time_s: pd.Series) -> dict[str, pd.DataFrame]:
    """Return both bounds at times around those of the results; phases beside generation are in both axes."""
    problem, phases = setting.problem(logged.truth), setting.phases
    speculative = Speculative()
    plan = speculative.plan(*logged.inputs(setting))
    bounds: dict[str, Bound] = {
        "one_token": ScheduleBound(problem, lp_work=setting.bound_work),
        "with_drafts": bound_with_drafts(setting, logged, plan),
    }
    times = np.geomspace(max(0.5 * (time_s.min() - phases.seconds), 1e-9), 1.1 * (time_s.max() - phases.seconds), CURVE_POINTS)
    return {
        name: pd.DataFrame(
            {
                "time_s": times + phases.seconds,
                "gpu_seconds": [bound.gpu_seconds(float(t)) + phases.step_gpu_s(float(t), 0.0) for t in times],
            }
        )
        for name, bound in bounds.items()
    }
