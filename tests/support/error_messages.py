"""The messages of errors: tests pin their class and what they must name, a file per folder of tests holds the sentences.

A test says which class of error it expects and which values or places the message has to name. The whole message is
compared with ``__snapshots__/error_messages.ambr`` beside the test, so that all sentences of a package are read, and
improved, in one file. A message of which a part is another library's, or depends on what ran first, keeps a pattern
(``pytest.raises``). ``make messages`` writes these files anew; the diff is what there is to review.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from syrupy.assertion import SnapshotAssertion
from syrupy.extensions.amber import AmberSnapshotExtension
from syrupy.location import PyTestLocation

PROJECT = Path(__file__).parents[2]
_running: list[pytest.FixtureRequest] = []  # the test that runs now


class ErrorMessages(AmberSnapshotExtension):
    """One file of messages per folder of tests; a message is named by its test's file and name."""

    @classmethod
    def get_file_basename(cls, *, test_location: PyTestLocation, index: Any) -> str:
        return "error_messages"

    @classmethod
    def get_snapshot_name(cls, *, test_location: PyTestLocation, index: Any = 0) -> str:
        return f"{test_location.basename}.{super().get_snapshot_name(test_location=test_location, index=index)}"

    @classmethod
    def matches_test_location(cls, *, test_location: PyTestLocation, snapshot_location: str) -> bool:
        return Path(snapshot_location).parent.parent == Path(test_location.filepath).parent


@pytest.fixture(autouse=True)
def _running_test(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tell ``refused`` and ``warned`` which test they are in."""
    _running.append(request)
    yield
    _running.pop()


@pytest.fixture
def error_messages(snapshot: SnapshotAssertion) -> SnapshotAssertion:
    """The messages of this test, in the order in which it sees them."""
    return snapshot.use_extension(ErrorMessages)


@contextmanager
def refused(error: type[BaseException] | tuple[type[BaseException], ...], *named: object) -> Iterator[Any]:
    """Expect an error whose message names all of ``named`` and reads as its snapshot says.

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


def refused_command(result: Result, *named: object) -> None:
    """Expect that the command line refused, in one line that names all of ``named`` and reads as its snapshot says.

    Args:
        result: What the command line returned.
        named: As for ``refused``.
    """
    check_message(refusal_line(result), *named)


def refusal_line(result: Result) -> str:
    """Return the one line with which the command line refused; for messages that keep a pattern.

    Progress bars, which begin with a carriage return, may stand before it.
    """
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    *lines, rest = result.stderr.split("\n")
    said = [line for line in lines if not line.startswith("\r")]
    assert (len(said), rest) == (1, ""), result.stderr
    assert said[0].startswith("rlhfless: "), said[0]
    assert "Traceback" not in result.stderr
    return said[0]


def check_message(message: str, *named: object) -> None:
    """Compare one message with what it has to name, and with its snapshot."""
    texts = [one if isinstance(one, str) else repr(one) for one in named]
    missing = [text for text in texts if text not in message]
    assert not missing, f"the message does not name {missing}: {message}"
    messages: SnapshotAssertion = _running[-1].getfixturevalue("error_messages")
    assert _without_places(message) == messages


def _without_places(message: str) -> str:
    """A message without what differs between machines and runs: folders, ports, processes, free memory, addresses."""
    request = _running[-1]
    if "tmp_path" in request.fixturenames:
        message = message.replace(str(request.getfixturevalue("tmp_path")), "<tmp>")
    base = str(request.config._tmp_path_factory.getbasetemp())  # type: ignore[attr-defined]
    message = re.sub(re.escape(base) + r"(/popen-gw\d+)?(/[\w.-]+\d+)?", "<tmp>", message)
    message = message.replace(str(PROJECT), "<project>")
    message = re.sub(r"\(process \d+", "(process <n>", message)
    message = re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:<port>", message)
    message = re.sub(r"has no room for \d+ bytes", "has no room for <n> bytes", message)
    message = re.sub(r"[\d.]+ GiB are free", "<n> GiB are free", message)
    message = re.sub(r"(and|grow to) \d+ slots of", r"\1 <n> slots of", message)  # a CPU's kernels need a multiple of rows
    return re.sub(r"0x[0-9a-f]{6,}", "0x<address>", message)
