"""What levers of a diagnosis are expected to save, by simulation: only where the profile was checked on the run's own steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from rlhfless.analysis import Calibration
from rlhfless.analysis.assumptions import PROFILE
from rlhfless.analysis.what_ifs.overlaps import NAMES as OVERLAPS
from rlhfless.diagnosis import Diagnosis
from rlhfless.diagnosis.completion import better_order
from rlhfless.diagnosis.numbers import GENERATION_GPU_HOURS, GENERATION_TIME, TIME, Finding, Lever
from rlhfless.plots.style import counted
from rlhfless.report.drafts import draft_lever
from rlhfless.report.savings import percent, percent_range
from rlhfless.report.study import Findings
from rlhfless.trace import ImportedLog, OpenedLog

WAYS = {"partial rollout": "partial rollout", "over-sampling": "over-sampling", "release": "released in the tail"}
"""Kind of lever -> the way that simulates it at the lever's own knob."""
SAVED = {"release": "cost_saved"}
"""What a kind of lever saves: time, but where GPUs are released GPU-hours."""
ASYNCHRONOUS = "asynchronous"
INCLUDES_ERROR = (
    "what is expected is simulated, and its ranges include the largest error of the latency profile on steps that it was not "
    "scaled to, {error:.1%} of the seconds of generation"
)
ENGINE_IS_SLOW = (
    "No schedule is simulated, because the engine is slow, or the latency profile is of a smaller model or faster GPUs than "
    "those of the run. Name the run's own with --profile (rlhfless profile measures it). No schedule makes a slow engine fast."
)
OWN_LOOPS = ("", "rlhfless")  # frameworks of runs whose user can prepare and learn while other responses are decoded


def with_expected(said: Diagnosis, found: Findings) -> Diagnosis:
    """Return a diagnosis whose levers say what they are expected to save, as shares of the run's time or GPU-hours.

    It is returned as it is where simulated times are no basis for savings (``Calibration.allows_savings``), where lengths were
    drawn, and where the engine is slow. Each range is widened by the largest error on held-out steps: simulated seconds of
    generation may be off by so much, those of other phases were logged, stated or measured. What is simulated under another
    assignment than that of an executed run says nothing of its levers.
    """
    if not found.times.calibrated.allows_savings or engine_is_slow(said):
        return said
    if found.drawn:
        return said
    calibrated = found.times.calibrated
    of_time, of_gpu_s = _shares_of_generation(found)
    of_generation = {one.kind for one in said.levers if one.of in (GENERATION_TIME, GENERATION_GPU_HOURS)}
    expected = {}
    for kind, low, high in _simulated(said, found):
        part = of_gpu_s if kind == "assignment" or kind in SAVED else of_time
        if kind in of_generation:
            expected[kind] = _widened(low / part, high / part, calibrated, 1.0)
        else:
            expected[kind] = _widened(low, high, calibrated, part, overlaps=kind == "asynchrony")
    widened = said.with_expected(expected, tuple(_further(said, found, of_time)))
    if calibrated.exact or not any(one.expected for one in widened.levers):
        return widened
    return replace(widened, notes=(INCLUDES_ERROR.format(error=_error(calibrated)), *widened.notes))


def with_simulated(said: Diagnosis, found: Findings) -> Diagnosis:
    """Return a diagnosis that says what simulated schedules save, and by how much a better assignment saves at most.

    It is returned as it is where no saving was simulated. Savings are those with all GPUs held. A lever of time is
    bounded where simulated steps are whole ones, and one of generation where they are generation alone. So is what a finding
    says of a better order of the responses.
    """
    if not len(found.reserved):
        return said
    held = found.reserved
    least, most = percent_range(float(held["time low"].min()), float(held["time high"].max())), float(held["time most"].max())
    whole, name = found.times.whole_steps, found.times.setting.latency.name
    of = "the time" if whole else "the time of generation"
    lengths = "With drawn lengths, s" if found.drawn else "S"
    profile = f"{'stand-in ' * (PROFILE in found.not_stated)}profile {name}"
    sentence = (
        f"{lengths}chedules on the same GPUs save {least} of {of}, and none can save more than {percent(most)} ({profile})."
    )
    shares_of = TIME if whole else GENERATION_TIME
    levers = [
        replace(one, simulated_most=max(0.0, most))
        if (one.kind, one.of) == ("assignment", shares_of) and most < one.at_most
        else one
        for one in said.levers
    ]
    levers.sort(key=lambda one: -one.most)
    findings = tuple(_with_simulated_order(one, said, max(0.0, most)) for one in said.findings) if whole else said.findings
    return replace(said, findings=findings, levers=tuple(levers), simulated=sentence)


