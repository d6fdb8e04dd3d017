"""The parts of `gpu_engine.py`: a measured profile, and tokens per second beside ``generate``.

Each part prints its table and returns what goes into the result file. Knows nothing of that file, nor of where lengths come
from. Engines are charged ``measured``: the wall clock on a GPU, read when the device is done.
"""

from __future__ import annotations

import datetime
import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from gpu_workload import LIMIT, attempted

from rlhfless.engine.common.sampling import Sampling
from rlhfless.engine.protocol import Request
from rlhfless.engine.torch.benchmark import engine_timers
from rlhfless.engine.torch.decode_step import GRAPH_WIDTH
from rlhfless.engine.torch.engine import TorchEngine
from rlhfless.engine.torch.iteration_clock import MEASURED
from rlhfless.engine.torch.kv_cache import BLOCK
from rlhfless.engine.torch.model import DecoderModel
from rlhfless.engine.torch.row_models import row_model
from rlhfless.latency import load_profile, read_profile
from rlhfless.latency.measure import CausalLM
from rlhfless.latency.profile import compose_profile
from rlhfless.latency.timing import TIMED_CALLS, WARM_UP_CALLS, BatchChangeTrial, measure_changes, median_seconds
from solver.model.admission import Admission
from solver.model.iteration_table import IterationTable

SLOTS, PROMPT_TOKENS = 64, 64  # of the comparison with generate


class Grid(NamedTuple):
    """Sizes to time: batches x contexts (KV tokens per response), and (responses, prompt tokens of each) that join."""

    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    joins: tuple[tuple[int, int], ...]
    most_rounds: int


def measured_profile(load: Callable[[], CausalLM], grid: Grid, shipped: dict[str, str], seconds: float) -> dict[str, Any]:
    """A profile of the engine with the model of ``load``, in about ``seconds``, and its ratio to a ``shipped`` one (by GPU).

    Unlike ``rlhfless.latency.measure.measure_profile``, it goes through the grid as often as these seconds allow, and takes a
    start to be a sync, as of a prewarmed actor.
    """
    begin = time.monotonic()
    lm = load()
    device = lm.device.type
    trials = [BatchChangeTrial(*sizes) for sizes in grid.joins]
    decode, run_trial = engine_timers(lm.model, max(*grid.contexts, *(c.tokens + c.iterations for c in trials)))
    points = [(batch, context) for batch in grid.batches for context in grid.contexts]
    first = time.monotonic()
    median_seconds(decode, points, 1, device)  # finds out what a round takes, and warms up
    a_round = time.monotonic() - first
    rounds = int(np.clip((seconds - (time.monotonic() - begin)) / (1.5 * a_round), 1, grid.most_rounds))
    step_s = median_seconds(decode, points, rounds, device).reshape(len(grid.batches), len(grid.contexts))
    changes = measure_changes(run_trial, trials, 1)
    sync_s = lm.median_s(lm.sync, 1)
    table = IterationTable(np.array(grid.batches), np.array(grid.contexts), step_s)
    profile = compose_profile(
        name=f"{lm.kind}-{lm.name.lower()}",
        model=lm.name,
        kind=lm.kind,
        gpus_per_actor=1,
        precision=lm.precision,
        max_batch=max(grid.batches),
        capacity=lm.capacity()[0],
        table=table,
        changes=changes,
        start_s=sync_s,
        sync_s=sync_s,
        link="a copy in the device's memory",
        link_bytes_per_s=round(1 / lm.copy_s_per_byte(1)),
        origin=f"measured on {lm.kind}: median of {rounds} rounds of {TIMED_CALLS} calls",
        command="python tests/benchmarks/gpu_engine.py",
        date=datetime.date.today().isoformat(),
        licence="Apache-2.0",
        assumptions={
            "start_s": "assumed: one sync, as of a prewarmed actor",
            "transfer_base_s": "assumed: 0, emulated actors share one memory",
            "max_batch": "the largest measured batch",
        },
    )
    print(f"{lm.name}, ms of an iteration by batch and context, {rounds} rounds")
    print("batch " + " ".join(f"{context:>8}" for context in grid.contexts))
    for batch, row in zip(grid.batches, step_s * 1e3, strict=True):
        print(f"{batch:>5} " + " ".join(f"{ms:8.2f}" for ms in row))
    for c in changes:
        print(f"{c.prompts:>3} x {c.tokens_each:<4} join, {c.ended} ends: {c.seconds * 1e3:8.2f} ms more than without")
    mixed = mixed_iterations(lm, max(grid.batches), grid.joins)
    return {
        "profile": profile, "rounds": rounds, "mixed_iterations": mixed,
        "attended_cells": [attended(context, device) for context in grid.contexts],
        "shipped": against_shipped(points, step_s.reshape(-1), shipped, lm.kind),
    }  # fmt: skip


