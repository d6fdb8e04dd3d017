"""What a training program keeps outside its folder goes with it, even where it is killed: weights on their way, checkpoints."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from torch_wall_samples import until

SCRIPT = """
import sys, time
sys.path.insert(0, {root!r})
from rlhfless.engine.sampling import Sampling
from rlhfless.training.config import TrainConfig
from rlhfless.training.engines import VllmEngines
from rlhfless.training.loop import Trainer
from rlhfless.training.model import tiny_qwen2
from rlhfless.training.tokenizer import CharTokenizer

model = tiny_qwen2(CharTokenizer())
weights = VllmEngines(1, 16, Sampling(), keeps_last=True)
trainer = Trainer(TrainConfig(steps=1), model=(model, CharTokenizer()), progress=False)
print(weights.of_step(model, 0).weights, trainer.kept.checkpoints, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("way", [signal.SIGTERM, signal.SIGKILL])
def test_folders_of_a_killed_program_are_gone(way: signal.Signals) -> None:
    script = SCRIPT.format(root=str(Path(__file__).parents[2]))
    program = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert program.stdout is not None
    weights, checkpoints = (Path(path) for path in program.stdout.readline().split())
    assert weights.is_dir()
    assert [*checkpoints.iterdir()]
    program.send_signal(way)
    assert program.wait() == -way
    until(lambda: not weights.parent.exists(), "the weights are gone")
    until(lambda: not checkpoints.exists(), "the checkpoints are gone")
