"""The first screen of a report about a logged run: what it cost and wasted, how sure this is, and what is assumed.

Turns findings into sentences. Dollars and GPU-hours are of the whole run. Where their price is not known,
no sentence names an amount that depends on it, and a curve over numbers of GPUs stands in its place.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from rlhfless import plots
from rlhfless.analysis import FRAMEWORK_DEFAULTS, Calibration, Change, uses_of_account
from rlhfless.analysis.framework_defaults import DISPATCHES
from rlhfless.analysis.own_times import is_far
from rlhfless.latency import PriceError, usd_per_gpu_hour
from rlhfless.plots.export.html_page import Page
from rlhfless.plots.style import counted, number
from rlhfless.report.amounts import amounts_of, is_unknown, more_than_idle
from rlhfless.report.changes import changes_of, in_a_sentence
from rlhfless.report.log_checks import contradicted
from rlhfless.report.not_stated import OPTIONS, PRICE, PROFILE, PROFILE_HOW, profile_in_words
from rlhfless.report.savings import percent, percent_range
from rlhfless.report.study import LoggedRunFindings, OwnRun
from rlhfless.trace.schema.prices import dollars

LITTLE = 0.005  # share of the run that no bar shows
LEAST_IDLE = 0.0005  # of the cost; less reads as 0.0 %
WIDE = 0.25  # of an idle share: such a range says little
NEAR_POINTS, FAR_POINTS = 12, (32, 44)  # savings were off by, of the cost, up to FAR and above (``scaled_profiles.py``)


def first_screen(page: Page, findings: LoggedRunFindings) -> None:
    """Add the sentences of ``in_short``, the assumptions with their options, and one figure."""
    page.section("In short, by simulation")
    first, *others = in_short(findings)
    page.headline(first)
    for sentence in others:
        page.text(sentence)
    assumed = list(assumptions(findings))
    if assumed:
        page.heading("Assumed; state it with the option beside it")
        page.options((option, text) for text, option in assumed)
    if is_unknown(findings) or PRICE in findings.not_stated:
        page.figure(_curve(findings))
    else:
        page.figure(plots.plot_overview(uses_of_run(findings)))


def in_short(findings: LoggedRunFindings) -> Iterator[str]:
    """Return the summary in sentences, for readers who read nothing else: cost and waste, then how sure this is."""
    yield _cost(findings)
    if contradiction := contradicted(findings.checks, findings.calibrated):
        yield contradiction
    changes = changes_of(findings)
    if is_unknown(findings) and findings.setup.synchronous:
        change = f"; {_change(findings, changes)}" if changes else ""
        yield f"On the times assumed below, {percent_range(*findings.idle_shares)} of the GPU time was idle{change}."
    if _is_wide(findings):
        yield (
            "The range of what was idle is so wide that it says little. Only the lengths of the responses say more: log them, "
            "and give that log."
        )
    yield " ".join(_how_sure(findings))
    if findings.drawn:
        yield findings.drawn
    if findings.setup.synchronous and changes and changes[0].mean > findings.cost.idle_share:
        yield more_than_idle(findings.cost.idle_share)


def _cost(findings: LoggedRunFindings) -> str:
    """The sentence on the cost of the run, or the options that it needs."""
    cost = findings.cost
    if is_unknown(findings):
        price = f" ({OPTIONS[PRICE]} for dollars)" if PRICE in findings.not_stated else ""
        return (
            f"What your {counted(cost.steps, 'step')} cost is not known, because the log does not say the speed of its model "
            f"and GPUs: give {OPTIONS[PROFILE]}{price}."
        )
    about = "" if cost.all_logged else "about "
    amounts = amounts_of(findings)
    hours = amounts.in_gpu_time
    total = f"cost {about}{amounts.of(1.0)} ({hours})" if amounts.is_priced else f"took {about}{hours}"
    low, high = findings.idle_of_run
    idle = f"{amounts.between(low, high)} ({percent_range(low, high)})" if high >= LEAST_IDLE else "none"
    if low < LEAST_IDLE <= high:
        idle = f"at most {amounts.of(high)} ({percent(high)})"
    idle = f"{idle} of it went to idle GPUs"
    if _is_wide(findings):
        idle = f"its scalars do not tell how much of it went to idle GPUs ({percent_range(low, high)})"
    if not findings.setup.synchronous:
        idle = "what was idle is not known, because the run learns while it generates"
    change = _change(findings, changes_of(findings))
    return f"Your {counted(cost.steps, 'step')} {total}; {idle}; {change}."


def _is_wide(findings: LoggedRunFindings) -> bool:
    """Whether lengths were drawn, and the range of the idle share says little."""
    low, high = findings.idle_shares
    return bool(findings.drawn) and findings.setup.synchronous and high - low > WIDE


def _change(findings: LoggedRunFindings, changes: Sequence[Change]) -> str:
    """The largest change with its saving, as the end of a sentence."""
    if not changes:
        return "no change that was simulated is certain to save anything"
    first, amounts = changes[0], amounts_of(findings)
    share = f" ({percent_range(first.low, first.high)})" if amounts.is_known else ""
    return f"{in_a_sentence(first)} and save {amounts.between(first.low, first.high)}{share}"


def _how_sure(findings: LoggedRunFindings) -> Iterator[str]:
    cost, calibrated = findings.cost, findings.calibrated
    if cost.all_logged:
        yield "How sure: the time of every step was logged."
    elif cost.logged_steps:
        yield f"How sure: {cost.logged_steps:,} of {counted(cost.steps, 'step')} have a logged time; the others take the mean."
    else:
        times = profile_in_words(findings.setting.latency.name)
        yield f"How sure: no step has a logged time, so times are those of {times}, which was not compared with your run."
    if calibrated.steps > 1 and calibrated.checked is not None:
        checked = calibrated.checked
        error = float(np.median(checked.constant_errors if calibrated.by_constant else checked.errors))
        steps = counted(calibrated.steps, "logged step")
        yield f"Savings are simulated, scaled to {steps}; the median error on held-out steps is {percent(error)}."
    elif calibrated.steps == 1:
        yield "Savings are simulated, scaled to one logged step, so their error is unknown."
    elif not cost.logged_steps:
        yield "Trust percentages more than amounts."
    elif findings.setup.synchronous:
        times = profile_in_words(findings.setting.latency.name)
        yield f"What was idle and savings are simulated by {times}, which was not compared with your run."
    if of_other_hardware(calibrated):
        yield _scaled_far(findings)
    if not cost.all_logged and not is_unknown(findings) and cost.high_s > 1.01 * cost.low_s:
        low, high = cost.low_s / cost.time_s, cost.high_s / cost.time_s
        yield f"By the choice of simulated steps and dispatch, this is {amounts_of(findings).between(low, high)}."
    if not findings.setup.synchronous:
        yield "Only GPUs that generate are counted."
    if PRICE in findings.not_stated and not is_unknown(findings):
        yield f"For dollars, state the price of a GPU with {OPTIONS[PRICE]}."


def of_other_hardware(calibrated: Calibration) -> bool:
    """Whether a profile was scaled so much that it is of another model or other GPUs than the run's."""
    return calibrated.steps > 0 and is_far(calibrated.factor)


