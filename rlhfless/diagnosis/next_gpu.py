"""Which side of an asynchronous run the next GPU belongs to, by the waits of its log alone: the sign, and Amdahl's limit.

A log of waits says who waits for whom. It says neither how many GPUs suffice nor how fast another division is: that needs
lengths and seconds of learning (``rlhfless.Run.split``).
"""

from __future__ import annotations

from dataclasses import dataclass

from rlhfless.diagnosis.diagnosis import Diagnosis

GENERATION, TRAINING = "generation", "training"


@dataclass(frozen=True)
class NextGpu:
    """What the waits of one run say.

    Attributes:
        run: its name; empty for the only one. side: ``generation`` or ``training``; empty where the log does not say.
        speedup_at_most: of the loop, however many GPUs that side gets; None where it is unknown.
        sentence: the same in words, with the wait that proves it.
    """

    run: str
    side: str
    speedup_at_most: float | None
    sentence: str


def next_gpu(said: Diagnosis) -> tuple[NextGpu, ...]:
    """Return what the waits of every run of a diagnosis say, in its order; empty where the log has none."""
    return tuple(found for one in (said.runs or (said,)) if (found := _of_run(one)) is not None)


def _of_run(said: Diagnosis) -> NextGpu | None:
    sentence = next((one.sentence for one in said.findings if one.kind == "waiting"), "")
    at_most = {one.kind: one.at_most for one in said.levers}
    if "hidden_s" in said.numbers:
        speedup = said.numbers.value("loop_speedup_at_most")
        hardly = f"Training hardly waits for generation: more of it makes the loop at most {speedup:.2f} times as fast."
        return NextGpu(said.run, GENERATION, speedup, sentence or hardly)
    if at_most.get("more generation") == 0:
        share = said.numbers.value("moving_gpus_at_most_share")
        speedup = 1 / (1 - share) if share is not None and share < 1 else None
        nothing = "Training does not wait for generation, so more of it wins nothing."
        return NextGpu(said.run, TRAINING, speedup, sentence or nothing)
    return NextGpu(said.run, "", None, sentence) if sentence else None
