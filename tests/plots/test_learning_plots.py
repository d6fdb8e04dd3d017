"""Learning curves: means over an epoch of the seeds that got so far, accuracies at both ends, and a word where nothing is."""

from __future__ import annotations

from pathlib import Path

import pytest
from every_plot import part

from rlhfless.plots import plot_curves
from rlhfless.trace import read_trace

SHIPPED = Path(__file__).parents[2] / "data" / "traces" / "arithmetic-grpo"


def a_run(algorithm: str, seed: int, rewards: list[float], tokens: list[float], actors: list[float], **measured: dict) -> dict:
    columns = zip(rewards, tokens, actors, strict=True)
    steps = [
        {"step": i, "epoch": i // 2, "reward_mean": r, "response_tokens_mean": t, "actors": a}
        for i, (r, t, a) in enumerate(columns)
    ]
    return {"algorithm": algorithm, "seed": seed, "steps": steps, **measured}


START, END = ({"accuracy": x, "low": x - 0.03, "high": x + 0.02, "problems": 1000} for x in (0.25, 0.55))
RUNS = [
    a_run("grpo", 0, [0.2, 0.4], [80, 90], [4, 5], start=START, end=END),
    a_run("grpo", 1, [0.3, 0.6, 0.7], [82, 96, 99], [4, 6, 7]),
    a_run("<ppo>", 0, [0.1], [50], [3]),
]


def test_means_are_over_an_epoch_of_the_seeds_that_got_so_far() -> None:
    fig = plot_curves(RUNS)
    means, accuracies = part(fig, "means"), part(fig, "accuracies")
    own = means[means["algorithm"] == "grpo"]
    assert own[["epoch", "step", "seeds"]].to_numpy().tolist() == [[0, 0.5, 2], [1, 2, 1]]
    assert own["reward_mean"].tolist() == pytest.approx([0.375, 0.7])
    assert own["response_tokens_mean"].tolist() == pytest.approx([87, 99])
    assert accuracies[["seed", "after_steps", "accuracy"]].to_numpy().tolist() == [[0, 0, 0.25], [0, 2, 0.55]]


def test_every_algorithm_is_drawn_with_its_seeds_and_its_accuracies() -> None:
    fig = plot_curves(RUNS)
    names = [str(one.name) for one in fig.data]
    assert names.count("GRPO") == names.count("&lt;PPO&gt;") == 3, "reward, length, actors"
    thin = ["&lt;PPO&gt;, seed 0"] * 3 + ["GRPO, seed 0"] * 3 + ["GRPO, seed 1"] * 3
    assert sorted(name for name in names if "seed" in name) == thin
    marks = next(one for one in fig.data if one.name == "GRPO, held out")
    assert list(marks.x) == [0, 2]
    assert list(marks.error_y.array) == pytest.approx([0.02, 0.02])
    assert list(marks.error_y.arrayminus) == pytest.approx([0.03, 0.03])
    assert "held-out accuracy 25.0% to 55.0%" in fig.layout.title.text
    assert "<ppo>" not in fig.to_json().lower()


@pytest.mark.parametrize("runs", [[], [a_run("grpo", 0, [], [], [])]])
def test_without_steps_the_figure_says_so(runs: list[dict]) -> None:
    assert "no steps" in " ".join(str(note.text) for note in plot_curves(runs).layout.annotations)


def test_in_the_shipped_run_more_actors_are_started_where_longer_responses_are_expected() -> None:
    trace = read_trace(SHIPPED)
    expected = trace.rollouts.groupby("step")["predicted_tokens"].mean()
    decode = trace.allocations[trace.allocations["role"] == "decode"]
    actors = decode.groupby("step")["holder"].nunique()
    late = slice(4, None)  # the first epoch knows reference answers only, which are not what the model says
    assert expected.max() > 1.3 * expected.min(), "lengths do not drift"
    assert expected[late].rank().corr(actors[late].rank()) > 0.2
