"""Re-planning while a step runs: the marginal value of a token, receivers of migrating responses, and when a move pays."""
