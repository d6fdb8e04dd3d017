"""Accounts for the GPU-seconds that a trace billed: work by phase, empty slots of batches, idle time by cause, stragglers.

Input is the trace of an executed run, or a logged run completed into one (``analysis.complete``): the arithmetic is the same.
Every second of an allocation counts once, for the first phase whose span covers it, or for what its holder waited for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from rlhfless.trace import Trace
from rlhfless.trace.metrics.intervals import interval_union_s, partition_s
from rlhfless.trace.schema.prices import dollars

GENERATES = ("decode", "prefill")  # roles
AFTERWARDS = ("prepare", "learn")  # phases of a generating actor that are no generation
COMPLETED = "completed"
"""Key of ``meta``: which dispatch a logged run was completed under, and the source of its seconds outside generation."""

IN_USE, EMPTY = "decoding, slots in use", "decoding, empty slots"
WORK = {
    "start": "starting actors", "sync": "weight sync", "prefill": "prefill", "transfer": "transferring KV caches",
    "migrate": "transferring KV caches", "prepare": "preparation", "learn": "learning", "decode": "decoding",
}  # fmt: skip
"""Uses by phase of a span; a second that several phases cover is the first's."""
SENDING = "sending weights"  # of a learner, where actors only load them
WAITING = "waiting for the step's last response"
PAUSING = "waiting between phases of an actor"
UNUSED = "GPUs without an actor"
ACTORS_WAIT = "actors' GPUs waiting for the learner"
HOLDERS = {
    "learner": "learner", "prepare": "GPUs of preparation", "reference": "reference model", "reward": "reward model",
    "critic": "critic", "warm": "warm GPUs",
}  # fmt: skip
"""What holds GPUs beside the actors, by its role."""
REST = {"prepare_s": "prepare", "learn_s": "learn", "sync_s": "sync"}
"""Phases of spans by the names of seconds outside generation, in their order in a step."""
OUTSIDE = (WORK["prepare"], WORK["learn"], SENDING, ACTORS_WAIT)
"""Uses whose seconds a completed trace has from the log or the user, and not from simulation."""
ROUNDING = 1e-9  # shares below it are differences of sums that were rounded
TAIL = 0.9  # share of a step's responses after which its tail begins
KINDS = ("work", "empty slots", "idle")
LINES = ["use", "kind", "gpu_s", "usd", "share", "basis"]
STEPS = ["step", "generation_s", "tail_s", "prompt_id", "sample", "response_tokens", "actor", "median_tokens"]


@dataclass(frozen=True)
class PhaseSeconds:
    """Seconds of a step outside generation, averaged over steps.

    Attributes:
        basis: source of the seconds: ``logged``, ``stated``, ``stated and logged``, ``measured`` or ``unknown``.
    """

    prepare_s: float = 0.0
    learn_s: float = 0.0
    sync_s: float = 0.0
    basis: str = "unknown"

    @property
    def seconds(self) -> float:
        """Sum over all phases."""
        return self.prepare_s + self.learn_s + self.sync_s


@dataclass(frozen=True, eq=False)
class Account:
    """GPU-seconds of a trace's steps, by what the GPUs were used for.

    Attributes:
        lines: one row per use: ``use, kind`` (``work``, ``empty slots`` of decoding batches, or ``idle``), ``gpu_s, usd,
            share`` (of all GPU-seconds), ``basis`` (source of its times: ``executed``, ``simulated``, ``logged`` or
            ``stated``); work first, each kind in descending order. Slots count as used if the trace does not record them.
            Dollars are NaN without a price.
        steps: per step with responses ``step, generation_s, tail_s`` (after the first 90 % of its responses had ended),
            ``prompt_id, sample, response_tokens, actor`` of the response that ended last, ``median_tokens``.
    """

    lines: pd.DataFrame
    steps: pd.DataFrame

    @property
    def gpu_s(self) -> float:
        """All allocated GPU-seconds."""
        return float(self.lines["gpu_s"].sum())

    @property
    def idle_share(self) -> float:
        """Share of the allocated GPU-seconds in which the GPU was idle."""
        return self._of("idle") / self.gpu_s if self.gpu_s else 0.0

    @property
    def slot_idle_gpu_s(self) -> float:
        """GPU-seconds of empty batch slots while an actor decodes. They do not count as idle: the GPU is decoding."""
        return self._of("empty slots")

    def _of(self, kind: str) -> float:
        return float(self.lines.loc[self.lines["kind"] == kind, "gpu_s"].sum())


def account(trace: Trace) -> Account:
    """Return the GPU-seconds of a trace's steps, by what the GPUs were used for.

    Args:
        trace: with allocations and spans, as executed or as ``analysis.complete`` returns it. An actor's GPUs wait for the
            step's last response until the last actor is done, and for the learner after that. A holder of role ``decode``
            without any span stands for GPUs that no actor used. Any other holder waits for responses while actors generate.
    """
    of_holder = foreground_of_holders(trace)
    rollouts = dict(list(trace.rollouts.groupby("step", sort=False)))
    gpu_s: dict[str, float] = {}
    usd: dict[str, float] = {}
    rows = []
    for step, of_step in trace.allocations.groupby("step", sort=True):
        generation = generation_of(of_step, of_holder)
        for held in of_step.itertuples():
            for use, seconds in _uses(held, of_holder.get((step, held.holder)), generation):
                used = len(held.gpu_ids) * seconds
                gpu_s[use] = gpu_s.get(use, 0.0) + used
                usd[use] = usd.get(use, 0.0) + float(dollars(used, held.usd_per_gpu_s))
        if generation is not None and step in rollouts:
            rows.append(_last_response(int(step), rollouts[step], generation))
    smallest = ROUNDING * sum(gpu_s.values())
    lines = [(use, _kind(use), used, usd[use], _basis(use, trace)) for use, used in gpu_s.items() if used > smallest]
    table = pd.DataFrame(lines, columns=["use", "kind", "gpu_s", "usd", "basis"])
    total = float(table["gpu_s"].sum())
    table["share"] = table["gpu_s"] / total if total else 0.0
    order = pd.DataFrame({"kind": table["kind"].map(KINDS.index), "share": -table["share"].round(9)})  # sums may differ there
    table = table.loc[order.sort_values(["kind", "share"], kind="stable").index].reset_index(drop=True)
    return Account(table[LINES], pd.DataFrame(rows, columns=STEPS))


