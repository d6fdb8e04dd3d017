"""What preparing shapes for the device takes is told, and no iteration is charged for it, on neither clock."""

from __future__ import annotations

import json
import math
import time

import numpy as np
import pytest
import torch
from torch_models import EOS, tiny_model

from rlhfless.engine.common.sampling import Sampling
from rlhfless.engine.protocol import Request
from rlhfless.engine.torch.decode_step import DecodeStep
from rlhfless.engine.torch.engine import TorchEngine
from rlhfless.engine.torch.factory import TorchEngineFactory
from rlhfless.engine.torch.iteration_clock import MEASURED
from rlhfless.engine.torch.model import DecoderModel
from rlhfless.engine.torch.replay import replay
from rlhfless.executor import run_step
from solver import Cluster, LatencyModel, Plan
from solver.model.admission import Admission
from solver.model.plan import ActorPlan

LATENCY = LatencyModel("x", 1, 0.01, 0.001, 0.0, max_batch=4, kv_capacity_tokens=1 << 20)
PREPARES_S = 0.02
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]


@pytest.fixture(autouse=True)
def _cpu_prepares_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU nothing has to be prepared: computing for ``PREPARES_S`` at the first iteration of every number of rows stands
    in for a capture. On a GPU graphs are captured."""

    def prepare(self: DecodeStep, cache: object, rows: int, width: int) -> float:
        done = self.__dict__.setdefault("done", set())
        if rows in done:
            return 0.0
        done.add(rows)
        begin = time.thread_time()
        while time.thread_time() < begin + PREPARES_S:
            pass
        return time.thread_time() - begin

    monkeypatch.setattr(DecodeStep, "prepare", prepare)


def requests(count: int = 2) -> list[Request]:
    return [
        Request(i, 5, 8, target_tokens=3 + 2 * i, prompt_ids=np.arange(3, 8), seed=i) for i in range(count)
    ]  # fmt: skip


@pytest.mark.parametrize("device", DEVICES)
def test_on_the_wall_clock_it_is_a_span_before_the_iteration(device: str) -> None:
    engine = TorchEngine(DecoderModel(tiny_model().to(device), 64), Admission(4, 1 << 20), MEASURED, eos_id=EOS)
    engine.add(requests())
    now, spans, prepared = 0.0, [], []
    while engine.running() or engine.waiting():
        before = engine.journal.prepare_s
        now += 10.0  # an iteration takes ten seconds here, with its prefill and whatever had to be prepared
        progress = engine.step(now - 10.0, lambda now=now: now)
        prepared.append(engine.journal.prepare_s - before)
        told = list(progress.spans)
        captures = [s for s in told if (s.phase, s.call) == ("start", "capture")]
        assert len(captures) == (prepared[-1] > 0)
        assert sum(s.end_s - s.start_s for s in captures) == pytest.approx(prepared[-1])
        assert sum(s.end_s - s.start_s for s in told) == pytest.approx(10.0)
        assert [s.end_s for s in told[:-1]] == pytest.approx([s.start_s for s in told[1:]])
        spans += told
    assert len(prepared) == 5
    assert prepared[0] > 0
    assert prepared[1] == 0
    assert [s.phase for s in spans[:3]] == ["start", "prefill", "decode"]
    charged = sum(engine.journal.prefill_s) + sum(engine.journal.decode_s)
    assert charged == pytest.approx(50.0 - engine.journal.prepare_s)
    engine.close()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("charging", ["profile", "measured"])
def test_on_the_virtual_clock_it_is_an_event(device: str, charging: str) -> None:
    engines = TorchEngineFactory(DecoderModel(tiny_model().to(device), 64), EOS)
    plan = Plan((ActorPlan("gpu", (0,), 0, (0, 1), (0, 1), 4),), "by hand", 0.0, 0.0, 0.0)
    record = run_step(plan, requests(), engines, LATENCY, Cluster(1, 1, 1), charging=charging, start_s=3.0)
    [event] = [e for e in record.events if e["name"] == "capture"]
    assert (event["holder"], event["time_s"]) == ("actor-0", 3.0)
    assert json.loads(event["detail"])["seconds"] > 0
    assert {s["phase"] for s in record.spans} <= {"prefill", "decode"}
    if charging == "profile":  # five iterations, and nothing else
        assert record.makespan_s == pytest.approx(3 * LATENCY.iteration_s(2, 0) + 2 * LATENCY.iteration_s(1, 0))


def test_a_replay_counts_it_as_warming_up() -> None:
    model = DecoderModel(tiny_model(), 64)
    engine = TorchEngine(model, Admission(4, 1 << 20), LATENCY, eos_id=EOS)
    engine.add(requests())
    engine.advance(math.inf)
    replayed = replay(model, engine.journal, Sampling())
    assert replayed.warm_up_s >= 2 * PREPARES_S  # to warm up, and again
