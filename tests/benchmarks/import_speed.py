"""What an import takes: seconds and the most memory of its process, by format and size of the log.

    python tests/benchmarks/import_speed.py [--rows 1000000] [--gigabytes 5] [--only jsonl,verl] [--json FILE] [--tiny]

Lengths-only tables (csv, jsonl, parquet) of as many responses, 256 prompts with 8 samples a step; and a verl log whose
responses are texts, tokenised again with the tokenizer of the golden TRL log (one symbol, one token); and ``texts``, JSON lines
of so many gigabytes whose rows have a length and 10 kB of text. Each import runs in a process of its own, whose memory
includes Python, pandas and pyarrow; writing the trace is part of it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

ROOT = Path(__file__).parents[2]
TOKENIZER = ROOT / "tests" / "trace" / "importers" / "golden" / "trl"
PROMPTS, SAMPLES, EPOCH_STEPS = 256, 8, 4
TEXT_TOKENS = 2048  # mean of a verl response's text
FORMATS = ("csv", "jsonl", "parquet", "verl", "texts")
TEXT_BYTES = 10_000  # of a row of ``texts``
CHILD = """
import json, re, sys, time
began = time.perf_counter()
from rlhfless.trace import ImportOptions, import_log
loaded = time.perf_counter()
log = import_log(sys.argv[1], ImportOptions(tokenizer=sys.argv[3]))
read = time.perf_counter()
log.save(sys.argv[2])
took = {"load_s": loaded - began, "read_s": read - loaded, "save_s": time.perf_counter() - read}
peak_kb = int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])  # ru_maxrss begins with the parent's
print(json.dumps({**took, "rows": log.summary.rows, "peak_mb": peak_kb / 1024}))
"""


def lengths(rows: int) -> pd.DataFrame:
    """As many responses with lognormal lengths; prompts come again every four steps."""
    chance = np.random.default_rng(0)
    at = np.arange(rows)
    step = at // (PROMPTS * SAMPLES)
    return pd.DataFrame(
        {
            "step": step,
            "prompt_id": "p" + pd.Series(at // SAMPLES % PROMPTS + PROMPTS * (step % EPOCH_STEPS)).astype(str),
            "sample": at % SAMPLES,
            "prompt_tokens": 100,
            "response_tokens": np.minimum(chance.lognormal(6.5, 0.8, rows).astype(int) + 1, 8192),
            "finish_reason": "stop",
            "reward": chance.random(rows).round(3),
        }
    )


def write(kind: str, rows: int, folder: Path) -> Path:
    """A log of a format."""
    if kind == "verl":
        return write_verl(rows, folder)
    if kind == "texts":
        return write_texts(rows, folder)
    frame, path = lengths(rows), folder / f"log.{kind}"
    if kind == "csv":
        frame.to_csv(path, index=False)
    elif kind == "jsonl":
        frame.to_json(path, orient="records", lines=True)
    else:
        frame.to_parquet(path, row_group_size=65_536)
    return path


def write_verl(rows: int, folder: Path) -> Path:
    """One file a step."""
    (folder / "verl").mkdir()
    frame = lengths(rows)
    for step, part in frame.groupby("step"):
        with open(folder / "verl" / f"{step}.jsonl", "w") as file:
            for row in part.itertuples():
                output = "abcd(1+2)=" * (row.response_tokens * TEXT_TOKENS // 9000)
                record = {"input": str(row.prompt_id)[1:], "output": output, "gts": "1", "score": row.reward, "step": step}
                file.write(json.dumps({**record, "uid": f"{row.prompt_id}_{row.sample}_0"}) + "\n")
    return folder / "verl"


def write_texts(rows: int, folder: Path) -> Path:
    """JSON lines with a long text in every row, written row by row."""
    text, path = "lorem ipsum " * (TEXT_BYTES // 12), folder / "log.jsonl"
    with open(path, "w") as file:
        for row in lengths(rows).to_dict("records"):
            file.write(json.dumps({**row, "completion": text}) + "\n")
    return path


def measure(kind: str, rows: int) -> dict[str, float | str]:
    """One import in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = write(kind, rows, Path(folder))
        size = sum(file.stat().st_size for file in ([path] if path.is_file() else path.iterdir())) / 1e6
        command = [sys.executable, "-c", CHILD, str(path), str(Path(folder) / "out"), str(TOKENIZER)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return {"format": kind, "log_mb": size, **json.loads(done.stdout)}


def main() -> None:
    """Measure and print the table."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rows", type=int, default=1_000_000, help="of the tables")
    options.add_argument("--text-rows", type=int, default=20_000, help="of the verl log")
    options.add_argument("--gigabytes", type=float, default=5.0, help="of the texts")
    options.add_argument("--only", default=",".join(FORMATS))
    options.add_argument("--json", type=Path)
    options.add_argument("--tiny", action="store_true", help="smallest size, to see that it runs")
    given = options.parse_args()
    long_rows = int(given.gigabytes * 1e9 / TEXT_BYTES)
    sizes = {"verl": 100, "texts": 100} if given.tiny else {"verl": given.text_rows, "texts": long_rows}
    found = [measure(kind, sizes.get(kind, 400 if given.tiny else given.rows)) for kind in given.only.split(",")]
    table = pd.DataFrame(found)
    seconds = table["read_s"] + table["save_s"]
    table["rows_per_s"], table["mb_per_s"] = table["rows"] / seconds, table["log_mb"] / seconds
    print(table.round(1).to_string(index=False))
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
