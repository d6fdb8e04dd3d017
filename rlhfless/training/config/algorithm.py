"""What an algorithm is: a class of options that computes advantages and the loss of a token; and the algorithms by name.

Needs no torch: methods import what they compute with. ``algorithms.policy_gradient`` trains with such a class. Each file in
``algorithms/builtin`` is one algorithm. Yours may stand anywhere: ``register`` makes its name known.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import pkgutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeVar, get_args

import numpy as np
from pydantic import StrictBool, model_validator
from pydantic.errors import PydanticUserError

from rlhfless.errors import likely_meant
from rlhfless.training.config.errors import TrainError
from rlhfless.training.config.section import (
    ALGORITHMS,
    Count,
    NotNegative,
    NotNegativeOrInfinite,
    PositiveOrInfinite,
    Section,
    Share,
)
from solver.layouts.graph import GENERATE, INFERENCE, TRAIN, Call, Graph

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
    from torch import Tensor
else:
    ModelMetaclass = type(Section)  # it has no public name

Aggregation = Literal["token", "sequence", "constant"]
KlIn = Literal["loss", "reward"]
USUAL = "grpo"
"""Name of the algorithm where none is given."""
METHODS = {
    "advantages": ("rewards", "group_of"), "token_loss": ("new", "old", "advantages", "mask"),
    "token_advantages": ("rewards", "values", "mask"),
}  # fmt: skip
"""Methods that a class may define -> the arguments that the learner calls each with."""
FACTS = ("compares_responses", "kl_in")
"""What a class says without a type, as it is no option."""


class _Options(ModelMetaclass):
    """Refuses an attribute without a type in a sentence; pydantic's own speaks of its settings."""

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **given: Any) -> Any:
        try:
            return super().__new__(mcs, name, bases, namespace, **given)
        except PydanticUserError as error:
            if error.code != "model-field-missing-annotation":
                raise
            key = next(key for key in namespace if f"`{key} = " in str(error))
            value, meant = namespace[key], likely_meant(key, FACTS)
            hint = (
                f"{meant} is the closest name that needs none" if meant else f"write {key}: {type(value).__name__} = {value!r}"
            )
            raise TrainError(f"{key} of {name} has no type; {hint}") from None


