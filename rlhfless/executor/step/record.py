"""Record of one executed step: rows of the trace tables, and the completions for training.

Times are seconds since the run's start.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from rlhfless.engine.protocol import Completion, EngineSpan, Request
from rlhfless.engine.simulated.completions import Completions
from rlhfless.engine.simulated.lazy_spans import LazySpans
from rlhfless.executor.step.step_trace import step_trace
from solver.model.plan import ActorPlan, Plan
from solver.model.plurals import counted
from solver.model.runtime_rules import RuntimeRule

if TYPE_CHECKING:
    from rlhfless.executor.step.work_items import ItemRun
    from rlhfless.trace import Trace

Row = dict[str, Any]


def holder_of(index: int) -> str:
    """Return the name in the trace of an actor of the plan."""
    return f"actor-{index}"


class HeldGpus(NamedTuple):
    """GPUs of one node and kind that somebody holds, and how they are paid for."""

    kind: str
    node: int
    gpu_ids: tuple[int, ...]
    market: str = "on-demand"
    usd_per_gpu_s: float = 0.0


class _ReportedSpan(NamedTuple):
    """A reported span; ``what`` has columns of its row by name, and details."""

    holder: str
    phase: str
    start_s: float
    end_s: float
    what: dict[str, Any]


class Recompute(NamedTuple):
    """A started response that was handed over without its KV cache, which its receiver recomputes, from this time on at the
    earliest.

    ``sender`` and ``receiver`` are holders.
    """

    time_s: float
    response: int
    sender: str
    receiver: str


@dataclass(repr=False)
class StepRecord:
    """The record of one step: rows of the trace, and the completions (token ids, log-probabilities) that training needs.

    Committed iterations are stored unprocessed and become rows and completions when these are first read.

    Attributes:
        start_s, end_s: from the first allocated GPU to the last completion (later, when GPUs stay allocated longer).
        moves: number of responses that moved from one actor to another.
        recomputes: moved responses whose KV caches are recomputed, in order of the moves.
        requests: the requests of all responses.
        rule: the copy of the plan's runtime rule that was used in this step, with its state; None without a rule.
        work: for every work item, in order: where and when it ran, and the result of its function.
        meta: the ``meta.json`` of ``trace``: cluster, profile, policy, clock, charging and device, as far as known.
    """

    run: str
    step: int
    plan: Plan
    start_s: float
    end_s: float = 0.0
    allocations: list[Row] = field(default_factory=list)
    events: list[Row] = field(default_factory=list)
    moves: int = 0
    recomputes: list[Recompute] = field(default_factory=list)
    rule: RuntimeRule | None = None
    requests: Sequence[Request] = ()
    work: list[ItemRun] = field(default_factory=list)
    meta: dict[str, Any] = field(default_factory=dict)
    _spans: list[Row] = field(default_factory=list)
    _new_spans: list[_ReportedSpan | tuple[str, Iterable[EngineSpan]]] = field(default_factory=list)  # not in ``_spans`` yet
    _going_on: dict[str, LazySpans] = field(default_factory=dict)  # of ``_new_spans``, by holder
    _latest: dict[str, Row] = field(default_factory=dict)  # the last engine span of each holder
    _came: dict[tuple[int, str], list[int]] = field(default_factory=dict)  # (response, receiver): in ``recomputes``
    _indexed: int = 0  # how many of ``recomputes`` are in it
    _recomputed: set[int] = field(default_factory=set)  # of ``recomputes``, those that a span tells of
    _whole: bool = False  # mean KV tokens are to be whole numbers
    _closed: bool = False  # completions are to be put into the order of responses
    _completions: dict[int, Completion] = field(default_factory=dict)
    _actor_of: dict[int, str] = field(default_factory=dict)
    _entered: list[Sequence[tuple[str, Completions]]] = field(default_factory=list)  # not in ``_completions`` yet

    def __repr__(self) -> str:
        held = sum((row["end_s"] - row["start_s"]) * len(row["gpu_ids"]) for row in self.allocations)
        times = [f"{self.meta['clock']} clock"] if "clock" in self.meta else []
        if "profile" in self.meta and self.meta.get("charging") == "profile":
            times.append(f"profile {self.meta['profile']}")
        words = f"; {', '.join(times)}" if times else ""
        whole_s = max([row["end_s"] for row in self.allocations], default=self.end_s) - self.start_s
        return (
            f"StepRecord(step {self.step} of {self.run!r}, plan by {self.plan.policy!r}: "
            f"{counted(len(self.completions), 'response')} by {counted(len(set(self.actor_of.values())), 'actor')} in "
            f"{self.makespan_s:.3g} s; whole step {whole_s:.3g} s, {held:.3g} GPU-seconds{words})"
        )

    @property
    def makespan_s(self) -> float:
        """Return the seconds from the start of the step until its last response was complete."""
        latest = [float(c.time_s.max()) for together in self._entered for _, c in together]
        return max([*latest, *(c.time_s for c in self._completions.values())], default=self.start_s) - self.start_s

    @property
    def completions(self) -> dict[int, Completion]:
        """Return completions by response index: in the order of responses; while the step runs, as they were published."""
        self._read_completions()
        return self._completions

    @property
    def actor_of(self) -> dict[int, str]:
        """Return the holder that completed each response, by response index."""
        self._read_completions()
        return self._actor_of

    @property
    def spans(self) -> list[Row]:
        """Return the span rows; those of one holder's engine are ordered by time, the others as they were reported."""
        if self._new_spans:
            reported, self._new_spans = self._new_spans, []
            self._going_on.clear()
            for item in reported:
                if isinstance(item, _ReportedSpan):
                    row = self.span_row(*item[:4])
                    row.update({name: item.what[name] for name in row.keys() & item.what.keys()})
                    detail = {name: value for name, value in item.what.items() if name not in row}
                    row["detail"] = json.dumps(detail) if detail else None
                    self._spans.append(row)
                else:
                    self._merge(*item)
        if self._whole:
            self._whole = False
            for row in self._spans:
                if row["kv_tokens"] is not None:
                    row["kv_tokens"] = round(row["kv_tokens"])
        return self._spans

    @property
    def trace(self) -> Trace:
        """Return the step as a trace in memory, made when it is read: four tables, and the plan.

        Raises:
            TraceError: no response is complete.
        """
        return step_trace(self)

    def without_spans(self) -> StepRecord:
        """Return a copy without spans and work, to which rows can be added; this record stays as it is."""
        rows = {"allocations": [*self.allocations], "events": [*self.events]}
        return replace(self, **rows, work=[], _spans=[], _new_spans=[], _going_on={})  # type: ignore[arg-type]

    def enter(self, together: Sequence[tuple[str, Completions]]) -> None:
        """Add completions, with their holders, that are published together."""
        self._entered.append(together)

    def _read_completions(self) -> None:
        for together in self._entered:
            completed = [(holder, c) for holder, completions in together for c in completions]
            if len(together) > 1:
                completed.sort(key=lambda entry: entry[1].time_s)
            for holder, c in completed:
                self._completions[c.response], self._actor_of[c.response] = c, holder
        self._entered.clear()
        if self._closed:
            self._closed = False
            self._completions, self._actor_of = dict(sorted(self._completions.items())), dict(sorted(self._actor_of.items()))

    def allocate(self, holder: str, role: str, gpus: HeldGpus | ActorPlan, start_s: float, end_s: float) -> None:
        """Add an allocation: GPUs of a holder from ``start_s`` to ``end_s``. Allocations are what is billed."""
        self.allocations.append(
            {
                "run": self.run, "step": self.step, "holder": holder, "role": role, "node": gpus.node,
                "gpu_ids": list(gpus.gpu_ids), "kind": gpus.kind, "market": gpus.market, "usd_per_gpu_s": gpus.usd_per_gpu_s,
                "start_s": start_s, "end_s": end_s,
            }
        )  # fmt: skip

    def span(self, holder: str, phase: str, start_s: float, end_s: float, **what: Any) -> None:
        """Add a span of a holder from ``start_s`` to ``end_s``; an empty interval is ignored."""
        if end_s > start_s:
            self._new_spans.append(_ReportedSpan(holder, phase, start_s, end_s, what))

    def span_row(self, holder: str, phase: str, start_s: float, end_s: float) -> Row:
        """Return a row for a span of this step, which is not added."""
        return {
            "run": self.run, "step": self.step, "holder": holder, "phase": phase, "call": phase,
            "start_s": start_s, "end_s": end_s, "batch_mean": None, "slots": None, "tokens": None, "kv_tokens": None,
            "bytes": None, "from_actor": None, "background": False, "detail": None,
        }  # fmt: skip

    def engine_spans(self, holder: str, spans: Iterable[EngineSpan]) -> None:
        """Add an engine's spans; decode spans that follow each other without a gap are merged."""
        if isinstance(spans, LazySpans):
            if holder in self._going_on:
                self._going_on[holder].add(spans)
                return
            self._going_on[holder] = spans
        elif spans:
            self._going_on.pop(holder, None)  # what comes later follows these
        self._new_spans.append((holder, spans))

    def _merge(self, holder: str, spans: Iterable[EngineSpan]) -> None:
        for s in spans:
            if s.end_s <= s.start_s:
                continue
            last = self._latest.get(holder) if s.phase == "decode" else None
            if last is not None and last["phase"] == "decode" and abs(last["end_s"] - s.start_s) < 1e-9:
                before, now = last["end_s"] - last["start_s"], s.end_s - s.start_s
                if before + now > 0:
                    for name in ("batch_mean", "kv_tokens"):
                        last[name] = (last[name] * before + getattr(s, name) * now) / (before + now)
                last["tokens"] += s.tokens
                last["end_s"] = s.end_s
                if s.drafted_tokens is not None:
                    last["detail"] = _draft_counts(s, last["detail"])
                continue
            row = self.span_row(holder, s.phase, s.start_s, s.end_s)
            if s.call:
                row["call"] = s.call
            row["batch_mean"], row["slots"], row["tokens"], row["kv_tokens"] = s.batch_mean, s.slots, s.tokens, s.kv_tokens
            if s.computed and self.recomputes:
                again = self._computed_again(holder, s)
                row["detail"] = json.dumps({"recomputed": again}) if again else None
            if s.drafted_tokens is not None:
                row["detail"] = _draft_counts(s)
            self._spans.append(row)
            self._latest[holder] = row

    def _computed_again(self, holder: str, span: EngineSpan) -> list[Row]:
        """Return rows for the responses of a prefill that moved here without their KV caches, each with its share of the
        seconds.
        """
        per_token_s = (span.end_s - span.start_s) / max(1, sum(tokens for _, tokens in span.computed))
        for recompute in self.recomputes[self._indexed :]:
            self._came.setdefault((recompute.response, recompute.receiver), []).append(self._indexed)
            self._indexed += 1
        again = []
        for response, tokens in span.computed:
            handed = ((self.recomputes[n].time_s, n) for n in self._came.get((response, holder), ()))
            came = [recompute for recompute in handed if recompute[0] <= span.start_s + 1e-9]
            if came and (latest := max(came)[1]) not in self._recomputed:  # else it was evicted since
                self._recomputed.add(latest)
                sender = self.recomputes[latest].sender
                again.append(
                    {"response": response, "tokens": tokens, "seconds": round(tokens * per_token_s, 9), "from_actor": sender}
                )
        return again

    def close(self, end_s: float) -> None:
        """Close the record: nothing can be added afterwards, and mean KV tokens become whole numbers."""
        self.end_s, self._whole, self._closed = end_s, True, True

    def event(self, time_s: float, name: str, holder: str | None = None, **detail: Any) -> None:
        """Add an event at one point in time: a decision, a migration, a notable completion."""
        self.events.append(
            {
                "run": self.run, "step": self.step, "time_s": time_s, "name": name, "holder": holder,
                "detail": json.dumps(detail) if detail else None,
            }
        )  # fmt: skip

    def rollout_times(self, response: int) -> Row:
        """Return the columns of a rollouts row that execution measures."""
        c = self.completions[response]
        drafts = () if c.passes is None else ("passes", "drafted_tokens", "accepted_tokens")
        return {
            "response_tokens": c.response_tokens,
            "finish_reason": c.finish_reason,
            "prefill_tokens_computed": c.prefill_tokens_computed,
            "actor": self.actor_of[response],
            "start_s": c.start_s,
            "first_token_s": c.first_token_s,
            "end_s": c.time_s,
            **{name: getattr(c, name) for name in drafts},
        }


def _draft_counts(span: EngineSpan, before: str | None = None) -> str:
    """Return the detail of a decode span with drafts, including the counts of the detail ``before``."""
    counts: dict[str, int] = json.loads(before) if before else {}
    new = {"fed_tokens": span.fed_tokens, "drafted": span.drafted_tokens, "accepted": span.accepted_tokens}
    return json.dumps({name: counts.get(name, 0) + (tokens or 0) for name, tokens in new.items()})
