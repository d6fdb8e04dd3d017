"""The router for verl: it plans the batch that it is given, leaves what it does not know to verl, and says what it saves.

verl is not installed for tests. The base class below has the interface of verl 0.9.1's own router
(`verl/workers/rollout/router.py`): constructor, sticky sessions by request, least requests in flight, release by server.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import json
import sys
import types
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from command_line import run_rlhfless
from error_messages import refused

from rlhfless.analysis.verl_router import (
    MAX_WAITING,
    RouterEffect,
    assign_longest_first,
    expected_tokens,
    router_effect,
    write_router,
)
from rlhfless.latency import load_profile
from rlhfless.simulate import SimulationConfig
from rlhfless.trace import TraceError
from solver.model.cluster import Cluster

SETTING = SimulationConfig(Cluster(1, 8, 2, kind="l40s"), load_profile("l40s-qwen2.5-3b-tp2"))
PROFILE = "l40s-qwen2.5-3b-tp2"


class LeastInFlight:
    """What verl's own router does, by its source."""

    def __init__(self, servers: dict[str, Any], max_cache_size: int = 10_000) -> None:
        self._servers = dict(servers)
        self._inflight_requests = dict.fromkeys(servers, 0)
        self._request_id_to_server: dict[str, str] = {}

    def acquire_server(self, request_id: str) -> tuple[str, Any]:
        if not self._inflight_requests:
            raise RuntimeError("No available servers in load balancer")
        if request_id not in self._request_id_to_server:
            self._request_id_to_server[request_id] = min(self._inflight_requests, key=self._inflight_requests.__getitem__)
        server = self._request_id_to_server[request_id]
        self._inflight_requests[server] += 1
        return server, self._servers[server]

    def release_server(self, server_id: str, request_id: str | None = None) -> None:
        self._inflight_requests[server_id] -= 1


