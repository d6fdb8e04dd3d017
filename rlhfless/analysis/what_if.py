"""Simulates a run's steps with one thing changed at a time: other GPUs, another price or another schedule.

Every variant runs the same responses. Times of another GPU kind are by the profile of the same language model on that kind.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from rlhfless.latency import PriceError, list_prices, list_profiles, load_profile, read_profile, scaled, usd_per_gpu_hour
from rlhfless.scheduling import SchedulingPolicy, make_policy
from rlhfless.simulate import LoggedStep, SimulationConfig, execute_steps, policy_metrics
from rlhfless.simulate.traces import Executed
from rlhfless.trace.schema.prices import dollars
from solver.model.cluster import Cluster
from solver.model.errors import PlanningError
from solver.model.plurals import counted

TAUS = (0.5, 0.7, 0.9)


@dataclass(frozen=True)
class Variant:
    """A setting in which one thing is changed.

    Attributes:
        change: the change in words. setting: the whole setting. policies: scheduling policies, by names or objects.
        held: all GPUs count until the last response, as for the run's own schedule.
    """

    change: str
    setting: SimulationConfig
    policies: tuple[str | SchedulingPolicy, ...]
    held: bool


def variants(
    setting: SimulationConfig, dispatch: str, policies: Sequence[str] = ("spread", "fold", "solver"), *, factor: float = 1.0
) -> Iterator[Variant]:
    """Yield other schedules, numbers of GPUs, actor sizes, GPU kinds and taus, beginning with the run's own.

    Args:
        setting: the run's own. dispatch: the policy that assigns responses as the run did. policies: alternatives, by name.
        factor: ratio of the run's times to its profile; other profiles are assumed to be off by the same factor.
    """
    cluster = setting.cluster
    yield Variant("unchanged run", setting, (dispatch,), True)
    yield Variant("another schedule, GPUs released early", setting, tuple(policies), False)
    for tau in TAUS:
        yield Variant(f"local cut at tau {tau:g}", setting, (make_policy("rlhfless", tau=tau),), False)
    for share in (2, 4):
        if (actors := cluster.max_actors // share) >= 1:
            fewer = make_policy("static", static_actors=actors)
            yield Variant(f"{actors} of {counted(cluster.max_actors, 'actor')}, equal chunks", setting, (fewer,), False)
    yield Variant("true lengths known beforehand (unattainable)", setting, ("oracle",), False)
    for times, words in ((0.5, "half the GPUs"), (2.0, "twice the GPUs")):
        nodes = cluster.nodes * times
        if nodes >= 1 and nodes == int(nodes):
            variant = replace(cluster, nodes=int(nodes))
        elif times < 1 and cluster.gpus_per_node % 2 == 0 and cluster.gpus_per_node // 2 >= cluster.gpus_per_actor:
            variant = replace(cluster, gpus_per_node=cluster.gpus_per_node // 2)
        else:
            continue
        yield Variant(f"{words}: {variant.gpus}", replace(setting, cluster=variant), (dispatch,), True)
    for name in profiles_of_the_same_model(setting.latency.name):
        latency = scaled(load_profile(name), factor)
        if latency.gpus_per_actor > cluster.gpus_per_node:
            continue
        price = cluster.usd_per_gpu_hour if latency.kind == cluster.kind else _price(latency.kind, cluster)
        variant = replace(cluster, gpus_per_actor=latency.gpus_per_actor, kind=latency.kind, usd_per_gpu_hour=price)
        words = f"{latency.gpus_per_actor} x {latency.kind.upper()} per actor"
        yield Variant(words, replace(setting, cluster=variant, latency=latency), (dispatch,), True)


def what_if(logged: Sequence[LoggedStep], every: Sequence[Variant]) -> pd.DataFrame:
    """Return time and cost of generation of the steps in every variant.

    Args:
        logged: the steps, with predictions. every: the variants; the first is the base of the comparison.

    Returns:
        Rows ``change, policy, gpus, actors`` (mean over steps), ``time_s, gpu_s, usd, time_share, usd_share`` (of the first
        row), ``missing``: why a variant cannot run, or the empty text.
    """
    executed: dict[tuple[int, str], Executed] = {}
    missing = {}
    for number, variant in enumerate(every):
        try:
            executed |= {(number, name): of for name, of in execute_steps(logged, variant.setting, variant.policies).items()}
        except PlanningError as error:
            missing[number] = str(error)
    billed = dict(list(policy_metrics(executed).groupby("policy", sort=False)))
    rows = []
    for number, variant in enumerate(every):
        cluster = variant.setting.cluster
        if number in missing:
            rows.append({"change": variant.change, "policy": "", "gpus": cluster.gpus, "missing": missing[number]})
        for key in (key for key in executed if key[0] == number):
            time_s = float(np.sum([record.end_s - record.start_s for record, _ in executed[key]]))
            gpu_s = cluster.gpus * time_s if variant.held else float(billed[key]["gpu_seconds"].sum())
            usd = float(dollars(gpu_s, cluster.usd_per_gpu_hour / 3600.0))
            rows.append(
                {
                    "change": variant.change, "policy": key[1], "gpus": cluster.gpus,
                    "actors": float(billed[key]["actors"].mean()), "time_s": time_s, "gpu_s": gpu_s, "usd": usd, "missing": "",
                }
            )  # fmt: skip
    table = pd.DataFrame(rows)
    first = table.iloc[0]
    table["time_share"] = table["time_s"] / first["time_s"]
    table["usd_share"] = table["usd"] / first["usd"] if first["usd"] > 0 else table["gpu_s"] / first["gpu_s"]
    return table


def prices_of(kind: str) -> pd.DataFrame:
    """Return the rows of the shipped price table for a GPU kind: ``market, usd_per_gpu_hour, source, date``."""
    rows = [row for row in list_prices() if row["kind"] == kind]
    table = pd.DataFrame(rows, columns=["kind", "usd_per_gpu_hour", "market", "source", "date"])
    return table.assign(usd_per_gpu_hour=table["usd_per_gpu_hour"].astype(float)).drop(columns="kind")


def profiles_of_the_same_model(name: str) -> list[str]:
    """Other shipped profiles of the language model of a shipped profile; none where the profile is not shipped."""
    profiles = list_profiles()
    if name not in profiles:
        return []
    model = read_profile(name)["model"]
    return [profile for profile in profiles if profile != name and read_profile(profile)["model"] == model]


def _price(kind: str, cluster: Cluster) -> float:
    """Return the list price of a kind, scaled by the ratio of the run's own price to its list price: spot buyers pay spot
    prices."""
    try:
        price = usd_per_gpu_hour(cluster.kind)
        return usd_per_gpu_hour(kind) * (cluster.usd_per_gpu_hour / price if price else 1.0)
    except PriceError:
        return 0.0
