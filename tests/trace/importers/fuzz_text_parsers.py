"""Coverage-guided fuzzing of the parsers of text logs with atheris: every input is valid rollouts or one sentence.

Knows which formats are text, and what an import may end with. The golden logs are the seeds. A crash is an exception that is no
refusal, or a refusal of more than one line; libFuzzer then writes the input beside it and ends with a code above 0.

Run: ``python tests/trace/importers/fuzz_text_parsers.py FORMAT CORPUS_FOLDER -runs=20000 -max_len=4096``
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["rlhfless.trace.importers"]):
    from rlhfless.trace import ImportOptions, TraceError, import_log

HERE = Path(__file__).parent
FILES = {  # where the text of a format stands, as its importer looks for it
    "console-openrlhf": "run.log", "console-verl": "run.log", "console-slime": "run.log", "console-skyrl": "run.log",
    "console-roll": "run.log", "verl-scalars": "experiment.jsonl", "verl": "1.jsonl", "nemo-rl": "train_data_step1.jsonl",
    "table-csv": "log.csv", "table-jsonl": "log.jsonl",
}  # fmt: skip
OPTIONS = ImportOptions(tokenizer=HERE / "golden" / "trl", max_response_tokens=4096)


def main() -> None:
    """Fuzz one format until libFuzzer's limits are reached."""
    name = sys.argv.pop(1)
    folder = Path(tempfile.mkdtemp(prefix="rlhfless-fuzz-"))
    path = folder / FILES[name]
    kind = name.split("-")[0] if name.startswith(("table", "console")) else name
    inside = kind in ("verl", "nemo-rl")  # a folder of steps, not one file

    def one_input(data: bytes) -> None:
        path.write_bytes(data)
        refusal = ""
        try:
            log = import_log(folder if inside else path, OPTIONS if kind != "table" else ImportOptions(), kind)
        except TraceError as error:
            refusal = str(error)
        if refusal:
            assert len(refusal.splitlines()) == 1, f"a refusal of several lines: {refusal}"
        else:
            assert log.rollouts is not None or len(log.scalars) or log.facts, "an import without anything is a refusal"

    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
