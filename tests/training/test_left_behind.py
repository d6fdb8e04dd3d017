"""What a training program keeps outside its folder goes with it, even where it is killed: weights on their way, checkpoints."""

from __future__ import annotations

import multiprocessing
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from torch_wall_samples import until
from training_samples import started

from rlhfless.engine.common.sampling import Sampling
from rlhfless.engine.tokenizers.char_tokenizer import CharTokenizer
from rlhfless.training.config import TrainConfig
from rlhfless.training.engines import VllmEngines
from rlhfless.training.loop import Trainer
from rlhfless.training.models.tiny_model import tiny_qwen2
from rlhfless.training.weight_sync import FolderSync


def hold(connection: Any) -> None:
    """Keeps weights for vLLM, and checkpoints of a run that has no folder."""
    model = tiny_qwen2(CharTokenizer())
    weights = VllmEngines(1, 16, Sampling(), "float32", FolderSync(keeps_last=True))
    trainer = Trainer(TrainConfig(preset="demo", steps=1), model=(model, CharTokenizer()), progress=False)
    connection.send((weights.of_step(model, 0).weights, str(trainer.state.checkpoints)))
    time.sleep(3600)


@pytest.mark.parametrize("way", [pytest.param(signal.SIGTERM, marks=pytest.mark.full), signal.SIGKILL])
def test_folders_of_a_killed_program_are_gone(way: signal.Signals) -> None:
    heard, theirs = multiprocessing.Pipe(duplex=False)
    program = started(hold, theirs)
    weights, checkpoints = (Path(path) for path in heard.recv())
    assert weights.is_dir()
    assert [*checkpoints.iterdir()]
    (program.terminate if way == signal.SIGTERM else program.kill)()
    program.join()
    assert program.exitcode == -way
    until(lambda: not weights.parent.exists(), "the weights are gone")
    until(lambda: not checkpoints.exists(), "the checkpoints are gone")
