"""Parts that all engines share: checks of requests, spans, journals."""
