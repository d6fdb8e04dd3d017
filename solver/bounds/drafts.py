"""Lower bound on GPU-seconds at a given generation time, for any schedule of one step's responses with speculative decoding.

The bound of ``solver.bounds.schedules`` is one of schedules that decode one token per pass. Drafts go below it. This is the
bound of all schedules with these drafts. Its assumptions are those there, but for the first:

- A pass of a response verifies n drafted tokens, a number up to N that the policy is free to choose for every pass and
  response. It feeds 1 + n tokens. An iteration of F fed tokens and K KV tokens takes at least ``a + b F + c K``.
- *Expected form*: such a pass yields at most e(n) tokens in expectation, whatever happened before. Generation surely ends by T.
- *Realised form*: at every token of a response it is known how many drafted tokens are accepted there. A pass yields these, as
  far as they were drafted, and one more token.

Drafting itself takes no time here, and each context is read once, which makes the bound smaller.

**Bound.** Let s be the slots, or the responses if these are fewer, and X = T - r. A pass at context k with n drafts has the
load ``u(n, k) = b (1 + n) + c k``. It is charged u and a share of a. The shares of an iteration's passes add up to at most 1,
and their loads to at most y = tau - a. An iteration holds at most one pass per response and at most s passes. So shares by
load up to s h, then by response, are as large as in ``solver.bounds.schedules``, whatever n is. With its m(u), the least
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

**Whole actors, expected form.** The configuration bound (``solver.bounds.configurations``) with passes in place of tokens. A
pass of load u earns the price of its load. Let mu be at least what a configuration earns per second, for all loads that a pass
can have: from those of a pass without drafts to those with the most drafts. Then all loads and base times of a schedule that
decodes for X add up to at least ``sum over its passes of (u + price) - mu X``. Both rise with u and are concave in it. So a
token with context q counts with ``min_n (u(n, q - n) + price(u(n, q - n))) / e(n)``. Prices are those of the configuration
linear programme for passes whose drafts are a third of the longest ones. Any prices give a bound.

**Whole actors, realised form.** A response has P_i passes or more, and pass j of them at least the load ``b + c (p_i + j)``.
What is left of a schedule without all further passes is one of P_i tokens each. So the configuration bound of these lengths
bounds the base times of iterations; all loads are paid besides.

**Memory.** An iteration holds at most Q KV tokens, and admission that reserves counts m_i tokens of response i in each of its
passes. So all passes together pay at least their loads and ``a P_i m_i / Q`` of each response.

    work(T) >= max over minorants, h, whole actors and memory of (sum over responses) + prefill + joins

It is infinite where some response takes longer than X alone, which is at least the sum over its tokens of
``min_n (a + u(n, q - n)) / e(n)`` (expected), or that of its fastest passes (realised). As there,
``C(T) >= g work(T) (1 + r / X)``, and no T with C(T) > g K T can be reached.

Without acceptance n = 0 is best everywhere, and this is the bound by load of ``solver.bounds.schedules``. Schedules with these
drafts may leave them out. So this bound is never printed above the one without drafts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from solver.bounds.configuration_lp import ConfigurationLP, LoadAxis
from solver.bounds.configurations import (
    DEFAULT_WORK,
    ROUNDING_MARGIN,
    PriceCurve,
    candidate_prices,
    configuration_bound,
    falling_multipliers,
    max_earnings_per_s,
)
from solver.bounds.schedules import ScheduleBound, affine_minorants, min_prompt_tokens, prompt_token_s
from solver.model.acceptance import Acceptance
from solver.model.drafting import MAX_DRAFT_TOKENS
from solver.model.errors import PlanningError, as_given
from solver.model.number_arrays import whole_numbers
from solver.model.ordered_sums import dot
from solver.model.plurals import counted
from solver.model.problem import PlanningProblem
from solver.model.workload import FloatArray, IntArray

WITH_DRAFTS = "with drafts"  # method of the bound
GROUPS = 128  # of responses that share one lam
TIME_FACTORS = (1.1, 1.5, 2.5, 5.0)  # times the longest response alone: the best sharings there are used for realised runs
WHOLE_ACTORS_FACTOR = 1.1  # where the minorant for whole actors is the best: their batches are small
NODES = 256  # contexts at which charges are computed; between them a line is below the charge
LAM_RATIO = 1.2  # between values of lam
MAX_LAMS = 400
REFERENCES = 5  # values of h
SPARES = (1.0, 0.1, 4.0, 0.02)  # times of the configuration LP: longest response alone, plus so many times its time
SAMPLES = 8  # contexts of a response at which its passes are priced; between them a line is below the concave price

Drafts = Acceptance | Sequence[ArrayLike]
"""What is accepted of drafts: shares by position, or for every response the (L,) drafted tokens accepted at each token."""
Seconds = Callable[[float], float]
"""Seconds of all iterations at least, from those left to decode."""


class DraftedBound(ScheduleBound):
    """Lower bound on the GPU-seconds of any schedule with these drafts, as a function of generation time.

    Args:
        problem, prefill_tokens, lp_work: as for ``ScheduleBound``.
        drafts: an ``Acceptance`` (the expected form): the survival of drafts of the response that accepts most; position by
            position where responses differ. Or accepted runs (the realised form, as in a replayed log): for every response,
            (L,) drafted tokens that a pass accepts at each of its remaining tokens, out of the most that it may draft.

    Raises:
        PlanningError: as ``ScheduleBound``, or the drafts are of another type, or runs are not whole numbers from 0 to
            ``MAX_DRAFT_TOKENS``, one per remaining token.
    """

    knows_drafts = True

    def __init__(
        self, problem: PlanningProblem, drafts: Drafts, *, prefill_tokens: float | None = None, lp_work: int = DEFAULT_WORK
    ) -> None:
        super().__init__(problem, prefill_tokens=prefill_tokens, lp_work=lp_work)
        form = _form_of(drafts, problem)
        every = form.chosen(_sharings(problem, form.max_draft_tokens, prefill_tokens))
        held = problem.workload.reserved_tokens if problem.admission == "reserve" else problem.workload.context_tokens
        paid_under, self._shared, self._memory_s, alone_s = [], [], 0.0, np.zeros(len(self.length))
        for sharing, prompts_s in every:
            paid = form.charges(sharing)
            loads, alone, passes = paid[-3:]
            base_s = sharing.base_s * float(dot(passes, held)) / self.kv_tokens
            self._memory_s = max(self._memory_s, float(loads.sum()) + prompts_s + base_s)
            alone_s = np.maximum(alone_s, alone)
            paid_under.append(paid)
            self._shared.append(_grouped(sharing, paid, self.length, prompts_s))
        self._drafted_alone_s = alone_s
        self._whole_actors_s: Seconds | None = None
        if lp_work:
            at_s = WHOLE_ACTORS_FACTOR * float(alone_s.max())
            best = int(np.argmax([charged.busy_s(at_s) for charged in self._shared]))
            self._whole_actors_s = form.whole_actors(*every[best], paid_under[best], lp_work)

    @property
    def alone_s(self) -> FloatArray:
        """The (R,) least seconds that each response decodes for, with drafts or without, as if it were alone on an actor."""
        return np.minimum(self._drafted_alone_s, super().alone_s)

    def method(self, time_s: float) -> str:
        """Return ``with drafts``."""
        return WITH_DRAFTS

    def _at(self, time_s: float) -> tuple[float, str]:
        return min(self._drafted(time_s), super()._at(time_s)[0]), WITH_DRAFTS

    def _drafted(self, time_s: float) -> float:
        decode_s = time_s - self.ready_s
        if not self.length.any():
            return 0.0
        if decode_s <= 0 or float(self._drafted_alone_s.max()) > decode_s * (1 + 1e-9):
            return math.inf
        busy_s = max(self._memory_s, *(charges.busy_s(decode_s) for charges in self._shared))
        if self._whole_actors_s is not None:
            busy_s = max(busy_s, self._whole_actors_s(decode_s))
        return self._held_gpu_s(busy_s, time_s)


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


@dataclass(frozen=True, eq=False)
class Sharing:
    """A way to share base time among passes: one minorant and one h, with the values of lam that are tried.

    A pass of load u is charged ``u + a m(u) + a^2 lam``, and its response has ``a lam X`` back.

    Attributes:
        minorant: a, b, c. slots: s, or the responses if these are fewer. most_s: s h. lam: (M,) in 1 / s.
    """

    minorant: tuple[float, float, float]
    slots: int
    most_s: float
    lam: FloatArray

    @property
    def base_s(self) -> float:
        """The minorant's a."""
        return self.minorant[0]

    def load(self, draft_tokens: int, context: FloatArray) -> FloatArray:
        """Return u of passes with this draft at these contexts."""
        _, per_token_s, per_kv_token_s = self.minorant
        return np.asarray(per_token_s * (1 + draft_tokens) + per_kv_token_s * context)

    def charges(self, load: FloatArray) -> FloatArray:
        """Return (M + 3, ...) charges of passes of these loads: for every lam, then the load alone, the time of the pass alone
        in its iteration, and 1."""
        lam = self.lam.reshape(-1, *[1] * load.ndim)
        rising = np.where(load <= lam * self.most_s**2, 2 * np.sqrt(lam * load), load / self.most_s + lam * self.most_s)
        share = np.minimum(rising, 1 / self.slots + lam * self.most_s)
        shared = load + self.base_s * (share + self.base_s * lam)
        return np.concatenate([shared, load[None], self.base_s + load[None], np.ones((1, *load.shape))])


