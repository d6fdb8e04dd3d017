"""Learning in pieces on shared cores: bounds, an independent schedule, and what may be chosen."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from error_messages import refused
from hypothesis import given, settings
from hypothesis import strategies as st

import solver
from solver.stage_fusion.pieces import GAIN, PieceCosts, choose_pieces
from solver.stage_fusion.shared_cores import CoreContention, follow_on_cores

LATENCY = solver.LatencyModel("mine", 1, base_s=0.01, per_response_s=1e-3, max_batch=64)
numbers = st.floats(0.01, 5.0)


@st.composite
def steps(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Needs of pieces on actors, when these are done, and seconds of pieces."""
    actors, pieces = draw(st.integers(1, 3)), draw(st.integers(1, 5))
    free_s = np.array(draw(st.lists(numbers, min_size=actors, max_size=actors)))
    share = draw(st.lists(st.floats(0.0, 1.0), min_size=actors * pieces, max_size=actors * pieces))
    seconds = draw(st.lists(numbers, min_size=pieces, max_size=pieces))
    return np.array(share).reshape(pieces, actors) * free_s, free_s, np.array(seconds)


@given(steps(), st.integers(1, 4), st.booleans(), st.floats(0.0, 1.0))
@settings(max_examples=60)
def test_a_step_lies_between_its_bounds(step: Any, cores: int, freed: bool, join_s: float) -> None:
    needs_s, free_s, seconds = step
    found = follow_on_cores(needs_s, free_s, seconds, cores, freed=freed, join_s=join_s)
    work_s = free_s.sum() + seconds.sum()
    least_s = max(work_s / cores, free_s.max(), float((needs_s.max(axis=1) + seconds).max()))
    assert found.time_s >= least_s - 1e-9
    assert found.time_s <= work_s + join_s * len(free_s) + 1e-9
    assert 0.0 <= found.learns_from_s <= found.time_s
    if cores == 1 and not freed:
        assert found.time_s == pytest.approx(work_s)


@given(steps())
@settings(max_examples=40)
def test_with_a_core_for_everybody_pieces_follow_one_another(step: Any) -> None:
    needs_s, free_s, seconds = step
    ready, left, now_s = needs_s.max(axis=1), set(range(len(seconds))), 0.0
    while left:
        now_s = max(now_s, min(ready[i] for i in left))
        piece = min(i for i in left if ready[i] <= now_s + 1e-12)
        left.remove(piece)
        now_s += seconds[piece]
    found = follow_on_cores(needs_s, free_s, seconds, 99, freed=False)
    assert found.time_s == pytest.approx(max(now_s, free_s.max()))


def chosen(lengths: list[int], costs: PieceCosts, cores: int, actors: int, weight: float = 0.7, gain: float = GAIN) -> Any:
    workload = solver.Workload([10] * len(lengths), range(len(lengths)), lengths)
    problem = solver.PlanningProblem(workload, solver.Cluster(1, actors, 1), LATENCY, solver.Objective(weight))
    return choose_pieces(solver.random_split(problem, actors=actors), problem, costs, cores, gain=gain)


@given(
    st.lists(st.integers(1, 400), min_size=2, max_size=12), st.floats(0.0, 1.0), st.floats(1.0, 3.0), st.integers(1, 4),
    st.integers(1, 2),
)  # fmt: skip
@settings(max_examples=40)
def test_pieces_earn_their_place(lengths: list[int], fixed_s: float, slower: float, cores: int, actors: int) -> None:
    plan = chosen(lengths, PieceCosts(1e-3, fixed_s, 1e-3 * slower, 0.1), cores, actors)
    for one in plan.candidates:
        assert sorted(prompt for piece in one.pieces for prompt in piece) == list(range(len(lengths)))
    assert plan.chosen is plan.batch or plan.chosen.value < (1.0 - GAIN) * plan.batch.value
    if cores == 1:
        assert plan.chosen is plan.batch, "pieces only add work where one core does everything"


def test_a_free_core_is_used_and_costly_pieces_are_not() -> None:
    tailed = [50, 60, 70, 80, 900]
    assert len(chosen(tailed, PieceCosts(0.01, 0.01, 0.01), 2, 1, gain=0.03).chosen.pieces) > 1
    assert len(chosen(tailed, PieceCosts(0.01, 9.0, 0.01), 2, 1).chosen.pieces) == 1
    joined = chosen([100] * 8, PieceCosts(0.01, 0.01, 0.01, 0.01), 2, 2, weight=1.0)
    assert joined.chosen.freed, "two cores learn sooner than one"
    assert "whole batch" in repr(joined)


def test_pieces_are_left_off_where_actors_are_slower_beside_the_learner() -> None:
    """Devices of their own have a factor of 1. With 1.2 the same pieces no longer bring what they have to."""
    lengths, costs = [60, 80, 100, 120, 140, 160, 180, 200] * 2, PieceCosts(1e-3, 0.01, 1.5e-3)
    workload = solver.Workload([10] * 16, range(16), lengths)
    problem = solver.PlanningProblem(workload, solver.Cluster(1, 1, 1), LATENCY, solver.Objective(0.7))
    split = solver.random_split(problem, actors=1)

    def planned(factor: float) -> Any:
        return choose_pieces(split, problem, costs, 2, contention=CoreContention(factor, factor))

    assert len(planned(1.0).chosen.pieces) > 1
    beside = planned(1.2)
    assert beside.chosen is beside.batch
    assert beside.batch.time_s == pytest.approx(planned(1.0).batch.time_s), "the whole batch is beside nobody"


@given(steps(), st.integers(1, 4), st.floats(1.0, 2.0), st.floats(1.0, 2.0))
@settings(max_examples=40)
def test_contention_only_lengthens_a_step_and_at_most_by_its_factor(
    step: Any, cores: int, decoding: float, learning: float
) -> None:
    needs_s, free_s, seconds = step
    alone = follow_on_cores(needs_s, free_s, seconds, cores, freed=False).time_s
    slower = follow_on_cores(needs_s, free_s, seconds, cores, freed=False, contention=CoreContention(decoding, learning)).time_s
    assert slower <= (free_s.sum() * decoding + seconds.sum() * learning) + 1e-9
    assert slower >= max(free_s.max(), alone / max(decoding, learning)) - 1e-9


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"contention": 1.2}, ("contention", "1.2", "CoreContention")),
        ({"costs": 3}, ("costs", "3", "PieceCosts")),
        ({"cores": 0}, ("cores", "0", "1 or more")),
        ({"gain": 1.0}, ("gain", "1.0", "below 1")),
    ],
)
def test_bad_arguments_are_refused(changes: dict[str, Any], named: tuple[str, ...]) -> None:
    workload = solver.Workload([10], [0], [50])
    problem = solver.PlanningProblem(workload, solver.Cluster(1, 1, 1), LATENCY, solver.Objective(0.7))
    given_ones: dict[str, Any] = {"costs": PieceCosts(1e-3, 0.0, 1e-3), "cores": 2, **changes}
    with refused(solver.PlanningError, *named):
        choose_pieces(solver.random_split(problem, actors=1), problem, **given_ones)
    with refused(solver.PlanningError, "fixed_s", "-1"):
        PieceCosts(1e-3, -1, 1e-3)
    with refused(solver.PlanningError, "decoding", "0.5", "1 or more"):
        CoreContention(decoding=0.5)
    with refused(solver.PlanningError, "decode_scale", "0", "above 0"):
        CoreContention(decode_scale=0)
