"""Imports logs of other frameworks as rollouts; one importer per file, all behind ``import_log``.

An importer reports what the log lacks and never invents a length.
"""

from rlhfless.trace.importers.import_session import ImportOptions
from rlhfless.trace.importers.registry import (
    FORMATS,
    ImportedLog,
    LogWithoutResponses,
    OpenedLog,
    import_log,
    open_log,
    read_log,
    recognise,
)
from rlhfless.trace.importers.scalars import read_scalars
from rlhfless.trace.importers.summary import ImportSummary

__all__ = [
    "FORMATS",
    "ImportOptions",
    "ImportSummary",
    "ImportedLog",
    "LogWithoutResponses",
    "OpenedLog",
    "import_log",
    "open_log",
    "read_log",
    "read_scalars",
    "recognise",
]
