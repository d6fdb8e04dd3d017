"""Lower bounds on time and cost that no schedule can beat."""
