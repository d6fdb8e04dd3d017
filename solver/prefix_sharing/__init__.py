"""Deduplicated prefill: prefix trees, the choice of prefixes computed once, links, and placement with arrival times."""
