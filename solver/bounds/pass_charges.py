"""Sums of what the passes of a response are charged at least, over all drafts, for the clairvoyant bound with drafts.

``solver.bounds.clairvoyant_drafted`` states the bound and its letters. A sharing is one minorant and one h. A pass of load u is
charged ``u + a m(u) + a^2 lam`` under it, and its response has ``a lam X`` back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from solver.model.workload import FloatArray, IntArray

NODES = 256  # contexts at which charges are computed; between them a line is below the charge
LAM_RATIO = 1.2  # between values of lam
MAX_LAMS = 400
REFERENCES = 5  # values of h


@dataclass(frozen=True, eq=False)
class Sharing:
    """A way to share base time among passes, with the values of lam that are tried.

    Attributes:
        base_s, per_token_s, per_kv_token_s: a, b, c of the minorant. slots: s, or the responses if these are fewer.
        most_s: s h. lam: (M,) in 1 / s.
    """

    base_s: float
    per_token_s: float
    per_kv_token_s: float
    slots: int
    most_s: float
    lam: FloatArray

    def load(self, draft_tokens: int, context: FloatArray) -> FloatArray:
        """Return u of passes with this draft at these contexts."""
        return np.asarray(self.per_token_s * (1 + draft_tokens) + self.per_kv_token_s * context)

    def charges(self, load: FloatArray) -> FloatArray:
        """Return (M + 3, ...) charges of passes of these loads: for every lam, then the load alone, the time of the pass alone
        in its iteration, and 1."""
        lam = self.lam.reshape(-1, *[1] * load.ndim)
        rising = np.where(load <= lam * self.most_s**2, 2 * np.sqrt(lam * load), load / self.most_s + lam * self.most_s)
        share = np.minimum(rising, 1 / self.slots + lam * self.most_s)
        shared = load + self.base_s * (share + self.base_s * lam)
        return np.concatenate([shared, load[None], self.base_s + load[None], np.ones((1, *load.shape))])


def sharings(
    minorants: Sequence[tuple[float, float, float]], slots: int, contexts: tuple[float, float], responses: int, drafts: int
) -> list[Sharing]:
    """Return the sharings of some minorants.

    Args:
        contexts: the least and the largest of any token. responses: how many there are. drafts: most drafted tokens of a pass.
    """
    found, together = [], max(1, min(slots, responses))
    for a, b, c in minorants:
        least, most = b + c * contexts[0], b * (1 + drafts) + c * contexts[1]
        most = max(most, 1e-12)
        least = max(least, 1e-6 * most)
        # loads of an iteration sum to one pass's at least and to those of all slots at most; lam is more near the least time
        low, high = 1 / (together**2 * most), 64 / least
        count = min(MAX_LAMS, int(np.ceil(np.log(high / low) / np.log(LAM_RATIO))) + 2)
        lam = np.append(0.0, np.geomspace(low, high, count))
        for h in np.geomspace(max(least, most / 32), most, REFERENCES):
            found.append(Sharing(a, b, c, together, together * float(h), lam))
    return found


def expected_charges(sharing: Sharing, tokens_per_pass: FloatArray, context: FloatArray, length: FloatArray) -> FloatArray:
    """Return (M + 3, R) the least sums of charges over the tokens of responses whose passes yield so many in expectation.

    Args:
        tokens_per_pass: (N + 1,) e(n). context, length: (R,) of the first token, and tokens.
    """
    drafts = len(tokens_per_pass) - 1
    last = float((context + length).max(initial=0.0)) + 1
    node = np.unique(np.rint(np.append(np.arange(drafts + 2.0), np.linspace(0.0, max(last, drafts + 2.0), NODES))))
    least = np.full((len(sharing.lam) + 3, len(node)), np.inf)
    for n in range(drafts + 1):
        # a token lies at most n tokens behind the context of its pass
        np.minimum(least, sharing.charges(sharing.load(n, np.maximum(node - n, 0.0))) / tokens_per_pass[n], out=least)
    steps = np.diff(node)
    slope = np.diff(least, axis=1) / steps
    before = np.cumsum(least[:, :-1] * steps + slope * (steps * (steps - 1) / 2), axis=1)
    before = np.concatenate([np.zeros((len(least), 1)), before], axis=1)

    def sum_to(end: FloatArray) -> FloatArray:
        at = np.clip(np.searchsorted(node, end, side="right") - 1, 0, len(node) - 2)
        beyond = end - node[at]
        return np.asarray(before[:, at] + least[:, at] * beyond + slope[:, at] * (beyond * (beyond - 1) / 2))

    return sum_to(context + length) - sum_to(context)


def realised_charges(
    sharing: Sharing, accepted_runs: Sequence[IntArray], context: FloatArray, max_draft_tokens: int
) -> FloatArray:
    """Return (M + 3, R) the least sums of charges over the passes of responses of which each accepts known runs of drafts.

    A dynamic programme over the tokens that are left, for all responses together.

    Args:
        accepted_runs: (L,) of each response: drafted tokens that a pass accepts there if it verifies ``max_draft_tokens``.
    """
    length = np.array([len(runs) for runs in accepted_runs], dtype=np.int64)
    order = np.argsort(-length, kind="stable")
    length, first = length[order], context[order].astype(np.int64)
    most = int(length.max(initial=0))
    runs = np.zeros((most + 1, len(order)), np.int64)  # by tokens left
    for column, response in enumerate(order.tolist()):
        own = np.asarray(accepted_runs[response], dtype=np.int64)
        runs[len(own) - np.arange(len(own)), column] = np.minimum(own, max_draft_tokens)
    contexts = np.arange(int((first + length).max(initial=0)) + 1, dtype=float)
    charge = [np.ascontiguousarray(sharing.charges(sharing.load(n, contexts)).T) for n in range(max_draft_tokens + 1)]
    least = np.zeros((max_draft_tokens + 2, len(order), charge[0].shape[1]))  # by tokens left, the last few
    found = np.zeros((charge[0].shape[1], len(order)))
    active = np.searchsorted(-length, -np.arange(most + 2), side="right")  # responses of at least so many tokens
    for left in range(1, most + 1):
        count = active[left]
        at = first[:count] + length[:count] - left
        best = charge[0][at] + least[(left - 1) % len(least), :count]
        longest = np.minimum(runs[left, :count], left - 1)
        for n in range(1, int(longest.max(initial=0)) + 1):
            rows = np.flatnonzero(longest >= n)
            best[rows] = np.minimum(best[rows], charge[n][at[rows]] + least[(left - 1 - n) % len(least), rows])
        least[left % len(least), :count] = best
        ended = slice(active[left + 1], count)
        found[:, order[ended]] = best[ended].T
    return found
