"""Estimates the survival of drafts for each response of a batch: a frailty model, as survival analysis uses it.

A token at position j of a draft that is right up to there is refused for response i with odds ``k_i o_j``. o_j says how hard
the position is, and k_i how far the response is off its drafts; it is 1 in the mean. So what a response accepts at the first
position says what it would accept at later ones. Positions are compared between responses of equal k, although some responses
draft longer than others.

k has a gamma distribution within a prompt and between prompts. Responses of which little is known are like others to their
prompt, and prompts of which little is known are like all.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

FIRST_RATE, FIRST_DRAFTS = 0.7, 4.0  # share of accepted tokens before anything is known, and the tokens that it counts for
RESPONSE_SHAPE, PROMPT_SHAPE = 3.0, 6.0  # of the gamma distributions: refused tokens that the expectation counts for
ROUNDS = 3  # of estimating positions and responses in turns; further ones change the third digit


def frailty_survival(
    counts: FloatArray, left_of_prompt: FloatArray, prompts: NDArray[np.int64], left: FloatArray
) -> FloatArray:
    """Return (B, N) the estimated shares of passes in which each position of a draft is accepted.

    Args:
        counts: (B, 2, N + 1) drafts of each response by number of accepted tokens: those that a refused token ended, and those
            that were accepted as a whole.
        left_of_prompt: (P, 2, N + 1) of responses to each prompt that left. prompts: (B,) the prompt of each response.
        left: (2, N + 1) of all responses that left.
    """
    refused, accepted = _refused_and_accepted(counts)
    refused_left, accepted_left = _refused_and_accepted(left)
    refused_of_prompt, accepted_of_prompt = _refused_and_accepted(left_of_prompt)
    np.add.at(refused_of_prompt, prompts, refused)
    np.add.at(accepted_of_prompt, prompts, accepted)
    refusals, prompt_refusals = refused.sum(axis=1), refused_of_prompt.sum(axis=1)
    by_position = refused.sum(axis=0) + refused_left
    k = np.ones(len(counts))
    for _ in range(ROUNDS):
        odds = _odds(by_position, k @ accepted + accepted_left)
        of_prompt = (prompt_refusals + PROMPT_SHAPE) / (accepted_of_prompt @ odds + PROMPT_SHAPE)
        k = (refusals + RESPONSE_SHAPE) / (accepted @ odds + RESPONSE_SHAPE / of_prompt[prompts])
    return np.asarray((1 / (1 + k[:, None] * odds)).cumprod(axis=1))


def _refused_and_accepted(counts: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return (..., N) refused and accepted tokens by position."""
    at_least = counts.sum(axis=-2)[..., ::-1].cumsum(axis=-1)[..., ::-1]
    return counts[..., 0, :-1].copy(), at_least[..., 1:].copy()


def _odds(refused: FloatArray, accepted: FloatArray) -> FloatArray:
    """Return (N,) the odds that a token is refused, by position; one of which little is known is like the one before it.

    A refused token of a response with factor k is expected for every ``1 / (k odds)`` accepted ones.

    Args:
        refused: (N,) tokens. accepted: (N,) tokens, each times the factor of its response.
    """
    odds, before = np.empty(len(refused)), 1 / FIRST_RATE - 1
    for j, (wrong, right) in enumerate(zip(refused.tolist(), accepted.tolist(), strict=True)):
        known = FIRST_DRAFTS / (1 + before)  # of these tokens, the accepted ones
        odds[j] = before = (wrong + before * known) / (right + known)
    return odds
