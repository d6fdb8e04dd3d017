"""Preparation and learning inside a step on the virtual clock: planned (``follow``) is executed."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from error_messages import refused
from executor_samples import Restless, Step, plan_of, random_step, run, trace_of, uniform_step
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhfless.executor import Gpus, StepRecord, WorkItem, phase_work_items
from rlhfless.scheduling.rlhfuse import GlobalCut
from solver import Cluster, PlanningError
from solver.lengths.survival import known_lengths
from solver.step.bound import phase_bound_s
from solver.step.charges import Charges
from solver.step.follow import follow
from solver.step.work import BESIDE_DECODING, Learner, StepWork

seeds = st.integers(0, 10_000)


def random_work(step: Step, seed: int, place: str, unlock: str) -> tuple[StepWork, Learner]:
    """Work by tokens, with and without a learner that grows or starts late; ``batch`` does not stream."""
    rng = np.random.default_rng(seed)
    own = 0 if place == "released" and seed % 2 else int(rng.integers(1, 3))
    tokens, per_token_s = step.truth.response_tokens, float(rng.choice([0.0, 1e-3, 0.02]))
    learner = Learner(
        own, float(rng.uniform(0, 2)) if own and rng.random() < 0.5 else 0.0, not own or bool(rng.random() < 0.5),
        unlock != "batch", overlaps=bool(rng.random() < 0.8), place=place,
    )  # fmt: skip
    sizes, load_s, finish_s = range(1, 7), float(rng.choice([0.0, 0.3])), float(rng.choice([0.0, 0.2]))
    charges = Charges(tuple(1 + 0.1 * size for size in sizes), (finish_s,) * len(sizes), (load_s,) * len(sizes))
    unlock = "group" if unlock == "batch" else unlock
    work = StepWork(tokens * per_token_s, 2.0 * tokens * per_token_s, step.truth.prompt_of, unlock, charges=charges)
    return work, learner


def executed(step: Step, seed: int, work: StepWork, learner: Learner) -> StepRecord:
    """The step with these items, under a global cut or under random moves."""
    groups = [list(range(k, len(step.truth), 4)) for k in range(4)]
    total = len(step.truth)
    rule = GlobalCut(max(1, total // 2), total, keep=1 + seed % 3) if seed % 3 else Restless(seed)
    return run(step, plan_of(groups, rule), work=phase_work_items(work, learner, step.cluster, len(groups)))


@given(seeds, st.sampled_from(["released", "beside", "learner"]), st.sampled_from(["response", "group", "batch"]))
@settings(max_examples=60, deadline=None)
def test_a_step_takes_what_follow_says_of_its_completions(seed: int, place: str, unlock: str) -> None:
    step = random_step(seed)
    work, learner = random_work(step, seed, place, unlock)
    record = executed(step, seed, work, learner)
    trace = trace_of(record, step)
    actors = trace.allocations[trace.allocations["holder"].str.startswith("actor-")]
    free_s = actors.groupby("holder")["end_s"].max().reindex([f"actor-{k}" for k in range(4)]).to_numpy()
    completion_s = np.array([record.completions[r].time_s for r in range(len(step.truth))])
    planned = follow(completion_s, free_s, work, learner)
    assert record.end_s - record.start_s == pytest.approx(planned.step_s, abs=1e-9)
    held = trace.allocations["end_s"] - trace.allocations["start_s"]
    decoding = float((actors["end_s"] - actors["start_s"]).sum())
    assert float(held.sum()) == pytest.approx(decoding + planned.gpu_s, abs=1e-9)
    assert phase_bound_s(completion_s, free_s, work, learner) <= record.end_s + 1e-9
    ran = {(r.item.kind, r.item.responses[0]): (r.start_s, r.end_s) for r in record.work if r.item.responses}
    kinds = ["prepare", "learn"] if learner.overlaps else ["learn"]  # else every preparation waits for all responses
    for row in (row for row in planned.rows if row.kind in kinds):
        assert ran[(row.kind, row.response)] == pytest.approx((row.start_s, row.end_s), abs=1e-9)


def test_what_a_cut_frees_prepares_from_then_on() -> None:
    """Actor 1 is cut when two responses are left, and its GPU then prepares all, after loading the models."""
    step = uniform_step([10, 20, 30, 40])
    plan = plan_of([[0, 2], [1, 3]], GlobalCut(3, 4))
    work = [WorkItem("prepare", 0.5, gpus=Gpus(released=True, startup_s=0.25), responses=(r,)) for r in range(4)]
    record = run(step, plan, work=work)
    released = [e for e in record.events if e["name"] == "released"]
    assert [(e["holder"], json.loads(e["detail"])) for e in released] == [("actor-1", {"to": "released-1", "role": "prepare"})]
    assert released[0]["time_s"] == next(e["time_s"] for e in record.events if e["name"] == "cut") == pytest.approx(2.0)
    held = [(a["holder"], a["role"], a["start_s"], a["end_s"]) for a in record.allocations if a["role"] == "prepare"]
    assert held == [("released-1", "prepare", pytest.approx(2.0), pytest.approx(4.5))]
    spans = [(s["phase"], s["call"], s["start_s"], s["end_s"]) for s in record.spans if s["holder"] == "released-1"]
    assert spans[0] == ("start", "load", pytest.approx(2.0), pytest.approx(2.25))
    assert [phase for phase, *_ in spans[1:]] == ["prepare"] * 2, "those that follow each other are one"


def test_a_learner_grows_by_released_gpus() -> None:
    """Its own GPU learns from the start; the actor's GPU helps as soon as it is free, never before."""
    step = uniform_step([10, 20])
    learner = Gpus.beside(step.cluster, "learner", released=True, held_all_step=True)
    work = [WorkItem("learn", 3.0, gpus=learner) for _ in range(3)]
    record = run(step, plan_of([[0], [1]]), work=work)
    assert [(r.holder, r.start_s) for r in record.work] == [
        ("learner", 0.0), ("learner-released-0", pytest.approx(1.0)), ("learner-released-1", pytest.approx(2.0)),
    ]  # fmt: skip
    assert record.end_s == pytest.approx(5.0)
    assert [(a["holder"], a["role"], a["end_s"]) for a in record.allocations][2:] == [
        ("learner-released-0", "learner", pytest.approx(4.0)), ("learner-released-1", "learner", pytest.approx(5.0)),
        ("learner", "learner", pytest.approx(5.0)),
    ]  # fmt: skip


