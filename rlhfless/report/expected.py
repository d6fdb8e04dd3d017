"""What levers of a diagnosis are expected to save, by simulation: only where the profile was checked on the run's own steps."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rlhfless.analysis import Calibration
from rlhfless.analysis.what_ifs.overlaps import NAMES as OVERLAPS
from rlhfless.diagnosis import Diagnosis
from rlhfless.diagnosis.numbers import GENERATION_GPU_HOURS, GENERATION_TIME, TIME, Lever
from rlhfless.report.drafts import draft_lever
from rlhfless.report.executed_study import ExecutedRunFindings
from rlhfless.report.study import LoggedRunFindings

WAYS = {"partial rollout": "partial rollout", "over-sampling": "over-sampling", "release": "released in the tail"}
"""Kind of lever -> the way that simulates it at the lever's own knob."""
TIME_OR_GPUS = {"release": 1}  # index of what is saved: of time, but where GPUs are released of GPU-hours
ASYNCHRONOUS = "asynchronous"
OWN_LOOPS = ("", "rlhfless")  # frameworks of runs whose user can prepare and learn while other responses are decoded


def with_expected(said: Diagnosis, found: LoggedRunFindings | ExecutedRunFindings) -> Diagnosis:
    """Return a diagnosis whose levers say what they are expected to save, as shares of the run's time or GPU-hours.

    It is returned as it is where the profile was not checked on held-out steps or predicts them no better than a constant,
    where lengths were drawn, and where the engine is slow: its pace is no basis for savings. Each range is widened by the
    largest error on held-out steps: a simulated time may be off by so much.
    """
    if not found.calibrated.beats_a_constant or engine_is_slow(said):
        return said
    if isinstance(found, LoggedRunFindings) and found.drawn:
        return said
    expected = {}
    if len(found.given_back):
        row = found.given_back.set_index("policy").loc["solver"]
        expected["assignment"] = float(row["GPU-seconds low"]), float(row["GPU-seconds high"])
    further: tuple[Lever, ...] = ()
    if isinstance(found, LoggedRunFindings):
        expected |= {kind: (share, share) for kind, share in _of_ways(said, found)}
        further = tuple(_further(said, found))
    share = _share_of_generation(found)
    of_generation = {one.kind for one in said.levers if one.of in (GENERATION_TIME, GENERATION_GPU_HOURS)}
    widened = {}
    for kind, (low, high) in expected.items():
        whole = share if kind in of_generation else 1.0
        widened[kind] = _widened(low / whole, high / whole, found.calibrated)
    return said.with_expected(widened, further)


def _share_of_generation(found: LoggedRunFindings | ExecutedRunFindings) -> float:
    """Return the share of generation in the steps that savings are of; 1 of an executed run, whose phases are in its trace."""
    if not isinstance(found, LoggedRunFindings) or not found.setup.synchronous:
        return 1.0
    generation_s = float(found.account.steps["generation_s"].mean())
    return generation_s / (generation_s + found.phases.seconds)


def engine_is_slow(said: Diagnosis) -> bool:
    """Return whether a diagnosis found that the engine takes longer for a token than its model can take."""
    return any(one.kind == "engine" for one in said.findings)


def _of_ways(said: Diagnosis, found: LoggedRunFindings) -> Iterator[tuple[str, float]]:
    """What the simulated ways save at the knobs of the levers: of time, and of GPU-hours where GPUs are released."""
    if found.ways is None:
        return
    for lever in said.levers:
        if lever.kind in WAYS and lever.value is not None:
            saved = found.ways.saved_at(WAYS[lever.kind], lever.knob, lever.value)
            if saved is not None:
                yield lever.kind, saved[TIME_OR_GPUS.get(lever.kind, 0)]
        elif lever.kind == "asynchrony":
            yield from (("asynchrony", found.ways.saved(way)[0]) for way in found.ways.ways if way.name == ASYNCHRONOUS)


def _further(said: Diagnosis, found: LoggedRunFindings) -> Iterator[Lever]:
    """Levers that need texts, prompts that come again, or a loop of the user's own: no arithmetic on a log finds them."""
    share = said.numbers.value("generate_share")
    of, share = (TIME, share) if share is not None else (GENERATION_TIME, 1.0)
    framework = found.setup.framework
    if found.drafts:
        best = found.drafts[0]
        yield draft_lever(best, framework, share, of, _widened(share * best.low, share * best.high, found.calibrated))
    if found.router is not None and found.router.is_recommended:
        setting = found.setting
        line = (
            "actor_rollout_ref.rollout.router_config_path=FOLDER/router.yaml, after rlhfless export LOG --verl-router FOLDER "
            f"--tokenizer MODEL --gpus {setting.cluster.gpus} --profile {setting.latency.name}"
        )
        price = "none for the data; lengths are predicted from this log, so it helps with prompts that come again"
        expected = _widened(share * found.router.low, share * found.router.high, found.calibrated)
        yield Lever("router", "let a router assign every batch by predicted lengths", share, price, of, line, expected)
    if framework in OWN_LOOPS:
        yield from _overlaps(said, found)


def _overlaps(said: Diagnosis, found: LoggedRunFindings) -> Iterator[Lever]:
    """Preparation, and learning too, on GPUs that wait for a step's last responses."""
    prepare, learn = (said.numbers.value(f"{name}_share") or 0.0 for name in ("prepare", "learn"))
    ways = {} if found.ways is None else {way.name: way for way in found.ways.ways}
    for learns, kind, at_most in ((False, "overlap", prepare), (True, "streaming", prepare + learn)):
        way = ways.get(OVERLAPS[learns])
        if way is not None and at_most:
            name = "accumulate gradients of finished groups" if learns else "prepare finished responses"
            line = "preparation: overlap" + ", learning: stream" * learns + " (rlhfless train)"
            expected = _widened(way.parameters["low"], way.parameters["high"], found.calibrated)
            price = "none for the data: the update is the same up to rounding; the models must fit beside the engine"
            yield Lever(kind, f"{name} on GPUs that wait", at_most, price, TIME, line, expected)


def _widened(low: float, high: float, calibrated: Calibration) -> tuple[float, float]:
    """Return a range of savings whose simulated times are off by a relative error; none saves more than everything."""
    assert calibrated.checked is not None
    error = float(np.max(calibrated.checked.errors))
    return 1.0 - (1.0 - low) * (1.0 + error), min(1.0, 1.0 - (1.0 - high) * (1.0 - error))
