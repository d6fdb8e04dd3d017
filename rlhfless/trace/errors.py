"""The one exception of the trace package for wrong input.

Every message is one sentence: which file, row, column and value, and what would be right.
"""

from __future__ import annotations

from rlhfless.errors import UserError


class TraceError(UserError, ValueError):
    """A table, a trace folder or a log cannot be used; the message says where it is wrong and what would be right."""


class UnreadableLog(TraceError):
    """A library failed while it read a log, in a way that no importer foresaw; the message quotes it."""
