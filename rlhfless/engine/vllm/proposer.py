"""Drafts tokens inside vLLM: the class that vLLM loads by name as its speculative method ``custom_class``.

It runs in the process of every rank, between two iterations. Drafts come from a ``Drafter``, their lengths from
``DraftLengths``. vLLM's own table of lengths by batch size is not enforced for this method, so lengths are decided here. vLLM
tells the proposer neither names nor prompts of responses. It reads them from the model runner that it serves (``connect``).
What only the engine knows of a response comes along in its sampling parameters (``hint_of``).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import count
from typing import Any

import numpy as np

from rlhfless.engine.common.checked_drafter import CheckedDrafter
from rlhfless.engine.common.draft_lengths import DraftLengths
from rlhfless.engine.common.drafter import drafter_of
from solver.model.drafting import Drafting
from solver.model.latency import LatencyModel

CLASS = "rlhfless.engine.vllm.proposer.DraftProposer"
HINT = "drafts"  # in the sampling parameters' extra arguments


def hint_of(prompt_tokens: int, history: Sequence[np.ndarray]) -> dict[str, Any]:
    """Return what the sampling parameters of a response say for its drafts.

    Args:
        prompt_tokens: length of its prompt; what vLLM takes for the prompt may go on with tokens of the response.
        history: token ids of earlier responses of the prompt.
    """
    return {HINT: (prompt_tokens, [np.asarray(ids) for ids in history])}


class DraftProposer:
    """Proposes the drafted tokens of vLLM's next iteration; without ``draft_with`` none.

    Args:
        vllm_config: vLLM's configuration, whose ``num_speculative_tokens`` is the longest draft.
    """

    def __init__(self, vllm_config: Any) -> None:
        self._most = int(vllm_config.speculative_config.num_speculative_tokens)
        self._vocabulary = int(vllm_config.model_config.get_vocab_size())
        self._max_fed_tokens = int(vllm_config.scheduler_config.max_num_batched_tokens)
        self._runner: Any = None
        self._drafts: _Drafts | None = None

    def load_model(self, model: Any) -> None:
        """Do nothing: no model drafts."""

    def connect(self, runner: Any) -> None:
        """Serve this model runner. Its contexts are never too long for a draft, because drafts end at a response's limit."""
        self._runner = runner
        runner.effective_drafter_max_model_len = runner.max_model_len + self._most + 1

    def draft_with(self, drafting: Drafting | None, latency: LatencyModel | None) -> None:
        """Draft by these settings from now on, and forget all earlier responses; None: do not draft."""
        self._drafts = None
        if drafting is not None and latency is not None:
            self._drafts = _Drafts(drafting, latency, self._vocabulary, self._most, self._max_fed_tokens)

    @property
    def off(self) -> str | None:
        """Return why it drafts no more, as part of a sentence; None while nothing is wrong."""
        return None if self._drafts is None else self._drafts.off

    def propose(self, sampled_token_ids: list[list[int]], *_: Any, **__: Any) -> list[list[int]]:
        """Return the drafted tokens of every row of the batch, after an iteration that sampled these tokens."""
        if self._drafts is None:
            return [[] for _ in sampled_token_ids]
        runner = self._runner
        return self._drafts.next(runner.input_batch.req_ids[: len(sampled_token_ids)], sampled_token_ids, runner.requests)


