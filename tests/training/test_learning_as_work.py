"""A learner takes each finished group's gradient as a work item, while others decode: its weights are those of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from busy_machine import PATIENT, Gate, Gated  # noqa: E402
from executor_samples import plan_of  # noqa: E402
from torch_wall_samples import CLUSTER, LATENCY, PROMPTS, SAMPLES, factory_of, forced  # noqa: E402

from rlhfless.engine.protocol import Completion  # noqa: E402
from rlhfless.engine.tokenizers.char_tokenizer import CharTokenizer  # noqa: E402
from rlhfless.executor import Gpus, ProcessPool, StepRecord, WorkItem, run_step  # noqa: E402
from rlhfless.training.algorithms.batch import Batch  # noqa: E402
from rlhfless.training.learner.learner import LocalLearner  # noqa: E402
from rlhfless.training.models.tiny_model import tiny_qwen2  # noqa: E402

LENGTHS = np.repeat([20, 45, 70, 95, 60, 35], SAMPLES) + np.arange(PROMPTS * SAMPLES) % 7


def learner_of(seed: int = 3) -> LocalLearner:
    """A learner of the engine's model."""
    model = tiny_qwen2(CharTokenizer(), seed=seed, hidden=64, layers=2, intermediate=128, max_tokens=140)
    return LocalLearner.make("grpo", model, learning_rate=1e-3, max_tokens_per_micro_batch=256)


def batch_of(completions: Sequence[Completion]) -> Batch:
    """The responses of a group or of a step; a reward is a number that the tokens say."""
    done = sorted(completions, key=lambda c: c.response)
    ids = [np.asarray(c.token_ids).tolist() for c in done]
    prompts = [np.asarray(forced()[c.response].prompt_ids).tolist() for c in done]
    return Batch(
        prompts, ids, [sum(tokens) % 5 / 4 for tokens in ids], [c.response // SAMPLES for c in done],
        [np.asarray(c.logprobs) for c in done],
    )  # fmt: skip


def add(learner: LocalLearner, gate: Gate, completions: Sequence[Completion], results: Sequence[Any]) -> int:
    """The gradient of a finished group, which opens the gate."""
    gate.open()
    learner.add(batch_of(completions))
    return len(completions)


def finish(learner: LocalLearner, completions: Sequence[Completion], results: Sequence[Any]) -> dict[str, float]:
    """The optimizer's step."""
    assert sum(results) == len(LENGTHS)
    return learner.finish()


def executed(clock: str, work: Sequence[WorkItem], gate: Gate) -> StepRecord:
    """A step with lengths of its own, on two actors; on the wall clock the longest group ends after the gate was opened."""
    requests = [replace(r, target_tokens=int(n)) for r, n in zip(forced(), LENGTHS, strict=True)]
    plan = plan_of([range(0, len(LENGTHS), 2), range(1, len(LENGTHS), 2)])
    if clock == "virtual":
        return run_step(plan, requests, factory_of(longest=140), LATENCY, CLUSTER, work=work)
    with ProcessPool(["cpu"] * 4, faults=PATIENT) as pool:
        engines = Gated(factory_of(longest=140), gate, last=SAMPLES // 2)
        return pool.run_step(plan, requests, engines, LATENCY, CLUSTER, work=work)


@pytest.mark.parametrize("clock", ["virtual", pytest.param("wall", marks=pytest.mark.full)])
def test_groups_that_are_learned_from_as_they_finish_give_the_weights_of_the_batch(clock: str, tmp_path: Path) -> None:
    streamed, gate = learner_of(), Gate(tmp_path / "a group is learned from")
    streamed.begin()
    here: dict[str, Any] = {"gpus": Gpus.beside(CLUSTER, "learner"), "in_process": True}
    groups = [tuple(range(p * SAMPLES, (p + 1) * SAMPLES)) for p in range(PROMPTS)]
    work = [WorkItem("learn", run=partial(add, streamed, gate), responses=group, **here) for group in groups]
    every = tuple(range(PROMPTS))
    work.append(WorkItem("learn", run=partial(finish, streamed), items=every, call="optimizer", **here))
    record = executed(clock, work, gate)

    whole = learner_of()
    numbers = whole.learn(batch_of(list(record.completions.values())))
    assert record.work[-1].result["loss"] == pytest.approx(numbers["loss"], rel=1e-3, abs=1e-5)
    start = learner_of().algorithm.trained.state_dict()
    ours, theirs = (learner.algorithm.trained.state_dict() for learner in (streamed, whole))
    assert any(not torch.equal(ours[name], start[name]) for name in ours), "something was learned"
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], atol=1e-5, rtol=1e-4)
    last_s = max(c.time_s for c in record.completions.values())
    assert min(ran.start_s for ran in record.work) < last_s, "the first group is learned from while others decode"
    (held,) = [a for a in record.allocations if a["role"] == "learner"]
    assert held["start_s"] <= min(ran.start_s for ran in record.work)
    assert held["end_s"] >= record.work[-1].end_s
