"""A whole step of a log, planned with all optimisations: what each is expected to save, and what it saved when executed."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import pandas as pd
import plotly.graph_objects as go

from rlhfless.errors import InputError
from rlhfless.latency import CallTable, StepBatch, read_profile
from rlhfless.plots import plot_before_after
from rlhfless.plots.before_after import COST_HEADING, percent
from rlhfless.run.planned_step import with_notes
from rlhfless.simulate import (
    STRONG,
    WEAK,
    DrawnDrafts,
    LoggedStep,
    SimulatedDrafts,
    SimulationConfig,
    StepOfCalls,
    savings_of,
)
from rlhfless.simulate.whole_steps.whole_step import WholeStepChoice
from rlhfless.trace import Trace
from solver.layouts import Graph
from solver.model.errors import as_given
from solver.model.html_tables import rows_table
from solver.model.objective import Objective
from solver.model.step_levers import DRAFTS, LEVERS, lever_names
from solver.step.choose import share_text

PLAIN, PLANNED = "elastic plain", "this plan"
PLAIN_IS = f"{PLAIN} is the comparator: a right-sized random split, GPUs released when done, then learning on all of them"
ABOUT_BOUND = 1 + 1e-9
SECONDS_OF = "Seconds are those of tables of measured operators, not scaled to times of the log."
"""Of whole steps: no log says what each of their calls took."""


@dataclass(frozen=True, eq=False, repr=False)
class PlannedWholeStep:
    """The plan of one whole step of a log; ``Run.plan_step`` makes it.

    Attributes:
        of_calls: the step, with the actor sizes and layouts to choose from.
        objective: what is minimised.
        drafts: which drafted tokens are accepted; None: no speculative decoding.
        levers: names of the optimisations that the plan may use.

    Raises:
        PlanningError: a lever is unknown.
        InputError: drafts are named as a lever, but not what they accept.
    """

    of_calls: StepOfCalls
    objective: Objective
    drafts: SimulatedDrafts | None = None
    levers: str | Collection[str] = "all"

    def __post_init__(self) -> None:
        if DRAFTS in lever_names(self.levers) and self.levers != "all" and self.drafts is None:
            raise InputError("levers name drafts, but nothing says what they accept; give drafts='weak', 'strong' or your own")

    @cached_property
    def choice(self) -> WholeStepChoice:
        """The plan chosen from the length forecast, with the expected saving of each optimisation."""
        return self.of_calls.step.plan(self.objective, self.drafts, lever_names(self.levers))

    @cached_property
    def plain(self) -> WholeStepChoice:
        """The baseline ("elastic plain"): right number of replicas, random assignment, prefix caching, each replica released
        when it is done, learning on all GPUs.
        """
        return self.of_calls.step.plain(self.objective)

    @cached_property
    def results(self) -> pd.DataFrame:
        """Two rows: the baseline ``plain``, and the plan.

        Columns: ``plan``; ``expected_s, expected_gpu_s`` (mean over the forecast); ``time_s, gpu_s`` (simulated with the true
        lengths); ``bound_gpu_s``, the fewest GPU-seconds of any policy that takes the row's time.
        """
        step, rows = self.of_calls.step, []
        bound = step.bound(self.drafts)
        for name, choice in ((PLAIN, self.plain), (PLANNED, self.choice)):
            time_s, gpu_s = step.execute(choice.plan)
            rows.append((name, choice.time_s, choice.gpu_seconds, time_s, gpu_s, bound.gpu_seconds(time_s * ABOUT_BOUND)))
        return pd.DataFrame(rows, columns=["plan", "expected_s", "expected_gpu_s", "time_s", "gpu_s", "bound_gpu_s"])

    @cached_property
    def savings(self) -> pd.DataFrame:
        """One row per optimisation that the plan may use: ``lever, meaning, used, expected, saved``.

        ``expected`` and ``saved`` are shares of what is minimised, relative to the best plan without the optimisation: on
        held-out scenarios, and in a simulation with the true lengths. If no plan is expected to keep a limit, they are shares
        of what is limited. NaN: the plan keeps the limit, and the one without the optimisation does not. A negative saving is
        a loss.
        """
        table = savings_of(self.of_calls.step, self.choice, self.objective, self.drafts)
        return table[table["lever"].isin(lever_names(self.levers))].reset_index(drop=True)

    @property
    def trace(self) -> Trace:
        """The trace of the executed step; ``meta["levers"]`` has the expected and the achieved saving of each optimisation,
        None where ``savings`` has NaN.
        """
        trace, levers = self.of_calls.step.trace(self.choice.plan), self.savings.drop(columns="meaning").astype(object)
        return replace(trace, meta={**trace.meta, "levers": levers.where(levers.notna(), None).to_dict("records")})

    def lines(self) -> list[str]:
        """Return one line per optimisation, without executing anything: its expected saving, or why it is not used."""
        known = {**dict.fromkeys(self._allowed, "not used, as no plan with it was found to be better")}
        held_out = "not used, as it did not help on held-out scenarios"
        known |= {lever: held_out if math.isnan(share) else f"{held_out} ({share:.1%})"
                  for lever, share in self.choice.refused.items()}  # fmt: skip
        known |= {lever: share_text(share, "expected to save ") for lever, share in self.choice.saves.items()}
        return [f"{lever}: {known[lever]}" for lever in LEVERS if lever in known]

    def plot(self) -> go.Figure:
        """Return a figure of the executed decoding timelines of the baseline and of the plan, with the cost of decoding.

        The title has the time and cost of the whole step.
        """
        fig = plot_before_after({PLAIN: self.of_calls.step.trace(self.plain.plan), PLANNED: self.trace})
        first, last = self.results.itertuples()
        time, cost = 1 - last.time_s / first.time_s, 1 - last.gpu_s / first.gpu_s
        whole = (
            f"The whole step takes {percent(time)} {'less' if time >= 0 else 'more'} time and costs {percent(cost)} "
            f"{'less' if cost >= 0 else 'more'} than {PLAIN}"
        )
        drawn, _, note = fig.layout.title.text.partition("</b>")
        drawn = f"decoding alone, as drawn: {drawn.removeprefix('<b>').replace('<br>', ' ')}"
        line = f"<br><span style='font-size:12px;font-weight:normal'>{drawn}</span>"
        for heading in fig.layout.annotations:
            heading.text = heading.text.replace(COST_HEADING, "<b>Cost of decoding</b>")
        return fig.update_layout(title_text=f"<b>{whole}</b>{line}{note}")

    @property
    def _allowed(self) -> list[str]:
        offered = self.of_calls.step.levers(self.drafts)
        return [lever for lever in lever_names(self.levers) if lever in offered]

    def _rows(self) -> list[tuple[str, ...]]:
        return [
            (row.plan, f"{row.expected_s:.4g}", f"{row.expected_gpu_s:.4g}", f"{row.time_s:.4g}", f"{row.gpu_s:.4g}",
             f"{row.bound_gpu_s:.4g}")
            for row in self.results.itertuples()
        ]  # fmt: skip

    def _lever_rows(self) -> list[tuple[str, ...]]:
        return [
            (row.lever, share_text(row.expected), share_text(row.saved)) if row.used else (row.lever, "not used", "")
            for row in self.savings.itertuples()
        ]

    @property
    def words(self) -> str:
        """The plan in words: number of actors, size of the learner, and the layouts of the model calls."""
        return self.of_calls.words(self.choice.plan)

    @property
    def _title(self) -> str:
        return f"Step {self.of_calls.step.logged.step}: {self.words}"

    @property
    def _notes(self) -> list[str]:
        """Return what of the lengths is a guess, that a limit is not kept, where the plan is expected to exceed it, and what
        the seconds come from."""
        guess = self.of_calls.step.logged.guess
        objective = self.objective.in_gpu_s(self.of_calls.step.own.setting.cluster.usd_per_gpu_s)
        exceeded = limit = unit = ""
        if objective.deadline_s is not None and self.choice.time_s > objective.deadline_s:
            limit, unit = f"{objective.deadline_s:g} s", "seconds"
        elif objective.budget is not None and self.choice.gpu_seconds > objective.budget:
            limit, unit = f"{objective.budget:g} GPU-seconds", "GPU-seconds"
        if limit:
            exceeded = f"no plan with these optimisations is expected to keep within {limit}; this is the one closest to it"
            exceeded += f", and what each optimisation saves is a share of the {unit}"
        return [note for note in (guess, exceeded, SECONDS_OF, PLAIN_IS) if note]

    def __repr__(self) -> str:
        rows = (f"  {name}: expected {s} s, {gpu_s} GPU-s; executed {time} s, {cost} GPU-s (bound {bound} GPU-s)"
                for name, s, gpu_s, time, cost, bound in self._rows())  # fmt: skip
        levers = (f"  {row.lever}: {self._words_of(row.expected, row.saved) if row.used else 'not used'}"
                  for row in self.savings.itertuples())  # fmt: skip
        return "\n".join([self._title, *self._notes, *rows, *levers])

    @staticmethod
    def _words_of(expected: float, saved: float) -> str:
        executed = "nor when executed" if math.isnan(saved) else f"saved {saved:.1%}"
        return f"{share_text(expected, 'expected to save ')}, {executed}"

    def _repr_html_(self) -> str:
        head = ("plan", "expected (s)", "expected (GPU-s)", "executed (s)", "executed (GPU-s)", "lower bound (GPU-s)")
        meanings = self.savings["meaning"]
        rows = [(*row, meaning) for row, meaning in zip(self._lever_rows(), meanings, strict=True)]
        columns = ("optimisation", "expected to save", "saved", "what it does")
        levers = rows_table("Each optimisation left out alone", columns, rows)
        return with_notes(rows_table(self._title, head, self._rows()), self._notes) + levers


def graph_of(algorithm: str) -> Graph:
    """Return the calls of a registered algorithm.

    Raises:
        InputError: it is unknown.
    """
    from rlhfless.training.config.algorithm import algorithm_named  # planning alone should not wait for the options of training
    from rlhfless.training.config.section import ALGORITHMS

    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
        raise InputError(f"algorithm is {as_given(algorithm)}; {' or '.join(sorted(ALGORITHMS))} is needed")
    return algorithm_named(algorithm).graph()


def drafts_of(given: str | SimulatedDrafts | None) -> SimulatedDrafts | None:
    """Return what drafted tokens are accepted: as given, or by the name ``weak`` or ``strong``.

    Raises:
        InputError: it is neither.
    """
    if given is None or isinstance(given, SimulatedDrafts):
        return given
    if given not in ("weak", "strong"):
        raise InputError(f"drafts is {as_given(given)}; weak, strong, DrawnDrafts(...), LogDrafts(...) or None is needed")
    return DrawnDrafts(WEAK if given == "weak" else STRONG)


def batch_of(logged: LoggedStep, mini_batches: int = 1) -> StepBatch:
    """Return the responses of a step, all of their mean predicted lengths."""
    points = logged.predicted.points
    prompt_tokens = max(1, round(float(points.prompt_tokens[points.prompt_of].mean())))
    return StepBatch(len(points), prompt_tokens, max(1, round(float(points.response_tokens.mean()))), mini_batches)


def costs_of_calls(
    graph: Graph, logged: LoggedStep, setting: SimulationConfig, profile: str, models: str | Mapping[str, str] | None
) -> CallTable:
    """Return the costs of a step's calls on the GPUs of a run.

    Args:
        profile: of the run; names the language model where ``models`` is None.

    Raises:
        ProfileError: the GPUs or a model have no table of operators.
    """
    if models is None:
        models = str(read_profile(profile)["model"]).lower()
    if isinstance(models, str):
        models = dict.fromkeys((call.role for call in graph.calls), models)
    return CallTable(setting.cluster.kind, models, batch_of(logged), gpus_per_node=setting.cluster.gpus_per_node)
