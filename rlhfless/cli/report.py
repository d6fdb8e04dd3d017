"""``rlhfless report``: says what limits a run, by arithmetic on its log, and writes one interactive page about it."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, Self

from pydantic import AliasChoices, BeforeValidator, Field, model_validator
from pydantic_settings import CliPositionalArg

from rlhfless.cli.acceptance import ACCEPTED, accepted_drafts
from rlhfless.cli.log_options import ReadLog, ReadOptions
from rlhfless.cli.logged_run import refuse_without_gpus
from rlhfless.cli.options import (
    WEIGHT_OF_RUN,
    Count,
    Gpus,
    LoggedGpus,
    NotNegative,
    Options,
    OutFile,
    OutFolder,
    Positive,
    Printed,
    Share,
    flag,
    shown,
    states,
    total_and_node,
)
from rlhfless.cli.printed_json import print_json
from rlhfless.errors import InputError
from rlhfless.report.files import WRITTEN, kind_of
from solver.model.plurals import counted

if TYPE_CHECKING:
    from rlhfless.analysis.assumptions import Assumptions
    from rlhfless.analysis.draft_configuration import DraftConfiguration
    from rlhfless.analysis.draft_study import DraftStudy
    from rlhfless.diagnosis import Diagnosis, Stated
    from rlhfless.diagnosis.before_run import PlannedRun
    from rlhfless.run import Hardware, Run
    from rlhfless.simulate import SimulationConfig
    from rlhfless.trace import ImportedLog, OpenedLog
    from solver.timing.draft_length import DraftLength

FIGURES = (".html", ".htm")
USE_THE_KIND = {"model_kv_bytes_per_token", "engine_floor_ms"}  # numbers of a diagnosis that need a model beside the GPU


def _prices(value: Any) -> Any:
    """Return a price as a text; others as they are."""
    return (f"{value:g}",) if isinstance(value, int | float) and not isinstance(value, bool) else value


class StudiedGpus(LoggedGpus):
    """The GPUs of the run, with its price and others."""

    heading: ClassVar[str] = "The GPUs"
    gpus: Gpus | None = Field(
        None, json_schema_extra=shown("N|NODESxN"),
        description="Number of GPUs of the run, in nodes of 8 (one node if fewer); 2x4 is 2 nodes of 4. If training has GPUs "
        "of its own, give those that generate here and the others with --learner-gpus; where the log has both numbers, N may "
        "also be all of them.  [default: the log's]",
    )  # fmt: skip
    usd_per_gpu_hour: Annotated[tuple[str, ...], BeforeValidator(_prices)] = Field(
        (), json_schema_extra=shown("USD|NAME=USD"),
        description="Price of one GPU for an hour; a named one, such as spot=1.90, is shown in addition; repeatable.  "
        "[default: list price of its kind, if that is known]",
    )  # fmt: skip
    learner_gpus: Annotated[int, Field(ge=0)] | None = Field(
        None,
        description="GPUs that only learn, in addition to --gpus; 0 means that generation and learning take turns on the same "
        "GPUs.  [default: as its framework does]",
    )

    @property
    def price(self) -> float | None:
        """What a GPU-hour costs; None where it is not stated.

        Raises:
            InputError: it is stated twice, or is no price.
        """
        prices = [_usd(text, text) for text in self.usd_per_gpu_hour if "=" not in text]
        if len(prices) > 1:
            raise InputError(
                f"--usd-per-gpu-hour has two prices, {prices[0]:g} and {prices[1]:g}; name the further one, as in "
                f"--usd-per-gpu-hour other={prices[1]:g}"
            )
        return prices[0] if prices else None

    @property
    def further_prices(self) -> dict[str, float]:
        """Prices with a name.

        Raises:
            InputError: one is no price.
        """
        pairs = {text: text.partition("=") for text in self.usd_per_gpu_hour if "=" in text}
        return {name: _usd(text, usd if name else "") for text, (name, _, usd) in pairs.items()}

    @property
    def hardware(self) -> Hardware:
        """The GPUs, profile and price as a study takes them."""
        return self.hardware_at(self.price)


def _usd(given: str, number: str) -> float:
    try:
        usd = float(number)
    except ValueError:
        usd = -1.0
    if not 0 <= usd < float("inf"):
        raise InputError(f"--usd-per-gpu-hour is {given}; a price of 0 or more is needed, such as 2.10, or spot=1.90")
    return usd


class KnownRun(StudiedGpus):
    """What a person knows of a run beside its log."""

    heading: ClassVar[str] = "The run that was logged"
    gpu: str | None = Field(
        None, json_schema_extra=shown("KIND"),
        description="Kind of GPU, such as h100; needed to check memory and engine speed.",
    )  # fmt: skip
    model: str | None = Field(
        None,
        json_schema_extra=shown("PATH"),
        description="Folder or config.json of the model; needed to check memory and engine speed.",
    )
    memory_share: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None, validation_alias="gpu-memory-utilization", json_schema_extra=shown("SHARE"),
        description="Share of a GPU's memory that the engine was allowed, as vLLM's option of this name.  [default: vLLM's "
        "0.9]",
    )  # fmt: skip
    dispatch: Literal["static", "least-loaded"] | None = Field(
        None,
        description="How the run assigned prompts to replicas: equal chunks (static), or the replica with the fewest "
        "requests (least-loaded).  [default: its framework's]",
    )
    prepare_s: NotNegative | None = Field(
        None, description="Seconds per step for rewards, reference and values.  [default: the log's]"
    )
    learn_s: NotNegative | None = Field(None, description="Seconds per step for learning.  [default: the log's]")


class ReportedRun(ReadOptions, KnownRun):
    """How the run of a log is read and studied."""

    heading: ClassVar[str] = "What is simulated"
    time_weight: Share | None = Field(None, json_schema_extra=shown("W"), description=WEIGHT_OF_RUN)
    max_steps: Count = Field(8, validation_alias="steps", description="Number of steps to simulate, at most.")
    drafts: str | None = Field(
        None, json_schema_extra=shown("LOG|A0.7|weak|strong"),
        description="Add speculative decoding to the best schedule. It accepts what drafts from the texts of LOG would, or "
        f"{ACCEPTED}.  [default: no drafts]",
    )  # fmt: skip
    simulate: bool = Field(
        False,
        description="Also simulate schedules where the log has only averages per step; response lengths are then drawn "
        "at random, and ranges are rough.",
    )

    @property
    def assumptions(self) -> Assumptions:
        """What is stated about how the run dispatched and learned, and prices.

        Raises:
            InputError: a price is none.
        """
        from rlhfless.analysis.assumptions import Assumptions

        return Assumptions(self.dispatch, self.learner_gpus, self.prepare_s, self.learn_s, prices=self.further_prices)

    @property
    def known(self) -> Stated:
        """What the diagnosis may use beside the log.

        Raises:
            InputError: there is no such kind of GPU.
        """
        from rlhfless.diagnosis import Stated
        from rlhfless.latency import gpu

        if self.gpu is not None:
            gpu(self.gpu)  # refuses what is no kind of GPU
        names = ("gpu", "model", "memory_share", "responses_per_step", "samples_per_prompt")
        return Stated(**{name: getattr(self, name) for name in names})


def _pairs(value: Any) -> Any:
    """Return ``NAME=VALUE,...`` as a mapping; other values as they are."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list):
        return value
    pairs = [part.partition("=") for part in ",".join(texts).split(",")]
    wrong = next((name for name, equals, number in pairs if not (name and equals and number)), None)
    if wrong is not None:
        raise InputError(f"--estimate has {wrong!r}; NAME=VALUE,... is needed, such as steps=100,responses=512,mean-tokens=800")
    names = [name.strip().replace("-", "_") for name, _, _ in pairs]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InputError(f"--estimate has {twice.replace('_', '-')} twice; state it once")
    return {name: number.strip() for name, (_, _, number) in zip(names, pairs, strict=True)}


