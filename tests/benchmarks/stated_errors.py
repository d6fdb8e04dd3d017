"""Errors that a report states of its simulated times, beside those found on times that it did not see.

    python tests/benchmarks/stated_errors.py [--tiny] [--json FILE]

A report calibrates a profile on up to 24 of a run's logged times. It states the error that 9 of 10 other steps are within, and
the largest held-out one. Here half of a log is seen, and the other half is tested: random halves for the first statement, and
for the second the earlier half for the later one. Of logs of requests half of the requests are seen, by their start.

Logs with both lengths and times: training runs of one prompt with eight samples, generated one after the other (one actor of
one slot; a step's mean length is known), a run of DeepSpeed-Chat with equal lengths on 16 GPUs, and two servers of vLLM. The
GPUs of the first are unknown, and no profile is of their models: every profile is scaled to the log.

No public log of a framework has responses and times. So the golden logs of the importers' tests are in a table of their own.
They have two steps at most, too few to find an error on steps that were not seen. Only TRL's seconds were measured.
"""

from __future__ import annotations

import argparse
import csv
import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from rlhfless.analysis import run_setup
from rlhfless.analysis.calibration import calibration
from rlhfless.analysis.own_times import CALIBRATION_STEPS, evenly
from rlhfless.latency import load_profile
from rlhfless.latency.calibrate_from_log import calibrate, times_of
from rlhfless.latency.held_out_errors import error_of_most
from rlhfless.simulate import SimulationConfig, simulate
from rlhfless.trace import ImportOptions, LogWithoutResponses, Trace, import_log, open_log, validate, with_step_times
from solver import Cluster

DATA = Path(__file__).parents[2].parent / "shared" / "data"
GOLDEN = Path(__file__).parents[1] / "trace" / "importers" / "golden"
MADE_UP = "made up: our writer, with the framework's fields"
GOLDEN_LOGS = {
    "TRL": (("trl-profiled", "trl-profiled/run.wandb"), "measured: TRL's own trainer, on a CPU"),
    "verl": (("verl-v1", "verl-scalars/experiment.jsonl"), "made up: verl's own logger, without a run"),
    "OpenRLHF": (("openrlhf/console.log",), MADE_UP),
    "NeMo-RL": (("nemo-rl", "tensorboard"), MADE_UP),
    "slime": (("slime", "wandb/run-golden.wandb"), MADE_UP),
    "AReaL": (("areal",), MADE_UP),
    "prime-rl": (("prime-rl",), MADE_UP),
}
"""By framework: the golden files of its responses and its times, and where their seconds come from."""
SAMPLES, DEEPSPEED_RESPONSES, DEEPSPEED_TOKENS = 8, 64, 256
MOST_STEPS = 160  # of a run, evenly chosen
SPLITS = 10
PROFILE = "l40s-qwen2.5-3b-tp2"


@dataclass(frozen=True)
class Row:
    """A log: the errors that were stated, and those found out of sample; all are relative.

    Attributes:
        seen, tested: times. simulated_s, logged_s: of the later half together.
        stated: error that 9 of 10 other times are within, mean over splits. found: 90th percentile of the errors of others.
        within: share of other times within the stated error.
        largest: largest error held out in the earlier half. found_later, within_later: as above, of the later half.
    """

    log: str
    seen: int
    tested: int
    simulated_s: float
    logged_s: float
    stated: float
    found: float
    within: float
    largest: float
    found_later: float
    within_later: float


@dataclass(frozen=True)
class GoldenRow:
    """A framework's log among the test files.

    Attributes:
        seconds: where they come from. steps: with responses and a time of generation. logged_s: their seconds of generation,
            and ``simulated_s`` those of the profile as it is shipped; None where the log has no lengths.
        stated: error that 9 of 10 other times are within; None: there are not enough steps for it. So there are too few to find
            the error of steps that were not seen, in all of these logs.
    """

    log: str
    seconds: str
    steps: int
    simulated_s: float | None
    logged_s: float
    stated: float | None = None


@dataclass(frozen=True, eq=False)
class StepLog:
    """A run: responses (``step``, ``response_tokens``), seconds of generation by step, and what it ran on."""

    name: str
    rollouts: pd.DataFrame
    seconds: pd.Series
    setting: SimulationConfig


