"""The algorithms that have a name: one file each, with its options, its advantages and its loss."""

# Every algorithm derives from a class of this package, and importing it loads all files of this folder. Loaded first, it loads
# them in an order that works whichever of them is imported.
import rlhfless.training.config  # noqa: F401
