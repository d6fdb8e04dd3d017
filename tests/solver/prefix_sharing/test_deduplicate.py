"""Deduplicated prefill of a plan: its numbers are those of ``evaluate`` and of the engines, and it never costs more."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from error_messages import refused
from hypothesis import given, settings
from hypothesis import strategies as st
from solver_strategies import l40s, lognormal_workload

import solver
from rlhfless.latency import load_profile
from solver.model.cluster import GpuPool, MixedCluster
from solver.model.plan import ActorPlan, Plan, Prefill
from solver.prefix_sharing.choose_prefixes import PrefixCosts, choose_prefixes
from solver.prefix_sharing.deduplicate import computations, deduplicate
from solver.prefix_sharing.placement import place
from solver.prefix_sharing.prefix_tree import PrefixTree
from solver.timing.batch import Batch
from solver.timing.build_plan import assemble, timed
from solver.timing.evaluate import admission_of, cached_tokens
from solver.timing.timeline import timeline

L40S = l40s(
    prefill_per_token_s=3e-5, prefill_base_s=5e-3, transfer_base_s=5e-3, transfer_per_kv_token_s=1.2e-6, start_s=0.1, sync_s=0.1
)


def computed_tokens(plan, workload, latency):
    """Prompt tokens that the decode actors' engines compute."""
    total = 0
    for actor in plan.actors:
        chosen = np.asarray(actor.responses, dtype=np.int64)
        cached = cached_tokens(workload, chosen, actor.prefixes, actor.prefix_tokens, actor.shares_prompts)
        batch = Batch.of(workload, chosen, cached, admission_of(latency, actor.max_batch))
        total += int(timeline(batch, latency).prefill_tokens.sum())
    return total


def distinct_prefixes(prompts, prefill):
    """Every prefix, as its token ids, that a prefill actor has to compute a token for."""
    pairs = zip(prefill.prompts, prefill.prefix_tokens, strict=True)
    return {tuple(prompts[p][:n]) for p, tokens in pairs for n in range(1, tokens + 1)}


@st.composite
def steps(draw):
    """Prompts over few token ids, ragged groups (some prompts without responses), split over up to three actors at random."""
    prompts = draw(st.lists(st.lists(st.integers(0, 1), max_size=6), min_size=1, max_size=4))
    count = draw(st.integers(1, 8))
    owners = draw(st.lists(st.integers(0, len(prompts) - 1), min_size=count, max_size=count))
    tokens = draw(st.lists(st.integers(0, 12), min_size=count, max_size=count))
    actors = draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))
    workload = solver.Workload([len(p) for p in prompts], owners, tokens, max_response_tokens=16)
    latency = solver.LatencyModel(
        "small", 1, 1.0, 0.1, 0.01, prefill_base_s=draw(st.sampled_from([0.0, 0.5])), prefill_per_token_s=0.5,
        transfer_base_s=draw(st.sampled_from([0.0, 0.3])), start_s=1.0, max_batch=draw(st.sampled_from([2, 64])),
        kv_bytes_per_token=8.0,
    )  # fmt: skip
    cluster = solver.Cluster(2, 2, 1, node_bytes_per_s=80.0, network_bytes_per_s=draw(st.sampled_from([40.0, 8.0])))
    groups = [[r for r in range(count) if actors[r] == j] for j in sorted(set(actors))]
    return prompts, workload, cluster, latency, groups


