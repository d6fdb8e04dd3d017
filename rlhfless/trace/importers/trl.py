"""Imports TRL's GRPO completions: ``log_completions=True`` → ``completions/completions_{step}.parquet``.

TRL writes its buffer at every logging step and never clears it, so rows of the last generations appear again under a later
step. Rows at a file's beginning that repeat the end of the file before are dropped. After an evaluation TRL writes the step's
file again, with the evaluation's completions; the trainer state says which steps these are. Lengths are not logged: they are
counted from texts, and corrected by the run's scalars if its trainer state is next to them (``trl_finish_reasons.py``). With
several reward functions the weights of their sum are not logged either, so the reward is unknown unless
``--map reward=COLUMN`` names one.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from rlhfless.trace.errors import TraceError
from rlhfless.trace.importers import trl_scalars
from rlhfless.trace.importers.formats import Format, file_of, numbered
from rlhfless.trace.importers.import_session import ImportSession, parquet_columns
from rlhfless.trace.importers.record import Record, finite, text_id
from rlhfless.trace.importers.trl_finish_reasons import NEAR, ends_of_limit, ends_of_scalars
from rlhfless.trace.importers.trl_steps import OF_RESPONSES, generations
from rlhfless.trace.schema.casts import listed
from solver.model.plurals import counted

PATTERN = r"completions_(\d+)\.parquet(?:\.gz)?"
MARKS = {"step", "prompt", "completion"}
FIELDS = frozenset({*MARKS, "advantage"})
LONGEST_OVERLAP = 1_000_000
MAX_GENERATIONS = 1.5  # of a step's scalars; more are means over several, of which the completions hold the last


def files(path: Path) -> list[tuple[int, Path]]:
    """Return step and path of the completions of a run's folder, of its folder ``completions``, or of one file."""
    return numbered(path / "completions", PATTERN) or numbered(path, PATTERN) or file_of(path, PATTERN)


def detect(path: Path) -> bool:
    """Return whether the path is such a file, a folder with some, or another parquet file with step, prompt and completion."""
    return bool(files(path)) or (path.is_file() and path.name.endswith(".parquet") and parquet_columns(path) >= MARKS)


def read(reading: ImportSession) -> Iterator[pd.DataFrame]:
    """Yield batches of responses without repeated rows; collect the run's scalars if its trainer state is next to the files."""
    for ours, theirs in reading.options.mapping.items():
        if ours != "reward":
            raise TraceError(
                f"--map {ours}={theirs}: TRL's completions have fixed columns; only the reward can be "
                "mapped, with --map reward=COLUMN"
            )
    step_files = files(reading.path) or [(0, reading.path)]
    states = trl_scalars.files(reading.path)
    reading.expect([*(path for _, path in step_files), *states])
    reading.ended = True
    scalars = StepScalars(reading, states)
    before: list[str] = []
    for _, path in step_files:
        here: list[str] = []
        parts = []
        for frame in reading.parquet(path):
            reading.fields.difference_update(_reward_columns(frame), reading.options.mapping.values())
            here += _row_ids(frame, path)
            parts.append(_batch(frame, path, reading))
        rows = pd.concat(parts) if parts else pd.DataFrame()
        again = overlap(before, here)
        before = here
        if len(rows) and scalars.evaluates(rows):
            continue
        reading.duplicates += again
        if len(rows) > again:
            yield scalars.ended(rows.iloc[again:], whole=not again)
    scalars.add_notes()
    reading.scalars[:] = generations(reading.scalars, reading)


