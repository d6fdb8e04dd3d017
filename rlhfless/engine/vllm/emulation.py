"""vLLM for the emulated actors of the virtual clock: one replica, in a process of its own, serves them one after another.

Each emulated actor has its own ``VllmEngine`` here, with its own batch and queue. The process computes a pass over the batch
of the actor that asks, while the responses of others wait in it as they are (``actor_batches.py``). So there is one copy of
the weights and one start of vLLM, however many actors a plan has. Equal prefixes are shared within an actor only. Blocks of
finished responses stay cached longer than in a replica of one's own, because all actors share one pool of blocks.

The process starts with the first step that needs it and stays for later ones. It is started again, with more memory, when a
step needs more than it has.
"""

from __future__ import annotations

import queue
import time
import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rlhfless.engine.common.sampling import Sampling
from rlhfless.engine.torch.devices import cuda_devices
from rlhfless.engine.vllm.adapter import VllmError, check_version
from rlhfless.engine.vllm.emulation_server import About, Ran, ReplayedPass, main
from rlhfless.engine.vllm.iteration import NewResponse, StepOutput
from rlhfless.engine.vllm.kv_blocks import StoredKV
from rlhfless.engine.vllm.start_up import VllmSettings
from rlhfless.errors import InputError
from rlhfless.system.child import (
    END_S,
    HEARTBEAT_TIMEOUT_S,
    REMEDY,
    Child,
    Ended,
    Failed,
    SilentChild,
    end_all,
    next_message,
)
from solver.model.drafting import Drafting
from solver.model.latency import LatencyModel

WHO = "the process in which vLLM decodes for emulated actors"


class VllmProcess:
    """A process with one replica, connected by a pipe; calls wait for their answers.

    Args:
        settings: of the replica. folder, version: of the weights to start with.
        heartbeat_timeout_s: after so many seconds without a heartbeat it counts as lost.

    Attributes:
        lost: whether it has failed; then it answers no more.

    Raises:
        VllmError: vLLM could not be started.
    """

    def __init__(
        self, settings: VllmSettings, folder: str, version: int, heartbeat_timeout_s: float = HEARTBEAT_TIMEOUT_S
    ) -> None:
        self.settings, self.lost, self.heartbeat_timeout_s = settings, False, heartbeat_timeout_s
        device = next(iter(cuda_devices()), "cpu")
        self._inbox: queue.SimpleQueue[tuple[Child, Any]] = queue.SimpleQueue()
        self._process = Child(main, (device, settings, folder, version), "rlhfless-vllm", self._inbox)
        self._weights: tuple[str, int] | None = None
        self.about: About = self._answer("its start")

    @property
    def pid(self) -> int | None:
        """Return the process id."""
        return self._process.pid

    @property
    def usable(self) -> bool:
        """Return whether it runs and no call was interrupted."""
        return not self.lost and self._process.alive

    def call(self, name: str, *arguments: Any) -> Any:
        """Let the process do something; returns what it answers.

        Raises:
            InputError, MemoryError, FloatingPointError: as vLLM's process said.
            VllmError: another error there, or the process has ended or hangs.
        """
        if self.lost:
            raise VllmError(f"{WHO} was stopped before; run the step again, which starts it anew")
        self._process.call(name, *arguments)
        return self._answer(f"the call {name!r}")

    def load(self, folder: str, version: int) -> None:
        """Load the weights of a step, unless the last call did."""
        if self._weights != (folder, version):
            self.call("load", folder, version)
            self._weights = folder, version

    def sleep(self) -> None:
        """Give the memory of weights and KV states back until the next ``load``."""
        self._weights = None
        if self.usable:
            self.call("sleep")

    def close(self) -> None:
        """End the process. Idempotent."""
        self.lost = True
        end_all([self._process])

    def _answer(self, what: str) -> Any:
        was, self.lost = self.lost, True  # if this is interrupted, the answer of this call would be taken for another's
        try:
            _, answer = next_message(self._inbox, [self._process], self.heartbeat_timeout_s)
        except SilentChild as silent:
            self.close()
            raise VllmError(
                f"{WHO} (process {self.pid}) {silent} during {what} and was stopped; run the step again, and {REMEDY}"
            ) from None
        if isinstance(answer, Ended):
            how = self._process.how_it_ended(END_S)
            raise VllmError(f"{WHO} {how}; run the step again, on a machine with more memory if the system ended it")
        self.lost = was
        if not isinstance(answer, Failed):
            return answer.value
        known = {error.__name__: error for error in (InputError, MemoryError, FloatingPointError, VllmError)}
        raise known.get(answer.kind, VllmError)(answer.message)


