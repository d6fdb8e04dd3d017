"""Report section on assumptions and method: what was assumed, how simulated times were scaled, and how the log was read."""

from __future__ import annotations

from collections.abc import Iterator

from rlhfless.analysis import FRAMEWORK_DEFAULTS
from rlhfless.analysis.assumptions import PROFILE
from rlhfless.analysis.framework_defaults import DISPATCHES
from rlhfless.plots.export.html_page import Page
from rlhfless.report.not_stated import OPTIONS, PROFILE_HOW
from rlhfless.report.study import Findings
from rlhfless.trace import ImportedLog, OpenedLog


def assumptions(findings: Findings) -> Iterator[tuple[str, str]]:
    """Return what matters to what was simulated and is assumed, as pairs of a sentence and the option that states it."""
    times, setup = findings.times, findings.times.setup
    for name, sentence in findings.not_stated.items():
        if name == PROFILE:
            scaled = "; its times are scaled to those of the run" if times.calibrated.steps else ""
            apart = "what limits the run is arithmetic without it, on replicas of one GPU unless --gpus-per-actor says more"
            yield f"{sentence}{scaled}; {apart}; {PROFILE_HOW}", OPTIONS[name]
        else:
            yield sentence, OPTIONS[name]
    if sum(name in DISPATCHES for name in setup.candidates) > 1:
        rules = "prompts reached replicas in equal chunks, or each went to the replica with the fewest responses in flight"
        yield f"{rules}; ranges cover both", "--dispatch"
    if not setup.colocated and not setup.learner_gpus:
        yield "GPUs of the learner alone are not counted, because the log does not say how many it had", "--learner-gpus"
    if times.phases.basis == "unknown" and setup.synchronous:
        logged = FRAMEWORK_DEFAULTS[setup.framework].phase_times if setup.framework in FRAMEWORK_DEFAULTS else ""
        how = f"; {logged}" if logged else ""
        yield f"preparation and learning are left out, as the log has no times of them{how}", "--prepare-s --learn-s"


def assumed_part(page: Page, findings: Findings) -> None:
    """Add what was assumed of a run, with the option that states it instead."""
    assumed = list(assumptions(findings))
    if assumed:
        page.heading("What was assumed, and the option that states it instead")
        page.options((option, text) for text, option in assumed)
    for sentence in findings.times.setup.assumed:
        if sentence not in findings.not_stated.values():
            page.text(f"Assumed: {sentence}.")


def reading_part(page: Page, log: OpenedLog | ImportedLog) -> None:
    """Add how a log was read; nothing of a trace of our own."""
    if log.summary is None:
        return
    page.heading("How the log was read")
    preview = log.summary.preview
    for line in str(log.summary).removesuffix(preview).splitlines():
        page.text(line)
    if preview:
        page.printed(preview)
