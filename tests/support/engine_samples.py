"""Lines as vLLM prints them, of an engine whose speed is known: what the tests of measured profiles read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pandas as pd

from rlhfless.trace.importers.engine_lines import EngineLines, engine_frame

BASE_S, PER_REQUEST_S, PREFILL_S = 0.02, 0.0001, 0.00005
ROLLOUT = (200, 200, 200, 150, 90, 40, 10, 4, 4, 1)
"""Requests that run at each line; none runs at a line after these."""


def line_of(
    second: float,
    running: int,
    generated: float,
    prompts: float = 0.0,
    waiting: int = 0,
    cache: float = 0.5,
    engine: str = "000",
) -> str:
    """One line of vLLM's, at so many seconds after 6:00."""
    whole = int(second)
    clock = f"{6 + whole // 3600:02}:{whole // 60 % 60:02}:{whole % 60:02}"
    return (
        f"INFO 03-04 {clock} [loggers.py:118] Engine {engine}: Avg prompt throughput: {prompts:.1f} tokens/s, Avg generation "
        f"throughput: {generated:.1f} tokens/s, Running: {running} reqs, Waiting: {waiting} reqs, GPU KV cache usage: "
        f"{100 * cache:.1f}%, Prefix cache hit rate: 0.0%"
    )


def rate_of(running: int, prompts: float = 0.0) -> float:
    """Tokens per second of an engine that spends the rest of its time on prompts."""
    return running * max(1 - PREFILL_S * prompts, 0.0) / (BASE_S + PER_REQUEST_S * running) if running else 1.0


def rollout_lines(
    running: Sequence[int] = ROLLOUT, begin_s: float = 0.0, prompts: Sequence[float] = (), engine: str = "000"
) -> list[str]:
    """Lines of one rollout, one every 10 s: the first one covers a part only, and the last one says that nothing runs."""
    fed = [*prompts, *[0.0] * (len(running) - len(prompts))]
    lines = [
        line_of(begin_s + 10 * at, batch, rate_of(batch, p) / (2 if at == 0 else 1), p, engine=engine)
        for at, (batch, p) in enumerate(zip(running, fed, strict=True))
    ]
    return [*lines, line_of(begin_s + 10 * len(running), 0, 3.0, engine=engine)]


def read_lines(lines: Iterable[str]) -> pd.DataFrame:
    """The table of those lines."""
    engine = EngineLines()
    rows = (engine.line(number, text) for number, text in enumerate(lines, 1))
    return engine_frame(row for row in rows if row is not None)
