"""What a plan says of its actors is what is executed: on the virtual clock a step takes what ``solver.evaluate`` says, to the
rounding of floats, with every feature that a plan has."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from error_messages import refused
from executor_samples import LIMIT, Restless, assert_sound, plan_of, random_step, run, trace_of, uniform_step
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhfless.engine.protocol import Request
from rlhfless.engine.simulated.engine import SimulatedEngine
from rlhfless.executor import StepRecord, run_step
from rlhfless.trace import Trace, step_metrics
from solver import Cluster, LatencyModel, NonGenerationPhases, Plan, PlanningError, Workload
from solver.model.cluster import GpuPool, MixedCluster
from solver.model.plan import ActorPlan, Prefill
from solver.model.problem import PlanningProblem
from solver.model.runtime_rules import Cut, Decision, Move, StepState, Trigger
from solver.prefix_sharing.deduplicate import deduplicate
from solver.timing.build_plan import assemble
from solver.timing.evaluate import cached_tokens, evaluate

seeds = st.integers(0, 2**32 - 1)
POOLS = MixedCluster([GpuPool("a", 2, 3, 3.6, "on-demand"), GpuPool("b", 1, 4, 7.2, "preemptible")])
PLACES = (("a", 0, (0,)), ("a", 0, (1, 2)), ("a", 1, (3, 4)), ("a", 1, (5,)), ("b", 2, (6, 7)))


def random_plan(seed: int) -> tuple[Plan, Workload, dict[tuple[str, int], LatencyModel]]:
    """Up to five actors of two kinds and sizes with every feature on or off, and perhaps a prefill actor; the plan knows
    nothing of whether it is a good one."""
    rng = np.random.default_rng(seed)

    def any_of(*values: Any) -> Any:
        return values[rng.integers(len(values))]

    prompts, count = int(rng.integers(1, 5)), int(rng.integers(1, 16))
    workload = Workload(
        rng.integers(0, 20, prompts), rng.integers(0, prompts, count), np.minimum(rng.geometric(0.1, count) - 1, LIMIT),
        max_response_tokens=LIMIT,
    )  # fmt: skip
    models = {
        (kind, gpus): LatencyModel(
            f"{kind}{gpus}",
            gpus,
            0.01 / gpus,
            any_of(0.0, 4e-3),
            any_of(0.0, 1e-4),
            prefill_base_s=any_of(0.0, 3e-3),
            prefill_per_token_s=any_of(0.0, 2e-4),
            start_s=any_of(0.0, 0.2),
            sync_s=any_of(0.0, 0.05),
            kind=kind,
            max_batch=any_of(2, 32),
            kv_capacity_tokens=any_of(100, 1 << 40),
        )
        for kind, gpus in (("a", 1), ("a", 2), ("b", 2))
    }
    deals = rng.integers(0, rng.integers(1, 6), count)
    actors = []
    for i, (kind, node, gpus) in enumerate(PLACES):
        own = rng.permutation(np.flatnonzero(deals == i)).tolist()
        received = {p: int(rng.integers(1, n + 1)) for p, n in enumerate(workload.prompt_tokens.tolist()) if n and any_of(0, 1)}
        received = received if any_of(0, 1) else {}
        if own or any_of(0, 0, 1):
            actors.append(
                ActorPlan(
                    kind, gpus, node, tuple(own), tuple(dict.fromkeys(workload.prompt_of[own].tolist())), any_of(2, 64),
                    start_s=any_of(0.0, 0.3), prefixes=tuple(received), prefix_tokens=tuple(received.values()),
                    release=any_of("done", "generation", "step"), market=any_of("on-demand", "preemptible"),
                    usd_per_gpu_s=any_of(0.0, 1e-3, 2e-3), prewarmed=bool(any_of(0, 1)), receive_s=any_of(0.0, 0.7),
                    shares_prompts=bool(any_of(0, 1)),
                )
            )  # fmt: skip
    prefill = Prefill((0,), (1,), int(rng.integers(1, 9)), float(rng.random())) if any_of(0, 1) else None
    return Plan(tuple(actors), "random", 0.0, 0.0, 0.0, prefill=prefill), workload, models


def requests_of(workload: Workload) -> list[Request]:
    return [
        Request(i, int(workload.prompt_tokens[p]), LIMIT, target_tokens=int(n), prompt=int(p))
        for i, (p, n) in enumerate(zip(workload.prompt_of, workload.response_tokens, strict=True))
    ]


def spans_of(record: StepRecord, holder: str) -> list[tuple[str, float, float]]:
    return [(s["phase"], round(s["start_s"], 6), round(s["end_s"], 6)) for s in record.spans if s["holder"] == holder]


def metrics_of(record: StepRecord, count: int) -> pd.Series:
    rows = [{"step": 0, "prompt_id": i, "sample": 0, "run": "run", **record.rollout_times(i)} for i in range(count)]
    tables = {name: pd.DataFrame(getattr(record, name)) for name in ("allocations", "spans")}
    return step_metrics(Trace(rollouts=pd.DataFrame(rows), events=pd.DataFrame(), **tables)).iloc[0]


@given(seeds, st.sampled_from(["reserve", "preempt"]), st.sampled_from([0.0, 5.0]))
@settings(max_examples=100, deadline=None)
def test_a_step_takes_what_evaluate_says(seed: int, admission: str, start_s: float) -> None:
    plan, workload, models = random_plan(seed)
    phases = NonGenerationPhases(0.1, 0.2)
    record = run_step(
        plan, requests_of(workload), SimulatedEngine, models, POOLS, phases=phases, admission=admission, start_s=start_s
    )
    taken = evaluate(plan, PlanningProblem(workload, POOLS, models, phases=phases, admission=admission))
    assert record.makespan_s == pytest.approx(taken.makespan_s, rel=1e-9)
    seconds = np.array([a["end_s"] - a["start_s"] for a in record.allocations])
    gpus = np.array([len(a["gpu_ids"]) for a in record.allocations])
    price = np.array([a["usd_per_gpu_s"] for a in record.allocations])
    assert float(gpus @ seconds) == pytest.approx(taken.gpu_seconds, rel=1e-9)
    assert float((gpus * price) @ seconds) == pytest.approx(taken.cost_usd, rel=1e-9)
    for i, (actor, row) in enumerate(zip(plan.actors, record.allocations, strict=True)):
        assert row["role"] == ("prefill" if i == plan.prefill_actor else "decode")
        assert (row["kind"], row["market"], row["node"]) == (actor.kind, actor.market, actor.node)
        assert row["gpu_ids"] == list(actor.gpu_ids)
        own = sorted((s["start_s"], s["end_s"]) for s in record.spans if s["holder"] == f"actor-{i}")
        assert all(b[0] == pytest.approx(a[1]) for a, b in itertools.pairwise(own)), "it never waits for nothing"
        ends = own[-1][1] if own else start_s + actor.start_s
        assert ends == pytest.approx(start_s + taken.done_s[i])
        chosen = np.array(actor.responses, dtype=np.int64)
        there = cached_tokens(workload, chosen, actor.prefixes, actor.prefix_tokens, actor.shares_prompts)
        works = workload.remaining_tokens[chosen] > 0
        computed = sum(record.completions[r].prefill_tokens_computed for r in actor.responses)
        least = int(np.maximum(workload.context_tokens[chosen] - there - 1, 0)[works].sum())  # the last token is decoded
        assert computed == least if admission == "reserve" else computed >= least
    if {a.release for a in plan.actors} == {"done"}:
        metrics = metrics_of(record, len(workload))
        assert metrics["idle_gpu_seconds"] == pytest.approx(0.0, abs=1e-9)
        if (price > 0).all():
            assert metrics["cost_usd"] == pytest.approx(taken.cost_usd)
        else:  # a trace has the price 0 for one that nobody knows
            assert np.isnan(metrics["cost_usd"])


@given(seeds, st.sampled_from(["cheaper", "move", "recompute"]), st.sampled_from(["reserve", "preempt"]))
@settings(max_examples=40, deadline=None)
def test_whatever_a_rule_orders_prompts_that_are_shared_or_received_lose_nothing(seed, migration, admission):
    step = random_step(seed)
    rng = np.random.default_rng(seed)
    groups = np.array_split(rng.permutation(len(step.truth)), 3)
    received = {p: int(rng.integers(1, n + 1)) for p, n in enumerate(step.truth.prompt_tokens.tolist()) if n}
    plan = plan_of([g.tolist() for g in groups], Restless(seed), release="generation")
    actors = tuple(
        replace(a, shares_prompts=i > 0, receive_s=0.1 * i, prewarmed=i == 2, prefixes=prefixes, prefix_tokens=tokens)
        for i, a in enumerate(plan.actors)
        for prefixes, tokens in [(tuple(received), tuple(received.values())) if i < 2 else ((), ())]
    )
    record = run(step, replace(plan, actors=actors), migration=migration, admission=admission)
    assert_sound(record, step, "generation", cuts_only=False)


# --- by hand ---------------------------------------------------------------------------------------------------------

SLOW = {"start_s": 1.0, "sync_s": 0.5, "prefill_per_token_s": 0.1}


def test_a_prewarmed_actor_has_no_cold_start_and_waits_for_its_prefixes():
    """Ten prompt tokens each: of the first response seven arrive, the second computes all of its prompt."""
    step = uniform_step([2, 2], **SLOW)
    plan = plan_of([[0, 1], []])
    receives = replace(plan.actors[0], prewarmed=True, start_s=0.2, receive_s=0.4, prefixes=(0,), prefix_tokens=(7,))
    prefill = replace(plan.actors[1], receive_s=1.0)
    plan = replace(plan, actors=(receives, prefill), prefill=Prefill((0,), (7,), 7, 2.2))
    record = run(step, plan)
    head = [("sync", 0.2, 0.7), ("transfer", 0.7, 1.1), ("prefill", 1.1, 2.4)]
    assert spans_of(record, "actor-0") == [*head, ("decode", 2.4, 2.6)]
    assert spans_of(record, "actor-1") == [
        ("start", 0.0, 1.0), ("sync", 1.0, 1.5), ("prefill", 1.5, 2.2), ("transfer", 2.2, 2.5),
    ]  # fmt: skip
    assert [(a["role"], a["start_s"], round(a["end_s"], 6)) for a in record.allocations] == [
        ("decode", 0.2, 2.6), ("prefill", 0.0, 2.5),
    ]  # fmt: skip
    assert [s["tokens"] for s in record.spans if s["holder"] == "actor-1" and s["phase"] == "prefill"] == [7]
    (transfer,) = [s for s in record.spans if s["holder"] == "actor-0" and s["phase"] == "transfer"]
    assert (transfer["from_actor"], transfer["background"]) == ("actor-1", False)
    metrics = metrics_of(record, 2)
    assert (metrics["actors"], metrics["idle_gpu_seconds"]) == (1, pytest.approx(0.0, abs=1e-12))


def test_where_the_learner_prefills_it_is_the_learner_that_is_busy():
    step = uniform_step([2, 2], **SLOW)
    plan = plan_of([[0, 1]])
    actor = replace(plan.actors[0], prefixes=(0, 1), prefix_tokens=(10, 10), receive_s=0.5)
    plan = replace(plan, actors=(actor,), prefill=Prefill((0, 1), (10, 10), 20, 2.0))
    record = run(step, plan, phases=NonGenerationPhases(1.0, 1.0, 2, usd_per_gpu_hour=3.6))
    assert spans_of(record, "learner") == [("prefill", 0.0, 2.0), ("prepare", 2.2, 3.2), ("learn", 3.2, 4.2)]
    assert spans_of(record, "actor-0")[2:] == [("transfer", 1.5, 2.0), ("decode", 2.0, 2.2)]
    assert {s["from_actor"] for s in record.spans if s["phase"] == "transfer"} == {"learner"}
    assert record.allocations[-1]["usd_per_gpu_s"] == pytest.approx(1e-3)


def test_weights_that_arrive_late_are_a_sync():
    step = uniform_step([1], **SLOW)
    plan = plan_of([[0]])
    record = run(step, replace(plan, actors=(replace(plan.actors[0], receive_s=0.3),)))
    assert spans_of(record, "actor-0")[:3] == [("start", 0.0, 1.0), ("sync", 1.0, 1.5), ("sync", 1.5, 1.8)]


class CutOnce:
    """Cuts actor 0 at the first time that it is asked, everything to actor 1."""

    name = "cut once"

    def __init__(self) -> None:
        self.asked = False

    def next_trigger(self, view: object) -> Trigger | None:
        return None if self.asked else Trigger(time_s=0.25)

    def decide(self, now_s: float, state: StepState) -> list[Decision]:
        self.asked = True
        return [Cut(0, tuple(Move(r, 1) for r in state.actors[0].unfinished))]


@pytest.mark.parametrize("migration", ["move", "cheaper", "recompute"])
@pytest.mark.parametrize(("other", "moves"), [("b", False), ("a", True)])
def test_between_kinds_caches_are_recomputed(migration: str, other: str, moves: bool):
    """The receiver's model prefills the whole context: 10 tokens and the 3 that were generated."""
    first = LatencyModel("first", 1, 0.1, 0.0, prefill_per_token_s=1e-3, transfer_base_s=1e-3, kind="a")
    second = replace(first, name="second", base_s=0.2, prefill_per_token_s=0.01, kind=other)
    models = {("a", 1): first, (other, 1): second} if other == "b" else {("a", 1): first}
    actors = (ActorPlan("a", (0,), 0, (0,), (0,), 8), ActorPlan(other, (1,), 1, (1,), (1,), 8))
    plan = Plan(actors, "hand", 0.0, 0.0, 0.0, rule=CutOnce())
    workload = Workload([10, 10], [0, 1], [9, 3], max_response_tokens=LIMIT)
    cluster = MixedCluster([GpuPool("a", 1, 1), GpuPool(other, 1, 1)])
    record = run_step(plan, requests_of(workload), SimulatedEngine, models, cluster, migration=migration)
    moved = moves and migration != "recompute"
    assert bool([s for s in record.spans if s["phase"] == "transfer"]) is moved
    assert record.completions[0].prefill_tokens_computed == (9 if moved else 9 + 12)
    assert record.actor_of[0] == "actor-1"


