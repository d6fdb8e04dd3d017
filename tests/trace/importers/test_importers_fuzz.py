"""Malformed logs: whatever is in a file, an import ends with rollouts that are valid or with one sentence, and leaves
nothing behind.

The golden logs are mutated: cut, bytes changed, pieces doubled, removed or replaced by others' or by nonsense, values of
JSON objects replaced by what should not be there. ``make test`` tries a few hundred, ``make nightly`` 10,000 and more.
"""

from __future__ import annotations

import json
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from importer_samples import GOLDEN, LIMIT, ROLLOUT_WRITERS, SCALAR_WRITERS, TOKENIZER

from rlhfless.errors import MissingExtra
from rlhfless.trace import ImportOptions, TraceError, import_log, read_trace
from rlhfless.trace.errors import UnreadableLog

pytest.importorskip("tokenizers", reason="the tokenizers package is not installed: pip install 'rlhfless[logs]'")
pytest.importorskip("torch")

FEW, MANY = 15, 1100
NAMES = [name for name in (*ROLLOUT_WRITERS, *SCALAR_WRITERS) if name != "trl-scalars"]
NONSENSE: tuple[Any, ...] = (
    None, True, -1, 0, 1.5, 2**63, 10**400, float("nan"), float("inf"), -float("inf"), "", "x", "\ud800", "7" * 5000,
    "\x00\n\r",
    [], [[]], {}, {"a": {}}, [1, None, "x"], [0.5] * 3, "__import__('os').system('false')", "nan",
)  # fmt: skip
PIECES = (
    b"", b"\x00" * 7, b"\xff\xfe", b"{", b"}\n", b"[" * 3000, b'{"a":' * 3000, b"null\n", b"\n\n", b"NaN", b"1e999",
    b"PK\x03\x04", b"PAR1", b"\x80\x04cposix\nsystem\n", b"Global step 7: {'a': (1).__class__}\n",
    b"Global step 99999999999999999999: {}\n",
    b"9" * 5000, b'"', b"'", b",", b"\r", "✨".encode(),
)  # fmt: skip


def mutated_json(line: bytes, chance: random.Random) -> bytes:
    """A line whose object, at some depth, lost a field, got one, or has nonsense in one."""
    try:
        root = json.loads(line)
    except ValueError:
        return line
    at = root
    while isinstance(at, dict | list) and at:
        key = chance.choice(list(at)) if isinstance(at, dict) else chance.randrange(len(at))
        if not isinstance(at[key], dict | list) or not at[key] or chance.random() < 0.4:
            what = chance.randrange(6)
            if what == 0:
                del at[key]
            elif what == 1 and isinstance(at, dict):
                at[chance.choice(["new", "step", "uid", "nodes", "samples"])] = at.pop(key)
            else:
                at[key] = chance.choice(NONSENSE)
            break
        at = at[key]
    return json.dumps(root).encode() + b"\n"


def mutate(content: bytes, chance: random.Random) -> bytes:
    """The bytes after one change, or two."""
    for _ in range(chance.choice((1, 1, 2))):
        a, b = sorted((chance.randrange(len(content) + 1), chance.randrange(len(content) + 1)))
        what = chance.randrange(8)
        if what == 0:
            content = content[:a]
        elif what == 1:
            content = content[:a] + bytes(chance.randrange(256) for _ in range(chance.randrange(1, 9))) + content[a + 1 :]
        elif what == 2:
            content = content[:a] + content[min(b, a + 40) :]
        elif what == 3:
            content = content[:b] + content[a:]
        elif what == 4:
            content = content[:a] + chance.choice(PIECES) + content[a:]
        else:
            lines = content.splitlines(keepends=True)
            if lines:
                where = chance.randrange(len(lines))
                lines[where] = mutated_json(lines[where], chance)
            content = b"".join(lines)
    return content


def try_one(name: str, seed: int) -> bool:
    """Import a mutated golden log; whether it was refused."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        log, out = Path(folder) / "log", Path(folder) / "out"
        shutil.copytree(GOLDEN / name, log)
        files = sorted(
            file for file in log.rglob("*") if file.is_file() and file.name not in ("tokenizer.json", "lengths.json")
        )
        changed = chance.choice(files)
        changed.write_bytes(mutate(changed.read_bytes(), chance))
        path = files[0] if "table" in name or name in ("verl-scalars", "openrlhf") else log
        own = {
            **{key: value[0] for key, value in ROLLOUT_WRITERS.items()},
            **{key: value[0] for key, value in SCALAR_WRITERS.items()},
        }
        framework = chance.choice(("auto", own[name]))
        options = ImportOptions(tokenizer=TOKENIZER, max_response_tokens=chance.choice((None, LIMIT, 24)))
        try:
            imported = import_log(path, options, framework)
            imported.save(out)
            sentence, foreseen = "", True
        except (TraceError, MissingExtra) as error:
            sentence, foreseen = str(error), not isinstance(error, UnreadableLog)
        if sentence:
            assert foreseen, f"no importer says itself what is wrong: {sentence}"
            assert "\n" not in sentence, sentence
            assert 20 < len(sentence) < 1500, sentence
            assert not out.exists()
            return True
        if imported.rollouts is not None and seed % 8 == 0:  # reading back takes longer than all the rest
            assert len(read_trace(out).rollouts) == len(imported.rollouts)
        assert str(imported.summary)
        return False


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=FEW, database=None)
@given(seed=st.integers(0, 2**32))
def test_a_malformed_log_is_one_sentence(name: str, seed: int) -> None:
    try_one(name, seed)


@pytest.mark.nightly
@pytest.mark.parametrize("name", NAMES)
def test_thousands_of_malformed_logs_are_one_sentence(name: str) -> None:
    """1,100 each, 10,000 and more of all formats; a good part of them is refused, or the mutations would be too mild."""
    refused = sum(try_one(name, seed) for seed in range(MANY))
    assert refused > MANY / 20
    assert MANY * len(NAMES) >= 10_000