def sharings(
    minorants: Sequence[tuple[float, float, float]], slots: int, contexts: tuple[float, float], responses: int, drafts: int
) -> list[Sharing]:
    """Return the sharings of some minorants.

    Args:
        contexts: the least and the largest of any token. responses: how many there are. drafts: most drafted tokens of a pass.
    """
    found, together = [], max(1, min(slots, responses))
    for a, b, c in minorants:
        least, most = b + c * contexts[0], b * (1 + drafts) + c * contexts[1]
        most = max(most, 1e-12)
        least = max(least, 1e-6 * most)
        # loads of an iteration sum to one pass's at least and to those of all slots at most; lam is more near the least time
        low, high = 1 / (together**2 * most), 64 / least
        count = min(MAX_LAMS, int(np.ceil(np.log(high / low) / np.log(LAM_RATIO))) + 2)
        lam = np.append(0.0, np.geomspace(low, high, count))
        for h in np.geomspace(max(least, most / 32), most, REFERENCES):
            found.append(Sharing((a, b, c), together, together * float(h), lam))
    return found


def expected_charges(sharing: Sharing, tokens_per_pass: FloatArray, context: FloatArray, length: FloatArray) -> FloatArray:
    """Return (M + 3, R) the least sums of charges over the tokens of responses whose passes yield so many in expectation.

    Args:
        tokens_per_pass: (N + 1,) e(n). context, length: (R,) of the first token, and tokens.
    """
    drafts = len(tokens_per_pass) - 1
    last = float((context + length).max(initial=0.0)) + 1
    node = np.unique(np.rint(np.append(np.arange(drafts + 2.0), np.linspace(0.0, max(last, drafts + 2.0), NODES))))
    least = np.full((len(sharing.lam) + 3, len(node)), np.inf)
    for n in range(drafts + 1):
        # a token lies at most n tokens behind the context of its pass
        np.minimum(least, sharing.charges(sharing.load(n, np.maximum(node - n, 0.0))) / tokens_per_pass[n], out=least)
    steps = np.diff(node)
    slope = np.diff(least, axis=1) / steps
    before = np.cumsum(least[:, :-1] * steps + slope * (steps * (steps - 1) / 2), axis=1)
    before = np.concatenate([np.zeros((len(least), 1)), before], axis=1)

    def sum_to(end: FloatArray) -> FloatArray:
        at = np.clip(np.searchsorted(node, end, side="right") - 1, 0, len(node) - 2)
        beyond = end - node[at]
        return np.asarray(before[:, at] + least[:, at] * beyond + slope[:, at] * (beyond * (beyond - 1) / 2))

    return sum_to(context + length) - sum_to(context)