def test_a_plan_with_shared_and_partial_prefixes_is_executed_as_it_is_planned():
    ids = [[7] * 60 + [i] * 20 for i in range(12)]
    workload = Workload.grid([80] * 12, np.arange(1, 37).reshape(12, 3), max_response_tokens=LIMIT)
    latency = LatencyModel(
        "slow prefill", 1, 0.01, 1e-3, prefill_base_s=0.01, prefill_per_token_s=2e-3, start_s=0.1, sync_s=0.05,
        transfer_base_s=0.01, transfer_per_kv_token_s=1e-5,
    )  # fmt: skip
    cluster = Cluster(2, 4, 1, usd_per_gpu_hour=3.6)
    plan = assemble("random", np.arange(36).reshape(12, 3).T.reshape(4, 9), PlanningProblem(workload, cluster, latency))
    for learner_node in (None, 0):
        found = deduplicate(plan, PlanningProblem(workload, cluster, latency), ids, learner_node=learner_node)
        assert found.how == "prefill actor"
        assert {t for a in found.plan.actors for t in a.prefix_tokens} & set(range(1, 80)), "a part of a prompt is received"
        record = run_step(found.plan, requests_of(workload), SimulatedEngine, latency, cluster)
        assert record.makespan_s == pytest.approx(found.plan.makespan_s, rel=1e-12)
        seconds = sum(a["end_s"] - a["start_s"] for a in record.allocations)
        assert seconds == pytest.approx(found.plan.gpu_seconds, rel=1e-12)
        computed = sum(c.prefill_tokens_computed for c in record.completions.values())
        decoded = sum(c.prefill_tokens_computed > 0 for c in record.completions.values())  # a context's last token
        assert computed + decoded + found.plan.prefill.computed_tokens == found.tokens_after
        assert metrics_of(record, 36)["idle_gpu_seconds"] == pytest.approx(0.0, abs=1e-9)
        assert ("prefill" in {a["role"] for a in record.allocations}) is (learner_node is None)


