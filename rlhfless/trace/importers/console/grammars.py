"""The frameworks whose console text can be read."""

from __future__ import annotations

from rlhfless.trace.importers.console import areal, nemo_rl, openrlhf, prime_rl, roll, skyrl, slime, trl, verl
from rlhfless.trace.importers.console.grammar import Grammar

GRAMMARS: tuple[Grammar, ...] = (
    verl.GRAMMAR, slime.GRAMMAR, openrlhf.GRAMMAR, skyrl.GRAMMAR, roll.GRAMMAR, nemo_rl.GRAMMAR, prime_rl.GRAMMAR,
    areal.GRAMMAR, trl.GRAMMAR,
)  # fmt: skip
"""In the order in which a line is tried; no line is of two frameworks."""