def _sizes(value: Any) -> Any:
    return value.split("+") if isinstance(value, str) else value


class PlannedRunOptions(Options):
    """A run that has not begun, as ``--estimate`` describes it."""

    prefix: ClassVar[str] = "--estimate "

    steps: Count = Field(description="Number of steps of the run.")
    responses: Count = Field(description="Number of responses per step.")
    mean_tokens: Positive = Field(description="Mean length of a response in tokens.")
    longest_tokens: Positive | None = Field(None, description="Typical length of a step's longest response in tokens.")
    limit_tokens: Count | None = Field(None, description="Length at which responses are truncated, in tokens.")
    prompt_tokens: NotNegative | None = Field(None, description="Mean length of a prompt in tokens.")
    other_s: NotNegative | None = Field(None, description="Seconds of a step outside generation.")
    learn_gpu_s: NotNegative | None = Field(
        None, description="GPU-seconds of learning per step; if given, the GPUs are divided into generation and training."
    )
    staleness: Annotated[int, Field(ge=0)] = Field(
        1,
        description="Number of weight updates by which a batch may be old when it is learned, if GPUs are divided; 0: "
        "generation and training take turns.",
    )
    gpus: Annotated[tuple[Count, ...], BeforeValidator(_sizes)] = Field(
        (8, 16, 32), min_length=1, description="Sizes of clusters in GPUs, such as 8+16+32."
    )

    @property
    def run(self) -> PlannedRun:
        """The run, without the clusters.

        Raises:
            InputError: its numbers contradict each other; the message names them as they are typed.
        """
        from rlhfless.diagnosis.before_run import PlannedRun

        try:
            return PlannedRun(**{name: value for name, value in dict(self).items() if name != "gpus"})
        except InputError as error:
            name, _, rest = str(error).partition(" ")
            raise InputError(f"{self.prefix}{name.replace('_', '-')} {rest}") from None