class EmulatedReplica:
    """A replica as the engine of one emulated actor sees it (see ``Replica``): calls go to the process.

    Args:
        actor: its number there, which no other engine of this program has had.

    Attributes:
        talked_s: CPU seconds of this thread for talking to the process.
    """

    def __init__(self, process: VllmProcess, actor: int, max_tokens: int) -> None:
        self._process, self._actor, self._prefix = process, actor, f"a{actor}."
        self.settings = replace(process.settings, max_tokens=max_tokens)
        self.vocabulary, self.token_budget, self.block_tokens, self.hands_over = process.about
        self.version: int | None = None
        self.talked_s = 0.0
        self.fed_tokens: dict[str, int] = {}
        self.drafts_off: str | None = None
        self._aborted: list[str] = []
        self._new: list[NewResponse] = []
        self._forgotten: list[int] = []
        self._sampling, self._stop_ids = Sampling(), tuple[int, ...]()

    def load(self, folder: Any, version: int) -> None:
        """Load the weights of the step."""
        self._process.load(str(folder), version)
        self.version = version

    def draft_with(self, drafting: Drafting | None, latency: LatencyModel | None = None) -> None:
        """Do nothing: emulated actors do not draft."""

    def add(self, new: NewResponse, sampling: Sampling, stop_ids: Sequence[int]) -> None:
        """Add a response to the batch, with the next pass."""
        self._new.append(new._replace(name=self._prefix + new.name, salt=self._prefix))
        self._sampling, self._stop_ids = sampling, tuple(stop_ids)

    def step(self) -> list[StepOutput]:
        """Run one pass over the batch of this actor."""
        began_s = time.thread_time()
        forgotten, aborted, new = self._taken()
        outputs, fed = self._process.call("step", self._actor, forgotten, aborted, new, self._sampling, self._stop_ids)
        self.fed_tokens = {name.removeprefix(self._prefix): tokens for name, tokens in fed.items()}
        renamed = [output._replace(name=output.name.removeprefix(self._prefix)) for output in outputs]
        self.talked_s += time.thread_time() - began_s
        return renamed

    def abort(self, names: Sequence[str]) -> None:
        """Remove responses, with the next pass."""
        self._aborted += [self._prefix + name for name in names]

    def hand_over(self, names: Sequence[str]) -> dict[str, StoredKV]:
        """Remove responses; returns the KV states of their full blocks, which stay in the process until they are dropped."""
        if self._process.lost:
            return {}
        forgotten, aborted, new = self._taken()
        assert not new, "responses join with the pass that they are added for"
        renamed = [self._prefix + name for name in names]
        stored = self._process.call("leave", self._actor, forgotten, aborted, renamed, self.hands_over)
        for kv in stored.values():
            weakref.finalize(kv, self._forgotten.append, kv.number)
        return {name.removeprefix(self._prefix): kv for name, kv in stored.items()}

    def sleep(self) -> None:
        """Do nothing but forget the version: the process serves other actors, and replays."""
        self.version = None

    def _taken(self) -> tuple[list[int], list[str], list[NewResponse]]:
        taken = list(self._forgotten), self._aborted, self._new
        del self._forgotten[: len(taken[0])]
        self._aborted, self._new = [], []
        return taken


class _Program:
    """The vLLM process of this program, if any, and how many emulated actors it has had."""

    process: VllmProcess | None = None
    actors = 0


_here = _Program()


def emulate(
    settings: Sequence[VllmSettings],
    responses: int,
    folder: str,
    version: int,
    heartbeat_timeout_s: float = HEARTBEAT_TIMEOUT_S,
) -> None:
    """Start the process for the actors of a step, unless it runs and has room for them.

    Args:
        settings: of a replica for each actor alone. responses: of the step. heartbeat_timeout_s: see ``VllmProcess``.

    Raises:
        MissingExtra, InputError: vLLM is missing or of another version.
        VllmError: vLLM could not be started.
    """
    check_version()
    wanted = shared_settings(settings, responses)
    running = _here.process
    if running is not None and running.usable and covers(running.settings, wanted):
        running.heartbeat_timeout_s = heartbeat_timeout_s
        return
    close()
    try:
        _here.process = VllmProcess(wanted, folder, version, heartbeat_timeout_s)
    except MemoryError as error:
        actors = len(settings)
        raise VllmError(
            f"vLLM found too little memory for {responses} responses of {actors} emulated actors on one device ({error}); "
            "generate fewer or shorter responses in a step"
        ) from None


def shared_settings(settings: Sequence[VllmSettings], responses: int) -> VllmSettings:
    """Return the settings of a replica that emulates actors, each with its own settings, for the responses of a step.

    An actor of several GPUs is emulated on one device, too.
    """
    first, kept = settings[0], max(1, responses)
    return replace(
        first, gpus=1, slots=max(s.slots for s in settings),
        kv_tokens=min(sum(s.kv_tokens for s in settings), kept * first.max_tokens),
        token_budget=max(s.token_budget for s in settings), kept_responses=kept,
    )  # fmt: skip


def covers(running: VllmSettings, wanted: VllmSettings) -> bool:
    """Return whether a replica with settings ``running`` has room for what is ``wanted``, and is the same otherwise."""
    room = ("slots", "kv_tokens", "kept_responses")
    enough = all((getattr(running, name) or 0) >= (getattr(wanted, name) or 0) for name in room)
    return enough and replace(running, **{name: getattr(wanted, name) for name in room}) == wanted


def replica_of_actor(max_tokens: int) -> EmulatedReplica | None:
    """Return a replica for another emulated actor; None where this program emulates none with vLLM."""
    if _here.process is None:
        return None
    _here.actors += 1
    return EmulatedReplica(_here.process, _here.actors, max_tokens)


def replay(passes: Sequence[ReplayedPass], sampling: Sampling, stop_ids: Sequence[int]) -> list[Ran]:
    """Run passes again in the process, which has to run; see ``EmulationServer.replay``."""
    assert _here.process is not None, "a step was decoded before it is replayed"
    ran: list[Ran] = _here.process.call("replay", passes, sampling, stop_ids)
    return ran


def sleep() -> None:
    """Give the memory of weights and KV states back until the next step; does nothing where no process runs."""
    if _here.process is not None:
        _here.process.sleep()


def close() -> None:
    """End the process, if any. Idempotent."""
    process, _here.process = _here.process, None
    if process is not None:
        process.close()


def pid() -> int | None:
    """Return the id of the process; None where none runs."""
    return None if _here.process is None else _here.process.pid
