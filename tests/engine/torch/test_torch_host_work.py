"""What the torch engine spares the host: runs of iterations where one will do, and torch's modes where nothing is computed."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch_models import EOS, VOCAB, tiny_model

from rlhfless.engine.protocol import Request
from rlhfless.engine.torch import engine as torch_engine
from rlhfless.engine.torch.decode_loop import DecodeLoop
from rlhfless.engine.torch.engine import TorchEngine
from rlhfless.engine.torch.iteration_clock import IterationClock
from rlhfless.engine.torch.model import DecoderModel
from rlhfless.latency import load_profile
from solver import LatencyModel
from solver.model.admission import Admission

LATENCY = LatencyModel("test", 1, base_s=1.0, per_response_s=0.1)


def engine_with(lengths: list[int]) -> TorchEngine:
    engine = TorchEngine(DecoderModel(tiny_model()), Admission(8, 1 << 20), LATENCY, eos_id=EOS)
    ids = np.arange(1, 6)
    engine.add([Request(i, 5, 40, target_tokens=n, prompt_ids=ids % VOCAB, seed=i) for i, n in enumerate(lengths)])
    return engine


def test_those_who_stay_when_others_leave_go_on_in_one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[int] = []
    run = DecodeLoop.run

    def counted(self: DecodeLoop, ahead: object, count: int) -> object:
        runs.append(count)
        return run(self, ahead, count)

    monkeypatch.setattr(DecodeLoop, "run", counted)
    engine = engine_with([3, 7, 7, 12])
    done = engine.advance(math.inf).completions
    assert [(c.response, c.response_tokens) for c in done] == [(0, 3), (1, 7), (2, 7), (3, 12)]
    assert runs == [1, 2, 4, 5], "the first iteration of newcomers, and what follows until somebody leaves"
    assert [c.iteration for c in engine.journal.changes] == [0, 3, 7]


def test_an_engine_at_which_nothing_is_due_computes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Executors ask all of their engines at every event of any of them."""
    engine = engine_with([3, 7])
    end_s = engine.peek_next_event_s()
    assert 0 < end_s < math.inf
    entered: list[torch.device] = []
    computing_with = torch_engine.computing_with
    monkeypatch.setattr(
        torch_engine, "computing_with", lambda threads, device: entered.append(device) or computing_with(threads, device)
    )
    for _ in range(3):
        assert engine.peek_next_event_s() == end_s
        progress = engine.advance(math.nextafter(end_s, 0))
        assert (progress.completions, progress.spans, engine.clock_s) == ([], [], 0.0)
    assert not entered
    engine.advance(end_s)
    assert (len(entered), engine.clock_s) == (1, end_s)


@pytest.mark.parametrize("name", ["cpu-tiny-qwen2", "l40s-qwen2.5-3b-tp2"])
def test_a_few_iterations_are_charged_to_the_bit_as_many_are(name: str) -> None:
    clock = IterationClock(load_profile(name), torch.device("cpu"))
    for batch, kv_tokens in ((1, 5), (7, 900), (200, 100_000)):
        many = clock.steps_s(batch, kv_tokens, 40)
        assert all(clock.steps_s(batch, kv_tokens, count) == many[:count] for count in range(1, 40))
