"""The demonstration trace: a generated log with long responses, and the simulated run that ships with the package."""

from __future__ import annotations

from pathlib import Path

from rlhfless.errors import InputError
from rlhfless.system.installation import data_folders

NAME = "reasoning-static"


def example() -> Path:
    """Return the folder of the demonstration trace: 8 steps of 512 responses on 16 H100 GPUs, at most 16,384 tokens each.

    Each of four epochs visits every prompt once. Lengths are synthetic, from a published rule, and the run is simulated with
    the static policy: a fixed number of actors, whose GPUs are all held until the last response (``data/README.md``).

    Raises:
        InputError: the installation lacks it.

    Example:
        >>> import rlhfless as rl
        >>> rl.example().name
        'reasoning-static'
    """
    for data in data_folders():
        if (data / "traces" / NAME).is_dir():
            return data / "traces" / NAME
    raise InputError("the demonstration trace is not installed; reinstall rlhfless, or give rl.load a trace of your own")
