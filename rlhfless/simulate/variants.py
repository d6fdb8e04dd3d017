"""The same steps under several policies in several settings, as one ``Comparison``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from rlhfless.errors import InputError
from rlhfless.scheduling import PolicyError, PolicyFunction, SchedulingPolicy, as_policy
from rlhfless.simulate.comparison import ChosenTraces, Comparison, on_front
from rlhfless.simulate.run import simulate_steps
from rlhfless.simulate.steps import LoggedStep, SimulationConfig
from solver.model.errors import PlanningError

Policy = str | SchedulingPolicy | PolicyFunction


def simulate_variants(
    logged: Sequence[LoggedStep],
    variants: Mapping[str, tuple[SimulationConfig, Policy]],
    on_step: Callable[[int], object] | None = None,
) -> Comparison:
    """Plan the steps under every variant, and execute the plans on simulated engines.

    Args:
        logged: the steps. variants: name -> a setting, and the policy that plans in it.
        on_step: called with the number of every step that is finished in one setting, for progress bars.

    Returns:
        The comparison, in the order of the variants. Variants whose setting cannot run the steps are in ``left_out``.

    Raises:
        PolicyError: a policy is unknown.
        InputError: there is no variant.
        PlanningError: no variant can run the steps; the message is of the first one.
    """
    if not variants:
        raise InputError("there are no variants; at least one is needed")
    groups: list[_Group] = []
    group_of: dict[str, tuple[int, str]] = {}  # of every variant: the number of its group, and its policy
    for name, (setting, policy) in variants.items():
        planner = as_policy(policy, tau=setting.tau, static_actors=setting.static_actors, hold=setting.hold)
        number = next((number for number, one in enumerate(groups) if one.takes(setting, planner)), len(groups))
        if number == len(groups):
            groups.append(_Group(setting, {}))
        groups[number].planners[planner.name] = planner
        group_of[name] = number, planner.name
    ran = [group.simulated(logged, on_step) for group in groups]
    results = {name: ran[number][policy] for name, (number, policy) in group_of.items()}
    found = {name: (one, group_of[name][1]) for name, one in results.items() if isinstance(one, Comparison)}
    left_out = {name: str(one) for name, one in results.items() if not isinstance(one, Comparison)}
    if not found:
        raise PlanningError(next(iter(left_out.values())))
    return joined(found, left_out, same=len(groups) == 1)


@dataclass(frozen=True)
class _Group:
    """Policies by name that run in one setting, so that they share the bound and plans that start from other plans."""

    setting: SimulationConfig
    planners: dict[str, SchedulingPolicy]

    def takes(self, setting: SimulationConfig, planner: SchedulingPolicy) -> bool:
        """Whether this is the setting, and no other policy has the name."""
        return self.setting is setting and self.planners.get(planner.name, planner) == planner

    def simulated(
        self, logged: Sequence[LoggedStep], on_step: Callable[[int], object] | None = None
    ) -> dict[str, Comparison | Exception]:
        """Return the comparison that has each policy, or why it could not run."""
        try:
            return dict.fromkeys(self.planners, simulate_steps(logged, self.setting, list(self.planners.values()), on_step))
        except (InputError, PlanningError) as error:
            if len(self.planners) == 1:
                return dict.fromkeys(self.planners, error)
        alone = (_Group(self.setting, {name: planner}) for name, planner in self.planners.items())
        return {name: one for group in alone for name, one in group.simulated(logged, on_step).items()}


def joined(found: Mapping[str, tuple[Comparison, str]], left_out: Mapping[str, str], *, same: bool) -> Comparison:
    """Return one comparison of variants of the same steps.

    Args:
        found: by name, the comparison that has a variant, and its policy there. same: all ran in one setting, so that their
            bounds are the same. left_out: as of ``Comparison``.
    """
    first, _ = next(iter(found.values()))
    rows = [one.table[one.table["policy"] == policy].assign(variant=name) for name, (one, policy) in found.items()]
    return replace(
        first,
        table=pd.concat(rows, ignore_index=True),
        traces=ChosenTraces({name: (one.traces, policy) for name, (one, policy) in found.items()}),
        bounds=first.bounds if same else (),
        plans={name: one.plans[policy] for name, (one, policy) in found.items()},
        row_bounds={name: one.row_bounds[policy] for name, (one, policy) in found.items()},
        left_out=left_out,
    )


def at_time_weights(
    setting: SimulationConfig, policies: Sequence[Policy], time_weights: Sequence[float], suffix: str = ""
) -> dict[str, tuple[SimulationConfig, Policy]]:
    """Return every policy at every time weight as variants, without bounds that need a search; names end in ``suffix``.

    Raises:
        InputError: there is no time weight. PlanningError: one is none. PolicyError: a policy is unknown, or there is none.
    """
    if not len(time_weights):
        raise InputError("there is no time weight; at least one is needed, such as 0.5")
    if isinstance(policies, str) or not policies:
        raise PolicyError(f"policies is {policies!r}; a list of at least one is needed, such as ['random', 'spec']")
    found: dict[str, tuple[SimulationConfig, Policy]] = {}
    for weight in time_weights:
        weighed = replace(setting, objective=replace(setting.objective, time_weight=weight), bound_work=0)
        found |= {f"{as_policy(policy).name}, w={weight:g}{suffix}": (weighed, policy) for policy in policies}
    return found


def on_fronts(table: pd.DataFrame, by: str) -> pd.Series:
    """Return (R,) whether no row with the same ``by`` is as fast and cheaper in GPU-seconds, or as cheap and faster."""
    found = pd.Series(False, index=table.index)
    for _, rows in table.groupby(by, sort=False):
        found[rows.index[on_front(rows["time_s"], rows["gpu_seconds"])]] = True
    return found
