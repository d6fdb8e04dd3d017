"""What rows and columns are in tables and lists that people write: phases of a step, batches, seconds without a unit.

A table whose rows are phases of a step has the seconds of one step, or of the step of each run that has a column. Its rows are
never runs to compare.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rlhfless.trace.importers.names import NAMES
from rlhfless.trace.importers.names import PHASES as OF_FRAMEWORKS
from rlhfless.trace.importers.record import finite, is_number
from rlhfless.trace.importers.text_table import TextTable
from rlhfless.trace.importers.written_cells import ASIDE, BLANK, MARKS, SECONDS, STEP_S, amount
from rlhfless.trace.schema.casts import listed

Means = Callable[[str], str | None]
Note = Callable[[str], None]

TIME = frozenset({"time", "times", "timing", "duration", "took", "wall", "clock", "wallclock", "elapsed"})
FILLER = frozenset(
    {"per", "of", "for", "the", "in", "to", "and", "each", "total", "sum", "mean", "avg", "average", "median", "p50"}
)
STEP_WORDS = frozenset({"step", "iteration", "iter", "it", "e2e", "loop"})
PHASES: tuple[tuple[str | None, frozenset[str]], ...] = (
    ("wait_s", frozenset({"wait", "waiting", "exposed", "stall", "stalled", "starved", "blocked"})),
    (None, frozenset({"eval", "evaluation", "val", "valid", "validation", "test", "testing", "checkpoint", "checkpoints",
                      "checkpointing", "save", "saving"})),
    ("sync_s", frozenset({"sync", "syncing", "broadcast", "refit", "transfer", "weight", "weights"})),
    ("prepare_s", frozenset({"logprob", "logprobs", "logp", "prob", "probs", "ref", "reference", "reward", "rewards", "scoring",
                             "adv", "advantage", "advantages", "value", "values", "prepare", "preparation", "experience"})),
    ("learn_s", frozenset({"train", "training", "learn", "learning", "learner", "update", "optimizer", "policy", "actor",
                           "critic", "backward", "ppo"})),
    ("generate_s", frozenset({"gen", "generate", "generation", "generating", "rollout", "rollouts", "sampling", "decode",
                              "decoding", "collect"})),
)  # fmt: skip
"""Words in names of seconds; the first phase that one belongs to counts, None is a phase without a standard column."""
OF_PHASES = frozenset().union(*(words for _, words in PHASES))
TOTALS = frozenset({"total", "sum", "overall", "\u603b\u8ba1", "\u5408\u8ba1", "\u603b"})
BESIDE = frozenset(
    {"log", "old", "model", "models", "forward", "fwd", "bwd", "pass", "compute", "other", "others", "overhead", "data", "traj",
     "trajectories", "sequences", "phase", "nccl", "fsdp", "vllm", "s"}
)  # fmt: skip
"""Words that stand in names of phases beside those that name one."""
NEVER_BARE = frozenset(
    {"reward", "rewards", "value", "values", "policy", "rollouts", "weight", "weights", "test", "it", "val", "loop"}
)
"""Words that name other numbers of a step, too: without a unit these are no seconds."""
OWN_TIMES = frozenset(
    name for one in NAMES.values() for of in (one, one.tracked()) for name in of.own("step_s", "wait_s", *OF_FRAMEWORKS)
    if "/" in name
)  # fmt: skip
NO_SECONDS = re.compile(
    r"%|\b(?:share|percent\w*|fraction|ratio|gpus?|mem(?:ory)?|gi?b|tok\w*|mfu|util\w*|calls?|count|p\d\d|std|min|max)\b|\u5360\u6bd4",
    re.I,
)  # fmt: skip
"""Headings of columns that hold no seconds of the phases, or only their extremes."""
UNIT = re.compile(r"(?:^|[\s_(\[])(ms|s|secs?|seconds?|mins?|minutes?|h|hrs?|hours?)[)\]]?\s*$", re.I)
IN_MINUTES = re.compile(r"[(\[]\s*min\s*[)\]]\s*$", re.I)
SAME = 0.03  # relative difference of seconds that are taken as equal; people round
LISTED = re.compile(
    r"(?P<name>[^:=\d\u2248~]{1,60}?)[*`]*(?: ?[:=\u2248~]+ ?| )"
    r"(?P<time>[*~\u2248]*\d\S*(?: \d{1,2} ?s\b| [a-z]\S*){0,3}(?: ?\([^()]{0,40}\))?)(?: [\d.]+ ?%)?"
)
"""A phase and its seconds, in a line of their own or apart by commas, with a remark or a percentage."""
TOKENS_PER_S = re.compile(r"[(\[]?\s*\btok(?:en)?s?\s*(?:/|per )\s*s(?:ec(?:ond)?)?\b\s*[)\]]?", re.I)
WITHOUT = re.compile(r"\b(?:no|none|without|w/o|base(?:line)?|vanilla|plain|off|ar)\b", re.I)
HEADINGS = frozenset({"phase", "phases", "stage", "component", "operation", "part", "timer", "\u9636\u6bb5"})
"""Headings above names of phases."""
LONGEST_PART = 120  # characters of a phase in a list
FEWEST, MOST = 2, 30  # phases of a step


def words_of(name: str) -> list[str]:
    """Return the words of a name, lower case and without a remark in brackets at its end."""
    text = ASIDE.sub("", name.translate(MARKS))
    return re.findall(r"[a-z0-9]+|[\u4e00-\u9fff]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text).lower())


def is_total(name: str) -> bool:
    """Return whether a name is of the whole step: ``step``, ``Total``, ``total per step``, ``e2e time``."""
    words = set(words_of(name))
    return bool(words & (STEP_WORDS | TOTALS)) and words <= STEP_WORDS | TOTALS | TIME | FILLER


def is_phase(name: str) -> bool:
    """Return whether a name is of a phase of a step, or of the whole step, and of nothing else.

    Example:
        >>> [is_phase(name) for name in ("gen", "Weight sync (NCCL)", "timing_s/step", "TP=2 rollout", "value")]
        [True, True, True, False, False]
    """
    if name in OWN_TIMES or name.startswith("timing_s/"):
        return True
    words = set(words_of(name))
    known = OF_PHASES | STEP_WORDS | TOTALS | TIME | FILLER | BESIDE
    return is_total(name) or (bool(words & OF_PHASES) and words <= known and not words <= {"value", "values"})


def _kind(name: str) -> str | None:
    words = set(words_of(name.rpartition("/")[2]))
    return next((kind or "beside" for kind, of in PHASES if words & of), None)


def rows_are_phases(table: TextTable, means: Means) -> bool:
    """Return whether the rows of a table are phases of a step, by their names and the headings."""
    heads = list(table.rows[0][1])
    names = [str(row.get(heads[0], "")) for _, row in table.rows]
    if means(heads[0]) == "run" or sum(map(is_phase, heads[1:])) > 1:
        return False
    of_phases = bool(set(words_of(heads[0])) & HEADINGS) or any(map(is_total, names))
    if any(map(is_step_time, heads[1:])) and not of_phases:
        return False
    phases = sum(map(is_phase, names))
    if phases > 1 and 2 * phases >= len(names):
        return True
    kinds = [_kind(name) for name in names]
    return all(kinds) and len(set(kinds)) > 2


def is_step_time(name: str) -> bool:
    """Return whether a heading says the time of a step, which a table with a row per phase does not have."""
    words = set(words_of(name))
    return bool(words & STEP_WORDS) and not NO_SECONDS.search(name) and words <= STEP_WORDS | TIME | FILLER | {"s"}


def by_phase(table: TextTable, note: Note) -> TextTable | None:
    """Return a table of phases with a row per step and a column per phase; None if no whole step can be identified.

    Columns of percentages and of extremes are left out. A phase that is the sum of others is left out, with a note. The step is
    the sum of phases whose percentages make 100.
    """
    first, *heads = table.rows[0][1]
    rows = {str(row.get(first, "")): row for _, row in table.rows}
    kinds = {_kind(name) for name in rows if is_phase(name)}
    totals = [name for name in rows if is_total(name)]
    whole = [name for name in rows if name in OWN_TIMES and name.endswith(("step", "step_time"))]
    if not totals and not whole and not {"generate_s", "learn_s"} <= kinds:
        return None
    kept = [head for head in heads if not NO_SECONDS.search(IN_MINUTES.sub("", head))]
    steps = [of for head in kept if (of := table.column_of_runs(head)) is not None]
    turned: list[tuple[int, dict[str, Any]]] = []
    for at, head in enumerate(steps):
        unit = UNIT.search(head)
        cells = {
            name: _united(str(row.get(head, "")), unit[1] if unit and is_phase(name) else "") for name, row in rows.items()
        }
        for name in _sums(cells):
            note(f"'{name}' is the sum of other phases of the step and was left out")
            del cells[name]
        if len(totals) == 1 and totals[0] in cells:
            cells = {"step total" if name == totals[0] else name: cell for name, cell in cells.items()}
        elif not totals and not whole and len(steps) == 1 and _are_shares_of_all(rows.values()):
            known = [
                found.value * SECONDS.get(found.unit, 1.0) for cell in cells.values() if (found := amount(cell)) is not None
            ]
            cells["step total"] = f"{sum(known)!r} s"
            note("the step is the sum of its phases, whose percentages make 100")
        named = len(steps) > 1 or not (totals or whole or "step total" in cells)
        turned.append((table.line + at, {**({"run": UNIT.sub("", head).strip() or head} if named else {}), **cells}))
    return TextTable(table.line, turned) if turned else None


def _are_shares_of_all(rows: Iterable[Mapping[str, Any]]) -> bool:
    """Whether a column of percentages makes 100."""
    shares: dict[str, float] = {}
    for row in rows:
        for head, cell in row.items():
            if (found := amount(str(cell))) is not None and found.unit == "%":
                shares[head] = shares.get(head, 0.0) + found.value
    return any(abs(share - 100) <= 100 * SAME for share in shares.values())


def by_batch(table: TextTable, means: Means) -> TextTable | None:
    """Return a table with a row per batch and method, of one with a row per batch and a column of tokens/s per method.

    The acceptance length is of the one method that is not called plain; None for other tables.
    """
    first, *heads = table.rows[0][1]
    methods = {head: TOKENS_PER_S.sub("", head).strip(" -,:") for head in heads if TOKENS_PER_S.search(head)}
    methods = {head: re.sub(r"^\((.*)\)$", r"\1", method) for head, method in methods.items()}
    if means(first) != "batch" or len(methods) < 2 or not all(methods.values()):
        return None
    accepted = next((head for head in heads if means(head) == "tokens_per_pass"), None)
    drafted = [head for head, method in methods.items() if not WITHOUT.search(method)]
    rows: list[tuple[int, dict[str, Any]]] = []
    for number, row in table.rows:
        for head, method in methods.items():
            cells = {"run": method, "batch": row.get(first, ""), "tokens_per_s": row.get(head, "")}
            if accepted is not None and drafted == [head]:
                cells["acceptance length"] = row.get(accepted, "")
            rows.append((number, cells))
    return TextTable(table.line, rows)


def _united(cell: str, unit: str) -> str:
    """Return a cell with the unit of its heading, where it has none of its own."""
    found = amount(cell) if unit else None
    return cell if found is None or found.unit else f"{found.value!r} {unit}"


def _sums(cells: Mapping[str, str]) -> list[str]:
    """The phases named only training that hold the sum of the others but generation."""
    values = {name: found.value for name, cell in cells.items() if is_phase(name) and (found := amount(cell)) is not None}
    others = {name for name in values if not is_total(name) and _kind(name) in ("prepare_s", "learn_s")}
    generic = {name for name in others if set(words_of(name)) <= {"train", "training", *TIME, *FILLER}}
    parts = sum(values[name] for name in others - generic)
    if len(others - generic) < FEWEST:
        return []
    return [name for name in generic if abs(values[name] - parts) <= SAME * parts]


class _Column(NamedTuple):
    values: list[float | None]
    unit: str | None


def _numbers(cells: Sequence[Any]) -> _Column | None:
    """The numbers of a column and the unit that all of them have, None where they differ; None for a column of texts."""
    values: list[float | None] = []
    units = set()
    for cell in cells:
        if is_number(cell):  # of a file with many rows
            values.append(finite(cell))
            units.add("")
            continue
        text = cell if isinstance(cell, str) else ""
        if text.translate(MARKS).strip().lower() in BLANK:
            values.append(None)
            continue
        found = amount(text)
        if found is None:
            return None
        values.append(found.value)
        units.add(found.unit)
    return _Column(values, units.pop() if len(units) == 1 else None) if units else None


def in_seconds(rows: Sequence[tuple[int, Mapping[str, Any]]], means: Means, note: Note) -> list[tuple[int, dict[str, Any]]]:
    """Return rows whose columns of phases have seconds in their names, where neither name nor cells have a unit.

    Numbers are taken as seconds only beside other seconds of a step, where none is longer than the step. Whole numbers alone,
    without the time of a step, may be counts and are not taken.

    Args:
        rows: number in the file and cells by column. means: what a name says that its column holds. note: takes sentences.
    """
    names = list(dict.fromkeys(name for _, row in rows for name in row))
    times = ("step_s", "generate_s", "wait_s", "prepare_s", "learn_s", "sync_s")
    timed: dict[str, _Column] = {}
    bare: dict[str, _Column] = {}
    for name in names:
        named = isinstance(name, str) and len(name) < 100 and is_phase(name)
        column = _numbers([row.get(name) for _, row in rows]) if named or means(name) in times else None
        if column is None:
            continue
        if means(name) in times or column.unit in SECONDS:
            timed[name] = column
        elif column.unit == "" and not set(words_of(name)) & NEVER_BARE and "/" not in name:
            bare[name] = column
    phases = {name: column for name, column in bare.items() if not is_total(name)}
    whole = next((column for name, column in timed.items() if means(name) == "step_s" or is_total(name)), None)
    renamed: dict[str, str] = {}
    if len(phases) > 1:  # beside phases and nothing else, rewards are seconds, too
        others = [
            name for name in names if name not in bare and name not in timed and means(name) not in ("run", "step", "gpus")
        ]
        scored = {name: _numbers([row.get(name) for _, row in rows]) for name in others}
        known = {name: one for name, one in scored.items() if one is not None}
        if len(known) == 1 and all(set(words_of(name)) <= {"reward", "rewards"} for name in known):
            ((name, column),) = known.items()
            if column.unit == "" and all(value is None or value > 1 for value in column.values):
                phases[name] = column
    if whole is None:
        parts = [column for name, column in {**timed, **phases}.items() if not is_total(name)]
        for name in (name for name in bare if is_total(name)):
            if parts and _holds(bare[name], parts):
                whole, renamed[name] = bare[name], "step total (s)"
                break
    certain = bool(timed) or any(
        value is not None and not value.is_integer() for one in phases.values() for value in one.values
    )
    if whole is None and not (certain and {"generate_s", "learn_s"} <= {_kind(name) for name in (*phases, *timed)}):
        return [(number, dict(row)) for number, row in rows]
    renamed |= {name: f"{name} (s)" for name, column in phases.items() if whole is None or _within(column, whole)}
    if renamed:
        note(f"numbers without a unit are taken as seconds: {listed(renamed)}")
    return [(number, {renamed.get(name, name): cell for name, cell in row.items()}) for number, row in rows]


def _within(part: _Column, whole: _Column) -> bool:
    pairs = [(one, of) for one, of in zip(part.values, whole.values, strict=True) if one is not None and of is not None]
    return all(0 <= one <= (1 + SAME) * of for one, of in pairs)


def _holds(whole: _Column, parts: Sequence[_Column]) -> bool:
    """Whether the numbers of a column are the seconds of whole steps: no part is longer, and some take much of them."""
    if not all(_within(part, whole) for part in parts):
        return False
    for at, of in enumerate(whole.values):
        known = [value for part in parts if (value := part.values[at]) is not None]
        if of is not None and known and sum(known) < 0.3 * of:
            return False
    return True


def phase_lists(lines: Sequence[str]) -> Iterator[TextTable]:
    """Yield the lists of a step's phases, a line each with its seconds: ``gen: 128 s``. Lists of equal names are steps."""
    blocks: list[list[tuple[int, dict[str, Any]]]] = [[]]
    for number, line in enumerate([*lines, ""], 1):
        block = blocks[-1]
        parts = [part for part in re.split(r"[,;|]\s+", line.strip()) if part] if len(line) <= 400 else []
        found = [(number, one) for part in parts if (one := _phase_of(part)) is not None]
        if len(parts) == 1 and found and (is_phase(found[0][1]["phase"]) or block):
            block += found
            continue
        if _is_list(block):
            blocks.append([])
        else:
            block.clear()
        if len(found) == len(parts) > FEWEST and _is_list(found) and all(is_phase(one["phase"]) for _, one in found):
            blocks[-1] += found
            blocks.append([])
    several = [block for block in blocks if block]
    if len(several) > 1 and len({tuple(row["phase"] for _, row in block) for block in several}) == 1:
        rows = [
            (block[0][0], {"step": at, **{_of_step(row["phase"]): row["time"] for _, row in block}})
            for at, block in enumerate(several)
        ]
        yield TextTable(rows[0][0], rows)
        return
    for block in several:
        yield TextTable(block[0][0], block)


def _phase_of(text: str) -> dict[str, Any] | None:
    """Return the name and the time of a part of a list; None where it has no time with a unit."""
    match = LISTED.fullmatch(" ".join(text.lstrip(" \t>*+#\u2022-").split())) if len(text) <= LONGEST_PART else None
    found = amount(match["time"]) if match else None
    if match is None or found is None or not match["name"] or found.unit not in (*SECONDS, *STEP_S):
        return None
    return {"phase": match["name"].strip(" *`"), "time": match["time"]}


def _is_list(block: Sequence[tuple[int, Mapping[str, Any]]]) -> bool:
    names = [row["phase"] for _, row in block]
    return FEWEST <= len(names) <= MOST and len(set(names)) == len(names)


def _of_step(name: str) -> str:
    """Return a phase's name without the number of the step."""
    return "step total" if is_total(name) else name
