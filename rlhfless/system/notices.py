"""Prints lines of progress: on standard error, but on standard output in a notebook, which shows standard error in red."""

from __future__ import annotations

import sys


def notice(line: str) -> None:
    """Print a line that is no result and no error."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    in_notebook = getattr(shell, "kernel", None) is not None  # a shell on a terminal has none
    print(line, file=sys.stdout if in_notebook else sys.stderr, flush=True)
