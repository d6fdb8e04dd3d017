"""What loading the packages loads."""

from __future__ import annotations

import subprocess
import sys


def test_import_rlhfless_loads_nothing_heavy() -> None:
    code = "import sys, rlhfless; print(sorted({'pandas', 'pyarrow', 'numpy', 'torch', 'ortools'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
