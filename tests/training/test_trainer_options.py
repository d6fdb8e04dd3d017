"""A trainer of plain options, as a user of TRL writes one: names, presets, callbacks, weights, conversations, evaluation."""

from __future__ import annotations

import json
import re
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from byte_tokenizer import byte_tokenizer
from error_messages import refused

torch = pytest.importorskip("torch")

from safetensors.torch import load_file  # noqa: E402

import rlhfless.engine  # noqa: E402
import rlhfless.training  # noqa: E402
from rlhfless.engine.torch.pretrained import load_model  # noqa: E402
from rlhfless.errors import InputError  # noqa: E402
from rlhfless.lazy_names import OF_TRL  # noqa: E402
from rlhfless.plots import plot_timeline  # noqa: E402
from rlhfless.trace import read_trace  # noqa: E402
from rlhfless.training import Callback, GrpoConfig, RolloutConfig, TrainConfig, Trainer  # noqa: E402
from rlhfless.training.config import TrainError, read_config, to_yaml  # noqa: E402
from rlhfless.training.config.names import plain_names  # noqa: E402
from rlhfless.training.config.their_names import EXPLAINED, MISSING, OF_TRAINER, THEIRS  # noqa: E402
from rlhfless.training.given_parts import OTHER_NAMES  # noqa: E402
from rlhfless.training.models.tiny_model import tiny_qwen2  # noqa: E402

ROWS = [{"prompt": f"{a}+{b}="} for a, b in ((1, 2), (3, 4), (5, 6), (7, 8), (9, 1), (2, 2))]
SIZES: dict[str, Any] = {"samples_per_prompt": 2, "prompts_per_step": 2, "max_response_tokens": 8}
QUICK: dict[str, Any] = {**SIZES, "progress": False}
LEARNED: dict[str, Any] = {**SIZES, "learning_rate": 1e-3, "temperature": 0.5}


def length(completions: list[Any], **columns: object) -> list[float]:
    return [float(len(text)) for text in completions]


def digits(completions: list[str], **columns: object) -> list[float]:
    return [float(sum(letter.isdigit() for letter in text)) for text in completions]


def made(model: Any, /, **options: Any) -> Trainer:
    return Trainer(**{"model": model, "rewards": length, "dataset": ROWS, **QUICK, **options})


def test_options_are_given_by_their_plain_names(untrained: Path) -> None:
    with made(untrained, steps=3, learning_rate=1e-3, algorithm="ppo", gamma=0.9, executor="virtual", gpus=4) as trainer:
        config = trainer.config
        assert (config.steps, config.optimizer.learning_rate, config.cluster.gpus) == (3, 1e-3, 4)
        assert (config.algorithm.name, config.algorithm.gamma) == ("ppo", 0.9)
        assert trainer.train() is None
        assert trainer.next_step == 3


def test_a_run_without_a_folder_keeps_no_trace_and_its_steps_have_theirs(tmp_path: Path, untrained: Path) -> None:
    with made(untrained, steps=2) as trainer:
        last = list(trainer)[-1]
        assert "of step 1" in plot_timeline(last.trace).layout.title.text
        with refused(InputError, "a run without a folder keeps none", "plot_timeline(list(trainer)[-1].trace)"):
            plot_timeline(trainer.train())  # type: ignore[arg-type]  # None
    with made(untrained, steps=2, folder=tmp_path / "run") as trainer:
        trace = trainer.train()
    assert trace is not None
    assert "of step 1" in plot_timeline(trace).layout.title.text
    assert plot_timeline(read_trace(tmp_path / "run"), 0).to_json() == plot_timeline(trace, 0).to_json()


def test_options_change_a_configuration_and_may_be_in_sections(untrained: Path) -> None:
    config = TrainConfig(steps=2, rollout=RolloutConfig(temperature=0.5), kl_coef=0.1)
    with made(untrained, config=config, steps=1, algorithm=GrpoConfig(kl_coef=0.2), rollout={"top_k": 3}) as trainer:
        assert (trainer.config.steps, trainer.config.algorithm.kl_coef) == (1, 0.2)
        assert (trainer.config.rollout.top_k, trainer.config.rollout.temperature) == (3, 0.5)


@pytest.mark.parametrize("name", [*THEIRS, *EXPLAINED])
def test_another_frameworks_name_is_told_ours(name: str, untrained: Path) -> None:
    with refused(TrainError, name, THEIRS.get(name, "")):
        made(untrained, **{name: 1})
    keys = {*plain_names(), *TrainConfig.model_fields, *OTHER_NAMES}
    assert name not in keys, "a name that is ours needs no translation"
    assert name in EXPLAINED or THEIRS[name] in keys


