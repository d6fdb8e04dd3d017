"""Candidates for one choice of prefixes, their exact value, and an upper bound on the saving of every choice.

``solver.prefix_sharing.choose_prefixes`` states the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solver.model.errors import PlanningError, as_given
from solver.model.workload import FloatArray, IntArray
from solver.prefix_sharing.knapsack import HALVINGS, best_chains, best_closed, best_under_capacity
from solver.prefix_sharing.prefix_choice import PrefixChoice, PrefixCosts
from solver.prefix_sharing.prefix_tree import PrefixTree


@dataclass(frozen=True, eq=False)
class PrefixProblem:
    """One choice of prefixes to make. In arrays of actors and nodes, (N, V), K are the computations that pass through
    a node."""

    tree: PrefixTree
    computations: FloatArray
    costs: PrefixCosts
    capacity_tokens: int | None
    max_batch: int | None
    whole_prompts: bool

    @classmethod
    def of(
        cls,
        tree: PrefixTree,
        computations: ArrayLike,
        costs: PrefixCosts,
        capacity_tokens: int | None,
        max_batch: int | None,
        whole_prompts: bool,
    ) -> PrefixProblem:
        """Return the problem with its (N, P) counts checked."""
        counts = np.asarray(computations, dtype=float)
        if counts.ndim != 2 or counts.shape[1] != len(tree.node_of):
            raise PlanningError(f"computations have shape {counts.shape}; (actors, {len(tree.node_of)} prompts) is needed")
        if not np.all(np.isfinite(counts)) or np.any(counts < 0):
            raise PlanningError("computations hold a negative number or one that is not finite; counts of 0 or more are needed")
        return cls(tree, counts, costs, capacity_tokens, max_batch, whole_prompts)

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
        everyone = np.ones(len(self.computations), bool)
        value = self._any_prefix(everyone)[1]
        if self.whole_prompts:
            value = min(value, self._whole_shared[1])
        least = self.costs.own_base_s + float(self._per_actor("transfer_base_s").min(initial=np.inf))
        return max(0.0, value - least) if len(self.computations) else 0.0

    def tightened_s(self, bound_s: float, reached_s: float) -> float:
        """Return a tighter bound once ``reached_s`` is known.

        A choice without actor j saves at most what the other actors could. If that is no more than ``reached_s``, every better
        choice serves j and pays its fixed cost (one actor's is in the bound already).
        """
        fixed = self._per_actor("transfer_base_s")[:, 0]
        if not fixed.any():
            return bound_s
        others = ~np.eye(len(fixed), dtype=bool)
        needed = [j for j in range(len(fixed)) if self._any_prefix(others[j])[1] - self.costs.own_base_s <= reached_s]
        return min(bound_s, max(reached_s, bound_s + float(fixed.min()) - float(fixed[needed].sum())))

    def candidates(self, open_actors: NDArray[np.bool_]) -> list[IntArray]:
        """Return the choices to evaluate, as tokens of each node: (V,) each."""
        if not self.whole_prompts:
            return self._any_prefix(open_actors)[0]
        shared = self._whole_shared if open_actors.all() else self._whole(open_actors, shared=True)
        return [self._few_leaves(taken) for taken in (shared[0], self._whole(open_actors, shared=False)[0])]

    @cached_property
    def _worth(self) -> FloatArray:
        """Return the (N, V) net seconds that an actor saves by receiving a token of each node."""
        passing = self.tree.below(self.computations)
        worth = self._per_actor("prefill_per_token_s") * passing - self._per_actor("transfer_per_token_s")
        return np.asarray(np.maximum(worth, 0))

    def _density(self, open_actors: NDArray[np.bool_]) -> FloatArray:
        """Return the (V,) net seconds that a token of each node saves."""
        return np.asarray(open_actors.astype(float) @ self._worth - self.costs.own_per_token_s)

    def _any_prefix(self, open_actors: NDArray[np.bool_]) -> tuple[list[IntArray], float]:
        density, edge = self._density(open_actors), self.tree.edge_tokens
        if self.max_batch is None:
            tokens = self._densest(density > 0, density)
            return [tokens], float(density @ tokens)
        leaves = self.max_batch

        def at_price(price: float) -> tuple[NDArray[np.bool_], float]:
            return best_chains(self.tree.parent, np.maximum(density - price, 0) * edge, leaves)

        taken, bound = at_price(0.0)
        if int(edge[taken].sum()) <= self.capacity:
            return [np.where(taken, edge, 0)], bound
        low, high, fits = 0.0, float(density.max()), np.zeros(len(edge), bool)
        for _ in range(HALVINGS):
            price = (low + high) / 2
            chosen, value = at_price(price)
            bound = min(bound, value + price * self.capacity)
            if int(edge[chosen].sum()) <= self.capacity:
                fits, high = chosen, price
            else:
                taken, low = chosen, price
        return [self._densest(taken, density), self._densest(fits, density)], bound

    def _densest(self, taken: NDArray[np.bool_], density: FloatArray) -> IntArray:
        """Return (V,) the densest tokens of a closed set that fit: also closed, because density falls along every path."""
        edge = np.where(taken & (density > 0), self.tree.edge_tokens, 0)
        order = np.argsort(-density, kind="stable")  # ties in preorder, parents first
        filled = np.minimum(np.cumsum(edge[order]), self.capacity)
        tokens = np.zeros(len(edge), np.int64)
        tokens[order] = np.diff(filled, prepend=0)
        return tokens

    @cached_property
    def _whole_shared(self) -> tuple[NDArray[np.bool_], float]:
        """Solve the knapsack that gives the bound: every actor takes part, transfers are split."""
        return self._whole(np.ones(len(self.computations), bool), shared=True)

    def _whole(self, open_actors: NDArray[np.bool_], shared: bool) -> tuple[NDArray[np.bool_], float]:
        """Solve the tree knapsack over whole prompts; ``shared`` splits transfers among the prompts that may share them."""
        edge, owners = self.tree.edge_tokens, (self.computations > 0) & open_actors[:, None]
        sharers = np.maximum(self.tree.below(owners), 1) if shared else 1.0
        sent = self.tree.down(np.broadcast_to(edge / sharers, (len(owners), len(edge))))[:, self.tree.node_of]
        saved = self._per_actor("prefill_per_token_s") * self.computations * self.tree.prompt_tokens
        gain = np.where(owners, np.maximum(saved - self._per_actor("transfer_per_token_s") * sent, 0), 0).sum(axis=0)
        at_end = self.tree.ending(gain)
        taken, bound = best_under_capacity(
            self.tree.parent, self.tree.last, edge, at_end - self.costs.own_per_token_s * edge, self.capacity
        )
        if self.max_batch is not None:  # the most that few leaves can gain, were nothing to be computed for it
            bound = min(bound, best_chains(self.tree.parent, at_end, self.max_batch)[1])
        return taken, bound

    def _few_leaves(self, taken: NDArray[np.bool_]) -> IntArray:
        """Return the (V,) tokens of a closed set, reduced to the chains of most work if it has too many leaves."""
        if self.max_batch is not None:
            weight = np.where(taken, self.tree.below(self.computations).sum(axis=0), 0.0)  # the work that passes through
            taken = taken & best_chains(self.tree.parent, weight * self.tree.edge_tokens, self.max_batch)[0]
        return np.where(taken, self.tree.edge_tokens, 0)

    def valued(
        self, tokens: IntArray, rule: str, bound_s: float, open_actors: NDArray[np.bool_], everyone: bool = False
    ) -> PrefixChoice:
        """Return a choice of tokens with its savings; ``everyone`` receives all that it has a use for, whether that
        pays or not."""
        tree, edge = self.tree, self.tree.edge_tokens
        complete = tree.down(np.where(tokens < edge, 1, 0))[tree.node_of] == 0
        complete &= tree.prompt_tokens > 0
        used = np.where(open_actors[:, None], self.computations, 0)
        if self.whole_prompts:
            receives = self._accepted(np.where(complete, used, 0), everyone)
            needed = tree.below(receives) > 0
            avoided = float((used * receives * self._per_actor("prefill_per_token_s") * tree.prompt_tokens).sum())
            avoided_tokens = int((used * receives * tree.prompt_tokens).sum())
            tokens = np.where(needed.any(axis=0), edge, 0)
            prefixes = np.where(receives, tree.prompt_tokens, 0)
        else:
            passing = tree.below(used)
            pays = self._per_actor("prefill_per_token_s") * passing > self._per_actor("transfer_per_token_s")
            needed = (passing > 0 if everyone else pays) & (tokens > 0)
            per_node = np.where(needed, passing, 0) * tokens
            avoided, avoided_tokens = float((per_node * self._per_actor("prefill_per_token_s")).sum()), int(per_node.sum())
            whole = tree.down(np.where(needed | (edge == 0), 0, 1))[:, tree.node_of] == 0
            receives = whole & complete & (used > 0)
            tokens = np.where(needed.any(axis=0), tokens, 0)  # what no actor is better off receiving is not computed
            prefixes = np.where(used > 0, tree.down(needed * tokens)[:, tree.node_of], 0)
        received = (needed * tokens).sum(axis=1)
        computed = int(tokens.sum())
        transfer = (
            self._per_actor("transfer_base_s")[:, 0] * (received > 0) + self._per_actor("transfer_per_token_s")[:, 0] * received
        )
        own = self.costs.own_base_s * (computed > 0) + self.costs.own_per_token_s * computed
        before = int((self.computations * tree.prompt_tokens).sum())
        return PrefixChoice(
            tree, rule, np.asarray(tokens, dtype=np.int64), tuple(np.flatnonzero(receives.any(axis=0)).tolist()), receives,
            prefixes.astype(np.int64), received.astype(np.int64), before, before - avoided_tokens + computed, avoided - own,
            float(transfer.sum()), bound_s, self.capacity_tokens,
        )  # fmt: skip

    def _accepted(self, used: FloatArray, everyone: bool) -> NDArray[np.bool_]:
        """Return (N, P) the computed prompts that each actor receives: those that pay, shared transfers counted once."""
        wanted: NDArray[np.bool_] = used > 0
        per_token = self._per_actor("prefill_per_token_s") * used
        doubtful = wanted & (per_token < self._per_actor("transfer_per_token_s"))
        for j in [] if everyone else np.flatnonzero(doubtful.any(axis=1)).tolist():
            gain = self.tree.ending(per_token[j] * self.tree.prompt_tokens)
            cost = self.tree.edge_tokens * float(self._per_actor("transfer_per_token_s")[j, 0])
            wanted[j] &= best_closed(self.tree.parent, gain - cost)[0][self.tree.node_of]
        return wanted

    def gains_s(self, choice: PrefixChoice) -> FloatArray:
        """Return the (N,) seconds that each actor saves by a choice, net of its transfers, without the prefill
        actor's own time."""
        used = self.computations
        if self.whole_prompts:
            tokens = (used * choice.receives * self.tree.prompt_tokens).sum(axis=1)
        else:
            passing = self.tree.below(used)
            pays = self._per_actor("prefill_per_token_s") * passing > self._per_actor("transfer_per_token_s")
            tokens = (np.where(pays, passing, 0) * choice.node_tokens).sum(axis=1)
        sent = choice.received_tokens
        fixed = np.where(sent > 0, self._per_actor("transfer_base_s")[:, 0], 0)
        prefill, transfer = self._per_actor("prefill_per_token_s")[:, 0], self._per_actor("transfer_per_token_s")[:, 0]
        return np.asarray(np.where(sent > 0, prefill * tokens - transfer * sent - fixed, 0.0))

    def nothing(self, rule: str, bound_s: float) -> PrefixChoice:
        """Return the choice of no prefix at all."""
        return self.valued(np.zeros(len(self.tree), np.int64), rule, bound_s, np.zeros(len(self.computations), bool))
