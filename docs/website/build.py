"""Builds the documentation site into a folder: `make docs`, or `python docs/website/build.py out/docs`.

Pages, notebooks with their outputs, the gallery of figures, and references that are made from the code: of Python, of the
command line and of the configuration of training. No network is used. Warnings are errors.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

from command_reference import write_command_reference
from gallery import WrongGallery, write_gallery
from kept import kept_in
from outputs import executed, stored
from reference import write_reference
from staged import ROOT, BrokenLink, stage

from rlhfless.errors import UserError


def main() -> int:
    """Build the site; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="the folder of the site")
    parser.add_argument(
        "--executed", type=Path, metavar="FOLDER", help="execute no notebook: take the outputs of those that are in this folder"
    )
    options = parser.parse_args()
    try:
        from sphinx.cmd.build import main as sphinx
    except ImportError as error:
        print(f"{error.name} is not installed; pip install 'rlhfless[docs]'", file=sys.stderr)
        return 2
    out = options.out.resolve()
    source, kept = out.with_name(out.name + "-source"), kept_in(out.with_name(out.name + "-cache"))
    try:
        notebook = partial(executed, kept=kept) if options.executed is None else partial(stored, executed=options.executed)
        stage(source, notebook)
        write_gallery(source / "gallery", kept)
        write_reference(source / "reference" / "python")
        write_command_reference(source / "reference")
    except (BrokenLink, WrongGallery, UserError) as error:
        print(error, file=sys.stderr)
        return 2
    words = ["-b", "html", "-c", str(ROOT / "docs"), "-W", "--keep-going", "-q"]
    return int(sphinx([*words, "-d", str(out.with_name(out.name + "-doctrees")), str(source), str(out)]))


if __name__ == "__main__":
    sys.exit(main())