WRONG: list[tuple[dict[str, Any], type[Exception], list[Any]]] = [
    ({"learning_rat": 1e-6}, TrainError, ["learning_rat", "learning_rate"]),
    ({"progess": False}, TrainError, ["progess", "progress"]),
    ({"steps": "3"}, TrainError, ["steps", "'3'"]),
    ({"learning_rate": -1.0}, TrainError, ["learning_rate", "-1"]),
    ({"preset": "toy"}, TrainError, ["preset", "'toy'", "demo"]),
    ({"config": "a model"}, TrainError, ["'a model'", "TrainConfig", "model="]),
    ({"model": 5}, TrainError, ["model", "int"]),
    ({"algorithm": "dpo"}, TrainError, ["'dpo'", "'grpo'", "'ppo'"]),
    ({"algorithm": "RLOO"}, TrainError, ["'RLOO'", "RLOOTrainer", "'rloo'"]),
    ({"local_rank": 0}, TrainError, ["local_rank", "launcher"]),
    ({"planner": {"name": "x"}}, TrainError, ["planner.name", "planner"]),
    ({"reward_weights": [1.0, 2.0]}, InputError, ["reward_weights", "1 number"]),
    ({"rewards": [length, digits], "reward_weights": [1.0, "2"]}, InputError, ["reward_weights", "2 numbers"]),
    ({"rewards": None, "reward_weights": [1.0]}, TrainError, ["reward_weights", "rewards"]),
    ({"callbacks": "paper", "folder": "here"}, InputError, ["'paper'", "jsonl"]),
    ({"callbacks": ["jsonl"]}, InputError, ["'jsonl'", "folder"]),
    ({"callbacks": [5]}, InputError, ["5", "on_step"]),
    ({"dataset": []}, InputError, ["no rows"]),
    ({"eval_every": 1, "eval_prompts": 5}, TrainError, ["1 prompt", "prompts_per_step is 2"]),
    ({"eval_every": 1, "eval_prompts": 6}, TrainError, ["no prompt left", "eval_prompts"]),
]


@pytest.mark.parametrize(
    ("options", "kind", "named"), WRONG, ids=["-".join(options) + str(n) for n, (options, _, _) in enumerate(WRONG)]
)
def test_what_is_wrong_is_refused_in_one_sentence(
    options: dict[str, Any], kind: type[Exception], named: list[Any], untrained: Path
) -> None:
    with refused(kind, *named):
        made(untrained, **options)


@pytest.mark.parametrize("name", MISSING)
def test_an_option_that_is_missing_here_is_told_so(name: str, untrained: Path) -> None:
    with refused(TrainError, name, "From TRL and verl"):
        made(untrained, **{name: 1})


@pytest.mark.parametrize("name", sorted(OF_TRAINER))
def test_an_attribute_of_trls_trainer_is_refused_with_what_to_do(name: str, untrained: Path) -> None:
    with made(untrained) as trainer:
        with pytest.raises(AttributeError, match=f"^Trainer has no attribute '{name}'; {re.escape(OF_TRAINER[name])}$"):
            getattr(trainer, name)
        assert not hasattr(trainer, name)
        for attribute in re.findall(r"(?:trainer\.|^)(\w+)(?=$|\()", OF_TRAINER[name]):
            assert hasattr(trainer, attribute)
        with pytest.raises(AttributeError, match=r"^'Trainer' object has no attribute 'nothing'$"):
            trainer.nothing  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize(("name", "ours"), OF_TRL.items())
def test_a_class_of_trl_is_refused_with_ours(name: str, ours: str) -> None:
    for package in (rlhfless, rlhfless.training):
        with pytest.raises(AttributeError, match=f"has no attribute '{name}'; here it is {package.__name__}.{ours}, "):
            getattr(package, name)
        assert hasattr(package, ours)
    with pytest.raises(AttributeError, match="has no attribute 'GRPOTrainer'; it has "):
        rlhfless.engine.GRPOTrainer  # noqa: B018


