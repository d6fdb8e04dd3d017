"""Numbers as people write them into a table: ``~28.1-30.7s``, ``1,652.8 s (54%)``, ``11.2k``, ``2x8xH100``, ``1h 20m``.

A column whose cells all have one unit gets that unit in its name, so that the reader of tables knows what it holds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from rlhfless.trace.importers.names import NAMES
from rlhfless.trace.schema.casts import shown

BLANK = frozenset({"", "nan", "na", "n/a", "null", "none", "-", "--", "\u2013", "\u2014", "?", "oom", "tbd", "x"})
"""Cells that hold no number and say so, lower case."""

GPUS_IN_NAME = re.compile(
    r"(?<![\w.])\d{1,6}(?:\s*[x\u00d7]\s*\d{1,6})?\s*[x\u00d7]?\s*(?:gpus?|[hab]\d{2,3}s?|gh200|l40s?|v100s?)\b", re.I
)
"""GPUs in the name of a run or of a measurement."""
GPU_NAME = re.compile(
    r"(?<![\w.])\d*[x\u00d7]?\s*(g?[abh]\d{2,3}|gh200|l40s?|l4|v100|t4|mi\d{3}x?|rtx\s?\d{4})s?(?![\w.])", re.I
)
"""A kind of GPU in the name of a run."""
INFINITE = ("inf", "infinity")
LONGEST_CELL = 120  # characters; longer ones are texts
MARKS = str.maketrans("\uff08\uff09\uff1a", "():", "*`~≈\u202f\xa0")
PLAIN = r"[-+]?(?:\d[\d,_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
AMOUNT = re.compile(rf"[<>≤≥=]?\s*({PLAIN})\s*(k|K|M|B)?(?:\s*(?:-|\u2013|to)\s*({PLAIN})\s*(k|K|M|B)?)?\s*([^\d\s(\[].*)?")
ASIDE = re.compile(r"\s*[(\[][^()\[\]]{0,60}[)\]]\s*$")
CLOCK = re.compile(r"(?:(\d{1,4}):)?([0-5]?\d):([0-5]\d)(?:\.\d+)?")
PARTS = re.compile(
    r"(?:(\d{1,5})\s*h(?:ours?|rs?)?)?\s*(?:(\d{1,5})\s*m(?:in|ins|inutes)?)?\s*(?:(\d{1,5}(?:\.\d+)?)\s*s(?:ec)?)?"
)
SHAPE = re.compile(r"\d{1,6}(?:\s*[x\u00d7*]\s*\d{1,6}){0,3}")
GPU_KIND = re.compile(
    r"^\s*(?:[x\u00d7*]?\s*(?:nvidia|amd|tesla|geforce|rtx)?\s*[a-z]{0,6}\d{0,5}[a-z]{0,6})(?:[\s-].{0,40})?$", re.I
)
TIMES = {"k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9}

SECONDS = {
    "s": 1.0, "sec": 1.0, "secs": 1.0, "second": 1.0, "seconds": 1.0, "ms": 1e-3, "min": 60.0, "mins": 60.0, "minute": 60.0,
    "minutes": 60.0, "h": 3600.0, "hr": 3600.0, "hrs": 3600.0, "hour": 3600.0, "hours": 3600.0, "d": 86400.0, "days": 86400.0,
}  # fmt: skip
TOKENS_PER_S = frozenset({"tok/s", "toks/s", "token/s", "tokens/s", "tok/sec", "tokens/sec", "tps", "t/s"})
STEP_S = frozenset(
    {f"{unit}/{step}" for unit in ("s", "sec", "seconds", "second") for step in ("step", "it", "iter", "iteration")}
    | {f"{unit} per step" for unit in ("s", "sec", "seconds", "second")}
)
SIDES = {
    "gpus_generate": frozenset({"gen", "generate", "generation", "rollout", "rollouts", "inference", "sampler", "vllm"}),
    "gpus_train": frozenset({"train", "training", "trainer", "learn", "learner", "learning"}),
}  # fmt: skip
"""Words that name the GPUs of a side."""
OWN = frozenset(name for one in NAMES.values() for of in (one, one.tracked()) for name in of.own() if "/" in name)
"""Frameworks' names of columns, which stay as they are: they say what the column holds, in seconds where it is a time."""
BOTH_SIDES = re.compile(r"\s*(\d{1,6})\s*[/+:]\s*(\d{1,6})\b(?!\s*[/+:])")
MINUTES = re.compile(r"[(\[]\s*min\s*[)\]]\s*$|(?<=time|wall)[_ ]min$", re.I)


