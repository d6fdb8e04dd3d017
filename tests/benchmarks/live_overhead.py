"""What watching a training run costs it.

    python tests/benchmarks/live_overhead.py [--steps 6] [--rounds 8] [--tiny] [--json FILE]

The shipped run goes on from its last step on a real model, on the virtual clock: alone (``Trainer.train``), and driven by
``live`` with its view, which draws timeline, cost, meters and curves while the step runs, and shows the phase once a second. A
step takes about 5 s of one processor.
Every round begins from the same weights and generates the same tokens, once alone and once watched, in turns of which comes
first, so both see the same machine. Nobody looks at the drawings here: counted are the seconds of the processor of the run's
process, from end to end.

First comes what a watched run takes beyond the run alone of its round: the median over rounds with its quartiles. They hold
what telling keeps engines from. Then what is spent inside the view, as a share of the watched run's other seconds, and seconds
of a step. Then, of a step of 30,000 spans on 16 actors, what an update of the view takes in its first and in its last 300
spans; and what a complete step of 300 and of 30,000 spans takes. These four are measured without the budget of a view.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
from many_spans import many_spans

from rlhfless.engine.simulated.engine import SimulatedEngine
from rlhfless.executor import Executor, StepRecord
from rlhfless.executor.step.progress import StepProgress
from rlhfless.gone_options import in_sections
from rlhfless.trace import read_trace
from rlhfless.training.loop import Trainer
from rlhfless.widgets import live, live_run
from solver import Cluster, LatencyModel, PlanningProblem, Workload, random_split

ROOT = Path(__file__).parents[2]
TRACE, MODEL = (ROOT / "data" / kind / "arithmetic-grpo" for kind in ("traces", "models"))
TINY = {"prompts_per_step": 4, "samples_per_prompt": 2, "max_response_tokens": 320}


class Inside:
    """Counts the seconds of the processor in functions that are wrapped by ``counted``, each second once."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._adding, self._here = threading.Lock(), threading.local()

    def counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, counted."""

        def wrapped(*given: Any) -> Any:
            if getattr(self._here, "counts", False):  # called by another of them
                return call(*given)
            self._here.counts, began = True, time.thread_time()
            try:
                return call(*given)
            finally:
                self._here.counts = False
                with self._adding:
                    self.seconds += time.thread_time() - began

        return wrapped


def run_once(steps: int, watched: bool, changes: dict[str, Any]) -> tuple[float, int, int, float]:
    """Seconds of so many steps, the tokens that they generated, how often the view drew, and seconds inside the view."""
    recorded = read_trace(TRACE)
    total = recorded.steps[-1] + 1 + steps
    drawn = 0
    with Trainer.continue_from(recorded, MODEL, steps=total, progress=False, **in_sections(changes)) as trainer:
        if not watched:
            began = time.process_time()
            tokens = sum(int(step.rollouts["response_tokens"].sum()) for step in trainer)
            return time.process_time() - began, tokens, 0, 0.0
        view, inside = live(trainer), Inside()
        for name in ("_notify", "_complete", "_take", "_take_generated", "_take_learning"):
            setattr(view.run, name, inside.counted(getattr(view.run, name)))
        view._show_phase = inside.counted(view._show_phase)  # type: ignore[method-assign]

        def count(_: object) -> None:
            nonlocal drawn
            drawn += 1

        view.panes.observe(count, "pane_timeline")
        began = time.process_time()
        view.run.run()
        view.run.wait()
        took = time.process_time() - began
        if view.run.error is not None:
            raise view.run.error
        assert view.run.trace is not None
        return took, int(view.run.trace.rollouts["response_tokens"].sum()), drawn, inside.seconds


def update_times(spans: int = 30_000, each: int = 30, counted: int = 300) -> tuple[float, float]:
    """Seconds of the processor of an update of the view in the first and in the last ``counted`` spans of a step.

    Args:
        each: spans that are new at an update.
    """
    cluster, latency = Cluster(2, 8, 1, "l40s"), LatencyModel("l40s", 1, 0.01, 0.0005)
    trace = many_spans(spans)
    rows = sorted(trace.spans.assign(from_actor=None).to_dict("records"), key=lambda row: row["start_s"])
    plan = random_split(PlanningProblem(Workload([8] * 16, list(range(16)), [10] * 16), cluster, latency), actors=16)
    record = StepRecord("run", 0, plan, 0.0, allocations=trace.allocations.to_dict("records"))
    view = live(Executor(SimulatedEngine, cluster, latency=latency))
    took: dict[int, float] = {}
    with (
        mock.patch.multiple(live_run, OFTEN_S=0.0, SHARE=1e9),
        mock.patch.object(StepProgress, "allocations", lambda progress: progress.record.allocations),
    ):
        for until in (*range(each, counted + each, each), *range(spans - counted, spans + each, each)):
            record._spans.extend(rows[len(record.spans) : until])
            progress, began = StepProgress(0, 16, rows[until - 1]["end_s"], record, [], []), time.process_time()
            view.run._watch(progress)
            took[until] = time.process_time() - began
    early = [seconds for until, seconds in took.items() if until <= counted]
    late = [seconds for until, seconds in took.items() if until > spans - counted]
    return statistics.median(early), statistics.median(late)


def complete_times(spans: tuple[int, int] = (300, 30_000), repeats: int = 20) -> tuple[float, ...]:
    """Seconds of the processor that a complete step of so many spans takes: its numbers, its drawings and its row."""
    cluster, latency = Cluster(2, 8, 1, "l40s"), LatencyModel("l40s", 1, 0.01, 0.0005)
    medians = []
    for count in spans:
        trace, took = many_spans(count), []
        with mock.patch.multiple(live_run, OFTEN_S=0.0, SHARE=1e9):
            view = live(Executor(SimulatedEngine, cluster, latency=latency))
            for _ in range(repeats):
                began = time.process_time()
                view.run._complete(trace)
                view.run._look_if_due()
                took.append(time.process_time() - began)
        medians.append(statistics.median(took))
    return tuple(medians)


def measured(steps: int, rounds: int, changes: dict[str, Any]) -> dict[str, Any]:
    """Medians and quartiles over rounds."""
    alone, watched, drawn, shares = [], [], [], []
    run_once(1, True, changes)  # loads and warms up what both need
    for number in range(rounds):
        both = {seen: run_once(steps, seen, changes) for seen in ((False, True) if number % 2 == 0 else (True, False))}
        (first, tokens, _, _), (second, same, times, inside_s) = both[False], both[True]
        assert tokens == same, "both generate the same tokens"
        alone.append(first)
        watched.append(second)
        drawn.append(times)
        shares.append(inside_s / (second - inside_s))
    early_s, late_s = update_times()
    few_s, many_s = complete_times()
    costs = [b / a - 1 for a, b in zip(alone, watched, strict=True)]
    lower, median, upper = np.quantile(costs, [0.25, 0.5, 0.75]).tolist()
    return {
        "steps": steps, "rounds": rounds, "cost": median, "cost_lower_quartile": lower, "cost_upper_quartile": upper,
        "least": min(costs), "most": max(costs), "alone_s": statistics.median(alone), "watched_s": statistics.median(watched),
        "drawn": statistics.median(drawn), "inside": statistics.median(shares), "inside_least": min(shares),
        "inside_most": max(shares), "update_first_s": early_s, "update_last_s": late_s,
        "step_s": statistics.median(alone) / steps, "complete_300_s": few_s, "complete_30000_s": many_s,
    }  # fmt: skip


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    steps, rounds = (1, 1) if given.tiny else (given.steps, given.rounds)
    found = measured(steps, rounds, TINY if given.tiny else {})
    print(
        f"watched, {steps} steps took {found['cost']:+.2%} (quartiles {found['cost_lower_quartile']:+.2%} and "
        f"{found['cost_upper_quartile']:+.2%}, from {found['least']:+.2%} to {found['most']:+.2%}, rounds: {rounds}): "
        f"{found['watched_s']:.2f} s, alone {found['alone_s']:.2f} s, drawn {found['drawn']:.0f} times\n"
        f"inside the view {found['inside']:.2%} ({found['inside_least']:.2%} to {found['inside_most']:.2%}), steps of "
        f"{found['step_s']:.2f} s\n"
        f"an update in the last of 30,000 spans took {found['update_last_s'] / found['update_first_s']:.1f} times that in the "
        f"first: {1e3 * found['update_last_s']:.1f} ms after {1e3 * found['update_first_s']:.1f} ms\n"
        f"a complete step of 300 spans took {1e3 * found['complete_300_s']:.1f} ms, of 30,000 spans "
        f"{1e3 * found['complete_30000_s']:.1f} ms"
    )
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
