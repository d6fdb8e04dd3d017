"""Panes in a page without JupyterLab: with models that hold what Python sent, and keep what the page tells.

Knows the panes' script and traits, and the few methods of ipywidgets' models that it calls; nothing of what figures show.
"""

from __future__ import annotations

import base64
import json
from typing import Any

from rlhfless.widgets import plotly_js
from rlhfless.widgets.panes import HERE, Panes, script

MODELS = """
window.sent = [];
const bytes = (text) => new DataView(Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer);
function made(state) {
  const handlers = {};
  return {
    get: (name) => state[name],
    on: (what, call) => { (handlers[what] ||= []).push(call); },
    off: (what, call) => { handlers[what] = handlers[what].filter((one) => one !== call); },
    send: (message) => window.sent.push(message),
    set: (name, value) => { state[name] = value; for (const call of handlers["change:" + name] || []) call(); },
  };
}
window.model = made(BOX);
window.library = made({...LIBRARY, code: bytes("CODE")});
const models = {box: window.model, library: window.library};
const found = async (name) => { if (!(name in models)) throw new Error(`no model ${name}`); return models[name]; };
const manager = {get_model: found};
window.drawing = {...made({box: "box"}), widget_manager: manager};
"""
OPEN = """async ([code, where]) => {
  const made = await import(URL.createObjectURL(new Blob([code], {type: "text/javascript"})));
  await made.default.render({model: window.drawing, el: document.getElementById(where)});
}"""


def show(page: Any, panes: Panes, **library: Any) -> None:
    """Draw panes as JupyterLab would.

    Args:
        library: what the model of plotly.js has otherwise: ``code`` (bytes), ``sha256``, ``problem``.
    """
    names = [name for row in panes.rows for name, _ in row]
    box = {"rows": panes.rows, "html_panes": panes.html_panes, "stale": panes.stale, "library": "library"}
    box |= {f"pane_{name}": getattr(panes, f"pane_{name}") for name in names}
    code = library.pop("code", plotly_js.FILE.read_bytes())
    source = {"sha256": plotly_js.SHA256, "problem": "", "sent": 1, **library}
    page.set_content("<body style='margin:0'><div id='here' style='width:1200px'></div></body>")
    page.add_style_tag(content=(HERE / "panes.css").read_text("utf-8"))
    models = MODELS.replace("BOX", json.dumps(box), 1).replace("LIBRARY", json.dumps(source), 1)
    page.evaluate(f"() => {{ {models.replace('CODE', base64.b64encode(code).decode(), 1)} }}")
    page.evaluate(OPEN, [script(), "here"])
