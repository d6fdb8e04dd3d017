"""The router for verl: prompts go where the plan says, others to the least loaded replica, and multi-turn requests stay.

verl is not installed for tests. The base class below has the interface that verl 0.9.1 documents for routers of one's own
(`verl/workers/rollout/router.py`): constructor, sticky sessions by request, least requests in flight.
"""

from __future__ import annotations

import hashlib
import json
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from rlhfless.accounting.verl_router import placement, write_router
from rlhfless.cli import main
from rlhfless.latency import load_profile
from rlhfless.simulate import Setting
from rlhfless.trace import TraceError
from solver.cluster import Cluster

SETTING = Setting(Cluster(1, 8, 2, kind="l40s"), load_profile("l40s-qwen2.5-3b-tp2"), time_limit_s=0.05)


class LeastInFlight:
    """What verl's own router does, by its documentation."""

    def __init__(self, servers: dict[str, Any]) -> None:
        self._servers = dict(servers)
        self._inflight_requests = dict.fromkeys(servers, 0)
        self._request_id_to_server: dict[str, str] = {}

    def acquire_server(self, request_id: str) -> tuple[str, Any]:
        if request_id not in self._request_id_to_server:
            self._request_id_to_server[request_id] = min(self._inflight_requests, key=self._inflight_requests.__getitem__)
        server = self._request_id_to_server[request_id]
        self._inflight_requests[server] += 1
        return server, self._servers[server]


def text_hash(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def rollouts(prompts: int = 12, epochs: int = 2) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    rows = [
        {"run": "r", "step": e, "epoch": e, "prompt_id": text_hash(f"prompt {p}"), "sample": s, "prompt_tokens": 9,
         "response_tokens": int(rng.integers(5, 40) * (p + 1)), "finish_reason": "stop"}
        for e in range(epochs) for p in range(prompts) for s in range(4)
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
    placed = {text_hash("prompt 1"): [2, 0, 2, 2], text_hash("prompt 7"): [5]}
    module, _, _ = write_router(tmp_path / "router", placed, "some/tokenizer")
    space: dict[str, Any] = {}
    exec(compile(module.read_text(), str(module), "exec"), space)
    return space["PlannedRouter"]


def test_prompts_go_where_the_plan_says(router_class: Any, tmp_path: Path) -> None:
    config = {"placement": str(tmp_path / "router" / "placement.json"), "tokenizer": "some/tokenizer"}
    router = router_class({"a": "A", "b": "B", "c": "C"}, config)
    assert router.require_acquire_fields() == ["prompt_ids"]
    assert [router.acquire_server(f"r{i}", prompt_ids=[1])[0] for i in range(5)] == ["c", "a", "c", "c", "c"]
    assert router.acquire_server("r1", prompt_ids=[1, 4, 4]) == ("a", "A")  # its next turn stays, though its prompt has grown
    assert router.acquire_server("r9", prompt_ids=[7])[0] == "c"  # replica 5 of a larger plan
    assert router.acquire_server("new", prompt_ids=[3])[0] == "b"  # not in the plan: the least loaded
    assert router.acquire_server("bare")[0] == "b"


def test_a_local_tokenizer_is_found_from_any_folder_and_a_hub_name_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tokenizer").mkdir()
    monkeypatch.chdir(tmp_path)
    for folder, given, written in (
        ("local", "tokenizer", str(tmp_path / "tokenizer")),
        ("hub", "some/tokenizer", "some/tokenizer"),
    ):
        *_, configuration = write_router(folder, {}, given)
        assert f"tokenizer: {json.dumps(written)}" in configuration.read_text().splitlines()


def test_the_placement_is_that_of_the_last_epochs_plans() -> None:
    placed = placement(rollouts(), SETTING)
    assert set(placed) == {text_hash(f"prompt {p}") for p in range(12)}
    assert {len(own) for own in placed.values()} == {4}
    assert {replica for own in placed.values() for replica in own} == set(range(4)), "verl holds all four, so all have work"
    assert placement(rollouts(), SETTING) == placed


def test_prompts_without_their_text_are_refused() -> None:
    with pytest.raises(TraceError, match="prompts are not named by the hash of their text"):
        placement(rollouts().assign(prompt_id="p1"), SETTING)


def test_a_verl_log_becomes_a_router_by_one_command(tmp_path: Path) -> None:
    tokenizer = Path(__file__).parents[1] / "trace" / "importers" / "golden" / "verl-v1"
    log = next(path for path in tokenizer.iterdir() if path.suffix == ".jsonl").parent
    command = ["export", str(log), "--verl-router", str(tmp_path / "router"), "--gpus", "8", "--profile", "l40s-qwen2.5-3b-tp2"]
    refused = CliRunner().invoke(main, command)
    assert refused.exit_code == 2
    assert "--verl-router needs --tokenizer" in refused.output
    shipped = str(Path(__file__).parents[1] / "trace" / "importers" / "golden" / "trl")
    done = CliRunner().invoke(main, [*command, "--tokenizer", shipped])
    assert done.exit_code == 0, done.output
    written = json.loads((tmp_path / "router" / "placement.json").read_text())
    texts = {json.loads(line)["input"] for file in log.glob("*.jsonl") for line in file.read_text().splitlines()}
    assert set(written["replicas"]) == {text_hash(text) for text in texts}
    unused = CliRunner().invoke(main, ["export", str(log), "--perfetto", str(tmp_path / "t.json"), "--gpus", "8"])
    assert unused.exit_code == 2
    assert "are for --verl-router" in unused.output
    again = CliRunner().invoke(main, [*command, "--tokenizer", shipped])
    assert again.exit_code == 2
    assert "exists and is not empty" in again.output
