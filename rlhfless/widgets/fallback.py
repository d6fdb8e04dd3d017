"""The text that a page shows instead of a dashboard whose widgets did not load: a sentence rather than the widget's ``repr``.

Jupyter chooses among the forms of an output. Voila shows the text form where its widget manager did not start, for example
because a request of the page failed on a busy machine. So do pages without a kernel.
"""

from __future__ import annotations

from typing import Any, ClassVar

from rlhfless.widgets.html import reload

SENTENCE = "This dashboard's widgets did not load on this page: reload the page, or run the notebook in JupyterLab."
PLAIN, HTML = "text/plain", "text/html"


class ReloadFallback:
    """Mixin for widgets: the text forms of the output are the sentence, with a link that reloads the page.

    Attributes:
        instead: what to call where there are no widgets, such as in a notebook that is executed without a browser.
    """

    instead: ClassVar[str] = ""

    def _repr_mimebundle_(self, **options: Any) -> Any:
        made = super()._repr_mimebundle_(**options)  # type: ignore[misc]  # of the widget that this is mixed into
        forms, metadata = made if isinstance(made, tuple) else (made, {})
        sentence = f"{SENTENCE} {self.instead}".rstrip()
        return {**forms, PLAIN: sentence, HTML: str(reload(sentence))}, metadata
