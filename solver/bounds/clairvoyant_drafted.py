"""Lower bound on GPU-seconds at a given generation time, for any schedule that knows the true lengths and drafts tokens.

The bound of ``solver.bounds.clairvoyant`` is one of policies that decode one token per pass. Drafts go below it. This is the
bound of all policies with these drafts. Its assumptions are those there, but for the first:

- A pass of a response verifies n drafted tokens, a number up to N that the policy is free to choose for every pass and
  response. It feeds 1 + n tokens. An iteration of F fed tokens and K KV tokens takes at least ``a + b F + c K``.
- *Expected form*: such a pass yields at most e(n) tokens in expectation, whatever happened before. Generation surely ends by T.
- *Realised form*: at every token of a response it is known how many drafted tokens are accepted there. A pass yields these, as
  far as they were drafted, and one more token.

Drafting itself takes no time here, and each context is read once, which makes the bound smaller.

**Bound.** Let s be the slots, or the responses if these are fewer, and X = T - r. A pass at context k with n drafts has the
load ``u(n, k) = b (1 + n) + c k``. It is charged u and a share of a. The shares of an iteration's passes add up to at most 1,
and their loads to at most y = tau - a. An iteration holds at most one pass per response and at most s passes. So shares by
load up to s h, then by response, are as large as in ``solver.bounds.clairvoyant``, whatever n is. With its m(u), the least
over y of share plus lam y, a pass is charged at least ``u + a m(u) - a lam y``, that is ``phi(n, k) - a lam tau`` with

    phi(n, k) = u(n, k) + a m(u(n, k)) + a^2 lam .

A response's passes lie in different iterations, so their tau sum to at most X. It pays at least ``sum over its passes of
phi(n, k) - a lam X``, for any lam >= 0 of its own. And phi rises with k.

- *Expected*: a pass with n drafts yields at most n + 1 tokens. So a token with context q lies at most n behind the context k of
  its pass, and ``phi(n, k) >= phi(n, q - n)``. Charge every token ``min_n phi(n, q - n) / e(n)``. The tokens of a pass are
  charged at most phi(n, k) / e(n) each, and e(n) of them are expected. So the passes cost at least what their tokens are
  charged, in expectation, given all that happened before. Sum over the passes: a response pays at least
  ``sum over its tokens of min_n phi(n, q - n) / e(n) - a lam X``.
- *Realised*: a response pays at least the least sum of phi over any sequence of passes that yields its tokens, less a lam X. A
  dynamic programme over the tokens that are left finds it.

Whole actors: in the expected form the configuration bound has passes in place of tokens (``solver.bounds.drafted_prices``). In
the realised form a response has P_i passes or more, and pass j of them at least the load ``b + c (p_i + j)``. What is left of a
schedule without all further passes is one of P_i tokens each. So the configuration bound of these lengths
(``solver.bounds.exact_clairvoyant``) bounds the base times of iterations; all loads are paid besides.

Memory: an iteration holds at most Q KV tokens, and admission that reserves counts m_i tokens of response i in each of its
passes. So all passes together pay at least their loads and ``a P_i m_i / Q`` of each response.

    work(T) >= max over minorants, h, whole actors and memory of (sum over responses) + prefill + joins

It is infinite where some response takes longer than X alone, which is at least the sum over its tokens of
``min_n (a + u(n, q - n)) / e(n)`` (expected), or that of its fastest passes (realised). As there,
``C(T) >= g work(T) (1 + r / X)``, and no T with C(T) > g K T can be reached.

Without acceptance n = 0 is best everywhere, and this is the bound by load of ``solver.bounds.clairvoyant``. Policies with these
drafts may leave them out. So this bound is never printed above the one without drafts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from solver.bounds.affine_lower_bounds import affine_minorants, min_prompt_tokens, prompt_token_s
from solver.bounds.bound_over_time import BoundOverTime
from solver.bounds.clairvoyant import ClairvoyantBound, clairvoyant_bound
from solver.bounds.drafted_prices import DraftedPrices
from solver.bounds.exact_clairvoyant import DEFAULT_WORK, configuration_bound
from solver.bounds.pass_charges import Sharing, expected_charges, realised_charges, sharings
from solver.model.acceptance import Acceptance
from solver.model.drafting import MAX_DRAFT_TOKENS
from solver.model.errors import PlanningError, as_given, check_real, is_whole
from solver.model.number_arrays import whole_numbers
from solver.model.ordered_sums import dot
from solver.model.plurals import counted
from solver.model.problem import PlanningProblem
from solver.model.workload import FloatArray, IntArray

GROUPS = 128  # of responses that share one lam
TIME_FACTORS = (1.1, 1.5, 2.5, 5.0)  # times the longest response alone: the best sharings there are used for realised runs
WHOLE_ACTORS_FACTOR = 1.1  # where the minorant for whole actors is the best: their batches are small
Charges = Callable[[Sharing], FloatArray]
"""(M + 3, R) least sums of charges of the responses under a sharing (``solver.bounds.pass_charges``)."""
Seconds = Callable[[float], float]
WholeActors = Callable[[tuple[float, float, float], FloatArray], Seconds]
"""Takes a minorant and the charges under it."""


@dataclass(frozen=True, eq=False)
class SharedCharges:
    """The responses' charges under one sharing, in groups that share one lam.

    Attributes:
        lam_s: (M,) a lam. charges: (M, G) sums over each group. count: (G,) its responses. prompts_s: of the prompts' tokens.
    """

    lam_s: FloatArray
    charges: FloatArray
    count: FloatArray
    prompts_s: float

    def busy_s(self, decode_s: float) -> float:
        """Return the bound on the seconds of all iterations."""
        paid = self.charges - self.lam_s[:, None] * (self.count * decode_s)
        return float(paid.max(axis=0).sum()) + self.prompts_s


@dataclass(frozen=True, eq=False, repr=False)
class DraftedClairvoyantBound(BoundOverTime):
    """Lower bound on GPU-seconds of any policy with these drafts, as a function of generation time, for one workload.

    Attributes:
        without_drafts: the bound of policies that decode one token per pass. length: (R,) tokens.
        shared: the charges under every sharing. memory_s: loads, and base time by the share of the memory.
        whole_actors_s: the seconds of all iterations at least, from those left to decode, if actors are whole.
        alone_s: (R,) the least seconds of each response alone.
    """

    cost_name: ClassVar[str] = "gpu_seconds"
    without_drafts: ClairvoyantBound
    length: FloatArray
    shared: tuple[SharedCharges, ...]
    memory_s: float
    whole_actors_s: Seconds
    alone_s: FloatArray
    ready_s: float
    unit: str = "gpu_s"

    def gpu_seconds(self, time_s: float) -> float:
        """Return a lower bound on the GPU-seconds of any policy with these drafts that completes the workload within
        ``time_s``; infinite if none can.

        Raises:
            PlanningError: ``time_s`` is no number.
        """
        check_real("time_s", time_s)
        return min(self._drafted(time_s), self.without_drafts.gpu_seconds(time_s))

    def _drafted(self, time_s: float) -> float:
        decode_s, other = time_s - self.ready_s, self.without_drafts
        if not self.length.any():
            return 0.0
        if decode_s <= 0 or float(self.alone_s.max()) > decode_s * (1 + 1e-9):
            return math.inf
        shared_s = max(charges.busy_s(decode_s) for charges in self.shared)
        busy_s = max(shared_s, self.memory_s, self.whole_actors_s(decode_s))
        total = other.gpus * (busy_s + other.joins_s) * (1 + self.ready_s / decode_s)
        return math.inf if total > other.gpus * other.max_actors * time_s * (1 + 1e-12) else total

    def cost(self, time_s: float) -> float:
        """Return ``gpu_seconds``."""
        return self.gpu_seconds(time_s)


def drafted_clairvoyant_bound(
    problem: PlanningProblem, acceptance: Acceptance, *, prefill_tokens: float | None = None, work: int = DEFAULT_WORK
) -> DraftedClairvoyantBound:
    """Return the bound of all policies whose drafts are accepted like this at most, in expectation.

    Args:
        problem: as for ``clairvoyant_bound``.
        acceptance: the survival of drafts of the response that accepts most; position by position where responses differ.
        prefill_tokens, work: as for ``clairvoyant_bound``.

    Raises:
        PlanningError: the cluster is a mixed one, or an argument is of the wrong type or below 0.

    Example:
        >>> import solver
        >>> from solver.bounds.clairvoyant_drafted import drafted_clairvoyant_bound
        >>> from solver.model.acceptance import Acceptance
        >>> latency = solver.LatencyModel("mine", 1, base_s=5e-3, per_response_s=1e-4, max_batch=64)
        >>> workload = solver.Workload([100] * 64, list(range(64)), list(range(100, 740, 10)))
        >>> problem = solver.PlanningProblem(workload, solver.Cluster(1, 8, 1), latency)
        >>> bound = drafted_clairvoyant_bound(problem, Acceptance([0.7, 0.5, 0.3]))
        >>> bound.gpu_seconds(5.0) < bound.without_drafts.gpu_seconds(5.0)
        True
    """
    if not isinstance(acceptance, Acceptance):
        raise PlanningError(f"acceptance is {as_given(acceptance)}; an Acceptance (solver.model.acceptance) is needed")
    without = clairvoyant_bound(problem, prefill_tokens=prefill_tokens, work=work)
    tokens_per_pass = np.append(1.0, 1 + np.cumsum(acceptance.survival))
    workload = problem.workload
    context, length = workload.context_tokens.astype(float), workload.remaining_tokens.astype(float)

    def charges(sharing: Sharing) -> FloatArray:
        return expected_charges(sharing, tokens_per_pass, context, length)

    def whole_actors(minorant: tuple[float, float, float], paid: FloatArray) -> Seconds:
        works = length > 0
        lines = DraftedPrices(minorant, tokens_per_pass, context[works], length[works]).lines()
        return lambda decode_s: max((seconds - mu * decode_s for seconds, mu in lines), default=0.0)

    every = _sharings(problem, acceptance.max_draft_tokens, prefill_tokens)
    return _bound(problem, without, charges, whole_actors, every)


def replayed_clairvoyant_bound(
    problem: PlanningProblem,
    accepted_runs: Sequence[ArrayLike],
    max_draft_tokens: int,
    *,
    prefill_tokens: float | None = None,
    work: int = DEFAULT_WORK,
) -> DraftedClairvoyantBound:
    """Return the bound of all policies with drafts of which it is known how many are accepted, as in a replayed log.

    Args:
        problem: as for ``clairvoyant_bound``.
        accepted_runs: for every response, (L,) drafted tokens that a pass accepts at each of its remaining tokens if it
            verifies ``max_draft_tokens``. A pass that drafts fewer accepts at most as many as it drafts.
        max_draft_tokens: drafted tokens of a pass at most.
        prefill_tokens, work: as for ``clairvoyant_bound``.

    Raises:
        PlanningError: as ``drafted_clairvoyant_bound``, or runs are not whole numbers, one per remaining token.
    """
    if not is_whole(max_draft_tokens, 0) or max_draft_tokens > MAX_DRAFT_TOKENS:
        raise PlanningError(
            f"max_draft_tokens is {as_given(max_draft_tokens)}; a whole number from 0 to {MAX_DRAFT_TOKENS} is needed"
        )
    without = clairvoyant_bound(problem, prefill_tokens=prefill_tokens, work=work)
    workload = problem.workload
    runs = _checked_runs(accepted_runs, workload.remaining_tokens)
    context, length = workload.context_tokens.astype(float), workload.remaining_tokens.astype(float)
    accepted = np.concatenate([np.minimum(own, max_draft_tokens) for own in runs])
    shares = [float(np.mean(accepted >= n)) if len(accepted) else 0.0 for n in range(1, max_draft_tokens + 1)]
    mean = np.append(1.0, 1 + np.cumsum(shares))
    every = _sharings(problem, max_draft_tokens, prefill_tokens)
    likely = [expected_charges(sharing, mean, context, length) for sharing, _ in every]
    alone_s = max(float(paid[-2].max()) for paid in likely)
    grouped = [_grouped(sharing, paid, length, 0.0) for (sharing, _), paid in zip(every, likely, strict=True)]
    best = {int(np.argmax([one.busy_s(factor * alone_s) for one in grouped])) for factor in TIME_FACTORS}

    def charges(sharing: Sharing) -> FloatArray:
        return realised_charges(sharing, runs, context, max_draft_tokens)

    def whole_actors(minorant: tuple[float, float, float], paid: FloatArray) -> Seconds:
        loads, fewest = paid[-3], np.rint(paid[-1])
        base_times = configuration_bound(fewest, context, minorant, work)
        if base_times is None:
            return lambda decode_s: 0.0
        return lambda decode_s: float(loads.sum()) + base_times.iterations_s(decode_s)

    return _bound(problem, without, charges, whole_actors, [every[i] for i in sorted(best)])


def _sharings(problem: PlanningProblem, drafts: int, prefill_tokens: float | None) -> list[tuple[Sharing, float]]:
    """Return the sharings that are tried for a problem of one kind, and the seconds of the prompts' tokens beside each."""
    _, latency = problem.one_kind
    workload = problem.workload
    works = workload.remaining_tokens > 0
    ends = workload.context_tokens + workload.remaining_tokens
    max_context, min_context = int(max(2, ends.max())), float(workload.context_tokens[works].min(initial=max(2, ends.max())))
    most = None if latency.table is None else int(latency.table.batch[-1])
    tokens = min_prompt_tokens(workload, prefill_tokens, latency)
    found = []
    for minorant in affine_minorants(latency, max_context, most):
        contexts = (min_context, float(max_context))
        own = sharings([minorant], latency.max_batch, contexts, int(np.count_nonzero(works)), drafts)
        found += [(sharing, prompt_token_s(latency, minorant[1]) * tokens) for sharing in own]
    return found


