"""Sorts a workload by remaining length and computes the load of every item on every offer, for planners and their bounds.

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

import numpy as np
from numpy.typing import NDArray

from solver.model.cluster import GpuPool
from solver.model.offers import Offer
from solver.model.problem import PlanningProblem
from solver.model.workload import FloatArray, IntArray, Workload


@dataclass(frozen=True, eq=False)
class Items:
    """Items longest first (m of them, with n responses) on R offers. An iteration of an actor of offer r takes a + b
    * batch + c * KV tokens.

    Attributes:
        problem: the lengths are those predicted, whatever its scenarios.
        order: (n,) responses, item after item, each item's longest first; edge: (m+1,) where each item begins in it.
        length: (m,) iterations of each item's longest response; steps: (m,) of all of them.
        occupied: (m,) KV tokens times iterations that each item occupies at least; held: (m,) the most KV tokens that admission
            counts for one of its responses.
        load: (R, m) the load of the module docstring.
        allowed: (R, m) whether the KV memory of one actor can hold each of its responses.
        works: (m,) whether it needs an iteration.
        base_s, sync_s, start_s, call_s: (R,) a; seconds before an actor's first iteration, start_s unless it is prewarmed;
            one prefill call.
        call_at_least: whether every actor worth starting makes at least one prefill call.
        slots, kv_tokens, gpus, pool: (R,) of an actor of the offer; rate: (R,) cost of holding it for a second.
    """

    problem: PlanningProblem
    order: IntArray
    edge: IntArray
    length: IntArray
    steps: FloatArray
    occupied: FloatArray
    held: FloatArray
    load: FloatArray
    allowed: NDArray[np.bool_]
    works: NDArray[np.bool_]
    base_s: FloatArray
    sync_s: FloatArray
    start_s: FloatArray
    call_s: FloatArray
    call_at_least: bool
    slots: IntArray
    kv_tokens: IntArray
    gpus: IntArray
    pool: IntArray
    rate: FloatArray

    @classmethod
    def of(cls, problem: PlanningProblem) -> Items:
        """Sort the predicted lengths and compute their loads under the affine fits of the offers."""
        workload, offers = problem.workload, problem.offers
        working = workload.iterations > 0
        carries = _carriers(workload) if problem.share_prefill else working
        order, edge = _sorted_items(workload, carries, problem.keep_together)
        remaining, works = workload.iterations[order], working[order]
        reserved, contexts = workload.reserved_tokens[order], workload.context_tokens[order]
        generated = np.where(works, workload.generated_tokens[order], 0.0)
        prompts = workload.prompt_tokens[workload.prompt_of[order]]
        required_prefill = generated + np.where(carries[order], prompts, 0.0)
        models = [offer.latency.affine for offer in offers]
        reserves = problem.admission == "reserve"

        def column(name: str) -> FloatArray:
            return np.array([getattr(model, name) for model in models], dtype=float)

        def of_items(values: FloatArray) -> FloatArray:
            return np.asarray(np.add.reduceat(values, edge[:-1], axis=-1), dtype=float)

        load = column("per_response_s")[:, None] * workload.fed_steps[order]
        load += column("per_kv_token_s")[:, None] * workload.kv_steps[order]
        load += column("join_s")[:, None] * works
        load += column("prefill_per_token_s")[:, None] * np.stack([m.charged_tokens(required_prefill) for m in models])
        length, kv_tokens = remaining[edge[:-1]], column("kv_capacity_tokens").astype(np.int64)
        allowed = reserved[edge[:-1]] <= kv_tokens[:, None]  # the responses of a prompt all reserve the same
        # an actor of responses of no length makes no call, but then the plan without this actor is no worse
        no_zero = bool(length[-1] > 0) or (problem.needed_actors == 1 and bool(allowed.all()))
        gpus = np.array([offer.gpus for offer in offers], dtype=np.int64)
        usd = problem.objective.cost == "usd"
        return cls(
            problem=problem,
            order=order,
            edge=edge,
            length=length,
            steps=of_items(remaining.astype(float)),
            occupied=of_items(remaining.astype(float) * reserved if reserves else workload.kv_steps[order]),
            held=np.maximum.reduceat(reserved if reserves else contexts + workload.remaining_tokens[order], edge[:-1]) * 1.0,
            load=of_items(load),
            allowed=allowed,
            works=length > 0,
            base_s=column("base_s"),
            sync_s=column("sync_s"),
            start_s=column("start_s"),
            call_s=column("prefill_base_s"),
            # whoever decodes first on an actor computes its context there
            call_at_least=no_zero and bool(works.any()) and bool((contexts[works] > 0).all()),
            slots=column("max_batch").astype(np.int64),
            kv_tokens=kv_tokens,
            gpus=gpus,
            pool=np.array([offer.pool for offer in offers], dtype=np.int64),
            rate=gpus * (np.array([offer.usd_per_gpu_s for offer in offers]) if usd else np.ones(len(offers))),
        )

    def __len__(self) -> int:
        """Number of items m."""
        return len(self.length)

    @property
    def offers(self) -> tuple[Offer, ...]:
        """Return the (R,) actors that may be started."""
        return self.problem.offers

    @property
    def pools(self) -> tuple[GpuPool, ...]:
        """Return the pools of the cluster, in its order."""
        return tuple(self.problem.cluster.pools)

    @property
    def least_ready_s(self) -> FloatArray:
        """Return the (R,) seconds before the first iteration of a prewarmed actor, a first prefill call included
        where all make one."""
        return self.sync_s + (self.call_s if self.call_at_least else 0.0)

    @property
    def alone_s(self) -> FloatArray:
        """Return the (R, m) least seconds of an item from an actor's start, prewarmed if its pool has such; infinite
        where it is not allowed."""
        pools = self.pools
        cold = np.array([0.0 if pools[i].prewarmed else 1.0 for i in self.pool]) * self.start_s
        busy = np.maximum(self.steps / self.slots[:, None], self.occupied / self.kv_tokens[:, None])
        alone = (self.least_ready_s + cold)[:, None] + self.base_s[:, None] * np.maximum(self.length, busy) + self.load
        return np.where(self.allowed, alone, np.inf)

    @property
    def shortest_makespan_s(self) -> float:
        """Return a lower bound on the makespan: every item takes its time alone."""
        return float(self.alone_s.min(axis=0).max())

    @property
    def longest_makespan_s(self) -> float:
        """Return the makespan of everything one after the other on the slowest actor; a longer limit excludes no plan."""
        workload = self.problem.workload
        fed = float(workload.context_tokens[workload.iterations > 0].sum())
        feeding = np.array([offer.latency.feeding_iterations(fed) for offer in self.offers])
        serial = self.base_s * (float(self.steps.sum()) + feeding) + self.load.sum(axis=1) + self.call_s * len(self.order)
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
    working = np.flatnonzero(workload.iterations > 0)
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
