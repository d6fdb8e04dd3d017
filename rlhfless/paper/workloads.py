"""Where the figures' response lengths come from: public logs, the shipped run, or a stated length model.

Knows files of logs and their schemas; nothing of schedules. Public logs are read from a folder beside the checkout and are
never part of the project; where they are not there, the stated model takes their place, and its name says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from rlhfless.errors import InputError
from rlhfless.latency.profile import data_folders
from rlhfless.paper.lengths import GSM8K, LengthModel
from rlhfless.trace import read_trace, validate

GSM8K_LOG = Path("grpo-gsm8k-lengths", "areal_s0_lengths.csv")
MATH_LOG = Path("reasoning-eval-lengths", "response_lengths.csv")
STEP_LOGS = {  # data set: file, column of the mean length
    "MATH": (Path("rl-step-metrics", "reasoning-from-scratch", "rlvr_grpo_original_no_kl_metrics.csv"), "avg_response_len"),
    "instructions": (Path("rl-step-metrics", "rdan-grpo", "metrics_subset.csv"), "length/mean"),
}
"""GRPO on MATH (Qwen3-0.6B-base, a prompt x 8 samples a step) and a variant of it on instructions (Qwen3-4B, 64 x 8)."""
SHIPPED = Path("traces", "arithmetic-grpo")


@dataclass(frozen=True, eq=False)
class History:
    """A log of lengths over several visits of its prompts.

    Attributes:
        name: of the data set. basis: ``log``, ``shipped run`` or ``length model``.
        rollouts: validated rows of one run. response_limit: the longest response that was allowed.
    """

    name: str
    basis: str
    rollouts: pd.DataFrame
    response_limit: int

    @property
    def measured(self) -> bool:
        """Whether these are lengths that a model really generated."""
        return self.basis != "length model"

    @property
    def evaluated(self) -> list[int]:
        """The steps of which at least half of the responses are to prompts that were seen before."""
        share = (self.rollouts["epoch"] > 0).groupby(self.rollouts["step"]).mean()
        return [int(step) for step, seen in share.items() if seen >= 0.5]

    @property
    def responses(self) -> int:
        """In its last step."""
        return int((self.rollouts["step"] == self.rollouts["step"].max()).sum())

    def last(self, steps: int) -> list[int]:
        """The last so many of ``evaluated``."""
        return self.evaluated[-steps:]


def modelled(
    model: LengthModel, samples: int, *, responses: int = 512, epochs: int = 3, steps_per_epoch: int = 1, seed: int = 0
) -> History:
    """A history from a length model, with about so many responses in a step."""
    prompts = max(1, responses // samples) * steps_per_epoch
    rows = model.rollouts(prompts, samples, epochs, steps_per_epoch, seed)
    return History(model.name, "length model", rows, model.response_limit)


def about_logs(bases: Iterable[str]) -> str:
    """What a caption has to say of GSM8K's log, from a blank on; nothing where no log is among the bases."""
    said = " The GSM8K log does not tell prompt lengths: they count as 0 in prefill and learning."
    return said if "log" in set(bases) else ""


@dataclass(frozen=True)
class Sources:
    """The folder of public logs, or None where there is none."""

    logs: Path | None = None

    @classmethod
    def beside(cls) -> Sources:
        """The folder beside the checkout, where it is there."""
        folder = Path(__file__).resolve().parents[3] / "shared" / "data"
        return cls(folder if folder.is_dir() else None)

    @classmethod
    def of(cls, folder: str | Path | None) -> Sources:
        """``folder``, or the one beside the checkout when None.

        Raises:
            InputError: there is no such folder.
        """
        if folder is None:
            return cls.beside()
        if not Path(folder).is_dir():
            raise InputError(f"{folder}: is no folder; give the folder that holds {GSM8K_LOG.parts[0]}")
        return cls(Path(folder))

    def _file(self, name: Path) -> Path | None:
        path = None if self.logs is None else self.logs / name
        return path if path is not None and path.is_file() else None

    def gsm8k(self, samples: int) -> History:
        """GSM8K: the second visit of 128 prompts in a public GRPO log, 32 optimizer steps after the first, else the length
        model. The log's cap is 512 tokens, which 17 % of the responses reach; see ``about_logs`` for what it does not tell.

        Args:
            samples: responses of each prompt, of the 8 that were logged.
        """
        path = self._file(GSM8K_LOG)
        if path is None:
            return modelled(GSM8K, samples, responses=128 * samples)
        log = pd.read_csv(path)
        log = log[log["rollout"] < samples]
        rows = pd.DataFrame(
            {
                "run": "gsm8k", "step": log["visit"], "prompt_id": log["prompt_index"].astype(str), "sample": log["rollout"],
                "response_tokens": log["response_tokens"], "finish_reason": np.where(log["hit_cap"] == 1, "length", "stop"),
            }
        )  # fmt: skip
        return History("GSM8K", "log", validate("rollouts", rows), 512)

    def mean_lengths(self) -> dict[str, pd.DataFrame]:
        """Data set to ``step, mean_tokens`` of the public logs: GSM8K's 40 optimizer steps, and ``STEP_LOGS``."""
        found = {}
        path = self._file(GSM8K_LOG)
        if path is not None:
            mean = pd.read_csv(path).groupby("step")["response_tokens"].mean()
            found["GSM8K"] = pd.DataFrame({"step": mean.index.astype(int), "mean_tokens": mean.to_numpy()})
        for name, (file, column) in STEP_LOGS.items():
            path = self._file(file)
            if path is not None:
                tokens = pd.read_csv(path)[column].to_numpy(dtype=float)
                found[name] = pd.DataFrame({"step": np.arange(len(tokens)), "mean_tokens": tokens})
        return found

    def math500(self) -> History | None:
        """MATH-500 before and after 50 GRPO steps of a 1.5B reasoning model, one response a prompt, cap of 4,096 tokens: no
        data set of the paper, but real lengths with a long tail; None without the log."""
        path = self._file(MATH_LOG)
        if path is None:
            return None
        log = pd.read_csv(path)
        log = log[(log["benchmark"] == "math500") & (log["max_tokens"] == 4096)]
        rows = pd.DataFrame(
            {
                "run": "math500", "step": np.where(log["run"].str.startswith("base"), 0, 1), "sample": 0,
                "prompt_id": log["prompt_index"].astype(str), "response_tokens": np.minimum(log["response_tokens"], 4096),
                "finish_reason": np.where(log["hit_cap"] == 1, "length", "stop"),
            }
        )  # fmt: skip
        return History("MATH-500", "log", validate("rollouts", rows), 4096)

    @staticmethod
    def shipped() -> History:
        """The run that ships with the project, an epoch in every step: 15 visits of 128 prompts x 8 samples; where the
        checkout's data are not there, the length model of GSM8K with as many visits."""
        folder = next((found for base in data_folders() if (found := base / SHIPPED).is_dir()), None)
        if folder is None:
            history = modelled(replace(GSM8K, drift=0.02), 8, responses=1024, epochs=15)
            return history
        rows = read_trace(folder).rollouts
        return History("arithmetic", "shipped run", rows.assign(step=rows["epoch"]), 320)
