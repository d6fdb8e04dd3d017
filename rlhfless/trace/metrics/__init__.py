"""Metrics of a trace: time and cost per step and phase, allocated GPU time, checks against logged scalars."""
