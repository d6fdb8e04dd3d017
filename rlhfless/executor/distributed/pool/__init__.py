"""Actors between steps: placement, life cycle and the warm pool."""
