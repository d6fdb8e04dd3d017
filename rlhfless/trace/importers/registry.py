"""Registry of log formats, and ``import_log``: recognise a log, read it, and summarise what was found.

Importing writes nothing, so a refused log leaves no files behind.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pandas as pd

from rlhfless.errors import NO_SUCH_LOG, UserError, reason
from rlhfless.trace.errors import TraceError, UnreadableLog
from rlhfless.trace.importers import (
    areal,
    engine_lines,
    imported_scalars,
    model_config,
    nemo_rl,
    prime_rl,
    slime,
    step_table,
    table,
    tensorboard,
    tracker_rows,
    trl,
    trl_scalars,
    verl,
    verl_scalars,
    wandb_run,
)
from rlhfless.trace.importers.assemble import assemble
from rlhfless.trace.importers.console import console
from rlhfless.trace.importers.engine_lines import engine_frame, read_engine, write_engine
from rlhfless.trace.importers.folders import only_log
from rlhfless.trace.importers.formats import Format, refuse_unknown
from rlhfless.trace.importers.import_session import ImportOptions, ImportSession
from rlhfless.trace.importers.run_facts import read_facts, write_facts
from rlhfless.trace.importers.scalars import (
    RUN,
    joined,
    read_scalars,
    rows_of_run,
    runs_of,
    scalars_frame,
    write_scalars,
)
from rlhfless.trace.importers.summary import ImportSummary, summarize
from rlhfless.trace.io import Trace, read_trace
from rlhfless.trace.metrics.cross_check import COUNTED, CrossCheck, counted_steps, cross_check
from rlhfless.trace.schema.casts import listed
from solver.model.plurals import counted

FORMATS: tuple[Format, ...] = (
    nemo_rl.FORMAT, slime.FORMAT, trl.FORMAT, trl_scalars.FORMAT, areal.FORMAT, verl.FORMAT, verl_scalars.FORMAT,
    prime_rl.FORMAT, tensorboard.FORMAT, wandb_run.FORMAT, imported_scalars.FORMAT, model_config.FORMAT, console.FORMAT,
    engine_lines.FORMAT, tracker_rows.FORMAT, step_table.FORMAT, table.FORMAT,
)  # fmt: skip
"""In the order in which they are asked: any file of lines is a table too, so that is asked last."""

ORDER, PROMPTS = "dispatch_order", "prompts"  # of meta.json: "unknown", or left out
MAPPED = (table.FORMAT.name, trl.FORMAT.name)


@dataclass(frozen=True, eq=False)
class ImportedLog:
    """The result of importing a log.

    Attributes:
        rollouts: one validated row per response; None if the log has only averages per step.
        scalars: one row per logged step (columns: see ``scalars.py``); no rows if the log has none.
        summary: what was found and what is missing.
        format: name of the log's format.
        source: path of the log.
        dispatch_order_known, prompts_known: see ``ImportSession``.
        engine: the engine's statistics lines (columns: see ``engine_lines.py``); no rows if the log has none.
        facts: numbers of the whole run (see ``run_facts.py``).
        framework: the framework that wrote the log; empty if unknown.
        max_response_tokens: the run's limit on response length, if the user states it.
    """

    rollouts: pd.DataFrame | None
    scalars: pd.DataFrame
    summary: ImportSummary
    format: Format
    source: Path
    dispatch_order_known: bool = True
    prompts_known: bool = True
    engine: pd.DataFrame = field(default_factory=lambda: engine_frame(()))
    facts: Mapping[str, float] = field(default_factory=dict)
    framework: str = ""
    max_response_tokens: int | None = None

    def trace(self) -> Trace:
        """Return the responses as a trace in memory.

        Raises:
            LogWithoutResponses: the log has no responses.
        """
        if self.rollouts is None:
            raise LogWithoutResponses(self)
        meta: dict[str, object] = {
            "imported_from": self.source.name,
            "framework": self.format.name,
            "import_notes": list(self.summary.notes),
        }
        if not self.dispatch_order_known:
            meta[ORDER] = "unknown"
        if not self.prompts_known:
            meta[PROMPTS] = "unknown"
        if self.max_response_tokens is not None:
            meta["config"] = {"rollout": {"max_response_tokens": self.max_response_tokens}}
        return Trace(self.rollouts, meta=meta, source=str(self.source))

    def opened(self) -> OpenedLog:
        """Return the log as ``open_log`` does.

        Raises:
            LogWithoutResponses: the log has no responses.
        """
        return OpenedLog(self.trace(), self.scalars, self.format.name, self.summary, self.engine, self.facts)

    def of_run(self, run: str | None) -> ImportedLog:
        """Return the log of one run only; None returns all of it.

        Raises:
            TraceError: the log names no such run.
        """
        if run is None:
            return self
        if self.rollouts is None:
            return replace(self, scalars=rows_of_run(self.scalars, run, self.source))
        of_one = self.opened().of_run(run)
        return replace(self, rollouts=of_one.trace.rollouts, scalars=of_one.scalars)

    def save(self, folder: str | Path) -> Path:
        """Write the log as a trace folder: responses, averages per step, engine statistics and numbers of the run.

        A log without responses may be added to an existing trace folder, so that all logs of a run are in one folder. Existing
        values that this log lacks are kept.

        Raises:
            TraceError: the log has neither responses nor scalars; the folder has such a file already and this log has
                responses, or it has the same scalars, or it cannot be written.
        """
        folder = Path(folder)
        scalars = self.scalars
        if self.rollouts is None and scalars.empty:
            raise TraceError(
                f"{self.source}: has neither responses nor scalars of steps, so there is nothing to write; name a log that "
                "has, or read the log as it is"
            )
        if (folder / "scalars.parquet").exists() and len(scalars):
            before = read_scalars(folder)
            if self.rollouts is not None or set(scalars.columns) <= set(before.columns):
                raise TraceError(f"{folder}: already contains scalars; name another folder")
            scalars = joined(before, scalars)
        if self.rollouts is not None:
            self.trace().save(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise TraceError(f"{folder}: cannot be made ({error.strerror}); a writable folder is needed") from error
        return _save_beside(folder, replace(self, scalars=scalars))


class LogWithoutResponses(TraceError):
    """The log has no responses; it has only averages per step, engine statistics or numbers of the whole run.

    Attributes:
        log: the imported log.
    """

    def __init__(self, log: ImportedLog) -> None:
        super().__init__(
            f"{log.source}: has no responses; the rollout log of the same run is needed, or run.diagnosis() and "
            "`rlhfless report`, which do without"
        )
        self.log = log


def recognise(path: str | Path) -> Format:
    """Return the format of a log; of a folder that is no framework's, the format of the one log in it.

    Raises:
        TraceError: there is no such path, it is empty, or no importer recognises it.
    """
    return _found(Path(path))[1]


def _found(path: Path) -> tuple[Path, Format]:
    """Return the log that a path names, which may be in a folder, and its format."""
    with _one_sentence(path, "a log"):
        _refuse_nothing(path)
        refuse_utf16(path)
        if (log_format := _format_of(path)) is not None:
            return path, log_format
        if path.is_dir() and (inside := only_log(path, lambda file: _format_of(file) is not None)) is not None:
            return _found(inside)
    refuse_unknown(path, [log_format.name for log_format in FORMATS], console.missing(path))


def _format_of(path: Path) -> Format | None:
    return next((log_format for log_format in FORMATS if log_format.detect(path)), None)


def _named_log(path: Path, log_format: Format) -> Path:
    """Return the log of a stated format that a path names: of a folder that is none, the one file in it that is."""
    with _one_sentence(path, log_format.title):
        _refuse_nothing(path)
        if not path.is_dir() or log_format.detect(path):
            return path
        return only_log(path, log_format.detect) or path


def import_log(path: str | Path, options: ImportOptions | None = None, framework: str = "auto") -> ImportedLog:
    """Import a log of any supported framework.

    Args:
        path: the file or folder as the framework wrote it, or a folder with nothing but that file.
        options: the tokenizer of text-only logs, the mapping of tables, the response limit, ...
        framework: name of a format, or ``auto``.

    Raises:
        TraceError: one sentence: file, line, field, value, and what would be right.
        MissingExtra: an optional package is needed.
    """
    path, options = Path(path), options or ImportOptions()
    if framework == "auto":
        path, log_format = _found(path)
    else:
        log_format = named(framework)
        path = _named_log(path, log_format)
    with _one_sentence(path, log_format.title):
        return _imported(path, options, log_format)


def _refuse_nothing(path: Path) -> None:
    if not path.exists():
        raise TraceError(f"{path}: {NO_SUCH_LOG}")
    if path.is_file() and path.stat().st_size == 0:
        raise TraceError(f"{path}: is empty; a log with at least one step or response is needed")
    if path.is_dir() and not any(path.iterdir()):
        raise TraceError(f"{path}: is an empty folder; a log is needed")


UTF_16 = (b"\xff\xfe", b"\xfe\xff")  # byte order marks


def refuse_utf16(path: Path) -> None:
    """Refuse a text of two bytes per letter, as PowerShell writes what is redirected.

    Raises:
        TraceError: the file begins with the mark of UTF-16.
    """
    if not path.is_file():
        return
    with open(path, "rb") as file:
        if file.read(2) in UTF_16:
            raise TraceError(
                f"{path}: is written in UTF-16, as PowerShell does; a text in UTF-8 is needed: iconv -f utf-16 -t utf-8 "
                f"{path.name} > utf8{path.suffix}"
            )


def _imported(path: Path, options: ImportOptions, log_format: Format) -> ImportedLog:
    if options.mapping and log_format.name not in MAPPED:
        raise TraceError(
            f"--map is for tables of responses, and {path} is {log_format.title}; leave --map out, or read the log with "
            "--from table"
        )
    if options.where is not None and log_format is not table.FORMAT:
        raise TraceError(
            f"--where is for tables of responses, and {path} is {log_format.title}; leave --where out, or read the log with "
            "--from table"
        )
    reading = ImportSession(path, options)
    try:
        rollouts = assemble(reading, log_format.read(reading))
    finally:
        reading.close()
    if rollouts is None and not reading.scalars and not reading.engine and not reading.facts:
        raise TraceError(f"{path}: nothing in it could be read as {log_format.title}; at least one response is needed")
    scalars, again = scalars_frame(reading.scalars)
    if again:
        reading.note(f"restarts: the scalars of {counted(again, 'step')} were logged twice; the later ones count")
    if len(names := runs_of(scalars)) > 1:
        reading.note(f"runs: {listed(names)}; --run names one of them")
    for check in contradictions(rollouts, scalars):
        reading.note(f"contradiction: {check}")
    summary = summarize(
        rollouts,
        reading.duplicates,
        tuple(reading.notes),
        tuple(sorted(reading.fields - log_format.known_fields)) if log_format.known_fields else (),
        tuple(sorted(log_format.expected - reading.fields)),
        len(scalars),
    )
    return ImportedLog(
        rollouts, scalars, summary, log_format, path, reading.dispatch_order_known, reading.prompts_known,
        engine_frame(reading.engine), reading.facts, reading.framework or _framework(log_format), options.max_response_tokens,
    )  # fmt: skip


def _framework(log_format: Format) -> str:
    """Return the framework whose format it is; empty for one of any framework, whose fields nobody can expect."""
    return log_format.name.removesuffix("-scalars") if log_format.expected else ""


def contradictions(rollouts: pd.DataFrame | None, scalars: pd.DataFrame) -> list[CrossCheck]:
    """Return where the log's scalars contradict its responses; empty if the responses are of several runs."""
    if rollouts is None or scalars.empty or rollouts["run"].nunique() > 1:
        return []
    return [c for c in cross_check(scalars, counted_steps(rollouts), COUNTED, every_step=True) if c.contradicts]