def test_rewards_are_weighted(untrained: Path) -> None:
    with made(untrained, rewards=[length, digits], reward_weights=[0.5, -1]) as trainer:
        rollouts = trainer.step().rollouts
        texts = rollouts["response"]
        expected = [0.5 * one - other for one, other in zip(length(list(texts)), digits(list(texts)), strict=True)]
        assert rollouts["reward"].tolist() == pytest.approx(expected)
    with made(untrained, rewards=["length:4,2", "format:[0-9]"], reward_weights=[1, 0.001]) as trainer:
        assert [(reward.name, weight) for reward, weight in trainer.rewards.parts] == [("length", 1.0), ("format", 0.001)]


def test_callbacks_and_loggers_are_one_argument(tmp_path: Path, untrained: Path) -> None:
    seen: list[int] = []

    class Notes(Callback):
        def on_step(self, trainer: Any, step: Any) -> None:
            seen.append(step.step)

    for number, callbacks in enumerate(([Notes(), "jsonl"], "jsonl", Notes())):
        folder = tmp_path / str(number)
        with made(untrained, folder=folder, steps=2, callbacks=callbacks) as trainer:
            trainer.train()
        assert (folder / "metrics.jsonl").exists() is (number < 2)
    assert seen == [0, 1, 0, 1]


CONVERSATION = [{"role": "user", "content": "1+2="}]
ANSWERED = [*CONVERSATION, {"role": "assistant", "content": "3"}]
SHAREGPT = [{"from": "human", "value": "1+2="}, {"from": "gpt", "value": "3"}]


@pytest.mark.parametrize(("column", "value"), [
    ("prompt", CONVERSATION), ("prompt", ANSWERED), ("messages", ANSWERED), ("conversations", SHAREGPT),
])  # fmt: skip
def test_the_column_of_conversations_is_found(column: str, value: list[dict[str, str]]) -> None:
    tokenizer = byte_tokenizer(chat=True)
    model = tiny_qwen2(tokenizer, 0, hidden=32, layers=1, intermediate=64), tokenizer
    prompts: list[Any] = []

    def reward(completions: list[Any], prompts: list[Any], **columns: object) -> list[float]:
        seen.extend(prompts)
        return [float(len(messages[0]["content"])) for messages in completions]

    seen = prompts
    with made(model, rewards=reward, dataset=[{column: value}] * 2) as trainer:
        assert {problem.prompt for problem in trainer.task.problems} == {tokenizer.filled_in(CONVERSATION)}
        trainer.step()
    assert seen == [CONVERSATION] * 4


def test_rows_without_prompts_are_refused_with_their_columns(untrained: Path) -> None:
    with refused(InputError, "'prompt'", "text"):
        made(untrained, dataset=[{"text": "1+2="}] * 2)


def test_a_run_evaluates_when_asked_and_on_rows_of_its_own(untrained: Path) -> None:
    with made(untrained, eval_dataset=ROWS[:3], eval_every=2, steps=2) as trainer:
        assert trainer.config.task.prompts == len(ROWS), "all of the data set are trained on"
        before = trainer.evaluate()
        evaluations = [step.evaluation for step in trainer]
    assert before["problems"] == 3
    assert [bool(each) for each in evaluations] == [False, True]
    with made(untrained, eval_every=1, eval_prompts=2, steps=1) as trainer:
        trained = {problem.prompt for problem in trainer.task.problems}
        held_out = {problem.prompt for problem in trainer.evaluator.problems}
        assert (len(trained), len(held_out), trained & held_out) == (4, 2, set())
    with made(untrained, prompts=4, eval_prompts=2) as trainer:
        assert trainer.evaluate()["problems"] == 2
    with made(untrained) as trainer, refused(TrainError, "eval_prompts", "eval_dataset"):
        trainer.evaluate()


@pytest.mark.parametrize("rows", [2, 5, 7])
@pytest.mark.parametrize("from_file", [False, True])
def test_a_run_is_not_resumed_with_fewer_or_more_rows(untrained: Path, tmp_path: Path, rows: int, from_file: bool) -> None:
    """The number of prompts is the run's own, so what is said is that the rows are others."""

    def given(count: int) -> dict[str, Any]:
        many = (ROWS * 2)[:count]
        if not from_file:
            return {"dataset": many}
        (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in many))
        return {"dataset": None, "task": str(tmp_path / "rows.jsonl")}

    with made(untrained, folder=tmp_path / "run", steps=1, **given(len(ROWS))) as trainer:
        trainer.train()
    with refused(TrainError, str(tmp_path / "run"), "have changed", "the same data set") as said:
        made(untrained, folder=tmp_path / "run", steps=2, resume=True, **given(rows))
    assert "prompts is" not in str(said)
    with made(untrained, folder=tmp_path / "run", steps=2, resume=True, **given(len(ROWS))) as trainer:
        assert trainer.next_step == 1


