"""What the comparison of engines counts where two of them share the work."""

import io
import sys
from pathlib import Path

from error_messages import refused

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from torch_engine_speed import best_round


class Half:
    """An engine that takes what it is told to take, and keeps in ``log`` when it is told to go."""

    def __init__(self, name, seconds, log):
        self.name, self.log = name, log
        self.says = io.StringIO("ready\n" + "".join(f"{s}\n" for s in seconds))

    def write(self, text):
        self.log.extend([self.name] * text.count("go"))

    def flush(self):
        pass

    def readline(self):
        self.log.append("heard")
        return self.says.readline()


def pipes(*seconds):
    log = []
    halves = [Half(i, own, log) for i, own in enumerate(seconds)]
    return [(half, half) for half in halves], log


def test_the_slower_half_of_the_best_round_counts():
    """Not the best rounds of either half, which may be different ones."""
    both, log = pipes([1.0, 3.0, 2.5], [4.0, 1.0, 2.0])
    assert best_round(both, 3) == 2.5
    assert log == ["heard"] * 2 + [0, 1, "heard", "heard"] * 3, "both begin a round before either is waited for"


def test_a_half_that_ended_is_no_result():
    both, _ = pipes([1.0, 3.0], [4.0])
    with refused(RuntimeError):
        best_round(both, 2)