@dataclass(frozen=True, eq=False)
class OpenedLog:
    """A trace folder or another framework's log, opened for reading.

    Attributes:
        trace: the responses, and everything else that the trace contains.
        scalars: one row per logged step; no rows if there are none.
        framework: name of the log's format; for a trace folder, the format that it was imported from, or empty.
        summary: what the import found; None for a trace folder.
        engine, facts: as in ``ImportedLog``.
    """

    trace: Trace
    scalars: pd.DataFrame
    framework: str
    summary: ImportSummary | None = None
    engine: pd.DataFrame = field(default_factory=lambda: engine_frame(()))
    facts: Mapping[str, float] = field(default_factory=dict)

    @property
    def dispatch_order_known(self) -> bool:
        """Whether responses are in the order in which prompts were dispatched."""
        return self.trace.meta.get(ORDER) != "unknown"

    @property
    def prompts_known(self) -> bool:
        """Whether the log says which responses are to the same prompt."""
        return self.trace.meta.get(PROMPTS) != "unknown"

    def of_run(self, run: str | None) -> OpenedLog:
        """Return the log of one run only; None returns all of it.

        Raises:
            TraceError: the log has no such run.
        """
        if run is None:
            return self
        tables = {name: getattr(self.trace, name) for name in ("rollouts", "allocations", "spans", "events")}
        names = sorted(tables["rollouts"]["run"].unique())
        if run not in names:
            raise TraceError(
                f"{self.trace.source or 'the log'}: has no run {run}; one of {', '.join(map(str, names))} is needed"
            )
        run_tables = {name: table[table["run"] == run].reset_index(drop=True) for name, table in tables.items()}
        scalars = rows_of_run(self.scalars, run, self.trace.source) if RUN in self.scalars.columns else self.scalars
        trace = Trace(**run_tables, plans=self.trace.plans, meta=self.trace.meta, source=self.trace.source)
        return replace(self, trace=trace, scalars=scalars)

    def save(self, folder: str | Path) -> Path:
        """Write the trace into a new folder, with averages per step, engine statistics and numbers of the run.

        Raises:
            TraceError: the folder has a trace already, or cannot be written.
        """
        return _save_beside(self.trace.save(folder), self)