def _with_simulated_order(finding: Finding, said: Diagnosis, most: float) -> Finding:
    """Return a finding with what a better order saves at simulated times, where that is less than by arithmetic.

    Args:
        most: share of the time that any schedule saves at most.
    """
    step_s, least_s = (said.numbers.value(key) for key in ("step_s", "step_ordered_least_s"))
    if step_s is None or least_s is None or step_s * (1.0 - most) <= least_s:
        return finding
    simulated = better_order(step_s, step_s * (1.0 - most))
    both = f"{simulated} at simulated times, and no more than {1.0 - least_s / step_s:.0%} at any"
    return replace(finding, sentence=finding.sentence.replace(better_order(step_s, least_s), both))


def _simulated(said: Diagnosis, found: Findings) -> Iterator[tuple[str, float, float]]:
    """Kinds of levers with the low and the high end of what they save by simulation, as shares of whole steps."""
    if len(found.given_back):
        row = found.given_back.set_index("policy").loc["solver"]
        yield "assignment", float(row["GPU-seconds low"]), float(row["GPU-seconds high"])
    yield from ((kind, share, share) for kind, share in _of_ways(said, found))


def _shares_of_generation(found: Findings) -> tuple[float, float]:
    """Return the shares of generation in the time and in the GPU-seconds of the steps that savings are of."""
    if not found.times.setup.synchronous or not len(found.took):
        return 1.0, 1.0
    sums = found.took[["time_s", "fixed_s", "gpu_s", "fixed_gpu_s"]].sum()
    return float(1.0 - sums["fixed_s"] / sums["time_s"]), float(1.0 - sums["fixed_gpu_s"] / sums["gpu_s"])


def expected_in_words(said: Diagnosis, found: Findings) -> str:
    """Return where a table of levers has its expected savings from, or why it has none, in a sentence."""
    calibrated = found.times.calibrated
    if any(one.expected for one in said.levers):
        return "The expected savings in its table are simulated."
    if not said.levers:
        return ""
    why = "no simulated schedule is one of them"
    if found.drawn:
        why = "lengths were drawn"
    elif calibrated.by_constant:
        why = "a constant predicts the times of its steps better than the latency profile does"
    elif not calibrated.allows_savings:
        why = "the latency profile was compared with " + (
            "none of its steps" if not calibrated.steps else f"{counted(calibrated.steps, 'step')} alone, and with no other"
        )
    return f"The table of changes has no expected savings, because {why}."


def refusal_of_slow_engine(log: OpenedLog | ImportedLog, said: Diagnosis) -> str:
    """Return why nothing is simulated of a logged run with a slow engine, in sentences; empty where something is.

    The trace of an executed run says what each replica decoded when, so its schedules are simulated.
    """
    executed = isinstance(log, OpenedLog) and len(log.trace.allocations)
    return ENGINE_IS_SLOW if engine_is_slow(said) and not executed else ""


def engine_is_slow(said: Diagnosis) -> bool:
    """Return whether a diagnosis found that the engine takes longer for a token than its model can take."""
    return any(one.kind == "engine" for one in said.findings)


