"""Time and cost of policies on one step, learned from after generation and while others decode, with the bound on the step.

Every policy plans and runs the step at several time weights, on simulated engines, once for each way to learn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from rlhfless.errors import InputError
from rlhfless.scheduling import SchedulingPolicy, as_policy
from rlhfless.simulate.fused_steps import fused_bound
from rlhfless.simulate.steps import LoggedStep, SimulationConfig
from rlhfless.simulate.weighted_results import at_time_weights, check_time_weights, on_front

POLICIES = ("random", "spread", "fold")
TIME_WEIGHTS = (0.3, 0.6, 0.8, 0.9, 0.95, 1.0)
LEARNING = {"batch": "none", "stream": "learn"}
"""Ways to learn, and what overlaps with decoding in each."""
CURVE_POINTS = 60
COLUMNS = ["policy", "learning", "time_weight", "actors", "time_s", "gpu_seconds", "bound_gpu_seconds", "on_front"]


@dataclass(frozen=True, eq=False)
class FusionFront:
    """Results of policies on one step at several time weights, and the lower bound on the whole step.

    Attributes:
        results: one row per policy, way to learn (``batch``, ``stream``) and time weight: ``COLUMNS``. ``bound_gpu_seconds`` is
            the bound in the row's own time. A row is on the front of its way to learn if no row of it is as fast and cheaper,
            or as cheap and faster.
        bound: ``time_s, gpu_seconds``: the least GPU-seconds of the step in a time, whatever overlaps; infinite where no policy
            is that fast.
        step: of the log.
    """

    results: pd.DataFrame
    bound: pd.DataFrame
    step: int

    def to_frame(self) -> pd.DataFrame:
        """Return ``results``."""
        return self.results

    def streaming(self, time_weight: float = 1.0) -> pd.DataFrame:
        """Return batch against stream at one time weight, a row per policy.

        Returns:
            Indexed by policy: ``batch_s, stream_s, speed_up`` (of the whole step), ``batch_gpu_s, stream_gpu_s, saved`` (share
            of the GPU-seconds), ``bound_gpu_s`` (in the streamed step's time).

        Raises:
            InputError: nothing was simulated at this time weight.
        """
        at = self.results[self.results["time_weight"] == time_weight]
        if at.empty:
            known = ", ".join(f"{weight:g}" for weight in self.results["time_weight"].unique())
            raise InputError(f"time_weight {time_weight!r} was not simulated; one of {known} is needed")
        batch, stream = (at[at["learning"] == name].set_index("policy") for name in LEARNING)
        return pd.DataFrame(
            {
                "batch_s": batch["time_s"], "stream_s": stream["time_s"], "speed_up": batch["time_s"] / stream["time_s"],
                "batch_gpu_s": batch["gpu_seconds"], "stream_gpu_s": stream["gpu_seconds"],
                "saved": 1 - stream["gpu_seconds"] / batch["gpu_seconds"], "bound_gpu_s": stream["bound_gpu_seconds"],
            }
        ).loc[batch.index]  # fmt: skip


def fusion_front(
    logged: LoggedStep,
    setting: SimulationConfig,
    policies: Sequence[str | SchedulingPolicy] = POLICIES,
    time_weights: Sequence[float] = TIME_WEIGHTS,
) -> FusionFront:
    """Plan and run a step under every policy at every time weight, learned from after generation and streamed.

    Args:
        logged: the step, as of ``run.plan().logged``. setting: its ``work`` says what preparation and learning take, and with
            ``learner_gpus`` which GPUs are held for them.
        policies: names or objects. Those that decide themselves what overlaps (``rlhfuse``, ``stream``) have no two ways.

    Raises:
        InputError: the setting says nothing of work, its work never streams, or there is no time weight.
        PolicyError: a policy is unknown, or there is none.
        PlanningError: the step cannot be planned, or a time weight is none.

    Example:
        >>> import dataclasses, rlhfless as rl, solver
        >>> from rlhfless.simulate import fusion_front
        >>> planned = rl.load(rl.example(), verbose=False).plan()
        >>> setting = dataclasses.replace(planned.setting, work=solver.TokenWork(2e-5, 8e-5, unlock="group"))
        >>> fusion_front(planned.logged, setting, ["random"], [0.5]).results["learning"].tolist()
        ['batch', 'stream']
    """
    if setting.work is None:
        raise InputError("the setting says nothing of preparation and learning; work is needed, such as TokenWork(2e-5, 8e-5)")
    if setting.work.unlock == "batch":
        raise InputError("unlock of the work is 'batch', which never streams; 'group' or 'response' is needed")
    check_time_weights(time_weights)
    own = [name for name in map(as_policy, policies) if hasattr(name, "fuse")]
    if own:
        raise InputError(f"policy {own[0].name!r} decides itself what overlaps with decoding; another one is needed")
    tables = []
    for learning, fuse in LEARNING.items():
        at_weights = at_time_weights(logged, replace(setting, fuse=fuse), policies, time_weights)
        tables += [table.assign(learning=learning) for table in at_weights]
    results = pd.concat(tables, ignore_index=True).sort_values(["learning", "time_s", "gpu_seconds"], ignore_index=True)
    bound = fused_bound(setting, logged)
    assert bound is not None
    results = results.assign(
        on_front=on_front(results, "learning"), bound_gpu_seconds=[bound.gpu_seconds(float(t)) for t in results["time_s"]]
    )
    times = np.geomspace(0.9 * bound.time_s, 1.1 * float(results["time_s"].max()), CURVE_POINTS)
    curve = pd.DataFrame({"time_s": times, "gpu_seconds": [bound.gpu_seconds(float(t)) for t in times]})
    return FusionFront(results[COLUMNS], curve, logged.step)
