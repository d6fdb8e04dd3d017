"""Reallocation: sends a model's weights between processes, from the layout they are trained in to the one that a call uses."""
