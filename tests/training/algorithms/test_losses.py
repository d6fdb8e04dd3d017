"""Advantages and losses: the theorems, and plain references of a few lines."""

import math

import numpy as np
import pytest
from error_messages import refused
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from rlhfless.errors import InputError  # noqa: E402
from rlhfless.training.algorithms.advantages import flat_groups, gae, group_advantages, token_rewards, whitening  # noqa: E402
from rlhfless.training.algorithms.builtin.grpo import GrpoConfig  # noqa: E402
from rlhfless.training.algorithms.losses import (  # noqa: E402
    k3,
    loss_divisor,
    loss_weights,
    truncated_importance,
    value_loss,
)

REWARDS = st.lists(st.tuples(st.integers(0, 5), st.floats(-100, 100)), min_size=1, max_size=40)


# --- advantages relative to a group -----------------------------------------------------------------------------------


@given(REWARDS, st.sampled_from(["population", "sample", "none"]))
def test_advantages_of_a_group_have_mean_zero(rows, std):
    group, reward = np.array([g for g, _ in rows]), np.array([r for _, r in rows])
    advantage = group_advantages(reward, group, std)
    for g in np.unique(group):
        own = advantage[group == g]
        assert abs(own.mean()) < 1e-6
        if std != "none" and reward[group == g].std() > 1e-3:
            assert own.std(ddof=int(std == "sample")) == pytest.approx(1, abs=2e-3)


@given(st.floats(-1e6, 1e6), st.integers(1, 9), st.sampled_from(["population", "sample", "none"]))
def test_equal_rewards_have_advantage_exactly_zero(reward, size, std):
    assert not group_advantages([reward] * size, ["prompt"] * size, std).any()
    assert flat_groups([reward] * size, ["prompt"] * size).all()


def test_advantages_with_names_and_ragged_groups():
    advantage = group_advantages([1, 0, 0, 5], ["b", "a", "b", "c"], "none")
    assert advantage.tolist() == [0.5, 0.0, -0.5, 0.0]
    assert flat_groups([1, 0, 0, 5], ["b", "a", "b", "c"]).tolist() == [True, False, True]


@given(REWARDS, st.data())
def test_what_nobody_judged_counts_in_no_mean(rows, data):
    group, reward = np.array([g for g, _ in rows]), np.array([r for _, r in rows])
    unknown = np.array(data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows))))
    advantage = group_advantages(np.where(unknown, np.nan, reward), group)
    assert not advantage[unknown].any()
    np.testing.assert_allclose(advantage[~unknown], group_advantages(reward[~unknown], group[~unknown]), atol=1e-9)


# --- generalised advantage estimation ---------------------------------------------------------------------------------


def plain_gae(rewards, values, gamma, lam):
    """The sum of eq. (16): A_t = sum_k (gamma lam)^k delta_{t+k}, for one response."""
    following = [*values[1:], 0.0]
    delta = [r + gamma * n - v for r, v, n in zip(rewards, values, following, strict=True)]
    return [sum((gamma * lam) ** k * d for k, d in enumerate(delta[t:])) for t in range(len(delta))]


@given(st.integers(0, 10_000), st.floats(0, 1), st.floats(0, 1))
def test_gae_is_the_plain_sum_of_each_response(seed, gamma, lam):
    rng = np.random.default_rng(seed)
    lengths, starts = rng.integers(1, 6, 3), rng.integers(0, 3, 3)
    mask = np.zeros((3, 9), dtype=bool)
    for row in range(3):
        mask[row, starts[row] : starts[row] + lengths[row]] = True
    rewards, values = rng.normal(size=(2, 3, 9))
    advantages, returns = gae(*map(torch.tensor, (rewards, values, mask)), gamma, lam)
    assert not advantages[~torch.tensor(mask)].any()
    for row in range(3):
        want = plain_gae(rewards[row][mask[row]], values[row][mask[row]], gamma, lam)
        np.testing.assert_allclose(advantages[row][mask[row]], want, atol=1e-9)
        np.testing.assert_allclose(returns[row][mask[row]], want + values[row][mask[row]], atol=1e-9)


def test_a_critic_that_expects_the_reward_leaves_no_advantage():
    mask = torch.tensor([[False, True, True, True, False]])
    values = torch.where(mask, 2.0, 7.0)
    rewards = token_rewards(torch.tensor([2.0]), mask)
    assert rewards.tolist() == [[0, 0, 0, 2, 0]]
    advantages, returns = gae(rewards, values, mask, 1.0, 0.95)
    assert not advantages.any()
    assert returns.tolist() == [[0, 2, 2, 2, 0]]


def test_the_penalty_is_paid_at_every_token_and_the_reward_at_the_last():
    mask = torch.tensor([[True, True, False], [False, True, True]])
    kl = torch.tensor([[1.0, 2.0, math.nan], [math.inf, 3.0, 4.0]])
    rewards = token_rewards(torch.tensor([10.0, 20.0]), mask, kl, 0.5)
    assert rewards.tolist() == [[-0.5, 9.0, 0.0], [0.0, -1.5, 18.0]]


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=30))
def test_whitened_numbers_have_mean_zero_and_variance_one(values):
    numbers = torch.tensor(values, dtype=torch.float64)
    mean, factor = whitening(numbers)
    white = (numbers - mean) * factor
    assert abs(float(white.mean())) < 1e-6
    if np.std(values) > 1e-2:
        assert float(white.var()) == pytest.approx(1, abs=1e-3)


# --- loss -------------------------------------------------------------------------------------------------------------


