"""Logs of other frameworks as rollouts; one importer per file.

An importer says what it could not find and never invents a length.
"""

from rlhfless.trace.importers.summary import ImportSummary, summarize
from rlhfless.trace.importers.table import import_table

__all__ = ["ImportSummary", "import_table", "summarize"]
