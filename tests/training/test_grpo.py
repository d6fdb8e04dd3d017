"""GRPO: the advantages' theorems, the loss against a plain reference, and an update that does what it says."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from rlhfless.training.batching import PAD_MULTIPLE, micro_batches, padded_tokens, right_padded  # noqa: E402
from rlhfless.training.grpo import GrpoBatch, group_advantages, grpo_loss, learn  # noqa: E402
from rlhfless.training.logprobs import response_logprobs, token_logprobs  # noqa: E402
from rlhfless.training.model import tiny_qwen2  # noqa: E402
from rlhfless.training.tokenizer import CharTokenizer  # noqa: E402

REWARDS = st.lists(st.tuples(st.integers(0, 5), st.floats(-100, 100)), min_size=1, max_size=40)
TOKENIZER = CharTokenizer()


def small_model(seed=0):
    return tiny_qwen2(TOKENIZER, seed, hidden=32, layers=2, heads=2, kv_heads=1, intermediate=64)


# --- advantages -------------------------------------------------------------------------------------------------------


@given(REWARDS, st.booleans())
def test_advantages_of_a_group_have_mean_zero(rows, normalise):
    group, reward = np.array([g for g, _ in rows]), np.array([r for _, r in rows])
    advantage = group_advantages(reward, group, normalise)
    for g in np.unique(group):
        assert abs(advantage[group == g].mean()) < 1e-6
        if normalise and reward[group == g].std() > 1e-3:
            assert advantage[group == g].std() == pytest.approx(1, abs=2e-3)


@given(st.floats(-1e6, 1e6), st.integers(1, 9), st.booleans())
def test_equal_rewards_have_advantage_exactly_zero(reward, size, normalise):
    assert not group_advantages([reward] * size, ["prompt"] * size, normalise).any()


def test_advantages_with_names_and_ragged_groups():
    advantage = group_advantages([1, 0, 0, 5], ["b", "a", "b", "c"], normalise_std=False)
    assert advantage.tolist() == [0.5, 0.0, -0.5, 0.0]


# --- loss -------------------------------------------------------------------------------------------------------------


def plain_loss(new, old, advantages, mask, low, high):
    """Eq. (3) of DeepSeekMath without its KL term, token by token, averaged over all tokens."""
    total, tokens, clipped = 0.0, 0, 0
    for row in range(len(new)):
        for t in range(len(new[row])):
            if not mask[row][t]:
                continue
            ratio = math.exp(new[row][t] - old[row][t])
            bounded = min(max(ratio, 1 - low), 1 + high)
            free, held = ratio * advantages[row], bounded * advantages[row]
            total -= min(free, held)
            clipped += held < free
            tokens += 1
    return total / tokens, clipped


@given(st.integers(0, 10_000), st.integers(1, 5), st.integers(1, 7))
def test_loss_is_the_plain_one(seed, rows, width):
    rng = np.random.default_rng(seed)
    new, old = -rng.exponential(0.5, (2, rows, width))
    advantages, mask = rng.normal(size=rows), rng.random((rows, width)) < 0.7
    mask[0, 0] = True
    want, clipped = plain_loss(new, old, advantages, mask, 0.2, 0.28)
    loss, counts = grpo_loss(*map(torch.tensor, (new, old, advantages, mask)), clip_low=0.2, clip_high=0.28)
    assert float(loss) == pytest.approx(want, abs=1e-9)
    assert counts["clipped"] == clipped
    assert counts["tokens"] == mask.sum()
    assert counts["kl"] >= 0


def test_gradient_raises_good_tokens_lowers_bad_ones_and_stops_beyond_the_clip():
    old = torch.log(torch.tensor([[0.5, 0.5, 0.5, 0.5]]).repeat(2, 1))
    new = torch.log(torch.tensor([[0.5, 0.55, 0.7, 0.3]]).repeat(2, 1)).requires_grad_()
    loss, counts = grpo_loss(new, old, torch.tensor([1.0, -1.0]), torch.ones(2, 4, dtype=torch.bool))
    (gradient,) = torch.autograd.grad(loss, new)
    good, bad = gradient.tolist()
    assert good[0] < 0
    assert good[1] < 0
    assert good[2] == 0  # already 1.4 times as probable
    assert good[3] < 0
    assert bad[0] > 0
    assert bad[2] > 0
    assert bad[3] == 0  # already 0.6 times as probable
    assert counts["clipped"] == 2


def test_whatever_padding_holds_changes_nothing():
    mask = torch.tensor([[True, False]])
    new = torch.tensor([[-1.0, -math.inf]], requires_grad=True)
    loss, _ = grpo_loss(new, torch.tensor([[-1.0, 0.0]]), torch.tensor([2.0]), mask)
    loss.backward()
    assert float(loss.detach()) == -2.0
    assert new.grad.tolist() == [[-2.0, 0.0]]


def test_kl_penalty_pulls_to_the_reference():
    new = torch.tensor([[-1.0]], requires_grad=True)
    settings = {"ref_logprobs": torch.tensor([[-0.5]]), "kl_weight": 0.1}
    loss, _ = grpo_loss(new, new.detach(), torch.tensor([0.0]), torch.tensor([[True]]), **settings)
    assert float(loss.detach()) == pytest.approx(0.1 * (math.exp(0.5) - 0.5 - 1))
    loss.backward()
    assert new.grad.item() < 0


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
    got = response_logprobs(model, [prompt] * 2, responses, temperature=0.5, token_budget=16)
    for response, values in zip(responses, got, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1]
        want = (logits / 0.5).log_softmax(-1)[range(len(response)), response]
        np.testing.assert_allclose(values, want.numpy(), atol=1e-5)


# --- learning ---------------------------------------------------------------------------------------------------------


def two_answers(model, reward_first):
    prompt = TOKENIZER.encode("4+7?")
    responses = [TOKENIZER.encode("11;#11.", eos=True), TOKENIZER.encode("12;#12.", eos=True)] * 2
    rewards = [reward_first, 1 - reward_first] * 2
    return GrpoBatch([prompt] * 4, responses, rewards, [0] * 4, response_logprobs(model, [prompt] * 4, responses))


@pytest.mark.parametrize("with_old", [True, False])
def test_learning_raises_what_was_rewarded(with_old):
    model = small_model()
    batch = two_answers(model, 1.0)
    before = [value.sum() for value in batch.old_logprobs]
    if not with_old:
        batch = GrpoBatch(batch.prompt_ids, batch.response_ids, batch.rewards, batch.group_of)
    metrics = learn(model, torch.optim.AdamW(model.parameters(), lr=1e-3), batch, updates=3)
    after = [value.sum() for value in response_logprobs(model, batch.prompt_ids, batch.response_ids)]
    assert after[0] - before[0] > after[1] - before[1]
    assert after[0] > before[0]
    assert metrics["tokens"] == 32
    assert metrics["grad_norm"] > 0
    assert metrics["kl_old"] > 0
    assert 0 <= metrics["clip_share"] <= 1


def test_micro_batches_change_no_gradient():
    gradients = []
    for budget in (16, 10_000):
        model = small_model()
        learn(model, torch.optim.SGD(model.parameters(), lr=0.0), two_answers(model, 1.0), token_budget=budget)
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    torch.testing.assert_close(*gradients, atol=1e-6, rtol=1e-4)


def test_equal_rewards_teach_nothing():
    model = small_model()
    batch = two_answers(model, 0.5)
    before = [p.clone() for p in model.parameters()]
    metrics = learn(model, torch.optim.AdamW(model.parameters(), lr=1e-3), batch)
    assert metrics["loss"] == metrics["grad_norm"] == 0
    assert all(torch.equal(p, q) for p, q in zip(before, model.parameters(), strict=True))


def test_wrong_batches_are_named():
    with pytest.raises(ValueError, match="rewards has 1 entries for 2 responses"):
        GrpoBatch([[2], [2]], [[3], [3]], [1.0], [0, 0])
    with pytest.raises(ValueError, match="row 1 has an empty"):
        GrpoBatch([[2], [2]], [[3], []], [1.0, 0.0], [0, 0])
    with pytest.raises(ValueError, match="row 0 has 2 old_logprobs for 1 response tokens"):
        GrpoBatch([[2]], [[3]], [1.0], [0], [[0.0, 0.0]])
    with pytest.raises(ValueError, match="at least 1"):
        learn(None, None, GrpoBatch([[2]], [[3]], [1.0], [0]), updates=0)
