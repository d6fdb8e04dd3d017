"""The list scheduler of work beside decoding: against a slow event simulation, and its invariants on random instances."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from error_messages import refused
from hypothesis import given, settings
from hypothesis import strategies as st

from solver import PlanningError
from solver.timing.work_schedule import NO_GATE, WorkItems, WorkSchedule, schedule_work


def random_case(seed: int) -> tuple[WorkItems, np.ndarray, np.ndarray]:
    """Prepared responses, their groups' gradients and a last item, in one or two places; whole seconds, so that ties occur."""
    rng = np.random.default_rng(seed)
    responses, groups, places = int(rng.integers(1, 12)), int(rng.integers(1, 4)), int(rng.integers(1, 3))
    group = rng.integers(0, groups, responses)
    learned = np.unique(group)
    seconds = rng.integers(0, 6, responses + len(learned) + 1).astype(float)
    ready = np.concatenate([rng.integers(0, 10, responses), np.zeros(len(learned) + 1)])
    items = WorkItems(
        seconds,
        ready,
        waits_for=[*[NO_GATE] * responses, *learned, groups],
        counts_for=[*group, *[groups] * len(learned), NO_GATE],
        place=[*[0] * responses, *[places - 1] * (len(learned) + 1)],
        priority=rng.integers(0, 3, len(seconds)),
    )
    place = np.arange(int(rng.integers(places, 5))) % places
    free = np.where(rng.random(len(place)) < 0.5, -math.inf, rng.integers(0, 8, len(place)))
    return items, free, place


def by_event_simulation(items: WorkItems, free_s: np.ndarray, place: np.ndarray) -> list[tuple[int, float, float]]:
    """Go through whole and half seconds, and start at each whatever may start: server, start and end of every item."""
    found: dict[int, tuple[int, float, float]] = {}
    busy_until: dict[int, float] = {}
    now = -math.inf
    while len(found) < len(items):
        for gate_round in range(len(items) + 1):  # items of no seconds open gates at once
            started: list[tuple[int, int]] = []
            for p in sorted(set(place.tolist())):
                ready = [
                    i for i in range(len(items))
                    if i not in found and items.place[i] == p and items.ready_s[i] <= now and _open(items, found, i, now)
                ]  # fmt: skip
                ready.sort(key=lambda i: (items.priority[i], _ready_since(items, found, i), i))
                idle = [s for s in np.flatnonzero(place == p) if max(free_s[s], busy_until.get(s, -math.inf)) <= now]
                idle.sort(key=lambda s: (s not in busy_until, busy_until.get(s, free_s[s]), s))
                started += zip(ready, idle, strict=False)
            for item, server in started:
                found[item] = (server, now, now + items.seconds[item])
                busy_until[server] = now + items.seconds[item]
            if not started:
                break
            assert gate_round < len(items)
        now = 0.0 if now == -math.inf else now + 0.5
    return [found[i] for i in range(len(items))]


def _open(items: WorkItems, found: dict[int, tuple[int, float, float]], item: int, now: float) -> bool:
    gate = items.waits_for[item]
    return gate == NO_GATE or all(i in found and found[i][2] <= now for i in np.flatnonzero(items.counts_for == gate))


def _ready_since(items: WorkItems, found: dict[int, tuple[int, float, float]], item: int) -> float:
    gate = items.waits_for[item]
    opened = -math.inf if gate == NO_GATE else max(found[i][2] for i in np.flatnonzero(items.counts_for == gate))
    return max(float(items.ready_s[item]), opened)


def test_it_does_what_a_simulation_event_by_event_does() -> None:
    for seed in range(500):
        items, free, place = random_case(seed)
        schedule = schedule_work(items, free, place)
        expected = by_event_simulation(items, free, place)
        assert list(zip(schedule.start_s, schedule.end_s, strict=True)) == [(s, e) for _, s, e in expected], seed
        assert schedule.server.tolist() == [server for server, _, _ in expected], seed


jobs = st.lists(st.tuples(st.floats(0, 100), st.floats(0.001, 20)), min_size=1, max_size=30)


