"""Prefill options of ``rlhfless plan``: shared prompt prefixes, the GPUs that compute them, and samples kept on one actor.

``solver.deduplicate`` decides which prefixes are computed once.
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
    """Values of the prefill options. Prefill is deduplicated only if at least one of them is given."""

    deduplicate_prefill: bool
    prefix_tokens: int | None
    prompt_ids: str | None
    learner_node: int | None
    keep_together: bool

    @property
    def wanted(self) -> bool:
        """Return whether the options ask for deduplicated prefill."""
        options = (self.prefix_tokens, self.prompt_ids, self.learner_node)
        return self.deduplicate_prefill or any(value is not None for value in options)

    def arguments(self, rows: pd.DataFrame, workload: Workload, source: object) -> dict[str, Any]:
        """Return the arguments of ``solver.deduplicate`` for the rows of one step; prompts are in their order of appearance.

        Raises:
            InputError: the options exclude each other, or the log lacks the prompt lengths or token ids that they need.
        """
        if rows["prompt_tokens"].isna().any():
            raise InputError(
                f"{source}: prompt_tokens is empty in some rows; deduplicating prefill needs the length of every prompt"
            )
        if self.prefix_tokens is not None and self.prompt_ids is not None:
            raise InputError(
                "--prefix-tokens and --prompt-ids exclude each other, both describe the shared prefix; give one of them"
            )
        ids: Sequence[ArrayLike] | None = None
        if self.prompt_ids is not None:
            ids = _token_ids(rows, self.prompt_ids, source)
        elif self.prefix_tokens is not None:
            ids = _with_common_prefix(workload.prompt_tokens, self.prefix_tokens)
        return {"token_ids": ids, "learner_node": self.learner_node}


def prefill_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the prefill options, as the argument ``prefill``."""
    from rlhfless.cli.options import together

    options = [
        click.option("--keep-together", is_flag=True, help="Keep all responses to a prompt on one actor."),
        click.option(
            "--deduplicate-prefill", is_flag=True,
            help="Compute a prompt once per actor, or once for several actors where sending its KV cache is cheaper.",
        ),
        click.option("--prefix-tokens", type=click.IntRange(1), help="Treat this many first tokens as shared by all prompts."),
        click.option(
            "--prompt-ids", metavar="COLUMN", help="Read the prompt's token ids from this column of ROLLOUTS, a list per row."
        ),
        click.option(
            "--learner-node", type=click.IntRange(0),
            help="Compute shared prefixes on the learner's GPUs, on the node with this number (from 0).",
        ),
    ]  # fmt: skip
    return together("prefill", lambda: PrefillOptions, options)(command)


def _with_common_prefix(prompt_tokens: IntArray, shared: int) -> list[IntArray]:
    """Return token ids of prompts that agree in their first ``shared`` tokens and differ from the next one on."""
    import numpy as np

    shortest = int(prompt_tokens.min())
    if shared > shortest:
        raise InputError(
            f"--prefix-tokens is {shared}, but the shortest prompt of the step has {shortest} tokens; give at most {shortest}"
        )
    return [np.where(np.arange(tokens) < shared, 0, 1 + i) for i, tokens in enumerate(prompt_tokens.tolist())]


def _token_ids(rows: pd.DataFrame, column: str, source: object) -> list[list[int]]:
    """Return the token ids of each prompt, in order of appearance."""
    if column not in rows.columns:
        columns = ", ".join(rows.columns)
        raise InputError(f"{source}: has no column {column!r} with token ids of prompts; its columns are {columns}")
    first = rows.drop_duplicates("prompt_id")
    ids = []
    for prompt, tokens, cell in zip(first["prompt_id"], first["prompt_tokens"], first[column], strict=True):
        row = _list_of(cell)
        if row is None:
            raise InputError(
                f"{source}: {column} of prompt {prompt} is not a list of token ids; one such as [1, 15, 7] is needed"
            )
        if len(row) != tokens:
            raise InputError(f"{source}: {column} of prompt {prompt} has {len(row)} tokens, but its prompt_tokens are {tokens}")
        ids.append(row)
    return ids


def _list_of(cell: Any) -> list[int] | None:
    """Return the cell (a list, an array or JSON text) as a list of token ids, or None if it is anything else."""
    if isinstance(cell, str):
        try:
            cell = json.loads(cell)
        except ValueError:
            return None
    row = cell.tolist() if hasattr(cell, "tolist") else cell
    if not isinstance(row, list) or any(type(token) is not int or not 0 <= token < 1 << 32 for token in row):
        return None
    return row
