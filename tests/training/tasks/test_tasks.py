"""Tasks from data sets: every source gives the same problems, lengths are the reference answers', bad rows are named."""

from __future__ import annotations

import gzip
import json
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from error_messages import refused, warned

pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import torch  # noqa: E402
from byte_tokenizer import byte_tokenizer  # noqa: E402
from learning_samples import small_model, word_tokenizer  # noqa: E402

from rlhfless.errors import InputError, MissingExtra  # noqa: E402
from rlhfless.trace import Limits  # noqa: E402
from rlhfless.training.rewards import Response, Rewards, RewardWarning  # noqa: E402
from rlhfless.training.rewards.model import ModelReward  # noqa: E402
from rlhfless.training.rewards.registry import make_rewards  # noqa: E402
from rlhfless.training.tasks import DatasetTask, Gsm8kTask, PretrainedTokenizer, make_task  # noqa: E402
from rlhfless.training.tasks.arithmetic import ArithmeticTask  # noqa: E402
from rlhfless.training.tasks.gsm8k import INSTRUCTION  # noqa: E402
from rlhfless.training.tasks.prompt_limit import PromptLimit  # noqa: E402

GSM8K = Path(__file__).parents[3].parent / "shared" / "data" / "gsm8k"
ROWS = [{"prompt": f"{i} and {i}?", "answer": str(2 * i), "why": "x" * i} for i in range(1, 11)]


TOKENIZER = byte_tokenizer()


def sources(folder: Path) -> dict[str, Any]:
    """The same rows in every form."""
    (folder / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    (folder / "sums.json").write_text(json.dumps(ROWS, indent=1), encoding="utf-8")
    (folder / "lines.json").write_text("  " + "".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    pd.DataFrame(ROWS).to_parquet(folder / "sums.parquet")
    pd.DataFrame(ROWS).to_csv(folder / "sums.CSV", index=False, encoding="utf-8")
    names = ("sums.jsonl", "sums.json", "lines.json", "sums.parquet", "sums.CSV")
    for name in names:
        (folder / f"{name}.gz").write_bytes(gzip.compress((folder / name).read_bytes()))
    files = {name: folder / name for each in names for name in (each, f"{each}.gz")}
    return {**files, "text": str(folder / "sums.parquet"), "list": ROWS, "frame": pd.DataFrame(ROWS)}


# --- data sets --------------------------------------------------------------------------------------------------------


def test_every_source_gives_the_same_problems(tmp_path: Path) -> None:
    found = {name: DatasetTask(source, TOKENIZER, seed=1, prompts=6) for name, source in sources(tmp_path).items()}
    prompts = {name: [(p.prompt, p.answer, p.reference_answer_tokens) for p in task.problems] for name, task in found.items()}
    assert all(each == prompts["list"] for each in prompts.values())
    assert {task.name for task in found.values()} == {"sums", "lines", "dataset"}
    assert len({p.prompt_id for p in found["sums.jsonl"].problems}) == 6


def test_a_datasets_dataset_is_a_source() -> None:
    datasets = pytest.importorskip("datasets", reason="the extra datasets is not installed")
    task = DatasetTask(datasets.Dataset.from_list(ROWS), TOKENIZER)
    assert {p.answer for p in task.problems} == {row["answer"] for row in ROWS}


def test_the_pool_is_a_function_of_the_seed_and_a_larger_one_begins_with_it() -> None:
    small, large = DatasetTask(ROWS, TOKENIZER, seed=1, prompts=4), DatasetTask(ROWS, TOKENIZER, seed=1, prompts=10)
    assert small.problems == large.problems[:4]
    assert DatasetTask(ROWS, TOKENIZER, seed=2, prompts=10).problems != large.problems


def test_prompts_are_filled_into_the_chat_template() -> None:
    row = {"prompt": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "2?"}], "answer": "2"}
    problem = DatasetTask([row], TOKENIZER).problems[0]
    assert problem.prompt == "<system>be brief</><user>2?</><me>"
    plain = DatasetTask(ROWS[:1], TOKENIZER).problems[0]
    assert plain.prompt == "<user>1 and 1?</><me>"
    assert plain.messages == ({"role": "user", "content": "1 and 1?"},)
    assert TOKENIZER.decode(TOKENIZER.encode(plain.prompt, eos=True)) == plain.prompt
    assert DatasetTask(ROWS[:1], TOKENIZER, chat=False).problems[0].prompt == "1 and 1?"