class NoPrefixes(SimulatedEngine):
    """A simulated engine that computes whole prompts only, like the torch engine."""

    reuses_prefixes = False
    made: list[NoPrefixes] = []  # noqa: RUF012

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.added, self.closed = 0, False
        self.made.append(self)

    def add(self, requests: Sequence[Request]) -> None:
        self.added += len(requests)

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"shares_prompts": True}, ("actor 1", "NoPrefixes")),
        ({"prefixes": (1,), "prefix_tokens": (3,)}, ("actor 1", "NoPrefixes")),
    ],
)
def test_an_engine_that_cannot_reuse_prefixes_refuses_the_plan_before_anything_starts(change, sentence):
    step, plan = uniform_step([2, 3]), plan_of([[0], [1]])
    plan = replace(plan, actors=(plan.actors[0], replace(plan.actors[1], **change)))
    NoPrefixes.made.clear()
    with refused(PlanningError, *sentence):
        run_step(plan, step.requests(), NoPrefixes, step.latency, step.cluster)
    assert [(e.added, e.closed) for e in NoPrefixes.made] == [(0, True)] * 2


def test_a_response_that_does_not_say_its_prompt_cannot_share_it():
    step, plan = uniform_step([2, 3]), plan_of([[0, 1]])
    plan = replace(plan, actors=(replace(plan.actors[0], shares_prompts=True),))
    unknown = [replace(r, prompt=None) for r in step.requests()]
    with refused(PlanningError, "response 0"):
        run_step(plan, unknown, SimulatedEngine, step.latency, step.cluster)


