"""What the torch engine refuses before it decodes anything, in a sentence that says what would be right."""

from __future__ import annotations

import multiprocessing
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from error_messages import refused
from torch_models import EOS, VOCAB, tiny_model

from rlhfless.engine.common.sampling import Sampling
from rlhfless.engine.protocol import Request
from rlhfless.engine.torch.factory import TorchEngineFactory
from rlhfless.engine.torch.model import DecoderModel, counting
from rlhfless.executor import ProcessPool, run_step
from solver import Cluster, LatencyModel, Plan
from solver.model.admission import Admission
from solver.model.plan import ActorPlan, Prefill

LATENCY = LatencyModel("tiny", 1, 1.0, 0.0)


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (torch.nn.Linear(2, 2), ()),
        (
            tiny_model().model,
            ("AutoModelForCausalLM",),
        ),
    ],
)
def test_a_model_without_a_head_is_refused(model: Any, sentence: tuple[str, ...]) -> None:
    with refused(ValueError, *sentence):
        DecoderModel(model)


def test_weights_of_something_else_are_refused() -> None:
    with refused(ValueError, "model.embed_tokens.weight"):
        DecoderModel(tiny_model()).load(tiny_model().model)


@pytest.mark.parametrize("max_tokens", [-3, 0, 1, 40.5, True, "40"])
def test_the_longest_context_is_one_that_the_model_has(max_tokens: Any) -> None:
    with refused(ValueError, "max_tokens", str(max_tokens)):
        DecoderModel(tiny_model(), max_tokens)
    with refused(ValueError, "max_tokens", "513", "512"):
        TorchEngineFactory(DecoderModel(tiny_model(), 513), EOS)


@pytest.mark.parametrize(
    "wrong", [{"temperature": "1"}, {"temperature": None}, {"top_p": "1"}, {"top_k": True}, {"top_k": 1.0}, {"min_p": [0.1]}]
)
def test_sampling_wants_numbers(wrong: dict[str, Any]) -> None:
    ((name, value),) = wrong.items()
    with refused(ValueError, str(name), repr(value)):
        Sampling(**wrong)


@pytest.mark.parametrize("eos_id", [-1, VOCAB, None])
def test_the_end_of_text_is_a_token_of_the_model(eos_id: Any) -> None:
    with refused(ValueError, "eos_id", str(eos_id), str(VOCAB - 1)):
        TorchEngineFactory(DecoderModel(tiny_model()), eos_id)


@pytest.mark.parametrize("target", [31, -1])
def test_a_forced_length_is_within_the_limit(target: int) -> None:
    engine = TorchEngineFactory(DecoderModel(tiny_model()), EOS)(LATENCY, Admission(2, 4096))
    with refused(ValueError, "response 4", str(target), "30"):
        engine.add([Request(4, 3, 30, prompt_ids=np.arange(1, 4), target_tokens=target)])


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"prompt_ids": [1, 2, 3]}, "has prompt_ids that are a list; a one-dimensional array of whole numbers is needed"),
        ({"prompt_ids": np.array([1.0, 2.0, 3.0])}, "has prompt_ids that are float64 in the shape (3,); a one-dim"),
        ({"prompt_ids": np.array([1.0, np.nan, 3.0])}, "has prompt_ids that are float64 in the shape (3,); a one-dim"),
        ({"prompt_ids": np.array([[1], [2], [3]])}, "has prompt_ids that are int64 in the shape (3, 1); a one-dim"),
        ({"prompt_ids": np.array([True, True, True])}, "has prompt_ids that are bool in the shape (3,); a one-dim"),
        ({"max_tokens": 5.5}, "has max_tokens=5.5; a whole number of 0 or more is needed"),
        ({"max_tokens": -1}, "has max_tokens=-1; a whole number of 0 or more is needed"),
        ({"max_tokens": None}, "has max_tokens=None; a whole number of 0 or more is needed"),
        ({"target_tokens": 2.5}, "has target_tokens=2.5; a whole number is needed"),
    ],
)
def test_prompts_and_lengths_are_whole_numbers(wrong: dict[str, Any], sentence: str) -> None:
    engine = TorchEngineFactory(DecoderModel(tiny_model()), EOS)(LATENCY, Admission(2, 4096))
    good = Request(4, 3, 30, prompt_ids=np.arange(1, 4))
    with refused(ValueError, "response 4", str(sentence)):
        engine.add([replace(good, **wrong)])
    assert engine.waiting() == ()
    engine.add([good, replace(good, response=5, prompt_ids=np.arange(1, 4, dtype=np.uint16))])
    assert engine.waiting() == (4, 5)


def deduplicated(own_gpus: bool, prompt_tokens: int) -> Plan:
    """Two samples of one prompt, whose prefix a prefill actor computes, or the learner."""
    decode = ActorPlan("gpu", (0,), 0, (0, 1), (0,), 2, prefixes=(0,), prefix_tokens=(prompt_tokens,))
    actors = (decode, ActorPlan("gpu", (1,), 0, (), (), 2)) if own_gpus else (decode,)
    prefill = Prefill((0,), (prompt_tokens,), prompt_tokens, 0.0)
    return Plan(actors, "by hand", 0.0, 0.0, 0.0, prefill=prefill)


@pytest.mark.parametrize("own_gpus", [False, True])
@pytest.mark.parametrize("clock", ["virtual", "wall"])
@pytest.mark.parametrize(
    ("ids", "sentence"),
    [
        ([1, 999, 3, 4], ("response 0", "999", str(VOCAB - 1))),
        ([1] * 60, ("response 0", "60", "40")),
        ([1] * 30, ("response 0", "42", "10")),
        ([], ("response 0",)),
        (None, ("response 0", "prompt_ids", "prompt_tokens")),
    ],
)
def test_bad_input_is_refused_before_prefixes_of_it_are_computed(
    ids: list[int] | None, sentence: tuple[str, ...], clock: str, own_gpus: bool
) -> None:
    factory = TorchEngineFactory(DecoderModel(tiny_model(), 40), EOS)
    tokens = 4 if ids is None else len(ids)
    prompt = None if ids is None else np.array(ids, dtype=np.int64)
    asked = [Request(i, tokens, 12, prompt_ids=prompt, seed=i, prompt=0) for i in range(2)]
    plan = deduplicated(own_gpus, max(1, tokens - 1))
    how = plan, asked, factory, LATENCY, Cluster(1, 2, 1)
    with counting(factory.model) as fed, ProcessPool(["cpu"] * 2) as pool:
        with refused(ValueError, *sentence):
            (pool.run_step if clock == "wall" else run_step)(*how)
        assert not multiprocessing.active_children(), "nothing was started"
    assert fed.prefill == fed.decode == 0
