"""Computes the time-cost front of a workload: the non-dominated plans, and the bound curve below every plan.

Times and costs are those of the planning model. The curve is the relaxation: no plan with makespan M costs less than the curve
at M. For a workload with scenarios, times and costs of plans are means over them, and so is the curve
(``scenario_bound_curve``); the plans are searched for the predicted lengths.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from solver.model.cluster import Cluster, MixedCluster
from solver.model.errors import PlanningError, check_flags
from solver.model.html_tables import rows_table
from solver.model.objective import COSTS, NonGenerationPhases, Objective
from solver.model.offers import Latencies, check_options, check_priced, offers_of, one_pool, several
from solver.model.plan import Plan, check_release
from solver.model.plurals import counted
from solver.model.workload import FloatArray, IntArray, Workload
from solver.planning.canonical_order import Canonical
from solver.planning.mixed_kinds.front import mixed_front
from solver.planning.mixed_kinds.problem import MixedProblem
from solver.planning.scenario_bound_curve import mean_curve
from solver.planning.single_kind.fill import MOST_FILLED, fill
from solver.planning.single_kind.items import SortedWork
from solver.planning.single_kind.relaxation import relaxed
from solver.planning.single_kind.rounding import at_least, next_fit
from solver.timing.build_plan import assemble, check_fits
from solver.timing.evaluate import admission_of

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Front:
    """Plans in order of rising makespan and falling cost, and the bound curve on a grid of makespans.

    Attributes:
        plans: non-dominated plans.
        bound_makespan_s, bound_cost: (B,) the curve; the cost is infinite where no plan is that fast.
        cost: what costs are counted in, ``gpu_s`` or ``usd``.
    """

    plans: tuple[Plan, ...]
    bound_makespan_s: FloatArray
    bound_cost: FloatArray
    cost: str = "gpu_s"

    def cost_of(self, plan: Plan) -> float:
        """Return the plan's cost in the front's unit."""
        return plan.gpu_seconds if self.cost == "gpu_s" else plan.cost_usd

    @property
    def epsilon(self) -> float:
        """Return the least e such that the front dominates every possible plan up to the factor 1 + e.

        For every makespan M of the curve some plan of the front takes at most (1 + e) M and costs at most (1 + e) times the
        bound there. Infinite for a curve that allows no plan.
        """
        times = np.array([plan.makespan_s for plan in self.plans])
        costs = np.array([self.cost_of(plan) for plan in self.plans])
        possible = np.flatnonzero(np.isfinite(self.bound_cost) & (self.bound_cost > 0))
        if not len(possible):
            return 0.0 if len(self.plans) and costs.min() <= 0 else float("inf")
        # plans with a makespan in [M_i, M_i+1] cost at least the bound at M_i+1
        worst = 0.0
        for i in possible:
            time_s = self.bound_makespan_s[max(i - 1, 0)]
            worst = max(worst, float(np.min(np.maximum(times / time_s, costs / self.bound_cost[i]))) - 1)
        return worst

    def to_frame(self) -> pd.DataFrame:
        """Return a table with one row per plan (needs pandas)."""
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
        unit = "GPU-s" if self.cost == "gpu_s" else "USD"
        ends = [self.plans[0], self.plans[-1]]
        return (
            f"Front({len(self.plans)} plans, "
            + " to ".join(
                f"{p.makespan_s:.2f} s / {self.cost_of(p):.4g} {unit} with {counted(len(p.actors), 'actor')}" for p in ends
            )
            + f", each within {self.epsilon:.1%} of the lower bound)"
        )

    def _repr_html_(self) -> str:
        unit = "GPU-seconds" if self.cost == "gpu_s" else "USD"
        rows = [(str(len(p.actors)), f"{p.makespan_s:.4g}", f"{self.cost_of(p):.4g}") for p in self.plans]
        caption = f"{len(rows)} plans, each within {self.epsilon:.1%} of the lower bound"
        return rows_table(caption, ("actors", "time (s)", f"cost ({unit})"), rows)


def pareto_front(
    workload: Workload,
    cluster: Cluster | MixedCluster,
    latency: Latencies,
    phases: NonGenerationPhases = NonGenerationPhases(),  # noqa: B008 (frozen)
    *,
    points: int = 40,
    cost: str = "gpu_s",
    admission: str = "reserve",
    keep_together: bool = False,
    share_prefill: bool = False,
    min_actors: int = 1,
    max_actors: int | None = None,
    release: str = "done",
    time_limit_s: float = 3.0,
    deterministic: bool = False,
) -> Front:
    """Return the front on ``points`` makespans between the fastest plan and one actor for everything.

    Args are those of ``plan_generation``; ``cost`` is the unit, ``gpu_s`` or ``usd``. ``phases`` only matters for plans that
    hold their GPUs through the step; front and curve describe generation alone. For several kinds or sizes the plans are those
    of several weights, found within ``time_limit_s``; for one kind they take milliseconds. ``deterministic`` counts that limit
    in work instead of time, so that the front does not depend on the load of the machine.

    Raises:
        PlanningError: nothing can be planned, or ``cost`` is unknown.
    """
    if cost not in COSTS:
        raise PlanningError(f"cost {cost!r} is unknown; choose one of {', '.join(COSTS)}")
    check_release(release)
    check_flags(keep_together=keep_together, share_prefill=share_prefill, deterministic=deterministic)
    check_priced(cost, cluster)
    check_fits(workload, cluster, latency)
    offers = offers_of(cluster, latency)
    check_options(workload, offers, min_actors, max_actors, keep_together)
    asked = Canonical.of(workload)
    workload = asked.workload
    if several(offers):
        objective = Objective(cost=cost)
        problem = MixedProblem(
            workload, offers, cluster, objective, phases, admission, min_actors=min_actors, max_actors=max_actors,
            release=release, keep_together=keep_together, share_prefill=share_prefill, deterministic=deterministic,
        )  # fmt: skip
        plans, makespans_s, least = mixed_front(problem, points, time_limit_s)
        return Front(_undominated([asked.given(plan) for plan in plans], cost), makespans_s, least, cost)
    where, model = one_pool(cluster, offers[0]), offers[0].latency.affine

    def sorted_of(lengths: Workload) -> SortedWork:
        return SortedWork.of(
            lengths, model, admission_of(model, None, admission),
            max_actors=min(where.max_actors, max_actors or where.max_actors), min_actors=min_actors,
            prewarmed=where.prewarmed, keep_together=keep_together, share_prefill=share_prefill,
        )  # fmt: skip

    work = sorted_of(workload.points)
    fastest_s = max(work.shortest_makespan_s, 1e-12)  # 0 when every response is complete already
    grid = np.geomspace(fastest_s, max(fastest_s, work.longest_makespan_s) * (1 + 1e-9), points)
    rate = where.gpus_per_actor * (1.0 if cost == "gpu_s" else where.usd_per_gpu_s)
    curve_s, bound = _curve([sorted_of(case) for case in workload.cases()], points, release, phases)
    seen: dict[bytes, Plan] = {}
    for makespan_s in grid.tolist():
        for groups in _roundings(work, makespan_s):
            responses = [work.responses(group) for group in at_least(groups, min_actors)]
            key = np.concatenate(responses).tobytes() + np.array([len(r) for r in responses]).tobytes()
            if key not in seen:
                seen[key] = assemble(
                    "solver", responses, workload, where, model, phases, release=release, admission=admission,
                    shares_prompts=share_prefill,
                )  # fmt: skip
    return Front(_undominated([asked.given(plan) for plan in seen.values()], cost), curve_s, bound * rate, cost)


def _undominated(found: list[Plan], cost: str) -> tuple[Plan, ...]:
    """Return the plans that no other plan beats in time and cost, faster ones first."""

    def paid(plan: Plan) -> float:
        return plan.gpu_seconds if cost == "gpu_s" else plan.cost_usd

    plans: list[Plan] = []
    for plan in sorted(found, key=lambda p: (p.makespan_s, paid(p))):
        if not plans or paid(plan) < paid(plans[-1]):
            plans.append(plan)
    return tuple(plans)


def _curve(works: list[SortedWork], points: int, release: str, phases: NonGenerationPhases) -> tuple[FloatArray, FloatArray]:
    """Return ``points`` makespans and, up to each, the least actor-seconds of any plan: for one set of lengths, or as
    means over scenarios."""
    ends = [(w.shortest_makespan_s, w.longest_makespan_s) for w in works]
    grids = [np.geomspace(max(a, 1e-12), max(a, b, 1e-12) * (1 + 1e-9), points) for a, b in ends]
    bounds = np.array([[_bound(w, i, g, release, phases) for i in range(points)] for w, g in zip(works, grids, strict=True)])
    if len(works) == 1:
        return grids[0], bounds[0]
    begins = np.array([np.concatenate([[first], grid[:-1]]) for (first, _), grid in zip(ends, grids, strict=True)])
    grid = np.geomspace(np.mean([g[0] for g in grids]), np.mean([g[-1] for g in grids]), points)
    return grid, mean_curve(begins, bounds, grid)


def _bound(work: SortedWork, i: int, grid: FloatArray, release: str, phases: NonGenerationPhases) -> float:
    """Return the least actor-seconds of any plan whose makespan is in the i-th interval of the grid, up to ``grid[i]``."""
    least = relaxed(work, float(grid[i]))
    if least is None:
        return float(np.inf)
    if release == "done":
        return least.actor_s
    held = max(least.actor_s, least.actors * float(grid[max(i - 1, 0)]))
    return held + (least.actors * phases.seconds if release == "step" else 0.0)


def _roundings(work: SortedWork, makespan_s: float) -> list[list[IntArray]]:
    """Return groupings of items that end by ``makespan_s``; empty if there are none."""
    edges = next_fit(work, makespan_s)
    found = [] if edges is None else [[np.arange(a, b) for a, b in itertools.pairwise(edges.tolist())]]
    filled = fill(work, makespan_s) if len(work) <= MOST_FILLED else None
    return found if filled is None else [*found, filled]
