"""One hash over the tokens of all responses of a step: equal hashes are equal tokens, whatever the schedule was."""

from __future__ import annotations

import hashlib

import numpy as np

from rlhfless.errors import InputError
from rlhfless.executor.step.record import StepRecord


def tokens_hash(record: StepRecord) -> str:
    """Return the SHA-256 over the token ids of all responses in their order, each with its length.

    Raises:
        InputError: a response was not decoded by a real engine, and has a length only.
    """
    digest = hashlib.sha256()
    for response in sorted(record.completions):
        ids = record.completions[response].token_ids
        if ids is None:
            raise InputError(f"response {response} has no token ids; the record of a real engine is needed")
        digest.update(np.int64(len(ids)).tobytes() + np.asarray(ids, dtype=np.int64).tobytes())
    return digest.hexdigest()
