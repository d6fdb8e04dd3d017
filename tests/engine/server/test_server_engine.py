"""The engine of an OpenAI-compatible server: what it sends, what it counts, and in which sentence it gives up."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest
from error_messages import refused
from small_server import SmallServer, requests_of, small_server, tokens_of

from rlhfless.engine import Completion, EngineSpan, Request, Sampling, ServerEngineFactory
from rlhfless.engine.server.client import Client, ServerLost
from rlhfless.engine.server.engine import ServerEngine
from rlhfless.errors import InputError
from solver.model.admission import Admission

ROOMY = Admission(4, 10_000)


@pytest.fixture
def server() -> Iterator[SmallServer]:
    with small_server() as one:
        yield one


def engine_at(url: str, admission: Admission = ROOMY, **given: object) -> ServerEngine:
    return ServerEngine(url, ServerEngineFactory(**given), admission)  # type: ignore[arg-type]


def run(engine: ServerEngine, requests: Sequence[Request] = ()) -> tuple[dict[int, Completion], list[EngineSpan]]:
    """Decode everything in real time."""
    engine.add(requests)
    began = time.monotonic()
    clock: Callable[[], float] = lambda: time.monotonic() - began  # noqa: E731
    done, spans = {}, list[EngineSpan]()
    while engine.running() or engine.waiting():
        progress = engine.step(clock(), clock)
        done |= {c.response: c for c in progress.completions}
        spans += progress.spans
    return done, spans


def test_tokens_lengths_and_times_are_the_servers(server: SmallServer) -> None:
    requests = requests_of([12, 30, 1, 0, 25, 7, 18, 5])
    server.together = ROOMY.max_batch
    done, spans = run(engine_at(server.url + "/v1/"), requests)
    assert sorted(done) == list(range(8))
    for request in requests:
        completion = done[request.response]
        assert completion.token_ids is not None
        assert completion.token_ids.tolist() == tokens_of(request, request.target_tokens or 0)
        assert completion.response_tokens == request.target_tokens
        assert completion.finish_reason == "stop"
        assert completion.start_s <= completion.first_token_s <= completion.time_s
    assert done[0].logprobs == pytest.approx(np.full(12, -0.5))
    assert sum(span.tokens for span in spans if span.phase == "decode") == sum(c.response_tokens for c in done.values())
    prompts = sum(r.prompt_tokens for r in requests if r.target_tokens)
    assert sum(span.tokens for span in spans if span.phase == "prefill") == prompts
    assert all(one.end_s <= other.start_s for one, other in itertools.pairwise(spans))
    assert server.most == ROOMY.max_batch, "slots are the admission's, and all are used"


def test_a_response_that_nothing_forces_ends_as_the_server_says(server: SmallServer) -> None:
    request = Request(0, 3, 60, prompt_ids=np.arange(3), seed=2**64 - 1)
    done, _ = run(engine_at(server.url, eos_id=[7, 8]), [request])
    assert (done[0].response_tokens, done[0].finish_reason) == (5, "stop")
    assert server.bodies[0]["stop_token_ids"] == [7, 8]
    assert 0 <= server.bodies[0]["seed"] < 2**63
    assert "ignore_eos" not in server.bodies[0]


def test_filters_are_sent_where_they_are_set(server: SmallServer) -> None:
    run(engine_at(server.url, sampling=Sampling(0.7, top_p=0.9, top_k=20)), requests_of([2]))
    assert {"temperature": 0.7, "top_p": 0.9, "top_k": 20}.items() <= server.bodies[0].items()
    assert not {"min_p", "repetition_penalty"} & server.bodies[0].keys()


def test_tokens_are_counted_by_log_probabilities_where_there_are_no_ids(server: SmallServer) -> None:
    server.sends_ids = False
    done, _ = run(engine_at(server.url), requests_of([9]))
    assert (done[0].response_tokens, done[0].token_ids) == (9, None)


def test_memory_of_the_profile_limits_what_the_server_has_at_a_time(server: SmallServer) -> None:
    server.together = 2
    run(engine_at(server.url, Admission(4, 130)), requests_of([5, 5, 5, 5]))
    assert server.most == 2, "each counts with its prompt and its limit of 60"


def test_closing_aborts_what_the_server_still_has(server: SmallServer) -> None:
    engine = engine_at(server.url)
    engine.add(requests_of([50, 50]))
    while not any(engine.generated_tokens().values()):
        engine.step(0.0, time.monotonic)
    engine.close()
    engine.close()
    assert not engine.generated_tokens()
    while server.aborted < 2:
        time.sleep(0.005)


def test_a_key_is_sent(server: SmallServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.key = "secret"
    with refused(InputError, server.url, "401", "Unauthorized"):
        run(engine_at(server.url), requests_of([2]))
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    assert run(engine_at(server.url), requests_of([2]))[0][0].response_tokens == 2


def event(**choice: object) -> str:
    return "data: " + json.dumps({"choices": [choice]})


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        (["data: {broken"], ["not OpenAI-compatible"]),
        (["data: [1]"], ["not OpenAI-compatible"]),
        (['data: {"error": {"message": "bad\\nprompt", "code": 400}}'], ["refuses", "bad prompt"]),
        ([event(text="x", finish_reason=None)], ["neither token ids nor log-probabilities"]),
        ([event(token_ids=[1], finish_reason="stop")], ["response 0", "1 tokens", "5 were forced", "min_tokens"]),
        ([event(text="all of it", finish_reason="stop")], ["neither token ids nor log-probabilities"]),
        ([event(token_ids=[1] * 500, finish_reason="length")], ["response 0", "500 tokens", "5 were asked for"]),
        (['data: {"error": {"message": "long", "type": "invalid_request_error", "code": "too_long"}}'], ["refuses", "long"]),
        (["data: " + "[" * 100_000], ["not OpenAI-compatible"]),
        (['data: {"choices": 3}'], ["not OpenAI-compatible"]),
        (['data: {"choices": ["x"]}'], ["not OpenAI-compatible"]),
        *[
            ([event(finish_reason="stop", **wrong)], ["not OpenAI-compatible"])
            for wrong in (
                {"token_ids": 3},
                {"token_ids": ["a"]},
                {"token_ids": [-5]},
                {"token_ids": [1 << 70]},
                {"token_ids": [True]},
                {"token_ids": [1], "logprobs": [-1.0]},
                {"token_ids": [1], "logprobs": {"token_logprobs": ["x"]}},
                {"token_ids": [1, 2, 3], "logprobs": {"token_logprobs": [-1.0]}},
                {"token_ids": [1], "index": 1},
            )
        ],
        ([event(token_ids=[1], finish_reason=7)], ["not OpenAI-compatible"]),
    ],
    ids=[
        *("json", "no object", "error", "no tokens", "too short", "text alone", "too long", "error in words", "deep"),
        *("choices", "choice", "ids", "word as id", "negative id", "large id", "true as id", "list of log-probabilities"),
        *("word as log-probability", "fewer log-probabilities", "another choice", "finish"),
    ],
)
def test_what_a_server_sends_wrongly_is_one_sentence(server: SmallServer, lines: list[str], named: list[str]) -> None:
    server.lines = lines
    with refused(InputError, server.url, *named):
        run(engine_at(server.url), requests_of([5]))


@pytest.mark.parametrize(
    "lines",
    [
        [event(token_ids=[1], finish_reason=None)],
        [event(token_ids=[1], finish_reason="abort")],
        [event(text="", finish_reason="abort")],
        ["data: [DONE]"],
        ['data: {"error": {"message": "the engine died", "code": 500}}'],
        ['data: {"error": {"message": "the engine died", "code": "server_error"}}'],
        ['data: {"error": "the engine died"}'],
    ],
    ids=["ends", "aborts", "aborts at once", "says nothing", "fails", "fails in words", "fails without a code"],
)
def test_a_server_that_gives_up_is_lost(server: SmallServer, lines: list[str]) -> None:
    server.lines = lines
    with refused(ServerLost, server.url):
        run(engine_at(server.url), [Request(0, 3, 60, prompt_ids=np.arange(3))])


def test_log_probabilities_that_are_no_numbers_are_refused(server: SmallServer) -> None:
    server.lines = [event(token_ids=[1], logprobs={"token_logprobs": [None]}, finish_reason="stop")]
    with pytest.raises(FloatingPointError, match="response 0"):
        run(engine_at(server.url), [Request(0, 3, 60, prompt_ids=np.arange(3))])


def test_statuses_say_whether_the_server_is_lost_or_the_request_wrong(server: SmallServer) -> None:
    server.says = 503, "overloaded"
    with refused(ServerLost, server.url, "503", "overloaded"):
        run(engine_at(server.url), requests_of([2]))
    server.says = 302, "elsewhere"
    with refused(InputError, server.url, "302"):
        run(engine_at(server.url), requests_of([2]))


def test_a_server_that_sends_nothing_is_lost_after_the_limit(server: SmallServer) -> None:
    server.stops_after = 3
    with refused(ServerLost, server.url, "no token for 0.2 s"):
        run(engine_at(server.url, timeout_s=0.2), requests_of([20, 20]))


def test_events_without_tokens_are_no_sign_of_progress(server: SmallServer) -> None:
    def never_a_token() -> Iterator[str]:
        while True:
            time.sleep(0.01)
            yield event(token_ids=[], finish_reason=None)

    server.lines = never_a_token()
    with refused(ServerLost, server.url, "no token for 0.2 s"):
        run(engine_at(server.url, timeout_s=0.2), requests_of([20]))


def test_closing_aborts_a_response_whose_answer_has_not_begun(server: SmallServer) -> None:
    server.silent = True
    engine = engine_at(server.url)
    engine.add(requests_of([5]))
    while not server.bodies:
        engine.step(time.monotonic(), time.monotonic)
    engine.close()
    while not server.aborted:
        time.sleep(0.005)


def pieces(*sent: bytes, then_a_byte_every: float | None = None) -> Iterator[bytes]:
    """What a server sends, and then a byte again and again."""
    yield from sent
    while then_a_byte_every is not None:
        time.sleep(then_a_byte_every)
        yield b" "


@pytest.mark.parametrize("status", ["200 OK", "500 Failed", "400 Wrong"])
def test_an_answer_that_never_ends_is_given_up(server: SmallServer, status: str) -> None:
    server.raw = pieces(f"HTTP/1.1 {status}\r\n\r\n".encode(), then_a_byte_every=0.02)
    with refused(ServerLost, server.url, "0.3 s"):
        Client(server.url, timeout_s=0.3).model(None)
    server.raw = pieces(f"HTTP/1.1 {status}\r\nNote: ".encode(), then_a_byte_every=0.02)
    with refused(ServerLost, server.url, "0.3 s"):
        Client(server.url, timeout_s=0.3).model(None)


@pytest.mark.parametrize(
    "sent",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{}",
        b"HTTP/1.1 400 Wrong\r\nContent-Length: 500\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"\x1b]0;title\x07 200\r\n\r\n",
        b"",
    ],
    ids=["body", "error", "chunk", "status", "nothing"],
)
def test_an_answer_that_ends_too_early_is_that_of_a_lost_server(server: SmallServer, sent: bytes) -> None:
    server.raw = pieces(sent)
    with refused(ServerLost, server.url) as error:
        Client(server.url).model(None)
    assert str(error.value).isprintable()


def test_control_characters_of_a_server_are_not_printed(server: SmallServer) -> None:
    server.says = 400, json.dumps({"error": {"message": "\x1b[31mred \x1b]0;title\x07"}})
    with refused(InputError, server.url, "red") as error:
        run(engine_at(server.url), requests_of([2]))
    assert str(error.value).isprintable()


def test_servers_of_a_step_have_one_model(server: SmallServer) -> None:
    with small_server() as other:
        other.models = {"data": [{"id": "large"}, {"id": "small"}]}
        assert ServerEngineFactory("small").measured([server.url, other.url]).model == "small"
        other.models = {"data": [{"id": "large"}]}
        with refused(InputError, "'small'", server.url, "'large'", other.url):
            ServerEngineFactory().measured([server.url, other.url])


def test_a_response_that_is_too_long_for_the_model_or_has_begun_is_refused(server: SmallServer) -> None:
    engine = engine_at(server.url)
    with refused(InputError, "response 0", "100 tokens"):
        engine.add([Request(0, 50, 60, prompt_ids=np.arange(50))])
    begun = Request(0, 3, 60, prompt_ids=np.arange(3), generated_tokens=1, generated_ids=np.ones(1), logprobs=np.ones(1))
    with refused(InputError, "response 0", "begun elsewhere"):
        engine.add([begun])
    with refused(InputError, server.url, "hand"):
        engine.cut(0.0)


@pytest.mark.parametrize(
    ("models", "asked", "named"),
    [
        ({"data": [{"id": "a"}, {"id": "b"}]}, None, ["several", "'a', 'b'"]),
        ({"data": [{"id": "a"}]}, "b", ["'b'", "'a'"]),
        ({"data": []}, None, ["lists no model"]),
        ({"data": [{"max_model_len": 9}, "a", {"id": None}]}, None, ["lists no model"]),
        ("<html>", None, ["not OpenAI-compatible", "<html>"]),
    ],
    ids=["several", "another", "none", "no names", "page"],
)
def test_models_are_checked(server: SmallServer, models: object, asked: str | None, named: list[str]) -> None:
    server.models = models
    with refused(InputError, server.url, *named):
        ServerEngineFactory(asked).measured([server.url])


def test_a_server_that_is_not_there_is_refused_with_what_to_type() -> None:
    with small_server() as gone:
        pass
    with refused(InputError, gone.url, "vllm serve"):
        ServerEngineFactory().measured([gone.url])


@pytest.mark.parametrize(
    "url",
    [
        *("localhost:8000", "file:///etc/passwd", "http://", "http://a:99999", "http://a/?b=1", "ftp://a", "http://[::1"),
        *(
            "http://local host:8000",
            "http://.:80",
            f"http://{'a' * 70}",
            "http://a/b c",
            "http://a/\u20ac",
            " http://a",
            "http://a\n",
        ),
    ],
)
def test_only_urls_of_servers_are_taken(url: str) -> None:
    with refused(InputError, repr(url), "http://localhost:8000"):
        Client(url)


@pytest.mark.parametrize(
    "url", ["http://me:secret@host:8000", "http://me:secret@host:8000?x=1", "http://me:secret@[::1", "me:secret@a"]
)
def test_keys_stay_out_of_urls(url: str) -> None:
    with pytest.raises(InputError, match="VLLM_API_KEY") as error:
        Client(url)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("key", ["abc\n", "schl\u00fcssel", "\u20ac"], ids=["line break", "umlaut", "euro"])
def test_a_key_that_cannot_be_sent_is_refused_without_repeating_it(
    server: SmallServer, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", key)
    with refused(InputError, "VLLM_API_KEY") as error:
        Client(server.url).model(None)
    assert key.strip() not in str(error.value)


@pytest.mark.parametrize(
    ("url", "same"),
    [
        ("http://HOST:80/v1/", "http://host"),
        ("https://host:443", "https://host"),
        ("http://[::1]:8000/v1", "http://[::1]:8000"),
        ("http://host:8000/a/v1", "http://host:8000/a"),
    ],
)
def test_a_server_has_one_url_however_it_is_written(url: str, same: str) -> None:
    assert Client(url).url == Client(same).url == same


@pytest.mark.parametrize("seconds", [0, -1.0, float("inf"), "1"])
def test_a_limit_is_a_number_of_seconds(seconds: object) -> None:
    with refused(InputError, "timeout_s"):
        ServerEngineFactory(timeout_s=seconds)  # type: ignore[arg-type]