class Mode(NamedTuple):
    """What ``rlhfless report`` is asked for.

    Attributes:
        asked: how it is typed, such as ``--only drafts``. why: what it does, and so has no use for other options.
        takes: options that have an effect, by name; every other one is refused. remedy: what to do about them.
    """

    asked: str
    why: str
    takes: frozenset[str]
    remedy: str = "leave it out"


def _mode(asked: str, why: str, *takes: str, groups: Sequence[type[Options]] = (), remedy: str = "leave it out") -> Mode:
    return Mode(asked, why, frozenset({*takes, *(name for kind in groups for name in kind.model_fields)}), remedy)


MODES = {
    "estimate": _mode(
        "--estimate", "describes a run that has no log", "estimate", "gpus", "profile", "usd_per_gpu_hour", groups=[Printed]
    ),
    "drafts": _mode(
        "--only drafts", "compares texts of the log", "log", "only", "profile", "framework", "tokenizer", "maps", "where",
        "max_response_tokens", "run", groups=[Printed],
    ),
    "what-ifs": _mode(
        "--only what-ifs", "simulates the log's last steps in other ways", "log", "only", "out", "dispatch", "prepare_s",
        "learn_s", groups=[ReadOptions, StudiedGpus, Printed],
    ),
    "diagnosis": _mode(
        "the diagnosis", "is arithmetic", "log", "redact", "gpu", "model", "memory_share", "prepare_s", "learn_s",
        groups=[ReadOptions, StudiedGpus, Printed], remedy="give -o page.html, or leave it out",
    ),
}  # fmt: skip
"""What each section takes of the options. The page and the notebook take all; further prices are theirs alone."""