def _save_beside(folder: Path, log: ImportedLog | OpenedLog) -> Path:
    if len(log.scalars):
        write_scalars(folder, log.scalars)
    if len(log.engine):
        write_engine(folder, log.engine)
    if log.facts:
        write_facts(folder, log.facts, log.framework)
    return folder


def is_trace(path: Path) -> bool:
    """Return whether a folder holds a trace of ours.

    Raises:
        TraceError: it cannot be looked into.
    """
    with _one_sentence(path, "a log"):
        return any((path / name).is_file() for name in ("meta.json", "rollouts.parquet"))


def open_log(path: str | Path, options: ImportOptions | None = None, framework: str = "auto") -> OpenedLog:
    """Open a trace folder, or a log of any known format, which is recognised.

    Raises:
        LogWithoutResponses: it has no responses.
        TraceError: it is neither, or is damaged.
        MissingExtra: an optional package is needed.
    """
    path = Path(path)
    if framework == "auto" and is_trace(path):
        options = options or ImportOptions()
        for name, given in (("--map", options.mapping), ("--where", options.where)):
            if given:
                raise TraceError(f"{name} is for tables, and {path} is a trace; leave {name} out, or name a table")
        limits = options.limits
        with _one_sentence(path, "a trace"):
            trace = read_trace(path, limits)
            framework = str(trace.meta.get("framework") or "")
            facts, _ = read_facts(path, limits)
            return OpenedLog(trace, read_scalars(path, limits), framework, None, read_engine(path, limits), facts)
    return import_log(path, options, framework).opened()