def sampled_runs() -> Iterator[StepLog]:
    """Runs of one prompt and eight samples per step; a step took its tokens over its tokens per second."""
    latency = replace(load_profile(PROFILE), max_batch=1)
    setting = SimulationConfig(Cluster(1, latency.gpus_per_actor, latency.gpus_per_actor, latency.kind), latency)
    for file in sorted((DATA / "rl-step-metrics" / "reasoning-from-scratch").glob("*.csv")):
        seconds, rows = {}, []
        for step, row in enumerate(csv_rows(file)):  # a run that was started again counts its steps from 1 again
            tokens, speed = round(SAMPLES * float(row["avg_response_len"])), float(row["tokens_per_sec"])
            if speed > 0 and tokens >= SAMPLES:
                seconds[step] = tokens / speed
                each = np.full(SAMPLES, tokens // SAMPLES)
                each[: tokens % SAMPLES] += 1
                rows += [{"step": step, "prompt_id": str(step), "sample": i, "response_tokens": n} for i, n in enumerate(each)]
        yield StepLog(file.stem, validate("rollouts", pd.DataFrame(rows)), pd.Series(seconds), setting)


def deepspeed_run() -> StepLog:
    """A run whose responses all have the same length."""
    latency = load_profile("h100-qwen2.5-3b-tp1")
    setting = SimulationConfig(Cluster(2, 8, 1, latency.kind), latency)
    taken = [
        float(row["generate_s"]) for row in csv_rows(DATA / "rl-step-metrics" / "deepspeed-chat" / "opt1.3b_step_times.csv")
    ]
    step = np.repeat(np.arange(len(taken)), DEEPSPEED_RESPONSES)
    number = np.arange(len(step)) % DEEPSPEED_RESPONSES
    rows = pd.DataFrame({"step": step, "prompt_id": [f"{s}-{n}" for s, n in zip(step, number, strict=True)], "sample": 0})
    rows = rows.assign(prompt_tokens=256, response_tokens=DEEPSPEED_TOKENS)
    return StepLog("deepspeed-chat", validate("rollouts", rows), pd.Series(taken), setting)


def csv_rows(file: Path) -> list[dict[str, str]]:
    """The rows of a csv file."""
    with file.open(newline="", encoding="utf-8") as rows:
        return list(csv.DictReader(rows))


Predict = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
"""(N,) bool of the times that are seen → held-out errors that are stated, and (N,) predictions of all times."""


def of_steps(log: StepLog, most: int) -> Row:
    """Calibrate on some steps as a report does, and time the others."""
    chosen = evenly([int(step) for step in log.seconds.index], most)
    simulated = simulate(log.rollouts[log.rollouts["step"].isin(chosen)], log.setting, ["static"], steps=chosen).table
    simulated_s = simulated.set_index("step")["time_s"][chosen]
    scalars = pd.DataFrame({"step": chosen, "generate_s": log.seconds[chosen].to_numpy()})

    def predict(seen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        at = np.array(evenly(np.flatnonzero(seen).tolist(), CALIBRATION_STEPS))
        calibrated = calibration(scalars.iloc[at], simulated_s)
        assert calibrated.checked is not None
        return calibrated.checked.errors, calibrated.factor * simulated_s.to_numpy()

    return row_of(log.name, predict, scalars["generate_s"].to_numpy())


def of_requests(folder: Path) -> Row:
    """Calibrate a profile on half of a server's requests, and predict how long the others decode."""
    log = pd.read_json(folder / "requests.jsonl", lines=True)
    names = {
        "request_id": "prompt_id", "input_toks": "prompt_tokens", "output_toks": "response_tokens", "scheduled_ts": "start_s",
        "first_token_ts": "first_token_s", "last_token_ts": "end_s",
    }  # fmt: skip
    rows = (
        log.rename(columns=names)[list(names.values())].assign(step=0, sample=0).sort_values("start_s").reset_index(drop=True)
    )
    times = times_of(Trace(rows).rollouts, pd.DataFrame({"step": []}), load_profile(PROFILE), 1, folder.name)

    def predict(seen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        own = {name: getattr(times, name)[seen] for name in ("seconds", "decode_s", "kv_s", "step_of")}
        fitted = calibrate(times._replace(**own))
        return fitted.checked.errors, fitted.factors.predicted_s(times)

    return row_of(f"vLLM, {folder.name.partition('_')[0]}", predict, times.seconds)


def row_of(name: str, predict: Predict, took: np.ndarray) -> Row:
    """Compare what is stated with what is found, over random halves and on the later half."""
    first = np.arange(len(took)) < len(took) // 2
    random = np.random.default_rng(0)
    stated, found, within = [], [], []
    for _ in range(SPLITS):
        seen = random.permutation(first)
        errors, predicted = predict(seen)
        others = np.abs(predicted / took - 1.0)[~seen]
        stated.append(error_of_most(errors) or float(errors.max()))
        found.append(float(np.quantile(others, 0.9)))
        within.append(float(np.mean(others <= stated[-1])))
    errors, predicted = predict(first)
    later = np.abs(predicted / took - 1.0)[~first]
    return Row(
        name, len(errors), int((~first).sum()), float(predicted[~first].sum()), float(took[~first].sum()),
        float(np.mean(stated)), float(np.mean(found)), float(np.mean(within)), float(errors.max()),
        float(np.quantile(later, 0.9)), float(np.mean(later <= errors.max())),
    )  # fmt: skip


def of_golden(name: str) -> GoldenRow:
    """Import a framework's golden files into one log, and simulate the steps that have a time."""
    files, seconds = GOLDEN_LOGS[name]
    options = ImportOptions(tokenizer=GOLDEN / "trl", max_response_tokens=24)
    with tempfile.TemporaryDirectory() as folder:
        for file in files[:-1]:
            import_log(GOLDEN / file, options).save(Path(folder) / "run")
        try:
            if len(files) > 1:
                import_log(GOLDEN / files[-1], options).save(Path(folder) / "run")
            log = open_log(Path(folder) / "run" if len(files) > 1 else GOLDEN / files[-1], options)
        except LogWithoutResponses as error:
            taken = error.log.scalars["generate_s"].dropna()
            return GoldenRow(name, seconds, len(taken), None, float(taken.sum()))
    taken = with_step_times(log.scalars, log.trace).scalars.set_index("step")["generate_s"].dropna()
    taken = taken[taken.index.isin(log.trace.steps)]
    latency = load_profile("cpu-tiny-qwen2" if name == "TRL" else PROFILE)
    setting = SimulationConfig(Cluster(1, latency.gpus_per_actor, latency.gpus_per_actor, latency.kind), latency)
    dispatch = run_setup(log.framework).dispatch
    simulated = simulate(log.trace.rollouts, setting, [dispatch], steps=[int(step) for step in taken.index]).table
    simulated_s = simulated.set_index("step")["time_s"][taken.index]
    checked = calibration(pd.DataFrame({"step": taken.index, "generate_s": taken.to_numpy()}), simulated_s).checked
    stated = None if checked is None else error_of_most(checked.errors)
    return GoldenRow(name, seconds, len(taken), float(simulated_s.sum()), float(taken.sum()), stated)


def measured(most: int) -> list[Row]:
    """The rows of all logs that are there."""
    rows = [of_steps(log, most) for log in sampled_runs()]
    rows.append(of_steps(deepspeed_run(), most))
    return [*rows, *(of_requests(folder) for folder in sorted((DATA / "llmservingsim-measurements" / "vllm-runs").iterdir()))]


def markdown(rows: list[Row]) -> str:
    """The rows as a table in Markdown."""
    lines = [
        "| log | later half simulated | logged | stated for 9 of 10 others | found | within it | largest stated | found later |"
        " within it |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        lines.append(
            f"| {row.log} | {row.simulated_s:,.0f} s | {row.logged_s:,.0f} s | {row.stated:.1%} | {row.found:.1%} | "
            f"{row.within:.0%} | {row.largest:.1%} | {row.found_later:.1%} | {row.within_later:.0%} |"
        )
    return "\n".join(lines)


def markdown_of_golden(rows: list[GoldenRow]) -> str:
    """The rows of golden logs as a table in Markdown."""
    lines = ["| log | seconds | steps | simulated | logged | stated | found |", "|---|---|---|---|---|---|---|"]
    for row in rows:
        simulated = "no lengths" if row.simulated_s is None else f"{row.simulated_s:.2f} s"
        stated = "not enough steps" if row.stated is None else f"{row.stated:.1%}"
        lines.append(
            f"| {row.log} | {row.seconds} | {row.steps} | {simulated} | {row.logged_s:.2f} s | {stated} | not enough steps |"
        )
    return "\n".join(lines)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="few steps of each run")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if not DATA.is_dir():
        print(f"skipped: the public logs are not in {DATA.name} beside this checkout")
    rows = measured(8 if args.tiny else MOST_STEPS) if DATA.is_dir() else []
    print(markdown(rows))
    golden = [of_golden(name) for name in GOLDEN_LOGS]
    print(markdown_of_golden(golden))
    if args.json:
        tables = {"public": [asdict(row) for row in rows], "golden": [asdict(row) for row in golden]}
        args.json.write_text(json.dumps(tables, indent=1) + "\n")


if __name__ == "__main__":
    main()
