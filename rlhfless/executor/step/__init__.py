"""State of one step on either clock: actors, allocations, records, checks of plans and runtime rules."""
