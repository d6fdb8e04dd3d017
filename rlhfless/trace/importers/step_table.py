"""Imports tables whose rows are steps, runs or layouts of GPUs: scalars, never responses (csv, jsonl or parquet).

Columns have a framework's own names (``names.py``), the standard names (``scalars.STANDARD``), or the words that people write
above such a table, with or without a unit: ``step time (s)``, ``gen_ms``, ``mean_length``, ``rollout GPUs``, ``hours``. A cell
that is blank is unknown.

A table is read so only where no column is the length of one response or names a prompt, and its columns are seconds or
statistics that a step or a run has. Any other table is one of responses (``table.py``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from rlhfless.trace.errors import TraceError
from rlhfless.trace.importers.formats import Format
from rlhfless.trace.importers.import_session import ImportSession, csv_header, first_record, parquet_columns, suffix_of
from rlhfless.trace.importers.mapped_columns import GUESSES, OF_PROMPTS
from rlhfless.trace.importers.names import NAMES
from rlhfless.trace.importers.phase_table import (
    FILLER,
    PHASES,
    STEP_WORDS,
    TIME,
    by_batch,
    by_phase,
    in_seconds,
    phase_lists,
    rows_are_phases,
    words_of,
)
from rlhfless.trace.importers.record import finite, is_number
from rlhfless.trace.importers.scalars import RUN, STANDARD
from rlhfless.trace.importers.text_table import TextTable, tables, text_of
from rlhfless.trace.importers.written_cells import BLANK, GPU_NAME, GPUS_IN_NAME, SECONDS, gpus, normalised
from rlhfless.trace.schema.casts import LARGEST_WHOLE_NUMBER, clean, listed, shown
from solver.model.plurals import counted

STEP, NODES, GPUS_PER_NODE = "step", "nodes", "gpus_per_node"
BARE_SECONDS, SECONDS_OR_CLOCK = "seconds", "seconds or a clock"
BARE_MEAN, BARE_MAX, LIMIT_OR_MAX = "mean", "max", "limit or longest"
"""What a column may hold beside the standard columns. Whose seconds they are, the other columns tell; ``time_s`` of a step may
be a point in time."""

MOST_ROWS = 1_000_000  # no run has as many steps; they are in memory at once
MOST_RUNS = 1_000
LONGEST_NAME = 300  # characters of a column's name; one that is longer is left out
NUMBER = re.compile(r"([-+]?\d[\d_]*\.?\d*(?:[eE][-+]?\d+)?)\s{0,3}([a-zA-Z]*|%)")

UNITS = {unit: seconds for unit, seconds in SECONDS.items() if unit not in ("min", "d", "days")}
"""Units in names of columns; there ``min`` is a minimum."""
MEAN_WORDS = frozenset({"mean", "avg", "average"})
MAX_WORDS = frozenset({"max", "maximum", "longest", "slowest"})
OTHER_STATISTICS = frozenset(
    {"min", "minimum", "shortest", "fastest", "std", "p1", "p5", "p10", "p25", "p75", "p90", "p95", "p99", "var"}
)
LENGTH_WORDS = frozenset({"length", "lengths", "len", "tokens"})
COUNT_WORDS = frozenset(
    {"token", "tokens", "tok", "toks", "sample", "samples", "step", "steps", "request", "requests", "item", "items", "prompt",
     "prompts", "rollout", "rollouts", "response", "responses", "it"}
)  # fmt: skip
MONEY_AND_GPU = frozenset({"gpu", "gpus", "usd", "dollars", "cost", "price", "eur"})
HOUR = frozenset({"h", "hr", "hour"})
TAKES_TURNS = re.compile(r"(?:fully[\s-]+)?(?:sync|synchronous|coloc\w*|colo)\b", re.I)
"""Names of runs in which generation and training take turns."""
KIND_WORDS = frozenset({"gpu", "hardware", "accelerator", "device", "pool"})
"""Words in names of columns that say a run's kind of GPU."""
ITEMS_PER_S = re.compile(
    r"(?<![a-z])(?:samples?|items?|prompts?|responses?|trajectories|rollouts?)\s*(?:/|[_ ]?per[_ ])\s*"
    r"s(?:ec(?:ond)?)?(?![a-z])",
    re.I,
)
GENERATING = frozenset({"gen", "generate", "generation", "rollout", "rollouts", "inference", "sampler", "sampling", "vllm"})
LEARNING = frozenset({"train", "training", "trainer", "learn", "learner", "learning", "policy"})

