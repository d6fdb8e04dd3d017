"""Plan the generation of one step: assign responses to actors, with a lower bound."""
