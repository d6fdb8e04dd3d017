"""Which exceptions are messages for people: each is one sentence, and the command line ends with it and exit code 2.

Knows the error classes of all packages; nothing else.
"""

from __future__ import annotations


class MissingExtra(ImportError):
    """An optional package is needed; the message names the extra to install."""


def missing_extra(what: str, package: str | None, extra: str) -> MissingExtra:
    """The one sentence said when an optional package is not installed."""
    return MissingExtra(f"{what} needs {package}, which is not installed: pip install 'rlhfless[{extra}]'", name=package)


class InputError(ValueError):
    """A wrong option or file that no package below the command line knows of."""


def user_errors() -> tuple[type[Exception], ...]:
    """The classes whose message is meant for people."""
    from rlhfless.latency import PriceError, ProfileError
    from rlhfless.predict import PredictionError
    from rlhfless.scheduling import PolicyError
    from rlhfless.trace import TraceError
    from rlhfless.training.config import TrainError
    from solver.errors import PlanningError

    return (
        PlanningError,
        TraceError,
        ProfileError,
        PriceError,
        PredictionError,
        PolicyError,
        TrainError,
        MissingExtra,
        InputError,
    )
