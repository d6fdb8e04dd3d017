"""Defines ``Graph``: the model calls of one training step and what each waits for.

A call generates, infers (a forward pass over whole responses) or trains. A role is a model, such as the actor. Steps follow
each other. Calls of a trained role use the weights that its training of the step before produced, so they wait for it. These
waits across steps are derived, not given.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from solver.model.errors import PlanningError, as_given

GENERATE, INFERENCE, TRAIN = KINDS = ("generate", "inference", "train")


@dataclass(frozen=True)
class Call:
    """One model call of a step.

    Attributes:
        name: unique in its graph. role: the model that is called. kind: ``generate``, ``inference`` or ``train``.
        after: names of the calls of the same step that it waits for.
    """

    name: str
    role: str
    kind: str
    after: tuple[str, ...] = ()


@dataclass(frozen=True)
class Graph:
    """The calls of a step.

    Attributes:
        name: of the algorithm. calls: in any order.
        unlock: what training on a response waits for: the ``response``, or the ``group`` of all responses to its prompt.

    Raises:
        PlanningError: there is no call, two have one name, a kind or a call of ``after`` is unknown, a role is trained twice,
            or calls wait for each other in a circle.

    Example:
        >>> from solver.layouts import grpo
        >>> [call.name for call in grpo().calls]
        ['generate', 'reward', 'reference', 'train_actor']
    """

    name: str
    calls: tuple[Call, ...]
    unlock: Literal["response", "group"] = "response"

    def __post_init__(self) -> None:
        object.__setattr__(self, "calls", _calls(self.calls))
        if not isinstance(self.name, str):
            raise PlanningError(f"name of a graph is {as_given(self.name)}; a text is needed")
        for call in self.calls:
            _check_texts(call)
        names = [call.name for call in self.calls]
        for at, call in enumerate(self.calls):
            if call.name in names[:at]:
                raise PlanningError(f"two calls have the name {call.name!r}; every call needs a name of its own")
            if call.kind not in KINDS:
                raise PlanningError(f"kind of call {call.name!r} is {as_given(call.kind)}; one of {', '.join(KINDS)} is needed")
            unknown = [name for name in call.after if name not in names]
            if unknown:
                raise PlanningError(
                    f"call {call.name!r} waits for {unknown[0]!r}, which is not a call; calls are {', '.join(names)}"
                )
        trained = [call.role for call in self.calls if call.kind == TRAIN]
        for at, role in enumerate(trained):
            if role in trained[:at]:
                raise PlanningError(f"role {role!r} is trained by two calls; one training call per role is needed")
        self.order  # noqa: B018  refuses circles

    @cached_property
    def after(self) -> tuple[tuple[int, ...], ...]:
        """For every call the indices of the calls of its step that it waits for."""
        index = {call.name: at for at, call in enumerate(self.calls)}
        return tuple(tuple(sorted(index[name] for name in set(call.after))) for call in self.calls)

    @cached_property
    def trained_by(self) -> tuple[int | None, ...]:
        """For every call the index of the call that trains its role, None for a frozen role."""
        trains = {call.role: at for at, call in enumerate(self.calls) if call.kind == TRAIN}
        return tuple(trains.get(call.role) for call in self.calls)

    def training_of(self, call: int) -> int:
        """Return the index of the call that trains the role of a call, which must be a trained one."""
        train = self.trained_by[call]
        assert train is not None, f"no call trains the role of {self.calls[call].name!r}"
        return train

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Indices of the calls, each after those that it waits for, otherwise as given."""
        left, found = list(range(len(self.calls))), list[int]()
        while left:
            free = next((call for call in left if all(before in found for before in self.after[call])), None)
            if free is None:
                names = ", ".join(self.calls[call].name for call in left)
                raise PlanningError(f"the calls {names} wait for each other in a circle; remove one of their waits")
            left.remove(free)
            found.append(free)
        return tuple(found)


def _calls(calls: Iterable[Call]) -> tuple[Call, ...]:
    """Return the calls as a tuple; refuse anything else, and none."""
    found = tuple(calls) if isinstance(calls, Iterable) else ()
    if not found or not all(isinstance(call, Call) for call in found):
        raise PlanningError(f"calls are {as_given(calls)}; at least one Call is needed")
    return found


def _check_texts(call: Call) -> None:
    """Refuse names that are no texts, and anything but a tuple or list of them as ``after``."""
    for field in ("name", "role"):
        if not isinstance(value := getattr(call, field), str) or not value:
            raise PlanningError(f"{field} of call {as_given(call.name)} is {as_given(value)}; a text is needed")
    if not isinstance(call.after, tuple | list) or not all(isinstance(name, str) for name in call.after):
        raise PlanningError(f"after of call {call.name!r} is {as_given(call.after)}; a tuple of names of calls is needed")


def ppo() -> Graph:
    """Return PPO's step: generation, reward, reference and critic passes, and training of actor and critic."""
    judged = ("reward", "reference", "values")
    return Graph(
        "ppo",
        (
            Call("generate", "actor", GENERATE),
            Call("reward", "reward", INFERENCE, ("generate",)),
            Call("reference", "reference", INFERENCE, ("generate",)),
            Call("values", "critic", INFERENCE, ("generate",)),
            Call("train_critic", "critic", TRAIN, judged),
            Call("train_actor", "actor", TRAIN, judged),
        ),
    )


def grpo() -> Graph:
    """Return GRPO's step: generation, reward and reference passes, and training of the actor."""
    return Graph(
        "grpo",
        (
            Call("generate", "actor", GENERATE),
            Call("reward", "reward", INFERENCE, ("generate",)),
            Call("reference", "reference", INFERENCE, ("generate",)),
            Call("train_actor", "actor", TRAIN, ("reward", "reference")),
        ),
        "group",
    )


def remax() -> Graph:
    """Return ReMax's step: sampled and greedy generation, the rewards of both, a reference pass, and training of the actor."""
    return Graph(
        "remax",
        (
            Call("sample", "actor", GENERATE),
            Call("greedy", "actor", GENERATE),
            Call("reward_sample", "reward", INFERENCE, ("sample",)),
            Call("reward_greedy", "reward", INFERENCE, ("greedy",)),
            Call("reference", "reference", INFERENCE, ("sample",)),
            Call("train_actor", "actor", TRAIN, ("reward_sample", "reward_greedy", "reference")),
        ),
    )


def dpo() -> Graph:
    """Return DPO's step: a reference pass over given pairs of responses, and training of the actor."""
    return Graph("dpo", (Call("reference", "reference", INFERENCE), Call("train_actor", "actor", TRAIN, ("reference",))))
