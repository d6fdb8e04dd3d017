"""The vLLM engine: real decoding behind the engine protocol, in an actor's process or for an emulated actor (``emulation.py``).

The batch scheduler that all engines share decides which responses are in the batch. So vLLM gets a response when it joins, and
always has room for all that it got. vLLM feeds prompts in chunks beside decoding, up to a token budget, by the rule of
``solver.timing.batching``, and computes both in one pass. The measured time is split between the two spans by their
tokens. Calls of vLLM are in adapter.py.

vLLM shares the KV cache of equal prefixes within an actor by itself, in whole blocks. Plans that hand prefixes over are refused
(``takes_prefixes``). A response that is cut takes the KV state of its full blocks along where the replica can export it. The
rest of its context is recomputed. It continues with a random stream derived from its seed and its length: a migration keeps the
distribution of tokens, not the tokens.

With drafts (``Drafting``) an iteration verifies drafted tokens and yields one or more tokens per response. Greedy tokens are
the same with and without drafts. At temperatures above 0 vLLM's rejection sampler keeps the distribution of tokens, not the
tokens: a seed then yields other tokens than without drafts, and other ones when batches differ.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlhfless.engine.common.batch_scheduler import BatchScheduler, NextBatch
from rlhfless.engine.common.journal import AdmittedResponse, EngineJournal, VerifiedPass
from rlhfless.engine.common.request_validation import TokenRoom
from rlhfless.engine.common.sampling import Sampling
from rlhfless.engine.common.sequence import SequenceState
from rlhfless.engine.common.spans import spans_of
from rlhfless.engine.common.stop_ids import stop_ids
from rlhfless.engine.protocol import Completion, EngineSpan, Progress, Request
from rlhfless.engine.vllm.adapter import Replica, VllmError
from rlhfless.engine.vllm.emulation import EmulatedReplica
from rlhfless.engine.vllm.first_blocks import FirstBlocks
from rlhfless.engine.vllm.iteration import Iteration, NewResponse, seed_at
from rlhfless.engine.vllm.kv_blocks import BlocksKV, StoredKV, kv_wrong
from solver.model.admission import Admission
from solver.model.drafting import Drafting
from solver.model.latency import LatencyModel


class VllmEngine:
    """One actor that decodes with a ``Replica``, or an emulated one with an ``EmulatedReplica``.

    Args:
        replica: started, with the step's weights; used by this engine only.
        admission: slots, KV memory and the admission rule; within the limits with which the replica was started.
        eos_id: the token that ends a response, or several; never sampled where a length is forced.
        start_s: where the clock starts.
        drafting: how to draft; None: without drafts. The replica must have been started for drafts as long.
        latency: the seconds of an iteration by fed tokens, by which adaptive drafts choose their lengths.
        charged: whether the latency model gives the seconds of iterations, as on the virtual clock; else they are measured.

    An iteration that ``peek_next_event_s`` or ``advance`` has looked at is computed. A response added since then joins after
    it, and a response that is cut before its commit loses the token that it got there.
    """

    reuses_prefixes = False  # as a plan asks for it: it takes no prefixes, and shares equal ones whether asked to or not

    def __init__(
        self,
        replica: Replica | EmulatedReplica,
        admission: Admission,
        *,
        eos_id: int | Sequence[int],
        sampling: Sampling | None = None,
        start_s: float = 0.0,
        drafting: Drafting | None = None,
        latency: LatencyModel | None = None,
        charged: bool = False,
    ) -> None:
        self.replica, self.stop_ids, self.sampling = replica, stop_ids(eos_id), sampling or Sampling()
        self._drafts, self._charge = drafting is not None, latency if charged else None
        replica.draft_with(drafting, latency)
        self.slots = admission.max_batch
        self._clock_s = start_s
        self._queue = BatchScheduler[SequenceState](admission, replica.token_budget)
        self._names: dict[SequenceState, str] = {}  # of those that vLLM has
        self._first_blocks = FirstBlocks(replica.block_tokens)
        self._count = itertools.count()
        self._upcoming: Iteration | None = None
        self.journal = EngineJournal(self.slots, start_s)
        self._reported = 0  # runs of the journal whose spans were returned

    @property
    def clock_s(self) -> float:
        """See the protocol."""
        return self._clock_s

    @property
    def drafts_off(self) -> str | None:
        """See ``SupportsDrafts``."""
        return self.replica.drafts_off if self._drafts else None

    @property
    def weights_version(self) -> int | None:
        """Return the version of its weights; None once it is closed."""
        return self.replica.version

    def add(self, requests: Sequence[Request]) -> None:
        """See the protocol."""
        replica = self.replica
        room = TokenRoom(replica.settings.max_tokens, self._queue.admission.kv_capacity_tokens, replica.vocabulary)
        responses = [
            SequenceState.of(request, self._clock_s, room, lambda r: kv_wrong(r, replica.hands_over)) for request in requests
        ]
        self._queue.add(responses)

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
        return Progress([*completions, *self._commit(iteration)], self._new_spans())

    def cut(self, at_s: float, responses: Sequence[int] | None = None) -> tuple[list[Request], Progress]:
        """See the protocol."""
        progress = Progress([], [])
        if self._clock_s < at_s:
            progress = self._commit_while(lambda iteration: iteration.planned.start_s < at_s, at_s)
        if self._clock_s < at_s < math.inf:  # idle at that time
            self._clock_s = at_s
        wanted = None if responses is None else set(responses)
        taken = [s for s in self._queue if wanted is None or s.request.response in wanted]
        kv = self._leave(taken)
        return [s.export(self._clock_s, kv.get(s)) for s in taken], progress

    def generated_tokens(self) -> dict[int, int]:
        """See the protocol."""
        return {s.request.response: s.count for s in self._queue}

    def running(self) -> tuple[int, ...]:
        """See the protocol."""
        return tuple(s.request.response for s in self._queue.running)

    def waiting(self) -> tuple[int, ...]:
        """See the protocol."""
        return tuple(s.request.response for s in (*self._queue.waiting, *self._queue.empty))

    def sync(self, weights: Any, weights_version: int) -> None:
        """Load the weights of the folder ``weights`` (see ``weight_folders``), between steps.

        Raises:
            InputError: the folder does not contain this version.
            VllmError: there are unfinished responses, whose KV state the old weights computed.
        """
        self.replica.load(Path(weights), weights_version)

    def close(self) -> None:
        """See the protocol."""
        self._leave(list(self._queue))
        self.replica.sleep()

    # Planning

    def _due_s(self) -> float:
        """Return when the next response of no tokens ends if that is not after the next iteration begins; else infinite."""
        return self._queue.due_s(self._clock_s, None if self._upcoming is None else self._upcoming.planned.start_s)

    def _next(self) -> Iteration | None:
        """Return the iteration after the last committed one, computed; None when nothing is left."""
        if self._upcoming is not None:
            return self._upcoming
        host_s = self._host_s()
        planned = self._queue.plan(self._clock_s, self._first_blocks.uncached())
        if planned is not None:
            began_s = time.perf_counter()
            self._upcoming = iteration = self._run(planned)
            took_s = time.perf_counter() - began_s if self._charge is None else iteration.charged_s(self._charge)
            iteration.end_s, iteration.host_s = planned.start_s + took_s, self._host_s() - host_s
        return self._upcoming

    def _host_s(self) -> float:
        """Return the CPU seconds of this thread so far, without those of talking to another process."""
        return time.thread_time() - self.replica.talked_s

    # Running

    def _run(self, planned: NextBatch[SequenceState]) -> Iteration:
        """Let vLLM compute the planned iteration.

        Raises:
            FloatingPointError: log-probabilities were not numbers; names the response.
        """
        if names := self._forget(planned.evicted):
            self.replica.abort(names)
        joined: dict[SequenceState, tuple[AdmittedResponse, np.ndarray]] = {}
        for s in planned.admitted:
            self._names[s] = name = f"{s.request.response}-{next(self._count)}"
            self._first_blocks.note(s)
            seed, tokens = seed_at(s.request.seed, s.count), s.stop_tokens - s.count
            context, kv_tokens = s.tokens(0, s.context_tokens), 0 if s.kv is None else s.kv.tokens
            new = NewResponse(name, context.tolist(), seed, tokens, s.forced, s.kv, s.prompt_tokens, s.request.history)
            self.replica.add(new, self.sampling, self.stop_ids)
            joined[s] = AdmittedResponse(s.request.response, s.context_tokens, kv_tokens, s.forced), context
            s.kv = None
        outputs, fed = {output.name: output for output in self.replica.step()}, self.replica.fed_tokens
        names_of = {s: self._names[s] for s in planned.batch}
        drawn = {s: outputs[name] for s, name in names_of.items() if name in outputs}
        chunks = {s: fed[names_of[s]] for s in (*self._queue.missing, *planned.admitted) if names_of.get(s) in fed}
        iteration = Iteration(planned, drawn, chunks, joined)
        for s, output in iteration.drawn.items():
            if not all(map(math.isfinite, output.logprobs)):
                raise FloatingPointError(
                    f"vLLM's log-probabilities for response {s.request.response} are not finite; load finite "
                    "weights, or decode in float32"
                )
        return iteration

    def _forget(self, leaving: Sequence[SequenceState]) -> list[str]:
        """Forget responses that vLLM has removed, or will; returns their names there."""
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
                return Progress(completions, self._new_spans())

    def _complete_due(self, due_s: float) -> list[Completion]:
        """Complete the responses of no tokens whose time is ``due_s``, if it is finite."""
        if due_s == math.inf:
            return []
        self._clock_s = max(self._clock_s, due_s)
        return [s.completion(due_s, self.stop_ids, self._drafts) for s in self._queue.empty.take_due(due_s)]

    def _commit(self, iteration: Iteration) -> list[Completion]:
        """Commit a computed iteration; returns the responses that it finished."""
        host_s, planned, drawn = self._host_s(), iteration.planned, iteration.drawn
        missing = {s: max(1, planned.missing.get(s, 1)) for s in planned.batch if s not in drawn}
        self._queue.enter(planned.batch, planned.admitted, planned.evicted, missing)
        self._upcoming, self._clock_s = None, iteration.end_s
        for s in planned.admitted:
            s.start_s = planned.start_s if s.start_s is None else s.start_s
        for s, tokens in iteration.chunks.items():
            s.prefill_tokens += tokens
        first_tokens: list[int] = []
        for s, output in drawn.items():
            s.append(output.ids, output.logprobs)
            if self._drafts:
                s.verified(output.drafted, len(output.ids))
            if s.first_token_s is None:
                s.first_token_s = self._clock_s
                first_tokens.append(s.request.response)
        self._record(iteration, first_tokens)
        done = self._finish(iteration)
        self.journal.host_s.append(iteration.host_s + self._host_s() - host_s)
        return done

    def _record(self, iteration: Iteration, first_tokens: Sequence[int]) -> None:
        """Note an iteration in the journal; its seconds are split between chunks of contexts and decoding by their tokens."""
        planned, batch = iteration.planned, len(iteration.drawn)
        chunks = [(s.request.response, tokens) for s, tokens in iteration.chunks.items()]
        seconds, computed = iteration.end_s - planned.start_s, sum(tokens for _, tokens in chunks)
        drafted = [output.drafted for output in iteration.drawn.values()]
        fed = batch + sum(drafted)
        decode_s = seconds * fed / (fed + computed) if batch else 0.0
        self.journal.leave(s.request.response for s in planned.evicted)
        joined = [iteration.joined[s] for s in planned.admitted]
        self.journal.contexts |= {(new.response, len(self.journal)): context for new, context in joined}
        self.journal.change(batch, planned.kv_tokens, [new for new, _ in joined], chunks=chunks)
        if self._drafts:
            accepted = (len(output.ids) - 1 for output in iteration.drawn.values())
            self.journal.passes.append(VerifiedPass(planned.kv_tokens, tuple(drafted), tuple(accepted)))
        self.journal.commit(planned.start_s, seconds - decode_s, [decode_s], iteration.end_s)
        self.journal.first_tokens += [(len(self.journal), response) for response in first_tokens]

    def _new_spans(self) -> list[EngineSpan]:
        """Return the spans of the iterations that were committed since the last call."""
        first, self._reported = self._reported, len(self.journal.runs)
        return spans_of(self.journal.iteration_runs(first), self.slots)

    def _finish(self, iteration: Iteration) -> list[Completion]:
        done = []
        for s, drawn in iteration.drawn.items():
            reason = s.finish_reason(self.stop_ids)
            if drawn.finished != (reason is not None):
                ended = "ended" if drawn.finished else "did not end"
                raise VllmError(f"vLLM {ended} response {s.request.response} at {s.count} of {s.stop_tokens} tokens")
            if reason is not None:
                done.append(s)
                del self._names[s]
        self._queue.remove(set(done))
        self.journal.leave(s.request.response for s in done)
        self.journal.finish(s.request.response for s in done)
        return [s.completion(self._clock_s, self.stop_ids, self._drafts) for s in done]

    def _leave(self, leaving: Sequence[SequenceState]) -> dict[SequenceState, BlocksKV | StoredKV]:
        """Remove responses from the batch, and drop their sampled tokens that are not committed.

        Returns:
            KV states of those that have one.
        """
        gone = set(leaving)
        kv = {s: s.kv for s in leaving if s.kv is not None}
        names = {self._names[s]: s for s in leaving if s in self._names}
        kv |= {names[name]: state for name, state in self.replica.hand_over(list(names)).items()}
        self._forget(leaving)
        self.journal.leave(s.request.response for s in self._queue.remove(gone))
        if (upcoming := self._upcoming) is not None:
            upcoming.remove(gone)
            if not upcoming.planned.batch:
                self._upcoming = None
                self._queue.enter([], [], upcoming.planned.evicted)  # which vLLM has done already
                self.journal.leave(s.request.response for s in upcoming.planned.evicted)
        return kv
