"""Trains models in pipeline stages, one process per device, in the order of a ``PipelinePlan``."""
