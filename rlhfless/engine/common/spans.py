"""Turns iterations into spans; the only place where that is done, for journals and for schedules of simulated engines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rlhfless.engine.protocol import EngineSpan


class PrefillPart(NamedTuple):
    """The prefill at the start of an iteration: number of responses, computed tokens, and (response, tokens) of each that
    computes any.
    """

    responses: int
    tokens: int
    computed: Sequence[tuple[int, int]]


class IterationRun(NamedTuple):
    """Iterations of an actor back to back, of which only the first may have a prefill.

    Attributes:
        start_s: of the first, with its prefill; decode_from_s: end of that prefill; end_s: of the last.
        tokens: generated.
        batch_seconds, kv_token_seconds: sums over the iterations of seconds (without prefill) times responses that get a token,
            and of seconds times KV tokens in memory.
        prepared_from_s: when preparing its shape for the device began, which ended at ``start_s``; None: nothing was prepared.
        drafts: drafted tokens, and those of them that were accepted; None without drafts.
    """

    start_s: float
    decode_from_s: float
    end_s: float
    tokens: int
    batch_seconds: float
    kv_token_seconds: float
    prefill: PrefillPart | None = None
    prepared_from_s: float | None = None
    drafts: tuple[int, int] | None = None


def spans_of(runs: Iterable[IterationRun], slots: int) -> list[EngineSpan]:
    """Return the spans of an actor with ``slots`` slots, in order of time.

    Decode iterations merge into one span until a prefill, a preparation of the device, or a gap.
    """
    spans: list[EngineSpan] = []
    first_s = last_s = batch_s = kv_token_s = 0.0
    tokens = 0
    drafts: list[tuple[int, int]] = []

    def close() -> None:
        nonlocal tokens, batch_s, kv_token_s
        if tokens:
            seconds = last_s - first_s
            batch = min(batch_s / seconds, float(slots))  # sums of times round, a batch has no more than its slots
            drafted, accepted = map(sum, zip(*drafts, strict=True)) if drafts else (None, None)
            spans.append(
                EngineSpan(
                    "decode", first_s, last_s, batch, slots, tokens, kv_token_s / seconds,
                    drafted_tokens=drafted, accepted_tokens=accepted,
                )
            )  # fmt: skip
        tokens, batch_s, kv_token_s = 0, 0.0, 0.0
        drafts.clear()

    for run in runs:
        if run.prepared_from_s is not None:
            close()
            spans.append(EngineSpan("start", run.prepared_from_s, run.start_s, 0.0, slots, 0, 0.0, "capture"))
        if (part := run.prefill) is not None:
            close()
            count, held = part.tokens, float(part.tokens)
            batch_mean = float(part.responses)
            spans.append(
                EngineSpan("prefill", run.start_s, run.decode_from_s, batch_mean, slots, count, held, computed=part.computed)
            )
        if not run.tokens:
            continue
        if tokens and run.decode_from_s != last_s:
            close()
        if not tokens:
            first_s = run.decode_from_s
        last_s = run.end_s
        tokens += run.tokens
        batch_s += run.batch_seconds
        kv_token_s += run.kv_token_seconds
        if run.drafts is not None:
            drafts.append(run.drafts)
    close()
    return spans
