"""Options of commands that simulate drafts: what is accepted, how many tokens are drafted, and which policies draft."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rlhfless.cli.options import Command, Decorator, together
from rlhfless.errors import InputError
from solver.model.drafting import Drafting

if TYPE_CHECKING:
    import pandas as pd

    from rlhfless.cli.log_options import LogOptions
    from rlhfless.scheduling import SchedulingPolicy
    from rlhfless.simulate import SimulatedDrafts
    from solver.model.acceptance import Acceptance

DEFAULT_DRAFTING = ("spec", "spec+fold")  # compared with the default policies where drafts are given
NAMES = ("weak", "strong")
MOST_POSITIONS = 8  # of drafts that are measured or drawn
MEASURED_TOKENS = 100_000  # of another log, about


@dataclass(frozen=True)
class DraftOptions:
    """What the options say: ``drafts`` and ``draft_length``, as they were given."""

    drafts: str | None = None
    draft_length: str | None = None

    def policies(self, names: Sequence[str], by_default: bool) -> list[str | SchedulingPolicy]:
        """Return the policies to compare: with --draft-length all of them draft.

        Args:
            by_default: nobody named these policies, so that two that draft are added where drafts are given.

        Raises:
            InputError: an option lacks the other, or no policy drafts.
            PlanningError: the draft length is none.
        """
        from rlhfless.scheduling import make_policy
        from rlhfless.scheduling.speculative import Speculative

        drafting = [name for name in names if name.startswith("spec")]
        if self.drafts is None and (drafting or self.draft_length is not None):
            what = f"policy {drafting[0]}" if drafting else "--draft-length"
            raise InputError(f"{what} drafts tokens; --drafts says how many are accepted, such as --drafts weak")
        if self.drafts is None:
            return list(names)
        if self.draft_length is not None:
            settings = Drafting.of_length(self.draft_length, "--draft-length")
            return [name if name in drafting else Speculative(settings, make_policy(name), name) for name in names]
        if not drafting and not by_default:
            raise InputError(
                "--drafts is given, but no policy drafts; name one, such as spec, in --policies, or let all draft with "
                "--draft-length"
            )
        return [*names, *(name for name in DEFAULT_DRAFTING if by_default and name not in names)]

    def accepted(self, log: LogOptions, path: Path, rollouts: pd.DataFrame, seed: int) -> SimulatedDrafts | None:
        """Return what is accepted; None without --drafts.

        Args:
            path, rollouts: the log that is simulated.

        Raises:
            InputError: --drafts is neither a name, a rate nor a log; or the log lacks texts or a tokenizer.
        """
        from rlhfless.simulate import DrawnDrafts

        given = self.drafts
        if given is None:
            return None
        if (named := named_acceptance(given)) is not None:
            return DrawnDrafts(named, seed=seed) if given in NAMES else DrawnDrafts(named, spread=0.0, seed=seed)
        source = Path(given)
        if not source.exists():
            raise InputError(f"--drafts {given}: no such log; a log with texts, weak, strong, or a rate such as A0.7 is needed")
        return self._of_texts(log, source, rollouts if source.resolve() == path.resolve() else None, seed)

    def _of_texts(self, log: LogOptions, source: Path, rollouts: pd.DataFrame | None, seed: int) -> SimulatedDrafts:
        from rlhfless.analysis.draft_acceptance import measure_drafts
        from rlhfless.analysis.draft_groups import check_texts
        from rlhfless.analysis.draft_study import last_prompts
        from rlhfless.analysis.log_drafts import LogDrafts
        from rlhfless.analysis.log_texts import text_encoder
        from rlhfless.simulate import DrawnDrafts
        from rlhfless.trace.importers.import_session import TEXTS

        texts = log.open_responses(source, TEXTS).trace.rollouts if rollouts is None else rollouts
        check_texts(texts)
        if log.tokenizer is None:
            raise InputError(
                f"--drafts {source}: its texts have to be counted in tokens; --tokenizer, a folder or hub name, is needed"
            )
        encode, _ = text_encoder(log.tokenizer)
        if rollouts is not None:
            return LogDrafts(rollouts, encode, max_draft_tokens=MOST_POSITIONS)
        kept = last_prompts(texts, MEASURED_TOKENS)
        measured = measure_drafts(kept, encode, max_draft_tokens=MOST_POSITIONS, steps=[int(kept["step"].max())])
        return DrawnDrafts(measured.acceptance, seed=seed)


def named_acceptance(given: str) -> Acceptance | None:
    """Return the acceptance that ``weak``, ``strong`` or a rate such as ``A0.7`` names; None for any other text.

    Raises:
        InputError: the rate is no probability.
    """
    from rlhfless.simulate import STRONG, WEAK
    from solver.model.acceptance import Acceptance

    if given in NAMES:
        return WEAK if given == "weak" else STRONG
    if not re.fullmatch(r"A\d*\.?\d+", given):
        return None
    if not 0 <= (rate := float(given[1:])) <= 1:
        raise InputError(f"--drafts {given}: the rate is {rate:g}; a probability from 0 to 1 is needed, such as A0.7")
    return Acceptance.geometric(rate, MOST_POSITIONS)


def stated_acceptance(given: str) -> Acceptance:
    """Return the acceptance that ``named_acceptance`` finds.

    Raises:
        InputError: the text names none.
    """
    if (acceptance := named_acceptance(given)) is None:
        raise InputError(f"--drafts {given}: is no acceptance; weak, strong, or a rate such as A0.7 is needed")
    return acceptance


def drafts_option(what: str, *, of_log: bool = False) -> Decorator:
    """Return the option --drafts.

    Args:
        what: begins its help and is followed by what is accepted. of_log: whether the texts of a log may say it, too.
    """
    texts = "what drafts from the texts of LOG accept, or " if of_log else ""
    return click.option(
        "--drafts", metavar="LOG|A0.7|weak|strong" if of_log else "A0.7|weak|strong",
        help=f"{what} {texts}this share of drafted tokens, or as measured on MATH-500 (weak) or on the shipped run (strong, a "
        "character task).  [default: no drafts]",
    )  # fmt: skip


def draft_options(command: Command) -> Command:
    """Add --drafts and --draft-length, as the argument ``drafts``."""
    length = click.option(
        "--draft-length", metavar="adaptive|critical|N",
        help="Draft under every policy, as many tokens as each response accepts (adaptive), more for those predicted to "
        "finish last (critical), or N.  [default: only policies spec... draft]",
    )  # fmt: skip
    accepts = drafts_option("Simulate speculative decoding: accept", of_log=True)
    return together("drafts", lambda: DraftOptions, [accepts, length])(command)
