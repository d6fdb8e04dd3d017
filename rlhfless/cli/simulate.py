"""``rlhfless simulate``: runs every step of a log under several scheduling policies, on simulated engines."""

from __future__ import annotations

import math
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import AliasChoices, Field
from pydantic_settings import CliPositionalArg

from rlhfless.cli.acceptance import ACCEPTED, drawn_drafts
from rlhfless.cli.log_options import open_recognised
from rlhfless.cli.logged_run import assumed_of, refuse_without_gpus
from rlhfless.cli.options import WEIGHT_OF_RUN, Count, Names, OutFolder, PricedGpus, Printed, Share, refuse_missing_log, shown
from rlhfless.cli.printed_json import print_json
from rlhfless.errors import InputError
from solver.model.plurals import counted

if TYPE_CHECKING:
    import pandas as pd

    from rlhfless.run import Run
    from rlhfless.simulate import Comparison

DEFAULT = ("static", "random", "rlhfless", "fold", "solver", "oracle")
DRAFTING = ("spec", "spec+fold")  # compared with them where drafts are given
COLUMNS = (
    ("drafts", "drafts", "{}"), ("time (s)", "time_s", "{:,.1f}"), ("GPU-s", "gpu_seconds", "{:,.0f}"),
    ("USD", "cost_usd", "{:,.2f}"), ("speedup", "speedup_vs_static", "{:.2f}x"),
    ("cost saved", "cost_reduction_vs_static", "{:.1%}"), ("objective", "objective", "{:.3f}"),
    ("least", "least_objective", "{:.3f}"), ("above", "above_least", "{:.1%}"), ("planning", "planning_s", "{:.2f}"),
)  # fmt: skip
"""Columns of the text: heading, name in ``Comparison.summary`` or ``least_objectives``, format."""
WIDTH = 100  # of tables and of what explains them


class SimulateOptions(Printed, PricedGpus):
    """Simulate the generation of every step of LOG under several scheduling policies; compare time and cost.

    Engines are simulated, so no GPU is needed. If LOG has times, simulated and logged times are compared first, and the latency
    profile is scaled to the logged ones, as in the report.
    """

    log: CliPositionalArg[Path] = Field(
        description="A trace, or a log whose format is recognised; write any other as a trace with `rlhfless convert`."
    )
    out: OutFolder | None = Field(
        None, validation_alias=AliasChoices("out", "o"), json_schema_extra=shown("FOLDER"),
        description="Write the trace of each policy to FOLDER/POLICY; FOLDER must be new.",
    )  # fmt: skip
    policies: Names | None = Field(
        None,
        description="Scheduling policies to compare, such as random,solver; spec, spec+fold, spec+critical and spec-fixed-N "
        f"use speculative decoding.  [default: {','.join(DEFAULT)}, with --drafts also {','.join(DRAFTING)}]",
    )
    time_weight: Share | None = Field(None, json_schema_extra=shown("W"), description=WEIGHT_OF_RUN)
    max_steps: Count | None = Field(
        None, validation_alias="steps",
        description="Number of steps to simulate, at most: evenly chosen, with the last.  [default: all]",
    )  # fmt: skip
    drafts: str | None = Field(
        None, json_schema_extra=shown("A0.7|weak|strong"),
        description=f"Simulate speculative decoding that accepts {ACCEPTED}.  [default: no drafts]",
    )  # fmt: skip
    seed: int = Field(0, ge=0, description="Seed of every random choice.")

    def compared(self) -> list[str]:
        """Return the policies to compare: with --drafts also two that draft.

        Raises:
            InputError: a policy is given twice, or one of policies and --drafts lacks the other.
        """
        names: Sequence[str] = DEFAULT if self.policies is None else self.policies
        if not names or len(set(names)) < len(names):
            raise InputError(
                f"--policies {','.join(names)!r} is empty or repeats a policy; give each once, separated by commas"
            )
        drafting = [name for name in names if name.startswith("spec")]
        if self.drafts is None and drafting:
            raise InputError(f"policy {drafting[0]} drafts tokens; --drafts says how many are accepted, such as --drafts weak")
        if self.drafts is None:
            return list(names)
        if not drafting and self.policies is not None:
            raise InputError("--drafts is given, but no policy drafts; name one, such as spec, in --policies")
        return [*names, *(name for name in DRAFTING if self.policies is None)]


