"""Whole steps as graphs of model calls: where every call runs, with which parallelism, and in which order."""
