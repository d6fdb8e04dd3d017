"""The bound on whole steps with all optimisations, the charges of a learner, and the end of learning on every server."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from error_messages import refused
from hypothesis import given, settings
from hypothesis import strategies as st
from whole_step_runs import whole_step_run

import solver
from solver import PlanningError
from solver.bounds.bound import LeastBound
from solver.bounds.schedules import ScheduleBound
from solver.step.bound import phase_bound_s, whole_step_bound
from solver.step.charges import Charges
from solver.step.follow import follow
from solver.step.work import BESIDE_DECODING, Learner, StepWork

seeds = st.integers(0, 2**32 - 1)
PAID = Charges.by_formula(2, 1, 0.1, load_s=0.25, gradient_s=0.5)


@given(seeds, st.booleans())
@settings(deadline=None, max_examples=16)
def test_no_executed_step_is_below_the_bound_and_planned_steps_are_executed(seed: int, sized: bool) -> None:
    run = whole_step_run(seed, sized)
    assert run.ratio <= 1 + 1e-9
    assert run.recorded == pytest.approx(run.totals, rel=1e-9)


@pytest.mark.nightly
def test_no_executed_step_is_below_the_bound_in_2000_runs() -> None:
    ratios = [whole_step_run(seed, sized=not seed % 3).ratio for seed in range(100, 2100)]
    assert max(ratios) <= 1 + 1e-9
    assert max(ratios) > 0.99, "the bound is met nearly"


@pytest.mark.parametrize(
    ("charges", "actors", "time_s", "after_s", "beside_s", "servers"),
    [
        (PAID, 2, 9.0, 5.0, 4 + 6 + 0.25, 1),
        (Charges.by_formula(2, 1, 0.1, load_s=5.0, gradient_s=0.5), 2, 9.0, 5.0, 4 + 6 + 0.9, 1),
        (PAID, 2, 7.0, 0.5 + 2 + 3 / 0.9, 4 + 6 / 0.9 + 2 * (0.5 + 0.25), 2),
        (Charges.by_formula(2, 2, 0.1, load_s=0.25, gradient_s=0.0), 2, 6.0, 5.0, 4 + 6 + 2 * 0.25, 2),
        (PAID, 1, 12.0, 5.0, 4 + 6 + 0.25, 1),
        (Charges((2.0, 1.5), (0.8, 0.1), (0.9, 0.25)), 2, 30.0, 0.1 + 2 + 4.5, 4 + 9 + 0.1 + 0.25, 1),
    ],
)
@pytest.mark.parametrize("gpus", [1, 2])
def test_the_bound_is_the_sum_of_its_terms_for_two_equal_responses(
    charges: Charges, actors: int, time_s: float, after_s: float, beside_s: float, servers: int, gpus: int
) -> None:
    work, generation = _two_responses(actors, gpus)
    bound = whole_step_bound(generation, replace(work, charges=charges))
    value = generation.gpu_seconds(time_s - after_s) + gpus * beside_s
    assert bound.gpu_seconds(time_s) == pytest.approx(value, rel=1e-9)
    assert bound.with_servers(time_s)[1] == servers
    assert bound.sized(servers).after_s == pytest.approx(after_s)


def _two_responses(actors: int, gpus: int = 1) -> tuple[StepWork, ScheduleBound]:
    """Return two responses that decode 1 s together, are prepared 2 s and learned from 3 s each, and the bound on decoding."""
    latency = solver.LatencyModel("mine", gpus, base_s=8e-3, per_response_s=1e-3, max_batch=2)
    problem = solver.PlanningProblem(solver.Workload([1], [0, 0], [100, 100]), solver.Cluster(1, actors * gpus, gpus), latency)
    work = StepWork([2.0, 2.0], [3.0, 3.0], group=[0, 0], gpus_per_actor=gpus)
    return work, ScheduleBound(problem)


def test_a_given_learner_on_released_gpus_shares_them_with_generation() -> None:
    latency = solver.LatencyModel("mine", 1, base_s=8e-3, per_response_s=1e-3, max_batch=1)
    problem = solver.PlanningProblem(solver.Workload([1], [0, 0], [100, 100]), solver.Cluster(1, 1, 1), latency)
    bound = whole_step_bound(solver.bound(problem), _two_responses(1)[0], BESIDE_DECODING)
    assert bound.shortest_s() == pytest.approx(2 * 0.9 + 4 + 6, rel=1e-6), "one GPU decodes one by one, prepares and learns"


def test_the_least_time_is_that_of_the_best_size_and_of_all_gpus_together() -> None:
    charges = Charges.by_formula(3, 1, 0.1, load_s=0.25, gradient_s=0.5)
    work, generation = _two_responses(3)
    three = whole_step_bound(generation, replace(work, charges=charges))
    assert three.shortest_s() == pytest.approx(0.9 + 2 + 3 / 0.9 + 0.5, rel=1e-5)
    work, generation = _two_responses(1)
    alone = whole_step_bound(generation, replace(work, charges=charges))
    assert alone.shortest_s() == pytest.approx(1 + 4 + 6 + 0.25, rel=1e-5), "one server decodes, prepares, loads and learns"


def test_generation_ends_before_the_response_that_is_prepared_and_learned_from_fastest() -> None:
    work, generation = _two_responses(2)
    charges = Charges.by_formula(2, 1, 0.5, gradient_s=0.4)
    unequal = replace(work, prepare_s=[1.0, 2.0], learn_s=[5.0, 3.0], charges=charges)
    bound = whole_step_bound(generation, unequal)
    assert [bound.sized(servers).after_s for servers in (1, 2)] == pytest.approx([2 + 3, 0.4 + 2 + 3 / 0.5])


def test_a_step_whose_work_takes_no_time_pays_for_generation_only() -> None:
    work, generation = _two_responses(1)
    free = replace(work, prepare_s=[0.0, 0.0], learn_s=[0.0, 0.0], charges=Charges.by_formula(1, load_s=5.0))
    bound = whole_step_bound(generation, free)
    assert bound.gpu_seconds(9.0) == pytest.approx(generation.gpu_seconds(9.0))


def test_the_bound_falls_with_time_and_is_infinite_below_the_shortest_step() -> None:
    bound = whole_step_run(7).bound
    shortest_s = bound.shortest_s()
    costs = [bound.gpu_seconds(shortest_s * factor) for factor in (1.001, 1.1, 1.5, 3.0)]
    assert costs == sorted(costs, reverse=True)
    assert np.isfinite(costs).all()
    assert np.isinf(bound.gpu_seconds(shortest_s * 0.99))
    assert bound.with_servers(shortest_s * 3.0)[1] >= 1


@given(seeds, st.floats(1.0, 4.0))
@settings(deadline=None, max_examples=8)
def test_the_bound_is_the_least_over_learners_of_every_size(seed: int, factor: float) -> None:
    bound = whole_step_run(seed).bound
    time_s, totals = bound.shortest_s() * factor * (1 + 1e-6), [np.inf]
    for servers in range(1, bound.servers + 1):
        learner = bound.sized(servers)
        total = bound.generation.gpu_seconds(time_s - learner.after_s) + learner.gpu_seconds
        if learner.least_s <= time_s and total <= bound.gpus * time_s * (1 + 1e-9):
            totals.append(total)
    assert bound.gpu_seconds(time_s) == pytest.approx(min(totals), rel=1e-9)


@given(seeds, st.floats(0, 3))
@settings(deadline=None, max_examples=30)
def test_every_server_of_learning_ends_with_the_reduction(seed: int, finish_s: float) -> None:
    rng = np.random.default_rng(seed)
    count, actors, own = int(rng.integers(1, 8)), int(rng.integers(1, 4)), int(rng.integers(0, 3))
    charges = Charges((1.0,) * 6, (finish_s,) * 6, (0.0,) * 6)
    work = StepWork(rng.uniform(0, 2, count), rng.uniform(0.1, 2, count), np.zeros(count), "response", charges=charges)
    learner = Learner(own, grows=bool(rng.random() < 0.5) or not own, streams=True, overlaps=True)
    completion = rng.uniform(0, 9, count)
    free = np.full(actors, completion.max())
    ended, without = (follow(completion, free, one, learner) for one in (work, replace(work, charges=Charges())))
    assert phase_bound_s(completion, free, work, learner) <= ended.step_s + 1e-9
    assert ended.step_s == pytest.approx(without.step_s + finish_s)
    servers = own + (actors if learner.grows else 0)
    assert servers == learner.servers(actors)
    assert sum(row.kind == "finish" for row in ended.rows) == (servers if finish_s else 0)


def test_charges_grow_with_the_servers_and_bad_ones_are_refused() -> None:
    charges = Charges.by_formula(4, 2, 0.1, gradient_s=0.4)
    assert [charges.slower(servers) for servers in (1, 2, 4)] == pytest.approx([1.0, 1.0, 1 / 0.9])
    assert [charges.finish_s(servers) for servers in (1, 2, 4)] == pytest.approx([0.0, 0.4, 0.6])
    with refused(PlanningError, "full_speed_servers is 0"):
        Charges.by_formula(4, 0)
    with refused(PlanningError, "loss_per_doubling", "1.0"):
        Charges.by_formula(4, 1, 1.0)
    with refused(PlanningError, "load_s is nan"):
        Charges.by_formula(4, 1, load_s=float("nan"))
    with refused(PlanningError, "a learner of 5 servers", "1 to 4"):
        charges.slower(5)


def test_without_charges_nothing_is_paid_and_a_part_pays_as_its_share() -> None:
    free = Charges()
    assert free.fits(1000)
    assert free.of_size(1000) == (1.0, 0.0, 0.0)
    assert free.of_part(4.0) == free
    whole = Charges.by_formula(64, 4, 0.1, 0.5, 0.4)
    part = whole.of_part(4.0)
    assert [part.of_size(servers) for servers in (1, 3, 16)] == [whole.of_size(servers) for servers in (4, 12, 64)]
    assert not part.fits(17)


def test_charges_by_size_are_those_stated_and_bad_ones_are_refused() -> None:
    charges = Charges((math.inf, 1.5, 1.2), (0.0, 0.5, 0.4), (0.0, 3.0, 2.0))
    assert [charges.fits(servers) for servers in (0, 1, 2, 3, 4)] == [False, False, True, True, False]
    assert (charges.slower(2), charges.finish_s(3), charges.loading_s(3)) == (1.5, 0.4, 2.0)
    with refused(PlanningError, "slower_by_size is (-1.0,)"):
        Charges((-1.0,), (0.0,), (0.0,))
    with refused(PlanningError, "have 1, 2, 1 sizes"):
        Charges((1.0,), (0.0, 0.0), (0.0,))
    with refused(PlanningError, "no number of servers is possible"):
        Charges((math.inf,), (0.0,), (0.0,))
    work, generation = _two_responses(2)
    with refused(PlanningError, "no learner of 1 to 2 servers"):
        whole_step_bound(generation, replace(work, charges=Charges((math.inf,) * 2 + (1.0,), (0.0,) * 3, (0.0,) * 3)))


def test_the_least_of_several_bounds_is_at_every_time_the_least() -> None:
    bounds = [whole_step_run(7).bound, whole_step_run(7, sized=True).bound]
    least = LeastBound(bounds)
    for time_s in np.linspace(0.5, 3, 6) * bounds[0].shortest_s():
        assert least.gpu_seconds(time_s) == min(bound.gpu_seconds(time_s) for bound in bounds)
    assert least.shortest_s() == pytest.approx(min(bound.shortest_s() for bound in bounds), rel=1e-6)


def test_a_bound_of_another_step_is_refused() -> None:
    generation, work = _two_responses(1)[1], StepWork([1.0], [1.0], [0])
    with refused(PlanningError, "generation is"):
        whole_step_bound(work, work)  # type: ignore[arg-type]
    with refused(PlanningError, "work is"):
        whole_step_bound(generation, generation)  # type: ignore[arg-type]
    with refused(PlanningError, "1 responses"):
        whole_step_bound(generation, work)
    with refused(PlanningError, "gpus_per_actor of the work is 1"):
        whole_step_bound(_two_responses(1, 2)[1], _two_responses(1)[0])
    with refused(PlanningError, "learner is 0.1"):
        whole_step_bound(generation, work, 0.1)  # type: ignore[arg-type]
