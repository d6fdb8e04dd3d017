"""Tables and lists of measurements within a text, as people paste them: markdown, boxes, columns of blanks, tabs, commas.

A list is lines with a name and one rate each (``TP=2: 1,240 tokens/s``), or the result blocks that the benchmarks of vLLM and
SGLang print. It becomes a table with a row per line or block.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rlhfless.trace.errors import TraceError
from rlhfless.trace.importers.import_session import ImportOptions, ImportSession
from rlhfless.trace.importers.written_cells import PLAIN, amount, gpus

ENDINGS = (".md", ".markdown", ".txt", ".log", ".out", ".csv", ".tsv", ".rst", "")
LARGEST = 2**20  # bytes of a text that is read as a table
MOST_COLUMNS = 200
MOST_ROWS = 2_000  # of a table in a text; one with more is in a file of its own format
MOST_MEASURED = 100  # lines of a list; more is a console's
BOX = str.maketrans("│┃║¦|", "|||||")
RULE = re.compile(r"^[\s|+:=\-─━═┌┐└┘├┤┬┴┼╔╗╚╝╠╣╦╩╬╒╕╘╛╞╡╤╧╪╭╮╰╯]+$")
NOT_RUNS = re.compile(
    r"^(?:improvement|speed-?up|change|delta|gain|diff(?:erence)?|ratio|reduction|notes?|remark|Δ.{0,10})$", re.I
)

RATE = re.compile(
    rf"({PLAIN}\s?[kKM]?)\s*(?:(?:output|generated|generation)\s+)?(?:tok(?:en)?s?)\s*(?:/|per )\s*s(?:ec(?:ond)?)?\b"
    r"(\s*/\s*gpu)?",
    re.I,
)
OUTPUT_RATE = re.compile(rf"output:\s*({PLAIN})\s*tok(?:en)?s?/s|({PLAIN})\s*output tokens/s", re.I)
STEP = re.compile(
    rf"({PLAIN}(?:\s?(?:-|\u2013|to)\s?{PLAIN})?)\s*(?:s|secs?|seconds?)\s*(?:/|per )\s*(?:step|iter(?:ation)?)\b", re.I
)
ACCEPTED = re.compile(rf"\baccep\w*\s+len(?:gth)?\s*[:=]?\s*({PLAIN})|\bacc\w{{0,3}}\s*pt?\s+len\s*[:=]?\s*({PLAIN})", re.I)
PHASE = re.compile(
    rf"\b(gen(?:eration|erate)?|rollout|train(?:ing)?|learn(?:ing)?|update|(?:weight )?sync|log_?probs?|rewards?|step|total)"
    rf"(?:[ _]time)?\s*[:=]?\s*({PLAIN})\s*(s|secs?|ms|mins?)\b",
    re.I,
)
NODES = re.compile(r"(?<![\w.])(\d{1,5})\s*nodes?\b", re.I)
COUNTING = re.compile(
    r"\b(?:step|iter(?:ation)?|epoch|rollout|rank|worker|replica)s?\b\s*[:=#\[]?\s*\d|%\||\b\d{1,2}:\d\d:\d\d", re.I
)
"""What the lines of a console count by: a step, a time of day, a process. Such lines are no measurements to compare."""
BENCHMARK = re.compile(r"=+ .{0,40}\bBenchmark Result =+")
FIELD = re.compile(r"^\s*([A-Z][^:]{2,50}):\s+(\S+)\s*$")
FIELDS = {
    "Benchmark duration (s)": "run_s", "Successful requests": "items", "Output token throughput (tok/s)": "tokens_per_s",
    "Accept length": "tokens_per_pass", "Acceptance length": "tokens_per_pass",
}  # fmt: skip


class TextTable(NamedTuple):
    """A table in a text.

    Attributes:
        line: number of its first line, from 1. rows: number of the line and texts by column.
    """

    line: int
    rows: list[tuple[int, dict[str, Any]]]

    def turned(self) -> TextTable:
        """Return the table with a row per column, of one that has a metric per row; columns of ratios are left out."""
        if not self.rows:
            return self
        first, *others = self.rows[0][1]
        turned = [
            (self.rows[0][0] + at, {"run": name, **{str(row[first]): row.get(name, "") for _, row in self.rows}})
            for at, name in enumerate(name for name in others if self.column_of_runs(name))
        ]
        return TextTable(self.line, turned)

    def column_of_runs(self, name: str) -> str | None:
        """Return the name of a column that may hold numbers of a run; None for ratios, percentages and remarks."""
        cells = [str(row.get(name, "")) for _, row in self.rows]
        found = [one for cell in cells if (one := amount(cell)) is not None]
        ratios = any(one.unit == "%" for one in found) or any(re.fullmatch(r"\s*\d+\s*/\s*\d+\s*", cell) for cell in cells)
        nothing_else = ratios and all(one.unit == "%" for one in found)
        return None if NOT_RUNS.match(name.strip()) or nothing_else else name


def text_of(path: Path) -> list[str]:
    """Return the lines of a small text; empty for anything else."""
    name = path.name.lower().removesuffix(".gz")
    if not path.is_file() or Path(name).suffix not in ENDINGS:
        return []
    try:
        with ImportSession(path, ImportOptions()).open(path) as stream:
            content = stream.read(LARGEST + 1)
    except TraceError:
        return []  # the reader reports what is wrong with it
    if len(content) > LARGEST or b"\0" in content:
        return []
    return content.decode("utf-8-sig", "replace").splitlines()


def tables(lines: list[str]) -> Iterator[TextTable]:
    """Yield the tables of a text, in its order, and then its lists of measurements."""
    yield from _with_bars(lines)
    yield from _with_blanks(["" if line.translate(BOX).count("|") > 1 else line for line in lines])
    yield from _benchmarks(lines)
    yield from _measured(lines)
    yield from _with_phases(lines)


def _with_bars(lines: list[str]) -> Iterator[TextTable]:
    block: list[tuple[int, list[str]]] = []
    for number, line in enumerate([*lines, ""], 1):
        text = line.strip().translate(BOX)
        if text.count("|") >= 1 and not RULE.match(text) and 1 < len(cells := _cells(text)) <= MOST_COLUMNS:
            block.append((number, cells))
        elif not RULE.match(text) or not text:
            if table := _table(block):
                yield table
            block = []


def _cells(text: str) -> list[str]:
    return [cell.replace("**", "").strip(" `") for cell in text.removeprefix("|").removesuffix("|").split("|")]


def _table(block: list[tuple[int, list[str]]]) -> TextTable | None:
    """Return the table of a block whose first row is its header; None for a single row, and for more than people paste."""
    if not 2 <= len(block) <= MOST_ROWS:
        return None
    number, header = block[0]
    names = _unique(header)
    rows = [(at, dict(zip(names, [*cells, *[""] * (len(names) - len(cells))], strict=False))) for at, cells in block[1:]]
    return TextTable(number, rows)


def _unique(header: list[str]) -> list[str]:
    names: list[str] = []
    for at, name in enumerate(header):
        name = name.translate(str.maketrans("", "", "*`")).strip() or ("run" if at == 0 else f"column {at + 1}")
        while name in names:
            name += "'"
        names.append(name)
    return names


def _with_blanks(lines: list[str]) -> Iterator[TextTable]:
    """Yield tables whose columns stand apart by tabs, several blanks, commas, or single blanks."""
    for apart in (r"\t+", r"\s{2,}", r"\s*[,;]\s*", r"\s+"):
        block: list[tuple[int, list[str]]] = []
        for number, line in enumerate([*lines, ""], 1):
            cells = re.split(apart, line.strip()) if line.strip() and len(line) < 4 * LARGEST // MOST_COLUMNS else []
            if RULE.match(line) and block and line.strip():
                continue
            if line.startswith("# ") and "," in apart:
                cells = []  # a comment above the header
            if len(cells) < 2 or len(cells) > MOST_COLUMNS or (block and len(cells) != len(block[0][1])):
                if (table := _table(block)) and _is_numeric(block):
                    yield table
                block = []
            if 2 <= len(cells) <= MOST_COLUMNS:
                block.append((number, cells))


def _is_numeric(block: list[tuple[int, list[str]]]) -> bool:
    """Whether the header has no numbers, and at least a third of the cells below are numbers."""
    cells = [cell for _, row in block[1:] for cell in row]
    numeric = sum(amount(cell) is not None or gpus(cell) is not None for cell in cells)
    return 3 * numeric >= len(cells) and not any(amount(cell) for cell in block[0][1])


def _benchmarks(lines: list[str]) -> Iterator[TextTable]:
    """Yield the result blocks of vLLM's and SGLang's serving benchmarks, a row each; a line before a block names it."""
    rows: list[tuple[int, dict[str, Any]]] = []
    before = ""
    for number, line in enumerate(lines, 1):
        if BENCHMARK.search(line):
            name = before if before and not before.startswith(("=", "-")) else f"benchmark {len(rows) + 1}"
            rows.append((number, {"run": name[:80]}))
        elif rows and (match := FIELD.match(line)) and match[1].strip() in FIELDS:
            rows[-1][1].setdefault(FIELDS[match[1].strip()], match[2])
        if line.strip():
            before = line.strip().strip("`#*: ")
    if rows:
        yield TextTable(rows[0][0], rows)


def _measured(lines: list[str]) -> Iterator[TextTable]:
    """Yield the lines that have a name and one rate each, of tokens per second or of seconds per step."""
    for kind, pattern in (("tokens_per_s", RATE), ("step_s", STEP)):
        rows: list[tuple[int, dict[str, Any]]] = []
        title = before = ""
        counting = 0
        for number, line in enumerate(lines, 1):
            if len(line) > 1000 or not line.strip():
                continue
            output = OUTPUT_RATE.search(line) if kind == "tokens_per_s" else None
            match = output or pattern.search(line)
            if match is None:
                title = before = _label(line)
                continue
            counting += bool(COUNTING.search(line[: match.start()])) and "est. speed" not in line
            value = next(group for group in match.groups() if group)
            label = _label(line.split("[")[0] if "est. speed" in line else line[: match.start()])
            if not label or not re.search(r"[^\W\d_]", label) or re.search(r"throughput|questions", label, re.I):
                label = before or label
            row: dict[str, Any] = {"run": label, kind: value}
            if kind == "tokens_per_s" and output is None and match.group(2):
                row["tokens_per_gpu_s"] = row.pop(kind)
            if accepted := ACCEPTED.search(line):
                row["tokens_per_pass"] = accepted[1] or accepted[2]
            if nodes := NODES.search(label):
                row["nodes"] = nodes[1]
            rows.append((number, {**row, "title": title}))
        if 2 <= len(rows) <= MOST_MEASURED and 2 * counting < len(rows):
            yield TextTable(rows[0][0], _named(rows))


def _with_phases(lines: list[str]) -> Iterator[TextTable]:
    """Yield the lines that have a name and then seconds of several phases each, as in ``TP=2: gen 151s, step 231s``."""
    rows: list[tuple[int, dict[str, Any]]] = []
    for number, line in enumerate(lines, 1):
        pairs = list(PHASE.finditer(line)) if len(line) <= 1000 else []
        label = _label(line[: pairs[0].start()]) if pairs else ""
        if len(pairs) > 1 and label and not COUNTING.search(label + ":"):
            rows.append(
                (number, {"run": label, **{f"{one[1].strip()} time": f"{one[2]} {one[3]}" for one in pairs}, "title": ""})
            )
    if 2 <= len(rows) <= MOST_MEASURED:
        yield TextTable(rows[0][0], _named(rows))


def _label(text: str) -> str:
    """Return what a text calls a measurement: without bullets, arrows and the words that only say what is measured."""
    text = re.sub(r"^[\s>*+#•-]+|[*`]", "", text)
    text = re.sub(r"[\s:=→~≈,;(\[\u2013>-]+$", "", text)
    return re.sub(r"[\s:=,;(\[-]*\b(?:throughput|speed|output|generation|est)\b[\s:=]*$", "", text, flags=re.I).strip()[:80]


def _named(rows: list[tuple[int, dict[str, Any]]]) -> list[tuple[int, dict[str, Any]]]:
    """Return the rows with names that differ: titles above them where they repeat, else a number."""
    names = [str(row["run"]) for _, row in rows]
    if len(set(names)) < len(names):
        names = [
            f"{row['title']}: {name}" if row["title"] not in ("", name) else name
            for (_, row), name in zip(rows, names, strict=True)
        ]
    for at, name in enumerate(names):
        if not name or name in names[:at]:
            names[at] = f"{name} ({at + 1})".strip()
    return [
        (number, {**{key: value for key, value in row.items() if key != "title"}, "run": name})
        for (number, row), name in zip(rows, names, strict=True)
    ]
