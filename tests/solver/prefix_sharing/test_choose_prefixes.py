"""The choice of prefixes: the tree holds what prompts share, no brute force finds a better choice, nothing beats the bound."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from benchmark_scripts import prefixes
from error_messages import refused
from hypothesis import given, settings
from hypothesis import strategies as st

import solver
from solver.prefix_sharing.choose_prefixes import PrefixCosts, choose_prefixes
from solver.prefix_sharing.prefix_tree import PrefixTree

PROMPTS = st.lists(st.lists(st.integers(0, 2), max_size=5), min_size=1, max_size=6)  # few tokens: much is shared
FREE = PrefixCosts(1.0, prefill_actor_per_token_s=1.0)  # a token takes a second, transfers take nothing


@st.composite
def problems(draw):
    """A tree, what each of up to three actors computes, and costs with or without transfers and fixed costs."""
    prompts = draw(PROMPTS)
    actors = draw(st.integers(1, 3))
    row = st.lists(st.integers(0, 3), min_size=len(prompts), max_size=len(prompts))
    counts = draw(st.lists(row, min_size=actors, max_size=actors))
    costs = PrefixCosts(
        draw(st.sampled_from([1.0, 2.0])),
        draw(st.sampled_from([0.0, 0.0, 1.5])),
        draw(st.sampled_from([0.0, 0.25, 1.5])),
        draw(st.sampled_from([0.0, 2.0])),
        draw(st.sampled_from([1.0, 0.0])),
    )
    return prompts, counts, costs, draw(st.sampled_from([None, 0, 2, 4, 7]))


def saved_by_hand(prompts, counts, costs, tokens, cached):
    """Net seconds when the ``tokens`` (prefixes as tuples) are computed once and actor j receives ``cached[j]``."""
    c, t, b = (float(x) for x in (costs.prefill_per_token_s, costs.transfer_per_token_s, costs.transfer_base_s))
    net = -costs.prefill_actor_per_token_s * len(tokens) - costs.prefill_actor_base_s * bool(tokens)
    for row, received in zip(counts, cached, strict=True):
        net -= t * len(received) + b * bool(received)
        net += c * sum(k * sum(tuple(p[: n + 1]) in received for n in range(len(p))) for p, k in zip(prompts, row, strict=True))
    return net


def best_by_hand(prompts, counts, costs, capacity):
    """The most that any choice saves, all choices tried."""
    every = sorted({tuple(p[: n + 1]) for p in prompts for n in range(len(p))})
    room = len(every) if capacity is None else capacity
    best = 0.0
    for chosen in itertools.product([False, True], repeat=len(every)):
        tokens = {v for v, yes in zip(every, chosen, strict=True) if yes}
        if len(tokens) > room or any(len(v) > 1 and v[:-1] not in tokens for v in tokens):
            continue
        net = -costs.prefill_actor_per_token_s * len(tokens) - costs.prefill_actor_base_s * bool(tokens)
        for row in counts:
            gain = 0.0
            for v in tokens:
                k = sum(n for p, n in zip(prompts, row, strict=True) if tuple(p[: len(v)]) == v)
                gain += max(0.0, float(costs.prefill_per_token_s) * k - float(costs.transfer_per_token_s))
            net += max(0.0, gain - float(costs.transfer_base_s))
        best = max(best, net)
    return best


# --- the tree ---------------------------------------------------------------------------------------------------------------


@given(PROMPTS)
@settings(max_examples=40, deadline=None)
def test_the_tree_holds_every_prefix_once(prompts):
    tree = PrefixTree.of_token_ids(prompts)
    assert tree.prompt_tokens.tolist() == [len(p) for p in prompts]
    assert tree.tokens == len({tuple(p[: n + 1]) for p in prompts for n in range(len(p))})
    assert len(tree) <= 2 * len(prompts) + 1
    assert (tree.edge_tokens[1:] > 0).all()
    assert (tree.parent[1:] < np.arange(1, len(tree))).all()
    for a, b in itertools.combinations(range(len(prompts)), 2):
        union = {tuple(prompts[i][: n + 1]) for i in (a, b) for n in range(len(prompts[i]))}
        assert tree.covered([a, b], tree.prompt_tokens[[a, b]]).sum() == len(union)
    counts = tree.below(np.ones(len(prompts)))
    assert counts[0] == len(prompts)


@given(PROMPTS, st.randoms())
@settings(max_examples=40, deadline=None)
def test_covered_tokens_are_the_distinct_prefixes(prompts, random):
    tree = PrefixTree.of_token_ids(prompts)
    some = random.sample(range(len(prompts)), random.randint(0, len(prompts)))
    tokens = [random.randint(0, len(prompts[i])) for i in some]
    covered = tree.covered(some, tokens)
    by_hand = {tuple(prompts[i][:n]) for i, most in zip(some, tokens, strict=True) for n in range(1, most + 1)}
    assert covered.sum() == len(by_hand)
    assert (covered <= tree.edge_tokens).all()
    whole = tree.covered(some, [len(prompts[i]) for i in some])
    assert whole.sum() == len({tuple(prompts[i][:n]) for i in some for n in range(1, len(prompts[i]) + 1)})
    assert ((whole == tree.edge_tokens) | (whole == 0)).all()


def test_two_prompts_that_share_a_token():
    tree = PrefixTree.of_token_ids([[7, 1], [7, 2]])
    assert tree.tokens == 3
    assert repr(tree) == "PrefixTree(2 prompts of 4 tokens in 4 nodes of 3 tokens)"


def test_ids_are_ordered_as_numbers_not_as_bytes():
    tree = PrefixTree.of_token_ids([[256, 1], [255, 1], [1, 2, 3], [1, 2]])
    assert tree.node_of.tolist() == [4, 3, 2, 1]


def test_a_tree_of_lengths_shares_nothing():
    tree = PrefixTree.of_lengths([3, 0, 2, 3])
    assert (tree.tokens, tree.prompt_tokens.tolist()) == (8, [3, 0, 2, 3])


@pytest.mark.parametrize(
    ("ids", "sentence"),
    [
        ([], ()),
        ([[1, 2], [0.5]], ("token_ids", "64")),
        ([[1], [-3]], ("token_ids",)),
        ([[1], [1 << 32]], ("token_ids", "4294967296")),
        ([[[1]]], ("token_ids",)),
    ],
)
def test_what_is_no_prompt_is_refused(ids, sentence):
    with refused(solver.PlanningError, *sentence):
        PrefixTree.of_token_ids(ids)


# --- the choice -------------------------------------------------------------------------------------------------------------


@given(problems())
@settings(max_examples=40, deadline=None)
def test_any_prefix_is_chosen_as_well_as_by_trying_all(problem):
    prompts, counts, costs, capacity = problem
    if len({tuple(p[: n + 1]) for p in prompts for n in range(len(p))}) > 11:
        prompts, counts = prompts[:2], [row[:2] for row in counts]
    choice = choose_prefixes(PrefixTree.of_token_ids(prompts), counts, costs, capacity_tokens=capacity)
    best = best_by_hand(prompts, counts, costs, capacity)
    assert choice.net_s <= best + 1e-9 <= choice.bound_s + 2e-9
    if not costs.transfer_base_s:
        assert choice.net_s == pytest.approx(best)
    if not costs.transfer_base_s and not costs.prefill_actor_base_s:
        assert choice.net_s == pytest.approx(choice.bound_s)


def whole_prompts(choice):
    """Prompts of which an actor receives every token."""
    return np.flatnonzero(
        ((choice.prefix_tokens == choice.tree.prompt_tokens) & (choice.prefix_tokens > 0)).any(axis=0)
    ).tolist()


@given(problems())
@settings(max_examples=40, deadline=None)
def test_a_choice_keeps_its_promises(problem):
    prompts, counts, costs, capacity = problem
    tree = PrefixTree.of_token_ids(prompts)
    choice = choose_prefixes(tree, counts, costs, capacity_tokens=capacity)
    limit = tree.tokens if capacity is None else capacity
    assert 0 <= choice.computed_tokens <= limit
    assert (
        choice.tokens_after
        <= choice.tokens_before
        == sum(k * len(p) for row in counts for p, k in zip(prompts, row, strict=True))
    )
    assert -1e-9 <= choice.net_s <= choice.bound_s + 1e-9
    inside = choice.node_tokens > 0
    whole_edge = choice.node_tokens == tree.edge_tokens
    assert all(whole_edge[tree.parent[v]] for v in np.flatnonzero(inside) if v)  # closed: all tokens before it are there
    covered = tree.down(choice.node_tokens)[tree.node_of].astype(int)  # of each prompt, computed once
    given, used = choice.prefix_tokens, np.array(counts)
    assert not given[used == 0].any()
    own = int((used * (tree.prompt_tokens - given)).sum())  # what actors compute when they receive that
    assert own + choice.computed_tokens == choice.tokens_after
    for row, received_tokens in zip(given, choice.received_tokens, strict=True):
        assert tree.covered(np.arange(len(prompts)), row).sum() == received_tokens
    assert (tree.covered(np.arange(len(prompts)), given.max(axis=0)) == choice.node_tokens).all()
    received = [{tuple(prompts[i][: n + 1]) for i in range(len(prompts)) for n in range(covered[i])}] * len(counts)
    if not costs.transfer_base_s and not costs.transfer_per_token_s:
        useful = [{v for v in r if any(k and tuple(p[: len(v)]) == v for p, k in zip(prompts, row, strict=True))}
                  for r, row in zip(received, counts, strict=True)]  # fmt: skip
        assert choice.net_s == pytest.approx(saved_by_hand(prompts, counts, costs, received[0], useful))


@given(problems(), st.randoms())
@settings(max_examples=40, deadline=None)
def test_the_order_of_the_prompts_does_not_matter(problem, random):
    prompts, counts, costs, capacity = problem
    order = random.sample(range(len(prompts)), len(prompts))
    choice, other = (
        choose_prefixes(
            PrefixTree.of_token_ids([prompts[i] for i in o]), np.array(counts)[:, o], costs, capacity_tokens=capacity
        )
        for o in (list(range(len(prompts))), order)
    )  # fmt: skip
    assert other.net_s == pytest.approx(choice.net_s)
    assert (other.tokens_before, other.computed_tokens) == (choice.tokens_before, choice.computed_tokens)
    assert sorted(order[i] for i in whole_prompts(other)) == whole_prompts(choice)


@given(problems())
@settings(max_examples=40, deadline=None)
def test_more_capacity_never_saves_less(problem):
    prompts, counts, costs, _ = problem
    costs = replace(costs, transfer_base_s=0.0, transfer_per_token_s=0.0)
    tree = PrefixTree.of_token_ids(prompts)
    nets = [choose_prefixes(tree, counts, costs, capacity_tokens=n).net_s for n in [*range(tree.tokens + 1), None]]
    assert all(a <= b + 1e-9 for a, b in itertools.pairwise(nets))


def test_one_prefill_per_prompt_instead_of_three():
    """66 % fewer prefill tokens (RLHFless, arXiv 2602.22718): three responses per prompt, each computed by itself before."""
    choice = choose_prefixes(PrefixTree.of_lengths([100] * 8), [[3] * 8], FREE)
    assert 1 - choice.tokens_after / choice.tokens_before == pytest.approx(2 / 3)
    assert whole_prompts(choice) == list(range(8))
    assert "2,400 prefill tokens before, 800 after (66.7% fewer)" in repr(choice)


def test_where_nothing_is_said_the_prefill_actor_is_as_fast_as_the_slowest_actor():
    tree = PrefixTree.of_lengths([10, 10])
    assert PrefixCosts(2.0).prefill_actor_per_token_s == 2.0
    unsaid, said = (choose_prefixes(tree, [[2, 2], [1, 1]], PrefixCosts([1.0, 3.0], *more)) for more in ((), (0, 0, 0, 3.0)))
    assert unsaid.net_s == said.net_s == 20 * (2 * 1 + 3 - 3)
    assert choose_prefixes(tree, [[1, 1]], PrefixCosts(1.0)).computed_tokens == 0, "nothing is gained where nothing is shared"


def test_under_a_capacity_the_most_shared_tokens_are_chosen():
    ids = [[7, 1, 1, 1], [7, 1, 1, 1], [7, 2, 2, 2], [7, 3, 3, 3]]
    tree = PrefixTree.of_token_ids(ids)
    trunk, branch, everything = (choose_prefixes(tree, [[1] * 4], FREE, capacity_tokens=n) for n in (1, 4, None))
    assert (trunk.computed_tokens, trunk.net_s, trunk.bound_s) == (1, 3, 3)
    assert (branch.computed_tokens, branch.net_s, branch.bound_s) == (4, 6, 6)
    assert (everything.computed_tokens, everything.net_s) == (4, 6), "tokens of one prompt save nothing"


@pytest.mark.parametrize(("batch", "tokens_once", "tokens_after", "saved_s"), [(1, 1, 13, 3), (3, 10, 10, 6), (0, 0, 16, 0)])
def test_the_papers_rule_has_one_length_for_all_prompts(
    batch: int, tokens_once: int, tokens_after: int, saved_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With room for one prefix it stops where the prompts part; with room for three, it computes all of the unshared, too."""
    ids = [[7, 1, 1, 1], [7, 1, 1, 1], [7, 2, 2, 2], [7, 3, 3, 3]]
    monkeypatch.setattr(prefixes, "BATCH", batch)
    rule = prefixes.fixed_length(ids, PrefixTree.of_token_ids(ids), np.ones((1, 4)), FREE)
    assert rule == {"tokens_before": 16, "tokens_after": tokens_after, "computed_once": tokens_once, "net_s": saved_s}


