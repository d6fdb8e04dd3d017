"""Lower bound on cost at a given generation time on a mixed cluster, for any schedule that knows the true lengths.

Inputs: true lengths and offers. The assumptions and the ways to share an iteration's base time a among its tokens (by load, by
head, by memory) are those of ``solver.bounds.clairvoyant``; here every token may be decoded on another kind.

**Bound.** Let rho_r be the cost of an actor of offer r per second, X_r = T - ready_r and rho'_r = rho_r (1 + ready_r / X_r): an
actor works at most X_r of its allocated time, so a second of its work costs at least rho'_r. Token j of a response with
context k has the load u_r(k) = b_r + c_r k on offer r. When it is decoded there in an iteration of length tau it is charged at
least

    rho'_r (u_r + a_r u_r / (tau - a_r))      and      rho'_r (u_r + a_r u_r / (s_r u_max_r))            (shares by load)
    rho'_r (u_r + a_r u_min_r / (tau - a_r))  and      rho'_r (u_r + a_r / s_r)                          (shares by head)
    rho'_r (u_r + a_r c_r k / (tau - a_r))    and      rho'_r (u_r + a_r k / Q_r)                        (shares by memory)

and the tau of a response sum to at most X, the largest X_r. For any lam >= 0 the first kind sums to at least

    sum_j min_r ( rho'_r u_r + lam a_r + 2 sqrt(lam rho'_r a_r v_r) ) - lam X ,     v_r = u_r, u_min_r or c_r k,

because that is the least of charge plus lam tau over tau. Every summand is concave in the context k (a least of concave
functions), so a sum over k = p .. p + L - 1 is at least L times the mean of its ends. The best lam may differ between
responses.
All tokens, the prompts' prefill on the offer where it is cheapest and the largest of the ways give the bound; it is
infinite where the fastest offers are too slow for the longest response, or where it exceeds all GPUs held for T.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from solver.bounds.affine_lower_bounds import affine_minorants
from solver.bounds.clairvoyant import bound_facts
from solver.model.cluster import Cluster, MixedCluster
from solver.model.errors import PlanningError, check_real
from solver.model.html_tables import facts_table
from solver.model.objective import COSTS
from solver.model.offers import Latencies, offers_of
from solver.model.workload import FloatArray, Workload
from solver.timing.evaluate import ready_s

Load = Callable[[FloatArray], FloatArray]
MULTIPLIERS = np.geomspace(0.02, 50.0, 25)  # of a first guess of lam


@dataclass(frozen=True, eq=False)
class MixedClairvoyantBound:
    """Lower bound on cost as a function of generation time, for one workload on one mixed cluster.

    Attributes:
        length: (R,) iterations; first, last: (R,) context of the first and of the last token.
        rate: (K,) cost per second of an actor of each offer; ready_s: (K,); slots: (K,); kv_tokens: (K,) Q_r;
            prefill_per_token_s, join_s: (K,).
        minorants: (V, K, 3) affine minorants a, b, c of an iteration, V choices of one per offer.
        prefill_tokens: prompt tokens computed at least.
        most_cost_per_s: of all GPUs together. unit: of costs, ``gpu_s`` or ``usd``.
    """

    length: FloatArray
    first: FloatArray
    last: FloatArray
    rate: FloatArray
    ready_s: FloatArray
    slots: FloatArray
    kv_tokens: FloatArray
    prefill_per_token_s: FloatArray
    join_s: FloatArray
    minorants: FloatArray
    prefill_tokens: float
    most_cost_per_s: float
    unit: str = "gpu_s"

    def cost(self, time_s: float) -> float:
        """Return a lower bound on the cost of any policy that completes the workload within ``time_s``; infinite if
        none can.

        Raises:
            PlanningError: ``time_s`` is no number.
        """
        check_real("time_s", time_s)
        if not self.length.any():
            return 0.0
        left = time_s - self.ready_s
        usable = left > 0
        if not usable.any():
            return math.inf
        paid = np.where(usable, self.rate * (1 + self.ready_s / np.where(usable, left, 1.0)), 0.0)
        worked = [self._tokens(m[usable], paid[usable], usable, float(left.max())) for m in self.minorants]
        total = max(worked) + self.prefill_tokens * float((paid * self.prefill_per_token_s)[usable].min())
        total += float(np.count_nonzero(self.length)) * float((paid * self.join_s)[usable].min())
        return math.inf if total > self.most_cost_per_s * time_s * (1 + 1e-12) else total

    def _tokens(self, minorant: FloatArray, paid: FloatArray, usable: NDArray[np.bool_], left_s: float) -> float:
        """Return the bound on the cost of decoding for one choice of minorants, (K, 3)."""
        a, b, c = (minorant[:, [i]] for i in range(3))
        rho, seats, memory = paid[:, None], self.slots[usable][:, None], self.kv_tokens[usable][:, None]
        fastest = self._over_context(lambda k: (a + b + c * k).min(axis=0))
        if float((fastest - left_s).max()) > 0:
            return math.inf
        least = b + c * float(self.first.min())
        most = np.maximum(b + c * float(self.last.max()), 1e-300)
        step = np.maximum(left_s / np.maximum(self.length, 1.0) - float(a.min()), 1e-12)
        middle = (self.first + self.last) / 2
        guess = (rho * a * (b + c * middle)).min(axis=0) / step**2
        by_load = self._over_context(lambda k: (rho * (b + c * k) * (1 + a / (seats * most))).min(axis=0))
        by_head = self._over_context(lambda k: (rho * (b + c * k + a / seats)).min(axis=0))
        by_memory = self._over_context(lambda k: (rho * (b + c * k + a * k / memory)).min(axis=0))
        ways: tuple[tuple[FloatArray, Load], ...] = (
            (by_load, lambda k: b + c * k),
            (by_head, lambda k: least),
            (by_memory, lambda k: c * k),
        )
        for factor in MULTIPLIERS:
            lam = factor * guess
            for share, load in ways:

                def charge(k: FloatArray, lam: FloatArray = lam, load: Load = load) -> FloatArray:
                    return np.asarray((rho * (b + c * k) + lam * a + 2 * np.sqrt(lam * rho * a * load(k))).min(axis=0))

                np.maximum(share, self._over_context(charge) - lam * left_s, out=share)
        return max(float(way.sum()) for way, _ in ways)

    def _over_context(self, charge: Callable[[FloatArray], FloatArray]) -> FloatArray:
        """Return (R,) lower bounds of the sum of a concave ``charge`` over the contexts of each response's tokens."""
        return np.asarray(self.length * (charge(self.first) + charge(self.last)) / 2)

    def least_time_s(self, cost: float) -> float:
        """Return a lower bound on the time of any policy that costs at most ``cost``; infinite if none costs so little.

        Raises:
            PlanningError: ``cost`` is no number.
        """
        check_real("cost", cost)
        low = high = max(float(self.ready_s.min()), 1e-9)
        for _ in range(200):
            if self.cost(high) <= cost and math.isfinite(self.cost(high)):
                break
            low, high = high, high * 2
        else:
            return math.inf
        for _ in range(50):
            middle = (low + high) / 2
            low, high = (low, middle) if self.cost(middle) <= cost and math.isfinite(self.cost(middle)) else (middle, high)
        return low

    def _facts(self) -> list[tuple[str, str]]:
        return bound_facts(
            len(self.length), self.least_time_s(math.inf), self.cost, "GPU-seconds" if self.unit == "gpu_s" else "USD"
        )

    def __repr__(self) -> str:
        return "MixedClairvoyantBound(" + "; ".join(f"{name} {value}" for name, value in self._facts()) + ")"

    def _repr_html_(self) -> str:
        return facts_table("Lower bounds for every policy", self._facts())


