"""A cell that waits for a run in a real kernel: a button that is pressed meanwhile acts, and other cells wait their turn."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

jupyter_client = pytest.importorskip("jupyter_client", reason="jupyter_client is not installed")
pytest.importorskip("ipywidgets", reason="ipywidgets is not installed")

BUTTON = """
import time
from types import SimpleNamespace
import ipywidgets
from rlhfless.widgets import LiveRun

pressed = []
button = ipywidgets.Button(description="stop")
button.on_click(lambda _: pressed.append(True))
class Steps:
    on_progress = on_phase = None
    def left(self): return 1
    def setting(self): return SimpleNamespace(cluster=SimpleNamespace(gpus=1))
    def next_step(self): return 0
    def interrupted(self, error): return None
    def next(self):
        while not pressed: time.sleep(0.01)
        raise RuntimeError("ends here")
run = LiveRun(Steps())
print(button.model_id, end="")
"""
WAITS = """
run.run()
print("waits", flush=True)
await run.finished()
print("waited", run.state, len(pressed), flush=True)
"""
PATIENCE_S = 300.0


@pytest.fixture
def kernel() -> Iterator[Any]:
    """A client of a new kernel, which it can interrupt."""
    manager, client = jupyter_client.manager.start_new_kernel(startup_timeout=PATIENCE_S)
    client.interrupt = manager.interrupt_kernel
    try:
        yield client
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def printed(kernel: Any, cell: str, text: str, so_far: dict[str, str]) -> None:
    """Read what cells print, until this cell has printed this."""
    until = time.monotonic() + PATIENCE_S
    while text not in so_far.get(cell, ""):
        assert time.monotonic() < until, so_far
        message = kernel.get_iopub_msg(timeout=PATIENCE_S)
        parent, content = message["parent_header"].get("msg_id", ""), message["content"]
        if message["msg_type"] == "stream":
            so_far[parent] = so_far.get(parent, "") + content["text"]
        assert message["msg_type"] != "error" or content["ename"] == "CancelledError", content


def subshell_of(kernel: Any) -> dict[str, str]:
    """What a front end that knows subshells adds to the headers of messages of widgets, if the kernel has subshells."""
    info = kernel.kernel_info(reply=True, timeout=PATIENCE_S)["content"]
    if "kernel subshells" not in info.get("supported_features", []):
        return {}
    kernel.control_channel.send(kernel.session.msg("create_subshell_request", {}))
    return {"subshell_id": kernel.get_control_msg(timeout=PATIENCE_S)["content"]["subshell_id"]}


def test_a_button_acts_while_a_cell_waits_and_cells_stay_in_order(kernel: Any) -> None:
    texts: dict[str, str] = {}
    first = kernel.execute(BUTTON)
    kernel.get_shell_msg(timeout=PATIENCE_S)
    header = subshell_of(kernel)
    waits, later, last = (kernel.execute(code) for code in (WAITS, "print('later', len(pressed))", "print('last')"))
    printed(kernel, waits, "waits", texts)
    click = {"comm_id": texts[first], "data": {"method": "custom", "content": {"event": "click"}}}
    message = kernel.session.msg("comm_msg", click)
    message["header"].update(header)
    kernel.shell_channel.send(message)
    printed(kernel, last, "last", texts)
    assert texts[waits].split("\n") == ["waits", "waited failed 1", ""]
    assert texts[later] == "later 1\n"
    assert list(texts) == [first, waits, later, last]


def test_an_interrupt_ends_the_waiting_and_the_run_continues(kernel: Any) -> None:
    texts: dict[str, str] = {}
    kernel.execute(BUTTON)
    waits = kernel.execute(WAITS, stop_on_error=False)
    printed(kernel, waits, "waits", texts)
    kernel.interrupt()
    after = kernel.execute("print(run.state)")
    printed(kernel, after, "\n", texts)
    assert (texts[waits], texts[after]) == ("waits\n", "running\n")
