"""The hash of a step's tokens depends on the tokens and on nothing else."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from error_messages import refused

from rlhfless.errors import InputError
from rlhfless.executor import tokens_hash


def record(*responses: list[int] | None) -> Any:
    ids = [None if tokens is None else np.array(tokens) for tokens in responses]
    return SimpleNamespace(completions={i: SimpleNamespace(token_ids=one) for i, one in reversed(list(enumerate(ids)))})


def test_it_tells_tokens_and_their_borders_apart() -> None:
    assert tokens_hash(record([1, 2], [3])) == tokens_hash(record([1, 2], [3]))
    assert (
        len({tokens_hash(record(*one)) for one in (([1, 2], [3]), ([1], [2, 3]), ([3], [1, 2]), ([1, 2], [4]), ([1, 2],))}) == 5
    )


def test_a_response_without_tokens_is_refused() -> None:
    with refused(InputError, "response 1"):
        tokens_hash(record([1], None))
