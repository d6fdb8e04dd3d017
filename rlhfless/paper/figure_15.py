"""Figure 15: the paper's three parameters: the predictor's window, tau of the local cut, lambda of the scaling.

Computed with the published policy under other parameters; references are the comparators of the other figures. The parameters
act on generation, so the statements are about generation alone; whole steps are shown as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from rlhfless.paper.comparison import ELASTIC_TEXT, SCOPES, Outcome, compare, label_of, totals
from rlhfless.paper.draw import COLOURS, DASHES, SYMBOLS, WIDE_LEGEND
from rlhfless.paper.lengths import GPQA, GSM8K
from rlhfless.paper.machine import QWEN_3B_L40S, Machine
from rlhfless.paper.paper_figure import Caption, Claim, Numbers, PaperFigure, Row
from rlhfless.paper.variants import FixedActors
from rlhfless.paper.wording import spread
from rlhfless.paper.workloads import LengthHistory, Sources, about_logs, modelled
from rlhfless.plots.style import styled
from rlhfless.predict import EwmaPredictor
from rlhfless.scheduling import SchedulingPolicy
from rlhfless.scheduling.rlhfless import RLHFless

TITLE = "Figure 15: window, tau and lambda of RLHFless"
PANELS = {"window": "EWMA window (epochs)", "tau": "tau, on 3 actors", "lambda": "lambda"}
NAMES = {"window": "the window", "tau": "tau (3 actors)", "lambda": "lambda"}
SAME = 0.01  # costs that differ by less count as the same
MARGINAL = 0.05  # costs that differ by less differ marginally
COMPARED = ("static", "static-generation", "elastic", "random", "rlhfuse", "solver+replan", "oracle")
REFERENCES = (*COMPARED, "bound")
SHORT = {
    "static-generation": "naive, released", "elastic": "elastic", "random": "random", "rlhfuse": "RLHFuse",
    "rlhfless": "RLHFless", "solver+replan": "ours", "oracle": "oracle",
}  # fmt: skip
SCOPE_TEXT = {"step": "whole steps", "generation": "generation alone"}
FIRST_COLOUR = {"window": 3, "tau": 0, "lambda": 0}
PAPER_CHOICE = {"window": 1, "tau": 0.7, "lambda": 0.7}


@dataclass(frozen=True)
class Figure15Setting:
    """Setting: windows over 15 epochs, tau and lambda from 0.3 to 0.9, as printed, and no cut (tau = 1); tau on the paper's
    fixed 3 actors."""

    windows: tuple[int, ...] = (1, 2, 3, 4)
    taus: tuple[float, ...] = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
    lambdas: tuple[float, ...] = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    actors: int = 3
    responses: int = 512
    epochs: int = 3
    max_steps: int = 12
    machine: Machine = QWEN_3B_L40S
    seed: int = 0


def histories(setting: Figure15Setting, sources: Sources) -> list[tuple[LengthHistory, str]]:
    """Return the histories for tau and lambda: PPO and GRPO on GSM8K, and GRPO on GPQA, whose responses are longer."""
    ppo = modelled(GSM8K, 1, responses=setting.responses, epochs=setting.epochs, seed=setting.seed)
    gpqa = modelled(GPQA, 4, responses=setting.responses, epochs=2, seed=setting.seed)
    return [(ppo, "PPO"), (sources.gsm8k(4), "GRPO"), (gpqa, "GRPO")]


def numbers(setting: Figure15Setting, sources: Sources) -> Numbers:
    """Return ``panel, scope, data_set, basis, algorithm, policy, parameter, time_s, gpu_s, bound_gpu_s, share, moves``: sums
    over whole steps and over generation alone. ``policy`` is the paper's rule with this parameter, or one of ``REFERENCES``,
    which have none. ``bound_gpu_s`` is the least that any policy takes in that time, ``share`` is the share of the headroom,
    measured from the naive system."""
    rows: list[dict[str, object]] = []

    def add(panel: str, outcome: Outcome, values: Mapping[str, float]) -> None:
        """Add rows of the policies that ``values`` names; a reference's value is NaN."""
        moves, sums = outcome.steps.groupby("policy")["moves"].sum(), totals(outcome)
        for subset in sums[sums["policy"].isin(list(values))].to_dict("records"):
            name = subset["policy"]
            rows.append(
                {
                    "panel": panel, "scope": subset["scope"], "data_set": outcome.history.name, "basis": outcome.history.basis,
                    "algorithm": outcome.algorithm, "policy": name if name in REFERENCES else "rlhfless",
                    "parameter": values[name], "time_s": subset["time_s"], "gpu_s": subset["gpu_s"],
                    "bound_gpu_s": subset["bound_gpu_s"], "share": subset["share"], "moves": int(moves.get(name, 0)),
                }
            )  # fmt: skip

    shipped, references = sources.shipped(), dict.fromkeys(REFERENCES, float("nan"))
    for window in setting.windows:
        chosen = window == PAPER_CHOICE["window"]
        outcome = compare(
            shipped, setting.machine, "GRPO", [*(COMPARED if chosen else ("static",)), "rlhfless"],
            predictor=EwmaPredictor(window), max_steps=setting.max_steps, seed=setting.seed,
        )  # fmt: skip
        add("window", outcome, {"rlhfless": window, **(references if chosen else {})})
    for history, algorithm in histories(setting, sources):
        taus = {f"tau {tau:g}": tau for tau in setting.taus}
        local_cut_policies = [FixedActors(setting.actors, tau, name) for name, tau in taus.items()]
        weights = {f"lambda {weight:g}": weight for weight in setting.lambdas}
        scales = [RLHFless(scale_weight=weight, name=name) for name, weight in weights.items()]
        policies: list[str | SchedulingPolicy] = [*COMPARED, *local_cut_policies, *scales]
        outcome = compare(history, setting.machine, algorithm, policies, seed=setting.seed)
        add("tau", outcome, taus | references)
        add("lambda", outcome, weights | references)
    return Numbers(pd.DataFrame(rows))


