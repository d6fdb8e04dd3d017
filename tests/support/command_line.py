"""Runs the command line in this process, and keeps what it printed and its exit code."""

from __future__ import annotations

import contextlib
import io
import os
from dataclasses import dataclass
from unittest import mock

from rlhfless.cli import main


@dataclass(frozen=True)
class Result:
    """What the command line returned: its exit code, and the text on both streams."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        """The text on both streams, standard output first."""
        return self.stdout + self.stderr


def run_rlhfless(*words: object, **environment: str) -> Result:
    """Return what ``rlhfless WORDS`` prints, with these variables of the environment."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), mock.patch.dict(os.environ, environment):
        try:
            main([str(word) for word in words])
        except SystemExit as stop:
            return Result(int(stop.code or 0), out.getvalue(), err.getvalue())
    raise AssertionError("main did not exit")
