"""Figure 16: (a) generation time and planning overhead on up to 20 nodes of 8 H100, (b) mean gain.

Knows a stated roofline of Llama2-70B on two H100, and simulated steps; nothing of profiles, as none of this model ships.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from rlhfless.paper.comparison import PATIENCE, label_of
from rlhfless.paper.draw import COLOURS, DASHES, WIDE_LEGEND, style_of
from rlhfless.paper.lengths import LengthModel
from rlhfless.paper.parts import Caption, Numbers, PaperFigure
from rlhfless.paper.workloads import Sources, modelled
from rlhfless.plots.palette import ORANGE
from rlhfless.plots.style import styled
from rlhfless.scheduling import SchedulingPolicy, make_policy
from rlhfless.scheduling.fixed import Static
from rlhfless.simulate import Setting as Simulated
from rlhfless.simulate import simulate
from solver.cluster import Cluster
from solver.latency import LatencyModel
from solver.objective import Objective

TITLE = "Figure 16: up to 160 H100, Llama2-70B"
PAPER_SPEEDUP, PAPER_COST_SAVED, PAPER_PLANNING_S = 1.23, 0.387, 0.030
PARAMETERS = 68_976_648_192  # of Llama2-70B: 80 layers, 8,192 wide, 8 KV heads of 128
KV_BYTES_PER_TOKEN = 2 * 80 * 8 * 128 * 2
H100_BYTES_PER_S, H100_FLOPS, H100_BYTES = 3.35e12, 989.4e12, 80e9  # data sheet, SXM; dense bfloat16
MEMORY_SHARE, DECODE_MFU, PREFILL_MFU = 0.8, 0.5, 0.4  # assumed shares of the peaks
GPUS = 2
SHORT = {
    "random": "random", "rlhfuse": "RLHFuse", "rlhfless": "RLHFless", "solver": "ours", "solver+replan": "ours, replan",
}  # fmt: skip


def llama2_70b() -> LatencyModel:
    """Two H100 that share Llama2-70B: weights and KV cache are read once an iteration, plus the arithmetic of each token.

    160 GB less 138 GB of weights leave 22 GB, less than 70,000 tokens: seven responses of up to 8,192 tokens at a time.
    """
    weights = 2.0 * PARAMETERS
    read = GPUS * H100_BYTES_PER_S * MEMORY_SHARE
    token_flops = 2.0 * PARAMETERS
    return LatencyModel(
        "h100-llama2-70b-roofline", GPUS, weights / read,
        token_flops / (GPUS * H100_FLOPS * DECODE_MFU), KV_BYTES_PER_TOKEN / read,
        prefill_base_s=weights / read, prefill_per_token_s=token_flops / (GPUS * H100_FLOPS * PREFILL_MFU),
        start_s=weights / GPUS / 64e9, sync_s=weights / GPUS / 450e9, transfer_base_s=0.005,
        transfer_per_kv_token_s=KV_BYTES_PER_TOKEN / 450e9, max_batch=256,
        kv_capacity_tokens=int((GPUS * H100_BYTES - weights) / KV_BYTES_PER_TOKEN), kind="h100",
        kv_bytes_per_token=KV_BYTES_PER_TOKEN, weight_bytes=weights,
    )  # fmt: skip


@dataclass(frozen=True)
class Setting:
    """Batch 512, 2 GPUs an actor, responses of up to 2,048 to 8,192 tokens, up to 20 nodes of 8."""

    nodes: tuple[int, ...] = (2, 4, 8, 12, 16, 20)
    response_limits: tuple[int, ...] = (2048, 4096, 8192)
    policies: tuple[str, ...] = (
        "static", "static-all", "random", "rlhfuse", "rlhfless", "solver", "solver+replan", "oracle",
    )  # fmt: skip
    responses: int = 512
    static_actors: int = 3
    seed: int = 0
    time_limit_s: float = 0.3


def lengths(limit: int) -> LengthModel:
    """Responses whose typical length is a quarter of the limit."""
    basis = "stated: median at a quarter of the limit, standard deviations 0.5 over prompts and 0.3 within one"
    return LengthModel(f"up to {limit:,} tokens", limit / 4, 0.5, 0.3, 500.0, basis, response_limit=limit)


def policy_of(name: str, setting: Setting) -> SchedulingPolicy:
    """The naive system with 3 actors or with all that fit, or another policy."""
    if name in ("static", "static-all"):
        return Static(setting.static_actors if name == "static" else None, "generation", name)
    return make_policy(name)


def numbers(setting: Setting, sources: Sources) -> Numbers:
    """``response_limit, nodes, policy, actors, time_s, gpu_s, bound_gpu_s, speedup, cost_saved`` (against ``static``), and the
    same against ``static-all``; generation alone."""
    latency, tables, planning = llama2_70b(), [], []
    for limit in setting.response_limits:
        history = modelled(lengths(limit), 1, responses=setting.responses, epochs=2, seed=setting.seed)
        for nodes in setting.nodes:
            cluster = Cluster(nodes, 8, GPUS, "h100")
            where = Simulated(
                cluster,
                latency,
                Objective(),
                response_limit=limit,
                time_limit_s=setting.time_limit_s,
                seed=setting.seed,
                patience=PATIENCE,
            )
            chosen = [policy_of(name, setting) for name in setting.policies]
            steps = simulate(history.rollouts, where, chosen, steps=history.last(1)).steps
            cell = {"response_limit": limit, "nodes": nodes}
            planning.append(steps[["policy", "planning_s"]].assign(**cell))
            own = steps[["policy", "actors", "time_s", "gpu_seconds", "bound_gpu_seconds"]].assign(**cell)
            for naive, end in (("static", ""), ("static-all", "_all")):
                at = own[own["policy"] == naive].iloc[0]
                own[f"speedup{end}"] = float(at["time_s"]) / own["time_s"]
                own[f"cost_saved{end}"] = 1 - own["gpu_seconds"] / float(at["gpu_seconds"])
            tables.append(own.rename(columns={"gpu_seconds": "gpu_s", "bound_gpu_seconds": "bound_gpu_s"}))
    table = pd.concat(tables, ignore_index=True)
    first = ["response_limit", "nodes", "policy"]
    return Numbers(table[first + [c for c in table.columns if c not in first]], pd.concat(planning, ignore_index=True))


def plot(setting: Setting, found: Numbers) -> go.Figure:
    """(a) time by nodes and planning time by nodes, (b) gains by policy."""
    assert found.measured is not None
    table = found.table
    heads = ["(a) generation time (s)", "(a) planning time here (ms)", "(b) mean gain over all actors"]
    fig = make_subplots(rows=1, cols=3, subplot_titles=heads, horizontal_spacing=0.06)
    for i, (limit, rows) in enumerate(table.groupby("response_limit")):
        for policy in ("rlhfless", "solver"):
            own = rows[rows["policy"] == policy]
            style = style_of(policy)
            fig.add_scatter(
                x=own["nodes"], y=own["time_s"], mode="lines+markers", name=f"{label_of(policy)}, up to {limit:,} tokens",
                line={"color": COLOURS[i], "dash": DASHES[0 if policy == "rlhfless" else 2]},
                marker={"symbol": style.symbol, "size": 8, "color": COLOURS[i]}, row=1, col=1,
            )  # fmt: skip
    for policy, own in found.measured.groupby("policy", sort=False):
        mean = own.groupby("nodes")["planning_s"].max() * 1e3
        style = style_of(str(policy))
        fig.add_scatter(
            x=mean.index, y=mean, mode="lines+markers", name=f"planning: {label_of(str(policy))}",
            line={"color": style.colour, "width": 1},
            marker={"symbol": style.symbol, "size": 8}, row=1, col=2,
        )  # fmt: skip
    ends = [min(setting.nodes), max(setting.nodes)]
    fig.add_scatter(
        x=ends, y=[PAPER_PLANNING_S * 1e3] * 2, mode="lines", name="paper: at most 30 ms",
        line={"color": ORANGE, "dash": "dot", "width": 2}, row=1, col=2,
    )  # fmt: skip
    shown = [p for p in setting.policies if p not in ("static", "static-all")]
    for name, what in (("faster", "speedup_all"), ("cheaper", "cost_saved_all")):
        mean = table.groupby("policy")[what].mean()
        y = [mean[p] - 1 if name == "faster" else mean[p] for p in shown]
        fig.add_bar(
            x=[SHORT.get(p, p) for p in shown], y=y, name=f"{name}, mean over all cells",
            marker={"color": COLOURS[0] if name == "faster" else COLOURS[2]}, row=1, col=3,
        )  # fmt: skip
    fig.update_xaxes(title="nodes", row=1, col=1)
    fig.update_xaxes(title="nodes", row=1, col=2)
    fig.update_yaxes(type="log", dtick=1, row=1, col=2)
    fig.update_yaxes(tickformat=".0%", row=1, col=3)
    fig.update_yaxes(rangemode="tozero", row=1, col=1)
    note = f"batch {setting.responses}, stated roofline and length models; naive: 3 actors, or all that fit"
    return styled(fig, TITLE, note, legend={**WIDE_LEGEND, "y": -0.2}, height=640, barmode="group", margin={"t": 100})


def gains(found: Numbers, policy: str, end: str) -> tuple[float, float]:
    """Mean speedup and mean share of cost saved over all cells; ``end`` is ``_all`` against all actors."""
    own = found.table[found.table["policy"] == policy]
    return float(own[f"speedup{end}"].mean()), float(own[f"cost_saved{end}"].mean())


def caption(setting: Setting, found: Numbers) -> Caption:
    """See ``Caption``."""
    latency = llama2_70b()
    fit = latency.kv_capacity_tokens // (max(setting.response_limits) + 1024)
    said = []
    for policy in ("rlhfless", "solver"):
        three, every = gains(found, policy, ""), gains(found, policy, "_all")
        said.append(
            f"{label_of(policy)}: {three[0]:.2f}x and {three[1]:.0%} against 3 actors, {every[0]:.2f}x and {every[1]:.0%} "
            "against all actors"
        )
    return Caption(
        "Planning time, on this machine (the middle panel and the measured csv).",
        f"Everything else: a roofline of Llama2-70B on two H100 ({MEMORY_SHARE:.0%} of the memory bandwidth, "
        f"{DECODE_MFU:.0%} of the arithmetic) and {lengths(2048).basis} for lengths.",
        "1.23x faster and 38.7 % cheaper on average in simulation; planning takes at most 30 ms at every cluster size.",
        "; ".join(said)
        + ". What the paper's naive system has on 160 GPUs is not printed: against 3 actors nearly any factor can be "
        "had, so both are shown. The memory that the setting leaves beside 138 GB of weights holds "
        f"{latency.kv_capacity_tokens:,} tokens, so an actor admits {fit} responses of up to "
        f"{max(setting.response_limits):,} tokens (and prompts of 1,024) at a time. Llama2 was trained for contexts of 4,096 "
        "tokens; longer ones are the setting's, not the model's.",
    )


FAST = replace(
    Setting(), nodes=(2, 8), response_limits=(2048,), responses=256,
    policies=("static", "static-all", "random", "rlhfless", "solver"),
)  # fmt: skip
FIGURE = PaperFigure("16", TITLE, Setting(), FAST, numbers, plot, caption)
