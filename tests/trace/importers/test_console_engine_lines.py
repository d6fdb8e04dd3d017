"""Engine lines beside a framework's own: one console text gives the steps and the engine's statistics."""

from __future__ import annotations

from pathlib import Path

from rlhfless.diagnosis import diagnose
from rlhfless.trace import import_log

STEP = "(TaskRunner pid=1) step:{step} - timing_s/gen:80.000 - timing_s/step:100.000 - response_length/mean:100.000"
ENGINE = (
    "(Worker pid={pid}) INFO 07-28 06:{minute:02d}:{second:02d} [loggers.py:118] Engine 000: "
    "Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: {rate:.1f} tokens/s, Running: {running} reqs, "
    "Waiting: 0 reqs, GPU KV cache usage: 50.0%"
)


def test_both_are_read_and_replicas_are_told_apart_by_their_process(tmp_path: Path) -> None:
    lines = []
    for step in range(2):
        for at, running in enumerate((64, 64, 32, 8, 4)):
            for pid in (7, 8):
                second = 10 * at
                lines.append(ENGINE.format(pid=pid, minute=2 * step, second=second, rate=50.0 * running, running=running))
        lines.append(STEP.format(step=step))
    log = tmp_path / "train.log"
    log.write_text("\n".join(lines) + "\n")
    read = import_log(log)
    assert read.framework == "verl"
    assert read.scalars["generate_s"].tolist() == [80.0, 80.0]
    assert len(read.engine) == 20
    assert read.engine["engine"].nunique() == 2
    said = diagnose(read)
    assert said.numbers["engine_peak_requests"].value == 64
    assert said.numbers["generate_s"].value == 80.0
