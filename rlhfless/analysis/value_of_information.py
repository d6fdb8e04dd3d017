"""Runs policies on one step with forecasts of rising sharpness: what information is worth, and who uses it.

Every policy plans from the same forecast and runs with the true lengths. A forecast that is made from true lengths knows how
far such forecasts are off. Its ``error_sd`` is that of another draw, as if an earlier step with the same lengths had shown it.
The last visit's is the predictor's own. Values are ``T^w C^(1-w)`` of the generation, relative to the right-sized random split
with the least sharp forecast (geometric mean over draws).

**Information limit.** The fluid policy with a forecast decodes token x of response i at the load ``kappa sqrt(S_i(x) l(x))``.
That is the cheapest course for that forecast (derived in solver.replanning.marginal_value). Actors are divisible and migration
is free, so it estimates from below the value that any policy with this forecast can reach. It is not a proven bound: ``bound``
is. Its survival curves are the better of two readings of the forecast. One takes the scenarios of the prompt's responses, the
other the predicted length times the ratios of true to predicted lengths of all responses. So the forecast counts as calibrated.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pandas as pd

from rlhfless.executor import run_step
from rlhfless.predict.from_truth import SDS, noisy_lengths, prompt_lengths, prompt_means
from rlhfless.scheduling import SchedulingPolicy, make_policy, policy_names
from rlhfless.simulate import LoggedStep, SimulationConfig
from rlhfless.simulate.run import engines_of, links_of
from solver.bounds.headroom import summed_bounds
from solver.bounds.schedules import ScheduleBound
from solver.lengths.forecast import LengthForecast
from solver.lengths.remaining import SurvivalTable
from solver.lengths.survival import from_scenarios, survival_of, token_grid
from solver.model.latency import LatencyModel
from solver.model.workload import FloatArray, Workload
from solver.timing.evaluate import ready_s

POLICIES = (
    *policy_names("simple", typical=True), *policy_names("ours"), *policy_names("oracle", typical=True),
)  # fmt: skip
BASE = POLICIES[0]
"""Needs no forecast; the others are compared with it."""
LAST_VISIT, TRUTH = "last visit", "truth"
ERROR_DRAW = 10_000  # added to a draw's index for the draw that shows a forecast's errors
SLACKS = np.geomspace(0.02, 12.0, 48)  # by which the fluid policy's time exceeds that of the longest response alone

Forecast = Callable[[int], Workload]
"""Makes the forecast of a step from the index of a draw: predicted lengths and scenarios."""


@dataclass(frozen=True, eq=False)
class ValueOfInformation:
    """Policies by the sharpness of their forecast, on one step.

    Attributes:
        runs: one row per forecast, policy and draw: ``forecast, policy, draw, value, time_s, gpu_seconds, actors, moves,
            planning_s, note``.
        limits: one row per forecast: ``forecast, value``, the information limit, relative like ``runs``.
        bound: the proven lower bound on the value of any policy.
        forecasts: their names, the least sharp first.
    """

    runs: pd.DataFrame
    limits: pd.DataFrame
    bound: float
    forecasts: tuple[str, ...]

    def summary(self) -> pd.DataFrame:
        """Return one row per forecast and policy: geometric mean of the value, and its mean log ratio to random and to ``fold``
        on the same draws. Both have standard errors.
        """
        logs = self.runs.assign(log=np.log(self.runs["value"])).pivot_table(
            index=["forecast", "draw"], columns="policy", values="log"
        )
        rows = []
        for forecast in self.forecasts:
            log_ratios = logs.loc[forecast]
            for policy in self.runs["policy"].unique():
                row = {"forecast": forecast, "policy": policy, "value": float(np.exp(log_ratios[policy].mean()))}
                for rival in (BASE, "fold"):
                    if rival in log_ratios:
                        excess = log_ratios[policy] - log_ratios[rival]
                        row[f"over_{rival}"] = float(np.exp(excess.mean()))
                        error = float(excess.std(ddof=1) / math.sqrt(len(excess))) if len(excess) > 1 else 0.0
                        row[f"over_{rival}_error"] = error
                rows.append(row)
        planning = self.runs.groupby(["forecast", "policy"])[["planning_s", "moves", "actors"]].mean().reset_index()
        return pd.DataFrame(rows).merge(planning, on=["forecast", "policy"])


def forecasts_of(logged: LoggedStep, sds: Sequence[float] = SDS) -> dict[str, Forecast]:
    """Return length forecasts of increasing quality: the last epoch's mean, the prompt's lengths, per-response errors, truth.

    The first is the forecast of the log's own predictor.
    """
    truth = logged.truth
    return {
        LAST_VISIT: lambda draw: logged.predicted,
        "prompt mean": lambda draw: prompt_means(truth),
        "prompt lengths": lambda draw: prompt_lengths(truth, seed=draw),
        **{f"sd {sd:g}": partial(_noisy, truth, sd) for sd in sds},
        TRUTH: lambda draw: truth,
    }


def _noisy(truth: Workload, sd: float, draw: int) -> Workload:
    return noisy_lengths(truth, sd, seed=draw)


def value_of_information(
    logged: LoggedStep,
    setting: SimulationConfig,
    forecasts: Mapping[str, Forecast] | None = None,
    policies: Sequence[str] = POLICIES,
    draws: int = 4,
    slacks: FloatArray = SLACKS,
) -> ValueOfInformation:
    """Simulate the policies with every forecast; return their values, the limits of what each forecast allows, and a lower
    bound.

    Args:
        forecasts: by name, the worst first; those of ``forecasts_of`` when None.
        draws: number of random draws of forecast errors and of the random split; all policies see the same draws.
        slacks: settings of the fluid policy over which the limit is searched.
    """
    chosen = dict(forecasts_of(logged) if forecasts is None else forecasts)
    made = [make_policy(name, tau=setting.tau, static_actors=setting.static_actors) for name in policies]
    objective, rows = setting.objective, []
    for name, forecast in chosen.items():
        for draw in range(draws):
            step = logged if name == LAST_VISIT else _with_forecast(logged, forecast(draw), forecast(draw + ERROR_DRAW))
            drawn = replace(setting, seed=setting.seed + 1000 * draw)
            for policy in made:
                rows.append({"forecast": name, "policy": policy.name, "draw": draw, **_outcome(step, policy, drawn)})
    runs = pd.DataFrame(rows)
    runs["value"] = objective.product(runs["time_s"], runs["gpu_seconds"])
    first = runs[(runs["policy"] == BASE) & (runs["forecast"] == next(iter(chosen)))]["value"]
    base = float(np.exp(np.log(first).mean()))
    bound = ScheduleBound(setting.problem(logged.truth))
    found = [(name, _limit(forecast(0), logged.truth, setting, slacks) / base) for name, forecast in chosen.items()]
    least = summed_bounds([bound.curve()], objective.time_weight).value / base
    return ValueOfInformation(
        runs.assign(value=runs["value"] / base), pd.DataFrame(found, columns=["forecast", "value"]), least, tuple(chosen)
    )


def _with_forecast(logged: LoggedStep, work: Workload, earlier: Workload) -> LoggedStep:
    """Return the step predicted by another forecast, whose distributions are its scenarios; its errors are ``earlier``'s."""
    scenarios = work.response_tokens[None] if work.scenarios is None else work.scenarios
    errors = np.log(np.maximum(logged.truth.response_tokens, 1) / np.maximum(earlier.response_tokens, 1))
    forecast = LengthForecast(work.response_tokens.astype(float), scenarios.astype(float), None, float(errors.std()))
    return replace(logged, predicted=work, forecast=forecast)


