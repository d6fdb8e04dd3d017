"""Exports a trace or log as trace events (JSON), to open in Perfetto (ui.perfetto.dev) or chrome://tracing."""

from rlhfless.trace.perfetto.events import MAX_REQUESTS, trace_events
from rlhfless.trace.perfetto.writing import WrittenTimeline, write_perfetto

__all__ = ["MAX_REQUESTS", "WrittenTimeline", "trace_events", "write_perfetto"]