def mixed_iterations(lm: CausalLM, batch: int, joins: tuple[tuple[int, int], ...]) -> list[dict[str, float]]:
    """Seconds of an iteration in which responses join a batch that decodes, beside one of the same batch without.

    Args:
        batch: responses that decode, each with a prompt of ``PROMPT_TOKENS``. joins: (responses, prompt tokens of each).
    """
    found = []
    longest = max(PROMPT_TOKENS, *(tokens for _, tokens in joins)) + 2 * WARM_UP_CALLS + 2
    rows = row_model("own", lm.model, longest)
    for responses, tokens in joins:
        engine = TorchEngine(rows, Admission(batch + responses, (batch + responses) * longest), MEASURED, eos_id=0)
        timed = []
        try:
            engine.add([_forced(i, PROMPT_TOKENS) for i in range(batch)])
            for k in range(2 * WARM_UP_CALLS):
                if k == WARM_UP_CALLS:
                    engine.add([_forced(batch + i, tokens) for i in range(responses)])
                prepared_s, begin = engine.journal.prepare_s, time.perf_counter()
                engine.commit_next()
                if lm.device.type == "cuda":
                    torch.cuda.synchronize()
                timed.append(time.perf_counter() - begin - (engine.journal.prepare_s - prepared_s))
        finally:
            engine.close()
        joined_s, without_s = timed[WARM_UP_CALLS], float(np.median(timed[1:WARM_UP_CALLS]))
        print(f"{responses:>3} x {tokens:<4} join {batch} that decode: {joined_s * 1e3:8.2f} ms, without {without_s * 1e3:.2f}")
        found.append(
            {"batch": batch, "responses": responses, "tokens": tokens, "seconds": joined_s, "without_s": without_s}
        )  # fmt: skip
    return found


def _forced(response: int, tokens: int) -> Request:
    """A response that outlasts the timed iterations."""
    many = 2 * WARM_UP_CALLS + 1
    return Request(
        response, tokens, many, target_tokens=many, prompt_ids=np.zeros(tokens, dtype=np.int64), seed=response
    )  # fmt: skip


