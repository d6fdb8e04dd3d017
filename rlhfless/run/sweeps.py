"""The run with something changed: its own steps on other GPUs, under other policies, at other time weights."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import pandas as pd

from rlhfless.analysis import Assumptions, OwnTimes, ProfileScale
from rlhfless.analysis.what_ifs.compare import Way, knobs_of, parameters_of, rows_of_ways, simulated_ways, words_of_steps
from rlhfless.analysis.what_ifs.named import NamedWays, checked_name
from rlhfless.errors import InputError
from rlhfless.latency import PriceError, load_profile, profiles_of_the_same_model
from rlhfless.latency.counts import gpu_numbers, once, several
from rlhfless.latency.gpus import NODE_GPUS
from rlhfless.report.progress import step_progress
from rlhfless.run.hardware import Hardware
from rlhfless.run.ways import in_order, whole_steps_of
from rlhfless.run.what_ifs import drafts_of_log, last_of, run_to_change
from rlhfless.scheduling import PolicyFunction, SchedulingPolicy, as_policy, policy_names
from rlhfless.simulate import Comparison, LoggedStep, SimulationConfig, checked_steps, logged_steps, simulate_variants
from rlhfless.trace import OpenedLog
from solver.model.errors import PlanningError, as_given
from solver.model.latency import LatencyModel
from solver.model.objective import Objective
from solver.model.plurals import counted

WITHOUT_WEIGHT = policy_names("dispatch")
"""Policies that take all actors and assign responses alike at any time weight."""
Policy = str | SchedulingPolicy | PolicyFunction


class RunToVary(Protocol):
    """What variants need of a ``Run``, which has ``sweep`` and ``search`` as methods. See there for the attributes."""

    @property
    def hardware(self) -> Hardware: ...
    @property
    def objective(self) -> Objective: ...
    @property
    def max_response_tokens(self) -> int | None: ...
    @property
    def admission(self) -> str: ...
    @property
    def assumed(self) -> tuple[str, ...]: ...
    @property
    def rollouts(self) -> pd.DataFrame: ...
    @property
    def steps(self) -> list[int]: ...
    @property
    def profile(self) -> str: ...
    @property
    def calibrated(self) -> SimulationConfig: ...
    @property
    def times(self) -> OwnTimes: ...
    @property
    def opened(self) -> OpenedLog: ...
    @property
    def assumptions(self) -> Assumptions: ...
    @property
    def useless_share(self) -> float | None: ...


@dataclass(frozen=True)
class Variant:
    """A variant of the run: other GPUs, another policy, another objective, or another framework's method.

    Steps are planned by policy ``solver`` unless a policy or a ``way`` is given, so ``Variant("planned")`` is the solver on the
    run's own GPUs. As in ``Run.plan``, it chooses the GPUs per actor where neither the run nor ``hardware`` states them or a
    profile; beside a ``way`` actors have the run's own size. The run itself is ``Variant("own", way="as logged")``; if it was
    executed here, ``way="as executed"``.

    Attributes:
        name: name in tables and figures.
        hardware: GPUs, profile and price; the run's when None.
        policy: plans the steps; ``solver`` when None.
        time_weight: w in ``T^w C^(1-w)``; the run's when None.
        way: how the framework generates and learns, instead of a policy: a name of ``analysis.what_ifs.named.NAMES``, or a
            function from ``RunToChange`` to ``WayOutcome``.
    """

    name: str
    hardware: Hardware | None = None
    policy: Policy | None = None
    time_weight: float | None = None
    way: Way | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise InputError(f"the name of a variant is {as_given(self.name)}; a text is needed, such as '32 GPUs'")
        if self.hardware is not None and not isinstance(self.hardware, Hardware):
            given = as_given(self.hardware)
            raise InputError(f"hardware of the variant {self.name!r} is {given}; Hardware(gpus=...) or None is needed")
        if self.way is None:
            return
        if isinstance(self.way, str):
            checked_name(self.way)
        elif not callable(self.way):
            given = as_given(self.way)
            raise InputError(f"way of the variant {self.name!r} is {given}; the name of a way or a function is needed")
        for other in ("policy", "hardware", "time_weight"):
            if getattr(self, other) is not None:
                raise InputError(
                    f"variant {self.name!r} has a way and {other}; a way has the run's own GPUs and its own dispatch, so give "
                    "one of the two"
                )

    @property
    def planner(self) -> Policy:
        """``policy``, or else the solver."""
        return "solver" if self.policy is None else self.policy


def variants(run: RunToVary, chosen: Sequence[Variant], *, steps: Collection[int] | None = None) -> Comparison:
    """Simulate the steps of a run under every variant, and compare each with a lower bound.

    All profiles are scaled by the factor that fits the run's own profile to its times. If a variant has a ``way``, whole steps
    are compared: generation, and the run's seconds outside generation.

    Args:
        run: what ``rlhfless.load`` returns.
        chosen: the variants; those that cannot run the steps are listed in ``left_out`` of the result.
        steps: step numbers; None: the last steps, with about 2,000 responses in total (``last_of``).

    Raises:
        InputError: ``run`` is not a ``Run``, an item is not a ``Variant``, two have the same name, ``steps`` is not a list, or
            neither the run nor a variant states the number of GPUs.
        PolicyError: a policy is unknown.
        TraceError: the log lacks one of the steps.
        PlanningError: a time weight is none, or no variant can run the steps.

    Example:
        >>> import rlhfless as rl
        >>> from rlhfless.run import Variant, variants
        >>> run = rl.load(rl.example(), verbose=False)
        >>> found = variants(run, [Variant("planned"), Variant("half", rl.Hardware(gpus=8))], steps=run.steps[-1:])
        >>> found.table[["variant", "gpus"]].values.tolist()
        [['planned', 16], ['half', 8]]
    """
    if not hasattr(type(run), "calibrated"):
        raise InputError(f"run is {as_given(run)}; what rlhfless.load returns is needed")
    chosen, steps = _checked(chosen), checked_steps(steps, run.steps)
    base, scale = base_of(run, chosen)
    settings: dict[tuple[Hardware | None, float | None], SimulationConfig] = {}
    asked: dict[str, tuple[SimulationConfig, Policy]] = {}
    left_out: dict[str, str] = {}
    ways = {one.name: one.way for one in chosen if one.way is not None}
    for one in chosen:
        if one.way is not None:
            continue
        as_policy(one.planner)  # an unknown one is refused, not left out
        key = one.hardware, one.time_weight
        try:
            if key not in settings:
                settings[key] = replace(
                    _setting(base, scale, run.profile, one), sizes=() if ways else _sizes_to_choose(run, scale, one)
                )
        except (InputError, PriceError, PlanningError) as error:
            left_out[one.name] = str(error)
            continue
        asked[one.name] = settings[key], one.planner
    if not asked and not ways:
        raise PlanningError(next(iter(left_out.values())))
    found = _with_ways(run, asked, ways, steps) if ways else _simulated(last_steps(run, steps), asked)
    reasons = left_out | dict(found.left_out)
    left_out = {one.name: reasons[one.name] for one in chosen if one.name in reasons}
    alike = "; other profiles alike" if scale.factor != 1 else ""
    words = "; ".join(filter(None, (scale.words() + alike, found.times)))
    table = in_order(found.table, [one.name for one in chosen])
    return replace(found, table=table, left_out=left_out, times=words, assumed=run.assumed)


def _simulated(logged: Sequence[LoggedStep], asked: Mapping[str, tuple[SimulationConfig, Policy]]) -> Comparison:
    """Simulate variants, with progress: policies of one setting are simulated together."""
    with step_progress(len(logged) * len({id(setting) for setting, _ in asked.values()})) as on_step:
        return simulate_variants(logged, asked, on_step)


def _with_ways(
    run: RunToVary, asked: Mapping[str, tuple[SimulationConfig, Policy]], ways: Mapping[str, Way], steps: Collection[int] | None
) -> Comparison:
    """Return policies and ways on whole steps.

    Raises:
        PlanningError: no variant can run the steps; the message is of the first one.
    """
    changed = run_to_change(run.opened, run.times, steps, run.useless_share)
    measured = drafts_of_log(run.opened, changed, run.assumptions) if "drafts" in ways.values() else ()
    of_run = NamedWays(changed, measured)
    outcomes, left_out = simulated_ways(of_run, ways)
    settings = {name: setting for name, (setting, _) in asked.items()}
    planned = Comparison(pd.DataFrame(), {}, tuple(changed.logged))
    if asked:
        try:
            planned = whole_steps_of(_simulated(changed.logged, asked), changed, settings)
        except PlanningError:  # of the first: each has its own reason
            left_out |= {name: _why_not(changed.logged, name, one) for name, one in asked.items()}
    if not outcomes and not len(planned.table):
        raise PlanningError(next(iter(left_out.values())))
    return replace(
        planned,
        table=rows_of_ways(changed, outcomes, planned.table),
        left_out=left_out | dict(planned.left_out),
        times=words_of_steps(changed, outcomes.values()),
        knobs=knobs_of(outcomes, of_run),
        parameters=parameters_of(outcomes),
    )


def _why_not(logged: Sequence[LoggedStep], name: str, variant: tuple[SimulationConfig, Policy]) -> str:
    """Return why a variant cannot run the steps."""
    try:
        simulate_variants(logged, {name: variant})
    except PlanningError as error:
        return str(error)
    raise AssertionError(f"{name} can run")


def sweep(
    run: RunToVary,
    *,
    gpus: Sequence[int] | None = None,
    gpus_per_actor: Sequence[int] | None = None,
    time_weight: Sequence[float] | None = None,
    policies: Sequence[Policy] | None = None,
    steps: Collection[int] | None = None,
) -> Comparison:
    """Return ``variants`` of every combination; ``Run.sweep`` says what the arguments are."""
    sizes, weights, planners = _sizes("gpus_per_actor", gpus_per_actor), _weights(time_weight), _policies(policies)
    profiles = (None,) if sizes is None else tuple(_profile_of_size(run, size) for size in sizes)
    found = {}
    counts = _sizes("gpus", gpus) or (None,)
    for count, profile, weight, policy in itertools.product(counts, profiles, weights, planners):
        hardware = None if count is None and profile is None else Hardware(count, profile=profile)
        weight = None if policies is not None and as_policy(policy).name in WITHOUT_WEIGHT else weight
        words = [
            counted(count, "GPU") if count is not None else "",
            f"{load_profile(profile).gpus_per_actor} per actor" if profile is not None else "",
            f"w={weight:.12g}" if weight is not None else "",
            as_policy(policy).name if policies is not None else "",
        ]
        name = ", ".join(filter(None, words)) or as_policy(policy).name
        found[name] = Variant(name, hardware, policy, weight)
    return variants(run, list(found.values()), steps=steps)


def last_steps(run: RunToVary, steps: Collection[int] | None = None) -> list[LoggedStep]:
    """Return steps as planning sees them; the last ones, with about 2,000 responses (``last_of``), when None."""
    if steps is None:
        steps = last_of(run.steps, len(run.rollouts))
    return list(logged_steps(run.rollouts, None, run.max_response_tokens, steps=steps))


def base_of(run: RunToVary, chosen: Iterable[Variant]) -> tuple[SimulationConfig, ProfileScale]:
    """Return the run's setting, and how profiles are scaled to its times.

    Where the number of GPUs that the run had is not known, but every variant states its own, the setting is of one node, and
    profiles stay as they are.

    Raises:
        InputError: neither the run nor a variant states a number of GPUs.
    """
    if run.hardware.gpus is not None or any(one.hardware is None or one.hardware.gpus is None for one in chosen):
        return run.calibrated, run.times.scale
    cluster, latency = replace(run.hardware, gpus=run.hardware.gpus_per_node or NODE_GPUS).cluster()
    setting = SimulationConfig(
        cluster, latency, run.objective, max_response_tokens=run.max_response_tokens, admission=run.admission
    )
    return setting, ProfileScale(latency.name)


def _setting(base: SimulationConfig, scale: ProfileScale, profile: str, variant: Variant) -> SimulationConfig:
    """Return the setting of a variant, with the closed form as bound.

    A kind of GPU other than the run's has its list price, the run's own kind the run's.
    """
    objective = base.objective if variant.time_weight is None else replace(base.objective, time_weight=variant.time_weight)
    stated = variant.hardware
    if stated is None:
        return replace(base, objective=objective, bound_work=0)
    gpus = base.cluster.gpus if stated.gpus is None else stated.gpus
    latency = load_profile(profile if stated.profile is None else stated.profile)
    price = base.cluster.usd_per_gpu_hour if latency.kind == base.cluster.kind else None
    per_node = min(NODE_GPUS, base.cluster.gpus_per_node, gpus)
    completed = replace(
        stated,
        gpus=gpus,
        gpus_per_node=per_node if stated.gpus_per_node is None else stated.gpus_per_node,
        profile=profile if stated.profile is None else stated.profile,
        usd_per_gpu_hour=price if stated.usd_per_gpu_hour is None else stated.usd_per_gpu_hour,
    )
    cluster, latency = completed.cluster()
    if replace(stated, gpus=None, profile=None) == Hardware() and (latency.name, cluster.gpus) == (
        base.latency.name, base.cluster.gpus,
    ):  # fmt: skip
        cluster = base.cluster  # the run's own nodes
    return replace(base, cluster=cluster, latency=scale.of(latency), objective=objective, sizes=(), bound_work=0)


def _sizes_to_choose(run: RunToVary, scale: ProfileScale, variant: Variant) -> tuple[LatencyModel, ...]:
    """Return the other actor sizes that policy ``solver`` may choose, as in ``Run.plan``: none where a size is stated."""
    stated = variant.hardware or Hardware()
    if any(size is not None for size in (stated.profile, stated.gpus_per_actor, run.hardware.gpus_per_actor)):
        return ()
    return scale.sizes_of(run.profile)


def _checked(chosen: Sequence[Variant]) -> list[Variant]:
    """Return the variants as a list.

    Raises:
        InputError: they are none, or two have one name.
    """
    if not isinstance(chosen, Sequence) or isinstance(chosen, str) or not chosen:
        raise InputError(f"the variants are {as_given(chosen)}; a list of at least one Variant(...) is needed")
    for one in chosen:
        if not isinstance(one, Variant):
            raise InputError(f"the variants have {as_given(one)}; each has to be a Variant(...)")
    names = [one.name for one in chosen]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InputError(f"variant {twice[0]!r} is given twice; give one of them another name")
    return list(chosen)


def _sizes(name: str, values: Sequence[int] | None) -> list[int] | None:
    return None if values is None else gpu_numbers(name, values)


def _weights(values: Sequence[float] | None) -> Sequence[float | None]:
    if values is None:
        return [None]
    given = several("time_weight", values, "numbers from 0 to 1, such as [0.3, 0.7]")
    return once("time_weight", [Objective(value).time_weight for value in given])


def _policies(values: Sequence[Policy] | None) -> Sequence[Policy]:
    if values is None:
        return ["solver"]
    given = several("policies", values, "policies, such as ['static', 'solver']")
    once("policies", [as_policy(value).name for value in given])
    return given


def _profile_of_size(run: RunToVary, size: int) -> str:
    """Return the latency profile of the run's model and GPU kind for actors of this size.

    Raises:
        InputError: there is none; the message names the sizes that exist.
    """
    own = load_profile(run.profile)
    models = {own.gpus_per_actor: run.profile}
    for name in profiles_of_the_same_model(run.profile):
        model = load_profile(name)
        if model.kind == own.kind:
            models.setdefault(model.gpus_per_actor, name)
    if size not in models:
        known = ", ".join(map(str, sorted(models)))
        raise InputError(
            f"gpus_per_actor has {size}; there are latency profiles of this model on {own.kind} for actors of {known} GPUs"
        )
    return models[size]
