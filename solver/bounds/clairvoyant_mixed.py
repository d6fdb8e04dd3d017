"""Lower bound on cost at a given generation time on a mixed cluster, for any schedule that knows the true lengths.

Inputs: true lengths and offers. The assumptions and the ways to share an iteration's base time a among its tokens (by load, by
response, by memory) are those of ``solver.bounds.clairvoyant``. Here every token may be decoded on another kind.

**Bound.** Let rho_r be the cost of an actor of offer r per second, X_r = T - ready_r and rho'_r = rho_r (1 + ready_r / X_r): an
actor works at most X_r of its allocated time, so a second of its work costs at least rho'_r. Token j of a response with
context k has the load u_r(k) = b_r + c_r k on offer r. When it is decoded there in an iteration of length tau it is charged at
least

    rho'_r (u_r + a_r u_r / (tau - a_r))      and      rho'_r (u_r + a_r u_r / (s_r u_max_r))            (shares by load)
    rho'_r (u_r + a_r u_min_r / (tau - a_r))  and      rho'_r (u_r + a_r / s_r)                          (shares by response)
    rho'_r (u_r + a_r c_r k / (tau - a_r))    and      rho'_r (u_r + a_r k / Q_r)                        (shares by memory)

and the tau of a response sum to at most X, the largest X_r. For any lam >= 0 the first kind sums to at least

    sum_j min_r ( rho'_r u_r + lam a_r + 2 sqrt(lam rho'_r a_r v_r) ) - lam X ,     v_r = u_r, u_min_r or c_r k,

because that is the least of charge plus lam tau over tau. Every summand is concave in the context k (a least of concave
functions), so a sum over k = p .. p + L - 1 is at least L times the mean of its ends. The best lam may differ between
responses.
All tokens, the prompts' prefill on the offer where it is cheapest and the largest of the ways give the bound. It is infinite
where the fastest offers are too slow for the longest response, or where it exceeds all GPUs held for T.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from solver.bounds.affine_lower_bounds import affine_minorants, min_prompt_tokens, prompt_token_s
from solver.bounds.bound_over_time import BoundOverTime
from solver.model.errors import check_real
from solver.model.problem import PlanningProblem, check_problem
from solver.model.workload import FloatArray
from solver.timing.evaluate import ready_s

Load = Callable[[FloatArray], FloatArray]
MULTIPLIERS = np.geomspace(0.02, 50.0, 25)  # of a first guess of lam


@dataclass(frozen=True, eq=False, repr=False)
class MixedClairvoyantBound(BoundOverTime):
    """Lower bound on cost as a function of generation time, for one workload on one mixed cluster.

    Attributes:
        length: (R,) iterations; first, last: (R,) context of the first and of the last token.
        rate: (K,) cost per second of an actor of each offer; ready_s: (K,); slots: (K,); kv_tokens: (K,) Q_r;
            join_s: (K,).
        minorants: (V, K, 4) affine minorants a, b, c of an iteration, and the least seconds of a prompt's token beside each.
            There are V choices of one per offer.
        prefill_tokens: prompt tokens computed at least.
        max_cost_per_s: of all GPUs together. unit: of costs, ``gpu_s`` or ``usd``.
    """

    length: FloatArray
    first: FloatArray
    last: FloatArray
    rate: FloatArray
    ready_s: FloatArray
    slots: FloatArray
    kv_tokens: FloatArray
    join_s: FloatArray
    minorants: FloatArray
    prefill_tokens: float
    max_cost_per_s: float
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
        decode_s = time_s - self.ready_s
        usable = decode_s > 0
        if not usable.any():
            return math.inf
        rate = np.where(usable, self.rate * (1 + self.ready_s / np.where(usable, decode_s, 1.0)), 0.0)
        costs = [
            self._tokens(m[usable], rate[usable], usable, float(decode_s.max()))
            + self.prefill_tokens * float((rate * m[:, 3])[usable].min())
            for m in self.minorants
        ]
        total = max(costs)
        total += float(np.count_nonzero(self.length)) * float((rate * self.join_s)[usable].min())
        return math.inf if total > self.max_cost_per_s * time_s * (1 + 1e-12) else total

    def _tokens(self, minorant: FloatArray, rate: FloatArray, usable: NDArray[np.bool_], decode_s: float) -> float:
        """Return the bound on the cost of decoding for one choice of minorants, (K, 4)."""
        a, b, c = (minorant[:, [i]] for i in range(3))
        rho, slots, kv_tokens = rate[:, None], self.slots[usable][:, None], self.kv_tokens[usable][:, None]
        fastest = self._over_context(lambda k: (a + b + c * k).min(axis=0))
        if float((fastest - decode_s).max()) > 0:
            return math.inf
        min_load = b + c * float(self.first.min())
        max_load = np.maximum(b + c * float(self.last.max()), 1e-300)
        spare_s = np.maximum(decode_s / np.maximum(self.length, 1.0) - float(a.min()), 1e-12)
        mean_context = (self.first + self.last) / 2
        guess = (rho * a * (b + c * mean_context)).min(axis=0) / spare_s**2
        by_load = self._over_context(lambda k: (rho * (b + c * k) * (1 + a / (slots * max_load))).min(axis=0))
        by_response = self._over_context(lambda k: (rho * (b + c * k + a / slots)).min(axis=0))
        by_memory = self._over_context(lambda k: (rho * (b + c * k + a * k / kv_tokens)).min(axis=0))
        sharings: tuple[tuple[FloatArray, Load], ...] = (
            (by_load, lambda k: b + c * k),
            (by_response, lambda k: min_load),
            (by_memory, lambda k: c * k),
        )
        for factor in MULTIPLIERS:
            lam = factor * guess
            for share, load in sharings:

                def charge(k: FloatArray, lam: FloatArray = lam, load: Load = load) -> FloatArray:
                    return np.asarray((rho * (b + c * k) + lam * a + 2 * np.sqrt(lam * rho * a * load(k))).min(axis=0))

                np.maximum(share, self._over_context(charge) - lam * decode_s, out=share)
        return max(float(charges.sum()) for charges, _ in sharings)

    def _over_context(self, charge: Callable[[FloatArray], FloatArray]) -> FloatArray:
        """Return (R,) lower bounds of the sum of a concave ``charge`` over the contexts of each response's tokens."""
        return np.asarray(self.length * (charge(self.first) + charge(self.last)) / 2)


