"""The unfinished responses of a running step at one moment, with their actors, and the gain of moving them.

Inputs: a ``StepState``, a forecast of remaining lengths and the actors' latency model. Earlier and later decisions play no
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
from solver.replanning.marginal_value import time_left_s, token_value

FOLD_PARTS = 24  # parts in which the responses of an actor are assigned to others when a fold is evaluated


@dataclass(eq=False)
class UnfinishedResponses:
    """n unfinished responses on K actors.

    Attributes:
        actors: (K,) ids of the actors. response: (n,) indices. owner: (n,) position of each response's actor.
        movable: (n,) False for responses that are migrating.
        tokens, kv_tokens: (n,) generated tokens, and KV tokens in memory. left_tokens: (n,) expected tokens.
        load, token_value: (n,) l and q of solver.replanning.marginal_value.
        reserved: (n,) KV tokens that admission sets aside at most.
        actor_load, actor_token_value, count: (K,) sums of load and token value, and responses. slots, memory: (K,) free slots
            and free KV tokens. left_s: X, seconds that the step should still take. latency: affine, of every actor.
        ids: ``actors`` as a list.
    """

    actors: IntArray
    response: IntArray
    owner: IntArray
    movable: NDArray[np.bool_]
    tokens: FloatArray
    kv_tokens: FloatArray
    left_tokens: FloatArray
    load: FloatArray
    token_value: FloatArray
    reserved: FloatArray
    actor_load: FloatArray
    actor_token_value: FloatArray
    count: IntArray
    slots: IntArray
    memory: FloatArray
    left_s: float
    latency: LatencyModel
    ids: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.ids = self.actors.tolist()

    @property
    def iteration_s(self) -> FloatArray:
        """Return the (K,) seconds of the actors' next iterations."""
        return self.latency.base_s + self.actor_load

    def gains(self, chosen: IntArray, open_to: NDArray[np.bool_]) -> FloatArray:
        """Return the (m, K) rise of the grouping's value per second when one of the chosen responses alone moves to an actor.

        It is minus infinity for the response's present actor, for actors outside ``open_to`` (K,) and for those without a free
        slot or memory.
        """
        load, value, owner = self.load[chosen], self.token_value[chosen], self.owner[chosen]
        step = self.iteration_s
        rate = self.actor_token_value / step
        step_without = np.maximum(np.maximum(step[owner] - load, self.latency.base_s), 1e-300)
        leaving_gain = (self.actor_token_value[owner] - value) / step_without - rate[owner]
        # joining changes U / t to (U + q) / (t + l), which is (q - l U / t) / (t + l) more
        total = value[:, None] - load[:, None] * rate
        total /= step + load[:, None]
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
        parts = (self.token_value, self.reserved, self.load)
        sums = [np.add.reduceat(x[leaving], starts).tolist() if len(leaving) else [] for x in parts]
        counts = np.diff(np.append(starts, len(leaving))).tolist()
        rise = float(1.0 - self.actor_token_value[k] / self.iteration_s[k])
        # plain numbers: a call on an array of a few actors takes longer than all of them
        step, values = self.iteration_s[receivers].tolist(), self.actor_token_value[receivers].tolist()
        slots, memory = self.slots[receivers].tolist(), self.memory[receivers].tolist()
        rate = [u / t for u, t in zip(values, step, strict=True)]
        for part_value, part_reserved, load, count in zip(*sums, counts, strict=True):
            receiver, best_gain = -1, -math.inf
            for j, receiver_rate in enumerate(rate):
                gain = (part_value - load * receiver_rate) / (step[j] + load)
                if gain > best_gain and slots[j] >= count and memory[j] >= part_reserved:
                    receiver, best_gain = j, gain
            if receiver < 0:
                return -math.inf
            rise += best_gain
            step[receiver] += load
            values[receiver] += part_value
            rate[receiver] = values[receiver] / step[receiver]
            slots[receiver] -= count
            memory[receiver] -= part_reserved
        return rise


class ResponseArrays(NamedTuple):
    """n unfinished responses on K actors, before they are valued.

    Attributes:
        actors, slots: (K,) ids and free slots of the actors.
        response, owner, movable, tokens: (n,) as in ``UnfinishedResponses``. prompt: (n,) prompt tokens.
    """

    actors: IntArray
    slots: IntArray
    response: IntArray
    owner: IntArray
    movable: NDArray[np.bool_]
    tokens: FloatArray
    prompt: FloatArray


def survivors_of(state: StepState, remaining: RemainingLengths, latency: LatencyModel, price: float) -> UnfinishedResponses:
    """Return the unfinished responses of a state, valued for a makespan whose last second costs ``price`` actor-seconds.

    ``latency`` is the affine model of every actor.
    """
    response = state.responses
    arrays = ResponseArrays(
        state.counts.actor, state.counts.free_slots, response, state.owner, ~state.arriving,
        state.generated_tokens[response].astype(float), state.prompt_tokens[response].astype(float),
    )  # fmt: skip
    return valued(arrays, remaining, latency, price)


def valued(arrays: ResponseArrays, remaining: RemainingLengths, latency: LatencyModel, price: float) -> UnfinishedResponses:
    """Return ``survivors_of`` computed from arrays."""
    actors, slots, response, owner, movable, tokens, prompt = arrays
    max_tokens = remaining.max_tokens(response, tokens)
    load = latency.per_response_s + latency.per_kv_token_s * (prompt + tokens)
    root_load = remaining.root_load(response, tokens, latency.per_response_s, latency.per_kv_token_s)
    left_s = time_left_s(price, latency.base_s, max_tokens, root_load)
    values = token_value(left_s, latency.base_s, load, max_tokens, root_load)
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
        load=load,
        token_value=values,
        reserved=reserved,
        actor_load=per_actor(load),
        actor_token_value=per_actor(values),
        count=np.bincount(owner, minlength=len(actors)).astype(np.int64),
        slots=slots.copy(),
        memory=latency.kv_capacity_tokens - per_actor(reserved),
        left_s=left_s,
        latency=latency,
    )
