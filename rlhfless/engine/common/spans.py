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
            fed, accepted = map(sum, zip(*drafts, strict=True)) if drafts else (None, None)
            kv_tokens = kv_token_s / seconds
            spans.append(EngineSpan("decode", first_s, last_s, batch, slots, tokens, kv_tokens, None, (), fed, accepted))
        tokens, batch_s, kv_token_s = 0, 0.0, 0.0
        drafts.clear()

    for start_s, decode_from_s, end_s, new_tokens, batch_seconds, kv_token_seconds, part, prepared_from_s, drafted in runs:
        if prepared_from_s is not None:
            close()
            spans.append(EngineSpan("start", prepared_from_s, start_s, 0.0, slots, 0, 0.0, "capture"))
        if part is not None:
            close()
            responses, count, computed = part
            spans.append(
                EngineSpan("prefill", start_s, decode_from_s, float(responses), slots, count, float(count), None, computed)
            )
        if not new_tokens:
            continue
        if tokens and decode_from_s != last_s:
            close()
        if not tokens:
            first_s = decode_from_s
        last_s = end_s
        tokens += new_tokens
        batch_s += batch_seconds
        kv_token_s += kv_token_seconds
        if drafted is not None:
            drafts.append(drafted)
    close()
    return spans
