"""A whole step: which learner beside which generation, timed on all scenarios, chosen on held-out ones; with lower bounds."""
