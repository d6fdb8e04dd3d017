"""How a process ended, in words."""

from __future__ import annotations

import multiprocessing
import os
import time

from rlhfless.system.child_processes import how_it_ended, without_main


def test_how_a_process_ended_is_said() -> None:
    context = multiprocessing.get_context("spawn")
    leaves, stays = context.Process(target=os._exit, args=(3,)), context.Process(target=time.sleep, args=(3600,))
    with without_main():
        leaves.start()
        stays.start()
    assert how_it_ended(leaves, 60.0) == "ended with exit code 3"
    assert how_it_ended(stays, 0.0) == "closed its pipe"
    stays.kill()
    assert how_it_ended(stays, 60.0) == "was killed by SIGKILL"