def _bound(
    problem: PlanningProblem,
    without_drafts: ClairvoyantBound,
    charges: Charges,
    whole_actors: WholeActors,
    every: Sequence[tuple[Sharing, float]],
) -> DraftedClairvoyantBound:
    """Return the bound from the responses' charges under every sharing."""
    workload, length = problem.workload, without_drafts.length
    held = workload.reserved_tokens if problem.admission == "reserve" else workload.context_tokens
    shared, paid_under, memory_s, alone_s = [], [], 0.0, np.zeros(len(length))
    for sharing, prompts_s in every:
        paid = charges(sharing)
        loads, alone, passes = paid[-3:]
        base_s = sharing.base_s * float(dot(passes, held)) / without_drafts.kv_tokens
        memory_s = max(memory_s, float(loads.sum()) + prompts_s + base_s)
        alone_s = np.maximum(alone_s, alone)
        paid_under.append(paid)
        shared.append(_grouped(sharing, paid, length, prompts_s))

    def whole_actors_s(decode_s: float) -> float:
        return 0.0

    if without_drafts.work:
        at_s = WHOLE_ACTORS_FACTOR * float(alone_s.max())
        best = int(np.argmax([charged.busy_s(at_s) for charged in shared]))
        one, prompts_s = every[best]
        seconds = whole_actors((one.base_s, one.per_token_s, one.per_kv_token_s), paid_under[best])

        def whole_actors_s(decode_s: float) -> float:
            return seconds(decode_s) + prompts_s

    return DraftedClairvoyantBound(
        without_drafts, length, tuple(shared), memory_s, whole_actors_s, alone_s, without_drafts.ready_s
    )


