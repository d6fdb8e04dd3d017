"""Steps of public logs for the benchmark of stage fusion, with true lengths and those of earlier answers to the same prompts.

GSM8K: the last 7 steps of a GRPO run (16 prompts x 8), which visit prompts for the second time. MATH-500: 64 prompts x 2, the
answers of a model before and after RL, in 5 draws of prompts; with earlier answers 128 prompts x 1. MGSM: 64 prompts x 8
languages, which stand for 8 samples, of 4 models after RL. Answers have no prompt lengths; the mean is assumed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd
from public_logs import rows

from rlhfless.simulate import logged_steps
from solver import Workload

PROMPT_TOKENS = {"GSM8K": 110, "MATH-500": 85, "MGSM": 110}
MATH_RUNS = ("base_deepseek_r1_distill_15b", "reproduce_openrs_rs2_42_step50_v2")
MGSM_BASE = "base_distill15b_mgsm"
MGSM_RUNS = ("a2_vi_123_mgsm", "a3_enlang_123_mgsm", "a4_const_bias_42_mgsm", "reproduce_openrs_rs2_123_mgsm")


class Draw(NamedTuple):
    """A step with its true lengths, and (R, H) lengths of earlier answers to each response's prompt, if there are any."""

    workload: Workload
    history: np.ndarray | None = None

    def expected(self, seed: int, scenarios: int = 8) -> Workload:
        """Return the step with scenarios of lengths drawn from the earlier answers."""
        assert self.history is not None
        rng, (responses, answers) = np.random.default_rng(seed), self.history.shape
        drawn = self.history[np.arange(responses), rng.integers(0, answers, (scenarios, responses))]
        work = self.workload
        return Workload(work.prompt_tokens, work.prompt_of, drawn, max_response_tokens=work.max_response_tokens)

    def predicted(self) -> Workload:
        """Return the step with the lengths and scenarios that the default predictor has after the earlier answers."""
        assert self.history is not None
        work = self.workload
        prompts, first = len(work.prompt_tokens), np.unique(work.prompt_of, return_index=True)[1]
        earlier = [(0, p, int(n)) for p in range(prompts) for n in self.history[first[p]]]
        now = [(1, int(p), int(n)) for p, n in zip(work.prompt_of, work.response_tokens, strict=True)]
        table = pd.DataFrame(earlier + now, columns=["step", "prompt_id", "response_tokens"])
        table = table.assign(run="log", epoch=table["step"], finish_reason="stop", prompt_tokens=int(work.prompt_tokens[0]))
        return next(logged_steps(table, max_response_tokens=work.max_response_tokens, steps=[1])).predicted


def draws(name: str) -> list[Draw]:
    """Return the steps of a log, none where the log is not there. ``NAME, earlier answers``: those with a history."""
    log, _, earlier = name.partition(", ")
    if log == "made up":
        return [made_up(16, 0.8)]
    found = {"GSM8K": _gsm8k, "MATH-500": _math500, "MGSM": _mgsm}[log](bool(earlier))
    return [_draw(lengths, history, PROMPT_TOKENS[log]) for lengths, history in found]


def made_up(responses: int, sigma: float) -> Draw:
    """Return a step of prompts x 8 lognormal lengths with median 700, whose history is another draw."""
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(np.log(700), sigma, (2, responses // 8, 8)), 1, 8192).astype(int)
    return _draw(lengths[0], lengths[1], 100)


def _draw(lengths: np.ndarray, history: np.ndarray | None, prompt_tokens: int) -> Draw:
    """Return a step of (P, S) lengths; ``history`` has the (P, H) lengths of earlier answers."""
    prompts, samples = lengths.shape
    limit = int(max(lengths.max(), 0 if history is None else history.max()))
    work = Workload.grid(np.full(prompts, prompt_tokens), lengths, max_response_tokens=limit)
    return Draw(work, None if history is None else np.repeat(history, samples, axis=0))


def _gsm8k(earlier: bool) -> list[tuple[np.ndarray, np.ndarray | None]]:
    table = rows("grpo-gsm8k-lengths/areal_s0_lengths.csv") or []
    of: dict[tuple[int, int], list[int]] = {}
    for row in table:
        of.setdefault((int(row["visit"]), int(row["prompt_index"])), []).append(int(row["response_tokens"]))
    steps = sorted({int(row["step"]) for row in table if row["visit"] == "1"})[-7:]
    found = []
    for step in steps:
        prompts = sorted({int(row["prompt_index"]) for row in table if int(row["step"]) == step})
        history = np.array([of[(0, p)] for p in prompts]) if earlier else None
        found.append((np.array([of[(1, p)] for p in prompts]), history))
    return found


def _answers(run: str, benchmark: str) -> dict[tuple[int, str], int]:
    table = rows("reasoning-eval-lengths/response_lengths.csv") or []
    return {
        (int(row["prompt_index"]), row["language"]): int(row["response_tokens"])
        for row in table if row["run"] == run and row["benchmark"] == benchmark
    }  # fmt: skip


def _math500(earlier: bool) -> list[tuple[np.ndarray, np.ndarray | None]]:
    before, after = (_answers(run, "math500") for run in MATH_RUNS)
    if not before:
        return []
    found: list[tuple[np.ndarray, np.ndarray | None]] = []
    for seed in range(5):
        prompts = np.random.default_rng(seed).permutation(500).tolist()
        if earlier:
            lengths, history = (np.array([[run[(p, "en")]] for p in prompts[:128]]) for run in (after, before))
            found.append((lengths, history))
        else:
            found.append((np.array([[run[(p, "en")] for run in (before, after)] for p in prompts[:64]]), None))
    return found


def _mgsm(earlier: bool) -> list[tuple[np.ndarray, np.ndarray | None]]:
    base, found = _answers(MGSM_BASE, "mgsm"), []
    for seed, run in enumerate(MGSM_RUNS if base else ()):
        answers = _answers(run, "mgsm")
        prompts = np.random.default_rng(seed).permutation(250)[:64].tolist()
        languages = sorted({language for _, language in answers})
        lengths, history = (np.array([[of[(p, name)] for name in languages] for p in prompts]) for of in (answers, base))
        found.append((lengths, history if earlier else None))
    return found
