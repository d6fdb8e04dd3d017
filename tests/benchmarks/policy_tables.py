"""The tables of the policy benchmark as text: one per log and profile, and those of ``details/policies.md``.

Knows the rows of ``policy_comparison.Comparison``; nothing of how they were measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from policy_comparison import BASE, OURS, RIVALS

LOGS = {
    "math500": "MATH-500", "gsm8k-visit": "GSM8K", "gsm8k": "GSM8K, 16 prompts", "arithmetic-epoch": "shipped",
    "arithmetic": "shipped, 32 prompts",
}  # fmt: skip
MAIN = (*RIVALS, *OURS, "oracle+replan", "bound")  # whose times and GPU-seconds are shown
SHORT = {"random": "r", "random+tau": "t", "fold": "f"}
LEAST_DIFFERENCE = 0.0025  # from which on the value without planning and deciding is shown, too


class Column(NamedTuple):
    """A log on a profile, planned with its a and b off by a share."""

    log: str
    profile: str
    off: float
    rows: list[dict[str, Any]]

    @property
    def title(self) -> str:
        """What was run."""
        wrong = f" off by {100 * self.off:.0f} %" if self.off else ""
        return f"{LOGS.get(self.log, self.log)}, {self.profile.split('-')[0].upper()}{wrong}"

    def of(self, policy: str) -> dict[str, Any] | None:
        """The row of a policy."""
        return next((row for row in self.rows if row["policy"] == policy), None)


def show(rows: Sequence[dict[str, Any]]) -> str:
    """The table of one log and profile."""
    head = (
        f"{'policy':15s}{'actors':>7s}{'time s':>9s}{'GPU-s':>9s}{'idle':>8s}{'value':>8s}{'95 % interval':>17s}{'alone':>7s}"
    )
    lines = [head + f"{'C/bound':>8s}{'moves':>7s}{'plan s':>8s}{'delay s':>8s}{'decide s':>9s}"]
    for r in rows:
        if r["policy"] == "bound":
            lines.append(f"{'bound':22s}{r['time_s']:9.2f}{r['gpu_seconds']:9.1f}{'':8s}{r['value']:8.3f}{'':24s}{1.0:8.2f}")
            continue
        interval = "-" if r["low"] is None else f"[{r['low']:.3f}, {r['high']:.3f}]"
        lines.append(
            f"{r['policy']:15s}{r['actors']:7.1f}{r['time_s']:9.2f}{r['gpu_seconds']:9.1f}{r['idle_gpu_seconds']:8.1f}"
            f"{r['value']:8.3f}{interval:>17s}{r['generation_value']:7.3f}{r['over_bound']:8.2f}{r['moves']:7.0f}"
            f"{r['planning_s']:8.3f}{r['planning_delay_s']:8.3f}{r['deciding_s']:9.3f}"
        )
    return "\n".join(lines)


def markdown(columns: Sequence[Column]) -> str:
    """Values of all policies; realised times and GPU-seconds; ours against the rivals; and what they sum up to."""
    return "\n\n".join([_values(columns), _times(columns), _against(columns), _summary(columns)])


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *lines))


def told(text: str, low: float | None, high: float | None) -> str:
    """Bold where the interval lies below 1, in italics where it lies above."""
    if low is None or high is None:
        return text
    return f"**{text}**" if high < 1 else f"*{text}*" if low > 1 else text


def _values(columns: Sequence[Column]) -> str:
    """T^w C^(1-w) relative to random, where random has more than one actor: one leaves nothing to choose."""
    shown = [column for column in columns if (base := column.of(BASE)) is not None and base["actors"] > 1]
    lines = []
    for policy in [row["policy"] for row in columns[0].rows]:
        cells = []
        for row in (column.of(policy) for column in shown):
            if row is None:
                cells.append("-")
                continue
            alone = row.get("generation_value", row["value"])
            apart = abs(alone - row["value"]) >= LEAST_DIFFERENCE
            cells.append(told(f"{row['value']:.3f}", row.get("low"), row.get("high")) + (f" ({alone:.3f})" if apart else ""))
        lines.append([policy, *cells])
    return _table(["policy", *(column.title for column in shown)], lines)


def _marks(row: dict[str, Any], of: str) -> str:
    """Initials of the rivals that take significantly more (+) and less (-)."""
    ratios = {SHORT[rival]: ratio[of] for rival, ratio in (row.get("against") or {}).items()}
    more = "".join(name for name, (_, _, high) in ratios.items() if high < 1)
    less = "".join(name for name, (_, low, _) in ratios.items() if low > 1)
    return "".join(f" {sign}{names}" for sign, names in (("+", more), ("-", less)) if names)


def _times(columns: Sequence[Column]) -> str:
    """Realised seconds and GPU-seconds, with marks against the rivals."""
    lines = []
    for column in columns:
        rows = [column.of(policy) for policy in MAIN]
        cells = [
            "-" if r is None else f"{r['time_s']:.2f}{_marks(r, 'time_s')} / {r['gpu_seconds']:.0f}{_marks(r, 'gpu_seconds')}"
            for r in rows
        ]
        lines.append([column.title, *cells])
    return _table(["s / GPU-s", *MAIN], lines)


def _against(columns: Sequence[Column]) -> str:
    """The value of each of ours over that of each rival, with its interval."""
    pairs = [(mine, rival) for mine in OURS for rival in RIVALS]
    lines = []
    for column in columns:
        cells = []
        for mine, rival in pairs:
            ratio = ((column.of(mine) or {}).get("against") or {}).get(rival)
            if ratio is None:
                cells.append("-")
                continue
            value, low, high = ratio["value"]
            cells.append(told(f"{value:.3f}", low, high) + f" [{low:.3f}, {high:.3f}]")
        lines.append([column.title, *cells])
    return _table(["value", *(f"{mine} / {rival}" for mine, rival in pairs)], lines)


def _summary(columns: Sequence[Column]) -> str:
    """How often each of ours beats and loses to each rival."""
    said = []
    for mine in OURS:
        for rival in RIVALS:
            rows = [((column.of(mine) or {}).get("against") or {}).get(rival) for column in columns]
            ratios = [row["value"] for row in rows if row is not None]
            if not ratios:
                continue
            wins, losses = sum(high < 1 for _, _, high in ratios), sum(low > 1 for _, low, _ in ratios)
            least, most = min(r for r, _, _ in ratios), max(r for r, _, _ in ratios)
            said.append(
                f"- `{mine}` against {rival}: better in {wins} of {len(ratios)} rows, worse in {losses}, else not told apart; "
                f"ratios {least:.3f} to {most:.3f}."
            )
    return "\n".join(said)
