"""The bundled plotly.js file, checked by its hash, and the widget model that sends it to a page once per kernel.

The file is the cartesian bundle (``rlhfless.plots.export.plotly_bundle``). It is sent as binary data of an ordinary ipywidgets
model, so it needs no network and no port. It is sent before a cell makes the kernel busy.
"""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path

from rlhfless.errors import missing_extra
from rlhfless.plots.export.plotly_bundle import FILE, SHA256

try:
    import ipywidgets as widgets
    import traitlets
except ImportError as error:
    raise missing_extra("a dashboard", error.name, "notebook") from None


def checked(file: Path = FILE, sha256: str = SHA256) -> tuple[bytes, str]:
    """Read the bundled plotly.js and check its hash.

    Returns:
        Its bytes and the empty text; or no bytes and a sentence that says what is wrong with the file.
    """
    try:
        code = file.read_bytes()
    except OSError as error:
        return b"", f"{file} cannot be read ({error.strerror}); install rlhfless again."
    if hashlib.sha256(code).hexdigest() != sha256:
        return b"", f"{file} has another SHA-256 than the plotly.js of rlhfless; install rlhfless again."
    return code, ""


class PlotlyJs(widgets.Widget):  # type: ignore[misc]
    """The bundle as a model of the page.

    Attributes:
        code: the bundle, empty where the file is missing or damaged. sha256: the hash that the page checks.
        problem: a sentence about the file, empty where the file is valid. sent: how often it was sent; changes with every try.
    """

    code = traitlets.Bytes().tag(sync=True)
    sha256 = traitlets.Unicode(SHA256).tag(sync=True)
    problem = traitlets.Unicode().tag(sync=True)
    sent = traitlets.Int(1).tag(sync=True)

    def __init__(self) -> None:
        code, problem = checked()
        super().__init__(code=code, problem=problem)

    def send_again(self) -> None:
        """Read the file again and send everything to the page, whether it changed or not."""
        self.code, self.problem = checked()
        self.send_state(["code", "sha256", "problem"])
        self.sent += 1  # last: the page tries again when it sees this


_LOCK = threading.Lock()
_shared: PlotlyJs | None = None


def shared() -> PlotlyJs:
    """Return the one model of this kernel, made on first use and again after it was closed."""
    global _shared
    with _LOCK:
        if _shared is None or _shared.comm is None:
            _shared = PlotlyJs()
        return _shared
