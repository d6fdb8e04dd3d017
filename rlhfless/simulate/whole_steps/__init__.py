"""Whole steps (generation, preparation, learning, weight sync) planned with all optimisations, executed and bounded."""
