"""Deduplicated prefill on the real engine: the same tokens, fewer of them computed, counted where they are computed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prefill_samples import CLUSTER, LATENCY, LIMIT, PROMPTS, SAMPLES, prompts, requests, round_robin, split_plan, workload

from rlhfless.engine.protocol import Request
from rlhfless.engine.simulated.engine import SimulatedEngine
from rlhfless.engine.tokenizers.char_tokenizer import CharTokenizer
from rlhfless.engine.torch.factory import TorchEngineFactory
from rlhfless.engine.torch.model import DecoderModel, counting, one_thread
from rlhfless.engine.torch.prefixes import compute_prefixes
from rlhfless.executor import StepRecord, run_step
from rlhfless.training.models.tiny_model import tiny_qwen2
from solver import Plan
from solver.model.problem import PlanningProblem
from solver.prefix_sharing.deduplicate import deduplicate
from solver.prefix_sharing.prefix_tree import PrefixTree


@pytest.fixture(scope="module")
def factory() -> TorchEngineFactory:
    tokenizer = CharTokenizer()
    return TorchEngineFactory(
        DecoderModel(tiny_qwen2(tokenizer, seed=3, hidden=64, layers=2, intermediate=128), 120), tokenizer.eos_token_id
    )


def run(plan: Plan, factory: TorchEngineFactory, asked: list[Request]) -> tuple[StepRecord, int]:
    with counting(factory.model) as fed:
        record = run_step(plan, asked, factory, LATENCY, CLUSTER)
    assert fed.decode == sum(c.response_tokens for c in record.completions.values())
    return record, fed.prefill


def tokens(record: StepRecord) -> dict[int, list[int]]:
    return {i: c.token_ids.tolist() for i, c in record.completions.items() if c.token_ids is not None}


def test_prefixes_are_the_bits_of_whole_prompts(factory: TorchEngineFactory) -> None:
    texts = {p: ids[: 10 + 7 * p] for p, ids in enumerate(prompts())}
    model = factory.model
    with one_thread(model.device), counting(model) as fed:
        found = compute_prefixes(model, texts)
    assert fed.prefill == PrefixTree.of_token_ids(list(texts.values())).tokens < sum(len(t) for t in texts.values())
    alone = factory(LATENCY, admission_of_all())
    for p, ids in texts.items():
        with one_thread(model.device):
            whole = compute_prefixes(model, {p: ids})[p]
        assert found[p].tokens == len(ids)
        rows = [model.new_cache() for _ in range(2)]
        for cache, kv in zip(rows, (found[p], whole), strict=True):
            cache.reserve_rows(1)
            kv.put(cache, 0, len(ids))
        assert (rows[0].data == rows[1].data).all()
    alone.close()


def admission_of_all():
    from solver.model.admission import Admission

    return Admission(4, 1 << 20)


def test_one_prefill_of_a_prompt_for_all_of_its_samples(factory: TorchEngineFactory) -> None:
    """(G - 1) / G of the prefill tokens are saved (RLHFless, arXiv 2602.22718, reports 66 % with three samples)."""
    asked = requests()
    together = split_plan([list(range(PROMPTS * SAMPLES))], slots=4)
    shared = replace(together, actors=tuple(replace(a, shares_prompts=True) for a in together.actors))
    before, computed = run(together, factory, asked)
    after, fewer = run(shared, factory, asked)
    assert tokens(after) == tokens(before)
    assert computed == SAMPLES * sum(len(p) - 1 for p in prompts())
    assert fewer == computed // SAMPLES
    noted = sum(c.prefill_tokens_computed for c in after.completions.values())
    assert noted * SAMPLES == sum(c.prefill_tokens_computed for c in before.completions.values())


def test_a_prefill_actor_computes_what_is_shared_once(factory: TorchEngineFactory) -> None:
    asked = requests(np.full(PROMPTS * SAMPLES, 9))
    plan = round_robin(3)
    found = deduplicate(
        plan,
        PlanningProblem(workload(np.full(PROMPTS * SAMPLES, 9)), CLUSTER, LATENCY),
        [p.tolist() for p in prompts()],
        share_in_actors=True,
    )
    assert found.how == "prefill actor"
    before, computed = run(plan, factory, asked)
    after, fewer = run(found.plan, factory, asked)
    assert tokens(after) == tokens(before)
    tree = PrefixTree.of_token_ids([p[:-1] for p in prompts()])
    with counting(factory.model) as local:  # what a prefix cache in each actor could save at most
        for a in plan.actors:
            factory.compute_prefixes({p: prompts()[p][:-1] for p in a.prompts})
    assert local.prefill == sum(tree.covered(a.prompts, tree.prompt_tokens[list(a.prompts)]).sum() for a in plan.actors)
    assert tree.tokens <= fewer < local.prefill < computed


@pytest.mark.full
@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.booleans(), st.booleans())
@settings(max_examples=40, deadline=None)
def test_whatever_is_received_or_shared_tokens_and_times_stay_what_they_are(
    factory: TorchEngineFactory, seed: int, actors: int, shares: bool, preempt: bool
) -> None:
    """Tokens are those without any reuse; times and computed tokens are those of the simulated engine."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, LIMIT + 1, PROMPTS * SAMPLES)
    asked = requests(lengths)
    order = rng.permutation(PROMPTS * SAMPLES)
    plan = split_plan([order[a::actors].tolist() for a in range(actors)], slots=int(rng.integers(1, 6)))
    sizes = [len(p) for p in prompts()]
    reuse = []
    for a in plan.actors:
        received = tuple(p for p in a.prompts if rng.random() < 0.5)
        amounts = tuple(int(rng.integers(1, sizes[p] + 1)) for p in received)
        reuse.append(replace(a, prefixes=received, prefix_tokens=amounts, shares_prompts=shares))
    wanted: dict[int, int] = {}
    for a in reuse:
        for p, n in zip(a.prefixes, a.prefix_tokens, strict=True):
            wanted[p] = max(n, wanted.get(p, 0))
    from solver.model.plan import Prefill

    prefill = Prefill(tuple(wanted), tuple(wanted.values()), 0, 0.0) if wanted else None
    with_reuse = replace(plan, actors=tuple(reuse), prefill=prefill)
    latency = replace(LATENCY, kv_capacity_tokens=150 if preempt else 4096)
    options = {"admission": "preempt" if preempt else "reserve"}
    expected = run_step(plan, asked, factory, LATENCY, CLUSTER)
    record = run_step(with_reuse, asked, factory, latency, CLUSTER, **options)
    simulated = run_step(with_reuse, asked, SimulatedEngine, latency, CLUSTER, **options)
    assert tokens(record) == tokens(expected)
    for i, c in simulated.completions.items():
        assert record.completions[i].time_s == pytest.approx(c.time_s, rel=1e-9)
        assert record.completions[i].prefill_tokens_computed == c.prefill_tokens_computed
