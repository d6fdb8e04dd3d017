"""The demonstration trace: a recorded training run that ships with the package."""

from __future__ import annotations

from pathlib import Path

from rlhfless.errors import InputError


def example() -> Path:
    """Return the folder of the demonstration trace: 60 GRPO steps of a tiny model on 16 emulated GPUs (``data/README.md``).

    Raises:
        InputError: the installation lacks it.
    """
    package = Path(__file__).resolve().parents[1]
    for data in (package.parent / "data", package / "_data"):
        if (data / "traces" / "arithmetic-grpo").is_dir():
            return data / "traces" / "arithmetic-grpo"
    raise InputError("the demonstration trace is not installed; reinstall rlhfless, or give rl.load a trace of your own")