def curves(numbers: Numbers, panel: str, scope: str = "generation") -> dict[str, pd.DataFrame]:
    """Return the rows of a panel, sorted by parameter, for each history by its label."""
    return _by_history(numbers, panel, "rlhfless", scope)


def reference(numbers: Numbers, panel: str, policy: str, scope: str = "generation") -> dict[str, pd.Series]:
    """Return label of a history to the row of one of ``REFERENCES``, or of the paper's rule with the paper's choice."""
    rows = _by_history(numbers, panel, policy, scope)
    if policy == "rlhfless":
        rows = {label: subset[subset["parameter"] == PAPER_CHOICE[panel]] for label, subset in rows.items()}
    return {label: subset.iloc[0] for label, subset in rows.items()}


def _by_history(numbers: Numbers, panel: str, policy: str, scope: str) -> dict[str, pd.DataFrame]:
    table = numbers.table
    part = table[(table["panel"] == panel) & (table["policy"] == policy) & (table["scope"] == scope)]
    grouped = part.groupby(["algorithm", "data_set", "basis"], sort=False)
    return {f"{a}, {d} ({b})": subset.sort_values("parameter", ignore_index=True) for (a, d, b), subset in grouped}


def plot(setting: Figure15Setting, numbers: Numbers) -> go.Figure:
    """Plot by parameter: time and cost relative to the paper's choice, and the share of the headroom; below, that share of all
    comparators."""
    below = [f"{SCOPE_TEXT[scope]}: share of the headroom" for scope in reversed(SCOPES)]
    fig = make_subplots(
        rows=5, cols=6, specs=[[{"colspan": 2}, None] * 3] * 4 + [[{"colspan": 3}, None, None] * 2], vertical_spacing=0.06,
        horizontal_spacing=0.06, subplot_titles=[*PANELS.values(), *[""] * 9, *below],
    )  # fmt: skip
    for place, panel in enumerate(PANELS):
        col, alone = 2 * place + 1, curves(numbers, panel)
        for i, label in enumerate(alone, start=FIRST_COLOUR[panel]):
            subset = alone[label]
            at = subset[subset["parameter"] == PAPER_CHOICE[panel]].iloc[0]
            shown = (subset["time_s"] / at["time_s"], subset["gpu_s"] / at["gpu_s"], subset["share"])
            for row, y in enumerate((*shown, curves(numbers, panel, "step")[label]["share"]), start=1):
                fig.add_scatter(
                    x=subset["parameter"], y=y, mode="lines+markers", name=label, legendgroup=label,
                    showlegend=row == 1 and place < 2, line={"color": COLOURS[i], "dash": DASHES[i]},
                    marker={"symbol": SYMBOLS[i], "size": 8}, row=row, col=col,
                )  # fmt: skip
            for row, scope in ((3, "generation"), (4, "step")):
                share = float(reference(numbers, panel, "random", scope)[label]["share"])
                fig.add_scatter(
                    x=subset["parameter"].iloc[[0, -1]], y=[share, share], mode="lines", name=f"{label}: {label_of('random')}",
                    legendgroup=label, showlegend=False, line={"color": COLOURS[i], "dash": "dot", "width": 1.5},
                    row=row, col=col,
                )  # fmt: skip
        for row in range(1, 5):
            line = {"color": "#999999", "dash": "dot", "width": 1.5}
            fig.add_vline(x=PAPER_CHOICE[panel], line=line, row=row, col=col)
            fig.update_xaxes(showticklabels=row == 4, row=row, col=col)
    for row, title in enumerate(("time", "GPU-seconds", "share, generation", "share, whole steps"), start=1):
        fig.update_yaxes(title=title, row=row, col=1)
    for row in (3, 4):
        fig.update_yaxes(tickformat=".0%", rangemode="tozero", row=row)
    for row in (1, 2):
        fig.update_yaxes(range=[0.9, 1.1], row=row, col=1)  # windows hardly differ, and should look like it
    _add_comparators(fig, numbers)
    note = "time and GPU-seconds: generation alone, relative to the paper's choice (vertical line); share of the headroom: "
    note += (
        "0 % is naive<br>static held through the step, 100 % the bound for a learner of its size; thin dots: right-sized "
        "random; last row:<br>the paper's choices beside others"
    )
    return styled(fig, TITLE, note, legend={**WIDE_LEGEND, "y": -0.06}, height=1180, margin={"t": 130})


