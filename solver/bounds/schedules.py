"""Lower bound on GPU-seconds at a given generation time, for any schedule of one step's responses on one GPU kind.

A schedule may know all lengths beforehand. Refills, migrations and early releases are all allowed. Assumptions:

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

This closed form counts actors in fractions. The configuration bound (``solver.bounds.configurations``) bounds the base times
of iterations with whole actors; it knows neither slots nor KV memory. Results take the larger of the two and name it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from solver.bounds.bound import Bound
from solver.bounds.configurations import DEFAULT_WORK, ConfigurationBound, configuration_bound
from solver.model.cluster import Cluster
from solver.model.errors import PlanningError, as_given, check_real, is_number, is_whole
from solver.model.latency import LatencyModel
from solver.model.ordered_sums import dot
from solver.model.problem import PlanningProblem, check_problem
from solver.model.workload import FloatArray, Workload
from solver.timing.evaluate import ready_s

CLOSED_FORM, CONFIGURATION_LP = "closed form", "configuration LP"  # methods of the bound
MINORANT_TIME_FACTOR = 2.0  # times the longest response alone, where the minorant of the configuration bound is chosen
KEPT_BOUNDS = 128  # configuration bounds that are kept: what-ifs, dashboards and reports ask for those of the same steps again
MIN_BATCH = 1e-30  # so far from every other that it has no weight
GROUPS = 48  # of responses that share one lam
GROUP_PARTS = 8  # of a response's tokens
REFERENCES_PER_DOUBLING = 3  # values of h between one and its double
MIN_REFERENCE = 1 / 32  # least h, relative to the largest load of a token, unless the least load is more
MULTIPLIERS = (1.0, 0.6, 0.3, 0.1, 0.0)  # lam, as multiples of what it is where slots do not bind


@dataclass(frozen=True, eq=False)
class Minorant:
    """An affine minorant ``a + b B + c K`` of iteration times, and what the responses of a step weigh under it.

    Attributes:
        base_s, per_response_s, per_kv_token_s: a, b, c. load, root_squared: (R,) W_i and S_i^2.
        min_load, max_load: of any token. prompts_s: seconds of the prompts' tokens.
    """

    base_s: float
    per_response_s: float
    per_kv_token_s: float
    load: FloatArray
    root_squared: FloatArray
    min_load: float
    max_load: float
    prompts_s: float


class ScheduleBound(Bound):
    """Lower bound on the GPU-seconds of any schedule that decodes one token per pass, as a function of generation time.

    Args:
        problem: its workload (with true lengths; scenarios are not used), cluster, latency, admission rule and phases are used.
        prefill_tokens: least number of tokens that actors prefill; every prompt once when None.
        lp_work: limit on the counted work of the configuration LP; 0: the closed form alone.

    Attributes:
        gpus: of an actor. max_actors: K. minorants: of the latency model.
        joins_s: of the joins of all responses. kv_tokens: Q. context: (R,) of each response's first token.

    Raises:
        PlanningError: the cluster is a mixed one, the workload has passes (``DraftedBound`` knows them), or an argument is of
            the wrong type or below 0.
    """

    knows_drafts = False  # whether a pass may yield several tokens of a response

    def __init__(self, problem: PlanningProblem, *, prefill_tokens: float | None = None, lp_work: int = DEFAULT_WORK) -> None:
        check_problem(problem)
        check_lp_work(lp_work)
        if not isinstance(problem.cluster, Cluster):
            raise PlanningError(
                "bounds of schedules take a Cluster of one GPU kind, not a MixedCluster; bound each kind on its own"
            )
        if problem.workload.passes is not None and not self.knows_drafts:
            raise PlanningError("the workload decodes with drafts; give drafts= or leave out passes")
        cluster, latency = problem.one_kind
        workload = problem.workload
        length, context = workload.remaining_tokens.astype(float), workload.context_tokens.astype(float)
        self.length, self.context, self.phases, self.lp_work = length, context, problem.phases, lp_work
        self.ready_s, self.gpus, self.max_actors = (
            ready_s(latency, cluster.prewarmed > 0),
            cluster.gpus_per_actor,
            cluster.max_actors,
        )
        self.joins_s = latency.join_s * float(np.count_nonzero(length))
        self.minorants = _minorants(workload, latency, min_prompt_tokens(workload, prefill_tokens, latency))
        reserved = workload.reserved_tokens.astype(float) if problem.admission == "reserve" else np.zeros_like(length)
        last = np.where(length > 0, context + length - 1, 0.0)
        self.kv_tokens = max(float(latency.kv_capacity_tokens), float(last.max(initial=0.0)), float(reserved.max(initial=0.0)))
        self._slots, self._reserved_steps = latency.max_batch, float(dot(reserved, length))
        self._kv_steps = context * length + length * (length - 1) / 2  # (R,) sum of contexts over a response's tokens
        self._kv_root_squared = _root_sum(0.0, 1.0, context, length) ** 2  # (R,) R_i^2
        self._groups = ResponseGroups.of(length, context)

    @property
    def alone_s(self) -> FloatArray:
        """The (R,) least seconds that each response decodes for, as if it were alone on an actor."""
        return np.asarray(np.max([one.base_s * self.length + one.load for one in self.minorants], axis=0))

    def gpu_seconds(self, time_s: float) -> float:
        """See ``Bound``."""
        check_real("time_s", time_s)
        return self._at(time_s)[0]

    def method(self, time_s: float) -> str:
        """Return which bound ``gpu_seconds`` is at this time: ``configuration LP`` or ``closed form``."""
        return self._at(time_s)[1]

    @cached_property
    def configuration(self) -> tuple[int, ConfigurationBound] | None:
        """The configuration bound and the number of its minorant, the one with the largest closed form; or None."""
        decode_s = MINORANT_TIME_FACTOR * max(one.base_s for one in self.minorants) * float(self.length.max(initial=0.0))
        best = int(np.argmax([self._closed_form(one, decode_s) for one in self.minorants]))
        one = self.minorants[best]
        minorant = (one.base_s, one.per_response_s, one.per_kv_token_s)
        bound = _kept_bound(self.length.tobytes(), self.context.tobytes(), minorant, self.lp_work)
        return None if bound is None else (best, bound)

    def _at(self, time_s: float) -> tuple[float, str]:
        """Return ``gpu_seconds`` and ``method`` at a time."""
        decode_s, method = time_s - self.ready_s, CLOSED_FORM
        if not self.length.any():
            return 0.0, method
        busy_s = max(self._closed_form(one, decode_s) for one in self.minorants) if decode_s > 0 else math.inf
        if math.isinf(busy_s):
            return math.inf, method
        if self.configuration is not None:
            number, configuration = self.configuration
            one = self.minorants[number]
            configuration_s = float(one.load.sum()) + one.prompts_s + configuration.iterations_s(decode_s)
            busy_s, method = (configuration_s, CONFIGURATION_LP) if configuration_s > busy_s else (busy_s, method)
        return self._held_gpu_s(busy_s, time_s), method

    def _held_gpu_s(self, busy_s: float, time_s: float) -> float:
        """Return the GPU-seconds of actors that are busy for so long within a time; infinite if there are not as many."""
        total = self.gpus * (busy_s + self.joins_s) * (1 + self.ready_s / (time_s - self.ready_s))
        return math.inf if total > self.gpus * self.max_actors * time_s * (1 + 1e-12) else total

    def _closed_form(self, one: Minorant, decode_s: float) -> float:
        """Return the closed form's bound on the seconds of all iterations; infinite where a response does not fit."""
        length, slots = self.length, self._slots
        slack_s = decode_s - one.base_s * length
        if slack_s.min() <= 0:
            return math.inf
        b, c, groups = one.per_response_s, one.per_kv_token_s, self._groups
        max_batch_load = min(slots * one.max_load, b * slots + c * self.kv_tokens)
        by_load = np.maximum(one.root_squared / slack_s, one.load / max(max_batch_load, 1e-300))
        by_response = np.maximum(length / slots, one.min_load * length**2 / slack_s)
        by_memory = np.maximum(c * self._kv_root_squared / slack_s, self._kv_steps / self.kv_tokens)
        charges = [float(charge.sum()) for charge in (by_load, by_response, by_memory)]
        charges.append(self._reserved_steps / self.kv_tokens)
        if one.max_load > one.min_load:
            group_slack_s = groups.count * decode_s - one.base_s * groups.length
            tried = references(one.min_load, one.max_load, slots)
            charges.append(groups.base_time_shares(b, c, slots, tried, group_slack_s))
        return float(one.load.sum()) + one.prompts_s + one.base_s * max(charges)


