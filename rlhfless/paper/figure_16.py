"""Figure 16: (a) generation time and planning overhead on up to 20 nodes of 8 H100, (b) mean gain over all cells.

Computed by the comparison on a larger machine. The paper does not print the naive system's size on 160 GPUs. So all policies
are compared with 3 static actors and with as many as fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from rlhfless.paper.comparison import NOT_BOUND, compare, label_of, policy_named, totals
from rlhfless.paper.draw import COLOURS, DASHES, WIDE_LEGEND, marker_of, paper_line, style_of
from rlhfless.paper.lengths import LengthModel
from rlhfless.paper.machine import LLAMA_70B_H100, Machine
from rlhfless.paper.paper_figure import Caption, Claim, Numbers, PaperFigure, Row
from rlhfless.paper.wording import NAIVE_LEARNER, reached, reached_by
from rlhfless.paper.workloads import LengthHistory, Sources, modelled
from rlhfless.plots.palette import ORANGE
from rlhfless.plots.style import styled
from rlhfless.scheduling.timed import TimedPolicy

TITLE = "Figure 16: up to 160 H100, Llama2-70B"
PAPER_SPEEDUP, PAPER_COST_SAVED, PAPER_PLANNING_S = 1.23, 0.387, 0.030
NAIVE = {"static": "3 actors", "static-all": "all actors that fit"}
SHORT = {
    "static": "naive, 3", "static-generation": "naive, 3, released", "static-all": "naive, all", "random": "random",
    "rlhfuse-all": "RLHFuse", "rlhfless": "RLHFless", "solver+replan": "ours", "oracle": "oracle", "bound": "bound",
}  # fmt: skip
PLANNED = ("random", "rlhfless", "solver+replan")


@dataclass(frozen=True)
class Figure16Setting:
    """Setting: GRPO, batch 512 (128 prompts x 4), 2 GPUs per actor, responses up to 2,048 to 8,192 tokens, up to 20 nodes of 8.

    Attributes:
        nodes: from 4 on, as the weights, gradients and optimizer of 70B parameters (16 bytes each) need 14 GPUs and more.
        epochs: of one step each; the first has no history and is not evaluated.
    """

    nodes: tuple[int, ...] = (4, 12, 20)
    token_limits: tuple[int, ...] = (2048, 4096, 8192)
    policies: tuple[str, ...] = (
        "static", "static-generation", "static-all", "random", "rlhfuse-all", "rlhfless", "solver+replan", "oracle",
    )  # fmt: skip
    responses: int = 512
    samples_per_prompt: int = 4
    epochs: int = 3
    machine: Machine = LLAMA_70B_H100
    seed: int = 0


def lengths(limit: int) -> LengthModel:
    """Return responses whose typical length is a quarter of the limit."""
    basis = "stated: median at a quarter of the limit, standard deviations 0.5 over prompts and 0.3 within one"
    return LengthModel(f"up to {limit:,} tokens", limit / 4, 0.5, 0.3, 500.0, basis, max_response_tokens=limit)


def history_of(setting: Figure16Setting, limit: int) -> LengthHistory:
    """Return the lengths of the cells with this limit."""
    return modelled(
        lengths(limit), setting.samples_per_prompt, responses=setting.responses, epochs=setting.epochs, seed=setting.seed
    )


def numbers(setting: Figure16Setting, sources: Sources) -> Numbers:
    """Return ``max_response_tokens, nodes, naive`` (the base of the comparison) and the columns of ``totals``. KV memory is
    short, so an actor admits responses by the memory that they use now (``preempt``) instead of by their limit."""
    tables, planning = [], []
    for limit in setting.token_limits:
        history = history_of(setting, limit)
        for nodes in setting.nodes:
            machine = replace(setting.machine, nodes=nodes, admission="preempt")
            policies = [TimedPolicy(policy_named(name, machine.static_actors)) for name in setting.policies]
            outcome = compare(history, machine, "GRPO", policies, seed=setting.seed)
            cell = {"max_response_tokens": limit, "nodes": nodes}
            taken = {policy.name: iter(policy.cpu_s) for policy in policies}  # of each policy in the order of steps, as here
            cpu_s = [next(taken[name]) for name in outcome.planning["policy"]]
            planning.append(outcome.planning.assign(cpu_s=cpu_s, **cell))
            tables += [totals(outcome, naive=naive).assign(**cell, naive=naive) for naive in NAIVE]
    table = pd.concat(tables, ignore_index=True)
    first = ["max_response_tokens", "nodes", "naive"]
    return Numbers(table[first + [c for c in table.columns if c not in first]], pd.concat(planning, ignore_index=True))


def cells_of(numbers: Numbers) -> str:
    """Describe in words the cells that the means are taken over."""
    table = numbers.table
    nodes, limits = (sorted(table[c].unique()) for c in ("nodes", "max_response_tokens"))
    steps = int(table["steps"].iloc[0])
    nodes_text = " and ".join([", ".join(map(str, nodes[:-1])), str(nodes[-1])])
    limits_text = f"limits of {limits[0]:,} to {limits[-1]:,} tokens" if len(limits) > 1 else f"a limit of {limits[0]:,} tokens"
    return f"{nodes_text} nodes x 8 H100, {limits_text}, {steps} step{'s' if steps > 1 else ''} with history each"


def mean_gain(numbers: Numbers, naive: str, scope: str = "step") -> pd.DataFrame:
    """Return ``speedup, cost_saved, share, most_speedup, most_speedup_on_all, most_cost_saved`` by policy: means over all cells
    against ``naive``."""
    table = numbers.table
    table = table[(table["naive"] == naive) & (table["scope"] == scope)]
    what = ["speedup", "cost_saved", "share", "most_speedup", "most_speedup_on_all", "most_cost_saved"]
    return table.groupby("policy", sort=False)[what].mean()


def planning_share(numbers: Numbers, policy: str) -> float:
    """Return the largest share of planning's CPU time in a step, over all cells."""
    assert numbers.measured is not None
    keys = ["max_response_tokens", "nodes"]
    planning = numbers.measured[numbers.measured["policy"] == policy].groupby(keys)["cpu_s"].sum()
    table = numbers.table[(numbers.table["policy"] == policy) & (numbers.table["scope"] == "step")]
    return float((planning / table.groupby(keys)["time_s"].first()).max())


