"""Planning for actors of one kind and size: relaxation, rounding, search and the OR-Tools model."""
