"""Runs of the grid: kept over a stop, computed once, shared by figures, and computed again where an input differs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from error_messages import refused

from rlhfless.errors import InputError
from rlhfless.paper import Runs, Sources
from rlhfless.paper import runs as module
from rlhfless.paper.lengths import GSM8K
from rlhfless.paper.machine import QWEN_3B_L40S
from rlhfless.paper.runs import Outcome, compare, tabulated, totals
from rlhfless.paper.workloads import modelled
from rlhfless.trace import Trace

HISTORY = modelled(GSM8K, 1, responses=16, epochs=3)


def runs_in(folder: Path) -> Runs:
    return Runs(Sources(None), folder)


def outcome(runs: Runs, *policies: str, **given: object) -> Outcome:
    return compare(runs, HISTORY, QWEN_3B_L40S, "PPO", ["static", *policies], **given)  # type: ignore[arg-type]


def test_a_stop_loses_the_part_that_was_running_only(tmp_path: Path) -> None:
    computed, lines = list[int](), list[str]()

    def all_parts(stops_at: int) -> list[pd.DataFrame]:
        def table(number: int) -> pd.DataFrame:
            if number == stops_at:
                raise KeyboardInterrupt
            computed.append(number)
            return pd.DataFrame({"name": ["", "None"], "value": [0.1 + number, float("nan")], "text": ["a", None]})

        runs = Runs(Sources(None), tmp_path, lines.append)
        return [
            runs.kept(f"part {number}", number, lambda number=number: table(number), part=True)  # type: ignore[misc]
            for number in range(3)
        ]

    with pytest.raises(KeyboardInterrupt):
        all_parts(stops_at=2)
    found = all_parts(stops_at=-1)
    assert computed == [0, 1, 2]
    assert [line.split(":")[0].strip() for line in lines] == ["part 0", "part 1", "part 2"]
    assert [frame["value"].iloc[0] for frame in found] == [0.1, 1.1, 2.1]
    assert found[0]["name"].tolist() == ["", "None"]
    assert found[0].isna().to_numpy().tolist() == [[False, False, False], [False, True, True]]


def test_tables_of_other_inputs_are_others(tmp_path: Path) -> None:
    for inputs in (1, 2, "1"):
        runs_in(tmp_path).kept("part", inputs, lambda: pd.DataFrame({"a": [1]}))
    assert len(list(tmp_path.iterdir())) == 3


def test_tables_of_another_version_are_removed_and_those_of_other_settings_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def keep(code: str, *inputs: int) -> set[Path]:
        monkeypatch.setattr(module, "_code", lambda: code)
        runs_in(tmp_path).prune()
        for value in inputs:
            runs_in(tmp_path).keep("bound GSM8K", value, pd.DataFrame({"a": [value]}))
        return set(tmp_path.iterdir())

    assert runs_in(tmp_path / "none").prune() is None
    others = {tmp_path / "rollouts.parquet", tmp_path / "notes-0123456789abcdef.csv"}
    for file in others:
        file.write_bytes(b"")
    first = keep("a" * 12, 1, 2)
    assert len(first - others) == 2
    both = keep("a" * 12, 3)
    assert first < both
    assert runs_in(tmp_path).find("bound GSM8K", 1) is not None
    last = keep("b" * 12, 1)
    assert not (last - others) & both
    assert len(last - others) == 1
    assert others < last, "files that are no kept tables stay"


def test_a_broken_file_is_computed_again_and_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    for value in (1, 2):
        assert runs_in(tmp_path).kept("part", 1, lambda value=value: pd.DataFrame({"a": [value]}))["a"].tolist() == [value]
        for file in tmp_path.iterdir():
            file.write_bytes(b"no parquet")
    (file,) = tmp_path.iterdir()
    with refused(InputError, str(file / "runs"), "can be written"):
        runs_in(file / "runs").kept("part", 1, lambda: pd.DataFrame({"a": [1]}))


def test_a_run_is_simulated_once_and_only_policies_that_are_missing_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = outcome(runs_in(tmp_path), "random")
    asked: list[list[str]] = []
    simulate = module.simulate

    def counting(rollouts: object, setting: object, policies: list, *rest: object) -> object:
        asked.append([policy.name for policy in policies])
        return simulate(rollouts, setting, policies, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "simulate", counting)
    again = outcome(runs_in(tmp_path), "random")
    pd.testing.assert_frame_equal(totals(again), totals(first), check_exact=True)
    assert asked == []
    more = outcome(runs_in(tmp_path), "rlhfless", "random")
    assert asked == [["rlhfless"]]
    assert more.steps["policy"].tolist() == ["static", "rlhfless", "random"] * 2, "steps in order, and policies as asked for"
    outcome(runs_in(tmp_path), "random", seed=1)
    compare(runs_in(tmp_path), HISTORY, replace(QWEN_3B_L40S, nodes=1), "PPO", ["static"])
    assert asked[1:] == [["static", "random"], ["static"]], "another seed and another machine are other runs"


def test_bounds_whose_file_is_gone_are_computed_again(tmp_path: Path) -> None:
    first = outcome(runs_in(tmp_path), "random")
    gone = list(tmp_path.glob("bound*"))
    assert gone
    for file in gone:
        file.unlink()
    pd.testing.assert_frame_equal(totals(outcome(runs_in(tmp_path), "random")), totals(first), check_exact=True)
    assert list(tmp_path.glob("bound*")) == gone


def test_algorithms_share_runs_and_differ_in_what_follows_generation(tmp_path: Path) -> None:
    ppo = outcome(runs_in(tmp_path))
    grpo = compare(runs_in(tmp_path), HISTORY, QWEN_3B_L40S, "GRPO", ["static"])
    assert (ppo.steps["generation_s"] == grpo.steps["generation_s"]).all()
    assert (ppo.steps["step_s"] > grpo.steps["step_s"]).all()


def test_a_table_of_outcomes_has_their_names_first_and_planning_beside_it(tmp_path: Path) -> None:
    runs = runs_in(tmp_path)
    outcomes = [({"algorithm": algorithm, "seed": 0}, outcome(runs, "random")) for algorithm in ("PPO", "GRPO")]
    table, planning = tabulated(outcomes)
    assert table.columns[:4].tolist() == ["algorithm", "seed", "scope", "policy"]
    assert table["policy"].tolist() == ["static", "random", "bound"] * 2 * 2
    assert planning.columns.tolist() == ["algorithm", "seed", "policy", "step", "planning_s"]
    assert len(planning) == 2 * 2 * 2, "two policies on two steps, under two names"
    short, _ = tabulated(outcomes, lambda of: of.steps[["actors"]].head(1))
    assert short.to_numpy().tolist() == [["PPO", 0, 3], ["GRPO", 0, 3]]


def test_facts_of_a_trace_are_kept_like_the_run(tmp_path: Path) -> None:
    read: list[str] = []

    def tokens(trace: Trace) -> pd.DataFrame:
        read.append("trace")
        return pd.DataFrame({"tokens": [int(trace.rollouts["response_tokens"].sum())]})

    expected = int(HISTORY.rollouts[HISTORY.rollouts["step"] > 0]["response_tokens"].sum())
    for _ in range(2):
        assert outcome(runs_in(tmp_path)).of_trace("static", tokens)["tokens"].tolist() == [expected]
    assert read == ["trace"]
    outcome(runs_in(tmp_path / "other"))
    assert outcome(runs_in(tmp_path / "other")).of_trace("static", tokens)["tokens"].tolist() == [expected]
    assert read == ["trace", "trace"], "a run whose trace was not read is simulated for it"
