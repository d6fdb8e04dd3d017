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

**Greedy choice.** A token v that ``K_jv`` computations on j share is worth ``sum over j of max(0, c_j K_jv - t_j) - c_0``. K
only falls on the way down the tree, so the tokens of largest worth hold all tokens before them: taking them in this order until
the worth or the capacity ends is exact except for the fixed costs. An actor whose savings do not pay for its ``b_j`` receives
nothing, and the choice is repeated for the others.

The bound holds the fixed costs that no better choice avoids: those of actors without which no better choice exists.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solver.model.errors import PlanningError, as_given
from solver.model.ordered_sums import dot
from solver.model.workload import FloatArray, IntArray
from solver.prefix_sharing.prefix_tree import PrefixTree


@dataclass(frozen=True, eq=False)
class PrefixCosts:
    """Seconds of prefill and transfer that the choice compares, for N actors; a number applies to all of them.

    Attributes:
        prefill_per_token_s: (N,) of prefill on the decode actor itself (c).
        transfer_base_s, transfer_per_token_s: (N,) of receiving (b, t).
        prefill_actor_base_s, prefill_actor_per_token_s: of the prefill actor's one call (b_0, c_0); 0 where its GPUs would idle
            anyway. Where None is given, a token takes as long as on the slowest decode actor.

    Raises:
        PlanningError: a time is negative or not finite.
    """

    prefill_per_token_s: ArrayLike
    transfer_base_s: ArrayLike = 0.0
    transfer_per_token_s: ArrayLike = 0.0
    prefill_actor_base_s: float = 0.0
    prefill_actor_per_token_s: Any = None

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            if getattr(self, name) is None and name == "prefill_actor_per_token_s":  # the last: the others are checked
                object.__setattr__(self, name, float(np.max(self.prefill_per_token_s, initial=0.0)))
            values = np.asarray(getattr(self, name), dtype=float)
            if not np.all(np.isfinite(values)) or np.any(values < 0):
                raise PlanningError(
                    f"PrefixCosts.{name} is {as_given(getattr(self, name))}; finite seconds of 0 or more are needed"
                )

    def of_actors(self, actors: int) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return (N,) c, b and t.

        Raises:
            PlanningError: they are for another number of actors.
        """
        values = []
        for name in ("prefill_per_token_s", "transfer_base_s", "transfer_per_token_s"):
            value = np.asarray(getattr(self, name), dtype=float)
            if value.shape not in ((), (actors,)):
                raise PlanningError(
                    f"PrefixCosts.{name} has shape {value.shape}; one number, or one per actor, shape ({actors},), is needed"
                )
            values.append(np.broadcast_to(value, (actors,)))
        return values[0], values[1], values[2]


@dataclass(frozen=True, eq=False)
class PrefixChoice:
    """The prefixes that the prefill actor computes once, with their savings.

    Attributes:
        tree: the prefix tree of the P prompts.
        node_tokens: (V,) tokens of each node's edge that are computed, from its beginning on.
        prefix_tokens: (N, P) tokens of each prompt's beginning that an actor receives, what ``ActorPlan.prefix_tokens`` lists;
            0 for prompts that it does not compute.
        received_tokens: (N,) tokens that each actor receives, shared ones once.
        tokens_before, tokens_after: prefill tokens computed by all actors, without and with the prefill actor.
        saved_s: prefill seconds saved, those of the prefill actor deducted. transfer_s: seconds of all transfers.
        bound_s: upper bound on the net saving of any choice.
    """

    tree: PrefixTree
    node_tokens: IntArray
    prefix_tokens: IntArray
    received_tokens: IntArray
    tokens_before: int
    tokens_after: int
    saved_s: float
    transfer_s: float
    bound_s: float

    @property
    def computed_tokens(self) -> int:
        """Return the tokens that the prefill actor computes and keeps in memory."""
        return int(self.node_tokens.sum())

    @property
    def net_s(self) -> float:
        """Return the seconds saved net of transfers."""
        return self.saved_s - self.transfer_s

    def __repr__(self) -> str:
        fewer = 1 - self.tokens_after / self.tokens_before if self.tokens_before else 0.0
        return (
            f"PrefixChoice({self.computed_tokens:,} tokens in {np.count_nonzero(self.node_tokens)} nodes; "
            f"{self.tokens_before:,} prefill tokens before, {self.tokens_after:,} after ({fewer:.1%} fewer); "
            f"{self.saved_s:.3f} s saved, {self.transfer_s:.3f} s of transfers, net {self.net_s:.3f} s, at most "
            f"{self.bound_s:.3f} s)"
        )


def choose_prefixes(
    tree: PrefixTree, computations: ArrayLike, costs: PrefixCosts, *, capacity_tokens: int | None = None
) -> PrefixChoice:
    """Return the choice with the largest net saving (see the model above).

    Args:
        computations: (N, P) how often each actor computes each prompt without the prefill actor; 0 when it is not on it.
        capacity_tokens: KV tokens that the prefill actor holds; None for no limit.

    Raises:
        PlanningError: shapes differ, or a number is negative.
    """
    counts = np.asarray(computations, dtype=float)
    if counts.ndim != 2 or counts.shape[1] != len(tree.node_of):
        raise PlanningError(f"computations have shape {counts.shape}; (actors, {len(tree.node_of)} prompts) is needed")
    if not np.all(np.isfinite(counts)) or np.any(counts < 0):
        raise PlanningError("computations hold a negative number or one that is not finite; counts of 0 or more are needed")
    if capacity_tokens is not None and capacity_tokens < 0:
        raise PlanningError(
            f"capacity_tokens is {as_given(capacity_tokens)}; a number of 0 or more, or None for no limit, is needed"
        )
    compute_s, base_s, token_s = costs.of_actors(len(counts))
    capacity = tree.tokens if capacity_tokens is None else min(capacity_tokens, tree.tokens)
    passing = tree.below(counts)  # (N, V): K of the model
    worth_s = np.maximum(compute_s[:, None] * passing - token_s[:, None], 0)  # that an actor receives a token of a node

    def densest(receivers: NDArray[np.bool_]) -> tuple[IntArray, float]:
        """Return (V,) the tokens of largest worth that fit, and their worth, for (N,) actors that may receive."""
        density = np.asarray(dot(receivers.astype(float), worth_s) - costs.prefill_actor_per_token_s)
        edge = np.where(density > 0, tree.edge_tokens, 0)
        order = np.argsort(-density, kind="stable")  # ties in preorder, parents first
        tokens = np.zeros(len(tree), np.int64)
        tokens[order] = np.diff(np.minimum(np.cumsum(edge[order]), capacity), prepend=0)
        return tokens, float(dot(density, tokens))

    def choice(tokens: IntArray, receivers: NDArray[np.bool_]) -> PrefixChoice:
        """Return the choice of (V,) tokens, which each of (N,) actors receives where that pays; without a bound yet."""
        sent = np.where(receivers[:, None] & (worth_s > 0), tokens, 0)
        avoided = passing * sent
        received, computed, before = sent.sum(axis=1), int(tokens.sum()), int((counts * tree.prompt_tokens).sum())
        once_s = costs.prefill_actor_base_s * (computed > 0) + costs.prefill_actor_per_token_s * computed
        transfer_s = base_s * (received > 0) + token_s * received
        prefixes = np.where(counts > 0, tree.down(sent)[:, tree.node_of], 0).astype(np.int64)
        return PrefixChoice(
            tree, tokens, prefixes, received, before, before - int(avoided.sum()) + computed,
            float((avoided * compute_s[:, None]).sum()) - once_s, float(transfer_s.sum()), 0.0,
        )  # fmt: skip

    receivers = np.ones(len(counts), bool)
    most_s = densest(receivers)[1]
    best = choice(np.zeros(len(tree), np.int64), receivers)
    while receivers.any():
        tokens, _ = densest(receivers)
        candidate = choice(tokens, receivers)
        if candidate.net_s > best.net_s + 1e-12:
            best = candidate
        losing = receivers & (candidate.received_tokens > 0) & (dot(worth_s, tokens) < base_s)
        if not losing.any():
            break
        receivers &= ~losing
    bound_s = max(0.0, most_s - costs.prefill_actor_base_s - float(base_s.min(initial=np.inf)))
    if base_s.any():
        # A choice without actor j saves at most what the others could. Where that is no more than the best choice found, every
        # better choice serves j and pays its fixed cost (the least one is in the bound already).
        others = ~np.eye(len(counts), dtype=bool)
        needed = [j for j in range(len(counts)) if densest(others[j])[1] - costs.prefill_actor_base_s <= best.net_s]
        bound_s = min(bound_s, max(best.net_s, bound_s + float(base_s.min() - base_s[needed].sum())))
    return replace(best, bound_s=bound_s)
