"""Defines the input and output of the choice of prefixes: costs in seconds, and the chosen nodes with their savings.

``solver.prefix_sharing.choose_prefixes`` makes the choice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from solver.model.errors import PlanningError, as_given
from solver.model.workload import FloatArray, IntArray
from solver.prefix_sharing.prefix_tree import PrefixTree

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class PrefixCosts:
    """Seconds of prefill and transfer that the choice compares, for N actors; a number applies to all of them.

    Attributes:
        prefill_per_token_s: (N,) of prefill on the decode actor itself (c).
        transfer_base_s, transfer_per_token_s: (N,) of receiving (b, t).
        prefill_actor_base_s, prefill_actor_per_token_s: of the prefill actor's one call (b_0, c_0); 0 where its GPUs would idle
            anyway. Without a value, a token takes as long as on the slowest decode actor.

    Raises:
        PlanningError: a time is negative or not finite.
    """

    prefill_per_token_s: FloatArray
    transfer_base_s: FloatArray
    transfer_per_token_s: FloatArray
    prefill_actor_base_s: float
    prefill_actor_per_token_s: float

    def __init__(
        self,
        prefill_per_token_s: ArrayLike,
        transfer_base_s: ArrayLike = 0.0,
        transfer_per_token_s: ArrayLike = 0.0,
        prefill_actor_base_s: float = 0.0,
        prefill_actor_per_token_s: float | None = None,
    ) -> None:
        if prefill_actor_per_token_s is None:
            prefill_actor_per_token_s = float(np.max(prefill_per_token_s))
        values = (
            prefill_per_token_s, transfer_base_s, transfer_per_token_s, prefill_actor_base_s, prefill_actor_per_token_s
        )  # fmt: skip
        for name, value in zip(self.__dataclass_fields__, values, strict=True):
            array = np.asarray(value, dtype=float)
            if not np.all(np.isfinite(array)) or np.any(array < 0):
                raise PlanningError(f"PrefixCosts.{name} is {as_given(value)}; finite seconds of 0 or more are needed")
            object.__setattr__(self, name, float(array) if name.startswith("prefill_actor") else array)


@dataclass(frozen=True, eq=False)
class PrefixChoice:
    """The prefixes that the prefill actor computes once, with their savings.

    Attributes:
        tree: the prefix tree of the P prompts. rule: ``exact`` (or its approximation with a bound) or ``fixed-length``.
        node_tokens: (V,) tokens of each node's edge that are computed, from its beginning on.
        prompts: prompts whose whole KV cache is computed and used.
        prefix_tokens: (N, P) tokens of each prompt's beginning that an actor receives, what ``ActorPlan.prefix_tokens`` lists;
            0 for prompts that it does not compute.
        received_tokens: (N,) tokens that each actor receives, shared ones once.
        tokens_before, tokens_after: prefill tokens computed by all actors, without and with the prefill actor.
        saved_s: prefill seconds saved, those of the prefill actor deducted; transfer_s: seconds of all transfers.
        bound_s: upper bound on the net saving of any choice. capacity_tokens: None if it was unlimited.
    """

    tree: PrefixTree
    rule: str
    node_tokens: IntArray
    prompts: tuple[int, ...]
    prefix_tokens: IntArray
    received_tokens: IntArray
    tokens_before: int
    tokens_after: int
    saved_s: float
    transfer_s: float
    bound_s: float
    capacity_tokens: int | None = None

    @property
    def computed_tokens(self) -> int:
        """Return the tokens that the prefill actor computes and keeps in memory."""
        return int(self.node_tokens.sum())

    @property
    def net_s(self) -> float:
        """Return the seconds saved net of transfers."""
        return self.saved_s - self.transfer_s

    def to_frame(self) -> pd.DataFrame:
        """Return one row per chosen node (needs pandas)."""
        import pandas as pd

        nodes = np.flatnonzero(self.node_tokens)
        through = self.tree.below(np.ones(len(self.tree.node_of)))[nodes].astype(int)
        return pd.DataFrame(
            {
                "node": nodes,
                "parent": self.tree.parent[nodes],
                "start_tokens": self.tree.start_tokens[nodes],
                "end_tokens": self.tree.start_tokens[nodes] + self.node_tokens[nodes],
                "whole_edge": self.node_tokens[nodes] == self.tree.edge_tokens[nodes],
                "prompts": through,
            }
        )

    def __repr__(self) -> str:
        fewer = 1 - self.tokens_after / self.tokens_before if self.tokens_before else 0.0
        return (
            f"PrefixChoice({self.rule}: {len(self.prompts)} of {len(self.tree.node_of)} prompts in "
            f"{np.count_nonzero(self.node_tokens)} nodes; {self.tokens_before:,} prefill tokens before, {self.tokens_after:,} "
            f"after ({fewer:.1%} fewer); {self.saved_s:.3f} s saved, {self.transfer_s:.3f} s of transfers, "
            f"net {self.net_s:.3f} s, at most {self.bound_s:.3f} s)"
        )
