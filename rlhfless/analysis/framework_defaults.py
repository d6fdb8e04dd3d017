"""Assumed set-up of a logged run: which actor got which response, and whether the learner had GPUs of its own.

The assumptions are the defaults of training frameworks. Logs seldom say these things, and the column ``actor`` of a log that
does is not used. Every value that the user does not state is therefore an assumption, and is named as one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rlhfless.errors import InputError
from rlhfless.scheduling import SchedulingPolicy
from rlhfless.scheduling.assignments import LeastLoaded, Static

DISPATCHES = ("static", "least-loaded")
"""Scheduling policies that need no predictions: equal chunks of the given order, and fewest responses in flight.

Both keep the samples of a prompt together, although routers of frameworks send every request alone."""

ORDERS = 6  # random orders of prompts that stand in for one that is not known
SHUFFLED: dict[str, tuple[SchedulingPolicy, ...]] = {
    "static": tuple(Static(name=f"static, order {i}", shuffled=i) for i in range(ORDERS)),
    "least-loaded": tuple(LeastLoaded(name=f"least-loaded, order {i}", shuffled=i) for i in range(ORDERS)),
}
"""The same of prompts in random orders, by dispatch: for a log whose rows are not in the order of dispatch."""

BOTH_RULES = "; ranges cover both dispatch rules, equal chunks and fewest responses in flight"
BOTH_ORDERS = "; ranges cover the log's order and random orders"
ORDER_UNKNOWN = "the order in which prompts were assigned is unknown, because {why}" + BOTH_ORDERS
LOGGED_ANEW = "verl balances lengths between its ranks or sorts prompts by random ids before it writes"
LENGTHS_DRAWN = "lengths are drawn"
DRAWN = "lengths_drawn"
"""Of meta.json of a log without responses: how their lengths were drawn, in sentences (``analysis.drawn_lengths``)."""
RULES = {"static": "equal chunks", "least-loaded": "fewest responses in flight"}
"""The dispatches, in words."""


@dataclass(frozen=True)
class FrameworkDefaults:
    """What a framework does unless it is configured otherwise.

    Attributes:
        dispatch: one of ``DISPATCHES``. colocated: actors and learner take turns on the same GPUs.
        synchronous: a step's learning waits for the step's last response.
        dispatches, learns: what it does about dispatch, and about the learner, in words.
        phase_times: how the framework logs seconds of its phases, and the file that has them then; empty where no importer
            reads them.
    """

    dispatch: str
    colocated: bool
    synchronous: bool
    dispatches: str
    learns: str
    phase_times: str = ""


FRAMEWORK_DEFAULTS = {
    "verl": FrameworkDefaults(
        "least-loaded", True, True,
        "verl sends a request to the replica with the fewest in flight (releases before its asynchronous rollout cut the batch "
        "into equal chunks)",
        "learns on the same GPUs",
        "verl logs them with trainer.logger=[console,file], in {experiment}.jsonl",
    ),
    "trl": FrameworkDefaults(
        "static", True, True, "TRL cuts the batch into equal chunks", "learns, where vLLM is colocated, on its GPUs",
        "TRL logs them with report_to='wandb', in wandb/run-*/run-*.wandb (WANDB_MODE=offline included)",
    ),
    "openrlhf": FrameworkDefaults(
        "least-loaded", True, True,
        "OpenRLHF sends a prompt to the engine with the fewest in flight (older releases cut the batch into equal chunks)",
        "learns, where all models are colocated, on its GPUs",
        "OpenRLHF logs them in its console output",
    ),
    "nemo-rl": FrameworkDefaults(
        "static", True, True, "NeMo-RL cuts the batch into equal chunks", "learns on the same GPUs",
        "NeMo-RL logs them with logger.tensorboard_enabled=true, beside train_data_step*.jsonl",
    ),
    "areal": FrameworkDefaults(
        "least-loaded", False, False,
        "AReaL assigns requests to its servers round-robin, which is simulated as fewest responses in flight (both give every "
        "server equally many)",
        "learns on other GPUs",
    ),
    "slime": FrameworkDefaults(
        "least-loaded", False, True, "slime's router balances requests in flight", "learns on other GPUs",
        "slime logs them with --use-tensorboard or --use-wandb",
    ),
    "prime-rl": FrameworkDefaults(
        "least-loaded", False, False, "prime-rl balances requests in flight", "learns on other GPUs",
    ),
}  # fmt: skip
"""By the name of the import format; a table or a recorded trace of an unknown loop is taken for ``UNKNOWN``."""

UNKNOWN = FrameworkDefaults(
    "static", True, True,
    "the framework is unknown; it is taken to cut the batch into equal chunks", "to learn on the same GPUs",
)  # fmt: skip


@dataclass(frozen=True)
class RunSetup:
    """How a run assigned responses to actors and allocated its GPUs.

    Attributes:
        framework: the framework that wrote the log.
        dispatch: the scheduling policy that assigns responses as the run did.
        candidates: all policies that it may have used, ``dispatch`` included; savings are stated as ranges over them.
        colocated: actors and learner take turns on the same GPUs.
        learner_gpus: separate GPUs of the learner, if known; if it shares the actors' GPUs, how many it uses (0: all).
        synchronous: learning waited for a step's last response.
        assumed: the assumptions, one sentence each.
        order_known: the log's rows are in the order of dispatch. If not, ``candidates`` also has every dispatch in random
            orders, under the names in ``SHUFFLED``.
    """

    framework: str
    dispatch: str
    candidates: tuple[str, ...]
    colocated: bool
    learner_gpus: int
    synchronous: bool
    assumed: tuple[str, ...]
    order_known: bool = True

    @property
    def assumed_of_one(self) -> tuple[str, ...]:
        """The assumptions behind a simulation under ``dispatch`` alone, in the order of the log."""
        changes = {BOTH_RULES: f"; simulated as {RULES[self.dispatch]}", BOTH_ORDERS: "; simulated in the log's order"}
        sentences = list(self.assumed)
        for ranges, one in changes.items():
            sentences = [sentence.replace(ranges, one) for sentence in sentences]
        return tuple(sentences)

    @property
    def shuffled(self) -> tuple[SchedulingPolicy, ...]:
        """The candidates with a random order of dispatch; empty if the order is known."""
        return tuple(policy for policies in SHUFFLED.values() for policy in policies if policy.name in self.candidates)

    def learns_on(self, gpus: int) -> int:
        """Return the number of learner GPUs for a number of generating GPUs; 0 if unknown."""
        if not self.colocated:
            return self.learner_gpus
        return min(self.learner_gpus or gpus, gpus)

    @property
    def counted_learner_gpus(self) -> int:
        """The learner's separate GPUs that count in a step; 0 if it learns while others generate."""
        return self.learner_gpus if self.synchronous and not self.colocated else 0


