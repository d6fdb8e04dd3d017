"""Builds RLHFuse's problem: actor and critic on the same devices, in opposite directions (arXiv:2409.13221, section 5)."""

from __future__ import annotations

from solver.model.errors import PlanningError, as_given
from solver.pipeline.problem import MOST_DEVICES, Chain, PipelineProblem, items, per_item, whole


def fused(
    actor: tuple[int, float, int],
    critic: tuple[int, float, int],
    *,
    activations: tuple[float, float] = (0.0, 0.0),
    backward_over_forward: float = 2.0,
    split_backward: bool = False,
) -> PipelineProblem:
    """Return the training of actor and critic on the same devices, in opposite directions.

    Args:
        actor, critic: stages, forward time of a stage, micro-batches. The actor's stages are on devices 0, 1, ...; as many
            copies of the critic as fit are on the same devices, each with so many micro-batches, in reversed order.
        activations: memory of a micro-batch at a stage of the actor and of the critic.
        backward_over_forward: time of a backward pass in forward passes.
        split_backward: as in ``PipelineProblem``.

    Raises:
        PlanningError: the critic's stages do not divide the actor's, or a value is out of range.

    Example:
        >>> from solver.pipeline import fused
        >>> [chain.route for chain in fused(actor=(4, 2, 8), critic=(2, 1, 4)).chains]
        [(0, 1, 2, 3), (1, 0), (3, 2)]
    """
    (stages, forward, micro_batches), (critic_stages, critic_forward, critic_micro_batches) = (
        _size("actor", actor), _size("critic", critic)
    )  # fmt: skip
    if stages % critic_stages:
        raise PlanningError(
            f"the critic has {critic_stages} stages, which do not divide the actor's {stages}; give a divisor of {stages}"
        )
    if len(items("activations", activations)) != 2:
        raise PlanningError(f"activations is {as_given(activations)}; one number each for actor and critic is needed")
    ratio = per_item("backward_over_forward", backward_over_forward, 1, above_zero=True)[0]
    chains = [Chain("actor", range(stages), micro_batches, forward, forward * ratio, activations[0])]
    for copy in range(stages // critic_stages):
        first = copy * critic_stages
        route = range(first + critic_stages - 1, first - 1, -1)
        name = "critic" if critic_stages == stages else f"critic {copy}"
        chains.append(Chain(name, route, critic_micro_batches, critic_forward, critic_forward * ratio, activations[1]))
    return PipelineProblem(chains, split_backward=split_backward)


def _size(name: str, given: tuple[int, float, int]) -> tuple[int, float, int]:
    if len(items(name, given)) != 3:
        raise PlanningError(f"{name} is {as_given(given)}; stages, forward time and micro-batches are needed")
    stages = whole(f"stages of the {name}", given[0], 1)
    if stages > MOST_DEVICES:
        raise PlanningError(f"stages of the {name} is {stages}; at most {MOST_DEVICES:,} are supported")
    forward = per_item(f"forward time of the {name}", given[1], 1, above_zero=True)[0]
    return stages, forward, whole(f"micro_batches of the {name}", given[2], 1)