def mixed_clairvoyant_bound(
    workload: Workload,
    cluster: Cluster | MixedCluster,
    latency: Latencies,
    *,
    cost: str = "gpu_s",
    prefill_tokens: float | None = None,
) -> MixedClairvoyantBound:
    """Return the bound for ``workload`` with its true lengths, charged by tables where latency models have them.

    Args:
        cost: what is bounded, ``gpu_s`` or ``usd``.
        prefill_tokens: tokens that have to be prefilled at least; every prompt once when None.

    Raises:
        PlanningError: ``cost`` is unknown, or no actor fits the cluster.
    """
    if cost not in COSTS:
        raise PlanningError(f"cost {cost!r} is unknown; choose one of {', '.join(COSTS)}")
    offers = offers_of(cluster, latency)
    length = workload.remaining_tokens.astype(float)
    first = workload.context_tokens.astype(float)
    works = np.unique(workload.prompt_of[workload.remaining_tokens > 0])
    tokens = float(workload.prompt_tokens[works].sum()) if prefill_tokens is None else float(prefill_tokens)
    most_context = int(max(2, (workload.context_tokens + workload.remaining_tokens).max()))
    of_offers = [affine_minorants(offer.latency, most_context) for offer in offers]
    choices = max(map(len, of_offers))
    minorants = np.array([[m[min(i, len(m) - 1)] for m in of_offers] for i in range(choices)])
    price = [1.0 if cost == "gpu_s" else offer.usd_per_gpu_s for offer in offers]
    per_pool = [p.gpus * (1.0 if cost == "gpu_s" else p.usd_per_gpu_s) for p in cluster.pools]
    return MixedClairvoyantBound(
        length,
        first,
        np.maximum(first + length - 1, first),
        np.array([offer.gpus * p for offer, p in zip(offers, price, strict=True)]),
        np.array([ready_s(offer.latency, offer.prewarmed > 0) for offer in offers]),
        np.array([offer.latency.max_batch for offer in offers], dtype=float),
        np.maximum([offer.latency.kv_capacity_tokens for offer in offers], float((first + length).max(initial=1.0))),
        np.array([offer.latency.prefill_per_token_s for offer in offers]),
        np.array([offer.latency.join_s for offer in offers]),
        minorants,
        tokens,
        float(sum(per_pool)),
        cost,
    )
