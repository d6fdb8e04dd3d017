"""Options of commands that read a log, each defined once, and opening the log with them.

``log_options`` adds them to a command, as the argument ``log``. ``import`` writes a log as it is, so it has only those of
``import_options``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from rlhfless.cli.options import Command, Decorator, together
from rlhfless.errors import InputError

if TYPE_CHECKING:
    from rlhfless.trace import ImportedLog, ImportOptions, OpenedLog


@dataclass(frozen=True)
class LogOptions:
    """Options that say how to read a log."""

    framework: str = "auto"
    tokenizer: str | None = None
    maps: tuple[str, ...] = ()
    where: str | None = None
    run: str | None = None
    max_response_tokens: int | None = None
    responses_per_step: int | None = None
    samples_per_prompt: int | None = None

    def import_options(self, keep: Iterable[str] = (), *, unsafe_pickle: bool = False) -> ImportOptions:
        """Return the options of an import.

        Raises:
            InputError: a mapping is not of the form OURS=THEIRS, or RLHFLESS_LIMITS holds no limits.
        """
        from rlhfless.trace import ImportOptions

        return ImportOptions(
            self.tokenizer,
            column_mapping(self.maps),
            self.max_response_tokens,
            frozenset(keep),
            unsafe_pickle=unsafe_pickle,
            progress=True,
            where=self.where,
        )

    def read(self, path: Path, keep: Iterable[str] = ()) -> ReadLog:
        """Return the log at a path, reduced to the run that --run names; with drawn lengths where it has scalars alone.

        Args:
            keep: further columns to read from a table.

        Raises:
            InputError: a mapping is not of the form OURS=THEIRS, or options of drawn lengths are given for logged ones.
            TraceError: the format is unknown, the log is damaged, it has no such run, or its scalars do not say enough.
        """
        from rlhfless.trace import LogWithoutResponses, open_log

        try:
            opened = open_log(path, self.import_options(keep), self.framework).of_run(self.run)
        except LogWithoutResponses as error:
            return self._drawn(error.log.of_run(self.run))
        self._refuse_draws()
        return ReadLog(opened)

    def open_any(self, path: Path, keep: Iterable[str] = ()) -> OpenedLog | ImportedLog:
        """Return the log at a path as it is, reduced to the run that --run names; an import where it has no responses.

        Args:
            keep: further columns to read from a table.

        Raises:
            InputError: a mapping is not of the form OURS=THEIRS, or options of drawn lengths are given for logged ones.
            TraceError: the format is unknown, the log is damaged, or it has no such run.
        """
        from rlhfless.trace import OpenedLog, read_log

        opened = read_log(path, self.import_options(keep), self.framework).of_run(self.run)
        if isinstance(opened, OpenedLog):
            self._refuse_draws()
        return opened

    def _refuse_draws(self) -> None:
        if self.responses_per_step or self.samples_per_prompt:
            raise InputError(
                "--responses-per-step and --samples-per-prompt are for logs of scalars alone, and this log has responses; "
                "leave them out"
            )

    def open_with_warnings(self, path: Path, keep: Iterable[str] = ()) -> OpenedLog:
        """Return the log as ``read`` does; drawn lengths are the first draw. Lines on standard error say what is assumed."""
        from rlhfless.report.not_stated import PROMPTS_ASSUMED

        read = self.read(path, keep)
        prompts = [] if read.opened.prompts_known else [PROMPTS_ASSUMED]
        for sentence in (*read.drawn_sentences, *read.not_stated.values(), *prompts):
            click.echo(f"rlhfless: warning: {sentence}", err=True)
        return read.opened

    def open_responses(self, path: Path, keep: Iterable[str] = ()) -> OpenedLog:
        """Return the log as ``read`` does, without drawing lengths.

        Raises:
            LogWithoutResponses: it has scalars alone.
            InputError, TraceError: as ``read``.
        """
        from rlhfless.trace import open_log

        if self.responses_per_step or self.samples_per_prompt:
            raise InputError(
                "--responses-per-step and --samples-per-prompt draw lengths, and logged ones are needed here; leave them out"
            )
        return open_log(path, self.import_options(keep), self.framework).of_run(self.run)

    def _drawn(self, log: ImportedLog) -> ReadLog:
        from rlhfless.analysis.drawn_lengths import StepSizes, drawn_logs
        from rlhfless.report.not_stated import RESPONSES, RESPONSES_ASSUMED

        sizes = StepSizes(self.responses_per_step, self.samples_per_prompt, self.max_response_tokens)
        drawn = drawn_logs(log, sizes)
        assumed = self.responses_per_step is None and "responses" not in log.scalars
        return ReadLog(drawn[0], drawn, {RESPONSES: RESPONSES_ASSUMED} if assumed else {})


class ReadLog(NamedTuple):
    """A log that a command reads.

    Attributes:
        opened: the responses. drawn: of a log of scalars alone, one log per draw of its lengths; ``opened`` is the first.
        not_stated: what was assumed of the drawn lengths, by what was not stated.
    """

    opened: OpenedLog
    drawn: Sequence[OpenedLog] = ()
    not_stated: Mapping[str, str] = {}

    @property
    def drawn_sentences(self) -> list[str]:
        """How lengths were drawn, in a sentence; empty where they were logged."""
        from rlhfless.analysis.drawn_lengths import DRAWN

        return [self.opened.trace.meta[DRAWN]] if self.drawn else []


def column_mapping(pairs: tuple[str, ...]) -> dict[str, str]:
    """Return ``OURS=THEIRS`` pairs as a mapping.

    Raises:
        InputError: a pair is of another form.
    """
    mapping = {}
    for pair in pairs:
        ours, equals, theirs = pair.partition("=")
        if not equals or not ours or not theirs:
            raise InputError(f"--map {pair}: is not of the form OURS=THEIRS; prompt_id=prompt_index is an example")
        mapping[ours] = theirs
    return mapping


def log_options(command: Command) -> Command:
    """Add all options of reading a log, as the argument ``log``."""
    return together("log", lambda: LogOptions, [OPTIONS[field.name] for field in fields(LogOptions)])(command)


def import_options(command: Command) -> Command:
    """Add the options of reading a log as it is, whole and without drawn lengths, as the argument ``log``."""
    names = [field.name for field in fields(LogOptions) if field.name not in ANALYSED]
    return together("log", lambda: LogOptions, [OPTIONS[name] for name in names])(command)


ANALYSED = ("run", "responses_per_step", "samples_per_prompt")
"""Options that choose or draw responses, for what is computed of a log."""

OPTIONS: dict[str, Decorator] = {
    "framework": click.option(
        "--from",
        "framework",
        default="auto",
        show_default=True,
        metavar="FORMAT",
        help="Read the log as this format, such as verl; auto recognises it.",
    ),
    "tokenizer": click.option(
        "--tokenizer", help="Count tokens with this tokenizer (folder or hub name) where only texts are logged."
    ),
    "maps": click.option(
        "--map",
        "maps",
        multiple=True,
        metavar="OURS=THEIRS",
        help="Read column THEIRS of a table as OURS: prompt_id=uid, prompt_id=split+uid (joined), step=0 (constant), or "
        "step=row/128 (batches of rows); repeatable.",
    ),
    "where": click.option(
        "--where", metavar="CONDITION", help="Read only a table's rows with, for example, \"split == 'train'\"."
    ),
    "run": click.option("--run", help="Read the run with this name, where the log holds several."),
    "max_response_tokens": click.option(
        "--max-response-tokens",
        type=click.IntRange(1),
        help="The run truncated responses at this many tokens; needed for scalars without the longest response (OpenRLHF).  "
        "[default: the longest response of the log]",
    ),
    "responses_per_step": click.option(
        "--responses-per-step",
        type=click.IntRange(1),
        help="Draw this many lengths per step of a log of scalars.  [default: from its tokens]",
    ),
    "samples_per_prompt": click.option(
        "--samples-per-prompt", type=click.IntRange(1), help="So many responses of each prompt, for a log of scalars."
    ),
}
"""By field of ``LogOptions``."""

HEADING = {"How to read the log": tuple(OPTIONS)}
"""For commands whose help has headings (``WithHeadings``)."""
