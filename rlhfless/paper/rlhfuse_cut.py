"""Figure ``rlhfuse_cut``: latency of generation and preparation over the share of the batch at which RLHFuse migrates (R_t).

RLHFuse (arXiv:2409.13221, section 4) migrates the last responses to few actors and prepares finished ones on the GPUs that
this frees. It chooses the share by a simulation off-line. Here every share is timed with every number of actors that continue.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from rlhfless.latency import load_profile
from rlhfless.paper.draw import COLOURS, DASHES, WIDE_LEGEND, paper_line
from rlhfless.paper.lengths import GPQA
from rlhfless.paper.paper_figure import Caption, Claim, Numbers, PaperFigure
from rlhfless.paper.workloads import LengthHistory, Sources, modelled
from rlhfless.plots.style import styled
from solver import Cluster, Objective, PlanningProblem, Workload, random_split
from solver.model.plurals import counted
from solver.stage_fusion.cut import choose_cut
from solver.stage_fusion.token_work import TokenWork

TITLE = "RLHFuse's cut: latency over the share of the batch at which responses migrate"
PAPER_SHARE = 0.2  # reported as best
PAPER_GAIN = (1.2, 1.6)  # of generation and inference
COLUMNS = ["data_set", "basis", "passes", "share", "keep", "time_s", "generation_s", "prepare_s", "serial_s", "speed_up"]
CASE = ["data_set", "passes"]


@dataclass(frozen=True)
class RlhfuseCutSetting:
    """Setting: the passes before learning of GRPO (reference) and PPO (reward, reference, critic), on the GPUs of few actors.

    Attributes:
        profile: GPUs and model. actors: before the cut. passes: of preparation over all tokens; each has its curves.
        samples_per_prompt: of each prompt. deals: random deals of a step's prompts, whose means are shown.
        shares: R_t as shares of the batch.
    """

    profile: str = "l40s-qwen2.5-7b-tp4"
    actors: int = 8
    passes: tuple[int, ...] = (1, 3)
    samples_per_prompt: int = 4
    deals: int = 3
    shares: tuple[float, ...] = (0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


def histories(setting: RlhfuseCutSetting, sources: Sources) -> list[LengthHistory]:
    """Return the data sets: a log or model of short answers, a model of long ones, and long ones of a log where it exists."""
    found = [sources.gsm8k(setting.samples_per_prompt), modelled(GPQA, setting.samples_per_prompt, epochs=1), sources.math500()]
    return [history for history in found if history is not None]


def workload_of(history: LengthHistory) -> Workload:
    """Return the last step of a history with its true lengths; unknown prompt lengths count as 0."""
    rows = history.rollouts[history.rollouts["step"] == history.rollouts["step"].max()]
    prompt_of, names = pd.factorize(rows["prompt_id"])
    tokens = rows["prompt_tokens"].fillna(0).astype(int).groupby(prompt_of).first()
    return Workload(
        tokens.reindex(range(len(names))).to_numpy(), prompt_of, rows["response_tokens"].to_numpy(dtype=int),
        max_response_tokens=history.max_response_tokens,
    )  # fmt: skip


def numbers(setting: RlhfuseCutSetting, sources: Sources) -> Numbers:
    """Return ``COLUMNS``: a row per data set, passes and share (0: no cut); seconds are means over the deals.

    ``keep`` is the best number of actors that continue. ``serial_s`` is generation and then preparation on all GPUs, which
    speed-ups are of. Shares that no number of actors has room for are left out.
    """
    rows = []
    for history in histories(setting, sources):
        workload = workload_of(history)
        for passes in setting.passes:
            deals = [_curve(setting, workload, passes, seed) for seed in range(setting.deals)]
            for share in (0.0, *setting.shares):
                cuts = pd.concat([deal[deal["share"] == share] for deal in deals])
                of_keep = cuts.groupby("keep")["time_s"]
                times = of_keep.mean()[of_keep.size() == setting.deals]  # with room in every deal
                if len(times):
                    base = cuts[["generation_s", "prepare_s"]].mean()
                    least = int(times.idxmin()), float(times.min())
                    serial_s = float(base.sum())
                    rows.append((history.name, history.basis, passes, share, *least, *base, serial_s, serial_s / least[1]))
    return Numbers(pd.DataFrame(rows, columns=COLUMNS))


def _curve(setting: RlhfuseCutSetting, workload: Workload, passes: int, seed: int) -> pd.DataFrame:
    """Return ``share, keep, time_s, generation_s, prepare_s`` of every cut of one random deal."""
    latency = load_profile(setting.profile).affine
    size = latency.gpus_per_actor
    problem = PlanningProblem(workload, Cluster(setting.actors, size, size), latency, Objective(1.0))
    plan = random_split(problem, actors=setting.actors, seed=seed)
    work = TokenWork(passes * latency.prefill_per_token_s, 0.0, "batch")
    cut = choose_cut(plan, problem, work, shares=setting.shares, followed=None)
    prepare_s = float(work.of(workload, size).prepare_s.sum()) / setting.actors
    return pd.DataFrame(
        [(one.share, one.keep, one.time_s, plan.makespan_s, prepare_s) for one in cut.candidates if np.isfinite(one.time_s)],
        columns=["share", "keep", "time_s", "generation_s", "prepare_s"],
    )


def best(numbers: Numbers) -> pd.DataFrame:
    """Return the row of the least time of each data set and number of passes."""
    table = numbers.table
    return table.loc[table.groupby(CASE, sort=False)["time_s"].idxmin()]


def plot(setting: RlhfuseCutSetting, numbers: Numbers) -> go.Figure:
    """Plot the latency of generation and preparation over the share, relative to doing one after the other."""
    fig = go.Figure()
    found = best(numbers)
    for place, (name, of_set) in enumerate(numbers.table.groupby("data_set", sort=False)):
        for dash, (passes, part) in zip(DASHES, of_set.groupby("passes"), strict=False):
            fig.add_scatter(
                x=part["share"], y=part["time_s"] / part["serial_s"], mode="lines+markers",
                name=f"{name} ({part['basis'].iloc[0]}), {counted(passes, 'pass', 'passes')}",
                line={"color": COLOURS[place], "dash": dash}, marker={"size": 6}, customdata=part[["keep", "time_s"]],
                hovertemplate="%{x:.0%} of the batch, %{customdata[0]} actors continue: %{y:.3f}, %{customdata[1]:.1f} s"
                "<extra></extra>",
            )  # fmt: skip
        stars = found[found["data_set"] == name]
        fig.add_scatter(
            x=stars["share"], y=stars["time_s"] / stars["serial_s"], mode="markers", showlegend=False, hoverinfo="skip",
            marker={"symbol": "star", "size": 14, "color": COLOURS[place]},
        )  # fmt: skip
    for gain in PAPER_GAIN:
        paper_line(fig, 1 / gain, f"published: {gain} times as fast")
    fig.add_vline(x=PAPER_SHARE, line={"dash": "dot", "color": "#999999"})
    fig.update_xaxes(title="unfinished share of the batch at the cut (R_t); 0: no cut", tickformat=".0%")
    fig.update_yaxes(title="latency of generation and preparation, serial = 1")
    note = f"{setting.actors} actors of {setting.profile}, best number m of actors that continue; stars: best share"
    return styled(fig, TITLE, note, legend={**WIDE_LEGEND, "y": -0.2}, height=560)


def caption(setting: RlhfuseCutSetting, numbers: Numbers) -> Caption:
    """Return the caption; see ``Caption``."""
    found = best(numbers)
    logs = list(dict.fromkeys(found[found["basis"] == "log"]["data_set"]))
    each = "; ".join(
        f"{row.data_set} ({row.basis}), {counted(row.passes, 'pass', 'passes')}: {_cut(row.share, row.keep)}, "
        f"{row.speed_up:.2f} times (preparation is {row.prepare_s / row.generation_s:.2f} of generation)"
        for row in found.itertuples()
    )
    return Caption(
        "Latency of generation and preparation by the share of the batch that is unfinished when responses migrate, with the "
        "best number of actors that continue. Stars mark the best share.",
        f"Lengths of {', '.join(logs)}: a public log." if logs else "Nothing: no log is at hand.",
        f"Latency is the affine fit of {setting.profile}. {setting.actors} actors start together, prompts are assigned at "
        f"random ({counted(setting.deals, 'draw')}). Preparation takes 1 prefill pass over all tokens (GRPO) or 3 (PPO). "
        "Loading models and moving KV caches take no time. Prompts without a logged length count as 0 tokens.",
        "About 20 % of the batch is the best share; generation and inference are 1.2 to 1.6 times as fast.",
        f"Best here: {each}. Share 0 already prepares on GPUs of actors that are done. The paper's models, lengths and "
        "profiles are not public. The gain depends on the time of preparation beside generation, and on how few responses "
        "are long.",
    )


def _cut(share: float, keep: int) -> str:
    return f"{share:.0%} to {keep} actors" if share else "no cut"


def claims(numbers: Numbers) -> list[Claim]:
    """Return whether the paper's statements hold; see ``Claim``."""
    found = best(numbers)
    cases = [f"{row.data_set}, {counted(row.passes, 'pass', 'passes')}" for row in found.itertuples()]
    shares = "; ".join(f"{share:.0%} on {case}" for case, share in zip(cases, found["share"], strict=True))
    at_paper = numbers.table[numbers.table["share"] == PAPER_SHARE].set_index(CASE)["time_s"]
    lost = at_paper / found.set_index(CASE)["time_s"] - 1
    gains = "; ".join(f"{gain:.2f} on {case}" for case, gain in zip(cases, found["speed_up"], strict=True))
    return [
        Claim.of(
            "about 20 % of the batch is the best share", [0.15 <= share <= 0.25 for share in found["share"]],
            f"best: {shares}; at 20 % the step takes {lost.max():.1%} more at most",
        ),
        Claim.of(
            "generation and inference are 1.2 to 1.6 times as fast", found["speed_up"] >= PAPER_GAIN[0],
            f"{gains} with the best cut",
        ),
    ]  # fmt: skip


FAST = replace(RlhfuseCutSetting(), deals=1, shares=(0.05, 0.1, 0.2, 0.3, 0.5, 0.7))
FIGURE = PaperFigure(
    "rlhfuse_cut", TITLE, RlhfuseCutSetting(), FAST, numbers, plot, caption, claims=claims, paper="arXiv:2409.13221"
)
