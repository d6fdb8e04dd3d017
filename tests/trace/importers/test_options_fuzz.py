"""Malformed options and tables: mappings to joined columns and constants, conditions, and scalars alone.

Whatever a table contains and the options say, an import ends with valid rollouts or with one sentence. So do
drawing lengths from scalars alone and a timeline. ``make test`` tries a few hundred, ``make nightly`` thousands.
"""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from rlhfless.analysis.drawn_lengths import StepSizes, drawn_logs
from rlhfless.errors import InputError
from rlhfless.trace import ImportOptions, LogWithoutResponses, TraceError, import_log
from rlhfless.trace.perfetto import write_perfetto
from rlhfless.trace.schema.tables import ROLLOUTS

FEW, MANY = 60, 6000
OURS = [column.name for column in ROLLOUTS]
NAMES = (
    "step",
    "prompt_id",
    "uid",
    "a",
    "a+b",
    "b",
    "row",
    "'x'",
    "1",
    "",
    " ",
    "ä`b",
    "start_s",
    "source_step",
    "output_toks",
    "nan",
)
VALUES: tuple[Any, ...] = (
    0,
    1,
    2,
    -1,
    7.5,
    10**12,
    2**63,
    1e300,
    float("nan"),
    float("inf"),
    None,
    "",
    "x",
    "a/b",
    "1",
    "true",
    True,
    "\ud83d",
    "9" * 400,
    "2023-11-16 18:15:46",
    [1],
    {"a": 1},
)
SOURCES: tuple[Any, ...] = (
    *NAMES,
    "a+b",
    "uid+a",
    "a + b",
    "a+",
    "+",
    "a++b",
    "missing",
    "a+missing",
    0,
    1,
    -1,
    1.5,
    True,
    float("nan"),
    float("inf"),
    10**30,
    "0",
    "1e400",
    "'",
    "''",
    "'run'",
    '"x"',
    "''''",
    "inf",
    "nan",
    "1_000",
    None,
    [],
    ("a", "b"),
    b"a",
    "\x00",
    "x" * 3000,
)
CONDITIONS: tuple[Any, ...] = (
    None,
    "a > 0",
    "a == 'x'",
    "`a+b` > 0",
    "`ä`",
    "uid in [1, 2]",
    "uid in ['x']",
    "not a",
    "a",
    "a + b",
    "a == b",
    "a < 'x'",
    "-a > 0",
    "a and b",
    "1",
    "",
    " ",
    "a >",
    "a == = 1",
    "__import__('os')",
    "a.b",
    "a[0] == 1",
    "(lambda: 1)()",
    "@a == 1",
    "missing > 1",
    "a > 10**10**10",
    "a ** b ** 99 > 1",
    "a << 10000 > 0",
    "a / 0 > 1",
    "a % 0 == 1",
    "`",
    "``",
    "`a",
    "a == None",
    "a is None",
    "a != a",
    "1 < a < 3",
    "a in b",
    "a not in []",
    "a == (1, 2)",
    "'a' == 'a'",
    "((" * 200,
    "a == 1 or " * 500 + "a",
    "a\n> 0",
    5,
    b"a",
    "a == 'x' # y",
    "index > 0",
    "row > 1",
    "a == `b`",
    "~a",
    "a // b > 0",
    "a @ b > 0",
    "a | b",
    "a & (b == 1)",
    "x" * 5000 + " > 0",
)
SCALARS = (
    "response_length/mean",
    "response_length/max",
    "response_length/min",
    "response_length/clip_ratio",
    "prompt_length/mean",
    "perf/total_num_tokens",
    "timing_s/gen",
    "timing_s/step",
    "training/global_step",
)


