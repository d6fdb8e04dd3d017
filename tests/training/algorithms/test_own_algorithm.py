"""An algorithm of one's own: the page's code runs, its name is known everywhere, and what is wrong is refused in a sentence."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from error_messages import refused

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from learning_samples import gradient_of, noise_batch, pieces_of, policy_gradient, small_model  # noqa: E402

import solver.layouts  # noqa: E402
from rlhfless.errors import InputError  # noqa: E402
from rlhfless.run.planned_whole_step import graph_of  # noqa: E402
from rlhfless.training import AlgorithmConfig, CriticConfig, GrpoConfig, TrainConfig, Trainer, register, token_logprobs  # noqa: E402
from rlhfless.training.config import TrainError, to_yaml  # noqa: E402
from rlhfless.training.config.section import ALGORITHMS  # noqa: E402
from rlhfless.training.step_learner import passes_of  # noqa: E402

ROOT = Path(__file__).parents[3]
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "add_an_algorithm.md").read_text("utf-8"), flags=re.S)
SHIPPED = ("grpo", "gspo", "ppo", "rloo")


@pytest.fixture(autouse=True)
def own_names_are_forgotten() -> Iterator[None]:
    before = dict(ALGORITHMS)
    yield
    ALGORITHMS.clear()
    ALGORITHMS.update(before)


@pytest.fixture
def page() -> dict[str, Any]:
    """What the page defines; without the run that it shows."""
    names: dict[str, Any] = {"__name__": "page"}
    for block in BLOCKS:
        if "Trainer(" not in block:
            exec(compile(block, "add_an_algorithm.md", "exec", dont_inherit=True), names)
    return names


@pytest.mark.full
def test_the_page_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    names: dict[str, Any] = {"__name__": "page"}
    for block in BLOCKS:
        exec(compile(block, "add_an_algorithm.md", "exec", dont_inherit=True), names)
    assert names["trained"].learning["tokens"] > 0
    assert names["trainer"].config.algorithm.max_weight == 2.0


def test_a_registered_class_is_an_algorithm_like_others(page: dict[str, Any]) -> None:
    config = TrainConfig(algorithm="cispo", max_weight=3.0, kl_coef=0.1)
    assert type(config.algorithm) is page["CispoConfig"]
    assert TrainConfig(**config.given()) == config == TrainConfig.of_stored(config.to_dict())
    assert "max_weight: 3.0" in to_yaml(config)
    assert passes_of(config) == (1, 3), "a reference's passes before learning, and a forward and a backward pass"
    assert graph_of("cispo").unlock == "group"
    with refused(TrainError, "rollout.samples_per_prompt is 1", "CISPO"):
        TrainConfig(algorithm="cispo", samples_per_prompt=1)
    with refused(TrainError, "algorithm.max_weight", "'much'"):
        TrainConfig(algorithm="cispo", max_weight="much")
    with refused(TrainError, "algorithm.max_weight", "'cispo' only"):
        TrainConfig(algorithm={"name": "grpo", "max_weight": 3.0})


def test_the_gradient_is_that_of_the_formula_also_prompt_by_prompt(page: dict[str, Any]) -> None:
    model, streamed, other = small_model(), small_model(), small_model()
    batch = noise_batch(model)
    policy_gradient("cispo", model, max_weight=1.1, max_grad_norm=float("inf")).learn(batch)
    in_pieces = policy_gradient("cispo", streamed, max_weight=1.1, max_grad_norm=float("inf"))
    for piece in pieces_of(batch, 0):
        in_pieces.add(piece)
    in_pieces.finish()
    loss = torch.zeros(())
    advantages = GrpoConfig().advantages(np.asarray(batch.rewards), np.asarray(batch.group_of))
    for i, (prompt, response) in enumerate(zip(batch.prompt_ids, batch.response_ids, strict=True)):
        new = token_logprobs(other, torch.tensor([[*prompt, *response]]))[0, len(prompt) - 1 :]
        weight = (new.detach() - torch.tensor(batch.engine_logprobs[i])).exp().clamp(max=1.1)
        loss = loss - (weight * float(advantages[i]) * new).sum() / sum(batch.response_tokens)
    loss.backward()
    assert gradient_of(other).abs().max() > 1e-3
    torch.testing.assert_close(gradient_of(model), gradient_of(other), atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(gradient_of(streamed), gradient_of(other), atol=1e-6, rtol=1e-4)


def test_a_constant_baseline_needs_one_response(page: dict[str, Any]) -> None:
    model = small_model()
    numbers = policy_gradient("reinforce", model).learn(noise_batch(model, samples=1, prompts=2))
    assert numbers["grad_norm"] > 0
    assert "flat_groups" not in numbers


def test_a_cell_that_runs_again_replaces_its_class_and_nothing_else_may_take_a_name(page: dict[str, Any]) -> None:
    first = ALGORITHMS["cispo"]
    exec(compile(BLOCKS[0], "add_an_algorithm.md", "exec", dont_inherit=True), {"__name__": "page"})
    assert ALGORITHMS["cispo"] is not first
    with refused(TrainError, "CispoConfig is not registered"):
        TrainConfig(algorithm=first())

    class Other(GrpoConfig):
        pass

    with refused(TrainError, "'grpo'", "another name"):
        register(Other)


@pytest.mark.parametrize(("wrong", "words"), [
    (lambda rewards: rewards[:3], ("shape (3,)", "of shape (12,)")), (lambda rewards: rewards[:, None], ("shape (12, 1)",)),
    (lambda rewards: None, ("None", "(12,)")), (lambda rewards: rewards * np.nan, ("NaN", "np.nan_to_num")),
], ids=["too few", "column", "none", "nan"])  # fmt: skip
def test_wrong_advantages_are_refused_with_the_shape_that_is_needed(wrong: Any, words: tuple[str, ...]) -> None:
    @register
    class Wrong(AlgorithmConfig):
        name: Literal["wrong"] = "wrong"

        def advantages(self, rewards: np.ndarray, group_of: np.ndarray) -> np.ndarray:
            found: np.ndarray = wrong(rewards)
            return found

    model = small_model()
    with refused(InputError, "advantages of algorithm 'wrong'", *words):
        policy_gradient("wrong", model).learn(noise_batch(model))


def test_what_is_no_algorithm_is_refused() -> None:
    class Nameless(AlgorithmConfig):
        def advantages(self, rewards: np.ndarray, group_of: np.ndarray) -> np.ndarray:
            return rewards

    class Empty(AlgorithmConfig):
        name: Literal["empty"] = "empty"

    class EmptyCritic(CriticConfig):
        name: Literal["empty"] = "empty"

    for wrong, words in (
        (int, ("int", "AlgorithmConfig")), (Nameless, ("Nameless", "no name")), (Empty, ("'empty'", "method advantages")),
        (EmptyCritic, ("'empty'", "token_advantages")),
    ):  # fmt: skip
        with refused(TrainError, *words):
            register(wrong)  # type: ignore[type-var]
    assert set(SHIPPED) <= set(ALGORITHMS)
    assert "empty" not in ALGORITHMS


def own(**members: Any) -> type[GrpoConfig]:
    """A class ``Own``, named own, with these attributes and methods."""
    named = {"__annotations__": {"name": Literal["own"]}, "__module__": __name__, "name": "own"}
    return type("Own", (GrpoConfig,), {**named, **members})


@pytest.mark.parametrize(("members", "words"), [
    ({"kl_in": "rewards"}, ("kl_in", "'rewards'", "'loss' or 'reward'")),
    ({"token_lose": lambda self, new, old, advantages, mask: new}, ("token_lose", "name it token_loss")),
    ({"token_loss": lambda self, new, old, mask: new}, ("'own'", "def token_loss(self, new, old, advantages, mask)")),
    ({"advantages": lambda rewards, group_of: rewards}, ("'own'", "def advantages(self, rewards, group_of)")),
    ({"advantages": lambda: 0}, ("def advantages(self, rewards, group_of)",)),
    ({"beta": 0.5}, ("beta of Own", "beta: float = 0.5")),
    ({"compare_responses": True}, ("compare_responses of Own", "compares_responses")),
])  # fmt: skip
def test_a_mistake_in_a_class_is_refused_with_what_to_write(members: dict[str, Any], words: tuple[str, ...]) -> None:
    with refused(TrainError, *words):
        register(own(**members))
    assert "own" not in ALGORITHMS


def test_methods_of_ones_own_and_static_ones_are_taken() -> None:
    taken = register(
        own(advantages=staticmethod(lambda rewards, group_of: rewards), _token_lose=lambda self: 0, scaled=lambda self: 0)
    )
    assert ALGORITHMS["own"] is taken


def test_a_class_in_place_of_its_options_is_refused_with_what_to_type(tmp_path: Path) -> None:
    with refused(TrainError, "GrpoConfig()", "its name"):
        Trainer(algorithm=GrpoConfig, preset="demo", folder=tmp_path / "run")  # type: ignore[arg-type]


def test_processes_cannot_import_a_class_of_this_program(page: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page["CispoConfig"], "__module__", "__main__")
    with refused(TrainError, "learner_processes is 2", "'cispo'"):
        TrainConfig(algorithm="cispo", learner_processes=2)


@pytest.mark.parametrize("name", SHIPPED)
@pytest.mark.parametrize("kl_coef", [0.0, 0.2])
def test_the_planner_assumes_the_passes_that_an_update_takes(name: str, kl_coef: float) -> None:
    """So the virtual clock charges for a forecast what it charges for the step."""
    from rlhfless.training import make_algorithm

    model = small_model()
    critics = ("head", "model") if name == "ppo" else (None,)
    for critic in critics:
        options = {"kl_coef": kl_coef} | ({} if critic is None else {"critic": critic})
        batch = noise_batch(model)
        numbers = make_algorithm(name, model, **options).learn(batch)
        prepare, learn = passes_of(TrainConfig(algorithm={"name": name, **options}))
        assert numbers["learn_pass_tokens"] == learn * sum(batch.tokens)
        assert numbers["prepare_pass_tokens"] == prepare * sum(batch.tokens)


def test_the_graphs_of_whole_steps_are_those_of_the_solver() -> None:
    assert graph_of("grpo") == solver.layouts.grpo()
    assert graph_of("ppo") == solver.layouts.ppo()
    assert graph_of("rloo").unlock == "group"
    assert [call.name for call in graph_of("rloo").calls] == [call.name for call in solver.layouts.grpo().calls]


def one_number_per_response(config: Any, new: Any, old: Any, advantages: Any, mask: Any) -> Any:
    return -(advantages * new).mean(1), mask


def one_number(config: Any, new: Any, old: Any, advantages: Any, mask: Any) -> Any:
    return -(advantages * new).mean(), mask


def losses_alone(config: Any, new: Any, old: Any, advantages: Any, mask: Any) -> Any:
    return -advantages * new


def nothing(config: Any, new: Any, old: Any, advantages: Any, mask: Any) -> Any:
    return None


def weights_as_mask(config: Any, new: Any, old: Any, advantages: Any, mask: Any) -> Any:
    return -advantages * new, mask.float()


def without_gradient(config: Any, new: Any, old: Any, advantages: Any, mask: Any) -> Any:
    return -advantages * new.detach(), mask


@pytest.mark.parametrize(("token_loss", "words"), [
    (one_number_per_response, ("shape (4,)", "of shape (4, ", "one per token")), (one_number, ("shape ()", "of shape (4, ")),
    (losses_alone, ("a Tensor alone", "return losses, clipped")), (nothing, ("None", "return losses, clipped")),
    (weights_as_mask, ("torch.float32", "torch.bool")), (without_gradient, ("without a gradient", "from new")),
])  # fmt: skip
@pytest.mark.parametrize("in_pieces", [False, True], ids=["batch", "stream"])
def test_a_wrong_token_loss_is_refused_with_what_to_return(token_loss: Any, words: Any, in_pieces: bool) -> None:
    register(own(token_loss=token_loss))
    model = small_model()
    algorithm, batch = policy_gradient("own", model), noise_batch(model, prompts=1, samples=4)
    with refused(InputError, "token_loss of algorithm 'own'", *words):
        (algorithm.add if in_pieces else algorithm.learn)(batch)


@pytest.mark.parametrize("in_pieces", [False, True], ids=["batch", "stream"])
def test_what_a_token_loss_returns_for_padding_does_not_count(in_pieces: bool) -> None:
    def numbers_with(padding: float | None) -> tuple[dict[str, float], torch.Tensor]:
        class Padded(GrpoConfig):
            name: Literal["padded"] = "padded"

            def token_loss(self, new: Any, old: Any, advantages: Any, mask: Any) -> Any:
                loss, clipped = super().token_loss(new, old, advantages, mask)
                return (loss, clipped) if padding is None else (loss.masked_fill(~mask, padding), clipped | ~mask)

        register(Padded)
        model = small_model()
        algorithm, batch = policy_gradient("padded", model), noise_batch(model)
        if not in_pieces:
            return algorithm.learn(batch), gradient_of(model)
        for piece in pieces_of(batch, 0):
            algorithm.add(piece)
        return algorithm.finish(), gradient_of(model)

    numbers, gradient = numbers_with(None)
    padded, padded_gradient = numbers_with(7.0)
    for name in ("loss", "clip_share", "grad_norm"):
        assert padded[name] == numbers[name]
    assert torch.equal(padded_gradient, gradient)