def text_hash(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def rollouts(prompts: int = 48, epochs: int = 3, steps: int = 2, noise: float = 0.1, spread: float = 1.0) -> pd.DataFrame:
    """Lengths that differ by prompt as ``spread`` says, and from visit to visit as ``noise`` says; shuffled every epoch."""
    rng = np.random.default_rng(0)
    means = 200 * rng.lognormal(0, spread, prompts)
    rows = [
        {"run": "r", "step": e * steps + i % steps, "epoch": e, "prompt_id": text_hash(f"prompt {p}"), "sample": s,
         "prompt_tokens": 9, "response_tokens": int(np.clip(means[p] * rng.lognormal(0, noise), 1, 4000)),
         "finish_reason": "stop"}
        for e in range(epochs) for i, p in enumerate(rng.permutation(prompts)) for s in range(4)
    ]  # fmt: skip
    return pd.DataFrame(rows)


@pytest.fixture
def router_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The written module, imported beside stand-ins of verl and of the tokenizer."""

    class Tokenizer:
        @staticmethod
        def from_pretrained(name: str, trust_remote_code: bool) -> Any:
            assert (name, trust_remote_code) == ("some/tokenizer", False)
            return types.SimpleNamespace(decode=lambda ids, skip_special_tokens: "prompt " + "".join(map(str, ids)))

    for name in ("verl", "verl.workers", "verl.workers.rollout"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    own = types.ModuleType("verl.workers.rollout.router")
    own.GlobalRequestLoadBalancer = LeastInFlight  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, own.__name__, own)
    monkeypatch.setitem(sys.modules, "transformers", types.SimpleNamespace(AutoTokenizer=Tokenizer))  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "ray", types.SimpleNamespace(remote=as_actor))  # type: ignore[arg-type]
    module, _, _ = write_router(tmp_path / "router", rollouts(), SETTING, "some/tokenizer")
    space: dict[str, Any] = {}
    exec(compile(module.read_text("utf-8"), str(module), "exec"), space)
    assert space["Router"] == (space["PlannedRouter"], {"max_concurrency": MAX_WAITING})
    return space["PlannedRouter"]


def as_actor(**options: Any) -> Callable[[type], tuple[type, dict[str, Any]]]:
    """Ray's decorator with options."""
    return lambda kind: (kind, options)


def made(router_class: Any, folder: Path, replicas: str = "abcd") -> Any:
    """A router of some replicas, by its own configuration file."""
    lines = (folder / "router" / "router.yaml").read_text("utf-8").splitlines()
    config = {key: json.loads(value) for key, value in (line.split(": ", 1) for line in lines)}
    assert config["router_class"] == "planned_router.Router"
    return router_class({name: name.upper() for name in replicas}, config)


def tokens_of(prompt: int) -> list[int]:
    return [int(digit) for digit in str(prompt)]


def test_a_batch_is_planned_as_it_comes_in_whatever_its_order(router_class: Any, tmp_path: Path) -> None:
    router = made(router_class, tmp_path)
    assert router.require_acquire_fields() == ["prompt_ids"]
    assert router.require_release_fields() == ["request_id"]
    assert inspect.iscoroutinefunction(router.acquire_server), "Ray runs many of them at a time"
    expected = expected_tokens(rollouts())
    longest = max(range(48), key=lambda p: expected[text_hash(f"prompt {p}")])

    async def batch() -> list[str]:
        calls = [router.acquire_server(f"r{p}-{s}", prompt_ids=tokens_of(p)) for p in range(48) for s in range(4)]
        return [server for server, _ in await asyncio.gather(*calls)]

    chosen = asyncio.run(batch())
    tokens = np.array([expected[text_hash(f"prompt {p}")] for p in range(48) for _ in range(4)])
    work = {name: tokens[np.array(chosen) == name].sum() for name in "abcd"}
    beside = [np.array(chosen)[4 * longest + s] for s in range(4)]
    assert len(set(beside)) == 4, "the four longest go to four replicas"
    assert max(work.values()) < 1.15 * min(work.values())
    assert sum(router._inflight_requests.values()) == 48 * 4
    assert asyncio.run(router.acquire_server("r7-0", prompt_ids=[7, 7, 7]))[0] == chosen[28], "its next turn stays"


def test_what_the_log_does_not_hold_goes_to_the_fewest_in_flight_at_once(router_class: Any, tmp_path: Path) -> None:
    router = made(router_class, tmp_path, "ab")
    assert [asyncio.run(router.acquire_server(f"n{i}", prompt_ids=[9, 9, i]))[0] for i in range(4)] == ["a", "b", "a", "b"]
    assert asyncio.run(router.acquire_server("bare"))[0] == "a"
    router.release_server("b", request_id="n1")
    assert asyncio.run(router.acquire_server("n9", prompt_ids=[9, 9, 9]))[0] == "b"
    assert set(router._at_work) == {"n0", "n2", "n3", "bare", "n9"}


def test_a_second_batch_counts_what_is_still_decoded(router_class: Any, tmp_path: Path) -> None:
    router = made(router_class, tmp_path, "ab")

    async def both() -> tuple[str, str]:
        first = (await router.acquire_server("first", prompt_ids=tokens_of(1)))[0]
        return first, (await router.acquire_server("second", prompt_ids=tokens_of(1)))[0]

    first, second = asyncio.run(both())
    assert first != second
    router._inflight_requests.clear()
    router._servers.clear()
    with refused(RuntimeError):
        asyncio.run(router.acquire_server("late", prompt_ids=tokens_of(2)))


def test_a_batch_that_cannot_be_planned_goes_where_verl_would_send_it(
    router_class: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    router = made(router_class, tmp_path, "ab")
    router._times = None

    async def batch() -> list[str]:
        calls = [router.acquire_server(f"r{p}", prompt_ids=tokens_of(p)) for p in range(4)]
        return [server for server, _ in await asyncio.wait_for(asyncio.gather(*calls), 60)]

    assert sorted(asyncio.run(batch())) == ["a", "a", "b", "b"]
    assert "a batch could not be planned" in caplog.text
    assert router._waiting == []


def test_dealing_keeps_short_responses_away_from_the_longest() -> None:
    chosen = assign_longest_first([(9, 4000), *[(9, 100)] * 60], [[], []], (0.02, 0.0002, 0.0))
    assert Counter(chosen[1:])[chosen[0]] < 30
    even = Counter(assign_longest_first([(9, 100)] * 32, [[], []], (0.02, 0.0002, 0.0)))
    assert set(even.values()) == {16}, "32 equal responses are 16 on each of two replicas"
    busy = assign_longest_first([(9, 100)] * 4, [[(9, 100)] * 4, []], (0.02, 0.0002, 0.0))
    assert busy == [1, 1, 1, 1]


def test_the_router_gains_where_lengths_belong_to_prompts_and_is_recommended_only_then() -> None:
    gains = router_effect(rollouts(prompts=256), SETTING)
    assert gains.high > gains.low > 0.005
    assert gains.is_recommended
    assert "12 shuffled batches of 2 held-out epochs" in str(gains)
    noise = router_effect(rollouts(noise=1.0, spread=0.0), SETTING)
    assert not noise.is_recommended
    assert "not recommended" in str(noise)
    unseen = router_effect(rollouts(epochs=1), SETTING)
    assert unseen == RouterEffect()
    assert "no prompt appears in a second epoch" in str(unseen)


def test_expected_lengths_are_those_of_the_last_visit() -> None:
    table = rollouts()
    last = table[table["epoch"] == 2].groupby("prompt_id")["response_tokens"].mean()
    assert expected_tokens(table) == pytest.approx(last.to_dict())


def test_a_local_tokenizer_is_found_from_any_folder_and_a_hub_name_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tokenizer").mkdir()
    monkeypatch.chdir(tmp_path)
    for folder, given, written in (
        ("local", "tokenizer", str(tmp_path / "tokenizer")),
        ("hub", "some/tokenizer", "some/tokenizer"),
    ):
        *_, configuration = write_router(folder, rollouts(), SETTING, given)
        assert f"tokenizer: {json.dumps(written)}" in configuration.read_text("utf-8").splitlines()


def test_prompts_without_their_text_are_refused(tmp_path: Path) -> None:
    with refused(TraceError):
        write_router(tmp_path / "router", rollouts().assign(prompt_id="p1"), SETTING, "some/tokenizer")
    assert not (tmp_path / "router").exists()


def test_a_verl_log_becomes_a_router_by_one_command(tmp_path: Path) -> None:
    tokenizer = Path(__file__).parents[1] / "trace" / "importers" / "golden" / "verl-v1"
    log = next(path for path in tokenizer.iterdir() if path.suffix == ".jsonl").parent
    command = ["convert", str(log), "--to", "verl-router", "-o", str(tmp_path / "router"), "--gpus", "8", "--profile", PROFILE]
    refused = run_rlhfless(*command)
    assert refused.exit_code == 2
    assert "a router needs the cluster" in refused.output
    assert "give --tokenizer" in refused.output
    shipped = str(Path(__file__).parents[1] / "trace" / "importers" / "golden" / "trl")
    done = run_rlhfless(*command, "--tokenizer", shipped)
    assert done.exit_code == 0, done.output
    assert "held-out epoch, generation takes" in done.output
    assert "recommended" in done.output
    written = json.loads((tmp_path / "router" / "expected_tokens.json").read_text("utf-8"))
    texts = {json.loads(line)["input"] for file in log.glob("*.jsonl") for line in file.read_text("utf-8").splitlines()}
    assert set(written) == {text_hash(text) for text in texts}
    unused = run_rlhfless("convert", log, "-o", tmp_path / "t.json", "--gpus", "8")
    assert unused.exit_code == 2
    assert "a timeline draws what was logged; leave out --gpus" in unused.output
    again = run_rlhfless(*command, "--tokenizer", shipped)
    assert again.exit_code == 2
    assert "exists and is not empty" in again.output
