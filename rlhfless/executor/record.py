"""What one executed step leaves behind: rows of the trace tables.

Knows the trace's columns; nothing of engines' insides or of decisions. Times are seconds since the run's start.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from rlhfless.engine.protocol import Completion, EngineSpan
from solver.plan import Plan

Row = dict[str, Any]


@dataclass
class StepRecord:
    """Rows of one step, and the completions (token ids, log-probabilities) that training needs.

    Attributes:
        start_s, end_s: from the first GPU taken to the last response complete (later, when GPUs are held longer).
        completions, actor_of: by response index.
        moves: responses handed from one actor to another.
    """

    run: str
    step: int
    plan: Plan
    start_s: float
    end_s: float = 0.0
    allocations: list[Row] = field(default_factory=list)
    spans: list[Row] = field(default_factory=list)
    events: list[Row] = field(default_factory=list)
    completions: dict[int, Completion] = field(default_factory=dict)
    actor_of: dict[int, str] = field(default_factory=dict)
    moves: int = 0
    _latest: dict[str, Row] = field(default_factory=dict, repr=False)  # the last engine span of each holder

    @property
    def makespan_s(self) -> float:
        """Seconds from the start of the step until its last response was complete."""
        return max((c.time_s for c in self.completions.values()), default=self.start_s) - self.start_s

    def allocate(
        self,
        holder: str,
        role: str,
        node: int,
        gpu_ids: Iterable[int],
        kind: str,
        market: str,
        usd_per_gpu_s: float,
        start_s: float,
        end_s: float,
    ) -> None:
        """GPUs held from ``start_s`` to ``end_s``: this is what is billed."""
        self.allocations.append(
            {
                "run": self.run, "step": self.step, "holder": holder, "role": role, "node": node,
                "gpu_ids": list(gpu_ids), "kind": kind, "market": market, "usd_per_gpu_s": usd_per_gpu_s,
                "start_s": start_s, "end_s": end_s,
            }
        )  # fmt: skip

    def span(self, holder: str, phase: str, start_s: float, end_s: float, **what: Any) -> None:
        """What a holder did from ``start_s`` to ``end_s``; nothing is recorded for an empty stretch."""
        if end_s <= start_s:
            return
        row: Row = {
            "run": self.run, "step": self.step, "holder": holder, "phase": phase, "call": what.pop("call", phase),
            "start_s": start_s, "end_s": end_s, "batch_mean": what.pop("batch_mean", None),
            "slots": what.pop("slots", None), "tokens": what.pop("tokens", None), "kv_tokens": what.pop("kv_tokens", None),
            "bytes": what.pop("bytes", None), "from_actor": what.pop("from_actor", None),
            "background": what.pop("background", False), "detail": json.dumps(what) if what else None,
        }  # fmt: skip
        self.spans.append(row)

    def engine_spans(self, holder: str, spans: Iterable[EngineSpan]) -> None:
        """An engine's spans; decode stretches that follow on each other without a gap become one."""
        for s in spans:
            if s.end_s <= s.start_s:
                continue
            last = self._latest.get(holder)
            if last is not None and s.phase == "decode" == last["phase"] and abs(last["end_s"] - s.start_s) < 1e-9:
                before, now = last["end_s"] - last["start_s"], s.end_s - s.start_s
                if before + now > 0:
                    for name in ("batch_mean", "kv_tokens"):
                        last[name] = (last[name] * before + getattr(s, name) * now) / (before + now)
                last["tokens"] += s.tokens
                last["end_s"] = s.end_s
                continue
            self.span(
                holder, s.phase, s.start_s, s.end_s,
                batch_mean=s.batch_mean, slots=s.slots, tokens=s.tokens, kv_tokens=s.kv_tokens,
            )  # fmt: skip
            self._latest[holder] = self.spans[-1]

    def close(self, end_s: float) -> None:
        """Nothing is added after this: mean KV tokens become whole numbers."""
        self.end_s = end_s
        for row in self.spans:
            if row["kv_tokens"] is not None:
                row["kv_tokens"] = round(row["kv_tokens"])

    def event(self, time_s: float, name: str, holder: str | None = None, **detail: Any) -> None:
        """An instant: a decision, a cut, a completion of note."""
        self.events.append(
            {
                "run": self.run, "step": self.step, "time_s": time_s, "name": name, "holder": holder,
                "detail": json.dumps(detail) if detail else None,
            }
        )  # fmt: skip

    def rollout_times(self, response: int) -> Row:
        """The columns of a rollouts row that execution knows."""
        c = self.completions[response]
        return {
            "response_tokens": c.response_tokens,
            "finish_reason": c.finish_reason,
            "prefill_tokens_computed": c.prefill_tokens_computed,
            "actor": self.actor_of[response],
            "start_s": c.start_s,
            "first_token_s": c.first_token_s,
            "end_s": c.time_s,
        }
