"""Drafters: the suffix drafter against its trie, its memory, and what happens when a drafter breaks its contract."""

import numpy as np
import pytest

from rlhfless.engine.common.checked_drafter import CheckedDrafter, DraftsOffWarning
from rlhfless.engine.common.drafter import SuffixDrafter, drafter_of
from rlhfless.engine.common.suffix_drafter import ROOT, AddedText, SuffixTrie
from solver.model.drafting import Drafting

OLD = np.array([5, 6, 7, 8, 9])


def test_drafts_are_those_of_one_trie_per_prompt():
    drafter = SuffixDrafter(Drafting(min_match=1))
    drafter.start(0, 3, np.array([1, 2]), [OLD], np.array([5]))
    drafter.start(1, 3, np.array([1, 2]), [OLD], np.empty(0, np.int64))
    drafter.extend(0, [6, 7])
    assert drafter.draft(0, 8) == [8, 9]
    assert drafter.draft(1, 4) == [5, 6, 7, 8]  # its sibling began with 5 as well
    drafter.extend(1, [11, 12])
    assert drafter.draft(1, 8) == []
    trie, added = SuffixTrie(), AddedText()
    trie.extend(AddedText(), OLD.tolist())
    trie.extend(added, [1, 2, 5, 6, 7])
    trie.extend(AddedText(), [1, 2, 11, 12])
    assert len(drafter) == len(trie)
    drafter.remove(0)
    assert len(drafter) == len(trie)  # its sibling still needs them
    drafter.remove(1)
    assert len(drafter) == 0


def test_the_trie_follows_the_same_state_as_a_text_that_is_only_read():
    drafter, trie = SuffixDrafter(Drafting(min_match=1, siblings=False)), SuffixTrie()
    drafter.start(0, None, [1, 2], [[1, 2, 3, 4, 1, 2, 3, 5], [3, 4]], [1])
    for text in ([1, 2, 3, 4, 1, 2, 3, 5], [3, 4]):
        trie.extend(AddedText(), text)
    trie.extend(AddedText(), [1, 2, 1, 2, 3])
    drafter.extend(0, [2, 3])
    state = ROOT
    for token in (1, 2, 1, 2, 3):
        state = trie.follow(state, token)
    assert drafter.draft(0, 6) == trie.draft(state, 6)


@pytest.mark.parametrize(
    ("drafting", "drafted"),
    [(Drafting(), [8, 9]), (Drafting(siblings=False), [8, 9]), (Drafting(history="none"), []), (Drafting(min_match=4), [])],
)
def test_settings_choose_the_sources(drafting, drafted):
    drafter = drafter_of(drafting)
    drafter.start(0, 0, [1], [OLD], [5, 6])
    drafter.extend(0, [7])
    assert drafter.draft(0, 8) == drafted


@pytest.mark.parametrize(("siblings", "drafted"), [(True, [22, 23]), (False, [])])
def test_siblings_are_a_source_if_asked_for(siblings, drafted):
    drafter = SuffixDrafter(Drafting(siblings=siblings))
    drafter.start(0, None, [1, 2], (), [])
    drafter.start(1, None, [1, 2], (), [])
    for response, tokens in ((0, [20, 21, 22, 23]), (1, [20, 21])):
        drafter.draft(response, 1)
        drafter.extend(response, tokens)
    assert drafter.draft(1, 8) == drafted


def test_memory_is_capped_over_all_prompts():
    drafter, rng = SuffixDrafter(Drafting(), max_nodes=500), np.random.default_rng(0)
    for response in range(20):
        drafter.start(response, response, [1], [rng.integers(0, 50, 100)], [])
        drafter.draft(response, 4)
        drafter.extend(response, rng.integers(0, 50, 10).tolist())
        assert len(drafter) <= 500 + 20  # the empty run of each prompt
    for response in range(20):
        drafter.remove(response)
    assert len(drafter) == 0


class Scripted:
    """Returns or raises what it is given, and counts calls."""

    def __init__(self, drafts):
        self.drafts, self.calls = drafts, []

    def start(self, response, prompt, prompt_ids, history, generated_ids):
        self.calls.append("start")

    def extend(self, response, tokens):
        self.calls.append("extend")

    def draft(self, response, most):
        self.calls.append("draft")
        if isinstance(self.drafts, Exception):
            raise self.drafts
        return self.drafts

    def remove(self, response):
        self.calls.append("remove")


@pytest.mark.parametrize(
    ("drafts", "why"),
    [
        ([1, 2, 3, 4], "drafted more than the 3 tokens for response 7 that it was asked for"),
        ([1, 2.0], "drafted 2.0 for response 7; token ids are whole numbers from 0 to 31"),
        ([True], "drafted True for response 7; token ids are whole numbers from 0 to 31"),
        ([32], "drafted 32 for response 7; token ids are whole numbers from 0 to 31"),
        (np.array([3, -1]), "drafted -1 for response 7; token ids are whole numbers from 0 to 31"),
        ("no", "drafted 'n' for response 7; token ids are whole numbers from 0 to 31"),
        (KeyError("x"), "failed in draft() for response 7 (KeyError: 'x')"),
        (None, "failed in draft() for response 7 (TypeError: 'NoneType' object is not iterable)"),
    ],
)
def test_a_drafter_that_breaks_its_contract_is_named_once_and_switched_off(drafts, why):
    scripted = Scripted(drafts)
    drafter = CheckedDrafter(scripted, 32)
    drafter.start(7, 0, [1], (), [])
    with pytest.warns(DraftsOffWarning) as warned:
        assert drafter.draft(7, 3) == []
    assert [str(w.message) for w in warned] == [f"drafts are off for the rest of the step: {drafter.off}"]
    assert drafter.off == f"the drafter Scripted {why}"
    assert drafter.draft(7, 3) == []
    drafter.extend(7, [1])
    drafter.remove(7)
    assert scripted.calls == ["start", "draft"]


def test_a_good_draft_passes_as_plain_numbers():
    drafted = CheckedDrafter(Scripted(np.array([3, 31], np.int32)), 32).draft(7, 2)
    assert drafted == [3, 31]
    assert {type(token) for token in drafted} == {int}
    scripted = Scripted([])
    assert CheckedDrafter(scripted, 32).draft(7, 0) == []
    assert scripted.calls == []
