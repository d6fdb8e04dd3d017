"""NeMo-RL's console text: a block of lines per step, below ``===== Step N/M =====``.

Seconds get the names that they have in TensorBoard, ``timing/train/NAME``, and so do results and rates of tokens. GPUs of each
side follow from rates that are printed per group and per GPU. ``exposed_generation``, of asynchronous runs, is what learning
waits for generation, and not the seconds of generation. Written by ``nemo_rl/algorithms/grpo.py``, and the rates by
``print_performance_metrics`` in ``nemo_rl/algorithms/utils.py``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from rlhfless.trace.importers.console.grammar import Entry, Grammar
from rlhfless.trace.importers.console.lines import Line, quantity
from rlhfless.trace.importers.import_session import ImportSession

HEADER = re.compile(r"(?<!=)={3,99} Step (\d{1,12})/(\d{1,12}) =")
EPOCH = re.compile(r"(?<!=)={3,99} Epoch (\d{1,9})/(\d{1,9}) =")
MARK = re.compile(r"(?<!=)={3,99} Step \d{1,12}/\d{1,12} =|^\s{0,40}[^\w\s]?\s{0,9}Total step time: \d{1,12}\.\d\ds\s*$")
SECTION = re.compile(r"\W*(Training Results|Validation Results|Validation Timing|Timing|Performance Metrics):\s*$")
ITEM = re.compile(r"\s{0,40}([^\w\s]\s{0,9})?([A-Za-z_][^:]{0,120}): {0,40}(.{1,200})")  # a bullet, a name, a value
WITHOUT_BULLET = re.compile(r"\s{0,40}(?:Total step time: |[a-z_/]{1,80}: {1,40}\d{1,12}\.\d\ds \(\d{1,3}\.\d%\)\s*$)")
SECONDS = re.compile(r"(\d{1,12}\.\d\d)s(?: \(-?\d{1,6}\.\d%\))?\s*$")
BATCH = re.compile(r"Generating responses for batch of size (\d{1,9})\b")

RESULTS = {
    "Loss": "train/loss",
    "Generation KL Error": "train/gen_kl_error",
    "Avg Reward": "train/reward",
    "Avg Total Reward": "train/reward",
    "Avg Filtered Reward": "train/filtered_reward",
    "Mean Generation Length": "train/mean_gen_tokens_per_sample",
    "Buffer Size": "train/buffer_size",
    "Avg Trajectory Age": "train/avg_trajectory_age",
    "Avg Trajectory Age (gen-version)": "train/avg_trajectory_age",
}
IMBALANCE = "Average Token Imbalance"  # in percent, as a share in TensorBoard
RATES = {
    IMBALANCE: "performance/average_token_imbalance",
    "Mean Total Tokens per Sample": "train/mean_total_tokens_per_sample",
    "E2E (Samples/sec/gpu)": "performance/samples_per_sec_per_gpu",
    "E2E (Tokens/sec/gpu)": "performance/tokens_per_sec_per_gpu",
    "E2E (Samples/sec)": "performance/samples_per_sec",
    "E2E (Tokens/sec)": "performance/tokens_per_sec",
    "Policy Training (Tokens/sec/gpu)": "performance/policy_training_tokens_per_sec_per_gpu",
    "Policy and Reference Logprobs (Tokens/sec/gpu)": "performance/policy_and_reference_logprobs_tokens_per_sec_per_gpu",
    "Training Worker Group (Tokens/sec/gpu)": "performance/training_worker_group_tokens_per_sec_per_gpu",
    "Generation Worker Group (Tokens/sec/gpu)": "performance/generation_tokens_per_sec_per_gpu",
    "Training Worker Group (Tokens/sec)": "performance/training_worker_group_tokens_per_sec",
    "Generation Worker Group (Tokens/sec)": "performance/generation_tokens_per_sec",
}
OWN_NAMES = {"Training Results": RESULTS, "Performance Metrics": RATES}
TIMES = {"Timing": "timing/train/", "Validation Timing": "timing/validation/"}
RESPONSES, GENERATE, TRAIN = "console/responses", "console/gpus_generate", "console/gpus_train"
PER_GPU = {
    "gpus": ("performance/tokens_per_sec", "performance/tokens_per_sec_per_gpu"),
    GENERATE: ("performance/generation_tokens_per_sec", "performance/generation_tokens_per_sec_per_gpu"),
    TRAIN: ("performance/training_worker_group_tokens_per_sec", "performance/training_worker_group_tokens_per_sec_per_gpu"),
}
ROUNDING = 0.005  # of a printed rate
MOST_ERROR = 0.25  # GPUs
STEP_S = "timing/train/total_step_time"


class Block:
    """The lines of one step.

    Attributes:
        line: number of its first line. step: 0 if it has no header. values: by NeMo-RL's names.
    """

    def __init__(self, line: int, step: int) -> None:
        self.line, self.step = line, step
        self.values: dict[str, float] = {}
        self._section = "" if step else "Timing"  # of a block whose beginning is missing

    def ends(self, line: Line) -> bool:
        """Return whether a line begins another block, where blocks have no headers."""
        if self.step or not (match := SECTION.match(line.text)):
            return False
        return STEP_S in self.values and match[1] in ("Training Results", "Timing")

    def take(self, line: Line) -> None:
        """Take a line of the block."""
        if match := SECTION.match(line.text):
            self._section = match[1]
        elif match := BATCH.search(line.text):
            self.values[RESPONSES] = self.values.get(RESPONSES, 0.0) + float(match[1])
        elif (match := ITEM.match(line.text)) and (match[1] or WITHOUT_BULLET.match(line.text)):
            self._item(match[2].strip(), match[3], line.ended)

    def _item(self, name: str, text: str, ended: bool) -> None:
        if names := OWN_NAMES.get(self._section):
            found = quantity(text)
            if found is not None and ended and name in names:
                self.values[names[name]] = found.value / 100 if name == IMBALANCE else found.value
        elif (prefix := TIMES.get(self._section)) and (match := SECONDS.match(text)):
            name = name.removesuffix("/total")  # beside its parts, whose names begin with its own
            self.values[prefix + (name.lower().replace(" ", "_") if name.startswith("Total ") else name)] = float(match[1])

    def entry(self, step: int, reading: ImportSession) -> Entry:
        """Return the block as that step, with responses and GPUs that follow from its rates; report the run's GPUs."""
        gpus = {name: count for name in PER_GPU if (count := self._gpus(*PER_GPU[name])) is not None}
        whole = gpus.pop("gpus", None)
        if whole is not None:
            reading.facts["gpus"] = whole
        if sum(gpus.values()) == whole:  # else the same GPUs do both
            self.values |= gpus
        step_s, rate = self.values.get(STEP_S), self.values.get("performance/samples_per_sec")
        if RESPONSES not in self.values and step_s and rate and 2 * ROUNDING * step_s < 1:
            self.values[RESPONSES] = float(round(rate * step_s))
        return Entry(self.line, step, self.values)

    def _gpus(self, of_all: str, of_one: str) -> float | None:
        """Return how many GPUs have a rate together that each has alone; None where rounding hides it."""
        rate, per_gpu = self.values.get(of_all, 0.0), self.values.get(of_one, 0.0)
        if rate <= 0 or per_gpu <= 0 or rate / per_gpu * ROUNDING / per_gpu >= MOST_ERROR:
            return None
        return float(round(rate / per_gpu))


