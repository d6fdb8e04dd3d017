"""Merges an engine's prefills and iterations, reported one by one, into spans; shared by simulated and real engines."""

from __future__ import annotations

from collections.abc import Sequence

from rlhfless.engine.protocol import EngineSpan


class SpanAccumulator:
    """Collects an actor's time in order; decode iterations merge until a prefill, an idle gap or ``drain``."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._spans: list[EngineSpan] = []
        self._start_s = self._end_s = 0.0
        self._tokens = 0
        self._batch_s = self._kv_token_s = 0.0

    def prefill(
        self,
        start_s: float,
        end_s: float,
        tokens: int,
        batch: float,
        kv_tokens: float,
        computed: Sequence[tuple[int, int]] = (),
    ) -> None:
        """Add one prefill call: ``tokens`` computed for ``batch`` responses with ``kv_tokens`` KV tokens in memory;
        ``computed`` lists (response, tokens).
        """
        self._flush()
        span = EngineSpan("prefill", start_s, end_s, batch, self.slots, tokens, kv_tokens, computed=computed)
        self._spans.append(span)

    def capture(self, start_s: float, end_s: float) -> None:
        """Add time in which shapes were prepared for the device, which happens once and computes nothing."""
        self._flush()
        self._spans.append(EngineSpan("start", start_s, end_s, 0.0, self.slots, 0, 0.0, "capture"))

    def decode(self, start_s: float, end_s: float, tokens: int, batch_seconds: float, kv_token_seconds: float) -> None:
        """Add one or more decode iterations back to back that generated ``tokens``.

        Args:
            batch_seconds, kv_token_seconds: sums over the iterations of seconds times responses in the batch, and of seconds
                times KV tokens in memory.
        """
        if self._tokens and start_s != self._end_s:
            self._flush()
        if not self._tokens:
            self._start_s = start_s
        self._end_s = end_s
        self._tokens += tokens
        self._batch_s += batch_seconds
        self._kv_token_s += kv_token_seconds

    def drain(self) -> list[EngineSpan]:
        """Return the spans since the last drain, in order of time."""
        self._flush()
        spans, self._spans = self._spans, []
        return spans

    def _flush(self) -> None:
        if self._tokens:
            seconds = self._end_s - self._start_s
            batch = min(self._batch_s / seconds, float(self.slots))  # sums of times round, a batch has no more than its slots
            kv_tokens = self._kv_token_s / seconds
            span = EngineSpan("decode", self._start_s, self._end_s, batch, self.slots, self._tokens, kv_tokens)
            self._spans.append(span)
        self._tokens, self._batch_s, self._kv_token_s = 0, 0.0, 0.0
