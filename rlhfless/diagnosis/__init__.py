"""What limits a run, by arithmetic on what was logged; needs no GPU, no latency profile and no simulation."""
