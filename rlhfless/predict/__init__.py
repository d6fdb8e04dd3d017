"""Response-length predictors: from the rollouts of earlier steps to the lengths that a plan is made for."""

from rlhfless.predict.censoring import expected_tokens
from rlhfless.predict.errors import PredictionError
from rlhfless.predict.ewma import EwmaPredictor
from rlhfless.predict.quality import HistoryQuality, history_quality

__all__ = ["EwmaPredictor", "HistoryQuality", "PredictionError", "expected_tokens", "history_quality"]
