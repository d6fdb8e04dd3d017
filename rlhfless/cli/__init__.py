"""The command line: options in, one call, tables or JSON out. Thin; every command's work is a function elsewhere.

Importing the commands adds them to ``main``.
"""

from rlhfless.cli import export, figures, import_log, plan, profile, report, simulate, tools, train
from rlhfless.cli.group import main

__all__ = ["export", "figures", "import_log", "main", "plan", "profile", "report", "simulate", "tools", "train"]
