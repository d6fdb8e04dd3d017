"""Text parsers under coverage-guided inputs (atheris): no input ends in anything but valid rollouts or one sentence."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from importer_samples import GOLDEN

FUZZER = Path(__file__).parent / "fuzz_text_parsers.py"
SEEDS = {
    "console-openrlhf": "openrlhf/console.log", "console-verl": "verl-console/console.log",
    "console-slime": "slime-console/console.log", "console-skyrl": "skyrl-console/console.log",
    "console-roll": "roll-console/console.log", "verl-scalars": "verl-scalars/experiment.jsonl", "verl": "verl-v1/1.jsonl",
    "nemo-rl": "nemo-rl/train_data_step1.jsonl", "table-csv": "table/log.csv", "table-jsonl": "table-jsonl/log.jsonl",
}  # fmt: skip


@pytest.mark.nightly
@pytest.mark.parametrize("name", SEEDS)
def test_no_guided_input_ends_in_anything_but_rollouts_or_one_sentence(name: str, tmp_path: Path) -> None:
    pytest.importorskip("atheris", reason="atheris is not installed; it has wheels for Linux only")
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    shutil.copy(GOLDEN / SEEDS[name], corpus)
    runs = 3_000 if name == "table-csv" else 10_000  # pandas is slow to refuse
    done = subprocess.run(
        [sys.executable, str(FUZZER), name, str(corpus), f"-runs={runs}", "-max_len=4096", "-seed=1", "-timeout=60"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "TMPDIR": str(tmp_path)},  # libFuzzer ends the process itself, so nothing is removed there
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"Done {runs} runs" in done.stderr
    assert len(list(corpus.iterdir())) > 1, "coverage grew, so inputs went beyond the golden log"