def _grouped(sharing: Sharing, charges: FloatArray, length: FloatArray, prompts_s: float) -> SharedCharges:
    """Return the charges of responses of similar length together. Long ones pay most, so their groups are smaller."""
    order = np.argsort(length, kind="stable")
    weight = np.cumsum(length[order] ** 2 + 1e-9)
    starts = np.unique(np.searchsorted(weight, weight[-1] * np.arange(GROUPS) / GROUPS, side="right"))
    count = np.diff(np.append(starts, len(order))).astype(float)
    sums = np.add.reduceat(charges[:-3, order], starts, axis=1)
    return SharedCharges(sharing.base_s * sharing.lam, sums, count, prompts_s)


def _checked_runs(accepted_runs: Sequence[ArrayLike], remaining_tokens: IntArray) -> list[IntArray]:
    """Return the accepted runs as arrays; refuse others than one whole number per remaining token."""
    if len(accepted_runs) != len(remaining_tokens):
        raise PlanningError(
            f"accepted_runs has {counted(len(accepted_runs), 'row')}; one for each of {len(remaining_tokens)} responses is "
            "needed"
        )
    return [_run(i, own, int(tokens)) for i, (own, tokens) in enumerate(zip(accepted_runs, remaining_tokens, strict=True))]


def _run(response: int, given: ArrayLike, tokens: int) -> IntArray:
    values = whole_numbers(f"accepted_runs[{response}]", given)
    if len(values) != tokens:
        raise PlanningError(
            f"accepted_runs[{response}] has {len(values)} numbers; one for each of its {counted(tokens, 'remaining token')} "
            "is needed"
        )
    return values
