"""Real decoding with a transformers language model: the torch engine behind the engine protocol.

Knows requests, rows of the KV cache and the clock; how a token is computed stands in torch_forward.py, how it is drawn in
sampling.py. An iteration is planned from what is committed, run, and committed; until then nothing of it is seen, so an
iteration that was run too early is simply forgotten. Many engines may share one ``RowModel``: N emulated GPUs on one
device, one copy of the weights.

On one machine, in float32 on the CPU, token ids depend on (weights, prompt, seed) only: not on the batch, the actor, the
time of a cut, or whether KV was moved or recomputed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rlhfless.engine.protocol import Completion, Progress, Request
from rlhfless.engine.spans import SpanAccumulator
from rlhfless.engine.torch_state import ActiveResponse, Iteration
from rlhfless.errors import missing_extra
from solver.admission import Admission
from solver.latency import LatencyModel

try:
    import torch

    from rlhfless.engine.sampling import Sampling, draw, uniform_stream
    from rlhfless.engine.torch_forward import RowModel, one_thread
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

    Raises:
        ValueError: ``charge`` is neither.
    """

    def __init__(
        self,
        model: RowModel,
        admission: Admission,
        charge: LatencyModel | str,
        *,
        eos_id: int,
        sampling: Sampling | None = None,
        start_s: float = 0.0,
    ) -> None:
        if isinstance(charge, str) and charge != MEASURED:
            raise ValueError(f"charge is {charge!r}; it must be a latency model or {MEASURED!r}")
        self.model, self.admission, self.charge, self.eos_id = model, admission, charge, eos_id
        self.sampling = sampling or Sampling()
        self.slots = admission.max_batch
        self.weights_version = 0
        self._clock_s = start_s
        self._running: list[ActiveResponse] = []  # in admission order
        self._rows: list[ActiveResponse] = []  # the same by cache row
        self._waiting: list[ActiveResponse] = []  # in the order in which they became available
        self._upcoming: Iteration | None = None
        self._cache = model.new_cache()
        self._spans = SpanAccumulator(self.slots)

    @property
    def clock_s(self) -> float:
        return self._clock_s

    def add(self, requests: Sequence[Request]) -> None:
        sequences = [self._sequence(request) for request in requests]
        self._waiting = sorted([*self._waiting, *sequences], key=lambda s: s.queued_s)
        if self._upcoming is not None and any(s.queued_s <= self._upcoming.start_s for s in sequences):
            self._upcoming = None

    def peek_next_event_s(self, completions: int = 1) -> float:
        iteration = self._next()
        return math.inf if iteration is None else iteration.end_s

    def advance(self, to_s: float) -> Progress:
        return self._commit_while(lambda iteration: iteration.end_s <= to_s)

    def cut(self, at_s: float, responses: Sequence[int] | None = None) -> tuple[list[Request], Progress]:
        progress = self._commit_while(lambda iteration: iteration.start_s < at_s)
        if self._clock_s < at_s < math.inf:  # idle at that time
            self._clock_s = at_s
        self._upcoming = None
        wanted = None if responses is None else set(responses)
        taken = [s for s in (*self._running, *self._waiting) if wanted is None or s.request.response in wanted]
        requests = [self._export(s) for s in taken]
        for sequence in taken:
            if sequence in self._rows:
                self._running.remove(sequence)
                self._free_row(sequence)
            else:
                self._waiting.remove(sequence)
        return requests, progress

    def generated_tokens(self) -> dict[int, int]:
        return {s.request.response: len(s.ids) for s in (*self._running, *self._waiting)}

    def running(self) -> tuple[int, ...]:
        return tuple(s.request.response for s in self._running)

    def waiting(self) -> tuple[int, ...]:
        return tuple(s.request.response for s in self._waiting)

    def sync(self, weights: Any, weights_version: int) -> None:
        """Take over a model's weights or a state dict, for every engine that shares the ``RowModel``.

        Responses under way keep the KV state that the old weights computed.
        """
        self.model.load(weights)
        self.weights_version = weights_version
        self._upcoming = None

    def close(self) -> None:
        self._cache = self.model.new_cache()
        self._running, self._rows, self._waiting, self._upcoming = [], [], [], None

    # Planning

    def _sequence(self, request: Request) -> ActiveResponse:
        """A checked request with its random stream."""
        prompt, generated = request.prompt_ids, request.generated_tokens
        ids = [] if request.generated_ids is None else [int(i) for i in request.generated_ids]
        logprobs = [] if request.logprobs is None else [float(x) for x in request.logprobs]
        sequence = ActiveResponse(
            request, ids, logprobs, request.kv, [], max(request.available_s, self._clock_s),
            request.start_s, request.first_token_s, request.prefill_tokens_computed,
        )  # fmt: skip
        name, most = f"response {request.response}", request.prompt_tokens + request.limit_tokens
        if prompt is None or len(prompt) != request.prompt_tokens or request.prompt_tokens < 1:
            given = "none" if prompt is None else len(prompt)
            raise ValueError(f"{name} has {given} prompt_ids; it needs prompt_tokens ({request.prompt_tokens}), at least 1")
        if len(ids) != generated or len(logprobs) != generated:
            raise ValueError(
                f"{name} has {len(ids)} generated_ids and {len(logprobs)} logprobs; it needs generated_tokens ({generated})"
            )
        if generated >= sequence.stop_tokens:
            raise ValueError(f"{name} already has {generated} of {sequence.stop_tokens} tokens; add unfinished responses only")
        room = min(self.model.max_tokens, self.admission.kv_capacity_tokens)
        if most > room:
            raise ValueError(f"{name} can reach {most} tokens with its prompt; this actor holds {room} at most")
        if request.kv is not None and request.kv.shape[3] != sequence.context_tokens - 1:
            have, need = request.kv.shape[3], sequence.context_tokens - 1
            raise ValueError(f"{name} comes with the KV state of {have} tokens; it needs {need}, all tokens but the last")
        sequence.uniforms = uniform_stream(request.seed, sequence.stop_tokens).tolist()
        return sequence

    def _next(self) -> Iteration | None:
        """The iteration after the last committed one, with its times known; None when nothing is left."""
        if self._upcoming is None:
            self._upcoming = self._plan()
            if self._upcoming is not None:
                self._charge(self._upcoming)
        return self._upcoming

    def _plan(self) -> Iteration | None:
        """Who decodes next, by the admission rule; changes nothing."""
        start_s, batch, admission = self._clock_s, list(self._running), self.admission
        if not batch:
            if not self._waiting:
                return None
            start_s = max(start_s, self._waiting[0].queued_s)
        held = sum(self._held(s) for s in batch)
        evicted: list[ActiveResponse] = []
        while admission.overflows(len(batch), held):
            evicted.append(batch.pop())
            held -= self._held(evicted[-1])
        newcomers: list[ActiveResponse] = []
        if not evicted:
            for sequence in self._waiting:
                if sequence.queued_s > start_s or not admission.admits(len(batch), held, self._held(sequence)):
                    break
                newcomers.append(sequence)
                batch.append(sequence)
                held += self._held(sequence)
        return Iteration(start_s, batch, newcomers, evicted)

    def _held(self, sequence: ActiveResponse) -> int:
        request = sequence.request
        return self.admission.held_tokens(sequence.context_tokens, request.prompt_tokens + request.limit_tokens)

    def _charge(self, iteration: Iteration) -> None:
        """Give the iteration its seconds; measured ones are known only by running it."""
        if isinstance(self.charge, LatencyModel):
            tokens = sum(s.context_tokens for s in iteration.recomputed)
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
        for sequence in iteration.evicted:  # out of the batch, but whole until this iteration is committed
            row, last = self._rows.index(sequence), len(self._rows) - 1 - iteration.evicted.index(sequence)
            self._cache.swap(row, last)
            self._rows[row], self._rows[last] = self._rows[last], sequence
        iteration.rows = self._rows[: len(self._rows) - len(iteration.evicted)] + iteration.newcomers
        self._cache.reserve_rows(self.model.padded(len(iteration.rows), self.slots))
        for row, sequence in enumerate(iteration.rows):
            if sequence.kv is not None:
                self._cache.put(row, sequence.kv)
        with one_thread(self.model.device):
            begin = time.perf_counter()
            for sequence in iteration.recomputed:
                assert sequence.request.prompt_ids is not None
                known = np.concatenate([sequence.request.prompt_ids, np.array(sequence.ids, dtype=np.int64)])[:-1]
                self.model.prefill(self._cache, iteration.rows.index(sequence), self._tensor(known.astype(np.int64)))
            if self.model.device.type == "cuda":
                torch.cuda.synchronize(self.model.device)
            decode = time.perf_counter()
            iteration.ids, iteration.logprobs = self._decode(iteration.rows)
            end = time.perf_counter()
        return (decode - begin if iteration.recomputed else 0.0), end - decode

    def _decode(self, rows: list[ActiveResponse]) -> tuple[list[int], list[float]]:
        """The next token of every row and its log-probability."""
        count, padded = len(rows), self.model.padded(len(rows), self.slots)
        tokens, positions = np.zeros(padded, np.int64), np.full(padded, self._cache.spare, np.int64)
        uniforms = np.zeros(padded)
        tokens[:count] = [s.last_token for s in rows]
        positions[:count] = [s.context_tokens - 1 for s in rows]
        uniforms[:count] = [s.uniforms[len(s.ids)] for s in rows]
        forced = [row for row, s in enumerate(rows) if s.request.target_tokens is not None]
        states = self.model.feed(
            self._cache, self._tensor(tokens), self._tensor(positions), slice(0, padded), int(positions[:count].max()) + 1
        )
        ids, logprobs = draw(
            self.model.logits(states), self._tensor(uniforms), self.sampling, self.eos_id,
            self._tensor(np.array(forced)) if forced else None,
        )  # fmt: skip
        return ids[:count].tolist(), logprobs[:count].tolist()

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(self.model.device)

    # Committing

    def _commit_while(self, wanted: Callable[[Iteration], bool]) -> Progress:
        completions: list[Completion] = []
        while (iteration := self._next()) is not None and wanted(iteration):
            completions += self._commit(iteration)
        return Progress(completions, self._spans.drain())

    def _commit(self, iteration: Iteration) -> list[Completion]:
        """Make what the iteration computed part of the state; returns the responses that it finished."""
        if iteration.ids is None:
            self._run(iteration)
        assert iteration.ids is not None
        self._record_spans(iteration)
        for sequence in iteration.evicted:
            sequence.queued_s = -math.inf
            self._waiting.insert(0, sequence)
        for sequence in iteration.newcomers:
            self._waiting.remove(sequence)
            sequence.prefill_tokens += sequence.context_tokens if sequence.kv is None else 0
            sequence.start_s = iteration.start_s if sequence.start_s is None else sequence.start_s
            sequence.kv = None
        self._running, self._rows, self._upcoming = iteration.batch, iteration.rows, None
        self._clock_s = iteration.end_s
        for sequence, token, logprob in zip(self._rows, iteration.ids, iteration.logprobs, strict=True):
            sequence.ids.append(token)
            sequence.logprobs.append(logprob)
            if sequence.first_token_s is None:
                sequence.first_token_s = self._clock_s
        return self._finish()

    def _record_spans(self, iteration: Iteration) -> None:
        if recomputed := iteration.recomputed:
            tokens = sum(s.context_tokens for s in recomputed)
            self._spans.prefill(iteration.start_s, iteration.decode_start_s, tokens, len(recomputed), tokens)
        batch, kv_tokens, seconds = len(iteration.batch), iteration.kv_tokens, iteration.decode_s
        self._spans.decode(iteration.decode_start_s, iteration.end_s, batch, batch * seconds, kv_tokens * seconds)

    def _finish(self) -> list[Completion]:
        reasons = {s: reason for s in self._running if (reason := s.finish_reason(self.eos_id)) is not None}
        if reasons:
            self._running = [s for s in self._running if s not in reasons]
        for sequence in reasons:
            self._free_row(sequence)
        return [self._completion(s, reason) for s, reason in reasons.items()]

    def _completion(self, s: ActiveResponse, reason: str) -> Completion:
        assert s.first_token_s is not None
        assert s.start_s is not None
        ids, logprobs = np.array(s.ids, dtype=np.int64), np.array(s.logprobs, dtype=np.float32)
        return Completion(
            s.request.response, self._clock_s, len(ids), reason, s.first_token_s, s.start_s, s.prefill_tokens, ids, logprobs
        )

    def _free_row(self, sequence: ActiveResponse) -> None:
        """Give a row back: the last row in use moves into its place."""
        row, last = self._rows.index(sequence), self._rows.pop()
        if last is not sequence:
            with torch.inference_mode():
                self._cache.move(len(self._rows), row, last.context_tokens)
            self._rows[row] = last

    def _export(self, sequence: ActiveResponse) -> Request:
        """What another engine needs to go on, or this one later."""
        kv = sequence.kv
        if sequence in self._rows:
            kv = self._cache.take(self._rows.index(sequence), sequence.context_tokens - 1)
        return replace(
            sequence.request,
            available_s=max(self._clock_s, sequence.request.available_s),
            generated_tokens=len(sequence.ids),
            generated_ids=np.array(sequence.ids, dtype=np.int64),
            logprobs=np.array(sequence.logprobs, dtype=np.float32),
            kv=kv,
            start_s=sequence.start_s,
            first_token_s=sequence.first_token_s,
            prefill_tokens_computed=sequence.prefill_tokens,
        )


@dataclass(frozen=True)
class TorchEngineFactory:
    """Makes the engines of one device, all with the weights of one ``RowModel``: one call per actor."""

    model: RowModel
    charge: LatencyModel | str
    eos_id: int
    sampling: Sampling = field(default_factory=Sampling)

    def __call__(self, admission: Admission, start_s: float = 0.0) -> TorchEngine:
        return TorchEngine(self.model, admission, self.charge, eos_id=self.eos_id, sampling=self.sampling, start_s=start_s)
