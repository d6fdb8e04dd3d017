"""Runs a step on the wall clock: dispatch, failure detection and recovery of remote actors."""
