"""The command line. Each command reads options, calls one function of another package, and prints a table or JSON.

Importing the commands adds them to ``main``.
"""

from rlhfless.cli import (
    drafts,
    estimate,
    export,
    figures,
    import_log,
    pipeline,
    plan,
    profile,
    report,
    simulate,
    step,
    tools,
    train,
    what_if,
)
from rlhfless.cli.group import main

__all__ = [
    "drafts", "estimate", "export", "figures", "import_log", "main", "pipeline", "plan", "profile", "report", "simulate",
    "step", "tools", "train", "what_if",
]  # fmt: skip