def test_plain_prompts_begin_as_the_tokenizer_begins_a_text() -> None:
    tokenizer = byte_tokenizer(chat=False, bos=True)
    problem = DatasetTask(ROWS[:1], tokenizer).problems[0]
    assert tokenizer.encode(problem.prompt) == tokenizer.wrapped("1 and 1?").input_ids
    assert problem.reference_answer_tokens == 0


def test_the_reference_column_says_how_long_answers_are() -> None:
    task = DatasetTask(ROWS, TOKENIZER, reference_column="why")
    assert all(p.reference_answer_tokens == len(p.row["why"]) + 1 for p in task.problems)
    assert task.reward(task.problems[0], f"so {task.problems[0].answer}") == 1


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        (ROWS, {"prompt_column": "question"}, ("row 0", "'question'")),
        ([*ROWS, {"prompt": "?"}], {}, ("row 10", "'answer'")),
        ([{"prompt": " ", "answer": "1"}], {}, ("row 0", "'prompt'")),
        ([{"prompt": ["hello"], "answer": "1"}], {}, ("row 0", "'prompt'")),
        ([{"prompt": "?", "answer": None}], {}, ("row 0", "'answer'")),
        (ROWS, {"prompts": 11}, ("10", "11")),
        ([], {}, ()),
        (7, {}, ()),
        ("nowhere.jsonl", {}, ("nowhere.jsonl",)),
    ],
)
def test_bad_data_is_named(rows: Any, options: dict[str, Any], message: tuple[str, ...]) -> None:
    with refused(ValueError, *message):
        DatasetTask(rows, TOKENIZER, **options)


def test_lines_end_at_line_feeds_only(tmp_path: Path) -> None:
    """Other characters that end lines of a text stand inside JSON strings as they are."""
    row = {"prompt": "a\u2028b\u2029c\u0085d\x7f", "answer": "é"}
    text = json.dumps(row, ensure_ascii=False)
    for end in ("\n", "\r\n"):
        (tmp_path / "rows.jsonl").write_bytes((text + end + "  " + end + text).encode("utf-8-sig"))
        problems = DatasetTask(tmp_path / "rows.jsonl", TOKENIZER, chat=False).problems
        assert [(p.prompt, p.answer) for p in problems] == [(row["prompt"], "é")] * 2


