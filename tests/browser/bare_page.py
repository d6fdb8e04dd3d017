"""Panes in a page without JupyterLab: with a model that holds what Python sent, and keeps what the page tells.

Knows the panes' script and traits; nothing of what figures show.
"""

from __future__ import annotations

import json
from typing import Any

from rlhfless.widgets.panes import HERE, Panes, script

MODEL = """
const handlers = {}, state = STATE;
window.sent = [];
window.model = {
  get: (name) => state[name],
  on: (what, call) => { (handlers[what] ||= []).push(call); },
  off: (what, call) => { handlers[what] = handlers[what].filter((one) => one !== call); },
  send: (message) => window.sent.push(message),
  set: (name, value) => { state[name] = value; for (const call of handlers["change:" + name] || []) call(); },
};
"""


def show(page: Any, panes: Panes) -> None:
    """Draw panes as JupyterLab would."""
    names = [name for row in panes.rows for name, _ in row]
    state = {"rows": panes.rows, "html_panes": panes.html_panes, "stale": panes.stale}
    state |= {f"pane_{name}": getattr(panes, f"pane_{name}") for name in names}
    page.set_content("<body style='margin:0'><div id='here' style='width:1200px'></div></body>")
    page.add_style_tag(content=(HERE / "panes.css").read_text("utf-8"))
    page.evaluate(MODEL.replace("STATE", json.dumps(state)))
    page.evaluate(
        "async (code) => { const made = await import(URL.createObjectURL(new Blob([code], {type: 'text/javascript'})));"
        " made.default.render({model: window.model, el: document.getElementById('here')}); }",
        script(),
    )
