"""The unfinished responses of a running step at one moment, with their actors, and the gain of moving them.

Inputs: a ``StepState``, a forecast of remaining lengths and the actors' latency models. Earlier and later decisions play no
part.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from solver.lengths.remaining import RemainingLengths
from solver.model.latency import LatencyModel
from solver.model.runtime_rules import StepState
from solver.model.workload import FloatArray, IntArray
from solver.replanning.actor_classes import ActorClasses
from solver.replanning.marginal_value import time_left_s, token_value

FOLD_PARTS = 24  # parts in which the responses of an actor are assigned to others when a fold is evaluated


@dataclass(eq=False)
class UnfinishedResponses:
    """n unfinished responses on K actors.

    Attributes:
        actors: (K,) ids of the actors. response: (n,) indices. owner: (n,) position of each response's actor.
        movable: (n,) False for responses that are migrating.
        tokens, kv_tokens: (n,) generated tokens, and KV tokens in memory. left_tokens: (n,) expected tokens.
        load_on: (n, M) load l of solver.replanning.marginal_value on an actor of each of M classes; token_value: (n,) q.
        reserved: (n,) KV tokens that admission sets aside at most.
        actor_load, actor_token_value, count: (K,) sums of load and token value, and responses. slots, memory: (K,) free slots
            and free KV tokens. left_s: X, seconds that the step should still take. class_of: (K,) index of each actor's class.
        load: (n,) l on the response's present actor. base_s, cost_per_s: (K,) a, and the cost of a second of each actor.
        ids: ``actors`` as a list.
    """

    actors: IntArray
    response: IntArray
    owner: IntArray
    movable: NDArray[np.bool_]
    tokens: FloatArray
    kv_tokens: FloatArray
    left_tokens: FloatArray
    load_on: FloatArray
    token_value: FloatArray
    reserved: FloatArray
    actor_load: FloatArray
    actor_token_value: FloatArray
    count: IntArray
    slots: IntArray
    memory: FloatArray
    left_s: float
    actor_classes: ActorClasses
    class_of: IntArray
    load: FloatArray = field(init=False)
    base_s: FloatArray = field(init=False)
    cost_per_s: FloatArray = field(init=False)
    ids: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.ids = self.actors.tolist()
        self.load = self.load_on[np.arange(len(self.owner)), self.class_of[self.owner]]
        self.base_s, self.cost_per_s = (
            self.actor_classes.column("base_s")[self.class_of],
            np.array(self.actor_classes.rates)[self.class_of],
        )

    @property
    def iteration_s(self) -> FloatArray:
        """Return the (K,) seconds of the actors' next iterations."""
        return self.base_s + self.actor_load

    def gains(self, chosen: IntArray, open_to: NDArray[np.bool_]) -> FloatArray:
        """Return the (m, K) rise of the grouping's value per second when one of the chosen responses alone moves to an actor.

        It is minus infinity for the response's present actor, for actors outside ``open_to`` (K,) and for those without a free
        slot or memory.
        """
        load, value, owner = self.load_on[chosen][:, self.class_of], self.token_value[chosen], self.owner[chosen]
        step = self.iteration_s
        rate = self.actor_token_value / step
        step_without = np.maximum(np.maximum(step[owner] - self.load[chosen], self.base_s[owner]), 1e-300)
        leaving_gain = (self.actor_token_value[owner] - value) / step_without - rate[owner]
        # joining changes U / t to (U + q) / (t + l), which is (q - l U / t) / (t + l) more
        total = value[:, None] - load * rate
        total /= step + load
        total += leaving_gain[:, None]
        total[:, ~(open_to & (self.slots > 0))] = -np.inf
        reserved = self.reserved[chosen]
        for k in np.flatnonzero(self.memory < reserved.max(initial=0.0)):
            total[self.memory[k] < reserved, k] = -np.inf
        total[np.arange(len(chosen)), owner] = -np.inf
        return total

    def fold_gain(self, k: int, open_to: NDArray[np.bool_]) -> float:
        """Return the rise of the value per second when the actor at position ``k`` is released.

        Its responses move one after another to the best receivers among ``open_to``. The gain is minus infinity when these have
        too little room. Changes nothing.

        Above ``FOLD_PARTS`` responses, responses of similar token value move in parts: the mean of a part decides its receiver.
        """
        receivers = np.flatnonzero(open_to & (np.arange(len(open_to)) != k))
        leaving = np.flatnonzero(self.owner == k)
        if int(self.slots[receivers].sum()) < len(leaving):
            return -math.inf
        leaving = leaving[np.argsort(-self.token_value[leaving], kind="stable")]
        starts = np.unique(np.linspace(0, len(leaving), min(len(leaving), FOLD_PARTS), endpoint=False).astype(np.int64))
        sums = [np.add.reduceat(x[leaving], starts).tolist() if len(leaving) else [] for x in (self.token_value, self.reserved)]
        loads = [np.add.reduceat(x[leaving], starts).tolist() if len(leaving) else [] for x in self.load_on.T]
        counts = np.diff(np.append(starts, len(leaving))).tolist()
        rise = float(self.cost_per_s[k] - self.actor_token_value[k] / self.iteration_s[k])
        # plain numbers: a call on an array of a few actors takes longer than all of them
        step, values = self.iteration_s[receivers].tolist(), self.actor_token_value[receivers].tolist()
        slots, memory, kind = self.slots[receivers].tolist(), self.memory[receivers].tolist(), self.class_of[receivers].tolist()
        rate = [u / t for u, t in zip(values, step, strict=True)]
        for part_value, part_reserved, count, *part_loads in zip(*sums, counts, *loads, strict=True):
            receiver, best_gain = -1, -math.inf
            for j, receiver_rate in enumerate(rate):
                load = part_loads[kind[j]]
                gain = (part_value - load * receiver_rate) / (step[j] + load)
                if gain > best_gain and slots[j] >= count and memory[j] >= part_reserved:
                    receiver, best_gain = j, gain
            if receiver < 0:
                return -math.inf
            rise += best_gain
            step[receiver] += part_loads[kind[receiver]]
            values[receiver] += part_value
            rate[receiver] = values[receiver] / step[receiver]
            slots[receiver] -= count
            memory[receiver] -= part_reserved
        return rise


