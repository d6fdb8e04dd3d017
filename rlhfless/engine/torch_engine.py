"""Real decoding with a transformers language model: the torch engine behind the engine protocol.

Knows requests, rows of the KV cache and the clock; how a token is computed stands in torch_forward.py and torch_step.py, how it
is drawn in sampling.py, what a batch that nobody joins or leaves feeds next in torch_stretch.py. An iteration is planned from
what is committed, run, and committed; until then nothing of it is seen, so an iteration that was run too early is simply
forgotten. Many engines may share one ``RowModel``: N emulated GPUs on one device, one copy of the weights.

On one machine, in float32 on the CPU, token ids depend on (weights, prompt, seed) only: not on the batch, the actor, the
time of a cut, whether KV was moved or recomputed, or whose prefix was reused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from rlhfless.engine.journal import Journal, Newcomer, Replayed
from rlhfless.engine.protocol import Completion, Progress, Request
from rlhfless.engine.spans import SpanAccumulator
from rlhfless.errors import missing_extra
from rlhfless.latency.stopwatch import stopwatch
from solver.admission import Admission
from solver.latency import LatencyModel

try:
    import torch

    from rlhfless.engine.sampling import Sampling
    from rlhfless.engine.torch_forward import RowModel, one_thread
    from rlhfless.engine.torch_prefixes import PrefixKV, compute_prefixes
    from rlhfless.engine.torch_rows import Rows
    from rlhfless.engine.torch_state import ActiveResponse, Iteration
    from rlhfless.engine.torch_step import decode_step
    from rlhfless.engine.torch_stretch import Stretch
except ImportError as error:
    if error.name != "torch":
        raise
    raise missing_extra("the torch engine", error.name, "torch") from None

MEASURED = "measured"


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
        if isinstance(charge, str) and charge != MEASURED:
            raise ValueError(f"charge is {charge!r}; it must be a latency model or {MEASURED!r}")
        self.model, self.admission, self.charge, self.eos_id = model, admission, charge, eos_id
        self.slots = admission.max_batch
        self.weights_version = 0
        self._now_s = stopwatch(model.device.type) if charge == MEASURED else _never_read
        self._step = decode_step(model, sampling or Sampling(), eos_id, signals)
        self._clock_s = start_s
        self.journal = Journal(self.slots, start_s)
        self._running: list[ActiveResponse] = []  # in admission order
        self._waiting: list[ActiveResponse] = []  # in the order in which they became available
        self._upcoming: Iteration | None = None
        self._stretch: Stretch | None = None  # of the batch as it is; None once somebody joined or left
        self._rows = Rows(model, self.slots)
        self._spans = SpanAccumulator(self.slots)

    @property
    def clock_s(self) -> float:
        return self._clock_s

    def add(self, requests: Sequence[Request]) -> None:
        room = min(self.model.max_tokens, self.admission.kv_capacity_tokens)
        responses = [ActiveResponse.of(request, self._clock_s, room) for request in requests]
        self._waiting = sorted([*self._waiting, *responses], key=lambda s: s.queued_s)
        if self._upcoming is not None and any(s.queued_s <= self._upcoming.start_s for s in responses):
            self._upcoming = None

    def peek_next_event_s(self, completions: int = 1) -> float:
        iteration = self._next()
        return math.inf if iteration is None else iteration.end_s

    def advance(self, to_s: float) -> Progress:
        return self._commit_while(lambda iteration: iteration.end_s <= to_s)

    def step(self, from_s: float, clock: Callable[[], float]) -> Progress:
        """One iteration in real time, for a loop on the wall clock; nothing when nobody is here.

        Args:
            from_s: where it begins, unless the last one ended later.
            clock: asked when its tokens are there: where it ends, and the next one begins.
        """
        self._clock_s, self._upcoming = max(self._clock_s, from_s), None
        iteration = self._plan()
        if iteration is None:
            return Progress([], [])
        iteration.prefill_s, _ = self._run(iteration)
        iteration.decode_s = clock() - iteration.decode_start_s
        return Progress(self._commit(iteration), self._spans.drain())

    def commit_next(self) -> list[Completion]:
        """Commit the next iteration, which there must be, and do nothing for the one after it; returns what it finished."""
        iteration = self._next()
        assert iteration is not None, "nothing is left to decode"
        return self._commit(iteration)

    def cut(self, at_s: float, responses: Sequence[int] | None = None) -> tuple[list[Request], Progress]:
        progress = Progress([], [])
        if self._clock_s < at_s:  # else no iteration can be under way: measured ones would be run to be forgotten
            progress = self._commit_while(lambda iteration: iteration.start_s < at_s)
        if self._clock_s < at_s < math.inf:  # idle at that time
            self._clock_s = at_s
        self._upcoming = None
        self._settle()
        wanted = None if responses is None else set(responses)
        taken = [s for s in (*self._running, *self._waiting) if wanted is None or s.request.response in wanted]
        requests = [s.export(self._clock_s, self._rows.kv_of(s)) for s in taken]
        leaving = set(taken)
        self._leave([s for s in self._running if s in leaving])
        self._waiting = [s for s in self._waiting if s not in leaving]
        self._rows.forget_prompts(self._waiting)
        return requests, progress

    def generated_tokens(self) -> dict[int, int]:
        self._settle()
        return {s.request.response: len(s.ids) for s in (*self._running, *self._waiting)}

    def running(self) -> tuple[int, ...]:
        return tuple(s.request.response for s in self._running)

    def waiting(self) -> tuple[int, ...]:
        return tuple(s.request.response for s in self._waiting)

    def latest_signals(self) -> dict[int, dict[str, Any]]:
        """By response of the batch: the signals of its last committed token, for a predictor of what remains."""
        self._settle()
        return {s.request.response: {name: values[-1] for name, values in s.signals.items()} for s in self._running}

    def sync(self, weights: Any, weights_version: int) -> None:
        """Take over a model's weights or a state dict, for every engine that shares the ``RowModel``.

        Responses under way keep the KV state that the old weights computed.
        """
        self.model.load(weights)
        self.weights_version = weights_version
        self._upcoming = None
        self._rows.forget_prompts()

    def close(self) -> None:
        self._running, self._waiting, self._upcoming, self._stretch = [], [], None, None
        self._step.release()
        self._rows = Rows(self.model, self.slots)

    # Planning

    def _next(self) -> Iteration | None:
        """The iteration after the last committed one, with its times known; None when nothing is left."""
        if self._upcoming is None:
            self._upcoming = self._plan()
            if self._upcoming is not None:
                self._charge(self._upcoming)
        return self._upcoming

    def _plan(self) -> Iteration | None:
        """Who decodes next, by the admission rule; changes nothing."""
        start_s, admission, waiting = self._clock_s, self.admission, self._waiting
        if (same := self._stretch) is not None and not self._changes(same.kv_tokens):
            return Iteration(start_s, self._running, same.kv_tokens)
        self._settle()
        batch = list(self._running)
        if not batch:
            if not waiting:
                return None
            start_s = max(start_s, waiting[0].queued_s)
        held = self._held(batch)
        evicted: list[ActiveResponse] = []
        while admission.overflows(len(batch), held):
            evicted.append(batch.pop())
            held -= self._held(evicted[-1:])
        newcomers: list[ActiveResponse] = []
        if not evicted:
            for one in waiting:
                needs = self._held([one])
                if one.queued_s > start_s or not admission.admits(len(batch), held, needs):
                    break
                newcomers.append(one)
                batch.append(one)
                held += needs
        kv_tokens = sum(s.context_tokens for s in batch)
        return Iteration(start_s, batch, kv_tokens, newcomers, evicted, self._rows.there(newcomers))

    def _changes(self, kv_tokens: int) -> bool:
        """Whether somebody joins or leaves the batch, which holds ``kv_tokens``, at the next iteration."""
        batch, waiting, admission = len(self._running), self._waiting, self.admission
        if admission.rule == "preempt" and admission.overflows(batch, kv_tokens):
            return True
        if batch == admission.max_batch or not waiting or waiting[0].queued_s > self._clock_s:
            return False
        held = kv_tokens if admission.rule == "preempt" else self._held(self._running)
        return admission.admits(batch, held, self._held(waiting[:1]))

    def _held(self, responses: Sequence[ActiveResponse]) -> int:
        held, r = self.admission.held_tokens, [(s.context_tokens, s.request) for s in responses]
        return sum(held(context, request.prompt_tokens + request.limit_tokens) for context, request in r)

    def _charge(self, iteration: Iteration) -> None:
        """Give the iteration its seconds; measured ones are known only by running it."""
        if isinstance(self.charge, LatencyModel):
            tokens = iteration.computed_tokens
            iteration.prefill_s = float(self.charge.prefill_s(tokens)) if tokens else 0.0
            iteration.decode_s = float(self.charge.step_s(len(iteration.batch), iteration.kv_tokens))
        else:
            iteration.prefill_s, iteration.decode_s = self._run(iteration)

    # Running

    @torch.inference_mode()
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
        cache = self._rows.cache
        with one_thread(self.model.device):
            self._wait()
            before = self._now_s()
            self._step.prepare(cache, len(inputs.tokens), width)
            begin = decode = self._now_s()
            self.journal.prepare_s += begin - before
            if iteration.newcomers:
                self._rows.compute(iteration, self._waiting)
                self._wait()
                decode = self._now_s()
            iteration.drawn = self._step(cache, inputs, width, iteration.stretch.padding)
            self._wait()
            end = self._now_s()
        return (decode - begin if iteration.computed_tokens else 0.0), end - decode

    def _wait(self) -> None:
        """Until the device is done, where somebody looks at the clock."""
        if self.charge == MEASURED and self.model.device.type == "cuda":
            torch.cuda.synchronize(self.model.device)

    # Committing

    def _commit_while(self, wanted: Callable[[Iteration], bool]) -> Progress:
        completions: list[Completion] = []
        while (iteration := self._next()) is not None and wanted(iteration):
            completions += self._commit(iteration)
        return Progress(completions, self._spans.drain())

    def _commit(self, iteration: Iteration) -> list[Completion]:
        """Make what the iteration computed part of the state; returns the responses that it finished."""
        if iteration.drawn is None:
            self._run(iteration)
        assert iteration.drawn is not None
        assert iteration.stretch is not None
        self._record_spans(iteration)
        if iteration.newcomers or iteration.evicted:
            self._change_batch(iteration)
        if iteration.stretch is not self._stretch:
            self._note_change(iteration, iteration.stretch)
        self._rows.commit(iteration, self._waiting)
        self._running, self._upcoming = iteration.batch, None
        self._clock_s, self._stretch = iteration.end_s, iteration.stretch
        self.journal.commit(iteration.prefill_s, iteration.decode_s, iteration.end_s)
        ends = self._stretch.commit(iteration.drawn, self.eos_id)
        if self._stretch.steps == 1:
            for s in self._running:
                if s.first_token_s is None:
                    s.first_token_s = self._clock_s
        return self._finish() if ends else []

    def _change_batch(self, iteration: Iteration) -> None:
        for s in iteration.evicted:
            s.queued_s, s.there_tokens, s.shares = -math.inf, 0, False
            self._waiting.insert(0, s)
        self.journal.leave(s.request.response for s in iteration.evicted)
        joined = set(iteration.newcomers)
        self._waiting = [s for s in self._waiting if s not in joined]
        for s in iteration.newcomers:
            s.prefill_tokens += s.context_tokens - iteration.there[s]
            s.start_s = iteration.start_s if s.start_s is None else s.start_s
            s.kv = None

    def _note_change(self, iteration: Iteration, stretch: Stretch) -> None:
        there = iteration.there
        joined = [Newcomer(s.request.response, s.context_tokens, there[s], s.forced) for s in iteration.newcomers]
        batch = len(stretch.rows)
        self.journal.change(batch, batch + stretch.padding, stretch.longest, iteration.kv_tokens, joined)

    def _record_spans(self, iteration: Iteration) -> None:
        if tokens := iteration.computed_tokens:
            self._spans.prefill(iteration.start_s, iteration.decode_start_s, tokens, iteration.computing, tokens)
        batch, kv_tokens, seconds = len(iteration.batch), iteration.kv_tokens, iteration.decode_s
        self._spans.decode(iteration.decode_start_s, iteration.end_s, batch, batch * seconds, kv_tokens * seconds)

    def _finish(self) -> list[Completion]:
        self._settle()
        reasons = {s: reason for s in self._running if (reason := s.finish_reason(self.eos_id)) is not None}
        self._leave(list(reasons))
        self.journal.finish(s.request.response for s in reasons)
        return [s.completion(self._clock_s, reason) for s, reason in reasons.items()]

    def _leave(self, leaving: Sequence[ActiveResponse]) -> None:
        """Responses of the batch give their rows back; what the batch drew is settled."""
        gone = set(leaving)
        self._running = [s for s in self._running if s not in gone]
        for s in leaving:
            self._rows.free(s)
        self.journal.leave(s.request.response for s in leaving)
        self._stretch = None if leaving else self._stretch

    def _settle(self) -> None:
        """Bring the ids of committed iterations to the responses."""
        if self._stretch is not None:
            self._stretch.settle()


def _never_read() -> float:
    """In place of a clock where a latency model charges: reading a thread's time takes two microseconds."""
    return 0.0


