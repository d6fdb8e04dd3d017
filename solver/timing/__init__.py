"""How long a given assignment of responses to actors takes, and what it costs."""