def plot(setting: Figure16Setting, numbers: Numbers) -> go.Figure:
    """Plot (a) time by nodes and planning time by nodes, (b) mean gain against both naive systems."""
    assert numbers.measured is not None
    heads = [
        "(a) generation time (s)", "(a) planning a step, CPU time here (ms)", "(b) times faster, whole steps, mean",
        "(b) cost / naive, whole steps, mean (dotted: paper)",
    ]  # fmt: skip
    fig = make_subplots(rows=2, cols=2, subplot_titles=heads, horizontal_spacing=0.08, vertical_spacing=0.16)
    table = numbers.table
    table = table[(table["naive"] == "static") & (table["scope"] == "generation")]
    for i, (limit, rows) in enumerate(table.groupby("max_response_tokens")):
        for dash, policy in zip(DASHES, ("rlhfless", "solver+replan", "bound"), strict=False):
            subset = rows[rows["policy"] == policy]
            fig.add_scatter(
                x=subset["nodes"], y=subset["time_s"], mode="lines+markers", name=f"up to {limit:,} tokens: {SHORT[policy]}",
                line={"color": COLOURS[i], "dash": dash},
                marker={"symbol": style_of(policy).symbol, "size": 8, "color": COLOURS[i]}, row=1, col=1,
            )  # fmt: skip
    planned = numbers.measured[numbers.measured["policy"].isin(PLANNED)]
    for policy, subset in planned.groupby("policy", sort=False):
        longest_ms = subset.groupby("nodes")["cpu_s"].max() * 1e3
        marker = marker_of(str(policy), 8)
        fig.add_scatter(
            x=longest_ms.index, y=longest_ms, mode="lines+markers", name=f"planning: {label_of(str(policy))}",
            line={"color": marker["color"], "width": 1.5}, marker=marker, row=1, col=2,
        )  # fmt: skip
    fig.add_scatter(
        x=[min(setting.nodes), max(setting.nodes)], y=[PAPER_PLANNING_S * 1e3] * 2, mode="lines", name="paper: at most 30 ms",
        line={"color": ORANGE, "dash": "dot", "width": 2}, row=1, col=2,
    )  # fmt: skip
    _add_gains(fig, [*setting.policies, "bound"], numbers)
    fig.update_xaxes(title="nodes", tickvals=list(setting.nodes), row=1)
    fig.update_yaxes(rangemode="tozero", row=1, col=1)
    fig.update_yaxes(type="log", tickvals=[10, 30, 100, 300, 1000, 3000], row=1, col=2)
    fig.update_yaxes(type="log", tickvals=[0.2, 0.5, 1, 2, 5, 10], row=2, col=2)
    fig.update_xaxes(tickangle=-40, row=2)
    batch = f"batch {setting.responses}, {setting.samples_per_prompt} responses per prompt"
    note = f"GRPO, {batch}, lengths: stated model; profile {setting.machine.profile}"
    return styled(fig, TITLE, note, legend={**WIDE_LEGEND, "y": -0.15}, height=900, margin={"t": 100})


