"""Placement: nobody shares a GPU, the heaviest are nearest, waits follow from the links, lateness is priced."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from error_messages import refused
from hypothesis import given, settings
from hypothesis import strategies as st

import solver
from rlhfless.latency import load_profile
from solver.model.cluster import GpuPool, MixedCluster
from solver.model.plan import ActorPlan, Plan
from solver.prefix_sharing.placement import (
    bandwidth_bytes_per_s,
    nodes_of,
    place,
    prefill_done_s,
    schedule_transfers,
    transfer_coefficients,
)
from solver.prefix_sharing.prefix_tree import PrefixTree
from solver.timing.build_plan import assemble

# An iteration takes 1 s, a prompt token 0.1 s of prefill, a KV token 10 bytes; an actor is up after 2 s + 1 s.
LATENCY = solver.LatencyModel(
    "hand", 2, 1.0, 0.0, prefill_per_token_s=0.1, start_s=2.0, sync_s=1.0, transfer_base_s=0.5, kv_bytes_per_token=10.0
)
CLUSTER = solver.Cluster(2, 4, 2, node_bytes_per_s=100.0, network_bytes_per_s=20.0)  # 0.1 s and 0.5 s per token
WORKLOAD = solver.Workload([10, 20, 30], [0, 1, 2], [5, 50, 20])


def planned(prefill=(0, 1, 2), groups=((0,), (1,), (2,)), workload=WORKLOAD, cluster=CLUSTER, latency=LATENCY):
    plan = assemble("hand", groups, solver.PlanningProblem(workload, cluster, latency))
    received = [tuple(p for p in a.prompts if p in prefill) for a in plan.actors]
    actors = [
        replace(a, prefixes=prompts, prefix_tokens=tuple(workload.prompt_tokens[list(prompts)].tolist()))
        for a, prompts in zip(plan.actors, received, strict=True)
    ]
    return replace(plan, actors=tuple(actors))


def check_gpus(plan, cluster):
    """No GPU twice, every actor within its node."""
    ids = [g for a in plan.actors for g in a.gpu_ids]
    assert len(set(ids)) == len(ids)
    first, node = 0, 0
    for pool in cluster.pools:
        for _ in range(pool.nodes):
            inside = set(range(first, first + pool.gpus_per_node))
            for a in plan.actors:
                assert (a.node == node) == bool(inside & set(a.gpu_ids)), "GPUs belong to the node"
                assert a.node != node or (inside >= set(a.gpu_ids) and a.kind == pool.kind)
            first, node = first + pool.gpus_per_node, node + 1


def test_times_by_hand_on_the_learners_gpus():
    """Prefill for actor 1 (20 tokens) is done at 2 s, for 2 (30) at 5 s, for 0 (10) at 6 s; 1 and 2 are near, 0 is far."""
    placement = place(planned(), solver.PlanningProblem(WORKLOAD, CLUSTER, LATENCY), learner_node=1)
    check_gpus(placement.plan, CLUSTER)
    assert [a.node for a in placement.plan.actors] == [0, 1, 1]
    assert (placement.longest, placement.prefill_node, placement.prefill_gpu_ids) == (1, 1, ())
    assert placement.prefill_s == pytest.approx(6)
    assert placement.transfer_s == pytest.approx([0.5 + 10 * 0.5, 0.5 + 20 * 0.1, 0.5 + 30 * 0.1])
    arrives = [6 + 5.5, 3 + 2.5, 5.5 + 3.5]  # 0: computed; 1: up; 2: the link is free
    assert placement.arrives_s == pytest.approx(arrives)
    assert [a.receive_s for a in placement.plan.actors] == pytest.approx([t - 3 for t in arrives])
    done = [t + n for t, n in zip(arrives, (5, 50, 20), strict=True)]
    assert solver.evaluate(placement.plan, solver.PlanningProblem(WORKLOAD, CLUSTER, LATENCY)).done_s == pytest.approx(done)
    assert placement.slack_s == pytest.approx([done[1] - t for t in done])
    assert placement.plan.makespan_s == pytest.approx(55.5)
    assert placement.late == ()
    assert "actor 1: node 1, transfer 2.500 s, decodes from 5.50 s to 55.50 s, slack 0.00 s" in repr(placement)


def test_the_papers_timing_waits_for_the_whole_prefill():
    placement = place(planned(), solver.PlanningProblem(WORKLOAD, CLUSTER, LATENCY), learner_node=1, streamed=False)
    assert placement.arrives_s == pytest.approx([6 + 5.5, 6 + 2.5, 8.5 + 3.5])


def test_a_late_start_saves_gpu_seconds_and_no_time():
    early, late = (
        place(planned(), solver.PlanningProblem(WORKLOAD, CLUSTER, LATENCY), learner_node=1, late_start=x)
        for x in (False, True)
    )
    assert late.plan.makespan_s == pytest.approx(early.plan.makespan_s)
    assert [a.start_s for a in late.plan.actors] == pytest.approx([6 - 3, 0, 5.5 - 3])
    assert late.plan.gpu_seconds == pytest.approx(early.plan.gpu_seconds - 2 * (3 + 2.5))


def test_a_prefill_actor_of_its_own_is_billed_by_evaluate():
    placement = place(planned(), solver.PlanningProblem(WORKLOAD, CLUSTER, LATENCY))
    check_gpus(placement.plan, CLUSTER)
    own = placement.plan.actors[3]
    assert (own.responses, own.node, len(own.gpu_ids)) == ((), placement.plan.actors[1].node, 2)
    assert placement.prefill_gpu_ids == own.gpu_ids
    assert placement.prefill_s == pytest.approx(3 + 6)  # it has to start, too
    assert own.predicted_s == pytest.approx(placement.arrives_s.max())
    decode_gpu_s = 2 * sum(a.predicted_s for a in placement.plan.actors[:3])
    assert placement.plan.gpu_seconds == pytest.approx(decode_gpu_s + 2 * own.predicted_s)
    taken = solver.evaluate(placement.plan, solver.PlanningProblem(WORKLOAD, CLUSTER, LATENCY))
    assert (taken.makespan_s, taken.gpu_seconds) == (placement.plan.makespan_s, placement.plan.gpu_seconds)
    again = place(placement.plan, solver.PlanningProblem(WORKLOAD, CLUSTER, LATENCY))
    assert again.plan == placement.plan
    with refused(solver.PlanningError):
        place(planned(groups=[[0, 1], [2]]), solver.PlanningProblem(WORKLOAD, replace(CLUSTER, nodes=1), LATENCY))


def test_without_prefixes_placement_only_chooses_nodes():
    placement = place(planned(prefill=()), solver.PlanningProblem(WORKLOAD, CLUSTER, LATENCY), learner_node=1)
    assert [a.node for a in placement.plan.actors] == [0, 1, 1]
    assert [a.receive_s for a in placement.plan.actors] == [0, 0, 0]
    assert place(planned(prefill=()), solver.PlanningProblem(WORKLOAD, CLUSTER, LATENCY)).prefill_node is None


def test_far_actors_wait_longer_for_their_weights_where_their_size_is_known():
    heavy = replace(LATENCY, weight_bytes=200.0)  # 2 s within the node, 10 s over the network; the model's sync takes 1 s
    placement = place(planned(prefill=()), solver.PlanningProblem(WORKLOAD, CLUSTER, heavy), learner_node=1)
    assert [a.receive_s for a in placement.plan.actors] == pytest.approx([9, 1, 1])


def test_bandwidths_come_from_the_cluster_or_else_from_the_latency_model():
    mixed = MixedCluster(
        [GpuPool("a", 2, 4, node_bytes_per_s=9.0, network_bytes_per_s=5.0), GpuPool("b", 1, 4, network_bytes_per_s=3.0)]
    )
    assert [(node.pool_index, node.first_gpu) for node in nodes_of(mixed)] == [(0, 0), (0, 4), (1, 8)]
    a, b = (nodes_of(mixed)[n].pool for n in (1, 2))
    pairs = ((a, a, True), (a, a, False), (a, b, False), (b, b, True))
    assert [bandwidth_bytes_per_s(*pair) for pair in pairs] == [9.0, 5.0, 3.0, None]
    slow = replace(LATENCY, transfer_per_kv_token_s=7.0)
    assert transfer_coefficients(slow, 100.0) == (0.5, 0.1)
    assert (
        transfer_coefficients(slow, None) == transfer_coefficients(replace(slow, kv_bytes_per_token=0.0), 100.0) == (0.5, 7.0)
    )


def test_a_profile_says_how_many_bytes_a_token_has():
    assert load_profile("l40s-qwen2.5-3b-tp2").kv_bytes_per_token == 36864
    with refused(solver.PlanningError, "weight_bytes"):
        replace(LATENCY, weight_bytes=-1)


def test_mixed_pools_keep_their_actors():
    big = replace(LATENCY, kind="b", gpus_per_actor=4)
    models = {("gpu", 2): LATENCY, ("b", 4): big}
    cluster = MixedCluster([GpuPool("gpu", 1, 4), GpuPool("b", 2, 4, usd_per_gpu_hour=3600.0)])
    actors = (
        ActorPlan("gpu", (0, 1), 0, (0,), (0,), 8),
        ActorPlan("b", (4, 5, 6, 7), 1, (1,), (1,), 8, prefixes=(1,), prefix_tokens=(20,), usd_per_gpu_s=1.0),
        ActorPlan("gpu", (2, 3), 0, (2,), (2,), 8),
    )
    plan = Plan(actors, "hand", 0, 0, 0)
    placement = place(plan, solver.PlanningProblem(WORKLOAD, cluster, models), learner_node=2)
    check_gpus(placement.plan, cluster)
    assert [a.node for a in placement.plan.actors] == [0, 2, 0]
    own = place(plan, solver.PlanningProblem(WORKLOAD, cluster, models)).plan.actors[-1]
    assert (own.kind, len(own.gpu_ids), own.responses) == ("b", 4, ())
    assert own.node != placement.plan.actors[1].node or own.gpu_ids != placement.plan.actors[1].gpu_ids


@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.booleans(), st.booleans(), st.booleans())
@settings(max_examples=40, deadline=None)
def test_no_other_nodes_are_better(seed, actors, streamed, own, shared):
    """Brute force over every assignment of actors to two nodes."""
    rng = np.random.default_rng(seed)
    tokens = np.full(actors, 8) if shared else rng.integers(1, 15, actors)
    workload = solver.Workload(tokens, range(actors), rng.integers(1, 40, actors))
    cluster = solver.Cluster(
        2, 6, 1, node_bytes_per_s=float(rng.choice([40.0, 400.0])), network_bytes_per_s=float(rng.choice([10.0, 40.0]))
    )
    latency = replace(LATENCY, gpus_per_actor=1, transfer_base_s=float(rng.choice([0.0, 0.5])))
    ids = [[1] * 7 + [i] if shared else [i] * n for i, n in enumerate(tokens)]
    plan = planned(range(actors), [[i] for i in range(actors)], workload, cluster, latency)
    tree = PrefixTree.of_token_ids(ids)
    learner = None if own else 0
    placement = place(
        plan, solver.PlanningProblem(workload, cluster, latency), tree=tree, learner_node=learner, streamed=streamed
    )
    check_gpus(placement.plan, cluster)
    decode, order = workload.response_tokens.astype(float), np.argsort(-workload.response_tokens, kind="stable")
    new = np.array([8] + [1] * (actors - 1)) if shared else tokens[order]
    computed = np.empty(actors)
    computed[order] = prefill_done_s(new, latency, 3.0 if own else 0.0, streamed)
    best, pool = np.inf, cluster.pools[0]
    for nodes in itertools.product((0, 1), repeat=actors):
        if sum(n == 0 for n in nodes) > 6 - own:
            continue
        rates = [transfer_coefficients(latency, bandwidth_bytes_per_s(pool, pool, n == 0)) for n in nodes]
        arrives = schedule_transfers(
            np.maximum(3.0, computed), [b + n * t for n, (b, t) in zip(tokens, rates, strict=True)], decode, nodes
        )[1]
        best = min(best, float((arrives + decode).max()))
    assert placement.plan.makespan_s <= best + 1e-9


@given(st.integers(0, 2**32 - 1), st.integers(1, 6))
@settings(max_examples=40, deadline=None)
def test_serving_the_longest_tail_first_is_best_when_all_can_begin(seed, count):
    rng = np.random.default_rng(seed)
    length, tail = rng.integers(1, 9, count), rng.integers(0, 20, count)
    ends = schedule_transfers(np.full(count, 2.0), length, tail, [0] * count)[1]
    best = min(
        max(2 + length[list(order[: n + 1])].sum() + tail[i] for n, i in enumerate(order))
        for order in itertools.permutations(range(count))
    )
    assert (ends + tail).max() == pytest.approx(best)


# Actor 0 is the longest; actor 1, far and waiting for a long prompt, is late although its group is shorter.
LATE = solver.Workload([2, 2, 40], [0, 1, 2, 2], [30, 28, 9, 8])
LATE_PLAN = {"prefill": (2,), "groups": [[0], [1, 2, 3]], "workload": LATE, "cluster": solver.Cluster(2, 2, 2)}
SLOW = replace(LATENCY, transfer_per_kv_token_s=0.1)


def test_a_late_actor_is_priced():
    plan = planned(**LATE_PLAN, latency=SLOW)
    priced = place(plan, solver.PlanningProblem(LATE, LATE_PLAN["cluster"], SLOW), learner_node=0)
    assert priced.late == (1,)
    assert priced.plan.makespan_s == pytest.approx(4 + 0.5 + 4 + 0.2 + 28)


@given(st.integers(0, 2**32 - 1), st.integers(2, 5), st.booleans(), st.booleans())
@settings(max_examples=40, deadline=None)
def test_where_the_papers_inequality_holds_the_other_actors_add_nothing(seed, actors, streamed, late_start):
    """RLHFless, section 4.5: the model, the KV cache and the decoding of a lighter group take no longer than the prefill and
    the decoding of the longest group. Here with all waits, each as long as it can be: for the whole prefill and for every other
    transfer. Then the step ends with the longest group, which waits for its own prefixes only.
    """
    rng = np.random.default_rng(seed)
    tokens, decode_s = rng.integers(1, 15, actors), rng.integers(1, 40, actors)
    latency = replace(LATENCY, gpus_per_actor=1, transfer_base_s=float(rng.choice([0.0, 0.5])))
    near_s, far_s = (latency.transfer_base_s + tokens * latency.kv_bytes_per_token / speed for speed in (100.0, 20.0))
    up_s = latency.start_s + latency.sync_s
    prefill_s = float(latency.prefill_per_token_s * tokens.sum())
    first_s = float(latency.prefill_per_token_s * tokens[0]) if streamed else prefill_s
    begins_s = max(up_s, first_s) + near_s[0]
    lighter_done_s = max(up_s, prefill_s) + far_s.sum() + decode_s[1:].max()
    decode_s[0] = np.ceil(lighter_done_s - begins_s) + rng.integers(0, 3)
    workload = solver.Workload(tokens, range(actors), decode_s)
    cluster = solver.Cluster(2, 6, 1, node_bytes_per_s=100.0, network_bytes_per_s=20.0)
    plan = planned(range(actors), [[i] for i in range(actors)], workload, cluster, latency)
    problem = solver.PlanningProblem(workload, cluster, latency)
    placement = place(plan, problem, learner_node=0, streamed=streamed, late_start=late_start)
    assert (placement.longest, placement.late) == (0, ())
    assert solver.evaluate(placement.plan, problem).makespan_s == pytest.approx(begins_s + decode_s[0])
    assert placement.plan.makespan_s == pytest.approx(begins_s + decode_s[0])


def test_nonsense_is_refused():
    with refused(solver.PlanningError, "learner_node"):
        place(planned(), solver.PlanningProblem(WORKLOAD, CLUSTER, LATENCY), learner_node=2)
    with refused(solver.PlanningError):
        place(replace(planned(), actors=()), solver.PlanningProblem(WORKLOAD, CLUSTER, LATENCY))
    lost = planned()
    with refused(solver.PlanningError, "actor 0", "node 7"):
        place(
            replace(lost, actors=(replace(lost.actors[0], node=7), *lost.actors[1:])),
            solver.PlanningProblem(WORKLOAD, CLUSTER, LATENCY),
        )
