"""What differs between two records, and how far numbers may be apart before they count as different.

Knows plain data only. Whole numbers, texts, names and the order of lists are compared exactly: who decodes what on which GPUs
has to be the same. Floats may differ by ``RELATIVE``, because numpy's and BLAS's kernels add up in another order, and compute
exp and log another way, on another processor: the last bits of a sum differ there, and a difference of two sums near 0 has none
of its digits left. A change of the project moves a second by far more. A hash of rounded numbers would be no better: a number
at the edge of rounding flips with its last bit. With ``exact`` floats are compared bit for bit, for records of one machine.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

RELATIVE = 1e-9
ABSOLUTE = 1e-11
MOST = 12


def differences(recorded: Any, now: Any, *, exact: bool = False, where: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield one line per value that differs, in the order of the record.

    Args:
        recorded, now: plain data (``plain.plain``). exact: floats have to be equal bit for bit.
    """
    if isinstance(recorded, dict) and isinstance(now, dict):
        for key in [*recorded, *(key for key in now if key not in recorded)]:
            here = (*where, str(key))
            if key not in now:
                yield f"{_place(here)}: is missing now"
            elif key not in recorded:
                yield f"{_place(here)}: is not in the record"
            else:
                yield from differences(recorded[key], now[key], exact=exact, where=here)
    elif isinstance(recorded, list) and isinstance(now, list):
        if len(recorded) != len(now):
            yield f"{_place(where)}: recorded {len(recorded)} values, now {len(now)}"
        for i, (one, other) in enumerate(zip(recorded, now, strict=False)):
            yield from differences(one, other, exact=exact, where=(*where, str(i)))
    elif not _same(recorded, now, exact):
        yield f"{_place(where)}: recorded {_short(recorded)}, now {_short(now)}"


def told(found: Iterator[str] | Sequence[str], most: int = MOST) -> str:
    """Return the first differences as text, and how many more there are."""
    lines = list(islice(found, 100_000)) if not isinstance(found, Sequence) else list(found)
    more = [f"and {len(lines) - most:,} more"] if len(lines) > most else []
    return "\n".join([*lines[:most], *more])


def _same(one: Any, other: Any, exact: bool) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return repr(one) == repr(other) if exact else math.isclose(one, other, rel_tol=RELATIVE, abs_tol=ABSOLUTE)
    return bool(one == other)


def _place(where: tuple[str, ...]) -> str:
    return " > ".join(where) or "the record"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
