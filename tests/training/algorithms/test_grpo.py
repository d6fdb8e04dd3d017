"""GRPO: an update that does what it says, whatever the batch is made of."""

import math

import numpy as np
import pytest
from error_messages import refused
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from learning_samples import TOKENIZER, gradient_of, noise_batch, policy_gradient, small_model  # noqa: E402

from rlhfless.errors import InputError  # noqa: E402
from rlhfless.training.algorithms.base import frozen_copy  # noqa: E402
from rlhfless.training.algorithms.batch import Batch  # noqa: E402
from rlhfless.training.algorithms.registry import algorithm_options  # noqa: E402
from rlhfless.training.logprobs import response_logprobs, token_logprobs  # noqa: E402
from rlhfless.training.micro_batches import PAD_MULTIPLE, micro_batches, padded_tokens, right_padded  # noqa: E402

# --- batching ---------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 400), min_size=1, max_size=60), st.integers(16, 2000))
def test_micro_batches_hold_every_row_once_within_the_budget(lengths, budget):
    batches = micro_batches(lengths, budget)
    assert sorted(row for rows in batches for row in rows) == list(range(len(lengths)))
    for rows in batches:
        assert len(rows) == 1 or len(rows) * padded_tokens(max(lengths[row] for row in rows)) <= budget


def test_right_padding_marks_response_tokens():
    ids, mask = right_padded([[5, 6], [7]], [[8], [9, 2, 3]])
    assert ids.shape[1] % PAD_MULTIPLE == 0
    assert [ids[row, 1:][mask[row]].tolist() for row in range(2)] == [[8], [9, 2, 3]]


# --- log-probabilities ------------------------------------------------------------------------------------------------


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(2, 20), min_size=2, max_size=12), st.integers(1, 7))
def test_padding_on_either_side_changes_no_logprob(tokens, padding):
    model = small_model()
    ids, pads = torch.tensor([tokens]), torch.zeros(1, padding, dtype=torch.long)
    ones = torch.ones_like(ids)
    with torch.no_grad():
        want = token_logprobs(model, ids)
        right = token_logprobs(model, torch.cat([ids, pads], 1))[:, : len(tokens) - 1]
        masked = token_logprobs(model, torch.cat([ids, pads], 1), torch.cat([ones, pads], 1))[:, : len(tokens) - 1]
        left = token_logprobs(model, torch.cat([pads, ids], 1), torch.cat([pads, ones], 1))[:, padding:]
    for got in (right, masked, left):
        torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-4)


def test_response_logprobs_are_those_of_a_softmax():
    model, prompt, responses = small_model(), TOKENIZER.encode("4+7?"), [[5, 1], [6, 7, 8, 9]]
    got = response_logprobs(model, [prompt] * 2, responses, temperature=0.5, max_tokens_per_micro_batch=16)
    for response, values in zip(responses, got, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1]
        want = (logits / 0.5).log_softmax(-1)[range(len(response)), response]
        np.testing.assert_allclose(values, want.numpy(), atol=1e-5)


# --- learning ---------------------------------------------------------------------------------------------------------


def learner(model, learning_rate=1e-3, **options):
    return policy_gradient("grpo", model, torch.optim.AdamW(model.parameters(), lr=learning_rate), **options)


def two_answers(model, reward_first, with_engine=True):
    prompt = TOKENIZER.encode("4+7?")
    responses = [TOKENIZER.encode("11;#11.", eos=True), TOKENIZER.encode("12;#12.", eos=True)] * 2
    engine = response_logprobs(model, [prompt] * 4, responses) if with_engine else None
    return Batch([prompt] * 4, responses, [reward_first, 1 - reward_first] * 2, [0] * 4, engine)


@pytest.mark.parametrize("with_engine", [True, False])
def test_learning_raises_what_was_rewarded(with_engine):
    model = small_model()
    batch = two_answers(model, 1.0, with_engine)
    before = [value.sum() for value in response_logprobs(model, batch.prompt_ids, batch.response_ids)]
    metrics = learner(model, num_updates=3).learn(batch)
    after = [value.sum() for value in response_logprobs(model, batch.prompt_ids, batch.response_ids)]
    assert after[0] - before[0] > after[1] - before[1]
    assert after[0] > before[0]
    assert metrics["tokens"] == 32
    assert metrics["grad_norm"] > 0
    assert metrics["kl_old"] > 0
    assert 0 <= metrics["clip_share"] <= 1


