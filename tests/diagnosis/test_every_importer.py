"""One log of every importer is diagnosed: a format that is added needs a log here.

The logs are small. Each is written by the writers of ``importer_samples``, or is a golden one, and is read without options but
for a tokenizer, where a format logs texts and no lengths.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
from error_messages import refused
from importer_samples import GOLDEN, ROLLOUT_WRITERS, SCALAR_WRITERS, TOKENIZER, sample_rollouts

from rlhfless.diagnosis import Diagnosis, diagnose
from rlhfless.trace import ImportOptions, TraceError, import_log
from rlhfless.trace.importers import FORMATS, recognise
from rlhfless.trace.importers.console.grammars import GRAMMARS

Maker = Callable[[Path], Path]


def written(name: str) -> Maker:
    """Return what writes a log of the samples into a folder."""
    writer = ROLLOUT_WRITERS[name][1] if name in ROLLOUT_WRITERS else SCALAR_WRITERS[name][1]
    return lambda folder: writer(folder, sample_rollouts())


def golden(*parts: str) -> Maker:
    return lambda folder: GOLDEN.joinpath(*parts)


def imported(folder: Path) -> Path:
    """Scalars, as ``rlhfless convert`` writes them."""
    return import_log(GOLDEN / "verl-console" / "console.log").save(folder / "out")


def tracked(folder: Path) -> Path:
    """A row of wandb's history, as ``run.scan_history()`` yields them."""
    row = {"_step": 1, "_runtime": 95.0, "timing_s/step": 90.0, "timing_s/gen": 60.0, "timing_s/update_actor": 25.0}
    (folder / "history.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    return folder / "history.jsonl"


def configured(folder: Path) -> Path:
    """A model's configuration, which is a log of nothing but memory."""
    path = folder / "config.json"
    shape = {"num_hidden_layers": 36, "num_attention_heads": 16, "num_key_value_heads": 2, "hidden_size": 2048}
    path.write_text(json.dumps({**shape, "intermediate_size": 11008, "vocab_size": 151936}))
    return path


LOGS: dict[str, Maker] = {
    **{name: written(name) for name in ("nemo-rl", "areal", "slime", "prime-rl", "table", "trl")},
    **{name: written(name) for name in ("verl-scalars", "trl-scalars", "tensorboard", "wandb")},
    "verl": written("verl-v1"), "steps": written("step-table"), "console": golden("verl-console", "console.log"),
    "engine": golden("engine-vllm", "engine.log"), "scalars": imported, "tracker": tracked,
    "model": configured,
}  # fmt: skip
"""Format → what makes a log of it in a folder."""

CONSOLES = {
    one.framework: golden("openrlhf" if one.framework == "openrlhf" else f"{one.framework}-console", "console.log")
    for one in GRAMMARS
}
"""Framework → its console text."""

TEXTS_ONLY = ("trl", "verl")
"""Formats with texts and no lengths: their tokenizer has to be named."""


def diagnosed(path: Path, name: str) -> Diagnosis:
    if name == "slime":
        pytest.importorskip("torch")
    if name in TEXTS_ONLY:
        pytest.importorskip("tokenizers", reason="the tokenizers package is not installed: pip install 'rlhfless[logs]'")
        return diagnose(import_log(path, ImportOptions(tokenizer=TOKENIZER)))
    return diagnose(path)


def no_number(text: str) -> NoReturn:
    raise AssertionError(f"{text} is no number of JSON")


def check(found: Diagnosis) -> None:
    """Check that a diagnosis says something, on the first screen and in its JSON."""
    plain: dict[str, Any] = json.loads(found.to_json(), parse_constant=no_number)
    assert plain["schema"] == "rlhfless-diagnosis"
    assert plain == json.loads(json.dumps(found.to_dict(), allow_nan=False))
    for number in plain["numbers"].values():
        assert number["low"] <= number["high"]
        assert number["evidence"]
        assert number["how"]
    assert plain["findings"] or plain["cannot_say"], "it says what limits the run, or what the log lacks"
    assert set(plain["verdict"]) <= {one["kind"] for one in plain["findings"]}
    heading, sentence = next(found.lines())
    assert heading in ("What limits this run", "What this file says")
    assert sentence.endswith(".")
    assert "nan" not in str(found).lower().split()


def test_every_format_has_a_log_here() -> None:
    assert set(LOGS) == {one.name for one in FORMATS}


@pytest.mark.parametrize("name", LOGS)
def test_one_log_of_every_importer_is_diagnosed(name: str, tmp_path: Path) -> None:
    path = LOGS[name](tmp_path)
    assert recognise(path).name == name
    said = diagnosed(path, name)
    check(said)
    assert (said.heading == "What this file says") == (name == "model"), "a configuration is no run"


@pytest.mark.parametrize("framework", CONSOLES)
def test_console_text_of_every_framework_is_diagnosed(framework: str, tmp_path: Path) -> None:
    found = diagnosed(CONSOLES[framework](tmp_path), "console")
    assert found.framework == framework
    check(found)


@pytest.mark.parametrize("name", TEXTS_ONLY)
def test_a_log_of_texts_alone_asks_for_its_tokenizer(name: str, tmp_path: Path) -> None:
    path = LOGS[name](tmp_path)
    with refused(TraceError, str(path), "texts but no token counts", "--tokenizer"):
        diagnose(path)


def test_entries_that_generated_nothing_are_said_on_the_first_screen(tmp_path: Path) -> None:
    """Else the seconds of a row are taken for those of an optimizer step."""
    entries = [
        {"step": step, "step_time": 10.0, "num_tokens": 1000 * (step + step % 2), "completions/mean_length": 300.0}
        for step in (1, 2, 3, 4)
    ]
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": entries}), encoding="utf-8")
    assert any("2 generations" in text for heading, text in diagnose(tmp_path).lines() if heading == "Read")
