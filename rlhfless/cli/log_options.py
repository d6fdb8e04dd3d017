"""How a log is read: the options of ``report`` and ``convert``, and opening a log with or without them."""

from __future__ import annotations

import contextlib
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from pydantic import Field

from rlhfless.cli.options import Count, Options, shown
from rlhfless.errors import InputError, UserError

if TYPE_CHECKING:
    from rlhfless.diagnosis import Diagnosis
    from rlhfless.trace import ImportedLog, ImportOptions, OpenedLog


class ReadOptions(Options):
    """How to read a log, and how many lengths are drawn where it has scalars alone."""

    heading: ClassVar[str] = "How to read the log"
    framework: str = Field(
        "auto", validation_alias="from", json_schema_extra=shown("FORMAT"),
        description="Format of the log, such as verl; auto recognises it.",
    )  # fmt: skip
    tokenizer: str | None = Field(
        None, description="Tokenizer (folder or hub name) that counts tokens where the log has only texts."
    )
    maps: tuple[str, ...] = Field(
        (), validation_alias="map", json_schema_extra=shown("OURS=THEIRS"),
        description="Read the table's column THEIRS as our column OURS: prompt_id=uid, prompt_id=split+uid (columns joined), "
        "step=0 (a constant), or step=row/128 (128 rows per step); repeatable.",
    )  # fmt: skip
    where: str | None = Field(
        None, json_schema_extra=shown("CONDITION"),
        description="Read only a table's rows with, for example, \"split == 'train'\".",
    )  # fmt: skip
    max_response_tokens: Count | None = Field(
        None,
        description="Length at which the run truncated responses, in tokens; needed if averages are logged without the "
        "longest response (OpenRLHF).  [default: the longest response of the log]",
    )
    run: str | None = Field(
        None, json_schema_extra=shown("NAME"), description="Name of the run to read, if the log holds several."
    )
    responses_per_step: Count | None = Field(
        None,
        description="Responses per step; needed if the log has only averages and does not say it.  [default: from its tokens]",
    )
    samples_per_prompt: Count | None = Field(None, description="Responses per prompt; needed if the log has only averages.")

    @property
    def named_columns(self) -> dict[str, str]:
        """Our columns by those of the table.

        Raises:
            InputError: a pair is not of the form OURS=THEIRS.
        """
        mapping = {}
        for pair in self.maps:
            ours, equals, theirs = pair.partition("=")
            if not equals or not ours or not theirs:
                raise InputError(f"--map {pair}: is not of the form OURS=THEIRS; prompt_id=prompt_index is an example")
            mapping[ours] = theirs
        return mapping

    def import_options(self, keep: Iterable[str] = (), *, unsafe_pickle: bool = False) -> ImportOptions:
        """Return the options of an import.

        Raises:
            InputError: a mapping is not of the form OURS=THEIRS, or RLHFLESS_LIMITS holds no limits.
        """
        from rlhfless.trace import ImportOptions

        return ImportOptions(
            self.tokenizer,
            self.named_columns,
            self.max_response_tokens,
            frozenset(keep),
            unsafe_pickle=unsafe_pickle,
            progress=True,
            where=self.where,
        )

    def open_responses(self, path: Path, keep: Iterable[str] = ()) -> OpenedLog:
        """Return the log as ``read`` does, without drawing lengths.

        Raises:
            LogWithoutResponses: it has scalars alone.
            InputError, TraceError: as ``read``.
        """
        from rlhfless.trace import open_log

        return open_log(path, self.import_options(keep), self.framework).of_run(self.run)

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
            return self.drawn(error.log.of_run(self.run))
        self.refuse_draws()
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
            self.refuse_draws()
        return opened

    def refuse_draws(self) -> None:
        """Refuse what is stated of a log of scalars where responses are read."""
        if self.responses_per_step or self.samples_per_prompt:
            raise InputError(
                "--responses-per-step and --samples-per-prompt are for a log of scalars alone, and responses are read here; "
                "leave them out"
            )

    def drawn(self, log: ImportedLog, said: Diagnosis | None = None) -> ReadLog:
        """Return a log of scalars alone with drawn lengths.

        Args:
            said: the diagnosis of the log with all that is stated of it, which derives the responses of a step where the
                scalars do not say them; by the log and these options alone when None.

        Raises:
            TraceError: its scalars do not say enough.
        """
        from rlhfless.analysis.assumptions import RESPONSES
        from rlhfless.analysis.drawn_lengths import TOTAL_TOKENS, StepSizes, drawn_logs
        from rlhfless.diagnosis import Stated, diagnose
        from rlhfless.report.not_stated import RESPONSES_ASSUMED, responses_assumed

        sizes = StepSizes(self.responses_per_step, self.samples_per_prompt, self.max_response_tokens).or_of(log.facts)
        stated = Stated(responses_per_step=self.responses_per_step, samples_per_prompt=self.samples_per_prompt)
        responses = (said or diagnose(log, stated)).numbers.get("responses_per_step")
        if responses is not None and responses.value >= 1:
            sizes = replace(sizes, typical_responses=round(responses.value))
        drawn = drawn_logs(log, sizes)
        if sizes.responses_per_step is not None or "responses" in log.scalars:
            return ReadLog(drawn[0], drawn)
        sentence = RESPONSES_ASSUMED
        if responses is not None and TOTAL_TOKENS not in log.scalars:
            sentence = responses_assumed(round(responses.value), responses.how)
        return ReadLog(drawn[0], drawn, {RESPONSES: sentence})


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
        from rlhfless.analysis.framework_defaults import DRAWN

        return [self.opened.trace.meta[DRAWN]] if self.drawn else []


