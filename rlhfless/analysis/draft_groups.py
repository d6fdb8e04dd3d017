"""Decodes the responses of a log again on paper: the groups of one prompt and step, with a suffix trie for their drafts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from rlhfless.engine.common.suffix_drafter import ROOT, AddedText, SuffixTrie
from rlhfless.engine.simulated.accepted_runs import DraftedRuns
from rlhfless.errors import InputError
from solver.model.errors import as_given

Encode = Callable[[str], Sequence[int]]
"""Returns the tokens of a text."""

END = -1  # the end token, whatever number the tokenizer gives it


@dataclass(frozen=True)
class DraftSource:
    """What drafts are made from, besides the prompt and the response's own tokens.

    Attributes:
        history: earlier responses to the prompt: of its ``last`` visit, of ``all`` visits, or ``none``.
        siblings: what the other responses of the group have decoded so far.
    """

    history: str = "last"
    siblings: bool = True

    def __post_init__(self) -> None:
        if self.history not in ("last", "all", "none"):
            raise InputError(f"history is {as_given(self.history)}; last, all or none is needed")

    @property
    def name(self) -> str:
        """Its name in tables."""
        history = {"last": ["last visit"], "all": ["all visits"], "none": []}[self.history]
        return " + ".join([*history, *(["siblings"] if self.siblings else [])]) or "own tokens"


SOURCES = (DraftSource("none", False), DraftSource("none", True), DraftSource("last", False), DraftSource("last", True))


def check_texts(rollouts: pd.DataFrame) -> None:
    """Refuse a log without texts.

    Raises:
        InputError: it has no column ``response``, or no text in it.
    """
    if "response" not in rollouts or not rollouts["response"].map(lambda text: isinstance(text, str)).any():
        raise InputError(
            "the log has no texts in a column response; name its column of responses, such as --map response=output; "
            "a table of lengths alone cannot be measured"
        )


def draft_groups(
    rollouts: pd.DataFrame, encode: Encode, source: DraftSource, steps: Iterable[int] | None = None, min_match: int = 1
) -> Iterator[DraftGroup]:
    """Return the groups of a log with texts, prompt by prompt in order of the steps, each with its earlier responses.

    Args:
        rollouts: with the column ``response`` of texts; ``prompt`` is used where it is there.
        encode: returns the tokens of a text. An end token of stopped responses is added to them.
        steps: groups of these steps only; earlier ones are their history. All steps when None.
        min_match: drafts follow matches of at least this many tokens.

    Raises:
        InputError: the log has no texts.
    """
    check_texts(rollouts)
    counted = set(rollouts["step"]) if steps is None else set(steps)
    with_text = rollouts["response"].map(lambda text: isinstance(text, str))  # some logs have messages there
    for prompt_id, visits in rollouts[with_text].groupby("prompt_id", sort=False):
        earlier: list[list[list[int]]] = []  # tokens of each earlier visit's responses
        for step, visit in visits.sort_values(["step", "sample"]).groupby("step"):
            texts = [_tokens(row, encode) for row in visit.to_dict("records")]
            if step in counted:
                history = [text for old in {"last": earlier[-1:], "all": earlier, "none": []}[source.history] for text in old]
                prompt = visit["prompt"].iloc[0] if "prompt" in visit else None
                prompt_tokens = list(encode(prompt)) if isinstance(prompt, str) else []
                name = GroupName(int(step), prompt_id, visit["sample"].tolist())
                yield DraftGroup(name, texts, history, prompt_tokens, source.siblings, min_match)
            earlier.append(texts)


def _tokens(row: dict[str, Any], encode: Encode) -> list[int]:
    """Return the tokens of a response, with the end token if it stopped."""
    tokens = list(encode(row["response"]))
    return [*tokens, END] if row.get("finish_reason") == "stop" else tokens


@dataclass(frozen=True)
class GroupName:
    """Which responses a group has: those of ``samples``, of one prompt in one step."""

    step: int
    prompt_id: Any
    samples: Sequence[int]


class DraftGroup:
    """The responses of one prompt in one step, while they are decoded again in step with each other.

    Attributes:
        texts: tokens of each response. passes, drafted: of each, so far.

    Args:
        history: tokens of earlier responses to the prompt. siblings: whether the others' tokens are a source, too.
    """

    def __init__(
        self,
        name: GroupName,
        texts: list[list[int]],
        history: list[list[int]],
        prompt: list[int],
        siblings: bool,
        min_match: int,
    ) -> None:
        self.name, self.texts, self.min_match = name, texts, min_match
        self.passes, self.drafted, self.position = [0] * len(texts), [0] * len(texts), [0] * len(texts)
        self.tries: list[SuffixTrie] = []
        self.added: list[AddedText] = []
        self.state: list[int] = []
        for _ in texts:
            if not self.tries or not siblings:
                trie, text, state = SuffixTrie(), AddedText(), ROOT
                for earlier in history:
                    trie.extend(AddedText(), earlier)
                trie.extend(text, prompt)
                for token in prompt:
                    state = trie.follow(state, token)
            self.tries.append(trie)
            self.added.append(AddedText(text.end))
            self.state.append(state)

    def decode(self, most: int, accepted: np.ndarray) -> None:
        """Run passes until every response is complete; add to ``accepted``, by position."""
        for running in self._rounds():
            committed = [self._verified(i, most) for i in running]
            for i, (drafted, right) in zip(running, committed, strict=True):
                accepted[:right] += 1
                self.passes[i] += 1
                self.drafted[i] += drafted
                self._commit(i, right + 1)

    def runs(self, most: int) -> list[DraftedRuns]:
        """Return what drafts of up to ``most`` tokens offer and accept at every position; one token is decoded at a time."""
        runs: list[list[tuple[int, int]]] = [[] for _ in self.texts]
        for running in self._rounds():
            for i in running:
                runs[i].append(self._verified(i, most))
            for i in running:
                self._commit(i, 1)
        return [DraftedRuns(*np.array(run, dtype=np.int64).reshape(-1, 2).T) for run in runs]

    def _rounds(self) -> Iterator[list[int]]:
        """Return the responses that lack tokens, as long as there are any."""
        while running := [i for i, text in enumerate(self.texts) if self.position[i] < len(text)]:
            yield running

    def _verified(self, i: int, most: int) -> tuple[int, int]:
        """Return the drafted tokens of a response's next pass, and how many of them are right."""
        rest = self.texts[i][self.position[i] : self.position[i] + most + 1]
        draft = self.tries[i].draft(self.state[i], most, self.min_match)
        right = 0
        while right < min(len(draft), len(rest) - 1) and draft[right] == rest[right]:
            right += 1
        return len(draft), right

    def _commit(self, i: int, count: int) -> None:
        """Decode the next tokens of a response."""
        tokens = self.texts[i][self.position[i] : self.position[i] + count]
        self.tries[i].extend(self.added[i], tokens)
        for token in tokens:
            self.state[i] = self.tries[i].follow(self.state[i], token)
        self.position[i] += count
