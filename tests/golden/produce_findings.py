"""What ``rlhfless report`` finds in logs of every framework, as plain data under names that no class gives.

``ITEMS`` has one item per log: golden logs that frameworks' own writers made (``tests/trace/importers/golden``), logs of
scalars alone with drawn lengths, responses of the shipped run as each framework would have logged them, with times, and the
shipped traces. This file is all of the record of findings that knows names of the project: when results move into other
classes, ``of_simulated`` is adapted and no recorded file changes. Sentences are not recorded.

As a script it writes the findings of other logs, for comparing two commits: ``PYTHONPATH=COMMIT python
tests/golden/produce_findings.py OUT_FOLDER LOG...``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from plain import Names, plain

from rlhfless import diagnosis, load
from rlhfless.analysis import Account, Assumptions, counts_frame, steps_of_run
from rlhfless.analysis.calibration import Calibration
from rlhfless.analysis.drawn_lengths import StepSizes, drawn_logs
from rlhfless.report.expected import with_expected
from rlhfless.report.study import Findings, study
from rlhfless.run import Hardware, Run
from rlhfless.run.what_ifs import ways_of_log
from rlhfless.simulate import Comparison
from rlhfless.trace import ImportedLog, ImportOptions, OpenedLog, Trace, read_log, read_trace
from rlhfless.trace.metrics.cross_check import checks_frame

PROJECT = Path(__file__).parents[2]
TRACES = PROJECT / "data" / "traces"
LOGS = PROJECT / "tests" / "trace" / "importers" / "golden"
NAMES = Names(
    left_out=frozenset({
        "solve_s", "at_s", "planning_s", "planning_delay_s",  # times of the machine
        "sentence", "proof", "how", "line", "price", "name", "notes", "read", "cannot_say", "source", "run", "data", "change",
        "tolerance",  # texts for people
    })
)  # fmt: skip
ASKED = ["variant", "time_weight", "gpu_kind", "gpus", "gpus_per_actor"]
"""Columns of a comparison that say what a variant is; of the record, its items say so."""
PROFILE = "l40s-qwen2.5-3b-tp2"
LEARNERS = {"areal": 8, "slime": 8, "prime-rl": 8}
"""GPUs of learners that have their own, by framework."""
GIVEN = ("run", "step", "epoch", "prompt_id", "sample", "prompt_tokens", "response_tokens", "finish_reason", "reward",
         "weights_version")  # fmt: skip
STEPS = 2  # that are simulated of each log


def findings_of(log: OpenedLog | ImportedLog, draws: Sequence[OpenedLog] = (), stated: Assumptions | None = None) -> Any:
    """Return the diagnosis of a log, and all that is simulated of its responses on 16 L40S (of a trace: on its own GPUs).

    Args:
        draws: of the lengths of a log of scalars alone; without them nothing of it is simulated.
    """
    executed = isinstance(log, OpenedLog) and len(log.trace.allocations) > 0
    hardware = None if executed else Hardware(gpus=16, profile=PROFILE)
    run = load(log, hardware=hardware, assumptions=stated, verbose=False)
    said = run.diagnosis()
    found: dict[str, Any] = {}
    if draws or isinstance(log, OpenedLog):
        first = draws[0] if draws else run.opened
        found = of_simulated(run, first, study(first, run.setting, run.assumptions, STEPS, draws=draws), said)
    return plain({"diagnosis": said.to_dict(), **found}, NAMES)


MEANS = {"gpu_seconds": "gpu_s", "cost_usd": "usd"}
"""Means of a comparison -> names of the sums that were recorded."""
DATA = ("stale_tokens", "most_stale_steps", "learned_responses", "dropped_responses", "waiting_responses")
WAYS = ("way", "time_s", "fill_s", "gpu_s", "usd", "time_saved", "cost_saved", "least_time_s", "seconds_per_token", "on_policy",
        *DATA)  # fmt: skip
KNOBS = ("way", "knob", "value", "time_s", "gpu_s", "time_saved", "cost_saved", "shown", *DATA, "learned_length_ratio")
"""Columns that were recorded of ways, and of the settings of their knobs."""
RECORDED_ORDER = ("random", "spread", "fold", "solver+replan", "solver", "rlhfuse", "rlhfless")


def in_recorded_order(savings: pd.DataFrame) -> pd.DataFrame:
    """Return savings in the order of policies that they were recorded in; today they have that of the table of policies."""
    if savings.empty:
        return savings
    return savings.sort_values("policy", key=lambda names: names.map(RECORDED_ORDER.index), ignore_index=True)


def of_simulated(run: Run, first: OpenedLog, found: Findings, said: diagnosis.Diagnosis) -> dict[str, Any]:
    """Return what is simulated of a run; ``first`` is its log, or the first draw of its lengths."""
    return {
        "savings of reserved GPUs": found.reserved,
        "savings of released GPUs": in_recorded_order(found.given_back),
        "calibration": calibration(found.times.calibrated),
        "checks": checks_frame(found.times.checks),
        "schedules": found.schedules.table.drop(columns=ASKED),
        "ladder": found.schedules.ladder,
        "expected of levers": {one.kind: one.expected for one in with_expected(said, found).levers if one.expected},
        **of_log_or_trace(found, len(steps_of_run(first))),
        **(executed(run, found) if found.times.executed else {}),
    }


def of_log_or_trace(found: Findings, steps: int) -> dict[str, Any]:
    """Return what is computed of a logged and of an executed run in the same way; ``steps`` are all of it."""
    gpus = found.times.setting.cluster.gpus + found.times.setup.counted_learner_gpus
    return {
        "GPU-seconds": [{"lines": lines(one), "steps": one.steps, "empty slots": one.slot_idle_gpu_s, "gpus": gpus}
                        for one in found.accounts],
        "idle shares": found.idle_shares,
        "outside generation": {name: getattr(found.times.phases, name) for name in ("prepare_s", "learn_s", "sync_s", "basis")},
        "set-up": {"dispatch": found.times.setup.dispatch, "candidates": found.times.setup.candidates,
                   "learner gpus": found.times.setup.counted_learner_gpus, "colocated": found.times.setup.colocated,
                   "synchronous": found.times.setup.synchronous},
        "planned steps": found.planned,
        "replicas": [{"kind": one["kind"], "gpus per actor": one["gpus_per_actor"], "replicas": one["replicas"],
                      "gpus": one["gpus"], "usd per GPU-hour": one["usd_per_gpu_hour"], "seconds": one["time_s"]}
                     for one in recorded_counts(found.gpu_counts)],
        "drafts": [{"method": one.configuration.method, "tokens": one.draft_tokens, "low": one.low, "mean": one.mean,
                    "high": one.high, "per pass": one.tokens_per_pass} for one in found.drafts],
        "router": None if found.router is None else [found.router.low, found.router.mean, found.router.high],
        **({} if found.ways is None else recorded_ways(found.ways, steps)),
    }  # fmt: skip


def recorded_counts(found: Comparison) -> list[dict[str, Any]]:
    """Return numbers, sizes and kinds of replicas as they were recorded: seconds by dispatch, and 0 for an unknown price."""
    counts, table = counts_frame(found), found.table
    counts["usd_per_gpu_hour"] = counts["usd_per_gpu_hour"].fillna(0.0)
    counted = counts[["kind", "gpus_per_actor", "replicas", "gpus", "usd_per_gpu_hour"]].to_dict("records")
    seconds = [
        {name: of_policy["time_s"].tolist() for name, of_policy in rows.groupby("policy", sort=False)}
        for _, rows in table.groupby(["gpu_kind", "gpus_per_actor", "actors"], sort=False)
    ]
    return [{**one, "time_s": by_policy} for one, by_policy in zip(counted, seconds, strict=True)]


def lines(account: Account) -> pd.DataFrame:
    """Return the uses of GPU-seconds as they are recorded: decoding in one row, and ``idle`` in place of the kind."""
    uses = account.lines.assign(idle=account.lines["kind"] == "idle")
    uses["use"] = uses["use"].where(~uses["use"].str.startswith("decoding, "), "decoding")
    how = {"gpu_s": "sum", "usd": "sum", "share": "sum", "basis": "first"}
    summed = uses.groupby(["use", "idle"], sort=False).agg(how).reset_index()
    known = uses["usd"].notna().groupby([uses["use"], uses["idle"]], sort=False).all().to_numpy()
    summed["usd"] = summed["usd"].where(known)
    summed = summed.assign(least=-summed["share"].round(9)).sort_values(["idle", "least"], kind="stable", ignore_index=True)
    return summed[["use", "idle", "gpu_s", "usd", "share", "basis"]]


def executed(run: Run, found: Findings) -> dict[str, Any]:
    """Return what an executed run took, and its ways even where no saving is expected."""
    ways = ways_of_log(run.opened, run.times, run.assumptions)
    return {"took": found.took, **recorded_ways(ways, len(steps_of_run(run.opened)))}


def recorded_ways(compared: Comparison, all_steps: int) -> dict[str, Any]:
    """Return ways as they were recorded: sums over the simulated steps, of which a pipeline fills and drains once in each.

    A comparison has means over all steps of the run, which pays that once.
    """
    of, steps = compared.means(), compared.table["step"].nunique()
    whole_s = of["time_s"] * all_steps
    time_s = (whole_s - of["fill_s"]) * steps / all_steps + of["fill_s"]
    shares = (time_s / whole_s).where(whole_s > 0, 1.0)
    rows = of.assign(way=of["variant"], time_s=time_s, least_time_s=of["least_time_s"] * steps)
    rows = rows.assign(**{theirs: of[own] * all_steps * shares for own, theirs in MEANS.items()})
    knobs = compared.knobs.rename(columns={"variant": "way", "gpu_seconds": "gpu_s"})
    knobs[["time_s", "gpu_s"]] *= steps
    return {"ways": rows[list(WAYS)], "knobs": knobs[list(KNOBS)]}


def calibration(of: Calibration) -> dict[str, Any]:
    """Return how a profile was scaled, with the errors on held-out steps."""
    errors = [] if of.checked is None else of.checked.errors
    return {"factor": of.factor, "low": of.low, "high": of.high, "steps": of.steps, "errors": errors,
            "beats a constant": of.beats_a_constant}  # fmt: skip


def shipped(name: str, count: int) -> Trace:
    """The first steps of a shipped trace."""
    run = read_trace(TRACES / name)
    steps = run.steps[:count]
    of = {table: getattr(run, table) for table in ("rollouts", "allocations", "spans", "events")}
    plans = [plan for plan in run.plans if plan["step"] in set(steps)]
    return replace(run, **{table: t[t["step"].isin(steps)] for table, t in of.items()}, plans=plans)


def as_logged_by(framework: str) -> Any:
    """Findings of responses of the shipped run, as a framework would have logged them with the times of their phases."""
    trace = shipped("arithmetic-grpo", 4)
    rollouts = trace.rollouts[[name for name in GIVEN if name in trace.rollouts]]
    longest = rollouts.groupby("step")["response_tokens"].max().to_numpy()
    times = {"generate_s": 0.1 + 0.008 * longest, "learn_s": [4.0, 3.8, 3.9, 4.1], "prepare_s": [1.0, 1.1, 0.9, 1.0]}
    log = OpenedLog(Trace(rollouts), pd.DataFrame({"step": trace.steps, **times}), framework)
    return findings_of(log, stated=Assumptions(learner_gpus=LEARNERS.get(framework)))


def of_trace(name: str) -> Any:
    """Findings of the first steps of a shipped trace."""
    return findings_of(OpenedLog(shipped(name, 2), pd.DataFrame({"step": []}), ""))


def of_log(path: str | Path, sizes: StepSizes | None = None) -> Any:
    """Findings of a log on disk; with ``sizes`` lengths are drawn where it has scalars alone."""
    log = read_log(Path(path), ImportOptions(tokenizer=LOGS / "trl"))
    return findings_of(log, drawn_logs(log, sizes) if isinstance(log, ImportedLog) and sizes is not None else ())


WITH_RESPONSES: Mapping[str, str] = {
    "verl": "verl-v0", "verl-balanced": "verl-v0-balanced", "verl-padded": "verl-v1-padded", "verl-uuid": "verl-v1-uuid",
    "trl": "trl", "trl-profiled": "trl-profiled", "trl-averaged": "trl-averaged", "nemo-rl": "nemo-rl", "areal": "areal",
    "slime": "slime", "prime-rl": "prime-rl", "table": "table/log.csv",
}  # fmt: skip
DRAWN: Mapping[str, tuple[str, StepSizes]] = {
    "verl-scalars": ("verl-scalars/experiment.jsonl", StepSizes(32, 8)),
    "openrlhf": ("openrlhf/console.log", StepSizes(32, 8, 20)),
    "slime-console": ("slime-console/console.log", StepSizes(32, 8)),
}
TIMES_ALONE: Mapping[str, str] = {
    "areal-console": "areal-console/console.log", "prime-rl-console": "prime-rl-console/console.log",
    "skyrl-console": "skyrl-console/console.log", "step-table": "step-table/steps.csv", "wandb": "wandb/run-golden.wandb",
    "trl-console": "trl-console/console.log", "roll-console": "roll-console/console.log",
}  # fmt: skip
SHIPPED = ("arithmetic-grpo", "arithmetic-grpo-drafts", "reasoning-static")
FRAMEWORKS = ("verl", "trl", "openrlhf", "nemo-rl", "areal", "slime", "prime-rl", "")

ITEMS: dict[str, Callable[[], Any]] = {
    **{f"findings-{name}": partial(of_log, LOGS / path) for name, path in {**WITH_RESPONSES, **TIMES_ALONE}.items()},
    **{f"findings-{name}": partial(of_log, LOGS / path, sizes) for name, (path, sizes) in DRAWN.items()},
    **{f"findings-as-{name or 'unknown'}": partial(as_logged_by, name) for name in FRAMEWORKS},
    **{f"findings-{name}": partial(of_trace, name) for name in SHIPPED},
}  # fmt: skip
"""What is recorded, by the name of its file."""


def main(out: Path, logs: Sequence[str]) -> None:
    """Write the findings of logs to a folder; of one that is refused, why."""
    out.mkdir(parents=True, exist_ok=True)
    for log in logs:
        try:
            found = of_log(log, StepSizes())
        except Exception as error:
            found = {"refused": f"{type(error).__name__}: {error}"}
        (out / f"{log.strip('/').replace('/', '+')}.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