def _add_comparators(fig: go.Figure, numbers: Numbers) -> None:
    """Add the last row: one marker per policy and history."""
    for col, scope in ((1, "generation"), (4, "step")):
        for panel in ("window", "lambda"):
            share = {policy: reference(numbers, panel, policy, scope) for policy in SHORT}
            for i, label in enumerate(curves(numbers, panel), start=FIRST_COLOUR[panel]):
                fig.add_scatter(
                    x=list(SHORT.values()), y=[float(share[policy][label]["share"]) for policy in SHORT], mode="markers",
                    name=label, legendgroup=label, showlegend=False,
                    marker={"symbol": SYMBOLS[i], "size": 10, "color": COLOURS[i]}, row=5, col=col,
                )  # fmt: skip
        fig.update_yaxes(tickformat=".0%", row=5, col=col)


def saved(subset: pd.DataFrame, less: float, more: float) -> float:
    """Return the share of the cost at the parameter ``more`` that is saved at ``less``."""
    cost = subset.set_index("parameter")["gpu_s"]
    return float(1 - cost[less] / cost[more])


def saved_below_half(numbers: Numbers) -> dict[str, float]:
    """Return label of a history to the share of the cost at tau = 0.5 that tau = 0.3 saves."""
    return {label: saved(subset, 0.3, 0.5) for label, subset in curves(numbers, "tau").items()}


def sentence_of(more: Mapping[str, float]) -> str:
    """Describe ``saved_below_half`` in words."""
    return "going from tau = 0.5 to 0.3 saves another " + ", ".join(f"{value:+.1%} ({label})" for label, value in more.items())


