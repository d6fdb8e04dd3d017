"""The time-cost front of a workload: plans that no other plan found beats, and the bound curve below all of them.

Knows the relaxation and next-fit. Every plan of the front is within the planning model; the curve is the relaxation, so no
plan with makespan M has fewer GPU-seconds than the curve says at M. For a workload with scenarios the plans' times and costs
are means over them, while the curve stays that of the predicted lengths.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from solver.assemble import assemble, check_fits
from solver.cluster import Cluster
from solver.evaluate import admission_of, ready_s
from solver.latency import LatencyModel
from solver.objective import StepRest
from solver.plan import Plan
from solver.relaxation import SortedWork
from solver.rounding import next_fit
from solver.workload import FloatArray, Workload

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Front:
    """Plans in order of rising makespan and falling GPU-seconds, and the bound curve on a grid of makespans.

    Attributes:
        plans: non-dominated plans.
        bound_makespan_s, bound_gpu_seconds: (B,) the curve; the cost is infinite where no plan is that fast.
    """

    plans: tuple[Plan, ...]
    bound_makespan_s: FloatArray
    bound_gpu_seconds: FloatArray

    def to_frame(self) -> pd.DataFrame:
        """One row per plan (needs pandas)."""
        import pandas as pd

        return pd.DataFrame(
            {
                "actors": [len(p.actors) for p in self.plans],
                "makespan_s": [p.makespan_s for p in self.plans],
                "gpu_seconds": [p.gpu_seconds for p in self.plans],
                "cost_usd": [p.cost_usd for p in self.plans],
            }
        )

    def __repr__(self) -> str:
        ends = [self.plans[0], self.plans[-1]]
        return (
            f"Front({len(self.plans)} plans, "
            + " to ".join(f"{p.makespan_s:.2f} s / {p.gpu_seconds:.1f} GPU-s with {len(p.actors)} actors" for p in ends)
            + ")"
        )


def pareto_front(
    workload: Workload,
    cluster: Cluster,
    latency: LatencyModel,
    rest: StepRest = StepRest(),  # noqa: B008 (frozen)
    *,
    points: int = 40,
    admission: str = "reserve",
) -> Front:
    """The front on ``points`` makespans between the fastest plan and one actor for everything.

    ``rest`` only matters for plans that hold their GPUs beyond generation; front and curve speak of generation alone.
    """
    check_fits(workload, cluster, latency)
    model = latency.affine
    work = SortedWork.of(workload, model, admission_of(model, None, admission), ready_s(model), cluster.max_actors)
    fastest_s = max(work.shortest_makespan_s, 1e-12)  # 0 when every response is complete already
    grid = np.geomspace(fastest_s, max(fastest_s, work.longest_makespan_s) * (1 + 1e-9), points)
    relaxed = [work.relaxed(float(m)) for m in grid]
    bound = np.array([np.inf if r is None else cluster.gpus_per_actor * r.actor_s for r in relaxed])
    seen: dict[tuple[int, ...], Plan] = {}
    for makespan_s in grid:
        groups = next_fit(work, float(makespan_s))
        if groups is not None and (key := tuple(b for _, b in groups)) not in seen:
            chosen = [work.order[a:b] for a, b in groups]
            seen[key] = assemble("solver", chosen, workload, cluster, model, rest, admission=admission)
    plans: list[Plan] = []
    for plan in sorted(seen.values(), key=lambda p: (p.makespan_s, p.gpu_seconds)):
        if not plans or plan.gpu_seconds < plans[-1].gpu_seconds:
            plans.append(plan)
    return Front(tuple(plans), grid, bound)
