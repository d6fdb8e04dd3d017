"""How much of a whole step on the torch engine is neither forward pass nor sampling; a part of ``executor_speed.py``.

All of ``run_step`` with 128 responses of the tiny model (``tiny_qwen2``, float32 on the CPU, one thread) on at most 8 emulated
actors of 16 slots, charged by a profile, at random and with a rule that moves responses, lengths given or ended by the end of
text. Seconds of the thread, and those of them that are neither inside the ``DecodeStep`` call nor inside ``KVRows.compute``
(prefill): beginning the step, planning, taking responses in, noise, taking leave, moves, the rule and the record. Medians over
rounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from rlhfless.engine.protocol import Request
from rlhfless.engine.tokenizers.char_tokenizer import CharTokenizer
from rlhfless.engine.torch.decode_step import DecodeStep
from rlhfless.engine.torch.factory import TorchEngineFactory
from rlhfless.engine.torch.kv_rows import KVRows
from rlhfless.engine.torch.model import DecoderModel
from rlhfless.executor import run_step
from rlhfless.latency import load_profile
from rlhfless.scheduling import PlanningOptions, make_policy
from rlhfless.training.models.tiny_model import tiny_qwen2
from solver import Cluster, Workload
from solver.model.problem import PlanningProblem

PROMPTS, SAMPLES, LIMIT, ACTORS, SLOTS = 16, 8, 150, 8, 16


class Inside:
    """Seconds of the thread inside of some methods, and calls of the first of them."""

    def __init__(self) -> None:
        self.seconds, self.calls = 0.0, 0

    @contextmanager
    def of(self, *methods: tuple[type, str]) -> Iterator[None]:
        """Watch methods of classes."""
        inner = [getattr(owner, name) for owner, name in methods]
        for number, ((owner, name), method) in enumerate(zip(methods, inner, strict=True)):
            setattr(owner, name, self._watched(method, number == 0))
        try:
            yield
        finally:
            for (owner, name), method in zip(methods, inner, strict=True):
                setattr(owner, name, method)

    def _watched(self, method: Callable[..., Any], counts: bool) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            began = time.thread_time()
            found = method(*args)
            self.seconds += time.thread_time() - began
            self.calls += counts
            return found

        return call


def torch_steps(rounds: int, prompts: int = PROMPTS) -> list[dict[str, Any]]:
    """What all of a step takes, and how much of it is outside of the model."""
    tokenizer, rng = CharTokenizer(), np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(3.6, 0.7, (prompts, SAMPLES)).astype(int), 1, LIMIT)
    work = Workload.grid(rng.integers(10, 30, prompts), lengths, max_response_tokens=LIMIT)
    ids = [rng.integers(2, tokenizer.vocab_size, n) for n in work.prompt_tokens]
    model = DecoderModel(tiny_qwen2(tokenizer), LIMIT + 30)
    engines = TorchEngineFactory(model, tokenizer.eos_token_id)
    latency, cluster = replace(load_profile("cpu-tiny-qwen2"), max_batch=SLOTS), Cluster(1, ACTORS, 1)
    rows = []
    for policy in ("random", "rlhfless"):
        plan = make_policy(policy).plan(PlanningProblem(work, cluster, latency), PlanningOptions())
        for forced in (True, False):
            requests = [
                Request(i, len(ids[p]), LIMIT, target_tokens=n if forced else None, prompt_ids=ids[p], seed=i, prompt=p)
                for i, (p, n) in enumerate(zip(work.prompt_of.tolist(), work.response_tokens.tolist(), strict=True))
            ]
            record = run_step(plan, requests, engines, latency, cluster)  # to warm up
            totals, shares = [], []
            for _ in range(rounds):
                inside = Inside()
                with inside.of((DecodeStep, "__call__"), (KVRows, "compute")):
                    began = time.thread_time()
                    record = run_step(plan, requests, engines, latency, cluster)
                    totals.append(time.thread_time() - began)
                shares.append(1 - inside.seconds / totals[-1])
            rows.append(
                {
                    "policy": policy, "forced": forced, "actors": len(plan.actors), "moves": record.moves,
                    "iterations": inside.calls, "tokens": sum(c.response_tokens for c in record.completions.values()),
                    "seconds": float(np.median(totals)), "outside": float(np.median(shares)),
                }
            )  # fmt: skip
    return rows
