"""The command line. Each command is a frozen pydantic model of its options and a function that takes it.

``command_line`` finds the command and makes its line from the model; only the module of the command that runs is imported.
"""

from rlhfless.cli.command_line import main

__all__ = ["main"]
