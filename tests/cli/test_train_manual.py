"""What docs and notebooks show of ``rlhfless train`` can be typed: files, keys, values, and where the flags went."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from rlhfless.gone_options import FLAT, GONE_OPTIONS, INSTEAD
from rlhfless.training.config import TrainConfig, read_config
from rlhfless.training.config.files import is_override
from rlhfless.training.config.section import all_keys

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "notebooks").glob("*.ipynb"))]
CONFIGS = sorted((ROOT / "docs" / "configs").glob("*.yaml"))
COMMAND = re.compile(r"rlhfless train ([^`\n#>]*)")


def typed(text: str) -> list[list[str]]:
    """The words after ``rlhfless train``, of every command that stands in a text with a key or a file."""
    found = [[word for word in shlex.split(line.split('\\n"')[0]) if word != "..."] for line in COMMAND.findall(text)]
    return [words for words in found if any(is_override(word) or word.endswith(".yaml") for word in words)]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_a_shipped_file_is_a_configuration_that_differs_from_the_defaults(path: Path) -> None:
    assert read_config(path) != TrainConfig()


def test_every_command_has_keys_and_values_of_a_configuration() -> None:
    commands = [words for page in PAGES for words in typed(page.read_text("utf-8"))]
    assert len(commands) > 10
    for words in commands:
        files = [ROOT / word for word in words if word.endswith(".yaml") and not word.startswith("out/")]
        changes = [word for word in words if is_override(word)]
        options = {word for word in words if word.startswith("-")}
        assert options <= {"-o", "--resume", "--log", "--dry-run"}, words
        read_config(*[file for file in files if file.name != "run.yaml"], overrides=changes)


def test_keys_that_the_text_names_are_keys() -> None:
    sections = "|".join(sorted({key.partition(".")[0] for key in all_keys() if "." in key}))
    pages = ("executing_and_training.md", "gpus_and_clusters.md")
    for name in pages:
        text = (ROOT / "docs" / name).read_text("utf-8")
        named = set(re.findall(rf"`((?:{sections})\.[a-z_]+)(?:=[^`]*)?`", text))
        assert named, name
        assert named <= set(all_keys()), f"{name} names {named - set(all_keys())}"


def test_the_table_of_flags_has_every_earlier_option_and_names_keys_and_options_of_today() -> None:
    rows = re.findall(r"^\| (`--?\w.*?) \| (.*) \|$", (ROOT / "docs" / "command_line.md").read_text("utf-8"), re.M)
    named = {flag.lstrip("-").replace("-", "_") for flags, _ in rows for flag in re.findall(r"`(--[\w-]+)`", flags)}
    had = {name for names in FLAT.values() for name in names} | {"task", "algorithm", "optimizer"}
    plain = {"rewards": "reward", "lora_targets": "lora_target"}  # a flag was given once for each
    assert {plain.get(name, name) for name in had} | GONE_OPTIONS.keys() <= named, "every option of an earlier version is there"
    assert INSTEAD.keys() == GONE_OPTIONS.keys(), "a refusal says what there is in place of each"
    for flags, now in rows:
        first = re.match(r"`([^`]+)`", now)
        if first is None:
            assert now.startswith("gone: "), f"{flags} went nowhere"
        else:
            option = first[1].split()[0]
            assert option in all_keys() or option in ("-o", "--resume", "--log"), f"{flags} went to {option}"
