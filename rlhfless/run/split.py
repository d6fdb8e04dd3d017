"""``Run.split``: how many GPUs generate and how many train, from responses and learning times, or from waits alone."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import pandas as pd

from rlhfless.analysis.split import (
    APART,
    COLUMNS,
    TOGETHER,
    assumptions,
    batches_of,
    check_staleness,
    learning_of,
    own_split,
    splits,
    totals_of,
)
from rlhfless.analysis.what_ifs.outcome import RunToChange
from rlhfless.diagnosis.next_gpu import NextGpu
from rlhfless.errors import InputError
from rlhfless.latency.counts import once, several
from solver.model.errors import as_given, is_number, is_whole
from solver.model.html_tables import rows_table
from solver.model.latency import LatencyModel
from solver.model.objective import Objective
from solver.model.plurals import counted

if TYPE_CHECKING:
    from rlhfless.plots import DataFigure

SHOWN = 8  # divisions that are printed
NO_RESPONSES = (
    "The log has no responses, so no division is simulated. Waits say on which side the next GPU belongs, and how fast the "
    "loop can be at most. The rollout log of the same run would tell how many GPUs."
)


@dataclass(frozen=True, eq=False, repr=False)
class Split:
    """Divisions of a run's GPUs into generation and training, the best first.

    Attributes:
        table: one row per division (columns as of ``analysis.split.splits``), ordered by ``T^w C^(1-w)`` of a step; empty for a
            log without responses.
        own: the run's own division: a row of the table for a logged run, the measured times for an executed one; None if
            unknown, or if ``learn_s`` differs from the times of an executed run.
        waits: for each run of the log, which of the two should get the next GPU according to the logged waits.
        assumed: assumptions, one sentence each.
    """

    table: pd.DataFrame
    own: Mapping[str, Any] | None = None
    waits: tuple[NextGpu, ...] = ()
    assumed: tuple[str, ...] = ()

    @property
    def best(self) -> Mapping[str, Any] | None:
        """The best division, the first row; None for a log without responses."""
        return None if self.table.empty else self.table.iloc[0].to_dict()

    @property
    def bound(self) -> float | None:
        """A lower bound on the seconds of a step, valid for every division in the table; None for a log without responses."""
        return None if self.table.empty else float(self.table["least_step_s"].min())

    def to_frame(self) -> pd.DataFrame:
        """Return a copy of the table."""
        return self.table.copy()

    def to_json(self) -> str:
        """Return ``{"divisions", "own", "waits", "assumed"}``; unknown values are null."""
        rows = _records(self.table)
        own = None if self.own is None else _records(pd.DataFrame([self.own]))[0]
        return json.dumps({"divisions": rows, "own": own, "waits": [vars(one) for one in self.waits], "assumed": self.assumed})

    def plot(self) -> DataFigure:
        """Return a figure: seconds of a step by the number of generating GPUs, with the lower bound of every division."""
        from rlhfless.plots.split import plot_split

        return plot_split(self.table)

    def _rows(self) -> list[tuple[str, ...]]:
        return [
            (row.way, f"{row.gpus_generate:,}", f"{row.gpus_train:,}",
             f"{row.actors:,} of {counted(row.gpus_per_actor, 'GPU')}", f"{row.step_s:,.4g}", f"{row.least_step_s:,.4g}",
             _percent(row.generation_busy_share), _percent(row.learner_busy_share), f"{row.gpu_s / 3600:,.3g}")
            for row in self.table.head(SHOWN).itertuples()
        ]  # fmt: skip

    @property
    def _sentences(self) -> list[str]:
        said = [f"{one.run}: {one.sentence}" if one.run else one.sentence for one in self.waits]
        if self.own is not None and self.best is not None:
            saved = 1 - self.best["step_s"] / self.own["step_s"] if self.own["step_s"] else 0.0
            learns = f"{counted(self.own['gpus_generate'], 'GPU')} generate and {self.own['gpus_train']:,} train"
            less = f"{abs(saved):.0%} {'less' if saved >= 0 else 'more'}"
            own_s = f"{self.own['step_s']:,.4g} s a step"
            said.append(f"The run's own division, in which {learns}, takes {own_s}; the first row takes {less}.")
        if self.table.empty:
            return [*said, NO_RESPONSES]
        hidden = len(self.table) - SHOWN
        more = [f"{hidden} more ways are in to_frame()."] if hidden > 0 else []
        return [*said, *more, *(f"Assumed: {sentence}." for sentence in self.assumed)]

    def __str__(self) -> str:
        rows = pd.DataFrame(self._rows(), columns=list(HEAD))
        return "\n".join([*([] if rows.empty else [rows.to_string(index=False)]), *self._sentences])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        table = "" if self.table.empty else rows_table("How many GPUs generate and how many train", HEAD, self._rows())
        return table + "".join(f"<p>{escape(sentence)}</p>" for sentence in self._sentences)


HEAD = ("way", "GPUs generate", "GPUs train", "actors", "step (s)", "at least (s)", "generation busy", "learner busy",
        "GPU-hours a step")  # fmt: skip


def _percent(share: float) -> str:
    return "unknown" if math.isnan(share) else f"{share:.0%}"


def _records(table: pd.DataFrame) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(table.to_json(orient="records", double_precision=15))
    return rows


def from_waits(waits: tuple[NextGpu, ...], source: str) -> Split:
    """Return what the waits of a log without responses say.

    Raises:
        InputError: it has no waits either.
    """
    if not waits:
        raise InputError(
            f"{source}: has neither responses nor seconds in which training waits for generation, so nothing is known of a "
            "division of its GPUs; the rollout log of the same run, or a log with such waits, is needed"
        )
    return Split(pd.DataFrame(columns=list(COLUMNS)), waits=waits)


def split_run(
    run: RunToChange,
    models: Sequence[LatencyModel],
    objective: Objective,
    waits: tuple[NextGpu, ...],
    *,
    staleness: int | None,
    gpus: int | Sequence[int] | None,
    actor_sizes: Sequence[int] | None,
    batches: str | None,
    lend_idle: bool,
    learn_s: float | None,
    efficiency: float,
) -> Split:
    """Return every division of a run with responses: see ``Run.split``.

    Args:
        run: steps with the run's set-up and its seconds outside generation. models: one per size of actors, the run's own
            first. objective: by which ways are ranked.
    """
    bound, totals = check_staleness(staleness), totals_of(gpus, run)
    if not isinstance(lend_idle, bool):
        raise InputError(f"lend_idle is {as_given(lend_idle)}; True or False is needed")
    if batches not in (None, APART, TOGETHER):
        raise InputError(f"batches is {as_given(batches)}; {APART}, {TOGETHER}, or None for the framework's own, is needed")
    follow = batches_of(run) if batches is None else batches
    if follow == TOGETHER and (bound is None or lend_idle):
        given = "lend_idle is True" if lend_idle else "staleness is None"
        raise InputError(
            f"{given}, which is simulated for batches one after another alone; give batches={APART!r}, or leave it out"
        )
    learning = learning_of(run, learn_s, efficiency)
    table = splits(run, _of_sizes(models, actor_sizes), learning, totals, bound, batches=follow, lend_idle=lend_idle)
    value = objective.product(table["step_s"].to_numpy(), table["gpu_s"].to_numpy())
    table = (
        table.assign(value=value).sort_values(["value", "gpus_train"], kind="stable", ignore_index=True).drop(columns="value")
    )
    own = None if run.executed and learn_s is not None else own_split(run, table)
    return Split(table, None if own is None else own.to_dict(), waits, assumptions(run, learning, bound, follow))


def _of_sizes(models: Sequence[LatencyModel], sizes: object) -> Sequence[LatencyModel]:
    if sizes is None:
        return models
    known = {model.gpus_per_actor: model for model in models}
    needed = f"sizes that have a latency profile of the model ({', '.join(map(str, sorted(known)))} GPUs per actor)"
    given: list[Any] = [sizes] if is_number(sizes) else several("actor_sizes", sizes, needed)
    for size in given:
        if not is_whole(size, 1) or int(size) not in known:
            raise InputError(f"actor_sizes has {as_given(size)}; {needed} are needed")
    return [known[size] for size in once("actor_sizes", [int(size) for size in given])]