def realised_charges(
    sharing: Sharing, accepted_runs: Sequence[IntArray], context: FloatArray, max_draft_tokens: int
) -> FloatArray:
    """Return (M + 3, R) the least sums of charges over the passes of responses of which each accepts known runs of drafts.

    A dynamic programme over the tokens that are left, for all responses together.

    Args:
        accepted_runs: (L,) of each response: drafted tokens that a pass accepts there if it verifies ``max_draft_tokens``.
    """
    length = np.array([len(runs) for runs in accepted_runs], dtype=np.int64)
    order = np.argsort(-length, kind="stable")
    length, first = length[order], context[order].astype(np.int64)
    most = int(length.max(initial=0))
    runs = np.zeros((most + 1, len(order)), np.int64)  # by tokens left
    for column, response in enumerate(order.tolist()):
        own = np.asarray(accepted_runs[response], dtype=np.int64)
        runs[len(own) - np.arange(len(own)), column] = np.minimum(own, max_draft_tokens)
    contexts = np.arange(int((first + length).max(initial=0)) + 1, dtype=float)
    charge = [np.ascontiguousarray(sharing.charges(sharing.load(n, contexts)).T) for n in range(max_draft_tokens + 1)]
    least = np.zeros((max_draft_tokens + 2, len(order), charge[0].shape[1]))  # by tokens left, the last few
    found = np.zeros((charge[0].shape[1], len(order)))
    active = np.searchsorted(-length, -np.arange(most + 2), side="right")  # responses of at least so many tokens
    for left in range(1, most + 1):
        count = active[left]
        at = first[:count] + length[:count] - left
        best = charge[0][at] + least[(left - 1) % len(least), :count]
        longest = np.minimum(runs[left, :count], left - 1)
        for n in range(1, int(longest.max(initial=0)) + 1):
            rows = np.flatnonzero(longest >= n)
            best[rows] = np.minimum(best[rows], charge[n][at[rows]] + least[(left - 1 - n) % len(least), rows])
        least[left % len(least), :count] = best
        ended = slice(active[left + 1], count)
        found[:, order[ended]] = best[ended].T
    return found


