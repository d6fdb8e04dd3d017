"""Time and cost of policies on one step, learned from after generation and while others decode, with the bound on the step.

Every policy plans and runs the step at several time weights, on simulated engines, once for each way to learn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from rlhfless.errors import InputError
from rlhfless.scheduling import SchedulingPolicy, as_policy, policy_names
from rlhfless.simulate.comparison import Comparison
from rlhfless.simulate.fused_steps import fused_bound
from rlhfless.simulate.steps import LoggedStep, SimulationConfig
from rlhfless.simulate.variants import Policy, at_time_weights, on_fronts, simulate_variants

POLICIES = policy_names("simple")
TIME_WEIGHTS = (0.3, 0.6, 0.8, 0.9, 0.95, 1.0)
LEARNING = {"batch": False, "stream": True}
"""Ways to learn, and whether preparation and learning overlap with decoding in each."""
CURVE_POINTS = 60
WHATEVER = "whatever overlaps"
"""Name of the bound's curve."""


def fusion_front(
    logged: LoggedStep,
    setting: SimulationConfig,
    policies: Sequence[str | SchedulingPolicy] = POLICIES,
    time_weights: Sequence[float] = TIME_WEIGHTS,
) -> Comparison:
    """Simulate a step under every policy at every time weight, with learning after generation and with streamed learning.

    Args:
        logged: the step, such as ``run.plan().logged``.
        setting: its ``work`` states the seconds of preparation and learning, its ``learner`` which GPUs are held for them.
        policies: names or objects, except policies that decide themselves what overlaps (``rlhfuse``, ``stream``).

    Returns:
        One variant per policy, learning mode and time weight. The table has two more columns: ``learning`` (``batch`` or
        ``stream``), and ``on_front``, which marks rows that no other row of the same mode beats in both time and cost. The
        curve is a lower bound on the GPU-seconds of the step, ``whatever overlaps``.

    Raises:
        InputError: the setting has no ``work``, or there is no time weight.
        PolicyError: a policy is unknown, or there is none.
        PlanningError: the step cannot be planned, or a time weight is none.

    Example:
        >>> import dataclasses, rlhfless as rl
        >>> from rlhfless.simulate import fusion_front
        >>> from solver.step.work import TokenWork
        >>> planned = rl.load(rl.example(), verbose=False).plan()
        >>> setting = dataclasses.replace(planned.setting, work=TokenWork(2e-5, 8e-5))
        >>> fusion_front(planned.logged, setting, ["random"], [0.5]).table["learning"].tolist()
        ['batch', 'stream']
    """
    if setting.work is None:
        raise InputError("the setting says nothing of preparation and learning; work is needed, such as TokenWork(2e-5, 8e-5)")
    own = [name for name in map(as_policy, policies) if hasattr(name, "fuse")]
    if own:
        raise InputError(f"policy {own[0].name!r} decides itself what overlaps with decoding; another one is needed")
    variants: dict[str, tuple[SimulationConfig, Policy]] = {}
    learning_of: dict[str, str] = {}
    for learning, overlaps in LEARNING.items():
        learner = replace(setting.learner, overlaps=overlaps, streams=overlaps)
        of_way = at_time_weights(replace(setting, learner=learner), policies, time_weights, f", {learning}")
        variants |= of_way
        learning_of |= dict.fromkeys(of_way, learning)
    found = simulate_variants([logged], variants)
    table = found.table.assign(learning=found.table["variant"].map(learning_of))
    table = table.sort_values(["learning", "time_s", "gpu_seconds"], ignore_index=True)
    bound = fused_bound(setting, logged)
    assert bound is not None
    table = table.assign(
        on_front=on_fronts(table, "learning"), bound_gpu_seconds=[bound.gpu_seconds(float(t)) for t in table["time_s"]]
    )
    times = np.geomspace(0.9 * bound.shortest_s(), 1.1 * float(table["time_s"].max()), CURVE_POINTS)
    curve = pd.DataFrame({"time_s": times, "gpu_seconds": [bound.gpu_seconds(float(t)) for t in times]})
    return replace(found, table=table, curves={WHATEVER: curve}, times=f"profile {setting.latency.name}")


def streaming(front: Comparison, time_weight: float = 1.0) -> pd.DataFrame:
    """Compare streamed with batch learning at one time weight; one row per policy.

    Args:
        front: result of ``fusion_front``.

    Returns:
        Indexed by policy: ``batch_s, stream_s, speed_up`` (of the whole step), ``batch_gpu_s, stream_gpu_s, saved`` (share of
        the GPU-seconds), ``bound_gpu_s`` (in the streamed step's time).

    Raises:
        InputError: nothing was simulated at this time weight.
    """
    at = front.table[front.table["time_weight"] == time_weight]
    if at.empty:
        known = ", ".join(f"{weight:g}" for weight in front.table["time_weight"].unique())
        raise InputError(f"time_weight {time_weight!r} was not simulated; one of {known} is needed")
    batch, stream = (at[at["learning"] == name].set_index("policy") for name in LEARNING)
    return pd.DataFrame(
        {
            "batch_s": batch["time_s"], "stream_s": stream["time_s"], "speed_up": batch["time_s"] / stream["time_s"],
            "batch_gpu_s": batch["gpu_seconds"], "stream_gpu_s": stream["gpu_seconds"],
            "saved": 1 - stream["gpu_seconds"] / batch["gpu_seconds"], "bound_gpu_s": stream["bound_gpu_seconds"],
        }
    ).loc[batch.index]  # fmt: skip