PLAIN: dict[str, tuple[str, ...]] = {
    STEP: (STEP, "globalstep", "trainingstep", "trainstep", "updatestep", "iteration", "iter", "rolloutid"),
    "steps_done": ("steps", "nsteps", "numsteps", "stepsdone", "iterations"),
    "items": ("items", "numsamples", "nsamples", "totalsamples", "numprompts", "samples", "prompts", "requests", "problems",
              "tasks", "episodes", "trajectories"),
    "responses": ("responses", "rollouts", "completions", "nresponses", "numresponses", "responsesperstep"),
    "reward_mean": ("reward", "rewardmean", "meanreward", "rewardavg", "avgreward"),
    "gpus": ("gpus", "ngpus", "numgpus", "gpucount", "numberofgpus", "totalgpus", "worldsize"),
    GPUS_PER_NODE: ("gpuspernode", "ngpuspernode", "numgpuspernode"),
    NODES: ("nodes", "nnodes", "numnodes"),
    BARE_MEAN: ("mean", "avg", "average"),
    BARE_MAX: ("max", "longest", "maximum"),
    "batch": ("batch", "batchsize", "bs", "bsz", "concurrency", "maxconcurrency"),
    "gpu_hours": ("gpuhours", "gpuhrs", "gpuh"),
    "tokens_per_pass": ("acceptancelength", "acceptlength", "meanacceptancelength", "meanacceptlength", "acceptlen", "accptlen",
                        "acceptancelen", "meanacceptedlength", "meanacceptedlen", "acceptedlength", "acceptedlen",
                        "tokensperpass", "tokensperstepaccepted"),
    "off_policy_steps": ("staleness", "maxstaleness", "stalenessmax", "offpolicy", "offpolicylevel", "offpolicysteps",
                         "maxoffpolicylevel"),
}  # fmt: skip
"""Whole names, without case and signs."""
RUN_NAMES = (
    "run", "runname", "runid", "layout", "configuration", "config", "setting", "setup", "experiment", "variant", "name",
    "system", "method", "framework", "split", "cluster", "mode", "arm", "engine", "backend",
)  # fmt: skip
"""Names of columns that name a run, the surest first."""
OF_TRAINING = frozenset({"loss", "gradnorm", "learningrate", "lr", "kl", "klloss", "entropy", "steptime", "policyloss"})
"""Whole names that only a step has: beside them a column such as ``completion_length`` is a mean over responses."""
RESPONSE_LENGTHS = frozenset({"responsetokens", *(re.sub(r"[^a-z0-9]", "", name) for name in GUESSES["response_tokens"])})
RESPONSE_TEXTS = frozenset(
    {"response", "completion", "output", "answer", "text", "outputtext", "responsetext", "generatedtext"}
)
PROMPTS = frozenset(
    {"promptid", "sample", "uid", "sampleid", "requestid", "exampleid", "instanceid", "input", "inputtext"}
    | {re.sub(r"[^a-z0-9]", "", name) for name in GUESSES["prompt_id"] if any(word in name for word in OF_PROMPTS)}
)

TIMES = ("step_s", "generate_s", "wait_s", "prepare_s", "learn_s", "sync_s")


@dataclass(frozen=True)
class Column:
    """What a column of the file holds.

    Attributes:
        means: a standard column, ``RUN``, ``STEP``, or one of those above. factor: by which its numbers are multiplied.
    """

    means: str
    factor: float = 1.0


