"""Shows the options of a command under headings in its help text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

LABEL = 44
"""Widest option label that has its help text on the same line."""


class WithHeadings(click.Command):
    """A command whose help shows its options under headings.

    Args:
        headings: parameter names by heading, in the order of display. Parameters under no heading come last, under ``Other``.

    Raises:
        ValueError: a heading names a parameter that the command does not have.
    """

    def __init__(self, *args: Any, headings: Mapping[str, Sequence[str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.headings = headings
        if unknown := {name for names in headings.values() for name in names} - {param.name for param in self.params}:
            raise ValueError(f"command {self.name} has no parameters {', '.join(sorted(unknown))}, which its headings name")

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options to the help text."""
        records = {str(p.name): record for p in self.get_params(context) if (record := p.get_help_record(context)) is not None}
        for heading, names in self.headings.items():
            with formatter.section(heading):
                formatter.write_dl([records.pop(name) for name in names], col_max=LABEL)
        if records:
            with formatter.section("Other"):
                formatter.write_dl(list(records.values()), col_max=LABEL)