def entries(lines: Iterable[Line], reading: ImportSession) -> Iterator[Entry]:
    """Yield the block of every step. Steps are numbered on over several epochs."""
    block: Block | None = None
    last = offset = epoch = 0
    epochs = 1
    for line in lines:
        if match := EPOCH.search(line.text):
            offset = (block.step if block else last) if 0 < epoch < int(match[1]) else 0
            epoch, epochs = int(match[1]), int(match[2])
        header = HEADER.search(line.text)
        if header is None and block is not None and not block.ends(line):
            block.take(line)
            continue
        if block is not None:
            last = block.step or last + 1
            yield block.entry(last, reading)
            block = None
        if header is not None:
            block = Block(line.number, int(header[1]) + offset)
            if epochs == 1:
                reading.facts["planned_steps"] = float(header[2])
        elif SECTION.match(line.text) or MARK.search(line.text):
            block = Block(line.number, 0)
            block.take(line)
            reading.note("steps: blocks without a line 'Step N/M' are numbered in the order of the log")
    if block is not None:
        yield block.entry(block.step or last + 1, reading)


GRAMMAR = Grammar(
    "nemo-rl",
    hint="tep ",
    mark=MARK,
    example="===== Step N/M =====",
    near=re.compile(r"= Step \d{1,12}/\d{1,12}\b|\bTotal step time\b|\b(?:exposed_generation|policy_and_reference_logprobs)\b"),
    files="its training data (train_data_stepN.jsonl), or its TensorBoard or wandb files",
    entries=entries,
    bar=None,
)
