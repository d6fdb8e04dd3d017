"""The torch engine with drafts: whatever is drafted, the same tokens and the same bits, in as many passes as drafts allow."""

import math
from dataclasses import replace

import numpy as np
import pytest
from error_messages import refused
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from scripted_drafters import ScriptedDrafter  # noqa: E402
from torch_models import EOS, VOCAB, tiny_model  # noqa: E402

from rlhfless.engine.common.checked_drafter import DraftsOffWarning  # noqa: E402
from rlhfless.engine.common.sampling import Sampling  # noqa: E402
from rlhfless.engine.protocol import Request  # noqa: E402
from rlhfless.engine.torch.engine import TorchEngine  # noqa: E402
from rlhfless.engine.torch.factory import TorchEngineFactory  # noqa: E402
from rlhfless.engine.torch.model import DecoderModel, counting  # noqa: E402
from rlhfless.errors import InputError  # noqa: E402
from solver import LatencyModel, PlanningError  # noqa: E402
from solver.model.admission import Admission  # noqa: E402
from solver.model.drafting import Drafting  # noqa: E402
from solver.timing.draft_length import DRAFT_CALL_S, DRAFT_TOKEN_S  # noqa: E402

LATENCY = LatencyModel(
    "test", 1, base_s=1.0, per_response_s=2**-6, per_kv_token_s=2**-14, prefill_per_token_s=2**-6, join_s=2**-3
)
ROOMY = Admission(8, 1 << 20)
SAMPLINGS = [Sampling(), Sampling(0.0), Sampling(0.7), Sampling(1.0, 0.8)]
LENGTHS = [1, 2, 4, 8, "adaptive"]
RESPONSES = 12


@pytest.fixture(scope="module")
def model():
    return DecoderModel(tiny_model())


class Unstable(DecoderModel):
    """Takes the path of GPUs and of bfloat16: rectangles of rows and columns, which attend in one call."""

    bit_stable = False