class _Form(Protocol):
    """What is known of drafts: in expectation, or of every pass."""

    max_draft_tokens: int

    def charges(self, sharing: Sharing) -> FloatArray:
        """Return (M + 3, R) least sums of charges of the responses under a sharing."""

    def chosen(self, every: list[tuple[Sharing, float]]) -> list[tuple[Sharing, float]]:
        """Return the sharings that are used."""

    def whole_actors(self, sharing: Sharing, prompts_s: float, paid: FloatArray, lp_work: int) -> Seconds:
        """Return the seconds of all iterations with whole actors, from the charges under a sharing."""


class _Expected:
    """Every pass with n drafts yields at most e(n) tokens in expectation."""

    def __init__(self, tokens_per_pass: FloatArray, problem: PlanningProblem) -> None:
        self.max_draft_tokens, self._tokens_per_pass = len(tokens_per_pass) - 1, tokens_per_pass
        self.context = problem.workload.context_tokens.astype(float)
        self.length = problem.workload.remaining_tokens.astype(float)

    def charges(self, sharing: Sharing) -> FloatArray:
        return expected_charges(sharing, self._tokens_per_pass, self.context, self.length)

    def chosen(self, every: list[tuple[Sharing, float]]) -> list[tuple[Sharing, float]]:
        return every

    def whole_actors(self, sharing: Sharing, prompts_s: float, paid: FloatArray, lp_work: int) -> Seconds:
        works = self.length > 0
        lines = _PricedPasses(sharing.minorant, self._tokens_per_pass, self.context[works], self.length[works]).lines()
        return lambda decode_s: prompts_s + max((seconds - mu * decode_s for seconds, mu in lines), default=0.0)