def plain_loss(new, old, advantages, mask, low, high):
    """Eq. (3) of DeepSeekMath without its KL term, token by token: what each response's tokens lose."""
    losses, clipped = [[] for _ in new], 0
    for row in range(len(new)):
        for t in range(len(new[row])):
            if mask[row][t]:
                ratio = math.exp(new[row][t] - old[row][t])
                free, held = ratio * advantages[row], min(max(ratio, 1 - low), 1 + high) * advantages[row]
                losses[row].append(-min(free, held))
                clipped += held < free
    return losses, clipped


@given(st.integers(0, 10_000), st.integers(1, 5), st.integers(1, 7))
def test_loss_is_the_plain_one_however_it_is_aggregated(seed, rows, width):
    rng = np.random.default_rng(seed)
    new, old = -rng.exponential(0.5, (2, rows, width))
    advantages, mask = rng.normal(size=rows), rng.random((rows, width)) < 0.7
    mask[:, 0] = True
    want, clipped = plain_loss(new, old, advantages, mask, 0.2, 0.28)
    algorithm = GrpoConfig(clip_ratio_low=0.2, clip_ratio_high=0.28)
    losses, beyond = algorithm.token_loss(*map(torch.tensor, (new, old, advantages[:, None], mask)))
    assert beyond.sum() == clipped
    counted = rng.random(rows) < 0.7
    kept = [row if use else [] for row, use in zip(want, counted, strict=True)]
    expected = {
        "token": sum(map(sum, kept)) / max(1, sum(map(len, kept))),
        "sequence": sum(sum(row) / len(row) for row in kept if row) / rows,
        "constant": sum(map(sum, kept)) / (rows * 9),
    }
    for kind, value in expected.items():
        weights = loss_weights(kind, mask.sum(1), counted)
        divisor = loss_divisor(kind, float(mask[counted].sum()), rows, 9)
        assert float((losses * torch.tensor(weights)[:, None]).sum() / divisor) == pytest.approx(value, abs=1e-9)


def test_a_constant_divisor_needs_the_limit():
    with refused(InputError, "max_response_tokens"):
        loss_divisor("constant", 3.0, 1)


def test_gradient_raises_good_tokens_lowers_bad_ones_and_stops_beyond_the_clip():
    old = torch.log(torch.tensor([[0.5, 0.5, 0.5, 0.5]]).repeat(2, 1))
    new = torch.log(torch.tensor([[0.5, 0.55, 0.7, 0.3]]).repeat(2, 1)).requires_grad_()
    mask = torch.ones(2, 4, dtype=torch.bool)
    loss, clipped = GrpoConfig().token_loss(new, old, torch.tensor([[1.0], [-1.0]]), mask)
    (gradient,) = torch.autograd.grad(loss.sum() / 8, new)
    good, bad = gradient.tolist()
    assert good[0] < 0
    assert good[1] < 0
    assert good[2] == 0  # already 1.4 times as probable
    assert good[3] < 0
    assert bad[0] > 0
    assert bad[2] > 0
    assert bad[3] == 0  # already 0.6 times as probable
    assert clipped.sum() == 2


def test_whatever_padding_holds_changes_nothing():
    mask = torch.tensor([[True, False]])
    new = torch.tensor([[-1.0, -math.inf]], requires_grad=True)
    loss, _ = GrpoConfig().token_loss(new, torch.tensor([[-1.0, 0.0]]), torch.tensor([[2.0]]), mask)
    loss.sum().backward()
    assert float(loss.detach().sum()) == -2.0
    assert new.grad.tolist() == [[-2.0, 0.0]]


def test_k3_is_the_divergence_and_pulls_to_the_other_distribution():
    own, other = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.2, 0.6])
    estimate = (own * k3(own.log(), other.log(), torch.ones(3, dtype=torch.bool))).sum()
    assert float(estimate) == pytest.approx(float((own * (own / other).log()).sum()), abs=1e-6)
    new = torch.tensor([[-1.0, -math.inf]], requires_grad=True)
    penalty = k3(new, torch.tensor([[-0.5, 0.0]]), torch.tensor([[True, False]])).sum()
    assert float(penalty.detach()) == pytest.approx(math.exp(0.5) - 0.5 - 1)
    penalty.backward()
    assert new.grad[0, 0] < 0
    assert new.grad[0, 1] == 0


def test_value_loss_is_no_better_than_where_the_clip_holds():
    values = torch.tensor([[1.0, 1.5, 3.0, math.nan]], requires_grad=True)
    old, returns, mask = torch.ones(1, 4), torch.full((1, 4), 2.0), torch.tensor([[True, True, True, False]])
    losses, held = value_loss(values, old, returns, mask, 0.2)
    assert losses[0].tolist() == pytest.approx([0.5, 0.5 * 0.8**2, 0.5, 0.0])
    assert held == 1  # 1.5 is nearer to the return than 1.2, where the clip holds it
    losses.sum().backward()
    assert values.grad.tolist() == [[-1.0, 0.0, 1.0, 0.0]]
    free, held = value_loss(values, old, returns, mask, None)
    assert free.tolist() == [[0.5, 0.125, 0.5, 0.0]]
    assert held == 0


def test_importance_factors_are_the_ratio_up_to_the_cap():
    recomputed = torch.log(torch.tensor([[0.5, 0.9, 0.3, 0.1]]))
    engine = torch.log(torch.tensor([[0.5, 0.3, 0.6, 0.9]]))
    factors = truncated_importance(recomputed, engine, torch.tensor([[True, True, True, False]]), 2.0)
    assert factors.tolist() == [pytest.approx([1.0, 2.0, 0.5, 1.0])]
