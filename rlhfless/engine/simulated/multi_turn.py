"""A simulated engine for responses of several turns: after each turn but the last, a response waits for a tool.

While it waits, its KV cache either stays, and with it its slot and memory, or is dropped. Then the slot is free, and the next
turn queues again and recomputes the whole context. What a tool returns adds no tokens here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from rlhfless.engine.protocol import Completion, EngineSpan, Progress, Request
from rlhfless.engine.simulated.engine import SimulatedEngine
from rlhfless.engine.simulated.requests import MOVED_KV, changed
from rlhfless.errors import InputError
from solver.model.admission import Admission
from solver.model.errors import PlanningError, as_given
from solver.model.latency import LatencyModel


class Turns(NamedTuple):
    """The turns of a response.

    Attributes:
        tokens: (n,) of each turn. wait_s: (n - 1,) seconds between the end of a turn and the beginning of the next.
    """

    tokens: tuple[int, ...]
    wait_s: tuple[float, ...]


class MultiTurnEngines:
    """An engine factory for ``run_step`` whose responses take several turns.

    Args:
        turns: of responses, by their index; a response without an entry has one turn.
        keeps_kv: KV caches stay while responses wait for tools.

    Raises:
        PlanningError: the turns of a response do not fit together.
    """

    def __init__(self, turns: Mapping[int, Turns], keeps_kv: bool) -> None:
        for response, one in turns.items():
            if not one.tokens or len(one.wait_s) != len(one.tokens) - 1 or min((*one.tokens, *one.wait_s)) < 0:
                raise PlanningError(
                    f"response {response} has turns of {as_given(one.tokens)} tokens and waits of {as_given(one.wait_s)} s; at "
                    "least one turn, and one wait of 0 s or more between two turns, are needed"
                )
        self._turns, self._keeps_kv = turns, keeps_kv

    def __call__(self, latency: LatencyModel, admission: Admission, clock_s: float) -> MultiTurnEngine:
        """Return the engine of the next actor.

        Raises:
            PlanningError: KV caches stay, and admission does not reserve memory.
        """
        return MultiTurnEngine(SimulatedEngine(latency, admission, clock_s), admission, self._turns, self._keeps_kv)


class MultiTurnEngine:
    """See the module. Responses cannot be cut: they would not wait for their tools elsewhere.

    Args:
        engine: decodes the turns. admission: of the engine. turns, keeps_kv: see ``MultiTurnEngines``.
    """

    reuses_prefixes = False  # a turn that recomputes its context recomputes all of it

    def __init__(self, engine: SimulatedEngine, admission: Admission, turns: Mapping[int, Turns], keeps_kv: bool) -> None:
        if keeps_kv and admission.rule != "reserve":
            raise PlanningError(
                "KV caches that stay while responses wait for tools need admission 'reserve'; 'preempt' would evict them"
            )
        self.slots = engine.slots
        self._engine, self._admission, self._turns, self._keeps_kv = engine, admission, turns, keeps_kv
        self._turn: dict[int, int] = {}  # of unfinished responses that were given to the engine
        self._requests: dict[int, Request] = {}
        self._queue: deque[Request] = deque()  # not begun, where slots stay taken between turns
        self._reserved_tokens = 0

    @property
    def clock_s(self) -> float:
        """Return the end of the last committed iteration."""
        return self._engine.clock_s

    def add(self, requests: Sequence[Request]) -> None:
        """See the protocol.

        Raises:
            InputError: the turns of a response do not add up to its tokens.
        """
        for request in requests:
            turns = self._turns_of(request)
            if sum(turns.tokens) != request.target_tokens:
                raise InputError(
                    f"response {request.response} has {request.target_tokens} tokens, and its turns have {sum(turns.tokens)}; "
                    "turns that add up to the response are needed"
                )
            self._requests[request.response] = request
        if self._keeps_kv:
            self._queue.extend(requests)
            self._admit(-1.0)
        else:
            self._begin(requests)

    def _turns_of(self, request: Request) -> Turns:
        return self._turns.get(request.response) or Turns((int(request.target_tokens or 0),), ())

    def _admit(self, now_s: float) -> None:
        """Begin the responses at the front of the queue that have a slot and memory from now on."""
        begins = []
        while self._queue and self._admission.admits(len(self._turn), self._reserved_tokens, _reserved(self._queue[0])):
            request = self._queue.popleft()
            self._turn[request.response] = 0
            self._reserved_tokens += _reserved(request)
            begins.append(changed(request, available_s=max(request.available_s, now_s)))
        self._begin(begins)

    def _begin(self, requests: Sequence[Request]) -> None:
        if requests:
            self._turn.update(dict.fromkeys((r.response for r in requests), 0))
            self._engine.add([changed(r, target_tokens=self._turns_of(r).tokens[0]) for r in requests])

    def peek_next_event_s(self, completions: int = 1) -> float:
        """See the protocol. It is the end of some turn, a lower bound on the next completion."""
        return self._engine.peek_next_event_s()

    def advance(self, to_s: float) -> Progress:
        """See the protocol."""
        completions: list[Completion] = []
        spans: list[EngineSpan] = []
        while True:
            next_s = min(self._engine.peek_next_event_s(), to_s)
            progress = self._engine.advance(next_s)
            spans += progress.spans
            completions += self._ended(progress.completions)
            if (next_s == to_s and self._engine.peek_next_event_s() > to_s) or not self._turn:
                return Progress(completions, spans)

    def _ended(self, turns: Sequence[Completion]) -> list[Completion]:
        """Begin the next turns of responses, or other responses where these are complete; return those that are."""
        complete, goes_on = [], []
        for ended in turns:
            request, turn = self._requests[ended.response], self._turn[ended.response] + 1
            of = self._turns_of(request)
            if turn == len(of.tokens):
                complete.append(ended)
                del self._turn[ended.response]
                if self._keeps_kv:
                    self._reserved_tokens -= _reserved(request)
                continue
            self._turn[ended.response] = turn
            goes_on.append(
                changed(
                    request, available_s=ended.time_s + of.wait_s[turn - 1], kv=MOVED_KV if self._keeps_kv else None,
                    generated_tokens=ended.response_tokens, target_tokens=ended.response_tokens + of.tokens[turn],
                    start_s=ended.start_s, first_token_s=ended.first_token_s,
                    prefill_tokens_computed=ended.prefill_tokens_computed,
                )
            )  # fmt: skip
        if goes_on:
            self._engine.add(goes_on)
        if complete and self._queue:
            self._admit(complete[-1].time_s)
        return complete

    def cut(self, at_s: float, responses: Sequence[int] | None = None) -> NoReturn:
        """Refuse: see the class.

        Raises:
            PlanningError: always.
        """
        raise PlanningError("responses that wait for tools cannot move between actors; choose a schedule without moves")

    def generated_tokens(self) -> dict[int, int]:
        """See the protocol."""
        return {**self._engine.generated_tokens(), **{request.response: 0 for request in self._queue}}

    def running(self) -> tuple[int, ...]:
        """See the protocol."""
        return self._engine.running()

    def waiting(self) -> tuple[int, ...]:
        """See the protocol. Responses that wait for tools are among them."""
        return (*self._engine.waiting(), *(request.response for request in self._queue))

    def sync(self, weights: Any, weights_version: int) -> None:
        """Do nothing: lengths come from the log."""

    def close(self) -> None:
        """Do nothing: there is no memory to free."""


def _reserved(request: Request) -> int:
    return request.prompt_tokens + request.max_tokens
