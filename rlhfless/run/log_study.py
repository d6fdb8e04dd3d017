"""What a logged run wasted, what schedules would have saved, and what to change: the findings of the report, one by one.

Knows the report's findings and draws them; computes nothing itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import plotly.graph_objects as go

from rlhfless.analysis import FRAMEWORK_DEFAULTS, Change
from rlhfless.plots import plot_account, plot_plane, plot_timeline, plot_waterfall
from rlhfless.report.changes import changes_of
from rlhfless.report.first_screen import in_short
from rlhfless.report.logged_run import at_prices
from rlhfless.report.savings import savings_frame
from rlhfless.report.study import Assumptions, ReportData
from rlhfless.report.write import write_report
from rlhfless.trace import OpenedLog
from rlhfless.trace.metrics.cross_check import checks_frame


@dataclass(frozen=True, eq=False, repr=False)
class LogStudy:
    """The findings about a logged run; ``Run.study`` makes it.

    Attributes:
        log: the responses. data: the calibrated setting, the simulated schedules and all findings.
        assumptions: those of the user.
    """

    log: OpenedLog
    data: ReportData
    assumptions: Assumptions

    @property
    def assumed(self) -> tuple[str, ...]:
        """What the log does not say and is assumed, one sentence each."""
        return tuple(self.data.findings.setup.assumed)

    @property
    def checks(self) -> pd.DataFrame:
        """What the log measured beside what is counted or simulated; without rows where it measured nothing."""
        return checks_frame(self.data.findings.checks)

    @property
    def savings(self) -> pd.DataFrame:
        """Savings of schedules that release GPUs: ranges of time and GPU-seconds, and the most that any schedule saves."""
        return savings_frame(self.data.findings.given_back, ("time", "GPU-seconds"))

    @property
    def what_if(self) -> pd.DataFrame:
        """Generation with one setting changed, on the last steps; the first row is the unchanged run."""
        columns = ["change", "policy", "gpus", "actors", "time_s", "time_share", "usd", "usd_share", "missing"]
        return self.data.findings.what_if[columns]

    @property
    def at_prices(self) -> pd.DataFrame:
        """What the last steps, as they were, cost at list prices and at further ones."""
        return at_prices(self.data.findings, self.assumptions.prices)

    @property
    def changes(self) -> tuple[Change, ...]:
        """What to change, the largest saving first; shares of the run's cost."""
        return tuple(changes_of(self.data.findings))

    @property
    def configuration(self) -> str:
        """Lines for the framework's configuration, each after what it changes; a sentence where there are none."""
        changes = [change for change in self.changes if change.lines]
        if not changes and self.data.findings.setup.framework not in FRAMEWORK_DEFAULTS:
            what = "; ".join(change.what for change in self.changes) or "nothing that is certain to save some of the cost"
            return f"The framework of the log is unknown, so there are no lines of its configuration. To change: {what}."
        if not changes:
            return "No line of the framework's configuration is known that is certain to save some of the cost of this run."
        return "\n".join(line for change in changes for line in (f"# {change.what}", *change.lines))

    @property
    def straggler(self) -> str:
        """The last response of the last step that was simulated, in a sentence."""
        last = self.data.findings.account.steps.iloc[-1]
        return (
            f"In step {last['step']} the last response has {last['response_tokens']:,} tokens, where the median has "
            f"{last['median_tokens']:,.0f}; for {last['tail_s'] / last['generation_s']:.0%} of the time of generation only "
            "the last 10 % of the responses were unfinished."
        )

    def report(self, out: str | Path) -> Path:
        """Write these findings as one interactive page, and return its path.

        Raises:
            TraceError: the file cannot be written.
        """
        return write_report(self.log, out, self.data.setting, self.assumptions, study=self.data)

    def plot_gpu_seconds(self) -> go.Figure:
        """Return where the GPU-seconds went, by use."""
        return plot_account(self.data.findings.account.lines)

    def plot_timeline(self) -> go.Figure:
        """Return the last simulated step under the run's own schedule."""
        findings = self.data.findings
        step = int(findings.account.steps["step"].iloc[-1])
        return plot_timeline(self.data.schedules.simulation.traces[findings.setup.dispatch], step)

    def plot_ideas(self) -> go.Figure:
        """Return the savings of one idea after another, beginning with the run's own schedule."""
        return plot_waterfall(self.data.schedules.results(self.data.schedules.ladder))

    def plot_schedules(self) -> go.Figure:
        """Return time and cost of every schedule, beside the bound."""
        return plot_plane(self.data.schedules.results(list(self.data.schedules.policies)))

    def __repr__(self) -> str:
        return "\n".join(in_short(self.data.findings))