class ReportOptions(Printed, ReportedRun):
    """Say what limits a run. Print it as text or JSON; with -o write an interactive page, all numbers, or a notebook.

    LOG is a trace or the log of another framework; its format is recognised. The diagnosis is arithmetic on what was logged and
    needs no GPU. With -o, other schedules are simulated too, if the log has response lengths and the number of GPUs is known.
    If the log has only averages per step, --simulate draws lengths from each step's mean, longest response and share of
    truncated responses.

    Before a run there is no log: describe the run with --estimate instead.
    """

    log: CliPositionalArg[Path | None] = Field(None, description="A trace, or a log of verl, TRL or another framework.")
    out: OutFile | None = Field(
        None, validation_alias=AliasChoices("out", "o"),
        description="Simulate other schedules, and write a page (.html), all numbers (.json) or a notebook (.ipynb); with "
        "--only what-ifs the figure (.html).",
    )  # fmt: skip
    only: Literal["drafts", "what-ifs"] | None = Field(
        None,
        description="Print one section instead of the diagnosis: how many drafted tokens the log's texts would have accepted "
        "(drafts), or what partial rollout, asynchronous learning and other ways to generate and learn would save "
        "(what-ifs).",
    )
    estimate: Annotated[Mapping[str, Any] | None, BeforeValidator(_pairs)] = Field(
        None, json_schema_extra=shown("NAME=VALUE,..."),
        description="Estimate time, GPU-hours and dollars of a run before it begins, in place of LOG: "
        "steps=100,responses=512,mean-tokens=800, and optionally longest-tokens, limit-tokens, prompt-tokens, other-s, "
        "learn-gpu-s, staleness and gpus. Needs --profile; gpus=8+16 compares clusters of 8 and 16 GPUs.",
    )  # fmt: skip
    redact: OutFolder | None = Field(
        None, json_schema_extra=shown("FOLDER"),
        description="Write a copy of the log without texts, but with lengths, hashes and times, to this new folder.",
    )  # fmt: skip

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.log is None) == (self.estimate is None):
            raise InputError(
                "LOG is missing; name a log or trace, or describe a run before it begins with --estimate"
                if self.log is None
                else f"{self.log}: --estimate is for runs that have no log yet; leave out one of the two"
            )
        self._refuse_without_effect()
        if self.estimate is not None and "gpus" in PlannedRunOptions(**self.estimate).model_fields_set and self.gpus:
            raise InputError(f"--gpus {self.gpus}: --estimate has gpus, too; leave out one of the two")
        if self.out is None:
            return self
        kind = kind_of(self.out)
        if self.only and self.out.suffix.lower() not in FIGURES:
            raise InputError(f"-o {self.out}: is not a page; a name that ends in {' or '.join(FIGURES)} is needed")
        if kind == WRITTEN[".ipynb"] and self.drafts is not None:
            raise InputError("--drafts is for pages, and -o names a notebook; let -o end with .html, or leave out --drafts")
        return self

    @property
    def mode(self) -> Mode | None:
        """What is asked for; None for a page or a notebook, which takes every option."""
        if self.estimate is not None:
            return MODES["estimate"]
        return MODES[self.only] if self.only else MODES["diagnosis"] if self.out is None else None

    def _refuse_without_effect(self) -> None:
        """Refuse options that change nothing of what is asked for.

        Raises:
            InputError: one is given.
        """
        mode, fields = self.mode, type(self).model_fields
        if mode is None:
            return
        given = [name for name in fields if name in self.model_fields_set and states(getattr(self, name), fields[name].default)]
        useless = [flag(name, fields[name]) for name in given if name not in mode.takes]
        useless += [f"--usd-per-gpu-hour {name}=..." for name in self.further_prices]
        if useless:
            raise InputError(f"{', '.join(useless)}: {mode.asked} {mode.why}, so this has no effect; {mode.remedy}")


