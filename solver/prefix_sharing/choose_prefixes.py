"""Chooses which prefixes a prefill actor computes once, so that decode actors receive their KV cache instead of
computing it.

Inputs: the prefix tree, how often each actor would compute each prompt, and seconds per token.

**Model.** Let actor j compute prompt i ``k_ij`` times without the prefill actor (as often as it has responses of it, or once
when its samples share), at ``c_j`` seconds per token. A choice is a set X of tokens of the prefix tree that holds, with every
token, all tokens before it (a node's ancestors; an edge may be cut anywhere). The prefill actor computes each token of X once,
in ``c_0`` seconds, and keeps its KV cache: ``|X| <= capacity_tokens``. Actor j receives a token at most once, in ``t_j``
seconds, and then computes it for none of its responses; receiving anything costs it ``b_j`` once, computing anything the
prefill actor ``b_0`` once. Net saving: ``sum of c_j * (computations avoided) - c_0 |X| - b_0 - sum of t_j * (tokens received)
- sum of b_j``.

- *Any prefix* (``whole_prompts=False``): a token v that ``K_jv`` computations on j share is worth
  ``sum over j of max(0, c_j K_jv - t_j) - c_0``. K only falls on the way down the tree, so the densest tokens are closed by
  themselves: sorting them is exact but for the fixed costs.
- *Whole prompts* (``whole_prompts=True``, for engines that cannot continue from a part): an actor uses a prompt's cache only if
  it has all of it. Then the gain sits where prompts end and the costs on the way: a tree knapsack, exact by dynamic
  programme. What prompts of an actor share of a transfer is split evenly among those that may share it; no choice pays less,
  so the programme's value is a bound, and it is exact when all prompts of an actor are chosen or nothing is shared.

The bound holds the fixed costs that no better choice avoids: those of actors without which nothing better is possible.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from solver.prefix_sharing.prefix_choice import PrefixChoice, PrefixCosts
from solver.prefix_sharing.prefix_selection import PrefixProblem
from solver.prefix_sharing.prefix_tree import PrefixTree

__all__ = ["PrefixChoice", "PrefixCosts", "PrefixTree", "choose_prefixes", "fixed_length_rule"]


def choose_prefixes(
    tree: PrefixTree,
    computations: ArrayLike,
    costs: PrefixCosts,
    *,
    capacity_tokens: int | None = None,
    max_batch: int | None = None,
    whole_prompts: bool = False,
) -> PrefixChoice:
    """Return the choice with the largest net saving (see the model above).

    Args:
        computations: (N, P) how often each actor computes each prompt without the prefill actor; 0 when it is not on it.
        capacity_tokens: KV tokens that the prefill actor holds; None for no limit.
        max_batch: most prefixes that it computes (leaves of what is chosen); None for no limit. With it and a capacity that
            binds, the choice is a heuristic with a bound (a price per token, the best chains at that price).
        whole_prompts: a prompt's cache is of use only as a whole.

    Raises:
        PlanningError: shapes differ, or a number is negative.
    """
    problem = PrefixProblem.of(tree, computations, costs, capacity_tokens, max_batch, whole_prompts)
    open_actors = np.ones(len(problem.computations), bool)
    bound = problem.bound_s()
    best = problem.nothing("exact", bound)
    while open_actors.any():
        found = [problem.valued(tokens, "exact", bound, open_actors) for tokens in problem.candidates(open_actors)]
        leader = max(found, key=lambda choice: choice.net_s)
        if leader.net_s > best.net_s + 1e-12:
            best = leader
        # An actor whose savings do not pay for its transfers' fixed cost leaves; the others are chosen for anew.
        poor = open_actors & (problem.gains_s(leader) < 0)
        if not poor.any():
            break
        open_actors &= ~poor
    if max_batch is not None:
        rule = fixed_length_rule(
            tree, problem.computations, costs, max_batch=max_batch, capacity_tokens=capacity_tokens, whole_prompts=whole_prompts
        )
        valued = problem.valued(rule.node_tokens, "exact", bound, np.ones_like(open_actors))
        best = max(best, valued, key=lambda choice: choice.net_s)
    return replace(best, bound_s=problem.tightened_s(bound, best.net_s))


def fixed_length_rule(
    tree: PrefixTree,
    computations: ArrayLike,
    costs: PrefixCosts,
    *,
    max_batch: int,
    capacity_tokens: int | None = None,
    shortest_tokens: int = 1,
    longest_tokens: int | None = None,
    whole_prompts: bool = False,
) -> PrefixChoice:
    """Return the choice of the paper's rule (RLHFless, arXiv 2602.22718, deduplicated prefill).

    The rule prefills all prefixes of the largest length L in ``shortest_tokens .. longest_tokens`` of which at most
    ``max_batch`` differ. Each is sent to every actor that has it. Every L is tried. Shorter prompts count with all their
    tokens. A capacity, if given, is kept as well. If no length fits, nothing is prefilled.

    Raises:
        PlanningError: shapes differ, or a number is negative.
    """
    problem = PrefixProblem.of(tree, computations, costs, capacity_tokens, max_batch, whole_prompts)
    distinct = tree.distinct_prefixes()
    in_use = tree.below(problem.computations).sum(axis=0) > 0
    longest = len(distinct) - 1 if longest_tokens is None else min(longest_tokens, len(distinct) - 1)
    bound = problem.bound_s()
    for length in range(longest, max(shortest_tokens, 1) - 1, -1):
        tokens = np.where(in_use, np.clip(length - tree.start_tokens, 0, tree.edge_tokens), 0)
        if distinct[length] <= max_batch and (capacity_tokens is None or int(tokens.sum()) <= capacity_tokens):
            return problem.valued(tokens, "fixed-length", bound, np.ones(len(problem.computations), bool), everyone=True)
    return problem.nothing("fixed-length", bound)
