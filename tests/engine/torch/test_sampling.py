"""How tokens are drawn: the filters are transformers' own, the frequencies those of the distribution."""

import numpy as np
import pytest
from error_messages import refused

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from rlhfless.engine.common.sampling import Sampling  # noqa: E402
from rlhfless.engine.torch.gumbel_noise import GumbelNoise, exponentials, places, streams, token_keys  # noqa: E402
from rlhfless.engine.torch.sampling import draw, race_numbers  # noqa: E402
from rlhfless.errors import InputError  # noqa: E402

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


def noise_of(seeds, vocabulary, index=0):
    """(len(seeds), numbers) as the engine makes it for token ``index`` of responses with these seeds."""
    keys = token_keys(streams(seeds), np.full(len(seeds), index), 1)[0]
    halves = torch.from_numpy(keys.view(np.int32).reshape(-1, 2))
    return exponentials(halves, places(race_numbers(vocabulary), torch.device("cpu")))


def noise_of_bits(bits):
    """The noise of these 31 random bits: at the places whose hash, undone, they are."""
    word = (1 << 32) - 1
    product = bits * 2 * pow(0x846CA68B, -1, 1 << 32) & word
    place = product ^ product >> 15 ^ product >> 30
    return exponentials(torch.zeros(1, 2, dtype=torch.int32), place.to(torch.uint32).view(torch.int32))[0]


def assert_frequencies(ids, probabilities):
    """Chi-squared, with tokens that are hardly expected taken together: far less than one run in a million is this far off."""
    expected, found = probabilities.double().numpy() * len(ids), np.bincount(ids.numpy(), minlength=len(probabilities))
    assert found[expected == 0].sum() == 0, "a token was drawn that a filter takes out"
    rare = (expected < 10) & (expected > 0)
    expected = np.append(expected[expected >= 10], max(expected[rare].sum(), 1e-9))
    found = np.append(found[probabilities.double().numpy() * len(ids) >= 10], found[rare].sum())
    if expected[-1] < 10:
        expected, found = expected[:-1], found[:-1]
    chi_squared, degrees = ((found - expected) ** 2 / expected).sum(), len(expected) - 1
    assert chi_squared < degrees + 6 * np.sqrt(2 * degrees) + 12


@given(samplings, st.integers(0, 2**32 - 1))
@settings(max_examples=30, deadline=None)
def test_frequencies_and_logprobs_are_those_of_transformers_filters(sampling, seed):
    """One draw each of many seeds: temperature, top-k, top-p and min-p in every combination."""
    logits = 3 * torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(seed))
    noise = noise_of(range(seed, seed + 5000), VOCAB)
    ids, logprobs = draw(logits.expand(5000, -1), noise, sampling)
    assert_frequencies(ids, filtered(logits, sampling)[0])
    torch.testing.assert_close(logprobs, filtered(logits, sampling).log()[0, ids])


@pytest.mark.parametrize("vocabulary", [256, 257, 1000])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.7, top_k=300), Sampling(1.2, top_p=0.8, min_p=0.001)])
def test_frequencies_where_blocks_race_before_tokens(vocabulary, sampling):
    logits = 2 * torch.randn(1, vocabulary, generator=torch.Generator().manual_seed(vocabulary))
    ids, _ = draw(logits.expand(8000, -1), noise_of(range(8000), vocabulary), sampling)
    assert_frequencies(ids, filtered(logits, sampling)[0])


def test_frequencies_along_one_response_and_of_pairs_of_tokens_that_follow_each_other():
    probabilities = torch.softmax(torch.randn(1, 12, generator=torch.Generator().manual_seed(4)), -1)
    keys = token_keys(streams([77]), np.zeros(1, np.int64), 40_000)[:, 0].copy()
    noise = exponentials(torch.from_numpy(keys.view(np.int32).reshape(-1, 2)), places(12, torch.device("cpu")))
    ids, _ = draw(probabilities.log().expand(len(noise), -1), noise, Sampling())
    assert_frequencies(ids, probabilities[0])
    assert_frequencies(ids[:-1] * 12 + ids[1:], torch.outer(probabilities[0], probabilities[0]).reshape(-1))


def test_noise_is_exponential_at_every_place_and_independent_between_places():
    noise = noise_of(range(1 << 34, (1 << 34) + 20_000), 40).double().numpy()
    assert noise.min() > 0
    uniform = 1 - np.exp(-noise)
    cells = np.stack([np.histogram(column, 20, (0, 1))[0] for column in uniform.T])
    assert (((cells - 1000) ** 2 / 1000).sum(1) < 19 + 6 * np.sqrt(38) + 12).all()
    correlations = np.corrcoef(uniform.T)[np.triu_indices(40, 1)]
    assert np.abs(correlations).max() < 6 / np.sqrt(20_000)


