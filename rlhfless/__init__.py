"""RLHFless: plan generation with OR-Tools, execute the plan, see time, cost and idle GPUs.

Importing this package loads nothing heavy; each subpackage is imported where it is used.
"""

__version__ = "0.1.0"
