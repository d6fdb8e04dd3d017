"""The rivals to beat are as strong as their definitions: balanced sums, equal chunks, the local cut, all right-sized."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning_inputs import log_normal_workload, planning_inputs

from rlhfless.engine.protocol import Request
from rlhfless.engine.simulated.engine import SimulatedEngine
from rlhfless.executor import run_step
from rlhfless.scheduling import PlanningOptions, make_policy
from rlhfless.scheduling.assignments import (
    Random,
    SplitPrompts,
    balanced_ranks,
    largest_differencing,
    longest_first,
    predicted_sums,
    responses_of,
    right_sized,
)
from rlhfless.scheduling.rules import LocalCut, WithLocalCut
from rlhfless.simulate import SimulationConfig, logged_steps
from rlhfless.trace import validate
from solver import Cluster, LatencyModel, NonGenerationPhases, Objective, Plan, Workload
from solver.generation.canonical_order import Canonical
from solver.generation.prompt_order import equal_counts
from solver.model.problem import PlanningProblem
from solver.timing.build_plan import assemble

LATENCY = LatencyModel("l40s", 2, 5.6e-3, 2.2e-5, 2.5e-8, prefill_per_token_s=1e-5, start_s=2.0, max_batch=64)
CLUSTER = Cluster(2, 8, 2)
RIVALS = ["random+tau", "karmarkar-karp", "lpt", "trl"]
SPLITS = {
    "karmarkar-karp": lambda sums, n: largest_differencing(sums, n, equal_counts=True),
    "lpt": longest_first,
    "trl": lambda sums, n: np.array_split(np.arange(len(sums)), n),
}
numbers = st.lists(st.integers(0, 60), min_size=1, max_size=7)


def asked(work: Workload, **changes: object) -> tuple[PlanningProblem, PlanningOptions]:
    return planning_inputs(work, **{"cluster": CLUSTER, "latency": LATENCY, **changes})  # type: ignore[arg-type]


def value(plan: Plan, weight: float) -> float:
    return plan.makespan_s**weight * plan.gpu_seconds ** (1 - weight)


# --- partitions ------------------------------------------------------------------------------------------------------------


def largest(sums: list[int], groups: list[list[int]]) -> int:
    return max(sum(sums[i] for i in group) for group in groups)


def partitions(count: int, parts: int):
    """All assignments of ``count`` numbers to ``parts`` groups, none of them empty."""
    for owner in itertools.product(range(parts), repeat=count):
        groups = [[i for i in range(count) if owner[i] == p] for p in range(parts)]
        if all(groups):
            yield groups


@given(numbers, st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_both_are_within_their_ratios_of_the_best_partition(sums, parts):
    """LPT: Graham 1969. Largest differencing: no worse a ratio (Michiels, Korst, Aarts, van Leeuwen 2003)."""
    parts = min(parts, len(sums))
    best = min(largest(sums, groups) for groups in partitions(len(sums), parts))
    for groups in (longest_first(sums, parts), largest_differencing(sums, parts)):
        assert sorted(itertools.chain(*groups)) == list(range(len(sums)))
        assert len(groups) == parts
        assert all(groups)
        assert largest(sums, groups) <= (4 / 3 - 1 / (3 * parts)) * best + 1e-9


@given(numbers, st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_equal_counts_differ_by_one_at_most_and_the_largest_sum_is_at_most_twice_the_best(sums, parts):
    parts = min(parts, len(sums))
    groups = largest_differencing(sums, parts, equal_counts=True)
    assert sorted(itertools.chain(*groups)) == list(range(len(sums)))
    counts = [len(g) for g in groups]
    assert max(counts) - min(counts) <= 1
    even = [g for g in partitions(len(sums), parts) if max(map(len, g)) - min(map(len, g)) <= 1]
    assert largest(sums, groups) <= 2 * min(largest(sums, g) for g in even)


def test_the_textbook_example():
    """Karmarkar and Karp leave a difference of 2 where longest first leaves 4 and the best partition none."""
    sums = [8, 7, 6, 5, 4]
    assert sorted(sum(sums[i] for i in g) for g in largest_differencing(sums, 2)) == [14, 16]
    assert sorted(sum(sums[i] for i in g) for g in longest_first(sums, 2)) == [13, 17]


def test_differencing_balances_better_than_chance_and_than_longest_first_on_many_numbers():
    sums = (np.random.default_rng(0).lognormal(6, 0.7, 200) * 1000).astype(int).tolist()
    for parts in (2, 5, 8):
        least = sum(sums) / parts
        spread = [largest(sums, split(sums, parts)) / least - 1 for split in (largest_differencing, longest_first)]
        assert spread[0] <= spread[1] < 0.01
        assert spread[0] < 1e-4


def test_longest_first_gives_the_next_largest_to_the_least_loaded():
    assert longest_first([3, 9, 5, 5, 1], 2) == [[1, 0], [2, 3, 4]]
    assert longest_first([0, 0, 0], 3) == [[0], [1], [2]]  # nothing weighs anything: nobody goes without


# --- plans -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SPLITS)
@pytest.mark.parametrize("weight", [0.2, 0.7, 0.95])
def test_the_number_of_actors_is_the_best_one_on_predictions(name, weight):
    work = log_normal_workload(seed=3)
    plan = make_policy(name).plan(*asked(work, objective=Objective(weight)))
    sums = work.response_tokens.reshape(32, 4).sum(axis=1).tolist()
    values = []
    for n in range(1, 9):
        parts = [[4 * p + s for p in group for s in range(4)] for group in SPLITS[name](sums, n)]
        values.append(value(assemble("x", parts, PlanningProblem(work, CLUSTER, LATENCY)), weight))
    assert value(plan, weight) == pytest.approx(min(values), rel=1e-12)
    assert len(plan.actors) == 1 + int(np.argmin(values))


def test_right_sizing_is_that_of_the_random_split():
    """The same split as the random one, sized here and there: the same plan."""
    for seed, phases in itertools.product(range(3), (NonGenerationPhases(), NonGenerationPhases(1.0, 2.0, 16))):
        work = log_normal_workload(seed=seed)
        order = Canonical.of(work).prompt[np.random.default_rng(seed).permutation(32)]
        given_ = asked(work, phases=phases, seed=seed, objective=Objective(0.4))

        def assign(n, work=work, order=order):
            return responses_of(work, [order[a:b] for a, b in equal_counts(len(order), n)])

        mine, theirs = right_sized("random", assign, len(order), given_[0]), Random().plan(*given_)
        assert [{*a.responses} for a in mine.actors] == [{*a.responses} for a in theirs.actors]
        assert (mine.makespan_s, mine.gpu_seconds) == (pytest.approx(theirs.makespan_s), pytest.approx(theirs.gpu_seconds))


def test_a_deadline_and_a_budget_are_kept_where_they_can_be():
    work = log_normal_workload()
    one = make_policy("lpt").plan(*asked(work, objective=Objective(0.0)))
    fast = make_policy("lpt").plan(*asked(work, objective=Objective(1.0)))
    for deadline_s in (1.02 * fast.makespan_s, 0.5 * (fast.makespan_s + one.makespan_s)):
        plan = make_policy("lpt").plan(*asked(work, objective=Objective(deadline_s=deadline_s)))
        assert plan.makespan_s <= deadline_s
        assert one.gpu_seconds <= plan.gpu_seconds <= fast.gpu_seconds
    nobody = make_policy("lpt").plan(*asked(work, objective=Objective(deadline_s=0.1)))
    assert nobody.makespan_s == pytest.approx(fast.makespan_s)


@pytest.mark.parametrize("name", RIVALS)
@pytest.mark.parametrize("samples", [1, 5])
def test_samples_of_a_prompt_stay_together_and_everyone_is_released_when_done(name, samples):
    owner = np.random.default_rng(1).permutation(np.repeat(np.arange(24), samples))  # rows in any order
    work = Workload(np.full(24, 50), owner, np.random.default_rng(2).integers(1, 900, len(owner)))
    plan = make_policy(name).plan(*asked(work))
    assert sorted(r for a in plan.actors for r in a.responses) == list(range(len(owner)))
    assert sorted(p for a in plan.actors for p in a.prompts) == list(range(24))
    assert {a.release for a in plan.actors} == {"done"}
    assert plan.policy == name
    assert not make_policy(name).clairvoyant


def test_chunks_keep_the_given_order_and_the_first_ones_have_one_more():
    plan = make_policy("trl").plan(*asked(log_normal_workload(30), objective=Objective(1.0)))
    assert len(plan.actors) == 8
    assert [len(a.prompts) for a in plan.actors] == [4] * 6 + [3] * 2
    assert [r for a in plan.actors for r in a.responses] == list(range(120))


def test_unequal_counts_are_balanced_at_least_as_well():
    work = log_normal_workload(30, seed=4)
    spread = {}
    for equal, split in ((True, balanced_ranks), (False, largest_differencing)):
        plan = SplitPrompts("balanced", split).plan(*asked(work, objective=Objective(1.0)))
        sums = [int(work.response_tokens[list(a.responses)].sum()) for a in plan.actors]
        counts = [len(a.prompts) for a in plan.actors]
        spread[equal] = max(sums) - min(sums)
        assert not equal or max(counts) - min(counts) <= 1
    assert spread[False] <= spread[True]


def test_sums_count_what_is_left_to_generate():
    work = Workload([5, 5, 5], [2, 0, 2, 0], [10, 20, 30, 40], generated_tokens=[4, 0, 0, 40])
    assert predicted_sums(work, np.array([0, 2])).tolist() == [20, 36]
    assert [g.tolist() for g in responses_of(work, [[2], [0]])] == [[0, 2], [1, 3]]


def test_random_with_the_cut_is_the_random_split_and_the_published_rule():
    work = log_normal_workload()
    plan, base = make_policy("random+tau", tau=0.6).plan(*asked(work, seed=3)), Random().plan(*asked(work, seed=3))
    assert plan.actors == base.actors
    assert isinstance(plan.rule, LocalCut)
    assert plan.rule.tau == 0.6
    assert make_policy("random+tau", tau=1.0).plan(*asked(work)).rule is None
    assert WithLocalCut(base=make_policy("lpt")).plan(*asked(work)).actors == make_policy("lpt").plan(*asked(work)).actors


def test_random_with_the_cut_moves_the_last_responses():
    work = log_normal_workload()
    plan = make_policy("random+tau").plan(*asked(work, objective=Objective(1.0)))
    prompts = work.prompt_tokens[work.prompt_of].tolist()
    lengths = work.response_tokens.tolist()
    requests = [Request(i, prompts[i], work.max_response_tokens, target_tokens=n) for i, n in enumerate(lengths)]
    cut, whole = (run_step(replace(plan, rule=rule), requests, SimulatedEngine, LATENCY, CLUSTER) for rule in (plan.rule, None))
    assert sorted(cut.completions) == list(range(128))
    assert cut.moves > whole.moves == 0

    def held_s(record) -> float:
        return sum(a["end_s"] - a["start_s"] for a in record.allocations)

    assert held_s(cut) < held_s(whole)


# --- degenerate inputs -----------------------------------------------------------------------------------------------------

DEGENERATE = {
    "one response": Workload([10], [0], [50]),
    "one prompt": Workload([10], np.zeros(6, int), [50, 1, 7, 300, 2, 2]),
    "more actors than prompts": log_normal_workload(3),
    "equal lengths": Workload.grid(np.full(16, 10), np.full((16, 2), 100)),
    "nothing to generate": Workload.grid(np.full(9, 10), np.zeros((9, 2), int)),
    "prompts without responses": Workload(np.full(7, 10), [6, 2, 2, 6], [5, 90, 9, 400]),
    "fully generated": Workload(np.full(2, 10), [0, 1], [40, 8], generated_tokens=[40, 8]),
}


@pytest.mark.parametrize("work", DEGENERATE.values(), ids=DEGENERATE)
@pytest.mark.parametrize("name", RIVALS)
@pytest.mark.parametrize("weight", [0.0, 0.7, 1.0])
def test_degenerate_steps_are_planned(name, work, weight):
    plan = make_policy(name).plan(*asked(work, objective=Objective(weight)))
    assert sorted(r for a in plan.actors for r in a.responses) == list(range(len(work)))
    assert 1 <= len(plan.actors) <= min(8, len(np.unique(work.prompt_of)))
    assert all(a.responses for a in plan.actors)
    assert math.isfinite(plan.makespan_s)


# --- what they see ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RIVALS)
def test_a_poisoned_truth_never_reaches_a_rival(name):
    """The last step's own lengths are turned upside down: its plans stay the same."""
    rng = np.random.default_rng(0)
    rows = [
        {
            "step": visit, "prompt_id": f"p{p}", "sample": s, "prompt_tokens": 20 + p, "finish_reason": "stop",
            "response_tokens": int(rng.integers(1, 600)),
        }
        for visit, p, s in itertools.product(range(2), range(12), range(3))
    ]  # fmt: skip
    log = validate("rollouts", pd.DataFrame(rows))
    poisoned = log.assign(response_tokens=log["response_tokens"].where(log["step"] < 1, 601 - log["response_tokens"]))
    setting = SimulationConfig(Cluster(1, 4, 1), replace(LATENCY, gpus_per_actor=1), max_response_tokens=600)
    plans = []
    for some in (log, poisoned):
        policy = make_policy(name)
        plans.append(policy.plan(*list(logged_steps(some, max_response_tokens=600))[-1].inputs(setting, policy.clairvoyant)))
    assert plans[0].actors == plans[1].actors
    assert plans[0].makespan_s == plans[1].makespan_s