@given(steps(), st.sampled_from([None, 0, 1]), st.booleans(), st.booleans(), st.sampled_from([None, 0, 5]))
@settings(max_examples=40, deadline=None)
def test_the_numbers_are_those_of_evaluate_and_of_the_engines(step, learner_node, share, late_start, capacity):
    prompts, workload, cluster, latency, groups = step
    plan = assemble("random", groups, solver.PlanningProblem(workload, cluster, latency))
    objective = solver.Objective(time_weight=0.5)
    found = deduplicate(
        plan,
        solver.PlanningProblem(workload, cluster, latency, objective),
        prompts,
        share_in_actors=share,
        learner_node=learner_node,
        late_start=late_start,
        capacity_tokens=capacity,
    )
    taken = solver.evaluate(found.plan, solver.PlanningProblem(workload, cluster, latency))
    assert (found.plan.makespan_s, found.plan.gpu_seconds) == (taken.makespan_s, taken.gpu_seconds)
    assert [a.predicted_s for a in found.plan.actors] == taken.done_s.tolist()
    assert objective.value(taken.makespan_s, taken.gpu_seconds, (plan.makespan_s, plan.gpu_seconds)) <= 1 + 1e-9
    assert found.tokens_before == computed_tokens(plan, workload, latency)
    once = found.choice.computed_tokens if found.how == "prefill actor" else 0
    if found.how == "prefill actor":
        assert once == found.plan.prefill.computed_tokens == len(distinct_prefixes(prompts, found.plan.prefill))
    assert found.tokens_after == once + computed_tokens(found.plan, workload, latency) <= found.tokens_before
    assert once <= (99 if capacity is None else capacity)
    if found.how == "none":
        assert found.plan is plan
    if found.how != "prefill actor":
        assert (found.placement, found.plan.prefill) == (None, None)
    for actor in found.plan.actors:
        assert set(actor.prefixes) <= set(actor.prompts)
        for prompt, tokens in zip(actor.prefixes, actor.prefix_tokens, strict=True):
            computed = dict(zip(found.plan.prefill.prompts, found.plan.prefill.prefix_tokens, strict=True))
            assert 0 < tokens <= computed[prompt] <= workload.prompt_tokens[prompt]
    assert sorted(r for a in found.plan.actors for r in a.responses) == list(range(len(workload)))


def test_one_prefill_per_prompt_instead_of_three():
    """66 % fewer prefill tokens (RLHFless, arXiv 2602.22718): three samples per prompt on three actors, one prefill for all."""
    workload = solver.Workload.grid([1000] * 16, np.full((16, 3), 200), max_response_tokens=256)
    groups = np.arange(48).reshape(16, 3).T  # every sample of a prompt on another actor
    cluster = solver.Cluster(2, 8, 2)
    plan = assemble("split", groups, solver.PlanningProblem(workload, cluster, L40S))
    found = deduplicate(
        plan, solver.PlanningProblem(workload, cluster, L40S, solver.Objective(0.0)), learner_node=0, late_start=True
    )
    assert found.how == "prefill actor"
    assert 1 - found.tokens_after / found.tokens_before == pytest.approx(2 / 3)
    assert all(a.prefixes == tuple(range(16)) for a in found.plan.actors)
    assert found.plan.gpu_seconds < plan.gpu_seconds
    assert found.plan.notes["prefill"] == {"how": "prefill actor", "tokens_before": 48000, "tokens_after": 16000}
    assert "48,000 prefill tokens before, 16,000 after (66.7% fewer)" in repr(found)
    together = assemble("together", np.arange(48).reshape(3, 16), solver.PlanningProblem(workload, cluster, L40S))
    kept = deduplicate(together, solver.PlanningProblem(workload, cluster, L40S), learner_node=0)
    assert kept.tokens_after == 16000
    assert {5, 10} <= set(kept.plan.prefill.prompts)  # these two lie on two actors each
    assert kept.choice.received_tokens.sum() < found.choice.received_tokens.sum()
    own = deduplicate(
        together, solver.PlanningProblem(workload, cluster, L40S)
    )  # GPUs of its own would have to pay for two prompts
    assert (own.how, own.tokens_after) == ("shared in actors", 18000)


def test_a_shared_instruction_is_computed_once():
    """Prompts of 900 common and 10 own tokens: computing each once saves nearly all of what sharing in actors leaves."""
    ids = [[7] * 900 + [i] * 10 for i in range(32)]
    workload = solver.Workload.grid([910] * 32, np.full((32, 2), 100), max_response_tokens=128)
    cluster = solver.Cluster(1, 8, 2)
    plan = assemble("random", np.arange(64).reshape(4, 16), solver.PlanningProblem(workload, cluster, L40S))
    found = deduplicate(plan, solver.PlanningProblem(workload, cluster, L40S), ids, learner_node=0)
    assert found.how == "prefill actor"
    assert found.choice.computed_tokens == found.tokens_after == 900 + 32 * 10
    assert found.tokens_before == 64 * 910
    assert found.plan.makespan_s < plan.makespan_s
    assert found.plan.gpu_seconds < plan.gpu_seconds


