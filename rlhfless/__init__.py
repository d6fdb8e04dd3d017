"""RLHFless: plan generation with a lower bound, execute the plan, see time, cost and idle GPUs.

Importing this package loads nothing heavy; each subpackage is imported where it is used.
"""

from typing import Any

__version__ = "0.1.0"


def load_ipython_extension(ipython: Any) -> None:
    """``%load_ext rlhfless``: afterwards ``%rlhfless PATH`` shows the report of a trace or a log."""
    from rlhfless.report.magic import register

    register(ipython)
