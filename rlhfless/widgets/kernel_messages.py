"""Handles messages of widgets while a cell of a notebook waits, so that its buttons work.

A kernel runs one cell or message after the other, and JupyterLab's *Run All* asks for all cells at once. What a button sends
while a cell runs comes too late, unless:

- ipykernel 7.4 and later: the cell awaits. Messages of widgets overtake a cell that does.
- ipykernel 7.0 to 7.3: the front end sends them to a subshell, a thread of its own, as JupyterLab 4.4 and Notebook 7.4 do.
- ipykernel 6: the cell takes them out of the kernel's queue, which is done here. Requests to run cells stay there.
"""

from __future__ import annotations

import sys
from typing import Any

OF_WIDGETS = ("comm_open", "comm_msg", "comm_close")


async def handle_widget_messages() -> None:
    """Handle the messages of widgets that wait in the queue of this process's kernel. Does nothing without such a queue."""
    kernel = _kernel()
    queue = getattr(kernel, "msg_queue", None)
    if queue is None:
        return
    waiting = [queue.get_nowait() for _ in range(queue.qsize())]
    ours = [_of_widget(kernel, message) for message in waiting]
    for message, handled_here in zip(waiting, ours, strict=True):  # before anything is awaited: their order stays
        if not handled_here:
            queue.put_nowait(message)
    for message in (message for message, handled_here in zip(waiting, ours, strict=True) if handled_here):
        _, dispatch, given = message
        cell, identity = kernel.get_parent("shell"), kernel._parent_ident["shell"]
        try:
            await dispatch(*given)
        finally:  # what the cell shows later is the cell's
            kernel.set_parent(identity, cell, "shell")


def _kernel() -> Any:
    """Return the kernel that this process is; None where it is none."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None)


def _of_widget(kernel: Any, message: Any) -> bool:
    """Return whether a message of the queue ``(number, dispatch, given)`` is one of a widget."""
    _, _, given = message
    if not given:
        return False
    _, frames = kernel.session.feed_identities(given[0], copy=False)
    return kernel.session.unpack(frames[1].bytes)["msg_type"] in OF_WIDGETS  # frames: signature, header, ...
