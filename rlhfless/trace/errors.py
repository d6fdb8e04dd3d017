"""The one exception of the trace package for wrong input.

Every message is one sentence: which file, row, column and value, and what would be right.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rlhfless.errors import UserError, reason


class TraceError(UserError, ValueError):
    """A table, a trace folder or a log cannot be used; the message says where it is wrong and what would be right."""


class UnreadableLog(TraceError):
    """A library failed while it read a log, in a way that no importer foresaw; the message quotes it."""


@contextmanager
def one_sentence(path: Path, what: str) -> Iterator[None]:
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