def mixed_clairvoyant_bound(problem: PlanningProblem, *, prefill_tokens: float | None = None) -> MixedClairvoyantBound:
    """Return the bound for a workload with its true lengths, charged by tables where latency models have them.

    Args:
        problem: of its fields workload, cluster, latency and the objective's unit of cost count.
        prefill_tokens: tokens that have to be prefilled at least; every prompt once when None.

    Raises:
        PlanningError: ``problem`` is something else, or ``prefill_tokens`` is no number of 0 or more.
    """
    check_problem(problem)
    workload, offers, cost = problem.workload, problem.offers, problem.objective.cost
    length = workload.remaining_tokens.astype(float)
    first = workload.context_tokens.astype(float)
    tokens = min_prompt_tokens(workload, prefill_tokens, [offer.latency for offer in offers])
    max_context = int(max(2, (workload.context_tokens + workload.remaining_tokens).max()))
    offer_minorants = [
        [(*m, prompt_token_s(offer.latency, m[1])) for m in affine_minorants(offer.latency, max_context)] for offer in offers
    ]
    choices = max(map(len, offer_minorants))
    minorants = np.array([[m[min(i, len(m) - 1)] for m in offer_minorants] for i in range(choices)])
    price = [1.0 if cost == "gpu_s" else offer.usd_per_gpu_s for offer in offers]
    per_pool = [p.gpus * (1.0 if cost == "gpu_s" else p.usd_per_gpu_s) for p in problem.cluster.pools]
    return MixedClairvoyantBound(
        length,
        first,
        np.maximum(first + length - 1, first),
        np.array([offer.gpus * p for offer, p in zip(offers, price, strict=True)]),
        np.array([ready_s(offer.latency, offer.prewarmed > 0) for offer in offers]),
        np.array([offer.latency.max_batch for offer in offers], dtype=float),
        np.maximum([offer.latency.kv_capacity_tokens for offer in offers], float((first + length).max(initial=1.0))),
        np.array([offer.latency.join_s for offer in offers]),
        minorants,
        tokens,
        float(sum(per_pool)),
        cost,
    )
