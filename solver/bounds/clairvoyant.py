"""Lower bound on GPU-seconds at a given generation time, for any schedule that knows the true lengths (one GPU kind).

Refills, migrations and early releases are all allowed. Assumptions:

- Every pass of an actor yields at most one token per response.
- An iteration of batch B with K KV tokens takes at least ``a + b B + c K``. This is an affine minorant of the table, found by a
  linear programme on its grid. Table and minorant are bilinear in batch and mean context on every cell, so a minorant at the
  corners is one inside.
- Each token of a prompt that an iteration feeds besides takes p more; p is b where prefill is mixed and there is a table.
- An actor is ready r seconds after its GPUs are allocated, without the cold start if any is prewarmed.
- Each prompt is prefilled at least once, and each response joins a batch at least once.
- The contexts of a batch of more than one hold at most the KV memory. Prompts count for each of their responses, as admission
  (solver.model.admission) counts them.

**Bound.** Let X = T - r be the time that is left to decode when generation takes T. Token j of response i with context k_j has
the load u_j = b + c k_j. Charge it u_j and a share of a; the shares of an iteration's tokens add up to at most 1. The tokens
of a response lie in different iterations, so ``sum_j tau_j <= X`` and ``sum_j (tau_j - a) <= X - a L_i``. An iteration
holds at most Q KV tokens: those of the memory, or of the longest context, if that is more. Ways to share a:

- by load: token j gets ``u_j / (sum of loads)``. The loads sum to at most tau_j - a, and to at most v = min(s u_max, b s + c Q)
  with s slots and u_max the largest load of any token. With Cauchy-Schwarz, ``sum_j u_j / (tau_j - a) >= S_i^2 / (X - a L_i)``,
  S_i the sum of sqrt(u_j), so response i pays at least ``W_i + a max(S_i^2 / (X - a L_i), W_i / v)`` with W_i = sum u_j.
- by memory: token j gets ``k_j / (sum of contexts)``. The contexts sum to at most Q, and to at most ``(tau_j - a) / c``, so
  response i pays at least ``W_i + a max(c R_i^2 / (X - a L_i), sum_j k_j / Q)`` with R_i the sum of sqrt(k_j).
- by what is reserved, where admission reserves: response i takes its m_i tokens of the memory in every iteration, and those of
  a batch are at most Q (or the largest m alone, if that is more), so it pays at least ``W_i + a L_i m_i / Q``.
- by response: token j gets 1 / B. B is at most s and at most (tau_j - a) / u_min, u_min the least load of any token, so
  response i pays at least ``W_i + a max(L_i / s, u_min L_i^2 / (X - a L_i))``.
- by load up to s h, then by response, for any load h > 0: where the loads sum to at most s h token j gets
  ``u_j / (sum of loads)``, elsewhere 1 / B >= 1 / s. With y = tau_j - a it gets at least u_j / y for y <= s h (the loads
  sum to at most y), and at least ``min(u_j / h, 1) / s`` for y > s h. The y_j sum to at most X - a L_i, so for every
  lam >= 0 response i pays at least ``W_i + a (sum_j m(u_j) - lam (X - a L_i))`` with m(u) the least of share plus lam y over y:

      m(u) = min(A(u), 1 / s + lam s h) ,   A(u) = 2 sqrt(lam u) for u <= lam (s h)^2 ,  else u / (s h) + lam s h .

  (For u <= h the part y > s h starts at ``u / (s h) + lam s h``, which is at least A(u) and at most the second term.) A is
  concave, so m is. So n successive tokens have at least n times the mean of m at the first and the last. And m rises with u, so
  tokens may be counted with less context than they have. The ways by load and by response are close to h = u_max and h = u_min.
  For given lam and s h, m falls with s; from s h = s u_max on it falls with s h (lam s h + 1 / s >= 2 sqrt(lam h) does not
  bind). So take s h from one grid for all s, up to its first point that is s u_max or more. Then more slots never raise the
  bound. (More memory does not either: only its Q is in a denominator.)

    work(T) >= max over the ways of (sum over responses) + prefill + joins ,     infinite for X <= a * longest.

An actor works at most X of the time that its GPUs are allocated, and allocates them at least work / X times for r more seconds:
``C(T) >= g * work(T) * (1 + r / X)``. At most K actors exist, so no T with C(T) > g K T can be reached. Every minorant gives
such a bound; the largest holds.

This closed form counts actors in fractions. The configuration bound (``solver.bounds.exact_clairvoyant``) bounds the base times
of iterations with whole actors; it knows neither slots nor KV memory. Results take the larger of the two and name it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import ClassVar

import numpy as np

from solver.bounds.affine_lower_bounds import affine_minorants, min_prompt_tokens, prompt_token_s
from solver.bounds.bound_over_time import PRINTED_TIME_FACTORS, BoundOverTime
from solver.bounds.exact_clairvoyant import DEFAULT_WORK, ConfigurationBound, configuration_bound
from solver.bounds.response_groups import ResponseGroups, references
from solver.model.cluster import Cluster
from solver.model.errors import PlanningError, as_given, check_real, is_whole
from solver.model.ordered_sums import dot
from solver.model.problem import PlanningProblem, check_problem
from solver.model.workload import FloatArray
from solver.timing.evaluate import ready_s

CLOSED_FORM, CONFIGURATION_LP = "closed form", "configuration LP"  # names of the two bounds in results
MINORANT_TIME_FACTOR = 2.0  # times the longest response alone, where the minorant of the configuration bound is chosen
KEPT_BOUNDS = 128  # configuration bounds that are kept: what-ifs, dashboards and reports ask for those of the same steps again


@dataclass(frozen=True, eq=False)
class MinorantTerms:
    """What the bound of one minorant needs: its a, b, c, (R,) W_i and S_i^2, the least and largest load of a token, and the
    seconds of the prompts' tokens."""

    base_s: float
    per_response_s: float
    per_kv_token_s: float
    load: FloatArray
    root_squared: FloatArray
    min_load: float
    max_load: float
    prompts_s: float


