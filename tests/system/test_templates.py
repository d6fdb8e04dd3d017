"""Templates escape all texts, need a value for every name, and lie in the package that is shipped."""

from __future__ import annotations

import pytest
from jinja2 import UndefinedError

from rlhfless.system.templates import PACKAGE, Markup, macros, render

EVIL = "<script>'\"&"
SAFE = "&lt;script&gt;&#39;&#34;&amp;"


def test_a_text_is_escaped_once_and_a_piece_is_not() -> None:
    parts = macros("widgets/parts.html.j2")
    piece = parts.paragraph(EVIL)
    assert isinstance(piece, Markup)
    assert f">{SAFE}<" in piece
    assert piece in parts.table([("", "")], [[(piece, "")]], "", True)
    assert EVIL + piece == SAFE + str(piece), "joined with a piece, a text is escaped, too"


def test_a_text_in_an_attribute_does_not_end_it() -> None:
    frame = render("report/frame.html.j2", name=EVIL, height_px=1, page=EVIL)
    assert f'title="{SAFE}"' in frame
    assert f'srcdoc="{SAFE}"' in frame


def test_a_name_without_a_value_is_an_error() -> None:
    with pytest.raises(UndefinedError, match="height_px"):
        render("report/frame.html.j2", name="", page="")


def test_style_and_script_are_in_the_page_as_they_are_in_their_files() -> None:
    page = render("plots/export/page.html.j2", title="", lead="", sections=[], parts=[], figures="", plotly_js="", footer="")
    for name in ("page.css", "wrapped.js", "page.js"):
        assert (PACKAGE / "plots" / "export" / name).read_text("utf-8") in page


def test_a_line_is_one_line_and_not_too_long() -> None:
    values = {"sections": [], "parts": [], "figures": "", "plotly_js": "", "footer": ""}
    page = render("plots/export/page.html.j2", title="a\nb", lead="x" * 301, **values)
    assert "<h1>a b</h1>" in page
    assert f">{'x' * 299}…<" in page