def report(options: ReportOptions) -> None:
    """Print the diagnosis or one section, and write the page or the notebook.

    Raises:
        InputError: options contradict each other, or one makes no sense.
        TraceError: the log cannot be read.
    """
    if options.estimate is not None:
        _estimate(options, PlannedRunOptions(**options.estimate))
    elif options.only == "drafts":
        _drafts(options)
    elif options.only == "what-ifs":
        _what_ifs(options)
    else:
        _diagnosis(options)


def _diagnosis(options: ReportOptions) -> None:
    assert options.log is not None
    read = read_run(options.log, options, page=options.out is not None)
    # The page comes first: what it refuses leaves no output, and its levers say what they are expected to save.
    said = read.run.diagnosis() if options.out is None else _write_page(options.log, options.out, options, read)
    if options.redact is not None:
        from rlhfless.trace.importers.redact import write_redacted

        print(f"wrote {write_redacted(read.run.log, options.redact).resolve()}", file=sys.stderr)
    if options.gpu and not options.model and not USE_THE_KIND & set(said.numbers):
        print(f"rlhfless: warning: --gpu {options.gpu} has no effect; it needs --model", file=sys.stderr)
    print(said.to_json() if options.format == "json" else str(said))


class ReadRun(NamedTuple):
    """The run that a report is about.

    Attributes:
        run: as it was read. simulated: the log of the simulated sections, with drawn lengths where the log has scalars alone.
        setting: the run's, with what drafts accept; None where nothing is simulated. drawn: draws of the lengths.
    """

    run: Run
    simulated: OpenedLog | ImportedLog
    assumptions: Assumptions
    setting: SimulationConfig | None
    drawn: Sequence[OpenedLog]


def read_run(path: Path, options: ReportedRun, *, page: bool) -> ReadRun:
    """Return the run of a log or trace with what a user states about it.

    Args:
        page: whether a page is made; a diagnosis alone needs no setting.

    Raises:
        InputError: options contradict each other, or one makes no sense.
        TraceError: the log cannot be read.
    """
    from rlhfless.trace import ImportedLog

    run = _loaded(path, options)
    opened, stated = run.log, run.assumptions
    drawn: Sequence[OpenedLog] = ()
    if isinstance(opened, ImportedLog) and options.simulate:
        read = options.drawn(opened, run.diagnosis())
        opened, drawn, stated = read.opened, read.drawn, _also_not_stated(stated, read)
    if not page or (not options.simulate and (isinstance(opened, ImportedLog) or run.hardware.gpus is None)):
        if options.drafts is not None and page:
            lacks = (
                "has scalars alone; give --simulate"
                if isinstance(opened, ImportedLog)
                else "has no number of GPUs; give --gpus N"
            )
            raise InputError(f"{path}: --drafts {options.drafts} is for simulated schedules, and the log {lacks}")
        return ReadRun(run, opened, stated, None, ())
    assert not isinstance(opened, ImportedLog)
    accepted = accepted_drafts(options.drafts, options, path, opened.trace.rollouts, run.setting.seed)
    return ReadRun(run, opened, stated, replace(run.setting, drafts=accepted), drawn)


def _loaded(path: Path, options: ReportedRun) -> Run:
    """Return the run of a log or trace as it is, with what a user states about it."""
    from rlhfless.analysis.log_texts import texts_of
    from rlhfless.run import load

    return load(
        options.open_any(path, texts_of(path)), hardware=options.hardware, assumptions=options.assumptions,
        options=options.import_options(), time_weight=options.time_weight, known=options.known, verbose=False,
    )  # fmt: skip


def _also_not_stated(stated: Assumptions, drawn: ReadLog) -> Assumptions:
    """Return assumptions with what drawn lengths assume."""
    return replace(stated, not_stated={**stated.not_stated, **drawn.not_stated})


