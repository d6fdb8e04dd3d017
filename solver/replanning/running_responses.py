"""The unfinished responses of a running step at one moment, with their actors, and the gain of moving them.

Inputs: a ``StepState``, a forecast of remaining lengths and the actors' latency models. Earlier and later decisions play no
part.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from solver.lengths.remaining import RemainingLengths
from solver.model.latency import LatencyModel
from solver.model.runtime_rules import StepState
from solver.model.workload import FloatArray, IntArray
from solver.replanning.actor_classes import ActorClasses
from solver.replanning.marginal_value import time_left_s, token_worth

FOLD_PARTS = 24  # parts in which the responses of an actor are dealt to others when folding it is weighed


@dataclass(eq=False)
class UnfinishedResponses:
    """n unfinished responses on K actors.

    Attributes:
        actors: (K,) ids of the actors. response: (n,) indices. owner: (n,) position of each response's actor.
        movable: (n,) False for responses that are migrating.
        tokens, kv_tokens: (n,) generated tokens, and KV tokens in memory. left_tokens: (n,) expected tokens.
        load_on: (n, M) l of solver.replanning.marginal_value on an actor of each class of ``fleet``; worth: (n,) q.
        reserved: (n,) KV tokens that admission sets aside at most.
        actor_load, actor_worth, count, slots, memory: (K,) sums of load and worth, responses, free slots, free KV tokens.
        left_s: X, the seconds that the step should still take. fleet: the actors' classes; kind: (K,) class of each actor.
        load: (n,) l on the response's present actor. base_s, price: (K,) a, and the cost of a second of each actor.
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
    worth: FloatArray
    reserved: FloatArray
    actor_load: FloatArray
    actor_worth: FloatArray
    count: IntArray
    slots: IntArray
    memory: FloatArray
    left_s: float
    fleet: ActorClasses
    kind: IntArray
    load: FloatArray = field(init=False)
    base_s: FloatArray = field(init=False)
    price: FloatArray = field(init=False)
    ids: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.ids = self.actors.tolist()
        self.load = self.load_on[np.arange(len(self.owner)), self.kind[self.owner]]
        self.base_s, self.price = self.fleet.column("base_s")[self.kind], np.array(self.fleet.rates)[self.kind]

    @property
    def step_s(self) -> FloatArray:
        """Return the (K,) seconds of the actors' next iterations."""
        return self.base_s + self.actor_load

    def gains(self, chosen: IntArray, open_to: NDArray[np.bool_]) -> FloatArray:
        """Return the (m, K) rise of the grouping's value per second when one of the chosen responses alone moves to an actor.

        It is minus infinity for the response's present actor, for actors outside ``open_to`` (K,) and for those without a free
        slot or memory.
        """
        load, worth, owner = self.load_on[chosen][:, self.kind], self.worth[chosen], self.owner[chosen]
        step = self.step_s
        rate = self.actor_worth / step
        without = np.maximum(np.maximum(step[owner] - self.load[chosen], self.base_s[owner]), 1e-300)
        leaves = (self.actor_worth[owner] - worth) / without - rate[owner]
        # joining changes U / t to (U + q) / (t + l), which is (q - l U / t) / (t + l) more
        total = worth[:, None] - load * rate
        total /= step + load
        total += leaves[:, None]
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

        Above ``FOLD_PARTS`` responses, responses of similar worth move in parts: the mean of a part decides its receiver.
        """
        others = np.flatnonzero(open_to & (np.arange(len(open_to)) != k))
        mine = np.flatnonzero(self.owner == k)
        if int(self.slots[others].sum()) < len(mine):
            return -math.inf
        mine = mine[np.argsort(-self.worth[mine], kind="stable")]
        starts = np.unique(np.linspace(0, len(mine), min(len(mine), FOLD_PARTS), endpoint=False).astype(np.int64))
        sums = [np.add.reduceat(x[mine], starts).tolist() if len(mine) else [] for x in (self.worth, self.reserved)]
        loads = [np.add.reduceat(x[mine], starts).tolist() if len(mine) else [] for x in self.load_on.T]
        counts = np.diff(np.append(starts, len(mine))).tolist()
        rise = float(self.price[k] - self.actor_worth[k] / self.step_s[k])
        # plain numbers: a call on an array of a few actors takes longer than all of them
        step, worth = self.step_s[others].tolist(), self.actor_worth[others].tolist()
        slots, memory, kind = self.slots[others].tolist(), self.memory[others].tolist(), self.kind[others].tolist()
        rate = [u / t for u, t in zip(worth, step, strict=True)]
        for weight, held, count, *own_on in zip(*sums, counts, *loads, strict=True):
            to, most = -1, -math.inf
            for j, r in enumerate(rate):
                own = own_on[kind[j]]
                gain = (weight - own * r) / (step[j] + own)
                if gain > most and slots[j] >= count and memory[j] >= held:
                    to, most = j, gain
            if to < 0:
                return -math.inf
            rise += most
            step[to] += own_on[kind[to]]
            worth[to] += weight
            rate[to] = worth[to] / step[to]
            slots[to] -= count
            memory[to] -= held
        return rise


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
    fleet = ActorClasses.of(latency)
    return valued(
        np.array([v.actor for v in views], dtype=np.int64), fleet.classes([v.planned for v in views]), response, owner, movable,
        state.generated_tokens[response].astype(float), state.prompt_tokens[response].astype(float),
        np.array([v.free_slots for v in views], dtype=np.int64), remaining, fleet, price,
    )  # fmt: skip


def valued(
    actors: IntArray, kind: IntArray, response: IntArray, owner: IntArray, movable: NDArray[np.bool_], tokens: FloatArray,
    prompt: FloatArray, slots: IntArray, remaining: RemainingLengths, latency: LatencyModel | ActorClasses, price: float,
) -> UnfinishedResponses:  # fmt: skip
    """Return ``survivors_of`` computed from arrays: (K,) ids, classes and free slots of actors; (n,) index, owner, tokens and
    prompt tokens of responses."""
    fleet = ActorClasses.of(latency)
    most = remaining.most_tokens(response, tokens)
    speed = [(m.base_s, m.per_response_s, m.per_kv_token_s, rate) for m, rate in zip(fleet.models, fleet.rates, strict=True)]
    load_on = np.array([b + c * (prompt + tokens) for _, b, c, _ in speed]).T
    roots = [remaining.root_load(response, tokens, b, c) for _, b, c, _ in speed]
    left_s = min(time_left_s(price / p, a, most, root) for (a, _, _, p), root in zip(speed, roots, strict=True))
    worths = [
        p * token_worth(left_s, a, load, most, root) for (a, _, _, p), load, root in zip(speed, load_on.T, roots, strict=True)
    ]
    worth = np.minimum.reduce(worths)
    load = load_on[np.arange(len(owner)), kind[owner]]
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
        worth=worth,
        reserved=reserved,
        actor_load=per_actor(load),
        actor_worth=per_actor(worth),
        count=np.bincount(owner, minlength=len(actors)).astype(np.int64),
        slots=slots.copy(),
        memory=fleet.column("kv_capacity_tokens")[kind] - per_actor(reserved),
        left_s=left_s,
        fleet=fleet,
        kind=kind,
    )
