"""An own GPU kind: a known profile times factors of speed."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from error_messages import refused

from rlhfless.latency import ProfileError, list_profiles, load_profile, profile_like, read_profile

H100 = "h100-qwen2.5-3b-tp1"


def test_factors_divide_the_times(tmp_path: Path) -> None:
    file = profile_like(H100, kind="mine", decode=1.6, prefill=2.0, start=4.0, path=tmp_path / "mine.json")
    known, own = load_profile(H100), load_profile(file)
    assert (own.kind, own.name) == ("mine", "mine-qwen2.5-3b-tp1")
    for batch in (1, 32, 256):
        assert own.iteration_s(batch, 512 * batch) == pytest.approx(known.iteration_s(batch, 512 * batch) / 1.6)
    full = known.iteration_s(256, 256 * 512)
    more = known.iteration_s(256, 1280 * 512, 1024) - full  # 1,024 prompt tokens, with as much context for each
    assert own.iteration_s(256, 1280 * 512, 1024) == pytest.approx(full / 1.6 + more / 2)
    assert own.start_s == pytest.approx(known.start_s / 4)
    assert own.transfer_per_kv_token_s == pytest.approx(known.transfer_per_kv_token_s / 4)
    assert own.kv_capacity_tokens == known.kv_capacity_tokens
    calls, faster = load_profile(H100, prefill="separate"), load_profile(file, prefill="separate")
    assert faster.prefill_per_token_s == pytest.approx(calls.prefill_per_token_s / 2, rel=1e-3)


@pytest.mark.parametrize("base", list_profiles())
def test_without_factors_the_profile_is_the_same(base: str, tmp_path: Path) -> None:
    known, own = load_profile(base), load_profile(profile_like(base, path=tmp_path / "same.json"))
    for name in (
        "base_s",
        "per_response_s",
        "per_kv_token_s",
        "prefill_per_token_s",
        "join_s",
        "start_s",
        "kv_capacity_tokens",
    ):
        assert getattr(own, name) == pytest.approx(getattr(known, name), rel=1e-6), name
    assert own.prefill == known.prefill


def test_more_memory_is_more_room_and_the_file_says_what_was_assumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = profile_like(H100, kind="big", memory_gib=140)
    assert file == Path("big-qwen2.5-3b-tp1.json")
    assert load_profile(file).kv_capacity_tokens > load_profile(H100).kv_capacity_tokens
    written = read_profile(file)
    assert "memory_gib=140" in written["command"]
    assert H100 in written["assumptions"]["step_s"]
    assert H100 in written["origin"]


def test_wrong_factors_are_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    for wrong in ({"decode": 0}, {"prefill": -1.0}, {"start": math.nan}, {"memory_gib": -3}, {"kind": " "}):
        with refused(ProfileError, next(iter(wrong))):
            profile_like(H100, path=path, **wrong)  # type: ignore[arg-type]
    with refused(ProfileError, "memory_gib"):
        profile_like(H100, memory_gib=1, path=path)
    with refused(ProfileError, "h900"):
        profile_like("h900", path=path)
    assert not path.exists()