def simulate(options: SimulateOptions) -> None:
    """Print time and cost of every policy, and write their traces.

    Raises:
        KeyboardInterrupt: Ctrl-C, or SIGTERM of a time limit. The tables of the finished steps are printed. The message says
            how many these are, and what simulates fewer.
        InputError: options contradict each other, or one makes no sense.
        TraceError: the log cannot be read.
    """
    refuse_missing_log(options.log)
    from rlhfless.analysis.own_times import evenly
    from rlhfless.predict import make_predictor
    from rlhfless.report.progress import step_progress
    from rlhfless.run import load
    from rlhfless.simulate import SimulationInterrupted
    from rlhfless.simulate import simulate as run_simulation
    from rlhfless.system.time_limits import interrupted_by_time_limits

    chosen, out = options.compared(), options.out
    if out is not None and out.exists() and any(out.iterdir() if out.is_dir() else [out]):
        raise InputError(f"{out}: exists and is not empty; choose a new folder for -o")
    drafts = None if options.drafts is None else drawn_drafts(options.drafts, options.seed)
    opened = open_recognised(options.log)
    run = load(opened, hardware=options.hardware, time_weight=options.time_weight, verbose=False)
    refuse_without_gpus(run, options.log)
    setting = replace(run.calibrated, seed=options.seed, drafts=drafts)
    steps = run.steps if options.max_steps is None else evenly(run.steps, options.max_steps)
    with interrupted_by_time_limits():
        try:
            with step_progress(len(steps)) as on_step:
                result = run_simulation(run.rollouts, setting, chosen, make_predictor("last"), steps, on_step)
        except SimulationInterrupted as stop:
            if stop.finished is not None and options.format != "json":
                print(f"PARTIAL: {_finished(stop.finished, chosen, len(steps))}.")
                _print_tables(run, stop.finished, {})
            raise KeyboardInterrupt(_how_to_shorten(stop.finished, chosen, len(steps), out)) from None
        if out is not None:
            _save(run, result, out, printed=options.format != "json")
        if options.format == "json":
            _print_json(run, result)
            return
        try:
            least = {has_history: result.least_objectives(has_history) for has_history in (True, False)}
        except KeyboardInterrupt:
            _print_tables(run, result, {})
            raise KeyboardInterrupt("all steps are finished; only the columns least and above are missing") from None
        _print_tables(run, result, least)


def _finished(result: Comparison, chosen: Sequence[str], steps: int) -> str:
    """Say which steps of an interrupted simulation are finished, under which policies."""
    done, names = len(result.logged), list(result.traces)
    missing = [name for name in chosen if name not in names]
    others = f"; {', '.join(missing)} had not finished it" if missing else ""
    return f"{done} of {counted(steps, 'step')} finished under {', '.join(names)}{others}"


def _how_to_shorten(result: Comparison | None, chosen: Sequence[str], steps: int, out: Path | None) -> str:
    """Say what is finished of an interrupted simulation, and which option simulates fewer steps."""
    nothing = "" if out is None else f"; {out} is not written"
    if result is None:
        done, fewer = "no policy has finished a step", "--steps 1 for the shortest simulation"
    elif len(result.traces) < len(chosen):
        done, fewer = _finished(result, chosen, steps), "--steps 1 for one step, or name fewer policies"
    else:
        done = _finished(result, chosen, steps)
        fewer = f"--steps {len(result.logged)} for as many steps, taken evenly from all"
    return f"{done}{nothing}; the same line begins anew, so add {fewer}"