class AlgorithmConfig(Section, metaclass=_Options):
    """Options of every algorithm, and what the learner asks of it. A subclass gives ``name`` and ``advantages``.

    Attributes:
        compares_responses: advantages compare the responses to one prompt, so each prompt needs two or more, and streaming
            adds whole groups.
        kl_in: where the penalty of ``kl_coef`` is: k3 per token in the ``loss``, or log p_old - log p_reference in the
            ``reward``, from which advantages are computed.
    """

    section: ClassVar[str | None] = "algorithm"
    compares_responses: ClassVar[bool] = False
    kl_in: ClassVar[KlIn] = "loss"

    name: str
    """Learn with this algorithm, or with one of your own that is registered."""
    num_updates: Count = 1
    """Optimizer steps on every mini-batch. See ``optimizer.num_mini_batches``."""
    loss_aggregation: Aggregation = "token"
    """Average losses over all tokens (token), per response (sequence), or by a constant divisor (constant). See
    ``losses.loss_weights``."""
    clip_ratio_low: Share = 0.2
    """Clip policy ratios below 1 minus this."""
    clip_ratio_high: NotNegativeOrInfinite = 0.2
    """Clip policy ratios above 1 plus this."""
    kl_coef: NotNegative = 0.0
    """Coefficient of the KL penalty to the initial model. At 0 no reference model is needed."""
    mask_truncated: StrictBool = False
    """Leave truncated responses out of the loss. Their rewards still count in the mean of their group."""
    old_logprobs_from: Literal["auto", "engine", "recomputed"] = "auto"
    """Source of the old log-probabilities, those of the weights that generated: the engine, or recomputed by the learner.
    ``auto`` recomputes them if engine and learner differ: with engine vllm, or if either computes in bfloat16; not with several
    ``optimizer.num_mini_batches`` and ``cluster.learning`` stream. If ``auto`` recomputes, the default of
    ``importance_ratio_cap`` is 2, as in TRL."""
    importance_ratio_cap: PositiveOrInfinite | None = None
    """Cap on the importance sampling factors, such as 2.0, which correct the engine's distribution to the recomputed one.
    Default: see ``old_logprobs_from``."""

    @classmethod
    def __pydantic_init_subclass__(cls, **given: Any) -> None:
        """Algorithms are named by ``register``, not by being defined."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.importance_ratio_cap is not None and self.old_logprobs_from == "engine":
            raise TrainError(
                f"algorithm.importance_ratio_cap is {self.importance_ratio_cap}, which needs algorithm.old_logprobs_from "
                "'recomputed'; with 'engine' the ratio itself corrects"
            )
        return self

    # --- what an algorithm computes -----------------------------------------------------------------------------------

    def advantages(self, rewards: np.ndarray, group_of: np.ndarray) -> np.ndarray:
        """Return the (R,) advantages of responses, each the same for all tokens of its response.

        One may depend on its own reward and, with ``compares_responses``, on those of the same prompt; not on others, because a
        step may be learned from prompt by prompt.

        Args:
            rewards: (R,), less the penalty where ``kl_in`` is ``reward``; NaN where a response could not be judged, whose
                advantage is 0.
            group_of: (R,) number or name of each response's prompt.
        """
        raise NotImplementedError(f"{type(self).__name__} has no method advantages")

    def token_loss(self, new: Tensor, old: Tensor, advantages: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return the pair of (B, T) losses of tokens and a (B, T) bool mask of where the gradient was clipped away; PPO's by
        default. Both are set to 0 outside ``mask``.

        It may depend on a row's other tokens, not on other rows. Aggregation, the penalty of ``kl_in`` ``loss`` and importance
        factors are added to it.

        Args:
            new, old: (B, T) log-probabilities. advantages: (B, T), or (B, 1) where a response's tokens share theirs.
            mask: (B, T) True on response tokens.
        """
        return self.clipped_loss(log_ratios(new, old, mask), advantages, mask)

    def clipped_loss(self, log_ratio: Tensor, advantages: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return PPO's clipped surrogate loss (Schulman et al. 2017, arXiv:1707.06347, eq. 7), as ``token_loss`` does.

        With the ratio w = exp(log_ratio): -min(w A, clip(w, 1 - clip_ratio_low, 1 + clip_ratio_high) A); separate bounds are
        DAPO's (eq. 8).

        Args:
            log_ratio, advantages: (B, T) of tokens, or (B, 1) of responses.
        """
        ratio = log_ratio.exp()
        free, held = ratio * advantages, ratio.clamp(1 - self.clip_ratio_low, 1 + self.clip_ratio_high) * advantages
        loss = (-free.minimum(held)).expand(mask.shape).masked_fill(~mask, 0.0)
        return loss, mask & (held.detach() < free.detach())

    # --- what others need to know of it -------------------------------------------------------------------------------

    @property
    def recomputes(self) -> bool:
        """Return whether old log-probabilities are asked to be recomputed."""
        corrects = self.old_logprobs_from == "auto" and self.importance_ratio_cap is not None
        return corrects or self.old_logprobs_from == "recomputed"

    @property
    def trained_models(self) -> int:
        """Number of models that are trained on every token."""
        return 1

    @property
    def forward_first(self) -> bool:
        """Whether advantages need a forward pass of the trained models over all tokens."""
        return self.kl_in == "reward" and self.kl_coef > 0

    @property
    def prepared_models(self) -> int:
        """Number of models that compute every token before the first update: reference, and trained ones."""
        return int(self.kl_coef > 0) + (self.trained_models if self.forward_first else 0)

    @classmethod
    def graph(cls) -> Graph:
        """Return the calls of a whole step, as a planner assumes them: with a reward model and a reference."""
        return _graph(cls, critic=False)

    def given(self) -> dict[str, Any]:
        """See ``Section.given``; the name of another algorithm than the usual one is given by its class."""
        name = {} if self.name == USUAL else {"name": self.name}
        return {**name, **super().given()}


class CriticConfig(AlgorithmConfig):
    """Options of algorithms with a critic, whose advantages are per token. A subclass gives ``token_advantages``."""

    kl_in: ClassVar[KlIn] = "reward"

    critic: str = "head"
    """Critic: a value head on the policy (head), a second copy of the model (model), or a folder. See
    ``algorithms.critic.make_critic``."""
    critic_learning_rate: NotNegative | None = None
    """Learning rate of the critic. 0 leaves it unchanged. Default: ``optimizer.learning_rate``."""
    value_clip: PositiveOrInfinite | None = 0.2
    """Clip the distance of a value from the old value in the critic's loss. None: no clipping."""
    vf_coef: NotNegative = 0.1
    """Weight the critic's loss by this factor."""
    whiten: StrictBool = True
    """Normalise advantages to mean 0 and variance 1 over the tokens of the batch."""

    def token_advantages(self, rewards: Tensor, values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return (B, T) advantages, and the returns that the critic learns to predict.

        Args:
            rewards, values: (B, T); the critic's value of a token is that before it is drawn. mask: (B, T) response tokens.
        """
        raise NotImplementedError(f"{type(self).__name__} has no method token_advantages")

    @property
    def trained_models(self) -> int:
        return 1 + (self.critic != "head")

    @property
    def forward_first(self) -> bool:
        return True

    @classmethod
    def graph(cls) -> Graph:
        return _graph(cls, critic=True)


def log_ratios(new: Tensor, old: Tensor, mask: Tensor) -> Tensor:
    """Return (B, T) log-ratios new - old of tokens' log-probabilities; 0 outside ``mask``, whatever padding holds."""
    return (new - old).masked_fill(~mask, 0.0)


def _graph(algorithm: type[AlgorithmConfig], *, critic: bool) -> Graph:
    judged = ["reward", "reference", *["values"] * critic]
    roles = {"reward": "reward", "reference": "reference", "values": "critic"}
    calls = [Call("generate", "actor", GENERATE), *(Call(name, roles[name], INFERENCE, ("generate",)) for name in judged)]
    trained = ["critic"] * critic + ["actor"]
    calls += [Call(f"train_{role}", role, TRAIN, tuple(judged)) for role in trained]
    unlock: Any = "group" if algorithm.compares_responses else "response"
    return Graph(name_of(algorithm), tuple(calls), unlock)


A = TypeVar("A", bound=AlgorithmConfig)


def name_of(algorithm: type[AlgorithmConfig]) -> str:
    """Return the name of an algorithm's class."""
    name: str = algorithm.model_fields["name"].default
    return name


def register(algorithm: type[A]) -> type[A]:
    """Make an algorithm known by its name: to ``Trainer``, configurations, ``rlhfless train`` and planners of whole steps.

    A class that is defined anew, as when a notebook's cell is run again, replaces the one before.

    Raises:
        TrainError: it is no ``AlgorithmConfig`` with a name and advantages, a method cannot be called as the learner calls it
            or has a misspelt name, ``kl_in`` is neither, or another algorithm has its name.
    """
    if not (isinstance(algorithm, type) and issubclass(algorithm, AlgorithmConfig)):
        raise TrainError(
            f"{algorithm!r} is registered as an algorithm, but is no class of AlgorithmConfig; derive it from that"
        )
    name = name_of(algorithm)
    if not isinstance(name, str) or not name:
        raise TrainError(f"algorithm {algorithm.__name__} has no name; give it one: name: Literal['mine'] = 'mine'")
    needed = "token_advantages" if issubclass(algorithm, CriticConfig) else "advantages"
    if getattr(algorithm, needed) in (AlgorithmConfig.advantages, CriticConfig.token_advantages):
        raise TrainError(f"algorithm {name!r} has no method {needed}; add it to {algorithm.__name__}")
    _check_methods(algorithm, name)
    if algorithm.kl_in not in get_args(KlIn):
        raise TrainError(f"kl_in of algorithm {name!r} is {algorithm.kl_in!r}; write {' or '.join(map(repr, get_args(KlIn)))}")
    other = ALGORITHMS.get(name)
    if other is not None and (other.__module__, other.__qualname__) != (algorithm.__module__, algorithm.__qualname__):
        raise TrainError(f"algorithm {name!r} is {other.__module__}.{other.__qualname__} already; give yours another name")
    field = algorithm.model_fields["name"]
    field.description = field.description or AlgorithmConfig.model_fields["name"].description
    ALGORITHMS[name] = algorithm
    return algorithm


def _check_methods(algorithm: type[AlgorithmConfig], name: str) -> None:
    """Check that methods have the names and the arguments that the learner calls.

    Raises:
        TrainError: they do not.
    """
    unset = algorithm.model_construct()
    for method, arguments in METHODS.items():
        if hasattr(unset, method):
            try:
                inspect.signature(getattr(unset, method)).bind(*arguments)
            except (TypeError, ValueError):  # ValueError: it does not even take self
                raise TrainError(
                    f"{method} of algorithm {name!r} cannot be called with {', '.join(arguments)}; write def {method}(self, "
                    f"{', '.join(arguments)})"
                ) from None
    own = [key for key, value in vars(algorithm).items() if inspect.isfunction(value) and not key.startswith("_")]
    for key in own:
        meant = difflib.get_close_matches(key, METHODS.keys() - own, 1, 0.85)
        if meant and not any(hasattr(kind, key) for kind in algorithm.__mro__[1:]):
            raise TrainError(
                f"algorithm {name!r} has a method {key}, which nothing calls; name it {meant[0]}, or _{key} if your own "
                "code calls it"
            )


def algorithm_named(name: Any) -> type[AlgorithmConfig]:
    """Return the class of a registered algorithm.

    Raises:
        TrainError: no algorithm has this name.
    """
    if not isinstance(name, str) or name not in ALGORITHMS:
        raise TrainError(f"algorithm is {name!r}; choose from {', '.join(sorted(ALGORITHMS))}")
    found: type[AlgorithmConfig] = ALGORITHMS[name]  # type: ignore[assignment]
    return found


def load_builtin() -> None:
    """Register the algorithms of ``algorithms/builtin``."""
    folder = Path(__file__).parents[1] / "algorithms" / "builtin"
    for module in pkgutil.iter_modules([str(folder)]):
        importlib.import_module(f"rlhfless.training.algorithms.builtin.{module.name}")
