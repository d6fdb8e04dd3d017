"""Accounts for the GPU-seconds of a logged run's steps: work by phase, idle time by cause, and each step's straggler.

Inputs are a trace of the run's own schedule (executed, or simulated from logged lengths) and the seconds of a step outside
generation. All GPUs of the cluster count as allocated from a step's first start to the end of its last response, used or not.
They count again during preparation, learning and syncing, because a fixed reservation pays for them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from rlhfless.analysis.framework_defaults import RunSetup
from rlhfless.trace import Trace
from rlhfless.trace.metrics.step_metrics import interval_union_s
from rlhfless.trace.schema.prices import dollars
from solver.model.cluster import Cluster

WORK = {"start": "starting actors", "sync": "weight sync", "prefill": "prefill", "decode": "decoding",
        "transfer": "transferring KV caches", "migrate": "transferring KV caches"}  # fmt: skip
WAITING = "waiting for the step's last response"
PAUSING = "waiting between phases of an actor"
UNUSED = "GPUs without an actor"
LEARNER_WAITS = "learner waiting for responses"
ACTORS_WAIT = "actors' GPUs waiting for the learner"
REST = {"prepare_s": "preparation", "learn_s": "learning", "sync_s": "sending weights"}
ROUNDING = 1e-9  # shares below it are differences of sums that were rounded
TAIL = 0.9  # share of a step's responses after which its tail begins


@dataclass(frozen=True)
class PhaseSeconds:
    """Seconds of a step outside generation, averaged over steps.

    Attributes:
        basis: ``logged``, ``stated``, ``stated and logged`` or ``unknown``: the source of the seconds.
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
    """The GPU-seconds of a run's steps by use.

    Attributes:
        lines: one row per use: ``use, idle`` (whether it is idle time), ``gpu_s, usd, share`` (of all GPU-seconds), ``basis``.
        steps: per step ``step, generation_s, tail_s`` (after the first 90 % of its responses had ended), ``prompt_id, sample,
            response_tokens, actor`` of the response that ended last, ``median_tokens``.
        slot_idle_gpu_s: GPU-seconds lost to batches below full size; reported separately, in no row of ``lines``.
        gpus: number of allocated GPUs.
    """

    lines: pd.DataFrame
    steps: pd.DataFrame
    slot_idle_gpu_s: float
    gpus: int

    @property
    def gpu_s(self) -> float:
        """All allocated GPU-seconds."""
        return float(self.lines["gpu_s"].sum())

    @property
    def idle_share(self) -> float:
        """Share of the GPU-seconds in which the GPU was allocated and idle."""
        return float(self.lines.loc[self.lines["idle"], "gpu_s"].sum() / self.gpu_s) if self.gpu_s else 0.0


def account(
    trace: Trace, setup: RunSetup, cluster: Cluster, phases: PhaseSeconds | None = None, *, basis: str = "simulated"
) -> Account:
    """Return the GPU-seconds of the trace's steps by use.

    Args:
        trace: the run's own schedule, with allocations and spans of role ``decode`` or ``prefill``.
        cluster: the reserved GPUs. phases: the step outside generation.
        basis: the source of the trace's times, as a word for the reader.
    """
    phases = PhaseSeconds() if phases is None else phases
    uses: dict[str, float] = {}
    slot_idle = 0.0
    rows = []
    held = trace.allocations[trace.allocations["role"].isin(["decode", "prefill"])]
    spans = dict(list(trace.spans.groupby(["step", "holder"], sort=False))) if len(trace.spans) else {}
    rollouts = dict(list(trace.rollouts.groupby("step", sort=False)))
    for step, of_step in held.groupby("step", sort=True):
        begin = float(of_step["start_s"].min())
        its = {holder: spans.get((step, holder)) for holder in of_step["holder"].unique()}
        worked = [s for s in its.values() if s is not None and len(s)]
        end = max([float(s["end_s"].max()) for s in worked], default=float(of_step["end_s"].max()))
        held_gpus = 0
        for holder, of_holder in of_step.groupby("holder", sort=False):
            gpus = len(set().union(*of_holder["gpu_ids"]))
            held_gpus += gpus
            for use, seconds in _uses(its[holder], begin, end).items():
                uses[use] = uses.get(use, 0.0) + gpus * seconds
            slot_idle += gpus * _empty_slots_s(its[holder])
        _add(uses, UNUSED, max(0, cluster.gpus - held_gpus) * (end - begin))
        _add(uses, LEARNER_WAITS, setup.counted_learner_gpus * (end - begin))
        rows.append(_last_response(int(step), rollouts[step], begin, end))
    steps = pd.DataFrame(rows)
    smallest = ROUNDING * sum(uses.values())
    lines = [(use, _idle(use), seconds, basis) for use, seconds in uses.items() if seconds > smallest]
    lines += _outside(phases, setup, cluster, len(steps))
    table = pd.DataFrame(lines, columns=["use", "idle", "gpu_s", "basis"])
    total = table["gpu_s"].sum()
    table["usd"] = dollars(table["gpu_s"], cluster.usd_per_gpu_hour / 3600.0)
    table["share"] = table["gpu_s"] / total if total else 0.0
    table = table.sort_values(["idle", "gpu_s"], ascending=[True, False], kind="stable", ignore_index=True)
    columns = ["use", "idle", "gpu_s", "usd", "share", "basis"]
    return Account(table[columns], steps, slot_idle, cluster.gpus + setup.counted_learner_gpus)