class Amount(NamedTuple):
    """A number of a cell.

    Attributes:
        value: of a range its middle. unit: that follows it, lower case; empty if there is none. rough: whether it was a range.
    """

    value: float
    unit: str = ""
    rough: bool = False


def amount(text: str) -> Amount | None:
    """Return the number that a cell holds, with its unit; None for other texts and for blank cells.

    Example:
        >>> amount("~28-30s"), amount("1,652.8 s (54%)"), amount("11.2k tok/s"), amount("1h 20m"), amount("97.2%")
        (Amount(value=29.0, unit='s', rough=True), Amount(value=1652.8, unit='s', rough=False), Amount(value=11200.0, \
unit='tok/s', rough=False), Amount(value=4800.0, unit='s', rough=False), Amount(value=97.2, unit='%', rough=False))
        >>> amount("Qwen3-4B"), amount("8x8xH100")
        (None, None)
    """
    if len(text) > LONGEST_CELL:
        return None
    text = ASIDE.sub("", text.translate(MARKS)).strip().removeprefix("$")
    if text.lower() in BLANK:
        return None
    if match := CLOCK.fullmatch(text):
        hours, minutes, seconds = (float(part or 0) for part in match.groups())
        return Amount(3600 * hours + 60 * minutes + seconds, "s")
    if (match := PARTS.fullmatch(text)) and sum(part is not None for part in match.groups()) > 1:
        hours, minutes, seconds = (float(part or 0) for part in match.groups())
        return Amount(3600 * hours + 60 * minutes + seconds, "s")
    match = AMOUNT.fullmatch(text)
    if match is None:
        return None
    low, low_times, high, high_times, unit = match.groups()
    unit = (unit or "").strip().lower().rstrip(".")
    if unit and (len(unit) > 24 or not re.fullmatch(r"[a-zµ%\u00d7/ ()]+", unit)):
        return None
    value = float(low.replace(",", "").replace("_", "")) * TIMES.get(low_times or high_times or "", 1.0)
    if high is None:
        return Amount(value, unit) if math.isfinite(value) or not low_times else None
    other = float(high.replace(",", "").replace("_", "")) * TIMES.get(high_times or low_times or "", 1.0)
    return Amount((value + other) / 2, unit, rough=True) if value <= other else None


def gpus(text: str) -> float | None:
    """Return the GPUs that a cell names; None where it names none.

    Example:
        >>> gpus("2x8xH100 SXM"), gpus("8"), gpus("4+4"), gpus("16 A100"), gpus("H100")
        (16.0, 8.0, 8.0, 16.0, None)
    """
    text = ASIDE.sub("", text.translate(MARKS)).strip()
    parts = text.split("+") if len(text) <= LONGEST_CELL else []
    total = 0.0
    for part in parts:
        shape = SHAPE.match(part.strip())
        if shape is None or not GPU_KIND.match(part.strip()[shape.end() :]):
            return None
        total += math.prod(float(number) for number in re.findall(r"\d+", shape[0]))
    return total if total > 0 else None


def _units(amounts: Sequence[Amount]) -> str:
    """What the units of a column's cells are: seconds, tokens per second and so on; empty where they differ or have none."""
    kinds = set()
    for one in amounts:
        unit = one.unit.removesuffix("/gpu").strip()
        per_gpu = one.unit.endswith("/gpu")
        if unit in SECONDS and not per_gpu:
            kinds.add("(s)")
        elif unit in STEP_S and not per_gpu:
            kinds.add("step_s")
        elif unit in TOKENS_PER_S:
            kinds.add("tokens_per_gpu_s" if per_gpu else "tokens_per_s")
        elif one.unit in ("gpu-hours", "gpu hours", "gpuh", "gpu-h"):
            kinds.add("gpu_hours")
        else:
            kinds.add("")
    return kinds.pop() if len(kinds) == 1 else ""


def normalised(
    rows: Sequence[tuple[int, Mapping[str, Any]]], means: Callable[[str], str | None], note: Callable[[str], None]
) -> list[tuple[int, dict[str, Any]]]:
    """Return rows whose texts are numbers where they hold one, in columns whose names have their unit.

    Args:
        rows: number in the file and cells by column. means: what a name says that its column holds, None for nothing known.
        note: takes sentences.
    """
    rows = [(number, _sides(row)) for number, row in rows]
    names = list(dict.fromkeys(name for _, row in rows for name in row))
    renamed: dict[str, str] = {}
    cells: dict[str, list[Any]] = {}
    for name in names:
        renamed[name], cells[name] = _column(name, [row.get(name) for _, row in rows], means, note)
    named = any(means(renamed[name]) == "run" for name in names)
    if not named and any(means(renamed[name]) == "step" for name in names):
        named = True  # a row is a step
    if not named:
        text = next((n for n in names if means(renamed[n]) is None and _is_text(cells[n])), None)
        if text is not None:
            renamed[text] = "run"
    taken: set[str] = set()
    for name in names:
        while renamed[name] in taken:
            renamed[name] += "'"
        taken.add(renamed[name])
    return [(number, {renamed[n]: cells[n][at] for n in names if n in row}) for at, (number, row) in enumerate(rows)]