@dataclass(frozen=True, eq=False, repr=False)
class ClairvoyantBound(BoundOverTime):
    """Lower bound on GPU-seconds as a function of generation time, for one workload.

    Attributes:
        ready_s: r; gpus: g; max_actors: K; slots: s; joins_s: of the joins of all responses.
        length: (R,) L_i. kv_steps, kv_root_squared: (R,) sum of contexts over a response's tokens, and R_i^2.
        kv_tokens: Q; reserved_steps: sum of L_i m_i, 0 where nothing is reserved.
        groups: the responses in groups, for the sharing by load and by response. minorants: the terms of each.
        context: (R,) of the first token. work: counted, granted to the configuration bound; 0 for the closed form alone.
    """

    cost_name: ClassVar[str] = "gpu_seconds"
    ready_s: float
    gpus: int
    max_actors: int
    slots: int
    joins_s: float
    length: FloatArray
    kv_steps: FloatArray
    kv_root_squared: FloatArray
    kv_tokens: float
    reserved_steps: float
    groups: ResponseGroups
    minorants: tuple[MinorantTerms, ...]
    context: FloatArray
    work: int = DEFAULT_WORK
    unit: str = "gpu_s"

    def gpu_seconds(self, time_s: float) -> float:
        """Return a lower bound on the GPU-seconds of any policy that completes the workload within ``time_s``;
        infinite if none can.

        Raises:
            PlanningError: ``time_s`` is no number.
        """
        check_real("time_s", time_s)
        return self.with_method(time_s)[0]

    def method(self, time_s: float) -> str:
        """Return which bound ``gpu_seconds`` is at this time: ``configuration LP`` or ``closed form``."""
        return self.with_method(time_s)[1]

    @cached_property
    def configuration(self) -> tuple[int, ConfigurationBound] | None:
        """The configuration bound and the number of its minorant, the one with the largest closed form; or None."""
        decode_s = MINORANT_TIME_FACTOR * max(terms.base_s for terms in self.minorants) * float(self.length.max(initial=0.0))
        best = int(np.argmax([self._closed_form(terms, decode_s) for terms in self.minorants]))
        terms = self.minorants[best]
        minorant = (terms.base_s, terms.per_response_s, terms.per_kv_token_s)
        bound = _kept_bound(self.length.tobytes(), self.context.tobytes(), minorant, self.work)
        return None if bound is None else (best, bound)

    def with_method(self, time_s: float) -> tuple[float, str]:
        """Return ``gpu_seconds`` and ``method`` at a time."""
        decode_s, method = time_s - self.ready_s, CLOSED_FORM
        if not self.length.any():
            return 0.0, method
        busy_s = max(self._closed_form(terms, decode_s) for terms in self.minorants) if decode_s > 0 else math.inf
        if math.isinf(busy_s):
            return math.inf, method
        if self.configuration is not None:
            number, configuration = self.configuration
            terms = self.minorants[number]
            configuration_s = float(terms.load.sum()) + terms.prompts_s + configuration.iterations_s(decode_s)
            busy_s, method = (configuration_s, CONFIGURATION_LP) if configuration_s > busy_s else (busy_s, method)
        total = self.gpus * (busy_s + self.joins_s) * (1 + self.ready_s / decode_s)
        return math.inf if total > self.gpus * self.max_actors * time_s * (1 + 1e-12) else total, method

    def _closed_form(self, terms: MinorantTerms, decode_s: float) -> float:
        """Return the closed form's bound on the seconds of all iterations; infinite where a response does not fit."""
        length = self.length
        slack_s = decode_s - terms.base_s * length
        if slack_s.min() <= 0:
            return math.inf
        b, c, groups = terms.per_response_s, terms.per_kv_token_s, self.groups
        max_batch_load = min(self.slots * terms.max_load, b * self.slots + c * self.kv_tokens)
        by_load = np.maximum(terms.root_squared / slack_s, terms.load / max(max_batch_load, 1e-300))
        by_response = np.maximum(length / self.slots, terms.min_load * length**2 / slack_s)
        by_memory = np.maximum(c * self.kv_root_squared / slack_s, self.kv_steps / self.kv_tokens)
        charges = [float(charge.sum()) for charge in (by_load, by_response, by_memory)] + [self.reserved_steps / self.kv_tokens]
        if terms.max_load > terms.min_load:
            group_slack_s = groups.count * decode_s - terms.base_s * groups.length
            charges.append(
                groups.base_time_shares(b, c, self.slots, references(terms.min_load, terms.max_load, self.slots), group_slack_s)
            )
        return float(terms.load.sum()) + terms.prompts_s + terms.base_s * max(charges)

    def cost(self, time_s: float) -> float:
        """Return ``gpu_seconds``."""
        return self.gpu_seconds(time_s)

    def _facts(self) -> list[tuple[str, str]]:
        shortest_s = self.shortest_s()
        methods = (
            {self.method(factor * shortest_s) for factor in PRINTED_TIME_FACTORS}
            if math.isfinite(shortest_s)
            else {CLOSED_FORM}
        )
        return [*super()._facts(), ("bounds", " and ".join(sorted(methods)))]


