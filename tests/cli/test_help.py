"""``--help`` of the command line and of every command: what it shows, and that it is shown at all."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import click
import pytest
from click.testing import CliRunner

from rlhfless.cli import main
from rlhfless.cli.headings import WithHeadings

COMMANDS = [[], *([name] for name in sorted(main.commands))]


@pytest.mark.parametrize("words", COMMANDS, ids=[" ".join(["rlhfless", *words]) for words in COMMANDS])
def test_help_shows_every_option(words: Sequence[str]) -> None:
    result = CliRunner().invoke(main, [*words, "--help"])
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    command = main.commands[words[0]] if words else main
    shown = result.stdout.split()
    for param in command.params:
        if isinstance(param, click.Option) and not param.hidden:
            assert any(word.strip(",") in param.opts for word in shown), param.name


def test_help_of_an_installed_command_is_shown() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "rlhfless", "what-if", "--help"], capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "--responses-per-step" in done.stdout


def test_a_heading_with_an_unknown_parameter_is_refused_when_the_command_is_made() -> None:
    with pytest.raises(ValueError, match=r"\bcolour\b"):
        WithHeadings("paint", params=[click.Option(["--size"])], headings={"Look": ("size", "colour")})
