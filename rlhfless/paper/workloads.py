"""Sources of the figures' response lengths: public logs, the shipped run, or a stated length model.

Input are log files and their schemas. Public logs are read from a folder next to the checkout and are never part of the
project. Where a log is missing, the stated model replaces it, and the name of the history says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from rlhfless.errors import InputError
from rlhfless.paper.lengths import GSM8K, LengthModel
from rlhfless.system.installation import clone, data_folders
from rlhfless.trace import read_trace, validate
from rlhfless.trace.storage import read_frame

GSM8K_LOG = Path("grpo-gsm8k-lengths", "areal_s0_lengths.csv")
MATH_LOG = Path("reasoning-eval-lengths", "response_lengths.csv")
STEP_LOGS = {  # data set: file, column of the mean length
    "MATH": (Path("rl-step-metrics", "reasoning-from-scratch", "rlvr_grpo_original_no_kl_metrics.csv"), "avg_response_len"),
    "instructions": (Path("rl-step-metrics", "rdan-grpo", "metrics_subset.csv"), "length/mean"),
}
"""GRPO on MATH (Qwen3-0.6B-base, a prompt x 8 samples a step) and a variant of it on instructions (Qwen3-4B, 64 x 8)."""
LOGS = {"GSM8K": GSM8K_LOG, "MATH-500": MATH_LOG, **{name: file for name, (file, _) in STEP_LOGS.items()}}
"""All public logs, by data set."""
SHIPPED = Path("traces", "arithmetic-grpo")
GSM8K_LENGTHS = (
    "Lengths of PPO on GSM8K are a stated model. Those of GRPO are a public log where it is at hand, else the same model; "
    "the log has no prompt lengths, which count as 0 in prefill and learning."
)
"""Of figures on GSM8K: which lengths are a log, and which a model."""


@dataclass(frozen=True, eq=False)
class LengthHistory:
    """A log of lengths over several visits of its prompts.

    Attributes:
        name: of the data set. basis: ``log``, ``shipped run`` or ``length model``.
        rollouts: validated rows of one run. max_response_tokens: the longest response that was allowed.
    """

    name: str
    basis: str
    rollouts: pd.DataFrame
    max_response_tokens: int

    @property
    def measured(self) -> bool:
        """Whether a model really generated responses of these lengths."""
        return self.basis != "length model"

    @property
    def evaluated(self) -> list[int]:
        """The steps with at least half of the responses to prompts that were seen before."""
        share = (self.rollouts["epoch"] > 0).groupby(self.rollouts["step"]).mean()
        return [int(step) for step, seen in share.items() if seen >= 0.5]

    @property
    def responses(self) -> int:
        """Number of responses in its last step."""
        return int((self.rollouts["step"] == self.rollouts["step"].max()).sum())

    def last(self, steps: int) -> list[int]:
        """Return the last ``steps`` of ``evaluated``."""
        return self.evaluated[-steps:]


def modelled(
    model: LengthModel,
    samples_per_prompt: int,
    *,
    responses: int = 512,
    epochs: int = 3,
    steps_per_epoch: int = 1,
    seed: int = 0,
) -> LengthHistory:
    """Return a history from a length model, with about so many responses in a step."""
    prompts = max(1, responses // samples_per_prompt) * steps_per_epoch
    rows = model.rollouts(prompts, samples_per_prompt, epochs, steps_per_epoch, seed)
    return LengthHistory(model.name, "length model", rows, model.max_response_tokens)


def read_columns(path: Path, numbers: Sequence[str], texts: Sequence[str] = ()) -> pd.DataFrame:
    """Return the named columns of a log; all but the text columns are finite numbers.

    Raises:
        TraceError: the file cannot be read.
        InputError: a column is missing, or holds something else; or there is no row.
    """
    log = read_frame(path, texts)
    missing = [column for column in (*numbers, *texts) if column not in log.columns]
    if missing:
        raise InputError(
            f"{path}: has no column {', '.join(missing)} (it has {', '.join(log.columns)}); "
            f"a log with {', '.join((*numbers, *texts))} is needed"
        )
    if log.empty:
        raise InputError(f"{path}: has no rows; a log with some is needed")
    read = log[list(numbers)].apply(pd.to_numeric, errors="coerce")
    for column, values in read.items():
        wrong = np.flatnonzero(~np.isfinite(values.to_numpy(dtype=float)))
        if wrong.size:
            value = log[column].iloc[wrong[0]]
            raise InputError(f"{path}: row {wrong[0] + 1}, column {column!r} is {value}; a finite number is needed")
    return read.join(log[list(texts)])


def _visited(name: str, path: Path, rows: pd.DataFrame, max_response_tokens: int) -> LengthHistory:
    """Return the history of a log that visits its prompts more than once."""
    history = LengthHistory(name, "log", validate("rollouts", rows, path), max_response_tokens)
    if not history.evaluated:
        raise InputError(f"{path}: visits no prompts a second time, so nothing can be predicted; a log of two visits is needed")
    return history


@dataclass(frozen=True)
class Sources:
    """Reads the histories of the figures from a folder of public logs, or from length models where the folder is None."""

    logs: Path | None = None

    @classmethod
    def default(cls) -> Sources:
        """Return the folder next to the clone, where it exists."""
        root = clone()
        folder = None if root is None else root.parent / "shared" / "data"
        return cls(folder if folder is not None and folder.is_dir() else None)

    @classmethod
    def of(cls, folder: str | Path | None) -> Sources:
        """Return ``folder``, or the one next to the clone when None.

        Raises:
            InputError: there is no such folder, or none of ``LOGS`` is in it.
        """
        if folder is None:
            return cls.default()
        if not str(folder) or not Path(folder).is_dir():
            raise InputError(f"{str(folder)!r} is not a folder; give the folder that holds {GSM8K_LOG.parts[0]}")
        sources = cls(Path(folder))
        if not sources.available:
            files = ", ".join(map(str, LOGS.values()))
            raise InputError(f"{folder}: holds none of the public logs; give the folder that holds one of {files}")
        return sources

    @property
    def available(self) -> list[str]:
        """The data sets of ``LOGS`` whose log is available."""
        return [name for name, file in LOGS.items() if self._file(file)]

    @property
    def about(self) -> str:
        """Describe the source of the lengths, in a few words."""
        if not self.available:
            return (
                "no public log is at hand, stated models take their place; the numbers of the page Papers in the documentation "
                "used the logs of "
                f"{', '.join(LOGS)} (--logs FOLDER)"
            )
        return f"public logs of {', '.join(self.available)} in {self.logs}, stated models for all others"

    @property
    def differs(self) -> str:
        """Say in a sentence that numbers differ from the printed ones where a log is missing; empty where all are there."""
        missing = [name for name in LOGS if name not in self.available]
        if not missing:
            return ""
        return (
            f"The public logs of {', '.join(missing)} were not at hand: the figures that use them have numbers that differ "
            "from those of the page Papers in the documentation."
        )

    def _file(self, name: Path) -> Path | None:
        path = None if self.logs is None else self.logs / name
        return path if path is not None and path.is_file() else None

    def gsm8k(self, samples_per_prompt: int) -> LengthHistory:
        """Return GSM8K: the second visit of 128 prompts in a public GRPO log, 32 optimizer steps after the first, else the
        length model. The log's cap is 512 tokens, which 17 % of the responses reach; it has no
        prompt lengths.

        Args:
            samples_per_prompt: responses of each prompt, of the 8 that were logged.

        Raises:
            InputError, TraceError: the log exists and is no such log.
        """
        path = self._file(GSM8K_LOG)
        if path is None:
            return modelled(GSM8K, samples_per_prompt, responses=128 * samples_per_prompt)
        log = read_columns(path, ["visit", "prompt_index", "rollout", "response_tokens", "hit_cap"])
        log = log[log["rollout"] < samples_per_prompt]
        rows = pd.DataFrame(
            {
                "run": "gsm8k", "step": log["visit"], "prompt_id": log["prompt_index"].astype(str), "sample": log["rollout"],
                "response_tokens": log["response_tokens"], "finish_reason": np.where(log["hit_cap"] == 1, "length", "stop"),
            }
        )  # fmt: skip
        return _visited("GSM8K", path, rows, 512)

    def mean_lengths(self) -> dict[str, pd.DataFrame]:
        """Return data set to ``step, mean_tokens`` of the public logs: GSM8K's 40 optimizer steps, and ``STEP_LOGS``.

        Raises:
            InputError, TraceError: a log exists and is no such log.
        """
        available = {}
        path = self._file(GSM8K_LOG)
        if path is not None:
            mean = read_columns(path, ["step", "response_tokens"]).groupby("step")["response_tokens"].mean()
            available["GSM8K"] = pd.DataFrame({"step": mean.index.astype(int), "mean_tokens": mean.to_numpy()})
        for name, (file, column) in STEP_LOGS.items():
            path = self._file(file)
            if path is not None:
                tokens = read_columns(path, [column])[column].to_numpy(dtype=float)
                available[name] = pd.DataFrame({"step": np.arange(len(tokens)), "mean_tokens": tokens})
        return available

    def math500(self) -> LengthHistory | None:
        """Return MATH-500 before and after 50 GRPO steps of a 1.5B reasoning model, one response a prompt, cap of 4,096 tokens.
        The paper does not use it, but these are real lengths with a long tail. None without the log.

        Raises:
            InputError, TraceError: the log exists and is no such log.
        """
        path = self._file(MATH_LOG)
        if path is None:
            return None
        log = read_columns(path, ["prompt_index", "response_tokens", "max_tokens", "hit_cap"], ["run", "benchmark"])
        log = log[(log["benchmark"] == "math500") & (log["max_tokens"] == 4096)]
        rows = pd.DataFrame(
            {
                "run": "math500", "step": np.where(log["run"].str.startswith("base"), 0, 1), "sample": 0,
                "prompt_id": log["prompt_index"].astype(str), "response_tokens": np.minimum(log["response_tokens"], 4096),
                "finish_reason": np.where(log["hit_cap"] == 1, "length", "stop"),
            }
        )  # fmt: skip
        return _visited("MATH-500", path, rows, 4096)

    @staticmethod
    def shipped() -> LengthHistory:
        """Return the run that ships with the project, an epoch in every 15 visits of 128 prompts x 8 samples. Where the
        checkout's data are missing, it is the length model of GSM8K with as many visits."""
        folder = next((available for base in data_folders() if (available := base / SHIPPED).is_dir()), None)
        if folder is None:
            history = modelled(replace(GSM8K, drift=0.02), 8, responses=1024, epochs=15)
            return history
        rows = read_trace(folder).rollouts
        return LengthHistory("arithmetic", "shipped run", rows.assign(step=rows["epoch"]), 320)
