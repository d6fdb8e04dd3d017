"""Generating profiles: the public model numbers; and where the operator database is installed, the shipped files again."""

from __future__ import annotations

import importlib.util
import sys

import pytest
from error_messages import refused

from rlhfless.errors import MissingExtra
from rlhfless.latency import ProfileError, generate, load_profile, operators, read_profile


def test_the_models_have_their_published_sizes() -> None:
    assert operators.QWEN_3B.parameters == 3_085_938_688
    assert operators.QWEN_7B.parameters == 7_615_616_512
    assert (operators.QWEN_3B.kv_bytes_per_token, operators.QWEN_7B.kv_bytes_per_token) == (36_864, 57_344)
    assert (operators.LLAMA_70B.parameters, operators.LLAMA_70B.kv_bytes_per_token) == (68_976_648_192, 327_680)


def test_unknown_names_are_refused() -> None:
    with refused(ProfileError, "'x'", "100", "-70", "qwen2.5"):
        generate.generate_profile("x", "2026-01-01")


def test_without_the_database_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiconfigurator_core", None)
    with refused(MissingExtra):
        generate.generate_profile("l40s-qwen2.5-3b-tp2", "2026-01-01")


@pytest.mark.skipif(importlib.util.find_spec("aiconfigurator_core") is None, reason="needs rlhfless[profiles]")
@pytest.mark.parametrize("name", list(generate.TARGETS))
def test_the_shipped_profile_is_what_the_database_gives(name: str) -> None:
    shipped = read_profile(name)
    assert generate.generate_profile(name, shipped["date"]) == shipped


@pytest.mark.skipif(importlib.util.find_spec("aiconfigurator_core") is None, reason="needs rlhfless[profiles]")
@pytest.mark.parametrize("name", list(generate.TARGETS))
def test_below_its_first_column_a_table_is_near_the_database(name: str) -> None:
    """The line down to no KV tokens is nearer than the first column itself would be, and within 10 %."""
    table, (engine, _) = load_profile(name).table, operators.compile_engine(*generate.TARGETS[name])
    assert table is not None
    first, line, column = int(table.context_tokens[0]), [], []
    for fed in (16, 64, 256, 512, 1024, 2048):
        for context in (1, 8, 16, 32):
            decodes = fed <= generate.MAX_BATCH
            ms = engine.predict_decode_latency(fed, context, 2) if decodes else 0.0
            true_s = ms / 1e3 if decodes else generate._mixed_iteration_s(engine, fed, fed * context / generate.MAX_BATCH)
            line.append(abs(float(table(fed, fed * context)) / true_s - 1))
            column.append(abs(float(table(fed, fed * first)) / true_s - 1))
    assert sum(line) < sum(column)
    assert max(line) < 0.1
