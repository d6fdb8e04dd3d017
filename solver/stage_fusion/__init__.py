"""Times a step as a whole: preparation on freed GPUs, learning while others still generate; with lower bounds."""
