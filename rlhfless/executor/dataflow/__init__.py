"""Runs step plans on the virtual clock."""