def run_setup(
    framework: str,
    *,
    dispatch: str | None = None,
    learner_gpus: int | None = None,
    order_known: bool = True,
    drawn: bool = False,
) -> RunSetup:
    """Return the set-up of a run: the facts that the user states, and the framework's defaults for the rest.

    Args:
        framework: name of the import format, or any other text where it is unknown.
        dispatch: one of ``DISPATCHES``.
        learner_gpus: separate GPUs of the learner; 0: it shares the actors' GPUs.
        order_known: see ``RunSetup``. drawn: it is unknown because the log has no responses, so that lengths were drawn.

    Raises:
        InputError: the dispatch is unknown, or the number of GPUs is negative.
    """
    if dispatch is not None and dispatch not in DISPATCHES:
        raise InputError(f"dispatch {dispatch!r} is unknown; one of {', '.join(DISPATCHES)} is needed")
    if learner_gpus is not None and learner_gpus < 0:
        raise InputError(f"learner_gpus is {learner_gpus}; 0 (the learner shares the actors' GPUs) or more is needed")
    habit = FRAMEWORK_DEFAULTS.get(framework, UNKNOWN)
    used = habit.dispatch if dispatch is None else dispatch
    alternatives = () if dispatch is not None else tuple(rule for rule in DISPATCHES if rule != used)
    candidates = (used, *alternatives)
    if not order_known:
        candidates += tuple(policy.name for rule in candidates for policy in SHUFFLED[rule])
    colocated = habit.colocated if learner_gpus is None else learner_gpus == 0
    unknown = ORDER_UNKNOWN.format(why=LENGTHS_DRAWN if drawn else LOGGED_ANEW)
    assumed = (*_assumed(habit, dispatch, learner_gpus), *(() if order_known else (unknown,)))
    return RunSetup(framework, used, candidates, colocated, learner_gpus or 0, habit.synchronous, assumed, order_known)


def _assumed(habit: FrameworkDefaults, dispatch: str | None, learner_gpus: int | None) -> Iterator[str]:
    if dispatch is None:
        learns = f" and {habit.learns}" if learner_gpus is None else ""
        yield f"{habit.dispatches}{learns}{BOTH_RULES}"
    if learner_gpus is None and not habit.colocated:
        yield "the number of learner GPUs is unknown, so only the actors' GPUs are counted"
    if not habit.synchronous:
        yield (
            "this framework learns while it generates, so learning and its GPUs are left out; waiting for a step's last "
            "response is computed for a synchronous step with the same responses, although this run does not wait"
        )
