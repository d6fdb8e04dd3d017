"""Several runs or layouts of GPUs side by side: GPU-hours per step or item, how well more GPUs scale, cheapest and fastest.

Runs are compared by the same unit: steps, which then are taken to have the same work, or items where the log counts them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pandas as pd

from rlhfless.diagnosis.asynchronous import waits_for_nothing
from rlhfless.diagnosis.gpus import gpus_of, same_in_all, were_stated
from rlhfless.diagnosis.logged_run import LoggedRun
from rlhfless.diagnosis.numbers import DERIVED, GPU_HOURS, LOGGED, TIME, Collected, Finding, Number, Part, counted, number
from rlhfless.diagnosis.phases import medians, step_seconds
from rlhfless.diagnosis.whole_run import LARGEST
from rlhfless.trace.importers.scalars import RUN, runs_of
from rlhfless.trace.importers.written_cells import GPU_NAME
from rlhfless.trace.schema.casts import shown

COLUMNS = [
    "run",
    "gpus",
    "gpus_generate",
    "gpus_train",
    "size",
    "unit",
    "seconds",
    "gpu_hours",
    "usd",
    "tokens_per_pass",
    "batch",
]
PER = {
    "item": "seconds per item", "step": "seconds per step", "run": "seconds of the run", "token": "tokens per second",
    "generation": "seconds of generation",
}  # fmt: skip
MILLION = 1e6
LEAST = 1e-9  # seconds of a token, an item or more
SAME = 0.02  # relative difference of times that are taken as equal
WORTH_SAYING = 0.03


def runs(run: LoggedRun, found: Collected) -> Part:
    """Return how the runs of a log compare; nothing of a log of one run."""
    table = runs_frame(run)
    if len(table) < 2:
        return Part()
    notes = [*_surplus(run), *_other_gpus(run)]
    unit = _common_unit(table)
    if unit is None:
        notes.append("The runs are not compared: no two of them have seconds per step or item, or tokens per second.")
        return Part(notes=tuple(notes))
    compared = table[table["unit"] == unit].reset_index(drop=True)
    if len(compared) < len(table):
        left_out = ", ".join(shown(name, 40) for name in table.loc[table["unit"] != unit, "run"])
        notes.append(f"Without {PER[unit]}, and not compared: {left_out}.")
    sized = compared["gpu_hours"].notna()
    if sized.any() and not sized.all():  # who knows how large the others are
        left_out = ", ".join(shown(name, 40) for name in compared.loc[~sized, "run"])
        notes.append(f"Without its GPUs, and not compared: {left_out}.")
        compared = compared[sized].reset_index(drop=True)
    batches = compared["batch"].dropna().unique()
    if len(compared) > 1 and unit != "item" and (of_batches := _by_batch(compared, unit)) is not None:
        return replace(of_batches, notes=(*notes, *of_batches.notes))
    if len(batches) > 1:
        notes.append(
            f"The batches of the runs differ ({', '.join(f'{one:g}' for one in sorted(batches))}), which the log states."
        )
    if unit in ("step", "run") and len(compared) > 1:
        notes.append(f"{unit.capitalize()}s are compared as if each had the same work.")
    if medians(run):
        notes.append("Medians do not add up: the median of a step is not the sum of the medians of its phases.")
    numbers = list(_numbers(compared, unit))
    if len(compared) < 2:
        return Part(tuple(numbers), notes=tuple(notes))
    pair_numbers, said = _scaling(compared, unit)
    draft_numbers, of_drafts = _drafts(compared)
    in_dollars = bool(run.column("usd_per_gpu_hour").size and (run.column("usd_per_gpu_hour") > 0).all())
    unknown = []
    if compared["gpu_hours"].isna().any():
        unknown.append(
            "which run is the cheapest: a column with the GPUs of each would tell, or --gpus where all have the same"
        )
    elif _kinds(compared).nunique() > 1 and not in_dollars:
        unknown.append(
            "which run is the cheapest: their GPUs differ, so a column with the price of each (USD/GPU-hour) would tell"
        )
    if of_drafts:
        unknown.append(
            "what a whole step gains by drafts: the share of a step that decodes would tell; it gains that share of it"
        )
    findings = tuple(_findings(compared, unit, [*said, *of_drafts], in_dollars=in_dollars))
    return Part((*numbers, *pair_numbers, *draft_numbers), findings, (), tuple(unknown), tuple(notes))


def _surplus(run: LoggedRun) -> list[str]:
    """Say which layouts, of several, generate more than training takes."""
    idle = [(name, gpus_of(one)) for name, one in each_run(run) if waits_for_nothing(one)]
    known = [
        f"{shown(name, 60)} ({of.generate:,.0f} + {counted(of.train, 'GPU')})" for name, of in idle if of.generate and of.train
    ]
    if len(known) < 2:
        return []
    return [
        f"Training waits for nothing in {' and '.join(known)}: in each, the next GPU belongs to training, not to generation."
    ]


def _other_gpus(run: LoggedRun) -> list[str]:
    """Say that the runs' own GPUs count, where a user states another number for all of them."""
    own = [count for _, one in each_run(run) if (count := same_in_all(one, "gpus")) is not None]
    if run.stated.gpus is None or all(count == run.stated.gpus for count in own):
        return []
    listed = ", ".join(f"{count:,.0f}" for count in dict.fromkeys(own))
    return [f"{were_stated(run.stated.gpus)}, and the log has those of each run ({listed}); the log's count."]


