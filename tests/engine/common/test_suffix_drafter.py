"""The suffix trie against a dictionary of n-grams: the same longest matches, the same most frequent continuations."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st

from rlhfless.engine.common.suffix_drafter import ROOT, AddedText, SuffixTrie

DEPTH = 4
texts = st.lists(st.lists(st.integers(0, 2), max_size=14), min_size=1, max_size=4)


class NGrams:
    """Counts what follows every run of fewer than DEPTH tokens, by looking at all of them."""

    def __init__(self) -> None:
        self.counts: dict[tuple[int, ...], dict[int, int]] = defaultdict(dict)
        self.best: dict[tuple[int, ...], int] = {}

    def add(self, text: list[int]) -> None:
        for end, token in enumerate(text):
            for start in range(max(0, end - DEPTH + 1), end + 1):
                run = tuple(text[start:end])
                counts = self.counts[run]
                counts[token] = counts.get(token, 0) + 1
                if run not in self.best or counts[token] > counts[self.best[run]]:
                    self.best[run] = token

    def draft(self, context: list[int], most: int, min_match: int) -> list[int]:
        run, drafted = list(context), []
        while len(drafted) < most:
            suffixes = (tuple(run[len(run) - n :]) for n in range(min(len(run), DEPTH - 1), -1, -1))
            longest = next((suffix for suffix in suffixes if suffix in self.best), None)
            if longest is None or len(longest) < min_match:
                break
            drafted.append(self.best[longest])
            run = [*longest, drafted[-1]]
        return drafted


@given(texts, st.lists(st.integers(0, 3), max_size=8), st.integers(0, 6), st.integers(0, 2))
@settings(max_examples=300, deadline=None)
def test_drafts_are_those_of_a_dictionary_of_n_grams(
    added: list[list[int]], context: list[int], most: int, min_match: int
) -> None:
    trie, slow = SuffixTrie(DEPTH), NGrams()
    for text in added:
        trie.extend(AddedText(), text)
        slow.add(text)
    state = ROOT
    for token in context:
        state = trie.follow(state, token)
    assert trie.draft(state, most, min_match) == slow.draft(context, most, min_match)


@given(texts)
@settings(max_examples=100, deadline=None)
def test_a_text_may_be_added_in_parts(added: list[list[int]]) -> None:
    whole, parts = SuffixTrie(DEPTH), SuffixTrie(DEPTH)
    for text in added:
        whole.extend(AddedText(), text)
        open_text = AddedText()
        for token in text:
            parts.extend(open_text, [token])
    assert len(whole) == len(parts)
    for context in added:
        for trie in (whole, parts):
            state = ROOT
            for token in context:
                state = trie.follow(state, token)
        assert whole.draft(state, 5) == parts.draft(state, 5)


def test_an_empty_trie_drafts_nothing() -> None:
    trie = SuffixTrie()
    assert trie.draft(trie.follow(ROOT, 7), 4) == []


def test_a_full_trie_keeps_what_it_has() -> None:
    trie = SuffixTrie(max_nodes=5)
    trie.extend(AddedText(), range(100))
    assert len(trie) == 5
    assert trie.draft(trie.follow(ROOT, 0), 1) == [1]
