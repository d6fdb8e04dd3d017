"""Checks of the KV states of requests that only the torch engine needs; each error is one sentence.

Checks that all engines share are in common/request_validation.py.
"""

from __future__ import annotations

from rlhfless.engine.protocol import Request


def kv_wrong(r: Request) -> str | None:
    """Return what is wrong with the KV states of a request; None: nothing."""
    if r.kv is not None and r.kv.shape[3] != r.context_tokens - 1:
        return f"comes with the KV state of {r.kv.shape[3]} tokens; it needs {r.context_tokens - 1}, all tokens but the last"
    if not 0 <= r.cached_tokens <= r.prompt_tokens or (r.shares_prompt and r.prompt is None):
        return (
            f"has cached_tokens={r.cached_tokens}, prompt_tokens={r.prompt_tokens} and prompt={r.prompt}; "
            "cached_tokens must be 0 to prompt_tokens, and a shared prompt needs its index"
        )
    have = 0 if r.prefix_kv is None else r.prefix_kv.tokens
    need = min(r.cached_tokens, r.prompt_tokens - 1)
    if have < need:
        return f"needs the KV state of {need} cached prompt tokens, but comes with that of {have}"
    return None
