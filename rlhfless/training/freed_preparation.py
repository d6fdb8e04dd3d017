"""Prepares finished responses on GPUs that actors gave back, while others decode: work items of a step on the wall clock.

What runs there are the passes before the first update (reference, old log-probabilities, values), in processes with a replica
of the weights (``learner/replica.py``). A response is a forward pass of its own, so its numbers do not depend on what else was
done, where, or when. Passes over micro-batches of several differ from these within rounding. Rewards are computed in the
trainer, after generation, as without freed GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from rlhfless.engine.protocol import Completion
from rlhfless.executor import StepRecord, WorkGpus, WorkItem
from rlhfless.training.algorithms.batch import Batch
from rlhfless.training.config import TrainConfig, TrainError
from rlhfless.training.learner.learner import LocalLearner
from rlhfless.training.learner.replica import InTrainer, Joined, Loading
from rlhfless.training.run_state import RunState
from rlhfless.training.tasks import Problem


def check_freed(config: TrainConfig, *, given: bool) -> None:
    """Refuse a run on the wall clock whose preparation on freed GPUs is impossible, or would change what is learned.

    Args:
        given: the algorithm is an object of the caller's.

    Raises:
        TrainError: other processes have no replica of its models, it has no passes, or they wait for an update.
    """
    processes, algorithm = config.cluster.learner_processes, config.algorithm
    if given:
        problem = "an algorithm object runs its passes in this process"
    elif processes > 1:
        problem = f"the {processes} learner_processes share their weights (FSDP2), so that no other process has all of them"
    elif algorithm.name == "grpo" and not algorithm.kl_coef:
        problem = "GRPO with kl_coef 0 has no pass before its update"
    elif (rank := config.optimizer.lora_rank) is not None:
        problem = f"with lora_rank {rank} other processes hold no adapters"
    elif algorithm.name == "ppo" and (parts := config.optimizer.num_mini_batches) > 1:
        problem = f"with num_mini_batches {parts} PPO's values are those of the weights after the update before"
    else:
        return
    raise TrainError(f"preparation is 'freed' on the wall clock, but {problem}; choose preparation 'after'")


@dataclass(frozen=True, eq=False)
class PreparedResponse:
    """The numbers of a response's tokens by name, as in ``Batch.prepared``."""

    numbers: dict[str, np.ndarray]

    @property
    def nbytes(self) -> int:
        """Bytes that are sent to the trainer."""
        return sum(row.nbytes for row in self.numbers.values())


def prepare_response(
    stream: Sequence[int],
    prompt_ids: Sequence[int],
    completions: Sequence[Completion],
    results: Sequence[Any],
    joined: Joined,
) -> PreparedResponse:
    """Prepare a response: the function of a work item, which waits for its completion.

    Args:
        stream: numbers that seed its random streams, for models with dropout.
    """
    (completion,) = completions
    assert completion.token_ids is not None, "the engine returned no tokens"
    looked = joined.look(Batch([prompt_ids], [completion.token_ids.tolist()], [0.0], [0]), stream)
    return PreparedResponse({name: rows[0] for name, rows in looked.items()})


def freed_items(state: RunState, problems: Sequence[Problem], step: int, config: TrainConfig) -> list[WorkItem]:
    """Return an item for each response of a step, on the GPUs of whichever actor has given them back."""
    learner, samples = state.learner, config.rollout.samples_per_prompt
    assert isinstance(learner, LocalLearner)
    name, options = config.algorithm.name, config.learner_options()
    loading = Loading(learner, InTrainer(), state.model.config, name, options, only_looks=True)
    gpus = WorkGpus("prepare", load=loading)
    prompts = [state.tokenizer.encode(problem.prompt) for problem in problems]
    functions = [
        partial(prepare_response, (config.seed, step, i + 1), prompts[i // samples]) for i in range(len(prompts) * samples)
    ]
    return [WorkItem("prepare", run=function, gpus=gpus, responses=(i,)) for i, function in enumerate(functions)]


def with_prepared(batch: Batch, record: StepRecord) -> tuple[Batch, float]:
    """Return the batch of a step with what the record's items of preparation gave, and their seconds together."""
    runs = {run.item.responses[0]: run for run in record.work if isinstance(run.result, PreparedResponse)}
    assert sorted(runs) == list(range(len(batch.response_ids)))
    ordered = [runs[i] for i in sorted(runs)]
    names = ordered[0].result.numbers
    prepared = {name: [run.result.numbers[name] for run in ordered] for name in names}
    return replace(batch, prepared=prepared), sum(run.end_s - run.start_s for run in ordered)
