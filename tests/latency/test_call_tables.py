"""Files of model calls' times: damaged ones are refused in a sentence, and the shipped ones are what the database gives."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from error_messages import refused

from rlhfless.errors import MissingExtra
from rlhfless.latency import ProfileError, generate_calls
from rlhfless.latency.call_tables import read_call_tables

H100 = Path(__file__).parents[2] / "data" / "calls" / "h100.json"


def damaged(tmp_path: Path, change: Any) -> Path:
    tables = json.loads(H100.read_text(encoding="utf-8"))
    change(tables)
    file = tmp_path / "h100.json"
    file.write_text(json.dumps(tables), encoding="utf-8")
    return file


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (lambda t: t.update(schema="other"), ("'other'",)),
        (lambda t: t.pop("decode"), ("'decode'",)),
        (lambda t: t.update(node_bytes_per_s=0), ("node_bytes_per_s is 0",)),
        (lambda t: t.update(network_bytes_per_s=float("nan")), ("nan",)),
        (lambda t: t["models"]["llama2-7b"].pop("layers"), ("'layers'",)),
        (lambda t: t["models"]["llama2-7b"]["tables"]["2"]["prefill_s"].pop(), ("'llama2-7b'", "tp 2")),
        (lambda t: t["models"]["llama2-7b"]["tables"]["1"]["decode_s"][0].pop(), ("'llama2-7b'", "tp 1")),
        (lambda t: t.update(models=[1]), ("form",)),
        (lambda t: t.update(prefill=3), ("form",)),
    ],
    ids=["schema", "no decode", "no link", "NaN", "no layers", "few rows", "ragged", "list of models", "number"],
)  # fmt: skip
def test_a_damaged_file_is_refused(tmp_path: Path, change: Any, parts: tuple[str, ...]) -> None:
    with refused(ProfileError, "h100.json", *parts):
        read_call_tables(damaged(tmp_path, change))


@pytest.mark.parametrize("text", ["{", "[1]", "\x00"], ids=["cut off", "list", "binary"])
def test_what_is_no_json_object_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with refused(ProfileError, "x.json", "JSON object"):
        read_call_tables(tmp_path / "x.json")
    with refused(ProfileError, "none.json", "JSON object"):
        read_call_tables(tmp_path / "none.json")


def test_saved_tables_are_read_again(tmp_path: Path) -> None:
    tables = json.loads(H100.read_text(encoding="utf-8"))
    saved = generate_calls.save_call_tables(tmp_path / "h100.json", tables)
    assert saved.read_bytes() == H100.read_bytes()
    assert saved.stat().st_size < 40_000


def test_models_have_their_published_sizes() -> None:
    sizes = {name: model.parameters for name, model in generate_calls.MODELS.items()}
    assert sizes["llama2-7b"] == 6_738_415_616
    assert sizes["llama2-13b"] == 13_015_864_320
    assert sizes["codellama-34b"] == 33_743_970_304
    assert sizes["qwen2.5-32b"] == 32_763_876_352


def test_kinds_and_the_extra_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with refused(ProfileError, "'v100'", "a100, h100, l40s"):
        generate_calls.generate_call_tables("v100", "2026-01-01")
    monkeypatch.setitem(sys.modules, "aiconfigurator_core", None)
    with refused(MissingExtra):
        generate_calls.generate_call_tables("h100", "2026-01-01")


@pytest.mark.skipif(importlib.util.find_spec("aiconfigurator_core") is None, reason="needs rlhfless[profiles]")
@pytest.mark.parametrize("kind", list(generate_calls.CALL_KINDS))
def test_the_shipped_tables_are_what_the_database_gives(kind: str) -> None:
    shipped = json.loads((H100.parent / f"{kind}.json").read_text(encoding="utf-8"))
    assert json.loads(json.dumps(generate_calls.generate_call_tables(kind, shipped["date"]))) == shipped