def _write_page(path: Path, out: Path, options: ReportOptions, read: ReadRun) -> Diagnosis:
    """Write the page or the notebook; return the diagnosis, with what a page simulated of its levers."""
    from rlhfless.report.notebook import LogSource
    from rlhfless.report.progress import progress_bar
    from rlhfless.report.write import written_report

    run = read.run
    said = run.diagnosis()
    source = LogSource(path, options.import_options(), options.framework, options.run)
    with progress_bar(work=_announced(out, options, read, said)) as begin:
        _, made = written_report(
            read.simulated, out, read.setting, read.assumptions, read_from=source, profile=run.profile, said=said,
            draws=read.drawn, max_steps=options.max_steps, begin=begin,
        )  # fmt: skip
    said = said if made is None else made.said
    print(f"wrote {out.resolve()}", file=sys.stderr)
    return said


def _announced(out: Path, options: ReportOptions, read: ReadRun, said: Diagnosis) -> str:
    """Return what a page simulates and how long that takes, in a line; empty where it is soon done, or nothing is simulated."""
    from rlhfless.report.expected import refusal_of_slow_engine
    from rlhfless.report.progress import long_work
    from rlhfless.report.schedules import simulated_steps
    from rlhfless.trace import ImportedLog

    log = read.simulated
    if read.setting is None or isinstance(log, ImportedLog) or kind_of(out) == WRITTEN[".ipynb"]:
        return ""
    if refusal_of_slow_engine(log, said):
        return ""
    responses = log.trace.rollouts["step"].value_counts()
    steps = simulated_steps(log.trace.rollouts, options.max_steps)
    return long_work(responses[steps].tolist(), max(1, len(read.drawn)))


def _estimate(options: ReportOptions, planned: PlannedRunOptions) -> None:
    """Print time, GPU-hours and dollars of a run before it begins."""
    from rlhfless.diagnosis.before_run import before_run

    if options.profile is None:
        raise InputError("--profile is missing; --estimate needs the latency profile of the run's model and GPUs")
    sizes = list(planned.gpus) if options.gpus is None else [total_and_node(options.gpus)[0]]
    found = before_run(planned.run, options.profile, sizes, usd_per_hour=options.price)
    if options.format == "json":
        print_json("rlhfless-estimate", found.to_dict())
        return
    print(found)


def _what_ifs(options: ReportOptions) -> None:
    """Print other ways to generate and to learn on the last steps of the log: time, cost and changes of the data."""
    from rlhfless.report.expected import refusal_of_slow_engine
    from rlhfless.report.simulated import far_from_its_profile
    from rlhfless.trace import ImportedLog

    assert options.log is not None
    run = _loaded(options.log, options)
    said = run.diagnosis()
    if refusal := refusal_of_slow_engine(run.log, said):
        verdict = " ".join(one.sentence for one in said.findings if one.kind == "engine")
        raise InputError(f"{options.log}: {verdict} {refusal}")
    refuse_without_gpus(run, options.log)
    first: list[str] = []
    if isinstance(run.log, ImportedLog):
        read = options.drawn(run.log, said)
        run = replace(run, log=read.opened, assumptions=_also_not_stated(run.assumptions, read))
        first += read.drawn_sentences
    first += far_from_its_profile(run.times)
    compared = run.what_ifs()
    if options.out is not None:
        from rlhfless.plots import save

        print(f"wrote {save(compared.plot(), options.out).resolve()}", file=sys.stderr)
    means = compared.means()
    if options.format == "json":
        ways, knobs = (json.loads(table.to_json(orient="records")) for table in (means, compared.knobs))
        result = {"times": run.times.scale.to_dict(), "ways": ways, "knobs": knobs, "left_out": dict(compared.left_out)}
        print_json("rlhfless-what-ifs", result)
        return
    for sentence in first:
        print(sentence)
    print(compared)
    for name, change in zip(means["variant"], means["change"], strict=True):
        print(f"  {name}: {change}")


