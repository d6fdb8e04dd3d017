"""The long tail: how much of generation a few responses take, and what carrying them over, or freeing their GPUs, wins at most.

Where the log has the times at which responses ended, the curve of completion is counted. Where it has lengths alone, a response
is taken to have the same speed from start to end, which exaggerates the tail: fewer responses in a batch decode faster.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from rlhfless.diagnosis.engine_speed import SEQUENCES, generation_in_words, generation_of_run, responses_per_gpu
from rlhfless.diagnosis.gpus import gpus_of
from rlhfless.diagnosis.lengths import CUT_IN_VERDICT
from rlhfless.diagnosis.logged_run import LoggedRun
from rlhfless.diagnosis.numbers import (
    BOUND,
    COUNTED,
    DERIVED,
    GENERATION_GPU_HOURS,
    GENERATION_TIME,
    GPU_HOURS,
    TIME,
    Collected,
    Finding,
    Lever,
    Number,
    Part,
    number,
)
from rlhfless.diagnosis.phases import synchronous

LASTS = (0.005, 0.01, 0.02, 0.05, 0.1)  # shares of a step's responses that may be called its tail
ENOUGH = 0.8  # of what the largest share takes: the smallest share that takes so much is the tail
WORTH_SAYING = 0.05  # of the run's time
ORDER_PRICE = "predicted lengths; a step ends no sooner than its longest response"
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
    known = generation_of_run(run, found)
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
        sentence = f"{_tail_of(found)}: {at_most}{takes} with {few}."
        of_what = GENERATION_TIME if known is None else TIME
        findings.append(Finding("tail", share * tail, sentence, ("tail_share_of_generation", "tail_responses"), of_what))
    return Part(tuple(numbers), tuple(findings), tuple(_levers(run, curves, known)))


def _of_seconds(generation_s: float, tail: float) -> str:
    return f"{tail * generation_s:,.0f} of {generation_s:,.0f} s"


def _of_mean_and_longest(run: LoggedRun, found: Collected, share: float | None) -> Part:
    """The tail of a log that has the mean and the longest response alone: the empty slots are all that it bounds.

    Where more responses than slots share a GPU, slots are filled again, and nothing is bounded.
    """
    idle, per_gpu = found.numbers.value("slot_idle_share_at_most"), responses_per_gpu(run, found) or 0.0
    if idle is None:
        return _of_unknown_cause(run, found, share)
    if per_gpu > SEQUENCES:
        return _of_a_queue(run, found, share, per_gpu)
    at_stake = idle if share is None else share * idle
    if at_stake < WORTH_SAYING:
        return Part()
    of_step = generation_in_words(run, found)
    of = f"{of_step}, and " if of_step else ""
    what = "request takes" if "seconds" in found.numbers["mean_over_longest"].how else "response is"
    sentence = (
        f"{_tail_of(found)}: {of}the mean {what} {1 - idle:.0%} of the longest, so at most {idle:.0%} of the decode slots are "
        "empty until the longest ones end; how much a schedule wins of it, mean and longest do not tell."
    )
    of = GENERATION_GPU_HOURS if share is None else GPU_HOURS
    finding = Finding("tail", at_stake, sentence, ("mean_over_longest", "slot_idle_share_at_most"), of)
    return Part(_packed(found), (finding,), tuple(_assignment(run, at_stake, share)))


def _tail_of(found: Collected) -> str:
    """Name the tail, and say where it is one of cut lengths."""
    cut = found.numbers.value("cut_share") or 0.0
    return "The long tail, of lengths as the limit cut them" if cut > CUT_IN_VERDICT else "The long tail"


def _generation(generate_s: float, step_s: float) -> str:
    return f"Generation takes {generate_s / step_s:.0%} of a step, {generate_s:,.1f} of {step_s:,.1f} s"


def _packed(found: Collected) -> tuple[Number, ...]:
    """The seconds of a step whose requests fill all slots to the end, by the mean seconds of a request."""
    step_s, generate_s, request_s = (found.numbers.value(key) for key in ("step_s", "generate_s", "request_s_mean"))
    if step_s is None or generate_s is None or request_s is None or not request_s <= generate_s <= step_s:
        return ()
    how = "the step without generation, and the mean seconds of a request: no packing of the same slots ends it sooner"
    return (number("step_packed_least_s", step_s - generate_s + request_s, BOUND, how),)


def _of_a_queue(run: LoggedRun, found: Collected, share: float | None, per_gpu: float) -> Part:
    """More responses than an engine decodes at once: what a better order of them wins at most, whatever the number of slots.

    With ``s`` slots, no order ends before the work over the slots, ``w = responses * mean / s``, nor before the longest
    response ``L``. Any order that leaves no slot empty while responses wait ends by ``w + (1 - 1/s) L`` (R. L. Graham, Bounds
    for Certain Multiprocessing Anomalies, 1966). So a better one saves at most ``1 - max(w, L) / (w + (1 - 1/s) L)``, which is
    below one half. Where fewer responses decode faster, the last ones take less of the time, and it saves less.
    """
    mean, longest = (found.numbers.value(f"response_tokens_{name}") for name in ("mean", "max"))
    if not mean or not longest:
        return _of_unknown_cause(run, found, share)
    slots = np.arange(1, max(2, int(per_gpu)))
    work = per_gpu * mean / slots
    saved = float(np.max(1.0 - np.maximum(work, longest) / (work + (1.0 - 1.0 / slots) * longest)))
    how = "a better order of a queue, for any number of slots and GPUs with equal work (Graham's bound)"
    numbers = [number("order_saves_at_most_share", saved, BOUND, f"share of generation: {how}")]
    at_most, of = (saved, GENERATION_TIME) if share is None else (share * saved, TIME)
    lever = Lever("assignment", "start long responses first", at_most, ORDER_PRICE, of)
    generate_s, step_s = (found.numbers.value(key) for key in ("generate_s", "step_s"))
    if generate_s is None or step_s is None or share is None or share < WORTH_SAYING or synchronous(run) is False:
        return Part(tuple(numbers), (), (lever,))
    least_s = step_s - saved * generate_s
    numbers.append(number("step_ordered_least_s", least_s, BOUND, f"a step with {how}"))
    sentence = (
        f"{_generation(generate_s, step_s)}. {per_gpu:,.0f} responses share a GPU, "
        f"more than the {SEQUENCES} that vLLM decodes at once by default. Where they queue for slots, a better order saves 0 "
        f"to {1 - least_s / step_s:.0%} (a step of {least_s:,.1f} s at least); mean ({mean:,.0f} tokens) and longest "
        f"({longest:,.0f}) tell no more."
    )
    unknown = "whether responses queue, and for how long slots are empty; lines of the engine (running, waiting) would tell"
    finding = Finding("cannot say", share, sentence, ("generate_s", "step_ordered_least_s"))
    return Part(tuple(numbers), (finding,), (lever,), (unknown,))


def _assignment(run: LoggedRun, at_most: float, share: float | None) -> Iterator[Lever]:
    """The lever of packing; none with one replica, and of several one works to the end of the longest response."""
    replicas = _replicas(run)
    if replicas != 1:
        if replicas:
            at_most = min(at_most, (1.0 if share is None else share) * (1.0 - 1.0 / replicas))
        of = GENERATION_GPU_HOURS if share is None else GPU_HOURS
        yield Lever("assignment", "assign responses by length", at_most, PACKING_PRICE, of)


def _of_unknown_cause(run: LoggedRun, found: Collected, share: float | None) -> Part:
    """Generation that takes much of a step, where lengths do not tell what is behind it."""
    generate_s, step_s = (found.numbers.value(key) for key in ("generate_s", "step_s"))
    if generate_s is None or step_s is None or share is None or share < WORTH_SAYING:
        return Part()
    if run.responses is not None or len(run.engine) or synchronous(run) is False:
        return Part()
    lacks = "mean" if "response_tokens_max" in found.numbers else "longest"
    limit = "" if "cut_share" in found.numbers else ", a limit"
    sentence = (
        f"{_generation(generate_s, step_s)}. Whether the engine{limit} or the longest responses are behind it, this log cannot "
        f"say: it has no {lacks} response."
    )
    return Part((), (Finding("cannot say", share, sentence, ("generate_s", "step_s")),))


def _levers(run: LoggedRun, curves: list[Completion], known: float | None) -> list[Lever]:
    """Carry the last responses over, free the GPUs that wait for them, and assign responses by length, each at most.

    Args:
        known: share of generation in the run's time; None where the log does not say it.
    """
    share, time, gpu_hours = (1.0, GENERATION_TIME, GENERATION_GPU_HOURS) if known is None else (known, TIME, GPU_HOURS)
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
        Lever("partial rollout", f"carry over the last {_responses(count)}", share * won, price, time),
        Lever("over-sampling", f"start more and keep the first (drop {count:,.0f})", share * won, dropped, time),
        Lever("release", "release all replicas but one in the tail", share * freed, "others must use the GPUs", gpu_hours),
        *_assignment(run, share * slots, known),
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
