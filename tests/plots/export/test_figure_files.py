"""Figures as files: sizes that are written into pictures, the same bytes every time, csv that opens safely, and refusals."""

from __future__ import annotations

import re
import struct
import zlib
from pathlib import Path
from typing import Any

import pandas as pd
import plotly.graph_objects as go
import pytest
from command_line import run_rlhfless
from error_messages import refused

from rlhfless.errors import InputError, MissingExtra
from rlhfless.plots import paper_style, plot_plane
from rlhfless.plots.export import render
from rlhfless.plots.export.files import save, save_all, save_data
from rlhfless.plots.export.render import ImageRequest, draw, why_no_pictures

needs_pictures = pytest.mark.skipif(bool(why_no_pictures()), reason=why_no_pictures() or "pictures can be drawn")
MM_PER_PT, MM_PER_PX = 25.4 / 72, 25.4 / 96


def figure() -> go.Figure:
    made = go.Figure(go.Bar(x=[1.0, 2.5], y=["a", "b"], orientation="h", name="one", marker={"pattern": {"shape": "/"}}))
    made.add_scatter(x=[1, 2], y=["a", "b"], mode="markers", name="two")
    return made.update_xaxes(title="time (s)").update_layout(title="<b>A title</b>", paper_bgcolor="rgba(0,0,0,0)")


def pdf_mm(data: bytes) -> list[tuple[float, ...]]:
    """Width and height of every page."""
    boxes = re.findall(rb"/MediaBox \[0 0 ([\d.]+) ([\d.]+) *\]", data)
    return [tuple(float(n) * MM_PER_PT for n in box) for box in boxes]


def pdf_drawn_mm(data: bytes) -> tuple[float, ...]:
    """Left, top, width and height of what is drawn on the page: its first clip, in the page's first unit."""
    number = re.search(rb"/Contents (\d+) 0 R", data)
    assert number
    stream = re.search(rb"\n" + number[1] + rb" 0 obj\s*<<.*?>>\s*stream\r?\n(.*?)\r?\nendstream", data, re.DOTALL)
    assert stream
    text = zlib.decompress(stream[1])
    unit, clip = re.match(rb"([\d.]+) 0 0", text), re.search(rb"([-\d.]+) ([-\d.]+) ([\d.]+) ([\d.]+) re\nW", text)
    assert unit
    assert clip
    return tuple(float(n) * float(unit[1]) * MM_PER_PT for n in clip.groups())


def svg_px(data: bytes) -> tuple[float, ...]:
    found = re.search(rb'<svg [^>]*width="([\d.]+)" height="([\d.]+)"', data)
    assert found
    return tuple(map(float, found.groups()))


def png_px(data: bytes) -> tuple[int, ...]:
    return struct.unpack(">II", data[16:24])


@pytest.mark.full
@needs_pictures
def test_pictures_have_their_size_in_millimetres_and_the_same_bytes_in_any_order(tmp_path: Path) -> None:
    sizes = {"column": (85.0, 60.0), "odd": (47.3, 31.7)}
    printed = {name: paper_style(figure(), *size, title=False) for name, size in sizes.items()}
    wanted = [(one, f"{name}{kind}") for name, one in printed.items() for kind in (".pdf", ".svg", ".png")]
    save_all([(one, tmp_path / "one" / name) for one, name in wanted], dpi=300)
    save_all([(one, tmp_path / "two" / name) for one, name in reversed(wanted[:3])], dpi=300)
    for name, size in sizes.items():
        files = {kind: (tmp_path / "one" / f"{name}{kind}").read_bytes() for kind in (".pdf", ".svg", ".png")}
        assert pdf_mm(files[".pdf"]) == [pytest.approx(size, abs=0.1)], "the browser rounds to 1/300 inch"
        assert pdf_drawn_mm(files[".pdf"]) == pytest.approx((0.0, 0.0, *size), abs=0.3), "no margin, nothing cut off"
        assert svg_px(files[".svg"]) == pytest.approx([mm / 25.4 * 96 for mm in size], abs=0.01)
        assert png_px(files[".png"]) == pytest.approx([mm / 25.4 * 300 for mm in size], abs=1)
        assert b"A title" not in files[".svg"]
        assert b"time (s)" in files[".svg"]
    for again in (tmp_path / "two").iterdir():
        assert again.read_bytes() == (tmp_path / "one" / again.name).read_bytes(), again.name
    assert len(list((tmp_path / "two").iterdir())) == 3


