"""The one widget of every dashboard: what it sends to the page, and what it makes of messages from there."""

from __future__ import annotations

import json
import zlib
from html.parser import HTMLParser

import plotly.graph_objects as go
from log_samples import HOSTILE

from rlhfless.widgets import html as html_parts
from rlhfless.widgets.panes import Panes, script

ROWS = ((("left", 1), ("right", 2)), (("text", 1),))


def test_a_figure_is_sent_with_the_request_that_it_answers() -> None:
    panes = Panes(ROWS, ("text",))
    panes.draw("left", go.Figure(go.Bar(x=[1, 2], y=[3, 4])), request=7)
    sent = json.loads(panes.pane_left)
    assert sent["layout"]["meta"] == {"request": 7}
    assert sent["data"][0]["type"] == "bar"
    assert panes.pane_right == ""


def test_clicks_and_zooms_reach_whoever_asked() -> None:
    told: list[object] = []
    panes = Panes(ROWS, on_click=lambda *what: told.append(what), on_zoom=lambda *what: told.append(what))
    panes._on_message(None, {"pane": "left", "click": {"x": 1}}, [])
    panes._on_message(None, {"pane": "right", "zoom": [1, 2]}, [])
    panes._on_message(None, {"pane": "right", "zoom": None}, [])
    assert told == [("left", {"x": 1}), ("right", (1.0, 2.0)), ("right", None)]
    Panes(ROWS)._on_message(None, {"pane": "left", "click": {}}, [])


def test_a_page_gets_what_it_missed_and_nothing_else() -> None:
    panes = Panes(ROWS, ("text",))
    panes.draw("left", go.Figure(), request=1)
    panes.put("text", html_parts.paragraph("Zürich, 5 µs, 🙂"))
    has = {"left": zlib.adler32(panes.pane_left.encode()), "right": zlib.adler32(b""), "text": 1}
    sent: list[list[str]] = []
    panes.send_state = sent.append
    panes._on_message(None, {"has": has}, [])
    assert sent == [["pane_text", "stale", "library", "beat"]]


def test_nothing_is_loaded_from_a_network() -> None:
    assert "http" not in script()
    assert script().count("import(") == script().count("await import(url)") == 1, "what the kernel sent"


class Tags(HTMLParser):
    """The tags and attributes of a piece of HTML."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.seen: set[str] = set()
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen |= {tag, *(name for name, _ in attrs)}

    def handle_data(self, data: str) -> None:
        self.text += data


def test_pieces_show_hostile_text_as_text() -> None:
    for text in HOSTILE:
        made = (
            html_parts.cards([html_parts.Card(text, text, [(text, "better")])])
            + html_parts.table([text], [[text]], text)
            + html_parts.paragraph(text)
            + html_parts.problem(text)
        )
        tags = Tags(str(made + html_parts.quoted(text, text) + html_parts.copies([(text, "name", text)])))
        assert not tags.seen & {"script", "img", "onerror", "a", "href"}
        assert text[:4_000] in tags.text
