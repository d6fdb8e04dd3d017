"""Timing of a whole step: preparation on released GPUs, learning while others are still generated; with lower bounds."""