class _Realised:
    """At every token it is known how many drafted tokens a pass accepts there."""

    def __init__(self, accepted_runs: Sequence[ArrayLike], problem: PlanningProblem) -> None:
        self._runs = _checked_runs(accepted_runs, problem.workload.remaining_tokens)
        accepted = np.concatenate(self._runs)
        self.max_draft_tokens = int(accepted.max(initial=0))  # to draft more than is ever accepted never helps
        shares = [float(np.mean(accepted >= n)) for n in range(1, self.max_draft_tokens + 1)]
        self._mean = _Expected(np.append(1.0, 1 + np.cumsum(shares)), problem)

    def charges(self, sharing: Sharing) -> FloatArray:
        return realised_charges(sharing, self._runs, self._mean.context, self.max_draft_tokens)

    def chosen(self, every: list[tuple[Sharing, float]]) -> list[tuple[Sharing, float]]:
        """The dynamic programme takes long, so only sharings are used that are the best for the mean acceptance."""
        likely = [self._mean.charges(sharing) for sharing, _ in every]
        alone_s = max(float(paid[-2].max()) for paid in likely)
        grouped = [_grouped(sharing, paid, self._mean.length, 0.0) for (sharing, _), paid in zip(every, likely, strict=True)]
        best = {int(np.argmax([one.busy_s(factor * alone_s) for one in grouped])) for factor in TIME_FACTORS}
        return [every[i] for i in sorted(best)]

    def whole_actors(self, sharing: Sharing, prompts_s: float, paid: FloatArray, lp_work: int) -> Seconds:
        loads_s, fewest = float(paid[-3].sum()), np.rint(paid[-1])
        base_times = configuration_bound(fewest, self._mean.context, sharing.minorant, lp_work)
        if base_times is None:
            return lambda decode_s: prompts_s
        return lambda decode_s: prompts_s + loads_s + base_times.iterations_s(decode_s)


def _form_of(drafts: Drafts, problem: PlanningProblem) -> _Form:
    if isinstance(drafts, Acceptance):
        return _Expected(np.append(1.0, 1 + np.cumsum(drafts.survival)), problem)
    if isinstance(drafts, str) or not isinstance(drafts, Sequence | np.ndarray):
        raise PlanningError(
            f"drafts is {as_given(drafts)}; an Acceptance (solver.model.acceptance), or the accepted runs of every response, "
            "are needed"
        )
    return _Realised(drafts, problem)


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
            f"drafts has {counted(len(accepted_runs), 'row')}; one for each of {len(remaining_tokens)} responses is needed"
        )
    return [_run(i, own, int(tokens)) for i, (own, tokens) in enumerate(zip(accepted_runs, remaining_tokens, strict=True))]


def _run(response: int, given: ArrayLike, tokens: int) -> IntArray:
    values = whole_numbers(f"drafts[{response}]", given)
    if len(values) != tokens:
        raise PlanningError(
            f"drafts[{response}] has {len(values)} numbers; one for each of its {counted(tokens, 'remaining token')} is needed"
        )
    if values.max(initial=0) > MAX_DRAFT_TOKENS:
        raise PlanningError(
            f"drafts[{response}] accepts {values.max()} tokens in a pass; {MAX_DRAFT_TOKENS} at most are possible, so give the "
            "smaller of both"
        )
    return values


