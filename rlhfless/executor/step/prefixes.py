"""Token ids of the prefixes that a plan computes once for many responses, and the number of tokens that this takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rlhfless.engine.protocol import Request
from solver.model.plan import Plan
from solver.prefix_sharing.prefix_tree import PrefixTree


def prefixes_of(plan: Plan, requests: Sequence[Request]) -> dict[int, np.ndarray]:
    """Return, by prompt, the token ids that the plan computes once, as far as requests have token ids. A prompt's last token is
    left to decoding.
    """
    if plan.prefill is None:
        return {}
    wanted = dict(zip(plan.prefill.prompts, plan.prefill.prefix_tokens, strict=True))
    ids = {r.prompt: r.prompt_ids for r in requests if r.prompt in wanted and r.prompt_ids is not None}
    return {p: ids[p][: min(n, len(ids[p]) - 1)] for p, n in wanted.items() if p in ids}


def with_computed_tokens(plan: Plan, requests: Sequence[Request]) -> Plan:
    """Return the plan with the number of tokens that its prefixes take to compute, shared tokens counted once.

    The plan is returned unchanged where token ids are unknown, as in a log: planning counts the last tokens of prompts too.
    """
    prefixes = prefixes_of(plan, requests)
    if plan.prefill is None or not plan.prefill.prompts or len(prefixes) < len(plan.prefill.prompts):
        return plan
    tokens = PrefixTree.of_token_ids(list(prefixes.values())).tokens
    return replace(plan, prefill=replace(plan.prefill, computed_tokens=tokens))
