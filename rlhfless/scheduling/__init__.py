"""Scheduling policies by name: published systems, simple baselines and our own.

``policies()`` is the table of all policies, ``make_policy(name)`` makes one, and ``as_policy`` also takes objects and
functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlhfless.scheduling.assignments import (
    LeastLoaded,
    Random,
    SplitPrompts,
    Spread,
    Static,
    balanced_ranks,
    equal_chunks,
    longest_first,
)
from rlhfless.scheduling.policy import FunctionPolicy, PlanningOptions, PolicyError, PolicyFunction, SchedulingPolicy
from rlhfless.scheduling.policy_table import GROUPS, POLICY_TABLE, PolicyInfo, policies, policy_names
from rlhfless.scheduling.replan import OracleReplan, SolverReplan
from rlhfless.scheduling.rlhfless import RLHFless
from rlhfless.scheduling.rlhfuse import RLHFuse
from rlhfless.scheduling.rules import Fold, WithLocalCut
from rlhfless.scheduling.solver import Solver
from rlhfless.scheduling.speculative import FIXED, Speculative, fixed_length
from solver.model.drafting import Drafting
from solver.model.errors import as_given

POLICIES = policy_names("dispatch", "published", "simple", "rival", "ours", "oracle")
SPECIAL = ("stage fusion", "drafts")  # groups whose policies need work to fuse, or drafts


def make_policy(name: str, *, tau: float = 0.7, static_actors: int | None = None, hold: str = "generation") -> SchedulingPolicy:
    """Return the policy called ``name``. Parameters that a policy does not have are ignored.

    Args:
        tau: for ``rlhfless`` and ``random+tau``: share of an actor's responses after which the rest migrate.
        static_actors: number of actors of ``static`` and ``rlhfuse``; as many as fit when None.
        hold: for ``static``: GPUs are held until the end of ``generation`` or of the ``step``.

    Raises:
        PolicyError: the name is unknown, or a parameter is out of its range; the message says what would be right.
    """
    if not 0 < tau <= 1:
        raise PolicyError(f"tau is {tau}; a share above 0 and up to 1 is needed (at 1 no response migrates)")
    if static_actors is not None and static_actors < 1:
        raise PolicyError(f"static_actors is {static_actors}; at least 1 is needed")
    makers: dict[str, Callable[[], SchedulingPolicy]] = {
        "static": lambda: Static(static_actors, hold),
        "random": Random,
        "random+tau": lambda: WithLocalCut(tau),
        "least-loaded": LeastLoaded,
        "karmarkar-karp": lambda: SplitPrompts("karmarkar-karp", balanced_ranks),
        "lpt": lambda: SplitPrompts("lpt", longest_first),
        "trl": lambda: SplitPrompts("trl", equal_chunks),
        "rlhfuse": lambda: RLHFuse(actors=static_actors),
        "rlhfuse+stream": lambda: RLHFuse(actors=static_actors, name="rlhfuse+stream", fuse="learn"),
        "stream": lambda: RLHFuse(0.0, actors=static_actors, name="stream", fuse="learn"),
        "rlhfless": lambda: RLHFless(tau),
        "spread": Spread,
        "fold": lambda: Fold(Spread()),
        "solver": Solver,
        "solver+replan": SolverReplan,
        "oracle": lambda: Solver("oracle", clairvoyant=True),
        "oracle+replan": OracleReplan,
        "spec": Speculative,
        "spec+fold": lambda: Speculative(base=Fold(Spread()), name="spec+fold"),
        "spec+critical": lambda: Speculative(Drafting(length="critical"), name="spec+critical"),
    }
    if name.startswith(FIXED):
        length = fixed_length(name)
        return Speculative(Drafting(max_draft_tokens=max(length, 8), length=length), name=name)
    if name not in makers:
        raise PolicyError(f"policy {name!r} is unknown; choose from {', '.join((*POLICIES, *policy_names(*SPECIAL)))}")
    return makers[name]()


def as_policy(given: str | SchedulingPolicy | PolicyFunction, **parameters: Any) -> SchedulingPolicy:
    """Return a scheduling policy, given by name, as an object, or as a function ``(problem, options) -> Plan``.

    Args:
        given: the policy. A function is called with predicted lengths, and its name becomes the policy's.
        parameters: passed to ``make_policy``.

    Raises:
        PolicyError: the name is unknown, or ``given`` is not a policy.

    Example:
        >>> import rlhfless as rl, solver
        >>> def two_actors(problem, options):
        ...     return solver.random_split(problem, actors=2, seed=options.seed)
        >>> run = rl.load(rl.example(), verbose=False)
        >>> run.simulate([two_actors], steps=run.steps[-1:]).table[["policy", "actors"]].values.tolist()
        [['two_actors', 2]]
    """
    if isinstance(given, str):
        return make_policy(given, **parameters)
    if callable(getattr(given, "plan", None)) and not isinstance(given, type):
        return given  # type: ignore[return-value]
    if callable(given) and not isinstance(given, type):
        return FunctionPolicy(given, getattr(given, "__name__", type(given).__name__))
    raise PolicyError(f"policy is {as_given(given)}; a name, an object with a method plan, or a function is needed")


def ladder(dispatch: str = "static", drafting: bool = False) -> tuple[SchedulingPolicy, ...]:
    """Return policies for an ablation, each of which adds one idea to the one before it.

    From the run's own dispatch to the oracle, the ideas are: the right number of replicas, early release, spreading a prompt's
    samples, consolidating nearly empty replicas, re-planning with predictions, speculative decoding (optional), true lengths.
    The difference between two results is the contribution of an idea on a log; it can be negative. The policies
    ``right-sizing``, ``least-loaded, held`` and the two that end in ``, drafts`` exist only here; the others are in
    ``POLICIES``.

    Args:
        dispatch: the first policy, ``static`` or ``least-loaded``, on all actors, with GPUs held until the last response.
        drafting: the last two policies use speculative decoding; this needs a setting that states the acceptance.

    Raises:
        PolicyError: the dispatch is unknown.
    """
    firsts: dict[str, SchedulingPolicy] = {
        "static": Static(),
        "least-loaded": LeastLoaded(release="generation", name="least-loaded, held"),
    }
    if dispatch not in firsts:
        raise PolicyError(f"dispatch {dispatch!r} cannot start an ablation; one of {', '.join(firsts)} is needed")
    predicted, true = make_policy("solver+replan"), make_policy("oracle+replan")
    return (
        firsts[dispatch],
        Random(release="generation", name="right-sizing"),
        *(make_policy(name) for name in ("random", "spread", "fold")),
        predicted,
        *(Speculative(base=base, name=f"{base.name}, drafts") for base in (predicted, true) if drafting),
        *(() if drafting else (true,)),
    )


__all__ = ["GROUPS", "POLICIES", "POLICY_TABLE", "FunctionPolicy", "PlanningOptions", "PolicyError",
           "PolicyFunction", "PolicyInfo", "SchedulingPolicy", "as_policy", "ladder", "make_policy", "policies",
           "policy_names"]  # fmt: skip


def __dir__() -> list[str]:
    return sorted(__all__)
