"""The learner: an algorithm with its schedule and checkpoint files, in one process or several (FSDP2)."""