RECOGNISED = ReadOptions.model_validate({})
"""A log that is read without help."""

PLACEHOLDERS = {
    "--from": "FORMAT", "--tokenizer": "MODEL", "--map": "OURS=THEIRS", "--where": "CONDITION", "--max-response-tokens": "N",
    "--run": "NAME", "--responses-per-step": "N", "--samples-per-prompt": "N",
}  # fmt: skip
"""The options of reading, and what stands for their values in a line to type."""
NAMED = re.compile(rf"(?:{'|'.join(PLACEHOLDERS)})(?![\w-])(?: [^\s,;]*[=/][^\s,;]*)?")
"""An option of reading in a message, with its value where that is an example or a column."""


def open_recognised(path: Path) -> OpenedLog:
    """Return a trace, or a log that is recognised without help; of one of scalars alone the first draw of its lengths.

    Lines on standard error say what is assumed.

    Raises:
        TraceError, InputError: the log cannot be read, or has to be converted first; the message has the line to type.
    """
    from rlhfless.report.not_stated import PROMPTS_ASSUMED
    from rlhfless.trace.schema.validation import refuse_several_runs

    with converted_first(path):
        read = RECOGNISED.read(path)
        refuse_several_runs(read.opened.trace.runs, path)
    prompts = [] if read.opened.prompts_known else [PROMPTS_ASSUMED]
    for sentence in (*read.drawn_sentences, *read.not_stated.values(), *prompts):
        print(f"rlhfless: warning: {sentence}", file=sys.stderr)
    return read.opened


@contextlib.contextmanager
def converted_first(path: Path) -> Iterator[None]:
    """Context manager in which a refusal that names options of reading says how the log is converted first.

    Raises:
        InputError: there is such a refusal.
    """
    try:
        yield
    except UserError as error:
        if options := list(dict.fromkeys(NAMED.findall(str(error)))):
            typed = [option if " " in option else f"{option} {PLACEHOLDERS[option]}" for option in options]
            raise InputError(f"{error}; convert has these options: {conversion(path, typed)}") from error
        raise


def conversion(path: str | Path, options: Sequence[str]) -> str:
    """Return the line that converts a log with these options of reading, and what is named in its place then."""
    return f"type rlhfless convert {shlex.quote(str(path))} {' '.join(options)} -o out/log, then name out/log as the log"
