"""tqdm's progress bar in console text, which tells steps and seconds of a run."""

from __future__ import annotations

import re

BAR = re.compile(
    r"(?:\d{1,3}%\|[^|]{0,400}\|\s*)?\b(\d{1,9})/(\d{1,9}) \[((?:\d{1,5}:)?\d{1,2}:\d\d)<\*{0,2}[\d:?]{1,20},\s*"
    r"(?:(\d{1,9}(?:\.\d{1,9})?)(s/it|it/s))?"
)
MOST_BARS = 100  # bars of different lengths that are followed


class ProgressBar:
    """Follows the progress bar of a run's steps.

    A log has further bars, of evaluations or of weights being loaded. The run's own has the framework's text before it, and of
    several with that text it is the one that ran longest.

    Args:
        before: text before the bar of steps, which may be empty; None if the framework prints no such bar.
    """

    def __init__(self, before: str | None) -> None:
        self._before = before
        self._bars: dict[int, dict[str, float]] = {}

    def see(self, text: str) -> None:
        """Take the next line."""
        if self._before is None or " [" not in text or "<" not in text or not (match := BAR.search(text)):
            return
        before = text[: match.start()].strip()
        if (self._before not in before) if self._before else before:
            return
        done, planned = int(match[1]), int(match[2])
        if planned in self._bars or len(self._bars) < MOST_BARS:
            state = {"planned_steps": float(planned), "steps_done": float(done), "elapsed_s": clock_seconds(match[3])}
            if not done:  # before the first step, so no time says anything of steps
                state = {"planned_steps": float(planned)}
            if match[4] and float(match[4]):
                rate = float(match[4])
                state["seconds_per_step"] = rate if match[5] == "s/it" else 1 / rate
            self._bars[planned] = state

    def facts(self) -> dict[str, float]:
        """Return the last state of the run's bar, by names of ``run_facts.RUN_FACTS``; empty if there is no bar."""
        return max(self._bars.values(), key=lambda state: state.get("elapsed_s", 0.0), default={})


def clock_seconds(clock: str) -> float:
    """Return the seconds of a bar's clock, such as ``1:02:03``."""
    return float(sum(int(part) * 60**place for place, part in enumerate(reversed(clock.split(":")))))
