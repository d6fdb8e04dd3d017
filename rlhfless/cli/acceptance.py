"""What ``--drafts`` says: which share of the drafted tokens is accepted in speculative decoding."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from rlhfless.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from rlhfless.cli.log_options import ReadOptions
    from rlhfless.simulate import SimulatedDrafts
    from solver.model.acceptance import Acceptance

NAMES = ("weak", "strong")
MOST_POSITIONS = 8  # of drafts that are measured or drawn
MEASURED_TOKENS = 100_000  # of another log, about
ACCEPTED = (
    "70 % of the drafted tokens (A0.7), as many as measured on MATH-500 (weak), or as on the shipped run (strong, a character "
    "task)"
)
"""What may be given, for help texts."""


def drawn_drafts(given: str, seed: int) -> SimulatedDrafts:
    """Return drafts of which as many are accepted as ``weak``, ``strong`` or a rate such as ``A0.7`` says.

    Raises:
        InputError: the text names none.
    """
    from rlhfless.simulate import DrawnDrafts

    accepted = stated_acceptance(given)
    return DrawnDrafts(accepted, seed=seed) if given in NAMES else DrawnDrafts(accepted, spread=0.0, seed=seed)


def accepted_drafts(
    given: str | None, log: ReadOptions, path: Path, rollouts: pd.DataFrame, seed: int
) -> SimulatedDrafts | None:
    """Return what is accepted; None where nothing is given.

    Args:
        given: what --drafts says. path, rollouts: the log that is simulated.

    Raises:
        InputError: --drafts is neither a name, a rate nor a log; or the log lacks texts or a tokenizer.
    """
    if given is None:
        return None
    if named_acceptance(given) is not None:
        return drawn_drafts(given, seed)
    source = Path(given)
    if not source.exists():
        raise InputError(f"--drafts {given}: no such log; a log with texts, weak, strong, or a rate such as A0.7 is needed")
    return _of_texts(log, source, rollouts if source.resolve() == path.resolve() else None, seed)


def _of_texts(log: ReadOptions, source: Path, rollouts: pd.DataFrame | None, seed: int) -> SimulatedDrafts:
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
        raise InputError(f"--drafts {given}: is not an acceptance rate; weak, strong, or a rate such as A0.7 is needed")
    return acceptance
