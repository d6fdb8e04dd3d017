"""What a sharper forecast is worth: the policies by what they are told of the lengths, against random, fold and the limits.

    python tests/benchmarks/value_of_information.py [--fast | --tiny] [--markdown] [--json FILE] [--picture FILE]

Three public logs (skipped when they are not beside the checkout), each as one step whose prompts were seen before, on two
profiles, 16 GPUs, w = 0.7. Every policy plans from the same forecast and runs with the true lengths on simulated engines, which
charge the measured table and every migration; planning takes counted work and is not charged. Forecasts, least sharp first:

- *last visit*: what the default predictor makes of the log's history;
- *prompt mean*: the true mean of each prompt's responses, as if every response had it (no spread);
- *prompt lengths*: scenarios drawn from the prompt's own true lengths;
- *sd X*: per response, ``predicted = truth * exp(sd * z)`` with scenarios ``predicted * exp(sd * z')``;
- *truth*: the lengths.

A forecast that is made from true lengths knows the spread of its errors, as an earlier step would have shown it
(``LengthForecast.error_sd``). The last visit's predictor knows it where the log's history has two visits.

Values are T^w C^(1-w) relative to random with the last visit. *limit* and *bound* are explained in
``rlhfless.analysis.value_of_information``. *reached* is ``log(value) / log(limit)`` of the better of the two policies; an
interval is +- 2 standard errors of the paired difference over draws (of the forecast's errors and of the random split).
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from policies import DATA, GPUS, PROFILES, Log, arithmetic_epoch, gsm8k_visit, math500

from rlhfless.analysis.value_of_information import POLICIES, ValueOfInformation, value_of_information
from rlhfless.latency import load_profile
from rlhfless.plots import plot_value_of_information, save
from rlhfless.simulate import LoggedStep, SimulationConfig, logged_steps
from rlhfless.trace import validate
from solver import Cluster, Objective
from solver.lengths.forecast import LengthForecast

QUESTIONS = 125  # of MGSM, each in eight languages


def mgsm() -> Log:
    """MGSM: one question in eight languages stands for a prompt with eight samples; history: the model before training."""
    log = pd.read_csv(DATA / "reasoning-eval-lengths" / "response_lengths.csv")
    log = log[(log["benchmark"] == "mgsm") & (log["prompt_index"] < QUESTIONS)]
    log = log[log["run"].isin(["base_distill15b_mgsm", "a2_vi_123_mgsm"])]
    rows = pd.DataFrame(
        {
            "run": "mgsm", "step": np.where(log["run"].str.startswith("base"), 0, 1),
            "sample": log["language"].astype("category").cat.codes, "prompt_id": log["prompt_index"].astype(str),
            "response_tokens": np.minimum(log["response_tokens"], 8192),
            "finish_reason": np.where(log["hit_cap"] == 1, "length", "stop"),
        }
    )  # fmt: skip
    return Log(
        validate("rollouts", rows), 8192, f"{QUESTIONS} questions x 8 languages, predicted from the model before training"
    )


LOGS: dict[str, Callable[[], Log]] = {"math500": math500, "gsm8k-visit": gsm8k_visit, "mgsm": mgsm}


def only_step(log: Log) -> LoggedStep:
    """Return the last step of a log, predicted from those before it."""
    last = int(log.rollouts["step"].max())
    return list(logged_steps(log.rollouts, max_response_tokens=log.max_response_tokens, steps=[last]))[-1]


def smaller(step: LoggedStep, prompts: int) -> LoggedStep:
    """Return the step with its first prompts only: tries the script."""
    rows = np.flatnonzero(step.truth.prompt_of < prompts)

    def pick(work: Any) -> Any:
        scenarios = None if work.scenarios is None else work.scenarios[:, rows]
        return type(work)(
            work.prompt_tokens[:prompts], work.prompt_of[rows], work.response_tokens[rows],
            max_response_tokens=work.max_response_tokens, scenarios=scenarios,
        )  # fmt: skip

    said = step.forecast
    scenarios = None if said.scenarios is None else said.scenarios[:, rows]
    forecast = LengthForecast(said.expected[rows], scenarios, error_sd=said.error_sd)
    return replace(step, rows=step.rows.iloc[rows], predicted=pick(step.predicted), truth=pick(step.truth), forecast=forecast)


# --- tables -----------------------------------------------------------------------------------------------------------------


def show(found: ValueOfInformation) -> str:
    """Return the values by forecast and policy, with what of the limit is reached, as text."""
    table, limits = found.summary(), found.limits.set_index("forecast")["value"]
    policies = list(dict.fromkeys(table["policy"]))
    lines = [
        f"{'forecast':16s}"
        + "".join(f"{p:>15s}" for p in policies)
        + f"{'limit':>9s}{'reached':>9s}{'moves':>8s}{'plan s':>8s}"
    ]
    for forecast in found.forecasts:
        own = table[table["forecast"] == forecast].set_index("policy")
        best = min(own["value"].get("solver", 1.0), own["value"].get("solver+replan", 1.0))
        reached = math.log(best) / math.log(limits[forecast]) if limits[forecast] < 1 else math.nan
        moves = own["moves"].get("solver+replan", 0)
        values = "".join(f"{own['value'][p]:9.3f} {2 * own['over_random_error'][p]:4.3f}" for p in policies)
        planning = own["planning_s"].get("solver+replan", 0)
        lines.append(f"{forecast:16s}{values}{limits[forecast]:9.3f}{reached:9.0%}{moves:8.0f}{planning:8.2f}")
    return "\n".join([*lines, f"bound {found.bound:.3f}"])


def markdown(name: str, profile: str, draws: int, found: ValueOfInformation) -> str:
    """Return the table of one log and profile for details/prediction.md, with the aims that are missed."""
    table, limits = found.summary(), found.limits.set_index("forecast")["value"]
    policies = list(dict.fromkeys(table["policy"]))
    lines = [
        f"{name}, {profile}, {draws} draws (+- 2 standard errors of the difference to random); proven bound {found.bound:.3f}",
        "",
        f"| what is known | {' | '.join(policies)} | limit | of the limit |",
        "|" + "---|" * (len(policies) + 3),
    ]
    for forecast in found.forecasts:
        rows, limit = table[table["forecast"] == forecast].set_index("policy"), limits[forecast]
        values = [f"{rows['value'][p]:.3f} +- {2 * rows['over_random_error'][p]:.3f}" for p in policies]
        best = min(rows["value"].get("solver", 1.0), rows["value"].get("solver+replan", 1.0))
        share = f"{math.log(best) / math.log(limit):.0%}" if limit < 1 else "-"
        lines.append(f"| {forecast} | {' | '.join(values)} | {limit:.3f} | {share} |")
    return "\n".join([*lines, "", *(f"- **Missed**: {sentence}" for sentence in verdicts(found))])


def verdicts(found: ValueOfInformation) -> list[str]:
    """Return one sentence per aim that is missed: never significantly worse than a rival, monotone, informed plans differ."""
    table = found.summary().set_index(["policy", "forecast"])
    said = []
    for policy in (p for p in ("solver", "solver+replan") if p in table.index.get_level_values(0)):
        own = table.loc[policy]
        for rival in ("random", "fold"):
            for forecast in found.forecasts:
                ratio, error = own.loc[forecast, f"over_{rival}"], own.loc[forecast, f"over_{rival}_error"]
                if math.log(ratio) > 2 * error + 1e-3:
                    said.append(f"{policy} is worse than {rival} with {forecast}: {ratio:.3f}")
        sharp = [f for f in found.forecasts if f.startswith("sd") or f == "truth"]
        values = [float(own.loc[f, "value"]) for f in sharp]
        said += [
            f"{policy} is worse with {after} than with {before}: {y:.3f} against {x:.3f}"
            for before, after, x, y in zip(sharp, sharp[1:], values, values[1:], strict=False)
            if y > x + 2e-3
        ]
    return said


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table per log and profile."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fast", action="store_true", help="two draws, the first profile")
    parser.add_argument("--tiny", action="store_true", help="a few prompts of the shipped log: tries the script")
    parser.add_argument("--draws", type=int, default=6)
    parser.add_argument("--json", type=Path, help="write all rows to this file")
    parser.add_argument("--markdown", action="store_true", help="print the tables of details/prediction.md in the end")
    parser.add_argument("--picture", type=Path, help="write the figure of the last log and profile to this file")
    parser.add_argument("--logs", nargs="+", choices=LOGS, default=list(LOGS))
    parser.add_argument("--profile", nargs="+", default=list(PROFILES))
    parser.add_argument("--policies", nargs="+", default=list(POLICIES))
    options = parser.parse_args(arguments)
    logs = {"arithmetic": arithmetic_epoch} if options.tiny else {name: LOGS[name] for name in options.logs}
    profiles = options.profile[:1] if options.fast or options.tiny else options.profile
    everything: list[dict[str, Any]] = []
    tables: list[str] = []
    for name, load in logs.items():
        try:
            log = load()
        except FileNotFoundError:
            print(f"{name} is skipped: its data folder is not beside the project (../shared/data).")
            continue
        step = smaller(only_step(log), 24) if options.tiny else only_step(log)
        for profile in profiles:
            latency, began = load_profile(profile), time.perf_counter()
            setting = SimulationConfig(
                Cluster(GPUS // 8, 8, latency.gpus_per_actor), latency, Objective(0.7),
                max_response_tokens=log.max_response_tokens,
            )  # fmt: skip
            draws = 1 if options.tiny else 2 if options.fast else options.draws
            found = value_of_information(step, setting, policies=options.policies, draws=draws)
            took = time.perf_counter() - began
            if options.picture is not None:
                save(plot_value_of_information(found), options.picture)
            print(f"\n{name} ({log.about}), {profile}, {GPUS} GPUs, {draws} draws; {took:.0f} s\n{show(found)}")
            print("\n".join(verdicts(found)), flush=True)
            tables.append(markdown(name, profile, draws, found))
            everything.append(
                {
                    "log": name, "profile": profile, "bound": found.bound, "draws": draws,
                    "limits": dict(found.limits.itertuples(index=False)), "policies": found.summary().to_dict("records"),
                    "verdicts": verdicts(found),
                }
            )  # fmt: skip
    if options.markdown:
        print("\n" + "\n\n".join(tables))
    if options.json is not None:
        options.json.write_text(json.dumps(everything, indent=1) + "\n")


if __name__ == "__main__":
    main()
