"""The table of policies: what each is called, what it does, what it takes to run it, and how plots draw it.

Whatever lists policies, explains them or draws them takes them from ``POLICY_TABLE``. A new policy is a row here and a maker in
``make_policy``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from rlhfless.system.colours import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILLION, YELLOW

if TYPE_CHECKING:
    import pandas as pd

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
"""Groups of policies; all but the last have makers in ``make_policy``."""

AS_IT_IS = "nothing: frameworks run like this"
ASSIGN = "assign responses before the step, and stop an engine when it is done"
MIGRATE = "assign responses before the step, on engines that hand running responses over"
DRAFT = "assign responses before the step, on engines with a drafter"
LEARN_AHEAD = "a trainer that learns while engines still decode"
UNKNOWN = "cannot be run: nobody knows true lengths before the step"


class PolicyInfo(NamedTuple):
    """Description of a policy, for tables and plots.

    Attributes:
        name: name for ``make_policy``. group: one of ``GROUPS``.
        sentence: what it does. to_do: what a user has to change to run it.
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
    label: str = ""
    needs_truth: bool = False
    typical: bool = False
    own_trade_off: bool = False
    colour: str = ""
    symbol: str = ""


_ROWS = (
    PolicyInfo(
        "static", "dispatch", "all actors; equal chunks of prompts in the given order; GPUs allocated until the last response",
        AS_IT_IS, typical=True, colour=GREY, symbol="circle",
    ),
    PolicyInfo(
        "least-loaded", "dispatch", "all actors; the next prompt goes to the actor with the fewest responses in flight",
        "a router that counts requests in flight, and stop an engine when it is done", colour=PURPLE, symbol="diamond",
    ),
    PolicyInfo(
        "rlhfuse", "published", "as static; when few responses are left, they all migrate at once (global cut)",
        MIGRATE, colour=ORANGE, symbol="triangle-up",
    ),
    PolicyInfo(
        "rlhfless", "published",
        "groups of equal count, sorted by predicted length; an actor's last responses migrate (local cut)",
        MIGRATE, typical=True, own_trade_off=True, colour=VERMILLION, symbol="triangle-down",
    ),
    PolicyInfo(
        "random", "simple",
        "right-sized number of actors; prompts assigned at random; GPUs released when an actor is done",
        ASSIGN, "random:\nrelease replicas\nearly", typical=True, colour=SKY, symbol="square",
    ),
    PolicyInfo(
        "spread", "simple", "as random, with the responses of each prompt spread over the actors, round-robin",
        ASSIGN, "spread:\nspread samples\nof a prompt", colour=SKY, symbol="diamond-tall",
    ),
    PolicyInfo(
        "fold", "simple",
        "as spread; nearly empty actors hand their responses over to others during the step; needs no predictions",
        MIGRATE, "fold:\nmerge nearly\nempty replicas", typical=True, colour=GREEN, symbol="pentagon",
    ),
    PolicyInfo(
        "random+tau", "rival", "as random; an actor's last responses migrate (local cut)", MIGRATE, own_trade_off=True
    ),
    PolicyInfo("karmarkar-karp", "rival", "as random; predicted sums of prompts balanced by largest differencing", ASSIGN),
    PolicyInfo("lpt", "rival", "as random; the prompt of the largest predicted sum goes to the least loaded actor", ASSIGN),
    PolicyInfo("trl", "rival", "as random; equal chunks of prompts in the given order", ASSIGN),
    PolicyInfo(
        "solver", "ours",
        "assigns responses by predicted lengths where this also helps on lengths it did not plan with, else as random",
        ASSIGN, typical=True, colour=BLUE, symbol="star",
    ),
    PolicyInfo(
        "solver+replan", "ours",
        "as solver; responses migrate during the step where the lengths observed so far make it pay off",
        MIGRATE, "solver+replan:\nuse predicted\nlengths", colour=BLUE, symbol="bowtie",
    ),
    PolicyInfo(
        "oracle", "oracle", "as solver with the true lengths, without migration",
        UNKNOWN, needs_truth=True, typical=True, colour=YELLOW, symbol="star-triangle-up",
    ),
    PolicyInfo(
        "oracle+replan", "oracle", "as solver+replan with the true lengths, which are unknown beforehand in practice",
        UNKNOWN, "oracle+replan:\nuse true\nlengths", needs_truth=True, colour=YELLOW, symbol="hexagram",
    ),
    PolicyInfo(
        "rlhfuse+stream", "stage fusion", "as rlhfuse, and learns from finished responses while others are decoded", LEARN_AHEAD
    ),
    PolicyInfo(
        "stream", "stage fusion", "as static, and learns from finished responses while others are decoded", LEARN_AHEAD
    ),
    PolicyInfo("spec", "drafts", "as random, with drafts whose length each response's acceptance decides", DRAFT),
    PolicyInfo("spec+fold", "drafts", "as fold, with drafts whose length each response's acceptance decides", DRAFT),
    PolicyInfo("spec+critical", "drafts", "as spec, with longer drafts for responses that are predicted to end last", DRAFT),
    PolicyInfo("spec-fixed-N", "drafts", "as random, with drafts of N tokens", DRAFT),
    PolicyInfo(
        "least-loaded, held", "ladder", "as least-loaded; GPUs allocated until the last response",
        AS_IT_IS, colour=PURPLE, symbol="diamond-open",
    ),
    PolicyInfo(
        "right-sizing", "ladder", "as random; GPUs allocated until the last response",
        "start fewer engines", "right-sizing:\nstart fewer\nreplicas", colour=SKY, symbol="square-open",
    ),
    PolicyInfo("solver+replan, drafts", "ladder", "as solver+replan, with drafts", DRAFT, "speculation:\ndraft and\nverify"),
    PolicyInfo(
        "oracle+replan, drafts", "ladder", "as oracle+replan, with drafts", UNKNOWN, "with drafts:\nuse true\nlengths",
        needs_truth=True,
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
    """Return the table of policies that ``make_policy`` makes, indexed by name; columns as of ``PolicyInfo``.

    Example:
        >>> from rlhfless.scheduling import policies
        >>> policies().loc["random", "to_do"]
        'assign responses before the step, and stop an engine when it is done'
    """
    import pandas as pd

    rows = [info._replace(label=info.label.replace("\n", " ")) for info in POLICY_TABLE.values() if info.group != "ladder"]
    return pd.DataFrame(rows).set_index("name")
