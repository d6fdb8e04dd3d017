"""The benchmark of honesty measures what it says: every iteration alone, and the same actors among others."""

from __future__ import annotations

import numpy as np
from benchmark_scripts import emulation_honesty

from rlhfless.engine.torch.factory import TorchEngineFactory
from rlhfless.engine.torch.model import DecoderModel, one_thread
from rlhfless.latency import load_profile
from rlhfless.latency.measure import TINY, CausalLM

SIZE = emulation_honesty.Size(actors=2, responses=2, median_tokens=10.0)


def test_alone_and_repeat_time_every_iteration() -> None:
    factory = TorchEngineFactory(DecoderModel(CausalLM(TINY).model, 40 + emulation_honesty.LIMIT), eos_id=0)
    asked = emulation_honesty.requests(SIZE, 0)
    longest = max(r.target_tokens or 0 for r in asked[: SIZE.responses])
    with one_thread(factory.model.device):
        taken = emulation_honesty.alone(factory, asked[: SIZE.responses])
        rows = emulation_honesty.repeat(factory, load_profile("cpu-tiny-qwen2"), SIZE, 0)
    assert taken.shape == (2, longest)
    assert (taken[1] > 0).all()
    assert [row["actor"] for row in rows] == list(SIZE.compared) == [0]
    assert rows[0]["iterations"] == longest
    assert all(np.isfinite(value) and value > 0 for name, value in rows[0].items() if name != "actor")
