"""Errors and warnings of training runs that say what to do."""

from __future__ import annotations

from rlhfless.errors import InputError, UserError


class TrainError(InputError):
    """A training option is wrong, or a run cannot be resumed."""


class ReproducibilityWarning(UserWarning):
    """A run continues on another device or cluster, where it is not the same bit for bit."""


class UnsavedWarning(UserWarning):
    """Something of a run could not be saved, or committed steps are undone because they have no checkpoint."""


class LearnerError(UserError, RuntimeError):
    """A learner process died or failed, so a step was not learned from; a resumed run repeats that step."""
