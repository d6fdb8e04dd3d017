"""Finds in the spans of a trace which responses moved between actors, when, and which spans show it.

A move with its KV cache has two spans: ``migrate`` at the sender, ``transfer`` at the receiver. A move without has a prefill
span at the receiver that lists what it computes again; the sender's slice of the response then ends where that prefill begins.
"""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any, NamedTuple

import pandas as pd

from rlhfless.trace.schema.casts import is_null


class ResponseMove(NamedTuple):
    """A response that left one actor for another.

    Attributes:
        response: its number in the step. leave_s, arrive_s: seconds since the run's start.
        source, target: index labels of the spans at the sender and at the receiver; the source is None where the receiver
            computes the KV cache again.
        copied_first: its KV cache was copied while it was decoded on, so it did not leave yet.
        tokens, seconds: that the receiver computes again.
    """

    run: str
    step: int
    response: int
    sender: str
    receiver: str
    leave_s: float
    arrive_s: float
    source: Any
    target: Any
    copied_first: bool = False
    tokens: int = 0
    seconds: float = 0.0


def moves(spans: pd.DataFrame) -> list[ResponseMove]:
    """Return the moves of a trace's spans, in the order of their arrival.

    Args:
        spans: as in a trace, with distinct index labels.
    """
    found = [*_with_cache(spans), *_computed_again(spans)]
    return sorted(found, key=lambda move: (move.run, move.step, move.arrive_s, move.leave_s))


def _with_cache(spans: pd.DataFrame) -> list[ResponseMove]:
    sent: dict[tuple[Any, ...], list[Any]] = defaultdict(list)
    received: dict[tuple[Any, ...], list[Any]] = defaultdict(list)
    of_caches = spans["phase"].isin(["migrate", "transfer"]) & spans["from_actor"].notna() & spans["detail"].notna()
    for span in spans[of_caches].sort_values("start_s", kind="stable").itertuples():
        response = _detail(span.detail).get("response")
        if isinstance(response, int):
            side = sent if span.phase == "migrate" else received
            side[span.run, span.step, span.from_actor, response].append(span)
    found = []
    for (run, step, sender, response), targets in received.items():
        sources = sent[run, step, sender, response]
        for target in targets:
            source = next((source for source in sources if source.holder == sender and source.start_s <= target.end_s), None)
            if source is not None:
                sources.remove(source)
                found.append(
                    ResponseMove(
                        run, step, response, sender, target.holder, source.start_s, max(source.start_s, target.end_s),
                        source.Index, target.Index, bool(source.background),
                    )
                )  # fmt: skip
    return found


def _computed_again(spans: pd.DataFrame) -> list[ResponseMove]:
    found = []
    for span in spans[(spans["phase"] == "prefill") & spans["detail"].notna()].itertuples():
        again = _detail(span.detail).get("recomputed")
        for part in again if isinstance(again, list) else ():
            if isinstance(part, dict) and isinstance(part.get("response"), int) and not is_null(part.get("from_actor")):
                found.append(
                    ResponseMove(
                        span.run, span.step, part["response"], str(part["from_actor"]), span.holder, span.start_s, span.start_s,
                        None, span.Index, tokens=part.get("tokens") or 0, seconds=part.get("seconds") or 0.0,
                    )
                )  # fmt: skip
    return found


def _detail(text: str) -> dict[str, Any]:
    detail = json.loads(text)
    return detail if isinstance(detail, dict) else {}
