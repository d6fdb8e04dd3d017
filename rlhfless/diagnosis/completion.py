"""The long tail: how much of generation a few responses take, and what carrying them over, or freeing their GPUs, wins at most.

Where the log has the times at which responses ended, the curve of completion is counted. Where it has lengths alone, a response
is taken to have the same speed from start to end, which exaggerates the tail: fewer responses in a batch decode faster.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from rlhfless.diagnosis.engine_speed import SEQUENCES, generation_share, responses_per_gpu
from rlhfless.diagnosis.gpus import gpus_of
from rlhfless.diagnosis.logged_run import LoggedRun
from rlhfless.diagnosis.numbers import BOUND, COUNTED, DERIVED, Collected, Finding, Lever, Part, number
from rlhfless.diagnosis.phases import synchronous

LASTS = (0.005, 0.01, 0.02, 0.05, 0.1)  # shares of a step's responses that may be called its tail
ENOUGH = 0.8  # of what the largest share takes: the smallest share that takes so much is the tail
WORTH_SAYING = 0.05  # of the run's time
PACKING_PRICE = "predicted lengths and several replicas; a step ends no sooner than its longest response"


@dataclass(frozen=True, eq=False)
class Completion:
    """When the responses of a step end.

    Attributes:
        ends: (r,) shares of the step's generation, ascending, the last one 1. counted: by logged times, else by lengths.
        seconds: of the step's generation; NaN where unknown.
    """

    ends: np.ndarray
    counted: bool
    seconds: float

    def left_after(self, share: float) -> tuple[int, float]:
        """Return how many responses the last ``share`` of them are, at least one, and the share of generation that only they
        take.
        """
        last = max(1, int(share * len(self.ends)))
        before = self.ends[len(self.ends) - last - 1] if last < len(self.ends) else 0.0
        return last, float(1.0 - before)


def completions(run: LoggedRun) -> list[Completion]:
    """Return the curve of each step with at least two responses."""
    if run.responses is None:
        return []
    seconds = dict(zip(run.steps["step"], run.column("generate_s"), strict=True)) if len(run.steps) else {}
    curves = []
    for step, rows in run.responses.groupby("step"):
        ends, counted, took = _ends(rows)
        if len(ends) > 1 and ends[-1] > 0:
            curves.append(Completion(ends / ends[-1], counted, took if counted else float(seconds.get(step, np.nan))))
    return curves


def _ends(rows: pd.DataFrame) -> tuple[np.ndarray, bool, float]:
    """Return ascending ends since the step's start, whether they were logged, and the seconds of the last one.

    A log without starts counts ends from the start of the run, which is the start of its first step only.
    """
    tokens = np.sort(rows["response_tokens"].to_numpy(dtype=float))
    if "end_s" not in rows.columns or rows["end_s"].isna().any():
        return tokens, False, float("nan")
    ends = np.sort(rows["end_s"].to_numpy(dtype=float))
    starts = rows["start_s"].dropna() if "start_s" in rows.columns else pd.Series(dtype=float)
    if starts.empty and int(rows["step"].iloc[0]) != 0:
        return tokens, False, float("nan")
    ends = ends - (float(starts.min()) if len(starts) else 0.0)
    return (ends, True, float(ends[-1])) if ends[0] >= 0 else (tokens, False, float("nan"))


def completion(run: LoggedRun, found: Collected) -> Part:
    """Return what the last responses of a step take, as a finding, and the levers that win it back."""
    curves = completions(run)
    known = generation_share(run, found)
    if not curves:
        return _of_mean_and_longest(run, found, known)
    share = 1.0 if known is None else known  # of generation, where nothing is known of the rest
    counted = all(curve.counted for curve in curves)
    evidence = COUNTED if counted else BOUND
    how = "ends of the responses" if counted else "lengths, if one response has the same speed from start to end"
    tail_share = _tail(curves)
    lasts = [curve.left_after(tail_share) for curve in curves]
    tail = float(np.mean([part for _, part in lasts]))
    last, of = float(np.mean([count for count, _ in lasts])), float(np.mean([len(curve.ends) for curve in curves]))
    numbers = [
        number("tail_share_of_generation", tail, evidence, how),
        number("tail_responses", last, COUNTED, f"{tail_share:.1%} of the responses of a step, at least one"),
    ]
    seconds = np.array([curve.seconds for curve in curves])
    if not np.isnan(seconds).any():
        mean_s = float(seconds.mean())
        numbers.append(number("generation_of_step_s", mean_s, COUNTED if counted else DERIVED, how))
        numbers.append(number("tail_s", float(np.mean(seconds * [part for _, part in lasts])), evidence, how))
    findings = []
    if share * tail >= WORTH_SAYING:
        unknown = np.isnan(seconds).any()
        takes = f"{tail:.0%} of generation runs" if unknown else f"{_of_seconds(float(seconds.mean()), tail)} run"
        at_most = "" if counted else "at most "
        few = f"at most {last:,.0f} of {of:,.0f} responses unfinished"
        sentence = f"The long tail: {at_most}{takes} with {few}."
        findings.append(Finding("tail", share * tail, sentence, ("tail_share_of_generation", "tail_responses")))
    return Part(tuple(numbers), tuple(findings), tuple(_levers(run, curves, share)))


def _of_seconds(generation_s: float, tail: float) -> str:
    return f"{tail * generation_s:,.0f} of {generation_s:,.0f} s"


def _of_mean_and_longest(run: LoggedRun, found: Collected, share: float | None) -> Part:
    """The tail of a log that has the mean and the longest response alone: the empty slots are all that it bounds.

    Where more responses than slots share a GPU, slots are filled again, and nothing is bounded.
    """
    if synchronous(run) is False and np.isnan(run.column("generate_s")).all():
        return Part()  # generation never ends, so slots are filled again, too
    idle, per_gpu = found.numbers.value("slot_idle_share_at_most"), responses_per_gpu(run, found) or 0.0
    if idle is None or per_gpu > SEQUENCES:
        return _of_unknown_cause(run, found, share, per_gpu)
    at_stake = idle if share is None else share * idle
    if at_stake < WORTH_SAYING:
        return Part()
    of = "" if share is None else f"generation takes {share:.0%} of a step, and "
    sentence = (
        f"The long tail: {of}the mean response is {1 - idle:.0%} of the longest, so at most {idle:.0%} of the decode slots are "
        "empty until the longest ones end; how much a schedule wins of it, mean and longest do not tell."
    )
    finding = Finding("tail", at_stake, sentence, ("mean_over_longest", "slot_idle_share_at_most"))
    return Part((), (finding,), tuple(_assignment(run, at_stake, share)))


def _assignment(run: LoggedRun, at_most: float, share: float | None) -> Iterator[Lever]:
    """The lever of packing; none with one replica."""
    if _replicas(run) != 1:
        of = "GPU-hours" if share is not None else "GPU-hours of generation"
        yield Lever("assignment", "assign responses by length", at_most, PACKING_PRICE, of)


def _of_unknown_cause(run: LoggedRun, found: Collected, share: float | None, per_gpu: float) -> Part:
    """Generation that takes much of a step, where lengths do not tell what is behind it."""
    generate_s, step_s = (found.numbers.value(key) for key in ("generate_s", "step_s"))
    unknown = generate_s is None or step_s is None or share is None or share < WORTH_SAYING
    if unknown or run.responses is not None or len(run.engine) or synchronous(run) is False:
        return Part()
    why = f"{per_gpu:,.0f} responses of a GPU queue for its slots" if per_gpu > SEQUENCES else "it has no longest response"
    sentence = (
        f"Generation takes {share:.0%} of a step, {generate_s:,.1f} of {step_s:,.1f} s. Whether the engine, the longest "
        f"responses or a limit is behind it, this log cannot say: {why}."
    )
    return Part((), (Finding("cannot say", share or 0.0, sentence, ("generate_s", "step_s")),))


def _levers(run: LoggedRun, curves: list[Completion], share: float) -> list[Lever]:
    """Carry the last responses over, free the GPUs that wait for them, and assign responses by length, each at most."""
    left = [curve.left_after(_tail(curves)) for curve in curves]
    won = float(np.mean([part for _, part in left]))
    late = float(np.mean([count / len(curve.ends) for (count, _), curve in zip(left, curves, strict=True)]))
    count = float(np.mean([count for count, _ in left]))
    slots = float(np.mean([1.0 - curve.ends.mean() for curve in curves]))
    replicas = _replicas(run)
    freed = won * (1.0 - 1.0 / replicas if replicas else 1.0)
    whole = "incomplete groups wait, too: the last responses belong to several prompts"
    price = f"{late:.2%} of the samples learn one version of the weights late; {whole}"
    dropped = f"{late:.2%} more responses are generated, long ones are dropped; {whole}"
    return [
        Lever("partial rollout", f"carry over the last {_responses(count)}", share * won, price),
        Lever("over-sampling", f"start more and keep the first (drop {count:,.0f})", share * won, dropped),
        Lever("release", "release all replicas but one in the tail", share * freed, "others must use the GPUs", "GPU-hours"),
        *_assignment(run, share * slots, share),
    ]


def _responses(count: float) -> str:
    return "response" if round(count) == 1 else f"{count:,.0f} responses"


def _tail(curves: list[Completion]) -> float:
    """Return the smallest of ``LASTS`` that takes nearly as much of generation as the largest."""
    takes = {share: float(np.mean([curve.left_after(share)[1] for curve in curves])) for share in LASTS}
    return min(share for share in LASTS if takes[share] >= ENOUGH * max(takes.values()))


def _replicas(run: LoggedRun) -> float | None:
    gpus = gpus_of(run)
    generate = gpus.generate or gpus.total
    return generate / (run.stated.tensor_parallel or 1) if generate else None