def _scaled_far(findings: LoggedRunFindings) -> str:
    """The warning about a profile of other hardware: what it means for the result, and what to do."""
    factor = findings.calibrated.factor
    times, pace = (factor, "slow") if factor > 1 else (1.0 / factor, "fast")
    return (
        f"Warning: your run is {number(times)} times as {pace} as {profile_in_words(findings.setting.latency.name)}, so that "
        "profile is of another model or other GPUs. Logged times stay true; what was idle and what "
        f"changes save is rough. Between profiles up to 3 times apart, savings differed by at most {NEAR_POINTS} points of the "
        f"cost; between those 37 times apart and more, by {FAR_POINTS[0]} to {FAR_POINTS[1]}. Measure your profile with "
        "rlhfless profile."
    )


def assumptions(findings: LoggedRunFindings) -> Iterator[tuple[str, str]]:
    """Return what matters and is assumed, as pairs of a sentence and the option that states it."""
    setup = findings.setup
    for name, sentence in findings.not_stated.items():
        if name == PROFILE:
            scaled = "; its times are scaled to those in the log" if findings.calibrated.steps else ""
            yield f"{sentence}{scaled}; {PROFILE_HOW}", OPTIONS[name]
        elif name != PRICE or not is_unknown(findings):
            yield sentence, OPTIONS[name]
    if sum(name in DISPATCHES for name in setup.candidates) > 1:
        rules = "prompts reached replicas in equal chunks, or each went to the replica with the fewest responses in flight"
        yield f"{rules}; ranges cover both", "--dispatch"
    if not setup.colocated and not setup.learner_gpus:
        yield "GPUs of the learner alone are not counted, because the log does not say how many it had", "--learner-gpus"
    if findings.phases.basis == "unknown" and setup.synchronous:
        logged = FRAMEWORK_DEFAULTS[setup.framework].phase_times if setup.framework in FRAMEWORK_DEFAULTS else ""
        how = f"; {logged}" if logged else ""
        yield f"preparation and learning take no time here, as the log has no times of them{how}", "--prepare-s --learn-s"


def uses_of_run(own: OwnRun) -> pd.DataFrame:
    """Return the uses of the whole run's GPU-seconds: those of its simulated steps, and what logged steps took beyond them."""
    uses, cost = uses_of_account(own.account), own.cost
    whole, steps = cost.gpus * cost.time_s, len(own.account.steps)
    factor = min(cost.steps / steps, whole / float(uses["gpu_s"].sum()))
    rest = whole - factor * float(uses["gpu_s"].sum())
    if rest <= LITTLE * whole:
        factor = whole / float(uses["gpu_s"].sum())  # so that the bar adds up to the cost in the sentence
    else:
        usd = float(dollars(rest, cost.usd_per_gpu_hour / 3600.0)) / factor
        uses.loc[len(uses)] = ["rest of the logged steps", "work", rest / factor, usd, 0.0]
    uses[["gpu_s", "usd"]] *= factor
    return uses.assign(share=uses["gpu_s"] / uses["gpu_s"].sum())


def _curve(findings: LoggedRunFindings) -> go.Figure:
    """The run's GPU-hours by the number of GPUs, at the list price where there is one."""
    cluster = findings.setting.cluster
    try:
        price = usd_per_gpu_hour(cluster.kind) if PRICE in findings.not_stated else cluster.usd_per_gpu_hour
    except PriceError:
        price = 0.0
    return plots.plot_gpu_hours(cost_by_gpus(findings), cluster.kind, price, findings.cost.gpus)


def cost_by_gpus(findings: LoggedRunFindings) -> pd.DataFrame:
    """Return the run's cost by number of GPUs: rows ``gpus, hours, gpu_hours``, in ascending order.

    Times are simulated for every number: half of the run's own, a quarter, and so on, and twice as many.
    """
    cost, counts = findings.cost, findings.gpu_counts
    own = counts[0]
    rows = []
    for count in counts:
        if count.gpus_per_actor == own.gpus_per_actor and math.log2(count.replicas / own.replicas).is_integer():
            hours = cost.time_s / 3600.0 * count.seconds / own.seconds
            rows.append((count.gpus, hours, count.gpus * hours))
    return pd.DataFrame(rows, columns=["gpus", "hours", "gpu_hours"]).sort_values("gpus", ignore_index=True)
