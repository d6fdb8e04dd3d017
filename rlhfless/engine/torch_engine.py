"""Real decoding with a transformers language model: the torch engine behind the engine protocol.

Knows requests and iterations: one is planned from what is committed, run, and committed; until then nothing of it is seen, so
an iteration that was run too early is simply forgotten. Who decodes stands in torch_queue.py, where KV state lies in
torch_rows.py, what a batch that nobody joins or leaves feeds next in torch_stretch.py, how a token is computed in
torch_forward.py and torch_step.py, how it is drawn in sampling.py, what is charged in torch_clock.py. Many engines may share
one ``RowModel``: N emulated GPUs on one device, one copy of the weights.

On one machine, in float32 on the CPU, token ids depend on (weights, prompt, seed) only: not on the batch, the actor, the
time of a cut, whether KV was moved or recomputed, or whose prefix was reused.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

from rlhfless.engine.journal import Journal, Newcomer
from rlhfless.engine.protocol import Completion, Progress, Request
from rlhfless.engine.spans import SpanAccumulator
from rlhfless.errors import missing_extra
from solver.admission import Admission
from solver.latency import LatencyModel

try:
    import torch

    from rlhfless.engine.sampling import Sampling
    from rlhfless.engine.torch_check import Room
    from rlhfless.engine.torch_clock import IterationClock
    from rlhfless.engine.torch_forward import RowModel, one_thread
    from rlhfless.engine.torch_queue import Queue
    from rlhfless.engine.torch_rows import Rows
    from rlhfless.engine.torch_state import ActiveResponse, Iteration
    from rlhfless.engine.torch_step import decode_step
    from rlhfless.engine.torch_stretch import Stretch
except ImportError as error:
    if error.name != "torch":
        raise
    raise missing_extra("the torch engine", error.name, "torch") from None


P = ParamSpec("P")
T = TypeVar("T")


def _computes(method: Callable[Concatenate[TorchEngine, P], T]) -> Callable[Concatenate[TorchEngine, P], T]:
    """Enters torch's modes once for however many iterations a call runs."""

    @functools.wraps(method)
    def call(self: TorchEngine, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with torch.inference_mode(), one_thread(self.model.device):
            return method(self, *args, **kwargs)

    return call


class TorchEngine:
    """One actor that decodes with a ``RowModel``.

    Args:
        model: the weights; may be shared with other engines on its device.
        admission: slots and KV memory, and who joins and leaves the batch.
        charge: a latency model, whose seconds an iteration takes, or ``"measured"``: the seconds that it took here.
        eos_id: the token that ends a response; never drawn where a length is forced.
        start_s: where the clock starts.
        signals: what to return of every token beside its log-probability, at no extra pass: ``eos_logprob``, ``entropy``,
            ``hidden`` (the last hidden state).

    Attributes:
        journal: what was committed, from which ``torch_replay`` can run it again.

    Raises:
        ValueError: ``charge`` is neither, or a signal is unknown.
    """

    reuses_prefixes = True

    def __init__(
        self,
        model: RowModel,
        admission: Admission,
        charge: LatencyModel | str,
        *,
        eos_id: int,
        sampling: Sampling | None = None,
        start_s: float = 0.0,
        signals: Sequence[str] = (),
    ) -> None:
        self.model, self.eos_id, self.sampling = model, eos_id, sampling or Sampling()
        self.slots = admission.max_batch
        self.weights_version = 0
        self._room = Room(model.max_tokens, admission.kv_capacity_tokens, model.vocabulary)
        self._clock = IterationClock(charge, model.device)
        self._step = decode_step(model, self.sampling, eos_id, signals)
        self._clock_s = start_s
        self.journal = Journal(self.slots, start_s)
        self._queue = Queue(admission)
        self._upcoming: Iteration | None = None
        self._stretch: Stretch | None = None  # of the batch as it is; None once somebody joined or left
        self._rows = self._new_rows()
        self._spans = SpanAccumulator(self.slots)

    @property
    def clock_s(self) -> float:
        return self._clock_s

    @_computes
    def add(self, requests: Sequence[Request]) -> None:
        responses = [ActiveResponse.of(request, self._clock_s, self._room) for request in requests]
        self._queue.add(responses)
        self._rows.reserve(self._queue.needed_slots())
        if self._upcoming is not None and any(s.queued_s <= self._upcoming.start_s for s in responses):
            self._upcoming = None

    @_computes
    def peek_next_event_s(self, completions: int = 1) -> float:
        if (due_s := self._queue.due_s(self._clock_s)) < math.inf:
            return due_s
        iteration = self._next()
        return math.inf if iteration is None else iteration.end_s

    @_computes
    def advance(self, to_s: float) -> Progress:
        return self._commit_while(lambda iteration: iteration.end_s <= to_s, to_s)

    @_computes
    def step(self, from_s: float, clock: Callable[[], float]) -> Progress:
        """One iteration in real time, for a loop on the wall clock; nothing when nobody is here.

        Args:
            from_s: where it begins, unless the last one ended later.
            clock: asked when its tokens are there: where it ends, and the next one begins.
        """
        self._clock_s, self._upcoming = max(self._clock_s, from_s), None
        completions = self._complete_due(self._queue.due_s(self._clock_s))
        iteration = self._plan()
        if iteration is None:
            return Progress(completions, [])
        iteration.prefill_s, _ = self._run(iteration)
        iteration.decode_s = clock() - iteration.decode_start_s
        return Progress([*completions, *self._commit(iteration)], self._spans.drain())

    @_computes
    def commit_next(self) -> list[Completion]:
        """Commit the next iteration, which there must be, and do nothing for the one after it; returns what it finished."""
        iteration = self._next()
        assert iteration is not None, "nothing is left to decode"
        return self._commit(iteration)

    @_computes
    def cut(self, at_s: float, responses: Sequence[int] | None = None) -> tuple[list[Request], Progress]:
        progress = Progress([], [])
        if self._clock_s < at_s:  # else no iteration can be under way: measured ones would be run to be forgotten
            progress = self._commit_while(lambda iteration: iteration.start_s < at_s, at_s)
        if self._clock_s < at_s < math.inf:  # idle at that time
            self._clock_s = at_s
        self._upcoming = None
        self._settle()
        wanted = None if responses is None else set(responses)
        taken = [s for s in self._queue if wanted is None or s.request.response in wanted]
        requests = [s.export(self._clock_s, self._rows.kv_of(s)) for s in taken]
        self._leave(taken)
        self._rows.forget_prompts(self._queue.waiting)
        return requests, progress

    def generated_tokens(self) -> dict[int, int]:
        tokens = {s.request.response: s.count for s in self._queue}
        if self._stretch is not None and (more := self._stretch.unsettled):
            for s in self._queue.running:
                tokens[s.request.response] += more
        return tokens

    def running(self) -> tuple[int, ...]:
        return tuple([s.request.response for s in self._queue.running])

    def waiting(self) -> tuple[int, ...]:
        return tuple([s.request.response for s in (*self._queue.waiting, *self._queue.empty)])

    def sync(self, weights: Any, weights_version: int) -> None:
        """Take over a model's weights or a state dict, for every engine that shares the ``RowModel``.

        Responses under way keep the KV state that the old weights computed of them; prompts and prefixes that others wait for
        are computed anew.
        """
        self.model.load(weights)
        self.weights_version = weights_version
        self._upcoming = None
        self._rows.forget_prompts()
        for s in self._queue.waiting:
            s.forget_prefix()

    @property
    def held_bytes(self) -> int:
        """Bytes of KV state that it holds for its batch and of prompts that others will share."""
        return self._rows.held_bytes

    def close(self) -> None:
        for s in (*self._queue, *(() if self._upcoming is None else self._upcoming.batch)):
            s.kv = None
            s.forget_prefix()
        self._queue = Queue(self._queue.admission)
        self._upcoming = self._stretch = None
        self._step.release()
        self._rows.close()
        self._rows = self._new_rows()

    def _new_rows(self) -> Rows:
        return Rows(self.model, self.slots, draws=self.sampling.temperature > 0)

    # Planning

    def _next(self) -> Iteration | None:
        """The iteration after the last committed one, with its times known; None when nothing is left."""
        if self._upcoming is None:
            self._upcoming = one = self._plan()
            if one is not None and (model := self._clock.model) is not None:
                one.prefill_s = self._clock.prefill_s(one.computed_tokens)
                one.decode_s = self._clock.step_s(len(one.batch), one.kv_tokens) + model.join_s * len(one.newcomers)
            elif one is not None:
                one.prefill_s, one.decode_s = self._run(one)
        return self._upcoming

    def _plan(self) -> Iteration | None:
        """Who decodes next; changes nothing."""
        queue, same = self._queue, self._stretch
        if same is not None and not queue.changes(self._clock_s, same.kv_tokens):
            return Iteration(self._clock_s, queue.running, same.kv_tokens)
        self._settle()
        planned = queue.plan(self._clock_s)
        return None if planned is None else Iteration.of(planned, self._rows.there(planned.newcomers))

    # Running

    def _run(self, iteration: Iteration) -> tuple[float, float]:
        """Compute the iteration's tokens; returns the seconds of its prefill and its decoding.

        Writes no cell of the cache that a committed token owns, so the iteration may still be forgotten.
        """
        if self._stretch is None or iteration.newcomers or iteration.evicted:
            iteration.stretch = self._rows.make(iteration)
            if iteration.evicted:  # rows have changed places
                self._stretch = None
        else:
            iteration.stretch, iteration.rows = self._stretch, self._rows.of
        inputs, width = iteration.stretch.inputs()
        cache, clock = self._rows.cache, self._clock
        clock.wait()
        before = clock.now_s()
        self._step.prepare(cache, len(inputs.tokens), width)
        begin = decode = clock.now_s()
        self.journal.prepare_s += begin - before
        if iteration.newcomers:
            self._rows.compute(iteration, self._queue.waiting)
            clock.wait()
            decode = clock.now_s()
        iteration.drawn = self._step(cache, inputs, width, iteration.stretch.padding)
        clock.wait()
        return (decode - begin if iteration.computed_tokens else 0.0), clock.now_s() - decode

    # Committing

    def _commit_while(self, wanted: Callable[[Iteration], bool], to_s: float) -> Progress:
        """Iterations as long as they are wanted, and responses of no tokens that end by ``to_s``."""
        completions: list[Completion] = []
        while True:
            if (due_s := self._queue.due_s(self._clock_s)) <= to_s and due_s < math.inf:
                completions += self._complete_due(due_s)
            elif due_s == math.inf and (iteration := self._next()) is not None and wanted(iteration):
                completions += self._commit(iteration)
            else:
                return Progress(completions, self._spans.drain())

    def _commit(self, iteration: Iteration) -> list[Completion]:
        """Make what the iteration computed part of the state; returns the responses that it finished."""
        if iteration.drawn is None:
            self._run(iteration)
        assert iteration.drawn is not None
        assert iteration.stretch is not None
        self._record_spans(iteration)
        if iteration.stretch is not self._stretch:
            self._change_batch(iteration, iteration.stretch)
        self._upcoming, self._clock_s = None, iteration.end_s
        self.journal.commit(iteration.prefill_s, iteration.decode_s, iteration.end_s)
        for s in iteration.newcomers:
            s.first_token_s = self._clock_s if s.first_token_s is None else s.first_token_s
        ends = iteration.stretch.commit(iteration.drawn, self.eos_id)
        return self._finish(ends) if ends else []

    def _change_batch(self, iteration: Iteration, stretch: Stretch) -> None:
        for s in iteration.evicted:
            s.there_tokens, s.shares = 0, False
        self.journal.leave(s.request.response for s in iteration.evicted)
        there, batch = iteration.there, len(stretch.rows)
        joined = [Newcomer(s.request.response, s.context_tokens, there[s], s.forced) for s in iteration.newcomers]
        self.journal.change(batch, batch + stretch.padding, stretch.longest, iteration.kv_tokens, joined)
        for s in iteration.newcomers:
            s.prefill_tokens += s.context_tokens - there[s]
            s.start_s = iteration.start_s if s.start_s is None else s.start_s
            s.kv = None
        self._queue.enter(iteration.batch, iteration.newcomers, iteration.evicted)
        self._rows.commit(iteration, self._queue.waiting)
        self._stretch = stretch

    def _record_spans(self, iteration: Iteration) -> None:
        if tokens := iteration.computed_tokens:
            self._spans.prefill(iteration.start_s, iteration.decode_start_s, tokens, iteration.computing, tokens)
        batch, kv_tokens, seconds = len(iteration.batch), iteration.kv_tokens, iteration.decode_s
        self._spans.decode(iteration.decode_start_s, iteration.end_s, batch, batch * seconds, kv_tokens * seconds)

    def _finish(self, ends: Sequence[ActiveResponse]) -> list[Completion]:
        self._settle()
        left = self._leave(ends)
        self.journal.finish(s.request.response for s in left)
        return [s.completion(self._clock_s, s.finish_reason(self.eos_id)) for s in left]

    def _complete_due(self, due_s: float) -> list[Completion]:
        """Complete the responses of no tokens whose time is ``due_s``, if it is finite."""
        if due_s == math.inf:
            return []
        self._clock_s, self._upcoming = max(self._clock_s, due_s), None
        due = self._queue.take_due(due_s)
        self.journal.finish(s.request.response for s in due)
        return [s.completion(due_s, s.finish_reason(self.eos_id)) for s in due]

    def _leave(self, leaving: Sequence[ActiveResponse]) -> list[ActiveResponse]:
        """Responses leave; those of the batch, which are returned in admission order, give their rows back. All is settled."""
        left = self._queue.remove(set(leaving))
        for s in left:
            self._rows.free(s)
        self.journal.leave(s.request.response for s in left)
        self._stretch = None if left else self._stretch
        return left

    def _settle(self) -> None:
        """Bring the ids of committed iterations to the responses."""
        if self._stretch is not None:
            self._stretch.settle()
