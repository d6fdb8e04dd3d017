"""Numbers of figures with small settings, each made once for all tests of a run, whichever processes run them.

A small setting is the ``fast`` one with fewer responses and fewer cells, but every panel, policy, algorithm and data set that
the figure's text or a test is about. ``rlhfless figures --fast`` itself is run by the notebook of the figures.
"""

from __future__ import annotations

import fcntl
import pickle
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from rlhfless.paper import FIGURES, Numbers, PaperFigure, Runs, Sources
from rlhfless.paper.lengths import GSM8K
from rlhfless.paper.workloads import LengthHistory, modelled

BESIDE = Sources.default()


class SmallSources(Sources):
    """Stated models and the shipped run only, so that every machine tests the same; GSM8K with 32 prompts."""

    def gsm8k(self, samples: int) -> LengthHistory:
        """The length model in place of the log."""
        return modelled(GSM8K, samples, responses=32 * samples)


SMALLER: dict[str, dict[str, Any]] = {
    "2b": {"responses": 64},
    "3c": {},
    "4a": {},
    "4b": {},
    "7b": {},
    "9": {},
    "10": {"responses": 96, "batches": (64, 128), "static_counts": (1, 3)},
    "11": {"responses": 128},
    "12": {"responses": 128, "steps": 1},
    "13": {"responses": 128, "epochs": 3, "drift": 0.75},
    "14": {"responses": 128},
    "15": {"max_steps": 1},
    "16": {"responses": 96},
    "17": {"responses": 96},
}
"""What makes the fast settings small, by figure; how tau orders costs in figure 15 shows in large steps only."""

VERDICTS = {
    ("3c", "GPU time that computes KV caches again (GRPO, GSM8K, 4 responses per prompt)"): "no",
    ("7b", "grouping responses by length saves GPU time"): "yes",
    ("9", "transfers are hidden behind the longest group"): "yes",
    ("10", "speedup of a whole step over 3 static actors (16 L40S, best case)"): "no",
    ("10", "saved cost of a whole step (same comparison)"): "no",
    ("10", "faster and cheaper than naive static for every algorithm, model and data set"): "in part",
    ("10", "best number of static actors"): "no",
    ("11", "every idea makes a step cheaper"): "in part",
    ("12", "saved cost of generation by ranking and a local cut, compared with RLHFuse's global cut"): "yes",
    ("12", "ranking with a local cut is cheaper than RLHFuse's global cut"): "yes",
    ("13", "scaling follows the drift of lengths"): "in part",
    ("13", "prefill tokens saved by one prefill per prompt instead of three"): "yes",
    ("13", "computing each prompt once saves (G - 1) / G of the prefill tokens"): "yes",
    ("14", "speedup and saved cost of a step with a predictor that is right for 44 %"): "in part",
    ("14", "faster and cheaper even with a predictor that is right for 44 %"): "in part",
    ("14", "prompts whose length changes by at most 50 / 100 tokens between epochs"): "yes",
    ("15", "a smaller tau is cheaper and slower"): "in part",
    ("15", "tau from which a smaller one saves no further cost"): "in part",
    ("15", "a larger lambda is faster"): "yes",
    ("15", "lambda = 0.7 among 0.3 to 0.9"): "no",
    ("15", "predicting from 1 to 4 past epochs"): "yes",
    ("16", "speedup of a whole step, mean over 4, 12 nodes x 8 H100, limits of 2,048 tokens, 1 evaluated step each"): "in part",
    ("16", "saved cost of a whole step, mean over the same cells"): "in part",
    ("16", "faster and cheaper on average on up to 160 GPUs"): "in part",
    ("16", "planning takes at most 30 ms at every cluster size"): None,  # this machine decides
    ("17", "less GPU time is idle than under naive static"): "yes",
}
"""Every finding, by figure, and whether it holds with small settings and without logs."""


def small(name: str) -> PaperFigure:
    """A figure whose fast setting is small."""
    figure = FIGURES[name]
    return replace(figure, fast={**figure.fast, **SMALLER[name]})


class Paper:
    """Figures with small settings, and their numbers.

    Args:
        folder: where all processes of a test run keep the numbers that one of them has made.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.found = cache(self._found)

    def _found(self, name: str) -> Numbers:
        self.folder.mkdir(exist_ok=True)
        file = self.folder / f"{name}.pickle"
        with (self.folder / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not file.exists():
                sources = Sources(None) if name == "15" else SmallSources(None)
                file.write_bytes(pickle.dumps(small(name).compute(Runs(sources), fast=True)))
        return pickle.loads(file.read_bytes())

    def table(self, name: str, **where: Any) -> pd.DataFrame:
        """Those rows of a figure that have these values."""
        rows = self.found(name).table
        for column, value in where.items():
            rows = rows[rows[column] == value]
        assert len(rows), f"figure {name} has no rows with {where}"
        return rows

    def plot(self, name: str) -> Any:
        """A figure, drawn."""
        return FIGURES[name].plot(self.found(name))
