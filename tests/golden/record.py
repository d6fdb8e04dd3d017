"""Keeps the golden record in files, and writes it anew: ``make golden``.

Knows files; of the project only what ``produce.py`` gives. One file per item, JSON in xz: floats with 12 digits, which is finer
than what ``compare.py`` tells apart.

    python tests/golden/record.py                  # all items anew; prints what changed
    python tests/golden/record.py policy-fold      # these items only
"""

from __future__ import annotations

import json
import lzma
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))  # as pytest has it

from compare import differences, told

DATA = Path(__file__).parent / "data"
DIGITS = 11


def load(item: str, folder: Path = DATA) -> Any:
    """Return what was recorded of an item.

    Raises:
        FileNotFoundError: It was never recorded; the message says how to do it.
    """
    path = _file(item, folder)
    if not path.exists():
        raise FileNotFoundError(f"{path}: there is no record of {item!r}; run `python tests/golden/record.py {item}`")
    return json.loads(lzma.decompress(path.read_bytes()))


def save(item: str, value: Any, folder: Path = DATA) -> Path:
    """Write an item (plain data); the same data give the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    path = _file(item, folder)
    text = json.dumps(_rounded(value), separators=(",", ":"), allow_nan=False)
    path.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
    return path


def _file(item: str, folder: Path) -> Path:
    return folder / f"{item}.json.xz"


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    return [_rounded(one) for one in value] if isinstance(value, list) else value


def main(asked: list[str]) -> None:
    """Record the items anew and print how each differs from what was recorded before."""
    from produce import ITEMS

    if unknown := [item for item in asked if item not in ITEMS]:
        raise SystemExit(f"item {unknown[0]!r} is unknown; choose from {', '.join(ITEMS)}")
    for item in asked or ITEMS:
        now = ITEMS[item]()
        if _file(item, DATA).exists():
            found = list(differences(load(item), now))
            print(f"{item}: {len(found):,} differences" + (f"\n{told(found)}" if found else ""), flush=True)
        else:
            print(f"{item}: recorded for the first time", flush=True)
        save(item, now)
    for path in DATA.glob("*.json.xz"):
        if path.name.removesuffix(".json.xz") not in ITEMS:
            path.unlink()
            print(f"{path.name}: removed, as nothing produces it", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
