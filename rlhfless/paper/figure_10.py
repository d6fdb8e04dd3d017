"""Figure 10: step time and cost of two algorithms, two models and three data sets, under every policy.

Knows the comparison and its plot. The GRPO runs on GSM8K use the public log; the others stated length models.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from rlhfless.paper.comparison import LABELS, POLICIES, compare, totals
from rlhfless.paper.draw import WIDE_LEGEND, add_policies, paper_line
from rlhfless.paper.lengths import GPQA, GSM8K, LIVECODEBENCH
from rlhfless.paper.machine import QWEN_3B_L40S, QWEN_7B_L40S, Machine
from rlhfless.paper.parts import Caption, Numbers, PaperFigure
from rlhfless.paper.workloads import History, Sources, modelled
from rlhfless.plots.style import styled

TITLE = "Figure 10: time and cost of a step, relative to the naive static system"
PAPER_SPEEDUP, PAPER_COST_SAVED = 1.35, 0.448
SAMPLES = {"PPO": 1, "GRPO": 4}
ROWS = (("time", "time / static"), ("cost", "GPU-seconds / static"), ("share", "share of the possible"))


@dataclass(frozen=True)
class Setting:
    """The paper's testbed: 16 L40S, 2 or 4 GPUs an actor, 3 epochs (the last two have history).

    Attributes:
        responses: of a step; the paper does not print its batch on the testbed, 512 is that of its simulation.
    """

    algorithms: tuple[str, ...] = ("PPO", "GRPO")
    machines: tuple[Machine, ...] = (QWEN_3B_L40S, QWEN_7B_L40S)
    data_sets: tuple[str, ...] = ("GSM8K", "GPQA", "LiveCodeBench")
    policies: tuple[str, ...] = POLICIES
    responses: int = 512
    epochs: int = 3
    seed: int = 0
    time_limit_s: float = 0.3


FAST = replace(Setting(), machines=(QWEN_3B_L40S,), data_sets=("GSM8K", "GPQA"), epochs=2, responses=256)


def history_of(data_set: str, algorithm: str, setting: Setting, sources: Sources) -> History:
    """The lengths of one cell."""
    samples = SAMPLES[algorithm]
    if data_set == "GSM8K" and algorithm == "GRPO":
        return sources.gsm8k(samples)
    model = {"GSM8K": GSM8K, "GPQA": GPQA, "LiveCodeBench": LIVECODEBENCH}[data_set]
    return modelled(model, samples, responses=setting.responses, epochs=setting.epochs, seed=setting.seed)


def numbers(setting: Setting, sources: Sources) -> Numbers:
    """``algorithm, model, data_set, basis`` and the columns of ``comparison.totals``."""
    tables, planning = [], []
    for algorithm in setting.algorithms:
        for machine in setting.machines:
            for data_set in setting.data_sets:
                history = history_of(data_set, algorithm, setting, sources)
                outcome = compare(
                    history, machine, algorithm, setting.policies, time_limit_s=setting.time_limit_s, seed=setting.seed
                )
                cell = {"algorithm": algorithm, "model": machine.model, "data_set": data_set, "basis": history.basis}
                tables.append(totals(outcome).assign(**cell))
                planning.append(outcome.planning.assign(**cell))
    first = ["algorithm", "model", "data_set", "basis"]
    table = pd.concat(tables, ignore_index=True)
    table = table[first + [name for name in table.columns if name not in first]]
    return Numbers(table, pd.concat(planning, ignore_index=True))


def plot(setting: Setting, found: Numbers) -> go.Figure:
    """Relative time, relative cost and share of the possible, for whole steps (left) and generation alone (right)."""
    fig = make_subplots(
        rows=3, cols=2, shared_xaxes=True, shared_yaxes=True, vertical_spacing=0.05, horizontal_spacing=0.04,
        column_titles=["the whole step", "generation alone"],
    )  # fmt: skip
    names = [name for name in LABELS if name in set(found.table["policy"])]
    for col, scope in enumerate(("step", "generation"), start=1):
        part = found.table[found.table["scope"] == scope]
        for row, (what, _) in enumerate(ROWS, start=1):

            def points(policy: str, part: pd.DataFrame = part, what: str = what) -> tuple[list[list[str]], list[float]] | None:
                own = part[part["policy"] == policy]
                if what == "share" and policy in ("static", "bound"):
                    return None
                basis = own["basis"].map({"log": "log"}).fillna("model")
                x = [(own["algorithm"] + " " + own["model"].str[-2:]).tolist(), (own["data_set"] + ", " + basis).tolist()]
                y = {"time": 1 / own["speedup"], "cost": 1 - own["cost_saved"], "share": own["share"]}[what]
                return x, y.tolist()

            add_policies(fig, names, points, row=row, col=col, showlegend=row == 1 and col == 1)
    for col in (1, 2):
        paper_line(fig, 1 / PAPER_SPEEDUP, "paper: up to 1.35x faster", row=1, col=col)
        paper_line(fig, 1 - PAPER_COST_SAVED, "paper: up to 44.8 % cheaper", row=2, col=col)
    for row, (_, title) in enumerate(ROWS, start=1):
        fig.update_yaxes(title=title, row=row, col=1)
    fig.update_yaxes(rangemode="tozero", row=1)
    fig.update_yaxes(rangemode="tozero", row=2)
    fig.update_yaxes(tickformat=".0%", row=3)
    fig.update_xaxes(tickangle=-60)
    low = "the lower the better; share: 0 % is the naive static system, 100 % the bound that no policy can beat"
    return styled(fig, TITLE, low, height=980, legend={**WIDE_LEGEND, "y": -0.2}, margin={"l": 70, "r": 24, "t": 96, "b": 60})


def caption(setting: Setting, found: Numbers) -> Caption:
    """See ``Caption``."""
    table = found.table[found.table["scope"] == "step"]
    real = table[table["basis"] == "log"]
    of_paper = table[table["policy"] == "rlhfless"]
    ours = table[table["policy"] == "solver+replan"]
    possible = table[table["policy"] == "bound"]
    return Caption(
        "Lengths of the GRPO runs on GSM8K (a public log, cap of 512 tokens)." if len(real) else "Nothing: no log is at hand.",
        f"{setting.machines[0].about}. All other lengths: stated lognormal models, named 'model'. Planning holds no GPUs and "
        f"is "
        "not charged; what it took here is in the measured csv.",
        "Up to 1.35x faster and 44.8 % cheaper than naive static with 3 actors. The bars themselves are only in the picture, "
        "so "
        "none is repeated here.",
        f"The paper's rule reaches {of_paper['speedup'].min():.2f}x to {of_paper['speedup'].max():.2f}x and saves "
        f"{of_paper['cost_saved'].min():.0%} to {of_paper['cost_saved'].max():.0%} of the cost of whole steps, "
        f"{of_paper['share'].min():.0%} to {of_paper['share'].max():.0%} of the possible; ours with re-planning takes "
        f"{ours['share'].min():.0%} to {ours['share'].max():.0%}. No policy can be more than "
        f"{possible['most_speedup'].min():.2f}x to {possible['most_speedup'].max():.2f}x faster at any cost, or save more than "
        f"{possible['most_cost_saved'].min():.0%} to {possible['most_cost_saved'].max():.0%} at any time, with these lengths "
        f"and "
        "latencies. Our times of decoding contain no work of the host, our naive system starts as fast as the others, and "
        "learning, which no policy here changes, is a stated model: each moves factors of whole steps.",
    )


FIGURE = PaperFigure("10", TITLE, Setting(), FAST, numbers, plot, caption)