def test_own_gpus_may_be_allocated_later() -> None:
    step = uniform_step([10])
    learner = Gpus.beside(step.cluster, "learner", held_all_step=True, from_s=0.75)
    record = run(step, plan_of([[0]]), work=[WorkItem("learn", 1.0, gpus=learner)])
    held = next(a for a in record.allocations if a["holder"] == "learner")
    assert (held["start_s"], held["end_s"]) == (pytest.approx(0.75), pytest.approx(1.75))


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"name": 3}, ("name 3", "text")),
        ({"ids": 5}, ("ids", "'learner'", "5", "list")),
        ({"ids": "12"}, ("ids", "'12'", "list")),
        ({"node": -3}, ("node", "-3")),
        ({"node": 0.5}, ("node", "0.5")),
        ({"usd_per_gpu_hour": -1}, ("usd_per_gpu_hour", "-1")),
        ({"usd_per_gpu_hour": math.nan}, ("usd_per_gpu_hour", "nan")),
    ],
)
def test_gpus_that_make_no_sense_are_refused(given: dict[str, Any], named: tuple[str, ...]) -> None:
    with refused(PlanningError, *named):
        Gpus(**{"name": "learner", "ids": (1,), **given})


def test_bad_gpus_are_one_sentence() -> None:
    with refused(PlanningError, "startup_s", "-1"):
        Gpus(released=True, startup_s=-1)
    with refused(PlanningError, "from_s", "nan"):
        Gpus(released=True, from_s=float("nan"))
    with refused(PlanningError, "gpus_per_actor", "2 GPUs"):
        phase_work_items(StepWork([1.0], [1.0], [0]), BESIDE_DECODING, Cluster(1, 4, 2), 1)
    two = Charges((math.inf, 1.0, math.inf), (0.0,) * 3, (0.0,) * 3)
    with refused(PlanningError, "3 servers", "one of [2]"):
        phase_work_items(StepWork([1.0], [1.0], [0], charges=two), Learner(3, grows=False), Cluster(1, 4, 1), 1)


def test_the_cut_keeps_as_many_actors_as_it_is_told_by_expected_tokens() -> None:
    """Three actors with one long response each: the forecast, not the number of responses, says which two go on."""
    lengths = np.array([5, 5, 5, 30, 20, 45, 40])
    step = uniform_step(lengths.tolist())
    groups = [[0, 1, 3], [2, 4], [5, 6]]
    forecast = known_lengths(step.truth)
    rule = GlobalCut(5, 7, keep=2, remaining=forecast)
    record = run(step, plan_of(groups, rule))
    assert [e["holder"] for e in record.events if e["name"] == "cut"] == ["actor-1"]
    kept = run(step, plan_of(groups, replace(rule, keep=1)))
    assert [e["holder"] for e in kept.events if e["name"] == "cut"] == ["actor-0", "actor-1"]
    with refused(PlanningError, "keep", "0"):
        GlobalCut(5, 7, keep=0)
