"""Makes the golden logs but those of TRL and verl, whose own code makes them (``make_golden_trl.py``, ``make_golden_verl.py``).

    python tests/trace/importers/make_golden_logs.py

These frameworks cannot be installed without a GPU, so the files are written by ``importer_samples.py``, with exactly the fields
that the frameworks' own code writes. They are kept so that a changed writer or importer is noticed.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "support"))

from importer_samples import GOLDEN, ROLLOUT_WRITERS, SCALAR_WRITERS, sample_rollouts


def main() -> None:
    """Write every log anew."""
    writers = {name: writer for name, (_, writer, _) in ROLLOUT_WRITERS.items()}
    writers |= {name: writer for name, (_, writer) in SCALAR_WRITERS.items()}
    for name in writers.keys() - {"trl", "trl-scalars", "verl-v0", "verl-v1"}:
        shutil.rmtree(GOLDEN / name, ignore_errors=True)
        writers[name](GOLDEN / name, sample_rollouts())


if __name__ == "__main__":
    main()
