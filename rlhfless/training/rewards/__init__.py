"""Rewards of responses: rules, user functions, reward models, and weighted sums of them.

Needs no torch, except for ``rewards.model``. An error, a time-out or a result that is not a number concerns one response only.
It gets no reward, a warning says so, and it is left out of learning. With None or NaN a function abstains: the response has the
sum of the others. A step in which no response has a reward ends the run.
"""

from __future__ import annotations

from rlhfless.training.problem import RewardWarning
from rlhfless.training.rewards.combine import FunctionReward, Rewards
from rlhfless.training.rewards.registry import as_rewards
from rlhfless.training.rewards.response import Failure, Response, Reward, RewardError, Scores
from rlhfless.training.rewards.user_function import BatchFunctionReward, RewardFunction

__all__ = ["BatchFunctionReward", "Failure", "FunctionReward", "Response", "Reward", "RewardError", "RewardFunction",
           "RewardWarning", "Rewards", "Scores", "as_rewards"]  # fmt: skip
