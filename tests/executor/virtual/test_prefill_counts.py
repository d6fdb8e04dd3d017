"""Prefill tokens of a trace are those that were fed to the model, whatever is shared, on both clocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from busy_machine import PATIENT
from prefill_samples import CLUSTER, LATENCY, LIMIT, SAMPLES

from rlhfless.engine.protocol import Request
from rlhfless.engine.simulated.engine import SimulatedEngine
from rlhfless.engine.tokenizers.char_tokenizer import CharTokenizer
from rlhfless.engine.torch.factory import TorchEngineFactory
from rlhfless.engine.torch.model import DecoderModel, counting
from rlhfless.executor import ProcessPool, StepRecord, run_step
from rlhfless.training.models.tiny_model import tiny_qwen2
from solver import NonGenerationPhases, Plan
from solver.model.admission import Admission
from solver.model.plan import ActorPlan, Prefill

SIZES = (5, 12, 9, 31)
WHOLE = sum(n - 1 for n in SIZES)  # the last token of a prompt is decoded
LENGTHS = np.array([3, 7, 5, 1, 9, 4, 6, 2, 8, 5, 5, 5])
COMPUTED = {"nothing is shared": SAMPLES * WHOLE, "shared in actors": WHOLE, "prefill actor": WHOLE, "learner": WHOLE}


@pytest.fixture(scope="module")
def factory() -> TorchEngineFactory:
    tokenizer = CharTokenizer()
    return TorchEngineFactory(
        DecoderModel(tiny_qwen2(tokenizer, seed=3, hidden=64, layers=2, intermediate=128), 80), tokenizer.eos_token_id
    )


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPool]:
    with ProcessPool(["cpu"] * 4, faults=PATIENT) as shared:
        yield shared


def requests() -> list[Request]:
    """``SAMPLES`` responses to each of four prompts that share nothing."""
    ids = [np.concatenate([[2 + p], np.random.default_rng(p).integers(2, 30, n - 1)]) for p, n in enumerate(SIZES)]
    owner = np.repeat(np.arange(len(SIZES)), SAMPLES).tolist()
    return [
        Request(i, SIZES[p], LIMIT, target_tokens=n, prompt_ids=ids[p], seed=i, prompt=p)
        for i, (p, n) in enumerate(zip(owner, LENGTHS.tolist(), strict=True))
    ]


def plan_of(how: str) -> Plan:
    """Prompts by actors where these share them; else the samples of a prompt are divided, and what is computed once is sent."""
    prompts, responses = tuple(range(len(SIZES))), range(len(LENGTHS))
    if how == "shared in actors":
        parts = [[i for i in responses if i // SAMPLES in own] for own in ((0, 1), (2, 3))]
    else:
        parts = [list(responses)[a::SAMPLES] for a in range(SAMPLES)]
    actors = [
        ActorPlan(
            "gpu", (g,), 0, tuple(own), tuple(dict.fromkeys(i // SAMPLES for i in own)), 4, shares_prompts=len(parts) == 2
        )
        for g, own in enumerate(parts)
    ]
    if how in ("nothing is shared", "shared in actors"):
        return Plan(tuple(actors), how, 0.0, 0.0, 0.0)
    actors = [replace(a, prefixes=prompts, prefix_tokens=SIZES, receive_s=0.5) for a in actors]
    if how == "prefill actor":
        actors.append(ActorPlan("gpu", (SAMPLES,), 0, (), (), 4, receive_s=0.5))
    return Plan(tuple(actors), how, 0.0, 0.0, 0.0, prefill=Prefill(prompts, SIZES, sum(SIZES), 0.1))


def traced(record: StepRecord) -> int:
    """Prefill tokens of the spans; what responses say of themselves is what decode actors computed."""
    spans = [s for s in record.spans if s["phase"] == "prefill"]
    alone = sum(c.prefill_tokens_computed for c in record.completions.values())
    once = {f"actor-{i}" for i, a in enumerate(record.plan.actors) if not a.responses} | {"learner"}
    assert alone == sum(s["tokens"] for s in spans if s["holder"] not in once)
    return sum(s["tokens"] for s in spans)


@pytest.mark.parametrize("charging", ["profile", "measured"])
@pytest.mark.parametrize("how", list(COMPUTED))
def test_on_the_virtual_clock(how: str, charging: str, factory: TorchEngineFactory) -> None:
    """With G samples of a prompt, sharing saves (G - 1) / G of the prefill tokens."""
    replays = []

    class Once(TorchEngineFactory):
        def replay(self, journal):
            with counting(self.model) as again:
                found = super().replay(journal)
            replays.append(again.prefill)
            return found

        def replay_prefixes(self, prefixes):
            with counting(self.model) as again:
                found = super().replay_prefixes(prefixes)
            replays.append(again.prefill)
            return found

    engines = Once(factory.model, factory.eos_id)
    phases = NonGenerationPhases(0.1, 0.1, 1 if how == "learner" else 0)
    with counting(factory.model) as fed:
        record = run_step(plan_of(how), requests(), engines, LATENCY, CLUSTER, phases=phases, charging=charging)
    assert traced(record) == fed.prefill - sum(replays) == COMPUTED[how]
    assert bool(replays) == (charging == "measured")
    assert fed.decode >= LENGTHS.sum()
    simulated = run_step(plan_of(how), requests(), SimulatedEngine, LATENCY, CLUSTER, phases=phases)
    assert traced(simulated) == COMPUTED[how]


@pytest.mark.full
@pytest.mark.parametrize("how", ["nothing is shared", "shared in actors", "prefill actor"])
def test_on_the_wall_clock(how: str, pool: ProcessPool, factory: TorchEngineFactory) -> None:
    """What is fed to models in other processes is what is fed here: the test before counts it."""
    record = pool.run_step(plan_of(how), requests(), factory, LATENCY, CLUSTER)
    assert traced(record) == COMPUTED[how]


@pytest.mark.full
def test_in_real_time_a_hook_counts_what_spans_and_completions_say(factory: TorchEngineFactory) -> None:
    """The engine's own loop on the wall clock, with a response that is cut and computed again."""
    engine, spans, done = factory.measured()(LATENCY, Admission(3, 1 << 20)), [], []
    engine.add(requests())
    ticks = iter(np.arange(1.0, 1000.0).tolist())
    with counting(factory.model) as fed:
        for k in range(200):
            progress = engine.step(0.0, lambda: next(ticks))
            spans += progress.spans
            done += progress.completions
            if k == 1:
                taken, _ = engine.cut(engine.clock_s, engine.running())
                engine.add([replace(r, kv=None) for r in taken])
    assert len(done) == len(LENGTHS)
    assert fed.prefill == sum(s.tokens for s in spans if s.phase == "prefill") > SAMPLES * WHOLE
    assert fed.prefill == sum(c.prefill_tokens_computed for c in done)
    assert fed.decode == sum(s.tokens for s in spans if s.phase == "decode") == LENGTHS.sum()
