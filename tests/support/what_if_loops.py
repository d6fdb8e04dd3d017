"""Training loops that are simulated one decode iteration at a time, to compare ways to generate and to learn with.

They know nothing of the library: an actor commits iterations one after another, and whoever waits for something looks after
every iteration whether it is there. Times are of ``BRUTE``, whose seconds are exact in binary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from solver.model.latency import LatencyModel

BRUTE = LatencyModel(
    "one at a time", 1, base_s=1 / 2, per_response_s=1 / 8, per_kv_token_s=1 / 1024, prefill_base_s=1 / 4,
    prefill_per_token_s=1 / 64, join_s=1 / 32, start_s=1 / 2, sync_s=1 / 4, max_batch=3,
)  # fmt: skip

Steps = Sequence[Sequence[tuple[int, Sequence[int]]]]
"""Prompts of every step: tokens of the prompt, and of each of its responses."""


@dataclass(eq=False)
class Response:
    """A response and the weights that generated each of its tokens."""

    prompt_tokens: int
    length: int
    versions: list[int] = field(default_factory=list)
    complete_s: float = -math.inf  # in the generation that completed it

    @property
    def complete(self) -> bool:
        return len(self.versions) == self.length


class Group(list[Response]):
    """The responses to one prompt."""

    learned_by: int | None = None
    dropped = False

    @property
    def complete(self) -> bool:
        return all(one.complete for one in self)

    @property
    def complete_s(self) -> float:
        return max(one.complete_s for one in self)


def groups_of(steps: Steps) -> list[list[Group]]:
    return [[Group(Response(tokens, length) for length in lengths) for tokens, lengths in step] for step in steps]


class Actor:
    """Continuous batching, one iteration at a time."""

    def __init__(self, responses: list[Response], now_s: float) -> None:
        self.queue, self.running = responses, list[Response]()
        self.end_s = now_s
        self._begin()

    def _begin(self) -> None:
        joins = self.queue[: BRUTE.max_batch - len(self.running)]
        self.queue = self.queue[len(joins) :]
        self.running += joins
        contexts = [one.prompt_tokens + len(one.versions) for one in self.running]
        if not self.running:
            self.end_s = math.inf
            return
        prefill = sum(one.prompt_tokens + len(one.versions) for one in joins)
        self.end_s += BRUTE.join_s * len(joins) + (BRUTE.prefill_base_s + BRUTE.prefill_per_token_s * prefill if joins else 0.0)
        self.end_s += BRUTE.base_s + BRUTE.per_response_s * len(contexts) + BRUTE.per_kv_token_s * sum(contexts)

    def commit(self, version: int) -> None:
        for one in self.running:
            one.versions.append(version)
            if one.complete:
                one.complete_s = self.end_s
        self.running = [one for one in self.running if not one.complete]
        self._begin()


def started(groups: Sequence[Group], actors: int, now_s: float) -> list[Actor]:
    """Whole groups, each to the actor with the fewest responses so far, after the start of the actors."""
    dealt: list[list[Response]] = [[] for _ in range(actors)]
    for group in groups:
        min(dealt, key=len).extend(one for one in group if not one.complete)
    return [Actor(responses, now_s + BRUTE.start_s + BRUTE.sync_s) for responses in dealt if responses]


def generate(groups: Sequence[Group], actors: int, version: int, stop: Callable[[float], bool], now_s: float = 0.0) -> float:
    """Commit iterations until ``stop`` is true after one, or nothing is left; return that time."""
    for one in (one for group in groups for one in group if one.complete):
        one.complete_s = 0.0
    live = started(groups, actors, now_s)
    while not stop(now_s) and live and (end_s := min(actor.end_s for actor in live)) < math.inf:
        now_s = end_s
        for actor in live:
            if actor.end_s == end_s:
                actor.commit(version)
    return now_s


def _enough(groups: Sequence[Group], enough: int, _: float) -> bool:
    return sum(group.complete for group in groups) >= enough


def _few_left(groups: Sequence[Group], unfinished: int, _: float) -> bool:
    left = sum(not one.complete for group in groups for one in group)
    return left <= unfinished and any(group.complete for group in groups)


@dataclass
class Loop:
    """A run: actors, seconds of learning a step on the learner's GPUs, and of sending weights."""

    steps: Steps
    actors: int
    learn_s: float
    sync_s: float

    def __post_init__(self) -> None:
        self.groups = groups_of(self.steps)
        self.started: list[Group] = []  # in the steps that count
        self.earlier: list[Group] = []  # before them, and not learned by then
        self.first = 0
        self.mean_tokens = sum(self._tokens(step) for step in self.groups) / len(self.groups)

    def _tokens(self, groups: Sequence[Group]) -> int:
        return sum(one.prompt_tokens + one.length for group in groups for one in group)

    def update_s(self, groups: Sequence[Group]) -> float:
        return self.learn_s * self._tokens(groups) / self.mean_tokens

    def learn(self, update: int, groups: Sequence[Group]) -> float:
        for group in groups:
            assert group.complete
            assert group.learned_by is None
            group.learned_by = update
        return self.update_s(groups)

    def change(self) -> dict[str, float]:
        groups = self.earlier + self.started
        learned = [(one, group.learned_by) for group in groups for one in group if group.learned_by is not None]
        dropped = [one for group in groups for one in group if group.dropped]
        ages = [update - version for one, update in learned for version in one.versions]
        return {
            "learned_responses": len(learned),
            "learned_tokens": len(ages),
            "stale_tokens": sum(age > 0 for age in ages),
            "most_stale_steps": max([age for age in ages if age > 0], default=0),
            "dropped_responses": len(dropped),
            "dropped_tokens": sum(len(one.versions) for one in dropped),
            "waiting_responses": sum(len(group) for group in groups) - len(learned) - len(dropped),
        }

    # --- generation, then learning ------------------------------------------------------------------------------------------

    def _laps(self, laps: int) -> list[list[Group]]:
        """The steps once more than so often; the last time counts."""
        self.first = laps * len(self.steps)
        return [group for _ in range(laps + 1) for group in groups_of(self.steps)]

    def collected(self, starts: Callable[[int, int], int], completes: Callable[[int, int], int], keep: bool) -> float:
        """Steps that learn from the groups that are complete first; return the seconds of those that count."""
        steps = self._laps(-(-4 // len(self.steps)) if keep else 0)
        pool = [group for _ in range(40) for step in groups_of(self.steps) for group in step]
        left: list[Group] = []
        total_s = 0.0
        for update, step in enumerate(steps):
            if update == self.first:
                self.started, total_s = [], 0.0
                self.earlier = list(left)
            new, pool = pool[: starts(len(step), len(left))], pool[starts(len(step), len(left)) :]
            enough = completes(len(step), len(left))
            groups = left + new
            self.started += new
            now_s = generate(groups, self.actors, update, partial(_enough, groups, enough))
            first = sorted((g for g in groups if g.complete), key=lambda g: g.complete_s)[:enough]
            total_s += now_s + self.learn(update, first) + self.sync_s
            left = [group for group in groups if group.learned_by is None]
            if not keep:
                for group in left:
                    group.dropped = True
                left = []
        return total_s

    def stopped(self, unfinished: Callable[[int], int]) -> float:
        """Steps that stop when few of their responses are left, and learn from all complete groups; seconds as above.

        Args:
            unfinished: responses that may be left, from the number of those that the step starts.
        """
        left: list[Group] = []
        total_s = 0.0
        for update, step in enumerate(self._laps(-(-4 // len(self.steps)))):
            if update == self.first:
                self.started, total_s = [], 0.0
                self.earlier = list(left)
            self.started += step
            groups = left + step
            few = unfinished(sum(map(len, step)))
            now_s = generate(groups, self.actors, update, partial(_few_left, groups, few))
            total_s += now_s + self.learn(update, [group for group in groups if group.complete]) + self.sync_s
            left = [group for group in groups if not group.complete]
        return total_s

    def budgeted(self, token_budget: int) -> float:
        """Steps in which no response generates more tokens than the budget; return the seconds of those that count."""
        left: list[Group] = []
        total_s, update = 0.0, 0
        for step in self._laps(-(-4 // len(self.steps))):
            if update == self.first:
                self.started, total_s = [], 0.0
                self.earlier = list(left)
            self.started += step
            left = left + step
            while True:
                short = [
                    Group(Response(one.prompt_tokens, min(one.length, len(one.versions) + token_budget), list(one.versions))
                          for one in group if not one.complete)
                    for group in left
                ]  # fmt: skip
                total_s += generate([group for group in short if group], self.actors, update, lambda _: False)
                for group, cut in zip(left, short, strict=True):
                    for one, done in zip([one for one in group if not one.complete], cut, strict=True):
                        one.versions = done.versions
                if any(group.complete for group in left):
                    break
            total_s += self.learn(update, [group for group in left if group.complete]) + self.sync_s
            left, update = [group for group in left if not group.complete], update + 1
        return total_s

    # --- at the same time ---------------------------------------------------------------------------------------------------

    def with_interrupts(self, staleness: int) -> float:
        """Updates interrupt all running responses; return when the last one has been sent."""
        now_s, steps = 0.0, self.groups
        for version, batch in enumerate(steps):
            groups = [group for step in steps[version : version + staleness + 1] for group in step]
            self.started += [group for group in groups if not any(group is other for other in self.started)]
            learned_s = now_s + self.update_s(batch) if all(group.complete for group in batch) else math.inf
            live = started(groups, self.actors, now_s)
            while live and (end_s := min(actor.end_s for actor in live)) <= learned_s and end_s < math.inf:
                for actor in live:
                    if actor.end_s == end_s:
                        actor.commit(version)
                if learned_s == math.inf and all(group.complete for group in batch):
                    learned_s = end_s + self.update_s(batch)
            self.learn(version, batch)
            now_s = learned_s + self.sync_s
        return now_s
