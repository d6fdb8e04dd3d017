"""Actors as processes of this machine."""