def _add_gains(fig: go.Figure, policies: Sequence[str], numbers: Numbers) -> None:
    """Add panel (b): one marker per policy and naive system."""
    names = [SHORT[policy] for policy in policies]
    for (naive, name), symbol, colour in zip(NAIVE.items(), ("circle", "diamond-open"), (COLOURS[0], COLOURS[1]), strict=True):
        mean = mean_gain(numbers, naive)
        for col, y in enumerate((mean["speedup"], 1 - mean["cost_saved"]), start=1):
            fig.add_scatter(
                x=names, y=[float(y[policy]) for policy in policies], mode="markers", name=f"(b) against naive, {name}",
                legendgroup=naive, showlegend=col == 1, marker={"symbol": symbol, "size": 10, "color": colour}, row=2, col=col,
            )  # fmt: skip
    paper_line(fig, PAPER_SPEEDUP, "paper: 1.23x", row=2, col=1)
    paper_line(fig, 1 - PAPER_COST_SAVED, "", row=2, col=2)  # on a logarithmic axis plotly puts the text elsewhere


def caption(setting: Figure16Setting, numbers: Numbers) -> Caption:
    """Return the caption; see ``Caption``."""
    latency = setting.machine.latency
    texts = []
    for naive, name in NAIVE.items():
        mean = mean_gain(numbers, naive)
        shown = [
            f"{SHORT[p]} {mean.loc[p, 'speedup']:.2f}x and {mean.loc[p, 'cost_saved']:.0%} ({mean.loc[p, 'share']:.0%} of the "
            "possible)" for p in ("random", "rlhfuse-all", "rlhfless", "solver+replan", "oracle")
        ]  # fmt: skip
        texts.append(
            f"Against {name}, whole steps: {', '.join(shown)}. No schedule can be more than "
            f"{mean.loc['bound', 'most_speedup']:.2f}x faster with that learner, more than "
            f"{mean.loc['bound', 'most_speedup_on_all']:.2f}x with one on all GPUs, or save more than "
            f"{mean.loc['bound', 'most_cost_saved']:.0%} with either"
        )
    return Caption(
        "(a) Generation time and planning time by number of nodes. (b) Mean speedup and cost against two naive systems.",
        "CPU time of planning, on this machine (upper right, and the measured csv).",
        f"{setting.machine.about}. Smaller clusters have fewer learner GPUs. Means are over {cells_of(numbers)}. 1 to 3 nodes "
        "are left out, because weights, gradients and optimizer of 70B parameters (16 bytes each) alone fill 14 GPUs. Lengths "
        f"are {lengths(2048).basis}. A naive system on all actors that fit keeps all GPUs but the learner's "
        "through preparation and learning.",
        "1.23x faster and 38.7 % cheaper on average in simulation. Planning takes at most 30 ms at every cluster size. The "
        "paper does not print how many actors the naive system has on 160 GPUs.",
        ". ".join(texts) + f". {NOT_BOUND} The factor depends mostly on the naive system: few actors make large speedups "
        f"look possible, many actors large savings. Beside {2 * setting.machine.parameters / 1e9:.0f} GB of weights two H100 "
        f"hold KV caches of {latency.kv_capacity_tokens:,} tokens (the profile's assumptions). This limits "
        "decoding here. The bound includes the limit but not evictions or whole actors, so a policy may be unable to reach "
        "100 %. Llama2 was trained for 4,096 tokens; longer contexts belong to the paper's setting.",
    )  # fmt: skip


