"""Evaluates weights on held-out problems during training: one sampled response to each, scored by the run's rewards.

It runs in the trainer's process, with a torch engine on the trained model's device, also where actors of a pool generate. The
virtual clock does not move. Every evaluation draws the same random numbers, so that two differ by their weights only.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rlhfless.system.cleanup import cleaning_up
from rlhfless.training import missing_torch

try:
    import torch
except ImportError as error:
    raise missing_torch(error) from None

from rlhfless.engine.common.sampling import Sampling
from rlhfless.engine.torch.engine import TorchEngine
from rlhfless.engine.torch.iteration_clock import MEASURED
from rlhfless.engine.torch.model import one_thread
from rlhfless.engine.torch.row_models import row_model
from rlhfless.executor import StepRecord
from rlhfless.training.config import TrainConfig, TrainError
from rlhfless.training.random_state import streams_of
from rlhfless.training.responses import make_requests, read_responses
from rlhfless.training.rewards import Response, Rewards
from rlhfless.training.rewards.called_with import TrainerState
from rlhfless.training.tasks import Problem, Task
from solver.model.admission import Admission
from solver.model.plurals import counted

EVENT = "evaluation"
SLOTS = 128  # responses that are decoded at once


@dataclass(frozen=True, eq=False)
class Evaluator:
    """Evaluates a run's weights.

    Attributes:
        problems: held out; none: nothing is evaluated.
        every: evaluate after so many steps, and after the last of ``steps``; None: only when asked.
        rewards: of the run. compares: whether they compare with answers by a rule of the project's own, so that there is an
            accuracy. rule: 1 for a right answer; None where there is no accuracy.
        sampling, precision, stop_ids: as in the run's engines; precision is the name of a number format.
        forward: whose forward pass decodes, see ``row_model``. device: on which it does.
    """

    problems: Sequence[Problem]
    every: int | None
    steps: int
    rewards: Rewards
    compares: bool
    rule: Any
    tokenizer: Any
    sampling: Sampling
    max_response_tokens: int
    precision: str
    stop_ids: Sequence[int] | int
    forward: str
    device: torch.device
    seed: int

    @classmethod
    def of(
        cls,
        config: TrainConfig,
        task: Task,
        rewards: Rewards,
        tokenizer: Any,
        sampling: Sampling,
        precision: str,
        stop_ids: Sequence[int] | int,
        *,
        device: torch.device,
        compares: bool,
        given: bool = False,
    ) -> Evaluator:
        """Return the evaluator of a run.

        Args:
            device, compares: see ``Evaluator``.
            given: the caller has prompts to evaluate on, and gives them to ``on``.

        Raises:
            TrainError: the task has too few problems that are not trained on.
        """
        forward = "own" if config.cluster.engine == "torch" else "transformers"  # vLLM has models that only the latter has
        made = cls(
            (), config.eval_every, config.steps, rewards, compares, None, tokenizer, sampling,
            config.rollout.max_response_tokens, precision, stop_ids, forward, device, config.seed,
        )  # fmt: skip
        if config.eval_every is None or given:
            return made
        assert config.task.prompts is not None
        return made.on(held_out_problems(task, config.task.prompts, config.task.eval_prompts), task)

    def on(self, problems: Sequence[Problem], task: Task) -> Evaluator:
        """Return the evaluator on other problems.

        Args:
            task: whose rule says which answers are right.
        """
        answered = self.compares and bool(problems) and all(problem.answer not in ("", None) for problem in problems)
        return replace(self, problems=problems, rule=task.reward if answered else None)

    def due(self, after_steps: int) -> bool:
        """Return whether the weights after so many steps are evaluated: the first, the last, and those of whole intervals."""
        if self.every is None or not self.problems:
            return False
        return after_steps % self.every == 0 or after_steps == self.steps

    def of_weights(self, model: Any, after_steps: int) -> dict[str, float]:
        """Return the numbers of a model's weights, none where they are not due."""
        return self.numbers(model, after_steps) if self.due(after_steps) else {}

    def numbers(self, model: Any, after_steps: int = 0) -> dict[str, float]:
        """Return the numbers of a model's weights.

        Returns:
            ``reward_mean``, ``reward_NAME`` of each reward and what reward functions log, ``reward_failures``, ``accuracy``
            (share of right answers by the task's own rule, unless the user gave reward functions), ``response_tokens_mean``,
            ``problems``, and ``seconds`` measured here. Responses that could not be judged do not count.
        """
        began = time.perf_counter()
        with one_thread(self.device), streams_of(self.seed, 0):
            responses = self.responses(model)
            scores = self.rewards.score(responses, TrainerState(after_steps, self.steps))
        values = scores.values
        mean = float(np.nanmean(values)) if not np.isnan(values).all() else math.nan
        numbers = {**scores.metrics(), "reward_mean": mean}
        if self.rule is not None:
            right = [self.rule(response.problem, response.text) >= 1.0 for response in responses]
            numbers["accuracy"] = float(np.mean(right))
        numbers["response_tokens_mean"] = float(np.mean([response.tokens for response in responses]))
        return {**numbers, "problems": float(len(responses)), "seconds": time.perf_counter() - began}

    def responses(self, model: Any) -> list[Response]:
        """Return one sampled response of a model to each problem, in order."""
        return read_responses(self.problems, self._generate(model), self.tokenizer, 1)

    def enter(self, record: StepRecord, numbers: Mapping[str, float], after_steps: int) -> None:
        """Enter an evaluation as an event of a step, at its start or, after its learning, at its end."""
        if numbers:
            time_s = record.start_s if after_steps == record.step else record.end_s
            record.event(time_s, EVENT, None, after_steps=after_steps, **numbers)

    def _generate(self, model: Any) -> dict[int, Any]:
        requests = make_requests(self.problems, self.tokenizer, 1, self.max_response_tokens, self.seed, 0)
        longest = max(request.prompt_tokens for request in requests) + self.max_response_tokens
        on_device = model if model.device == self.device else copy.deepcopy(model).to(self.device)
        weights = row_model(self.forward, on_device, longest, getattr(torch, self.precision))
        del on_device  # a copy is not needed any more
        admission = Admission(min(SLOTS, len(requests)), 1 << 30)
        engine = TorchEngine(weights, admission, MEASURED, eos_id=self.stop_ids, sampling=self.sampling)
        with cleaning_up(engine.close):
            engine.add(requests)
            return {done.response: done for done in engine.advance(math.inf).completions}


def held_out_problems(task: Task, prompts: int, count: int) -> Sequence[Problem]:
    """Return problems that are not trained on: those of ``task.held_out``, or the ones after the first ``prompts``.

    Raises:
        TrainError: there are too few.
    """
    if hasattr(task, "held_out"):
        found: Sequence[Problem] = task.held_out(count)
    else:
        found = task.problems[prompts : prompts + count]
    if len(found) < count:
        fewer = f"at most {len(found)}" if found else "eval_dataset or eval_every, which keeps prompts back"
        raise TrainError(
            f"eval_prompts is {count}, but task {task.name!r} has {counted(len(found), 'problem')} beside the {prompts} that "
            f"are trained on; give {fewer}, or fewer prompts"
        )
    return found
