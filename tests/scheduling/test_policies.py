"""Every scheduling policy is what its definition says, and plans without the truth unless it is clairvoyant."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from error_messages import refused
from planning_inputs import log_normal_workload, planning_inputs

from rlhfless.engine.protocol import Request
from rlhfless.engine.simulated.engine import SimulatedEngine
from rlhfless.executor import run_step
from rlhfless.scheduling import POLICIES, PlanningOptions, PolicyError, ladder, make_policy
from rlhfless.scheduling.assignments import LeastLoaded, Random, Static
from rlhfless.scheduling.rlhfless import RLHFless
from rlhfless.scheduling.rlhfuse import GlobalCut, RLHFuse
from rlhfless.scheduling.rules import DrainingFold, Fold, LocalCut
from solver import Cluster, LatencyModel, NonGenerationPhases, Objective, PlanningError, Workload
from solver.generation.canonical_order import Canonical
from solver.model.problem import PlanningProblem
from solver.model.runtime_rules import ActorView, Cut, Move, StepState, Trigger
from solver.timing.build_plan import assemble
from solver.timing.evaluate import evaluate

LATENCY = LatencyModel("l40s", 2, 5.6e-3, 2.2e-5, 2.5e-8, prefill_per_token_s=1e-5, start_s=2.0, max_batch=64)
CLUSTER = Cluster(2, 8, 2)


def given(work: Workload, **changes: object) -> tuple[PlanningProblem, PlanningOptions]:
    return planning_inputs(work, **{"cluster": CLUSTER, "latency": LATENCY, **changes})  # type: ignore[arg-type]


def groups(plan) -> list[list[int]]:
    return [list(a.responses) for a in plan.actors]


def prompts_of(plan) -> list[list[int]]:
    return [list(a.prompts) for a in plan.actors]


# --- plans -----------------------------------------------------------------------------------------------------------


def test_static_deals_the_given_order_in_equal_chunks_and_holds_on():
    plan = Static(3).plan(*given(log_normal_workload(8)))
    assert prompts_of(plan) == [[0, 1, 2], [3, 4], [5, 6, 7]]
    assert list(itertools.chain(*groups(plan))) == list(range(32))
    assert {a.release for a in plan.actors} == {"generation"}
    assert {a.release for a in make_policy("static", hold="step").plan(*given(log_normal_workload(8))).actors} == {"step"}
    assert plan.rule is None


def test_static_uses_all_actors_that_fit_and_never_an_empty_one():
    assert len(Static().plan(*given(log_normal_workload(32))).actors) == 8
    assert len(Static().plan(*given(log_normal_workload(5))).actors) == 5


@pytest.mark.parametrize("actors", [0, -2])
def test_static_needs_an_actor(actors):
    with refused(PolicyError, str(actors)):
        make_policy("static", static_actors=actors)


@pytest.mark.parametrize("tau", [0.0, -1.0, 1.5, math.nan])
def test_tau_is_a_share(tau):
    with refused(PolicyError):
        make_policy("rlhfless", tau=tau)


def test_static_refuses_more_actors_than_fit():
    with refused(PlanningError):
        Static(9).plan(*given(log_normal_workload(32)))


@pytest.mark.parametrize("weight", [0.2, 0.7, 0.95])
def test_random_has_the_best_number_of_actors(weight):
    work, objective = log_normal_workload(), Objective(weight)
    plan = Random().plan(*given(work, objective=objective, seed=5))
    dealt, order = Canonical.of(work).response.reshape(32, 4), np.random.default_rng(5).permutation(32)

    def product(n: int) -> float:
        parts = [dealt[chunk].ravel() for chunk in np.split(order, edges(32, n))]
        split = assemble("x", parts, PlanningProblem(work, CLUSTER, LATENCY))
        return split.makespan_s**weight * split.gpu_seconds ** (1 - weight)

    best = min(range(1, 9), key=product)
    assert len(plan.actors) == best
    assert plan.makespan_s**weight * plan.gpu_seconds ** (1 - weight) == pytest.approx(product(best))
    assert {a.release for a in plan.actors} == {"done"}
    assert sorted(itertools.chain(*groups(plan))) == list(range(128))


def edges(count: int, parts: int) -> list[int]:
    return np.linspace(0, count, parts + 1).round().astype(int)[1:-1].tolist()


def test_random_draws_with_its_seed():
    plans = [groups(Random().plan(*given(log_normal_workload(), seed=s))) for s in (1, 1, 2)]
    assert plans[0] == plans[1] != plans[2]


def test_least_loaded_gives_the_next_prompt_to_the_actor_with_fewest_in_flight():
    owner = np.repeat(np.arange(6), [5, 1, 2, 1, 4, 3])  # ragged groups
    work = Workload(np.full(6, 10), owner, np.full(16, 7))
    plan = LeastLoaded().plan(*given(work, cluster=Cluster(1, 6, 2)))
    # 5 | 1 | 2, then 1 to the second (2), 4 to the second (6), 3 to the third (5)
    assert prompts_of(plan) == [[0], [1, 3, 4], [2, 5]]


def test_rlhfuse_plans_as_static_and_releases_when_done():
    plan, static = RLHFuse(actors=3).plan(*given(log_normal_workload())), Static(3).plan(*given(log_normal_workload()))
    assert groups(plan) == groups(static)
    assert {a.release for a in plan.actors} == {"done"}
    assert isinstance(plan.rule, GlobalCut)
    assert plan.rule.threshold == round(0.2 * 128)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("weight", [0.3, 0.7])
def test_rlhfless_is_the_min_max_sweep_over_sorted_equal_count_groups(seed, weight):
    work = log_normal_workload(24, seed=seed)
    plan = RLHFless(scale_weight=weight).plan(*given(work))
    mean = work.response_tokens.reshape(24, 4).mean(axis=1)
    order = sorted(range(24), key=lambda p: -mean[p])
    plans = []
    for n in range(1, 9):
        parts = [[4 * p + s for p in chunk for s in range(4)] for chunk in np.split(order, edges(24, n))]
        plans.append((parts, assemble("x", parts, PlanningProblem(work, CLUSTER, LATENCY))))
    time = np.array([p.makespan_s for _, p in plans])
    cost = np.array([p.gpu_seconds for _, p in plans])
    value = weight * (time - time.min()) / np.ptp(time) + (1 - weight) * (cost - cost.min()) / np.ptp(cost)
    assert groups(plan) == plans[int(np.argmin(value))][0]
    sizes = [len(g) for g in groups(plan)]
    assert max(sizes) - min(sizes) <= 4  # one prompt


def test_rlhfless_keeps_its_least_actors_and_can_switch_the_cut_off():
    assert len(RLHFless(min_actors=7).plan(*given(log_normal_workload())).actors) >= 7
    assert make_policy("rlhfless", tau=1.0).plan(*given(log_normal_workload())).rule is None


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"name": 3}, "policy is 3"), ({"name": None}, "policy is None"), ({"tau": "x"}, "tau is 'x'"),
        ({"static_actors": "2"}, "static_actors is '2'"), ({"static_actors": 1.5}, "static_actors is 1.5"),
        ({"hold": "x"}, "hold is 'x'"),
    ],
)  # fmt: skip
def test_parameters_of_another_type_are_refused_in_one_sentence(given, named):
    with refused(PolicyError, named):
        make_policy(**{"name": "static", **given})


def test_unknown_names_are_refused_with_the_known_ones():
    with refused(PolicyError, "'greedy'"):
        make_policy("greedy")


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_plans_every_response_once_and_evaluate_agrees(name):
    work = log_normal_workload(20, 3, seed=2)
    plan = make_policy(name).plan(*given(work))
    assert plan.policy == name
    taken = evaluate(plan, PlanningProblem(work, CLUSTER, LATENCY))
    assert (plan.makespan_s, plan.gpu_seconds) == (pytest.approx(taken.makespan_s), pytest.approx(taken.gpu_seconds))
    assert len({g for a in plan.actors for g in a.gpu_ids}) == 2 * len(plan.actors)
    assert all(a.gpu_ids[0] // 8 == a.gpu_ids[1] // 8 == a.node for a in plan.actors)


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_refuses_what_no_actor_can_hold(name):
    tight = replace(LATENCY, kv_capacity_tokens=2100)
    with refused(PlanningError):
        make_policy(name).plan(*given(log_normal_workload(), latency=tight))


def test_the_ladder_has_one_name_per_rung_and_only_its_last_knows_the_truth():
    rungs = ladder()
    assert [p.name for p in rungs] == [
        "static",
        "right-sizing",
        "random",
        "spread",
        "fold",
        "solver+replan",
        "oracle+replan",
    ]
    assert [p.clairvoyant for p in rungs] == [False] * 6 + [True]
    assert [p.name for p in ladder("least-loaded")] == ["least-loaded, held", *(p.name for p in rungs[1:])]
    assert {actor.release for actor in ladder("least-loaded")[0].plan(*given(log_normal_workload())).actors} == {"generation"}
    drafting = ladder(drafting=True)
    assert [p.name for p in drafting[5:]] == ["solver+replan", "solver+replan, drafts", "oracle+replan, drafts"]
    assert [p.clairvoyant for p in drafting[5:]] == [False, False, True]
    assert [p.plan(*given(log_normal_workload())).drafting is None for p in drafting] == [True] * 6 + [False] * 2
    with refused(PolicyError, "'random'"):
        ladder("random")
    assert [name for name in POLICIES if make_policy(name).clairvoyant] == ["oracle", "oracle+replan"]


# --- rules -----------------------------------------------------------------------------------------------------------


def view(
    actor: int, running: range | tuple[int, ...], *, completed: int = 0, free: int = 0, waiting=(), arriving=()
) -> ActorView:
    count = len(running) + len(waiting) + len(arriving)
    return ActorView(actor, 2, completed + count, completed, tuple(running), tuple(waiting), tuple(arriving), free)


def state(*views: ActorView, total: int = 100) -> StepState:
    unfinished = {r for v in views for r in (*v.unfinished, *v.arriving)}
    complete = tuple(i not in unfinished for i in range(total))
    return StepState.of(1.0, views, np.zeros(total, np.int64), complete, np.zeros(total, np.int64))


def cut_actors(decisions) -> list[int]:
    assert all(isinstance(d, Cut) for d in decisions)
    return [d.actor for d in decisions]


def test_the_local_cut_comes_at_tau_of_the_assigned_responses():
    rule = LocalCut(0.7)
    assert rule.next_trigger(view(0, range(10))).completions == 7
    assert rule.next_trigger(view(1, range(3))).completions == 3  # ceil(2.1)
    assert rule.decide(1.0, state(view(0, range(4), completed=6), view(1, range(10, 20), free=9))) == []
    (cut,) = rule.decide(1.0, state(view(0, range(3), completed=7), view(1, range(10, 20), free=9)))
    assert (cut.actor, [m.to_actor for m in cut.moves], [m.response for m in cut.moves]) == (0, [1, 1, 1], [0, 1, 2])


def test_the_local_cut_waits_for_free_slots_and_comes_later():
    rule = LocalCut(0.7)
    for v in (view(0, range(10)), view(1, range(10, 20))):
        rule.next_trigger(v)
    due, full = view(0, range(3), completed=7), view(1, range(10, 18), completed=2, free=2)
    assert rule.decide(1.0, state(due, full)) == []
    assert rule.next_trigger(full) == Trigger(
        7, step_completions=90
    )  # 89 are complete: the next one anywhere may free the slot
    assert rule.next_trigger(due) == Trigger(None, step_completions=90)
    roomy = view(1, range(10, 17), completed=3, free=3)
    assert cut_actors(rule.decide(1.0, state(due, roomy))) == [0]


def test_the_local_cut_spreads_over_the_least_loaded_and_never_cuts_the_last_actor():
    rule = LocalCut(0.5)
    for a in range(3):
        rule.next_trigger(view(a, range(a * 10, a * 10 + 10)))
    both = state(
        view(0, range(2), completed=8, free=8), view(1, range(10, 13), completed=7, free=8), view(2, range(20, 30), free=1)
    )
    cuts = rule.decide(1.0, both)
    assert cut_actors(cuts) == [0]  # fewest unfinished first; actor 1 receives, so it goes on
    assert [m.to_actor for m in cuts[0].moves] == [1, 1]
    alone = state(view(0, range(2), completed=8, free=8))
    assert rule.decide(1.0, alone) == []


def test_the_global_cut_comes_once_when_fewer_than_the_threshold_are_unfinished():
    rule = GlobalCut(4, 12)
    three = [view(0, range(2), free=9), view(1, range(4, 5), free=9), view(2, range(8, 9), free=9)]
    assert rule.decide(1.0, state(*three, total=12)) == []  # 4 are not fewer than 4
    three[0] = view(0, range(1), free=9)
    assert cut_actors(rule.decide(1.0, state(*three, total=12))) == [1, 2]
    assert rule.next_trigger(three[0]) is None
    assert rule.decide(1.0, state(*three, total=12)) == []


def test_the_global_cut_keeps_as_few_actors_as_hold_the_rest():
    rule = GlobalCut(10, 40)
    views = [
        view(0, range(4), free=1),
        view(1, range(10, 13), free=2),
        view(2, range(20, 21), free=9),
        view(3, range(30, 31), free=9),
    ]
    assert cut_actors(rule.decide(1.0, state(*views, total=40))) == [2, 3]


@pytest.mark.parametrize(("alive", "kept"), [(64, 4), (63, 4), (37, 4), (36, 3), (17, 3), (16, 2), (4, 1), (1, 1)])
def test_fold_keeps_the_square_root(alive, kept):
    """nu b / a = 1/4: sqrt(alive / 4) actors, rounded up; the others are drained."""
    model = LatencyModel("x", 1, 0.01, 0.001)
    rule = DrainingFold(nu=2.5, latency=model, total=64, actors=4)
    each = np.array_split(np.arange(alive), 4)
    views = [view(a, tuple(part.tolist()), free=100) for a, part in enumerate(each)]
    rule.decide(1.0, state(*views, total=64))
    assert rule.actors == kept


def test_fold_counts_the_kv_tokens_of_a_response_as_part_of_its_load():
    """b + c * context = 0.001 + 1e-5 * 300 = 4 times b: twice as many actors."""
    model = LatencyModel("x", 1, 0.01, 0.001, 1e-5)
    rule = DrainingFold(nu=2.5, latency=model, total=16, actors=8)
    views = [view(a, (2 * a, 2 * a + 1), free=100) for a in range(8)]
    now = replace(state(*views, total=16), prompt_tokens=np.full(16, 100), generated_tokens=np.full(16, 200))
    rule.decide(1.0, now)
    assert rule.actors == 4


def test_fold_needs_no_base_time():
    """With a = 0 more actors cost nothing: all that there are go on."""
    work = log_normal_workload(8)
    plan = Fold().plan(*given(work, latency=LatencyModel("x", 2, 0.0, 1e-3)))
    assert len(plan.actors) > 1
    record = executed(plan, work, LatencyModel("x", 2, 0.0, 1e-3))
    assert record.moves == 0


def test_fold_plans_as_its_base_and_counts_nu_in_the_plans_own_units():
    work = log_normal_workload()
    plan, base = Fold().plan(*given(work, seed=7)), Random().plan(*given(work, seed=7))
    assert groups(plan) == groups(base)
    assert len(base.actors) > 1
    assert plan.rule.nu == pytest.approx(0.7 * base.gpu_seconds / (0.3 * 2 * base.makespan_s))
    assert Fold().plan(*given(work, objective=Objective(1.0))).rule is None


# --- in the course of a step -----------------------------------------------------------------------------------------


@dataclass
class Watched:
    """A rule with a note of what it saw and decided."""

    rule: object
    seen: list[StepState] = field(default_factory=list)
    cuts: list[tuple[StepState, list[Cut | Move]]] = field(default_factory=list)
    name: str = "watched"

    def next_trigger(self, v):
        return self.rule.next_trigger(v)

    def decide(self, now_s, s):
        decisions = self.rule.decide(now_s, s)
        self.seen.append(s)
        if decisions:
            self.cuts.append((s, decisions))
        return decisions


def executed(plan, work: Workload, latency: LatencyModel = LATENCY):
    prompts = work.prompt_tokens[work.prompt_of].tolist()
    requests = [
        Request(i, p, work.max_response_tokens, target_tokens=n)
        for i, (p, n) in enumerate(zip(prompts, work.response_tokens.tolist(), strict=True))
    ]
    return run_step(plan, requests, SimulatedEngine, latency, CLUSTER)


@pytest.mark.parametrize("seed", range(6))
def test_the_global_cut_happens_at_the_very_completion_that_goes_below_the_threshold(seed):
    work = log_normal_workload(16, seed=seed)
    plan = RLHFuse().plan(*given(work))
    record = executed(replace(plan, rule=Watched(plan.rule)), work)
    watched = record.rule
    ((at, _),) = watched.cuts
    ends = sorted(c.time_s for c in record.completions.values())
    threshold = round(0.2 * 64)
    # the first moment with fewer than the threshold unfinished (several responses may end in one iteration)
    assert at.now_s == pytest.approx(ends[64 - threshold])
    assert at.unfinished_count < threshold


@pytest.mark.parametrize("seed", range(6))
def test_fold_in_a_step_keeps_at_most_the_square_root(seed):
    """At every decision at most ceil(sqrt(...)) actors are not drained, and a drained one stays so."""
    work = log_normal_workload(32, seed=seed)
    plan = Fold().plan(*given(work, latency=replace(LATENCY, per_response_s=5e-4, per_kv_token_s=0.0, start_s=0.0)))
    nu, model = plan.rule.nu, plan.rule.latency
    kept = []

    @dataclass
    class Counted(Watched):
        def decide(self, now_s, s):
            moves = super().decide(now_s, s)
            kept.append(self.rule.actors)
            return moves

    watched = executed(replace(plan, rule=Counted(plan.rule)), work).rule

    def wanted(unfinished: int) -> int:
        return max(1, math.ceil(math.sqrt(nu * model.per_response_s * unfinished / model.base_s) - 1e-9))

    assert watched.seen
    assert kept[0] == min(wanted(watched.seen[0].unfinished_count), len(plan.actors))
    assert all(n <= wanted(s.unfinished_count) for n, s in zip(kept, watched.seen, strict=True))
    assert all(b <= a for a, b in itertools.pairwise(kept))


@pytest.mark.parametrize("seed", range(3))
def test_the_local_cut_in_a_step_respects_slots(seed):
    work = log_normal_workload(32, seed=seed)
    latency = replace(LATENCY, max_batch=20)
    plan = RLHFless(min_actors=7).plan(*given(work, latency=latency))
    watched = executed(replace(plan, rule=Watched(plan.rule)), work, latency).rule
    assigned = {i: len(a.responses) for i, a in enumerate(plan.actors)}
    assert watched.cuts
    for s, cuts in watched.cuts:
        views = {v.actor: v for v in s.actors}
        for cut in cuts:
            assert views[cut.actor].completed >= math.ceil(0.7 * assigned[cut.actor])
            assert sorted(m.response for m in cut.moves) == sorted(views[cut.actor].unfinished)
        for actor, v in views.items():
            assert sum(m.to_actor == actor for cut in cuts for m in cut.moves) <= v.free_slots


class Eager(Watched):
    """The same rule, asked at every completion."""

    def next_trigger(self, v):
        self.rule.next_trigger(v)
        return Trigger(step_completions=1)


@pytest.mark.parametrize("slots", [14, 20, 64])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("policy", [RLHFless(min_actors=6), RLHFuse()], ids=lambda p: p.name)
def test_cuts_come_no_later_than_if_asked_at_every_completion(policy, seed, slots):
    work, latency = log_normal_workload(32, seed=seed), replace(LATENCY, max_batch=slots)
    records = [
        executed(replace(plan, rule=how(plan.rule)), work, latency)
        for how in (Watched, Eager)
        for plan in [policy.plan(*given(work, latency=latency))]
    ]
    assert records[0].events == records[1].events
    assert len(records[0].rule.seen) < len(records[1].rule.seen)
    ends = [[r.completions[i].time_s for i in range(len(work))] for r in records]
    np.testing.assert_allclose(*ends, rtol=1e-12)


# --- what a prediction is worth ----------------------------------------------------------------------------------------


def test_shuffled_predictions_lose_the_gain_of_grouping():
    """The solver on true means of the prompts beats the solver on the same numbers given to the wrong prompts."""
    values = []
    for seed in range(5):
        truth = log_normal_workload(64, seed=seed)
        mean = np.repeat(truth.response_tokens.reshape(64, 4).mean(axis=1), 4)
        wrong = np.repeat(np.random.default_rng(seed).permutation(mean[::4]), 4)
        row = []
        for lengths in (mean, wrong):
            plan = make_policy("solver").plan(*given(truth.with_response_tokens(lengths)))
            taken = evaluate(plan, PlanningProblem(truth, CLUSTER, LATENCY))
            row.append(0.7 * math.log(taken.makespan_s) + 0.3 * math.log(taken.gpu_seconds))
        values.append(row)
    informed, shuffled = np.mean(values, axis=0)
    assert informed < shuffled - 0.05


def test_the_rest_of_the_step_moves_the_right_size():
    """A learner that idles as long as generation lasts makes time dearer, so more actors are right."""
    work, slow = log_normal_workload(), replace(LATENCY, per_response_s=5e-4, start_s=1.0)
    alone = Random().plan(*given(work, latency=slow, objective=Objective(0.2)))
    beside = Random().plan(*given(work, latency=slow, objective=Objective(0.2), phases=NonGenerationPhases(0, 0, 64)))
    assert len(beside.actors) > len(alone.actors)


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize(("argument", "needed"), [("problem", "a PlanningProblem"), ("options", "a PlanningOptions")])
def test_every_policy_says_which_input_it_needs(name, argument, needed):
    problem, options = given(log_normal_workload(4))
    for wrong in (None, "soon", 3, log_normal_workload(4)):
        with pytest.raises(PlanningError, match=f"^{argument} is .*; {needed} is needed$"):
            make_policy(name).plan(**{"problem": problem, "options": options, argument: wrong})