def _outcome(logged: LoggedStep, policy: SchedulingPolicy, setting: SimulationConfig) -> dict[str, object]:
    """Plan and run one step under one policy."""
    began = time.perf_counter()
    plan = policy.plan(*logged.inputs(setting, policy.clairvoyant))
    planning_s = time.perf_counter() - began
    record = run_step(
        plan, logged.requests(), engines_of(setting, logged, plan, policy.clairvoyant), setting.latency, setting.cluster,
        admission=setting.admission, migration=setting.migration, links=links_of(setting),
    )  # fmt: skip
    gpu_s = sum(len(held["gpu_ids"]) * (held["end_s"] - held["start_s"]) for held in record.allocations)
    return {
        "time_s": record.makespan_s, "gpu_seconds": gpu_s, "actors": len(plan.actors), "moves": record.moves,
        "planning_s": planning_s, "note": plan.notes.get("chosen", ""),
    }  # fmt: skip


# --- the information limit --------------------------------------------------------------------------------------------------


def _limit(forecast: Workload, truth: Workload, setting: SimulationConfig, slacks: FloatArray) -> float:
    """Return the least ``T^w C^(1-w)`` of the fluid policy on the true lengths."""
    grid = token_grid(truth.max_response_tokens)
    predicted = np.maximum(forecast.response_tokens, 1)
    ratios = truth.response_tokens / predicted
    readings = [survival_of(ratios, (grid / predicted[:, None]).ravel()).reshape(len(predicted), -1)]
    if forecast.scenarios is not None and np.ptp(forecast.scenarios) > 0:
        table = from_scenarios(forecast)
        if isinstance(table, SurvivalTable):
            readings.append(table.curve[table.class_of])
    fronts = [fluid_front(truth, curves, grid, setting.latency, slacks) for curves in readings]
    gpus = setting.cluster.gpus_per_actor
    return min(float(setting.objective.product(front[:, 0], gpus * front[:, 1]).min()) for front in fronts)


