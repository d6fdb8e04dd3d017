"""Prompts with a common beginning, and plans and requests of their responses: what the tests of shared prefill decode."""

from __future__ import annotations

import numpy as np

from rlhfless.engine.protocol import Request
from solver import Cluster, LatencyModel, Plan, Workload
from solver.model.plan import ActorPlan

PROMPTS, SAMPLES, LIMIT = 5, 3, 20


LATENCY = LatencyModel(
    "tiny", 1, 2e-3, 40e-6, 100e-9, prefill_base_s=1e-3, prefill_per_token_s=1e-3, start_s=0.01,
    transfer_base_s=1e-5, transfer_per_kv_token_s=1e-8, max_batch=4, kv_capacity_tokens=4096,
)  # fmt: skip


CLUSTER = Cluster(1, 4, 1)


def prompts(shared: int = 30, own: int = 8) -> list[np.ndarray]:
    """Prompts that begin with the same instruction and examples."""
    rng = np.random.default_rng(5)
    head = rng.integers(2, 30, shared)
    return [np.concatenate([head, rng.integers(2, 30, own + p)]) for p in range(PROMPTS)]


def requests(lengths: np.ndarray | None = None) -> list[Request]:
    texts = prompts()
    return [
        Request(
            i, len(texts[i // SAMPLES]), LIMIT, prompt_ids=texts[i // SAMPLES], seed=i, prompt=i // SAMPLES,
            target_tokens=None if lengths is None else int(lengths[i]),
        )
        for i in range(PROMPTS * SAMPLES)
    ]  # fmt: skip


def workload(lengths: np.ndarray) -> Workload:
    return Workload.grid([len(p) for p in prompts()], lengths.reshape(PROMPTS, SAMPLES), max_response_tokens=LIMIT)


def split_plan(groups: list[list[int]], slots: int = 4) -> Plan:
    actors = [
        ActorPlan("gpu", (g,), 0, tuple(r), tuple(dict.fromkeys(i // SAMPLES for i in r)), slots) for g, r in enumerate(groups)
    ]
    return Plan(tuple(actors), "by hand", 0.0, 0.0, 0.0)


def round_robin(actors: int) -> Plan:
    """Responses are assigned round-robin: the samples of a prompt are on different actors."""
    return split_plan([list(range(a, PROMPTS * SAMPLES, actors)) for a in range(actors)])
