"""Measures on a log with texts how many drafted tokens would have been accepted, without a model.

A draft that does not depend on the sampling noise is accepted with the model's own probability of the drafted token. The
logged token is a draw from that probability. So "the drafted token equals the logged one" is an unbiased measurement of
acceptance, for every temperature and filter that the log was sampled with.

Drafts come from a suffix trie per prompt (``rlhfless.engine.common.suffix_drafter``). Its sources are earlier responses to the
prompt, and what the responses of the group have decoded so far. Responses of a group are decoded in step with each other: each
commits its accepted tokens and one more per pass. That is the least that siblings can help; a response that starts later finds
more of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from rlhfless.engine.common.suffix_drafter import ROOT, AddedText, SuffixTrie
from rlhfless.errors import InputError
from solver.model.acceptance import Acceptance
from solver.model.errors import as_given

Encode = Callable[[str], Sequence[int]]
"""Returns the tokens of a text."""

MAX_DRAFT_TOKENS = 32
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


@dataclass(frozen=True, eq=False)
class DraftedResponses:
    """Responses that were decoded again on paper, with drafts from one source.

    Attributes:
        source: what drafts were made from. max_draft_tokens: longest draft.
        responses: one row per response: ``step, prompt_id, sample, tokens, passes, drafted_tokens, accepted_tokens``;
            ``passes + accepted_tokens == tokens``.
        accepted: (max_draft_tokens,) passes in which each position was accepted.
    """

    source: DraftSource
    max_draft_tokens: int
    responses: pd.DataFrame
    accepted: np.ndarray

    @property
    def tokens_per_pass(self) -> float:
        """Tokens per pass over all responses: accepted ones and one more."""
        passes = float(self.responses["passes"].sum())
        return float(self.responses["tokens"].sum()) / passes if passes else 1.0

    @property
    def acceptance(self) -> Acceptance:
        """Share of passes in which each position was accepted."""
        return Acceptance(self.accepted / max(float(self.responses["passes"].sum()), 1.0))

    @property
    def spread(self) -> float:
        """Standard deviation of the logarithm of tokens per pass between responses: how uneven acceptance is."""
        rows = self.responses[self.responses["passes"] > 0]
        return float(np.log(rows["tokens"] / rows["passes"]).std(ddof=0)) if len(rows) else 0.0

    @property
    def longest_speedup(self) -> float:
        """Tokens of the longest response over the most passes of any: by how much the last response ends earlier at most."""
        most = float(self.responses["passes"].max()) if len(self.responses) else 0.0
        return float(self.responses["tokens"].max()) / most if most else 1.0


def measure_drafts(
    rollouts: pd.DataFrame,
    encode: Encode,
    source: DraftSource = DraftSource(),
    max_draft_tokens: int = 8,
    *,
    steps: Iterable[int] | None = None,
    min_match: int = 1,
) -> DraftedResponses:
    """Decode the responses of a log again on paper, with drafts of up to ``max_draft_tokens`` tokens.

    Args:
        rollouts: with the column ``response`` of texts; ``prompt`` is used where it is there.
        encode: returns the tokens of a text. An end token of stopped responses is added to them.
        steps: count the responses of these steps only; earlier ones are their history. All steps when None.
        min_match: drafts follow matches of at least this many tokens.

    Raises:
        InputError: the log has no texts, or ``max_draft_tokens`` is not a whole number from 1 to 32.

    Example:
        >>> import pandas as pd
        >>> rows = pd.DataFrame({"step": [0, 1], "prompt_id": ["a", "a"], "sample": [0, 0], "response": ["abcabd", "abcabd"],
        ...                      "finish_reason": ["stop", "stop"]})
        >>> drafted = measure_drafts(rows, lambda text: text.encode(), max_draft_tokens=8, steps=[1])
        >>> drafted.responses[["tokens", "passes"]].values.tolist()
        [[7, 3]]
    """
    whole = isinstance(max_draft_tokens, int | np.integer) and not isinstance(max_draft_tokens, bool)
    if not whole or not 1 <= max_draft_tokens <= MAX_DRAFT_TOKENS:
        given = as_given(max_draft_tokens)
        raise InputError(f"max_draft_tokens is {given}; a whole number from 1 to {MAX_DRAFT_TOKENS} is needed")
    if "response" not in rollouts or not rollouts["response"].notna().any():
        raise InputError(
            "the log has no texts in a column response; name its column of responses, such as --map response=output; "
            "a table of lengths alone cannot be measured"
        )
    counted = set(rollouts["step"]) if steps is None else set(steps)
    accepted, rows = np.zeros(max_draft_tokens, dtype=np.int64), []
    for prompt_id, visits in rollouts[rollouts["response"].notna()].groupby("prompt_id", sort=False):
        earlier: list[list[list[int]]] = []  # tokens of each earlier visit's responses
        for step, visit in visits.sort_values(["step", "sample"]).groupby("step"):
            texts = [_tokens(row, encode) for row in visit.to_dict("records")]
            if step in counted:
                history = [text for old in {"last": earlier[-1:], "all": earlier, "none": []}[source.history] for text in old]
                prompt = visit["prompt"].iloc[0] if "prompt" in visit else None
                prompt_tokens = list(encode(prompt)) if isinstance(prompt, str) else []
                group = _Group(history, prompt_tokens, texts, source.siblings, min_match)
                group.decode(max_draft_tokens, accepted)
                rows += [
                    {"step": step, "prompt_id": prompt_id, "sample": sample, "tokens": len(text), "passes": group.passes[i],
                     "drafted_tokens": group.drafted[i], "accepted_tokens": len(text) - group.passes[i]}
                    for i, (sample, text) in enumerate(zip(visit["sample"], texts, strict=True))
                ]  # fmt: skip
            earlier.append(texts)
    columns = ["step", "prompt_id", "sample", "tokens", "passes", "drafted_tokens", "accepted_tokens"]
    return DraftedResponses(source, int(max_draft_tokens), pd.DataFrame(rows, columns=columns), accepted)


def _tokens(row: dict[str, Any], encode: Encode) -> list[int]:
    """Return the tokens of a response, with the end token if it stopped."""
    tokens = list(encode(row["response"]))
    return [*tokens, END] if row.get("finish_reason") == "stop" else tokens


class _Group:
    """The responses of one prompt in one step, while they are decoded again in step with each other."""

    def __init__(
        self, history: list[list[int]], prompt: list[int], texts: list[list[int]], siblings: bool, min_match: int
    ) -> None:
        self.texts, self.min_match = texts, min_match
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
        running = [i for i, text in enumerate(self.texts) if text]
        while running:
            committed = [self._verify(i, most, accepted) for i in running]
            for i, tokens in zip(running, committed, strict=True):
                self.tries[i].extend(self.added[i], tokens)
                for token in tokens:
                    self.state[i] = self.tries[i].follow(self.state[i], token)
                self.position[i] += len(tokens)
            running = [i for i in running if self.position[i] < len(self.texts[i])]

    def _verify(self, i: int, most: int, accepted: np.ndarray) -> list[int]:
        """Return the tokens that one pass commits: the draft while it is right, and one more."""
        rest = self.texts[i][self.position[i] : self.position[i] + most + 1]
        draft = self.tries[i].draft(self.state[i], most, self.min_match)
        right = 0
        while right < min(len(draft), len(rest) - 1) and draft[right] == rest[right]:
            right += 1
        accepted[:right] += 1
        self.passes[i] += 1
        self.drafted[i] += len(draft)
        return rest[: right + 1]