def attended(context: int, device: str) -> int:
    """Cells that the timed iterations attend over at a context: whole graphs' widths on a GPU."""
    width = GRAPH_WIDTH if device == "cuda" else BLOCK
    return -(-(context + WARM_UP_CALLS) // width) * width


def against_shipped(
    points: list[tuple[int, int]], seconds: np.ndarray, shipped: dict[str, str], kind: str
) -> dict[str, Any] | str:
    """Measured seconds of (batch, context) points on a GPU relative to its shipped profile; to that of another GPU, which the
    result says, where there is none of this one."""
    if not shipped:
        print("no shipped profile of this model: nothing to compare with")
        return "there is no shipped profile of this model"
    name = shipped.get(kind, next(iter(shipped.values())))
    table = load_profile(name).table
    assert table is not None
    ratio = np.array([s / float(table(batch, batch * context)) for (batch, context), s in zip(points, seconds, strict=True)])
    within = float((np.maximum(ratio, 1 / ratio) <= 1.5).mean())
    span = f"median {np.median(ratio):.2f}, {ratio.min():.2f} to {ratio.max():.2f}"
    whose = "of this GPU" if kind in shipped else f"profile of another GPU: this is {kind}"
    print(f"measured / {name} ({whose}): {span}; {within:.0%} of the points within 1.5x")
    found = {"name": name, "whose": whose, "origin": read_profile(name)["origin"], "ratio": ratio.tolist(), "points": points}
    return {**found, "median_ratio": float(np.median(ratio)), "share_within_1.5": within}


def throughput(lm: CausalLM, lengths: np.ndarray) -> dict[str, Any]:
    """Useful tokens per second of the engine, of the same engine with transformers' forward pass, and of ``generate``, which
    decodes every batch until its longest is done."""
    prompts = np.random.default_rng(0).integers(1, lm.model.config.vocab_size, (len(lengths), PROMPT_TOKENS))
    tokens = int(lengths.sum())

    def engine(name: str, forward: str) -> dict[str, Any]:
        seconds, prepare_s = engine_seconds(lm, prompts, lengths, forward)
        print(f"{name} {tokens / seconds:,.0f} tokens/s, {prepare_s:.1f} s of captures left out")
        return {f"{name}_s": seconds, f"{name}_prepare_s": prepare_s, f"{name}_tokens_per_s": tokens / seconds}

    def static_batches() -> dict[str, Any]:
        generate(lm, prompts[:SLOTS], 4)
        seconds = 0.0
        for begin in range(0, len(lengths), SLOTS):
            batch = slice(begin, begin + SLOTS)
            seconds += generate(lm, prompts[batch], int(lengths[batch].max()))
        print(f"generate {tokens / seconds:,.0f} tokens/s")
        return {"generate_s": seconds, "generate_tokens_per_s": tokens / seconds}

    print(f"{len(lengths)} responses, {tokens} tokens")
    found = {"responses": len(lengths), "tokens": tokens, "slots": SLOTS}
    found |= attempted(lambda: engine("engine", "own"))
    passes = attempted(lambda: engine("transformers_engine", "transformers"))
    found |= passes if "failed" not in passes else {"transformers_engine": passes}
    more = attempted(static_batches)
    if "failed" in more:
        return {**found, "generate": more}
    found |= more
    return {**found, "ratio": found["generate_s"] / found["engine_s"]} if "engine_s" in found else found


def engine_seconds(lm: CausalLM, prompts: np.ndarray, lengths: np.ndarray, forward: str) -> tuple[float, float]:
    """Wall seconds of decoding, those of preparing shapes left out, and these."""
    rows = row_model(forward, lm.model, PROMPT_TOKENS + LIMIT)
    engine = TorchEngine(rows, Admission(SLOTS, 1 << 40), MEASURED, eos_id=0)
    asked = zip(prompts, lengths.tolist(), strict=True)
    engine.add([Request(i, PROMPT_TOKENS, LIMIT, target_tokens=n, prompt_ids=p, seed=i) for i, (p, n) in enumerate(asked)])
    start = time.perf_counter()
    done = engine.advance(math.inf).completions
    seconds = time.perf_counter() - start
    assert sum(c.response_tokens for c in done) == lengths.sum()
    engine.close()
    return seconds - engine.journal.prepare_s, engine.journal.prepare_s


def generate(lm: CausalLM, prompts: np.ndarray, tokens: int) -> float:
    """Seconds in which transformers decodes ``tokens`` for every prompt."""
    ids = torch.from_numpy(prompts).to(lm.device)
    start = time.perf_counter()
    with torch.inference_mode():
        out = lm.model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=True, top_k=0, min_new_tokens=tokens, max_new_tokens=tokens,
            pad_token_id=0,
        )  # fmt: skip
    assert out[0, -1].item() >= 0  # waits for the device
    assert out.shape[1] == prompts.shape[1] + tokens
    return time.perf_counter() - start


def reloaded(lm: CausalLM) -> dict[str, Any]:
    """New weights for an engine that has captured its shapes: they are not captured again, and its tokens are the new ones."""
    state = lm.model.state_dict()
    embedding = state["model.embed_tokens.weight"]
    other = embedding.roll(1, 0)
    weights = {name: other if weight.is_set_to(embedding) else weight for name, weight in state.items()}
    weights["model.norm.weight"] = -weights["model.norm.weight"]
    rows = DecoderModel(lm.model, 2 * PROMPT_TOKENS)
    engine = _greedy(rows)
    before, captured_s = _decoded(engine), engine.journal.prepare_s
    begin = time.monotonic()
    engine.sync(weights, 1)
    load_s = time.monotonic() - begin
    after, again_s = _decoded(engine), engine.journal.prepare_s - captured_s
    engine.close()
    rows.free()
    fresh = DecoderModel(lm.model, 2 * PROMPT_TOKENS)
    fresh.load(weights)
    expected = _decoded(_greedy(fresh))
    found = {
        "captured_s": captured_s, "captured_again_s": again_s, "load_s": load_s,
        "tokens_changed": before != after, "tokens_are_the_new_weights": after == expected,
    }  # fmt: skip
    print(found)
    if again_s or after != expected:
        raise AssertionError("loading weights moved them, or left some of the old ones")
    return found


def _greedy(rows: DecoderModel) -> TorchEngine:
    return TorchEngine(rows, Admission(8, 1 << 40), MEASURED, eos_id=0, sampling=Sampling(temperature=0))


def _decoded(engine: TorchEngine) -> list[list[int]]:
    """Tokens of eight responses to prompts of one length."""
    ids = np.arange(8 * PROMPT_TOKENS).reshape(8, -1) % 50 + 1
    engine.add([Request(i, PROMPT_TOKENS, 32, target_tokens=32, prompt_ids=ids[i], seed=i) for i in range(8)])
    done = sorted(engine.advance(math.inf).completions, key=lambda c: c.response)
    return [c.token_ids.tolist() for c in done]  # type: ignore[union-attr]