def test_the_trunk_of_a_tree_of_prompts_saves_nearly_everything(monkeypatch):
    """400 common tokens, 300 + 150 of one of 8 blocks in two versions, then a question: 5,200 of 81,346 distinct tokens,
    computed once, save 52.6 of the 58.8 actor-seconds that computing all of them once saves."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    import prefixes

    prompts = prefixes.synthetic(np.random.default_rng(0))
    tree = PrefixTree.of_token_ids(prompts)
    rng = np.random.default_rng(1)
    workload = solver.Workload.grid([len(p) for p in prompts], np.full((512, 4), 200), max_response_tokens=2048)
    cluster = solver.Cluster(2, 8, 2, node_bytes_per_s=32e9, network_bytes_per_s=12.5e9)
    latency = load_profile("l40s-qwen2.5-3b-tp2", prefill="separate")
    plan = assemble("random", np.array_split(rng.permutation(2048), 8), solver.PlanningProblem(workload, cluster, latency))
    trunk = deduplicate(
        plan,
        solver.PlanningProblem(workload, cluster, latency),
        prompts,
        learner_node=0,
        share_in_actors=False,
        capacity_tokens=5200,
    )
    assert trunk.how == "prefill actor"
    assert set(trunk.plan.actors[0].prefix_tokens) == {850}
    assert (trunk.choice.computed_tokens, trunk.plan.prefill.computed_tokens) == (5200, 5200)
    assert trunk.tokens_after == 5200 + 4 * sum(len(p) - 850 for p in prompts)
    per_token_s = latency.kv_bytes_per_token / cluster.network_bytes_per_s
    own_s = (latency.prefill_base_s, latency.prefill_per_token_s)
    costs = PrefixCosts(latency.prefill_per_token_s, latency.transfer_base_s, per_token_s, *own_s)
    everything = choose_prefixes(tree, computations(plan, workload), costs)
    assert (everything.computed_tokens, everything.net_s) == (81346, pytest.approx(58.84, abs=0.01))
    saved_s = sum(a.predicted_s for a in plan.actors) - sum(a.predicted_s for a in trunk.plan.actors)
    assert saved_s == pytest.approx(52.65, abs=0.05)
    assert trunk.plan.makespan_s < 0.75 * plan.makespan_s


def test_partial_prefixes_beat_whole_prompts():
    """Nobody waits for tokens that one actor alone has a use for: these it computes itself, beside the prefill actor."""
    ids = [[7] * 900 + [i] * 300 for i in range(64)]
    workload = solver.Workload.grid([1200] * 64, np.full((64, 2), 100), max_response_tokens=128)
    cluster = solver.Cluster(1, 8, 2)
    plan = assemble("random", np.arange(128).reshape(4, 32), solver.PlanningProblem(workload, cluster, L40S))
    found = deduplicate(plan, solver.PlanningProblem(workload, cluster, L40S), ids, learner_node=0)
    assert 900 <= found.plan.prefill.computed_tokens < 900 + 64 * 300 == found.tokens_after
    receives_all = [replace(a, shares_prompts=True, prefixes=a.prompts, prefix_tokens=(1200,) * 16) for a in plan.actors]
    whole = place(
        replace(plan, actors=tuple(receives_all)),
        solver.PlanningProblem(workload, cluster, L40S),
        tree=PrefixTree.of_token_ids(ids),
        learner_node=0,
    )
    assert found.plan.makespan_s < whole.plan.makespan_s < plan.makespan_s
    assert found.plan.gpu_seconds < whole.plan.gpu_seconds


def test_nothing_is_kept_that_does_not_pay():
    workload = solver.Workload([100, 100], [0, 1], [50, 40])
    cluster = solver.Cluster(1, 4, 2)
    plan = assemble("single", [[0], [1]], solver.PlanningProblem(workload, cluster, L40S))
    found = deduplicate(plan, solver.PlanningProblem(workload, cluster, L40S), learner_node=0)
    assert found.how == "none"
    assert found.plan is plan
    assert found.choice.net_s == 0
    slow = replace(L40S, transfer_per_kv_token_s=1.0)
    split = solver.Workload.grid([100], [[50, 40]])
    given = assemble("split", [[0], [1]], solver.PlanningProblem(split, cluster, slow))
    assert deduplicate(given, solver.PlanningProblem(split, cluster, slow), learner_node=0).plan is given


def test_a_prefill_actor_has_to_pay_for_its_gpus():
    """On the learner's GPUs it pays; with GPUs of its own it does not, for so short a step."""
    ids = [[7] * 900 + [i] * 10 for i in range(32)]
    workload = solver.Workload.grid([910] * 32, np.full((32, 2), 10), max_response_tokens=128)
    cluster = solver.Cluster(1, 10, 2)
    plan = assemble(
        "random", np.arange(64).reshape(4, 16), solver.PlanningProblem(workload, cluster, replace(L40S, start_s=60.0))
    )
    cost = solver.Objective(time_weight=0.0)
    hows = [
        deduplicate(plan, solver.PlanningProblem(workload, cluster, replace(L40S, start_s=60.0), cost), ids, learner_node=n).how
        for n in (0, None)
    ]
    assert hows == ["prefill actor", "shared in actors"]


