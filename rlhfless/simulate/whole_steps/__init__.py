"""Whole steps (generation, preparation, learning, weight sync) planned with all levers, executed, compared and bounded."""
