"""What stands in a dashboard's place on a page whose widgets did not load: a sentence, not Python's text of the widget.

Knows how Jupyter chooses among forms of an output; nothing of dashboards. Voila shows the text where its widget manager did not
start, because a request of the page failed on a busy machine, for example; so do pages without a kernel.
"""

from __future__ import annotations

from typing import Any

SENTENCE = "This dashboard's widgets did not load on this page: reload the page, or run the notebook in JupyterLab."
PLAIN, HTML = "text/plain", "text/html"


class SaysWhy:
    """Mixed into a widget: its forms besides the widget itself are the sentence, with a link that reloads the page."""

    def _repr_mimebundle_(self, **options: Any) -> Any:
        made = super()._repr_mimebundle_(**options)  # type: ignore[misc]  # of the widget that this is mixed into
        forms, metadata = made if isinstance(made, tuple) else (made, {})
        reload = "<a href='' onclick='location.reload(); return false'>Reload the page</a>"
        return {**forms, PLAIN: SENTENCE, HTML: f"<p role='alert'>{SENTENCE} {reload}</p>"}, metadata
