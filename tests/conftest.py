"""Settings of all tests.

Knows hypothesis and signals only. Every run tries the same examples, so that a change is judged by what it changes;
``make test-search`` tries examples that nobody has seen, and an example that fails there goes into its test with ``@example``.
"""

from __future__ import annotations

import signal

from hypothesis import settings

settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("search", deadline=None, print_blob=True)
settings.load_profile("same")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # a shell's background starts programs so, and theirs; tests press Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)
