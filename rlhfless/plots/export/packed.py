"""Packs a text as gzip in base64, which a page's own script unpacks without a network (``page.js``, ``DecompressionStream``).

plotly.js and the figures' data are a third of their size this way.
"""

from __future__ import annotations

import base64
import gzip
from functools import lru_cache


def packed(text: str) -> str:
    """Return the text as gzip in base64; the same text gives the same result."""
    return base64.b64encode(gzip.compress(text.encode("utf-8", "replace"), 9, mtime=0)).decode("ascii")


@lru_cache(2)
def packed_once(text: str) -> str:
    """Return ``packed(text)``; it is kept, for a text that every page has."""
    return packed(text)


def unpacked(text: str) -> str:
    """Return the text that ``packed`` was given."""
    return gzip.decompress(base64.b64decode(text)).decode("utf-8")
