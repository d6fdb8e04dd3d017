"""Prices candidate plans over scenarios of lengths, and computes a lower bound on the value of every plan.

Inputs: the search for single lengths and the pricing of plans.

**Bound.** A plan is one and the same in all scenarios, so in scenario s its value v_s is at least the least value l_s of any
plan for the lengths of s (what could be done if s were known). Mean and conditional value at risk never fall when their
arguments rise, so the value over the scenarios is at least that of (l_s). For a deadline D on the time T the cost C of any
plan that keeps it is at least ``mean(C + lam T) - lam D >= mean(least of C + lam T) - lam D`` for every lam >= 0, because the
mean of T is at most D (and so is the mean of the worst ones); for a budget with the parts exchanged.

**Coarse bound**, for scenarios that the clock leaves no time for. Decoding response i brings the load
``w_i = b n + c (p n + n (n - 1) / 2)``. Some actor decodes the longest response, which alone takes the base time of n_1
iterations and its load; and K actors that end by T have K (T - sync) seconds for all loads. So
``T >= sync + max(a n_1 + w_1, sum w / K)``. All actors together run at least n_1 iterations, and at least (sum n) / s because
none decodes more than s responses in one, so they are held for at least ``sync + a max(n_1, sum n / s) + sum w`` seconds.
Prefill and starts only add.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from solver.model.latency import LatencyModel
from solver.model.objective import Objective
from solver.model.workload import FloatArray, Workload
from solver.planning.actor_count import sizing_key
from solver.planning.single_kind.items import SortedWork
from solver.planning.single_kind.makespan_search import MakespanSearch
from solver.timing.group_times import Split
from solver.timing.step_cost import Pricing

HALVINGS, LATE_HALVINGS = 24, 6
LIMIT_WEIGHTS = (0.0, 0.3, 0.7, 0.95)  # of time, in the bound under a limit


@dataclass(frozen=True, eq=False)
class Candidate:
    """A split with its value over the scenarios, and its rank where no candidate meets the limit (``sizing_key``)."""

    split: Split
    value: float
    time_s: float
    cost: float
    key: tuple[float, float]


@dataclass
class Candidates:
    """Prices splits over the scenarios (or the single lengths), and keeps the candidates found.

    Args:
        busy_of: (S, N) seconds of the groups of a split.
        stop_at: splits that cannot be priced by this time of the clock (perf_counter) are skipped; then ``stopped`` is set.
        each_s: estimated seconds of pricing a split, until one has been priced.
    """

    pricing: Pricing
    norms: tuple[float, float]
    busy_of: Callable[[Split], FloatArray]
    stop_at: float
    each_s: float
    found: list[Candidate] = field(default_factory=list)
    stopped: bool = False
    _longest_s: float | None = None

    def note(self, split: Split, busy_s: FloatArray) -> Candidate:
        """Return the candidate for a split whose groups take (S, N) seconds, and keep it."""
        objective = self.pricing.objective
        time_s, cost = self.pricing.step(busy_s)
        value = objective.value_over(time_s, cost, self.norms)
        self.found.append(Candidate(split, value, objective.risk(time_s), objective.risk(cost), self.key_of(busy_s)))
        return self.found[-1]

    def key_of(self, busy_s: FloatArray) -> tuple[float, float]:
        """Return the rank near a limit of groups that take (S, N) seconds."""
        return sizing_key(*self.pricing.step(busy_s), self.pricing.objective)

    def look_at(self, split: Split) -> Candidate | None:
        """Return the split with its value; None if pricing it would take too long, unless no candidate is known yet."""
        began = time.perf_counter()
        if self.found and began + (self.each_s if self._longest_s is None else self._longest_s) > self.stop_at:
            self.stopped = True
            return None
        candidate = self.note(split, self.busy_of(split))
        self._longest_s = max(self._longest_s or 0.0, time.perf_counter() - began)
        return candidate

    def best_of(self, splits: Iterable[Split]) -> Candidate | None:
        """Return the first split of least value; None if there is none, or no time."""
        looked = (self.look_at(split) for split in splits)
        return min((c for c in looked if c is not None), key=lambda c: c.value, default=None)


def scenario_bound(
    workload: Workload,
    sorted_of: Callable[[Workload], SortedWork],
    coarse: tuple[LatencyModel, int],
    pricing: Pricing,
    norms: tuple[float, float],
    stop_at: float,
) -> tuple[float, bool]:
    """Return a lower bound on the value of any plan over the scenarios of ``workload`` (see the module docstring).

    Args:
        sorted_of: the sorted work of one scenario. coarse: its latency model and the most actors, for the coarse bound.
        stop_at: time of the clock (perf_counter) by which the bounds are needed, coarser ones if necessary.

    Returns:
        The bound, and whether the clock made it coarser.
    """
    objective = pricing.objective
    if not objective.limited:
        least, stopped = _least_values(workload, sorted_of, coarse, [pricing], norms, stop_at)
        return objective.risk(least[:, 0]), stopped
    weights = [w if objective.deadline_s is not None else 1.0 - w for w in LIMIT_WEIGHTS]
    weighted = [replace(pricing, objective=Objective(weight, cost=objective.cost)) for weight in weights]
    least, stopped = _least_values(workload, sorted_of, coarse, weighted, norms, stop_at)
    bounds = [0.0]
    for weight, mean in zip(weights, least.mean(axis=0).tolist(), strict=True):
        if objective.deadline_s is not None:
            exchange = norms[1] * weight / ((1 - weight) * norms[0])
            bounds.append(norms[1] * mean / (1 - weight) - exchange * objective.deadline_s)
        else:
            assert objective.budget is not None
            exchange = norms[0] * (1 - weight) / (weight * norms[1])
            bounds.append(norms[0] * mean / weight - exchange * objective.budget)
    return max(bounds), stopped


def _least_values(
    workload: Workload,
    sorted_of: Callable[[Workload], SortedWork],
    coarse: tuple[LatencyModel, int],
    pricings: list[Pricing],
    norms: tuple[float, float],
    stop_at: float,
) -> tuple[FloatArray, bool]:
    """Return (S, len(pricings)) lower bounds of the value of any plan for each scenario alone, and whether the clock made some
    coarser.

    Scenarios that are behind get fewer halvings; those without any time left get the coarse bound.
    """

    def never(split: Split, how: str) -> FloatArray:
        raise AssertionError("a bound needs no plans")

    began = now = time.perf_counter()
    bounds = _coarse_values(workload, *coarse, pricings, norms)
    stopped = False
    cases = workload.cases()
    for s, case in enumerate(cases):
        each_s = (now - began) / max(s, 1)
        if s and now + each_s > stop_at:
            return bounds, True
        late = now + (len(cases) - s) * each_s > stop_at
        stopped |= late
        work = sorted_of(case)
        for i, pricing in enumerate(pricings):
            search = MakespanSearch(work, pricing, norms, never)
            bounds[s, i] = max(bounds[s, i], search.bound_beyond(0, np.inf, LATE_HALVINGS if late else HALVINGS))
        now = time.perf_counter()
    return bounds, stopped


def _coarse_values(
    workload: Workload, latency: LatencyModel, max_actors: int, pricings: list[Pricing], norms: tuple[float, float]
) -> FloatArray:
    """(S, len(pricings)) the coarse bound of the module docstring."""
    assert workload.scenarios is not None
    n = np.maximum(workload.scenarios - workload.generated_tokens, 0).astype(float)
    row, first = np.arange(len(n)), n.argmax(axis=1)
    a, b, c = latency.base_s, latency.per_response_s, latency.per_kv_token_s
    p, most = workload.context_tokens.astype(float), n[row, first]
    load = (b - c / 2) * n.sum(axis=1) + c * (n @ p + np.einsum("sr,sr->s", n, n) / 2)
    own = b * most + c * (p[first] * most + most * (most - 1) / 2)
    makespan = latency.sync_s + np.maximum(a * most + own, load / max_actors)
    held = latency.sync_s + a * np.maximum(most, n.sum(axis=1) / latency.max_batch) + load
    columns = []
    for pricing in pricings:
        time_s = makespan + pricing.phases.seconds
        cost = pricing.actor_rate * held + pricing.learner_rate * time_s
        columns.append([pricing.objective.value(*pair, norms) for pair in zip(time_s.tolist(), cost.tolist(), strict=True)])
    return np.array(columns).T * (1 - 1e-9)  # what rounding of the sums may add
