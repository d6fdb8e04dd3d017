"""Measures a latency profile of a server that runs already, by the tokens that it streams to its engine.

A trial sends so many prompts of random tokens at once. An iteration takes what a token of each response takes while all of them
decode; the prompts take the time until then, less an iteration. Nothing else may use the server meanwhile.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np

from rlhfless.engine.common.sampling import Sampling
from rlhfless.engine.protocol import Request
from rlhfless.engine.server.client import served_model
from rlhfless.engine.server.engine import SMALL_IDS, ServerEngine, ServerEngineFactory
from rlhfless.latency.engine_statistics import unstated
from rlhfless.latency.fit import fit_changes, fit_table, residuals
from rlhfless.latency.measure import MeasurementGrid
from rlhfless.latency.profile import SCHEMA, SCHEMA_VERSION
from rlhfless.latency.shipped import ProfileError
from rlhfless.latency.timing import TimedChange
from rlhfless.system.cleanup import cleaning_up
from solver.model.admission import Admission
from solver.model.iteration_table import IterationTable

ITERATIONS = 32  # while all responses of a trial decode, at least
ATTEMPTS = 4  # each with twice the tokens: the first responses may end before the last prompts are computed


class Trial(NamedTuple):
    """Seconds of a trial: until all responses had a token, and of an iteration since then."""

    first_s: float
    iteration_s: float


def measure_server(
    url: str,
    model: str | None,
    name: str,
    grid: MeasurementGrid,
    *,
    base: Mapping[str, Any] | None = None,
    command: str,
) -> dict[str, Any]:
    """Return a profile of a server, ready for ``save_profile``.

    Args:
        model: its name there; None: the only one.
        grid: sizes to measure. Contexts beyond the model's are left out, and batches that the server does not decode at once.
        base: profile that supplies what a server does not tell (kind of GPU, KV memory), or None.

    Raises:
        InputError: the server cannot be used. ServerLost: it does not answer any more.
        ProfileError: fewer than two batches or contexts can be measured.
    """
    served = served_model(url, model)
    longest = served.max_tokens or max(grid.contexts) + 4 * ITERATIONS
    contexts = [context for context in grid.contexts if context + 2 * ITERATIONS < longest]
    if len(contexts) < 2:
        raise ProfileError(
            f"{url}: two contexts are needed, but its model {served.name!r} takes at most {longest} tokens, prompt and "
            f"response together, and a response has {2 * ITERATIONS}; give smaller --contexts, or serve it with a larger "
            "--max-model-len"
        )
    factory, rng = ServerEngineFactory(served.name, sampling=Sampling(temperature=0)), np.random.default_rng(0)

    def trial(batch: int, tokens: int) -> Trial | None:
        return _trial(url, factory, rng, batch, tokens, longest)

    trial(1, contexts[0])  # what it compiles at first use
    batches, seconds = list[int](), list[list[float]]()
    for batch in grid.batches:
        found = [[trial(batch, max(1, context - ITERATIONS)) for context in contexts] for _ in range(grid.rounds)]
        if any(one is None for row in found for one in row):
            break
        batches.append(batch)
        seconds.append(np.median([[one.iteration_s for one in row if one is not None] for row in found], axis=0).tolist())
    if len(batches) < 2:
        raise ProfileError(
            f"{url}: two batches are needed, but the server decodes {len(batches)} of {', '.join(map(str, grid.batches))} at "
            "once; give a smaller --max-batch"
        )
    left_out = [str(batch) for batch in grid.batches if batch not in batches]
    table = IterationTable(np.array(batches), np.array(contexts), np.round(seconds, 9))
    changes = []
    for joined, tokens in grid.joins:
        rounds = [trial(joined, tokens) for _ in range(grid.rounds)] if joined <= batches[-1] and tokens < longest // 2 else []
        if measured := [one for one in rounds if one is not None]:
            first_s, iteration_s = np.median(measured, axis=0).tolist()
            changes.append(TimedChange(joined, tokens, 0, round(max(first_s - iteration_s, 0.0), 9), round(first_s, 9)))
    rest, assumptions = unstated(base)
    fit, prefill = fit_table(table, batches[-1], rest["kv_capacity_tokens"]), fit_changes(changes)
    return {
        **rest, "schema": SCHEMA, "schema_version": SCHEMA_VERSION, "name": name, "model": served.name, "command": command,
        "origin": f"measured on the server at {url}: median of {grid.rounds} rounds, by the tokens that it streamed"
        + (f"; batches of {', '.join(left_out)} are left out, which it does not decode at once" if left_out else ""),
        "date": datetime.date.today().isoformat(), "licence": "yours",
        "assumptions": {
            **assumptions, "prefill": "separate: the time until all prompts of a trial are computed, less an iteration",
            "max_batch": "the largest measured batch",
        },
        "fit": {**asdict(fit), "over": "the table's points"},
        "prefill": {
            "base_s": prefill.base_s, "per_token_s": prefill.per_token_s, "per_join_s": prefill.per_join_s, "per_end_s": 0.0,
            **residuals(prefill.errors),
            "samples": dict(zip(TimedChange._fields, map(list, zip(*changes, strict=True)), strict=True)),
        },
        "max_batch": batches[-1],
        "table": {"batch": batches, "context_tokens": contexts, "step_s": table.iteration_s.tolist()},
    }  # fmt: skip


def _trial(
    url: str, factory: ServerEngineFactory, rng: np.random.Generator, batch: int, tokens: int, longest: int
) -> Trial | None:
    """Return what a batch of prompts of ``tokens`` takes; None where the server does not decode all of them at once."""
    lengths, found, clock = ITERATIONS, None, time.monotonic
    for _ in range(ATTEMPTS):
        lengths = min(2 * lengths, longest - tokens)
        ids = rng.integers(2, SMALL_IDS, size=(batch, tokens))  # new prompts are in no cache
        sent_s, all_decode = clock(), list[tuple[float, int]]()
        engine = ServerEngine(url, factory, Admission(batch, batch * longest), sent_s)
        engine.add([Request(i, tokens, lengths, prompt_ids=ids[i], seed=i, target_tokens=lengths) for i in range(batch)])
        with cleaning_up(engine.close):
            while engine.running() or engine.waiting():
                engine.step(clock(), clock)
                counts = list(engine.generated_tokens().values())
                if len(counts) < batch:
                    break  # the first one has ended
                if min(counts):
                    all_decode.append((engine.clock_s, sum(counts)))
        if len(all_decode) > 1:
            (first_s, first), (last_s, last) = all_decode[0], all_decode[-1]
            if last > first:
                found = Trial(first_s - sent_s, (last_s - first_s) * batch / (last - first))
            if last - first >= ITERATIONS * batch:
                break
    return found
