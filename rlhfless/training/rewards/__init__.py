"""How responses are judged: rules, functions of the user's, reward models, and weighted sums of them.

Needs no torch; ``rewards.model`` does. An error, a time-out or a number that is none belongs to one response: it has no reward,
a warning says so, and nothing is learned from it.
"""

from __future__ import annotations

from rlhfless.training.rewards.combine import FunctionReward, Rewards
from rlhfless.training.rewards.response import Failure, Response, Reward, RewardWarning, Scores

__all__ = ["Failure", "FunctionReward", "Response", "Reward", "RewardWarning", "Rewards", "Scores"]
