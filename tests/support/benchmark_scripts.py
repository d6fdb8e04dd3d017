"""The benchmarks whose arithmetic is tested here, as modules."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import chaos
import chaos_counts
import counting_engine
import prefixes

__all__ = ["chaos", "chaos_counts", "counting_engine", "prefixes"]