@given(jobs, st.integers(1, 5))
@settings(deadline=None)
def test_no_item_is_lost_and_no_server_idles_while_one_waits(jobs: list[Any], servers: int) -> None:
    ready, takes = np.array(jobs).T
    schedule = schedule_work(WorkItems(takes, ready), np.full(servers, -math.inf))
    intervals = schedule.intervals()
    assert sorted(item for s in intervals for item in s.items) == list(range(len(jobs)))
    assert {s.server for s in intervals} == set(range(len({s.server for s in intervals})))
    assert (schedule.start_s >= ready).all()
    for s in intervals:
        assert s.end_s - s.start_s == pytest.approx(takes[s.items].sum())
    for server in {s.server for s in intervals}:
        of_server = [s for s in intervals if s.server == server]
        assert all(a.end_s < b.start_s for a, b in itertools.pairwise(of_server))
    if servers == 1:  # Lindley's recursion
        free = 0.0
        for row in np.argsort(ready, kind="stable"):
            free = max(free, ready[row]) + takes[row]
        assert schedule.finished_s == pytest.approx(free)


def test_a_second_server_is_taken_only_while_the_first_is_busy() -> None:
    schedule = schedule_work(WorkItems([1.0, 2.0, 1.0, 1.0], [0.0, 1.0, 1.5, 9.0]), np.full(3, -math.inf))
    assert [(s.server, s.start_s, s.end_s, s.items) for s in schedule.intervals()] == [
        (0, 0.0, 3.0, [0, 1]), (1, 1.5, 2.5, [2]), (1, 9.0, 10.0, [3]),
    ]  # fmt: skip


def test_a_groups_gradient_waits_for_its_group_only() -> None:
    """Two groups of two responses on one learner: the first group's gradient runs while the second is still decoded."""
    waits_for, counts_for = [-1, -1, -1, -1, 0, 1], [0, 0, 1, 1, -1, -1]
    items = WorkItems([1, 1, 1, 1, 3, 3], [2, 4, 9, 20, 0, 0], waits_for, counts_for)
    schedule = schedule_work(items, [0.0])
    assert schedule.start_s.tolist() == [2, 4, 9, 20, 5, 21]
    assert schedule.finished_s == 24


def test_an_item_that_several_wait_for_counts_for_several_gates() -> None:
    """Weights are loaded, two responses prepared after that, and a group learned from after all three."""
    items = WorkItems([3, 1, 2, 4], waits_for=[-1, 0, 0, 1], counts_for=[(0, 0), (0, 1), (1, 1), (2, 1), (2, 1)])
    assert schedule_work(items, [0.0, 0.0]).start_s.tolist() == [0, 3, 3, 5]
    for seed in range(50):
        given, free, place = random_case(seed)
        pairs = [(i, gate) for i, gate in enumerate(given.counts_for.tolist()) if gate != NO_GATE]
        same = WorkItems(
            given.seconds, given.ready_s, given.waits_for, np.array(pairs).reshape(-1, 2), given.place, given.priority
        )
        expected = schedule_work(given, free, place)
        assert schedule_work(same, free, place).start_s.tolist() == expected.start_s.tolist()


def test_nothing_to_do_is_a_schedule_of_nothing() -> None:
    schedule = schedule_work(WorkItems([]), [0.0])
    assert isinstance(schedule, WorkSchedule)
    assert schedule.intervals() == []
    assert schedule.finished_s == -math.inf


WRONG = {
    "negative": (lambda: WorkItems([1.0, -2.0]), ("item 1", "-2")),
    "infinite": (lambda: WorkItems([1.0, math.inf]), ("item 1", "inf")),
    "not a number": (lambda: WorkItems([1.0], ready_s=[math.nan]), ("ready_s", "nan")),
    "another length": (lambda: WorkItems([1.0, 1.0], ready_s=[0.0, 0.0, 0.0]), ("ready_s", "(3,)")),
    "text": (lambda: WorkItems("abc"), ("seconds", "'abc'")),
    "half a place": (lambda: WorkItems([1.0], place=[0.5]), ("place",)),
    "unknown gate": (lambda: WorkItems([1.0], waits_for=[3]), ("item 0", "gate 3")),
    "no such item": (lambda: WorkItems([1.0], counts_for=[(2, 0)]), ("item 2", "0 to 0")),
    "no server": (lambda: schedule_work(WorkItems([1.0], place=1), [0.0]), ("item 0", "place 1")),
    "server without time": (lambda: schedule_work(WorkItems([1.0]), [math.nan]), ("server 0",)),
    "circle": (lambda: schedule_work(WorkItems([1.0, 1.0], waits_for=[0, 1], counts_for=[1, 0]), [0.0]), ("circle",)),
}


@pytest.mark.parametrize("case", WRONG)
def test_bad_input_is_one_sentence(case: str) -> None:
    make, named = WRONG[case]
    with refused(PlanningError, *named):
        make()
