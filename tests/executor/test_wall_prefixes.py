"""Deduplicated prefill and late starts with real processes: the same tokens, fewer of them computed, and all of it measured."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from test_torch_prefill import CLUSTER, LATENCY, PROMPTS, SAMPLES, dealt, prompts, requests, tokens, workload

from rlhfless.engine.torch_factory import TorchEngineFactory
from rlhfless.engine.torch_forward import RowModel
from rlhfless.executor import Faults, ProcessPool, StepRecord, local, run_step
from rlhfless.trace.checks import validate
from rlhfless.training.model import tiny_qwen2
from rlhfless.training.tokenizer import CharTokenizer
from solver import Plan, PrefixTree, StepRest, deduplicate

LENGTHS = np.full(PROMPTS * SAMPLES, 9)


@pytest.fixture(scope="module")
def factory() -> TorchEngineFactory:
    tokenizer = CharTokenizer()
    return TorchEngineFactory(
        RowModel(tiny_qwen2(tokenizer, seed=3, hidden=64, layers=2, intermediate=128), 120), tokenizer.eos_token_id
    )


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPool]:
    with ProcessPool(["cpu"] * 4, faults=Faults(slow_factor=math.inf)) as shared:  # a busy machine slows some down
        yield shared


@pytest.fixture(scope="module")
def expected(factory: TorchEngineFactory) -> StepRecord:
    return run_step(dealt(2), requests(LENGTHS), factory, LATENCY, CLUSTER)


def deduplicated(actors: int, learner_node: int | None = None) -> Plan:
    ids = [p.tolist() for p in prompts()]
    return deduplicate(dealt(actors), workload(LENGTHS), CLUSTER, LATENCY, ids, learner_node=learner_node).plan


def spans(record: StepRecord, phase: str) -> list[dict[str, Any]]:
    return [s for s in record.spans if s["phase"] == phase]


def assert_sound(record: StepRecord, expected: StepRecord) -> None:
    assert tokens(record) == tokens(expected)
    for table in ("allocations", "spans", "events"):
        validate(table, getattr(record, table))


def test_a_prefill_actor_is_a_process_that_hands_prefixes_over(
    pool: ProcessPool, factory: TorchEngineFactory, expected: StepRecord
) -> None:
    plan = deduplicated(2)
    assert plan.prefill is not None
    assert plan.prefill_actor is not None
    record = pool.run_step(plan, requests(LENGTHS), factory, LATENCY, CLUSTER)
    assert_sound(record, expected)
    sender = f"actor-{plan.prefill_actor}"
    (computed,) = [s for s in spans(record, "prefill") if s["holder"] == sender]
    tree = PrefixTree.of_token_ids([p[:-1] for p in prompts()])
    assert 0 < computed["tokens"] <= tree.tokens
    received = spans(record, "transfer")
    receivers = [f"actor-{i}" for i, a in enumerate(plan.actors) if a.prefixes]
    assert sorted(s["holder"] for s in received) == receivers
    assert {s["from_actor"] for s in received} == {sender}
    (sent,) = spans(record, "migrate")
    assert sum(s["bytes"] for s in received) == sent["bytes"] > 0
    assert all(s["start_s"] >= computed["end_s"] for s in received)
    assert [a["role"] for a in record.allocations] == ["prefill" if f"actor-{i}" == sender else "decode" for i in range(3)]
    alone = sum(c.prefill_tokens_computed for c in expected.completions.values())
    assert sum(c.prefill_tokens_computed for c in record.completions.values()) < alone


def test_prefixes_that_the_learner_computes(pool: ProcessPool, factory: TorchEngineFactory, expected: StepRecord) -> None:
    plan = deduplicated(2, learner_node=0)
    assert plan.prefill is not None
    assert plan.prefill_actor is None
    rest = StepRest(0.5, 0.5, 1)
    record = pool.run_step(plan, requests(LENGTHS), factory, LATENCY, CLUSTER, rest=rest)
    assert_sound(record, expected)
    (computed,) = [s for s in spans(record, "prefill") if s["holder"] == "learner"]
    received = spans(record, "transfer")
    assert {s["from_actor"] for s in received} == {"learner"}
    assert all(s["start_s"] >= computed["end_s"] for s in received), "when it was computed was measured"
    assert sum(c.prefill_tokens_computed for c in record.completions.values()) < sum(
        c.prefill_tokens_computed for c in expected.completions.values()
    )


@pytest.mark.parametrize("when", ["before", pytest.param("after", marks=pytest.mark.full)])
def test_a_prefill_actor_that_dies_takes_no_response_with_it(
    when: str, pool: ProcessPool, factory: TorchEngineFactory, expected: StepRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that wait for it compute their prompts themselves, or go on with what came before it died."""
    plan, ask, take = deduplicated(2), local.LocalActor.prefill, local.LocalActor.add
    sender: list[Any] = []

    def asked(self: Any, *what: Any) -> None:
        sender.append(self._process)
        if when == "after":
            ask(self, *what)
        else:
            self._process.kill()

    def given(self: Any, requests: Any, prefixes: Any = None) -> None:
        if prefixes is not None and when == "after":
            sender[0].kill()
        take(self, requests, prefixes)

    monkeypatch.setattr(local.LocalActor, "prefill", asked)
    monkeypatch.setattr(local.LocalActor, "add", given)
    record = pool.run_step(plan, requests(LENGTHS), factory, LATENCY, CLUSTER)
    assert_sound(record, expected)
    computed = sum(c.prefill_tokens_computed for c in record.completions.values())
    alone = sum(c.prefill_tokens_computed for c in expected.completions.values())
    assert computed < alone, "samples of a prompt on one actor share it in any case"
    assert bool(spans(record, "transfer")) == (when == "after")
    lost = [e for e in record.events if e["name"] == "lost"]
    if when == "before":
        assert [json.loads(e["detail"])["responses"] for e in lost] == [0]


def test_an_actor_starts_at_its_time(pool: ProcessPool, factory: TorchEngineFactory, expected: StepRecord) -> None:
    plan = deduplicated(2)
    late = next(i for i, a in enumerate(plan.actors) if a.prefixes)
    actors = tuple(replace(a, start_s=0.3) if i == late else a for i, a in enumerate(plan.actors))
    record = pool.run_step(replace(plan, actors=actors), requests(LENGTHS), factory, LATENCY, CLUSTER, start_s=1e3)
    assert_sound(record, expected)
    held = {a["holder"]: a["start_s"] for a in record.allocations}
    assert [held[f"actor-{i}"] for i in range(3)] == [pytest.approx(1000.3 if i == late else 1e3) for i in range(3)]
    assert f"actor-{late}" in {s["holder"] for s in spans(record, "transfer")}
    assert min(s["start_s"] for s in record.spans if s["holder"] == f"actor-{late}") >= 1000.3
