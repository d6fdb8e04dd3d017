"""Pools of actors: who runs a step, and which actors live until the next one."""
