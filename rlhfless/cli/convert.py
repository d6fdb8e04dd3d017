"""``rlhfless convert``: writes a log as a trace, a trace or log as a timeline, or its lengths as a router for verl."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Literal, Self

from pydantic import AliasChoices, Field, model_validator
from pydantic_settings import CliPositionalArg

from rlhfless.cli.log_options import ReadOptions
from rlhfless.cli.options import Gpus, check_file, check_folder, shown, total_and_node
from rlhfless.errors import InputError

TIMELINES = (".json", ".json.gz")
OF_SCALARS = ("responses_per_step", "samples_per_prompt")
"""What is stated of a log of scalars alone."""
FILE = re.compile(r"\.[A-Za-z]+")
"""The end of the name of a file; a folder's may have a version, such as qwen-2.5."""


class ConvertOptions(ReadOptions):
    """Write LOG in another format: as a trace, as a timeline, or as a router for verl. The name of -o decides.

    -o FOLDER writes a trace. Every command reads it, faster than a large log. Averages per step, such as those of tensorboard
    and wandb, may be written into the folder of the same run's responses.

    -o FILE.json or FILE.json.gz writes a timeline for ui.perfetto.dev or chrome://tracing. It has a slice for every response
    with start_s and end_s; arrows are responses that moved to another actor.

    -o FOLDER --to verl-router writes a router for verl, which plans with the lengths of LOG. It needs --tokenizer, --gpus and
    --profile.

    A trace may also be the LOG. All commands recognise logs. State what cannot be recognised here or to `rlhfless report`:
    which column of a table holds the prompt, which tokenizer counts the texts, which run is meant. The trace remembers it.

    The format of LOG is recognised, or --from is one of console, engine, verl, verl-scalars, trl, trl-scalars, nemo-rl, areal,
    slime, prime-rl, tensorboard, wandb, tracker, scalars, steps and table. A table is any csv, jsonl or parquet file with one
    row per response; one with a row per step or run has the format steps, and rows that a tracker exports have the format
    tracker.
    """

    log: CliPositionalArg[Path] = Field(description="A trace, or a log of verl, TRL or another framework.")
    out: Path | None = Field(
        None, validation_alias=AliasChoices("out", "o"), description="Folder or file to write; not with --preview."
    )
    to: Literal["trace", "perfetto", "verl-router"] | None = Field(
        None, description="Format to write.  [default: perfetto for .json and .json.gz, else trace]"
    )
    preview: bool = Field(False, description="Print how the log was understood and write nothing.")
    unsafe_pickle: bool = Field(
        False, description="Load slime's pickled dumps, which can run code; only from sources that you trust."
    )
    gpus: Gpus | None = Field(
        None, json_schema_extra=shown("N|NODESxN"),
        description="Number of GPUs that the router plans for, in nodes of 8 (one node if fewer); 2x4 is 2 nodes of 4.",
    )  # fmt: skip
    profile: str | None = Field(
        None, json_schema_extra=shown("NAME"),
        description="Latency profile that the router plans with: a shipped name or a JSON file.",
    )  # fmt: skip

    @property
    def target(self) -> str:
        """The format that is written."""
        if self.to is None and self.out is not None and self.out.name.endswith(TIMELINES):
            return "perfetto"
        return self.to or "trace"

    @model_validator(mode="after")
    def _check(self) -> Self:
        target = self.target
        if self.out is None and not self.preview:
            raise InputError("-o is missing; name the folder or file to write, or give --preview")
        if self.out is not None and self.preview:
            raise InputError(f"--preview writes nothing, and -o is {self.out}; leave out one of the two")
        if self.out is not None:
            (check_file if target == "perfetto" else check_folder)(self.out)
            if self.to is None and target == "trace" and FILE.fullmatch(self.out.suffix) and not self.out.exists():
                raise InputError(
                    f"-o {self.out}: has the name of a file, and a trace is a folder; name a folder, a timeline that ends in "
                    f"{' or '.join(TIMELINES)}, or give --to trace"
                )
        refused = {
            "trace": ["gpus", "profile"],
            "perfetto": ["gpus", "profile", "max_response_tokens", "preview", "unsafe_pickle", *OF_SCALARS],
            "verl-router": ["preview", "unsafe_pickle", *OF_SCALARS],
        }[target]
        given = [name for name in refused if getattr(self, name) not in (None, False)]
        if given:
            does = {
                "trace": "a trace holds the whole log as it is", "perfetto": "a timeline draws what was logged",
                "verl-router": "a router plans with the lengths of a log",
            }[target]  # fmt: skip
            flags = ", ".join(f"--{name.replace('_', '-')}" for name in given)
            raise InputError(f"{does}; leave out {flags}, or let -o and --to name another format")
        if target == "verl-router":
            missing = [f"--{name}" for name in ("gpus", "profile", "tokenizer") if getattr(self, name) is None]
            if missing:
                raise InputError(f"a router needs the cluster, its profile and the run's tokenizer; give {', '.join(missing)}")
        return self


