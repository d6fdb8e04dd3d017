"""The frameworks whose console text can be read."""

from __future__ import annotations

from rlhfless.trace.importers.console import openrlhf
from rlhfless.trace.importers.console.grammar import Grammar

GRAMMARS: tuple[Grammar, ...] = (openrlhf.GRAMMAR,)
"""In the order in which a line is tried; no line is of two frameworks."""
