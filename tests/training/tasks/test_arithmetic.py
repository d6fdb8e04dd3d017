"""The task: right solutions, disjoint held-out problems, lengths that vary, a reward that cannot be fooled."""

import itertools
import re

import numpy as np
from error_messages import refused
from hypothesis import given
from hypothesis import strategies as st

from rlhfless import training
from rlhfless.engine.tokenizers.char_tokenizer import CharTokenizer
from rlhfless.errors import InputError
from rlhfless.training import tasks
from rlhfless.training.tasks.arithmetic import STYLES, ArithmeticTask, is_held_out, solution

TASK = ArithmeticTask(seed=3, prompts=64)


def test_task_is_a_function_of_its_seed():
    again = ArithmeticTask(seed=3, prompts=64)
    assert again.problems == TASK.problems
    assert again.held_out(50) == TASK.held_out(50)
    assert ArithmeticTask(seed=4, prompts=64).problems != TASK.problems
    first = list(itertools.islice(TASK.worked_solutions(1), 20))
    assert first == list(itertools.islice(again.worked_solutions(1), 20))
    assert first != list(itertools.islice(TASK.worked_solutions(2), 20))


def test_a_larger_pool_begins_with_the_smaller_one():
    assert ArithmeticTask(seed=3, prompts=80).problems[:64] == TASK.problems


@given(st.integers(0, 1000), st.integers(0, 1000))
def test_held_out_problems_are_in_no_training_set(seed, other_seed):
    held_out = {problem.prompt for problem in ArithmeticTask(seed, 1).held_out(40)}
    trained = {problem.prompt for problem in ArithmeticTask(other_seed, 40).problems}
    worked = {prompt for prompt, _ in itertools.islice(ArithmeticTask(other_seed, 1).worked_solutions(seed), 40)}
    assert len(held_out) == 40
    assert not held_out & (trained | worked)
    assert all(map(is_held_out, held_out))


def test_prompt_ids_are_distinct():
    assert len({problem.prompt_id for problem in TASK.problems}) == len(TASK.problems)


@given(st.integers(0, 10_000), st.sampled_from(STYLES))
def test_every_equation_of_a_solution_is_true_and_earns_the_reward(seed, style):
    problem = ArithmeticTask(seed, 1).problems[0]
    text = solution(problem.prompt, style)
    assert problem.answer == eval(problem.prompt[:-1])
    for left, right in re.findall(r"([\d+-]+)=(\d+)", text):
        assert eval(re.sub(r"\b0+(?=\d)", "", left)) == int(right)
    for line in re.findall(r"(?:^|[);])(\d[\d+-]*);", text):
        assert eval(line) == problem.answer
    assert TASK.reward(problem, text) == 1.0


def test_notes_carry_and_borrow():
    assert solution("47+8-3+9?", "plain") == "55-3+9;52+9;61;#61."
    assert solution("47+8?", "noted") == "(47+8=55)55;#55."
    assert solution("47+8?", "columns") == "(47+8:7+8=15,4+1=5)55;#55."
    assert solution("42-7?", "columns") == "(42-7:12-7=5,4-1=3)35;#35."
    assert solution("42-7?", "checked") == "(42-7:12-7=5,4-1=3)(35+7:5+7=12,3+1=4)35;#35."
    with refused(InputError):
        solution("4+7?", "fancy")


def test_reward_wants_the_whole_right_answer_at_the_end():
    problem = next(p for p in TASK.problems if p.answer > 9)
    answer = str(problem.answer)
    assert TASK.reward(problem, f"#{answer}.") == 1.0
    for text in ("", answer, f"#{answer}", f"#{answer[:1]}.", f"#{answer}.5", f"#{answer}0.", f"#{answer}. ", f"#-{answer}."):
        assert TASK.reward(problem, text) == 0.0


def test_lengths_vary_between_and_within_prompts():
    pairs = list(itertools.islice(TASK.worked_solutions(), 8_000))[-4_000:]
    lengths = np.array([len(text) + 1 for _, text in pairs])
    assert lengths.min() <= 12
    assert 240 <= lengths.max() <= 340
    assert 70 <= lengths.mean() <= 130
    for problem in TASK.problems:
        by_style = [len(solution(problem.prompt, style)) for style in STYLES]
        assert by_style == sorted(by_style)
        assert problem.reference_answer_tokens == len(CharTokenizer().encode(problem.solution, eos=True))


def test_a_public_name_is_one_thing():
    assert all(type(problem) is training.ArithmeticProblem for problem in TASK.problems)
    shared = set(training.__all__) & set(tasks.__all__)
    assert all(getattr(training, name) is getattr(tasks, name) for name in shared)


def test_wrong_size_is_refused():
    with refused(InputError):
        ArithmeticTask(prompts=0)