class Generation(NamedTuple):
    """When a step generated: from the first GPU of an actor to the last span of any, in seconds."""

    begin: float
    end: float


def foreground_of_holders(trace: Trace) -> dict[tuple[int, str], pd.DataFrame]:
    """Return the spans that keep GPUs busy, by step and holder."""
    spans = trace.spans[~trace.spans["background"].to_numpy(dtype=bool)]
    return dict(list(spans.groupby(["step", "holder"], sort=False))) if len(spans) else {}


def generation_of(of_step: pd.DataFrame, of_holder: dict[tuple[int, str], pd.DataFrame]) -> Generation | None:
    """Return when a step generated; None where no actor held a GPU.

    Args:
        of_step: allocations of one step. of_holder: as ``foreground_of_holders`` returns them.
    """
    actors = of_step[of_step["role"].isin(GENERATES)]
    if actors.empty:
        return None
    step = actors["step"].iloc[0]
    theirs = [spans_of_generation(of_holder.get((step, holder))) for holder in actors["holder"].unique()]
    ends = [float(spans["end_s"].max()) for spans in theirs if spans is not None and len(spans)]
    return Generation(float(actors["start_s"].min()), max(ends, default=float(actors["end_s"].max())))


def spans_of_generation(spans: pd.DataFrame | None) -> pd.DataFrame | None:
    """Return the spans of an actor that are generation; None where it has none."""
    return None if spans is None else spans[~spans["phase"].isin(AFTERWARDS)]


def _uses(held: Any, spans: pd.DataFrame | None, generation: Generation | None) -> Iterator[tuple[str, float]]:
    """Yield the seconds of one allocation by use; they add up to its duration.

    Args:
        held: a row of the allocations. spans: of its holder in its step; None where it has none.
    """
    start_s, end_s = float(held.start_s), float(held.end_s)
    generates = held.role in GENERATES
    if spans is None:
        begin = until = empty = np.zeros(0)
        phase = np.zeros(0, dtype=object)
    else:
        begin = np.maximum(spans["start_s"].to_numpy(dtype=float), start_s)
        until = np.minimum(spans["end_s"].to_numpy(dtype=float), end_s)
        phase = spans["phase"].to_numpy()
        in_use = spans["batch_mean"].to_numpy(dtype=float) / spans["slots"].to_numpy(dtype=float, na_value=np.nan)
        empty = np.where(np.isnan(in_use), 0.0, 1.0 - in_use)
    worked = partition_s(phase, begin, until, WORK)
    for name, gained in worked.items():
        if name == "decode" and gained > 0:
            width = np.maximum(until - begin, 0.0) * (phase == "decode")
            share = float(width @ empty / width.sum()) if width.sum() > 0 else 0.0
            yield IN_USE, gained * (1 - share)
            yield EMPTY, gained * share
        elif gained > 0:
            yield (SENDING if name == "sync" and not generates else WORK[name]), gained

    def idle_s(since: float, to: float) -> float:
        since, to = max(since, start_s), min(to, end_s)
        if to <= since:
            return 0.0
        return max(0.0, to - since - interval_union_s(np.maximum(begin, since), np.minimum(until, to)))

    idle = max(0.0, end_s - start_s - sum(worked.values()))
    if generates and generation is not None:
        own = spans_of_generation(spans)
        last = float(own["end_s"].max()) if own is not None and len(own) else generation.begin
        waits, after = idle_s(last, generation.end), idle_s(generation.end, end_s)
        yield UNUSED if spans is None else WAITING, waits
        yield ACTORS_WAIT, after
        yield PAUSING, max(0.0, idle - waits - after)
    else:
        name = HOLDERS[held.role]
        waits = 0.0 if generation is None else idle_s(*generation)
        yield f"{name} waiting for responses", waits
        yield f"{name} waiting between phases", max(0.0, idle - waits)


def _kind(use: str) -> str:
    if use == EMPTY:
        return "empty slots"
    return "work" if use in (*WORK.values(), IN_USE, SENDING) else "idle"


def _basis(use: str, trace: Trace) -> str:
    how = trace.meta.get(COMPLETED)
    if how is None:
        return "executed"
    return str(how["phases"]) if use in OUTSIDE else "simulated"


def _last_response(step: int, rows: pd.DataFrame, generation: Generation) -> dict[str, object]:
    ends = rows["end_s"].to_numpy(dtype=float) if "end_s" in rows.columns else np.full(len(rows), np.nan)
    if np.isnan(ends).all():
        tail, last = float("nan"), rows.iloc[int(rows["response_tokens"].to_numpy().argmax())]
    else:
        tail, last = generation.end - float(np.nanquantile(ends, TAIL)), rows.iloc[int(np.nanargmax(ends))]
    return {
        "step": step, "generation_s": generation.end - generation.begin, "tail_s": tail, "prompt_id": str(last["prompt_id"]),
        "sample": int(last["sample"]), "response_tokens": int(last["response_tokens"]), "actor": last.get("actor"),
        "median_tokens": float(rows["response_tokens"].median()),
    }  # fmt: skip
