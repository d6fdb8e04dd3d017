"""Who generated which token and what became of it: the change in the data, and the least time of learning from the same data.

Weights are numbered by updates: version v is that after v updates. Update v learns on the weights of version v and makes
version v + 1, so a token of version w that update v learns from is v - w updates stale.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlhfless.analysis.what_ifs.outcome import DataChange, RunToChange
from rlhfless.analysis.what_ifs.prompt_pool import PromptPool
from rlhfless.analysis.what_ifs.whole_steps import learning_s, least_work_s
from solver.model.workload import IntArray, Workload

NEVER = -1

BoolArray = NDArray[np.bool_]


class VersionTokens(NamedTuple):
    """Tokens of (n,) responses that one version of the weights generated, from so many on and up to so many."""

    version: int
    responses: IntArray
    begin: IntArray
    end: IntArray


class TokenLedger:
    """The responses of a pool while steps are simulated.

    Attributes:
        tokens: (R,) generated so far. done: (R,) whether each is complete. learned_by: (R,) the update, or ``NEVER``.
        dropped, started: (R,) whether it was dropped, and started. first_update: from which on updates count.
    """

    def __init__(self, pool: PromptPool) -> None:
        responses = len(pool.length)
        self.pool = pool
        self.tokens: IntArray = np.zeros(responses, dtype=np.int64)
        self.learned_by: IntArray = np.full(responses, NEVER)
        self.done, self.dropped, self.started = np.zeros((3, responses), dtype=bool)
        self.first_update = 0
        self._segments: list[VersionTokens] = []
        self._earlier: BoolArray = np.zeros(responses, dtype=bool)  # started before updates count

    def start(self, prompts: IntArray) -> None:
        """Note that all responses of these prompts are started."""
        self.started[self.pool.responses_of(prompts)] = True

    def count_from(self, update: int) -> None:
        """Leave out all updates before this one; what was started and not learned from waits for it."""
        self.first_update, self._earlier, self.started = update, self.started, np.zeros_like(self.started)

    def unfinished(self, prompts: IntArray) -> IntArray:
        """Return the responses of these prompts that are not complete, in their order."""
        responses = self.pool.responses_of(prompts)
        return np.asarray(responses[~self.done[responses]])

    def workload(self, responses: IntArray) -> Workload:
        """Return the workload of completing these responses."""
        return self.pool.workload(responses, self.tokens[responses], self.pool.length[responses])

    def generated(self, version: int, responses: IntArray, tokens: IntArray, done: BoolArray) -> None:
        """Note the tokens that (n,) responses have now, whether they are complete, and which weights generated them."""
        self._segments.append(VersionTokens(version, responses, self.tokens[responses], tokens))
        self.tokens[responses] = tokens
        self.done[responses] = done

    def complete(self, prompts: IntArray) -> BoolArray:
        """Return (n,) whether all responses of each prompt are complete."""
        return np.array([self.done[self.pool.first[p] : self.pool.first[p + 1]].all() for p in prompts.tolist()], dtype=bool)

    def learn(self, update: int, prompts: IntArray) -> float:
        """Note that an update learns from these prompts; return the tokens of them and their responses."""
        responses = self.pool.responses_of(prompts)
        self.learned_by[responses] = update
        return float(self.pool.prompt_tokens[prompts] @ self.pool.sizes[prompts] + self.pool.length[responses].sum())

    def drop(self, prompts: IntArray) -> None:
        """Note that all responses of these prompts are dropped."""
        self.dropped[self.pool.responses_of(prompts)] = True

    def change(self) -> DataChange:
        """Return what has become of the responses in the updates that count."""
        learned, lengths = self.learned_by >= self.first_update, self.pool.length
        waits = (self.started | self._earlier) & (self.learned_by == NEVER) & ~self.dropped
        stale = most = 0
        for version, responses, begin, end in self._segments:
            late = np.where((end > begin) & learned[responses], self.learned_by[responses] - version, 0)
            stale += int((end - begin)[late > 0].sum())
            most = max(most, int(late.max(initial=0)))
        return DataChange(
            int(np.count_nonzero(learned)),
            int(lengths[learned].sum()),
            stale,
            most,
            int(np.count_nonzero(self.dropped)),
            int(self.tokens[self.dropped].sum()),
            int(np.count_nonzero(waits)),
            float(lengths[self.started].mean()) if self.started.any() else None,
        )

    def least_time_s(self, run: RunToChange, seconds: list[float]) -> float:
        """Return a lower bound on the time of any schedule that learns from the same data on the same GPUs.

        Tokens that are not stale are generated between two updates, and so is what the later one learns. Both fit into that
        time together, with the sending of weights. Stale tokens may be generated at any time, by weights that were kept. So all
        tokens together give another bound, and the larger one holds.

        Args:
            seconds: of some schedule between the ends of successive updates, one per update that counts.
        """
        of_tokens, least_s, learned_s = learning_s(run), 0.0, 0.0
        for update, within_s in enumerate(seconds, self.first_update):
            responses = np.flatnonzero(self.learned_by == update)
            prompts = self.pool.prompts_of(responses)
            learn_s = of_tokens(float(self.pool.prompt_tokens[prompts].sum() + self.pool.length[responses].sum()))
            fresh = self._workload(update, responses)
            least_s += least_work_s(run, fresh, learn_s, within_s) + (run.phases.sync_s if fresh is not None else 0.0)
            learned_s += learn_s
        everything = self._workload(self.first_update, np.flatnonzero(self.learned_by >= self.first_update))
        return max(least_s, least_work_s(run, everything, learned_s, sum(seconds)))

    def _workload(self, version: int, responses: IntArray) -> Workload | None:
        """Return the workload of the tokens of these responses that this version or a later one generated; None without any."""
        begin = self.tokens.copy()
        for segment in self._segments:
            if segment.version >= version:
                begin[segment.responses] = np.minimum(begin[segment.responses], segment.begin)
        some = responses[begin[responses] < self.tokens[responses]]
        return self.pool.workload(some, begin[some], self.tokens[some]) if len(some) else None
