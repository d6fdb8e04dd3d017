"""Lets contenders in processes of their own take turns, so that all meet the same machine; ratios of what they took.

A contender is a picklable function that gets a connection. For each ``True`` that it receives it works, and sends what that
took. For ``False`` it sends what is left to say, and returns.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

Contender = Callable[[Connection], object]
STUDENT_95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14)  # 1 to 14 degrees of freedom


def take_turns(
    contenders: Mapping[str, Contender], rounds: int, watch: Callable[[int], object] | None = None
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Let every contender work once per round; who begins changes from round to round.

    Args:
        contenders: by name; each is called in a process of its own.
        watch: told the number of each finished round.

    Returns:
        Rounds, each with ``first`` (the name of the contender that began), ``load`` (of the machine), and by name what the
        contender sent; and by name its last word.
    """
    context = multiprocessing.get_context("spawn")
    ends: dict[str, Connection] = {}
    processes = []
    for name, contender in contenders.items():
        ends[name], theirs = context.Pipe()
        processes.append(context.Process(target=contender, args=(theirs,), name=name))
        processes[-1].start()
        theirs.close()  # so that a contender that dies is noticed
    found: list[dict[str, Any]] = []
    names = list(contenders)
    for number in range(rounds):
        turned = number % len(names)
        order = names[turned:] + names[:turned]
        found.append({"first": order[0], "load": os.getloadavg()[0]})
        for name in order:
            ends[name].send(True)
            found[-1][name] = ends[name].recv()
        if watch is not None:
            watch(number)
    last = {}
    for name, end in ends.items():
        end.send(False)
        last[name] = end.recv()
    for process in processes:
        process.join()
    return found, last


def ratio(numerators: Sequence[float], denominators: Sequence[float]) -> dict[str, float]:
    """Return the geometric mean of the ratios of pairs; of several also its 95 % interval (Student's t on logarithms)."""
    logs = [math.log(a / b) for a, b in zip(numerators, denominators, strict=True)]
    mean, freedom = statistics.fmean(logs), len(logs) - 1
    if not freedom:
        return {"ratio": math.exp(mean)}
    factor = STUDENT_95[freedom - 1] if freedom <= len(STUDENT_95) else 2.0
    half = factor * statistics.stdev(logs) / math.sqrt(len(logs))
    return {"ratio": math.exp(mean), "low": math.exp(mean - half), "high": math.exp(mean + half)}


def told(found: dict[str, float]) -> str:
    """Return a ratio with its interval as text."""
    interval = f" ({found['low']:.2f} to {found['high']:.2f})" if "low" in found else ""
    return f"{found['ratio']:.2f}{interval}"
