"""The overview: where GPU-seconds went, both wastes, and the change that would help most."""

from __future__ import annotations

import pandas as pd
import pytest
from plot_samples import EVIL

from rlhfless.plots import plain, plot_overview
from rlhfless.plots.overview import WORK_COLOURS
from rlhfless.plots.palette import GREY, ink_on

USES = pd.DataFrame(
    {
        "use": ["decoding, slots in use", "prefill", "decoding, empty slots", "idle GPUs"],
        "kind": ["work", "work", "empty slots", "idle"],
        "gpu_s": [20.0, 10.0, 50.0, 20.0], "usd": [0.2, 0.1, 0.5, 0.2], "share": [0.2, 0.1, 0.5, 0.2],
    }
)  # fmt: skip
BEST = pd.Series({"policy": "fold", "GPU-seconds mean": 0.3, "time mean": -0.05, "GPU-seconds most": 0.6})


def titles(*shown: object, **further: object) -> str:
    """What stands over the figure, on one line."""
    return plain(plot_overview(*shown, **further).layout.title.text.replace("</b>", "<br>"))


def test_the_verdict_has_both_wastes_and_the_change_has_its_price() -> None:
    slots = "a slot is room for one response in a replica's batch; empty slots cost as much as used ones"
    verdict = "50% of the GPU-seconds went to empty slots, and 20% were idle"
    change = (
        "The schedule fold saves 30% of the GPU-seconds and takes 5% more time; no schedule that takes as long saves more "
        "than 60%"
    )
    assert titles(USES, BEST) == f"{verdict} {change} {slots}"
    assert titles(USES) == f"{verdict} {slots}"
    assert titles(USES[[True, True, False, True]]) == "40% of the GPU-seconds were idle"
    assert "and takes as long; no" in titles(USES, best=BEST.replace({-0.05: 0.001}))
    assert "No simulated schedule saves anything" in titles(USES, best=BEST.replace({0.3: -0.1}))
    assert "and none were idle" in titles(USES[:3])


def test_the_bars_are_the_run_the_change_and_the_bound() -> None:
    fig = plot_overview(USES, BEST)
    run = [bar for bar in fig.data if bar.y[0] == "this run"]
    assert [bar.x[0] for bar in run] == USES["gpu_s"].tolist()
    after, bound = fig.data[-2:]
    assert (after.y[0], after.x[0], after.text[0]) == (
        "with fold",
        pytest.approx(70.0),
        "70.0 GPU-seconds, 0.700 USD, 30% saved",
    )
    assert (bound.y[0], bound.x[0], bound.text[0]) == (
        "lower bound", pytest.approx(40.0), "40.0 GPU-seconds, 0.400 USD, at most 60% saved",
    )  # fmt: skip
    assert run[3].marker.pattern.shape == "/"
    free = plot_overview(USES.assign(usd=0.0), BEST)
    assert "USD" not in free.to_json()


def test_work_is_named_within_its_bar_in_ink_that_is_legible_there_and_waste_in_that_of_the_figure() -> None:
    fig = plot_overview(USES, BEST)
    run = [bar for bar in fig.data if bar.y[0] == "this run"]
    assert [bar.text[0] for bar in run] == ["", "", "", ""], "too narrow for their names, or waste"
    assert [note.text for note in fig.layout.annotations] == ["decoding, empty slots (50%)", "idle GPUs (20%)"]
    wide = plot_overview(USES.assign(gpu_s=[60.0, 10.0, 20.0, 10.0], share=[0.6, 0.1, 0.2, 0.1])).data[0]
    assert (wide.text[0], wide.insidetextfont.color) == ("decoding, slots in use (60%)", "#FFFFFF")


@pytest.mark.parametrize("colour", sorted(set(WORK_COLOURS.values()) | {GREY}))
def test_ink_on_the_colour_of_any_work_has_a_contrast_of_four_and_a_half(colour: str) -> None:
    def light(of: str) -> float:
        parts = [int(of[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return sum(share * part for share, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True)) + 0.05

    ratios = light(colour) / light(ink_on(colour))
    assert max(ratios, 1 / ratios) >= 4.5


def test_an_overview_without_a_change_or_without_gpus() -> None:
    assert len(plot_overview(USES).data) == 4
    assert plot_overview(USES[:0]).layout.annotations[0].text == "No GPU was allocated."
    assert "\\u003cscript" not in plot_overview(USES.assign(use=EVIL), best=BEST.replace("fold", EVIL)).to_json()
