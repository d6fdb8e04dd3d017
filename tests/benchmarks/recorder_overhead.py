"""What a recorded response costs the loop that it is recorded in.

    python tests/benchmarks/recorder_overhead.py [--responses 200000] [--json FILE]

A loop that does nothing else appends responses, with a span around every step of 512; flushes happen as they do in any loop.
The mean is over all of the loop's time, flushes included; the worst response is one that had to wait for a flush. Closing turns
the rows into tables, once, when training is over. With texts every row has a prompt of 192 and a response of 800 characters.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from rlhfless.trace import Recorder, read_trace

LIMIT_MS = 1.0


def measured(responses: int, texts: bool, per_step: int = 512) -> dict[str, Any]:
    """One loop, into a temporary folder."""
    extra = {"prompt": "What is it? " * 16, "response": "So it is. " * 80} if texts else {}
    took = np.zeros(responses)
    with tempfile.TemporaryDirectory() as folder:
        recorder = Recorder(Path(folder) / "trace")
        began = time.perf_counter()
        for step in range(0, responses, per_step):
            with recorder.span("decode", step=step):
                pass
            for i in range(step, min(step + per_step, responses)):
                before = time.perf_counter()
                recorder.append(
                    step=step, prompt_id=i // 8, sample=i % 8, prompt_tokens=120, response_tokens=300, finish_reason="stop",
                    reward=0.5, weights_version=step, **extra,
                )  # fmt: skip
                took[i] = time.perf_counter() - before
        looped_s = time.perf_counter() - began
        recorder.close()
        closed_s = time.perf_counter() - began - looped_s
        assert recorder.lost == 0
        assert len(read_trace(Path(folder) / "trace").rollouts) == responses
    return {
        "responses": responses, "texts": texts, "mean_ms": 1e3 * looped_s / responses,
        "p99_ms": 1e3 * float(np.quantile(took, 0.99)), "worst_ms": 1e3 * float(took.max()),
        "close_ms_per_response": 1e3 * closed_s / responses,
    }  # fmt: skip


def main() -> None:
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--responses", type=int, default=200_000, help="of the longest loop")
    parser.add_argument("--json", type=Path, help="write the numbers here")
    options = parser.parse_args()
    counts = sorted({max(1, options.responses // 10), options.responses})
    rows = [measured(count, texts) for texts in (False, True) for count in counts]
    print("| responses | texts | mean | 99 % | worst | closing, per response |\n| --- | --- | --- | --- | --- | --- |")
    for row in rows:
        times = " | ".join(f"{row[name]:.3f} ms" for name in ("mean_ms", "p99_ms", "worst_ms", "close_ms_per_response"))
        print(f"| {row['responses']:,} | {'with' if row['texts'] else 'without'} | {times} |")
    most = max(row["mean_ms"] + row["close_ms_per_response"] for row in rows)
    print(f"\nat most {most:.3f} ms per response in all, closing included; the aim is {LIMIT_MS:g} ms")
    if options.json:
        options.json.write_text(json.dumps({"rows": rows, "most_ms": most, "limit_ms": LIMIT_MS}, indent=2) + "\n")


if __name__ == "__main__":
    main()
