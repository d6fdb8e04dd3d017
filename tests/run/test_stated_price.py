"""The price of a GPU-hour that a user states for an executed run: it counts for all of its GPU-seconds, wherever they cost."""

from __future__ import annotations

import ast
import json
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import run_rlhfless

import rlhfless as rl
from rlhfless.diagnosis import Stated
from rlhfless.trace import Trace, read_trace, step_metrics

REASONING = rl.example().parent / "reasoning-static"
BOTH = "price as stated, 3 USD per GPU-hour; the trace recorded 6.88"


def at(price: float | None, trace: Path | Trace = REASONING) -> rl.run.Run:
    return rl.load(trace, hardware=rl.Hardware(usd_per_gpu_hour=price), verbose=False)


def gpu_hours(run: rl.run.Run) -> float:
    return float(step_metrics(run.trace)["gpu_seconds"].sum() / 3600)


def test_a_stated_price_counts_for_what_was_executed_and_wins_over_the_recorded_one() -> None:
    run = at(3.0)
    said = run.diagnosis()
    assert said.numbers["usd"].value == pytest.approx(3.0 * gpu_hours(run))
    assert BOTH in str(said)
    assert run.assumed == (BOTH,)
    assert step_metrics(run.trace)["cost_usd"].sum() == pytest.approx(3.0 * gpu_hours(run))
    assert rl.load(REASONING, known=Stated(usd_per_gpu_hour=3.0), verbose=False).assumed == (BOTH,)


def test_without_a_stated_price_the_recorded_one_counts_and_what_is_unknown_stays_so() -> None:
    run = at(None)
    assert run.diagnosis().numbers["usd"].value == pytest.approx(6.88 * gpu_hours(run))
    assert run.assumed == ()
    unpriced = rl.load(rl.example().parent / "arithmetic-grpo", verbose=False).diagnosis()
    assert "usd" not in unpriced.numbers
    assert "no GPU has a price" in str(unpriced)
    free = at(0.0)
    assert "usd" not in free.diagnosis().numbers
    assert free.assumed == ("price as stated, none; the trace recorded 6.88",)


def test_plans_of_a_run_have_the_price_that_it_recorded() -> None:
    trace = read_trace(REASONING)
    spot = replace(trace.at_price(2.5), meta=trace.meta)
    assert at(None, spot).setting.cluster.usd_per_gpu_hour == 2.5
    other = rl.load(spot, profile="l40s-qwen2.5-3b-tp2", verbose=False)
    assert other.setting.cluster.usd_per_gpu_hour > 2.5, "the list price of GPUs of another kind"


@pytest.mark.parametrize("trace", ["reasoning-static", "arithmetic-grpo"])
def test_plans_sweeps_and_other_ways_cost_the_stated_price(trace: str) -> None:
    run = at(3.0, rl.example().parent / trace)
    tables = [run.plan().compare("static").table, run.what_ifs().means(), run.sweep(gpus=[16], steps=run.steps[-1:]).means()]
    for table in tables:
        assert (3600 * table["cost_usd"] / table["gpu_seconds"]).tolist() == pytest.approx([3.0] * len(table))
    assert BOTH in run.plan().compare("static").assumed or trace != "reasoning-static"
    assert run.explore().price.value == 3.0


def test_the_command_line_takes_it_for_text_numbers_page_and_notebook(tmp_path: Path) -> None:
    text = run_rlhfless(*f"report {REASONING} --usd-per-gpu-hour 3".split())
    assert f"Cost: 6.04 USD ({BOTH})" in text.output
    numbers = json.loads(run_rlhfless(*f"report {REASONING} --usd-per-gpu-hour 3 --format json".split()).output)["numbers"]
    assert numbers["usd"]["low"] == pytest.approx(6.04, abs=0.01)
    page, notebook = tmp_path / "page.html", tmp_path / "book.ipynb"
    run_rlhfless(*f"report {REASONING} --usd-per-gpu-hour 3 --steps 1 -o {page}".split())
    written = page.read_text("utf-8")
    assert f"6.04 USD ({BOTH})" in written
    assert f"P{BOTH[1:]}." in written, "in assumptions and method"
    run_rlhfless(*f"report {REASONING} --usd-per-gpu-hour 3 -o {notebook}".split())
    cells = ["".join(cell["source"]) for cell in json.loads(notebook.read_text("utf-8"))["cells"]]
    filled = next(cell for cell in cells if "Parameters" in cell and "USD_PER_GPU_HOUR" in cell)
    values = {node.targets[0].id: node.value for node in ast.parse(filled).body if isinstance(node, ast.Assign)}
    assert ast.literal_eval(values["USD_PER_GPU_HOUR"]) == 3.0
