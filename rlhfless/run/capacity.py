"""Capacity search: which GPU kind, how many GPUs, and how many per actor serve the lengths of a run best.

Every candidate is a variant of the run under the policy ``solver``, so each has a plan behind it. Latency profiles of the same
language model are the candidates. The run's own GPU kind has the price that is stated, all others list prices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rlhfless.analysis.assumptions import PRICE
from rlhfless.errors import InputError
from rlhfless.latency import load_profile, profiles_of_the_same_model, usd_per_gpu_hour
from rlhfless.latency.counts import gpu_numbers, several
from rlhfless.report.not_stated import LIST_PRICES, NO_PRICE
from rlhfless.run.hardware import Hardware
from rlhfless.run.sweeps import RunToVary, Variant, variants
from rlhfless.simulate import Comparison
from solver.model.errors import as_given
from solver.model.objective import Objective

SIZES = (8, 16, 32, 64)


def search_capacity(
    run: RunToVary,
    objective: Objective,
    *,
    gpu_kinds: Sequence[str] | None = None,
    gpus: Sequence[int] = SIZES,
    gpus_per_actor: Sequence[int] | None = None,
) -> Comparison:
    """Return every GPU kind, number and actor size that has a latency profile of the model, the best one first.

    Args:
        run: whose last steps they run. objective: by which candidates are ranked, of means over the steps.
        gpu_kinds, gpus_per_actor: only these; all that have a profile when None. gpus: numbers of GPUs.

    Raises:
        InputError: an argument is no list of such values, or has a number twice; or no profile has such a kind and size (the
            message names those that exist).
        PlanningError: no candidate can run the steps.
    """
    counts = gpu_numbers("gpus", gpus)
    sizes = None if gpus_per_actor is None else gpu_numbers("gpus_per_actor", gpus_per_actor)
    kinds = None if gpu_kinds is None else several("gpu_kinds", gpu_kinds, "kinds of GPUs, such as ['h100']")
    models = {name: load_profile(name) for name in (run.profile, *profiles_of_the_same_model(run.profile))}
    chosen = [
        name for name, model in models.items()
        if (kinds is None or model.kind in kinds) and (sizes is None or model.gpus_per_actor in sizes)
    ]  # fmt: skip
    if not chosen:
        known = ", ".join(f"{model.kind} with {model.gpus_per_actor}" for model in models.values())
        raise InputError(
            f"no latency profile of this model has gpu_kinds {as_given(kinds)} and gpus_per_actor "
            f"{as_given(sizes)}; there are profiles for {known} GPUs per actor"
        )
    assumed = dict(run.assumptions.not_stated)
    own_kind = models[run.profile].kind
    own_price = usd_per_gpu_hour(own_kind) if assumed.get(PRICE) == NO_PRICE else None
    twice = len({(models[name].kind, models[name].gpus_per_actor) for name in chosen}) < len(chosen)
    found = variants(
        run,
        [
            Variant(
                f"{count} x {models[name].kind.upper()}, {models[name].gpus_per_actor} per actor{f', {name}' if twice else ''}",
                Hardware(count, profile=name, usd_per_gpu_hour=own_price if models[name].kind == own_kind else None),
            )
            for name in chosen
            for count in counts
        ],
    )
    sentences = tuple((assumed | {PRICE: LIST_PRICES} if PRICE in assumed else assumed).values())
    found = replace(found, assumed=sentences)
    means = found.means().set_index("variant")
    keys = {str(name): _key(row, objective) for name, row in means.iterrows()}
    ranked = found.only(sorted(keys, key=lambda name: keys[name]))
    if not objective.limited:
        return ranked
    within = ranked.table["variant"].map({name: missed == 0 for name, (missed, _) in keys.items()})
    return replace(ranked, table=ranked.table.assign(within_limit=within))


def _key(row: Any, objective: Objective) -> tuple[float, float]:
    """Return ``Objective.key`` of a candidate. GPUs without a price cost GPU-seconds; within no budget in USD."""
    cost = float(row["cost_usd"])
    if math.isnan(cost):
        cost = float(row["gpu_seconds"]) if objective.budget is None else math.inf
    return objective.key(float(row["time_s"]), cost)