def understood(name: str) -> Column | None:
    """Return what the name of a column says that it holds; None if it says nothing that is known.

    Example:
        >>> understood("Step time (ms)")
        Column(means='step_s', factor=0.001)
        >>> understood("timing/fwd_logprobs").means, understood("rollout_gpus").means, understood("mean_length").means
        ('prepare_s', 'gpus_generate', 'response_tokens_mean')
        >>> understood("tokens")
    """
    if name in STANDARD:
        return Column(name)
    words = re.findall(r"[a-z0-9]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower())
    plain, last = "".join(words), _plain(name.rpartition("/")[2])
    if len(words) == 2 and len(unit := [word for word in words if word in UNITS]) == 1 and STEP_WORDS & set(words):
        return Column("step_s", UNITS[unit[0]])  # "s/step", "step (s)"; the step alone is its number
    timed = bool(TIME & set(words))  # "timing/step" are seconds, and "system/step" is a number
    united = len(words) > 1 and words[-1] in UNITS  # "rollout (s)" are seconds, and "rollouts" a count
    for means, names in PLAIN.items() if not united else ():
        if plain in names or (last in names and not timed and means not in (BARE_MEAN, BARE_MAX)):
            return Column(means)
    if plain in RUN_NAMES:
        return Column(RUN)
    if ITEMS_PER_S.search(name) and not MONEY_AND_GPU & set(words):
        return Column("items_per_s")
    if ("$" in name or {"usd", "price"} & set(words)) and {"gpu", "gpus"} & set(words) and HOUR & set(words):
        return Column("usd_per_gpu_hour")
    if rate_of_tokens := _tokens_per_s(words):
        return Column(rate_of_tokens)
    if {"gpu", "gpus"} & set(words) and {"h", "hours", "hrs"} & set(words) and not {"usd", "per", "price", "cost"} & set(words):
        return Column("gpu_hours")
    units = [word for word in words if word in UNITS]
    if len(units) == 1 and len(words) > 1 and not MONEY_AND_GPU & set(words):
        rate = _rate(words, UNITS[units[0]])
        if rate is not None:
            return rate if rate.means else None
    if not units and not TIME & set(words):
        statistic = _gpus(words) or _statistic(words)
        return None if statistic is None else Column(statistic)
    seconds = None if MONEY_AND_GPU & set(words) or len(units) > 1 else _seconds(words)
    return None if seconds is None else Column(seconds, UNITS[units[0]] if units else 1.0)


def _tokens_per_s(words: list[str]) -> str | None:
    """Whether a name is of generated tokens per second, of all GPUs or of each."""
    of = set(words)
    if not of & {"tps", "tgs"} and not (of & {"tok", "toks", "token", "tokens"} and of & {"s", "sec", "second"}):
        return None
    rest = of - {"tok", "toks", "token", "tokens", "s", "sec", "second", "tps", "tgs", "per", "throughput", "output", "gen",
                 "generation", "generated", "decode", "decoding", "rollout", "avg", "mean"}  # fmt: skip
    if rest & {"ms", "latency", "first", "time"} or rest - {"gpu", "gpus", "device"}:
        return None
    return "tokens_per_gpu_s" if rest or "tgs" in of else "tokens_per_s"


def _rate(words: list[str], unit: float) -> Column | None:
    """What ``tokens per s`` or ``s per step`` means: without a meaning for rates that are not known, None for no rate."""
    kept = [word for word in words if word not in {"per", *MEAN_WORDS, "median"}]
    if len(kept) != 2 or TIME & set(words):
        return None
    if kept[0] in UNITS and kept[1] in COUNT_WORDS:
        return Column("step_s" if kept[1] in STEP_WORDS else "", unit)
    if kept[1] in UNITS and kept[0] in COUNT_WORDS - STEP_WORDS and ("per" in words or kept[0].startswith("tok")):
        return Column("tokens_per_s" if kept[0].startswith("tok") and unit == 1.0 else "")
    return None


def _seconds(words: list[str]) -> str | None:
    """Which seconds a name says."""
    if OTHER_STATISTICS & set(words):
        return None
    core = {word for word in words if word not in UNITS and word not in TIME and word not in FILLER}
    if core & {"request", "requests", "response", "responses", "trajectory"}:
        return "request_s_max" if core & MAX_WORDS else "request_s_mean" if MEAN_WORDS & set(words) else None
    if core & MAX_WORDS:
        return None
    if not core:
        if words[0] == "per" or not set(words) & set(UNITS):
            return None
        return SECONDS_OR_CLOCK if {"time", "clock", "wall", "elapsed", "wallclock"} & set(words) else BARE_SECONDS
    if core <= STEP_WORDS:
        return "step_s"
    if core <= {"run", "job"} or (core <= {"train", "training"} and {"wall", "wallclock"} & set(words)):
        return "run_s"
    return next((means for means, of_phase in PHASES if core & of_phase), None)


def _gpus(words: list[str]) -> str | None:
    if "gpus" not in words:
        return None
    if GENERATING & set(words) and LEARNING & set(words):
        return "gpus"
    return "gpus_generate" if GENERATING & set(words) else "gpus_train" if LEARNING & set(words) else None


def _statistic(words: list[str]) -> str | None:
    """Which statistic of a step's lengths a name says."""
    of = set(words)
    if of & {"rate", "ratio", "share", "frac", "fraction"}:
        cut = of & {"truncated", "truncation", "clipped", "cut", "capped"} or {"cap", "hit"} <= of
        return "truncation_rate" if cut else None
    if not of & LENGTH_WORDS or of & (OTHER_STATISTICS | {"terminated", "median"}):
        return None
    if of & MEAN_WORDS:
        if of & {"prompt", "prompts", "input", "context"}:
            return "prompt_tokens_mean"
        return "sequence_tokens_mean" if of & {"seq", "sequence", "total"} else "response_tokens_mean"
    if of & {"prompt", "prompts", "input", "context", "seq", "sequence", "total"} or not of & MAX_WORDS:
        return None
    return "response_tokens_max" if "longest" in of else LIMIT_OR_MAX


def columns_of(names: Collection[str]) -> dict[str, Column]:
    """Return what the columns of a table hold, by name; those that mean nothing known are left out.

    Names that mean something only beside others are decided: the longest beside a mean, seconds of a step beside its number.
    """
    framework = framework_of(names)
    own = set() if framework is None else set(NAMES[framework].own())
    found = {name: column for name in names if name not in own and (column := understood(name)) is not None}
    if any(_plain(name) in OF_TRAINING for name in names):
        lengths = (name for name in names if name not in own and _plain(name) in RESPONSE_LENGTHS)
        found |= dict.fromkeys(lengths, Column("response_tokens_mean"))
    means = {column.means for column in found.values()} | set(() if framework is None else NAMES[framework].columns)
    of_runs = STEP not in means and bool(means & {RUN, "gpus", "gpus_generate", NODES, "steps_done", "items"})
    mean = "response_tokens_mean" in means or BARE_MEAN in means
    decided = {
        BARE_SECONDS: "run_s" if of_runs else "step_s" if STEP in means else None,
        SECONDS_OR_CLOCK: "run_s" if of_runs else None,
        BARE_MEAN: "response_tokens_mean" if BARE_MAX in means and STEP in means else None,
        BARE_MAX: "response_tokens_max" if BARE_MEAN in means and STEP in means else None,
        LIMIT_OR_MAX: "response_tokens_max" if mean else None,
        "steps_done": "steps_done" if of_runs else None,
        "items": "items" if of_runs else "responses",
        "items_per_s": "items_per_s" if of_runs else None,
        "batch": "batch" if of_runs else None,
        "gpu_hours": "gpu_hours" if of_runs else None,
        "usd_per_gpu_hour": "usd_per_gpu_hour" if of_runs else None,
        "tokens_per_pass": "tokens_per_pass" if of_runs else None,
    }
    columns = {}
    for name, column in found.items():
        meaning = decided.get(column.means, column.means)
        if meaning is not None:
            columns[name] = Column(meaning, column.factor)
    of_framework = (
        set()
        if framework is None
        else {key for key in ("run_s", "step_s") if set(NAMES[framework].own(key)).intersection(names)}
    )
    if of_runs and not {"run_s", "step_s"} & ({column.means for column in columns.values()} | of_framework):
        others = [name for name in names if name not in {*columns, *own} and _unit_of_time(name) is not None]
        if len(others) == 1:  # whatever it is called, it is the only time of a run
            columns[others[0]] = Column("run_s", _unit_of_time(others[0]) or 1.0)
    return columns


def _unit_of_time(name: str) -> float | None:
    """The seconds of the unit of a name that says a time, and nothing of requests, GPUs or single statistics; else None."""
    words = re.findall(r"[a-z0-9]+", name.lower())
    units = [word for word in words if word in UNITS]
    other = {*MONEY_AND_GPU, *OTHER_STATISTICS, *COUNT_WORDS, "latency", "ttft", "tpot", "itl", "startup", "start", "load"}
    return UNITS[units[0]] if len(units) == 1 and TIME & set(words) and not other & set(words) else None


def framework_of(names: Collection[str]) -> str | None:
    """Return the framework that has most of the names, of those that have at least two; None if none has.

    Names without a folder, such as ``reward``, are anybody's.
    """
    present = {name for name in names if "/" in name}
    shared = {key: len(present.intersection(one.own())) for key, one in NAMES.items()}
    best = max(shared, key=lambda key: shared[key])
    return best if shared[best] > 1 else None


def is_of_steps(names: Collection[str]) -> bool:
    """Return whether a table with these columns has rows that are steps or runs, and no responses."""
    return not _of_responses(names) and bool(_signs(names))


def signs_of_steps(names: Collection[str]) -> list[str]:
    """Return the columns that a table of responses would not have: seconds of a step's phases, means over responses."""
    framework = framework_of(names)
    of_steps = (*TIMES, "response_tokens_mean")
    own = set() if framework is None else set(NAMES[framework].own(*of_steps))
    columns = columns_of(names)
    return [name for name in names if name in own or (name in columns and columns[name].means in (*of_steps, "run_s"))]


def _of_responses(names: Collection[str]) -> bool:
    """Whether a column is the length or text of one response, or names a prompt."""
    plain = {_plain(name) for name in names}
    lengths = set() if plain & OF_TRAINING else plain & RESPONSE_LENGTHS
    return bool(lengths or plain & (PROMPTS | RESPONSE_TEXTS))


def _signs(names: Collection[str]) -> set[str]:
    """What of a step or run the columns hold, where that is enough to be sure; else empty."""
    framework = framework_of(names)
    means = {column.means for column in columns_of(names).values()}
    if framework is not None:
        means |= {column for column in NAMES[framework].columns if set(names).intersection(NAMES[framework].own(column))}
    times = means & {*TIMES, "run_s"}
    paces = means & {"tokens_per_s", "tokens_per_gpu_s", "items_per_s", "gpu_hours"}
    if RUN in means and STEP not in means and paces:
        return paces
    keyed = means & {STEP, RUN, "gpus", "gpus_generate", "gpus_train", NODES}
    sure = times & {"step_s", "run_s"} or (keyed and (times or "response_tokens_mean" in means))
    return (times or keyed) if sure else set()


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def detect(path: Path) -> bool:
    """Return whether the path is a file with columns of steps or runs: csv, jsonl, parquet, or a text that holds a table."""
    if not path.is_file():
        return False
    names: dict[str, Callable[[Path], Collection[str]]] = {
        ".csv": csv_header, ".jsonl": lambda file: list(first_record(file)), ".parquet": parquet_columns,
    }  # fmt: skip
    suffix = suffix_of(path)
    return (suffix in names and is_of_steps(names[suffix](path))) or _written(path) is not None


def _means(name: str) -> str | None:
    column = understood(name)
    return None if column is None else column.means


def _written(path: Path, note: Callable[[str], None] = lambda text: None) -> list[tuple[int, dict[str, Any]]] | None:
    """Return the rows of the first table of steps or runs in a text, with texts as numbers; None if it has none.

    A table with a metric per row is turned.
    """
    lines = text_of(path)
    for table in (*tables(lines), *phase_lists(lines)):
        notes: list[str] = []
        for one in _turns(table, notes.append):
            said = [*notes]
            rows = normalised(in_seconds(one.rows, _means, said.append), _means, said.append)
            names = list(dict.fromkeys(name for _, row in rows for name in row))
            if len(rows) and is_of_steps(names) and all(RUN not in row or row[RUN] for _, row in rows):
                for sentence in said:
                    note(sentence)
                if path.suffix.lower() != ".csv":
                    note(f"table: found in line {one.line:,} of the text")
                return rows
    return None


def _turns(table: TextTable, note: Callable[[str], None]) -> list[TextTable]:
    """The ways to read a table, the likeliest first: as it is, or with a row per column. Rows that are phases are no runs."""
    if rows_are_phases(table, _means):
        step = by_phase(table, note)
        return [] if step is None else [step]
    if (drafts := by_batch(table, _means)) is not None:
        return [drafts]
    return [table.turned(), table] if _is_turned(table) else [table, table.turned()]


def _is_turned(table: TextTable) -> bool:
    """Whether the first column has names of quantities, as the header of a table with a row per run has."""
    header = [name for _, row in table.rows[:1] for name in list(row)[1:]]
    first = [str(next(iter(row.values()), "")) for _, row in table.rows]
    known = [sum(_means(f"{name} (s)") is not None for name in names) for names in (first, header)]
    return known[0] > known[1]


def read(reading: ImportSession) -> Iterator[pd.DataFrame]:
    """Report one row of scalars per step; yields no responses.

    Raises:
        TraceError: a known column has no number, or the columns do not say what a row is.
    """
    path = reading.path
    written = None
    if suffix_of(path) not in (".csv", ".jsonl", ".parquet") or not is_of_steps(
        csv_header(path) if suffix_of(path) == ".csv" else [STEP, "step_s"]
    ):
        written = _written(path, reading.note)
    if written is None and suffix_of(path) not in (".csv", ".jsonl", ".parquet"):
        raise TraceError(
            f"{path}: holds no table of steps or runs; a csv, jsonl or parquet file, or a text with such a table, is needed"
        )
    reading.expect([path])
    rows = written
    if rows is None:
        rows = normalised(in_seconds(_rows(reading), _means, reading.note), _means, reading.note)
    names = list(dict.fromkeys(name for _, row in rows for name in row))
    if not is_of_steps(names):
        raise TraceError(
            f"{path}: is no table of steps or runs, it has the columns {listed(names)}; seconds of a step or run "
            "(such as step_s) and no lengths of single responses are needed"
        )
    table = _Table(reading, names, text=written is not None)
    for number, row in rows:
        table.add(number, row)
    reading.scalars += table.steps()
    yield from ()


def _rows(reading: ImportSession) -> list[tuple[int, dict[str, Any]]]:
    """Return the cells of every row by column, and its number in the file, from 1."""
    path = reading.path
    rows: list[tuple[int, dict[str, Any]]] = []
    if suffix_of(path) == ".jsonl":
        for record in reading.records(path):
            rows.append((record.line, dict(record.values)))
            reading.guard.check_rows(path, len(rows))
            _refuse_many(path, len(rows))
        return rows
    header = pd.Index(csv_header(path) if suffix_of(path) == ".csv" else [])
    if header.has_duplicates:
        twice = header[header.duplicated()][0]
        raise TraceError(f"{path}: column '{listed([twice])}' appears twice; every name may appear only once")
    frames = reading.csv(path, None) if suffix_of(path) == ".csv" else reading.parquet(path, lambda name, nested: not nested)
    for frame in frames:
        reading.guard.check_rows(path, len(rows) + len(frame))
        _refuse_many(path, len(rows) + len(frame))
        frame.columns = [str(name) for name in frame.columns]
        rows += [(int(at) + 1, row) for at, row in zip(frame.index, frame.to_dict("records"), strict=True)]
    return [(number, {str(name): cell for name, cell in row.items()}) for number, row in rows]


def _refuse_many(path: Path, rows: int) -> None:
    if rows > MOST_ROWS:
        raise TraceError(
            f"{path}: has more than {MOST_ROWS:,} rows, and its columns are those of steps or runs; if each is a response, "
            "read it with --from table"
        )


class _Table:
    """The rows of a table of steps, with their runs and steps.

    Args:
        names: all columns. text: whether people wrote the table into a text: what is no number in it is unknown.
    """

    def __init__(self, reading: ImportSession, names: list[str], *, text: bool) -> None:
        self.reading, self.path, self.text = reading, reading.path, text
        self.names = [name for name in names if len(name) <= LONGEST_NAME]
        if len(self.names) < len(names):
            left_out = counted(len(names) - len(self.names), "column")
            reading.note(f"{left_out} left out, as a name has more than {LONGEST_NAME} characters")
        self.columns = columns_of(self.names)
        self.framework = framework_of(self.names)
        named = sorted((n for n in self.columns if self.columns[n].means == RUN), key=lambda n: RUN_NAMES.index(_plain(n)))
        self.run = named[0] if named else None
        for further in named[1:]:  # it is a text of the run, no name of another one
            del self.columns[further]
        self.kinds = [name for name in self.names if set(words_of(name)) & KIND_WORDS and name != self.run]
        self.known = set(self.columns) | set(() if self.framework is None else NAMES[self.framework].own())
        self.found: list[tuple[str | None, dict[str, float]]] = []
        self.left_out: dict[str, int] = {}

    def add(self, number: int, row: Mapping[str, Any]) -> None:
        """Add a row of the file."""
        own: dict[str, float] = {}
        for name in self.names:
            if name != self.run and (value := self._number(number, name, row.get(name))) is not None:
                own[name] = value
        values: dict[str, float] = {clean(name): value for name, value in own.items() if name not in (STEP, RUN)}
        if self.framework is not None:
            values |= NAMES[self.framework].standard(own)
        of_words: dict[str, float] = {}
        for name, column in self.columns.items():
            if name in own and column.means not in values.keys() - {name}:
                of_words[column.means] = of_words.get(column.means, 0.0) + column.factor * own[name]
        nodes, of_node = of_words.pop(NODES, None), of_words.pop(GPUS_PER_NODE, None)
        if nodes is not None and of_node is not None:
            of_words.setdefault("gpus", nodes * of_node)
        step = of_words.get(STEP)
        if step is not None and not (step.is_integer() and 0 <= step <= LARGEST_WHOLE_NUMBER):
            raise TraceError(f"{self.path}: row {number} has the step {step:g}; a whole number of 0 or more is needed")
        text = None if self.run is None else row.get(self.run)
        kind = next((match[1] for name in self.kinds if (match := GPU_NAME.fullmatch(str(row.get(name)).strip()))), None)
        if text is not None and kind is not None and not GPU_NAME.search(str(text)):
            text = f"{text}, {kind}"
        blank = text is None or str(text).strip().lower() in BLANK - {"none"}  # it is what a run without drafts is called
        self.found.append((None if blank else clean(" ".join(str(text).split())[:LONGEST_NAME]), {**values, **of_words}))

    def steps(self) -> list[dict[str, Any]]:
        """Return the rows as scalars: one dict per row, with ``step``, and ``run`` where the table has several runs."""
        for name, count in self.left_out.items():
            self.reading.note(f"column '{shown(name, 60)}': {counted(count, 'infinite number')} left out")
        self.reading.framework = self.framework or ""
        used = {column.means: name for name, column in reversed(self.columns.items()) if column.means in STANDARD}
        if self.framework is not None:
            self.reading.note(f"scalars: seconds of phases under {NAMES[self.framework].title}'s names")
        renamed = [f"{means} from '{shown(name, 60)}'" for means, name in used.items() if means != name]
        if renamed:
            self.reading.note(f"columns: {listed(reversed(renamed))}")
        runs = self._runs()
        self._gpus_of_names(runs)
        self._turns_of_names(runs)
        if len(set(runs)) > MOST_RUNS:
            raise TraceError(
                f"{self.path}: has {len(set(runs)):,} runs, more than the {MOST_RUNS:,} that are compared; if each row "
                "is a step, a column step with its number is needed"
            )
        rows: list[dict[str, Any]] = []
        of_run: dict[str | None, int] = {}
        for run, (_, values) in zip(runs, self.found, strict=True):
            at = of_run[run] = of_run.get(run, -1) + 1
            key = {STEP: int(values.pop(STEP, at))}
            rows.append({**values, **key} if run is None else {**values, **key, RUN: run})
        of_what = "a step" if self._has(STEP) or runs == [None] * len(runs) else "a run or layout"
        self.reading.note(f"table: {counted(len(rows), 'row')}, each of {of_what}")
        return rows

    def _gpus_of_names(self, runs: list[str | None]) -> None:
        """Take the GPUs from the names of runs, where no column has them and all names do: ``8 GPUs``, ``2x8xH100``."""
        named = [None if run is None else GPUS_IN_NAME.search(run) for run in runs]
        if any(self._has(name) for name in ("gpus", "gpus_generate", "gpus_train", NODES)) or not all(named):
            return
        for (_, values), match in zip(self.found, named, strict=True):
            if match is not None and (count := gpus(match[0])) is not None:
                values.setdefault("gpus", count)

    def _turns_of_names(self, runs: list[str | None]) -> None:
        """Take the wait of a run that is called synchronous as its generation: training waits for all of it."""
        generate: dict[str, None] = {}
        for run, (_, values) in zip(runs, self.found, strict=True):
            if run is None or not TAKES_TURNS.match(run) or "wait_s" not in values:
                continue
            if "generate_s" in values:
                del values["wait_s"]  # it is no wait beside generation
            else:
                values["generate_s"] = values["wait_s"]
                generate[run] = None
        if generate:
            self.reading.note(
                f"training waits for all of generation in runs that take turns by their names: {listed(generate)}"
            )

    def _has(self, means: str) -> bool:
        return any(column.means == means for column in self.columns.values())

    def _runs(self) -> list[str | None]:
        """The name of each row's run: as the table has it, else its GPUs where rows are runs; None where it is the only one."""
        if self.run is not None:
            named = [run if run is not None else f"row {at + 1}" for at, (run, _) in enumerate(self.found)]
            if self._has(STEP) or len(set(named)) == len(named):
                return list(named)
            if all("batch" in values for _, values in self.found):
                named = [f"{name}, batch {values['batch']:g}" for name, (_, values) in zip(named, self.found, strict=True)]
            if len(set(named)) == len(named):
                return list(named)
            of_gpus = [f"{name}, {_of_gpus(values) or f'row {at + 1}'}" for at, (name, (_, values)) in
                       enumerate(zip(named, self.found, strict=True))]  # fmt: skip
            return list(of_gpus if len(set(of_gpus)) == len(of_gpus) else (f"{n} ({at})" for at, n in enumerate(named, 1)))
        names = [_of_gpus(values) for _, values in self.found]
        steps = [values.get(STEP) for _, values in self.found]
        if len(set(names)) == 1 or (self._has(STEP) and len(set(steps)) == len(steps)):
            return [None] * len(names)
        return [name or f"row {at + 1}" for at, name in enumerate(names)]

    def _number(self, row: int, name: str, cell: Any) -> float | None:
        """A cell's number; None where it is blank, infinite, or a text in a column that means nothing known."""
        if is_number(cell):
            value = float(cell) if (number := finite(cell)) is None else number
        else:
            text = "" if cell is None or not isinstance(cell, str) else cell.strip().lower()
            if text in BLANK or not isinstance(cell, str):
                return None
            matched = NUMBER.fullmatch(text)
            unit = 1.0 if matched is None or not matched[2] else self._unit(name, matched[2])
            if matched is not None and unit is not None:
                value = float(matched[1]) * unit
            elif text.lstrip("+-") in ("inf", "infinity"):
                value = float("inf")
            elif name in self.known and self.text:
                self.reading.note(f"row {row}, column '{shown(name, 60)}': {shown(cell, 60)!r} is no number and was left out")
                return None
            elif name in self.known:
                raise TraceError(
                    f"{self.path}: row {row}, column '{shown(name, 60)}' is {shown(cell, 60)!r}; a number is needed"
                )
            else:
                return None
        if finite(value) is None:  # NaN is unknown
            self.left_out[name] = self.left_out.get(name, 0) + (value == value)
            return None
        return value

    def _unit(self, name: str, unit: str) -> float | None:
        """By what a cell with a unit of its own is multiplied, before its column's factor is; None for a unit that is wrong."""
        column = self.columns.get(name)
        if unit == "%":
            return 0.01 if column is not None and column.means.endswith("_rate") else None
        return UNITS[unit] / (1.0 if column is None else column.factor) if unit in UNITS else None


def _of_gpus(values: Mapping[str, float]) -> str:
    """The name of a layout: its GPUs; empty where they are unknown."""
    sides = [values[name] for name in ("gpus_generate", "gpus_train") if name in values]
    counts = sides if len(sides) == 2 else [values["gpus"]] if "gpus" in values else sides
    return f"{' + '.join(f'{count:g}' for count in counts)} GPUs" if counts else ""


FORMAT = Format("steps", "a table with one row per step or run (csv, jsonl or parquet)", detect, read)