def test_a_run_that_goes_on_with_other_held_out_prompts_warns(untrained: Path, tmp_path: Path) -> None:
    def going_on(steps: int, **held_out: Any) -> list[str]:
        """What a run warns of that is trained to so many steps."""
        given = {"folder": tmp_path / "run", "eval_every": 1, "steps": steps, "resume": "auto", **held_out}
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            with made(untrained, **given) as trainer:
                trainer.train()
        return [said for each in found if "held-out" in (said := str(each.message))]

    other = [{"prompt": "9+9=", "answer": "18"}]
    assert going_on(1, eval_dataset=ROWS[:3]) == []
    assert going_on(2, eval_dataset=ROWS[:3]) == []
    (said,) = going_on(3, eval_dataset=other)
    assert str(tmp_path / "run") in said
    assert "from step 2 on" in said
    assert "not comparable" in said
    assert going_on(4, eval_dataset=other) == [], "it is said once"
    assert len(going_on(5, eval_dataset=ROWS[:3])) == 1


def test_a_run_that_began_to_evaluate_later_has_nothing_to_compare(untrained: Path, tmp_path: Path) -> None:
    with made(untrained, folder=tmp_path / "run", steps=1) as trainer:
        trainer.train()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "(?s).*held-out")
        with made(untrained, folder=tmp_path / "run", steps=2, resume=True, eval_dataset=ROWS[:2], eval_every=1) as trainer:
            assert trainer.evaluate()["problems"] == 2
            trainer.train()


def test_a_run_has_a_live_view(untrained: Path) -> None:
    pytest.importorskip("ipywidgets")
    with made(untrained, steps=1) as trainer:
        view = trainer.live()
        view.run.run()
        view.run.wait()
        assert trainer.next_step == 1


def test_a_model_is_saved_in_a_number_format(tmp_path: Path, untrained: Path) -> None:
    with made(untrained) as trainer:
        for dtype, found in ((None, torch.float32), ("bfloat16", torch.bfloat16), (torch.float16, torch.float16)):
            trainer.save_model(tmp_path / "model", dtype=dtype)
            weights = load_file(tmp_path / "model" / "model.safetensors")
            assert {weight.dtype for weight in weights.values()} == {found}
        with refused(TrainError, "'int8'", "bfloat16"):
            trainer.save_model(tmp_path / "model", dtype="int8")  # type: ignore[arg-type]


def run_all(trainer: Trainer) -> None:
    trainer.train()


def loop(trainer: Trainer) -> None:
    assert len(list(trainer)) == 2


def press_run(trainer: Trainer) -> None:
    pytest.importorskip("ipywidgets")
    view = trainer.live()
    view.run.run()
    view.run.wait()


@pytest.mark.parametrize("go", [run_all, loop, press_run])
def test_the_last_step_writes_the_final_model_where_the_run_has_a_folder(
    go: Callable[[Trainer], None], tmp_path: Path, untrained: Path
) -> None:
    with made(untrained, folder=tmp_path / "run", steps=2, **LEARNED) as trainer:
        go(trainer)
        final = {name: weight.clone() for name, weight in trainer.model.state_dict().items()}
    saved = load_model(tmp_path / "run" / "model")[0].state_dict()
    assert all(torch.equal(weight, final[name]) for name, weight in saved.items())
    assert not (tmp_path / "run" / "adapter").exists(), "the run trains all weights"


def test_a_resumed_run_without_a_step_left_writes_its_final_model_again(tmp_path: Path, untrained: Path) -> None:
    with made(untrained, folder=tmp_path / "run", steps=2) as trainer:
        trainer.step()
        assert not (tmp_path / "run" / "model").exists(), "another step is left"
        trainer.step()
    shutil.rmtree(tmp_path / "run" / "model")
    with made(untrained, folder=tmp_path / "run", resume=True) as trainer:
        trainer.train()
    assert (tmp_path / "run" / "model" / "model.safetensors").is_file()