def fluid_front(truth: Workload, curves: FloatArray, grid: FloatArray, latency: LatencyModel, slacks: FloatArray) -> FloatArray:
    """Return (len(slacks), 2) time and actor-seconds of the fluid policy, on the true lengths.

    Args:
        curves: (R, G) survival of every response at the ``grid`` of tokens.
    """
    model = latency.affine
    a, b, c = model.base_s, model.per_response_s, model.per_kv_token_s
    tokens, prompt = truth.response_tokens.astype(float), truth.prompt_tokens[truth.prompt_of].astype(float)
    width = np.diff(grid)
    load = b + c * (prompt[:, None] + grid[:-1] + (width - 1) / 2)
    # token j is decoded by the share S(j) that is longer than j: S is summed over the tokens of a cell without the cell's end
    alive = np.maximum(curves[:, :-1] + (curves[:, 1:] - curves[:, :-1]) * (width - 1) / (2 * width), 0.0)
    root = np.sqrt(alive * load)
    total = (root * width).sum(axis=1, keepdims=True)
    most = grid[np.minimum((curves > 0).sum(axis=1), len(grid) - 1)]
    work = float((b * tokens + c * (prompt * tokens + tokens * (tokens - 1) / 2) + model.join_s).sum())
    work += float((model.prefill_per_token_s * prompt).sum())
    cell = np.clip(np.searchsorted(grid, tokens, side="left") - 1, 0, len(width) - 1)
    part, rows = (tokens - grid[cell]) / width[cell], np.arange(len(tokens))
    points = []
    for slack in slacks:
        left_s = a * most.max() * (1 + slack)
        wanted = np.clip((left_s - a * most)[:, None] * root / total, load, model.max_batch * load)
        summed = [np.cumsum(f * width, axis=1) for f in (a * load / wanted, a + wanted)]
        spent, passed = (x[rows, cell] - (1 - part) * np.diff(x, axis=1, prepend=0.0)[rows, cell] for x in summed)
        start = float((load[:, 0] / wanted[:, 0]).sum())
        points.append((ready_s(model) + float(passed.max()), work + float(spent.sum()) + ready_s(model) * start))
    return np.array(points)