def requests(count=RESPONSES, limit=30, **more):
    """Groups of four responses to a prompt that they share; every third has a forced length."""
    rng = np.random.default_rng(0)
    prompts = [rng.integers(1, VOCAB, 4 + 3 * (i % 5)) for i in range(-(-count // 4))]
    return [
        Request(
            i, len(prompts[i // 4]), limit, prompt_ids=prompts[i // 4], prompt=i // 4, shares_prompt=i % 8 < 4, seed=1000 + i,
            target_tokens=limit - 1 - i % 11 if i % 3 == 0 else None, **more
        )
        for i in range(count)
    ]  # fmt: skip


def engine(model, drafting=None, admission=ROOMY, charge=LATENCY, **more):
    return TorchEngine(model, admission, charge, eos_id=EOS, drafting=drafting, **more)


def run(e, asked):
    e.add(asked)
    return {c.response: c for c in e.advance(math.inf).completions}


def tokens(completions):
    return {response: (c.token_ids.tolist(), c.logprobs.tolist()) for response, c in completions.items()}


@pytest.fixture(scope="module")
def expected(model):
    """By sampling, what is decoded without drafts."""
    return {sampling: run(engine(model, sampling=sampling), requests()) for sampling in SAMPLINGS}


def guesses(completions, wrong):
    """A drafter that knows what comes, but for the tokens whose index ``wrong`` says."""

    def says(response, so_far, most):
        ids = completions[response].token_ids.tolist()
        at = range(len(so_far), min(len(so_far) + most, len(ids)))
        return [ids[i] if not wrong(response, i) else 1 + ids[i] % (VOCAB - 1) for i in at]

    return ScriptedDrafter(says)


def now_and_then(response, index):
    return (response * 7 + index * 3) % 5 == 0


def always(response, index):
    return True


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("length", LENGTHS)
def test_drafts_change_no_bit(model, expected, sampling, length):
    """Every fifth draft is wrong, so that passes end at every position; forced and free lengths, shared prompts."""
    drafter = guesses(expected[sampling], now_and_then)
    found = run(engine(model, Drafting(drafter, length=length), sampling=sampling), requests())
    assert tokens(found) == tokens(expected[sampling])
    for c in found.values():
        assert c.passes + c.accepted_tokens == c.response_tokens
        assert c.accepted_tokens <= c.drafted_tokens
    assert sum(c.accepted_tokens for c in found.values()) > 0
    assert drafter.tokens == {}


@pytest.mark.parametrize("length", [1, 4, 8])
def test_the_path_of_gpus_decodes_the_same_up_to_rounding(expected, length):
    unstable, sampling = Unstable(tiny_model()), SAMPLINGS[0]
    drafting = Drafting(guesses(expected[sampling], now_and_then), length=length)
    found = run(engine(unstable, drafting, Admission(5, 1 << 20)), requests())
    for response, c in expected[sampling].items():
        assert found[response].token_ids.tolist() == c.token_ids.tolist()
        np.testing.assert_allclose(found[response].logprobs, c.logprobs, atol=1e-4)
    assert sum(c.accepted_tokens for c in found.values()) > 0


@pytest.mark.parametrize("length", [1, 2, 4, 8])
def test_a_perfect_drafter_needs_the_fewest_passes(model, expected, length):
    known = expected[SAMPLINGS[0]]
    found = run(engine(model, Drafting(guesses(known, lambda response, i: False), length=length)), requests())
    for c in found.values():
        assert c.passes == -(-c.response_tokens // (length + 1))
    assert tokens(found) == tokens(known)


ADVERSARIES = {
    "always wrong": lambda known: guesses(known, lambda response, i: True),
    "random": lambda known: ScriptedDrafter(
        lambda response, so_far, most: np.random.default_rng(len(so_far)).integers(0, VOCAB, most).tolist()
    ),
    "empty": lambda known: ScriptedDrafter(lambda response, so_far, most: []),
    "end of text": lambda known: ScriptedDrafter(lambda response, so_far, most: [EOS] * most),
    "end of text in the middle": lambda known: ScriptedDrafter(lambda response, so_far, most: [1, EOS, 2, 3][:most]),
}


@pytest.mark.parametrize("adversary", ADVERSARIES)
def test_bad_drafts_cost_passes_at_most(model, expected, adversary):
    known = expected[SAMPLINGS[0]]
    with counting(model) as fed:
        found = run(engine(model, Drafting(ADVERSARIES[adversary](known), length=4)), requests())
    assert tokens(found) == tokens(known)
    assert fed.decode == sum(c.passes + c.drafted_tokens for c in found.values())
    if adversary == "end of text in the middle":
        assert sum(c.drafted_tokens for c in found.values()) <= sum(c.passes for c in found.values())
    elif adversary != "random":
        assert all(c.passes == c.response_tokens and c.accepted_tokens == 0 for c in found.values())
    if adversary in ("empty", "end of text"):
        assert all(c.drafted_tokens == 0 for c in found.values())


@pytest.mark.parametrize("per_response_s", [2**-6, 2**-3])
@pytest.mark.parametrize("adversary", ADVERSARIES)
def test_adaptive_lengths_limit_what_bad_drafts_take(model, adversary, per_response_s):
    """By the profile's arithmetic, at most half more than without drafts, and next to nothing once lengths are learnt."""
    asked = [replace(r, target_tokens=110, max_tokens=110) for r in requests()]
    latency = replace(LATENCY, per_response_s=per_response_s)
    plain = engine(model, charge=latency)
    known = run(plain, asked)
    e = engine(model, Drafting(ADVERSARIES[adversary](known)), charge=latency)
    assert tokens(run(e, asked)) == tokens(known)
    assert e.clock_s <= 1.5 * plain.clock_s
    if adversary == "always wrong":
        half = len(plain.journal) // 2
        assert sum(e.journal.decode_s[half:]) <= 1.03 * sum(plain.journal.decode_s[half:])


def test_passes_without_drafts_run_as_they_do_without_drafts(model):
    """Many in one run; the drafter learns of all of their tokens, and the trace counts what it counts without drafts."""
    asked = [replace(r, target_tokens=110, max_tokens=110) for r in requests()]
    plain = engine(model)
    plain.add(asked)
    without = plain.advance(math.inf)
    known = {c.response: c for c in without.completions}
    drafter = guesses(known, always)
    told, remove = {}, drafter.remove
    drafter.remove = lambda response: (told.__setitem__(response, list(drafter.tokens[response])), remove(response))
    e = engine(model, Drafting(drafter))
    e.add(asked)
    progress = e.advance(math.inf)
    assert tokens({c.response: c for c in progress.completions}) == tokens(known)
    assert told == {response: c.token_ids.tolist() for response, c in known.items()}
    undrafted = sum(not any(p.drafted) for p in e.journal.passes)
    assert len(e.journal) > undrafted > len(e.journal) / 2 > len(e.journal.runs)
    assert all(c.passes == c.response_tokens for c in progress.completions)
    for p, k in zip(e.journal.passes, range(len(plain.journal)), strict=True):
        assert p.kv_tokens == kv_tokens(plain.journal, k)

    never = engine(model, Drafting(guesses(known, always), length=0))
    never.add(asked)
    again = never.advance(math.inf)
    assert [replace(s, drafted_tokens=None, accepted_tokens=None) for s in again.spans] == list(without.spans)


def kv_tokens(journal, iteration):
    """KV tokens of the batch at the start of an iteration without drafts."""
    change = [c for c in journal.changes if c.iteration <= iteration][-1]
    return change.kv_tokens + change.batch * (iteration - change.iteration)


def failing(response, so_far, most):
    if len(so_far) < 6:
        return [1] * most
    raise RuntimeError("no more ideas")


@pytest.mark.parametrize("says", [failing, lambda response, so_far, most: [1] * (most + 1)])
def test_a_drafter_that_fails_is_named_and_the_rest_is_decoded_without(model, expected, says):
    e = engine(model, Drafting(ScriptedDrafter(says), length=2))
    assert e.drafts_off is None
    with pytest.warns(DraftsOffWarning, match="ScriptedDrafter") as warned:
        found = run(e, requests())
    assert len(warned) == 1
    assert "ScriptedDrafter" in e.drafts_off
    assert tokens(found) == tokens(expected[SAMPLINGS[0]])


def test_history_and_siblings_are_drafted_from(model, expected):
    """Greedy responses to a prompt are equal, so those of an earlier visit, or a sibling that is ahead, know what comes."""
    known = expected[SAMPLINGS[1]]
    history = {i // 4: [c.token_ids] for i, c in known.items() if i % 3}
    asked = [replace(r, history=history[r.prompt]) for r in requests()]
    for siblings, some in ((True, requests()), (False, asked)):
        e = engine(model, Drafting(length=8, siblings=siblings), Admission(1, 1 << 20), sampling=SAMPLINGS[1])
        found = run(e, some)
        assert tokens(found) == tokens(known)
        follower = [c for c in found.values() if c.response % 4 == 2]
        assert sum(c.passes for c in follower) < sum(c.response_tokens for c in follower) / 3


def test_an_iteration_is_charged_for_what_it_feeds(model, expected):
    known = expected[SAMPLINGS[0]]
    e = engine(model, Drafting(guesses(known, now_and_then), length=4))
    with counting(model) as fed:
        progress = (e.add(requests()), e.advance(math.inf))[1]
    passes = e.journal.passes
    assert len(passes) == len(e.journal)
    for seconds, p, (change, _) in zip(e.journal.decode_s, passes, by_iteration(e.journal), strict=True):
        drafted = sum(p.drafted)
        expected_s = LATENCY.iteration_s(len(p.drafted) + drafted, p.kv_tokens) + LATENCY.join_s * len(change)
        assert seconds == pytest.approx(float(expected_s) + (DRAFT_CALL_S + DRAFT_TOKEN_S * drafted if drafted else 0.0))
    decode = [s for s in progress.spans if s.phase == "decode"]
    assert sum(s.fed_tokens for s in decode) == fed.decode == sum(len(p.drafted) + sum(p.drafted) for p in passes)
    assert sum(s.drafted_tokens for s in decode) == sum(c.drafted_tokens for c in progress.completions)
    assert sum(s.accepted_tokens for s in decode) == sum(c.accepted_tokens for c in progress.completions)
    assert sum(s.tokens for s in decode) == sum(c.response_tokens for c in progress.completions)
    assert progress.spans[-1].end_s == e.clock_s


def by_iteration(journal):
    """The responses that join at every iteration, with its number."""
    joined = {change.iteration: change.joined for change in journal.changes}
    return [(joined.get(k, ()), k) for k in range(len(journal))]


@pytest.mark.parametrize("capacity", [60, 100])
def test_a_draft_evicts_nobody(model, expected, capacity):
    """With perfect drafts that do not fit, the batch at every pass is one that would be decoded without drafts, too."""
    known = expected[SAMPLINGS[0]]
    e = engine(model, Drafting(guesses(known, now_and_then), length=8), Admission(8, capacity, "preempt"))
    found = run(e, requests())
    assert tokens(found) == tokens(known)
    for p in e.journal.passes:
        assert len(p.drafted) == 1 or p.kv_tokens + sum(p.drafted) <= capacity
    assert sum(c.prefill_tokens_computed for c in found.values()) > sum(r.prompt_tokens for r in requests()), "some evicted"
    assert sum(c.accepted_tokens for c in found.values()) > 0


@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_tokens_depend_on_no_draft_cut_or_move(model, expected, data):
    """Engines with and without drafts, any admission; cuts in mid-draft, KV moved or recomputed."""
    known, asked = expected[SAMPLINGS[0]], requests()
    admission = data.draw(
        st.sampled_from([Admission(4, 10**6), Admission(12, 10**6), Admission(12, 130, "preempt"), Admission(1, 120)])
    )
    lengths = data.draw(st.lists(st.sampled_from([None, 0, *LENGTHS]), min_size=1, max_size=3), label="lengths")
    wrong = data.draw(st.sampled_from([now_and_then, always]), label="wrong")
    engines = [engine(model, None if n is None else Drafting(guesses(known, wrong), length=n), admission) for n in lengths]
    order, found, all_draft = data.draw(st.permutations(asked)), {}, None not in lengths
    with counting(model) as fed:
        for k, e in enumerate(engines):
            e.add(order[k :: len(engines)])
        for _ in range(data.draw(st.integers(0, 4), label="cuts")):
            source, target = (engines[data.draw(st.integers(0, len(engines) - 1))] for _ in range(2))
            if data.draw(st.booleans(), label="peek"):
                source.peek_next_event_s()
            some = data.draw(st.none() | st.lists(st.integers(0, RESPONSES - 1), max_size=4))
            taken, progress = source.cut(source.clock_s + data.draw(st.floats(0, 20)), some)
            found |= {c.response: c for c in progress.completions}
            moved = data.draw(st.booleans(), label="KV moved")
            target.add([r if moved else replace(r, kv=None) for r in taken])
        for e in engines:
            found |= {c.response: c for c in e.advance(math.inf).completions}
    assert tokens(found) == tokens(known)
    if all_draft:
        assert all(c.passes + c.accepted_tokens == c.response_tokens for c in found.values())
        assert fed.decode == sum(c.passes + c.drafted_tokens for c in found.values())


@pytest.mark.parametrize("length", [2, "adaptive"])
def test_measured_time_and_real_time_decode_the_same(model, expected, length):
    known = expected[SAMPLINGS[0]]
    factory = TorchEngineFactory(model, EOS, drafting=Drafting(guesses(known, now_and_then), length=length))
    measured = factory.measured()(LATENCY, ROOMY)
    assert tokens(run(measured, requests())) == tokens(known)
    real, completions, now = factory.measured()(LATENCY, ROOMY), [], 0.0
    real.add(requests())
    while real.running() or real.waiting():
        completions += real.step(now, lambda start_s=now: start_s + 1.0).completions
        now = real.clock_s
    assert tokens({c.response: c for c in completions}) == tokens(known)
    assert now == len(real.journal)


def test_a_replay_runs_the_same_passes(model, expected):
    known = expected[SAMPLINGS[0]]
    factory = TorchEngineFactory(model, EOS, drafting=Drafting(guesses(known, now_and_then), length=4))
    for admission in (Admission(5, 1 << 20), Admission(8, 100, "preempt")):
        e = factory(LATENCY, admission)
        run(e, requests())
        with counting(model) as fed:
            replayed = factory.replay(e.journal)
        assert replayed.seconds.shape == (len(e.journal), 2)
        warm_up = sum(len(p.drafted) + sum(p.drafted) for p in e.journal.passes[:8])
        assert fed.decode == sum(len(p.drafted) + sum(p.drafted) for p in e.journal.passes) + warm_up


def test_logits_that_are_no_numbers_name_the_response():
    broken = tiny_model()
    with torch.no_grad():
        broken.model.norm.weight.fill_(math.nan)
    with refused(FloatingPointError, "response 0", "not finite"):
        run(engine(DecoderModel(broken), Drafting(length=2)), requests(2))


def test_what_drafts_need_is_said(model):
    with refused(InputError, "'adaptive'", "latency model", "factory"):
        engine(model, Drafting(), charge="measured")
    with refused(PlanningError, "critical", "predicted lengths", "adaptive"):
        engine(model, Drafting(length="critical"))
    with refused(PlanningError, "'vllm-ngram'", "engine vllm", "'suffix'"):
        engine(model, Drafting("vllm-ngram", length=4))
    with refused(InputError, "response 3", "history", "32", "0 to 31"):
        engine(model).add([replace(requests(4)[3], history=[np.array([1, VOCAB])])])


@pytest.mark.full
def test_a_thousand_responses_with_every_length(model):
    """All samplings and lengths; 16 slots that are refilled; an actor that is cut every few passes and moves its responses."""
    asked = requests(1000 // (len(SAMPLINGS) * 4), 24)
    count = 0
    for sampling in SAMPLINGS:
        known = run(engine(model, sampling=sampling), asked)
        for length in (1, 2, 4, 8):
            e = engine(model, Drafting(guesses(known, now_and_then), length=length), Admission(16, 220, "preempt"),
                       sampling=sampling)  # fmt: skip
            e.add(asked)
            found, kv = {}, True
            while e.running() or e.waiting():
                progress = e.advance(e.clock_s + 6.0)
                taken, more = e.cut(e.clock_s + 1.0)
                found |= {c.response: c for c in (*progress.completions, *more.completions)}
                e.add([r if kv else replace(r, kv=None) for r in taken])
                kv = not kv
            assert tokens(found) == tokens(known)
            count += len(found)
    assert count >= 990
