"""Other ways to generate and to learn that frameworks offer, each simulated on a run's own lengths: one file per way.

Every way takes a ``RunToChange`` and returns a ``WayOutcome``: time, GPU-seconds and a bound, and what it changes in the data.
"""