def read_log(path: str | Path, options: ImportOptions | None = None, framework: str = "auto") -> OpenedLog | ImportedLog:
    """Open a trace folder or a log as ``open_log`` does; a log without responses is returned as an ``ImportedLog``.

    Raises:
        TraceError, MissingExtra: as ``open_log``.
    """
    try:
        return open_log(path, options, framework)
    except LogWithoutResponses as error:
        return error.log


def named(name: str) -> Format:
    """Return the format with this name.

    Raises:
        TraceError: there is none.
    """
    for log_format in FORMATS:
        if log_format.name == name:
            return log_format
    raise TraceError(
        f"--from {name}: is not a known format; one of {', '.join(log_format.name for log_format in FORMATS)} is needed"
    )


@contextmanager
def _one_sentence(path: Path, what: str) -> Iterator[None]:
    """Turn whatever pandas, pyarrow or the system raise while a log is read into one sentence.

    Args:
        path: of the log. what: it is read as, in words.

    Raises:
        UnreadableLog: something that is no error for users was raised.
    """
    try:
        yield
    except (UserError, MemoryError):
        raise
    except Exception as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else f"{type(error).__name__}: {reason(error)}"
        raise UnreadableLog(f"{path}: cannot be read as {what} ({why}); an intact log of a known format is needed") from error
