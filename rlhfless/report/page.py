"""``python -m rlhfless.report.page NOTEBOOK [PAGE]``: executes a notebook without a browser, and writes its page.

The page is ``out/NOTEBOOK.html`` where none is named; the executed notebook lies beside it. Wrong input ends with exit code 2
and one sentence.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from rlhfless.errors import InputError, UserError
from rlhfless.system.run_notebook import run_notebook


def main(words: Sequence[str]) -> int:
    """Execute a notebook, write its page, and print where both are; return the exit code.

    Args:
        words: what was typed: the notebook, and where its page goes.
    """
    try:
        if not 1 <= len(words) <= 2 or words[0].startswith("-"):
            raise InputError("NOTEBOOK is missing; type python -m rlhfless.report.page NOTEBOOK [PAGE]")
        notebook = Path(words[0])
        page = Path(words[1]) if len(words) == 2 else Path("out", notebook.stem).with_suffix(".html")
        executed = run_notebook(notebook, page)
        from rlhfless.plots.export.notebook_page import write_notebook_page  # plotly takes seconds, and the call may be refused

        write_notebook_page(executed, page)
    except UserError as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return 2
    print(f"executed notebook: {executed}")
    print(f"interactive page:  {page.resolve()}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
