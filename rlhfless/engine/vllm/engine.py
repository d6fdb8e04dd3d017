"""The vLLM engine: real decoding behind the engine protocol, for an actor in a separate process.

This engine decides which responses are in the batch, by the admission rule that planner and engines share. So vLLM gets a
response when it joins, and always has room for all that it got. The engine feeds prompts in chunks beside decoding, up to a
token budget, by the rule of ``solver.timing.mixed_prefill``. It computes both in one pass. The measured time is split between
the two spans by their tokens. Calls of vLLM are in adapter.py.

vLLM shares the KV cache of equal prefixes within an actor by itself, in whole blocks. Plans that hand prefixes over are refused
(``takes_prefixes``). A response that is cut takes the KV state of its full blocks along where the replica can export it. The
rest of its context is recomputed. It continues with a random stream derived from its seed and its length: a migration keeps the
distribution of tokens, not the tokens.

It reports no signals (``SupportsSignals``): vLLM gives log-probabilities of sampled tokens and of a few likely ones only.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlhfless.engine.common.empty_responses import EmptyResponses
from rlhfless.engine.common.request_validation import TokenRoom
from rlhfless.engine.common.sequence import SequenceState
from rlhfless.engine.common.span_accumulator import SpanAccumulator
from rlhfless.engine.protocol import Completion, Progress, Request
from rlhfless.engine.torch.sampling import Sampling
from rlhfless.engine.vllm.adapter import Replica, VllmError
from rlhfless.engine.vllm.iteration import Iteration
from rlhfless.engine.vllm.kv_blocks import BlocksKV, kv_wrong
from solver.model.admission import Admission


class VllmEngine:
    """One actor that decodes with a ``Replica``.

    Args:
        replica: started, with the step's weights; used by this engine only.
        admission: slots, KV memory and the admission rule; within the limits with which the replica was started.
        eos_id: the token that ends a response; never sampled where a length is forced.
        start_s: where the clock starts.

    An iteration that ``peek_next_event_s`` or ``advance`` has looked at is computed. A response added since then joins after
    it, and a response that is cut before its commit loses the token that it got there.
    """

    reuses_prefixes = False  # as a plan asks for it: it takes no prefixes, and shares equal ones whether asked to or not

    def __init__(
        self, replica: Replica, admission: Admission, *, eos_id: int, sampling: Sampling | None = None, start_s: float = 0.0
    ) -> None:
        self.replica, self.admission, self.eos_id, self.sampling = replica, admission, eos_id, sampling or Sampling()
        self.slots = admission.max_batch
        self._clock_s = start_s
        self._running: list[SequenceState] = []  # in admission order
        self._waiting: list[SequenceState] = []  # in the order in which they became available
        self._empty = EmptyResponses[SequenceState]()
        self._names: dict[SequenceState, str] = {}  # of those that vLLM has
        self._incomplete: set[SequenceState] = set()  # of those that vLLM has, with missing context
        self._count = itertools.count()
        self._upcoming: Iteration | None = None
        self._spans = SpanAccumulator(self.slots)

    @property
    def clock_s(self) -> float:
        """See the protocol."""
        return self._clock_s

    @property
    def weights_version(self) -> int | None:
        """Return the version of its weights; None once it is closed."""
        return self.replica.version

    def add(self, requests: Sequence[Request]) -> None:
        """See the protocol."""
        replica = self.replica
        room = TokenRoom(replica.settings.max_tokens, self.admission.kv_capacity_tokens, replica.vocabulary)
        responses = [
            SequenceState.of(request, self._clock_s, room, lambda r: kv_wrong(r, replica.hands_over)) for request in requests
        ]
        self._waiting += [s for s in responses if s.stop_tokens]
        self._waiting.sort(key=lambda s: s.queued_s)
        self._empty.add(s for s in responses if not s.stop_tokens)

    def peek_next_event_s(self, completions: int = 1) -> float:
        """See the protocol. The end of the next iteration, in which any number may complete."""
        if (due_s := self._due_s()) < math.inf:
            return due_s
        iteration = self._next()
        return math.inf if iteration is None else iteration.end_s

    def advance(self, to_s: float) -> Progress:
        """See the protocol."""
        return self._commit_while(lambda iteration: iteration.end_s <= to_s, to_s)

    def step(self, from_s: float, clock: Callable[[], float]) -> Progress:
        """Run one iteration in real time, for the wall-clock event loop; does nothing without responses.

        Args:
            from_s: where it begins, unless the last one ended later.
            clock: called when its tokens are computed: returns where it ends, and the next one begins.
        """
        self._clock_s = max(self._clock_s, from_s)
        completions = self._complete_due(self._due_s())
        iteration = self._next()
        if iteration is None:
            return Progress(completions, [])
        iteration.end_s = clock()
        return Progress([*completions, *self._commit(iteration)], self._spans.drain())

    def cut(self, at_s: float, responses: Sequence[int] | None = None) -> tuple[list[Request], Progress]:
        """See the protocol."""
        progress = Progress([], [])
        if self._clock_s < at_s:
            progress = self._commit_while(lambda iteration: iteration.start_s < at_s, at_s)
        if self._clock_s < at_s < math.inf:  # idle at that time
            self._clock_s = at_s
        wanted = None if responses is None else set(responses)
        taken = [s for s in self._all() if wanted is None or s.request.response in wanted]
        kv = self._leave(taken)
        return [s.export(self._clock_s, kv.get(s)) for s in taken], progress

    def generated_tokens(self) -> dict[int, int]:
        """See the protocol."""
        return {s.request.response: s.count for s in self._all()}

    def running(self) -> tuple[int, ...]:
        """See the protocol."""
        return tuple(s.request.response for s in self._running)

    def waiting(self) -> tuple[int, ...]:
        """See the protocol."""
        return tuple(s.request.response for s in (*self._waiting, *self._empty))

    def sync(self, weights: Any, weights_version: int) -> None:
        """Load the weights of the folder ``weights`` (see ``weight_folders``), between steps.

        Raises:
            InputError: the folder does not contain this version.
            VllmError: there are unfinished responses, whose KV state the old weights computed.
        """
        self.replica.load(Path(weights), weights_version)

    def close(self) -> None:
        """See the protocol."""
        self._leave(self._all())
        self.replica.sleep()

    def _all(self) -> list[SequenceState]:
        return [*self._running, *self._waiting, *self._empty]

    # Planning

    def _due_s(self) -> float:
        """Return when the next response of no tokens ends if that is not after the next iteration begins; else infinite."""
        start_s = self._clock_s
        if self._upcoming is not None:
            start_s = self._upcoming.start_s
        elif not self._running:
            start_s = max(start_s, self._waiting[0].queued_s) if self._waiting else math.inf
        return self._empty.due_s(self._clock_s, start_s)

    def _next(self) -> Iteration | None:
        """Return the iteration after the last committed one, computed; None when nothing is left."""
        if self._upcoming is None and (iteration := self._plan()) is not None:
            began_s = time.perf_counter()
            self._run(iteration)
            iteration.end_s = iteration.start_s + time.perf_counter() - began_s
            self._upcoming = iteration
        return self._upcoming

    def _plan(self) -> Iteration | None:
        """Return the next iteration by the admission rule; changes nothing."""
        start_s, admission, batch = self._clock_s, self.admission, list(self._running)
        if not batch:
            if not self._waiting:
                return None
            start_s = max(start_s, self._waiting[0].queued_s)
        held, evicted, admitted = sum(map(self._held, batch)), [], []
        while admission.overflows(len(batch), held):
            evicted.append(batch.pop())
            held -= self._held(evicted[-1])
        if not evicted:
            for s in self._waiting:
                if s.queued_s > start_s or not admission.admits(len(batch), held, self._held(s)):
                    break
                admitted.append(s)
                batch.append(s)
                held += self._held(s)
        return Iteration(start_s, batch, sum(s.context_tokens for s in batch), admitted, evicted)

    def _held(self, s: SequenceState) -> int:
        return self.admission.held_tokens(s.context_tokens, s.max_kv_tokens)

    # Running

    def _run(self, iteration: Iteration) -> None:
        """Let vLLM compute the iteration.

        Raises:
            FloatingPointError: log-probabilities were not numbers; names the response.
        """
        self._abort(iteration.evicted)
        for s in iteration.admitted:
            self._names[s] = name = f"{s.request.response}-{next(self._count)}"
            self._incomplete.add(s)
            seed, tokens = seed_at(s.request.seed, s.count), s.stop_tokens - s.count
            context = s.tokens(0, s.context_tokens).tolist()
            self.replica.add(name, context, self.sampling, seed, self.eos_id, tokens, s.forced, s.kv)
            s.kv = None
        drawn = {output.name: output for output in self.replica.step()}
        iteration.drawn = {s: drawn[name] for s in iteration.batch if (name := self._names[s]) in drawn}
        fed = self.replica.fed_tokens
        iteration.chunks = {s: fed[name] for s in iteration.batch if s in self._incomplete and (name := self._names[s]) in fed}
        for s, output in iteration.drawn.items():
            if not all(map(math.isfinite, output.logprobs)):
                raise FloatingPointError(
                    f"vLLM's log-probabilities for response {s.request.response} are not finite; load finite "
                    "weights, or decode in float32"
                )

    def _abort(self, leaving: Sequence[SequenceState]) -> None:
        if names := self._forget(leaving):
            self.replica.abort(names)

    def _forget(self, leaving: Sequence[SequenceState]) -> list[str]:
        """Forget responses that vLLM has removed, or will; returns their names there."""
        for s in leaving:
            self._incomplete.discard(s)
        return [self._names.pop(s) for s in leaving if s in self._names]

    # Committing

    def _commit_while(self, wanted: Callable[[Iteration], bool], to_s: float) -> Progress:
        """Commit iterations while ``wanted`` is true, and complete responses of no tokens that end by ``to_s``."""
        completions: list[Completion] = []
        while True:
            due_s = self._due_s()
            if due_s <= to_s and due_s < math.inf:
                completions += self._complete_due(due_s)
            elif due_s == math.inf and (iteration := self._next()) is not None and wanted(iteration):
                completions += self._commit(iteration)
            else:
                return Progress(completions, self._spans.drain())

    def _complete_due(self, due_s: float) -> list[Completion]:
        """Complete the responses of no tokens whose time is ``due_s``, if it is finite."""
        if due_s == math.inf:
            return []
        self._clock_s = max(self._clock_s, due_s)
        return [s.completion(due_s, self.eos_id) for s in self._empty.take_due(due_s)]

    def _commit(self, iteration: Iteration) -> list[Completion]:
        """Commit a computed iteration; returns the responses that it finished."""
        self._evict(iteration.evicted)
        for s in iteration.admitted:
            self._waiting.remove(s)
            s.start_s = iteration.start_s if s.start_s is None else s.start_s
        self._running, self._upcoming, self._clock_s = iteration.batch, None, iteration.end_s
        for s, tokens in iteration.chunks.items():
            s.prefill_tokens += tokens
        self._incomplete -= iteration.drawn.keys()
        for s, drawn in iteration.drawn.items():
            s.append(drawn.ids, drawn.logprobs)
            s.first_token_s = self._clock_s if s.first_token_s is None else s.first_token_s
        self._record(iteration, [(s.request.response, tokens) for s, tokens in iteration.chunks.items()])
        return self._finish(iteration)

    def _evict(self, evicted: Sequence[SequenceState]) -> None:
        """Move responses from the batch to the front of the queue, youngest first."""
        for s in evicted:
            s.queued_s = -math.inf
            self._running.remove(s)
            self._waiting.insert(0, s)

    def _record(self, iteration: Iteration, chunks: Sequence[tuple[int, int]]) -> None:
        """Add the spans of an iteration that computed ``chunks`` of contexts: (response, tokens)."""
        start_s, end_s, tokens = iteration.start_s, iteration.end_s, sum(len(d.ids) for d in iteration.drawn.values())
        computed = sum(count for _, count in chunks)
        decode_s = (end_s - start_s) * tokens / (tokens + computed) if tokens else 0.0
        if computed:
            self._spans.prefill(start_s, end_s - decode_s, computed, len(chunks), computed, chunks)
        if not tokens:
            return
        begin_s, batch = end_s - decode_s if computed else start_s, len(iteration.drawn)
        self._spans.decode(begin_s, end_s, tokens, batch * decode_s, iteration.kv_tokens * decode_s)

    def _finish(self, iteration: Iteration) -> list[Completion]:
        done = []
        for s, drawn in iteration.drawn.items():
            reason = s.finish_reason(self.eos_id)
            if drawn.finished != (reason is not None):
                ended = "ended" if drawn.finished else "did not end"
                raise VllmError(f"vLLM {ended} response {s.request.response} at {s.count} of {s.stop_tokens} tokens")
            if reason is not None:
                done.append(s.completion(self._clock_s, self.eos_id))
                del self._names[s]
        over = {c.response for c in done}
        self._running = [s for s in self._running if s.request.response not in over]
        return done

    def _leave(self, leaving: Sequence[SequenceState]) -> dict[SequenceState, BlocksKV]:
        """Remove responses from the batch, and drop their sampled tokens that are not committed.

        Returns:
            KV states of those that have one.
        """
        gone = set(leaving)
        kv = {s: s.kv for s in leaving if s.kv is not None}
        names = {self._names[s]: s for s in leaving if s in self._names}
        kv |= {names[name]: state for name, state in self.replica.hand_over(list(names)).items()}
        self._forget(leaving)
        self._running = [s for s in self._running if s not in gone]
        self._waiting = [s for s in self._waiting if s not in gone]
        self._empty.remove(gone)
        if (upcoming := self._upcoming) is not None:
            upcoming.batch = [s for s in upcoming.batch if s not in gone]
            upcoming.admitted = [s for s in upcoming.admitted if s not in gone]
            upcoming.evicted = [s for s in upcoming.evicted if s not in gone]
            upcoming.drawn = {s: drawn for s, drawn in upcoming.drawn.items() if s not in gone}
            upcoming.chunks = {s: tokens for s, tokens in upcoming.chunks.items() if s not in gone}
            if not upcoming.batch:
                self._upcoming = None
                self._evict(upcoming.evicted)  # which vLLM has done already
        return kv


def seed_at(seed: int, tokens: int) -> int:
    """Return the seed by which vLLM, restarted, continues a response of ``seed`` (mod 2 ** 64) after ``tokens`` tokens."""
    return int(np.random.SeedSequence([seed % (1 << 64), tokens]).generate_state(1, np.uint64)[0] >> np.uint64(1))