def test_the_largest_noise_is_finite_and_so_the_only_candidate_is_drawn():
    """Of 2 ** 31 values 64 round up to 2 ** 31, whose logarithm would be infinite; here is one, at token 3."""
    noise = noise_of([148], 16, 2003)
    assert noise.argmax() == 3
    assert noise[0, 3] == pytest.approx(24 * np.log(2))
    logits = torch.zeros(1, 16)
    logits[0, 3] = 30
    for sampling in (Sampling(top_k=1), Sampling(top_p=0.9), Sampling(min_p=0.1), Sampling()):
        ids, logprobs = draw(logits, noise, sampling)
        assert ids.tolist() == [3]
        assert logprobs[0] == pytest.approx(0, abs=1e-6)


def test_only_noise_that_would_be_infinite_is_held_back():
    last = 1 << 31
    below = torch.tensor([0, 1, 77, 1 << 20, last // 2, last - 4096, last - 192, last - 65])
    plain = -torch.log1p((below.float() + 0.5) * -(2.0**-31))
    assert torch.equal(noise_of_bits(below), plain)
    assert noise_of_bits(torch.tensor([last - 64, last - 1])).tolist() == [plain[-1]] * 2


def test_noise_belongs_to_seed_and_index():
    keys = token_keys(streams([5, 6, 2**64 + 5, -1]), np.array([0, 0, 0, 9]), 100)
    np.testing.assert_array_equal(keys[17:, 0], token_keys(streams([5]), np.array([17]), 83)[:, 0])
    np.testing.assert_array_equal(keys[:, 0], keys[:, 2])  # seeds count modulo 2 ** 64
    assert len(np.unique(keys[:, [0, 1, 3]])) == 300


@given(st.lists(st.sampled_from(["join", "leave", "swap", "next", "forget", "verify"]), max_size=40), st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_rows_keep_their_noise_wherever_they_move(steps, seed):
    """Whatever happened before, a row has the noise of its own seed and token."""
    rng, noise, rows = np.random.default_rng(seed), GumbelNoise(6, VOCAB, torch.device("cpu")), []
    for step in steps:
        if step == "join" and len(rows) < 6:
            new = [[int(rng.integers(1 << 62)), int(rng.integers(1000))] for _ in range(rng.integers(1, 7 - len(rows)))]
            noise.join(len(rows), [own for own, _ in new])
            rows += new
        elif step == "leave" and rows:
            row, last = int(rng.integers(len(rows))), rows.pop()
            if row < len(rows):
                noise.move(len(rows), row)
                rows[row] = last
        elif step == "swap" and rows:
            a, b = rng.integers(len(rows), size=2).tolist()
            noise.swap(a, b)
            rows[a], rows[b] = rows[b], rows[a]
        elif step in ("next", "forget") and rows:
            found = noise.even(np.array([token for _, token in rows]), int(rng.integers(1, 5)), 6)
            for row, (own, token) in enumerate(rows):
                for later, numbers in enumerate(found):
                    assert torch.equal(numbers[row], noise_of([own], VOCAB, token + later)[0])
            if step == "next":
                count = int(rng.integers(1, len(found) + 1))
                rows = [[own, token + count] for own, token in rows]
        elif step == "verify" and rows:  # drafts of 0 to 9 tokens for each row, of which some are accepted
            fed = rng.integers(1, 11, len(rows))
            places, columns = np.repeat(np.arange(len(rows)), fed), np.concatenate([np.arange(n) for n in fed])
            drawn = noise.draw(np.array([token for _, token in rows]), places, columns)
            for numbers, row, column in zip(drawn, places.tolist(), columns.tolist(), strict=True):
                assert torch.equal(numbers, noise_of([rows[row][0]], VOCAB, rows[row][1] + column)[0])
            rows = [[own, token + int(rng.integers(1, n + 1))] for (own, token), n in zip(rows, fed.tolist(), strict=True)]


def test_a_forbidden_token_is_not_drawn_where_it_is_forbidden():
    logits = torch.zeros(1000, VOCAB)
    logits[:, 3] = 5.0
    rows = torch.arange(1000) % 2 == 0
    for sampling in (Sampling(), Sampling(0.0), Sampling(0.5)):
        ids, logprobs = draw(logits, noise_of(range(1000), VOCAB), sampling, [3], rows)
        assert not (ids[rows] == 3).any()
        assert (ids[~rows] == 3).float().mean() > 0.7
        expected = torch.log_softmax(logits / (sampling.temperature or 1.0), -1)
        allowed = torch.log_softmax((logits / (sampling.temperature or 1.0)).index_fill(1, torch.tensor(3), -torch.inf), -1)
        expected = torch.where(rows[:, None], allowed, expected)
        torch.testing.assert_close(logprobs, expected.gather(-1, ids[:, None])[:, 0])


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"temperature": -1.0}, ("-1.0",)),
        ({"temperature": float("nan")}, ()),
        ({"top_p": 0.0}, ("top_p", "0.0")),
        ({"top_k": -1}, ("top_k",)),
        ({"top_k": 2.5}, ("top_k", "2.5")),
        ({"min_p": 1.5}, ("min_p", "1.5")),
    ],
)
def test_values_outside_their_range_are_refused(wrong, sentence):
    with refused(InputError, *sentence):
        Sampling(**wrong)
