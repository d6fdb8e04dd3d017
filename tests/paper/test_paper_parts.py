"""The parts of the figures: what is possible, length models, workloads, learner times."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from paper_samples import BESIDE

from rlhfless.latency import load_profile
from rlhfless.paper.lengths import GSM8K
from rlhfless.paper.machine import LLAMA_70B_H100, QWEN_3B_L40S, QWEN_7B_L40S
from rlhfless.paper.variants import Deduplicated, FixedActors, PrefillActor
from rlhfless.paper.workloads import Sources, modelled
from rlhfless.scheduling import PlanningOptions, make_policy
from rlhfless.scheduling.assignments import Static
from solver import Cluster, Workload
from solver.bounds.headroom import share_of_headroom, summed_bounds
from solver.bounds.schedules import ScheduleBound
from solver.model.problem import PlanningProblem
from solver.timing.evaluate import evaluate

CLUSTER = Cluster(2, 8, 2, "l40s")
LATENCY = load_profile("l40s-qwen2.5-3b-tp2")


def workload(seed: int) -> Workload:
    rng = np.random.default_rng(seed)
    tokens = np.clip(rng.lognormal(5, 0.7, (24, 4)), 1, 2048).astype(int)
    return Workload.grid(rng.integers(20, 400, 24), tokens, max_response_tokens=2048)


def test_no_split_beats_the_possible_with_or_without_other_phases() -> None:
    work = [workload(seed) for seed in range(3)]
    curves = [ScheduleBound(PlanningProblem(one, CLUSTER, LATENCY, admission="preempt")).curve() for one in work]
    for rest_s, rest_gpu_s in ((0.0, 0.0), (7.0, 28.0)):
        best = summed_bounds(curves, 0.7, rest_s, rest_gpu_s)
        assert best.value <= best.time_s**0.7 * best.gpu_s**0.3 * (1 + 1e-9)
        for actors in (1, 3, 8):
            plans = [Static(actors).plan(PlanningProblem(one, CLUSTER, LATENCY), PlanningOptions()) for one in work]
            taken = [
                evaluate(plan, PlanningProblem(one, CLUSTER, LATENCY), table=True)
                for plan, one in zip(plans, work, strict=True)
            ]
            time_s = sum(t.makespan_s + rest_s for t in taken)
            gpu_s = sum(t.gpu_seconds + rest_gpu_s for t in taken)
            assert time_s >= best.shortest_s
            assert gpu_s >= best.min_gpu_s
            assert time_s**0.7 * gpu_s**0.3 >= best.value


def test_the_share_of_the_possible_is_0_for_the_naive_system_and_1_at_the_bound() -> None:
    assert share_of_headroom(4.0, 4.0, 1.0) == 0
    assert share_of_headroom(1.0, 4.0, 1.0) == 1
    assert share_of_headroom(2.0, 4.0, 1.0) == pytest.approx(0.5)
    assert share_of_headroom(8.0, 4.0, 1.0) == pytest.approx(-0.5)


def test_a_length_model_sees_every_prompt_once_an_epoch_and_keeps_its_limit() -> None:
    rows = replace(GSM8K, max_response_tokens=200).rollouts(12, 3, epochs=2, steps_per_epoch=4, seed=1)
    assert len(rows) == 12 * 3 * 2
    assert (rows.groupby("step")["prompt_id"].nunique() == 3).all()
    assert (rows.groupby(["epoch", "prompt_id"]).size() == 3).all()
    assert rows["response_tokens"].between(1, 200).all()
    assert ((rows["finish_reason"] == "length") == (rows["response_tokens"] == 200)).all()


def test_the_length_model_of_gsm8k_has_the_printed_steadiness() -> None:
    rows = GSM8K.rollouts(8000, 1, epochs=2)
    first, second = (own["response_tokens"].to_numpy() for _, own in rows.groupby("epoch"))
    change = np.abs(first - second)
    assert (change <= 50).mean() == pytest.approx(0.70, abs=0.03)
    assert (change <= 100).mean() == pytest.approx(0.90, abs=0.03)


def test_drift_moves_all_lengths_by_its_factor() -> None:
    rows = replace(GSM8K, drift=0.5, max_response_tokens=10**6).rollouts(2000, 1, epochs=2)
    mean = np.log(rows["response_tokens"]).groupby(rows["epoch"]).mean()
    assert mean[1] - mean[0] == pytest.approx(0.5, abs=0.02)


def test_steps_without_history_are_not_evaluated() -> None:
    assert modelled(GSM8K, 1, responses=16, epochs=3, steps_per_epoch=2).evaluated == [2, 3, 4, 5]
    assert Sources(None).shipped().evaluated == list(range(1, 15))


def test_without_logs_the_model_takes_their_place_and_says_so() -> None:
    nowhere = Sources(None)
    assert nowhere.gsm8k(2).basis == "length model"
    assert not nowhere.gsm8k(2).measured
    assert nowhere.math500() is None
    assert nowhere.mean_lengths() == {}


@pytest.mark.skipif(BESIDE.math500() is None, reason="the public logs are not beside the checkout")
def test_public_logs_are_read_as_two_visits() -> None:
    gsm8k, math = BESIDE.gsm8k(4), BESIDE.math500()
    assert math is not None
    assert gsm8k.measured
    assert gsm8k.evaluated == [1] == math.evaluated
    assert (gsm8k.rollouts["step"] == 1).sum() == 128 * 4
    assert (math.rollouts["step"] == 1).sum() == 500
    assert gsm8k.rollouts["response_tokens"].max() == 512 == gsm8k.max_response_tokens
    assert {name: len(log) for name, log in BESIDE.mean_lengths().items()} == {"GSM8K": 40, "MATH": 258, "instructions": 430}


def test_learning_takes_6_n_flops_a_token_and_ppo_learns_two_models() -> None:
    machine = replace(QWEN_3B_L40S, parameters=10**9, nodes=1, peak_flops=1e14, mfu=0.5)
    assert machine.learner_gpus == 2
    grpo, ppo = machine.phases("GRPO", 1e5), machine.phases("PPO", 1e5)
    assert grpo.learn_s == pytest.approx(6e9 * 1e5 / 1e14)
    assert grpo.prepare_s == pytest.approx(2 * 2e9 * 1e5 / 1e14)
    assert (ppo.learn_s, ppo.prepare_s) == pytest.approx((2 * grpo.learn_s, 1.5 * grpo.prepare_s))


def test_learning_on_all_gpus_takes_the_same_gpu_seconds_or_loses_some_with_every_doubling() -> None:
    for machine, doublings in ((QWEN_3B_L40S, 1), (QWEN_7B_L40S, 2)):
        phases = machine.phases("PPO", 1e5)
        perfect, lossy = machine.on_all_gpus(phases), machine.on_all_gpus(phases, kept_per_doubling=0.9)
        assert machine.gpus == 16 == machine.learner_gpus * 2**doublings
        assert perfect.seconds * 16 == pytest.approx(phases.seconds * machine.learner_gpus)
        assert lossy.prepare_s == pytest.approx(perfect.prepare_s / 0.9**doublings)
        assert lossy.learn_s == pytest.approx(perfect.learn_s / 0.9**doublings)


def test_a_fixed_number_of_actors_stays_fixed_and_keeps_the_order_of_lengths() -> None:
    problem = PlanningProblem(workload(0), CLUSTER, LATENCY)
    plan = FixedActors(3).plan(problem, PlanningOptions())
    assert len(plan.actors) == 3
    lengths = [problem.workload.response_tokens[list(a.responses)].mean() for a in plan.actors]
    assert lengths == sorted(lengths, reverse=True)


def test_the_learner_takes_the_largest_power_of_two_that_three_actors_leave() -> None:
    assert [m.learner_gpus for m in (QWEN_3B_L40S, QWEN_7B_L40S, LLAMA_70B_H100)] == [8, 4, 128]
    assert replace(LLAMA_70B_H100, nodes=4).learner_gpus == 16
    assert "H100" in LLAMA_70B_H100.about
    assert "peak of 128 GPUs" in LLAMA_70B_H100.about


def test_deduplication_keeps_groups_and_rule_and_computes_each_prompt_once_an_actor() -> None:
    given = (PlanningProblem(workload(0), CLUSTER, LATENCY), PlanningOptions())
    base = make_policy("rlhfless")
    plain, shared = base.plan(*given), Deduplicated(base, "dedup").plan(*given)
    assert [a.responses for a in shared.actors] == [a.responses for a in plain.actors]
    assert all(a.shares_prompts for a in shared.actors)
    assert shared.rule == plain.rule
    assert shared.policy == "dedup"
    assert shared.gpu_seconds < plain.gpu_seconds


def test_the_papers_prefill_actor_computes_every_prompt_once_and_all_wait_for_it() -> None:
    problem = PlanningProblem(workload(0), replace(CLUSTER, node_bytes_per_s=32e9, network_bytes_per_s=50e9), LATENCY)
    base = FixedActors(6)
    plan = PrefillActor(base, learner_gpus=8).plan(problem, PlanningOptions())
    assert plan.prefill is not None
    assert plan.prefill.computed_tokens == problem.workload.prompt_tokens.sum()
    assert plan.prefill.done_s == pytest.approx(
        LATENCY.prefill_base_s + LATENCY.prefill_per_token_s / 4 * problem.workload.prompt_tokens.sum()
    )
    assert sorted(a.responses for a in plan.actors) == sorted(a.responses for a in base.plan(problem, PlanningOptions()).actors)
    assert {a.node for a in plan.actors} == {0, 1}
    assert all(a.start_s + LATENCY.start_s + LATENCY.sync_s + a.receive_s >= plan.prefill.done_s for a in plan.actors)
