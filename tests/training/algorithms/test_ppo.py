"""PPO: loss and gradient against a reference of twenty lines on ragged batches, and updates that do what they say."""

import math

import numpy as np
import pytest
from error_messages import refused

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from learning_samples import TOKENIZER, gradient_of, noise_batch, policy_gradient, small_model  # noqa: E402

from rlhfless.errors import InputError  # noqa: E402
from rlhfless.training.algorithms.base import frozen_copy  # noqa: E402
from rlhfless.training.algorithms.batch import Batch  # noqa: E402
from rlhfless.training.algorithms.critic import PolicyAndCritic, make_critic  # noqa: E402
from rlhfless.training.algorithms.registry import algorithm_options, make_algorithm  # noqa: E402
from rlhfless.training.logprobs import response_logprobs  # noqa: E402


def pair(kind="head", seed=0):
    """A policy and a critic that expects something."""
    trained = PolicyAndCritic(small_model(seed), make_critic(small_model(seed), kind))
    with torch.no_grad():
        trained.critic.head.weight.copy_(torch.linspace(-0.5, 0.5, 32)[None])
        trained.critic.head.bias.fill_(0.1)
    return trained


def plain_ppo(trained, reference, batch, o, update):
    """The loss as the papers write it: one response at a time, no padding, no masks."""
    rows = []
    for prompt, response, engine, reward in zip(
        batch.prompt_ids, batch.response_ids, batch.engine_logprobs, batch.rewards, strict=True
    ):
        ids, first = torch.tensor([prompt + response]), len(prompt) - 1
        output = trained.policy(ids, output_hidden_states=True)
        hidden = output.hidden_states[-1] if trained.critic.backbone is None else trained.critic.backbone(ids).last_hidden_state
        new = (output.logits[0, first:-1] / update.temperature).log_softmax(-1)[range(len(response)), response]
        with torch.no_grad():
            logits = reference(ids).logits[0, first:-1] / update.temperature
            expected = logits.log_softmax(-1)[range(len(response)), response]
        values, engine = trained.critic.head(hidden)[0, first:-1, 0], torch.tensor(np.asarray(engine))
        old = new.detach() if o.recomputes else engine
        v, r, a = values.detach().tolist(), (-o.kl_coef * (old - expected)).tolist(), [0.0] * (len(response) + 1)
        r[-1] += reward
        for t in reversed(range(len(response))):
            following = v[t + 1] if t + 1 < len(response) else 0.0
            a[t] = r[t] + o.gamma * following - v[t] + o.gamma * o.lam * a[t + 1]
        factor = (
            torch.ones(len(response))
            if o.importance_ratio_cap is None
            else (old - engine).exp().clamp(max=o.importance_ratio_cap)
        )
        tokens, limit = sum(batch.response_tokens), (update.max_response_tokens or 1) * len(batch.rewards)
        share = {"token": 1 / tokens, "sequence": 1 / len(response) / len(batch.rewards), "constant": 1 / limit}[
            o.loss_aggregation
        ]
        rows.append((new, old, values, torch.tensor(a[:-1]), share * factor))
    new, old, values, advantages, share = (torch.cat(column) for column in zip(*rows, strict=True))
    returns = advantages + values.detach()
    white = (advantages - advantages.mean()) / torch.sqrt(advantages.var() + 1e-8) if o.whiten else advantages
    ratio = (new - old).exp()
    policy = -share * torch.minimum(ratio * white, ratio.clamp(1 - o.clip_ratio_low, 1 + o.clip_ratio_high) * white)
    return policy.sum(), 0.5 * (values - returns).square().mean()


@pytest.mark.parametrize("kind", ["head", "model"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"whiten": False, "gamma": 0.9, "lam": 0.7, "clip_ratio_low": 0.1, "clip_ratio_high": 0.3, "value_clip": None},
        {"loss_aggregation": "sequence", "old_logprobs_from": "recomputed", "importance_ratio_cap": 1.1},
        {"loss_aggregation": "constant", "max_response_tokens": 20, "temperature": 0.7},
    ],
)
def test_loss_and_gradient_are_those_of_the_plain_reference(kind, options):
    trained, other = pair(kind), pair(kind)
    batch = noise_batch(trained.policy)
    given = {"kl_coef": 0.2, "vf_coef": 0.5, "max_grad_norm": math.inf, "max_tokens_per_micro_batch": 64, **options}
    algorithm = policy_gradient("ppo", trained, **given)
    o, update = algorithm.config, algorithm.options
    algorithm.reference = frozen_copy(small_model(1))
    metrics = algorithm.learn(batch)
    policy, value = plain_ppo(other, small_model(1), batch, o, update)
    (policy + o.vf_coef * value).backward()
    assert metrics["loss"] == pytest.approx(float(policy.detach()), abs=1e-5)
    assert metrics["value_loss"] == pytest.approx(float(value.detach()), rel=1e-5)
    assert (metrics["clip_share"] > 0) == (not o.recomputes)
    torch.testing.assert_close(gradient_of(trained), gradient_of(other), atol=1e-6, rtol=1e-3)


def two_answers(policy, scores=(1.0, 0.0)):
    prompt = TOKENIZER.encode("4+7?")
    responses = [TOKENIZER.encode("11;#11.", eos=True), TOKENIZER.encode("12;#12.", eos=True)]
    return Batch([prompt] * 2, responses, list(scores), ["a", "a"], response_logprobs(policy, [prompt] * 2, responses))


