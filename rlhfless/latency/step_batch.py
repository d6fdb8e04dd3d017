"""Defines ``StepBatch`` and ``CostOptions``: the work of a training step, and what of its costs is assumed."""

from __future__ import annotations

from dataclasses import dataclass

from solver.model.errors import PlanningError, as_given, check_flags, is_number, is_whole
from solver.model.plurals import counted

MOST_TOKENS = 100_000_000
"""Of a prompt with its response; decoding is timed token by token."""
MOST_TRIED = 1_000_000
"""Numbers of mini-batches that are tried for one that divides the responses."""


@dataclass(frozen=True)
class StepBatch:
    """The responses of a step, all of the same length.

    Attributes:
        responses: number of responses per step.
        prompt_tokens, response_tokens: tokens of each prompt and response.
        mini_batches: number of updates of a training call (PPO).

    Raises:
        PlanningError: a number is below 1 or not whole, or mini-batches do not divide the responses.

    Example:
        >>> from rlhfless.latency import StepBatch
        >>> StepBatch(responses=256, prompt_tokens=128, response_tokens=384).tokens
        512
    """

    responses: int
    prompt_tokens: int
    response_tokens: int
    mini_batches: int = 1

    def __post_init__(self) -> None:
        for name in ("responses", "prompt_tokens", "response_tokens", "mini_batches"):
            value = getattr(self, name)
            if not is_whole(value, 1):
                raise PlanningError(f"{name} is {as_given(value)}; a whole number of 1 or more is needed")
            object.__setattr__(self, name, int(value))
        if self.tokens > MOST_TOKENS:
            raise PlanningError(
                f"a prompt of {counted(self.prompt_tokens, 'token')} with a response of {self.response_tokens:,} is longer "
                f"than any model's context; at most {MOST_TOKENS:,} tokens together are needed"
            )
        if self.responses % self.mini_batches:
            most = min(self.mini_batches, self.responses)
            fits = next((n for n in range(most, max(0, most - MOST_TRIED), -1) if self.responses % n == 0), None)
            raise PlanningError(
                f"{self.mini_batches:,} mini-batches do not divide {counted(self.responses, 'response')}; "
                + ("a number that does is needed" if fits is None else f"the next smaller number that does is {fits:,}")
            )

    @property
    def tokens(self) -> int:
        """Tokens of a prompt with its response."""
        return self.prompt_tokens + self.response_tokens


@dataclass(frozen=True)
class CostOptions:
    """Assumptions behind the costs of model calls.

    Attributes:
        recompute: recompute activations in the backward pass (gradient checkpointing).
        host_s_per_layer: minimum seconds per layer of a decode iteration, for an engine without CUDA graphs, whose host
            launches kernels one by one; 0 with CUDA graphs.
        all_reduce_share: share of the measured all-reduce time that is not overlapped with computation, such as 0.4.
        micro_batch_tokens: largest number of tokens of a pass; larger passes are split, which bounds the memory of activations.
        offload_bytes_per_s: bandwidth from host memory to a GPU; None: loading offloaded weights takes no time.
        offloaded_roles: roles whose weights are in host memory between calls.
        scalar_roles: roles whose models output one number per token instead of logits.
        node_bytes_per_s, network_bytes_per_s: bandwidth between GPUs of a node and between nodes; None: those of the tables.

    Raises:
        PlanningError: a number is out of range.

    Example:
        >>> from rlhfless.latency import CostOptions
        >>> CostOptions(host_s_per_layer=0.4e-3, offload_bytes_per_s=25e9).recompute
        True
    """

    recompute: bool = True
    host_s_per_layer: float = 0.0
    all_reduce_share: float = 1.0
    micro_batch_tokens: int = 16384
    offload_bytes_per_s: float | None = None
    offloaded_roles: tuple[str, ...] = ("reference", "reward")
    scalar_roles: tuple[str, ...] = ("critic", "reward")
    node_bytes_per_s: float | None = None
    network_bytes_per_s: float | None = None

    def __post_init__(self) -> None:
        check_flags(recompute=self.recompute)
        if not is_number(self.host_s_per_layer, 0):
            raise PlanningError(f"host_s_per_layer is {as_given(self.host_s_per_layer)}; 0 or more seconds are needed")
        if not is_number(self.all_reduce_share, 0) or self.all_reduce_share > 1:
            raise PlanningError(f"all_reduce_share is {as_given(self.all_reduce_share)}; a share of 0 to 1 is needed")
        if not is_whole(self.micro_batch_tokens, 1):
            raise PlanningError(
                f"micro_batch_tokens is {as_given(self.micro_batch_tokens)}; a whole number of 1 or more is needed"
            )
        for name in ("offload_bytes_per_s", "node_bytes_per_s", "network_bytes_per_s"):
            value = getattr(self, name)
            if value is not None and not (is_number(value, 0) and value > 0):
                raise PlanningError(f"{name} is {as_given(value)}; a number of bytes per second above 0, or None, is needed")
        for name in ("offloaded_roles", "scalar_roles"):
            roles = getattr(self, name)
            if isinstance(roles, str) or not all(isinstance(role, str) for role in roles):
                raise PlanningError(f"{name} are {as_given(roles)}; a tuple of names is needed")
            object.__setattr__(self, name, tuple(roles))
