"""Makes the row model of a name: our own forward pass, or transformers'."""

from __future__ import annotations

from typing import Any

import torch

from rlhfless.engine.torch.model import DecoderModel
from rlhfless.engine.torch.row_model import RowModel
from rlhfless.errors import InputError

FORWARDS = ("own", "transformers")


def row_model(
    forward: str,
    model: Any,
    max_tokens: int | None = None,
    dtype: torch.dtype | None = None,
    *,
    threads: int = 1,
) -> RowModel:
    """Return a ``DecoderModel`` (``own``) or a ``TransformersModel`` (``transformers``), which take the other arguments.

    Args:
        threads: with which it computes on the CPU; with more than 1 tokens may depend on the batch.

    Raises:
        InputError: the name is neither, or the model is refused.
    """
    if forward not in FORWARDS:
        raise InputError(f"forward is {forward!r:.80}; choose one of {', '.join(FORWARDS)}")
    if forward == "own":
        rows: RowModel = DecoderModel(model, max_tokens, dtype)
    else:
        from rlhfless.engine.torch.transformers_model import TransformersModel  # loads transformers

        rows = TransformersModel(model, max_tokens, dtype)
    rows.threads = threads
    return rows
