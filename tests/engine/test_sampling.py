"""How tokens are drawn: the filters are transformers' own, the frequencies those of the distribution."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from rlhfless.engine.sampling import Sampling, draw, signals  # noqa: E402

VOCAB = 24


def filtered(logits, sampling):
    """Probabilities by transformers' own processors in the order of its ``generate``."""
    scores = logits / sampling.temperature
    if sampling.top_k:
        scores = transformers.TopKLogitsWarper(sampling.top_k)(None, scores)
    if sampling.top_p < 1:
        scores = transformers.TopPLogitsWarper(sampling.top_p)(None, scores)
    if sampling.min_p:
        scores = transformers.MinPLogitsWarper(sampling.min_p)(None, scores)
    return torch.softmax(scores, -1)


samplings = st.builds(
    Sampling,
    temperature=st.sampled_from([0.3, 1.0, 1.7]),
    top_p=st.sampled_from([0.2, 0.7, 0.95, 1.0]),
    top_k=st.sampled_from([0, 1, 3, 10, 1000]),
    min_p=st.sampled_from([0.0, 0.05, 0.4]),
)


@given(samplings, st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_the_numbers_cut_the_distribution_where_transformers_does(sampling, seed):
    """Uniform numbers on a fine grid give every token its share of the numbers, to the width of the grid."""
    logits = 3 * torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(seed))
    grid = (torch.arange(4000, dtype=torch.float64) + 0.5) / 4000
    ids, logprobs = draw(logits.expand(4000, -1), grid, sampling)
    share = torch.bincount(ids, minlength=VOCAB) / 4000
    assert (share - filtered(logits, sampling)[0]).abs().max() < 1e-3
    torch.testing.assert_close(logprobs, torch.log_softmax(logits, -1)[0, ids])


def test_frequencies_of_independent_streams_are_the_distribution():
    """Chi-squared over the streams that responses have: one number each of many seeds."""
    from rlhfless.engine.sampling import uniform_stream

    sampling = Sampling(temperature=0.8, top_k=12, min_p=0.02)
    logits = 2 * torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(4))
    numbers = torch.from_numpy(np.array([uniform_stream(seed, 3)[2] for seed in range(20_000)]))
    ids, _ = draw(logits.expand(len(numbers), -1), numbers, sampling)
    expected = filtered(logits, sampling)[0].numpy() * len(numbers)
    found = np.bincount(ids.numpy(), minlength=VOCAB)
    likely = expected > 0
    assert found[~likely].sum() == 0
    chi_squared = ((found - expected)[likely] ** 2 / expected[likely]).sum()
    degrees = likely.sum() - 1
    assert chi_squared < degrees + 5 * np.sqrt(2 * degrees)


def test_a_forbidden_token_is_not_drawn_where_it_is_forbidden():
    logits = torch.zeros(1000, VOCAB)
    logits[:, 3] = 5.0
    rows = torch.arange(1000) % 2 == 0
    numbers = torch.rand(1000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for sampling in (Sampling(), Sampling(0.0)):
        ids, _ = draw(logits, numbers, sampling, 3, rows)
        assert not (ids[rows] == 3).any()
        assert (ids[~rows] == 3).float().mean() > 0.7


def test_signals_are_those_of_the_softmax():
    logits = torch.randn(5, VOCAB, generator=torch.Generator().manual_seed(1))
    logits[0, 7] = -torch.inf
    eos, entropy = signals(logits, 2)
    expected = torch.distributions.Categorical(logits=logits)
    torch.testing.assert_close(eos, expected.logits[:, 2])
    torch.testing.assert_close(entropy[1:], expected.entropy()[1:])
    assert torch.isfinite(entropy).all()


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"temperature": -1.0}, "temperature is -1.0; it must be a finite number of 0 or more"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_p": 0.0}, "top_p is 0.0; it must be above 0 and at most 1"),
        ({"top_k": -1}, "top_k is -1; it must be a whole number of 0 or more"),
        ({"top_k": 2.5}, "top_k is 2.5; it must be a whole number"),
        ({"min_p": 1.5}, "min_p is 1.5; it must be at least 0 and at most 1"),
    ],
)
def test_values_outside_their_range_are_refused(wrong, sentence):
    with pytest.raises(ValueError, match=sentence):
        Sampling(**wrong)
