"""The aims of whole steps with all levers in the 12 settings of the paper's Figure 10, with what the bound allows.

    python tests/benchmarks/whole_step_aims.py [--seeds N] [--draft-seeds N] [--markdown] [--json FILE] [--tiny]

It computes what ``rlhfless figures 10_all`` shows (``rlhfless.paper.figure_10_all``) and prints the aims, one per row:
what is aimed at, in how many settings it was reached, and in how many the bound on every policy allows it. Plans are made from
forecasts and executed on true lengths. Lengths of GPQA and LiveCodeBench are assumed; strong drafts are of a character task.
``--draft-seeds 0`` leaves out plans with drafts, which take most of the time.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rlhfless.paper import Runs, Sources
from rlhfless.paper.figure_10_all import FIGURE
from rlhfless.paper.whole_step_summary import aims

HEAD = ("what", "aim", "reached", "bound", "holds")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--draft-seeds", type=int, default=5)
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--tiny", action="store_true", help="one small setting")
    given = parser.parse_args()
    for name, value, least in (("seeds", given.seeds, 1), ("draft-seeds", given.draft_seeds, 0)):
        if value < least:
            parser.error(f"--{name} is {value}; a whole number of at least {least} is needed")
    setting = {"seeds": given.seeds, "draft_seeds": given.draft_seeds}
    if given.tiny:
        setting = {**FIGURE.fast, "seeds": 1, "algorithms": ("GRPO",), "responses": 24, "draft_seeds": 1}
    rows = aims(FIGURE.numbers(Runs(Sources.default()), **setting).table)
    if given.markdown:
        lines = [HEAD, ("---",) * len(HEAD), *rows]
        print("\n".join("| " + " | ".join(line) + " |" for line in lines))
    else:
        print("\n".join(f"{row.what}: {row.ours}{f' ({row.bound})' if row.bound else ''}" for row in rows))
    if given.json:
        given.json.write_text(json.dumps([dict(zip(HEAD, row, strict=True)) for row in rows], indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
