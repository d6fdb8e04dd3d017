"""Lower bounds that no schedule can beat, and the headroom that they leave."""
