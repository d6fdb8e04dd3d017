"""Actors as Ray actors on the nodes of a cluster."""