def _add(uses: dict[str, float], use: str, gpu_s: float) -> None:
    uses[use] = uses.get(use, 0.0) + gpu_s


def _idle(use: str) -> bool:
    return use in (WAITING, PAUSING, UNUSED, LEARNER_WAITS, ACTORS_WAIT)


def _uses(spans: pd.DataFrame | None, begin: float, end: float) -> dict[str, float]:
    """Return the seconds of one actor by use between the step's beginning and its end; they add up to that interval."""
    if spans is None or spans.empty:
        return {WAITING: end - begin}
    shown = spans[~spans["background"].to_numpy(dtype=bool)]
    start_s, end_s = shown["start_s"].to_numpy(dtype=float), shown["end_s"].to_numpy(dtype=float)
    names = shown["phase"].map(WORK).fillna("other work").to_numpy()
    seconds: dict[str, float] = {}
    covered, chosen = 0.0, np.zeros(len(shown), dtype=bool)
    for name in dict.fromkeys([*WORK.values(), *names]):  # each second counts once, for the first use that covers it
        chosen |= names == name
        now = interval_union_s(start_s[chosen], end_s[chosen])
        if now > covered:
            seconds[name] = now - covered
        covered = now
    last = float(end_s.max()) if len(end_s) else begin
    seconds[WAITING] = max(0.0, end - last)
    seconds[PAUSING] = max(0.0, last - begin - covered)
    return seconds


def _empty_slots_s(spans: pd.DataFrame | None) -> float:
    if spans is None or spans.empty:
        return 0.0
    decode = spans[spans["phase"] == "decode"]
    share = 1.0 - decode["batch_mean"].to_numpy(dtype=float) / decode["slots"].to_numpy(dtype=float, na_value=np.nan)
    return float(np.nansum((decode["end_s"] - decode["start_s"]).to_numpy(dtype=float) * share))


def _last_response(step: int, rows: pd.DataFrame, begin: float, end: float) -> dict[str, object]:
    ends = rows["end_s"].to_numpy(dtype=float)
    if np.isnan(ends).all():
        tail, last = float("nan"), rows.iloc[int(rows["response_tokens"].to_numpy().argmax())]
    else:
        tail, last = end - float(np.nanquantile(ends, TAIL)), rows.iloc[int(np.nanargmax(ends))]
    return {
        "step": step, "generation_s": end - begin, "tail_s": tail, "prompt_id": str(last["prompt_id"]),
        "sample": int(last["sample"]), "response_tokens": int(last["response_tokens"]), "actor": last.get("actor"),
        "median_tokens": float(rows["response_tokens"].median()),
    }  # fmt: skip


def _outside(phases: PhaseSeconds, setup: RunSetup, cluster: Cluster, steps: int) -> list[tuple[str, bool, float, str]]:
    """GPU-seconds outside generation: the learner's GPUs at work, and the actors' GPUs that wait for them. Empty where learning
    overlaps generation, as it is then part of no step."""
    if not setup.synchronous:
        return []
    workers = cluster.gpus if setup.colocated else setup.learner_gpus
    lines = [
        (use, False, workers * steps * float(getattr(phases, name)), phases.basis)
        for name, use in REST.items()
        if getattr(phases, name) > 0 and workers
    ]
    if not setup.colocated and phases.seconds:
        lines.append((ACTORS_WAIT, True, cluster.gpus * steps * phases.seconds, phases.basis))
    return lines
