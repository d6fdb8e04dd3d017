"""The chaos benchmark: whatever is killed or stopped, and whenever, every response arrives once, with its own tokens.

A few kills are in ``test_real_processes.py``; these are hundreds.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from benchmark_scripts import chaos, chaos_counts


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("kills", "options"),
    [
        (300, {"actors": 4, "stops": 0.0, "limit": 300}),
        (60, {"stops": 0.2}),
        (60, {"actors": 4, "limit": 300, "learning": "stream"}),
        (40, {"engine": "torch", "actors": 3, "per_step": 3, "limit": 300}),
        (12, {"pool": "ray", "actors": 3, "stops": 0.0}),
    ],
)
def test_nothing_is_lost_doubled_or_left_behind(kills: int, options: dict[str, Any]) -> None:
    if options.get("pool") == "ray":
        pytest.importorskip("ray", reason="Ray is not installed: pip install 'rlhfless[ray]'")
    counts = chaos.chaos(kills, **options)
    found = counts.summary()
    assert found["kills"] == kills
    assert found["lost_actors"] > 0
    assert (found["lost"], found["doubled"], found["different"], found["given_up"]) == (0, 0, 0, 0)
    assert not any(found.get(name) for name in ("not_learned", "learned_again", "other_gradients"))
    assert found["left_behind"] == []


def test_what_a_lost_actor_adds_is_over_the_steps_that_lost_one() -> None:
    def row(lost: int, added: float) -> dict:
        return {"lost_actors": lost, "added_s": added, "added_gpu_s": 2 * added, "undisturbed_s": 1.0, "undisturbed_gpu_s": 3.0}

    counts = chaos_counts.Counts(rows=[row(0, 9.0), row(2, 1.0), row(1, 2.0)])
    counts.signals.update(["SIGKILL", "SIGKILL", "SIGSTOP"])
    found = counts.summary()
    assert found["added_s_per_lost_actor"] == pytest.approx(1.0)
    assert found["added_gpu_s_per_lost_actor"] == pytest.approx(2.0)
    assert (found["kills"], found["undisturbed_gpu_s"]) == (3, 3.0)
    assert chaos_counts.Counts().summary()["added_s_per_lost_actor"] is None


@pytest.mark.nightly
def test_the_script_writes_what_it_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "chaos.json"
    chaos.main(["--kills", "2", "--stops", "0", "--actors", "2", "-o", str(out)])
    found = json.loads(out.read_text())
    assert (found["kills"], found["lost"], found["doubled"]) == (2, 0, 0)
    assert len(found["rows"]) == found["steps"]
    assert f"{'kills':>32}  2" in capsys.readouterr().out
