"""Runs on which other ways to generate and to learn are simulated: small ones from lists, and strategies that draw them."""

from __future__ import annotations

import pandas as pd
from hypothesis import strategies as st
from what_if_loops import BRUTE, Steps

from rlhfless.analysis import PhaseSeconds, run_setup
from rlhfless.analysis.what_ifs.outcome import RunToChange
from rlhfless.simulate import SimulationConfig, logged_steps
from solver.model.cluster import Cluster
from solver.model.latency import LatencyModel

TWO_STEPS: Steps = [[(4, [3, 9]), (2, [5, 5]), (7, [1, 2])], [(3, [12, 2]), (5, [4, 4]), (1, [6, 3])]]


def rollouts_of(steps: Steps) -> pd.DataFrame:
    """The log of these steps."""
    rows = [
        {"run": "log", "step": number, "epoch": 0, "prompt_id": f"{number}-{prompt}", "sample": sample,
         "prompt_tokens": prompt_tokens, "finish_reason": "stop", "response_tokens": tokens}
        for number, step in enumerate(steps)
        for prompt, (prompt_tokens, lengths) in enumerate(step)
        for sample, tokens in enumerate(lengths)
    ]  # fmt: skip
    return pd.DataFrame(rows)


def small_run(
    steps: Steps = TWO_STEPS,
    actors: int = 2,
    phases: PhaseSeconds = PhaseSeconds(1.0, 7.0, 0.5, "stated"),  # noqa: B008 (frozen)
    *,
    learner_gpus: int = 0,
    dispatch: str = "least-loaded",
    latency: LatencyModel = BRUTE,
) -> RunToChange:
    """A run on actors of one GPU; the learner shares them where it has no GPUs of its own."""
    setting = SimulationConfig(Cluster(1, actors, 1), latency)
    setup = run_setup("of a test", dispatch=dispatch, learner_gpus=learner_gpus)
    return RunToChange(list(logged_steps(rollouts_of(steps))), setting, setup, phases)


def small_steps(most_steps: int = 3) -> st.SearchStrategy[Steps]:
    """Few prompts with ragged groups of short responses."""
    group = st.tuples(st.integers(1, 8), st.lists(st.integers(1, 12), min_size=1, max_size=3))
    return st.lists(st.lists(group, min_size=1, max_size=4), min_size=1, max_size=most_steps)
