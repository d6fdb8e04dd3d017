"""Sorts a workload by remaining length and computes the load of every item on every offer, for planning on several offers.

An item is the unit that stays together on one actor: a response, or (``keep_together``) all responses of a prompt. An item is
as long as its longest response.

**Load.** w_ir is the load of item i on an actor of offer r, in seconds besides its iterations. An actor takes at least the sum
of w_ir over its items, whichever they are. Decoding adds b n + c (KV tokens of all its iterations) per response, wherever it
runs, and so does the prefill of its own tokens and, without ``share_prefill``, of its prompt. With ``share_prefill`` only the
prompt's longest response (of equal ones any) carries the prompt. The actor that holds it computes the prompt at least once, for
this response or for a sibling that joined before. No other item of that actor carries it. (Any division of a prompt among its
responses would do, as an actor with a part of them pays the whole. The longest response puts the load where it is needed first,
at the front of the sorted items.)

**Iterations.** An actor runs for as many as its longest item. It runs at least (sum of its items' iterations) / slots, because
no more responses decode at once, and (sum of what they occupy) / KV tokens. All three hold for items as they do for responses.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from solver.model.cluster import GpuPool
from solver.model.offers import Offer
from solver.model.problem import PlanningProblem
from solver.model.workload import FloatArray, IntArray, Workload


@dataclass(frozen=True, eq=False)
class MixedWork:
    """Items longest first (m of them, with n responses) on R offers. An iteration of an actor of offer r takes a + b
    * batch + c * KV tokens.

    Attributes:
        offers: (R,) actors that may be started; pools: of the cluster, in its order.
        order: (n,) responses, item after item, each item's longest first; edge: (m+1,) where each item begins in it.
        iterations, prompt, held: (n,) of each response its iterations, its prompt, and the KV tokens that admission counts for
            it at most.
        computes: (n,) whether it has tokens to prefill if its prompt is not cached; recomputes: (n,) whether it has if it
            is (as everywhere without ``share_prefill``).
        length: (m,) iterations of each item's longest response; steps: (m,) of all of them.
        load: (R, m) the load of the module docstring; uncached_load: (R, m) seconds that an item adds to an actor that has not
            cached its prompt; repeated: (R, m) the part saved where it has (``share_prefill``, items of one response).
        allowed: (R, m) whether the KV memory of one actor can hold each of its responses.
        occupied: (m,) KV tokens times iterations that it occupies at least.
        works: (m,) whether it needs an iteration.
        base_s, sync_s, start_s, call_s: (R,) a; seconds before an actor's first iteration, start_s unless it is prewarmed;
            one prefill call. feeding: (R,) the most iterations that one actor takes to feed all prompts beside a full batch.
        call_at_least: whether every actor worth starting makes at least one prefill call.
        slots, kv_tokens, gpus, pool: (R,) of an actor of the offer; rate: (R,) cost of holding it for a second.
    """

    offers: tuple[Offer, ...]
    pools: tuple[GpuPool, ...]
    order: IntArray
    edge: IntArray
    iterations: IntArray
    prompt: IntArray
    held: FloatArray
    computes: NDArray[np.bool_]
    recomputes: NDArray[np.bool_]
    length: IntArray
    steps: FloatArray
    load: FloatArray
    uncached_load: FloatArray
    repeated: FloatArray
    allowed: NDArray[np.bool_]
    occupied: FloatArray
    works: NDArray[np.bool_]
    base_s: FloatArray
    sync_s: FloatArray
    start_s: FloatArray
    call_s: FloatArray
    feeding: FloatArray
    call_at_least: bool
    slots: IntArray
    kv_tokens: IntArray
    gpus: IntArray
    pool: IntArray
    rate: FloatArray

    @classmethod
    def of(cls, problem: PlanningProblem) -> MixedWork:
        """Sort the predicted lengths and compute their loads under the affine fits of the offers."""
        workload, offers, admission = problem.workload, problem.offers, problem.admission
        carries = _carriers(workload) if problem.share_prefill else workload.remaining_tokens > 0
        order, edge = _sorted_items(workload, carries, problem.keep_together)
        remaining, owner = workload.iterations[order], workload.prompt_of[order]
        n, p = remaining.astype(float), workload.context_tokens[order].astype(float)
        reserved = workload.reserved_tokens[order].astype(float)
        kv_steps = workload.kv_steps[order]
        works = n > 0
        generated = np.where(works, workload.generated_tokens[order], 0.0)
        prompts = np.where(works, workload.prompt_tokens[owner], 0.0)
        required_prefill = generated + np.where(carries[order], prompts, 0.0)
        computes = generated + prompts > 0
        repeated = prompts if problem.share_prefill and not problem.keep_together else np.zeros_like(prompts)
        models = [offer.latency.affine for offer in offers]

        def column(name: str) -> FloatArray:
            return np.array([getattr(model, name) for model in models], dtype=float)

        def of_items(values: FloatArray) -> FloatArray:
            return np.asarray(np.add.reduceat(values, edge[:-1], axis=-1), dtype=float)

        decode = column("per_response_s")[:, None] * workload.fed_steps[order] + column("per_kv_token_s")[:, None] * kv_steps
        decode += column("join_s")[:, None] * works
        per_token = column("prefill_per_token_s")[:, None]

        def charged(missing: FloatArray) -> FloatArray:
            return np.stack([model.charged_tokens(missing) for model in models])

        load = of_items(decode + per_token * charged(required_prefill))
        kv_tokens = column("kv_capacity_tokens").astype(np.int64)
        allowed = reserved[edge[:-1]] <= kv_tokens[:, None]  # the responses of a prompt all reserve the same
        gpus = np.array([offer.gpus for offer in offers], dtype=np.int64)
        usd = problem.objective.cost == "usd"
        price = np.array([offer.usd_per_gpu_s for offer in offers]) if usd else np.ones(len(offers))
        length = remaining[edge[:-1]]
        # an actor of responses of no length makes no call, but then the plan without this actor is no worse
        no_zero = bool(length[-1] > 0) or (problem.needed_actors == 1 and bool(allowed.all()))
        contexts = p[works]
        return cls(
            offers=offers,
            pools=tuple(problem.cluster.pools),
            order=order,
            edge=edge,
            iterations=remaining,
            prompt=owner,
            held=reserved if admission == "reserve" else p + workload.remaining_tokens[order],
            computes=computes,
            recomputes=generated > 0 if problem.share_prefill else computes,
            length=length,
            steps=of_items(n),
            load=load,
            uncached_load=load if not repeated.any() else of_items(decode + per_token * charged(generated + prompts)),
            repeated=of_items(per_token * (charged(generated + repeated) - charged(generated))),
            allowed=allowed,
            occupied=of_items(n * reserved if admission == "reserve" else kv_steps),
            works=length > 0,
            base_s=column("base_s"),
            sync_s=column("sync_s"),
            start_s=column("start_s"),
            call_s=column("prefill_base_s"),
            feeding=np.array([m.feeding_iterations(float((generated + prompts).sum())) for m in models]),
            # whoever decodes first on an actor computes its context there
            call_at_least=no_zero and bool(len(contexts)) and bool((contexts > 0).all()),
            slots=column("max_batch").astype(np.int64),
            kv_tokens=kv_tokens,
            gpus=gpus,
            pool=np.array([offer.pool for offer in offers], dtype=np.int64),
            rate=gpus * price,
        )

    def __len__(self) -> int:
        """Number of items m."""
        return len(self.length)

    @cached_property
    def _item_of(self) -> IntArray:
        return np.repeat(np.arange(len(self)), np.diff(self.edge))

    def items_of(self, positions: IntArray) -> IntArray:
        """Return the items of responses given as positions in ``order``, those of a prompt one after the other."""
        items = self._item_of[positions]
        return np.asarray(items[np.diff(items, prepend=-1) != 0])

    def positions_of(self, other: MixedWork) -> IntArray:
        """Return (m of other,) the item that holds the longest response of each item of ``other``, of the same workload."""
        item_of = np.empty(len(self.order), dtype=np.int64)
        item_of[self.order] = self._item_of
        return np.asarray(item_of[other.order[other.edge[:-1]]])

    def at_once(self, offer: int, positions: IntArray) -> int:
        """Return how many of these responses (positions in ``order``) decode at once on an actor of the offer.

        That is its slots if all fit into its memory, else as many as surely fit, whichever they are, and at least 1.
        """
        if self.held[positions].sum() <= self.kv_tokens[offer]:
            return int(self.slots[offer])
        largest = max(1.0, float(self.held[positions].max()))
        return max(1, min(int(self.slots[offer]), int(self.kv_tokens[offer] // largest)))

    @property
    def alone_s(self) -> FloatArray:
        """Return the (R, m) least seconds of an item from an actor's start, prewarmed if its pool has such; infinite
        where it is not allowed."""
        cold = np.array([0.0 if self.pools[i].prewarmed else 1.0 for i in self.pool]) * self.start_s
        busy = np.maximum(self.steps / self.slots[:, None], self.occupied / self.kv_tokens[:, None])
        alone = (self.least_ready_s + cold)[:, None] + self.base_s[:, None] * np.maximum(self.length, busy) + self.load
        return np.where(self.allowed, alone, np.inf)

    @property
    def least_ready_s(self) -> FloatArray:
        """Return the (R,) seconds before the first iteration of a prewarmed actor, a first prefill call included
        where all make one."""
        return self.sync_s + (self.call_s if self.call_at_least else 0.0)

    @property
    def shortest_makespan_s(self) -> float:
        """Return a lower bound on the makespan: every item takes its time alone."""
        return float(self.alone_s.min(axis=0).max())

    @property
    def longest_makespan_s(self) -> float:
        """Return the makespan of everything one after the other on the slowest actor; a longer limit excludes no plan."""
        serial = self.base_s * (float(self.steps.sum()) + self.feeding) + self.load.sum(axis=1) + self.call_s * len(self.order)
        return float((self.sync_s + self.start_s + self.call_s + serial).max())

    @property
    def least_cost(self) -> float:
        """Return a lower bound on the cost of generation where actors release their GPUs once done.

        Every item costs its load and its share of the slots on its cheapest offer.
        """
        paid = self.rate[:, None] * (self.load + (self.base_s / self.slots)[:, None] * self.steps)
        return float(np.where(self.allowed, paid, np.inf).min(axis=0).sum())


def _carriers(workload: Workload) -> NDArray[np.bool_]:
    """Return (n,) whether a response counts its prompt's prefill: the longest of each prompt that needs an iteration."""
    working = np.flatnonzero(workload.remaining_tokens > 0)
    keys = (workload.generated_tokens[working], workload.iterations[working], workload.prompt_of[working])
    rising = working[np.lexsort(keys)]
    owner = workload.prompt_of[rising]
    carries = np.zeros(len(workload), dtype=bool)
    carries[rising[np.append(owner[1:] != owner[:-1], True)[: len(rising)]]] = True
    return carries