def test_the_papers_rule_takes_a_shorter_prompt_whole_and_pays_for_transfers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two prefixes of up to three tokens are computed once; each actor receives the one that it has."""
    ids = [[1, 2], [3, 4, 5, 6], [3, 4, 5, 7]]
    monkeypatch.setattr(prefixes, "BATCH", 2)
    costs = PrefixCosts(1.0, 0.5, 0.25, 2.0, 1.0)
    rule = prefixes.fixed_length(ids, PrefixTree.of_token_ids(ids), np.array([[2, 0, 0], [0, 1, 3]]), costs)
    assert (rule["tokens_before"], rule["computed_once"]) == (2 * 2 + 4 * 4, 2 + 3)
    assert rule["net_s"] == (2 * 2 + 4 * 3) - 0.25 * (2 + 3) - 2 * 0.5 - 2.0 - 5 * 1.0


def test_a_transfer_that_takes_longer_than_the_computation_is_not_made():
    tree = PrefixTree.of_lengths([10, 10])
    slow = PrefixCosts(1.0, 0.0, [3.0, 0.5], 0.0, 1.0)
    choice = choose_prefixes(tree, [[2, 2], [2, 2]], slow)
    assert choice.received_tokens.tolist() == [0, 20]
    assert choice.net_s == pytest.approx(20 - 10)
    dear = PrefixCosts(1.0, [0.0, 100.0], 0.0, 0.0, 1.0)  # the second actor's savings do not pay for its connection
    assert choose_prefixes(tree, [[2, 2], [2, 2]], dear).received_tokens.tolist() == [20, 0]


def test_empty_identical_and_nested_prompts():
    ids = [[], [5, 6], [5, 6], [5, 6, 7, 8], []]
    choice = choose_prefixes(PrefixTree.of_token_ids(ids), [[2, 2, 1, 1, 1]], FREE)
    assert whole_prompts(choice) == [1, 2]  # one response computes the last two tokens of the longest, whoever does it
    assert (choice.tokens_before, choice.tokens_after, choice.computed_tokens) == (10, 4, 2)
    empty = choose_prefixes(PrefixTree.of_token_ids([[], []]), [[2, 2]], FREE)
    assert (empty.tokens_before, empty.tokens_after, empty.net_s, whole_prompts(empty)) == (0, 0, 0, [])


@pytest.mark.parametrize(
    ("counts", "costs", "options", "sentence"),
    [
        ([[1]], FREE, {}, ()),
        ([[1, -1]], FREE, {}, ()),
        ([[1, 1]], FREE, {"capacity_tokens": -1}, ("capacity_tokens",)),
        ([[1, 1]], PrefixCosts([1.0, 2.0]), {}, ("prefill_per_token_s",)),
    ],
)
def test_nonsense_is_refused(counts, costs, options, sentence):
    with refused(solver.PlanningError, *sentence):
        choose_prefixes(PrefixTree.of_lengths([1, 2]), counts, costs, **options)
    with refused(solver.PlanningError, "PrefixCosts.transfer_base_s"):
        PrefixCosts(1.0, -1)
