"""Sorts a workload by remaining length and computes the running sums that relaxation and rounding need.

Inputs: workload, admission rule and one affine latency model. An item is the unit that stays together on one actor: a response
or (``keep_together``) all responses of a prompt. An item is as long as its longest response.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from solver.model.admission import Admission
from solver.model.latency import LatencyModel
from solver.model.problem import PlanningProblem
from solver.model.workload import FloatArray, IntArray, Workload
from solver.timing.evaluate import admission_of


@dataclass(frozen=True, eq=False)
class SortedWork:
    """Items sorted by length, longest first. Notation: an iteration takes a + b * batch + c * KV tokens.

    Attributes:
        order: (R,) responses, item after item, each item's longest first; iterations: (R,) of them; edge: (m+1,) where each
            item begins in it.
        length: (m,) iterations of the longest response of each item.
        load: (m+1,) running sum of loads that every plan pays: decoding, a join, and the prefill that cannot be avoided.
        slot_load, kv_load: (m+1,) the same with the share of the base time due to limited slots and memory.
        item_load: (m,) load of each item on its own; computes: (m,) whether it has tokens to prefill.
        repeated: (m,) the part of its load saved after an earlier item with the same prompt on the actor (``share_prefill``),
            whose position is previous: (m,) or -1.
        scarce: for slots and for memory, where they can bind at all: (m+1,) running sum of the iterations that the items take
            of an actor for themselves, and (m,) the most such iterations per load of any item from there on.
        steps: (m+1,) running sum of iterations; held: (m+1,) running sum of KV tokens that admission counts at most.
        base_s: a; sync_s, start_s: seconds before an actor's first iteration, the latter unless it is prewarmed.
        call_s: a prefill call; call_at_least: whether every actor surely makes one; call_shares_s: the seconds of
            calls that slots force, which slot_load contains.
        feeding: the most iterations that one actor takes to feed all prompts beside a full batch; 0 with separate prefill.
        slots: responses that surely fit into the batch at once whichever they are (slots and memory).
        min_actors, max_actors: bounds on the number of actors; prewarmed: actors without start_s.
    """

    order: IntArray
    iterations: IntArray
    edge: IntArray
    length: IntArray
    load: FloatArray
    slot_load: FloatArray
    kv_load: FloatArray
    item_load: FloatArray
    computes: NDArray[np.bool_]
    repeated: FloatArray
    previous: IntArray
    scarce: tuple[tuple[FloatArray, FloatArray], ...]
    steps: FloatArray
    held: FloatArray
    base_s: float
    sync_s: float
    start_s: float
    call_s: float
    call_at_least: bool
    call_shares_s: float
    feeding: float
    max_batch: int
    kv_capacity_tokens: int
    slots: int
    min_actors: int
    max_actors: int
    prewarmed: int

    @classmethod
    def of(
        cls,
        workload: Workload,
        latency: LatencyModel,
        admission: Admission,
        *,
        max_actors: int,
        min_actors: int = 1,
        prewarmed: int = 0,
        keep_together: bool = False,
        share_prefill: bool = False,
    ) -> SortedWork:
        """Sort the workload and sum its loads under the affine fit of ``latency``."""
        remaining, context = workload.iterations, workload.context_tokens
        if keep_together:
            longest = np.zeros(len(workload.prompt_tokens), np.int64)
            np.maximum.at(longest, workload.prompt_of, remaining)
            order = np.lexsort((-remaining, workload.prompt_of, -longest[workload.prompt_of]))
            edge = np.concatenate([[0], _changes(workload.prompt_of[order]), [len(order)]])
        elif workload.passes is not None:
            order = np.lexsort((workload.fed_steps, workload.kv_steps, remaining))[::-1]
            edge = np.arange(len(order) + 1)
        else:
            order = np.argsort(remaining * (int(context.max(initial=0)) + 1) + context, kind="stable")[::-1]
            edge = np.arange(len(order) + 1)
        start = edge[:-1]
        n, p = remaining[order].astype(float), context[order].astype(float)
        computes = (n > 0) & (p > 0)
        kv_steps = workload.kv_steps[order]
        decode = (
            latency.per_response_s * workload.fed_steps[order] + latency.per_kv_token_s * kv_steps + latency.join_s * (n > 0)
        )
        prefill = np.where(computes, latency.prefill_per_token_s * latency.charged_tokens(p), 0.0)
        repeated = np.zeros(len(start))
        previous = np.full(len(start), -1, dtype=np.int64)
        required_prefill = prefill
        if share_prefill:  # every prompt is computed at least once, on the actor of its longest response
            first = np.zeros(len(order), dtype=bool)
            works = np.flatnonzero(computes)
            first[works[np.unique(workload.prompt_of[order][works], return_index=True)[1]]] = True
            required_prefill = np.where(first, prefill, 0.0)
            if not keep_together:
                repeated = prefill
                previous = _previous_of_same(workload.prompt_of[order], computes)
        alone = decode + (required_prefill if keep_together else prefill)
        most = workload.reserved_tokens[order].astype(float)
        occupied = n * most if admission.rule == "reserve" else kv_steps
        held = most if admission.rule == "reserve" else p + workload.remaining_tokens[order]
        calls = np.where(computes, latency.prefill_base_s / admission.max_batch, 0.0) if not share_prefill else 0.0 * n
        a, load = latency.base_s, decode + required_prefill

        def running(values: FloatArray) -> FloatArray:
            return np.concatenate([[0.0], np.cumsum(np.add.reduceat(values, start) if keep_together else values)])

        scarce = []
        if len(order) > admission.max_batch:
            scarce.append(n / admission.max_batch)
        if held.sum() > admission.kv_capacity_tokens:
            scarce.append(occupied / admission.kv_capacity_tokens)
        return cls(
            order=order,
            iterations=remaining[order],
            edge=edge,
            length=remaining[order][start],
            load=running(load),
            slot_load=running(load + a * n / admission.max_batch + calls),
            kv_load=running(load + a * occupied / admission.kv_capacity_tokens),
            item_load=np.add.reduceat(alone, start) if keep_together else alone,
            computes=np.logical_or.reduceat(computes, start) if keep_together else computes,
            repeated=repeated,
            previous=previous,
            scarce=tuple((used := running(part), _most_after(np.diff(used), np.diff(running(load)))) for part in scarce),
            steps=running(n),
            held=running(held),
            base_s=a,
            sync_s=latency.sync_s,
            start_s=latency.start_s,
            call_s=latency.prefill_base_s if computes.any() else 0.0,
            feeding=latency.feeding_iterations(float(p[computes].sum())),
            call_shares_s=float(calls.sum()),
            call_at_least=bool(p[n > 0].min(initial=np.inf) > 0 and (min_actors == 1 or n.min() > 0)),
            max_batch=admission.max_batch,
            kv_capacity_tokens=admission.kv_capacity_tokens,
            slots=int(max(1, min(admission.max_batch, admission.kv_capacity_tokens // max(1.0, held.max())))),
            min_actors=min_actors,
            max_actors=min(max_actors, len(start)),
            prewarmed=prewarmed,
        )

    @classmethod
    def of_problem(cls, problem: PlanningProblem) -> SortedWork:
        """Sort the predicted lengths of a problem with one kind of actors, under the affine fit of its latency model."""
        cluster, latency = problem.one_kind
        return cls.of(
            problem.workload, latency.affine, admission_of(latency, None, problem.admission),
            max_actors=min(cluster.max_actors, problem.max_actors or cluster.max_actors), min_actors=problem.min_actors,
            prewarmed=cluster.prewarmed, keep_together=problem.keep_together, share_prefill=problem.share_prefill,
        )  # fmt: skip

    def __len__(self) -> int:
        """Number of items m."""
        return len(self.length)

    @property
    def call_least_s(self) -> float:
        """Return the seconds of the first prefill call where every actor makes one, else 0."""
        return self.call_s if self.call_at_least else 0.0

    def ready_s(self, actors: int) -> float:
        """Return the seconds of start and sync of ``actors`` actors together, the prewarmed ones first."""
        return actors * self.sync_s + max(0, actors - self.prewarmed) * self.start_s

    def ready_of(self, actor: int) -> float:
        """Return the seconds of start and sync of the actor-th actor."""
        return self.sync_s + (self.start_s if actor >= self.prewarmed else 0.0)

    @property
    def shortest_makespan_s(self) -> float:
        """Return a lower bound on the makespan: the longest item alone on an actor, or the work spread evenly over
        all actors."""
        alone = self.ready_of(0) + self.call_least_s + self.base_s * float(self.length[0]) + float(self.load[1])
        spread = self.sync_s + self.call_least_s + float(self.load[-1]) / self.max_actors
        return max(alone, spread)

    @property
    def longest_makespan_s(self) -> float:
        """Return an upper bound of the time of one actor that generates everything, refilling its slots."""
        once = self.base_s * float(self.length[0])
        refills = self.base_s * (float(self.steps[-1]) / self.slots + self.feeding) + self.call_s * len(self.order)
        return self.ready_of(self.max_actors) + self.call_s + float(self.item_load.sum()) + once + refills

    @property
    def refills(self) -> bool:
        """Return whether not all responses surely fit into one batch, so that some plans refill."""
        return len(self.order) > self.slots

    def responses(self, items: IntArray) -> IntArray:
        """Return the responses of the items in order of admission.

        Items stand in their order, prompts that refill slots with the longest response of all first.
        """
        if len(self.edge) == len(self.order) + 1:
            return self.order[items]
        sizes = np.diff(self.edge)[items]
        begins = np.cumsum(sizes) - sizes
        positions: IntArray = np.repeat(self.edge[items] - begins, sizes) + np.arange(sizes.sum())
        if self.refills:
            positions = positions[np.argsort(-self.iterations[positions], kind="stable")]
        return self.order[positions]


def _most_after(used: FloatArray, load: FloatArray) -> FloatArray:
    """Return (m,) the largest ``used / load`` of any item from there on."""
    ratio = np.divide(used, load, out=np.full(len(used), np.inf), where=load > 0)
    return np.maximum.accumulate(np.where(used > 0, ratio, 0.0)[::-1])[::-1]


def _changes(owner: IntArray) -> IntArray:
    """Positions at which a new prompt begins, 0 left out."""
    return np.flatnonzero(np.diff(owner) != 0) + 1


def _previous_of_same(owner: IntArray, computes: NDArray[np.bool_]) -> IntArray:
    """Return (n,) position of the response before, in this order, that computes the same prompt; -1 for none."""
    previous = np.full(len(owner), -1, dtype=np.int64)
    last: dict[int, int] = {}
    for i in np.flatnonzero(computes).tolist():
        prompt = int(owner[i])
        previous[i] = last.get(prompt, -1)
        last[prompt] = i
    return previous
