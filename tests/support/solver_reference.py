"""The slow truth that the solver is tested against: one actor iteration by iteration, and every plan of a small workload.

Written from the rule in the docstring of ``solver.model.admission`` and from the definition of a plan; shares no code with the
solver except the latency model and the objective.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import solver
from solver.model.admission import Admission


def simulate(
    remaining: Sequence[int],
    context: Sequence[int],
    most: Sequence[int],
    cached_tokens: Sequence[int],
    latency: solver.LatencyModel,
    admission: Admission,
    running: int = 0,
    passes: tuple[Sequence[float], Sequence[float]] | None = None,
) -> tuple[list[tuple[int, int, int, int, int]], list[float]]:
    """Visits (response, first, last, context, prefill), sorted, and the completion time of every response.

    ``cached_tokens`` of each context need no prefill. The first ``running`` responses are in the batch before the first
    iteration. ``passes``: tokens by which each response grows per iteration, and that each feeds; 1 and 1 without.
    """
    growth, feeds = passes or ([1] * len(remaining), [1] * len(remaining))
    left, ctx = list(remaining), list(context)
    to_compute = [tokens - there for there, tokens in zip(cached_tokens, ctx, strict=True)]
    queue = deque(i for i in range(running, len(left)) if left[i] > 0)
    visits = [(i, 0, 0, ctx[i], to_compute[i]) for i in range(len(left)) if left[i] == 0]
    # (response, iteration in which it joined, context then), oldest first
    batch = [(i, 0, ctx[i]) for i in range(running) if left[i] > 0]
    end = [0.0] * len(left)
    now, clock = 0, 0.0

    def held(responses: Sequence[int]) -> int:
        return sum(most[i] if admission.rule == "reserve" else ctx[i] for i in responses)

    while queue or batch:
        evicted = False
        while admission.rule == "preempt" and len(batch) > 1 and held([i for i, *_ in batch]) > admission.kv_capacity_tokens:
            youngest, first, joined_with = batch.pop()
            visits.append((youngest, first, now, joined_with, to_compute[youngest]))
            to_compute[youngest] = ctx[youngest]
            queue.appendleft(youngest)
            evicted = True
        newcomers: list[int] = []
        while queue and not evicted and len(batch) < admission.max_batch:
            if held([*(i for i, *_ in batch), queue[0]]) > admission.kv_capacity_tokens:
                break
            newcomers.append(queue.popleft())
            batch.append((newcomers[-1], now, ctx[newcomers[-1]]))
        tokens = sum(to_compute[i] for i in newcomers)
        clock += float(latency.prefill_s(tokens)) if tokens else 0.0
        fed, kv_tokens = sum(feeds[i] for i, *_ in batch), sum(ctx[i] for i, *_ in batch)
        clock += float(latency.iteration_s(fed, kv_tokens)) + latency.join_s * len(newcomers)
        now += 1
        for i, first, joined_with in batch:
            ctx[i] += growth[i]
            left[i] -= 1
            if left[i] == 0:
                end[i] = clock
                visits.append((i, first, now, joined_with, to_compute[i]))
        batch = [visit for visit in batch if left[visit[0]] > 0]
    return sorted(visits), end


class MixedRun(NamedTuple):
    """What ``simulate_mixed`` finds: visits (response, first, ready, last, context, prefill) and chunks (iteration, response,
    tokens), both sorted; fed tokens of each iteration; the completion time of every response."""

    visits: list[tuple[int, int, int, int, int, int]]
    chunks: list[tuple[int, int, int]]
    fed: list[int]
    end_s: list[float]


@dataclass
class _Visit:
    response: int
    first: int
    prefill: int
    missing: int
    ready: int | None = None
    context: int = 0


def simulate_mixed(
    remaining: Sequence[int],
    context: Sequence[int],
    most: Sequence[int],
    cached_tokens: Sequence[int],
    latency: solver.LatencyModel,
    admission: Admission,
    running: int = 0,
) -> MixedRun:
    """``simulate`` with mixed prefill, from the rule in the docstring of ``solver.timing.batching``."""
    left, ctx = list(remaining), list(context)
    to_compute = [tokens - there for there, tokens in zip(cached_tokens, ctx, strict=True)]
    queue = deque(i for i in range(running, len(left)) if left[i] > 0)
    visits = [(i, 0, 0, 0, ctx[i], to_compute[i]) for i in range(len(left)) if left[i] == 0]
    batch = [_Visit(i, 0, to_compute[i], to_compute[i]) for i in range(running) if left[i] > 0]
    end, chunks, fed = [0.0] * len(left), [], []
    now, clock = 0, 0.0

    def held(responses: Sequence[int]) -> int:
        return sum(most[i] if admission.rule == "reserve" else ctx[i] for i in responses)

    def leaves(visit: _Visit, at: int) -> None:
        ready, joined_with = (at, ctx[visit.response]) if visit.ready is None else (visit.ready, visit.context)
        visits.append((visit.response, visit.first, ready, at, joined_with, visit.prefill))

    while queue or batch:
        evicted = False
        while admission.overflows(len(batch), held([v.response for v in batch])):
            visit = batch.pop()
            leaves(visit, now)
            to_compute[visit.response] = ctx[visit.response]
            queue.appendleft(visit.response)
            evicted = True
        decodes = [v for v in batch if v.ready is not None]
        room, newcomers, prompts = latency.token_budget - len(decodes), 0, 0
        feeding = [v for v in batch if v.ready is None]
        while room:
            if not feeding:
                if not queue or evicted or len(batch) >= admission.max_batch:
                    break
                if batch and held([*(v.response for v in batch), queue[0]]) > admission.kv_capacity_tokens:
                    break
                i = queue.popleft()
                feeding.append(_Visit(i, now, to_compute[i], to_compute[i]))
                batch.append(feeding[0])
                newcomers += 1
            visit = feeding.pop(0)
            tokens = min(max(visit.missing, 1), room)
            room -= tokens
            if visit.missing:
                chunks.append((now, visit.response, tokens))
            if tokens >= visit.missing:
                visit.ready, visit.context = now, ctx[visit.response]
                decodes.append(visit)
            prompts += tokens - (visit.ready is not None)
            visit.missing -= min(tokens, visit.missing)
        fed.append(latency.token_budget - room)
        clock += float(latency.iteration_s(len(decodes), sum(ctx[v.response] for v in decodes), prompts))
        clock += latency.join_s * newcomers
        now += 1
        for visit in decodes:
            i = visit.response
            ctx[i] += 1
            left[i] -= 1
            if left[i] == 0:
                end[i] = clock
                leaves(visit, now)
        batch = [v for v in batch if left[v.response] > 0]
    return MixedRun(sorted(visits), sorted(chunks), fed, end)


def partitions(count: int, most_groups: int) -> Iterator[list[list[int]]]:
    """All ways to put ``count`` responses into at most ``most_groups`` groups, none of them empty."""

    def place(i: int, groups: list[list[int]]) -> Iterator[list[list[int]]]:
        if i == count:
            yield [list(group) for group in groups]
            return
        for group in groups:
            group.append(i)
            yield from place(i + 1, groups)
            group.pop()
        if len(groups) < most_groups:
            yield from place(i + 1, [*groups, [i]])

    return place(0, [])


class EveryPlan:
    """Makespan and GPU-seconds of every plan of a small workload whose actors start at once and are released when done.

    Of all admission orders of a group only the fastest is kept: any other order is later and dearer.
    """

    def __init__(
        self, workload: solver.Workload, cluster: solver.Cluster, latency: solver.LatencyModel, admission: Admission
    ) -> None:
        self.workload, self.latency, self.admission = workload, latency, admission
        self._busy_s: dict[tuple[int, ...], float] = {}
        self.plans = [
            (groups, max(times), cluster.gpus_per_actor * sum(times))
            for groups in partitions(len(workload), cluster.max_actors)
            for times in [[self.busy_s(tuple(group)) for group in groups]]
        ]

    def busy_s(self, group: tuple[int, ...]) -> float:
        """Seconds from taking an actor's GPUs until ``group`` is complete, in its fastest admission order."""
        if group not in self._busy_s:
            ready = self.latency.start_s + self.latency.sync_s
            self._busy_s[group] = ready + min(self._run(order) for order in self._orders(group))
        return self._busy_s[group]

    def _orders(self, group: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        at_once = (
            not self.latency.mixes
            and len(group) <= self.admission.max_batch
            and (sum(int(self.workload.reserved_tokens[i]) for i in group) <= self.admission.kv_capacity_tokens)
        )
        return iter([group]) if at_once else itertools.permutations(group)

    def _run(self, order: tuple[int, ...]) -> float:
        work, chosen = self.workload, list(order)
        columns = (work.iterations[chosen], work.context_tokens[chosen], work.reserved_tokens[chosen])
        arguments = (*(c.tolist() for c in columns), [0] * len(order), self.latency, self.admission)
        if self.latency.mixes:
            return max(simulate_mixed(*arguments).end_s)
        passes = None if work.passes is None else (work.tokens_per_pass[chosen].tolist(), work.fed_per_pass[chosen].tolist())
        return max(simulate(*arguments, passes=passes)[1])

    def optimum(self, objective: solver.Objective, phases: solver.NonGenerationPhases, reference: tuple[float, float]) -> float:
        """The least value of any plan; infinite when none keeps the limit."""
        return min(objective.value(phases.step_time_s(t), phases.step_gpu_s(t, gpu_s), reference) for _, t, gpu_s in self.plans)

    def contiguous_optimum(
        self, objective: solver.Objective, phases: solver.NonGenerationPhases, reference: tuple[float, float]
    ) -> float:
        """The least value of plans whose groups are contiguous in the order of falling length."""
        rank = sorted(range(len(self.workload)), key=lambda i: -int(self.workload.remaining_tokens[i]))
        place = {response: position for position, response in enumerate(rank)}
        return min(
            objective.value(phases.step_time_s(t), phases.step_gpu_s(t, gpu_s), reference)
            for groups, t, gpu_s in self.plans
            if all(max(g) - min(g) == len(g) - 1 for g in ([place[i] for i in group] for group in groups))
        )
