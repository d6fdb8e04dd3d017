"""Ranges that a report states from scalars alone, beside what the responses say that the scalars were made of.

    python tests/benchmarks/drawn_coverage.py [--tiny] [--steps 6] [--json FILE]

Every step of a public log is reduced to what verl logs: the mean, the longest and the shortest length, the share of cut ones
and the number of tokens. Lengths are drawn from these in every way that a report could draw them (`Draw`: families, responses
to a prompt alike or not), and schedules are simulated on the draws. The range of some draws covers all of them. It holds if it
contains the value of the step's own responses, dealt in the log's order: the idle share of the GPU-seconds, and the time and
the GPU-seconds that `fold` saves, which needs no predictions.

Draws are chosen: at most four whose ranges hold for 95 % of each finding, the narrowest of these, each log with the same
weight. A choice holds less often elsewhere. So for every log the others choose, and ranges are tested on that log alone.

A step is the first 128 responses of a step of the log, or fewer. Requests of servers have no steps: each is 128 of them in the
order of their arrival.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from policies import DATA, gsm8k

import rlhfless as rl
from rlhfless.analysis.complete import completed
from rlhfless.analysis.drawn_lengths import Draw, StepSizes, drawn_logs
from rlhfless.analysis.framework_defaults import run_setup
from rlhfless.analysis.gpu_seconds import account
from rlhfless.analysis.length_families import FAMILIES
from rlhfless.analysis.own_times import evenly
from rlhfless.analysis.savings import savings
from rlhfless.analysis.step_parts import step_parts
from rlhfless.latency import load_profile, usd_per_gpu_hour
from rlhfless.simulate import SimulationConfig, simulate
from rlhfless.trace import ImportedLog, LogWithoutResponses, OpenedLog, Trace, open_log, read_trace
from solver import Cluster

PROFILE, GPUS, RESPONSES = "l40s-qwen2.5-3b-tp2", 16, 128
SHARE, MOST = 0.95, 4  # of values that ranges hold for where draws are chosen, for 9 of 10 elsewhere; draws of a report
POLICY = "fold"
FINDINGS = ("idle", "time", "GPU-seconds")


@dataclass(frozen=True)
class Row:
    """A step: the (low, high) of every draw from its scalars, and the value of its responses, of each of ``FINDINGS``."""

    log: str
    step: int
    responses: int
    drawn: dict[str, dict[str, tuple[float, float]]]
    true: dict[str, float]

    def stated(self, finding: str, draws: Sequence[str]) -> tuple[float, float]:
        """The range that covers some draws."""
        ranges = [self.drawn[draw][finding] for draw in draws]
        return min(low for low, _ in ranges), max(high for _, high in ranges)

    def holds(self, finding: str, draws: Sequence[str]) -> bool:
        """Whether their range contains the value, at the precision that the report shows."""
        low, high = self.stated(finding, draws)
        return round(low, 2) <= round(self.true[finding], 2) <= round(high, 2)


def named(draw: Draw) -> str:
    """The draw in words."""
    return f"{draw.family}, {'alike' if draw.alike else 'apart'}"


CANDIDATES = tuple(Draw(family, alike) for family in FAMILIES for alike in (False, True))


def per_log(rows: list[Row], value: Callable[[Row], float]) -> float:
    """The mean of a value of rows, each log with the same weight."""
    names = {row.log for row in rows}
    return float(np.mean([np.mean([value(row) for row in rows if row.log == name]) for name in names]))


def chosen(rows: list[Row]) -> tuple[str, ...]:
    """The draws with the narrowest ranges of the idle share that hold for ``SHARE`` of each finding; those that hold most often
    where none do."""
    sets = [draws for size in range(1, MOST + 1) for draws in combinations([named(draw) for draw in CANDIDATES], size)]

    def worth(draws: tuple[str, ...]) -> tuple[float, float]:
        held = [per_log(rows, lambda row, of=of: row.holds(of, draws)) for of in FINDINGS]  # type: ignore[misc]
        width = per_log(rows, lambda row: float(np.diff(row.stated("idle", draws))[0]))
        return -min(SHARE, *held), width

    return min(sets, key=worth)


def logs() -> Iterator[tuple[str, pd.DataFrame]]:
    """Names and rollouts of the logs that are there: ``step, prompt_id, sample, response_tokens`` and whether it was cut."""
    data = Path(__file__).parents[2] / "data" / "traces"
    shipped = {"demonstration": rl.example(), "arithmetic": data / "arithmetic-grpo"}  # the first is `reasoning-static`
    for name, path in shipped.items():
        yield name, read_trace(path).rollouts
    if not DATA.is_dir():
        print(f"the public logs are not in {DATA.name} beside this checkout, so only shipped ones are tried")
        return
    yield "GSM8K (AReaL)", gsm8k().rollouts
    lengths = pd.read_csv(DATA / "reasoning-eval-lengths" / "response_lengths.csv")
    for benchmark, rows in lengths.groupby("benchmark"):
        tokens = np.minimum(rows["response_tokens"], rows["max_tokens"])
        prompts = rows["language"].fillna("") + rows["prompt_index"].astype(str)
        numbers = pd.factorize(rows["run"] + rows["max_tokens"].astype(str), sort=True)[0]
        yield f"{benchmark} (reasoning model)", table(numbers, prompts, tokens, rows["hit_cap"] == 1)
    for name, file, column in (
        ("Azure, conversations", "azure-llm-2023/AzureLLMInferenceTrace_conv.csv", "GeneratedTokens"),
        ("Mooncake, conversations", "mooncake-fast25/conversation_lengths.csv", "output_length"),
    ):
        tokens = pd.read_csv(DATA / file)[column]
        tokens = tokens[tokens > 0][: len(tokens) // RESPONSES * RESPONSES].reset_index(drop=True)
        yield name, table(tokens.index // RESPONSES, tokens.index.astype(str), tokens, tokens < 0)
    for folder in sorted((DATA / "llmservingsim-measurements" / "vllm-runs").iterdir())[:1]:  # both have the same requests
        tokens = pd.read_json(folder / "requests.jsonl", lines=True)["output_toks"]
        yield "ShareGPT (vLLM runs)", table(0 * tokens, tokens.index.astype(str), tokens, tokens < 0)


def table(step: Any, prompts: Any, tokens: pd.Series, cut: pd.Series) -> pd.DataFrame:
    """Rollouts of one response per prompt."""
    reasons = np.where(cut, "length", "stop")
    columns = {"step": step, "prompt_id": np.asarray(prompts), "sample": 0, "response_tokens": tokens.to_numpy()}
    rows = pd.DataFrame(columns | {"finish_reason": reasons})
    rows["sample"] = rows.groupby(["step", "prompt_id"]).cumcount()
    return Trace(rows).rollouts


def scalars_of(rows: pd.DataFrame) -> ImportedLog:
    """The step as verl logs it, read by the importer."""
    tokens = rows["response_tokens"].to_numpy()
    prompts = rows["prompt_tokens"].fillna(0).to_numpy(dtype=float)
    data = {
        "response_length/mean": float(tokens.mean()), "response_length/max": int(tokens.max()),
        "response_length/min": int(tokens.min()),
        "response_length/clip_ratio": float((rows["finish_reason"] == "length").mean()),
        "prompt_length/mean": float(prompts.mean()), "perf/total_num_tokens": int(tokens.sum() + prompts.sum()),
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.jsonl"
        path.write_text(json.dumps({"step": 1, "data": data}) + "\n")
        try:
            open_log(path)
        except LogWithoutResponses as error:
            return error.log
    raise AssertionError("scalars alone were read as responses")


class StepFindings(NamedTuple):
    """Idle shares under every order that the step may have been dealt in, and a table of what ``POLICY`` saves."""

    idle: list[float]
    saved: pd.DataFrame


def findings(log: OpenedLog, setting: SimulationConfig) -> StepFindings:
    """Simulate the parts of a report that the ranges are of, as the report does."""
    setup = run_setup("", dispatch="static", order_known=log.dispatch_order_known)
    simulation = simulate(log.trace.rollouts, setting, ["static", *setup.shuffled, POLICY])
    setup = replace(setup, candidates=tuple(name for name in setup.candidates if name in simulation.traces))
    traces = [completed(simulation.traces[name], setup, setting.cluster) for name in setup.candidates]
    idle = [account(trace).idle_share for trace in traces]
    return StepFindings(idle, savings(simulation, [POLICY], [step_parts(trace) for trace in traces]))


def row_of(name: str, step: int, rows: pd.DataFrame, setting: SimulationConfig) -> Row:
    """Compare what the scalars of a step say with what its responses say."""
    rows = rows.assign(step=1).reset_index(drop=True)
    samples = round(len(rows) / rows["prompt_id"].nunique())
    sizes = StepSizes(len(rows), samples if samples > 1 else None)  # None: as in a log whose prompts are unknown
    drawn = {}
    for draw, log in zip(CANDIDATES, drawn_logs(scalars_of(rows), sizes, CANDIDATES), strict=True):
        found = findings(log, setting)
        drawn[named(draw)] = {"idle": (min(found.idle), max(found.idle))} | saved(found.saved)
    true = findings(OpenedLog(Trace(rows), pd.DataFrame({"step": []}), ""), setting)
    values = {"idle": true.idle[0]} | {kind: low for kind, (low, _) in saved(true.saved).items()}
    return Row(name, step, len(rows), drawn, {kind: float(value) for kind, value in values.items()})


def saved(savings: pd.DataFrame) -> dict[str, tuple[float, float]]:
    """The range that ``POLICY`` saves of the time and of the GPU-seconds; of known responses both ends are equal."""
    row = savings.set_index("policy").loc[POLICY]
    return {kind: (float(row[f"{kind} low"]), float(row[f"{kind} high"])) for kind in FINDINGS[1:]}


def measured(steps: int, fewest: int) -> Iterator[Row]:
    """The rows of all logs: ``steps`` of each, evenly chosen among those with ``fewest`` responses and more."""
    latency = load_profile(PROFILE)
    cluster = Cluster(2, GPUS // 2, latency.gpus_per_actor, latency.kind, usd_per_gpu_hour(latency.kind))
    setting = SimulationConfig(cluster, latency, bound_work=0)
    for name, rollouts in logs():
        sizes = rollouts.groupby("step").size()
        for step in evenly(sizes.index[sizes >= fewest].tolist(), steps):
            yield row_of(name, int(step), rollouts[rollouts["step"] == step].head(RESPONSES), setting)


def tested(rows: list[Row]) -> dict[str, tuple[str, ...]]:
    """The draws that all other logs choose, by log; a single log chooses its own."""
    names = dict.fromkeys(row.log for row in rows)
    return {name: chosen([row for row in rows if row.log != name] or rows) for name in names}


def markdown(rows: list[Row], draws: dict[str, tuple[str, ...]]) -> str:
    """A table with a row per log: how often ranges of draws hold that others chose, and mean ranges beside mean values."""
    lines = [
        "| log | steps | idle share: stated, true, holds | time saved by `fold` | GPU-seconds saved by `fold` |",
        "|---|---|---|---|---|",
    ]
    for name, own in [*((name, [row for row in rows if row.log == name]) for name in draws), ("all", rows)]:
        cells = []
        for of in FINDINGS:
            low, high = (float(np.mean([row.stated(of, draws[row.log])[end] for row in own])) for end in (0, 1))
            true = float(np.mean([row.true[of] for row in own]))
            held = sum(row.holds(of, draws[row.log]) for row in own)
            cells.append(f"{low:.0%} to {high:.0%}, {true:.0%}, {held} of {len(own)}")
        lines.append(f"| {name} | {len(own)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def summary(rows: list[Row], draws: dict[str, tuple[str, ...]]) -> dict[str, Any]:
    """What reports quote: the draws that all logs choose, and how often and how wide ranges are on logs that did not choose."""
    held = {of: sum(row.holds(of, draws[row.log]) for row in rows) for of in FINDINGS}
    widths = {of: float(np.mean([np.diff(row.stated(of, draws[row.log]))[0] for row in rows])) for of in FINDINGS}
    return {"draws": chosen(rows), "by the others": draws, "steps": len(rows), "held": held, "mean width": widths}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="one step of the first log")
    parser.add_argument("--steps", type=int, default=6, help="steps of each log")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    found = measured(args.steps, 16)
    rows = [next(found)] if args.tiny else []
    for row in found if not args.tiny else ():
        rows.append(row)
        print(row, flush=True)
    draws = tested(rows)
    print(markdown(rows, draws))
    said = summary(rows, draws)
    print(json.dumps(said, indent=1))
    if args.json:
        args.json.write_text(json.dumps({"summary": said, "rows": [asdict(row) for row in rows]}, indent=1) + "\n")


if __name__ == "__main__":
    main()
