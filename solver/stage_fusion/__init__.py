"""Times a step as a whole: preparation on released GPUs, learning while others still generate; with lower bounds."""