def _save(run: Run, result: Comparison, out: Path, *, printed: bool) -> None:
    """Write the trace of every policy: all of them or none.

    Raises:
        KeyboardInterrupt: see ``simulate``; the tables are ``printed`` before.
    """
    try:
        for name, trace in result.traces.items():
            trace.save(out / name)
    except KeyboardInterrupt:
        for name in result.traces:
            shutil.rmtree(out / name, ignore_errors=True)
        if printed:
            _print_tables(run, result, {})
        raise KeyboardInterrupt(f"all steps are finished, but {out} is not written; the same line begins anew") from None


def _print_json(run: Run, result: Comparison) -> None:
    measured = {"dispatch": _dispatch(run), **run.times.to_dict()}
    about: dict[str, Any] = {"times": run.times.scale.to_dict(), "log": measured, "choices": result.choices}
    if assumed := assumed_of(run):
        about["assumed"] = assumed
    print_json("rlhfless-simulation", result.to_dict() | about)


def _dispatch(run: Run) -> str:
    from rlhfless.analysis.executed_run import AsExecuted

    return AsExecuted.name if run.times.executed else run.times.setup.dispatch


def _print_tables(run: Run, result: Comparison, least: Mapping[bool, pd.DataFrame]) -> None:
    """Print what the log measured, and the policies on steps with and without history.

    Args:
        least: ``Comparison.least_objectives`` by ``has_history``; empty if it was not computed.
    """
    for sentence in assumed_of(run):
        print(sentence)
    if lines := run.times.lines:
        print(f"what the log measured, next to values counted or simulated under its own dispatch ({_dispatch(run)}):")
        print("\n".join(f"  {line}" for line in lines))
    print(f"times: {run.times.scale.words()}")
    for title, has_history in (("steps with history", True), ("steps without history", False)):
        table = result.summary(has_history)
        if table["steps"].max() > 0:
            print(f"\n{title}, sums over {counted(int(table['steps'].max()), 'step')}:")
            if least:
                table = table.merge(least[has_history], on="policy")
            print(_shown(table).to_string(index=False))
            if best := _best(table):
                print(best)
    first = next(iter(result.traces))
    print(f"\n{_meaning(run.objective.time_weight, first, 'drafts' in result.table, bool(least))}")
    for sentence in result.choices_in_words().values():
        print(sentence)


def _shown(table: pd.DataFrame) -> pd.DataFrame:
    """Return the columns of the text, as texts: empty where a value is unknown, and without columns that are empty."""
    shown = table[["policy"]].copy()
    for head, name, form in COLUMNS:
        if name in table and table[name].notna().any():
            shown[head] = ["" if value != value else form.format(value) for value in table[name]]
    return shown


def _meaning(weight: float, first: str, drafted: bool, bounded: bool) -> str:
    """Say what the columns are that a name does not say.

    Args:
        drafted: drafts are simulated. bounded: the table has the columns ``least`` and ``above``.
    """
    kept = "the policy's drafts (none if it has none)" if drafted else "no drafts"
    least = (
        f"least: no schedule with such actors and {kept} has a lower objective, at whatever time. above: how far the policy is "
        "above it. "
    )
    text = (
        f"objective: time^{weight:g} cost^{1 - weight:.4g}, that of {first} = 1; lower is better. {least if bounded else ''}"
        "planning: seconds on this machine, not part of the time. --format json has more, such as the bound on GPU-seconds at "
        "the policy's own time."
    )
    return textwrap.fill(text, WIDTH)


def _best(table: pd.DataFrame) -> str:
    """Name the policy with the least objective, of those that plan without true lengths; empty if no other is compared."""
    known = table[table["objective"].notna() & ~table["policy"].str.startswith("oracle")]
    if len(known) < 2:
        return ""
    best = known.loc[known["objective"].idxmin()]
    which = "any schedule with these drafts" if best.get("drafts", "-") != "-" else "any schedule"
    above = "" if math.isnan(best.get("above_least", math.nan)) else f", {best['above_least']:.1%} above the least of {which}"
    return f"best without true lengths: {best['policy']}, {best['objective']:.3f} of {table['policy'].iloc[0]}{above}"
