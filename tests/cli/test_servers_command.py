"""``--engine server --server URL``: a profile of a server, a plan that is executed on servers, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from command_line import run_rlhfless
from error_messages import refused_command
from small_server import SmallServer, small_server

from rlhfless.latency import load_profile, measure, read_profile
from rlhfless.trace import read_trace


@pytest.fixture
def servers() -> Iterator[tuple[SmallServer, SmallServer]]:
    with small_server() as one, small_server() as other:
        one.models = other.models = {"data": [{"id": "small", "max_model_len": 400}]}
        yield one, other


@pytest.fixture
def log(tmp_path: Path) -> Path:
    rows = [(v, f"q{p}", s, 5 + p, 6 + 5 * p + 2 * s) for v in (0, 1) for p in range(4) for s in (0, 1)]
    table = pd.DataFrame(rows, columns=["step", "prompt_id", "sample", "prompt_tokens", "response_tokens"])
    table.to_csv(tmp_path / "log.csv", index=False)
    return tmp_path / "log.csv"


def test_a_plan_of_a_log_runs_on_servers_with_its_true_lengths(
    log: Path, tmp_path: Path, servers: tuple[SmallServer, SmallServer]
) -> None:
    one, other = servers
    out = tmp_path / "ran"
    typed = [
        "plan",
        log,
        "--gpus",
        2,
        "--profile",
        "cpu-tiny-qwen2",
        "--engine",
        "server",
        "--server",
        f"{one.url},{other.url}",
    ]
    done = run_rlhfless(*typed, "-o", out)
    assert done.exit_code == 0, done.output
    assert f"wrote {out}" in done.output
    trace = read_trace(out)
    assert sorted(trace.rollouts["response_tokens"]) == sorted(6 + 5 * p + 2 * s for p in range(4) for s in (0, 1))
    assert trace.meta["clock"] == "wall"
    bodies = [body for server in servers for body in server.bodies]
    assert sorted(len(body["prompt"]) for body in bodies) == sorted(5 + p for p in range(4) for _ in (0, 1))
    assert len({tuple(body["prompt"]) for body in bodies}) == 4, "responses to one prompt have the same tokens"
    printed = json.loads(run_rlhfless(*typed, "--format", "json").stdout)
    assert printed["on_servers"]["servers"] == [one.url, other.url]
    assert printed["on_servers"]["generation_s"] > 0


def test_a_profile_of_a_server_has_its_times_and_the_rest_of_the_base(
    tmp_path: Path, servers: tuple[SmallServer, SmallServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "FAST", measure.MeasurementGrid((1, 2), (40, 80), ((1, 16), (2, 16)), 1))
    out = tmp_path / "mine.json"
    done = run_rlhfless(
        "profile", "--engine", "server", "--server", servers[0].url, "--fast", "--base", "cpu-tiny-qwen2", "-o", out
    )
    assert done.exit_code == 0, done.output
    written, base = read_profile(out), read_profile("cpu-tiny-qwen2")
    assert (written["model"], written["max_batch"], written["table"]["batch"]) == ("small", 2, [1, 2])
    assert written["kv_capacity_tokens"] == base["kv_capacity_tokens"]
    assert f"--server {servers[0].url} --fast --base cpu-tiny-qwen2 -o {out}" in written["command"]
    assert load_profile(out).one_iteration_s(1, 40) >= servers[0].token_s
    assert done.output.splitlines()[-1] == f"wrote {out}"


def test_a_folder_with_a_trace_is_refused_before_anything_runs(
    log: Path, tmp_path: Path, servers: tuple[SmallServer, SmallServer]
) -> None:
    trace = tmp_path / "trace"
    assert run_rlhfless("convert", log, "-o", trace).exit_code == 0
    before = {path: path.read_bytes() for path in trace.rglob("*") if path.is_file()}
    typed = ["plan", trace, "--gpus", 1, "--profile", "cpu-tiny-qwen2", "--engine", "server", "--server", servers[0].url]
    refused_command(run_rlhfless(*typed, "-o", trace), str(trace), "holds a trace already")
    assert {path: path.read_bytes() for path in trace.rglob("*") if path.is_file()} == before
    assert not servers[0].bodies


def test_a_model_with_too_short_contexts_for_a_profile_is_refused_before_anything_runs(
    tmp_path: Path, servers: tuple[SmallServer, SmallServer]
) -> None:
    servers[0].models = {"data": [{"id": "small", "max_model_len": 32}]}
    typed = ["profile", "--engine", "server", "--server", servers[0].url, "--fast", "-o", tmp_path / "mine.json"]
    refused_command(run_rlhfless(*typed), servers[0].url, "'small'", "32 tokens", "--contexts", "--max-model-len")
    assert not servers[0].bodies


@pytest.mark.parametrize(
    ("typed", "named"),
    [
        (["profile", "--engine", "server", "-o", "p.json"], ["--server"]),
        (["profile", "--server", "http://localhost:1", "-o", "p.json"], ["--engine server"]),
        (["profile", "--engine", "server", "--server", "localhost", "-o", "p.json"], ["'localhost'", "http://localhost:8000"]),
        (["profile", "--engine", "server", "--server", "http://localhost:1", "--device", "cuda", "-o", "p.json"], ["--device"]),
        (["plan", "LOG", "--engine", "server"], ["--server"]),
        (["plan", "LOG", "-o", "x"], ["-o", "--engine server"]),
        (["plan", "LOG", "--engine", "server", "--server", "http://localhost:1", "--drafts", "weak"], ["--drafts"]),
        (["train", "preset=demo", "cluster.engine=server", "-o", "run"], ["cluster.engine", "weights", "plan LOG"]),
    ],
    ids=["no url", "no engine", "no scheme", "device", "plan without", "out", "drafts", "training"],
)
def test_what_does_not_fit_is_refused(
    typed: list[str], named: list[str], log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refused_command(run_rlhfless(*[str(log) if word == "LOG" else word for word in typed]), *named)


def test_more_actors_than_servers_are_refused_with_the_number_that_fits(
    log: Path, servers: tuple[SmallServer, SmallServer]
) -> None:
    typed = ["plan", log, "--gpus", 4, "--profile", "cpu-tiny-qwen2", "--time-weight", 1, "--engine", "server"]
    refused_command(run_rlhfless(*typed, "--server", servers[0].url), "1 device", servers[0].url, "1 GPU")
    assert not servers[0].bodies
