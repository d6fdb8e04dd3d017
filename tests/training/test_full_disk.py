"""A full disk while a checkpoint or a model is written: one sentence, and everything that was there before goes on.

The disk is full for files above 20 kB, which weights are: a limit that the system keeps, in a process of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from training_samples import config, same_weights

from rlhfless.trace import read_trace
from rlhfless.training.checkpoint import folder_of
from rlhfless.training.loop import train


def in_a_process_of_its_own(program: str) -> subprocess.CompletedProcess[str]:
    """What a program prints that may write no file above 20 kB from ``fill_up()`` on."""
    here = Path(__file__).parent
    begin = "import resource\ndef fill_up():\n    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))\n"
    path = os.pathsep.join([str(here), str(here.parents[1]), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-c", begin + textwrap.dedent(program)], capture_output=True, text=True, check=False, timeout=900,
        env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip


def test_the_step_does_not_count_and_the_run_goes_on_when_there_is_room(model: Path, tmp_path: Path) -> None:
    train(config(steps=3), tmp_path / "whole", model=model)
    train(config(steps=2), tmp_path / "run", model=model)
    saved = folder_of(tmp_path / "run" / "checkpoints", 2)
    files = {path: path.read_bytes() for path in saved.iterdir()}
    done = in_a_process_of_its_own(f"""
        from training_samples import config, variety
        from rlhfless.training.arithmetic import ArithmeticTask
        from rlhfless.training.config import TrainError
        from rlhfless.training.loop import train
        ArithmeticTask.reward = variety
        fill_up()
        try:
            train(config(steps=3), {str(tmp_path / "run")!r}, resume=True)
        except TrainError as error:
            print(error)
    """)
    assert done.returncode == 0, done.stderr
    assert "after-000003: could not be written (" in done.stdout
    assert "what was saved before it is there: make room, and resume the run" in done.stdout
    assert [path.name for path in saved.parent.iterdir()] == ["after-000002"], "half a checkpoint takes no room"
    assert {path: path.read_bytes() for path in saved.iterdir()} == files
    assert read_trace(tmp_path / "run").steps == [0, 1]
    train(config(steps=3), tmp_path / "run", resume=True)
    assert same_weights(tmp_path / "run", tmp_path / "whole")


@pytest.mark.parametrize(("module", "folder", "steps"), [("run", "warm", []), ("loop", "model", [0, 1])])
def test_a_model_that_finds_no_room_is_one_sentence_and_is_written_when_the_run_is_resumed(
    model: Path, tmp_path: Path, module: str, folder: str, steps: list[int]
) -> None:
    """The one that training begins with, and the one that it ends with."""
    out = tmp_path / "run"
    done = in_a_process_of_its_own(f"""
        from training_samples import config, variety
        from rlhfless.training import loop, run
        from rlhfless.training.arithmetic import ArithmeticTask
        from rlhfless.training.config import TrainError
        from rlhfless.training.model import save_model
        ArithmeticTask.reward = variety

        def without_room(*given):
            fill_up()
            save_model(*given)

        {module}.save_model = without_room
        try:
            loop.train(config(steps=2), {str(out)!r}, model={str(model)!r})
        except TrainError as error:
            print(error)
    """)
    assert done.returncode == 0, done.stderr
    assert f"{out / folder}: the model could not be written (" in done.stdout
    assert not list(out.glob(f"{folder}*")), "half of a model takes no room, and is not taken for one"
    if steps:
        assert read_trace(out).steps == steps
    train(config(steps=2), out, resume=True, model=model)
    train(config(steps=2), tmp_path / "whole", model=model)
    assert same_weights(out, tmp_path / "whole")
