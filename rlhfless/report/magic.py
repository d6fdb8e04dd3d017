"""The IPython magic: ``%load_ext rlhfless``, then ``%rlhfless PATH`` shows the report of a trace or a log in the notebook.

The options ``--max-line-mib``, ``--max-rows`` and ``--max-unpacked-gib`` raise the limits of reading, as on the command line.
The page is shown in a sandboxed frame: it may run its own scripts and cannot reach the notebook.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from rlhfless.errors import InputError
from rlhfless.system.templates import render

HEIGHT_PX = 820
OPTIONS: dict[str, tuple[str, type[int] | type[float]]] = {
    "--max-line-mib": ("line_mib", float), "--max-rows": ("rows", int), "--max-unpacked-gib": ("unpacked_gib", float)
}  # fmt: skip
"""Options of the magic → arguments of ``Limits.of_options``."""


class ReportFrame:
    """A page in a frame.

    Attributes:
        page: the page's HTML; the writer of the page has escaped its texts.
    """

    def __init__(self, page: str, name: str) -> None:
        self.page, self._name = page, name

    def _repr_html_(self) -> str:
        return render("report/frame.html.j2", name=self._name, height_px=HEIGHT_PX, page=self.page)

    def __repr__(self) -> str:
        return f"{self._name} ({len(self.page):,} characters of HTML; show it in a notebook, or use `rlhfless report`)"


def report_of(line: str) -> ReportFrame:
    """Return the report of the path in a line of magic.

    Raises:
        InputError: the line is not one path with options of ``OPTIONS``, or a limit is not a number above 0.
        TraceError: there is no trace or log at the path, or it is larger than the limits.
    """
    from rlhfless.analysis.log_texts import texts_of
    from rlhfless.report.write import report_html
    from rlhfless.trace import ImportOptions, Limits, open_log

    try:
        words = shlex.split(line)
    except ValueError:
        raise InputError(f'%rlhfless {line}: a quote is not closed; write a path with quotes in it as "it\'s.csv"') from None
    paths, given = _paths_and_options(words)
    if len(paths) != 1:
        raise InputError(f"%rlhfless takes one path of a trace or a log, not {len(paths)}: %rlhfless out/run")
    path = Path(paths[0]).expanduser()
    log = open_log(path, ImportOptions(keep=texts_of(path), limits=Limits.of_options(**given)))
    return ReportFrame(report_html(log), f"Report of {paths[0]}")


def _paths_and_options(words: list[str]) -> tuple[list[str], dict[str, Any]]:
    """Return the words that are no options, and the numbers that the options give, as arguments of ``Limits.of_options``."""
    paths: list[str] = []
    given: dict[str, Any] = dict.fromkeys(name for name, _ in OPTIONS.values())
    rest = iter(words)
    for word in rest:
        option, equals, value = word.partition("=")
        if not option.startswith("--"):
            paths.append(word)
            continue
        if option not in OPTIONS:
            raise InputError(f"%rlhfless has no option {option}; its options are {', '.join(OPTIONS)}")
        value = value if equals else next(rest, "")
        name, number = OPTIONS[option]
        try:
            given[name] = number(value)
        except ValueError:
            kind = "whole number" if number is int else "number"
            raise InputError(f"{option} is {value!r}; a {kind} above 0 is needed") from None
    return paths, given


def register(ipython: Any) -> None:
    """Register the magic ``%rlhfless`` with an IPython shell."""
    ipython.register_magic_function(report_of, magic_kind="line", magic_name="rlhfless")
