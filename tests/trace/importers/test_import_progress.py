"""The progress bar of an import: it moves by what is read, and ends where the files end."""

from __future__ import annotations

import gzip
import io
import itertools
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tqdm.auto
from importer_samples import (
    LIMIT,
    ROLLOUT_WRITERS,
    SCALAR_WRITERS,
    TOKENIZER,
    sample_rollouts,
    write_parquet_rows,
    write_step_table,
)

from rlhfless.trace import ImportOptions, import_log

pytest.importorskip("tokenizers", reason="the tokenizers package is not installed: pip install 'rlhfless[logs]'")
OPTIONS = ImportOptions(tokenizer=TOKENIZER, max_response_tokens=LIMIT, progress=True)


@pytest.fixture
def bars(monkeypatch: pytest.MonkeyPatch) -> list[tqdm.auto.tqdm]:
    """The bars that imports show, with ``moves``, what each update added."""
    made: list[tqdm.auto.tqdm] = []

    class Watched(tqdm.auto.tqdm):  # type: ignore[type-arg]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.moves: list[int] = []
            made.append(self)

        def update(self, n: float | None = 1) -> bool | None:
            self.moves.append(int(n or 0))
            return super().update(n)

    monkeypatch.setattr(tqdm.auto, "tqdm", Watched)
    return made


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "packed"])
@pytest.mark.parametrize("name", [*ROLLOUT_WRITERS, *SCALAR_WRITERS])
def test_the_bar_ends_where_the_files_end(name: str, packed: bool, tmp_path: Path, bars: list[Any]) -> None:
    if name == "slime":
        pytest.importorskip("torch")
    writer = ROLLOUT_WRITERS[name][1] if name in ROLLOUT_WRITERS else SCALAR_WRITERS[name][1]
    path = writer(tmp_path / "log", sample_rollouts())
    files = [file for file in (tmp_path / "log").rglob("*") if file.is_file()]
    for i, file in enumerate(files if packed else []):
        files[i] = Path(f"{file}.gz")
        files[i].write_bytes(gzip.compress(file.read_bytes()))
        file.unlink()
    import_log(path if path.is_dir() else files[0], OPTIONS)
    (bar,) = bars
    assert sum(bar.moves) == bar.total == sum(file.stat().st_size for file in files)


@pytest.mark.parametrize(("name", "count"), [("log.parquet", 280_000), ("log.jsonl", 60_000)])
def test_the_bar_moves_while_a_file_is_read(name: str, count: int, tmp_path: Path, bars: list[Any]) -> None:
    rng = np.random.default_rng(0)
    rows = pd.DataFrame({"step": 0, "prompt_id": rng.integers(0, 2**60, count), "response_tokens": 7})
    if name.endswith("parquet"):
        write_parquet_rows(tmp_path / name, rows, group_rows=50_000)
    else:
        rows.to_json(tmp_path / name, orient="records", lines=True)
    import_log(tmp_path / name, OPTIONS)
    (bar,) = bars
    assert sum(bar.moves) == bar.total > 2**21
    assert bar.moves[0] < bar.total / 2, "a parquet file is read from its end, and the bar begins at its beginning all the same"


class Stream(io.StringIO):
    """What the bar is drawn on: a terminal, or a file or pipe."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


@pytest.mark.parametrize("terminal", [True, False])
def test_the_bar_is_on_terminals_only_and_is_gone_before_what_follows(
    terminal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file or a pipe would keep every state of the bar before the first sentence."""
    path = write_step_table(tmp_path, sample_rollouts())
    clock = itertools.count()
    monkeypatch.setattr("tqdm.std.time", lambda: float(next(clock)))  # so that the bar is shown, which short imports have not
    stream = Stream(terminal)
    monkeypatch.setattr(sys, "stderr", stream)
    import_log(path, OPTIONS)
    drawn = stream.getvalue()
    if terminal:
        *_, before, after = drawn.split("\r")
        assert "reading" in drawn
        assert (before.strip(), after) == ("", ""), "blanks over the bar, and the line's beginning"
    else:
        assert drawn == ""
