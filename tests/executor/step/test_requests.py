"""Requests of prompts: numbered prompt by prompt, each with a random stream of its own; texts wait for a tokenizer."""

from __future__ import annotations

import numpy as np
import pytest
from byte_tokenizer import byte_tokenizer
from error_messages import refused

from rlhfless.engine import SimulatedEngine
from rlhfless.engine.tokenizers.char_tokenizer import CharTokenizer
from rlhfless.errors import InputError
from rlhfless.executor import requests
from rlhfless.executor.step.requests import encoded, workload_of


class Engine:
    """An engine factory that knows its tokenizer."""

    tokenizer = CharTokenizer()


def test_responses_are_numbered_prompt_by_prompt_and_differ_by_their_streams() -> None:
    made = requests([[5, 6, 7], np.array([8, 9])], samples_per_prompt=2, max_response_tokens=64)
    assert [(r.response, r.prompt, r.prompt_tokens, r.max_tokens) for r in made] == [
        (0, 0, 3, 64), (1, 0, 3, 64), (2, 1, 2, 64), (3, 1, 2, 64),
    ]  # fmt: skip
    assert made[2].prompt_ids is not None
    assert made[2].prompt_ids.tolist() == [8, 9]
    streams = [r.seed for r in made] + [r.seed for r in requests([[5]], 4, seed=1)]
    assert len(set(streams)) == 8
    assert [r.seed for r in requests([[5, 6, 7], [1]], 2)] == streams[:4]


def test_texts_are_encoded_by_the_given_tokenizer_or_the_engines() -> None:
    texts = ["12+3=", "4*5="]
    given = requests(texts, 2, tokenizer=CharTokenizer())
    later = requests(texts, 2)
    assert len(later) == 4
    run = encoded(later, Engine())
    assert [r.prompt_ids.tolist() for r in run] == [r.prompt_ids.tolist() for r in given]  # type: ignore[union-attr]
    assert [(r.seed, r.prompt) for r in run] == [(r.seed, r.prompt) for r in given]
    assert encoded(given, SimulatedEngine) is given


def test_a_text_without_a_tokenizer_is_one_sentence() -> None:
    with refused(InputError, "12+3=", "tokenizer"):
        encoded(requests(["12+3="]), SimulatedEngine)
    with refused(InputError, "12+3=", "tokenizer"):
        _ = requests(["12+3="])[0]


def test_a_slice_of_texts_waits_for_a_tokenizer_as_all_of_them_do() -> None:
    texts = ["12+3=", "4*5=", "6-1="]
    later, given = requests(texts, 2), requests(texts, 2, tokenizer=CharTokenizer())
    for part in (slice(2), slice(1, None, 2), slice(-2, None), slice(None, None, -1)):
        assert len(later[part]) == len(given[part])
        some = [(r.response, r.prompt, r.seed, r.prompt_ids.tolist()) for r in encoded(later[part], Engine())]  # type: ignore[union-attr]
        assert some == [(r.response, r.prompt, r.seed, r.prompt_ids.tolist()) for r in given[part]]  # type: ignore[union-attr]
    assert [r.response for r in encoded(later[1:][:2], Engine())] == [1, 2]
    with refused(InputError, "12+3=", "tokenizer"):
        encoded(later[:2], SimulatedEngine)
    for engine in (Engine(), SimulatedEngine):
        with refused(InputError, "rlhfless.requests(prompts)"):
            encoded(later[:0], engine)


@pytest.mark.parametrize(
    "wrong", [{"prompts": []}, {"prompts": "a text"}, {"prompts": [[5], []]}, {"prompts": [[0.5]]}, {"prompts": [[-1]]},
              {"prompts": [None]}, {"prompts": [[{"role": "user"}]]}, {"prompts": [["a text"]]},
              {"samples_per_prompt": 0}, {"max_response_tokens": 2.5}, {"seed": -1}]
)  # fmt: skip
def test_wrong_prompts_are_one_sentence(wrong: dict[str, object]) -> None:
    with refused(InputError, next(iter(wrong))):
        requests(**{"prompts": [[5]], **wrong})  # type: ignore[arg-type]


def test_a_conversation_is_filled_into_the_chat_template_and_a_text_is_not() -> None:
    tokenizer = byte_tokenizer(chat=True)
    conversation = [{"role": "user", "content": "hi"}]
    said, text = requests([conversation, "hi"], 1, tokenizer=tokenizer)
    assert said.prompt_ids is not None
    assert text.prompt_ids is not None
    assert tokenizer.decode(said.prompt_ids) == "<user>hi</><me>"
    assert tokenizer.decode(text.prompt_ids) == "hi"


def test_a_text_begins_with_the_token_that_the_tokenizer_puts_before_it_once() -> None:
    tokenizer = byte_tokenizer(chat=False, bos=True)
    plain, written_out = requests(["hi", "<bos>hi"], 1, tokenizer=tokenizer)
    assert plain.prompt_ids is not None
    assert plain.prompt_ids.tolist() == tokenizer.wrapped("hi").input_ids
    assert written_out.prompt_ids is not None
    assert written_out.prompt_ids.tolist() == plain.prompt_ids.tolist()


def test_a_conversation_without_a_chat_template_or_a_tokenizer_is_one_sentence() -> None:
    conversation = [{"role": "user", "content": "who is it?"}]
    with refused(InputError, "prompts[1]", "chat template"):
        requests(["hi", conversation], 1, tokenizer=byte_tokenizer(chat=False))
    with refused(InputError, "who is it?", "tokenizer"):
        encoded(requests([conversation]), SimulatedEngine)


def test_a_workload_has_the_prompts_of_its_requests_and_half_of_the_limit_without_lengths() -> None:
    made = requests([[5, 6, 7], [8, 9]], samples_per_prompt=2, max_response_tokens=64)
    workload = workload_of(made)
    assert workload.prompt_tokens.tolist() == [3, 2]
    assert workload.prompt_of.tolist() == [0, 0, 1, 1]
    assert workload.response_tokens.tolist() == [32, 32, 32, 32]
    assert workload.max_response_tokens == 64
    assert workload_of(made, [1, 2, 3, 64]).response_tokens.tolist() == [1, 2, 3, 64]
    assert workload_of(made, [[1, 2, 3, 4], [3, 4, 5, 6]]).scenarios is not None


@pytest.mark.parametrize("lengths", [[1, 2, 3], 7, [[1], [2], [3], [4]]])
def test_lengths_of_another_number_of_responses_are_one_sentence(lengths: object) -> None:
    with refused(InputError, "lengths", "4 responses"):
        workload_of(requests([[5, 6, 7], [8, 9]], samples_per_prompt=2), lengths)  # type: ignore[arg-type]


def test_requests_that_are_not_numbered_in_order_are_one_sentence() -> None:
    made = requests([[5, 6, 7], [8, 9]], samples_per_prompt=2)
    with refused(InputError, "rlhfless.requests"):
        workload_of(made[1:])
