"""The bounds on a step behind one function: of plans, of any schedule, of the whole step."""

from __future__ import annotations

from dataclasses import replace

from numpy.typing import ArrayLike

from solver.bounds.bound import Bound
from solver.bounds.configurations import DEFAULT_WORK
from solver.bounds.drafts import DraftedBound, Drafts
from solver.bounds.plans import PlanBound
from solver.bounds.schedules import ScheduleBound, check_lp_work
from solver.model.errors import PlanningError, as_given
from solver.model.problem import PlanningProblem, check_problem
from solver.step.bound import whole_step_bound
from solver.step.work import Learner, StepWork

OF = ("schedules", "plans")


def bound(
    problem: PlanningProblem,
    *,
    of: str = "schedules",
    lengths: ArrayLike | None = None,
    drafts: Drafts | None = None,
    work: StepWork | None = None,
    learner: Learner | None = None,
    prefill_tokens: float | None = None,
    lp_work: int = DEFAULT_WORK,
) -> Bound:
    """Return a lower bound on time and GPU-seconds of a step, as a curve: ``gpu_seconds(time_s)``, ``shortest_s()``,
    ``least_time_s(gpu_seconds)`` and ``value(objective)``.

    What it bounds:

    - every schedule of the generation, even one that knows all lengths, migrates, refills and releases actors early;
    - with ``drafts``, every such schedule with speculative decoding;
    - with ``work``, the whole step, whatever overlaps, with this ``learner`` or with any;
    - of ``plans``, every fixed assignment of responses to actors, for the lengths or scenarios that ``plan`` plans with. It
      has no configuration LP, so ``lp_work`` changes nothing there.

    Seconds come from the latency model's table if it has one; plans are timed by the affine fit, as ``plan`` times them.

    Args:
        problem: its workload has the true lengths, or else ``lengths`` has them. With admission ``reserve`` the bound holds for
            engines that reserve memory for the response limit; with ``preempt`` it holds for all engines. Its phases count in
            ``value`` only, and not beside ``work``.
        of: ``schedules`` or ``plans``.
        lengths: (R,) true tokens of the responses, in place of the workload's lengths and scenarios.
        drafts: an ``Acceptance`` (the most that any response accepts, in expectation), or for every response the (L,) drafted
            tokens that are accepted at each of its tokens, as in a replayed log.
        work: what preparation and learning of every response take, and what a learner pays.
        learner: on which GPUs and from when every policy learns; None: a policy chooses that, on GPUs of the cluster.
        prefill_tokens: least number of tokens that actors prefill; every prompt once when None. Give fewer if prompts share
            prefixes, and 0 if they are prefilled on GPUs that are paid for anyway.
        lp_work: limit on the counted work of the configuration LP, which makes the bound tighter; 0: only the closed form.

    Raises:
        PlanningError: an argument is of the wrong type or out of its range, or the cluster is a mixed one (of ``plans`` it may
            be), or a ``learner`` comes without ``work``, or the workload has ``passes`` and neither ``drafts`` are given nor
            plans bounded.

    Example:
        >>> import solver
        >>> latency = solver.LatencyModel("mine", 1, base_s=5e-3, per_response_s=1e-3, max_batch=64)
        >>> workload = solver.Workload([100] * 64, list(range(64)), list(range(100, 740, 10)))
        >>> problem = solver.PlanningProblem(workload, solver.Cluster(1, 8, 1), latency)
        >>> plan, bound = solver.random_split(problem, actors=4), solver.bound(problem)
        >>> bool(bound.shortest_s() <= plan.makespan_s), bool(bound.gpu_seconds(plan.makespan_s) <= plan.gpu_seconds)
        (True, True)
    """
    check_problem(problem)
    if not isinstance(of, str) or of not in OF:
        raise PlanningError(f"of is {as_given(of)}; choose one of {', '.join(OF)}")
    check_lp_work(lp_work)
    if lengths is not None:
        problem = replace(problem, workload=problem.workload.with_response_tokens(lengths))
    if of == "plans":
        if drafts is not None or work is not None or learner is not None or prefill_tokens is not None:
            raise PlanningError(
                "drafts, work, learner and prefill_tokens count only for bounds of schedules; leave them out, or leave out "
                "of='plans'"
            )
        return PlanBound(problem.planning_model)
    if learner is not None and work is None:
        raise PlanningError("a learner is given, but no work; give work, too, for the whole step")
    if drafts is None:
        generation = ScheduleBound(problem, prefill_tokens=prefill_tokens, lp_work=lp_work)
    else:
        generation = DraftedBound(problem, drafts, prefill_tokens=prefill_tokens, lp_work=lp_work)
    return generation if work is None else whole_step_bound(generation, work, learner)
