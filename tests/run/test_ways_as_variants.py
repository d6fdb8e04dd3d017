"""``variants`` with ways to generate and to learn beside policies and hardware."""

from __future__ import annotations

import json
from typing import Any

import pytest
from error_messages import refused
from log_samples import rollouts

import rlhfless as rl
from rlhfless.analysis import Assumptions
from rlhfless.analysis.what_ifs import partial_rollout
from rlhfless.analysis.what_ifs.named import NAMES
from rlhfless.analysis.what_ifs.outcome import RunToChange, WayOutcome
from rlhfless.errors import InputError
from rlhfless.run import Run, Variant, variants
from rlhfless.simulate import Comparison
from solver import PlanningError

PROFILE = "l40s-qwen2.5-3b-tp2"


def loaded(**assumed: Any) -> Run:
    rows = rollouts(steps=3, prompts=6, samples=2)
    return rl.load(rows, 16, PROFILE, assumptions=Assumptions(**assumed), verbose=False)


@pytest.fixture(scope="module")
def run() -> Run:
    return loaded(prepare_s=1.0, learn_s=6.0)


CHOSEN = [
    Variant("planned"),
    Variant("partial", way="partial rollout"),
    Variant("8 GPUs", rl.Hardware(gpus=8)),
    Variant("async", way="asynchronous"),
    Variant("own", way="as logged"),
]


@pytest.fixture(scope="module")
def found(run: Run) -> Comparison:
    return variants(run, CHOSEN)


def test_ways_stand_beside_policies_and_hardware_in_the_order_that_was_asked(run: Run, found: Comparison) -> None:
    table = found.table
    assert table["variant"].drop_duplicates().tolist() == [one.name for one in CHOSEN]
    assert all(rows["step"].tolist() == run.steps for _, rows in table.groupby("variant"))
    means = found.means().set_index("variant")
    assert means["way"].tolist() == ["", "partial rollout", "", "asynchronous", "as logged"]
    assert means["time_s"].notna().all()
    assert means["cost_usd"].notna().all()
    of_way = means["way"].ne("")
    assert means.loc[of_way, "bound_gpu_seconds"].isna().all()
    assert (means["least_time_s"] <= means["time_s"] * (1 + 1e-9)).all()
    assert means.loc["planned", "least_time_s"] == pytest.approx(means.loc["own", "least_time_s"], rel=1e-5)
    assert means.loc["8 GPUs", "least_time_s"] > means.loc["planned", "least_time_s"]
    assert "unknown s" not in repr(found)
    assert not means.loc["async", "on_policy"]
    assert set(found.traces) == {"planned", "8 GPUs"}


def test_a_way_has_the_numbers_of_the_what_ifs(run: Run, found: Comparison) -> None:
    what_ifs, means = run.what_ifs(), found.means().set_index("way")
    theirs = what_ifs.means().set_index("way")
    for way in ("partial rollout", "as logged", "asynchronous"):
        for column in ("time_s", "gpu_seconds", "cost_usd", "least_time_s", "on_policy", "stale_tokens", "data"):
            assert means.loc[way, column] == theirs.loc[way, column]
    assert found.parameters["partial"] == what_ifs.parameters["partial rollout"]
    settings = what_ifs.knobs[what_ifs.knobs["variant"] == "partial rollout"]
    assert found.knobs.assign(variant="partial rollout").equals(settings.reset_index(drop=True))
    saved = 1 - means["time_s"] / means.loc["as logged", "time_s"]
    assert saved["asynchronous"] == pytest.approx(theirs.loc["asynchronous", "time_saved"])


def test_policies_learn_every_response_right_after_its_step(run: Run, found: Comparison) -> None:
    planned = found.means().set_index("variant").loc["planned"]
    assert planned["learned_responses"] == len(run.rollouts)
    assert (planned["data"], planned["stale_tokens"], planned["change"]) == ("on-policy", 0, "")
    own = found.means().set_index("variant").loc["own"]
    per_token = own["seconds_per_token"] * planned["time_s"] / own["time_s"]
    assert planned["seconds_per_token"] == pytest.approx(per_token)


@pytest.mark.parametrize("learner_gpus", [0, 8])
@pytest.mark.parametrize(("way_name", "policy_name"), [("right-sized, released", "random"), ("as logged", "static")])
def test_a_policy_and_the_way_that_runs_it_take_the_same(way_name: str, policy_name: str, learner_gpus: int) -> None:
    """So rows of policies have the run's seconds outside generation, and the GPUs of the learner."""
    divided = loaded(prepare_s=1.0, learn_s=6.0, learner_gpus=learner_gpus, dispatch="static")
    compared = variants(divided, [Variant("way", way=way_name), Variant("policy", policy=policy_name)])
    columns = ["time_s", "gpu_seconds", "cost_usd", "least_time_s"]
    way, policy = (compared.means().set_index("variant").loc[name, columns].tolist() for name in ("way", "policy"))
    assert way == pytest.approx(policy, rel=1e-5)
    alone = divided.sweep(policies=[policy_name]).means()
    assert policy[0] == pytest.approx(alone["time_s"].iloc[0] + 7.0)