def _sorted_items(workload: Workload, carries: NDArray[np.bool_], keep_together: bool) -> tuple[IntArray, IntArray]:
    """Return responses item after item, longest items first, and where each item begins.

    Ties are broken by the responses' loads, so that the order in which the workload lists them does not matter.
    """
    remaining, context, owner = workload.iterations, workload.context_tokens, workload.prompt_of
    if not keep_together:
        loads = () if workload.passes is None else (workload.fed_steps, workload.kv_steps)
        order = np.lexsort((*loads, workload.prompt_tokens[owner], context, carries, remaining))[::-1]
        return order.astype(np.int64), np.arange(len(order) + 1)
    prompts = len(workload.prompt_tokens)
    longest = np.zeros(prompts, dtype=np.int64)
    np.maximum.at(longest, owner, remaining)
    steps = np.bincount(owner, remaining, prompts)
    kv_steps = np.bincount(owner, workload.kv_steps, prompts)
    rank = np.empty(prompts, dtype=np.int64)
    rank[np.lexsort((workload.prompt_tokens, kv_steps, steps, longest))[::-1]] = np.arange(prompts)
    order = np.lexsort((~carries, -context, -remaining, rank[owner]))
    begins = np.flatnonzero(np.diff(owner[order])) + 1
    return order.astype(np.int64), np.concatenate([[0], begins, [len(order)]])