def sides(more: Mapping[str, float]) -> str:
    """Describe in words on which histories a smaller tau saves nothing more, and on which it does."""
    ended = [label for label, value in more.items() if value < SAME]
    goes_on = [label for label, value in more.items() if value >= SAME]
    if not goes_on:
        return f"No further saving of {SAME:.0%} or more on any of them."
    return f"Further savings of {SAME:.0%} or more on {', '.join(goes_on)}{' alone' if ended else ''}."


def room(numbers: Numbers, panel: str, parameter: float) -> pd.Series:
    """Return by history the share of the cost at a parameter that any policy could save in the same time."""
    at = [subset[subset["parameter"] == parameter].iloc[0] for subset in curves(numbers, panel).values()]
    return pd.Series([1 - row["bound_gpu_s"] / row["gpu_s"] for row in at])


def shares(numbers: Numbers, panel: str) -> str:
    """Describe in words the rule's share of the headroom over all values of a parameter, and that of right-sizing."""
    subset = pd.concat(curves(numbers, panel).values())["share"]
    random = pd.Series([row["share"] for row in reference(numbers, panel, "random").values()])
    return f"{spread(subset, '.0%')} (right-sized random {spread(random, '.0%')})"


def comparators(numbers: Numbers) -> str:
    """Describe in words each comparator's share of the headroom, in generation alone and in whole steps, over all histories."""

    def over(policy: str, scope: str) -> str:
        rows = [row for panel in ("window", "lambda") for row in reference(numbers, panel, policy, scope).values()]
        return spread(pd.Series([row["share"] for row in rows]), ".0%")

    return ", ".join(f"{label_of(p)} {over(p, 'generation')} and {over(p, 'step')}" for p in SHORT)


def window_spread(numbers: Numbers) -> float:
    """Return how much more the most expensive window costs than the cheapest."""
    (subset,) = curves(numbers, "window").values()
    return float(subset["gpu_s"].max() / subset["gpu_s"].min() - 1)


def ranks_of_choice(subset: pd.DataFrame, choice: float) -> tuple[int, int]:
    """Return the rank of a parameter among all by time and by cost, 1 being the best; equal values share the better rank."""
    at = subset[subset["parameter"] == choice].iloc[0]
    return tuple(int((subset[what] < at[what] * (1 - 1e-9)).sum()) + 1 for what in ("time_s", "gpu_s"))  # type: ignore[return-value]


def _places(numbers: Numbers) -> str:
    """Describe in words the rank of lambda = 0.7 on every history."""
    places = {label: (ranks_of_choice(subset, 0.7), len(subset)) for label, subset in curves(numbers, "lambda").items()}
    return ", ".join(f"place {t} by time, {c} by cost of {count} ({label})" for label, ((t, c), count) in places.items())


def caption(setting: Figure15Setting, numbers: Numbers) -> Caption:
    """Return the caption; see ``Caption``."""
    saves = [f"{saved(subset, 0.5, 1.0):.0%} ({label})" for label, subset in curves(numbers, "tau").items()]
    more = saved_below_half(numbers)
    return Caption(
        "Time, cost and share of the headroom by window, tau and lambda; below, that share of all policies.",
        "Lengths of GRPO on GSM8K and of the arithmetic run, where the legend says 'log' or 'run'.",
        f"PPO's lengths are the stated model of GSM8K, GPQA's that of GPQA. {setting.machine.about}."
        f"{about_logs(numbers.table['basis'])}",
        "A smaller tau is cheaper and slower, with no further saving at tau <= 0.5. lambda = 0.7 gives second-lowest cost and "
        "second-shortest time. Windows of 1 to 4 epochs differ marginally.",
        f"Against no cut at all (tau = 1), tau = 0.5 saves {', '.join(saves)} of the cost of generation on 3 actors; "
        f"{sentence_of(more)}. {sides(more)} The number of actors is a whole number, so neighbouring "
        "values of lambda often give the same plan. Share of the headroom of the rule in generation alone, measured from 3 "
        "static actors: "
        + "; ".join(f"{shares(numbers, panel)} over all values of {name}" for panel, name in NAMES.items())
        + f". The same share with the paper's choices, in generation alone and in whole steps: {comparators(numbers)}. Elastic "
        f"plain has a larger learner than that bound, so it can be above 100 % of whole steps. {ELASTIC_TEXT}",
    )


