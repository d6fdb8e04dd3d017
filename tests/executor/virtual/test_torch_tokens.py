"""Real decoding under every policy: each response once, with the token ids of the run that nothing disturbed."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import pytest

from rlhfless.engine.protocol import Request
from rlhfless.engine.tokenizers.char_tokenizer import CharTokenizer
from rlhfless.engine.torch.factory import TorchEngineFactory
from rlhfless.engine.torch.model import DecoderModel
from rlhfless.executor import StepRecord, run_step
from rlhfless.scheduling import POLICIES, PlanningOptions, make_policy
from rlhfless.scheduling.rlhfuse import RLHFuse
from rlhfless.training.models.tiny_model import tiny_qwen2
from solver import Cluster, LatencyModel, Objective, Workload
from solver.model.problem import PlanningProblem

PROMPTS, SAMPLES, LIMIT = 6, 4, 48
LATENCY = LatencyModel(
    "tiny", 1, 2e-3, 40e-6, 100e-9, prefill_base_s=1e-3, prefill_per_token_s=1e-5, join_s=3e-4, start_s=0.01,
    transfer_base_s=1e-4, transfer_per_kv_token_s=1e-6, max_batch=16, kv_capacity_tokens=4096,
)  # fmt: skip


@pytest.fixture(scope="module")
def factory() -> TorchEngineFactory:
    tokenizer = CharTokenizer()
    model = tiny_qwen2(tokenizer, seed=3, hidden=64, layers=2, intermediate=128)
    return TorchEngineFactory(DecoderModel(model, 80), tokenizer.eos_token_id)


def requests() -> list[Request]:
    rng = np.random.default_rng(5)
    prompts = [rng.integers(2, 30, size=int(rng.integers(4, 20))) for _ in range(PROMPTS)]
    return [
        Request(i, len(prompts[i // SAMPLES]), LIMIT, prompt_ids=prompts[i // SAMPLES].astype(np.int64), seed=i)
        for i in range(PROMPTS * SAMPLES)
    ]


def run(policy: str, factory: TorchEngineFactory, migration: str = "move", truth: np.ndarray | None = None) -> StepRecord:
    """``truth``: (P, G) lengths that the policy plans with; without them it has predictions, which are wrong."""
    asked = requests()
    lengths = np.repeat(np.linspace(5, 40, PROMPTS), SAMPLES).reshape(PROMPTS, SAMPLES) if truth is None else truth
    workload = Workload.grid([r.prompt_tokens for r in asked[::SAMPLES]], lengths, max_response_tokens=LIMIT)
    given = (PlanningProblem(workload, Cluster(1, 4, 1), LATENCY, Objective(0.96)), PlanningOptions())
    chosen = RLHFuse(threshold_share=0.6) if policy == "rlhfuse" else make_policy(policy, tau=0.5)
    return run_step(chosen.plan(*given), asked, factory, LATENCY, Cluster(1, 4, 1), migration=migration)


def token_hashes(record: StepRecord) -> dict[int, str]:
    ids = {i: done.token_ids for i, done in record.completions.items()}
    return {i: hashlib.sha256(np.asarray(v, dtype=np.int64).tobytes()).hexdigest() for i, v in ids.items()}


@pytest.fixture(scope="module")
def undisturbed(factory: TorchEngineFactory) -> StepRecord:
    return run("solver", factory)


def test_lengths_differ_so_that_cuts_have_something_to_move(undisturbed: StepRecord) -> None:
    lengths = [c.response_tokens for c in undisturbed.completions.values()]
    assert len(lengths) == PROMPTS * SAMPLES
    assert max(lengths) > 2 * min(lengths)
    assert {c.finish_reason for c in undisturbed.completions.values()} == {"stop", "length"}


MOVING = ("rlhfless", "rlhfuse", "fold", "random+tau")
RULES = (*MOVING, "solver+replan", "oracle+replan")  # of the others nothing can move


@pytest.mark.parametrize(
    ("policy", "migration"), [*((policy, "move") for policy in POLICIES), *((policy, "recompute") for policy in RULES)]
)
def test_tokens_do_not_depend_on_the_policy(
    policy: str, migration: str, factory: TorchEngineFactory, undisturbed: StepRecord
) -> None:
    """Moved or recomputed: on one CPU thread a prefill gives the bits that decoding gave (see the engine's own tests)."""
    lengths = [undisturbed.completions[i].response_tokens for i in range(PROMPTS * SAMPLES)]
    truth = np.reshape(lengths, (PROMPTS, SAMPLES)) if policy.startswith("oracle") else None
    record = run(policy, factory, migration, truth)
    assert token_hashes(record) == token_hashes(undisturbed)
    assert policy in RULES or record.rule is None, "what has a rule is to be tried with recomputation too"
    if policy in MOVING:
        assert record.moves > 0, "the policy moved nothing, so this run shows nothing"


def test_the_clock_is_that_of_the_simulated_engine(factory: TorchEngineFactory) -> None:
    """With the lengths that came out, the simulated engine takes the same time and moves the same responses."""
    from rlhfless.engine.simulated.engine import SimulatedEngine

    real = run("rlhfless", factory)
    asked = [
        replace(r, target_tokens=c.response_tokens, target_finish=c.finish_reason)
        for r, c in zip(requests(), (real.completions[i] for i in range(PROMPTS * SAMPLES)), strict=True)
    ]
    plan = replace(real.plan, rule=make_policy("rlhfless", tau=0.5).plan(*_given(asked)).rule)
    simulated = run_step(
        plan, asked, SimulatedEngine, LATENCY, Cluster(1, 4, 1), migration="move",
    )  # fmt: skip
    assert simulated.moves == real.moves
    assert simulated.makespan_s == pytest.approx(real.makespan_s, rel=1e-9)
    times = {i: c.time_s for i, c in real.completions.items()}
    assert {i: c.time_s for i, c in simulated.completions.items()} == pytest.approx(times, rel=1e-9)


def _given(asked: list[Request]) -> tuple[PlanningProblem, PlanningOptions]:
    lengths = np.repeat(np.linspace(5, 40, PROMPTS), SAMPLES).reshape(PROMPTS, SAMPLES)
    workload = Workload.grid([r.prompt_tokens for r in asked[::SAMPLES]], lengths, max_response_tokens=LIMIT)
    return (PlanningProblem(workload, Cluster(1, 4, 1), LATENCY, Objective(0.96)), PlanningOptions())
