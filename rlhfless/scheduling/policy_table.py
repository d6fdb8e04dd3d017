"""The table of policies: what each is called, what it does, how it is made, what it takes to run it, and how plots draw it.

Whatever makes, lists, explains or draws policies takes them from ``POLICY_TABLE``. A new policy is a row here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

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
from rlhfless.scheduling.policy import FunctionPolicy, PolicyError, PolicyFunction, SchedulingPolicy, check_takes
from rlhfless.scheduling.replan import OracleReplan, SolverReplan
from rlhfless.scheduling.rlhfless import RLHFless
from rlhfless.scheduling.rlhfuse import RLHFuse
from rlhfless.scheduling.rules import Fold, WithLocalCut
from rlhfless.scheduling.solver import Solver
from rlhfless.scheduling.speculative import FIXED, Speculative, fixed_length
from rlhfless.system.colours import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILLION, YELLOW
from solver.model.drafting import Drafting
from solver.model.errors import as_given, is_number, is_whole

if TYPE_CHECKING:
    import pandas as pd

HOLDS = ("generation", "step")
GROUPS = {
    "dispatch": "as frameworks assign responses today",
    "published": "from papers",
    "simple": "simple rules, without predicted lengths of single responses",
    "rival": "further rules that benchmarks compare with",
    "ours": "planned with predicted lengths",
    "oracle": "planned with true lengths",
    "stage fusion": "learn from responses while others are decoded",
    "drafts": "speculative decoding; N is a number of tokens, such as ``spec-fixed-4``",
    "ladder": "parts of a comparison that adds one idea at a time (``ladder``)",
}
"""Groups of policies; ``make_policy`` makes those of all but the last."""
LADDER = "ladder"

AS_IT_IS = "nothing: frameworks run like this"
ASSIGN = "assign responses before the step, and stop an engine when it is done"
MIGRATE = "assign responses before the step, on engines that hand running responses over"
DRAFT = "assign responses before the step, on engines with a drafter"
LEARN_AHEAD = "a trainer that learns while engines still decode"
UNKNOWN = "cannot be run: nobody knows true lengths before the step"


class PolicyParameters(NamedTuple):
    """What ``make_policy`` is given beside a name; ``draft_tokens`` is part of the name."""

    tau: float = 0.7
    static_actors: int | None = None
    hold: str = "generation"
    draft_tokens: int = 0


class PolicyInfo(NamedTuple):
    """Description of a policy, for tables and plots.

    Attributes:
        name: name for ``make_policy``. group: one of ``GROUPS``.
        sentence: what it does. to_do: what a user has to change to run it.
        make: makes it; parameters that it does not have are ignored.
        label: axis label, with line breaks; empty: the name.
        needs_truth: it plans with true lengths, which are unknown beforehand.
        typical: it represents its group in comparisons of few policies.
        own_trade_off: it hands responses over to release GPUs early whatever the time weight, so it cannot minimise time alone.
        colour, symbol: of its marker; empty: plots choose both.
    """

    name: str
    group: str
    sentence: str
    to_do: str
    make: Callable[[PolicyParameters], SchedulingPolicy]
    label: str = ""
    needs_truth: bool = False
    typical: bool = False
    own_trade_off: bool = False
    colour: str = ""
    symbol: str = ""


_ROWS = (
    PolicyInfo(
        "static", "dispatch", "all actors; equal chunks of prompts in the given order; GPUs allocated until the last response",
        AS_IT_IS,
        lambda of: Static(of.static_actors, of.hold),
        typical=True, colour=GREY, symbol="circle",
    ),
    PolicyInfo(
        "least-loaded", "dispatch", "all actors; the next prompt goes to the actor with the fewest responses in flight",
        "a router that counts requests in flight, and stop an engine when it is done",
        lambda _: LeastLoaded(),
        colour=PURPLE, symbol="diamond",
    ),
    PolicyInfo(
        "rlhfuse", "published", "as static; when few responses are left, they all migrate at once (global cut)",
        MIGRATE,
        lambda of: RLHFuse(actors=of.static_actors),
        colour=ORANGE, symbol="triangle-up",
    ),
    PolicyInfo(
        "rlhfless", "published",
        "groups of equal count, sorted by predicted length; an actor's last responses migrate (local cut)",
        MIGRATE,
        lambda of: RLHFless(of.tau),
        typical=True, own_trade_off=True, colour=VERMILLION, symbol="triangle-down",
    ),
    PolicyInfo(
        "random", "simple", "right-sized number of actors; prompts assigned at random; GPUs released when an actor is done",
        ASSIGN,
        lambda _: Random(),
        label="random:\nrelease replicas\nearly", typical=True, colour=SKY, symbol="square",
    ),
    PolicyInfo(
        "spread", "simple", "as random, with the responses of each prompt spread over the actors, round-robin",
        ASSIGN,
        lambda _: Spread(),
        label="spread:\nspread samples\nof a prompt", colour=SKY, symbol="diamond-tall",
    ),
    PolicyInfo(
        "fold", "simple",
        "as spread; nearly empty actors hand their responses over to others during the step; needs no predictions",
        MIGRATE,
        lambda _: Fold(Spread()),
        label="fold:\nmerge nearly\nempty replicas", typical=True, colour=GREEN, symbol="pentagon",
    ),
    PolicyInfo(
        "random+tau", "rival", "as random; an actor's last responses migrate (local cut)",
        MIGRATE,
        lambda of: WithLocalCut(of.tau),
        own_trade_off=True,
    ),
    PolicyInfo(
        "karmarkar-karp", "rival", "as random; predicted sums of prompts balanced by largest differencing",
        ASSIGN,
        lambda _: SplitPrompts("karmarkar-karp", balanced_ranks),
    ),
    PolicyInfo(
        "lpt", "rival", "as random; the prompt of the largest predicted sum goes to the least loaded actor",
        ASSIGN,
        lambda _: SplitPrompts("lpt", longest_first),
    ),
    PolicyInfo(
        "trl", "rival", "as random; equal chunks of prompts in the given order",
        ASSIGN,
        lambda _: SplitPrompts("trl", equal_chunks),
    ),
    PolicyInfo(
        "solver", "ours",
        "assigns responses by predicted lengths where this also helps on lengths it did not plan with, else as random",
        ASSIGN,
        lambda _: Solver(),
        typical=True, colour=BLUE, symbol="star",
    ),
    PolicyInfo(
        "solver+replan", "ours",
        "as solver; responses migrate during the step where the lengths observed so far make it pay off",
        MIGRATE,
        lambda _: SolverReplan(),
        label="solver+replan:\nuse predicted\nlengths", colour=BLUE, symbol="bowtie",
    ),
    PolicyInfo(
        "oracle", "oracle", "as solver with the true lengths, without migration",
        UNKNOWN,
        lambda _: Solver("oracle", clairvoyant=True),
        needs_truth=True, typical=True, colour=YELLOW, symbol="star-triangle-up",
    ),
    PolicyInfo(
        "oracle+replan", "oracle", "as solver+replan with the true lengths, which are unknown beforehand in practice",
        UNKNOWN,
        lambda _: OracleReplan(),
        label="oracle+replan:\nuse true\nlengths", needs_truth=True, colour=YELLOW, symbol="hexagram",
    ),
    PolicyInfo(
        "rlhfuse+stream", "stage fusion", "as rlhfuse, and learns from finished responses while others are decoded",
        LEARN_AHEAD,
        lambda of: RLHFuse(actors=of.static_actors, name="rlhfuse+stream", fuse="learn"),
    ),
    PolicyInfo(
        "stream", "stage fusion", "as static, and learns from finished responses while others are decoded",
        LEARN_AHEAD,
        lambda of: RLHFuse(0.0, actors=of.static_actors, name="stream", fuse="learn"),
    ),
    PolicyInfo(
        "spec", "drafts", "as random, with drafts whose length each response's acceptance decides",
        DRAFT,
        lambda _: Speculative(),
    ),
    PolicyInfo(
        "spec+fold", "drafts", "as fold, with drafts whose length each response's acceptance decides",
        DRAFT,
        lambda _: Speculative(base=Fold(Spread()), name="spec+fold"),
    ),
    PolicyInfo(
        "spec+critical", "drafts", "as spec, with longer drafts for responses that are predicted to end last",
        DRAFT,
        lambda _: Speculative(Drafting(length="critical"), name="spec+critical"),
    ),
    PolicyInfo(
        "spec-fixed-N", "drafts", "as random, with drafts of N tokens",
        DRAFT,
        lambda of: Speculative(
            Drafting(max_draft_tokens=max(of.draft_tokens, 8), length=of.draft_tokens), name=f"{FIXED}{of.draft_tokens}"
        ),
    ),
    PolicyInfo(
        "least-loaded, held", "ladder", "as least-loaded; GPUs allocated until the last response",
        AS_IT_IS,
        lambda _: LeastLoaded(release="generation", name="least-loaded, held"),
        colour=PURPLE, symbol="diamond-open",
    ),
    PolicyInfo(
        "right-sizing", "ladder", "as random; GPUs allocated until the last response",
        "start fewer engines",
        lambda _: Random(release="generation", name="right-sizing"),
        label="right-sizing:\nstart fewer\nreplicas", colour=SKY, symbol="square-open",
    ),
    PolicyInfo(
        "solver+replan, drafts", "ladder", "as solver+replan, with drafts",
        DRAFT,
        lambda _: Speculative(base=SolverReplan(), name="solver+replan, drafts"),
        label="speculation:\ndraft and\nverify",
    ),
    PolicyInfo(
        "oracle+replan, drafts", "ladder", "as oracle+replan, with drafts",
        UNKNOWN,
        lambda _: Speculative(base=OracleReplan(), name="oracle+replan, drafts"),
        label="with drafts:\nuse true\nlengths", needs_truth=True,
    ),
)  # fmt: skip

POLICY_TABLE = {row.name: row._replace(label=row.label or row.name) for row in _ROWS}
"""All policies by name."""


def policy_names(*groups: str, typical: bool = False) -> tuple[str, ...]:
    """Return the names of the policies in these ``GROUPS``, group by group.

    With ``typical``, return only the policies that represent their group.

    Example:
        >>> from rlhfless.scheduling import policy_names
        >>> policy_names("simple", "ours")
        ('random', 'spread', 'fold', 'solver', 'solver+replan')
        >>> policy_names("simple", "ours", typical=True)
        ('random', 'fold', 'solver')
    """
    rows = [(group, info) for group in groups for info in POLICY_TABLE.values()]
    return tuple(info.name for group, info in rows if info.group == group and (info.typical or not typical))


def policies() -> pd.DataFrame:
    """Return the table of policies that ``make_policy`` makes, indexed by name; columns as of ``PolicyInfo``, without ``make``.

    Example:
        >>> from rlhfless.scheduling import policies
        >>> policies().loc["random", "to_do"]
        'assign responses before the step, and stop an engine when it is done'
    """
    import pandas as pd

    rows = [info._replace(label=info.label.replace("\n", " ")) for info in POLICY_TABLE.values() if info.group != LADDER]
    return pd.DataFrame(rows).drop(columns="make").set_index("name")


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
    if not isinstance(name, str):
        raise PolicyError(f"policy is {as_given(name)}; the name of one is needed, such as 'solver'")
    if not is_number(tau) or not 0 < tau <= 1:
        raise PolicyError(f"tau is {as_given(tau)}; a share above 0 and up to 1 is needed (at 1 no response migrates)")
    if static_actors is not None and not is_whole(static_actors, 1):
        raise PolicyError(f"static_actors is {as_given(static_actors)}; a whole number of at least 1 is needed")
    if hold not in HOLDS:
        raise PolicyError(f"hold is {as_given(hold)}; choose from {', '.join(HOLDS)}")
    parameters = PolicyParameters(tau, static_actors, hold)
    if name.startswith(FIXED):
        parameters, name = parameters._replace(draft_tokens=fixed_length(name)), f"{FIXED}N"
    names = (*POLICIES, *policy_names(*SPECIAL))
    if name not in names:
        raise PolicyError(f"policy {name!r} is unknown; choose from {', '.join(names)}")
    return POLICY_TABLE[name].make(parameters)


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
    if isinstance(given, type) and callable(getattr(given, "plan", None)):
        raise PolicyError(f"policy is the class {given.__name__}; give an object of it: {given.__name__}(...)")
    if callable(getattr(given, "plan", None)):
        for attribute, such_as in (("name", "'my policy'"), ("clairvoyant", "False")):
            if not hasattr(given, attribute):
                raise PolicyError(
                    f"policy {type(given).__name__} has no {attribute}; write {attribute} = {such_as} in its class"
                )
        check_takes(given.name, given.plan)  # type: ignore[union-attr]
        return given  # type: ignore[return-value]
    if callable(given) and not isinstance(given, type):
        return FunctionPolicy(given, getattr(given, "__name__", type(given).__name__))
    raise PolicyError(f"policy is {as_given(given)}; a name, an object with a method plan, or a function is needed")


def ladder(dispatch: str = "static", drafting: bool = False) -> tuple[SchedulingPolicy, ...]:
    """Return policies for an ablation, each of which adds one idea to the one before it.

    From the run's own dispatch to the oracle, the ideas are: the right number of replicas, early release, spreading a prompt's
    samples, consolidating nearly empty replicas, re-planning with predictions, speculative decoding (optional), true lengths.
    The difference between two results is the contribution of an idea on a log; it can be negative. The policies
    ``right-sizing``, ``least-loaded, held`` and the two that end in ``, drafts`` are of group ``ladder``; the others are in
    ``POLICIES``.

    Args:
        dispatch: the first policy, ``static`` or ``least-loaded``, on all actors, with GPUs held until the last response.
        drafting: the last two policies use speculative decoding; this needs a setting that states the acceptance.

    Raises:
        PolicyError: the dispatch is unknown.
    """
    firsts = {"static": "static", "least-loaded": "least-loaded, held"}
    if dispatch not in firsts:
        raise PolicyError(f"dispatch {dispatch!r} cannot start an ablation; one of {', '.join(firsts)} is needed")
    lengths = ("solver+replan, drafts", "oracle+replan, drafts") if drafting else ("oracle+replan",)
    names = (firsts[dispatch], "right-sizing", "random", "spread", "fold", "solver+replan", *lengths)
    return tuple(POLICY_TABLE[name].make(PolicyParameters()) for name in names)
