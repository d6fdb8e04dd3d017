"""Ten logs that people brought to public issues, retyped: taken in as they are, with the numbers by hand, without the traps.

Each is read with no option but what its person knew: GPUs, a price, a model.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from trace_samples import PUBLIC_DATA

from rlhfless.diagnosis import Diagnosis, Stated, diagnose
from rlhfless.trace import ImportOptions, import_log

CASES = PUBLIC_DATA / "cases"
pytestmark = pytest.mark.skipif(not CASES.is_dir(), reason="the public cases are not beside the project (shared/data/cases)")


def case(name: str, stated: Stated | None = None) -> Diagnosis:
    """Diagnose a case's file."""
    (path,) = CASES.glob(name)
    return diagnose(import_log(Path(path), ImportOptions()), stated)


def value(said: Diagnosis, key: str) -> float:
    """Return a number that has to be there."""
    return said.numbers[key].value


def test_verl_console_lines() -> None:
    said = case("01_*/console.log", Stated(gpus=4))
    assert value(said, "responses_per_gpu") == pytest.approx(1280, rel=1e-4)
    assert value(said, "response_tokens_per_step") == pytest.approx(1_663_785, rel=1e-3)
    assert value(said, "tokens_per_s") == pytest.approx(22_478, rel=1e-3)
    assert value(said, "tokens_per_gpu_s") == pytest.approx(5_619, rel=1e-3)
    assert value(said, "mean_over_longest") == pytest.approx(0.317, abs=5e-4)
    assert value(said, "cut_share") == pytest.approx(0.004)
    share = said.step.set_index("phase")["share"]
    assert share[[name for name in share.index if "gen" in name]].sum() == pytest.approx(0.767, abs=5e-4)
    assert "101" not in str(said), "an efficiency above 100 % is not printed"
    assert any("mfu" in note for note in said.notes), "it is named and not used"


def test_cut_by_the_context() -> None:
    said = case("03_*/responses.csv", Stated(max_response_tokens=4096))
    assert value(said, "cut_responses") == 21
    assert value(said, "cut_share") == pytest.approx(0.328, abs=5e-4)
    assert said.verdict[0].kind == "limit"
    assert "lower bounds" in said.verdict[0].sentence


def test_slimes_two_records_of_one_step() -> None:
    said = case("04_*/console.log")
    assert value(said, "responses_per_step") == 256
    assert value(said, "response_tokens_per_step") == pytest.approx(710_071)
    assert value(said, "gpus_generate") == pytest.approx(8.0, abs=0.01)
    assert value(said, "ms_per_token") == pytest.approx(90.6, abs=0.05)
    assert value(said, "mean_over_longest") == pytest.approx(0.677, abs=5e-4)
    assert value(said, "cut_share") == pytest.approx(119 / 256)
    assert value(said, "groups_without_signal") == 26
    kinds = [one.kind for one in said.findings]
    assert kinds.index("engine") < kinds.index("tail"), "a schedule cannot mend the engine"
    assert "limit" in kinds


@pytest.mark.parametrize(("name", "hours", "gpu_hours"), [("run_8xA100.log", 78.12, 625.0), ("run_8xH100.log", 8.92, 71.3)])
def test_trls_progress_text(name: str, hours: float, gpu_hours: float) -> None:
    said = case(f"05_*/{name}", Stated(gpus=8, gpus_generate=1))
    assert value(said, "run_hours") == pytest.approx(hours, rel=2e-3)
    assert value(said, "gpu_hours") == pytest.approx(gpu_hours, rel=2e-3)
    assert all(one.kind in ("cannot say", "limit", "groups") for one in said.findings), "no phase is known"
    assert said.cannot_say


def test_prime_rl_orchestrator() -> None:
    said = case("06_*/orchestrator.log")
    assert value(said, "speedup_over_synchronous") == pytest.approx(1.42, abs=0.005)
    assert "2.8" not in str(said.verdict), "the last step drains the queue"
    assert "response_tokens_mean" not in said.numbers, "Seq. Length is a prompt with its response"


def test_nemo_rl_exposed_generation() -> None:
    said = case("07_*/console.log")
    assert value(said, "hidden_s") == pytest.approx(34.03, abs=0.005)
    assert value(said, "generation_rate_to_hide") == pytest.approx(1.96, abs=0.005)
    assert said.verdict[0].kind == "waiting"
    assert "generation_s" not in said.numbers, "exposed generation is not the time of generation"


def test_a_wait_of_zero() -> None:
    said = case("08_*/steps.csv")
    runs = {one.run: one for one in said.runs}
    assert set(runs) == {"gpu64", "gpu32", "small"}
    assert value(runs["gpu64"], "gpu_hours_per_step") == pytest.approx(54.3, abs=0.05)
    assert value(runs["small"], "generation_rate_to_hide") == pytest.approx(15.4, abs=0.1)
    assert value(runs["small"], "wait_share") == pytest.approx(0.935, abs=5e-4)
    assert all(one.kind != "tail" for one in runs["gpu64"].findings), "a planner of generation has nothing to gain here"


def test_the_last_percent_is_two_thirds() -> None:
    said = case("14_*/responses.csv", Stated(gpus_generate=8))
    assert value(said, "tail_s") == pytest.approx(80.0, abs=0.1)
    assert value(said, "tail_responses") == 12
    assert "80 of 120 s" in said.verdict[0].sentence
    levers = {lever.kind: lever for lever in said.levers}
    assert levers["partial rollout"].at_most == pytest.approx(2 / 3, abs=1e-3)
    assert levers["release"].at_most == pytest.approx(0.583, abs=1e-3)
    assert "incomplete groups" in levers["partial rollout"].price


def test_trls_repeated_generations() -> None:
    said = case("15_*/trainer_state.json")
    assert value(said, "generations") == 3
    assert value(said, "generation_total_s") == pytest.approx(900.0)
    assert any("num_tokens" in note for note in said.read)


def test_vllms_engine_lines() -> None:
    said = case("16_*/engine.log")
    assert value(said, "engine_tokens") == pytest.approx(208_832, rel=1e-3)
    full = said.numbers["engine_full_batch_ms"]
    assert full.low <= 121.6 + 0.05 <= full.high + 0.1, "at 512 running"
    assert value(said, "engine_smallest_batch_ms") == pytest.approx(31.3, abs=0.06), "at 3 running"
    assert value(said, "engine_base_ms") == pytest.approx(33.4, abs=0.5), "the flat part, as at 8 running"
    assert (said.numbers["engine_memory_bound_s"].low, said.numbers["engine_memory_bound_s"].high) == (20, 30)
    assert value(said, "engine_tail_s") == 60
    assert said.verdict[0].kind == "tail"
    assert "60 of 110 s" in said.verdict[0].sentence
    assert said.cannot_say == (), "of lines of an engine alone, nobody asks for the lengths of responses"
