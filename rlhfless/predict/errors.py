"""The one exception of the predictors for wrong input. Every message is one sentence that says what would be right."""

from __future__ import annotations

from rlhfless.errors import UserError


class PredictionError(UserError, ValueError):
    """Lengths cannot be predicted from the given input; the message says what would be right."""
