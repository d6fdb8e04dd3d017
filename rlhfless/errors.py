"""Exceptions of no package in particular whose message is meant for people: one sentence.

The packages' own (``PlanningError``, ``TraceError``, ...) live with them; ``rlhfless.cli`` knows them all.
"""

from __future__ import annotations


class MissingExtra(ImportError):
    """An optional package is needed; the message names the extra to install."""


def missing_extra(what: str, package: str | None, extra: str) -> MissingExtra:
    """The one sentence said when an optional package is not installed."""
    return MissingExtra(f"{what} needs {package}, which is not installed: pip install 'rlhfless[{extra}]'", name=package)


def reason(error: BaseException) -> str:
    """Why something failed, in brackets of a sentence: the first line of the error's message, of which 200 characters are
    enough, or its type's name where it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")[:200]


class InputError(ValueError):
    """A wrong option or file that no package below the command line knows of."""
