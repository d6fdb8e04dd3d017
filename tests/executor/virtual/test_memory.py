"""Memory is given back: by every actor that is done, and by an interrupted step although its error is kept with its frames."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from error_messages import refused
from executor_samples import Restless, plan_of, uniform_step
from torch import Tensor

from rlhfless.engine.protocol import Request
from rlhfless.engine.simulated.engine import SimulatedEngine
from rlhfless.engine.tokenizers.char_tokenizer import CharTokenizer
from rlhfless.engine.torch.engine import TorchEngine
from rlhfless.engine.torch.factory import TorchEngineFactory
from rlhfless.engine.torch.kv_cache import KVCache
from rlhfless.engine.torch.model import DecoderModel
from rlhfless.errors import InputError
from rlhfless.executor import Executor, run_step
from rlhfless.executor.step.progress import StepProgress
from rlhfless.training.models.tiny_model import tiny_qwen2
from solver import Cluster, LatencyModel
from solver.model.admission import Admission

LATENCY = LatencyModel(
    "tiny", 1, 2e-3, 40e-6, 100e-9, prefill_base_s=1e-3, transfer_base_s=1e-4, max_batch=16, kv_capacity_tokens=4096
)
CLUSTER = Cluster(1, 2, 1)
PLAN = plan_of([range(0, 4), range(4, 8)], slots=4)


@pytest.fixture
def engines() -> TorchEngineFactory:
    tokenizer = CharTokenizer()
    model = tiny_qwen2(tokenizer, seed=3, hidden=64, layers=2, intermediate=128)
    return TorchEngineFactory(DecoderModel(model, 64), tokenizer.eos_token_id)


def requests(**more: object) -> list[Request]:
    ids = np.arange(2, 8)
    return [Request(i, 6, 30, prompt_ids=ids, seed=i, target_tokens=5 + 3 * i, **more) for i in range(8)]  # type: ignore[arg-type]


def live_bytes() -> int:
    """Bytes of all tensors that anything refers to, a storage that several share counted once."""
    gc.collect()
    storages = {}
    for one in gc.get_objects():
        if type(one) is Tensor and one.untyped_storage().nbytes():
            storages[one.untyped_storage().data_ptr()] = one.untyped_storage().nbytes()
    return sum(storages.values())


def interrupt_at(monkeypatch: pytest.MonkeyPatch, which: str, count: int) -> None:
    """Ctrl-C in the ``count``-th call of a method of the cache, whose frame holds views of all of it."""
    original, calls = getattr(KVCache, which), iter(range(count - 1))

    def interrupted(self: KVCache, *args: object) -> object:
        views = self.data[0], original(self, *args)
        if next(calls, None) is None:
            raise KeyboardInterrupt
        return views[1]

    monkeypatch.setattr(KVCache, which, interrupted)


@pytest.mark.parametrize("charging", ["profile", "measured"])
@pytest.mark.parametrize("part", [pytest.param(0.1, marks=pytest.mark.full), 0.9])
def test_an_interrupted_step_gives_its_memory_back_though_its_error_is_kept(
    engines: TorchEngineFactory, monkeypatch: pytest.MonkeyPatch, charging: str, part: float
) -> None:
    """In the pass that decides, and in the replays of ``measured``."""
    calls = 0
    original = KVCache.read

    def counted(self: KVCache, *args: object) -> object:
        nonlocal calls
        calls += 1
        return original(self, *args)  # type: ignore[arg-type]

    a_row = engines.model.cells * engines.model.kv_bytes_per_token
    with monkeypatch.context() as patch:
        patch.setattr(KVCache, "read", counted)
        run_step(PLAN, requests(), engines, LATENCY, CLUSTER, charging=charging)
    before = live_bytes()
    interrupt_at(monkeypatch, "read", int(part * calls))
    with pytest.raises(KeyboardInterrupt) as kept:
        run_step(PLAN, requests(), engines, LATENCY, CLUSTER, charging=charging)
    assert live_bytes() - before < 2 * a_row  # the tensors of one pass; an actor has four rows or more
    assert kept.tb is not None


def test_interrupted_prefixes_give_their_memory_back(engines: TorchEngineFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    prefixes = {0: np.arange(2, 22), 1: np.array([2, 3, *range(9, 27)]), 2: np.arange(4, 24)}
    interrupt_at(monkeypatch, "take", 3)
    before = live_bytes()
    with pytest.raises(KeyboardInterrupt) as kept:
        engines.compute_prefixes(prefixes)
    assert live_bytes() - before < 22 * engines.model.kv_bytes_per_token  # the piece under way
    assert kept.tb is not None


def test_a_closed_executor_has_no_weights_though_an_error_is_kept(
    engines: TorchEngineFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, weights = live_bytes(), engines.model.weight_bytes
    interrupt_at(monkeypatch, "read", 9)
    with pytest.raises(KeyboardInterrupt) as kept, Executor(engines, CLUSTER, latency=LATENCY) as executor:
        executor.run(PLAN, requests())
    assert live_bytes() < before - 0.9 * weights
    assert kept.tb is not None


class Noted(SimulatedEngine):
    """Notes which of these are closed."""

    open: ClassVar[set[int]] = set()

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        Noted.open.add(id(self))

    def close(self) -> None:
        Noted.open.discard(id(self))
        super().close()


@pytest.fixture
def noted() -> type[Noted]:
    Noted.open = set()
    return Noted


def test_an_actor_that_is_done_is_closed_while_others_go_on(noted: type[Noted]) -> None:
    step = uniform_step([2, 5, 9])
    seen = []
    run_step(
        plan_of([[0], [1], [2]]), step.requests(), noted, step.latency, step.cluster,
        on_progress=lambda progress: seen.append((progress.completed, len(noted.open))),
    )  # fmt: skip
    assert seen[:3] == [(0, 3), (1, 3), (2, 2)]
    assert not noted.open


def test_a_moved_cache_says_its_bytes(engines: TorchEngineFactory) -> None:
    rule = Restless(1, period_s=0.004)
    record = run_step(replace(PLAN, rule=rule), requests(), engines, LATENCY, CLUSTER, migration="move")
    sent = [s for s in record.spans if s["phase"] == "migrate"]
    assert sent
    assert all(s["bytes"] == (s["kv_tokens"] - 1) * engines.model.kv_bytes_per_token for s in sent)


def test_what_ends_a_step_early_closes_its_engines(noted: type[Noted]) -> None:
    step = uniform_step([2, 9])

    def interrupt(_: StepProgress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_step(plan_of([[0], [1]]), step.requests(), noted, step.latency, step.cluster, on_progress=interrupt)
    assert not noted.open


def test_what_is_refused_as_the_step_begins_closes_its_engines(noted: type[Noted]) -> None:
    step = uniform_step([2, 9])
    bad = [step.requests()[0], replace(step.requests()[1], target_tokens=None)]
    with refused(InputError, "target_tokens"):
        run_step(plan_of([[0], [1]]), bad, noted, step.latency, step.cluster)
    assert not noted.open


def engine_of(engines: TorchEngineFactory, slots: int) -> TorchEngine:
    return engines(LATENCY, Admission(slots, 4096))


def test_a_shared_prompt_is_kept_as_long_as_somebody_waits_for_it(engines: TorchEngineFactory) -> None:
    engine = engine_of(engines, 2)
    engine.add(requests(prompt=0, shares_prompt=True)[:3])
    engine.advance(0.005)
    rows = engine._loop.rows.cache.data.untyped_storage().nbytes()
    assert engine.held_bytes == rows + 5 * engines.model.kv_bytes_per_token  # its last token is left to decoding
    while engine.waiting():
        engine.commit_next()
    assert engine.held_bytes == rows
    engine.close()
    assert engine.held_bytes == 0


def test_a_closed_engine_releases_what_its_step_prepared(engines: TorchEngineFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, released = engine_of(engines, 2), []
    monkeypatch.setattr(engine._loop.step, "release", lambda: released.append(True))
    engine.close()
    assert released


@pytest.mark.parametrize("how", ["shared", "received"])
def test_new_weights_leave_nothing_of_the_old_for_those_that_wait(engines: TorchEngineFactory, how: str) -> None:
    """The last response, which begins after the sync, gets the tokens that it gets without any sharing."""
    tokenizer = CharTokenizer()
    other = tiny_qwen2(tokenizer, seed=8, hidden=64, layers=2, intermediate=128)
    *others, last = requests(prompt=0)[:3]
    alone = engine_of(TorchEngineFactory(DecoderModel(other, 64), tokenizer.eos_token_id), 2)
    alone.add([last])
    wanted = alone.advance(torch.inf).completions[0]
    engine = engine_of(engines, 2)
    if how == "shared":
        engine.add([replace(r, shares_prompt=True) for r in (*others, last)])
    else:
        kv = engines.compute_prefixes({0: np.arange(2, 7)})[0]
        engine.add([replace(r, cached_tokens=6, prefix_kv=kv) for r in (*others, last)])
    engine.advance(0.005)
    assert engine.waiting() == (2,)
    engine.sync(other, 1)
    (got,) = [c for c in engine.advance(torch.inf).completions if c.response == 2]
    np.testing.assert_array_equal(got.token_ids, wanted.token_ids)
    np.testing.assert_array_equal(got.logprobs, wanted.logprobs)
    assert got.prefill_tokens_computed == 5
