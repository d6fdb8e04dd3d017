"""Rollouts written as a framework logs them come back as they were, whatever they are."""

from __future__ import annotations

import gzip
import shutil
import tempfile
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from importer_samples import LIMIT, ROLLOUT_WRITERS, SCALAR_WRITERS, TOKENIZER, sample_rollouts

from rlhfless.trace import ImportOptions, import_log

pytest.importorskip("tokenizers", reason="the tokenizers package is not installed: pip install 'rlhfless[logs]'")
pytest.importorskip("torch")


@st.composite
def rollouts(draw: st.DrawFn) -> pd.DataFrame:
    """Steps in order, some prompts in each, ragged groups, any lengths and rewards."""
    rows = []
    for step in range(1, draw(st.integers(1, 3)) + 1):
        prompts = draw(st.lists(st.integers(0, 5), min_size=1, max_size=3, unique=True))
        for prompt in sorted(prompts):
            for sample in range(draw(st.integers(1, 3))):
                tokens = draw(st.integers(1, LIMIT))
                start = draw(st.integers(0, 1000)) / 4
                rows.append(
                    {
                        "step": step,
                        "prompt": prompt,
                        "sample": sample,
                        "prompt_tokens": 3 + prompt,
                        "response_tokens": tokens,
                        "finish_reason": "length" if tokens == LIMIT else "stop",
                        "reward": draw(st.floats(-1e6, 1e6)),
                        "weights_version": step - 1,
                        "start_s": start,
                        "end_s": start + tokens / 8,
                    }
                )
    return pd.DataFrame(rows)


@pytest.mark.parametrize("name", ROLLOUT_WRITERS)
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(known=rollouts())
def test_rollouts_come_back(name: str, known: pd.DataFrame) -> None:
    _, writer, columns = ROLLOUT_WRITERS[name]
    with tempfile.TemporaryDirectory() as folder:
        log = import_log(writer(Path(folder) / "log", known), ImportOptions(tokenizer=TOKENIZER, max_response_tokens=LIMIT))
    assert log.rollouts is not None
    for column in columns:
        values = known[column] - known["start_s"].min() if column.endswith("_s") and "table" not in name else known[column]
        assert log.rollouts[column].tolist() == pytest.approx(values.tolist(), abs=1e-5), column
    assert pd.factorize(log.rollouts["prompt_id"])[0].tolist() == pd.factorize(known["prompt"])[0].tolist()


@pytest.mark.parametrize("name", [*ROLLOUT_WRITERS, *SCALAR_WRITERS])
def test_packed_logs_are_read_as_the_plain_ones(name: str, tmp_path: Path) -> None:
    writer = ROLLOUT_WRITERS[name][1] if name in ROLLOUT_WRITERS else SCALAR_WRITERS[name][1]
    options = ImportOptions(tokenizer=TOKENIZER, max_response_tokens=LIMIT)
    path = writer(tmp_path / "log", sample_rollouts())
    plain = import_log(path, options)
    for file in [file for file in (tmp_path / "log").rglob("*") if file.is_file()]:
        with gzip.open(f"{file}.gz", "wb") as packed, open(file, "rb") as raw:
            shutil.copyfileobj(raw, packed)
        file.unlink()
    again = import_log(path if path.is_dir() else Path(f"{path}.gz"), options)
    pd.testing.assert_frame_equal(again.scalars, plain.scalars)
    if plain.rollouts is not None:
        assert again.rollouts is not None
        pd.testing.assert_frame_equal(again.rollouts, plain.rollouts)
