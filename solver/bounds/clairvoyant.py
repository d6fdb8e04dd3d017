"""Lower bound on GPU-seconds at a given generation time, for any schedule that knows the true lengths (one GPU kind).

Refills, migrations and early releases are all allowed. Assumptions: every pass of an actor yields at most one token per
response; an iteration of batch B with K KV tokens takes at least ``a + b B + c K`` (an affine minorant of the table, found
by a linear programme on its grid: table and minorant are bilinear in batch and mean context on every cell, so a minorant at
the corners is one inside); an actor is ready r seconds after its GPUs are allocated (without the cold start if any is
prewarmed); each prompt is prefilled at least once; each response joins a batch at least once; the contexts of a batch of more
than one hold at most the KV memory, prompts counted for each of their responses as admission (solver.model.admission) counts
them.

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
- by head: token j gets 1 / B. B is at most s and at most (tau_j - a) / u_min, u_min the least load of any token, so response i
  pays at least ``W_i + a max(L_i / s, u_min L_i^2 / (X - a L_i))``.
- by load up to s h, then by head, for any load h > 0: where the loads sum to at most s h token j gets ``u_j / (sum of loads)``,
  elsewhere 1 / B >= 1 / s. With y = tau_j - a it gets at least u_j / y for y <= s h (the loads sum to at most y), and at least
  ``min(u_j / h, 1) / s`` for y > s h. The y_j sum to at most X - a L_i, so for every lam >= 0 response i pays at least
  ``W_i + a (sum_j m(u_j) - lam (X - a L_i))`` with m(u) the least of share plus lam y over y:

      m(u) = min(A(u), 1 / s + lam s h) ,   A(u) = 2 sqrt(lam u) for u <= lam (s h)^2 ,  else u / (s h) + lam s h .

  (For u <= h the part y > s h starts at ``u / (s h) + lam s h``, which is at least A(u) and at most the second term.) A is
  concave, so m is, and n successive tokens have at least n times the mean of m at the first and the last. m rises with u, so
  tokens may be counted with less context than they have. The ways by load and by head are close to h = u_max and h = u_min.
  For given lam and s h, m falls with s; from s h = s u_max on it falls with s h (lam s h + 1 / s >= 2 sqrt(lam h) does not
  bind). So with s h from one grid for all s, up to its first point that is s u_max or more, more slots never raise the bound.
  (More memory does not either: only its Q is in a denominator.)

    work(T) >= max over the ways of (sum over responses) + prefill + joins ,     infinite for X <= a * longest.

An actor works at most X of the time that its GPUs are allocated, and allocates them at least work / X times for r more seconds:
``C(T) >= g * work(T) * (1 + r / X)``. At most K actors exist, so no T with C(T) > g K T can be reached. Every minorant gives
such a bound; the largest holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from solver.bounds.affine_lower_bounds import affine_minorants
from solver.model.admission import check_rule
from solver.model.cluster import Cluster
from solver.model.errors import PlanningError, check_real
from solver.model.html_tables import facts_table
from solver.model.latency import LatencyModel
from solver.model.workload import FloatArray, Workload
from solver.timing.evaluate import ready_s

GROUPS = 48  # of responses that share one lam in the last way, by load up to s h, then by head
PARTS = 8  # parts of a response's tokens there
FINE = 3  # values of h, in that way, between one and its double
LEAST_REFERENCE = 1 / 32  # h, relative to the largest load of a token, unless the least load is more
MULTIPLIERS = (1.0, 0.6, 0.3, 0.1, 0.0)  # lam, as multiples of what it is where slots do not bind
SHOWN = (1.2, 1.5, 2.0, 4.0)  # times the shortest time, where a bound that is printed is read


@dataclass(frozen=True, eq=False)
class ResponseGroups:
    """The responses in at most ``GROUPS`` groups of similar length, for the way by load up to s h, then by head; no token
    counts with more context than it has.

    A group shares one lam, and counts its responses with their least length and context; tokens beyond the least length have
    at least the context of the last one within it.

    Attributes:
        count, length: (G,) responses of each group, and the sum of their lengths.
        tokens, contexts: (G, 2 ``PARTS``) tokens that have at least each context.
    """

    count: FloatArray
    length: FloatArray
    tokens: FloatArray
    contexts: FloatArray

    @classmethod
    def of(cls, length: FloatArray, context: FloatArray) -> ResponseGroups:
        """Return the groups of (R,) lengths and contexts."""
        order = np.lexsort((context, length))
        weight = np.cumsum(length[order] ** 2 + 1e-9)  # long responses differ most in what they pay: smaller groups for them
        starts = np.unique(np.searchsorted(weight, weight[-1] * np.arange(GROUPS) / GROUPS, side="right"))
        count = np.diff(np.append(starts, len(order))).astype(float)
        least, total = length[order][starts], np.add.reduceat(length[order], starts)
        edges = np.floor(least[:, None] * np.arange(PARTS + 1) / PARTS)
        first, last = edges[:, :-1], np.maximum(edges[:, 1:] - 1, edges[:, :-1])
        half = count[:, None] * np.diff(edges) / 2
        tokens = np.concatenate([half, half], axis=1)
        tokens[:, -1] += total - count * least
        contexts = np.minimum.reduceat(context[order], starts)[:, None] + np.concatenate([first, last], axis=1)
        return cls(count, total, tokens, contexts)

    def shares(self, b: float, c: float, slots: int, references: FloatArray, room: FloatArray) -> float:
        """Return the shares of a over all tokens, by load up to ``slots * reference`` and by head beyond, for the
        best reference.

        Args:
            b, c: a token with context k has the load b + c k. references: (H,) of h.
            room: (G,) the sum of X - a L over each group.
        """
        load, most = b + c * self.contexts, (slots * references)[:, None, None]
        free = ((self.tokens * np.sqrt(load)).sum(axis=1) / room) ** 2  # lam where slots do not bind
        best = np.zeros((len(references), len(room)))
        for factor in MULTIPLIERS:
            lam = factor * free
            each = lam[:, None]
            rising = np.where(load <= each * most**2, 2 * np.sqrt(each * load), load / most + each * most)
            least = np.minimum(rising, 1 / slots + each * most)
            np.maximum(best, np.einsum("gt,hgt->hg", self.tokens, least) - lam * room, out=best)
        return float(best.sum(axis=1).max(initial=0.0))


def references(least: float, most: float, slots: int) -> FloatArray:
    """Return the values of h for loads from ``least`` to ``most``; ``slots`` times h is on one grid for all numbers
    of slots."""
    low, high = slots * max(least / most, LEAST_REFERENCE), slots
    steps = np.arange(math.ceil(FINE * math.log2(low)), math.ceil(FINE * math.log2(high)) + 1)
    return np.asarray(most * 2.0 ** (steps / FINE) / slots)


@dataclass(frozen=True, eq=False)
class MinorantTerms:
    """What the bound of one minorant needs: its a, b, c, (R,) W_i and S_i^2, and the least and largest load of a token."""

    base_s: float
    per_response_s: float
    per_kv_token_s: float
    load: FloatArray
    root_squared: FloatArray
    least: float
    most: float


@dataclass(frozen=True, eq=False, repr=False)
class ClairvoyantBound:
    """Lower bound on GPU-seconds as a function of generation time, for one workload.

    Attributes:
        ready_s: r; gpus: g; max_actors: K; slots: s; once_s: prefill of every prompt and a join of every response.
        length: (R,) L_i. kv_steps, kv_root_squared: (R,) sum of contexts over a response's tokens, and R_i^2.
        kv_tokens: Q; reserved_steps: sum of L_i m_i, 0 where nothing is reserved.
        parts: the responses in groups, for the sharing by load and by head. shares: the terms of every minorant.
    """

    ready_s: float
    gpus: int
    max_actors: int
    slots: int
    once_s: float
    length: FloatArray
    kv_steps: FloatArray
    kv_root_squared: FloatArray
    kv_tokens: float
    reserved_steps: float
    parts: ResponseGroups
    shares: tuple[MinorantTerms, ...]

    def gpu_seconds(self, time_s: float) -> float:
        """Return a lower bound on the GPU-seconds of any policy that completes the workload within ``time_s``;
        infinite if none can.

        Raises:
            PlanningError: ``time_s`` is no number.
        """
        check_real("time_s", time_s)
        if not self.length.any():
            return 0.0
        left = time_s - self.ready_s
        if left <= 0:
            return math.inf
        work, length = 0.0, self.length
        for share in self.shares:
            room = left - share.base_s * length
            if room.min() <= 0:
                return math.inf
            b, c, parts = share.per_response_s, share.per_kv_token_s, self.parts
            most = min(self.slots * share.most, b * self.slots + c * self.kv_tokens)
            by_load = np.maximum(share.root_squared / room, share.load / max(most, 1e-300))
            by_head = np.maximum(length / self.slots, share.least * length**2 / room)
            by_memory = np.maximum(c * self.kv_root_squared / room, self.kv_steps / self.kv_tokens)
            ways = [float(way.sum()) for way in (by_load, by_head, by_memory)] + [self.reserved_steps / self.kv_tokens]
            if share.most > share.least:
                rooms = parts.count * left - share.base_s * parts.length
                ways.append(parts.shares(b, c, self.slots, references(share.least, share.most, self.slots), rooms))
            work = max(work, float(share.load.sum()) + share.base_s * max(ways))
        total = self.gpus * (work + self.once_s) * (1 + self.ready_s / left)
        return math.inf if total > self.gpus * self.max_actors * time_s * (1 + 1e-12) else total

    def shortest_s(self) -> float:
        """Return a lower bound on the time of any policy on the available actors, in seconds."""
        return self.least_time_s(math.inf)

    def least_time_s(self, gpu_seconds: float) -> float:
        """Return a lower bound on the time of any policy that takes at most ``gpu_seconds``; infinite if none takes so few.

        The GPU-seconds of the best policy never rise with time: where the bound exceeds ``gpu_seconds``, no earlier time is
        possible.

        Raises:
            PlanningError: ``gpu_seconds`` is no number.
        """
        check_real("gpu_seconds", gpu_seconds)

        def too_early(time_s: float) -> bool:
            least = self.gpu_seconds(time_s)
            return math.isinf(least) or least > gpu_seconds

        low = high = max(self.ready_s, 1e-9)
        for _ in range(200):
            if not too_early(high):
                break
            low, high = high, high * 2
        else:
            return math.inf
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if too_early(middle) else (low, middle)
        return low

    def _facts(self) -> list[tuple[str, str]]:
        return bound_facts(len(self.length), self.shortest_s(), self.gpu_seconds, "GPU-seconds")

    def __repr__(self) -> str:
        return "ClairvoyantBound(" + "; ".join(f"{name} {value}" for name, value in self._facts()) + ")"

    def _repr_html_(self) -> str:
        return facts_table("Lower bounds for every policy", self._facts())


def bound_facts(responses: int, shortest_s: float, cost_at: Callable[[float], float], unit: str) -> list[tuple[str, str]]:
    """Return the lines that a bound curve prints: the shortest time, and the least cost at some multiples of it."""
    if not math.isfinite(shortest_s):
        return [("responses", f"{responses:,}"), ("shortest possible time", "none: no policy can generate the step")]
    facts = [("responses", f"{responses:,}"), ("shortest possible time", f"{shortest_s:.4g} s")]
    least = ((f"lower bound on cost at {factor:g} x that time", cost_at(factor * shortest_s)) for factor in SHOWN)
    return facts + [(name, f"{cost:.4g} {unit}") for name, cost in least if math.isfinite(cost)]


def clairvoyant_bound(
    workload: Workload,
    cluster: Cluster,
    latency: LatencyModel,
    *,
    prefill_tokens: float | None = None,
    admission: str = "preempt",
) -> ClairvoyantBound:
    """Return the bound for ``workload`` with its true lengths, charged by ``latency`` with its table if it has one.

    Args:
        prefill_tokens: tokens that actors have to prefill at least; every prompt once when None. Give fewer where prompts
            share prefixes, and 0 where they are computed on GPUs that are paid for in any case.
        admission: ``reserve`` bounds policies on engines that reserve memory for the limit; the bound of ``preempt`` holds
            whatever they do.

    Raises:
        PlanningError: the cluster is a mixed one, or the admission rule is unknown.
    """
    check_rule(admission)
    if not isinstance(cluster, Cluster):
        raise PlanningError("clairvoyant_bound takes a Cluster of one GPU kind; use mixed_clairvoyant_bound for several")
    length = workload.remaining_tokens.astype(float)
    context = workload.context_tokens.astype(float)
    most_context = int(max(2, (workload.context_tokens + workload.remaining_tokens).max()))
    least_context = float(context[length > 0].min()) if np.any(length > 0) else 0.0
    shares = []
    for a, b, c in affine_minorants(latency, most_context):
        load = b * length + c * (context * length + length * (length - 1) / 2)
        root_squared = _root_sum(b, c, context, length) ** 2
        shares.append(MinorantTerms(a, b, c, load, root_squared, b + c * least_context, max(b + c * most_context, 1e-300)))
    reserved = workload.reserved_tokens.astype(float) if admission == "reserve" else np.zeros_like(length)
    last = np.where(length > 0, context + length - 1, 0.0)
    works = np.unique(workload.prompt_of[workload.remaining_tokens > 0])
    tokens = float(workload.prompt_tokens[works].sum()) if prefill_tokens is None else float(prefill_tokens)
    once_s = latency.prefill_per_token_s * tokens + latency.join_s * float(np.count_nonzero(length))
    return ClairvoyantBound(
        ready_s(latency, cluster.prewarmed > 0),
        cluster.gpus_per_actor,
        cluster.max_actors,
        latency.max_batch,
        once_s,
        length,
        context * length + length * (length - 1) / 2,
        _root_sum(0.0, 1.0, context, length) ** 2,
        max(float(latency.kv_capacity_tokens), float(last.max(initial=0.0)), float(reserved.max(initial=0.0))),
        float(reserved @ length),
        ResponseGroups.of(length, context),
        tuple(shares),
    )


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