def test_a_kind_without_a_latency_model_is_refused():
    step, plan = uniform_step([2]), plan_of([[0]])
    with refused(PlanningError):
        run_step(plan, step.requests(), SimulatedEngine, {("b", 2): step.latency}, step.cluster)


def test_the_learner_of_a_mixed_cluster_stands_beside_it_and_costs_what_the_first_pool_does():
    plan, workload, models = random_plan(3)
    record = run_step(plan, requests_of(workload), SimulatedEngine, models, POOLS, phases=NonGenerationPhases(0.0, 1.0, 2))
    learner = record.allocations[-1]
    assert (learner["holder"], learner["node"], learner["gpu_ids"], learner["kind"]) == ("learner", 3, [10, 11], "a")
    assert learner["usd_per_gpu_s"] == pytest.approx(1e-3)


def test_a_trace_holds_the_step(tmp_path):
    step = random_step(7)
    plan = plan_of([list(range(9)), list(range(9, 18)), []])
    actors = tuple(replace(a, shares_prompts=True, usd_per_gpu_s=1e-3 * i) for i, a in enumerate(plan.actors))
    plan = replace(plan, actors=actors, prefill=Prefill((0,), (1,), 1, 0.1))
    trace = trace_of(run(step, plan), step)
    assert trace.allocations["role"].tolist() == ["decode", "decode", "prefill"]
    assert trace.allocations["usd_per_gpu_s"].tolist() == [0.0, 1e-3, 2e-3]