@pytest.mark.parametrize("aggregation", ["token", "sequence", "constant"])
def test_parts_change_no_gradient(aggregation):
    gradients = []
    for budget in (16, 10_000):
        model = small_model()
        options = {"loss_aggregation": aggregation, "max_response_tokens": 14, "kl_coef": 0.1}
        policy_gradient("grpo", model, max_tokens_per_micro_batch=budget, **options).learn(noise_batch(model))
        gradients.append(gradient_of(model))
    torch.testing.assert_close(*gradients, atol=1e-6, rtol=1e-4)


def test_equal_rewards_teach_nothing():
    model = small_model()
    batch = two_answers(model, 0.5)
    before = [p.clone() for p in model.parameters()]
    metrics = learner(model).learn(batch)
    assert metrics["loss"] == metrics["grad_norm"] == 0
    assert metrics["flat_groups"] == 1
    assert all(torch.equal(p, q) for p, q in zip(before, model.parameters(), strict=True))


def test_several_updates_are_held_to_the_weights_that_generated():
    """Without the engine's log-probabilities the first update's own are what later ones are compared with."""
    found = []
    for batch in (two_answers(small_model(), 1.0), two_answers(small_model(), 1.0, with_engine=False)):
        model = small_model()
        found.append(
            (learner(model, num_updates=4, clip_ratio_low=0.01, clip_ratio_high=0.01).learn(batch), gradient_of(model))
        )
    assert found[0][0]["clip_share"] == found[1][0]["clip_share"] > 0
    torch.testing.assert_close(found[0][1], found[1][1], atol=1e-5, rtol=1e-3)


