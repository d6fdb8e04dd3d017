"""The cards of the dashboard ``explore``, as its page shows them."""

from __future__ import annotations

import re


def cards_of(html: str) -> dict[str, list[str]]:
    """Name of every card, with its number and changes."""
    cards = [re.findall(r">([^<>]+)</(?:span|b)>", card) for card in html.split('role="listitem"')[1:]]
    return {name: said for name, *said in cards}
