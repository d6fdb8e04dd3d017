"""``--help`` of the command line and of every command, and that it is made from the models of the options."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from command_line import run_rlhfless

from rlhfless.cli.command_line import COMMANDS, command
from rlhfless.cli.options import flag


def test_help_lists_the_commands() -> None:
    for words in ([], ["--help"], ["-h"]):
        done = run_rlhfless(*words)
        assert (done.exit_code, done.stderr) == (0, "")
        assert re.findall(r"^  ([a-z]+)  ", done.stdout, flags=re.M) == list(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_every_option_with_its_text(name: str) -> None:
    done = run_rlhfless(name, "--help")
    assert (done.exit_code, done.stderr) == (0, "")
    shown = " ".join(done.stdout.split())
    for field, info in command(name).options.model_fields.items():
        typed = flag(field, info)
        assert typed in shown, field
        assert info.description, field
        assert " ".join(info.description.split()) in shown, field


@pytest.mark.parametrize("name", COMMANDS)
def test_the_model_explains_the_command(name: str) -> None:
    kind = command(name).options
    assert " ".join(str(kind.__doc__).split()) in " ".join(run_rlhfless(name, "--help").stdout.split())


def test_the_help_of_the_command_line_imports_no_command() -> None:
    """Nor what commands need: it is shown at once."""
    code = (
        "import sys; from rlhfless.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
        "print(sorted({name.split('.')[0] for name in sys.modules} & {'pydantic', 'numpy', 'pandas', 'click', 'plotly'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.splitlines()[-1] == "[]"


def test_help_of_an_installed_command_is_shown() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "rlhfless", "report", "--help"], capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "--responses-per-step" in done.stdout
