"""The late-opening relaxation: the least GPU-seconds for a makespan, as a true lower bound of the planning model.

Knows sorted lengths and one affine latency model; nothing of plans. Notation: an iteration takes a + b * batch + c * KV
tokens; response i needs n_i iterations from context p_i and brings the load

    w_i = b n_i + c (p_i n_i + n_i (n_i - 1) / 2) + prefill_per_token * p_i .

**Statement.** Let an actor be ready r seconds after its GPUs are taken (start, weight sync, first prefill call) and let
M' = M - r. In every plan with makespan at most M, refill and any admission order included, for every k (responses sorted
by length, longest first) the actors that hold any of the k longest responses have longest responses m_1, m_2, ... among
those k and satisfy

    (load)     sum_j (M' - a n_{m_j})          >=  sum_{i <= k} w_i
    (slots)    sum_j M'                        >=  sum_{i <= k} (w_i + a n_i / s)
    (memory)   sum_j M'                        >=  sum_{i <= k} (w_i + a h_i / K)

with s slots, K KV tokens of memory and h_i the KV tokens times iterations that response i occupies (``reserve``: n_i times
prompt + limit; ``preempt``: the sum of its contexts).
*Proof.* An actor runs at least n_m iterations, m its longest response, at least (sum n)/s iterations because none decodes
more than s responses, and at least (sum h)/K because none holds more than K tokens; each iteration costs a, and the loads
come on top. It ends by M, so a * iterations + sum w <= M' for each of the three counts; restricting the sums over an
actor's responses to the k longest only lowers the right-hand sides. Add up over these actors.

**Greedy.** Open every next actor at the first (longest) response at which a family is violated. *Claim:* the j-th actor
opens no earlier in any feasible solution. *Proof* by induction: if the first j - 1 open no later than the greedy's, their
capacities are no larger (n falls along the order), so where the greedy needs a j-th actor the other solution needs one at
or before. Hence the greedy has the least number of actors and, each opening being latest, the least sum of longest
lengths. The GPU-seconds of any plan within M are therefore at least

    g * (N r + a * max(sum of longest, sum n / s, sum h / K) + sum w) ,

and if the greedy needs more actors than the cluster has, no plan keeps M. A plan of at least A actors, none of them empty,
costs at least the same with N raised to A and the A - N shortest lengths added to the sum of longest: its longest responses
are distinct, so the last A - N of them are no shorter than the A - N shortest of all. (An actor of zero lengths only may
need no first prefill call, but then the plan without it is no worse, and it has one actor less.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from solver.admission import Admission
from solver.latency import LatencyModel
from solver.workload import FloatArray, IntArray, Workload


@dataclass(frozen=True)
class Relaxed:
    """The relaxation at one makespan: least actors, and least actor-seconds of all of them together."""

    actors: int
    actor_s: float


@dataclass(frozen=True, eq=False)
class SortedWork:
    """A workload sorted by remaining length, longest first, with the running sums that relaxation and rounding need.

    Attributes:
        order: (n,) responses, longest first; length: (n,) their iterations n_i, zero lengths included.
        ready_s, ready_at_most_s: r, seconds before an actor's first iteration; they differ by the first prefill call when
            only some prompts have tokens to prefill. step_s: a.
        load: (n+1,) running sum of w_i, starting with 0. slot_load, kv_load: of the slot and memory families.
        refill_load: (n+1,) running sum that bounds a refilled actor from above (see ``rounding``).
        held: (n+1,) running sum of the KV tokens that admission counts for a response at most.
        slots: responses that surely fit into the batch at once whichever they are (slots and memory).
        most_actors: actors the cluster has room for.
    """

    order: IntArray
    length: IntArray
    ready_s: float
    ready_at_most_s: float
    step_s: float
    load: FloatArray
    slot_load: FloatArray
    kv_load: FloatArray
    refill_load: FloatArray
    held: FloatArray
    max_batch: int
    kv_capacity_tokens: int
    slots: int
    most_actors: int

    @classmethod
    def of(
        cls, workload: Workload, latency: LatencyModel, admission: Admission, ready_s: float, most_actors: int
    ) -> SortedWork:
        """Sort the workload and sum its loads under the affine fit of ``latency``."""
        remaining, context = workload.remaining_tokens, workload.context_tokens
        order = np.lexsort((context, remaining))[::-1]
        n = remaining[order].astype(float)
        p = context[order].astype(float)
        kv_steps = p * n + n * (n - 1) / 2
        works = n > 0
        load = latency.per_response_s * n + latency.per_kv_token_s * kv_steps
        load += np.where(works, latency.prefill_per_token_s * p, 0.0)
        most = workload.reserved_tokens[order].astype(float)
        occupied = n * most if admission.rule == "reserve" else kv_steps
        held = most if admission.rule == "reserve" else p + n
        slots = int(max(1, min(admission.max_batch, admission.kv_capacity_tokens // max(1.0, held.max()))))
        a = latency.base_s
        refill = load + a * n / slots + np.where(works, latency.prefill_base_s, 0.0)

        def running(values: FloatArray) -> FloatArray:
            return np.concatenate([[0.0], np.cumsum(values)])

        prompts = p[works]
        always = latency.prefill_base_s if prompts.size and prompts.min() > 0 else 0.0
        sometimes = latency.prefill_base_s if prompts.size and prompts.max() > 0 else 0.0
        return cls(
            order=order.astype(np.int64),
            length=remaining[order],
            ready_s=ready_s + always,
            ready_at_most_s=ready_s + sometimes,
            step_s=a,
            load=running(load),
            slot_load=running(load + a * n / admission.max_batch),
            kv_load=running(load + a * occupied / admission.kv_capacity_tokens),
            refill_load=running(refill),
            held=running(held),
            max_batch=admission.max_batch,
            kv_capacity_tokens=admission.kv_capacity_tokens,
            slots=slots,
            most_actors=most_actors,
        )

    @property
    def shortest_makespan_s(self) -> float:
        """No plan is faster: the longest response alone on an actor."""
        return self.ready_s + self.step_s * float(self.length[0]) + float(self.load[1])

    @property
    def longest_makespan_s(self) -> float:
        """An upper bound of the time of one actor that generates everything, refilling its slots."""
        once = self.step_s * float(self.length[0])
        return self.ready_at_most_s + max(float(self.load[-1]) + once, float(self.refill_load[-1]) + once)

    def relaxed(self, makespan_s: float, least_actors: int = 1) -> Relaxed | None:
        """The relaxation at ``makespan_s`` over plans of at least ``least_actors`` actors; None when none of them keeps it (see
        the module docstring for the proof)."""
        room = makespan_s - self.ready_s
        tolerance = 1e-12 * max(1.0, float(self.load[-1]))
        if room + tolerance < self.step_s * float(self.length[0]) + float(self.load[1]):
            return None
        families = [self.load, self.slot_load, self.kv_load]
        total = len(self.order)
        if least_actors > min(total, self.most_actors):
            return None
        actors, longest, opened_at = 0, 0.0, 0
        while opened_at < total:
            actors += 1
            if actors > self.most_actors:
                return None
            longest += float(self.length[opened_at])
            capacities = (actors * room - self.step_s * longest, actors * room, actors * room)
            # the first k whose sum over the k longest responses exceeds the capacity: a further actor opens at response k-1
            opened_at = min(
                int(np.searchsorted(family, capacity + tolerance, side="right")) - 1
                for family, capacity in zip(families, capacities, strict=True)
            )
        if actors < least_actors:
            longest += float(self.length[total - (least_actors - actors) :].sum())
            actors = least_actors
        iterations = max(
            self.step_s * longest,
            float(self.slot_load[-1] - self.load[-1]),
            float(self.kv_load[-1] - self.load[-1]),
        )
        return Relaxed(actors, actors * self.ready_s + iterations + float(self.load[-1]))
