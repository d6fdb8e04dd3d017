"""Drafts tokens from earlier responses: a suffix trie with links, as vLLM's ``suffix`` method and suffix decoding use it.

A draft is a hint: an engine verifies every drafted token, so tokens never depend on a draft. ``SuffixTrie`` counts every run
of at most ``depth`` tokens of the texts that were added to it. ``DraftState`` is the longest run in the trie that ends a
response's tokens so far. A draft follows the most frequent continuation from there. Where a run has none, the draft goes on
from its longest proper suffix that has one (back-off).

Adding or following a token costs a few dictionary look-ups. Nothing is trained, and no model is read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

ROOT = 0
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
        self._children: list[dict[int, int]] = [{}]
        self._count, self._best, self._link, self._depth = [0], [-1], [ROOT], [0]

    def __len__(self) -> int:
        """Number of runs that it holds."""
        return len(self._link)

    def extend(self, text: AddedText, tokens: Iterable[int]) -> None:
        """Add the next tokens of a text, such as those that a response decoded in its last pass; a new ``AddedText()`` begins
        one."""
        children, count, best, link, depth = self._children, self._count, self._best, self._link, self._depth
        end = text.end
        for token in tokens:
            node, deepest, longer = end, -1, -1  # from the longest run that ends the text to the empty one
            while True:
                child = children[node].get(token)
                if child is None and depth[node] < self.depth and len(link) < self.max_nodes:
                    child = len(link)
                    children[node][token] = child
                    children.append({})
                    count.append(0)
                    best.append(-1)
                    link.append(ROOT)
                    depth.append(depth[node] + 1)
                if child is not None:
                    count[child] += 1
                    favourite = best[node]
                    if favourite < 0 or count[child] > count[children[node][favourite]]:
                        best[node] = token
                    if longer >= 0:
                        link[longer] = child
                    longer = child
                    if deepest < 0:
                        deepest = child
                if node == ROOT:
                    break
                node = link[node]
            end = max(deepest, ROOT)
        text.end = end

    def follow(self, state: int, token: int) -> int:
        """Return the longest run that ends with the run of ``state`` and then ``token``; the root if there is none."""
        children, link = self._children, self._link
        while True:
            child = children[state].get(token)
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
        best, children, depth = self._best, self._children, self._depth
        drafted: list[int] = []
        while len(drafted) < most:
            state = self._continued(state)
            if depth[state] < min_match or not children[state]:
                break
            token = best[state]
            drafted.append(token)
            state = children[state][token]
        return drafted

    def _continued(self, state: int) -> int:
        """Return the longest suffix of a run that has a continuation."""
        while not self._children[state] and state != ROOT:
            state = self._link[state]
        return state


@dataclass
class AddedText:
    """A text that is being added to a trie: ``end`` is the longest run that ends it."""

    end: int = ROOT