@dataclass(frozen=True, eq=False)
class _PricedPasses:
    """Responses whose passes draft, priced by their loads under one minorant.

    Attributes:
        minorant: a, b, c. tokens_per_pass: (N + 1,) e(n). context, length: (R,), all lengths above 0.
    """

    minorant: tuple[float, float, float]
    tokens_per_pass: FloatArray
    context: FloatArray
    length: FloatArray

    def lines(self) -> list[tuple[float, float]]:
        """Return pairs (seconds, mu): all iterations take at least ``seconds - mu X``."""
        a, b, c = self.minorant
        if not len(self.length) or a <= 0 or b < c or float((b + c * self.context).min()) <= 1e-9 * a:
            return []
        return list(self._lines_of(len(self.tokens_per_pass) // 3))

    def _lines_of(self, draft_tokens: int) -> Iterator[tuple[float, float]]:
        """Yield lines of the prices that suit passes with this draft."""
        a, b, c = self.minorant
        passes = np.maximum(self.length / self.tokens_per_pass[draft_tokens], 1.0)
        axis = LoadAxis.of(passes, self.context, (a, b * (1 + draft_tokens), c))
        axis = replace(axis, indivisible=np.zeros_like(axis.indivisible))
        order = np.lexsort((self.context, -passes))
        program, loads = ConfigurationLP(axis), self._relative_loads(axis, order)
        longest_alone = float((axis.lengths * (1 + axis.mean)).max())
        for time in (longest_alone * (1 + spare) for spare in SPARES):
            dual = program.solve(time)
            if dual is None:
                continue
            for curve, price in candidate_prices(axis, dual, time, equal_loads=False):
                lam = falling_multipliers(curve, price)
                mu = max_earnings_per_s(axis, curve, lam, loads)
                yield self._paid_s(axis, order, curve, lam) * (1 - ROUNDING_MARGIN), mu * (1 + ROUNDING_MARGIN)

    def _relative_loads(self, axis: LoadAxis, order: IntArray) -> tuple[FloatArray, FloatArray]:
        """Return the least and largest relative load, (G,) each, of a pass with any draft."""
        a, b, c = self.minorant
        context, last = self.context[order], (self.context + self.length - 1)[order]
        low, high = (b + c * context) / (a * axis.mean), (b * len(self.tokens_per_pass) + c * last) / (a * axis.mean)
        least, most = np.minimum.reduceat(low, axis.start), np.maximum.reduceat(high, axis.start)
        return np.repeat(least, axis.pieces), np.repeat(most, axis.pieces)

    def _paid_s(self, axis: LoadAxis, order: IntArray, curve: PriceCurve, lam: FloatArray) -> float:
        """Return the least seconds of loads and prices of all tokens. A response is priced in each cell of its group, and
        counts with the mean."""
        a, b, c = self.minorant
        count = np.diff(np.append(axis.start, len(order)))
        group = np.repeat(np.arange(len(axis.start)), count)  # of each response
        pieces = axis.pieces[group]
        response = np.repeat(np.arange(len(order)), pieces)
        first_cell = np.cumsum(axis.pieces) - axis.pieces
        cell = np.arange(len(response)) - np.repeat(np.cumsum(pieces) - pieces - first_cell[group], pieces)
        context, length = self.context[order], self.length[order]
        node = np.floor(context[:, None] + (length - 1)[:, None] * np.linspace(0, 1, SAMPLES))
        weight, price_of = axis.mean[response, None], lam[cell, None]
        least = np.full((len(response), SAMPLES), math.inf)
        for n, tokens in enumerate(self.tokens_per_pass.tolist()):
            load = ((b * (1 + n) + c * (node - n)) / a)[response]
            paid = load + weight * price_of * curve.at(load / (weight * price_of))
            np.minimum(least, paid / tokens, out=least)
        steps = np.diff(node, axis=1)[response]
        between = steps * (least[:, :-1] + least[:, 1:]) / 2 - np.diff(least, axis=1) / 2 * (steps > 0)
        return a * float(((between.sum(axis=1) + least[:, -1]) / pieces[response]).sum())
