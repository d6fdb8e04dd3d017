"""Two published techniques, executed for real on processes of this machine: fused pipelines and reallocation of weights."""
