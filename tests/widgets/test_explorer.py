"""The dashboard in Python: moves of its sliders plan anew, clicks tell of responses, what a log says is escaped."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from error_messages import refused
from log_samples import HOSTILE, log

import rlhfless as rl
from rlhfless.errors import InputError, InputIndexError
from rlhfless.latency import ProfileError, read_profile, save_profile
from rlhfless.widgets import Settings
from rlhfless.widgets import explorer as explorer_module
from rlhfless.widgets.explorer import Explorer
from rlhfless.widgets.what_if import POLICIES


@pytest.fixture(scope="module")
def explorer() -> Explorer:
    made = rl.load(log(prompts=24, samples=8), 8, "cpu-tiny-qwen2", time_weight=1.0, verbose=False).explore()
    assert made.wait(300)
    return made


def drawn(explorer: Explorer, pane: str) -> dict[str, object]:
    return json.loads(getattr(explorer.panes, f"pane_{pane}"))


def test_all_panes_are_there_and_none_is_grey(explorer: Explorer) -> None:
    assert explorer.wait(300)
    assert explorer.error is None
    assert explorer.panes.stale == []
    assert explorer.planned is not None
    assert "Actors of this plan" in explorer.panes.pane_actors
    assert f"<span>actors</span><b>{len(explorer.planned.plan.actors)}</b>" in explorer.panes.pane_facts
    names = [one.get("name") for one in drawn(explorer, "plane")["data"]]  # type: ignore[attr-defined]
    front, bound = "best plans with known lengths", "lower bound: no schedule is below"
    assert {"solver (this plan)", "static", "random", "oracle", front, bound} <= set(names)
    assert f", {len(POLICIES)} policies" in explorer.panes.pane_plane
    assert any(one.get("name") == "decode" for one in drawn(explorer, "timeline")["data"])  # type: ignore[attr-defined]


def test_a_move_plans_anew_in_another_thread_and_greys_what_is_old(explorer: Explorer, monkeypatch: pytest.MonkeyPatch) -> None:
    grey: list[tuple[str, ...]] = []
    explorer.panes.observe(lambda change: grey.append(tuple(change["new"])), "stale")
    threads = set()
    plan = explorer.what_if.plan
    monkeypatch.setattr(explorer.what_if, "plan", lambda s: (threads.add(threading.current_thread()), plan(s))[1])
    before = explorer.planned
    assert before is not None
    explorer.time_weight.value = 0.0
    assert explorer.wait(300)
    explorer.panes.unobserve_all("stale")
    assert explorer.planned is not None
    assert explorer.planned.settings.time_weight == 0.0
    assert explorer.planned.plan.gpu_seconds < before.plan.gpu_seconds
    assert "timeline" in grey[0]
    assert grey[-2:] == [("plane",), ()], "the plan first, then the curves"
    assert threading.main_thread() not in threads
    explorer.time_weight.value = 1.0
    assert explorer.wait(300)


def test_what_was_asked_while_a_plan_was_drawn_keeps_all_panes_grey(
    explorer: Explorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    show, after = explorer._show_plan, []
    answered = explorer.panes.answered

    def interrupted(*given: object) -> None:
        show(*given)  # type: ignore[arg-type]
        if not after:
            explorer._request_plan()

    def watched(*given: object) -> None:
        answered(*given)  # type: ignore[arg-type]
        after.append(list(explorer.panes.stale))

    monkeypatch.setattr(explorer, "_show_plan", interrupted)
    monkeypatch.setattr(explorer.panes, "answered", watched)
    explorer._request_plan()
    assert explorer.wait(300)
    assert after[0] == sorted(["facts", "timeline", "actors", "responses", "response", "copy", "plane"])
    assert after[1:] == [["plane"], []], "the plan, then the policies"


def test_a_value_that_a_page_rounds_is_no_move(explorer: Explorer) -> None:
    before, tau = explorer._requests, explorer.tau.value
    explorer.tau.value = tau + 1e-16 * 2**3
    assert explorer.tau.value != tau
    assert explorer._requests == before
    explorer.tau.value = tau


def test_a_moving_slider_plans_once_it_rests(explorer: Explorer, monkeypatch: pytest.MonkeyPatch) -> None:
    planned: list[float] = []
    plan, stays = explorer.what_if.plan, explorer_module._stays
    monkeypatch.setattr(explorer.what_if, "plan", lambda settings: (planned.append(settings.time_weight), plan(settings))[1])

    def moves_on(newest: Any, seconds: float) -> bool:
        if explorer.time_weight.value == 0.5:
            explorer.time_weight.value = 0.55  # before the slider has rested
        return stays(newest, seconds)

    monkeypatch.setattr(explorer_module, "_stays", moves_on)
    explorer.time_weight.value = 0.5
    assert explorer.wait(300)
    assert planned == [0.55]
    assert explorer.settings.time_weight == 0.55
    explorer.time_weight.value = 1.0
    assert explorer.wait(300)


@pytest.mark.full
def test_a_selected_response_stays_marked_in_every_pane_on_other_gpus(explorer: Explorer) -> None:
    def marked(pane: str) -> list[list[int]]:
        return [one["customdata"] for one in drawn(explorer, pane)["data"] if one.get("name") == "selected response"]  # type: ignore[attr-defined]

    def is_marked(response: int) -> None:
        assert explorer.wait(300)
        assert explorer.planned is not None
        assert explorer.error is None
        actor = explorer.planned.trace.rollouts["actor"].iloc[response]
        assert marked("timeline") == [[response]]
        assert marked("responses") == [[response]]
        assert f"{actor}" in drawn(explorer, "responses")["layout"]["title"]["text"]  # type: ignore[index]
        assert re.findall(r'aria-pressed="true">([^<]*)<', explorer.panes.pane_actors) == [actor]
        row = explorer.planned.trace.rollouts.iloc[response]
        assert f"sample {row['sample']}" in explorer.panes.pane_response
        assert f"generated {row['response_tokens']:,}" in explorer.panes.pane_response

    own = explorer.kind.value
    for response in (0, 100, 191):
        explorer.show_response(response)
        is_marked(response)
    explorer.kind.value = "h100 · Qwen2.5-3B"
    is_marked(191)
    explorer.gpus.value = 4
    is_marked(191)
    explorer.kind.value, explorer.gpus.value = own, 8
    is_marked(191)
    explorer.show_actor(0)
    assert (marked("timeline"), marked("responses")) == ([], [])


@pytest.mark.full
def test_another_gpu_kind_brings_its_sizes_and_list_price(explorer: Explorer) -> None:
    explorer.kind.value = "h100 · Qwen2.5-3B"
    assert explorer.wait(300)
    assert explorer.settings.profile.startswith("h100-qwen2.5-3b-tp")
    assert explorer.settings.usd_per_gpu_hour == pytest.approx(6.88)
    explorer.kind.value = "cpu · " + next(k.split(" · ")[1] for k in explorer.kind.options if k.startswith("cpu"))
    assert explorer.wait(300)
    assert explorer.settings.profile == "cpu-tiny-qwen2"


@pytest.mark.full
@pytest.mark.parametrize("kind", ["cpu", "mi300x"])
def test_a_profile_file_is_chosen_like_a_shipped_one(kind: str, tmp_path: Path) -> None:
    path = save_profile(tmp_path / "mine.json", {**read_profile("cpu-tiny-qwen2"), "kind": kind})
    explorer = rl.load(log(), 8, path, hardware=rl.Hardware(usd_per_gpu_hour=1.25), verbose=False).explore()
    assert explorer.wait(300)
    assert (explorer.error, explorer.settings.profile) == (None, str(path))
    own = explorer.kind.value
    explorer.kind.value = "h100 · Qwen2.5-3B"
    assert explorer.wait(300)
    assert explorer.settings.profile.startswith("h100-qwen2.5-3b-tp")
    explorer.kind.value = own
    assert explorer.wait(300)
    assert (explorer.error, explorer.settings.profile) == (None, str(path))
    listed = {"cpu": 0.0, "mi300x": 6.88}[kind]
    assert explorer.settings.usd_per_gpu_hour == pytest.approx(listed), "a kind without a list price keeps what was paid"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"gpu": 8}, ("'gpu'", "time_weight")),
        ({"gpus": 0}, ()),
        ({"settings": {"gpus": 8}}, ()),
        ({"settings": "cpu-tiny-qwen2"}, ()),
        ({"profile": "h100"}, ("'h100'",)),
        ({"profile": "mine.json"}, ("mine.json",)),
    ],
)
def test_what_is_no_setting_is_refused_in_a_sentence(wrong: dict[str, Any], said: tuple[str, ...]) -> None:
    with refused((InputError, ProfileError), *said):
        rl.load(log(), 8, "cpu-tiny-qwen2", verbose=False).explore(**wrong)


@pytest.mark.parametrize(
    "given", [{"tau": 0.01, "usd_per_gpu_hour": 5000.0}, {"tau": 1e-6, "time_weight": 0.123456}, {"usd_per_gpu_hour": 0.0}]
)
def test_settings_that_no_slider_would_reach_stay_as_they_were_given(given: dict[str, Any]) -> None:
    wanted = Settings("cpu-tiny-qwen2", gpus=8, **{"usd_per_gpu_hour": 2.5, **given})
    explorer = rl.load(log(), 8, "cpu-tiny-qwen2", verbose=False).explore(settings=wanted)
    assert explorer.wait(300)
    assert (explorer.error, explorer.settings) == (None, wanted.of_run(explorer.what_if.run))


def test_settings_that_fit_no_actor_are_said_and_the_next_move_goes_on(explorer: Explorer) -> None:
    explorer.kind.value = next(k for k in explorer.kind.options if "7B" in k)
    explorer.gpus.value = 2
    assert explorer.wait(300)
    assert explorer.error is not None
    assert "takes 4" in explorer.panes.pane_facts
    assert "timeline" in explorer.panes.stale
    explorer.gpus.value = 8
    explorer.kind.value = next(k for k in explorer.kind.options if k.startswith("cpu"))
    assert explorer.wait(300)
    assert explorer.error is None
    assert explorer.panes.stale == []


def test_a_click_on_a_bar_tells_of_its_actor_and_of_a_response(explorer: Explorer) -> None:
    planned = explorer.planned
    assert planned is not None
    last = len(planned.plan.actors) - 1
    assert last > 0
    explorer.panes._on_message(None, {"pane": "timeline", "click": {"y": last, "customdata": None}}, [])
    assert f"actor-{last}" in drawn(explorer, "responses")["layout"]["title"]["text"]  # type: ignore[index]
    response = planned.plan.actors[last].responses[0]
    explorer.panes._on_message(None, {"pane": "responses", "click": {"y": 0, "customdata": response}}, [])
    assert f"Actor {last} has" in explorer.panes.pane_response
    assert "Earlier responses to this prompt" in explorer.panes.pane_response


@pytest.mark.full
def test_buttons_choose_what_clicks_choose_and_the_text_follows_the_plan(explorer: Explorer) -> None:
    assert explorer.planned is not None
    last = len(explorer.planned.plan.actors) - 1
    explorer.panes._on_message(None, {"pane": "actors", "choice": last}, [])
    assert f"actor-{last}" in drawn(explorer, "responses")["layout"]["title"]["text"]  # type: ignore[index]
    assert re.findall(r'aria-pressed="true">([^<]*)<', explorer.panes.pane_actors) == [f"actor-{last}"]
    first = re.search(r'data-tell="(\d+)"[^>]*>first response of', explorer.panes.pane_response)
    assert first is not None
    explorer.panes._on_message(None, {"pane": "response", "choice": int(first[1])}, [])
    seen = set()
    for _ in explorer.planned.plan.actors[last].responses:
        assert explorer.response is not None
        seen.add(explorer.response)
        following = re.search(r'data-tell="(\d+)"[^>]*>next response', explorer.panes.pane_response)
        assert following is not None
        explorer.panes._on_message(None, {"pane": "response", "choice": int(following[1])}, [])
    assert seen == set(explorer.planned.plan.actors[last].responses), "each of them can be reached"
    chosen, before = explorer.response, explorer.panes.pane_response
    explorer.time_weight.value = 0.0
    assert explorer.wait(300)
    assert explorer.response == chosen
    assert explorer.panes.pane_response != before, "it tells of the plan that is shown"
    explorer.time_weight.value = 1.0
    assert explorer.wait(300)


@pytest.mark.parametrize("response", [192, -1, 1.5])
def test_a_response_that_is_not_there_is_refused_and_the_dashboard_goes_on(explorer: Explorer, response: int) -> None:
    explorer.show_response(5)
    told = explorer.panes.pane_response
    with refused(InputIndexError, repr(response), "191"):
        explorer.show_response(response)
    assert (explorer.response, explorer.panes.pane_response) == (5, told)
    explorer._request_plan()
    assert explorer.wait(300)
    assert (explorer.error, explorer.panes.stale) == (None, [])


def test_hostile_texts_are_text_everywhere(explorer: Explorer) -> None:
    for response in range(0, 192, 8):
        explorer.show_response(response)
        told = explorer.panes.pane_response
        assert "<script" not in told
        assert "<img" not in told
    explorer.show_response(0)
    assert "&lt;script&gt;window.hacked = 1&lt;/script&gt;" in explorer.panes.pane_response
    explorer.show_response(3 * 8)
    assert "and 5,000 more characters" in explorer.panes.pane_response
    assert len(HOSTILE[3]) == 9_000
    for pane in ("timeline", "responses", "plane"):
        assert "<script" not in getattr(explorer.panes, f"pane_{pane}")
        assert "<img" not in getattr(explorer.panes, f"pane_{pane}")


def test_the_state_can_be_copied(explorer: Explorer) -> None:
    code, text = explorer.as_code()
    assert Settings(**json.loads(text)) == explorer.settings
    assert "what_if.plan(Settings(profile='cpu-tiny-qwen2'" in code
    assert 'data-copy=".as-python"' in explorer.panes.pane_copy


def test_a_source_that_is_code_stays_a_string(explorer: Explorer) -> None:
    source = "'); import os; ('"
    code = explorer.settings.to_python(source, 2, explorer.what_if.scale)
    compile(code, "copied", "exec")
    assert repr(source) in code
