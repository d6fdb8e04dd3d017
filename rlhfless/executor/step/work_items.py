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
from solver.model.errors import PlanningError, as_given, is_number, is_whole
from solver.model.plan import Plan

KINDS = ("prepare", "learn", "transfer")
HOLDS = ("work", "step")
ROLES = ("prepare", "learner", "reference", "reward", "critic")
_ROLE_OF_KIND = {"prepare": "prepare", "learn": "learner", "transfer": "prepare"}
WorkFunction = Callable[..., Any]


class WorkServer(NamedTuple):
    """GPUs that run one work item at a time: their holder in the trace, their ids, and their node (None: by the ids).

    ``actor`` is the actor of the plan that releases these GPUs; None for additional GPUs.
    """

    holder: str
    gpu_ids: tuple[int, ...]
    node: int | None = None
    actor: int | None = None


@dataclass(frozen=True)
class WorkGpus:
    """The GPUs that a work item may run on, as servers that run one item at a time. An item takes the first free server.

    Attributes:
        name: name of the servers in the trace.
        servers: the servers. One on GPUs of actors is free when these have completed their last responses. None: the GPUs that
            actors have released, one server per actor of the plan, free once the actor has completed or handed over its last
            response; the holders are ``name-0``, ``name-1``, ... by the actor's index.
        uses_released: released GPUs are added to ``servers``, so that a learner grows; the holders are ``name-freed-0``,
            ``name-freed-1``, ...
        role: role of the holders in the trace; None: that of the items' kind.
        hold: GPUs are held from a server's first item to its last (``work``), or for the whole ``step``. Released GPUs are
            always held for ``work``.
        from_s: earliest allocation of ``servers``, in seconds from the start of the step.
        load_s: seconds to load models on released GPUs before their first item, and on ``servers`` with a ``from_s``. Charged
            on the virtual clock, as a span ``start``.
        usd_per_gpu_hour: price; None: that of the cluster (of its first pool for additional GPUs).
        in_this_process: with real actors, functions of ``servers`` run in this process, in a thread each, for example because
            the learner is here. Such servers may have no GPUs: they are then in the trace only if they have a node. (On the
            virtual clock all functions run here, after generation.)

    Raises:
        PlanningError: there is no server, two share a GPU or a name, a name is an actor's, or ``hold`` or ``role`` is unknown.
    """

    name: str = "freed"
    servers: tuple[WorkServer, ...] | None = None
    role: str | None = None
    hold: str = "work"
    usd_per_gpu_hour: float | None = None
    in_this_process: bool = False
    uses_released: bool = False
    from_s: float = 0.0
    load_s: float = 0.0

    def __post_init__(self) -> None:
        for what, seconds in (("from_s", self.from_s), ("load_s", self.load_s)):
            if not is_number(seconds, 0):
                raise PlanningError(
                    f"{what} of GPUs {self.name!r} is {as_given(seconds)}; a finite number of 0 or more is needed"
                )
        if not isinstance(self.in_this_process, bool):
            raise PlanningError(
                f"in_this_process of GPUs {self.name!r} is {as_given(self.in_this_process)}; True or False is needed"
            )
        if self.hold not in HOLDS:
            raise PlanningError(
                f"hold {as_given(self.hold)} of GPUs {self.name!r} is unknown; choose one of {', '.join(HOLDS)}"
            )
        if self.role is not None and self.role not in ROLES:
            raise PlanningError(
                f"role {as_given(self.role)} of {self.name!r} is unknown; choose one of {', '.join(ROLES)}, or none"
            )
        if self.servers is None:
            if self.name == "actor":
                raise PlanningError("GPUs that actors gave back are called 'actor', as the actors are; give them another name")
            return
        if not self.servers:
            raise PlanningError(f"GPUs {self.name!r} have no servers; at least one is needed")
        servers = tuple(WorkServer(server[0], tuple(server[1]), *server[2:]) for server in self.servers)
        object.__setattr__(self, "servers", servers)
        ids = [gpu for server in servers for gpu in server.gpu_ids]
        if (wrong := next((gpu for gpu in ids if not is_whole(gpu, 0)), None)) is not None:
            raise PlanningError(f"GPUs {self.name!r} have the id {as_given(wrong)}; whole numbers of 0 or more are needed")
        if len(set(ids)) < len(ids):
            shared = next(gpu for gpu in ids if ids.count(gpu) > 1)
            raise PlanningError(f"two servers of GPUs {self.name!r} share GPU {shared}; every server needs GPUs of its own")
        if (holder := next((s.holder for s in servers if s.holder.startswith("actor-")), None)) is not None:
            raise PlanningError(f"a server of GPUs {self.name!r} has the name {holder!r} of an actor; give it another one")
        if len({server.holder for server in servers}) < len(servers):
            raise PlanningError(f"two servers of GPUs {self.name!r} have the same holder; every server needs a name of its own")

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
    ) -> WorkGpus:
        """Return servers on GPUs in addition to the cluster's: one called ``name``, or ``servers`` many called ``name-0``, ...

        Args:
            gpus: GPUs of each server. first: number of additional GPUs that others use already. more: see ``WorkGpus``.

        Raises:
            PlanningError: a number is negative or no whole number.
        """
        for what, number, least in (("gpus", gpus, 0), ("servers", 1 if servers is None else servers, 1), ("first", first, 0)):
            if not is_whole(number, least):
                raise PlanningError(
                    f"{what} of {name!r} beside the cluster is {as_given(number)}; a whole number of {least} or more is needed"
                )
        begin = cluster.gpus + first
        every = range(1 if servers is None else servers)
        ids = [tuple(range(begin + k * gpus, begin + (k + 1) * gpus)) for k in every]
        return cls(name, tuple(WorkServer(name if servers is None else f"{name}-{k}", ids[k]) for k in every), **more)

    def of(self, plan: Plan) -> tuple[WorkServer, ...]:
        """Return the servers for a step of this plan, released GPUs first."""
        own = self.servers or ()
        if self.servers is not None and not self.uses_released:
            return own
        prefix = self.name if self.servers is None else f"{self.name}-freed"
        actors = enumerate(plan.actors)
        return (*(WorkServer(f"{prefix}-{i}", tuple(a.gpu_ids), a.node, actor=i) for i, a in actors), *own)

    def here(self, server: WorkServer) -> bool:
        """Return whether the server's functions run in this program on the wall clock."""
        return self.in_this_process and server.actor is None

    def for_step(self, server: WorkServer) -> bool:
        """Return whether the server is held for the whole step."""
        return self.hold == "step" and server.actor is None


