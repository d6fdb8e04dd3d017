"""How many context tokens the unfinished responses of a step have on the virtual clock, without counting one by one.

Engines say how their contexts grow (``SupportsContextTokens``). A row per actor has this for its next iterations, until
responses join it or leave it. So a look costs a few operations on all rows; a row is made anew only where something changed.
"""

from __future__ import annotations

import numpy as np

from rlhfless.executor.step.step_state import RunningStep
from rlhfless.executor.virtual.actors import VirtualActor
from rlhfless.executor.virtual.backend import VirtualBackend

ITERATIONS = 64  # of an actor that a row has, at most


class ContextTotals:
    """The context tokens of all unfinished responses, as a rule may know them."""

    def __init__(self, step: RunningStep[VirtualActor], backend: VirtualBackend) -> None:
        self._step, self._backend = step, backend
        actors = max(step.live, default=-1) + 1
        self._until_s = np.where(np.isin(np.arange(actors), list(step.live)), -np.inf, np.inf)  # until when each row is right
        self._from_s = np.full((actors, ITERATIONS + 2), np.inf)  # times from which its values hold
        self._tokens = np.zeros((actors, ITERATIONS + 2), np.int64)
        self._flat_from_s, self._flat_tokens = self._from_s.ravel(), self._tokens.ravel()  # the same memory
        self._next = np.arange(actors) * (ITERATIONS + 2) + 1  # place of the next time of each row

    def at(self, now_s: float) -> int:
        """Return the context tokens now."""
        transfers = self._backend.transfers
        if transfers.disturbed:
            self._until_s[list(transfers.disturbed)] = -np.inf
            transfers.disturbed.clear()
        for index in (self._until_s <= now_s).nonzero()[0].tolist():
            self._enter(index, now_s)
        times_s, next_ = self._flat_from_s, self._next
        while np.count_nonzero(late := times_s[next_] <= now_s):
            next_ += late
        return int(np.add.reduce(self._flat_tokens[next_ - 1])) - transfers.unknown_tokens

    def _enter(self, index: int, now_s: float) -> None:
        """Make the row of an actor anew."""
        actor, from_s, tokens = self._step.live.get(index), self._from_s[index], self._tokens[index]
        from_s[1] = np.inf
        tokens[0], self._until_s[index], self._next[index] = 0, np.inf, index * len(from_s) + 1
        if actor is None:
            return
        ahead = None if actor.growing is None else actor.growing.context_tokens_ahead(now_s, ITERATIONS)
        listed = int(ahead is None or actor.engine.clock_s > now_s)
        if listed:
            tokens[0] = self._listed(actor, now_s)
        if ahead is None:
            self._until_s[index] = now_s
            return
        times_s, values = ahead
        until = listed + len(values)
        from_s[listed:until], tokens[listed:until], self._until_s[index] = times_s[:-1], values, times_s[-1]
        from_s[until] = np.inf

    def _listed(self, actor: VirtualActor, now_s: float) -> int:
        """Return the context tokens of an actor from a list of its responses.

        An engine that has run past ``now_s`` has tokens that are not known yet: those noted before count.
        """
        step = self._step
        self._backend.catch_up(actor)
        responses, tokens = actor.tokens()
        if actor.engine.clock_s <= now_s:
            return int(step.prompt_tokens[responses].sum() + np.sum(tokens, dtype=np.int64))
        pending = [c.responses for owner, c in self._backend.pending if owner is actor]
        responses = np.concatenate([np.asarray(responses, dtype=np.int64), *pending])
        return int(step.prompt_tokens[responses].sum() + step.observed_tokens[responses].sum()) + actor.unknown_tokens
