"""Checks of requests that all real engines share; each error is one sentence.

Inputs: a request and the actor's token limits. Each engine kind checks KV states itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from rlhfless.engine.protocol import Request
from rlhfless.errors import InputError
from solver.model.admission import Admission
from solver.model.errors import is_whole


class ModelLimits(Protocol):
    """The limits of a model for requests: its longest context and its vocabulary size."""

    max_tokens: int

    @property
    def vocabulary(self) -> int: ...


class TokenRoom(NamedTuple):
    """Token limits of an actor for one response, prompt included.

    Attributes:
        context_tokens: the longest context of its model, or of its cache's rows.
        kv_tokens: its whole KV memory.
        vocabulary: ids of prompts are below it.
    """

    context_tokens: int
    kv_tokens: int
    vocabulary: int

    @classmethod
    def of(cls, model: ModelLimits, admission: Admission) -> TokenRoom:
        """Return the limits of an actor that decodes with ``model``."""
        return cls(model.max_tokens, admission.kv_capacity_tokens, model.vocabulary)


def stop_tokens(request: Request) -> int:
    """Return the maximum number of tokens that the response can get."""
    return request.max_tokens if request.target_tokens is None else min(request.target_tokens, request.max_tokens)


def check(request: Request, room: TokenRoom, kv_wrong: Callable[[Request], str | None]) -> None:
    """Refuse a request that would be decoded wrongly or not at all.

    Args:
        kv_wrong: returns what is wrong with the KV states of an otherwise valid request; None: nothing.

    Raises:
        InputError: naming the response, what is wrong with it, and what would be right.
    """
    wrong = _numbers(request) or _prompt(request, room) or _history(request, room) or _progress(request, stop_tokens(request))
    wrong = wrong or _room(request, room) or kv_wrong(request)
    if wrong is not None:
        raise InputError(f"response {request.response} {wrong}")


def _numbers(r: Request) -> str | None:
    ids, limit, target = r.prompt_ids, r.max_tokens, r.target_tokens
    if not is_whole(limit, 0):
        return f"has max_tokens={limit!r}; a whole number of 0 or more is needed"
    if target is not None and not is_whole(target):
        return f"has target_tokens={target!r}; a whole number is needed"
    if ids is not None and not (isinstance(ids, np.ndarray) and ids.ndim == 1 and ids.dtype.kind in "iu"):
        what = f"{ids.dtype} in the shape {ids.shape}" if isinstance(ids, np.ndarray) else f"a {type(ids).__name__}"
        return f"has prompt_ids that are {what}; a one-dimensional array of whole numbers is needed"
    return None


def _prompt(r: Request, room: TokenRoom) -> str | None:
    ids = r.prompt_ids
    if r.prompt_tokens < 1:
        return "has an empty prompt; a prompt of at least 1 token is needed, such as one that marks the beginning of a text"
    if ids is None or len(ids) != r.prompt_tokens:
        return f"has {'no' if ids is None else len(ids)} prompt_ids, but prompt_tokens is {r.prompt_tokens}"
    if (wrong := _outside(ids, room)) is not None:
        return f"has the id {wrong} in its prompt; the model's vocabulary has the ids 0 to {room.vocabulary - 1}"
    return None


def _history(r: Request, room: TokenRoom) -> str | None:
    for earlier in r.history:
        if len(earlier) and (wrong := _outside(np.asarray(earlier), room)) is not None:
            return f"has the id {wrong} in its history; the model's vocabulary has the ids 0 to {room.vocabulary - 1}"
    return None


def _outside(ids: np.ndarray, room: TokenRoom) -> int | None:
    """Return an id that is outside the vocabulary; None where there is none."""
    low, high = int(ids.min()), int(ids.max())
    if low < 0:
        return low
    return high if high >= room.vocabulary else None


def _progress(r: Request, stop: int) -> str | None:
    ids, logprobs = (0 if values is None else len(values) for values in (r.generated_ids, r.logprobs))
    if ids != r.generated_tokens or logprobs != r.generated_tokens:
        return f"has {ids} generated_ids and {logprobs} logprobs, but generated_tokens is {r.generated_tokens}"
    if r.target_tokens is not None and not 0 <= r.target_tokens <= r.max_tokens:
        return f"has target_tokens={r.target_tokens}; 0 to max_tokens={r.max_tokens} is needed"
    if r.target_tokens == 0 and r.generated_tokens == 0:
        return None
    if r.generated_tokens >= stop:
        return f"already has {r.generated_tokens} of {stop} tokens; add unfinished responses only"
    return None


def _room(r: Request, room: TokenRoom) -> str | None:
    max_kv_tokens = r.prompt_tokens + r.max_tokens
    if r.prompt_tokens >= room.context_tokens:
        return (
            f"has a prompt of {r.prompt_tokens} tokens; the longest context here is {room.context_tokens} tokens, prompt and "
            "response together"
        )
    if max_kv_tokens > room.context_tokens:
        return (
            f"can reach {max_kv_tokens} tokens with its prompt; the longest context here is {room.context_tokens} tokens, "
            f"which leaves {room.context_tokens - r.prompt_tokens} for the response"
        )
    if max_kv_tokens > room.kv_tokens:
        return f"can reach {max_kv_tokens} tokens with its prompt; this actor's KV memory holds {room.kv_tokens} at most"
    return None