class _Drafts:
    """The drafts of one step: drafter, lengths, and numbers of the responses by vLLM's names."""

    def __init__(self, drafting: Drafting, latency: LatencyModel, vocabulary: int, most: int, max_fed_tokens: int) -> None:
        self._drafter = CheckedDrafter(drafter_of(drafting), vocabulary)
        self._lengths = DraftLengths(drafting, latency)
        self._most, self._max_fed_tokens = most, max_fed_tokens
        self._numbers: dict[str, int] = {}
        self._next = count()
        self._drafted: dict[str, int] = {}  # tokens that the last call returned

    @property
    def off(self) -> str | None:
        """Return why no drafts come any more; None while they come."""
        return self._drafter.off

    def next(self, names: Sequence[str], sampled: Sequence[Sequence[int]], requests: Any) -> list[list[int]]:
        """Return the next drafts, by row."""
        if self.off is not None:
            return [[] for _ in sampled]
        for name in self._numbers.keys() - requests.keys():
            self._remove(name)
        running = [row for row, tokens in enumerate(sampled) if len(tokens) and self._goes_on(requests[names[row]], tokens)]
        for row in running:
            self._note(names[row], sampled[row], requests[names[row]])
        numbers = [self._numbers[names[row]] for row in running]
        states = [requests[names[row]] for row in running]
        room = [min(self._most, max(0, s.sampling_params.max_tokens - len(s.output_token_ids) - 1)) for s in states]
        contexts = [len(s.prompt_token_ids) + len(s.output_token_ids) for s in states]
        most_fed = len(running) + max(0, self._max_fed_tokens - len(running)) // 2  # the rest is for prompts
        lengths = self._lengths.next(numbers, room, contexts, max_fed_tokens=most_fed) if numbers else []
        self._lengths.ran()
        drafts: list[list[int]] = [[] for _ in sampled]
        for row, number, length, state in zip(running, numbers, lengths, states, strict=True):
            drafts[row] = _up_to(self._drafter.draft(number, length), state.sampling_params.stop_token_ids)
        self._drafted = {names[row]: len(drafts[row]) for row in running}
        return drafts

    def _goes_on(self, state: Any, tokens: Sequence[int]) -> bool:
        """Return whether a response goes on after these tokens; the last ones of a finished response need no draft."""
        params, generated = state.sampling_params, len(state.output_token_ids)
        if generated >= params.max_tokens:
            return False
        ends = () if generated < params.min_tokens else params.stop_token_ids
        return not any(token in ends for token in tokens)

    def _note(self, name: str, tokens: Sequence[int], state: Any) -> None:
        """Note a response's tokens, all of them where it is new."""
        if name in self._numbers:
            self._drafter.extend(self._numbers[name], tokens)
            self._lengths.observe([self._numbers[name]], [self._drafted.get(name, 0)], [len(tokens) - 1])
            return
        number = self._numbers[name] = next(self._next)
        prompt_tokens, history = (state.sampling_params.extra_args or {}).get(HINT, (len(state.prompt_token_ids), ()))
        context = list(state.prompt_token_ids)
        prompt, generated = context[:prompt_tokens], [*context[prompt_tokens:], *state.output_token_ids]
        self._drafter.start(number, None, prompt, history, generated)
        self._lengths.start(number, _key(prompt))

    def _remove(self, name: str) -> None:
        number = self._numbers.pop(name)
        self._drafter.remove(number)
        self._lengths.remove(number)


def _up_to(drafted: list[int], ends: Sequence[int]) -> list[int]:
    """Return a draft up to its first end of text, without it: no token follows one, so it need not be fed."""
    first = next((k for k, token in enumerate(drafted) if token in ends), len(drafted))
    return drafted[:first]


def _key(prompt: Sequence[int]) -> Hashable:
    return np.asarray(prompt, dtype=np.int64).tobytes()


def connect(worker: Any) -> None:
    """Connect the proposer of a rank with its model runner; vLLM calls it with the rank's worker."""
    runner = worker.model_runner
    if isinstance(getattr(runner, "drafter", None), DraftProposer):  # the last pipeline stage drafts
        runner.drafter.connect(runner)


def draft_with(worker: Any, drafting: Drafting | None, latency: LatencyModel | None) -> None:
    """See ``DraftProposer.draft_with``; vLLM calls it with the rank's worker."""
    drafter = getattr(worker.model_runner, "drafter", None)
    if isinstance(drafter, DraftProposer):
        drafter.draft_with(drafting, latency)


def drafts_off(worker: Any) -> str | None:
    """See ``DraftProposer.off``; vLLM calls it with the rank's worker."""
    drafter = getattr(worker.model_runner, "drafter", None)
    return drafter.off if isinstance(drafter, DraftProposer) else None