def clairvoyant_bound(
    problem: PlanningProblem, *, prefill_tokens: float | None = None, work: int = DEFAULT_WORK
) -> ClairvoyantBound:
    """Return a lower bound on time and GPU-seconds of any schedule, given the true lengths.

    Seconds come from the latency model's table if it has one.

    Args:
        problem: its workload, cluster, latency and admission rule are used. With ``reserve`` the bound holds for engines that
            reserve memory for the response limit; with ``preempt`` it holds for all engines.
        prefill_tokens: least number of tokens that actors prefill; every prompt once when None. Give fewer if prompts share
            prefixes, and 0 if they are prefilled on GPUs that are paid for anyway.
        work: limit on the counted work of the configuration LP, which makes the bound tighter; 0: only the closed form.

    Raises:
        PlanningError: the cluster is a mixed one, or an argument is of the wrong type or below 0.

    Example:
        >>> import solver
        >>> latency = solver.LatencyModel("mine", 1, base_s=5e-3, per_response_s=1e-3, max_batch=64)
        >>> workload = solver.Workload([100] * 64, list(range(64)), list(range(100, 740, 10)))
        >>> problem = solver.PlanningProblem(workload, solver.Cluster(1, 8, 1), latency)
        >>> plan, bound = solver.random_split(problem, actors=4), solver.clairvoyant_bound(problem)
        >>> bool(bound.shortest_s() <= plan.makespan_s), bool(bound.gpu_seconds(plan.makespan_s) <= plan.gpu_seconds)
        (True, True)
    """
    check_problem(problem)
    if not is_whole(work, 0):
        raise PlanningError(f"work is {as_given(work)}; a whole number of 0 or more is needed")
    workload = problem.workload
    if not isinstance(problem.cluster, Cluster):
        raise PlanningError("clairvoyant_bound takes a Cluster of one GPU kind, not a MixedCluster; bound each kind on its own")
    cluster, latency = problem.one_kind
    length = workload.remaining_tokens.astype(float)
    context = workload.context_tokens.astype(float)
    max_context = int(max(2, (workload.context_tokens + workload.remaining_tokens).max()))
    min_context = float(context[length > 0].min()) if np.any(length > 0) else 0.0
    tokens = min_prompt_tokens(workload, prefill_tokens, latency)
    minorants = []
    for a, b, c in affine_minorants(latency, max_context):
        load = b * length + c * (context * length + length * (length - 1) / 2)
        root_squared = _root_sum(b, c, context, length) ** 2
        max_load, prompts_s = max(b + c * max_context, 1e-300), prompt_token_s(latency, b) * tokens
        minorants.append(MinorantTerms(a, b, c, load, root_squared, b + c * min_context, max_load, prompts_s))
    reserved = workload.reserved_tokens.astype(float) if problem.admission == "reserve" else np.zeros_like(length)
    last = np.where(length > 0, context + length - 1, 0.0)
    return ClairvoyantBound(
        ready_s(latency, cluster.prewarmed > 0),
        cluster.gpus_per_actor,
        cluster.max_actors,
        latency.max_batch,
        latency.join_s * float(np.count_nonzero(length)),
        length,
        context * length + length * (length - 1) / 2,
        _root_sum(0.0, 1.0, context, length) ** 2,
        max(float(latency.kv_capacity_tokens), float(last.max(initial=0.0)), float(reserved.max(initial=0.0))),
        float(dot(reserved, length)),
        ResponseGroups.of(length, context),
        tuple(minorants),
        context,
        work,
    )


@lru_cache(maxsize=KEPT_BOUNDS)
def _kept_bound(length: bytes, context: bytes, minorant: tuple[float, float, float], work: int) -> ConfigurationBound | None:
    """Return ``configuration_bound`` of doubles, which depends on these numbers alone: neither on GPUs, nor on prices."""
    return configuration_bound(np.frombuffer(length), np.frombuffer(context), minorant, work)


def _root_sum(b: float, c: float, context: FloatArray, length: FloatArray) -> FloatArray:
    """Return a lower bound of ``sum sqrt(b + c * k)`` over k = p .. p + L - 1.

    The root rises, so each term is at least its integral from k - 1 to k. The term k = 0 of an empty context is exact.
    """
    if c <= 0:
        return math.sqrt(b) * length
    first = np.where((context < 1) & (length > 0), math.sqrt(b), 0.0)
    start = np.maximum(context - 1, 0.0)
    steps = np.where(context < 1, np.maximum(length - 1, 0.0), length)
    return np.asarray(first + ((b + c * (start + steps)) ** 1.5 - (b + c * start) ** 1.5) / (1.5 * c))
