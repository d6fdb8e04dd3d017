"""Figure 7b: GPU time saved by grouping responses by length, with true lengths and with the last visit's lengths.

Computed from groups and their exact times (``solver.evaluate`` with the measured table); no runtime rule is involved.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from rlhfless.paper.facets import PERCENT, Look, Panel, facets, for_each, looks_of
from rlhfless.paper.lengths import GSM8K
from rlhfless.paper.machine import QWEN_3B_L40S, Machine
from rlhfless.paper.paper_figure import Caption, Claim, Numbers, PaperFigure
from rlhfless.paper.wording import spread
from rlhfless.paper.workloads import LengthHistory, Sources, modelled
from rlhfless.plots.palette import BOUND
from rlhfless.simulate import LoggedStep, logged_steps
from solver.bounds.clairvoyant import clairvoyant_bound
from solver.model.problem import PlanningProblem
from solver.model.workload import IntArray
from solver.timing.build_plan import assemble
from solver.timing.evaluate import evaluate

TITLE = "Figure 7b: GPU time that grouping by length saves"
SPLITS = {
    "true": "grouped by true length", "prompt": "grouped by the prompt's true mean",
    "predicted": "grouped by the last visit's mean (RLHFless)", "bound": "bound at the same time, any policy",
}  # fmt: skip


@dataclass(frozen=True)
class Figure07bSetting:
    """Setting: equal counts in sorted order, each actor released when it is done; the base is the mean of random splits."""

    actors: tuple[int, ...] = (2, 3, 4, 5, 6, 7, 8)
    random_splits: int = 10
    machine: Machine = QWEN_3B_L40S
    seed: int = 0


def histories(sources: Sources) -> list[LengthHistory]:
    """Return GSM8K under GRPO and PPO, and MATH-500 where its log is available."""
    numbers = [sources.gsm8k(4), modelled(GSM8K, 1, epochs=2), sources.math500()]
    return [h for h in numbers if h is not None]


def orders(logged: LoggedStep, setting: Figure07bSetting) -> Iterator[tuple[str, IntArray]]:
    """Return every order of the responses before they are cut into groups."""
    truth = logged.truth
    rng = np.random.default_rng(setting.seed)
    for _ in range(setting.random_splits):
        yield "random", rng.permutation(len(truth))
    mean = np.bincount(truth.prompt_of, truth.response_tokens) / np.bincount(truth.prompt_of)
    keys = {"true": truth.response_tokens, "prompt": mean[truth.prompt_of], "predicted": logged.predicted.response_tokens}
    for name, key in keys.items():
        yield name, np.lexsort((truth.prompt_of, -key))


def numbers(setting: Figure07bSetting, sources: Sources) -> Numbers:
    """Return ``data_set, basis, samples_per_prompt, actors, split, makespan_s, gpu_s, saved`` (against the mean random split
    with the same number of actors)."""
    cluster, latency = setting.machine.cluster, setting.machine.latency
    rows = []
    for history in histories(sources):
        logged = next(logged_steps(history.rollouts, max_response_tokens=history.max_response_tokens, steps=history.last(1)))
        samples_per_prompt = len(logged.truth) // len(logged.truth.prompt_tokens)
        problem = PlanningProblem(logged.truth, cluster, latency)
        bound = clairvoyant_bound(replace(problem, admission="preempt"))  # whatever engines reserve
        ways = list(orders(logged, setting))
        for actors in setting.actors:
            taken: dict[str, list[tuple[float, float]]] = {}
            for split, order in ways:
                plan = assemble(split, np.array_split(order, actors), problem)
                charged = evaluate(plan, problem, table=True)
                taken.setdefault(split, []).append((charged.makespan_s, charged.gpu_seconds))
            means = {split: np.mean(numbers, axis=0) for split, numbers in taken.items()}
            fastest = min(float(m[0]) for m in means.values())
            means["bound"] = np.array([fastest, bound.gpu_seconds(fastest * (1 + 1e-9))])
            rows += [
                {
                    "data_set": history.name, "basis": history.basis, "samples_per_prompt": samples_per_prompt,
                    "actors": actors, "split": split,
                    "makespan_s": float(time_s), "gpu_s": float(gpu_s), "saved": 1 - float(gpu_s) / float(means["random"][1]),
                }
                for split, (time_s, gpu_s) in means.items()
            ]  # fmt: skip
    return Numbers(pd.DataFrame(rows))


def plot(setting: Figure07bSetting, numbers: Numbers) -> go.Figure:
    """Plot the saving by number of actors, a panel per data set."""
    cells = numbers.table[["data_set", "basis", "samples_per_prompt"]].drop_duplicates().itertuples()
    titles = {
        one.data_set + str(one.samples_per_prompt): f"{one.data_set} x {one.samples_per_prompt} ({one.basis})" for one in cells
    }
    table = numbers.table.assign(cell=numbers.table["data_set"] + numbers.table["samples_per_prompt"].astype(str))
    panel = Panel(
        {"split": tuple(SPLITS)}, "actors", "saved", "split", "lines", x_title="actors", xaxis={"dtick": 1}, yaxis=PERCENT
    )
    first, *others = for_each(panel, "cell", titles)
    note = "equal counts, released when done; below 0 it takes more than a random split"
    return facets(
        table,
        TITLE,
        note,
        [[replace(first, y_title="GPU time saved of a random split"), *others]],
        {**looks_of(list(SPLITS), SPLITS), "bound": Look(SPLITS["bound"], BOUND, "triangle-up", "dashdot")},
        same_y=True,
    )


def caption(setting: Figure07bSetting, numbers: Numbers) -> Caption:
    """Return the caption; see ``Caption``."""
    max_actors = max(setting.actors)
    texts = []
    for (name, basis, samples_per_prompt), subset in numbers.table[numbers.table["actors"] == max_actors].groupby(
        ["data_set", "basis", "samples_per_prompt"], sort=False
    ):
        by = subset.set_index("split")["saved"]
        texts.append(
            f"{name} x {samples_per_prompt} ({basis}) {by['true']:.0%} with true lengths, {by['predicted']:.0%} with the "
            f"last visit's mean"
        )
    logs = sorted(set(numbers.table["data_set"][numbers.table["basis"] == "log"]))
    return Caption(
        "GPU time saved by grouping responses by length, compared with a random split, by number of actors.",
        f"Lengths of {', '.join(logs)} (public logs)." if logs else "Nothing: no log is at hand.",
        "Each group's time comes from the profile's table. PPO's lengths are a stated model.",
        "A possible saving by grouping, only as a picture: no number is printed.",
        f"With {max_actors} actors: " + "; ".join(texts) + ". Grouping by predictions saves less, because one response that "
        "is much longer than predicted keeps its actor. Our plans group by prediction only where scenarios show a saving.",
    )


def claims(numbers: Numbers) -> list[Claim]:
    """Return whether the paper's statements hold; see ``Claim``."""
    table = numbers.table[numbers.table["actors"] == numbers.table["actors"].max()]
    true, predicted = (table[table["split"] == split]["saved"] for split in ("true", "predicted"))
    text = f"grouping by true lengths saves {spread(true, '.0%')}, by the last visit's lengths {spread(predicted, '.0%')}"
    return [Claim.of("grouping responses by length saves GPU time", [*(true > 0), *(predicted > 0)], text)]


FAST = replace(Figure07bSetting(), actors=(2, 4, 8), random_splits=4)
FIGURE = PaperFigure("7b", TITLE, Figure07bSetting(), FAST, numbers, plot, caption, claims=claims)