def test_a_real_size_is_quick_and_counts_agree():
    workload = lognormal_workload(128, 4)
    rng = np.random.default_rng(1)
    ids = [np.concatenate([np.zeros(40, int), rng.integers(1, 999, n - 40)]) for n in workload.prompt_tokens]
    cluster = solver.Cluster(2, 8, 2, node_bytes_per_s=32e9, network_bytes_per_s=12.5e9)
    plan = solver.plan(solver.PlanningProblem(workload, cluster, L40S))
    counts = computations(plan, workload)
    assert counts.sum() == len(workload)
    found = deduplicate(plan, solver.PlanningProblem(workload, cluster, L40S), ids, learner_node=0)
    assert found.tokens_before == int((counts @ workload.prompt_tokens).sum())
    assert found.tokens_after < found.tokens_before
    assert found.plan.makespan_s <= plan.makespan_s
    assert plan.gap is not None
    assert (found.plan.value, found.plan.lower_bound, found.plan.gap) == (None, None, None)  # they were the other plan's


def test_scenarios_and_mixed_pools_agree_with_evaluate():
    """Five scenarios of lengths, actors of two kinds and sizes in two pools."""
    base = lognormal_workload(24, 3, mean_log=4.0)
    rng = np.random.default_rng(2)
    scenarios = np.clip(base.response_tokens * rng.lognormal(0, 0.3, (5, len(base))), 1, 2048)
    workload = solver.Workload(base.prompt_tokens, base.prompt_of, scenarios)
    models = {("a", 2): replace(L40S, kind="a"), ("b", 1): replace(L40S, kind="b", gpus_per_actor=1, base_s=9e-3)}
    cluster = MixedCluster([GpuPool("a", 2, 4, usd_per_gpu_hour=3.0), GpuPool("b", 1, 2, usd_per_gpu_hour=1.0)])
    order = rng.permutation(len(workload))
    where = [("a", (0, 1), 0), ("a", (4, 5), 1), ("b", (8,), 2)]
    actors = tuple(
        ActorPlan(kind, gpus, node, tuple(part.tolist()), tuple(dict.fromkeys(workload.prompt_of[part].tolist())), 64)
        for (kind, gpus, node), part in zip(where, np.array_split(order, 3), strict=True)
    )
    plan = timed(Plan(actors, "random", 0, 0, 0), solver.PlanningProblem(workload, cluster, models))
    ids = [np.concatenate([np.zeros(40, int), np.full(n - 40, i)]) for i, n in enumerate(workload.prompt_tokens)]
    for learner_node in (0, 2, None):
        found = deduplicate(plan, solver.PlanningProblem(workload, cluster, models), ids, learner_node=learner_node)
        taken = solver.evaluate(found.plan, solver.PlanningProblem(workload, cluster, models))
        assert (found.plan.makespan_s, found.plan.gpu_seconds) == (taken.makespan_s, taken.gpu_seconds)
        assert found.tokens_after < found.tokens_before
        for a in found.plan.actors:
            assert (a.kind == "a") == (a.node < 2)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"token_ids": [[1, 2]]}, ("token_ids",)),
        ({"token_ids": [[1, 2], [1]]}, ("token_ids", "prompt_tokens")),
        ({"workload": solver.Workload([2, 3], [0, 1], [5, 4], [0, 2])}, ("response 1",)),
        ({"learner_node": 9}, ("learner_node",)),
        ({"capacity_tokens": -1}, ("capacity_tokens",)),
    ],
)
def test_nonsense_is_refused(change, sentence):
    workload = solver.Workload([2, 3], [0, 1], [5, 4])
    cluster = solver.Cluster(1, 4, 2)
    plan = assemble("two", [[0], [1]], solver.PlanningProblem(workload, cluster, L40S))
    options = {"learner_node": 0, **change}
    asked = solver.PlanningProblem(options.pop("workload", workload), cluster, L40S)
    with refused(solver.PlanningError, *sentence):
        deduplicate(plan, asked, **options)
    given = replace(plan, prefill=Prefill((0,), (2,), 2, 0.1))
    with refused(solver.PlanningError):
        deduplicate(given, solver.PlanningProblem(workload, cluster, L40S))