def written(folder: Path, chance: random.Random) -> Path:
    """A table of a few rows with any names and values, in any format."""
    names = chance.sample(NAMES, chance.randint(1, 6))
    columns = {name: [chance.randrange(9) for _ in range(4)] for name in (*names, "a", "start_s", "end_s")}
    for _ in range(chance.choice((0, 0, 1, 6))):
        columns[chance.choice(names)][chance.randrange(4)] = chance.choice(VALUES)
    names = list(columns)
    path = folder / f"log.{chance.choice(('csv', 'jsonl', 'parquet'))}"
    frame = pd.DataFrame({name: pd.Series(cells, dtype=object) for name, cells in columns.items()})
    if path.suffix == ".csv":
        frame.to_csv(path, index=False, errors="replace")
    elif path.suffix == ".jsonl":
        path.write_text(
            "".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in zip(*columns.values(), strict=True)),
            encoding="utf-8",
        )
    else:
        try:
            frame.infer_objects().to_parquet(path)
        except Exception:  # values that no parquet file can hold
            frame.map(lambda cell: str(cell).encode("utf-8", "replace").decode()).to_parquet(path)
    return path


def options_of(chance: random.Random) -> ImportOptions:
    """Any mapping and any condition; often those that are needed have a source."""
    needed = {"step": "0", "prompt_id": chance.choice(("row", "a+b")), "response_tokens": chance.choice(("a", 5))}
    mapping = {ours: theirs for ours, theirs in needed.items() if chance.random() < 0.7}
    mapping |= {chance.choice((*OURS, "none", "")): chance.choice(SOURCES) for _ in range(chance.choice((0, 1, 1, 2)))}
    return ImportOptions(mapping=mapping, where=chance.choice(CONDITIONS) if chance.random() < 0.5 else None)


def one_sentence(error: Exception) -> None:
    """An error of ours, on one line and not long."""
    assert "\n" not in str(error).rstrip("\n"), error
    assert len(str(error)) < 2500, error


def try_table(seed: int) -> str:
    """Import a table with any options, and draw what was read; what became of it."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            log = import_log(written(folder, chance), options_of(chance), "table")
            trace = log.trace()
        except (TraceError, InputError) as error:
            one_sentence(error)
            return "refused"
        assert len(trace.rollouts)
        try:
            write_perfetto(trace, folder / "t.json")
        except TraceError as error:
            one_sentence(error)
            assert not list(folder.glob("*t.json*"))
            return "read"
        json.loads((folder / "t.json").read_text("utf-8"))
        return "drawn"


def try_scalars(seed: int) -> str:
    """Draw lengths from scalars alone with any values."""
    chance = random.Random(seed)
    usual: dict[str, Any] = {"response_length/mean": 50.0, "response_length/max": 90.0, "response_length/min": 3.0}
    usual |= {"response_length/clip_ratio": 0.1, "perf/total_num_tokens": 2000}
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "run.jsonl"
        lines = []
        for step in range(2):
            data = {key: value for key, value in usual.items() if chance.random() < 0.9}
            for _ in range(chance.choice((0, 1, 2))):
                data[chance.choice(SCALARS)] = chance.choice((*VALUES, 0.5, 1e-9, 1e6))
            lines.append(json.dumps({"step": chance.choice((step, step, 1)), "data": data}) + "\n")
        path.write_text("".join(lines), encoding="utf-8")
        sizes = {"responses_per_step": chance.choice((None, 1, 2, 40)), "samples_per_prompt": chance.choice((None, 1, 8))}
        try:
            import_log(path).trace()
        except LogWithoutResponses as error:
            try:
                drawn = drawn_logs(error.log, StepSizes(**sizes))
            except (TraceError, InputError) as refusal:
                one_sentence(refusal)
                return "refused"
            assert all((log.trace.rollouts["response_tokens"] > 0).all() for log in drawn)
            return "drawn"
        except TraceError as error:
            one_sentence(error)
        return "refused"


def outcomes(try_one: Any, seeds: range) -> set[str]:
    return {try_one(seed) for seed in seeds}


def test_any_table_with_any_options_is_read_or_refused_in_one_sentence() -> None:
    assert outcomes(try_table, range(FEW)) <= {"refused", "read", "drawn"}


def test_any_scalars_are_drawn_from_or_refused_in_one_sentence() -> None:
    assert outcomes(try_scalars, range(FEW)) == {"refused", "drawn"}


@pytest.mark.nightly
@pytest.mark.parametrize("try_one", [try_table, try_scalars])
def test_thousands_of_malformed_options_are_one_sentence(try_one: Any) -> None:
    outcomes(try_one, range(FEW, FEW + MANY))