def test_a_resumed_run_keeps_what_it_was_started_with(tmp_path: Path, untrained: Path) -> None:
    folder = tmp_path / "run"
    with made(untrained, folder=folder, steps=1, **LEARNED) as trainer:
        trainer.train()
        first = trainer.config
    meta = json.loads((folder / "meta.json").read_text())
    assert meta["config"]["task"]["prompts"] == len(ROWS)
    with Trainer(folder=folder, dataset=ROWS, rewards=length, resume=True, steps=2, progress=False) as trainer:
        assert trainer.config == first.replace(steps=2)
        trainer.train()
        assert trainer.next_step == 2
    (tmp_path / "all.yaml").write_text(to_yaml(TrainConfig(steps=3, **LEARNED), explained=True))
    with_all_keys = read_config(tmp_path / "all.yaml")
    with Trainer(with_all_keys, folder, dataset=ROWS, rewards=length, resume=True, progress=False) as trainer:
        assert (trainer.next_step, trainer.config.cluster) == (2, first.cluster), "what was left open stays as it was chosen"
    with refused(TrainError, "optimizer.learning_rate", "0.001", "0.01"):
        Trainer(folder=folder, dataset=ROWS, rewards=length, resume=True, learning_rate=1e-2, progress=False)


def test_a_resumed_run_is_given_the_rewards_and_weights_it_was_started_with(tmp_path: Path, untrained: Path) -> None:
    parts: dict[str, Any] = {"folder": tmp_path / "run", "dataset": ROWS, "steps": 1}
    with made(untrained, **parts, rewards=[digits, length], reward_weights=[1, 0.1]) as trainer:
        trainer.train()
    parts = {**parts, "resume": True, "steps": 2}
    with refused(TrainError, "digits + 0.1*length", "0.1*digits + 5*length"):
        made(untrained, **parts, rewards=[digits, length], reward_weights=[0.1, 5])
    with refused(TrainError, "digits + 0.1*length", "length"):
        made(untrained, **parts, rewards=length)
    with made(untrained, **parts, rewards=[length, digits], reward_weights=[0.1, 1]) as trainer:
        trainer.train()
        assert trainer.next_step == 2, "their order changes nothing that is learned"


def test_a_resumed_run_says_which_objects_of_python_it_needs_again(tmp_path: Path, untrained: Path) -> None:
    folder = tmp_path / "run"
    with made(untrained, folder=folder, steps=1) as trainer:
        trainer.train()
    for lacking in ({"dataset": ROWS}, {"rewards": length}, {}):
        missing = [f"{name}=" for name in ("rewards", "dataset") if name not in lacking]
        with refused(TrainError, "again", *missing):
            Trainer(folder=folder, resume=True, steps=2, progress=False, **lacking)  # type: ignore[arg-type]


def test_a_forgotten_data_set_or_model_is_named_and_starts_no_demonstration(untrained: Path) -> None:
    with refused(TrainError, "data set", "dataset=", "task.name=", "preset='demo'"):
        Trainer(model=untrained, rewards=length, **QUICK)
    with refused(TrainError, "model", "data set", "model=", "dataset=", "preset='demo'"):
        Trainer(**QUICK)
    with refused(TrainError, "model=FOLDER"):
        Trainer(dataset=ROWS, rewards=length, **QUICK)
    with Trainer(model=untrained, preset="demo", **QUICK) as trainer:
        assert trainer.task.name == "arithmetic"


def test_a_data_set_smaller_than_what_evaluation_holds_back_says_so(untrained: Path) -> None:
    with refused(TrainError, "eval_prompts is 64 (the default)", "eval_dataset", "eval_every"):
        Trainer(model=untrained, rewards=length, dataset=ROWS, eval_every=5, progress=False)
    with refused(TrainError, "eval_prompts is 6;"):
        Trainer(model=untrained, rewards=length, dataset=ROWS, eval_every=5, eval_prompts=6, progress=False)


def test_arguments_of_a_wrong_kind_are_told_what_to_give(untrained: Path) -> None:
    for folder in (3, length):
        with refused(TrainError, "folder", "by name"):
            Trainer(TrainConfig(), folder)  # type: ignore[arg-type]
    with refused(InputError, "'answer'", "rewards="):
        Trainer(model=untrained, dataset=ROWS, **QUICK)
    with refused(InputError, "'prompt'"):
        made(untrained, dataset=["1+2=", "3+4="])


def test_a_usual_step_gives_way_to_fewer_prompts() -> None:
    config = TrainConfig(prompts=16)
    assert config.rollout.prompts_per_step == 16
    assert TrainConfig(**config.to_dict()).rollout == config.rollout
    assert config.replace(prompts=64).rollout.prompts_per_step == 32, "it stays a default"
    with refused(TrainError, "prompts_per_step", "32", "16"):
        TrainConfig(prompts=16, prompts_per_step=32)