def _of_ways(said: Diagnosis, found: Findings) -> Iterator[tuple[str, float]]:
    """What the simulated ways save at the knobs of the levers: of time, and of GPU-hours where GPUs are released."""
    if found.ways is None or found.times.own_plans:
        return
    for lever in said.levers:
        if lever.kind in WAYS and lever.value is not None:
            knobs = found.ways.knobs
            asked = (knobs["variant"] == WAYS[lever.kind]) & (knobs["knob"] == lever.knob) & (knobs["value"] == lever.value)
            for share in knobs.loc[asked, SAVED.get(lever.kind, "time_saved")]:
                yield lever.kind, float(share)
        elif lever.kind == "asynchrony":
            means = found.ways.means()
            yield from (("asynchrony", float(share)) for share in means.loc[means["way"] == ASYNCHRONOUS, "time_saved"])


def _further(said: Diagnosis, found: Findings, of_time: float) -> Iterator[Lever]:
    """Levers that need texts, prompts that come again, or a loop of the user's own: no arithmetic on a log finds them.

    Args:
        of_time: share of generation in the time of the simulated steps.
    """
    share = said.numbers.value("generate_share")
    of, share = (TIME, share) if share is not None else (GENERATION_TIME, 1.0)
    framework = found.times.setup.framework
    if found.drafts:
        best = found.drafts[0]
        yield draft_lever(
            best, framework, share, of, _widened(share * best.low, share * best.high, found.times.calibrated, share)
        )
    if found.router is not None and found.router.is_recommended:
        setting = found.times.setting
        line = (
            "actor_rollout_ref.rollout.router_config_path=FOLDER/router.yaml, after rlhfless convert LOG --to verl-router "
            f"-o FOLDER --tokenizer MODEL --gpus {setting.cluster.gpus} --profile {setting.latency.name}"
        )
        price = "none for the data; lengths are predicted from this log, so it helps with prompts that come again"
        expected = _widened(share * found.router.low, share * found.router.high, found.times.calibrated, share)
        yield Lever("router", "let a router assign every batch by predicted lengths", share, price, of, line, expected)
    if framework in OWN_LOOPS:
        yield from _overlaps(said, found, of_time)


def _overlaps(said: Diagnosis, found: Findings, of_time: float) -> Iterator[Lever]:
    """Preparation, and learning too, on GPUs that wait for a step's last responses."""
    prepare, learn = (said.numbers.value(f"{name}_share") or 0.0 for name in ("prepare", "learn"))
    parameters = {} if found.ways is None or found.times.own_plans else found.ways.parameters
    for learns, kind, at_most in ((False, "overlap", prepare), (True, "streaming", prepare + learn)):
        way = parameters.get(OVERLAPS[learns])
        if way is not None and at_most:
            name = "accumulate gradients of finished groups" if learns else "prepare finished responses"
            line = "cluster.preparation=overlap" + " cluster.learning=stream" * learns + " (rlhfless train)"
            expected = _widened(way["low"], way["high"], found.times.calibrated, of_time, overlaps=True)
            price = "none for the data: the update is the same up to rounding; the models must fit beside the engine"
            yield Lever(kind, f"{name} on GPUs that wait", at_most, price, TIME, line, expected)


def _widened(
    low: float, high: float, calibrated: Calibration, generation: float, *, overlaps: bool = False
) -> tuple[float, float]:
    """Return a range of savings whose simulated seconds of generation are off by a relative error.

    Args:
        low, high: as shares of all that is saved of. generation: its share of the same. overlaps: other phases are saved, by
            doing them beside generation; else generation itself is.
    """
    error = _error(calibrated)

    def generated(saved: float) -> float:
        """The most of what is left that generation may be."""
        return min(generation, 1.0 - saved) if overlaps else max(0.0, generation - saved)

    return low - error * generated(low), high + min(1.0, error) * generated(high)


def _error(calibrated: Calibration) -> float:
    """Return the largest relative error of a profile on steps that it was not scaled to."""
    if calibrated.exact:
        return 0.0
    assert calibrated.checked is not None
    return float(np.max(calibrated.checked.errors))
