"""Words of a report that depend on whether its trace was executed or simulated from a log: the only ones that differ."""

from __future__ import annotations

from typing import NamedTuple

from rlhfless.analysis.gpu_seconds import COMPLETED
from rlhfless.trace import Trace


class Words(NamedTuple):
    """What a report calls a run's trace, and where its numbers come from.

    Attributes:
        times_of: the JSON's name of the source of its times. heading: of the section on them. folded: whether that section is.
        source: what was given. of_gpu_seconds, steps: whose GPU-seconds, and of which steps.
        taken: from the source. modelled: what is simulated. ratio: of times, by which a profile is scaled. not_compared: why it
            is not. own: heading of the run's own timelines.
    """

    times_of: str
    heading: str
    folded: bool
    source: str
    of_gpu_seconds: str
    steps: str
    taken: str
    modelled: str
    ratio: str
    not_compared: str
    own: str


EXECUTED = Words(
    times_of="execution",
    heading="Where the time went",
    folded=False,
    source="trace",
    of_gpu_seconds="of the billed GPU-seconds",
    steps="all steps",
    taken="time and billed GPU-seconds of the steps, and their phases outside generation; lengths.",
    modelled="generation under other schedules",
    ratio="measured to simulated time, for prefill and decoding of the same responses on the same actors",
    not_compared="In every step responses migrated, actors are unknown, or more actors ran than fit.",
    own="As executed",
)
SIMULATED = Words(
    times_of="simulation of the run's own schedule",
    heading="Where the time went, by simulation of the run's own schedule",
    folded=True,  # as all that is simulated
    source="log",
    of_gpu_seconds="of the GPU-seconds of the simulated steps",
    steps="simulated steps",
    taken="response lengths.",
    modelled="all times",
    ratio="logged to simulated generation time",
    not_compared="No step of the log has a time of generation.",
    own="The run's own schedule, simulated",
)


def words_of(trace: Trace) -> Words:
    """Return the words for a trace that was executed, or that ``analysis.complete`` made of a log."""
    return SIMULATED if COMPLETED in trace.meta else EXECUTED
