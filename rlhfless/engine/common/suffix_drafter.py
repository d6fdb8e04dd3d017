"""Drafts tokens from earlier responses: a suffix trie with links, as vLLM's ``suffix`` method and suffix decoding use it.

A draft is a hint: an engine verifies every drafted token, so tokens never depend on a draft. ``SuffixTrie`` counts every run
of at most ``depth`` tokens of the texts that were added to it. A state is the longest run in the trie that ends a response's
tokens so far. A draft follows the most frequent continuation from there. Where a run has none, the draft goes on
from its longest proper suffix that has one (back-off).

Adding or following a token costs a few dictionary look-ups. Nothing is trained, and no model is read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

ROOT = 0
SPAN = 1 << 32  # more than the tokens of any vocabulary
DEPTH = 12  # longest run of tokens, in tokens
MAX_NODES = 2_000_000  # about 0.6 GB; runs beyond it are not added


class SuffixTrie:
    """Counts the runs of at most ``depth`` tokens in the texts that were added.

    Args:
        depth: longest run, in tokens. max_nodes: runs that it holds at most; further ones are left out.

    Example:
        >>> trie = SuffixTrie()
        >>> trie.extend(AddedText(), [5, 6, 7, 8])  # an earlier response
        >>> state = trie.follow(trie.follow(ROOT, 5), 6)
        >>> trie.draft(state, 2)
        [7, 8]
    """

    def __init__(self, depth: int = DEPTH, max_nodes: int = MAX_NODES) -> None:
        self.depth, self.max_nodes = depth, max_nodes
        self._child: dict[int, int] = {}  # by run and next token; a single dictionary is filled faster than one per run
        # Of every run: how often it was added, its most frequent longer run (0: it has none), its longest proper suffix, its
        # tokens, and the last of them. A run's suffixes are in the trie, too.
        self._count, self._best, self._link, self._depth, self._last = [0], [ROOT], [ROOT], [0], [-1]

    def __len__(self) -> int:
        """Number of runs that it holds."""
        return len(self._link)

    def extend(self, text: AddedText, tokens: Iterable[int]) -> None:
        """Add the next tokens of a text, such as those that a response decoded in its last pass; a new ``AddedText()`` begins
        one."""
        children, count, best, link, depth = self._child, self._count, self._best, self._link, self._depth
        last, existing, end = self._last, self._child.get, text.end
        for token in tokens:
            node = end if depth[end] < self.depth else link[end]
            key = node * SPAN + token
            child, new = existing(key), len(link)
            end = new
            if child is None and new + depth[node] >= self.max_nodes:
                while child is None:  # nothing is added
                    node = link[node]
                    child = existing(node * SPAN + token) if node else existing(token, ROOT)
            while child is None:  # runs that are new are the longest ones
                children[key] = new
                count.append(1)
                best.append(ROOT)
                depth.append(depth[node] + 1)
                last.append(token)
                if not best[node]:
                    best[node] = new
                new += 1
                if node == ROOT:
                    child = ROOT
                else:
                    node = link[node]
                    key = node * SPAN + token
                    child = existing(key)
                link.append(new if child is None else child)
            if end == new:
                end = child
            while child:
                often = count[child] = count[child] + 1
                favourite = best[node]
                if favourite != child and often > count[favourite]:
                    best[node] = child
                node, child = link[node], link[child]
        text.end = end

    def follow(self, state: int, token: int) -> int:
        """Return the longest run that ends with the run of ``state`` and then ``token``; the root if there is none."""
        existing, link = self._child.get, self._link
        while True:
            child = existing(state * SPAN + token)
            if child is not None:
                return child
            if state == ROOT:
                return ROOT
            state = link[state]

    def draft(self, state: int, most: int, min_match: int = 1) -> list[int]:
        """Return up to ``most`` tokens, each the one that most often came next; it ends where matches are too short.

        Args:
            min_match: shortest run, in tokens, that a token is drafted after.
        """
        best, link, depth, last = self._best, self._link, self._depth, self._last
        drafted: list[int] = []
        while len(drafted) < most:
            while not best[state] and state != ROOT:  # the longest suffix that has a continuation
                state = link[state]
            if depth[state] < min_match or not best[state]:
                break
            state = best[state]
            drafted.append(last[state])
        return drafted


@dataclass
class AddedText:
    """A text that is being added to a trie: ``end`` is the longest run that ends it."""

    end: int = ROOT