class StepScalars:
    """Corrects lengths and finish reasons of a step's responses by the run's own scalars.

    Args:
        reading: the import session; gets the scalars, and notes of decisions. states: files of the trainer's state, maybe none.
    """

    def __init__(self, reading: ImportSession, states: list[Path]) -> None:
        self._reading = reading
        read = [trl_scalars.read_state(reading, state) for state in states]
        self._logging_steps = max((state.logging_steps for state in read), default=1)
        self._evaluated = frozenset().union(*(state.evaluated for state in read))
        if not read:
            reading.note(
                "completions: if the run evaluated, some are the evaluation's, as TRL writes these over a step's; "
                "trainer_state.json beside them tells which"
            )
        self._left_out: list[int] = []
        self._by_step = {scalars["step"]: scalars for scalars in reading.scalars}
        self._since: dict[int, float] = {}
        counted = 0.0
        for step in sorted(step for step, scalars in self._by_step.items() if "num_tokens" in scalars):
            self._since[step] = self._by_step[step]["num_tokens"] - counted
            counted = self._by_step[step]["num_tokens"]
        self._met: list[int] = []
        self._not_met: list[int] = []
        self._averaged: list[float] = []  # their shares of clipped responses

    def evaluates(self, rows: pd.DataFrame) -> bool:
        """Return whether a file's rows are, in part at least, completions of an evaluation; its steps are then noted."""
        steps = sorted(self._evaluated.intersection(rows["step"]))
        self._left_out += [step for step in steps if step not in self._left_out]
        return bool(steps)

    def ended(self, rows: pd.DataFrame, whole: bool) -> pd.DataFrame:
        """Return the rows with lengths that include end tokens, and with finish reasons, as far as these are known.

        Args:
            rows: of one file. whole: they are all rows of it.
        """
        texts = rows["response_tokens"].to_numpy()
        steps = rows["step"].unique()
        scalars = self._by_step.get(int(steps[0]), {}) if len(steps) == 1 else {}
        ends = None
        if "truncation_rate" in scalars:
            if not whole or self._generations(rows, scalars) > MAX_GENERATIONS:
                self._averaged.append(scalars["truncation_rate"])
                for name in OF_RESPONSES:
                    scalars.pop(name, None)
            elif (ends := ends_of_scalars(texts, scalars)) is not None:
                self._met.append(scalars["step"])
            else:
                self._not_met.append(scalars["step"])
        limit = self._reading.options.max_response_tokens
        if ends is None and limit is not None and "truncation_rate" not in scalars:
            ends = ends_of_limit(texts, limit)
            self._reading.note(
                f"finish_reason: 'length' at {limit} text tokens, 'stop' below {NEAR:.0%} of that, unknown between, because "
                "texts lack special tokens; end tokens are counted"
            )
        if ends is None:
            self._reading.note("response_tokens: texts are counted without end tokens where no scalars say how responses ended")
            return rows.assign(finish_reason=None)
        return rows.assign(response_tokens=ends.tokens, finish_reason=pd.Series(ends.reasons, index=rows.index, dtype=object))

    def _generations(self, rows: pd.DataFrame, scalars: dict[str, float]) -> float:
        """Return how many generations, each as large as these rows, the step's scalars are a mean of."""
        since = self._since.get(int(scalars["step"]))
        mean = max(scalars.get("response_tokens_mean", 0.0), float(rows["response_tokens"].mean()))
        group_tokens = len(rows) * (float(rows["prompt_tokens"].mean()) + mean)
        return float(self._logging_steps) if since is None or group_tokens <= 0 else since / group_tokens

    def add_notes(self) -> None:
        """Add notes: which steps the scalars corrected or do not match, which are not compared, and which are left out."""
        note = self._reading.note
        if self._left_out:
            note(
                f"completions of {counted(len(self._left_out), 'step')} ({listed(self._left_out)}) are left out, because TRL "
                "evaluated after them and wrote the evaluation's completions over those of training"
            )
        if self._met:
            note(
                f"response_tokens: corrected in {counted(len(self._met), 'step')} by TRL's own clipped_ratio and mean_length: "
                "the longest responses were cut, the others get their end token"
            )
        if self._not_met:
            note(
                f"response_tokens: in {counted(len(self._not_met), 'step')} (the first is {self._not_met[0]}) token "
                "counts contradict TRL's own clipped_ratio and mean_length; the tokenizer of the run's model is needed"
            )
        if self._averaged:
            lowest, highest = (f"{share:.1%}" for share in (min(self._averaged), max(self._averaged)))
            note(
                f"scalars: in {counted(len(self._averaged), 'step')} TRL averages over more responses than it logged, so these "
                f"are not compared; {lowest if lowest == highest else f'{lowest} to {highest}'} of all responses were cut"
            )


def overlap(before: list[str], after: list[str]) -> int:
    """Return the largest n such that the first n entries of ``after`` are, in order, the last n of ``before``."""
    for length in range(min(len(before), len(after), LONGEST_OVERLAP), 0, -1):
        if before[-length] == after[0] and before[-length:] == after[:length]:
            return length
    return 0


def _row_ids(frame: pd.DataFrame, path: Path) -> list[str]:
    if missing := MARKS - set(frame.columns):
        raise TraceError(f"{path}: has no column '{min(missing)}', only {listed(frame.columns)}; TRL's completions have it")
    columns = [frame[name] for name in frame.columns if name != "step"]
    return [text_id(repr(row)) for row in zip(*columns, strict=True)]


def _batch(frame: pd.DataFrame, path: Path, reading: ImportSession) -> pd.DataFrame:
    records = [
        Record(dict(zip(frame.columns, row, strict=True)), path, at + 1)
        for at, row in zip(frame.index, _cells(frame), strict=True)
    ]
    prompts = [record.text("prompt") for record in records]
    completions = [record.text("completion") for record in records]
    names = [text_id(prompt) for prompt in prompts]
    return pd.DataFrame(
        {
            "step": [record.whole("step") for record in records],
            "prompt_id": names,
            "prompt_tokens": reading.count_tokens(prompts),
            "response_tokens": reading.count_tokens(completions),
            "reward": _rewards(frame, path, reading),
            **reading.texts(prompts, completions),
        },
        index=frame.index,
    )


def _cells(frame: pd.DataFrame) -> Iterator[tuple[object, ...]]:
    return zip(*(frame[name].tolist() for name in frame.columns), strict=True)


def _reward_columns(frame: pd.DataFrame) -> list[str]:
    """Return the numeric columns between TRL's own ones: one per reward function, with any name."""
    return [name for name in frame.columns if name not in FIELDS and pd.api.types.is_float_dtype(frame[name])]


def _rewards(frame: pd.DataFrame, path: Path, reading: ImportSession) -> list[float | None]:
    column = reading.options.mapping.get("reward")
    if column is None:
        between = _reward_columns(frame)
        if len(between) != 1:
            shown = listed(between) or "none"
            reading.note(
                f"reward: unknown, because one column of rewards is needed and the log has {shown}; use --map reward=COLUMN"
            )
            return [None] * len(frame)
        column = between[0]
        reading.note(f"reward: taken from {column!r}")
    if column not in frame.columns or not pd.api.types.is_numeric_dtype(frame[column].dtype):
        raise TraceError(f"{path}: --map reward={column} names no column of numbers; one of {listed(frame.columns)} is needed")
    return [finite(value) for value in frame[column].tolist()]


FORMAT = Format(
    "trl", "TRL's GRPO completions (completions_{step}.parquet)", detect, read, known_fields=FIELDS, expected=FIELDS
)  # fmt: skip
