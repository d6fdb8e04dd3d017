"""What verl does to a batch before it dumps it: padding rows are no responses, and a balanced order is not that of dispatch.

The golden dumps were ordered, padded and written by verl's own functions (``make_golden_verl.py``).
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from importer_samples import GOLDEN, TOKENIZER, many_rollouts, write_verl_v0

from rlhfless.analysis import Assumptions, account, completed, run_setup
from rlhfless.analysis.framework_defaults import ORDERS
from rlhfless.latency import load_profile
from rlhfless.report.study import study
from rlhfless.report.where_time_went import waste_in_words
from rlhfless.simulate import SimulationConfig, simulate
from rlhfless.trace import ImportOptions, OpenedLog, import_log, open_log
from solver.model.cluster import Cluster

pytest.importorskip("tokenizers", reason="the tokenizers package is not installed: pip install 'rlhfless[logs]'")
OPTIONS = ImportOptions(tokenizer=TOKENIZER, max_response_tokens=100)
SETTING = SimulationConfig(Cluster(1, 8, 2, kind="l40s"), load_profile("l40s-qwen2.5-3b-tp2"))
STATIC = Assumptions(dispatch="static", calibrate=False)


def test_padding_rows_are_no_responses() -> None:
    log = import_log(GOLDEN / "verl-v1-padded", OPTIONS)
    assert log.rollouts is not None
    assert log.rollouts["response_tokens"].tolist() == many_rollouts()["response_tokens"].tolist()
    assert log.summary.prompts == 12
    assert any("32 rows" in note and "padding" in note for note in log.summary.notes)


def test_a_prompt_whose_name_begins_like_padding_stays(tmp_path: Path) -> None:
    record = {"input": "01", "output": "ab", "gts": None, "score": 0.0, "step": 1, "uid": "pad12_0_0"}
    (tmp_path / "1.jsonl").write_text(json.dumps(record) + "\n", encoding="utf-8")
    assert import_log(tmp_path, OPTIONS).summary.rows == 1


@pytest.mark.parametrize(
    ("log", "known"),
    [("verl-v0-balanced", False), ("verl-v0", True), ("verl-v1", True), ("verl-v1-padded", True), ("verl-v1-uuid", False)],
)
def test_the_order_of_dispatch_is_known_where_the_log_has_it(log: str, known: bool, tmp_path: Path) -> None:
    opened = import_log(GOLDEN / log, OPTIONS)
    assert opened.dispatch_order_known == known
    assert any(note.startswith("order:") for note in opened.summary.notes) != known
    assert open_log(opened.save(tmp_path / "trace")).dispatch_order_known == known


def test_one_response_a_prompt_or_scattered_ones_leave_the_order_unknown(tmp_path: Path) -> None:
    one, scattered = many_rollouts(12, 1), many_rollouts().sample(frac=1, random_state=0)
    for name, rows in (("one", one), ("scattered", scattered)):
        assert not import_log(write_verl_v0(tmp_path / name, rows), OPTIONS).dispatch_order_known


def test_random_ids_of_prompts_sort_the_log_and_the_report_ranges_over_orders() -> None:
    dumped = open_log(GOLDEN / "verl-v1-uuid", OPTIONS)
    assert dumped.summary is not None
    assert [note for note in dumped.summary.notes if note.startswith("order:")] == [
        "order: verl sorts prompts by random ids before it writes, so the log's order is not the order of dispatch"
    ]
    findings = study(dumped, SETTING, STATIC, 1)
    assert len(findings.accounts) == 1 + ORDERS
    assert "sorts prompts by random ids" in findings.times.setup.assumed[-1]
    assert any("does not record the order in which prompts were assigned" in sentence for sentence in waste_in_words(findings))


def test_the_order_of_a_single_prompt_with_a_random_id_is_known(tmp_path: Path) -> None:
    rows = (GOLDEN / "verl-v1-uuid" / "1.jsonl").read_text("utf-8").splitlines()[:2]
    (tmp_path / "1.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    assert import_log(tmp_path, OPTIONS).dispatch_order_known


def idle(log: OpenedLog) -> float:
    """Of equal chunks of the log's order, in its last step."""
    setup = run_setup("verl", dispatch="static")
    trace = simulate(log.trace.rollouts, SETTING, ["static"], steps=[2]).traces["static"]
    return account(completed(trace, setup, SETTING.cluster)).idle_share


def test_idle_of_a_balanced_dump_is_a_range_that_holds_the_truth(tmp_path: Path) -> None:
    truth = idle(open_log(write_verl_v0(tmp_path / "log", many_rollouts(48, 1)), OPTIONS))
    dumped = open_log(GOLDEN / "verl-v0-balanced", OPTIONS)
    assert idle(dumped) < truth
    found = study(dumped, SETTING, STATIC, 1)
    low, high = found.idle_shares
    assert low < truth <= high
    said = " ".join(waste_in_words(found))
    assert f"{low:.0%} to {high:.0%} of the GPU-seconds of generation alone" in said
    assert f"{found.account.idle_share:.1%}" in said
    assert "order and random orders" in found.times.setup.assumed[-1]


def test_only_a_log_without_the_order_of_dispatch_is_simulated_in_random_orders() -> None:
    unknown = run_setup("verl", dispatch="static", order_known=False)
    assert unknown.candidates == ("static", *(policy.name for policy in unknown.shuffled))
    assert len(unknown.shuffled) > 1
    assert run_setup("verl", order_known=True).shuffled == ()
