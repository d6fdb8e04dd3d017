"""Options of a training run that no longer exist, and how files that store one are read.

A run stores its options in ``meta.json``, a checkpoint in ``state.json``, and users keep configurations of their own. Where a
gone option was off, what is stored is read without it: nothing changes. Where it was on, it is refused in one sentence, as the
rest of the run would not be what it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlhfless.errors import UserError

GONE_OPTIONS: dict[str, tuple[Any, ...]] = {
    "pipeline": (None,),
    "pipeline_critic": (None,),
    "micro_batches": (None,),
    "pipeline_schedule": (None, "fused"),
    "preparation_tp": (None,),
}
"""Name of a gone option -> the stored values that mean "off", such as ``"learner_grows": (False,)`` or ``"tp": (None, 1)``."""

_PIPELINES = "rlhfless.training.run_pipelines demonstrates fused pipelines on processes"
DEMONSTRATED = {
    **dict.fromkeys(("pipeline", "pipeline_critic", "micro_batches", "pipeline_schedule"), _PIPELINES),
    "preparation_tp": "rlhfless.training.reallocate demonstrates moves between layouts on processes",
}
"""Name of a gone option -> what still shows the technique, as a clause."""


def without_gone(stored: Mapping[str, Any], where: object, error: type[UserError]) -> dict[str, Any]:
    """Return stored options without those that no longer exist.

    Args:
        stored: options by name, as in ``meta.json``.
        where: the file or run that stores them, for the message.
        error: class to raise.

    Raises:
        error: a gone option was on.

    Example:
        >>> without_gone({"samples_per_prompt": 8, "pipeline": None}, "meta.json", UserError)
        {'samples_per_prompt': 8}
    """
    options = {**stored}
    for name, off in GONE_OPTIONS.items():
        if name in options and (value := options.pop(name)) not in off:
            shown = f"; {DEMONSTRATED[name]}" if name in DEMONSTRATED else ""
            raise error(
                f"{where}: option {name} is {value!r}, but there is no such option any more{shown}; start again without "
                f"{name}, or use the version of rlhfless that stored it"
            )
    return options
