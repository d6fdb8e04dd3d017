"""What learning is judged by, and that the recorded curves say what is claimed of them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from error_messages import refused
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")
ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "benchmarks"))
import learning_curves  # noqa: E402

from rlhfless.errors import InputError  # noqa: E402

RECORDED = ROOT / "data" / "learning" / "curves.json"


@given(st.integers(1, 2000), st.floats(0, 1))
def test_an_interval_holds_its_share_and_stays_within_0_and_1(count: int, share: float) -> None:
    right = round(share * count)
    low, high = learning_curves.interval(right, count)
    assert -1e-12 <= low <= right / count + 1e-12
    assert right / count - 1e-12 <= high <= 1 + 1e-12
    assert high - low > 0


def test_an_interval_is_that_of_the_textbook() -> None:
    """Ten of ten: 0.722 to 1 (Brown, Cai and DasGupta 2001, Wilson's interval)."""
    low, high = learning_curves.interval(10, 10)
    assert (low, high) == (pytest.approx(0.7225, abs=1e-3), pytest.approx(1.0))
    assert learning_curves.interval(250, 1000) == pytest.approx((0.2242, 0.2777), abs=1e-3)


def a_run(start: float, end: float, cpu_s: float = 300.0) -> dict:
    def measured(accuracy: float) -> dict:
        low, high = learning_curves.interval(round(1000 * accuracy), 1000)
        return {"accuracy": accuracy, "low": low, "high": high, "problems": 1000}

    steps = [{"step": 0, "wall_s": cpu_s, "cpu_s": cpu_s}]
    return {"algorithm": "grpo", "seed": 0, "start": measured(start), "end": measured(end), "steps": steps}


def test_the_aim_is_twice_the_start_in_ten_minutes() -> None:
    assert learning_curves.verdict(a_run(0.25, 0.51)).endswith(": met")
    for missed in (a_run(0.25, 0.49), a_run(0.10, 0.51), a_run(0.25, 0.51, cpu_s=601.0)):
        assert learning_curves.verdict(missed).endswith("NOT MET")


def test_runs_of_other_options_are_not_mixed() -> None:
    size = {**learning_curves.SIZE, "steps": 8}
    run = {**a_run(0.25, 0.51), "options": learning_curves.options_of("grpo", size)}
    as_read = json.loads(json.dumps([run]))
    learning_curves.refuse_others(as_read, size, 1000, Path("curves.json"))
    for other, problems, named in (
        ({**size, "prompts": 256}, 1000, ("prompts", "512", "256")),
        ({**size, "max_response_tokens": 40}, 1000, ("max_response_tokens", "None", "40")),
        (size, 8, ("problems", "1000", "8")),
    ):
        with refused(InputError, "curves.json", "grpo of seed 0", *named):
            learning_curves.refuse_others(as_read, other, problems, Path("curves.json"))


def test_a_file_of_other_runs_is_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "curves.json"
    file.write_text(json.dumps({"device": "?", "runs": recorded()}))
    before = file.read_text()
    monkeypatch.setattr(sys, "argv", ["learning_curves.py", "--tiny", "--json", str(file)])
    with refused(SystemExit):
        learning_curves.main()
    assert "name another file" in capsys.readouterr().err
    assert file.read_text() == before


def recorded() -> list[dict]:
    return json.loads(RECORDED.read_text(encoding="utf-8"))["runs"]


def test_recorded_runs_are_whole_and_their_intervals_are_those_of_their_accuracies() -> None:
    runs = recorded()
    assert len({(run["algorithm"], run["seed"]) for run in runs}) == len(runs)
    for algorithm in {run["algorithm"] for run in runs}:
        assert len({json.dumps(run["options"], sort_keys=True) for run in runs if run["algorithm"] == algorithm}) == 1
    for run in runs:
        assert [step["step"] for step in run["steps"]] == list(range(run["options"]["steps"]))
        assert all(0 <= step["reward_mean"] <= 1 and step["actors"] >= 1 for step in run["steps"])
        for when in ("start", "end"):
            one = run[when]
            expected = learning_curves.interval(round(one["accuracy"] * one["problems"]), one["problems"])
            assert (one["low"], one["high"]) == pytest.approx(expected)


@pytest.mark.parametrize("run", recorded(), ids=lambda run: f"{run['algorithm']}-{run['seed']}")
def test_recorded_runs_meet_the_aim(run: dict) -> None:
    assert learning_curves.verdict(run).endswith(": met")
