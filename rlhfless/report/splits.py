"""Report text on how many GPUs generate and how many train, of a run whose learner has GPUs of its own."""

from __future__ import annotations

import numpy as np
import pandas as pd

from rlhfless.analysis.split import BOUNDS, DIVIDED
from rlhfless.plots.export.html_page import Page
from rlhfless.plots.style import counted, number
from rlhfless.report.study import Findings

ROWS = 10
FOLLOW = {
    True: "A batch begins when the one before it is complete.",
    False: "Responses of the next batch start in free slots, and updates interrupt them.",
}
UNKNOWN_GPUS = "How many GPUs should generate and how many train is not compared: --learner-gpus says how many GPUs learn."
UNKNOWN_LEARNING = "How many GPUs should generate and how many train is not compared: --learn-s says how long learning takes."


def splits_part(page: Page, findings: Findings) -> None:
    """Add the divisions of the GPUs of a run whose learner has GPUs of its own; nothing where it shares them."""
    setup, phases = findings.times.setup, findings.times.phases
    if setup.colocated or findings.drawn:
        return
    page.heading("How many GPUs generate and how many train")
    if findings.splits.empty:
        page.text(UNKNOWN_LEARNING if setup.learner_gpus else UNKNOWN_GPUS)
        return
    table = findings.splits[findings.splits["way"] == DIVIDED]
    turns, ahead = (table[table["staleness"] == bound].set_index("actors") for bound in BOUNDS)
    own = findings.times.setting.cluster.max_actors
    rows = [
        (
            f"{turns.loc[actors, 'gpus_generate']:,}", f"{turns.loc[actors, 'gpus_train']:,}",
            f"{actors:,}{' (the run)' if actors == own else ''}",
            number(turns.loc[actors, "step_s"]), number(turns.loc[actors, "least_step_s"]),
            number(ahead.loc[actors, "step_s"]), number(ahead.loc[actors, "least_step_s"]),
        )
        for actors in _shown(ahead["step_s"], own)
    ]  # fmt: skip
    head = ("GPUs generate", "GPUs train", "replicas", "taking turns (s)", "lower bound", "one step ahead (s)", "lower bound")
    page.table(f"Seconds per step on {counted(int(table['gpus'].iloc[0]), 'GPU')}, in steady state", head, rows)
    best = ahead.loc[ahead["step_s"].idxmin()]
    page.text(
        f"One step ahead, {counted(int(best['gpus_generate']), 'GPU')} for generation and "
        f"{int(best['gpus_train']):,} for training take the least time, {number(best['step_s'], 's')} per step. The learner "
        f"works during {best['learner_busy_share']:.0%} of it. {FOLLOW[setup.synchronous]}"
    )
    learner = counted(setup.learner_gpus, "GPU")
    sync = (
        f"Sending weights takes {number(phases.sync_s, 's')} on any GPUs, and generation pauses meanwhile."
        if phases.sync_s
        else "Sending weights is assumed to take no time."
    )
    page.text(
        f"Learning takes {number(phases.prepare_s + phases.learn_s, 's')} per step on the learner's {learner}. It is assumed "
        f"to be data-parallel: seconds times GPUs stay the same, and it fits into their memory. {sync}"
    )


def _shown(step_s: pd.Series, own: int) -> list[int]:
    """Return numbers of actors for the rows: the fastest, the run's own, and others evenly between the ends."""
    every = [int(actors) for actors in step_s.index]
    even = {every[place] for place in np.linspace(0, len(every) - 1, min(ROWS, len(every))).round().astype(int)}
    return sorted(even | {int(step_s.idxmin())} | ({own} & set(every)))