def each_run(run: LoggedRun) -> Iterator[tuple[str, LoggedRun]]:
    """Yield the runs of a log of scalars by name, each with its own price; of a log that names none, itself without a name."""
    names = runs_of(run.steps)
    if not names:
        yield "", _with_own_price(run)
    for name in names:
        yield name, _with_own_price(replace(run, steps=run.steps[run.steps[RUN] == name].reset_index(drop=True)))


def _with_own_price(run: LoggedRun) -> LoggedRun:
    """Return the run with the price of its GPUs that its log states, which is surer than one stated for all runs."""
    price = same_in_all(run, "usd_per_gpu_hour")
    return run if price is None else replace(run, stated=replace(run.stated, usd_per_gpu_hour=price))


def runs_frame(run: LoggedRun) -> pd.DataFrame:
    """Return one row per run: ``COLUMNS``; NaN where unknown.

    ``unit`` is "item" where the run counts items, else "step", "run", or "token" where only tokens per second are known;
    seconds, GPU-hours and dollars are per unit. ``size`` is the GPUs, else the nodes.
    """
    rows = []
    for name, one in each_run(run):
        gpus, (unit, seconds, count) = gpus_of(one), _seconds_per_unit(one)
        if not np.isnan(seconds) and not LEAST <= seconds <= LARGEST:
            unit, seconds = "", np.nan  # no run takes so long, or so little
        stated = _positive(one, "gpu_hours")
        gpu_hours = np.nan if gpus.total is None else gpus.total * seconds / 3600
        if not np.isnan(stated).all() and unit != "token":
            gpu_hours = float(np.nanmean(stated)) / count
        if unit == "token" and np.isnan(gpu_hours) and (each := one.mean("tokens_per_gpu_s")):
            gpu_hours = 1 / each / 3600
        nodes, per_pass = one.mean("nodes"), one.mean("tokens_per_pass")
        price = one.stated.usd_per_gpu_hour
        usd = np.nan if price is None else price * gpu_hours
        size, batch = gpus.total or nodes, one.mean("batch")
        rows.append((name, gpus.total, gpus.generate, gpus.train, size, unit, seconds, gpu_hours, usd, per_pass, batch))
    numbers = dict.fromkeys((name for name in COLUMNS if name not in ("run", "unit")), float)
    return pd.DataFrame(rows, columns=COLUMNS).astype(numbers)


