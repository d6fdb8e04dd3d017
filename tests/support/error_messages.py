"""The messages of errors: a test states the class, and what the message has to name: option, value, place, remedy.

No test holds a whole sentence, so that a sentence can be improved without touching a test.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from command_line import Result


@contextmanager
def refused(error: type[BaseException] | tuple[type[BaseException], ...], *named: object) -> Iterator[Any]:
    """Expect an error whose message names all of ``named``.

    Args:
        error: The class of the error, as for ``pytest.raises``.
        named: What the message has to hold: values, rows, columns, files, options. Anything but a string is named by
            its ``repr``.

    Yields:
        What ``pytest.raises`` yields.
    """
    with pytest.raises(error) as refusal:
        yield refusal
    check_message(str(refusal.value), *named)


@contextmanager
def warned(category: type[Warning], *named: object) -> Iterator[Any]:
    """Expect a warning, as ``refused`` expects an error; the first of the category is the one that is read."""
    with pytest.warns(category) as told:
        yield told
    message = next(str(one.message) for one in told if issubclass(one.category, category))
    check_message(message, *named)


def refused_command(result: Result, *named: object, began: bool = False) -> None:
    """Expect that the command line refused, in one line that names all of ``named``.

    Args:
        result: What the command line returned.
        named: As for ``refused``.
        began: As for ``refusal_line``.
    """
    check_message(refusal_line(result, began=began), *named)


def refusal_line(result: Result, *, began: bool = False) -> str:
    """Return the one line with which the command line refused; for messages that keep a pattern.

    Args:
        began: A run of training had begun and failed later: its first line stands before that line.

    Bars of progress, which begin with a carriage return, may stand before it, such as that of loading a model.
    """
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    *lines, rest = result.stderr.split("\n")
    said = [line for line in lines if not line.startswith("\r")]
    if began:
        first, *said = said
        assert first.startswith("train: "), first
    assert (len(said), rest) == (1, ""), result.stderr
    assert said[0].startswith("rlhfless: "), said[0]
    assert "Traceback" not in result.stderr
    return said[0]


def check_message(message: str, *named: object) -> None:
    """Assert that a message names all of ``named``."""
    texts = [one if isinstance(one, str) else repr(one) for one in named]
    missing = [text for text in texts if text not in message]
    assert not missing, f"the message does not name {missing}: {message}"