@pytest.mark.full
@needs_pictures
def test_a_png_may_be_transparent_and_is_as_wide_as_a_page(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image").open(save(figure(), tmp_path / "a.png", background=None, dpi=96)).convert("RGBA")
    assert image.size == (1100, 450)
    assert image.getpixel((2, 448))[3] == 0
    assert len(image.getcolors(1 << 20)) > 20, "something is drawn"


@pytest.mark.full
@needs_pictures
def test_a_figure_that_cannot_be_drawn_is_refused_and_no_file_is_left(tmp_path: Path) -> None:
    with refused(InputError, "1,000,000", "450", "192"):
        save_all([(figure(), tmp_path / "good.png"), (figure().update_layout(width=1e6), tmp_path / "huge.png")])
    assert not list(tmp_path.iterdir())
    with refused(InputError):
        draw([ImageRequest({"data": [], "layout": 5}, "svg", 100, 100)])


def test_a_page_holds_all_that_it_needs_and_is_the_same_every_time(tmp_path: Path) -> None:
    hostile = figure().update_layout(title="<b>x</b></title><script>alert(1)</script>")
    first, second = (save(hostile, tmp_path / name / "page.html").read_bytes() for name in "ab")
    assert first == second
    assert b"<script>alert" not in first
    assert b"<title>xalert(1)</title>" in first
    assert not re.findall(rb'<(?:script|link|img)[^>]*(?:src|href)="?http', first)
    assert b"Plotly.newPlot" in first


def test_csv_is_the_data_of_the_plot_and_the_same_every_time(tmp_path: Path) -> None:
    results = pd.DataFrame({"policy": ["static", "=cmd|' /C calc'!A0"], "time_s": [2.0, 1.0], "gpu_seconds": [3.0, 2.5]})
    first, second = (save_data(plot_plane(results), tmp_path / name / "data.csv").read_bytes() for name in "ab")
    assert first == second
    assert first.decode() == "table,policy,time_s,gpu_seconds\npolicies,static,2,3\npolicies,'=cmd|' /C calc'!A0,1,2.5\n"


def test_texts_that_a_spreadsheet_would_run_get_an_apostrophe_and_numbers_do_not(tmp_path: Path) -> None:
    names = ["=HYPERLINK(1)", "+1+1", "-2", "@SUM(1)", "\tx", "a=b", "-inf"]
    table = pd.DataFrame({"=name": names, "value": [-1.5, 2, -3, 4, 5, 6, 7]})
    lines = save_data(table, tmp_path / "t.csv").read_text("utf-8").splitlines()
    assert lines[0] == "'=name,value"
    assert [line.split(",")[0] for line in lines[1:]] == ["'=HYPERLINK(1)", "'+1+1", "-2", "'@SUM(1)", "'\tx", "a=b", "-inf"]
    assert lines[1].endswith(",-1.5")


@pytest.mark.parametrize("shown", [None, "abc", {"data": []}, [1]])
def test_what_is_no_figure_is_refused_and_leaves_no_file(tmp_path: Path, shown: Any) -> None:
    for name in ("page.html", "picture.png"):
        with refused(InputError, str(name)):
            save(shown, tmp_path / "out" / name)
    with refused(InputError):
        save_all([(figure(), tmp_path / "out" / "page.html"), (shown, tmp_path / "out" / "other.html")])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("shown", [None, {"data": []}, figure()])
def test_what_has_no_table_is_refused_and_leaves_no_file(tmp_path: Path, shown: Any) -> None:
    with refused(InputError, "plot_plane"):
        save_data(shown, tmp_path / "out" / "data.csv")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["figure", "figure.jpg", "figure.csv", ""])
def test_another_suffix_is_refused(tmp_path: Path, name: str) -> None:
    with refused(InputError):
        save(figure(), tmp_path / name)
    if name != "figure.csv":
        with refused(InputError):
            save_data(pd.DataFrame({"x": [1]}), tmp_path / name)


def test_a_folder_that_cannot_be_made_and_a_strange_resolution_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with refused(InputError):
        save(figure(), tmp_path / "file" / "page.html")
    with refused(InputError, "10", "2400"):
        save(figure(), tmp_path / "page.html", dpi=0)


def test_without_kaleido_a_picture_names_the_extra_and_pages_need_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "kaleido", None)
    with refused(MissingExtra):
        save(figure(), tmp_path / "a.png")
    save(figure(), tmp_path / "a.html")


@needs_pictures
def test_without_a_browser_one_sentence_says_what_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(render, "_browser", lambda: None)
    assert why_no_pictures().startswith("a picture of a figure cannot be drawn: a Chromium or Chrome is needed")
    with refused(InputError, "BROWSER_PATH"):
        save(figure(), tmp_path / "a.svg")


@needs_pictures
def test_a_browser_that_is_none_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(render, "_browser", lambda: "/bin/false")
    with refused(InputError, "bin/false"):
        save(figure(), tmp_path / "a.svg")


def test_the_command_refuses_pictures_that_cannot_be_drawn_before_it_computes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(render, "why_no_pictures", lambda: "no browser")
    for kind in ("png", "pdf", "png,pdf"):
        done = run_rlhfless("figures", "4b", "--fast", "--pictures", kind, "-o", str(tmp_path / "out"))
        assert (done.exit_code, done.output) == (2, "rlhfless: no browser\n")
    assert not (tmp_path / "out").exists()
    done = run_rlhfless("figures", "4b", "--fast", "-o", str(tmp_path / "out"))
    assert "no pictures: no browser" in done.output
    assert sorted(path.suffix for path in (tmp_path / "out").iterdir()) == [".csv", ".html", ".html"]


@needs_pictures
def test_the_command_writes_pictures_for_screens_and_for_papers(tmp_path: Path) -> None:
    done = run_rlhfless("figures", "4b", "--fast", "--pictures", "png,pdf", "-o", str(tmp_path))
    assert done.exit_code == 0, done.output
    assert png_px((tmp_path / "figure_04b.png").read_bytes())[0] == 2200
    image = pytest.importorskip("PIL.Image").open(tmp_path / "figure_04b.png").convert("RGBA")
    assert image.getpixel((2, 2)) == (255, 255, 255, 255), "white, whatever the viewer's background"
    assert pdf_mm((tmp_path / "figure_04b.pdf").read_bytes())[0][0] == pytest.approx(170, abs=0.1)
    assert 'href="figure_04b.pdf"' in (tmp_path / "index.html").read_text("utf-8")