def test_bad_files_are_named(tmp_path: Path) -> None:
    for name, content, place in (
        ("a.jsonl", b'{"prompt": "?"}\n{oops\n', "line 2 "),
        ("c.parquet", b"nothing", "parquet "),
        ("d.jsonl", b'{"prompt": "?"}\n\n{"prompt": "\xe9"}\n', r"line 3 .*byte 12: "),
        ("e.jsonl", b"1" * 5000, r"line 1 .*Exceeds the limit"),
        ("f.json", b'[{"prompt": "?"},\n {oops}]', "line 2 "),
        ("g.json", b'[{"prompt": "?"}, 7]', "row 1 "),
        ("h.json", b'{"prompt": "?"}\n{oops\n', "line 2 "),
        ("i.csv", b"prompt;answer\n1;2\n", "semicolons"),
        ("j.csv", b"prompt,answer\n1,2,3\n", "cells"),
        ("k.jsonl.gz", b"nothing", "gzip"),
        ("l.parquet.gz", gzip.compress(b"nothing"), "parquet "),
        ("m.csv.gz", gzip.compress(b"prompt,answer\n" * 1000)[:-9], "read"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=f"{name}: .*{place}"):
            DatasetTask(tmp_path / name, TOKENIZER)
    (tmp_path / "list.jsonl").write_bytes(b"[1]\n")
    with refused(ValueError, "list.jsonl", "line 1", "list"):
        DatasetTask(tmp_path / "list.jsonl", TOKENIZER)


def test_data_files_have_the_limits_of_logs(tmp_path: Path) -> None:
    files = sources(tmp_path)
    for source in (path for path in files.values() if isinstance(path, Path)):
        with refused(ValueError, str(source), "has more than 9 rows", "RLHFLESS_LIMITS=max_rows"):
            DatasetTask(source, TOKENIZER, limits=Limits(rows=9))
        assert len(DatasetTask(source, TOKENIZER, limits=Limits(rows=10)).problems) == 10
    with refused(ValueError, "line 1 is longer than 20 bytes", "RLHFLESS_LIMITS=max_line_mib"):
        DatasetTask(files["sums.jsonl"], TOKENIZER, limits=Limits(line_bytes=20))
    for name in ("sums.json", "sums.CSV"):
        with refused(ValueError, name, "longer than 20 bytes", "RLHFLESS_LIMITS=max_line_mib"):
            DatasetTask(files[name], TOKENIZER, limits=Limits(line_bytes=20))
    for name in ("sums.parquet", "sums.jsonl.gz", "sums.CSV.gz"):
        with refused(ValueError, "unpacks to more than 99 bytes", "RLHFLESS_LIMITS=max_unpacked_gib"):
            make_task(files[name], TOKENIZER, prompts=1, limits=Limits(unpacked_bytes=99))


def test_a_small_file_of_millions_of_equal_rows_is_refused_before_it_is_read(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = pa.table({"prompt": pa.array(["1?"] * 1000), "answer": pa.array(["1"] * 1000)})
    with pq.ParquetWriter(tmp_path / "bomb.parquet", rows.schema) as writer:
        writer.write_table(pa.concat_tables([rows] * 3000).combine_chunks())
    assert (tmp_path / "bomb.parquet").stat().st_size < 100_000
    tracemalloc.start()
    with refused(ValueError, "bomb.parquet", "has more than 1,000,000 rows", "RLHFLESS_LIMITS=max_rows"):
        DatasetTask(tmp_path / "bomb.parquet", TOKENIZER, limits=Limits(rows=1_000_000))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20 * 2**20


def test_a_model_without_tokenizer_or_chat_template_is_named(tmp_path: Path) -> None:
    small_model().save_pretrained(tmp_path)
    with refused(ValueError):
        PretrainedTokenizer.load(tmp_path)
    conversation = [{"prompt": [{"role": "user", "content": "2?"}], "answer": "2"}]
    with refused(ValueError, "row 0"):
        DatasetTask(conversation, byte_tokenizer(chat=False))
    with refused(ValueError):
        DatasetTask(ROWS, byte_tokenizer(chat=False), chat=True)
    endless = word_tokenizer()
    endless.eos_token = None
    with refused(ValueError):
        PretrainedTokenizer(endless)


def test_the_tokenizer_is_found_again_beside_the_model(tmp_path: Path) -> None:
    TOKENIZER.save(tmp_path)
    again = PretrainedTokenizer.load(tmp_path)
    assert again.has_chat_template
    assert again.encode("für 2") == TOKENIZER.encode("für 2")
    assert again.vocab_size == TOKENIZER.vocab_size


def test_rows_with_a_longer_prompt_are_left_out_in_the_order_of_the_seed() -> None:
    rows = [{"prompt": "x" * (100 if i % 3 == 0 else 9), "answer": str(i)} for i in range(12)]
    limit = PromptLimit(50)
    short = {i for i in range(12) if i % 3}

    def numbers(task: DatasetTask) -> list[int]:
        return [int(problem.answer) for problem in task.problems]

    whole = DatasetTask(rows, TOKENIZER, seed=1, prompt_limit=limit)
    assert set(numbers(whole)) == short
    assert set(whole.left_out) == {0, 3, 6, 9}
    assert set(whole.left_out.values()) == {len("<user></><me>") + 100}
    few = DatasetTask(rows, TOKENIZER, seed=1, prompts=5, prompt_limit=limit)
    assert numbers(few) == numbers(whole)[:5]
    assert [int(problem.answer) for problem in few.held_out(9)] == numbers(whole)[5:]
    assert few.held_out(2) == few.held_out(9)[:2]
    order = DatasetTask(rows, TOKENIZER, seed=1)
    assert numbers(whole) == [number for number in numbers(order) if number in short]
    with refused(InputError, "9 tokens", "22"):
        DatasetTask(rows, TOKENIZER, prompt_limit=PromptLimit(9))


def test_rewards_that_need_no_answer_take_rows_without() -> None:
    rows = [{"prompt": "a", "answer": "1"}, {"prompt": "b", "answer": None}, {"prompt": "c"}]
    problems = DatasetTask(rows, TOKENIZER, needs_answer=False).problems
    assert {(p.row["prompt"], p.answer, p.reference_answer_tokens) for p in problems} == {
        ("a", "1", 0),
        ("b", "", 0),
        ("c", "", 0),
    }
    assert DatasetTask([{"prompt": "a"}], TOKENIZER, needs_answer=False).problems[0].answer == ""
    question = Gsm8kTask([{"question": "2 and 2?"}], TOKENIZER, needs_answer=False).problems[0]
    assert question.answer == ""


def test_a_column_that_some_rows_lack_is_none_there() -> None:
    """Rewards get it in every batch, whichever rows come first."""
    rows = [{"prompt": "a"}, {"prompt": "b", "level": 2}]
    problems = DatasetTask(rows, TOKENIZER, needs_answer=False).problems
    assert {(p.row["prompt"], p.row["level"]) for p in problems} == {("a", None), ("b", 2)}


def test_conversations_of_a_frame_are_lists_however_it_was_read(tmp_path: Path) -> None:
    """pandas reads a list of a parquet file as an array."""
    rows = [{"prompt": [{"role": "user", "content": "2?"}], "answer": "2"}]
    pd.DataFrame(rows).to_parquet(tmp_path / "rows.parquet")
    problem = DatasetTask(pd.read_parquet(tmp_path / "rows.parquet"), TOKENIZER).problems[0]
    assert problem.prompt == "<user>2?</><me>"
    assert Response(problem, "").given_prompt == rows[0]["prompt"]


def test_cells_of_a_csv_file_keep_what_is_written(tmp_path: Path) -> None:
    """Numbers are numbers for reward functions where nothing of the text is lost; answers are compared as texts."""
    columns = {"prompt": ["a, b", 'say "c"'], "answer": ["007", "1.50"], "level": ["3", ""], "share": ["0.5", "2.0"],
               "word": ["None", "NA"], "big": ["1" + "0" * 400, "2"], "odd": ["nan", "1.0"]}  # fmt: skip
    pd.DataFrame(columns).to_csv(tmp_path / "rows.csv", index=False)
    task = DatasetTask(tmp_path / "rows.csv", TOKENIZER, chat=False)
    first, second = sorted(task.problems, key=lambda problem: problem.prompt_id)
    assert [(p.prompt, p.answer) for p in (first, second)] == [("a, b", "007"), ('say "c"', "1.50")]
    assert [p.row["level"] for p in (first, second)] == [3, None]
    assert [p.row["share"] for p in (first, second)] == [0.5, 2.0]
    assert [p.row["word"] for p in (first, second)] == ["None", "NA"]
    assert [p.row["odd"] for p in (first, second)] == ["nan", "1.0"]
    assert first.row["big"] == 10**400


@pytest.mark.parametrize(
    "name",
    [
        "qa.csv", "data/qa.json", "./qa", "../qa", "/qa", "~/qa", "data/my/qa", "data/qa.parquet.gz", "qa.txt", "my data",
        "gsm8k:data/train.json", Path("data/qa"),
    ],
)  # fmt: skip
def test_a_path_that_does_not_exist_is_not_looked_up_on_the_hub(monkeypatch: pytest.MonkeyPatch, name: str | Path) -> None:
    datasets = pytest.importorskip("datasets", reason="the extra datasets is not installed")
    asked: list[Any] = []
    monkeypatch.setattr(datasets, "load_dataset", lambda *given, **_: asked.append(given))
    with refused(InputError, str(name).removeprefix("gsm8k:"), "no such file", ".jsonl", ".csv"):
        make_task(name, TOKENIZER, prompts=2)
    assert asked == []


def test_a_file_of_another_format_is_refused_with_those_that_are_read(tmp_path: Path) -> None:
    (tmp_path / "qa.tsv").write_text("prompt\tanswer\n1\t2\n")
    with refused(InputError, "qa.tsv", ".jsonl", ".json", ".csv", ".parquet"):
        DatasetTask(tmp_path / "qa.tsv", TOKENIZER)


def test_the_hub_needs_datasets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with refused(MissingExtra):
        make_task("gsm8k", TOKENIZER, prompts=4)


@pytest.mark.parametrize(
    ("name", "options", "asked"),
    [
        ("gsm8k", {}, ("openai/gsm8k", "main", "train")),
        ("someone/sums", {}, ("someone/sums", None, "train")),
        ("someone/sums:hard", {"split": "test"}, ("someone/sums", "hard", "test")),
    ],
)
def test_the_hub_is_asked_for_path_configuration_and_split(
    monkeypatch: pytest.MonkeyPatch, name: str, options: dict[str, Any], asked: tuple[str, str | None, str]
) -> None:
    datasets = pytest.importorskip("datasets", reason="the extra datasets is not installed")
    rows = [
        {"question": "2 and 2?", "prompt": "2 and 2?", "answer": "#### 4"},
        {"question": "3?", "prompt": "3?", "answer": "#### 3"},
    ]
    calls: list[tuple[str, str | None, str]] = []

    def load_dataset(path: str, configuration: str | None, *, split: str) -> Any:
        calls.append((path, configuration, split))
        return datasets.Dataset.from_list(rows)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    task = make_task(name, TOKENIZER, prompts=2, **options)
    assert calls == [asked]
    assert task.name == asked[0].split("/")[1]
    assert {problem.answer for problem in task.problems} == ({"4", "3"} if name == "gsm8k" else {"#### 4", "#### 3"})


def test_what_the_hub_does_not_have_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets", reason="the extra datasets is not installed")

    def load_dataset(*_: Any, **__: Any) -> Any:
        raise datasets.exceptions.DatasetNotFoundError(
            "Dataset 'someone/sums' doesn't exist on the Hub\nor cannot be accessed."
        )

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with refused(ValueError, "someone/sums"):
        make_task("someone/sums", TOKENIZER, prompts=2)


# --- GSM8K ------------------------------------------------------------------------------------------------------------


def test_gsm8k_problems_and_their_reward(tmp_path: Path) -> None:
    row = {"question": "2 and 2?", "answer": "2+2=<<2+2=4>>4\n#### 1,004"}
    (tmp_path / "train.jsonl").write_text(json.dumps(row), encoding="utf-8")
    task = make_task(f"gsm8k:{tmp_path / 'train.jsonl'}", TOKENIZER, prompts=1)
    assert isinstance(task, Gsm8kTask)
    problem = task.problems[0]
    assert problem.prompt == f"<user>2 and 2?{INSTRUCTION}</><me>"
    assert problem.answer == "1004"
    assert problem.prompt_id == "gsm8k-0"
    assert problem.reference_answer_tokens == len(row["answer"]) + 1
    assert [task.reward(problem, text) for text in ("#### 1004", "#### 1,004.", "1004", "")] == [1, 0, 0, 0]
    with refused(ValueError, "row 0"):
        Gsm8kTask([{"question": "?", "answer": "4"}], TOKENIZER)


@pytest.mark.skipif(not GSM8K.is_dir(), reason="GSM8K is not beside the project (../shared/data/gsm8k)")
def test_the_whole_of_gsm8k_is_read() -> None:
    task = Gsm8kTask(GSM8K / "test.jsonl", TOKENIZER)
    assert len(task.problems) == 1319
    assert all(task.reward(p, p.row["answer"]) == 1 for p in task.problems)
    first = next(p for p in task.problems if p.prompt_id == "gsm8k-0")
    assert first.answer == "18"


def test_the_shipped_task_is_still_there() -> None:
    assert make_task("arithmetic", None, seed=3, prompts=8).problems == ArithmeticTask(3, 8).problems


# --- reward model -----------------------------------------------------------------------------------------------------


def judge(labels: int = 1) -> Any:
    """A reward model with random weights."""
    config = small_model().config
    config.num_labels, config.vocab_size = labels, TOKENIZER.vocab_size
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return transformers.Qwen2ForSequenceClassification(config)


def test_two_reward_models_add_up(tmp_path: Path) -> None:
    for name in ("one", "two"):
        judge().save_pretrained(tmp_path / name)
        TOKENIZER.save(tmp_path / name)
    rewards = make_rewards([f"model:{tmp_path / 'one'}", f"0.5*model:{tmp_path / 'two'}"], ArithmeticTask(0, 1))
    scores = rewards.score([Response(ArithmeticTask(0, 1).problems[0], "12")])
    first, second = scores.parts["model"], scores.parts[f"model:{tmp_path / 'two'}"]
    assert scores.values.tolist() == pytest.approx((first + 0.5 * second).tolist())


def test_a_reward_model_judges_prompt_and_response(tmp_path: Path) -> None:
    judge().save_pretrained(tmp_path)
    TOKENIZER.save(tmp_path)
    assert ModelReward.load(tmp_path, device="meta").model.device.type == "meta"
    reward = ModelReward.load(tmp_path)
    reward.max_tokens_per_micro_batch = 64
    chat, plain = DatasetTask(ROWS, TOKENIZER).problems, DatasetTask(ROWS, TOKENIZER, chat=False).problems
    responses = [Response(p, f"it is {p.answer}{'!' * i}") for i, p in enumerate([*chat, *plain])]
    scores = Rewards([(reward, 2.0)]).score(responses).values
    for response, score in zip(responses, scores, strict=True):
        text = f"{response.prompt}{response.text}"
        if response.problem.messages:
            text = f"<user>{response.problem.messages[0]['content']}</><assistant>{response.text}</>"
        with torch.no_grad():
            alone = reward.model(input_ids=torch.tensor([TOKENIZER.encode(text)])).logits[0, 0]
        assert score == pytest.approx(2 * float(alone), abs=1e-5)
    assert len(set(scores.round(6))) > 1


def test_an_offloaded_reward_model_is_on_the_device_while_it_scores_only(tmp_path: Path) -> None:
    """The device is ``meta``, which every machine has, and which gives no number back."""
    judge().save_pretrained(tmp_path)
    TOKENIZER.save(tmp_path)
    problem = DatasetTask(ROWS, TOKENIZER).problems[0]
    responses = [Response(problem, "1"), Response(problem, "it is 12")]
    offloaded = ModelReward.load(tmp_path, device="meta", offloads=True)
    before = {name: value.clone() for name, value in offloaded.model.state_dict().items()}
    with pytest.raises(RuntimeError, match="meta"):
        offloaded.score(responses)
    assert all(torch.equal(value, before[name]) for name, value in offloaded.model.state_dict().items())
    scores = [make_rewards([f"model:{tmp_path}"], ArithmeticTask(0, 1), offloads=on).score(responses) for on in (False, True)]
    assert scores[0].values.tolist() == scores[1].values.tolist()


def test_a_reward_that_is_no_number_is_that_responses(tmp_path: Path) -> None:
    model = judge()
    with torch.no_grad():
        model.model.embed_tokens.weight[TOKENIZER.encode("Z")] = torch.nan
    problem = DatasetTask(ROWS, TOKENIZER).problems[0]
    with warned(RewardWarning):
        scores = Rewards([(ModelReward(model, TOKENIZER), 1.0)]).score([Response(problem, "Z"), Response(problem, "2")])
    assert torch.tensor(scores.values).isnan().tolist() == [True, False]


def test_wrong_reward_models_are_named(tmp_path: Path) -> None:
    with refused(ValueError):
        ModelReward(judge(3), TOKENIZER)
    judge().save_pretrained(tmp_path)
    with refused(ValueError):
        ModelReward.load(tmp_path)
    TOKENIZER.save(tmp_path)
    torch.save(judge().state_dict(), tmp_path / "pytorch_model.bin")
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with refused(InputError, "AutoModelForSequenceClassification"):
        ModelReward.load(tmp_path)
    weights.unlink()
    with refused(InputError, "model.safetensors"):
        ModelReward.load(tmp_path)