class ResponseArrays(NamedTuple):
    """n unfinished responses on K actors, before they are valued.

    Attributes:
        actors, class_of, slots: (K,) ids, classes and free slots of the actors.
        response, owner, movable, tokens: (n,) as in ``UnfinishedResponses``. prompt: (n,) prompt tokens.
    """

    actors: IntArray
    class_of: IntArray
    slots: IntArray
    response: IntArray
    owner: IntArray
    movable: NDArray[np.bool_]
    tokens: FloatArray
    prompt: FloatArray


def survivors_of(
    state: StepState, remaining: RemainingLengths, latency: LatencyModel | ActorClasses, price: float
) -> UnfinishedResponses:
    """Return the unfinished responses of a state, valued for a makespan whose last second costs ``price``.

    ``price`` is in actor-seconds, or in the unit of the rates of an ``ActorClasses``.
    """
    views = state.actors
    sizes = [(len(v.unfinished), len(v.arriving)) for v in views]
    response = np.array([r for v in views for r in (*v.unfinished, *v.arriving)], dtype=np.int64)
    owner = np.repeat(np.arange(len(views)), [sum(size) for size in sizes])
    movable = np.repeat(np.tile([True, False], len(views)), [count for size in sizes for count in size])
    actor_classes = ActorClasses.of(latency)
    arrays = ResponseArrays(
        np.array([v.actor for v in views], dtype=np.int64), actor_classes.classes([v.planned for v in views]),
        np.array([v.free_slots for v in views], dtype=np.int64), response, owner, movable,
        state.generated_tokens[response].astype(float), state.prompt_tokens[response].astype(float),
    )  # fmt: skip
    return valued(arrays, remaining, actor_classes, price)


def valued(
    arrays: ResponseArrays, remaining: RemainingLengths, latency: LatencyModel | ActorClasses, price: float
) -> UnfinishedResponses:
    """Return ``survivors_of`` computed from arrays."""
    actors, class_of, slots, response, owner, movable, tokens, prompt = arrays
    actor_classes = ActorClasses.of(latency)
    max_tokens = remaining.max_tokens(response, tokens)
    speeds = [
        (m.base_s, m.per_response_s, m.per_kv_token_s, rate)
        for m, rate in zip(actor_classes.models, actor_classes.rates, strict=True)
    ]
    load_on = np.array([b + c * (prompt + tokens) for _, b, c, _ in speeds]).T
    roots = [remaining.root_load(response, tokens, b, c) for _, b, c, _ in speeds]
    left_s = min(time_left_s(price / p, a, max_tokens, root) for (a, _, _, p), root in zip(speeds, roots, strict=True))
    values_by_class = [
        p * token_value(left_s, a, load, max_tokens, root)
        for (a, _, _, p), load, root in zip(speeds, load_on.T, roots, strict=True)
    ]
    values = np.minimum.reduce(values_by_class)
    load = load_on[np.arange(len(owner)), class_of[owner]]
    reserved = prompt + remaining.max_response_tokens

    def per_actor(values: FloatArray) -> FloatArray:
        return np.asarray(np.bincount(owner, weights=values, minlength=len(actors)), dtype=float)

    return UnfinishedResponses(
        actors=actors,
        response=response,
        owner=owner,
        movable=movable,
        tokens=tokens,
        kv_tokens=np.where(tokens > 0, prompt + tokens, 0.0),
        left_tokens=remaining.expected_tokens(response, tokens),
        load_on=load_on,
        token_value=values,
        reserved=reserved,
        actor_load=per_actor(load),
        actor_token_value=per_actor(values),
        count=np.bincount(owner, minlength=len(actors)).astype(np.int64),
        slots=slots.copy(),
        memory=actor_classes.column("kv_capacity_tokens")[class_of] - per_actor(reserved),
        left_s=left_s,
        actor_classes=actor_classes,
        class_of=class_of,
    )