@pytest.mark.parametrize("critic", ["head", "model"])
def test_learning_raises_what_was_rewarded_and_the_critic_learns_to_expect_it(critic):
    model = small_model()
    algorithm = make_algorithm("ppo", model, learning_rate=1e-3, critic_learning_rate=1e-2, critic=critic, num_updates=3)
    batch = two_answers(model)
    before = [value.sum() for value in batch.engine_logprobs]
    first = algorithm.learn(batch)
    after = [value.sum() for value in response_logprobs(model, batch.prompt_ids, batch.response_ids)]
    assert first["value_mean"] == 0, "a new critic expects nothing"
    assert after[0] - before[0] > after[1] - before[1]
    for _ in range(10):
        last = algorithm.learn(two_answers(model))
    assert last["value_loss"] < first["value_loss"]
    assert last["explained_variance"] > first["explained_variance"]


def test_a_critic_with_rate_0_stays_as_it_is():
    """And None is the policy's rate."""
    for rate, stays in ((0.0, True), (None, False)):
        model = small_model()
        algorithm = make_algorithm("ppo", model, learning_rate=1e-3, critic_learning_rate=rate, critic="model")
        before = [p.clone() for p in algorithm.trained.critic.parameters()]
        algorithm.learn(two_answers(model))
        assert all(torch.equal(p, q) for p, q in zip(before, algorithm.trained.critic.parameters(), strict=True)) == stays
        assert not torch.equal(next(model.parameters()), next(small_model().parameters())), "the policy learns"


def test_a_group_of_one_response_is_enough():
    model = small_model()
    batch = two_answers(model)
    single = Batch(batch.prompt_ids[:1], batch.response_ids[:1], [1.0], ["a"])
    assert make_algorithm("ppo", model, learning_rate=1e-3).learn(single)["grad_norm"] > 0


def test_unjudged_and_truncated_responses_are_left_out():
    """Learning from a batch with them is learning from the batch without them."""
    trained, other = pair(), pair()
    batch = noise_batch(trained.policy)
    rewards = np.array(batch.rewards)
    rewards[4] = math.nan
    keep = [i for i in range(12) if i != 4 and not batch.truncated[i]]
    whole = Batch(batch.prompt_ids, batch.response_ids, rewards, batch.group_of, batch.engine_logprobs, batch.truncated)
    columns = (batch.prompt_ids, batch.response_ids, rewards, batch.group_of, batch.engine_logprobs)
    rest = Batch(*([column[i] for i in keep] for column in columns))
    metrics = policy_gradient("ppo", trained, mask_truncated=True).learn(whole)
    policy_gradient("ppo", other).learn(rest)
    torch.testing.assert_close(gradient_of(trained), gradient_of(other), atol=1e-6, rtol=1e-4)
    assert metrics["unjudged"] == pytest.approx(1 / 12)
    nothing = Batch(batch.prompt_ids, batch.response_ids, [math.nan] * 12, batch.group_of)
    assert policy_gradient("ppo", trained).learn(nothing)["tokens"] == 0


def test_a_reward_model_can_be_the_critic(tmp_path):
    from transformers import Qwen2ForSequenceClassification

    model, config = small_model(), small_model().config
    config.num_labels = 1
    Qwen2ForSequenceClassification(config).save_pretrained(tmp_path / "rm")
    algorithm = make_algorithm("ppo", model, learning_rate=1e-3, critic=str(tmp_path / "rm"))
    assert algorithm.learn(two_answers(model))["value_mean"] != 0
    config.num_labels = 3
    Qwen2ForSequenceClassification(config).save_pretrained(tmp_path / "three")
    with refused(ValueError):
        make_critic(model, str(tmp_path / "three"))
    config.num_labels, config.vocab_size = 1, 50
    Qwen2ForSequenceClassification(config).save_pretrained(tmp_path / "words")
    with refused(ValueError, "50"):
        make_critic(model, str(tmp_path / "words"))


def test_only_safetensors_are_read_as_a_critic(tmp_path):
    from transformers import Qwen2ForSequenceClassification

    model, config = small_model(), small_model().config
    config.num_labels = 1
    pickled = Qwen2ForSequenceClassification(config)
    pickled.config.save_pretrained(tmp_path)
    torch.save(pickled.state_dict(), tmp_path / "pytorch_model.bin")
    with refused(InputError, "model.safetensors"):
        make_critic(model, str(tmp_path))
    pickled.save_pretrained(tmp_path)
    weights = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(weights[:-1])
    with refused(InputError, "AutoModelForSequenceClassification"):
        make_critic(model, str(tmp_path))


def test_wrong_options_are_named():
    with refused(ValueError):
        algorithm_options("ppo", lam=2)
    with refused(ValueError, "value_clip"):
        algorithm_options("ppo", value_clip=0)
    with refused(ValueError, "'nowhere'"):
        make_critic(small_model(), "nowhere")
    with refused(ValueError, "'dpo'"):
        make_algorithm("dpo", None, learning_rate=1.0)
    with refused(ValueError):
        make_algorithm("grpo", None, learning_rate=1.0, gamma=0.9)
