"""The shipped tiny model, and supervised warm-up."""
