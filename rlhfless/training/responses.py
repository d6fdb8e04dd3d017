"""Converts problems to requests, and completions to response texts, trace rows and the batch that the algorithm learns from.

Responses are numbered problem by problem, ``samples_per_prompt`` of each.
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from rlhfless.engine.protocol import Completion, Request
from rlhfless.executor import StepRecord
from rlhfless.training.algorithms.batch import Batch
from rlhfless.training.rewards import Response, RewardWarning
from rlhfless.training.tasks import Problem
from solver.model.workload import Workload


def make_requests(
    problems: Sequence[Problem],
    tokenizer: Any,
    samples_per_prompt: int,
    max_response_tokens: int,
    seed: int,
    step: int,
    history: Mapping[str, Sequence[np.ndarray]] | None = None,
) -> list[Request]:
    """Return one request per response; its random stream depends on (seed, step, prompt, sample) only.

    Args:
        history: token ids of earlier responses by prompt, from which drafts may come.
    """
    requests = []
    for p, problem in enumerate(problems):
        ids = np.array(tokenizer.encode(problem.prompt), dtype=np.int64)
        earlier = (history or {}).get(problem.prompt_id, ())
        prompt_seed = zlib.crc32(problem.prompt_id.encode())
        for sample in range(samples_per_prompt):
            stream = int(np.random.SeedSequence([seed, step, prompt_seed, sample]).generate_state(1, np.uint64)[0])
            index = p * samples_per_prompt + sample
            requests.append(
                Request(index, len(ids), max_response_tokens, prompt_ids=ids, seed=stream, prompt=p, history=earlier)
            )
    return requests


def read_responses(
    problems: Sequence[Problem],
    completions: Mapping[int, Completion],
    tokenizer: Any,
    samples_per_prompt: int,
    which: Iterable[int] | None = None,
) -> list[Response]:
    """Return a step's responses as reward functions see them: all of them, or those of ``which``."""
    responses = []
    for i in range(len(problems) * samples_per_prompt) if which is None else which:
        done = completions[i]
        assert done.token_ids is not None, "the engine returned no tokens"
        text = tokenizer.decode(done.token_ids.tolist())
        responses.append(
            Response(
                problems[i // samples_per_prompt], text, done.response_tokens, done.finish_reason == "length",
                tuple(done.token_ids.tolist()),
            )
        )  # fmt: skip
    return responses


def rollout_rows(
    responses: Sequence[Response],
    rewards: np.ndarray,
    workload: Workload,
    record: StepRecord,
    epoch: int,
    samples_per_prompt: int,
    which: Sequence[int] | None = None,
    logged: Mapping[str, Sequence[str | None]] | None = None,
) -> pd.DataFrame:
    """Return the step's rows of the trace's table ``rollouts``.

    Args:
        responses, rewards: of all responses, or of those of ``which``; a NaN reward becomes null (unknown).
        logged: further columns, which reward functions logged.

    Warns:
        RewardWarning: a logged column has the name of another one, and is left out.
    """
    rows = [
        {
            "run": record.run,
            "step": record.step,
            "epoch": epoch,
            "prompt_id": response.problem.prompt_id,
            "sample": i % samples_per_prompt,
            "prompt_tokens": int(workload.prompt_tokens[workload.prompt_of[i]]),
            "weights_version": record.step,
            "predicted_tokens": float(workload.response_tokens[i]),
            "prompt": response.prompt,
            "response": response.text,
            **record.rollout_times(i),
        }
        for i, response in zip(range(len(responses)) if which is None else which, responses, strict=True)
    ]
    table = pd.DataFrame(rows).assign(reward=rewards)
    for name, texts in (logged or {}).items():
        if name in table:
            warnings.warn(
                f"a reward function logged the column {name!r}, which the rollouts have already; give log_extra another name",
                RewardWarning,
                stacklevel=2,
            )
        else:
            table[name] = pd.Series(texts, dtype="string")
    return table


def completed_rows(
    problems: Sequence[Problem], workload: Workload, record: StepRecord, tokenizer: Any, epoch: int, samples_per_prompt: int
) -> pd.DataFrame:
    """Return the rows of the responses that an unfinished step completed, without rewards; see ``rollout_rows``."""
    which = sorted(record.completions)
    responses = read_responses(problems, record.completions, tokenizer, samples_per_prompt, which)
    return rollout_rows(responses, np.full(len(which), np.nan), workload, record, epoch, samples_per_prompt, which)


def make_batch(
    responses: Sequence[Response],
    rewards: np.ndarray,
    completions: Mapping[int, Completion],
    tokenizer: Any,
    samples_per_prompt: int,
    which: Sequence[int] | None = None,
) -> Batch:
    """Return the batch that an algorithm learns from.

    Args:
        responses, rewards: of all responses, or of those of ``which``.
    """
    indices = np.arange(len(responses)) if which is None else np.array(which)
    done = [completions[i] for i in indices.tolist()]
    return Batch(
        [tokenizer.encode(response.prompt) for response in responses],
        [completion.token_ids.tolist() for completion in done if completion.token_ids is not None],
        rewards,
        indices // samples_per_prompt,
        [completion.logprobs for completion in done if completion.logprobs is not None],
        np.array([response.truncated for response in responses]),
    )