def convert(options: ConvertOptions) -> None:
    """Write a log in another format, and print what was written.

    Raises:
        InputError: options contradict each other, or one makes no sense.
        TraceError: the log cannot be read, or there is something else at the place to write.
    """
    {"trace": _trace, "perfetto": _perfetto, "verl-router": _verl_router}[options.target](options)


def _trace(options: ConvertOptions) -> None:
    from rlhfless.trace import import_log
    from rlhfless.trace.importers.registry import is_trace

    if options.framework == "auto" and is_trace(options.log):
        if options.run is None:
            raise InputError(
                f"{options.log}: is a trace already; -o timeline.json writes its timeline, -o FOLDER --to verl-router a "
                "router, and -o FOLDER --run NAME one of its runs"
            )
        options.refuse_draws()
        of_one = options.open_responses(options.log)
        print(f"wrote {of_one.save(options.out)}" if options.out is not None else of_one.trace)
        return
    if options.unsafe_pickle:
        print("rlhfless: warning: --unsafe-pickle runs any code in the files", file=sys.stderr)
    read = import_log(options.log, options.import_options(unsafe_pickle=options.unsafe_pickle), options.framework)
    if read.rollouts is not None:
        options.refuse_draws()
    else:
        stated = {name: getattr(options, name) for name in (*OF_SCALARS, "max_response_tokens")}
        facts = {name: float(value) for name, value in stated.items() if value is not None}
        read = replace(read, facts={**read.facts, **facts})
    kept = read.of_run(options.run)
    written = None if options.out is None else kept.save(options.out)
    print(f"{options.log} is read as {read.format.title}\n{read.summary}")
    if written is not None:
        print(f"wrote {written}" if options.run is None else f"wrote {written}, run {options.run} alone")


def _perfetto(options: ConvertOptions) -> None:
    from rlhfless.trace.perfetto import write_perfetto

    assert options.out is not None
    trace = options.open_responses(options.log).trace
    print(write_perfetto(trace, options.out))


def _verl_router(options: ConvertOptions) -> None:
    from rlhfless.analysis.verl_router import router_effect, write_router
    from rlhfless.run import Hardware, load

    assert options.out is not None
    assert options.tokenizer is not None
    opened = options.open_responses(options.log)
    assert options.gpus is not None
    hardware = Hardware(*total_and_node(options.gpus), profile=options.profile)
    run = load(opened, hardware=hardware, options=options.import_options(), verbose=False)
    effect = router_effect(run.rollouts, run.calibrated)
    written = write_router(options.out, run.rollouts, run.calibrated, options.tokenizer)
    print(f"wrote {', '.join(map(str, written))}")
    print(f"times: {run.times.scale.words()}")
    print(effect)
    print(
        f"use: PYTHONPATH={written[0].parent} ... actor_rollout_ref.rollout.router_config_path={written[-1]}; "
        f"prompts that are not in the log go to the least loaded replica"
    )