def test_on_half_the_gpus_learning_takes_the_same_gpu_seconds(run: Run, found: Comparison) -> None:
    whole, alone = found.means().set_index("variant"), run.sweep(gpus=[8]).means().iloc[0]
    assert whole.loc["8 GPUs", "time_s"] == pytest.approx(alone["time_s"] + 2 * 7.0)
    assert whole.loc["8 GPUs", "gpu_seconds"] == pytest.approx(alone["gpu_seconds"] + 16 * 7.0)
    assert whole.loc["8 GPUs", "bound_gpu_seconds"] <= whole.loc["8 GPUs", "gpu_seconds"] * (1 + 1e-9)


def test_a_function_of_the_run_is_a_way(run: Run) -> None:
    def a_tenth(of: RunToChange) -> WayOutcome:
        return partial_rollout.way(of, unfinished=0.1)

    compared = variants(run, [Variant("a tenth", way=a_tenth)], steps=run.steps[-2:])
    assert compared.table["step"].tolist() == run.steps[-2:]
    assert compared.table["way"].tolist() == ["partial rollout"] * 2
    assert compared.table["planning_s"].isna().all()
    with refused(InputError, "'none'", 3, "WayOutcome"):
        variants(run, [Variant("none", way=lambda _: 3)])  # type: ignore[arg-type, return-value]


def test_tables_figures_and_json_have_them(found: Comparison) -> None:
    shown = json.loads(found.to_json())
    assert [row["way"] for row in shown["means"]] == ["", "partial rollout", "", "asynchronous", "as logged"]
    assert shown["means"][1]["bound_gpu_seconds"] is None
    for text in (repr(found), found._repr_html_()):
        assert "partial" in text
        assert "7 s outside generation" in text
    drawn = [(x, y) for one in found.plot().data for x, y in zip(one.x, one.y, strict=True)]
    assert all(point in drawn for point in zip(found.means()["time_s"], found.means()["cost_usd"], strict=True))
    front = found.front()
    assert set(front.means()["variant"]) <= {one.name for one in CHOSEN}
    assert found.only(["async"]).table["way"].tolist() == ["asynchronous"] * 3


def test_ways_that_the_run_cannot_have_are_left_out_and_say_why() -> None:
    unknown = loaded()
    chosen = [Variant("async", way="asynchronous"), Variant("fused", way="stage fusion"), Variant("planned")]
    compared = variants(unknown, chosen)
    assert compared.table["variant"].unique().tolist() == ["planned"]
    assert list(compared.left_out) == ["async", "fused"]
    assert "stage fusion" in compared.left_out["fused"]
    assert "generation alone" in compared.times
    with refused(PlanningError, "learning"):
        variants(unknown, chosen[:1])


def test_a_variant_without_room_leaves_the_ways(run: Run) -> None:
    compared = variants(run, [Variant("1 GPU", rl.Hardware(gpus=1)), Variant("drafts", way="drafts")])
    assert compared.table["variant"].unique().tolist() == ["drafts"]
    assert list(compared.left_out) == ["1 GPU"]


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"way": "partial"}, ("'partial'", NAMES[0], NAMES[-1])),
        ({"way": 3}, ("'a'", 3, "way")),
        ({"way": "drafts", "policy": "solver"}, ("'a'", "way", "policy")),
        ({"way": "drafts", "hardware": rl.Hardware(gpus=8)}, ("'a'", "way", "hardware")),
        ({"way": "drafts", "time_weight": 0.5}, ("'a'", "way", "time_weight")),
    ],
)
def test_a_wrong_way_is_one_sentence(wrong: dict[str, Any], named: tuple[Any, ...]) -> None:
    with refused(InputError, *named):
        Variant("a", **wrong)


def test_an_executed_run_is_a_variant_as_executed(run: Run) -> None:
    trace = run.simulate(["static"]).traces["static"]
    again = rl.load(trace, verbose=False)
    compared = variants(
        again, [Variant("took", way="as executed"), Variant("log", way="as logged"), Variant("policy", policy="static")]
    )
    means = compared.means().set_index("variant")
    assert list(compared.left_out) == ["log"]
    assert "as executed" in compared.left_out["log"]
    columns = ["time_s", "gpu_seconds"]
    assert means.loc["policy", columns].tolist() == pytest.approx(means.loc["took", columns].tolist(), rel=1e-3)
    alone = variants(run, [Variant("took", way="as executed"), Variant("planned")])
    assert "executed" in alone.left_out["took"]