def rows(numbers: Numbers) -> list[Row]:
    """Return the printed numbers beside ours; see ``Row``."""
    tau, wide = saved_below_half(numbers), window_spread(numbers)

    def possible(panel: str, parameter: float, of: str) -> str:
        return f"any policy in the time of {of}: {spread(room(numbers, panel, parameter), '.0%')} less cost"

    return [
        Row(
            "tau from which a smaller one saves no further cost", "tau <= 0.5", sentence_of(tau),
            possible("tau", 0.5, "tau = 0.5"),
            f"Savings are of the cost of generation on 3 actors. {sides(tau)} Share of the headroom in generation alone: "
            f"{shares(numbers, 'tau')}, depending on tau and lengths.",
        ),
        Row(
            "lambda = 0.7 among 0.3 to 0.9", "second-shortest time, second-lowest cost", _places(numbers),
            possible("lambda", 0.7, "lambda = 0.7"),
            "A larger lambda is faster and more expensive. One of many values can therefore be second in both only where "
            "several values give the same plan. Share of the headroom in generation alone: "
            f"{shares(numbers, 'lambda')}, depending on lambda and lengths.",
        ),
        Row(
            "predicting from 1 to 4 past epochs", "marginal differences", f"cost differs by {wide:.1%} at most",
            possible("window", 1, "a window of 1"),
            "Lengths are this project's own recorded run of 15 epochs. Share of the headroom in generation alone: "
            f"{shares(numbers, 'window')}, depending on the window.",
        ),
    ]  # fmt: skip


def claims(numbers: Numbers) -> list[Claim]:
    """Return whether the paper's statements hold; see ``Claim``."""
    more, wide = saved_below_half(numbers), window_spread(numbers)
    orders, changes, faster, weights = [], [], [], []
    for label, subset in curves(numbers, "tau").items():
        with_cut = subset[subset["parameter"] < 1]
        orders += [subset["time_s"].iloc[0] > subset["time_s"].iloc[-1], with_cut["gpu_s"].iloc[0] < with_cut["gpu_s"].iloc[-1]]
        cost, time = (with_cut[c].iloc[0] / with_cut[c].iloc[-1] - 1 for c in ("gpu_s", "time_s"))
        changes.append(f"{label}: cost {cost:+.1%}, time {time:+.1%}")
    for label, subset in curves(numbers, "lambda").items():
        time, cost = (subset[c].iloc[-1] / subset[c].iloc[0] - 1 for c in ("time_s", "gpu_s"))
        faster.append(subset["time_s"].iloc[-1] < subset["time_s"].iloc[0])
        weights.append(f"{label}: {time:+.0%} time, {cost:+.0%} cost")
    second = [ranks_of_choice(subset, 0.7) == (2, 2) for subset in curves(numbers, "lambda").values()]
    return [
        Claim.of("a smaller tau is cheaper and slower", orders, f"from tau = 0.9 to 0.3: {'; '.join(changes)}"),
        Claim.of("no further saving at tau <= 0.5", [value < SAME for value in more.values()], sentence_of(more)),
        Claim.of("a larger lambda is faster", faster, f"from the smallest to the largest: {'; '.join(weights)}"),
        Claim.of("lambda = 0.7 is second in time and second in cost", second, _places(numbers)),
        Claim.of("windows of 1 to 4 epochs differ marginally", [wide < MARGINAL], f"cost differs by {wide:.1%} at most"),
    ]


FAST = replace(
    Figure15Setting(), taus=(0.3, 0.5, 0.7, 0.9, 1.0), lambdas=(0.3, 0.5, 0.7, 0.9), windows=(1, 4), epochs=2, responses=256,
    max_steps=4,
)  # fmt: skip
FIGURE = PaperFigure("15", TITLE, Figure15Setting(), FAST, numbers, plot, caption, rows, claims)