def check_lp_work(lp_work: int) -> None:
    """Refuse a limit on the work of the configuration LP that is no whole number of 0 or more (a PlanningError)."""
    if not is_whole(lp_work, 0):
        raise PlanningError(f"lp_work is {as_given(lp_work)}; a whole number of 0 or more is needed")


def _minorants(workload: Workload, latency: LatencyModel, prompt_tokens: float) -> tuple[Minorant, ...]:
    """Return the minorants of a latency model with the loads of a step that prefills so many tokens."""
    length, context = workload.remaining_tokens.astype(float), workload.context_tokens.astype(float)
    max_context = int(max(2, (workload.context_tokens + workload.remaining_tokens).max()))
    min_context = float(context[length > 0].min()) if np.any(length > 0) else 0.0
    found = []
    for a, b, c in affine_minorants(latency, max_context):
        load = b * length + c * (context * length + length * (length - 1) / 2)
        root_squared = _root_sum(b, c, context, length) ** 2
        max_load, prompts_s = max(b + c * max_context, 1e-300), prompt_token_s(latency, b) * prompt_tokens
        found.append(Minorant(a, b, c, load, root_squared, b + c * min_context, max_load, prompts_s))
    return tuple(found)


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


@dataclass(frozen=True, eq=False)
class ResponseGroups:
    """The responses in at most ``GROUPS`` groups of similar length, for the way by load up to s h, then by response. No token
    counts with more context than it has.

    A group shares one lam, and counts its responses with their least length and context. Tokens beyond the least length have at
    least the context of the last one within it.

    Attributes:
        count, length: (G,) responses of each group, and the sum of their lengths.
        tokens, contexts: (G, 2 ``GROUP_PARTS``) tokens that have at least each context.
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
        min_length, total = length[order][starts], np.add.reduceat(length[order], starts)
        edges = np.floor(min_length[:, None] * np.arange(GROUP_PARTS + 1) / GROUP_PARTS)
        first, last = edges[:, :-1], np.maximum(edges[:, 1:] - 1, edges[:, :-1])
        half = count[:, None] * np.diff(edges) / 2
        tokens = np.concatenate([half, half], axis=1)
        tokens[:, -1] += total - count * min_length
        contexts = np.minimum.reduceat(context[order], starts)[:, None] + np.concatenate([first, last], axis=1)
        return cls(count, total, tokens, contexts)

    def base_time_shares(self, b: float, c: float, slots: int, references: FloatArray, room: FloatArray) -> float:
        """Return the shares of a over all tokens, by load up to ``slots * reference`` and by response beyond, for the
        best reference.

        Args:
            b, c: a token with context k has the load b + c k. references: (H,) of h.
            room: (G,) the sum of X - a L over each group.
        """
        load, max_load = b + c * self.contexts, (slots * references)[:, None, None]
        unbound_lam = ((self.tokens * np.sqrt(load)).sum(axis=1) / room) ** 2  # lam where slots do not bind
        lam = np.array(MULTIPLIERS)[:, None] * unbound_lam
        lam_of_group = lam[:, None, :, None]  # axes from here on: multiplier, reference, group, tokens
        most = lam_of_group * max_load
        share = np.where(load <= lam_of_group * max_load**2, 2 * np.sqrt(lam_of_group * load), load / max_load + most)
        np.minimum(share, 1 / slots + most, out=share)
        best = (np.einsum("gt,mhgt->mhg", self.tokens, share) - (lam * room)[:, None]).max(axis=0)
        return float(np.maximum(best, 0.0).sum(axis=1).max(initial=0.0))


def references(min_load: float, max_load: float, slots: int) -> FloatArray:
    """Return the values of h for loads from ``least`` to ``most``; ``slots`` times h is on one grid for all numbers
    of slots."""
    low, high = slots * max(min_load / max_load, MIN_REFERENCE), slots
    steps = np.arange(
        math.ceil(REFERENCES_PER_DOUBLING * math.log2(low)), math.ceil(REFERENCES_PER_DOUBLING * math.log2(high)) + 1
    )
    return np.asarray(max_load * 2.0 ** (steps / REFERENCES_PER_DOUBLING) / slots)


@lru_cache(maxsize=64)  # many steps are bounded with the same latency model
def affine_minorants(
    latency: LatencyModel, max_context: int, max_fed_tokens: int | None = None
) -> tuple[tuple[float, float, float], ...]:
    """Return (a, b, c) with ``a + b F + c K <= iteration_s`` for all iterations of up to ``max_fed_tokens`` fed tokens F and
    contexts up to ``max_context``. When None, F is at most as many as there are slots, or as the token budget allows.

    Table and minorant are bilinear in fed tokens and KV tokens per fed token on every cell of the table. So a minorant at the
    corners of a cell is one inside it. Without a table this is the fit itself. With a table, one minorant is the smallest time
    of the table. A linear programme per batch region gives another one that is tight there (none where the extrapolated table
    falls to 0). All are lowered slightly against rounding.
    """
    shrink = 1 - 1e-9
    if latency.table is None:
        return ((latency.base_s * shrink, latency.per_response_s * shrink, latency.per_kv_token_s * shrink),)
    from ortools.linear_solver import pywraplp

    table, max_fed_tokens = latency.table, max_fed_tokens or latency.token_budget or latency.max_batch
    max_context = min(max_context, int(table.context_tokens[-1]))  # responses that outgrow the table are refused on this actor
    batches = np.unique(np.append(table.batch[table.batch < max_fed_tokens], [1.0, latency.max_batch, max_fed_tokens]))
    contexts = np.unique(np.append(table.context_tokens[table.context_tokens < max_context], [0.0, max_context]))
    size, context = (x.ravel() for x in np.meshgrid(batches, contexts, indexing="ij"))
    table_s = table.continued(size, size * context)
    unit = float(table.iteration_s.mean())  # scaled to numbers around 1
    minorants = [(float(table.iteration_s.min()) * shrink, 0.0, 0.0)]
    for centre in (1, 4, 16, 64, latency.max_batch):
        doublings = np.log2(np.maximum(size, MIN_BATCH) / centre)  # a grid may begin at an empty batch
        weight = np.exp(-(doublings**2) / 2) / np.maximum(table_s, 1e-9)
        lp = pywraplp.Solver.CreateSolver("GLOP")
        a, b, c = (lp.NumVar(0.0, lp.infinity(), name) for name in "abc")
        for n, x, t in zip(size, context, table_s, strict=True):
            lp.Add(a + b * (n / latency.max_batch) + c * (n * x / (latency.max_batch * max_context)) <= t / unit)
        share = weight / weight.sum()
        lp.Maximize(
            a
            + b * float(dot(share, size)) / latency.max_batch
            + c * float(dot(share, size * context)) / (latency.max_batch * max_context)
        )
        if lp.Solve() != pywraplp.Solver.OPTIMAL:
            continue
        base, load, kv = (max(0.0, x.solution_value()) * unit * shrink for x in (a, b, c))
        load, kv = load / latency.max_batch, kv / (latency.max_batch * max_context)
        excess = float(
            (base + load * size + kv * size * context - table_s).max()
        )  # the solver keeps limits to a tolerance only
        minorants.append((max(0.0, base - max(0.0, excess)), load, kv))
    return tuple(minorants)


def prompt_token_s(latency: LatencyModel, per_fed_token_s: float) -> float:
    """Return the least seconds of a token of a prompt beside the minorant with this b. A mixed iteration of the table feeds it
    like any other token."""
    return per_fed_token_s if latency.mixes and latency.table is not None else latency.prefill_per_token_s


def min_prompt_tokens(workload: Workload, prefill_tokens: float | None, latency: LatencyModel) -> float:
    """Return the prompt tokens that any schedule is charged for at least: every prompt once, or ``prefill_tokens`` instead.

    Where the latency model mixes, the last token of each prompt may be fed as one that is decoded.

    Raises:
        PlanningError: ``prefill_tokens`` is no finite number of 0 or more.
    """
    if prefill_tokens is not None and not is_number(prefill_tokens, 0):
        raise PlanningError(f"prefill_tokens is {as_given(prefill_tokens)}; a finite number of 0 or more, or None, is needed")
    unfinished_prompts = np.unique(workload.prompt_of[workload.remaining_tokens > 0])
    tokens = float(workload.prompt_tokens[unfinished_prompts].sum()) if prefill_tokens is None else float(prefill_tokens)
    return max(0.0, tokens - len(unfinished_prompts)) if latency.mixes else tokens
