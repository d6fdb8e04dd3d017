"""Re-planning while a step runs: what a token is worth, where migrating responses go, when it pays."""
