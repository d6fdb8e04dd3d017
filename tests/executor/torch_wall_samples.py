"""A small step with real tokens: the shipped architecture with random weights, a few prompts, plans of every policy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rlhfless.engine.protocol import Request
from rlhfless.engine.torch_factory import TorchEngineFactory
from rlhfless.engine.torch_forward import RowModel
from rlhfless.executor import StepRecord
from rlhfless.scheduling import PlanningInput, make_policy
from rlhfless.training.model import tiny_qwen2
from rlhfless.training.tokenizer import CharTokenizer
from solver import Cluster, LatencyModel, Objective, Plan, Workload
from solver.rules import RuntimeRule

PROMPTS, SAMPLES, LIMIT = 6, 4, 64
CLUSTER = Cluster(1, 4, 1)
LATENCY = LatencyModel(
    "tiny", 1, 2e-3, 40e-6, 100e-9, prefill_base_s=1e-3, prefill_per_token_s=1e-5, start_s=0.01,
    transfer_base_s=1e-4, transfer_per_kv_token_s=1e-6, max_batch=24, kv_capacity_tokens=1 << 20,
)  # fmt: skip


def factory_of(seed: int = 3, longest: int = 96) -> TorchEngineFactory:
    tokenizer = CharTokenizer()
    model = tiny_qwen2(tokenizer, seed=seed, hidden=64, layers=2, intermediate=128)
    return TorchEngineFactory(RowModel(model, longest), tokenizer.eos_token_id)


def requests() -> list[Request]:
    rng = np.random.default_rng(5)
    prompts = [rng.integers(2, 30, size=int(rng.integers(4, 20))).astype(np.int64) for _ in range(PROMPTS)]
    return [
        Request(i, len(prompts[i // SAMPLES]), LIMIT, prompt_ids=prompts[i // SAMPLES], seed=i)
        for i in range(PROMPTS * SAMPLES)
    ]


def actor_plan(policy: str, rule: RuntimeRule | None = None, actors: int | None = None) -> Plan:
    """The policy's plan; ``rule`` replaces its own."""
    lengths = np.repeat(np.linspace(5, 60, PROMPTS), SAMPLES).reshape(PROMPTS, SAMPLES)
    workload = Workload.grid([r.prompt_tokens for r in requests()[::SAMPLES]], lengths, response_limit=LIMIT)
    cluster = CLUSTER if actors is None else Cluster(1, actors, 1)
    plan = make_policy(policy, tau=0.5).plan(PlanningInput(workload, cluster, LATENCY, Objective(0.96), time_limit_s=0.1))
    return plan if rule is None else replace(plan, rule=rule)


def token_bytes(record: StepRecord) -> dict[int, bytes]:
    return {i: np.asarray(c.token_ids, dtype=np.int64).tobytes() for i, c in sorted(record.completions.items())}
