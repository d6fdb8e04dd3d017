"""What the torch engine refuses before it decodes anything, in a sentence that says what would be right."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from torch_models import EOS, VOCAB, tiny_model

from rlhfless.engine.protocol import Request
from rlhfless.engine.sampling import Sampling
from rlhfless.engine.torch_factory import TorchEngineFactory
from rlhfless.engine.torch_forward import RowModel
from solver import Admission, LatencyModel

LATENCY = LatencyModel("tiny", 1, 1.0, 0.0)


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (torch.nn.Linear(2, 2), "the torch engine decodes transformers language models, not a Linear"),
        (
            tiny_model().model,
            "with its language-model head, which Qwen2Model has not; load it with AutoModelForCausalLM",
        ),
    ],
)
def test_a_model_without_a_head_is_refused(model: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        RowModel(model)


def test_weights_of_something_else_are_refused() -> None:
    with pytest.raises(ValueError, match=r"the weights have no model\.embed_tokens\.weight; give a model of the architecture"):
        RowModel(tiny_model()).load(tiny_model().model)


@pytest.mark.parametrize("max_tokens", [-3, 0, 1, 40.5, True, "40"])
def test_the_longest_context_is_one_that_the_model_has(max_tokens: Any) -> None:
    with pytest.raises(ValueError, match=f"max_tokens is {max_tokens}; a whole number of at least 2"):
        RowModel(tiny_model(), max_tokens)
    with pytest.raises(ValueError, match=r"max_tokens is 513, .*; the model was made for contexts of 512 at most"):
        TorchEngineFactory(RowModel(tiny_model(), 513), EOS)


@pytest.mark.parametrize(
    "wrong", [{"temperature": "1"}, {"temperature": None}, {"top_p": "1"}, {"top_k": True}, {"top_k": 1.0}, {"min_p": [0.1]}]
)
def test_sampling_wants_numbers(wrong: dict[str, Any]) -> None:
    ((name, value),) = wrong.items()
    with pytest.raises(ValueError, match=re.escape(f"{name} is {value!r}; it must be ")):
        Sampling(**wrong)


@pytest.mark.parametrize("eos_id", [-1, VOCAB, None])
def test_the_end_of_text_is_a_token_of_the_model(eos_id: Any) -> None:
    with pytest.raises(ValueError, match=f"eos_id is {eos_id}; the model knows ids from 0 to {VOCAB - 1}"):
        TorchEngineFactory(RowModel(tiny_model()), eos_id)


@pytest.mark.parametrize("target", [31, -1])
def test_a_forced_length_is_within_the_limit(target: int) -> None:
    engine = TorchEngineFactory(RowModel(tiny_model()), EOS)(LATENCY, Admission(2, 4096))
    with pytest.raises(ValueError, match=f"response 4 is forced to {target} tokens; its limit allows 0 to 30"):
        engine.add([Request(4, 3, 30, prompt_ids=np.arange(1, 4), target_tokens=target)])