def _seconds_per_unit(run: LoggedRun) -> tuple[str, float, float]:
    """Mean seconds per item, else per step, of the run's rows, and how many of these a run has; NaN where unknown."""
    took, items, steps = (_positive(run, name) for name in ("run_s", "items", "steps_done"))
    for unit, count in (("item", items), ("step", steps)):
        both = ~np.isnan(took) & ~np.isnan(count)
        if both.any():
            return unit, float(took[both].sum() / count[both].sum()), float(count[both].mean())
    paces = _positive(run, "items_per_s")
    if not np.isnan(paces).all():
        return "item", 1 / float(np.nanmean(paces)), np.nan
    seconds = step_seconds(run)
    usual = seconds.ordinary(seconds.step_s)
    if usual.any():
        return "step", float(seconds.step_s[usual].mean()), np.nan
    whole = took[~np.isnan(took)]
    if len(whole):
        return "run", float(whole.mean()), 1.0
    generation = _positive(run, "generate_s")
    if not np.isnan(generation).all():
        return "generation", float(np.nanmean(generation)), np.nan
    rates = _positive(run, "tokens_per_s")
    if not np.isnan(rates).all():
        return "token", 1 / float(np.nanmean(rates)), np.nan
    if not np.isnan(_positive(run, "tokens_per_gpu_s")).all():
        return "token", np.nan, np.nan
    if not np.isnan(_positive(run, "gpu_hours")).all():
        return "run", np.nan, 1.0
    return "", np.nan, np.nan


def _positive(run: LoggedRun, name: str) -> np.ndarray:
    values = run.column(name)
    return np.where((values > 0) & (values <= LARGEST), values, np.nan)


def _common_unit(table: pd.DataFrame) -> str | None:
    """The unit that most of the runs have; None if none has any."""
    units = table.loc[table["unit"] != "", "unit"]
    return None if units.empty else str(units.value_counts().index[0])


def _per(unit: str) -> tuple[str, float]:
    """What GPU-hours are per, in words, and how many units that is."""
    return ("million tokens", MILLION) if unit == "token" else (unit, 1.0)


def _pace(seconds: float, unit: str) -> str:
    """How fast a run is, in words."""
    if unit == "token":
        return f"{1 / seconds:,.4g} tokens/s" if seconds > 1e-4 else f"{1 / seconds:,.0f} tokens/s"
    took = f"{seconds:,.0f} s" if seconds >= 1000 else f"{seconds:.4g} s"
    return took if unit == "run" else f"{took} per {unit}"


def _numbers(table: pd.DataFrame, unit: str) -> Iterator[Number]:
    per, count = _per(unit)
    first = table.iloc[0]
    for row in table.itertuples():
        key = f"runs/{shown(row.run, 60)}"
        if unit == "token" and not np.isnan(row.seconds):
            yield number(f"{key}/tokens_per_s", 1 / row.seconds, LOGGED, "tokens per second as stated")
        elif not np.isnan(row.seconds):
            yield number(f"{key}/{unit}_s", row.seconds, DERIVED, PER[unit])
        if row.Index and not np.isnan(first["seconds"] / row.seconds):
            how = f"{PER[unit]} against {shown(first['run'], 60)}"
            yield number(f"{key}/times_as_fast", first["seconds"] / row.seconds, DERIVED, how)
        if not np.isnan(row.gpu_hours):
            how = "GPUs for the seconds, or GPU-hours or tokens per GPU as stated"
            yield number(f"{key}/gpu_hours_per_{per.replace(' ', '_')}", count * row.gpu_hours, DERIVED, how)
        if not np.isnan(row.usd):
            how = f"at {row.usd / row.gpu_hours:g} USD"
            yield number(f"{key}/usd_per_{per.replace(' ', '_')}", count * row.usd, DERIVED, how)


def _scaling(table: pd.DataFrame, unit: str) -> tuple[list[Number], list[str]]:
    """How well each larger run scales against the smallest one, and from which size on more GPUs win nothing."""
    known = _one_series(_one_kind(table.dropna(subset=["size", "seconds"]))).sort_values(["size", "seconds"], kind="stable")
    sizes = known.drop_duplicates("size")  # the fastest layout of each size
    if len(sizes) < 2:
        return [], []
    what = "GPUs" if known["gpus"].notna().all() else "nodes"
    least = sizes.iloc[0]
    numbers, said = [], []
    for row in sizes.iloc[1:].itertuples():
        efficiency = least["size"] * least["seconds"] / (row.size * row.seconds)
        how = f"{what} times seconds per {unit} of {shown(least['run'], 60)} over its own; 1 is perfect scaling"
        numbers.append(number(f"runs/{shown(row.run, 60)}/scaling_efficiency_share", efficiency, DERIVED, how))
    last = sizes.iloc[-1]
    numbers.append(number("scaling_efficiency_share", numbers[-1].value, DERIVED, numbers[-1].how))
    a_unit = f"an {unit}" if unit == "item" else f"a {unit}"
    faster = f"{least['seconds'] / last['seconds']:.2f} times as fast"
    said.append(
        f"From {least['size']:,.0f} to {last['size']:,.0f} {what} {a_unit} is {faster}, {numbers[-1].value:.0%} of "
        "what perfect scaling would give."
    )
    for smaller, larger in zip(sizes.iloc[:-1].itertuples(), sizes.iloc[1:].itertuples(), strict=True):
        if larger.seconds >= (1 - SAME) * smaller.seconds:
            said.append(
                f"From {smaller.size:,.0f} to {larger.size:,.0f} {what} nothing is won: {_pace(smaller.seconds, unit)} and "
                f"{_pace(larger.seconds, unit)}."
            )
            break  # the first size from which on more is of no use
    return numbers, said


