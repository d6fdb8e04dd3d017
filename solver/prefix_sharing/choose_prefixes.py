"""Chooses which prefixes a prefill actor computes once, so that decode actors receive their KV cache instead of
computing it.

Inputs: the prefix tree, how often each actor would compute each prompt, and seconds per token.

**Model.** Without the prefill actor, actor j computes prompt i ``k_ij`` times, at ``c_j`` seconds per token. That is as often
as it has responses of it, or once when its samples share. A choice is a set X of tokens of the prefix tree. With every token it
holds all tokens before it: those of a node's ancestors. An edge may be cut anywhere. The prefill actor computes each token of X
once, in ``c_0`` seconds, and keeps its KV cache: ``|X| <= capacity_tokens``. Actor j receives a token at most once, in ``t_j``
seconds, and then computes it for none of its responses. Receiving anything costs it ``b_j`` once, computing anything the
prefill actor ``b_0`` once. Net saving: ``sum of c_j * (computations avoided) - c_0 |X| - b_0 - sum of t_j * (tokens received)
- sum of b_j``.

A token v that ``K_jv`` computations on j share is worth ``sum over j of max(0, c_j K_jv - t_j) - c_0``. K only falls on the way
down the tree, so the densest tokens are closed by themselves. Sorting them is exact except for the fixed costs.

The bound holds the fixed costs that no better choice avoids: those of actors without which no better choice exists.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solver.model.errors import PlanningError, as_given
from solver.model.ordered_sums import dot
from solver.model.workload import FloatArray, IntArray
from solver.prefix_sharing.costs_and_savings import PrefixChoice, PrefixCosts
from solver.prefix_sharing.prefix_tree import PrefixTree

BISECTION_STEPS = 40  # of the price of a token


def choose_prefixes(
    tree: PrefixTree,
    computations: ArrayLike,
    costs: PrefixCosts,
    *,
    capacity_tokens: int | None = None,
    max_batch: int | None = None,
) -> PrefixChoice:
    """Return the choice with the largest net saving (see the model above).

    Args:
        computations: (N, P) how often each actor computes each prompt without the prefill actor; 0 when it is not on it.
        capacity_tokens: KV tokens that the prefill actor holds; None for no limit.
        max_batch: most prefixes that it computes (leaves of what is chosen); None for no limit. With it and a capacity that
            binds, the choice is a heuristic with a bound (a price per token, the best chains at that price).

    Raises:
        PlanningError: shapes differ, or a number is negative.
    """
    problem = _PrefixProblem.of(tree, computations, costs, capacity_tokens, max_batch)
    receivers = np.ones(len(problem.computations), bool)
    bound = problem.bound_s()
    best = problem.empty_choice("exact", bound)
    while receivers.any():
        choices = [problem.evaluated(tokens, "exact", bound, receivers) for tokens in problem.best(receivers)[0]]
        candidate = max(choices, key=lambda choice: choice.net_s)
        if candidate.net_s > best.net_s + 1e-12:
            best = candidate
        # An actor whose savings do not pay for its transfers' fixed cost receives nothing; the choice is repeated for the rest.
        losing = receivers & (problem.actor_savings_s(candidate) < 0)
        if not losing.any():
            break
        receivers &= ~losing
    if max_batch is not None:
        fixed_length = fixed_length_rule(
            tree, problem.computations, costs, max_batch=max_batch, capacity_tokens=capacity_tokens
        )
        candidate = problem.evaluated(fixed_length.node_tokens, "exact", bound, np.ones_like(receivers))
        best = max(best, candidate, key=lambda choice: choice.net_s)
    return replace(best, bound_s=problem.tightened_bound_s(bound, best.net_s))


def fixed_length_rule(
    tree: PrefixTree,
    computations: ArrayLike,
    costs: PrefixCosts,
    *,
    max_batch: int,
    capacity_tokens: int | None = None,
) -> PrefixChoice:
    """Return the choice of the paper's rule (RLHFless, arXiv 2602.22718, deduplicated prefill).

    The rule prefills all prefixes of the largest length L of which at most ``max_batch`` differ. Each is sent to every actor
    that has it. Every L is tried. Shorter prompts count with all their tokens. A capacity, if given, is kept as well. If no
    length fits, nothing is prefilled.

    Raises:
        PlanningError: shapes differ, or a number is negative.
    """
    problem = _PrefixProblem.of(tree, computations, costs, capacity_tokens, max_batch)
    distinct = tree.distinct_prefixes()
    in_use = tree.below(problem.computations).sum(axis=0) > 0
    bound = problem.bound_s()
    for length in range(len(distinct) - 1, 0, -1):
        tokens = np.where(in_use, np.clip(length - tree.start_tokens, 0, tree.edge_tokens), 0)
        if distinct[length] <= max_batch and (capacity_tokens is None or int(tokens.sum()) <= capacity_tokens):
            return problem.evaluated(tokens, "fixed-length", bound, np.ones(len(problem.computations), bool), send_to_all=True)
    return problem.empty_choice("fixed-length", bound)


@dataclass(frozen=True, eq=False)
class _PrefixProblem:
    """Inputs of one choice of prefixes, with its candidates, their exact value and an upper bound on every saving.

    ``receivers`` are the (N,) actors that may receive prefixes. K, of shape (N, V), counts the computations of an actor that
    pass through a node.
    """

    tree: PrefixTree
    computations: FloatArray
    costs: PrefixCosts
    capacity_tokens: int | None
    max_batch: int | None

    @classmethod
    def of(
        cls,
        tree: PrefixTree,
        computations: ArrayLike,
        costs: PrefixCosts,
        capacity_tokens: int | None,
        max_batch: int | None,
    ) -> _PrefixProblem:
        """Return the problem with its (N, P) counts checked."""
        counts = np.asarray(computations, dtype=float)
        if counts.ndim != 2 or counts.shape[1] != len(tree.node_of):
            raise PlanningError(f"computations have shape {counts.shape}; (actors, {len(tree.node_of)} prompts) is needed")
        if not np.all(np.isfinite(counts)) or np.any(counts < 0):
            raise PlanningError("computations hold a negative number or one that is not finite; counts of 0 or more are needed")
        return cls(tree, counts, costs, capacity_tokens, max_batch)

    def __post_init__(self) -> None:
        for name in ("capacity_tokens", "max_batch"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise PlanningError(f"{name} is {as_given(value)}; a number of 0 or more, or None for no limit, is needed")
        actors = len(self.computations)
        for name in ("prefill_per_token_s", "transfer_base_s", "transfer_per_token_s"):
            value = getattr(self.costs, name)
            if value.shape not in ((), (actors,)):
                raise PlanningError(
                    f"PrefixCosts.{name} has shape {value.shape}; one number, or one per actor, shape ({actors},), is needed"
                )

    def _per_actor(self, name: str) -> FloatArray:
        return np.broadcast_to(getattr(self.costs, name), (len(self.computations),))[:, None]

    @property
    def capacity(self) -> int:
        """Return the KV tokens that the prefill actor may store."""
        return self.tree.tokens if self.capacity_tokens is None else min(self.capacity_tokens, self.tree.tokens)

    def bound_s(self) -> float:
        """Return an upper bound on the net seconds that any choice saves."""
        value = self.best(np.ones(len(self.computations), bool))[1]
        min_fixed_s = self.costs.prefill_actor_base_s + float(self._per_actor("transfer_base_s").min(initial=np.inf))
        return max(0.0, value - min_fixed_s) if len(self.computations) else 0.0

    def tightened_bound_s(self, bound_s: float, reached_s: float) -> float:
        """Return a tighter bound once ``reached_s`` is known.

        A choice without actor j saves at most what the other actors could. If that is no more than ``reached_s``, every better
        choice serves j and pays its fixed cost (one actor's is in the bound already).
        """
        fixed = self._per_actor("transfer_base_s")[:, 0]
        if not fixed.any():
            return bound_s
        others = ~np.eye(len(fixed), dtype=bool)
        base_s = self.costs.prefill_actor_base_s
        needed = [j for j in range(len(fixed)) if self.best(others[j])[1] - base_s <= reached_s]
        return min(bound_s, max(reached_s, bound_s + float(fixed.min()) - float(fixed[needed].sum())))

    @cached_property
    def _saving_per_token_s(self) -> FloatArray:
        """Return the (N, V) net seconds that an actor saves by receiving a token of each node."""
        passing = self.tree.below(self.computations)
        saving_s = self._per_actor("prefill_per_token_s") * passing - self._per_actor("transfer_per_token_s")
        return np.asarray(np.maximum(saving_s, 0))

    def _net_saving_per_token_s(self, receivers: NDArray[np.bool_]) -> FloatArray:
        """Return the (V,) net seconds that a token of each node saves."""
        return np.asarray(dot(receivers.astype(float), self._saving_per_token_s) - self.costs.prefill_actor_per_token_s)

    def best(self, receivers: NDArray[np.bool_]) -> tuple[list[IntArray], float]:
        """Return candidates that may end within an edge, as (V,) tokens each, and an upper bound on their net seconds.

        Without ``max_batch`` there is one, which is optimal without fixed costs. Else a price per token (Lagrange) gives two.
        """
        density, edge = self._net_saving_per_token_s(receivers), self.tree.edge_tokens
        if self.max_batch is None:
            tokens = self._densest_tokens(density > 0, density)
            return [tokens], float(dot(density, tokens))
        leaves = self.max_batch

        def at_price(price: float) -> tuple[NDArray[np.bool_], float]:
            return _best_chains(self.tree.parent, np.maximum(density - price, 0) * edge, leaves)

        above, bound = at_price(0.0)
        if int(edge[above].sum()) <= self.capacity:
            return [np.where(above, edge, 0)], bound
        low, high, fitting = 0.0, float(density.max()), np.zeros(len(edge), bool)
        for _ in range(BISECTION_STEPS):
            price = (low + high) / 2
            selected, value = at_price(price)
            bound = min(bound, value + price * self.capacity)
            if int(edge[selected].sum()) <= self.capacity:
                fitting, high = selected, price
            else:
                above, low = selected, price
        return [self._densest_tokens(above, density), self._densest_tokens(fitting, density)], bound

    def _densest_tokens(self, selected: NDArray[np.bool_], density: FloatArray) -> IntArray:
        """Return (V,) the densest tokens of a closed set that fit: also closed, because density falls along every path."""
        edge = np.where(selected & (density > 0), self.tree.edge_tokens, 0)
        order = np.argsort(-density, kind="stable")  # ties in preorder, parents first
        filled = np.minimum(np.cumsum(edge[order]), self.capacity)
        tokens = np.zeros(len(edge), np.int64)
        tokens[order] = np.diff(filled, prepend=0)
        return tokens

    def evaluated(
        self, tokens: IntArray, rule: str, bound_s: float, receivers: NDArray[np.bool_], send_to_all: bool = False
    ) -> PrefixChoice:
        """Return the choice of (V,) tokens with its exact savings.

        An actor receives what pays, or with ``send_to_all`` every token that it would compute.
        """
        tree, edge = self.tree, self.tree.edge_tokens
        complete = tree.down(np.where(tokens < edge, 1, 0))[tree.node_of] == 0
        complete &= tree.prompt_tokens > 0
        counts = np.where(receivers[:, None], self.computations, 0)
        passing = tree.below(counts)
        pays = self._per_actor("prefill_per_token_s") * passing > self._per_actor("transfer_per_token_s")
        needed = (passing > 0 if send_to_all else pays) & (tokens > 0)
        per_node = np.where(needed, passing, 0) * tokens
        avoided, avoided_tokens = float((per_node * self._per_actor("prefill_per_token_s")).sum()), int(per_node.sum())
        every_node = tree.down(np.where(needed | (edge == 0), 0, 1))[:, tree.node_of] == 0
        whole = (every_node & complete & (counts > 0)).any(axis=0)
        tokens = np.where(needed.any(axis=0), tokens, 0)  # tokens that pay for no actor are not computed
        prefixes = np.where(counts > 0, tree.down(needed * tokens)[:, tree.node_of], 0)
        received = (needed * tokens).sum(axis=1)
        computed = int(tokens.sum())
        transfer = (
            self._per_actor("transfer_base_s")[:, 0] * (received > 0) + self._per_actor("transfer_per_token_s")[:, 0] * received
        )
        prefill_actor_s = self.costs.prefill_actor_base_s * (computed > 0) + self.costs.prefill_actor_per_token_s * computed
        before = int((self.computations * tree.prompt_tokens).sum())
        return PrefixChoice(
            tree, rule, np.asarray(tokens, dtype=np.int64), tuple(np.flatnonzero(whole).tolist()),
            prefixes.astype(np.int64), received.astype(np.int64), before, before - avoided_tokens + computed,
            avoided - prefill_actor_s, float(transfer.sum()), bound_s, self.capacity_tokens,
        )  # fmt: skip

    def actor_savings_s(self, choice: PrefixChoice) -> FloatArray:
        """Return the (N,) seconds that each actor saves by a choice, net of its transfers; the prefill actor's seconds are
        left out."""
        passing = self.tree.below(self.computations)
        pays = self._per_actor("prefill_per_token_s") * passing > self._per_actor("transfer_per_token_s")
        tokens = (np.where(pays, passing, 0) * choice.node_tokens).sum(axis=1)
        sent = choice.received_tokens
        fixed = np.where(sent > 0, self._per_actor("transfer_base_s")[:, 0], 0)
        prefill, transfer = self._per_actor("prefill_per_token_s")[:, 0], self._per_actor("transfer_per_token_s")[:, 0]
        return np.asarray(np.where(sent > 0, prefill * tokens - transfer * sent - fixed, 0.0))

    def empty_choice(self, rule: str, bound_s: float) -> PrefixChoice:
        """Return the choice of no prefix at all."""
        return self.evaluated(np.zeros(len(self.tree), np.int64), rule, bound_s, np.zeros(len(self.computations), bool))


def _best_chains(parent: IntArray, values: FloatArray, leaves: int) -> tuple[NDArray[np.bool_], float]:
    """Return (V,) the closed set of largest value with at most ``leaves`` leaves, and that value, for values of 0 or more.

    Every node is extended by its best child, which cuts the tree into chains. The ``leaves`` best chains are the optimum. A
    further leaf adds at most the best chain that hangs on the set, and a chain never beats the one it hangs on.
    """
    total = values.tolist()
    parents = parent.tolist()
    best_child = [-1] * len(total)
    best_child_value = [0.0] * len(total)
    for v in range(len(total) - 1, -1, -1):
        total[v] += best_child_value[v]
        if v and total[v] > 0 and total[v] >= best_child_value[parents[v]]:
            best_child_value[parents[v]], best_child[parents[v]] = total[v], v
    heads = [v for v in range(len(total)) if (v == 0 or best_child[parents[v]] != v) and total[v] > 0]
    heads = sorted(heads, key=lambda v: (-total[v], v))[:leaves]
    selected = np.zeros(len(total), bool)
    selected[0] = True
    for head in heads:
        v = head
        while v >= 0:
            selected[v] = True
            v = best_child[v]
    return selected, float(sum(total[v] for v in heads))
