"""Learns from a step group by group while others decode: a prompt's responses are judged, then their gradient is added.

The weights that generate are a copy, so gradients of finished groups can be summed before the optimizer steps, once, at the
end (``Algorithm.begin``, ``add``, ``finish``). In a pool, groups are work items of the step, in a thread of this process. On
the virtual clock they run after generation, in the same order, and are placed into the step at their seconds.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from rlhfless.engine.protocol import Completion
from rlhfless.engine.torch.model import one_thread
from rlhfless.executor import StepRecord, WorkGpus, WorkItem
from rlhfless.executor.step.work_rows import add_work
from rlhfless.training.random_state import streams_of
from rlhfless.training.responses import make_batch, read_responses
from rlhfless.training.rewards import Response
from rlhfless.training.rewards.response import Scores
from rlhfless.training.step_learning import LearnedStep, LearningParts


class LearnedGroup(NamedTuple):
    """Responses to one prompt with their scores; seconds of judging them and of all, measured here; tokens with prompts."""

    responses: list[Response]
    scores: Scores
    judging_s: float
    seconds: float
    tokens: int


class StreamedLearning:
    """Learns from each group of a step once its responses are complete; see ``StepLearning``.

    Attributes:
        work: in a pool, an item per group and one for the optimizer's step; on the virtual clock none.
        failure: what ended an item, as it was raised.
        numbers: of the algorithm, after its step.
    """

    def __init__(self, parts: LearningParts) -> None:
        self.parts = parts
        self.failure: BaseException | None = None
        self.numbers: dict[str, float] = {}
        self._groups: dict[int, LearnedGroup] = {}
        self._learned: dict[str, Any] = {"clock": "measured" if parts.profile is None else "profile"}  # filled at the end
        self._gpu_count = parts.config.cluster.learner_gpus or parts.latency.gpus_per_actor
        self._gpus = WorkGpus.beside(parts.cluster, "learner", self._gpu_count, keeps_state=True, in_this_process=True)
        self.work: Sequence[WorkItem] = self._items() if parts.on_pool else ()

    def begin(self, in_doubt: contextlib.ExitStack) -> None:
        """See ``StepLearning``. The main thread begins, because a learner's processes end with the thread that started them."""
        in_doubt.enter_context(self.parts.state.learning())
        self.parts.state.learner.begin()

    def learn(self, record: StepRecord, in_doubt: contextlib.ExitStack) -> LearnedStep:
        """See ``StepLearning``."""
        if not self.parts.on_pool:
            self._run_after(record)
        groups = [self._groups[g] for g in range(len(self.parts.problems))]
        scores = Scores.joined([group.scores for group in groups])
        scores.warn()
        return LearnedStep([response for group in groups for response in group.responses], scores, self.numbers)

    # --- what is run --------------------------------------------------------------------------------------------------

    def _learn_from(self, group: int, completions: Mapping[int, Completion]) -> None:
        p, which, tokenizer = self.parts, self._responses(group), self.parts.state.tokenizer
        began = time.perf_counter()
        with streams_of(p.config.seed, p.step, group + 1), one_thread(p.state.model.device):
            responses = read_responses(p.problems, completions, tokenizer, p.samples, which)
            scores = p.rewards.judge(responses)
            judging_s = time.perf_counter() - began
            batch = make_batch(responses, scores.values, completions, tokenizer, p.samples, which)
            p.state.learner.add(batch)
        tokens = sum(len(prompt) + len(response) for prompt, response in zip(batch.prompt_ids, batch.response_ids, strict=True))
        self._groups[group] = LearnedGroup(responses, scores, judging_s, time.perf_counter() - began, tokens)

    def _finish(self) -> None:
        p = self.parts
        with streams_of(p.config.seed, p.step), one_thread(p.state.model.device):
            self.numbers = p.state.learner.finish()
        judging_s = sum(group.judging_s for group in self._groups.values())
        self._learned |= {"learning": self.numbers, "judging_s": judging_s}

    def _responses(self, group: int) -> tuple[int, ...]:
        return tuple(range(group * self.parts.samples, (group + 1) * self.parts.samples))

    # --- as items of a pool -------------------------------------------------------------------------------------------

    def _items(self) -> list[WorkItem]:
        """Return the items of a pool; the detail of the last one is filled when it has run."""
        groups = range(len(self.parts.problems))
        clock = dict(self._learned)
        items = [
            WorkItem(
                "learn", run=partial(self._item, group), gpus=self._gpus, responses=self._responses(group),
                items=self._after(group), detail=clock,
            )
            for group in groups
        ]  # fmt: skip
        items.append(
            WorkItem(
                "learn", run=partial(self._item, None), gpus=self._gpus, items=tuple(groups), call="optimizer",
                detail=self._learned,
            )
        )  # fmt: skip
        return items

    def _after(self, group: int) -> tuple[int, ...]:
        """Return the groups that must be learned from before this one."""
        return (group - 1,) if group and self.parts.config.cluster.stream_order == "canonical" else ()

    def _item(self, group: int | None, completions: Sequence[Completion], results: Sequence[Any]) -> None:
        """Run a group, or the optimizer's step (None); the pool tells of an exception in words only, so it is kept."""
        try:
            if group is None:
                self._finish()
            else:
                self._learn_from(group, {completion.response: completion for completion in completions})
        except BaseException as error:
            self.failure = error
            raise

    # --- on the virtual clock -----------------------------------------------------------------------------------------

    def _run_after(self, record: StepRecord) -> None:
        """Run everything after generation and place it into the step."""
        completions, groups = record.completions, range(len(self.parts.problems))
        complete_s = [max(completions[r].time_s for r in self._responses(group)) for group in groups]
        canonical = self.parts.config.cluster.stream_order == "canonical"
        order = list(groups) if canonical else sorted(groups, key=complete_s.__getitem__)
        for group in order:
            self._learn_from(group, completions)
        finish_s = _seconds_of(self._finish)
        seconds, finish_s = self._charged(finish_s)
        clock = {"clock": self._learned["clock"]}
        items = [
            WorkItem(
                "learn", seconds[group], gpus=self._gpus, responses=self._responses(group), items=self._after(group),
                detail=self._learned if group == order[-1] and finish_s == 0 else clock,
            )
            for group in groups
        ]  # fmt: skip
        if finish_s > 0:  # else the last group's span has the numbers
            items.append(
                WorkItem("learn", finish_s, gpus=self._gpus, items=tuple(groups), call="optimizer", detail=self._learned)
            )
        add_work(record, items, self.parts.cluster)

    def _charged(self, finish_s: float) -> tuple[list[float], float]:
        """Return the seconds of each group and of the end of the step.

        By the profile, a pass over a token takes what its prefill takes on an actor's GPUs, and passes of the batch are divided
        by tokens. Passes after the first update come at the end, and so does what PPO could not learn from earlier.

        Args:
            finish_s: of the end, measured here.
        """
        p, numbers = self.parts, self.numbers
        groups = [self._groups[g] for g in range(len(p.problems))]
        if p.profile is None:
            return [group.seconds for group in groups], finish_s
        per_token_s = p.profile.prefill_per_token_s * p.profile.gpus_per_actor / self._gpu_count
        learn_s = numbers.get("learn_pass_tokens", 0.0) * per_token_s
        first_s = learn_s / p.config.algorithm.num_updates
        passes_s = first_s + numbers.get("prepare_pass_tokens", 0.0) * per_token_s
        whole = sum(group.tokens for group in groups)
        judging_s = p.samples * p.config.cluster.reward_s_per_response
        seconds = [judging_s + group.tokens / whole * passes_s for group in groups]
        return seconds, learn_s - first_s + numbers.get("waited", 0.0) * first_s


def _seconds_of(function: Callable[[], None]) -> float:
    began = time.perf_counter()
    function()
    return time.perf_counter() - began
