"""The choice of a cut: its generation is what the executor does, its bound is one, and no choice is worse than no cut."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from error_messages import refused
from executor_samples import Step, run
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhfless.executor import phase_work_items
from rlhfless.scheduling.rlhfuse import GlobalCut
from solver import Cluster, LatencyModel, Objective, Plan, PlanningError, PlanningProblem, Workload, random_split
from solver.lengths.survival import from_scenarios
from solver.step.charges import Charges
from solver.step.cut import choose_cut, sparse_counts
from solver.step.cut_timeline import CutTimeline, _fewest_first
from solver.step.work import BESIDE_DECODING, Learner, StepWork, TokenWork

seeds = st.integers(0, 10_000)
LIMIT = 400


def sample(seed: int, scenarios: int = 3, **changes: Any) -> tuple[Plan, PlanningProblem]:
    """A random split of long-tailed lengths over four actors."""
    rng = np.random.default_rng(seed)
    prompts, samples = int(rng.integers(6, 12)), 4
    lengths = np.minimum(rng.lognormal(3.5, 0.9, (scenarios, prompts * samples)).astype(int) + 1, LIMIT)
    options = {
        "base_s": 0.02, "per_response_s": 5e-4, "per_kv_token_s": 1e-6, "prefill_per_token_s": 1e-4, "start_s": 0.1,
        "transfer_base_s": 1e-3, "max_batch": 64, "kv_capacity_tokens": 1 << 30,
    }  # fmt: skip
    latency = LatencyModel("sample", 1, **{**options, **changes})
    workload = Workload.grid(
        rng.integers(5, 20, prompts), lengths[0].reshape(prompts, samples), max_response_tokens=LIMIT,
        scenarios=lengths if scenarios > 1 else None,
    )  # fmt: skip
    problem = PlanningProblem(workload, Cluster(2, 2, 1), latency, Objective(float(rng.choice([0.5, 1.0]))))
    return random_split(problem, actors=4, seed=seed), problem


def random_work(seed: int) -> tuple[TokenWork, Learner]:
    rng = np.random.default_rng(seed)
    per_token_s, own = float(rng.choice([1e-4, 1e-3])), int(rng.choice([0, 2]))
    learner = Learner(own, grows=not own, streams=bool(rng.random() < 0.7), overlaps=bool(rng.random() < 0.8), place="released")
    loss, load_s, gradient_s = (float(rng.choice([0.0, most])) for most in (0.1, 0.2, 0.1))
    charges = Charges.by_formula(4, 1, loss, load_s, gradient_s)
    return TokenWork(per_token_s, 3 * per_token_s, str(rng.choice(["response", "group"])), charges), learner


@given(seeds, st.sampled_from([0.1, 0.3, 0.6]), st.integers(1, 3))
@settings(max_examples=30, deadline=None)
def test_a_timed_cut_is_the_executed_one_but_for_transfers(seed: int, share: float, keep: int) -> None:
    """Until the cut the times are equal; after it they differ by the iterations in which moved responses arrive."""
    plan, problem = sample(seed, scenarios=1)
    cluster, latency = problem.one_kind
    work = problem.workload
    forecast = from_scenarios(work)
    line = CutTimeline(plan, work, latency, problem.admission, forecast.expected_tokens)
    total = len(work)
    threshold = max(1, round(share * total))
    step = Step(work, work, cluster, latency)
    rule = GlobalCut(threshold, total, keep=keep, remaining=forecast)
    record = run(step, replace(plan, rule=rule))
    completion = np.array([record.completions[r].time_s for r in range(total)])
    state = line.at(threshold)
    if state is None:
        np.testing.assert_allclose(completion, line.uncut.completion_s, atol=1e-9)
        return
    timed = line.cut(state, keep)
    assert timed is not None
    before = line.uncut.completion_s <= state.boundary_s.min()
    np.testing.assert_allclose(completion[before], timed.completion_s[before], atol=1e-9)
    assert timed.completion_s.max() == pytest.approx(completion.max(), rel=0.03)
    cut = {int(e["holder"].split("-")[1]): e for e in record.events if e["name"] == "cut"}
    for actor in cut:
        end_s = max(a["end_s"] for a in record.allocations if a["holder"] == f"actor-{actor}")
        assert timed.free_s[actor] == pytest.approx(end_s, rel=0.03)


@given(seeds, st.integers(1, 4), st.integers(1, 6), st.integers(0, 12))
@settings(max_examples=40, deadline=None)
def test_responses_go_to_the_actor_with_the_fewest_that_has_room(seed: int, actors: int, most: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    has, room, numbers = rng.integers(0, 5, actors), rng.integers(0, most + 1, actors), np.sort(rng.permutation(9)[:actors])
    expected, held, left = [], has.tolist(), room.tolist()
    for _ in range(count):
        open_to = [k for k in range(actors) if left[k]]
        if not open_to:
            break
        to = min(open_to, key=lambda k: (held[k], k))
        held[to], left[to] = held[to] + 1, left[to] - 1
        expected.append(int(numbers[to]))
    found = _fewest_first(count, has, room.astype(float), numbers)
    assert (found is None) == (len(expected) < count)
    assert found is None or found.tolist() == expected


@given(seeds, st.sampled_from([0.3, 0.6]), st.integers(40, 400))
@settings(max_examples=20, deadline=None)
def test_a_cut_goes_to_the_fewest_actors_that_have_room(seed: int, share: float, kv_tokens: int) -> None:
    """Numbers of actors that are left out have no room, and no response is lost where memory is short."""
    plan, problem = sample(seed, scenarios=1)
    latency = replace(problem.one_kind[1], kv_capacity_tokens=max(kv_tokens, int(problem.workload.reserved_tokens.max())))
    line = CutTimeline(plan, problem.workload, latency, problem.admission)
    state = line.at(max(1, round(share * len(problem.workload))))
    if state is None:
        return
    one_by_one = [cut for keep in range(1, len(plan.actors)) if (cut := line.cut(state, keep)) is not None]
    found = line.cut_to_fewest(state, 1)
    np.testing.assert_array_equal(found.completion_s, (one_by_one or [line.uncut])[0].completion_s)
    assert (found.completion_s > 0).all()


@given(seeds)
@settings(max_examples=15, deadline=None)
def test_bounds_are_below_values_and_nothing_is_better_than_the_choice(seed: int) -> None:
    plan, problem = sample(seed)
    work = random_work(seed)
    every, some = choose_cut(plan, problem, *work, followed=None), choose_cut(plan, problem, *work)
    for candidate in every.candidates:
        if not math.isinf(candidate.bound):
            assert candidate.bound <= candidate.value * (1 + 1e-9)
            assert candidate.time_bound_s <= candidate.time_s * (1 + 1e-9)
    assert every.value == min(candidate.value for candidate in every.candidates if not math.isnan(candidate.value))
    assert every.value <= some.value <= some.uncut.value
    again = choose_cut(plan, problem, *work)
    assert some == again or some.candidates == again.candidates


def test_a_chosen_cut_is_as_good_when_it_is_executed() -> None:
    """A long tail: the cut is chosen, and the executed step is as short as expected, and shorter than without it."""
    plan, problem = sample(4, scenarios=1)
    cluster, latency = problem.one_kind
    work = TokenWork(1e-2, 0.0)
    chosen = choose_cut(plan, replace(problem, objective=Objective(1.0)), work)
    assert chosen.share > 0
    step = Step(problem.workload, problem.workload, cluster, latency)
    items = phase_work_items(work.of(problem.workload), BESIDE_DECODING, cluster, len(plan.actors))
    rule = GlobalCut(chosen.threshold, len(problem.workload), keep=chosen.keep, remaining=from_scenarios(problem.workload))
    cut, uncut = run(step, replace(plan, rule=rule), work=items), run(step, plan, work=items)
    assert cut.end_s == pytest.approx(chosen.time_s, rel=0.03)
    assert uncut.end_s == pytest.approx(chosen.uncut.time_s, abs=1e-9)
    assert cut.end_s < uncut.end_s


def test_where_work_is_nothing_and_cost_counts_nothing_no_cut_is_needed() -> None:
    """Equal lengths: a cut only delays, so there is none."""
    latency = LatencyModel("even", 1, base_s=0.01, per_response_s=1e-3, max_batch=64)
    problem = PlanningProblem(Workload([5] * 8, range(8), [50] * 8), Cluster(1, 2, 1), latency, Objective(1.0))
    chosen = choose_cut(random_split(problem, actors=2), problem, TokenWork(0.0, 0.0))
    assert (chosen.share, chosen.threshold, chosen.keep) == (0.0, 0, 2)
    assert "no cut" in repr(chosen)


def test_places_are_compared() -> None:
    plan, problem = sample(0, scenarios=1)
    chosen = choose_cut(plan, replace(problem, objective=Objective(1.0)), TokenWork(2e-3, 2e-3), places=("released", "beside"))
    assert chosen.place == "beside", "more GPUs are faster where only time counts"
    assert {candidate.place for candidate in chosen.candidates} == {"released", "beside"}


def test_counts_are_sparse() -> None:
    assert sparse_counts(1) == []
    assert sparse_counts(16) == [1, 2, 3, 4, 6, 8, 12]


def little_room() -> tuple[Plan, PlanningProblem]:
    return sample(1, scenarios=1, max_batch=16)


WRONG: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "share": (lambda plan, problem: choose_cut(plan, problem, TokenWork(1, 1), shares=[1.5]), ("1.5", "R_t")),
    "m above the actors": (lambda plan, problem: choose_cut(plan, problem, TokenWork(1, 1), keep=[5]), ("5", "4 actors")),
    "negative": (lambda plan, problem: TokenWork(-1.0, 1.0), ("prepare_per_token_s", "-1.0")),
    "not finite": (lambda plan, problem: TokenWork(1.0, math.inf), ("learn_per_token_s", "inf")),
    "place": (lambda plan, problem: choose_cut(plan, problem, TokenWork(1, 1), places=["cloud"]), ("'cloud'",)),
    "work": (lambda plan, problem: choose_cut(plan, problem, 3), ("3", "StepWork")),
    "another length": (lambda plan, problem: choose_cut(plan, problem, StepWork([1.0], [1.0], [0])), ("1 responses",)),
    "learner": (lambda plan, problem: choose_cut(plan, problem, TokenWork(1, 1), 2), ("learner is 2", "Learner")),
    "followed": (lambda plan, problem: choose_cut(plan, problem, TokenWork(1, 1), followed=-1), ("followed", "-1")),
    "a size that cannot learn": (
        lambda plan, problem: choose_cut(
            plan, problem, TokenWork(1, 1, charges=Charges((1.0, math.inf), (0.0,) * 2, (0.0,) * 2)), Learner(2, grows=False)
        ),
        ("2 servers", "one of [1]"),
    ),
    "held": (
        lambda plan, problem: choose_cut(
            replace(plan, actors=tuple(replace(a, release="step") for a in plan.actors)), problem, TokenWork(1, 1)
        ),
        ("step", "released"),
    ),
    "no room": (
        lambda plan, problem: choose_cut(*little_room(), TokenWork(1, 1), shares=[0.7], keep=[1]),
        ("1 actors of 16 slots", "KV tokens", "keep 2"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_bad_input_is_one_sentence(case: str) -> None:
    make, named = WRONG[case]
    with refused(PlanningError, *named):
        make(*sample(0, scenarios=1))
