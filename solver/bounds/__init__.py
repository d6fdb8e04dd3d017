"""Lower bounds that no schedule can beat, and how much they leave to win."""