def test_truncated_responses_are_left_out_but_still_judged():
    model = small_model()
    batch = noise_batch(model)
    keep = np.flatnonzero(~batch.truncated)
    metrics = policy_gradient("grpo", model, mask_truncated=True).learn(batch)
    assert metrics["tokens"] == sum(batch.response_tokens[i] for i in keep)
    whole = gradient_of(model)
    other = small_model()
    changed = [r if i in keep else [5] for i, r in enumerate(batch.response_ids)]
    logprobs = [x if i in keep else [0.0] for i, x in enumerate(batch.engine_logprobs)]
    swapped = Batch(batch.prompt_ids, changed, batch.rewards, batch.group_of, logprobs, batch.truncated)
    policy_gradient("grpo", other, mask_truncated=True).learn(swapped)
    torch.testing.assert_close(whole, gradient_of(other), atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("kl_coef", [0.0, 0.1])
@pytest.mark.parametrize("changes", [{"truncated": [True] * 12}, {"rewards": [math.nan] * 12}], ids=["truncated", "unjudged"])
def test_a_batch_of_truncated_or_unjudged_responses_changes_nothing(changes, kl_coef):
    """A penalty pulls at nothing either, though the weights have left the reference."""
    model = small_model()
    algorithm = learner(model, mask_truncated=True, kl_coef=kl_coef)
    assert algorithm.learn(two_answers(model, 1.0))["grad_norm"] > 0
    before = [p.clone() for p in model.parameters()]
    batch = noise_batch(model)
    given = {name: getattr(batch, name) for name in ("prompt_ids", "response_ids", "rewards", "group_of")} | changes
    metrics = algorithm.learn(Batch(**given))
    assert metrics["loss"] == metrics["grad_norm"] == metrics["tokens"] == 0
    assert all(torch.equal(p, q) for p, q in zip(before, model.parameters(), strict=True))
    assert metrics["unjudged"] == ("rewards" in changes)


def test_an_unjudged_response_is_as_good_as_not_there_to_the_penalty():
    model, other = small_model(), small_model()
    batch = noise_batch(model)
    rewards = np.where(np.arange(12) % 4 == 3, math.nan, batch.rewards)
    others = [r if math.isfinite(x) else [5, 6] for r, x in zip(batch.response_ids, rewards, strict=True)]
    found = []
    for policy, responses in ((model, batch.response_ids), (other, others)):
        algorithm = policy_gradient("grpo", policy, reference=frozen_copy(small_model(1)), kl_coef=0.5)
        found.append(algorithm.learn(Batch(batch.prompt_ids, responses, rewards, batch.group_of)))
    torch.testing.assert_close(gradient_of(model), gradient_of(other), atol=1e-6, rtol=1e-4)
    assert found[0]["tokens"] == found[1]["tokens"]
    assert found[0]["kl_reference"] == pytest.approx(found[1]["kl_reference"])


def test_the_mismatch_of_the_engine_is_measured():
    model = small_model()
    for off, low, high in ((0.0, 0.0, 1e-4), (0.3, 0.05, 0.5)):
        metrics = policy_gradient("grpo", model).learn(noise_batch(model, off=off))
        assert low <= metrics["mismatch_mean"] <= metrics["mismatch_max"]
        assert metrics["mismatch_mean"] < high
        assert metrics["mismatch_kl"] >= 0
    corrected = policy_gradient("grpo", model, old_logprobs_from="recomputed", importance_ratio_cap=1.5)
    assert corrected.learn(noise_batch(model, off=0.3))["importance_mean"] != 1
    assert "mismatch_mean" not in policy_gradient("grpo", model).learn(two_answers(model, 1.0, False))


def test_tokens_that_the_engine_could_not_tell_are_taken_to_be_right():
    model, other = small_model(), small_model()
    batch = noise_batch(model, off=0.3)
    exact = response_logprobs(model, batch.prompt_ids, batch.response_ids)
    holes = [np.where(np.arange(len(x)) == 1, np.nan, x) for x in batch.engine_logprobs]
    filled = [np.where(np.arange(len(x)) == 1, own, x) for x, own in zip(batch.engine_logprobs, exact, strict=True)]
    columns = (batch.prompt_ids, batch.response_ids, batch.rewards, batch.group_of)
    first = policy_gradient("grpo", model).learn(Batch(*columns, holes))
    second = policy_gradient("grpo", other).learn(Batch(*columns, filled))
    torch.testing.assert_close(gradient_of(model), gradient_of(other), atol=1e-6, rtol=1e-4)
    assert first["mismatch_mean"] > second["mismatch_mean"], "what is unknown is not counted as right"


def test_the_penalty_alone_pulls_to_the_reference():
    model, reference = small_model(), small_model(1)
    algorithm = learner(model, kl_coef=1.0)
    assert algorithm.learn(two_answers(model, 0.5))["kl_reference"] < 1e-6, "the reference is where training began"
    algorithm = learner(model, kl_coef=1.0, num_updates=10)
    algorithm.reference = frozen_copy(reference)
    first = algorithm.learn(two_answers(model, 0.5))["kl_reference"]
    assert 0 <= algorithm.learn(two_answers(model, 0.5))["kl_reference"] < first


def test_wrong_batches_are_named():
    with refused(ValueError):
        Batch([[2], [2]], [[3], [3]], [1.0], [0, 0])
    with refused(ValueError, "row 1"):
        Batch([[2], [2]], [[3], []], [1.0, 0.0], [0, 0])
    with refused(ValueError, "row 0", "engine_logprobs"):
        Batch([[2]], [[3]], [1.0], [0], [[0.0, 0.0]])
    with refused(ValueError):
        Batch([[2]], [[3]], [math.inf], [0])
    with refused(InputError, "samples_per_prompt is 1"):
        learner(small_model()).learn(Batch([[2], [2]], [[3], [4]], [1.0, 0.0], ["a", "b"]))
    with refused(ValueError, "engine_logprobs"):
        learner(small_model(), old_logprobs_from="recomputed", importance_ratio_cap=2.0).learn(
            two_answers(small_model(), 1.0, False)
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_updates": 0}, ()),
        ({"loss_aggregation": "mean"}, ("'mean'",)),
        ({"advantage_std": "batch"}, ("'batch'",)),
        ({"clip_ratio_low": 1.5}, ("clip_ratio_low",)),
        ({"importance_ratio_cap": 2.0, "old_logprobs_from": "engine"}, ("old_logprobs_from", "'recomputed'")),
        ({"temperature": 0.0}, ()),
        ({"temperature": math.nan}, ()),
        ({"kl_coef": math.nan}, ("kl_coef",)),
        ({"max_grad_norm": math.nan}, ("max_grad_norm",)),
        ({"clip_ratio_high": math.nan}, ("clip_ratio_high",)),
    ],
)
def test_wrong_options_are_named(options, message):
    with refused(ValueError, *message):
        algorithm_options("grpo", **options)


def test_weights_that_are_no_numbers_stop_the_run_before_they_spread():
    model = small_model()
    batch = two_answers(model, 1.0)
    with torch.no_grad():
        next(model.parameters())[5] = math.nan
    with refused(ValueError):
        learner(model).learn(batch)
