"""Drafters: where the tokens come from that a pass of an engine verifies.

``Drafter`` is the contract. ``SuffixDrafter`` drafts from earlier responses of the same prompt. Engines call drafters through
``checked_drafter.py``.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rlhfless.engine.common.suffix_drafter import AddedText, SuffixTrie
from solver.model.drafting import Drafting

MAX_NODES = 2_000_000  # runs of tokens that an actor's tries hold together, about 0.6 GB
TokenIds = Sequence[int] | NDArray[Any]


class Drafter(Protocol):
    """Interface of a drafter, which proposes tokens for the responses of one actor in speculative decoding.

    An engine calls ``start`` before it drafts for a response, ``extend`` after each pass, and ``remove`` when the response is
    complete or has left. Responses are indices into the step's workload.

    Example:
        >>> class Repeats:
        ...     '''Drafts the last token again and again.'''
        ...     def __init__(self):
        ...         self.last = {}
        ...     def start(self, response, prompt, prompt_ids, history, generated_ids):
        ...         self.last[response] = [*prompt_ids, *generated_ids][-1]
        ...     def extend(self, response, tokens):
        ...         self.last[response] = tokens[-1]
        ...     def draft(self, response, most):
        ...         return [self.last[response]] * most
        ...     def remove(self, response):
        ...         del self.last[response]
    """

    def start(
        self, response: int, prompt: int | None, prompt_ids: TokenIds, history: Sequence[TokenIds], generated_ids: TokenIds
    ) -> None:
        """Begin a response that waits for its first pass here.

        Args:
            prompt: index of its prompt in the step's workload; None when unknown.
            history: token ids of earlier responses of the prompt.
            generated_ids: its tokens so far: other actors may have decoded some.
        """
        ...

    def extend(self, response: int, tokens: Sequence[int]) -> None:
        """Add the tokens (at least one) that a pass committed."""
        ...

    def draft(self, response: int, most: int) -> Sequence[int]:
        """Return up to ``most`` token ids that may come next; fewer or none if there is no good guess."""
        ...

    def remove(self, response: int) -> None:
        """Forget a response that is complete or has left the actor."""
        ...


def drafter_of(drafting: Drafting) -> Drafter:
    """Return the drafter that the settings name; one of vLLM itself is no ``Drafter``."""
    drafter: Drafter = SuffixDrafter(drafting) if drafting.drafter == "suffix" else drafting.drafter
    return drafter


@dataclass(eq=False)
class _Source:
    """What the drafts of a prompt come from.

    Attributes:
        responses: number of those that use the trie. has_history: whether the trie has the prompt's history yet.
        new: tokens that are added to the trie before the next draft, with their texts.
    """

    trie: SuffixTrie
    responses: int = 0
    has_history: bool = False
    new: list[tuple[AddedText, TokenIds]] = field(default_factory=list)


@dataclass(eq=False)
class _Text:
    """A response: what its trie still lacks of it, and the end of its text in the trie once that is made."""

    key: Hashable
    history: Sequence[TokenIds]
    context: list[TokenIds]
    added: AddedText | None = None


class SuffixDrafter:
    """Drafts the most frequent continuation in earlier responses of the prompt, and in those that are decoded beside it.

    There is one suffix trie per prompt, made when its first draft is asked for and dropped with the prompt's last response.
    Without ``siblings`` there is one per response.

    Args:
        drafting: its ``min_match`` and ``siblings``; with ``history="none"`` the history of requests is ignored.
        max_nodes: runs of tokens that all tries hold at most; beyond it new runs are left out.

    Example:
        >>> from rlhfless.engine.common.drafter import SuffixDrafter
        >>> import rlhfless as rl
        >>> drafter = SuffixDrafter(rl.Drafting(min_match=1))
        >>> drafter.start(0, 0, [1, 2], [[5, 6, 7]], [])
        >>> drafter.extend(0, [5])
        >>> drafter.draft(0, 8)
        [6, 7]
    """

    def __init__(self, drafting: Drafting, max_nodes: int = MAX_NODES) -> None:
        self._min_match, self._siblings = drafting.min_match, drafting.siblings
        self._history, self._max_nodes, self._nodes = drafting.history != "none", max_nodes, 0
        self._sources: dict[Hashable, _Source] = {}
        self._texts: dict[int, _Text] = {}

    def __len__(self) -> int:
        """Number of runs of tokens that its tries hold."""
        return self._nodes

    def start(
        self, response: int, prompt: int | None, prompt_ids: TokenIds, history: Sequence[TokenIds], generated_ids: TokenIds
    ) -> None:
        """See ``Drafter``; costs next to nothing until a draft is asked for."""
        key: Hashable = ("response", response)
        if self._siblings:
            key = np.asarray(prompt_ids).tobytes() if prompt is None else prompt
        self._texts[response] = _Text(key, history if self._history else (), [prompt_ids, generated_ids])
        source = self._sources.get(key)
        if source is None:
            source = self._sources[key] = _Source(SuffixTrie(max_nodes=0))
            self._nodes += len(source.trie)
        source.responses += 1

    def extend(self, response: int, tokens: Sequence[int]) -> None:
        """See ``Drafter``."""
        text = self._texts[response]
        if text.added is None:
            text.context.append(tokens)
        else:
            self._sources[text.key].new.append((text.added, tokens))

    def draft(self, response: int, most: int) -> list[int]:
        """See ``Drafter``."""
        text = self._texts[response]
        source = self._sources[text.key]
        added = text.added if text.added is not None else self._made(text)
        for sibling, tokens in source.new:
            self._add(source.trie, sibling, tokens)
        source.new.clear()
        return source.trie.draft(added.end, most, self._min_match)

    def remove(self, response: int) -> None:
        """See ``Drafter``."""
        text = self._texts.pop(response)
        source = self._sources[text.key]
        source.responses -= 1
        if not source.responses:
            self._nodes -= len(source.trie)
            del self._sources[text.key]

    def _made(self, text: _Text) -> AddedText:
        """Add the response, and the history of its prompt unless it is there, to their trie."""
        source, added = self._sources[text.key], AddedText()
        if text.history and not source.has_history:
            source.has_history = True
            for earlier in text.history:
                self._add(source.trie, AddedText(), earlier)
        for tokens in text.context:
            self._add(source.trie, added, tokens)
        text.added, text.history, text.context = added, (), []
        return added

    def _add(self, trie: SuffixTrie, text: AddedText, tokens: TokenIds) -> None:
        before = len(trie)
        trie.max_nodes = before + self._max_nodes - self._nodes
        trie.extend(text, tokens.tolist() if isinstance(tokens, np.ndarray) else tokens)
        self._nodes += len(trie) - before
