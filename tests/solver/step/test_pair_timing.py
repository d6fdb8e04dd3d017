"""Pairs of a generation and a learner, timed as one array, are those of the list scheduler; and which learners are tried."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solver.model.step_levers import LEARNER, OVERLAP, PREWARMING, STREAMING, levers_of_bits
from solver.step import pair_timing
from solver.step.charges import Charges
from solver.step.follow import Generated
from solver.step.learners import Learners, charged, learners_beside, server_counts, servers_per_block
from solver.step.pair_timing import StepItems, pair_totals
from solver.step.work import StepWork
from solver.timing.work_schedule import NO_GATE, WorkItems, schedule_work

SERVERS = 6
seeds = st.integers(0, 2**32 - 1)


def drawn_charges(rng: np.random.Generator) -> Charges:
    return Charges.by_formula(SERVERS, 2, 0.1, float(rng.choice([0, 0.3])), float(rng.choice([0, 0.2])))


@given(seeds, st.sampled_from([1, 2, 4]), st.sampled_from([12_000, 20]))
@settings(max_examples=30, deadline=None)
def test_pairs_timed_together_are_those_of_the_list_scheduler(seed: int, together: int, chunk: int) -> None:
    rng = np.random.default_rng(seed)
    charges, steps, rows = drawn_charges(rng), [], []
    for number in range(4):
        count, actors = int(rng.integers(1, 40)), int(rng.integers(1, SERVERS))
        completion_s, free_s = rng.exponential(5, count), rng.exponential(5, actors)
        free_s[0] = completion_s.max()
        work = StepWork(
            rng.exponential(0.1, count), rng.exponential(0.3, count), rng.integers(0, 4, count), "group", gpus_per_actor=2
        )
        steps.append(StepItems(Generated(completion_s, free_s, 7.0), work, together=together))
        for _ in range(4):
            own = together * int(rng.integers(0, (SERVERS - actors) // together + 1))
            streams, from_s = bool(rng.random() < 0.5), float(rng.choice([0.0, 3.0])) if own else 0.0
            rows.append((number, own, from_s, rng.random() < 0.5, streams, streams or rng.random() < 0.5, actors))
    of, *columns, actors_of = (np.array(column) for column in zip(*rows, strict=True))
    learners = charged(*columns, actors_of, charges)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pair_timing, "CHUNK", chunk)
        found = pair_totals(steps, of, learners)
    for pair, totals in enumerate(found):
        assert totals == pytest.approx(listed(steps[of[pair]], learners.chosen(np.array([pair]))), rel=1e-9)


def listed(step: StepItems, one: Learners) -> tuple[float, float]:
    """Return the totals by ``schedule_work``: preparation of all items, if it overlaps, and then the rest."""
    load_s, own = one.load_s[0], one.own[0] // step.together
    released = [at_s + load_s for at_s in step.free_s] if one.grows[0] or not one.own[0] else []
    free_s = np.array([one.from_s[0] + load_s if one.from_s[0] else 0.0] * own + released)
    prepare_s, learn_s = step.unlocked[1] / step.together, step.unlocked[2] * one.slower[0] / step.together
    first_s, prepared_s = np.full(len(free_s), np.inf), step.makespan_s
    items = WorkItems(prepare_s + learn_s, step.unlocked[0] if one.streams[0] else prepared_s)
    if one.overlaps[0] and not one.streams[0]:
        count = len(learn_s)
        seconds = np.concatenate([step.completed[1] / step.together, learn_s])
        ready = np.concatenate([step.completed[0], np.full(count, step.makespan_s)])
        waits, counts = np.repeat([NO_GATE, 0], count), np.repeat([0, NO_GATE], count)
        items = WorkItems(seconds, ready, waits_for=waits, counts_for=counts)
    schedule = schedule_work(items, free_s)
    np.minimum.at(first_s, schedule.server, schedule.start_s)
    finish_s = one.finish_s[0]
    end_s = max(schedule.finished_s, float(free_s.max())) + finish_s
    held_s = one.own[0] * (end_s - one.from_s[0])
    started = np.isfinite(first_s[own:])
    released_s = np.where(started, end_s - np.where(started, first_s[own:], 0.0), finish_s) + load_s
    held_s += float(released_s.sum()) * step.actors / len(step.free_s)
    return end_s, step.gpu_s + step.gpus * held_s


def test_servers_that_are_counted_together_are_free_when_the_last_of_them_is() -> None:
    work, completion_s, free_s = StepWork([1.0], [2.0], [0]), np.array([9.0]), np.array([9.0, 1.0, 4.0, 2.0, 5.0])
    assert StepItems(Generated(completion_s, free_s, 1.0), work, together=2).free_s.tolist() == [2.0, 5.0, 9.0]
    assert StepItems(Generated(completion_s, free_s, 1.0), work).free_s.tolist() == [1.0, 2.0, 4.0, 5.0, 9.0]


def test_blocks_keep_all_work_and_the_order() -> None:
    rng = np.random.default_rng(0)
    work = StepWork(rng.exponential(1, 100), rng.exponential(2, 100), np.arange(100) // 4, "group")
    completion_s = rng.exponential(5, 100)
    step = StepItems(Generated(completion_s, np.array([completion_s.max()]), 1.0), work, blocks=7)
    ready_s, prepare_s, learn_s = step.unlocked
    assert len(ready_s) == 7
    assert (np.diff(ready_s) >= 0).all()
    assert (prepare_s.sum(), learn_s.sum()) == pytest.approx((work.prepare_s.sum(), work.learn_s.sum()))
    assert ready_s.max() <= work.unlocked_s(completion_s).max()


@given(st.integers(1, 20), st.data())
def test_learners_that_are_tried_fit_and_begin_with_all_servers_after_generation(servers: int, data: st.DataObject) -> None:
    actors = data.draw(st.integers(1, servers))
    possible = data.draw(st.lists(st.booleans(), min_size=servers, max_size=servers))
    possible[-1] = True
    slower = tuple(1.0 if one else float("inf") for one in possible)
    charges = Charges(slower, (0.0,) * servers, (0.5,) * servers)
    generation_s = np.array([4.0, 0.3])
    found = learners_beside(actors, servers, generation_s, charges)
    each = len(found) // 2
    left = servers - actors
    assert (found.own[0], found.from_s[0], found.servers[0]) == (left, 4.0 if left else 0.0, servers)
    for number in range(len(found)):
        own, from_s = int(found.own[number]), float(found.from_s[number])
        assert charges.fits(int(found.servers[number]))
        assert found.servers[number] == own + (actors if found.grows[number] else 0) <= servers
        assert found.one(number).servers(actors) == found.servers[number]
        assert 0 <= from_s <= generation_s[number // each]
        assert from_s == 0 or own
    assert (found.own[:each] == found.own[each:]).all()
    streams = {int(own) for own in found.own[found.streams]}
    assert streams <= {0, *server_counts(servers - actors)}


def test_what_a_learner_uses_is_named() -> None:
    columns = np.array([3, 1, 1, 0]), np.array([4.0, 4.0, 2.0, 0.0]), np.array([True, False, True, True])
    streams, overlaps = np.array([False, False, True, False]), np.array([False, True, True, True])
    found = charged(*columns, streams, overlaps, np.full(4, 2), Charges.by_formula(5))
    named = [levers_of_bits(bits) for bits in found.levers(5, np.full(4, 4.0)).tolist()]
    assert named == [set(), {LEARNER, OVERLAP}, {LEARNER, OVERLAP, STREAMING, PREWARMING}, {LEARNER, OVERLAP}]


@pytest.mark.parametrize(("servers", "block"), [(1, 1), (16, 1), (17, 2), (32, 2), (33, 3)])
def test_at_most_sixteen_counts_of_servers_are_tried(servers: int, block: int) -> None:
    assert servers_per_block(servers) == block
    counts = server_counts(servers, 5)
    assert len(counts) <= 18
    assert counts[-1] == servers
    assert (5 in counts) == (servers >= 5)
