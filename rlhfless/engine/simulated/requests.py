"""State of the responses of a simulated engine as table rows, and how many context tokens are cached when one joins."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from rlhfless.engine.protocol import Request
from solver.model.workload import FloatArray, IntArray

MOVED_KV = "kv"  # stands for the KV state of a simulated response: only its presence matters

Members = NDArray[np.void]
"""Responses that are with an engine, one row each with the fields of ``MEMBER``."""

MEMBER = np.dtype(
    [
        ("response", np.int64),
        ("prompt_tokens", np.int64),
        ("max_tokens", np.int64),
        ("target_tokens", np.int64),
        ("generated_tokens", np.int64),
        ("has_kv", np.bool_),  # the KV cache of its whole context is with it
        ("cached_tokens", np.int64),  # else the tokens of its context that were received, or are computed so far
        ("prompt", np.int64),  # whose prefill it shares; -1 when it shares with nobody
        ("start_s", np.float64),  # not a number until it has joined a batch
        ("first_token_s", np.float64),
        ("prefill_tokens", np.int64),
    ]
)
WHOLE = np.dtype((np.void, MEMBER.itemsize))  # a row as bytes


def members_of(requests: Iterable[Request]) -> Members:
    """Return one row per request, as it arrives at the engine."""
    return np.array([row_of(r) for r in requests], dtype=MEMBER)


def row_of(r: Request) -> tuple[Any, ...]:
    """Return the row of a request."""
    return (
        r.response, r.prompt_tokens, r.max_tokens, -1 if r.target_tokens is None else r.target_tokens,
        r.generated_tokens, r.kv is not None, r.cached_tokens, r.prompt if r.shares_prompt and r.prompt is not None else -1,
        np.nan if r.start_s is None else r.start_s, np.nan if r.first_token_s is None else r.first_token_s,
        r.prefill_tokens_computed,
    )  # fmt: skip


def together(members: Members, admitted: Members) -> Members:
    """Concatenate both, faster than ``np.concatenate`` joins rows; without members, return the admitted ones themselves."""
    if not len(members):
        return admitted
    return np.concatenate([members.view(WHOLE), admitted.view(WHOLE)]).view(MEMBER)


def changed(request: Request, **what: Any) -> Request:
    """Return the request with other values, like ``dataclasses.replace`` but many times as fast: rules move thousands."""
    new = Request.__new__(Request)
    new.__dict__.update(request.__dict__, **what)
    return new


def exported(request: Request, row: tuple[Any, ...]) -> Request:
    """Return a response in the state of its row, as a request from which another engine can continue."""
    _, _, _, _, tokens, has_kv, _, _, start_s, first_token_s, prefill_tokens = row
    return changed(
        request, generated_tokens=tokens, kv=MOVED_KV if has_kv else None, cached_tokens=0, shares_prompt=False,
        start_s=None if math.isnan(start_s) else start_s,
        first_token_s=None if math.isnan(first_token_s) else first_token_s, prefill_tokens_computed=prefill_tokens,
    )  # fmt: skip


def refusal(request: Request) -> str | None:
    """Return why the simulated engine cannot run a request; None when it can."""
    r = request
    if r.target_tokens is None:
        return f"response {r.response} has no target_tokens; the simulated engine needs its true length"
    if not 0 <= r.cached_tokens <= r.prompt_tokens or (r.shares_prompt and r.prompt is None):
        return (
            f"response {r.response} has cached_tokens={r.cached_tokens}, prompt_tokens={r.prompt_tokens} and "
            f"prompt={r.prompt}; cached_tokens must be 0 to prompt_tokens, and a shared prompt needs its index"
        )
    return None


class Requests(Sequence[Request]):
    """Requests with their rows, which are made once for all engines and steps that use them.

    Attributes:
        rows: (n,) as of ``members_of``; available_s: (n,).
        at_once: the simulated engine can run them all, and they are available at the same time.
    """

    def __init__(self, requests: Iterable[Request]) -> None:
        self._requests = list(requests)
        self.rows = members_of(self._requests)
        self.available_s: FloatArray = np.array([r.available_s for r in self._requests], dtype=float)
        self.at_once = len(set(self.available_s.tolist())) == 1 and not any(map(refusal, self._requests))

    @classmethod
    def of(cls, requests: Sequence[Request]) -> Requests:
        """Return the requests in order of ``response``."""
        unsorted = requests if isinstance(requests, cls) else cls(requests)
        order = np.argsort(unsorted.rows["response"], kind="stable")
        return unsorted if (order[1:] > order[:-1]).all() else unsorted.take(order.tolist())

    def take(self, indices: Sequence[int]) -> Requests:
        """Return the requests at ``indices``, in that order."""
        part = Requests.__new__(Requests)
        part._requests = [self._requests[i] for i in indices]
        at = np.array(indices, dtype=np.int64)
        part.rows, part.available_s, part.at_once = self.rows[at], self.available_s[at], self.at_once and len(at) > 0
        return part

    def __len__(self) -> int:
        return len(self._requests)

    @overload
    def __getitem__(self, index: int) -> Request: ...
    @overload
    def __getitem__(self, index: slice) -> list[Request]: ...
    def __getitem__(self, index: int | slice) -> Request | list[Request]:
        return self._requests[index]

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)


def cached_tokens(members: Members, remaining: IntArray, cached_prompts: Collection[int]) -> IntArray:
    """Return (n,) cached KV tokens of each member's context when it joins.

    Args:
        remaining: (n,) iterations that each needs; a response that needs none computes nothing for others.
        cached_prompts: prompts whose KV cache is in the actor, because a response that shares it has computed it.
    """
    has_kv, prompt, cached = members["has_kv"], members["prompt"], members["cached_tokens"]
    if has_kv.any():
        cached = np.where(has_kv, members["prompt_tokens"] + members["generated_tokens"], cached)
    later = (prompt >= 0) & ~has_kv
    if later.any():
        works = np.flatnonzero(later & (remaining > 0))
        first = works[np.unique(prompt[works], return_index=True)[1]]
        later[first[~np.isin(prompt[first], list(cached_prompts))]] = False
        cached = np.where(later, np.maximum(members["prompt_tokens"], cached), cached)
    return cached
