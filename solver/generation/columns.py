"""Cuts sorted items into cells, and prices columns: what it takes that n actors of an offer share the items between two cuts.

Inputs: a problem and its ``Items`` (longest first). With one actor it takes all of them; n actors share them so that all have
about the same work, which is round-robin when the column covers everything. So plans that know single lengths and plans that do
not are columns of one model.

**Price of a column** (r, i, j, n) in scenario s, with W the seconds of its items beside iterations:

    time = ready_r + a_r (I + F) + W / n + calls            held = n * time

I is the iterations of its longest response if all fit at once into n actors. Else it is list scheduling: slots are refilled in
waves of a quarter of them, longest first, the slot that is free first the first. Single refills end a little earlier. Where
prefill is a call of its own, every response that joins later makes one, but those of equal lengths share it. F is what mixed
prefill adds: where all fit at once a response waits for the prompts before it only, else for those of the first batch. An actor
has as many slots as its memory holds responses of the cell at cut i. Prompts that are shared count once where they stay
together, else for every response.

Prices are estimates where slots are refilled. Chosen plans are timed exactly (``solver.generation.plan_values``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from solver.model.problem import PlanningProblem
from solver.model.workload import FloatArray, IntArray
from solver.timing.items import Items

STARTS = 16  # cuts from which on several actors share a column
BEYOND = 1.02  # columns that take longer than this part of the latest makespan on average are left out
CUT_BY = (0.6, 0.25, 0.15)  # how much load, length and number of items count in where cuts are


@dataclass(frozen=True, eq=False)
class Columns:
    """C columns, priced in S scenarios.

    Attributes:
        offer, first, last, actors: (C,) the offer, the cuts between which items are taken, and how many actors share them.
        warm: (C,) whether its actors are prewarmed.
        time_s: (C, S) seconds until its actors are done. held_s: (C, S) seconds of all its actors together.
    """

    offer: IntArray
    first: IntArray
    last: IntArray
    actors: IntArray
    warm: NDArray[np.bool_]
    time_s: FloatArray
    held_s: FloatArray

    def __len__(self) -> int:
        """Number of columns C."""
        return len(self.offer)

    @staticmethod
    def joined(parts: Sequence[Columns]) -> Columns:
        """Return the columns of all parts, in their order."""
        return Columns(*(np.concatenate(values) for values in zip(*(vars(part).values() for part in parts), strict=True)))


def first_cuts(items: Items, cells: int) -> IntArray:
    """Return (P+1,) positions of items between cells, from 0 to the number of items.

    A cut follows where load, length or items have passed by an equal share.
    """
    m = len(items)
    if m <= cells:
        return np.arange(m + 1)
    load = (items.load / np.maximum(items.load.sum(axis=1, keepdims=True), 1e-300)).mean(axis=0)
    longest, shortest = int(items.length[0]), int(items.length[-1])
    shares = np.cumsum(load), (longest - items.length) / max(1, longest - shortest), np.arange(1, m + 1) / m
    passed = np.sum([weight * share for weight, share in zip(CUT_BY, shares, strict=True)], axis=0)
    at = np.flatnonzero(np.diff(np.floor(passed / passed[-1] * cells * (1 - 1e-12)))) + 1
    return np.unique(np.concatenate([[0], at, [m]]))


def closer_cuts(cuts: IntArray, chosen: Sequence[int], cells: int) -> IntArray:
    """Return cuts that are dense around the ``chosen`` positions and are none elsewhere."""
    edges = sorted(set(chosen) - {0, int(cuts[-1])})
    new, per_edge = {0, int(cuts[-1])}, max(4, cells // max(1, len(edges)))
    for edge in edges:
        k = int(np.searchsorted(cuts, edge))
        low, high = int(cuts[max(0, k - 1)]), int(cuts[min(len(cuts) - 1, k + 1)])
        new |= {edge, *np.rint(np.linspace(low, high, per_edge + 1)).astype(int).tolist()}
    return np.array(sorted(new), dtype=np.int64)


class Prices:
    """Running sums over the sorted responses in all scenarios, from which columns are priced.

    Attributes:
        items: the items. length: (S, n) iterations of the responses in their order.
        load: for each offer (S, n+1) running sums of seconds beside iterations. held, missing: (S, n+1) running sums of KV
            tokens that admission counts and of tokens of prompts to compute.
    """

    def __init__(self, problem: PlanningProblem, items: Items) -> None:
        self.problem, self.items = problem, items
        work, order = problem.workload, items.order
        cases = work.cases()
        self.length: IntArray = np.stack([case.iterations[order] for case in cases])
        works = self.length > 0
        fed, kv = (np.stack([getattr(case, name)[order] for case in cases]) for name in ("fed_steps", "kv_steps"))
        context = work.context_tokens[order]
        missing = np.where(works, context, 0)
        if problem.share_prefill and problem.keep_together:  # the first of a prompt, its longest, computes it
            owner = work.prompt_of[order]
            repeats = np.concatenate([[False], owner[1:] == owner[:-1]])
            missing = np.where(repeats, np.where(works, work.generated_tokens[order], 0), missing)
        self.missing = _running(missing)
        self.load: list[FloatArray] = []
        for offer in problem.offers:
            model = offer.latency.affine
            seconds = model.per_response_s * fed + model.per_kv_token_s * kv + model.join_s * works
            self.load.append(_running(seconds + model.prefill_per_token_s * model.charged_tokens(missing)))
        if problem.admission == "reserve":
            self.held = _running(np.broadcast_to(work.reserved_tokens[order], self.length.shape))
        else:
            self.held = _running(context + np.stack([case.remaining_tokens[order] for case in cases]))

    def slots(self, offer: int, first: int, last: int) -> int:
        """Return how many responses decode at once on an actor that begins with the responses from ``first`` to ``last``: its
        slots, or fewer if as many of these do not fit into its memory on average."""
        each = float((self.held[:, last] - self.held[:, first]).max()) / max(1, last - first)
        return int(max(1, min(int(self.items.slots[offer]), self.items.kv_tokens[offer] // max(1.0, each))))

    def of_offers(self, cuts: IntArray, counts: Sequence[int], latest_s: float = np.inf) -> Columns:
        """Return the columns of all offers, prewarmed ones where a pool has such; see ``of_offer``."""
        problem, parts = self.problem, []
        for r, offer in enumerate(problem.offers):
            most = min(offer.max_actors, problem.max_actors or len(self.items), len(self.items))
            cold = offer.prewarmed < most
            if cold:
                parts.append(self.of_offer(r, cuts, [n for n in counts if n <= most], False, latest_s))
            if offer.prewarmed and (offer.latency.start_s > 0 or not cold):
                warm = [n for n in counts if n <= min(most, offer.prewarmed)]
                parts.append(self.of_offer(r, cuts, warm, True, latest_s))
        return Columns.joined(parts)

    def of_offer(self, offer: int, cuts: IntArray, counts: Sequence[int], warm: bool, latest_s: float = np.inf) -> Columns:
        """Return the columns of an offer over (P+1,) cuts, shared by each number of actors in ``counts``.

        Args:
            warm: its actors are prewarmed. latest_s: makespan beyond which no column is of use.
        """
        items, model = self.items, self.problem.offers[offer].latency
        at, cells = items.edge[cuts], len(cuts) - 1
        ready = float(items.least_ready_s[offer]) + (0.0 if warm else float(items.start_s[offer]))
        load = self.load[offer][:, at]
        longest = np.maximum.reduceat(self.length, at[:-1], axis=1)
        sorted_cells = [-np.sort(-self.length[:, a:b], axis=1) for a, b in zip(at[:-1].tolist(), at[1:].tolist(), strict=True)]
        lengths = self.problem.workload.points.iterations[items.order]
        different = np.concatenate([[0], np.cumsum(np.diff(lengths) != 0)])
        forbidden = np.concatenate([[0], np.cumsum(~np.logical_and.reduceat(items.allowed[offer], cuts[:-1]))])
        stride = max(1, cells // STARTS)
        parts = []
        for n in counts:
            iterations = np.zeros((len(load), cells, cells))
            refills, far = np.zeros(cells, dtype=bool), np.full(cells, cells)
            for i in range(0, cells, 1 if n == 1 else stride):
                slots = n * self.slots(offer, int(at[i]), int(at[i + 1]))
                if at[-1] - at[i] <= slots:
                    waits: FloatArray | float = 0.0
                    if model.token_budget is not None:
                        waits = (self.missing[:, at[i:-1]] - self.missing[:, at[i], None]) / (n * model.token_budget)
                    iterations[:, i, i:] = np.maximum.accumulate(longest[:, i:] + waits, axis=1)
                    continue
                refills[i] = True
                far[i] = self._refilled(
                    iterations[:, i], sorted_cells, i, slots, ready + (load[:, 1:] - load[:, i, None]) / n, items.base_s[offer],
                    latest_s,
                )  # fmt: skip
            first, last = np.triu_indices(cells)
            last = last + 1
            keep = (at[last] - at[first] >= n) & (last <= far[first]) & (forbidden[last] == forbidden[first])
            if n > 1:
                keep &= (first % stride == 0) & ((last % stride == 0) | (last == cells))
            keep &= ready + (load[:, last] - load[:, first]).mean(axis=0) / n <= latest_s
            first, last = first[keep], last[keep]
            size = at[last] - at[first]
            steps = iterations[:, first, last - 1]
            if model.token_budget is not None:
                tokens = (self.missing[:, at[last]] - self.missing[:, at[first]]) / n
                fed = tokens * np.minimum(1.0, items.slots[offer] * n / size) / model.token_budget
                steps = steps + np.where(refills[first] & (steps > 0), fed, 0.0)
            joins = np.minimum(size / n - items.slots[offer], different[at[last] - 1] - different[at[first]])
            calls = items.call_s[offer] * np.maximum(0.0, joins)
            time_s = (ready + items.base_s[offer] * steps + (load[:, last] - load[:, first]) / n + calls).T
            keep = time_s.mean(axis=1) <= latest_s * BEYOND
            c = int(keep.sum())
            parts.append(
                Columns(
                    np.full(c, offer), first[keep], last[keep], np.full(c, n), np.full(c, warm), time_s[keep], n * time_s[keep]
                )
            )
        return Columns.joined(parts)

    @staticmethod
    def _refilled(
        iterations: FloatArray, cells: Sequence[IntArray], first: int, slots: int, work_s: FloatArray, base_s: float,
        latest_s: float,
    ) -> int:  # fmt: skip
        """Write (S, P) iterations of the cells from ``first`` on in slots that are refilled; return the first cut that is not
        reached by ``latest_s``.

        Args:
            work_s: (S, P) seconds beside iterations up to the end of each cell.
        """
        scenarios = len(iterations)
        ends, used, wave = np.zeros((scenarios, slots), dtype=np.int64), 0, wave_of(slots)
        top = np.zeros(scenarios, dtype=np.int64)
        for j in range(first, len(cells)):
            cell, a = cells[j], 0
            while a < cell.shape[1]:
                if used < slots:
                    m = min(slots - used, cell.shape[1] - a)
                    ends[:, used : used + m] = cell[:, a : a + m]
                    used += m
                else:
                    m = min(wave, cell.shape[1] - a)
                    ends.sort(axis=1)
                    ends[:, :m] += cell[:, a : a + m]
                top = np.maximum(top, ends[:, :used].max(axis=1))
                a += m
            iterations[:, j] = top
            if float((work_s[:, j] + base_s * top).mean()) > latest_s:
                return j + 1
        return len(cells)


def wave_of(slots: int) -> int:
    """Return how many slots are refilled at once."""
    return max(1, slots // 4)


def _running(values: NDArray[np.generic]) -> FloatArray:
    """Return (S, n+1) running sums along the last axis, starting with 0."""
    sums = np.zeros((values.shape[0], values.shape[1] + 1))
    np.cumsum(values, axis=1, out=sums[:, 1:])
    return sums
