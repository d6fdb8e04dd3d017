"""Exceptions that several packages share; the message is one sentence for users.

Each package defines its own further ones (``PlanningError``, ``TraceError``, ...). All of them are a ``UserError``, so that the
command line prints their sentence, and a notebook shows it without a traceback.
"""

from __future__ import annotations

from solver.model.errors import UserError


class MissingExtra(UserError, ImportError):
    """An optional package is needed; the message names the extra to install."""


def missing_extra(what: str, package: str | None, extra: str) -> MissingExtra:
    """Return the error for an optional package that is not installed; its message names the extra to install."""
    return MissingExtra(f"{what} needs {package}, which is not installed: pip install 'rlhfless[{extra}]'", name=package)


def reason(error: BaseException) -> str:
    """Return the first line of an error's message, at most 200 characters, or its type's name where it has no message.

    Messages for users quote it in brackets.
    """
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")[:200]


class InputError(UserError, ValueError):
    """An option, argument or file is wrong."""