def _one_kind(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the kind of GPU that most of them name, where they name several; else all."""
    kinds = _kinds(table)
    return table if kinds.nunique() < 2 else table[kinds == kinds.value_counts().index[0]]


def _kinds(table: pd.DataFrame) -> pd.Series[str]:
    """The kind of GPU that each run's name has; empty where it has none."""
    return table["run"].map(lambda name: match[1].lower() if (match := GPU_NAME.search(str(name))) else "")


SIZE_IN_NAME = re.compile(r"\d+(?=\s*(?:x\s*)?(?:gpus?|nodes?)\b)", re.I)


def _one_series(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the longest series, where several series have names that differ in their size alone; else all."""
    series = table["run"].map(lambda name: SIZE_IN_NAME.sub("", str(name)))
    counts = series.value_counts()
    return table if (counts > 1).sum() < 2 else table[series == counts.index[0]]


def _drafts(table: pd.DataFrame) -> tuple[list[Number], list[str]]:
    """What drafts win of decoding, against the one run without; nothing where several or none have no drafts."""
    without = table[table["tokens_per_pass"].isna() | (table["tokens_per_pass"] <= 1)]
    with_drafts = table[(table["tokens_per_pass"] > 1) & table["seconds"].notna()]
    if len(without) != 1 or with_drafts.empty or without["seconds"].isna().any():
        return [], []
    plain_s = float(without["seconds"].iloc[0])
    numbers, said = [], []
    for row in with_drafts.itertuples():
        key, ratio = f"runs/{shown(row.run, 60)}", plain_s / row.seconds
        numbers.append(
            number(f"{key}/decode_saving_share", 1 - 1 / ratio, DERIVED, "seconds saved by drafts, of those without")
        )
        numbers.append(
            number(
                f"{key}/pass_cost_ratio", row.tokens_per_pass / ratio, DERIVED, "seconds of a pass with drafts over one without"
            )
        )
        said.append(
            f"Drafts of {shown(row.run, 40)} give {row.tokens_per_pass:.2f} tokens per pass and decode {ratio:.2f} times as "
            f"fast, as such a pass takes {row.tokens_per_pass / ratio:.2f} times as long."
        )
    return numbers, said


BATCH_IN_NAME = re.compile(r", batch [\d.e+]+$")


def _by_batch(table: pd.DataFrame, unit: str) -> Part | None:
    """Return how methods compare within each batch; None unless several methods have several batches in common.

    The first method is what the others are compared with, or the one without drafts.
    """
    paces = table.dropna(subset=["batch", "seconds"]).assign(
        method=lambda t: t["run"].str.replace(BATCH_IN_NAME, "", regex=True)
    )
    paces = paces.drop_duplicates(["method", "batch"])
    seconds = paces.pivot(index="batch", columns="method", values="seconds").sort_index()
    if len(paces) < len(table) or seconds.notna().all(axis="columns").sum() < 2 or seconds.shape[1] < 2:
        return None
    drafted = set(paces.loc[paces["tokens_per_pass"] > 1, "method"])
    names = list(dict.fromkeys(paces["method"]))
    plain = next((name for name in names if name not in drafted), names[0])
    numbers = [one for one in _numbers(table, unit) if not one.key.endswith("times_as_fast")]
    proof, said, at_stake = [], [], 0.0
    keys = {(row.method, row.batch): f"runs/{shown(row.run, 60)}" for row in paces.itertuples()}
    for name in (name for name in names if name != plain):
        ratios = (seconds[plain] / seconds[name]).dropna()
        if ratios.empty:
            continue
        for batch, ratio in ratios.items():
            key = f"{keys[name, batch]}/times_as_fast"
            numbers.append(number(key, ratio, DERIVED, f"{PER[unit]} against {shown(plain, 60)} at the same batch"))
            proof.append(key)
        at_stake = max(at_stake, *(1 - min(one, 1 / one) for one in ratios))
        said.append(_at_each_batch(shown(name, 60), shown(plain, 60), ratios))
    notes = ("Runs are compared within the same batch: how fast one is, and what drafts win, changes with it.",)
    return Part(tuple(numbers), (Finding("layout", float(at_stake), " ".join(said), tuple(proof), TIME),), notes=notes)


def _at_each_batch(name: str, plain: str, ratios: pd.Series[float]) -> str:
    """Say how fast a method is at each batch, and from which on it loses."""
    (first, ratio), *others = ratios.items()
    each = "".join(f", {one:.2f} times at batch {batch:g}" for batch, one in others)
    said = f"{name} is {ratio:.2f} times as fast as {plain} at batch {first:g}{each}."
    wins = ratios > 1
    if wins.all() or not wins.iloc[0] or (wins.astype(int).diff().iloc[1:] > 0).any():
        return said
    return f"{said} It stops paying between batch {ratios.index[wins][-1]:g} and {ratios.index[~wins][0]:g}."


def _findings(table: pd.DataFrame, unit: str, said: list[str], *, in_dollars: bool) -> Iterator[Finding]:
    """The fastest and the cheapest run, and how they scale; without GPUs nothing is said of costs.

    Args:
        in_dollars: whether the log states the price of every run's GPUs.
    """
    timed, known = table.dropna(subset=["seconds"]), table.dropna(subset=["gpu_hours"])
    sentences: list[str] = []
    proof: list[str] = []
    at_stake, of = 0.0, TIME
    per, count = _per(unit)
    if len(timed) > 1:
        fastest, slowest = timed.loc[timed["seconds"].idxmin()], timed.loc[timed["seconds"].idxmax()]
        at_stake = 1.0 - fastest["seconds"] / slowest["seconds"]
        times = f", {slowest['seconds'] / fastest['seconds']:.2f} times as fast as {shown(slowest['run'], 60)}"
        sentences.append(
            f"{shown(fastest['run'], 60)} is the fastest with {_pace(fastest['seconds'], unit)}{times} "
            f"({_pace(slowest['seconds'], unit)})."
        )
        suffix = "tokens_per_s" if unit == "token" else f"{unit}_s"
        proof += [f"runs/{shown(one['run'], 60)}/{suffix}" for one in (fastest, slowest)]
    if len(known) > 1:
        cost, called = ("usd", "USD") if in_dollars and known["usd"].notna().all() else ("gpu_hours", "GPU-hours")
        least = "is the cheapest" if cost == "usd" or _kinds(known).nunique() < 2 else "takes the fewest GPU-hours"
        cheapest, dearest = known.loc[known[cost].idxmin()], known.loc[known[cost].idxmax()]
        if cost == "gpu_hours" and (in_gpu_hours := 1.0 - cheapest[cost] / dearest[cost]) >= at_stake:
            at_stake, of = in_gpu_hours, GPU_HOURS
        sentences.append(
            f"{shown(cheapest['run'], 60)} {least} with {count * cheapest[cost]:,.4g} {called} per {per}, "
            f"where {shown(dearest['run'], 60)} takes {count * dearest[cost]:,.4g}."
        )
        key = f"{cost}_per_{per.replace(' ', '_')}"
        proof += [f"runs/{shown(one['run'], 60)}/{key}" for one in (cheapest, dearest)]
    if not sentences:
        return
    if at_stake < WORTH_SAYING:
        sentences = [f"The runs differ by at most {at_stake:.1%}: {sentences[0]}"]
    yield Finding("layout", float(at_stake), " ".join([*sentences, *said]), tuple(dict.fromkeys(proof)), of)
