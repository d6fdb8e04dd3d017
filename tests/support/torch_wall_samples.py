"""A small step with real tokens: the shipped architecture with random weights, a few prompts, plans of every policy; and
engines that fail or are slow, for actors in processes of their own, which import them from here."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rlhfless.engine.protocol import Progress, Request
from rlhfless.engine.tokenizers.char_tokenizer import CharTokenizer
from rlhfless.engine.torch.engine import TorchEngine
from rlhfless.engine.torch.factory import TorchEngineFactory
from rlhfless.engine.torch.model import DecoderModel
from rlhfless.executor import Faults, StepRecord
from rlhfless.executor.distributed.failure_handling import GRACE_S
from rlhfless.scheduling import PlanningOptions, make_policy
from rlhfless.training.models.tiny_model import tiny_qwen2
from solver import Cluster, LatencyModel, Objective, Plan, Workload
from solver.model.admission import Admission
from solver.model.problem import PlanningProblem
from solver.model.runtime_rules import RuntimeRule

PROMPTS, SAMPLES, LIMIT = 6, 4, 64
CLUSTER = Cluster(1, 4, 1)
SLACK_S = 300.0  # that a busy machine may take to look
LATENCY = LatencyModel(
    "tiny", 1, 2e-3, 40e-6, 100e-9, prefill_base_s=1e-3, prefill_per_token_s=1e-5, start_s=0.01,
    transfer_base_s=1e-4, transfer_per_kv_token_s=1e-6, max_batch=24, kv_capacity_tokens=1 << 20,
)  # fmt: skip


def factory_of(seed: int = 3, longest: int = 96) -> TorchEngineFactory:
    tokenizer = CharTokenizer()
    model = tiny_qwen2(tokenizer, seed=seed, hidden=64, layers=2, intermediate=128, max_tokens=longest)
    return TorchEngineFactory(DecoderModel(model, longest), tokenizer.eos_token_id)


def requests() -> list[Request]:
    rng = np.random.default_rng(5)
    prompts = [rng.integers(2, 30, size=int(rng.integers(4, 20))).astype(np.int64) for _ in range(PROMPTS)]
    return [
        Request(i, len(prompts[i // SAMPLES]), LIMIT, prompt_ids=prompts[i // SAMPLES], seed=i)
        for i in range(PROMPTS * SAMPLES)
    ]


def forced() -> list[Request]:
    """Long enough for things to happen in the middle."""
    lengths = np.random.default_rng(3).integers(60, 110, len(requests()))
    return [replace(r, target_tokens=int(n), max_tokens=110) for r, n in zip(requests(), lengths, strict=True)]


def actor_plan(policy: str, rule: RuntimeRule | None = None, actors: int | None = None) -> Plan:
    """The policy's plan; ``rule`` replaces its own."""
    lengths = np.repeat(np.linspace(5, 60, PROMPTS), SAMPLES).reshape(PROMPTS, SAMPLES)
    workload = Workload.grid([r.prompt_tokens for r in requests()[::SAMPLES]], lengths, max_response_tokens=LIMIT)
    cluster = CLUSTER if actors is None else Cluster(1, actors, 1)
    plan = make_policy(policy, tau=0.5).plan(PlanningProblem(workload, cluster, LATENCY, Objective(0.96)), PlanningOptions())
    return plan if rule is None else replace(plan, rule=rule)


def token_bytes(record: StepRecord) -> dict[int, bytes]:
    return {i: np.asarray(c.token_ids, dtype=np.int64).tobytes() for i, c in sorted(record.completions.items())}


def assert_noticed_in_time(record: StepRecord, holder: str, faults: Faults) -> None:
    """An actor that fell silent counted as lost after the limit, and not much later, by the times of the record."""
    heard_s = max(s["end_s"] for s in record.spans if s["holder"] == holder and s["call"] != "lost")
    (lost_s,) = (e["time_s"] for e in record.events if (e["name"], e["holder"]) == ("lost", holder))
    limit_s = faults.silence_floor_s + GRACE_S
    assert limit_s <= lost_s - heard_s <= limit_s + SLACK_S


def shared_memory(pid: int) -> list[Path]:
    """What the program ``pid`` and its actors have laid out (on Linux, where it has names that can be listed)."""
    return list(Path("/dev/shm").glob(f"rlhfless-{pid}-*"))


def until(true: Callable[[], object], what: str, patience_s: float = 300.0) -> None:
    ends = time.monotonic() + patience_s
    while not true():
        assert time.monotonic() < ends, f"{what}: not after {patience_s:g} s"
        time.sleep(0.02)


@dataclass(frozen=True)
class Troubled(TorchEngineFactory):
    """Engines in trouble: an iteration of more than ``most`` responses finds no memory; one of an actor with ``slow_slots``
    slots takes ``slow_s`` longer."""

    most: int = 1 << 30
    slow_slots: int = 0
    slow_s: float = 0.0

    def __call__(self, latency: LatencyModel, admission: Admission, start_s: float = 0.0) -> TorchEngine:
        engine = super().__call__(latency, admission, start_s)
        step = engine.step

        def troubled(from_s: float, clock: Any) -> Progress:
            if len(engine.running()) > self.most:
                raise MemoryError("no more pages")
            if admission.max_batch == self.slow_slots:
                now = clock()
                return step(from_s, lambda: _later(clock, now, self.slow_s))
            return step(from_s, clock)

        engine.step = troubled  # type: ignore[method-assign]
        return engine


def _later(clock: Any, now_s: float, slow_s: float) -> float:
    time.sleep(max(0.0, now_s + slow_s - clock()))
    return float(clock())


def troubled(factory: TorchEngineFactory, **how: float) -> Troubled:
    return Troubled(factory.model, factory.eos_id, factory.sampling, **how)  # type: ignore[arg-type]
