"""Replays an actor's journal on the device, alone and back to back, to measure its iterations: the same shapes, other tokens.

Prefixes that were computed once for many responses are computed again with their own token ids. Responses are made up. They
join with contexts of the same lengths, of which as much is cached as was, and leave after as many iterations. So the engine
goes through the same batches with a cache of the same size, its own bookkeeping included. Drafts are as long as they were, and
as much of each is kept; drafting itself is charged as the virtual clock charges it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from rlhfless.engine.common.engine_drafts import Drafts
from rlhfless.engine.common.journal import AdmittedResponse, EngineJournal, JournalledBatch, Replayed, VerifiedPass
from rlhfless.engine.common.sampling import Sampling
from rlhfless.engine.common.sequence import SequenceState
from rlhfless.engine.protocol import Request
from rlhfless.engine.torch.engine import TorchEngine
from rlhfless.engine.torch.iteration_clock import MEASURED, drafting_s
from rlhfless.engine.torch.kv_cache import free_storage
from rlhfless.engine.torch.prefixes import PrefixKV, compute_prefixes
from rlhfless.engine.torch.row_model import RowModel
from rlhfless.latency.timing import stopwatch
from rlhfless.system.cleanup import cleaning_up
from solver.model.admission import Admission

WARM_UP_ITERATIONS = 8
NO_TOKEN = -1  # an end of text that is never drawn: responses end when the journal says so
AMPLE = 1 << 62


class RecordedDrafts:
    """Drafts of recorded passes: made-up tokens, of which as many are kept as were; see ``PassDrafts``."""

    off = None

    def __init__(self, passes: Sequence[VerifiedPass]) -> None:
        self._passes, self._at = passes, 0
        self._accepted: dict[SequenceState, int] = {}

    def start(self, responses: Sequence[SequenceState]) -> None:
        """Do nothing."""

    def remove(self, responses: Sequence[SequenceState]) -> None:
        """Do nothing."""

    def undrafted_passes(self, batch: Sequence[SequenceState], kv_tokens: int) -> int:
        """Return how many recorded passes in a row had no drafts."""
        until = self._at
        while until < len(self._passes) and not any(self._passes[until].drafted):
            until += 1
        return until - self._at

    def plan(self, batch: Sequence[SequenceState], kv_tokens: int) -> Drafts:
        """Return drafts as long as those of the recorded pass."""
        recorded = self._passes[self._at]
        self._accepted = dict(zip(batch, recorded.accepted, strict=True))
        return {s: [0] * drafted for s, drafted in zip(batch, recorded.drafted, strict=True)}

    def kept(self, s: SequenceState, drafted: Sequence[int], sampled: Sequence[int]) -> int:
        """Return how many tokens the recorded pass committed."""
        return self._accepted[s] + 1

    def commit(self, committed: Mapping[SequenceState, tuple[int, list[int]]]) -> None:
        """Go on to the next recorded pass."""
        self._at += 1

    def commit_undrafted(self, passes: int) -> None:
        """Go on by so many recorded passes."""
        self._at += passes


class Replay:
    """One replay of a journal.

    Attributes:
        asked: the journal to replay. journal: what the replay itself recorded.
    """

    def __init__(self, model: RowModel, journal: EngineJournal, sampling: Sampling) -> None:
        self.asked = journal
        self._model = model
        self._engine = TorchEngine(
            model, Admission(journal.slots, AMPLE), MEASURED, eos_id=NO_TOKEN, sampling=sampling,
            drafting=RecordedDrafts(journal.passes) if journal.passes else None,
        )  # fmt: skip
        self._now_s = stopwatch(model.device.type)
        self._stays, self._tokens = _stays(journal), _tokens(journal)
        self._finished = {(iterations, response) for iterations, response in journal.finished}

    @property
    def journal(self) -> EngineJournal:
        """Return the journal of the replay."""
        return self._engine.journal

    def run(self, iterations: int) -> NDArray[np.float64]:
        """Run the first ``iterations``; returns (iterations, 2) seconds of the prefill before each, and of the rest of it.

        The rest includes all other work of the host: admitting responses, planning, sampling, removing responses. It excludes
        exports of KV caches, which stand for transfers, and the preparation of shapes.
        """
        seconds = np.zeros((iterations, 2))
        with cleaning_up(self._engine.close):
            for change, until in self.asked.intervals():
                if change.iteration >= iterations:
                    break
                self._remove_left(change)
                requests = [self._request(new, change.iteration) for new in change.joined]
                for k in range(change.iteration, min(until, iterations)):
                    seconds[k] = self._timed(requests if k == change.iteration else [])
        return seconds

    def _timed(self, requests: Sequence[Request]) -> tuple[float, float]:
        engine, journal = self._engine, self.journal
        prepared_s, begin = journal.prepare_s, self._now_s()
        if requests:
            engine.add(requests)
        engine.commit_next()
        whole_s = self._now_s() - begin - (journal.prepare_s - prepared_s)
        prefill_s = journal.runs[-1].prefill_s
        drafted = sum(journal.passes[-1].drafted) if journal.passes else 0
        return prefill_s, whole_s - prefill_s + drafting_s(drafted)

    def _remove_left(self, change: JournalledBatch) -> None:
        """Remove the responses that left unfinished: moved away, or evicted."""
        here = set(self._engine.running())
        if gone := [response for response in change.left if response in here]:
            self._engine.cut(self._engine.clock_s, gone)

    def _request(self, new: AdmittedResponse, iteration: int) -> Request:
        """Return a response that joins now and stays for as many iterations as the original."""
        end = self._stays[new.response, iteration]
        tokens = self._tokens[new.response, iteration]
        tokens += (end, new.response) not in self._finished  # who does not finish has some left
        context, cached = new.context_tokens, new.cached_tokens
        whole = cached == context
        return Request(
            new.response, context, tokens, target_tokens=tokens if new.forced else None,
            prompt_ids=np.zeros(context, np.int64), seed=new.response,
            kv=self._kv(context - 1) if whole else None,
            cached_tokens=0 if whole else cached, prefix_kv=PrefixKV((self._kv(cached),)) if 0 < cached < context else None,
        )  # fmt: skip

    def _kv(self, tokens: int) -> torch.Tensor:
        model = self._model
        shape = (2, model.layer_count, model.kv_heads, tokens, model.head_dim)
        return torch.zeros(shape, dtype=model.dtype, device=model.device)


def _stays(journal: EngineJournal) -> dict[tuple[int, int], int]:
    """Return, by (response, iteration at which it joins), the iteration before which it leaves."""
    stays: dict[tuple[int, int], int] = {}
    inside: dict[int, int] = {}
    for change in journal.changes:
        for response in change.left:
            stays[response, inside.pop(response)] = change.iteration
        inside |= {new.response: change.iteration for new in change.joined}
    return stays | {(response, since): len(journal) for response, since in inside.items()}


def _tokens(journal: EngineJournal) -> dict[tuple[int, int], int]:
    """Return, by (response, iteration at which it joins), the tokens that it gets until it leaves."""
    tokens: dict[tuple[int, int], int] = defaultdict(int)
    batch: dict[int, tuple[int, int]] = {}  # in admission order: the key of each response
    for change, until in journal.intervals():
        for response in change.left:
            del batch[response]
        batch |= {new.response: (new.response, change.iteration) for new in change.joined}
        for iteration in range(change.iteration, until) if journal.passes else ():
            for key, accepted in zip(batch.values(), journal.passes[iteration].accepted, strict=True):
                tokens[key] += 1 + accepted
        if not journal.passes:
            for key in batch.values():
                tokens[key] += until - change.iteration
    return tokens


def replay(model: RowModel, journal: EngineJournal, sampling: Sampling) -> Replayed:
    """Run all of the journal's iterations, after its first ``WARM_UP_ITERATIONS`` have been run once to warm up."""
    first = Replay(model, journal, sampling)
    warm_up_s = float(first.run(min(WARM_UP_ITERATIONS, len(journal))).sum()) + first.journal.prepare_s
    again = Replay(model, journal, sampling)
    seconds = again.run(len(journal))
    assert [_shape(c) for c in again.journal.changes] == [_shape(c) for c in journal.changes], "the replayed batches differ"
    return Replayed(seconds, warm_up_s + again.journal.prepare_s)


def replay_prefixes(model: RowModel, prefixes: Mapping[int, np.ndarray]) -> Replayed:
    """Time computing prefixes (token ids by prompt) for many responses, as one prefill, after computing them once to
    warm up.
    """
    warm_up_s, seconds = (_prefix_seconds(model, prefixes) for _ in range(2))
    return Replayed(np.array([[seconds, 0.0]]), warm_up_s)


def _prefix_seconds(model: RowModel, prefixes: Mapping[int, np.ndarray]) -> float:
    cuda, now_s = model.device.type == "cuda", stopwatch(model.device.type)
    if cuda:
        torch.cuda.synchronize(model.device)
    begin = now_s()
    computed = compute_prefixes(model, prefixes)
    if cuda:
        torch.cuda.synchronize(model.device)
    seconds = now_s() - begin
    free_storage(*{id(piece): piece for kv in computed.values() for piece in kv.pieces}.values())
    return seconds


def _shape(change: JournalledBatch) -> tuple[int, ...]:
    return change.iteration, change.batch, change.rows, change.width, change.kv_tokens, change.prefill_tokens