def _drafts(options: ReportOptions) -> None:
    """Print how many drafted tokens speculative decoding would have accepted on the texts of the log.

    Drafts come from a suffix trie: no model and no GPU is needed. A drafted token counts as accepted if it equals the logged
    one. Texts are counted in tokens with --tokenizer, else in bytes.
    """
    from rlhfless.analysis.draft_configuration import draft_configurations
    from rlhfless.analysis.draft_study import study_drafts
    from rlhfless.analysis.log_texts import text_encoder
    from rlhfless.latency import load_profile
    from rlhfless.trace.importers.import_session import TEXTS

    assert options.log is not None
    options.refuse_draws()
    if options.profile is not None:
        load_profile(options.profile)  # what is no profile is refused before the log is read
    trace = options.open_responses(options.log, TEXTS).trace
    rollouts, profile = trace.rollouts, options.profile or trace.meta.get("profile")
    latency = None if not profile else load_profile(profile)
    encode, unit = text_encoder(options.tokenizer)
    study = study_drafts(rollouts, encode, unit)
    table = None if latency is None else study.lengths(latency)
    configurations = () if latency is None else draft_configurations(study, latency)
    if options.format == "json":
        ranges = {} if table is None else {"draft_lengths": [vars(row) for row in table]}
        configured = {"speculative_configs": [found.speculative_config for found in configurations]} if ranges else {}
        print_json("rlhfless-drafts", study.to_dict() | ranges | configured)
        return
    _show(study, profile, table)
    _show_configurations(configurations, study.unit)


def _show(study: DraftStudy, profile: str | None, table: Sequence[DraftLength] | None) -> None:
    from rlhfless.analysis.draft_study import joined

    print(study.verdict if table is None else f"{_pays(str(profile), table)} {study.verdict}")
    print(f"\nmeasured on {study.measured}, by source of the drafts:")
    print(study.by_source.to_string(index=False, float_format=lambda v: f"{v:.2f}"))
    print(f"\n{study.unit} per pass with {study.best.source.name}, by step and by length:")
    print(study.by_step.to_string(index=False, float_format=lambda v: f"{v:.2f}"))
    print(study.by_length.to_string(index=False, float_format=lambda v: f"{v:.2f}"))
    if study.unit == "bytes":
        print("\ntexts are counted in bytes; name the run's tokenizer with --tokenizer to count tokens")
    if table is None:
        print("\nname a latency profile with --profile to see up to which batch size drafts pay")
    else:
        print(f"\nbest draft length with {profile}, at {study.context_tokens:,.0f} {study.unit} of context:")
        for row in joined(table):
            pays = f"{row.draft_tokens} drafted, {row.speedup:.2f} times as fast" if row.draft_tokens else "no drafts"
            sizes = f"{row.first_batch}" + (f" to {row.last_batch}" if row.last_batch > row.first_batch else "")
            print(f"  batches of {sizes}: {pays}")


def _show_configurations(configurations: Sequence[DraftConfiguration], unit: str) -> None:
    """Print vLLM's and verl's configuration of each method that pays."""
    from rlhfless.analysis.draft_configuration import speculation_lines

    for found in configurations:
        rough = "" if unit == "tokens" else f", with lengths in {unit}: name the tokenizer to have them in tokens"
        print(f"\nvLLM's method {found.method}, which drafts from {found.source}{rough}:")
        if found.package:
            print(f"  pip install {found.package}")
        for framework in ("vllm", "verl"):
            for line in speculation_lines(framework, found.speculative_config):
                print(f"  {line}")


def _pays(profile: str, table: Sequence[DraftLength]) -> str:
    """Return up to which batch drafts pay, as a sentence."""
    sizes = [row.last_batch for row in table if row.draft_tokens]
    if not sizes:
        return f"Speculative decoding pays at no batch size with {profile}."
    return f"Speculative decoding pays up to batches of {counted(max(sizes), 'response')} with {profile}."
