"""``WorkItem``: work beside decoding inside a step, such as a pass of a reference model or the gradient of a finished group.

Items and the GPUs that they may run on, and what makes them impossible. When they run is ``schedule_work``;
``work_rows.py`` writes them into a record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rlhfless.executor.step.work_order import in_order
from solver.model.cluster import Cluster, GpuPool, MixedCluster
from solver.model.errors import PlanningError, as_given, check_flags, is_list, is_number, is_whole
from solver.model.plan import Plan

KINDS = ("prepare", "learn", "transfer", "decode")
ROLES = ("prepare", "learner", "reference", "reward", "critic", "decode")
_ROLE_OF_KIND = {"prepare": "prepare", "learn": "learner", "transfer": "prepare", "decode": "decode"}
WorkFunction = Callable[..., Any]
RELEASED = "released"


@dataclass(frozen=True)
class Gpus:
    """The GPUs that a work item may run on, as servers that run one item at a time. An item takes the first free server.

    Attributes:
        name: name of the servers in the trace.
        ids: GPUs of one server, which is called ``name``, or of several, ``name-0``, ``name-1``, ... A server on GPUs of actors
            is free when these have completed their last responses. Without GPUs (``()``) it computes on the CPU.
        released: the GPUs that actors release run items, too, so that a learner grows: one server per actor of the plan, free
            once the actor has completed or handed over its last response. They are called ``name-released-0``, ... by the
            actor's index; without ``ids`` ``name-0``, ...
        from_s: earliest allocation of ``ids``, in seconds from the start of the step.
        startup_s: seconds to load models on released GPUs before their first item, and on ``ids`` with a ``from_s``. Charged on
            the virtual clock, as a span ``start``.
        held_all_step: ``ids`` are held for the whole step; else, like released GPUs, from a server's first item to its last.
        node: of ``ids``; None: by the ids. Without GPUs and a node a server is not in the trace.
        usd_per_gpu_hour: price; None: that of the cluster (of its first pool for additional GPUs).

    Raises:
        PlanningError: there are no GPUs, two servers share one, the name is an actor's, or a number makes no sense.
    """

    name: str = RELEASED
    ids: tuple[int, ...] | tuple[tuple[int, ...], ...] | None = None
    released: bool = False
    from_s: float = 0.0
    startup_s: float = 0.0
    held_all_step: bool = False
    node: int | None = None
    usd_per_gpu_hour: float | None = None

    def __post_init__(self) -> None:
        check_flags(released=self.released, held_all_step=self.held_all_step)
        for what in ("from_s", "startup_s"):
            if not is_number(getattr(self, what), 0):
                raise PlanningError(
                    f"{what} of GPUs {self.name!r} is {as_given(getattr(self, what))}; a finite number of 0 or more is needed"
                )
        if not isinstance(self.name, str):
            raise PlanningError(f"GPUs of work have the name {as_given(self.name)}; text is needed")
        if self.node is not None and not is_whole(self.node, 0):
            raise PlanningError(
                f"node of GPUs {self.name!r} is {as_given(self.node)}; a whole number of 0 or more is needed, or none"
            )
        if self.usd_per_gpu_hour is not None and not is_number(self.usd_per_gpu_hour, 0):
            raise PlanningError(
                f"usd_per_gpu_hour of GPUs {self.name!r} is {as_given(self.usd_per_gpu_hour)}; a finite number of 0 or more is "
                "needed, or none for the cluster's price"
            )
        if self.name == "actor" or self.name.startswith("actor-"):
            raise PlanningError(f"GPUs of work have the name {self.name!r} of actors; give them another name")
        if self.ids is None:
            if not self.released:
                raise PlanningError(
                    f"GPUs {self.name!r} have no ids; give them, or released=True for the GPUs that actors release"
                )
            return
        if not is_list(self.ids):
            raise PlanningError(f"ids of GPUs {self.name!r} are {as_given(self.ids)}; a list of whole numbers is needed")
        if any(isinstance(server, Sequence) for server in self.ids):
            ids: Any = tuple(tuple(server) if isinstance(server, Sequence) else (server,) for server in self.ids)
        else:
            ids = tuple(self.ids)
        object.__setattr__(self, "ids", ids)
        every = [gpu for server in self.own for gpu in server]
        if (wrong := next((gpu for gpu in every if not is_whole(gpu, 0)), None)) is not None:
            raise PlanningError(f"GPUs {self.name!r} have the id {as_given(wrong)}; whole numbers of 0 or more are needed")
        if len(set(every)) < len(every):
            shared = next(gpu for gpu in every if every.count(gpu) > 1)
            raise PlanningError(f"GPUs {self.name!r} have GPU {shared} twice; give each server GPUs of its own")

    @classmethod
    def beside(
        cls,
        cluster: Cluster | MixedCluster,
        name: str,
        gpus: int = 1,
        *,
        servers: int | None = None,
        first: int = 0,
        **more: Any,
    ) -> Gpus:
        """Return GPUs in addition to the cluster's: one server called ``name``, or ``servers`` many called ``name-0``, ...

        Args:
            gpus: GPUs of each server. first: number of additional GPUs that others use already. more: see ``Gpus``.

        Raises:
            PlanningError: a number is negative or no whole number.
        """
        for what, number, least in (("gpus", gpus, 0), ("servers", 1 if servers is None else servers, 1), ("first", first, 0)):
            if not is_whole(number, least):
                raise PlanningError(
                    f"{what} of {name!r} beside the cluster is {as_given(number)}; a whole number of {least} or more is needed"
                )
        begins = [cluster.gpus + first + k * gpus for k in range(1 if servers is None else servers)]
        ids = tuple(tuple(range(begin, begin + gpus)) for begin in begins)
        return cls(name, ids[0] if servers is None else ids, **more)

    @property
    def own(self) -> tuple[tuple[int, ...], ...]:
        """Return ``ids`` of each server."""
        ids: Any = self.ids
        return () if ids is None else (ids,) if self._is_one_server else ids

    @property
    def _is_one_server(self) -> bool:
        return self.ids is not None and not any(isinstance(server, tuple) for server in self.ids)

    def servers(self, plan: Plan) -> list[WorkServer]:
        """Return the servers for a step of this plan, those on released GPUs first."""
        found = []
        if self.released:
            prefix = self.name if self.ids is None else f"{self.name}-{RELEASED}"
            found = [WorkServer(self, f"{prefix}-{i}", tuple(a.gpu_ids), a.node, i) for i, a in enumerate(plan.actors)]
        names = [self.name] if self._is_one_server else [f"{self.name}-{k}" for k in range(len(self.own))]
        return [*found, *(WorkServer(self, name, ids, self.node) for name, ids in zip(names, self.own, strict=True))]


class WorkServer(NamedTuple):
    """A server of ``gpus``: its holder in the trace, its GPUs, and their node (None: by the ids).

    ``actor`` is the actor of the plan that releases these GPUs; None for the ``ids`` of ``gpus``.
    """

    gpus: Gpus
    holder: str
    gpu_ids: tuple[int, ...]
    node: int | None
    actor: int | None = None

    @property
    def held_all_step(self) -> bool:
        """Return whether it is held for the whole step."""
        return self.gpus.held_all_step and self.actor is None

    @property
    def from_s(self) -> float:
        """Return its earliest allocation, in seconds from the start of the step."""
        return self.gpus.from_s if self.actor is None else 0.0

    @property
    def startup_s(self) -> float:
        """Return the seconds that it loads models; GPUs that are allocated before the step have them."""
        return self.gpus.startup_s if self.actor is not None or self.from_s > 0 else 0.0

    @property
    def is_somewhere(self) -> bool:
        """Return whether it is in the trace."""
        return bool(self.gpu_ids) or self.node is not None


@dataclass(frozen=True)
class WorkItem:
    """Work inside a step beside the decoding of its actors, such as scoring or learning. It never runs on GPUs of an actor that
    still decodes.

    Attributes:
        kind: ``prepare``, ``learn``, ``transfer``, or ``decode`` for generation whose seconds are given; the phase of its span
            in the trace.
        seconds: its duration on the virtual clock; None: measured by running ``run`` alone. With real actors, its process
            counts as lost after ``Faults.silence_factor`` times this duration; None: if it sends no heartbeats.
        run: a function to run, with two tuples: the completions of ``responses`` and the results of ``items``, in their order.
            With real actors it runs in another process, which must be able to import it.
        gpus: the GPUs that it may run on.
        in_process: with real actors, its function runs in this process, in a thread, for example because the learner is here.
            Then all items of its GPUs do, and these may be none. (On the virtual clock all functions run here, after
            generation.)
        responses: indices of responses that must be complete before it starts.
        items: indices of work items that must have ended before it starts.
        after_s: earliest start, in seconds from the start of the step.
        priority: order among items that are ready; the smaller one starts first.
        call: which model call of its kind it is; None: the only one.
        role: role of its holder in the trace; None: that of its kind.
        detail: further values for its span.

    Raises:
        PlanningError: the kind is unknown, it has neither seconds nor a function, or a number makes no sense.

    Example:
        >>> import rlhfless as rl, solver
        >>> from rlhfless.engine import Request, SimulatedEngine
        >>> from rlhfless.executor import Gpus
        >>> latency, cluster = rl.load_profile("cpu-tiny-qwen2"), solver.Cluster(1, 2, 1, "cpu")
        >>> workload = solver.Workload([6, 6, 6], [0, 1, 2], [40, 50, 90], max_response_tokens=100)
        >>> plan = solver.random_split(solver.PlanningProblem(workload, cluster, latency), actors=2)
        >>> requests = [Request(i, 6, 100, target_tokens=tokens) for i, tokens in enumerate([40, 50, 90])]
        >>> prepare = [rl.WorkItem("prepare", 0.02, gpus=Gpus(released=True), responses=(i,)) for i in range(3)]
        >>> learner = Gpus.beside(cluster, "learner")
        >>> learn = rl.WorkItem("learn", 0.5, gpus=learner, items=(0, 1, 2))
        >>> with rl.Executor(SimulatedEngine, cluster, latency=latency) as executor:
        ...     record = executor.run(plan, requests, work=[*prepare, learn])
        >>> [ran.holder for ran in record.work][-1], record.end_s == record.work[-1].end_s
        ('learner', True)
    """

    kind: str
    seconds: float | None = None
    run: WorkFunction | None = field(default=None, repr=False)
    gpus: Gpus = Gpus(released=True)
    responses: tuple[int, ...] = ()
    items: tuple[int, ...] = ()
    after_s: float = 0.0
    priority: float = 0.0
    call: str | None = None
    role: str | None = None
    in_process: bool = False
    detail: Mapping[str, Any] = field(default_factory=dict, repr=False, hash=False)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise PlanningError(f"kind {as_given(self.kind)} of a work item is unknown; choose one of {', '.join(KINDS)}")
        if self.seconds is None and self.run is None:
            raise PlanningError(
                f"a work item of kind {self.kind!r} has neither seconds nor a function to run; give one of them"
            )
        if self.seconds is not None and not is_number(self.seconds, 0):
            raise PlanningError(f"seconds of a work item are {as_given(self.seconds)}; a finite number of 0 or more is needed")
        if not is_number(self.after_s, 0):
            raise PlanningError(f"after_s of a work item is {as_given(self.after_s)}; a finite number of 0 or more is needed")
        if not is_number(self.priority):
            raise PlanningError(f"priority of a work item is {as_given(self.priority)}; a finite number is needed")
        if not isinstance(self.gpus, Gpus):
            raise PlanningError(f"gpus of a work item are {as_given(self.gpus)}; Gpus are needed")
        if self.role is not None and self.role not in ROLES:
            raise PlanningError(
                f"role {as_given(self.role)} of a work item is unknown; choose one of {', '.join(ROLES)}, or none"
            )
        check_flags(in_process=self.in_process)
        for name in ("responses", "items"):
            indices = getattr(self, name)
            if isinstance(indices, str) or not isinstance(indices, Iterable):
                raise PlanningError(f"{name} of a work item are {as_given(indices)}; a list of indices is needed")
            object.__setattr__(self, name, tuple(indices))
        if self.run is not None and not callable(self.run):
            raise PlanningError(f"run of a work item is {as_given(self.run)}; a function of completions and results is needed")

    @property
    def holder_role(self) -> str:
        """Return the role of its holder in the trace."""
        return self.role or _ROLE_OF_KIND[self.kind]


class ItemRun(NamedTuple):
    """A work item that has run: its holder, its start and end, and the result of its function (None without one).

    ``lost``: its process died meanwhile, so it was run again or ended the step.
    """

    item: WorkItem
    holder: str
    start_s: float
    end_s: float
    result: Any = None
    lost: bool = False


def named(index: int, item: WorkItem) -> str:
    """Return the words by which messages name an item."""
    return f"work item {index} ({item.kind if item.call is None else item.call})"


def check_work(work: Sequence[WorkItem], plan: Plan, responses: int, learner: Sequence[WorkItem] = ()) -> None:
    """Refuse items that could never run in a step of this plan, or whose GPUs have another holder.

    Args:
        learner: the phases after generation as items, whose GPUs are held for the whole step.

    Raises:
        PlanningError: naming the item and what is wrong with it.
    """
    checked: set[tuple[str, int]] = set()  # many items may wait for the same
    for i, item in enumerate(work):
        if not isinstance(item, WorkItem):
            raise PlanningError(f"item {i} of the work is {as_given(item)}; a WorkItem is needed")
        for name, indices, count in (("response", item.responses, responses), ("item", item.items, len(work))):
            if (name, id(indices)) in checked:
                continue
            checked.add((name, id(indices)))
            for index in indices:
                if not is_whole(index, 0) or index >= count:
                    raise PlanningError(f"work item {i} waits for {name} {as_given(index)}; {name}s are 0 to {count - 1}")
    in_order([item.items for item in work])
    in_process: dict[Gpus, bool] = {}
    for i, item in enumerate(work):
        if in_process.setdefault(item.gpus, item.in_process) != item.in_process:
            raise PlanningError(
                f"work item {i} has in_process={item.in_process}, but others on GPUs {item.gpus.name!r} have not; give all of "
                "them the same, or GPUs of their own"
            )
    servers = [server for gpus in dict.fromkeys(item.gpus for item in (*work, *learner)) for server in gpus.servers(plan)]
    owner: dict[str, Gpus] = {}
    held = {gpu: server.holder for server in servers if server.held_all_step for gpu in server.gpu_ids}
    for server in servers:
        if owner.setdefault(server.holder, server.gpus) is not server.gpus:
            raise PlanningError(f"two of the work's GPUs have the holder {server.holder!r}; give each a name of its own")
        if (gpu := next((g for g in server.gpu_ids if held.get(g, server.holder) != server.holder), None)) is not None:
            raise PlanningError(
                f"server {server.holder!r} of the work has GPU {gpu}, which {held[gpu]!r} holds for the whole step; give "
                "it another GPU"
            )
        _check_whole_actors(server, plan)


def _check_whole_actors(server: WorkServer, plan: Plan) -> None:
    ids = set(server.gpu_ids)
    for i, actor in enumerate(plan.actors):
        if not ids.isdisjoint(actor.gpu_ids) and not ids.issuperset(actor.gpu_ids):
            shared, missing = min(ids.intersection(actor.gpu_ids)), min(set(actor.gpu_ids) - ids)
            raise PlanningError(
                f"server {server.holder!r} of the work has GPU {shared} of actor {i}, but not its GPU {missing}; give it all "
                "GPUs of an actor"
            )


def bought_as(gpu: int, cluster: Cluster | MixedCluster) -> tuple[int, GpuPool]:
    """Return the node and the pool of a GPU.

    GPUs beside the cluster are on nodes after its last, like those of its first pool.
    """
    node, first = 0, 0
    for pool in cluster.pools:
        if gpu < first + pool.gpus:
            return node + (gpu - first) // pool.gpus_per_node, pool
        node, first = node + pool.nodes, first + pool.gpus
    return node + (gpu - first) // cluster.pools[0].gpus_per_node, cluster.pools[0]


def bytes_of(result: Any) -> int | None:
    """Return the ``nbytes`` of a result, as arrays have them; None where it has none."""
    size = getattr(result, "nbytes", None)
    return int(size) if isinstance(size, int) else None
