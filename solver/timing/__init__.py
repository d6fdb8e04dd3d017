"""Time and cost of a given assignment of responses to actors."""