@dataclass(frozen=True)
class TorchEngineFactory:
    """Makes the engines of one device, all with the weights of one ``RowModel``: one call per actor.

    Attributes:
        signals: see ``TorchEngine``.
        real_time: charge what an iteration takes where it runs, for actors in processes of their own.
    """

    model: RowModel
    eos_id: int
    sampling: Sampling = field(default_factory=Sampling)
    signals: tuple[str, ...] = ()
    real_time: bool = False

    side: ClassVar[str] = "rlhfless.engine.torch_process"
    several_gpus: ClassVar[bool] = False
    start_floor_s: ClassVar[float] = 0.0
    takes_prefixes: ClassVar[bool] = True
    weights_version: ClassVar[None] = None

    def in_real_time(self) -> TorchEngineFactory:
        """The same engines charged with what they take; what is measured of the model's kernels is measured here, once for
        all."""
        if self.model.bit_stable:
            _ = self.model.stable_rows
        return replace(self, real_time=True)

    def binding(self, latency: LatencyModel) -> None:
        """What a process for these engines is bound to: nothing, it can make any."""

    def close(self) -> None:
        """Give the weights' memory back; engines can be made again once ``model.load`` was given weights."""
        self.model.free()

    def compute_prefixes(self, prefixes: Mapping[int, np.ndarray]) -> Mapping[int, PrefixKV]:
        """KV state of prefixes (token ids by prompt), what they share computed once, for ``Request.prefix_kv``."""
        with one_thread(self.model.device):
            return compute_prefixes(self.model, prefixes)

    def __call__(self, latency: LatencyModel, admission: Admission, start_s: float = 0.0) -> TorchEngine:
        charge = MEASURED if self.real_time else latency
        return TorchEngine(
            self.model, admission, charge, eos_id=self.eos_id, sampling=self.sampling, start_s=start_s, signals=self.signals
        )

    def replay(self, journal: Journal) -> Replayed:
        """What an engine's iterations take when nothing else runs: see ``torch_replay``."""
        from rlhfless.engine.torch_replay import replay  # which runs engines

        return replay(self.model, journal, self.sampling, self.signals)
