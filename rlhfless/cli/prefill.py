"""Options of ``rlhfless plan`` about prefill: what prompts share, who computes it, and samples together or split.

Knows option names and columns of a log; what pays is decided by ``solver.deduplicate``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from rlhfless.errors import InputError

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import ArrayLike

    from solver.model.workload import IntArray, Workload


@dataclass(frozen=True)
class PrefillOptions:
    """What the options say; nothing is deduplicated unless one of them is given."""

    deduplicate_prefill: bool
    together_if_cheaper: bool
    prefix_tokens: int | None
    prompt_ids: str | None
    learner_node: int | None
    keep_together: bool

    @property
    def wanted(self) -> bool:
        """Whether prefill is deduplicated."""
        given = (self.prefix_tokens, self.prompt_ids, self.learner_node)
        return self.deduplicate_prefill or self.together_if_cheaper or any(value is not None for value in given)

    def arguments(self, rows: pd.DataFrame, workload: Workload, source: object) -> dict[str, Any]:
        """Arguments of ``solver.deduplicate`` for the rows of one step, whose prompts count in their order of appearance.

        Raises:
            InputError: the log does not say how long its prompts are, or what an option needs of them.
        """
        if self.keep_together and self.together_if_cheaper:
            raise InputError("--keep-together and --together-if-cheaper exclude each other; give one of them")
        if rows["prompt_tokens"].isna().any():
            raise InputError(f"{source}: prompt_tokens are not known in this step; prefill is deduplicated where they are")
        if self.prefix_tokens is not None and self.prompt_ids is not None:
            raise InputError("--prefix-tokens and --prompt-ids both say what prompts share; give one of them")
        ids: Sequence[ArrayLike] | None = None
        if self.prompt_ids is not None:
            ids = _token_ids(rows, self.prompt_ids, source)
        elif self.prefix_tokens is not None:
            ids = _with_common_prefix(workload.prompt_tokens, self.prefix_tokens)
        return {"token_ids": ids, "learner_node": self.learner_node}


def prefill_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options, as the argument ``prefill``."""
    from rlhfless.cli.options import together

    options = [
        click.option("--keep-together", is_flag=True, help="All responses of a prompt on one actor."),
        click.option(
            "--together-if-cheaper", is_flag=True,
            help="Plan with a prompt's responses together and split, deduplicate the prefill of both, keep the better.",
        ),
        click.option(
            "--deduplicate-prefill", is_flag=True,
            help="Compute a prompt once: for all its responses on an actor, and for several actors where sending it pays.",
        ),
        click.option("--prefix-tokens", type=click.IntRange(1), help="First tokens that all prompts have in common."),
        click.option("--prompt-ids", metavar="COLUMN", help="Column of ROLLOUTS with the prompt's token ids (a list)."),
        click.option("--learner-node", type=click.IntRange(0), help="Prefill on the learner's GPUs, in this node."),
    ]  # fmt: skip
    return together("prefill", lambda: PrefillOptions, options)(command)


def _with_common_prefix(prompt_tokens: IntArray, shared: int) -> list[IntArray]:
    """Token ids of prompts that differ from their (shared+1)-th token on."""
    import numpy as np

    shortest = int(prompt_tokens.min())
    if shared > shortest:
        raise InputError(f"--prefix-tokens {shared} is more than the shortest prompt of the step has, which is {shortest}")
    return [np.where(np.arange(tokens) < shared, 0, 1 + i) for i, tokens in enumerate(prompt_tokens.tolist())]


def _token_ids(rows: pd.DataFrame, column: str, source: object) -> list[list[int]]:
    """The token ids of each prompt, in order of appearance."""
    if column not in rows.columns:
        known = ", ".join(rows.columns)
        raise InputError(f"{source}: has no column {column!r} with token ids of prompts; its columns are {known}")
    first = rows.drop_duplicates("prompt_id")
    ids = []
    for prompt, tokens, cell in zip(first["prompt_id"], first["prompt_tokens"], first[column], strict=True):
        row = _list_of(cell)
        if row is None:
            raise InputError(f"{source}: {column} of prompt {prompt} is no list of token ids, such as [1, 15, 7]")
        if len(row) != tokens:
            raise InputError(f"{source}: {column} of prompt {prompt} has {len(row)} tokens, but its prompt_tokens are {tokens}")
        ids.append(row)
    return ids


def _list_of(cell: Any) -> list[int] | None:
    """A list of whole numbers of 0 or more, also as JSON text; None for anything else."""
    if isinstance(cell, str):
        try:
            cell = json.loads(cell)
        except ValueError:
            return None
    row = cell.tolist() if hasattr(cell, "tolist") else cell
    if not isinstance(row, list) or any(type(token) is not int or not 0 <= token < 1 << 32 for token in row):
        return None
    return row
