"""Response-length predictors: ``fit`` or ``update`` them with rollouts, then ``predict``, ``quantiles`` or ``sample``.

The default is ``EwmaPredictor(window=1)``, which predicts a prompt's mean length in the last epoch. ``InFlightPredictor`` also
updates its forecast while responses are decoded.
"""

from rlhfless.predict.censoring import expected_tokens
from rlhfless.predict.errors import PredictionError
from rlhfless.predict.ewma import EwmaPredictor
from rlhfless.predict.inflight import InFlightPredictor
from rlhfless.predict.metrics import HistoryQuality, history_quality
from rlhfless.predict.predictor import Predictor
from rlhfless.predict.registry import make_predictor, unknown_predictor
from rlhfless.predict.synthetic import SyntheticPredictor

__all__ = [
    "EwmaPredictor",
    "HistoryQuality",
    "InFlightPredictor",
    "PredictionError",
    "Predictor",
    "SyntheticPredictor",
    "expected_tokens",
    "history_quality",
    "make_predictor",
    "unknown_predictor",
]


def __dir__() -> list[str]:
    return sorted(__all__)
