"""Learns from a step group by group while others decode: a prompt's responses are judged, then their gradient is added.

The weights that generate are a copy, so gradients of finished groups can be summed before the optimizer steps, once, at the
end (``Algorithm.begin``, ``add``, ``finish``). With mini-batches of prompts it steps after each (``minibatches.py``).

In a pool, groups are work items of the step, in a thread of this process. On the virtual clock they run after generation, in
the same order, and are placed into the step at their seconds, on as many servers as the learner has.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from rlhfless.engine.protocol import Completion
from rlhfless.executor import StepRecord, WorkItem
from rlhfless.training.minibatches import by_prompts
from rlhfless.training.random_state import streams_of
from rlhfless.training.responses import make_batch, read_responses
from rlhfless.training.rewards import Response
from rlhfless.training.rewards.response import Scores
from rlhfless.training.step_learner import passes_of, step_learner
from rlhfless.training.step_learning import BatchLearning, LearnedStep, LearningParts, StepLearning


class LearnedGroup(NamedTuple):
    """Responses to one prompt with their scores; seconds of judging them and of all, measured here; tokens with prompts."""

    responses: list[Response]
    scores: Scores
    judging_s: float
    seconds: float
    tokens: int


class StreamedLearning:
    """Learns from a prompt's group of responses once all of them are complete; see ``StepLearning``.

    Attributes:
        work: in a pool, an item per group and one for each step of the optimizer; on the virtual clock none.
        failure: what ended an item here, as it was raised; None: nothing did.
        numbers: of the algorithm, after its step.
    """

    failure: BaseException | None = None

    def __init__(self, parts: LearningParts) -> None:
        self.parts = parts
        self.numbers: dict[str, float] = {}
        self._groups: dict[int, LearnedGroup] = {}
        self._learned: dict[str, Any] = {"clock": "measured" if parts.profile is None else "profile"}  # filled at the end
        self._on = step_learner(parts)
        self._minibatches = by_prompts(len(parts.problems), parts.config.optimizer.num_mini_batches)
        self._updates_s: list[float] | None = None  # on the virtual clock, of the updates that have run, while any is left
        self.work: Sequence[WorkItem] = ()
        if parts.on_pool:
            self.work = self._items(
                self._minibatches, lambda group, minibatch: {"run": partial(self._run_item, group, minibatch)}
            )

    def begin(self, in_doubt: contextlib.ExitStack) -> None:
        """See ``StepLearning``. The main thread begins, because a learner's processes end with the thread that started them."""
        in_doubt.enter_context(self.parts.state.learning())
        self.parts.state.learner.begin()

    def learn(self, record: StepRecord, in_doubt: contextlib.ExitStack) -> LearnedStep:
        """See ``StepLearning``."""
        self.parts.release_engines()
        work: Sequence[WorkItem] = ()
        if not self.parts.on_pool:
            self.parts.enter("learning")
            work = self._run_after(record)
        groups = [self._groups[g] for g in range(len(self.parts.problems))]
        scores = Scores.joined([group.scores for group in groups])
        scores.check(self.parts.step)
        responses = [response for group in groups for response in group.responses]
        return LearnedStep(responses, scores, self.numbers, work, self._planned())

    def so_far(self) -> Sequence[WorkItem] | None:
        """See ``StepLearning``: the groups that were learned from. A pool reports its work itself.

        By the profile, the updates that follow a mini-batch's passes take seconds only when all have run.
        """
        p, updates_s = self.parts, self._updates_s
        if updates_s is None:
            return None
        groups, finished = dict(self._groups), len(updates_s)
        if p.profile is None:
            groups_s = {group: learned.seconds for group, learned in groups.items()}
            minibatch_s = [seconds / self._on.servers for seconds in updates_s]
        else:
            per_token_s = sum(passes_of(p.config)) * p.profile.prefill_per_token_s / self._on.speed
            judging_s = p.samples * p.config.cluster.reward_s_per_response
            groups_s = {group: judging_s + learned.tokens * per_token_s for group, learned in groups.items()}
            minibatch_s = [0.0] * finished
        begun = [[group for group in minibatch if group in groups] for minibatch in self._minibatches[: finished + 1]]
        return self._items(
            begun, lambda group, minibatch: {"seconds": minibatch_s[minibatch] if group is None else groups_s[group]}, finished
        )

    # --- what is run --------------------------------------------------------------------------------------------------

    def _learn_from(self, group: int, completions: Mapping[int, Completion]) -> None:
        """Judge the responses of a group, and add their gradient."""
        p, tokenizer, which, began = self.parts, self.parts.state.tokenizer, self._responses(group), time.perf_counter()
        seeds = p.config.seed, p.step, group + 1  # the rewards and the gradient each begin with them
        with p.learner_threads(beside_actors=True):
            with streams_of(*seeds):
                responses = read_responses(p.problems, completions, tokenizer, p.samples, which)
                scores = p.rewards.judge(responses, p.trainer_state)
            judging_s = time.perf_counter() - began
            batch = make_batch(responses, scores.values, completions, tokenizer, p.samples, which)
            with streams_of(*seeds):
                p.state.learner.add(batch)
        seconds = time.perf_counter() - began
        self._groups[group] = LearnedGroup(responses, scores, judging_s, seconds, sum(batch.tokens))

    def _update(self, minibatch: int) -> None:
        """Take the optimizer's step on the groups of a mini-batch."""
        p, last = self.parts, minibatch == len(self._minibatches) - 1
        part = () if last else (len(p.problems) + 1 + minibatch,)
        with streams_of(p.config.seed, p.step, *part), p.learner_threads(beside_actors=not last):
            if not last:
                p.state.learner.update()
                return
            self.numbers = p.state.learner.finish()
        judging_s = sum(group.judging_s for group in self._groups.values())
        self._learned |= {"learning": self.numbers, "judging_s": judging_s}

    def _responses(self, group: int) -> tuple[int, ...]:
        samples = self.parts.samples
        return tuple(range(group * samples, (group + 1) * samples))

    def _items(
        self,
        minibatches: Sequence[Sequence[int]],
        given: Callable[[int | None, int], dict[str, Any]],
        updates: int | None = None,
    ) -> list[WorkItem]:
        """Return an item per group, and one for each mini-batch's update after those of its groups.

        A group waits for the update of the mini-batch before. In the canonical order it waits for the group before, too. The
        detail of the last update is filled when it has run.

        Args:
            minibatches: groups of each. given: function or seconds of a group in a mini-batch, or of its update (None).
            updates: mini-batches that have one; None: all.
        """
        p, clock = self.parts, dict(self._learned)
        on: dict[str, Any] = {"gpus": self._on.gpus, "in_process": p.on_pool}
        canonical = p.config.cluster.stream_order == "canonical"
        items: list[WorkItem] = []
        update: tuple[int, ...] = ()
        for minibatch, groups in enumerate(minibatches):
            first = len(items)
            for group in groups:
                before = tuple(range(len(items)))[-1:] if canonical else update
                responses = self._responses(group) if self._on.streams else tuple(range(len(p.problems) * p.samples))
                of_group = given(group, minibatch)
                items.append(WorkItem("learn", responses=responses, items=before, detail=clock, **on, **of_group))
            if updates is not None and minibatch >= updates:
                continue
            every, of_update = tuple(range(first, len(items))), given(None, minibatch)
            count = self._on.servers if of_update.get("seconds") else 1  # passes at the end are shared by all servers
            for part in range(count):
                detail = self._learned if minibatch == len(self._minibatches) - 1 and part == count - 1 else clock
                items.append(WorkItem("learn", items=every, call="optimizer", detail=detail, **on, **of_update))
            update = tuple(range(len(items) - count, len(items)))
        return items

    # --- in a pool ----------------------------------------------------------------------------------------------------

    def _run_item(self, group: int | None, minibatch: int, completions: Sequence[Completion], results: Sequence[Any]) -> None:
        """Run a group, or an update (None); the pool tells of an exception in words only, so it is kept."""
        try:
            if group is None:
                self._update(minibatch)
            else:
                self._learn_from(group, {completion.response: completion for completion in completions})
        except BaseException as error:
            self.failure = error
            raise

    # --- on the virtual clock -----------------------------------------------------------------------------------------

    def _run_after(self, record: StepRecord) -> list[WorkItem]:
        """Run everything after generation; returns it as work items with their seconds."""
        completions, canonical = record.completions, self.parts.config.cluster.stream_order == "canonical"
        self._updates_s = updates_s = list[float]()
        for minibatch, groups in enumerate(self._minibatches):
            complete_s = {group: max(completions[r].time_s for r in self._responses(group)) for group in groups}
            for group in groups if canonical else sorted(groups, key=complete_s.__getitem__):
                self._learn_from(group, completions)
            began = time.perf_counter()
            self._update(minibatch)
            updates_s.append(time.perf_counter() - began)
        self._updates_s = None
        groups_s, updates_s = self._charged(updates_s)
        return self._items(
            self._minibatches,
            lambda group, minibatch: {"seconds": updates_s[minibatch] if group is None else groups_s[group]},
        )

    def _planned(self) -> dict[str, Any] | None:
        """Return what was planned and expected of the learner; None if it was not planned."""
        if (late := self._on.late) is not None:
            return {
                "learning": "stream", "gpus": sum(len(ids) for ids in self._on.gpus.own),
                "from_s": late.from_s, "grows": self._on.gpus.released, "planned_step_s": late.time_s,
                "planned_gpu_s": late.gpu_seconds, "held_step_s": late.held_time_s, "held_gpu_s": late.held_gpu_seconds,
            }  # fmt: skip
        if (plan := self._on.plan) is not None:
            one, batch, learner = plan.chosen, plan.batch, plan.chosen.learner
            return {
                "learning": "stream" if learner.streams else "batch", "gpus": learner.own * self.parts.latency.gpus_per_actor,
                "from_s": learner.from_s, "grows": learner.grows,
                "planned_step_s": one.time_s, "planned_gpu_s": one.gpu_seconds, "batch_step_s": batch.time_s,
                "batch_gpu_s": batch.gpu_seconds,
            }  # fmt: skip
        return None

    def _charged(self, updates_s: list[float]) -> tuple[list[float], list[float]]:
        """Return the seconds of each group, and of each mini-batch's update on each server.

        By the profile, a pass over a token takes what its prefill takes on an actor's GPUs, and passes of the batch are divided
        by tokens. Passes after the first update of a mini-batch come at its end. What could not be learned from before
        a mini-batch was complete (``waited``) comes with its update.

        Args:
            updates_s: of the updates, measured here.
        """
        p, numbers, count = self.parts, self.numbers, len(updates_s)
        groups = [self._groups[g] for g in range(len(p.problems))]
        if p.profile is None:
            return [group.seconds for group in groups], [seconds / self._on.servers for seconds in updates_s]
        per_token_s = p.profile.prefill_per_token_s / self._on.speed
        learn_s = numbers.get("learn_pass_tokens", 0.0) * per_token_s
        first_s = learn_s / p.config.algorithm.num_updates
        passes_s = first_s + numbers.get("prepare_pass_tokens", 0.0) * per_token_s
        whole = sum(group.tokens for group in groups)
        judging_s = p.samples * p.config.cluster.reward_s_per_response
        seconds = [judging_s + group.tokens / whole * passes_s for group in groups]
        waited_s = numbers.get("waited", 0.0) * first_s
        return seconds, [(learn_s - first_s + waited_s) / count / self._on.servers] * count


def learning_of(parts: LearningParts) -> StepLearning:
    """Return how a step is learned from."""
    return StreamedLearning(parts) if parts.config.cluster.learning == "stream" else BatchLearning(parts)
