"""``Diagnosis``: what limits a run, ranked, with the numbers that prove it; prints itself, and is the JSON of the report."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from rlhfless.diagnosis.drawn_step import drawn_step
from rlhfless.diagnosis.gpus import NOT_STATED, GpusInWords
from rlhfless.diagnosis.levers import line_in_words
from rlhfless.diagnosis.numbers import OWN_PROFILE, Finding, Lever, Numbers, unit_of
from rlhfless.diagnosis.phases import PHASES
from rlhfless.trace.importers.summary import OTHER_FRAMEWORK

SCHEMA, VERSION = "rlhfless-diagnosis", 3
NEAR = 0.7  # of what the first finding has at stake: a second one that is so near is said, too
LEAST = 0.03  # of the run: levers that save less are one row
NOTHING = "This log cannot say what limits the run."
LITTLE = 0.01  # of the run: findings with less at stake are in the JSON only
LEFT_OUT = ("left out", "logged twice", "restart", "not used", "another run", "per generation")  # in sentences of an import
CANNOT_SAY = "cannot say"
STEP_KINDS = {words: column.removesuffix("_s") for column, words in PHASES.items()}
"""Kind of phase in words -> in JSON: as the keys of numbers begin."""
AMOUNTS = (
    ("step_s", "A step as logged", "s"), ("run_hours", "The run", "hours"), ("bar_step_s", "A step on average", "s"),
    ("gpu_hours", "Cost", "GPU-hours"), ("usd", "Cost", "USD"),
)  # fmt: skip
"""Numbers that end the first screen: key, heading and unit."""
SHOWN_FINDINGS, SHOWN_LEVERS, SHOWN_UNKNOWN, SHOWN_NOTES = 4, 5, 4, 3


@dataclass(frozen=True, eq=False, repr=False)
class Diagnosis:
    """What limits one run, by arithmetic on its log.

    Attributes:
        source: the log's name.
        framework: the framework that wrote it; empty if unknown.
        run: name of the run; empty if there is only one.
        findings: what limits the run, the most important first; empty if the log does not tell.
        numbers: the computed numbers, by key.
        step: a mean step as logged: rows ``phase, kind, seconds, share``, including time that no phase explains; no rows if the
            log has no step times.
        levers: possible changes, by the most that each can save (``Lever.most``).
        cannot_say: what the log does not tell, and what would have to be logged.
        notes: what was left out, and why.
        read: how the log was read, in sentences.
        runs: diagnoses of the single runs, if the log has several; the other fields then compare them.
        clock: the clock of an executed run's times, in words; empty if a framework logged them.
        simulated: what schedules saved where some were simulated, in a sentence; else empty.
        gpus: how many the run had, and whether the user or the log says so.

    Example:
        >>> import pandas as pd
        >>> from rlhfless.diagnosis import diagnose
        >>> lengths = [100] * 63 + [1000]
        >>> log = pd.DataFrame({"step": 0, "prompt_id": range(64), "sample": 0, "response_tokens": lengths})
        >>> diagnose(log).findings[0].kind
        'tail'
    """

    source: str
    framework: str
    run: str
    findings: tuple[Finding, ...]
    numbers: Numbers
    step: pd.DataFrame
    levers: tuple[Lever, ...]
    cannot_say: tuple[str, ...]
    notes: tuple[str, ...]
    read: tuple[str, ...] = ()
    runs: tuple[Diagnosis, ...] = ()
    clock: str = ""
    simulated: str = ""
    gpus: GpusInWords = NOT_STATED

    @property
    def verdict(self) -> tuple[Finding, ...]:
        """What limits the run: the first finding, the second if it costs nearly as much, and always a length limit.

        Empty where the log cannot say.
        """
        said = [one for one in self.findings if one.kind != CANNOT_SAY]
        return (*said[:1], *(one for one in said[1:] if one.kind == "limit" or (one is said[1] and _is_near(one, said[0]))))

    @property
    def shown(self) -> tuple[Finding, ...]:
        """The findings to show: the verdict, and all others with a known share at stake."""
        first = self.verdict or self.findings[:1]
        others = (one for one in self.findings if one not in first and one.at_stake >= LITTLE)
        return (*first, *others)[:SHOWN_FINDINGS]

    @property
    def of_another_framework(self) -> tuple[str, ...]:
        """What was left out of the log because another framework wrote it: said before all else."""
        return tuple(note for note in self.read if note.endswith(OTHER_FRAMEWORK))

    @property
    def heading(self) -> str:
        """Heading of the first finding; a file without a run, such as a model's configuration, has another one."""
        what_it_is = bool(self.verdict) and self.verdict[0].kind in ("memory", "pace") and not self.verdict[0].at_stake
        return "What this file says" if what_it_is else "What limits this run"

    def with_expected(self, expected: Mapping[str, tuple[float, float]], further: Iterable[Lever] = ()) -> Diagnosis:
        """Return the diagnosis with simulated savings added to its levers.

        The simulation uses a latency profile that was checked against the run. Savings are capped at what arithmetic allows,
        because a simulation with wrong times, or another assignment of responses, may promise more.

        Args:
            expected: lower and upper end of the saving, by kind of lever. further: levers that only a simulation finds.
        """
        levers = [
            replace(one, expected=(min(ends[0], one.at_most), min(ends[1], one.at_most)))
            if (ends := expected.get(one.kind, one.expected)) is not None
            else one
            for one in (*self.levers, *further)
        ]
        return replace(self, levers=tuple(sorted(levers, key=lambda lever: -lever.most)))

    def to_dict(self) -> dict[str, Any]:
        """Return the diagnosis as plain values with stable keys; unknown values are absent."""
        runs = {"runs": [one.to_dict() for one in self.runs]} if self.runs else {}
        return {
            **self._head(),
            "verdict": [one.kind for one in self.verdict],
            "findings": [
                {
                    "kind": one.kind,
                    **({"at_stake_share": one.at_stake, "at_stake_of": one.of} if one.at_stake else {}),
                    **({} if one.time_share is None else {"time_share": one.time_share}),
                    "sentence": one.sentence, "proof": list(one.proof),
                }
                for one in self.findings
            ],
            "step": [
                {
                    "phase": str(row.phase), **({"kind": STEP_KINDS[row.kind]} if row.kind else {}),
                    "seconds": float(row.seconds), "share": float(row.share),
                }
                for row in self.step.itertuples()
            ],
            "levers": [
                {
                    "kind": one.kind, "name": one.name, **({"line": one.line} if one.line else {}),
                    "at_most_share": one.at_most, "at_most_of": one.of, "price": one.price,
                    **({} if one.expected is None else {"expected_low_share": one.expected[0],
                                                       "expected_high_share": one.expected[1],
                                                       "expected_evidence": OWN_PROFILE}),
                    **({} if one.simulated_most is None else {"simulated_at_most_share": one.simulated_most}),
                    **({} if one.value is None else {"knob": one.knob, "knob_value": one.value, "swept": [
                        {"knob_value": each.value, "at_most_share": each.at_most, **each.data} for each in one.swept]}),
                }
                for one in self.levers
            ],
            "cannot_say": list(self.cannot_say),
            **runs,
        }  # fmt: skip

    def _head(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA, "version": VERSION, "source": self.source, "framework": self.framework, "run": self.run,
            "numbers": {
                one.key: {
                    "low": one.low, "high": one.high, "unit": unit_of(one.key), "evidence": one.evidence, "how": one.how,
                }
                for one in self.numbers.values()
            },
            "notes": list(self.notes), "read": list(self.read),
        }  # fmt: skip

    def to_json(self) -> str:
        """Return ``to_dict`` as JSON text; no number in it is NaN or infinite."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)

    def to_frame(self) -> pd.DataFrame:
        """Return the numbers as a table: ``key, low, high, unit, evidence, how``."""
        rows = [(one.key, one.low, one.high, unit_of(one.key), one.evidence, one.how) for one in self.numbers.values()]
        return pd.DataFrame(rows, columns=["key", "low", "high", "unit", "evidence", "how"])

    def knobs(self) -> pd.DataFrame:
        """Return the most that levers with an adjustable setting (knob) can save, at several settings.

        Computed from the lengths or end times of the responses (``diagnosis.knobs``).

        Returns:
            Rows ``kind, knob, value, at_most, named`` (it is the setting of the lever's own row), and how each setting changes
            the data, such as ``late_responses_share``; no rows if the log has no responses.

        Example:
            >>> import pandas as pd
            >>> from rlhfless.diagnosis import diagnose
            >>> log = pd.DataFrame({"step": 0, "prompt_id": range(64), "sample": 0, "response_tokens": [100] * 63 + [1000]})
            >>> knobs = diagnose(log).knobs()
            >>> knobs.loc[knobs["named"], ["kind", "value", "at_most"]].values.tolist()
            [['partial rollout', 0.005, 0.9], ['over-sampling', 1.01, 0.9], ['release', 0.005, 0.9]]
        """
        rows = [
            {"kind": lever.kind, "knob": lever.knob, "value": one.value, "at_most": one.at_most,
             "named": one.value == lever.value, **one.data}
            for lever in self.levers for one in lever.swept
        ]  # fmt: skip
        return pd.DataFrame(rows, columns=None if rows else ["kind", "knob", "value", "at_most", "named"])

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield the first screen as pairs of heading and text; an empty heading continues the one before."""
        if self.runs:
            if self.findings:
                yield "The runs compared", " ".join(one.sentence for one in self.findings)
            for place, text in enumerate(self.cannot_say):
                yield ("This log cannot say" if place == 0 else ""), text
            for place, note in enumerate(self.notes[:SHOWN_NOTES]):
                yield ("Note" if place == 0 else ""), note
            for one in self.runs:
                known = bool(one.verdict)
                if self.findings and not (known or len(one.step) or one.levers):
                    continue  # a row of a table, of which no more is known than what was compared
                yield f"Run {one.run}", ""
                yield from one.lines()
            return
        for note in self.of_another_framework:
            yield "Read", note
        if self.gpus.contradicts:
            yield "GPUs", self.gpus.sentence
        if not self.findings:
            yield "What limits this run", NOTHING
        for place, finding in enumerate(self.shown):
            yield (self.heading if place == 0 else "And" if finding in self.verdict else "Also"), finding.sentence
        if self.simulated:
            yield "Simulated", self.simulated
        if len(self.step):
            total = self.numbers.value("step_s") or float(self.step["seconds"].sum())
            which = "An ordinary step" if "all_steps_s" in self.numbers else "A step"
            shown = (row for row in self.step.itertuples() if row.share >= 0.005)
            parts = ", ".join(f"{str(row.phase).rpartition('/')[2]} {row.share:.0%}" for row in shown)
            how = f"executed, {total:,.1f} s ({self.clock})" if self.clock else f"logged, {total:,.1f} s"
            yield f"{which} as {how}", parts
        worth = [lever for lever in self.levers if lever.most >= LEAST]
        for place, lever in enumerate(worth[:SHOWN_LEVERS]):
            yield ("What could be changed" if place == 0 else ""), _lever(lever, self.framework)
        if small := [one.name for one in self.levers if one.most < LEAST]:
            yield ("" if worth else "What could be changed"), f"less than {LEAST:.0%}: {', '.join(small)}"
        for place, text in enumerate(self.cannot_say[:SHOWN_UNKNOWN]):
            yield ("This log cannot say" if place == 0 else ""), text
        for place, note in enumerate(self.notes[:SHOWN_NOTES]):
            yield ("Note" if place == 0 else ""), note
        for note in self.read:
            if note not in self.of_another_framework and any(word in note for word in LEFT_OUT):
                yield "Read", note
        if self.gpus.sentence and not self.gpus.contradicts:
            yield "GPUs", self.gpus.sentence
        for key, heading, unit in AMOUNTS:
            if key in self.numbers and not (key == "step_s" and len(self.step)):  # the bar of a step says it already
                amount = self.numbers[key]
                yield heading, f"{_between(amount.low, amount.high)} {unit} ({amount.how})"
        if "all_held_idle_gpu_share" in self.numbers:
            share, if_held = self.numbers["idle_gpu_share"], self.numbers["all_held_idle_gpu_share"]
            yield "Idle", f"{share.value:.1%} of the GPU-hours that were allocated; {if_held.how}, {if_held.value:.1%}"

    def __str__(self) -> str:
        said = (f"{heading}: {text}".rstrip() if heading else f"  {text}" for heading, text in self.lines())
        return "\n".join("".join(sign if sign.isprintable() else " " for sign in line) for line in said)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th style='text-align:left;vertical-align:top'>{html.escape(heading)}</th>"
            f"<td style='text-align:left'>{html.escape(text)}</td></tr>"
            for heading, text in self.lines()
        )
        bars = [f"{html.escape(one.run)}{drawn_step(one.step)}" for one in self.runs if len(one.step)]
        return f"<table>{rows}</table>{''.join(bars) if self.runs else drawn_step(self.step)}"


def _is_near(one: Finding, first: Finding) -> bool:
    """Whether a finding costs nearly as much as the first one; of two shares of responses, whether it is nearly as large."""
    if one.costs is None or first.costs is None:
        return one.costs is first.costs and one.at_stake >= NEAR * first.at_stake
    return one.costs >= NEAR * first.costs


def _lever(lever: Lever, framework: str) -> str:
    expected = f", {lever.expected_in_words} expected (simulated)" if lever.expected else ""
    line = f" [{said}]" if (said := line_in_words(lever, framework)) else ""
    return f"{lever.name}{line}: at most {lever.at_most_in_words}{expected}; price: {lever.price}"


def _between(low: float, high: float) -> str:
    ends = [f"{end:,.1f}" if end >= 10 else f"{end:.3g}" for end in (low, high)]
    return ends[0] if ends[0] == ends[1] else " to ".join(ends)