def rows(numbers: Numbers) -> list[Row]:
    """Return the printed numbers beside ours; see ``Row``."""
    assert numbers.measured is not None
    mean = {name: mean_gain(numbers, naive) for naive, name in NAIVE.items()}

    def values_of(policy: str, what: str, form: str, unit: str = "") -> str:
        return ", ".join(f"{subset.loc[policy, what]:{form}}{unit} against {name}" for name, subset in mean.items())

    def possible(what: str) -> dict[str, float]:
        return {f"against {name}": subset.loc["bound", what] for name, subset in mean.items()}

    saved = {name: subset.loc["solver+replan", "cost_saved"] for name, subset in mean.items()}
    costs = ", ".join(f"{abs(x):.0%} {'more' if x < 0 else 'less'} than {name}" for name, x in saved.items())
    cpu_ms = numbers.measured.groupby("policy")["cpu_s"].max() * 1e3
    kept = cpu_ms["rlhfless"] <= PAPER_PLANNING_S * 1e3
    base = "The answer depends on how many actors the naive system has on 160 GPUs, which the paper does not say. "
    shares = (
        f"Share of the headroom in time and cost together: RLHFless' rule {values_of('rlhfless', 'share', '.0%')}; ours "
        f"{values_of('solver+replan', 'share', '.0%')}."
    )
    return [
        Row(
            f"speedup of a whole step, mean over {cells_of(numbers)}", "1.23x",
            f"RLHFless' rule {values_of('rlhfless', 'speedup', '.2f', 'x')}",
            f"with {NAIVE_LEARNER}: {values_of('bound', 'most_speedup', '.2f', 'x')}; with a learner on all GPUs: "
            f"{values_of('bound', 'most_speedup_on_all', '.2f', 'x')}",
            f"{reached_by(PAPER_SPEEDUP, possible('most_speedup'), possible('most_speedup_on_all'))}. "
            f"{base}Ours with re-planning is {values_of('solver+replan', 'speedup', '.2f', 'x')}. {shares}",
        ),
        Row(
            "saved cost of a whole step, mean over the same cells", "38.7 %",
            f"RLHFless' rule {values_of('rlhfless', 'cost_saved', '.0%')}", values_of("bound", "most_cost_saved", ".0%"),
            f"{reached(PAPER_COST_SAVED, possible('most_cost_saved'), 'any learner')}. {base}Ours with "
            f"re-planning costs {costs}. {shares}",
        ),
        Row(
            "time that planning a step takes", "at most 30 ms",
            f"RLHFless' rule at most {cpu_ms['rlhfless']:,.0f} ms, ours {cpu_ms['solver+replan']:,.0f} ms (CPU time, planned "
            "once)",
            "no bound is known",
            f"{'Kept' if kept else 'Not kept'} by our implementation of its rule, which computes the exact time of every "
            "number of actors in 8 scenarios of lengths. Its planning takes at most "
            f"{planning_share(numbers, 'rlhfless'):.1%} of a step, ours {planning_share(numbers, 'solver+replan'):.1%}.",
        ),
    ]  # fmt: skip


def claims(numbers: Numbers) -> list[Claim]:
    """Return whether the paper's statements hold; see ``Claim``."""
    assert numbers.measured is not None
    mean = {name: mean_gain(numbers, naive).loc["rlhfless"] for naive, name in NAIVE.items()}
    max_ms = numbers.measured.query("policy == 'rlhfless'")["cpu_s"].max() * 1e3
    return [
        Claim.of(
            "faster and cheaper on average on up to 160 GPUs",
            [held for row in mean.values() for held in (row["speedup"] > 1, row["cost_saved"] > 0)],
            "; ".join(f"{row['speedup']:.2f}x and {row['cost_saved']:.0%} against {name}" for name, row in mean.items()),
        ),
        Claim.of(
            "planning takes at most 30 ms at every cluster size", [max_ms <= PAPER_PLANNING_S * 1e3],
            f"at most {max_ms:,.0f} ms (CPU) for our implementation of its rule",
        ),
    ]  # fmt: skip


FAST = replace(Figure16Setting(), nodes=(4, 12), token_limits=(2048,), responses=256, epochs=2)
FIGURE = PaperFigure("16", TITLE, Figure16Setting(), FAST, numbers, plot, caption, rows, claims)
