"""A log that is larger than the memory: texts pass through and only their counts stay."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from importer_samples import TOKENIZER

pytest.importorskip("tokenizers", reason="the tokenizers package is not installed: pip install 'rlhfless[logs]'")

ROWS = 600
CHILD = """
import resource, sys
from rlhfless.trace import ImportOptions, import_log
import_log(sys.argv[1], ImportOptions(tokenizer=sys.argv[3]))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
rows = import_log(sys.argv[2], ImportOptions(tokenizer=sys.argv[3])).summary.rows
print(rows, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


def write(path: Path, rows: int, characters: int) -> int:
    """A verl dump of long texts; its size in bytes."""
    path.parent.mkdir()
    with open(path, "w") as file:
        for at in range(rows):
            record = {
                "input": f"{at % 8}+1=",
                "output": f"{at:08d}" + "ab" * 5000,
                "gts": "x" * characters,
                "score": 1.0,
                "step": 1,
            }
            file.write(json.dumps({**record, "uid": f"p_{at}_0"}) + "\n")
    return path.stat().st_size


@pytest.mark.full
def test_memory_does_not_grow_with_the_texts(tmp_path: Path) -> None:
    write(tmp_path / "small" / "1.jsonl", 120, 200_000)
    size = write(tmp_path / "large" / "1.jsonl", ROWS, 200_000)
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path / "small"), str(tmp_path / "large"), str(TOKENIZER)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    rows, grown = map(int, done.stdout.split())
    assert rows == ROWS
    assert grown < size / 2.5, f"{grown / 1e6:.0f} MB more for a log of {size / 1e6:.0f} MB"