def _sides(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with a column for each side's GPUs, where one column has both: ``GPUs (train / gen)``, ``4 / 4``."""
    sides: dict[str, Any] = {}
    for name, cell in row.items():
        words = re.findall(r"[a-z]+", name.lower()) if isinstance(name, str) else []
        order = [side for word in words for side, of in SIDES.items() if word in of]
        if "gpus" in words and len(order) == 2 and len(set(order)) == 2 and isinstance(cell, str):
            match = BOTH_SIDES.match(cell.translate(MARKS))
            sides |= {name: cell} if match is None else {order[0]: match[1], order[1]: match[2], name: ""}
        else:
            sides[name] = cell
    return sides


def _column(
    name: str, cells: list[Any], means: Callable[[str], str | None], note: Callable[[str], None]
) -> tuple[str, list[Any]]:
    """Return the name and the cells of one column."""
    named = " ".join(name.translate(MARKS).split()) if isinstance(name, str) else name
    named = MINUTES.sub(" (minutes)", named)
    texts = [cell for cell in cells if isinstance(cell, str) and cell.strip().lower() not in BLANK]
    if not texts or means(named) == "run":
        return named, cells
    words = set(re.findall(r"[a-z]+|\d+", named.lower()))
    counts_gpus = bool(words & {"gpu", "gpus"}) and words <= {"gpu", "gpus", "num", "number", "n", "of", "total", "count"}
    if means(named) == "gpus" or (means(named) is None and counts_gpus and all(gpus(text) for text in texts)):
        return ("gpus" if means(named) is None else named), [gpus(c) if isinstance(c, str) else c for c in cells]
    if means(named) == "usd_per_gpu_hour":
        prices = {text: one.value for text in texts if (one := amount(text)) is not None}
        return named, [prices.get(cell) if isinstance(cell, str) else cell for cell in cells]
    found = {text: amount(text) for text in texts}
    known = [one for one in found.values() if one is not None]
    if 2 * len(known) < len(found):
        return named, cells
    texts_left = [text for text, one in found.items() if one is None and text.strip().lower().lstrip("+-") not in INFINITE]
    if texts_left and means(named) is not None:
        note(
            f"column '{named[:60]}': {shown(texts_left[0], 40)} is no number and was left out, with {len(texts_left) - 1} more"
        )
    if any(one.rough for one in known):
        note(f"ranges in the column '{named[:60]}' are read as their middle")
    kind = _units(known)
    if not kind:  # numbers without a unit, or with one that the reader of tables knows
        plain: dict[str, Any] = {text: one.value for text, one in found.items() if one is not None and not one.unit}
        plain |= dict.fromkeys(texts_left if means(named) is not None else ())
        return named, [plain.get(cell, cell) if isinstance(cell, str) else cell for cell in cells]
    factor = {text: SECONDS.get(one.unit, 1.0) for text, one in found.items() if one is not None}
    values = {text: factor[text] * one.value for text, one in found.items() if one is not None}
    left = {text: text for text, one in found.items() if one is None and text not in texts_left}
    numbers = [{**left, **values}.get(cell) if isinstance(cell, str) else cell for cell in cells]
    if kind == "(s)":
        return (named if _has_seconds(named) or named in OWN else f"{_without_unit(named)} (s)"), numbers
    return (named if named in OWN or named.startswith("perf/") else kind), numbers


def _has_seconds(name: str) -> bool:
    return bool(re.search(r"(?:^|[^a-z])(?:s|sec|seconds)(?:[^a-z]|$)", name.lower()))


def _without_unit(name: str) -> str:
    return re.sub(r"\s*[(\[]\s*(?:s|sec|secs|seconds|ms|min|mins|minutes|h|hr|hrs|hours)\s*[)\]]\s*$", "", name, flags=re.I)


def _is_text(cells: Iterable[Any]) -> bool:
    texts = [cell for cell in cells if isinstance(cell, str) and cell.strip()]
    return bool(texts) and sum(amount(text) is None for text in texts) * 2 > len(texts)