@dataclass(frozen=True)
class WorkItem:
    """Work inside a step other than decoding, such as scoring or learning. It never runs on GPUs of an actor that still
    decodes.

    Attributes:
        kind: ``prepare``, ``learn`` or ``transfer``, the phase of its span in the trace.
        seconds: its duration on the virtual clock; None: measured by running ``run`` alone. With real actors, its process
            counts as lost after ``Faults.silence_factor`` times this duration; None: if it sends no heartbeats.
        run: a function to run, with two tuples: the completions of ``responses`` and the results of ``items``, in their order.
            With real actors it runs in another process, which must be able to import it.
        gpus: the GPUs that it may run on.
        responses: indices of responses that must be complete before it starts.
        items: indices of work items that must have ended before it starts.
        after_s: earliest start, in seconds from the start of the step.
        priority: order among items that are ready; the smaller one starts first.
        call: which model call of its kind it is; None: the only one.
        detail: further values for its span.

    Raises:
        PlanningError: the kind is unknown, it has neither seconds nor a function, or a number makes no sense.

    Example:
        >>> import rlhfless as rl, solver
        >>> from rlhfless.engine import Request, SimulatedEngine
        >>> from rlhfless.executor import WorkGpus
        >>> latency, cluster = rl.load_profile("cpu-tiny-qwen2"), solver.Cluster(1, 2, 1, "cpu")
        >>> workload = solver.Workload([6, 6, 6], [0, 1, 2], [40, 50, 90], max_response_tokens=100)
        >>> plan = solver.random_split(solver.PlanningProblem(workload, cluster, latency), actors=2)
        >>> requests = [Request(i, 6, 100, target_tokens=tokens) for i, tokens in enumerate([40, 50, 90])]
        >>> prepare = [rl.WorkItem("prepare", 0.02, gpus=WorkGpus("freed"), responses=(i,)) for i in range(3)]
        >>> learner = WorkGpus.beside(cluster, "learner")
        >>> learn = rl.WorkItem("learn", 0.5, gpus=learner, items=(0, 1, 2))
        >>> with rl.Executor(SimulatedEngine, cluster, latency=latency) as executor:
        ...     record = executor.run(plan, requests, work=[*prepare, learn])
        >>> [ran.holder for ran in record.work][-1], record.end_s == record.work[-1].end_s
        ('learner', True)
    """

    kind: str
    seconds: float | None = None
    run: WorkFunction | None = field(default=None, repr=False)
    gpus: WorkGpus = WorkGpus()
    responses: tuple[int, ...] = ()
    items: tuple[int, ...] = ()
    after_s: float = 0.0
    priority: float = 0.0
    call: str | None = None
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
        if not isinstance(self.gpus, WorkGpus):
            raise PlanningError(f"gpus of a work item are {as_given(self.gpus)}; WorkGpus are needed")
        for name in ("responses", "items"):
            indices = getattr(self, name)
            if isinstance(indices, str) or not isinstance(indices, Iterable):
                raise PlanningError(f"{name} of a work item are {as_given(indices)}; a list of indices is needed")
            object.__setattr__(self, name, tuple(indices))
        if self.run is not None and not callable(self.run):
            raise PlanningError(f"run of a work item is {as_given(self.run)}; a function of completions and results is needed")

    @property
    def role(self) -> str:
        """Role of its holder in the trace."""
        return self.gpus.role or _ROLE_OF_KIND[self.kind]


class ItemRun(NamedTuple):
    """A work item that has run: its holder, its start and end, and the result of its function (None without one)."""

    item: WorkItem
    holder: str
    start_s: float
    end_s: float
    result: Any = None


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
    every = list(dict.fromkeys(item.gpus for item in (*work, *learner)))
    owner: dict[str, WorkGpus] = {}
    held: dict[int, str] = {gpu: server.holder for gpus in every for server in gpus.of(plan) if gpus.for_step(server)
                            for gpu in server.gpu_ids}  # fmt: skip
    for gpus in every:
        for server in gpus.of(plan):
            if owner.setdefault(server.holder, gpus) is not gpus:
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
