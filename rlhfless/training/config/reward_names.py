"""Names of rewards, as they are typed in ``task.rewards``; ``rewards.registry`` makes them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rlhfless.training.config.errors import TrainError

KNOWN = "task, exact, contains, format:REGEX, length:LIMIT,SOFT, model:FOLDER or FILE.py:FUNCTION"
FORMS = {
    "format": "format:REGEX, such as format:^<think>", "length": "length:LIMIT,SOFT in whole tokens, such as length:30,10",
    "model": "model:FOLDER, such as model:out/reward-model",
}  # fmt: skip
"""Kind of a reward that needs an argument -> how it is written."""
NEED_ANSWERS = ("task", "exact", "contains")

_WEIGHTED = re.compile(r"(?:([+-]?\d+(?:\.\d+)?)\*)?(.+)", re.DOTALL)


def weight_and_name(text: str) -> tuple[float, str]:
    """Return the weight and the name of a reward such as ``0.1*exact``; without a weight it is 1.

    Raises:
        TrainError: no reward has this name, or its argument is missing or wrong.
    """
    match = _WEIGHTED.fullmatch(text)
    name = "" if match is None else match[2]
    kind, _, argument = name.partition(":")
    if kind in ("format", "model"):
        known = argument != ""
    elif kind == "length":
        known = re.fullmatch(r"\d+,\d+", argument) is not None
    else:
        known = name in NEED_ANSWERS or name.rpartition(":")[0].endswith(".py")
    if not known and kind in FORMS:
        raise TrainError(f"reward {name!r} is incomplete or wrong; write {FORMS[kind]}")
    if match is None or not known:
        raise TrainError(f"reward {(name or text)!r} is unknown; choose from {KNOWN}")
    return float(match[1] or 1), name


def need_answers(names: Sequence[str]) -> bool:
    """Return whether one of the named rewards compares with an answer."""
    return any(weight_and_name(name)[1] in NEED_ANSWERS for name in names)
